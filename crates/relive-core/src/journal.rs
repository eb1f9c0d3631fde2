//! The append-only checksummed log that every crash-safe writer uses.
//!
//! `docs/format/journal.md` is the specification. A reader returns a prefix of the records that
//! were appended: it stops, without an error, at the first record that is incomplete, out of
//! sequence or different from its checksum.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::crc::Crc32c;
use crate::durable::{self, Appender};
use crate::{Error, Result};

const MAGIC: [u8; 8] = *b"RELIVEJ\0";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 24;
const RECORD_MAGIC: [u8; 4] = *b"JREC";
const RECORD_HEADER_BYTES: usize = 20;

/// The longest record: 64 MiB.
pub const MAX_RECORD_BYTES: usize = 64 << 20;

/// Size of the buffers between records and the file.
const BUFFER_BYTES: usize = 64 * 1024;

/// Bytes that are searched at a time for records after damage.
const SEARCH_BYTES: usize = 256 * 1024;

/// A journal that is being written.
pub struct Journal {
    path: PathBuf,
    out: Appender,
    salt: [u8; 8],
    sequence: u64,
}

impl Journal {
    /// Creates a journal at a path that does not exist yet.
    pub fn create(path: &Path) -> Result<Self> {
        let file = durable::create_new(path).map_err(|error| durable::about(path, &error))?;
        Self::start(path, file)
    }

    fn start(path: &Path, file: File) -> Result<Self> {
        let salt = durable::any_number().to_le_bytes();
        let mut out = Appender::new(file, 0, BUFFER_BYTES);
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&MAGIC);
        header[8..12].copy_from_slice(&VERSION.to_le_bytes());
        header[12..20].copy_from_slice(&salt);
        let crc = crate::crc::crc32c(&header[..20]);
        header[20..].copy_from_slice(&crc.to_le_bytes());
        out.append(&header)?;
        Ok(Self { path: path.to_path_buf(), out, salt, sequence: 0 })
    }

    /// Continues the journal at `path` after `sequence` records, which end at byte `end`, and
    /// removes all bytes after them. Starts from nothing if not even the header is complete.
    pub fn resume(path: &Path, end: u64, sequence: u64) -> Result<Self> {
        let about = |error| durable::about(path, &error);
        let file = durable::open_rw(path)?;
        if end < HEADER_BYTES as u64 {
            file.set_len(0).map_err(about)?;
            return Self::start(path, file);
        }
        let mut header = [0; HEADER_BYTES];
        file.read_exact_at(&mut header, 0).map_err(about)?;
        let salt = parse_header(path, &header)?;
        let length = file.metadata().map_err(about)?.len();
        if length < end {
            return Err(Error::Corrupt(format!(
                "`{}` was truncated to {length} bytes, but {end} bytes were already read",
                path.display()
            )));
        }
        if length > end {
            // The removed bytes must not reappear after records that are still to be written.
            file.set_len(end).and_then(|()| file.sync_data()).map_err(about)?;
        }
        let out = Appender::new(file, end, BUFFER_BYTES);
        Ok(Self { path: path.to_path_buf(), out, salt, sequence })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns how many records were appended.
    pub fn len(&self) -> u64 {
        self.sequence
    }

    /// Returns whether no record was appended.
    pub fn is_empty(&self) -> bool {
        self.sequence == 0
    }

    /// Returns whether appending a record of `bytes` bytes writes to the file.
    pub fn is_full(&self, bytes: usize) -> bool {
        self.out.pending() + RECORD_HEADER_BYTES + bytes > BUFFER_BYTES
    }

    /// Returns the file, for a thread that syncs it while another one appends.
    pub fn file(&self) -> Arc<File> {
        Arc::clone(self.out.file())
    }

    /// Appends one record, which may be lost until [`Journal::flush`].
    pub fn append(&mut self, record: &[u8]) -> Result<()> {
        if record.len() > MAX_RECORD_BYTES {
            let (size, limit) = (record.len(), MAX_RECORD_BYTES);
            return Err(Error::over_limit(size, limit, "a journal record", "bytes"));
        }
        // At most MAX_RECORD_BYTES.
        let header = RecordHeader { length: record.len() as u32, sequence: self.sequence };
        let crc = header.crc(&self.salt, record);
        let mut bytes = [0; RECORD_HEADER_BYTES];
        bytes[..16].copy_from_slice(&header.to_bytes());
        bytes[16..].copy_from_slice(&crc.to_le_bytes());
        self.out
            .append(&bytes)
            .and_then(|()| self.out.append(record))
            .map_err(|error| durable::about(&self.path, &error))?;
        self.sequence += 1;
        Ok(())
    }

    /// Makes every record survive the end of this process.
    pub fn flush(&mut self) -> Result<()> {
        self.out.flush().map_err(|error| durable::about(&self.path, &error))
    }

    /// Makes every record survive a power cut.
    pub fn sync(&mut self) -> Result<()> {
        self.out.sync().map_err(|error| durable::about(&self.path, &error))
    }

    /// Opens the journal at `path` for reading, at its first record.
    ///
    /// A journal without a complete header has no records. A file that is not a journal is
    /// `Corrupt`.
    pub fn read(path: &Path) -> Result<JournalReader> {
        Self::read_from(path, 0, 0)
    }

    /// Opens the journal at `path` for reading after its first `sequence` records, which end at
    /// byte `position`; both as [`JournalReader`] returned them.
    pub fn read_from(path: &Path, position: u64, sequence: u64) -> Result<JournalReader> {
        let about = |error| durable::about(path, &error);
        let file = durable::open(path)?;
        let bytes = file.metadata().map_err(about)?.len();
        let mut reader = JournalReader {
            path: path.to_path_buf(),
            file: BufReader::with_capacity(BUFFER_BYTES, file),
            bytes,
            left: bytes,
            salt: [0; 8],
            position: 0,
            sequence: 0,
            record: Vec::new(),
        };
        let mut header = [0; HEADER_BYTES];
        if !reader.fill(&mut header)? || header == [0; HEADER_BYTES] {
            (reader.left, reader.bytes) = (0, 0);
            return Ok(reader);
        }
        reader.salt = parse_header(path, &header)?;
        reader.position = HEADER_BYTES as u64;
        if position > reader.position {
            reader.rewind(position, sequence)?;
        }
        Ok(reader)
    }
}

