//! Seeded index generators: which rows, in which order, for which rank.
//!
//! A sampler is a pure function of a plan and one number, the global sample
//! position, so it costs the same at any length, can start anywhere, and every
//! rank can tell what the others draw without asking them.

use crate::error::{Error, Result};
use crate::permute::{Permutation, derive, mix};

/// Longest source a sampler takes; leaves room for epochs in a 64-bit position.
pub const MAX_LENGTH: u64 = 1 << 48;

/// Rows per block in [`Mode::Block`] when the user did not say.
pub const DEFAULT_BLOCK: u64 = 1024;

/// Blocks shuffled together in [`Mode::Block`] when the user did not say.
pub const DEFAULT_BLOCKS_PER_WINDOW: u64 = 64;

/// The order in which rows are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A fresh permutation of all rows in each epoch.
    Shuffle,
    /// Independent draws, with replacement.
    Random,
    /// Rows in order, round and round.
    Sequential,
    /// Blocks in shuffled order, rows shuffled inside a window of blocks.
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

/// What happens where an epoch does not fill its last batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// The batch goes on into the next epoch.
    Wrap,
    /// The rest of the epoch is left out.
    Drop,
    /// The batch is filled with rows from the start of the same epoch.
    Pad,
    /// The batch is short.
    Keep,
}

impl Tail {
    /// All tails by name.
    pub const NAMES: [(&'static str, Self); 4] =
        [("wrap", Self::Wrap), ("drop", Self::Drop), ("pad", Self::Pad), ("keep", Self::Keep)];
}

/// Everything that determines the stream of one rank.
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
    /// Chooses the order; equal seeds give equal streams.
    pub seed: u64,
    /// Rows per sample, or rows shuffled together in [`Mode::Block`].
    pub window: Option<u64>,
    /// Rows between the starts of samples, or rows per block in [`Mode::Block`].
    pub stride: Option<u64>,
    /// This rank.
    pub rank: u64,
    /// How many ranks share the stream.
    pub world_size: u64,
    /// The stream ends after so many epochs; endless when absent.
    pub epochs: Option<u64>,
}

impl Plan {
    fn check(&self) -> Result<()> {
        let invalid = |text: String| Err(Error::Invalid(text));
        if self.length == 0 {
            return invalid("the source is empty: there is nothing to sample".into());
        }
        if self.length > MAX_LENGTH {
            return invalid(format!("length {} is above {MAX_LENGTH}", self.length));
        }
        if self.batch_size == 0 || self.batch_size > u64::from(u32::MAX) {
            return invalid(format!(
                "batch_size must be from 1 to {}, not {}",
                u32::MAX,
                self.batch_size
            ));
        }
        if self.world_size == 0 || self.world_size > 1 << 24 {
            return invalid(format!("world_size cannot be {}", self.world_size));
        }
        if self.rank >= self.world_size {
            return invalid(format!(
                "rank {} is outside of a world of {}",
                self.rank, self.world_size
            ));
        }
        if self.window == Some(0) || self.stride == Some(0) {
            return invalid("window and stride must be at least 1".into());
        }
        if self.mode != Mode::Block {
            if self.stride.is_some() && self.window.is_none() {
                return invalid("stride needs a window".into());
            }
            if self.window.is_some_and(|window| window > self.length) {
                return invalid(format!(
                    "a window of {} rows does not fit in a source of {}",
                    self.window.unwrap_or_default(),
                    self.length
                ));
            }
        }
        if self.epochs == Some(0) || self.epochs.is_some_and(|epochs| epochs > 1 << 14) {
            return invalid(format!(
                "epochs must be from 1 to {}, or none for an endless stream",
                1 << 14
            ));
        }
        if self.tail == Tail::Drop && self.span() > self.samples_per_epoch() {
            return invalid(format!(
                "no batch can ever come: {} samples per epoch are fewer than batch_size × \
                 world_size = {} and tail=\"drop\" leaves short batches out",
                self.samples_per_epoch(),
                self.span()
            ));
        }
        Ok(())
    }

    /// Samples that all ranks together draw in one step.
    pub fn span(&self) -> u64 {
        self.batch_size * self.world_size
    }

