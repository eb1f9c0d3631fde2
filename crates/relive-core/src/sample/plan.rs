//! The plan of a sampler, and the rows at any position of its stream.

use std::ops::Range;
use std::sync::Arc;

use super::Step;
use super::blocks::{BlockOrder, Blocks};
use super::partitions::Partitions;
use crate::error::{Error, Result};
use crate::permute::{Permutation, derive, mix};

/// The most rows of a source; leaves room for epochs in a 64-bit position.
pub const MAX_LENGTH: u64 = 1 << 48;

/// The most rows of a step: those of the largest batch size and world size.
const MAX_STEP: u64 = 1 << 56;

/// The most partitions: as many as ranks.
const MAX_PARTITIONS: u64 = 1 << 24;

/// Default rows per block in [`Mode::Block`].
pub const DEFAULT_BLOCK: u64 = 128;

/// Default number of blocks that are shuffled together in [`Mode::Block`].
pub const DEFAULT_BLOCKS_PER_WINDOW: u64 = 512;

/// Default number of given blocks that are shuffled together: they are large, such as row groups.
pub const DEFAULT_GIVEN_BLOCKS_PER_WINDOW: u64 = 16;

/// The order in which rows are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A new permutation of all rows in each epoch.
    Shuffle,
    /// Independent draws, with replacement.
    Random,
    /// Rows in order, repeated.
    Sequential,
    /// Blocks in shuffled order, with rows shuffled inside a window of blocks.
    Block,
}

impl Mode {
    /// All modes by name.
    pub const NAMES: [(&'static str, Self); 4] = [
        ("shuffle", Self::Shuffle),
        ("random", Self::Random),
        ("sequential", Self::Sequential),
        ("block", Self::Block),
    ];
}

/// What happens if an epoch does not fill its last batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// The batch continues with the next epoch.
    Wrap,
    /// The rest of the epoch is dropped.
    Drop,
    /// The batch is filled with rows from the start of the same epoch.
    Pad,
    /// The batch is short.
    Keep,
    /// The plan is refused.
    Error,
}

impl Tail {
    /// All tails by name.
    pub const NAMES: [(&'static str, Self); 5] = [
        ("wrap", Self::Wrap),
        ("drop", Self::Drop),
        ("pad", Self::Pad),
        ("keep", Self::Keep),
        ("error", Self::Error),
    ];
}

/// All parameters of the stream of one rank.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Rows of the source.
    pub length: u64,
    /// Samples per batch and rank.
    pub batch_size: u64,
    /// The order of the rows.
    pub mode: Mode,
    /// What happens at the end of an epoch.
    pub tail: Tail,
    /// The seed of the order; equal seeds give equal streams.
    pub seed: u64,
    /// Rows per sample, or rows shuffled together in [`Mode::Block`].
    pub window: Option<u64>,
    /// Rows between the starts of samples, or rows per block in [`Mode::Block`].
    pub stride: Option<u64>,
    /// This rank.
    pub rank: u64,
    /// The number of ranks that share the stream.
    pub world_size: u64,
    /// The number of epochs; endless if `None`.
    pub epochs: Option<u64>,
    /// The blocks of [`Mode::Block`]; equal ones of `stride` rows if `None`.
    pub blocks: Option<Arc<Blocks>>,
    /// The number of partitions in [`Mode::Block`], each of which has a share of every step.
    pub partitions: u64,
    /// Rows of a step of all ranks when the stream began, which determine the partitions;
    /// [`span`](Self::span) if `None`.
    pub rows_per_step: Option<u64>,
}

