//! Planes of a run for reading in any order: in the mapped file, or decoded and kept in memory.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, TryLockError};

use memmap2::{Mmap, MmapMut};

use super::reader::ArrayReader;
use crate::Result;
use crate::fork::OwnPerProcess;

/// Rows of fields, which are found again without decoding them. Thread-safe.
///
/// Parts that are stored as they are, are read from a map of the file. The others are decoded when
/// they are first needed and kept, as long as all of them have at most `limit` bytes.
pub struct PlaneStore {
    reader: Arc<ArrayReader>,
    map: Option<Mmap>,
    /// The number of the first slot of each field, and how many slots there are.
    firsts: Vec<usize>,
    limit: usize,
    cache: OwnPerProcess<Cache>,
}

/// Parts of at least this size have pages of their own, which go back to the system when they are
/// evicted. In the heap they would lie between the memory of batches, so that neither is returned.
const OWN_PAGES: usize = 128 << 10;

/// All rows of a part, one after the other.
pub(super) enum Resident<'a> {
    Mapped(&'a [u8]),
    Kept(Arc<Decoded>),
}

/// A part that was decoded.
#[derive(Debug)]
pub(super) enum Decoded {
    Heap(Vec<u8>),
    Pages(MmapMut),
}

impl Decoded {
    /// Takes the bytes; their memory is left if they are copied.
    fn of(bytes: &mut Vec<u8>) -> Self {
        if bytes.len() >= OWN_PAGES
            && let Ok(mut pages) = MmapMut::map_anon(bytes.len())
        {
            pages.copy_from_slice(bytes);
            return Self::Pages(pages);
        }
        Self::Heap(std::mem::take(bytes))
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Pages(pages) => pages,
        }
    }
}

impl Resident<'_> {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped(bytes) => bytes,
            Self::Kept(part) => part.bytes(),
        }
    }
}

/// A part that was not in memory.
pub(super) enum Loaded<'a> {
    /// Now it is.
    Resident(Resident<'a>),
    /// It was decoded into the memory that was passed, and is not kept.
    Spare,
    /// It is stored as it is from this byte of the file on, so that single rows can be read.
    File(u64),
}

impl PlaneStore {
    /// Reads the fields of a reader, and keeps at most `limit` bytes of what was decoded.
    pub fn new(reader: Arc<ArrayReader>, limit: usize) -> Result<Self> {
        let mut firsts = vec![0];
        for field in 0..reader.field_count() {
            firsts.push(firsts[field] + reader.part_count(field)?);
        }
        Ok(Self { reader, map: None, firsts, limit, cache: OwnPerProcess::new() })
    }

    /// Reads the same fields as they are now, and keeps what this store has decoded.
    pub fn continued(&self, reader: Arc<ArrayReader>) -> Result<Self> {
        let made = Self::new(reader, self.limit)?;
        let mut slots = Vec::with_capacity(made.firsts.last().copied().unwrap_or_default());
        let before = self.cache();
        for field in 0..made.firsts.len() - 1 {
            let kept = made.reader.parts_as_in(&self.reader, field);
            let first = self.firsts.get(field).copied().unwrap_or_default();
            slots.extend(before.slots[first..first + kept].iter().map(Arc::clone));
            slots.resize_with(made.firsts[field + 1], Arc::default);
        }
        let budget = Arc::clone(&before.budget);
        made.cache.get(|| Cache { slots: slots.clone(), budget: Arc::clone(&budget) });
        Ok(made)
    }

    /// Reads what is stored as it is from a map of the file.
    ///
    /// # Safety
    /// The file is not truncated while this store exists.
    pub unsafe fn map(&mut self) -> Result<()> {
        let is_plain = |field: usize| {
            let parts = self.firsts[field + 1] - self.firsts[field];
            (0..parts).any(|part| self.reader.plain_bytes(field, part).is_some())
        };
        if (0..self.firsts.len() - 1).any(is_plain) {
            // SAFETY: as the caller promises.
            self.map = unsafe { self.reader.map() }?;
        }
        Ok(())
    }

    pub(super) fn reader(&self) -> &ArrayReader {
        &self.reader
    }

    /// Refuses to read from a map of a file that was truncated.
    pub(super) fn check_map(&self) -> Result<()> {
        self.map.as_ref().map_or(Ok(()), |map| self.reader.check_size(map.len()))
    }

    /// Returns the address of a row in the mapped file, and how many rows follow it there, itself
    /// included.
    pub(super) fn mapped_row(&self, field: usize, row: u64) -> Option<(*const u8, u64)> {
        let (part, first, end) = self.reader.part_with(field, row).ok()?;
        let bytes = self.mapped(field, part)?;
        let size = self.reader.row_bytes(field).ok()?;
        let start = (row - first) as usize * size;
        bytes.get(start..).map(|rows| (rows.as_ptr(), end - row))
    }

    fn mapped(&self, field: usize, part: usize) -> Option<&[u8]> {
        let map = self.map.as_ref()?;
        let range = self.reader.plain_bytes(field, part)?;
        map.get(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?)
    }

