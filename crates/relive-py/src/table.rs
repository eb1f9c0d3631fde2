//! `Table`: columns over NumPy arrays, gathered without the GIL.

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

/// A column as it comes in: its name, its values, and offsets if it is ragged.
type Named<'py> =
    (Bound<'py, PyString>, Bound<'py, PyUntypedArray>, Option<Bound<'py, PyArray1<i64>>>);

/// What a column looks like from Python.
pub struct Shape {
    pub name: Py<PyString>,
    pub dtype: Py<PyArrayDescr>,
    pub row: Vec<npy_intp>,
    pub ragged: bool,
}

impl Shape {
    fn clone_ref(&self, py: Python<'_>) -> Self {
        self.renamed(py, self.name.clone_ref(py))
    }

    /// The same column under another name.
    pub fn renamed(&self, py: Python<'_>, name: Py<PyString>) -> Self {
        Self { name, dtype: self.dtype.clone_ref(py), row: self.row.clone(), ragged: self.ragged }
    }

    fn is_like(&self, other: &Self, py: Python<'_>) -> bool {
        self.row == other.row
            && self.ragged == other.ragged
            && self.dtype.bind(py).is_equiv_to(other.dtype.bind(py))
            && self.name.bind(py).as_any().eq(other.name.bind(py)).unwrap_or(false)
    }

    /// The column that it takes to be seen so.
    fn column(&self, py: Python<'_>) -> ColumnShape {
        let items: usize = self.row.iter().map(|&count| count as usize).product();
        let bytes = items * self.dtype.bind(py).itemsize();
        if self.ragged {
            ColumnShape::Ragged { item_bytes: bytes }
        } else {
            ColumnShape::Fixed { row_bytes: bytes }
        }
    }

    /// The shape of an array that holds these rows.
    pub fn with_lead(&self, lead: impl IntoIterator<Item = npy_intp>) -> Vec<npy_intp> {
        lead.into_iter().chain(self.row.iter().copied()).collect()
    }
}

/// Return how many threads a gather uses by default, at most.
#[pyfunction]
pub fn default_threads() -> usize {
    relive_core::pool::default_threads()
}

/// Ragged values of this size and more are gathered into memory that is used again.
const RECYCLED_BYTES: usize = 1 << 20;

/// How many pieces of such memory wait for their next batch.
const RECYCLED: usize = 2;

/// Columns of equal length, or a view of such tables.
#[pyclass(frozen, module = "relive._native")]
pub struct Table {
    pub core: CoreTable,
    pub shapes: Vec<Shape>,
    /// Memory of ragged columns that comes back when the caller lets go of it: fresh memory
    /// is zeroed by the kernel first, which takes as long as the copying.
    pool: Arc<SlabPool>,
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
            shapes.push(Shape {
                name: name.unbind(),
                dtype: values.dtype().unbind(),
                row: values.shape()[1..].iter().map(|&n| n as npy_intp).collect(),
                ragged,
            });
            cores.push(core);
        }
        let core = CoreTable::new(cores).map_err(to_py)?;
        Ok(Self { core, shapes, pool: SlabPool::new(RECYCLED) })
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
    #[pyo3(signature = (indices, columns=None, out=None, threads=1))]
    fn gather<'py>(
        &self,
        py: Python<'py>,
        indices: &Bound<'py, PyArrayDyn<i64>>,
        columns: Option<Vec<usize>>,
        out: Option<&Bound<'py, PyDict>>,
        threads: usize,
    ) -> PyResult<Bound<'py, PyDict>> {
        // Copied while we hold the GIL: nobody can change an index after it was checked.
        let rows = indices.to_vec()?;
        let columns = columns.unwrap_or_else(|| (0..self.shapes.len()).collect());
        let find = || {
            let mut places = Vec::with_capacity(rows.len());
            self.core.find(&rows, &mut places).map(|()| places)
        };
        let places = py.detach(find).map_err(to_py)?;

        let lead = || indices.shape().iter().map(|&n| n as npy_intp);
        let result = PyDict::new(py);
        let mut offsets = vec![Vec::new(); columns.len()];
        let mut starts = Vec::with_capacity(columns.len());
        let mut written = Vec::new();
        // Beside `result`, where a column that is asked for twice would replace itself.
        let mut kept = Vec::with_capacity(columns.len());
        for (&column, offsets) in columns.iter().zip(&mut offsets) {
            let shape = self.shape(column)?;
            let (name, dtype) = (shape.name.bind(py), shape.dtype.bind(py));
            let given = out.map(|out| out.get_item(name)).transpose()?.flatten();
            if shape.ragged {
                self.core.offsets(column, &places, offsets).map_err(to_py)?;
                let items = offsets.last().copied().unwrap_or_default() as npy_intp;
                let values = self.ragged_values(dtype, &shape.with_lead([items]))?;
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
                // SAFETY: fresh memory.
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
            unsafe { self.core.gather(&places, &targets.0, threads) }
        });
        drop(kept);
        gathered.map(|()| result).map_err(to_py)
    }
}

