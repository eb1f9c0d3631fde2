//! The binary layout of chunks, records and tables: docs/format/records.md §1 and §2.

use crate::codec::Codec;
use crate::crc::{Crc32c, crc32c};
use crate::{Error, Result};

/// Chunks and tables start with a page of this size.
pub const PAGE: u64 = 4096;

/// Dense chunks and tables have a checksum for each block of this size.
pub const BLOCK: u64 = 64 * 1024;

/// Bytes of the header of a record in a heap chunk.
pub const RECORD_BYTES: usize = 32;

/// Records in heap chunks start at multiples of this.
pub const ALIGN: u64 = 8;

/// File names contain a field's name only up to this length.
const NAME_BYTES: usize = 200;

/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 16;

const CHUNK_MAGIC: [u8; 8] = *b"RELIVEC\0";
const TABLE_MAGIC: [u8; 8] = *b"RELIVET\0";
const RECORD_MAGIC: [u8; 4] = *b"ZREC";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 64;
const DENSE: u32 = 1;
const HEAP: u32 = 2;

/// The random id of a store.
pub type Uid = [u8; 16];

/// The kind of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkKind {
    /// Values of one field, as rows of equal size.
    Dense {
        /// Id of the field.
        field: u16,
        /// Bytes of a row.
        stride: u64,
        /// The most rows.
        rows: u64,
    },
    /// Records with headers, of any field.
    Heap,
}

/// The header of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHeader {
    /// Number of the chunk.
    pub number: u32,
    /// The uid of its store.
    pub uid: Uid,
    /// The kind.
    pub kind: ChunkKind,
}

impl ChunkHeader {
    /// Encodes the first page of a chunk.
    pub fn to_page(self) -> Vec<u8> {
        let (kind, field, stride, rows) = match self.kind {
            ChunkKind::Dense { field, stride, rows } => (DENSE, u32::from(field), stride, rows),
            ChunkKind::Heap => (HEAP, 0, 0, 0),
        };
        let mut page = begun(CHUNK_MAGIC, self.number, &self.uid);
        page[32..36].copy_from_slice(&kind.to_le_bytes());
        page[36..40].copy_from_slice(&field.to_le_bytes());
        page[40..48].copy_from_slice(&stride.to_le_bytes());
        page[48..56].copy_from_slice(&rows.to_le_bytes());
        sealed(page)
    }

    /// Parses the first page of a chunk.
    pub fn parse(page: &[u8]) -> Result<Self> {
        let bytes = checked(page, CHUNK_MAGIC, "the chunk file")?;
        let (number, uid) = (u32_at(bytes, 12), uid_of(bytes));
        let (field, stride, rows) = (u32_at(bytes, 36), u64_at(bytes, 40), u64_at(bytes, 48));
        let kind = match (u32_at(bytes, 32), u16::try_from(field)) {
            (DENSE, Ok(field)) if is_dense(stride, rows) => {
                ChunkKind::Dense { field, stride, rows }
            }
            (HEAP, _) => ChunkKind::Heap,
            _ => return Err(Error::Corrupt("the header of the chunk file is invalid".into())),
        };
        Ok(Self { number, uid, kind })
    }
}

/// Returns whether a dense chunk can have this many rows of this size.
pub fn is_dense(stride: u64, rows: u64) -> bool {
    let bytes = stride.checked_mul(rows).filter(|&bytes| bytes <= i64::MAX as u64 - PAGE);
    bytes.is_some_and(|bytes| bytes > 0 && bytes % PAGE == 0)
}

/// The header of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableHeader {
    /// Id of the field.
    pub field: u16,
    /// The uid of its store.
    pub uid: Uid,
    /// The number of entries.
    pub rows: u64,
    /// CRC of the CRCs after the entries.
    pub crc: u32,
}

impl TableHeader {
    /// Encodes the first page of a table.
    pub fn to_page(self) -> Vec<u8> {
        let mut page = begun(TABLE_MAGIC, u32::from(self.field), &self.uid);
        page[32..40].copy_from_slice(&self.rows.to_le_bytes());
        page[40..44].copy_from_slice(&self.crc.to_le_bytes());
        sealed(page)
    }

    /// Parses the first page of a table.
    pub fn parse(page: &[u8]) -> Result<Self> {
        let bytes = checked(page, TABLE_MAGIC, "the table file")?;
        let field = u16::try_from(u32_at(bytes, 12))
            .map_err(|_| Error::Corrupt("the header of the table file is invalid".into()))?;
        Ok(Self { field, uid: uid_of(bytes), rows: u64_at(bytes, 32), crc: u32_at(bytes, 40) })
    }
}

