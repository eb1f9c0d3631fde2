//! Reading a tape back, some rows at a time.

use std::path::{Path, PathBuf};

use super::latch::Latch;
use super::layout::{self, ROWS_BYTES, Record, Shape, Walk};
use crate::journal::{Journal, JournalReader};
use crate::{Error, Result};

/// Rows of a tape, one behind the other.
#[derive(Debug, Default)]
pub struct Rows {
    /// The timestamp of each.
    pub timestamps: Vec<i64>,
    /// The clocks of each, those of a row side by side.
    pub clocks: Vec<i64>,
    /// The payloads.
    pub payload: Vec<u8>,
    /// Where each payload begins, and where the last ends.
    pub offsets: Vec<i64>,
}

/// The whole rows of a tape, whoever wrote it and however that ended. What was added to the file
/// after it was opened is not seen.
pub struct TapeReader {
    path: PathBuf,
    records: JournalReader,
    head: Option<(Shape, Vec<u8>)>,
    /// Where the first record behind the head is.
    begin: (u64, u64),
    walk: Walk,
    /// The record whose rows are being given.
    record: Vec<u8>,
    /// Where in it the next row begins.
    at: usize,
    stopped: Latch,
    rows: Option<u64>,
}

impl TapeReader {
    /// Opens a tape. One that was cut before its head ended has no head and no rows.
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
            walk: Walk::default(),
            record: Vec::new(),
            at: 0,
            stopped: Latch::default(),
            rows: None,
        })
    }

    /// What the tape was begun with.
    pub fn head(&self) -> Option<&[u8]> {
        self.head.as_ref().map(|(_, data)| &data[..])
    }

    /// Bytes of every payload; none where each has a length of its own.
    pub fn row_bytes(&self) -> Option<usize> {
        self.head.as_ref().and_then(|(shape, _)| shape.row_bytes)
    }

    /// Clocks beside the timestamp.
    pub fn clocks(&self) -> usize {
        self.head.as_ref().map_or(0, |(shape, _)| shape.clocks)
    }

    /// How many whole rows there are.
    pub fn rows(&mut self) -> Result<u64> {
        if let Some(rows) = self.rows {
            return Ok(rows);
        }
        let rows = self.scan(|_| ())?;
        self.rows = Some(rows);
        Ok(rows)
    }

    /// All notes, in their order.
    pub fn notes(&mut self) -> Result<Vec<Vec<u8>>> {
        let mut notes = Vec::new();
        self.scan(|note| notes.push(note.to_vec()))?;
        Ok(notes)
    }

    /// Further rows: at most `max_rows`, and of no more than `max_bytes` together unless the
    /// first alone is longer; none at the end. Where rows are damaged those before them come
    /// first, then the error, ever after.
    pub fn next_rows(&mut self, max_rows: usize, max_bytes: usize) -> Result<Option<Rows>> {
        if max_rows == 0 {
            return Err(Error::Invalid("at least one row must be asked for".into()));
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
            // It was looked at as a whole when it came.
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
            self.stopped.check()?;
            return Ok(None);
        }
        Ok(Some(rows))
    }

    /// Goes back to the first row.
    pub fn rewind(&mut self) -> Result<()> {
        self.records.rewind(self.begin.0, self.begin.1)?;
        (self.walk, self.stopped) = (Walk::default(), Latch::default());
        self.record.clear();
        self.at = 0;
        Ok(())
    }

    /// Takes the next record that has rows; false at the end, or where something is wrong.
    fn load(&mut self, shape: &Shape) -> bool {
        while !self.stopped.is_set() {
            let found = match self.records.next_record() {
                Ok(Some(record)) => self.walk.step(shape, record).map(|found| match found {
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
                Err(error) => self.stopped.keep(named(&self.path, error)),
            }
        }
        false
    }

    /// Goes through all records, and comes back. How many rows there are.
    fn scan(&mut self, mut take: impl FnMut(&[u8])) -> Result<u64> {
        let Some((shape, _)) = &self.head else {
            return Ok(0);
        };
        let mut walk = Walk::default();
        let (position, sequence) = (self.records.position(), self.records.sequence());
        self.records.rewind(self.begin.0, self.begin.1)?;
        let outcome = loop {
            match self.records.next_record() {
                Ok(Some(record)) => match walk.step(shape, record) {
                    Ok(Record::Note(note)) => take(note),
                    Ok(Record::Rows) => {}
                    Err(error) => break Err(named(&self.path, error)),
                },
                Ok(None) => break Ok(walk.rows),
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
