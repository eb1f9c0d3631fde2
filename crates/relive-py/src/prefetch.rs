//! `Prefetch`: batches gathered by native threads, returned as NumPy arrays.

use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use numpy::npyffi::npy_intp;
use numpy::{
    PyArray1, PyArrayDescrMethods, PyReadonlyArray1, PyUntypedArray, PyUntypedArrayMethods,
};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use relive_core::Error;
use relive_core::prefetch::{Batch, Next, Order, Prefetch as CorePrefetch, Settings, TableRows};
use relive_core::sample::{Cursor, Tail};
use relive_core::slab::{Loan, Slab};

use crate::arrays::{data_of, is_writable, new_array};
use crate::errors::to_py;
use crate::priority::Priorities;
use crate::sample::Sampler;
use crate::table::{Shape, Table};

/// How long a wait lasts before signal handlers of Python run.
const PATIENCE: Duration = Duration::from_millis(50);

/// The memory of a batch. Arrays over it keep it alive; after the last is deleted, the memory is
/// reused for another batch.
#[pyclass(frozen, module = "relive._native")]
pub struct Buffer {
    loan: Loan,
}

impl Buffer {
    /// Keeps the memory until the last array over it is deleted.
    pub fn new(loan: Loan) -> Self {
        Self { loan }
    }
}

#[pymethods]
impl Buffer {
    /// Size in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.loan.bytes()
    }
}

struct OutColumn {
    /// The name of the nested dict that has the column; None for the batch itself.
    group: Option<Py<PyString>>,
    shape: Shape,
}

/// Gathers batches of one or more tables ahead of time; `relive.DataLoader` wraps it.
#[pyclass(frozen, module = "relive._native")]
pub struct Prefetch {
    core: CorePrefetch,
    columns: Vec<OutColumn>,
    window: Option<npy_intp>,
    make_ragged: Py<PyAny>,
    allocate: Option<Py<PyAny>>,
    masked: bool,
    /// The name of the rows in a batch, if they are drawn by priority and were asked for.
    index: Option<Py<PyString>>,
    last: Mutex<Last>,
}

/// The position after the last batch that was returned.
#[derive(Clone, Copy)]
struct Last {
    cursor: Cursor,
    first: u64,
}

#[pymethods]
impl Prefetch {
    /// `names` has, for each column of each table, its position in a batch: the name of a nested
    /// dict, or None, and the name in it. `allocate(nbytes)` returns a writable uint8 array
    /// for one batch. The sampler is copied.
    ///
    /// With `priorities`, these choose the rows as long as they have those of `window`, by default
    /// as many as the sampler; then the stream ends. With `keys`, rows are drawn by these numbers of
    /// theirs, which increase, and the stream ends with one that is not among them. The sampler counts positions. Batches have a `weight`, and the rows under the
    /// name `index`.
    #[new]
    #[pyo3(signature = (
        tables, names, *, sampler, workers, depth, make_ragged, allocate=None, priorities=None,
        window=None, keys=None, index=None
    ))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        tables: Vec<Bound<'_, Table>>,
        names: Vec<(Option<Py<PyString>>, Py<PyString>)>,
        sampler: &Sampler,
        workers: usize,
        depth: usize,
        make_ragged: Py<PyAny>,
        allocate: Option<Py<PyAny>>,
        priorities: Option<&Priorities>,
        window: Option<(u64, u64)>,
        keys: Option<PyReadonlyArray1<'_, i64>>,
        index: Option<Py<PyString>>,
    ) -> PyResult<Self> {
        let cores = tables.iter().map(|table| table.get().core.clone()).collect();
        let shapes: Vec<_> = tables.iter().flat_map(|table| &table.get().shapes).collect();
        if shapes.len() != names.len() {
            return Err(to_py(Error::Invalid("`names` must have one name per column".into())));
        }
        let columns: Vec<OutColumn> = shapes
            .into_iter()
            .zip(names)
            .map(|(shape, (group, name))| OutColumn { group, shape: shape.renamed(py, name) })
            .collect();
        let plan = sampler.core.plan();
        let settings = Settings { workers, depth, foreign: allocate.is_some() };
        let (first, end) = window.unwrap_or((0, plan.length));
        let known = match &keys {
            Some(keys) => TableRows::Keys(keys.as_array().iter().copied().collect()),
            None => TableRows::Window(first..end),
        };
        let order = Order {
            sampler: sampler.core.clone(),
            priorities: priorities.map(|shared| (shared.core.clone(), known)),
        };
        let core = CorePrefetch::start(cores, order, settings).map_err(to_py)?;
        let prefetch = Self {
            core,
            columns,
            window: plan.rows_per_sample().map(|rows| rows as npy_intp),
            make_ragged,
            allocate,
            masked: plan.tail == Tail::Pad,
            index,
            last: Mutex::new(Last { cursor: sampler.core.cursor(), first: 0 }),
        };
        if prefetch.allocate.is_some() {
            for _ in 0..depth + 1 {
                prefetch.give_slab(py)?;
            }
        }
        Ok(prefetch)
    }

    /// Return the next batch; None at the end.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        loop {
            self.core.same_process().map_err(to_py)?;
            if self.core.needs_slab() {
                self.give_slab(py)?;
            }
            let core = &self.core;
            let next = py.detach(|| core.next(PATIENCE)).map_err(to_py)?;
            match next {
                Next::Ready(batch) => return self.hand_out(py, *batch).map(Some),
                Next::Waiting => py.check_signals()?,
                Next::NeedsSlab => self.give_slab(py)?,
                Next::End => return Ok(None),
            }
        }
    }

    /// Position, samples dropped and samples repeated after the last batch returned.
    #[getter]
    fn cursor(&self) -> (u64, u64, u64) {
        let Cursor { position, omitted, repeated } = self.last().cursor;
        (position, omitted, repeated)
    }

    /// Global position of the first sample of the last batch returned.
    #[getter]
    fn first(&self) -> u64 {
        self.last().first
    }

    /// Stop the threads and wait for them; returned batches stay valid.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.core.close());
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        // Without the GIL, so that other threads can run while this one waits.
        Python::attach(|py| py.detach(|| self.core.close()));
    }
}

