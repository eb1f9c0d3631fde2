//! For tests: packs assembled byte by byte, a second reader, files and storages, random games.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::layout::{
    ENTRY_BYTES, Entry, FOOTER_BYTES, Footer, HAS_CRC, HAS_DATA_CRC, HAS_DICTIONARY, HAS_SECTIONS,
    HEADER_BYTES, Header, SECTION_HEADER_BYTES, SectionHeader, Tag, align_up, u32_at, u64_at,
};
use super::stats::Summary;
use super::writer::{PackWriter, WriterOptions};
use crate::codec::{Codec, Decoder, Dictionary, Encoder, Stored};
use crate::crc::crc32c;
use crate::runs::{Branches, Meta, Run, STEP_ROW_BYTES, Version, legal, slide};
use crate::storage::Storage;
use crate::{Error, Result};

const ALIGN: u64 = 64;

impl Summary {
    /// Parses the stats block at the start of `bytes`, and returns its size including its length.
    pub(crate) fn parse(bytes: &[u8]) -> Result<(Self, usize)> {
        let length = u32_at(bytes, 0) as usize;
        let body = bytes.get(4..).and_then(|rest| rest.get(..length));
        let body = body.ok_or_else(|| Error::Corrupt("the stats block is truncated".into()))?;
        Ok((Self::parse_body(body)?, 4 + length))
    }
}

/// Payload, kind and codec of an entry.
pub(crate) type TestEntry<'a> = (&'a [u8], u16, Codec);

