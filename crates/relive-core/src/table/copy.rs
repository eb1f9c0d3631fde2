//! Copies located rows to one buffer per column, on one or more threads.

use std::ops::Range;

use super::reader::{ColumnShape, Out, Reader};
use super::{Column, Leaf, Location, Table};
use crate::error::Result;
use crate::gather::Rows;
use crate::latch::EarliestError;
use crate::pool;

/// The least bytes for which a second thread is worthwhile.
const BYTES_PER_PART: usize = 96 * 1024;

/// The same for rows that are decoded: about 30 µs of work, the time to wake a thread.
const BYTES_PER_READ: usize = 32 * 1024;

/// Rows whose addresses are computed before they are copied; fits on the stack.
const CHUNK: usize = 256;

/// The destination of one column of a gather.
pub struct Target<'a> {
    /// The column.
    pub column: usize,
    /// For a ragged column the start of each row; else empty.
    pub offsets: &'a [i64],
    /// The buffer.
    pub out: *mut u8,
}

// SAFETY: the pointer is only written through `Table::copy`, part by part, each part by
// one thread.
unsafe impl Sync for Target<'_> {}

impl Target<'_> {
    /// Returns the address of row `k` of the batch.
    ///
    /// # Safety
    /// The buffer has room for row `k` of a column of this shape.
    unsafe fn at(&self, shape: ColumnShape, k: usize) -> *mut u8 {
        // SAFETY: passed on from the caller.
        unsafe {
            match shape {
                ColumnShape::Fixed { row_bytes } => self.out.add(k * row_bytes),
                ColumnShape::Ragged { item_bytes } => {
                    self.out.add(self.offsets[k] as usize * item_bytes)
                }
            }
        }
    }
}

impl Table {
    /// Calls [`Reader::begin`] of each reader that has some of these rows, once per batch. `begun`
    /// records which were called; it is empty before the first call for a batch and passed to all
    /// calls for it.
    pub fn begin(&self, locations: &[Location], begun: &mut Vec<bool>) -> Result<()> {
        self.each_reader(locations, begun, |reader| reader.begin())
    }

    /// Calls each reader that has some of these rows, unless it is marked in `called`.
    pub(super) fn each_reader(
        &self,
        locations: &[Location],
        called: &mut Vec<bool>,
        call: impl Fn(&dyn Reader) -> Result<()>,
    ) -> Result<()> {
        if !self.reads {
            return Ok(());
        }
        if let [Leaf::Reader(only)] = &self.leaves[..]
            && called.is_empty()
            && !locations.is_empty()
        {
            call(only.as_ref())?;
            called.push(true);
            return Ok(());
        }
        called.resize(self.leaves.len(), false);
        for location in locations {
            let leaf = location.leaf as usize;
            if called[leaf] {
                continue;
            }
            if let Leaf::Reader(reader) = &self.leaves[leaf] {
                call(reader.as_ref())?;
            }
            called[leaf] = true;
        }
        Ok(())
    }

