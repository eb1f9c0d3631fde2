//! The append-only checksummed log that every crash-safe writer uses.
//!
//! `docs/format/journal.md` is the specification. What comes back is always a prefix of
//! what was appended: reading stops, without an error, at the first record that is cut
//! short, out of sequence or not what its checksum says.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::crc::Crc32c;
use crate::durable::{self, Appender};
use crate::{Error, Result};

const MAGIC: [u8; 8] = *b"RELIVEJ\0";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 24;
const FRAME_MAGIC: [u8; 4] = *b"JREC";
const FRAME_BYTES: usize = 20;

/// The longest record: 64 MiB.
pub const MAX_RECORD_BYTES: usize = 64 << 20;

/// Records are held back until so many bytes of them are there.
const ROOM: usize = 64 * 1024;

/// Bytes in which records behind damage are looked for at a time.
const WINDOW: usize = 256 * 1024;

/// A log that is being written.
pub struct Journal {
    path: PathBuf,
    out: Appender,
    salt: [u8; 8],
    sequence: u64,
}

impl Journal {
    /// Begins a journal at a path where nothing is.
    pub fn create(path: &Path) -> Result<Self> {
        let file = durable::create_new(path).map_err(|error| durable::about(path, &error))?;
        Self::begin(path, file)
    }

