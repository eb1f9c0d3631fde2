//! `Records` and `RecordSnapshot`: read a record store.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use numpy::npyffi::npy_intp;
use numpy::{
    IntoPyArray, PyArray1, PyArray2, PyArrayDescr, PyArrayDescrMethods, PyReadonlyArray1,
    PyUntypedArray,
};
use pyo3::prelude::*;
use pyo3::types::PyString;
use relive_core::Error;
use relive_core::gather::Owner;
use relive_core::pack::Level;
use relive_core::records::{self, FieldSpec, Io, ReadOptions, Snapshot, SnapshotRows, View};

use crate::arrays::{new_array, set_readonly};
use crate::errors::{choice, to_py};
use crate::pack::{report_progress, verify_of};
use crate::table::{Shape, Table, from_reader};

/// A field in Python: name, dtype as JSON, shape, kind, varying dimensions, codec, level, bytes of
/// an item.
pub type Spec = (String, String, Vec<u64>, String, u8, String, Option<i32>, u64);

/// A column in Python: name, dtype, shape of an item, whether rows differ in length.
type ColumnFields<'py> = (Bound<'py, PyString>, Bound<'py, PyArrayDescr>, Vec<npy_intp>, bool);

/// A record store, open for reading. Thread-safe.
#[pyclass(frozen, module = "relive._native")]
pub struct Records {
    core: records::Records,
}

#[pymethods]
impl Records {
    /// Open the store at `path`; with `at`, its state after that call, if it still exists.
    #[staticmethod]
    #[pyo3(signature = (path, verify, io, max_value_bytes, at=None))]
    fn open(
        py: Python<'_>,
        path: PathBuf,
        verify: &str,
        io: &str,
        max_value_bytes: u64,
        at: Option<u64>,
    ) -> PyResult<Self> {
        let options = read_options(verify, io, max_value_bytes)?;
        let core = py.detach(|| records::Records::open(&path, options, at));
        core.map(|core| Self { core }).map_err(to_py)
    }

    /// Return the state of the store when it was opened or last refreshed.
    fn snapshot(&self) -> RecordSnapshot {
        RecordSnapshot::new(self.core.snapshot())
    }

    /// Read what was committed since; return whether there was anything.
    fn refresh(&self, py: Python<'_>) -> PyResult<bool> {
        py.detach(|| self.core.refresh()).map_err(to_py)
    }
}

/// A record store at one moment. Never changes; thread-safe.
#[pyclass(frozen, module = "relive._native")]
pub struct RecordSnapshot {
    pub core: Arc<Snapshot>,
    table: OnceLock<Py<Table>>,
}

impl RecordSnapshot {
    pub fn new(core: Arc<Snapshot>) -> Self {
        Self { core, table: OnceLock::new() }
    }
}

#[pymethods]
impl RecordSnapshot {
    fn __len__(&self) -> usize {
        self.core.len() as usize
    }

    /// The number of checkpoints so far.
    #[getter]
    fn generation(&self) -> u64 {
        self.core.state().generation
    }

    /// The number of the last call that it includes.
    #[getter]
    fn sequence(&self) -> u64 {
        self.core.state().sequence
    }

    /// Return the fields, in order: name, dtype as JSON, shape, kind, varying dimensions, codec,
    /// level, bytes of an item.
    fn specs(&self) -> Vec<Spec> {
        self.core.state().fields.iter().map(|field| spec_to_py(&field.spec)).collect()
    }

    /// Return the fraction of stored values that are in use, and the fraction of bytes.
    fn utilization(&self, py: Python<'_>) -> PyResult<(f64, f64)> {
        let live = py.detach(|| self.core.live()).map_err(to_py)?;
        let share =
            |part: u64, whole: u64| if whole == 0 { 1. } else { part as f64 / whole as f64 };
        Ok((share(live.records, live.stored_records), share(live.bytes, live.allocated_bytes)))
    }

    /// Return the records as rows; `columns` has each field's name, dtype, shape, raggedness.
    fn table(&self, py: Python<'_>, columns: &Bound<'_, PyAny>) -> PyResult<Py<Table>> {
        if let Some(table) = self.table.get() {
            return Ok(table.clone_ref(py));
        }
        let columns: Vec<ColumnFields<'_>> = columns.extract()?;
        let shapes = columns
            .into_iter()
            .map(|(name, dtype, row, ragged)| Shape::new(name, dtype, row, ragged));
        let rows = Arc::new(SnapshotRows::new(Arc::clone(&self.core)));
        let table = Py::new(py, from_reader(rows, shapes.collect())?)?;
        Ok(self.table.get_or_init(|| table).clone_ref(py))
    }