    /// Returns the rows of a part that is in memory, and not being decoded by another thread.
    pub(super) fn resident(&self, field: usize, part: usize) -> Result<Option<Resident<'_>>> {
        if let Some(bytes) = self.mapped(field, part) {
            self.reader.check_part(field, part, bytes)?;
            return Ok(Some(Resident::Mapped(bytes)));
        }
        let slot = &self.cache().slots[self.firsts[field] + part];
        let found = match slot.part.try_read() {
            Ok(part) => part.as_ref().map(Kept::shared),
            Err(TryLockError::Poisoned(poisoned)) => {
                poisoned.into_inner().as_ref().map(Kept::shared)
            }
            Err(TryLockError::WouldBlock) => None,
        };
        if found.is_some() && !slot.is_used.load(Ordering::Relaxed) {
            slot.is_used.store(true, Ordering::Relaxed);
        }
        Ok(found.map(Resident::Kept))
    }

    /// Reads a part that was not in memory. It may be left in `spare`.
    pub(super) fn load(
        &self,
        field: usize,
        part: usize,
        row: u64,
        spare: &mut Vec<u8>,
    ) -> Result<Loaded<'_>> {
        let plain = self.reader.plain_bytes(field, part);
        if plain.is_some() && self.map.is_some() {
            // The file is shorter than the map would have to be.
            return Err(self.reader.missing(field, row));
        }
        let cache = self.cache();
        let slot = &cache.slots[self.firsts[field] + part];
        let mut kept = slot.part.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = &*kept {
            return Ok(Loaded::Resident(Resident::Kept(kept.shared())));
        }
        if let Some(range) = &plain
            && self.reader.is_checked(field, part)
        {
            return Ok(Loaded::File(range.start));
        }
        self.reader.read_whole(field, part, spare)?;
        cache.budget.decoded.fetch_add(spare.len() as u64, Ordering::Relaxed);
        if !cache.reserve(spare.len()) {
            return Ok(Loaded::Spare);
        }
        let budget = Arc::clone(&cache.budget);
        let made =
            kept.insert(Kept { bytes: spare.len(), part: Arc::new(Decoded::of(spare)), budget });
        // Else it would be the next to be evicted.
        slot.is_used.store(true, Ordering::Relaxed);
        Ok(Loaded::Resident(Resident::Kept(made.shared())))
    }

    /// Drops what was decoded of a field before a row.
    pub fn drop_before(&self, field: usize, row: u64) -> Result<()> {
        let count = self.reader.parts_before(field, row)?;
        let first = self.firsts[field];
        for slot in &self.cache().slots[first..first + count] {
            // What is being read now is dropped next time.
            if let Ok(mut kept) = slot.part.try_write() {
                *kept = None;
            }
        }
        Ok(())
    }

    /// Returns how many bytes were decoded and are kept.
    pub fn kept_bytes(&self) -> usize {
        self.cache().budget.used.load(Ordering::Relaxed)
    }

    /// Returns how many bytes were decoded so far, those that were not kept included.
    pub fn decoded_bytes(&self) -> u64 {
        self.cache().budget.decoded.load(Ordering::Relaxed)
    }

    fn cache(&self) -> &Cache {
        let count = self.firsts.last().copied().unwrap_or_default();
        self.cache.get(|| Cache::new(count, self.limit))
    }
}

/// Decoded parts. A forked child has a cache of its own, since locks may be held in the parent.
#[derive(Debug)]
struct Cache {
    slots: Vec<Arc<Slot>>,
    budget: Arc<Budget>,
}

/// The memory of the caches of one run as it grows.
#[derive(Debug)]
struct Budget {
    limit: usize,
    used: AtomicUsize,
    /// How many bytes were decoded so far.
    decoded: AtomicU64,
    /// The next slot that is considered for eviction.
    hand: Mutex<usize>,
}

#[derive(Debug, Default)]
struct Slot {
    part: RwLock<Option<Kept>>,
    /// Whether it was read since it was last considered for eviction.
    is_used: AtomicBool,
}

/// A decoded part, which is counted until it is dropped.
#[derive(Debug)]
struct Kept {
    part: Arc<Decoded>,
    bytes: usize,
    budget: Arc<Budget>,
}

impl Kept {
    fn shared(&self) -> Arc<Decoded> {
        Arc::clone(&self.part)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Cache {
    fn new(count: usize, limit: usize) -> Self {
        let slots = std::iter::repeat_with(Arc::default).take(count).collect();
        let (used, decoded) = (AtomicUsize::new(0), AtomicU64::new(0));
        let budget = Budget { limit, used, decoded, hand: Mutex::new(0) };
        Self { slots, budget: Arc::new(budget) }
    }

    /// Makes room for bytes, and counts them; returns false if there cannot be room.
    fn reserve(&self, bytes: usize) -> bool {
        let Budget { limit, used, .. } = &*self.budget;
        if bytes > *limit {
            return false;
        }
        used.fetch_add(bytes, Ordering::Relaxed);
        while used.load(Ordering::Relaxed) > *limit {
            if !self.evict() {
                used.fetch_sub(bytes, Ordering::Relaxed);
                return false;
            }
        }
        true
    }

    /// Removes a part that was not read lately, if there is one. The caller may have locked one
    /// slot.
    fn evict(&self) -> bool {
        let mut hand = self.budget.hand.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..2 * self.slots.len() {
            let slot = &self.slots[*hand % self.slots.len()];
            *hand = (*hand + 1) % self.slots.len();
            if slot.is_used.swap(false, Ordering::Relaxed) {
                continue;
            }
            let Ok(mut part) = slot.part.try_write() else { continue };
            if part.take().is_some() {
                return true;
            }
        }
        false
    }
}
