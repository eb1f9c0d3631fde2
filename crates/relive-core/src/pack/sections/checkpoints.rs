//! `CKPT`: the number of steps of each run, and the offset of every 64th step.

use super::super::layout::{Tag, u32_at, u64_at};
use super::{corrupt, split_items, u32_items};
use crate::runs::CHECKPOINT_EVERY as EVERY;
use crate::{Error, Result};

/// The offsets of steps; an entry that is not a run has no steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoints {
    /// The number of steps of each entry.
    pub steps: Vec<u32>,
    /// The number of steps before each entry, and the total.
    first_steps: Vec<u64>,
    /// The position in `offsets` where those of each entry begin, and the end.
    starts: Vec<u64>,
    /// The offset of step 64 · k in its payload, entry by entry.
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

    /// Parses the `CKPT` section of a pack with `count` entries.
    pub fn parse(bytes: &[u8], count: u64) -> Result<Self> {
        let bad = |text: &str| corrupt(Tag::CKPT, text);
        let steps = bytes.get(16..).and_then(|rest| split_items(rest, count, 4));
        let Some((steps, offsets)) = steps.filter(|_| u64_at(bytes, 8) == count) else {
            return Err(bad(&format!("the section does not have {count} entries")));
        };
        if (u32_at(bytes, 0), u32_at(bytes, 4)) != (EVERY, 0) {
            return Err(bad("the section does not have an offset for every 64th step"));
        }
        // At most 2^26 for each of fewer than 2^62 entries: no overflow.
        let wanted: u128 = u32_items(steps).map(|steps| u128::from(steps.div_ceil(EVERY))).sum();
        if wanted * 4 != offsets.len() as u128 {
            return Err(bad("the length of the section does not match its number of steps"));
        }
        let mut checkpoints = Self::with_capacity(steps.len() / 4, offsets.len() / 4);
        checkpoints.offsets.extend(u32_items(offsets));
        let mut start = 0;
        for (entry, steps) in u32_items(steps).enumerate() {
            let end = start + steps.div_ceil(EVERY) as usize;
            if !checkpoints.offsets[start..end].is_sorted_by(|a, b| a < b) {
                return Err(bad(&format!("the offsets of entry {entry} do not ascend")));
            }
            checkpoints.count(steps);
            start = end;
        }
        Ok(checkpoints)
    }

    /// Encodes a `CKPT` section.
    pub fn build(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(16 + 4 * (self.steps.len() + self.offsets.len()));
        bytes.extend_from_slice(&EVERY.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&(self.steps.len() as u64).to_le_bytes());
        bytes.extend(self.steps.iter().flat_map(|value| value.to_le_bytes()));
        bytes.extend(self.offsets.iter().flat_map(|value| value.to_le_bytes()));
        bytes
    }

    /// Adds an entry with `steps` steps, every 64th at these offsets; no steps for an entry that
    /// is not a run.
    pub fn push(&mut self, steps: u32, offsets: &[u32]) -> Result<()> {
        if offsets.len() != steps.div_ceil(EVERY) as usize {
            return Err(Error::Invalid(format!(
                "a run of {steps} steps must have an offset for every {EVERY}th step, got {} offsets",
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

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns the offsets of every 64th step of an entry; empty after the last entry.
    pub fn of(&self, entry: usize) -> &[u32] {
        match self.starts.get(entry..entry.saturating_add(2)) {
            Some(&[start, end]) => &self.offsets[start as usize..end as usize],
            _ => &[],
        }
    }

    /// Returns the number of steps before this entry; all steps after the last entry.
    pub fn first_step(&self, entry: usize) -> u64 {
        self.first_steps.get(entry).copied().unwrap_or_else(|| self.total())
    }

    /// Returns the number of steps before each entry, and the total.
    pub fn first_steps(&self) -> &[u64] {
        &self.first_steps
    }

    /// Returns the total number of steps.
    pub fn total(&self) -> u64 {
        self.first_steps.last().copied().unwrap_or_default()
    }
}
