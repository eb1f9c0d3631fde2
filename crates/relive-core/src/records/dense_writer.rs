//! Rows of a dense field on their way to its chunks.
//!
//! Bytes only ever go behind those that are there, so what a Commit has named is not
//! written again. A checksum is made when a block is full; that of the block which is not
//! is kept running.

use std::path::PathBuf;
use std::sync::Arc;

use super::chunk::chunk_paths;
use super::journal_records::Position;
use super::layout::{BLOCK, ChunkHeader, ChunkKind, PAGE, Uid};
use crate::crc::{Crc32c, crc32c};
use crate::durable::{self, Growing};
use crate::latch::{Latch, RecordIn};
use crate::{Error, Result};

#[cfg(test)]
mod tests;

/// Rows are held back until so many bytes of them are there; more are written in such pieces,
/// which are still in the cache when they are summed. Further threads would gain nothing:
/// summing is several times faster than the writing, and the kernel lets one thread at a time
/// write to a file.
const ROOM: usize = 1 << 20;

/// What is more than that is copied, summed and written in pieces that stay in the cache.
const PIECE: usize = 256 * 1024;

/// So many full chunks stay open for the next sync. The one before them is synced at once,
/// as closing a file would lose what the disk has to say about it.
pub(super) const HELD: usize = 16;

/// How far a chunk is written, and the position that was last committed.
#[derive(Clone)]
pub(super) struct Uncommitted {
    pub(super) last: Position,
    pub(super) committed: u64,
}

/// Where the chunks of a dense field are, and what they look like.
#[derive(Clone, Debug)]
pub struct DenseConfig {
    /// The folder of the chunks.
    pub folder: PathBuf,
    /// The store that they belong to.
    pub uid: Uid,
    /// Id of the field.
    pub field: u16,
    /// Bytes of a row.
    pub stride: u64,
    /// Rows of a chunk, which take a multiple of [`PAGE`] bytes.
    pub rows: u64,
}

impl DenseConfig {
    fn header(&self, number: u32) -> ChunkHeader {
        let kind = ChunkKind::Dense { field: self.field, stride: self.stride, rows: self.rows };
        ChunkHeader { number, uid: self.uid, kind }
    }

    /// Bytes of the rows of a full chunk.
    fn capacity(&self) -> u64 {
        self.stride * self.rows
    }
}

/// Appends rows to the chunks of one dense field.
///
/// After something failed every further call but [`DenseWriter::trim`] is refused.
pub struct DenseWriter {
    config: DenseConfig,
    /// The chunk that takes rows.
    open: Option<Chunk>,
    /// Full chunks with bytes that were not committed or not synced.
    full: Vec<Chunk>,
    /// Full chunks that were closed before they were committed.
    closed: Vec<Uncommitted>,
    /// Bytes that go behind what `open` has written.
    buffer: Vec<u8>,
    created: Vec<u32>,
    failure: Latch,
}

impl DenseWriter {
    /// A writer that begins with a fresh chunk.
    ///
    /// The config must be that of a dense chunk.
    pub fn new(config: DenseConfig) -> Self {
        Self {
            config,
            open: None,
            full: Vec::new(),
            closed: Vec::new(),
            buffer: Vec::new(),
            created: Vec::new(),
            failure: Latch::default(),
        }
    }

    /// Goes on behind `last` in a chunk that an earlier writer left.
    ///
    /// `Corrupt` when the file is not that chunk, is too short, or has not the checksum.
    pub fn resume(&mut self, last: &Position) -> Result<()> {
        self.open = Some(Chunk::resume(&self.config, last)?);
        Ok(())
    }

    /// Rows that the chunk in use still takes; 0 when the next row needs a fresh one.
    pub fn room_rows(&self) -> u64 {
        self.room() / self.config.stride
    }

    fn room(&self) -> u64 {
        let taken = |chunk: &Chunk| self.config.capacity() - chunk.written;
        self.open.as_ref().map_or(0, taken) - self.buffer.len() as u64
    }

    /// Takes rows, one behind the other; they may be lost until [`DenseWriter::drain`].
    ///
    /// `next` gives the number of a fresh chunk whenever one is needed. Bytes that are no
    /// whole rows are `Invalid`, and nothing is taken.
    pub fn push(&mut self, mut rows: &[u8], next: &mut dyn FnMut() -> Result<u32>) -> Result<()> {
        self.failure.check()?;
        if !(rows.len() as u64).is_multiple_of(self.config.stride) {
            return Err(Error::Invalid(format!(
                "{} bytes are not a multiple of the row size, {} bytes",
                rows.len(),
                self.config.stride
            )));
        }
        while !rows.is_empty() {
            let mut room = self.room();
            if room == 0 {
                self.begin(next).record_in(&self.failure)?;
                room = self.config.capacity();
            }
            let part = usize::try_from(room).map_or(rows.len(), |room| room.min(rows.len()));
            let (now, later) = rows.split_at(part);
            if self.buffer.len() + now.len() <= ROOM {
                self.buffer.extend_from_slice(now);
            } else {
                self.take(now).record_in(&self.failure)?;
            }
            rows = later;
        }
        Ok(())
    }

