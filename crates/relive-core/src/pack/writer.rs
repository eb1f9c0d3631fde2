//! Writes a pack: entries are appended, and the complete pack gets its name at the end.
//!
//! `docs/format/pack.md` §6 is the specification. Entries are written to an unfinished file and
//! their properties to its journal; only names are kept in memory.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use super::index::groups;
use super::layout::{
    ENTRY_BYTES, Entry, FIRST_USER_KIND, HAS_CRC, HAS_DICTIONARY, HEADER_BYTES, KIND_V2, MAX_ALIGN,
    MAX_ENTRIES, MAX_STORED_BYTES, align_up, check_align, run_version,
};
use super::reader::checksum_mismatch;
use super::seal::{BUFFER_BYTES, Extent, Finished, Unfinished, seal};
use super::sections::{Kinds, kind_id};
use super::unfinished::{
    Opening, being_written, check_target, entry_record, journal_of, kind_record, remove_unfinished,
    sealing_record, unfinished_name,
};
use crate::codec::{Codec, Dictionary, Encoder, MAX_BYTES};
use crate::crc::{Crc32c, crc32c};
use crate::durable::{self, Appender};
use crate::flusher::{Buffered, Flusher};
use crate::fork::OwnerProcess;
use crate::journal::Journal;
use crate::latch::Latch;
use crate::runs::{Outline, outline};
use crate::{Error, Result, pool};

/// The most bytes of an entry's name.
pub const MAX_NAME_BYTES: usize = u16::MAX as usize;

/// Padding between entries.
static ZEROS: [u8; MAX_ALIGN as usize] = [0; _];

/// The payload bytes of a batch that are compressed at a time.
const GROUP_BYTES: u64 = 16 << 20;

/// The payload bytes after which entries are written at once; a thread writes fewer within 0.1 s.
const MAX_PENDING_BYTES: u64 = 8 << 20;

/// Bytes reserved for header and index if no capacity is given.
const DEFAULT_HEAD_BYTES: u64 = 64 * 1024;

/// Options for writing a pack.
#[derive(Clone, Debug)]
pub struct WriterOptions {
    /// Each entry begins at a multiple of this offset.
    pub align: u32,
    /// The default codec of payloads.
    pub codec: Codec,
    /// The level of `codec`.
    pub level: Option<i32>,
    /// The dictionary of zstd payloads.
    pub dictionary: Option<Arc<Dictionary>>,
    /// Whether CRCs of the entries are stored.
    pub checksum: bool,
    /// The number of entries that fit in the index before payloads have to be moved.
    pub capacity: Option<u64>,
    /// Whether an existing file is replaced.
    pub overwrite: bool,
    /// The most bytes of a payload that is compressed.
    pub max_payload_bytes: u64,
    /// Whether a step table is written.
    pub step_table: bool,
    /// The most threads of one call.
    pub threads: usize,
}

impl Default for WriterOptions {
    fn default() -> Self {
        Self {
            align: 4096,
            codec: Codec::Raw,
            level: None,
            dictionary: None,
            checksum: true,
            capacity: None,
            overwrite: false,
            max_payload_bytes: MAX_BYTES,
            step_table: false,
            threads: pool::default_threads(),
        }
    }
}

/// A pack that is being written.
///
/// Appended entries survive the end of the process after [`flush`](Self::flush), which a thread
/// also calls within a fraction of a second, a power cut after [`sync`](Self::sync), and are
/// visible to readers after [`finish`](Self::finish). A dropped writer leaves an unfinished pack
/// that `recover` can complete. An error of the operating system closes the writer; in a forked
/// child it is closed too.
pub struct PackWriter {
    target: PathBuf,
    /// The path of the unfinished pack.
    pub(super) path: PathBuf,
    options: WriterOptions,
    opening: Opening,
    owner: OwnerProcess,
    state: State,
    extent: Extent,
    /// The CRC of all entries and the padding between them.
    data_crc: Crc32c,
    kinds: Kinds,
    names: HashSet<Box<str>>,
    /// Indexed by codec id, created at first use.
    encoders: [Option<Encoder>; Codec::ALL.len()],
    record: Vec<u8>,
    synced_folder: bool,
}

enum State {
    Open(Arc<OpenFiles>),
    Unfinished,
    Finished,
    Aborted,
}

