//! Run v1: fixed width, with a checksum, without branches.

use super::{CHECKPOINT_EVERY, Meta, Outline, Run};
use crate::crc::crc32c;
use crate::{Error, Result};

/// Magic and version. Every v1 run begins with them; a v2 run does only by chance.
pub(super) const MAGIC: [u8; 5] = *b"A2T1\x01";

/// Bytes before the engine's name.
const HEADER_BYTES: usize = 36;
const CRC_BYTES: usize = 4;

/// The smallest run: no engine, no steps, one board.
const LEAST_BYTES: usize = HEADER_BYTES + 8 + CRC_BYTES;

/// The fields of a payload.
pub(super) struct Fields<'a> {
    pub meta: Meta,
    pub boards: &'a [[u8; 8]],
    pub moves: &'a [u8],
    /// Where in the payload the first board is.
    pub boards_at: usize,
}

impl<'a> Fields<'a> {
    /// Splits `bytes` and checks the lengths, but neither checksum nor moves.
    pub(super) fn of(bytes: &'a [u8]) -> Result<Self> {
        if bytes.len() < LEAST_BYTES {
            return Err(bad(
                bytes.len(),
                format!("the payload ends, but a run has at least {LEAST_BYTES} bytes"),
            ));
        }
        if !bytes.starts_with(&MAGIC) {
            return Err(bad(0, "the data does not begin with `A2T1` and version 1"));
        }
        if bytes[5] != 0 {
            return Err(bad(5, format!("the byte order is {}, expected 0 (little)", bytes[5])));
        }
        let steps = u32::from_le_bytes(field(bytes, 6));
        let engine_bytes = usize::from(u16::from_le_bytes(field(bytes, 34)));
        let boards_at = HEADER_BYTES + engine_bytes;
        let expected = boards_at as u64 + 8 * (u64::from(steps) + 1) + u64::from(steps) + 4;
        if bytes.len() as u64 != expected {
            return Err(bad(
                bytes.len(),
                format!("the payload ends, but {steps} steps need {expected} bytes"),
            ));
        }
        // The total length was checked above, so every field is inside.
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

    /// Splits `bytes` and checks everything.
    fn checked(bytes: &'a [u8]) -> Result<Self> {
        // Magic and checksum come first: an error about a damaged length would be misleading.
        if bytes.len() >= LEAST_BYTES && bytes.starts_with(&MAGIC) {
            let at = bytes.len() - CRC_BYTES;
            let (stored, found) = (u32::from_le_bytes(field(bytes, at)), crc32c(&bytes[..at]));
            if stored != found {
                return Err(bad(
                    at,
                    format!(
                        "the stored checksum is {stored:#010x}, but the bytes have {found:#010x}"
                    ),
                ));
            }
        }
        let fields = Self::of(bytes)?;
        if let Some(step) = fields.moves.iter().position(|&mv| mv > 3) {
            return Err(fields.bad_move(step));
        }
        Ok(fields)
    }

    /// Returns the board before `step`, or the final one.
    pub(super) fn board(&self, step: usize) -> Option<u64> {
        self.boards.get(step).map(|&board| u64::from_le_bytes(board))
    }

    /// Returns the error for an invalid move.
    pub(super) fn bad_move(&self, step: usize) -> Error {
        let at = self.boards_at + 8 * self.boards.len() + step;
        bad(at, format!("the move of step {step} is {}, expected 0 to 3", self.moves[step]))
    }
}

pub(super) fn parse(bytes: &[u8]) -> Result<Run> {
    let Fields { meta, boards, moves, .. } = Fields::checked(bytes)?;
    Ok(Run {
        meta,
        boards: boards.iter().map(|&board| u64::from_le_bytes(board)).collect(),
        moves: moves.to_vec(),
        branches: None,
    })
}

pub(super) fn outline(bytes: &[u8]) -> Result<Outline> {
    let fields = Fields::checked(bytes)?;
    let starts = (0..fields.meta.steps).step_by(CHECKPOINT_EVERY as usize);
    Ok(Outline {
        final_board: fields.board(fields.moves.len()).unwrap_or(0),
        // The caller has refused payloads whose offsets do not fit.
        checkpoints: starts.map(|step| fields.boards_at as u32 + 8 * step).collect(),
        meta: fields.meta,
    })
}

/// Encodes a run that was checked.
pub(super) fn encode(run: &Run) -> Result<Vec<u8>> {
    if run.branches.as_ref().is_some_and(|branches| branches.given.iter().any(|&bits| bits != 0)) {
        return Err(Error::Invalid(
            "a run in format version 1 cannot store branches: use version 2".to_owned(),
        ));
    }
    let engine = match run.meta.engine.as_deref() {
        Some("") => {
            return Err(Error::Invalid(
                "a run in format version 1 cannot store an empty engine name: use version 2"
                    .to_owned(),
            ));
        }
        engine => engine.unwrap_or_default().as_bytes(),
    };
    let Ok(engine_bytes) = u16::try_from(engine.len()) else {
        return Err(Error::Invalid(format!(
            "a run in format version 1 can store an engine name of at most {} bytes, got {} bytes: \
             use version 2",
            u16::MAX,
            engine.len()
        )));
    };
    let meta = &run.meta;
    let mut out = Vec::with_capacity(LEAST_BYTES + engine.len() + 9 * run.moves.len());
    out.extend(MAGIC);
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

/// Returns the bytes of a field; the caller has checked that it is inside.
fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

fn bad(at: usize, text: impl std::fmt::Display) -> Error {
    Error::Corrupt(format!(
        "the data of the run (format version 1) is damaged at byte {at}: {text}"
    ))
}
