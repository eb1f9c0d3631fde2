//! Recording onto a tape.

use std::collections::VecDeque;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::flusher::{self, Flusher};
use super::latch::Latch;
use super::layout::{self, ROWS_BYTES, Shape};
use crate::journal::{Journal, MAX_RECORD_BYTES};
use crate::{Error, Result, durable};

/// Rows are collected in blocks; each becomes one record, of so many bytes or a single row. A
/// full one is written at once.
const BLOCK_BYTES: usize = 1 << 20;

/// Blocks for rows up to this long are kept for the next, where lengths differ.
const LONG_BYTES: usize = 8 << 20;

/// Rows wait to be written in no more memory than this, and one row.
const MOST_PENDING: usize = 64 << 20;

/// Empty blocks that a tape keeps: it fills one while the other is written, and one more comes
/// when the disk was late.
const SPARE_BLOCKS: usize = 3;

/// How long a row waits for room before its caller may look at what else there is.
const PATIENCE: Duration = Duration::from_millis(100);

/// A tape being recorded. Thread-safe.
///
/// What is appended is written within about 50 ms and synced within about a second, where the
/// disk keeps up. When a write or a sync failed every further call is answered with that
/// failure, and what was written before it stays.
pub struct TapeWriter {
    pub(super) tape: Arc<Tape>,
}

impl TapeWriter {
    /// Begins a tape at a path where nothing is; `name` is for messages. Its head is flushed.
    pub fn create(
        path: &Path,
        name: &str,
        head: &[u8],
        row_bytes: Option<usize>,
        clocks: usize,
    ) -> Result<Self> {
        let of_name = |error: Error| error.about(format_args!("`{name}`"));
        let shape = Shape::new(row_bytes, clocks).map_err(of_name)?;
        let flusher = Flusher::of_this_process()?;
        let mut journal = Journal::create(path).map_err(|error| match error.kind() {
            "already-exists" => durable::exists_already(path),
            _ => error,
        })?;
        let begin = || -> Result<Self> {
            let record = layout::head(&shape, head);
            journal.append(&record).map_err(of_name)?;
            journal.flush()?;
            // A handle of its own, so that a sync never keeps a write waiting.
            let file = durable::with_more_files(|| File::open(path))
                .map_err(|error| durable::about(path, &error))?;
            let tape = Arc::new(Tape {
                path: path.to_path_buf(),
                name: name.into(),
                shape,
                process: flusher::process(),
                flusher,
                front: Mutex::new(Front::new(&shape)),
                room: Condvar::new(),
                back: Mutex::new(Back { journal: Some(journal), taken: VecDeque::new() }),
                written: AtomicU64::new(0),
                disk: Mutex::new(Disk { file: Some(file), synced: None }),
            });
            flusher.adopt(&tape)?;
            Ok(Self { tape })
        };
        begin().inspect_err(|_| {
            // Nobody has it, and the reason why it failed matters more.
            let _ = durable::remove(path);
        })
    }

    /// Takes a row, later than all before; waits while too much is pending.
    pub fn append(&self, ts: i64, clocks: &[i64], payload: &[u8]) -> Result<()> {
        while !self.try_append(ts, clocks, payload)? {
            self.wait_for_room();
        }
        Ok(())
    }

    /// Takes a row, later than all before; false when too much is pending. Never waits for the
    /// disk.
    pub fn try_append(&self, ts: i64, clocks: &[i64], payload: &[u8]) -> Result<bool> {
        let tape = self.tape()?;
        let mut front = tape.lock_front();
        front.check(&tape.name)?;
        let bytes = tape.row_bytes(&front, ts, clocks, payload)?;
        if !front.has_room(bytes) {
            return Ok(false);
        }
        front.open_block(bytes);
        front.open.extend_from_slice(&ts.to_le_bytes());
        for clock in clocks {
            front.open.extend_from_slice(&clock.to_le_bytes());
        }
        if tape.shape.row_bytes.is_none() {
            // A row that fits into a record is shorter.
            front.open.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        }
        front.open.extend_from_slice(payload);
        front.count += 1;
        front.rows += 1;
        front.last_ts = ts;
        if front.took(bytes) {
            drop(front);
            tape.flusher.wake();
        }
        Ok(true)
    }

    /// Takes a note, behind all rows so far; waits while too much is pending.
    pub fn note(&self, data: &[u8]) -> Result<()> {
        while !self.try_note(data)? {
            self.wait_for_room();
        }
        Ok(())
    }

