//! Seeded samplers: choose the rows of each batch, for each rank.
//!
//! A sampler is a pure function of a plan and the global sample position, so its cost does not
//! depend on the length, it can start anywhere, and every rank knows the rows of all others.

mod ahead;
mod blocks;
mod partitions;
mod plan;

pub use ahead::{BlockUse, WindowUse};
pub use blocks::Blocks;
pub use plan::{
    DEFAULT_BLOCK, DEFAULT_BLOCKS_PER_WINDOW, DEFAULT_GIVEN_BLOCKS_PER_WINDOW, MAX_LENGTH, Mode,
    Plan, Tail, reserved,
};

use crate::error::{Error, Result};

/// The samples of one rank in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Global position of the first sample.
    pub first: u64,
    /// The number of samples.
    pub samples: usize,
    /// The number of samples at the end that repeat others to fill the batch.
    pub padded: usize,
    /// The position of the stream after this step.
    pub after: Cursor,
    epoch_start: u64,
    pad_from: u64,
}

/// The position of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// The number of samples of the global order before this position.
    pub position: u64,
    /// The number of samples that were dropped so far, over all ranks.
    pub omitted: u64,
    /// The number of samples that were repeated to fill batches so far, over all ranks.
    pub repeated: u64,
}

/// A plan and a position in its stream.
#[derive(Clone, Debug)]
pub struct Sampler {
    plan: Plan,
    cursor: Cursor,
}

impl Sampler {
    /// Checks the plan and starts at its beginning.
    pub fn new(plan: Plan) -> Result<Self> {
        plan.check()?;
        Ok(Self { plan, cursor: Cursor::default() })
    }

    /// Returns the plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the position.
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// Sets the position, which must be one of an equal plan.
    pub fn set_cursor(&mut self, cursor: Cursor) {
        self.cursor = cursor;
    }

    /// Sets the position; with `error`, one from which the rest of the epoch has only full steps.
    pub fn resume(&mut self, cursor: Cursor) -> Result<()> {
        let samples = self.plan.samples_per_epoch();
        let left = samples - cursor.position % samples;
        if self.plan.tail == Tail::Error && !left.is_multiple_of(self.plan.span()) {
            return Err(Error::Invalid(format!(
                "the last step of this epoch is not full: the {left} samples that are left are not \
                 a multiple of `batch_size` × `world_size` = {}, and tail=\"error\" does not allow \
                 it",
                self.plan.span()
            )));
        }
        self.cursor = cursor;
        Ok(())
    }

    /// Moves to the position after `steps` steps from the beginning.
    pub fn seek(&mut self, steps: u64) -> Result<()> {
        let (epoch_samples, span) = (self.plan.samples_per_epoch(), self.plan.span());
        let too_far = || {
            Error::OutOfRange(format!(
                "step {steps} exceeds the highest step that the sampler supports"
            ))
        };
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

    /// Advances by one step; `None` at the end. Rows are computed by [`Plan::rows`].
    pub fn step(&mut self) -> Option<Step> {
        let (samples, span) = (self.plan.samples_per_epoch(), self.plan.span());
        let mut cursor = self.without_tail(self.cursor);
        if self.plan.epochs.is_some_and(|epochs| cursor.position >= epochs * samples) {
            return None;
        }
        let start = cursor.position;
        let left = match (self.plan.tail, self.plan.epochs) {
            (Tail::Wrap, Some(epochs)) => epochs * samples - start,
            (Tail::Wrap, None) => span,
            _ => samples - start % samples,
        };
        let real = span.min(left);
        // In a full step every rank has its batch. A short one is shared evenly, so that all
        // ranks take the same number of steps and collectives do not hang.
        let filled = match self.plan.tail {
            Tail::Pad => span,
            // Only the last step of a stream is short, and no rank gets an empty batch.
            Tail::Wrap => real.max(self.plan.world_size),
            Tail::Drop | Tail::Keep | Tail::Error => real,
        };
        let share = |rank: u64| partitions::share(filled, rank, self.plan.world_size);
        let (begin, end) = (share(self.plan.rank), share(self.plan.rank + 1));
        cursor.position += real;
        cursor.repeated += filled - real;
        self.cursor = self.without_tail(cursor);
        Some(Step {
            first: start + begin,
            samples: (end - begin) as usize,
            padded: end.saturating_sub(begin.max(real)) as usize,
            after: self.cursor,
            epoch_start: start - start % samples,
            pad_from: begin.max(real) - real,
        })
    }

    /// With `drop`, moves a cursor whose epoch has no full step left to the next epoch.
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod block_tests;
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
            blocks: None,
            partitions: 1,
            rows_per_step: None,
        }
    }

    fn draw(sampler: &mut Sampler) -> Option<Vec<i64>> {
        let step = sampler.step()?;
        let mut rows = Vec::new();
        // In two halves, as two threads would.
        sampler.plan.rows(&step, 0..step.samples / 2, &mut rows);
        sampler.plan.rows(&step, step.samples / 2..step.samples, &mut rows);
        Some(rows)
    }

    fn rows(plan: Plan, steps: usize) -> Vec<Vec<i64>> {
        let mut sampler = Sampler::new(plan).unwrap();
        (0..steps).map_while(|_| draw(&mut sampler)).collect()
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
    fn the_rows_of_a_window_are_those_that_its_batches_have() {
        let plan = Plan { mode: Mode::Block, window: Some(30), stride: Some(8), ..plan(100, 10) };
        let batches = rows(plan.clone(), 20);
        for (number, batches) in batches.chunks(10).enumerate() {
            // Windows of 30, 30, 30 and 10 positions in each epoch.
            for (window, drawn) in batches.concat().chunks(30).enumerate() {
                let mut expected = Vec::new();
                let window = (number * 4 + window) as u64;
                plan.window_rows(window, &mut expected);
                let mut drawn = drawn.to_vec();
                drawn.sort_unstable();
                expected.sort_unstable();
                assert_eq!(drawn, expected);
            }
        }
        let windows_at: Vec<_> = [0, 29, 30, 99, 100, 130].map(|p| plan.window_at(p)).to_vec();
        assert_eq!(windows_at, [Some(0), Some(0), Some(1), Some(3), Some(4), Some(5)]);
        assert_eq!(Plan { mode: Mode::Shuffle, ..plan }.window_at(0), None);
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
            while sampler.step().is_some() {}
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
            for step in 0..20 {
                sampler.seek(step).unwrap();
                assert_eq!(draw(&mut sampler).unwrap(), all[step as usize]);
            }
        }
    }

    #[test]
    fn huge_lengths_cost_nothing() {
        for mode in [Mode::Random, Mode::Shuffle, Mode::Block, Mode::Sequential] {
            let mut sampler = Sampler::new(Plan { mode, ..plan(MAX_LENGTH, 4) }).unwrap();
            sampler.seek(1 << 40).unwrap();
            let rows = draw(&mut sampler).unwrap();
            assert!(rows.len() == 4 && rows.iter().all(|&row| (row as u64) < MAX_LENGTH));
        }
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
