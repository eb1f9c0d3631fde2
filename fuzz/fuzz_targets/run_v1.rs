//! Reading a v1 run returns a `Corrupt` error or a run. The run encodes to the same bytes, and its
//! outline and every step agree with it.
//!
//! The target corrects the checksum before it reads the run, unless the first byte of the input is
//! odd: otherwise no input would get past the checksum.

#![no_main]

use libfuzzer_sys::fuzz_target;
use relive_core::crc::crc32c;
use relive_core::runs::{
    Outline, Run, STEP_ROW_BYTES, StepRow, Version, outline, project, project_at, version_of,
};

fuzz_target!(|input: &[u8]| {
    let Some((control, payload)) = input.split_first() else { return };
    let mut bytes = payload.to_vec();
    if control % 2 == 0
        && let Some(at) = bytes.len().checked_sub(4)
    {
        let crc = crc32c(&bytes[..at]);
        bytes[at..].copy_from_slice(&crc.to_le_bytes());
    }
    let (run, outline) = match (Run::parse_as(Version::V1, &bytes), outline(Version::V1, &bytes)) {
        (Ok(run), Ok(outline)) => (run, outline),
        (Err(left), Err(right)) => {
            assert_eq!(left.kind(), "corrupt");
            assert_eq!(left.to_string(), right.to_string());
            return;
        }
        _ => panic!("parse and outline differ"),
    };
    assert_eq!(version_of(&bytes), Version::V1);
    let again = run.to_bytes(Version::V1).expect("what was read can be written");
    // Only an engine name that is not UTF-8 is not kept.
    if run.meta.engine.is_some() || u16::from_le_bytes([bytes[34], bytes[35]]) == 0 {
        assert_eq!(again, bytes);
    }
    agree(&run, &outline, &bytes);
    let upgraded = run.to_bytes(Version::V2).expect("v2 has room for all of v1");
    let upgraded = Run::parse(&upgraded).expect("what was written can be read");
    assert_eq!(upgraded.to_bytes(Version::V1).expect("as before"), again);
});

fn agree(run: &Run, outline: &Outline, bytes: &[u8]) {
    assert_eq!(outline.final_board, run.final_board());
    assert_eq!(outline.meta.steps, run.meta.steps);
    let mut rows = vec![];
    project(run, 7, &mut rows);
    let steps = run.meta.steps;
    for (step, row) in (0..steps).zip(&rows) {
        let checkpoint = (step / 64 * 64, outline.checkpoints[step as usize / 64]);
        let found = project_at(Version::V1, bytes, 0, checkpoint, step, steps, 7);
        let found = found.expect("the step is there");
        assert_eq!(found.to_bytes(), row.to_bytes());
        assert_eq!(decoded(&row.to_bytes()).to_bytes(), row.to_bytes());
    }
}

/// Decodes a step row at the offsets of docs/format/runs.md, "The step row".
fn decoded(row: &[u8; STEP_ROW_BYTES]) -> StepRow {
    let word = |at: usize| u32::from_le_bytes(row[at..at + 4].try_into().expect("four bytes"));
    let long = |at: usize| u64::from_le_bytes(row[at..at + 8].try_into().expect("eight bytes"));
    StepRow {
        board: long(0),
        next_board: long(8),
        branches: std::array::from_fn(|mv| f32::from_bits(word(16 + 4 * mv))),
        reward: word(32),
        run: word(36),
        step: word(40),
        steps_left: word(44),
        mv: row[48],
        legal: row[49],
        last: row[50],
        terminal: row[51],
    }
}
