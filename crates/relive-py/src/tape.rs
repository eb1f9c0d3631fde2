//! `TapeWriter`, `TapeReader` and `find_time`.

use std::ffi::c_int;
use std::path::PathBuf;
use std::slice;
use std::sync::{Mutex, PoisonError};

use numpy::{
    PyArray1, PyArray2, PyArrayDescrMethods, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods,
};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use relive_core::{Error, Result, journal, tape};

use crate::arrays::data_of;
use crate::errors::to_py;

/// Copying more bytes than this takes longer than releasing the GIL.
pub const LONG_BYTES: usize = 128 * 1024;

/// Up to this many clocks are read without an allocation.
const FEW_CLOCKS: usize = 8;

/// Writes the records of one signal to a tape. Thread-safe.
#[pyclass(frozen, module = "relive._native")]
pub struct TapeWriter {
    core: tape::TapeWriter,
    name: String,
}

#[pymethods]
impl TapeWriter {
    /// Create a tape at a path that does not exist; its head is flushed. `row_bytes` is the
    /// length of every payload, or None if lengths differ.
    #[new]
    #[pyo3(signature = (path, name, head, row_bytes, clocks=0))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        name: String,
        head: &[u8],
        row_bytes: Option<usize>,
        clocks: usize,
    ) -> PyResult<Self> {
        let create = || tape::TapeWriter::create(&path, &name, head, row_bytes, clocks);
        let core = py.detach(create).map_err(to_py)?;
        Ok(Self { core, name })
    }

    /// Append a copy of a record, which must be later than all before. Waits only while 64 MiB
    /// are pending.
    #[pyo3(signature = (ts_ns, payload, clocks=None))]
    fn append(
        &self,
        py: Python<'_>,
        ts_ns: &Bound<'_, PyAny>,
        payload: &Bound<'_, PyAny>,
        clocks: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let ts = self.time(ts_ns)?;
        let mut few = [0; FEW_CLOCKS];
        let many;
        let clocks = match clocks {
            None => &[][..],
            Some(clocks) => {
                let count = clocks.len()?;
                if count > FEW_CLOCKS {
                    many = self.times(clocks)?;
                    &many[..]
                } else {
                    self.few_times(clocks, &mut few[..count])?;
                    &few[..count]
                }
            }
        };
        loop {
            // Read again after each wait: other threads may have changed the object.
            let taken = with_bytes(payload, |bytes| {
                let take = || self.core.try_append(ts, clocks, bytes);
                if bytes.len() > LONG_BYTES { py.detach(take) } else { take() }
            })?;
            if taken.map_err(to_py)? {
                return Ok(());
            }
            self.wait(py)?;
        }
    }

    /// Append a note after all records so far.
    fn note(&self, py: Python<'_>, data: &[u8]) -> PyResult<()> {
        while !self.call(py, |core| core.try_note(data))? {
            self.wait(py)?;
        }
        Ok(())
    }

    /// Make everything so far survive the end of this process.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, tape::TapeWriter::flush)
    }

    /// Make everything so far survive a power cut.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, tape::TapeWriter::sync)
    }

    /// Sync and close the tape; does nothing if it is closed.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, tape::TapeWriter::close)
    }

    /// Remove the tape; does nothing if it is closed or aborted.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, tape::TapeWriter::abort)
    }

    /// Number of records appended.
    #[getter]
    fn rows(&self) -> PyResult<u64> {
        self.core.rows().map_err(to_py)
    }

    /// The timestamp of the last record.
    #[getter]
    fn last_ts(&self) -> PyResult<Option<i64>> {
        self.core.last_ts().map_err(to_py)
    }

    /// Bytes that are not written yet.
    #[getter]
    fn pending_bytes(&self) -> PyResult<usize> {
        self.core.pending_bytes().map_err(to_py)
    }

    /// Bytes of all records and notes so far.
    #[getter]
    fn bytes(&self) -> PyResult<u64> {
        self.core.bytes().map_err(to_py)
    }
}

