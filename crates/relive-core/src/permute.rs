//! A keyed bijection over `[0, n)` in constant memory.

use std::ops::Range;

/// Multiplier of the round function and step of the key schedule: 2^64 / φ, odd.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Rounds per half. With two, orders of a few items are visibly uneven; three pass the tests below
/// easily, and the third costs six nanoseconds per row.
const ROUNDS: usize = 3;

/// The least size of a half. Smaller ones mix too little; small `n` needs some extra steps.
const MIN_HALF: u64 = 8;

/// Hashes a 64-bit value (the finalizer of SplitMix64).
#[inline]
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Derives a key from a key and a number; different numbers give unrelated keys.
#[inline]
pub fn derive(key: u64, number: u64) -> u64 {
    mix(mix(key.wrapping_add(GOLDEN)) ^ number.wrapping_add(1).wrapping_mul(GOLDEN))
}

/// One permutation of `0..n`, chosen by a key.
///
/// A Feistel network over pairs of two near-square-root sizes, with addition in place of
/// exclusive or, so that there are hardly more than `n` pairs. A result of `n` or more is permuted
/// again until it is below. With more than a few hundred rows that is rare, so the branch is
/// predictable.
#[derive(Clone, Debug)]
pub struct Permutation {
    n: u64,
    low_size: u64,
    high_size: u64,
    keys: [(u64, u64); ROUNDS],
}

impl Permutation {
    /// Creates the permutation of `0..n` for `key`; `n` is at most 2^62.
    pub fn new(n: u64, key: u64) -> Self {
        let low_size = n.isqrt().max(MIN_HALF);
        let high_size = n.div_ceil(low_size).max(MIN_HALF);
        let mut keys = [(0, 0); ROUNDS];
        for (number, pair) in (0_u64..).zip(&mut keys) {
            *pair = (derive(key, 2 * number), derive(key, 2 * number + 1));
        }
        Self { n, low_size, high_size, keys }
    }

    /// Returns the value of position `i < n`.
    #[inline]
    pub fn apply(&self, i: u64) -> u64 {
        debug_assert!(i < self.n);
        let mut x = i;
        loop {
            x = self.forward(x);
            if x < self.n {
                return x;
            }
        }
    }

    /// Appends the values of the positions `start..end`. Consecutive positions need no division, so
    /// this is twice as fast as single calls.
    pub fn extend(&self, positions: Range<u64>, out: &mut Vec<i64>) {
        debug_assert!(positions.end <= self.n);
        let (mut high, mut low) =
            (positions.start / self.low_size, positions.start % self.low_size);
        out.extend(positions.map(|_| {
            let mut x = self.mixed(high, low);
            low += 1;
            if low == self.low_size {
                low = 0;
                high += 1;
            }
            while x >= self.n {
                x = self.forward(x);
            }
            x as i64
        }));
    }

    #[inline]
    fn forward(&self, x: u64) -> u64 {
        self.mixed(x / self.low_size, x % self.low_size)
    }

    #[inline]
    fn mixed(&self, mut high: u64, mut low: u64) -> u64 {
        for &(low_key, high_key) in &self.keys {
            low = wrap(low + round(high, low_key, self.low_size), self.low_size);
            high = wrap(high + round(low, high_key, self.high_size), self.high_size);
        }
        high * self.low_size + low
    }
}