/// The files of a pack that is being written, shared with the thread that writes their buffers.
struct OpenFiles {
    path: PathBuf,
    flusher: &'static Flusher,
    /// `None` once the writer is closed.
    files: Mutex<Option<Files>>,
    /// The error of the background thread.
    failure: Latch,
}

/// The journal never has an entry whose bytes are not in the file, so that no kill separates them.
struct Files {
    data: Appender,
    journal: Journal,
    /// Payload bytes since the last flush.
    payload_bytes: u64,
}

impl Files {
    /// Appends an entry: its padding, stored bytes and journal record.
    fn append(&mut self, padding: &[u8], item: &Item<'_>, record: &[u8]) -> Result<()> {
        let written = self.data.written();
        self.data.append(padding)?;
        self.data.append(&item.stored)?;
        self.payload_bytes += (item.stored.len() as u64).max(u64::from(item.logical));
        if self.payload_bytes >= MAX_PENDING_BYTES || self.journal.is_full(record.len()) {
            self.data.flush()?;
        }
        if self.data.written() > written {
            // The bytes of all entries before this one are in the file.
            self.journal.flush()?;
        }
        self.journal.append(record)?;
        if self.data.pending() == 0 { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        self.data.flush()?;
        self.payload_bytes = 0;
        self.journal.flush()
    }

    /// Checks that the files were not removed; `path` is that of the entries.
    fn check_at(&self, path: &Path) -> Result<()> {
        durable::check_at(self.data.file(), path)?;
        durable::check_at(&self.journal.file(), self.journal.path())
    }
}

impl OpenFiles {
    /// Adds the files to those that are written in the background.
    fn start(path: &Path, data: Appender, journal: Journal) -> Result<Arc<Self>> {
        let open = Arc::new(Self {
            path: path.to_path_buf(),
            flusher: Flusher::of_this_process(),
            files: Mutex::new(Some(Files { data, journal, payload_bytes: 0 })),
            failure: Latch::default(),
        });
        open.flusher.add(Arc::clone(&open) as Arc<dyn Buffered>)?;
        Ok(open)
    }

    /// Takes the files, after a write in progress.
    fn end(self: &Arc<Self>) -> Option<Files> {
        self.flusher.remove(self);
        self.files.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn write<T>(&self, write: impl FnOnce(&mut Files) -> Result<T>) -> Result<T> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        self.failure.check()?;
        let Some(files) = &mut *files else {
            return Err(Error::Closed(format!("`{}` is closed", self.path.display())));
        };
        write(files).map_err(|error| self.named(error))
    }

    fn named(&self, error: Error) -> Error {
        match error {
            // Errors of the journal have its name already.
            Error::Io(error) if error.raw_os_error().is_some() => {
                durable::about(&self.path, &error)
            }
            other => other,
        }
    }
}

impl Buffered for OpenFiles {
    fn write_if_free(&self) {
        let mut files = match self.files.try_lock() {
            Ok(files) => files,
            Err(TryLockError::Poisoned(files)) => files.into_inner(),
            Err(TryLockError::WouldBlock) => return, // the writer is busy, and flushes soon
        };
        if let Some(files) = &mut *files
            && !self.failure.is_set()
            && let Err(error) = files.flush()
        {
            self.failure.keep(self.named(error));
        }
    }

    /// Does nothing: entries survive a power cut only after `sync`.
    fn sync_if_free(&self) {}
}

/// A checked entry that is ready to be written.
struct Item<'a> {
    kind: u16,
    flags: u16,
    logical: u32,
    stored: Cow<'a, [u8]>,
    name: Option<&'a str>,
    outline: Option<Outline>,
}

