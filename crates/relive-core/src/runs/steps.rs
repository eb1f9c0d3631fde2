//! Single steps: the stored step row, and the columns that a batch of steps has.

use super::{LEGAL, Run, Version, board, v1, v2};
use crate::{Error, Result};

/// The size of a [`StepRow`] on disk: docs/format/runs.md, "The step row".
pub const STEP_ROW_BYTES: usize = 64;

/// The offset of each field in a stored row.
pub(crate) mod offset {
    pub(crate) const BOARD: usize = 0;
    pub(crate) const NEXT_BOARD: usize = 8;
    pub(crate) const BRANCHES: usize = 16;
    pub(crate) const REWARD: usize = 32;
    pub(crate) const RUN: usize = 36;
    pub(crate) const STEP: usize = 40;
    pub(crate) const STEPS_LEFT: usize = 44;
    pub(crate) const MOVE: usize = 48;
    pub(crate) const LEGAL: usize = 49;
    pub(crate) const LAST: usize = 50;
    pub(crate) const TERMINAL: usize = 51;
}

/// One column of a batch of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepColumn {
    /// The name of the field.
    pub name: &'static str,
    /// The element type, as NumPy writes it.
    pub dtype: &'static str,
    /// The shape of one row.
    pub shape: &'static [usize],
    /// Bytes of one row.
    pub row_bytes: usize,
}

const fn column(
    name: &'static str,
    dtype: &'static str,
    shape: &'static [usize],
    row_bytes: usize,
) -> StepColumn {
    StepColumn { name, dtype, shape, row_bytes }
}

/// The columns of a batch of steps.
pub const STEP_COLUMNS: [StepColumn; 12] = [
    column("board", "<u8", &[], 8),
    column("cells", "u1", &[4, 4], 16),
    column("move", "u1", &[], 1),
    column("legal", "u1", &[], 1),
    column("branches", "<f4", &[4], 16),
    column("next_board", "<u8", &[], 8),
    column("reward", "<u4", &[], 4),
    column("last", "?", &[], 1),
    column("terminal", "?", &[], 1),
    column("steps_left", "<u4", &[], 4),
    column("run", "<u4", &[], 4),
    column("step", "<u4", &[], 4),
];

/// One step with the fields that training needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepRow {
    /// The board before the step.
    pub board: u64,
    /// The board after the step, including the added tile.
    pub next_board: u64,
    /// The player's value of each move; NaN where the move is illegal or has no value.
    pub branches: [f32; 4],
    /// The sum of the tiles that the move merged.
    pub reward: u32,
    /// The position of the run.
    pub run: u32,
    /// The position of the step in its run.
    pub step: u32,
    /// The number of steps of the run after this one.
    pub steps_left: u32,
    /// The move: 0 up, 1 down, 2 left, 3 right.
    pub mv: u8,
    /// Bit `i` is set if move `i` is legal: from the branches, or from the board if the step has
    /// no branches.
    pub legal: u8,
    /// 1 for the last step of its run.
    pub last: u8,
    /// 1 for the last step of its run if no move is possible after it.
    pub terminal: u8,
}

impl StepRow {
    /// Encodes the row as it is stored: little-endian, with zeros after the last field.
    pub fn to_bytes(&self) -> [u8; STEP_ROW_BYTES] {
        let mut out = [0; STEP_ROW_BYTES];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(offset::BOARD, &self.board.to_le_bytes());
        put(offset::NEXT_BOARD, &self.next_board.to_le_bytes());
        put(offset::BRANCHES, self.branches.map(f32::to_le_bytes).as_flattened());
        put(offset::REWARD, &self.reward.to_le_bytes());
        put(offset::RUN, &self.run.to_le_bytes());
        put(offset::STEP, &self.step.to_le_bytes());
        put(offset::STEPS_LEFT, &self.steps_left.to_le_bytes());
        put(offset::MOVE, &[self.mv]);
        put(offset::LEGAL, &[self.legal]);
        put(offset::LAST, &[self.last]);
        put(offset::TERMINAL, &[self.terminal]);
        out
    }
}

/// The fields of one step that a payload stores.
struct StoredStep {
    board: u64,
    next_board: u64,
    mv: u8,
    branches: Option<(u8, [f32; 4])>,
}

