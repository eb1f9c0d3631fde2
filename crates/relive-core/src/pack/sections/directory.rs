//! `DIRS`: the locations of all sections.

use std::borrow::Cow;
use std::ops::Range;

use super::super::layout::{SECTION_HEADER_BYTES, SectionHeader, Tag, u32_at, u64_at};
use super::corrupt;
use crate::{Error, Result};

const LOCATION_BYTES: usize = 24;
const OWN_OFFSET_BYTES: usize = 8;

/// The location of one section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectionLocation {
    /// The kind of section.
    pub tag: Tag,
    /// The offset of its header.
    pub offset: u64,
    /// The number of bytes after the header.
    pub length: u64,
}

impl SectionLocation {
    /// Returns the range of header and bytes.
    pub fn range(&self) -> Range<u64> {
        // `Directory::parse` refuses a location whose end overflows.
        let end = self.bytes_offset().saturating_add(self.length);
        self.offset..end
    }

    /// Returns the offset of its bytes.
    pub fn bytes_offset(&self) -> u64 {
        self.offset.saturating_add(SECTION_HEADER_BYTES as u64)
    }

    pub(super) fn corrupt(&self, text: &str) -> Error {
        Error::Corrupt(format!("section {} at offset {}: {text}", self.tag, self.offset))
    }
}

/// The sections of a pack in file order, without the directory itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directory(Vec<SectionLocation>);

impl Directory {
    /// Parses a directory whose header begins at `own_offset`. Sections must be between `first`
    /// and the directory, in order and without overlap.
    pub fn parse(bytes: &[u8], own_offset: u64, first: u64) -> Result<Self> {
        let bad = |text: &str| corrupt(Tag::DIRS, text);
        let count = bytes.len() / LOCATION_BYTES;
        if bytes.len() != count * LOCATION_BYTES + OWN_OFFSET_BYTES {
            return Err(bad("the section has an invalid length"));
        }
        let (locations, own) = bytes.split_at(count * LOCATION_BYTES);
        if u64_at(own, 0) != own_offset {
            return Err(bad("the section directory stores a wrong offset for itself"));
        }
        let mut directory = Self(Vec::with_capacity(count));
        let mut free = first;
        for item in locations.chunks_exact(LOCATION_BYTES) {
            let tag = Tag([item[0], item[1], item[2], item[3]]);
            let location =
                SectionLocation { tag, offset: u64_at(item, 8), length: u64_at(item, 16) };
            let end = (location.offset.checked_add(SECTION_HEADER_BYTES as u64))
                .and_then(|start| start.checked_add(location.length))
                .filter(|&end| end <= own_offset && location.offset >= free);
            let Some(end) = end else {
                return Err(bad(&format!(
                    "section {tag} at offset {} overlaps another section or is outside the file",
                    location.offset
                )));
            };
            if u32_at(item, 4) != 0 || !location.offset.is_multiple_of(8) {
                return Err(bad(&format!("the location of section {tag} is malformed")));
            }
            if tag == Tag::DIRS {
                return Err(bad("the section directory lists itself"));
            }
            free = end;
            directory.0.push(location);
        }
        // After sorting, equal tags are adjacent.
        let mut tags: Vec<[u8; 4]> = directory.0.iter().map(|location| location.tag.0).collect();
        tags.sort_unstable();
        if let Some(pair) = tags.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(bad(&format!("section {} is listed twice", Tag(pair[0]))));
        }
        Ok(directory)
    }

    /// Encodes the directory of these sections, whose header will be at `own_offset`.
    pub fn build(locations: &[SectionLocation], own_offset: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(locations.len() * LOCATION_BYTES + OWN_OFFSET_BYTES);
        for location in locations {
            bytes.extend_from_slice(&location.tag.0);
            bytes.extend_from_slice(&[0; 4]);
            bytes.extend_from_slice(&location.offset.to_le_bytes());
            bytes.extend_from_slice(&location.length.to_le_bytes());
        }
        bytes.extend_from_slice(&own_offset.to_le_bytes());
        bytes
    }

    /// Returns the location of the section with this tag.
    pub fn find(&self, tag: Tag) -> Option<&SectionLocation> {
        self.0.iter().find(|location| location.tag == tag)
    }

    /// Returns all sections in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &SectionLocation> {
        self.0.iter()
    }

    /// Returns the number of sections.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no sections.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Returns the bytes of a section from its stored header and bytes.
///
/// `Corrupt` if tag, length or checksum differ from those of the location and the header.
pub fn section_bytes<'a>(
    location: &SectionLocation,
    stored: Cow<'a, [u8]>,
) -> Result<Cow<'a, [u8]>> {
    let header = SectionHeader::parse(&stored)
        .ok_or_else(|| location.corrupt("the section is truncated"))?;
    let bytes = &stored[SECTION_HEADER_BYTES..];
    if header.tag != location.tag
        || header.length != location.length
        || bytes.len() as u64 != location.length
    {
        return Err(location.corrupt("the section header does not match the section directory"));
    }
    if SectionHeader::of(location.tag, bytes).crc != header.crc {
        return Err(location.corrupt("the section does not match its checksum"));
    }
    Ok(match stored {
        Cow::Borrowed(stored) => Cow::Borrowed(&stored[SECTION_HEADER_BYTES..]),
        Cow::Owned(mut stored) => {
            stored.drain(..SECTION_HEADER_BYTES);
            Cow::Owned(stored)
        }
    })
}