/// Checks the header of a journal and returns its salt.
fn parse_header(path: &Path, header: &[u8; HEADER_BYTES]) -> Result<[u8; 8]> {
    if header[..8] != MAGIC || crate::crc::crc32c(&header[..20]) != u32_of(&header[20..]) {
        return Err(Error::Corrupt(format!(
            "`{}` is not a journal file or has a damaged header",
            path.display()
        )));
    }
    let version = u32_of(&header[8..]);
    if version != VERSION {
        return Err(Error::Unsupported(format!(
            "`{}` has journal format version {version}, but this version of relive reads only \
             version {VERSION}: upgrade relive",
            path.display()
        )));
    }
    Ok(header[12..].first_chunk().copied().unwrap_or_default())
}

/// Returns the offset at which a journal is damaged; `None` if it is whole or only ends early.
///
/// A killed process leaves the first bytes of a record, a power cut leaves zeros. Any other bytes
/// after the last valid record are damage, and so is a gap between valid records.
pub fn find_damage(path: &Path) -> Result<Option<u64>> {
    let mut reader = match Journal::read(path) {
        Err(Error::Corrupt(_)) => return Ok(Some(0)),
        opened => opened?,
    };
    while reader.next_record()?.is_some() {}
    let whole = match reader.find_after(&mut |_| true) {
        // It found too much that looks like a record.
        Err(Error::Corrupt(_)) => false,
        found => !found? && reader.ends_early()?,
    };
    Ok((!whole).then_some(reader.position))
}

/// Reads the longest valid prefix of a journal, one record at a time.
pub struct JournalReader {
    path: PathBuf,
    file: BufReader<File>,
    /// Bytes of the file when it was opened.
    bytes: u64,
    /// Bytes that were not read yet.
    left: u64,
    salt: [u8; 8],
    /// Offset of the end of the valid prefix.
    position: u64,
    sequence: u64,
    record: Vec<u8>,
}

