//! `RunArraysWriter` and `RunArraysReader`.

use std::path::PathBuf;
use std::slice;
use std::sync::Arc;

use numpy::ndarray::Array2;
use numpy::npyffi::npy_intp;
use numpy::{
    IntoPyArray, PyArray1, PyArray2, PyArrayDescr, PyArrayMethods, PyReadonlyArray1, PyUntypedArray,
};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};
use relive_core::hdf5::{Attribute, Attributes, Dataset, Filters, Group, Values};
use relive_core::replay::{
    ArrayReader, ArrayWriter, ChunkTable, ColumnSpec, ColumnValues, Columns, Commit, FieldSpec,
    PlaneIds, PlaneStore, RowsOf, RunLength, StackAxis, StoredChunk, TailRecord, Transitions,
    Windows, read_stacks,
};
use relive_core::{Error, Result};

use crate::arrays::{data_of, is_writable};
use crate::errors::to_py;
use crate::step_arrays::{StepArrays, bytes_of};
use crate::steps::Step;
use crate::table::{Shape, Table, from_reader, rows_of};

/// Number of the field, first row, rows, offset, bytes and CRC-32C of a chunk.
type ChunkRow = (usize, u64, u64, u64, u32, u32);
/// Number of the field, first row, rows, data and CRC-32C of rows of a chunk that is not full.
type TailRow<'py> = (usize, u64, u64, Bound<'py, PyBytes>, u32);
/// What to commit.
type CommitRows<'py> = (Vec<ChunkRow>, Vec<TailRow<'py>>);
/// First row, rows, offset, bytes and CRC-32C of a chunk.
type StoredRow = (u64, u64, u64, u32, u32);
/// Path, dtype, shape and bytes of a dataset.
type SmallDataset = (String, String, Vec<u64>, Vec<u8>);

/// Appends the arrays of a run to its file. One thread at a time calls it.
#[pyclass(module = "relive._native")]
pub struct RunArraysWriter {
    writer: ArrayWriter,
    columns: Columns,
}

