//! Folds the journal into tables and `meta.json`, and closes a writer.

use std::collections::HashSet;
use std::fs;
use std::sync::Arc;

use super::Writer;
use super::open::{LOCK, chunk_number, encoder_of, files_in, journal_name};
use super::rebalance::{self, chunks_of};
use crate::latch::RecordIn;
use crate::records::files::Files;
use crate::records::layout::{ENTRY_BYTES, file_name};
use crate::records::meta::{META, Meta};
use crate::records::state::{FieldState, State};
use crate::records::table_file::write_table;
use crate::{Result, durable};

/// A dense field with more extents than this gets a table.
const MAX_EXTENTS: usize = 64;

/// Tables up to this size are written whenever a store is closed.
const SMALL_TABLES: u64 = 16 << 20;

/// Larger tables are written if the journal has at least one byte for this many of theirs.
const TABLE_BYTES_PER_JOURNAL_BYTE: u64 = 8;

impl Writer {
    /// Folds the journal into tables and starts a generation. Everything is synced.
    pub fn checkpoint(&mut self) -> Result<()> {
        self.check_open()?;
        self.drain()?;
        if self.group.ops > 0 {
            self.commit(false)?;
        }
        self.sync_flushed()?;
        if self.journal.is_none() || self.is_copy() {
            return Ok(());
        }
        let state = State::clone(&self.state);
        self.install(state)
    }

    /// Returns the bytes of the tables that a checkpoint would write.
    pub(super) fn table_bytes(&self) -> u64 {
        let fields = self.state.fields.iter().filter(|field| needs_table(field, self.length));
        fields.count() as u64 * self.length * ENTRY_BYTES as u64
    }

    /// Makes a state, whose values are in chunks, the next generation.
    ///
    /// Until `meta.json` is replaced the store does not change.
    pub(super) fn install(&mut self, state: State) -> Result<()> {
        self.install_state(state).record_in(&self.failure)?;
        // Files that remain take space, but do no harm.
        let _ = self.sweep();
        // Removed files take space until they are closed and unmapped.
        self.files.retain(&self.state);
        Ok(())
    }

    fn install_state(&mut self, mut state: State) -> Result<()> {
        self.numbers.check()?;
        let (positions, sequence) = (self.positions(), self.sequence);
        state.commit(&positions, sequence);
        self.sync_data()?;
        state.generation = self.state.generation + 1;
        let length = state.length;
        let folded = state.fields.iter().any(|field| needs_table(field, length));
        let snapshot = folded.then(|| self.files.snapshot(Arc::new(state.clone()))).transpose()?;
        for (column, field) in state.fields.iter_mut().enumerate() {
            if let Some(snapshot) = &snapshot
                && needs_table(field, length)
            {
                let name = format!(
                    "{}.{}.offset",
                    file_name(&field.spec.name, field.spec.id),
                    state.generation
                );
                let id = field.spec.id;
                let mut entry = |row| snapshot.entry(column, row);
                write_table(&self.folder, &name, state.uid, id, length, &mut entry)?;
                *field = field.in_table(name, length);
            } else if field.tabled() == 0 {
                field.table = None;
            }
        }
        durable::sync_folder_of(&self.chunk_folder().join("0"))?;
        durable::sync_folder_of(&self.folder.join(META))?;
        let journal = journal_name(state.generation);
        state.to_meta(&journal).replace(&self.folder, META)?;
        self.take_generation(state, journal)
    }

    /// Continues with a state that was written to `meta.json`.
    fn take_generation(&mut self, state: State, journal: String) -> Result<()> {
        self.names.journal = journal;
        self.journal = None;
        self.journal_bytes = 0;
        self.group = super::Group::default();
        self.length = state.length;
        self.committed = (state.length, self.sequence);
        for dense in self.dense.iter_mut().flatten() {
            dense.chunks.committed();
        }
        self.heap.committed();
        (self.unsynced, self.unnamed, self.born) = (false, false, true);
        (self.has_synced, self.begun) = (false, false);
        self.current = None;
        // Writers and encoders are kept by field id, since fields may have been added or dropped.
        let old = std::mem::replace(&mut self.state, Arc::new(state));
        let mut dense: Vec<_> = std::mem::take(&mut self.dense).into_iter().map(Some).collect();
        let encoders = std::mem::take(&mut self.encoders);
        for field in &self.state.fields {
            let column = old.fields.iter().position(|other| other.spec.id == field.spec.id);
            let kept = column.and_then(|column| dense.get_mut(column)?.take());
            self.dense.push(kept.flatten());
            let same = column.filter(|&c| old.fields[c].dictionaries == field.dictionaries);
            self.encoders.push(match same.and_then(|column| encoders.get(column)) {
                Some(encoder) => Arc::clone(encoder),
                None => Arc::new(encoder_of(&self.folder, field)?),
            });
        }
        Ok(())
    }

