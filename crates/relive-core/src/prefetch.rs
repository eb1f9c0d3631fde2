//! Gathers batches ahead of their consumer, in order, on native threads.
//!
//! Threads claim parts of batches. A small batch is one part, so that threads gather different
//! batches; a large one has several, so that all threads fill the same batch while it is in cache.
//! Parts are claimed in order, batches are returned in order, and a consumer that would have to
//! wait claims a part itself. The stream does not depend on the number of threads. An error is
//! returned instead of its batch, and ends the stream. Batches that are drawn by priority are drawn
//! when they are begun, so the priorities that they depend on are at most as old as the queue is
//! long; the stream ends when there are other rows.

mod batch;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

pub use batch::{Batch, Layout, Next, Order, Settings, TableRows};

use self::batch::PendingBatch;
use crate::error::{Error, Result};
use crate::fork::OwnerProcess;
use crate::priority::Priorities;
use crate::readahead::Readahead;
use crate::sample::{Plan, Sampler};
use crate::slab::{Loan, Slab, SlabPool};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{AtomicBool, AtomicUsize, Condvar, IS_MODEL, Mutex, MutexGuard, spin};
use crate::table::{ColumnShape, Table};

/// Batches of at least this size are split into parts.
const SHARED_BATCH: usize = if IS_MODEL { 16 } else { 2 << 20 };

/// How long a thread polls for work before it sleeps.
const WORKER_SPIN: Duration = spin(30);

/// How often a resting thread checks whether it is needed.
const REST: Duration = Duration::from_millis(20);

/// How long the consumer polls for its batch before it sleeps: a wake-up through the kernel can
/// take as long as a batch.
const CONSUMER_SPIN: Duration = spin(200);

/// The most batches prepared ahead, and the most threads.
pub const MAX_DEPTH: usize = 4096;

/// A running prefetch. Dropping it stops and joins its threads.
pub struct Prefetch {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    owner: OwnerProcess,
}

impl Prefetch {
    /// Starts to gather the batches of an order, with the same rows of each table.
    pub fn start(tables: Vec<Table>, order: impl Into<Order>, settings: Settings) -> Result<Self> {
        let Order { sampler, priorities } = order.into();
        let Settings { workers, depth, foreign } = settings;
        if depth == 0 || depth > MAX_DEPTH || workers > MAX_DEPTH {
            return Err(Error::Invalid(format!(
                "`prefetch` must be from 1 to {MAX_DEPTH} and `workers` at most {MAX_DEPTH}, got \
                 prefetch={depth} and workers={workers}"
            )));
        }
        let plan = sampler.plan();
        if tables.is_empty() || tables.iter().any(|table| table.len() != plan.length) {
            return Err(Error::Invalid(format!(
                "every source must have the same number of rows as the sampler, {}",
                plan.length
            )));
        }
        let rows = plan.max_samples().saturating_mul(plan.rows_per_sample().unwrap_or(1));
        let layout = Layout::new(&tables, usize::try_from(rows).unwrap_or(usize::MAX))?;
        let slabs = SlabPool::new(2 * (depth + workers) + 8);
        let is_small = layout.bytes < SHARED_BATCH && priorities.is_none();
        let shared = Arc::new(Shared {
            readahead: Readahead::default(),
            has_ragged: tables.iter().any(has_ragged),
            is_fetched: tables.iter().any(Table::is_fetched),
            tables,
            depth: if is_small { depth.max(workers + 1) } else { depth },
            layout,
            workers,
            foreign,
            plan: sampler.plan().clone(),
            priorities,
            slabs,
            ragged_slabs: SlabPool::new(2 * (depth + workers) + 8),
            state: Mutex::new(State {
                sampler,
                queue: VecDeque::new(),
                open: None,
                begun: 0,
                failed: None,
                sleeping: 0,
                consumer_waits: false,
                error: None,
            }),
            work: Condvar::new(),
            done: Condvar::new(),
            rest: Condvar::new(),
            hint: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
        });
        let prefetch = Self { shared, threads: Mutex::default(), owner: OwnerProcess::current() };
        let cores = thread::available_parallelism().map_or(1, usize::from);
        for number in 0..workers {
            let shared = Arc::clone(&prefetch.shared);
            let spare = number >= 1.max(cores - 1);
            let thread = thread::Builder::new()
                .name("relive-load".into())
                .spawn(move || shared.serve(spare))?;
            lock(&prefetch.threads).push(thread);
        }
        Ok(prefetch)
    }

