//! Batches: their memory layout, and how their parts are gathered.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{SHARED_BATCH, Shared, lock};
use crate::error::{Error, Result};
use crate::latch::EarliestError;
use crate::priority::{Drawn, Priorities};
use crate::sample::{Sampler, Step, reserved};
use crate::slab::{ALIGN, Loan, Slab};
use crate::sync::{AtomicBool, AtomicUsize, IS_MODEL, Mutex};
use crate::table::{ColumnShape, Location, Table, Target, part_range};

/// The least size of a part of a shared batch.
const BYTES_PER_PART: usize = if IS_MODEL { 8 } else { 512 * 1024 };

/// Windows of blocks up to this size are read ahead as a whole; larger ones might not fit in memory.
const WINDOW_BYTES: u64 = 1 << 30;
const WINDOW_ROWS: u64 = 1 << 22;

/// Which rows are in each batch.
pub struct Order {
    /// The positions of the batches and, without priorities, their rows.
    pub sampler: Sampler,
    /// What rows are drawn by, and which of them the tables have.
    pub priorities: Option<(Arc<Priorities>, TableRows)>,
}

/// The rows of the tables, as priorities number them.
#[derive(Clone, Debug)]
pub enum TableRows {
    /// A window: its first row is row 0 of the tables.
    Window(Range<u64>),
    /// These, in increasing order: the first is row 0 of the tables.
    Keys(Arc<[i64]>),
}

impl TableRows {
    fn window(&self) -> Option<Range<u64>> {
        match self {
            Self::Window(window) => Some(window.clone()),
            Self::Keys(_) => None,
        }
    }

    /// Returns the row of the tables that has a number, if there is one.
    fn find(&self, row: i64) -> Option<i64> {
        match self {
            Self::Window(window) => Some(row - window.start as i64),
            Self::Keys(keys) => keys.binary_search(&row).ok().map(|place| place as i64),
        }
    }
}

impl From<Sampler> for Order {
    fn from(sampler: Sampler) -> Self {
        Self { sampler, priorities: None }
    }
}

/// Options of a prefetch.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The number of threads besides the consumer; with 0 the consumer does all the work.
    pub workers: usize,
    /// The number of batches prepared ahead; for small ones, which are gathered by one thread each,
    /// at least one more than there are threads.
    pub depth: usize,
    /// Whether the consumer provides the memory of batches with
    /// [`Prefetch::give_slab`](super::Prefetch::give_slab).
    pub foreign: bool,
}

/// A gathered batch.
pub struct Batch {
    /// The memory of all fixed columns, laid out as in [`Layout`].
    pub fixed: Loan,
    /// Values and offsets of each ragged column, in the order of the columns.
    pub ragged: Vec<(Loan, Vec<i64>)>,
    /// The samples, and the position of the stream after them.
    pub step: Step,
    /// The rows and their importance weights, if they were drawn by priority.
    pub drawn: Option<Drawn>,
}

/// The result of [`Prefetch::next`](super::Prefetch::next).
pub enum Next {
    /// The next batch.
    Ready(Box<Batch>),
    /// The timeout has passed; call again.
    Waiting,
    /// The consumer must provide memory first.
    NeedsSlab,
    /// The stream has ended.
    End,
}

/// The positions of the fixed columns of a batch in its slab.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The start of each column, table after table.
    pub starts: Vec<usize>,
    /// The total size.
    pub bytes: usize,
    /// Bytes of the fixed columns of one row.
    pub row_bytes: usize,
}

impl Layout {
    /// Computes the layout of batches of at most `rows` rows of all tables.
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
                    Error::TooLarge(format!("not enough memory for a batch of {rows} rows"))
                })?;
        }
        Ok(Self { starts, bytes, row_bytes })
    }
}