impl Prefetch {
    fn give_slab(&self, py: Python<'_>) -> PyResult<()> {
        let Some(allocate) = &self.allocate else { return Ok(()) };
        let bytes = self.core.layout().bytes;
        let memory = allocate.bind(py).call1((bytes,))?.cast_into::<PyUntypedArray>()?;
        let size = memory.len() * memory.dtype().itemsize();
        let start = NonNull::new(data_of(&memory));
        let (Some(start), true, true) = (start, is_writable(&memory), memory.is_c_contiguous())
        else {
            return Err(to_py(Error::Invalid(
                "`allocate` must return a writable, C-contiguous array".into(),
            )));
        };
        // SAFETY: the array is writable and C-contiguous, and is kept here. `allocate` must return
        // memory that is not used elsewhere.
        let slab = unsafe { Slab::foreign(start, size, Box::new(memory.unbind())) };
        self.core.give_slab(slab).map_err(to_py)
    }

    fn last(&self) -> Last {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hand_out<'py>(&self, py: Python<'py>, batch: Batch) -> PyResult<Bound<'py, PyDict>> {
        let Batch { fixed, ragged, step, drawn } = batch;
        let start = fixed.start();
        let buffer = Bound::new(py, Buffer { loan: fixed })?.into_any();
        let mut ragged = ragged.into_iter();
        let lead = [step.samples as npy_intp, self.window.unwrap_or(0)];
        let lead = &lead[..1 + usize::from(self.window.is_some())];
        let result = PyDict::new(py);
        for (column, &offset) in self.columns.iter().zip(&self.core.layout().starts) {
            let shape = &column.shape;
            let dtype = shape.dtype.bind(py);
            let value = if shape.ragged {
                let Some((loan, offsets)) = ragged.next() else { break };
                let items = offsets.last().copied().unwrap_or_default() as npy_intp;
                let data = loan.start();
                let base = Bound::new(py, Buffer { loan })?.into_any();
                // SAFETY: the values were gathered there, `items` of them, and the base
                // keeps them.
                let values =
                    unsafe { new_array(dtype, &shape.with_lead([items]), Some((data, base))) }?;
                self.make_ragged.bind(py).call1((values, PyArray1::from_slice(py, &offsets)))?
            } else {
                // SAFETY: the layout puts this column there, with room for every row of
                // the batch, and the buffer keeps it.
                unsafe {
                    let data = start.add(offset);
                    let shape = shape.with_lead(lead.iter().copied());
                    new_array(dtype, &shape, Some((data, buffer.clone())))?.into_any()
                }
            };
            let target = match &column.group {
                None => result.clone(),
                Some(group) => match result.get_item(group)? {
                    Some(inner) => inner.cast_into::<PyDict>()?,
                    None => {
                        let inner = PyDict::new(py);
                        result.set_item(group, &inner)?;
                        inner
                    }
                },
            };
            target.set_item(&column.shape.name, value)?;
        }
        if self.masked {
            let real = step.samples - step.padded;
            let mask: Vec<bool> = (0..step.samples).map(|k| k < real).collect();
            result.set_item("mask", PyArray1::from_vec(py, mask))?;
        }
        if let Some(drawn) = drawn {
            if let Some(index) = &self.index {
                result.set_item(index, PyArray1::from_vec(py, drawn.rows))?;
            }
            result.set_item("weight", PyArray1::from_vec(py, drawn.weights))?;
        }
        let last = Last { cursor: step.after, first: step.first };
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = last;
        Ok(result)
    }
}
