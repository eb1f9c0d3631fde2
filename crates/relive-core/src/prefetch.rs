//! Batches gathered ahead of their consumer, in order, by native threads.
//!
//! Work is claimed in parts. A small batch is one part, so each thread makes batches of
//! its own and threads do not meet; a large one is cut into several, so that all threads
//! fill the same batch while it is in cache. Parts are claimed in order, batches are
//! handed out in order, and a consumer that would have to wait claims a part itself.
//! Nothing about the stream depends on the number of threads. An error is handed out in
//! place of its batch, and nothing after it.

mod job;
mod make;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub use job::{Batch, Layout, Next, Settings};

use self::job::Job;
use crate::error::{Error, Result};
use crate::readahead::Readahead;
use crate::sample::{Plan, Sampler};
use crate::slab::{Loan, Slab, SlabPool};
use crate::table::{ColumnShape, Table};

/// Batches from this size on are shared by the threads.
const SHARED_BATCH: usize = 2 << 20;

/// How long a thread looks for work before it sleeps.
const WORKER_SPIN: Duration = Duration::from_micros(30);

/// How often a resting thread looks whether it is needed.
const REST: Duration = Duration::from_millis(20);

/// How long the consumer looks for its batch before it sleeps. It is the one that everybody
/// waits for, and a wake-up through the kernel can take as long as a batch.
const CONSUMER_SPIN: Duration = Duration::from_micros(200);

/// Most batches prepared ahead, and most threads.
pub const MAX_DEPTH: usize = 4096;

/// A running prefetch. Dropping it stops and joins its threads.
pub struct Prefetch {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    process: u32,
}

