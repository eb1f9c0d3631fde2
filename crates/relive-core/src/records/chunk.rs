//! A chunk that is open for reading, and which parts of it were verified.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use super::bit_set::AtomicBitSet;
use super::layout::{
    ALIGN, BLOCK, ChunkHeader, ChunkKind, Entry, PAGE, RECORD_BYTES, RecordHeader, Uid, check_zeros,
};
use super::mapped_region::{MappedRegion, UNIT};
use crate::crc::{Crc32c, crc32c};
use crate::{Error, Result, durable};

/// Records in heap chunks are at least this long, so each has its own bit.
const GRANULE: u64 = RECORD_BYTES as u64;

/// The least address space that is reserved; otherwise it is twice of what is needed.
const LEAST_RESERVED: usize = 1 << 20;

/// Records are read in pieces of this size if only their checksum is needed.
const PIECE: usize = 1 << 20;

/// Returns the paths of a chunk and of its checksums in the folder of chunks.
pub fn chunk_paths(folder: &Path, number: u32) -> (PathBuf, PathBuf) {
    (folder.join(format!("{number}.zr")), folder.join(format!("{number}.crc")))
}

/// A chunk that is open for reading. Its committed bytes never change, so they are verified only
/// once. Thread-safe.
pub struct Chunk {
    path: PathBuf,
    crc_path: PathBuf,
    file: File,
    kind: ChunkKind,
    /// Dense: verified blocks; heap: granules in which a verified record starts.
    verified: AtomicBitSet,
    /// Dense: all blocks below this are verified.
    leading: AtomicU64,
    /// Dense: the last block is verified up to this position.
    tail: AtomicU64,
    /// The bytes that this process has written.
    trusted: Mutex<Option<Range<u64>>>,
    trusted_start: AtomicU64,
    trusted_end: AtomicU64,
    /// The file had at least this many bytes.
    seen: AtomicU64,
    crcs: RwLock<Vec<u32>>,
    /// Heap: the mapped memory, and how many bytes are mapped.
    mapped: Mutex<Option<(Arc<MappedRegion>, usize)>>,
}

impl Chunk {
    /// Opens a chunk and checks that it is the expected one.
    pub fn open(folder: &Path, number: u32, uid: &Uid, kind: ChunkKind) -> Result<Self> {
        let (path, crc_path) = chunk_paths(&folder.join("chunk"), number);
        let file = open_file(&path)?;
        let mut page = vec![0; PAGE as usize];
        read_exact(&file, &path, 0, &mut page)?;
        let header = ChunkHeader::parse(&page).map_err(|error| error.in_file(&path))?;
        if header != (ChunkHeader { number, uid: *uid, kind }) {
            let text = "the file belongs to another chunk number, field or record store";
            return Err(Error::Corrupt(text.into()).in_file(&path));
        }
        Ok(Self {
            crc_path,
            path,
            file,
            kind,
            verified: AtomicBitSet::default(),
            leading: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            trusted: Mutex::new(None),
            trusted_start: AtomicU64::new(u64::MAX),
            trusted_end: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            crcs: RwLock::default(),
            mapped: Mutex::new(None),
        })
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the kind.
    pub fn kind(&self) -> ChunkKind {
        self.kind
    }

    /// Checks that the file has all committed bytes; else `Corrupt`.
    pub fn check_size(&self, position: u64) -> Result<()> {
        let len = self.file_bytes()?;
        if len < position {
            return Err(cut_short(&self.path, len, position));
        }
        self.seen.fetch_max(position, Ordering::Relaxed);
        Ok(())
    }

    /// Checks the size like [`check_size`](Self::check_size), unless that was done before.
    pub fn check_size_once(&self, position: u64) -> Result<()> {
        if self.seen.load(Ordering::Relaxed) >= position {
            Ok(())
        } else {
            self.check_size(position)
        }
    }

    /// Returns the size of the file.
    pub fn file_bytes(&self) -> Result<u64> {
        let failed = |error| durable::about(&self.path, &error);
        // A seek takes a third of the time of `metadata`, and no read depends on the position.
        (&self.file).seek(SeekFrom::End(0)).map_err(failed)
    }

    /// Reads the bytes from `offset` on into `out`.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        read_exact(&self.file, &self.path, offset, out)
    }

