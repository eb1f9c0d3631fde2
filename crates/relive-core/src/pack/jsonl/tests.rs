//! Lines in parallel, against lines written one by one.

use std::cell::RefCell;
use std::io;

use super::*;
use crate::codec::Codec;
use crate::pack::reader::Options;
use crate::pack::testing::play;
use crate::pack::testing::{Memory, Scratch, TestEntry, assemble};
use crate::runs::{Run, Version};

const RUNS: JsonlOptions = JsonlOptions {
    granularity: Granularity::Runs,
    with_lists: true,
    boards: Boards::Integers,
    threads: 1,
    skip_errors: false,
};

/// So many runs, of both versions, and a pack of them.
fn runs(count: u64, first: u64) -> (Vec<Run>, Vec<u8>) {
    let runs: Vec<Run> = (first..first + count).map(|seed| play(seed, 150)).collect();
    let version = |run: &Run| if run.branches.is_some() { Version::V2 } else { Version::V1 };
    let payloads: Vec<(Vec<u8>, u16)> = (runs.iter())
        .map(|run| (run.to_bytes(version(run)).unwrap(), u16::from(version(run).number())))
        .collect();
    let pieces: Vec<TestEntry<'_>> =
        (payloads.iter().zip([Codec::Raw, Codec::Zstd].iter().cycle()))
            .map(|((bytes, kind), codec)| (bytes.as_slice(), *kind, *codec))
            .collect();
    let file = assemble(&pieces, &[]);
    (runs, file)
}

fn open(file: &[u8]) -> Arc<PackReader> {
    let (storage, _) = Memory::new(file.to_vec());
    Arc::new(PackReader::open_storage(Box::new(storage), Options::default()).unwrap())
}

fn lines(
    packs: &[Arc<PackReader>],
    rows: &[(u32, u64)],
    options: &JsonlOptions,
) -> Result<(Vec<u8>, u64)> {
    let mut out = Vec::new();
    let skipped = write_jsonl(packs, rows, options, &mut out, &|_| Ok(()))?;
    Ok((out, skipped))
}

#[test]
fn bytes_are_the_same_for_any_number_of_threads() {
    let ((first, first_file), (second, second_file)) = (runs(200, 0), runs(150, 1000));
    let scratch = Scratch::new(&second_file);
    let second_pack = PackReader::open(scratch.path(), true, Options::default()).unwrap();
    let packs = [open(&first_file), Arc::new(second_pack)];
    // Out of order, from both packs, with a repeat.
    let mut rows: Vec<(u32, u64)> = (0..200).rev().map(|entry| (0, entry)).collect();
    rows.extend((0..150).map(|entry| (1, entry)));
    rows.push((0, 7));
    for granularity in [Granularity::Runs, Granularity::Steps] {
        for (with_lists, boards) in [(true, Boards::Integers), (false, Boards::Hex)] {
            let options = JsonlOptions { granularity, with_lists, boards, ..RUNS };
            let mut expected = Vec::new();
            for (run_idx, &(pack, entry)) in (0..).zip(&rows) {
                let run = &[&first, &second][pack as usize][entry as usize];
                let kind = if run.branches.is_some() { "v2" } else { "v1" };
                match granularity {
                    Granularity::Runs => {
                        write_run_line(run, run_idx, kind, with_lists, boards, &mut expected)
                    }
                    Granularity::Steps => write_step_lines(run, run_idx, boards, &mut expected),
                }
                .unwrap();
            }
            for threads in [1, 2, 4] {
                let (found, skipped) =
                    lines(&packs, &rows, &JsonlOptions { threads, ..options }).unwrap();
                assert!(found == expected, "{options:?} on {threads} threads");
                assert_eq!(skipped, 0);
            }
        }
    }
    assert_eq!(lines(&packs, &[], &RUNS).unwrap(), (vec![], 0));
}

