//! The steps of all runs of one or more packs, as one table.
//!
//! From a pack with a step table, stored rows are copied. Otherwise a step is decoded from the
//! checkpoint before it: from the map if the run is raw and mapped, else from the bytes of one
//! request, with a cache of whole payloads.

mod columns;
mod from_payload;
mod from_table;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex};

use self::columns::COLUMNS;
use self::from_payload::Cache;
use super::reader::{PackReader, Verified, no_pack};
use super::sections::Checkpoints;
use crate::runs::{CHECKPOINT_EVERY, STEP_ROW_BYTES};
use crate::table::{ColumnShape, Out, Reader};
use crate::{Error, Result};

/// Bytes of payloads that are cached between batches.
const CACHE_BYTES: usize = 64 << 20;

/// The most bytes of one request.
const REQUEST_BYTES: u64 = 64 << 20;

/// A stored row of a step table.
type RowBytes = [u8; STEP_ROW_BYTES];

/// A table with a row for each step.
pub struct StepRows {
    packs: Vec<Pack>,
    runs: Runs,
    /// Finds the pack or the chosen run of a row.
    rows: Search,
    /// Whether all packs have a step table and are mapped.
    direct: bool,
    cache: Mutex<Cache>,
}

struct Pack {
    reader: Arc<PackReader>,
    has_table: bool,
    /// The number of entries in the packs before this one.
    first_entry: u32,
    /// Entries whose checksum was verified, so that parts of them can be fetched alone.
    verified: Verified,
}

/// The runs whose steps are the rows.
enum Runs {
    /// All runs of all packs.
    All,
    /// These entries.
    Chosen(Vec<Chosen>),
}

/// An entry, and its first row in the step table if the pack has one.
struct Chosen {
    pack: u32,
    entry: u32,
    first_row: u64,
}

/// The location of one row.
#[derive(Clone, Copy)]
struct Found {
    pack: u32,
    entry: u32,
    /// The row in the step table if the pack has one, else the step of the entry.
    row: u64,
    run: RunOf,
}

