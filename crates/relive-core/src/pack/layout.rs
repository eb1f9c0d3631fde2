//! The fixed-size structures of a pack: header, index entry, footer, section header.
//!
//! `docs/format/pack.md` is the specification; section numbers refer to it.

use std::borrow::Cow;

use crate::codec::{Codec, Decoder, Stored};
use crate::crc::{Crc32c, crc32c};
use crate::runs::Version;
use crate::{Error, Result};

/// First bytes of every pack.
pub const MAGIC: [u8; 8] = *b"A2PACK\0\0";
/// The version of the format.
pub const VERSION: u32 = 1;
/// §1.
pub const HEADER_BYTES: usize = 28;
/// §3.
pub const ENTRY_BYTES: usize = 32;
/// §2.
pub const FOOTER_BYTES: usize = 32;
/// §5.
pub const SECTION_HEADER_BYTES: usize = 16;
/// The largest alignment of entries.
pub const MAX_ALIGN: u32 = 65_536;
/// The most stored bytes of a payload: 4 GiB − 1.
pub const MAX_STORED_BYTES: u64 = u32::MAX as u64;
/// The most entries of one pack.
pub const MAX_ENTRIES: u64 = u32::MAX as u64;

/// Header bit: the footer has the CRC of all entries.
pub const HAS_DATA_CRC: u32 = 1;
/// Header bit: sections follow the stats block.
pub const HAS_SECTIONS: u32 = 1 << 1;

/// Entry bit: the index has the CRC of the stored bytes.
pub const HAS_CRC: u16 = 1 << 4;
/// Entry bit: the frame needs the dictionary of the pack.
pub const HAS_DICTIONARY: u16 = 1 << 5;
const CODEC_MASK: u16 = 0b1111;

/// Kind of a payload that the pack does not interpret.
pub const KIND_BYTES: u16 = 0;
/// Kind of a v1 run.
pub const KIND_V1: u16 = 1;
/// Kind of a v2 run.
pub const KIND_V2: u16 = 2;
/// The first kind number for user-defined kinds, whose names are stored in the pack.
pub const FIRST_USER_KIND: u16 = 256;

/// Rounds `value` up to a multiple of `align`, a power of two; `None` on overflow.
pub fn align_up(value: u64, align: u64) -> Option<u64> {
    value.checked_add(align - 1).map(|end| end & !(align - 1))
}

/// Checks that an alignment is a power of two from 1 to [`MAX_ALIGN`].
pub fn check_align(align: u32) -> Result<u32> {
    if align.is_power_of_two() && align <= MAX_ALIGN {
        return Ok(align);
    }
    Err(Error::Invalid(format!(
        "`align` must be a power of two from 1 to {MAX_ALIGN}, got {align}"
    )))
}

/// Returns the u16 at `at`; 0 after the end.
pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).and_then(|bytes| bytes.try_into().ok()).map_or(0, u16::from_le_bytes)
}

/// Returns the u32 at `at`; 0 after the end.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes)
}

/// Returns the u64 at `at`; 0 after the end.
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// §1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// [`HAS_DATA_CRC`], [`HAS_SECTIONS`].
    pub flags: u32,
    /// The number of entries.
    pub count: u64,
}

impl Header {
    /// Parses and checks a header.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        if bytes.len() < HEADER_BYTES || !bytes.starts_with(&MAGIC) {
            return Err(Error::Corrupt(
                "the file is not a pack: it does not begin with `A2PACK`".into(),
            ));
        }
        if u32_at(bytes, 24) != crc32c(&bytes[..24]) {
            return Err(Error::Corrupt("the checksum of the header does not match".into()));
        }
        let version = u32_at(bytes, 8);
        if version != VERSION {
            return Err(Error::Unsupported(format!(
                "the pack has format version {version}, but this version of relive reads only \
                 version {VERSION}: upgrade relive"
            )));
        }
        let flags = u32_at(bytes, 12);
        if flags & !(HAS_DATA_CRC | HAS_SECTIONS) != 0 {
            return Err(Error::Unsupported(format!(
                "the pack has unknown header flags {flags:#x}: upgrade relive"
            )));
        }
        Ok(Self { flags, count: u64_at(bytes, 16) })
    }

    /// Encodes the header.
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.flags.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.count.to_le_bytes());
        let crc = crc32c(&bytes[..24]);
        bytes[24..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

/// §2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footer {
    /// The end of the last entry.
    pub data_end: u64,
    /// CRC of the index.
    pub index_crc: u32,
    /// CRC of all entries and the padding between them, or 0.
    pub data_crc: u32,
    /// The offset of the stats block, or 0.
    pub stats_offset: u64,
}