    /// Takes a note, behind all rows so far; false when too much is pending.
    pub fn try_note(&self, data: &[u8]) -> Result<bool> {
        let tape = self.tape()?;
        let record = layout::note(data).map_err(|error| tape.named(error));
        let mut front = tape.lock_front();
        front.check(&tape.name)?;
        let record = record?;
        let bytes = record.len();
        if !front.has_room(bytes) {
            return Ok(false);
        }
        front.seal();
        front.sealed.push_back(record);
        if front.took(bytes) {
            drop(front);
            tape.flusher.wake();
        }
        Ok(true)
    }

    /// Waits a short while for rows to be written.
    pub fn wait_for_room(&self) {
        let Ok(tape) = self.tape() else { return };
        let mut front = tape.lock_front();
        if !front.closed && !front.failure.is_set() && front.pending > 0 {
            front.waiting += 1;
            let waited = tape.room.wait_timeout(front, PATIENCE);
            let (mut front, _) = waited.unwrap_or_else(PoisonError::into_inner);
            front.waiting -= 1;
        }
    }

    /// Makes everything so far survive the end of this process.
    pub fn flush(&self) -> Result<()> {
        let tape = self.tape()?;
        tape.lock_front().check(&tape.name)?;
        tape.write();
        tape.check_failure()
    }

    /// Makes everything so far survive a power cut.
    pub fn sync(&self) -> Result<()> {
        let tape = self.tape()?;
        tape.lock_front().check(&tape.name)?;
        tape.write();
        tape.sync();
        tape.check_failure()
    }

    /// Syncs, and takes no more. Once it succeeded, or after an abort, it does nothing.
    pub fn close(&self) -> Result<()> {
        let tape = self.tape()?;
        tape.refuse_more();
        tape.write();
        tape.sync();
        tape.flusher.forget(tape);
        if tape.lock_front().aborted {
            return Ok(());
        }
        tape.check_failure()?;
        tape.let_go();
        Ok(())
    }

    /// Takes no more, and removes the tape; once it was closed, or aborted, nothing.
    pub fn abort(&self) -> Result<()> {
        let tape = self.tape()?;
        tape.refuse_more();
        let mut front = tape.lock_front();
        let dropped = front.discard();
        front.aborted = true;
        drop(front);
        drop(dropped);
        tape.flusher.forget(tape);
        // Whatever is being written or synced ends before the name does.
        match tape.let_go() {
            Some(file) if durable::is_at(&file, &tape.path) => durable::remove(&tape.path),
            _ => Ok(()),
        }
    }

    /// Writes what is pending and takes no more, whatever comes of it.
    pub fn leave(&self) {
        if let Ok(tape) = self.tape() {
            tape.refuse_more();
            tape.write();
            tape.flusher.forget(tape);
            tape.let_go();
        }
    }

    /// Rows that were taken.
    pub fn rows(&self) -> Result<u64> {
        Ok(self.tape()?.lock_front().rows)
    }

    /// When the last row was.
    pub fn last_ts(&self) -> Result<Option<i64>> {
        let front = self.tape()?.lock_front();
        Ok((front.rows > 0).then_some(front.last_ts))
    }

    /// Bytes that are not written yet.
    pub fn pending_bytes(&self) -> Result<usize> {
        Ok(self.tape()?.lock_front().pending)
    }

    /// Bytes that rows and notes came to so far.
    pub fn bytes(&self) -> Result<u64> {
        Ok(self.tape()?.lock_front().bytes)
    }

    /// The tape, in the process that it is of: in another the locks may be held for ever.
    fn tape(&self) -> Result<&Arc<Tape>> {
        if self.tape.process == flusher::process() {
            return Ok(&self.tape);
        }
        let text = "the process that this one was forked from records it";
        Err(self.tape.named(Error::Closed(text.into())))
    }
}

impl Drop for TapeWriter {
    fn drop(&mut self) {
        self.leave();
    }
}

/// What the threads and the writer share. Locks are taken in the order of the fields.
pub struct Tape {
    path: PathBuf,
    name: String,
    shape: Shape,
    process: u64,
    flusher: &'static Flusher,
    /// Held by whoever writes.
    pub(super) back: Mutex<Back>,
    /// Bytes of records that were written.
    written: AtomicU64,
    /// Held by whoever syncs, until a failure of it is seen by all.
    pub(super) disk: Mutex<Disk>,
    /// Held for moments only, never while something is written or synced.
    front: Mutex<Front>,
    /// Something was written.
    room: Condvar,
}

pub struct Back {
    /// None once the tape is let go of.
    journal: Option<Journal>,
    /// Records on their way to the file.
    taken: VecDeque<Vec<u8>>,
}

