//! The records of a tape, byte by byte: `docs/format/tape.md`.

use crate::journal::MAX_RECORD_BYTES;
use crate::{Error, Result};

const VERSION: u8 = 1;
const HEAD: u8 = 1;
/// The kind of a record of rows.
pub const ROWS: u8 = 2;
const NOTE: u8 = 3;

/// Bytes of a Head before what the user put there.
const HEAD_BYTES: usize = 16;

/// Bytes of a Rows record before its first row.
pub const ROWS_BYTES: usize = 16;

/// Set in a Head when rows say how long they are.
const VARIABLE: u32 = 1;

/// What every row of a tape has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of every payload; none where each has a length of its own.
    pub row_bytes: Option<usize>,
    /// Clocks beside the timestamp.
    pub clocks: usize,
}

impl Shape {
    /// The shape, unless no row of it fits into a record.
    pub fn new(row_bytes: Option<usize>, clocks: usize) -> Result<Self> {
        if clocks > usize::from(u16::MAX) {
            return Err(Error::TooLarge(format!(
                "{clocks} clocks are over the limit of {}",
                u16::MAX
            )));
        }
        let shape = Self { row_bytes, clocks };
        shape.bytes_of(row_bytes.unwrap_or(0))?;
        Ok(shape)
    }

    /// Bytes of a row before its payload.
    pub fn before(&self) -> usize {
        8 + 8 * self.clocks + if self.row_bytes.is_none() { 4 } else { 0 }
    }

    /// Bytes of a row with so long a payload; `TooLarge` if no record can hold it.
    pub fn bytes_of(&self, payload: usize) -> Result<usize> {
        let most = MAX_RECORD_BYTES - ROWS_BYTES;
        match self.before().checked_add(payload) {
            Some(bytes) if bytes <= most => Ok(bytes),
            _ => Err(Error::TooLarge(format!(
                "a row of {payload} bytes is over the limit of {}",
                most - self.before()
            ))),
        }
    }
}

/// The Head of a tape of this shape, with what the user has to say.
pub fn head(shape: &Shape, data: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(HEAD_BYTES + data.len());
    let flags = if shape.row_bytes.is_none() { VARIABLE } else { 0 };
    record.extend([HEAD, VERSION]);
    // `Shape::new` has looked at it.
    record.extend((shape.clocks as u16).to_le_bytes());
    record.extend(flags.to_le_bytes());
    record.extend((shape.row_bytes.unwrap_or(0) as u64).to_le_bytes());
    record.extend(data);
    record
}

/// The shape that a Head says, and what the user had to say.
pub fn parse_head(record: &[u8]) -> Result<(Shape, &[u8])> {
    let corrupt = |what: &str| Err(Error::Corrupt(format!("the head {what}")));
    let Some((fixed, data)) = record.split_at_checked(HEAD_BYTES) else {
        return corrupt("is missing");
    };
    if fixed[0] != HEAD {
        return corrupt("is missing");
    }
    let (clocks, flags) = (u16_of(&fixed[2..]), u32_of(&fixed[4..]));
    if fixed[1] != VERSION || flags & !VARIABLE != 0 {
        return Err(Error::Unsupported(format!(
            "a tape of version {}, flags {flags:#x}, and this relive reads version {VERSION}: \
             upgrade relive",
            fixed[1]
        )));
    }
    let bytes = usize::try_from(u64_of(&fixed[8..])).unwrap_or(usize::MAX);
    let row_bytes = if flags & VARIABLE == 0 { Some(bytes) } else { None };
    if row_bytes.is_none() && bytes != 0 {
        return corrupt("gives rows of any length one");
    }
    match Shape::new(row_bytes, usize::from(clocks)) {
        Ok(shape) => Ok((shape, data)),
        Err(_) => corrupt("speaks of rows that no record can hold"),
    }
}

