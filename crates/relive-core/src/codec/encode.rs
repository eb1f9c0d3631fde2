//! Encodes records.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use flate2::{Compress, FlushCompress, Status};
use zstd_safe::CDict;

use super::contexts::{self, Contexts};
use super::{Codec, Dictionary, MAX_BYTES, check_length, parts};
use crate::{Error, Result, pool};

/// The most bytes of an LZ4 block.
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
    /// Creates an encoder with this level, or with the default level of the codec.
    ///
    /// A level outside of [`Codec::levels`], or any level for a codec without levels, is
    /// `Invalid`.
    pub fn new(codec: Codec, level: Option<i32>) -> Result<Self> {
        if let Some(level) = level
            && !codec.levels().is_some_and(|levels| levels.contains(&level))
        {
            let valid =
                codec.levels().map(|levels| format!("{} to {}", levels.start(), levels.end()));
            return Err(Error::Invalid(format!(
                "`level` must be {} for codec {codec}, got {level}",
                valid.as_deref().unwrap_or("None")
            )));
        }
        let level = level.or(codec.default_level());
        Ok(Self { codec, level, dictionary: None, max_bytes: MAX_BYTES })
    }

    /// Sets the dictionary, which is prepared for the level of this encoder.
    pub fn with_dictionary(mut self, dictionary: Arc<Dictionary>) -> Result<Self> {
        if self.codec != Codec::Zstd {
            let text = format!("a dictionary requires codec zstd, got codec {}", self.codec);
            return Err(Error::Invalid(text));
        }
        let digested = CDict::try_create(dictionary.bytes(), self.level.unwrap_or_default())
            .ok_or_else(|| {
                Error::Corrupt("cannot load the dictionary for zstd compression".into())
            })?;
        self.dictionary = Some((dictionary, Arc::new(digested)));
        Ok(self)
    }

    /// Sets the limit for the length of a record.
    #[must_use]
    pub fn with_max_bytes(mut self, max_bytes: u64) -> Self {
        self.max_bytes = max_bytes;
        self
    }

    /// Returns the codec.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Returns the level; `None` for a codec without levels.
    pub fn level(&self) -> Option<i32> {
        self.level
    }

    /// Returns the dictionary, if there is one.
    pub fn dictionary(&self) -> Option<&Arc<Dictionary>> {
        self.dictionary.as_ref().map(|(dictionary, _)| dictionary)
    }

    /// Returns the limit for the length of a record.
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// Encodes one record; `TooLarge` if it is over the limit.
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

    /// Encodes one record, or returns `data` itself as [`Codec::Raw`] if encoding does not make
    /// it smaller.
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

    /// Encodes all records, in order, on at most `threads` threads.
    ///
    /// The error is that of the first record that fails, with its position.
    pub fn encode_batch<T>(&self, records: &[T], threads: usize) -> Result<Vec<Vec<u8>>>
    where
        T: AsRef<[u8]> + Sync,
    {
        let ranges = parts::split(records.iter().map(|record| record.as_ref().len()), threads);
        let encode = |position: usize| {
            let stored = self.encode(records[position].as_ref());
            stored.map_err(|error| parts::at(position, error))
        };
        let parts = pool::map(ranges, threads, |range| range.map(encode).collect());
        let parts: Vec<Vec<Vec<u8>>> = parts.into_iter().collect::<Result<_>>()?;
        Ok(parts.into_iter().flatten().collect())
    }

    fn check(&self, data: &[u8]) -> Result<()> {
        let max_bytes = match self.codec {
            Codec::Lz4 => self.max_bytes.min(LZ4_MAX_BYTES),
            _ => self.max_bytes,
        };
        check_length(data.len() as u64, max_bytes)
    }

    fn zstd(&self, contexts: &mut Contexts, data: &[u8]) -> Result<Vec<u8>> {
        let context = contexts.zstd_encoder()?;
        let mut stored = Vec::with_capacity(zstd_safe::compress_bound(data.len()));
        // Both calls know the length, so both write it into the frame.
        match &self.dictionary {
            Some((_, digested)) => context.compress_using_cdict(&mut stored, data, digested),
            None => context.compress(&mut stored, data, self.level.unwrap_or_default()),
        }
        // The buffer is large enough for any result, so only an allocation can fail.
        .map_err(|code| {
            Error::TooLarge(format!(
                "zstd cannot compress {} bytes at level {}: {}",
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
    // Enough for a record that does not become smaller; the loop below grows it if not.
    let mut stored = Vec::with_capacity(data.len() + data.len() / 1024 + 64);
    let mut taken = 0;
    loop {
        let before = (context.total_in(), context.total_out());
        let status =
            context.compress_vec(&data[taken..], &mut stored, FlushCompress::Finish).map_err(
                |error| Error::Invalid(format!("deflate cannot compress the record: {error}")),
            )?;
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
        .map_err(|error| Error::Invalid(format!("lz4 cannot compress the record: {error}")))?;
    stored.truncate(length);
    stored.shrink_to_fit();
    Ok(stored)
}
