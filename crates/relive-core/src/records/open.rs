//! Opens a store for reading.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use super::chunk::chunk_paths;
pub use super::files::{Files, Io, ReadOptions};
use super::layout::ChunkKind;
use super::meta::{META, Meta};
use super::replay::Tail;
use super::snapshot::Snapshot;
use super::state::State;
use crate::{Error, Result, durable};

/// How often opening is tried if the store changes meanwhile.
const ATTEMPTS: u32 = 20;

/// The pause between attempts, so that a writer can finish.
const PAUSE: Duration = Duration::from_millis(2);

/// A store that is open for reading. Thread-safe.
pub struct Records {
    path: PathBuf,
    options: ReadOptions,
    reading: Mutex<Reading>,
    current: RwLock<Arc<Snapshot>>,
}

/// How far the journal of a store was read.
struct Reading {
    files: Arc<Files>,
    state: Arc<State>,
    tail: Tail,
}

impl Records {
    /// Opens a store at its newest state, or at the state with sequence number `at`. The latter is
    /// `NotFound` if a checkpoint has folded later calls.
    pub fn open(path: &Path, options: ReadOptions, at: Option<u64>) -> Result<Self> {
        let (reading, snapshot) = read_store(path, &options, at, None)?;
        let (reading, current) = (Mutex::new(reading), RwLock::new(snapshot));
        Ok(Self { path: path.to_path_buf(), options, reading, current })
    }

    /// Returns the path of the store.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the options.
    pub fn options(&self) -> &ReadOptions {
        &self.options
    }

    /// Returns the snapshot as of opening or the last refresh.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Moves to the newest state; returns whether it changed. After an error the snapshot stays the
    /// same.
    pub fn refresh(&self) -> Result<bool> {
        let mut reading = self.lock();
        let meta = Meta::read(&self.path, META)?;
        if (meta.generation, meta.uid.as_str()) == (reading.state.generation, &*reading.tail.uid) {
            let mut went_on = reading.go_on();
            if let Err(Error::Corrupt(_)) = went_on {
                // A new writer truncates uncommitted records of the journal, so a read at that
                // moment may see a mix of both.
                std::thread::sleep(PAUSE);
                went_on = reading.go_on();
            }
            if let Ok(Some(snapshot)) = went_on {
                self.replace(snapshot);
                return Ok(true);
            }
            // A checkpoint may have removed files; then the generation has changed.
            let again = Meta::read(&self.path, META)?;
            if (again.generation, &again.uid) == (meta.generation, &meta.uid) {
                return went_on.map(|_| false);
            }
        }
        let files = Some(&reading.files);
        let (fresh, snapshot) = read_store(&self.path, &self.options, None, files)?;
        *reading = fresh;
        self.replace(snapshot);
        Ok(true)
    }

    fn replace(&self, snapshot: Arc<Snapshot>) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = snapshot;
    }

    fn lock(&self) -> MutexGuard<'_, Reading> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reading {
    /// Reads further records of the journal; `None` if there are none.
    fn go_on(&mut self) -> Result<Option<Arc<Snapshot>>> {
        let mut tail = self.tail.clone();
        let Some(state) = tail.read_on(&self.files, &self.state, None)? else { return Ok(None) };
        let state = Arc::new(state);
        let snapshot = self.files.snapshot(Arc::clone(&state))?;
        (self.state, self.tail) = (state, tail);
        Ok(Some(snapshot))
    }
}

/// Reads a store from its beginning; tries again if it changes meanwhile.
fn read_store(
    path: &Path,
    options: &ReadOptions,
    at: Option<u64>,
    files: Option<&Arc<Files>>,
) -> Result<(Reading, Arc<Snapshot>)> {
    let opened = files.cloned();
    let opened = opened.unwrap_or_else(|| Arc::new(Files::new(path, options.clone())));
    for attempt in 0..ATTEMPTS {
        let meta = Meta::read(path, META)?;
        let outcome = read_once(&opened, &meta, at);
        let again = Meta::read(path, META)?;
        if (meta.generation, &meta.uid) == (again.generation, &again.uid) {
            match outcome {
                // A new writer truncates uncommitted records of the journal, so a read at that
                // moment may see a mix of both.
                Err(Error::Corrupt(_)) if attempt == 0 => continue,
                outcome => return outcome,
            }
        }
        std::thread::sleep(PAUSE);
    }
    Err(Error::Io(std::io::Error::other(format!(
        "cannot open `{}`: another process changed it during each of {ATTEMPTS} attempts",
        path.display()
    ))))
}

fn read_once(files: &Arc<Files>, meta: &Meta, at: Option<u64>) -> Result<(Reading, Arc<Snapshot>)> {
    let state = State::from_meta(meta)?;
    let mut tail = Tail::new(files.folder(), meta)?;
    let newer = tail.read_on(files, &state, at)?;
    tail.check(meta)?;
    let state = Arc::new(newer.unwrap_or(state));
    if let Some(sequence) = at.filter(|&sequence| sequence != state.sequence) {
        return Err(Error::Io(std::io::Error::new(
            std::io::ErrorKind::NotFound,
            format!("`{}` no longer has the state after call {sequence}", files.folder().display()),
        )));
    }
    let snapshot = files.snapshot(Arc::clone(&state))?;
    Ok((Reading { files: Arc::clone(files), state, tail }, snapshot))
}

/// Syncs every chunk of a state, and the folders.
pub(crate) fn sync_chunks(folder: &Path, state: &State) -> Result<()> {
    let sync = |path: PathBuf| {
        durable::open(&path)?.sync_all().map_err(|error| durable::about(&path, &error))
    };
    for (&number, chunk) in &state.chunks {
        let (data, crcs) = chunk_paths(&folder.join("chunk"), number);
        sync(data)?;
        if matches!(chunk.kind, ChunkKind::Dense { .. }) && crcs.exists() {
            sync(crcs)?;
        }
    }
    durable::sync_folder_of(&folder.join("chunk").join("0"))?;
    durable::sync_folder_of(&folder.join(META))
}

#[cfg(test)]
mod tests;
