//! One game of 2048: the run payloads v1 and v2, and the steps that training reads from them.
//!
//! Both versions parse into the same [`Run`]. v1 is fixed-width with a checksum and has no
//! branches; v2 is the postcard encoding, without magic or checksum, so its container must have
//! one. Input is untrusted: every length is compared with the available bytes before memory is
//! allocated, and malformed input is `Corrupt`, with the byte offset of the problem.
//! The specification is docs/format/runs.md.

mod board;
mod json;
mod steps;
#[cfg(test)]
mod tests;
mod v1;
mod v2;

use serde::Serialize;

use crate::{Error, Result};

pub use board::{cells, legal, slide};
pub use json::{Boards, write_run_line, write_step_lines};
pub(crate) use steps::offset;
pub use steps::{STEP_COLUMNS, STEP_ROW_BYTES, StepColumn, StepRow, project, project_at};
pub(crate) use v2::{Input, put_varint};

/// Steps between two checkpoints of an [`Outline`].
pub const CHECKPOINT_EVERY: u32 = 64;

/// Bit of [`Branches::given`] that is set if the step has branches.
const GIVEN: u8 = 1 << 4;

/// Bits of [`Branches::given`] that are set for legal moves.
const LEGAL: u8 = 0b1111;

/// An encoding of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Version {
    /// Fixed width, with magic and checksum, without branches.
    V1 = 1,
    /// Postcard, with branches.
    V2 = 2,
}

impl Version {
    /// Returns the version with this number; an unknown one is `Unsupported`.
    pub fn from_number(number: u64) -> Result<Self> {
        match number {
            1 => Ok(Self::V1),
            2 => Ok(Self::V2),
            _ => Err(Error::Unsupported(format!(
                "unknown run format version {number}, expected 1 or 2"
            ))),
        }
    }

    /// Returns the number of this version.
    pub const fn number(self) -> u8 {
        self as u8
    }
}

/// Returns the version of a payload: v1 if it begins with the magic of v1, else v2.
pub fn version_of(bytes: &[u8]) -> Version {
    if bytes.starts_with(&v1::MAGIC) { Version::V1 } else { Version::V2 }
}

/// Properties of a whole run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Meta {
    /// The number of moves.
    pub steps: u32,
    /// The start of the run, in seconds since 1970.
    pub start_unix_s: u64,
    /// The duration, in seconds.
    pub elapsed_s: f32,
    /// The score of the final board; not the sum of the merges.
    pub max_score: u64,
    /// The largest tile reached.
    pub highest_tile: u32,
    /// The name of the player, if known.
    pub engine: Option<String>,
}

/// The player's values of the moves, per step.
#[derive(Clone, Debug, Default)]
pub struct Branches {
    /// The value of each move, min–max normalised within its step; NaN where the move is
    /// illegal or the step has no branches.
    pub values: Vec<[f32; 4]>,
    /// Bit 4: the step has branches; bits 0 to 3: the moves that are legal.
    pub given: Vec<u8>,
}

/// One run, decoded.
///
/// The fields can be set freely; inconsistent ones are refused when the run is encoded.
#[derive(Clone, Debug)]
pub struct Run {
    /// Properties of the whole run.
    pub meta: Meta,
    /// The board before each step, and the final one: one more than there are steps. Cell `i`
    /// in row order is `(board >> (60 - 4 * i)) & 15`, the exponent of its tile; 0 is empty.
    pub boards: Vec<u64>,
    /// The move of each step: 0 up, 1 down, 2 left, 3 right.
    pub moves: Vec<u8>,
    /// `None` if no step has branches.
    pub branches: Option<Branches>,
}

impl Run {
    /// Parses a run of the version that [`version_of`] returns.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        Self::parse_as(version_of(bytes), bytes)
    }

    /// Parses `bytes`, which must be exactly one run of this version.
    pub fn parse_as(version: Version, bytes: &[u8]) -> Result<Self> {
        match version {
            Version::V1 => v1::parse(bytes),
            Version::V2 => v2::parse(bytes),
        }
    }

    /// Encodes the run in this version.
    ///
    /// A run parsed from v2 with integers in their shortest form encodes to the same bytes. An
    /// inconsistent run is `Invalid`, and so is one that v1 cannot store without loss.
    pub fn to_bytes(&self, version: Version) -> Result<Vec<u8>> {
        self.check()?;
        match version {
            Version::V1 => v1::encode(self),
            Version::V2 => Ok(v2::encode(self)),
        }
    }

    /// Returns the board after the last step; 0 if there are no boards.
    pub fn final_board(&self) -> u64 {
        self.boards.last().copied().unwrap_or(0)
    }

    /// Returns the branches of `step`: the bits of [`Branches::given`], and the values.
    fn branches_at(&self, step: usize) -> Option<(u8, [f32; 4])> {
        let branches = self.branches.as_ref()?;
        let given = *branches.given.get(step)?;
        (given & GIVEN != 0).then_some((given, *branches.values.get(step)?))
    }

    /// Checks that the fields are consistent.
    fn check(&self) -> Result<()> {
        let steps = self.moves.len();
        if self.boards.len() != steps + 1 {
            return Err(Error::Invalid(format!(
                "a run with {steps} moves must have {} boards, got {}",
                steps + 1,
                self.boards.len()
            )));
        }
        if self.meta.steps as usize != steps {
            return Err(Error::Invalid(format!(
                "`steps` must equal the number of moves, {steps}, got {}",
                self.meta.steps
            )));
        }
        if let Some(step) = self.moves.iter().position(|&mv| mv > 3) {
            return Err(Error::Invalid(format!(
                "step {step}: the move is {}, expected 0 to 3",
                self.moves[step]
            )));
        }
        let Some(Branches { values, given }) = &self.branches else { return Ok(()) };
        if values.len() != steps || given.len() != steps {
            return Err(Error::Invalid(format!(
                "a run with {steps} moves must have one row of branch values and one branch mask per \
                 move, got {} rows and {} masks",
                values.len(),
                given.len()
            )));
        }
        for (step, (values, &given)) in values.iter().zip(given).enumerate() {
            let known = given == 0 || (given & GIVEN != 0 && given & !(GIVEN | LEGAL) == 0);
            let silent = (0..4).all(|mv| given >> mv & 1 != 0 || values[mv].is_nan());
            if !known || !silent {
                return Err(Error::Invalid(format!(
                    "step {step}: the branch values {values:?} do not match the branch mask {given:#07b}"
                )));
            }
        }
        Ok(())
    }
}

/// A summary of a payload, made in one pass.
#[derive(Clone, Debug)]
pub struct Outline {
    /// Properties of the whole run.
    pub meta: Meta,
    /// The board after the last step.
    pub final_board: u64,
    /// The offset in the payload of every [`CHECKPOINT_EVERY`]th step.
    pub checkpoints: Vec<u32>,
}

/// Checks all that [`Run::parse_as`] checks, without building arrays, and summarizes the run.
///
/// A payload whose offsets would not fit 32 bits is `TooLarge`.
pub fn outline(version: Version, bytes: &[u8]) -> Result<Outline> {
    if u32::try_from(bytes.len()).is_err() {
        return Err(Error::TooLarge(format!(
            "a run of {} bytes exceeds the limit of {} bytes",
            bytes.len(),
            u32::MAX
        )));
    }
    match version {
        Version::V1 => v1::outline(bytes),
        Version::V2 => v2::outline(bytes),
    }
}
