//! Writes a tape.

use std::collections::VecDeque;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use super::layout::{self, ROWS_BYTES, Shape};
use crate::flusher::{Buffered, Flusher};
use crate::fork::OwnerProcess;
use crate::journal::{Journal, MAX_RECORD_BYTES};
use crate::latch::Latch;
use crate::{Error, Result, durable};

/// Rows are collected in blocks of this size, or of one longer row. A block becomes one record;
/// a full one is written at once.
const BLOCK_BYTES: usize = 1 << 20;

/// Blocks up to this size are reused if rows differ in length.
const LONG_BYTES: usize = 8 << 20;

/// The most bytes of rows that wait to be written, plus one row.
const MAX_PENDING: usize = 64 << 20;

/// Empty blocks that a tape keeps: one is filled while another is written, and one more covers a
/// slow disk.
const SPARE_BLOCKS: usize = 3;

/// The longest wait for room, after which the caller can check for signals.
const WAIT: Duration = Duration::from_millis(100);

/// A tape that is being recorded. Thread-safe.
///
/// Rows are written within about 50 ms and synced within about a second if the disk is fast
/// enough. After a failed write or sync every further call returns that error, and all that was
/// written before stays.
pub struct TapeWriter {
    pub(super) tape: Arc<Tape>,
}

impl TapeWriter {
    /// Creates a tape at a path that does not exist; `name` is for messages. Its head is flushed.
    pub fn create(
        path: &Path,
        name: &str,
        head: &[u8],
        row_bytes: Option<usize>,
        clocks: usize,
    ) -> Result<Self> {
        let of_name = |error: Error| error.about(format_args!("`{name}`"));
        let shape = Shape::new(row_bytes, clocks).map_err(of_name)?;
        let flusher = Flusher::of_this_process();
        let mut journal = Journal::create(path).map_err(|error| match error.kind() {
            "already-exists" => durable::exists_already(path),
            _ => error,
        })?;
        let begin = || -> Result<Self> {
            let record = layout::head(&shape, head);
            journal.append(&record).map_err(of_name)?;
            journal.flush()?;
            // Not through the journal, so that a sync never delays a write. One descriptor serves
            // both: an episode may have a thousand signals.
            let file = journal.file();
            let tape = Arc::new(Tape {
                path: path.to_path_buf(),
                name: name.into(),
                shape,
                process: OwnerProcess::current(),
                flusher,
                front: Mutex::new(Front::new(&shape)),
                room: Condvar::new(),
                back: Mutex::new(Back { journal: Some(journal), taken: VecDeque::new() }),
                written: AtomicU64::new(0),
                disk: Mutex::new(Disk { file: Some(file), synced: None }),
            });
            flusher.add(Arc::clone(&tape) as Arc<dyn Buffered>)?;
            Ok(Self { tape })
        };
        begin().inspect_err(|_| {
            // The first error matters more than a failure to remove the file.
            let _ = durable::remove(path);
        })
    }

    /// Appends a row with a later timestamp than all before; waits while too much is pending.
    pub fn append(&self, ts: i64, clocks: &[i64], payload: &[u8]) -> Result<()> {
        while !self.try_append(ts, clocks, payload)? {
            self.wait_for_room();
        }
        Ok(())
    }

