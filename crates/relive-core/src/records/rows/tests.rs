//! Rows of every kind of field, and those that need no reading any more.

use super::*;
use crate::codec::Codec;
use crate::pack::Verify;
use crate::records::files::{Io, ReadOptions};
use crate::records::state::Kind;
use crate::records::testing::{Hand, Row, compare, field, gather_table};
use crate::table::Table;

fn table(snapshot: &Arc<Snapshot>) -> (Arc<SnapshotRows>, Table) {
    let rows = Arc::new(SnapshotRows::new(Arc::clone(snapshot)));
    let table = Table::from_reader(Arc::clone(&rows) as Arc<dyn Reader>).unwrap();
    (rows, table)
}

fn open(hand: &Hand, io: Io, verify: Verify) -> Arc<Snapshot> {
    hand.open(ReadOptions { io, verify, ..ReadOptions::default() }).unwrap()
}

/// 512 rows in each chunk of the first field, which are five blocks and a part of the sixth.
fn two(rows: usize) -> Hand {
    let specs = vec![
        field("wide", Kind::Fixed, Codec::Raw, 700),
        field("narrow", Kind::Fixed, Codec::Raw, 8),
        field("text", Kind::Str, Codec::Raw, 1),
    ];
    let mut hand = Hand::new(specs, Some(1));
    hand.append(&(0..rows).map(values).collect::<Vec<_>>());
    hand.commit(true);
    hand
}

fn values(k: usize) -> Row {
    let number = (k as u32).to_le_bytes();
    vec![Some(number.repeat(175)), Some(number.repeat(2)), Some(number.repeat(k % 3))]
}

#[test]
fn a_column_is_memory_once_all_of_it_was_verified() {
    let hand = two(1100);
    let snapshot = open(&hand, Io::Mmap, Verify::First);
    let (reader, table) = table(&snapshot);
    let columns = || [0, 1, 2].map(|column| reader.rows(column).is_some());
    assert_eq!(columns(), [false; 3]);
    let take = |rows: &[i64]| {
        let found = gather_table(&table, rows, 2).unwrap();
        for (column, found) in found.iter().enumerate() {
            for (&row, found) in rows.iter().zip(found) {
                assert_eq!(Some(found), values(row as usize)[column].as_ref());
            }
        }
    };
    take(&[5, 1099, 5]);
    assert_eq!(columns(), [false; 3], "one of its chunks was not touched");
    take(&[600]);
    assert_eq!(columns(), [false, true, false], "all three chunks are one partial block each");
    take(&(0..1100).step_by(60).collect::<Vec<_>>());
    assert_eq!(columns(), [true, true, false]);
    take(&(0..1100).rev().collect::<Vec<_>>());
    let rows = reader.rows(0).unwrap();
    assert_eq!((rows.len(), rows.row_bytes()), (1100, 700));
    // Another snapshot of the same files knows what was verified.
    let again = open(&hand, Io::Mmap, Verify::Never);
    assert!(SnapshotRows::new(again).rows(0).is_some());
    for (io, verify) in [(Io::Mmap, Verify::Always), (Io::Pread, Verify::Never)] {
        let snapshot = open(&hand, io, verify);
        compare(&snapshot, &hand.rows).unwrap();
        assert!(SnapshotRows::new(snapshot).rows(0).is_none());
    }
}

#[test]
fn a_column_that_was_changed_is_read() {
    let mut hand = two(300);
    hand.change(7, 1, Some(b"changed!"));
    hand.commit(false);
    let snapshot = open(&hand, Io::Mmap, Verify::Never);
    let reader = SnapshotRows::new(Arc::clone(&snapshot));
    assert!(reader.rows(0).is_some() && reader.rows(1).is_none());
    compare(&snapshot, &hand.rows).unwrap();
    hand.delete(0);
    hand.commit(false);
    let snapshot = open(&hand, Io::Mmap, Verify::Never);
    assert!(SnapshotRows::new(Arc::clone(&snapshot)).rows(0).is_none());
    compare(&snapshot, &hand.rows).unwrap();
}

#[test]
fn several_stores_are_one_table() {
    let (first, second) = (two(300), two(700));
    let read = open(&first, Io::Mmap, Verify::First);
    let direct = open(&second, Io::Mmap, Verify::Never);
    let joined = Table::concat(&[table(&read).1, table(&direct).1]).unwrap();
    let rows: Vec<i64> = (0..1000).map(|k| k * 377 % 1000).collect();
    for threads in [1, 2] {
        // The second time both are memory.
        let found = gather_table(&joined, &rows, threads).unwrap();
        for (column, found) in found.iter().enumerate() {
            for (&row, found) in rows.iter().zip(found) {
                let number = if row < 300 { row } else { row - 300 };
                assert_eq!(Some(found), values(number as usize)[column].as_ref());
            }
        }
    }
}

#[test]
fn values_over_the_limit_take_no_room_and_are_refused() {
    let specs =
        vec![field("raw", Kind::Bytes, Codec::Raw, 1), field("zstd", Kind::Bytes, Codec::Zstd, 1)];
    let mut hand = Hand::new(specs, None);
    let long = vec![7; 5000];
    hand.append(&[
        vec![Some(long.clone()), Some(b"short".to_vec())],
        vec![Some(Vec::new()), Some(long)],
        vec![None, None],
    ]);
    hand.commit(true);
    for io in [Io::Mmap, Io::Pread] {
        let options = ReadOptions { io, max_value_bytes: 4999, ..ReadOptions::default() };
        let snapshot = hand.open(options).unwrap();
        let (reader, table) = table(&snapshot);
        assert_eq!((reader.items(1, 1), reader.items(0, 0), reader.items(0, 2)), (0, 5000, 0));
        assert_eq!(gather_table(&table, &[0, 2], 1).unwrap()[0][0].len(), 5000);
        let error = gather_table(&table, &[0, 1], 1).unwrap_err();
        assert_eq!(error.kind(), "too-large");
        for part in ["field \"zstd\"", "row 1", ".zr", "offset"] {
            assert!(error.to_string().contains(part), "{error}");
        }
        compare(&hand.open(ReadOptions { io, ..ReadOptions::default() }).unwrap(), &hand.rows)
            .unwrap();
    }
}

#[test]
fn pieces_are_where_the_bytes_are() {
    let hand = two(10);
    let snapshot = open(&hand, Io::Mmap, Verify::First);
    let rows = SnapshotRows::new(Arc::clone(&snapshot));
    let (start, bytes) = rows.stored_bytes(0, 3).unwrap();
    let view = snapshot.view(0, 3).unwrap().unwrap();
    assert_eq!((start, bytes), (view.start(), view.len()));
    assert_eq!(rows.stored_bytes(2, 2).unwrap().1, 32 + 8);
    let elsewhere = open(&hand, Io::Pread, Verify::First);
    assert!(table(&elsewhere).1.is_fetched() && !table(&snapshot).1.is_fetched());
    assert!(elsewhere.view(0, 3).unwrap().is_none());
}

#[test]
fn a_view_outlives_its_snapshot() {
    let hand = two(10);
    let snapshot = open(&hand, Io::Mmap, Verify::First);
    let views = [0, 1, 2].map(|column| snapshot.view(column, 5).unwrap().unwrap());
    drop(snapshot);
    for (view, value) in views.iter().zip(values(5)) {
        assert_eq!(Some(view.bytes()), value.as_deref());
    }
}
