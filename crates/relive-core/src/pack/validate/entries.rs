//! Entries: their checksums, their payloads, and what was derived from them.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::super::layout::{Entry, FOOTER_BYTES, HAS_DATA_CRC, KIND_V1, Tag};
use super::super::reader::PackReader;
use super::super::stats::Summary;
use super::rest::bytes;
use super::{Problem, Progress, Report, damage};
use crate::codec::Stored;
use crate::crc::{Crc32c, crc32c};
use crate::runs::{self, Run, STEP_ROW_BYTES, StepRow, Version};
use crate::{Error, Result, pool};

/// Entries that a sample has.
const SAMPLE: u64 = 256;

/// Entries are read in groups of about this many bytes.
const GROUP_BYTES: u64 = 8 << 20;

/// The most entries of a group.
const GROUP_ENTRIES: u64 = 4096;

/// Looks at entries spread over the whole pack, the first and the last among them.
pub(super) fn sample(pack: &PackReader, threads: usize, report: &mut Report) -> Result<()> {
    let count = pack.len();
    let chosen: Vec<u64> = match count {
        0..=SAMPLE => (0..count).collect(),
        _ => (0..SAMPLE).map(|k| k * (count - 1) / (SAMPLE - 1)).collect(),
    };
    for group in chosen.chunks(16) {
        check_group(pack, group, threads, report, &|position, entry| {
            let range = entry.offset..entry.end().unwrap_or(entry.offset);
            let stored = bytes(pack, range)?;
            let found = entry_problem(pack, position, entry, &stored, false)?;
            Ok(Looked { steps: None, problem: found.1 })
        })?;
    }
    report.entries = chosen.len() as u64;
    Ok(())
}

/// Looks at every entry and the bytes between them; gives the stats they add up to.
pub(super) fn all(
    pack: &PackReader,
    threads: usize,
    progress: &Progress<'_>,
    report: &mut Report,
) -> Result<Summary> {
    let mut lengths = Vec::new();
    let mut data_crc = Crc32c::default();
    let mut from = 0;
    while from < pack.len() {
        let (until, range) = group(pack, from)?;
        let whole = bytes(pack, range.clone())?;
        let positions: Vec<u64> = (from..until).collect();
        let part = |entry: &Entry, end: u64| {
            // The index was checked when the pack was opened: entries lie inside.
            let start = (entry.offset - range.start) as usize;
            whole.get(start..(end - range.start) as usize).unwrap_or_default()
        };
        let looked = check_group(pack, &positions, threads, report, &|position, entry| {
            let end = entry.end().unwrap_or(entry.offset);
            let stored = part(entry, end);
            let next =
                if position + 1 < until { pack.entry(position + 1)?.offset } else { range.end };
            let padding = whole
                .get((end - range.start) as usize..(next - range.start) as usize)
                .unwrap_or_default();
            let (steps, mut problem) = entry_problem(pack, position, entry, stored, true)?;
            if let Some(place) = padding.iter().position(|&byte| byte != 0)
                && problem.is_none()
            {
                problem =
                    Some(Problem::at(end + place as u64, "bytes between entries must be zero"));
            }
            Ok(Looked { steps, problem })
        })?;
        // A second pass over bytes that are near; to join the CRCs of entries takes longer.
        data_crc.update(&whole);
        lengths.extend(looked.iter().filter_map(|entry| entry.steps));
        from = until;
        progress(from, pack.len())?;
    }
    report.entries = pack.len();
    let stated = pack.footer().data_crc;
    if (pack.header().flags & HAS_DATA_CRC != 0 || stated != 0) && stated != data_crc.value() {
        let footer = pack.storage().len() - FOOTER_BYTES as u64;
        let text = "the checksum of all entries does not match";
        report.problems.push(Problem::at(footer + 12, text));
    }
    Ok(Summary::of(lengths))
}

/// The end of the group that begins at entry `from`, and the bytes it takes.
fn group(pack: &PackReader, from: u64) -> Result<(u64, Range<u64>)> {
    let start = pack.entry(from)?.offset;
    let mut until = from + 1;
    while until < pack.len() && until - from < GROUP_ENTRIES {
        let end = pack.entry(until)?.end().unwrap_or(u64::MAX);
        if end - start > GROUP_BYTES {
            break;
        }
        until += 1;
    }
    let end = if until < pack.len() { pack.entry(until)?.offset } else { pack.footer().data_end };
    Ok((until, start..end))
}