/// A pack with these entries and sections; the directory is made here.
pub(crate) fn assemble(entries: &[TestEntry<'_>], sections: &[(Tag, Vec<u8>)]) -> Vec<u8> {
    assemble_with(entries, sections, None)
}

/// A pack whose zstd entries use the dictionary; section `DICT` is the caller's to give.
pub(crate) fn assemble_with(
    entries: &[TestEntry<'_>],
    sections: &[(Tag, Vec<u8>)],
    dictionary: Option<&Arc<Dictionary>>,
) -> Vec<u8> {
    let stored: Vec<(Vec<u8>, Entry)> =
        entries.iter().map(|entry| store(entry, dictionary)).collect();
    let mut file = Vec::new();
    let entries = put_entries(&mut file, &stored);
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
    let entries = put_entries(&mut file, &stored);
    let data_end = file.len() as u64;
    finish(file, &entries, 0, Footer { data_end, ..Footer::default() })
}

/// The same file with a changed index and a correct checksum.
pub(crate) fn with_index(file: &[u8], change: impl FnOnce(&mut [Entry])) -> Vec<u8> {
    let header = Header::parse(file).unwrap();
    let (body, footer) = file.split_at(file.len() - FOOTER_BYTES);
    let index = &file[HEADER_BYTES..HEADER_BYTES + header.count as usize * ENTRY_BYTES];
    let mut entries: Vec<Entry> =
        index.as_chunks::<ENTRY_BYTES>().0.iter().map(Entry::parse).collect();
    change(&mut entries);
    finish(body.to_vec(), &entries, header.flags, Footer::parse(footer).unwrap())
}

/// Writes header and index at the start of `file`, and appends the footer.
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
    (payload, kind, codec): &TestEntry<'_>,
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

fn put_entries(file: &mut Vec<u8>, stored: &[(Vec<u8>, Entry)]) -> Vec<Entry> {
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

/// A run with branches that depends on the seed.
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

/// A storage that is not mapped, like a remote one; it counts requests.
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

/// A file that is removed at the end of the test.
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

/// The contents of a pack, read by a second, simple reader.
pub(crate) struct Naive {
    pub(crate) header: Header,
    pub(crate) entries: Vec<Entry>,
    pub(crate) payloads: Vec<Vec<u8>>,
    pub(crate) summary: Summary,
    pub(crate) sections: HashMap<[u8; 4], Vec<u8>>,
}

pub(crate) fn naive(path: &Path) -> Naive {
    let file = fs::read(path).unwrap();
    let header = Header::parse(&file).unwrap();
    let footer = Footer::parse(&file[file.len() - FOOTER_BYTES..]).unwrap();
    let index_end = HEADER_BYTES + ENTRY_BYTES * header.count as usize;
    let index = &file[HEADER_BYTES..index_end];
    assert_eq!(crc32c(index), footer.index_crc);
    let entries: Vec<Entry> =
        index.chunks(ENTRY_BYTES).map(|bytes| Entry::parse(bytes.try_into().unwrap())).collect();
    let data_end = footer.data_end as usize;
    let first = entries.first().map_or(data_end, |entry| entry.offset as usize);
    let has_crc = header.flags & HAS_DATA_CRC != 0;
    assert_eq!(footer.data_crc, if has_crc { crc32c(&file[first..data_end]) } else { 0 });

    let sections = find_sections(&file, data_end);
    let dictionary = sections.get(b"DICT").map(|bytes| Dictionary::new(bytes.clone()).unwrap());
    let decoder = match dictionary {
        Some(dictionary) => Decoder::new().with_dictionary(Arc::new(dictionary)),
        None => Decoder::new(),
    };
    let mut end = index_end;
    let mut payloads = Vec::new();
    for entry in &entries {
        let (from, to) = (entry.offset as usize, entry.end().unwrap() as usize);
        assert!(file[end..from].iter().all(|&byte| byte == 0), "padding before {from}");
        let stored = &file[from..to];
        assert_eq!(entry.has_crc(), has_crc && (entry.crc != 0 || entry.flags & HAS_CRC != 0));
        assert_eq!(entry.crc, if has_crc { crc32c(stored) } else { 0 });
        let record =
            Stored { codec: entry.codec().unwrap(), bytes: stored, length: entry.payload_bytes() };
        payloads.push(decoder.decode(&record).unwrap());
        end = to;
    }
    assert!(file[end..data_end].iter().all(|&byte| byte == 0));
    let stats_offset = footer.stats_offset as usize;
    assert_eq!(stats_offset, data_end.next_multiple_of(8));
    let (summary, stats_bytes) = Summary::parse(&file[stats_offset..]).unwrap();
    let crc = crc32c(&file[stats_offset..stats_offset + stats_bytes]);
    assert_eq!(sections[b"STAT"], crc.to_le_bytes());
    Naive { header, entries, payloads, summary, sections }
}

/// Reads all sections in order and compares them with the directory.
fn find_sections(file: &[u8], data_end: usize) -> HashMap<[u8; 4], Vec<u8>> {
    let body_end = file.len() - FOOTER_BYTES;
    let stats_offset = data_end.next_multiple_of(8);
    let (_, stats_bytes) = Summary::parse(&file[stats_offset..]).unwrap();
    let mut at = stats_offset + stats_bytes;
    let mut sections = HashMap::new();
    let mut directory = Vec::new();
    while at < body_end {
        let begin = at.next_multiple_of(8);
        assert!(file[at..begin].iter().all(|&byte| byte == 0));
        let header = SectionHeader::parse(&file[begin..]).unwrap();
        let from = begin + SECTION_HEADER_BYTES;
        at = from + header.length as usize;
        let bytes = file[from..at].to_vec();
        assert_eq!(header, SectionHeader::of(header.tag, &bytes), "{}", header.tag);
        if header.tag == Tag::DIRS {
            directory.extend((begin as u64).to_le_bytes());
            assert_eq!((&bytes, at), (&directory, body_end));
        } else {
            directory.extend([&header.tag.0[..], &[0; 4]].concat());
            directory.extend((begin as u64).to_le_bytes());
            directory.extend(header.length.to_le_bytes());
        }
        assert!(sections.insert(header.tag.0, bytes).is_none());
    }
    assert!(sections.contains_key(b"DIRS"));
    sections
}

/// A run without branches.
pub(crate) fn plain_run(steps: u32, engine: Option<&str>) -> Run {
    let board = |step: u32| 0x1234_0000_1111_0000 + u64::from(step) * 0x0101_0011;
    Run {
        meta: Meta {
            steps,
            start_unix_s: 1_700_000_000,
            elapsed_s: 1.5,
            max_score: 100 + u64::from(steps),
            highest_tile: 2048,
            engine: engine.map(str::to_owned),
        },
        boards: (0..=steps).map(board).collect(),
        moves: (0..steps).map(|step| (step % 4) as u8).collect(),
        branches: None,
    }
}

pub(crate) fn v2(steps: u32, engine: Option<&str>) -> Vec<u8> {
    plain_run(steps, engine).to_bytes(Version::V2).unwrap()
}

pub(crate) fn small() -> WriterOptions {
    WriterOptions { align: 64, threads: 2, ..WriterOptions::default() }
}

pub(crate) fn create(path: &Path, options: WriterOptions) -> PackWriter {
    PackWriter::create(path, options).unwrap()
}

pub(crate) fn kind_of<T>(outcome: Result<T>) -> &'static str {
    outcome.map_or_else(|error| error.kind(), |_| "ok")
}

/// Returns the rows of a step table after checking its blocks.
pub(crate) fn step_rows(section: &[u8]) -> Vec<[u8; STEP_ROW_BYTES]> {
    let rows = u64_at(section, 8) as usize;
    let blocks = rows.div_ceil(64);
    let table = &section[section.len() - rows * STEP_ROW_BYTES..];
    for (at, block) in table.chunks(64 * STEP_ROW_BYTES).enumerate() {
        let crc = &section[16 + 4 * at..20 + 4 * at];
        assert_eq!(crc, crc32c(block).to_le_bytes());
    }
    assert!(section[16 + 4 * blocks..section.len() - table.len()].iter().all(|&byte| byte == 0));
    table.as_chunks().0.to_vec()
}

/// A seeded random number generator.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    /// Returns a number below `most`.
    pub(crate) fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % most
    }
}

