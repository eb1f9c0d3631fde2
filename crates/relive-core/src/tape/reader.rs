//! Reads a tape, some rows at a time.

use std::path::{Path, PathBuf};

use super::layout::{self, ROWS_BYTES, Record, RecordChecker, Shape};
use crate::journal::{Journal, JournalReader};
use crate::latch::Latch;
use crate::{Error, Result};

/// Consecutive rows of a tape.
#[derive(Debug, Default)]
pub struct Rows {
    /// The timestamp of each row.
    pub timestamps: Vec<i64>,
    /// The clocks of each row, row after row.
    pub clocks: Vec<i64>,
    /// The payloads.
    pub payload: Vec<u8>,
    /// The start of each payload, and the end of the last.
    pub offsets: Vec<i64>,
}

/// Reads the complete rows of a tape, closed or not. Rows that are added after opening are not
/// seen.
pub struct TapeReader {
    path: PathBuf,
    records: JournalReader,
    head: Option<(Shape, Vec<u8>)>,
    /// Position and sequence number of the first record after the head.
    begin: (u64, u64),
    checker: RecordChecker,
    /// The record whose rows are being returned.
    record: Vec<u8>,
    /// The offset of the next row in `record`.
    at: usize,
    failure: Latch,
    rows: Option<u64>,
}

impl TapeReader {
    /// Opens a tape. A tape that ends before its head is complete has no head and no rows.
    pub fn open(path: &Path) -> Result<Self> {
        let mut records = Journal::read(path)?;
        let head = match records.next_record()? {
            Some(record) => {
                let (shape, data) =
                    layout::parse_head(record).map_err(|error| named(path, error))?;
                Some((shape, data.to_vec()))
            }
            None => None,
        };
        let begin = (records.position(), records.sequence());
        Ok(Self {
            path: path.to_path_buf(),
            records,
            head,
            begin,
            checker: RecordChecker::default(),
            record: Vec::new(),
            at: 0,
            failure: Latch::default(),
            rows: None,
        })
    }

    /// Returns the data that the tape was created with.
    pub fn head(&self) -> Option<&[u8]> {
        self.head.as_ref().map(|(_, data)| &data[..])
    }

    /// Returns the bytes of every payload; `None` if each has its own length.
    pub fn row_bytes(&self) -> Option<usize> {
        self.head.as_ref().and_then(|(shape, _)| shape.row_bytes)
    }

    /// Returns the number of clocks besides the timestamp.
    pub fn clocks(&self) -> usize {
        self.head.as_ref().map_or(0, |(shape, _)| shape.clocks)
    }

    /// Returns the number of complete rows.
    pub fn rows(&mut self) -> Result<u64> {
        if let Some(rows) = self.rows {
            return Ok(rows);
        }
        let rows = self.scan(|_| ())?;
        self.rows = Some(rows);
        Ok(rows)
    }

    /// Returns all notes, in order.
    pub fn notes(&mut self) -> Result<Vec<Vec<u8>>> {
        let mut notes = Vec::new();
        self.scan(|note| notes.push(note.to_vec()))?;
        Ok(notes)
    }

    /// Returns the next rows: at most `max_rows`, with at most `max_bytes` in total unless the first
    /// alone is longer; `None` at the end. If rows are damaged, the rows before them are returned
    /// first, and every later call returns the error.
    pub fn next_rows(&mut self, max_rows: usize, max_bytes: usize) -> Result<Option<Rows>> {
        if max_rows == 0 {
            return Err(Error::Invalid("`max_rows` must be at least 1".into()));
        }
        let Some(shape) = self.head.as_ref().map(|(shape, _)| *shape) else {
            return Ok(None);
        };
        let mut rows = Rows { offsets: vec![0], ..Rows::default() };
        let mut room = max_bytes;
        loop {
            if self.at >= self.record.len() && !self.load(&shape) {
                break;
            }
            // The record was checked when it was loaded.
            let Some((fields, payload, _)) = layout::split_row(&shape, &self.record[self.at..])
            else {
                break;
            };
            let bytes = fields.len() + payload.len();
            let count = rows.timestamps.len();
            if count == max_rows || (bytes > room && count > 0) {
                break;
            }
            room = room.saturating_sub(bytes);
            rows.timestamps.push(layout::i64_of(fields));
            rows.clocks.extend(fields[8..8 + 8 * shape.clocks].chunks_exact(8).map(layout::i64_of));
            rows.payload.extend_from_slice(payload);
            rows.offsets.push(rows.payload.len() as i64);
            self.at += bytes;
        }
        if rows.timestamps.is_empty() {
            self.failure.check()?;
            return Ok(None);
        }
        Ok(Some(rows))
    }

    /// Returns to the first row.
    pub fn rewind(&mut self) -> Result<()> {
        self.records.rewind(self.begin.0, self.begin.1)?;
        (self.checker, self.failure) = (RecordChecker::default(), Latch::default());
        self.record.clear();
        self.at = 0;
        Ok(())
    }

    /// Loads the next record with rows; false at the end and after an error.
    fn load(&mut self, shape: &Shape) -> bool {
        while !self.failure.is_set() {
            let found = match self.records.next_record() {
                Ok(Some(record)) => self.checker.check(shape, record).map(|found| match found {
                    Record::Rows => Some(record),
                    Record::Note(_) => None,
                }),
                Ok(None) => return false,
                Err(error) => Err(error),
            };
            match found {
                Ok(Some(record)) => {
                    self.record.clear();
                    self.record.extend_from_slice(record);
                    self.at = ROWS_BYTES;
                    return true;
                }
                Ok(None) => {}
                Err(error) => self.failure.keep(named(&self.path, error)),
            }
        }
        false
    }

    /// Reads all records, returns the number of rows, and restores the position.
    fn scan(&mut self, mut take: impl FnMut(&[u8])) -> Result<u64> {
        let Some((shape, _)) = &self.head else {
            return Ok(0);
        };
        let mut checker = RecordChecker::default();
        let (position, sequence) = (self.records.position(), self.records.sequence());
        self.records.rewind(self.begin.0, self.begin.1)?;
        let outcome = loop {
            match self.records.next_record() {
                Ok(Some(record)) => match checker.check(shape, record) {
                    Ok(Record::Note(note)) => take(note),
                    Ok(Record::Rows) => {}
                    Err(error) => break Err(named(&self.path, error)),
                },
                Ok(None) => break Ok(checker.rows),
                Err(error) => break Err(error),
            }
        };
        self.records.rewind(position, sequence)?;
        outcome
    }
}

fn named(path: &Path, error: Error) -> Error {
    error.about(format_args!("`{}`", path.display()))
}
