//! Splits a batch of records into parts of about equal work.

use std::ops::Range;

use crate::Error;

/// A part has at least this many bytes: a smaller one takes less time than waking a thread.
const MIN_PART_BYTES: usize = 64 * 1024;

/// The fixed cost of a record, in bytes that could be processed in the same time.
const RECORD_COST: usize = 64;

/// Parts per thread, so that a thread that starts late delays the batch only a little.
const PARTS_PER_THREAD: usize = 4;

/// Splits records of these lengths into consecutive ranges of about equal work.
pub(super) fn split(
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

/// Adds the position of the record in its batch to an error.
pub(super) fn at(position: usize, error: Error) -> Error {
    error.about(format_args!("record {position} of the batch"))
}
