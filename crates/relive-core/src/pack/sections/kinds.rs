//! `KIND`: the names of user-defined kinds.

use std::collections::{BTreeMap, HashMap};

use super::super::layout::{FIRST_USER_KIND, KIND_BYTES, KIND_V1, KIND_V2, Tag, u16_at};
use super::corrupt;
use crate::{Error, Result};

/// Names with a fixed meaning.
const RESERVED: [&str; 4] = ["bytes", "v1", "v2", "auto"];
const MAX_NAME_BYTES: usize = 64;

/// Checks the name of a user-defined kind: 1 to 64 bytes, no control characters, not reserved.
pub fn check_kind_name(name: &str) -> Result<()> {
    let refuse = |why: &str| {
        Err(Error::Invalid(format!("invalid kind name `{}`: {why}", name.escape_debug())))
    };
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return refuse("a kind name must be 1 to 64 bytes long");
    }
    if name.chars().any(char::is_control) {
        return refuse("a kind name must not contain control characters");
    }
    if RESERVED.contains(&name) {
        return refuse("the name is reserved");
    }
    Ok(())
}

/// Returns the name of a built-in kind.
pub fn kind_name(id: u16) -> Option<&'static str> {
    match id {
        KIND_BYTES => Some("bytes"),
        KIND_V1 => Some("v1"),
        KIND_V2 => Some("v2"),
        _ => None,
    }
}

/// Returns the number of a built-in kind.
pub fn kind_id(name: &str) -> Option<u16> {
    (KIND_BYTES..=KIND_V2).find(|&id| kind_name(id) == Some(name))
}

/// The user-defined kinds of a pack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kinds {
    names: BTreeMap<u16, String>,
    ids: HashMap<String, u16>,
}

impl Kinds {
    /// Parses a `KIND` section.
    pub fn parse(mut bytes: &[u8]) -> Result<Self> {
        let bad = |text: &str| corrupt(Tag::KIND, text);
        let mut kinds = Self::default();
        while !bytes.is_empty() {
            let (head, rest) =
                bytes.split_at_checked(4).ok_or_else(|| bad("the section is truncated"))?;
            let id = u16_at(head, 0);
            let (name, rest) = (rest.split_at_checked(usize::from(u16_at(head, 2))))
                .ok_or_else(|| bad("the section is truncated"))?;
            let name = str::from_utf8(name).map_err(|_| bad("a name is not UTF-8"))?;
            check_kind_name(name).map_err(|error| bad(&error.to_string()))?;
            let ascends = kinds.names.last_key_value().is_none_or(|(last, _)| *last < id);
            if id < FIRST_USER_KIND || !ascends || kinds.ids.contains_key(name) {
                return Err(bad(&format!("kind {id} occurs twice or is out of order")));
            }
            kinds.insert(id, name);
            bytes = rest;
        }
        Ok(kinds)
    }

    /// Encodes a `KIND` section.
    pub fn build(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (id, name) in &self.names {
            bytes.extend_from_slice(&id.to_le_bytes());
            // A name has at most 64 bytes.
            bytes.extend_from_slice(&(name.len() as u16).to_le_bytes());
            bytes.extend_from_slice(name.as_bytes());
        }
        bytes
    }

    /// Returns the number of this name, adding it with the next number if it is new.
    pub fn add(&mut self, name: &str) -> Result<u16> {
        if let Some(id) = self.id(name) {
            return Ok(id);
        }
        check_kind_name(name)?;
        let id = match self.names.last_key_value() {
            None => FIRST_USER_KIND,
            Some((last, _)) => last.checked_add(1).ok_or_else(|| {
                Error::TooLarge(format!("cannot add kind `{name}`: the pack has too many kinds"))
            })?,
        };
        self.insert(id, name);
        Ok(id)
    }

    fn insert(&mut self, id: u16, name: &str) {
        self.names.insert(id, name.to_owned());
        self.ids.insert(name.to_owned(), id);
    }

    /// Returns the name of a user-defined kind.
    pub fn name(&self, id: u16) -> Option<&str> {
        self.names.get(&id).map(String::as_str)
    }

    /// Returns the number of a user-defined kind.
    pub fn id(&self, name: &str) -> Option<u16> {
        self.ids.get(name).copied()
    }

    /// Returns numbers and names, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &str)> {
        self.names.iter().map(|(id, name)| (*id, name.as_str()))
    }

    /// Whether there are no user-defined kinds.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
}