impl Prefetch {
    /// Starts to prepare the batches that `sampler` draws, the same rows of each table.
    pub fn start(tables: Vec<Table>, sampler: Sampler, settings: Settings) -> Result<Self> {
        let Settings { workers, depth, foreign } = settings;
        if depth == 0 || depth > MAX_DEPTH || workers > MAX_DEPTH {
            return Err(Error::Invalid(format!(
                "prefetch must be from 1 to {MAX_DEPTH} and workers at most {MAX_DEPTH}"
            )));
        }
        let plan = sampler.plan();
        if tables.is_empty() || tables.iter().any(|table| table.len() != plan.length) {
            return Err(Error::Invalid(format!(
                "every table must have the {} rows of the sampler",
                plan.length
            )));
        }
        let rows = plan.max_samples().saturating_mul(plan.rows_per_sample().unwrap_or(1));
        let layout = Layout::new(&tables, usize::try_from(rows).unwrap_or(usize::MAX))?;
        let slabs = SlabPool::new(2 * (depth + workers) + 8);
        let shared = Arc::new(Shared {
            readahead: Readahead::default(),
            tabled: tables.iter().any(has_ragged),
            fetched: tables.iter().any(Table::is_elsewhere),
            tables,
            depth: if layout.bytes < SHARED_BATCH { depth.max(workers + 1) } else { depth },
            layout,
            workers,
            foreign,
            plan: sampler.plan().clone(),
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
        let prefetch = Self { shared, threads: Mutex::default(), process: std::process::id() };
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

    /// Where columns lie in a batch.
    pub fn layout(&self) -> &Layout {
        &self.shared.layout
    }

    /// Gives memory for one batch of [`Layout::bytes`].
    pub fn give_slab(&self, slab: Slab) -> Result<()> {
        self.same_process()?;
        if slab.bytes() < self.shared.layout.bytes {
            return Err(Error::Invalid(format!(
                "a batch needs {} bytes, the memory given has {}",
                self.shared.layout.bytes,
                slab.bytes()
            )));
        }
        self.shared.slabs.put(slab);
        self.shared.wake_workers();
        Ok(())
    }

    /// The next batch in order. Returns [`Next::Waiting`] after `patience`, so that the
    /// caller can look after signals.
    pub fn next(&self, patience: Duration) -> Result<Next> {
        self.same_process()?;
        let shared = &*self.shared;
        if shared.stop.load(Ordering::Acquire) {
            return Err(closed());
        }
        let deadline = Instant::now() + patience;
        loop {
            let front = {
                let mut state = lock(&shared.state);
                if let Some(front) = state.queue.front()
                    && front.is_done()
                    && let Some(job) = state.queue.pop_front()
                {
                    if let Some(error) = job.failure.take() {
                        // What was begun after it is not wanted any more.
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
                    return shared.hand_out(&job);
                }
                state.queue.front().cloned()
            };
            let claim = shared.claim();
            match claim {
                Claim::Part(job, part) => {
                    shared.make(&job, part);
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

    /// Whether memory for one more batch would let the threads go on.
    pub fn needs_slab(&self) -> bool {
        let shared = &self.shared;
        if !shared.foreign || shared.slabs.has_free() {
            return false;
        }
        let state = lock(&shared.state);
        state.queue.len() < shared.depth && state.failed.is_none()
    }

    /// Stops the threads and waits for them. Batches already handed out stay valid.
    pub fn close(&self) {
        self.shared.stop.store(true, Ordering::Release);
        if self.process != std::process::id() {
            // Forked: the threads are the parent's. Forget them.
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
            // A panic was already reported with its batch.
            drop(thread.join());
        }
        // A batch that outlives the loader must not keep the memory of all others.
        self.shared.slabs.close();
        self.shared.ragged_slabs.close();
    }

    /// Refuses a process that inherited this by a fork: its locks may be held for ever.
    pub fn same_process(&self) -> Result<()> {
        if self.process == std::process::id() {
            return Ok(());
        }
        Err(Error::Closed(
            "this loader belongs to the process that forked: make a new one here".into(),
        ))
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        self.close();
    }
}

enum Claim {
    Part(Arc<Job>, usize),
    NeedsSlab,
    Full,
    End,
}

struct State {
    sampler: Sampler,
    /// Batches begun and not yet handed out, in order.
    queue: VecDeque<Arc<Job>>,
    /// The one whose parts are being claimed.
    open: Option<Arc<Job>>,
    /// How many batches were begun.
    begun: u64,
    /// The number of the first batch that failed, with which the stream ends.
    failed: Option<u64>,
    sleeping: usize,
    consumer_waits: bool,
    /// Why the batch `failed` could not even be begun.
    error: Option<Error>,
}

struct Shared {
    tables: Vec<Table>,
    plan: Plan,
    /// Whether rows must be found before a batch is begun, since their lengths differ.
    tabled: bool,
    /// Whether rows come from where it takes time and no core, whatever the kernel says.
    fetched: bool,
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
    /// Changes whenever there may be something new to claim.
    hint: AtomicUsize,
    stop: AtomicBool,
}

impl Shared {
    /// Makes parts until the end. The consumer lends a hand when it waits, so threads beyond
    /// the other cores would only get in each other's way, unless there is a disk to wait
    /// for: a `spare` one rests while data is in memory.
    fn serve(&self, spare: bool) {
        while !self.stop.load(Ordering::Acquire) {
            if spare && !self.fetched && !self.readahead.is_cold() {
                let state = lock(&self.state);
                drop(self.rest.wait_timeout(state, REST));
                continue;
            }
            let seen = self.hint.load(Ordering::Acquire);
            match self.claim() {
                Claim::Part(job, part) => self.make(&job, part),
                _ => self.sleep(seen),
            }
        }
    }

    /// Waits until `hint` moves on from `seen`.
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

    /// Something to do: a part of the open batch, or the first part of the next one.
    ///
    /// The lock is held for the bookkeeping alone. Which rows a part has is worked out by
    /// whoever makes it, so that no thread waits for another's arithmetic; only where rows
    /// differ in length must they be found before there is a place for them.
    fn claim(&self) -> Claim {
        let mut state = lock(&self.state);
        if let Some(open) = &state.open {
            // A batch after one that failed will not be handed out.
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
        let job = match slab {
            Ok(Some(slab)) => {
                // Readers are asked for lengths here. A panic must not lose the batch.
                let begin = AssertUnwindSafe(|| self.begin(state.begun, step, slab));
                catch_unwind(begin).unwrap_or_else(|_| Err(panicked()))
            }
            Ok(None) => {
                state.sampler.set_cursor(before);
                return Claim::NeedsSlab;
            }
            Err(error) => Err(error),
        };
        let job = match job {
            Ok(job) => Arc::new(job),
            Err(error) => {
                // The consumer gets it after the batches that came before.
                state.error = Some(error);
                state.failed = Some(state.begun);
                return Claim::End;
            }
        };
        state.begun += 1;
        let first = job.claim();
        state.queue.push_back(Arc::clone(&job));
        let helpers = state.sleeping.min(job.parts - 1);
        if job.parts > 1 {
            state.open = Some(Arc::clone(&job));
            self.hint.fetch_add(1, Ordering::Release);
        }
        drop(state);
        for _ in 0..helpers {
            self.work.notify_one();
        }
        first.map_or(Claim::Full, |part| Claim::Part(job, part))
    }

    /// Waits for `front`, the first batch in the queue, to be complete.
    fn wait(&self, front: Option<&Job>, deadline: Instant) {
        let start = Instant::now();
        loop {
            thread::yield_now();
            match front {
                // Begun in this moment by another thread.
                None => return,
                Some(front) if front.is_done() => return,
                Some(_) if start.elapsed() < CONSUMER_SPIN => {}
                Some(front) => {
                    let mut state = lock(&self.state);
                    if front.is_done() || self.stop.load(Ordering::Acquire) {
                        return;
                    }
                    state.consumer_waits = true;
                    let patience = deadline.saturating_duration_since(Instant::now());
                    let outcome = self.done.wait_timeout(state, patience);
                    outcome.unwrap_or_else(PoisonError::into_inner).0.consumer_waits = false;
                    return;
                }
            }
        }
    }

    fn hand_out(&self, job: &Job) -> Result<Next> {
        if job.panicked.load(Ordering::Relaxed) {
            return Err(panicked());
        }
        let (fixed, ragged) = (lock(&job.fixed).take(), std::mem::take(&mut *lock(&job.ragged)));
        let Some(fixed) = fixed else { return Err(closed()) };
        Ok(Next::Ready(Box::new(Batch {
            fixed: Loan::new(fixed, Arc::clone(&self.slabs)),
            ragged: ragged
                .into_iter()
                .map(|(slab, offsets)| (Loan::new(slab, Arc::clone(&self.ragged_slabs)), offsets))
                .collect(),
            step: job.step,
        })))
    }
}

fn has_ragged(table: &Table) -> bool {
    table.columns().iter().any(|column| matches!(column, ColumnShape::Ragged { .. }))
}

fn panicked() -> Error {
    Error::Invalid("a thread failed while it gathered a batch".into())
}

fn closed() -> Error {
    Error::Closed("this loader is closed".into())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod reading_tests;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
