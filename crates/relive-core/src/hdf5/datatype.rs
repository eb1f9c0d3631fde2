//! Types of elements: those of NumPy arrays of numbers.

use std::str::FromStr;

use crate::{Error, Result};

/// The type of an element, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Datatype {
    /// A boolean: an enumeration of `FALSE` and `TRUE`, as h5py stores it.
    Bool,
    /// A signed integer of this many bytes.
    Int(u8),
    /// An unsigned integer of this many bytes.
    Uint(u8),
    /// A floating-point number of this many bytes.
    Float(u8),
    /// A complex number of this many bytes: a compound of `r` and `i`, as h5py stores it.
    Complex(u8),
}

impl FromStr for Datatype {
    type Err = Error;

    /// Parses a dtype of NumPy such as `<f4` or `|u1`.
    fn from_str(text: &str) -> Result<Self> {
        let made = match text.trim_start_matches(['<', '|', '=']) {
            "b1" => Self::Bool,
            "i1" => Self::Int(1),
            "i2" => Self::Int(2),
            "i4" => Self::Int(4),
            "i8" => Self::Int(8),
            "u1" => Self::Uint(1),
            "u2" => Self::Uint(2),
            "u4" => Self::Uint(4),
            "u8" => Self::Uint(8),
            "f2" => Self::Float(2),
            "f4" => Self::Float(4),
            "f8" => Self::Float(8),
            "c8" => Self::Complex(8),
            "c16" => Self::Complex(16),
            _ => {
                return Err(Error::Invalid(format!(
                    "the dtype {text:?} cannot be stored: use booleans, or little-endian integers, \
                     floats or complex numbers"
                )));
            }
        };
        Ok(made)
    }
}

impl Datatype {
    /// Returns the bytes of an element.
    pub fn size(self) -> u32 {
        match self {
            Self::Bool => 1,
            Self::Int(size) | Self::Uint(size) | Self::Float(size) | Self::Complex(size) => {
                size.into()
            }
        }
    }

    /// Returns the content of a datatype message.
    pub(super) fn message(self) -> Vec<u8> {
        let size = self.size();
        let bits = (size * 8) as u16;
        // Class and version, three bytes of flags, size.
        let head = |class: u8, flags: [u8; 3]| {
            let mut bytes = vec![class, flags[0], flags[1], flags[2]];
            bytes.extend_from_slice(&size.to_le_bytes());
            bytes
        };
        match self {
            Self::Int(_) | Self::Uint(_) => {
                let is_signed = matches!(self, Self::Int(_));
                let mut bytes = head(0x10, [u8::from(is_signed) << 3, 0, 0]);
                bytes.extend_from_slice(&[0, 0]);
                bytes.extend_from_slice(&bits.to_le_bytes());
                bytes
            }
            Self::Float(size) => {
                let (exponent, mantissa): (u8, u8) = match size {
                    2 => (5, 10),
                    4 => (8, 23),
                    _ => (11, 52),
                };
                let bias = (1_u32 << (exponent - 1)) - 1;
                let mut bytes = head(0x11, [0x20, (bits - 1) as u8, 0]);
                bytes.extend_from_slice(&[0, 0]);
                bytes.extend_from_slice(&bits.to_le_bytes());
                bytes.extend_from_slice(&[mantissa, exponent, 0, mantissa]);
                bytes.extend_from_slice(&bias.to_le_bytes());
                bytes
            }
            Self::Bool => {
                let mut bytes = head(0x38, [2, 0, 0]);
                bytes.extend_from_slice(&Self::Int(1).message());
                bytes.extend_from_slice(b"FALSE\0TRUE\0");
                bytes.extend_from_slice(&[0, 1]);
                bytes
            }
            Self::Complex(size) => {
                let half = size / 2;
                let mut bytes = head(0x36, [2, 0, 0]);
                for (name, offset) in [(b"r\0", 0), (b"i\0", half)] {
                    bytes.extend_from_slice(name);
                    bytes.push(offset);
                    bytes.extend_from_slice(&Self::Float(half).message());
                }
                bytes
            }
        }
    }
}
