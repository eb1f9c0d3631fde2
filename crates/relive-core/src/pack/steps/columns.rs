//! From rows of 64 bytes to columns: the fields of a step, each where it is wanted.

use std::ptr;

use super::{RowBytes, RunOf};
use crate::runs::STEP_ROW_BYTES;
use crate::table::{ColumnShape, Out};

/// Rows that are copied column by column: few enough to stay near while they are.
pub(super) const CHUNK: usize = 64;

const fn fixed(row_bytes: usize) -> ColumnShape {
    ColumnShape::Fixed { row_bytes }
}

/// What the columns look like, in the order of [`super::STEP_COLUMNS`].
pub(super) const COLUMNS: [ColumnShape; 12] = [
    fixed(8),
    fixed(16),
    fixed(1),
    fixed(1),
    fixed(16),
    fixed(8),
    fixed(4),
    fixed(1),
    fixed(1),
    fixed(4),
    fixed(4),
    fixed(4),
];

/// Where fields are in a stored row: docs/format/runs.md, "The step row".
const BOARD: usize = 0;
const NEXT_BOARD: usize = 8;
const BRANCHES: usize = 16;
const REWARD: usize = 32;
const RUN: usize = 36;
const STEP: usize = 40;
const STEPS_LEFT: usize = 44;
const MOVE: usize = 48;
const LEGAL: usize = 49;
const LAST: usize = 50;
const TERMINAL: usize = 51;

const _: () = assert!(TERMINAL < STEP_ROW_BYTES);

/// Some rows on their way out.
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

    /// Takes in a row; at most [`CHUNK`] of them.
    #[inline]
    pub(super) fn push(&mut self, row: &'a RowBytes, run: RunOf) {
        self.rows[self.len] = row;
        self.runs[self.len] = run;
        self.len += 1;
    }

    /// Writes the rows to `outs`, from position `start` of each on. Meanwhile those of `next`
    /// are brought near, a few with each column: a core waits when it asks for many at once.
    ///
    /// # Safety
    /// Each `at` has an address for every row from `start` on, with room for a row of its
    /// column, which nobody else touches.
    pub(super) unsafe fn write(&self, start: usize, outs: &[Out<'_>], next: &Self) {
        let mut ahead = next.rows[..next.len].chunks(next.len.div_ceil(outs.len().max(1)).max(1));
        for out in outs {
            ahead.next().unwrap_or_default().iter().for_each(|row| prefetch(row));
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
        // SAFETY: passed on from the caller; each arm writes as many bytes as `COLUMNS` says.
        unsafe {
            match column {
                0 => copy::<BOARD, 8>(rows, at),
                1 => each(rows, at, |row| spread(u64::from_le_bytes(part::<BOARD, 8>(row)))),
                2 => copy::<MOVE, 1>(rows, at),
                3 => copy::<LEGAL, 1>(rows, at),
                4 => copy::<BRANCHES, 16>(rows, at),
                5 => copy::<NEXT_BOARD, 8>(rows, at),
                6 => copy::<REWARD, 4>(rows, at),
                // A boolean that is neither 0 nor 1 would surprise whoever reads it.
                7 => each(rows, at, |row| [u8::from(row[LAST] != 0)]),
                8 => each(rows, at, |row| [u8::from(row[TERMINAL] != 0)]),
                9 => copy::<STEPS_LEFT, 4>(rows, at),
                10 => {
                    for ((row, run), &to) in rows.iter().zip(&self.runs).zip(at) {
                        let run = run.value(u32::from_le_bytes(part::<RUN, 4>(row)));
                        put(run.to_le_bytes(), to);
                    }
                }
                11 => copy::<STEP, 4>(rows, at),
                // There are no other columns, so the table asks for none.
                _ => {}
            }
        }
    }
}

/// Asks for a row to be brought near; a hint, never a fault.
#[inline]
fn prefetch(row: &RowBytes) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch of any address is allowed.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(row.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = row;
}

/// # Safety
/// Each address has room for `N` bytes.
#[inline]
unsafe fn copy<const AT: usize, const N: usize>(rows: &[&RowBytes], at: &[*mut u8]) {
    // SAFETY: passed on from the caller.
    unsafe { each(rows, at, part::<AT, N>) };
}

/// # Safety
/// Each address has room for `N` bytes.
#[inline]
unsafe fn each<const N: usize>(
    rows: &[&RowBytes],
    at: &[*mut u8],
    field: impl Fn(&RowBytes) -> [u8; N],
) {
    for (row, &to) in rows.iter().zip(at) {
        // SAFETY: passed on from the caller.
        unsafe { put(field(row), to) };
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
fn part<const AT: usize, const N: usize>(row: &RowBytes) -> [u8; N] {
    const { assert!(AT + N <= STEP_ROW_BYTES) };
    std::array::from_fn(|k| row[AT + k])
}

/// The sixteen cells of a board, each in a byte of its own, in row order.
#[inline]
fn spread(board: u64) -> [u8; 16] {
    // The first cell is in the highest bits.
    let board = board.swap_bytes();
    let (low, high) = (spread_half(board as u32), spread_half((board >> 32) as u32));
    (u128::from(low) | u128::from(high) << 64).to_le_bytes()
}

/// Four bytes of two cells each, the first one high, as eight bytes.
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
    fn spreading_gives_the_cells() {
        let mut board = 0x0123_4567_89AB_CDEF_u64;
        for _ in 0..1000 {
            assert_eq!(spread(board), crate::runs::cells(board));
            board = board.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(7);
        }
    }
}