impl JournalReader {
    /// Returns the next record; `None` at the end of the valid prefix, and ever after.
    pub fn next_record(&mut self) -> Result<Option<&[u8]>> {
        if !self.read_record()? {
            self.left = 0;
            return Ok(None);
        }
        self.sequence += 1;
        self.position += (RECORD_HEADER_BYTES + self.record.len()) as u64;
        Ok(Some(&self.record))
    }

    /// Returns the offset after the records read so far; 0 for a journal without a header.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns how many records were read so far.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Moves to the offset after `sequence` records. Bytes that were added to the file after it
    /// was opened are not read.
    pub fn rewind(&mut self, position: u64, sequence: u64) -> Result<()> {
        self.file.seek(SeekFrom::Start(position)).map_err(|error| self.about(&error))?;
        self.left = self.bytes.saturating_sub(position);
        (self.position, self.sequence) = (position, sequence);
        Ok(())
    }

    /// Returns whether a valid record for which `wanted` is true follows the valid prefix. Then
    /// the bytes between them were damaged, not lost at the end.
    pub fn find_after(&self, wanted: &mut dyn FnMut(&[u8]) -> bool) -> Result<bool> {
        if self.position == 0 {
            return Ok(false);
        }
        // Without a limit, a file made of nothing but record headers would be read once for each.
        let mut budget = 4 * self.bytes.saturating_sub(self.position) + MAX_RECORD_BYTES as u64;
        let mut window = vec![0; SEARCH_BYTES];
        let mut record = Vec::new();
        let mut start = self.position + 1;
        while self.bytes.saturating_sub(start) >= RECORD_HEADER_BYTES as u64 {
            let have = (self.bytes - start).min(SEARCH_BYTES as u64) as usize;
            let window = &mut window[..have];
            if !self.read_at(window, start)? {
                return Ok(false);
            }
            // A header that starts in the last bytes is whole in the next window.
            let starts = have - (RECORD_HEADER_BYTES - 1);
            for at in 0..starts {
                if window[at..at + 4] != RECORD_MAGIC {
                    continue;
                }
                let bytes = &window[at..at + RECORD_HEADER_BYTES];
                let header = RecordHeader::parse(bytes);
                let body = start + (at + RECORD_HEADER_BYTES) as u64;
                let most = self.sequence + self.bytes / RECORD_HEADER_BYTES as u64;
                if header.sequence <= self.sequence
                    || header.sequence > most
                    || u64::from(header.length) > self.bytes - body
                    || header.length as usize > MAX_RECORD_BYTES
                {
                    continue;
                }
                if u64::from(header.length) > budget {
                    return Err(Error::Corrupt(format!(
                        "`{}` is damaged at offset {}",
                        self.path.display(),
                        self.position
                    )));
                }
                budget -= u64::from(header.length);
                record.resize(header.length as usize, 0);
                if self.read_at(&mut record, body)?
                    && header.crc(&self.salt, &record) == u32_of(&bytes[16..])
                    && wanted(&record)
                {
                    return Ok(true);
                }
            }
            start += starts as u64;
        }
        Ok(false)
    }

