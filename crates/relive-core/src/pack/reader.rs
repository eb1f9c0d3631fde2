//! Reads a pack: header, footer, index and sections, and the payloads of entries.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::index::{Index, at, groups, index_range, is_plain};
use super::layout::{
    Entry, FOOTER_BYTES, Footer, HAS_SECTIONS, HEADER_BYTES, Header, SECTION_HEADER_BYTES, Tag,
    u32_at, u64_at,
};
use super::sections::{
    Checkpoints, Directory, Kinds, Names, RunColumns, RunColumnsBuilder, SectionLocation,
    StepTable, kind_name, section_bytes,
};
use super::stats::{MAX_STATS_BYTES, Summary};
use crate::codec::{Decoder, Dictionary, MAX_BYTES};
use crate::crc::crc32c;
use crate::runs::{Outline, Run, Version, outline};
use crate::storage::{MappedFile, PreadFile, Storage, slice};
use crate::{Error, Result, pool};

/// The directory ends where the footer begins, so its last field, its own offset, can be read
/// without knowing where it begins.
const DIRECTORY_OFFSET_BYTES: u64 = 8;

/// The most bytes of a directory: far more than all known sections need. A longer one is refused
/// before it is read.
const MAX_DIRECTORY_BYTES: u64 = 64 * 1024;

/// Stored bytes that one task of a scan reads, unless a single entry has more.
const SCAN_BYTES: u64 = 4 << 20;

/// The most entries of one task of a scan.
const SCAN_ENTRIES: usize = 4096;

/// Tasks of a scan per thread whose results are kept until they are put in order.
const SCANS_PER_THREAD: usize = 4;

/// When checksums of entries are verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// At the first read of an entry.
    #[default]
    First,
    /// At every read.
    Always,
    /// Never.
    Never,
}

/// Options for reading a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// When checksums of entries are verified.
    pub verify: Verify,
    /// The most bytes of a payload that is decompressed.
    pub max_payload_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { verify: Verify::First, max_payload_bytes: MAX_BYTES }
    }
}

/// Items whose checksum was found to match, as one bit each. Thread-safe.
#[derive(Debug)]
pub struct Verified(Vec<AtomicU64>);

impl Verified {
    /// Creates the set for this many items.
    pub fn new(items: u64) -> Self {
        Self((0..items.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    /// Whether the item was added.
    #[inline]
    pub fn has(&self, item: u64) -> bool {
        let word = self.0.get((item / 64) as usize);
        word.is_some_and(|word| word.load(Ordering::Relaxed) >> (item % 64) & 1 == 1)
    }

    /// Adds an item; one after the end is ignored.
    pub fn add(&self, item: u64) {
        if let Some(word) = self.0.get((item / 64) as usize) {
            word.fetch_or(1 << (item % 64), Ordering::Relaxed);
        }
    }
}

/// A decoded entry.
pub enum Value<'a> {
    /// A run, of either version.
    Run(Run),
    /// The payload of an entry of any other kind.
    Bytes(Cow<'a, [u8]>),
}

/// Work on the stored bytes of an entry.
type Work<'w, 'a, T> = &'w (dyn Fn(u64, &Entry, Cow<'a, [u8]>) -> Result<T> + Sync);

/// A pack that is open for reading.
///
/// Thread-safe. Errors about damage name the file, the entry and its offset.
pub struct PackReader {
    storage: Box<dyn Storage>,
    options: Options,
    header: Header,
    footer: Footer,
    index: Index,
    directory: Directory,
    verified: Verified,
    decoder: OnceLock<Decoder>,
    kinds: OnceLock<Kinds>,
    names: OnceLock<Option<Names>>,
    run_columns: OnceLock<RunColumns>,
    checkpoints: OnceLock<Checkpoints>,
    step_table: OnceLock<StepTable>,
    /// Held during a scan of all entries, so that it is done once.
    scanning: Mutex<()>,
}

impl fmt::Debug for PackReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PackReader({}, entries={})", self.storage.name(), self.len())
    }
}

