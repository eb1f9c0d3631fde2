//! Opening any bytes as a record store, and every call on the store, returns a result or an error.
//! No call panics, reads after the end of a file, or allocates more memory than the size of the
//! files justifies.
//!
//! The input starts with the numbers of a `meta.json` with three fields. Then come byte strings,
//! each after its length in two bytes: the contents of chunk 0 (dense), its checksums, chunk 1
//! (heap) and a table, then the records of the journal. The target corrects the checksums of the
//! headers and of the journal: otherwise no input would get past them. The first byte selects
//! whether it corrects the others, and how the store is read.

#![no_main]

mod watched;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use libfuzzer_sys::fuzz_target;
use relive_core::Error;
use relive_core::crc::{Crc32c, crc32c};
use relive_core::journal::Journal;
use relive_core::pack::Verify;
use relive_core::records::{Io, ReadOptions, Records, Snapshot, SnapshotRows};
use relive_core::table::{ColumnShape, Table, Target};

/// The limit for compressed values.
const MAX_VALUE: u64 = 1 << 16;

/// Memory for verified addresses, headers, buffers and a batch of these rows.
const MOST_MEMORY: usize = 32 << 20;

const PAGE: usize = 4096;

fuzz_target!(|input: &[u8]| {
    let Some((&way, rest)) = input.split_first() else { return };
    let mut input = Input(rest);
    let folder = folder();
    write_store(&folder, &mut input, way);
    watched::LARGEST.store(0, Ordering::Relaxed);
    let options = ReadOptions {
        io: if way & 1 == 0 { Io::Mmap } else { Io::Pread },
        verify: [Verify::Never, Verify::First, Verify::Always, Verify::Never]
            [usize::from(way >> 1 & 3)],
        max_value_bytes: MAX_VALUE,
    };
    let at = (way & 8 > 0).then_some(u64::from(way >> 6));
    match Records::open(&folder, options, at) {
        Ok(records) => {
            ask(&records.snapshot());
            drop(records.refresh());
            ask(&records.snapshot());
        }
        // The call `at` may be one that is no longer in the journal.
        Err(error) if error.kind() == "not-found" => assert!(at.is_some(), "{error}"),
        Err(error) => assert!(!matches!(error, Error::Io(_)), "{error}"),
    }
    let largest = watched::LARGEST.load(Ordering::Relaxed);
    assert!(largest < MOST_MEMORY, "a block of {largest} bytes was requested");
});

/// A directory of this process, in memory if there is `/dev/shm`.
fn folder() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
    let folder = parent.join(format!("relive-fuzz-records-{}", std::process::id()));
    fs::create_dir_all(folder.join("chunk")).expect("there is room for a folder");
    folder
}

/// Reads a few records with every function of the store.
fn ask(snapshot: &Arc<Snapshot>) {
    let len = snapshot.len();
    let rows: Vec<u64> =
        [0, 1, 2, 3, len / 2, len.wrapping_sub(1)].into_iter().filter(|&row| row < len).collect();
    if len < 1000 {
        drop(snapshot.live());
    }
    let columns = snapshot.state().fields.len();
    for column in 0..columns {
        for &row in &rows {
            drop(snapshot.missing(column, row));
            drop(snapshot.dims(column, row, &mut Vec::new()));
            drop(snapshot.value(column, row));
            if let Ok(Some(view)) = snapshot.view(column, row) {
                std::hint::black_box(crc32c(view.bytes()));
            }
        }
        if let Ok(Some(view)) = snapshot.span(column, 0..len.min(64)) {
            std::hint::black_box(crc32c(view.bytes()));
        }
    }
    let rows: Vec<i64> = rows.into_iter().map(|row| row as i64).collect();
    let Ok(table) = Table::from_reader(Arc::new(SnapshotRows::new(Arc::clone(snapshot)))) else {
        return;
    };
    // At the second gather some columns are mapped.
    for _ in 0..2 {
        gather(&table, &rows);
    }
}

