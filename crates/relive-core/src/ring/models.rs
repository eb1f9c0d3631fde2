//! Models of a slot, for loom: `make sanitize`.

use loom::sync::Arc;

use super::layout::SLOT_HEADER_BYTES;
use super::load;
use super::slots::Slot;
use crate::sync::{AtomicU64, Ordering, thread};

const SCALAR_BYTES: usize = 8;
const FRAME_BYTES: usize = 16;

struct Model {
    head: AtomicU64,
    slots: [Vec<AtomicU64>; 2],
}

impl Model {
    fn new() -> Self {
        let words = SLOT_HEADER_BYTES / 8 + (SCALAR_BYTES + FRAME_BYTES) / 8;
        let slot = || (0..words).map(|_| AtomicU64::new(0)).collect();
        Self { head: AtomicU64::new(0), slots: [slot(), slot()] }
    }

    fn slot(&self, number: u64) -> Slot<'_> {
        Slot::new(&self.slots[number as usize % 2], SCALAR_BYTES)
    }

    fn publish(&self, number: u64) {
        let byte = number as u8 + 1;
        self.slot(number).write(number, &[byte; SCALAR_BYTES], &[byte; FRAME_BYTES]);
        self.head.store(number + 1, Ordering::Release);
    }

    /// Reads the newest frame once; whatever is accepted is whole.
    fn read(&self) -> Option<u64> {
        let number = load(&self.head).checked_sub(1)?;
        let (mut scalars, mut frame) = (Vec::new(), [0; FRAME_BYTES]);
        if !self.slot(number).read(number, &mut scalars, &mut frame) {
            return None;
        }
        let byte = number as u8 + 1;
        assert_eq!((scalars, frame), (vec![byte; SCALAR_BYTES], [byte; FRAME_BYTES]));
        Some(number)
    }
}

fn check(frames: u64, readers: usize, preemptions: usize) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let model = Arc::new(Model::new());
        let reading: Vec<_> = (0..readers)
            .map(|_| {
                let model = Arc::clone(&model);
                thread::Builder::new().spawn(move || (model.read(), model.read())).unwrap()
            })
            .collect();
        for number in 0..frames {
            model.publish(number);
        }
        for reader in reading {
            let (first, second) = reader.join().unwrap();
            assert!(second.is_none() || first <= second);
        }
        assert_eq!(model.read(), Some(frames - 1));
    });
}

#[test]
fn a_frame_that_is_read_is_whole() {
    check(4, 1, 3);
}

#[test]
fn two_readers_do_not_disturb_each_other() {
    check(3, 2, 1);
}
