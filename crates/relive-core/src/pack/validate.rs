//! Validates a pack: header, index, sections, entries, and the bytes between them.
//!
//! Problems are collected, so that one damaged entry does not hide the next. Only failures of the
//! system, such as a missing file or a failing disk, are errors.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::ops::Range;

use super::index::groups;
use super::layout::{
    ENTRY_BYTES, Entry, FOOTER_BYTES, HAS_DATA_CRC, HAS_SECTIONS, HEADER_BYTES,
    SECTION_HEADER_BYTES, SectionHeader, Tag, align_up, u32_at,
};
use super::reader::{Options, PackReader, Verify, checksum_mismatch, fetch_one};
use super::stats::Summary;
use crate::codec::Codec;
use crate::crc::{Crc32c, crc32c};
use crate::runs::{self, Run, STEP_ROW_BYTES, StepRow, Version};
use crate::storage::Storage;
use crate::{Error, Result, pool};

/// The number of entries in a sample.
const SAMPLE: u64 = 256;

/// The size of the groups in which entries are read.
const GROUP_BYTES: u64 = 8 << 20;

/// The most entries of a group.
const GROUP_ENTRIES: usize = 4096;

/// Bytes that are read at a time.
const BLOCK_BYTES: u64 = 8 << 20;

/// How much of a pack or a record store is validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// A pack's header, footer, index and directory; a record store's `meta.json`, journal and
    /// headers.
    Index,
    /// The same, a pack's sections except the step table, and some entries or records.
    Sample,
    /// Every byte, and whether derived data matches the entries.
    Full,
}

