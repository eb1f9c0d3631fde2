//! Decodes stored bytes.

use std::ops::Range;
use std::sync::Arc;

use flate2::{Decompress, FlushDecompress, Status};

use super::{Codec, Dictionary, MAX_BYTES, check_length, contexts, impossible_length, parts};
use crate::{Error, Result, pool};

const ZSTD_MAGIC: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();

/// Larger allocations are first tried in a way that can fail without ending the process.
const PROBE_BYTES: usize = 64 << 20;

/// One record as it is stored.
#[derive(Clone, Copy, Debug)]
pub struct Stored<'a> {
    /// How the bytes are encoded.
    pub codec: Codec,
    /// Exactly the encoded bytes.
    pub bytes: &'a [u8],
    /// The declared length of the decoded record.
    pub length: u64,
}

/// Decodes records of any codec, with a limit for their length and at most one dictionary.
///
/// Malformed bytes are `Corrupt`, and a record over the limit is `TooLarge`, before memory is
/// allocated for it. Thread-safe.
#[derive(Clone, Debug)]
pub struct Decoder {
    dictionary: Option<Arc<Dictionary>>,
    max_bytes: u64,
}

impl Default for Decoder {
    fn default() -> Self {
        Self { dictionary: None, max_bytes: MAX_BYTES }
    }
}

impl Decoder {
    /// Creates a decoder without a dictionary, for records of at most [`MAX_BYTES`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the dictionary of zstd frames that need one.
    #[must_use]
    pub fn with_dictionary(mut self, dictionary: Arc<Dictionary>) -> Self {
        self.dictionary = Some(dictionary);
        self
    }

    /// Sets the limit for the length of a record.
    #[must_use]
    pub fn with_max_bytes(mut self, max_bytes: u64) -> Self {
        self.max_bytes = max_bytes;
        self
    }

    /// Returns the decoded length of `record`, after all checks that do not need decoding: the
    /// limit, the most that the codec can expand, and the frame header.
    pub fn check(&self, record: &Stored<'_>) -> Result<usize> {
        let Stored { codec, bytes, length } = *record;
        check_length(length, self.max_bytes)?;
        let stored = bytes.len() as u64;
        let possible = match codec {
            Codec::Raw => stored == length,
            _ => stored > 0 && length <= stored.saturating_mul(codec.max_expansion()),
        };
        if !possible {
            return Err(impossible_length(codec, stored, length));
        }
        if codec == Codec::Zstd {
            self.check_zstd(bytes, length)?;
        }
        usize::try_from(length).map_err(|_| no_memory(length))
    }

    /// Decodes one record into `out`, which must have exactly its decoded length.
    ///
    /// The content of `out` is unspecified after an error.
    pub fn decode_into(&self, codec: Codec, bytes: &[u8], out: &mut [u8]) -> Result<()> {
        let length = out.len() as u64;
        let record = Stored { codec, bytes, length };
        self.check(&record)?;
        self.decode_checked(&record, out)
    }

    /// Decodes one record.
    pub fn decode(&self, record: &Stored<'_>) -> Result<Vec<u8>> {
        let mut out = zeroed(self.check(record)?)?;
        self.decode_checked(record, &mut out)?;
        Ok(out)
    }

