//! Parses the index of a pack: checked once as a whole, then trusted.

use std::ops::Range;

use super::layout::{ENTRY_BYTES, Entry, HAS_CRC, HAS_DICTIONARY, HEADER_BYTES, MAX_ENTRIES};
use crate::codec::{Codec, impossible_length};
use crate::crc::crc32c;
use crate::{Error, Result};

/// The most payload bytes per stored byte of any codec: a run-length block of zstd has 128 KiB
/// in four bytes. Impossible lengths are refused here, before memory is allocated for them.
const MAX_EXPANSION: u64 = 32 * 1024;

/// Returns the range of an index with `count` entries; `None` if the count is too large.
pub fn index_range(count: u64) -> Option<Range<u64>> {
    let bytes = (count <= MAX_ENTRIES).then(|| count.checked_mul(ENTRY_BYTES as u64))??;
    let start = HEADER_BYTES as u64;
    Some(start..start.checked_add(bytes)?)
}

/// All entries of a pack. The bytes are a copy, so they stay valid if the file changes.
pub struct Index {
    bytes: Vec<u8>,
}

impl Index {
    /// Checks the stored index: its checksum, and for each entry that its flags are known and
    /// that it is between the entry before and `data_end`.
    pub fn parse(bytes: Vec<u8>, crc: u32, data_end: u64) -> Result<Self> {
        if crc32c(&bytes) != crc {
            return Err(Error::Corrupt("the checksum of the index does not match".into()));
        }
        let mut free = HEADER_BYTES as u64 + bytes.len() as u64;
        for (position, stored) in bytes.as_chunks().0.iter().enumerate() {
            let entry = Entry::parse(stored);
            let end = entry.end().filter(|&end| entry.offset >= free && end <= data_end);
            let Some(end) = end else {
                let text = format!(
                    "its {} bytes are not inside the free range from {free} to {data_end}",
                    entry.length
                );
                return Err(at(position, &entry, Error::Corrupt(text)));
            };
            if !is_plain(&entry) {
                check_flags(&entry).map_err(|error| at(position, &entry, error))?;
            }
            free = end;
        }
        Ok(Self { bytes })
    }

    /// Returns the number of entries.
    pub fn len(&self) -> u64 {
        (self.bytes.len() / ENTRY_BYTES) as u64
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns one entry.
    #[inline]
    pub fn get(&self, position: u64) -> Option<Entry> {
        let entries = self.bytes.as_chunks().0;
        entries.get(usize::try_from(position).ok()?).map(Entry::parse)
    }

    /// Returns all entries, in order.
    pub fn iter(&self) -> impl Iterator<Item = Entry> {
        self.bytes.as_chunks().0.iter().map(Entry::parse)
    }
}

/// Whether the entry is raw and has no other flags to check.
#[inline]
pub(super) fn is_plain(entry: &Entry) -> bool {
    entry.flags & !HAS_CRC == 0
}

fn check_flags(entry: &Entry) -> Result<()> {
    let codec = entry.codec()?;
    if entry.flags & HAS_DICTIONARY != 0 && codec != Codec::Zstd {
        return Err(Error::Corrupt(format!(
            "the entry is marked as compressed with a dictionary, which codec {codec} does not support"
        )));
    }
    let (stored, payload) = (u64::from(entry.length), entry.payload_bytes());
    if payload > stored * MAX_EXPANSION {
        return Err(impossible_length(codec, stored, payload));
    }
    Ok(())
}

/// Splits items into consecutive groups of at most `most_bytes` bytes, unless one item has more,
/// and at most `most_items` items.
pub(super) fn groups(
    items: usize,
    bytes: impl Fn(usize) -> Result<u64>,
    most_bytes: u64,
    most_items: usize,
) -> Result<Vec<Range<usize>>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    let mut total = 0_u64;
    for item in 0..items {
        let more = bytes(item)?;
        total = total.saturating_add(more);
        match groups.last_mut() {
            Some(group) if total <= most_bytes && group.len() < most_items => group.end += 1,
            _ => {
                groups.push(item..item + 1);
                total = more;
            }
        }
    }
    Ok(groups)
}