    /// Appends a row like [`append`](Self::append), but returns false if too much is pending. Never
    /// waits for the disk.
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
            // A row that fits into a record has a shorter payload.
            front.open.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        }
        front.open.extend_from_slice(payload);
        front.count += 1;
        front.rows += 1;
        front.last_ts = ts;
        if front.add_bytes(bytes) {
            drop(front);
            tape.flusher.wake();
        }
        Ok(true)
    }

    /// Appends a note after all rows so far; waits while too much is pending.
    pub fn note(&self, data: &[u8]) -> Result<()> {
        while !self.try_note(data)? {
            self.wait_for_room();
        }
        Ok(())
    }

    /// Appends a note like [`note`](Self::note), but returns false if too much is pending.
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
        if front.add_bytes(bytes) {
            drop(front);
            tape.flusher.wake();
        }
        Ok(true)
    }

    /// Waits a short time for rows to be written.
    pub fn wait_for_room(&self) {
        let Ok(tape) = self.tape() else { return };
        let mut front = tape.lock_front();
        if !front.closed && !front.failure.is_set() && front.pending > 0 {
            front.waiting += 1;
            let waited = tape.room.wait_timeout(front, WAIT);
            let (mut front, _) = waited.unwrap_or_else(PoisonError::into_inner);
            front.waiting -= 1;
        }
    }

    /// Writes everything so far to the file, so that it survives the end of the process.
    pub fn flush(&self) -> Result<()> {
        let tape = self.tape()?;
        tape.lock_front().check(&tape.name)?;
        tape.write();
        tape.check_failure()?;
        tape.check_at()
    }

    /// Writes everything so far to the disk, so that it survives a power cut.
    pub fn sync(&self) -> Result<()> {
        let tape = self.tape()?;
        tape.lock_front().check(&tape.name)?;
        tape.write();
        tape.sync();
        tape.check_failure()?;
        tape.check_at()
    }

    /// Syncs and closes the tape. Does nothing once it succeeded, or after an abort.
    pub fn close(&self) -> Result<()> {
        let tape = self.tape()?;
        tape.refuse_more();
        tape.write();
        tape.sync();
        tape.flusher.remove(tape);
        if tape.lock_front().aborted {
            return Ok(());
        }
        tape.check_failure()?;
        let is_there = tape.check_at();
        tape.release();
        is_there
    }

    /// Closes and removes the tape. Does nothing if it is closed or aborted already.
    pub fn abort(&self) -> Result<()> {
        let tape = self.tape()?;
        tape.refuse_more();
        let mut front = tape.lock_front();
        let dropped = front.discard();
        front.aborted = true;
        drop(front);
        drop(dropped);
        tape.flusher.remove(tape);
        // `release` waits for a write or sync in progress.
        match tape.release() {
            Some(file) if durable::is_at(&file, &tape.path) => durable::remove(&tape.path),
            _ => Ok(()),
        }
    }

    /// Writes all pending rows and closes the tape, ignoring errors; the file stays.
    pub fn leave(&self) {
        if let Ok(tape) = self.tape() {
            tape.refuse_more();
            tape.write();
            tape.flusher.remove(tape);
            tape.release();
        }
    }

    /// Returns the number of appended rows.
    pub fn rows(&self) -> Result<u64> {
        Ok(self.tape()?.lock_front().rows)
    }

    /// Returns the timestamp of the last row.
    pub fn last_ts(&self) -> Result<Option<i64>> {
        let front = self.tape()?.lock_front();
        Ok((front.rows > 0).then_some(front.last_ts))
    }

    /// Returns the bytes that are not written yet.
    pub fn pending_bytes(&self) -> Result<usize> {
        Ok(self.tape()?.lock_front().pending)
    }

    /// Returns the bytes of all rows and notes so far.
    pub fn bytes(&self) -> Result<u64> {
        Ok(self.tape()?.lock_front().bytes)
    }

    /// Returns the tape, unless it belongs to the parent process.
    fn tape(&self) -> Result<&Arc<Tape>> {
        if !self.tape.process.is_current() {
            self.tape.process.check(&format!("`{}`", self.tape.name))?;
        }
        Ok(&self.tape)
    }
}

impl Drop for TapeWriter {
    fn drop(&mut self) {
        self.leave();
    }
}

/// The state that the writer shares with the background threads. Locks are taken in the order of
/// the fields.
pub struct Tape {
    path: PathBuf,
    name: String,
    shape: Shape,
    process: OwnerProcess,
    flusher: &'static Flusher,
    /// Locked during a write.
    pub(super) back: Mutex<Back>,
    /// Bytes of all written records.
    written: AtomicU64,
    /// Locked during a sync, until its failure is recorded.
    pub(super) disk: Mutex<Disk>,
    /// Locked only briefly, never during a write or sync.
    front: Mutex<Front>,
    /// Signalled after a write.
    room: Condvar,
}

pub struct Back {
    /// `None` once the tape is released.
    journal: Option<Journal>,
    /// Records that are being written.
    taken: VecDeque<Vec<u8>>,
}

pub struct Disk {
    /// `None` once the tape is released.
    file: Option<Arc<File>>,
    /// The value of `written` when the last sync began.
    synced: Option<u64>,
}

