//! What a writer is given: one value, or a column of them.

use crate::codec::Codec;

/// What one field of one record is to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// Nothing, which is not an empty value.
    Missing,
    /// These bytes.
    Bytes {
        /// The value as readers get it.
        bytes: &'a [u8],
        /// The dimensions that vary, of a field with more than one such; else none.
        dims: &'a [u64],
    },
    /// A value that is encoded already.
    Stored {
        /// How.
        codec: Codec,
        /// Bytes of the value.
        length: u64,
        /// The encoded bytes.
        bytes: &'a [u8],
        /// As above.
        dims: &'a [u64],
    },
}

impl<'a> Value<'a> {
    /// A value without dimensions of its own.
    pub fn plain(bytes: &'a [u8]) -> Self {
        Self::Bytes { bytes, dims: &[] }
    }

    /// Its bytes as they were given; none of a missing value.
    pub fn bytes(self) -> &'a [u8] {
        match self {
            Self::Missing => &[],
            Self::Bytes { bytes, .. } | Self::Stored { bytes, .. } => bytes,
        }
    }

    /// Its dimensions that vary.
    pub fn dims(self) -> &'a [u64] {
        match self {
            Self::Missing => &[],
            Self::Bytes { dims, .. } | Self::Stored { dims, .. } => dims,
        }
    }

    /// Whether there is none.
    pub fn is_missing(self) -> bool {
        matches!(self, Self::Missing)
    }
}

/// The values of one field for several records.
#[derive(Clone, Copy, Debug)]
pub enum Column<'a> {
    /// No record has a value.
    Missing,
    /// Values of one size, one behind the other.
    Fixed(&'a [u8]),
    /// One value for each record.
    Rows(&'a [Value<'a>]),
}
