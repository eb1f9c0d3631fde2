//! Run v2: the postcard encoding, with branches.

use super::{Branches, CHECKPOINT_EVERY, GIVEN, Meta, Outline, Run, Version, version_of};
use crate::{Error, Result};

/// The fewest bytes of a step: board, move and the tag of its branches.
const LEAST_STEP_BYTES: u64 = 3;

/// The most bytes of a varint of 32 and of 64 bits.
const MOST_BYTES_32: usize = 5;
const MOST_BYTES_64: usize = 10;

/// One stored step.
pub(super) struct Step {
    pub board: u64,
    pub mv: u8,
    /// As in [`Branches::given`].
    pub given: u8,
    /// NaN where the move is illegal or the step has no branches.
    pub values: [f32; 4],
}

/// Reads forward through a payload, or through the bytes of one from `base` on.
pub(crate) struct Input<'a> {
    rest: &'a [u8],
    /// The offset in the payload where `rest` ends.
    end: usize,
}

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8], base: usize) -> Self {
        Self { rest: bytes, end: base.saturating_add(bytes.len()) }
    }

    /// Returns the offset of the next byte in the payload.
    fn at(&self) -> usize {
        self.end - self.rest.len()
    }

    /// Whether all bytes were read.
    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    #[cold]
    fn bad(&self, text: impl std::fmt::Display) -> Error {
        Error::Corrupt(format!(
            "the data of the run (format version 2) is damaged at byte {}: {text}",
            self.at()
        ))
    }

    #[cold]
    fn cut(&self, what: &str) -> Error {
        let at = self.end;
        Error::Corrupt(format!(
            "the data of the run (format version 2) is damaged at byte {at}: the data ends inside {what}"
        ))
    }

    pub(crate) fn take<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        let Some((head, rest)) = self.rest.split_first_chunk() else { return Err(self.cut(what)) };
        self.rest = rest;
        Ok(*head)
    }

    #[inline]
    pub(crate) fn u64(&mut self, what: &str) -> Result<u64> {
        // Eight bytes at once, unless the payload ends before that.
        let Some((&head, after)) = self.rest.split_first_chunk() else {
            return self.varint(u64::BITS, what);
        };
        let word = u64::from_le_bytes(head);
        let ends = !word & 0x8080_8080_8080_8080;
        if ends != 0 {
            // The mask covers all bits up to the end of the integer.
            let inside = ends ^ (ends - 1);
            let bytes = (ends.trailing_zeros() / 8 + 1) as usize;
            self.rest = &self.rest[bytes..];
            return Ok(joined(word & inside));
        }
        match *after {
            [ninth @ 0..=0x7F, ref rest @ ..] => {
                self.rest = rest;
                Ok(joined(word) | u64::from(ninth) << 56)
            }
            [ninth, tenth @ 0..=1, ref rest @ ..] => {
                self.rest = rest;
                Ok(joined(word) | u64::from(ninth & 0x7F) << 56 | u64::from(tenth) << 63)
            }
            _ => self.varint(u64::BITS, what),
        }
    }

    fn u32(&mut self, what: &str) -> Result<u32> {
        // `varint` checked that the value fits the width.
        self.varint(u32::BITS, what).map(|value| value as u32)
    }

    /// Reads an integer of at most `bits` bits, seven to a byte, the lowest first. As in postcard,
    /// longer forms than needed are accepted, up to the most bytes that the width can need.
    fn varint(&mut self, bits: u32, what: &str) -> Result<u64> {
        let most = if bits == u32::BITS { MOST_BYTES_32 } else { MOST_BYTES_64 };
        let mut value = 0;
        for (position, &byte) in self.rest.iter().take(most).enumerate() {
            let shift = 7 * position as u32;
            let part = u64::from(byte & 0x7F);
            if position + 1 == most && u64::from(byte) >> (bits - shift) != 0 {
                break;
            }
            value |= part << shift;
            if byte < 0x80 {
                self.rest = &self.rest[position + 1..];
                return Ok(value);
            }
        }
        if self.rest.len() < most {
            return Err(self.cut(what));
        }
        Err(self.bad(format!("{what} does not fit in {bits} bits")))
    }

    /// Reads whether an option holds a value.
    fn option(&mut self, what: &str) -> Result<bool> {
        match *self.rest {
            [tag @ 0..=1, ref rest @ ..] => {
                self.rest = rest;
                Ok(tag == 1)
            }
            [tag, ..] => Err(self.bad(format!("the tag of {what} is {tag}, expected 0 or 1"))),
            [] => Err(self.cut(what)),
        }
    }

    fn engine(&mut self) -> Result<Option<String>> {
        if !self.option("the engine")? {
            return Ok(None);
        }
        let length = self.u64("the engine's length")?;
        let Some((name, rest)) =
            usize::try_from(length).ok().and_then(|length| self.rest.split_at_checked(length))
        else {
            return Err(self.cut("the engine"));
        };
        let Ok(name) = std::str::from_utf8(name) else {
            return Err(self.bad("the engine is not UTF-8"));
        };
        self.rest = rest;
        Ok(Some(name.to_owned()))
    }

    /// Reads the fields before the steps.
    fn meta(&mut self) -> Result<Meta> {
        let meta = Meta {
            steps: self.u32("the number of steps")?,
            start_unix_s: self.u64("the start")?,
            elapsed_s: f32::from_le_bytes(self.take("the elapsed time")?),
            max_score: self.u64("the score")?,
            highest_tile: self.u32("the highest tile")?,
            engine: self.engine()?,
        };
        let listed = self.u64("the length of the list of steps")?;
        if listed != u64::from(meta.steps) {
            return Err(self.bad(format!(
                "the list has {listed} steps, but the header declares {}",
                meta.steps
            )));
        }
        let room = self.rest.len() as u64;
        if listed * LEAST_STEP_BYTES >= room {
            return Err(self.bad(format!("{room} bytes remain, too few for {listed} steps")));
        }
        Ok(meta)
    }

    #[inline]
    pub(super) fn board(&mut self) -> Result<u64> {
        self.u64("a board")
    }

    #[inline]
    pub(super) fn step(&mut self) -> Result<Step> {
        let board = self.board()?;
        let mv = match *self.rest {
            [mv @ 0..=3, ref rest @ ..] => {
                self.rest = rest;
                mv
            }
            _ => self.long_move()?,
        };
        let (mut given, mut values) = (0, [f32::NAN; 4]);
        if self.option("branches")? {
            given = GIVEN;
            for (mv, value) in values.iter_mut().enumerate() {
                match *self.rest {
                    [0, a, b, c, d, ref rest @ ..] => {
                        *value = f32::from_le_bytes([a, b, c, d]);
                        given |= 1 << mv;
                        self.rest = rest;
                    }
                    [1, ref rest @ ..] => self.rest = rest,
                    [] | [0, ..] => return Err(self.cut("a branch")),
                    [tag, ..] => {
                        return Err(
                            self.bad(format!("the tag of a branch is {tag}, expected 0 or 1"))
                        );
                    }
                }
            }
        }
        Ok(Step { board, mv, given, values })
    }

    /// Reads a move that is not stored in one byte, or is invalid.
    #[cold]
    fn long_move(&mut self) -> Result<u8> {
        let start = Input { rest: self.rest, end: self.end };
        match self.u32("a move")? {
            mv @ 0..=3 => Ok(mv as u8),
            mv => Err(start.bad(format!("the move is {mv}, expected 0 to 3"))),
        }
    }

    /// Reads the final board, which must end the payload.
    fn finish(mut self) -> Result<u64> {
        let board = self.board()?;
        if self.rest.is_empty() {
            return Ok(board);
        }
        Err(self.bad(format!("{} bytes follow the final board", self.rest.len())))
    }
}