    /// Marks bytes that this process has written as verified: one range, which grows.
    pub fn trust(&self, written: Range<u64>) {
        let mut trusted = self.trusted.lock().unwrap_or_else(PoisonError::into_inner);
        let joined = match trusted.take() {
            Some(before) if before.start == written.start && before.end < written.end => written,
            Some(before) => before,
            None => written,
        };
        if matches!(self.kind, ChunkKind::Dense { .. }) {
            let first = joined.start.saturating_sub(PAGE).div_ceil(BLOCK);
            let full = joined.end.saturating_sub(PAGE) / BLOCK;
            // The blocks of earlier calls precede those of this call.
            for block in (first..full).rev() {
                if !self.verified.set(block) {
                    break;
                }
            }
            if full * BLOCK + PAGE >= joined.start {
                self.tail.fetch_max(joined.end, Ordering::Relaxed);
            }
        } else {
            // The start never changes, so any mix of old and new values is valid.
            self.trusted_start.store(joined.start, Ordering::Relaxed);
            self.trusted_end.store(joined.end, Ordering::Relaxed);
        }
        *trusted = Some(joined);
    }

    /// Returns whether a block of a dense chunk was verified.
    #[inline]
    pub fn has_block(&self, block: u64) -> bool {
        self.verified.has(block)
    }

    /// Returns whether all of the first `blocks` blocks were verified.
    pub fn has_blocks(&self, blocks: u64) -> bool {
        let mut leading = self.leading.load(Ordering::Relaxed);
        while leading < blocks && self.verified.has(leading) {
            leading += 1;
        }
        self.leading.fetch_max(leading, Ordering::Relaxed);
        leading >= blocks
    }

    /// Returns whether the partial block below `position` was verified up to there.
    pub fn has_tail(&self, position: u64) -> bool {
        let inside = position.saturating_sub(PAGE);
        let end = inside.next_multiple_of(BLOCK) + PAGE;
        inside.is_multiple_of(BLOCK)
            || (position..=end).contains(&self.tail.load(Ordering::Relaxed))
    }

    /// Compares the bytes of a full block with its checksum.
    pub fn verify_block(&self, block: u64, bytes: &[u8]) -> Result<()> {
        if crc32c(bytes) != self.block_crc(block)? {
            return Err(self.bad_block(block));
        }
        self.verified.set(block);
        Ok(())
    }

    /// Compares the bytes of the partial block below `position` with their checksum.
    pub fn verify_tail(&self, position: u64, tail: u32, bytes: &[u8]) -> Result<()> {
        if crc32c(bytes) != tail {
            return Err(self.bad_block((position - PAGE) / BLOCK));
        }
        self.note_tail(position);
        Ok(())
    }

    /// Notes that a full block was verified.
    pub fn note_block(&self, block: u64) {
        self.verified.set(block);
    }

    /// Notes that the partial block below `position` was verified.
    pub fn note_tail(&self, position: u64) {
        self.tail.fetch_max(position, Ordering::Relaxed);
    }

    /// Returns the error for a block whose checksum does not match.
    pub fn bad_block(&self, block: u64) -> Error {
        let start = PAGE.saturating_add(block.saturating_mul(BLOCK));
        Error::Corrupt(format!(
            "`{}`: the checksum of the block at offset {start} does not match",
            self.path.display()
        ))
    }

    /// Returns the checksum of a full block.
    pub fn block_crc(&self, block: u64) -> Result<u32> {
        let find = || {
            let crcs = self.crcs.read().unwrap_or_else(PoisonError::into_inner);
            crcs.get(usize::try_from(block).ok()?).copied()
        };
        if let Some(crc) = find() {
            return Ok(crc);
        }
        self.load_crcs(block + 1)?;
        find().ok_or_else(|| {
            let text = format!("the file ends before the checksum of block {block}");
            Error::Corrupt(text).in_file(&self.crc_path)
        })
    }

