//! `CKPT`: how many steps each run has, and where every 64th of them lies.

use super::super::layout::{Tag, u32_at, u64_at};
use super::{corrupt, split_items, u32_items};
use crate::{Error, Result};

/// Steps from one checkpoint to the next.
const EVERY: u32 = 64;

/// Where steps are to be found; an entry that is no run has no steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoints {
    /// Steps of each entry.
    pub steps: Vec<u32>,
    /// How many steps come before each entry, and how many there are in all.
    first_steps: Vec<u64>,
    /// Where the offsets of each entry begin, and where the last ones end.
    starts: Vec<u64>,
    /// Offset in its payload of step 64 · k, entry by entry.
    offsets: Vec<u32>,
}

impl Default for Checkpoints {
    fn default() -> Self {
        Self::with_capacity(0, 0)
    }
}

impl Checkpoints {
    fn with_capacity(entries: usize, offsets: usize) -> Self {
        let mut first_steps = Vec::with_capacity(entries + 1);
        first_steps.push(0);
        Self {
            steps: Vec::with_capacity(entries),
            starts: first_steps.clone(),
            first_steps,
            offsets: Vec::with_capacity(offsets),
        }
    }

    /// Reads the bytes of a `CKPT` section of a pack with `count` entries.
    pub fn parse(bytes: &[u8], count: u64) -> Result<Self> {
        let bad = |text: &str| corrupt(Tag::CKPT, text);
        let steps = bytes.get(16..).and_then(|rest| split_items(rest, count, 4));
        let Some((steps, offsets)) = steps.filter(|_| u64_at(bytes, 8) == count) else {
            return Err(bad(&format!("it is not made for {count} entries")));
        };
        if (u32_at(bytes, 0), u32_at(bytes, 4)) != (EVERY, 0) {
            return Err(bad("its interval is not 64"));
        }
        // At most 2^26 for each of fewer than 2^62 entries that are there: no overflow.
        let wanted: u128 = u32_items(steps).map(|steps| u128::from(steps.div_ceil(EVERY))).sum();
        if wanted * 4 != offsets.len() as u128 {
            return Err(bad("its length does not fit its steps"));
        }
        let mut checkpoints = Self::with_capacity(steps.len() / 4, offsets.len() / 4);
        checkpoints.offsets.extend(u32_items(offsets));
        let mut start = 0;
        for (entry, steps) in u32_items(steps).enumerate() {
            let end = start + steps.div_ceil(EVERY) as usize;
            if !checkpoints.offsets[start..end].is_sorted_by(|a, b| a < b) {
                return Err(bad(&format!("the steps of entry {entry} do not follow each other")));
            }
            checkpoints.count(steps);
            start = end;
        }
        Ok(checkpoints)
    }

    /// The bytes of a `CKPT` section.
    pub fn build(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(16 + 4 * (self.steps.len() + self.offsets.len()));
        bytes.extend_from_slice(&EVERY.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&(self.steps.len() as u64).to_le_bytes());
        bytes.extend(self.steps.iter().flat_map(|value| value.to_le_bytes()));
        bytes.extend(self.offsets.iter().flat_map(|value| value.to_le_bytes()));
        bytes
    }

    /// The next entry has so many steps, with every 64th at these offsets; none for an entry
    /// that is no run.
    pub fn push(&mut self, steps: u32, offsets: &[u32]) -> Result<()> {
        if offsets.len() != steps.div_ceil(EVERY) as usize {
            return Err(Error::Invalid(format!(
                "{} checkpoints do not fit {steps} steps",
                offsets.len()
            )));
        }
        self.offsets.extend_from_slice(offsets);
        self.count(steps);
        Ok(())
    }

    fn count(&mut self, steps: u32) {
        let last = |values: &[u64]| values.last().copied().unwrap_or_default();
        self.first_steps.push(last(&self.first_steps) + u64::from(steps));
        self.starts.push(last(&self.starts) + u64::from(steps.div_ceil(EVERY)));
        self.steps.push(steps);
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Offsets of every 64th step in the payload of an entry; empty beyond the last entry.
    pub fn of(&self, entry: usize) -> &[u32] {
        match self.starts.get(entry..entry.saturating_add(2)) {
            Some(&[start, end]) => &self.offsets[start as usize..end as usize],
            _ => &[],
        }
    }

    /// How many steps come before this entry; all of them beyond the last entry.
    pub fn first_step(&self, entry: usize) -> u64 {
        self.first_steps.get(entry).copied().unwrap_or_else(|| self.total())
    }

    /// How many steps come before each entry, and the total as one item more.
    pub fn first_steps(&self) -> &[u64] {
        &self.first_steps
    }

    /// How many steps there are.
    pub fn total(&self) -> u64 {
        self.first_steps.last().copied().unwrap_or_default()
    }
}