/// Joins eight groups of seven bits, each in its own byte, into one integer.
#[inline]
fn joined(word: u64) -> u64 {
    let pairs = word & 0x007F_007F_007F_007F | (word & 0x7F00_7F00_7F00_7F00) >> 1;
    let quads = pairs & 0x0000_3FFF_0000_3FFF | (pairs & 0x3FFF_0000_3FFF_0000) >> 2;
    quads & 0x0FFF_FFFF | (quads & 0x0FFF_FFFF_0000_0000) >> 4
}

pub(super) fn parse(bytes: &[u8]) -> Result<Run> {
    let mut input = Input::new(bytes, 0);
    let meta = input.meta()?;
    // `meta` refuses more steps than a third of the bytes.
    let steps = meta.steps as usize;
    let mut boards = Vec::with_capacity(steps + 1);
    let mut moves = Vec::with_capacity(steps);
    let mut branches: Option<Branches> = None;
    for step in 0..steps {
        let Step { board, mv, given, values } = input.step()?;
        boards.push(board);
        moves.push(mv);
        if given != 0 || branches.is_some() {
            let all = branches.get_or_insert_with(|| absent(step, steps));
            all.values.push(values);
            all.given.push(given);
        }
    }
    boards.push(input.finish()?);
    Ok(Run { meta, boards, moves, branches })
}