impl RunArraysWriter {
    fn append_all(
        &mut self,
        py: Python<'_>,
        rows: &[(u64, Py<StepArrays>)],
        columns: &[(usize, u64, Bound<'_, PyUntypedArray>)],
    ) -> PyResult<()> {
        let mut scalars = Vec::with_capacity(columns.len());
        for (column, first_row, array) in columns {
            scalars.push((*column, *first_row, bytes_of(array)?));
        }
        let append = || -> Result<()> {
            for (row, step) in rows {
                let step = step.get();
                for (number, bytes) in step.columns() {
                    self.columns.append(&mut self.writer, number, step.stream(), *row, bytes)?;
                }
            }
            for (column, first_row, bytes) in scalars {
                self.columns.append_rows(&mut self.writer, column, first_row, bytes)?;
            }
            Ok(())
        };
        py.detach(append).map_err(to_py)
    }
}

#[pymethods]
impl RunArraysWriter {
    /// Create the file of a run, or continue it after `end`.
    #[new]
    #[pyo3(signature = (path, *, end=None, threads=1))]
    fn new(py: Python<'_>, path: PathBuf, end: Option<u64>, threads: usize) -> PyResult<Self> {
        let open = || match end {
            None => ArrayWriter::create(&path, threads),
            Some(end) => ArrayWriter::open(&path, end, threads),
        };
        let writer = py.detach(open).map_err(to_py)?;
        Ok(Self { writer, columns: Columns::default() })
    }

    /// Add a column and return the paths of its fields. `planes` is how many planes its stacks
    /// have already.
    #[pyo3(signature = (spec, *, planes=0))]
    fn add_column(&mut self, spec: &Bound<'_, PyDict>, planes: u64) -> PyResult<Vec<String>> {
        let spec = spec_from(spec)?;
        self.columns.add(&mut self.writer, spec.clone(), planes).map_err(to_py)?;
        Ok(spec.fields().map(|field| field.path.clone()).collect())
    }

    /// Continue a field after its committed rows: `open` has those of its last chunk, if it is not
    /// full.
    fn restore(
        &mut self,
        field: usize,
        chunks: Vec<StoredRow>,
        rows: u64,
        open: Vec<u8>,
    ) -> PyResult<()> {
        let chunks = chunks.into_iter().map(stored_chunk).collect();
        self.writer.restore(field, chunks, rows, open).map_err(to_py)
    }

    /// Append the arrays of steps and ends of episodes, each with its row. `columns` are consecutive
    /// rows of further columns: the number, the first row and a C-contiguous array.
    #[pyo3(signature = (rows, columns=Vec::new()))]
    fn append(
        &mut self,
        py: Python<'_>,
        rows: Vec<(u64, Py<StepArrays>)>,
        columns: Vec<(usize, u64, Bound<'_, PyUntypedArray>)>,
    ) -> PyResult<()> {
        self.append_all(py, &rows, &columns)
    }

    /// Append the arrays of items, which are steps and ends of episodes; `first_end` is the row of
    /// the first end that has arrays. `columns` are as `append` takes them.
    fn append_items<'py>(
        &mut self,
        py: Python<'py>,
        items: Vec<Bound<'py, PyAny>>,
        first_end: u64,
        columns: Vec<(usize, u64, Bound<'py, PyUntypedArray>)>,
    ) -> PyResult<()> {
        let mut rows = Vec::with_capacity(items.len());
        let mut end_row = first_end;
        for item in &items {
            let end = match item.cast::<Step>() {
                Ok(step) => {
                    let step = step.get();
                    rows.push((step.row as u64, step.arrays.clone_ref(py)));
                    step.end.as_ref().map(|end| end.bind(py))
                }
                Err(_) => Some(item),
            };
            let Some(end) = end else { continue };
            if let Some(arrays) = end.getattr(intern!(py, "arrays"))?.extract()? {
                rows.push((end_row, arrays));
                end_row += 1;
            }
        }
        self.append_all(py, &rows, &columns)
    }

    /// Append consecutive rows of a column: a C-contiguous array.
    fn append_rows(
        &mut self,
        py: Python<'_>,
        column: usize,
        first_row: u64,
        rows: &Bound<'_, PyUntypedArray>,
    ) -> PyResult<()> {
        let bytes = bytes_of(rows)?;
        let append = || self.columns.append_rows(&mut self.writer, column, first_row, bytes);
        py.detach(append).map_err(to_py)
    }

    /// Write every full chunk; return the chunks and rows to commit with the steps so far.
    fn commit<'py>(&mut self, py: Python<'py>) -> PyResult<CommitRows<'py>> {
        let commit = py.detach(|| self.writer.commit()).map_err(to_py)?;
        Ok(commit_rows(py, commit))
    }

    /// Write the chunks that are not full, and the metadata of HDF5; return what to commit. Without
    /// `chunk_table`, the file cannot be read as a run.
    #[pyo3(signature = (steps, ends, attributes, datasets, *, chunk_table=true))]
    fn finish<'py>(
        &mut self,
        py: Python<'py>,
        steps: u64,
        ends: u64,
        attributes: &Bound<'py, PyDict>,
        datasets: Vec<SmallDataset>,
        chunk_table: bool,
    ) -> PyResult<CommitRows<'py>> {
        let root = root_group(attributes, datasets)?;
        let table = if chunk_table { ChunkTable::Stored } else { ChunkTable::LeftOut };
        let finish = || self.writer.finish(root, RunLength { steps, ends }, table);
        let commit = py.detach(finish).map_err(to_py)?;
        Ok(commit_rows(py, commit))
    }

    /// Write metadata of HDF5 for the full chunks so far, so that other programs can read them.
    fn write_snapshot(
        &mut self,
        py: Python<'_>,
        attributes: &Bound<'_, PyDict>,
        datasets: Vec<SmallDataset>,
    ) -> PyResult<()> {
        let root = root_group(attributes, datasets)?;
        py.detach(|| self.writer.write_snapshot(root)).map_err(to_py)
    }

    /// Make everything that was written survive a power cut.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.writer.sync()).map_err(to_py)
    }

    /// Offset, bytes and CRC-32C of the metadata that was written last.
    #[getter]
    fn metadata(&self) -> Option<(u64, u64, u32)> {
        self.writer.metadata().map(|made| (made.offset, made.bytes, made.crc))
    }

    /// Where the next bytes go.
    #[getter]
    fn end(&self) -> u64 {
        self.writer.end()
    }
}