    /// The chunk in use is full, or there is none: begins the next.
    fn begin(&mut self, next: &mut dyn FnMut() -> Result<u32>) -> Result<()> {
        self.write_buffer()?;
        if let Some(mut chunk) = self.open.take() {
            chunk.write_crcs()?;
            // An earlier writer may have made too much room.
            chunk.data.trim(chunk.position())?;
            self.full.push(chunk);
            if self.full.len() > HELD {
                let oldest = self.full.remove(0);
                oldest.data.sync()?;
                oldest.crcs.sync()?;
                self.closed.extend(oldest.uncommitted(&self.config));
            }
        }
        let number = next()?;
        self.open = Some(Chunk::create(&self.config, number)?);
        self.created.push(number);
        Ok(())
    }

    /// More than the buffer has room for.
    fn take(&mut self, mut rows: &[u8]) -> Result<()> {
        self.write_buffer()?;
        while rows.len() >= ROOM {
            // Behind the first piece all begin with a block, and so with a page.
            let written = self.open.as_ref().map_or(0, |chunk| chunk.written);
            let (now, later) = rows.split_at(PIECE - (written % PIECE as u64) as usize);
            // The caller's memory is read once, and what was read is summed and written:
            // another thread that changes it meanwhile gets whatever it gets, with a checksum
            // that holds. The copy is in the cache for the other two.
            self.buffer.extend_from_slice(now);
            self.write_buffer()?;
            rows = later;
        }
        self.buffer.extend_from_slice(rows);
        Ok(())
    }

    fn write_buffer(&mut self) -> Result<()> {
        if let Some(chunk) = &mut self.open
            && !self.buffer.is_empty()
        {
            chunk.write(&self.config, &self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }

    /// Gives everything to the operating system: it survives the end of this process.
    pub fn drain(&mut self) -> Result<()> {
        self.failure.check()?;
        self.write_buffer()
            .and_then(|()| match &mut self.open {
                Some(chunk) => chunk.write_crcs(),
                None => Ok(()),
            })
            .record_in(&self.failure)
    }

    /// The chunks that were made since this was last asked, in the order of their rows.
    pub fn created(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.created)
    }

    /// How far chunks are written that changed since [`DenseWriter::committed`], as of the
    /// last [`DenseWriter::drain`].
    pub fn positions(&self) -> Vec<Position> {
        debug_assert!(self.buffer.is_empty(), "rows were pushed since the last drain");
        self.uncommitted().map(|chunk| chunk.last).collect()
    }

    /// What [`DenseWriter::positions`] said is in the journal.
    pub fn committed(&mut self) {
        for chunk in self.full.iter_mut().chain(&mut self.open) {
            chunk.committed = chunk.position();
        }
        self.closed.clear();
        self.forget();
    }

    /// Files with bytes that the disk may not have, to be synced together with others.
    pub fn unsynced(&self) -> Vec<Arc<Growing>> {
        let files = self.chunks().flat_map(|chunk| [&chunk.data, &chunk.crcs]);
        files.filter(|file| file.is_dirty()).map(Arc::clone).collect()
    }

    /// Gives everything that is drained to the disk: it survives a power cut.
    pub fn sync(&mut self) -> Result<()> {
        self.failure.check()?;
        durable::sync_all(&self.unsynced()).record_in(&self.failure)?;
        self.forget();
        Ok(())
    }

    /// Cuts the files to what is committed. The rest is lost, and no more rows are taken
    /// if there was any.
    pub fn trim(&mut self) -> Result<()> {
        if !self.buffer.is_empty() || self.uncommitted().next().is_some() {
            let text = "uncommitted rows were discarded: open the store again";
            let _ = Err::<(), _>(Error::Closed(text.into())).record_in(&self.failure);
        }
        self.buffer.clear();
        let crc_bytes = |position: u64| (position - PAGE) / BLOCK * 4;
        for chunk in &self.closed {
            let (data, crcs) = chunk_paths(&self.config.folder, chunk.last.chunk);
            Growing::open(&data)?.trim(chunk.committed)?;
            Growing::open(&crcs)?.trim(crc_bytes(chunk.committed))?;
        }
        for chunk in self.chunks() {
            chunk.data.trim(chunk.committed)?;
            chunk.crcs.trim(crc_bytes(chunk.committed))?;
        }
        Ok(())
    }

    fn uncommitted(&self) -> impl Iterator<Item = Uncommitted> {
        let open = self.chunks().filter_map(|chunk| chunk.uncommitted(&self.config));
        self.closed.iter().cloned().chain(open)
    }

    fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.full.iter().chain(&self.open)
    }

    /// Closes full chunks of which nothing more is to be said.
    fn forget(&mut self) {
        self.full.retain(|chunk| {
            let settled = chunk.position() == chunk.committed
                && !chunk.data.is_dirty()
                && !chunk.crcs.is_dirty();
            !settled
        });
    }
}

