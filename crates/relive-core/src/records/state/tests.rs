//! A state against a list of rows.

use super::spec::tests::spec;
use super::*;
use crate::codec::Codec;
use crate::records::journal_records::Position;
use crate::records::meta::Meta;

fn empty() -> State {
    let mut dense = spec("dense", Kind::Fixed, Codec::Raw, 512);
    let mut heap = spec("heap", Kind::Bytes, Codec::Zstd, 1);
    (dense.id, heap.id) = (4, 9);
    let field = |spec| FieldState::new(Arc::new(spec), Some(8), 1 << 20);
    State {
        uid: [1; 16],
        generation: 0,
        sequence: 0,
        length: 0,
        next_chunk: 0,
        next_field: 10,
        chunk_records: Some(8),
        chunk_bytes: 1 << 20,
        chunks: BTreeMap::new(),
        fields: vec![field(dense), field(heap)],
    }
}

fn entry(number: u64) -> Entry {
    Entry { chunk: 0, offset: PAGE + number * 64, length: 40 }
}

/// Does random things to a state and to a list, through groups that are checked.
#[test]
fn it_is_a_list_that_deletes_by_moving_its_last() {
    let mut number = 3_u64;
    let mut random = move |below: u64| {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
        (number >> 33) % below
    };
    let mut state = empty();
    let mut list: Vec<[Location; 2]> = Vec::new();
    let (mut physical, mut written, mut dense_chunks) = (0, 0, 0);
    let mut ops = vec![Op::Chunk { number: 0, field: None }];
    for call in 1..3000_u64 {
        match random(10) {
            0..4 => {
                let rows = random(6);
                let dense = random(3) > 0;
                let entries: Vec<Entry> = (0..rows).map(|k| entry(written + k)).collect();
                for (k, entry) in entries.iter().enumerate() {
                    let place = if dense {
                        Location::Dense(physical + k as u64)
                    } else {
                        Location::Missing
                    };
                    list.push([place, Location::Entry(*entry)]);
                }
                written += rows;
                physical += if dense { rows } else { 0 };
                while dense_chunks * 8 < physical {
                    dense_chunks += 1;
                    ops.push(Op::Chunk { number: dense_chunks as u32, field: Some(4) });
                }
                let how = if dense { AppendedValues::Dense } else { AppendedValues::Missing };
                ops.push(Op::Append {
                    rows,
                    fields: vec![(4, how), (9, AppendedValues::Entries(entries))],
                });
            }
            4..7 if !list.is_empty() => {
                let row = random(list.len() as u64);
                let value = if random(4) > 0 { entry(written) } else { Entry::MISSING };
                written += 1;
                let column = random(2) as usize;
                list[row as usize][column] = found(value);
                ops.push(Op::Change { row, fields: vec![([4, 9][column], value)] });
            }
            7..9 if !list.is_empty() => {
                let row = random(list.len() as u64);
                list.swap_remove(row as usize);
                ops.push(Op::Delete { row });
            }
            _ => {}
        }
        let position =
            Position { chunk: 0, tail: 0, position: PAGE + written * 64, records: written };
        let commit = Commit {
            synced: false,
            ops: ops.len() as u32,
            sequence: call,
            length: list.len() as u64,
            crc: 0,
            chunks: vec![position],
        };
        state.check(&ops, &commit).unwrap();
        let wrong = Commit { length: commit.length + 1, ..commit.clone() };
        assert_eq!(state.check(&ops, &wrong).unwrap_err().kind(), "corrupt");
        for op in ops.drain(..) {
            state.apply(&op);
        }
        state.commit(&commit.chunks, commit.sequence);
        assert_eq!(state.length, list.len() as u64);
        for (row, wanted) in list.iter().enumerate() {
            for (field, wanted) in state.fields.iter().zip(wanted) {
                assert_eq!(field.find(row as u64), *wanted, "row {row} of {}", field.spec.name);
            }
        }
    }
    assert!(state.weight() > 0 && state.fields[1].changed() > 0);
}

