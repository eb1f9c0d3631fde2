//! Tables: columns of equal length that are gathered together, and views of them.
//!
//! Rows are in memory, or a [`Reader`] produces them on reading, which may fail.

mod copy;
mod reader;

use std::ops::Range;
use std::sync::Arc;

pub use copy::{Target, part_range};
pub use reader::{ColumnShape, Out, Reader};

use crate::error::{Error, Result};
use crate::gather::{RaggedRows, Rows};

/// How many rows ahead a reader prefetches the number of items.
const AHEAD: usize = 8;

/// One column of a table in memory.
#[derive(Clone)]
pub enum Column {
    /// Rows of one size.
    Fixed(Rows),
    /// Rows that differ in length.
    Ragged(RaggedRows),
}

impl Column {
    fn len(&self) -> usize {
        match self {
            Self::Fixed(rows) => rows.len(),
            Self::Ragged(rows) => rows.len(),
        }
    }

    fn shape(&self) -> ColumnShape {
        match self {
            Self::Fixed(rows) => ColumnShape::Fixed { row_bytes: rows.row_bytes() },
            Self::Ragged(rows) => ColumnShape::Ragged { item_bytes: rows.item_bytes() },
        }
    }
}

/// A table that is not a view.
#[derive(Clone)]
enum Leaf {
    Memory(Arc<[Column]>),
    Reader(Arc<dyn Reader>),
}

impl Leaf {
    /// Returns the number of items of a row in a ragged column.
    fn items(&self, column: usize, row: u64) -> usize {
        match self {
            Self::Memory(columns) => match &columns[column] {
                Column::Ragged(rows) => rows.items(row as usize),
                Column::Fixed(_) => 0,
            },
            Self::Reader(reader) => reader.items(column, row),
        }
    }

    /// Returns the rows of a fixed column if they are in memory.
    fn rows(&self, column: usize) -> Option<&Rows> {
        match self {
            Self::Memory(columns) => match &columns[column] {
                Column::Fixed(rows) => Some(rows),
                Column::Ragged(_) => None,
            },
            Self::Reader(reader) => reader.rows(column),
        }
    }

    /// Returns address and size of the stored bytes of a row's column: see
    /// [`Reader::stored_bytes`].
    fn stored_bytes(&self, column: usize, row: u64) -> Option<(*const u8, usize)> {
        match self {
            Self::Memory(columns) => Some(match &columns[column] {
                Column::Fixed(rows) => (rows.address(row as usize), rows.row_bytes()),
                Column::Ragged(rows) => {
                    let row = row as usize;
                    (rows.address(row), rows.items(row) * rows.item_bytes())
                }
            }),
            Self::Reader(reader) => reader.stored_bytes(column, row),
        }
    }
}

/// The location of a row: the table that has it, and its row there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    leaf: u32,
    row: u64,
}

/// Maps the rows of a view to the tables that have them. Rows passed to it are in range.
enum Map {
    Leaf(u32),
    Range { inner: Arc<Map>, start: i64, step: i64 },
    Select { inner: Arc<Map>, rows: Arc<[i64]> },
    Concat { inner: Vec<Arc<Map>>, starts: Vec<u64> },
    Mix { inner: Vec<(Arc<Map>, u64)>, slots: Vec<(u32, u32)>, per_round: Vec<u64> },
}

impl Map {
    fn find(&self, row: u64) -> Location {
        match self {
            Self::Leaf(leaf) => Location { leaf: *leaf, row },
            Self::Range { inner, start, step } => inner.find((*start + row as i64 * *step) as u64),
            Self::Select { inner, rows } => inner.find(rows[row as usize] as u64),
            Self::Concat { inner, starts } => {
                let position = starts.partition_point(|&start| start <= row) - 1;
                inner[position].find(row - starts[position])
            }
            Self::Mix { inner, slots, per_round } => {
                let rounds = row / slots.len() as u64;
                let (table, rank) = slots[(row % slots.len() as u64) as usize];
                let (map, len) = &inner[table as usize];
                let turn = rounds * per_round[table as usize] + u64::from(rank);
                map.find(turn % len)
            }
        }
    }

