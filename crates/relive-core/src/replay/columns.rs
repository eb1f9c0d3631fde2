//! The columns of a run: what a step has, stored in one field, or as stacks of planes in two.

use super::arrays::{ArrayWriter, FieldSpec, RowsOf};
use super::reader::ArrayReader;
use super::stacks::{StackAxis, Stacks, join};
use crate::hdf5::{Datatype, Filters};
use crate::{Error, Result};

/// Where the numbers of planes come from: number 0 is no plane.
const FIRST_PLANE: u64 = 1;

/// How a column is stored.
#[derive(Debug, Clone)]
pub enum ColumnSpec {
    /// Each row in one field.
    Plain(FieldSpec),
    /// Stacks, of which each plane is stored once.
    Stacked {
        /// The field of the planes.
        planes: FieldSpec,
        /// The field of the numbers of the planes of each stack.
        numbers: FieldSpec,
        /// Where the planes of a stack are.
        axis: StackAxis,
        /// The planes of a stack.
        depth: usize,
        /// The number of the column whose planes these stacks have as well.
        planes_of: Option<usize>,
    },
}

impl ColumnSpec {
    /// Returns how stacks are stored: `spec` is that of the whole stack, and `name` the name of the
    /// column. Their planes are those of the column `planes_of`, or their own.
    pub fn stacked(
        spec: &FieldSpec,
        name: &str,
        axis: StackAxis,
        planes_of: Option<usize>,
    ) -> Result<Self> {
        let mut shape = spec.shape.clone();
        let depth = match axis {
            StackAxis::First if !shape.is_empty() => shape.remove(0),
            StackAxis::Last if !shape.is_empty() => shape.pop().unwrap_or_default(),
            _ => 0,
        };
        if depth == 0 || shape.contains(&0) {
            return Err(Error::Invalid(format!("{name}: a stack must have planes of some bytes")));
        }
        let planes = FieldSpec {
            path: format!("planes/{name}"),
            shape,
            rows_of: RowsOf::Planes,
            ..spec.clone()
        };
        let numbers = FieldSpec {
            path: format!("stacks/{name}"),
            datatype: Datatype::Uint(8),
            shape: vec![depth],
            chunk_rows: 1024,
            filters: Filters { shuffle: true, ..spec.filters.clone() },
            rows_of: spec.rows_of,
        };
        Ok(Self::Stacked { planes, numbers, axis, depth: depth as usize, planes_of })
    }

    /// Returns the fields that belong to this column alone.
    pub fn fields(&self) -> impl Iterator<Item = &FieldSpec> {
        let (first, second) = match self {
            Self::Plain(field) => (field, None),
            Self::Stacked { numbers, planes_of: Some(_), .. } => (numbers, None),
            Self::Stacked { planes, numbers, .. } => (planes, Some(numbers)),
        };
        [Some(first), second].into_iter().flatten()
    }
}

/// The columns of a writer.
#[derive(Debug, Default)]
pub struct Columns {
    columns: Vec<Column>,
}

/// The fields of a column.
#[derive(Debug)]
enum Column {
    /// One field.
    Plain(usize),
    /// Planes, and the numbers of the planes of each stack.
    Stacked(StackedColumn),
    /// The numbers of planes of another column.
    Shared { of: usize, numbers: usize },
}

/// The fields of a column of stacks.
#[derive(Debug)]
struct StackedColumn {
    planes: usize,
    numbers: usize,
    next_plane: u64,
    stacks: Stacks,
    encoded: Vec<u8>,
}

impl Columns {
    /// Adds a column to a writer, with its fields; `planes` is how many planes it has already.
    pub fn add(&mut self, writer: &mut ArrayWriter, spec: ColumnSpec, planes: u64) -> Result<()> {
        let column = match spec {
            ColumnSpec::Plain(spec) => Column::Plain(writer.add_field(spec)?),
            ColumnSpec::Stacked { numbers, planes_of: Some(of), .. } => {
                if !matches!(self.columns.get(of), Some(Column::Stacked(_))) {
                    return Err(Error::Invalid(format!("column {of} has no planes")));
                }
                Column::Shared { of, numbers: writer.add_field(numbers)? }
            }
            ColumnSpec::Stacked { planes: spec, numbers, axis, depth, planes_of: None } => {
                let (item_bytes, plane_bytes) = (spec.item_bytes(), spec.row_bytes()?);
                Column::Stacked(StackedColumn {
                    planes: writer.add_field(spec)?,
                    numbers: writer.add_field(numbers)?,
                    next_plane: planes,
                    stacks: Stacks::new(axis, depth, item_bytes, plane_bytes),
                    encoded: Vec::new(),
                })
            }
        };
        self.columns.push(column);
        Ok(())
    }

