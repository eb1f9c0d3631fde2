//! Batches gathered ahead of their consumer, in order, by native threads.
//!
//! Work is claimed in parts. A small batch is one part, so each thread makes batches of
//! its own and threads do not meet; a large one is cut into several, so that all threads
//! fill the same batch while it is in cache. Parts are claimed in order, batches are
//! handed out in order, and a consumer that would have to wait claims a part itself.
//! Nothing about the stream depends on the number of threads.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::readahead::Readahead;
use crate::sample::{Draw, Sampler};
use crate::slab::{ALIGN, Loan, Slab, SlabPool};
use crate::table::{Column, Place, Table, part_range};

/// Batches from this size on are shared by the threads.
const SHARED_BATCH: usize = 2 << 20;

/// Least size of a part of a shared batch.
const BYTES_PER_PART: usize = 512 * 1024;

/// How long a thread looks for work before it sleeps.
const SPIN: Duration = Duration::from_micros(30);

/// Most batches prepared ahead, and most threads.
pub const MAX_DEPTH: usize = 4096;

/// How to prefetch.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Threads beside the consumer's; with none the consumer does all the work.
    pub workers: usize,
    /// Batches prepared ahead.
    pub depth: usize,
    /// Whether the memory of batches is given by the consumer with
    /// [`Prefetch::give_slab`] instead of being allocated here.
    pub foreign: bool,
}

/// A gathered batch.
pub struct Batch {
    /// The memory of all fixed columns, laid out as [`Layout`] says.
    pub fixed: Loan,
    /// Values and offsets of each ragged column, in the order of the columns.
    pub ragged: Vec<(Loan, Vec<i64>)>,
    /// Which rows these are, and where the stream stands after them.
    pub draw: Draw,
}

/// What [`Prefetch::next`] found.
pub enum Next {
    /// The next batch.
    Ready(Box<Batch>),
    /// Nothing yet, after a while; ask again.
    Waiting,
    /// Memory for a batch is needed first.
    NeedsSlab,
    /// The stream has ended.
    End,
}

/// Where the fixed columns of a batch lie in its slab.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Start of each column, table after table.
    pub starts: Vec<usize>,
    /// Bytes in all.
    pub bytes: usize,
    /// Bytes of the fixed columns of one row.
    pub row_bytes: usize,
}

impl Layout {
    /// The layout of batches of at most `rows` rows of all columns of all tables.
    pub fn new(tables: &[Table], rows: usize) -> Result<Self> {
        let mut starts = Vec::new();
        let (mut bytes, mut row_bytes) = (0_usize, 0_usize);
        for (table, column) in each_column(tables) {
            starts.push(bytes);
            let one = table.row_bytes(column);
            row_bytes += one;
            bytes = one
                .checked_mul(rows)
                .and_then(|size| size.checked_next_multiple_of(ALIGN)?.checked_add(bytes))
                .filter(|&bytes| isize::try_from(bytes).is_ok())
                .ok_or_else(|| {
                    Error::TooLarge(format!("a batch of {rows} rows does not fit in memory"))
                })?;
        }
        Ok(Self { starts, bytes, row_bytes })
    }
}

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
        let rows = plan.batch_size.saturating_mul(plan.rows_per_sample().unwrap_or(1));
        let layout = Layout::new(&tables, usize::try_from(rows).unwrap_or(usize::MAX))?;
        let slabs = SlabPool::new(2 * (depth + workers) + 8);
        let shared = Arc::new(Shared {
            readahead: Readahead::new(),
            tables,
            layout,
            workers,
            depth,
            foreign,
            sampler: Mutex::new(sampler),
            slabs,
            ragged_slabs: SlabPool::new(2 * (depth + workers) + 8),
            state: Mutex::default(),
            work: Condvar::new(),
            done: Condvar::new(),
            hint: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
        });
        let prefetch = Self { shared, threads: Mutex::default(), process: std::process::id() };
        for _ in 0..workers {
            let shared = Arc::clone(&prefetch.shared);
            let thread =
                thread::Builder::new().name("relive-load".into()).spawn(move || shared.serve())?;
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
                    return shared.hand_out(job);
                }
                state.queue.front().cloned()
            };
            let claim = match shared.claim(false) {
                Ok(claim) => claim,
                Err(error) => shared.fail(error),
            };
            match claim {
                Claim::Part(job, part) => {
                    shared.make(&job, part);
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
        let threads = std::mem::take(&mut *lock(&self.threads));
        for thread in threads {
            // A panic was already reported with its batch.
            drop(thread.join());
        }
    }

    fn same_process(&self) -> Result<()> {
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

/// One batch on its way.
struct Job {
    rows: usize,
    /// Where the rows lie in each of the tables.
    places: Vec<Vec<Place>>,
    draw: Mutex<Option<Draw>>,
    fixed: Mutex<Option<Slab>>,
    ragged: Mutex<Option<Vec<(Slab, Vec<i64>)>>>,
    /// Addresses of the buffers above, so that parts need not lock.
    targets: Vec<Out>,
    parts: usize,
    next: AtomicUsize,
    done: AtomicUsize,
    failed: AtomicBool,
}

struct Out {
    table: usize,
    column: usize,
    start: *mut u8,
    offsets: Vec<i64>,
}

// SAFETY: the buffers belong to the job; each part writes its own rows of them.
unsafe impl Send for Out {}
// SAFETY: as above.
unsafe impl Sync for Out {}

impl Job {
    fn claim(&self) -> Option<usize> {
        let part = self.next.fetch_add(1, Ordering::Relaxed);
        (part < self.parts).then_some(part)
    }

    fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire) == self.parts
    }
}

