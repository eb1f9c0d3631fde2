//! One chunk that is open for reading, and what is known to be good of it.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use super::bit_set::AtomicBitSet;
use super::layout::{BLOCK, ChunkHeader, ChunkKind, Entry, PAGE, RECORD_BYTES, RecordHeader, Uid};
use super::mapped_region::{MappedRegion, UNIT};
use crate::crc::{Crc32c, crc32c};
use crate::{Error, Result, durable};

/// Records in heap chunks are at least this long, so each has a bit of its own.
const GRANULE: u64 = RECORD_BYTES as u64;

/// An address space is asked for twice of what is needed, and for at least so much.
const LEAST_RESERVED: usize = 1 << 20;

/// Long records are read in pieces where only their checksum is wanted.
const PIECE: usize = 1 << 20;

/// The paths of a chunk in a folder of chunks, and of its checksums.
pub fn chunk_paths(folder: &Path, number: u32) -> (PathBuf, PathBuf) {
    (folder.join(format!("{number}.zr")), folder.join(format!("{number}.crc")))
}

/// A chunk that is open for reading. Its committed bytes never change, so what was found to be
/// good stays so. Thread-safe.
pub struct Chunk {
    path: PathBuf,
    crc_path: PathBuf,
    file: File,
    kind: ChunkKind,
    /// Dense: blocks, heap: granules in which a record begins, that were verified.
    verified: AtomicBitSet,
    /// Dense: all blocks below this were.
    leading: AtomicU64,
    /// Dense: the block that ends, or is not full yet, here was verified up to here.
    tail: AtomicU64,
    /// What this process has written itself.
    trusted: Mutex<Option<Range<u64>>>,
    trusted_start: AtomicU64,
    trusted_end: AtomicU64,
    /// The file was seen to have so many bytes.
    seen: AtomicU64,
    crcs: RwLock<Vec<u32>>,
    /// Heap: where it is mapped, and how far.
    mapped: Mutex<Option<(Arc<MappedRegion>, usize)>>,
}

