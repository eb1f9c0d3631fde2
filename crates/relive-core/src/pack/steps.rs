//! The steps of all runs as one table, of one pack or several.
//!
//! A pack with a step table gives its rows as they are stored. Otherwise a step is decoded
//! from the checkpoint before it: out of the map where the run is raw and in memory, else out
//! of what one request brings, with whole payloads kept for a while.

mod cache;
mod columns;
mod decode;
#[cfg(test)]
pub(crate) mod games;
mod search;
mod stored;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex};

use self::cache::Cache;
use self::columns::COLUMNS;
use self::decode::Checked;
use self::search::Search;
use super::layout::{Entry, KIND_V1, KIND_V2};
use super::reader::PackReader;
use super::sections::Checkpoints;
use crate::runs::{CHECKPOINT_EVERY, STEP_ROW_BYTES, Version};
use crate::table::{ColumnShape, Out, Reader};
use crate::{Error, Result};

/// Bytes of payloads that are kept between batches.
const CACHE_BYTES: usize = 64 << 20;

/// Bytes that are fetched with one request; more are fetched with several.
const REQUEST_BYTES: u64 = 64 << 20;

/// The names of the columns, at their positions.
pub const STEP_COLUMNS: [&str; 12] = [
    "board",
    "cells",
    "move",
    "legal",
    "branches",
    "next_board",
    "reward",
    "last",
    "terminal",
    "steps_left",
    "run",
    "step",
];

/// A row as it is stored in a step table.
type RowBytes = [u8; STEP_ROW_BYTES];

/// A table with a row for each step.
pub struct StepRows {
    packs: Vec<Pack>,
    runs: Runs,
    /// Rows of each pack, or of each chosen run.
    rows: Search,
    /// Whether every row lies in memory as it is stored.
    direct: bool,
    cache: Mutex<Cache>,
}

struct Pack {
    reader: Arc<PackReader>,
    has_table: bool,
    /// How many entries come before this pack.
    first_entry: u32,
    checked: Checked,
}

/// Which runs the rows are of.
enum Runs {
    /// All runs of all packs.
    All,
    /// These entries.
    Chosen(Vec<Chosen>),
}

/// An entry, and which row of the step table is its first, where the pack has one.
struct Chosen {
    pack: u32,
    entry: u32,
    first_row: u64,
}

/// Where one row is.
#[derive(Clone, Copy)]
struct Found {
    pack: u32,
    entry: u32,
    /// The row of the step table, where the pack has one, else the step of the entry.
    row: u64,
    run: RunOf,
}

/// What the column `run` says: the run that the row has, if it is kept, and so many more.
#[derive(Clone, Copy)]
struct RunOf {
    kept: u32,
    added: u32,
}

impl RunOf {
    fn exactly(run: u32) -> Self {
        Self { kept: 0, added: run }
    }

    fn after(runs: u32) -> Self {
        Self { kept: u32::MAX, added: runs }
    }

    #[inline]
    fn value(self, run: u32) -> u32 {
        (run & self.kept).wrapping_add(self.added)
    }
}

impl StepRows {
    /// The steps of the given entries, each the position of a pack and of an entry in it, or
    /// of all entries of all packs.
    ///
    /// Column `run` is the position among the given entries, or among all entries of the
    /// packs one after the other; entries that are no runs have no steps, and are counted.
    pub fn new(packs: Vec<Arc<PackReader>>, runs: Option<Vec<(u32, u32)>>) -> Result<Self> {
        let too_many = || Error::TooLarge("there are more runs than 32 bits can number".into());
        let mut all = Vec::with_capacity(packs.len());
        let mut entries = 0_u64;
        for reader in packs {
            let has_table = reader.step_table()?.is_some();
            let first_entry = u32::try_from(entries).map_err(|_| too_many())?;
            entries += reader.len();
            let alone = has_table || reader.storage().mapped().is_some();
            let checked = Checked::new(if alone { 0 } else { reader.len() });
            all.push(Pack { reader, has_table, first_entry, checked });
        }
        let counted = runs.as_ref().map_or(entries, |runs| runs.len() as u64);
        if counted > u64::from(u32::MAX) {
            return Err(too_many());
        }
        let direct =
            all.iter().all(|pack| pack.has_table && pack.reader.storage().mapped().is_some());
        let (runs, first_rows) = match runs {
            None => (Runs::All, all_rows(&all)?),
            Some(runs) => chosen_rows(&all, &runs)?,
        };
        let cache = Mutex::new(Cache::new(CACHE_BYTES));
        Ok(Self { packs: all, runs, rows: Search::new(first_rows), direct, cache })
    }

