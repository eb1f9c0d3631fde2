//! Everything but the entries: unused bytes, sections, the stats block.

use std::borrow::Cow;
use std::ops::Range;

use super::super::layout::{
    ENTRY_BYTES, FOOTER_BYTES, HAS_SECTIONS, HEADER_BYTES, SECTION_HEADER_BYTES, SectionHeader,
    Tag, align_up, u32_at,
};
use super::super::reader::PackReader;
use super::super::stats::Summary;
use super::{Level, Problem, Report, damage, index_end};
use crate::Result;
use crate::crc::crc32c;

/// Bytes that are looked at in one piece.
const PIECE: u64 = 8 << 20;

/// The bytes of a range: of the map, or read.
pub(super) fn bytes<'a>(pack: &'a PackReader, range: Range<u64>) -> Result<Cow<'a, [u8]>> {
    if let Some(whole) = pack.storage().mapped() {
        pack.storage().recheck()?;
        return crate::storage::slice(pack.storage(), whole, &range).map(Cow::Borrowed);
    }
    let mut read = pack.storage().read(std::slice::from_ref(&range))?;
    Ok(Cow::Owned(read.pop().unwrap_or_default()))
}

fn pieces(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    (range.start..end).step_by(PIECE as usize).map(move |at| at..end.min(at + PIECE))
}

/// Reports the first byte of the range that is not zero.
pub(super) fn zeros(
    pack: &PackReader,
    range: Range<u64>,
    what: &str,
    report: &mut Report,
) -> Result<()> {
    for piece in pieces(range) {
        let start = piece.start;
        let found = bytes(pack, piece)?.iter().position(|&byte| byte != 0);
        if let Some(position) = found {
            let text = format!("{what} must be zero");
            report.problems.push(Problem::at(start + position as u64, text));
            return Ok(());
        }
    }
    Ok(())
}

/// What no checksum covers: reserved fields, unused slots, padding, the end of the footer.
pub(super) fn fixed_parts(pack: &PackReader, report: &mut Report) -> Result<()> {
    let (header, footer) = (pack.header(), pack.footer());
    let index = bytes(pack, HEADER_BYTES as u64..index_end(header))?;
    for (position, entry) in index.chunks_exact(ENTRY_BYTES).enumerate() {
        if entry[24..].iter().any(|&byte| byte != 0) {
            let offset = (HEADER_BYTES + position * ENTRY_BYTES + 24) as u64;
            let text = format!("the reserved bytes of index entry {position} must be zero");
            report.problems.push(Problem::at(offset, text));
        }
    }
    let length = pack.storage().len();
    zeros(pack, length - 4..length, "the end of the footer", report)?;
    let first = match pack.len() {
        0 => footer.data_end,
        _ => pack.entry(0)?.offset,
    };
    zeros(pack, index_end(header)..first, "bytes between index and entries", report)?;
    let last = match pack.len() {
        0 => footer.data_end,
        count => pack.entry(count - 1)?.end().unwrap_or(footer.data_end),
    };
    if last != footer.data_end {
        let text = format!("the entries end at {last}, and the footer says {}", footer.data_end);
        report.problems.push(Problem::at(length - FOOTER_BYTES as u64, text));
    }
    Ok(())
}

/// Where the stats block ends, or the data where there is none.
fn stats_end(pack: &PackReader) -> Result<u64> {
    let footer = pack.footer();
    if footer.stats_offset == 0 {
        return Ok(footer.data_end);
    }
    let start = footer.stats_offset;
    let length = u32_at(&bytes(pack, start..start.saturating_add(4))?, 0);
    Ok(start.saturating_add(4 + u64::from(length)))
}

