//! A keyed bijection over `[0, n)` in constant memory.

/// Multiplier of the round function and step of the key schedule: 2^64 / φ, odd.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Four rounds per half: with fewer, orders of a handful of items are visibly uneven.
const ROUNDS: usize = 8;

/// Below this a Feistel network has too few bits in each half to mix. A wider one
/// costs small `n` some extra steps of the walk and nothing else.
const MIN_BITS: u32 = 8;

/// A well mixed 64-bit value from a 64-bit one (the finaliser of SplitMix64).
#[inline]
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// A key derived from a key and a number; different numbers give unrelated keys.
#[inline]
pub fn derive(key: u64, number: u64) -> u64 {
    mix(mix(key.wrapping_add(GOLDEN)) ^ number.wrapping_add(1).wrapping_mul(GOLDEN))
}

/// One permutation of `0..n`, chosen by a key.
///
/// An alternating Feistel network over the smallest sufficient power of two, walked
/// until it lands below `n`: fewer than two steps on average for `n` above 128.
#[derive(Clone, Debug)]
pub struct Permutation {
    n: u64,
    low_bits: u32,
    high_bits: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// The permutation of `0..n` that belongs to `key`; `n` is at most 2^62.
    pub fn new(n: u64, key: u64) -> Self {
        let bits = (u64::BITS - n.saturating_sub(1).leading_zeros()).max(MIN_BITS);
        let mut keys = [0; ROUNDS];
        for (number, slot) in (0_u64..).zip(&mut keys) {
            *slot = derive(key, number);
        }
        Self { n, low_bits: bits / 2, high_bits: bits - bits / 2, keys }
    }

    /// Where position `i < n` is sent.
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

    /// The position that is sent to `value < n`.
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
    fn forward(&self, x: u64) -> u64 {
        let (mut high, mut low) = self.halves(x);
        for pair in self.keys.chunks_exact(2) {
            low ^= round(high, pair[0], self.low_bits);
            high ^= round(low, pair[1], self.high_bits);
        }
        (high << self.low_bits) | low
    }

    #[inline]
    fn backward(&self, x: u64) -> u64 {
        let (mut high, mut low) = self.halves(x);
        for pair in self.keys.chunks_exact(2).rev() {
            high ^= round(low, pair[1], self.high_bits);
            low ^= round(high, pair[0], self.low_bits);
        }
        (high << self.low_bits) | low
    }

    #[inline]
    fn halves(&self, x: u64) -> (u64, u64) {
        (x >> self.low_bits, x & ((1 << self.low_bits) - 1))
    }
}

#[inline]
fn round(x: u64, key: u64, bits: u32) -> u64 {
    let y = (x ^ key).wrapping_mul(GOLDEN);
    (y ^ (y >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93) >> (u64::BITS - bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_a_bijection_at_every_small_size_and_around_powers_of_two() {
        let sizes = (1..300).chain([1023, 1024, 1025, 65_535, 65_536, 65_537]);
        for n in sizes {
            let permutation = Permutation::new(n, 7);
            let mut seen = vec![false; n as usize];
            for i in 0..n {
                let value = permutation.apply(i);
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

    /// Every order of four items should come up equally often over many keys.
    #[test]
    fn orders_of_four_items_are_even() {
        let draws = 240_000_u64;
        let mut counts = std::collections::HashMap::new();
        for key in 0..draws {
            let permutation = Permutation::new(4, key);
            let order: Vec<u64> = (0..4).map(|i| permutation.apply(i)).collect();
            *counts.entry(order).or_insert(0_u64) += 1;
        }
        assert_eq!(counts.len(), 24);
        let expected = draws as f64 / 24.0;
        let chi: f64 =
            counts.values().map(|&count| (count as f64 - expected).powi(2) / expected).sum();
        assert!(chi < 60.0, "chi-square {chi} with 23 degrees of freedom");
    }

    /// Where an item lands should not depend on where it was, nor on its neighbour.
    #[test]
    fn neighbours_part() {
        let n = 100_000;
        let permutation = Permutation::new(n, 11);
        let mut cells = [[0_u64; 16]; 16];
        for i in 0..n - 1 {
            let here = permutation.apply(i) * 16 / n;
            let next = permutation.apply(i + 1) * 16 / n;
            cells[here as usize][next as usize] += 1;
        }
        let expected = (n - 1) as f64 / 256.0;
        let chi: f64 =
            cells.iter().flatten().map(|&count| (count as f64 - expected).powi(2) / expected).sum();
        assert!(chi < 360.0, "chi-square {chi} with 255 degrees of freedom");
    }
}
