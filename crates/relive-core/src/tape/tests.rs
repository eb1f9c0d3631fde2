//! Tapes against plain lists, cut and flipped, and stopped in every way.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::*;
use crate::durable::Folder;
use crate::journal::{Journal, MAX_RECORD_BYTES};
use crate::{Error, Result};

type Row = (i64, Vec<i64>, Vec<u8>);

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % limit
    }

    fn row(&mut self, last: i64, row_bytes: Option<usize>, clocks: usize) -> Row {
        let length = row_bytes.unwrap_or_else(|| self.below(40) as usize);
        let byte = self.below(256) as u8;
        let clocks = (0..clocks).map(|_| self.below(1 << 31) as i64 - (1 << 30)).collect();
        (last + 1 + self.below(5) as i64, clocks, vec![byte; length])
    }
}

/// What there is, some rows at a time.
fn read(reader: &mut TapeReader, max_rows: usize, max_bytes: usize) -> Result<Vec<Row>> {
    let mut all = Vec::new();
    let clocks = reader.clocks();
    while let Some(rows) = reader.next_rows(max_rows, max_bytes)? {
        let count = rows.timestamps.len();
        assert!(count > 0 && count <= max_rows);
        assert_eq!((rows.clocks.len(), rows.offsets.len()), (count * clocks, count + 1));
        assert_eq!((rows.offsets[0], rows.offsets[count]), (0, rows.payload.len() as i64));
        assert!(count == 1 || rows.payload.len() + count * 8 * (1 + clocks) <= max_bytes);
        for row in 0..count {
            let range = rows.offsets[row] as usize..rows.offsets[row + 1] as usize;
            all.push((
                rows.timestamps[row],
                rows.clocks[row * clocks..][..clocks].to_vec(),
                rows.payload[range].to_vec(),
            ));
        }
    }
    assert!(reader.next_rows(max_rows, max_bytes)?.is_none());
    Ok(all)
}

fn read_all(path: &Path) -> Result<Vec<Row>> {
    read(&mut TapeReader::open(path)?, 1000, 1 << 20)
}

fn append(writer: &TapeWriter, row: &Row) -> Result<()> {
    writer.append(row.0, &row.1, &row.2)
}

/// A tape of a few records: rows in groups, a note behind each.
fn small(path: &Path, row_bytes: Option<usize>, clocks: usize) -> (Vec<Row>, Vec<u8>) {
    let _ = fs::remove_file(path);
    let writer = TapeWriter::create(path, "arm", b"head", row_bytes, clocks).unwrap();
    let mut random = Random(7);
    let mut rows: Vec<Row> = Vec::new();
    for group in 0..4_u8 {
        for _ in 0..=group {
            let last = rows.last().map_or(-3, |row| row.0);
            rows.push(random.row(last, row_bytes, clocks));
            append(&writer, &rows[rows.len() - 1]).unwrap();
        }
        writer.flush().unwrap();
        writer.note(&[group; 3]).unwrap();
    }
    writer.close().unwrap();
    (rows, fs::read(path).unwrap())
}

const SHAPES: [(Option<usize>, usize); 6] =
    [(Some(56), 0), (Some(0), 0), (Some(3), 2), (None, 0), (None, 3), (Some(0), 9)];