impl TapeWriter {
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&tape::TapeWriter) -> Result<T> + Send,
    ) -> PyResult<T> {
        py.detach(|| work(&self.core)).map_err(to_py)
    }

    /// Waits a short time for free memory, and runs pending signal handlers of Python.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.core.wait_for_room());
        py.check_signals()
    }

    fn time(&self, number: &Bound<'_, PyAny>) -> PyResult<i64> {
        match integer(number)? {
            (value, 0) => Ok(value),
            _ => Err(to_py(Error::Invalid(format!(
                "`{}`: the timestamp {number} does not fit in 64 bits",
                self.name
            )))),
        }
    }

    fn times(&self, numbers: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
        numbers.try_iter()?.map(|number| self.time(&number?)).collect()
    }

    fn few_times(&self, numbers: &Bound<'_, PyAny>, times: &mut [i64]) -> PyResult<()> {
        if let Ok(numbers) = numbers.cast::<PyTuple>() {
            for (time, number) in times.iter_mut().zip(numbers.iter_borrowed()) {
                *time = self.time(&number)?;
            }
        } else {
            for (time, number) in times.iter_mut().zip(numbers.try_iter()?) {
                *time = self.time(&number?)?;
            }
        }
        Ok(())
    }
}

impl Drop for TapeWriter {
    fn drop(&mut self) {
        // Without the GIL, so that other threads can run while pending records are written.
        Python::attach(|py| py.detach(|| self.core.leave()));
    }
}

/// Reads the complete records of a tape, as of when it was opened. Thread-safe.
#[pyclass(frozen, module = "relive._native")]
pub struct TapeReader {
    core: Mutex<tape::TapeReader>,
}

/// Timestamps, clocks, concatenated payloads, and the offsets of the payloads.
type RowArrays<'py> = (
    Bound<'py, PyArray1<i64>>,
    Bound<'py, PyArray2<i64>>,
    Bound<'py, PyArray1<u8>>,
    Bound<'py, PyArray1<i64>>,
);

#[pymethods]
impl TapeReader {
    /// Open a tape. A tape that ends before its head is complete has no head and no records.
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let core = py.detach(|| tape::TapeReader::open(&path)).map_err(to_py)?;
        Ok(Self { core: Mutex::new(core) })
    }

    /// The head that the tape was created with.
    #[getter]
    fn head<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let head = self.call(py, |core| Ok(core.head().map(<[u8]>::to_vec)))?;
        Ok(head.map(|head| PyBytes::new(py, &head)))
    }

    /// Bytes of every payload; None if lengths differ.
    #[getter]
    fn row_bytes(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        self.call(py, |core| Ok(core.row_bytes()))
    }

    /// Number of clocks beside the timestamp.
    #[getter]
    fn clocks(&self, py: Python<'_>) -> PyResult<usize> {
        self.call(py, |core| Ok(core.clocks()))
    }

    /// Number of complete records; the first call reads all of them.
    #[getter]
    fn rows(&self, py: Python<'_>) -> PyResult<u64> {
        self.call(py, tape::TapeReader::rows)
    }

    /// Return all notes, in order.
    fn notes<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let notes = self.call(py, tape::TapeReader::notes)?;
        Ok(notes.iter().map(|note| PyBytes::new(py, note)).collect())
    }

    /// Return the next records, at most so many with at most so many bytes, but at least one:
    /// timestamps, clocks, concatenated payloads, and the offsets of the payloads; None at the
    /// end.
    fn next<'py>(
        &self,
        py: Python<'py>,
        max_rows: usize,
        max_bytes: usize,
    ) -> PyResult<Option<RowArrays<'py>>> {
        let found =
            self.call(py, |core| Ok((core.next_rows(max_rows, max_bytes)?, core.clocks())))?;
        let (Some(rows), clocks) = found else { return Ok(None) };
        let count = rows.timestamps.len();
        Ok(Some((
            PyArray1::from_vec(py, rows.timestamps),
            PyArray1::from_vec(py, rows.clocks).reshape([count, clocks])?,
            PyArray1::from_vec(py, rows.payload),
            PyArray1::from_vec(py, rows.offsets),
        )))
    }

    /// Go back to the first record.
    fn rewind(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, tape::TapeReader::rewind)
    }
}

impl TapeReader {
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut tape::TapeReader) -> Result<T> + Send,
    ) -> PyResult<T> {
        // Without the GIL, since the thread that has the lock may wait for the GIL.
        py.detach(|| work(&mut self.core.lock().unwrap_or_else(PoisonError::into_inner)))
            .map_err(to_py)
    }
}