/// Reads rows of the arrays of a run, as they were committed when it was made. Thread-safe.
#[pyclass(frozen, module = "relive._native")]
pub struct RunArraysReader {
    reader: Arc<ArrayReader>,
    columns: Vec<ReadColumn>,
}

/// The fields of a column.
enum ReadColumn {
    Plain(usize),
    Stacked { planes: usize, numbers: usize, axis: StackAxis, depth: usize },
}

#[pymethods]
impl RunArraysReader {
    /// Open the file of a run. Each column has its description, and the chunks and further rows of
    /// its fields.
    #[new]
    fn new(py: Python<'_>, path: PathBuf, columns: Vec<StoredColumn<'_>>) -> PyResult<Self> {
        let mut reader = py.detach(|| ArrayReader::open(&path)).map_err(to_py)?;
        let mut made: Vec<ReadColumn> = Vec::with_capacity(columns.len());
        let mut next = 0;
        for (arguments, fields) in columns {
            let spec = spec_from(&arguments)?;
            let first = next;
            for (field, (chunks, tails)) in spec.fields().zip(fields) {
                let chunks = chunks.into_iter().map(stored_chunk).collect();
                let tails = tails.into_iter().map(|tail| stored_tail(next, tail)).collect();
                reader.add_field(field.clone(), chunks, tails).map_err(to_py)?;
                next += 1;
            }
            made.push(match spec {
                ColumnSpec::Plain(_) => ReadColumn::Plain(first),
                ColumnSpec::Stacked { axis, depth, planes_of: None, .. } => {
                    ReadColumn::Stacked { planes: first, numbers: first + 1, axis, depth }
                }
                ColumnSpec::Stacked { axis, depth, planes_of: Some(of), .. } => {
                    let Some(ReadColumn::Stacked { planes, .. }) = made.get(of) else {
                        let text = format!("column {of} has no planes");
                        return Err(to_py(Error::Corrupt(text)));
                    };
                    ReadColumn::Stacked { planes: *planes, numbers: first, axis, depth }
                }
            });
        }
        Ok(Self { reader: Arc::new(reader), columns: made })
    }

