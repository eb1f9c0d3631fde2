//! `Sampler`: the index generators of the core.

use std::sync::Arc;

use numpy::{PyArray1, PyArrayDyn, PyArrayMethods, PyReadonlyArray1};
use pyo3::prelude::*;
use relive_core::Error;
use relive_core::sample::{Blocks, Cursor, Mode, Plan, Sampler as CoreSampler, Tail, reserved};

use crate::errors::{choice, to_py};

/// Rows, how many samples at the end are padding, and the position of the first sample.
type Drawn<'py> = (Bound<'py, PyArrayDyn<i64>>, usize, u64);

/// Blocks, and the positions from which and until which each is needed.
type Ahead<'py> = (Bound<'py, PyArray1<i64>>, Bound<'py, PyArray1<i64>>, Bound<'py, PyArray1<i64>>);

/// Draws batches of row numbers; `relive.Sampler` wraps it.
#[pyclass(module = "relive._native")]
pub struct Sampler {
    pub core: CoreSampler,
}

#[pymethods]
impl Sampler {
    #[new]
    #[pyo3(signature = (
        length, batch_size, mode, *, seed, window, stride, rank, world_size, tail, epochs,
        blocks=None, partitions=1, rows_per_step=None
    ))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        length: u64,
        batch_size: u64,
        mode: &str,
        seed: u64,
        window: Option<u64>,
        stride: Option<u64>,
        rank: u64,
        world_size: u64,
        tail: &str,
        epochs: Option<u64>,
        blocks: Option<PyReadonlyArray1<'_, i64>>,
        partitions: u64,
        rows_per_step: Option<u64>,
    ) -> PyResult<Self> {
        let plan = Plan {
            length,
            batch_size,
            mode: choice("mode", mode, &Mode::NAMES)?,
            tail: choice("tail", tail, &Tail::NAMES)?,
            seed,
            window,
            stride,
            rank,
            world_size,
            epochs,
            blocks: blocks.map(to_blocks).transpose()?,
            partitions,
            rows_per_step,
        };
        let core = CoreSampler::new(plan).map_err(to_py)?;
        Ok(Self { core })
    }

    /// Return the rows of the next batch, how many of its samples are padding, and the global
    /// position of its first sample; None at the end.
    fn draw<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Drawn<'py>>> {
        let Some(step) = self.core.step() else { return Ok(None) };
        let plan = self.core.plan();
        let window = plan.rows_per_sample().unwrap_or(1) as usize;
        let mut rows = reserved(step.samples.saturating_mul(window)).map_err(to_py)?;
        plan.rows(&step, 0..step.samples, &mut rows);
        let rows = PyArray1::from_vec(py, rows);
        let rows = match plan.rows_per_sample() {
            Some(window) => rows.reshape([step.samples, window as usize])?.to_dyn().clone(),
            None => rows.to_dyn().clone(),
        };
        Ok(Some((rows, step.padded, step.first)))
    }

    /// Move to the position after `steps` steps from the start.
    fn seek(&mut self, steps: u64) -> PyResult<()> {
        self.core.seek(steps).map_err(to_py)
    }

    /// Position, samples dropped and samples repeated so far.
    #[getter]
    fn cursor(&self) -> (u64, u64, u64) {
        let Cursor { position, omitted, repeated } = self.core.cursor();
        (position, omitted, repeated)
    }

    #[setter]
    fn set_cursor(&mut self, cursor: (u64, u64, u64)) -> PyResult<()> {
        let (position, omitted, repeated) = cursor;
        self.core.resume(Cursor { position, omitted, repeated }).map_err(to_py)
    }

    /// Return the blocks that this rank needs in the next `steps` steps, in the order of first use,
    /// and two positions for each: the start of the first step that may need it, and the one from
    /// which on steps do not need it until it is listed again.
    fn blocks_ahead<'py>(&self, py: Python<'py>, steps: u64) -> PyResult<Ahead<'py>> {
        let uses = py.detach(|| self.core.blocks_ahead(steps)).map_err(to_py)?;
        let array = |values: Vec<i64>| PyArray1::from_vec(py, values);
        Ok((
            array(uses.iter().map(|used| used.block as i64).collect()),
            array(uses.iter().map(|used| used.first as i64).collect()),
            array(uses.iter().map(|used| used.until as i64).collect()),
        ))
    }

    /// Advance by one step without computing its rows; False at the end.
    fn skip(&mut self) -> bool {
        self.core.step().is_some()
    }

    /// Return the windows of the samples of the next step, in their order, as epoch, partition,
    /// number of the window in the partition and number of samples; none at the end.
    fn windows(&self) -> PyResult<Vec<(u64, u64, u64, u64)>> {
        let windows = self.core.windows().map_err(to_py)?;
        Ok(windows.iter().map(|w| (w.epoch, w.partition, w.window, w.samples)).collect())
    }

    /// Return the blocks that have rows of a window, in their shuffled order.
    fn window_blocks<'py>(
        &self,
        py: Python<'py>,
        epoch: u64,
        partition: u64,
        window: u64,
    ) -> PyResult<Bound<'py, PyArray1<i64>>> {
        let blocks = self.core.window_blocks(epoch, partition, window).map_err(to_py)?;
        Ok(PyArray1::from_vec(py, blocks.into_iter().map(|block| block as i64).collect()))
    }

    /// Rows of a step of all ranks when the stream began.
    #[getter]
    fn rows_per_step(&self) -> u64 {
        self.core.plan().rows_per_step()
    }

    /// Rows that are shuffled together in mode "block", in each partition.
    #[getter]
    fn window(&self) -> u64 {
        self.core.plan().window_len()
    }

    /// Samples that all ranks together draw in an epoch.
    #[getter]
    fn samples_per_epoch(&self) -> u64 {
        self.core.plan().samples_per_epoch()
    }

    /// Steps of one epoch.
    #[getter]
    fn steps_per_epoch(&self) -> u64 {
        self.core.plan().steps_per_epoch()
    }

    /// Steps from start to end; None if there is no end.
    #[getter]
    fn total_steps(&self) -> Option<u64> {
        self.core.plan().total_steps()
    }

    /// Return an independent sampler at the same position.
    fn copy(&self) -> Self {
        Self { core: self.core.clone() }
    }
}

fn to_blocks(bounds: PyReadonlyArray1<'_, i64>) -> PyResult<Arc<Blocks>> {
    let bounds: Result<Vec<u64>, _> =
        bounds.as_array().iter().map(|&row| u64::try_from(row)).collect();
    let bounds = bounds
        .map_err(|_| to_py(Error::Invalid("`blocks` must not have negative numbers".into())))?;
    Blocks::new(bounds).map(Arc::new).map_err(to_py)
}
