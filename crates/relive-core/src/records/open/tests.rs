//! Stores that are whole, cut, flipped, growing and replaced.

use std::fs::{self, OpenOptions};

use super::*;
use crate::codec::Codec;
use crate::pack::Verify;
use crate::records::layout::PAGE;
use crate::records::state::Kind;
use crate::records::testing::{Hand, Row, compare, field, gather, is_damage};

const ALL: [(Io, Verify); 6] = [
    (Io::Mmap, Verify::First),
    (Io::Mmap, Verify::Always),
    (Io::Pread, Verify::First),
    (Io::Pread, Verify::Always),
    (Io::Mmap, Verify::Never),
    (Io::Pread, Verify::Never),
];

fn options((io, verify): (Io, Verify)) -> ReadOptions {
    ReadOptions { io, verify, ..ReadOptions::default() }
}

fn text(number: usize) -> Vec<u8> {
    format!("record {number} says what all records say. ").repeat(number % 4).into_bytes()
}

fn row(number: usize) -> Row {
    vec![
        Some(vec![number as u8; 12]),
        (!number.is_multiple_of(3)).then(|| text(number)),
        Some(vec![number as u8 ^ 0x55; 40]),
        (!number.is_multiple_of(5)).then(|| vec![number as u8; 2 * (number % 4)]),
    ]
}

fn rows(numbers: std::ops::Range<usize>) -> Vec<Row> {
    numbers.map(row).collect()
}

fn fields() -> Vec<crate::records::state::FieldSpec> {
    let mut ragged = field("ragged", Kind::Ragged, Codec::Raw, 2);
    ragged.ragged = 2;
    vec![
        field("dense", Kind::Fixed, Codec::Raw, 12),
        field("text", Kind::Str, Codec::Zstd, 1),
        field("packed", Kind::Fixed, Codec::Lz4, 40),
        ragged,
    ]
}

/// A store with a table, a dictionary and a journal, all of it small.
fn small() -> Hand {
    let mut hand = Hand::new(fields(), Some(4));
    let samples: Vec<Vec<u8>> =
        (0..60).map(|k| format!("record {k} says what").into_bytes()).collect();
    hand.dictionary(1, &samples);
    hand.write_meta();
    hand.append(&rows(0..4));
    hand.change(1, 0, Some(&[0xAB; 12]));
    hand.commit(true);
    hand.checkpoint(&[0, 1, 2, 3]);
    hand.append(&rows(4..7));
    hand.commit(false);
    hand.change(2, 1, Some(b"changed"));
    hand.delete(0);
    hand.commit(true);
    hand.append(&rows(7..9));
    hand.commit(false);
    hand
}

fn compare_all(hand: &Hand) {
    for way in ALL {
        compare(&hand.open(options(way)).unwrap(), &hand.rows).unwrap();
    }
}

#[test]
fn what_was_written_is_read() {
    compare_all(&Hand::new(fields(), None));
    let mut hand = small();
    compare_all(&hand);
    hand.checkpoint(&[0, 1, 2, 3]);
    compare_all(&hand);
    let live = hand.open(ReadOptions::default()).unwrap().live().unwrap();
    let values = hand.rows.iter().flatten().flatten().count() as u64;
    assert_eq!(live.records, values);
    assert!(live.stored_records > values && live.allocated_bytes > live.bytes);
}

#[test]
fn dense_rows_of_many_chunks_and_blocks() {
    // 3000 bytes: a chunk has 512 rows, 23 blocks and a part.
    let specs = vec![field("a", Kind::Fixed, Codec::Raw, 3000)];
    let mut hand = Hand::new(specs, Some(100));
    let value = |k: u32| vec![Some(k.to_le_bytes().repeat(750))];
    for part in 0..6 {
        hand.append(&(part * 220..(part + 1) * 220).map(value).collect::<Vec<_>>());
        hand.commit(part == 2);
        if part == 1 {
            // A row in the middle moves, one in another chunk changes.
            hand.change(100, 0, value(77)[0].as_deref());
            hand.commit(false);
        }
        if part % 2 == 1 {
            compare_all(&hand);
        }
    }
    assert!(hand.state.fields[0].chunks.len() >= 2);
    hand.delete(3);
    hand.commit(true);
    compare_all(&hand);
    let snapshot = hand.open(ReadOptions::default()).unwrap();
    let span = snapshot.span(0, 200..1300).unwrap().unwrap();
    assert_eq!(span.len(), 1100 * 3000);
    assert_eq!(&span.bytes()[..4], 200_u32.to_le_bytes());
    for changed in [90..110, 3..5, 1317..1319] {
        assert_eq!(snapshot.span(0, changed.clone()).unwrap().is_none(), changed.end < 1000);
    }
    assert!(snapshot.span(0, 5..5).unwrap().is_none());
    assert_eq!(snapshot.span(0, 5..5000).err().unwrap().kind(), "out-of-range");
}