enum Claim {
    Part(Arc<Job>, usize),
    NeedsSlab,
    Full,
    End,
}

#[derive(Default)]
struct State {
    /// Batches drawn and not yet handed out, in order.
    queue: VecDeque<Arc<Job>>,
    /// The one whose parts are being claimed.
    open: Option<Arc<Job>>,
    sleeping: usize,
    consumer_waits: bool,
    ended: bool,
    error: Option<Error>,
}

struct Shared {
    tables: Vec<Table>,
    readahead: Readahead,
    layout: Layout,
    workers: usize,
    depth: usize,
    foreign: bool,
    /// Locked before `state` by whoever draws a batch, so that batches enter the queue
    /// in order while the consumer needs only `state`.
    sampler: Mutex<Sampler>,
    slabs: Arc<SlabPool>,
    ragged_slabs: Arc<SlabPool>,
    state: Mutex<State>,
    work: Condvar,
    done: Condvar,
    /// Changes whenever there may be something new to claim.
    hint: AtomicUsize,
    stop: AtomicBool,
}

impl Shared {
    fn serve(&self) {
        while !self.stop.load(Ordering::Acquire) {
            let seen = self.hint.load(Ordering::Acquire);
            match self.claim(true) {
                Ok(Claim::Part(job, part)) => self.make(&job, part),
                Ok(_) => self.sleep(seen),
                Err(error) => {
                    self.fail(error);
                }
            }
        }
    }

