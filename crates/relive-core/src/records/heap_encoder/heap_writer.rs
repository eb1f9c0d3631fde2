//! One lane: records one behind the other in a heap chunk of its own.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use crate::codec::{Codec, Encoder};
use crate::durable::Growing;
use crate::records::dense::{HELD, Uncommitted, check_header, chunk_paths};
use crate::records::frames::Position;
use crate::records::layout::{
    ALIGN, ChunkHeader, ChunkKind, Entry, PAGE, RECORD_BYTES, RecordHeader, Uid,
};
use crate::records::numbers::Numbers;
use crate::{Error, Result};

/// Records are held back until so many bytes of them are there.
const ROOM: usize = 1 << 20;

/// Stored bytes from this length on do not wait for others.
const DIRECT: usize = 128 * 1024;

/// They are copied, summed and written in pieces that stay in the cache.
const PIECE: usize = 256 * 1024;

/// Where the heap chunks of a store are, and when they are full.
#[derive(Clone)]
pub struct HeapShape {
    /// The folder of the chunks.
    pub folder: PathBuf,
    /// The store that they belong to.
    pub uid: Uid,
    /// A chunk is full that has this write position.
    pub chunk_bytes: u64,
    /// A chunk is full that has so many records.
    pub chunk_records: u64,
    /// The numbers of chunks of the store.
    pub numbers: Arc<Numbers>,
}

impl HeapShape {
    fn header(&self, number: u32) -> ChunkHeader {
        ChunkHeader { number, uid: self.uid, kind: ChunkKind::Heap }
    }
}

/// What all lanes take their chunks from.
pub(super) struct Heap {
    pub(super) shape: HeapShape,
    /// Chunks of an earlier writer that have room.
    pub(super) unfull: Mutex<VecDeque<Position>>,
}

/// A value with everything its header says.
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
    /// The codec, the length of the value, and the bytes to be stored.
    fn encoded(&self) -> Result<(Codec, u64, Cow<'a, [u8]>)> {
        if let Some((codec, length)) = self.stored {
            return Ok((codec, length, Cow::Borrowed(self.bytes)));
        }
        let (codec, stored) = match self.encoder.encode_or_raw(self.bytes) {
            // What is too long for a codec only, is not for the store.
            Err(Error::TooLarge(_)) => (Codec::Raw, Cow::Borrowed(self.bytes)),
            encoded => encoded?,
        };
        Ok((codec, self.bytes.len() as u64, stored))
    }
}

/// Refuses a value that cannot be a record.
pub(super) fn check(encoder: &Encoder, bytes: usize, dims: usize) -> Result<()> {
    let most = encoder.max_bytes().min(u64::from(u32::MAX) - RECORD_BYTES as u64 - 8 * 255);
    if bytes as u64 > most {
        return Err(Error::TooLarge(format!(
            "a value of {bytes} bytes is over the limit of {most}"
        )));
    }
    if u8::try_from(dims).is_err() {
        return Err(Error::TooLarge(format!("a value with {dims} dimensions, at most 255 can be")));
    }
    Ok(())
}

/// Places records, and holds the last of them back.
#[derive(Default)]
pub(super) struct Lane {
    /// The chunk that takes records.
    open: Option<Chunk>,
    /// Full chunks with bytes that were not committed or not synced.
    full: Vec<Chunk>,
    /// Full chunks that were closed before they were committed.
    closed: Vec<Uncommitted>,
    /// Bytes that go behind what `open` has written.
    buffer: Vec<u8>,
    pub(super) created: Vec<u32>,
}

impl Lane {
    /// Writes a record that [`check`] let pass, or holds it back; gives its place.
    pub(super) fn place(&mut self, heap: &Heap, record: Record<'_>) -> Result<Entry> {
        let Record { field, sequence, dims, .. } = record;
        let (codec, length, stored) = record.encoded()?;
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
            return Err(Error::Closed("there is no chunk to write to".into()));
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
        // The caller's memory is read once, and what was read is summed and written: another
        // thread that changes it meanwhile gets whatever it gets, with a checksum that holds.
        let mut digest = header.digest(dims);
        if stored.len() >= DIRECT {
            self.buffer.reserve(PIECE);
            for piece in stored.chunks(PIECE) {
                let from = self.buffer.len();
                self.buffer.extend_from_slice(piece);
                digest.update(&self.buffer[from..]);
                chunk.write(&heap.shape, &self.buffer)?;
                self.buffer.clear();
            }
            chunk.file.write_at(&header.sealed(digest.value()), offset)?;
        } else {
            let from = self.buffer.len();
            self.buffer.extend_from_slice(&stored);
            digest.update(&self.buffer[from..]);
            let sealed = header.sealed(digest.value());
            self.buffer[start..start + RECORD_BYTES].copy_from_slice(&sealed);
            if self.buffer.len() >= ROOM {
                self.flush(heap)?;
            }
        }
        // `check` has seen to it that a raw value fits, and nothing stored is longer.
        Ok(Entry { chunk: self.number(), offset, length: header.total() as u32 })
    }

