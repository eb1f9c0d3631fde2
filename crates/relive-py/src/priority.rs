//! `Priorities`: what rows are drawn by, shared with the threads that gather batches.

use std::sync::Arc;

use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use relive_core::priority::{Priorities as CorePriorities, Saved};

use crate::errors::to_py;

/// Rows, and the importance weight of each.
type Drawn<'py> = (Bound<'py, PyArray1<i64>>, Bound<'py, PyArray1<f32>>);

/// First row, number of leaves, alpha, beta, largest priority, ignored changes, priorities.
type State<'py> = (u64, usize, f64, f64, f64, u64, Bound<'py, PyArray1<f64>>);

/// The priorities of rows; `relive.PrioritizedSampler` wraps it. Thread-safe.
#[pyclass(frozen, module = "relive._native")]
pub struct Priorities {
    pub core: Arc<CorePriorities>,
}

#[pymethods]
impl Priorities {
    #[new]
    #[pyo3(signature = (length, *, alpha, beta))]
    fn new(length: u64, alpha: f64, beta: f64) -> PyResult<Self> {
        let core = CorePriorities::new(length, alpha, beta).map_err(to_py)?;
        Ok(Self { core: Arc::new(core) })
    }

    /// The first row, and the row after the last.
    #[getter]
    fn window(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let window = py.detach(|| self.core.window()).map_err(to_py)?;
        Ok((window.start, window.end))
    }

    /// The exponent of priorities.
    #[getter]
    fn alpha(&self, py: Python<'_>) -> PyResult<f64> {
        py.detach(|| self.core.exponents()).map(|(alpha, _)| alpha).map_err(to_py)
    }

    #[setter]
    fn set_alpha(&self, py: Python<'_>, alpha: f64) -> PyResult<()> {
        py.detach(|| self.core.set_alpha(alpha)).map_err(to_py)
    }

    /// The exponent of importance weights.
    #[getter]
    fn beta(&self, py: Python<'_>) -> PyResult<f64> {
        py.detach(|| self.core.exponents()).map(|(_, beta)| beta).map_err(to_py)
    }

    #[setter]
    fn set_beta(&self, py: Python<'_>, beta: f64) -> PyResult<()> {
        py.detach(|| self.core.set_beta(beta)).map_err(to_py)
    }

    /// How many changes were ignored because their row had left the window.
    #[getter]
    fn ignored(&self, py: Python<'_>) -> PyResult<u64> {
        py.detach(|| self.core.ignored()).map_err(to_py)
    }

    /// Add rows up to `length`, with the largest priority so far.
    fn extend(&self, py: Python<'_>, length: u64) -> PyResult<()> {
        py.detach(|| self.core.extend(length)).map_err(to_py)
    }

    /// Add those of some rows, in increasing order, that are not there, with the largest priority
    /// so far; return how many.
    fn insert(&self, py: Python<'_>, rows: PyReadonlyArray1<'_, i64>) -> PyResult<usize> {
        let rows: Vec<i64> = rows.as_array().iter().copied().collect();
        py.detach(|| self.core.insert(&rows)).map_err(to_py)
    }

    /// Remove the rows before `below`.
    fn evict(&self, py: Python<'_>, below: u64) -> PyResult<()> {
        py.detach(|| self.core.evict(below)).map_err(to_py)
    }

    /// Remove rows, wherever they are. Others that are not there are skipped.
    fn remove(&self, py: Python<'_>, rows: PyReadonlyArray1<'_, i64>) -> PyResult<()> {
        let rows: Vec<i64> = rows.as_array().iter().copied().collect();
        py.detach(|| self.core.remove(&rows)).map_err(to_py)
    }

    /// Set the priorities of rows. Rows that have left the window are ignored and counted.
    fn update(
        &self,
        py: Python<'_>,
        rows: PyReadonlyArray1<'_, i64>,
        priorities: PyReadonlyArray1<'_, f64>,
    ) -> PyResult<()> {
        let rows: Vec<i64> = rows.as_array().iter().copied().collect();
        let priorities: Vec<f64> = priorities.as_array().iter().copied().collect();
        py.detach(|| self.core.update(&rows, &priorities)).map_err(to_py)
    }

    /// Return the rows and importance weights of the batch at a position of the stream of
    /// `seed`; None if the rows to draw from are not those of `window`.
    #[pyo3(signature = (seed, position, samples, window=None))]
    fn draw<'py>(
        &self,
        py: Python<'py>,
        seed: u64,
        position: u64,
        samples: usize,
        window: Option<(u64, u64)>,
    ) -> PyResult<Option<Drawn<'py>>> {
        let window = window.map(|(first, end)| first..end);
        let drawn = py.detach(|| self.core.draw(seed, position, samples, window)).map_err(to_py)?;
        Ok(drawn.map(|drawn| {
            (PyArray1::from_vec(py, drawn.rows), PyArray1::from_vec(py, drawn.weights))
        }))
    }

    /// Return all that later draws depend on: first row, number of leaves, alpha, beta, largest
    /// priority so far, ignored changes, and the priority of each row.
    fn save<'py>(&self, py: Python<'py>) -> PyResult<State<'py>> {
        let saved = py.detach(|| self.core.save()).map_err(to_py)?;
        let Saved { first, capacity, alpha, beta, largest, ignored, priorities } = saved;
        let priorities = PyArray1::from_vec(py, priorities);
        Ok((first, capacity, alpha, beta, largest, ignored, priorities))
    }

    /// Continue from what `save` returned.
    #[allow(clippy::too_many_arguments)]
    fn restore(
        &self,
        py: Python<'_>,
        first: u64,
        capacity: usize,
        alpha: f64,
        beta: f64,
        largest: f64,
        ignored: u64,
        priorities: PyReadonlyArray1<'_, f64>,
    ) -> PyResult<()> {
        let priorities = priorities.as_array().iter().copied().collect();
        let saved = Saved { first, capacity, alpha, beta, largest, ignored, priorities };
        py.detach(|| self.core.restore(&saved)).map_err(to_py)
    }
}
