//! `meta.json`, which names the files of a store: docs/format/records.md §3.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::crc::crc32c;
use crate::{Error, Result, durable};

/// The file that names the files of a store.
pub const META: &str = "meta.json";

pub const FORMAT: &str = "relive-records";
pub const VERSION: u32 = 1;
const MAX_BYTES: u64 = 256 << 20;

/// The content of `meta.json` without its checksum.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Meta {
    pub format: String,
    pub version: u32,
    pub uid: String,
    pub generation: u64,
    pub sequence: u64,
    pub length: u64,
    pub journal: String,
    #[serde(default, skip_serializing_if = "is_false")]
    pub begun: bool,
    pub chunks: Chunks,
    pub heap: Vec<u32>,
    pub next_field: u16,
    pub fields: Vec<Field>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<(u64, u64, bool)>,
}

/// The chunks of a store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chunks {
    pub num: u64,
    pub size: Option<u64>,
    pub bytes: u64,
    pub next: u32,
    pub full: Vec<(u32, u64, u64, u32)>,
    pub unfull: Vec<(u32, u64, u64, u32)>,
}

/// A field.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Field {
    pub id: u16,
    pub name: String,
    pub dtype: serde_json::Value,
    pub shape: Vec<u64>,
    pub kind: String,
    pub ragged: u8,
    pub compress: String,
    pub level: Option<i32>,
    pub bytes: u64,
    pub rows: u64,
    pub chunks: Vec<u32>,
    pub physical: u64,
    pub extents: Vec<(u64, u64, u64)>,
    pub table: Option<(String, u64)>,
    pub dictionaries: Vec<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_false(value: &bool) -> bool {
    !value
}

impl Meta {
    /// Reads the file `name` of the store in `folder`.
    pub fn read(folder: &Path, name: &str) -> Result<Self> {
        let path = folder.join(name);
        let about = |error: std::io::Error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => Error::Io(std::io::Error::new(
                ErrorKind::NotFound,
                format!("`{}` is not a record store: it has no {name}", folder.display()),
            )),
            _ => durable::about(&path, &error),
        };
        path.metadata().map_err(about)?;
        let mut file = durable::open(&path)?;
        let bytes = file.metadata().map_err(about)?.len();
        if bytes > MAX_BYTES {
            return Err(Error::Corrupt(format!(
                "`{}` has {bytes} bytes, but the limit is {MAX_BYTES} bytes",
                path.display()
            )));
        }
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(about)?;
        Self::parse(&text).map_err(|error| error.in_file(&path))
    }

    /// Parses the text and checks its checksum.
    pub fn parse(text: &[u8]) -> Result<Self> {
        let damaged = |what: &str| Error::Corrupt(format!("the file is damaged: {what}"));
        let text = std::str::from_utf8(text).map_err(|_| damaged("the text is not UTF-8"))?;
        let (before, crc) = text
            .rsplit_once(",\n  \"crc\": \"")
            .and_then(|(before, crc)| Some((before, crc.strip_suffix("\"\n}\n")?)))
            .ok_or_else(|| damaged("the checksum at the end is missing"))?;
        if crc != format!("{:08x}", crc32c(before.as_bytes())) {
            return Err(damaged("the checksum does not match"));
        }
        let whole = format!("{before}\n}}");
        // The version is checked first, since another version may have other keys.
        let any: serde_json::Value =
            serde_json::from_str(&whole).map_err(|error| damaged(&error.to_string()))?;
        if any.get("format").and_then(|format| format.as_str()) != Some(FORMAT) {
            return Err(damaged("`format` must be \"relive-records\""));
        }
        let version = any.get("version").and_then(serde_json::Value::as_u64).unwrap_or_default();
        if version != u64::from(VERSION) {
            return Err(Error::Unsupported(format!(
                "the format version is {version}, but this version of relive reads only version \
                 {VERSION}: upgrade relive"
            )));
        }
        serde_json::from_value(any).map_err(|error| damaged(&error.to_string()))
    }

    /// Returns the text of the file.
    pub fn to_text(&self) -> Result<String> {
        let text = serde_json::to_string_pretty(self).map_err(|error| {
            Error::Invalid(format!(
                "the metadata of the record store is not JSON-serializable: {error}"
            ))
        })?;
        let before = text.strip_suffix("\n}").unwrap_or(&text);
        Ok(format!("{before},\n  \"crc\": \"{:08x}\"\n}}\n", crc32c(before.as_bytes())))
    }

    /// Replaces the file `name` atomically. When the call returns, the new file is synced.
    pub fn replace(&self, folder: &Path, name: &str) -> Result<()> {
        let temporary = folder.join(format!("{name}.tmp"));
        let path = folder.join(name);
        let text = self.to_text()?;
        let write = || {
            let mut file = File::create(&temporary)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()
        };
        let written = write().map_err(|error| durable::about(&temporary, &error));
        if let Err(error) = written.and_then(|()| durable::publish(&temporary, &path, true)) {
            let _ = fs::remove_file(&temporary);
            return Err(error);
        }
        durable::sync_folder_of(&path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durable::Folder;

    fn some() -> Meta {
        let (format, version) = (FORMAT.into(), VERSION);
        Meta {
            format,
            version,
            uid: "00".repeat(16),
            generation: 4,
            sequence: 10,
            length: 3,
            journal: "4.journal".into(),
            begun: true,
            chunks: Chunks {
                num: 1,
                size: None,
                bytes: 1 << 32,
                next: 1,
                full: vec![],
                unfull: vec![(0, 4200, 3, 5)],
            },
            heap: vec![],
            next_field: 1,
            fields: vec![Field {
                id: 0,
                name: "a \"quoted\" name,\n  \"crc\": \"".into(),
                dtype: "<f4".into(),
                shape: vec![2],
                kind: "fixed".into(),
                ragged: 0,
                compress: "raw".into(),
                level: None,
                bytes: 8,
                rows: 512,
                chunks: vec![0],
                physical: 3,
                extents: vec![(0, 0, 3)],
                table: None,
                dictionaries: vec![],
            }],
            of: None,
        }
    }

    #[test]
    fn it_comes_back() {
        let folder = Folder::new();
        let root = folder.path("");
        some().replace(&root, META).unwrap();
        let other = Meta { of: Some((1, 2, true)), length: 4, ..some() };
        other.replace(&root, META).unwrap();
        assert_eq!(Meta::read(&root, META).unwrap(), other);
        assert_eq!(folder.names(), [META]);
        let missing = Meta::read(&root.join("none"), META).unwrap_err();
        assert_eq!(missing.kind(), "not-found");
    }

    #[test]
    fn every_flip_and_cut_is_seen() {
        let text = some().to_text().unwrap().into_bytes();
        for bit in 0..text.len() * 8 {
            let mut flipped = text.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Meta::parse(&flipped).is_err(), "bit {bit}");
        }
        for cut in 0..text.len() {
            assert_eq!(Meta::parse(&text[..cut]).unwrap_err().kind(), "corrupt");
        }
    }

    #[test]
    fn another_version_says_so() {
        let text = Meta { version: 2, ..some() }.to_text().unwrap();
        assert_eq!(Meta::parse(text.as_bytes()).unwrap_err().kind(), "unsupported");
    }
}
