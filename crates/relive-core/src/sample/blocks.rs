//! The blocks of [`Mode::Block`](super::Mode::Block), and their order in an epoch.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use super::partitions::Partitions;
use super::plan::Plan;
use crate::error::{Error, Result};
use crate::permute::{Permutation, derive};

/// How many orders of blocks are kept: those of the current and the next epoch.
const KEPT: usize = 2;

/// Added to the number of a partition to derive its key. Keys of windows have smaller numbers.
const PARTITION_KEY: u64 = 1 << 56;

/// Blocks of different sizes, such as the row groups of a table.
#[derive(Debug)]
pub struct Blocks {
    bounds: Vec<u64>,
    /// The orders that were used last, by key. Never waited for: a forked child may find the lock
    /// held for ever.
    recent: Mutex<Vec<(u64, Arc<Shuffled>)>>,
}

/// An order of blocks.
#[derive(Debug)]
struct Shuffled {
    order: Permutation,
    /// Where each block begins in this order, and the end.
    starts: Vec<u64>,
}

impl Blocks {
    /// Checks the first rows of all blocks, followed by the number of rows. Blocks may be empty.
    pub fn new(bounds: Vec<u64>) -> Result<Self> {
        if bounds.len() < 2 || bounds[0] != 0 {
            return Err(Error::Invalid(
                "`blocks` must begin with 0 and end with the number of rows".into(),
            ));
        }
        if let Some(pair) = bounds.windows(2).find(|pair| pair[0] > pair[1]) {
            return Err(Error::Invalid(format!(
                "`blocks` must be in ascending order, got {} before {}",
                pair[0], pair[1]
            )));
        }
        Ok(Self { bounds, recent: Mutex::default() })
    }

    /// Returns the number of rows of all blocks.
    pub fn rows(&self) -> u64 {
        self.bounds.last().copied().unwrap_or_default()
    }

    /// Returns the number of blocks.
    pub fn count(&self) -> u64 {
        self.bounds.len() as u64 - 1
    }

    /// Returns the number of the block of a row.
    pub(super) fn block_of(&self, row: u64) -> u64 {
        self.bounds.partition_point(|&first| first <= row) as u64 - 1
    }

    fn shuffled(&self, key: u64) -> Arc<Shuffled> {
        if let Ok(recent) = self.recent.try_lock()
            && let Some((_, found)) = recent.iter().find(|(known, _)| *known == key)
        {
            return Arc::clone(found);
        }
        let order = Permutation::new(self.count(), key);
        let mut starts = Vec::with_capacity(self.bounds.len());
        let mut next = 0;
        for number in 0..self.count() {
            starts.push(next);
            let rows = self.block(order.apply(number));
            next += rows.end - rows.start;
        }
        starts.push(next);
        let made = Arc::new(Shuffled { order, starts });
        if let Ok(mut recent) = self.recent.try_lock() {
            recent.retain(|(known, _)| *known != key);
            if recent.len() >= KEPT {
                recent.remove(0);
            }
            recent.push((key, Arc::clone(&made)));
        }
        made
    }

    fn block(&self, number: u64) -> Range<u64> {
        self.bounds[number as usize]..self.bounds[number as usize + 1]
    }
}

/// A block in the shuffled order.
pub(super) struct Placed {
    /// The number of the block in the source.
    pub block: u64,
    /// Its first row in the source.
    pub first_row: u64,
    /// Its rows in the shuffled order.
    pub places: Range<u64>,
}

/// The blocks of an epoch in shuffled order.
enum Sequence {
    /// Blocks of equal size. A short last block has a random place of its own.
    Equal {
        length: u64,
        block: u64,
        order: Permutation,
        short_at: u64,
    },
    Given {
        blocks: Arc<Blocks>,
        shuffled: Arc<Shuffled>,
    },
}

impl Sequence {
    fn new(plan: &Plan, key: u64) -> Self {
        if let Some(blocks) = &plan.blocks {
            return Self::Given { blocks: Arc::clone(blocks), shuffled: blocks.shuffled(key) };
        }
        let block = plan.block_rows();
        let whole = plan.length / block;
        Self::Equal {
            length: plan.length,
            block,
            order: Permutation::new(whole, key),
            short_at: derive(key, 0) % (whole + 1) * block,
        }
    }

