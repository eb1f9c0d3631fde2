//! Run v1: fixed width, checksummed, without branches.

use super::{CHECKPOINT_EVERY, Meta, Outline, Run};
use crate::crc::crc32c;
use crate::{Error, Result};

/// Magic and version, which begin every v1 run and, by chance aside, no v2 run.
pub(super) const MARK: [u8; 5] = *b"A2T1\x01";

/// What comes before the engine's name.
const HEADER_BYTES: usize = 36;
const CRC_BYTES: usize = 4;

/// The smallest run: no engine, no steps, one board.
const LEAST_BYTES: usize = HEADER_BYTES + 8 + CRC_BYTES;

/// A payload taken apart.
pub(super) struct Parts<'a> {
    pub meta: Meta,
    pub boards: &'a [[u8; 8]],
    pub moves: &'a [u8],
    /// Where in the payload the first board is.
    pub boards_at: usize,
}

impl<'a> Parts<'a> {
    /// The parts of `bytes`, whose lengths fit together; checksum and moves are not looked at.
    pub(super) fn of(bytes: &'a [u8]) -> Result<Self> {
        if bytes.len() < LEAST_BYTES {
            return Err(bad(
                bytes.len(),
                format!("the payload ends, and the smallest is {LEAST_BYTES} bytes"),
            ));
        }
        if !bytes.starts_with(&MARK) {
            return Err(bad(0, "no A2T1 of version 1 begins here"));
        }
        if bytes[5] != 0 {
            return Err(bad(5, format!("the byte order is {}, not 0 (little)", bytes[5])));
        }
        let steps = u32::from_le_bytes(field(bytes, 6));
        let engine_bytes = usize::from(u16::from_le_bytes(field(bytes, 34)));
        let boards_at = HEADER_BYTES + engine_bytes;
        let expected = boards_at as u64 + 8 * (u64::from(steps) + 1) + u64::from(steps) + 4;
        if bytes.len() as u64 != expected {
            return Err(bad(
                bytes.len(),
                format!("the payload ends, and {steps} steps take {expected} bytes"),
            ));
        }
        // The whole is as long as expected, so every part of it lies inside.
        let moves_at = boards_at + 8 * (steps as usize + 1);
        let engine = std::str::from_utf8(&bytes[HEADER_BYTES..boards_at]).ok();
        Ok(Self {
            meta: Meta {
                steps,
                start_unix_s: u64::from_le_bytes(field(bytes, 10)),
                elapsed_s: f32::from_le_bytes(field(bytes, 18)),
                max_score: u64::from_le_bytes(field(bytes, 22)),
                highest_tile: u32::from_le_bytes(field(bytes, 30)),
                engine: engine.filter(|name| !name.is_empty()).map(str::to_owned),
            },
            boards: bytes[boards_at..moves_at].as_chunks().0,
            moves: &bytes[moves_at..bytes.len() - CRC_BYTES],
            boards_at,
        })
    }

    /// The parts of `bytes`, everything checked.
    fn checked(bytes: &'a [u8]) -> Result<Self> {
        // Mark and checksum come first: a damaged length would only say something misleading.
        if bytes.len() >= LEAST_BYTES && bytes.starts_with(&MARK) {
            let at = bytes.len() - CRC_BYTES;
            let (stored, found) = (u32::from_le_bytes(field(bytes, at)), crc32c(&bytes[..at]));
            if stored != found {
                return Err(bad(
                    at,
                    format!("the checksum is {stored:#010x}, that of the bytes is {found:#010x}"),
                ));
            }
        }
        let parts = Self::of(bytes)?;
        if let Some(step) = parts.moves.iter().position(|&mv| mv > 3) {
            return Err(parts.bad_move(step));
        }
        Ok(parts)
    }

    /// The board before `step`, or the final one, where there is one.
    pub(super) fn board(&self, step: usize) -> Option<u64> {
        self.boards.get(step).map(|&board| u64::from_le_bytes(board))
    }

    /// The error of a move that is none.
    pub(super) fn bad_move(&self, step: usize) -> Error {
        let at = self.boards_at + 8 * self.boards.len() + step;
        bad(at, format!("the move of step {step} is {}, not 0 to 3", self.moves[step]))
    }
}

pub(super) fn parse(bytes: &[u8]) -> Result<Run> {
    let Parts { meta, boards, moves, .. } = Parts::checked(bytes)?;
    Ok(Run {
        meta,
        boards: boards.iter().map(|&board| u64::from_le_bytes(board)).collect(),
        moves: moves.to_vec(),
        branches: None,
    })
}

pub(super) fn outline(bytes: &[u8]) -> Result<Outline> {
    let parts = Parts::checked(bytes)?;
    let starts = (0..parts.meta.steps).step_by(CHECKPOINT_EVERY as usize);
    Ok(Outline {
        final_board: parts.board(parts.moves.len()).unwrap_or(0),
        // The caller has refused payloads whose offsets do not fit.
        checkpoints: starts.map(|step| parts.boards_at as u32 + 8 * step).collect(),
        meta: parts.meta,
    })
}

/// The bytes of a run whose parts fit together.
pub(super) fn encode(run: &Run) -> Result<Vec<u8>> {
    if run.branches.as_ref().is_some_and(|branches| branches.given.iter().any(|&bits| bits != 0)) {
        return Err(Error::Invalid("v1 has no place for branches: write v2".to_owned()));
    }
    let engine = match run.meta.engine.as_deref() {
        Some("") => {
            return Err(Error::Invalid(
                "v1 cannot tell an empty engine from none: write v2".to_owned(),
            ));
        }
        engine => engine.unwrap_or_default().as_bytes(),
    };
    let Ok(engine_bytes) = u16::try_from(engine.len()) else {
        return Err(Error::Invalid(format!(
            "v1 has room for an engine of {} bytes, not {}: write v2",
            u16::MAX,
            engine.len()
        )));
    };
    let meta = &run.meta;
    let mut out = Vec::with_capacity(LEAST_BYTES + engine.len() + 9 * run.moves.len());
    out.extend(MARK);
    out.push(0);
    out.extend(meta.steps.to_le_bytes());
    out.extend(meta.start_unix_s.to_le_bytes());
    out.extend(meta.elapsed_s.to_le_bytes());
    out.extend(meta.max_score.to_le_bytes());
    out.extend(meta.highest_tile.to_le_bytes());
    out.extend(engine_bytes.to_le_bytes());
    out.extend(engine);
    out.extend(run.boards.iter().flat_map(|board| board.to_le_bytes()));
    out.extend(&run.moves);
    out.extend(crc32c(&out).to_le_bytes());
    Ok(out)
}

/// The bytes of a field whose place the caller has checked.
fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

fn bad(at: usize, text: impl std::fmt::Display) -> Error {
    Error::Corrupt(format!("run v1, byte {at}: {text}"))
}
