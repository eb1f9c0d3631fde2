//! Rows of tables, of views and of readers.

use std::sync::atomic::Ordering;

use super::testing::Counted;
use super::*;
use crate::gather::Owner;

fn column(first: u32, len: u32) -> Column {
    let data: Arc<Vec<u8>> = Arc::new((first..first + len).flat_map(u32::to_le_bytes).collect());
    // SAFETY: the rows own the four bytes of each number.
    let rows =
        unsafe { Rows::new(data.as_ptr(), len as usize, 4, &[], 4, Arc::clone(&data) as Owner) };
    Column::Fixed(rows.unwrap())
}

fn numbers(first: u32, len: u32) -> Table {
    Table::new(vec![column(first, len)]).unwrap()
}

fn gather(table: &Table, rows: &[i64]) -> Vec<u32> {
    let mut locations = Vec::new();
    table.find(rows, &mut locations).unwrap();
    let mut out = vec![0_u8; rows.len() * 4];
    let target = Target { column: 0, offsets: &[], out: out.as_mut_ptr() };
    // SAFETY: `out` has room for one number per row.
    unsafe { table.gather(&locations, &[target], 3) }.unwrap();
    out.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

#[test]
fn order_and_repeats() {
    assert_eq!(gather(&numbers(100, 10), &[7, 0, 7]), [107, 100, 107]);
    assert_eq!(gather(&numbers(100, 10), &[]), [0_u32; 0]);
}

#[test]
fn many_rows_on_many_threads() {
    let table = numbers(0, 500_000);
    let rows: Vec<i64> = (0..500_000).rev().collect();
    let expected: Vec<u32> = (0..500_000).rev().collect();
    assert_eq!(gather(&table, &rows), expected);
}

#[test]
fn rows_that_do_not_exist_are_refused() {
    for bad in [-1, 10, i64::MAX, i64::MIN] {
        let error = numbers(0, 10).find(&[1, bad], &mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), "out-of-range");
        assert!(error.to_string().contains(&bad.to_string()));
    }
    assert!(numbers(0, 0).find(&[], &mut Vec::new()).is_ok());
    assert!(numbers(0, 0).find(&[0], &mut Vec::new()).is_err());
}

#[test]
fn views_of_views() {
    let joined = Table::concat(&[numbers(0, 3), numbers(50, 0), numbers(100, 2)]).unwrap();
    assert_eq!(gather(&joined, &[0, 1, 2, 3, 4]), [0, 1, 2, 100, 101]);
    let picked = joined.select(Arc::from([4, 0, 3])).unwrap();
    assert_eq!(gather(&picked, &[0, 1, 2]), [101, 0, 100]);
    let backwards = picked.select_range(2, -1, 3).unwrap();
    let both = Table::concat(&[numbers(7, 1), backwards]).unwrap();
    assert_eq!(gather(&both, &[0, 1, 2, 3]), [7, 100, 0, 101]);
    assert!(joined.select(Arc::from([5])).is_err());
    assert!(joined.select_range(3, 1, 3).is_err());
    assert!(joined.select_range(3, 1, 0).is_ok());
}

#[test]
fn a_mix_takes_turns_and_starts_over() {
    let mixed = Table::mix(&[numbers(0, 2), numbers(100, 9)], &[0, 1, 1], 9).unwrap();
    assert_eq!(
        gather(&mixed, &[0, 1, 2, 3, 4, 5, 6, 7, 8]),
        [0, 100, 101, 1, 102, 103, 0, 104, 105]
    );
    assert!(Table::mix(&[numbers(0, 0), numbers(0, 1)], &[0, 1], 2).is_err());
    assert!(Table::mix(&[numbers(0, 1)], &[1], 2).is_err());
}

