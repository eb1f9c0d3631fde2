//! Appends bytes to chunk files, one chunk after the other, through a buffer.
//!
//! Bytes are only appended, so committed bytes are never written again. The checksum of a block
//! of a dense chunk is computed when the block is full; that of the last, partial block is kept
//! up to date.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::chunk::chunk_paths;
use super::journal_records::Position;
use super::layout::{BLOCK, ChunkHeader, ChunkKind, PAGE};
use crate::crc::{Crc32c, crc32c};
use crate::durable::Growing;
use crate::{Error, Result};

/// The most full chunks that stay open until the next sync. The oldest of more is synced before
/// it is closed, since errors of its writes are lost when the file is closed.
pub(super) const MAX_OPEN: usize = 16;

/// The write position of a chunk that changed since the last Commit.
#[derive(Clone)]
struct Uncommitted {
    last: Position,
    /// The committed position.
    committed: u64,
}

/// Appends to chunks of one kind.
pub(super) struct ChunkWriter {
    folder: PathBuf,
    /// The chunk that is appended to.
    pub(super) open: Option<ChunkFile>,
    /// Full chunks with bytes that are not committed or not synced.
    pub(super) full: Vec<ChunkFile>,
    /// Full chunks that were closed before they were committed.
    closed: Vec<Uncommitted>,
    /// Bytes that follow those that `open` has written.
    pub(super) buffer: Vec<u8>,
    created: Vec<u32>,
}

impl ChunkWriter {
    /// Makes a writer for chunks in `folder`.
    pub(super) fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_path_buf(),
            open: None,
            full: Vec::new(),
            closed: Vec::new(),
            buffer: Vec::new(),
            created: Vec::new(),
        }
    }

    /// Starts a new chunk after [`finish`](Self::finish). Its file is allocated up to `limit`
    /// bytes in advance.
    pub(super) fn create(&mut self, header: ChunkHeader, limit: u64) -> Result<()> {
        self.open = Some(ChunkFile::create(&self.folder, header, limit)?);
        self.created.push(header.number);
        Ok(())
    }

    /// Continues a chunk of an earlier writer after `last`.
    ///
    /// `Corrupt` if the file is not that chunk, is too short, or its checksum does not match.
    pub(super) fn resume(
        &mut self,
        header: ChunkHeader,
        limit: u64,
        last: &Position,
    ) -> Result<()> {
        self.open = Some(ChunkFile::resume(&self.folder, header, limit, last)?);
        Ok(())
    }

    /// Writes everything to the open chunk, which is full.
    pub(super) fn finish(&mut self) -> Result<()> {
        self.drain()?;
        if let Some(chunk) = self.open.take() {
            // An earlier writer may have allocated too much.
            chunk.data.trim(chunk.position)?;
            self.full.push(chunk);
            if self.full.len() > MAX_OPEN {
                let oldest = self.full.remove(0);
                oldest.files().try_for_each(|file| file.sync())?;
                self.closed.extend(oldest.uncommitted());
            }
        }
        Ok(())
    }

    /// Writes the buffer to the open chunk.
    pub(super) fn flush(&mut self) -> Result<()> {
        if let Some(chunk) = &mut self.open
            && !self.buffer.is_empty()
        {
            chunk.write(&self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }

    /// Writes the buffer and the checksums, so that they survive the end of this process.
    pub(super) fn drain(&mut self) -> Result<()> {
        self.flush()?;
        self.open.as_mut().map_or(Ok(()), ChunkFile::write_crcs)
    }

    /// Returns the chunks that were created since the last call, in order.
    pub(super) fn created(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.created)
    }

    /// Returns the write positions of chunks that changed since [`committed`](Self::committed), as
    /// of the last [`drain`](Self::drain).
    pub(super) fn positions(&self) -> Vec<Position> {
        let open = self.chunks().filter_map(ChunkFile::uncommitted);
        self.closed.iter().cloned().chain(open).map(|chunk| chunk.last).collect()
    }

    /// Notes that the [`positions`](Self::positions) are in the journal.
    pub(super) fn committed(&mut self) {
        for chunk in self.full.iter_mut().chain(&mut self.open) {
            chunk.committed = chunk.position;
        }
        self.closed.clear();
        self.close_finished();
    }

    /// Returns files with bytes that may not be on the disk, to be synced with others.
    pub(super) fn unsynced(&self) -> Vec<Arc<Growing>> {
        let files = self.chunks().flat_map(ChunkFile::files);
        files.filter(|file| file.is_dirty()).cloned().collect()
    }

    /// Closes full chunks that are committed and synced.
    pub(super) fn close_finished(&mut self) {
        self.full.retain(|chunk| {
            chunk.position != chunk.committed || chunk.files().any(|file| file.is_dirty())
        });
    }

    /// Truncates the files to what is committed. Returns whether something was lost.
    pub(super) fn trim(&mut self) -> Result<bool> {
        let mut lost = !self.buffer.is_empty() || !self.closed.is_empty();
        self.buffer.clear();
        for chunk in &self.closed {
            let (data, crcs) = chunk_paths(&self.folder, chunk.last.chunk);
            Growing::open(&data)?.trim(chunk.committed)?;
            if crcs.exists() {
                Growing::open(&crcs)?.trim(crc_bytes(chunk.committed))?;
            }
        }
        for chunk in self.chunks() {
            lost |= chunk.position != chunk.committed;
            chunk.data.trim(chunk.committed)?;
            chunk.crcs.iter().try_for_each(|crcs| crcs.file.trim(crc_bytes(chunk.committed)))?;
        }
        Ok(lost)
    }

    fn chunks(&self) -> impl Iterator<Item = &ChunkFile> {
        self.full.iter().chain(&self.open)
    }
}

