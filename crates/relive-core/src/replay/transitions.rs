//! Transitions of a run as the rows of a table: what was observed, done and received, and what was
//! observed next.
//!
//! Which steps are transitions, and what is summed over several steps, is computed beforehand: a
//! transition has a row in columns in memory, and *entries* of values that are read from the run. A
//! value consists of planes. ColumnValues share planes, since what is observed next is observed again.

use std::ops::{Deref, Range};
use std::sync::Arc;

use super::copied::Copied;
use super::interleave;
use super::planes::{Loaded, PlaneStore, Resident};
use super::stacks::{StackAxis, join, scatter};
use crate::gather::{Owner, Rows, copy_run};
use crate::table::{ColumnShape, Out, Reader};
use crate::{Error, Result};

/// Parts that are looked at before one is searched for, and how many of them stay if there are more.
const HELD: usize = 6;
const KEPT: usize = 2;

/// The planes of a stack whose planes are side by side, if they are to be joined at once.
const JOINED: usize = 16;

/// The number of a plane that is zeros.
const NO_PLANE: u32 = 0;

/// Instead of the number of a field, for planes in memory.
const MEMORY: usize = usize::MAX;

/// Numbers that somebody else keeps, and does not change.
pub struct Numbers {
    data: *const u32,
    len: usize,
    #[allow(dead_code, reason = "held for its drop")]
    owner: Owner,
}

// SAFETY: the numbers are only read, and `owner` keeps them wherever this goes.
unsafe impl Send for Numbers {}
// SAFETY: as above.
unsafe impl Sync for Numbers {}

impl Numbers {
    /// Refers to numbers.
    ///
    /// # Safety
    /// They are aligned, and stay as they are while `owner` exists.
    pub unsafe fn new(data: *const u32, len: usize, owner: Owner) -> Self {
        Self { data, len, owner }
    }
}

impl Deref for Numbers {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        // SAFETY: as promised to `new`.
        unsafe { std::slice::from_raw_parts(self.data, self.len) }
    }
}

impl From<Vec<u32>> for Numbers {
    fn from(numbers: Vec<u32>) -> Self {
        let owner = Arc::new(numbers);
        Self { data: owner.as_ptr(), len: owner.len(), owner }
    }
}

/// A plane in memory.
#[derive(Debug, Clone)]
pub struct MemoryPlane {
    /// The memory.
    pub copied: Arc<Copied>,
    /// Where the plane is in it.
    pub range: Range<usize>,
}

impl MemoryPlane {
    fn bytes(&self) -> &[u8] {
        &self.copied.bytes()[self.range.clone()]
    }
}

/// Where the planes of values are: the rows of one or several fields are numbered from 1 on, one
/// field after the other, and after them the planes in memory.
pub struct PlaneIds {
    /// The fields, and how many rows of each are numbered.
    pub fields: Vec<(usize, u64)>,
    /// Planes that were not written yet.
    pub memory: Vec<MemoryPlane>,
    /// The planes of entry 0, then those of entry 1, and so on. None if entry `k` is plane `k + 1`.
    pub ids: Option<Numbers>,
    /// How many planes a value has.
    pub depth: usize,
    /// How the planes are joined.
    pub axis: StackAxis,
}

/// The values of a column.
pub enum ColumnValues {
    /// In memory, one row for each transition.
    Memory(Rows),
    /// Read from the run: the number of the planes, and the entry of each transition.
    Planes(usize, Numbers),
    /// Whether a step of a window is one to learn from.
    Mask,
}

/// Windows of consecutive transitions.
pub struct Windows {
    /// How many transitions a window has room for.
    pub steps: usize,
    /// The first transition of each window.
    pub starts: Numbers,
    /// How many transitions each window has; the others are zeros.
    pub lengths: Numbers,
    /// How many transitions at the front of each window are not to learn from.
    pub skipped: Numbers,
}

impl Windows {
    fn check(&self, transitions: usize) -> Result<()> {
        let windows = self.starts.iter().zip(self.lengths.iter());
        let are_inside = windows.into_iter().all(|(&start, &length)| {
            length as usize <= self.steps && start as usize + length as usize <= transitions
        });
        let counts = [self.lengths.len(), self.skipped.len()];
        if are_inside && counts == [self.starts.len(); 2] && self.steps > 0 {
            return Ok(());
        }
        Err(Error::Invalid("a window has transitions that do not exist".to_owned()))
    }
}

