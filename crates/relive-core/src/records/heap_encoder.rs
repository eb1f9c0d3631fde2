//! Threads that encode values and write them to heap chunks, each to a chunk of its own.
//!
//! Values are collected into tasks; any idle worker takes the next one. The caller learns where
//! a value is stored when it drains.

mod heap_writer;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use self::heap_writer::{Heap, Record};
pub use self::heap_writer::{HeapConfig, check};
use super::chunk_writer::ChunkWriter;
use super::journal_records::Position;
use super::layout::Entry;
use super::value::Value;
use crate::codec::Encoder;
use crate::durable::{self, Growing};
use crate::fork::OwnerProcess;
use crate::latch::{Latch, RecordIn};
use crate::{Error, Result, pool};

/// A value that was put: the position of its entry in the result of the next drain.
pub type Slot = usize;

/// A task is queued when it has this many bytes.
const TASK_BYTES: usize = 1 << 20;

/// A task is queued when it has this many values.
const TASK_VALUES: usize = 1024;

/// Encoding fewer bytes takes less time than waking a thread; copying them takes less time than
/// waiting for one.
const SMALL_BYTES: usize = 64 * 1024;

/// The cost of a value of any length, in bytes of work.
const VALUE_COST: usize = 64;

/// Limit for the memory of copied values that wait for a worker, apart from one value.
const WAITING_BYTES: usize = 64 << 20;

/// Tasks per worker that wait, or that a borrowed batch is split into: enough that a slow one
/// costs little.
const TASKS_PER_WORKER: usize = 4;

/// Encodes values and writes them to heap chunks, on threads of its own.
///
/// After an error, every further call but [`HeapEncoder::trim`] is refused.
pub struct HeapEncoder {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    owner: OwnerProcess,
    /// Copied values that are not queued yet.
    copied: CopiedValues,
    /// Slots that were returned since the last drain.
    slots: usize,
}

struct Shared {
    heap: Heap,
    /// One for each worker.
    writers: Vec<Mutex<ChunkWriter>>,
    queue: Mutex<Queue>,
    /// There is a task, or the end.
    work: Condvar,
    /// A task is done.
    done: Condvar,
    failure: Latch,
}

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Task>,
    running: usize,
    /// Tasks, waiting or running, that borrow the caller's values.
    borrowed: usize,
    /// Bytes of copied values, waiting or running.
    copied: usize,
    /// Entries of finished tasks, and the slot of the first.
    stored: Vec<(usize, Vec<Entry>)>,
    spare: Vec<CopiedValues>,
    stop: bool,
}

impl HeapEncoder {
    /// Makes an encoder with `workers` threads. They start with the first task and continue
    /// the chunks in `unfull`.
    pub fn new(config: HeapConfig, workers: usize, unfull: Vec<Position>) -> Self {
        let writers = (0..workers.clamp(1, pool::MAX_THREADS))
            .map(|_| Mutex::new(ChunkWriter::new(&config.folder)))
            .collect();
        Self {
            shared: Arc::new(Shared {
                heap: Heap { config, unfull: Mutex::new(unfull.into()) },
                writers,
                queue: Mutex::default(),
                work: Condvar::new(),
                done: Condvar::new(),
                failure: Latch::default(),
            }),
            threads: Vec::new(),
            owner: OwnerProcess::current(),
            copied: CopiedValues::default(),
            slots: 0,
        }
    }

    /// Puts a copy of a value, which may be lost until [`HeapEncoder::drain`].
    ///
    /// A value that is too long is `TooLarge`, and nothing is put.
    pub fn put(
        &mut self,
        field: u16,
        encoder: &Arc<Encoder>,
        sequence: u64,
        bytes: &[u8],
        dims: &[u64],
    ) -> Result<Slot> {
        self.shared.failure.check()?;
        check(encoder, bytes.len(), dims.len())?;
        self.copied.push(Record { field, encoder, sequence, bytes, dims, stored: None }, encoder);
        self.slots += 1;
        if self.copied.bytes.len() >= TASK_BYTES || self.copied.len() >= TASK_VALUES {
            self.queue_copied()?;
        }
        Ok(self.slots - 1)
    }