pub struct Disk {
    /// None once the tape is let go of.
    file: Option<File>,
    /// How much was written when the last sync began.
    synced: Option<u64>,
}

struct Front {
    /// The record that is being filled.
    open: Vec<u8>,
    /// Rows in it.
    count: u32,
    /// Records that are full.
    sealed: VecDeque<Vec<u8>>,
    /// Blocks to be filled, the last used at the end.
    spare: Vec<Vec<u8>>,
    /// Room of a block: for the longest row so far.
    block_bytes: usize,
    /// Bytes in `open` and `sealed`.
    queued: usize,
    /// Those, and the bytes being written.
    pending: usize,
    /// The thread that writes was told of what is queued.
    told: bool,
    /// Callers that wait for room.
    waiting: usize,
    rows: u64,
    last_ts: i64,
    bytes: u64,
    closed: bool,
    aborted: bool,
    failure: Latch,
}

impl Front {
    fn new(shape: &Shape) -> Self {
        let row = shape.before() + shape.row_bytes.unwrap_or(0);
        let block_bytes = BLOCK_BYTES.max(ROWS_BYTES + row).min(MAX_RECORD_BYTES);
        Self {
            open: Vec::with_capacity(block_bytes),
            count: 0,
            sealed: VecDeque::with_capacity(64),
            spare: vec![Vec::with_capacity(block_bytes)],
            block_bytes,
            queued: 0,
            pending: 0,
            told: false,
            waiting: 0,
            rows: 0,
            last_ts: 0,
            bytes: 0,
            closed: false,
            aborted: false,
            failure: Latch::default(),
        }
    }

    /// Refuses whatever comes after a failure or the end.
    fn check(&self, name: &str) -> Result<()> {
        if self.closed || self.failure.is_set() {
            self.failure.check()?;
            return Err(Error::Closed(format!("`{name}`: its recording has ended")));
        }
        Ok(())
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.pending == 0 || self.pending + bytes <= MOST_PENDING
    }

    /// Makes `open` a block that takes a row of so many bytes without growing.
    fn open_block(&mut self, bytes: usize) {
        if self.count > 0 {
            if self.open.len() + bytes <= BLOCK_BYTES {
                return;
            }
            self.seal();
        }
        let need = ROWS_BYTES + bytes;
        if need > self.block_bytes && need <= LONG_BYTES {
            self.block_bytes = need.next_power_of_two();
        }
        if self.open.capacity() < need {
            self.open = Vec::with_capacity(need.max(self.block_bytes));
        }
        self.open.resize(ROWS_BYTES, 0);
    }

    /// Ends the record that is being filled.
    fn seal(&mut self) {
        if self.count > 0 {
            let head = layout::rows_head(self.rows - u64::from(self.count), self.count);
            self.open[..ROWS_BYTES].copy_from_slice(&head);
            let fresh = self.spare.pop().unwrap_or_default();
            self.sealed.push_back(std::mem::replace(&mut self.open, fresh));
            self.count = 0;
        }
    }

    /// Counts what was taken; whether the thread that writes is to be told.
    fn took(&mut self, bytes: usize) -> bool {
        self.queued += bytes;
        self.pending += bytes;
        self.bytes += bytes as u64;
        let tell = self.queued >= BLOCK_BYTES && !self.told;
        self.told |= tell;
        tell
    }

    /// Drops everything that is pending, for the caller to free.
    fn discard(&mut self) -> VecDeque<Vec<u8>> {
        let mut dropped = std::mem::take(&mut self.sealed);
        dropped.push_back(std::mem::take(&mut self.open));
        dropped.extend(std::mem::take(&mut self.spare));
        (self.count, self.queued, self.pending) = (0, 0, 0);
        dropped
    }
}

