//! Compresses and decompresses single records: `raw`, `deflate`, `zstd` or `lz4`.
//!
//! A stored record is decoded with its codec, its decoded length and, for some zstd frames, a
//! dictionary. Input is untrusted: every length is checked before memory is allocated, and the
//! length in a frame must match the declared one.
//!
//! The encodings have no checksum that a store may rely on. The stores have checksums of the
//! stored bytes.

mod contexts;
mod decode;
mod dictionary;
mod encode;
mod parts;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::{Error, Result};

pub use decode::{Decoder, Stored};
pub use dictionary::{DICTIONARY_BYTES, Dictionary, MIN_SAMPLES, train_dictionary};
pub use encode::Encoder;

/// The default limit for the length of a record: 1 GiB.
pub const MAX_BYTES: u64 = 1 << 30;

/// An encoding of bytes. Files contain the ids, so an id never changes its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Codec {
    /// The bytes themselves.
    Raw = 0,
    /// A zlib stream (RFC 1950).
    Deflate = 1,
    /// One zstd frame that states its content size (RFC 8878).
    Zstd = 2,
    /// One LZ4 block, without a size before it.
    Lz4 = 3,
}

impl Codec {
    /// Every codec, at the position of its id.
    pub const ALL: [Self; 4] = [Self::Raw, Self::Deflate, Self::Zstd, Self::Lz4];

    /// Returns the codec with this id; an unknown id is `Unsupported`.
    pub fn from_id(id: u8) -> Result<Self> {
        let unknown = || Error::Unsupported(format!("unknown codec id {id}: upgrade relive"));
        Self::ALL.get(usize::from(id)).copied().ok_or_else(unknown)
    }

    /// Returns the number of this codec in files.
    pub const fn id(self) -> u8 {
        self as u8
    }

    /// Returns the name of this codec in arguments.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Deflate => "deflate",
            Self::Zstd => "zstd",
            Self::Lz4 => "lz4",
        }
    }

    /// Returns the valid levels; `None` for a codec without levels. A higher level compresses
    /// more and is slower; level 0 of zstd is its default level.
    pub const fn levels(self) -> Option<RangeInclusive<i32>> {
        match self {
            Self::Raw | Self::Lz4 => None,
            Self::Deflate => Some(0..=9),
            Self::Zstd => Some(-7..=22),
        }
    }

    /// Returns the default level.
    pub const fn default_level(self) -> Option<i32> {
        match self {
            Self::Raw | Self::Lz4 => None,
            Self::Deflate => Some(6),
            Self::Zstd => Some(3),
        }
    }

    /// Returns the most decoded bytes per stored byte. A longer declared length is refused
    /// before memory is allocated.
    pub(crate) const fn max_expansion(self) -> u64 {
        match self {
            Self::Raw => 1,
            // A match of 258 bytes takes at least two bits.
            Self::Deflate => 1032,
            // A run-length block of 128 KiB takes four bytes.
            Self::Zstd => 32 * 1024,
            // A byte that extends a match adds at most 255.
            Self::Lz4 => 255,
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Codec {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "raw" | "none" => Ok(Self::Raw),
            "deflate" | "flate" => Ok(Self::Deflate),
            "zstd" => Ok(Self::Zstd),
            "lz4" => Ok(Self::Lz4),
            _ => Err(Error::Invalid(format!(
                "unknown codec `{}`: choose raw (or none), deflate (or flate), zstd or lz4",
                name.escape_debug()
            ))),
        }
    }
}

/// Checks the length of a record.
fn check_length(length: u64, limit: u64) -> Result<()> {
    if length <= limit {
        return Ok(());
    }
    Err(Error::TooLarge(format!("a record of {length} bytes exceeds the limit of {limit} bytes")))
}

/// Returns the error for `stored` bytes that cannot be those of `length` decoded bytes.
pub(crate) fn impossible_length(codec: Codec, stored: u64, length: u64) -> Error {
    Error::Corrupt(format!("{stored} bytes of {codec} data cannot decode to {length} bytes"))
}
