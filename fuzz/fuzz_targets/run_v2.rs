//! Reading a v2 run returns a `Corrupt` error or a run. The run encodes to the same bytes, or to
//! fewer where an integer was longer than needed, and its outline, every step and its lines of
//! JSON agree with it. No allocation is much larger than the input.

#![no_main]

mod watched;

use std::sync::atomic::Ordering;

use libfuzzer_sys::fuzz_target;
use relive_core::runs::{
    Boards, Outline, Run, Version, outline, project, project_at, version_of, write_run_line,
    write_step_lines,
};

use crate::watched::LARGEST;

/// Reading may allocate this many bytes in addition to its arrays, for messages.
const SLACK_BYTES: usize = 1 << 12;

fuzz_target!(|bytes: &[u8]| {
    LARGEST.store(0, Ordering::Relaxed);
    let outcomes = (Run::parse_as(Version::V2, bytes), outline(Version::V2, bytes));
    let largest = LARGEST.load(Ordering::Relaxed);
    // Sixteen bytes of branches for a step that takes at least three.
    assert!(largest <= 6 * bytes.len() + SLACK_BYTES, "{largest} bytes were asked for");
    let (run, outline) = match outcomes {
        (Ok(run), Ok(outline)) => (run, outline),
        (Err(left), Err(right)) => {
            assert_eq!(left.kind(), "corrupt");
            assert_eq!(left.to_string(), right.to_string());
            return;
        }
        _ => panic!("parse and outline differ"),
    };
    let again = run.to_bytes(Version::V2).expect("what was read can be written");
    if again != bytes && version_of(bytes) == Version::V2 {
        assert!(again.len() < bytes.len());
    }
    let parsed = Run::parse(&again).expect("what was written can be read");
    assert_eq!(parsed.to_bytes(Version::V2).expect("as before"), again);
    agree(&run, &outline, bytes);
    lines(&run);
});

fn agree(run: &Run, outline: &Outline, bytes: &[u8]) {
    assert_eq!(outline.final_board, run.final_board());
    assert_eq!(outline.meta.steps, run.meta.steps);
    let mut rows = vec![];
    project(run, 7, &mut rows);
    let steps = run.meta.steps;
    for (step, row) in (0..steps).zip(&rows) {
        let (number, base) = (step as usize / 64, outline.checkpoints[step as usize / 64]);
        let next = outline.checkpoints.get(number + 1).map_or(bytes.len(), |&at| at as usize + 10);
        let part = &bytes[base as usize..next.min(bytes.len())];
        let found = project_at(Version::V2, part, base, (step / 64 * 64, base), step, steps, 7);
        assert_eq!(found.expect("the step is there").to_bytes(), row.to_bytes());
    }
}

fn lines(run: &Run) {
    let mut out = vec![];
    let finite = write_run_line(run, 0, "v2", true, Boards::Integers, &mut out).is_ok();
    assert_eq!(finite, run.meta.elapsed_s.is_finite());
    assert_eq!(out.iter().filter(|&&byte| byte == b'\n').count(), usize::from(finite));
    out.clear();
    match write_step_lines(run, 0, Boards::Hex, &mut out) {
        Ok(()) => {
            let lines = out.iter().filter(|&&byte| byte == b'\n').count();
            assert_eq!(lines, run.moves.len());
        }
        Err(error) => {
            assert_eq!(error.kind(), "invalid");
            assert!(out.is_empty());
        }
    }
}