impl PackReader {
    /// Opens the pack at `path`, mapped or read with `pread`.
    pub fn open(path: &Path, mapped: bool, options: Options) -> Result<Self> {
        let storage: Box<dyn Storage> = if mapped {
            Box::new(MappedFile::open(path)?)
        } else {
            Box::new(PreadFile::open(path)?)
        };
        Self::open_storage(storage, options)
    }

    /// Opens a pack with at most two requests: header and footer, then index and directory of
    /// sections.
    pub fn open_storage(storage: Box<dyn Storage>, options: Options) -> Result<Self> {
        let (ends, index, directory) = open(&*storage)?;
        let verified = Verified::new(index.len());
        Ok(Self {
            storage,
            options,
            header: ends.header,
            footer: ends.footer,
            index,
            directory,
            verified,
            decoder: OnceLock::new(),
            kinds: OnceLock::new(),
            names: OnceLock::new(),
            run_columns: OnceLock::new(),
            checkpoints: OnceLock::new(),
            step_table: OnceLock::new(),
            scanning: Mutex::new(()),
        })
    }

    /// Returns the number of entries.
    pub fn len(&self) -> u64 {
        self.index.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Returns one entry of the index; `OutOfRange` if it does not exist.
    #[inline]
    pub fn entry(&self, i: u64) -> Result<Entry> {
        self.index.get(i).ok_or_else(|| self.no_entry(i))
    }

    #[cold]
    fn no_entry(&self, i: u64) -> Error {
        self.about(Error::OutOfRange(format!(
            "entry {i} is out of range for {} entries",
            self.len()
        )))
    }

    /// Returns all entries of the index, in order.
    pub fn entries(&self) -> impl Iterator<Item = Entry> {
        self.index.iter()
    }

    /// Returns the header.
    pub fn header(&self) -> Header {
        self.header
    }

    /// Returns the footer.
    pub fn footer(&self) -> Footer {
        self.footer
    }

    /// Returns the storage that the bytes are read from.
    pub fn storage(&self) -> &dyn Storage {
        &*self.storage
    }

    /// Returns the options that the pack was opened with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the locations of the sections.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Returns the verified bytes of a section; `None` if the pack does not have it.
    pub fn section(&self, tag: Tag) -> Result<Option<Cow<'_, [u8]>>> {
        let Some(location) = self.directory.find(tag) else { return Ok(None) };
        self.storage.recheck()?;
        let stored = fetch_one(&*self.storage, location.range())?;
        section_bytes(location, stored).map(Some).map_err(|error| self.about(error))
    }

    /// Returns the summary of the lengths of runs from the stats block; `None` if there is none.
    pub fn summary(&self) -> Result<Option<Summary>> {
        self.stats_block()?.map(|bytes| Summary::parse_body(&bytes)).transpose()
    }

    /// Returns the stats block without its length, verified with section `STAT` if the pack has
    /// it.
    fn stats_block(&self) -> Result<Option<Vec<u8>>> {
        let start = self.footer.stats_offset;
        if start == 0 {
            return Ok(None);
        }
        let footer_at = self.storage.len().saturating_sub(FOOTER_BYTES as u64);
        let limit = self.directory.iter().next().map_or(footer_at, |location| location.offset);
        let end = limit.min(start.saturating_add(MAX_STATS_BYTES as u64)).max(start);
        self.storage.recheck()?;
        let block = fetch_one(&*self.storage, start..end)?;
        let wrong = |text: &str| {
            self.about(Error::Corrupt(format!("stats block at offset {start}: {text}")))
        };
        let length = 4 + u32_at(&block, 0) as usize;
        let block =
            block.get(..length).ok_or_else(|| wrong("the block overlaps the next section"))?;
        if let Some(stat) = self.section(Tag::STAT)?
            && (stat.len() != 4 || u32_at(&stat, 0) != crc32c(block))
        {
            return Err(wrong("the block does not match its checksum"));
        }
        Ok(Some(block[4..].to_vec()))
    }

