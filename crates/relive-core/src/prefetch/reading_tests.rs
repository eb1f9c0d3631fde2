//! Batches of readers: errors come at their place, once, and end the stream.

use super::tests::{PATIENCE, bytes_of, expected_rows, sampler};
use super::*;
use crate::table::testing::{Counted, fixed, in_memory, ragged};

/// Widths and batch sizes: small batches, one per thread, and large ones that are shared.
const SIZES: [(usize, u64); 2] = [(16, 8), (60_000, 50)];

const LEN: u64 = 100;

fn next(prefetch: &Prefetch) -> Result<Option<Box<Batch>>> {
    loop {
        match prefetch.next(PATIENCE)? {
            Next::Ready(batch) => return Ok(Some(batch)),
            Next::Waiting => {}
            Next::NeedsSlab => prefetch.give_slab(Slab::new(prefetch.layout().bytes)?)?,
            Next::End => return Ok(None),
        }
    }
}

fn start(tables: Vec<Table>, batch_size: u64, workers: usize, foreign: bool) -> Prefetch {
    let settings = Settings { workers, depth: 3, foreign };
    Prefetch::start(tables, sampler(LEN, batch_size, None, Some(3)), settings).unwrap()
}

fn expected(batch_size: u64) -> Vec<Vec<i64>> {
    expected_rows(sampler(LEN, batch_size, None, Some(3)))
}

/// The number of the first batch that has the row.
fn batch_of(row: u64, batch_size: u64) -> usize {
    expected(batch_size).iter().position(|rows| rows.contains(&(row as i64))).unwrap()
}

fn check(batch: &Batch, rows: &[i64], width: usize, with_ragged: bool) {
    let wanted: Vec<u8> = rows.iter().flat_map(|&row| fixed(row as u64, width)).collect();
    assert!(bytes_of(&batch.fixed, wanted.len()) == wanted);
    if with_ragged {
        let (values, offsets) = &batch.ragged[0];
        let wanted: Vec<u8> = rows.iter().flat_map(|&row| ragged(row as u64)).collect();
        assert!(bytes_of(values, wanted.len()) == wanted);
        assert_eq!(offsets.last().copied(), Some(wanted.len() as i64 / 2));
    }
}

/// The first and the second half of all rows, in memory and not.
fn halves(reader: Counted, width: usize, with_ragged: bool) -> (Arc<Counted>, Table) {
    let (reader, table) = reader.table();
    let rest = in_memory(reader.len, LEN - reader.len, width, with_ragged);
    (reader, Table::concat(&[table, rest]).unwrap())
}

#[test]
fn readers_give_the_same_stream_as_memory() {
    for (width, batch_size) in SIZES {
        for with_ragged in [false, true] {
            for workers in [0, 1, 2, 4] {
                let (reader, table) =
                    halves(Counted::new(0, 60, width, with_ragged), width, with_ragged);
                let prefetch = start(vec![table], batch_size, workers, false);
                let expected = expected(batch_size);
                for rows in &expected {
                    let batch = next(&prefetch).unwrap().unwrap();
                    check(&batch, rows, width, with_ragged);
                }
                assert!(next(&prefetch).unwrap().is_none());
                prefetch.close();
                let begins = reader.begins.load(Ordering::Relaxed);
                assert_eq!(begins, expected.len(), "once for each batch");
                let calls = reader.take_calls().len();
                if batch_size == 8 || workers == 0 {
                    assert_eq!(calls, expected.len(), "one call for each batch");
                } else {
                    assert!(calls > expected.len(), "one call for each part");
                }
            }
        }
    }
}

#[test]
fn an_error_comes_at_its_place_and_once() {
    for (width, batch_size) in SIZES {
        for with_ragged in [false, true] {
            for (workers, foreign) in [(0, false), (1, true), (2, false), (4, true)] {
                let mut reader = Counted::new(0, 60, width, with_ragged);
                // The later one may be found first and is not told.
                let (bad, later) = (41, 17);
                reader.corrupt = vec![bad, later];
                let (bad, later) = if batch_of(bad, batch_size) <= batch_of(later, batch_size) {
                    (bad, later)
                } else {
                    (later, bad)
                };
                let (reader, table) = halves(reader, width, with_ragged);
                let prefetch = start(vec![table], batch_size, workers, foreign);
                let place = batch_of(bad, batch_size);
                for rows in &expected(batch_size)[..place] {
                    check(&next(&prefetch).unwrap().unwrap(), rows, width, with_ragged);
                }
                let error = next(&prefetch).err().unwrap();
                assert_eq!(error.kind(), "corrupt");
                // One batch may have both; then it is the first row that counts.
                if place < batch_of(later, batch_size) {
                    assert_eq!(error.to_string(), format!("row {bad} is corrupt"));
                }
                for _ in 0..3 {
                    assert!(next(&prefetch).unwrap().is_none(), "the stream has ended");
                }
                assert!(!prefetch.needs_slab());
                prefetch.close();
                assert!(matches!(prefetch.next(PATIENCE), Err(Error::Closed(_))));
                let calls = reader.take_calls().len();
                let most = (place + 1 + workers + 4) * (2 * workers).max(1);
                assert!(calls <= most, "{calls} calls for a stream of {place} batches");
            }
        }
    }
}

