//! A batch cut into parts of about equal work, one call of the pool each.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::{Error, Result, pool};

/// Less work than this, in bytes, is done sooner than another thread wakes up.
const MIN_PART_BYTES: usize = 64 * 1024;

/// What a record costs whatever its length, in bytes of work.
const RECORD_COST: usize = 64;

/// Parts per thread: enough that a thread which starts late costs little.
const PARTS_PER_THREAD: usize = 4;

/// Cuts records of these lengths into consecutive ranges of about equal work.
pub(super) fn cut(
    lengths: impl Iterator<Item = usize> + Clone,
    threads: usize,
) -> Vec<Range<usize>> {
    let cost = |length: usize| length.saturating_add(RECORD_COST);
    let total = lengths.clone().map(cost).fold(0_usize, usize::saturating_add);
    let wanted = threads.max(1).saturating_mul(PARTS_PER_THREAD);
    let goal = (total / wanted).max(MIN_PART_BYTES);
    let mut parts = Vec::new();
    let (mut start, mut end, mut work) = (0, 0, 0_usize);
    for length in lengths {
        end += 1;
        work = work.saturating_add(cost(length));
        if work >= goal {
            parts.push(start..end);
            start = end;
            work = 0;
        }
    }
    if start < end {
        parts.push(start..end);
    }
    parts
}

/// Does `work` on every part, in parallel, and gives the parts back in order.
///
/// The failure returned is that of the first part that has one, whatever the number
/// of threads.
pub(super) fn each<T: Send>(
    parts: Vec<T>,
    threads: usize,
    work: impl Fn(&mut T) -> Result<()> + Sync,
) -> Result<Vec<T>> {
    let cells: Vec<Mutex<(T, Result<()>)>> =
        parts.into_iter().map(|part| Mutex::new((part, Ok(())))).collect();
    pool::run(cells.len(), threads, &|position| {
        // Each part is claimed once, so the lock is never waited for.
        let mut cell = cells[position].lock().unwrap_or_else(PoisonError::into_inner);
        let (part, outcome) = &mut *cell;
        *outcome = work(part);
    });
    cells
        .into_iter()
        .map(|cell| {
            let (part, outcome) = cell.into_inner().unwrap_or_else(PoisonError::into_inner);
            outcome.map(|()| part)
        })
        .collect()
}

/// The same error, naming the record of the batch that it is about.
pub(super) fn at(position: usize, error: Error) -> Error {
    error.about(format_args!("record {position} of the batch"))
}
