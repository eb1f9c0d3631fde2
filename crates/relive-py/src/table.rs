//! `Table`: columns of NumPy arrays, gathered without the GIL.

use std::ops::Range;
use std::sync::Arc;

use numpy::npyffi::npy_intp;
use numpy::{
    PyArray1, PyArrayDescr, PyArrayDescrMethods, PyArrayDyn, PyArrayMethods, PyUntypedArray,
    PyUntypedArrayMethods,
};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use relive_core::Error;
use relive_core::gather::{Owner, RaggedRows, Rows};
use relive_core::slab::{Loan, Slab, SlabPool};
use relive_core::table::{Column, ColumnShape, Reader, Table as CoreTable, Target};

use crate::arrays::{check_out, data_of, new_array};
use crate::errors::to_py;
use crate::prefetch::Buffer;

/// A column argument: its name, its values, and offsets if it is ragged.
type Named<'py> =
    (Bound<'py, PyString>, Bound<'py, PyUntypedArray>, Option<Bound<'py, PyArray1<i64>>>);

/// Name, dtype and row shape of a column in Python.
pub struct Shape {
    pub name: Py<PyString>,
    pub dtype: Py<PyArrayDescr>,
    pub row: Vec<npy_intp>,
    pub ragged: bool,
}

impl Shape {
    pub fn new(
        name: Bound<'_, PyString>,
        dtype: Bound<'_, PyArrayDescr>,
        row: Vec<npy_intp>,
        ragged: bool,
    ) -> Self {
        Self { name: name.unbind(), dtype: dtype.unbind(), row, ragged }
    }

    pub fn clone_ref(&self, py: Python<'_>) -> Self {
        self.renamed(py, self.name.clone_ref(py))
    }

    /// Returns the same column with another name.
    pub fn renamed(&self, py: Python<'_>, name: Py<PyString>) -> Self {
        Self { name, dtype: self.dtype.clone_ref(py), row: self.row.clone(), ragged: self.ragged }
    }

    fn is_like(&self, other: &Self, py: Python<'_>) -> bool {
        self.row == other.row
            && self.ragged == other.ragged
            && self.dtype.bind(py).is_equiv_to(other.dtype.bind(py))
            && self.name.bind(py).as_any().eq(other.name.bind(py)).unwrap_or(false)
    }

    /// Returns the column of the core that has this dtype and shape.
    fn column(&self, py: Python<'_>) -> ColumnShape {
        let items: usize = self.row.iter().map(|&count| count as usize).product();
        let bytes = items * self.dtype.bind(py).itemsize();
        if self.ragged {
            ColumnShape::Ragged { item_bytes: bytes }
        } else {
            ColumnShape::Fixed { row_bytes: bytes }
        }
    }

    /// Returns the shape of an array of rows with these leading dimensions.
    pub fn with_lead(&self, lead: impl IntoIterator<Item = npy_intp>) -> Vec<npy_intp> {
        lead.into_iter().chain(self.row.iter().copied()).collect()
    }
}

/// Return how many threads a gather uses by default, at most.
#[pyfunction]
pub fn default_threads() -> usize {
    relive_core::pool::default_threads()
}

/// Ragged values of at least this size are gathered into memory that is reused.
const RECYCLED_BYTES: usize = 1 << 20;

/// The most unused buffers that are kept for reuse.
const RECYCLED: usize = 2;

/// The same of a table that reuses the memory of fixed columns: two batches of two large ones.
const RECYCLED_FIXED: usize = 4;

/// Columns of equal length, or a view of such tables.
#[pyclass(frozen, module = "relive._native")]
pub struct Table {
    pub core: CoreTable,
    pub shapes: Vec<Shape>,
    /// Memory of large columns, reused after the caller has released it: the kernel zeroes new
    /// memory first, which takes as long as the copy.
    pool: Arc<SlabPool>,
    /// Whether fixed columns are in such memory, too, and not only ragged ones.
    recycles: bool,
}

#[pymethods]
impl Table {
    /// Columns as `(name, values, offsets or None)`.
    #[new]
    fn new(columns: Vec<Named<'_>>) -> PyResult<Self> {
        let mut shapes = Vec::with_capacity(columns.len());
        let mut cores = Vec::with_capacity(columns.len());
        for (name, values, offsets) in columns {
            let ragged = offsets.is_some();
            let core = py_column(&name, &values, offsets)?;
            let row = values.shape()[1..].iter().map(|&n| n as npy_intp).collect();
            shapes.push(Shape::new(name, values.dtype(), row, ragged));
            cores.push(core);
        }
        let core = CoreTable::new(cores).map_err(to_py)?;
        Ok(Self { core, shapes, pool: SlabPool::new(RECYCLED), recycles: false })
    }

    fn __len__(&self) -> usize {
        self.core.len() as usize
    }

    /// Return a view of the given rows, in that order.
    fn select(&self, py: Python<'_>, rows: &Bound<'_, PyArray1<i64>>) -> PyResult<Self> {
        let rows: Arc<[i64]> = rows.to_vec()?.into();
        self.view(py, self.core.select(rows))
    }

    /// Return a view of the rows `start`, `start + step`, …, `length` of them.
    fn select_range(&self, py: Python<'_>, start: i64, step: i64, length: u64) -> PyResult<Self> {
        self.view(py, self.core.select_range(start, step, length))
    }

    /// Return all rows of all tables, one table after the other.
    #[staticmethod]
    fn concat(py: Python<'_>, tables: Vec<Bound<'_, Self>>) -> PyResult<Self> {
        let first = alike(py, &tables)?;
        let cores: Vec<CoreTable> = tables.iter().map(|table| table.get().core.clone()).collect();
        first.view(py, CoreTable::concat(&cores))
    }

    /// Return `length` rows that alternate between the tables: slot `k` of a round takes the
    /// next row of table `slots[k]`.
    #[staticmethod]
    fn mix(
        py: Python<'_>,
        tables: Vec<Bound<'_, Self>>,
        slots: Vec<u32>,
        length: u64,
    ) -> PyResult<Self> {
        let first = alike(py, &tables)?;
        let cores: Vec<CoreTable> = tables.iter().map(|table| table.get().core.clone()).collect();
        first.view(py, CoreTable::mix(&cores, &slots, length))
    }

    /// Return the rows at `indices`: an array for each fixed column, `(values, offsets)` for
    /// each ragged one. `columns` selects columns by position, `out` has arrays to write to.
    #[pyo3(signature = (indices, columns=None, out=None, workers=1))]
    fn gather<'py>(
        &self,
        py: Python<'py>,
        indices: &Bound<'py, PyArrayDyn<i64>>,
        columns: Option<Vec<usize>>,
        out: Option<&Bound<'py, PyDict>>,
        workers: usize,
    ) -> PyResult<Bound<'py, PyDict>> {
        // A copy, so that no thread can change an index after it was checked.
        let rows = indices.to_vec()?;
        let columns = columns.unwrap_or_else(|| (0..self.shapes.len()).collect());
        let find = || {
            let mut locations = Vec::with_capacity(rows.len());
            self.core.find(&rows, &mut locations).map(|()| locations)
        };
        let locations = py.detach(find).map_err(to_py)?;

        let lead = || indices.shape().iter().map(|&n| n as npy_intp);
        let result = PyDict::new(py);
        let mut offsets = vec![Vec::new(); columns.len()];
        let mut starts = Vec::with_capacity(columns.len());
        let mut written = Vec::new();
        // Not only in `result`, where a column that is requested twice replaces itself.
        let mut kept = Vec::with_capacity(columns.len());
        for (&column, offsets) in columns.iter().zip(&mut offsets) {
            let shape = self.shape(column)?;
            let (name, dtype) = (shape.name.bind(py), shape.dtype.bind(py));
            let given = out.map(|out| out.get_item(name)).transpose()?.flatten();
            if shape.ragged {
                self.core.offsets(column, &locations, offsets).map_err(to_py)?;
                let items = offsets.last().copied().unwrap_or_default() as npy_intp;
                // Larger than needed, so that the next, slightly larger batch fits as well.
                let values = self.recycled(dtype, &shape.with_lead([items]), 4)?;
                starts.push(data_of(&values));
                kept.push(values.clone());
                let offsets = PyArray1::from_slice(py, offsets);
                result.set_item(name, PyTuple::new(py, [values.as_any(), offsets.as_any()])?)?;
                continue;
            }
            let wanted = shape.with_lead(lead());
            let array = match given {
                Some(given) => {
                    let given = given.cast_into::<PyUntypedArray>().map_err(|_| {
                        to_py(Error::Invalid(format!("out[\"{name}\"] must be a NumPy array")))
                    })?;
                    check_out(name.to_str()?, &given, dtype, &wanted).map_err(to_py)?;
                    self.check_apart(&given, &mut written)?;
                    given
                }
                None if self.recycles => self.recycled(dtype, &wanted, 0)?,
                // SAFETY: new memory.
                None => unsafe { new_array(dtype, &wanted, None) }?,
            };
            starts.push(data_of(&array));
            kept.push(array.clone());
            result.set_item(name, array)?;
        }
        let targets: Vec<Target<'_>> = columns
            .iter()
            .zip(&offsets)
            .zip(starts)
            .map(|((&column, offsets), out)| Target { column, offsets, out })
            .collect();
        let targets = Unlocked(targets);
        let gathered = py.detach(|| {
            let targets = &targets;
            // SAFETY: the arrays above have exactly the room, and stay alive in `kept`.
            unsafe { self.core.gather(&locations, &targets.0, workers) }
        });
        drop(kept);
        gathered.map(|()| result).map_err(to_py)
    }
}