/// A batch that is being gathered.
pub(super) struct PendingBatch {
    /// The number of batches that were begun before.
    pub(super) number: u64,
    pub(super) step: Step,
    /// The rows, if they are drawn by priority.
    pub(super) drawn: Option<Drawn>,
    /// The locations of all rows in each table, if there are ragged columns; else empty.
    pub(super) locations: Vec<Vec<Location>>,
    pub(super) fixed: Mutex<Option<Slab>>,
    pub(super) ragged: Mutex<Vec<(Slab, Vec<i64>)>>,
    /// The addresses of the buffers above, so that parts need no lock.
    pub(super) targets: Vec<Buffer>,
    pub(super) parts: usize,
    pub(super) next: AtomicUsize,
    pub(super) done: AtomicUsize,
    /// The leaves of each table whose `begin` was called for this batch.
    pub(super) begun: Vec<Mutex<Vec<bool>>>,
    pub(super) failure: EarliestError,
    pub(super) panicked: AtomicBool,
}

/// The buffer of one column.
pub(super) struct Buffer {
    pub(super) table: usize,
    pub(super) column: usize,
    pub(super) start: *mut u8,
    pub(super) offsets: Vec<i64>,
}

// SAFETY: the memory belongs to the batch; each part writes its own rows.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl PendingBatch {
    /// Claims a part that no other thread has claimed.
    pub(super) fn claim(&self) -> Option<usize> {
        let part = self.next.fetch_add(1, Ordering::Relaxed);
        (part < self.parts).then_some(part)
    }

    pub(super) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire) == self.parts
    }
}

fn each_column(tables: &[Table]) -> impl Iterator<Item = (&Table, usize)> {
    tables.iter().flat_map(|table| (0..table.columns().len()).map(move |column| (table, column)))
}

impl Shared {
    /// Allocates the memory of a batch, and draws its rows if they are drawn by priority; `None` if
    /// the rows to draw from are no longer those of the tables.
    pub(super) fn begin(
        &self,
        number: u64,
        step: Step,
        slab: Slab,
    ) -> Result<Option<PendingBatch>> {
        let mut drawn = None;
        if let Some((priorities, known)) = &self.priorities {
            let seed = self.plan.seed;
            drawn = priorities.draw(seed, step.first, step.samples, known.window())?;
            let is_known = |drawn: &Drawn| drawn.rows.iter().all(|&row| known.find(row).is_some());
            if !drawn.as_ref().is_some_and(is_known) {
                return Ok(None);
            }
        }
        let rows = step.samples.saturating_mul(self.rows_per_sample());
        let mut bytes = self.layout.row_bytes * rows;
        let mut locations = Vec::new();
        if self.has_ragged {
            let mut numbers = reserved(rows)?;
            self.rows(&step, drawn.as_ref(), 0..step.samples, &mut numbers);
            locations = vec![Vec::new(); self.tables.len()];
            for (table, locations) in self.tables.iter().zip(&mut locations) {
                table.find(&numbers, locations)?;
            }
        }
        let mut targets = Vec::with_capacity(self.layout.starts.len());
        let mut ragged = Vec::new();
        for (index, table) in self.tables.iter().enumerate() {
            for (column, &shape) in table.columns().iter().enumerate() {
                let mut offsets = Vec::new();
                let start = match shape {
                    // SAFETY: the layout was made for as many rows as the sampler can draw,
                    // and the slab has at least its size.
                    ColumnShape::Fixed { .. } => unsafe {
                        slab.start().add(self.layout.starts[targets.len()])
                    },
                    ColumnShape::Ragged { item_bytes } => {
                        table.offsets(column, &locations[index], &mut offsets)?;
                        let items = offsets.last().map_or(0, |&end| end as usize);
                        let size = items * item_bytes;
                        bytes = bytes.saturating_add(size);
                        // Some slack, so that a slightly larger batch fits too.
                        let values = match self.ragged_slabs.take(size) {
                            Some(values) => values,
                            None => Slab::new(size + size / 4)?,
                        };
                        let start = values.start();
                        ragged.push((values, offsets.clone()));
                        start
                    }
                };
                targets.push(Buffer { table: index, column, start, offsets });
            }
        }
        let parts = if bytes < SHARED_BATCH || self.workers == 0 {
            1
        } else {
            (bytes / BYTES_PER_PART).clamp(1, self.workers * 2).min(step.samples.max(1))
        };
        Ok(Some(PendingBatch {
            number,
            step,
            drawn,
            locations,
            fixed: Mutex::new(Some(slab)),
            ragged: Mutex::new(ragged),
            targets,
            parts,
            next: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            begun: self.tables.iter().map(|_| Mutex::default()).collect(),
            failure: EarliestError::default(),
            panicked: AtomicBool::new(false),
        }))
    }