#[test]
fn what_does_not_follow_is_refused() {
    let mut state = empty();
    let commit =
        |length, chunks| Commit { synced: false, ops: 0, sequence: 1, length, crc: 0, chunks };
    let at = |chunk, position| Position { chunk, tail: 0, position, records: 1 };
    let heap = Op::Chunk { number: 0, field: None };
    let one = |how| Op::Append { rows: 1, fields: vec![(9, how)] };
    let here = one(AppendedValues::Entries(vec![entry(0)]));
    // A chunk that is not there, a position that is too low, two values for one row.
    let bad: Vec<(Vec<Op>, Commit)> = vec![
        (vec![here.clone()], commit(1, vec![at(0, 9999)])),
        (vec![heap.clone(), here.clone()], commit(1, vec![])),
        (vec![heap.clone(), here.clone()], commit(1, vec![at(0, PAGE + 39)])),
        (vec![heap.clone(), here.clone()], commit(1, vec![at(0, 9999), at(0, 9999)])),
        (vec![one(AppendedValues::Dense)], commit(1, vec![])),
        (vec![heap.clone(), one(AppendedValues::Entries(vec![]))], commit(1, vec![])),
        (vec![Op::Append { rows: 1, fields: vec![(4, AppendedValues::Dense)] }], commit(1, vec![])),
        (vec![Op::Append { rows: u64::MAX, fields: vec![] }], commit(u64::MAX, vec![])),
        (
            vec![Op::Append { rows: 1, fields: vec![(7, AppendedValues::Missing)] }],
            commit(1, vec![]),
        ),
        (vec![Op::Delete { row: 0 }], commit(0, vec![])),
        (vec![Op::Change { row: 0, fields: vec![] }], commit(0, vec![])),
        (vec![heap.clone(), heap.clone()], commit(0, vec![])),
        (vec![Op::Chunk { number: 0, field: Some(9) }], commit(0, vec![])),
        (vec![Op::Chunk { number: u32::MAX, field: None }], commit(0, vec![])),
    ];
    for (ops, commit) in bad {
        assert_eq!(state.check(&ops, &commit).unwrap_err().kind(), "corrupt", "{ops:?}");
    }
    let good = commit(1, vec![at(0, PAGE + 40)]);
    state.check(&[heap.clone(), here.clone()], &good).unwrap();
    for op in [heap, here] {
        state.apply(&op);
    }
    state.commit(&good.chunks, good.sequence);
    let back = commit(1, vec![at(0, PAGE)]);
    assert!(state.check(&[], &back).is_err());
}

#[test]
fn meta_says_what_the_state_is() {
    let mut state = empty();
    for op in [
        Op::Chunk { number: 0, field: Some(4) },
        Op::Append {
            rows: 5,
            fields: vec![(4, AppendedValues::Dense), (9, AppendedValues::Missing)],
        },
        Op::Delete { row: 4 },
        Op::Append { rows: 2, fields: vec![(4, AppendedValues::Dense)] },
    ] {
        state.apply(&op);
    }
    let position = Position { chunk: 0, tail: 3, position: PAGE + 7 * 512, records: 7 };
    let commit =
        Commit { synced: true, ops: 0, sequence: 4, length: 6, crc: 0, chunks: vec![position] };
    state.commit(&commit.chunks, commit.sequence);
    let meta = state.to_meta("0.journal");
    let text = meta.to_text().unwrap();
    let again = State::from_meta(&Meta::parse(text.as_bytes()).unwrap()).unwrap();
    assert_eq!(again.to_meta("0.journal"), meta);
    for row in 0..6 {
        assert_eq!(again.fields[0].find(row), state.fields[0].find(row));
        assert_eq!(again.fields[1].find(row), Location::Missing);
    }
    assert_eq!(again.fields[0].find(5), Location::Dense(6));
    assert!(!again.fields[0].is_plain(6));

    let broken: [fn(&mut Meta); 9] = [
        |meta| meta.uid.push('0'),
        |meta| meta.fields[0].physical = 9,
        |meta| meta.fields[0].rows = 3,
        |meta| meta.fields[0].chunks = vec![5],
        |meta| meta.fields[1].id = 4,
        |meta| meta.fields[1].table = Some(("../x".into(), 2)),
        |meta| meta.heap = vec![0],
        |meta| meta.chunks.next = 0,
        |meta| meta.fields[0].extents = vec![(0, 0, 99)],
    ];
    for change in broken {
        let mut meta = meta.clone();
        change(&mut meta);
        assert_eq!(State::from_meta(&meta).unwrap_err().kind(), "corrupt", "{meta:?}");
    }
}
