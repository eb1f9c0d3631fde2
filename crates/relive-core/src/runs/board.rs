//! The rules of 2048, on a board of sixteen exponents in one integer.
//!
//! Cell `i` in row order is `(board >> (60 - 4 * i)) & 15`: the exponent of its tile, or 0 if
//! it is empty. Two tiles of exponent 15 do not merge: exponent 16 does not fit in four bits.

use std::sync::OnceLock;

/// The result of sliding each row to the left: the new row in 16 bits, a quarter of the sum of
/// the merged tiles in 15 (two merges are worth at most 2 × 2¹⁵), and whether a tile moved. For
/// the other directions the board is turned first.
type Rows = [u32; 1 << 16];

const REWARD_SHIFT: u32 = 16;
const REWARD_MASK: u32 = (1 << 15) - 1;
const MOVES_LEFT: u32 = 1 << 31;

/// Returns the board after sliding every tile in `direction` (0 up, 1 down, 2 left, 3 right), and
/// the sum of the merged tiles; `None` if nothing moves or the direction is invalid.
pub fn slide(board: u64, direction: u8) -> Option<(u64, u32)> {
    let rows = rows();
    let (after, reward) = match direction {
        0 => {
            let (after, reward) = slide_left(rows, transpose(board));
            (transpose(after), reward)
        }
        1 => {
            let (after, reward) = slide_left(rows, mirror(transpose(board)));
            (transpose(mirror(after)), reward)
        }
        2 => slide_left(rows, board),
        3 => {
            let (after, reward) = slide_left(rows, mirror(board));
            (mirror(after), reward)
        }
        _ => return None,
    };
    (after != board).then_some((after, reward))
}

/// Returns the moves that change the board: bit `i` is set for move `i`.
pub fn legal(board: u64) -> u8 {
    let rows = rows();
    let moves_left = |board: u64| {
        let any = each_row(board).fold(0, |any, row| any | rows[usize::from(row)]);
        u8::from(any & MOVES_LEFT != 0)
    };
    let columns = transpose(board);
    moves_left(columns)
        | moves_left(mirror(columns)) << 1
        | moves_left(board) << 2
        | moves_left(mirror(board)) << 3
}

/// Returns the exponents of the sixteen cells, in row order.
pub fn cells(board: u64) -> [u8; 16] {
    std::array::from_fn(|cell| (board >> (60 - 4 * cell) & 15) as u8)
}

fn slide_left(rows: &Rows, board: u64) -> (u64, u32) {
    each_row(board).fold((0, 0), |(after, reward), row| {
        let entry = rows[usize::from(row)];
        let merged = (entry >> REWARD_SHIFT & REWARD_MASK) * 4;
        (after << 16 | u64::from(entry as u16), reward + merged)
    })
}

/// Returns the four rows, the top one first.
fn each_row(board: u64) -> impl Iterator<Item = u16> {
    [48, 32, 16, 0].into_iter().map(move |shift| (board >> shift) as u16)
}

/// Swaps rows and columns.
fn transpose(board: u64) -> u64 {
    // First inside each quarter of two by two cells, then the quarters themselves.
    let inside = board & 0xF0F0_0F0F_F0F0_0F0F
        | (board & 0x0000_F0F0_0000_F0F0) << 12
        | (board & 0x0F0F_0000_0F0F_0000) >> 12;
    inside & 0xFF00_FF00_00FF_00FF
        | (inside & 0x00FF_00FF_0000_0000) >> 24
        | (inside & 0x0000_0000_FF00_FF00) << 24
}

/// Reverses every row.
fn mirror(board: u64) -> u64 {
    let bytes = (board & 0xF0F0_F0F0_F0F0_F0F0) >> 4 | (board & 0x0F0F_0F0F_0F0F_0F0F) << 4;
    (bytes & 0xFF00_FF00_FF00_FF00) >> 8 | (bytes & 0x00FF_00FF_00FF_00FF) << 8
}

fn rows() -> &'static Rows {
    static ROWS: OnceLock<Box<Rows>> = OnceLock::new();
    ROWS.get_or_init(|| {
        let mut rows = Box::new([0; 1 << 16]);
        for (row, entry) in (0..=u16::MAX).zip(rows.iter_mut()) {
            let (after, reward) = merge(row);
            let moves = if after == row { 0 } else { MOVES_LEFT };
            *entry = moves | (reward / 4) << REWARD_SHIFT | u32::from(after);
        }
        rows
    })
}

/// Returns a row after sliding left, and the sum of its merged tiles.
fn merge(row: u16) -> (u16, u32) {
    let mut out = [0_u16; 4];
    let (mut used, mut open, mut reward) = (0, false, 0);
    for cell in [row >> 12, row >> 8 & 15, row >> 4 & 15, row & 15] {
        if cell == 0 {
            continue;
        }
        if open && out[used - 1] == cell && cell < 15 {
            out[used - 1] += 1;
            reward += 1_u32 << (cell + 1);
            open = false;
        } else {
            out[used] = cell;
            used += 1;
            open = true;
        }
    }
    (out.iter().fold(0, |row, cell| row << 4 | cell), reward)
}
