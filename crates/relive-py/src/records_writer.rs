//! `RecordWriter`: writes a record store.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use numpy::PyReadonlyArray1;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use relive_core::fork::OwnerProcess;
use relive_core::records::{Column, CreateOptions, FieldSpec, Value, Writer, WriterOptions};
use relive_core::{Error, Result};

use crate::errors::to_py;
use crate::pack::report_progress;
use crate::records::{RecordSnapshot, Spec, read_options};
use crate::records_value::{ColumnValues, FieldArgument, Plan};

/// Writes a record store; `relive.RecordStore` wraps it. Thread-safe.
#[pyclass(frozen, module = "relive._native")]
pub struct RecordWriter {
    /// None only while the object is dropped.
    core: Mutex<Option<Box<Writer>>>,
    owner: OwnerProcess,
    /// How values are converted; replaced when the fields change.
    plan: Mutex<Option<Arc<Plan>>>,
    /// The last snapshot, if nothing was written since. A write releases it first, because it has
    /// to copy all state that it changes while a snapshot exists.
    last: Mutex<Option<Py<RecordSnapshot>>>,
}

#[pymethods]
impl RecordWriter {
    /// Create a store.
    #[staticmethod]
    #[pyo3(signature = (
        path, fields, *, chunk_records, chunk_bytes, workers, verify, io, max_value_bytes
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn create(
        py: Python<'_>,
        path: PathBuf,
        fields: Vec<Spec>,
        chunk_records: Option<u64>,
        chunk_bytes: Option<u64>,
        workers: usize,
        verify: &str,
        io: &str,
        max_value_bytes: u64,
    ) -> PyResult<Self> {
        let read = read_options(verify, io, max_value_bytes)?;
        let make = || {
            let fields: Result<Vec<FieldSpec>> = fields.into_iter().map(spec_from_py).collect();
            let chunk_bytes = chunk_bytes.unwrap_or(CreateOptions::default().chunk_bytes);
            let create = CreateOptions { chunk_records, chunk_bytes };
            let options = WriterOptions { writers: workers, read, ..WriterOptions::default() };
            Writer::create(&path, fields?, &create, options)
        };
        py.detach(make).map(Self::new).map_err(to_py)
    }

    /// Open a store for writing.
    #[staticmethod]
    #[pyo3(signature = (path, *, workers, verify, io, max_value_bytes))]
    fn open(
        py: Python<'_>,
        path: PathBuf,
        workers: usize,
        verify: &str,
        io: &str,
        max_value_bytes: u64,
    ) -> PyResult<Self> {
        let read = read_options(verify, io, max_value_bytes)?;
        let options = WriterOptions { writers: workers, read, ..WriterOptions::default() };
        py.detach(|| Writer::open(&path, options)).map(Self::new).map_err(to_py)
    }

