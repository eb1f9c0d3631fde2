//! Runs and steps as lines of JSON.
//!
//! The output depends only on the run and the arguments. Floats are written in the shortest
//! form that parses to the same 32 bits.

use serde::ser::{Serialize, SerializeStruct, Serializer};

use super::{LEGAL, Run};
use crate::{Error, Result};

/// The format of boards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boards {
    /// As integers of up to 64 bits.
    Integers,
    /// As strings of sixteen digits, one per cell, for tools whose numbers are doubles.
    Hex,
}

/// Appends one line for the run to `out`, with `states` and `moves` if `with_lists` is set.
///
/// A float that JSON cannot store is `Invalid` and leaves `out` unchanged.
pub fn write_run_line(
    run: &Run,
    run_idx: u64,
    kind: &str,
    with_lists: bool,
    boards: Boards,
    out: &mut Vec<u8>,
) -> Result<()> {
    run.check()?;
    if !run.meta.elapsed_s.is_finite() {
        return Err(Error::Invalid(format!(
            "run {run_idx}: `elapsed_s` is {}, which is not JSON-serializable",
            run.meta.elapsed_s
        )));
    }
    write_line(&RunLine { run, run_idx, kind, with_lists, boards }, out)
}

/// Appends one line per step to `out`.
///
/// A float that JSON cannot store is `Invalid` and leaves `out` unchanged.
pub fn write_step_lines(run: &Run, run_idx: u64, boards: Boards, out: &mut Vec<u8>) -> Result<()> {
    run.check()?;
    let before = out.len();
    for (step, (&board, &chosen)) in run.boards.iter().zip(&run.moves).enumerate() {
        let branches = run.branches_at(step).map(|(given, values)| {
            std::array::from_fn(|mv| (given & LEGAL & 1 << mv != 0).then_some(values[mv]))
        });
        if let Some(bad) = branches.iter().flatten().flatten().find(|value| !value.is_finite()) {
            out.truncate(before);
            return Err(Error::Invalid(format!(
                "run {run_idx}, step {step}: a branch is {bad}, which is not JSON-serializable"
            )));
        }
        let pre_board = Board(board, boards);
        write_line(&StepLine { run_idx, step, pre_board, chosen, branches }, out)?;
    }
    Ok(())
}

fn write_line(line: &impl Serialize, out: &mut Vec<u8>) -> Result<()> {
    serde_json::to_writer(&mut *out, line).map_err(|error| Error::Invalid(error.to_string()))?;
    out.push(b'\n');
    Ok(())
}

struct RunLine<'a> {
    run: &'a Run,
    run_idx: u64,
    kind: &'a str,
    with_lists: bool,
    boards: Boards,
}

impl Serialize for RunLine<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let Self { run, boards, .. } = *self;
        let meta = &run.meta;
        let mut line = serializer.serialize_struct("Run", if self.with_lists { 11 } else { 9 })?;
        line.serialize_field("run_idx", &self.run_idx)?;
        line.serialize_field("kind", self.kind)?;
        line.serialize_field("steps", &meta.steps)?;
        line.serialize_field("start_unix_s", &meta.start_unix_s)?;
        line.serialize_field("elapsed_s", &meta.elapsed_s)?;
        line.serialize_field("max_score", &meta.max_score)?;
        line.serialize_field("highest_tile", &meta.highest_tile)?;
        line.serialize_field("engine", &meta.engine)?;
        line.serialize_field("final_board", &Board(run.final_board(), boards))?;
        if self.with_lists {
            line.serialize_field("states", &States(&run.boards, boards))?;
            line.serialize_field("moves", &run.moves)?;
        }
        line.end()
    }
}

struct StepLine {
    run_idx: u64,
    step: usize,
    pre_board: Board,
    chosen: u8,
    branches: Option<[Option<f32>; 4]>,
}

impl Serialize for StepLine {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut line = serializer.serialize_struct("Step", 5)?;
        line.serialize_field("run_idx", &self.run_idx)?;
        line.serialize_field("step_idx", &self.step)?;
        line.serialize_field("pre_board", &self.pre_board)?;
        line.serialize_field("chosen", &self.chosen)?;
        line.serialize_field("branches", &self.branches)?;
        line.end()
    }
}

struct States<'a>(&'a [u64], Boards);

impl Serialize for States<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|&board| Board(board, self.1)))
    }
}

struct Board(u64, Boards);

impl Serialize for Board {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match self.1 {
            Boards::Integers => serializer.serialize_u64(self.0),
            Boards::Hex => serializer.collect_str(&format_args!("{:016x}", self.0)),
        }
    }
}
