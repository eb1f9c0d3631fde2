//! Opening any bytes as a pack, and every call on the pack, returns a result or an error. No call
//! panics or allocates more memory than the size of the file justifies.
//!
//! The target corrects the checksums before it opens the pack, unless the last byte of the input
//! is odd: otherwise no input would get past them. The byte before the last selects how the pack
//! is read. Both bytes are zero in a valid pack, so golden files can be the first inputs.

#![no_main]

use std::ops::Range;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use relive_core::crc::crc32c;
use relive_core::pack::layout::{
    FOOTER_BYTES, HEADER_BYTES, MAGIC, SECTION_HEADER_BYTES, SectionHeader, u64_at,
};
use relive_core::pack::{
    Granularity, JsonlOptions, Level, Options, PackReader, PackRows, StepRows, Verify, stats,
    validate, write_jsonl,
};
use relive_core::runs::Boards;
use relive_core::storage::Storage;
use relive_core::table::{Table, Target};
use relive_core::{Error, Result};

/// The limit for compressed payloads.
const MAX_PAYLOAD: u64 = 1 << 16;

fuzz_target!(|input: &[u8]| {
    let mut bytes = input.to_vec();
    let [.., way, mend] = &mut bytes[..] else { return };
    let (way, mend) = (std::mem::take(way), std::mem::take(mend));
    if mend % 2 == 0 {
        make_checksums_match(&mut bytes);
    }
    let verify = if way & 1 == 0 { Verify::Never } else { Verify::First };
    let mapped = way & 2 == 0;
    let storage = || Box::new(Memory { bytes: bytes.clone(), mapped });
    for level in [Level::Index, Level::Sample, Level::Full] {
        let report = validate(storage(), level, MAX_PAYLOAD, 1, &|_, _| Ok(()))
            .expect("memory does not fail");
        for problem in report.problems {
            assert!(!matches!(problem.error, Error::Io(_)));
        }
    }
    let options = Options { verify, max_payload_bytes: MAX_PAYLOAD };
    let Ok(pack) = PackReader::open_storage(storage(), options) else { return };
    let pack = Arc::new(pack);
    let rows: Vec<u64> = (0..pack.len().min(64)).rev().collect();
    for &row in &rows {
        drop(pack.payload(row));
        drop(pack.kind_name(row));
    }
    drop(pack.names().map(|names| names.map(|names| names.get(0).map(str::len))));
    drop(pack.find("x"));
    drop(pack.decode_batch(&rows, 1));
    drop(stats(std::slice::from_ref(&pack), None));
    drop(pack.summary());
    let lines = JsonlOptions {
        granularity: if way & 4 == 0 { Granularity::Runs } else { Granularity::Steps },
        with_lists: true,
        boards: if way & 8 == 0 { Boards::Integers } else { Boards::Hex },
        threads: 1,
        skip_errors: true,
    };
    let places: Vec<(u32, u64)> = rows.iter().map(|&row| (0, row)).collect();
    let packs = [Arc::clone(&pack)];
    drop(write_jsonl(&packs, &places, &lines, &mut Vec::new(), &|_| Ok(())));
    gather(Table::from_reader(Arc::new(PackRows(Arc::clone(&pack)))));
    if let Ok(steps) = StepRows::new(packs.to_vec(), None) {
        gather(Table::from_reader(Arc::new(steps)));
    }
});

/// Reads a few rows of every column.
fn gather(table: Result<Table>) {
    let Ok(table) = table else { return };
    let most = table.len() as i64;
    let rows: Vec<i64> =
        [0, 1, 64, most / 2, most - 1].into_iter().filter(|row| (0..most).contains(row)).collect();
    let mut places = Vec::new();
    table.find(&rows, &mut places).expect("the rows are inside");
    for column in 0..table.columns().len() {
        let mut offsets = Vec::new();
        let bytes = match table.row_bytes(column) {
            0 => {
                if table.offsets(column, &places, &mut offsets).is_err() {
                    continue;
                }
                offsets.last().map_or(0, |&end| end as usize)
            }
            bytes => bytes * places.len(),
        };
        if bytes > MAX_PAYLOAD as usize * 8 {
            continue;
        }
        let mut out = vec![0_u8; bytes];
        let target = Target { column, offsets: &offsets, out: out.as_mut_ptr() };
        // SAFETY: the buffer has the size that the table requested.
        drop(unsafe { table.gather(&places, &[target], 1) });
    }
}

/// Corrects what a fuzzer cannot guess: the checksums of header, footer, index and sections.
fn make_checksums_match(bytes: &mut [u8]) {
    let end = bytes.len();
    if end < HEADER_BYTES + FOOTER_BYTES {
        return;
    }
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&1_u32.to_le_bytes());
    let crc = crc32c(&bytes[..24]);
    bytes[24..28].copy_from_slice(&crc.to_le_bytes());
    let footer = end - FOOTER_BYTES;
    let index_end = (u64_at(bytes, 16) as usize).saturating_mul(32).saturating_add(HEADER_BYTES);
    if let Some(index) = bytes.get(HEADER_BYTES..index_end) {
        let crc = crc32c(index);
        bytes[footer + 8..footer + 12].copy_from_slice(&crc.to_le_bytes());
    }
    let crc = crc32c(&bytes[footer..footer + 24]);
    bytes[footer + 24..footer + 28].copy_from_slice(&crc.to_le_bytes());
    let directory = u64_at(bytes, footer - 8) as usize;
    let places = section(bytes, directory).unwrap_or(0..0);
    let listed: Vec<usize> =
        places.clone().step_by(24).map(|at| u64_at(bytes, at + 8) as usize).take(16).collect();
    for at in listed.into_iter().chain([directory]) {
        if let Some(body) = section(bytes, at) {
            let tag = SectionHeader::parse(&bytes[at..]).expect("it has a header").tag;
            let crc = SectionHeader::of(tag, &bytes[body]).crc;
            bytes[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
        }
    }
}

/// Returns the bytes of the section at `at`, if there is one.
fn section(bytes: &[u8], at: usize) -> Option<Range<usize>> {
    let header = SectionHeader::parse(bytes.get(at..)?)?;
    let start = at + SECTION_HEADER_BYTES;
    let end = start.checked_add(usize::try_from(header.length).ok()?)?;
    (end <= bytes.len()).then_some(start..end)
}

struct Memory {
    bytes: Vec<u8>,
    mapped: bool,
}

impl Storage for Memory {
    fn name(&self) -> &str {
        "memory"
    }

    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn mapped(&self) -> Option<&[u8]> {
        self.mapped.then_some(&self.bytes)
    }

    fn read(&self, ranges: &[Range<u64>]) -> Result<Vec<Vec<u8>>> {
        let part = |range: &Range<u64>| {
            self.bytes
                .get(range.start as usize..range.end as usize)
                .map(<[u8]>::to_vec)
                .ok_or_else(|| Error::Corrupt("outside".into()))
        };
        ranges.iter().map(part).collect()
    }

    fn recheck(&self) -> Result<()> {
        Ok(())
    }
}
