//! The open files of a store, shared by all its snapshots.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::chunk::{Chunk, mapped_bytes, open_file, reserve};
use super::layout::{ChunkKind, PAGE, Uid};
use super::mapped_region::{MappedRegion, can_map};
use super::snapshot::Snapshot;
use super::state::{FieldState, State};
use super::table_file::TableFile;
use crate::codec::{Dictionary, MAX_BYTES};
use crate::crc::crc32c;
use crate::pack::Verify;
use crate::{Error, Result, durable};

/// How files are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Io {
    /// Files are mapped.
    #[default]
    Mmap,
    /// Files are not mapped: for files that other processes may truncate.
    Pread,
}

/// Options for reading a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadOptions {
    /// How files are read.
    pub io: Io,
    /// When checksums are compared.
    pub verify: Verify,
    /// The longest value that is decompressed.
    pub max_value_bytes: u64,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { io: Io::Mmap, verify: Verify::First, max_value_bytes: MAX_BYTES }
    }
}

/// The open files of one store, by number or name, which are never reused in a store.
/// Thread-safe.
pub struct Files {
    folder: PathBuf,
    options: ReadOptions,
    cache: Mutex<Cache>,
}

#[derive(Default)]
struct Cache {
    /// The uid of the store: another store may be at the same path later.
    uid: Uid,
    chunks: HashMap<u32, Arc<Chunk>>,
    /// The mapped memory of the dense fields, by field id.
    dense: HashMap<u16, DenseRegion>,
    tables: HashMap<String, Arc<TableFile>>,
    dictionaries: HashMap<String, Arc<Dictionary>>,
    /// The write positions of chunks before this process wrote to them.
    found: HashMap<u32, u64>,
    /// The bytes of chunks that this process wrote.
    trusted: HashMap<u32, Range<u64>>,
}

/// The chunks of a dense field in consecutive memory.
struct DenseRegion {
    region: Arc<MappedRegion>,
    chunks: Vec<u32>,
    /// The mapped bytes of each chunk.
    mapped: Vec<usize>,
}

impl Files {
    /// Makes the cache of the store in `folder`, without open files.
    pub fn new(folder: &Path, options: ReadOptions) -> Self {
        let mut options = options;
        if !can_map() {
            options.io = Io::Pread;
        }
        Self { folder: folder.to_path_buf(), options, cache: Mutex::default() }
    }

    /// Returns the folder of the store.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the options.
    pub fn options(&self) -> &ReadOptions {
        &self.options
    }

    /// Makes a snapshot of this state. Files that the state does not use are released; earlier
    /// snapshots keep theirs.
    pub fn snapshot(self: &Arc<Self>, state: Arc<State>) -> Result<Arc<Snapshot>> {
        Snapshot::new(self, state).map(Arc::new)
    }

    /// Marks the bytes of a chunk that this process wrote, up to `position`, as verified if bytes
    /// are verified once.
    pub fn trust(&self, number: u32, position: u64) {
        if self.options.verify != Verify::First {
            return;
        }
        let mut cache = self.lock();
        let start = cache.found.get(&number).copied().unwrap_or(PAGE);
        let written = start..position.max(start);
        if let Some(chunk) = cache.chunks.get(&number) {
            chunk.trust(written.clone());
        }
        cache.trusted.insert(number, written);
    }

    /// Notes that the bytes below the positions of this state were written by other processes.
    pub(super) fn found(&self, state: &State) {
        let mut cache = self.lock();
        for (&number, chunk) in &state.chunks {
            cache.found.entry(number).or_insert(chunk.position);
        }
    }

    /// Returns an open chunk.
    pub(super) fn chunk(&self, uid: &Uid, number: u32, kind: ChunkKind) -> Result<Arc<Chunk>> {
        let mut cache = self.of(uid);
        if let Some(chunk) = cache.chunks.get(&number).filter(|chunk| chunk.kind() == kind) {
            return Ok(Arc::clone(chunk));
        }
        let chunk = Arc::new(Chunk::open(&self.folder, number, uid, kind)?);
        if let Some(written) = cache.trusted.get(&number) {
            chunk.trust(written.clone());
        }
        cache.chunks.insert(number, Arc::clone(&chunk));
        Ok(chunk)
    }

    /// Returns the table of a field, if it has one.
    pub(super) fn table(&self, uid: &Uid, field: &FieldState) -> Result<Option<Arc<TableFile>>> {
        let Some((name, rows)) = &field.table else { return Ok(None) };
        let mut cache = self.of(uid);
        if let Some(table) = cache.tables.get(name) {
            return Ok(Some(Arc::clone(table)));
        }
        let mapped = self.options.io == Io::Mmap;
        let table = TableFile::open(&self.folder, name, uid, field.spec.id, *rows, mapped)?;
        let table = Arc::new(table);
        cache.tables.insert(name.clone(), Arc::clone(&table));
        Ok(Some(table))
    }

    /// Returns a dictionary.
    pub(super) fn dictionary(&self, uid: &Uid, name: &str) -> Result<Arc<Dictionary>> {
        let mut cache = self.of(uid);
        if let Some(dictionary) = cache.dictionaries.get(name) {
            return Ok(Arc::clone(dictionary));
        }
        let dictionary = Arc::new(read_dictionary(&self.folder.join(name))?);
        cache.dictionaries.insert(name.into(), Arc::clone(&dictionary));
        Ok(dictionary)
    }

