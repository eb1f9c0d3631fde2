//! The scalars of a frame: names with numbers.

use crate::{Error, Result};

/// A value of a scalar.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scalar {
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Float(f64),
}

const BOOL: u8 = 0;
const INT: u8 = 1;
const FLOAT: u8 = 2;

/// Appends the bytes of scalars, which must not exceed `limit`. Later values of a name replace
/// earlier ones in the reader.
pub(super) fn encode<'a>(
    scalars: impl Iterator<Item = (&'a str, Scalar)>,
    bytes: &mut Vec<u8>,
    limit: usize,
) -> Result<()> {
    for (name, value) in scalars {
        let length = u8::try_from(name.len());
        let length = length.map_err(|_| Error::over_limit(name.len(), 255, "a name", "bytes"))?;
        bytes.push(length);
        bytes.extend_from_slice(name.as_bytes());
        let (tag, word) = match value {
            Scalar::Bool(value) => (BOOL, u64::from(value).to_le_bytes()),
            Scalar::Int(value) => (INT, value.to_le_bytes()),
            Scalar::Float(value) => (FLOAT, value.to_le_bytes()),
        };
        bytes.push(tag);
        bytes.extend_from_slice(&word);
    }
    if bytes.len() > limit {
        return Err(Error::over_limit(bytes.len(), limit, "the scalars of a frame", "bytes"));
    }
    Ok(())
}

/// Parses the bytes of scalars.
pub(super) fn decode(mut bytes: &[u8]) -> Result<Vec<(String, Scalar)>> {
    let mut scalars = Vec::new();
    while let Some((&length, rest)) = bytes.split_first() {
        let parts = rest.split_at_checked(length.into()).and_then(|(name, rest)| {
            let (&tag, rest) = rest.split_first()?;
            let (word, rest) = rest.split_first_chunk::<8>()?;
            Some((std::str::from_utf8(name).ok()?, tag, *word, rest))
        });
        let value = parts.and_then(|(name, tag, word, rest)| {
            let value = match tag {
                BOOL => Scalar::Bool(word != [0; 8]),
                INT => Scalar::Int(i64::from_le_bytes(word)),
                FLOAT => Scalar::Float(f64::from_le_bytes(word)),
                _ => return None,
            };
            bytes = rest;
            Some((name.to_owned(), value))
        });
        let damaged = || Error::Corrupt("the scalars of a live frame are damaged".to_owned());
        scalars.push(value.ok_or_else(damaged)?);
    }
    Ok(scalars)
}