/// Transitions of a run, or windows of them. A snapshot. Thread-safe.
pub struct Transitions {
    store: Arc<PlaneStore>,
    rows: Arc<TransitionRows>,
}

/// Transitions, or windows of them, without what reads their planes.
pub struct TransitionRows {
    planes: Vec<Planes>,
    columns: Vec<ColumnValues>,
    shapes: Vec<ColumnShape>,
    windows: Option<Windows>,
    len: usize,
}

/// Where planes are, and how large.
struct Planes {
    /// The fields, and the number after that of the last row of each.
    fields: Vec<(usize, u64)>,
    memory: Vec<MemoryPlane>,
    ids: Option<Numbers>,
    depth: usize,
    axis: StackAxis,
    plane_bytes: usize,
    item_bytes: usize,
}

impl Planes {
    fn new(store: &PlaneStore, given: PlaneIds) -> Result<Self> {
        let PlaneIds { fields, memory, ids, depth, axis } = given;
        let invalid = |text: &str| Err(Error::Invalid(text.to_owned()));
        let Some(&(first, _)) = fields.first() else { return invalid("planes have no field") };
        let (plane_bytes, spec) = (store.reader().row_bytes(first)?, store.reader().spec(first)?);
        let mut end = u64::from(NO_PLANE) + 1;
        let mut ends = Vec::with_capacity(fields.len());
        for (field, rows) in fields {
            if store.reader().row_bytes(field)? != plane_bytes {
                return invalid("planes of one value must have the same size");
            }
            end = end.saturating_add(rows);
            ends.push((field, end));
        }
        if memory.iter().any(|plane| plane.range.len() != plane_bytes) {
            return invalid("planes of one value must have the same size");
        }
        end = end.saturating_add(memory.len() as u64);
        ends.push((MEMORY, end));
        if depth == 0 || ids.as_ref().is_some_and(|ids| ids.len() % depth != 0) {
            return invalid("every entry must have the same number of planes");
        }
        if ids.as_ref().is_some_and(|ids| ids.iter().any(|&id| u64::from(id) >= end)) {
            return invalid("a plane is out of range");
        }
        if ids.is_none() && depth != 1 {
            return invalid("entries of several planes must have their numbers");
        }
        let item_bytes = spec.item_bytes();
        Ok(Self { fields: ends, memory, ids, depth, axis, plane_bytes, item_bytes })
    }

    fn entries(&self) -> u64 {
        let last = self.fields.last().map_or(0, |&(_, end)| end - 1);
        self.ids.as_ref().map_or(last, |ids| (ids.len() / self.depth) as u64)
    }

    fn row_bytes(&self) -> usize {
        self.depth * self.plane_bytes
    }

    /// Returns the field of a plane that is not zeros, its row there, and how many rows follow it,
    /// itself included.
    fn field_row(&self, id: u32) -> (usize, u64, u64) {
        let (mut start, id) = (u64::from(NO_PLANE) + 1, u64::from(id));
        let mut found = (0, 0, 0);
        for &(field, end) in &self.fields {
            found = (field, id.saturating_sub(start), end - start);
            if id < end {
                break;
            }
            start = end;
        }
        let (field, row, rows) = found;
        (field, row, rows - row)
    }

    /// Calls `each` with the numbers of the planes of an entry.
    fn with_ids<R>(&self, entry: u32, each: impl FnOnce(&[u32]) -> R) -> R {
        match &self.ids {
            Some(ids) => each(&ids[entry as usize * self.depth..][..self.depth]),
            None => each(&[entry + 1]),
        }
    }
}

impl Transitions {
    /// Reads transitions with the planes of a store, which may have more than those that the
    /// transitions were made with.
    pub fn new(store: Arc<PlaneStore>, rows: Arc<TransitionRows>) -> Self {
        Self { store, rows }
    }
}

impl Deref for Transitions {
    type Target = TransitionRows;

    fn deref(&self) -> &TransitionRows {
        &self.rows
    }
}

