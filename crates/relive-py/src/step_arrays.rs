//! `StepArrays`, and copies of arrays that steps share.

use std::ops::Range;
use std::slice;
use std::sync::Arc;

use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use relive_core::Error;

use self::buffers::Copied;
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
            let bytes = bytes_of(&array)?;
            let (copied, range) =
                shared(&array, bytes).unwrap_or_else(|| (copy_of(py, bytes), 0..bytes.len()));
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
}

/// Keeps the memory of an array that `constant_copy` made.
#[pyclass(frozen, module = "relive._native")]
struct ConstantMemory {
    copied: Arc<Copied>,
}

/// Return a copy of a C-contiguous array that nothing can change. Steps share it, without another
/// copy.
#[pyfunction]
pub fn constant_copy<'py>(
    array: &Bound<'py, PyUntypedArray>,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    let py = array.py();
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

/// Memory of steps that were written, for the steps to come: copying into new memory takes several
/// times as long, because the kernel clears it first.
mod buffers {
    use std::sync::{Mutex, MutexGuard};

    /// Smaller ones are not worth it.
    const MIN_BYTES: usize = 4 << 10;
    /// How much is kept at most.
    const MAX_KEPT_BYTES: usize = 48 << 20;

    static KEPT: Mutex<Kept> = Mutex::new(Kept { buffers: Vec::new(), bytes: 0 });

    struct Kept {
        buffers: Vec<Vec<u8>>,
        bytes: usize,
    }

    /// A copy of bytes. Its memory is used again when it is dropped.
    pub(super) struct Copied(Vec<u8>);

    impl Copied {
        /// Copies bytes, into a buffer that was given back if one has about their size.
        pub(super) fn of(bytes: &[u8]) -> Self {
            let found = if bytes.len() < MIN_BYTES { None } else { take(bytes.len()) };
            let mut buffer = found.unwrap_or_else(|| Vec::with_capacity(bytes.len()));
            buffer.extend_from_slice(bytes);
            Self(buffer)
        }

        /// The bytes.
        pub(super) fn bytes(&self) -> &[u8] {
            &self.0
        }
    }

    impl Drop for Copied {
        fn drop(&mut self) {
            let buffer = std::mem::take(&mut self.0);
            if buffer.capacity() < MIN_BYTES {
                return;
            }
            let Some(mut kept) = kept() else { return };
            if kept.bytes + buffer.capacity() <= MAX_KEPT_BYTES {
                kept.bytes += buffer.capacity();
                kept.buffers.push(buffer);
            }
        }
    }

    /// Returns the buffers, unless another thread has them at the moment. Never waits: in a forked
    /// child, that thread does not exist.
    fn kept() -> Option<MutexGuard<'static, Kept>> {
        KEPT.try_lock().ok()
    }

    fn take(bytes: usize) -> Option<Vec<u8>> {
        let mut kept = kept()?;
        // The sizes of a few columns alternate, so one of the last is right.
        let fits = |buffer: &Vec<u8>| (bytes..=bytes + bytes / 4).contains(&buffer.capacity());
        let place = kept.buffers.iter().rev().take(16).position(fits)?;
        let place = kept.buffers.len() - 1 - place;
        let mut buffer = kept.buffers.swap_remove(place);
        kept.bytes -= buffer.capacity();
        buffer.clear();
        Some(buffer)
    }
}