#[test]
fn tapes_agree_with_a_list() {
    let folder = Folder::new();
    for (number, (row_bytes, clocks)) in SHAPES.into_iter().enumerate() {
        let path = folder.path(&number.to_string());
        let writer = TapeWriter::create(&path, "arm", b"{}", row_bytes, clocks).unwrap();
        let mut random = Random(number as u64);
        let (mut rows, mut notes): (Vec<Row>, Vec<Vec<u8>>) = Default::default();
        let mut safe = (0, 0);
        for _ in 0..3000 {
            let last = rows.last().map_or(i64::MIN + 9, |row| row.0);
            match random.below(100) {
                0 => {
                    writer.flush().unwrap();
                    safe = (rows.len(), notes.len());
                }
                1 => {
                    writer.sync().unwrap();
                    safe = (rows.len(), notes.len());
                }
                2 => {
                    let mut reader = TapeReader::open(&path).unwrap();
                    let found = read(&mut reader, 1 + random.below(50) as usize, 700).unwrap();
                    assert!(found.len() >= safe.0 && found == rows[..found.len()]);
                    let noted = reader.notes().unwrap();
                    assert!(noted.len() >= safe.1 && noted == notes[..noted.len()]);
                }
                3..6 => {
                    notes.push(vec![random.below(256) as u8; random.below(30) as usize]);
                    writer.note(&notes[notes.len() - 1]).unwrap();
                }
                6 if !rows.is_empty() => {
                    let late = random.row(last, row_bytes, clocks);
                    let early = last - random.below(2) as i64;
                    let refused = writer.append(early, &late.1, &late.2).unwrap_err();
                    let text =
                        format!("`arm`: timestamp {early} is not after the previous one, {last}");
                    assert_eq!((refused.kind(), refused.to_string()), ("invalid", text));
                }
                7 => {
                    let mut bad = random.row(last, row_bytes, clocks);
                    if random.below(2) == 0 && row_bytes.is_some() {
                        bad.2.push(0);
                    } else {
                        bad.1.push(0);
                    }
                    assert_eq!(append(&writer, &bad).unwrap_err().kind(), "invalid");
                }
                _ => {
                    rows.push(random.row(last, row_bytes, clocks));
                    append(&writer, &rows[rows.len() - 1]).unwrap();
                }
            }
            assert_eq!(writer.rows().unwrap(), rows.len() as u64);
            assert_eq!(writer.last_ts().unwrap(), rows.last().map(|row| row.0));
        }
        writer.close().unwrap();
        assert_eq!(writer.pending_bytes().unwrap(), 0);
        let mut reader = TapeReader::open(&path).unwrap();
        assert_eq!(reader.head(), Some(&b"{}"[..]));
        assert_eq!((reader.row_bytes(), reader.clocks()), (row_bytes, clocks));
        // Halfway through, the rest is counted and noted without a step.
        let begun = reader.next_rows(7, usize::MAX).unwrap().unwrap().timestamps.len();
        assert_eq!(reader.rows().unwrap(), rows.len() as u64);
        assert_eq!(reader.notes().unwrap(), notes);
        assert_eq!(read(&mut reader, 1000, usize::MAX).unwrap(), rows[begun..]);
        for (max_rows, max_bytes) in [(1, 0), (3, 200), (100_000, usize::MAX)] {
            reader.rewind().unwrap();
            assert_eq!(read(&mut reader, max_rows, max_bytes).unwrap(), rows);
        }
        assert!(reader.next_rows(0, 1).is_err_and(|error| error.kind() == "invalid"));
    }
}

#[test]
fn every_cut_gives_a_prefix() {
    let folder = Folder::new();
    let path = folder.path("tape");
    for (row_bytes, clocks) in [(Some(5), 1), (None, 0)] {
        let (rows, bytes) = small(&path, row_bytes, clocks);
        let mut longest = 0;
        for cut in 0..=bytes.len() {
            fs::write(&path, &bytes[..cut]).unwrap();
            let mut reader = TapeReader::open(&path).unwrap();
            let found = read(&mut reader, 3, 100).unwrap();
            assert_eq!(found, rows[..found.len()], "cut {cut}");
            assert_eq!(reader.rows().unwrap(), found.len() as u64);
            assert!(found.len() >= longest && reader.notes().unwrap().len() <= 4);
            assert!(reader.head() == Some(b"head") || found.is_empty());
            longest = found.len();
        }
        assert_eq!(longest, rows.len());
    }
}

#[test]
fn every_flipped_bit_ends_the_rows() {
    let folder = Folder::new();
    let path = folder.path("tape");
    for (row_bytes, clocks) in [(Some(5), 1), (None, 0)] {
        let (rows, bytes) = small(&path, row_bytes, clocks);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, &flipped).unwrap();
            match read_all(&path) {
                Ok(found) => assert_eq!(found, rows[..found.len()], "bit {bit}"),
                Err(error) => assert_eq!(error.kind(), "corrupt", "bit {bit}"),
            }
        }
    }
}

