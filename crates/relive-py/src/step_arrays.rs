//! `StepArrays`, and copies of arrays that steps share.

use std::ops::Range;
use std::slice;
use std::sync::Arc;

use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyTuple};
use relive_core::Error;
use relive_core::replay::Copied;

use crate::arrays::{data_of, new_array, set_readonly};
use crate::errors::to_py;
use crate::tape::LONG_BYTES;

/// Copies of the arrays of one step.
#[pyclass(frozen, module = "relive._native")]
pub struct StepArrays {
    stream: u64,
    columns: Vec<Column>,
    nbytes: usize,
}

/// Where the bytes of a column are.
struct Column {
    number: usize,
    copied: Arc<Copied>,
    range: Range<usize>,
}

impl Column {
    fn bytes(&self) -> &[u8] {
        &self.copied.bytes()[self.range.clone()]
    }
}

#[pymethods]
impl StepArrays {
    /// Copy the C-contiguous arrays of a step of a stream, by the number of their column. Arrays
    /// that `constant_copy` made, and parts of them, are shared instead.
    #[new]
    fn new(
        py: Python<'_>,
        stream: u64,
        arrays: Vec<(usize, Bound<'_, PyUntypedArray>)>,
    ) -> PyResult<Self> {
        let mut columns = Vec::with_capacity(arrays.len());
        let mut nbytes = 0;
        for (number, array) in arrays {
            let (copied, range) = copy_or_share(py, &array)?;
            nbytes += range.len();
            columns.push(Column { number, copied, range });
        }
        Ok(Self { stream, columns, nbytes })
    }

    /// Bytes of the arrays.
    #[getter]
    fn nbytes(&self) -> usize {
        self.nbytes
    }
}

impl StepArrays {
    /// The stream of the step.
    pub fn stream(&self) -> u64 {
        self.stream
    }

    /// Numbers of columns, and the bytes that the step has there.
    pub fn columns(&self) -> impl Iterator<Item = (usize, &[u8])> {
        self.columns.iter().map(|column| (column.number, column.bytes()))
    }

    /// Numbers of columns, and where the bytes are that the step has there.
    pub fn shared(&self) -> impl Iterator<Item = (usize, &Arc<Copied>, Range<usize>)> {
        self.columns.iter().map(|column| (column.number, &column.copied, column.range.clone()))
    }
}

/// The columns of fields that are not nested, by field: copies their values without looking at
/// each of them in Python.
#[pyclass(frozen, module = "relive._native")]
pub struct PlainColumns {
    columns: Py<PyDict>,
    /// The tuples of the names of fields that steps have, each once.
    presents: Py<PyDict>,
}

/// The column of a field that is not nested.
#[pyclass(frozen, module = "relive._native")]
struct PlainColumn {
    number: usize,
    dtype: Py<PyArrayDescr>,
    shape: Vec<usize>,
}

#[pymethods]
impl PlainColumns {
    /// `presents` is where tuples of names are kept.
    #[new]
    fn new(py: Python<'_>, presents: Py<PyDict>) -> Self {
        Self { columns: PyDict::new(py).unbind(), presents }
    }

    /// Add the column of a field.
    fn add(
        &self,
        py: Python<'_>,
        field: &str,
        number: usize,
        dtype: Py<PyArrayDescr>,
        shape: Vec<usize>,
    ) -> PyResult<()> {
        let column = Bound::new(py, PlainColumn { number, dtype, shape })?;
        self.columns.bind(py).set_item(field, column)
    }

    /// Return copies of the values of a step of a stream, and the names of those that are not None.
    /// Return None unless every value is stored as it is.
    fn copy<'py>(
        &self,
        py: Python<'py>,
        stream: u64,
        values: &Bound<'py, PyDict>,
    ) -> PyResult<Option<(StepArrays, Bound<'py, PyAny>)>> {
        let mut found = Vec::with_capacity(values.len());
        let mut present = Vec::with_capacity(values.len());
        for (field, value) in values.iter() {
            if value.is_none() {
                continue;
            }
            let Some(column) = self.columns.bind(py).get_item(&field)? else { return Ok(None) };
            let column = column.cast_into::<PlainColumn>()?;
            if !column.get().fits(py, &value) {
                return Ok(None);
            }
            present.push(field);
            found.push((column, value));
        }
        let mut columns = Vec::with_capacity(found.len());
        let mut nbytes = 0;
        for (column, value) in &found {
            let (copied, range) = match value.cast::<PyUntypedArray>() {
                Ok(array) => copy_or_share(py, array)?,
                Err(_) => {
                    let bytes = value.extract::<i64>()?.to_le_bytes();
                    (Arc::new(Copied::of(&bytes)), 0..bytes.len())
                }
            };
            nbytes += range.len();
            columns.push(Column { number: column.get().number, copied, range });
        }
        let present = PyTuple::new(py, present)?;
        let presents = self.presents.bind(py);
        let present = match presents.get_item(&present)? {
            Some(known) => known,
            None => {
                presents.set_item(&present, &present)?;
                present.into_any()
            }
        };
        Ok(Some((StepArrays { stream, columns, nbytes }, present)))
    }
}