    /// Returns the same map with its leaves numbered from `first` on.
    fn renumbered(self: &Arc<Self>, first: u32) -> Arc<Self> {
        if first == 0 {
            return Arc::clone(self);
        }
        Arc::new(match &**self {
            Self::Leaf(leaf) => Self::Leaf(leaf + first),
            Self::Range { inner, start, step } => {
                Self::Range { inner: inner.renumbered(first), start: *start, step: *step }
            }
            Self::Select { inner, rows } => {
                Self::Select { inner: inner.renumbered(first), rows: Arc::clone(rows) }
            }
            Self::Concat { inner, starts } => Self::Concat {
                inner: inner.iter().map(|map| map.renumbered(first)).collect(),
                starts: starts.clone(),
            },
            Self::Mix { inner, slots, per_round } => Self::Mix {
                inner: inner.iter().map(|(map, len)| (map.renumbered(first), *len)).collect(),
                slots: slots.clone(),
                per_round: per_round.clone(),
            },
        })
    }
}

/// Columns of equal length, or a view of such tables. Cheap to clone.
#[derive(Clone)]
pub struct Table {
    leaves: Vec<Leaf>,
    /// The shapes of the columns, equal for all leaves.
    shapes: Arc<[ColumnShape]>,
    /// Whether a leaf is a reader.
    reads: bool,
    map: Arc<Map>,
    len: u64,
}

impl Table {
    /// Creates a table of columns in memory, which must have equal lengths.
    pub fn new(columns: Vec<Column>) -> Result<Self> {
        let len = columns.first().map_or(0, Column::len);
        if let Some((number, other)) = (0..).zip(&columns).find(|(_, column)| column.len() != len) {
            let number: usize = number;
            return Err(Error::Invalid(format!(
                "column {number} has {} rows, but column 0 has {len}",
                other.len()
            )));
        }
        let shapes = columns.iter().map(Column::shape).collect();
        Ok(Self::of_leaf(Leaf::Memory(columns.into()), shapes, len as u64))
    }

    /// Creates a table of the rows of a reader.
    pub fn from_reader(reader: Arc<dyn Reader>) -> Result<Self> {
        let len = reader.len();
        if i64::try_from(len).is_err() {
            return Err(Error::over_limit(len, i64::MAX, "a table", "rows"));
        }
        let shapes: Arc<[ColumnShape]> = reader.columns().into();
        if shapes.iter().any(|shape| isize::try_from(shape.unit_bytes()).is_err()) {
            return Err(Error::TooLarge("a row is too large to fit in memory".into()));
        }
        Ok(Self::of_leaf(Leaf::Reader(reader), shapes, len))
    }

    fn of_leaf(leaf: Leaf, shapes: Arc<[ColumnShape]>, len: u64) -> Self {
        let reads = matches!(leaf, Leaf::Reader(_));
        Self { leaves: vec![leaf], shapes, reads, map: Arc::new(Map::Leaf(0)), len }
    }

    /// Returns the number of rows.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the shapes of the columns.
    pub fn columns(&self) -> &[ColumnShape] {
        &self.shapes
    }

    /// Returns a view of the `len` rows `start`, `start + step`, ….
    pub fn select_range(&self, start: i64, step: i64, len: u64) -> Result<Self> {
        if let Some(steps) = len.checked_sub(1) {
            let last = i128::from(start) + i128::from(step) * i128::from(steps);
            for end in [i128::from(start), last] {
                if end < 0 || end >= i128::from(self.len) {
                    return Err(out_of_range(end, self.len));
                }
            }
        }
        let map = Map::Range { inner: Arc::clone(&self.map), start, step };
        Ok(Self { map: Arc::new(map), len, ..self.clone() })
    }