#[test]
fn every_flipped_bit_is_seen_or_does_no_harm() {
    let hand = small();
    let folder = hand.root();
    let mut files: Vec<PathBuf> =
        fs::read_dir(&folder).unwrap().map(|f| f.unwrap().path()).collect();
    files.extend(fs::read_dir(folder.join("chunk")).unwrap().map(|f| f.unwrap().path()));
    files.retain(|path| path.is_file());
    assert!(files.len() >= 9, "{files:?}");
    for path in files {
        let good = fs::read(&path).unwrap();
        let is_journal = path.extension().is_some_and(|e| e == "journal");
        // The rest of the first page is zeros that nobody looks at; meta.json and
        // dictionaries have one checksum each, which is tested elsewhere.
        let paged = path.extension().is_some_and(|e| e == "zr" || e == "offset");
        let whole = path.ends_with(META) || path.extension().is_some_and(|e| e == "dict");
        let step = if whole { 29 } else { 1 };
        let (mut seen, mut harmless) = (0, 0);
        for bit in (0..good.len() * 8).step_by(step) {
            if paged && (64 * 8..PAGE as usize * 8 - 16).contains(&bit) {
                continue;
            }
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, bad).unwrap();
            let way = ALL[(bit + bit / 8) % 4];
            let outcome = hand.open(options(way)).and_then(|snapshot| {
                // The end of the journal may be taken for one that did not arrive.
                let held = hand.commits.iter().rev().find(|c| c.0 == snapshot.state().sequence);
                let held = held.unwrap_or_else(|| panic!("bit {bit} of {path:?}"));
                assert!(is_journal || held.1 == hand.rows || path.extension().unwrap() == "zr");
                compare(&snapshot, &held.1)
            });
            match outcome {
                Ok(()) => harmless += 1,
                Err(error) => {
                    assert!(is_damage(&error), "bit {bit} of {path:?}: {error:?}");
                    seen += 1;
                }
            }
        }
        fs::write(&path, good).unwrap();
        assert!(seen > 0 || path.extension().unwrap() == "crc", "{path:?}: {seen} {harmless}");
    }
    compare_all(&hand);
}

#[test]
fn every_cut_is_seen_or_does_no_harm() {
    let hand = small();
    let folder = hand.root();
    let mut files: Vec<PathBuf> =
        fs::read_dir(&folder).unwrap().map(|f| f.unwrap().path()).collect();
    files.extend(fs::read_dir(folder.join("chunk")).unwrap().map(|f| f.unwrap().path()));
    files.retain(|path| path.is_file());
    for path in files {
        let good = fs::read(&path).unwrap();
        for cut in 0..good.len() {
            if (100..PAGE as usize - 3).contains(&cut) {
                continue;
            }
            fs::write(&path, &good[..cut]).unwrap();
            for way in &ALL[cut % 2 * 2..][..2] {
                let outcome = hand.open(options(*way)).and_then(|snapshot| {
                    let sequence = snapshot.state().sequence;
                    let held = hand.commits.iter().rev().find(|commit| commit.0 == sequence);
                    compare(&snapshot, &held.unwrap().1)
                });
                if let Err(error) = outcome {
                    assert!(is_damage(&error), "{cut} bytes of {path:?}: {error:?}");
                }
            }
        }
        fs::remove_file(&path).unwrap();
        if let Err(error) = hand.open(ReadOptions::default()) {
            assert!(is_damage(&error) || path.ends_with(META), "{path:?}: {error:?}");
        }
        fs::write(&path, good).unwrap();
    }
    compare_all(&hand);
}