    /// Samples in one epoch: rows, or starts of windows.
    pub fn samples_per_epoch(&self) -> u64 {
        match (self.mode, self.window) {
            (Mode::Block, _) | (_, None) => self.length,
            (_, Some(_)) => self.length.div_ceil(self.stride.unwrap_or(1)),
        }
    }

    /// Steps that one epoch takes; under `wrap` the count for the first epoch.
    pub fn steps_per_epoch(&self) -> u64 {
        match self.tail {
            Tail::Drop => self.samples_per_epoch() / self.span(),
            _ => self.samples_per_epoch().div_ceil(self.span()),
        }
    }

    /// Steps until the stream ends, if it does.
    pub fn total_steps(&self) -> Option<u64> {
        let epochs = self.epochs?;
        Some(match self.tail {
            Tail::Wrap => (epochs * self.samples_per_epoch()).div_ceil(self.span()),
            _ => epochs * self.steps_per_epoch(),
        })
    }

    /// Rows per sample in the index arrays; absent when a sample is one row.
    pub fn rows_per_sample(&self) -> Option<u64> {
        self.window.filter(|_| self.mode != Mode::Block)
    }
}

/// The indices of one batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Draw {
    /// Row numbers; `rows_per_sample` of them for each sample.
    pub rows: Vec<i64>,
    /// How many samples this rank has in this step.
    pub samples: usize,
    /// How many samples at the end repeat others to fill the batch.
    pub padded: usize,
    /// Global position of this rank's first sample.
    pub first: u64,
    /// The state after this step.
    pub after: Cursor,
}

/// Where a stream stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Samples of the global order that are behind us.
    pub position: u64,
    /// Samples left out so far, over all ranks.
    pub omitted: u64,
    /// Samples repeated to fill batches so far, over all ranks.
    pub repeated: u64,
}

/// An iterator over the batches of one rank.
#[derive(Clone, Debug)]
pub struct Sampler {
    plan: Plan,
    cursor: Cursor,
    order: Order,
}

impl Sampler {
    /// Checks the plan and stands at its beginning.
    pub fn new(plan: Plan) -> Result<Self> {
        plan.check()?;
        let order = Order::new(&plan);
        Ok(Self { plan, cursor: Cursor::default(), order })
    }

    /// What this sampler was made from.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Where it stands.
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// Continues from a state that this or an equal plan was in.
    pub fn set_cursor(&mut self, cursor: Cursor) {
        self.cursor = cursor;
    }

    /// Stands where `steps` steps from the beginning lead.
    pub fn seek(&mut self, steps: u64) -> Result<()> {
        let (epoch_samples, span) = (self.plan.samples_per_epoch(), self.plan.span());
        let too_far = || Error::OutOfRange(format!("step {steps} is beyond any stream"));
        let position = if self.plan.tail == Tail::Wrap {
            steps.checked_mul(span)
        } else {
            let per_epoch = self.plan.steps_per_epoch();
            (steps / per_epoch)
                .checked_mul(epoch_samples)
                .and_then(|start| start.checked_add(steps % per_epoch * span))
        };
        let position = position.filter(|&p| p <= 1 << 62).ok_or_else(too_far)?;
        let epochs = position / epoch_samples;
        let excess = (self.plan.steps_per_epoch() * span).abs_diff(epoch_samples);
        self.cursor = Cursor {
            position,
            omitted: if self.plan.tail == Tail::Drop { epochs * excess } else { 0 },
            repeated: if self.plan.tail == Tail::Pad { epochs * excess } else { 0 },
        };
        Ok(())
    }

