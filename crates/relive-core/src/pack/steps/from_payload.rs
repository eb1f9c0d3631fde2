//! Decodes rows from the payloads of runs, for packs without a step table.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::columns::{CHUNK, Chunk};
use super::{Found, REQUEST_BYTES, RowBytes, RunOf, checkpoint};
use crate::codec::Codec;
use crate::pack::layout::Entry;
use crate::pack::reader::{PackReader, Verified, Verify};
use crate::pack::sections::Checkpoints;
use crate::runs::{CHECKPOINT_EVERY, Run, StepRow, Version, project, project_at};
use crate::table::Out;
use crate::{Error, Result};

/// The most bytes of a board in v2. The board after a step is needed too.
const BOARD_BYTES: u64 = 10;

/// If more than one in `FEW` steps of a run is wanted, the run is decoded once from its start: a
/// single step costs on average half of the distance between two checkpoints.
const FEW: usize = CHECKPOINT_EVERY as usize / 2;

/// Returns the stored bytes that are needed for a step: those between two checkpoints if the
/// payload can be decoded from there, else all.
pub(super) fn wanted_range(entry: &Entry, offsets: &[u32], step: u32) -> Range<u64> {
    let whole = PackReader::range(entry);
    if entry.run_version() != Some(Version::V2) || !matches!(entry.codec(), Ok(Codec::Raw)) {
        return whole;
    }
    let Some((_, start)) = checkpoint(offsets, step) else { return whole };
    let next = offsets.get((step / CHECKPOINT_EVERY) as usize + 1);
    let end = next
        .map_or(whole.end, |&next| (whole.start + u64::from(next) + BOARD_BYTES).min(whole.end));
    (whole.start + u64::from(start)).min(end)..end
}

/// Reads rows of one pack, ordered by entry and step.
///
/// # Safety
/// As for [`Reader::read`](crate::table::Reader::read), with the positions of `wanted`.
pub(super) unsafe fn read(
    reader: &PackReader,
    cache: &Mutex<Cache>,
    verified: &Verified,
    wanted: &[(usize, Found)],
    outs: &[Out<'_>],
) -> Result<()> {
    let checkpoints = reader.checkpoints()?;
    let staging = Staging { rows: Vec::with_capacity(CHUNK), positions: [0; CHUNK], outs };
    let mut decoding =
        Decoding { reader, cache, verified, checkpoints, staging, requests: Vec::new(), bytes: 0 };
    // SAFETY: passed on from the caller.
    unsafe {
        for group in wanted.chunk_by(|a, b| a.1.entry == b.1.entry) {
            decoding.add(group)?;
        }
        decoding.fetch()?;
        decoding.staging.flush();
    }
    Ok(())
}

struct Decoding<'a> {
    reader: &'a PackReader,
    cache: &'a Mutex<Cache>,
    verified: &'a Verified,
    checkpoints: &'a Checkpoints,
    staging: Staging<'a>,
    requests: Vec<Request<'a>>,
    /// Total bytes of `requests`.
    bytes: u64,
}

/// Bytes to be fetched, and the steps of one entry to be decoded from them.
struct Request<'a> {
    wanted: &'a [(usize, Found)],
    entry: Entry,
    range: Range<u64>,
    whole: bool,
}

impl<'a> Decoding<'a> {
    /// Writes the steps of one entry, or requests the bytes that they need.
    ///
    /// # Safety
    /// As for [`read`].
    unsafe fn add(&mut self, wanted: &'a [(usize, Found)]) -> Result<()> {
        let number = wanted[0].1.entry;
        let entry = self.reader.entry(u64::from(number))?;
        if let Some(file) = self.reader.storage().mapped()
            && entry.codec()? == Codec::Raw
        {
            let range = PackReader::range(&entry);
            let stored = file.get(range.start as usize..range.end as usize).unwrap_or_default();
            self.reader.verify_stored(u64::from(number), &entry, stored)?;
            // SAFETY: passed on from the caller.
            return unsafe { self.write(wanted, &entry, stored, 0) };
        }
        let kept = self.cache().get(self.key(number));
        if let Some(payload) = kept {
            // SAFETY: passed on from the caller.
            return unsafe { self.write(wanted, &entry, &payload, 0) };
        }
        let whole = PackReader::range(&entry);
        let offsets = self.checkpoints.of(number as usize);
        // Part of an entry has no checksum of its own.
        let known = match self.reader.options().verify {
            Verify::First => self.verified.has(u64::from(number)) || !entry.has_crc(),
            Verify::Always => !entry.has_crc(),
            Verify::Never => true,
        };
        if !known || wanted_range(&entry, offsets, 0) == whole {
            // SAFETY: passed on from the caller.
            return unsafe { self.request(Request { wanted, entry, range: whole, whole: true }) };
        }
        let every = u64::from(CHECKPOINT_EVERY);
        for part in wanted.chunk_by(|a, b| a.1.row / every == b.1.row / every) {
            let range = wanted_range(&entry, offsets, part[0].1.row as u32);
            // SAFETY: passed on from the caller.
            unsafe { self.request(Request { wanted: part, entry, range, whole: false }) }?;
        }
        Ok(())
    }