/// Targets that are used while the GIL is released; `kept` keeps their memory.
struct Unlocked<'a>(Vec<Target<'a>>);

// SAFETY: the pointers belong to arrays that outlive the gather.
unsafe impl Send for Unlocked<'_> {}

impl Table {
    fn shape(&self, column: usize) -> PyResult<&Shape> {
        let columns = self.shapes.len();
        self.shapes.get(column).ok_or_else(|| {
            to_py(Error::OutOfRange(format!(
                "column index {column} is out of range for {columns} columns"
            )))
        })
    }

    /// Creates an uninitialized array; a large one over memory that is reused, of which a part of
    /// `1 / spare` is left over, if that is not 0.
    fn recycled<'py>(
        &self,
        dtype: &Bound<'py, PyArrayDescr>,
        shape: &[npy_intp],
        spare: usize,
    ) -> PyResult<Bound<'py, PyUntypedArray>> {
        let bytes = shape.iter().product::<npy_intp>() as usize * dtype.itemsize();
        if bytes < RECYCLED_BYTES {
            // SAFETY: new memory.
            return unsafe { new_array(dtype, shape, None) };
        }
        let wanted = bytes + bytes.checked_div(spare).unwrap_or_default();
        let slab = self.pool.take(bytes).map_or_else(|| Slab::new(wanted), Ok);
        let loan = Loan::new(slab.map_err(to_py)?, Arc::clone(&self.pool));
        let start = loan.start();
        let base = Bound::new(dtype.py(), Buffer::new(loan))?.into_any();
        // SAFETY: the slab is large enough, and exists as long as its buffer.
        unsafe { new_array(dtype, shape, Some((start, base))) }
    }

    fn view(&self, py: Python<'_>, core: relive_core::Result<CoreTable>) -> PyResult<Self> {
        let core = core.map_err(to_py)?;
        let shapes = self.shapes.iter().map(|shape| shape.clone_ref(py)).collect();
        Ok(Self { core, shapes, pool: Arc::clone(&self.pool), recycles: self.recycles })
    }

    /// Checks that an output array does not overlap the rows or another output array; `written`
    /// has the addresses of those.
    fn check_apart(
        &self,
        out: &Bound<'_, PyUntypedArray>,
        written: &mut Vec<Range<usize>>,
    ) -> PyResult<()> {
        let start = data_of(out) as usize;
        let own = start..start + out.len() * out.dtype().itemsize();
        let twice = written.iter().any(|other| other.start < own.end && own.start < other.end);
        if twice || self.core.overlaps(&own) {
            let text =
                "the arrays of `out` must not share memory with the source or with each other";
            return Err(to_py(Error::Invalid(text.into())));
        }
        written.push(own);
        Ok(())
    }
}