    /// Reads the checksums of the first `blocks` blocks, all of them committed: others may still
    /// change.
    pub fn load_crcs(&self, blocks: u64) -> Result<()> {
        let mut crcs = self.crcs.write().unwrap_or_else(PoisonError::into_inner);
        let have = crcs.len() as u64;
        if have >= blocks {
            return Ok(());
        }
        let failed = |error: std::io::Error| durable::about(&self.crc_path, &error);
        let mut file = open_file(&self.crc_path)?;
        file.seek(SeekFrom::Start(have * 4)).map_err(failed)?;
        let mut bytes = Vec::new();
        file.take((blocks - have) * 4).read_to_end(&mut bytes).map_err(failed)?;
        crcs.extend(bytes.as_chunks::<4>().0.iter().map(|crc| u32::from_le_bytes(*crc)));
        Ok(())
    }

    /// Returns whether the record at an offset of a heap chunk was verified.
    #[inline]
    pub fn has_record(&self, offset: u64) -> bool {
        self.verified.has(offset / GRANULE)
            || (offset >= self.trusted_start.load(Ordering::Relaxed)
                && offset < self.trusted_end.load(Ordering::Relaxed))
    }

    /// Notes that a record was verified.
    pub fn note_record(&self, offset: u64) {
        self.verified.set(offset / GRANULE);
    }

    /// Verifies a record without returning it; the file has bytes up to `end`.
    pub fn verify_record(
        &self,
        entry: Entry,
        field: u16,
        end: u64,
        window: &mut Window,
    ) -> Result<()> {
        let Entry { offset, length, .. } = entry;
        let damaged = |text: String| Error::Corrupt(text).in_file(&self.path);
        if (length as usize) < RECORD_BYTES || entry.end() > end {
            return Err(damaged(format!(
                "the record at offset {offset} is outside the committed part of the file"
            )));
        }
        let first = window.piece(self, offset, length as usize, end)?;
        let header = RecordHeader::parse(first).map_err(|_| self.bad_header(offset))?;
        if header.total() != u64::from(length) || header.field != field {
            return Err(damaged(format!(
                "the record at offset {offset} has the wrong field id or size"
            )));
        }
        let mut digest = Crc32c::default();
        digest.update(&first[..28]);
        digest.update(&first[RECORD_BYTES..]);
        let mut done = first.len();
        while done < length as usize {
            let piece = window.piece(self, offset + done as u64, length as usize - done, end)?;
            digest.update(piece);
            done += piece.len();
        }
        if digest.value() != header.crc {
            return Err(damaged(format!(
                "the checksum of the record at offset {offset} does not match"
            )));
        }
        self.note_record(offset);
        Ok(())
    }

    /// Checks every byte below `position` that was not verified before, also values that no row
    /// has any more, and that all bytes without data are zero. `tail` is the checksum of the
    /// partial block. `progress` is called about once per mebibyte; its error ends the check.
    pub fn check_all(
        &self,
        position: u64,
        tail: u32,
        progress: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let mut page = vec![0; PAGE as usize];
        self.read(0, &mut page)?;
        check_zeros(&page).map_err(|error| error.in_file(&self.path))?;
        if self.kind == ChunkKind::Heap {
            let mut next = PAGE;
            return self.check_records(PAGE..position, &mut |entry, field, window| {
                if entry.offset >= next {
                    progress()?;
                    next = entry.offset + PIECE as u64;
                }
                if self.has_record(entry.offset) {
                    return Ok(());
                }
                self.verify_record(entry, field, position, window)
            });
        }
        let written = position.saturating_sub(PAGE);
        let mut bytes = vec![0; BLOCK as usize];
        for block in (0..written / BLOCK).filter(|&block| !self.has_block(block)) {
            if block.is_multiple_of(PIECE as u64 / BLOCK) {
                progress()?;
            }
            self.read(PAGE + block * BLOCK, &mut bytes)?;
            self.verify_block(block, &bytes)?;
        }
        bytes.truncate((written % BLOCK) as usize);
        if bytes.is_empty() {
            return Ok(());
        }
        self.read(position - bytes.len() as u64, &mut bytes)?;
        self.verify_tail(position, tail, &bytes)
    }