    /// Appends a row of a column; it continues a stream, which is a sub-environment and an agent.
    pub fn append(
        &mut self,
        writer: &mut ArrayWriter,
        column: usize,
        stream: u64,
        row: u64,
        bytes: &[u8],
    ) -> Result<()> {
        let (stacked, numbers) = match self.columns.get(column) {
            None => {
                let count = self.columns.len();
                return Err(Error::out_of_range(column, count, "column", "columns"));
            }
            Some(Column::Plain(field)) => return writer.append(*field, row, bytes),
            Some(Column::Stacked(stacked)) => (column, stacked.numbers),
            Some(Column::Shared { of, numbers }) => (*of, *numbers),
        };
        let Column::Stacked(stacked) = &mut self.columns[stacked] else {
            return Err(Error::Invalid(format!("column {stacked} has no planes")));
        };
        let encoded = stacked.split(writer, stream, bytes)?;
        writer.append(numbers, row, encoded)
    }

    /// Appends consecutive rows of a column that has no stacks.
    pub fn append_rows(
        &mut self,
        writer: &mut ArrayWriter,
        column: usize,
        first_row: u64,
        bytes: &[u8],
    ) -> Result<()> {
        match self.columns.get(column) {
            Some(Column::Plain(field)) => writer.append_rows(*field, first_row, bytes),
            _ => Err(Error::Invalid(format!("column {column} has no plain rows"))),
        }
    }
}

impl StackedColumn {
    /// Appends the planes that are new, and returns the encoded numbers of all.
    fn split(&mut self, writer: &mut ArrayWriter, stream: u64, bytes: &[u8]) -> Result<&[u8]> {
        if bytes.len() != self.stacks.bytes() {
            let (have, expected) = (bytes.len(), self.stacks.bytes());
            return Err(Error::Invalid(format!("a stack has {have} bytes, expected {expected}")));
        }
        let (planes, next) = (self.planes, &mut self.next_plane);
        let numbers = self.stacks.split(stream, bytes, |plane| {
            writer.append(planes, *next, plane)?;
            *next += 1;
            Ok::<_, Error>(*next - 1 + FIRST_PLANE)
        })?;
        self.encoded.clear();
        self.encoded.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        Ok(&self.encoded)
    }
}

/// Reads rows of a column of stacks: `planes` and `numbers` are its fields. A row that was never
/// written is zeros.
pub fn read_stacks(
    reader: &ArrayReader,
    (planes, numbers): (usize, usize),
    (axis, depth): (StackAxis, usize),
    rows: &[u64],
    out: &mut [u8],
    threads: usize,
) -> Result<()> {
    let (item_bytes, plane_bytes) = (reader.spec(planes)?.item_bytes(), reader.row_bytes(planes)?);
    let bytes = rows.len().checked_mul(depth).and_then(|planes| planes.checked_mul(plane_bytes));
    if reader.row_bytes(numbers)? != depth.saturating_mul(8) || bytes != Some(out.len()) {
        return Err(Error::Invalid("the buffer of stacks has the wrong size".to_owned()));
    }
    if plane_bytes == 0 {
        return Ok(());
    }
    let mut encoded = vec![0; rows.len() * depth * 8];
    reader.read(numbers, rows, &mut encoded, threads)?;
    let (words, _) = encoded.as_chunks::<8>();
    let wanted: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let mut unique: Vec<u64> = wanted.iter().filter_map(|n| n.checked_sub(FIRST_PLANE)).collect();
    unique.sort_unstable();
    unique.dedup();
    reader.check_written(planes, &unique)?;
    let mut stored = vec![0; unique.len() * plane_bytes];
    reader.read(planes, &unique, &mut stored, threads)?;
    let zeros = vec![0; plane_bytes];
    let mut stack: Vec<&[u8]> = Vec::with_capacity(depth);
    for (numbers, out) in wanted.chunks_exact(depth).zip(out.chunks_exact_mut(depth * plane_bytes))
    {
        stack.clear();
        for number in numbers {
            let place = number.checked_sub(FIRST_PLANE).and_then(|n| unique.binary_search(&n).ok());
            stack.push(place.map_or(&zeros, |at| &stored[at * plane_bytes..][..plane_bytes]));
        }
        join(axis, &stack, item_bytes, false, out);
    }
    Ok(())
}
