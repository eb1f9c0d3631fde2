//! What a pack holds, in numbers: the stats block, and more that is worked out when asked.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::layout::{ENTRY_BYTES, HEADER_BYTES, u32_at};
use super::reader::PackReader;
use super::sections::NO_ENGINE;
use crate::{Error, Result};

/// Bytes of the length in front of the block.
const LENGTH_BYTES: usize = 4;
/// The most bytes of a varint of 64 bits.
const MOST_VARINT_BYTES: usize = 10;
/// The most bytes of a stats block, its length included: seven varints and a float.
pub const MAX_STATS_BYTES: usize = LENGTH_BYTES + 7 * MOST_VARINT_BYTES + 8;

/// How long runs are, in steps; all zero without runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// How many runs there are.
    pub count: u64,
    /// Steps of all runs.
    pub total_steps: u64,
    /// Fewest steps of a run.
    pub min: u64,
    /// Most steps of a run.
    pub max: u64,
    /// Steps of a run on average.
    pub mean: f64,
    /// Half of the runs have at most so many steps.
    pub p50: u64,
    /// Nine runs in ten.
    pub p90: u64,
    /// Ninety-nine in a hundred.
    pub p99: u64,
}

impl Summary {
    /// The exact summary of runs with these numbers of steps.
    pub fn of(steps: impl IntoIterator<Item = u32>) -> Self {
        let mut sorted: Vec<u32> = steps.into_iter().collect();
        sorted.sort_unstable();
        let (Some(&min), Some(&max)) = (sorted.first(), sorted.last()) else {
            return Self::default();
        };
        let total_steps: u64 = sorted.iter().map(|&steps| u64::from(steps)).sum();
        let quantile = |q: f64| {
            // Never beyond the last, because q is below one.
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

    /// The stats block, its length included.
    pub fn build(&self) -> Vec<u8> {
        let mut bytes = vec![0; LENGTH_BYTES];
        for value in [self.count, self.total_steps, self.min, self.max] {
            put(&mut bytes, value);
        }
        bytes.extend_from_slice(&self.mean.to_le_bytes());
        for value in [self.p50, self.p90, self.p99] {
            put(&mut bytes, value);
        }
        // At most `MAX_STATS_BYTES`.
        let length = (bytes.len() - LENGTH_BYTES) as u32;
        bytes[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    /// Reads a stats block out of `bytes`, which begin with it and may go on behind it, and
    /// says how many bytes it has with its length.
    pub fn parse(bytes: &[u8]) -> Result<(Self, usize)> {
        let length = usize::try_from(u32_at(bytes, 0)).unwrap_or(usize::MAX);
        let body = bytes.get(LENGTH_BYTES..).and_then(|rest| rest.get(..length));
        let body = body.ok_or_else(|| Error::Corrupt("the stats block is cut short".into()))?;
        Ok((Self::parse_body(body)?, LENGTH_BYTES + length))
    }

    /// Reads the bytes of a stats block that follow its length.
    pub fn parse_body(mut bytes: &[u8]) -> Result<Self> {
        Self::fields(&mut bytes)
            .filter(|_| bytes.is_empty())
            .ok_or_else(|| Error::Corrupt("the stats block is not well formed".into()))
    }

    fn fields(bytes: &mut &[u8]) -> Option<Self> {
        let [count, total_steps, min, max] =
            [take(bytes)?, take(bytes)?, take(bytes)?, take(bytes)?];
        let (mean, rest) = bytes.split_first_chunk()?;
        *bytes = rest;
        let [p50, p90, p99] = [take(bytes)?, take(bytes)?, take(bytes)?];
        let mean = f64::from_le_bytes(*mean);
        Some(Self { count, total_steps, min, max, mean, p50, p90, p99 })
    }
}

/// Seven bits to a byte, the lowest first.
fn put(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for (position, &byte) in bytes.iter().take(MOST_VARINT_BYTES).enumerate() {
        // The tenth byte has room for one bit.
        if position + 1 == MOST_VARINT_BYTES && byte > 1 {
            return None;
        }
        value |= u64::from(byte & 0x7F) << (7 * position);
        if byte < 0x80 {
            *bytes = &bytes[position + 1..];
            return Some(value);
        }
    }
    None
}

/// What some entries of a pack hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// How long the runs among them are.
    pub summary: Summary,
    /// How many entries, runs or not.
    pub entries: u64,
    /// Entries of each kind, by its name.
    pub kind_counts: BTreeMap<String, u64>,
    /// Runs by their highest tile.
    pub highest_tile_hist: BTreeMap<u32, u64>,
    /// Runs by their engine; those without one are left out.
    pub engine_counts: BTreeMap<String, u64>,
    /// Bytes of the payloads, decoded.
    pub payload_bytes: u64,
    /// Bytes of the payloads as they are stored.
    pub stored_bytes: u64,
    /// Zeros from the end of each entry to the next one, or to the end of the data, and
    /// from the index to the first.
    pub padding_bytes: u64,
}

/// What the entries at `rows` hold, or all of them; an entry that is given twice counts twice.
pub fn stats(pack: &PackReader, rows: Option<&[u64]>) -> Result<Stats> {
    stats_of(&[(pack, rows)])
}

/// What entries of several packs hold together.
pub(super) fn stats_of(parts: &[(&PackReader, Option<&[u64]>)]) -> Result<Stats> {
    let mut counting = Counting::default();
    for (pack, rows) in parts {
        match rows {
            None => counting.add(pack, 0..pack.len(), true)?,
            Some(rows) => counting.add(pack, rows.iter().copied(), true)?,
        }
    }
    counting.stats.summary = Summary::of(counting.steps);
    Ok(counting.stats)
}

/// What the entries at `places`, each the position of a pack and of an entry in it, hold
/// together; all of them for `None`.
pub fn stats_of_places(packs: &[Arc<PackReader>], places: Option<&[(u32, u64)]>) -> Result<Stats> {
    let mut rows = vec![Vec::new(); packs.len()];
    for &(pack, row) in places.unwrap_or_default() {
        let Some(rows) = rows.get_mut(pack as usize) else {
            let text = format!("there is no pack {pack} among {}", packs.len());
            return Err(Error::OutOfRange(text));
        };
        rows.push(row);
    }
    let parts: Vec<(&PackReader, Option<&[u64]>)> = packs
        .iter()
        .zip(&rows)
        .map(|(pack, rows)| (&**pack, places.is_some().then_some(rows.as_slice())))
        .collect();
    stats_of(&parts)
}

/// What the index alone says of all entries: nothing about runs.
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
        // Looked at only where there is a run: without sections it is a pass over all entries.
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
            // One item for each entry, which the reader has seen to.
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
