//! Threads that encode values and place them in heap chunks, one chunk each.
//!
//! Values are collected into jobs; any idle lane takes the next one. The caller learns where
//! a value went when it drains.

mod heap;
mod job;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

pub use self::heap::HeapShape;
use self::heap::{Heap, Lane, Record};
use self::job::{Arena, Borrowed, Job, Work};
use super::frames::Position;
use super::layout::Entry;
use super::value::Value;
use crate::codec::Encoder;
use crate::durable::{self, Growing};
use crate::fork::OwnerProcess;
use crate::latch::Latch;
use crate::{Error, Result, pool};

/// A value that was put: the position of its entry in what the next drain gives.
pub type Slot = usize;

/// A job is given to a lane when it has so many bytes.
const JOB_BYTES: usize = 1 << 20;

/// A job is given to a lane when it has so many values.
const JOB_VALUES: usize = 1024;

/// Less than this is done sooner than another thread wakes up, or is copied sooner than
/// it is waited for.
const SMALL_BYTES: usize = 64 * 1024;

/// What a value costs whatever its length, in bytes of work.
const VALUE_COST: usize = 64;

/// Copies wait for lanes in no more memory than this, and one value.
const WAITING_BYTES: usize = 64 << 20;

/// Jobs that wait, and parts of a borrowed batch, for each lane: enough that one which is
/// late costs little.
const JOBS_PER_LANE: usize = 4;

/// Encodes and places values on threads of its own.
///
/// After something failed every further call but [`Lanes::trim`] is refused.
pub struct Lanes {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Threads do not follow into a forked process.
    owner: OwnerProcess,
    /// Copies that no lane has yet.
    arena: Arena,
    /// Slots that were given out since the last drain.
    slots: usize,
}

struct Shared {
    heap: Heap,
    lanes: Vec<Mutex<Lane>>,
    queue: Mutex<Queue>,
    /// There is a job, or an end.
    work: Condvar,
    /// A job is done.
    done: Condvar,
    failure: Latch,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    running: usize,
    /// Jobs, waiting or running, whose values are the caller's.
    borrowed: usize,
    /// Bytes of copies, waiting or running.
    copied: usize,
    /// Entries of finished jobs, and the slot of the first.
    placed: Vec<(usize, Vec<Entry>)>,
    spare: Vec<Arena>,
    stop: bool,
}

impl Lanes {
    /// Lanes for `writers` threads, which start with the first job and go on with the
    /// chunks in `unfull`.
    pub fn new(shape: HeapShape, writers: usize, unfull: Vec<Position>) -> Self {
        let lanes = (0..writers.clamp(1, pool::MAX_THREADS)).map(|_| Mutex::default()).collect();
        Self {
            shared: Arc::new(Shared {
                heap: Heap { shape, unfull: Mutex::new(unfull.into()) },
                lanes,
                queue: Mutex::default(),
                work: Condvar::new(),
                done: Condvar::new(),
                failure: Latch::default(),
            }),
            threads: Vec::new(),
            owner: OwnerProcess::current(),
            arena: Arena::default(),
            slots: 0,
        }
    }

    /// Refuses a value of so many bytes and dimensions that [`Lanes::put`] would refuse.
    pub fn check(encoder: &Encoder, bytes: usize, dims: usize) -> Result<()> {
        heap::check(encoder, bytes, dims)
    }

    /// Takes a copy of a value; it may be lost until [`Lanes::drain`].
    ///
    /// A value that is too long is `TooLarge`, and nothing is taken.
    pub fn put(
        &mut self,
        field: u16,
        encoder: &Arc<Encoder>,
        sequence: u64,
        bytes: &[u8],
        dims: &[u64],
    ) -> Result<Slot> {
        self.shared.failure.check()?;
        heap::check(encoder, bytes.len(), dims.len())?;
        self.arena.push(Record { field, encoder, sequence, bytes, dims, stored: None }, encoder);
        self.slots += 1;
        if self.arena.bytes() >= JOB_BYTES || self.arena.len() >= JOB_VALUES {
            self.hand_over()?;
        }
        Ok(self.slots - 1)
    }