impl Chunk {
    /// Opens a chunk, which must be the one that the store means.
    pub fn open(folder: &Path, number: u32, uid: &Uid, kind: ChunkKind) -> Result<Self> {
        let (path, crc_path) = chunk_paths(&folder.join("chunk"), number);
        let file = open_file(&path)?;
        let mut page = vec![0; PAGE as usize];
        read_exact(&file, &path, 0, &mut page)?;
        let about = |error: Error| error.about(format!("`{}`", path.display()));
        let header = ChunkHeader::parse(&page).map_err(about)?;
        if header != (ChunkHeader { number, uid: *uid, kind }) {
            let text = "it is a chunk of another number, field or store".to_string();
            return Err(about(Error::Corrupt(text)));
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

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file behind it.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// What it holds.
    pub fn kind(&self) -> ChunkKind {
        self.kind
    }

    /// `Corrupt` where the file has become shorter than what was committed.
    pub fn check_size(&self, position: u64) -> Result<()> {
        let len = self.file_bytes()?;
        if len < position {
            return Err(cut_short(&self.path, len, position));
        }
        self.seen.fetch_max(position, Ordering::Relaxed);
        Ok(())
    }

    /// The same, unless that was seen before.
    pub fn check_size_once(&self, position: u64) -> Result<()> {
        if self.seen.load(Ordering::Relaxed) >= position {
            Ok(())
        } else {
            self.check_size(position)
        }
    }

    /// Bytes of the file.
    pub fn file_bytes(&self) -> Result<u64> {
        let failed = |error| durable::about(&self.path, &error);
        // A third of what asking for all that is known of a file costs, and nobody reads from
        // where the file stands.
        (&self.file).seek(SeekFrom::End(0)).map_err(failed)
    }

    /// Fills `out` with the bytes from `offset` on.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        read_exact(&self.file, &self.path, offset, out)
    }

    /// Counts bytes that this process has written itself as verified: one range, which grows.
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
            // Those of earlier calls are a run that ends where this call begins.
            for block in (first..full).rev() {
                if !self.verified.set(block) {
                    break;
                }
            }
            if full * BLOCK + PAGE >= joined.start {
                self.tail.fetch_max(joined.end, Ordering::Relaxed);
            }
        } else {
            // The start is the same ever after, so no mixture of both says too much.
            self.trusted_start.store(joined.start, Ordering::Relaxed);
            self.trusted_end.store(joined.end, Ordering::Relaxed);
        }
        *trusted = Some(joined);
    }

    /// Whether a block of a dense chunk was verified.
    #[inline]
    pub fn has_block(&self, block: u64) -> bool {
        self.verified.has(block)
    }

    /// Whether all of the first blocks were verified.
    pub fn has_blocks(&self, blocks: u64) -> bool {
        let mut leading = self.leading.load(Ordering::Relaxed);
        while leading < blocks && self.verified.has(leading) {
            leading += 1;
        }
        self.leading.fetch_max(leading, Ordering::Relaxed);
        leading >= blocks
    }

    /// Whether the partial block below `position` was verified as far as that.
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

    /// The full block was found to be good.
    pub fn note_block(&self, block: u64) {
        self.verified.set(block);
    }

    /// The partial block below `position` was found to be good.
    pub fn note_tail(&self, position: u64) {
        self.tail.fetch_max(position, Ordering::Relaxed);
    }

    /// A block of which the checksum does not match.
    pub fn bad_block(&self, block: u64) -> Error {
        let start = PAGE.saturating_add(block.saturating_mul(BLOCK));
        Error::Corrupt(format!(
            "`{}`: the checksum of the block at offset {start} does not match",
            self.path.display()
        ))
    }

    /// The checksum of a full block.
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
            let text = format!("it ends before the checksum of block {block}");
            Error::Corrupt(text).about(format!("`{}`", self.crc_path.display()))
        })
    }

    /// Takes the checksums of the first blocks into memory, as many as are committed: later
    /// ones may become others.
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

    /// Whether the record at an offset of a heap chunk was verified.
    #[inline]
    pub fn has_record(&self, offset: u64) -> bool {
        self.verified.has(offset / GRANULE)
            || (offset >= self.trusted_start.load(Ordering::Relaxed)
                && offset < self.trusted_end.load(Ordering::Relaxed))
    }

    /// The record was found to be good.
    pub fn note_record(&self, offset: u64) {
        self.verified.set(offset / GRANULE);
    }

    /// Verifies a record of which only that is wanted; the file has bytes up to `end`.
    pub fn verify_record(
        &self,
        entry: Entry,
        field: u16,
        end: u64,
        window: &mut Window,
    ) -> Result<()> {
        let Entry { offset, length, .. } = entry;
        let damaged = |text: &str| {
            let text = format!("the record at offset {offset} {text}");
            Error::Corrupt(text).about(format!("`{}`", self.path.display()))
        };
        if (length as usize) < RECORD_BYTES || entry.end() > end {
            return Err(damaged("is outside the chunk"));
        }
        let first = window.piece(self, offset, length as usize, end)?;
        let header = RecordHeader::parse(first).map_err(|_| damaged("has a damaged header"))?;
        if header.total() != u64::from(length) || header.field != field {
            return Err(damaged("belongs to another field or has another size"));
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
            return Err(damaged("has a checksum that does not match"));
        }
        self.note_record(offset);
        Ok(())
    }

    /// Heap: the file as memory, of which the bytes below `position` may be touched.
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
        Error::TooLarge(format!("`{}` does not fit in memory", self.path.display()))
    }
}

/// A piece of a chunk that was read last: records follow each other, and most are short.
#[derive(Default)]
pub struct Window {
    start: u64,
    bytes: Vec<u8>,
}

impl Window {
    /// The bytes from `offset` on, `length` of them or as many as a piece has; the file has
    /// bytes up to `end`.
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

/// Bytes up to here, in whole pages.
pub fn mapped_bytes(bytes: u64) -> Option<usize> {
    usize::try_from(bytes).ok()?.checked_next_multiple_of(UNIT)
}

/// Addresses for so many bytes, and for as many to come where there are enough.
pub fn reserve(needed: usize) -> std::io::Result<MappedRegion> {
    let wanted = needed.saturating_mul(2).max(LEAST_RESERVED);
    MappedRegion::reserve(wanted).or_else(|_| MappedRegion::reserve(needed))
}

/// Opens a file of a store, which must be there.
pub fn open_file(path: &Path) -> Result<File> {
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => Error::Corrupt(format!("`{}` is missing", path.display())),
        _ => durable::about(path, &error),
    };
    // Looked at first, because to open a pipe waits for its other end.
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err(Error::Corrupt(format!("`{}` is not a file", path.display())));
    }
    durable::with_more_files(|| File::open(path)).map_err(failed)
}

/// Fills `out` from a file; bytes that are not there are `Corrupt`.
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