/// Return the offset at which a tape is damaged; None if it is whole or only ends early.
///
/// A killed process leaves the first bytes of a record, a power cut leaves zeros. Any other bytes
/// after the last valid record are damage, and so is a gap between valid records.
#[pyfunction]
pub fn tape_damage(py: Python<'_>, path: PathBuf) -> PyResult<Option<u64>> {
    py.detach(|| journal::find_damage(&path)).map_err(to_py)
}

/// Return the position of the first of the records `low` to `high` that is later than `ts`;
/// `high` if there is none. `timestamps` are increasing, `ts` is any integer.
#[pyfunction]
pub fn find_time(
    timestamps: &Bound<'_, PyAny>,
    ts: &Bound<'_, PyAny>,
    low: usize,
    high: usize,
) -> PyResult<usize> {
    let invalid =
        || to_py(Error::Invalid("`timestamps` must be a contiguous 1-D int64 array".into()));
    let array = timestamps.cast::<PyArray1<i64>>().map_err(|_| invalid())?;
    // SAFETY: no Python code runs while the slice is used. Writing to the array in another thread
    // meanwhile is a race that its owner must prevent.
    let all = unsafe { array.as_slice() }.map_err(|_| invalid())?;
    let Some(part) = all.get(low..high) else {
        return Err(to_py(Error::OutOfRange(format!(
            "records {low} to {high} are out of range for {} records",
            all.len()
        ))));
    };
    Ok(match integer(ts)? {
        (ts, 0) => low + tape::find_time(part, ts),
        (_, overflow) if overflow < 0 => low,
        _ => high,
    })
}

/// Returns an integer of Python or NumPy; and if it does not fit in 64 bits, -1 or 1 for its sign.
fn integer(number: &Bound<'_, PyAny>) -> PyResult<(i64, c_int)> {
    let mut overflow = 0;
    // SAFETY: the object exists, and the call writes to the one number passed.
    let value = unsafe { ffi::PyLong_AsLongLongAndOverflow(number.as_ptr(), &raw mut overflow) };
    if value == -1
        && overflow == 0
        && let Some(error) = PyErr::take(number.py())
    {
        return Err(error);
    }
    Ok((value, overflow))
}

/// Calls `work` with the bytes of an array, of `bytes`, or of another object with a buffer.
pub fn with_bytes<T>(object: &Bound<'_, PyAny>, work: impl FnOnce(&[u8]) -> T) -> PyResult<T> {
    if let Ok(array) = object.cast::<PyUntypedArray>() {
        let dtype = array.dtype();
        if !array.is_c_contiguous() || dtype.has_object() {
            return Err(not_contiguous());
        }
        let bytes = array.len() * dtype.itemsize();
        if bytes == 0 {
            return Ok(work(&[]));
        }
        // SAFETY: the array exists and has this many bytes there. Writing to it while it is copied
        // is a race that its owner must prevent.
        let bytes = unsafe { slice::from_raw_parts(data_of(array).cast_const(), bytes) };
        return Ok(work(bytes));
    }
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return Ok(work(bytes.as_bytes()));
    }
    let mut view = ffi::Py_buffer::new();
    View::of(object, &mut view).map(|view| work(view.bytes()))
}

/// The bytes of an object, requested without a shape, which some objects do not have.
struct View<'a>(&'a mut ffi::Py_buffer);

impl<'a> View<'a> {
    fn of(object: &Bound<'_, PyAny>, view: &'a mut ffi::Py_buffer) -> PyResult<Self> {
        // SAFETY: the object exists, and the call fills in the one structure passed.
        let code = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), view, ffi::PyBUF_SIMPLE) };
        if code == 0 {
            return Ok(Self(view));
        }
        let error = PyErr::fetch(object.py());
        let is_split = error.is_instance_of::<PyBufferError>(object.py());
        Err(if is_split { not_contiguous() } else { error })
    }

    fn bytes(&self) -> &[u8] {
        if self.0.len <= 0 {
            return &[];
        }
        // SAFETY: this many bytes are there until the view is released. Writing to them meanwhile
        // is a race that their owner must prevent.
        unsafe { slice::from_raw_parts(self.0.buf.cast::<u8>().cast_const(), self.0.len as usize) }
    }
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        // SAFETY: the call above filled it in, and it is released once, with the GIL.
        unsafe { ffi::PyBuffer_Release(self.0) };
    }
}

fn not_contiguous() -> PyErr {
    to_py(Error::Invalid("the payload must be a C-contiguous buffer of bytes".into()))
}