/// A chunk that is being written.
pub(super) struct ChunkFile {
    pub(super) number: u32,
    pub(super) data: Arc<Growing>,
    /// Checksums of a dense chunk.
    crcs: Option<BlockCrcs>,
    /// The file is allocated in advance up to this size.
    limit: u64,
    /// End of the bytes in the file.
    pub(super) position: u64,
    /// Records in it, including buffered ones.
    pub(super) records: u64,
    /// The position that was last committed.
    committed: u64,
}

impl ChunkFile {
    fn create(folder: &Path, header: ChunkHeader, limit: u64) -> Result<Self> {
        let (data, crcs) = chunk_paths(folder, header.number);
        let data = Growing::create(&data)?;
        let crcs = is_dense(&header).then(|| Growing::create(&crcs)).transpose()?;
        data.reserve(PAGE, limit)?;
        data.write_at(&header.to_page(), 0)?;
        let start = Position { chunk: header.number, tail: 0, position: PAGE, records: 0 };
        Ok(Self::new(data, crcs, limit, &start))
    }

    fn resume(folder: &Path, header: ChunkHeader, limit: u64, last: &Position) -> Result<Self> {
        let (data, crcs) = chunk_paths(folder, header.number);
        let data = Growing::open(&data)?;
        let crcs = is_dense(&header).then(|| Growing::open(&crcs)).transpose()?;
        let corrupt = |file: &Growing, text: &str| Error::Corrupt(text.into()).in_file(file.path());
        let mut page = vec![0; PAGE as usize];
        data.read_at(&mut page, 0)?;
        if ChunkHeader::parse(&page).map_err(|error| error.in_file(data.path()))? != header {
            return Err(corrupt(
                &data,
                "the file belongs to another chunk number, field or record store",
            ));
        }
        if last.position < PAGE || data.size() < last.position {
            return Err(Error::Corrupt(format!(
                "`{}` has {} bytes, but {} bytes were committed",
                data.path().display(),
                data.size(),
                last.position
            )));
        }
        let mut chunk = Self::new(data, crcs, limit, last);
        let (ChunkKind::Dense { stride, rows, .. }, Some(crcs)) = (header.kind, &mut chunk.crcs)
        else {
            return Ok(chunk);
        };
        let written = last.position - PAGE;
        if last.records > rows || last.records * stride != written {
            return Err(corrupt(
                &chunk.data,
                "the number of its rows does not match its committed size",
            ));
        }
        if crcs.file.size() < crc_bytes(last.position) {
            return Err(corrupt(&crcs.file, "checksums of some blocks are missing"));
        }
        let mut tail = vec![0; (written % BLOCK) as usize];
        chunk.data.read_at(&mut tail, last.position - written % BLOCK)?;
        crcs.running.update(&tail);
        if chunk.tail() != last.tail {
            return Err(corrupt(&chunk.data, "the checksum of the last block does not match"));
        }
        Ok(chunk)
    }

