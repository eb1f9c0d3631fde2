//! Both versions there and back, everything hostile bytes may try, and the rules of the game
//! against a list.

use super::*;

const EXAMPLE: &[u8] = include_bytes!("../../../../tests/golden/runs/example.a2run2");

/// Numbers without a pattern, the same at every run.
fn noise(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}

/// Decodes a step row at the offsets of docs/format/runs.md, "The step row".
fn decoded(row: &[u8; STEP_ROW_BYTES]) -> StepRow {
    let word = |at: usize| u32::from_le_bytes(row[at..at + 4].try_into().unwrap());
    let long = |at: usize| u64::from_le_bytes(row[at..at + 8].try_into().unwrap());
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

/// A game with every kind of step: with branches, with some illegal, with none, without.
fn game(steps: usize, with_branches: bool) -> Run {
    let mut next = noise(steps as u64 + 7);
    let mut branches = Branches::default();
    for step in 0..steps {
        let given = if step % 3 == 0 { 0 } else { GIVEN | (next() as u8 & LEGAL) };
        branches.given.push(given);
        let value = |mv| if given >> mv & 1 == 0 { f32::NAN } else { mv as f32 / 3.0 };
        branches.values.push(std::array::from_fn(value));
    }
    Run {
        meta: Meta {
            steps: steps as u32,
            start_unix_s: 1_757_000_000,
            elapsed_s: 15.25,
            max_score: 20_504,
            highest_tile: 2048,
            engine: (steps % 2 == 1).then(|| "expectimax-é".to_owned()),
        },
        boards: (0..=steps).map(|step| next() >> (step * 5 % 64)).collect(),
        moves: (0..steps).map(|_| next() as u8 & 3).collect(),
        branches: (with_branches && steps > 1).then_some(branches),
    }
}

fn rows(run: &Run) -> Vec<[u8; STEP_ROW_BYTES]> {
    let mut out = vec![];
    project(run, 9, &mut out);
    out.iter().map(StepRow::to_bytes).collect()
}

fn kind<T>(outcome: Result<T>) -> &'static str {
    outcome.map_or_else(|error| error.kind(), |_| "fine")
}

fn message<T>(outcome: Result<T>) -> String {
    outcome.map_or_else(|error| error.to_string(), |_| "fine".to_owned())
}