/// Creates a table of the rows of a reader; `shapes` has the name, dtype and shape of each column
/// in Python.
pub fn from_reader(reader: Arc<dyn Reader>, shapes: Vec<Shape>) -> PyResult<Table> {
    let core = CoreTable::from_reader(reader).map_err(to_py)?;
    let seen: Vec<ColumnShape> =
        Python::attach(|py| shapes.iter().map(|shape| shape.column(py)).collect());
    if seen != core.columns() {
        return Err(to_py(Error::Invalid(format!(
            "the columns are declared as {seen:?}, but the source has {:?}",
            core.columns()
        ))));
    }
    Ok(Table { core, shapes, pool: SlabPool::new(RECYCLED), recycles: false })
}

impl Table {
    /// Returns a pool of the memory of large fixed columns.
    pub fn large_pool() -> Arc<SlabPool> {
        SlabPool::new(RECYCLED_FIXED)
    }

    /// Gathers large fixed columns into memory of a pool that is reused.
    pub fn recycling(self, pool: Arc<SlabPool>) -> Self {
        Self { pool, recycles: true, ..self }
    }
}

fn alike<'a>(py: Python<'_>, tables: &'a [Bound<'_, Table>]) -> PyResult<&'a Table> {
    let shapes = |table: &'a Bound<'_, Table>| &table.get().shapes;
    let first =
        tables.first().ok_or_else(|| to_py(Error::Invalid("pass at least one table".into())))?;
    let all_alike = tables.iter().all(|table| {
        shapes(table).len() == shapes(first).len()
            && shapes(table).iter().zip(shapes(first)).all(|(a, b)| a.is_like(b, py))
    });
    if !all_alike {
        return Err(to_py(Error::Invalid("the tables must have the same columns".into())));
    }
    Ok(first.get())
}

