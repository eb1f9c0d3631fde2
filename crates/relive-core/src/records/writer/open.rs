//! Creates a store, or opens one for writing.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::{Group, Names, Pending, Writer};
use crate::codec::{Codec, Encoder};
use crate::fork::OwnerProcess;
use crate::journal::Journal;
use crate::latch::Latch;
use crate::records::chunk_numbers::{ChunkNumbers, StoreLocation};
use crate::records::dense_writer::{DenseConfig, DenseWriter};
use crate::records::files::{Files, ReadOptions, read_dictionary};
use crate::records::heap_encoder::{HeapConfig, HeapEncoder};
use crate::records::journal_records::Position;
use crate::records::layout::ChunkKind;
use crate::records::meta::{META, Meta};
use crate::records::state::{ChunkState, FieldSpec, FieldState, State};
use crate::records::{open, replay};
use crate::{Error, Result, durable};

/// The file that the writer locks.
pub(super) const LOCK: &str = "LOCK";

/// Attempts to take the lock: a process that checks whether it is held takes it for a moment.
const LOCK_ATTEMPTS: u32 = 4;
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// Default for the bytes at which a chunk is full.
const CHUNK_BYTES: u64 = 4 << 30;

/// Default size at which a journal is folded into tables.
const LARGE_JOURNAL: u64 = 64 << 20;

/// Options of a new store.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// The most records of a chunk.
    pub chunk_records: Option<u64>,
    /// Bytes at which a chunk is full.
    pub chunk_bytes: u64,
}

impl Default for CreateOptions {
    fn default() -> Self {
        Self { chunk_records: None, chunk_bytes: CHUNK_BYTES }
    }
}

/// Options of a writer.
#[derive(Clone, Debug)]
pub struct WriterOptions {
    /// Threads that encode and write values, each to its own chunk.
    pub writers: usize,
    /// Options for reading what was written.
    pub read: ReadOptions,
    /// A journal of this size is folded into tables, unless these would be larger.
    pub large_journal: u64,
}

impl Default for WriterOptions {
    fn default() -> Self {
        Self { writers: 2, read: ReadOptions::default(), large_journal: LARGE_JOURNAL }
    }
}

impl Writer {
    /// Creates a store in a directory that does not exist or is empty. The store assigns the ids
    /// of the fields.
    pub fn create(
        path: &Path,
        fields: Vec<FieldSpec>,
        create: &CreateOptions,
        options: WriterOptions,
    ) -> Result<Self> {
        check_fields(&fields, create)?;
        let made = make_folder(path)?;
        let mut outcome = Self::create_in(path, fields, create, options);
        if let Ok(writer) = &mut outcome {
            writer.made = made;
        }
        if outcome.is_err() && made {
            // Only files that were created here; `remove_dir` keeps a directory with others.
            let _ = fs::remove_file(path.join(META));
            let _ = fs::remove_dir(path.join("chunk"));
            let _ = fs::remove_file(path.join(LOCK));
            let _ = fs::remove_dir(path);
        }
        outcome
    }

    fn create_in(
        path: &Path,
        fields: Vec<FieldSpec>,
        create: &CreateOptions,
        options: WriterOptions,
    ) -> Result<Self> {
        let lock = take_lock(path)?;
        if path.join(META).exists() {
            return Err(durable::exists_already(path));
        }
        let chunks = path.join("chunk");
        fs::create_dir_all(&chunks).map_err(|error| durable::about(&chunks, &error))?;
        let uid = u128::from(durable::any_number()) << 64 | u128::from(durable::any_number());
        let state = fresh_state(uid.to_le_bytes(), fields, create);
        let names = Names { meta: META, journal: journal_name(0) };
        state.to_meta(&names.journal).replace(path, META)?;
        durable::sync_folder_of(path)?;
        let files = Files::new(path, options.read.clone());
        let mut writer = Self::around(path, lock, Arc::new(files), options, names, state)?;
        writer.born = false;
        Ok(writer)
    }

    /// Opens a store for writing.
    ///
    /// If its last writer did not close it, committed data is synced first. `Locked` while another
    /// writer has it open.
    pub fn open(path: &Path, options: WriterOptions) -> Result<Self> {
        // First, so that no lock file is created in a directory that is not a store.
        Meta::read(path, META)?;
        let lock = take_lock(path)?;
        let files = Arc::new(Files::new(path, options.read.clone()));
        let replayed = replay::replay(&files, META)?;
        let names = Names { meta: META, journal: replayed.journal_name.clone() };
        let mut writer = Self::around(path, lock, files, options, names, replayed.state.clone())?;
        // A crashed writer may have replaced `meta.json` without syncing the folder, and files that
        // it does not name are removed below.
        durable::sync_folder_of(&path.join(META))?;
        // The same for the name of the store. A parent folder without read permission is
        // skipped.
        match durable::sync_folder_of(path) {
            Err(error) if error.kind() != "access-denied" => return Err(error),
            _ => {}
        }
        writer.sweep()?;
        writer.resume(&replayed)?;
        Ok(writer)
    }

