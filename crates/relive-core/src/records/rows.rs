//! Reads the records of a snapshot as the rows of a table, one column for each field.

use std::sync::Arc;

use super::snapshot::{Resolved, Seen, Snapshot};
use crate::gather::{Rows, prefetch};
use crate::table::{ColumnShape, Out, Reader};
use crate::{Error, Result};

/// How many rows ahead the start of a value is prefetched, and how many bytes of it: the hardware
/// prefetches the rest of a long value.
const AHEAD: usize = 8;
const LINES: usize = 256;

/// Rows that are located before the first of them is copied.
const CHUNK: usize = 64;

/// The records of a snapshot as the rows of a table. A missing value is read as zeros, or as no
/// items.
pub struct SnapshotRows(Arc<Snapshot>);

impl SnapshotRows {
    /// Makes a reader of this snapshot.
    pub fn new(snapshot: Arc<Snapshot>) -> Self {
        Self(snapshot)
    }
}

impl Reader for SnapshotRows {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn columns(&self) -> &[ColumnShape] {
        &self.0.shapes
    }

    fn items(&self, column: usize, row: u64) -> usize {
        let ColumnShape::Ragged { item_bytes } = self.0.shapes[column] else { return 0 };
        match self.0.resolve(column, row) {
            Ok(Resolved::Heap(at)) => {
                let bytes = self.0.record_length(column, at);
                // A length that is not a multiple gets no room, so reading it returns an error.
                let whole = item_bytes > 0 && bytes.is_multiple_of(item_bytes as u64);
                if whole { (bytes / item_bytes as u64) as usize } else { 0 }
            }
            _ => 0,
        }
    }

    fn prefetch(&self, column: usize, row: u64) {
        self.0.prefetch_entry(column, row);
    }

    fn before_items(&self) -> Result<()> {
        // The lengths of values are stored in files that may be mapped.
        self.0.check_sizes()
    }

    fn begin(&self) -> Result<()> {
        self.0.check_sizes()
    }

    unsafe fn read(&self, rows: &[u64], outs: &[Out<'_>]) -> Result<()> {
        let mut reading = Reading {
            snapshot: &self.0,
            seen: Seen::of(self.0.options().verify),
            buffer: Vec::new(),
            found: Vec::with_capacity(CHUNK.min(rows.len())),
        };
        for out in outs {
            // SAFETY: passed on from the caller.
            unsafe { reading.column(rows, out) }?;
        }
        Ok(())
    }

    fn rows(&self, column: usize) -> Option<&Rows> {
        self.0.direct(column)
    }

    fn stored_bytes(&self, column: usize, row: u64) -> Option<(*const u8, usize)> {
        if !self.0.is_mapped() {
            return None;
        }
        // A missing value needs no fetch, so it counts as being in memory.
        let found = self.0.resolve(column, row).ok();
        let address = found.and_then(|found| self.0.address(column, found));
        Some(address.unwrap_or((std::ptr::null(), 0)))
    }
}

/// One call of [`Reader::read`].
struct Reading<'a> {
    snapshot: &'a Snapshot,
    seen: Seen,
    buffer: Vec<u8>,
    found: Vec<Resolved>,
}

impl Reading<'_> {
    /// # Safety
    /// As for [`Reader::read`].
    unsafe fn column(&mut self, rows: &[u64], out: &Out<'_>) -> Result<()> {
        let column = out.column;
        let fixed = match self.snapshot.shapes[column] {
            ColumnShape::Fixed { row_bytes } => Some(row_bytes),
            ColumnShape::Ragged { .. } => None,
        };
        let dense = self.snapshot.columns[column].dense.as_ref();
        for (start, rows) in (0..rows.len()).step_by(CHUNK).zip(rows.chunks(CHUNK)) {
            let failed = self.find(column, rows);
            for (position, &row) in rows.iter().enumerate().take(self.found.len()) {
                if let Some(&next) = self.found.get(position + AHEAD) {
                    self.snapshot.prefetch_value(column, next);
                }
                let at = out.at[start + position];
                let room =
                    fixed.unwrap_or_else(|| out.room.get(start + position).map_or(0, |&n| n));
                // SAFETY: the caller made this room for the row, where any bytes are valid.
                let slot = unsafe { std::slice::from_raw_parts_mut(at, room) };
                match (self.found[position], dense) {
                    (Resolved::Dense(physical), Some(dense)) => {
                        let seen = &mut self.seen;
                        self.snapshot.read_dense(column, row, dense, physical, seen, slot)?;
                    }
                    (Resolved::Heap(at), _) => {
                        let record = self.snapshot.record(column, row, at, &mut self.buffer)?;
                        self.snapshot.decode_record(column, row, at, &record, slot)?;
                    }
                    // A missing value has no items, or is read as zeros if it is fixed.
                    _ if fixed.is_none() && room > 0 => return Err(self.gone(column, row)),
                    _ => slot.fill(0),
                }
            }
            // Errors of the rows before are returned first.
            failed?;
        }
        Ok(())
    }

    /// Locates rows, up to the first that has an error.
    fn find(&mut self, column: usize, rows: &[u64]) -> Result<()> {
        self.found.clear();
        for (position, &row) in rows.iter().enumerate() {
            if let Some(&next) = rows.get(position + AHEAD) {
                self.snapshot.prefetch_entry(column, next);
            }
            self.found.push(self.snapshot.resolve(column, row)?);
        }
        Ok(())
    }

    #[cold]
    fn gone(&self, column: usize, row: u64) -> Error {
        let name = self.snapshot.row_name(column, row);
        Error::Corrupt(format!("{name}: the value was removed while it was being read"))
    }
}

impl Snapshot {
    /// Prefetches the start of a value.
    #[inline]
    fn prefetch_value(&self, column: usize, found: Resolved) {
        if let Some((address, bytes)) = self.address(column, found) {
            prefetch(address, bytes.min(LINES));
        }
    }

    /// Prefetches the table entry of a value.
    #[inline]
    fn prefetch_entry(&self, column: usize, row: u64) {
        if let Some(table) = &self.columns[column].table
            && let Some(address) = table.address(row)
        {
            prefetch(address, 1);
        }
    }
}

#[cfg(test)]
mod tests;
