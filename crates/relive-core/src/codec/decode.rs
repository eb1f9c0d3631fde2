//! Stored bytes to logical bytes.

use std::ops::Range;
use std::sync::Arc;

use flate2::{Decompress, FlushDecompress, Status};

use super::{Codec, Dictionary, MAX_BYTES, contexts, parts};
use crate::{Error, Result};

const ZSTD_MAGIC: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();

/// Past this the allocator is asked whether it can, before it is made to.
const PROBE_BYTES: usize = 64 << 20;

/// One record as it is stored.
#[derive(Clone, Copy, Debug)]
pub struct Stored<'a> {
    /// How the bytes are encoded.
    pub codec: Codec,
    /// The encoded bytes, all of them and nothing else.
    pub bytes: &'a [u8],
    /// The declared length of the record once decoded.
    pub length: u64,
}

/// Decodes records of any codec, within a limit and with at most one dictionary.
///
/// Bytes that are not what they claim to be are `Corrupt`, a record over the limit
/// is `TooLarge`; nothing else comes of hostile bytes, and no memory is taken for
/// them. Thread-safe.
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
    /// A decoder without a dictionary, for records of at most [`MAX_BYTES`].
    pub fn new() -> Self {
        Self::default()
    }

    /// The same decoder, with the dictionary that some zstd frames may name.
    #[must_use]
    pub fn with_dictionary(mut self, dictionary: Arc<Dictionary>) -> Self {
        self.dictionary = Some(dictionary);
        self
    }

    /// The same decoder, refusing records longer than this.
    #[must_use]
    pub fn with_max_bytes(mut self, max_bytes: u64) -> Self {
        self.max_bytes = max_bytes;
        self
    }

    /// The logical length of `record`, if what can be known without decoding agrees
    /// with it: the limit, what the codec can expand to, and the frame's own header.
    pub fn check(&self, record: &Stored<'_>) -> Result<usize> {
        let Stored { codec, bytes, length } = *record;
        if length > self.max_bytes {
            return Err(Error::TooLarge(format!(
                "a record of {length} bytes exceeds the limit of {} bytes",
                self.max_bytes
            )));
        }
        let stored = bytes.len() as u64;
        let possible = match codec {
            Codec::Raw => stored == length,
            _ => stored > 0 && length <= stored.saturating_mul(codec.max_expansion()),
        };
        if !possible {
            return Err(Error::Corrupt(format!(
                "{stored} bytes of {codec} cannot hold a record of {length} bytes"
            )));
        }
        if codec == Codec::Zstd {
            self.check_zstd(bytes, length)?;
        }
        usize::try_from(length).map_err(|_| too_much(length))
    }

    /// Decodes one record into `out`, which must have exactly its logical length.
    ///
    /// What `out` holds after an error is unspecified.
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

    /// Decodes every record, one after the other, on at most `threads` threads.
    ///
    /// Returns the bytes and one offset more than there are records: record `i` is
    /// `values[offsets[i]..offsets[i + 1]]`. The limit holds for each record. The
    /// error is that of the first record that fails, and names its position.
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
            end = end.checked_add(*length).ok_or_else(|| too_much(u64::MAX))?;
            offsets.push(end);
        }
        let mut values = zeroed(end)?;
        let mut rest = &mut values[..];
        let mut work: Vec<(Range<usize>, &mut [u8])> = Vec::new();
        for range in parts::cut(lengths.iter().copied(), threads) {
            let (part, after) = rest.split_at_mut(offsets[range.end] - offsets[range.start]);
            work.push((range, part));
            rest = after;
        }
        parts::each(work, threads, |(range, part)| {
            let start = offsets[range.start];
            for position in Range::clone(range) {
                let slot = &mut part[offsets[position] - start..offsets[position + 1] - start];
                self.decode_checked(&records[position], slot)
                    .map_err(|error| parts::at(position, error))?;
            }
            Ok(())
        })?;
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
                Ok(length) => same(Codec::Lz4, length as u64, out.len() as u64),
                Err(error) => Err(damaged(Codec::Lz4, &error.to_string())),
            },
        }
    }

    fn check_zstd(&self, bytes: &[u8], length: u64) -> Result<()> {
        if !bytes.starts_with(&ZSTD_MAGIC) {
            return Err(damaged(Codec::Zstd, "there is no zstd frame"));
        }
        match zstd_safe::get_frame_content_size(bytes) {
            Ok(Some(own)) => same(Codec::Zstd, own, length)?,
            Ok(None) => return Err(damaged(Codec::Zstd, "the zstd frame has no length")),
            Err(_) => return Err(damaged(Codec::Zstd, "the zstd frame header is not valid")),
        }
        let size = zstd_safe::find_frame_compressed_size(bytes)
            .map_err(|code| damaged(Codec::Zstd, zstd_safe::get_error_name(code)))?;
        if size != bytes.len() {
            let text = format!("the zstd frame ends after {size} of {} bytes", bytes.len());
            return Err(damaged(Codec::Zstd, &text));
        }
        self.frame_dictionary(bytes).map(|_| ())
    }

    /// The dictionary that the frame names, if it names one.
    fn frame_dictionary(&self, bytes: &[u8]) -> Result<Option<&Dictionary>> {
        let Some(wanted) = zstd_safe::get_dict_id_from_frame(bytes) else {
            return Ok(None);
        };
        match &self.dictionary {
            Some(given) if given.id() == wanted.get() => Ok(Some(given)),
            Some(given) => Err(Error::Corrupt(format!(
                "the zstd frame needs dictionary {wanted}, got dictionary {}",
                given.id()
            ))),
            None => Err(Error::Corrupt(format!(
                "the zstd frame needs dictionary {wanted}, but there is none"
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
        same(Codec::Zstd, decoded as u64, out.len() as u64)
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
        // A call takes at most 4 GiB at a time; one that moves nothing never will.
        if (taken, given) == (context.total_in(), context.total_out()) {
            let text = format!("the stream is truncated, or longer than {} bytes", out.len());
            return Err(damaged(Codec::Deflate, &text));
        }
    }
    same(Codec::Deflate, context.total_out(), out.len() as u64)?;
    if context.total_in() != bytes.len() as u64 {
        let text = format!("the stream ends after {} of {} bytes", context.total_in(), bytes.len());
        return Err(damaged(Codec::Deflate, &text));
    }
    Ok(())
}

fn same(codec: Codec, own: u64, declared: u64) -> Result<()> {
    if own == declared {
        return Ok(());
    }
    Err(Error::Corrupt(format!("the {codec} data has {own} bytes, expected {declared}")))
}

fn damaged(codec: Codec, what: &str) -> Error {
    Error::Corrupt(format!("the {codec} data is damaged: {what}"))
}

fn too_much(length: u64) -> Error {
    Error::TooLarge(format!("not enough memory for {length} bytes"))
}

/// Zeroed memory, or `TooLarge` where the allocator would end the process.
fn zeroed(length: usize) -> Result<Vec<u8>> {
    if length > PROBE_BYTES {
        // A plain `vec!` gets its zeros from the kernel without writing them, but
        // cannot fail; a reservation can fail, but its zeros would be written.
        let mut probe = Vec::<u8>::new();
        if probe.try_reserve_exact(length).is_err() {
            return Err(too_much(length as u64));
        }
        // Unseen, the probe may be optimised away.
        std::hint::black_box(&probe);
    }
    Ok(vec![0; length])
}