impl Plan {
    pub(super) fn check(&self) -> Result<()> {
        let invalid = |text: String| Err(Error::Invalid(text));
        if self.length == 0 {
            return invalid("cannot sample an empty source".into());
        }
        if self.length > MAX_LENGTH {
            return invalid(format!(
                "a source of {} rows exceeds the limit of {MAX_LENGTH} rows",
                self.length
            ));
        }
        if self.batch_size == 0 || self.batch_size > u64::from(u32::MAX) {
            return invalid(format!(
                "`batch_size` must be from 1 to {}, got {}",
                u32::MAX,
                self.batch_size
            ));
        }
        if self.world_size == 0 || self.world_size > 1 << 24 {
            return invalid(format!(
                "`world_size` must be from 1 to {}, got {}",
                1 << 24,
                self.world_size
            ));
        }
        if self.rank >= self.world_size {
            return invalid(format!(
                "`rank` must be less than `world_size`, got rank {} and world_size {}",
                self.rank, self.world_size
            ));
        }
        if self.window == Some(0) || self.stride == Some(0) {
            return invalid("`window` and `stride` must be at least 1".into());
        }
        if self.mode == Mode::Block {
            self.check_blocks()?;
        } else {
            if self.blocks.is_some() || self.partitions != 1 {
                return invalid("`blocks` and `partitions` require mode=\"block\"".into());
            }
            if self.stride.is_some() && self.window.is_none() {
                return invalid("`stride` requires `window`".into());
            }
            if self.window.is_some_and(|window| window > self.length) {
                return invalid(format!(
                    "`window` is {}, but the source has only {} rows",
                    self.window.unwrap_or_default(),
                    self.length
                ));
            }
        }
        let longest = (1 << 62) / self.samples_per_epoch();
        if self.epochs == Some(0) || self.epochs.is_some_and(|epochs| epochs > longest) {
            return invalid(format!(
                "`epochs` must be None or from 1 to {longest}, got {}",
                self.epochs.unwrap_or_default()
            ));
        }
        if self.tail == Tail::Drop && self.span() > self.samples_per_epoch() {
            return invalid(format!(
                "the sampler has no batches: an epoch has {} samples, fewer than `batch_size` × `world_size` = \
                 {}, and tail=\"drop\" drops incomplete batches",
                self.samples_per_epoch(),
                self.span()
            ));
        }
        if self.tail == Tail::Error && !self.samples_per_epoch().is_multiple_of(self.span()) {
            return invalid(format!(
                "the last step of an epoch is not full: {} samples are not a multiple of \
                 `batch_size` × `world_size` = {}, and tail=\"error\" does not allow it",
                self.samples_per_epoch(),
                self.span()
            ));
        }
        Ok(())
    }

    fn check_blocks(&self) -> Result<()> {
        let invalid = |text: String| Err(Error::Invalid(text));
        if let Some(blocks) = &self.blocks {
            if blocks.rows() != self.length {
                return invalid(format!(
                    "`blocks` must end with the number of rows, {}, got {}",
                    self.length,
                    blocks.rows()
                ));
            }
            if self.stride.is_some() {
                return invalid("pass `blocks` or `stride`, not both".into());
            }
        }
        let rows = self.rows_per_step();
        if rows == 0 || rows > MAX_STEP {
            return invalid(format!("`rows_per_step` must be from 1 to {MAX_STEP}, got {rows}"));
        }
        // More partitions than rows of a step are allowed, since a run may continue with smaller
        // steps; some of them have no rows.
        if self.partitions == 0 || self.partitions > MAX_PARTITIONS {
            return invalid(format!(
                "`partitions` must be from 1 to {MAX_PARTITIONS}, got {}",
                self.partitions
            ));
        }
        let is_dealt = self.blocks.is_some() || self.partitions > 1;
        if is_dealt && self.tail == Tail::Keep && self.length < self.world_size {
            return invalid(format!(
                "some ranks would have no rows: the source has {} and `world_size` is {}",
                self.length, self.world_size
            ));
        }
        Ok(())
    }

    /// Returns the number of samples of all ranks in one step.
    pub fn span(&self) -> u64 {
        self.batch_size * self.world_size
    }

    /// Returns the number of samples in one epoch: rows, or starts of windows.
    pub fn samples_per_epoch(&self) -> u64 {
        match (self.mode, self.window) {
            (Mode::Block, _) | (_, None) => self.length,
            (_, Some(_)) => self.length.div_ceil(self.stride.unwrap_or(1)),
        }
    }