impl TransitionRows {
    /// Makes columns with one row for each of `len` transitions, or for each of the windows of
    /// them.
    pub fn new(
        store: &PlaneStore,
        planes: Vec<PlaneIds>,
        columns: Vec<ColumnValues>,
        len: usize,
        windows: Option<Windows>,
    ) -> Result<Self> {
        let planes =
            planes.into_iter().map(|each| Planes::new(store, each)).collect::<Result<Vec<_>>>()?;
        let steps = windows.as_ref().map_or(1, |windows| windows.steps);
        let mut shapes = Vec::with_capacity(columns.len());
        for column in &columns {
            let (rows, bytes) = match column {
                ColumnValues::Memory(rows) => (rows.len(), rows.row_bytes()),
                ColumnValues::Mask => (len, 1),
                ColumnValues::Planes(number, entries) => {
                    let Some(planes) = planes.get(*number) else {
                        let count = planes.len();
                        return Err(Error::out_of_range(*number, count, "value", "values"));
                    };
                    let last = entries.iter().max().map_or(0, |&last| u64::from(last) + 1);
                    if last > planes.entries() {
                        return Err(Error::Invalid("an entry is out of range".to_owned()));
                    }
                    (entries.len(), planes.row_bytes())
                }
            };
            if rows != len {
                let text = format!("a column has {rows} rows, but there are {len} transitions");
                return Err(Error::Invalid(text));
            }
            let row_bytes = bytes.checked_mul(steps).ok_or_else(|| {
                Error::TooLarge("a window is too large to fit in memory".to_owned())
            })?;
            shapes.push(ColumnShape::Fixed { row_bytes });
        }
        if let Some(windows) = &windows {
            windows.check(len)?;
        }
        Ok(Self { planes, columns, shapes, windows, len })
    }

    /// Returns the transitions of a row: the first, how many there are, and how many of them are
    /// not to learn from.
    fn window(&self, row: u64) -> (usize, usize, usize) {
        let row = row as usize;
        match &self.windows {
            None => (row, 1, 0),
            Some(Windows { starts, lengths, skipped, .. }) => {
                (starts[row] as usize, lengths[row] as usize, skipped[row] as usize)
            }
        }
    }

    /// Returns the bytes of a row of a column.
    fn fixed_bytes(&self, column: usize) -> usize {
        match self.shapes[column] {
            ColumnShape::Fixed { row_bytes } => row_bytes,
            ColumnShape::Ragged { .. } => 0,
        }
    }

    fn steps(&self) -> usize {
        self.windows.as_ref().map_or(1, |windows| windows.steps)
    }
}

impl Reader for Transitions {
    fn len(&self) -> u64 {
        self.windows.as_ref().map_or(self.len, |windows| windows.starts.len()) as u64
    }

    fn columns(&self) -> &[ColumnShape] {
        &self.shapes
    }

    fn items(&self, _column: usize, _row: u64) -> usize {
        0
    }

    fn begin(&self) -> Result<()> {
        self.store.check_map()
    }

    unsafe fn read(&self, rows: &[u64], outs: &[Out<'_>]) -> Result<()> {
        let row_bytes: usize = outs.iter().map(|out| self.fixed_bytes(out.column)).sum();
        let past_caches = rows.len().saturating_mul(row_bytes) >= interleave::PAST_CACHES;
        let (held, missing) = (Vec::with_capacity(HELD), Vec::new());
        let mut reading = Reading { of: self, held, missing, past_caches };
        let steps = self.steps();
        // Row by row, so that a plane is still in the cache of the core when what is observed next
        // is copied, too.
        for (place, &row) in rows.iter().enumerate() {
            let (start, length, skipped) = self.window(row);
            for out in outs {
                let row_bytes = self.fixed_bytes(out.column);
                // SAFETY: the caller made this room for the row, where any bytes are valid.
                let room = unsafe { std::slice::from_raw_parts_mut(out.at[place], row_bytes) };
                let (filled, rest) = room.split_at_mut(row_bytes / steps * length);
                rest.fill(0);
                match &self.columns[out.column] {
                    ColumnValues::Memory(values) => copy_rows(values, start, length, filled),
                    ColumnValues::Mask => {
                        for (step, flag) in filled.iter_mut().enumerate() {
                            *flag = u8::from(step >= skipped);
                        }
                    }
                    ColumnValues::Planes(number, entries) => {
                        let bytes = self.planes[*number].row_bytes();
                        if bytes == 0 {
                            continue;
                        }
                        let entries = &entries[start..start + length];
                        for (&entry, out) in entries.iter().zip(filled.chunks_exact_mut(bytes)) {
                            reading.value(*number, entry, out)?;
                        }
                    }
                }
            }
        }
        interleave::fence();
        // SAFETY: the rooms of the caller are still there, and no slice of them is used any more.
        unsafe { reading.load_missing() }
    }

    fn rows(&self, column: usize) -> Option<&Rows> {
        match &self.columns[column] {
            ColumnValues::Memory(rows) if self.windows.is_none() => Some(rows),
            _ => None,
        }
    }

    fn stored_bytes(&self, column: usize, row: u64) -> Option<(*const u8, usize)> {
        // What was decoded is in memory, or needs more than a page of the file.
        let nothing = Some((std::ptr::null(), 0));
        let ColumnValues::Planes(number, entries) = &self.columns[column] else { return nothing };
        let (start, length, _) = self.window(row);
        if length == 0 {
            return nothing;
        }
        let planes = &self.planes[*number];
        planes.with_ids(entries[start], |ids| {
            let newest = ids.iter().copied().max().filter(|&id| id != NO_PLANE);
            let oldest = ids.iter().copied().filter(|&id| id != NO_PLANE).min();
            let (Some(oldest), Some(newest)) = (oldest, newest) else { return nothing };
            let (field, row, _) = planes.field_row(oldest);
            if field == MEMORY {
                return nothing;
            }
            let Some((start, left)) = self.store.mapped_row(field, row) else { return nothing };
            let count = (u64::from(newest - oldest) + 1).min(left) as usize;
            Some((start, count.min(ids.len()) * planes.plane_bytes))
        })
    }
}

/// One call of [`Reader::read`].
struct Reading<'a> {
    of: &'a Transitions,
    /// The parts that were used last.
    held: Vec<Held<'a>>,
    /// The planes that were not in memory.
    missing: Vec<Missing>,
    /// Whether stacks that are joined are written past the caches.
    past_caches: bool,
}

