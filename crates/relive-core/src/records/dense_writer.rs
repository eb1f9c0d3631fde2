//! Appends rows to the chunks of a dense field.

use std::path::PathBuf;

use super::chunk_writer::ChunkWriter;
use super::journal_records::Position;
use super::layout::{ChunkHeader, ChunkKind, PAGE, Uid};
use crate::durable;
use crate::latch::{Latch, RecordIn};
use crate::{Error, Result};

#[cfg(test)]
mod tests;

/// Rows are buffered up to this many bytes.
///
/// More threads would not help: checksums are several times faster than writes, and the kernel
/// lets one thread at a time write to a file.
const BUFFER_BYTES: usize = 1 << 20;

/// More rows are copied, checksummed and written in slices that stay in the cache.
const SLICE_BYTES: usize = 256 * 1024;

/// The location and the layout of the chunks of a dense field.
#[derive(Clone, Debug)]
pub struct DenseConfig {
    /// The folder of the chunks.
    pub folder: PathBuf,
    /// The uid of their store.
    pub uid: Uid,
    /// Id of the field.
    pub field: u16,
    /// Bytes of a row.
    pub stride: u64,
    /// Rows of a chunk; their size is a multiple of [`PAGE`] bytes.
    pub rows: u64,
}

impl DenseConfig {
    fn header(&self, number: u32) -> ChunkHeader {
        let kind = ChunkKind::Dense { field: self.field, stride: self.stride, rows: self.rows };
        ChunkHeader { number, uid: self.uid, kind }
    }

    /// Bytes of a full chunk.
    fn chunk_bytes(&self) -> u64 {
        PAGE + self.stride * self.rows
    }
}

/// Appends rows to the chunks of one dense field.
///
/// After an error, every further call but [`DenseWriter::trim`] is refused.
pub struct DenseWriter {
    config: DenseConfig,
    pub(super) chunks: ChunkWriter,
    failure: Latch,
}

impl DenseWriter {
    /// Makes a writer that starts with a new chunk. The config must be that of a dense chunk.
    pub fn new(config: DenseConfig) -> Self {
        let chunks = ChunkWriter::new(&config.folder);
        Self { config, chunks, failure: Latch::default() }
    }

    /// Continues a chunk of an earlier writer after `last`.
    ///
    /// `Corrupt` if the file is not that chunk, is too short, or its checksum does not match.
    pub fn resume(&mut self, last: &Position) -> Result<()> {
        let header = self.config.header(last.chunk);
        self.chunks.resume(header, self.config.chunk_bytes(), last)
    }

    /// Returns how many rows fit in the open chunk; 0 if the next row needs a new one.
    fn room(&self) -> u64 {
        self.chunks.open.as_ref().map_or(0, |chunk| self.config.rows - chunk.records)
    }

    /// Appends rows, which may be lost until [`DenseWriter::drain`].
    ///
    /// `next` returns the number of a new chunk whenever one is needed. Bytes that are not whole
    /// rows are `Invalid`, and nothing is appended.
    pub fn push(&mut self, mut rows: &[u8], next: &mut dyn FnMut() -> Result<u32>) -> Result<()> {
        self.failure.check()?;
        let stride = self.config.stride;
        if !(rows.len() as u64).is_multiple_of(stride) {
            return Err(Error::Invalid(format!(
                "{} bytes is not a multiple of the row size, {stride} bytes",
                rows.len()
            )));
        }
        while !rows.is_empty() {
            if self.room() == 0 {
                self.begin(next).record_in(&self.failure)?;
            }
            let room = usize::try_from(self.room() * stride).unwrap_or(usize::MAX);
            let (now, later) = rows.split_at(room.min(rows.len()));
            self.take(now).record_in(&self.failure)?;
            rows = later;
        }
        Ok(())
    }

    /// Starts the next chunk: the open one is full, or there is none.
    fn begin(&mut self, next: &mut dyn FnMut() -> Result<u32>) -> Result<()> {
        self.chunks.finish()?;
        let number = next()?;
        self.chunks.create(self.config.header(number), self.config.chunk_bytes())
    }

    /// Buffers or writes rows for which the open chunk has room.
    fn take(&mut self, mut rows: &[u8]) -> Result<()> {
        if let Some(chunk) = &mut self.chunks.open {
            chunk.records += rows.len() as u64 / self.config.stride;
        }
        if self.chunks.buffer.len() + rows.len() > BUFFER_BYTES {
            self.chunks.flush()?;
        }
        while rows.len() >= BUFFER_BYTES {
            // All slices but the first start with a block, and so with a page.
            let written = self.chunks.open.as_ref().map_or(0, |chunk| chunk.position - PAGE);
            let (now, later) = rows.split_at(SLICE_BYTES - (written % SLICE_BYTES as u64) as usize);
            // The caller's memory is read once, and the copy is checksummed and written. So the
            // checksum is right even if another thread changes that memory meanwhile.
            self.chunks.buffer.extend_from_slice(now);
            self.chunks.flush()?;
            rows = later;
        }
        self.chunks.buffer.extend_from_slice(rows);
        Ok(())
    }

    /// Writes everything to the files, so that it survives the end of this process.
    pub fn drain(&mut self) -> Result<()> {
        self.failure.check()?;
        self.chunks.drain().record_in(&self.failure)
    }

    /// Makes everything that is drained survive a power cut.
    pub fn sync(&mut self) -> Result<()> {
        self.failure.check()?;
        durable::sync_all(&self.chunks.unsynced()).record_in(&self.failure)?;
        self.chunks.close_finished();
        Ok(())
    }

    /// Truncates the files to what is committed. If anything was lost, no more rows are accepted.
    pub fn trim(&mut self) -> Result<()> {
        if self.chunks.trim().record_in(&self.failure)? {
            let text = "uncommitted rows were discarded: open the store again";
            self.failure.keep(Error::Closed(text.into()));
        }
        Ok(())
    }
}
