//! How one record's bytes are stored: `raw`, `deflate`, `zstd` or `lz4`.
//!
//! A stored record says its codec and its logical length; nothing else is needed to
//! read it, save a zstd dictionary where the frame names one. Every length is
//! checked before memory is asked for, and what a frame says of itself must agree
//! with what was declared, so that hostile bytes cost an error and nothing more.
//!
//! None of the encodings carries a checksum that a store may rely on: checksums
//! belong to the stores, which cover the stored bytes.

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

/// The longest record that is encoded or decoded unless another limit is set: 1 GiB.
pub const MAX_BYTES: u64 = 1 << 30;

/// An encoding of bytes. Ids and meanings are for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Codec {
    /// The bytes themselves.
    Raw = 0,
    /// A zlib stream (RFC 1950).
    Deflate = 1,
    /// One zstd frame that states its content size (RFC 8878).
    Zstd = 2,
    /// One LZ4 block, without a size in front.
    Lz4 = 3,
}

impl Codec {
    /// Every codec, at the position of its id.
    pub const ALL: [Self; 4] = [Self::Raw, Self::Deflate, Self::Zstd, Self::Lz4];

    /// The codec with this id; an id that is not known here is `Unsupported`.
    pub fn from_id(id: u8) -> Result<Self> {
        Self::ALL.get(usize::from(id)).copied().ok_or_else(|| {
            Error::Unsupported(format!(
                "codec id {id} is unknown, this relive knows 0 to 3: upgrade relive"
            ))
        })
    }

    /// The number that stands for this codec in files.
    pub const fn id(self) -> u8 {
        self as u8
    }

    /// The name users write.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Deflate => "deflate",
            Self::Zstd => "zstd",
            Self::Lz4 => "lz4",
        }
    }

    /// The levels that can be asked for; `None` where there is nothing to choose.
    /// More is smaller and slower; zstd reads 0 as its default.
    pub const fn levels(self) -> Option<RangeInclusive<i32>> {
        match self {
            Self::Raw | Self::Lz4 => None,
            Self::Deflate => Some(0..=9),
            Self::Zstd => Some(-7..=22),
        }
    }

    /// The level used when none is asked for.
    pub const fn default_level(self) -> Option<i32> {
        match self {
            Self::Raw | Self::Lz4 => None,
            Self::Deflate => Some(6),
            Self::Zstd => Some(3),
        }
    }

    /// The most logical bytes that one stored byte can stand for, so that a length
    /// no honest encoder could have meant is refused before memory is asked for.
    const fn max_expansion(self) -> u64 {
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