/// A chunk that is written to.
struct Chunk {
    number: u32,
    data: Arc<Growing>,
    crcs: Arc<Growing>,
    /// Bytes of rows in the file.
    written: u64,
    /// Of the written bytes behind the last full block.
    running: Crc32c,
    /// Checksums of full blocks that are not in their file yet.
    waiting: Vec<u32>,
    /// The position that was last committed.
    committed: u64,
}

impl Chunk {
    fn create(config: &DenseConfig, number: u32) -> Result<Self> {
        let (data, crcs) = chunk_paths(&config.folder, number);
        let (data, crcs) = (Growing::create(&data)?, Growing::create(&crcs)?);
        data.reserve(PAGE, PAGE + config.capacity())?;
        data.write_at(&config.header(number).to_page(), 0)?;
        Ok(Self {
            number,
            data: Arc::new(data),
            crcs: Arc::new(crcs),
            written: 0,
            running: Crc32c::default(),
            waiting: Vec::new(),
            committed: PAGE,
        })
    }

    fn resume(config: &DenseConfig, last: &Position) -> Result<Self> {
        let (data, crcs) = chunk_paths(&config.folder, last.chunk);
        let (data, crcs) = (Growing::open(&data)?, Growing::open(&crcs)?);
        let corrupt = |file: &Growing, text: &str| {
            Error::Corrupt(format!("`{}`: {text}", file.path().display()))
        };
        let written = last.records.checked_mul(config.stride);
        let Some(written) = written.filter(|&bytes| {
            bytes <= config.capacity() && last.position.checked_sub(PAGE) == Some(bytes)
        }) else {
            return Err(corrupt(&data, "the number of its rows does not match its write position"));
        };
        check_header(&data, config.header(last.chunk))?;
        if data.size() < last.position {
            return Err(corrupt(&data, "it is shorter than the committed length"));
        }
        if crcs.size() < written / BLOCK * 4 {
            return Err(corrupt(&crcs, "checksums of some blocks are missing"));
        }
        let mut tail = vec![0; (written % BLOCK) as usize];
        data.read_at(&mut tail, last.position - written % BLOCK)?;
        let mut running = Crc32c::default();
        running.update(&tail);
        let chunk = Self {
            number: last.chunk,
            data: Arc::new(data),
            crcs: Arc::new(crcs),
            written,
            running,
            waiting: Vec::new(),
            committed: last.position,
        };
        if chunk.tail() != last.tail {
            return Err(corrupt(&chunk.data, "the checksum of its last block does not match"));
        }
        Ok(chunk)
    }

    fn position(&self) -> u64 {
        PAGE + self.written
    }

    /// What the next Commit has to say of it, if anything.
    fn uncommitted(&self, config: &DenseConfig) -> Option<Uncommitted> {
        let last = Position {
            chunk: self.number,
            tail: self.tail(),
            position: self.position(),
            records: self.written / config.stride,
        };
        (self.position() != self.committed)
            .then_some(Uncommitted { last, committed: self.committed })
    }

    /// The checksum of the partial block; 0 where there is none.
    fn tail(&self) -> u32 {
        if self.written.is_multiple_of(BLOCK) { 0 } else { self.running.value() }
    }

    /// Writes bytes, which may begin and end within blocks.
    fn write(&mut self, config: &DenseConfig, bytes: &[u8]) -> Result<()> {
        let end = self.position() + bytes.len() as u64;
        self.data.reserve(end, PAGE + config.capacity())?;
        self.data.write_at(bytes, self.position())?;
        let mut rest = bytes;
        while !rest.is_empty() {
            let left = (BLOCK - self.written % BLOCK) as usize;
            let (now, later) = rest.split_at(left.min(rest.len()));
            self.written += now.len() as u64;
            if now.len() == BLOCK as usize {
                self.waiting.push(crc32c(now));
            } else {
                self.running.update(now);
                if now.len() == left {
                    self.waiting.push(self.running.value());
                    self.running = Crc32c::default();
                }
            }
            rest = later;
        }
        Ok(())
    }

    fn write_crcs(&mut self) -> Result<()> {
        if !self.waiting.is_empty() {
            let bytes: Vec<u8> = self.waiting.iter().flat_map(|crc| crc.to_le_bytes()).collect();
            let blocks = self.written / BLOCK - self.waiting.len() as u64;
            self.crcs.write_at(&bytes, blocks * 4)?;
            self.waiting.clear();
        }
        Ok(())
    }
}

/// Refuses a file that does not begin with this header.
pub fn check_header(file: &Growing, header: ChunkHeader) -> Result<()> {
    let mut page = vec![0; PAGE as usize];
    file.read_at(&mut page, 0)?;
    let found = ChunkHeader::parse(&page)
        .map_err(|error| error.about(format_args!("`{}`", file.path().display())))?;
    if found != header {
        return Err(Error::Corrupt(format!(
            "`{}` is a chunk of another number, field or store",
            file.path().display()
        )));
    }
    Ok(())
}