#[test]
fn progress_counts_up_and_may_end_the_work() {
    let (_, file) = runs(400, 0);
    let pack = [open(&file)];
    let rows: Vec<(u32, u64)> = (0..9000).map(|row| (0, row % 400)).collect();
    for threads in [1, 2] {
        let options = JsonlOptions { threads, ..RUNS };
        let seen = RefCell::new(Vec::new());
        let note = |done| {
            seen.borrow_mut().push(done);
            Ok(())
        };
        write_jsonl(&pack, &rows, &options, &mut Vec::new(), &note).unwrap();
        let seen = seen.into_inner();
        assert!(seen.len() > 1 && seen.is_sorted() && seen.last() == Some(&9000), "{seen:?}");
        let stop = |done| match done {
            0..100 => Ok(()),
            _ => Err(Error::Closed("enough".into())),
        };
        let mut out = Vec::new();
        let error = write_jsonl(&pack, &rows, &options, &mut out, &stop).unwrap_err();
        assert_eq!(error.to_string(), "enough");
        assert!(out.iter().filter(|&&byte| byte == b'\n').count() < 9000);
    }
}

#[test]
fn what_cannot_be_written_is_named_or_counted() {
    let mut bad = play(4, 80);
    bad.meta.elapsed_s = f32::NAN;
    let (good, bad) = (play(2, 80).to_bytes(Version::V2), bad.to_bytes(Version::V2));
    let (good, bad) = (good.unwrap(), bad.unwrap());
    let pieces: [TestEntry<'_>; 5] = [
        (&good, 2, Codec::Raw),
        (b"other", 0, Codec::Raw),
        (&good, 2, Codec::Lz4),
        (&good[..90], 2, Codec::Raw),
        (&bad, 2, Codec::Raw),
    ];
    let pack = [open(&assemble(&pieces, &[]))];
    for threads in [1, 3] {
        for (entry, kind, text) in [
            (1, "unsupported", "not a run"),
            (3, "corrupt", "the data of the run (format version 2) is damaged at byte"),
            (4, "invalid", "`elapsed_s` is NaN"),
        ] {
            let rows = [(0, 0), (0, entry), (0, 2), (0, 1)];
            let error = lines(&pack, &rows, &JsonlOptions { threads, ..RUNS }).unwrap_err();
            assert_eq!(error.kind(), kind);
            let message = error.to_string();
            let place = format!("`memory.a2pack`: entry {entry} at offset ");
            assert!(message.contains(&place) && message.contains(text), "{message}");
        }
        let rows: Vec<(u32, u64)> = (0..5).map(|entry| (0, entry)).collect();
        let options = JsonlOptions { threads, skip_errors: true, ..RUNS };
        let (found, skipped) = lines(&pack, &rows, &options).unwrap();
        assert_eq!(skipped, 3);
        let starts: Vec<&[u8]> =
            found.split_inclusive(|&byte| byte == b'\n').map(|line| &line[..12]).collect();
        assert_eq!(starts, [b"{\"run_idx\":0", b"{\"run_idx\":2"]);
        // Positions that do not exist are the caller's mistake, not an entry's.
        for row in [(0, 5), (1, 0)] {
            assert_eq!(lines(&pack, &[row], &options).unwrap_err().kind(), "out-of-range");
        }
    }
}

/// Takes so many bytes, then none.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0 == 0 {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "the disk is full"));
        }
        let taken = bytes.len().min(self.0);
        self.0 -= taken;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_ends_the_work() {
    let (_, file) = runs(100, 0);
    let pack = [open(&file)];
    let rows: Vec<(u32, u64)> = (0..100).map(|entry| (0, entry)).collect();
    for threads in [1, 2] {
        let options = JsonlOptions { threads, skip_errors: true, ..RUNS };
        let error = write_jsonl(&pack, &rows, &options, &mut Full(5000), &|_| Ok(())).unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), ("io", "the disk is full"));
    }
}
