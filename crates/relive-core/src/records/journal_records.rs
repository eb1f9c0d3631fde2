//! The records of a store's journal: docs/format/records.md §4.

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

/// The values that an append has for a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppendedValues {
    /// No values.
    Missing,
    /// The next stored rows of a dense field.
    Dense,
    /// The values at these entries, one for each row.
    Entries(Vec<Entry>),
}

/// An operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// A new chunk.
    Chunk {
        /// The number of the chunk.
        number: u32,
        /// The field of a dense chunk.
        field: Option<u16>,
    },
    /// Appended rows.
    Append {
        /// The number of rows.
        rows: u64,
        /// The values of each field, by field id.
        fields: Vec<(u16, AppendedValues)>,
    },
    /// Changed values of one row.
    Change {
        /// The row.
        row: u64,
        /// The new entries, by field id.
        fields: Vec<(u16, Entry)>,
    },
    /// A deleted row, which the last row replaces.
    Delete {
        /// The row.
        row: u64,
    },
}

/// The write position of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The number of the chunk.
    pub chunk: u32,
    /// CRC of its last, partial block; 0 for a heap chunk.
    pub tail: u32,
    /// The offset of its next byte.
    pub position: u64,
    /// Records in it.
    pub records: u64,
}

/// The end of a group of operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// Whether everything before it is synced.
    pub synced: bool,
    /// The number of operations in the group.
    pub ops: u32,
    /// The sequence number of the last call.
    pub sequence: u64,
    /// The number of records in the store.
    pub length: u64,
    /// CRC of the journal records of the operations.
    pub crc: u32,
    /// The write positions of changed chunks.
    pub chunks: Vec<Position>,
}

/// A record of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalRecord {
    /// An operation.
    Op(Op),
    /// Makes all operations before it valid.
    Commit(Commit),
}

impl Op {
    /// Encodes the journal record.
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
                for (id, values) in fields {
                    let number = match values {
                        AppendedValues::Missing => 0,
                        AppendedValues::Dense => 1,
                        AppendedValues::Entries(_) => 2,
                    };
                    bytes.extend(id.to_le_bytes());
                    bytes.extend([number, 0]);
                }
                for (_, values) in fields {
                    if let AppendedValues::Entries(entries) = values {
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
    /// Encodes the journal record.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![COMMIT, if self.synced { SYNCED } else { 0 }, 0, 0];
        bytes.extend(self.ops.to_le_bytes());
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

impl JournalRecord {
    /// Parses a journal record.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let what = bytes.first().copied().unwrap_or_default();
        let record = match what {
            CHUNK => chunk(bytes),
            APPEND => append(bytes),
            CHANGE => change(bytes),
            DELETE if bytes.len() == 16 => Some(Self::Op(Op::Delete { row: u64_at(bytes, 8) })),
            COMMIT => commit(bytes),
            _ => None,
        };
        record.ok_or_else(|| Error::Corrupt(format!("a journal record of kind {what} is damaged")))
    }
}

fn chunk(bytes: &[u8]) -> Option<JournalRecord> {
    if bytes.len() != 16 {
        return None;
    }
    let field = match bytes[1] {
        DENSE => Some(u16::try_from(u32_at(bytes, 8)).ok()?),
        HEAP => None,
        _ => return None,
    };
    Some(JournalRecord::Op(Op::Chunk { number: u32_at(bytes, 4), field }))
}

fn append(bytes: &[u8]) -> Option<JournalRecord> {
    let (count, rows) = (count_at(bytes)?, u64_at(bytes, 8));
    let mut rest = bytes.get(16 + 4 * count..)?;
    let mut fields = Vec::with_capacity(count);
    for field in bytes[16..].as_chunks::<4>().0.iter().take(count) {
        let values = match field[2] {
            0 => AppendedValues::Missing,
            1 => AppendedValues::Dense,
            2 => {
                let length = usize::try_from(rows).ok()?.checked_mul(ENTRY_BYTES)?;
                let (own, behind) = rest.split_at_checked(length)?;
                rest = behind;
                AppendedValues::Entries(own.as_chunks().0.iter().map(Entry::parse).collect())
            }
            _ => return None,
        };
        fields.push((u16::from_le_bytes([field[0], field[1]]), values));
    }
    rest.is_empty().then_some(JournalRecord::Op(Op::Append { rows, fields }))
}

fn change(bytes: &[u8]) -> Option<JournalRecord> {
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
    Some(JournalRecord::Op(Op::Change { row, fields: fields? }))
}

fn commit(bytes: &[u8]) -> Option<JournalRecord> {
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
    Some(JournalRecord::Commit(Commit {
        synced: bytes[1] == SYNCED,
        ops: u32_at(bytes, 4),
        sequence: u64_at(bytes, 8),
        length: u64_at(bytes, 16),
        crc: u32_at(bytes, 24),
        chunks: chunks.iter().map(position).collect(),
    }))
}

/// Returns the number of fields of an append or change.
fn count_at(bytes: &[u8]) -> Option<usize> {
    let count = bytes.get(2..16)?.first_chunk::<2>()?;
    Some(usize::from(u16::from_le_bytes(*count)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<JournalRecord> {
        let entry = |offset| Entry { chunk: 3, offset, length: 40 };
        let position = Position { chunk: 3, tail: 77, position: 4096, records: 2 };
        let fields = vec![
            (0, AppendedValues::Dense),
            (1, AppendedValues::Entries(vec![entry(8), Entry::MISSING])),
            (2, AppendedValues::Missing),
            (9, AppendedValues::Entries(vec![entry(16), entry(24)])),
        ];
        vec![
            JournalRecord::Op(Op::Chunk { number: 7, field: Some(2) }),
            JournalRecord::Op(Op::Chunk { number: 8, field: None }),
            JournalRecord::Op(Op::Append { rows: 2, fields }),
            JournalRecord::Op(Op::Append {
                rows: 1 << 40,
                fields: vec![(0, AppendedValues::Dense)],
            }),
            JournalRecord::Op(Op::Change {
                row: 5,
                fields: vec![(1, entry(8)), (2, Entry::MISSING)],
            }),
            JournalRecord::Op(Op::Delete { row: 5 }),
            JournalRecord::Commit(Commit {
                synced: true,
                ops: 6,
                sequence: 99,
                length: 5,
                crc: 1234,
                chunks: vec![position, Position { chunk: 4, ..position }],
            }),
        ]
    }

    fn bytes_of(record: &JournalRecord) -> Vec<u8> {
        match record {
            JournalRecord::Op(op) => op.to_bytes(),
            JournalRecord::Commit(commit) => commit.to_bytes(),
        }
    }

    #[test]
    fn records_come_back() {
        for record in all() {
            assert_eq!(JournalRecord::parse(&bytes_of(&record)).unwrap(), record);
        }
    }

    #[test]
    fn every_cut_and_every_longer_record_is_refused() {
        for record in all() {
            let bytes = bytes_of(&record);
            for cut in 0..bytes.len() {
                assert_eq!(
                    JournalRecord::parse(&bytes[..cut]).unwrap_err().kind(),
                    "corrupt",
                    "{record:?}"
                );
            }
            let longer = [&bytes[..], &[0]].concat();
            assert!(JournalRecord::parse(&longer).is_err(), "{record:?}");
        }
        assert!(JournalRecord::parse(&[9; 16]).is_err());
        // More rows than memory has, of which none is there.
        let huge =
            Op::Append { rows: u64::MAX, fields: vec![(0, AppendedValues::Entries(Vec::new()))] };
        assert!(JournalRecord::parse(&huge.to_bytes()).is_err());
    }
}