/// A tape with records that no writer writes.
fn forged(path: &Path, records: &[Vec<u8>]) {
    let _ = fs::remove_file(path);
    let mut journal = Journal::create(path).unwrap();
    for record in records {
        journal.append(record).unwrap();
    }
    journal.flush().unwrap();
}

fn rows_record(first: u64, timestamps: &[i64]) -> Vec<u8> {
    let mut record = layout::rows_head(first, timestamps.len() as u32).to_vec();
    for ts in timestamps {
        record.extend(ts.to_le_bytes());
    }
    record
}

#[test]
fn records_that_lie_are_refused_behind_the_rows_before_them() {
    let folder = Folder::new();
    let path = folder.path("tape");
    let shape = layout::Shape::new(Some(0), 0).unwrap();
    let head = layout::head(&shape, b"");
    let good = rows_record(0, &[5, 6]);
    let edited = |at: usize, byte: u8| {
        let mut record = rows_record(2, &[7, 8]);
        record[at] = byte;
        record
    };
    let mut long = rows_record(2, &[7]);
    long.push(0);
    for (record, kind, text) in [
        (
            rows_record(2, &[6]),
            "corrupt",
            "row 2 has timestamp 6, which is not after the previous one, 6",
        ),
        (
            rows_record(2, &[9, 8]),
            "corrupt",
            "row 3 has timestamp 8, which is not after the previous one, 9",
        ),
        (rows_record(2, &[i64::MIN]), "corrupt", "is not after"),
        (rows_record(3, &[7]), "corrupt", "is row 3, expected row 2"),
        (rows_record(1, &[7]), "corrupt", "is row 1, expected row 2"),
        (rows_record(u64::MAX, &[7]), "corrupt", "expected row 2"),
        (rows_record(2, &[]), "corrupt", "0 rows"),
        (edited(1, 1), "corrupt", "expected row"),
        (edited(4, 1), "corrupt", "1 rows and 8 extra bytes"),
        (edited(4, 3), "corrupt", "row 4 is truncated"),
        (edited(7, 255), "corrupt", "row 4 is truncated"),
        (long, "corrupt", "and 1 extra bytes"),
        (vec![layout::ROWS; 7], "corrupt", "truncated"),
        (vec![], "corrupt", "empty record"),
        (head.clone(), "corrupt", "second head"),
        (vec![9], "unsupported", "kind 9"),
    ] {
        forged(&path, &[head.clone(), good.clone(), record, rows_record(4, &[90])]);
        let mut reader = TapeReader::open(&path).unwrap();
        assert_eq!(reader.next_rows(10, 1000).unwrap().unwrap().timestamps, [5, 6]);
        for _ in 0..2 {
            let error = reader.next_rows(10, 1000).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(text), "{error}");
            assert!(error.to_string().contains("tape`: "), "{error}");
        }
        assert_eq!(reader.rows().unwrap_err().kind(), kind);
        assert_eq!(reader.notes().unwrap_err().kind(), kind);
        reader.rewind().unwrap();
        assert_eq!(reader.next_rows(1, 1000).unwrap().unwrap().timestamps, [5]);
    }
}