    /// Where a row is. Rows are below `len`, as the table promises.
    #[inline]
    fn find(&self, row: u64) -> Result<Found> {
        let Some((position, row)) = self.rows.find(row) else { return Err(self.no_row(row)) };
        match &self.runs {
            Runs::All => self.find_in(position, row),
            Runs::Chosen(runs) => {
                let Chosen { pack, entry, first_row } = runs[position];
                let run = RunOf::exactly(position as u32);
                Ok(Found { pack, entry, row: first_row + row, run })
            }
        }
    }

    /// A row of a pack all of whose runs are there.
    #[inline]
    fn find_in(&self, position: usize, row: u64) -> Result<Found> {
        let Pack { reader, has_table, first_entry, .. } = &self.packs[position];
        // There are fewer packs than entries, whose number fits.
        let pack = position as u32;
        if *has_table {
            return Ok(Found { pack, entry: 0, row, run: RunOf::after(*first_entry) });
        }
        let first_steps = reader.checkpoints()?.first_steps();
        // The last entry that begins here or before has steps: those without begin with it.
        let entry = first_steps.partition_point(|&first| first <= row).saturating_sub(1);
        let run = RunOf::exactly(first_entry + entry as u32);
        Ok(Found { pack, entry: entry as u32, row: row - first_steps[entry], run })
    }

    #[cold]
    fn no_row(&self, row: u64) -> Error {
        Error::OutOfRange(format!("there is no step {row} among {}", self.len()))
    }
}

impl Reader for StepRows {
    fn len(&self) -> u64 {
        self.rows.total()
    }

    fn columns(&self) -> &[ColumnShape] {
        &COLUMNS
    }

    fn items(&self, _column: usize, _row: u64) -> usize {
        // No column is ragged.
        0
    }

    fn begin(&self) -> Result<()> {
        self.packs.iter().try_for_each(|pack| pack.reader.storage().recheck())
    }

