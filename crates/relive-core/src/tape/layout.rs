//! The record formats of a tape: `docs/format/tape.md`.

use crate::journal::MAX_RECORD_BYTES;
use crate::pack::layout::{u16_at, u32_at, u64_at};
use crate::{Error, Result};

const VERSION: u8 = 1;
const HEAD: u8 = 1;
/// The kind of a record of rows.
pub const ROWS: u8 = 2;
const NOTE: u8 = 3;

/// Bytes of a Head before the user's data.
const HEAD_BYTES: usize = 16;

/// Bytes of a Rows record before its first row.
pub const ROWS_BYTES: usize = 16;

/// Flag of a Head: every row has its own length.
const VARIABLE: u32 = 1;

/// The shape of all rows of a tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of every payload; `None` if each has its own length.
    pub row_bytes: Option<usize>,
    /// The number of clocks besides the timestamp.
    pub clocks: usize,
}

impl Shape {
    /// Creates a shape; `TooLarge` if its rows do not fit into a record.
    pub fn new(row_bytes: Option<usize>, clocks: usize) -> Result<Self> {
        if clocks > usize::from(u16::MAX) {
            return Err(Error::over_limit(clocks, u16::MAX, "a row", "clocks"));
        }
        let shape = Self { row_bytes, clocks };
        shape.bytes_of(row_bytes.unwrap_or(0))?;
        Ok(shape)
    }

    /// Returns the bytes of a row before its payload.
    pub fn header_bytes(&self) -> usize {
        8 + 8 * self.clocks + if self.row_bytes.is_none() { 4 } else { 0 }
    }

    /// Returns the bytes of a row with a payload of `payload` bytes; `TooLarge` if it does not fit
    /// into a record.
    pub fn bytes_of(&self, payload: usize) -> Result<usize> {
        let most = MAX_RECORD_BYTES - ROWS_BYTES;
        match self.header_bytes().checked_add(payload) {
            Some(bytes) if bytes <= most => Ok(bytes),
            _ => Err(Error::over_limit(payload, most - self.header_bytes(), "a row", "bytes")),
        }
    }
}

/// Encodes the Head of a tape of this shape, with the user's data.
pub fn head(shape: &Shape, data: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(HEAD_BYTES + data.len());
    let flags = if shape.row_bytes.is_none() { VARIABLE } else { 0 };
    record.extend([HEAD, VERSION]);
    // `Shape::new` checked that the number fits.
    record.extend((shape.clocks as u16).to_le_bytes());
    record.extend(flags.to_le_bytes());
    record.extend((shape.row_bytes.unwrap_or(0) as u64).to_le_bytes());
    record.extend(data);
    record
}

/// Parses a Head: the shape, and the user's data.
pub fn parse_head(record: &[u8]) -> Result<(Shape, &[u8])> {
    let corrupt = |text: &str| Err(Error::Corrupt(text.into()));
    let Some((fixed, data)) = record.split_at_checked(HEAD_BYTES) else {
        return corrupt("the header of the tape file is truncated");
    };
    if fixed[0] != HEAD {
        return corrupt("the header of the tape file is missing");
    }
    let (clocks, flags) = (u16_at(fixed, 2), u32_at(fixed, 4));
    if fixed[1] != VERSION || flags & !VARIABLE != 0 {
        return Err(Error::Unsupported(format!(
            "the tape file has format version {} and flags {flags:#x}, but this version of relive reads \
             only version {VERSION}: upgrade relive",
            fixed[1]
        )));
    }
    let bytes = usize::try_from(u64_at(fixed, 8)).unwrap_or(usize::MAX);
    let row_bytes = if flags & VARIABLE == 0 { Some(bytes) } else { None };
    if row_bytes.is_none() && bytes != 0 {
        return corrupt("the header of the tape file has both a fixed and a variable row size");
    }
    match Shape::new(row_bytes, usize::from(clocks)) {
        Ok(shape) => Ok((shape, data)),
        Err(_) => corrupt("the row size in the header of the tape file exceeds the limit"),
    }
}