    /// Returns the decoder of entries, with the dictionary of the pack if it has one.
    pub fn decoder(&self) -> Result<&Decoder> {
        cached(&self.decoder, || {
            let decoder = Decoder::new().with_max_bytes(self.options.max_payload_bytes);
            let Some(bytes) = self.section(Tag::DICT)? else { return Ok(decoder) };
            let dictionary = Dictionary::new(bytes.into_owned())
                .map_err(|error| self.about(error.about(format_args!("section {}", Tag::DICT))))?;
            Ok(decoder.with_dictionary(Arc::new(dictionary)))
        })
    }

    /// Returns the user-defined kinds of the pack.
    pub fn kinds(&self) -> Result<&Kinds> {
        cached(&self.kinds, || match self.section(Tag::KIND)? {
            Some(bytes) => Kinds::parse(&bytes).map_err(|error| self.about(error)),
            None => Ok(Kinds::default()),
        })
    }

    /// Returns the name of an entry's kind: `bytes`, `v1`, `v2`, a user-defined name, or
    /// `kind-<number>` if the pack has no name for it.
    pub fn kind_name(&self, i: u64) -> Result<String> {
        let id = self.entry(i)?.kind;
        if let Some(name) = kind_name(id) {
            return Ok(name.to_owned());
        }
        Ok(self.kinds()?.name(id).map_or_else(|| format!("kind-{id}"), str::to_owned))
    }

    /// Returns the names of the entries; `None` if no entry has one.
    pub fn names(&self) -> Result<Option<&Names>> {
        let names = cached(&self.names, || match self.section(Tag::NAME)? {
            Some(bytes) => {
                Names::parse(&bytes, self.len()).map(Some).map_err(|error| self.about(error))
            }
            None => Ok(None),
        });
        names.map(Option::as_ref)
    }

    /// Returns the entry with this name.
    pub fn find(&self, name: &str) -> Result<Option<u64>> {
        Ok(self.names()?.and_then(|names| names.find(name)))
    }

    /// Returns score, steps, tile and engine of every run: from the pack's section, or from one
    /// scan of all entries if it has none.
    pub fn run_columns(&self) -> Result<&RunColumns> {
        if self.run_columns.get().is_none() && self.directory.find(Tag::RUNS).is_none() {
            self.scan()?;
        }
        cached(&self.run_columns, || {
            let section = |tag: Tag| {
                let missing = || Error::Corrupt(format!("section {tag} is missing from the pack"));
                self.section(tag)?.ok_or_else(|| self.about(missing()))
            };
            let (runs, text) = (section(Tag::RUNS)?, section(Tag::TEXT)?);
            RunColumns::parse(&runs, &text, self.len()).map_err(|error| self.about(error))
        })
    }

    /// Returns the offsets of the steps of every run: from the pack's section, or from the same
    /// scan of all entries if it has none.
    pub fn checkpoints(&self) -> Result<&Checkpoints> {
        if self.checkpoints.get().is_none() && self.directory.find(Tag::CKPT).is_none() {
            self.scan()?;
        }
        cached(&self.checkpoints, || {
            let bytes = self.section(Tag::CKPT)?.unwrap_or_default();
            Checkpoints::parse(&bytes, self.len()).map_err(|error| self.about(error))
        })
    }

    /// Returns the table of all steps; `None` if the pack does not have it.
    pub fn step_table(&self) -> Result<Option<&StepTable>> {
        let Some(location) = self.directory.find(Tag::STEP) else { return Ok(None) };
        let table = cached(&self.step_table, || {
            self.storage.recheck()?;
            StepTable::open(&*self.storage, location).map_err(|error| self.about(error))
        });
        table.map(Some)
    }

