//! `RunArraysWriter` and `RunArraysReader`.

use std::collections::{HashMap, VecDeque};
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
    Added, ArrayReader, ArrayWriter, ChunkTable, ColumnSpec, ColumnValues, Columns, Commit, Copied,
    FieldSpec, MemoryPlane, Numbers, PlaneIds, PlaneStore, RowsOf, RunLength, StackAxis,
    StoredChunk, TailRecord, TransitionRows, Transitions, Windows, read_stacks, separate,
};
use relive_core::slab::SlabPool;
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
#[derive(Clone)]
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

    /// Return a reader of the same columns with what was committed since:
    /// for each field the chunks and further rows that are new.
    fn extended(
        &self,
        py: Python<'_>,
        added: Vec<(Vec<StoredRow>, Vec<StoredTail>)>,
    ) -> PyResult<Self> {
        let added = added.into_iter().enumerate().map(|(field, (chunks, tails))| Added {
            chunks: chunks.into_iter().map(stored_chunk).collect(),
            tails: tails.into_iter().map(|tail| stored_tail(field, tail)).collect(),
        });
        let added = added.collect();
        let reader = py.detach(|| self.reader.extended(added)).map_err(to_py)?;
        Ok(Self { reader: Arc::new(reader), columns: self.columns.clone() })
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

/// Planes of the columns of a run, some of them kept in memory. Thread-safe.
#[pyclass(frozen, module = "relive._native")]
pub struct RunPlanes {
    store: Arc<PlaneStore>,
    columns: Vec<ReadColumn>,
    /// The memory of large columns of batches.
    pool: Arc<SlabPool>,
}

#[pymethods]
impl RunPlanes {
    /// Keep at most `cache_bytes` of what was decoded. `mapped` reads from a map of the file, which
    /// must not be truncated meanwhile. What `before` has, which was made of a reader that this one
    /// was extended from, is kept.
    #[new]
    #[pyo3(signature = (reader, *, cache_bytes, mapped, before=None))]
    fn new(
        reader: &RunArraysReader,
        cache_bytes: usize,
        mapped: bool,
        before: Option<&Self>,
    ) -> PyResult<Self> {
        let arrays = Arc::clone(&reader.reader);
        let store = match before {
            None => PlaneStore::new(arrays, cache_bytes),
            Some(before) => before.store.continued(arrays),
        };
        let mut store = store.map_err(to_py)?;
        if mapped {
            // SAFETY: the caller passes it only for files that nothing truncates.
            unsafe { store.map() }.map_err(to_py)?;
        }
        let pool = before.map_or_else(Table::large_pool, |before| Arc::clone(&before.pool));
        Ok(Self { store: Arc::new(store), columns: reader.columns.clone(), pool })
    }

    /// Drop what was decoded of a column before a row, or a plane if it has stacks.
    fn drop_before(&self, column: usize, row: u64) -> PyResult<()> {
        let count = self.columns.len();
        let missing = || to_py(Error::out_of_range(column, count, "column", "columns"));
        let field = match *self.columns.get(column).ok_or_else(missing)? {
            ReadColumn::Plain(field) => field,
            ReadColumn::Stacked { planes, .. } => planes,
        };
        self.store.drop_before(field, row).map_err(to_py)
    }

    /// How many bytes were decoded and are kept.
    #[getter]
    fn kept_bytes(&self) -> usize {
        self.store.kept_bytes()
    }

    /// How many bytes were decoded so far, those that were not kept included.
    #[getter]
    fn decoded_bytes(&self) -> u64 {
        self.store.decoded_bytes()
    }
}

/// Transitions of a run, or windows of them. Thread-safe.
#[pyclass(frozen, module = "relive._native")]
pub struct RunTransitions {
    rows: Arc<TransitionRows>,
    shapes: Vec<Shape>,
}

#[pymethods]
impl RunTransitions {
    /// Make a row for each of `length` transitions, or for each window of them. The arrays must
    /// stay as they are.
    ///
    /// Each column has its name, dtype and shape, then an array with a row for each transition; or
    /// the number of an entry of `planes` for each, and which of `planes` that is; or neither, for
    /// the mask of windows. Each of `planes` has the columns of the run that the planes are rows
    /// of, and how many rows of each are numbered, from 1 on; the numbers of the planes of each
    /// entry, or None if each plane is one; how many planes an entry has, and their axis; and
    /// further planes in memory. `windows` are their number of transitions, for each window the
    /// first, how many it has, and how many are not to learn from.
    #[new]
    #[pyo3(signature = (store, columns, planes, length, *, windows))]
    fn new(
        py: Python<'_>,
        store: &RunPlanes,
        columns: Vec<TransitionColumn<'_>>,
        planes: Vec<TransitionPlanes<'_>>,
        length: usize,
        windows: Option<TransitionWindows<'_>>,
    ) -> PyResult<Self> {
        let mut ids = Vec::with_capacity(planes.len());
        for (fields, numbers, depth, axis, memory) in planes {
            let mut found = Vec::with_capacity(fields.len());
            for (column, rows) in fields {
                let count = store.columns.len();
                let missing = || to_py(Error::out_of_range(column, count, "column", "columns"));
                found.push(match *store.columns.get(column).ok_or_else(missing)? {
                    ReadColumn::Plain(field) => (field, rows),
                    ReadColumn::Stacked { planes, .. } => (planes, rows),
                });
            }
            let axis = if axis == "last" { StackAxis::Last } else { StackAxis::First };
            let numbers = numbers.map(|numbers| numbers_of(numbers.as_untyped())).transpose()?;
            let memory = memory.map_or_else(Vec::new, |memory| memory.get().planes.clone());
            ids.push(PlaneIds { fields: found, memory, ids: numbers, depth, axis });
        }
        let (mut values, mut shapes) = (Vec::new(), Vec::new());
        for (name, dtype, row, array, planes) in columns {
            values.push(match (array, planes) {
                (Some(array), None) => ColumnValues::Memory(rows_of(&name, &array)?),
                (Some(array), Some(planes)) => {
                    let entries = array.cast::<PyArray1<u32>>()?;
                    ColumnValues::Planes(planes, numbers_of(entries.as_untyped())?)
                }
                (None, _) => ColumnValues::Mask,
            });
            shapes.push(Shape::new(name, dtype, row, false));
        }
        let numbers = |array: &Bound<'_, PyArray1<u32>>| numbers_of(array.as_untyped());
        let windows = windows.map(|(steps, starts, lengths, skipped)| {
            let (starts, lengths) = (numbers(&starts)?, numbers(&lengths)?);
            PyResult::Ok(Windows { steps, starts, lengths, skipped: numbers(&skipped)? })
        });
        let windows = windows.transpose()?;
        let store = &store.store;
        let made = py.detach(|| TransitionRows::new(store, ids, values, length, windows));
        Ok(Self { rows: Arc::new(made.map_err(to_py)?), shapes })
    }

    /// Return them as a table, with planes that may have more than those they were made with.
    fn table(&self, py: Python<'_>, store: &RunPlanes) -> PyResult<Table> {
        let made = Transitions::new(Arc::clone(&store.store), Arc::clone(&self.rows));
        let shapes = self.shapes.iter().map(|shape| shape.clone_ref(py)).collect();
        Ok(from_reader(Arc::new(made), shapes)?.recycling(Arc::clone(&store.pool)))
    }
}

/// Refers to the numbers of an array.
fn numbers_of(array: &Bound<'_, PyUntypedArray>) -> PyResult<Numbers> {
    let bytes = bytes_of(array)?;
    #[expect(clippy::cast_ptr_alignment, reason = "the next line compares it")]
    let data = bytes.as_ptr().cast::<u32>();
    if !data.is_aligned() {
        return Err(to_py(Error::Invalid("an array must be aligned".to_owned())));
    }
    let owner = Arc::new(array.clone().unbind());
    // SAFETY: a C-contiguous array of u32 has these numbers, and the owner keeps it. The caller
    // does not change them.
    Ok(unsafe { Numbers::new(data, bytes.len() / size_of::<u32>(), owner) })
}

/// Planes of steps that were not written yet.
#[pyclass(frozen, module = "relive._native")]
pub struct MemoryPlanes {
    planes: Vec<MemoryPlane>,
}

/// Arrays of steps and ends of episodes that were accepted, and may not be written yet.
#[pyclass(module = "relive._native")]
pub struct RecentArrays {
    /// For each column the row, and where its bytes are.
    columns: HashMap<usize, VecDeque<(u64, MemoryPlane)>>,
    /// Depth and element size of columns whose planes are side by side.
    separated: HashMap<usize, (usize, usize)>,
}

#[pymethods]
impl RecentArrays {
    #[new]
    fn new() -> Self {
        Self { columns: HashMap::new(), separated: HashMap::new() }
    }

    /// Store the planes of a column of stacks one after the other, which are side by side in its
    /// arrays.
    fn separate(&mut self, column: usize, depth: usize, item_bytes: usize) {
        self.separated.insert(column, (depth, item_bytes));
    }

    /// Add the arrays of a step, or of an end, with its row; rows increase.
    fn add(&mut self, row: u64, arrays: &StepArrays) {
        for (number, copied, range) in arrays.shared() {
            let plane = match self.separated.get(&number) {
                None => MemoryPlane { copied: Arc::clone(copied), range },
                Some(&(depth, item_bytes)) => {
                    let mut planes = vec![0; range.len()];
                    separate(&copied.bytes()[range.clone()], depth, item_bytes, &mut planes);
                    let range = 0..planes.len();
                    MemoryPlane { copied: Arc::new(Copied::of(&planes)), range }
                }
            };
            self.columns.entry(number).or_default().push_back((row, plane));
        }
    }

    /// Forget the rows of a column before one.
    fn drop_before(&mut self, column: usize, row: u64) {
        if let Some(rows) = self.columns.get_mut(&column) {
            while rows.front().is_some_and(|(first, _)| *first < row) {
                rows.pop_front();
            }
        }
    }

    /// Return which of some rows of a column are there.
    fn have<'py>(
        &self,
        py: Python<'py>,
        column: usize,
        rows: PyReadonlyArray1<'_, i64>,
    ) -> Bound<'py, PyArray1<bool>> {
        let found = rows.as_array().iter().map(|&row| self.find(column, row).is_some()).collect();
        PyArray1::from_vec(py, found)
    }

    /// Fill a C-contiguous array with rows of a column; those that are missing are zeros.
    fn read(
        &self,
        column: usize,
        rows: PyReadonlyArray1<'_, i64>,
        out: &Bound<'_, PyUntypedArray>,
    ) -> PyResult<()> {
        let bytes = bytes_of(out)?.len();
        if !is_writable(out) {
            return Err(to_py(Error::Invalid("`out` must be writable".to_owned())));
        }
        // SAFETY: a contiguous array has this many bytes, and it is alive until this returns.
        let bytes = unsafe { slice::from_raw_parts_mut(data_of(out), bytes) };
        let rows = rows.as_array();
        let size = bytes.len() / rows.len().max(1);
        if size == 0 {
            return Ok(());
        }
        for (&row, out) in rows.iter().zip(bytes.chunks_exact_mut(size)) {
            match self.find(column, row) {
                Some(plane) if plane.range.len() == size => {
                    out.copy_from_slice(&plane.copied.bytes()[plane.range.clone()]);
                }
                Some(_) => {
                    return Err(to_py(Error::Invalid("a row has the wrong size".to_owned())));
                }
                None => out.fill(0),
            }
        }
        Ok(())
    }

    /// Return the planes of rows of some columns, `depth` of each.
    fn planes(
        &self,
        columns: Vec<(usize, PyReadonlyArray1<'_, i64>)>,
        depth: usize,
    ) -> PyResult<MemoryPlanes> {
        let mut planes = Vec::new();
        for (column, rows) in columns {
            for &row in rows.as_array() {
                let Some(found) = self.find(column, row) else {
                    let text = format!("row {row} of column {column} is not in memory");
                    return Err(to_py(Error::Invalid(text)));
                };
                let size = found.range.len() / depth.max(1);
                for place in 0..depth {
                    let start = found.range.start + place * size;
                    let copied = Arc::clone(&found.copied);
                    planes.push(MemoryPlane { copied, range: start..start + size });
                }
            }
        }
        Ok(MemoryPlanes { planes })
    }
}

impl RecentArrays {
    fn find(&self, column: usize, row: i64) -> Option<&MemoryPlane> {
        let rows = self.columns.get(&column)?;
        let row = u64::try_from(row).ok()?;
        let place = rows.binary_search_by_key(&row, |&(row, _)| row).ok()?;
        rows.get(place).map(|(_, plane)| plane)
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
/// Columns and how many rows of each; the numbers of planes, how many an entry has, and their axis;
/// planes in memory.
type TransitionPlanes<'py> = (
    Vec<(usize, u64)>,
    Option<Bound<'py, PyArray2<u32>>>,
    usize,
    String,
    Option<Bound<'py, MemoryPlanes>>,
);
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