#[test]
fn damage_before_a_synced_commit_is_an_error_and_behind_it_the_end() {
    let mut hand = Hand::new(fields(), Some(4));
    hand.append(&rows(0..3));
    hand.commit(false);
    let first = fs::metadata(hand.journal_path()).unwrap().len() as usize;
    hand.append(&rows(3..5));
    hand.commit(true);
    let second = fs::metadata(hand.journal_path()).unwrap().len() as usize;
    hand.append(&rows(5..6));
    hand.commit(false);
    let good = fs::read(hand.journal_path()).unwrap();
    for at in 24..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        fs::write(hand.journal_path(), bad).unwrap();
        let found = hand.open(ReadOptions::default());
        // The Commit of the second group is its last record.
        let commit = 20 + 32 + 24 * hand.state.chunks.len();
        if at < second - commit {
            let error = found.err().unwrap();
            assert!(is_damage(&error) && error.to_string().contains("0.journal"), "{at}: {error}");
        } else {
            let held = if at < second { 3 } else { 5 };
            assert_eq!(found.unwrap().len(), held, "{at} {first}");
        }
    }
}

#[test]
fn bytes_that_did_not_arrive_end_the_store() {
    for at in 0..2 {
        let mut hand = Hand::new(fields(), Some(4));
        hand.append(&rows(0..3));
        hand.commit(true);
        let before = hand.state.clone();
        hand.append(&rows(3..5));
        hand.commit(false);
        hand.append(&rows(5..6));
        hand.commit(false);
        // The last byte of the second group in its chunk, dense or heap, is not there.
        let dense = hand.state.fields[0].chunks[0];
        let heap = *hand.state.chunks.keys().find(|&&number| number != dense).unwrap();
        let number = [dense, heap][at];
        let path = chunk_paths(&hand.root().join("chunk"), number).0;
        let mut bytes = fs::read(&path).unwrap();
        let place = before.chunks[&number].position as usize;
        bytes[place + 13] ^= 1;
        fs::write(&path, &bytes).unwrap();
        for way in ALL {
            let snapshot = hand.open(options(way)).unwrap();
            compare(&snapshot, &hand.commits[1].1).unwrap();
        }
        // In front of the synced Commit it is an error, when it is read at the latest.
        bytes[place + 13] ^= 1;
        bytes[place - 2] ^= 1;
        fs::write(&path, &bytes).unwrap();
        for way in &ALL[..4] {
            let outcome = hand.open(options(*way)).and_then(|s| compare(&s, &hand.rows));
            assert_eq!(outcome.unwrap_err().kind(), "corrupt");
        }
    }
}

#[test]
fn a_handle_goes_on_with_refresh_alone() {
    let mut hand = Hand::new(fields(), Some(4));
    let records: Vec<Records> =
        ALL.iter().map(|way| Records::open(&hand.root(), options(*way), None).unwrap()).collect();
    assert!(records.iter().all(|records| !records.refresh().unwrap()));
    for step in 0..30_usize {
        let old = records[0].snapshot();
        let before = hand.rows.clone();
        match step % 6 {
            0 | 3 => hand.append(&rows(step * 20..step * 20 + 20)),
            1 => hand.change(step, 0, Some(&[9; 12])),
            2 => hand.change(step, 1, None),
            _ => hand.delete(step),
        }
        assert!(records.iter().all(|records| !records.refresh().unwrap()), "not committed");
        hand.commit(step % 4 == 1);
        if step % 10 == 8 {
            hand.checkpoint(&[0, 1, 2, 3]);
        }
        for records in &records {
            assert_eq!(records.snapshot().len(), before.len() as u64);
            assert!(records.refresh().unwrap());
            assert!(!records.refresh().unwrap());
            compare(&records.snapshot(), &hand.rows).unwrap();
        }
        compare(&old, &before).unwrap();
    }
    assert!(hand.state.generation >= 2);
}

#[test]
fn a_half_written_tail_is_not_there_yet() {
    let mut hand = Hand::new(fields(), Some(4));
    hand.append(&rows(0..3));
    hand.commit(false);
    let records = Records::open(&hand.root(), ReadOptions::default(), None).unwrap();
    let have = fs::metadata(hand.journal_path()).unwrap().len();
    hand.append(&rows(3..6));
    hand.commit(true);
    let whole = fs::read(hand.journal_path()).unwrap();
    for cut in have as usize..whole.len() {
        fs::write(hand.journal_path(), &whole[..cut]).unwrap();
        assert!(!records.refresh().unwrap(), "{cut}");
    }
    fs::write(hand.journal_path(), &whole).unwrap();
    assert!(records.refresh().unwrap());
    compare(&records.snapshot(), &hand.rows).unwrap();
}