    unsafe fn read(&self, rows: &[u64], outs: &[Out<'_>]) -> Result<()> {
        if self.direct {
            // SAFETY: passed on from the caller.
            return unsafe { self.read_direct(rows, outs) };
        }
        let mut found = Vec::with_capacity(rows.len());
        for (position, &row) in rows.iter().enumerate() {
            found.push((position, self.find(row)?));
        }
        // Each pack is asked once for all its rows, in the order of the file.
        found.sort_unstable_by_key(|(_, found)| (found.pack, found.entry, found.row));
        for group in found.chunk_by(|a, b| a.1.pack == b.1.pack) {
            let pack = &self.packs[group[0].1.pack as usize];
            // SAFETY: passed on from the caller; positions are those of `rows`.
            unsafe {
                if pack.has_table {
                    stored::read(&pack.reader, group, outs)
                } else {
                    decode::read(&pack.reader, &self.cache, &pack.checked, group, outs)
                }
            }?;
        }
        Ok(())
    }

    fn piece(&self, row: u64) -> Option<(*const u8, usize)> {
        let found = self.find(row).ok()?;
        let pack = &self.packs[found.pack as usize];
        let mapped = pack.reader.storage().mapped()?;
        let range = if pack.has_table {
            let start = pack.reader.step_table().ok()??.layout().rows_offset;
            let start = start + found.row * STEP_ROW_BYTES as u64;
            start..start + STEP_ROW_BYTES as u64
        } else {
            let entry = pack.reader.entry(u64::from(found.entry)).ok()?;
            let checkpoints = pack.reader.checkpoints().ok()?;
            decode::wanted_range(&entry, checkpoints.of(found.entry as usize), found.row as u32)
        };
        let bytes = mapped.get(range.start as usize..range.end as usize)?;
        Some((bytes.as_ptr(), bytes.len()))
    }
}

/// How many rows come before each pack, and the total.
fn all_rows(packs: &[Pack]) -> Result<Vec<u64>> {
    let mut first_rows = vec![0];
    for pack in packs {
        let rows = match pack.reader.step_table()? {
            Some(table) => table.len(),
            None => pack.reader.checkpoints()?.total(),
        };
        push_sum(&mut first_rows, rows)?;
    }
    Ok(first_rows)
}

/// The chosen runs; how many rows come before each of them, and the total.
fn chosen_rows(packs: &[Pack], runs: &[(u32, u32)]) -> Result<(Runs, Vec<u64>)> {
    let missing =
        |pack: u32| Error::OutOfRange(format!("there is no pack {pack} among {}", packs.len()));
    let mut checked: Vec<Option<&Checkpoints>> = vec![None; packs.len()];
    let mut chosen = Vec::with_capacity(runs.len());
    let mut first_rows = Vec::with_capacity(runs.len() + 1);
    first_rows.push(0);
    for &(pack, entry) in runs {
        let Pack { reader, has_table, .. } =
            packs.get(pack as usize).ok_or_else(|| missing(pack))?;
        let checkpoints = match checked[pack as usize] {
            Some(checkpoints) => checkpoints,
            None => *checked[pack as usize].insert(agreeing(reader)?),
        };
        let Some(steps) = checkpoints.steps.get(entry as usize) else {
            return Err(reader.entry(u64::from(entry)).err().unwrap_or_else(|| missing(pack)));
        };
        push_sum(&mut first_rows, u64::from(*steps))?;
        let first_row = if *has_table { checkpoints.first_step(entry as usize) } else { 0 };
        chosen.push(Chosen { pack, entry, first_row });
    }
    Ok((Runs::Chosen(chosen), first_rows))
}

/// The checkpoints of a pack, which must count as many steps as its step table has.
fn agreeing(reader: &PackReader) -> Result<&Checkpoints> {
    let checkpoints = reader.checkpoints()?;
    match reader.step_table()? {
        Some(table) if table.len() != checkpoints.total() => Err(Error::Corrupt(format!(
            "`{}`: section STEP has {} rows, and the runs have {} steps",
            reader.storage().name(),
            table.len(),
            checkpoints.total()
        ))),
        _ => Ok(checkpoints),
    }
}

fn push_sum(sums: &mut Vec<u64>, more: u64) -> Result<()> {
    let sum = sums.last().copied().unwrap_or_default().checked_add(more);
    sums.push(sum.ok_or_else(|| Error::TooLarge("there are too many steps".into()))?);
    Ok(())
}

/// The version of a run; `None` where the entry is none.
fn version(entry: &Entry) -> Option<Version> {
    match entry.kind {
        KIND_V1 => Some(Version::V1),
        KIND_V2 => Some(Version::V2),
        _ => None,
    }
}

/// The checkpoint before a step: its own step, and where in the payload that step is.
fn checkpoint(offsets: &[u32], step: u32) -> Option<(u32, u32)> {
    let position = step / CHECKPOINT_EVERY;
    offsets.get(position as usize).map(|&offset| (position * CHECKPOINT_EVERY, offset))
}

/// The same error, naming the file.
fn about(reader: &PackReader, error: Error) -> Error {
    error.about(format_args!("`{}`", reader.storage().name()))
}
