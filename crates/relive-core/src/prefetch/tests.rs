//! Order, ownership and life of a prefetch.

use super::*;
use crate::gather::{Owner, RaggedRows, Rows};
use crate::sample::{Mode, Tail};
use crate::table::Column;

pub(super) const PATIENCE: Duration = Duration::from_millis(50);

/// `len` rows of `width` bytes, each byte the number of its row.
fn table(len: usize, width: usize) -> Table {
    let data: Arc<Vec<u8>> = Arc::new((0..len * width).map(|k| (k / width) as u8).collect());
    // SAFETY: the rows own the bytes they describe.
    let rows = unsafe {
        let owner = Arc::clone(&data) as Owner;
        Rows::new(data.as_ptr(), len, width as isize, &[(width, 1)], 1, owner)
    };
    Table::new(vec![Column::Fixed(rows.unwrap())]).unwrap()
}

/// Row `k` is `k % 5` bytes, each the number of the row.
fn ragged(len: usize) -> Table {
    let mut values = Vec::new();
    let mut offsets = vec![0_i64];
    for k in 0..len {
        values.extend(std::iter::repeat_n(k as u8, k % 5));
        offsets.push(values.len() as i64);
    }
    let values = Arc::new(values);
    // SAFETY: the rows own the bytes they describe.
    let rows = unsafe {
        let owner = Arc::clone(&values) as Owner;
        RaggedRows::new(values.as_ptr(), values.len(), 1, offsets.into(), owner)
    };
    Table::new(vec![Column::Ragged(rows.unwrap())]).unwrap()
}

pub(super) fn sampler(
    length: u64,
    batch_size: u64,
    window: Option<u64>,
    epochs: Option<u64>,
) -> Sampler {
    Sampler::new(Plan {
        length,
        batch_size,
        mode: Mode::Shuffle,
        tail: Tail::Keep,
        seed: 1,
        window,
        stride: None,
        rank: 0,
        world_size: 1,
        epochs,
        blocks: None,
        partitions: 1,
        rows_per_step: None,
    })
    .unwrap()
}

fn start(tables: Vec<Table>, workers: usize, depth: usize, foreign: bool) -> Prefetch {
    let settings = Settings { workers, depth, foreign };
    Prefetch::start(tables, sampler(100, 4, None, None), settings).unwrap()
}

fn next(prefetch: &Prefetch) -> Option<Box<Batch>> {
    loop {
        match prefetch.next(PATIENCE).unwrap() {
            Next::Ready(batch) => return Some(batch),
            Next::Waiting => {}
            Next::NeedsSlab => {
                prefetch.give_slab(Slab::new(prefetch.layout().bytes).unwrap()).unwrap();
            }
            Next::End => return None,
        }
    }
}

pub(super) fn bytes_of(loan: &Loan, bytes: usize) -> Vec<u8> {
    // SAFETY: the batch holds at least so many bytes.
    unsafe { std::slice::from_raw_parts(loan.start(), bytes) }.to_vec()
}

pub(super) fn expected_rows(mut sampler: Sampler) -> Vec<Vec<i64>> {
    let plan = sampler.plan().clone();
    std::iter::from_fn(|| {
        let step = sampler.step()?;
        let mut rows = Vec::new();
        plan.rows(&step, 0..step.samples, &mut rows);
        Some(rows)
    })
    .collect()
}