#[test]
fn heads_that_lie_are_refused() {
    let folder = Folder::new();
    let path = folder.path("tape");
    let head = |variable: u32, bytes: u64, clocks: u16| {
        let mut record = vec![1, 1];
        record.extend(clocks.to_le_bytes());
        record.extend(variable.to_le_bytes());
        record.extend(bytes.to_le_bytes());
        record
    };
    let mut other = head(0, 8, 0);
    other[1] = 2;
    for (record, kind) in [
        (vec![], "corrupt"),
        (vec![1; 15], "corrupt"),
        (rows_record(0, &[1]), "corrupt"),
        (head(0, u64::MAX, 0), "corrupt"),
        (head(0, MAX_RECORD_BYTES as u64 - 23, 0), "corrupt"),
        (head(1, 8, 0), "corrupt"),
        (head(2, 8, 0), "unsupported"),
        (other, "unsupported"),
    ] {
        forged(&path, &[record]);
        let refused = TapeReader::open(&path).map(drop).unwrap_err();
        assert_eq!(refused.kind(), kind, "{refused}");
    }
    for record in [head(0, MAX_RECORD_BYTES as u64 - 24, 0), head(1, 0, u16::MAX)] {
        forged(&path, &[record]);
        assert_eq!(read_all(&path).unwrap(), []);
    }
    forged(&path, &[]);
    let reader = TapeReader::open(&path).unwrap();
    assert_eq!((reader.head(), reader.row_bytes(), reader.clocks()), (None, None, 0));
    assert!(TapeReader::open(&folder.path("x")).is_err_and(|error| error.kind() == "not-found"));
    fs::write(&path, [7; 100]).unwrap();
    assert!(TapeReader::open(&path).is_err_and(|error| error.kind() == "corrupt"));
}

#[test]
fn rows_of_every_size_come_back() {
    let folder = Folder::new();
    let path = folder.path("tape");
    let writer = TapeWriter::create(&path, "arm", b"", None, 0).unwrap();
    let most = MAX_RECORD_BYTES - layout::ROWS_BYTES - 12;
    let sizes =
        [10, (1 << 20) - 28, 1, (1 << 20) - 27, 2, 3 << 20, 9 << 20, most, 700_000, 700_000, 0];
    for (ts, &size) in sizes.iter().enumerate() {
        writer.append(ts as i64, &[], &vec![ts as u8; size]).unwrap();
    }
    let refused = writer.append(99, &[], &vec![0; most + 1]).unwrap_err();
    let text = format!("`arm`: a row of {} bytes exceeds the limit of {most} bytes", most + 1);
    assert_eq!((refused.kind(), refused.to_string()), ("too-large", text));
    let refused = writer.note(&vec![0; MAX_RECORD_BYTES]).unwrap_err();
    assert_eq!(refused.kind(), "too-large");
    writer.close().unwrap();
    let mut reader = TapeReader::open(&path).unwrap();
    for (ts, &size) in sizes.iter().enumerate() {
        let rows = reader.next_rows(1, 1).unwrap().unwrap();
        assert_eq!((rows.timestamps[0], rows.payload), (ts as i64, vec![ts as u8; size]));
    }
    let taken = TapeWriter::create(&path, "arm", b"", None, 0).map(drop).unwrap_err();
    assert_eq!(taken.to_string(), format!("`{}` already exists", path.display()));
    for (bytes, clocks) in [(Some(most + 5), 0), (Some(usize::MAX), 0), (None, 65536)] {
        let refused = TapeWriter::create(&folder.path("b"), "arm", b"", bytes, clocks);
        assert!(refused.is_err_and(|error| error.kind() == "too-large"));
    }
    let head = vec![0; MAX_RECORD_BYTES];
    let refused = TapeWriter::create(&folder.path("b"), "arm", &head, None, 0);
    assert!(refused.is_err_and(|error| error.kind() == "too-large"));
    assert_eq!(folder.names(), ["tape"]);
}

