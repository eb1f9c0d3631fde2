//! From places to one buffer for each column, on one thread or several.

use std::ops::Range;

use super::reader::{ColumnShape, Out, Reader};
use super::{Column, Leaf, Place, Table};
use crate::error::Result;
use crate::gather::Rows;
use crate::latch::EarliestError;
use crate::pool;

/// Below this a second thread costs more than it brings.
const BYTES_PER_PART: usize = 96 * 1024;

/// The same for rows that are decoded: some thirty microseconds' worth, which is what it
/// takes to wake a thread.
const BYTES_PER_READ: usize = 32 * 1024;

/// Rows whose addresses are worked out before they are copied; fits the stack.
const CHUNK: usize = 256;

/// Where one column of a gather goes.
pub struct Target<'a> {
    /// Which column.
    pub column: usize,
    /// For a ragged column, where each row begins; empty otherwise.
    pub offsets: &'a [i64],
    /// The buffer.
    pub out: *mut u8,
}

// SAFETY: the pointer is only written through `Table::copy`, part by part, each part by
// one thread.
unsafe impl Sync for Target<'_> {}

impl Target<'_> {
    /// Where row `k` of the batch goes.
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
    /// Lets each reader that has some of these rows look after its data, once for a batch:
    /// `begun` remembers which did, is empty before the first call for a batch and is given
    /// to every other one.
    pub fn begin(&self, places: &[Place], begun: &mut Vec<bool>) -> Result<()> {
        self.each_reader(places, begun, |reader| reader.begin())
    }

    /// Calls each reader that has some of these rows, unless `called` says that it was.
    pub(super) fn each_reader(
        &self,
        places: &[Place],
        called: &mut Vec<bool>,
        call: impl Fn(&dyn Reader) -> Result<()>,
    ) -> Result<()> {
        if !self.reads {
            return Ok(());
        }
        if let [Leaf::Reader(only)] = &self.leaves[..]
            && called.is_empty()
            && !places.is_empty()
        {
            called.push(true);
            return call(only.as_ref());
        }
        called.resize(self.leaves.len(), false);
        for place in places {
            let leaf = place.leaf as usize;
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

    /// Copies `places[range]` of the targets' columns to their places in the buffers. After
    /// an error these are of no use.
    ///
    /// # Safety
    /// `places` came from [`find`](Self::find) on this table. Each buffer is the one for all
    /// of `places`: `row_bytes` for each in a fixed column, or `offsets.last()` items in
    /// a ragged one whose `offsets` came from [`offsets`](Self::offsets). Nobody else
    /// touches the part of it that belongs to `range`.
    pub unsafe fn copy(
        &self,
        places: &[Place],
        range: Range<usize>,
        targets: &[Target<'_>],
    ) -> Result<()> {
        if self.reads {
            // SAFETY: passed on from the caller.
            return unsafe { self.read(places, range, targets) };
        }
        for target in targets {
            // SAFETY: passed on from the caller; no leaf is a reader.
            unsafe { self.copy_column(places, range.clone(), target) };
        }
        Ok(())
    }

    /// # Safety
    /// As for [`copy`](Self::copy).
    unsafe fn read(
        &self,
        places: &[Place],
        range: Range<usize>,
        targets: &[Target<'_>],
    ) -> Result<()> {
        // Columns that readers have in memory are copied like others; `rest` are not.
        let mut rest = Vec::new();
        for target in targets {
            match self.direct(target.column) {
                // SAFETY: passed on from the caller; all rows of this column lie in memory.
                Some(leaves) => unsafe { self.copy_direct(places, range.clone(), target, &leaves) },
                None => rest.push(target),
            }
        }
        if rest.is_empty() {
            return Ok(());
        }
        let targets = &rest[..];
        let mut found: Vec<(u32, usize)> = Vec::new();
        let mut start = range.start;
        for run in places[range].chunk_by(|a, b| a.leaf == b.leaf) {
            let end = start + run.len();
            match &self.leaves[run[0].leaf as usize] {
                Leaf::Memory(_) => {
                    for target in targets {
                        // SAFETY: passed on from the caller; these rows lie in memory.
                        unsafe { self.copy_column(places, start..end, target) };
                    }
                }
                Leaf::Reader(_) => found.extend((start..end).map(|k| (run[0].leaf, k))),
            }
            start = end;
        }
        // A call may be a request to another machine: each reader gets one for all its rows.
        found.sort_by_key(|&(leaf, _)| leaf);
        for group in found.chunk_by(|a, b| a.0 == b.0) {
            if let Leaf::Reader(reader) = &self.leaves[group[0].0 as usize] {
                // SAFETY: passed on from the caller; these rows are this reader's.
                unsafe { self.read_group(reader.as_ref(), places, group, targets) }?;
            }
        }
        Ok(())
    }

    /// # Safety
    /// As for [`copy`](Self::copy), for the places whose numbers `group` has; all of them are
    /// rows of `reader`.
    unsafe fn read_group(
        &self,
        reader: &dyn Reader,
        places: &[Place],
        group: &[(u32, usize)],
        targets: &[&Target<'_>],
    ) -> Result<()> {
        let rows: Vec<u64> = group.iter().map(|&(_, k)| places[k].row).collect();
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
        // SAFETY: one address for each row and column, with the room that the shape or the
        // offsets say; the caller keeps others away.
        unsafe { reader.read(&rows, &outs) }
    }

    /// # Safety
    /// As for [`copy`](Self::copy); the rows of `range` lie in memory.
    unsafe fn copy_column(&self, places: &[Place], range: Range<usize>, target: &Target<'_>) {
        let (column, shape) = (target.column, self.shapes[target.column]);
        let ColumnShape::Fixed { row_bytes } = shape else {
            for k in range {
                let row = places[k].row as usize;
                if let Column::Ragged(rows) = &self.memory(places[k].leaf)[column] {
                    let bytes = rows.items(row) * rows.item_bytes();
                    // SAFETY: `offsets` were made for these places, so row `k` has its own
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
        unsafe { copy_rows(places, range, target.out, row_bytes, only, fixed) };
    }

    /// The rows of a fixed column in each leaf, if all leaves have them in memory.
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
        places: &[Place],
        range: Range<usize>,
        target: &Target<'_>,
        leaves: &Direct<'_>,
    ) {
        let row_bytes = self.row_bytes(target.column);
        // SAFETY: passed on from the caller.
        unsafe {
            match leaves {
                Direct::One(rows) => {
                    copy_rows(places, range, target.out, row_bytes, Some(rows), |_| rows);
                }
                Direct::All(all) => {
                    copy_rows(places, range, target.out, row_bytes, None, |leaf| {
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

    /// Gathers several columns on up to `threads` threads. The error is that of the first
    /// rows that have one, whatever the threads; the buffers are then of no use.
    ///
    /// # Safety
    /// As for [`copy`](Self::copy), for the whole of `places` and every target.
    pub unsafe fn gather(
        &self,
        places: &[Place],
        targets: &[Target<'_>],
        threads: usize,
    ) -> Result<()> {
        self.begin(places, &mut Vec::new())?;
        let bytes: usize =
            targets.iter().map(|target| self.target_bytes(target, places.len())).sum();
        let copied = |target: &Target<'_>| self.direct(target.column).is_some();
        let reads = self.reads && !targets.iter().all(copied);
        let least = if reads { BYTES_PER_READ } else { BYTES_PER_PART };
        let parts = part_count(bytes, least, places.len(), threads);
        let failure = EarliestError::default();
        let copy = |part: usize| {
            if failure.is_before(part) {
                return;
            }
            let range = part_range(places.len(), part, parts);
            // SAFETY: passed on from the caller; parts do not overlap.
            if let Err(error) = unsafe { self.copy(places, range, targets) } {
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

/// A fixed column that lies in memory, in the one leaf or in all of them.
enum Direct<'a> {
    One(&'a Rows),
    All(Vec<&'a Rows>),
}

/// Copies `places[range]` of a fixed column to its place in `out`. `fixed` gives the rows of a
/// leaf; `only` are those of the only leaf, if there is but one.
///
/// # Safety
/// The places are rows of their leaves, which have `row_bytes`, and `out` has room for all
/// places, whose part for `range` nobody else touches.
unsafe fn copy_rows<'a>(
    places: &[Place],
    range: Range<usize>,
    out: *mut u8,
    row_bytes: usize,
    only: Option<&Rows>,
    fixed: impl Fn(u32) -> &'a Rows,
) {
    for start in range.clone().step_by(CHUNK) {
        let chunk = &places[start..range.end.min(start + CHUNK)];
        let mut sources = [std::ptr::null(); CHUNK];
        for (source, place) in sources.iter_mut().zip(chunk) {
            *source = match only {
                Some(rows) => rows.address(place.row as usize),
                None => fixed(place.leaf).address(place.row as usize),
            };
        }
        // SAFETY: the sources are rows of this column, and the buffer has room for all
        // places, so for this chunk from its start on.
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
/// `sources` are the addresses of `places` in the rows of their leaves, `out` has room for them.
unsafe fn copy_mixed<'a>(
    places: &[Place],
    sources: &[*const u8],
    out: *mut u8,
    fixed: impl Fn(u32) -> &'a Rows,
) {
    // Neighbours from one leaf are copied together; leaves may differ in strides.
    let mut start = 0;
    for group in places.chunk_by(|a, b| a.leaf == b.leaf) {
        let rows = fixed(group[0].leaf);
        // SAFETY: these sources are rows of this leaf; groups follow each other in `out`.
        unsafe {
            rows.copy(&sources[start..start + group.len()], out.add(start * rows.row_bytes()));
        }
        start += group.len();
    }
}

/// Into how many parts of at least `least` bytes to cut a gather so that `threads` threads
/// share it well.
fn part_count(bytes: usize, least: usize, rows: usize, threads: usize) -> usize {
    if threads <= 1 {
        return 1;
    }
    (bytes / least).clamp(1, threads * 4).min(rows.max(1))
}

/// The rows of one part.
pub fn part_range(rows: usize, part: usize, parts: usize) -> Range<usize> {
    rows * part / parts..rows * (part + 1) / parts
}