fn gather(table: &Table, rows: &[i64]) {
    let mut places = Vec::new();
    table.find(rows, &mut places).expect("the rows are inside");
    for (column, shape) in table.columns().iter().enumerate() {
        let mut offsets = Vec::new();
        let bytes = match shape {
            ColumnShape::Fixed { row_bytes } => row_bytes.saturating_mul(rows.len()),
            ColumnShape::Ragged { item_bytes } => {
                if table.offsets(column, &places, &mut offsets).is_err() {
                    continue;
                }
                offsets.last().map_or(0, |&end| end as usize * item_bytes)
            }
        };
        if bytes > MAX_VALUE as usize * 8 {
            continue;
        }
        let mut out = vec![0_u8; bytes];
        let target = Target { column, offsets: &offsets, out: out.as_mut_ptr() };
        // SAFETY: the buffer has the size that the table requested.
        drop(unsafe { table.gather(&places, &[target], 1) });
    }
}

/// Takes bytes from the front of the input.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or_default()
    }

    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Returns a number that is mostly small.
    fn number(&mut self) -> u64 {
        match self.byte() {
            0xFF => self.bytes(8).iter().fold(0, |all, &byte| all << 8 | u64::from(byte)),
            0xFE => PAGE as u64 + u64::from(self.byte()),
            byte => u64::from(byte),
        }
    }

    fn piece(&mut self) -> &'a [u8] {
        let count = usize::from(self.byte()) | usize::from(self.byte()) << 8;
        self.bytes(count)
    }
}

const UID: [u8; 16] = *b"sixteen letters!";

fn write_store(folder: &Path, input: &mut Input<'_>, way: u8) {
    let stride = input.number().max(1);
    let per_chunk = input.number().max(1);
    let table = input.byte() % 2 == 1;
    let table_rows = input.number();
    let item = input.number();
    let numbers: Vec<u64> = (0..16).map(|_| input.number()).collect();
    let uid: String = UID.iter().map(|byte| format!("{byte:02x}")).collect();
    let of_table = if table { format!("[\"b.1.offset\", {table_rows}]") } else { "null".into() };
    let field =
        |id: u16, name: &str, kind: &str, ragged: u8, codec: &str, bytes: u64, rest: String| {
            format!(
                "{{\"id\": {id}, \"name\": \"{name}\", \"dtype\": \"|u1\", \"shape\": [], \
             \"kind\": \"{kind}\", \"ragged\": {ragged}, \"compress\": \"{codec}\", \
             \"level\": null, \"bytes\": {bytes}, {rest}, \"dictionaries\": []}}"
            )
        };
    let none = "\"rows\": 0, \"chunks\": [], \"physical\": 0, \"extents\": []";
    let extents = format!("[[{}, {}, {}]]", numbers[0], numbers[1], numbers[2]);
    let fields = [
        field(
            0,
            "a",
            "fixed",
            0,
            "raw",
            stride,
            format!(
                "\"rows\": {per_chunk}, \"chunks\": [0], \"physical\": {}, \"extents\": {extents}, \
             \"table\": null",
                numbers[3]
            ),
        ),
        field(1, "b", "bytes", 0, "zstd", 1, format!("{none}, \"table\": {of_table}")),
        field(2, "c", "ragged", 2, "raw", item, format!("{none}, \"table\": null")),
    ]
    .join(", ");
    let before = format!(
        "{{\"format\": \"relive-records\", \"version\": 1, \"uid\": \"{uid}\", \"generation\": {}, \
         \"sequence\": {}, \"length\": {}, \"journal\": \"1.journal\", \"chunks\": {{\"num\": 2, \
         \"size\": null, \"bytes\": 1000000, \"next\": 2, \"full\": [], \"unfull\": \
         [[0, {}, {}, {}], [1, {}, {}, 0]]}}, \"heap\": [1], \"next_field\": 3, \
         \"fields\": [{fields}]",
        way >> 6,
        numbers[4],
        numbers[5],
        numbers[6],
        numbers[7],
        numbers[8],
        numbers[9],
        numbers[10]
    );
    let crc = crc32c(before.as_bytes());
    write(folder, "meta.json", format!("{before},\n  \"crc\": \"{crc:08x}\"\n}}\n").as_bytes());
    let dense = input.piece();
    write(folder, "chunk/0.zr", &chunk(0, 1, stride, per_chunk, dense));
    write(folder, "chunk/0.crc", input.piece());
    write(folder, "chunk/1.zr", &chunk(1, 2, 0, 0, &mended(input.piece(), way)));
    write(folder, "b.1.offset", &table_file(table_rows, input.piece(), way));
    let journal = folder.join("1.journal");
    drop(fs::remove_file(&journal));
    let mut journal = Journal::create(&journal).expect("its name is free");
    let mut group = Crc32c::default();
    let mut frames = 0_u32;
    while !input.0.is_empty() {
        let mut record = input.piece().to_vec();
        // A Commit gets the checksum and the number of the records before it.
        if record.first() == Some(&5) && record.len() >= 32 && way & 16 == 0 {
            record[4..8].copy_from_slice(&frames.to_le_bytes());
            record[24..28].copy_from_slice(&group.value().to_le_bytes());
            (frames, group) = (0, Crc32c::default());
        } else {
            group.update(&record);
            frames += 1;
        }
        journal.append(&record).expect("there is room");
    }
    journal.flush().expect("there is room");
}