    /// Returns a view of the given rows, in that order.
    pub fn select(&self, rows: Arc<[i64]>) -> Result<Self> {
        self.check(&rows)?;
        let len = rows.len() as u64;
        let map = Map::Select { inner: Arc::clone(&self.map), rows };
        Ok(Self { map: Arc::new(map), len, ..self.clone() })
    }

    /// Returns a view of all rows of all tables, one table after the other.
    pub fn concat(tables: &[Self]) -> Result<Self> {
        let (joined, maps) = Self::joined(tables)?;
        let mut starts = Vec::with_capacity(tables.len());
        let mut len = 0_u64;
        for table in tables {
            starts.push(len);
            len += table.len;
        }
        // An empty table shares its start with the next one, which `find` then returns.
        let map = Map::Concat { inner: maps, starts };
        Ok(Self { map: Arc::new(map), len, ..joined })
    }

    /// Returns a view of `len` rows that takes rows from the tables in rounds: slot `k` of a round
    /// takes the next row of table `slots[k]`, which starts over at its end.
    pub fn mix(tables: &[Self], slots: &[u32], len: u64) -> Result<Self> {
        let mut per_round = vec![0_u64; tables.len()];
        let mut ranked = Vec::with_capacity(slots.len());
        for &table in slots {
            let Some(count) = per_round.get_mut(table as usize) else {
                let text = format!("table {table} is out of range for {} tables", tables.len());
                return Err(Error::Invalid(text));
            };
            let rank = u32::try_from(*count).map_err(|_| {
                Error::TooLarge(
                    "the mix weights are too large: one round takes over 2^32 - 1 rows from one table".into(),
                )
            })?;
            ranked.push((table, rank));
            *count += 1;
        }
        let used = |table: usize| per_round.get(table).is_some_and(|&count| count > 0);
        if slots.is_empty() || tables.iter().enumerate().any(|(k, t)| t.is_empty() && used(k)) {
            return Err(Error::Invalid("cannot mix an empty source".into()));
        }
        let (joined, maps) = Self::joined(tables)?;
        let inner = maps.into_iter().zip(tables.iter().map(|table| table.len)).collect();
        let map = Map::Mix { inner, slots: ranked, per_round };
        Ok(Self { map: Arc::new(map), len, ..joined })
    }

    /// Returns a table with the leaves of all tables, and the map of each table to them.
    fn joined(tables: &[Self]) -> Result<(Self, Vec<Arc<Map>>)> {
        let alike = |first: &Self| tables.iter().all(|table| table.shapes == first.shapes);
        let Some(first) = tables.first().filter(|first| alike(first)) else {
            return Err(Error::Invalid("the tables must have the same columns".into()));
        };
        let mut joined = Self { leaves: Vec::new(), ..first.clone() };
        let mut maps = Vec::with_capacity(tables.len());
        for table in tables {
            let first = u32::try_from(joined.leaves.len())
                .map_err(|_| Error::TooLarge("cannot join more than 2^32 - 1 tables".into()))?;
            maps.push(table.map.renumbered(first));
            joined.leaves.extend(table.leaves.iter().cloned());
            joined.reads |= table.reads;
        }
        Ok((joined, maps))
    }

    /// Checks that all rows exist.
    pub fn check(&self, rows: &[i64]) -> Result<()> {
        // Negative numbers become large, so one comparison finds both.
        let worst = rows.iter().fold(0_u64, |worst, &row| worst.max(row as u64));
        if worst < self.len || rows.is_empty() {
            return Ok(());
        }
        let bad = rows.iter().copied().find(|&row| row as u64 >= self.len);
        Err(out_of_range(i128::from(bad.unwrap_or_default()), self.len))
    }

