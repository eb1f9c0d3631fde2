//! Rows out of the payloads of runs, for packs without a step table.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::cache::{Cache, Key};
use super::columns::{CHUNK, Chunk};
use super::{Found, REQUEST_BYTES, RowBytes, RunOf, checkpoint, version};
use crate::codec::{Codec, Stored};
use crate::pack::layout::Entry;
use crate::pack::reader::{PackReader, Verify};
use crate::pack::sections::Checkpoints;
use crate::runs::{CHECKPOINT_EVERY, Run, StepRow, Version, project, project_at};
use crate::table::Out;
use crate::{Error, Result};

/// The most bytes of a board in v2: the one behind a step is needed too.
const BOARD_BYTES: u64 = 10;

/// A run of which more than one step in so many is wanted is decoded once, from its start:
/// a step by itself costs half of what lies between two checkpoints.
const FEW: usize = CHECKPOINT_EVERY as usize / 2;

/// Entries whose checksum was compared here, so that a part of one may be fetched by itself.
pub(super) struct Checked(Vec<AtomicU64>);

impl Checked {
    pub(super) fn new(entries: u64) -> Self {
        Self((0..entries.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    fn has(&self, entry: u32) -> bool {
        let word = self.0.get(entry as usize / 64);
        word.is_some_and(|word| word.load(Ordering::Relaxed) >> (entry % 64) & 1 == 1)
    }

    fn add(&self, entry: u32) {
        if let Some(word) = self.0.get(entry as usize / 64) {
            word.fetch_or(1 << (entry % 64), Ordering::Relaxed);
        }
    }
}

/// Where the stored bytes are that hold a step: the stretch between two checkpoints where
/// the payload can be read from there, else all of them.
pub(super) fn wanted_range(entry: &Entry, offsets: &[u32], step: u32) -> Range<u64> {
    let whole = PackReader::range(entry);
    if version(entry) != Some(Version::V2) || !matches!(entry.codec(), Ok(Codec::Raw)) {
        return whole;
    }
    let Some((_, start)) = checkpoint(offsets, step) else { return whole };
    let next = offsets.get((step / CHECKPOINT_EVERY) as usize + 1);
    let end = next
        .map_or(whole.end, |&next| (whole.start + u64::from(next) + BOARD_BYTES).min(whole.end));
    (whole.start + u64::from(start)).min(end)..end
}

/// Rows of one pack, ordered by entry and step.
///
/// # Safety
/// As for [`Reader::read`](crate::table::Reader::read), with the positions of `wanted`.
pub(super) unsafe fn read(
    reader: &PackReader,
    cache: &Mutex<Cache>,
    checked: &Checked,
    wanted: &[(usize, Found)],
    outs: &[Out<'_>],
) -> Result<()> {
    let checkpoints = reader.checkpoints()?;
    let staging = Staging { rows: Vec::with_capacity(CHUNK), positions: [0; CHUNK], outs };
    let mut decoding =
        Decoding { reader, cache, checked, checkpoints, staging, asked: Vec::new(), bytes: 0 };
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
    checked: &'a Checked,
    checkpoints: &'a Checkpoints,
    staging: Staging<'a>,
    asked: Vec<Asked<'a>>,
    /// What `asked` will bring.
    bytes: u64,
}

/// Steps of one entry that wait for bytes.
struct Asked<'a> {
    wanted: &'a [(usize, Found)],
    entry: Entry,
    range: Range<u64>,
    whole: bool,
}

impl<'a> Decoding<'a> {
    /// Writes the steps of one entry, or asks for the bytes that they need.
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
        // A part has no checksum of its own.
        let known = match self.reader.options().verify {
            Verify::First => self.checked.has(number) || !entry.has_crc(),
            Verify::Always => !entry.has_crc(),
            Verify::Never => true,
        };
        if !known || wanted_range(&entry, offsets, 0) == whole {
            // SAFETY: passed on from the caller.
            return unsafe { self.ask(Asked { wanted, entry, range: whole, whole: true }) };
        }
        let every = u64::from(CHECKPOINT_EVERY);
        for part in wanted.chunk_by(|a, b| a.1.row / every == b.1.row / every) {
            let range = wanted_range(&entry, offsets, part[0].1.row as u32);
            // SAFETY: passed on from the caller.
            unsafe { self.ask(Asked { wanted: part, entry, range, whole: false }) }?;
        }
        Ok(())
    }

    /// # Safety
    /// As for [`read`].
    unsafe fn ask(&mut self, asked: Asked<'a>) -> Result<()> {
        let bytes = asked.range.end - asked.range.start;
        if !self.asked.is_empty() && self.bytes + bytes > REQUEST_BYTES {
            // SAFETY: passed on from the caller.
            unsafe { self.fetch() }?;
        }
        self.bytes += bytes;
        self.asked.push(asked);
        Ok(())
    }

    /// Brings what was asked for, in one request, and writes the steps that waited for it.
    ///
    /// # Safety
    /// As for [`read`].
    unsafe fn fetch(&mut self) -> Result<()> {
        let asked = std::mem::take(&mut self.asked);
        self.bytes = 0;
        let storage = self.reader.storage();
        let ranges: Vec<Range<u64>> = asked.iter().map(|asked| asked.range.clone()).collect();
        let read = match storage.mapped() {
            _ if ranges.is_empty() => return Ok(()),
            Some(_) => None,
            None => Some(storage.read(&ranges)?),
        };
        for (position, Asked { wanted, entry, range, whole }) in asked.into_iter().enumerate() {
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

    /// The payload out of all its stored bytes, which is kept for the next batch.
    fn payload(&self, number: u32, entry: &Entry, stored: &[u8]) -> Result<Arc<Vec<u8>>> {
        let i = u64::from(number);
        self.reader.verify_stored(i, entry, stored)?;
        self.checked.add(number);
        let payload = match entry.codec()? {
            Codec::Raw => stored.to_vec(),
            codec => {
                let record = Stored { codec, bytes: stored, length: entry.payload_bytes() };
                let payload = self.reader.decoder()?.decode(&record);
                payload.map_err(|error| self.reader.about_entry(i, entry, error))?
            }
        };
        let payload = Arc::new(payload);
        self.cache().put(self.key(number), Arc::clone(&payload));
        Ok(payload)
    }

    /// Writes steps of one entry out of its payload from byte `base` on.
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
        let version = version(entry).ok_or_else(|| wrong("it has steps and is no run"))?;
        let steps = self.checkpoints.steps.get(number as usize).copied().unwrap_or_default();
        let offsets = self.checkpoints.of(number as usize);
        let mut all = Vec::new();
        if base == 0 && wanted.len() * FEW > steps as usize {
            let run = Run::parse_as(version, bytes).map_err(about)?;
            project(&run, 0, &mut all);
            if all.len() != steps as usize {
                return Err(wrong("it has not as many steps as section CKPT says"));
            }
        }
        for &(position, found) in wanted {
            let (step, run) = (found.row as u32, found.run.value(0));
            let row = match all.get(step as usize) {
                Some(row) => StepRow { run, ..*row },
                None => {
                    let checkpoint = checkpoint(offsets, step)
                        .ok_or_else(|| wrong("section CKPT lacks some of its steps"))?;
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

    /// The address of the reader tells packs apart: all of them live as long as the cache.
    fn key(&self, entry: u32) -> Key {
        (std::ptr::from_ref(self.reader) as usize, entry)
    }
}

/// Rows that wait to be written together.
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