/// That sections follow each other with zeros between, are those of the directory, have the
/// checksums they say, and can be read.
pub(super) fn sections(pack: &PackReader, level: Level, report: &mut Report) -> Result<()> {
    let footer = pack.footer();
    let end = pack.storage().len() - FOOTER_BYTES as u64;
    if footer.stats_offset != 0 {
        let gap = footer.data_end..footer.stats_offset;
        zeros(pack, gap, "bytes between entries and stats", report)?;
    }
    let mut at = match stats_end(pack) {
        Ok(at) => at,
        Err(error) => return add(report, footer.stats_offset, error),
    };
    if pack.header().flags & HAS_SECTIONS == 0 {
        return zeros(pack, at.min(end)..end, "bytes before the footer", report);
    }
    for place in pack.directory().iter() {
        zeros(pack, at..place.offset, "bytes between sections", report)?;
        at = place.range().end;
        let large = place.tag == Tag::STEP;
        if (!large || level == Level::Full)
            && let Err(error) = checksum(pack, place.range(), place.tag)
        {
            add(report, place.offset, error)?;
        }
    }
    let directory = align_up(at, 8).unwrap_or(end);
    zeros(pack, at..directory, "bytes between sections", report)?;
    let header = bytes(pack, directory..end.min(directory + SECTION_HEADER_BYTES as u64))?;
    match SectionHeader::parse(&header) {
        Some(header) if header.tag == Tag::DIRS => {
            let after = directory + SECTION_HEADER_BYTES as u64 + header.length;
            zeros(pack, after.min(end)..end, "bytes before the footer", report)?;
        }
        _ => report.problems.push(Problem::at(directory, "the directory is not where it must be")),
    }
    readable(pack, report)
}

/// Reads each section as its users do.
fn readable(pack: &PackReader, report: &mut Report) -> Result<()> {
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
            let offset = pack.directory().find(tag).map_or(0, |place| place.offset);
            add(report, offset, error)?;
        }
    }
    if let (Ok(Some(table)), Ok(checkpoints)) = (pack.step_table(), pack.checkpoints())
        && table.len() != checkpoints.total()
    {
        let offset = pack.directory().find(Tag::STEP).map_or(0, |place| place.offset);
        report.problems.push(Problem::at(offset, "section STEP has not the rows of all runs"));
    }
    Ok(())
}

fn if_there(pack: &PackReader, tag: Tag, read: impl FnOnce() -> Result<()>) -> Result<()> {
    if pack.directory().find(tag).is_some() { read() } else { Ok(()) }
}

/// Compares a section with its checksum, in pieces: a step table may be larger than memory.
fn checksum(pack: &PackReader, range: Range<u64>, tag: Tag) -> Result<()> {
    let body = range.start + SECTION_HEADER_BYTES as u64;
    let damaged = || crate::Error::Corrupt(format!("section {tag}: the checksum does not match"));
    let header = SectionHeader::parse(&bytes(pack, range.start..body)?).ok_or_else(damaged)?;
    let mut digest = SectionHeader::digest(header.tag, header.length);
    for piece in pieces(body..range.end) {
        digest.update(&bytes(pack, piece)?);
    }
    let same =
        header.tag == tag && header.length == range.end - body && header.crc == digest.value();
    if same { Ok(()) } else { Err(damaged()) }
}

/// That the stats block has its checksum and says what the entries say.
pub(super) fn stats_block(pack: &PackReader, derived: Summary, report: &mut Report) -> Result<()> {
    let start = pack.footer().stats_offset;
    if start == 0 {
        return Ok(());
    }
    let stored = match stats_end(pack).and_then(|end| bytes(pack, start..end)) {
        Ok(stored) => stored,
        Err(error) => return add(report, start, error),
    };
    match pack.section(Tag::STAT) {
        Ok(Some(section)) if section.len() != 4 || u32_at(&section, 0) != crc32c(&stored) => {
            report.problems.push(Problem::at(start, "the checksum of the stats does not match"));
        }
        Ok(_) => {}
        Err(error) => add(report, start, error)?,
    }
    // Where entries are damaged, the numbers cannot agree, and that is known already.
    if report.problems.is_empty() {
        match Summary::parse_body(&stored[4..]) {
            Ok(summary) if summary == derived => {}
            Ok(_) => {
                report.problems.push(Problem::at(start, "the stats are not those of the entries"));
            }
            Err(error) => add(report, start, error)?,
        }
    }
    Ok(())
}

fn add(report: &mut Report, offset: u64, error: crate::Error) -> Result<()> {
    report.problems.push(Problem { entry: None, offset: Some(offset), error: damage(error)? });
    Ok(())
}
