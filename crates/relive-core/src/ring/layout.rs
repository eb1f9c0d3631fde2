//! The bytes of a segment; the format is `docs/format/ring.md`.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::crc::crc32c;
use crate::{Error, Result};

/// The first bytes of a segment.
const MAGIC: [u8; 8] = *b"RELVRING";
const VERSION: u32 = 1;

/// Bytes before the first slot: one page.
pub(super) const HEADER_BYTES: usize = 4096;
/// Where the number of published frames is, in a cache line of its own.
pub(super) const HEAD_AT: usize = HEADER_BYTES - 128;
/// Where the flags are, in a cache line of their own.
pub(super) const FLAGS_AT: usize = HEADER_BYTES - 64;
/// Sequence number, length of the scalars, and padding to a cache line.
pub(super) const SLOT_HEADER_BYTES: usize = 64;

const FIXED_BYTES: usize = 56;
/// The longest description.
pub(super) const MAX_DESCRIPTION: usize = HEAD_AT - FIXED_BYTES;
const MAX_SLOTS: usize = 1 << 16;
const MAX_SCALAR_BYTES: usize = 1 << 20;
const MAX_SEGMENT_BYTES: usize = 1 << 40;

const _: () = assert!(HEAD_AT.is_multiple_of(64) && FLAGS_AT + 64 == HEADER_BYTES, "ring.md §2");

/// The sizes of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Geometry {
    /// The number of slots, at least 2: one is written while another one is read.
    pub slots: usize,
    /// Bytes of a frame.
    pub frame_bytes: usize,
    /// Bytes for the scalars of a frame, at most.
    pub scalar_bytes: usize,
}

impl Geometry {
    /// Returns the bytes from one slot to the next.
    pub(super) fn slot_bytes(&self) -> usize {
        let content = self.scalar_bytes.next_multiple_of(8) + self.frame_bytes;
        (SLOT_HEADER_BYTES + content).next_multiple_of(64)
    }

    /// Returns the bytes of the whole segment.
    pub fn segment_bytes(&self) -> Result<usize> {
        if !(2..=MAX_SLOTS).contains(&self.slots) {
            let text = format!("slots must be between 2 and {MAX_SLOTS}, got {}", self.slots);
            return Err(Error::Invalid(text));
        }
        if self.scalar_bytes > MAX_SCALAR_BYTES || self.frame_bytes > MAX_SEGMENT_BYTES {
            let size = self.frame_bytes.max(self.scalar_bytes);
            return Err(Error::over_limit(size, MAX_SEGMENT_BYTES, "a frame", "bytes"));
        }
        let bytes = self.slot_bytes().checked_mul(self.slots);
        let bytes = bytes.filter(|&bytes| bytes <= MAX_SEGMENT_BYTES);
        bytes.map(|bytes| HEADER_BYTES + bytes).ok_or_else(|| {
            Error::TooLarge(format!(
                "{} slots of {} bytes exceed the limit of {MAX_SEGMENT_BYTES} bytes",
                self.slots,
                self.slot_bytes()
            ))
        })
    }
}

/// Returns the first bytes of a segment.
pub(super) fn header(geometry: &Geometry, description: &[u8]) -> Result<Vec<u8>> {
    if description.len() > MAX_DESCRIPTION {
        let size = description.len();
        return Err(Error::over_limit(size, MAX_DESCRIPTION, "a description", "bytes"));
    }
    let mut bytes = Vec::with_capacity(FIXED_BYTES + description.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&(geometry.slots as u32).to_le_bytes());
    bytes.extend_from_slice(&(geometry.slot_bytes() as u64).to_le_bytes());
    bytes.extend_from_slice(&(geometry.frame_bytes as u64).to_le_bytes());
    bytes.extend_from_slice(&(geometry.scalar_bytes as u64).to_le_bytes());
    bytes.extend_from_slice(&(description.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    let mut checked = bytes.clone();
    checked.extend_from_slice(description);
    bytes.extend_from_slice(&crc32c(&checked).to_le_bytes());
    bytes.extend_from_slice(description);
    Ok(bytes)
}

/// Reads the header of a segment, and checks that the file has all of its bytes.
pub(super) fn read_header(file: &File) -> Result<(Geometry, Vec<u8>)> {
    let bytes = file.metadata().map_err(Error::Io)?.len();
    let mut page = [0; HEADER_BYTES];
    if bytes < HEADER_BYTES as u64 {
        return Err(Error::Corrupt(format!("a segment of {bytes} bytes is too short")));
    }
    file.read_exact_at(&mut page, 0).map_err(Error::Io)?;
    let (geometry, description) = parse_header(&page)?;
    if (bytes as u128) < geometry.segment_bytes()? as u128 {
        return Err(Error::Corrupt(format!("a segment of {bytes} bytes is cut off")));
    }
    Ok((geometry, description))
}

/// Parses the header of a segment.
pub(super) fn parse_header(page: &[u8; HEADER_BYTES]) -> Result<(Geometry, Vec<u8>)> {
    let u32_at =
        |at: usize| u32::from_le_bytes([page[at], page[at + 1], page[at + 2], page[at + 3]]);
    let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
    let size_at = |at: usize| usize::try_from(u64_at(at)).unwrap_or(usize::MAX);
    if page[..8] != MAGIC {
        return Err(Error::Corrupt("not a live lane: wrong magic".to_owned()));
    }
    if u32_at(8) != VERSION {
        let text = format!("a live lane of version {}; this relive reads {VERSION}", u32_at(8));
        return Err(Error::Unsupported(text));
    }
    let length = size_at(40);
    if length > MAX_DESCRIPTION {
        return Err(Error::Corrupt(format!("a description of {length} bytes is too long")));
    }
    let description = &page[FIXED_BYTES..FIXED_BYTES + length];
    let mut checked = page[..FIXED_BYTES - 4].to_vec();
    checked.extend_from_slice(description);
    if crc32c(&checked) != u32_at(FIXED_BYTES - 4) {
        return Err(Error::Corrupt("the header of a live lane has a wrong checksum".to_owned()));
    }
    let geometry = Geometry {
        slots: u32_at(12) as usize,
        frame_bytes: size_at(24),
        scalar_bytes: size_at(32),
    };
    let limits = geometry.segment_bytes().map_err(|error| Error::Corrupt(error.to_string()));
    if limits.is_err() || geometry.slot_bytes() as u64 != u64_at(16) {
        return Err(Error::Corrupt("the sizes of a live lane contradict each other".to_owned()));
    }
    Ok((geometry, description.to_vec()))
}