    fn begin(path: &Path, file: File) -> Result<Self> {
        let salt = durable::any_number().to_le_bytes();
        let mut out = Appender::new(file, 0, ROOM);
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&MAGIC);
        header[8..12].copy_from_slice(&VERSION.to_le_bytes());
        header[12..20].copy_from_slice(&salt);
        let crc = crate::crc::crc32c(&header[..20]);
        header[20..].copy_from_slice(&crc.to_le_bytes());
        out.append(&header)?;
        Ok(Self { path: path.to_path_buf(), out, salt, sequence: 0 })
    }

    /// Goes on with the journal at `path` behind `sequence` records, which end at byte `end`:
    /// what is behind them is cut off. One that has not even a header begins anew.
    pub fn resume(path: &Path, end: u64, sequence: u64) -> Result<Self> {
        let about = |error| durable::about(path, &error);
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(about)?;
        if end < HEADER_BYTES as u64 {
            file.set_len(0).map_err(about)?;
            return Self::begin(path, file);
        }
        let mut header = [0; HEADER_BYTES];
        file.read_exact_at(&mut header, 0).map_err(about)?;
        let salt = salt_of(path, &header)?;
        let length = file.metadata().map_err(about)?.len();
        if length < end {
            return Err(Error::Corrupt(format!(
                "`{}` ends at {length} bytes, and {end} were read",
                path.display()
            )));
        }
        if length > end {
            // What is cut off must not come back behind records that are yet to be written.
            file.set_len(end).and_then(|()| file.sync_data()).map_err(about)?;
        }
        Ok(Self { path: path.to_path_buf(), out: Appender::new(file, end, ROOM), salt, sequence })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many records were appended.
    pub fn len(&self) -> u64 {
        self.sequence
    }

    /// Whether nothing was appended.
    pub fn is_empty(&self) -> bool {
        self.sequence == 0
    }

    /// Takes one record; it may be lost until [`Journal::flush`].
    pub fn append(&mut self, record: &[u8]) -> Result<()> {
        if record.len() > MAX_RECORD_BYTES {
            return Err(Error::TooLarge(format!(
                "a journal record of {} bytes is over the limit of {MAX_RECORD_BYTES}",
                record.len()
            )));
        }
        // At most MAX_RECORD_BYTES.
        let frame = Frame { length: record.len() as u32, sequence: self.sequence };
        let crc = frame.crc(&self.salt, record);
        let mut head = [0; FRAME_BYTES];
        head[..16].copy_from_slice(&frame.to_bytes());
        head[16..].copy_from_slice(&crc.to_le_bytes());
        self.out
            .append(&head)
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

    /// The records of the journal at `path`, from the first on.
    ///
    /// A journal that was cut before its header ended has none. Bytes that are no journal
    /// are `Corrupt`.
    pub fn read(path: &Path) -> Result<Records> {
        Self::read_from(path, 0, 0)
    }

    /// The records of the journal at `path` behind `sequence` of them, which end at byte
    /// `position`: both as [`Records`] said them.
    pub fn read_from(path: &Path, position: u64, sequence: u64) -> Result<Records> {
        let about = |error| durable::about(path, &error);
        let file = File::open(path).map_err(about)?;
        let bytes = file.metadata().map_err(about)?.len();
        let mut records = Records {
            path: path.to_path_buf(),
            file: BufReader::with_capacity(ROOM, file),
            bytes,
            left: bytes,
            salt: [0; 8],
            position: 0,
            sequence: 0,
            record: Vec::new(),
        };
        let mut header = [0; HEADER_BYTES];
        if !records.fill(&mut header)? || header == [0; HEADER_BYTES] {
            (records.left, records.bytes) = (0, 0);
            return Ok(records);
        }
        records.salt = salt_of(path, &header)?;
        records.position = HEADER_BYTES as u64;
        if position > records.position {
            records.rewind(position, sequence)?;
        }
        Ok(records)
    }
}

/// The salt in a header that holds.
fn salt_of(path: &Path, header: &[u8; HEADER_BYTES]) -> Result<[u8; 8]> {
    if header[..8] != MAGIC || crate::crc::crc32c(&header[..20]) != u32_of(&header[20..]) {
        return Err(Error::Corrupt(format!(
            "`{}` is no journal: its header is damaged",
            path.display()
        )));
    }
    let version = u32_of(&header[8..]);
    if version != VERSION {
        return Err(Error::Unsupported(format!(
            "`{}` is a journal of version {version}, and this relive reads version \
             {VERSION}: upgrade relive",
            path.display()
        )));
    }
    Ok(header[12..].first_chunk().copied().unwrap_or_default())
}

/// The longest valid prefix of a journal, one record at a time.
pub struct Records {
    path: PathBuf,
    file: BufReader<File>,
    /// Bytes of the file when it was opened.
    bytes: u64,
    /// How many of them were not read yet.
    left: u64,
    salt: [u8; 8],
    /// Where the valid prefix ends.
    position: u64,
    sequence: u64,
    record: Vec<u8>,
}

impl Records {
    /// The next record; none at the end of the valid prefix, and ever after.
    pub fn next_record(&mut self) -> Result<Option<&[u8]>> {
        let whole = self.read_frame()?;
        if !whole {
            self.left = 0;
            return Ok(None);
        }
        self.sequence += 1;
        self.position += (FRAME_BYTES + self.record.len()) as u64;
        Ok(Some(&self.record))
    }

    /// The byte behind the records so far; 0 for a journal that has no header yet.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// How many records there were so far.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Goes back to, or on at, the byte behind `sequence` records. Bytes that were added to the
    /// file since it was opened are not looked at.
    pub fn rewind(&mut self, position: u64, sequence: u64) -> Result<()> {
        let about = |error| durable::about(&self.path, &error);
        self.file.seek(SeekFrom::Start(position)).map_err(about)?;
        self.left = self.bytes.saturating_sub(position);
        (self.position, self.sequence) = (position, sequence);
        Ok(())
    }

    /// Whether behind the end of the valid prefix there is a whole record of this journal that
    /// is `wanted`, so that what is between them was damaged, and not cut.
    pub fn find_behind(&self, wanted: &mut dyn FnMut(&[u8]) -> bool) -> Result<bool> {
        let about = |error| durable::about(&self.path, &error);
        let file = self.file.get_ref();
        if self.position == 0 {
            return Ok(false);
        }
        // A file of nothing but beginnings of records would be read again for each of them.
        let mut budget = 4 * self.bytes.saturating_sub(self.position) + MAX_RECORD_BYTES as u64;
        let mut window = vec![0; WINDOW];
        let mut record = Vec::new();
        let mut start = self.position + 1;
        while self.bytes.saturating_sub(start) >= FRAME_BYTES as u64 {
            let have = (self.bytes - start).min(WINDOW as u64) as usize;
            let part = &mut window[..have];
            match file.read_exact_at(part, start) {
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(false),
                read => read.map_err(about)?,
            }
            // What begins in the last bytes comes again, whole, in the next window.
            let whole = have - (FRAME_BYTES - 1);
            for at in 0..whole {
                if part[at..at + 4] != FRAME_MAGIC {
                    continue;
                }
                let head = &part[at..at + FRAME_BYTES];
                let frame = Frame { length: u32_of(&head[4..]), sequence: u64_of(&head[8..]) };
                let left = self.bytes - start - (at + FRAME_BYTES) as u64;
                let most = self.sequence + self.bytes / FRAME_BYTES as u64;
                if frame.sequence <= self.sequence
                    || frame.sequence > most
                    || u64::from(frame.length) > left
                    || frame.length as usize > MAX_RECORD_BYTES
                {
                    continue;
                }
                if u64::from(frame.length) > budget {
                    return Err(Error::Corrupt(format!(
                        "`{}` is damaged at offset {}",
                        self.path.display(),
                        self.position
                    )));
                }
                budget -= u64::from(frame.length);
                record.resize(frame.length as usize, 0);
                match file.read_exact_at(&mut record, start + (at + FRAME_BYTES) as u64) {
                    Err(error) if error.kind() == ErrorKind::UnexpectedEof => continue,
                    read => read.map_err(about)?,
                }
                if frame.crc(&self.salt, &record) == u32_of(&head[16..]) && wanted(&record) {
                    return Ok(true);
                }
            }
            start += whole as u64;
        }
        Ok(false)
    }

    fn read_frame(&mut self) -> Result<bool> {
        let mut head = [0; FRAME_BYTES];
        if !self.fill(&mut head)? || head[..4] != FRAME_MAGIC {
            return Ok(false);
        }
        let frame = Frame { length: u32_of(&head[4..]), sequence: self.sequence };
        let length = frame.length as usize;
        // Memory is asked for only where the file has the bytes.
        if head[..16] != frame.to_bytes()
            || length > MAX_RECORD_BYTES
            || u64::from(frame.length) > self.left
        {
            return Ok(false);
        }
        let mut record = std::mem::take(&mut self.record);
        record.resize(length, 0);
        let whole = self.fill(&mut record)?;
        self.record = record;
        Ok(whole && frame.crc(&self.salt, &self.record) == u32_of(&head[16..]))
    }

    /// Reads exactly so many bytes; false where the file ends before.
    fn fill(&mut self, bytes: &mut [u8]) -> Result<bool> {
        if bytes.len() as u64 > self.left {
            return Ok(false);
        }
        self.left -= bytes.len() as u64;
        match self.file.read_exact(bytes) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(durable::about(&self.path, &error)),
        }
    }
}