    /// Returns the layout of batches.
    pub fn layout(&self) -> &Layout {
        &self.shared.layout
    }

    /// Adds memory for one batch of [`Layout::bytes`].
    pub fn give_slab(&self, slab: Slab) -> Result<()> {
        self.same_process()?;
        if slab.bytes() < self.shared.layout.bytes {
            return Err(Error::Invalid(format!(
                "the buffer for a batch must be at least {} bytes, got {} bytes",
                self.shared.layout.bytes,
                slab.bytes()
            )));
        }
        self.shared.slabs.put(slab);
        self.shared.wake_workers();
        Ok(())
    }

    /// Returns the next batch in order, or [`Next::Waiting`] after `timeout`, so that the caller can
    /// check for signals.
    pub fn next(&self, timeout: Duration) -> Result<Next> {
        self.same_process()?;
        let shared = &*self.shared;
        if shared.stop.load(Ordering::Acquire) {
            return Err(closed());
        }
        let deadline = Instant::now() + timeout;
        loop {
            let front = {
                let mut state = lock(&shared.state);
                if let Some(front) = state.queue.front()
                    && front.is_done()
                    && let Some(batch) = state.queue.pop_front()
                {
                    if let Some(error) = batch.failure.take() {
                        // Batches after it are not needed.
                        let rest = std::mem::take(&mut state.queue);
                        (state.open, state.error) = (None, None);
                        drop(state);
                        drop(rest);
                        return Err(error);
                    }
                    let wake = state.sleeping > 0 && state.queue.len() <= shared.depth / 2;
                    shared.hint.fetch_add(1, Ordering::Release);
                    drop(state);
                    if wake {
                        shared.work.notify_all();
                    }
                    return shared.hand_out(&batch);
                }
                state.queue.front().cloned()
            };
            let claim = shared.claim();
            match claim {
                Claim::Part(batch, part) => {
                    shared.make(&batch, part);
                    if Instant::now() >= deadline {
                        return Ok(Next::Waiting);
                    }
                    continue;
                }
                Claim::End | Claim::NeedsSlab => {
                    let mut state = lock(&shared.state);
                    if state.queue.is_empty() {
                        if let Some(error) = state.error.take() {
                            return Err(error);
                        }
                        return Ok(match claim {
                            Claim::NeedsSlab => Next::NeedsSlab,
                            _ => Next::End,
                        });
                    }
                }
                Claim::Full => {}
            }
            if shared.stop.load(Ordering::Acquire) {
                return Err(closed());
            }
            shared.wait(front.as_deref(), deadline);
            if Instant::now() >= deadline {
                return Ok(Next::Waiting);
            }
        }
    }

    /// Whether the threads wait for memory for another batch.
    pub fn needs_slab(&self) -> bool {
        let shared = &self.shared;
        if !shared.foreign || shared.slabs.has_free() {
            return false;
        }
        let state = lock(&shared.state);
        state.queue.len() < shared.depth && state.failed.is_none()
    }

    /// Stops the threads and waits for them. Returned batches stay valid.
    pub fn close(&self) {
        self.shared.stop.store(true, Ordering::Release);
        if !self.owner.is_current() {
            // The threads are those of the parent process.
            if let Ok(mut threads) = self.threads.try_lock() {
                threads.drain(..).for_each(std::mem::forget);
            }
            return;
        }
        drop(lock(&self.shared.state));
        self.shared.hint.fetch_add(1, Ordering::Release);
        self.shared.work.notify_all();
        self.shared.done.notify_all();
        self.shared.rest.notify_all();
        let threads = std::mem::take(&mut *lock(&self.threads));
        for thread in threads {
            // A panic was reported with its batch.
            drop(thread.join());
        }
        // A batch that outlives the loader must not keep unused memory alive.
        self.shared.slabs.close();
        self.shared.ragged_slabs.close();
    }