impl Tape {
    /// Writes what is pending, unless somebody does.
    pub fn write_if_free(&self) {
        match self.back.try_lock() {
            Ok(mut back) => self.write_with(&mut back),
            Err(std::sync::TryLockError::Poisoned(back)) => self.write_with(&mut back.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => {}
        }
    }

    /// Syncs what is written, unless somebody does.
    pub fn sync_if_free(&self) {
        match self.disk.try_lock() {
            Ok(mut disk) => self.sync_with(&mut disk),
            Err(std::sync::TryLockError::Poisoned(disk)) => self.sync_with(&mut disk.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => {}
        }
    }

    fn write(&self) {
        self.write_with(&mut locked(&self.back));
    }

    fn sync(&self) {
        self.sync_with(&mut locked(&self.disk));
    }

    /// Writes what is pending now; a failure is kept.
    fn write_with(&self, back: &mut Back) {
        let Some(journal) = &mut back.journal else { return };
        let mut front = self.lock_front();
        if front.queued == 0 {
            return;
        }
        front.seal();
        std::mem::swap(&mut front.sealed, &mut back.taken);
        (front.queued, front.told) = (0, false);
        drop(front);
        while let Some(record) = back.taken.pop_front() {
            let written = catch_unwind(AssertUnwindSafe(|| {
                journal.append(&record)?;
                journal.flush()
            }))
            .unwrap_or_else(|_| Err(Error::Closed("the thread that writes panicked".into())));
            if let Err(error) = written {
                back.taken.clear();
                self.fail(error);
                return;
            }
            // Published by the lock of the front.
            self.written.fetch_add(record.len() as u64, Ordering::Relaxed);
            self.recycle(record);
        }
    }

    /// Takes the block of a record that was written.
    fn recycle(&self, mut record: Vec<u8>) {
        let mut front = self.lock_front();
        let head = if record.first() == Some(&layout::ROWS) { ROWS_BYTES } else { 0 };
        front.pending = front.pending.saturating_sub(record.len() - head);
        let waiting = front.waiting > 0;
        let fits = (front.block_bytes..=2 * front.block_bytes).contains(&record.capacity());
        let most = if front.block_bytes > LONG_BYTES { 1 } else { SPARE_BLOCKS };
        let keep = fits && front.spare.len() < most && !front.closed;
        if keep {
            record.clear();
            front.spare.push(std::mem::take(&mut record));
        }
        drop(front);
        if waiting {
            self.room.notify_all();
        }
    }

    /// Syncs what was written; a failure is kept.
    fn sync_with(&self, disk: &mut Disk) {
        let Some(file) = &disk.file else { return };
        let written = self.written.load(Ordering::Relaxed);
        if disk.synced == Some(written) || self.lock_front().failure.is_set() {
            return;
        }
        let name_is_safe = disk.synced.is_some();
        let synced = file.sync_data().map_err(|error| durable::about(&self.path, &error));
        let synced = synced
            .and_then(|()| if name_is_safe { Ok(()) } else { durable::sync_folder_of(&self.path) });
        match synced {
            Ok(()) => disk.synced = Some(written),
            Err(error) => self.fail(error),
        }
    }

    /// Whether everything that was written is synced.
    #[cfg(test)]
    pub(super) fn is_synced(&self) -> bool {
        locked(&self.disk).synced == Some(self.written.load(Ordering::Relaxed))
    }

    /// Keeps a failure for all to see, and drops what can no longer be written.
    pub(super) fn fail(&self, error: Error) {
        let text = format!("`{}` can no longer be recorded: {error}", self.name);
        let error = match error {
            Error::Io(error) => Error::Io(std::io::Error::new(error.kind(), text)),
            _ => Error::Io(std::io::Error::other(text)),
        };
        let mut front = self.lock_front();
        front.failure.keep(error);
        let dropped = front.discard();
        drop(front);
        drop(dropped);
        self.room.notify_all();
    }

    fn refuse_more(&self) {
        self.lock_front().closed = true;
        self.room.notify_all();
    }

    fn check_failure(&self) -> Result<()> {
        self.lock_front().failure.check()
    }

    /// Closes the files, once nobody writes or syncs; gives the one that was synced.
    fn let_go(&self) -> Option<File> {
        let journal = locked(&self.back).journal.take();
        drop(journal);
        let file = locked(&self.disk).file.take();
        let dropped = self.lock_front().discard();
        drop(dropped);
        file
    }

    /// The bytes that a row takes, if it is one of this tape that may come now.
    fn row_bytes(&self, front: &Front, ts: i64, clocks: &[i64], payload: &[u8]) -> Result<usize> {
        let invalid = |text: String| Err(self.named(Error::Invalid(text)));
        if let Some(bytes) = self.shape.row_bytes
            && bytes != payload.len()
        {
            return invalid(format!("a row has {bytes} bytes, not {}", payload.len()));
        }
        if clocks.len() != self.shape.clocks {
            return invalid(format!(
                "a row has {} clocks, not {}",
                self.shape.clocks,
                clocks.len()
            ));
        }
        if front.rows > 0 && ts <= front.last_ts {
            let last = front.last_ts;
            return invalid(format!("timestamp {ts} is not after the last, {last}"));
        }
        self.shape.bytes_of(payload.len()).map_err(|error| self.named(error))
    }

    fn named(&self, error: Error) -> Error {
        error.about(format_args!("`{}`", self.name))
    }

    fn lock_front(&self) -> MutexGuard<'_, Front> {
        locked(&self.front)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