/// What looking at one entry gave.
struct Looked {
    steps: Option<u32>,
    problem: Option<Problem>,
}

type Look<'a> = dyn Fn(u64, &Entry) -> Result<Looked> + Sync + 'a;

fn check_group(
    pack: &PackReader,
    positions: &[u64],
    threads: usize,
    report: &mut Report,
    look: &Look<'_>,
) -> Result<Vec<Looked>> {
    let found: Vec<Mutex<Option<Result<Looked>>>> =
        positions.iter().map(|_| Mutex::new(None)).collect();
    pool::run(positions.len(), threads, &|part| {
        let outcome = pack.entry(positions[part]).and_then(|entry| look(positions[part], &entry));
        *found[part].lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
    });
    let mut looked = Vec::with_capacity(found.len());
    for slot in found {
        let outcome = slot.into_inner().unwrap_or_else(PoisonError::into_inner);
        let Some(outcome) = outcome else { continue };
        let mut outcome = outcome?;
        report.problems.extend(outcome.problem.take());
        looked.push(outcome);
    }
    Ok(looked)
}

/// The steps of a run, and what is wrong with an entry.
fn entry_problem(
    pack: &PackReader,
    position: u64,
    entry: &Entry,
    stored: &[u8],
    derived: bool,
) -> Result<(Option<u32>, Option<Problem>)> {
    match look_at(pack, position, entry, stored, derived) {
        Ok(steps) => Ok((steps, None)),
        Err(error) => {
            let (entry, offset) = (Some(position), Some(entry.offset));
            Ok((None, Some(Problem { entry, offset, error: damage(error)? })))
        }
    }
}

fn look_at(
    pack: &PackReader,
    position: u64,
    entry: &Entry,
    stored: &[u8],
    derived: bool,
) -> Result<Option<u32>> {
    if entry.has_crc() && crc32c(stored) != entry.crc {
        return Err(Error::Corrupt("the checksum does not match".into()));
    }
    let codec = entry.codec()?;
    let decoded;
    let payload = if codec == crate::codec::Codec::Raw {
        if entry.logical != 0 {
            return Err(Error::Corrupt("a raw entry must not state a second length".into()));
        }
        stored
    } else {
        let record = Stored { codec, bytes: stored, length: entry.payload_bytes() };
        decoded = pack.decoder()?.decode(&record)?;
        &decoded
    };
    if !entry.is_run() {
        return Ok(None);
    }
    let version = if entry.kind == KIND_V1 { Version::V1 } else { Version::V2 };
    let outline = runs::outline(version, payload)?;
    if derived {
        compare(pack, position as usize, version, payload, &outline)?;
    }
    Ok(Some(outline.meta.steps))
}

/// That the sections say of a run what its payload says.
fn compare(
    pack: &PackReader,
    position: usize,
    version: Version,
    payload: &[u8],
    outline: &runs::Outline,
) -> Result<()> {
    let differs = |tag: Tag| Err(Error::Corrupt(format!("section {tag} does not agree with it")));
    let meta = &outline.meta;
    // A section that cannot be read is reported by itself, once.
    if pack.directory().find(Tag::RUNS).is_some()
        && let Ok(columns) = pack.run_columns()
    {
        let same = columns.steps.get(position) == Some(&meta.steps)
            && columns.highest_tile.get(position) == Some(&meta.highest_tile)
            && columns.max_score.get(position) == Some(&meta.max_score)
            && columns.engine_of(position) == meta.engine.as_deref();
        if !same {
            return differs(Tag::RUNS);
        }
    }
    if pack.directory().find(Tag::CKPT).is_none() {
        return Ok(());
    }
    let Ok(checkpoints) = pack.checkpoints() else { return Ok(()) };
    if checkpoints.steps.get(position) != Some(&meta.steps)
        || checkpoints.of(position) != outline.checkpoints
    {
        return differs(Tag::CKPT);
    }
    if let Ok(Some(table)) = pack.step_table() {
        let mut rows = Vec::new();
        runs::project(&Run::parse_as(version, payload)?, position as u32, &mut rows);
        let expected: Vec<u8> = rows.iter().flat_map(StepRow::to_bytes).collect();
        let start =
            table.layout().rows_offset + checkpoints.first_step(position) * STEP_ROW_BYTES as u64;
        let stored = bytes(pack, start..start + expected.len() as u64)?;
        if *stored != *expected {
            return differs(Tag::STEP);
        }
    }
    Ok(())
}