/// Rows of a field that are in memory.
struct Held<'a> {
    field: usize,
    first: u64,
    end: u64,
    bytes: Resident<'a>,
}

/// A plane that has to be loaded, and where it goes.
struct Missing {
    field: usize,
    part: usize,
    row: u64,
    /// The row in its part.
    at: u64,
    planes: usize,
    /// The place of the plane in its stack.
    place: usize,
    /// The whole value.
    out: *mut u8,
}

impl<'a> Reading<'a> {
    /// Writes a value to `out`, except for the planes that have to be loaded.
    fn value(&mut self, number: usize, entry: u32, out: &mut [u8]) -> Result<()> {
        if self.held.len() > HELD {
            self.held.drain(..self.held.len() - KEPT);
        }
        let planes = &self.of.planes[number];
        planes.with_ids(entry, |ids| {
            if planes.axis == StackAxis::Last && ids.len() > 1 {
                self.side_by_side(number, ids, out)
            } else {
                self.one_by_one(number, ids, out)
            }
        })
    }

    fn one_by_one(&mut self, number: usize, ids: &[u32], out: &mut [u8]) -> Result<()> {
        let planes = &self.of.planes[number];
        let size = planes.plane_bytes;
        let mut place = 0;
        while place < ids.len() {
            let id = ids[place];
            let slot = &mut out[place * size..];
            if id == NO_PLANE {
                slot[..size].fill(0);
                place += 1;
                continue;
            }
            // Planes that follow each other in the run are copied together.
            let follow = ids[place..].iter().zip(id..).take_while(|(have, next)| *have == next);
            let (field, row, left) = planes.field_row(id);
            let count = (follow.count() as u64).min(left);
            let found = self.held(number, field, row)?;
            let Some((held, first, end)) = found else {
                self.miss(number, id, place, out)?;
                place += 1;
                continue;
            };
            let count = count.min(end - row) as usize;
            let start = (row - first) as usize * size;
            let rows = &self.held[held].bytes.bytes()[start..start + count * size];
            // SAFETY: both have this many bytes, and the caller's memory is not that of a run.
            unsafe { copy_run(rows.as_ptr(), slot[..rows.len()].as_mut_ptr(), rows.len()) };
            place += count;
        }
        Ok(())
    }

    fn side_by_side(&mut self, number: usize, ids: &[u32], out: &mut [u8]) -> Result<()> {
        let planes = &self.of.planes[number];
        let (size, depth) = (planes.plane_bytes, planes.depth);
        // The part of each plane, and where the plane is in it.
        let mut found = [(0, 0); JOINED];
        let mut count = 0;
        for (&id, found) in ids.iter().zip(&mut found).take_while(|(id, _)| **id != NO_PLANE) {
            let (field, row, _) = planes.field_row(id);
            let Some((held, first, _)) = self.held(number, field, row)? else { break };
            *found = (held, (row - first) as usize * size);
            count += 1;
        }
        if count == depth {
            let mut stack: [&[u8]; JOINED] = [&[]; JOINED];
            for (plane, &(held, start)) in stack.iter_mut().zip(&found[..depth]) {
                *plane = &self.held[held].bytes.bytes()[start..start + size];
            }
            let stack = &stack[..depth];
            join(planes.axis, stack, planes.item_bytes, self.past_caches, out);
            return Ok(());
        }
        for (place, &id) in ids.iter().enumerate() {
            if id == NO_PLANE {
                let zeros = vec![0; size];
                scatter(&zeros, (place, depth), planes.item_bytes, out);
                continue;
            }
            let (field, row, _) = planes.field_row(id);
            let Some((held, first, _)) = self.held(number, field, row)? else {
                self.miss(number, id, place, out)?;
                continue;
            };
            let start = (row - first) as usize * size;
            let plane = &self.held[held].bytes.bytes()[start..start + size];
            scatter(plane, (place, depth), planes.item_bytes, out);
        }
        Ok(())
    }

