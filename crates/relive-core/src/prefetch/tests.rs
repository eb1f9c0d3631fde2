//! Order, ownership and life of a prefetch.

use super::*;
use crate::gather::{Owner, RaggedRows, Rows};
use crate::sample::{Mode, Plan, Tail};

const PATIENCE: Duration = Duration::from_millis(50);

fn table(len: usize, width: usize) -> Table {
    let data: Arc<Vec<u8>> = Arc::new((0..len * width).map(|k| (k / width) as u8).collect());
    // SAFETY: the rows own the bytes they describe.
    let fixed = unsafe {
        Rows::new(data.as_ptr(), len, width as isize, &[(width, 1)], 1, Arc::clone(&data) as Owner)
    };
    let offsets: Vec<i64> = (0..=len as i64).map(|k| k * (k + 1) / 2 % 7 + 7 * k).collect();
    let offsets: Vec<i64> = offsets.iter().map(|k| k - offsets[0]).collect();
    let values: Arc<Vec<u8>> = Arc::new((0..offsets[len]).map(|k| k as u8).collect());
    // SAFETY: as above.
    let ragged = unsafe {
        RaggedRows::new(
            values.as_ptr(),
            values.len(),
            1,
            offsets.into(),
            Arc::clone(&values) as Owner,
        )
    };
    Table::new(vec![Column::Fixed(fixed.unwrap()), Column::Ragged(ragged.unwrap())]).unwrap()
}

fn sampler(length: u64, batch_size: u64, epochs: Option<u64>) -> Sampler {
    Sampler::new(Plan {
        length,
        batch_size,
        mode: Mode::Shuffle,
        tail: Tail::Wrap,
        seed: 1,
        window: None,
        stride: None,
        rank: 0,
        world_size: 1,
        epochs,
    })
    .unwrap()
}

fn next(prefetch: &Prefetch) -> Option<Box<Batch>> {
    loop {
        match prefetch.next(PATIENCE).unwrap() {
            Next::Ready(batch) => return Some(batch),
            Next::Waiting => {}
            Next::NeedsSlab => {
                prefetch.give_slab(Slab::new(prefetch.layout().bytes).unwrap()).unwrap()
            }
            Next::End => return None,
        }
    }
}

fn fixed_bytes(batch: &Batch, bytes: usize) -> Vec<u8> {
    // SAFETY: the batch holds at least so many bytes.
    unsafe { std::slice::from_raw_parts(batch.fixed.start(), bytes) }.to_vec()
}

#[test]
fn batches_come_in_order_whatever_the_threads() {
    // Small batches, one per thread, and large ones that the threads share.
    for (len, width, batch_size) in [(200, 16, 8), (100, 100_000, 50)] {
        let expected: Vec<Vec<i64>> = {
            let (mut sampler, mut draw) = (sampler(len, batch_size, Some(3)), Draw::default());
            std::iter::from_fn(|| sampler.draw(&mut draw).then(|| draw.rows.clone())).collect()
        };
        for (workers, depth, foreign) in [
            (0, 1, false),
            (1, 1, false),
            (1, 4, true),
            (2, 4, false),
            (5, 3, true),
            (4, 64, false),
        ] {
            let sampler = sampler(len, batch_size, Some(3));
            let settings = Settings { workers, depth, foreign };
            let prefetch =
                Prefetch::start(vec![table(len as usize, width)], sampler, settings).unwrap();
            let mut seen = Vec::new();
            while let Some(batch) = next(&prefetch) {
                let rows = batch.draw.rows.clone();
                let bytes = fixed_bytes(&batch, rows.len() * width);
                assert!(
                    rows.iter()
                        .zip(bytes.chunks(width))
                        .all(|(&row, got)| got.iter().all(|&x| x == row as u8))
                );
                assert_eq!(batch.ragged[0].1.len(), rows.len() + 1);
                seen.push(rows);
            }
            assert_eq!(seen, expected);
            assert!(next(&prefetch).is_none());
        }
    }
}

#[test]
fn held_batches_do_not_change() {
    let sampler = sampler(100, 4, None);
    let settings = Settings { workers: 2, depth: 4, foreign: false };
    let prefetch = Prefetch::start(vec![table(100, 8)], sampler, settings).unwrap();
    let held: Vec<Box<Batch>> = (0..100).map(|_| next(&prefetch).unwrap()).collect();
    for batch in &held {
        let bytes = fixed_bytes(batch, 32);
        assert!(
            batch.draw.rows.iter().zip(bytes.chunks(8)).all(|(&row, got)| got == [row as u8; 8])
        );
    }
    let mut starts: Vec<usize> = held.iter().map(|batch| batch.fixed.start() as usize).collect();
    starts.sort_unstable();
    starts.dedup();
    assert_eq!(starts.len(), 100);
}

#[test]
fn released_memory_is_used_again() {
    let sampler = sampler(100, 4, None);
    let settings = Settings { workers: 2, depth: 4, foreign: false };
    let prefetch = Prefetch::start(vec![table(100, 8)], sampler, settings).unwrap();
    let mut starts = std::collections::HashSet::new();
    for _ in 0..1000 {
        starts.insert(next(&prefetch).unwrap().fixed.start() as usize);
    }
    assert!(starts.len() <= 8, "{} slabs for four batches ahead", starts.len());
}

#[test]
fn closing_returns_at_once_at_any_moment() {
    for served in 0..20 {
        let sampler = sampler(100, 4, None);
        let settings = Settings { workers: 3, depth: 2, foreign: served % 2 == 0 };
        let prefetch = Prefetch::start(vec![table(100, 8)], sampler, settings).unwrap();
        let held: Vec<_> = (0..served).map(|_| next(&prefetch)).collect();
        prefetch.close();
        assert!(matches!(prefetch.next(PATIENCE), Err(Error::Closed(_))));
        drop(prefetch);
        drop(held);
    }
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    for (workers, depth) in [(1, 0), (1, MAX_DEPTH + 1), (MAX_DEPTH + 1, 1)] {
        let settings = Settings { workers, depth, foreign: false };
        let outcome = Prefetch::start(vec![table(4, 4)], sampler(4, 1, None), settings);
        assert!(outcome.is_err_and(|error| error.kind() == "invalid"));
    }
    let settings = Settings { workers: 1, depth: 1, foreign: false };
    assert!(Prefetch::start(vec![table(5, 4)], sampler(4, 1, None), settings).is_err());
}
