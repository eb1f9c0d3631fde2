//! The records of a store's journal, as docs/format/records.md §4 has them.

use super::layout::{ENTRY_BYTES, Entry, u32_at, u64_at};
use crate::{Error, Result};

const CHUNK: u8 = 1;
const APPEND: u8 = 2;
const CHANGE: u8 = 3;
const DELETE: u8 = 4;
const COMMIT: u8 = 5;
const SYNCED: u8 = 1;
const DENSE: u8 = 1;
const HEAP: u8 = 2;

/// How an append gives a field its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// It gives none.
    Missing,
    /// They are the next physical rows of a dense field.
    Dense,
    /// They are where these entries say, one for each row.
    Entries(Vec<Entry>),
}

/// One thing that was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// A chunk is in force from here on.
    Chunk {
        /// Its number.
        number: u32,
        /// The field that owns it, if it is dense.
        field: Option<u16>,
    },
    /// Rows at the end of the store.
    Append {
        /// How many.
        rows: u64,
        /// What each field gets, by its id.
        fields: Vec<(u16, How)>,
    },
    /// Other values for one row.
    Change {
        /// Which.
        row: u64,
        /// What fields get, by their ids.
        fields: Vec<(u16, Entry)>,
    },
    /// The last row takes the place of this one.
    Delete {
        /// Which.
        row: u64,
    },
}

/// How far a chunk is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Its number.
    pub chunk: u32,
    /// CRC of its last, partial block; 0 for a heap chunk.
    pub tail: u32,
    /// Where its next byte goes.
    pub position: u64,
    /// Records in it.
    pub records: u64,
}

/// The end of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Whether all of it is on the disk.
    pub synced: bool,
    /// Journal records of the group before this one.
    pub frames: u32,
    /// The last call in it.
    pub sequence: u64,
    /// Records in the store.
    pub length: u64,
    /// CRC of those journal records.
    pub crc: u32,
    /// Chunks that were written to.
    pub chunks: Vec<Position>,
}

/// A record of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Something that was done.
    Op(Op),
    /// All before it counts.
    Commit(Commit),
}

impl Op {
    /// As the journal has it.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Chunk { number, field } => {
                let kind = if field.is_some() { DENSE } else { HEAP };
                let mut bytes = vec![CHUNK, kind, 0, 0];
                bytes.extend(number.to_le_bytes());
                bytes.extend(u32::from(field.unwrap_or(0)).to_le_bytes());
                bytes.extend([0; 4]);
                bytes
            }
            Self::Append { rows, fields } => {
                let mut bytes = begun(APPEND, fields.len(), *rows);
                for (id, how) in fields {
                    let number = match how {
                        How::Missing => 0,
                        How::Dense => 1,
                        How::Entries(_) => 2,
                    };
                    bytes.extend(id.to_le_bytes());
                    bytes.extend([number, 0]);
                }
                for (_, how) in fields {
                    if let How::Entries(entries) = how {
                        bytes.extend(entries.iter().flat_map(|entry| entry.to_bytes()));
                    }
                }
                bytes
            }
            Self::Change { row, fields } => {
                let mut bytes = begun(CHANGE, fields.len(), *row);
                for (id, entry) in fields {
                    bytes.extend(id.to_le_bytes());
                    bytes.extend([0; 2]);
                    bytes.extend(entry.to_bytes());
                }
                bytes
            }
            Self::Delete { row } => begun(DELETE, 0, *row),
        }
    }
}

impl Commit {
    /// As the journal has it.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![COMMIT, if self.synced { SYNCED } else { 0 }, 0, 0];
        bytes.extend(self.frames.to_le_bytes());
        bytes.extend(self.sequence.to_le_bytes());
        bytes.extend(self.length.to_le_bytes());
        bytes.extend(self.crc.to_le_bytes());
        // There are fewer chunks than numbers of chunks.
        bytes.extend((self.chunks.len() as u32).to_le_bytes());
        for chunk in &self.chunks {
            bytes.extend(chunk.chunk.to_le_bytes());
            bytes.extend(chunk.tail.to_le_bytes());
            bytes.extend(chunk.position.to_le_bytes());
            bytes.extend(chunk.records.to_le_bytes());
        }
        bytes
    }
}

fn begun(kind: u8, fields: usize, number: u64) -> Vec<u8> {
    let mut bytes = vec![kind, 0];
    // Ids have 16 bits.
    bytes.extend((fields as u16).to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(number.to_le_bytes());
    bytes
}

impl Frame {
    /// What a record of the journal says.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let what = bytes.first().copied().unwrap_or_default();
        let frame = match what {
            CHUNK => chunk(bytes),
            APPEND => append(bytes),
            CHANGE => change(bytes),
            DELETE if bytes.len() == 16 => Some(Self::Op(Op::Delete { row: u64_at(bytes, 8) })),
            COMMIT => commit(bytes),
            _ => None,
        };
        frame.ok_or_else(|| Error::Corrupt(format!("a journal record of kind {what} is damaged")))
    }
}

fn chunk(bytes: &[u8]) -> Option<Frame> {
    if bytes.len() != 16 {
        return None;
    }
    let field = match bytes[1] {
        DENSE => Some(u16::try_from(u32_at(bytes, 8)).ok()?),
        HEAP => None,
        _ => return None,
    };
    Some(Frame::Op(Op::Chunk { number: u32_at(bytes, 4), field }))
}

