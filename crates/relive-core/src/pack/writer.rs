//! Writing a pack: entries are appended, and the pack appears whole under its name at the end.
//!
//! `docs/format/pack.md` §6 is the specification. Entries go to an unfinished file, what is
//! known of them to its journal; nothing but names is kept in memory.

#[cfg(test)]
pub(crate) mod naive;
mod options;
mod place;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use self::options::{encoder, first_offset};
use self::place::{remove_unfinished, unfinished_name};
use super::layout::{
    Entry, FIRST_USER_KIND, HAS_CRC, HAS_DICTIONARY, KIND_BYTES, KIND_V1, KIND_V2, MAX_ALIGN,
    MAX_ENTRIES, MAX_STORED_BYTES, check_align,
};
use super::seal::{Draft, Extent, Finished, ROOM, map_each, open_draft, seal};
use super::sections::Kinds;
use super::unfinished::{self, Opening, journal_of};
use crate::codec::{Codec, Encoder, Stored};
use crate::crc::{Crc32c, crc32c};
use crate::durable::{self, Appender};
use crate::journal::Journal;
use crate::runs::{Outline, Version, outline};
use crate::{Error, Result};

pub use self::options::WriterOptions;
pub(super) use self::place::{being_written, check_target};

/// The longest name of an entry.
pub const MAX_NAME_BYTES: usize = u16::MAX as usize;

/// What comes between two entries.
static ZEROS: [u8; MAX_ALIGN as usize] = [0; _];

/// A batch is compressed in pieces of about so many bytes.
const PIECE_BYTES: usize = 16 << 20;

/// A pack that is being written.
///
/// What was appended survives the end of the process after [`flush`](Self::flush), a power cut
/// after [`sync`](Self::sync), and is seen by readers after [`finish`](Self::finish). A writer
/// that is dropped leaves an unfinished pack that `recover` makes whole. After an error of the
/// operating system the writer is closed, and so it is in a forked child.
pub struct PackWriter {
    target: PathBuf,
    path: PathBuf,
    options: WriterOptions,
    opening: Opening,
    process: u32,
    state: State,
    extent: Extent,
    /// Of everything from the first entry on.
    data_crc: Crc32c,
    kinds: Kinds,
    names: HashSet<Box<str>>,
    /// At the position of its codec's id, once it was asked for.
    encoders: [Option<Encoder>; Codec::ALL.len()],
    record: Vec<u8>,
    synced_folder: bool,
}

enum State {
    Open { data: Appender, journal: Journal },
    Unfinished,
    Finished,
    Aborted,
}

/// An entry that was looked at and is ready to be stored.
struct Item<'a> {
    kind: u16,
    flags: u16,
    logical: u32,
    stored: Cow<'a, [u8]>,
    name: Option<&'a str>,
    outline: Option<Outline>,
}