/// The checksum of a v1 payload whose bytes were changed.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let at = bytes.len() - 4;
    let crc = crate::crc::crc32c(&bytes[..at]);
    bytes[at..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

#[test]
fn the_example_is_read_and_written_byte_for_byte() {
    assert_eq!(version_of(EXAMPLE), Version::V2);
    let run = Run::parse(EXAMPLE).unwrap();
    assert_eq!(run.to_bytes(Version::V2).unwrap(), EXAMPLE);
    let meta = &run.meta;
    assert_eq!((meta.steps, meta.max_score, meta.highest_tile), (959, 20_504, 2048));
    assert_eq!((meta.start_unix_s, meta.engine.as_deref()), (1_755_927_754, None));
    assert_eq!((run.boards.len(), run.moves.len()), (960, 959));
    let worth = |&cell: &u8| u64::from(cell.saturating_sub(1)) << cell;
    assert_eq!(cells(run.final_board()).iter().map(worth).sum::<u64>(), meta.max_score);
    // The player knew the rules that we know, and its game is one.
    let branches = run.branches.as_ref().unwrap();
    for (step, boards) in run.boards.windows(2).enumerate() {
        assert_eq!(branches.given[step], GIVEN | legal(boards[0]), "step {step}");
        let (after, _) = slide(boards[0], run.moves[step]).unwrap();
        let added = cells(after ^ boards[1]);
        assert_eq!(added.iter().filter(|&&cell| cell != 0).count(), 1, "step {step}");
    }
}

#[test]
fn runs_go_there_and_back_in_both_versions() {
    for steps in [0, 1, 2, 3, 63, 64, 65, 128, 200] {
        for (version, with_branches) in
            [(Version::V1, false), (Version::V2, false), (Version::V2, true)]
        {
            let run = game(steps, with_branches);
            let bytes = run.to_bytes(version).unwrap();
            assert_eq!(version_of(&bytes), version);
            let again = Run::parse(&bytes).unwrap();
            assert_eq!(again.to_bytes(version).unwrap(), bytes);
            assert_eq!((&again.meta, &again.boards), (&run.meta, &run.boards));
            assert_eq!(again.moves, run.moves);
            assert_eq!(rows(&again), rows(&run));
            assert_eq!(again.branches.is_some(), with_branches && steps > 1);
        }
    }
    assert_eq!(game(0, false).to_bytes(Version::V1).unwrap().len(), 48);
}

#[test]
fn an_outline_agrees_with_the_run_and_leads_to_every_step() {
    for (version, run) in [
        (Version::V1, game(200, false)),
        (Version::V2, game(200, true)),
        (Version::V2, Run::parse(EXAMPLE).unwrap()),
        (Version::V1, game(64, false)),
        (Version::V2, game(0, false)),
    ] {
        let bytes = run.to_bytes(version).unwrap();
        let outline = outline(version, &bytes).unwrap();
        let steps = run.meta.steps;
        assert_eq!(outline.meta, run.meta);
        assert_eq!(outline.final_board, run.final_board());
        assert_eq!(outline.checkpoints.len(), steps.div_ceil(CHECKPOINT_EVERY) as usize);
        let rows = rows(&run);
        for step in 0..steps {
            let from = (step / CHECKPOINT_EVERY) as usize;
            let start = outline.checkpoints[from];
            let checkpoint = (step / CHECKPOINT_EVERY * CHECKPOINT_EVERY, start);
            let at = |bytes, base| project_at(version, bytes, base, checkpoint, step, steps, 9);
            let row = at(&bytes, 0).unwrap();
            assert_eq!(row.to_bytes(), rows[step as usize]);
            assert_eq!(decoded(&row.to_bytes()).to_bytes(), row.to_bytes());
            if version == Version::V2 {
                let next = outline.checkpoints.get(from + 1).map_or(bytes.len(), |&at| at as usize);
                let part = &bytes[start as usize..bytes.len().min(next + 10)];
                assert_eq!(at(part, start).unwrap().to_bytes(), rows[step as usize]);
                assert_eq!(kind(at(&part[..1], start)), "corrupt");
                assert_eq!(kind(at(part, start + 1)), "corrupt");
            } else {
                assert_eq!(kind(at(&bytes[1..], 1)), "corrupt");
                assert_eq!(kind(at(&bytes[..bytes.len() - 1], 0)), "corrupt");
            }
        }
        let beyond = project_at(version, &bytes, 0, (0, 0), steps, steps, 9);
        assert_eq!(kind(beyond), "out-of-range");
        assert_eq!(kind(project_at(version, &bytes, 0, (2, 40), 1, steps.max(2), 9)), "corrupt");
    }
}

#[test]
fn every_cut_and_every_changed_byte_is_an_error_or_another_run() {
    for (version, run) in [(Version::V1, game(7, false)), (Version::V2, game(7, true))] {
        let bytes = run.to_bytes(version).unwrap();
        for end in 0..bytes.len() {
            assert_eq!(kind(Run::parse_as(version, &bytes[..end])), "corrupt", "{end}");
            assert_eq!(kind(outline(version, &bytes[..end])), "corrupt", "{end}");
        }
        for at in 0..bytes.len() {
            for byte in 0..=u8::MAX {
                let mut changed = bytes.clone();
                changed[at] = byte;
                examine(version, &changed);
                if version == Version::V1 {
                    examine(version, &sealed(changed));
                }
            }
        }
    }
}

/// Whatever parses has an outline that agrees, and encodes to those bytes, or to fewer where
/// an integer was longer than needed or an engine was not text.
fn examine(version: Version, bytes: &[u8]) {
    let run = match (Run::parse_as(version, bytes), outline(version, bytes)) {
        (Ok(run), Ok(outline)) => {
            assert_eq!(outline.final_board, run.final_board());
            run
        }
        (Err(left), Err(right)) => {
            assert_eq!(left.kind(), "corrupt");
            assert_eq!(left.to_string(), right.to_string());
            return;
        }
        _ => panic!("parse and outline differ on {bytes:02x?}"),
    };
    let again = run.to_bytes(version).unwrap();
    if again != bytes {
        assert!(again.len() < bytes.len(), "{bytes:02x?} became {again:02x?}");
        assert_eq!(Run::parse_as(version, &again).unwrap().to_bytes(version).unwrap(), again);
    }
}

#[test]
fn noise_is_an_error_or_a_run() {
    let mut next = noise(3);
    let mark = Vec::from(v1::MAGIC);
    for _ in 0..20_000 {
        let length = next() as usize % 80;
        let bytes: Vec<u8> = (0..length).map(|_| (next() >> 40) as u8 & next() as u8).collect();
        examine(Version::V2, &bytes);
        let mut marked = [mark.clone(), bytes].concat();
        marked.resize(marked.len() + 4, 0);
        examine(Version::V1, &sealed(marked));
    }
}

#[test]
fn a_length_that_the_bytes_cannot_hold_is_refused_before_memory_is_taken() {
    // Four billion steps, told and listed, in 18 bytes.
    let steps = [0xFF, 0xFF, 0xFF, 0xFF, 0x0F];
    let bytes = [&steps[..], &[0, 0, 0, 0, 0, 0, 0, 0], &steps, &[0]].concat();
    assert!(message(Run::parse(&bytes)).contains("too few for 4294967295 steps"));
    // Three bytes a step and one for the final board are just enough.
    let least = [&[2, 0, 0, 0, 0, 0, 0, 0, 0, 2][..], &[5, 1, 0], &[6, 2, 0], &[7]].concat();
    let run = Run::parse(&least).unwrap();
    assert_eq!((run.boards, run.moves), (vec![5, 6, 7], vec![1, 2]));
    // An engine of 2⁶³ bytes.
    let mut engine = vec![0, 0, 0, 0, 0, 0, 0, 0, 1];
    engine.extend([0x80; 9]);
    engine.extend([1, b'x']);
    assert!(message(Run::parse(&engine)).contains("ends inside the engine"));
}

#[test]
fn varints_have_their_width() {
    let head = |steps: &[u8]| [steps, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0]].concat();
    assert_eq!(kind(Run::parse(&head(&[0]))), "fine");
    assert_eq!(kind(Run::parse(&head(&[0x80, 0x80, 0x80, 0x80, 0]))), "fine");
    for steps in [&[0x80, 0x80, 0x80, 0x80, 0x10][..], &[0x80, 0x80, 0x80, 0x80, 0x80, 0]] {
        assert!(message(Run::parse(&head(steps))).contains("does not fit in 32 bits"));
    }
    // The final board, near the end and far from it, of every length.
    for bytes in 1..=10 {
        for tail in [0, 9] {
            let mut input = vec![0x80; bytes - 1];
            input.push(1);
            input.resize(bytes + tail, 0);
            let parsed = Input::new(&input, 0).board().unwrap();
            assert_eq!(parsed, 1 << (7 * (bytes - 1)), "{bytes}");
            // As long as it is, only the ten bytes of an integer that is too wide are refused.
            input[bytes - 1] = 2;
            let wide = Input::new(&input, 0).board();
            assert_eq!(kind(wide), if bytes == 10 { "corrupt" } else { "fine" });
        }
    }
    let full = [0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1];
    assert_eq!(Input::new(&full, 0).board().unwrap(), u64::MAX);
}