#[test]
fn two_threads_record_two_tapes_and_two_one() {
    let folder = Folder::new();
    let shared = TapeWriter::create(&folder.path("shared"), "shared", b"", Some(8), 0).unwrap();
    let next = std::sync::Mutex::new(0_i64);
    thread::scope(|scope| {
        for number in 0..2_u8 {
            let (folder, shared, next) = (&folder, &shared, &next);
            scope.spawn(move || {
                let path = folder.path(&number.to_string());
                let own = TapeWriter::create(&path, "own", b"", Some(100), 0).unwrap();
                for ts in 0..50_000 {
                    own.append(ts, &[], &[number.wrapping_add(ts as u8); 100]).unwrap();
                    let mut next = next.lock().unwrap();
                    shared.append(*next, &[], &next.to_le_bytes()).unwrap();
                    *next += 1;
                }
                own.close().unwrap();
                let rows = read_all(&path).unwrap();
                assert_eq!(rows.len(), 50_000);
                for (ts, row) in rows.into_iter().enumerate() {
                    assert_eq!(row, (ts as i64, vec![], vec![number.wrapping_add(ts as u8); 100]));
                }
            });
        }
    });
    shared.close().unwrap();
    let rows = read_all(&folder.path("shared")).unwrap();
    assert_eq!(rows.len(), 100_000);
    assert!(rows.iter().all(|row| row.2 == row.0.to_le_bytes()));
}

/// Waits for what the threads do by themselves.
fn until(what: impl Fn() -> bool) {
    let begin = Instant::now();
    while !what() {
        assert!(begin.elapsed() < Duration::from_secs(20), "it takes too long");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn rows_are_written_unasked_and_while_others_sync() {
    let folder = Folder::new();
    let path = folder.path("tape");
    let writer = TapeWriter::create(&path, "arm", b"", Some(8), 0).unwrap();
    let disk = writer.tape.disk.lock().unwrap();
    for ts in 0..5 {
        writer.append(ts, &[], &[1; 8]).unwrap();
        until(|| writer.pending_bytes().unwrap() == 0);
        assert_eq!(read_all(&path).unwrap().len(), ts as usize + 1);
    }
    writer.append(5, &[], &[1; 8]).unwrap();
    writer.flush().unwrap();
    drop(disk);
    assert_eq!((writer.bytes().unwrap(), read_all(&path).unwrap().len()), (96, 6));
    until(|| writer.tape.is_synced());
}

#[test]
fn appends_wait_for_the_disk_only_when_much_is_pending() {
    let folder = Folder::new();
    let writer = TapeWriter::create(&folder.path("tape"), "arm", b"", Some(1 << 16), 0).unwrap();
    let payload = vec![3; 1 << 16];
    // Nothing is written while this is held.
    let back = writer.tape.back.lock().unwrap();
    let mut taken = 0;
    while writer.try_append(taken, &[], &payload).unwrap() {
        taken += 1;
    }
    assert_eq!(taken, 1023);
    assert_eq!(writer.pending_bytes().unwrap(), 1023 * ((1 << 16) + 8));
    assert!(!writer.try_note(&payload).unwrap());
    let begin = Instant::now();
    writer.wait_for_room();
    assert!(begin.elapsed() > Duration::from_millis(50));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| writer.append(taken, &[], &payload));
        thread::sleep(Duration::from_millis(20));
        assert!(!waiting.is_finished());
        drop(back);
        waiting.join().unwrap().unwrap();
    });
    writer.close().unwrap();
    assert_eq!(TapeReader::open(&folder.path("tape")).unwrap().rows().unwrap(), 1024);
}

#[test]
fn the_end_of_a_tape_lets_nobody_wait() {
    let folder = Folder::new();
    let payload = vec![3; 1 << 20];
    for (number, end) in ["fail", "abort", "close"].into_iter().enumerate() {
        let path = folder.path(&number.to_string());
        let writer = TapeWriter::create(&path, "arm", b"", Some(1 << 20), 0).unwrap();
        let back = writer.tape.back.lock().unwrap();
        let mut ts = 0;
        while writer.try_append(ts, &[], &payload).unwrap() {
            ts += 1;
        }
        thread::scope(|scope| {
            let waiting = scope.spawn(|| writer.append(ts, &[], &payload));
            thread::sleep(Duration::from_millis(20));
            let ending = scope.spawn(|| match end {
                "fail" => writer.tape.fail(Error::Io(std::io::Error::other("no more"))),
                "abort" => writer.abort().unwrap(),
                _ => writer.close().unwrap(),
            });
            let kind = if end == "fail" { "io" } else { "closed" };
            assert_eq!(waiting.join().unwrap().unwrap_err().kind(), kind);
            drop(back);
            ending.join().unwrap();
        });
        assert_eq!(writer.pending_bytes().unwrap(), 0);
    }
}

