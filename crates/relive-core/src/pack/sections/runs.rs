//! `RUNS`: properties of all runs, available without reading the runs.

use std::collections::HashMap;

use super::super::layout::{Tag, u64_at};
use super::{Strings, corrupt, split_items, u32_items, u64_items};
use crate::Result;

/// Marks a run without an engine, and an entry that is not a run.
pub const NO_ENGINE: u32 = u32::MAX;

/// Bytes of one entry in all columns.
const ROW_BYTES: u64 = 8 + 4 + 4 + 4;

/// Columns with one item for each entry; an entry that is not a run has zeros and no engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunColumns {
    /// Score of the final board.
    pub max_score: Vec<u64>,
    /// Number of steps.
    pub steps: Vec<u32>,
    /// Largest tile.
    pub highest_tile: Vec<u32>,
    /// Position in `engines`, or [`NO_ENGINE`].
    pub engine: Vec<u32>,
    /// Names of engines.
    pub engines: Vec<String>,
}

impl RunColumns {
    /// Parses the `RUNS` and `TEXT` sections of a pack with `count` entries.
    pub fn parse(runs: &[u8], text: &[u8], count: u64) -> Result<Self> {
        let bad = |text: &str| corrupt(Tag::RUNS, text);
        let fits = (count.checked_mul(ROW_BYTES)).and_then(|bytes| bytes.checked_add(8));
        if fits != Some(runs.len() as u64) || u64_at(runs, 0) != count {
            return Err(bad(&format!("the section does not have {count} entries")));
        }
        let strings = Strings::parse(text)?;
        let mut rest = &runs[8..];
        let mut column = |size| {
            let (column, after) = split_items(rest, count, size).unwrap_or_default();
            rest = after;
            column
        };
        let max_score = u64_items(column(8)).collect();
        let steps = u32_items(column(4)).collect();
        let highest_tile = u32_items(column(4)).collect();
        let engine: Vec<u32> = u32_items(column(4)).collect();
        let known = |&engine: &u32| engine == NO_ENGINE || (engine as usize) < strings.len();
        if let Some(entry) = engine.iter().position(|engine| !known(engine)) {
            return Err(bad(&format!("the engine of entry {entry} is missing from section TEXT")));
        }
        let engines = (0..strings.len() as u64)
            .map(|position| strings.get(position).unwrap_or_default().to_owned())
            .collect();
        Ok(Self { max_score, steps, highest_tile, engine, engines })
    }

    /// Encodes the sections `RUNS` and `TEXT`.
    pub fn build(&self) -> (Vec<u8>, Vec<u8>) {
        let mut bytes = Vec::with_capacity(8 + self.len() * ROW_BYTES as usize);
        bytes.extend_from_slice(&(self.len() as u64).to_le_bytes());
        bytes.extend(self.max_score.iter().flat_map(|value| value.to_le_bytes()));
        for column in [&self.steps, &self.highest_tile, &self.engine] {
            bytes.extend(column.iter().flat_map(|value| value.to_le_bytes()));
        }
        (bytes, Strings::build(&self.engines))
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns the engine of an entry.
    pub fn engine_of(&self, entry: usize) -> Option<&str> {
        self.engines.get(*self.engine.get(entry)? as usize).map(String::as_str)
    }
}

/// Collects [`RunColumns`] entry by entry.
#[derive(Debug, Default)]
pub struct RunColumnsBuilder {
    columns: RunColumns,
    known: HashMap<String, u32>,
}

impl RunColumnsBuilder {
    /// Adds a run with these properties.
    pub fn push(&mut self, max_score: u64, steps: u32, highest_tile: u32, engine: Option<&str>) {
        let engine = engine.map_or(NO_ENGINE, |name| self.position(name));
        self.columns.max_score.push(max_score);
        self.columns.steps.push(steps);
        self.columns.highest_tile.push(highest_tile);
        self.columns.engine.push(engine);
    }

    /// Adds an entry that is not a run.
    pub fn push_other(&mut self) {
        self.push(0, 0, 0, None);
    }

    fn position(&mut self, name: &str) -> u32 {
        if let Some(&position) = self.known.get(name) {
            return position;
        }
        // The number of engines is at most the number of entries, which fits.
        let position = self.columns.engines.len() as u32;
        self.known.insert(name.to_owned(), position);
        self.columns.engines.push(name.to_owned());
        position
    }

    /// Returns the columns.
    pub fn finish(self) -> RunColumns {
        self.columns
    }
}