    /// Puts values without copying them, and returns when all are encoded.
    ///
    /// Missing values have a slot as well. If one is too long, the error is `TooLarge` and
    /// nothing is put.
    pub fn put_borrowed(
        &mut self,
        field: u16,
        encoder: &Arc<Encoder>,
        sequence: u64,
        values: &[Value<'_>],
    ) -> Result<Range<Slot>> {
        self.shared.failure.check()?;
        let mut total = 0_usize;
        for value in values {
            check(encoder, value.bytes().len(), value.dims().len())?;
            total = total.saturating_add(value.bytes().len() + VALUE_COST);
        }
        let slots = self.slots..self.slots + values.len();
        let plain = |value: &Value<'_>| matches!(value, Value::Bytes { .. });
        if total < SMALL_BYTES && values.iter().all(plain) {
            for value in values {
                self.put(field, encoder, sequence, value.bytes(), value.dims())?;
            }
            return Ok(slots);
        }
        self.queue_copied()?;
        self.start()?;
        self.slots = slots.end;
        let mut first = slots.start;
        let goal = (total / (self.shared.writers.len() * TASKS_PER_WORKER)).max(SMALL_BYTES);
        let mut queue = self.shared.lock();
        for part in split(values, goal) {
            // SAFETY: this call returns when no task is left that borrows.
            let borrowed = unsafe { BorrowedValues::new(field, encoder, sequence, part) };
            queue.tasks.push_back(Task { first, values: TaskValues::Borrowed(borrowed) });
            queue.borrowed += 1;
            first += part.len();
        }
        self.shared.work.notify_all();
        drop(self.shared.wait_while(queue, |queue| queue.borrowed > 0));
        self.shared.failure.check()?;
        Ok(slots)
    }

    /// Writes everything to the files, so that it survives the end of this process. Returns the
    /// entries of all slots since the last drain, in order.
    pub fn drain(&mut self) -> Result<Vec<Entry>> {
        self.shared.failure.check()?;
        let mut queue = self.shared.lock();
        let small = self.copied.bytes.len() + self.copied.len() * VALUE_COST < SMALL_BYTES;
        if small && self.copied.len() > 0 && queue.is_idle() {
            let fresh = queue.spare.pop().unwrap_or_default();
            drop(queue);
            let first = self.slots - self.copied.len();
            let values = TaskValues::Copied(std::mem::replace(&mut self.copied, fresh));
            self.shared.finish(0, Task { first, values });
        } else {
            drop(queue);
            self.queue_copied()?;
        }
        let queue = self.shared.lock();
        let mut queue = self.shared.wait_while(queue, |queue| !queue.is_idle());
        self.shared.failure.check()?;
        let mut stored = std::mem::take(&mut queue.stored);
        drop(queue);
        for writer in &self.shared.writers {
            locked(writer).flush().record_in(&self.shared.failure)?;
        }
        stored.sort_unstable_by_key(|(first, _)| *first);
        let mut entries = Vec::with_capacity(self.slots);
        for (first, part) in stored {
            debug_assert_eq!(first, entries.len());
            entries.extend(part);
        }
        debug_assert_eq!(entries.len(), self.slots);
        self.slots = 0;
        Ok(entries)
    }

    /// Returns the chunks that were created since the last call.
    pub fn created(&mut self) -> Vec<u32> {
        let mut created = self.collect(ChunkWriter::created);
        created.sort_unstable();
        created
    }

    /// Returns the write positions of chunks that changed since [`HeapEncoder::committed`], as
    /// of the last [`HeapEncoder::drain`].
    pub fn positions(&self) -> Vec<Position> {
        self.collect(|writer| writer.positions())
    }

    /// Notes that the [`HeapEncoder::positions`] are in the journal.
    pub fn committed(&mut self) {
        self.shared.writers.iter().for_each(|writer| locked(writer).committed());
    }

    /// Returns files with bytes that may not be on the disk, to be synced with others.
    pub fn unsynced(&self) -> Vec<Arc<Growing>> {
        self.collect(|writer| writer.unsynced())
    }

    /// Makes everything that is drained survive a power cut.
    pub fn sync(&mut self) -> Result<()> {
        self.shared.failure.check()?;
        durable::sync_all(&self.unsynced()).record_in(&self.shared.failure)?;
        self.shared.writers.iter().for_each(|writer| locked(writer).close_finished());
        Ok(())
    }

    /// Drops tasks that no worker has started, and waits for the others: nothing is written
    /// afterwards.
    pub fn halt(&mut self) {
        let mut queue = self.shared.lock();
        queue.tasks.clear();
        drop(self.shared.wait_while(queue, |queue| !queue.is_idle()));
    }

    /// Truncates the files to what is committed. If anything was lost, no more values are
    /// accepted.
    pub fn trim(&mut self) -> Result<()> {
        self.halt();
        let mut lost = self.slots > 0;
        self.copied.clear();
        for writer in &self.shared.writers {
            lost |= locked(writer).trim()?;
        }
        if lost {
            let text = "uncommitted values were discarded: open the store again";
            self.shared.failure.keep(Error::Closed(text.into()));
        }
        Ok(())
    }

    /// Ends the threads and closes all files. Values that were not drained are dropped, and no more
    /// are accepted.
    pub fn close(&mut self) {
        let threads = std::mem::take(&mut self.threads);
        if !self.owner.is_current() {
            // The threads run in the parent process, and may hold the locks.
            threads.into_iter().for_each(std::mem::forget);
            return;
        }
        let mut queue = self.shared.lock();
        queue.tasks.clear();
        queue.stop = true;
        drop(queue);
        self.shared.work.notify_all();
        for thread in threads {
            // It catches its panics.
            let _ = thread.join();
        }
        self.copied.clear();
        for writer in &self.shared.writers {
            *locked(writer) = ChunkWriter::new(&self.shared.heap.config.folder);
        }
        self.shared.failure.keep(Error::Closed("the record store is closed".into()));
    }

    fn collect<T>(&self, part: impl Fn(&mut ChunkWriter) -> Vec<T>) -> Vec<T> {
        self.shared.writers.iter().flat_map(|writer| part(&mut locked(writer))).collect()
    }

    /// Queues the copied values, when there is room for another task.
    fn queue_copied(&mut self) -> Result<()> {
        if self.copied.len() == 0 {
            return Ok(());
        }
        self.start()?;
        let most = self.shared.writers.len() * TASKS_PER_WORKER;
        let queue = self.shared.lock();
        let mut queue = self
            .shared
            .wait_while(queue, |queue| queue.tasks.len() >= most || queue.copied >= WAITING_BYTES);
        let fresh = queue.spare.pop().unwrap_or_default();
        let copied = std::mem::replace(&mut self.copied, fresh);
        queue.copied += copied.bytes.len();
        let first = self.slots - copied.len();
        queue.tasks.push_back(Task { first, values: TaskValues::Copied(copied) });
        drop(queue);
        self.shared.work.notify_one();
        Ok(())
    }

    /// Starts the threads, unless they run.
    fn start(&mut self) -> Result<()> {
        if self.threads.is_empty() {
            for worker in 0..self.shared.writers.len() {
                let shared = Arc::clone(&self.shared);
                let spawned = thread::Builder::new()
                    .name("relive-encode".into())
                    .spawn(move || shared.serve(worker));
                match spawned {
                    Ok(thread) => self.threads.push(thread),
                    // With fewer threads it is slower, but still correct.
                    Err(_) if worker > 0 => break,
                    Err(error) => return Err(Error::Io(error)).record_in(&self.shared.failure),
                }
            }
        }
        Ok(())
    }
}

impl Drop for HeapEncoder {
    fn drop(&mut self) {
        self.close();
    }
}

impl Queue {
    fn is_idle(&self) -> bool {
        self.tasks.is_empty() && self.running == 0
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        locked(&self.queue)
    }