/// Returns the rows of an array.
pub fn rows_of(name: &Bound<'_, PyString>, values: &Bound<'_, PyUntypedArray>) -> PyResult<Rows> {
    match py_column(name, values, None)? {
        Column::Fixed(rows) => Ok(rows),
        Column::Ragged(_) => {
            Err(to_py(Error::Invalid(format!("column `{name}` must not be ragged"))))
        }
    }
}

fn py_column(
    name: &Bound<'_, PyString>,
    values: &Bound<'_, PyUntypedArray>,
    offsets: Option<Bound<'_, PyArray1<i64>>>,
) -> PyResult<Column> {
    let invalid = |text: &str| to_py(Error::Invalid(format!("column `{name}`: {text}")));
    let dtype = values.dtype();
    if dtype.has_object() {
        return Err(invalid("arrays of Python objects are not supported"));
    }
    let (Some(&len), Some(&stride)) = (values.shape().first(), values.strides().first()) else {
        return Err(invalid("the values must have at least one dimension"));
    };
    let owner: Owner = Arc::new(values.clone().unbind());
    let axes: Vec<(usize, isize)> =
        values.shape().iter().copied().zip(values.strides().iter().copied()).skip(1).collect();
    if let Some(offsets) = offsets {
        if !values.is_c_contiguous() {
            return Err(invalid("the values of a ragged column must be C-contiguous"));
        }
        let item_bytes = axes.iter().map(|(count, _)| count).product::<usize>() * dtype.itemsize();
        // SAFETY: a C-contiguous array holds its items at its data pointer, and the owner
        // keeps the array.
        let rows = unsafe {
            RaggedRows::new(data_of(values), len, item_bytes, offsets.to_vec()?.into(), owner)
        };
        return rows.map(Column::Ragged).map_err(to_py);
    }
    // SAFETY: shape and strides are the array's own, and the owner keeps the array.
    let rows = unsafe { Rows::new(data_of(values), len, stride, &axes, dtype.itemsize(), owner) };
    rows.map(Column::Fixed).map_err(to_py)
}
