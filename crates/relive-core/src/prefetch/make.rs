//! How a batch is made: its memory, then its parts.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::job::{Job, Out};
use super::{SHARED_BATCH, Shared, lock};
use crate::error::Result;
use crate::latch::EarliestError;
use crate::sample::{Step, reserved};
use crate::slab::Slab;
use crate::table::{ColumnShape, Target, part_range};

/// Least size of a part of a shared batch.
const BYTES_PER_PART: usize = 512 * 1024;

/// Windows of blocks up to this size are read ahead whole; larger ones might not fit. The size
/// of ragged ones is not known.
const WINDOW_BYTES: u64 = 1 << 30;
const WINDOW_ROWS: u64 = 1 << 22;

impl Shared {
    /// Lays a batch out in memory.
    pub(super) fn begin(&self, number: u64, step: Step, slab: Slab) -> Result<Job> {
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
                        table.offsets(column, &places[index], &mut offsets)?;
                        let items = offsets.last().map_or(0, |&end| end as usize);
                        let size = items * item_bytes;
                        bytes = bytes.saturating_add(size);
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
                targets.push(Out { table: index, column, start, offsets });
            }
        }
        let parts = if bytes < SHARED_BATCH || self.workers == 0 {
            1
        } else {
            (bytes / BYTES_PER_PART).clamp(1, self.workers * 2).min(step.samples.max(1))
        };
        Ok(Job {
            number,
            step,
            places,
            fixed: Mutex::new(Some(slab)),
            ragged: Mutex::new(ragged),
            targets,
            parts,
            next: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            begun: self.tables.iter().map(|_| Mutex::default()).collect(),
            failure: EarliestError::default(),
            panicked: AtomicBool::new(false),
        })
    }

    /// Makes one part of a batch and tells the consumer when the batch is complete.
    pub(super) fn make(&self, job: &Job, part: usize) {
        let gather = AssertUnwindSafe(|| self.gather(job, part));
        let outcome = catch_unwind(gather).unwrap_or_else(|_| {
            job.panicked.store(true, Ordering::Relaxed);
            Ok(false)
        });
        let cold = outcome.unwrap_or_else(|error| {
            job.failure.note(part, error);
            let mut state = lock(&self.state);
            state.failed = Some(state.failed.map_or(job.number, |first| first.min(job.number)));
            false
        });
        if job.done.fetch_add(1, Ordering::AcqRel) + 1 == job.parts {
            let waits = std::mem::take(&mut lock(&self.state).consumer_waits);
            if waits {
                self.done.notify_all();
            }
        }
        if cold {
            self.read_window_ahead(job.step.first);
        }
    }

    /// Copies the rows of one part; true if the disk had to be asked for some.
    fn gather(&self, job: &Job, part: usize) -> Result<bool> {
        if job.failure.is_before(part) {
            return Ok(false);
        }
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
            table.begin(&places[range.clone()], &mut lock(&job.begun[number]))?;
            cold |= self.readahead.advise(table, &places[range.clone()]);
            let outs = job.targets.iter().filter(|out| out.table == number);
            let targets: Vec<Target<'_>> = outs
                .map(|out| Target {
                    column: out.column,
                    offsets: &out.offsets,
                    // SAFETY: `begin` made the buffers for all rows of the batch, so this one
                    // has those that come before this part.
                    out: unsafe { out.start.add(skipped * table.row_bytes(out.column)) },
                })
                .collect();
            // SAFETY: the buffers have room for all rows of the batch, and parts do not
            // overlap.
            self.readahead.watch(|| unsafe { table.copy(places, range, &targets) })?;
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
}