#[test]
fn batches_come_in_order_whatever_the_threads() {
    let settings =
        [(0, 1, false), (1, 1, false), (1, 4, true), (2, 4, false), (5, 3, true), (4, 64, false)];
    // Small batches, one per thread, and large ones that the threads share; then windows.
    for (width, batch_size, window) in [(16, 8, None), (60_000, 50, None), (30_000, 30, Some(3))] {
        let expected = expected_rows(sampler(100, batch_size, window, Some(3)));
        for (workers, depth, foreign) in settings {
            for with_ragged in [false, true] {
                let mut tables = vec![table(100, width), table(100, 3)];
                if with_ragged {
                    tables.push(ragged(100));
                }
                let sampler = sampler(100, batch_size, window, Some(3));
                let settings = Settings { workers, depth, foreign };
                let prefetch = Prefetch::start(tables, sampler, settings).unwrap();
                for rows in &expected {
                    let batch = next(&prefetch).unwrap();
                    let wanted: Vec<u8> = rows.iter().flat_map(|&r| vec![r as u8; width]).collect();
                    assert!(bytes_of(&batch.fixed, wanted.len()) == wanted);
                    if with_ragged {
                        let (values, offsets) = &batch.ragged[0];
                        let wanted: Vec<u8> =
                            rows.iter().flat_map(|&r| vec![r as u8; r as usize % 5]).collect();
                        assert!(bytes_of(values, wanted.len()) == wanted);
                        assert_eq!(offsets.last().copied(), Some(wanted.len() as i64));
                    }
                }
                assert!(next(&prefetch).is_none() && next(&prefetch).is_none());
            }
        }
    }
}

#[test]
fn held_batches_do_not_change() {
    let prefetch = start(vec![table(100, 8)], 2, 4, false);
    let held: Vec<Box<Batch>> = (0..100).map(|_| next(&prefetch).unwrap()).collect();
    let expected: Vec<Vec<i64>> = expected_rows(sampler(100, 4, None, Some(4)));
    for (batch, rows) in held.iter().zip(&expected) {
        let wanted: Vec<u8> = rows.iter().flat_map(|&row| [row as u8; 8]).collect();
        assert_eq!(bytes_of(&batch.fixed, 32), wanted);
    }
    let mut starts: Vec<usize> = held.iter().map(|batch| batch.fixed.start() as usize).collect();
    starts.sort_unstable();
    starts.dedup();
    assert_eq!(starts.len(), 100);
}

#[test]
fn released_memory_is_used_again() {
    let prefetch = start(vec![table(100, 8)], 2, 4, false);
    let mut starts = std::collections::HashSet::new();
    for _ in 0..1000 {
        starts.insert(next(&prefetch).unwrap().fixed.start() as usize);
    }
    assert!(starts.len() <= 8, "{} slabs for four batches ahead", starts.len());
}

#[test]
fn closing_returns_at_once_at_any_moment() {
    for served in 0..20 {
        let prefetch = start(vec![table(100, 8)], 3, 2, served % 2 == 0);
        let held: Vec<_> = (0..served).map(|_| next(&prefetch)).collect();
        prefetch.close();
        assert!(matches!(prefetch.next(PATIENCE), Err(Error::Closed(_))));
        drop(prefetch);
        drop(held);
    }
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let outcome = |tables, workers, depth| {
        let settings = Settings { workers, depth, foreign: false };
        Prefetch::start(tables, sampler(4, 1, None, None), settings)
    };
    for (workers, depth) in [(1, 0), (1, MAX_DEPTH + 1), (MAX_DEPTH + 1, 1)] {
        let refused = outcome(vec![table(4, 4)], workers, depth);
        assert!(refused.is_err_and(|error| error.kind() == "invalid"));
    }
    assert!(outcome(vec![table(5, 4)], 1, 1).is_err());
    assert!(outcome(vec![], 1, 1).is_err());
    assert!(outcome(vec![table(4, 4), table(5, 4)], 1, 1).is_err());
}

#[test]
fn memory_that_is_too_small_is_refused() {
    let prefetch = start(vec![table(100, 8)], 1, 2, true);
    assert!(prefetch.give_slab(Slab::new(31).unwrap()).is_err());
}

/// Batches of the rows 100 to 107, which are the rows 0 to 7 of the tables.
fn prioritized(tables: Vec<Table>, priorities: &Arc<Priorities>, depth: usize) -> Prefetch {
    let plan =
        Plan { mode: Mode::Random, tail: Tail::Wrap, ..sampler(8, 4, None, None).plan().clone() };
    let order = Order {
        sampler: Sampler::new(plan).unwrap(),
        priorities: Some((Arc::clone(priorities), TableRows::Window(100..108))),
    };
    Prefetch::start(tables, order, Settings { workers: 2, depth, foreign: false }).unwrap()
}

