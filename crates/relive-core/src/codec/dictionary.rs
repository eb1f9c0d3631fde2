//! zstd dictionaries: bytes that many small records have in common, stored once.

use std::fmt;

use zstd_safe::DDict;

use crate::{Error, Result};

/// The default size of a trained dictionary: 110 KiB, as in the `zstd` tool.
pub const DICTIONARY_BYTES: usize = 112_640;

/// The fewest samples that a dictionary can be trained from.
pub const MIN_SAMPLES: usize = 8;

const MIN_BYTES: usize = 256;
const MAX_BYTES: usize = 16 << 20;

/// A dictionary that is prepared for decoding. Thread-safe.
pub struct Dictionary {
    bytes: Vec<u8>,
    id: u32,
    digested: DDict<'static>,
}

impl Dictionary {
    /// Prepares a trained dictionary.
    ///
    /// Other bytes are `Corrupt`. Content without a dictionary header is refused too: it has no
    /// id, so a frame could not name it.
    pub fn new(bytes: Vec<u8>) -> Result<Self> {
        if bytes.len() > MAX_BYTES {
            return Err(Error::TooLarge(format!(
                "a dictionary of {} bytes exceeds the limit of {MAX_BYTES} bytes",
                bytes.len()
            )));
        }
        let not_one = || {
            Error::Corrupt("invalid dictionary: the bytes are not a trained zstd dictionary".into())
        };
        let id = zstd_safe::get_dict_id_from_dict(&bytes).ok_or_else(not_one)?;
        let digested = DDict::try_create(&bytes).ok_or_else(not_one)?;
        Ok(Self { bytes, id: id.get(), digested })
    }

    /// Returns the stored bytes of the dictionary.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the id of this dictionary in frames; never 0.
    pub fn id(&self) -> u32 {
        self.id
    }

    pub(super) fn digested(&self) -> &DDict<'static> {
        &self.digested
    }
}

impl fmt::Debug for Dictionary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dictionary(id={}, bytes={})", self.id, self.bytes.len())
    }
}

/// Trains a zstd dictionary of at most `size` bytes from sample records.
///
/// Deterministic: the same samples and size return the same bytes. Samples of a hundred times
/// `size` in total are enough. Too few samples, or samples without common content, are `Invalid`.
pub fn train_dictionary<T: AsRef<[u8]>>(samples: &[T], size: usize) -> Result<Vec<u8>> {
    if !(MIN_BYTES..=MAX_BYTES).contains(&size) {
        return Err(Error::Invalid(format!(
            "`size` must be from {MIN_BYTES} to {MAX_BYTES} bytes, got {size}"
        )));
    }
    if samples.len() < MIN_SAMPLES {
        return Err(Error::Invalid(format!(
            "training a dictionary needs at least {MIN_SAMPLES} samples, got {}",
            samples.len()
        )));
    }
    if u32::try_from(samples.len()).is_err() {
        return Err(Error::TooLarge(format!(
            "training a dictionary supports at most 2^32 - 1 samples, got {}",
            samples.len()
        )));
    }
    let lengths: Vec<usize> = samples.iter().map(|sample| sample.as_ref().len()).collect();
    let mut joined = Vec::with_capacity(lengths.iter().sum());
    for sample in samples {
        joined.extend_from_slice(sample.as_ref());
    }
    let mut dictionary = Vec::with_capacity(size);
    zstd_safe::train_from_buffer(&mut dictionary, &joined, &lengths).map_err(|code| {
        Error::Invalid(format!(
            "cannot train a dictionary from {} samples with {} bytes in total ({}): \
             pass more or larger samples",
            samples.len(),
            joined.len(),
            zstd_safe::get_error_name(code)
        ))
    })?;
    Ok(dictionary)
}
