//! Writes encoded records one after the other to a heap chunk.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use crate::codec::{Codec, Encoder};
use crate::durable::Growing;
use crate::records::chunk::chunk_paths;
use crate::records::chunk_numbers::ChunkNumbers;
use crate::records::dense_writer::{HELD, Uncommitted, check_header};
use crate::records::journal_records::Position;
use crate::records::layout::{
    ALIGN, ChunkHeader, ChunkKind, Entry, PAGE, RECORD_BYTES, RecordHeader, Uid,
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

impl HeapConfig {
    fn header(&self, number: u32) -> ChunkHeader {
        ChunkHeader { number, uid: self.uid, kind: ChunkKind::Heap }
    }
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
        return Err(Error::TooLarge(format!(
            "a value of {bytes} bytes exceeds the limit of {most} bytes"
        )));
    }
    if u8::try_from(dims).is_err() {
        return Err(Error::TooLarge(format!("a value has {dims} dimensions, the limit is 255")));
    }
    Ok(())
}

/// Writes records to chunks, through a buffer.
#[derive(Default)]
pub(super) struct HeapWriter {
    /// The chunk that takes records.
    open: Option<Chunk>,
    /// Full chunks with bytes that were not committed or not synced.
    full: Vec<Chunk>,
    /// Full chunks that were closed before they were committed.
    closed: Vec<Uncommitted>,
    /// Bytes that follow those that `open` has written.
    buffer: Vec<u8>,
    pub(super) created: Vec<u32>,
}

impl HeapWriter {
    /// Writes or buffers a record that passed [`check`], and returns its entry.
    pub(super) fn write(&mut self, heap: &Heap, record: Record<'_>) -> Result<Entry> {
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
            return Err(Error::Closed("no chunk file is open for writing".into()));
        };
        let end = chunk.written + self.buffer.len() as u64;
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
                chunk.write(&heap.config, &self.buffer)?;
                self.buffer.clear();
            }
            chunk.file.write_at(&header.sealed(digest.value()), offset)?;
        } else {
            let from = self.buffer.len();
            self.buffer.extend_from_slice(&stored);
            digest.update(&self.buffer[from..]);
            let sealed = header.sealed(digest.value());
            self.buffer[start..start + RECORD_BYTES].copy_from_slice(&sealed);
            if self.buffer.len() >= BUFFER_BYTES {
                self.flush(heap)?;
            }
        }
        // `check` made sure that a raw value fits, and encoded values are not longer.
        Ok(Entry { chunk: self.number(), offset, length: header.total() as u32 })
    }

    fn number(&self) -> u32 {
        self.open.as_ref().map_or(0, |chunk| chunk.number)
    }

    /// Makes sure that the open chunk has room for another record.
    fn make_room(&mut self, heap: &Heap) -> Result<()> {
        let is_full = |position: u64, records: u64| {
            position >= heap.config.chunk_bytes || records >= heap.config.chunk_records
        };
        if let Some(chunk) = &self.open {
            if !is_full(chunk.written + self.buffer.len() as u64, chunk.records) {
                return Ok(());
            }
            self.flush(heap)?;
        }
        if let Some(chunk) = self.open.take() {
            chunk.file.trim(chunk.written)?;
            self.full.push(chunk);
            if self.full.len() > HELD {
                let oldest = self.full.remove(0);
                oldest.file.sync()?;
                self.closed.extend(oldest.uncommitted());
            }
        }
        loop {
            let unfull = heap.unfull.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(last) = unfull else { break };
            if !is_full(last.position, last.records) {
                self.open = Some(Chunk::resume(&heap.config, &last)?);
                return Ok(());
            }
        }
        let number = heap.config.numbers.take()?;
        self.open = Some(Chunk::create(&heap.config, number)?);
        self.created.push(number);
        Ok(())
    }

    /// Writes the buffer to the file.
    pub(super) fn flush(&mut self, heap: &Heap) -> Result<()> {
        if let Some(chunk) = &mut self.open
            && !self.buffer.is_empty()
        {
            chunk.write(&heap.config, &self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }

    /// How far chunks are written that changed since [`HeapWriter::committed`].
    pub(super) fn positions(&self) -> impl Iterator<Item = Position> {
        let open = self.chunks().filter_map(Chunk::uncommitted);
        self.closed.iter().cloned().chain(open).map(|chunk| chunk.last)
    }

    /// Notes that the positions are in the journal.
    pub(super) fn committed(&mut self) {
        for chunk in self.full.iter_mut().chain(&mut self.open) {
            chunk.committed = chunk.written;
        }
        self.closed.clear();
        self.forget();
    }

    /// Files with bytes that may not be on the disk.
    pub(super) fn unsynced(&self) -> impl Iterator<Item = Arc<Growing>> {
        self.chunks().filter(|chunk| chunk.file.is_dirty()).map(|chunk| Arc::clone(&chunk.file))
    }

    /// Truncates the files to what is committed. Returns whether something was lost.
    pub(super) fn trim(&mut self, heap: &Heap) -> Result<bool> {
        let mut lost = !self.buffer.is_empty() || !self.closed.is_empty();
        self.buffer.clear();
        for chunk in &self.closed {
            let (path, _) = chunk_paths(&heap.config.folder, chunk.last.chunk);
            Growing::open(&path)?.trim(chunk.committed)?;
        }
        for chunk in self.chunks() {
            lost |= chunk.written != chunk.committed;
            chunk.file.trim(chunk.committed)?;
        }
        Ok(lost)
    }

    /// Closes full chunks that are committed and synced.
    pub(super) fn forget(&mut self) {
        self.full.retain(|chunk| chunk.written != chunk.committed || chunk.file.is_dirty());
    }

    fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.full.iter().chain(&self.open)
    }
}

