//! What the threads of a prefetch share, in every order of their operations (see `make sanitize`).
//!
//! Each model runs the code of the loader itself, with the locks, atomics and threads of loom. A
//! deadlock, a lost wake-up, or a batch whose memory two threads use at once fails it.

use std::sync::Mutex as StdMutex;

use loom::cell::UnsafeCell;

use super::*;
use crate::sample::{Mode, Tail};
use crate::table::{Out, Reader};

/// No wait ends by a timeout.
const FOREVER: Duration = Duration::from_secs(1 << 20);

/// Stands for the memory of slabs: loom reports two threads that use the same one without an
/// operation that orders them.
#[derive(Default)]
struct Memory(StdMutex<Vec<(usize, Arc<UnsafeCell<()>>)>>);

// SAFETY: loom checks how the cells are used; that is their purpose.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn at(&self, address: usize) -> Arc<UnsafeCell<()>> {
        let mut cells = self.0.lock().unwrap();
        if let Some((_, cell)) = cells.iter().find(|(known, _)| *known == address) {
            return Arc::clone(cell);
        }
        let cell = Arc::new(UnsafeCell::new(()));
        cells.push((address, Arc::clone(&cell)));
        cell
    }

    fn write(&self, address: usize) {
        self.at(address).with_mut(|_| ());
    }

    fn read(&self, address: usize) {
        self.at(address).with(|_| ());
    }
}

/// Rows of eight bytes, each the number of the row.
struct Numbers {
    len: u64,
    corrupt: Option<u64>,
    shapes: [ColumnShape; 1],
    memory: Arc<Memory>,
}

impl Reader for Numbers {
    fn len(&self) -> u64 {
        self.len
    }

    fn columns(&self) -> &[ColumnShape] {
        &self.shapes
    }

    fn items(&self, _: usize, _: u64) -> usize {
        0
    }

    unsafe fn read(&self, rows: &[u64], outs: &[Out<'_>]) -> Result<()> {
        for (j, &row) in rows.iter().enumerate() {
            if self.corrupt == Some(row) {
                return Err(Error::Corrupt(format!("row {row}")));
            }
            let at = outs[0].at[j];
            self.memory.write(at as usize);
            // SAFETY: the caller promises room for the row.
            unsafe { at.cast::<u64>().write_unaligned(row) };
        }
        Ok(())
    }
}

struct Model {
    prefetch: Prefetch,
    memory: Arc<Memory>,
}

impl Model {
    fn start(rows: u64, batch_size: u64, settings: Settings, corrupt: Option<u64>) -> Self {
        let memory = Arc::new(Memory::default());
        let shapes = [ColumnShape::Fixed { row_bytes: 8 }];
        let numbers = Numbers { len: rows, corrupt, shapes, memory: Arc::clone(&memory) };
        let sampler = Sampler::new(Plan {
            length: rows,
            batch_size,
            mode: Mode::Sequential,
            tail: Tail::Keep,
            seed: 1,
            window: None,
            stride: None,
            rank: 0,
            world_size: 1,
            epochs: Some(1),
            blocks: None,
            partitions: 1,
            rows_per_step: None,
        });
        let table = Table::from_reader(Arc::new(numbers)).unwrap();
        let prefetch = Prefetch::start(vec![table], sampler.unwrap(), settings).unwrap();
        Self { prefetch, memory }
    }

    fn next(&self) -> Result<Option<Box<Batch>>> {
        loop {
            match self.prefetch.next(FOREVER)? {
                Next::Ready(batch) => return Ok(Some(batch)),
                Next::Waiting => {}
                Next::NeedsSlab => {
                    let slab = Slab::new(self.prefetch.layout().bytes).unwrap();
                    self.prefetch.give_slab(slab).unwrap();
                }
                Next::End => return Ok(None),
            }
        }
    }

    /// Returns the rows of a batch, as often as its memory is read.
    fn rows(&self, batch: &Batch) -> Vec<u64> {
        let start = batch.fixed.start();
        (0..batch.step.samples)
            .map(|k| {
                // SAFETY: the batch has so many rows.
                let at = unsafe { start.add(8 * k) };
                self.memory.read(at as usize);
                // SAFETY: as above.
                unsafe { at.cast::<u64>().read_unaligned() }
            })
            .collect()
    }
}

fn check(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

const fn settings(workers: usize, depth: usize) -> Settings {
    Settings { workers, depth, foreign: false }
}

#[test]
fn batches_are_handed_out_in_order() {
    check(3, || {
        let model = Model::start(3, 1, settings(1, 1), None);
        for row in 0..3 {
            let batch = model.next().unwrap().unwrap();
            assert_eq!(model.rows(&batch), [row]);
        }
        assert!(model.next().unwrap().is_none());
    });
}

#[test]
fn two_threads_hand_out_batches_in_order() {
    check(2, || {
        let model = Model::start(3, 1, settings(2, 2), None);
        for row in 0..3 {
            assert_eq!(model.rows(&model.next().unwrap().unwrap()), [row]);
        }
        assert!(model.next().unwrap().is_none());
    });
}

#[test]
fn threads_share_the_parts_of_a_batch() {
    check(2, || {
        let model = Model::start(4, 2, settings(1, 1), None);
        for first in [0, 2] {
            let batch = model.next().unwrap().unwrap();
            assert_eq!(model.rows(&batch), [first, first + 1]);
        }
        assert!(model.next().unwrap().is_none());
    });
}

#[test]
fn a_batch_that_is_held_is_not_written_again() {
    check(2, || {
        let model = Model::start(4, 1, settings(1, 1), None);
        let held = model.next().unwrap().unwrap();
        for row in 1..3 {
            assert_eq!(model.rows(&model.next().unwrap().unwrap()), [row]);
        }
        assert_eq!(model.rows(&held), [0]);
        drop(model.prefetch);
        // SAFETY: the batch has one row.
        assert_eq!(unsafe { held.fixed.start().cast::<u64>().read_unaligned() }, 0);
    });
}

#[test]
fn memory_of_the_consumer() {
    check(2, || {
        let model = Model::start(3, 1, Settings { workers: 1, depth: 1, foreign: true }, None);
        for row in 0..3 {
            assert_eq!(model.rows(&model.next().unwrap().unwrap()), [row]);
        }
        assert!(model.next().unwrap().is_none());
    });
}

#[test]
fn an_error_comes_after_the_batches_before_it() {
    check(2, || {
        let model = Model::start(4, 1, settings(2, 2), Some(1));
        assert_eq!(model.rows(&model.next().unwrap().unwrap()), [0]);
        assert_eq!(model.next().err().unwrap().to_string(), "row 1");
        assert!(model.next().unwrap().is_none());
    });
}

#[test]
fn dropping_it_stops_the_threads() {
    for taken in 0..2 {
        check(3, move || {
            let model = Model::start(4, 1, settings(1, 2), None);
            for _ in 0..taken {
                assert!(model.next().unwrap().is_some());
            }
        });
    }
}

#[test]
fn another_thread_may_close_it_while_the_consumer_waits() {
    check(2, || {
        let model = Arc::new(Model::start(2, 1, settings(1, 1), None));
        let other = Arc::clone(&model);
        let closing = loom::thread::spawn(move || other.prefetch.close());
        for row in 0..2 {
            match model.next() {
                Ok(batch) => {
                    let Some(batch) = batch else { break };
                    assert_eq!(model.rows(&batch), [row]);
                }
                Err(error) => {
                    assert_eq!(error.kind(), "closed");
                    break;
                }
            }
        }
        closing.join().unwrap();
    });
}
