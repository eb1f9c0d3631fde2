//! Runs and steps as lines of JSON.
//!
//! The output depends only on the run and the arguments. Floats are written in the shortest
//! form that parses to the same 32 bits.

use serde::{Serialize, Serializer};

use super::{LEGAL, Meta, Run};
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
    let line = RunLine {
        run_idx,
        kind,
        meta: &run.meta,
        final_board: Board(run.final_board(), boards),
        states: with_lists.then(|| run.boards.iter().map(|&board| Board(board, boards)).collect()),
        moves: with_lists.then_some(&run.moves),
    };
    write_line(&line, out)
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
                "run {run_idx}, step {step}: a branch value is {bad}, which is not \
                 JSON-serializable"
            )));
        }
        let pre_board = Board(board, boards);
        write_line(&StepLine { run_idx, step_idx: step, pre_board, chosen, branches }, out)?;
    }
    Ok(())
}

fn write_line(line: &impl Serialize, out: &mut Vec<u8>) -> Result<()> {
    serde_json::to_writer(&mut *out, line).map_err(|error| Error::Invalid(error.to_string()))?;
    out.push(b'\n');
    Ok(())
}

#[derive(Serialize)]
struct RunLine<'a> {
    run_idx: u64,
    kind: &'a str,
    #[serde(flatten)]
    meta: &'a Meta,
    final_board: Board,
    #[serde(skip_serializing_if = "Option::is_none")]
    states: Option<Vec<Board>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    moves: Option<&'a Vec<u8>>,
}

#[derive(Serialize)]
struct StepLine {
    run_idx: u64,
    step_idx: usize,
    pre_board: Board,
    chosen: u8,
    branches: Option<[Option<f32>; 4]>,
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
