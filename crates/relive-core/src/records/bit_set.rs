//! A set of bits that any number of threads add to. Memory is allocated as needed.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words of the first bucket; each next bucket has twice as many.
const FIRST: u64 = 64;

/// The number of buckets, which together hold a gigabyte of bits.
const BUCKETS: usize = 22;

/// A growing set of bits. Bits above its limit are never set.
#[derive(Default)]
pub struct AtomicBitSet {
    buckets: [OnceLock<Box<[AtomicU64]>>; BUCKETS],
}

impl AtomicBitSet {
    /// Returns whether the bit is set.
    #[inline]
    pub fn has(&self, bit: u64) -> bool {
        let (bucket, word) = locate(bit / 64);
        let words = self.buckets.get(bucket).and_then(OnceLock::get);
        // Relaxed is enough: a set bit publishes no other writes.
        words.is_some_and(|words| words[word].load(Ordering::Relaxed) & mask(bit) != 0)
    }

    /// Sets the bit; returns whether it was not set before.
    pub fn set(&self, bit: u64) -> bool {
        let (bucket, word) = locate(bit / 64);
        let Some(slot) = self.buckets.get(bucket) else { return false };
        let words = slot.get_or_init(|| (0..FIRST << bucket).map(|_| AtomicU64::new(0)).collect());
        words[word].fetch_or(mask(bit), Ordering::Relaxed) & mask(bit) == 0
    }
}

#[inline]
fn mask(bit: u64) -> u64 {
    1 << (bit % 64)
}

/// Returns the bucket of a word and its index in the bucket.
#[inline]
fn locate(word: u64) -> (usize, usize) {
    let from = word / FIRST + 1;
    let bucket = from.ilog2();
    let before = FIRST * ((1 << bucket) - 1);
    (bucket as usize, (word - before) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_set_alone() {
        let bits = AtomicBitSet::default();
        let some = [0, 1, 63, 64, 4095, 4096, 4097, 12_287, 12_288, 1 << 20, (1 << 20) + 1];
        for (k, &bit) in some.iter().enumerate() {
            assert!(!bits.has(bit));
            assert!(bits.set(bit) && !bits.set(bit));
            for (j, &other) in some.iter().enumerate() {
                assert_eq!(bits.has(other), j <= k, "{other} after {bit}");
            }
        }
        for bit in 0..20_000 {
            assert_eq!(bits.has(bit), some.contains(&bit), "{bit}");
        }
    }

    #[test]
    fn locations_follow_each_other() {
        let mut last = (0, 0);
        for word in 1..100_000 {
            let next = locate(word);
            let new = next == (last.0 + 1, 0) && last.1 as u64 + 1 == FIRST << last.0;
            assert!(next == (last.0, last.1 + 1) || new);
            last = next;
        }
    }

    #[test]
    fn beyond_the_limit_nothing_is_remembered() {
        let bits = AtomicBitSet::default();
        for bit in [1 << 40, u64::MAX] {
            assert!(!bits.set(bit) && !bits.has(bit));
        }
    }
}