    /// Draws the next batch into `draw`, whose memory is reused; false at the end.
    pub fn draw(&mut self, draw: &mut Draw) -> bool {
        let (samples, span) = (self.plan.samples_per_epoch(), self.plan.span());
        let mut cursor = self.without_tail(self.cursor);
        if let Some(epochs) = self.plan.epochs
            && cursor.position >= epochs * samples
        {
            return false;
        }
        let start = cursor.position;
        let left = match (self.plan.tail, self.plan.epochs) {
            (Tail::Wrap, Some(epochs)) => epochs * samples - start,
            (Tail::Wrap, None) => span,
            _ => samples - start % samples,
        };
        let real = span.min(left);
        // A full step gives every rank its batch. A short one is dealt out evenly, so
        // that all ranks take the same number of steps and collectives do not hang.
        let filled = if self.plan.tail == Tail::Pad { span } else { real };
        let share = |rank: u64| {
            let wide = u128::from(filled) * u128::from(rank) / u128::from(self.plan.world_size);
            wide as u64
        };
        let (begin, end) = (share(self.plan.rank), share(self.plan.rank + 1));
        let padded = end.saturating_sub(begin.max(real));
        cursor.position += real;
        cursor.repeated += filled - real;
        cursor = self.without_tail(cursor);

        draw.rows.clear();
        self.order.fill(&self.plan, start + begin, (end - begin - padded) as usize, &mut draw.rows);
        let epoch_start = start - start % samples;
        for k in 0..padded {
            let offset = (begin.max(real) + k - real) % samples;
            self.order.fill(&self.plan, epoch_start + offset, 1, &mut draw.rows);
        }
        draw.samples = (end - begin) as usize;
        draw.padded = padded as usize;
        draw.first = start + begin;
        draw.after = cursor;
        self.cursor = cursor;
        true
    }

    /// Under `drop`, a cursor whose epoch has no full step left stands at the next one.
    fn without_tail(&self, mut cursor: Cursor) -> Cursor {
        let samples = self.plan.samples_per_epoch();
        let left = samples - cursor.position % samples;
        if self.plan.tail == Tail::Drop && left < self.plan.span() {
            cursor.omitted += left;
            cursor.position += left;
        }
        cursor
    }
}

/// Maps positions to rows; remembers the keys of the epoch and window it is in.
#[derive(Clone, Debug)]
struct Order {
    samples: u64,
    epoch: u64,
    /// Of samples, or of whole blocks.
    across: Permutation,
    /// The last window of [`Mode::Block`] that was visited, and its order.
    within: Option<(u64, Permutation)>,
}

impl Order {
    fn new(plan: &Plan) -> Self {
        let mut order = Self {
            samples: plan.samples_per_epoch(),
            epoch: 0,
            across: Permutation::new(1, 0),
            within: None,
        };
        order.enter(plan, 0);
        order
    }

    fn enter(&mut self, plan: &Plan, epoch: u64) {
        self.epoch = epoch;
        self.within = None;
        self.across = match plan.mode {
            Mode::Block => Permutation::new(plan.length / block_rows(plan), epoch_key(plan, epoch)),
            _ => Permutation::new(self.samples, epoch_key(plan, epoch)),
        };
    }

    /// Appends the rows of `count` samples from `position` on.
    fn fill(&mut self, plan: &Plan, position: u64, count: usize, rows: &mut Vec<i64>) {
        let stride = plan.stride.unwrap_or(1);
        let window = plan.rows_per_sample();
        for position in position..position + count as u64 {
            let epoch = position / self.samples;
            if epoch != self.epoch {
                self.enter(plan, epoch);
            }
            let offset = position - epoch * self.samples;
            let sample = match plan.mode {
                Mode::Shuffle => self.across.apply(offset),
                Mode::Random => {
                    let draw = mix(derive(plan.seed, 1 << 63).wrapping_add(mix(position)));
                    ((u128::from(draw) * u128::from(self.samples)) >> 64) as u64
                }
                // The ring has no seam: starts stay `stride` apart across epochs.
                Mode::Sequential if window.is_some() => {
                    let start = u128::from(position) * u128::from(stride);
                    let start = (start % u128::from(plan.length)) as u64;
                    push_window(rows, start, window, plan.length);
                    continue;
                }
                Mode::Sequential => offset,
                Mode::Block => self.block_row(plan, offset),
            };
            if window.is_some() {
                push_window(rows, sample * stride, window, plan.length);
            } else {
                rows.push(sample as i64);
            }
        }
    }