impl PackWriter {
    /// Creates a pack that will be at `target`. An existing file there is `AlreadyExists`, unless
    /// it may be overwritten; it is replaced when the pack is finished.
    pub fn create(target: &Path, options: WriterOptions) -> Result<Self> {
        check_align(options.align)?;
        let start = first_offset(options.capacity, options.align)?;
        let mut encoders = [const { None }; Codec::ALL.len()];
        encoders[options.codec.id() as usize] = Some(encoder(&options, options.codec)?);
        check_target(target, options.overwrite)?;
        let opening = Opening {
            checksum: options.checksum,
            step_table: options.step_table,
            align: options.align,
            start,
            max_payload_bytes: options.max_payload_bytes,
            dictionary: options.dictionary.clone(),
        };
        let path = unfinished_name(target);
        let about = |error: std::io::Error| durable::about(&path, &error);
        let file = durable::create_new(&path).map_err(about)?;
        let begin = || {
            if !durable::try_lock(&file).map_err(about)? {
                return Err(being_written(&path));
            }
            let mut journal = Journal::create(&journal_of(&path))?;
            journal.append(&opening.to_record())?;
            journal.flush()?;
            Ok(journal)
        };
        let begun = begin().and_then(|journal| {
            OpenFiles::start(&path, Appender::new(file, start, BUFFER_BYTES), journal)
        });
        let files = begun.inspect_err(|_| {
            let _ = remove_unfinished(&path);
        })?;
        Ok(Self {
            target: target.to_path_buf(),
            state: State::Open(files),
            path,
            options,
            opening,
            owner: OwnerProcess::current(),
            extent: Extent::new(start),
            data_crc: Crc32c::default(),
            kinds: Kinds::default(),
            names: HashSet::new(),
            encoders,
            record: Vec::new(),
            synced_folder: false,
        })
    }

    /// Returns the path of the finished pack.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Returns the options.
    pub fn options(&self) -> &WriterOptions {
        &self.options
    }

    /// Returns the number of appended entries.
    pub fn len(&self) -> u64 {
        self.extent.count
    }

    /// Whether nothing was appended.
    pub fn is_empty(&self) -> bool {
        self.extent.count == 0
    }

    /// Whether entries can be appended.
    pub fn is_open(&self) -> bool {
        self.check_open().is_ok()
    }

    /// Returns the number of a kind in this pack; a new name gets the next number.
    pub fn kind_id(&mut self, name: &str) -> Result<u16> {
        if let Some(id) = kind_id(name).or_else(|| self.kinds.id(name)) {
            return Ok(id);
        }
        self.check_open()?;
        let id = self.kinds.add(name)?;
        let record = kind_record(id, name);
        self.on_disk(|files| files.journal.append(&record))?;
        Ok(id)
    }

    /// Appends a payload and returns its position.
    ///
    /// A run that cannot be parsed is `Corrupt`, and nothing is appended. A payload that
    /// compression does not shorten is stored raw.
    pub fn append(
        &mut self,
        payload: &[u8],
        kind: u16,
        name: Option<&str>,
        codec: Option<Codec>,
    ) -> Result<u64> {
        self.check_open()?;
        self.check_room(1)?;
        self.check_kind(kind)?;
        self.check_name(name)?;
        let codec = self.choose(codec)?;
        self.check_length(payload, codec)?;
        let outline = outline_of(kind, payload)?;
        let item = self.encode(payload, kind, name, codec, outline)?;
        self.put(&item)
    }

    /// Appends payloads, compressed in parallel, and returns their positions.
    ///
    /// If one is refused, the error names it and none is appended.
    pub fn extend(
        &mut self,
        payloads: &[&[u8]],
        kinds: &[u16],
        names: &[Option<&str>],
        codec: Option<Codec>,
    ) -> Result<Range<u64>> {
        self.check_open()?;
        let first = self.extent.count;
        if kinds.len() != payloads.len() || names.len() != payloads.len() {
            return Err(Error::Invalid(format!(
                "got {} payloads, {} kinds and {} names: pass one kind and one name per payload",
                payloads.len(),
                kinds.len(),
                names.len()
            )));
        }
        self.check_room(payloads.len() as u64)?;
        let codec = self.choose(codec)?;
        let mut seen = HashSet::new();
        for (at, (&kind, &name)) in kinds.iter().zip(names).enumerate() {
            self.check_kind(kind).map_err(|error| in_batch(at, error))?;
            self.check_name(name).map_err(|error| in_batch(at, error))?;
            self.check_length(payloads[at], codec).map_err(|error| in_batch(at, error))?;
            if name.is_some_and(|name| !seen.insert(name)) {
                return Err(in_batch(at, name_taken(name)));
            }
        }
        let threads = self.options.threads;
        let outlines = pool::map(0..payloads.len(), threads, |at| {
            outline_of(kinds[at], payloads[at]).map_err(|error| in_batch(at, error))
        });
        let mut outlines: Vec<Option<Outline>> = outlines.into_iter().collect::<Result<_>>()?;
        let bytes = |at: usize| Ok(payloads[at].len() as u64);
        for group in groups(payloads.len(), bytes, GROUP_BYTES, usize::MAX)? {
            let encoded = pool::map(group.clone(), threads, |at| {
                self.encode(payloads[at], kinds[at], names[at], codec, None)
                    .map_err(|error| in_batch(at, error))
            });
            for (at, item) in group.zip(encoded) {
                self.put(&Item { outline: outlines[at].take(), ..item? })?;
            }
        }
        Ok(first..self.extent.count)
    }