    /// Returns the most samples of a step for this rank.
    pub fn max_samples(&self) -> u64 {
        match (self.tail, self.epochs) {
            (Tail::Pad, _) | (Tail::Wrap, None) => self.batch_size,
            (Tail::Wrap, Some(epochs)) => self.batch_size.min(epochs * self.samples_per_epoch()),
            (Tail::Keep | Tail::Drop | Tail::Error, _) => {
                self.batch_size.min(self.samples_per_epoch())
            }
        }
    }

    /// Returns the number of steps of an epoch; with `wrap` that of the first epoch.
    pub fn steps_per_epoch(&self) -> u64 {
        match self.tail {
            Tail::Drop => self.samples_per_epoch() / self.span(),
            _ => self.samples_per_epoch().div_ceil(self.span()),
        }
    }

    /// Returns the number of steps of the stream, if it ends.
    pub fn total_steps(&self) -> Option<u64> {
        let epochs = self.epochs?;
        Some(match self.tail {
            Tail::Wrap => (epochs * self.samples_per_epoch()).div_ceil(self.span()),
            _ => epochs * self.steps_per_epoch(),
        })
    }

    /// Returns the rows per sample in the index arrays; `None` if a sample is one row.
    pub fn rows_per_sample(&self) -> Option<u64> {
        self.window.filter(|_| self.mode != Mode::Block)
    }

    /// Appends the rows of some samples of a step, [`rows_per_sample`](Self::rows_per_sample)
    /// for each. Threads can compute any samples of any step independently.
    pub fn rows(&self, step: &Step, samples: Range<usize>, rows: &mut Vec<i64>) {
        self.each_range(step, samples, |epoch, offsets| self.fill(epoch, offsets, rows));
    }

    /// Calls `each` with an epoch and a range of its samples, for consecutive samples of a step.
    pub(super) fn each_range(
        &self,
        step: &Step,
        samples: Range<usize>,
        mut each: impl FnMut(u64, Range<u64>),
    ) {
        let per_epoch = self.samples_per_epoch();
        let mut between = |mut position: u64, end: u64| {
            while position < end {
                let epoch = position / per_epoch;
                let start = epoch * per_epoch;
                let stop = end.min(start + per_epoch);
                each(epoch, position - start..stop - start);
                position = stop;
            }
        };
        let real = step.samples - step.padded;
        let position = |k: usize| step.first + k as u64;
        between(position(samples.start.min(real)), position(samples.end.min(real)));
        // Repeats begin at the start of the epoch, and again after its end.
        let repeat = |k: usize| step.pad_from + (k.max(real) - real) as u64;
        let (mut from, to) = (repeat(samples.start), repeat(samples.end));
        while from < to {
            let offset = from % per_epoch;
            let count = (to - from).min(per_epoch - offset);
            between(step.epoch_start + offset, step.epoch_start + offset + count);
            from += count;
        }
    }

    /// Appends the rows of these samples of an epoch.
    fn fill(&self, epoch: u64, offsets: Range<u64>, rows: &mut Vec<i64>) {
        let samples = self.samples_per_epoch();
        let start = epoch * samples;
        let positions = start + offsets.start..start + offsets.end;
        match (self.mode, self.rows_per_sample()) {
            (Mode::Shuffle, None) => self.order(epoch).extend(offsets, rows),
            (Mode::Random, None) => {
                let key = self.random_key();
                rows.extend(positions.map(|p| random_below(key, p, samples) as i64));
            }
            (Mode::Sequential, None) => rows.extend(offsets.map(|offset| offset as i64)),
            (Mode::Block, _) => BlockOrder::new(self, epoch).extend(offsets, rows),
            (_, Some(window)) => self.fill_windows(epoch, positions, window, rows),
        }
    }

