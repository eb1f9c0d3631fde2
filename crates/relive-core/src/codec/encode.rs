//! Logical bytes to stored bytes.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use flate2::{Compress, FlushCompress, Status};
use zstd_safe::CDict;

use super::contexts::{self, Contexts};
use super::{Codec, Dictionary, MAX_BYTES, parts};
use crate::{Error, Result};

/// The LZ4 block format ends here.
const LZ4_MAX_BYTES: u64 = 0x7E00_0000;

/// Encodes records with one codec, level and dictionary.
///
/// Thread-safe; deterministic for a given version of the codec libraries.
#[derive(Clone)]
pub struct Encoder {
    codec: Codec,
    level: Option<i32>,
    dictionary: Option<(Arc<Dictionary>, Arc<CDict<'static>>)>,
    max_bytes: u64,
}

impl Encoder {
    /// An encoder at `level`, or at the codec's default level.
    ///
    /// A level outside of [`Codec::levels`], or one for a codec without levels, is
    /// `Invalid`.
    pub fn new(codec: Codec, level: Option<i32>) -> Result<Self> {
        if let Some(level) = level {
            match codec.levels() {
                None => {
                    return Err(Error::Invalid(format!(
                        "codec {codec} has no levels, got level {level}"
                    )));
                }
                Some(levels) if !levels.contains(&level) => {
                    return Err(Error::Invalid(format!(
                        "codec {codec} has levels {} to {}, got {level}",
                        levels.start(),
                        levels.end()
                    )));
                }
                Some(_) => {}
            }
        }
        Ok(Self {
            codec,
            level: level.or(codec.default_level()),
            dictionary: None,
            max_bytes: MAX_BYTES,
        })
    }

    /// The same encoder with a dictionary, digested here once for its level.
    pub fn with_dictionary(mut self, dictionary: Arc<Dictionary>) -> Result<Self> {
        if self.codec != Codec::Zstd {
            return Err(Error::Invalid(format!(
                "a dictionary needs codec zstd, got {}",
                self.codec
            )));
        }
        let digested = CDict::try_create(dictionary.bytes(), self.level.unwrap_or_default())
            .ok_or_else(|| Error::Corrupt("zstd cannot encode with this dictionary".into()))?;
        self.dictionary = Some((dictionary, Arc::new(digested)));
        Ok(self)
    }

    /// The same encoder, refusing records longer than this.
    #[must_use]
    pub fn with_max_bytes(mut self, max_bytes: u64) -> Self {
        self.max_bytes = max_bytes;
        self
    }

    /// The codec of everything this encodes.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// The level in use; `None` for codecs without levels.
    pub fn level(&self) -> Option<i32> {
        self.level
    }

    /// The dictionary in use.
    pub fn dictionary(&self) -> Option<&Arc<Dictionary>> {
        self.dictionary.as_ref().map(|(dictionary, _)| dictionary)
    }

    /// The longest record this encodes.
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// The stored form of `data`; `TooLarge` when it is over the limit.
    pub fn encode(&self, data: &[u8]) -> Result<Vec<u8>> {
        self.check(data)?;
        match self.codec {
            Codec::Raw => Ok(data.to_vec()),
            Codec::Deflate => contexts::with(|contexts| {
                let level = self.level.unwrap_or_default().unsigned_abs();
                deflate(contexts.deflate(level), data)
            }),
            Codec::Zstd => contexts::with(|contexts| {
                let stored = self.zstd(contexts, data);
                contexts.trim();
                stored
            }),
            Codec::Lz4 => contexts::with(|contexts| lz4(contexts, data)),
        }
    }

    /// The stored form of `data`, or `data` itself as [`Codec::Raw`] when encoding
    /// would not make it smaller.
    pub fn encode_or_raw<'a>(&self, data: &'a [u8]) -> Result<(Codec, Cow<'a, [u8]>)> {
        if self.codec == Codec::Raw {
            self.check(data)?;
        } else {
            let stored = self.encode(data)?;
            if stored.len() < data.len() {
                return Ok((self.codec, Cow::Owned(stored)));
            }
        }
        Ok((Codec::Raw, Cow::Borrowed(data)))
    }