fn append(bytes: &[u8]) -> Option<Frame> {
    let (count, rows) = (count_at(bytes)?, u64_at(bytes, 8));
    let mut rest = bytes.get(16 + 4 * count..)?;
    let mut fields = Vec::with_capacity(count);
    for field in bytes[16..].as_chunks::<4>().0.iter().take(count) {
        let how = match field[2] {
            0 => How::Missing,
            1 => How::Dense,
            2 => {
                let length = usize::try_from(rows).ok()?.checked_mul(ENTRY_BYTES)?;
                let (own, behind) = rest.split_at_checked(length)?;
                rest = behind;
                How::Entries(own.as_chunks().0.iter().map(Entry::parse).collect())
            }
            _ => return None,
        };
        fields.push((u16::from_le_bytes([field[0], field[1]]), how));
    }
    rest.is_empty().then_some(Frame::Op(Op::Append { rows, fields }))
}

fn change(bytes: &[u8]) -> Option<Frame> {
    const FIELD: usize = 4 + ENTRY_BYTES;
    let (count, row) = (count_at(bytes)?, u64_at(bytes, 8));
    let (fields, rest) = bytes.get(16..)?.as_chunks::<FIELD>();
    if fields.len() != count || !rest.is_empty() {
        return None;
    }
    let parse = |field: &[u8; FIELD]| {
        let entry: &[u8; ENTRY_BYTES] = field[4..].first_chunk()?;
        Some((u16::from_le_bytes([field[0], field[1]]), Entry::parse(entry)))
    };
    let fields: Option<Vec<_>> = fields.iter().map(parse).collect();
    Some(Frame::Op(Op::Change { row, fields: fields? }))
}

fn commit(bytes: &[u8]) -> Option<Frame> {
    let (chunks, rest) = bytes.get(32..)?.as_chunks::<24>();
    if !rest.is_empty() || chunks.len() != u32_at(bytes, 28) as usize || bytes[1] > SYNCED {
        return None;
    }
    let position = |bytes: &[u8; 24]| Position {
        chunk: u32_at(bytes, 0),
        tail: u32_at(bytes, 4),
        position: u64_at(bytes, 8),
        records: u64_at(bytes, 16),
    };
    Some(Frame::Commit(Commit {
        synced: bytes[1] == SYNCED,
        frames: u32_at(bytes, 4),
        sequence: u64_at(bytes, 8),
        length: u64_at(bytes, 16),
        crc: u32_at(bytes, 24),
        chunks: chunks.iter().map(position).collect(),
    }))
}

/// The number of fields, of a record that has one.
fn count_at(bytes: &[u8]) -> Option<usize> {
    let count = bytes.get(2..16)?.first_chunk::<2>()?;
    Some(usize::from(u16::from_le_bytes(*count)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Frame> {
        let entry = |offset| Entry { chunk: 3, offset, length: 40 };
        let position = Position { chunk: 3, tail: 77, position: 4096, records: 2 };
        let fields = vec![
            (0, How::Dense),
            (1, How::Entries(vec![entry(8), Entry::MISSING])),
            (2, How::Missing),
            (9, How::Entries(vec![entry(16), entry(24)])),
        ];
        vec![
            Frame::Op(Op::Chunk { number: 7, field: Some(2) }),
            Frame::Op(Op::Chunk { number: 8, field: None }),
            Frame::Op(Op::Append { rows: 2, fields }),
            Frame::Op(Op::Append { rows: 1 << 40, fields: vec![(0, How::Dense)] }),
            Frame::Op(Op::Change { row: 5, fields: vec![(1, entry(8)), (2, Entry::MISSING)] }),
            Frame::Op(Op::Delete { row: 5 }),
            Frame::Commit(Commit {
                synced: true,
                frames: 6,
                sequence: 99,
                length: 5,
                crc: 1234,
                chunks: vec![position, Position { chunk: 4, ..position }],
            }),
        ]
    }

    fn bytes_of(frame: &Frame) -> Vec<u8> {
        match frame {
            Frame::Op(op) => op.to_bytes(),
            Frame::Commit(commit) => commit.to_bytes(),
        }
    }

    #[test]
    fn frames_come_back() {
        for frame in all() {
            assert_eq!(Frame::parse(&bytes_of(&frame)).unwrap(), frame);
        }
    }

    #[test]
    fn every_cut_and_every_longer_record_is_refused() {
        for frame in all() {
            let bytes = bytes_of(&frame);
            for cut in 0..bytes.len() {
                assert_eq!(Frame::parse(&bytes[..cut]).unwrap_err().kind(), "corrupt", "{frame:?}");
            }
            let longer = [&bytes[..], &[0]].concat();
            assert!(Frame::parse(&longer).is_err(), "{frame:?}");
        }
        assert!(Frame::parse(&[9; 16]).is_err());
        // More rows than memory has, of which none is there.
        let huge = Op::Append { rows: u64::MAX, fields: vec![(0, How::Entries(Vec::new()))] };
        assert!(Frame::parse(&huge.to_bytes()).is_err());
    }
}
