//! Packs assembled byte by byte, and files and storages to read them from, for tests.

use std::fs::{self, OpenOptions};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::layout::{
    ENTRY_BYTES, Entry, FOOTER_BYTES, Footer, HAS_CRC, HAS_DATA_CRC, HAS_DICTIONARY, HAS_SECTIONS,
    HEADER_BYTES, Header, SectionHeader, Tag, align_up,
};
use crate::codec::{Codec, Dictionary, Encoder};
use crate::crc::crc32c;
use crate::runs::{Branches, Meta, Run};
use crate::storage::Storage;
use crate::{Error, Result};

const ALIGN: u64 = 64;

/// One entry of a pack to be.
pub(crate) type Piece<'a> = (&'a [u8], u16, Codec);

/// A pack with these entries and sections; the directory is made here.
pub(crate) fn assemble(entries: &[Piece<'_>], sections: &[(Tag, Vec<u8>)]) -> Vec<u8> {
    assemble_with(entries, sections, None)
}

/// A pack whose zstd entries use the dictionary; section `DICT` is the caller's to give.
pub(crate) fn assemble_with(
    entries: &[Piece<'_>],
    sections: &[(Tag, Vec<u8>)],
    dictionary: Option<&Arc<Dictionary>>,
) -> Vec<u8> {
    let stored: Vec<(Vec<u8>, Entry)> =
        entries.iter().map(|entry| store(entry, dictionary)).collect();
    let mut file = Vec::new();
    let entries = place(&mut file, &stored);
    let data_end = file.len() as u64;
    let first = entries.first().map_or(data_end, |entry| entry.offset);
    let data_crc = crc32c(&file[first as usize..]);
    if !sections.is_empty() {
        append_sections(&mut file, sections);
    }
    let flags = HAS_DATA_CRC | if sections.is_empty() { 0 } else { HAS_SECTIONS };
    finish(file, &entries, flags, Footer { data_end, data_crc, ..Footer::default() })
}

/// A pack as the original writes it: no flags, no sections, whether or not there are CRCs.
pub(crate) fn assemble_original(payloads: &[(&[u8], u16)], checksums: bool) -> Vec<u8> {
    let entry = |(payload, kind): &(&[u8], u16)| {
        let crc = if checksums { crc32c(payload) } else { 0 };
        let length = payload.len() as u32;
        (payload.to_vec(), Entry { offset: 0, length, kind: *kind, flags: 0, crc, logical: 0 })
    };
    let stored: Vec<(Vec<u8>, Entry)> = payloads.iter().map(entry).collect();
    let mut file = Vec::new();
    let entries = place(&mut file, &stored);
    let data_end = file.len() as u64;
    finish(file, &entries, 0, Footer { data_end, ..Footer::default() })
}

/// The same file with another index, under a checksum that holds.
pub(crate) fn with_index(file: &[u8], change: impl FnOnce(&mut [Entry])) -> Vec<u8> {
    let header = Header::parse(file).unwrap();
    let (body, footer) = file.split_at(file.len() - FOOTER_BYTES);
    let index = &file[HEADER_BYTES..HEADER_BYTES + header.count as usize * ENTRY_BYTES];
    let mut entries: Vec<Entry> =
        index.as_chunks::<ENTRY_BYTES>().0.iter().map(Entry::parse).collect();
    change(&mut entries);
    finish(body.to_vec(), &entries, header.flags, Footer::parse(footer).unwrap())
}

/// Header and index at their place in `file`, the footer behind it.
pub(crate) fn finish(
    mut file: Vec<u8>,
    entries: &[Entry],
    flags: u32,
    mut footer: Footer,
) -> Vec<u8> {
    let index: Vec<u8> = entries.iter().flat_map(|entry| entry.to_bytes()).collect();
    footer.index_crc = crc32c(&index);
    let header = Header { flags, count: entries.len() as u64 };
    file[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
    file[HEADER_BYTES..HEADER_BYTES + index.len()].copy_from_slice(&index);
    file.extend(footer.to_bytes());
    file
}

fn store(
    (payload, kind, codec): &Piece<'_>,
    dictionary: Option<&Arc<Dictionary>>,
) -> (Vec<u8>, Entry) {
    let mut encoder = Encoder::new(*codec, None).unwrap();
    let mut flags = u16::from(codec.id()) | HAS_CRC;
    if let (Codec::Zstd, Some(dictionary)) = (codec, dictionary) {
        encoder = encoder.with_dictionary(Arc::clone(dictionary)).unwrap();
        flags |= HAS_DICTIONARY;
    }
    let stored = encoder.encode(payload).unwrap();
    let logical = if *codec == Codec::Raw { 0 } else { payload.len() as u32 };
    let (length, crc) = (stored.len() as u32, crc32c(&stored));
    (stored, Entry { offset: 0, length, kind: *kind, flags, crc, logical })
}

fn place(file: &mut Vec<u8>, stored: &[(Vec<u8>, Entry)]) -> Vec<Entry> {
    file.resize(HEADER_BYTES + stored.len() * ENTRY_BYTES, 0);
    let put = |(bytes, entry): &(Vec<u8>, Entry)| {
        let offset = align_up(file.len() as u64, ALIGN).unwrap();
        file.resize(offset as usize, 0);
        file.extend_from_slice(bytes);
        Entry { offset, ..*entry }
    };
    stored.iter().map(put).collect()
}

fn append_sections(file: &mut Vec<u8>, sections: &[(Tag, Vec<u8>)]) {
    let mut directory = Vec::new();
    for (tag, bytes) in sections {
        file.resize(file.len().next_multiple_of(8), 0);
        directory.extend(tag.0);
        directory.extend([0; 4]);
        directory.extend((file.len() as u64).to_le_bytes());
        directory.extend((bytes.len() as u64).to_le_bytes());
        file.extend(SectionHeader::of(*tag, bytes).to_bytes());
        file.extend_from_slice(bytes);
    }
    file.resize(file.len().next_multiple_of(8), 0);
    directory.extend((file.len() as u64).to_le_bytes());
    file.extend(SectionHeader::of(Tag::DIRS, &directory).to_bytes());
    file.extend(directory);
}

/// A run of so many steps; different seeds give different ones.
pub(crate) fn run(steps: u32, seed: u64) -> Run {
    let board = |step: u32| (u64::from(step) + seed).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let value = |step: u32| [0.0, 1.0, step as f32 / 1000.0, f32::NAN];
    let given = |step: u32| if step.is_multiple_of(2) { 0b1_0111 } else { 0 };
    let meta = Meta {
        steps,
        start_unix_s: 1_700_000_000 + seed,
        elapsed_s: 1.5,
        max_score: 100 * seed,
        highest_tile: 1 << (seed % 11),
        engine: [None, Some("expectimax".to_owned()), Some("greedy".to_owned())][seed as usize % 3]
            .clone(),
    };
    let values = |step: u32| if given(step) == 0 { [f32::NAN; 4] } else { value(step) };
    let branches = Branches {
        values: (0..steps).map(values).collect(),
        given: (0..steps).map(given).collect(),
    };
    Run {
        meta,
        boards: (0..=steps).map(board).collect(),
        moves: (0..steps).map(|step| (step % 4) as u8).collect(),
        branches: (steps > 0).then_some(branches),
    }
}

/// A storage that is no memory to its reader, as one far away; it counts requests.
pub(crate) struct Memory {
    bytes: Vec<u8>,
    reads: Arc<AtomicUsize>,
}

impl Memory {
    /// The storage, and the number of its requests so far.
    pub(crate) fn new(bytes: Vec<u8>) -> (Self, Arc<AtomicUsize>) {
        let reads = Arc::new(AtomicUsize::new(0));
        (Self { bytes, reads: Arc::clone(&reads) }, reads)
    }
}

impl Storage for Memory {
    fn name(&self) -> &str {
        "memory.a2pack"
    }

    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn mapped(&self) -> Option<&[u8]> {
        None
    }

    fn read(&self, ranges: &[Range<u64>]) -> Result<Vec<Vec<u8>>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let part = |range: &Range<u64>| {
            let bytes = self.bytes.get(range.start as usize..range.end as usize);
            bytes.map(<[u8]>::to_vec).ok_or_else(|| Error::Corrupt(format!("no {range:?}")))
        };
        ranges.iter().map(part).collect()
    }

    fn recheck(&self) -> Result<()> {
        Ok(())
    }
}

/// A file that is gone when the test is.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// A file with these bytes.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("relive-{}-{number}.a2pack", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, bytes).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Cuts the file, or lengthens it with zeros.
    pub(crate) fn resize(&self, bytes: u64) {
        OpenOptions::new().write(true).open(&self.0).unwrap().set_len(bytes).unwrap();
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
