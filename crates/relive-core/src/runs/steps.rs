//! Single steps, as training samples them.

use super::{LEGAL, Run, Version, board, v1, v2};
use crate::{Error, Result};

/// The size of a [`StepRow`] on disk: docs/format/runs.md, "The step row".
pub const STEP_ROW_BYTES: usize = 64;

/// One step as training sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepRow {
    /// The board before the step.
    pub board: u64,
    /// The board after it, with the tile that was added.
    pub next_board: u64,
    /// What the player thought of each move; NaN where it is illegal, or nothing is known.
    pub branches: [f32; 4],
    /// The sum of the tiles that the move merged.
    pub reward: u32,
    /// The position of the run.
    pub run: u32,
    /// The position of the step in its run.
    pub step: u32,
    /// Steps of the run after this one.
    pub steps_left: u32,
    /// The move: 0 up, 1 down, 2 left, 3 right.
    pub mv: u8,
    /// Bit `i`: move `i` is legal. As the player said, or from the board where it said nothing.
    pub legal: u8,
    /// 1 for the last step of its run.
    pub last: u8,
    /// 1 for the last step of its run when no move is possible after it.
    pub terminal: u8,
}

impl StepRow {
    /// The row on disk; little-endian, in the order of the fields, with twelve zeros behind.
    pub fn to_bytes(&self) -> [u8; STEP_ROW_BYTES] {
        let mut out = [0; STEP_ROW_BYTES];
        out[0..8].copy_from_slice(&self.board.to_le_bytes());
        out[8..16].copy_from_slice(&self.next_board.to_le_bytes());
        for (slot, value) in out[16..32].as_chunks_mut().0.iter_mut().zip(self.branches) {
            *slot = value.to_le_bytes();
        }
        out[32..36].copy_from_slice(&self.reward.to_le_bytes());
        out[36..40].copy_from_slice(&self.run.to_le_bytes());
        out[40..44].copy_from_slice(&self.step.to_le_bytes());
        out[44..48].copy_from_slice(&self.steps_left.to_le_bytes());
        out[48..52].copy_from_slice(&[self.mv, self.legal, self.last, self.terminal]);
        out
    }

    /// The row that [`to_bytes`](Self::to_bytes) gave.
    pub fn from_bytes(bytes: &[u8; STEP_ROW_BYTES]) -> Self {
        let (words, _) = bytes.as_chunks::<4>();
        let long =
            |at: usize| u64::from(u32_of(words[at])) | u64::from(u32_of(words[at + 1])) << 32;
        Self {
            board: long(0),
            next_board: long(2),
            branches: std::array::from_fn(|mv| f32::from_le_bytes(words[4 + mv])),
            reward: u32_of(words[8]),
            run: u32_of(words[9]),
            step: u32_of(words[10]),
            steps_left: u32_of(words[11]),
            mv: bytes[48],
            legal: bytes[49],
            last: bytes[50],
            terminal: bytes[51],
        }
    }
}

const fn u32_of(word: [u8; 4]) -> u32 {
    u32::from_le_bytes(word)
}

/// What a payload says of one step.
struct Told {
    board: u64,
    next_board: u64,
    mv: u8,
    branches: Option<(u8, [f32; 4])>,
}

impl Told {
    /// The row of step `step` of `steps`.
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

/// Puts a row for every step of `run` behind what is in `out`.
pub fn project(run: &Run, run_index: u32, out: &mut Vec<StepRow>) {
    let steps = run.moves.len() as u32;
    out.reserve(run.moves.len());
    let boards = run.boards.windows(2);
    out.extend(boards.zip(&run.moves).zip(0..).map(|((boards, &mv), step)| {
        let branches = run.branches_at(step as usize);
        Told { board: boards[0], next_board: boards[1], mv, branches }.row(run_index, step, steps)
    }));
}

/// The row of one step, decoded forward from a checkpoint (its step, and where in the payload
/// that step begins).
///
/// `bytes` is the payload from its byte `base` on. For v2 it may end behind the board that
/// follows the step; ten bytes are always enough for that board. For v1 it is the whole
/// payload, whose checksum is not looked at. What is short or malformed, or is not where the
/// checkpoint says, is `Corrupt`; a step that the run does not have is `OutOfRange`.
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
        return Err(Error::OutOfRange(format!("step {step} of a run of {steps} steps")));
    }
    let (first, offset) = checkpoint;
    let Some(skip) = step.checked_sub(first) else {
        return Err(Error::Corrupt(format!("a checkpoint at step {first} is behind step {step}")));
    };
    let told = match version {
        Version::V1 => fixed(bytes, base, checkpoint, step as usize, steps)?,
        Version::V2 => {
            let start = offset.checked_sub(base).map(|start| start as usize);
            let Some(part) = start.and_then(|start| bytes.get(start..)) else {
                return Err(Error::Corrupt(format!(
                    "a checkpoint at byte {offset} is outside of the {} bytes from byte {base} on",
                    bytes.len()
                )));
            };
            let mut input = v2::Input::new(part, offset as usize);
            for _ in 0..skip {
                input.step()?;
            }
            let found = input.step()?;
            Told {
                board: found.board,
                next_board: input.board()?,
                mv: found.mv,
                branches: (found.given != 0).then_some((found.given, found.values)),
            }
        }
    };
    Ok(told.row(run_index, step, steps))
}

/// A step of a v1 payload.
fn fixed(bytes: &[u8], base: u32, checkpoint: (u32, u32), step: usize, steps: u32) -> Result<Told> {
    if base != 0 {
        return Err(Error::Corrupt(format!("a run v1 is read whole, not from byte {base} on")));
    }
    let parts = v1::Parts::of(bytes)?;
    let (first, offset) = checkpoint;
    let expected = parts.boards_at as u64 + 8 * u64::from(first);
    if parts.meta.steps != steps || u64::from(offset) != expected {
        return Err(Error::Corrupt(format!(
            "a run v1 of {} steps has step {first} at byte {expected}; {steps} steps and byte \
             {offset} were told",
            parts.meta.steps
        )));
    }
    let told = parts.board(step).zip(parts.board(step + 1)).zip(parts.moves.get(step).copied());
    match told {
        Some(((board, next_board), mv @ 0..=3)) => {
            Ok(Told { board, next_board, mv, branches: None })
        }
        _ => Err(parts.bad_move(step)),
    }
}