    /// Encodes every record, on at most `threads` threads, in order.
    ///
    /// The error is that of the first record that fails, and names its position.
    pub fn encode_batch<T>(&self, records: &[T], threads: usize) -> Result<Vec<Vec<u8>>>
    where
        T: AsRef<[u8]> + Sync,
    {
        let ranges = parts::cut(records.iter().map(|record| record.as_ref().len()), threads);
        let work = ranges
            .into_iter()
            .map(|range| {
                let stored = Vec::with_capacity(range.len());
                (range, stored)
            })
            .collect();
        let done = parts::each(work, threads, |(range, stored): &mut (_, Vec<Vec<u8>>)| {
            for position in std::ops::Range::clone(range) {
                let encoded = self.encode(records[position].as_ref());
                stored.push(encoded.map_err(|error| parts::at(position, error))?);
            }
            Ok(())
        })?;
        Ok(done.into_iter().flat_map(|(_, stored)| stored).collect())
    }

    fn check(&self, data: &[u8]) -> Result<()> {
        let max_bytes = match self.codec {
            Codec::Lz4 => self.max_bytes.min(LZ4_MAX_BYTES),
            _ => self.max_bytes,
        };
        if data.len() as u64 > max_bytes {
            return Err(Error::TooLarge(format!(
                "a record of {} bytes exceeds the limit of {max_bytes} bytes",
                data.len()
            )));
        }
        Ok(())
    }

    fn zstd(&self, contexts: &mut Contexts, data: &[u8]) -> Result<Vec<u8>> {
        let context = contexts.zstd_encoder()?;
        let mut stored = Vec::with_capacity(zstd_safe::compress_bound(data.len()));
        // Both calls know the length, so both write it into the frame.
        match &self.dictionary {
            Some((_, digested)) => context.compress_using_cdict(&mut stored, data, digested),
            None => context.compress(&mut stored, data, self.level.unwrap_or_default()),
        }
        // There is room for the worst case: what is left to fail is memory.
        .map_err(|code| {
            Error::TooLarge(format!(
                "zstd cannot encode {} bytes at level {}: {}",
                data.len(),
                self.level.unwrap_or_default(),
                zstd_safe::get_error_name(code)
            ))
        })?;
        stored.shrink_to_fit();
        Ok(stored)
    }
}

impl fmt::Debug for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoder")
            .field("codec", &self.codec)
            .field("level", &self.level)
            .field("dictionary", &self.dictionary())
            .field("max_bytes", &self.max_bytes)
            .finish()
    }
}

fn deflate(context: &mut Compress, data: &[u8]) -> Result<Vec<u8>> {
    // Room for a record that does not shrink; the loop grows it should that not do.
    let mut stored = Vec::with_capacity(data.len() + data.len() / 1024 + 64);
    let mut taken = 0;
    loop {
        let before = (context.total_in(), context.total_out());
        let status = context
            .compress_vec(&data[taken..], &mut stored, FlushCompress::Finish)
            .map_err(|error| Error::Invalid(format!("deflate cannot encode: {error}")))?;
        taken += (context.total_in() - before.0) as usize;
        if status == Status::StreamEnd {
            break;
        }
        if before == (context.total_in(), context.total_out()) || stored.len() == stored.capacity()
        {
            stored.reserve(stored.capacity().max(64));
        }
    }
    stored.shrink_to_fit();
    Ok(stored)
}

fn lz4(contexts: &mut Contexts, data: &[u8]) -> Result<Vec<u8>> {
    let mut stored = vec![0; lz4_flex::block::get_maximum_output_size(data.len())];
    let table = contexts.lz4(data.len());
    let length = lz4_flex::block::compress_into_with_table(data, &mut stored, table)
        .map_err(|error| Error::Invalid(format!("lz4 cannot encode: {error}")))?;
    stored.truncate(length);
    stored.shrink_to_fit();
    Ok(stored)
}