    /// Return how many rows a field has, and the bytes of those in its last chunk, if it is not
    /// full.
    fn open_rows<'py>(
        &self,
        py: Python<'py>,
        field: usize,
    ) -> PyResult<(u64, Bound<'py, PyBytes>)> {
        let (rows, bytes) = py.detach(|| self.reader.open_rows(field)).map_err(to_py)?;
        Ok((rows, PyBytes::new(py, &bytes)))
    }

    /// Fill a C-contiguous array with rows of a column, in any order; missing rows are zeros.
    #[pyo3(signature = (column, rows, out, *, threads=1))]
    fn read(
        &self,
        py: Python<'_>,
        column: usize,
        rows: PyReadonlyArray1<'_, u64>,
        out: &Bound<'_, PyUntypedArray>,
        threads: usize,
    ) -> PyResult<()> {
        let bytes = bytes_of(out)?.len();
        if !is_writable(out) {
            return Err(to_py(Error::Invalid("`out` must be writable".to_owned())));
        }
        let column = self.column(column)?;
        // A copy, so that no thread can change a row while it is read.
        let rows: Vec<u64> = rows.as_array().to_vec();
        // SAFETY: a contiguous array has this many bytes, and it is alive until this returns.
        let bytes = unsafe { slice::from_raw_parts_mut(data_of(out), bytes) };
        let read = || match *column {
            ReadColumn::Plain(field) => self.reader.read(field, &rows, bytes, threads),
            ReadColumn::Stacked { planes, numbers, axis, depth } => {
                let fields = (planes, numbers);
                read_stacks(&self.reader, fields, (axis, depth), &rows, bytes, threads)
            }
        };
        py.detach(read).map_err(to_py)
    }

    /// Return the numbers of the planes of each stack, from 1 on; a missing row has zeros.
    fn read_numbers<'py>(
        &self,
        py: Python<'py>,
        column: usize,
        rows: PyReadonlyArray1<'py, u64>,
    ) -> PyResult<Bound<'py, PyArray2<u64>>> {
        let ReadColumn::Stacked { numbers, depth, .. } = *self.column(column)? else {
            return Err(to_py(Error::Invalid(format!("column {column} has no stacks"))));
        };
        let rows: Vec<u64> = rows.as_array().to_vec();
        let mut bytes = vec![0; rows.len() * depth * size_of::<u64>()];
        let read = || self.reader.read(numbers, &rows, &mut bytes, 1);
        py.detach(read).map_err(to_py)?;
        let (words, _) = bytes.as_chunks::<8>();
        let found = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let found = Array2::from_shape_vec((rows.len(), depth), found);
        Ok(found.map_err(|error| to_py(Error::Invalid(error.to_string())))?.into_pyarray(py))
    }

    /// Return a table with a row for each of `length` transitions, or for each window of them.
    ///
    /// Each column has its name, dtype and shape, then an array with a row for each transition; or
    /// the number of an entry of `planes` for each, and which of `planes` that is; or neither, for
    /// the mask of windows. Each of `planes` has the columns of the run that the planes are rows
    /// of, and how many rows of each are numbered, from 1 on; the numbers of the planes of each
    /// entry, or None if each plane is one; how many planes an entry has, and their axis.
    /// `windows` are their number of transitions, and for each window the first, how many it has,
    /// and how many are not to learn from. At most `cache_bytes` of what was decoded are kept.
    /// `mapped` reads from a map of the file, which must not be truncated meanwhile.
    #[expect(clippy::too_many_arguments, reason = "each is an argument in Python")]
    #[pyo3(signature = (columns, planes, length, *, windows, cache_bytes, mapped))]
    fn transitions(
        &self,
        py: Python<'_>,
        columns: Vec<TransitionColumn<'_>>,
        planes: Vec<TransitionPlanes<'_>>,
        length: usize,
        windows: Option<TransitionWindows<'_>>,
        cache_bytes: usize,
        mapped: bool,
    ) -> PyResult<Table> {
        let mut store = PlaneStore::new(Arc::clone(&self.reader), cache_bytes).map_err(to_py)?;
        if mapped {
            // SAFETY: the caller passes it only for files that nothing truncates.
            unsafe { store.map() }.map_err(to_py)?;
        }
        let mut ids = Vec::with_capacity(planes.len());
        for (fields, numbers, depth, axis) in planes {
            let mut found = Vec::with_capacity(fields.len());
            for (column, rows) in fields {
                found.push(match *self.column(column)? {
                    ReadColumn::Plain(field) => (field, rows),
                    ReadColumn::Stacked { planes, .. } => (planes, rows),
                });
            }
            let axis = if axis == "last" { StackAxis::Last } else { StackAxis::First };
            let numbers = numbers.map(|numbers| numbers.to_vec()).transpose()?;
            ids.push(PlaneIds { fields: found, ids: numbers, depth, axis });
        }
        let (mut values, mut shapes) = (Vec::new(), Vec::new());
        for (name, dtype, row, array, planes) in columns {
            values.push(match (array, planes) {
                (Some(array), None) => ColumnValues::Memory(rows_of(&name, &array)?),
                (Some(array), Some(planes)) => {
                    ColumnValues::Planes(planes, array.cast::<PyArray1<u32>>()?.to_vec()?)
                }
                (None, _) => ColumnValues::Mask,
            });
            shapes.push(Shape::new(name, dtype, row, false));
        }
        let windows = windows.map(|(steps, starts, lengths, skipped)| {
            let (starts, lengths) = (starts.to_vec()?, lengths.to_vec()?);
            PyResult::Ok(Windows { steps, starts, lengths, skipped: skipped.to_vec()? })
        });
        let windows = windows.transpose()?;
        let made = py.detach(|| Transitions::new(store, ids, values, length, windows));
        Ok(from_reader(Arc::new(made.map_err(to_py)?), shapes)?.recycling())
    }

    /// How many chunks were decoded so far.
    #[getter]
    fn decoded(&self) -> u64 {
        self.reader.decoded()
    }
}

impl RunArraysReader {
    fn column(&self, number: usize) -> PyResult<&ReadColumn> {
        let count = self.columns.len();
        let missing = || to_py(Error::out_of_range(number, count, "column", "columns"));
        self.columns.get(number).ok_or_else(missing)
    }
}