/// Lets the targets be used while the GIL is released; `kept` keeps their memory.
struct Unlocked<'a>(Vec<Target<'a>>);

// SAFETY: the pointers belong to arrays that outlive the gather.
unsafe impl Send for Unlocked<'_> {}

impl Table {
    fn shape(&self, column: usize) -> PyResult<&Shape> {
        let missing = || Error::out_of_range(column, self.shapes.len(), "column", "columns");
        self.shapes.get(column).ok_or_else(|| to_py(missing()))
    }

    /// An array that nobody has written to; a large one over memory that may have served
    /// before.
    fn ragged_values<'py>(
        &self,
        dtype: &Bound<'py, PyArrayDescr>,
        shape: &[npy_intp],
    ) -> PyResult<Bound<'py, PyUntypedArray>> {
        let bytes = shape.iter().product::<npy_intp>() as usize * dtype.itemsize();
        if bytes < RECYCLED_BYTES {
            // SAFETY: fresh memory.
            return unsafe { new_array(dtype, shape, None) };
        }
        // Some slack, so that the next, slightly larger batch fits as well.
        let slab = self.pool.take(bytes).map_or_else(|| Slab::new(bytes + bytes / 4), Ok);
        let loan = Loan::new(slab.map_err(to_py)?, Arc::clone(&self.pool));
        let start = loan.start();
        let base = Bound::new(dtype.py(), Buffer::new(loan))?.into_any();
        // SAFETY: the slab has the room, and lives as long as its buffer.
        unsafe { new_array(dtype, shape, Some((start, base))) }
    }

    fn view(&self, py: Python<'_>, core: relive_core::Result<CoreTable>) -> PyResult<Self> {
        let core = core.map_err(to_py)?;
        let shapes = self.shapes.iter().map(|shape| shape.clone_ref(py)).collect();
        Ok(Self { core, shapes, pool: Arc::clone(&self.pool) })
    }

    /// Refuses to gather into memory that rows are read from, or that another array of `out`
    /// has; `written` are the addresses of those.
    fn check_apart(
        &self,
        out: &Bound<'_, PyUntypedArray>,
        written: &mut Vec<Range<usize>>,
    ) -> PyResult<()> {
        let start = data_of(out) as usize;
        let own = start..start + out.len() * out.dtype().itemsize();
        let twice = written.iter().any(|other| other.start < own.end && own.start < other.end);
        if twice || self.core.overlaps(&own) {
            let text = "out must not share memory with the source or with itself";
            return Err(to_py(Error::Invalid(text.into())));
        }
        written.push(own);
        Ok(())
    }
}

/// A table of rows that are made when they are read; `shapes` says what Python sees of each
/// column of the reader.
pub fn from_reader(reader: Arc<dyn Reader>, shapes: Vec<Shape>) -> PyResult<Table> {
    let core = CoreTable::from_reader(reader).map_err(to_py)?;
    let seen: Vec<ColumnShape> =
        Python::attach(|py| shapes.iter().map(|shape| shape.column(py)).collect());
    if seen != core.columns() {
        return Err(to_py(Error::Invalid(format!(
            "the declared columns {seen:?} do not match those of the reader, {:?}",
            core.columns()
        ))));
    }
    Ok(Table { core, shapes, pool: SlabPool::new(RECYCLED) })
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

fn py_column(
    name: &Bound<'_, PyString>,
    values: &Bound<'_, PyUntypedArray>,
    offsets: Option<Bound<'_, PyArray1<i64>>>,
) -> PyResult<Column> {
    let invalid = |text: &str| to_py(Error::Invalid(format!("column `{name}`: {text}")));
    let dtype = values.dtype();
    if dtype.has_object() {
        return Err(invalid("arrays of Python objects cannot be gathered"));
    }
    let (Some(&len), Some(&stride)) = (values.shape().first(), values.strides().first()) else {
        return Err(invalid("a column needs at least one dimension"));
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
