//! One batch on its way, and how batches lie in memory.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::error::{Error, Result};
use crate::latch::EarliestError;
use crate::sample::Step;
use crate::slab::{ALIGN, Loan, Slab};
use crate::table::{Place, Table};

/// How to prefetch.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Threads beside the consumer's; with none the consumer does all the work.
    pub workers: usize,
    /// Batches prepared ahead; small ones, of which each thread makes its own, at least one
    /// more than there are threads.
    pub depth: usize,
    /// Whether the memory of batches is given by the consumer with
    /// [`Prefetch::give_slab`](super::Prefetch::give_slab) instead of being allocated here.
    pub foreign: bool,
}

/// A gathered batch.
pub struct Batch {
    /// The memory of all fixed columns, laid out as [`Layout`] says.
    pub fixed: Loan,
    /// Values and offsets of each ragged column, in the order of the columns.
    pub ragged: Vec<(Loan, Vec<i64>)>,
    /// Which samples these are, and where the stream stands after them.
    pub step: Step,
}

/// What [`Prefetch::next`](super::Prefetch::next) found.
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

/// One batch on its way.
pub(super) struct Job {
    /// How many batches were begun before.
    pub(super) number: u64,
    pub(super) step: Step,
    /// Where the rows lie in each of the tables, where that had to be known at once.
    pub(super) places: Vec<Vec<Place>>,
    pub(super) fixed: Mutex<Option<Slab>>,
    pub(super) ragged: Mutex<Vec<(Slab, Vec<i64>)>>,
    /// Addresses of the buffers above, so that parts need not lock.
    pub(super) targets: Vec<Out>,
    pub(super) parts: usize,
    pub(super) next: AtomicUsize,
    pub(super) done: AtomicUsize,
    /// Which leaves of each table were told that this batch begins.
    pub(super) begun: Vec<Mutex<Vec<bool>>>,
    pub(super) failure: EarliestError,
    pub(super) panicked: AtomicBool,
}

pub(super) struct Out {
    pub(super) table: usize,
    pub(super) column: usize,
    pub(super) start: *mut u8,
    pub(super) offsets: Vec<i64>,
}

// SAFETY: the buffers belong to the job; each part writes its own rows of them.
unsafe impl Send for Out {}
// SAFETY: as above.
unsafe impl Sync for Out {}

impl Job {
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