    /// Checks the entry of another pack. Thread-safe.
    pub(super) fn check_stored<'a>(
        &self,
        stored: Cow<'a, [u8]>,
        entry: &Entry,
        kind: u16,
        name: Option<&'a str>,
    ) -> Result<StoredItem<'a>> {
        entry.codec()?;
        let crc = crc32c(&stored);
        if stored.len() as u64 != u64::from(entry.length) || (entry.has_crc() && crc != entry.crc) {
            return Err(checksum_mismatch());
        }
        if entry.flags & HAS_DICTIONARY != 0 && self.opening.dictionary.is_none() {
            return Err(Error::Unsupported(
                "the entry is compressed with a dictionary, but the target pack has no dictionary"
                    .into(),
            ));
        }
        let outline = match run_version(kind) {
            None => None,
            Some(version) => {
                let payload = entry.decode(stored.as_ref().into(), &self.opening.decoder())?;
                Some(outline(version, &payload)?)
            }
        };
        Ok(StoredItem(Item {
            kind,
            flags: entry.flags & !HAS_CRC,
            logical: entry.logical,
            stored,
            name,
            outline,
        }))
    }

    /// Appends an entry that [`check_stored`](Self::check_stored) returned.
    pub(super) fn put_stored(&mut self, item: &StoredItem<'_>) -> Result<u64> {
        self.check_open()?;
        self.check_room(1)?;
        // Numbers of built-in kinds are kept, even if this version does not know them.
        if item.0.kind >= FIRST_USER_KIND {
            self.check_kind(item.0.kind)?;
        }
        self.check_name(item.0.name)?;
        self.put(&item.0)
    }

    /// Writes all entries to the file, so that they survive the end of the process.
    pub fn flush(&mut self) -> Result<()> {
        self.check_open()?;
        let path = self.path.clone();
        self.on_disk(|files| {
            files.flush()?;
            files.check_at(&path)
        })
    }

    /// Writes all entries to the disk, so that they survive a power cut.
    pub fn sync(&mut self) -> Result<()> {
        self.check_open()?;
        let path = self.path.clone();
        let folder = (!self.synced_folder).then(|| path.clone());
        self.on_disk(|files| {
            // The entries first: a journal record must not exist without its entry.
            files.data.sync()?;
            files.journal.sync()?;
            files.check_at(&path)?;
            folder.as_deref().map_or(Ok(()), durable::sync_folder_of)
        })?;
        self.synced_folder = true;
        Ok(())
    }

    /// Writes index, sections and footer, and renames the pack to its final name.
    ///
    /// If that fails, an existing pack stays, the unfinished pack is kept, and the writer is
    /// closed.
    pub fn finish(&mut self) -> Result<Finished> {
        let (count, end) = (self.extent.count, self.extent.end);
        self.flush()?;
        self.on_disk(|files| {
            // All bytes after the entries are now those of index, sections and footer.
            files.journal.append(&sealing_record(count, end))?;
            files.journal.flush()
        })?;
        let Some(Files { data, .. }) = self.end(State::Unfinished) else {
            return Err(self.closed());
        };
        let unfinished = Unfinished {
            path: &self.path,
            file: data.file(),
            opening: &self.opening,
            extent: Extent { crc: self.data_crc.value(), ..self.extent },
            dirty: false,
            copy: false,
            threads: self.options.threads,
        };
        let finished = seal(&unfinished, &self.target, self.options.overwrite)?;
        self.state = State::Finished;
        Ok(finished)
    }

    /// Removes all that was written. Aborting again does nothing.
    pub fn abort(&mut self) -> Result<()> {
        self.check_process()?;
        if let Some(files) = self.end(State::Aborted) {
            let removed = remove_unfinished(&self.path);
            drop(files); // and with them the lock
            return removed;
        }
        match std::mem::replace(&mut self.state, State::Aborted) {
            State::Open(_) | State::Aborted => Ok(()),
            State::Finished => {
                self.state = State::Finished;
                Err(self.closed())
            }
            State::Unfinished => {
                // The lock was released, so another process may have recovered the pack.
                if !durable::is_taken(&self.path) {
                    return Ok(());
                }
                let file = durable::open_rw(&self.path)?;
                if !durable::try_lock(&file)? {
                    self.state = State::Unfinished;
                    return Err(being_written(&self.path));
                }
                remove_unfinished(&self.path)
            }
        }
    }

    /// Closes the writer and keeps the pack unfinished and recoverable.
    pub fn leave(&mut self) -> Result<()> {
        self.check_process()?;
        if !matches!(self.state, State::Open(_)) {
            return Ok(());
        }
        let flushed = self.flush();
        self.end(State::Unfinished);
        flushed
    }

    /// Takes the files of an open writer, which is in another state from now on.
    fn end(&mut self, state: State) -> Option<Files> {
        let State::Open(open) = &self.state else { return None };
        let files = open.end();
        self.state = state;
        files
    }

    fn closed(&self) -> Error {
        let name = self.target.display();
        Error::Closed(match self.state {
            State::Finished => format!("the writer of `{name}` is closed: the pack is finished"),
            State::Aborted => format!("the writer of `{name}` was aborted"),
            _ => format!(
                "the writer of `{name}` is closed: its entries are in `{}` and can be recovered",
                self.path.display()
            ),
        })
    }

    fn check_process(&self) -> Result<()> {
        if self.owner.is_current() {
            return Ok(());
        }
        self.owner.check(&format!("the writer of `{}`", self.target.display()))
    }

    fn check_open(&self) -> Result<()> {
        self.check_process()?;
        if matches!(self.state, State::Open(_)) { Ok(()) } else { Err(self.closed()) }
    }

    fn check_room(&self, more: u64) -> Result<()> {
        if self.extent.count.saturating_add(more) <= MAX_ENTRIES {
            return Ok(());
        }
        Err(Error::TooLarge(format!("a pack can have at most {MAX_ENTRIES} entries")))
    }

    fn check_kind(&self, kind: u16) -> Result<()> {
        if kind <= KIND_V2 || self.kinds.name(kind).is_some() {
            return Ok(());
        }
        Err(Error::Invalid(format!("unknown entry kind number {kind}")))
    }

    fn check_name(&self, name: Option<&str>) -> Result<()> {
        match name {
            Some("") => Err(Error::Invalid("`name` must not be empty".into())),
            Some(name) if name.len() > MAX_NAME_BYTES => Err(Error::TooLarge(format!(
                "`name` must be at most {MAX_NAME_BYTES} bytes long, got {} bytes",
                name.len()
            ))),
            Some(taken) if self.names.contains(taken) => Err(name_taken(name)),
            _ => Ok(()),
        }
    }

    fn check_length(&self, payload: &[u8], codec: Codec) -> Result<()> {
        let most = match codec {
            Codec::Raw => MAX_STORED_BYTES,
            _ => MAX_STORED_BYTES.min(self.options.max_payload_bytes),
        };
        if payload.len() as u64 <= most {
            return Ok(());
        }
        Err(Error::TooLarge(format!(
            "a payload of {} bytes exceeds the limit of {most} bytes",
            payload.len()
        )))
    }

    /// Returns the codec to use, after creating its encoder.
    fn choose(&mut self, codec: Option<Codec>) -> Result<Codec> {
        let codec = codec.unwrap_or(self.options.codec);
        let slot = &mut self.encoders[codec.id() as usize];
        if slot.is_none() {
            *slot = Some(encoder(&self.options, codec)?);
        }
        Ok(codec)
    }

    fn encode<'a>(
        &self,
        payload: &'a [u8],
        kind: u16,
        name: Option<&'a str>,
        codec: Codec,
        outline: Option<Outline>,
    ) -> Result<Item<'a>> {
        let raw = Item { kind, flags: 0, logical: 0, stored: payload.into(), name, outline };
        let Some(encoder) = &self.encoders[codec.id() as usize] else { return Ok(raw) };
        if codec == Codec::Raw {
            return Ok(raw);
        }
        let (codec, stored) = encoder.encode_or_raw(payload)?;
        if codec == Codec::Raw {
            return Ok(raw);
        }
        let dictionary = if encoder.dictionary().is_some() { HAS_DICTIONARY } else { 0 };
        let flags = u16::from(codec.id()) | dictionary;
        // `check_length` checked that the length fits.
        Ok(Item { flags, logical: payload.len() as u32, stored, ..raw })
    }

    fn put(&mut self, item: &Item<'_>) -> Result<u64> {
        let crc = crc32c(&item.stored);
        let too_large = || Error::TooLarge("the pack would exceed the maximum file size".into());
        let offset = self.extent.next(self.options.align).ok_or_else(too_large)?;
        let (flags, kept) = if self.options.checksum { (HAS_CRC, crc) } else { (0, 0) };
        let entry = Entry {
            offset,
            // Stored bytes are never longer than the payload, whose length was checked.
            length: item.stored.len() as u32,
            kind: item.kind,
            flags: item.flags | flags,
            crc: kept,
            logical: item.logical,
        };
        entry.end().filter(|end| *end <= i64::MAX as u64).ok_or_else(too_large)?;
        let mut record = std::mem::take(&mut self.record);
        entry_record(&entry, crc, item.name, item.outline.as_ref(), &mut record);
        let padding = &ZEROS[..(offset - self.extent.end) as usize];
        let written = self.on_disk(|files| files.append(padding, item, &record));
        self.record = record;
        written?;
        // Faster than combining CRCs, except for the longest payloads.
        self.data_crc.update(padding);
        self.data_crc.update(&item.stored);
        self.extent.push(&entry);
        if let Some(name) = item.name {
            self.names.insert(name.into());
        }
        Ok(self.extent.count - 1)
    }

    /// Writes to the files; a failure closes the writer, since the state on disk is then unknown.
    fn on_disk(&mut self, write: impl FnOnce(&mut Files) -> Result<()>) -> Result<()> {
        let State::Open(open) = &self.state else { return Err(self.closed()) };
        open.write(write).inspect_err(|_| {
            self.end(State::Unfinished);
        })
    }
}

