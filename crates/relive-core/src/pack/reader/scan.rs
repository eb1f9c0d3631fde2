//! One pass over all runs of a pack that does not say about them what others do.

use super::PackReader;
use super::payload::parallel;
use crate::pack::sections::{Checkpoints, RunColumns, RunColumnsBuilder};
use crate::runs::{Outline, outline};
use crate::{Result, pool};

/// Stored bytes that one thread has in hand at a time, unless a single entry has more.
const PART_BYTES: u64 = 4 << 20;

/// Entries of one part, however small they are.
const PART_ENTRIES: usize = 4096;

/// Parts whose results wait to be put in order, for each thread.
const PARTS_PER_THREAD: usize = 4;

/// What a pass over all entries finds.
pub(super) struct Scan {
    pub(super) columns: RunColumns,
    pub(super) checkpoints: Checkpoints,
}

/// Reads every run once, in parallel; the error is that of the first entry that has one.
pub(super) fn scan(pack: &PackReader) -> Result<Scan> {
    let threads = pool::default_threads();
    let mut columns = RunColumnsBuilder::default();
    let mut checkpoints = Checkpoints::default();
    let parts = cut(pack);
    let mut outlined = 0;
    for group in parts.chunks(threads * PARTS_PER_THREAD) {
        for outlines in parallel(group.to_vec(), threads, &|part| outlines(pack, &part)) {
            for (i, outline) in outlines? {
                others(&mut columns, &mut checkpoints, i - outlined)?;
                outlined = i + 1;
                let meta = &outline.meta;
                let engine = meta.engine.as_deref();
                columns.push(meta.max_score, meta.steps, meta.highest_tile, engine);
                checkpoints.push(meta.steps, &outline.checkpoints)?;
            }
        }
    }
    others(&mut columns, &mut checkpoints, pack.len() - outlined)?;
    Ok(Scan { columns: columns.finish(), checkpoints })
}

/// The next entries are no runs.
fn others(columns: &mut RunColumnsBuilder, checkpoints: &mut Checkpoints, n: u64) -> Result<()> {
    (0..n).try_for_each(|_| {
        columns.push_other();
        checkpoints.push(0, &[])
    })
}

/// All runs, cut into parts that are read with one request each.
fn cut(pack: &PackReader) -> Vec<Vec<u64>> {
    let mut parts: Vec<Vec<u64>> = Vec::new();
    let mut bytes = PART_BYTES;
    for (i, entry) in (0..).zip(pack.entries()) {
        if !entry.is_run() {
            continue;
        }
        bytes = bytes.saturating_add(u64::from(entry.length));
        match parts.last_mut() {
            Some(part) if bytes <= PART_BYTES && part.len() < PART_ENTRIES => part.push(i),
            _ => {
                parts.push(vec![i]);
                bytes = u64::from(entry.length);
            }
        }
    }
    parts
}

fn outlines(pack: &PackReader, part: &[u64]) -> Result<Vec<(u64, Outline)>> {
    let found = pack.each(part, 1, &|_| Ok(()), &|i, entry, stored| {
        let version = pack.run_version(i)?;
        let payload = pack.decode(i, entry, stored)?;
        let outline = outline(version, &payload);
        outline.map(|found| (i, found)).map_err(|error| pack.about_entry(i, entry, error))
    })?;
    found.into_iter().collect()
}