    /// Fills in run columns and checkpoints that the pack does not store, by reading every run
    /// once, in parallel. The error is that of the first entry that has one.
    fn scan(&self) -> Result<()> {
        let _alone = self.scanning.lock().unwrap_or_else(PoisonError::into_inner);
        if self.run_columns.get().is_some() && self.checkpoints.get().is_some() {
            return Ok(());
        }
        let (columns, checkpoints) = self.scan_runs()?;
        if self.directory.find(Tag::RUNS).is_none() {
            let _ = self.run_columns.set(columns);
        }
        if self.directory.find(Tag::CKPT).is_none() {
            let _ = self.checkpoints.set(checkpoints);
        }
        Ok(())
    }

    /// Adds the file name to an error, unless it has it already.
    pub(super) fn about(&self, error: Error) -> Error {
        let file = format!("`{}`", self.storage.name());
        if error.to_string().starts_with(&file) { error } else { error.about(file) }
    }

    /// Returns the payload of one entry, verified and decoded; borrowed if it is raw and mapped.
    pub fn payload(&self, i: u64) -> Result<Cow<'_, [u8]>> {
        let (entry, stored) = self.stored_unverified(i)?;
        self.decode(i, &entry, stored)
    }

    /// Returns the stored bytes of one entry, verified.
    pub fn stored(&self, i: u64) -> Result<Cow<'_, [u8]>> {
        let (entry, stored) = self.stored_unverified(i)?;
        self.verify_stored(i, &entry, &stored)?;
        Ok(stored)
    }

    /// Returns the payloads of many entries, in the given order, with one request and on up to
    /// `threads` threads. The outer result is that of the request.
    pub fn payloads(&self, rows: &[u64], threads: usize) -> Result<Vec<Result<Cow<'_, [u8]>>>> {
        let work = |i, entry: &Entry, stored| self.decode(i, entry, stored);
        self.each(rows, threads, &|_| Ok(()), &work)
    }

    /// Returns the runs of many entries, as [`payloads`](Self::payloads) does. An entry that is
    /// not a run is `Unsupported`.
    pub fn runs(&self, rows: &[u64], threads: usize) -> Result<Vec<Result<Run>>> {
        let check = |i| self.run_version(i).map(|_| ());
        self.each(rows, threads, &check, &|i, entry, stored| {
            let version = self.run_version(i)?;
            let payload = self.decode(i, entry, stored)?;
            Run::parse_as(version, &payload).map_err(|error| self.about_entry(i, entry, error))
        })
    }

    /// Returns kind and value of many entries, as [`payloads`](Self::payloads) does.
    pub fn decode_batch(
        &self,
        rows: &[u64],
        threads: usize,
    ) -> Result<Vec<Result<(u16, Value<'_>)>>> {
        self.each(rows, threads, &|_| Ok(()), &|i, entry, stored| {
            let payload = self.decode(i, entry, stored)?;
            let value = match entry.run_version() {
                None => Value::Bytes(payload),
                Some(version) => Run::parse_as(version, &payload)
                    .map(Value::Run)
                    .map_err(|error| self.about_entry(i, entry, error))?,
            };
            Ok((entry.kind, value))
        })
    }

    /// Compares the stored bytes of an entry with its checksum, if it has one and the options
    /// require it.
    #[inline]
    pub fn verify_stored(&self, i: u64, entry: &Entry, stored: &[u8]) -> Result<()> {
        let known = match self.options.verify {
            Verify::Never => true,
            Verify::Always => false,
            Verify::First => self.verified.has(i),
        };
        if known || !entry.has_crc() {
            return Ok(());
        }
        if crc32c(stored) != entry.crc {
            return Err(self.about_entry(i, entry, checksum_mismatch()));
        }
        self.verified.add(i);
        Ok(())
    }

    /// Verifies and decodes the stored bytes of an entry.
    pub(crate) fn decode<'a>(
        &self,
        i: u64,
        entry: &Entry,
        stored: Cow<'a, [u8]>,
    ) -> Result<Cow<'a, [u8]>> {
        self.verify_stored(i, entry, &stored)?;
        if is_plain(entry) || stored.is_empty() {
            return Ok(stored);
        }
        let payload = entry.decode(stored, self.decoder()?);
        payload.map_err(|error| self.about_entry(i, entry, error))
    }

    /// Like [`decode`](Self::decode), into a buffer of exactly the payload's length.
    pub(crate) fn decode_into(
        &self,
        i: u64,
        entry: &Entry,
        stored: &[u8],
        out: &mut [u8],
    ) -> Result<()> {
        self.verify_stored(i, entry, stored)?;
        // No stored bytes are an empty payload with any codec.
        if (is_plain(entry) || stored.is_empty()) && stored.len() == out.len() {
            out.copy_from_slice(stored);
            return Ok(());
        }
        let about = |error| self.about_entry(i, entry, error);
        let codec = entry.codec().map_err(about)?;
        self.decoder()?.decode_into(codec, stored, out).map_err(about)
    }

    /// Returns the range of the stored bytes of an entry.
    pub(crate) fn range(entry: &Entry) -> Range<u64> {
        // The index was checked when it was parsed: the end is inside the file.
        entry.offset..entry.offset.saturating_add(u64::from(entry.length))
    }

    /// Adds file name, entry and offset to an error.
    pub(crate) fn about_entry(&self, i: u64, entry: &Entry, error: Error) -> Error {
        self.about(at(i, entry, error))
    }

    /// Returns the version of a run; `Unsupported` if the entry is not a run.
    fn run_version(&self, i: u64) -> Result<Version> {
        let entry = self.entry(i)?;
        if let Some(version) = entry.run_version() {
            return Ok(version);
        }
        let text = format!("the entry is not a run: its kind is `{}`", self.kind_name(i)?);
        Err(self.about_entry(i, &entry, Error::Unsupported(text)))
    }

    fn stored_unverified(&self, i: u64) -> Result<(Entry, Cow<'_, [u8]>)> {
        let entry = self.entry(i)?;
        self.storage.recheck()?;
        let stored = fetch_one(&*self.storage, Self::range(&entry))?;
        Ok((entry, stored))
    }

    /// Calls `work` with the stored bytes of each entry that passes `check`, read with one request.
    pub(crate) fn each<'a, T: Send>(
        &'a self,
        rows: &[u64],
        threads: usize,
        check: &dyn Fn(u64) -> Result<()>,
        work: Work<'_, 'a, T>,
    ) -> Result<Vec<Result<T>>> {
        self.storage.recheck()?;
        let mut wanted = Vec::with_capacity(rows.len());
        let mut ranges = Vec::with_capacity(rows.len());
        for &i in rows {
            let entry = self.entry(i)?;
            let checked = check(i);
            if checked.is_ok() {
                ranges.push(Self::range(&entry));
            }
            wanted.push((i, entry, checked));
        }
        let fetched = if ranges.is_empty() { Vec::new() } else { fetch(&*self.storage, &ranges)? };
        let mut fetched = fetched.into_iter();
        let items: Vec<_> = wanted
            .into_iter()
            .map(|(i, entry, checked)| {
                let stored = checked.map(|()| fetched.next().unwrap_or_default());
                (i, entry, stored)
            })
            .collect();
        Ok(pool::map(items, threads, |(i, entry, stored)| work(i, &entry, stored?)))
    }

    fn scan_runs(&self) -> Result<(RunColumns, Checkpoints)> {
        let threads = pool::default_threads();
        let mut columns = RunColumnsBuilder::default();
        let mut checkpoints = Checkpoints::default();
        let mut done = 0;
        let runs = (0..).zip(self.entries()).filter(|(_, entry)| entry.is_run());
        let runs: Vec<u64> = runs.map(|(i, _)| i).collect();
        let stored_bytes = |at: usize| Ok(u64::from(self.entry(runs[at])?.length));
        let tasks = groups(runs.len(), stored_bytes, SCAN_BYTES, SCAN_ENTRIES)?;
        for tasks in tasks.chunks(threads * SCANS_PER_THREAD) {
            for outlines in pool::map(tasks, threads, |task| self.outlines(&runs[task.clone()])) {
                for (i, outline) in outlines? {
                    push_others(&mut columns, &mut checkpoints, i - done)?;
                    done = i + 1;
                    let meta = &outline.meta;
                    let engine = meta.engine.as_deref();
                    columns.push(meta.max_score, meta.steps, meta.highest_tile, engine);
                    checkpoints.push(meta.steps, &outline.checkpoints)?;
                }
            }
        }
        push_others(&mut columns, &mut checkpoints, self.len() - done)?;
        Ok((columns.finish(), checkpoints))
    }

    fn outlines(&self, entries: &[u64]) -> Result<Vec<(u64, Outline)>> {
        let found = self.each(entries, 1, &|_| Ok(()), &|i, entry, stored| {
            let version = self.run_version(i)?;
            let payload = self.decode(i, entry, stored)?;
            let outline = outline(version, &payload);
            outline.map(|found| (i, found)).map_err(|error| self.about_entry(i, entry, error))
        })?;
        found.into_iter().collect()
    }
}