    fn wait_while<'a>(
        &self,
        queue: MutexGuard<'a, Queue>,
        mut condition: impl FnMut(&Queue) -> bool,
    ) -> MutexGuard<'a, Queue> {
        self.done
            .wait_while(queue, |queue| condition(queue))
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs tasks until the end.
    fn serve(&self, worker: usize) {
        let mut queue = self.lock();
        loop {
            if let Some(task) = queue.tasks.pop_front() {
                queue.running += 1;
                drop(queue);
                // The caller may wait for room in the queue.
                self.done.notify_one();
                self.finish(worker, task);
                queue = self.lock();
                queue.running -= 1;
                self.done.notify_one();
            } else if queue.stop {
                return;
            } else {
                queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Writes the values of a task, and keeps their entries or the error.
    fn finish(&self, worker: usize, task: Task) {
        let done = catch_unwind(AssertUnwindSafe(|| self.write(worker, &task.values)))
            .unwrap_or_else(|_| {
                Err(Error::Closed("a background thread of the record store writer crashed".into()))
            })
            .record_in(&self.failure);
        let mut queue = self.lock();
        if let Ok(entries) = done {
            queue.stored.push((task.first, entries));
        }
        match task.values {
            TaskValues::Borrowed(borrowed) => {
                drop(borrowed);
                queue.borrowed -= 1;
            }
            TaskValues::Copied(mut copied) => {
                queue.copied = queue.copied.saturating_sub(copied.bytes.len());
                if copied.bytes.capacity() <= 4 * TASK_BYTES {
                    copied.clear();
                    queue.spare.push(copied);
                }
            }
        }
    }

    fn write(&self, worker: usize, values: &TaskValues) -> Result<Vec<Entry>> {
        let mut writer = locked(&self.writers[worker]);
        let mut write = |record: Record<'_>| {
            self.failure.check()?;
            writer.write_record(&self.heap, record)
        };
        match values {
            TaskValues::Copied(copied) => copied.records().map(write).collect(),
            TaskValues::Borrowed(borrowed) => borrowed
                .records()
                .map(|record| record.map_or(Ok(Entry::MISSING), &mut write))
                .collect(),
        }
    }
}

/// Splits values into consecutive parts of about `goal` bytes of work.
fn split<'a, 'b>(values: &'a [Value<'b>], goal: usize) -> impl Iterator<Item = &'a [Value<'b>]> {
    let mut rest = values;
    std::iter::from_fn(move || {
        let mut work = 0_usize;
        let end = rest.iter().position(|value| {
            work = work.saturating_add(value.bytes().len() + VALUE_COST);
            work >= goal
        });
        let (part, later) = rest.split_at(end.map_or(rest.len(), |end| end + 1));
        rest = later;
        (!part.is_empty()).then_some(part)
    })
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Values for one worker, and the slot of the first.
struct Task {
    first: usize,
    values: TaskValues,
}

enum TaskValues {
    Copied(CopiedValues),
    Borrowed(BorrowedValues),
}

/// Values that were copied, in few allocations.
#[derive(Default)]
struct CopiedValues {
    bytes: Vec<u8>,
    dims: Vec<u64>,
    encoders: Vec<Arc<Encoder>>,
    values: Vec<CopiedValue>,
}

struct CopiedValue {
    field: u16,
    dims: u8,
    encoder: u32,
    sequence: u64,
    bytes: usize,
}

impl CopiedValues {
    fn push(&mut self, record: Record<'_>, encoder: &Arc<Encoder>) {
        // The fields of a store take turns, and there are few of them.
        let known = self.encoders.iter().position(|known| Arc::ptr_eq(known, encoder));
        let encoder = known.unwrap_or_else(|| {
            self.encoders.push(Arc::clone(encoder));
            self.encoders.len() - 1
        });
        self.bytes.extend_from_slice(record.bytes);
        self.dims.extend_from_slice(record.dims);
        self.values.push(CopiedValue {
            field: record.field,
            dims: record.dims.len() as u8,
            encoder: encoder as u32,
            sequence: record.sequence,
            bytes: record.bytes.len(),
        });
    }

    fn len(&self) -> usize {
        self.values.len()
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.dims.clear();
        self.encoders.clear();
        self.values.clear();
    }

    fn records(&self) -> impl Iterator<Item = Record<'_>> {
        let (mut bytes, mut dims) = (&self.bytes[..], &self.dims[..]);
        self.values.iter().map(move |value| {
            let (own_bytes, later_bytes) = bytes.split_at(value.bytes);
            let (own_dims, later_dims) = dims.split_at(usize::from(value.dims));
            (bytes, dims) = (later_bytes, later_dims);
            Record {
                field: value.field,
                encoder: &self.encoders[value.encoder as usize],
                sequence: value.sequence,
                bytes: own_bytes,
                dims: own_dims,
                stored: None,
            }
        })
    }
}