impl StoredStep {
    /// Returns the row of step `step` of a run with `steps` steps.
    #[inline]
    fn row(self, run: u32, step: u32, steps: u32) -> StepRow {
        let steps_left = steps.saturating_sub(step).saturating_sub(1);
        let last = steps_left == 0;
        let (legal, branches) = match self.branches {
            Some((given, values)) => (given & LEGAL, values),
            None => (board::legal(self.board), [f32::NAN; 4]),
        };
        StepRow {
            board: self.board,
            next_board: self.next_board,
            branches,
            reward: board::slide(self.board, self.mv).map_or(0, |(_, reward)| reward),
            run,
            step,
            steps_left,
            mv: self.mv,
            legal,
            last: u8::from(last),
            terminal: u8::from(last && board::legal(self.next_board) == 0),
        }
    }
}

/// Appends a row for every step of `run` to `out`.
pub fn project(run: &Run, run_index: u32, out: &mut Vec<StepRow>) {
    let steps = run.moves.len() as u32;
    out.reserve(run.moves.len());
    let boards = run.boards.windows(2);
    out.extend(boards.zip(&run.moves).zip(0..).map(|((boards, &mv), step)| {
        let branches = run.branches_at(step as usize);
        StoredStep { board: boards[0], next_board: boards[1], mv, branches }
            .row(run_index, step, steps)
    }));
}

/// Returns the row of one step, decoded forward from a checkpoint (a step, and the offset in the
/// payload where that step begins).
///
/// `bytes` is the payload from its byte `base` on. For v2 it may end after the board that
/// follows the step; ten bytes are always enough for that board. For v1 it must be the whole
/// payload, and its checksum is not verified. Truncated or malformed bytes, and a wrong
/// checkpoint, are `Corrupt`; a step that the run does not have is `OutOfRange`.
pub fn project_at(
    version: Version,
    bytes: &[u8],
    base: u32,
    checkpoint: (u32, u32),
    step: u32,
    steps: u32,
    run_index: u32,
) -> Result<StepRow> {
    if step >= steps {
        return Err(Error::OutOfRange(format!("step {step} is out of range for {steps} steps")));
    }
    let (first, offset) = checkpoint;
    let Some(skip) = step.checked_sub(first) else {
        return Err(Error::Corrupt(format!(
            "the stored offset for step {step} belongs to the later step {first}"
        )));
    };
    let stored = match version {
        Version::V1 => fixed(bytes, base, checkpoint, step as usize, steps)?,
        Version::V2 => {
            let start = offset.checked_sub(base).map(|start| start as usize);
            let Some(part) = start.and_then(|start| bytes.get(start..)) else {
                return Err(Error::Corrupt(format!(
                    "the stored offset of step {first} is {offset}, expected {base} to {}",
                    u64::from(base) + bytes.len() as u64
                )));
            };
            let mut input = v2::Input::new(part, offset as usize);
            for _ in 0..skip {
                input.step()?;
            }
            let found = input.step()?;
            StoredStep {
                board: found.board,
                next_board: input.board()?,
                mv: found.mv,
                branches: (found.given != 0).then_some((found.given, found.values)),
            }
        }
    };
    Ok(stored.row(run_index, step, steps))
}

/// Returns a step of a v1 payload.
fn fixed(
    bytes: &[u8],
    base: u32,
    checkpoint: (u32, u32),
    step: usize,
    steps: u32,
) -> Result<StoredStep> {
    if base != 0 {
        return Err(Error::Corrupt(format!(
            "a run in format version 1 must be decoded from offset 0, got offset {base}"
        )));
    }
    let parts = v1::Fields::of(bytes)?;
    let (first, offset) = checkpoint;
    let expected = parts.boards_at as u64 + 8 * u64::from(first);
    if parts.meta.steps != steps || u64::from(offset) != expected {
        return Err(Error::Corrupt(format!(
            "the index stores {steps} steps with step {first} at offset {offset}, but the run has \
             {} steps with step {first} at offset {expected}",
            parts.meta.steps
        )));
    }
    let stored = parts.board(step).zip(parts.board(step + 1)).zip(parts.moves.get(step).copied());
    match stored {
        Some(((board, next_board), mv @ 0..=3)) => {
            Ok(StoredStep { board, next_board, mv, branches: None })
        }
        _ => Err(parts.bad_move(step)),
    }
}