#[test]
fn a_failure_stays_and_what_was_written_too() {
    let folder = Folder::new();
    let path = folder.path("tape");
    let writer = TapeWriter::create(&path, "arm", b"", Some(1), 0).unwrap();
    writer.append(1, &[], b"a").unwrap();
    writer.flush().unwrap();
    writer.tape.fail(Error::Io(std::io::ErrorKind::StorageFull.into()));
    writer.tape.fail(Error::Corrupt("a later one".into()));
    let calls: [&dyn Fn() -> Result<()>; 6] = [
        &|| writer.append(2, &[], b"b"),
        &|| writer.append(2, &[], b"of a wrong length"),
        &|| writer.note(b""),
        &|| writer.flush(),
        &|| writer.sync(),
        &|| writer.close(),
    ];
    for _ in 0..2 {
        for call in calls {
            let refused = call().unwrap_err();
            let text = "the recording of `arm` failed: no storage space";
            assert_eq!((refused.kind(), refused.to_string()), ("io", text.into()));
        }
    }
    assert_eq!((writer.rows().unwrap(), writer.pending_bytes().unwrap()), (1, 0));
    assert_eq!(read_all(&path).unwrap().len(), 1);
    writer.abort().unwrap();
    writer.close().unwrap();
    assert!(folder.names().is_empty());
}

#[test]
fn closed_and_aborted_tapes_take_no_more() {
    let folder = Folder::new();
    for (number, end) in ["close", "abort"].into_iter().enumerate() {
        let path = folder.path(&number.to_string());
        let writer = TapeWriter::create(&path, "arm", b"", Some(1), 0).unwrap();
        writer.append(1, &[], b"a").unwrap();
        let ended = || if end == "close" { writer.close() } else { writer.abort() };
        ended().unwrap();
        for refused in [
            writer.append(2, &[], b"b").unwrap_err(),
            writer.note(b"").unwrap_err(),
            writer.flush().unwrap_err(),
            writer.sync().unwrap_err(),
        ] {
            assert_eq!(refused.kind(), "closed");
            assert_eq!(refused.to_string(), "cannot write to `arm`: the recording has ended");
        }
        ended().unwrap();
        writer.close().unwrap();
        // Once closed it is no longer ours to remove, and what took its place never was.
        fs::write(&path, "other").unwrap();
        writer.abort().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"other");
        assert_eq!((writer.rows().unwrap(), writer.last_ts().unwrap()), (1, Some(1)));
    }
}

#[test]
fn an_abort_removes_only_its_own_file() {
    let folder = Folder::new();
    let path = folder.path("tape");
    let writer = TapeWriter::create(&path, "arm", b"", Some(1), 0).unwrap();
    fs::rename(&path, folder.path("moved")).unwrap();
    fs::write(&path, "other").unwrap();
    writer.abort().unwrap();
    assert_eq!(folder.names(), ["moved", "tape"]);
}

#[test]
fn a_tape_that_is_dropped_keeps_its_rows() {
    let folder = Folder::new();
    let path = folder.path("tape");
    let writer = TapeWriter::create(&path, "arm", b"", Some(1), 0).unwrap();
    writer.append(1, &[], b"a").unwrap();
    drop(writer);
    assert_eq!(read_all(&path).unwrap(), [(1, vec![], b"a".to_vec())]);
}

#[test]
fn a_time_is_found_as_by_looking_at_each() {
    let mut random = Random(3);
    for length in 0..40 {
        let mut times: Vec<i64> = (0..length).map(|_| random.below(100) as i64 - 50).collect();
        times.sort_unstable();
        for ts in (-55..55).chain([i64::MIN, i64::MAX]) {
            let wanted = times.iter().filter(|&&at| at <= ts).count();
            assert_eq!(find_time(&times, ts), wanted);
        }
    }
}