fn write(folder: &Path, name: &str, bytes: &[u8]) {
    fs::write(folder.join(name), bytes).expect("there is room");
}

fn header(magic: &[u8; 8], number: u32) -> Vec<u8> {
    let mut page = vec![0; PAGE];
    page[..8].copy_from_slice(magic);
    page[8..12].copy_from_slice(&1_u32.to_le_bytes());
    page[12..16].copy_from_slice(&number.to_le_bytes());
    page[16..32].copy_from_slice(&UID);
    page
}

fn sealed(mut page: Vec<u8>) -> Vec<u8> {
    let crc = crc32c(&page[..60]);
    page[60..64].copy_from_slice(&crc.to_le_bytes());
    page
}

fn chunk(number: u32, kind: u32, stride: u64, rows: u64, bytes: &[u8]) -> Vec<u8> {
    let mut page = header(b"RELIVEC\0", number);
    page[32..36].copy_from_slice(&kind.to_le_bytes());
    page[40..48].copy_from_slice(&stride.to_le_bytes());
    page[48..56].copy_from_slice(&rows.to_le_bytes());
    [&sealed(page), bytes].concat()
}

/// Makes the checksum of the first record match.
fn mended(bytes: &[u8], way: u8) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if bytes.len() >= 32 && way & 32 == 0 {
        bytes[..4].copy_from_slice(b"ZREC");
        let stored = u32::from_le_bytes([bytes[24], bytes[25], bytes[26], bytes[27]]);
        let end = 32 + 8 * usize::from(bytes[7]) + stored as usize;
        if let Some(rest) = bytes.get(32..end) {
            let mut digest = Crc32c::default();
            digest.update(&bytes[..28]);
            digest.update(rest);
            let crc = digest.value();
            bytes[28..32].copy_from_slice(&crc.to_le_bytes());
        }
    }
    bytes
}

fn table_file(rows: u64, entries: &[u8], way: u8) -> Vec<u8> {
    let mut page = header(b"RELIVET\0", 1);
    let mut entries = entries.to_vec();
    if way & 32 == 0 {
        // As long as the rows require, if that is short.
        entries.resize((rows.min(1000) * 16) as usize, 0);
    }
    let crcs = crc32c(&entries).to_le_bytes();
    let crcs: &[u8] = if rows == 0 { &[] } else { &crcs };
    page[32..40].copy_from_slice(&rows.to_le_bytes());
    page[40..44].copy_from_slice(&crc32c(crcs).to_le_bytes());
    [&sealed(page)[..], &entries, crcs].concat()
}