    /// Takes values without copying them, and returns when all are encoded.
    ///
    /// Missing values have a slot as well. Where one is too long it is `TooLarge`, and
    /// nothing is taken.
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
            heap::check(encoder, value.bytes().len(), value.dims().len())?;
            total = total.saturating_add(value.bytes().len() + VALUE_COST);
        }
        let slots = self.slots..self.slots + values.len();
        let plain = |value: &Value<'_>| matches!(value, Value::Bytes { .. });
        let copied = total < SMALL_BYTES && values.iter().all(plain);
        if copied {
            for value in values {
                self.put(field, encoder, sequence, value.bytes(), value.dims())?;
            }
            return Ok(slots);
        }
        self.hand_over()?;
        self.start()?;
        self.slots = slots.end;
        let mut first = slots.start;
        let goal = (total / (self.shared.lanes.len() * JOBS_PER_LANE)).max(SMALL_BYTES);
        let mut queue = self.shared.lock();
        for part in cut(values, goal) {
            // SAFETY: this call returns when no job is left that borrows.
            let borrowed = unsafe { Borrowed::new(field, encoder, sequence, part) };
            queue.jobs.push_back(Job { first, work: Work::Borrowed(borrowed) });
            queue.borrowed += 1;
            first += part.len();
        }
        self.shared.work.notify_all();
        drop(self.shared.wait_while(queue, |queue| queue.borrowed > 0));
        self.shared.failure.check()?;
        Ok(slots)
    }

    /// Gives everything to the operating system: it survives the end of this process. The
    /// entries of all slots since the last drain, in their order.
    pub fn drain(&mut self) -> Result<Vec<Entry>> {
        self.shared.failure.check()?;
        let mut queue = self.shared.lock();
        let small = self.arena.bytes() + self.arena.len() * VALUE_COST < SMALL_BYTES;
        if small && !self.arena.is_empty() && queue.is_idle() {
            let fresh = queue.spare.pop().unwrap_or_default();
            drop(queue);
            let first = self.slots - self.arena.len();
            let work = Work::Copied(std::mem::replace(&mut self.arena, fresh));
            self.shared.finish(0, Job { first, work });
        } else {
            drop(queue);
            self.hand_over()?;
        }
        let queue = self.shared.lock();
        let mut queue = self.shared.wait_while(queue, |queue| !queue.is_idle());
        self.shared.failure.check()?;
        let mut placed = std::mem::take(&mut queue.placed);
        drop(queue);
        for lane in &self.shared.lanes {
            let flushed = locked(lane).flush(&self.shared.heap);
            self.shared.failure.record(flushed)?;
        }
        placed.sort_unstable_by_key(|(first, _)| *first);
        let mut entries = Vec::with_capacity(self.slots);
        for (first, part) in placed {
            debug_assert_eq!(first, entries.len());
            entries.extend(part);
        }
        debug_assert_eq!(entries.len(), self.slots);
        self.slots = 0;
        Ok(entries)
    }

    /// The chunks that were made since this was last asked.
    pub fn created(&mut self) -> Vec<u32> {
        let mut created: Vec<u32> = self
            .shared
            .lanes
            .iter()
            .flat_map(|lane| std::mem::take(&mut locked(lane).created))
            .collect();
        created.sort_unstable();
        created
    }

    /// How far chunks are written that changed since [`Lanes::committed`], as of the last
    /// [`Lanes::drain`].
    pub fn positions(&self) -> Vec<Position> {
        let lanes = self.shared.lanes.iter();
        lanes.flat_map(|lane| locked(lane).positions().collect::<Vec<_>>()).collect()
    }

    /// What [`Lanes::positions`] said is in the journal.
    pub fn committed(&mut self) {
        for lane in &self.shared.lanes {
            locked(lane).committed();
        }
    }

    /// Files with bytes that the disk may not have, to be synced together with others.
    pub fn unsynced(&self) -> Vec<Arc<Growing>> {
        let lanes = self.shared.lanes.iter();
        lanes.flat_map(|lane| locked(lane).unsynced().collect::<Vec<_>>()).collect()
    }

    /// Gives everything that is drained to the disk: it survives a power cut.
    pub fn sync(&mut self) -> Result<()> {
        self.shared.failure.check()?;
        self.shared.failure.record(durable::sync_all(&self.unsynced()))?;
        for lane in &self.shared.lanes {
            locked(lane).forget();
        }
        Ok(())
    }

    /// Drops what no lane has begun with, and waits for the rest: nothing is written after it
    /// returns.
    pub fn halt(&mut self) {
        let mut queue = self.shared.lock();
        queue.jobs.clear();
        drop(self.shared.wait_while(queue, |queue| !queue.is_idle()));
    }

    /// Cuts the files to what is committed. The rest is lost, and no more values are taken
    /// if there was any.
    pub fn trim(&mut self) -> Result<()> {
        self.halt();
        let mut lost = self.slots > 0;
        self.arena.clear();
        for lane in &self.shared.lanes {
            lost |= locked(lane).trim(&self.shared.heap)?;
        }
        if lost {
            let dropped: Result<()> = Err(Error::Closed("values were dropped".into()));
            let _ = self.shared.failure.record(dropped);
        }
        Ok(())
    }

    /// Queues the copies, when there is room for another job.
    fn hand_over(&mut self) -> Result<()> {
        if self.arena.is_empty() {
            return Ok(());
        }
        self.start()?;
        let most = self.shared.lanes.len() * JOBS_PER_LANE;
        let queue = self.shared.lock();
        let mut queue = self
            .shared
            .wait_while(queue, |queue| queue.jobs.len() >= most || queue.copied >= WAITING_BYTES);
        let fresh = queue.spare.pop().unwrap_or_default();
        let arena = std::mem::replace(&mut self.arena, fresh);
        queue.copied += arena.bytes();
        let first = self.slots - arena.len();
        queue.jobs.push_back(Job { first, work: Work::Copied(arena) });
        drop(queue);
        self.shared.work.notify_one();
        Ok(())
    }

    /// Starts the threads, unless they run.
    fn start(&mut self) -> Result<()> {
        if self.threads.is_empty() {
            for lane in 0..self.shared.lanes.len() {
                let shared = Arc::clone(&self.shared);
                let spawned = thread::Builder::new()
                    .name("relive-lane".into())
                    .spawn(move || shared.serve(lane));
                match spawned {
                    Ok(thread) => self.threads.push(thread),
                    // Fewer threads make it slower, never wrong.
                    Err(_) if lane > 0 => break,
                    Err(error) => return self.shared.failure.record(Err(Error::Io(error))),
                }
            }
        }
        Ok(())
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        let threads = std::mem::take(&mut self.threads);
        if !self.owner.is_current() {
            // The threads are the parent's, and so is whoever holds the locks.
            threads.into_iter().for_each(std::mem::forget);
            return;
        }
        let mut queue = self.shared.lock();
        queue.jobs.clear();
        queue.stop = true;
        drop(queue);
        self.shared.work.notify_all();
        for thread in threads {
            // It catches its panics.
            let _ = thread.join();
        }
    }
}