#[test]
fn ragged_rows_keep_their_lengths() {
    let values = Arc::new((0..10_u8).collect::<Vec<u8>>());
    // SAFETY: the rows own the ten values.
    let rows = unsafe {
        RaggedRows::new(
            values.as_ptr(),
            5,
            2,
            Arc::from([0, 2, 2, 5]),
            Arc::clone(&values) as Owner,
        )
    };
    let table = Table::new(vec![Column::Ragged(rows.unwrap())]).unwrap();
    let (mut locations, mut offsets) = (Vec::new(), Vec::new());
    table.find(&[2, 1, 0, 2], &mut locations).unwrap();
    table.offsets(0, &locations, &mut offsets).unwrap();
    assert_eq!(offsets, [0, 3, 3, 5, 8]);
    let mut out = vec![0; 16];
    let target = Target { column: 0, offsets: &offsets, out: out.as_mut_ptr() };
    // SAFETY: eight items of two bytes.
    unsafe { table.gather(&locations, &[target], 1) }.unwrap();
    assert_eq!(out, [4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
}

#[test]
fn pieces_that_follow_each_other_are_one() {
    let table = numbers(0, 10);
    let mut locations = Vec::new();
    table.find(&[3, 4, 5, 9, 0, 1], &mut locations).unwrap();
    let pieces = std::cell::RefCell::new(Vec::new());
    table.each_range(&locations, |_, bytes| pieces.borrow_mut().push(bytes));
    assert_eq!(*pieces.borrow(), [12, 4, 8]);
}

#[test]
fn unequal_columns_are_refused() {
    assert!(
        Table::new(vec![column(0, 3), column(0, 4)]).is_err_and(|error| error.kind() == "invalid")
    );
}

/// Both columns of some rows.
fn gather_both(table: &Table, rows: &[i64], threads: usize) -> Result<(Vec<u8>, Vec<u8>)> {
    let (mut locations, mut offsets) = (Vec::new(), Vec::new());
    table.find(rows, &mut locations)?;
    table.offsets(1, &locations, &mut offsets)?;
    let mut fixed = vec![0; rows.len() * table.row_bytes(0)];
    let mut ragged = vec![0; offsets[rows.len()] as usize * 2];
    let targets = [
        Target { column: 0, offsets: &[], out: fixed.as_mut_ptr() },
        Target { column: 1, offsets: &offsets, out: ragged.as_mut_ptr() },
    ];
    // SAFETY: the buffers have the sizes that the table says.
    unsafe { table.gather(&locations, &targets, threads) }?;
    Ok((fixed, ragged))
}

/// What [`gather_both`] must give for the rows of these numbers.
fn both(numbers: impl IntoIterator<Item = u64>, width: usize) -> (Vec<u8>, Vec<u8>) {
    let (mut fixed, mut ragged) = (Vec::new(), Vec::new());
    for number in numbers {
        fixed.extend(testing::fixed(number, width));
        ragged.extend(testing::ragged(number));
    }
    (fixed, ragged)
}

#[test]
fn a_reader_is_asked_once_for_all_rows_and_columns() {
    let (reader, table) = Counted::new(100, 50, 8, true).table();
    let found = gather_both(&table, &[7, 0, 7, 49, 2], 1).unwrap();
    assert_eq!(found, both([107, 100, 107, 149, 102], 8));
    assert_eq!(reader.take_calls(), [(vec![7, 0, 7, 49, 2], vec![0, 1])]);
    assert_eq!(reader.begins.load(Ordering::Relaxed), 1);
    assert_eq!(gather_both(&table, &[], 4).unwrap(), (vec![], vec![]));
    assert!(reader.take_calls().is_empty(), "nothing to read");
    assert_eq!((table.len(), table.row_bytes(0), table.row_bytes(1)), (50, 8, 0));
    assert!(table.find(&[50], &mut Vec::new()).is_err() && table.check(&[-1]).is_err());
}

#[test]
fn only_the_wanted_columns_are_read() {
    let (reader, table) = Counted::new(0, 9, 4, true).table();
    assert_eq!(gather(&table, &[8, 3]), [8, 3]);
    assert_eq!(reader.take_calls(), [(vec![8, 3], vec![0])]);
    let mut locations = Vec::new();
    table.find(&[1], &mut locations).unwrap();
    // SAFETY: there is no column to write.
    unsafe { table.gather(&locations, &[], 1) }.unwrap();
    assert!(reader.take_calls().is_empty());
}

#[test]
fn threads_share_the_rows_of_a_reader() {
    let (reader, table) = Counted::new(0, 5000, 64, true).table();
    let rows: Vec<i64> = (0..5000).map(|k| k * 7 % 5000).collect();
    let expected = both(rows.iter().map(|&row| row as u64), 64);
    for (threads, calls) in [(1, 1), (2, 8), (4, 10)] {
        let before = reader.begins.load(Ordering::Relaxed);
        assert!(gather_both(&table, &rows, threads).unwrap() == expected);
        assert_eq!(reader.begins.load(Ordering::Relaxed), before + 1, "once for a batch");
        let mut asked = reader.take_calls();
        assert_eq!(asked.len(), calls, "for {threads} threads");
        let mut asked: Vec<u64> = asked.drain(..).flat_map(|(rows, _)| rows).collect();
        asked.sort_unstable();
        assert!(asked.into_iter().eq(0..5000));
    }
}

#[test]
fn views_and_joins_of_memory_and_readers() {
    let (first, a) = Counted::new(0, 40, 12, true).table();
    let (second, b) = Counted::new(1000, 40, 12, true).table();
    let c = testing::in_memory(2000, 40, 12, true);
    let joined = Table::concat(&[a.clone(), c.clone(), b.clone()]).unwrap();
    let number = |row: i64| match row / 40 {
        0 => row as u64,
        1 => 2000 + row as u64 - 40,
        _ => 1000 + row as u64 - 80,
    };
    // From one leaf to the next and back, so that no two neighbours are of one leaf.
    let rows: Vec<i64> = (0..90).map(|k| k % 3 * 40 + k * 11 % 40).collect();
    let expected = both(rows.iter().map(|&row| number(row)), 12);
    for threads in [1, 2, 4] {
        assert_eq!(gather_both(&joined, &rows, threads).unwrap(), expected);
        for reader in [&first, &second] {
            assert_eq!(reader.take_calls().len(), 1, "one call for all rows of a reader");
        }
    }
    assert_eq!(first.begins.load(Ordering::Relaxed), 3);
    gather_both(&joined, &[0, 1, 45], 1).unwrap();
    assert!(second.take_calls().is_empty());
    assert_eq!(second.begins.load(Ordering::Relaxed), 3, "it has no row in this batch");

    let picked = joined.select(rows.clone().into()).unwrap().select_range(89, -2, 45).unwrap();
    let expected = both(rows.iter().rev().step_by(2).map(|&row| number(row)), 12);
    assert_eq!(gather_both(&picked, &(0..45).collect::<Vec<_>>(), 2).unwrap(), expected);

    let mixed = Table::mix(&[c, a, picked], &[0, 1, 1, 2], 8).unwrap();
    let turns = [2000, 0, 1, number(rows[89]), 2001, 2, 3, number(rows[87])];
    assert_eq!(gather_both(&mixed, &(0..8).collect::<Vec<_>>(), 1).unwrap(), both(turns, 12));
    assert!(joined.overlaps(&(0..usize::MAX)), "what lies in memory");
    assert!(!b.overlaps(&(0..usize::MAX)), "nobody can write to what a reader has");
}

#[test]
fn many_rows_of_mixed_leaves_on_many_threads() {
    let (_, a) = Counted::new(0, 4000, 40, true).table();
    let b = testing::in_memory(4000, 4000, 40, true);
    let joined = Table::concat(&[a, b]).unwrap();
    let rows: Vec<i64> = (0..8000).map(|k| k * 4001 % 8000).collect();
    let expected = both(rows.iter().map(|&row| row as u64), 40);
    for threads in [1, 2, 4] {
        assert!(gather_both(&joined, &rows, threads).unwrap() == expected);
    }
}

#[test]
fn the_first_error_is_the_one_that_is_told() {
    let mut reader = Counted::new(0, 5000, 64, true);
    reader.corrupt = vec![4800, 700, 2300];
    let (reader, table) = reader.table();
    let rows: Vec<i64> = (0..5000).collect();
    for threads in [1, 2, 4] {
        for _ in 0..20 {
            let error = gather_both(&table, &rows, threads).unwrap_err();
            assert_eq!(
                (error.kind(), error.to_string().as_str()),
                ("corrupt", "row 700 is corrupt")
            );
        }
    }
    reader.take_calls();
    gather_both(&table, &rows, 1).unwrap_err();
    assert_eq!(reader.take_calls().len(), 1);
    let good: Vec<i64> = (701..2300).collect();
    assert!(gather_both(&table, &good, 2).unwrap() == both(701..2300, 64));
    let joined = Table::concat(&[testing::in_memory(0, 9, 64, true), table]).unwrap();
    assert_eq!(gather_both(&joined, &[3, 9 + 2300, 4], 1).unwrap_err().kind(), "corrupt");
    assert!(gather_both(&joined, &[3, 9 + 2301, 4], 1).is_ok());
}

#[test]
fn nothing_is_read_where_a_batch_may_not_begin() {
    let mut reader = Counted::new(0, 10, 4, true);
    reader.refuses = true;
    let (reader, table) = reader.table();
    assert_eq!(gather_both(&table, &[1, 2], 2).unwrap_err().kind(), "corrupt");
    assert!(reader.take_calls().is_empty());
}

#[test]
fn tables_of_other_columns_are_not_joined() {
    let (_, both) = Counted::new(0, 4, 8, true).table();
    let (_, fixed) = Counted::new(0, 4, 8, false).table();
    let narrow = testing::in_memory(0, 4, 4, true);
    for other in [fixed, narrow] {
        assert!(Table::concat(&[both.clone(), other.clone()]).is_err());
        assert!(Table::mix(&[both.clone(), other], &[0, 1], 2).is_err());
    }
    assert!(Table::concat(&[]).is_err());
}

#[test]
fn sizes_beyond_memory_are_refused() {
    let too_large = |table: Result<Table>| table.is_err_and(|error| error.kind() == "too-large");
    let of_reader = |reader: Counted| Table::from_reader(Arc::new(reader));
    assert!(too_large(of_reader(Counted::new(0, u64::MAX, 8, false))));
    assert!(too_large(of_reader(Counted::new(0, 1, usize::MAX, false))));
    let mut reader = Counted::new(0, 10, 4, true);
    reader.endless = Some(4);
    let (reader, table) = reader.table();
    for rows in [vec![4], vec![1, 4, 4, 4, 4]] {
        assert_eq!(gather_both(&table, &rows, 1).unwrap_err().kind(), "too-large");
    }
    assert!(reader.take_calls().is_empty());
    assert!(gather_both(&table, &[3, 5], 1).is_ok());
}

#[test]
fn pieces_of_a_reader_are_its_rows() {
    let mut reader = Counted::new(0, 10, 100, true);
    reader.stored = Some(vec![0; 40]);
    let (_, stored) = reader.table();
    let (_, elsewhere) = Counted::new(0, 10, 100, true).table();
    assert!(elsewhere.is_fetched() && !stored.is_fetched());
    let joined = Table::concat(&[elsewhere, stored]).unwrap();
    assert!(joined.is_fetched() && !numbers(0, 3).is_fetched());
    let mut locations = Vec::new();
    joined.find(&[13, 2, 14, 15, 15, 3, 11, 11], &mut locations).unwrap();
    let pieces = std::cell::RefCell::new(Vec::new());
    joined.each_range(&locations, |_, bytes| pieces.borrow_mut().push(bytes));
    assert_eq!(*pieces.borrow(), [12, 4, 4], "13 to 15, 15 again, 11 twice; no others");
}

#[test]
fn a_column_that_turns_to_memory_is_not_read_any_more() {
    let (reader, table) = Counted::new(100, 900, 12, true).table();
    let rows: Vec<i64> = (0..900).map(|k| k * 7 % 900).collect();
    let expected = both(rows.iter().map(|&row| row as u64 + 100), 12);
    assert_eq!(gather_both(&table, &rows, 1).unwrap(), expected);
    assert_eq!(reader.take_calls()[0].1, [0, 1]);
    reader.turn_direct();
    for threads in [1, 2, 4] {
        let before = reader.begins.load(Ordering::Relaxed);
        assert_eq!(gather_both(&table, &rows, threads).unwrap(), expected);
        assert_eq!(reader.begins.load(Ordering::Relaxed), before + 1, "its files are looked at");
        for (_, columns) in reader.take_calls() {
            assert_eq!(columns, [1], "the other column is");
        }
    }
    let picked = table.select_range(899, -1, 900).unwrap();
    let mut locations = Vec::new();
    picked.find(&[0, 899], &mut locations).unwrap();
    let mut out = [0; 24];
    let target = Target { column: 0, offsets: &[], out: out.as_mut_ptr() };
    // SAFETY: there is room for two rows.
    unsafe { picked.gather(&locations, &[target], 1) }.unwrap();
    assert_eq!(out[..], both([999, 100], 12).0);
    assert!(reader.take_calls().is_empty());
    assert!(!table.overlaps(&(0..usize::MAX)), "nobody can write to what a reader has");
}

#[test]
fn leaves_turn_to_memory_one_by_one() {
    let (first, a) = Counted::new(0, 40, 12, true).table();
    let (second, b) = Counted::new(1000, 40, 12, true).table();
    let c = testing::in_memory(2000, 40, 12, true);
    let joined = Table::concat(&[a, c, b]).unwrap();
    let number = |row: i64| [0, 1960, 920][row as usize / 40] + row as u64;
    let rows: Vec<i64> = (0..90).map(|k| k % 3 * 40 + k * 11 % 40).collect();
    let expected = both(rows.iter().map(|&row| number(row)), 12);
    let columns = |reader: &Counted| {
        let mut calls = reader.take_calls();
        assert_eq!(calls.len(), 1);
        calls.remove(0).1
    };
    assert_eq!(gather_both(&joined, &rows, 1).unwrap(), expected);
    assert_eq!((columns(&first), columns(&second)), (vec![0, 1], vec![0, 1]));
    first.turn_direct();
    assert_eq!(gather_both(&joined, &rows, 1).unwrap(), expected);
    assert_eq!((columns(&first), columns(&second)), (vec![0, 1], vec![0, 1]), "not all are");
    second.turn_direct();
    assert_eq!(gather_both(&joined, &rows, 1).unwrap(), expected);
    assert_eq!((columns(&first), columns(&second)), (vec![1], vec![1]));
}

#[test]
fn a_refused_batch_is_refused_for_each_of_its_parts() {
    // Another thread must not read rows of a file whose check has just failed.
    let mut reader = Counted::new(0, 10, 4, false);
    reader.refuses = true;
    let (_, table) = reader.table();
    let mut locations = Vec::new();
    table.find(&[1, 2], &mut locations).unwrap();
    let mut begun = Vec::new();
    for location in &locations {
        let error = table.begin(std::slice::from_ref(location), &mut begun).unwrap_err();
        assert_eq!(error.to_string(), "the file was cut");
    }
}