impl Level {
    /// Every level with its name.
    pub const NAMES: [(&'static str, Self); 3] =
        [("index", Self::Index), ("sample", Self::Sample), ("full", Self::Full)];
}

/// One problem.
#[derive(Debug)]
pub struct Problem {
    /// The entry that has the problem, if any.
    pub entry: Option<u64>,
    /// The offset in the file, if known.
    pub offset: Option<u64>,
    /// The error that reading would return.
    pub error: Error,
}

impl Problem {
    fn at(offset: u64, text: impl Into<String>) -> Self {
        Self { entry: None, offset: Some(offset), error: Error::Corrupt(text.into()) }
    }
}

/// The result of a validation.
#[derive(Debug, Default)]
pub struct Report {
    /// The number of entries that were read.
    pub entries: u64,
    /// Whether some bytes of entries have no checksum, so that not all damage can be found.
    pub unchecked: bool,
    /// All problems.
    pub problems: Vec<Problem>,
}

/// Called with the number of entries done and of those to be read; an error stops the validation.
pub type Progress<'a> = dyn Fn(u64, u64) -> Result<()> + 'a;

/// Validates a pack on at most `threads` threads.
pub fn validate(
    storage: Box<dyn Storage>,
    level: Level,
    max_payload_bytes: u64,
    threads: usize,
    progress: &Progress<'_>,
) -> Result<Report> {
    let options = Options { verify: Verify::Always, max_payload_bytes };
    let mut report = Report::default();
    let pack = match PackReader::open_storage(storage, options) {
        Ok(pack) => pack,
        Err(error) => {
            report.problems.push(Problem { entry: None, offset: None, error: damage(error)? });
            return Ok(report);
        }
    };
    check_padding(&pack, &mut report)?;
    report.unchecked = !has_data_crc(&pack) && has_entry_without_crc(&pack)?;
    if level == Level::Index {
        return Ok(report);
    }
    check_sections(&pack, level, &mut report)?;
    if level == Level::Sample {
        check_sample(&pack, threads, progress, &mut report)?;
        return Ok(report);
    }
    let derived = check_all_entries(&pack, threads, progress, &mut report)?;
    check_stats(&pack, derived, &mut report)?;
    Ok(report)
}

/// Returns an error as a problem of the file; failures of the system stay errors.
fn damage(error: Error) -> Result<Error> {
    match error {
        Error::Io(_) | Error::Closed(_) | Error::Locked(_) => Err(error),
        error => Ok(error),
    }
}

fn has_data_crc(pack: &PackReader) -> bool {
    pack.header().flags & HAS_DATA_CRC != 0 || pack.footer().data_crc != 0
}

fn has_entry_without_crc(pack: &PackReader) -> Result<bool> {
    for position in 0..pack.len() {
        let entry = pack.entry(position)?;
        if entry.length > 0 && !entry.has_crc() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reads a range: borrowed if the file is mapped.
fn bytes(pack: &PackReader, range: Range<u64>) -> Result<Cow<'_, [u8]>> {
    pack.storage().recheck()?;
    fetch_one(pack.storage(), range)
}

/// Checks entries spread over the whole pack, including the first and the last.
fn check_sample(
    pack: &PackReader,
    threads: usize,
    progress: &Progress<'_>,
    report: &mut Report,
) -> Result<()> {
    let count = pack.len();
    let chosen: Vec<u64> = match count {
        0..=SAMPLE => (0..count).collect(),
        _ => (0..SAMPLE).map(|k| k * (count - 1) / (SAMPLE - 1)).collect(),
    };
    let total = chosen.len() as u64;
    for group in chosen.chunks(16) {
        check_group(pack, group, threads, report, &|position, entry| {
            let range = entry.offset..entry.end().unwrap_or(entry.offset);
            let stored = bytes(pack, range)?;
            let found = entry_problem(pack, position, entry, &stored, false)?;
            Ok(Checked { steps: None, problem: found.problem })
        })?;
        report.entries += group.len() as u64;
        progress(report.entries, total)?;
    }
    Ok(())
}

/// Checks every entry and the bytes between them; returns the summary of the runs.
fn check_all_entries(
    pack: &PackReader,
    threads: usize,
    progress: &Progress<'_>,
    report: &mut Report,
) -> Result<Summary> {
    let mut lengths = Vec::new();
    let mut data_crc = Crc32c::default();
    // The offset of an entry, or the end of the last one.
    let offset = |i: u64| -> Result<u64> {
        if i < pack.len() { Ok(pack.entry(i)?.offset) } else { Ok(pack.footer().data_end) }
    };
    let entry_bytes = |i: usize| Ok(offset(i as u64 + 1)? - offset(i as u64)?);
    for group in groups(pack.len() as usize, entry_bytes, GROUP_BYTES, GROUP_ENTRIES)? {
        let (from, until) = (group.start as u64, group.end as u64);
        let range = offset(from)?..offset(until)?;
        let whole = bytes(pack, range.clone())?;
        // The index was checked when the pack was opened: entries are inside.
        let part = |start: u64, end: u64| {
            let part = (start - range.start) as usize..(end - range.start) as usize;
            whole.get(part).unwrap_or_default()
        };
        let positions: Vec<u64> = (from..until).collect();
        let checked = check_group(pack, &positions, threads, report, &|position, entry| {
            let end = entry.end().unwrap_or(entry.offset);
            let mut checked = entry_problem(pack, position, entry, part(entry.offset, end), true)?;
            let padding = part(end, offset(position + 1)?);
            if let Some(at) = padding.iter().position(|&byte| byte != 0)
                && checked.problem.is_none()
            {
                let text = "bytes between entries are not zero";
                checked.problem = Some(Problem::at(end + at as u64, text));
            }
            Ok(checked)
        })?;
        // A second pass over cached bytes is faster than combining the CRCs of entries.
        data_crc.update(&whole);
        lengths.extend(checked.iter().filter_map(|entry| entry.steps));
        progress(until, pack.len())?;
    }
    report.entries = pack.len();
    if has_data_crc(pack) && pack.footer().data_crc != data_crc.value() {
        let footer = pack.storage().len() - FOOTER_BYTES as u64;
        let text = "the checksum of all entries does not match";
        report.problems.push(Problem::at(footer + 12, text));
    }
    Ok(Summary::of(lengths))
}

/// The result for one entry.
struct Checked {
    steps: Option<u32>,
    problem: Option<Problem>,
}

type Check<'a> = dyn Fn(u64, &Entry) -> Result<Checked> + Sync + 'a;

fn check_group(
    pack: &PackReader,
    positions: &[u64],
    threads: usize,
    report: &mut Report,
    check: &Check<'_>,
) -> Result<Vec<Checked>> {
    let results = pool::map(positions.iter().copied(), threads, |position| {
        pack.entry(position).and_then(|entry| check(position, &entry))
    });
    let mut group: Vec<Checked> = results.into_iter().collect::<Result<_>>()?;
    report.problems.extend(group.iter_mut().filter_map(|checked| checked.problem.take()));
    Ok(group)
}

/// Checks one entry.
fn entry_problem(
    pack: &PackReader,
    position: u64,
    entry: &Entry,
    stored: &[u8],
    derived: bool,
) -> Result<Checked> {
    match check_entry(pack, position, entry, stored, derived) {
        Ok(steps) => Ok(Checked { steps, problem: None }),
        Err(error) => {
            let (entry, offset) = (Some(position), Some(entry.offset));
            let problem = Some(Problem { entry, offset, error: damage(error)? });
            Ok(Checked { steps: None, problem })
        }
    }
}

/// Checks one entry, and its derived data if `derived`; returns the steps of a run.
fn check_entry(
    pack: &PackReader,
    position: u64,
    entry: &Entry,
    stored: &[u8],
    derived: bool,
) -> Result<Option<u32>> {
    if entry.has_crc() && crc32c(stored) != entry.crc {
        return Err(checksum_mismatch());
    }
    if entry.codec()? == Codec::Raw && entry.logical != 0 {
        return Err(Error::Corrupt(
            "the entry is not compressed, but has a decompressed length".into(),
        ));
    }
    let payload = match entry.codec()? {
        Codec::Raw => Cow::Borrowed(stored),
        _ => entry.decode(stored.into(), pack.decoder()?)?,
    };
    let Some(version) = entry.run_version() else { return Ok(None) };
    let outline = runs::outline(version, &payload)?;
    if derived {
        check_derived(pack, position as usize, version, &payload, &outline)?;
    }
    Ok(Some(outline.meta.steps))
}

/// Checks that the sections match the payload of a run.
fn check_derived(
    pack: &PackReader,
    position: usize,
    version: Version,
    payload: &[u8],
    outline: &runs::Outline,
) -> Result<()> {
    let differs = |tag: Tag| {
        Err(Error::Corrupt(format!("section {tag} does not match the payload of the entry")))
    };
    let meta = &outline.meta;
    // A section that cannot be read is reported once, on its own.
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

fn blocks(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    (range.start..end).step_by(BLOCK_BYTES as usize).map(move |at| at..end.min(at + BLOCK_BYTES))
}

/// Reports the first byte of the range that is not zero.
fn check_zeros(
    pack: &PackReader,
    range: Range<u64>,
    what: &str,
    report: &mut Report,
) -> Result<()> {
    for block in blocks(range) {
        let start = block.start;
        let found = bytes(pack, block)?.iter().position(|&byte| byte != 0);
        if let Some(position) = found {
            let text = format!("{what} are not zero");
            report.problems.push(Problem::at(start + position as u64, text));
            return Ok(());
        }
    }
    Ok(())
}

/// Checks the bytes that no checksum covers: reserved fields, padding, the end of the footer.
fn check_padding(pack: &PackReader, report: &mut Report) -> Result<()> {
    let footer = pack.footer();
    let index_end = HEADER_BYTES as u64 + ENTRY_BYTES as u64 * pack.len();
    let index = bytes(pack, HEADER_BYTES as u64..index_end)?;
    for (position, entry) in index.chunks_exact(ENTRY_BYTES).enumerate() {
        if entry[24..].iter().any(|&byte| byte != 0) {
            let offset = (HEADER_BYTES + position * ENTRY_BYTES + 24) as u64;
            let text = format!("the reserved bytes of index entry {position} are not zero");
            report.problems.push(Problem::at(offset, text));
        }
    }
    let length = pack.storage().len();
    check_zeros(pack, length - 4..length, "the last bytes of the footer", report)?;
    let first = match pack.len() {
        0 => footer.data_end,
        _ => pack.entry(0)?.offset,
    };
    check_zeros(pack, index_end..first, "bytes between index and entries", report)?;
    let last = match pack.len() {
        0 => footer.data_end,
        count => pack.entry(count - 1)?.end().unwrap_or(footer.data_end),
    };
    if last != footer.data_end {
        let text = format!("the entries end at {last}, but the footer states {}", footer.data_end);
        report.problems.push(Problem::at(length - FOOTER_BYTES as u64, text));
    }
    Ok(())
}

/// Returns the end of the stats block, or of the entries if there is none.
fn stats_end(pack: &PackReader) -> Result<u64> {
    let footer = pack.footer();
    if footer.stats_offset == 0 {
        return Ok(footer.data_end);
    }
    let start = footer.stats_offset;
    let length = u32_at(&bytes(pack, start..start.saturating_add(4))?, 0);
    Ok(start.saturating_add(4 + u64::from(length)))
}

/// Checks that sections match the directory and their checksums, can be read, and have only zeros
/// between them.
fn check_sections(pack: &PackReader, level: Level, report: &mut Report) -> Result<()> {
    let footer = pack.footer();
    let end = pack.storage().len() - FOOTER_BYTES as u64;
    if footer.stats_offset != 0 {
        let gap = footer.data_end..footer.stats_offset;
        check_zeros(pack, gap, "bytes between entries and stats", report)?;
    }
    let mut at = match stats_end(pack) {
        Ok(at) => at,
        Err(error) => return add(report, footer.stats_offset, error),
    };
    if pack.header().flags & HAS_SECTIONS == 0 {
        return check_zeros(pack, at.min(end)..end, "bytes before the footer", report);
    }
    for location in pack.directory().iter() {
        check_zeros(pack, at..location.offset, "bytes between sections", report)?;
        at = location.range().end;
        let large = location.tag == Tag::STEP;
        if (!large || level == Level::Full)
            && let Err(error) = check_section(pack, location.range(), location.tag)
        {
            add(report, location.offset, error)?;
        }
    }
    let directory = align_up(at, 8).unwrap_or(end);
    check_zeros(pack, at..directory, "bytes between sections", report)?;
    let header = bytes(pack, directory..end.min(directory + SECTION_HEADER_BYTES as u64))?;
    match SectionHeader::parse(&header) {
        Some(header) if header.tag == Tag::DIRS => {
            let after = directory + SECTION_HEADER_BYTES as u64 + header.length;
            check_zeros(pack, after.min(end)..end, "bytes before the footer", report)?;
        }
        _ => report.problems.push(Problem::at(directory, "the section directory is missing")),
    }
    parse_sections(pack, report)
}

/// Parses each section as the reader does.
fn parse_sections(pack: &PackReader, report: &mut Report) -> Result<()> {
    let known: [(Tag, Result<()>); 6] = [
        (Tag::KIND, pack.kinds().map(drop)),
        (Tag::NAME, pack.names().map(drop)),
        (Tag::DICT, pack.decoder().map(drop)),
        (Tag::RUNS, if_there(pack, Tag::RUNS, || pack.run_columns().map(drop))),
        (Tag::CKPT, if_there(pack, Tag::CKPT, || pack.checkpoints().map(drop))),
        (Tag::STEP, pack.step_table().map(drop)),
    ];
    for (tag, outcome) in known {
        if let Err(error) = outcome {
            let offset = pack.directory().find(tag).map_or(0, |location| location.offset);
            add(report, offset, error)?;
        }
    }
    if let (Ok(Some(table)), Ok(checkpoints)) = (pack.step_table(), pack.checkpoints())
        && table.len() != checkpoints.total()
    {
        let offset = pack.directory().find(Tag::STEP).map_or(0, |location| location.offset);
        report.problems.push(Problem::at(
            offset,
            "section STEP does not have as many rows as the runs have steps",
        ));
    }
    Ok(())
}

fn if_there(pack: &PackReader, tag: Tag, read: impl FnOnce() -> Result<()>) -> Result<()> {
    if pack.directory().find(tag).is_some() { read() } else { Ok(()) }
}

/// Compares a section with its checksum, in blocks: a step table may be larger than memory.
fn check_section(pack: &PackReader, range: Range<u64>, tag: Tag) -> Result<()> {
    let body = range.start + SECTION_HEADER_BYTES as u64;
    let damaged = || Error::Corrupt(format!("section {tag} does not match its checksum"));
    let header = SectionHeader::parse(&bytes(pack, range.start..body)?).ok_or_else(damaged)?;
    let mut digest = SectionHeader::digest(header.tag, header.length);
    for block in blocks(body..range.end) {
        digest.update(&bytes(pack, block)?);
    }
    let same =
        header.tag == tag && header.length == range.end - body && header.crc == digest.value();
    if same { Ok(()) } else { Err(damaged()) }
}

/// Checks that the stats block matches its checksum and the entries.
fn check_stats(pack: &PackReader, derived: Summary, report: &mut Report) -> Result<()> {
    let start = pack.footer().stats_offset;
    if start == 0 {
        return Ok(());
    }
    match pack.summary() {
        // If entries are damaged the numbers differ, and the damage is reported already.
        Ok(Some(summary)) if summary != derived && report.problems.is_empty() => {
            let text = "the stats block does not match the entries";
            report.problems.push(Problem::at(start, text));
        }
        Ok(_) => {}
        Err(error) => add(report, start, error)?,
    }
    Ok(())
}

fn add(report: &mut Report, offset: u64, error: Error) -> Result<()> {
    report.problems.push(Problem { entry: None, offset: Some(offset), error: damage(error)? });
    Ok(())
}