struct Front {
    /// The record that is being filled.
    open: Vec<u8>,
    /// Rows in `open`.
    count: u32,
    /// Full records.
    sealed: VecDeque<Vec<u8>>,
    /// Empty blocks, the last used at the end.
    spare: Vec<Vec<u8>>,
    /// The size of a block: enough for the longest row so far.
    block_bytes: usize,
    /// Bytes in `open` and `sealed`.
    queued: usize,
    /// `queued` and the bytes that are being written.
    pending: usize,
    /// Whether the writing thread was woken for the queued bytes.
    woken: bool,
    /// The number of callers that wait for room.
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
        let row = shape.header_bytes() + shape.row_bytes.unwrap_or(0);
        let block_bytes = BLOCK_BYTES.max(ROWS_BYTES + row).min(MAX_RECORD_BYTES);
        Self {
            open: Vec::with_capacity(block_bytes),
            count: 0,
            sealed: VecDeque::with_capacity(64),
            spare: vec![Vec::with_capacity(block_bytes)],
            block_bytes,
            queued: 0,
            pending: 0,
            woken: false,
            waiting: 0,
            rows: 0,
            last_ts: 0,
            bytes: 0,
            closed: false,
            aborted: false,
            failure: Latch::default(),
        }
    }

    /// Refuses calls after a failure or the end.
    fn check(&self, name: &str) -> Result<()> {
        if self.closed || self.failure.is_set() {
            self.failure.check()?;
            return Err(Error::Closed(format!(
                "cannot write to `{name}`: the recording has ended"
            )));
        }
        Ok(())
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.pending == 0 || self.pending + bytes <= MAX_PENDING
    }

    /// Ensures that `open` has room for a row of `bytes` bytes.
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

    /// Completes the record that is being filled.
    fn seal(&mut self) {
        if self.count > 0 {
            let head = layout::rows_head(self.rows - u64::from(self.count), self.count);
            self.open[..ROWS_BYTES].copy_from_slice(&head);
            let fresh = self.spare.pop().unwrap_or_default();
            self.sealed.push_back(std::mem::replace(&mut self.open, fresh));
            self.count = 0;
        }
    }

    /// Counts appended bytes; returns whether the writing thread must be woken.
    fn add_bytes(&mut self, bytes: usize) -> bool {
        self.queued += bytes;
        self.pending += bytes;
        self.bytes += bytes as u64;
        let wake = self.queued >= BLOCK_BYTES && !self.woken;
        self.woken |= wake;
        wake
    }

    /// Discards all pending records, and returns them for the caller to free.
    fn discard(&mut self) -> VecDeque<Vec<u8>> {
        let mut dropped = std::mem::take(&mut self.sealed);
        dropped.push_back(std::mem::take(&mut self.open));
        dropped.extend(std::mem::take(&mut self.spare));
        (self.count, self.queued, self.pending) = (0, 0, 0);
        dropped
    }
}

impl Buffered for Tape {
    fn write_if_free(&self) {
        if let Some(mut back) = try_lock(&self.back) {
            self.write_with(&mut back);
        }
    }

    fn sync_if_free(&self) {
        if let Some(mut disk) = try_lock(&self.disk) {
            self.sync_with(&mut disk);
        }
    }
}

impl Tape {
    fn write(&self) {
        self.write_with(&mut locked(&self.back));
    }

    fn sync(&self) {
        self.sync_with(&mut locked(&self.disk));
    }

    /// Checks that the file was not removed. Does nothing once the tape is closed.
    fn check_at(&self) -> Result<()> {
        // Not the file of a sync, which may be in progress.
        let file = locked(&self.back).journal.as_ref().map(Journal::file);
        file.map_or(Ok(()), |file| durable::check_at(&file, &self.path))
    }

    /// Writes all pending records; an error is kept.
    fn write_with(&self, back: &mut Back) {
        let Some(journal) = &mut back.journal else { return };
        let mut front = self.lock_front();
        if front.queued == 0 {
            return;
        }
        front.seal();
        std::mem::swap(&mut front.sealed, &mut back.taken);
        (front.queued, front.woken) = (0, false);
        drop(front);
        while let Some(record) = back.taken.pop_front() {
            let written = catch_unwind(AssertUnwindSafe(|| {
                journal.append(&record)?;
                journal.flush()
            }))
            .unwrap_or_else(|_| {
                Err(Error::Closed("the background thread that writes the recording crashed".into()))
            });
            if let Err(error) = written {
                back.taken.clear();
                self.fail(error);
                return;
            }
            // The lock of the front publishes it.
            self.written.fetch_add(record.len() as u64, Ordering::Relaxed);
            self.recycle(record);
        }
    }

    /// Reuses the block of a written record.
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

    /// Syncs all written records; an error is kept.
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

    /// Whether all written records are synced.
    #[cfg(test)]
    pub(super) fn is_synced(&self) -> bool {
        locked(&self.disk).synced == Some(self.written.load(Ordering::Relaxed))
    }

    /// Keeps an error, and discards all records that can no longer be written.
    pub(super) fn fail(&self, error: Error) {
        let text = format!("the recording of `{}` failed: {error}", self.name);
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

    /// Closes the files after a write or sync in progress; returns the file that is synced.
    fn release(&self) -> Option<Arc<File>> {
        let journal = locked(&self.back).journal.take();
        drop(journal);
        let file = locked(&self.disk).file.take();
        let dropped = self.lock_front().discard();
        drop(dropped);
        file
    }

    /// Returns the bytes of a row after checking that it fits the tape.
    fn row_bytes(&self, front: &Front, ts: i64, clocks: &[i64], payload: &[u8]) -> Result<usize> {
        let invalid = |text: String| Err(self.named(Error::Invalid(text)));
        if let Some(bytes) = self.shape.row_bytes
            && bytes != payload.len()
        {
            return invalid(format!("the payload has {} bytes, expected {bytes}", payload.len()));
        }
        if clocks.len() != self.shape.clocks {
            return invalid(format!(
                "got {} clock values, expected {}",
                clocks.len(),
                self.shape.clocks
            ));
        }
        if front.rows > 0 && ts <= front.last_ts {
            let last = front.last_ts;
            return invalid(format!("timestamp {ts} is not after the previous one, {last}"));
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

fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
