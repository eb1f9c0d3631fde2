//! Recovers an unfinished pack: makes a pack of its complete entries.

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
use super::reader::checksum_mismatch;
use super::seal::{BUFFER_BYTES, Extent, Unfinished, seal};
use super::unfinished::{
    DIGITS, EntryRecord, INFIX, Opening, PackJournal, Record, RunRecord, being_written,
    check_target, journal_of, moved_of, open_unfinished,
};
use super::writer::{WriterOptions, outline_of};
use crate::codec::Codec;
use crate::crc::Crc32c;
use crate::durable;
use crate::{Error, Result, pool};

/// The result of a recovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The number of recovered entries.
    pub entries: u64,
    /// The number of further entries in the journal that are incomplete or damaged.
    pub lost: u64,
    /// The size of the file.
    pub file_bytes: u64,
    /// The problem with the first entry that was lost.
    pub reason: Option<String>,
}

/// Returns the unfinished packs of `target`, sorted.
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

/// Returns the target of the unfinished pack at `path`; `None` if it is not named like one.
pub fn target_of(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.as_bytes();
    let (rest, digits) = name.split_at_checked(name.len().checked_sub(DIGITS)?)?;
    let target = rest.strip_suffix(INFIX.as_bytes())?;
    let is_hex = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    let valid = digits.iter().all(is_hex) && !target.is_empty();
    valid.then(|| path.with_file_name(OsStr::from_bytes(target)))
}

/// Writes a pack at `output` with the complete entries, from the first on without a gap, and
/// removes the unfinished one.
///
/// A pack that is still being written is `Closed`; an existing `output` is `AlreadyExists`, unless
/// it may be overwritten. A failure changes nothing.
pub fn recover(unfinished: &Path, output: &Path, overwrite: bool) -> Result<Recovered> {
    check_target(output, overwrite)?;
    let file = open_unfinished(unfinished)?;
    let about = |error: std::io::Error| durable::about(unfinished, &error);
    // A writer that finished between opening and locking has renamed its file.
    if !durable::try_lock(&file).map_err(about)? || !durable::is_at(&file, unfinished) {
        return Err(being_written(unfinished));
    }
    let metadata = file.metadata().map_err(about)?;
    let journal = journal_of(unfinished);
    if !durable::is_taken(&journal) {
        if metadata.len() > 0 {
            return Err(Error::Corrupt(format!(
                "cannot recover `{}`: its journal `{}` is missing",
                unfinished.display(),
                journal.display()
            )));
        }
        // The writer ended before it created the journal.
        crate::journal::Journal::create(&journal)?.flush()?;
    }
    let found = find_complete(&file, unfinished, &journal)?;
    let folder = durable::folder_of(output);
    let device = folder.metadata().map_err(|error| durable::about(folder, &error))?.dev();
    let ready = Unfinished {
        path: unfinished,
        file: &file,
        opening: &found.opening,
        extent: found.extent,
        dirty: true,
        // A file that already has another name, or cannot be renamed, must not be changed.
        copy: metadata.nlink() > 1 || metadata.dev() != device,
        threads: pool::default_threads(),
    };
    let finished = seal(&ready, output, overwrite)?;
    // A leftover of a writer that ended while it copied its entries.
    let _ = durable::remove(&moved_of(unfinished));
    Ok(Recovered {
        entries: finished.entries,
        lost: found.lost,
        file_bytes: finished.file_bytes,
        reason: found.reason,
    })
}

/// The complete entries at the start of an unfinished pack.
struct Complete {
    opening: Opening,
    extent: Extent,
    /// The number of user-defined kinds so far.
    kinds: u16,
    lost: u64,
    reason: Option<String>,
}

/// Finds the longest prefix of entries whose bytes match the journal.
fn find_complete(file: &File, path: &Path, journal: &Path) -> Result<Complete> {
    let mut records = PackJournal::open(journal)?;
    let opening = match records.next()? {
        Some(Record::Opening(opening)) if is_valid(&opening) => opening,
        // The opening is written before the first entry, so there are no entries.
        None => default_opening(),
        Some(_) => return Err(no_journal(journal)),
    };
    let extent = Extent::new(opening.start);
    let mut found = Complete { opening, extent, kinds: 0, lost: 0, reason: None };
    let mut buffer = vec![0; BUFFER_BYTES];
    while let Some(record) = records.next()? {
        let record = match record {
            Record::Entry(record) => record,
            Record::Kind { .. } => {
                found.kinds = found.kinds.saturating_add(1);
                continue;
            }
            Record::Opening(_) => return Err(no_journal(journal)),
        };
        if found.reason.is_none() {
            found.reason = problem(&found, &record, file, path, &mut buffer)?;
        }
        if found.reason.is_some() {
            found.lost += 1;
        } else {
            found.extent.push(&record.entry);
        }
    }
    let entries = found.opening.start..found.extent.end;
    found.extent.crc = crc_of(file, entries, &mut buffer).map_err(|e| durable::about(path, &e))?;
    Ok(found)
}

