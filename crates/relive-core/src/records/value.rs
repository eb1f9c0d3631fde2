//! Values that are passed to a writer.

use crate::codec::Codec;

/// A value of one field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// No value, which is not the same as an empty value.
    Missing,
    /// A value.
    Bytes {
        /// The bytes.
        bytes: &'a [u8],
        /// The varying dimensions, if the field has more than one.
        dims: &'a [u64],
    },
    /// An encoded value.
    Stored {
        /// The codec.
        codec: Codec,
        /// The length of the decoded value.
        length: u64,
        /// The encoded bytes.
        bytes: &'a [u8],
        /// The varying dimensions, as above.
        dims: &'a [u64],
    },
}

impl<'a> Value<'a> {
    /// Makes a value without varying dimensions.
    pub fn plain(bytes: &'a [u8]) -> Self {
        Self::Bytes { bytes, dims: &[] }
    }

    /// Returns the bytes; none for a missing value.
    pub fn bytes(self) -> &'a [u8] {
        match self {
            Self::Missing => &[],
            Self::Bytes { bytes, .. } | Self::Stored { bytes, .. } => bytes,
        }
    }

    /// Returns the varying dimensions.
    pub fn dims(self) -> &'a [u64] {
        match self {
            Self::Missing => &[],
            Self::Bytes { dims, .. } | Self::Stored { dims, .. } => dims,
        }
    }

    /// Returns whether the value is missing.
    pub fn is_missing(self) -> bool {
        matches!(self, Self::Missing)
    }
}

/// The values of one field for several records.
#[derive(Clone, Copy, Debug)]
pub enum Column<'a> {
    /// No record has a value.
    Missing,
    /// Consecutive values of one size.
    Fixed(&'a [u8]),
    /// One value for each record.
    Rows(&'a [Value<'a>]),
}
