//! Encodes records and appends them to heap chunks.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use crate::codec::{Codec, Encoder};
use crate::records::chunk_numbers::ChunkNumbers;
use crate::records::chunk_writer::ChunkWriter;
use crate::records::journal_records::Position;
use crate::records::layout::{
    ALIGN, ChunkHeader, ChunkKind, Entry, RECORD_BYTES, RecordHeader, Uid,
};
use crate::{Error, Result};

/// Records are buffered up to this many bytes.
const BUFFER_BYTES: usize = 1 << 20;

/// Values of this length and more are written directly.
const DIRECT_BYTES: usize = 128 * 1024;

/// They are copied, summed and written in slices that stay in the cache.
const SLICE_BYTES: usize = 256 * 1024;

/// Where the heap chunks of a store are, and when they are full.
#[derive(Clone)]
pub struct HeapConfig {
    /// The folder of the chunks.
    pub folder: PathBuf,
    /// The uid of their store.
    pub uid: Uid,
    /// A chunk is full at this write position.
    pub chunk_bytes: u64,
    /// A chunk is full with this many records.
    pub chunk_records: u64,
    /// Assigns numbers to chunks.
    pub numbers: Arc<ChunkNumbers>,
}

/// The source of chunks for all workers.
pub(super) struct Heap {
    pub(super) config: HeapConfig,
    /// Chunks of an earlier writer that are not full.
    pub(super) unfull: Mutex<VecDeque<Position>>,
}

/// A value with the content of its header.
#[derive(Clone, Copy)]
pub(super) struct Record<'a> {
    pub(super) field: u16,
    pub(super) encoder: &'a Encoder,
    pub(super) sequence: u64,
    pub(super) bytes: &'a [u8],
    pub(super) dims: &'a [u64],
    /// How the bytes are encoded already, and the length of the value.
    pub(super) stored: Option<(Codec, u64)>,
}

impl<'a> Record<'a> {
    /// Encodes the value: its codec, its length and the bytes to store.
    fn encode(&self) -> Result<(Codec, u64, Cow<'a, [u8]>)> {
        if let Some((codec, length)) = self.stored {
            return Ok((codec, length, Cow::Borrowed(self.bytes)));
        }
        let (codec, stored) = match self.encoder.encode_or_raw(self.bytes) {
            // The value is too long for the codec, but not for the store.
            Err(Error::TooLarge(_)) => (Codec::Raw, Cow::Borrowed(self.bytes)),
            encoded => encoded?,
        };
        Ok((codec, self.bytes.len() as u64, stored))
    }
}

/// Refuses a value that is too long, or has too many dimensions, for a record.
pub fn check(encoder: &Encoder, bytes: usize, dims: usize) -> Result<()> {
    let most = encoder.max_bytes().min(u64::from(u32::MAX) - RECORD_BYTES as u64 - 8 * 255);
    if bytes as u64 > most {
        return Err(Error::over_limit(bytes, most, "a value", "bytes"));
    }
    if u8::try_from(dims).is_err() {
        return Err(Error::over_limit(dims, u8::MAX, "a value", "dimensions"));
    }
    Ok(())
}

impl ChunkWriter {
    /// Writes or buffers a record that passed [`check`], and returns its entry.
    pub(super) fn write_record(&mut self, heap: &Heap, record: Record<'_>) -> Result<Entry> {
        let Record { field, sequence, dims, .. } = record;
        let (codec, length, stored) = record.encode()?;
        let header = RecordHeader {
            field,
            codec,
            dims: dims.len() as u8,
            sequence,
            length,
            stored: stored.len() as u32,
            crc: 0,
        };
        self.make_room(heap)?;
        let Some(chunk) = &mut self.open else {
            return Err(Error::Closed("cannot write the value: no chunk file is open".into()));
        };
        let number = chunk.number;
        let end = chunk.position + self.buffer.len() as u64;
        let offset = end.next_multiple_of(ALIGN);
        self.buffer.resize(self.buffer.len() + (offset - end) as usize, 0);
        let start = self.buffer.len();
        self.buffer.extend_from_slice(&header.sealed(0));
        for dim in dims {
            self.buffer.extend_from_slice(&dim.to_le_bytes());
        }
        chunk.records += 1;
        // The caller's memory is read once, and the copy is summed and written. So the checksum
        // is right even if another thread changes that memory meanwhile.
        let mut digest = header.digest(dims);
        if stored.len() >= DIRECT_BYTES {
            self.buffer.reserve(SLICE_BYTES);
            for slice in stored.chunks(SLICE_BYTES) {
                let from = self.buffer.len();
                self.buffer.extend_from_slice(slice);
                digest.update(&self.buffer[from..]);
                chunk.write(&self.buffer)?;
                self.buffer.clear();
            }
            chunk.data.write_at(&header.sealed(digest.value()), offset)?;
        } else {
            let from = self.buffer.len();
            self.buffer.extend_from_slice(&stored);
            digest.update(&self.buffer[from..]);
            let sealed = header.sealed(digest.value());
            self.buffer[start..start + RECORD_BYTES].copy_from_slice(&sealed);
            if self.buffer.len() >= BUFFER_BYTES {
                self.flush()?;
            }
        }
        // `check` made sure that a raw value fits, and encoded values are not longer.
        Ok(Entry { chunk: number, offset, length: header.total() as u32 })
    }

    /// Makes sure that the open chunk has room for another record.
    fn make_room(&mut self, heap: &Heap) -> Result<()> {
        let HeapConfig { uid, chunk_bytes, chunk_records, .. } = heap.config;
        let header = |number| ChunkHeader { number, uid, kind: ChunkKind::Heap };
        let is_full =
            |position: u64, records: u64| position >= chunk_bytes || records >= chunk_records;
        if let Some(chunk) = &self.open
            && !is_full(chunk.position + self.buffer.len() as u64, chunk.records)
        {
            return Ok(());
        }
        self.finish()?;
        loop {
            let unfull = heap.unfull.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(last) = unfull else { break };
            if !is_full(last.position, last.records) {
                return self.resume(header(last.chunk), chunk_bytes, &last);
            }
        }
        let number = heap.config.numbers.take()?;
        self.create(header(number), chunk_bytes)
    }
}

#[cfg(test)]
impl ChunkWriter {
    /// Makes writes to the open chunk fail.
    pub(super) fn make_read_only(&mut self) {
        let chunk = self.open.as_mut().unwrap();
        let path = chunk.data.path().to_path_buf();
        let file = std::fs::File::open(&path).unwrap();
        chunk.data = Arc::new(crate::durable::Growing::over(&path, file).unwrap());
    }
}