    /// Returns the block at a place of the shuffled order.
    fn at(&self, place: u64) -> Placed {
        match self {
            Self::Equal { length, block, order, short_at } => {
                let rest = length % block;
                let (number, start, rows) = if place >= *short_at && place < short_at + rest {
                    (length / block, *short_at, rest)
                } else {
                    let moved = if place < *short_at { 0 } else { rest };
                    let position = (place - moved) / block;
                    (order.apply(position), position * block + moved, *block)
                };
                Placed { block: number, first_row: number * block, places: start..start + rows }
            }
            Self::Given { blocks, shuffled } => {
                shuffled.at(place, 0..shuffled.starts.len() - 1, blocks)
            }
        }
    }

    /// Replaces places, all of which are in `window`, by the rows there.
    fn to_rows(&self, window: Range<u64>, places: &mut [i64]) {
        match self {
            Self::Equal { length, block, order, short_at } => {
                let (whole, rest) = (length / block, length % block);
                for entry in places {
                    let place = *entry as u64;
                    *entry = if place >= *short_at && place < short_at + rest {
                        whole * block + (place - short_at)
                    } else {
                        let place = if place < *short_at { place } else { place - rest };
                        order.apply(place / block) * block + place % block
                    } as i64;
                }
            }
            Self::Given { blocks, shuffled } => {
                let among = shuffled.among(window);
                for entry in places {
                    let place = *entry as u64;
                    let found = shuffled.at(place, among.clone(), blocks);
                    *entry = (found.first_row + (place - found.places.start)) as i64;
                }
            }
        }
    }
}

impl Shuffled {
    /// Returns the positions of the blocks that have these places.
    fn among(&self, places: Range<u64>) -> Range<usize> {
        let first = self.starts.partition_point(|&start| start <= places.start) - 1;
        first..self.starts.partition_point(|&start| start < places.end)
    }

    /// Returns the block at a place, which is one of those at the positions `among`.
    fn at(&self, place: u64, among: Range<usize>, blocks: &Blocks) -> Placed {
        // An empty block begins where the next one does, so the last that begins there is right.
        let found = self.starts[among.clone()].partition_point(|&start| start <= place);
        let position = among.start + found.max(1) - 1;
        let number = self.order.apply(position as u64);
        Placed {
            block: number,
            first_row: blocks.block(number).start,
            places: self.starts[position]..self.starts[position + 1],
        }
    }
}

/// One epoch of [`Mode::Block`](super::Mode::Block): offsets in a partition are shuffled inside
/// windows of consecutive offsets, then looked up in the shuffled blocks.
pub(super) struct BlockOrder {
    key: u64,
    window: u64,
    pub partitions: Partitions,
    sequence: Sequence,
}

impl BlockOrder {
    pub fn new(plan: &Plan, epoch: u64) -> Self {
        let key = plan.epoch_key(epoch);
        Self {
            key,
            window: plan.window_len(),
            partitions: plan.partitions_of(epoch),
            sequence: Sequence::new(plan, key),
        }
    }

    /// Appends the rows at these positions of the epoch.
    pub fn extend(&self, positions: Range<u64>, rows: &mut Vec<i64>) {
        self.partitions.each_part(positions, |partition, offsets| {
            self.extend_part(partition, offsets, rows);
        });
    }

    fn extend_part(&self, partition: u64, offsets: Range<u64>, rows: &mut Vec<i64>) {
        let key = self.partition_key(partition);
        let mut offset = offsets.start;
        while offset < offsets.end {
            let window = self.window_at(partition, offset);
            let stop = offsets.end.min(window.end);
            let begin = rows.len();
            Permutation::new(window.end - window.start, derive(key, offset / self.window + 1))
                .extend(offset - window.start..stop - window.start, rows);
            let first = self.partitions.start(partition) + window.start;
            let places = first..first + (window.end - window.start);
            rows[begin..].iter_mut().for_each(|place| *place += first as i64);
            self.sequence.to_rows(places, &mut rows[begin..]);
            offset = stop;
        }
    }

    /// Returns the offsets of the window that has this offset of a partition.
    pub fn window_at(&self, partition: u64, offset: u64) -> Range<u64> {
        let start = offset / self.window * self.window;
        start..self.partitions.size(partition).min(start + self.window)
    }

    /// Returns the block at a place of the shuffled order.
    pub fn block_at(&self, place: u64) -> Placed {
        self.sequence.at(place)
    }

    /// Appends the rows at these places of the shuffled order.
    pub fn rows_at(&self, places: Range<u64>, rows: &mut Vec<i64>) {
        let begin = rows.len();
        rows.extend(places.clone().map(|place| place as i64));
        self.sequence.to_rows(places, &mut rows[begin..]);
    }

    /// Returns the key of the windows of a partition; the first has that of the epoch.
    fn partition_key(&self, partition: u64) -> u64 {
        if partition == 0 { self.key } else { derive(self.key, PARTITION_KEY + partition) }
    }
}
