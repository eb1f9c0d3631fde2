//! Batches gathered ahead of their consumer, in order, by native threads.
//!
//! Work is claimed in parts. A small batch is one part, so each thread makes batches of
//! its own and threads do not meet; a large one is cut into several, so that all threads
//! fill the same batch while it is in cache. Parts are claimed in order, batches are
//! handed out in order, and a consumer that would have to wait claims a part itself.
//! Nothing about the stream depends on the number of threads.

mod job;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub use job::{Batch, Layout, Next, Settings};

use self::job::{Job, Out};
use crate::error::{Error, Result};
use crate::readahead::Readahead;
use crate::sample::{Plan, Sampler, Step, reserved};
use crate::slab::{Loan, Slab, SlabPool};
use crate::table::{Column, Table, part_range};

/// Batches from this size on are shared by the threads.
const SHARED_BATCH: usize = 2 << 20;

/// Least size of a part of a shared batch.
const BYTES_PER_PART: usize = 512 * 1024;

/// How long a thread looks for work before it sleeps.
const WORKER_SPIN: Duration = Duration::from_micros(30);

/// How often a resting thread looks whether it is needed.
const REST: Duration = Duration::from_millis(20);

/// How long the consumer looks for its batch before it sleeps. It is the one that everybody
/// waits for, and a wake-up through the kernel can take as long as a batch.
const CONSUMER_SPIN: Duration = Duration::from_micros(200);

/// Windows of blocks up to this size are read ahead whole; larger ones might not fit. The size
/// of ragged ones is not known.
const WINDOW_BYTES: u64 = 1 << 30;
const WINDOW_ROWS: u64 = 1 << 22;

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
        shared.foreign && lock(&shared.state).queue.len() < shared.depth && !shared.slabs.has_free()
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
    sleeping: usize,
    consumer_waits: bool,
    error: Option<Error>,
}