/// Returns the error for stored bytes that do not match their checksum.
pub(super) fn checksum_mismatch() -> Error {
    Error::Corrupt("the stored bytes do not match their checksum".into())
}

/// Adds `count` entries that are not runs.
pub(super) fn push_others(
    columns: &mut RunColumnsBuilder,
    checkpoints: &mut Checkpoints,
    count: u64,
) -> Result<()> {
    (0..count).try_for_each(|_| {
        columns.push_other();
        checkpoints.push(0, &[])
    })
}

/// Returns the pack at a position; `OutOfRange` if it does not exist.
pub(super) fn pack_at(packs: &[Arc<PackReader>], position: u32) -> Result<&PackReader> {
    packs.get(position as usize).map(Arc::as_ref).ok_or_else(|| no_pack(position, packs.len()))
}

/// Returns the error for a position after the last of `packs` packs.
pub(super) fn no_pack(position: u32, packs: usize) -> Error {
    Error::OutOfRange(format!("pack index {position} is out of range for {packs} packs"))
}

/// Returns the value of the cell, created by the first call that succeeds.
fn cached<T>(cell: &OnceLock<T>, make: impl FnOnce() -> Result<T>) -> Result<&T> {
    if let Some(value) = cell.get() {
        return Ok(value);
    }
    let value = make()?;
    Ok(cell.get_or_init(|| value))
}

