//! Reads properties of NumPy arrays, and creates arrays over memory of the core.

use std::ffi::c_int;
use std::ptr;

use numpy::npyffi::{NpyTypes, PY_ARRAY_API, npy_intp};
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods, npyffi};
use pyo3::prelude::*;
use relive_core::Error;

/// Creates an array of `dtype` and `shape`: over memory that a Python object keeps alive, or over
/// new, uninitialized memory.
///
/// # Safety
/// The memory of `over` must contain a C-contiguous array of that shape for as long as the object
/// exists.
pub unsafe fn new_array<'py>(
    dtype: &Bound<'py, PyArrayDescr>,
    shape: &[npy_intp],
    over: Option<(*mut u8, Bound<'py, PyAny>)>,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    let py = dtype.py();
    let data = over.as_ref().map_or(ptr::null_mut(), |(data, _)| *data);
    let flags = if over.is_some() { npyffi::NPY_ARRAY_CARRAY } else { 0 };
    // SAFETY: the call takes over one reference to the dtype and reads `shape.len()`
    // dimensions; `data` is valid as the caller promises.
    let array = unsafe {
        let array = PY_ARRAY_API.PyArray_NewFromDescr(
            py,
            npyffi::get_type_object(py, NpyTypes::PyArray_Type),
            dtype.clone().into_dtype_ptr(),
            shape.len() as c_int,
            shape.as_ptr().cast_mut(),
            ptr::null_mut(),
            data.cast(),
            flags,
            ptr::null_mut(),
        );
        Bound::from_owned_ptr_or_err(py, array)?.cast_into_unchecked::<PyUntypedArray>()
    };
    if let Some((_, base)) = over {
        // SAFETY: the array is new and takes over the reference to its base.
        let code = unsafe {
            PY_ARRAY_API.PyArray_SetBaseObject(py, array.as_array_ptr(), base.into_ptr())
        };
        if code != 0 {
            return Err(PyErr::fetch(py));
        }
    }
    Ok(array)
}

/// Returns the address of an array's data.
pub fn data_of(array: &Bound<'_, PyUntypedArray>) -> *mut u8 {
    // SAFETY: a live array always has its header.
    unsafe { (*array.as_array_ptr()).fields.data.cast() }
}

/// Returns whether the array is writable.
pub fn is_writable(array: &Bound<'_, PyUntypedArray>) -> bool {
    // SAFETY: a live array always has its header.
    unsafe { (*array.as_array_ptr()).fields.flags & npyffi::NPY_ARRAY_WRITEABLE != 0 }
}

/// Makes the array read-only.
pub fn set_readonly(array: &Bound<'_, PyUntypedArray>) {
    // SAFETY: a live array always has its header, and the GIL is held.
    unsafe { (*array.as_array_ptr()).fields.flags &= !npyffi::NPY_ARRAY_WRITEABLE };
}

/// Checks that an output array has this dtype and shape, and is writable and C-contiguous.
pub fn check_out(
    name: &str,
    out: &Bound<'_, PyUntypedArray>,
    dtype: &Bound<'_, PyArrayDescr>,
    shape: &[npy_intp],
) -> Result<(), Error> {
    let fits = out.ndim() == shape.len()
        && out.shape().iter().zip(shape).all(|(&have, &want)| have as npy_intp == want);
    if !fits || !out.dtype().is_equiv_to(dtype) {
        return Err(Error::Invalid(format!(
            "out[{name:?}] must be {dtype} with shape {shape:?}, got {} with shape {:?}",
            out.dtype(),
            out.shape()
        )));
    }
    if !is_writable(out) || !out.is_c_contiguous() {
        return Err(Error::Invalid(format!("out[{name:?}] must be writable and C-contiguous")));
    }
    Ok(())
}
