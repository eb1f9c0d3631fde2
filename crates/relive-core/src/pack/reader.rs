//! Reading a pack: opened once, then shared by any number of threads.

mod payload;
mod scan;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use self::scan::Scan;
use super::index::{Index, index_range};
use super::layout::{
    Entry, FOOTER_BYTES, Footer, HAS_SECTIONS, HEADER_BYTES, Header, SECTION_HEADER_BYTES, Tag,
    u32_at, u64_at,
};
use super::sections::{
    Checkpoints, Directory, Kinds, Names, RunColumns, SectionPlace, StepTable, kind_name,
    section_bytes,
};
use super::stats::MAX_STATS_BYTES;
use crate::codec::{Decoder, Dictionary, MAX_BYTES};
use crate::crc::crc32c;
use crate::storage::{MappedFile, PreadFile, Storage, slice};
use crate::{Error, Result};

/// What lies between a directory and the footer: nothing, so the directory's last field,
/// its own offset, is found without knowing where it begins.
const DIRECTORY_OFFSET_BYTES: u64 = 8;

/// A directory of many more sections than there are kinds of. What is longer is none, and is
/// not read.
const MAX_DIRECTORY_BYTES: u64 = 64 * 1024;

/// When checksums of entries are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// When an entry is touched for the first time.
    #[default]
    First,
    /// At every touch.
    Always,
    /// Not at all.
    Never,
}

/// How a pack is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// When checksums of entries are compared.
    pub verify: Verify,
    /// The longest payload that is decompressed.
    pub max_payload_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { verify: Verify::First, max_payload_bytes: MAX_BYTES }
    }
}

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
    /// One bit for each entry whose checksum was found to match.
    verified: Vec<AtomicU64>,
    decoder: OnceLock<Decoder>,
    kinds: OnceLock<Kinds>,
    names: OnceLock<Option<Names>>,
    run_columns: OnceLock<RunColumns>,
    checkpoints: OnceLock<Checkpoints>,
    step_table: OnceLock<StepTable>,
    /// Held while all entries are read, so that they are read once.
    scanning: Mutex<()>,
}

impl fmt::Debug for PackReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PackReader({}, entries={})", self.storage.name(), self.len())
    }
}

impl PackReader {
    /// Opens the pack at `path`, as memory or to be read piece by piece.
    pub fn open(path: &Path, mapped: bool, options: Options) -> Result<Self> {
        let storage: Box<dyn Storage> = if mapped {
            Box::new(MappedFile::open(path)?)
        } else {
            Box::new(PreadFile::open(path)?)
        };
        Self::open_storage(storage, options)
    }

    /// Opens a pack with at most two requests: both ends of the file, then the index and
    /// the directory of sections.
    pub fn open_storage(storage: Box<dyn Storage>, options: Options) -> Result<Self> {
        let (ends, index, directory) = open(&*storage)?;
        let words = index.len().div_ceil(64);
        Ok(Self {
            storage,
            options,
            header: ends.header,
            footer: ends.footer,
            index,
            directory,
            verified: (0..words).map(|_| AtomicU64::new(0)).collect(),
            decoder: OnceLock::new(),
            kinds: OnceLock::new(),
            names: OnceLock::new(),
            run_columns: OnceLock::new(),
            checkpoints: OnceLock::new(),
            step_table: OnceLock::new(),
            scanning: Mutex::new(()),
        })
    }

    /// The number of entries.
    pub fn len(&self) -> u64 {
        self.index.len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// What the index says of one entry; `OutOfRange` where there is none.
    #[inline]
    pub fn entry(&self, i: u64) -> Result<Entry> {
        self.index.get(i).ok_or_else(|| self.no_entry(i))
    }

    #[cold]
    fn no_entry(&self, i: u64) -> Error {
        let (name, len) = (self.storage.name(), self.len());
        Error::OutOfRange(format!("`{name}`: there is no entry {i} among {len}"))
    }

    /// What the index says of every entry, in order.
    pub fn entries(&self) -> impl Iterator<Item = Entry> {
        self.index.iter()
    }

    /// The header.
    pub fn header(&self) -> Header {
        self.header
    }

    /// The footer.
    pub fn footer(&self) -> Footer {
        self.footer
    }

    /// Where the bytes come from.
    pub fn storage(&self) -> &dyn Storage {
        &*self.storage
    }

    /// How it is read.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Where the sections are; empty without sections.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// The bytes of a section, whose checksum matches; `None` where there is no such one.
    pub fn section(&self, tag: Tag) -> Result<Option<Cow<'_, [u8]>>> {
        let Some(place) = self.directory.find(tag) else { return Ok(None) };
        self.storage.recheck()?;
        let stored = fetch_one(&*self.storage, place.range())?;
        section_bytes(place, stored).map(Some).map_err(|error| self.about(error))
    }