impl Drop for PackWriter {
    fn drop(&mut self) {
        // In a forked child this does nothing: the parent writes the buffers.
        let _ = self.leave();
    }
}

/// An entry of another pack that was checked.
pub(super) struct StoredItem<'a>(Item<'a>);

/// Parses a run and returns its outline; `None` for other kinds.
pub(super) fn outline_of(kind: u16, payload: &[u8]) -> Result<Option<Outline>> {
    run_version(kind).map(|version| outline(version, payload)).transpose()
}

/// Returns the encoder for `codec`.
fn encoder(options: &WriterOptions, codec: Codec) -> Result<Encoder> {
    let level = if codec == options.codec { options.level } else { None };
    let encoder = Encoder::new(codec, level)?.with_max_bytes(options.max_payload_bytes);
    match &options.dictionary {
        Some(dictionary) if codec == Codec::Zstd => encoder.with_dictionary(Arc::clone(dictionary)),
        _ => Ok(encoder),
    }
}

/// Returns the offset of the first entry, after an index with room for `capacity` entries.
fn first_offset(capacity: Option<u64>, align: u32) -> Result<u64> {
    let default = (DEFAULT_HEAD_BYTES - HEADER_BYTES as u64) / ENTRY_BYTES as u64;
    let capacity = capacity.unwrap_or(default);
    if capacity > MAX_ENTRIES {
        return Err(Error::Invalid(format!(
            "`capacity` must be at most {MAX_ENTRIES}, got {capacity}"
        )));
    }
    let index_end = HEADER_BYTES as u64 + ENTRY_BYTES as u64 * capacity;
    align_up(index_end, u64::from(align)).ok_or_else(|| {
        Error::Invalid(
            "`capacity` or `align` is too large: the pack would exceed the maximum file size"
                .into(),
        )
    })
}

fn name_taken(name: Option<&str>) -> Error {
    let name = name.unwrap_or_default().escape_debug();
    Error::NameTaken(format!("another entry already has the name `{name}`"))
}

/// Adds the position of the payload to an error.
fn in_batch(at: usize, error: Error) -> Error {
    error.about(format_args!("payload {at} of the batch"))
}