    /// The row at `offset`: shuffled inside its window of consecutive places, then
    /// looked up in the shuffled row of blocks, where the short last block stands at
    /// a place of its own.
    fn block_row(&mut self, plan: &Plan, offset: u64) -> u64 {
        let block = block_rows(plan);
        let window =
            plan.window.unwrap_or(block.saturating_mul(DEFAULT_BLOCKS_PER_WINDOW)).min(plan.length);
        let number = offset / window;
        let start = number * window;
        let key = epoch_key(plan, self.epoch);
        let within = match &self.within {
            Some((seen, permutation)) if *seen == number => permutation,
            _ => {
                let size = window.min(plan.length - start);
                let fresh = Permutation::new(size, derive(key, number + 1));
                &self.within.insert((number, fresh)).1
            }
        };
        let place = start + within.apply(offset - start);

        let (whole, rest) = (plan.length / block, plan.length % block);
        let short_at = derive(key, 0) % (whole + 1) * block;
        if place >= short_at && place < short_at + rest {
            return whole * block + (place - short_at);
        }
        let place = if place < short_at { place } else { place - rest };
        self.across.apply(place / block) * block + place % block
    }
}

fn block_rows(plan: &Plan) -> u64 {
    plan.stride.unwrap_or(DEFAULT_BLOCK).min(plan.length)
}

fn epoch_key(plan: &Plan, epoch: u64) -> u64 {
    derive(plan.seed, epoch)
}

