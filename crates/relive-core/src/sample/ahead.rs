//! Which blocks and windows a rank needs next.

use std::collections::HashMap;

use super::blocks::BlockOrder;
use super::{Mode, Plan, Sampler};
use crate::error::{Error, Result};

/// A block that a rank needs, and for which positions of the global order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockUse {
    /// The number of the block.
    pub block: u64,
    /// The position before the first step that may need it.
    pub first: u64,
    /// No step that starts at or after this position needs it, until it is listed again.
    pub until: u64,
}

/// Consecutive samples of a step that are in one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowUse {
    /// The epoch.
    pub epoch: u64,
    /// The partition.
    pub partition: u64,
    /// The number of the window in the partition.
    pub window: u64,
    /// The number of samples.
    pub samples: u64,
}

impl Sampler {
    /// Returns the windows of the samples that this rank has in the next step, in the order of the
    /// samples, with those that are repeated at the end; none at the end of the stream.
    pub fn windows(&self) -> Result<Vec<WindowUse>> {
        let plan = self.plan();
        check_mode(plan)?;
        let mut found = Vec::new();
        let Some(step) = self.clone().step() else { return Ok(found) };
        let mut orders: HashMap<u64, BlockOrder> = HashMap::new();
        plan.each_range(&step, 0..step.samples, |epoch, offsets| {
            let order = orders.entry(epoch).or_insert_with(|| BlockOrder::new(plan, epoch));
            order.partitions.each_part(offsets, |partition, part| {
                let mut offset = part.start;
                while offset < part.end {
                    let stop = part.end.min(order.window_at(partition, offset).end);
                    let window = offset / plan.window_len();
                    let samples = stop - offset;
                    found.push(WindowUse { epoch, partition, window, samples });
                    offset = stop;
                }
            });
        });
        Ok(found)
    }

    /// Returns the blocks that have rows of a window, in their shuffled order.
    pub fn window_blocks(&self, epoch: u64, partition: u64, window: u64) -> Result<Vec<u64>> {
        let plan = self.plan();
        check_mode(plan)?;
        let missing = || {
            Error::OutOfRange(format!(
                "there is no window {window} in partition {partition} of epoch {epoch}"
            ))
        };
        if epoch > (1 << 62) / plan.length || partition >= plan.partitions {
            return Err(missing());
        }
        let order = BlockOrder::new(plan, epoch);
        let offset = window.checked_mul(plan.window_len()).ok_or_else(missing)?;
        if offset >= order.partitions.size(partition) {
            return Err(missing());
        }
        let start = order.partitions.start(partition);
        let offsets = order.window_at(partition, offset);
        let (mut place, end) = (start + offsets.start, start + offsets.end);
        let mut blocks = Vec::new();
        while place < end {
            let found = order.block_at(place);
            blocks.push(found.block);
            place = found.places.end;
        }
        Ok(blocks)
    }

    /// Returns the blocks that this rank needs in the next `steps` steps, in the order of their
    /// first use.
    ///
    /// A window needs all of its blocks as long as it lasts, since its rows are shuffled. A block
    /// is listed twice if two epochs or two partitions need it. The time depends on the number of
    /// steps and blocks, not on that of rows.
    pub fn blocks_ahead(&self, steps: u64) -> Result<Vec<BlockUse>> {
        let plan = self.plan();
        check_mode(plan)?;
        let mut ahead = self.clone();
        let mut uses = Vec::new();
        // The orders of the epochs, and per partition the places before which all are listed.
        let mut orders: HashMap<u64, (BlockOrder, HashMap<u64, u64>)> = HashMap::new();
        for _ in 0..steps {
            let first = ahead.cursor().position;
            let Some(step) = ahead.step() else { break };
            let mut position = step.first;
            let end = position + (step.samples - step.padded) as u64;
            while position < end {
                let epoch = position / plan.length;
                let start = epoch * plan.length;
                let stop = end.min(start + plan.length);
                let (order, listed) = orders
                    .entry(epoch)
                    .or_insert_with(|| (BlockOrder::new(plan, epoch), HashMap::new()));
                order.partitions.each_part(position - start..stop - start, |partition, part| {
                    let listed = listed.entry(partition).or_default();
                    let begin = order.partitions.start(partition);
                    let size = order.partitions.size(partition);
                    let from = begin + order.window_at(partition, part.start).start;
                    let to = begin + order.window_at(partition, part.end - 1).end;
                    let mut place = from.max(*listed);
                    while place < to {
                        let found = order.block_at(place);
                        let last = found.places.end.min(begin + size) - 1 - begin;
                        let end = order.window_at(partition, last).end;
                        let until = start + order.partitions.row_of(partition, end - 1) + 1;
                        uses.push(BlockUse { block: found.block, first, until });
                        place = found.places.end;
                    }
                    *listed = place.max(*listed);
                });
                position = stop;
            }
            if step.padded > 0 {
                let mut rows = Vec::new();
                plan.rows(&step, step.samples - step.padded..step.samples, &mut rows);
                let mut blocks: Vec<u64> =
                    rows.iter().map(|&row| plan.block_of(row as u64)).collect();
                blocks.sort_unstable();
                blocks.dedup();
                let until = step.after.position;
                uses.extend(blocks.into_iter().map(|block| BlockUse { block, first, until }));
            }
        }
        Ok(uses)
    }
}

fn check_mode(plan: &Plan) -> Result<()> {
    if plan.mode != Mode::Block {
        return Err(Error::Invalid("only a sampler with mode=\"block\" has blocks".into()));
    }
    Ok(())
}