impl Footer {
    /// Parses and checks a footer.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        if bytes.len() != FOOTER_BYTES || u32_at(bytes, 24) != crc32c(&bytes[..24]) {
            return Err(Error::Corrupt(
                "the checksum of the footer does not match: the pack is truncated or damaged"
                    .into(),
            ));
        }
        Ok(Self {
            data_end: u64_at(bytes, 0),
            index_crc: u32_at(bytes, 8),
            data_crc: u32_at(bytes, 12),
            stats_offset: u64_at(bytes, 16),
        })
    }

    /// Encodes the footer.
    pub fn to_bytes(self) -> [u8; FOOTER_BYTES] {
        let mut bytes = [0; FOOTER_BYTES];
        bytes[..8].copy_from_slice(&self.data_end.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.index_crc.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.data_crc.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.stats_offset.to_le_bytes());
        let crc = crc32c(&bytes[..24]);
        bytes[24..28].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

/// §3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The offset of the stored bytes.
    pub offset: u64,
    /// The number of stored bytes.
    pub length: u32,
    /// The kind of the payload.
    pub kind: u16,
    /// Codec, [`HAS_CRC`], [`HAS_DICTIONARY`].
    pub flags: u16,
    /// CRC of the stored bytes.
    pub crc: u32,
    /// The length of the payload if it is compressed, else 0.
    pub logical: u32,
}

impl Entry {
    /// Parses an entry; flags are not checked here.
    pub fn parse(bytes: &[u8; ENTRY_BYTES]) -> Self {
        Self {
            offset: u64_at(bytes, 0),
            length: u32_at(bytes, 8),
            kind: u16_at(bytes, 12),
            flags: u16_at(bytes, 14),
            crc: u32_at(bytes, 16),
            logical: u32_at(bytes, 20),
        }
    }

    /// Encodes the entry.
    pub fn to_bytes(self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..8].copy_from_slice(&self.offset.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.length.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.kind.to_le_bytes());
        bytes[14..16].copy_from_slice(&self.flags.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.crc.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.logical.to_le_bytes());
        bytes
    }

    /// Returns the codec of the payload. Unknown flags and codecs are `Unsupported`.
    pub fn codec(&self) -> Result<Codec> {
        if self.flags & !(CODEC_MASK | HAS_CRC | HAS_DICTIONARY) != 0 {
            return Err(Error::Unsupported(format!(
                "the entry has unknown flags {:#x}: upgrade relive",
                self.flags
            )));
        }
        Codec::from_id((self.flags & CODEC_MASK) as u8)
    }

    /// Decodes the stored bytes.
    pub(super) fn decode<'a>(
        &self,
        stored: Cow<'a, [u8]>,
        decoder: &Decoder,
    ) -> Result<Cow<'a, [u8]>> {
        let codec = self.codec()?;
        if codec == Codec::Raw {
            return Ok(stored);
        }
        let record = Stored { codec, bytes: &stored, length: self.payload_bytes() };
        decoder.decode(&record).map(Cow::Owned)
    }

    /// Returns the end of the stored bytes; `None` on overflow.
    pub fn end(&self) -> Option<u64> {
        self.offset.checked_add(u64::from(self.length))
    }

    /// Returns the length of the decoded payload.
    pub fn payload_bytes(&self) -> u64 {
        u64::from(if self.flags & CODEC_MASK == 0 { self.length } else { self.logical })
    }

    /// Whether the entry has a CRC.
    pub fn has_crc(&self) -> bool {
        self.flags & HAS_CRC != 0 || self.crc != 0
    }

    /// Whether the payload is a run.
    pub fn is_run(&self) -> bool {
        self.run_version().is_some()
    }

    /// Returns the version of the run; `None` if the entry is not a run.
    #[inline]
    pub fn run_version(&self) -> Option<Version> {
        run_version(self.kind)
    }
}