/// Returns a number below `size` that depends on all bits of `x` and the key.
#[inline]
fn round(x: u64, key: u64, size: u64) -> u64 {
    let y = (x ^ key).wrapping_mul(GOLDEN);
    let z = (y ^ (y >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    ((z >> 32) * size) >> 32
}

/// Returns `x` modulo `size`, for `x` below `2 * size`.
#[inline]
fn wrap(x: u64, size: u64) -> u64 {
    x.min(x.wrapping_sub(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Permutation {
        /// Returns the position of `value < n`.
        #[inline]
        pub fn invert(&self, value: u64) -> u64 {
            debug_assert!(value < self.n);
            let mut x = value;
            loop {
                x = self.backward(x);
                if x < self.n {
                    return x;
                }
            }
        }

        #[inline]
        fn backward(&self, x: u64) -> u64 {
            let (mut high, mut low) = (x / self.low_size, x % self.low_size);
            for &(low_key, high_key) in self.keys.iter().rev() {
                let size = self.high_size;
                high = wrap(high + size - round(low, high_key, size), size);
                let size = self.low_size;
                low = wrap(low + size - round(high, low_key, size), size);
            }
            high * self.low_size + low
        }
    }

    #[test]
    fn is_a_bijection_at_every_small_size_and_around_powers_of_two() {
        let sizes = (1..300).chain([1023, 1024, 1025, 65_535, 65_536, 65_537]);
        for n in sizes {
            let permutation = Permutation::new(n, 7);
            let mut seen = vec![false; n as usize];
            let mut extended = Vec::new();
            permutation.extend(n / 3..n, &mut extended);
            for i in 0..n {
                let value = permutation.apply(i);
                assert!(i < n / 3 || extended[(i - n / 3) as usize] == value as i64);
                assert!(!std::mem::replace(&mut seen[value as usize], true));
                assert_eq!(permutation.invert(value), i);
            }
        }
    }

    #[test]
    fn is_a_bijection_over_a_million() {
        let n = 1_000_000;
        let permutation = Permutation::new(n, 42);
        let mut seen = vec![false; n as usize];
        for i in 0..n {
            assert!(!std::mem::replace(&mut seen[permutation.apply(i) as usize], true));
        }
    }

    #[test]
    fn inverts_over_a_billion_and_beyond() {
        for n in [1_000_000_000, (1 << 40) + 1, 1 << 62] {
            let permutation = Permutation::new(n, 3);
            for k in 0..100_000 {
                let i = mix(k) % n;
                assert_eq!(permutation.invert(permutation.apply(i)), i);
            }
        }
    }

    /// Every order of a few items should come up equally often over many keys.
    #[test]
    fn orders_of_a_few_items_are_even() {
        for (n, orders, limit) in [(2, 2, 11.0), (3, 6, 25.0), (4, 24, 60.0), (5, 120, 190.0)] {
            let draws = orders as u64 * 2000;
            let mut counts = std::collections::HashMap::new();
            for key in 0..draws {
                let permutation = Permutation::new(n, key);
                let order: Vec<u64> = (0..n).map(|i| permutation.apply(i)).collect();
                *counts.entry(order).or_insert(0_u64) += 1;
            }
            assert_eq!(counts.len(), orders);
            let chi = chi_square(counts.values().copied(), 2000.0);
            assert!(chi < limit, "{n} items: chi-square {chi} over {orders} orders");
        }
    }

    fn chi_square(counts: impl Iterator<Item = u64>, expected: f64) -> f64 {
        counts.map(|count| (count as f64 - expected).powi(2) / expected).sum()
    }

    /// Where one row lands over many epochs should be anywhere.
    #[test]
    fn every_row_goes_everywhere() {
        for (n, row) in [(100_u64, 0), (100, 99), (1000, 500), (65_536, 1)] {
            let mut counts = [0_u64; 50];
            for epoch in 0..50_000 {
                let landed = Permutation::new(n, derive(3, epoch)).apply(row);
                counts[(landed * 50 / n) as usize] += 1;
            }
            let chi = chi_square(counts.into_iter(), 1000.0);
            assert!(chi < 100.0, "row {row} of {n}: chi-square {chi} over 50 places");
        }
    }

    /// Where an item lands should not depend on where it was, nor on its neighbour.
    #[test]
    fn neighbours_part() {
        for n in [1024_u64, 4096, 102_400] {
            let mut cells = [[0_u64; 16]; 16];
            let epochs = 1_000_000 / n;
            for epoch in 0..epochs {
                let permutation = Permutation::new(n, derive(11, epoch));
                for i in 0..n - 1 {
                    let here = permutation.apply(i) * 16 / n;
                    let next = permutation.apply(i + 1) * 16 / n;
                    cells[here as usize][next as usize] += 1;
                }
            }
            let expected = ((n - 1) * epochs) as f64 / 256.0;
            let chi = chi_square(cells.into_iter().flatten(), expected);
            assert!(chi < 360.0, "{n} rows: chi-square {chi} over 256 pairs");
        }
    }
}