    /// Continues after the records of the journal, which are synced first.
    pub(super) fn resume(&mut self, replayed: &replay::Replayed) -> Result<()> {
        (self.begun, self.has_synced) = (replayed.begun, replayed.has_synced);
        let Some(tail) = &replayed.journal else {
            return Ok(());
        };
        let path = self.folder.join(&self.names.journal);
        self.journal = Some(Journal::resume(&path, tail.end, tail.sequence)?);
        self.journal_bytes = tail.end;
        if !replayed.synced {
            open::sync_chunks(&self.folder, &self.state)?;
            (self.unsynced, self.unnamed) = (true, true);
            self.sync_flushed()?;
        }
        Ok(())
    }

    /// Makes a writer at `state`, without a journal.
    pub(super) fn around(
        folder: &Path,
        lock: File,
        files: Arc<Files>,
        options: WriterOptions,
        names: Names,
        mut state: State,
    ) -> Result<Self> {
        // Numbers of unknown chunk files are not used either.
        state.next_chunk = state.next_chunk.max(next_free_chunk(folder)?);
        let location = StoreLocation::new(folder, LOCK, &lock)?;
        let numbers = Arc::new(ChunkNumbers::new(state.next_chunk, Some(location)));
        let unfull = state
            .chunks
            .iter()
            .filter(|(_, chunk)| chunk.kind == ChunkKind::Heap && !state.is_full(chunk));
        let shape = HeapConfig {
            folder: folder.join("chunk"),
            uid: state.uid,
            chunk_bytes: state.chunk_bytes,
            chunk_records: state.chunk_records.unwrap_or(u64::MAX),
            numbers: Arc::clone(&numbers),
        };
        let unfull = unfull.map(|(&number, chunk)| last_position(number, chunk)).collect();
        let heap = HeapEncoder::new(shape, options.writers, unfull);
        let mut writer = Self {
            folder: folder.to_path_buf(),
            lock: Some(lock),
            owner: OwnerProcess::current(),
            files,
            options,
            names,
            length: state.length,
            sequence: state.sequence,
            committed: (state.length, state.sequence),
            state: Arc::new(state),
            current: None,
            pending: Pending::default(),
            dense: Vec::new(),
            heap,
            encoders: Vec::new(),
            numbers,
            journal: None,
            journal_bytes: 0,
            group: Group::default(),
            unsynced: false,
            begun: false,
            has_synced: false,
            unnamed: false,
            born: true,
            made: false,
            failure: Latch::default(),
        };
        for column in 0..writer.state.fields.len() {
            writer.add_column(column)?;
        }
        Ok(writer)
    }

    /// Prepares to write the values of a field.
    pub(super) fn add_column(&mut self, column: usize) -> Result<()> {
        let field = &self.state.fields[column];
        let encoder = encoder_of(&self.folder, field)?;
        let dense = field.spec.is_dense().then(|| self.dense_writer(field)).transpose()?;
        self.encoders.push(Arc::new(encoder));
        self.dense.push(dense);
        Ok(())
    }

    fn dense_writer(&self, field: &FieldState) -> Result<DenseWriter> {
        let shape = DenseConfig {
            folder: self.chunk_folder(),
            uid: self.state.uid,
            field: field.spec.id,
            stride: field.spec.bytes,
            rows: field.rows_per_chunk,
        };
        let mut dense = DenseWriter::new(shape);
        if let Some(&last) = field.chunks.last()
            && let Some(chunk) = self.state.chunks.get(&last)
            && !self.state.is_full(chunk)
        {
            dense.resume(&last_position(last, chunk))?;
        }
        Ok(dense)
    }
}

/// Returns the encoder of a field.
pub(super) fn encoder_of(folder: &Path, field: &FieldState) -> Result<Encoder> {
    let encoder = Encoder::new(field.spec.codec, field.spec.level)?.with_max_bytes(u64::MAX);
    match field.dictionaries.last() {
        Some(name) if field.spec.codec == Codec::Zstd => {
            let dictionary = read_dictionary(&folder.join(name))?;
            encoder.with_dictionary(Arc::new(dictionary))
        }
        _ => Ok(encoder),
    }
}