impl PackWriter {
    /// Begins a pack that will be at `target`. An existing file there is `AlreadyExists`,
    /// unless it may be overwritten, and stays as it is until the pack is finished.
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
        let journal = begin().inspect_err(|_| {
            let _ = remove_unfinished(&path);
        })?;
        Ok(Self {
            target: target.to_path_buf(),
            state: State::Open { data: Appender::new(file, start, ROOM), journal },
            path,
            options,
            opening,
            process: std::process::id(),
            extent: Extent::new(start),
            data_crc: Crc32c::default(),
            kinds: Kinds::default(),
            names: HashSet::new(),
            encoders,
            record: Vec::new(),
            synced_folder: false,
        })
    }

    /// Where the pack will be.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Where its entries are until then.
    pub fn unfinished_path(&self) -> &Path {
        &self.path
    }

    /// How it is written.
    pub fn options(&self) -> &WriterOptions {
        &self.options
    }

    /// How many entries were appended.
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

    /// The number of a kind in this pack; a name that was not used before gets the next one.
    pub fn kind_id(&mut self, name: &str) -> Result<u16> {
        match name {
            "bytes" => return Ok(KIND_BYTES),
            "v1" => return Ok(KIND_V1),
            "v2" => return Ok(KIND_V2),
            _ => {}
        }
        if let Some(id) = self.kinds.id(name) {
            return Ok(id);
        }
        self.check_open()?;
        let id = self.kinds.add(name)?;
        let record = unfinished::kind_record(id, name);
        self.on_disk(|_, journal| journal.append(&record))?;
        Ok(id)
    }

    /// Appends a payload; its position.
    ///
    /// A run must parse completely, else it is `Corrupt` and nothing is appended. A payload
    /// that does not shrink is stored raw.
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

    /// Appends payloads, compressed in parallel; their positions.
    ///
    /// When one of them is refused, the error names it and none is appended.
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
                "{} payloads have {} kinds and {} names",
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
        let outlines = map_each(payloads.len(), threads, |at| {
            outline_of(kinds[at], payloads[at]).map_err(|error| in_batch(at, error))
        });
        let mut outlines: Vec<Option<Outline>> = outlines.into_iter().collect::<Result<_>>()?;
        let mut done = 0;
        while done < payloads.len() {
            let mut bytes = 0;
            let piece = payloads[done..].iter().take_while(|payload| {
                let fits = bytes < PIECE_BYTES;
                bytes += payload.len();
                fits
            });
            let piece = done..done + piece.count();
            let encoded = map_each(piece.len(), threads, |at| {
                let at = piece.start + at;
                self.encode(payloads[at], kinds[at], names[at], codec, None)
                    .map_err(|error| in_batch(at, error))
            });
            for (at, item) in piece.clone().zip(encoded) {
                self.put(&Item { outline: outlines[at].take(), ..item? })?;
            }
            done = piece.end;
        }
        Ok(first..self.extent.count)
    }

    /// Appends an entry of another pack as it is stored there; its position.
    ///
    /// Only its offset and kind change. It is decoded if it is a run, to see that it parses.
    pub fn append_stored(
        &mut self,
        stored: &[u8],
        entry: &Entry,
        kind: u16,
        name: Option<&str>,
    ) -> Result<u64> {
        self.check_open()?;
        let item = self.look_at_stored(Cow::Borrowed(stored), entry, kind, name)?;
        self.put_stored(&item)
    }

    /// Looks at an entry of another pack; several threads may do that at once.
    pub(super) fn look_at_stored<'a>(
        &self,
        stored: Cow<'a, [u8]>,
        entry: &Entry,
        kind: u16,
        name: Option<&'a str>,
    ) -> Result<StoredItem<'a>> {
        let codec = entry.codec()?;
        let crc = crc32c(&stored);
        if stored.len() as u64 != u64::from(entry.length) || (entry.has_crc() && crc != entry.crc) {
            return Err(Error::Corrupt("the checksum does not match".into()));
        }
        if entry.flags & HAS_DICTIONARY != 0 && self.opening.dictionary.is_none() {
            return Err(Error::Unsupported(
                "the entry needs a dictionary, and this pack is written without one".into(),
            ));
        }
        let is_run = kind == KIND_V1 || kind == KIND_V2;
        let outline = match codec {
            _ if !is_run => None,
            Codec::Raw => outline_of(kind, &stored)?,
            _ => {
                let length = entry.payload_bytes();
                let decoder = self.opening.decoder();
                outline_of(kind, &decoder.decode(&Stored { codec, bytes: &stored, length })?)?
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

    /// Appends what [`look_at_stored`](Self::look_at_stored) gave.
    pub(super) fn put_stored(&mut self, item: &StoredItem<'_>) -> Result<u64> {
        self.check_open()?;
        self.check_room(1)?;
        // Numbers below those of users are kept, also where this version has no name for them.
        if item.0.kind >= FIRST_USER_KIND {
            self.check_kind(item.0.kind)?;
        }
        self.check_name(item.0.name)?;
        self.put(&item.0)
    }

    /// Makes every entry so far survive the end of this process.
    pub fn flush(&mut self) -> Result<()> {
        self.check_open()?;
        self.on_disk(|data, journal| {
            data.flush()?;
            journal.flush()
        })
    }

    /// Makes every entry so far survive a power cut.
    pub fn sync(&mut self) -> Result<()> {
        self.check_open()?;
        let folder = (!self.synced_folder).then(|| self.path.clone());
        self.on_disk(|data, journal| {
            // The entries first: a record must not outlive what it is about.
            data.sync()?;
            journal.sync()?;
            folder.as_deref().map_or(Ok(()), durable::sync_folder_of)
        })?;
        self.synced_folder = true;
        Ok(())
    }

    /// Writes index, sections and footer, and gives the pack its name.
    ///
    /// When that fails, the name is as it was, the unfinished pack is kept, and the writer is
    /// closed.
    pub fn finish(&mut self) -> Result<Finished> {
        self.flush()?;
        let State::Open { data, journal } = std::mem::replace(&mut self.state, State::Unfinished)
        else {
            return Err(self.closed());
        };
        drop(journal);
        let draft = Draft {
            path: &self.path,
            file: data.file(),
            opening: &self.opening,
            extent: Extent { crc: self.data_crc.value(), ..self.extent },
            touched: false,
            apart: false,
            threads: self.options.threads,
        };
        let finished = seal(&draft, &self.target, self.options.overwrite)?;
        self.state = State::Finished;
        Ok(finished)
    }

    /// Removes everything that was written. An aborted writer may be aborted again.
    pub fn abort(&mut self) -> Result<()> {
        self.check_process()?;
        match std::mem::replace(&mut self.state, State::Aborted) {
            State::Open { .. } => remove_unfinished(&self.path),
            State::Aborted => Ok(()),
            State::Finished => {
                self.state = State::Finished;
                Err(self.closed())
            }
            State::Unfinished => {
                // The lock was given back, so that somebody else could recover it.
                if !durable::is_taken(&self.path) {
                    return Ok(());
                }
                let file = open_draft(&self.path)?;
                if !durable::try_lock(&file)? {
                    self.state = State::Unfinished;
                    return Err(being_written(&self.path));
                }
                remove_unfinished(&self.path)
            }
        }
    }

    /// Leaves the pack unfinished, to be recovered or not, and closes the writer.
    pub fn leave(&mut self) -> Result<()> {
        self.check_process()?;
        let flushed = if matches!(self.state, State::Open { .. }) { self.flush() } else { Ok(()) };
        if matches!(self.state, State::Open { .. }) {
            self.state = State::Unfinished;
        }
        flushed
    }

    fn closed(&self) -> Error {
        let name = self.target.display();
        Error::Closed(match self.state {
            State::Finished => format!("the writer of `{name}` is closed: the pack is finished"),
            State::Aborted => format!("the writer of `{name}` is closed: it was aborted"),
            _ => format!(
                "the writer of `{name}` is closed: what was written is in `{}`, and can be \
                 recovered",
                self.path.display()
            ),
        })
    }

    fn check_process(&self) -> Result<()> {
        if self.process == std::process::id() {
            return Ok(());
        }
        Err(Error::Closed(format!(
            "the writer of `{}` belongs to another process",
            self.target.display()
        )))
    }

    fn check_open(&self) -> Result<()> {
        self.check_process()?;
        if matches!(self.state, State::Open { .. }) { Ok(()) } else { Err(self.closed()) }
    }

    fn check_room(&self, more: u64) -> Result<()> {
        if self.extent.count.saturating_add(more) <= MAX_ENTRIES {
            return Ok(());
        }
        Err(Error::TooLarge(format!("a pack has at most {MAX_ENTRIES} entries")))
    }

    fn check_kind(&self, kind: u16) -> Result<()> {
        if kind <= KIND_V2 || self.kinds.name(kind).is_some() {
            return Ok(());
        }
        Err(Error::Invalid(format!("kind {kind} has no name in this pack")))
    }

    fn check_name(&self, name: Option<&str>) -> Result<()> {
        match name {
            Some("") => Err(Error::Invalid("a name has at least one character".into())),
            Some(name) if name.len() > MAX_NAME_BYTES => Err(Error::TooLarge(format!(
                "a name of {} bytes is over the limit of {MAX_NAME_BYTES}",
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
            "a payload of {} bytes is over the limit of {most}",
            payload.len()
        )))
    }

    /// The codec to use, with its encoder made.
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
        // `check_length` saw to it that the length fits.
        Ok(Item { flags, logical: payload.len() as u32, stored, ..raw })
    }

    fn put(&mut self, item: &Item<'_>) -> Result<u64> {
        let crc = crc32c(&item.stored);
        let too_large = || Error::TooLarge("the pack would be longer than a file can be".into());
        let offset = self.extent.next(self.options.align).ok_or_else(too_large)?;
        let (flags, kept) = if self.options.checksum { (HAS_CRC, crc) } else { (0, 0) };
        let entry = Entry {
            offset,
            // A stored payload that did not shrink is not longer than the payload.
            length: item.stored.len() as u32,
            kind: item.kind,
            flags: item.flags | flags,
            crc: kept,
            logical: item.logical,
        };
        entry.end().filter(|end| *end <= i64::MAX as u64).ok_or_else(too_large)?;
        let mut record = std::mem::take(&mut self.record);
        unfinished::entry_record(&entry, crc, item.name, item.outline.as_ref(), &mut record);
        let padding = &ZEROS[..(offset - self.extent.end) as usize];
        let written = self.on_disk(|data, journal| {
            data.append(padding)?;
            data.append(&item.stored)?;
            journal.append(&record)
        });
        self.record = record;
        written?;
        // Faster than combining CRCs, but for the longest payloads.
        self.data_crc.update(padding);
        self.data_crc.update(&item.stored);
        self.extent.push(&entry);
        if let Some(name) = item.name {
            self.names.insert(name.into());
        }
        Ok(self.extent.count - 1)
    }

    /// Writes; a failure closes the writer, because nobody knows then what is on the disk.
    fn on_disk(
        &mut self,
        write: impl FnOnce(&mut Appender, &mut Journal) -> Result<()>,
    ) -> Result<()> {
        let State::Open { data, journal } = &mut self.state else { return Err(self.closed()) };
        write(data, journal).map_err(|error| {
            self.state = State::Unfinished;
            match error {
                // Those of the journal have its name already.
                Error::Io(error) if error.raw_os_error().is_some() => {
                    durable::about(&self.path, &error)
                }
                other => other,
            }
        })
    }
}

impl Drop for PackWriter {
    fn drop(&mut self) {
        // In a forked child the buffers are the parent's to write.
        let _ = self.leave();
    }
}

/// An entry of another pack that was looked at.
pub(super) struct StoredItem<'a>(Item<'a>);

pub(super) fn outline_of(kind: u16, payload: &[u8]) -> Result<Option<Outline>> {
    match kind {
        KIND_V1 => outline(Version::V1, payload).map(Some),
        KIND_V2 => outline(Version::V2, payload).map(Some),
        _ => Ok(None),
    }
}

fn name_taken(name: Option<&str>) -> Error {
    let name = name.unwrap_or_default().escape_debug();
    Error::Invalid(format!("two entries cannot have the same name `{name}`"))
}

/// The same error, naming the payload of the batch that it is about.
fn in_batch(at: usize, error: Error) -> Error {
    error.about(format_args!("payload {at} of the batch"))
}
