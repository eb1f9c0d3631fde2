//! One game of 2048 as bytes: the run payloads v1 and v2, and what training wants of them.
//!
//! Both versions parse into the same [`Run`]. v1 is fixed-width with a checksum and has no
//! branches; v2 is the postcard encoding, without magic or checksum, so whoever stores it
//! covers it. Bytes are hostile: every length is checked against what is there before memory
//! is asked for, and what does not hold is `Corrupt`, with the byte where it was noticed.
//! The specification is docs/format/runs.md.

mod board;
mod json;
mod steps;
#[cfg(test)]
mod tests;
mod v1;
mod v2;

use crate::{Error, Result};

pub use board::{cells, legal, slide};
pub use json::{Boards, write_run_line, write_step_lines};
pub use steps::{STEP_ROW_BYTES, StepRow, project, project_at};

/// Steps between two checkpoints of an [`Outline`].
pub const CHECKPOINT_EVERY: u32 = 64;

/// Bit of [`Branches::given`] that says that the step has branches.
const GIVEN: u8 = 1 << 4;

/// Bits of [`Branches::given`] that say which moves are legal.
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
    /// The version with this number; one that is not known here is `Unsupported`.
    pub fn from_number(number: u64) -> Result<Self> {
        match number {
            1 => Ok(Self::V1),
            2 => Ok(Self::V2),
            _ => Err(Error::Unsupported(format!(
                "runs have no version {number} that is known here: choose 1 or 2"
            ))),
        }
    }

    /// The number that stands for this version.
    pub const fn number(self) -> u8 {
        self as u8
    }
}

/// The version that these bytes are of: v1 says so itself, everything else is v2.
pub fn version_of(bytes: &[u8]) -> Version {
    if bytes.starts_with(&v1::MARK) { Version::V1 } else { Version::V2 }
}

/// What is known of a run as a whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Meta {
    /// Moves made.
    pub steps: u32,
    /// When the run began, in seconds since 1970.
    pub start_unix_s: u64,
    /// How long it took, in seconds.
    pub elapsed_s: f32,
    /// The score that the final board is worth; not the sum of the merges.
    pub max_score: u64,
    /// The largest tile reached.
    pub highest_tile: u32,
    /// Who played, where it is known.
    pub engine: Option<String>,
}

/// What the player thought of each move, per step.
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
/// The fields are free to set; what does not fit together is refused when it is encoded.
#[derive(Clone, Debug)]
pub struct Run {
    /// What is known of it as a whole.
    pub meta: Meta,
    /// The board before each step, and the final one: one more than there are steps. Cell `i`
    /// in row order is `(board >> (60 - 4 * i)) & 15`, the exponent of its tile; 0 is empty.
    pub boards: Vec<u64>,
    /// The move of each step: 0 up, 1 down, 2 left, 3 right.
    pub moves: Vec<u8>,
    /// None when no step has any.
    pub branches: Option<Branches>,
}

impl Run {
    /// The run in `bytes`, of the version that [`version_of`] finds.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        Self::parse_as(version_of(bytes), bytes)
    }

    /// The run in `bytes`, all of which must be one run of this version.
    pub fn parse_as(version: Version, bytes: &[u8]) -> Result<Self> {
        match version {
            Version::V1 => v1::parse(bytes),
            Version::V2 => v2::parse(bytes),
        }
    }

    /// The run as bytes of this version.
    ///
    /// What was parsed from v2 with its integers in their shortest form comes out byte for
    /// byte. A run whose parts do not fit together is `Invalid`, and so is one of which v1
    /// would lose something.
    pub fn to_bytes(&self, version: Version) -> Result<Vec<u8>> {
        self.check()?;
        match version {
            Version::V1 => v1::encode(self),
            Version::V2 => Ok(v2::encode(self)),
        }
    }

    /// The board after the last step; 0 where there are no boards.
    pub fn final_board(&self) -> u64 {
        self.boards.last().copied().unwrap_or(0)
    }

    /// What the player thought at `step`: the bits of [`Branches::given`], and the values.
    fn branches_at(&self, step: usize) -> Option<(u8, [f32; 4])> {
        let branches = self.branches.as_ref()?;
        let given = *branches.given.get(step)?;
        (given & GIVEN != 0).then_some((given, *branches.values.get(step)?))
    }

    /// Refuses parts that do not fit together.
    fn check(&self) -> Result<()> {
        let steps = self.moves.len();
        if self.boards.len() != steps + 1 {
            return Err(Error::Invalid(format!(
                "a run of {steps} moves has {} boards, not {}",
                steps + 1,
                self.boards.len()
            )));
        }
        if self.meta.steps as usize != steps {
            return Err(Error::Invalid(format!(
                "a run of {steps} moves says that it has {} steps",
                self.meta.steps
            )));
        }
        if let Some(step) = self.moves.iter().position(|&mv| mv > 3) {
            return Err(Error::Invalid(format!(
                "step {step}: the move is {}, not 0 to 3",
                self.moves[step]
            )));
        }
        let Some(Branches { values, given }) = &self.branches else { return Ok(()) };
        if values.len() != steps || given.len() != steps {
            return Err(Error::Invalid(format!(
                "a run of {steps} moves has branches for {} steps, of which {} say what is given",
                values.len(),
                given.len()
            )));
        }
        for (step, (values, &given)) in values.iter().zip(given).enumerate() {
            let known = given == 0 || (given & GIVEN != 0 && given & !(GIVEN | LEGAL) == 0);
            let silent = (0..4).all(|mv| given >> mv & 1 != 0 || values[mv].is_nan());
            if !known || !silent {
                return Err(Error::Invalid(format!(
                    "step {step}: the branches {values:?} do not fit what is given, {given:#07b}"
                )));
            }
        }
        Ok(())
    }
}

/// What one pass over a payload tells.
#[derive(Clone, Debug)]
pub struct Outline {
    /// What is known of the run as a whole.
    pub meta: Meta,
    /// The board after the last step.
    pub final_board: u64,
    /// Where in the payload the board of every [`CHECKPOINT_EVERY`]th step begins.
    pub checkpoints: Vec<u32>,
}

/// Checks everything that [`Run::parse_as`] checks, without building arrays.
///
/// A payload whose offsets would not fit 32 bits is `TooLarge`.
pub fn outline(version: Version, bytes: &[u8]) -> Result<Outline> {
    if u32::try_from(bytes.len()).is_err() {
        return Err(Error::TooLarge(format!(
            "a run of {} bytes is over the limit of {}",
            bytes.len(),
            u32::MAX
        )));
    }
    match version {
        Version::V1 => v1::outline(bytes),
        Version::V2 => v2::outline(bytes),
    }
}
