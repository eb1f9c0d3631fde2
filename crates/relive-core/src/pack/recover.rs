//! What a writer left that did not come to its end, made into a pack.

#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::layout::{
    ENTRY_BYTES, FIRST_USER_KIND, HAS_CRC, HAS_DICTIONARY, HEADER_BYTES, MAX_ALIGN, MAX_ENTRIES,
};
use super::seal::{Draft, Extent, ROOM, open_draft, seal};
use super::unfinished::{
    DIGITS, EntryPart, MARK, Opening, Part, Parts, RunPart, journal_of, moved_of,
};
use super::writer::{WriterOptions, being_written, check_target, outline_of};
use crate::codec::{Codec, Stored};
use crate::crc::Crc32c;
use crate::durable;
use crate::{Error, Result, pool};

/// What became of an unfinished pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// How many entries the pack has.
    pub entries: u64,
    /// How many more the journal knew, whose bytes did not arrive.
    pub lost: u64,
    /// How many bytes the file has.
    pub file_bytes: u64,
    /// Why it has no more entries, where something is wrong with the next one.
    pub reason: Option<String>,
}

/// The unfinished packs that were to become `target`, sorted.
pub fn unfinished(target: &Path) -> Result<Vec<PathBuf>> {
    let folder = durable::folder_of(target);
    let about = |error: std::io::Error| durable::about(folder, &error);
    let mut found = Vec::new();
    for item in fs::read_dir(folder).map_err(about)? {
        let path = target.with_file_name(item.map_err(about)?.file_name());
        if target_of(&path).is_some_and(|meant| meant.file_name() == target.file_name()) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// What the unfinished pack at `path` was to become; none if the name is not of one.
pub fn target_of(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.as_bytes();
    let (rest, digits) = name.split_at_checked(name.len().checked_sub(DIGITS)?)?;
    let target = rest.strip_suffix(MARK.as_bytes())?;
    let is_hex = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    let whole = digits.iter().all(is_hex) && !target.is_empty();
    whole.then(|| path.with_file_name(OsStr::from_bytes(target)))
}

/// Makes a pack at `output` of the entries that arrived whole, from the first on without a
/// gap, and removes the unfinished one.
///
/// One that is still being written is `Closed`; an existing `output` is `AlreadyExists`, unless
/// it may be overwritten. Whatever fails leaves everything as it was.
pub fn recover(unfinished: &Path, output: &Path, overwrite: bool) -> Result<Recovered> {
    check_target(output, overwrite)?;
    let file = open_draft(unfinished)?;
    let about = |error: std::io::Error| durable::about(unfinished, &error);
    // A writer that ends between the two has given its file another name.
    if !durable::try_lock(&file).map_err(about)? || !durable::is_at(&file, unfinished) {
        return Err(being_written(unfinished));
    }
    let metadata = file.metadata().map_err(about)?;
    let journal = journal_of(unfinished);
    if !durable::is_taken(&journal) {
        if metadata.len() > 0 {
            return Err(Error::Corrupt(format!(
                "`{}` has no journal `{}`, without which its entries cannot be told apart",
                unfinished.display(),
                journal.display()
            )));
        }
        // The writer died between making the one and the other.
        crate::journal::Journal::create(&journal)?.flush()?;
    }
    let found = find_whole(&file, unfinished, &journal)?;
    let folder = durable::folder_of(output);
    let device = folder.metadata().map_err(|error| durable::about(folder, &error))?.dev();
    let draft = Draft {
        path: unfinished,
        file: &file,
        opening: &found.opening,
        extent: found.extent,
        touched: true,
        // A file that has its name already, or cannot be given it, is not written to.
        apart: metadata.nlink() > 1 || metadata.dev() != device,
        threads: pool::default_threads(),
    };
    let finished = seal(&draft, output, overwrite)?;
    // Left where a writer died while it moved its entries, and none are moved now.
    let _ = durable::remove(&moved_of(unfinished));
    Ok(Recovered {
        entries: finished.entries,
        lost: found.lost,
        file_bytes: finished.file_bytes,
        reason: found.reason,
    })
}

struct Whole {
    opening: Opening,
    extent: Extent,
    /// How many kinds of the user were named so far.
    kinds: u16,
    lost: u64,
    reason: Option<String>,
}

/// The longest prefix of entries whose bytes are what the journal says.
fn find_whole(file: &File, path: &Path, journal: &Path) -> Result<Whole> {
    let mut parts = Parts::read(journal)?;
    let opening = match parts.next_part()? {
        Some(Part::Opening(opening)) if can_start(&opening) => opening,
        // Nothing was appended before this was written.
        None => default_opening(),
        Some(_) => return Err(no_journal(journal)),
    };
    let extent = Extent::new(opening.start);
    let mut whole = Whole { opening, extent, kinds: 0, lost: 0, reason: None };
    let mut buffer = vec![0; ROOM];
    while let Some(part) = parts.next_part()? {
        let part = match part {
            Part::Entry(part) => part,
            Part::Kind { .. } => {
                whole.kinds = whole.kinds.saturating_add(1);
                continue;
            }
            Part::Opening(_) => return Err(no_journal(journal)),
        };
        if whole.reason.is_none() {
            whole.reason = problem(&whole, &part, file, path, &mut buffer)?;
        }
        if whole.reason.is_some() {
            whole.lost += 1;
        } else {
            whole.extent.push(&part.entry);
        }
    }
    let entries = whole.opening.start..whole.extent.end;
    whole.extent.crc = crc_of(file, entries, &mut buffer).map_err(|e| durable::about(path, &e))?;
    Ok(whole)
}

fn no_journal(path: &Path) -> Error {
    Error::Corrupt(format!("`{}` is no journal of a pack", path.display()))
}

/// Whether a writer can have begun like this.
fn can_start(opening: &Opening) -> bool {
    let most = HEADER_BYTES as u64 + ENTRY_BYTES as u64 * MAX_ENTRIES + u64::from(MAX_ALIGN);
    opening.start.is_multiple_of(u64::from(opening.align))
        && (HEADER_BYTES as u64..=most).contains(&opening.start)
}

/// What keeps the next entry from being taken.
fn problem(
    whole: &Whole,
    part: &EntryPart<'_>,
    file: &File,
    path: &Path,
    buffer: &mut [u8],
) -> Result<Option<String>> {
    let why = match check(whole, part, file, buffer) {
        Ok(()) => return Ok(None),
        Err(Error::Io(error)) if error.kind() == ErrorKind::UnexpectedEof => {
            "the file ends before it does".to_owned()
        }
        Err(Error::Io(error)) => return Err(durable::about(path, &error)),
        Err(error) => error.to_string(),
    };
    let (count, offset) = (whole.extent.count, part.entry.offset);
    Ok(Some(format!("entry {count} at offset {offset}: {why}")))
}

fn check(whole: &Whole, part: &EntryPart<'_>, file: &File, buffer: &mut [u8]) -> Result<()> {
    let bad = |text: &str| Err(Error::Corrupt(text.into()));
    let (opening, entry) = (&whole.opening, &part.entry);
    let codec = entry.codec()?;
    let next = whole.extent.next(opening.align);
    let Some(end) = entry.end().filter(|_| next == Some(entry.offset)) else {
        return bad("it does not follow the entry before");
    };
    let kept = if opening.checksum { (HAS_CRC, part.crc) } else { (0, 0) };
    let needs_dictionary = entry.flags & HAS_DICTIONARY != 0;
    let is_known = entry.kind.checked_sub(FIRST_USER_KIND).is_none_or(|kind| kind < whole.kinds);
    let as_written = (entry.flags & HAS_CRC, entry.crc) == kept
        && (!needs_dictionary || (codec == Codec::Zstd && opening.dictionary.is_some()))
        && (codec != Codec::Raw || entry.logical == 0)
        && entry.is_run() == part.run.is_some()
        && is_known;
    if !as_written {
        return bad("no writer has written its record");
    }
    let mut padding = vec![0; (entry.offset - whole.extent.end) as usize];
    file.read_exact_at(&mut padding, whole.extent.end)?;
    if padding.iter().any(|&byte| byte != 0) {
        return bad("the bytes before it are not zero");
    }
    if crc_of(file, entry.offset..end, buffer)? != part.crc {
        return bad("the checksum does not match");
    }
    if codec == Codec::Raw && part.run.is_none() {
        return Ok(());
    }
    // The file has so many bytes: their checksum was just seen to match.
    let mut stored = vec![0; entry.length as usize];
    file.read_exact_at(&mut stored, entry.offset)?;
    let payload = match codec {
        Codec::Raw => stored,
        _ => {
            let length = entry.payload_bytes();
            opening.decoder().decode(&Stored { codec, bytes: &stored, length })?
        }
    };
    let outline = outline_of(entry.kind, &payload)?;
    if part.run != outline.as_ref().map(RunPart::of) {
        return bad("the journal says other things of this run than it does");
    }
    Ok(())
}

fn crc_of(file: &File, range: Range<u64>, buffer: &mut [u8]) -> std::io::Result<u32> {
    let mut digest = Crc32c::default();
    let mut at = range.start;
    while at < range.end {
        let part = (range.end - at).min(buffer.len() as u64) as usize;
        file.read_exact_at(&mut buffer[..part], at)?;
        digest.update(&buffer[..part]);
        at += part as u64;
    }
    Ok(digest.value())
}

/// How a pack is opened whose writer died before it could say.
fn default_opening() -> Opening {
    let WriterOptions { align, checksum, step_table, max_payload_bytes, .. } =
        WriterOptions::default();
    let start = u64::from(align);
    Opening { checksum, step_table, align, start, max_payload_bytes, dictionary: None }
}