    /// Removes files that the current generation does not use.
    pub(super) fn sweep(&self) -> Result<()> {
        self.numbers.check()?;
        let state = &self.state;
        let mut used: HashSet<String> = [LOCK, META, &self.names.journal].map(String::from).into();
        for field in &state.fields {
            used.extend(field.table.iter().map(|(name, _)| name.clone()));
            used.extend(field.dictionaries.iter().cloned());
        }
        let mut chunks: HashSet<u32> = state.chunks.keys().copied().collect();
        // A rebalance that can be continued keeps its files.
        if let Ok(meta) = Meta::read(&self.folder, rebalance::META)
            && let Some((generation, sequence, _)) = meta.of
            && (generation, sequence) == (state.generation, state.sequence)
        {
            used.extend([rebalance::META, rebalance::JOURNAL].map(String::from));
            chunks.extend(chunks_of(&self.files));
        }
        for path in files_in(&self.folder)? {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let ours = [".offset", ".dict", ".journal", ".json.tmp"];
            let ours = ours.iter().any(|end| name.ends_with(end)) || name == rebalance::META;
            if ours && !used.contains(name) && path.is_file() {
                durable::remove(&path)?;
            }
        }
        for path in files_in(&self.chunk_folder())? {
            let number = chunk_number(&path);
            if number.is_some_and(|number| !chunks.contains(&number)) {
                durable::remove(&path)?;
            }
        }
        Ok(())
    }

    /// Syncs everything and closes the store.
    ///
    /// If a write fails, the store has the state of its last Commit.
    pub fn close(&mut self) -> Result<()> {
        if self.lock.is_none() {
            return Ok(());
        }
        let outcome = self.settle();
        self.release();
        outcome
    }

    fn settle(&mut self) -> Result<()> {
        self.flush()?;
        self.sync_flushed()?;
        let (tables, journal) = (self.table_bytes(), self.journal_bytes);
        if tables <= SMALL_TABLES || tables / TABLE_BYTES_PER_JOURNAL_BYTE <= journal {
            self.checkpoint()?;
        } else {
            self.note_begun()?;
        }
        self.trim()
    }

    fn trim(&mut self) -> Result<()> {
        let dense = self.dense.iter_mut().flatten().try_for_each(|dense| dense.trim());
        dense.and(self.heap.trim())
    }

    /// Drops everything since the last flush; a store that was created and never flushed is
    /// removed.
    pub fn abort(&mut self) -> Result<()> {
        if self.lock.is_none() {
            return Ok(());
        }
        // Bytes after the last Commit stay in the files, since a reader may have mapped them; the
        // next writer overwrites them.
        self.heap.halt();
        let outcome = if self.born { Ok(()) } else { self.remove() };
        self.release();
        outcome
    }

    /// Removes the files of a store that was just created.
    fn remove(&mut self) -> Result<()> {
        if self.numbers.check().is_err() {
            // The store was moved, and another one may be at its path.
            return Ok(());
        }
        for path in files_in(&self.chunk_folder())? {
            durable::remove(&path)?;
        }
        let chunks = self.chunk_folder();
        fs::remove_dir(&chunks).map_err(|error| durable::about(&chunks, &error))?;
        for name in [META, &self.names.journal, LOCK] {
            durable::remove(&self.folder.join(name))?;
        }
        if !self.made {
            return Ok(());
        }
        match fs::remove_dir(&self.folder) {
            // The directory has other files.
            Err(error) if error.kind() == std::io::ErrorKind::DirectoryNotEmpty => Ok(()),
            done => done.map_err(|error| durable::about(&self.folder, &error)),
        }
    }

    /// Releases the lock, and all files and maps, which may be those of removed files. Snapshots
    /// keep theirs.
    fn release(&mut self) {
        self.current = None;
        self.journal = None;
        self.dense.clear();
        self.heap.close();
        self.files = Arc::new(Files::new(&self.folder, self.options.read.clone()));
        if let Some(lock) = self.lock.take()
            && self.owner.is_current()
            && !self.is_copy()
        {
            // Unlocked explicitly, since a forked child would keep the lock. A child does not unlock
            // it, and the copy of a rebalance shares the lock of its store.
            let _ = durable::unlock(&lock);
        }
    }
}

/// Returns whether a field needs a new table: its table and extents do not describe all rows.
fn needs_table(field: &FieldState, length: u64) -> bool {
    let tabled = field.tabled();
    let folded = field.changed() == 0
        && (tabled == 0 || field.table.as_ref().is_some_and(|(_, rows)| *rows == tabled));
    let extents = field.extents().all().len();
    if field.spec.is_dense() {
        // Extents may describe the rows after those of the table.
        return !(folded && extents <= MAX_EXTENTS);
    }
    length > 0 && !(folded && extents == 0)
}

impl Drop for Writer {
    fn drop(&mut self) {
        // A writer that was not closed keeps what was flushed.
        self.release();
    }
}