#[test]
fn what_is_refused_says_where_and_why() {
    let parse = |bytes: &[u8]| message(Run::parse(bytes));
    let v2 = |tail: &[u8]| parse(&[&[1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 5][..], tail].concat());
    assert_eq!(v2(&[3, 0, 9]), "fine");
    assert_eq!(v2(&[0x83, 0, 0, 9]), "fine");
    assert_eq!(
        v2(&[4, 0, 9]),
        "the data of the run (format version 2) is damaged at byte 11: the move is 4, expected 0 to 3"
    );
    assert_eq!(
        v2(&[0x84, 2, 0, 9]),
        "the data of the run (format version 2) is damaged at byte 11: the move is 260, expected 0 to 3"
    );
    assert_eq!(
        v2(&[3, 2, 9]),
        "the data of the run (format version 2) is damaged at byte 12: the tag of branches is 2, expected 0 or 1"
    );
    assert_eq!(
        v2(&[3, 1, 7, 9]),
        "the data of the run (format version 2) is damaged at byte 13: the tag of a branch is 7, expected 0 or 1"
    );
    assert_eq!(
        v2(&[3, 1, 1, 0, 9]),
        "the data of the run (format version 2) is damaged at byte 16: the data ends inside a branch"
    );
    assert_eq!(
        v2(&[3, 0, 9, 9]),
        "the data of the run (format version 2) is damaged at byte 14: 1 bytes follow the final board"
    );
    let told = [2, 0, 0, 0, 0, 0, 0, 0, 0, 1, 5, 3, 0, 9];
    assert_eq!(
        parse(&told),
        "the data of the run (format version 2) is damaged at byte 10: the list has 1 steps, but the header declares 2"
    );
    let engine = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0xFF, 0, 9];
    assert_eq!(
        parse(&engine),
        "the data of the run (format version 2) is damaged at byte 10: the engine is not UTF-8"
    );

    let good = game(3, false).to_bytes(Version::V1).unwrap();
    let at = |position: usize, byte| {
        let mut bytes = good.clone();
        bytes[position] = byte;
        parse(&sealed(bytes))
    };
    let first_move = good.len() - 7;
    assert_eq!(
        at(first_move + 1, 4),
        format!(
            "the data of the run (format version 1) is damaged at byte {}: the move of step 1 is 4, expected 0 to 3",
            first_move + 1
        )
    );
    assert_eq!(
        at(5, 1),
        "the data of the run (format version 1) is damaged at byte 5: the byte order is 1, expected 0 (little)"
    );
    assert!(at(6, 4).contains("the payload ends, but 4 steps need"));
    let unsealed = [&good[..good.len() - 1], &[good[good.len() - 1] ^ 1]].concat();
    assert!(parse(&unsealed).contains("the stored checksum is 0x"));
}