/// Plays at most `most` steps; with an even seed some of them have branches.
pub(crate) fn play(seed: u64, most: usize) -> Run {
    let mut numbers = Numbers(seed.wrapping_add(77));
    let mut board = add_tile(add_tile(0, &mut numbers), &mut numbers);
    let (mut boards, mut moves) = (vec![board], Vec::new());
    let mut branches = Branches::default();
    while moves.len() < most && legal(board) != 0 {
        let mv = (0..).map(|_| numbers.below(4) as u8).find(|&mv| legal(board) >> mv & 1 == 1);
        let given =
            if seed.is_multiple_of(2) && numbers.below(4) > 0 { 16 | legal(board) } else { 0 };
        branches.given.push(given);
        branches.values.push(std::array::from_fn(|mv| match given >> mv & 1 {
            1 => numbers.below(1000) as f32 / 1000.0,
            _ => f32::NAN,
        }));
        let mv = mv.unwrap();
        moves.push(mv);
        board = add_tile(slide(board, mv).unwrap().0, &mut numbers);
        boards.push(board);
    }
    let tile = |exponent: u64| if exponent == 0 { 0 } else { 1 << exponent };
    let meta = Meta {
        steps: moves.len() as u32,
        start_unix_s: 1_700_000_000 + seed,
        elapsed_s: seed as f32 / 8.0,
        max_score: seed * 100,
        highest_tile: (0..16).map(|cell| tile(board >> (4 * cell) & 15)).max().unwrap(),
        engine: [None, Some("ntuple"), Some("greedy")][seed as usize % 3].map(str::to_owned),
    };
    let branches = branches.given.iter().any(|&given| given != 0).then_some(branches);
    Run { meta, boards, moves, branches }
}

fn add_tile(board: u64, numbers: &mut Numbers) -> u64 {
    let empty: Vec<u32> = (0..16).filter(|cell| board >> (4 * cell) & 15 == 0).collect();
    let cell = empty[numbers.below(empty.len() as u64) as usize];
    board | (1 + numbers.below(10) / 9) << (4 * cell)
}
