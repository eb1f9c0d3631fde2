//! The bytes of HDF5: chunks are decoded to what was encoded, or to an error, and metadata is made
//! of any tree, or refused. No call panics, and decoding does not allocate more memory than the
//! chunk has.
//!
//! The first byte selects what the rest is, and for chunks the filters:
//!
//! | bits | meaning |
//! |---|---|
//! | 0–1 | the codec |
//! | 2 | the bytes are shuffled |
//! | 3 | the payload is a chunk: encode it, damage one byte, decode it; otherwise decode it |
//! | 4 | the rest is not a chunk, but a superblock |
//! | 5 | the rest is not a chunk, but a tree of groups and datasets |

#![no_main]

mod watched;

use std::sync::atomic::Ordering;

use libfuzzer_sys::fuzz_target;
use relive_core::Error;
use relive_core::codec::Codec;
use relive_core::hdf5::{
    Attribute, Attributes, Chunk, Dataset, Datatype, Filters, Group, SUPERBLOCK_BYTES, Values,
    described_end, metadata,
};

use crate::watched::LARGEST;

/// Decoding may allocate this many bytes in addition to the chunk, for messages and contexts.
const SLACK_BYTES: usize = 1 << 16;

fuzz_target!(|input: &[u8]| {
    let Some((&way, rest)) = input.split_first() else { return };
    if way & 16 != 0 {
        superblock(rest);
    } else if way & 32 != 0 {
        tree(&mut Input(rest));
    } else {
        chunk(way, rest);
    }
});

fn chunk(way: u8, rest: &[u8]) {
    let [item_bytes, low, high, damage, payload @ ..] = rest else { return };
    let codec = Codec::ALL[usize::from(way & 3)];
    let filters = Filters { codec, level: None, shuffle: way & 4 != 0 };
    let item_bytes = usize::from(*item_bytes % 17).max(1);
    let place = usize::from(u16::from_le_bytes([*low, *high]));
    if way & 8 == 0 {
        decode(&filters, payload, item_bytes, place);
        return;
    }
    let mut encoded = filters.encode(payload, item_bytes).expect("the payload is small");
    let decoded = decode(&filters, &encoded, item_bytes, payload.len());
    assert_eq!(decoded.expect("what was encoded decodes"), payload);
    if !encoded.is_empty() {
        let place = place % encoded.len();
        encoded[place] ^= damage;
        decode(&filters, &encoded, item_bytes, payload.len());
        encoded.truncate(place);
        decode(&filters, &encoded, item_bytes, payload.len());
    }
}

fn decode(filters: &Filters, bytes: &[u8], item_bytes: usize, length: usize) -> Option<Vec<u8>> {
    let mut out = vec![0; length];
    LARGEST.store(0, Ordering::Relaxed);
    let checked = filters.check(bytes, length as u64);
    let largest = LARGEST.load(Ordering::Relaxed);
    assert!(largest <= SLACK_BYTES, "{largest} bytes were requested for a check");
    let decoded = filters.decode(bytes, item_bytes, &mut out);
    let largest = LARGEST.load(Ordering::Relaxed);
    assert!(largest <= length + SLACK_BYTES, "{largest} bytes were requested");
    match decoded {
        Ok(()) => {
            checked.expect("it can be decoded");
            Some(out)
        }
        Err(error) => {
            assert!(matches!(error, Error::Corrupt(_)), "{error}");
            None
        }
    }
}

fn superblock(rest: &[u8]) {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    let length = rest.len().min(SUPERBLOCK_BYTES);
    bytes[..length].copy_from_slice(&rest[..length]);
    std::hint::black_box(described_end(&bytes));
    // One that is valid, with one byte changed.
    let made = metadata(&Group::default(), 48).expect("an empty group is a tree");
    let mut bytes = made.superblock;
    assert_eq!(described_end(&bytes), Some(48 + made.bytes.len() as u64));
    if let [place, change, ..] = rest
        && *change != 0
    {
        bytes[usize::from(*place) % SUPERBLOCK_BYTES] ^= change;
        assert_eq!(described_end(&bytes), None);
    }
}

fn tree(input: &mut Input) {
    let at = input.word();
    let mut root = Group::default();
    for _ in 0..input.byte() % 8 {
        let path = input.text();
        let made = dataset(input);
        if let Err(error) = root.insert(&path, made) {
            assert!(matches!(error, Error::Invalid(_) | Error::TooLarge(_)), "{error}");
        }
    }
    root.attributes = attributes(input);
    match metadata(&root, at) {
        Ok(made) => {
            assert_eq!(described_end(&made.superblock), Some(at + made.bytes.len() as u64));
        }
        Err(error) => {
            assert!(matches!(error, Error::Invalid(_) | Error::TooLarge(_)), "{error}");
        }
    }
}

fn dataset(input: &mut Input) -> Dataset {
    const TYPES: [&str; 8] = ["|b1", "<i1", "<i8", "|u1", "<f2", "<f8", "<c8", "<c16"];
    let datatype: Datatype = TYPES[usize::from(input.byte() % 8)].parse().expect("it is known");
    let shape = (0..input.byte() % 36).map(|_| input.size()).collect();
    let values = if input.byte().is_multiple_of(2) {
        Values::Bytes(input.text().into_bytes())
    } else {
        let (codec, level) = (Codec::ALL[usize::from(input.byte() % 4)], None);
        let rows = input.size();
        let (mut chunks, mut first_row) = (Vec::new(), 0_u64);
        for _ in 0..u16::from(input.byte()) * 8 {
            chunks.push(Chunk { first_row, offset: input.word(), bytes: 1 });
            first_row = first_row.saturating_add(rows);
        }
        Values::Chunks { rows, filters: Filters { codec, level, shuffle: true }, chunks }
    };
    Dataset { datatype, shape, values, attributes: attributes(input) }
}

fn attributes(input: &mut Input) -> Attributes {
    let mut made = Attributes::new();
    for _ in 0..input.byte() % 4 {
        let name = input.text();
        let value = match input.byte() % 2 {
            0 => Attribute::Int(input.word() as i64),
            _ => Attribute::Text(input.text()),
        };
        made.insert(name, value);
    }
    made
}

/// Takes values from the start of an input; after its end they are zero.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// Returns a number that is mostly small.
    fn size(&mut self) -> u64 {
        match self.byte() {
            255 => self.word(),
            small => u64::from(small),
        }
    }

    /// Returns text, which is repeated now and then.
    fn text(&mut self) -> String {
        let (length, repeats) = (usize::from(self.byte() % 32), self.byte());
        let (part, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        let repeats = if repeats > 250 { 4000 } else { 1 };
        String::from_utf8_lossy(part).repeat(repeats)
    }
}