/// A Note.
pub fn note(data: &[u8]) -> Result<Vec<u8>> {
    if data.len() >= MAX_RECORD_BYTES {
        return Err(Error::TooLarge(format!(
            "a note of {} bytes is over the limit of {}",
            data.len(),
            MAX_RECORD_BYTES - 1
        )));
    }
    let mut record = Vec::with_capacity(1 + data.len());
    record.push(NOTE);
    record.extend(data);
    Ok(record)
}

/// What a Rows record begins with.
pub fn rows_head(first: u64, count: u32) -> [u8; ROWS_BYTES] {
    let mut head = [0; ROWS_BYTES];
    head[0] = ROWS;
    head[4..8].copy_from_slice(&count.to_le_bytes());
    head[8..].copy_from_slice(&first.to_le_bytes());
    head
}

/// A record behind the Head.
pub enum Record<'a> {
    /// Rows that hold together and follow those before.
    Rows,
    /// What the user had to say later.
    Note(&'a [u8]),
}

/// How many rows there were, and when the last was.
#[derive(Clone, Copy, Debug, Default)]
pub struct Walk {
    /// Rows of the records so far.
    pub rows: u64,
    last: Option<i64>,
}

impl Walk {
    /// Looks at the next record, every row of it.
    pub fn step<'a>(&mut self, shape: &Shape, record: &'a [u8]) -> Result<Record<'a>> {
        match record.split_first() {
            Some((&ROWS, _)) => self.rows(shape, record).map(|()| Record::Rows),
            Some((&NOTE, data)) => Ok(Record::Note(data)),
            Some((&HEAD, _)) => Err(Error::Corrupt("there is a second head".into())),
            Some((kind, _)) => Err(Error::Unsupported(format!(
                "there is a record of kind {kind}, which this relive does not know: upgrade relive"
            ))),
            None => Err(Error::Corrupt("there is a record without a kind".into())),
        }
    }

    fn rows(&mut self, shape: &Shape, record: &[u8]) -> Result<()> {
        let corrupt = |what: String| Err(Error::Corrupt(what));
        let Some((head, mut rest)) = record.split_at_checked(ROWS_BYTES) else {
            return corrupt(format!("rows {} on are cut short", self.rows));
        };
        let (count, first) = (u32_of(&head[4..]), u64_of(&head[8..]));
        if first != self.rows || head[1..4] != [0; 3] {
            return corrupt(format!("row {first} comes where row {} must", self.rows));
        }
        let mut last = self.last;
        for row in 0..u64::from(count) {
            let Some((fields, _, behind)) = split_row(shape, rest) else {
                return corrupt(format!("row {} is cut short", first + row));
            };
            let ts = i64_of(fields);
            if let Some(last) = last.filter(|&last| ts <= last) {
                return corrupt(format!(
                    "the timestamp of row {}, {ts}, is not after the one before, {last}",
                    first + row
                ));
            }
            (last, rest) = (Some(ts), behind);
        }
        if count == 0 || !rest.is_empty() {
            return corrupt(format!("{} bytes follow {count} rows from {first} on", rest.len()));
        }
        self.last = last;
        self.rows = first + u64::from(count);
        Ok(())
    }
}

/// The first row of `rest`: what is before its payload, the payload, and what is behind it.
pub fn split_row<'a>(shape: &Shape, rest: &'a [u8]) -> Option<(&'a [u8], &'a [u8], &'a [u8])> {
    let (fields, rest) = rest.split_at_checked(shape.before())?;
    let bytes = match shape.row_bytes {
        Some(bytes) => bytes,
        None => u32_of(&fields[8 + 8 * shape.clocks..]) as usize,
    };
    let (payload, behind) = rest.split_at_checked(bytes)?;
    Some((fields, payload, behind))
}

/// The number at the beginning of bytes.
pub fn i64_of(bytes: &[u8]) -> i64 {
    bytes.first_chunk().map_or(0, |part| i64::from_le_bytes(*part))
}

fn u16_of(bytes: &[u8]) -> u16 {
    bytes.first_chunk().map_or(0, |part| u16::from_le_bytes(*part))
}

fn u32_of(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |part| u32::from_le_bytes(*part))
}

fn u64_of(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |part| u64::from_le_bytes(*part))
}