    /// The bytes of the stats block without their length, compared with section `STAT`
    /// where there is one; `None` where there is no block.
    pub fn stats_block(&self) -> Result<Option<Vec<u8>>> {
        let start = self.footer.stats_offset;
        if start == 0 {
            return Ok(None);
        }
        let footer_at = self.storage.len().saturating_sub(FOOTER_BYTES as u64);
        let limit = self.directory.iter().next().map_or(footer_at, |place| place.offset);
        let end = limit.min(start.saturating_add(MAX_STATS_BYTES as u64)).max(start);
        self.storage.recheck()?;
        let block = fetch_one(&*self.storage, start..end)?;
        let wrong = |text: &str| {
            self.about(Error::Corrupt(format!("the stats block at offset {start}: {text}")))
        };
        let length = 4 + u32_at(&block, 0) as usize;
        let block = block.get(..length).ok_or_else(|| wrong("it is longer than its place"))?;
        if let Some(stat) = self.section(Tag::STAT)?
            && (stat.len() != 4 || u32_at(&stat, 0) != crc32c(block))
        {
            return Err(wrong("the checksum does not match"));
        }
        Ok(Some(block[4..].to_vec()))
    }

    /// Decodes entries, with the dictionary of the pack where it has one.
    pub fn decoder(&self) -> Result<&Decoder> {
        cached(&self.decoder, || {
            let decoder = Decoder::new().with_max_bytes(self.options.max_payload_bytes);
            let Some(bytes) = self.section(Tag::DICT)? else { return Ok(decoder) };
            let dictionary = Dictionary::new(bytes.into_owned())
                .map_err(|error| self.about(error.about(format_args!("section {}", Tag::DICT))))?;
            Ok(decoder.with_dictionary(Arc::new(dictionary)))
        })
    }

    /// The user kinds of the pack.
    pub fn kinds(&self) -> Result<&Kinds> {
        cached(&self.kinds, || match self.section(Tag::KIND)? {
            Some(bytes) => Kinds::parse(&bytes).map_err(|error| self.about(error)),
            None => Ok(Kinds::default()),
        })
    }

    /// What the kind of an entry is called: `bytes`, `v1`, `v2`, the user's name for it, or
    /// its number where the pack does not name it.
    pub fn kind_name(&self, i: u64) -> Result<String> {
        let id = self.entry(i)?.kind;
        if let Some(name) = kind_name(id) {
            return Ok(name.to_owned());
        }
        Ok(self.kinds()?.name(id).map_or_else(|| format!("kind-{id}"), str::to_owned))
    }

    /// The names of the entries; `None` where no entry has one.
    pub fn names(&self) -> Result<Option<&Names>> {
        let names = cached(&self.names, || match self.section(Tag::NAME)? {
            Some(bytes) => {
                Names::parse(&bytes, self.len()).map(Some).map_err(|error| self.about(error))
            }
            None => Ok(None),
        });
        names.map(Option::as_ref)
    }

    /// The entry with this name.
    pub fn find(&self, name: &str) -> Result<Option<u64>> {
        Ok(self.names()?.and_then(|names| names.find(name)))
    }