fn begun(magic: [u8; 8], number: u32, uid: &Uid) -> Vec<u8> {
    let mut page = vec![0; PAGE as usize];
    page[..8].copy_from_slice(&magic);
    page[8..12].copy_from_slice(&VERSION.to_le_bytes());
    page[12..16].copy_from_slice(&number.to_le_bytes());
    page[16..32].copy_from_slice(uid);
    page
}

fn sealed(mut page: Vec<u8>) -> Vec<u8> {
    let crc = crc32c(&page[..HEADER_BYTES - 4]);
    page[HEADER_BYTES - 4..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
    page
}

fn checked<'a>(page: &'a [u8], magic: [u8; 8], what: &str) -> Result<&'a [u8]> {
    let damaged = || Error::Corrupt(format!("the header of {what} is damaged"));
    let bytes = page.get(..HEADER_BYTES).ok_or_else(damaged)?;
    if bytes[..8] != magic || crc32c(&bytes[..HEADER_BYTES - 4]) != u32_at(bytes, HEADER_BYTES - 4)
    {
        return Err(damaged());
    }
    let version = u32_at(bytes, 8);
    if version != VERSION {
        return Err(Error::Unsupported(format!(
            "the format version is {version}, but this version of relive reads only version \
             {VERSION}: upgrade relive"
        )));
    }
    Ok(bytes)
}

/// Checks that the first page of a file has only zeros after its header.
pub fn check_zeros(page: &[u8]) -> Result<()> {
    match page.iter().skip(HEADER_BYTES).position(|&byte| byte != 0) {
        None => Ok(()),
        Some(at) => Err(Error::Corrupt(format!(
            "the byte at offset {} is not zero, but no data is stored there",
            HEADER_BYTES + at
        ))),
    }
}

fn uid_of(bytes: &[u8]) -> Uid {
    bytes[16..].first_chunk().copied().unwrap_or_default()
}

/// The location of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Number of the chunk.
    pub chunk: u32,
    /// The offset in its file.
    pub offset: u64,
    /// The number of bytes; 0 for a missing value.
    pub length: u32,
}

impl Entry {
    /// The entry of a missing value.
    pub const MISSING: Self = Self { chunk: 0, offset: 0, length: 0 };

    /// Returns whether the value is missing.
    pub fn is_missing(self) -> bool {
        self.length == 0
    }

    /// Returns the offset of its end; the maximum if that overflows.
    pub fn end(self) -> u64 {
        self.offset.saturating_add(u64::from(self.length))
    }

    /// Encodes the entry.
    pub fn to_bytes(self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..4].copy_from_slice(&self.chunk.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.offset.to_le_bytes());
        bytes[12..].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    /// Parses an entry.
    pub fn parse(bytes: &[u8; ENTRY_BYTES]) -> Self {
        Self { chunk: u32_at(bytes, 0), offset: u64_at(bytes, 4), length: u32_at(bytes, 12) }
    }
}

/// The header of a record in a heap chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Id of the field.
    pub field: u16,
    /// The codec of the stored bytes.
    pub codec: Codec,
    /// The number of dimensions after the header.
    pub dims: u8,
    /// The sequence number of the call that wrote it.
    pub sequence: u64,
    /// Bytes of the value.
    pub length: u64,
    /// Bytes that are stored.
    pub stored: u32,
    /// Checksum of header, dimensions and stored bytes.
    pub crc: u32,
}

impl RecordHeader {
    /// Encodes the header with the checksum of these stored bytes; `crc` is ignored.
    #[cfg(test)]
    pub fn seal(self, dims: &[u64], stored: &[u8]) -> [u8; RECORD_BYTES] {
        let mut digest = self.digest(dims);
        digest.update(stored);
        self.sealed(digest.value())
    }

    /// Starts the checksum: header and dimensions.
    pub fn digest(&self, dims: &[u64]) -> Crc32c {
        let mut digest = Crc32c::default();
        digest.update(&self.to_bytes()[..28]);
        for dim in dims {
            digest.update(&dim.to_le_bytes());
        }
        digest
    }