fn push_window(rows: &mut Vec<i64>, start: u64, window: Option<u64>, length: u64) {
    rows.extend((0..window.unwrap_or(1)).map(|k| ((start + k) % length) as i64));
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn plan(length: u64, batch_size: u64) -> Plan {
        Plan {
            length,
            batch_size,
            mode: Mode::Shuffle,
            tail: Tail::Wrap,
            seed: 5,
            window: None,
            stride: None,
            rank: 0,
            world_size: 1,
            epochs: None,
        }
    }

    fn rows(plan: Plan, steps: usize) -> Vec<Vec<i64>> {
        let mut sampler = Sampler::new(plan).unwrap();
        let mut draw = Draw::default();
        (0..steps).map_while(|_| sampler.draw(&mut draw).then(|| draw.rows.clone())).collect()
    }

    fn is_permutation(rows: &[i64], length: u64) -> bool {
        let mut sorted = rows.to_vec();
        sorted.sort_unstable();
        sorted == (0..length as i64).collect::<Vec<_>>()
    }

    #[test]
    fn epochs_are_permutations_and_differ() {
        for mode in [Mode::Shuffle, Mode::Block] {
            for length in [1, 2, 10, 97, 1000] {
                for (window, stride) in [(None, None), (Some(64), Some(16)), (Some(7), Some(3))] {
                    let (window, stride) =
                        if mode == Mode::Block { (window, stride) } else { (None, None) };
                    let stream =
                        rows(Plan { mode, window, stride, ..plan(length, 1) }, 2 * length as usize)
                            .concat();
                    let (first, second) = stream.split_at(length as usize);
                    assert!(is_permutation(first, length) && is_permutation(second, length));
                    assert!(length < 10 || first != second);
                }
            }
        }
    }

    #[test]
    fn block_mode_reads_few_blocks_at_a_time() {
        let stream = rows(
            Plan { mode: Mode::Block, window: Some(256), stride: Some(64), ..plan(10_000, 256) },
            39,
        );
        for batch in stream {
            let blocks: std::collections::HashSet<i64> = batch.iter().map(|row| row / 64).collect();
            assert!(blocks.len() <= 6, "{} blocks in one window of four", blocks.len());
        }
    }

    #[test]
    fn sequential_goes_round() {
        let got = rows(Plan { mode: Mode::Sequential, ..plan(5, 3) }, 4);
        assert_eq!(got, [vec![0, 1, 2], vec![3, 4, 0], vec![1, 2, 3], vec![4, 0, 1]]);
        let windows =
            Plan { mode: Mode::Sequential, window: Some(3), stride: Some(2), ..plan(5, 2) };
        let got = rows(windows, 3);
        assert_eq!(got, [vec![0, 1, 2, 2, 3, 4], vec![4, 0, 1, 1, 2, 3], vec![3, 4, 0, 0, 1, 2]]);
    }

    #[test]
    fn tails() {
        let sequential = |tail, epochs| Plan { mode: Mode::Sequential, tail, epochs, ..plan(5, 2) };
        assert_eq!(
            rows(sequential(Tail::Drop, Some(2)), 9),
            [vec![0, 1], vec![2, 3], vec![0, 1], vec![2, 3]]
        );
        assert_eq!(rows(sequential(Tail::Keep, Some(1)), 9), [vec![0, 1], vec![2, 3], vec![4]]);
        assert_eq!(rows(sequential(Tail::Pad, Some(1)), 9), [vec![0, 1], vec![2, 3], vec![4, 0]]);
        assert_eq!(rows(sequential(Tail::Wrap, Some(1)), 9), [vec![0, 1], vec![2, 3], vec![4]]);
        assert_eq!(rows(sequential(Tail::Wrap, Some(2)), 9).concat().len(), 10);
    }

    #[test]
    fn what_is_left_out_or_repeated_is_counted() {
        for (tail, omitted, repeated) in [(Tail::Drop, 6, 0), (Tail::Pad, 0, 3), (Tail::Keep, 0, 0)]
        {
            let mut sampler = Sampler::new(Plan { tail, epochs: Some(3), ..plan(5, 3) }).unwrap();
            let mut draw = Draw::default();
            while sampler.draw(&mut draw) {}
            let by_steps = sampler.cursor();
            assert_eq!((by_steps.omitted, by_steps.repeated), (omitted, repeated));
            sampler.seek(3 * sampler.plan().steps_per_epoch()).unwrap();
            assert_eq!(sampler.cursor(), by_steps);
        }
    }

    #[test]
    fn ranks_share_one_order() {
        for tail in [Tail::Wrap, Tail::Keep, Tail::Drop] {
            for world_size in [1, 2, 3, 5] {
                let all = Plan { tail, epochs: Some(2), ..plan(23, 2 * world_size) };
                let whole = rows(all, 99).concat();
                let ranks: Vec<Vec<Vec<i64>>> = (0..world_size)
                    .map(|rank| {
                        rows(Plan { rank, world_size, tail, epochs: Some(2), ..plan(23, 2) }, 99)
                    })
                    .collect();
                let steps = ranks[0].len();
                assert!(ranks.iter().all(|rank| rank.len() == steps));
                let merged: Vec<i64> = (0..steps)
                    .flat_map(|step| ranks.iter().flat_map(move |rank| rank[step].clone()))
                    .collect();
                assert_eq!(merged, whole);
            }
        }
    }

    #[test]
    fn seek_equals_stepping() {
        for tail in [Tail::Wrap, Tail::Keep, Tail::Drop, Tail::Pad] {
            let plan = Plan { tail, ..plan(11, 3) };
            let all = rows(plan.clone(), 20);
            let mut sampler = Sampler::new(plan).unwrap();
            let mut draw = Draw::default();
            for step in 0..20 {
                sampler.seek(step).unwrap();
                assert!(sampler.draw(&mut draw));
                assert_eq!(draw.rows, all[step as usize]);
            }
        }
    }

    #[test]
    fn huge_lengths_cost_nothing() {
        let mut sampler = Sampler::new(Plan { mode: Mode::Random, ..plan(MAX_LENGTH, 4) }).unwrap();
        let mut draw = Draw::default();
        assert!(sampler.draw(&mut draw));
        assert!(draw.rows.iter().all(|&row| (row as u64) < MAX_LENGTH));
    }

    #[test]
    fn plans_that_make_no_sense_are_refused() {
        let good = plan(10, 4);
        for bad in [
            Plan { length: 0, ..good.clone() },
            Plan { batch_size: 0, ..good.clone() },
            Plan { rank: 1, ..good.clone() },
            Plan { world_size: 0, ..good.clone() },
            Plan { window: Some(11), ..good.clone() },
            Plan { window: Some(0), ..good.clone() },
            Plan { stride: Some(2), ..good.clone() },
            Plan { epochs: Some(0), ..good.clone() },
            Plan { tail: Tail::Drop, batch_size: 11, ..good.clone() },
        ] {
            assert_eq!(Sampler::new(bad).unwrap_err().kind(), "invalid");
        }
    }
}