fn no_journal(path: &Path) -> Error {
    Error::Corrupt(format!("`{}` is not a pack journal", path.display()))
}

/// Whether the options are valid.
fn is_valid(opening: &Opening) -> bool {
    let most = HEADER_BYTES as u64 + ENTRY_BYTES as u64 * MAX_ENTRIES + u64::from(MAX_ALIGN);
    opening.start.is_multiple_of(u64::from(opening.align))
        && (HEADER_BYTES as u64..=most).contains(&opening.start)
}

/// Returns the problem with the next entry, if any.
fn problem(
    found: &Complete,
    record: &EntryRecord<'_>,
    file: &File,
    path: &Path,
    buffer: &mut [u8],
) -> Result<Option<String>> {
    let why = match check(found, record, file, buffer) {
        Ok(()) => return Ok(None),
        Err(Error::Io(error)) if error.kind() == ErrorKind::UnexpectedEof => {
            "the file is truncated".to_owned()
        }
        Err(Error::Io(error)) => return Err(durable::about(path, &error)),
        Err(error) => error.to_string(),
    };
    let (count, offset) = (found.extent.count, record.entry.offset);
    Ok(Some(format!("entry {count} at offset {offset}: {why}")))
}

fn check(found: &Complete, record: &EntryRecord<'_>, file: &File, buffer: &mut [u8]) -> Result<()> {
    let bad = |text: &str| Err(Error::Corrupt(text.into()));
    let (opening, entry) = (&found.opening, &record.entry);
    let codec = entry.codec()?;
    let next = found.extent.next(opening.align);
    let Some(end) = entry.end().filter(|_| next == Some(entry.offset)) else {
        return bad("the entry does not follow the previous one");
    };
    let kept = if opening.checksum { (HAS_CRC, record.crc) } else { (0, 0) };
    let needs_dictionary = entry.flags & HAS_DICTIONARY != 0;
    let is_known = entry.kind.checked_sub(FIRST_USER_KIND).is_none_or(|kind| kind < found.kinds);
    let as_written = (entry.flags & HAS_CRC, entry.crc) == kept
        && (!needs_dictionary || (codec == Codec::Zstd && opening.dictionary.is_some()))
        && (codec != Codec::Raw || entry.logical == 0)
        && entry.is_run() == record.run.is_some()
        && is_known;
    if !as_written {
        return bad("the journal record of the entry is invalid");
    }
    let mut padding = vec![0; (entry.offset - found.extent.end) as usize];
    file.read_exact_at(&mut padding, found.extent.end)?;
    if padding.iter().any(|&byte| byte != 0) {
        return bad("the padding before the entry is not zero");
    }
    if crc_of(file, entry.offset..end, buffer)? != record.crc {
        return Err(checksum_mismatch());
    }
    if codec == Codec::Raw && record.run.is_none() {
        return Ok(());
    }
    // The checksum of these bytes matches, so the file has them.
    let mut stored = vec![0; entry.length as usize];
    file.read_exact_at(&mut stored, entry.offset)?;
    let outline = outline_of(entry.kind, &entry.decode(stored.into(), &opening.decoder())?)?;
    if record.run != outline.as_ref().map(RunRecord::of) {
        return bad("the journal record of the entry does not match the run");
    }
    Ok(())
}

fn crc_of(file: &File, range: Range<u64>, buffer: &mut [u8]) -> std::io::Result<u32> {
    let mut digest = Crc32c::default();
    let mut at = range.start;
    while at < range.end {
        let size = (range.end - at).min(buffer.len() as u64) as usize;
        file.read_exact_at(&mut buffer[..size], at)?;
        digest.update(&buffer[..size]);
        at += size as u64;
    }
    Ok(digest.value())
}

/// Returns the options of a pack whose writer ended before it recorded them.
fn default_opening() -> Opening {
    let WriterOptions { align, checksum, step_table, max_payload_bytes, .. } =
        WriterOptions::default();
    let start = u64::from(align);
    Opening { checksum, step_table, align, start, max_payload_bytes, dictionary: None }
}