struct Frame {
    length: u32,
    sequence: u64,
}

impl Frame {
    fn to_bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&FRAME_MAGIC);
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
    fn every_cut_gives_a_prefix() {
        let folder = Folder::new();
        let path = folder.path("log");
        let records = some();
        let bytes = written(&path, &records);
        let mut longest = 0;
        for cut in 0..=bytes.len() {
            // What is behind the cut may also be zeros: the file grew, its bytes did not come.
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
    fn records_of_another_journal_are_none_of_this_one() {
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
    fn reading_goes_on_where_it_ended() {
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
    fn writing_goes_on_where_reading_ended() {
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
        let behind = std::fs::metadata(&path).unwrap().len() + 1;
        assert!(Journal::resume(&path, behind, 7).is_err_and(|error| error.kind() == "corrupt"));
        // One that was cut within its header begins anew.
        std::fs::write(&path, &bytes[..9]).unwrap();
        let mut journal = Journal::resume(&path, 0, 0).unwrap();
        journal.append(b"one").unwrap();
        journal.flush().unwrap();
        assert_eq!(all(&path).unwrap(), [b"one"]);
    }

    #[test]
    fn records_behind_damage_are_found() {
        let folder = Folder::new();
        let path = folder.path("log");
        // The last record lies behind several windows.
        let mut records = some();
        records.push(b"JREC".repeat(WINDOW / 2));
        records.push(b"wanted".to_vec());
        let bytes = written(&path, &records);
        let find = |bytes: &[u8], wanted: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let mut records = Journal::read(&path).unwrap();
            while records.next_record().unwrap().is_some() {}
            records.find_behind(&mut |record| record == wanted).unwrap()
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
        let first = HEADER_BYTES + FRAME_BYTES + 3;
        let joined = [&bytes[..first], &stale[first..]].concat();
        assert!(!find(&joined, b"wanted"), "it is of another journal");
        std::fs::write(&path, [0; 100]).unwrap();
        assert!(!Journal::read(&path).unwrap().find_behind(&mut |_| true).unwrap());
    }
}
