//! Prioritised draws: priorities that a learner changes while other threads draw.
//!
//! A batch has one draw in each of as many equal parts of the sum as it has samples, as in
//! "Prioritized Experience Replay" (Schaul et al., 2015). Draws depend on the seed, the position
//! and the tree, and on nothing else.

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::fork::OwnerProcess;
use crate::permute::derive;
use crate::sample::reserved;
use crate::sumtree::{SumTree, check_exponent};

/// The priority of the first rows.
const FIRST_PRIORITY: f64 = 1.0;

/// What makes the draws of this module different from those of other samplers with the same seed.
const STREAM: u64 = (1 << 63) + 1;

/// The samples of a batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Drawn {
    /// The row of each sample.
    pub rows: Vec<i64>,
    /// The importance weight of each sample.
    pub weights: Vec<f32>,
}

/// All that later draws depend on, apart from seed and position.
#[derive(Clone, Debug, PartialEq)]
pub struct Saved {
    /// The first row of the window.
    pub first: u64,
    /// The number of leaves of the tree.
    pub capacity: usize,
    /// The exponent of priorities.
    pub alpha: f64,
    /// The exponent of importance weights.
    pub beta: f64,
    /// The largest priority so far.
    pub largest: f64,
    /// How many changes were ignored because their row had left the window.
    pub ignored: u64,
    /// The priority of each row of the window.
    pub priorities: Vec<f64>,
}

/// The priorities of the rows of a source, shared by threads. Each call has the lock once.
#[derive(Debug)]
pub struct Priorities {
    state: Mutex<State>,
    owner: OwnerProcess,
}

#[derive(Debug)]
struct State {
    tree: SumTree,
    beta: f64,
    largest: f64,
    ignored: u64,
}

impl State {
    fn restored(saved: &Saved) -> Result<Self> {
        let Saved { first, capacity, alpha, beta, largest, ignored, ref priorities } = *saved;
        check_exponent("beta", beta)?;
        if !(largest > 0.0 && largest.is_finite()) {
            return Err(Error::Invalid(format!(
                "the largest priority must be finite and greater than 0, got {largest}"
            )));
        }
        let tree = SumTree::with(alpha, first, capacity, priorities)?;
        Ok(Self { tree, beta, largest, ignored })
    }
}

impl Priorities {
    /// Gives each of `length` rows the same priority.
    pub fn new(length: u64, alpha: f64, beta: f64) -> Result<Self> {
        check_exponent("beta", beta)?;
        let mut tree = SumTree::new(alpha)?;
        tree.extend(length, FIRST_PRIORITY)?;
        let state = State { tree, beta, largest: FIRST_PRIORITY, ignored: 0 };
        Ok(Self { state: Mutex::new(state), owner: OwnerProcess::current() })
    }

    /// Returns the rows.
    pub fn window(&self) -> Result<Range<u64>> {
        Ok(self.lock()?.tree.window())
    }

    /// Returns the exponents of priorities and of importance weights.
    pub fn exponents(&self) -> Result<(f64, f64)> {
        let state = self.lock()?;
        Ok((state.tree.alpha(), state.beta))
    }

    /// Returns how many changes were ignored because their row had left the window.
    pub fn ignored(&self) -> Result<u64> {
        Ok(self.lock()?.ignored)
    }

    /// Changes the exponent of priorities, and with it the weight of every row.
    pub fn set_alpha(&self, alpha: f64) -> Result<()> {
        self.lock()?.tree.set_alpha(alpha)
    }

    /// Changes the exponent of importance weights.
    pub fn set_beta(&self, beta: f64) -> Result<()> {
        check_exponent("beta", beta)?;
        self.lock()?.beta = beta;
        Ok(())
    }

    /// Adds rows up to `length` with the largest priority so far.
    pub fn extend(&self, length: u64) -> Result<()> {
        let mut state = self.lock()?;
        let largest = state.largest;
        state.tree.extend(length, largest)
    }

    /// Adds those of some rows, in increasing order, that are not there, with the largest priority
    /// so far, and returns how many.
    pub fn insert(&self, rows: &[i64]) -> Result<usize> {
        let mut state = self.lock()?;
        let largest = state.largest;
        state.tree.insert(rows, largest)
    }

    /// Removes the rows before `below`.
    pub fn evict(&self, below: u64) -> Result<()> {
        self.lock()?.tree.evict(below)
    }

    /// Removes rows, wherever they are. Others that are not there are skipped.
    pub fn remove(&self, rows: &[i64]) -> Result<()> {
        self.lock()?.tree.remove(rows)
    }

    /// Sets the priorities of rows, all at once for those who draw. Rows that have left the window
    /// are ignored and counted. An error changes nothing.
    pub fn update(&self, rows: &[i64], priorities: &[f64]) -> Result<()> {
        let mut state = self.lock()?;
        let ignored = state.tree.update(rows, priorities)?;
        state.ignored += ignored;
        state.largest = priorities.iter().copied().fold(state.largest, f64::max);
        Ok(())
    }

    /// Draws the batch at a position of the stream of `seed`; `None` if the rows are no longer
    /// those of `window`.
    ///
    /// The importance weight of a row with probability `P` among `N` rows is `(N P)^-beta`, divided
    /// by the largest one of all rows.
    pub fn draw(
        &self,
        seed: u64,
        position: u64,
        samples: usize,
        window: Option<Range<u64>>,
    ) -> Result<Option<Drawn>> {
        let mut rows = reserved(samples)?;
        let mut positions = vec![0.0; samples];
        let mut weights = Vec::with_capacity(samples);
        let key = derive(seed, STREAM);
        let state = self.lock()?;
        let tree = &state.tree;
        if window.is_some_and(|expected| expected != tree.window()) {
            return Ok(None);
        }
        if tree.total() <= 0.0 {
            return Err(Error::Invalid("cannot draw a batch: there are no rows".into()));
        }
        let (total, least) = (tree.total(), tree.least());
        for (sample, at) in positions.iter_mut().enumerate() {
            let uniform = (derive(key, position + sample as u64) >> 11) as f64 * UNIT;
            *at = (sample as f64 + uniform) / samples as f64 * total;
        }
        tree.find(&mut positions, |row| {
            rows.push(row as i64);
            weights.push((least / tree.weight(row)).powf(state.beta) as f32);
        });
        Ok(Some(Drawn { rows, weights }))
    }

    /// Returns all that later draws depend on.
    pub fn save(&self) -> Result<Saved> {
        let state = self.lock()?;
        Ok(Saved {
            first: state.tree.window().start,
            capacity: state.tree.capacity(),
            alpha: state.tree.alpha(),
            beta: state.beta,
            largest: state.largest,
            ignored: state.ignored,
            priorities: state.tree.priorities()?,
        })
    }

    /// Continues from what was saved. An error changes nothing.
    pub fn restore(&self, saved: &Saved) -> Result<()> {
        let restored = State::restored(saved)?;
        *self.lock()? = restored;
        Ok(())
    }

    fn lock(&self) -> Result<MutexGuard<'_, State>> {
        self.owner.check("the sampler")?;
        Ok(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The distance of two neighbouring random numbers below 1.
const UNIT: f64 = 1.0 / (1_u64 << 53) as f64;