#[test]
fn an_engine_that_is_no_text_is_none_in_v1() {
    let bytes = game(3, false).to_bytes(Version::V1).unwrap();
    let mut odd = bytes.clone();
    odd[36] = 0xFF;
    assert_eq!(Run::parse(&sealed(odd)).unwrap().meta.engine, None);
    assert_eq!(Run::parse(&bytes).unwrap().meta.engine.as_deref(), Some("expectimax-é"));
}

#[test]
fn parts_that_do_not_fit_are_not_written() {
    type Damage = fn(&mut Run);
    let wrong: [(Damage, &str); 8] = [
        (|run| run.boards.push(1), "must have 8 boards, got 9"),
        (|run| run.meta.steps = 8, "`steps` must equal the number of moves, 7, got 8"),
        (|run| run.moves[4] = 4, "step 4: the move is 4"),
        (|run| run.branches.as_mut().unwrap().given.truncate(6), "got 7 rows and 6 masks"),
        (|run| run.branches.as_mut().unwrap().values.truncate(6), "got 6 rows and 7 masks"),
        (|run| run.branches.as_mut().unwrap().given[0] = 1, "step 0: the branch values"),
        (|run| run.branches.as_mut().unwrap().given[1] |= 32, "step 1: the branch values"),
        (|run| run.branches.as_mut().unwrap().values[0][2] = 0.5, "step 0: the branch values"),
    ];
    for (damage, text) in wrong {
        let mut run = game(7, true);
        damage(&mut run);
        let refused = run.to_bytes(Version::V2);
        assert_eq!(kind(refused), "invalid");
        assert!(message(run.to_bytes(Version::V2)).contains(text), "{text}");
        assert_eq!(kind(write_step_lines(&run, 0, Boards::Hex, &mut vec![])), "invalid");
        project(&run, 0, &mut vec![]);
    }
    let mut run = game(7, true);
    assert!(message(run.to_bytes(Version::V1)).contains("branches: use version 2"));
    run.branches = None;
    for (engine, text) in [(String::new(), "empty engine"), ("x".repeat(65_536), "65535 bytes")] {
        run.meta.engine = Some(engine);
        assert_eq!(kind(run.to_bytes(Version::V1)), "invalid");
        assert!(message(run.to_bytes(Version::V1)).contains(text));
        let bytes = run.to_bytes(Version::V2).unwrap();
        assert_eq!(Run::parse(&bytes).unwrap().meta.engine, run.meta.engine);
    }
}