/// Adds position and offset of the entry to an error.
pub(super) fn at(position: impl std::fmt::Display, entry: &Entry, error: Error) -> Error {
    let offset = entry.offset;
    error.about(format_args!("entry {position} at offset {offset}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Entry =
        Entry { offset: 200, length: 10, kind: 0, flags: HAS_CRC, crc: 7, logical: 0 };

    fn parse(entries: &[Entry], data_end: u64) -> Result<Index> {
        let bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.to_bytes()).collect();
        let crc = crc32c(&bytes);
        Index::parse(bytes, crc, data_end)
    }

    fn kind(entries: &[Entry], data_end: u64) -> &'static str {
        parse(entries, data_end).err().map_or("ok", |error| error.kind())
    }

    #[test]
    fn entries_round_trip() {
        let second = Entry { offset: 210, flags: 2, logical: 99, kind: 300, ..PLAIN };
        let empty = Entry { offset: 220, length: 0, ..PLAIN };
        let index = parse(&[PLAIN, second, empty], 220).unwrap();
        assert_eq!(index.iter().collect::<Vec<Entry>>(), [PLAIN, second, empty]);
        assert_eq!((index.get(1), index.get(3), index.get(u64::MAX)), (Some(second), None, None));
        assert_eq!(parse(&[], 28).unwrap().len(), 0);
    }

    #[test]
    fn entries_must_follow_each_other_between_index_and_end() {
        let at = |offset: u64, length: u32| Entry { offset, length, ..PLAIN };
        assert_eq!(kind(&[at(92, 10), at(102, 5)], 107), "ok");
        assert_eq!(kind(&[at(91, 10)], 300), "ok");
        assert_eq!(kind(&[at(91, 10), at(101, 5)], 300), "corrupt", "inside the index");
        assert_eq!(kind(&[at(92, 10), at(101, 5)], 300), "corrupt", "overlap");
        assert_eq!(kind(&[at(200, 10), at(100, 5)], 300), "corrupt", "falling");
        assert_eq!(kind(&[at(200, 10)], 209), "corrupt", "past the end");
        assert_eq!(kind(&[at(u64::MAX - 5, 10)], u64::MAX), "corrupt", "past all numbers");
        assert_eq!(kind(&[at(200, 0), at(200, 0)], 200), "ok", "nothing needs no room");
        let error = parse(&[at(92, 10), at(101, 5)], 300).err().unwrap().to_string();
        assert!(error.contains("entry 1 at offset 101"), "{error}");
    }

    #[test]
    fn flags_are_judged() {
        let with = |flags: u16, logical: u32| Entry { flags, logical, ..PLAIN };
        for flags in [1 << 6, 1 << 15, 4, 15] {
            assert_eq!(kind(&[with(flags, 0)], 210), "unsupported", "{flags:#x}");
        }
        assert_eq!(kind(&[with(3 | HAS_DICTIONARY, 5)], 210), "corrupt");
        assert_eq!(kind(&[with(2 | HAS_DICTIONARY, 5)], 210), "ok");
        assert_eq!(kind(&[with(2, 10 * 32 * 1024)], 210), "ok");
        assert_eq!(kind(&[with(2, 10 * 32 * 1024 + 1)], 210), "corrupt");
        assert_eq!(kind(&[Entry { length: 0, ..with(2, 1) }], 210), "corrupt");
    }

    #[test]
    fn counts_that_no_file_has_are_refused() {
        assert_eq!(index_range(2), Some(28..92));
        for count in [MAX_ENTRIES + 1, u64::MAX / 32, u64::MAX / 32 + 1, u64::MAX] {
            assert_eq!(index_range(count), None, "{count}");
        }
    }
}