impl PlainColumn {
    /// Checks whether a value can be stored as it is: an array of the dtype and shape, or an
    /// integer of Python where the column has such.
    fn fits(&self, py: Python<'_>, value: &Bound<'_, PyAny>) -> bool {
        let dtype = self.dtype.bind(py);
        if let Ok(array) = value.cast::<PyUntypedArray>() {
            return array.shape() == self.shape
                && array.is_c_contiguous()
                && array.dtype().is_equiv_to(dtype);
        }
        let is_integer = value.is_exact_instance_of::<PyInt>()
            || value.get_type().is(numpy::dtype::<i64>(py).typeobj());
        is_integer
            && self.shape.is_empty()
            && dtype.is_equiv_to(&numpy::dtype::<i64>(py))
            && value.extract::<i64>().is_ok()
    }
}

/// Keeps the memory of an array that `constant_copy` made.
#[pyclass(frozen, module = "relive._native")]
struct ConstantMemory {
    copied: Arc<Copied>,
}

/// Return a copy of an array. Nothing can change a copy of numbers that are C-contiguous, and steps
/// share it, without another copy.
#[pyfunction]
pub fn constant_copy<'py>(
    array: &Bound<'py, PyUntypedArray>,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    let py = array.py();
    if !array.is_c_contiguous() || array.dtype().has_object() {
        return Ok(array.call_method0("copy")?.cast_into()?);
    }
    let copied = copy_of(py, bytes_of(array)?);
    let shape: Vec<_> = array.shape().iter().map(|&size| size as isize).collect();
    let data = copied.bytes().as_ptr().cast_mut();
    let memory = Bound::new(py, ConstantMemory { copied })?.into_any();
    // SAFETY: the memory has all bytes of an array of this dtype and shape, and its object keeps
    // it. Nothing writes to it, because the array is read-only, and NumPy makes an array writable
    // only if its base object lets it.
    let copy = unsafe { new_array(&array.dtype(), &shape, Some((data, memory)))? };
    set_readonly(&copy);
    Ok(copy)
}

/// Returns a copy of a C-contiguous array; what `constant_copy` made is not copied again.
fn copy_or_share(
    py: Python<'_>,
    array: &Bound<'_, PyUntypedArray>,
) -> PyResult<(Arc<Copied>, Range<usize>)> {
    let bytes = bytes_of(array)?;
    Ok(shared(array, bytes).unwrap_or_else(|| (copy_of(py, bytes), 0..bytes.len())))
}

/// Returns the memory of an array that `constant_copy` made, or of a part of one.
fn shared(array: &Bound<'_, PyUntypedArray>, bytes: &[u8]) -> Option<(Arc<Copied>, Range<usize>)> {
    let mut base = base_of(array)?;
    if let Ok(whole) = base.cast::<PyUntypedArray>() {
        base = base_of(whole)?;
    }
    let copied = &base.cast::<ConstantMemory>().ok()?.get().copied;
    let all = copied.bytes().as_ptr_range();
    let part = bytes.as_ptr_range();
    if !(all.start <= part.start && part.end <= all.end) {
        return None;
    }
    let start = part.start.addr() - all.start.addr();
    Some((Arc::clone(copied), start..start + bytes.len()))
}

/// Returns the object that keeps the memory of an array.
fn base_of<'py>(array: &Bound<'py, PyUntypedArray>) -> Option<Bound<'py, PyAny>> {
    // SAFETY: a live array always has its header, and keeps its base object.
    unsafe { Bound::from_borrowed_ptr_or_opt(array.py(), (*array.as_array_ptr()).fields.base) }
}

fn copy_of(py: Python<'_>, bytes: &[u8]) -> Arc<Copied> {
    let copy = || Arc::new(Copied::of(bytes));
    if bytes.len() > LONG_BYTES { py.detach(copy) } else { copy() }
}

/// Returns the bytes of a C-contiguous array.
pub fn bytes_of<'a>(array: &'a Bound<'_, PyUntypedArray>) -> PyResult<&'a [u8]> {
    if !array.is_c_contiguous() {
        return Err(to_py(Error::Invalid("an array must be C-contiguous".to_owned())));
    }
    if array.dtype().has_object() {
        return Err(to_py(Error::Invalid("an array cannot have Python objects".to_owned())));
    }
    let bytes = array.len() * array.dtype().itemsize();
    // SAFETY: a contiguous array has this many bytes, and lives as long as the reference to it.
    Ok(unsafe { slice::from_raw_parts(data_of(array), bytes) })
}
