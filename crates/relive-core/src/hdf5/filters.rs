//! What is done to the bytes of a chunk: the filters of HDF5 that other tools undo.

use super::messages::{Filter, Header};
use crate::codec::{Codec, Decoder, Encoder, Stored};
use crate::{Error, Result};

/// The largest chunk: HDF5 counts its bytes in 32 bits.
pub const MAX_CHUNK_BYTES: u64 = (1 << 32) - (1 << 20);

const DEFLATE: u16 = 1;
const SHUFFLE: u16 = 2;
const LZ4: u16 = 32004;
const ZSTD: u16 = 32015;

/// The largest block of the LZ4 filter.
const LZ4_BLOCK_BYTES: usize = 1 << 30;

/// The filters of a dataset: a shuffle, or not, and then a codec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filters {
    /// The codec.
    pub codec: Codec,
    /// The level of the codec; None for its default level, and for codecs without levels.
    pub level: Option<i32>,
    /// Whether the first bytes of all elements come first, then their second bytes, and so on.
    pub shuffle: bool,
}

impl Filters {
    /// Returns the bytes of a chunk of elements of `item_bytes` bytes.
    pub fn encode(&self, chunk: &[u8], item_bytes: usize) -> Result<Vec<u8>> {
        if chunk.len() as u64 > MAX_CHUNK_BYTES {
            return Err(Error::over_limit(chunk.len(), MAX_CHUNK_BYTES, "a chunk", "bytes"));
        }
        let shuffled;
        let mut bytes = chunk;
        if self.shuffle && item_bytes > 1 {
            shuffled = shuffle(chunk, item_bytes);
            bytes = &shuffled;
        }
        let encoder = Encoder::new(self.codec, self.level)?.with_max_bytes(MAX_CHUNK_BYTES);
        match self.codec {
            Codec::Lz4 => encode_lz4(&encoder, bytes),
            Codec::Raw | Codec::Deflate | Codec::Zstd => encoder.encode(bytes),
        }
    }

    /// Refuses bytes that cannot become `length` bytes, before memory is allocated for them.
    pub fn check(&self, bytes: &[u8], length: u64) -> Result<()> {
        if self.codec == Codec::Lz4 {
            return Lz4Blocks::parse(bytes, length).map(|_| ());
        }
        let stored = Stored { codec: self.codec, bytes, length };
        Decoder::new().with_max_bytes(MAX_CHUNK_BYTES).check(&stored).map(|_| ())
    }

    /// Fills `chunk` from the bytes of a chunk.
    pub fn decode(&self, bytes: &[u8], item_bytes: usize, chunk: &mut [u8]) -> Result<()> {
        let decoder = Decoder::new().with_max_bytes(MAX_CHUNK_BYTES);
        let is_shuffled = self.shuffle && item_bytes > 1;
        if is_shuffled {
            self.check(bytes, chunk.len() as u64)?;
        }
        let mut shuffled = vec![0; if is_shuffled { chunk.len() } else { 0 }];
        let out = if is_shuffled { &mut shuffled[..] } else { &mut *chunk };
        match self.codec {
            Codec::Lz4 => decode_lz4(&decoder, bytes, out)?,
            codec => decoder.decode_into(codec, bytes, out)?,
        }
        if is_shuffled {
            unshuffle(&shuffled, item_bytes, chunk);
        }
        Ok(())
    }

    /// Adds the filters to the header of a dataset.
    pub(super) fn describe(&self, header: &mut Header, item_bytes: u32) {
        let mut filters = Vec::new();
        if self.shuffle && item_bytes > 1 {
            filters.push(Filter { id: SHUFFLE, name: "shuffle", values: vec![item_bytes] });
        }
        let level = self.level.or(self.codec.default_level()).unwrap_or_default() as u32;
        match self.codec {
            Codec::Raw => {}
            Codec::Deflate => {
                filters.push(Filter { id: DEFLATE, name: "deflate", values: vec![level] });
            }
            Codec::Zstd => {
                filters.push(Filter { id: ZSTD, name: "Zstandard", values: vec![level] });
            }
            Codec::Lz4 => filters.push(Filter { id: LZ4, name: "LZ4", values: vec![0] }),
        }
        if !filters.is_empty() {
            header.filters(&filters);
        }
    }
}