/// Returns the state of an empty store.
pub(super) fn fresh_state(uid: [u8; 16], fields: Vec<FieldSpec>, create: &CreateOptions) -> State {
    let mut state = State {
        uid,
        generation: 0,
        sequence: 0,
        length: 0,
        next_chunk: 0,
        next_field: 0,
        chunk_records: create.chunk_records,
        chunk_bytes: create.chunk_bytes,
        chunks: BTreeMap::new(),
        fields: Vec::with_capacity(fields.len()),
    };
    for spec in fields {
        let spec = Arc::new(FieldSpec { id: state.next_field, ..spec });
        state.next_field += 1;
        state.fields.push(FieldState::new(spec, create.chunk_records, create.chunk_bytes));
    }
    state
}

pub(super) fn journal_name(generation: u64) -> String {
    format!("{generation}.journal")
}

fn last_position(number: u32, chunk: &ChunkState) -> Position {
    let ChunkState { tail, position, records, .. } = *chunk;
    Position { chunk: number, tail, position, records }
}

fn check_fields(fields: &[FieldSpec], create: &CreateOptions) -> Result<()> {
    if fields.is_empty() {
        return Err(Error::Invalid("a record store needs at least one field".into()));
    }
    if fields.len() > usize::from(u16::MAX) {
        return Err(Error::over_limit(fields.len(), u16::MAX, "a record store", "fields"));
    }
    if create.chunk_records == Some(0) || create.chunk_bytes == 0 {
        return Err(Error::Invalid("`chunk_records` and `chunk_bytes` must be at least 1".into()));
    }
    for (position, field) in fields.iter().enumerate() {
        field.check()?;
        if fields[..position].iter().any(|other| other.name == field.name) {
            return Err(Error::Invalid(format!("field {:?} appears twice", field.name)));
        }
    }
    Ok(())
}

/// Creates the directory; returns whether it did not exist. A directory with other files is
/// `AlreadyExists`.
fn make_folder(path: &Path) -> Result<bool> {
    match fs::create_dir(path) {
        Ok(()) => return Ok(true),
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(durable::about(path, &error));
        }
        Err(_) => {}
    }
    // A process that ended while it created a store may have left these.
    let is_leftover = |item: &PathBuf| match item.file_name().and_then(|name| name.to_str()) {
        Some(LOCK | "meta.json.tmp") => true,
        Some("chunk") => files_in(item).is_ok_and(|files| files.is_empty()),
        _ => false,
    };
    if path.is_dir() && files_in(path)?.iter().all(is_leftover) {
        return Ok(false);
    }
    Err(durable::exists_already(path))
}

/// Takes the lock of the writer.
fn take_lock(folder: &Path) -> Result<File> {
    let path = folder.join(LOCK);
    let about = |error: std::io::Error| durable::about(&path, &error);
    for attempt in 1.. {
        let mut file = durable::open_lock(&path)?;
        if !durable::try_lock(&file).map_err(about)? {
            if attempt >= LOCK_ATTEMPTS {
                let mut holder = String::new();
                let _ = file.read_to_string(&mut holder);
                return Err(locked(folder, holder.trim()));
            }
            std::thread::sleep(LOCK_PAUSE);
            continue;
        }
        // The last writer may have removed the file together with the store.
        if !durable::is_at(&file, &path) {
            continue;
        }
        let process = std::process::id().to_string();
        file.set_len(0).and_then(|()| file.write_all_at(process.as_bytes(), 0)).map_err(about)?;
        return Ok(file);
    }
    Err(locked(folder, ""))
}

fn locked(folder: &Path, holder: &str) -> Error {
    let gone = || Path::new("/proc/self").exists() && !Path::new("/proc").join(holder).exists();
    let holder = match holder {
        "" => "another process".into(),
        // A forked child has the locks of its parent.
        _ if gone() => format!("a child of process {holder}"),
        _ => format!("process {holder}"),
    };
    Error::Locked(format!(
        "`{}` is being written by {holder}; only one process can write at a time",
        folder.display()
    ))
}

/// Returns a number above those of all chunks in the folder.
fn next_free_chunk(folder: &Path) -> Result<u32> {
    let files = files_in(&folder.join("chunk"))?;
    let last = files.iter().filter_map(|path| chunk_number(path)).max();
    Ok(last.map_or(0, |number| number.saturating_add(1)))
}

/// Returns the number of a chunk from the path of one of its files.
pub(super) fn chunk_number(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?;
    let number = name.strip_suffix(".zr").or_else(|| name.strip_suffix(".crc"))?;
    number.parse().ok()
}

/// Returns the paths of all files in a folder.
pub(super) fn files_in(folder: &Path) -> Result<Vec<PathBuf>> {
    fs::read_dir(folder)
        .and_then(|items| items.map(|item| item.map(|item| item.path())).collect())
        .map_err(|error| durable::about(folder, &error))
}