    /// Locates the given rows; `OutOfRange` if one does not exist.
    pub fn find(&self, rows: &[i64], locations: &mut Vec<Location>) -> Result<()> {
        self.check(rows)?;
        locations.clear();
        match &*self.map {
            Map::Leaf(leaf) => {
                locations.extend(rows.iter().map(|&row| Location { leaf: *leaf, row: row as u64 }));
            }
            map => locations.extend(rows.iter().map(|&row| map.find(row as u64))),
        }
        Ok(())
    }

    /// Whether a column in memory overlaps these addresses. Readers have their own memory, which
    /// callers cannot write.
    pub fn overlaps(&self, addresses: &Range<usize>) -> bool {
        let memory = self.leaves.iter().filter_map(|leaf| match leaf {
            Leaf::Memory(columns) => Some(columns),
            Leaf::Reader(_) => None,
        });
        memory.flat_map(|columns| columns.iter()).any(|column| {
            let extent = match column {
                Column::Fixed(rows) => rows.extent(),
                Column::Ragged(rows) => rows.extent(),
            };
            extent.start < addresses.end && addresses.start < extent.end
        })
    }

    /// Whether some rows must be fetched: they are neither in memory nor in a mapped file.
    pub fn is_fetched(&self) -> bool {
        self.leaves.iter().any(|leaf| match leaf {
            Leaf::Memory(_) => false,
            Leaf::Reader(reader) => !reader.is_empty() && reader.stored_bytes(0, 0).is_none(),
        })
    }

    /// Returns the bytes of one row of a fixed column; 0 for a ragged one.
    pub fn row_bytes(&self, column: usize) -> usize {
        match self.shapes[column] {
            ColumnShape::Fixed { row_bytes } => row_bytes,
            ColumnShape::Ragged { .. } => 0,
        }
    }

    /// Computes the start of each row in the buffer of a ragged column, in items, and the end of
    /// the last. `TooLarge` if the rows do not fit in memory.
    pub fn offsets(
        &self,
        column: usize,
        locations: &[Location],
        offsets: &mut Vec<i64>,
    ) -> Result<()> {
        // The lengths may be stored with the values, so the files must be checked first.
        self.each_reader(locations, &mut Vec::new(), |reader| reader.before_items())?;
        offsets.clear();
        offsets.reserve(locations.len() + 1);
        let mut end = 0_usize;
        offsets.push(0);
        // Readers take lengths from files, so the sum may overflow.
        let most = isize::MAX as usize / self.shapes[column].unit_bytes().max(1);
        for (k, location) in locations.iter().enumerate() {
            if let Some(next) = locations.get(k + AHEAD)
                && let Leaf::Reader(reader) = &self.leaves[next.leaf as usize]
            {
                reader.prefetch(column, next.row);
            }
            let items = self.leaves[location.leaf as usize].items(column, location.row);
            end = end.checked_add(items).filter(|&end| end <= most).ok_or_else(|| {
                Error::TooLarge(format!(
                    "not enough memory for a batch of {} rows",
                    locations.len()
                ))
            })?;
            offsets.push(end as i64);
        }
        Ok(())
    }

    /// Calls `visit` with the address range of each row in every column. Equal and adjacent ranges
    /// are merged. A row with gaps counts as one range; rows that are not in memory are skipped.
    pub(crate) fn each_range(&self, locations: &[Location], visit: impl Fn(*const u8, usize)) {
        for column in 0..self.shapes.len() {
            let mut range = (std::ptr::null::<u8>(), 0_usize);
            for location in locations {
                let leaf = &self.leaves[location.leaf as usize];
                let Some((start, bytes)) = leaf.stored_bytes(column, location.row) else {
                    continue;
                };
                if range.0.wrapping_add(range.1) == start {
                    range.1 += bytes;
                } else if range != (start, bytes) {
                    if range.1 > 0 {
                        visit(range.0, range.1);
                    }
                    range = (start, bytes);
                }
            }
            if range.1 > 0 {
                visit(range.0, range.1);
            }
        }
    }
}

fn out_of_range(row: i128, len: u64) -> Error {
    Error::out_of_range(row, len, "index", "rows")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod testing;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