    fn number(&self) -> u32 {
        self.open.as_ref().map_or(0, |chunk| chunk.number)
    }

    /// Sees to it that the chunk in use takes another record.
    fn make_room(&mut self, heap: &Heap) -> Result<()> {
        let is_full = |position: u64, records: u64| {
            position >= heap.shape.chunk_bytes || records >= heap.shape.chunk_records
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
                self.open = Some(Chunk::resume(&heap.shape, &last)?);
                return Ok(());
            }
        }
        let number = heap.shape.numbers.take()?;
        self.open = Some(Chunk::create(&heap.shape, number)?);
        self.created.push(number);
        Ok(())
    }

    /// Gives everything to the operating system.
    pub(super) fn flush(&mut self, heap: &Heap) -> Result<()> {
        if let Some(chunk) = &mut self.open
            && !self.buffer.is_empty()
        {
            chunk.write(&heap.shape, &self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }

    /// How far chunks are written that changed since [`Lane::committed`].
    pub(super) fn positions(&self) -> impl Iterator<Item = Position> {
        let open = self.chunks().filter_map(Chunk::uncommitted);
        self.closed.iter().cloned().chain(open).map(|chunk| chunk.last)
    }

    /// The positions are in the journal.
    pub(super) fn committed(&mut self) {
        for chunk in self.full.iter_mut().chain(&mut self.open) {
            chunk.committed = chunk.written;
        }
        self.closed.clear();
        self.forget();
    }

    /// Files with bytes that the disk may not have.
    pub(super) fn unsynced(&self) -> impl Iterator<Item = Arc<Growing>> {
        self.chunks().filter(|chunk| chunk.file.is_dirty()).map(|chunk| Arc::clone(&chunk.file))
    }

    /// Cuts the files to what is committed; whether something was lost.
    pub(super) fn trim(&mut self, heap: &Heap) -> Result<bool> {
        let mut lost = !self.buffer.is_empty() || !self.closed.is_empty();
        self.buffer.clear();
        for chunk in &self.closed {
            let (path, _) = chunk_paths(&heap.shape.folder, chunk.last.chunk);
            Growing::open(&path)?.trim(chunk.committed)?;
        }
        for chunk in self.chunks() {
            lost |= chunk.written != chunk.committed;
            chunk.file.trim(chunk.committed)?;
        }
        Ok(lost)
    }

    /// Closes full chunks of which nothing more is to be said.
    pub(super) fn forget(&mut self) {
        self.full.retain(|chunk| chunk.written != chunk.committed || chunk.file.is_dirty());
    }

    fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.full.iter().chain(&self.open)
    }
}

/// A chunk that is written to.
struct Chunk {
    number: u32,
    file: Arc<Growing>,
    /// Everything before this was given to the operating system.
    written: u64,
    /// Records in it, those that are held back included.
    records: u64,
    /// The position that was last committed.
    committed: u64,
}

impl Chunk {
    fn create(shape: &HeapShape, number: u32) -> Result<Self> {
        let file = Growing::create(&chunk_paths(&shape.folder, number).0)?;
        file.reserve(PAGE, shape.chunk_bytes)?;
        file.write_at(&shape.header(number).to_page(), 0)?;
        Ok(Self { number, file: Arc::new(file), written: PAGE, records: 0, committed: PAGE })
    }

    fn resume(shape: &HeapShape, last: &Position) -> Result<Self> {
        let file = Growing::open(&chunk_paths(&shape.folder, last.chunk).0)?;
        check_header(&file, shape.header(last.chunk))?;
        if last.position < PAGE || file.size() < last.position {
            return Err(Error::Corrupt(format!(
                "`{}` has {} bytes, and {} were committed",
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

    /// What the next Commit has to say of it, if anything.
    fn uncommitted(&self) -> Option<Uncommitted> {
        let last =
            Position { chunk: self.number, tail: 0, position: self.written, records: self.records };
        (self.written != self.committed).then_some(Uncommitted { last, committed: self.committed })
    }

    fn write(&mut self, shape: &HeapShape, bytes: &[u8]) -> Result<()> {
        let end = self.written + bytes.len() as u64;
        self.file.reserve(end, shape.chunk_bytes)?;
        self.file.write_at(bytes, self.written)?;
        self.written = end;
        Ok(())
    }
}

#[cfg(test)]
impl Lane {
    /// From here on the chunk in use cannot be written.
    pub(super) fn make_read_only(&mut self) {
        let chunk = self.open.as_mut().unwrap();
        let path = chunk.file.path().to_path_buf();
        let file = std::fs::File::open(&path).unwrap();
        chunk.file = Arc::new(Growing::over(&path, file).unwrap());
    }
}