/// Encodes a Note.
pub fn note(data: &[u8]) -> Result<Vec<u8>> {
    if data.len() >= MAX_RECORD_BYTES {
        return Err(Error::over_limit(data.len(), MAX_RECORD_BYTES - 1, "a note", "bytes"));
    }
    let mut record = Vec::with_capacity(1 + data.len());
    record.push(NOTE);
    record.extend(data);
    Ok(record)
}

/// Encodes the start of a Rows record.
pub fn rows_head(first: u64, count: u32) -> [u8; ROWS_BYTES] {
    let mut head = [0; ROWS_BYTES];
    head[0] = ROWS;
    head[4..8].copy_from_slice(&count.to_le_bytes());
    head[8..].copy_from_slice(&first.to_le_bytes());
    head
}

/// A record after the Head.
pub enum Record<'a> {
    /// Valid rows that follow those before.
    Rows,
    /// Data that the user added later.
    Note(&'a [u8]),
}

/// Checks records in order: counts rows, and compares each timestamp with the one before.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecordChecker {
    /// The number of rows so far.
    pub rows: u64,
    last: Option<i64>,
}

impl RecordChecker {
    /// Checks the next record and all its rows.
    pub fn check<'a>(&mut self, shape: &Shape, record: &'a [u8]) -> Result<Record<'a>> {
        match record.split_first() {
            Some((&ROWS, _)) => self.rows(shape, record).map(|()| Record::Rows),
            Some((&NOTE, data)) => Ok(Record::Note(data)),
            Some((&HEAD, _)) => {
                Err(Error::Corrupt("the tape file is damaged: it has a second header".into()))
            }
            Some((kind, _)) => Err(Error::Unsupported(format!(
                "the tape file has a record of unknown kind {kind}: upgrade relive"
            ))),
            None => Err(Error::Corrupt("the tape file is damaged: it has an empty record".into())),
        }
    }

    fn rows(&mut self, shape: &Shape, record: &[u8]) -> Result<()> {
        let corrupt = |what: String| Err(Error::Corrupt(what));
        let Some((head, mut rest)) = record.split_at_checked(ROWS_BYTES) else {
            return corrupt(format!("the record that starts at row {} is truncated", self.rows));
        };
        let (count, first) = (u32_at(head, 4), u64_at(head, 8));
        if first != self.rows || head[1..4] != [0; 3] {
            return corrupt(format!(
                "the next row of the tape file is row {first}, expected row {}",
                self.rows
            ));
        }
        let mut last = self.last;
        for row in 0..u64::from(count) {
            let Some((fields, _, after)) = split_row(shape, rest) else {
                return corrupt(format!("row {} is truncated", first + row));
            };
            let ts = i64_of(fields);
            if let Some(last) = last.filter(|&last| ts <= last) {
                return corrupt(format!(
                    "row {} has timestamp {ts}, which is not after the previous one, {last}",
                    first + row
                ));
            }
            (last, rest) = (Some(ts), after);
        }
        if count == 0 || !rest.is_empty() {
            return corrupt(format!(
                "the record that starts at row {first} is damaged: {count} rows and {} extra bytes",
                rest.len()
            ));
        }
        self.last = last;
        self.rows = first + u64::from(count);
        Ok(())
    }
}

/// Splits off the first row: its fields, its payload, and the bytes after it.
pub fn split_row<'a>(shape: &Shape, rest: &'a [u8]) -> Option<(&'a [u8], &'a [u8], &'a [u8])> {
    let (fields, rest) = rest.split_at_checked(shape.header_bytes())?;
    let bytes = match shape.row_bytes {
        Some(bytes) => bytes,
        None => u32_at(fields, 8 + 8 * shape.clocks) as usize,
    };
    let (payload, after) = rest.split_at_checked(bytes)?;
    Some((fields, payload, after))
}

/// Returns the number at the start of `bytes`.
pub fn i64_of(bytes: &[u8]) -> i64 {
    bytes.first_chunk().map_or(0, |bytes| i64::from_le_bytes(*bytes))
}
