//! Opening any bytes as a tape returns a tape or an error. Its rows are complete and have
//! increasing timestamps; then every further read returns the end, or the same error. No call
//! panics or allocates more memory than the size of the tape justifies.
//!
//! The bits of the first byte, from the lowest:
//!
//! 1. The input is the tape itself; otherwise it is a list of records, each after its length in two
//!    bytes, from which a journal with valid checksums is written.
//! 2. A valid header comes first, with the shape that the next two bytes state.
//! 3. Records of rows get the expected number of their first row.
//! 4. The rows in these records get the right size, and mostly increasing timestamps.
//!
//! The second byte is the number of rows to read at a time.

#![no_main]

mod watched;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use libfuzzer_sys::fuzz_target;
use relive_core::journal::Journal;
use relive_core::tape::TapeReader;

/// An array may have grown to a multiple of its contents.
const GROWTH: usize = 4;

fuzz_target!(|input: &[u8]| {
    let [way, step, rest @ ..] = input else { return };
    let path = path();
    if way & 1 == 0 {
        write_records(&path, *way, rest);
    } else {
        fs::write(&path, rest).expect("there is room");
    }
    let bytes = fs::metadata(&path).expect("it was just written").len() as usize;
    watched::LARGEST.store(0, Ordering::Relaxed);
    read(&path, usize::from(*step) + 1);
    let largest = watched::LARGEST.load(Ordering::Relaxed);
    // Buffers of the journal, and what the rows take.
    assert!(largest <= (128 << 10) + GROWTH * bytes, "a block of {largest} bytes was requested");
});

fn read(path: &Path, max_rows: usize) {
    let Ok(mut reader) = TapeReader::open(path) else { return };
    let (mut count, mut last) = (0, None);
    let ended = loop {
        let rows = match reader.next_rows(max_rows, 16 * max_rows) {
            Ok(Some(rows)) => rows,
            Ok(None) => break true,
            Err(_) => break false,
        };
        let found = rows.timestamps.len();
        assert!(found > 0 && found <= max_rows);
        assert_eq!(rows.clocks.len(), found * reader.clocks());
        assert_eq!(rows.offsets.len(), found + 1);
        assert_eq!((rows.offsets[0], rows.offsets[found]), (0, rows.payload.len() as i64));
        for (row, &ts) in rows.timestamps.iter().enumerate() {
            assert!(last < Some(ts));
            last = Some(ts);
            let bytes = rows.offsets[row + 1] - rows.offsets[row];
            assert!(bytes >= 0 && reader.row_bytes().is_none_or(|all| all as i64 == bytes));
        }
        count += found as u64;
    };
    assert_eq!(reader.next_rows(1, 1).is_ok(), ended);
    assert_eq!(reader.rows().ok(), ended.then_some(count));
    assert_eq!(reader.notes().is_ok(), ended);
    reader.rewind().expect("it was read before");
    let first = reader.next_rows(1, 0).ok().flatten();
    assert_eq!(first.map_or(0, |rows| rows.timestamps.len() as u64), count.min(1));
}

fn write_records(path: &Path, way: u8, mut rest: &[u8]) {
    drop(fs::remove_file(path));
    let mut journal = Journal::create(path).expect("nothing is there");
    let mut forger = Forger { clocks: 0, row_bytes: Some(0), rows: 0, last: 0 };
    if way & 2 > 0
        && let [clocks, row_bytes, tail @ ..] = rest
    {
        rest = tail;
        forger.clocks = usize::from(*clocks % 4);
        forger.row_bytes = row_bytes.checked_sub(1).map(usize::from);
        let (variable, bytes) = (u8::from(*row_bytes == 0), row_bytes.saturating_sub(1));
        let head = [1, 1, *clocks % 4, 0, variable, 0, 0, 0, bytes, 0, 0, 0, 0, 0, 0, 0];
        journal.append(&head).expect("it is short");
    }
    while let [low, high, tail @ ..] = rest {
        let length = usize::from(*low) | usize::from(*high) << 8;
        let (record, tail) = tail.split_at(length.min(tail.len()));
        let mut record = record.to_vec();
        if record.len() >= 16 && record[0] == 2 {
            forger.mend(&mut record, way);
        }
        journal.append(&record).expect("it is short");
        rest = tail;
    }
    journal.flush().expect("there is room");
}

/// Makes records of rows hold, or nearly.
struct Forger {
    clocks: usize,
    row_bytes: Option<usize>,
    rows: u64,
    last: i64,
}

impl Forger {
    fn mend(&mut self, record: &mut Vec<u8>, way: u8) {
        if way & 8 > 0 {
            let count = self.mend_rows(record);
            record[4..8].copy_from_slice(&count.to_le_bytes());
        }
        if way & 4 > 0 {
            record[1..4].fill(0);
            record[8..16].copy_from_slice(&self.rows.to_le_bytes());
            self.rows +=
                u64::from(u32::from_le_bytes([record[4], record[5], record[6], record[7]]));
        }
    }

    fn mend_rows(&mut self, record: &mut Vec<u8>) -> u32 {
        let (mut at, mut count) = (16, 0);
        while let Some(step) = record.get(at) {
            let ts = self.last + i64::from(*step) - 1;
            let mut end = at + 8 + 8 * self.clocks;
            match self.row_bytes {
                Some(bytes) => end += bytes,
                None if end + 4 <= record.len() => {
                    record[end + 1..end + 4].fill(0);
                    end += 4 + usize::from(record[end]);
                }
                None => break,
            }
            if end > record.len() {
                break;
            }
            record[at..at + 8].copy_from_slice(&ts.to_le_bytes());
            (at, count, self.last) = (end, count + 1, ts);
        }
        record.truncate(at);
        count
    }
}

/// A file of this process, in memory where there is such a place.
fn path() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
    parent.join(format!("relive-fuzz-tape-{}", std::process::id()))
}