/// Returns branches of which the first `step` steps have none.
#[cold]
fn absent(step: usize, steps: usize) -> Branches {
    let mut all = Branches { values: Vec::with_capacity(steps), given: Vec::with_capacity(steps) };
    all.values.resize(step, [f32::NAN; 4]);
    all.given.resize(step, 0);
    all
}

pub(super) fn outline(bytes: &[u8]) -> Result<Outline> {
    let mut input = Input::new(bytes, 0);
    let meta = input.meta()?;
    let mut checkpoints = Vec::with_capacity(meta.steps.div_ceil(CHECKPOINT_EVERY) as usize);
    for step in 0..meta.steps {
        if step.is_multiple_of(CHECKPOINT_EVERY) {
            // The caller refuses payloads whose offsets do not fit.
            checkpoints.push(input.at() as u32);
        }
        input.step()?;
    }
    Ok(Outline { meta, final_board: input.finish()?, checkpoints })
}

/// Encodes a run that was checked.
pub(super) fn encode(run: &Run) -> Vec<u8> {
    let meta = &run.meta;
    let per_step = if run.branches.is_some() { 32 } else { 12 };
    let mut out = Vec::with_capacity(64 + per_step * run.moves.len());
    put_varint(&mut out, u64::from(meta.steps));
    put_varint(&mut out, meta.start_unix_s);
    out.extend(meta.elapsed_s.to_le_bytes());
    put_varint(&mut out, meta.max_score);
    put_varint(&mut out, u64::from(meta.highest_tile));
    match &meta.engine {
        None => out.push(0),
        Some(engine) => {
            out.push(1);
            put_varint(&mut out, engine.len() as u64);
            out.extend(engine.as_bytes());
        }
    }
    put_varint(&mut out, run.moves.len() as u64);
    for (step, (&board, &mv)) in run.boards.iter().zip(&run.moves).enumerate() {
        put_varint(&mut out, board);
        out.push(mv);
        match run.branches_at(step) {
            None => out.push(0),
            Some((given, values)) => {
                out.push(1);
                for (mv, value) in values.iter().enumerate() {
                    if given >> mv & 1 == 0 {
                        out.push(1);
                    } else {
                        out.push(0);
                        out.extend(value.to_le_bytes());
                    }
                }
            }
        }
    }
    put_varint(&mut out, run.final_board());
    if version_of(&out) == Version::V1 {
        // By chance it begins like v1. A longer form of the first integer has the same value.
        out.splice(..1, [out[0] | 0x80, 0]);
    }
    out
}

/// Appends an integer, seven bits to a byte, the lowest first.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
