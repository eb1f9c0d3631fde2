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
    check_target, journal_of, moved_of, rest_of, sealing_record, with_suffix,
};
use super::writer::{WriterOptions, outline_of};
use crate::codec::Codec;
use crate::crc::Crc32c;
use crate::durable::{self, Appender};
use crate::journal::{Journal, find_damage};
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
    /// Why something was not recovered.
    pub reason: Option<String>,
    /// The file that has the bytes that were not recovered.
    pub rest: Option<PathBuf>,
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
/// Bytes after these entries are kept in a file of their own, at the offsets they had, and the
/// journal next to it. A pack that is still being written is `Closed`; an existing `output` is `AlreadyExists`, unless
/// it may be overwritten. A failure changes nothing.
pub fn recover(unfinished: &Path, output: &Path, overwrite: bool) -> Result<Recovered> {
    check_target(output, overwrite)?;
    let file = durable::open_rw(unfinished)?;
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
        Journal::create(&journal)?.flush()?;
    }
    let mut found = find_complete(&file, unfinished, &journal)?;
    let rest = keep_rest(&file, unfinished, &journal, &mut found)?;
    if rest.is_none() {
        // Should this process end while it seals, the next one must not take index, sections and
        // footer for something else.
        let (end, sequence) = found.journal_end;
        let mut journal = Journal::resume(&journal, end, sequence)?;
        if sequence == 0 {
            journal.append(&found.opening.to_record())?;
        }
        journal.append(&sealing_record(found.extent.count, found.extent.end))?;
        journal.flush()?;
    }
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
        rest,
    })
}

/// Copies the bytes after the complete entries and the journal to files of their own, and returns
/// the path of the first; `None` if there is nothing to keep.
fn keep_rest(
    file: &File,
    path: &Path,
    journal: &Path,
    found: &mut Complete,
) -> Result<Option<PathBuf>> {
    let rest = rest_of(path);
    // A recovery that was interrupted has kept them, and may have overwritten them since.
    if !durable::is_taken(&rest) {
        let end = file.metadata().map_err(|error| durable::about(path, &error))?.len();
        let after = found.unused..end;
        let damage = find_damage(journal)?;
        let has_bytes = !found.is_sealed
            && has_bytes(file, after.clone()).map_err(|error| durable::about(path, &error))?;
        if !has_bytes && damage.is_none() {
            return Ok(None);
        }
        let unused = durable::open(journal)?;
        let bytes = unused.metadata().map_err(|error| durable::about(journal, &error))?.len();
        keep(&unused, 0..bytes, &journal_of(&rest))?;
        keep(file, after, &rest)?;
        durable::sync_folder_of(&rest)?;
        if let Some(at) = damage {
            let text = format!("`{}` is damaged at byte {at}", journal.display());
            found.reason.get_or_insert(text);
        }
    }
    let text = || format!("the bytes from offset {} on have no journal record", found.unused);
    found.reason.get_or_insert_with(text);
    Ok(Some(rest))
}

/// Whether a range of a file has anything but zeros.
fn has_bytes(file: &File, range: Range<u64>) -> std::io::Result<bool> {
    let mut found = false;
    read_range(file, range, &mut vec![0; BUFFER_BYTES], |part| {
        found |= part.iter().any(|&byte| byte != 0);
        Ok(())
    })?;
    Ok(found)
}

/// Writes a range of a file to `target`, at the same offsets. A failure leaves nothing there.
fn keep(file: &File, range: Range<u64>, target: &Path) -> Result<()> {
    let part = with_suffix(target, ".part");
    durable::remove(&part)?;
    let copy = || {
        let mut out = Appender::new(durable::create_new(&part)?, range.start, BUFFER_BYTES);
        read_range(file, range, &mut vec![0; BUFFER_BYTES], |part| out.append(part))?;
        out.sync()
    };
    copy()
        .map_err(|error| durable::about(&part, &error))
        .and_then(|()| durable::publish(&part, target, true))
        .inspect_err(|_| {
            let _ = durable::remove(&part);
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
    /// Whether these are all entries, and the bytes after them were written at the end.
    is_sealed: bool,
    /// Where bytes begin that are not in these entries.
    unused: u64,
    /// The offset after the last valid record of the journal, and the number of records.
    journal_end: (u64, u64),
}

/// Finds the longest prefix of entries whose bytes match the journal.
fn find_complete(file: &File, path: &Path, journal: &Path) -> Result<Complete> {
    let mut records = PackJournal::open(journal)?;
    let opening = match records.next()? {
        Some(Record::Opening(opening)) if is_valid(&opening) => opening,
        // The opening is flushed before the first entry, so there are no entries, or a power cut
        // has taken the journal.
        None => default_opening(),
        Some(_) => return Err(no_journal(journal)),
    };
    let extent = Extent::new(opening.start);
    let mut found = Complete {
        opening,
        extent,
        kinds: 0,
        lost: 0,
        reason: None,
        is_sealed: false,
        unused: 0,
        journal_end: (0, 0),
    };
    let mut buffer = vec![0; BUFFER_BYTES];
    while let Some(record) = records.next()? {
        let record = match record {
            Record::Entry(record) => record,
            Record::Kind { .. } => {
                found.kinds = found.kinds.saturating_add(1);
                continue;
            }
            Record::Sealing { count, end } => {
                found.is_sealed = (count, end) == (found.extent.count, found.extent.end);
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
    found.journal_end = records.position();
    if found.journal_end.1 > 0 {
        found.unused = found.extent.end;
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
    read_range(file, range, buffer, |part| {
        digest.update(part);
        Ok(())
    })?;
    Ok(digest.value())
}

/// Calls `each` with the bytes of a range, as many at a time as the buffer has room for.
fn read_range(
    file: &File,
    range: Range<u64>,
    buffer: &mut [u8],
    mut each: impl FnMut(&[u8]) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let mut at = range.start;
    while at < range.end {
        let size = (range.end - at).min(buffer.len() as u64) as usize;
        file.read_exact_at(&mut buffer[..size], at)?;
        each(&buffer[..size])?;
        at += size as u64;
    }
    Ok(())
}

/// Returns the options of a pack whose writer ended before it recorded them.
fn default_opening() -> Opening {
    let WriterOptions { align, checksum, step_table, max_payload_bytes, .. } =
        WriterOptions::default();
    let start = u64::from(align);
    Opening { checksum, step_table, align, start, max_payload_bytes, dictionary: None }
}