#[test]
fn v2_that_would_look_like_v1_is_written_otherwise() {
    let mut run = game(65, true);
    run.meta.start_unix_s = 50;
    run.meta.elapsed_s = f32::from_le_bytes([b'T', b'1', 1, 66]);
    let bytes = run.to_bytes(Version::V2).unwrap();
    assert_eq!(version_of(&bytes), Version::V2);
    assert_eq!(rows(&Run::parse(&bytes).unwrap()), rows(&run));
    let plain = [b"A", &bytes[2..]].concat();
    assert_eq!(version_of(&plain), Version::V1);
    assert_eq!(rows(&Run::parse_as(Version::V2, &plain).unwrap()), rows(&run));
}

/// Slides a list of rows the way a person would.
fn naive(cells: [u8; 16], direction: u8) -> ([u8; 16], u32) {
    let (mut out, mut reward) = ([0; 16], 0);
    for line in 0..4 {
        let place = |i: usize| match direction {
            0 => 4 * i + line,
            1 => 4 * (3 - i) + line,
            2 => 4 * line + i,
            _ => 4 * line + 3 - i,
        };
        let tiles: Vec<u8> = (0..4).map(|i| cells[place(i)]).filter(|&tile| tile != 0).collect();
        let (mut read, mut written) = (0, 0);
        while read < tiles.len() {
            let mut tile = tiles[read];
            if tiles.get(read + 1) == Some(&tile) && tile < 15 {
                tile += 1;
                read += 1;
                reward += 1 << tile;
            }
            out[place(written)] = tile;
            read += 1;
            written += 1;
        }
    }
    (out, reward)
}

#[test]
fn sliding_is_what_a_list_does() {
    let mut next = noise(11);
    for round in 0..40_000 {
        // Few different tiles, so that many merge; and now and then the largest.
        let mask = [0x3333_3333_3333_3333, 0x1111_1111_1111_1111, u64::MAX][round % 3];
        let board = (next() & mask) | if round % 7 == 0 { 0xEEEE_0000_0000_EEEE } else { 0 };
        let mut possible = 0;
        for direction in 0..4 {
            let (after, reward) = naive(cells(board), direction);
            let changed = after != cells(board);
            let found = slide(board, direction).map(|(after, reward)| (cells(after), reward));
            assert_eq!(found, changed.then_some((after, reward)), "{board:016x} {direction}");
            possible |= u8::from(changed) << direction;
        }
        assert_eq!(legal(board), possible, "{board:016x}");
    }
    assert_eq!(slide(0xFF00_0000_0000_0000, 2), None);
    assert_eq!(slide(0xEE00_0000_0000_0000, 2), Some((0xF000_0000_0000_0000, 32_768)));
    assert_eq!(slide(0xEEEE_EEEE_EEEE_EEEE, 0).unwrap().1, 8 * 32_768);
    assert_eq!((slide(0x1100_0000_0000_0000, 4), legal(0)), (None, 0));
}