/// How column `run` is computed: the stored value masked with `kept`, plus `added`.
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
    /// Creates the table of the steps of `runs` (position of the pack, position of the entry), or
    /// of all entries of all packs.
    ///
    /// Column `run` is the position in `runs`, or among all entries of all packs. Entries that
    /// are not runs count as positions and have no steps.
    pub fn new(packs: Vec<Arc<PackReader>>, runs: Option<Vec<(u32, u32)>>) -> Result<Self> {
        let too_many = || {
            Error::TooLarge(
                "too many runs: the packs may have at most 2^32 - 1 runs in total".into(),
            )
        };
        let mut all = Vec::with_capacity(packs.len());
        let mut entries = 0_u64;
        for reader in packs {
            let has_table = reader.step_table()?.is_some();
            let first_entry = u32::try_from(entries).map_err(|_| too_many())?;
            entries += reader.len();
            let partial = !has_table && reader.storage().mapped().is_none();
            let verified = Verified::new(if partial { reader.len() } else { 0 });
            all.push(Pack { reader, has_table, first_entry, verified });
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

    /// Locates a row. The table passes only rows below `len`.
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

    /// Locates a row of a pack whose runs are all included.
    #[inline]
    fn find_in(&self, position: usize, row: u64) -> Result<Found> {
        let Pack { reader, has_table, first_entry, .. } = &self.packs[position];
        // The number of packs fits, since it is below the number of entries.
        let pack = position as u32;
        if *has_table {
            return Ok(Found { pack, entry: 0, row, run: RunOf::after(*first_entry) });
        }
        let first_steps = reader.checkpoints()?.first_steps();
        // Entries without steps begin where the next one does, so the last match has steps.
        let entry = first_steps.partition_point(|&first| first <= row).saturating_sub(1);
        let run = RunOf::exactly(first_entry + entry as u32);
        Ok(Found { pack, entry: entry as u32, row: row - first_steps[entry], run })
    }

    #[cold]
    fn no_row(&self, row: u64) -> Error {
        Error::OutOfRange(format!("step {row} is out of range for {} steps", self.len()))
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
        // One request per pack for all its rows, in file order.
        found.sort_unstable_by_key(|(_, found)| (found.pack, found.entry, found.row));
        for group in found.chunk_by(|a, b| a.1.pack == b.1.pack) {
            let pack = &self.packs[group[0].1.pack as usize];
            // SAFETY: passed on from the caller; positions are those of `rows`.
            unsafe {
                if pack.has_table {
                    from_table::read(&pack.reader, group, outs)
                } else {
                    from_payload::read(&pack.reader, &self.cache, &pack.verified, group, outs)
                }
            }?;
        }
        Ok(())
    }

    fn stored_bytes(&self, column: usize, row: u64) -> Option<(*const u8, usize)> {
        let found = self.find(row).ok().filter(|_| column == 0)?;
        let pack = &self.packs[found.pack as usize];
        let mapped = pack.reader.storage().mapped()?;
        let range = if pack.has_table {
            let start = pack.reader.step_table().ok()??.layout().rows_offset;
            let start = start + found.row * STEP_ROW_BYTES as u64;
            start..start + STEP_ROW_BYTES as u64
        } else {
            let entry = pack.reader.entry(u64::from(found.entry)).ok()?;
            let checkpoints = pack.reader.checkpoints().ok()?;
            from_payload::wanted_range(
                &entry,
                checkpoints.of(found.entry as usize),
                found.row as u32,
            )
        };
        let bytes = mapped.get(range.start as usize..range.end as usize)?;
        Some((bytes.as_ptr(), bytes.len()))
    }
}

/// Returns the first row of each pack, and the total.
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

/// Returns the chosen runs, the first row of each, and the total.
fn chosen_rows(packs: &[Pack], runs: &[(u32, u32)]) -> Result<(Runs, Vec<u64>)> {
    let missing = |pack: u32| no_pack(pack, packs.len());
    let mut known: Vec<Option<&Checkpoints>> = vec![None; packs.len()];
    let mut chosen = Vec::with_capacity(runs.len());
    let mut first_rows = Vec::with_capacity(runs.len() + 1);
    first_rows.push(0);
    for &(pack, entry) in runs {
        let Pack { reader, has_table, .. } =
            packs.get(pack as usize).ok_or_else(|| missing(pack))?;
        let checkpoints = match known[pack as usize] {
            Some(checkpoints) => checkpoints,
            None => *known[pack as usize].insert(checkpoints_of(reader)?),
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

/// Returns the checkpoints of a pack after comparing their steps with the step table.
fn checkpoints_of(reader: &PackReader) -> Result<&Checkpoints> {
    let checkpoints = reader.checkpoints()?;
    match reader.step_table()? {
        Some(table) if table.len() != checkpoints.total() => Err(Error::Corrupt(format!(
            "`{}`: section STEP has {} rows, but the runs in the pack have {} steps in total",
            reader.storage().name(),
            table.len(),
            checkpoints.total()
        ))),
        _ => Ok(checkpoints),
    }
}

fn push_sum(sums: &mut Vec<u64>, more: u64) -> Result<()> {
    let sum = sums.last().copied().unwrap_or_default().checked_add(more);
    sums.push(sum.ok_or_else(|| {
        Error::TooLarge("too many steps: the runs may have at most 2^64 - 1 steps in total".into())
    })?);
    Ok(())
}

/// Returns the checkpoint before a step: its step, and the offset of that step in the payload.
fn checkpoint(offsets: &[u32], step: u32) -> Option<(u32, u32)> {
    let position = step / CHECKPOINT_EVERY;
    offsets.get(position as usize).map(|&offset| (position * CHECKPOINT_EVERY, offset))
}

/// Finds the range that a row is in, where ranges of rows follow each other.
struct Search {
    /// The first row of each range, and the total.
    firsts: Vec<u64>,
    /// For every `1 << shift` rows, the last range that begins at or before the first of them.
    hints: Vec<u32>,
    shift: u32,
}

impl Search {
    /// `firsts` has the first row of each range, and the total.
    fn new(firsts: Vec<u64>) -> Self {
        let total = firsts.last().copied().unwrap_or_default();
        // About one hint per range, so that few ranges are between two hints.
        let shift = (total / firsts.len().max(1) as u64).checked_ilog2().unwrap_or_default();
        let mut hints = Vec::new();
        let mut position = 0;
        for row in (0..total).step_by(1 << shift) {
            while firsts.get(position + 1).is_some_and(|&first| first <= row) {
                position += 1;
            }
            // `StepRows::new` refuses more ranges than fit.
            hints.push(position as u32);
        }
        Self { firsts, hints, shift }
    }

    /// Returns the number of rows.
    fn total(&self) -> u64 {
        self.firsts.last().copied().unwrap_or_default()
    }

    /// Returns the range of a row, and the row's position in it; `None` after the end.
    #[inline]
    fn find(&self, row: u64) -> Option<(usize, u64)> {
        if let [_, end] = *self.firsts {
            return (row < end).then_some((0, row));
        }
        let bucket = (row >> self.shift) as usize;
        let start = *self.hints.get(bucket)? as usize;
        let end = match self.hints.get(bucket + 1) {
            // The range of the next hint may begin before the first row of that hint.
            Some(&hint) => hint as usize + 1,
            None => self.firsts.len(),
        };
        let after = self.firsts.get(start..end)?.partition_point(|&first| first <= row);
        // An empty range begins where the next one does, so the last one is used.
        let position = (start + after).checked_sub(1)?;
        (position + 1 < self.firsts.len()).then(|| (position, row - self.firsts[position]))
    }
}
