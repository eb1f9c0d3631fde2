//! Copies the fields of stored step rows to columns.

use std::ptr;

use super::{RowBytes, RunOf};
use crate::gather::prefetch;
use crate::runs::offset::{
    BOARD, BRANCHES, LAST, LEGAL, MOVE, NEXT_BOARD, REWARD, RUN, STEP, STEPS_LEFT, TERMINAL,
};
use crate::runs::{STEP_COLUMNS, STEP_ROW_BYTES};
use crate::table::{ColumnShape, Out};

/// Rows that are copied together, column by column: few enough to stay in cache.
pub(super) const CHUNK: usize = 64;

/// The shapes of [`STEP_COLUMNS`].
pub(super) const COLUMNS: [ColumnShape; STEP_COLUMNS.len()] = {
    let mut shapes = [ColumnShape::Fixed { row_bytes: 0 }; STEP_COLUMNS.len()];
    let mut column = 0;
    while column < shapes.len() {
        shapes[column] = ColumnShape::Fixed { row_bytes: STEP_COLUMNS[column].row_bytes };
        column += 1;
    }
    shapes
};

/// Rows to be copied, with the values of column `run`.
pub(super) struct Chunk<'a> {
    rows: [&'a RowBytes; CHUNK],
    runs: [RunOf; CHUNK],
    len: usize,
}

impl<'a> Chunk<'a> {
    pub(super) fn new() -> Self {
        const EMPTY: &RowBytes = &[0; STEP_ROW_BYTES];
        Self { rows: [EMPTY; CHUNK], runs: [RunOf::exactly(0); CHUNK], len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn clear(&mut self) {
        self.len = 0;
    }

    /// Adds a row; at most [`CHUNK`] fit.
    #[inline]
    pub(super) fn push(&mut self, row: &'a RowBytes, run: RunOf) {
        self.rows[self.len] = row;
        self.runs[self.len] = run;
        self.len += 1;
    }

    /// Writes the rows to `outs`, from position `start` of each on. Meanwhile the rows of `next`
    /// are prefetched, a few with each column: a core stalls if it prefetches many at once.
    ///
    /// # Safety
    /// Each `at` has an address for every row from `start` on, with room for a row of its
    /// column, which nothing else accesses.
    pub(super) unsafe fn write(&self, start: usize, outs: &[Out<'_>], next: &Self) {
        let mut ahead = next.rows[..next.len].chunks(next.len.div_ceil(outs.len().max(1)).max(1));
        for out in outs {
            ahead.next().unwrap_or_default().iter().for_each(|row| prefetch(row.as_ptr(), 1));
            // SAFETY: passed on from the caller.
            unsafe { self.write_column(out.column, &out.at[start..start + self.len]) };
        }
    }

    /// Writes row `k` to position `positions[k]` of each of `outs`.
    ///
    /// # Safety
    /// As for [`write`](Self::write), for these positions.
    pub(super) unsafe fn write_to(&self, positions: &[usize], outs: &[Out<'_>]) {
        let mut at = [ptr::null_mut(); CHUNK];
        for out in outs {
            for (to, &position) in at.iter_mut().zip(&positions[..self.len]) {
                *to = out.at[position];
            }
            // SAFETY: passed on from the caller.
            unsafe { self.write_column(out.column, &at[..self.len]) };
        }
    }

    /// # Safety
    /// `at` has an address for each row with room for a row of this column.
    unsafe fn write_column(&self, column: usize, at: &[*mut u8]) {
        let rows = &self.rows[..self.len];
        // SAFETY: passed on from the caller; each arm writes the bytes that `STEP_COLUMNS` states.
        unsafe {
            match column {
                0 => copy::<BOARD, 8>(rows, at),
                1 => each(rows, at, |row| spread(u64::from_le_bytes(field::<BOARD, 8>(row)))),
                2 => copy::<MOVE, 1>(rows, at),
                3 => copy::<LEGAL, 1>(rows, at),
                4 => copy::<BRANCHES, 16>(rows, at),
                5 => copy::<NEXT_BOARD, 8>(rows, at),
                6 => copy::<REWARD, 4>(rows, at),
                // A NumPy boolean must be 0 or 1.
                7 => each(rows, at, |row| [u8::from(row[LAST] != 0)]),
                8 => each(rows, at, |row| [u8::from(row[TERMINAL] != 0)]),
                9 => copy::<STEPS_LEFT, 4>(rows, at),
                10 => {
                    for ((row, run), &to) in rows.iter().zip(&self.runs).zip(at) {
                        let run = run.value(u32::from_le_bytes(field::<RUN, 4>(row)));
                        put(run.to_le_bytes(), to);
                    }
                }
                11 => copy::<STEP, 4>(rows, at),
                // The table asks only for existing columns.
                _ => {}
            }
        }
    }
}

/// # Safety
/// Each address has room for `N` bytes.
#[inline]
unsafe fn copy<const AT: usize, const N: usize>(rows: &[&RowBytes], at: &[*mut u8]) {
    // SAFETY: passed on from the caller.
    unsafe { each(rows, at, field::<AT, N>) };
}

/// # Safety
/// Each address has room for `N` bytes.
#[inline]
unsafe fn each<const N: usize>(
    rows: &[&RowBytes],
    at: &[*mut u8],
    value: impl Fn(&RowBytes) -> [u8; N],
) {
    for (row, &to) in rows.iter().zip(at) {
        // SAFETY: passed on from the caller.
        unsafe { put(value(row), to) };
    }
}

/// # Safety
/// The address has room for `N` bytes.
#[inline]
unsafe fn put<const N: usize>(bytes: [u8; N], to: *mut u8) {
    // SAFETY: passed on from the caller; bytes need no alignment.
    unsafe { to.cast::<[u8; N]>().write_unaligned(bytes) };
}

#[inline]
fn field<const AT: usize, const N: usize>(row: &RowBytes) -> [u8; N] {
    const { assert!(AT + N <= STEP_ROW_BYTES) };
    std::array::from_fn(|k| row[AT + k])
}

/// Returns the sixteen cells of a board, each in its own byte, in row order.
#[inline]
fn spread(board: u64) -> [u8; 16] {
    // The first cell is in the highest bits.
    let board = board.swap_bytes();
    let (low, high) = (spread_half(board as u32), spread_half((board >> 32) as u32));
    (u128::from(low) | u128::from(high) << 64).to_le_bytes()
}

/// Spreads four bytes of two cells each, the first cell high, to eight bytes.
#[inline]
fn spread_half(cells: u32) -> u64 {
    let pairs = u64::from(cells);
    let pairs = (pairs | pairs << 16) & 0x0000_FFFF_0000_FFFF;
    let pairs = (pairs | pairs << 8) & 0x00FF_00FF_00FF_00FF;
    (pairs >> 4 | pairs << 8) & 0x0F0F_0F0F_0F0F_0F0F
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_returns_the_cells() {
        let mut board = 0x0123_4567_89AB_CDEF_u64;
        for _ in 0..1000 {
            assert_eq!(spread(board), crate::runs::cells(board));
            board = board.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(7);
        }
    }
}
