//! `DIRS`: where every section is.

use std::borrow::Cow;
use std::ops::Range;

use super::super::layout::{SECTION_HEADER_BYTES, SectionHeader, Tag, u32_at, u64_at};
use super::corrupt;
use crate::{Error, Result};

const PLACE_BYTES: usize = 24;
const OWN_OFFSET_BYTES: usize = 8;

/// Where one section is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectionPlace {
    /// What it is.
    pub tag: Tag,
    /// Where its header begins in the file.
    pub offset: u64,
    /// How many bytes follow the header.
    pub length: u64,
}

impl SectionPlace {
    /// Where header and bytes are in the file.
    pub fn range(&self) -> Range<u64> {
        // `Directory::parse` refuses places whose end would overflow.
        let end = self.bytes_offset().saturating_add(self.length);
        self.offset..end
    }

    /// Where its bytes begin in the file.
    pub fn bytes_offset(&self) -> u64 {
        self.offset.saturating_add(SECTION_HEADER_BYTES as u64)
    }
}

/// The sections of a pack, in the order of the file, without the directory itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directory(Vec<SectionPlace>);

impl Directory {
    /// Reads the bytes of a directory whose header begins at `own_offset`; sections lie
    /// from `first` on, before the directory, in order and without overlap.
    pub fn parse(bytes: &[u8], own_offset: u64, first: u64) -> Result<Self> {
        let bad = |text: &str| corrupt(Tag::DIRS, text);
        let count = bytes.len() / PLACE_BYTES;
        if bytes.len() != count * PLACE_BYTES + OWN_OFFSET_BYTES {
            return Err(bad("its length is not that of a directory"));
        }
        let (places, own) = bytes.split_at(count * PLACE_BYTES);
        if u64_at(own, 0) != own_offset {
            return Err(bad("it does not say where it is itself"));
        }
        let mut directory = Self(Vec::with_capacity(count));
        let mut free = first;
        for item in places.chunks_exact(PLACE_BYTES) {
            let tag = Tag([item[0], item[1], item[2], item[3]]);
            let place = SectionPlace { tag, offset: u64_at(item, 8), length: u64_at(item, 16) };
            let end = (place.offset.checked_add(SECTION_HEADER_BYTES as u64))
                .and_then(|start| start.checked_add(place.length))
                .filter(|&end| end <= own_offset && place.offset >= free);
            let Some(end) = end else {
                return Err(bad(&format!(
                    "section {tag} at offset {} overlaps another, or lies outside of the file",
                    place.offset
                )));
            };
            if u32_at(item, 4) != 0 || !place.offset.is_multiple_of(8) {
                return Err(bad(&format!("the place of section {tag} is not well formed")));
            }
            if tag == Tag::DIRS {
                return Err(bad("it lists itself"));
            }
            free = end;
            directory.0.push(place);
        }
        // Sorted neighbours find a repeat without comparing each with each.
        let mut tags: Vec<[u8; 4]> = directory.0.iter().map(|place| place.tag.0).collect();
        tags.sort_unstable();
        if let Some(pair) = tags.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(bad(&format!("section {} occurs twice", Tag(pair[0]))));
        }
        Ok(directory)
    }

    /// The bytes of the directory of these sections, whose header will be at `own_offset`.
    pub fn build(places: &[SectionPlace], own_offset: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(places.len() * PLACE_BYTES + OWN_OFFSET_BYTES);
        for place in places {
            bytes.extend_from_slice(&place.tag.0);
            bytes.extend_from_slice(&[0; 4]);
            bytes.extend_from_slice(&place.offset.to_le_bytes());
            bytes.extend_from_slice(&place.length.to_le_bytes());
        }
        bytes.extend_from_slice(&own_offset.to_le_bytes());
        bytes
    }

    /// Where the section with this tag is.
    pub fn find(&self, tag: Tag) -> Option<&SectionPlace> {
        self.0.iter().find(|place| place.tag == tag)
    }

    /// All sections, in the order of the file.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &SectionPlace> {
        self.0.iter()
    }

    /// How many sections there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no sections.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The bytes of a section, out of its header and bytes as they are stored at `place`.
///
/// `Corrupt` where tag, length or checksum are not what the place and the header say.
pub fn section_bytes<'a>(place: &SectionPlace, stored: Cow<'a, [u8]>) -> Result<Cow<'a, [u8]>> {
    let bad = |text: &str| {
        Error::Corrupt(format!("section {} at offset {}: {text}", place.tag, place.offset))
    };
    let header = SectionHeader::parse(&stored).ok_or_else(|| bad("it is cut short"))?;
    let bytes = &stored[SECTION_HEADER_BYTES..];
    if header.tag != place.tag
        || header.length != place.length
        || bytes.len() as u64 != place.length
    {
        return Err(bad("it is not the section that the directory names"));
    }
    if SectionHeader::of(place.tag, bytes).crc != header.crc {
        return Err(bad("the checksum does not match"));
    }
    Ok(match stored {
        Cow::Borrowed(stored) => Cow::Borrowed(&stored[SECTION_HEADER_BYTES..]),
        Cow::Owned(mut stored) => {
            stored.drain(..SECTION_HEADER_BYTES);
            Cow::Owned(stored)
        }
    })
}
