//! `TEXT`: strings by position, and `NAME`: entries by name and names by entry.

use super::super::layout::{Tag, u64_at};
use super::{corrupt, split_items, u32_items, u64_items};
use crate::{Error, Result};

/// Strings by position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Strings {
    /// The start of each string in `text`, and the end; empty without strings.
    offsets: Vec<u64>,
    text: String,
}

impl Strings {
    /// Parses a `TEXT` section.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let bad = |text: &str| corrupt(Tag::TEXT, text);
        if bytes.len() < 8 {
            return Err(bad("the section is truncated"));
        }
        let count = u64_at(bytes, 0);
        let (offsets, text) = (count.checked_add(1))
            .and_then(|offsets| split_items(&bytes[8..], offsets, 8))
            .ok_or_else(|| bad("the length of the section does not match its number of strings"))?;
        Self::from_parts(Tag::TEXT, offsets, text)
    }

    /// Encodes a `TEXT` section with these strings.
    pub fn build(strings: &[impl AsRef<str>]) -> Vec<u8> {
        let mut bytes = (strings.len() as u64).to_le_bytes().to_vec();
        let mut end = 0_u64;
        bytes.extend_from_slice(&end.to_le_bytes());
        for string in strings {
            end += string.as_ref().len() as u64;
            bytes.extend_from_slice(&end.to_le_bytes());
        }
        for string in strings {
            bytes.extend_from_slice(string.as_ref().as_bytes());
        }
        bytes
    }

    fn from_parts(tag: Tag, offsets: &[u8], text: &[u8]) -> Result<Self> {
        let text = str::from_utf8(text).map_err(|_| corrupt(tag, "the text is not UTF-8"))?;
        let (mut values, mut last) = (Vec::with_capacity(offsets.len() / 8), 0);
        for offset in u64_items(offsets) {
            let fits = usize::try_from(offset).is_ok_and(|offset| text.is_char_boundary(offset));
            if offset < last || !fits {
                return Err(corrupt(
                    tag,
                    &format!("offset {offset} is not at the start of a character of the text"),
                ));
            }
            last = offset;
            values.push(offset);
        }
        if values.first() != Some(&0) || last != text.len() as u64 {
            return Err(corrupt(tag, "the offsets do not cover the text"));
        }
        Ok(Self { offsets: values, text: text.to_owned() })
    }

    /// Returns the string at `position`; `None` after the end.
    pub fn get(&self, position: u64) -> Option<&str> {
        let position = usize::try_from(position).ok()?;
        let end = *self.offsets.get(position.checked_add(1)?)?;
        // `from_parts` checked the offsets.
        self.text.get(self.offsets[position] as usize..end as usize)
    }

    /// Returns the number of strings.
    pub fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// Whether there are no strings.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The names of the entries of a pack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    strings: Strings,
    /// Entries with a name, sorted by the bytes of the name.
    order: Vec<u32>,
}

impl Names {
    /// Parses the `NAME` section of a pack with `count` entries.
    pub fn parse(bytes: &[u8], count: u64) -> Result<Self> {
        let bad = |text: &str| corrupt(Tag::NAME, text);
        if bytes.len() < 16 || u64_at(bytes, 0) != count {
            return Err(bad(&format!("the section does not have {count} entries")));
        }
        let named = u64_at(bytes, 8);
        let parts = (count.checked_add(1))
            .and_then(|offsets| split_items(&bytes[16..], offsets, 8))
            .and_then(|(offsets, rest)| {
                let (order, text) = split_items(rest, named, 4)?;
                Some((offsets, order, text))
            });
        let Some((offsets, order, text)) = parts.filter(|_| named <= count) else {
            return Err(bad("the length of the section does not match its number of names"));
        };
        let strings = Strings::from_parts(Tag::NAME, offsets, text)?;
        let given = strings.offsets.windows(2).filter(|pair| pair[0] < pair[1]).count();
        let names = Self { strings, order: u32_items(order).collect() };
        // Ascending names are distinct, so if the counts are equal none is missing.
        let mut before = "";
        for &entry in &names.order {
            let name = names.get(u64::from(entry)).unwrap_or_default();
            if name <= before {
                return Err(bad("the names are not sorted"));
            }
            before = name;
        }
        if given != names.order.len() {
            return Err(bad("the section does not list every name"));
        }
        Ok(names)
    }

    /// Encodes a `NAME` section with one item for each entry.
    ///
    /// Empty and duplicate names are `Invalid`.
    pub fn build(names: &[Option<&str>]) -> Result<Vec<u8>> {
        let mut order: Vec<(&str, u32)> = Vec::new();
        for (entry, name) in names.iter().enumerate() {
            if let Some(name) = name {
                let entry = u32::try_from(entry).map_err(|_| {
                    Error::TooLarge("a pack can have at most 2^32 - 1 entries".into())
                })?;
                order.push((name, entry));
            }
        }
        order.sort_unstable();
        if order.first().is_some_and(|(name, _)| name.is_empty()) {
            return Err(Error::Invalid("the name of an entry must not be empty".into()));
        }
        if let Some(pair) = order.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(Error::Invalid(format!(
                "entries {} and {} have the same name `{}`",
                pair[0].1,
                pair[1].1,
                pair[0].0.escape_debug()
            )));
        }
        let text: usize = order.iter().map(|(name, _)| name.len()).sum();
        let mut bytes = Vec::with_capacity(24 + names.len() * 8 + order.len() * 4 + text);
        bytes.extend_from_slice(&(names.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&(order.len() as u64).to_le_bytes());
        let mut end = 0_u64;
        bytes.extend_from_slice(&end.to_le_bytes());
        for name in names {
            end += name.map_or(0, str::len) as u64;
            bytes.extend_from_slice(&end.to_le_bytes());
        }
        for (_, entry) in &order {
            bytes.extend_from_slice(&entry.to_le_bytes());
        }
        for name in names.iter().flatten() {
            bytes.extend_from_slice(name.as_bytes());
        }
        Ok(bytes)
    }

    /// Returns the name of an entry, if it has one.
    pub fn get(&self, entry: u64) -> Option<&str> {
        self.strings.get(entry).filter(|name| !name.is_empty())
    }

    /// Returns the entry with this name.
    pub fn find(&self, name: &str) -> Option<u64> {
        let of = |entry: &u32| self.get(u64::from(*entry)).unwrap_or_default();
        let position = self.order.binary_search_by(|entry| of(entry).cmp(name)).ok()?;
        self.order.get(position).map(|&entry| u64::from(entry))
    }

    /// Returns the number of entries with a name.
    pub fn named(&self) -> usize {
        self.order.len()
    }
}