    /// Encodes the header with this checksum.
    pub fn sealed(self, crc: u32) -> [u8; RECORD_BYTES] {
        let mut bytes = self.to_bytes();
        bytes[28..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Parses the first bytes of a record.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let damaged = || Error::Corrupt("the header of a record is damaged".into());
        let bytes: &[u8; RECORD_BYTES] = bytes.first_chunk().ok_or_else(damaged)?;
        if bytes[..4] != RECORD_MAGIC {
            return Err(damaged());
        }
        Ok(Self {
            field: u16::from_le_bytes([bytes[4], bytes[5]]),
            codec: Codec::from_id(bytes[6]).map_err(|_| damaged())?,
            dims: bytes[7],
            sequence: u64_at(bytes, 8),
            length: u64_at(bytes, 16),
            stored: u32_at(bytes, 24),
            crc: u32_at(bytes, 28),
        })
    }

    /// Returns the bytes of header, dimensions and stored bytes.
    pub fn total(&self) -> u64 {
        RECORD_BYTES as u64 + 8 * u64::from(self.dims) + u64::from(self.stored)
    }

    /// Returns whether the checksum matches `rest`, the bytes after the header.
    pub fn holds(&self, rest: &[u8]) -> bool {
        let mut digest = Crc32c::default();
        digest.update(&self.to_bytes()[..28]);
        digest.update(rest);
        digest.value() == self.crc
    }

    fn to_bytes(self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..4].copy_from_slice(&RECORD_MAGIC);
        bytes[4..6].copy_from_slice(&self.field.to_le_bytes());
        bytes[6] = self.codec.id();
        bytes[7] = self.dims;
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.length.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.stored.to_le_bytes());
        bytes
    }
}

/// Returns the number at an offset; 0 if the bytes are too short.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |part| u32::from_le_bytes(*part))
}

/// Returns the number at an offset; 0 if the bytes are too short.
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |part| u64::from_le_bytes(*part))
}

/// Returns the name of a field for use in file names.
pub fn file_name(field: &str, id: u16) -> String {
    let mut name = String::with_capacity(field.len());
    for (position, letter) in field.chars().enumerate() {
        match letter {
            '/' => name.push_str("%2F"),
            '%' => name.push_str("%25"),
            '.' if position == 0 => name.push_str("%2E"),
            other => name.push(other),
        }
    }
    // File names have at most 255 bytes, and callers add a suffix. No name above contains `%i`.
    if name.len() > NAME_BYTES { format!("%i{id}") } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back() {
        let dense = ChunkKind::Dense { field: 7, stride: 12, rows: 1024 };
        for kind in [dense, ChunkKind::Heap] {
            let header = ChunkHeader { number: 9, uid: [3; 16], kind };
            let page = header.to_page();
            assert_eq!(page.len() as u64, PAGE);
            assert_eq!(ChunkHeader::parse(&page).unwrap(), header);
            assert!(TableHeader::parse(&page).is_err());
            for bit in 0..HEADER_BYTES * 8 {
                let mut flipped = page.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(ChunkHeader::parse(&flipped).unwrap_err().kind(), "corrupt");
            }
        }
        let table = TableHeader { field: 1, uid: [5; 16], rows: 77, crc: 0xABCD };
        assert_eq!(TableHeader::parse(&table.to_page()).unwrap(), table);
        let odd = ChunkKind::Dense { field: 0, stride: 3, rows: 5 };
        let page = ChunkHeader { number: 0, uid: [0; 16], kind: odd }.to_page();
        assert_eq!(ChunkHeader::parse(&page).unwrap_err().kind(), "corrupt");
    }

    #[test]
    fn records_hold_or_do_not() {
        let header = RecordHeader {
            field: 3,
            codec: Codec::Zstd,
            dims: 2,
            sequence: 88,
            length: 1000,
            stored: 4,
            crc: 0,
        };
        let bytes = header.seal(&[20, 50], b"abcd");
        let found = RecordHeader::parse(&bytes).unwrap();
        assert_eq!(RecordHeader { crc: 0, ..found }, header);
        assert_eq!(found.total(), 52);
        let rest = [&20_u64.to_le_bytes()[..], &50_u64.to_le_bytes(), b"abcd"].concat();
        let whole = [&bytes[..], &rest].concat();
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let holds = RecordHeader::parse(&flipped)
                .is_ok_and(|header| header.holds(&flipped[RECORD_BYTES..]));
            assert!(!holds, "bit {bit}");
        }
        assert!(found.holds(&rest));
    }

    #[test]
    fn entries_and_names() {
        let entry = Entry { chunk: 5, offset: 1 << 40, length: 9 };
        assert_eq!(Entry::parse(&entry.to_bytes()), entry);
        assert!(Entry::parse(&[0; 16]).is_missing());
        assert_eq!(Entry { offset: u64::MAX, ..entry }.end(), u64::MAX);
        assert_eq!(file_name("/cam%/a.b", 1), "%2Fcam%25%2Fa.b");
        assert_eq!(file_name(".hidden", 1), "%2Ehidden");
        assert_eq!(file_name(&"/".repeat(200), 7), "%i7");
    }
}
