//! `RingWriter` and `RingReader`.

use std::path::PathBuf;
use std::slice;
use std::time::Duration;

use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyInt, PyString};
use relive_core::ring::{self, Geometry, Scalar};
use relive_core::{Error, durable};

use crate::arrays::{data_of, new_array};
use crate::errors::to_py;
use crate::tape::LONG_BYTES;

/// Publishes frames in shared memory. One thread at a time calls it.
#[pyclass(module = "relive._native")]
pub struct RingWriter {
    core: ring::RingWriter,
}

#[pymethods]
impl RingWriter {
    /// Make a segment in an existing, empty file.
    #[new]
    #[pyo3(signature = (path, *, slots, frame_bytes, scalar_bytes, description))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        slots: usize,
        frame_bytes: usize,
        scalar_bytes: usize,
        description: &[u8],
    ) -> PyResult<Self> {
        let create = || {
            let file = durable::open_rw(&path)?;
            let geometry = Geometry { slots, frame_bytes, scalar_bytes };
            ring::RingWriter::create(&file, &path, geometry, description)
        };
        Ok(Self { core: py.detach(create).map_err(to_py)? })
    }

    /// Publish a C-contiguous array with its scalars; return the number of the frame.
    fn publish(
        &mut self,
        py: Python<'_>,
        frame: &Bound<'_, PyUntypedArray>,
        scalars: &Bound<'_, PyDict>,
    ) -> PyResult<u64> {
        if !frame.is_c_contiguous() {
            return Err(to_py(Error::Invalid("a frame must be C-contiguous".to_owned())));
        }
        let mut named = Vec::with_capacity(scalars.len());
        for (name, value) in scalars.iter() {
            named.push((name.cast_into::<PyString>()?, scalar(&value)?));
        }
        let mut texts = Vec::with_capacity(named.len());
        for (name, value) in &named {
            texts.push((name.to_str()?, *value));
        }
        let bytes = frame.len() * frame.dtype().itemsize();
        // SAFETY: a contiguous array has this many bytes, and it is alive until this returns.
        // Another thread may write to it meanwhile, as to the argument of any NumPy function;
        // the frame is then a mixture.
        let bytes = unsafe { slice::from_raw_parts(data_of(frame), bytes) };
        let texts = texts.into_iter();
        let publish = || self.core.publish(bytes, texts);
        let number = if bytes.len() > LONG_BYTES { py.detach(publish) } else { publish() };
        number.map_err(to_py)
    }

    /// Number of frames published.
    #[getter]
    fn published(&self) -> u64 {
        self.core.published()
    }

    /// Tell readers that no more frames come.
    fn end(&self) {
        self.core.end();
    }
}

/// A frame, its scalars and its number.
type Frame<'py> = (Bound<'py, PyUntypedArray>, Bound<'py, PyDict>, u64);

/// Reads the newest frame from shared memory. Thread-safe.
#[pyclass(frozen, module = "relive._native")]
pub struct RingReader {
    core: ring::RingReader,
}

#[pymethods]
impl RingReader {
    /// Map the segment in a file.
    #[new]
    fn new(path: PathBuf) -> PyResult<Self> {
        let file = durable::open(&path).map_err(to_py)?;
        Ok(Self { core: ring::RingReader::open(&file, &path).map_err(to_py)? })
    }

    /// What the writer said about its frames.
    #[getter]
    fn description<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.core.description())
    }

    /// Bytes of a frame.
    #[getter]
    fn frame_bytes(&self) -> usize {
        self.core.geometry().frame_bytes
    }

    /// Number of slots.
    #[getter]
    fn slots(&self) -> usize {
        self.core.geometry().slots
    }

    /// Number of frames published.
    #[getter]
    fn published(&self) -> PyResult<u64> {
        self.core.published().map_err(to_py)
    }

    /// Whether the writer has closed the segment or replaced it.
    #[getter]
    fn has_ended(&self) -> PyResult<bool> {
        self.core.has_ended().map_err(to_py)
    }

    /// Return the newest frame as a new array, its scalars and its number; None if there is none.
    fn latest<'py>(
        &self,
        py: Python<'py>,
        dtype: Bound<'py, PyArrayDescr>,
        shape: Vec<isize>,
    ) -> PyResult<Option<Frame<'py>>> {
        // No memory for a frame that does not exist, and no references from another process.
        if self.core.published().map_err(to_py)? == 0 {
            return Ok(None);
        }
        if dtype.has_object() {
            return Err(to_py(Error::Invalid("a frame cannot have Python objects".to_owned())));
        }
        // SAFETY: the memory is new; `latest` writes all of it before anything reads it.
        let frame = unsafe { new_array(&dtype, &shape, None)? };
        // A dtype that is an array adds its dimensions, so `dtype` is not that of the elements.
        let bytes = frame.len() * frame.dtype().itemsize();
        // SAFETY: a new array is contiguous, and nothing else refers to it.
        let out = unsafe { slice::from_raw_parts_mut(data_of(&frame), bytes) };
        let mut latest = Err(Error::Invalid(String::new()));
        if bytes <= LONG_BYTES {
            latest = self.core.latest_within(out, Duration::ZERO);
        }
        if latest.is_err() {
            // Other threads go on while it takes long, or is tried again.
            latest = py.detach(|| self.core.latest(out));
        }
        let latest = latest.map_err(to_py)?;
        let Some(latest) = latest else { return Ok(None) };
        let scalars = PyDict::new(py);
        for (name, value) in latest.scalars {
            match value {
                Scalar::Bool(value) => scalars.set_item(name, value)?,
                Scalar::Int(value) => scalars.set_item(name, value)?,
                Scalar::Float(value) => scalars.set_item(name, value)?,
            }
        }
        Ok(Some((frame, scalars, latest.number)))
    }
}

fn scalar(value: &Bound<'_, PyAny>) -> PyResult<Scalar> {
    if let Ok(value) = value.cast::<PyBool>() {
        return Ok(Scalar::Bool(value.is_true()));
    }
    if let Ok(value) = value.cast::<PyInt>()
        && let Ok(value) = value.extract()
    {
        return Ok(Scalar::Int(value));
    }
    value.extract().map(Scalar::Float)
}