/// A chunk that is being written.
struct Chunk {
    number: u32,
    file: Arc<Growing>,
    /// End of the bytes in the file.
    written: u64,
    /// Records in it, including buffered ones.
    records: u64,
    /// The position that was last committed.
    committed: u64,
}

impl Chunk {
    fn create(config: &HeapConfig, number: u32) -> Result<Self> {
        let file = Growing::create(&chunk_paths(&config.folder, number).0)?;
        file.reserve(PAGE, config.chunk_bytes)?;
        file.write_at(&config.header(number).to_page(), 0)?;
        Ok(Self { number, file: Arc::new(file), written: PAGE, records: 0, committed: PAGE })
    }

    fn resume(config: &HeapConfig, last: &Position) -> Result<Self> {
        let file = Growing::open(&chunk_paths(&config.folder, last.chunk).0)?;
        check_header(&file, config.header(last.chunk))?;
        if last.position < PAGE || file.size() < last.position {
            return Err(Error::Corrupt(format!(
                "`{}` has {} bytes, but {} were committed",
                file.path().display(),
                file.size(),
                last.position
            )));
        }
        Ok(Self {
            number: last.chunk,
            file: Arc::new(file),
            written: last.position,
            records: last.records,
            committed: last.position,
        })
    }

    /// Its position for the next Commit, if it changed.
    fn uncommitted(&self) -> Option<Uncommitted> {
        let last =
            Position { chunk: self.number, tail: 0, position: self.written, records: self.records };
        (self.written != self.committed).then_some(Uncommitted { last, committed: self.committed })
    }

    fn write(&mut self, config: &HeapConfig, bytes: &[u8]) -> Result<()> {
        let end = self.written + bytes.len() as u64;
        self.file.reserve(end, config.chunk_bytes)?;
        self.file.write_at(bytes, self.written)?;
        self.written = end;
        Ok(())
    }
}

#[cfg(test)]
impl HeapWriter {
    /// Makes writes to the open chunk fail.
    pub(super) fn make_read_only(&mut self) {
        let chunk = self.open.as_mut().unwrap();
        let path = chunk.file.path().to_path_buf();
        let file = std::fs::File::open(&path).unwrap();
        chunk.file = Arc::new(Growing::over(&path, file).unwrap());
    }
}