/// Reads ranges, in order: borrowed if the file is mapped, else with one request.
fn fetch<'a>(storage: &'a dyn Storage, ranges: &[Range<u64>]) -> Result<Vec<Cow<'a, [u8]>>> {
    if let Some(whole) = storage.mapped() {
        return ranges
            .iter()
            .map(|range| slice(storage, whole, range).map(Cow::Borrowed))
            .collect();
    }
    Ok(storage.read(ranges)?.into_iter().map(Cow::Owned).collect())
}

/// Reads one range: borrowed if the file is mapped.
pub(super) fn fetch_one(storage: &dyn Storage, range: Range<u64>) -> Result<Cow<'_, [u8]>> {
    let mut fetched = fetch(storage, std::slice::from_ref(&range))?;
    Ok(fetched.pop().unwrap_or_default())
}

/// Header and footer, and the locations that they state.
struct Ends {
    header: Header,
    footer: Footer,
    index: Range<u64>,
    /// The lowest offset of a section.
    sections_from: u64,
    directory: Option<Range<u64>>,
}

impl Ends {
    /// Parses the header, the footer and the eight bytes before the footer of a file whose
    /// footer begins at `footer_at`. All returned ranges are inside the file.
    fn parse(stored: &[Cow<'_, [u8]>], footer_at: u64) -> Result<Self> {
        let [header, footer, directory_offset] = stored else {
            return Err(Error::Corrupt("the header or the footer of the pack is missing".into()));
        };
        let (header, footer) = (Header::parse(header)?, Footer::parse(footer)?);
        let index = index_range(header.count).filter(|range| range.end <= footer.data_end);
        let Some(index) = index.filter(|_| footer.data_end <= footer_at) else {
            return Err(Error::Corrupt(format!(
                "the pack declares {} entries that end at offset {}, which cannot fit between the \
                 header and the footer at offset {footer_at}",
                header.count, footer.data_end
            )));
        };
        let sections_from = match footer.stats_offset {
            0 => Some(footer.data_end),
            stats => stats.checked_add(4).filter(|_| stats >= footer.data_end),
        };
        let Some(sections_from) = sections_from.filter(|&from| from <= footer_at) else {
            return Err(Error::Corrupt(format!(
                "the stats block at offset {} is outside the file or overlaps entries",
                footer.stats_offset
            )));
        };
        let mut directory = None;
        if header.flags & HAS_SECTIONS != 0 {
            let own = u64_at(directory_offset, 0);
            let end = own.checked_add(SECTION_HEADER_BYTES as u64);
            if own < sections_from
                || end.is_none_or(|end| end > footer_at)
                || footer_at - own > MAX_DIRECTORY_BYTES
                || !own.is_multiple_of(8)
            {
                return Err(Error::Corrupt(format!(
                    "the section directory has the invalid offset {own}"
                )));
            }
            directory = Some(own..footer_at);
        }
        Ok(Self { header, footer, index, sections_from, directory })
    }
}

/// Reads and checks header, footer, index and directory.
fn open(storage: &dyn Storage) -> Result<(Ends, Index, Directory)> {
    let about = |error: Error| error.about(format_args!("`{}`", storage.name()));
    let len = storage.len();
    let footer_at = len.checked_sub(FOOTER_BYTES as u64).filter(|&at| at >= HEADER_BYTES as u64);
    let Some(footer_at) = footer_at else {
        return Err(about(Error::Corrupt(format!(
            "the file is not a pack: it has only {len} bytes"
        ))));
    };
    let before_footer = footer_at - DIRECTORY_OFFSET_BYTES;
    let wanted = [0..HEADER_BYTES as u64, footer_at..len, before_footer..footer_at];
    let ends = Ends::parse(&fetch(storage, &wanted)?, footer_at).map_err(about)?;
    let mut wanted: Vec<Range<u64>> = ends.directory.iter().cloned().collect();
    if !ends.index.is_empty() {
        wanted.push(ends.index.clone());
    }
    let fetched = if wanted.is_empty() { Vec::new() } else { fetch(storage, &wanted)? };
    let mut fetched = fetched.into_iter();
    let directory = match &ends.directory {
        Some(range) => {
            read_directory(fetched.next().unwrap_or_default(), range, ends.sections_from)
        }
        None => Ok(Directory::default()),
    };
    let directory = directory.map_err(about)?;
    let index = owned(fetched.next().unwrap_or_default())
        .and_then(|bytes| Index::parse(bytes, ends.footer.index_crc, ends.footer.data_end));
    Ok((ends, index.map_err(about)?, directory))
}

fn read_directory(stored: Cow<'_, [u8]>, range: &Range<u64>, first: u64) -> Result<Directory> {
    let length = stored.len().saturating_sub(SECTION_HEADER_BYTES) as u64;
    let location = SectionLocation { tag: Tag::DIRS, offset: range.start, length };
    Directory::parse(&section_bytes(&location, stored)?, range.start, first)
}

/// Copies borrowed bytes; `TooLarge` if there is not enough memory.
fn owned(bytes: Cow<'_, [u8]>) -> Result<Vec<u8>> {
    match bytes {
        Cow::Owned(bytes) => Ok(bytes),
        Cow::Borrowed(bytes) => {
            let mut copy = Vec::new();
            copy.try_reserve_exact(bytes.len()).map_err(|_| {
                Error::TooLarge(format!(
                    "not enough memory for a pack index of {} bytes",
                    bytes.len()
                ))
            })?;
            copy.extend_from_slice(bytes);
            Ok(copy)
        }
    }
}