#[test]
fn at_stops_at_the_commit_of_a_call() {
    let hand = small();
    for (sequence, held) in &hand.commits {
        let at = Some(*sequence);
        let records = Records::open(&hand.root(), ReadOptions::default(), at).unwrap();
        compare(&records.snapshot(), held).unwrap();
        assert_eq!(records.refresh().unwrap(), *sequence < hand.state.sequence);
        compare(&records.snapshot(), &hand.rows).unwrap();
    }
    let gone = Records::open(&hand.root(), ReadOptions::default(), Some(u64::MAX));
    assert_eq!(gone.err().unwrap().kind(), "not-found");
}

#[test]
fn another_store_in_its_place_is_another_store() {
    let hand = small();
    let records = Records::open(&hand.root(), ReadOptions::default(), None).unwrap();
    let old = records.snapshot();
    let mut other = small();
    other.state.uid = [7; 16];
    let mut fresh = Hand::new(fields(), Some(4));
    fresh.state.uid = [7; 16];
    fresh.write_meta();
    fresh.append(&rows(20..23));
    fresh.commit(false);
    fs::rename(hand.root(), hand.root().with_extension("old")).unwrap();
    fs::rename(fresh.root(), hand.root()).unwrap();
    assert!(records.refresh().unwrap());
    compare(&records.snapshot(), &fresh.rows).unwrap();
    compare(&old, &hand.rows).unwrap();
    fs::remove_dir_all(hand.root().with_extension("old")).unwrap();
}

#[test]
fn a_file_that_shrank_is_an_error_of_the_batch() {
    let hand = small();
    for way in ALL {
        let snapshot = hand.open(options(way)).unwrap();
        compare(&snapshot, &hand.rows).unwrap();
        for number in hand.state.chunks.keys() {
            let path = chunk_paths(&hand.root().join("chunk"), *number).0;
            let bytes = fs::read(&path).unwrap();
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(hand.state.chunks[number].position - 1).unwrap();
            let error = gather(&snapshot, &[0]).unwrap_err();
            assert_eq!(error.kind(), "corrupt");
            assert!(error.to_string().contains(&format!("{number}.zr")), "{error}");
            fs::write(&path, bytes).unwrap();
        }
    }
}

#[test]
fn a_writer_goes_on_where_the_store_ends() {
    let mut hand = small();
    let files = Arc::new(Files::new(&hand.root(), ReadOptions::default()));
    let replayed = crate::records::replay::replay(&files, META).unwrap();
    assert_eq!(replayed.journal_name, "1.journal");
    assert!(!replayed.synced);
    let end = replayed.journal.unwrap();
    assert_eq!(end.end, fs::metadata(hand.journal_path()).unwrap().len());
    // What was not committed is cut off.
    let mut bytes = fs::read(hand.journal_path()).unwrap();
    bytes.extend(b"JREC and more");
    fs::write(hand.journal_path(), bytes).unwrap();
    let again = crate::records::replay::replay(&files, META).unwrap().journal.unwrap();
    assert_eq!(again, end);
    let journal = crate::journal::Journal::resume(&hand.journal_path(), end.end, end.sequence);
    hand.set_journal(journal.unwrap());
    hand.append(&rows(9..11));
    hand.commit(true);
    compare_all(&hand);
    assert!(crate::records::replay::replay(&files, META).unwrap().synced);
    // Bytes that the writer wrote itself are trusted, those that it found are not.
    for (number, chunk) in &hand.state.chunks {
        files.trust(*number, chunk.position);
    }
    compare(&files.snapshot(Arc::new(hand.state.clone())).unwrap(), &hand.rows).unwrap();
    sync_chunks(&hand.root(), &hand.state).unwrap();
}

#[test]
fn rows_that_no_chunk_has_are_refused() {
    let hand = small();
    let files = Arc::new(Files::new(&hand.root(), ReadOptions::default()));
    let mut state = hand.state.clone();
    let dense = state.fields[0].chunks[0];
    state.chunks.get_mut(&dense).unwrap().position -= 1;
    let error = files.snapshot(Arc::new(state)).err().unwrap();
    assert_eq!(error.kind(), "corrupt");
    let mut state = hand.state.clone();
    state.chunks.get_mut(&dense).unwrap().position += 1 << 40;
    assert_eq!(files.snapshot(Arc::new(state)).err().unwrap().kind(), "corrupt");
}

#[test]
fn chunks_are_found_by_numbers_far_apart() {
    let mut hand = Hand::new(fields(), Some(4));
    hand.append(&rows(0..3));
    hand.state.next_chunk = 1_000_000;
    hand.commit(false);
    hand.chunk(None);
    hand.append(&rows(3..600));
    hand.commit(true);
    assert!(hand.state.chunks.contains_key(&1_000_000));
    compare_all(&hand);
}