    /// Calls `check` with the entry and the field of each record between two write positions of a
    /// heap chunk, and checks that the bytes between records are zero.
    pub fn check_records(
        &self,
        written: Range<u64>,
        check: &mut dyn FnMut(Entry, u16, &mut Window) -> Result<()>,
    ) -> Result<()> {
        let Range { start: mut end, end: position } = written;
        let mut window = Window::default();
        while end < position {
            let offset = end.next_multiple_of(ALIGN).min(position);
            let zeros = window.piece(self, end, (offset - end) as usize, position)?;
            if zeros.iter().any(|&byte| byte != 0) {
                return Err(Error::Corrupt(format!(
                    "the bytes at offset {end} are not zero, but no data is stored there"
                ))
                .in_file(&self.path));
            }
            if offset == position {
                break;
            }
            let wanted = RECORD_BYTES.min((position - offset) as usize);
            let header = RecordHeader::parse(window.piece(self, offset, wanted, position)?)
                .map_err(|_| self.bad_header(offset))?;
            let length = u32::try_from(header.total()).map_err(|_| self.bad_header(offset))?;
            let entry = Entry { chunk: 0, offset, length };
            if entry.end() > position {
                return Err(self.bad_header(offset));
            }
            check(entry, header.field, &mut window)?;
            end = entry.end();
        }
        Ok(())
    }

    fn bad_header(&self, offset: u64) -> Error {
        let text = format!("the header of the record at offset {offset} is damaged");
        Error::Corrupt(text).in_file(&self.path)
    }

    /// Heap: maps the file into memory; bytes below `position` may be read.
    pub fn map(&self, position: u64) -> Result<Arc<MappedRegion>> {
        let needed = mapped_bytes(position).ok_or_else(|| self.too_large())?;
        let failed = |error| durable::about(&self.path, &error);
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        let (region, before) = match mapped.take() {
            Some((region, before)) if region.reserved() >= needed => (region, before),
            _ => (Arc::new(reserve(needed).map_err(failed)?), 0),
        };
        if needed > before {
            region.map(before, &self.file, before as u64, needed - before).map_err(failed)?;
        }
        *mapped = Some((Arc::clone(&region), needed.max(before)));
        Ok(region)
    }

    fn too_large(&self) -> Error {
        Error::TooLarge(format!("`{}` is too large to map into memory", self.path.display()))
    }
}

/// The piece of a chunk that was read last, which usually has the next records too.
#[derive(Default)]
pub struct Window {
    start: u64,
    bytes: Vec<u8>,
}

impl Window {
    /// Returns the bytes from `offset` on: `length` or the size of a piece, whichever is less. The
    /// file has bytes up to `end`.
    fn piece(&mut self, chunk: &Chunk, offset: u64, length: usize, end: u64) -> Result<&[u8]> {
        let wanted = length.min(PIECE);
        let known = self.start..self.start + self.bytes.len() as u64;
        if offset < known.start || offset + wanted as u64 > known.end {
            let room = usize::try_from(end - offset).map_or(PIECE, |left| left.min(PIECE));
            self.bytes.resize(room, 0);
            self.start = offset;
            chunk.read(offset, &mut self.bytes)?;
        }
        let from = (offset - self.start) as usize;
        Ok(&self.bytes[from..from + wanted])
    }
}

/// Rounds up to whole pages.
pub fn mapped_bytes(bytes: u64) -> Option<usize> {
    usize::try_from(bytes).ok()?.checked_next_multiple_of(UNIT)
}

/// Reserves addresses for `needed` bytes, and if possible for as many more.
pub fn reserve(needed: usize) -> std::io::Result<MappedRegion> {
    let wanted = needed.saturating_mul(2).max(LEAST_RESERVED);
    MappedRegion::reserve(wanted).or_else(|_| MappedRegion::reserve(needed))
}

/// Opens a file of a store; `Corrupt` if it is missing.
pub fn open_file(path: &Path) -> Result<File> {
    durable::open(path).map_err(|error| match error.kind() {
        "not-found" => Error::Corrupt(format!("`{}` is missing", path.display())),
        _ => error,
    })
}

/// Reads bytes of a file into `out`; `Corrupt` if the file is too short.
pub fn read_exact(file: &File, path: &Path, offset: u64, out: &mut [u8]) -> Result<()> {
    file.read_exact_at(out, offset).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => {
            let len = file.metadata().map_or(offset, |metadata| metadata.len());
            cut_short(path, len, offset.saturating_add(out.len() as u64))
        }
        _ => durable::about(path, &error),
    })
}

fn cut_short(path: &Path, len: u64, wanted: u64) -> Error {
    Error::Corrupt(format!("`{}` has {len} bytes, expected at least {wanted}", path.display()))
}