    /// # Safety
    /// As for [`read`].
    unsafe fn request(&mut self, request: Request<'a>) -> Result<()> {
        let bytes = request.range.end - request.range.start;
        if !self.requests.is_empty() && self.bytes + bytes > REQUEST_BYTES {
            // SAFETY: passed on from the caller.
            unsafe { self.fetch() }?;
        }
        self.bytes += bytes;
        self.requests.push(request);
        Ok(())
    }

    /// Fetches all requested bytes with one call, and writes the steps decoded from them.
    ///
    /// # Safety
    /// As for [`read`].
    unsafe fn fetch(&mut self) -> Result<()> {
        let requests = std::mem::take(&mut self.requests);
        self.bytes = 0;
        let storage = self.reader.storage();
        let ranges: Vec<Range<u64>> =
            requests.iter().map(|request| request.range.clone()).collect();
        let read = match storage.mapped() {
            _ if ranges.is_empty() => return Ok(()),
            Some(_) => None,
            None => Some(storage.read(&ranges)?),
        };
        for (position, Request { wanted, entry, range, whole }) in requests.into_iter().enumerate()
        {
            let stored = match (&read, storage.mapped()) {
                (Some(read), _) => read.get(position).map(Vec::as_slice),
                (None, file) => {
                    file.and_then(|file| file.get(range.start as usize..range.end as usize))
                }
            };
            let stored = stored.unwrap_or_default();
            let number = wanted[0].1.entry;
            // SAFETY: passed on from the caller.
            unsafe {
                if whole {
                    let payload = self.payload(number, &entry, stored)?;
                    self.write(wanted, &entry, &payload, 0)?;
                } else {
                    // A payload is shorter than 4 GiB.
                    let base = (range.start - entry.offset) as u32;
                    self.write(wanted, &entry, stored, base)?;
                }
            }
        }
        Ok(())
    }

    /// Decodes a payload from all its stored bytes, and caches it for the next batch.
    fn payload(&self, number: u32, entry: &Entry, stored: &[u8]) -> Result<Arc<Vec<u8>>> {
        let i = u64::from(number);
        let payload = Arc::new(self.reader.decode(i, entry, stored.into())?.into_owned());
        self.verified.add(i);
        self.cache().put(self.key(number), Arc::clone(&payload));
        Ok(payload)
    }

    /// Writes steps of one entry, decoded from its payload from byte `base` on.
    ///
    /// # Safety
    /// As for [`read`].
    unsafe fn write(
        &mut self,
        wanted: &[(usize, Found)],
        entry: &Entry,
        bytes: &[u8],
        base: u32,
    ) -> Result<()> {
        let number = wanted[0].1.entry;
        let about = |error| self.reader.about_entry(u64::from(number), entry, error);
        let wrong = |text: &str| about(Error::Corrupt(text.into()));
        let version =
            entry.run_version().ok_or_else(|| wrong("the entry has steps, but is not a run"))?;
        let steps = self.checkpoints.steps.get(number as usize).copied().unwrap_or_default();
        let offsets = self.checkpoints.of(number as usize);
        let mut all = Vec::new();
        if base == 0 && wanted.len() * FEW > steps as usize {
            let run = Run::parse_as(version, bytes).map_err(about)?;
            project(&run, 0, &mut all);
            if all.len() != steps as usize {
                return Err(wrong("the number of steps of the entry differs from section CKPT"));
            }
        }
        for &(position, found) in wanted {
            let (step, run) = (found.row as u32, found.run.value(0));
            let row = match all.get(step as usize) {
                Some(row) => StepRow { run, ..*row },
                None => {
                    let checkpoint = checkpoint(offsets, step).ok_or_else(|| {
                        wrong("section CKPT does not have all steps of the entry")
                    })?;
                    project_at(version, bytes, base, checkpoint, step, steps, run).map_err(about)?
                }
            };
            // SAFETY: passed on from the caller.
            unsafe { self.staging.push(position, &row) };
        }
        Ok(())
    }

