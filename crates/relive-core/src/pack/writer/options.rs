//! How a pack is written.

use std::sync::Arc;

use super::super::layout::{ENTRY_BYTES, HEADER_BYTES, MAX_ENTRIES, align_up};
use crate::codec::{Codec, Dictionary, Encoder, MAX_BYTES};
use crate::{Error, Result, pool};

/// Without a capacity, the index gets what fits into so many bytes.
const DEFAULT_HEAD_BYTES: u64 = 64 * 1024;

/// How a pack is written.
#[derive(Clone, Debug)]
pub struct WriterOptions {
    /// Each entry begins at a multiple of this.
    pub align: u32,
    /// How payloads are stored where `append` does not say.
    pub codec: Codec,
    /// The level of `codec`.
    pub level: Option<i32>,
    /// What zstd payloads are compressed with.
    pub dictionary: Option<Arc<Dictionary>>,
    /// Whether the pack has CRCs of its entries.
    pub checksum: bool,
    /// How many entries the index has room for before the payloads have to be moved.
    pub capacity: Option<u64>,
    /// Whether an existing file of that name is replaced.
    pub overwrite: bool,
    /// The longest payload that is compressed.
    pub max_payload_bytes: u64,
    /// Whether the pack has a step table.
    pub step_table: bool,
    /// The most threads that one call uses.
    pub threads: usize,
}

impl Default for WriterOptions {
    fn default() -> Self {
        Self {
            align: 4096,
            codec: Codec::Raw,
            level: None,
            dictionary: None,
            checksum: true,
            capacity: None,
            overwrite: false,
            max_payload_bytes: MAX_BYTES,
            step_table: false,
            threads: pool::default_threads(),
        }
    }
}

/// The encoder of payloads that are stored with `codec`.
pub(super) fn encoder(options: &WriterOptions, codec: Codec) -> Result<Encoder> {
    let level = if codec == options.codec { options.level } else { None };
    let encoder = Encoder::new(codec, level)?.with_max_bytes(options.max_payload_bytes);
    match &options.dictionary {
        Some(dictionary) if codec == Codec::Zstd => encoder.with_dictionary(Arc::clone(dictionary)),
        _ => Ok(encoder),
    }
}

/// Where the first entry goes, behind an index with room for `capacity` entries.
pub(super) fn first_offset(capacity: Option<u64>, align: u32) -> Result<u64> {
    let default = (DEFAULT_HEAD_BYTES - HEADER_BYTES as u64) / ENTRY_BYTES as u64;
    let capacity = capacity.unwrap_or(default);
    if capacity > MAX_ENTRIES {
        return Err(Error::Invalid(format!(
            "a pack has at most {MAX_ENTRIES} entries, room for {capacity} was asked for"
        )));
    }
    let index_end = HEADER_BYTES as u64 + ENTRY_BYTES as u64 * capacity;
    align_up(index_end, u64::from(align)).ok_or_else(|| Error::Invalid("too large".into()))
}
