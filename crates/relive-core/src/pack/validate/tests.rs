//! Damage of every kind, and that each is found.

use std::path::PathBuf;
use std::sync::Arc;

use super::super::testing::{Memory, Scratch, run};
use super::super::writer::{PackWriter, WriterOptions};
use super::*;
use crate::codec::{Codec, Dictionary, train_dictionary};
use crate::pack::layout::{KIND_BYTES, KIND_V1, KIND_V2};
use crate::runs::Version;

/// Where a pack may be written; gone with the scratch that it lies beside.
fn beside(scratch: &Scratch) -> PathBuf {
    scratch.path().with_extension("written")
}

/// A small pack with every codec, a dictionary and every section.
fn every_section() -> Vec<u8> {
    let scratch = Scratch::new(b"");
    let samples: Vec<Vec<u8>> =
        (0..900).map(|k| format!("{{\"step\": {k}, \"move\": {}}}", k % 4).into_bytes()).collect();
    let dictionary = Arc::new(Dictionary::new(train_dictionary(&samples, 400).unwrap()).unwrap());
    let options = WriterOptions {
        align: 32,
        codec: Codec::Zstd,
        dictionary: Some(dictionary),
        step_table: true,
        capacity: Some(12),
        ..WriterOptions::default()
    };
    let path = beside(&scratch);
    let mut writer = PackWriter::create(&path, options).unwrap();
    let text = samples[..8].concat();
    for (number, codec) in Codec::ALL.into_iter().enumerate() {
        let name = format!("bytes-{number}");
        writer.append(&text, KIND_BYTES, Some(&name), Some(codec)).unwrap();
    }
    let kind = writer.kind_id("text").unwrap();
    writer.append(b"short", kind, None, Some(Codec::Raw)).unwrap();
    writer.append(b"", KIND_BYTES, None, None).unwrap();
    let game = run(70, 3);
    writer.append(&game.to_bytes(Version::V2).unwrap(), KIND_V2, Some("game"), None).unwrap();
    let mut old = run(3, 5);
    old.branches = None;
    writer.append(&old.to_bytes(Version::V1).unwrap(), KIND_V1, None, None).unwrap();
    writer.finish().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    bytes
}

fn look(bytes: &[u8], level: Level) -> Report {
    validate(Box::new(Memory::new(bytes.to_vec()).0), level, 1 << 20, 1, &|_, _| Ok(())).unwrap()
}

#[test]
fn a_good_pack_has_no_problems() {
    let bytes = every_section();
    for (level, entries) in [(Level::Index, 0), (Level::Sample, 8), (Level::Full, 8)] {
        let report = look(&bytes, level);
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        assert_eq!(report.entries, entries);
    }
}

#[test]
fn every_flipped_bit_is_found() {
    let mut bytes = every_section();
    let mut missed = Vec::new();
    for bit in 0..bytes.len() * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        if look(&bytes, Level::Full).problems.is_empty() {
            missed.push(bit);
        }
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    assert!(missed.is_empty(), "bits {missed:?} of {} bytes", bytes.len());
}

#[test]
fn every_cut_is_found() {
    let bytes = every_section();
    for length in 0..bytes.len() {
        for level in [Level::Index, Level::Full] {
            assert!(!look(&bytes[..length], level).problems.is_empty(), "{length} bytes");
        }
    }
}

#[test]
fn flipped_bits_of_a_large_pack_are_found() {
    let scratch = Scratch::new(b"");
    let path = beside(&scratch);
    let options =
        WriterOptions { codec: Codec::Zstd, step_table: true, ..WriterOptions::default() };
    let mut writer = PackWriter::create(&path, options).unwrap();
    for seed in 0..60 {
        let game = run(200 + 5 * seed as u32, seed);
        let codec = Codec::ALL[seed as usize % 4];
        writer.append(&game.to_bytes(Version::V2).unwrap(), KIND_V2, None, Some(codec)).unwrap();
    }
    writer.finish().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    // All ten thousand with RELIVE_FLIPS=10000, as `make faults` does.
    let flips: u64 =
        std::env::var("RELIVE_FLIPS").ok().and_then(|text| text.parse().ok()).unwrap_or(100);
    let mut state = 0x1234_5678_9ABC_DEF0_u64;
    for _ in 0..flips {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let bit = (state % (bytes.len() as u64 * 8)) as usize;
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(!look(&bytes, Level::Full).problems.is_empty(), "bit {bit}");
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn damage_names_its_entry_and_does_not_hide_the_next() {
    let mut bytes = every_section();
    let pack = PackReader::open_storage(Box::new(Memory::new(bytes.clone()).0), Options::default())
        .unwrap();
    for position in [1, 6] {
        let entry = pack.entry(position).unwrap();
        bytes[entry.offset as usize + 3] ^= 0x10;
    }
    let report = look(&bytes, Level::Full);
    let entries: Vec<u64> = report.problems.iter().filter_map(|problem| problem.entry).collect();
    assert_eq!(entries, [1, 6]);
    assert!(report.problems.iter().all(|problem| problem.offset.is_some()));
    let sampled = look(&bytes, Level::Sample);
    assert_eq!(sampled.problems.len(), 2);
    assert!(look(&bytes, Level::Index).problems.is_empty());
}