    /// Set how values are converted.
    ///
    /// `fields` has, for every field, its name, kind, dtype, shape, number of varying dimensions,
    /// and a function that converts values to its dtype. `refuse` is called with a record that
    /// has an unknown field, and raises. `snapshot` returns `described` for these fields.
    fn plan(
        &self,
        py: Python<'_>,
        fields: Vec<FieldArgument<'_>>,
        refuse: Py<PyAny>,
        described: Py<PyAny>,
    ) -> PyResult<()> {
        self.set_plan(Arc::new(Plan::new(py, fields, refuse, described)?));
        Ok(())
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |core| Ok(core.len() as usize))
    }

    /// Whether it can be written to.
    #[getter]
    fn is_open(&self, py: Python<'_>) -> bool {
        self.with(py, |core| Ok(core.is_open())).unwrap_or(false)
    }

    /// Return the current state of the store, including what is not flushed yet; and the
    /// `described` of `plan`.
    fn snapshot(&self, py: Python<'_>) -> PyResult<(Py<RecordSnapshot>, Option<Py<PyAny>>)> {
        let (core, plan) = self.with(py, |core| Ok((core.snapshot()?, self.current_plan())))?;
        let described = plan.map(|plan| plan.described(py));
        let known = self.last().as_ref().map(|known| known.clone_ref(py));
        if let Some(known) = known
            && Arc::ptr_eq(&known.get().core, &core)
        {
            return Ok((known, described));
        }
        let fresh = Py::new(py, RecordSnapshot::new(core))?;
        let before = self.last().replace(fresh.clone_ref(py));
        drop(before);
        Ok((fresh, described))
    }

    /// Append a record and return its row.
    fn append(&self, py: Python<'_>, record: &Bound<'_, PyDict>) -> PyResult<u64> {
        self.planned(|plan| {
            let held = plan.record(record, true)?;
            let values: Vec<Value<'_>> = held.iter().map(|(_, held)| held.value()).collect();
            self.write_as(py, plan, |core| core.append(&values))
        })
    }

    /// Append `rows` records as one call, with a column for each field: None, an array of all
    /// values, `(values, offsets, dims or None)` of a ragged one, or a list of values. Raises if
    /// the fields changed since `plan` was called with `described`.
    fn extend(
        &self,
        py: Python<'_>,
        rows: u64,
        columns: &Bound<'_, PyList>,
        described: &Bound<'_, PyAny>,
    ) -> PyResult<(u64, u64)> {
        self.planned(|plan| {
            plan.check(described)?;
            let given = columns.iter().enumerate();
            let held: Vec<ColumnValues<'_>> = given
                .map(|(column, given)| plan.column(column, &given))
                .collect::<PyResult<_>>()?;
            let values: Vec<Vec<Value<'_>>> = held.iter().map(ColumnValues::values).collect();
            let columns: Vec<Column<'_>> =
                held.iter().zip(&values).map(|(held, values)| held.column(values)).collect();
            let range = self.write_as(py, plan, |core| core.extend(rows, &columns))?;
            Ok(range.map(|range| (range.start, range.end)))
        })
    }

    /// Replace a record. Fields not in it lose their value, or with `some` keep it.
    #[pyo3(signature = (row, record, *, some))]
    fn modify(
        &self,
        py: Python<'_>,
        row: u64,
        record: &Bound<'_, PyDict>,
        some: bool,
    ) -> PyResult<()> {
        self.planned(|plan| {
            let held = plan.record(record, !some)?;
            let changes: Vec<(usize, Value<'_>)> =
                held.iter().map(|(column, held)| (*column, held.value())).collect();
            self.write_as(py, plan, |core| core.modify(row, &changes))
        })
    }

    /// Replace the values of one field of several records, as one call. Raises if the fields
    /// changed since `plan` was called with `described`.
    fn modify_many(
        &self,
        py: Python<'_>,
        column: usize,
        rows: PyReadonlyArray1<'_, i64>,
        values: &Bound<'_, PyAny>,
        described: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let rows: Vec<u64> = rows.as_array().iter().map(|&row| row as u64).collect();
        self.planned(|plan| {
            plan.check(described)?;
            let held = plan.column(column, values)?;
            let values = held.values();
            let given = held.column(&values);
            self.write_as(py, plan, |core| core.modify_many(column, &rows, &given))
        })
    }

    /// Delete records, as one call, and return which rows moved: from and to.
    fn delete(&self, py: Python<'_>, rows: PyReadonlyArray1<'_, i64>) -> PyResult<Vec<(u64, u64)>> {
        let rows: Vec<u64> = rows.as_array().iter().map(|&row| row as u64).collect();
        self.write(py, |core| core.delete(&rows))
    }

    /// Make everything so far survive the end of this process.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.write(py, Writer::flush)
    }

    /// Make everything so far survive a power cut.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.write(py, Writer::sync)
    }

    /// Write a checkpoint: fold the journal into tables.
    fn checkpoint(&self, py: Python<'_>) -> PyResult<()> {
        self.write(py, Writer::checkpoint)
    }

    /// Sync, write a checkpoint and release the store.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.write(py, Writer::close)
    }

    /// Discard everything since the last flush, and release the store.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        self.write(py, Writer::abort)
    }

    /// Copy the records to new chunks, in order; with `recompress`, encode values again. Calls
    /// `progress(done, total)` with numbers of records.
    #[pyo3(signature = (recompress, progress=None))]
    fn rebalance(
        &self,
        py: Python<'_>,
        recompress: bool,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let mut report = |done: u64, total: u64| report_progress(progress.as_ref(), (done, total));
        self.write(py, |core| core.rebalance(recompress, &mut report))
    }

    /// Add a field after the others; `given` is a column of values for the existing records, or
    /// None. The rest is as for `plan`, including that field.
    fn add_field(
        &self,
        py: Python<'_>,
        spec: Spec,
        given: &Bound<'_, PyAny>,
        fields: Vec<FieldArgument<'_>>,
        refuse: Py<PyAny>,
        described: Py<PyAny>,
    ) -> PyResult<()> {
        let last = fields.len().saturating_sub(1);
        let plan = Arc::new(Plan::new(py, fields, refuse, described)?);
        let held = plan.column(last, given)?;
        let values = held.values();
        let column = held.column(&values);
        self.write(py, |core| {
            let given = if matches!(column, Column::Missing) { None } else { Some(&column) };
            core.add_field(spec_from_py(spec)?, given)?;
            self.set_plan(Arc::clone(&plan));
            Ok(())
        })
    }

    /// Remove a field. The rest is as for `plan`, without that field.
    fn drop_field(
        &self,
        py: Python<'_>,
        name: &str,
        fields: Vec<FieldArgument<'_>>,
        refuse: Py<PyAny>,
        described: Py<PyAny>,
    ) -> PyResult<()> {
        let plan = Arc::new(Plan::new(py, fields, refuse, described)?);
        self.write(py, |core| {
            core.drop_field(name)?;
            self.set_plan(Arc::clone(&plan));
            Ok(())
        })
    }

    /// Compress later values of a field with a zstd dictionary.
    fn set_dictionary(&self, py: Python<'_>, column: usize, dictionary: Vec<u8>) -> PyResult<()> {
        self.write(py, |core| core.set_dictionary(column, dictionary))
    }
}