#[test]
fn a_row_tells_what_training_asks() {
    let boards = vec![0x1100_0000_0000_0000, 0x2000_0000_0000_0001, 0x1234_5678_1234_5678];
    let run = Run {
        meta: Meta { steps: 2, ..game(0, false).meta },
        boards: boards.clone(),
        moves: vec![2, 2],
        branches: Some(Branches {
            values: vec![[f32::NAN; 4], [0.25, f32::NAN, f32::NAN, 1.0]],
            given: vec![0, GIVEN | 0b1001],
        }),
    };
    let mut found = vec![];
    project(&run, 5, &mut found);
    let [first, second] = found[..] else { panic!("two steps") };
    assert_eq!((first.board, first.next_board, first.reward), (boards[0], boards[1], 4));
    assert_eq!((first.run, first.step, first.steps_left, first.mv), (5, 0, 1, 2));
    assert_eq!((first.legal, first.last, first.terminal), (0b1110, 0, 0));
    assert!(first.branches.iter().all(|value| value.is_nan()));
    // What the player called legal stands, though the board says otherwise.
    assert_eq!((second.legal, second.last, second.terminal), (0b1001, 1, 1));
    assert_eq!((second.reward, second.steps_left), (0, 0));
    assert_eq!((second.branches[0], second.branches[3]), (0.25, 1.0));
    let bytes = second.to_bytes();
    assert_eq!(bytes[8..16], boards[2].to_le_bytes());
    assert_eq!(bytes[16..20], 0.25_f32.to_le_bytes());
    assert_eq!(bytes[32..52], [0, 0, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 9, 1, 1]);
    assert_eq!(bytes[52..], [0; 12]);
}

#[test]
fn lines_of_json_are_what_the_page_says() {
    let mut run = game(1, false);
    run.boards = vec![0x1100_0000_0000_0000, u64::MAX];
    run.meta.engine = Some("a \"b\"\n".to_owned());
    run.meta.elapsed_s = 0.1;
    let mut out = b"before\n".to_vec();
    write_run_line(&run, 3, "v1", false, Boards::Integers, &mut out).unwrap();
    write_run_line(&run, 3, "v2", true, Boards::Hex, &mut out).unwrap();
    write_step_lines(&run, 3, Boards::Integers, &mut out).unwrap();
    run.moves = vec![1];
    run.branches = Some(Branches {
        values: vec![[0.0, f32::NAN, 0.99999976, 1e-20]],
        given: vec![GIVEN | 0b1101],
    });
    write_step_lines(&run, 3, Boards::Hex, &mut out).unwrap();
    let text = String::from_utf8(out.clone()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let meta = "\"steps\":1,\"start_unix_s\":1757000000,\"elapsed_s\":0.1,\"max_score\":20504,\
                \"highest_tile\":2048,\"engine\":\"a \\\"b\\\"\\n\"";
    let mv = game(1, false).moves[0];
    assert_eq!(
        lines[1],
        format!("{{\"run_idx\":3,\"kind\":\"v1\",{meta},\"final_board\":18446744073709551615}}")
    );
    assert_eq!(
        lines[2],
        format!(
            "{{\"run_idx\":3,\"kind\":\"v2\",{meta},\"final_board\":\"ffffffffffffffff\",\
             \"states\":[\"1100000000000000\",\"ffffffffffffffff\"],\"moves\":[{mv}]}}"
        )
    );
    assert_eq!(
        lines[3],
        format!(
            "{{\"run_idx\":3,\"step_idx\":0,\"pre_board\":1224979098644774912,\"chosen\":{mv},\
             \"branches\":null}}"
        )
    );
    assert_eq!(
        lines[4],
        "{\"run_idx\":3,\"step_idx\":0,\"pre_board\":\"1100000000000000\",\"chosen\":1,\
         \"branches\":[0.0,null,0.99999976,1e-20]}"
    );

    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        run.branches.as_mut().unwrap().values[0][2] = bad;
        let refused = write_step_lines(&run, 3, Boards::Hex, &mut out);
        assert!(message(refused).starts_with("run 3, step 0: a branch value is"));
        run.meta.elapsed_s = bad;
        let refused = write_run_line(&run, 3, "v2", true, Boards::Hex, &mut out);
        assert!(message(refused).starts_with("run 3: `elapsed_s` is"));
    }
    assert_eq!(String::from_utf8(out).unwrap(), text);
}
