//! A reader that knows only the layout, and things to write, for tests.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use super::{PackWriter, WriterOptions};
use crate::Result;
use crate::codec::{Decoder, Dictionary, Stored};
use crate::crc::crc32c;
use crate::pack::layout::{
    ENTRY_BYTES, Entry, FOOTER_BYTES, Footer, HAS_CRC, HAS_DATA_CRC, HEADER_BYTES, Header,
    SECTION_HEADER_BYTES, SectionHeader, Tag, u64_at,
};
use crate::pack::stats::Summary;
use crate::runs::{Meta, Run, STEP_ROW_BYTES, Version};

/// Everything in a pack, read as its specification says and in no other way.
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

/// Walks from section to section, and holds the directory against what is there.
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

pub(crate) fn run(steps: u32, engine: Option<&str>) -> Run {
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
    run(steps, engine).to_bytes(Version::V2).unwrap()
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

/// The rows of a step table, whose blocks are checked.
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
