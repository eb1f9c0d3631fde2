//! The spec of a field: the kind, type and codec of its values.

use std::fmt;
use std::str::FromStr;

use crate::codec::{Codec, Encoder};
use crate::records::layout::{PAGE, RECORD_BYTES};
use crate::{Error, Result};

/// The longest name of a field, in bytes.
const NAME_BYTES: usize = 200;

/// The most dimensions that may vary.
const MAX_RAGGED: u8 = 32;

/// The kind of the values of a field.
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

    /// Returns the name that files use.
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

/// The spec of a field.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldSpec {
    /// A number that is never reused; the store assigns it to a new field.
    pub id: u16,
    /// The name.
    pub name: String,
    /// The type of an item, in the caller's terms.
    pub dtype: serde_json::Value,
    /// The dimensions that do not vary.
    pub shape: Vec<u64>,
    /// The kind of the values.
    pub kind: Kind,
    /// The number of leading dimensions that vary.
    pub ragged: u8,
    /// The codec of stored values.
    pub codec: Codec,
    /// The level of the codec.
    pub level: Option<i32>,
    /// Bytes of a value (fixed), of an item along the varying dimensions (ragged), or 1.
    pub bytes: u64,
}

impl FieldSpec {
    /// Returns whether the values are stored as rows of equal size, in chunks of this field only.
    pub fn is_dense(&self) -> bool {
        self.kind == Kind::Fixed && self.codec == Codec::Raw && self.bytes > 0
    }

    /// Returns the number of dimensions that are stored with each value.
    pub fn dims(&self) -> usize {
        if self.ragged > 1 { usize::from(self.ragged) } else { 0 }
    }

    /// Checks that the spec is valid.
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
                "a field of kind {} cannot have {} varying dimensions",
                self.kind, self.ragged
            ));
        }
        let limit = u64::from(u32::MAX) - PAGE - RECORD_BYTES as u64;
        if self.bytes > limit {
            return Err(Error::over_limit(self.bytes, limit, "a value", "bytes")
                .about(format!("field {:?}", self.name)));
        }
        if matches!(self.kind, Kind::Bytes | Kind::Str | Kind::Json) && self.bytes != 1 {
            return invalid(format!(
                "the items of a {} field must be 1 byte each, got {} bytes",
                self.kind, self.bytes
            ));
        }
        Encoder::new(self.codec, self.level).map(|_| ())
    }

    /// Returns the rows of a dense chunk: those wanted, rounded up so that they fill whole pages.
    pub fn rows_per_chunk(&self, records: Option<u64>, bytes: u64) -> u64 {
        let mut unit = PAGE;
        let mut rest = self.bytes;
        // The size of a page is a power of two, so each factor two of the row size halves the unit.
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