#[test]
fn rows_are_drawn_by_priority() {
    let priorities = Arc::new(Priorities::new(108, 1.0, 0.5).unwrap());
    priorities.evict(100).unwrap();
    for row in 100..108 {
        priorities.update(&[row], &[(row - 90) as f64]).unwrap();
    }
    for tables in [vec![table(8, 3)], vec![table(8, 1 << 19)], vec![table(8, 3), ragged(8)]] {
        let prefetch = prioritized(tables, &priorities, 3);
        for step in 0..10 {
            let batch = next(&prefetch).unwrap();
            let drawn = priorities.draw(1, 4 * step, 4, None).unwrap().unwrap();
            // SAFETY: the first column of a batch has its rows one after the other.
            let first = unsafe { *batch.fixed.start() };
            assert_eq!(i64::from(first), drawn.rows[0] - 100);
            for (_, offsets) in &batch.ragged {
                let lengths = offsets.windows(2).map(|pair| pair[1] - pair[0]);
                assert!(lengths.eq(drawn.rows.iter().map(|row| (row - 100) % 5)));
            }
            assert_eq!((batch.step.first, batch.drawn), (4 * step, Some(drawn)));
        }
    }
}

#[test]
fn batches_are_drawn_at_most_depth_ahead() {
    for depth in [1, 2, 5] {
        let priorities = Arc::new(Priorities::new(108, 1.0, 0.5).unwrap());
        priorities.evict(100).unwrap();
        let prefetch = prioritized(vec![table(8, 3)], &priorities, depth);
        for _ in 0..20 {
            next(&prefetch).unwrap();
        }
        // From now on one row has nearly all of the weight.
        priorities.update(&[105], &[1e30]).unwrap();
        for _ in 0..depth {
            next(&prefetch).unwrap();
        }
        assert_eq!(next(&prefetch).unwrap().drawn.unwrap().rows, [105; 4]);
    }
}

#[test]
fn stream_ends_when_there_are_other_rows() {
    let priorities = Arc::new(Priorities::new(108, 1.0, 0.5).unwrap());
    priorities.evict(100).unwrap();
    let prefetch = prioritized(vec![table(8, 3)], &priorities, 2);
    let first = next(&prefetch).unwrap();
    priorities.extend(109).unwrap();
    let mut after = first.step.after;
    let mut count = 1;
    while let Some(batch) = next(&prefetch) {
        assert_eq!(batch.step.first, after.position);
        after = batch.step.after;
        count += 1;
    }
    assert!(count <= 3);
    assert!(next(&prefetch).is_none());
}

#[test]
fn rows_that_have_keys_are_drawn_by_them() {
    let keys = [3_i64, 5, 6, 9];
    let priorities = Arc::new(Priorities::new(0, 1.0, 0.5).unwrap());
    priorities.insert(&keys).unwrap();
    priorities.update(&[5], &[50.0]).unwrap();
    let plan =
        Plan { mode: Mode::Random, tail: Tail::Wrap, ..sampler(4, 4, None, None).plan().clone() };
    let order = Order {
        sampler: Sampler::new(plan).unwrap(),
        priorities: Some((Arc::clone(&priorities), TableRows::Keys(Arc::from(keys)))),
    };
    let settings = Settings { workers: 2, depth: 2, foreign: false };
    let prefetch = Prefetch::start(vec![table(4, 1)], order, settings).unwrap();
    for _ in 0..20 {
        let drawn = next(&prefetch).unwrap().drawn.unwrap();
        assert!(drawn.rows.iter().all(|row| keys.contains(row)));
    }
    // A row that the tables do not have ends the stream.
    priorities.insert(&[10]).unwrap();
    priorities.update(&[10], &[1e30]).unwrap();
    assert!((0..4).any(|_| next(&prefetch).is_none()));
}
