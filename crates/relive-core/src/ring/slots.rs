//! One slot: a sequence lock around a frame and its scalars.
//!
//! The sequence number of the slot is `2n + 1` while frame n is written, and `2n + 2` after that.
//! All words are atomics, because readers copy them while the writer may change them.

use super::layout::SLOT_HEADER_BYTES;
use crate::sync::{AtomicU64, Ordering, fence};

/// A slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot<'a> {
    sequence: &'a AtomicU64,
    scalar_length: &'a AtomicU64,
    scalars: &'a [AtomicU64],
    frame: &'a [AtomicU64],
    /// Bytes of the scalars, at most.
    scalar_bytes: usize,
}

impl<'a> Slot<'a> {
    pub(super) fn new(words: &'a [AtomicU64], scalar_bytes: usize) -> Self {
        let (header, content) = words.split_at(SLOT_HEADER_BYTES / 8);
        let (scalars, frame) = content.split_at(scalar_bytes.div_ceil(8));
        Self { sequence: &header[0], scalar_length: &header[1], scalars, frame, scalar_bytes }
    }

    /// Writes frame `number`. One thread of one process calls this.
    pub(super) fn write(&self, number: u64, scalars: &[u8], frame: &[u8]) {
        self.sequence.store(2 * number + 1, Ordering::Relaxed);
        // A reader that sees any word from below also sees the odd number.
        fence(Ordering::Release);
        self.scalar_length.store(scalars.len() as u64, Ordering::Relaxed);
        store(self.scalars, scalars);
        store(self.frame, frame);
        // A reader that sees the even number also sees all words from above.
        self.sequence.store(2 * number + 2, Ordering::Release);
    }

    /// Copies frame `number`. Returns false if what was copied is not that frame, or not all of it.
    pub(super) fn read(&self, number: u64, scalars: &mut Vec<u8>, frame: &mut [u8]) -> bool {
        // The number may be any: it comes from memory that another process writes.
        let Some(whole) = number.checked_mul(2).and_then(|number| number.checked_add(2)) else {
            return false;
        };
        if self.sequence.load(Ordering::Relaxed) != whole {
            return false;
        }
        // What is read below was written before that number, or later.
        fence(Ordering::Acquire);
        let length = self.scalar_length.load(Ordering::Relaxed);
        if length > self.scalar_bytes as u64 {
            return false;
        }
        scalars.resize(length as usize, 0);
        load(self.scalars, scalars);
        load(self.frame, frame);
        // If a word from above was written later, the number read below is later, too.
        fence(Ordering::Acquire);
        self.sequence.load(Ordering::Relaxed) == whole
    }
}

/// Stores bytes in words; the last word is padded with zeros.
fn store(words: &[AtomicU64], bytes: &[u8]) {
    let (whole, rest) = bytes.as_chunks::<8>();
    for (word, chunk) in words.iter().zip(whole) {
        word.store(u64::from_ne_bytes(*chunk), Ordering::Relaxed);
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        words[whole.len()].store(u64::from_ne_bytes(last), Ordering::Relaxed);
    }
}

/// Fills a buffer with the bytes of words.
fn load(words: &[AtomicU64], bytes: &mut [u8]) {
    let (whole, rest) = bytes.as_chunks_mut::<8>();
    for (word, chunk) in words.iter().zip(&mut *whole) {
        *chunk = word.load(Ordering::Relaxed).to_ne_bytes();
    }
    if !rest.is_empty() {
        let last = words[whole.len()].load(Ordering::Relaxed).to_ne_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }
}