#[test]
fn threads_begin_nothing_after_an_error() {
    let mut reader = Counted::new(0, LEN, 16, false);
    reader.corrupt = vec![expected(4)[5][0] as u64];
    let (reader, table) = reader.table();
    let settings = Settings { workers: 3, depth: 3, foreign: false };
    let prefetch = Prefetch::start(vec![table], sampler(LEN, 4, None, None), settings).unwrap();
    let mut given = 0;
    let error = loop {
        match next(&prefetch) {
            Ok(batch) => given += usize::from(batch.is_some()),
            Err(error) => break error,
        }
    };
    assert_eq!((given, error.kind()), (5, "corrupt"));
    reader.take_calls();
    thread::sleep(Duration::from_millis(30));
    assert!(next(&prefetch).unwrap().is_none());
    thread::sleep(Duration::from_millis(30));
    // Calls that were on their way when the error was handed out.
    assert!(reader.take_calls().len() <= 3);
    thread::sleep(Duration::from_millis(30));
    assert!(reader.take_calls().is_empty());
}

#[test]
fn a_batch_that_cannot_be_begun_ends_the_stream_too() {
    let endless = expected(8)[6][3] as u64;
    for workers in [0, 1, 3] {
        for later_is_corrupt in [false, true] {
            let mut reader = Counted::new(0, LEN, 16, true);
            reader.endless = Some(endless);
            if later_is_corrupt {
                // Found while the other waits to be told; it comes before it.
                reader.corrupt = vec![expected(8)[4][0] as u64];
            }
            let (_, table) = reader.table();
            let prefetch = start(vec![table], 8, workers, false);
            for rows in &expected(8)[..if later_is_corrupt { 4 } else { 6 }] {
                check(&next(&prefetch).unwrap().unwrap(), rows, 16, true);
            }
            let kind = if later_is_corrupt { "corrupt" } else { "too-large" };
            assert_eq!(next(&prefetch).err().unwrap().kind(), kind);
            assert!(next(&prefetch).unwrap().is_none() && next(&prefetch).unwrap().is_none());
        }
    }
}

#[test]
fn a_reader_that_refuses_a_batch_reads_nothing() {
    for workers in [0, 2] {
        let mut reader = Counted::new(0, LEN, 60_000, false);
        reader.refuses = true;
        let (reader, table) = reader.table();
        let prefetch = start(vec![in_memory(0, LEN, 4, false), table], 50, workers, false);
        assert_eq!(next(&prefetch).err().unwrap().to_string(), "the file was cut");
        assert!(next(&prefetch).unwrap().is_none());
        assert!(reader.take_calls().is_empty());
    }
}

#[test]
fn a_panic_costs_its_batch_alone() {
    let bad = expected(8)[4][2] as u64;
    for workers in [0, 1, 3] {
        let mut reader = Counted::new(0, LEN, 16, false);
        reader.panics = Some(bad);
        let (_, table) = reader.table();
        let prefetch = start(vec![table], 8, workers, false);
        for rows in expected(8) {
            if rows.contains(&(bad as i64)) {
                assert_eq!(next(&prefetch).err().unwrap().kind(), "invalid");
            } else {
                check(&next(&prefetch).unwrap().unwrap(), &rows, 16, false);
            }
        }
        assert!(next(&prefetch).unwrap().is_none());
    }
}

#[test]
fn a_panic_before_a_batch_is_begun_ends_the_stream() {
    for workers in [0, 1, 3] {
        let mut reader = Counted::new(0, LEN, 16, true);
        reader.unmeasured = Some(expected(8)[4][2] as u64);
        let (_, table) = reader.table();
        let prefetch = start(vec![table], 8, workers, false);
        for rows in &expected(8)[..4] {
            check(&next(&prefetch).unwrap().unwrap(), rows, 16, true);
        }
        assert_eq!(next(&prefetch).err().unwrap().kind(), "invalid");
        assert!(next(&prefetch).unwrap().is_none());
    }
}

#[test]
fn closing_returns_while_batches_fail() {
    for round in 0..20 {
        let mut reader = Counted::new(0, LEN, 60_000, false);
        reader.corrupt = (0..LEN).filter(|row| row % 10 == round % 10).collect();
        let (_, table) = reader.table();
        let prefetch = start(vec![table], 50, 3, round % 2 == 0);
        if round % 3 == 0 {
            assert!(next(&prefetch).is_err());
        }
        prefetch.close();
        assert!(matches!(prefetch.next(PATIENCE), Err(Error::Closed(_))));
    }
}