    /// Waits until `hint` moves on from `seen`.
    fn sleep(&self, seen: usize) {
        let start = Instant::now();
        while start.elapsed() < SPIN {
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
        let sleeping = lock(&self.state).sleeping;
        self.hint.fetch_add(1, Ordering::Release);
        if sleeping > 0 {
            self.work.notify_all();
        }
    }

    /// Something to do: a part of the open batch, or the first part of a fresh one.
    fn claim(&self, patient: bool) -> Result<Claim> {
        if let Some(claim) = self.claim_open() {
            return Ok(claim);
        }
        let mut sampler = if patient {
            lock(&self.sampler)
        } else {
            match self.sampler.try_lock() {
                Ok(sampler) => sampler,
                // Somebody is drawing; what they draw will soon be there to claim.
                Err(_) => return Ok(Claim::Full),
            }
        };
        if let Some(claim) = self.claim_open() {
            return Ok(claim);
        }
        {
            let state = lock(&self.state);
            if state.queue.len() >= self.depth {
                return Ok(Claim::Full);
            }
            if state.ended || self.stop.load(Ordering::Acquire) {
                return Ok(Claim::End);
            }
        }
        let slab = if self.foreign {
            match self.slabs.take(self.layout.bytes) {
                Some(slab) => slab,
                None => return Ok(Claim::NeedsSlab),
            }
        } else {
            self.slabs.take_or_make(self.layout.bytes)?
        };
        let mut draw = Draw::default();
        if !sampler.draw(&mut draw) {
            lock(&self.state).ended = true;
            self.slabs.put(slab);
            return Ok(Claim::End);
        }
        let job = Arc::new(self.plan(draw, slab)?);
        let first = job.claim();
        let mut state = lock(&self.state);
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
        Ok(first.map_or(Claim::Full, |part| Claim::Part(job, part)))
    }

    fn claim_open(&self) -> Option<Claim> {
        let mut state = lock(&self.state);
        let open = state.open.as_ref()?;
        if let Some(part) = open.claim() {
            return Some(Claim::Part(Arc::clone(open), part));
        }
        state.open = None;
        None
    }

    /// Finds the rows of a batch and the memory they go to.
    fn plan(&self, draw: Draw, slab: Slab) -> Result<Job> {
        let rows = draw.rows.len();
        let mut places = vec![Vec::new(); self.tables.len()];
        let mut bytes = self.layout.row_bytes * rows;
        let mut targets = Vec::with_capacity(self.layout.starts.len());
        let mut ragged = Vec::new();
        for (number, table) in self.tables.iter().enumerate() {
            let places = &mut places[number];
            table.find(&draw.rows, places)?;
            self.readahead.advise(table, places);
            for (column, shape) in table.columns().iter().enumerate() {
                let mut offsets = Vec::new();
                let start = match shape {
                    // SAFETY: the layout was made for as many rows as the sampler can draw, and
                    // the slab has at least its size.
                    Column::Fixed(_) => unsafe {
                        slab.start().add(self.layout.starts[targets.len()])
                    },
                    Column::Ragged(shape) => {
                        table.offsets(column, places, &mut offsets);
                        let size =
                            offsets.last().map_or(0, |&end| end as usize) * shape.item_bytes();
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
        let threads = self.workers.max(1);
        let parts = if bytes < SHARED_BATCH {
            1
        } else {
            (bytes / BYTES_PER_PART).clamp(1, threads * 4).min(rows.max(1))
        };
        Ok(Job {
            rows,
            places,
            draw: Mutex::new(Some(draw)),
            fixed: Mutex::new(Some(slab)),
            ragged: Mutex::new(Some(ragged)),
            targets,
            parts,
            next: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
        })
    }

    /// Gathers one part and tells the consumer when its batch is complete.
    fn make(&self, job: &Job, part: usize) {
        let range = part_range(job.rows, part, job.parts);
        let gather = || {
            for out in &job.targets {
                // SAFETY: `plan` made the buffers for these places; parts do not overlap.
                unsafe {
                    let places = &job.places[out.table];
                    self.tables[out.table].copy(
                        out.column,
                        places,
                        range.clone(),
                        &out.offsets,
                        out.start,
                    );
                }
            }
        };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            self.readahead.watch(gather);
        }));
        if outcome.is_err() {
            job.failed.store(true, Ordering::Relaxed);
        }
        if job.done.fetch_add(1, Ordering::AcqRel) + 1 == job.parts {
            let waits = std::mem::take(&mut lock(&self.state).consumer_waits);
            if waits {
                self.done.notify_all();
            }
        }
    }

    /// Waits for `front`, the first batch in the queue, to be complete.
    fn wait(&self, front: Option<&Job>, deadline: Instant) {
        let start = Instant::now();
        loop {
            thread::yield_now();
            match front {
                // Drawn in a moment by the thread that holds the sampler.
                None => return,
                Some(front) if front.is_done() => return,
                Some(_) if start.elapsed() < SPIN => {}
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

    /// Ends the stream with an error, which the consumer gets after what came before.
    fn fail(&self, error: Error) -> Claim {
        let mut state = lock(&self.state);
        state.ended = true;
        state.error.get_or_insert(error);
        state.consumer_waits = false;
        drop(state);
        self.done.notify_all();
        Claim::End
    }

    fn hand_out(&self, job: Arc<Job>) -> Result<Next> {
        if job.failed.load(Ordering::Relaxed) {
            return Err(Error::Invalid("a thread failed while it gathered a batch".into()));
        }
        let (fixed, ragged, draw) =
            (lock(&job.fixed).take(), lock(&job.ragged).take(), lock(&job.draw).take());
        let (Some(fixed), Some(ragged), Some(draw)) = (fixed, ragged, draw) else {
            return Err(closed());
        };
        Ok(Next::Ready(Box::new(Batch {
            fixed: Loan::new(fixed, Arc::clone(&self.slabs)),
            ragged: ragged
                .into_iter()
                .map(|(slab, offsets)| (Loan::new(slab, Arc::clone(&self.ragged_slabs)), offsets))
                .collect(),
            draw,
        })))
    }
}

fn each_column(tables: &[Table]) -> impl Iterator<Item = (&Table, usize)> {
    tables.iter().flat_map(|table| (0..table.columns().len()).map(move |column| (table, column)))
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