    /// Returns the place of the part that has a row among those that are held, its first row and the
    /// row after its last; None if it is not in memory.
    fn held(&mut self, number: usize, field: usize, row: u64) -> Result<Option<(usize, u64, u64)>> {
        if field == MEMORY {
            let of = self.of;
            let Some(plane) = of.planes[number].memory.get(row as usize) else {
                return Err(Error::Invalid("a plane is out of range".to_owned()));
            };
            let bytes = Resident::Mapped(plane.bytes());
            // No other value of planes has them, so they are not searched for.
            self.held.push(Held { field, first: row, end: row, bytes });
            return Ok(Some((self.held.len() - 1, row, row + 1)));
        }
        let has = |held: &Held<'_>| held.field == field && (held.first..held.end).contains(&row);
        if let Some(place) = self.held.iter().rposition(has) {
            let Held { first, end, .. } = self.held[place];
            return Ok(Some((place, first, end)));
        }
        let store = &self.of.store;
        let (part, first, end) = store.reader().part_with(field, row)?;
        let Some(bytes) = store.resident(field, part)? else { return Ok(None) };
        self.held.push(Held { field, first, end, bytes });
        Ok(Some((self.held.len() - 1, first, end)))
    }

    fn miss(&mut self, number: usize, id: u32, place: usize, out: &mut [u8]) -> Result<()> {
        let (field, row, _) = self.of.planes[number].field_row(id);
        let (part, first, _) = self.of.store.reader().part_with(field, row)?;
        let at = row - first;
        let out = out.as_mut_ptr();
        self.missing.push(Missing { field, part, row, at, planes: number, place, out });
        Ok(())
    }

    /// Loads each part that is needed once, and copies its planes.
    ///
    /// # Safety
    /// The values to which planes were missing are writable, and not accessed otherwise.
    unsafe fn load_missing(mut self) -> Result<()> {
        self.held.clear();
        self.missing.sort_unstable_by_key(|each| (each.field, each.part));
        let store = &self.of.store;
        let (mut spare, mut plane) = (Vec::new(), Vec::new());
        for group in self.missing.chunk_by(|a, b| (a.field, a.part) == (b.field, b.part)) {
            let Missing { field, part, row, .. } = group[0];
            let loaded = store.load(field, part, row, &mut spare)?;
            for each in group {
                let planes = &self.of.planes[each.planes];
                let size = planes.plane_bytes;
                // SAFETY: `out` is a whole value, as the caller promises.
                let out = unsafe { std::slice::from_raw_parts_mut(each.out, planes.row_bytes()) };
                let start = each.at as usize * size;
                let bytes = match &loaded {
                    Loaded::Resident(rows) => &rows.bytes()[start..start + size],
                    Loaded::Spare => &spare[start..start + size],
                    Loaded::File(at) => {
                        plane.resize(size, 0);
                        let at = at + start as u64;
                        store.reader().read_bytes(field, each.row, at, &mut plane)?;
                        &plane[..]
                    }
                };
                if planes.axis == StackAxis::Last {
                    scatter(bytes, (each.place, planes.depth), planes.item_bytes, out);
                } else {
                    out[each.place * size..][..size].copy_from_slice(bytes);
                }
            }
        }
        Ok(())
    }
}

/// Copies consecutive rows.
fn copy_rows(values: &Rows, start: usize, count: usize, out: &mut [u8]) {
    let size = values.row_bytes();
    if size == 0 {
        return;
    }
    for (row, out) in (start..start + count).zip(out.chunks_exact_mut(size)) {
        // SAFETY: the row exists, and `out` has room for it.
        unsafe { values.copy(&[values.address(row)], out.as_mut_ptr()) };
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