    /// Returns whether the bytes after the valid prefix are the first bytes of the next record, or
    /// zeros.
    fn ends_early(&self) -> Result<bool> {
        let bytes = self.file.get_ref().metadata().map_err(|error| self.about(&error))?.len();
        let left = bytes.saturating_sub(self.position);
        if self.position == 0 && left < HEADER_BYTES as u64 {
            return Ok(true);
        }
        let mut header = [0; RECORD_HEADER_BYTES];
        let have = left.min(RECORD_HEADER_BYTES as u64) as usize;
        let header = &mut header[..have];
        if !self.read_at(header, self.position)? {
            return Ok(true);
        }
        let magic = have.min(RECORD_MAGIC.len());
        if self.position > 0 && header[..magic] == RECORD_MAGIC[..magic] {
            if have < RECORD_HEADER_BYTES {
                return Ok(true);
            }
            let found = RecordHeader::parse(header);
            if found.sequence == self.sequence {
                let rest = left - RECORD_HEADER_BYTES as u64;
                if u64::from(found.length) <= rest || found.length as usize > MAX_RECORD_BYTES {
                    return Ok(false);
                }
                // If the bytes that are there are the whole record, its length was damaged.
                let mut record = vec![0; rest as usize];
                let whole = RecordHeader { length: rest as u32, sequence: self.sequence };
                return Ok(!self.read_at(&mut record, self.position + have as u64)?
                    || whole.crc(&self.salt, &record) != u32_of(&header[16..]));
            }
        }
        let mut window = vec![0; SEARCH_BYTES];
        let mut start = self.position;
        while start < bytes {
            let window = &mut window[..(bytes - start).min(SEARCH_BYTES as u64) as usize];
            if !self.read_at(window, start)? || window.iter().any(|&byte| byte != 0) {
                return Ok(false);
            }
            start += window.len() as u64;
        }
        Ok(true)
    }

    /// Reads the next record into the buffer; false where no valid record follows.
    fn read_record(&mut self) -> Result<bool> {
        let mut bytes = [0; RECORD_HEADER_BYTES];
        if !self.fill(&mut bytes)? || bytes[..4] != RECORD_MAGIC {
            return Ok(false);
        }
        let header = RecordHeader::parse(&bytes);
        let length = header.length as usize;
        // Memory is allocated only where the file has the bytes.
        if header.sequence != self.sequence
            || length > MAX_RECORD_BYTES
            || u64::from(header.length) > self.left
        {
            return Ok(false);
        }
        let mut record = std::mem::take(&mut self.record);
        record.resize(length, 0);
        let whole = self.fill(&mut record)?;
        self.record = record;
        Ok(whole && header.crc(&self.salt, &self.record) == u32_of(&bytes[16..]))
    }

    /// Reads the next bytes; false where the file ends before.
    fn fill(&mut self, bytes: &mut [u8]) -> Result<bool> {
        if bytes.len() as u64 > self.left {
            return Ok(false);
        }
        self.left -= bytes.len() as u64;
        let read = self.file.read_exact(bytes);
        self.is_complete(read)
    }

    /// Reads the bytes at an offset; false where the file ends before.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<bool> {
        self.is_complete(self.file.get_ref().read_exact_at(bytes, offset))
    }

    fn is_complete(&self, read: std::io::Result<()>) -> Result<bool> {
        match read {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(self.about(&error)),
        }
    }

    fn about(&self, error: &std::io::Error) -> Error {
        durable::about(&self.path, error)
    }
}

struct RecordHeader {
    length: u32,
    sequence: u64,
}

impl RecordHeader {
    fn parse(bytes: &[u8]) -> Self {
        Self { length: u32_of(&bytes[4..]), sequence: u64_of(&bytes[8..]) }
    }

    fn to_bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&RECORD_MAGIC);
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..].copy_from_slice(&self.sequence.to_le_bytes());
        bytes
    }

    fn crc(&self, salt: &[u8; 8], record: &[u8]) -> u32 {
        let mut digest = Crc32c::default();
        digest.update(salt);
        digest.update(&self.to_bytes());
        digest.update(record);
        digest.value()
    }
}

fn u32_of(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |part| u32::from_le_bytes(*part))
}