/// The LZ4 filter stores big-endian sizes before its blocks; a block that does not become smaller
/// is stored as it is.
fn encode_lz4(encoder: &Encoder, bytes: &[u8]) -> Result<Vec<u8>> {
    let block_bytes = bytes.len().clamp(1, LZ4_BLOCK_BYTES);
    let mut encoded = (bytes.len() as u64).to_be_bytes().to_vec();
    encoded.extend_from_slice(&(block_bytes as u32).to_be_bytes());
    for block in bytes.chunks(block_bytes) {
        let compressed = encoder.encode(block)?;
        let stored = if compressed.len() < block.len() { &compressed[..] } else { block };
        encoded.extend_from_slice(&(stored.len() as u32).to_be_bytes());
        encoded.extend_from_slice(stored);
    }
    Ok(encoded)
}

/// What the LZ4 filter stores before its blocks.
struct Lz4Blocks<'a> {
    block_bytes: usize,
    blocks: &'a [u8],
}

impl<'a> Lz4Blocks<'a> {
    fn damaged() -> Error {
        Error::Corrupt("an LZ4 chunk is damaged".to_owned())
    }

    /// Parses the bytes of a chunk that has `length` bytes.
    fn parse(bytes: &'a [u8], length: u64) -> Result<Self> {
        let (size, rest) = bytes.split_first_chunk::<8>().ok_or_else(Self::damaged)?;
        let (block_bytes, blocks) = rest.split_first_chunk::<4>().ok_or_else(Self::damaged)?;
        let block_bytes = u32::from_be_bytes(*block_bytes) as usize;
        let most = (blocks.len() as u64).saturating_mul(Codec::Lz4.max_expansion());
        if u64::from_be_bytes(*size) != length || length > most || block_bytes == 0 {
            return Err(Self::damaged());
        }
        Ok(Self { block_bytes, blocks })
    }
}

fn decode_lz4(decoder: &Decoder, bytes: &[u8], out: &mut [u8]) -> Result<()> {
    let damaged = Lz4Blocks::damaged;
    let Lz4Blocks { block_bytes, blocks: mut rest } = Lz4Blocks::parse(bytes, out.len() as u64)?;
    for block in out.chunks_mut(block_bytes) {
        let (length, after) = rest.split_first_chunk::<4>().ok_or_else(damaged)?;
        let length = u32::from_be_bytes(*length) as usize;
        let (stored, after) = after.split_at_checked(length).ok_or_else(damaged)?;
        if length == block.len() {
            block.copy_from_slice(stored);
        } else {
            decoder.decode_into(Codec::Lz4, stored, block)?;
        }
        rest = after;
    }
    if rest.is_empty() { Ok(()) } else { Err(damaged()) }
}

/// Bytes after the last whole element stay where they are, as in HDF5.
fn shuffle(bytes: &[u8], item_bytes: usize) -> Vec<u8> {
    let items = bytes.len() / item_bytes;
    let mut shuffled = bytes.to_vec();
    for (place, plane) in shuffled.chunks_exact_mut(items.max(1)).take(item_bytes).enumerate() {
        for (item, out) in plane.iter_mut().enumerate() {
            *out = bytes[item * item_bytes + place];
        }
    }
    shuffled
}

fn unshuffle(shuffled: &[u8], item_bytes: usize, bytes: &mut [u8]) {
    let items = bytes.len() / item_bytes;
    bytes.copy_from_slice(shuffled);
    for (place, plane) in shuffled.chunks_exact(items.max(1)).take(item_bytes).enumerate() {
        for (item, value) in plane.iter().enumerate() {
            bytes[item * item_bytes + place] = *value;
        }
    }
}