/// Name, dtype and shape of a column of transitions; its rows or entries, and its planes.
type TransitionColumn<'py> = (
    Bound<'py, PyString>,
    Bound<'py, PyArrayDescr>,
    Vec<npy_intp>,
    Option<Bound<'py, PyUntypedArray>>,
    Option<usize>,
);
/// Columns and how many rows of each; the numbers of planes, how many an entry has, and their axis.
type TransitionPlanes<'py> = (Vec<(usize, u64)>, Option<Bound<'py, PyArray2<u32>>>, usize, String);
/// Transitions of a window; the first of each, how many it has, and how many are skipped.
type TransitionWindows<'py> =
    (usize, Bound<'py, PyArray1<u32>>, Bound<'py, PyArray1<u32>>, Bound<'py, PyArray1<u32>>);

/// The description of a column, and the chunks and further rows of each of its fields.
type StoredColumn<'py> = (Bound<'py, PyDict>, Vec<(Vec<StoredRow>, Vec<StoredTail>)>);
/// First row, rows, data and CRC-32C of rows of a chunk that is not full.
type StoredTail = (u64, u64, Vec<u8>, u32);

fn stored_chunk((first_row, rows, offset, bytes, crc): StoredRow) -> StoredChunk {
    StoredChunk { first_row, rows, offset, bytes, crc }
}

fn stored_tail(field: usize, (first_row, rows, data, crc): StoredTail) -> TailRecord {
    TailRecord { field, first_row, rows, data, crc }
}

fn commit_rows(py: Python<'_>, commit: Commit) -> CommitRows<'_> {
    let chunks = commit.chunks.into_iter();
    let chunks = chunks.map(|c| (c.field, c.first_row, c.rows, c.offset, c.bytes, c.crc));
    let tails = commit.tails.into_iter();
    let tails = tails.map(|t| (t.field, t.first_row, t.rows, PyBytes::new(py, &t.data), t.crc));
    (chunks.collect(), tails.collect())
}

/// Returns the group of a file that has its attributes and small datasets.
fn root_group(attributes: &Bound<'_, PyDict>, datasets: Vec<SmallDataset>) -> PyResult<Group> {
    let mut root = Group::default();
    for (name, value) in attributes.iter() {
        let value = match value.extract::<i64>() {
            Ok(value) => Attribute::Int(value),
            Err(_) => Attribute::Text(value.extract()?),
        };
        root.attributes.insert(name.extract()?, value);
    }
    for (path, dtype, shape, bytes) in datasets {
        let (datatype, values) = (dtype.parse().map_err(to_py)?, Values::Bytes(bytes));
        let attributes = Attributes::new();
        root.insert(&path, Dataset { datatype, shape, values, attributes }).map_err(to_py)?;
    }
    Ok(root)
}

/// Returns how a column is stored, from the description that the database has of it.
fn spec_from(described: &Bound<'_, PyDict>) -> PyResult<ColumnSpec> {
    fn get<'py, T: FromPyObjectOwned<'py>>(from: &Bound<'py, PyDict>, name: &str) -> PyResult<T> {
        let missing = || to_py(Error::Invalid(format!("`{name}` is missing")));
        from.get_item(name)?.ok_or_else(missing)?.extract().map_err(Into::into)
    }
    let name: String = get(described, "name")?;
    let codec: String = get(described, "codec")?;
    let rows_of: String = get(described, "rows_of")?;
    let dtype: String = get(described, "dtype")?;
    let stack: Option<String> = get(described, "stack")?;
    let planes_of = get(described, "planes_of")?;
    let spec = FieldSpec {
        path: get(described, "path")?,
        datatype: dtype.parse().map_err(to_py)?,
        shape: get(described, "shape")?,
        chunk_rows: get(described, "chunk_rows")?,
        filters: Filters {
            codec: codec.parse().map_err(to_py)?,
            level: get(described, "level")?,
            shuffle: get(described, "shuffle")?,
        },
        rows_of: match rows_of.as_str() {
            "steps" => RowsOf::Steps,
            "ends" => RowsOf::Ends,
            other => {
                let text = format!("{name}: rows of {other:?} are unknown");
                return Err(to_py(Error::Invalid(text)));
            }
        },
    };
    let stacked = |axis| ColumnSpec::stacked(&spec, &name, axis, planes_of).map_err(to_py);
    match stack.as_deref() {
        None => Ok(ColumnSpec::Plain(spec)),
        Some("first") => stacked(StackAxis::First),
        Some("last") => stacked(StackAxis::Last),
        Some(other) => {
            Err(to_py(Error::Invalid(format!("a stack is first or last, got {other:?}"))))
        }
    }
}