impl RecordWriter {
    fn new(core: Writer) -> Self {
        Self {
            core: Mutex::new(Some(Box::new(core))),
            owner: OwnerProcess::current(),
            plan: Mutex::new(None),
            last: Mutex::new(None),
        }
    }

    /// Locks the last snapshot. No Python object may be created or dropped meanwhile: that can
    /// run another thread, which would wait for this lock while it has the GIL.
    fn last(&self) -> MutexGuard<'_, Option<Py<RecordSnapshot>>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_plan(&self, plan: Arc<Plan>) {
        let before = self.plan.lock().unwrap_or_else(PoisonError::into_inner).replace(plan);
        drop(before);
    }

    fn current_plan(&self) -> Option<Arc<Plan>> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Calls `work` with the plan, and again if another thread has changed the fields meanwhile.
    fn planned<T>(&self, mut work: impl FnMut(&Arc<Plan>) -> PyResult<Option<T>>) -> PyResult<T> {
        self.same_process()?;
        loop {
            let plan = self.current_plan().ok_or_else(|| {
                to_py(Error::Invalid(
                    "call `plan` before writing: the writer does not know the fields yet".into(),
                ))
            })?;
            if let Some(done) = work(&plan)? {
                return Ok(done);
            }
        }
    }

    /// Calls `work` with the core if its fields are still those of the plan, else returns None.
    fn write_as<T: Send>(
        &self,
        py: Python<'_>,
        plan: &Arc<Plan>,
        work: impl FnOnce(&mut Writer) -> Result<T> + Send,
    ) -> PyResult<Option<T>> {
        self.write(py, |core| {
            let current = self.current_plan();
            if !current.is_some_and(|current| Arc::ptr_eq(&current, plan)) {
                return Ok(None);
            }
            work(core).map(Some)
        })
    }

    fn same_process(&self) -> PyResult<()> {
        self.owner.check("the record store").map_err(to_py)
    }

    /// Calls `work`, which changes the store, with the core.
    fn write<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Writer) -> Result<T> + Send,
    ) -> PyResult<T> {
        self.same_process()?;
        let before = self.last().take();
        drop(before);
        self.with(py, work)
    }

    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Writer) -> Result<T> + Send,
    ) -> PyResult<T> {
        self.same_process()?;
        // Without the GIL, since the thread that has the lock may wait for the GIL.
        py.detach(|| match &mut *self.core.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(core) => work(core),
            None => Err(Error::Closed("the record store is closed".into())),
        })
        .map_err(to_py)
    }
}

impl Drop for RecordWriter {
    fn drop(&mut self) {
        let core = self.core.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if self.owner.is_current() {
            // Without the GIL, so that other threads can run while this one waits.
            Python::attach(|py| py.detach(|| drop(core)));
        } else {
            // The threads do not exist in this process, and the parent process writes the data.
            std::mem::forget(core);
        }
    }
}

fn spec_from_py(
    (name, dtype, shape, kind, ragged, codec, level, bytes): Spec,
) -> Result<FieldSpec> {
    let Ok(dtype) = dtype.parse() else {
        return Err(Error::Invalid(format!("field {name:?}: the dtype {dtype} is not valid JSON")));
    };
    let (kind, codec) = (kind.parse()?, codec.parse()?);
    Ok(FieldSpec { id: 0, name, dtype, shape, kind, ragged, codec, level, bytes })
}