    /// Score, steps, tile and engine of every run: as the pack has them, or, where it has
    /// not, out of one pass over all entries.
    pub fn run_columns(&self) -> Result<&RunColumns> {
        if self.run_columns.get().is_none() && self.directory.find(Tag::RUNS).is_none() {
            self.scan()?;
        }
        cached(&self.run_columns, || {
            let part = |tag: Tag| {
                let missing = || Error::Corrupt(format!("section {tag} is missing"));
                self.section(tag)?.ok_or_else(|| self.about(missing()))
            };
            let (runs, text) = (part(Tag::RUNS)?, part(Tag::TEXT)?);
            RunColumns::parse(&runs, &text, self.len()).map_err(|error| self.about(error))
        })
    }

    /// Where the steps of every run are: as the pack has it, or, where it has not, out of
    /// the same pass over all entries.
    pub fn checkpoints(&self) -> Result<&Checkpoints> {
        if self.checkpoints.get().is_none() && self.directory.find(Tag::CKPT).is_none() {
            self.scan()?;
        }
        cached(&self.checkpoints, || {
            let bytes = self.section(Tag::CKPT)?.unwrap_or_default();
            Checkpoints::parse(&bytes, self.len()).map_err(|error| self.about(error))
        })
    }

    /// The rows of all steps; `None` where the pack does not have them.
    pub fn step_table(&self) -> Result<Option<&StepTable>> {
        let Some(place) = self.directory.find(Tag::STEP) else { return Ok(None) };
        let table = cached(&self.step_table, || {
            self.storage.recheck()?;
            StepTable::open(&*self.storage, place).map_err(|error| self.about(error))
        });
        table.map(Some)
    }

    /// Fills in what a pass over all entries finds, unless another thread just did.
    fn scan(&self) -> Result<()> {
        let _alone = self.scanning.lock().unwrap_or_else(PoisonError::into_inner);
        if self.run_columns.get().is_some() && self.checkpoints.get().is_some() {
            return Ok(());
        }
        let Scan { columns, checkpoints } = scan::scan(self)?;
        if self.directory.find(Tag::RUNS).is_none() {
            let _ = self.run_columns.set(columns);
        }
        if self.directory.find(Tag::CKPT).is_none() {
            let _ = self.checkpoints.set(checkpoints);
        }
        Ok(())
    }

    /// The same error, naming the file, as errors of the storage do by themselves.
    fn about(&self, error: Error) -> Error {
        let file = format!("`{}`", self.storage.name());
        if error.to_string().starts_with(&file) { error } else { error.about(file) }
    }
}

/// What the cell holds, made at the first call; a failure is not kept.
fn cached<T>(cell: &OnceLock<T>, make: impl FnOnce() -> Result<T>) -> Result<&T> {
    if let Some(value) = cell.get() {
        return Ok(value);
    }
    let value = make()?;
    Ok(cell.get_or_init(|| value))
}

/// These ranges, in order: borrowed where the file is memory, else in one request.
fn fetch<'a>(storage: &'a dyn Storage, ranges: &[Range<u64>]) -> Result<Vec<Cow<'a, [u8]>>> {
    if let Some(whole) = storage.mapped() {
        return ranges
            .iter()
            .map(|range| slice(storage, whole, range).map(Cow::Borrowed))
            .collect();
    }
    let read = storage.read(ranges)?;
    let fits = |(range, bytes): (&Range<u64>, &Vec<u8>)| {
        range.end.checked_sub(range.start) == Some(bytes.len() as u64)
    };
    if read.len() == ranges.len() && ranges.iter().zip(&read).all(fits) {
        return Ok(read.into_iter().map(Cow::Owned).collect());
    }
    let name = storage.name();
    Err(Error::Corrupt(format!("`{name}`: fewer bytes came than were asked for")))
}

fn fetch_one(storage: &dyn Storage, range: Range<u64>) -> Result<Cow<'_, [u8]>> {
    let mut fetched = fetch(storage, std::slice::from_ref(&range))?;
    Ok(fetched.pop().unwrap_or_default())
}

/// What both ends of a pack say of the rest.
struct Ends {
    header: Header,
    footer: Footer,
    index: Range<u64>,
    /// Where the first section may begin.
    sections_from: u64,
    directory: Option<Range<u64>>,
}