    /// Refuses a forked child, in which locks may be held for ever.
    pub fn same_process(&self) -> Result<()> {
        self.owner.check("the loader")
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        self.close();
    }
}

enum Claim {
    Part(Arc<PendingBatch>, usize),
    NeedsSlab,
    Full,
    End,
}

struct State {
    sampler: Sampler,
    /// Batches that were begun and not returned yet, in order.
    queue: VecDeque<Arc<PendingBatch>>,
    /// The batch whose parts are being claimed.
    open: Option<Arc<PendingBatch>>,
    /// The number of batches that were begun.
    begun: u64,
    /// The number of the first batch that failed, which ends the stream.
    failed: Option<u64>,
    sleeping: usize,
    consumer_waits: bool,
    /// The error if batch `failed` could not be begun.
    error: Option<Error>,
}

struct Shared {
    tables: Vec<Table>,
    plan: Plan,
    /// The priorities by which rows are drawn, and the rows that the tables have.
    priorities: Option<(Arc<Priorities>, TableRows)>,
    /// Whether there are ragged columns, so that rows must be located before memory is allocated.
    has_ragged: bool,
    /// Whether rows are fetched, so that threads wait without using a core.
    is_fetched: bool,
    readahead: Readahead,
    layout: Layout,
    workers: usize,
    depth: usize,
    foreign: bool,
    slabs: Arc<SlabPool>,
    ragged_slabs: Arc<SlabPool>,
    state: Mutex<State>,
    work: Condvar,
    done: Condvar,
    rest: Condvar,
    /// Changes whenever there may be a new part to claim.
    hint: AtomicUsize,
    stop: AtomicBool,
}

impl Shared {
    /// Gathers parts until the end. The consumer gathers too while it waits, so more threads than
    /// other cores help only if they wait for a disk: a `spare` thread rests while data is in
    /// memory.
    fn serve(&self, spare: bool) {
        while !self.stop.load(Ordering::Acquire) {
            if spare && !self.is_fetched && !self.readahead.is_cold() {
                let state = lock(&self.state);
                drop(self.rest.wait_timeout(state, REST));
                continue;
            }
            let seen = self.hint.load(Ordering::Acquire);
            match self.claim() {
                Claim::Part(batch, part) => self.make(&batch, part),
                _ => self.sleep(seen),
            }
        }
    }

    /// Waits until `hint` differs from `seen`.
    fn sleep(&self, seen: usize) {
        let start = Instant::now();
        while start.elapsed() < WORKER_SPIN {
            if self.hint.load(Ordering::Acquire) != seen {
                return;
            }
            thread::yield_now();
        }
        let mut state = lock(&self.state);
        while self.hint.load(Ordering::Acquire) == seen && !self.stop.load(Ordering::Acquire) {
            state.sleeping += 1;
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.sleeping -= 1;
        }
    }

    fn wake_workers(&self) {
        let state = lock(&self.state);
        self.hint.fetch_add(1, Ordering::Release);
        let sleeping = state.sleeping;
        drop(state);
        if sleeping > 0 {
            self.work.notify_all();
        }
    }

