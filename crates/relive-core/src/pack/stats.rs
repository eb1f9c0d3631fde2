//! Statistics of a pack: the stats block, and counts that are computed on request.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::layout::{ENTRY_BYTES, HEADER_BYTES};
use super::reader::{PackReader, pack_at};
use super::sections::NO_ENGINE;
use crate::runs::{Input, put_varint};
use crate::{Error, Result};

/// Bytes of the length before the block.
const LENGTH_BYTES: usize = 4;
/// The most bytes of a stats block, including its length: seven varints of up to ten bytes and a
/// float.
pub const MAX_STATS_BYTES: usize = LENGTH_BYTES + 7 * 10 + 8;

/// The lengths of runs, in steps; all zero without runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// The number of runs.
    pub count: u64,
    /// The number of steps of all runs.
    pub total_steps: u64,
    /// The fewest steps of a run.
    pub min: u64,
    /// The most steps of a run.
    pub max: u64,
    /// The mean number of steps of a run.
    pub mean: f64,
    /// The median number of steps.
    pub p50: u64,
    /// The 90th percentile.
    pub p90: u64,
    /// The 99th percentile.
    pub p99: u64,
}

impl Summary {
    /// Returns the exact summary of runs with these numbers of steps.
    pub fn of(steps: impl IntoIterator<Item = u32>) -> Self {
        let mut sorted: Vec<u32> = steps.into_iter().collect();
        sorted.sort_unstable();
        let (Some(&min), Some(&max)) = (sorted.first(), sorted.last()) else {
            return Self::default();
        };
        let total_steps: u64 = sorted.iter().map(|&steps| u64::from(steps)).sum();
        let quantile = |q: f64| {
            let position = (q * (sorted.len() - 1) as f64).round() as usize;
            u64::from(sorted[position.min(sorted.len() - 1)])
        };
        Self {
            count: sorted.len() as u64,
            total_steps,
            min: u64::from(min),
            max: u64::from(max),
            mean: total_steps as f64 / sorted.len() as f64,
            p50: quantile(0.50),
            p90: quantile(0.90),
            p99: quantile(0.99),
        }
    }

    /// Encodes the stats block, including its length.
    pub fn build(&self) -> Vec<u8> {
        let mut bytes = vec![0; LENGTH_BYTES];
        for value in [self.count, self.total_steps, self.min, self.max] {
            put_varint(&mut bytes, value);
        }
        bytes.extend_from_slice(&self.mean.to_le_bytes());
        for value in [self.p50, self.p90, self.p99] {
            put_varint(&mut bytes, value);
        }
        // At most `MAX_STATS_BYTES`.
        let length = (bytes.len() - LENGTH_BYTES) as u32;
        bytes[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    /// Parses the bytes of a stats block after its length.
    pub fn parse_body(bytes: &[u8]) -> Result<Self> {
        let mut input = Input::new(bytes, 0);
        Self::fields(&mut input)
            .filter(|_| input.is_empty())
            .ok_or_else(|| Error::Corrupt("the stats block is malformed".into()))
    }

    fn fields(input: &mut Input<'_>) -> Option<Self> {
        Some(Self {
            count: input.u64("").ok()?,
            total_steps: input.u64("").ok()?,
            min: input.u64("").ok()?,
            max: input.u64("").ok()?,
            mean: f64::from_le_bytes(input.take("").ok()?),
            p50: input.u64("").ok()?,
            p90: input.u64("").ok()?,
            p99: input.u64("").ok()?,
        })
    }
}

/// Statistics of entries.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// The lengths of the runs.
    pub summary: Summary,
    /// The number of entries, including runs.
    pub entries: u64,
    /// The number of entries of each kind, by name.
    pub kind_counts: BTreeMap<String, u64>,
    /// The number of runs by highest tile.
    pub highest_tile_hist: BTreeMap<u32, u64>,
    /// The number of runs by engine, without runs that have none.
    pub engine_counts: BTreeMap<String, u64>,
    /// Bytes of the decoded payloads.
    pub payload_bytes: u64,
    /// Bytes of the stored payloads.
    pub stored_bytes: u64,
    /// Zeros between entries, after the last one, and between index and first entry.
    pub padding_bytes: u64,
}

/// Returns statistics of the entries at `positions` (of the pack, and of the entry in it), or of
/// all entries; repeated entries count repeatedly.
pub fn stats(packs: &[Arc<PackReader>], positions: Option<&[(u32, u64)]>) -> Result<Stats> {
    let mut rows = vec![Vec::new(); packs.len()];
    for &(pack, row) in positions.unwrap_or_default() {
        pack_at(packs, pack)?;
        rows[pack as usize].push(row);
    }
    let mut counting = Counting::default();
    for (pack, rows) in packs.iter().zip(rows) {
        match positions {
            None => counting.add(pack, 0..pack.len(), true)?,
            Some(_) => counting.add(pack, rows.into_iter(), true)?,
        }
    }
    counting.stats.summary = Summary::of(counting.steps);
    Ok(counting.stats)
}

/// Returns statistics of all entries from the index alone, without runs.
pub fn layout_stats(pack: &PackReader) -> Result<Stats> {
    let mut counting = Counting::default();
    counting.add(pack, 0..pack.len(), false)?;
    Ok(counting.stats)
}

#[derive(Default)]
struct Counting {
    stats: Stats,
    steps: Vec<u32>,
}

impl Counting {
    fn add(
        &mut self,
        pack: &PackReader,
        rows: impl Iterator<Item = u64>,
        runs: bool,
    ) -> Result<()> {
        let stats = &mut self.stats;
        let data_end = pack.footer().data_end;
        let index_end = HEADER_BYTES as u64 + ENTRY_BYTES as u64 * pack.len();
        // Read only if there is a run: without sections this is a scan of all entries.
        let mut columns = None;
        let mut kinds: BTreeMap<u16, (u64, u64)> = BTreeMap::new();
        let mut engines: Vec<u64> = Vec::new();
        for row in rows {
            let entry = pack.entry(row)?;
            let end = entry.end().unwrap_or(data_end);
            let next = if row + 1 < pack.len() { pack.entry(row + 1)?.offset } else { data_end };
            stats.entries += 1;
            stats.payload_bytes += entry.payload_bytes();
            stats.stored_bytes += u64::from(entry.length);
            stats.padding_bytes += next.saturating_sub(end);
            if row == 0 {
                stats.padding_bytes += entry.offset.saturating_sub(index_end);
            }
            kinds.entry(entry.kind).or_insert((row, 0)).1 += 1;
            if !runs || !entry.is_run() {
                continue;
            }
            let columns = match columns {
                Some(columns) => columns,
                None => {
                    let found = pack.run_columns()?;
                    engines.resize(found.engines.len(), 0);
                    *columns.insert(found)
                }
            };
            // The reader checked that there is one item for each entry.
            let row = row as usize;
            self.steps.push(columns.steps[row]);
            *stats.highest_tile_hist.entry(columns.highest_tile[row]).or_default() += 1;
            if columns.engine[row] != NO_ENGINE {
                engines[columns.engine[row] as usize] += 1;
            }
        }
        for (row, count) in kinds.into_values() {
            *stats.kind_counts.entry(pack.kind_name(row)?).or_default() += count;
        }
        let names = columns.map(|columns| columns.engines.as_slice()).unwrap_or_default();
        for (name, count) in names.iter().zip(engines).filter(|(_, count)| *count > 0) {
            *stats.engine_counts.entry(name.clone()).or_default() += count;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
