//! Reads rows from step tables.

use std::ops::Range;

use super::columns::{CHUNK, Chunk};
use super::{Found, REQUEST_BYTES, RowBytes, StepRows};
use crate::pack::reader::{PackReader, Verify};
use crate::pack::sections::{ROWS_PER_BLOCK, StepTable};
use crate::runs::STEP_ROW_BYTES;
use crate::table::Out;
use crate::{Error, Result};

/// A step table in a mapped file.
struct InMemory<'a> {
    reader: &'a PackReader,
    table: &'a StepTable,
    rows: &'a [RowBytes],
}

impl<'a> InMemory<'a> {
    fn of(reader: &'a PackReader) -> Result<Self> {
        let missing =
            || reader.about(Error::Corrupt("section STEP is missing from the pack".into()));
        let table = reader.step_table()?.ok_or_else(missing)?;
        let layout = table.layout();
        let start = usize::try_from(layout.rows_offset).map_err(|_| missing())?;
        let rows = reader.storage().mapped().and_then(|bytes| bytes.get(start..));
        let (rows, _) = rows.ok_or_else(missing)?.as_chunks();
        let count = usize::try_from(layout.rows).ok();
        let rows = count.and_then(|count| rows.get(..count)).ok_or_else(missing)?;
        Ok(Self { reader, table, rows })
    }

    /// Returns a row after its block was verified.
    #[inline]
    fn row(&self, row: u64) -> Result<&'a RowBytes> {
        let known = match self.reader.options().verify {
            Verify::First => self.table.is_verified(row / ROWS_PER_BLOCK),
            Verify::Always => false,
            Verify::Never => true,
        };
        if !known {
            self.verify(row / ROWS_PER_BLOCK)?;
        }
        self.rows.get(row as usize).ok_or_else(|| no_row(self.reader, row))
    }

    #[cold]
    fn verify(&self, block: u64) -> Result<()> {
        let start = (block * ROWS_PER_BLOCK) as usize;
        let end = self.rows.len().min(start.saturating_add(ROWS_PER_BLOCK as usize));
        let rows = self.rows.get(start..end).unwrap_or_default();
        self.table.verify(block, rows.as_flattened()).map_err(|error| self.reader.about(error))
    }
}

#[cold]
fn no_row(reader: &PackReader, row: u64) -> Error {
    reader.about(Error::Corrupt(format!("section STEP of the pack has no row {row}")))
}