impl Ends {
    /// Out of the header, the footer, and what lies before the footer of a file whose
    /// footer begins at `footer_at`. Everything it names lies inside of the file.
    fn parse(stored: &[Cow<'_, [u8]>], footer_at: u64) -> Result<Self> {
        let [header, footer, own] = stored else {
            return Err(Error::Corrupt("the ends of the file are missing".into()));
        };
        let (header, footer) = (Header::parse(header)?, Footer::parse(footer)?);
        let index = index_range(header.count).filter(|range| range.end <= footer.data_end);
        let Some(index) = index.filter(|_| footer.data_end <= footer_at) else {
            return Err(Error::Corrupt(format!(
                "{} entries that end at {} do not fit between header and footer at {footer_at}",
                header.count, footer.data_end
            )));
        };
        let sections_from = match footer.stats_offset {
            0 => Some(footer.data_end),
            stats => stats.checked_add(4).filter(|_| stats >= footer.data_end),
        };
        let Some(sections_from) = sections_from.filter(|&from| from <= footer_at) else {
            return Err(Error::Corrupt(format!(
                "the stats block at offset {} lies outside of the file, or overlaps entries",
                footer.stats_offset
            )));
        };
        let mut directory = None;
        if header.flags & HAS_SECTIONS != 0 {
            let own = u64_at(own, 0);
            let end = own.checked_add(SECTION_HEADER_BYTES as u64);
            if own < sections_from
                || end.is_none_or(|end| end > footer_at)
                || footer_at - own > MAX_DIRECTORY_BYTES
                || !own.is_multiple_of(8)
            {
                return Err(Error::Corrupt(format!("there can be no directory at offset {own}")));
            }
            directory = Some(own..footer_at);
        }
        Ok(Self { header, footer, index, sections_from, directory })
    }
}

/// The parts of a pack that are checked before anything else is trusted.
fn open(storage: &dyn Storage) -> Result<(Ends, Index, Directory)> {
    let about = |error: Error| error.about(format_args!("`{}`", storage.name()));
    let len = storage.len();
    let footer_at = len.checked_sub(FOOTER_BYTES as u64).filter(|&at| at >= HEADER_BYTES as u64);
    let Some(footer_at) = footer_at else {
        return Err(about(Error::Corrupt(format!("this is no pack: it has only {len} bytes"))));
    };
    let before_footer = footer_at - DIRECTORY_OFFSET_BYTES;
    let wanted = [0..HEADER_BYTES as u64, footer_at..len, before_footer..footer_at];
    let ends = Ends::parse(&fetch(storage, &wanted)?, footer_at).map_err(about)?;
    let mut wanted: Vec<Range<u64>> = ends.directory.iter().cloned().collect();
    if !ends.index.is_empty() {
        wanted.push(ends.index.clone());
    }
    let parts = if wanted.is_empty() { Vec::new() } else { fetch(storage, &wanted)? };
    let mut parts = parts.into_iter();
    let directory = match &ends.directory {
        Some(range) => read_directory(parts.next().unwrap_or_default(), range, ends.sections_from),
        None => Ok(Directory::default()),
    };
    let directory = directory.map_err(about)?;
    let index = owned(parts.next().unwrap_or_default())
        .and_then(|bytes| Index::parse(bytes, ends.footer.index_crc, ends.footer.data_end));
    Ok((ends, index.map_err(about)?, directory))
}

fn read_directory(stored: Cow<'_, [u8]>, range: &Range<u64>, first: u64) -> Result<Directory> {
    let length = stored.len().saturating_sub(SECTION_HEADER_BYTES) as u64;
    let place = SectionPlace { tag: Tag::DIRS, offset: range.start, length };
    Directory::parse(&section_bytes(&place, stored)?, range.start, first)
}

/// The bytes as our own; `TooLarge` where there is no memory for them.
fn owned(bytes: Cow<'_, [u8]>) -> Result<Vec<u8>> {
    match bytes {
        Cow::Owned(bytes) => Ok(bytes),
        Cow::Borrowed(bytes) => {
            let mut copy = Vec::new();
            copy.try_reserve_exact(bytes.len()).map_err(|_| {
                Error::TooLarge(format!("there is no memory for an index of {} bytes", bytes.len()))
            })?;
            copy.extend_from_slice(bytes);
            Ok(copy)
        }
    }
}