    fn new(data: Growing, crcs: Option<Growing>, limit: u64, last: &Position) -> Self {
        let crcs = crcs.map(|file| BlockCrcs {
            file: Arc::new(file),
            running: Crc32c::default(),
            waiting: Vec::new(),
        });
        Self {
            number: last.chunk,
            data: Arc::new(data),
            crcs,
            limit,
            position: last.position,
            records: last.records,
            committed: last.position,
        }
    }

    fn files(&self) -> impl Iterator<Item = &Arc<Growing>> {
        std::iter::once(&self.data).chain(self.crcs.as_ref().map(|crcs| &crcs.file))
    }

    /// Returns its position for the next Commit, if it changed.
    fn uncommitted(&self) -> Option<Uncommitted> {
        let (chunk, position, records) = (self.number, self.position, self.records);
        let last = Position { chunk, tail: self.tail(), position, records };
        (position != self.committed).then_some(Uncommitted { last, committed: self.committed })
    }

    /// Returns the checksum of the partial block; 0 if there is none.
    fn tail(&self) -> u32 {
        let is_partial = !(self.position - PAGE).is_multiple_of(BLOCK);
        self.crcs.as_ref().filter(|_| is_partial).map_or(0, |crcs| crcs.running.value())
    }

    /// Writes bytes, which may start and end within blocks.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let end = self.position + bytes.len() as u64;
        self.data.reserve(end, self.limit)?;
        self.data.write_at(bytes, self.position)?;
        if let Some(crcs) = &mut self.crcs {
            crcs.update(self.position - PAGE, bytes);
        }
        self.position = end;
        Ok(())
    }

    fn write_crcs(&mut self) -> Result<()> {
        if let Some(crcs) = &mut self.crcs
            && !crcs.waiting.is_empty()
        {
            let bytes: Vec<u8> = crcs.waiting.iter().flat_map(|crc| crc.to_le_bytes()).collect();
            crcs.file.write_at(&bytes, crc_bytes(self.position) - bytes.len() as u64)?;
            crcs.waiting.clear();
        }
        Ok(())
    }
}

/// The checksums of the blocks of a dense chunk.
struct BlockCrcs {
    file: Arc<Growing>,
    /// Of the bytes after the last full block.
    running: Crc32c,
    /// Of full blocks, not in the file yet.
    waiting: Vec<u32>,
}

impl BlockCrcs {
    /// Adds bytes that follow the first `written` bytes of rows.
    fn update(&mut self, written: u64, mut rest: &[u8]) {
        let mut left = (BLOCK - written % BLOCK) as usize;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(left.min(rest.len()));
            if now.len() == BLOCK as usize {
                self.waiting.push(crc32c(now));
            } else {
                self.running.update(now);
                if now.len() == left {
                    self.waiting.push(self.running.value());
                    self.running = Crc32c::default();
                }
            }
            (rest, left) = (later, BLOCK as usize);
        }
    }
}

/// Returns the bytes of the checksums of all full blocks below a position.
fn crc_bytes(position: u64) -> u64 {
    (position - PAGE) / BLOCK * 4
}

fn is_dense(header: &ChunkHeader) -> bool {
    matches!(header.kind, ChunkKind::Dense { .. })
}