    /// Appends the rows of the tables for some samples of a step.
    fn rows(&self, step: &Step, drawn: Option<&Drawn>, samples: Range<usize>, rows: &mut Vec<i64>) {
        match (drawn, &self.priorities) {
            (Some(drawn), Some((_, known))) => {
                rows.extend(drawn.rows[samples].iter().filter_map(|&row| known.find(row)));
            }
            _ => self.plan.rows(step, samples, rows),
        }
    }

    /// Gathers one part of a batch, and wakes the consumer if the batch is complete.
    pub(super) fn make(&self, batch: &PendingBatch, part: usize) {
        let gather = AssertUnwindSafe(|| self.gather(batch, part));
        let outcome = catch_unwind(gather).unwrap_or_else(|_| {
            batch.panicked.store(true, Ordering::Relaxed);
            Ok(false)
        });
        let cold = outcome.unwrap_or_else(|error| {
            batch.failure.note(part, error);
            let mut state = lock(&self.state);
            state.failed = Some(state.failed.map_or(batch.number, |first| first.min(batch.number)));
            false
        });
        if batch.done.fetch_add(1, Ordering::AcqRel) + 1 == batch.parts {
            let waits = std::mem::take(&mut lock(&self.state).consumer_waits);
            if waits {
                self.done.notify_all();
            }
        }
        if cold {
            self.read_window_ahead(batch.step.first);
        }
    }

    /// Copies the rows of one part; returns whether some had to be read from disk.
    fn gather(&self, batch: &PendingBatch, part: usize) -> Result<bool> {
        if batch.failure.is_before(part) {
            return Ok(false);
        }
        let samples = part_range(batch.step.samples, part, batch.parts);
        let per_sample = self.rows_per_sample();
        let first = samples.start * per_sample;
        let count = samples.len() * per_sample;
        let mut numbers = Vec::new();
        if !self.has_ragged {
            numbers = reserved(count)?;
            self.rows(&batch.step, batch.drawn.as_ref(), samples, &mut numbers);
        }
        let mut found = Vec::new();
        let mut cold = false;
        for (number, table) in self.tables.iter().enumerate() {
            // The locations of all rows, or of this part only; then the buffers begin at the first
            // row of this part.
            let (locations, range, skipped) = match batch.locations.get(number) {
                Some(locations) => (locations.as_slice(), first..first + count, 0),
                None => {
                    table.find(&numbers, &mut found)?;
                    (found.as_slice(), 0..count, first)
                }
            };
            table.begin(&locations[range.clone()], &mut lock(&batch.begun[number]))?;
            cold |= self.readahead.advise(table, &locations[range.clone()]);
            let outs = batch.targets.iter().filter(|out| out.table == number);
            let targets: Vec<Target<'_>> = outs
                .map(|out| Target {
                    column: out.column,
                    offsets: &out.offsets,
                    // SAFETY: `begin` made the buffers for all rows of the batch, including those
                    // before this part.
                    out: unsafe { out.start.add(skipped * table.row_bytes(out.column)) },
                })
                .collect();
            // SAFETY: the buffers have room for all rows of the batch, and parts do not
            // overlap.
            self.readahead.watch(|| unsafe { table.copy(locations, range, &targets) })?;
        }
        Ok(cold)
    }

    /// In block mode, advises the kernel to read whole windows: the one at `position`, and from its
    /// middle on the next one.
    fn read_window_ahead(&self, position: u64) {
        let rows = self.plan.window_len();
        let bytes = rows.saturating_mul(self.layout.row_bytes as u64);
        if bytes > WINDOW_BYTES || rows > WINDOW_ROWS || self.has_ragged {
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
}