impl Queue {
    fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.running == 0
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

    /// What a thread does until the end.
    fn serve(&self, lane: usize) {
        let mut queue = self.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                queue.running += 1;
                drop(queue);
                // The caller may be waiting for the place in the queue.
                self.done.notify_one();
                self.finish(lane, job);
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

    /// Places the values of a job, and keeps their entries or the failure.
    fn finish(&self, lane: usize, job: Job) {
        let done = catch_unwind(AssertUnwindSafe(|| self.place(lane, &job.work)))
            .unwrap_or_else(|_| Err(Error::Closed("a thread that writes panicked".into())));
        let done = self.failure.record(done);
        let mut queue = self.lock();
        if let Ok(entries) = done {
            queue.placed.push((job.first, entries));
        }
        match job.work {
            Work::Borrowed(borrowed) => {
                drop(borrowed);
                queue.borrowed -= 1;
            }
            Work::Copied(mut arena) => {
                queue.copied = queue.copied.saturating_sub(arena.bytes());
                if arena.capacity() <= 4 * JOB_BYTES {
                    arena.clear();
                    queue.spare.push(arena);
                }
            }
        }
    }

    fn place(&self, lane: usize, work: &Work) -> Result<Vec<Entry>> {
        let mut lane = locked(&self.lanes[lane]);
        let mut place = |record: Record<'_>| {
            self.failure.check()?;
            lane.place(&self.heap, record)
        };
        match work {
            Work::Copied(arena) => arena.records().map(place).collect(),
            Work::Borrowed(borrowed) => borrowed
                .records()
                .map(|record| record.map_or(Ok(Entry::MISSING), &mut place))
                .collect(),
        }
    }
}

/// Values cut into consecutive parts of about `goal` bytes of work.
fn cut<'a, 'b>(values: &'a [Value<'b>], goal: usize) -> impl Iterator<Item = &'a [Value<'b>]> {
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