fn u64_of(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |part| u64::from_le_bytes(*part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durable::Folder;

    fn written(path: &Path, records: &[Vec<u8>]) -> Vec<u8> {
        let _ = std::fs::remove_file(path);
        let mut journal = Journal::create(path).unwrap();
        for record in records {
            journal.append(record).unwrap();
        }
        journal.sync().unwrap();
        std::fs::read(path).unwrap()
    }

    fn all(path: &Path) -> Result<Vec<Vec<u8>>> {
        let mut records = Journal::read(path)?;
        let mut found = Vec::new();
        while let Some(record) = records.next_record()? {
            found.push(record.to_vec());
        }
        assert!(records.next_record()?.is_none());
        Ok(found)
    }

    fn some() -> Vec<Vec<u8>> {
        (0..6_usize).map(|i| vec![i as u8; [3, 0, 40, 1, 7, 100][i]]).collect()
    }

    #[test]
    fn records_come_back() {
        let folder = Folder::new();
        let path = folder.path("log");
        let many: Vec<Vec<u8>> = (0..3000_u32).map(|i| i.to_le_bytes().repeat(20)).collect();
        written(&path, &many);
        assert_eq!(all(&path).unwrap(), many);
        assert!(Journal::create(&path).is_err_and(|error| error.kind() == "already-exists"));
        assert!(Journal::read(&folder.path("other")).is_err_and(|e| e.kind() == "not-found"));
    }

    #[test]
    fn records_reach_the_file_with_flush() {
        let folder = Folder::new();
        let path = folder.path("log");
        let mut journal = Journal::create(&path).unwrap();
        journal.append(b"one").unwrap();
        assert!(all(&path).unwrap().is_empty());
        journal.flush().unwrap();
        journal.append(b"two").unwrap();
        assert_eq!(all(&path).unwrap(), [b"one"]);
        assert_eq!((journal.len(), journal.is_empty()), (2, false));
    }

    #[test]
    fn every_cut_leaves_a_prefix() {
        let folder = Folder::new();
        let path = folder.path("log");
        let records = some();
        let bytes = written(&path, &records);
        let mut longest = 0;
        for cut in 0..=bytes.len() {
            // The rest may also be zeros: the file grew, but its bytes were not written.
            for tail in [0, bytes.len() - cut] {
                let mut part = bytes[..cut].to_vec();
                part.resize(cut + tail, 0);
                std::fs::write(&path, &part).unwrap();
                let Ok(found) = all(&path) else {
                    assert!(cut < HEADER_BYTES && tail > 0, "cut {cut}");
                    continue;
                };
                assert_eq!(found, records[..found.len()], "cut {cut}");
                if tail == 0 {
                    assert!(found.len() >= longest, "cut {cut}");
                    longest = found.len();
                }
            }
        }
        assert_eq!(longest, records.len());
    }

    #[test]
    fn every_flipped_bit_ends_the_prefix() {
        let folder = Folder::new();
        let path = folder.path("log");
        let records = some();
        let bytes = written(&path, &records);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, &flipped).unwrap();
            match all(&path) {
                Ok(found) => {
                    assert!(found.len() < records.len(), "bit {bit}");
                    assert_eq!(found, records[..found.len()], "bit {bit}");
                }
                Err(error) => {
                    assert_eq!(error.kind(), "corrupt");
                    assert!(bit < HEADER_BYTES * 8, "bit {bit}");
                }
            }
        }
    }

    #[test]
    fn records_of_another_journal_are_ignored() {
        let folder = Folder::new();
        let (path, other) = (folder.path("log"), folder.path("other"));
        let bytes = written(&path, &some());
        let stale = written(&other, &some());
        let joined = [&bytes[..HEADER_BYTES], &stale[HEADER_BYTES..]].concat();
        std::fs::write(&path, joined).unwrap();
        assert!(all(&path).unwrap().is_empty());
    }

    #[test]
    fn a_record_over_the_limit_is_refused() {
        let folder = Folder::new();
        let mut journal = Journal::create(&folder.path("log")).unwrap();
        let refused = journal.append(&vec![0; MAX_RECORD_BYTES + 1]);
        assert!(refused.is_err_and(|error| error.kind() == "too-large"));
        assert!(journal.is_empty());
    }

    #[test]
    fn reading_continues_where_it_ended() {
        let folder = Folder::new();
        let path = folder.path("log");
        let mut journal = Journal::create(&path).unwrap();
        let (mut position, mut sequence) = (0, 0);
        for (number, record) in some().into_iter().enumerate() {
            journal.append(&record).unwrap();
            journal.flush().unwrap();
            let mut records = Journal::read_from(&path, position, sequence).unwrap();
            assert_eq!(records.next_record().unwrap(), Some(&record[..]), "{number}");
            assert_eq!(records.next_record().unwrap(), None);
            (position, sequence) = (records.position(), records.sequence());
            assert_eq!(position, std::fs::metadata(&path).unwrap().len());
            records.rewind(HEADER_BYTES as u64, 0).unwrap();
            assert_eq!(records.next_record().unwrap(), Some(&some()[0][..]));
        }
        assert_eq!(sequence, 6);
    }

    #[test]
    fn writing_continues_where_reading_ended() {
        let folder = Folder::new();
        let path = folder.path("log");
        let mut bytes = written(&path, &some()[..3]);
        let end = bytes.len() as u64;
        bytes.extend(b"JREC, but no record");
        std::fs::write(&path, &bytes).unwrap();
        let mut journal = Journal::resume(&path, end, 3).unwrap();
        for record in &some()[3..] {
            journal.append(record).unwrap();
        }
        journal.sync().unwrap();
        assert_eq!(all(&path).unwrap(), some());
        assert_eq!(journal.len(), 6);
        let after = std::fs::metadata(&path).unwrap().len() + 1;
        assert!(Journal::resume(&path, after, 7).is_err_and(|error| error.kind() == "corrupt"));
        // A journal that was cut within its header starts from nothing.
        std::fs::write(&path, &bytes[..9]).unwrap();
        let mut journal = Journal::resume(&path, 0, 0).unwrap();
        journal.append(b"one").unwrap();
        journal.flush().unwrap();
        assert_eq!(all(&path).unwrap(), [b"one"]);
    }

    #[test]
    fn records_after_damage_are_found() {
        let folder = Folder::new();
        let path = folder.path("log");
        // The last record is several windows after the damage.
        let mut records = some();
        records.push(b"JREC".repeat(SEARCH_BYTES / 2));
        records.push(b"wanted".to_vec());
        let bytes = written(&path, &records);
        let find = |bytes: &[u8], wanted: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let mut records = Journal::read(&path).unwrap();
            while records.next_record().unwrap().is_some() {}
            records.find_after(&mut |record| record == wanted).unwrap()
        };
        assert!(!find(&bytes, b"wanted"), "nothing is damaged");
        assert!(!find(&bytes[..bytes.len() - 1], b"wanted"), "the end was cut");
        for at in (HEADER_BYTES..300).chain([5000, bytes.len() - 27]) {
            let mut bad = bytes.clone();
            bad[at] ^= 4;
            assert!(find(&bad, b"wanted"), "{at}");
            assert!(!find(&bad, b"other"), "{at}");
            let last = bad.len() - 1;
            bad[last] ^= 1;
            assert!(!find(&bad, b"wanted"), "both are damaged");
        }
        let stale = written(&folder.path("other"), &records);
        let first = HEADER_BYTES + RECORD_HEADER_BYTES + 3;
        let joined = [&bytes[..first], &stale[first..]].concat();
        assert!(!find(&joined, b"wanted"), "it is of another journal");
        std::fs::write(&path, [0; 100]).unwrap();
        assert!(!Journal::read(&path).unwrap().find_after(&mut |_| true).unwrap());
    }

    #[test]
    fn damage_is_told_from_an_early_end() {
        let folder = Folder::new();
        let path = folder.path("log");
        let bytes = written(&path, &some());
        let damage = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            find_damage(&path).unwrap()
        };
        for cut in 0..=bytes.len() {
            assert_eq!(damage(&bytes[..cut]), None, "cut {cut}");
        }
        assert_eq!(damage(&[&bytes[..], &[0; 5000]].concat()), None);
        assert_eq!(damage(&[0; 5000]), None);
        assert_eq!(damage(&[&[0; 5000][..], b"x"].concat()), Some(0));
        assert_eq!(damage(&[&bytes[..], b"x"].concat()), Some(bytes.len() as u64));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(damage(&flipped).is_some_and(|at| at <= bit as u64 / 8), "bit {bit}");
        }
        // Bytes that look like a record everywhere.
        let header = RecordHeader { length: 1 << 20, sequence: 9 }.to_bytes();
        let many = [&bytes[..HEADER_BYTES + 1], &header.repeat(200_000)].concat();
        assert_eq!(damage(&many), Some(HEADER_BYTES as u64));
    }
}