    fn fill_windows(&self, epoch: u64, positions: Range<u64>, window: u64, rows: &mut Vec<i64>) {
        let (samples, stride) = (self.samples_per_epoch(), self.stride.unwrap_or(1));
        let order = self.order(epoch);
        let key = self.random_key();
        for position in positions {
            let start = match self.mode {
                Mode::Random => random_below(key, position, samples) * stride,
                // Starts stay `stride` apart across epochs.
                Mode::Sequential => {
                    let start = u128::from(position) * u128::from(stride);
                    (start % u128::from(self.length)) as u64
                }
                _ => order.apply(position - epoch * samples) * stride,
            };
            rows.extend((start..start + window).map(|row| (row % self.length) as i64));
        }
    }

    /// Returns the number of the window of a position in [`Mode::Block`], counted over all epochs;
    /// `None` if there are several partitions, whose windows overlap.
    pub fn window_at(&self, position: u64) -> Option<u64> {
        let window = self.window_len();
        let (epoch, offset) = (position / self.length, position % self.length);
        let number = || epoch * self.length.div_ceil(window) + offset / window;
        (self.mode == Mode::Block && self.partitions == 1).then(number)
    }

    /// Returns the number of rows that [`Mode::Block`] shuffles together in a partition.
    pub fn window_len(&self) -> u64 {
        let usual = match &self.blocks {
            None => self.block_rows().saturating_mul(DEFAULT_BLOCKS_PER_WINDOW),
            Some(blocks) => {
                let mean = self.length.div_ceil(blocks.count());
                mean.saturating_mul(DEFAULT_GIVEN_BLOCKS_PER_WINDOW)
            }
        };
        self.window.unwrap_or(usual).min(self.length)
    }

    /// Appends all rows of a window of [`Mode::Block`], block after block.
    pub fn window_rows(&self, number: u64, rows: &mut Vec<i64>) {
        let window = self.window_len();
        let per_epoch = self.length.div_ceil(window);
        let start = number % per_epoch * window;
        let end = self.length.min(start + window);
        BlockOrder::new(self, number / per_epoch).rows_at(start..end, rows);
    }

    /// Returns the rows of a step of all ranks when the stream began.
    pub fn rows_per_step(&self) -> u64 {
        self.rows_per_step.unwrap_or_else(|| self.span())
    }

    /// Returns how an epoch of [`Mode::Block`] is dealt to partitions.
    pub(super) fn partitions_of(&self, epoch: u64) -> Partitions {
        let rows_per_step = self.rows_per_step();
        Partitions {
            length: self.length,
            count: self.partitions,
            rows_per_step,
            // Only with `wrap` do steps go on in the next epoch.
            shared_step: (self.tail == Tail::Wrap).then(|| epoch * self.length % rows_per_step),
        }
    }

    /// Returns the number of the block of a row in [`Mode::Block`].
    pub(super) fn block_of(&self, row: u64) -> u64 {
        match &self.blocks {
            None => row / self.block_rows(),
            Some(blocks) => blocks.block_of(row),
        }
    }

    /// Returns the order of samples in an epoch.
    fn order(&self, epoch: u64) -> Permutation {
        Permutation::new(self.samples_per_epoch(), self.epoch_key(epoch))
    }

    /// Returns the rows of an equal block in [`Mode::Block`].
    pub(super) fn block_rows(&self) -> u64 {
        self.stride.unwrap_or(DEFAULT_BLOCK).min(self.length)
    }

    pub(super) fn epoch_key(&self, epoch: u64) -> u64 {
        derive(self.seed, epoch)
    }

    fn random_key(&self) -> u64 {
        derive(self.seed, 1 << 63)
    }
}

/// Returns an empty vector with room for `rows` rows; `TooLarge` if there is not enough memory.
pub fn reserved(rows: usize) -> Result<Vec<i64>> {
    let mut numbers = Vec::new();
    numbers
        .try_reserve_exact(rows)
        .map_err(|_| Error::TooLarge(format!("not enough memory for a batch of {rows} rows")))?;
    Ok(numbers)
}

/// Returns a uniform number below `size` that depends only on key and position.
fn random_below(key: u64, position: u64, size: u64) -> u64 {
    let draw = mix(key.wrapping_add(mix(position)));
    ((u128::from(draw) * u128::from(size)) >> 64) as u64
}