struct Shared {
    tables: Vec<Table>,
    plan: Plan,
    /// Whether rows must be found before a batch is begun, since their lengths differ.
    tabled: bool,
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
    /// for: a `spare` one rests while data is warm.
    fn serve(&self, spare: bool) {
        while !self.stop.load(Ordering::Acquire) {
            if spare && !self.readahead.is_cold() {
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
            if let Some(part) = open.claim() {
                return Claim::Part(Arc::clone(open), part);
            }
            state.open = None;
        }
        if state.error.is_some() || self.stop.load(Ordering::Acquire) {
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
            Ok(Some(slab)) => self.begin(step, slab),
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
                return Claim::End;
            }
        };
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

    /// Lays a batch out in memory.
    fn begin(&self, step: Step, slab: Slab) -> Result<Job> {
        let rows = step.samples.saturating_mul(self.rows_per_sample());
        let mut bytes = self.layout.row_bytes * rows;
        let mut places = Vec::new();
        if self.tabled {
            let mut numbers = reserved(rows)?;
            self.plan.rows(&step, 0..step.samples, &mut numbers);
            places = vec![Vec::new(); self.tables.len()];
            for (table, places) in self.tables.iter().zip(&mut places) {
                table.find(&numbers, places)?;
            }
        }
        let mut targets = Vec::with_capacity(self.layout.starts.len());
        let mut ragged = Vec::new();
        for (number, table) in self.tables.iter().enumerate() {
            for (column, shape) in table.columns().iter().enumerate() {
                let mut offsets = Vec::new();
                let start = match shape {
                    // SAFETY: the layout was made for as many rows as the sampler can draw,
                    // and the slab has at least its size.
                    Column::Fixed(_) => unsafe {
                        slab.start().add(self.layout.starts[targets.len()])
                    },
                    Column::Ragged(shape) => {
                        table.offsets(column, &places[number], &mut offsets);
                        let items = offsets.last().map_or(0, |&end| end as usize);
                        let size = items * shape.item_bytes();
                        bytes += size;
                        // Some slack, so that the next, slightly larger batch fits as well.
                        let values = match self.ragged_slabs.take(size) {
                            Some(values) => values,
                            None => Slab::new(size + size / 4)?,
                        };
                        let start = values.start();
                        ragged.push((values, offsets.clone()));
                        start
                    }
                };
                targets.push(Out { table: number, column, start, offsets });
            }
        }
        let parts = if bytes < SHARED_BATCH {
            1
        } else {
            (bytes / BYTES_PER_PART).clamp(1, self.workers.max(1) * 2).min(step.samples.max(1))
        };
        Ok(Job {
            step,
            places,
            fixed: Mutex::new(Some(slab)),
            ragged: Mutex::new(ragged),
            targets,
            parts,
            next: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
        })
    }

    /// Makes one part of a batch and tells the consumer when the batch is complete.
    fn make(&self, job: &Job, part: usize) {
        let gather = std::panic::AssertUnwindSafe(|| self.gather(job, part));
        let outcome = std::panic::catch_unwind(gather);
        if !matches!(outcome, Ok(Ok(_))) {
            job.failed.store(true, Ordering::Relaxed);
        }
        if job.done.fetch_add(1, Ordering::AcqRel) + 1 == job.parts {
            let waits = std::mem::take(&mut lock(&self.state).consumer_waits);
            if waits {
                self.done.notify_all();
            }
        }
        if matches!(outcome, Ok(Ok(true))) {
            self.read_window_ahead(job.step.first);
        }
    }

    /// Copies the rows of one part; true if the disk had to be asked for some.
    fn gather(&self, job: &Job, part: usize) -> Result<bool> {
        let samples = part_range(job.step.samples, part, job.parts);
        let per_sample = self.rows_per_sample();
        let first = samples.start * per_sample;
        let count = samples.len() * per_sample;
        let mut numbers = Vec::new();
        if !self.tabled {
            numbers = reserved(count)?;
            self.plan.rows(&job.step, samples, &mut numbers);
        }
        let mut found = Vec::new();
        let mut cold = false;
        for (number, table) in self.tables.iter().enumerate() {
            // Places of all rows, or of this part's alone; then the buffers are counted from
            // where this part begins.
            let (places, range, skipped) = match job.places.get(number) {
                Some(places) => (places.as_slice(), first..first + count, 0),
                None => {
                    table.find(&numbers, &mut found)?;
                    (found.as_slice(), 0..count, first)
                }
            };
            cold |= self.readahead.advise(table, &places[range.clone()]);
            self.readahead.watch(|| {
                for out in job.targets.iter().filter(|out| out.table == number) {
                    // SAFETY: `begin` made the buffers for all rows of the batch; parts do
                    // not overlap, and this one begins `skipped` rows into them.
                    unsafe {
                        let start = out.start.add(skipped * table.row_bytes(out.column));
                        table.copy(out.column, places, range.clone(), &out.offsets, start);
                    }
                }
            });
        }
        Ok(cold)
    }

    /// In block mode, reads whole blocks in one go, which is what the mode is for: those of
    /// the window at `position`, and from its middle on those of the next.
    fn read_window_ahead(&self, position: u64) {
        let rows = self.plan.window_len();
        let bytes = rows.saturating_mul(self.layout.row_bytes as u64);
        if bytes > WINDOW_BYTES || rows > WINDOW_ROWS || self.tabled {
            return;
        }
        for position in [position, position + rows / 2] {
            if let Some(window) = self.plan.window_at(position) {
                self.readahead.advise_window(&self.plan, &self.tables, window);
            }
        }
    }

    fn rows_per_sample(&self) -> usize {
        self.plan.rows_per_sample().unwrap_or(1) as usize
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
        if job.failed.load(Ordering::Relaxed) {
            return Err(Error::Invalid("a thread failed while it gathered a batch".into()));
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
    table.columns().iter().any(|column| matches!(column, Column::Ragged(_)))
}

fn closed() -> Error {
    Error::Closed("this loader is closed".into())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