    /// Claims a part of the open batch, or the first part of the next one.
    ///
    /// The lock is held only for bookkeeping. The rows of a part are computed by the thread that
    /// gathers it. Only with ragged columns must they be located before memory is allocated, and
    /// those that are drawn by priority must be drawn once for all parts.
    fn claim(&self) -> Claim {
        let mut state = lock(&self.state);
        if let Some(open) = &state.open {
            // A batch after a failed one is not returned.
            let wanted = state.failed.is_none_or(|failed| open.number <= failed);
            if let Some(part) = wanted.then(|| open.claim()).flatten() {
                return Claim::Part(Arc::clone(open), part);
            }
            state.open = None;
        }
        if state.failed.is_some() || self.stop.load(Ordering::Acquire) {
            return Claim::End;
        }
        if state.queue.len() >= self.depth {
            return Claim::Full;
        }
        let before = state.sampler.cursor();
        let Some(step) = state.sampler.step() else { return Claim::End };
        let slab = if self.foreign {
            self.slabs.take(self.layout.bytes).map_or(Ok(None), |slab| Ok(Some(slab)))
        } else {
            self.slabs.take_or_make(self.layout.bytes).map(Some)
        };
        let batch = match slab {
            Ok(Some(slab)) => {
                // This draws by priority, and calls readers for lengths. A panic must not lose the
                // batch.
                let begin = AssertUnwindSafe(|| self.begin(state.begun, step, slab));
                catch_unwind(begin).unwrap_or_else(|_| Err(panicked()))
            }
            Ok(None) => {
                state.sampler.set_cursor(before);
                return Claim::NeedsSlab;
            }
            Err(error) => Err(error),
        };
        let batch = match batch {
            Ok(Some(batch)) => Arc::new(batch),
            Ok(None) => {
                // The priorities have other rows, and the stream ends.
                state.failed = Some(state.begun);
                return Claim::End;
            }
            Err(error) => {
                // The consumer gets it after the batches before.
                state.error = Some(error);
                state.failed = Some(state.begun);
                return Claim::End;
            }
        };
        state.begun += 1;
        let first = batch.claim();
        state.queue.push_back(Arc::clone(&batch));
        let helpers = state.sleeping.min(batch.parts - 1);
        if batch.parts > 1 {
            state.open = Some(Arc::clone(&batch));
            self.hint.fetch_add(1, Ordering::Release);
        }
        drop(state);
        for _ in 0..helpers {
            self.work.notify_one();
        }
        first.map_or(Claim::Full, |part| Claim::Part(batch, part))
    }

    /// Waits for `front`, the first batch in the queue, to be complete.
    fn wait(&self, front: Option<&PendingBatch>, deadline: Instant) {
        let start = Instant::now();
        loop {
            match front {
                // Another thread has just begun it.
                None => return thread::yield_now(),
                Some(front) if front.is_done() => return,
                Some(_) if start.elapsed() < CONSUMER_SPIN => thread::yield_now(),
                Some(front) => {
                    let mut state = lock(&self.state);
                    if front.is_done() || self.stop.load(Ordering::Acquire) {
                        return;
                    }
                    state.consumer_waits = true;
                    let timeout = deadline.saturating_duration_since(Instant::now());
                    let outcome = self.done.wait_timeout(state, timeout);
                    outcome.unwrap_or_else(PoisonError::into_inner).0.consumer_waits = false;
                    return;
                }
            }
        }
    }

    /// Returns a complete batch to the consumer.
    fn hand_out(&self, batch: &PendingBatch) -> Result<Next> {
        if batch.panicked.load(Ordering::Relaxed) {
            return Err(panicked());
        }
        let (fixed, ragged) =
            (lock(&batch.fixed).take(), std::mem::take(&mut *lock(&batch.ragged)));
        let Some(fixed) = fixed else { return Err(closed()) };
        Ok(Next::Ready(Box::new(Batch {
            fixed: Loan::new(fixed, Arc::clone(&self.slabs)),
            ragged: ragged
                .into_iter()
                .map(|(slab, offsets)| (Loan::new(slab, Arc::clone(&self.ragged_slabs)), offsets))
                .collect(),
            step: batch.step,
            drawn: batch.drawn.clone(),
        })))
    }
}

fn has_ragged(table: &Table) -> bool {
    table.columns().iter().any(|column| matches!(column, ColumnShape::Ragged { .. }))
}

fn panicked() -> Error {
    Error::Invalid("a worker thread of the loader crashed while reading a batch".into())
}

fn closed() -> Error {
    Error::Closed("the loader is closed".into())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, loom))]
#[allow(clippy::unwrap_used)]
mod models;
#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod reading_tests;
#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests;