    /// Maps the rows of the chunks of a dense field to consecutive memory. `chunks` has for each
    /// chunk the position below which it may be read.
    pub(super) fn map_dense(
        &self,
        uid: &Uid,
        field: &FieldState,
        chunks: &[(Arc<Chunk>, u64)],
    ) -> Result<Arc<MappedRegion>> {
        let too_large = || {
            Error::TooLarge(format!("field {:?} is too large to map into memory", field.spec.name))
        };
        let of_chunk = field.spec.bytes.checked_mul(field.rows_per_chunk);
        let of_chunk = of_chunk.and_then(|b| usize::try_from(b).ok()).ok_or_else(too_large)?;
        let mut needed = 0;
        for (number, (_, position)) in chunks.iter().enumerate() {
            let bytes = mapped_bytes(position - PAGE).filter(|_| *position > PAGE).unwrap_or(0);
            let place = number.checked_mul(of_chunk).ok_or_else(too_large)?;
            if bytes > 0 {
                needed = place.checked_add(bytes).ok_or_else(too_large)?;
            }
        }
        let mut cache = self.of(uid);
        let id = field.spec.id;
        let before = cache.dense.remove(&id).filter(|dense| {
            field.chunks.starts_with(&dense.chunks) && dense.region.reserved() >= needed
        });
        let mut dense = match before {
            Some(dense) => dense,
            None => {
                let region = reserve(needed).map_err(Error::Io)?;
                DenseRegion { region: Arc::new(region), chunks: Vec::new(), mapped: Vec::new() }
            }
        };
        dense.chunks.clone_from(&field.chunks);
        dense.mapped.resize(chunks.len(), 0);
        for (number, (chunk, position)) in chunks.iter().enumerate() {
            let (place, before) = (number * of_chunk, dense.mapped[number]);
            let bytes = mapped_bytes(position - PAGE).ok_or_else(too_large)?;
            if bytes > before {
                let at = PAGE + before as u64;
                let mapped = dense.region.map(place + before, chunk.file(), at, bytes - before);
                mapped.map_err(|error| durable::about(chunk.path(), &error))?;
                dense.mapped[number] = bytes;
            }
        }
        let region = Arc::clone(&dense.region);
        cache.dense.insert(id, dense);
        Ok(region)
    }

    /// Releases files that this state does not use.
    pub(super) fn retain(&self, state: &State) {
        let mut cache = self.lock();
        cache.chunks.retain(|number, _| state.chunks.contains_key(number));
        cache.dense.retain(|id, dense| {
            state.field(*id).is_some_and(|field| field.chunks.starts_with(&dense.chunks))
        });
        let fields = || state.fields.iter();
        cache.tables.retain(|name, _| {
            fields().any(|field| field.table.as_ref().is_some_and(|(own, _)| own == name))
        });
        cache.dictionaries.retain(|name, _| {
            fields().any(|field| field.dictionaries.iter().any(|own| own == name))
        });
    }

    /// Closes these chunks, so that they are opened again when needed.
    pub(super) fn forget(&self, numbers: impl Iterator<Item = u32>) {
        let mut cache = self.lock();
        for number in numbers {
            cache.chunks.remove(&number);
        }
        // Their mapped memory is shared with other chunks of the field.
        cache.dense.clear();
    }

    fn of(&self, uid: &Uid) -> MutexGuard<'_, Cache> {
        let mut cache = self.lock();
        if cache.uid != *uid {
            *cache = Cache { uid: *uid, ..Cache::default() };
        }
        cache
    }

    fn lock(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of the checksum after a dictionary.
const CRC_BYTES: usize = 4;

/// Writes and syncs a dictionary to a path that does not exist.
pub fn write_dictionary(path: &Path, dictionary: &[u8]) -> Result<()> {
    let failed = |error| durable::about(path, &error);
    let file = durable::create_new(path).map_err(failed)?;
    let mut out = durable::Appender::new(file, 0, 0);
    let crc = crc32c(dictionary).to_le_bytes();
    out.append(dictionary).and_then(|()| out.append(&crc)).map_err(failed)?;
    out.file().sync_all().map_err(failed)
}

/// Reads a dictionary and checks its checksum.
pub fn read_dictionary(path: &Path) -> Result<Dictionary> {
    const MOST: u64 = 64 << 20;
    let about = |error: Error| error.in_file(path);
    let file = open_file(path)?;
    let len = file.metadata().map_err(|error| durable::about(path, &error))?.len();
    if len > MOST {
        return Err(about(Error::Corrupt(format!(
            "a dictionary of {len} bytes exceeds the limit of {MOST} bytes"
        ))));
    }
    let mut bytes = vec![0; len as usize];
    super::chunk::read_exact(&file, path, 0, &mut bytes)?;
    let crc = bytes.split_off(bytes.len().saturating_sub(CRC_BYTES));
    if crc != crc32c(&bytes).to_le_bytes() {
        return Err(about(Error::Corrupt("the checksum of the dictionary does not match".into())));
    }
    Dictionary::new(bytes).map_err(about)
}