/// Values in the caller's memory. The caller waits until this is dropped.
struct BorrowedValues {
    field: u16,
    sequence: u64,
    encoder: Arc<Encoder>,
    values: *const Value<'static>,
    count: usize,
}

// SAFETY: it stands for a `&[Value]`, which may be sent: values are shared slices of numbers.
unsafe impl Send for BorrowedValues {}

impl BorrowedValues {
    /// # Safety
    /// `values`, and all they point to, must not change until this is dropped.
    unsafe fn new(field: u16, encoder: &Arc<Encoder>, sequence: u64, values: &[Value<'_>]) -> Self {
        let encoder = Arc::clone(encoder);
        Self { field, sequence, encoder, values: values.as_ptr().cast(), count: values.len() }
    }

    /// The values in order; none for those that are missing.
    fn records(&self) -> impl Iterator<Item = Option<Record<'_>>> {
        // SAFETY: the caller of `new` keeps the values alive for as long as `self`.
        let values: &[Value<'_>] = unsafe { std::slice::from_raw_parts(self.values, self.count) };
        values.iter().map(|value| {
            let stored = match *value {
                Value::Missing => return None,
                Value::Bytes { .. } => None,
                Value::Stored { codec, length, .. } => Some((codec, length)),
            };
            Some(Record {
                field: self.field,
                encoder: &self.encoder,
                sequence: self.sequence,
                bytes: value.bytes(),
                dims: value.dims(),
                stored,
            })
        })
    }
}