    /// Decodes all records on at most `threads` threads.
    ///
    /// Returns the concatenated bytes and the offsets: record `i` is
    /// `values[offsets[i]..offsets[i + 1]]`. The limit applies to each record. The error is that
    /// of the first record that fails, with its position.
    pub fn decode_batch(
        &self,
        records: &[Stored<'_>],
        threads: usize,
    ) -> Result<(Vec<u8>, Vec<usize>)> {
        let check =
            |(position, record)| self.check(record).map_err(|error| parts::at(position, error));
        let lengths: Vec<usize> = records.iter().enumerate().map(check).collect::<Result<_>>()?;
        let mut offsets = Vec::with_capacity(records.len() + 1);
        let mut end = 0_usize;
        offsets.push(0);
        for length in &lengths {
            end = end.checked_add(*length).ok_or_else(|| no_memory(u64::MAX))?;
            offsets.push(end);
        }
        let mut values = zeroed(end)?;
        let mut rest = &mut values[..];
        let mut work: Vec<(Range<usize>, &mut [u8])> = Vec::new();
        for range in parts::split(lengths.iter().copied(), threads) {
            let (part, after) = rest.split_at_mut(offsets[range.end] - offsets[range.start]);
            work.push((range, part));
            rest = after;
        }
        let decoded = pool::map(work, threads, |(range, part)| {
            let start = offsets[range.start];
            for position in range {
                let slot = &mut part[offsets[position] - start..offsets[position + 1] - start];
                self.decode_checked(&records[position], slot)
                    .map_err(|error| parts::at(position, error))?;
            }
            Ok(())
        });
        decoded.into_iter().collect::<Result<()>>()?;
        Ok((values, offsets))
    }

    fn decode_checked(&self, record: &Stored<'_>, out: &mut [u8]) -> Result<()> {
        let bytes = record.bytes;
        match record.codec {
            Codec::Raw => {
                out.copy_from_slice(bytes);
                Ok(())
            }
            Codec::Deflate => contexts::with(|contexts| inflate(contexts.inflate(), bytes, out)),
            Codec::Zstd => self.zstd(bytes, out),
            Codec::Lz4 => match lz4_flex::block::decompress_into(bytes, out) {
                Ok(length) => check_decoded(Codec::Lz4, length as u64, out.len() as u64),
                Err(error) => Err(damaged(Codec::Lz4, &error.to_string())),
            },
        }
    }

    fn check_zstd(&self, bytes: &[u8], length: u64) -> Result<()> {
        if !bytes.starts_with(&ZSTD_MAGIC) {
            return Err(damaged(Codec::Zstd, "it does not begin with a zstd frame"));
        }
        match zstd_safe::get_frame_content_size(bytes) {
            Ok(Some(own)) => check_decoded(Codec::Zstd, own, length)?,
            Ok(None) => return Err(damaged(Codec::Zstd, "its frame header has no length")),
            Err(_) => return Err(damaged(Codec::Zstd, "its frame header is invalid")),
        }
        let size = zstd_safe::find_frame_compressed_size(bytes)
            .map_err(|code| damaged(Codec::Zstd, zstd_safe::get_error_name(code)))?;
        if size != bytes.len() {
            let text = format!("its frame ends after {size} of {} bytes", bytes.len());
            return Err(damaged(Codec::Zstd, &text));
        }
        self.frame_dictionary(bytes).map(|_| ())
    }

    /// Returns the dictionary that the frame needs, if it needs one.
    fn frame_dictionary(&self, bytes: &[u8]) -> Result<Option<&Dictionary>> {
        let Some(wanted) = zstd_safe::get_dict_id_from_frame(bytes) else {
            return Ok(None);
        };
        match &self.dictionary {
            Some(given) if given.id() == wanted.get() => Ok(Some(given)),
            Some(given) => Err(Error::Corrupt(format!(
                "the zstd data was compressed with dictionary id {wanted}, got dictionary id {}",
                given.id()
            ))),
            None => Err(Error::Corrupt(format!(
                "the zstd data was compressed with dictionary id {wanted}, but no dictionary was given"
            ))),
        }
    }

    fn zstd(&self, bytes: &[u8], out: &mut [u8]) -> Result<()> {
        let dictionary = self.frame_dictionary(bytes)?;
        let decoded = contexts::with(|contexts| {
            let context = contexts.zstd_decoder()?;
            match dictionary {
                Some(given) => context.decompress_using_ddict(out, bytes, given.digested()),
                None => context.decompress(out, bytes),
            }
            .map_err(|code| damaged(Codec::Zstd, zstd_safe::get_error_name(code)))
        })?;
        check_decoded(Codec::Zstd, decoded as u64, out.len() as u64)
    }
}

fn inflate(context: &mut Decompress, bytes: &[u8], out: &mut [u8]) -> Result<()> {
    loop {
        let (taken, given) = (context.total_in(), context.total_out());
        let status = context
            .decompress(
                &bytes[taken as usize..],
                &mut out[given as usize..],
                FlushDecompress::Finish,
            )
            .map_err(|error| damaged(Codec::Deflate, &error.to_string()))?;
        if status == Status::StreamEnd {
            break;
        }
        // A call processes at most 4 GiB. One without progress will not make any later.
        if (taken, given) == (context.total_in(), context.total_out()) {
            let text =
                format!("the stream is truncated, or decodes to more than {} bytes", out.len());
            return Err(damaged(Codec::Deflate, &text));
        }
    }
    check_decoded(Codec::Deflate, context.total_out(), out.len() as u64)?;
    if context.total_in() != bytes.len() as u64 {
        let text = format!("the stream ends after {} of {} bytes", context.total_in(), bytes.len());
        return Err(damaged(Codec::Deflate, &text));
    }
    Ok(())
}

fn check_decoded(codec: Codec, length: u64, declared: u64) -> Result<()> {
    if length == declared {
        return Ok(());
    }
    Err(Error::Corrupt(format!("the {codec} data decodes to {length} bytes, expected {declared}")))
}

fn damaged(codec: Codec, what: &str) -> Error {
    Error::Corrupt(format!("the {codec} data is damaged: {what}"))
}

fn no_memory(length: u64) -> Error {
    Error::TooLarge(format!("not enough memory for {length} decoded bytes"))
}

/// Returns zeroed memory; `TooLarge` if there is not enough memory.
fn zeroed(length: usize) -> Result<Vec<u8>> {
    if length > PROBE_BYTES {
        // `vec!` takes zeroed memory from the kernel without writing to it, but ends the process
        // if there is not enough. `try_reserve_exact` reports that, but its memory is not zeroed.
        let mut probe = Vec::<u8>::new();
        if probe.try_reserve_exact(length).is_err() {
            return Err(no_memory(length as u64));
        }
        // The compiler may remove an unused allocation.
        std::hint::black_box(&probe);
    }
    Ok(vec![0; length])
}