    /// Return whether a field has no value, for each of the rows.
    fn missing<'py>(
        &self,
        py: Python<'py>,
        column: usize,
        rows: PyReadonlyArray1<'py, i64>,
    ) -> PyResult<Bound<'py, PyArray1<bool>>> {
        let rows: Vec<u64> = rows.as_array().iter().map(|&row| row as u64).collect();
        let read = || rows.iter().map(|&row| self.core.missing(column, row)).collect();
        let found: Result<Vec<bool>, Error> = py.detach(read);
        Ok(found.map_err(to_py)?.into_pyarray(py))
    }

    /// Return the varying dimensions of each of the rows, in a field with several of them.
    fn dims<'py>(
        &self,
        py: Python<'py>,
        column: usize,
        rows: PyReadonlyArray1<'py, i64>,
    ) -> PyResult<Bound<'py, PyArray2<i64>>> {
        let rows: Vec<u64> = rows.as_array().iter().map(|&row| row as u64).collect();
        let varying = self.spec(column)?.dims();
        let read = || {
            let mut dims = Vec::with_capacity(rows.len() * varying);
            rows.iter().try_for_each(|&row| self.core.dims(column, row, &mut dims)).map(|()| dims)
        };
        let dims = py.detach(read).map_err(to_py)?;
        let array = numpy::ndarray::Array2::from_shape_vec((rows.len(), varying), dims);
        let array = array.map_err(|error| to_py(Error::Invalid(error.to_string())))?;
        Ok(array.into_pyarray(py))
    }

    /// Return a value without a copy, read-only; None if it is not stored as plain bytes in
    /// mapped memory. `shape` is that of an item.
    fn view<'py>(
        &self,
        py: Python<'py>,
        column: usize,
        row: u64,
        dtype: Bound<'py, PyArrayDescr>,
        shape: Vec<npy_intp>,
    ) -> PyResult<Option<Bound<'py, PyUntypedArray>>> {
        let spec = self.spec(column)?;
        let found = py.detach(|| self.core.view(column, row)).map_err(to_py)?;
        let Some(view) = found else { return Ok(None) };
        let mut lead: Vec<i64> = Vec::new();
        match spec.ragged {
            0 => {}
            1 => lead.push((view.bytes().len() / spec.bytes.max(1) as usize) as i64),
            _ => self.core.dims(column, row, &mut lead).map_err(to_py)?,
        }
        let lead = lead.into_iter().map(|dim| dim as npy_intp);
        over(&view, &dtype, &lead.chain(shape).collect::<Vec<_>>()).map(Some)
    }

    /// Return the rows from `start` to `stop` of a field without a copy, read-only; None if they
    /// are not stored one after the other in mapped memory.
    fn span<'py>(
        &self,
        py: Python<'py>,
        column: usize,
        start: u64,
        stop: u64,
        dtype: Bound<'py, PyArrayDescr>,
        shape: Vec<npy_intp>,
    ) -> PyResult<Option<Bound<'py, PyUntypedArray>>> {
        let found = py.detach(|| self.core.span(column, start..stop)).map_err(to_py)?;
        let Some(view) = found else { return Ok(None) };
        let shape: Vec<npy_intp> = [(stop - start) as npy_intp].into_iter().chain(shape).collect();
        over(&view, &dtype, &shape).map(Some)
    }
}

impl RecordSnapshot {
    fn spec(&self, column: usize) -> PyResult<&FieldSpec> {
        let fields = &self.core.state().fields;
        let field = fields.get(column).ok_or_else(|| no_field(column, fields.len()))?;
        Ok(&field.spec)
    }
}

/// Returns the error for a position after the last of `fields` fields.
pub fn no_field(position: usize, fields: usize) -> PyErr {
    to_py(Error::OutOfRange(format!("field index {position} is out of range for {fields} fields")))
}

/// Memory of a record store. Arrays over it keep it alive.
#[pyclass(frozen, module = "relive._native")]
pub struct Mapped {
    _owner: Owner,
}

/// Creates a read-only array over stored bytes.
fn over<'py>(
    view: &View,
    dtype: &Bound<'py, PyArrayDescr>,
    shape: &[npy_intp],
) -> PyResult<Bound<'py, PyUntypedArray>> {
    let items = shape.iter().try_fold(1_usize, |all, &dim| all.checked_mul(dim as usize));
    if items.and_then(|items| items.checked_mul(dtype.itemsize())) != Some(view.bytes().len()) {
        let text = format!(
            "the value has {} bytes, which do not fit an array of {dtype} with shape {shape:?}",
            view.bytes().len()
        );
        return Err(to_py(Error::Invalid(text)));
    }
    let owner = Bound::new(dtype.py(), Mapped { _owner: Arc::clone(view.owner()) })?.into_any();
    // SAFETY: the owner keeps the bytes, as many as the array has; the array is made read-only.
    let array = unsafe { new_array(dtype, shape, Some((view.start().cast_mut(), owner))) }?;
    set_readonly(&array);
    Ok(array)
}

/// Converts a field to Python.
fn spec_to_py(spec: &FieldSpec) -> Spec {
    (
        spec.name.clone(),
        spec.dtype.to_string(),
        spec.shape.clone(),
        spec.kind.to_string(),
        spec.ragged,
        spec.codec.to_string(),
        spec.level,
        spec.bytes,
    )
}

/// Returns the options for reading a store.
pub fn read_options(verify: &str, io: &str, max_value_bytes: u64) -> PyResult<ReadOptions> {
    let io = choice("io", io, &[("mmap", Io::Mmap), ("pread", Io::Pread)])?;
    Ok(ReadOptions { io, verify: verify_of(verify)?, max_value_bytes })
}

/// Field, row, kind of error and message.
type Problem = (Option<String>, Option<u64>, &'static str, String);

/// Validate the store at `path`. Return how many records were read, and for each problem the
/// field, the row, the kind of error and the message.
#[pyfunction]
pub fn validate_records(
    py: Python<'_>,
    path: PathBuf,
    level: &str,
    workers: usize,
    progress: Option<Py<PyAny>>,
) -> PyResult<(u64, Vec<Problem>)> {
    let level = choice("level", level, &Level::NAMES)?;
    let mut report = |done: u64, total: u64| report_progress(progress.as_ref(), (done, total));
    let validate = || records::validate(&path, level, ReadOptions::default(), workers, &mut report);
    let report = py.detach(validate).map_err(to_py)?;
    let problems = report.problems.into_iter();
    let problems = problems.map(|each| (each.field, each.row, each.kind, each.message));
    Ok((report.records, problems.collect()))
}