    fn cache(&self) -> MutexGuard<'a, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address of the reader identifies the pack: all readers outlive the cache.
    fn key(&self, entry: u32) -> Key {
        (std::ptr::from_ref(self.reader) as usize, entry)
    }
}

/// Rows that are written together.
struct Staging<'a> {
    rows: Vec<RowBytes>,
    positions: [usize; CHUNK],
    outs: &'a [Out<'a>],
}

impl Staging<'_> {
    /// # Safety
    /// As for [`read`].
    unsafe fn push(&mut self, position: usize, row: &StepRow) {
        if self.rows.len() == CHUNK {
            // SAFETY: passed on from the caller.
            unsafe { self.flush() };
        }
        self.positions[self.rows.len()] = position;
        self.rows.push(row.to_bytes());
    }

    /// # Safety
    /// As for [`read`].
    unsafe fn flush(&mut self) {
        let mut chunk = Chunk::new();
        for row in &self.rows {
            chunk.push(row, RunOf::after(0));
        }
        // SAFETY: passed on from the caller.
        unsafe { chunk.write_to(&self.positions, self.outs) };
        self.rows.clear();
    }
}

/// Identifies a payload: the address of its reader, and its entry.
type Key = (usize, u32);

/// Recently decoded payloads of at most `most` bytes in total; the least recently used goes first.
pub(super) struct Cache {
    most: usize,
    bytes: usize,
    now: u64,
    payloads: HashMap<Key, (Arc<Vec<u8>>, u64)>,
    /// Keys by the time of their last use.
    order: BTreeMap<u64, Key>,
}

impl Cache {
    pub(super) fn new(most: usize) -> Self {
        Self { most, bytes: 0, now: 0, payloads: HashMap::new(), order: BTreeMap::new() }
    }

    fn get(&mut self, key: Key) -> Option<Arc<Vec<u8>>> {
        let (payload, used) = self.payloads.get_mut(&key)?;
        self.now += 1;
        self.order.remove(used);
        self.order.insert(self.now, key);
        *used = self.now;
        Some(Arc::clone(payload))
    }

    /// Adds a payload, unless it alone exceeds the limit.
    fn put(&mut self, key: Key, payload: Arc<Vec<u8>>) {
        if payload.len() > self.most {
            return;
        }
        self.now += 1;
        self.bytes += payload.len();
        self.order.insert(self.now, key);
        if let Some((old, used)) = self.payloads.insert(key, (payload, self.now)) {
            self.bytes -= old.len();
            self.order.remove(&used);
        }
        while self.bytes > self.most
            && let Some((_, oldest)) = self.order.pop_first()
        {
            let freed = self.payloads.remove(&oldest).map_or(0, |(old, _)| old.len());
            self.bytes -= freed;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut cache = Cache::new(10);
        let payload = |bytes: usize| Arc::new(vec![0_u8; bytes]);
        let key = |entry| (0, entry);
        for entry in 0..3 {
            cache.put(key(entry), payload(3));
        }
        assert!(cache.get(key(0)).is_some());
        cache.put(key(3), payload(4));
        let held: Vec<bool> = (0..4).map(|entry| cache.get(key(entry)).is_some()).collect();
        assert_eq!(held, [true, false, true, true]);
        cache.put(key(3), payload(1));
        cache.put(key(9), payload(11));
        assert!(cache.get(key(9)).is_none());
        assert_eq!((cache.bytes, cache.payloads.len(), cache.order.len()), (7, 3, 3));
    }
}