    /// Copies `locations[range]` of the targets' columns to the buffers, which are undefined after an
    /// error.
    ///
    /// # Safety
    /// `locations` came from [`find`](Self::find) on this table. Each buffer is the one for all
    /// of `locations`: `row_bytes` for each in a fixed column, or `offsets.last()` items in
    /// a ragged one whose `offsets` came from [`offsets`](Self::offsets). Nothing else
    /// accesses the part of it that belongs to `range`.
    pub unsafe fn copy(
        &self,
        locations: &[Location],
        range: Range<usize>,
        targets: &[Target<'_>],
    ) -> Result<()> {
        if self.reads {
            // SAFETY: passed on from the caller.
            return unsafe { self.read(locations, range, targets) };
        }
        for target in targets {
            // SAFETY: passed on from the caller; no leaf is a reader.
            unsafe { self.copy_column(locations, range.clone(), target) };
        }
        Ok(())
    }

    /// # Safety
    /// As for [`copy`](Self::copy).
    unsafe fn read(
        &self,
        locations: &[Location],
        range: Range<usize>,
        targets: &[Target<'_>],
    ) -> Result<()> {
        // Columns that readers have in memory are copied; `rest` are read.
        let mut rest = Vec::new();
        for target in targets {
            match self.direct(target.column) {
                // SAFETY: passed on from the caller; all rows of this column are in memory.
                Some(leaves) => unsafe {
                    self.copy_direct(locations, range.clone(), target, &leaves);
                },
                None => rest.push(target),
            }
        }
        if rest.is_empty() {
            return Ok(());
        }
        let targets = &rest[..];
        let mut found: Vec<(u32, usize)> = Vec::new();
        let mut start = range.start;
        for run in locations[range].chunk_by(|a, b| a.leaf == b.leaf) {
            let end = start + run.len();
            match &self.leaves[run[0].leaf as usize] {
                Leaf::Memory(_) => {
                    for target in targets {
                        // SAFETY: passed on from the caller; these rows are in memory.
                        unsafe { self.copy_column(locations, start..end, target) };
                    }
                }
                Leaf::Reader(_) => found.extend((start..end).map(|k| (run[0].leaf, k))),
            }
            start = end;
        }
        // A call may be a remote request, so each reader gets one call for all its rows.
        found.sort_by_key(|&(leaf, _)| leaf);
        for group in found.chunk_by(|a, b| a.0 == b.0) {
            if let Leaf::Reader(reader) = &self.leaves[group[0].0 as usize] {
                // SAFETY: passed on from the caller; these rows are this reader's.
                unsafe { self.read_group(reader.as_ref(), locations, group, targets) }?;
            }
        }
        Ok(())
    }

    /// # Safety
    /// As for [`copy`](Self::copy), for the locations whose numbers `group` has; all of them are
    /// rows of `reader`.
    unsafe fn read_group(
        &self,
        reader: &dyn Reader,
        locations: &[Location],
        group: &[(u32, usize)],
        targets: &[&Target<'_>],
    ) -> Result<()> {
        let rows: Vec<u64> = group.iter().map(|&(_, k)| locations[k].row).collect();
        let mut addresses = Vec::with_capacity(targets.len() * rows.len());
        let mut sizes = Vec::new();
        for target in targets {
            let shape = self.shapes[target.column];
            for &(_, k) in group {
                // SAFETY: passed on from the caller.
                addresses.push(unsafe { target.at(shape, k) });
            }
            if let ColumnShape::Ragged { item_bytes } = shape {
                let items = |k: usize| (target.offsets[k + 1] - target.offsets[k]) as usize;
                sizes.extend(group.iter().map(|&(_, k)| items(k) * item_bytes));
            }
        }
        let mut sizes = &sizes[..];
        let mut outs = Vec::with_capacity(targets.len());
        for (target, at) in targets.iter().zip(addresses.chunks(rows.len())) {
            let ragged = matches!(self.shapes[target.column], ColumnShape::Ragged { .. });
            let (room, others) = sizes.split_at(if ragged { rows.len() } else { 0 });
            outs.push(Out { column: target.column, at, room });
            sizes = others;
        }
        // SAFETY: one address for each row and column, with the size from the shape or the
        // offsets; the caller guarantees exclusive access.
        unsafe { reader.read(&rows, &outs) }
    }

    /// # Safety
    /// As for [`copy`](Self::copy); the rows of `range` are in memory.
    unsafe fn copy_column(&self, locations: &[Location], range: Range<usize>, target: &Target<'_>) {
        let (column, shape) = (target.column, self.shapes[target.column]);
        let ColumnShape::Fixed { row_bytes } = shape else {
            for k in range {
                let row = locations[k].row as usize;
                if let Column::Ragged(rows) = &self.memory(locations[k].leaf)[column] {
                    let bytes = rows.items(row) * rows.item_bytes();
                    // SAFETY: `offsets` were made for these locations, so row `k` has its own
                    // room of exactly this size.
                    unsafe {
                        let out = target.at(shape, k);
                        std::ptr::copy_nonoverlapping(rows.address(row), out, bytes);
                    }
                }
            }
            return;
        };
        let fixed = |leaf| self.fixed(leaf, column);
        let only = if self.leaves.len() == 1 { Some(fixed(0)) } else { None };
        // SAFETY: passed on from the caller.
        unsafe { copy_rows(locations, range, target.out, row_bytes, only, fixed) };
    }

    /// Returns the rows of a fixed column in each leaf, if all leaves have them in memory.
    fn direct(&self, column: usize) -> Option<Direct<'_>> {
        let fixed = matches!(self.shapes[column], ColumnShape::Fixed { .. });
        match &self.leaves[..] {
            _ if !fixed => None,
            [only] => only.rows(column).map(Direct::One),
            all => all.iter().map(|leaf| leaf.rows(column)).collect::<Option<_>>().map(Direct::All),
        }
    }

    /// # Safety
    /// As for [`copy`](Self::copy); `leaves` are those of the target's column.
    unsafe fn copy_direct(
        &self,
        locations: &[Location],
        range: Range<usize>,
        target: &Target<'_>,
        leaves: &Direct<'_>,
    ) {
        let row_bytes = self.row_bytes(target.column);
        // SAFETY: passed on from the caller.
        unsafe {
            match leaves {
                Direct::One(rows) => {
                    copy_rows(locations, range, target.out, row_bytes, Some(rows), |_| rows);
                }
                Direct::All(all) => {
                    copy_rows(locations, range, target.out, row_bytes, None, |leaf| {
                        all[leaf as usize]
                    });
                }
            }
        }
    }

    fn memory(&self, leaf: u32) -> &[Column] {
        match &self.leaves[leaf as usize] {
            Leaf::Memory(columns) => columns,
            Leaf::Reader(_) => unreachable!("rows of readers are read, not copied"),
        }
    }

    fn fixed(&self, leaf: u32, column: usize) -> &Rows {
        match &self.memory(leaf)[column] {
            Column::Fixed(rows) => rows,
            Column::Ragged(_) => unreachable!("leaves of one table have the same columns"),
        }
    }

    /// Gathers several columns on up to `threads` threads. The error is that of the first rows that
    /// have one, for any number of threads; the buffers are then undefined.
    ///
    /// # Safety
    /// As for [`copy`](Self::copy), for the whole of `locations` and every target.
    pub unsafe fn gather(
        &self,
        locations: &[Location],
        targets: &[Target<'_>],
        threads: usize,
    ) -> Result<()> {
        self.begin(locations, &mut Vec::new())?;
        let bytes: usize =
            targets.iter().map(|target| self.target_bytes(target, locations.len())).sum();
        let copied = |target: &Target<'_>| self.direct(target.column).is_some();
        let reads = self.reads && !targets.iter().all(copied);
        let least = if reads { BYTES_PER_READ } else { BYTES_PER_PART };
        let parts = part_count(bytes, least, locations.len(), threads);
        let failure = EarliestError::default();
        let copy = |part: usize| {
            if failure.is_before(part) {
                return;
            }
            let range = part_range(locations.len(), part, parts);
            // SAFETY: passed on from the caller; parts do not overlap.
            if let Err(error) = unsafe { self.copy(locations, range, targets) } {
                failure.note(part, error);
            }
        };
        pool::run(parts, threads, &copy);
        failure.take().map_or(Ok(()), Err)
    }

    fn target_bytes(&self, target: &Target<'_>, rows: usize) -> usize {
        let units = match self.shapes[target.column] {
            ColumnShape::Fixed { .. } => rows,
            ColumnShape::Ragged { .. } => target.offsets.last().map_or(0, |&end| end as usize),
        };
        units * self.shapes[target.column].unit_bytes()
    }
}

/// A fixed column in memory, in the only leaf or in all leaves.
enum Direct<'a> {
    One(&'a Rows),
    All(Vec<&'a Rows>),
}

/// Copies `locations[range]` of a fixed column to `out`. `fixed` returns the rows of a leaf; `only` are
/// those of the only leaf, if there is one.
///
/// # Safety
/// The locations are rows of their leaves, which have `row_bytes`, and `out` has room for all
/// locations, whose part for `range` nothing else accesses.
unsafe fn copy_rows<'a>(
    locations: &[Location],
    range: Range<usize>,
    out: *mut u8,
    row_bytes: usize,
    only: Option<&Rows>,
    fixed: impl Fn(u32) -> &'a Rows,
) {
    for start in range.clone().step_by(CHUNK) {
        let chunk = &locations[start..range.end.min(start + CHUNK)];
        let mut sources = [std::ptr::null(); CHUNK];
        for (source, location) in sources.iter_mut().zip(chunk) {
            *source = match only {
                Some(rows) => rows.address(location.row as usize),
                None => fixed(location.leaf).address(location.row as usize),
            };
        }
        // SAFETY: the sources are rows of this column, and the buffer has room for all
        // locations, so for this chunk from its start on.
        unsafe {
            let out = out.add(start * row_bytes);
            match only {
                Some(rows) => rows.copy(&sources[..chunk.len()], out),
                None => copy_mixed(chunk, &sources[..chunk.len()], out, &fixed),
            }
        }
    }
}

/// # Safety
/// `sources` are the addresses of `locations` in the rows of their leaves, `out` has room for them.
unsafe fn copy_mixed<'a>(
    locations: &[Location],
    sources: &[*const u8],
    out: *mut u8,
    fixed: impl Fn(u32) -> &'a Rows,
) {
    // Consecutive rows of one leaf are copied together; leaves may differ in strides.
    let mut start = 0;
    for group in locations.chunk_by(|a, b| a.leaf == b.leaf) {
        let rows = fixed(group[0].leaf);
        // SAFETY: these sources are rows of this leaf; groups follow each other in `out`.
        unsafe {
            rows.copy(&sources[start..start + group.len()], out.add(start * rows.row_bytes()));
        }
        start += group.len();
    }
}

/// Returns the number of parts, of at least `least` bytes, for a gather on `threads` threads.
fn part_count(bytes: usize, least: usize, rows: usize, threads: usize) -> usize {
    if threads <= 1 {
        return 1;
    }
    (bytes / least).clamp(1, threads * 4).min(rows.max(1))
}

/// Returns the rows of one part.
pub fn part_range(rows: usize, part: usize, parts: usize) -> Range<usize> {
    rows * part / parts..rows * (part + 1) / parts
}