/// Returns the version of runs of this kind; `None` for other kinds.
#[inline]
pub fn run_version(kind: u16) -> Option<Version> {
    match kind {
        KIND_V1 => Some(Version::V1),
        KIND_V2 => Some(Version::V2),
        _ => None,
    }
}

/// The tag of a section: four ASCII characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag(pub [u8; 4]);

impl Tag {
    /// Step table.
    pub const STEP: Self = Self(*b"STEP");
    /// Step checkpoints.
    pub const CKPT: Self = Self(*b"CKPT");
    /// Columns of runs.
    pub const RUNS: Self = Self(*b"RUNS");
    /// Strings.
    pub const TEXT: Self = Self(*b"TEXT");
    /// Names of entries.
    pub const NAME: Self = Self(*b"NAME");
    /// Names of kinds.
    pub const KIND: Self = Self(*b"KIND");
    /// The zstd dictionary.
    pub const DICT: Self = Self(*b"DICT");
    /// CRC of the stats block.
    pub const STAT: Self = Self(*b"STAT");
    /// The offsets of all sections.
    pub const DIRS: Self = Self(*b"DIRS");
}

impl std::fmt::Display for Tag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

/// §5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectionHeader {
    /// The kind of section.
    pub tag: Tag,
    /// CRC of tag, length and bytes.
    pub crc: u32,
    /// The number of bytes after the header.
    pub length: u64,
}

impl SectionHeader {
    /// Creates the header of a section with these bytes.
    pub fn of(tag: Tag, bytes: &[u8]) -> Self {
        let length = bytes.len() as u64;
        let mut digest = Self::digest(tag, length);
        digest.update(bytes);
        Self { tag, crc: digest.value(), length }
    }

    /// Returns a CRC of tag and length, to be updated with the bytes.
    pub fn digest(tag: Tag, length: u64) -> Crc32c {
        let mut digest = Crc32c::default();
        digest.update(&tag.0);
        digest.update(&length.to_le_bytes());
        digest
    }

    /// Parses a header; `None` if there are too few bytes.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let tag = bytes.get(..4)?.try_into().ok()?;
        bytes.get(..SECTION_HEADER_BYTES)?;
        Some(Self { tag: Tag(tag), crc: u32_at(bytes, 4), length: u64_at(bytes, 8) })
    }

    /// Encodes the header.
    pub fn to_bytes(self) -> [u8; SECTION_HEADER_BYTES] {
        let mut bytes = [0; SECTION_HEADER_BYTES];
        bytes[..4].copy_from_slice(&self.tag.0);
        bytes[4..8].copy_from_slice(&self.crc.to_le_bytes());
        bytes[8..].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_entries_and_footers_round_trip() {
        let header = Header { flags: HAS_DATA_CRC | HAS_SECTIONS, count: 7 };
        assert!(Header::parse(&header.to_bytes()).is_ok_and(|read| read == header));
        let footer = Footer { data_end: 9, index_crc: 1, data_crc: 2, stats_offset: 16 };
        assert!(Footer::parse(&footer.to_bytes()).is_ok_and(|read| read == footer));
        let entry =
            Entry { offset: 4096, length: 3, kind: 2, flags: 2 | HAS_CRC, crc: 5, logical: 9 };
        assert_eq!(Entry::parse(&entry.to_bytes()), entry);
        assert_eq!(entry.payload_bytes(), 9);
    }

    #[test]
    fn every_flipped_bit_of_header_and_footer_is_detected() {
        let header = Header { flags: HAS_SECTIONS, count: 300 }.to_bytes();
        let footer = Footer { data_end: 9, ..Footer::default() }.to_bytes();
        for bit in 0..8 * HEADER_BYTES {
            let mut flipped = header;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::parse(&flipped).is_err(), "bit {bit}");
        }
        for bit in 0..8 * 28 {
            let mut flipped = footer;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Footer::parse(&flipped).is_err(), "bit {bit}");
        }
    }
}
