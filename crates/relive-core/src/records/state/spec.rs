//! What a field holds, as the user said it.

use std::fmt;
use std::str::FromStr;

use crate::codec::{Codec, Encoder};
use crate::records::layout::{PAGE, RECORD_BYTES};
use crate::{Error, Result};

/// The longest name of a field.
const NAME_BYTES: usize = 200;

/// The most dimensions that may vary.
const MAX_RAGGED: u8 = 32;

/// What the values of a field are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Arrays of one shape.
    Fixed,
    /// Arrays whose leading dimensions vary.
    Ragged,
    /// Bytes.
    Bytes,
    /// UTF-8.
    Str,
    /// JSON.
    Json,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Fixed, Self::Ragged, Self::Bytes, Self::Str, Self::Json];

    /// The name in files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Ragged => "ragged",
            Self::Bytes => "bytes",
            Self::Str => "str",
            Self::Json => "json",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Kind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| {
            Error::Unsupported(format!("unknown field kind `{name}`: upgrade relive"))
        })
    }
}

/// What a field holds.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldSpec {
    /// Number that is never used again; a new field gets its own from the store.
    pub id: u16,
    /// What users call it.
    pub name: String,
    /// What one item is, in words that the caller understands.
    pub dtype: serde_json::Value,
    /// The dimensions that do not vary.
    pub shape: Vec<u64>,
    /// What the values are.
    pub kind: Kind,
    /// How many leading dimensions vary.
    pub ragged: u8,
    /// How values are stored.
    pub codec: Codec,
    /// How hard the codec tries.
    pub level: Option<i32>,
    /// Bytes of a value (fixed), of an item along the varying dimensions (ragged), or 1.
    pub bytes: u64,
}

impl FieldSpec {
    /// Whether the values lie in chunks of their own, at a constant distance.
    pub fn is_dense(&self) -> bool {
        self.kind == Kind::Fixed && self.codec == Codec::Raw && self.bytes > 0
    }

    /// Dimensions that are stored with each value.
    pub fn dims(&self) -> usize {
        if self.ragged > 1 { usize::from(self.ragged) } else { 0 }
    }

    /// Refuses what cannot be a field.
    pub fn check(&self) -> Result<()> {
        let invalid = |what: String| Err(Error::Invalid(format!("field {:?}: {what}", self.name)));
        if self.name.is_empty() || self.name.contains('\0') || self.name.len() > NAME_BYTES {
            return Err(Error::Invalid(format!(
                "a field name must be 1 to {NAME_BYTES} bytes of UTF-8 without NUL, got {:?}",
                self.name
            )));
        }
        if (self.kind == Kind::Ragged) != (self.ragged > 0) || self.ragged > MAX_RAGGED {
            return invalid(format!(
                "got {} varying dimensions, which a field of kind {} cannot have",
                self.ragged, self.kind
            ));
        }
        let limit = u64::from(u32::MAX) - PAGE - RECORD_BYTES as u64;
        if self.bytes > limit {
            return Err(Error::TooLarge(format!(
                "field {:?}: a value of {} bytes exceeds the limit of {limit} bytes",
                self.name, self.bytes
            )));
        }
        if matches!(self.kind, Kind::Bytes | Kind::Str | Kind::Json) && self.bytes != 1 {
            return invalid(format!(
                "the item size of kind {} must be 1 byte, got {}",
                self.kind, self.bytes
            ));
        }
        Encoder::new(self.codec, self.level).map(|_| ())
    }

    /// Rows of a dense chunk: so many that they take whole pages and are no more than asked
    /// for, rounded up to that.
    pub fn rows_per_chunk(&self, records: Option<u64>, bytes: u64) -> u64 {
        let mut unit = PAGE;
        let mut rest = self.bytes;
        // Pages have a power of two bytes, so each factor two of a row saves one.
        while rest > 0 && rest.is_multiple_of(2) && unit > 1 {
            rest /= 2;
            unit /= 2;
        }
        let wanted = records.unwrap_or_else(|| (bytes / self.bytes.max(1)).max(1));
        wanted.max(1).div_ceil(unit).saturating_mul(unit)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::records::layout::is_dense;

    pub(crate) fn spec(name: &str, kind: Kind, codec: Codec, bytes: u64) -> FieldSpec {
        FieldSpec {
            id: 0,
            name: name.into(),
            dtype: "|u1".into(),
            shape: vec![],
            kind,
            ragged: u8::from(kind == Kind::Ragged),
            codec,
            level: None,
            bytes,
        }
    }

    #[test]
    fn dense_chunks_take_whole_pages() {
        for bytes in [1, 2, 3, 7, 8, 12, 100, 128, 3072, 4096, 28_224, 150_528, 1 << 21] {
            let spec = spec("a", Kind::Fixed, Codec::Raw, bytes);
            for records in [None, Some(1), Some(1000), Some(8192)] {
                let rows = spec.rows_per_chunk(records, 1 << 20);
                assert!(is_dense(bytes, rows), "{bytes} {records:?} {rows}");
                assert!(records.is_none_or(|records| rows >= records && rows < records + PAGE));
            }
        }
    }

    #[test]
    fn what_cannot_be_a_field_is_refused() {
        let good = spec("a", Kind::Fixed, Codec::Raw, 8);
        good.check().unwrap();
        for name in [String::new(), "a\0b".into(), "x".repeat(201)] {
            assert!(FieldSpec { name, ..good.clone() }.check().is_err());
        }
        assert!(FieldSpec { ragged: 1, ..good.clone() }.check().is_err());
        assert!(FieldSpec { level: Some(3), ..good.clone() }.check().is_err());
        assert!(spec("a", Kind::Str, Codec::Raw, 4).check().is_err());
        let long = spec("a", Kind::Fixed, Codec::Raw, 1 << 32).check().unwrap_err();
        assert_eq!(long.kind(), "too-large");
        assert!(!spec("a", Kind::Fixed, Codec::Raw, 0).is_dense());
    }
}