impl StepRows {
    /// Copies rows of which all are in mapped step tables.
    ///
    /// # Safety
    /// As for [`Reader::read`](crate::table::Reader::read).
    pub(super) unsafe fn read_direct(&self, rows: &[u64], outs: &[Out<'_>]) -> Result<()> {
        let tables: Vec<InMemory<'_>> =
            self.packs.iter().map(|pack| InMemory::of(&pack.reader)).collect::<Result<_>>()?;
        // The next chunk is prefetched while the current one is written.
        let (mut now, mut next) = (&mut Chunk::new(), &mut Chunk::new());
        let mut start = 0;
        for wanted in rows.chunks(CHUNK) {
            for &row in wanted {
                let found = self.find(row)?;
                next.push(tables[found.pack as usize].row(found.row)?, found.run);
            }
            // SAFETY: passed on from the caller; chunks follow each other.
            unsafe { now.write(start, outs, next) };
            start += now.len();
            now.clear();
            std::mem::swap(&mut now, &mut next);
        }
        // SAFETY: as above.
        unsafe { now.write(start, outs, next) };
        Ok(())
    }
}

/// Reads rows of one pack, in ascending order.
///
/// # Safety
/// As for [`Reader::read`](crate::table::Reader::read), with the positions of `wanted`.
pub(super) unsafe fn read(
    reader: &PackReader,
    wanted: &[(usize, Found)],
    outs: &[Out<'_>],
) -> Result<()> {
    if reader.storage().mapped().is_some() {
        let table = InMemory::of(reader)?;
        let row = |found: &Found| table.row(found.row);
        // SAFETY: passed on from the caller.
        return unsafe { write_all(wanted, row, outs) };
    }
    let table = reader.step_table()?.ok_or_else(|| no_row(reader, 0))?;
    let mut rest = wanted;
    while !rest.is_empty() {
        let (ranges, count) = blocks(table, rest);
        let read = reader.storage().read(&ranges)?;
        let fetched = Fetched::new(reader, table, &ranges, &read)?;
        let (now, after) = rest.split_at(count);
        // SAFETY: passed on from the caller.
        unsafe { write_all(now, |found| fetched.row(found.row), outs) }?;
        rest = after;
    }
    Ok(())
}

/// Plans one request: the blocks of the first rows, and how many rows those are. Adjacent blocks
/// become one range.
fn blocks(table: &StepTable, wanted: &[(usize, Found)]) -> (Vec<Range<u64>>, usize) {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let (mut bytes, mut count) = (0, 0);
    for (_, found) in wanted {
        let block = table.block(found.row / ROWS_PER_BLOCK);
        if ranges.last().is_none_or(|range| range.end < block.end) {
            bytes += block.end - block.start;
            if bytes > REQUEST_BYTES && count > 0 {
                break;
            }
            match ranges.last_mut() {
                Some(range) if range.end == block.start => range.end = block.end,
                _ => ranges.push(block),
            }
        }
        count += 1;
    }
    (ranges, count)
}

/// Fetched blocks, after verification.
struct Fetched<'a> {
    reader: &'a PackReader,
    rows_offset: u64,
    ranges: &'a [Range<u64>],
    rows: Vec<&'a [RowBytes]>,
}

impl<'a> Fetched<'a> {
    fn new(
        reader: &'a PackReader,
        table: &'a StepTable,
        ranges: &'a [Range<u64>],
        read: &'a [Vec<u8>],
    ) -> Result<Self> {
        let rows_offset = table.layout().rows_offset;
        let block_bytes = ROWS_PER_BLOCK as usize * STEP_ROW_BYTES;
        let verify = reader.options().verify;
        for (range, bytes) in ranges.iter().zip(read) {
            let first = (range.start - rows_offset) / block_bytes as u64;
            for (block, bytes) in (first..).zip(bytes.chunks(block_bytes)) {
                // Bytes that are fetched again may differ from those verified before.
                if verify != Verify::Never {
                    table.verify(block, bytes).map_err(|error| reader.about(error))?;
                }
            }
        }
        let rows = read.iter().map(|bytes| bytes.as_chunks().0).collect();
        Ok(Self { reader, rows_offset, ranges, rows })
    }

    fn row(&self, row: u64) -> Result<&'a RowBytes> {
        let offset = self.rows_offset + row * STEP_ROW_BYTES as u64;
        let position = self.ranges.partition_point(|range| range.end <= offset);
        let found = self.ranges.get(position).zip(self.rows.get(position));
        found
            .and_then(|(range, rows)| {
                let inside = offset.checked_sub(range.start)? / STEP_ROW_BYTES as u64;
                rows.get(inside as usize)
            })
            .ok_or_else(|| no_row(self.reader, row))
    }
}

/// # Safety
/// As for [`read`].
unsafe fn write_all<'a>(
    wanted: &[(usize, Found)],
    row: impl Fn(&Found) -> Result<&'a RowBytes>,
    outs: &[Out<'_>],
) -> Result<()> {
    let mut chunk = Chunk::new();
    let mut positions = [0; CHUNK];
    for group in wanted.chunks(CHUNK) {
        chunk.clear();
        for ((position, found), to) in group.iter().zip(&mut positions) {
            chunk.push(row(found)?, found.run);
            *to = *position;
        }
        // SAFETY: passed on from the caller.
        unsafe { chunk.write_to(&positions, outs) };
    }
    Ok(())
}
