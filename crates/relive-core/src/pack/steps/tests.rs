//! Rows of steps, however a pack has them, against runs projected one by one.

use std::ops::Range;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::codec::Codec;
use crate::crc::crc32c;
use crate::pack::layout::{FOOTER_BYTES, KIND_BYTES, Tag};
use crate::pack::reader::{Options, Verify};
use crate::pack::sections::{RunColumnsBuilder, SectionLocation, StepLayout, StepTable};
use crate::pack::testing::{Numbers, Scratch, TestEntry, assemble, play};
use crate::runs::{Run, STEP_COLUMNS, StepRow, Version, outline, project};
use crate::storage::Storage;
use crate::table::{Table, Target};

/// What is in a test pack: runs of both versions, one without steps, and something else.
struct Content {
    payloads: Vec<(Vec<u8>, u16)>,
    runs: Vec<Option<Run>>,
}

fn content(seed: u64) -> Content {
    let mut content = Content { payloads: Vec::new(), runs: Vec::new() };
    for (most, kind) in [(200, 2), (0, 0), (300, 2), (70, 1), (0, 2), (64, 2), (1000, 1), (65, 2)] {
        if kind == KIND_BYTES {
            content.payloads.push((vec![7; 100], kind));
            content.runs.push(None);
            continue;
        }
        let mut run = play(seed + 2 * content.runs.len() as u64, most);
        let version = if kind == 1 { Version::V1 } else { Version::V2 };
        if version == Version::V1 {
            run.branches = None;
        }
        content.payloads.push((run.to_bytes(version).unwrap(), kind));
        content.runs.push(Some(run));
    }
    content
}

impl Content {
    /// The rows of these entries, in this order.
    fn expected(&self, entries: &[usize], first_run: u32) -> Vec<StepRow> {
        let mut rows = Vec::new();
        for (run, &entry) in (first_run..).zip(entries) {
            if let Some(found) = &self.runs[entry] {
                project(found, run, &mut rows);
            }
        }
        rows
    }

    fn all(&self, first_run: u32) -> Vec<StepRow> {
        self.expected(&(0..self.runs.len()).collect::<Vec<_>>(), first_run)
    }

    /// The pack; with `sections` or without, the step table among them or not.
    fn pack(&self, codecs: &[Codec], sections: bool, table: bool) -> Vec<u8> {
        let pieces: Vec<TestEntry<'_>> = (self.payloads.iter().zip(codecs.iter().cycle()))
            .map(|((payload, kind), codec)| (payload.as_slice(), *kind, *codec))
            .collect();
        let mut all = Vec::new();
        if table {
            let end = assemble(&pieces, &[]).len() - FOOTER_BYTES;
            let rows: Vec<RowBytes> = self.all(0).iter().map(StepRow::to_bytes).collect();
            all.push((Tag::STEP, step_section(end.next_multiple_of(8) as u64, &rows)));
        }
        if sections {
            let (mut columns, mut checkpoints) =
                (RunColumnsBuilder::default(), Checkpoints::default());
            for (payload, kind) in &self.payloads {
                if *kind == KIND_BYTES {
                    columns.push_other();
                    checkpoints.push(0, &[]).unwrap();
                    continue;
                }
                let version = if *kind == 1 { Version::V1 } else { Version::V2 };
                let found = outline(version, payload).unwrap();
                let meta = &found.meta;
                let engine = meta.engine.as_deref();
                columns.push(meta.max_score, meta.steps, meta.highest_tile, engine);
                checkpoints.push(meta.steps, &found.checkpoints).unwrap();
            }
            let (runs, text) = columns.finish().build();
            all.extend([(Tag::RUNS, runs), (Tag::TEXT, text)]);
            all.push((Tag::CKPT, checkpoints.build()));
        }
        assemble(&pieces, &all)
    }
}

/// The bytes of a `STEP` section whose header is at `offset`.
fn step_section(offset: u64, rows: &[RowBytes]) -> Vec<u8> {
    let layout = StepLayout::new(offset, rows.len() as u64).unwrap();
    let mut bytes = layout.head().to_vec();
    bytes.extend(rows.chunks(64).flat_map(|block| crc32c(block.as_flattened()).to_le_bytes()));
    bytes.resize(bytes.len() + (layout.rows_offset - layout.crcs_offset) as usize, 0);
    bytes.truncate((layout.rows_offset - offset) as usize - 16);
    bytes.extend_from_slice(rows.as_flattened());
    assert_eq!(bytes.len() as u64, layout.length);
    bytes
}

/// A storage that counts requests and bytes; `near` when it is memory to its reader.
struct Watched {
    bytes: Vec<u8>,
    near: bool,
    requests: Arc<AtomicUsize>,
    fetched: Arc<AtomicUsize>,
}

impl Storage for Watched {
    fn name(&self) -> &str {
        "watched.a2pack"
    }

    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn mapped(&self) -> Option<&[u8]> {
        self.near.then_some(self.bytes.as_slice())
    }

    fn read(&self, ranges: &[Range<u64>]) -> Result<Vec<Vec<u8>>> {
        self.requests.fetch_add(1, Relaxed);
        let part = |range: &Range<u64>| {
            self.fetched.fetch_add((range.end - range.start) as usize, Relaxed);
            self.bytes[range.start as usize..range.end as usize].to_vec()
        };
        Ok(ranges.iter().map(part).collect())
    }

    fn recheck(&self) -> Result<()> {
        Ok(())
    }
}

struct Opened {
    reader: Arc<PackReader>,
    requests: Arc<AtomicUsize>,
    fetched: Arc<AtomicUsize>,
}

fn open(bytes: Vec<u8>, near: bool, verify: Verify) -> Opened {
    let (requests, fetched) = (Arc::default(), Arc::default());
    let storage =
        Watched { bytes, near, requests: Arc::clone(&requests), fetched: Arc::clone(&fetched) };
    let options = Options { verify, ..Options::default() };
    let reader = PackReader::open_storage(Box::new(storage), options).unwrap();
    Opened { reader: Arc::new(reader), requests, fetched }
}

/// Every column of these rows, gathered through a table.
fn gather(steps: &Arc<StepRows>, rows: &[i64], threads: usize) -> Result<Vec<Vec<u8>>> {
    let table = Table::from_reader(Arc::clone(steps) as Arc<dyn Reader>)?;
    let mut places = Vec::new();
    table.find(rows, &mut places)?;
    let mut buffers: Vec<Vec<u8>> =
        (0..12).map(|column| vec![0xEE; table.row_bytes(column) * rows.len()]).collect();
    let targets: Vec<Target<'_>> = (buffers.iter_mut().enumerate())
        .map(|(column, buffer)| Target { column, offsets: &[], out: buffer.as_mut_ptr() })
        .collect();
    // SAFETY: each buffer has room for its column of all rows.
    unsafe { table.gather(&places, &targets, threads) }?;
    Ok(buffers)
}

/// The same columns out of rows that were projected.
fn columns_of(rows: &[StepRow]) -> Vec<Vec<u8>> {
    fn column<const N: usize>(rows: &[StepRow], of: impl Fn(&StepRow) -> [u8; N]) -> Vec<u8> {
        rows.iter().flat_map(of).collect()
    }
    vec![
        column(rows, |row| row.board.to_le_bytes()),
        column(rows, |row| crate::runs::cells(row.board)),
        column(rows, |row| [row.mv]),
        column(rows, |row| [row.legal]),
        rows.iter().flat_map(|row| row.branches).flat_map(f32::to_le_bytes).collect(),
        column(rows, |row| row.next_board.to_le_bytes()),
        column(rows, |row| row.reward.to_le_bytes()),
        column(rows, |row| [row.last]),
        column(rows, |row| [row.terminal]),
        column(rows, |row| row.steps_left.to_le_bytes()),
        column(rows, |row| row.run.to_le_bytes()),
        column(rows, |row| row.step.to_le_bytes()),
    ]
}

/// Gathers everything in order, and some of it in disorder with repeats.
fn compare(steps: StepRows, expected: &[StepRow]) {
    assert_eq!(steps.len(), expected.len() as u64);
    let steps = Arc::new(steps);
    let mut numbers = Numbers(5);
    let all: Vec<i64> = (0..expected.len() as i64).collect();
    let some: Vec<i64> =
        (0..700).map(|_| numbers.below(expected.len() as u64) as i64).chain([0, 0]).collect();
    let few: Vec<i64> = some[..9].to_vec();
    for wanted in [few, some, all, vec![]] {
        let rows: Vec<StepRow> = wanted.iter().map(|&row| expected[row as usize]).collect();
        for threads in [1, 3] {
            let found = gather(&steps, &wanted, threads).unwrap();
            for (name, (found, expected)) in
                STEP_COLUMNS.iter().map(|c| c.name).zip(found.iter().zip(columns_of(&rows)))
            {
                assert_eq!(*found, expected, "{name} of {} rows", wanted.len());
            }
        }
    }
}

const WAYS: [(bool, bool); 4] = [(false, false), (true, false), (true, true), (false, true)];
const RAW: &[Codec] = &[Codec::Raw];
const MIXED: &[Codec] = &[Codec::Zstd, Codec::Raw, Codec::Raw, Codec::Lz4, Codec::Deflate];

#[test]
fn every_way_of_keeping_steps_gives_the_same_rows() {
    let content = content(40);
    let expected = content.all(0);
    assert!(expected.iter().any(|row| row.terminal == 1));
    assert!(expected.iter().any(|row| row.last == 1 && row.terminal == 0));
    for codecs in [RAW, MIXED] {
        for (sections, table) in WAYS {
            let bytes = content.pack(codecs, sections, table);
            for near in [true, false] {
                for verify in [Verify::First, Verify::Always, Verify::Never] {
                    let opened = open(bytes.clone(), near, verify);
                    compare(StepRows::new(vec![opened.reader], None).unwrap(), &expected);
                }
            }
        }
    }
}

#[test]
fn several_packs_are_one_table() {
    let contents = [content(1), content(2), content(60)];
    let mut expected = contents[0].all(0);
    expected.extend(contents[1].all(8));
    expected.extend(contents[2].all(17));
    // With a table, without, and something without runs in between.
    for kept in [[true, true, true], [false, false, false], [true, false, true]] {
        for near in [true, false] {
            let pack =
                |k: usize| open(contents[k].pack(MIXED, true, kept[k]), near, Verify::First).reader;
            let other = assemble(&[(b"other", 0, Codec::Raw)], &[]);
            let other = open(other, near, Verify::First).reader;
            let packs = vec![pack(0), pack(1), other, pack(2)];
            compare(StepRows::new(packs, None).unwrap(), &expected);
        }
    }
}

#[test]
fn chosen_runs_are_numbered_as_they_were_given() {
    let contents = [content(3), content(8)];
    let chosen: Vec<(u32, u32)> =
        vec![(1, 6), (0, 1), (0, 2), (1, 6), (0, 4), (0, 0), (1, 7), (1, 3), (0, 1)];
    let mut expected = Vec::new();
    for (run, &(pack, entry)) in (0..).zip(&chosen) {
        expected.extend(contents[pack as usize].expected(&[entry as usize], run));
    }
    for (sections, table) in WAYS {
        for near in [true, false] {
            let pack = |k: usize| {
                open(contents[k].pack(MIXED, sections, table), near, Verify::First).reader
            };
            let steps = StepRows::new(vec![pack(0), pack(1)], Some(chosen.clone())).unwrap();
            compare(steps, &expected);
        }
    }
    let reader = open(contents[0].pack(RAW, true, true), true, Verify::First).reader;
    for bad in [(1, 0), (0, 8), (0, u32::MAX)] {
        let outcome = StepRows::new(vec![Arc::clone(&reader)], Some(vec![bad]));
        assert_eq!(outcome.err().unwrap().kind(), "out-of-range");
    }
    let none = StepRows::new(vec![reader], Some(vec![])).unwrap();
    assert_eq!(none.len(), 0);
    assert_eq!(StepRows::new(vec![], None).unwrap().len(), 0);
}

#[test]
fn a_batch_from_far_away_is_one_request() {
    let content = content(40);
    // The first step of two runs.
    let rows = [0, content.runs[0].as_ref().unwrap().moves.len() as i64];
    assert!(rows[1] >= 64);
    for (table, verify) in [(true, Verify::First), (false, Verify::First), (false, Verify::Never)] {
        for codecs in [RAW, MIXED] {
            let Opened { reader, requests, fetched } =
                open(content.pack(codecs, true, table), false, verify);
            let steps = Arc::new(StepRows::new(vec![Arc::clone(&reader)], None).unwrap());
            let whole: usize =
                [0, 2].iter().map(|&k| reader.entry(k).unwrap().length as usize).sum();
            let offsets = |entry| reader.checkpoints().unwrap().of(entry);
            let stretches: usize = [0, 2]
                .map(|entry| (offsets(entry)[1] + 10 - offsets(entry)[0]) as usize)
                .iter()
                .sum();
            assert!(stretches < whole);
            for batch in 0..3 {
                let before = (requests.load(Relaxed), fetched.load(Relaxed));
                gather(&steps, &rows, 1).unwrap();
                let asked = requests.load(Relaxed) - before.0;
                let bytes = fetched.load(Relaxed) - before.1;
                match (table, verify, codecs.len()) {
                    // Only blocks, at every batch.
                    (true, _, _) => assert_eq!((asked, bytes), (1, 2 * 4096), "batch {batch}"),
                    // Only stretches between checkpoints, with the board behind.
                    (false, Verify::Never, 1) => assert_eq!((asked, bytes), (1, stretches)),
                    // Whole runs, once.
                    (false, Verify::First, 1) if batch == 0 => {
                        assert_eq!((asked, bytes), (1, whole));
                    }
                    (false, Verify::First, 1) => assert_eq!((asked, bytes), (0, 0)),
                    _ if batch == 0 => assert_eq!(asked, 1),
                    _ => {}
                }
            }
        }
    }
}

#[test]
fn damage_is_named_and_never_read() {
    let content = content(40);
    let expected = content.all(0);
    for near in [true, false] {
        // A byte of row 70 of the table: rows 64 to 127 are one block.
        let mut bytes = content.pack(RAW, true, true);
        let reader = open(bytes.clone(), true, Verify::First).reader;
        let table = reader.step_table().unwrap().unwrap();
        let at = table.layout().rows_offset as usize + 70 * 64 + 5;
        bytes[at] ^= 1;
        let opened = |verify| StepRows::new(vec![open(bytes.clone(), near, verify).reader], None);
        for verify in [Verify::First, Verify::Always] {
            let steps = Arc::new(opened(verify).unwrap());
            let start = table.layout().rows_offset + 4096;
            for _ in 0..2 {
                let error = gather(&steps, &[3, 127], 1).unwrap_err();
                assert_eq!(error.kind(), "corrupt");
                let text = error.to_string();
                let place = format!("block at offset {start} does not match its checksum");
                assert!(text.contains("`watched.a2pack`: ") && text.contains(&place), "{text}");
            }
            let fine = gather(&steps, &[63, 128], 1).unwrap();
            assert_eq!(fine, columns_of(&[expected[63], expected[128]]));
        }
        assert!(gather(&Arc::new(opened(Verify::Never).unwrap()), &[70], 1).is_ok());

        // A byte of a payload.
        for codecs in [RAW, MIXED] {
            let mut bytes = content.pack(codecs, true, false);
            let reader = open(bytes.clone(), true, Verify::First).reader;
            bytes[reader.entry(2).unwrap().offset as usize + 900] ^= 1;
            let steps = StepRows::new(vec![open(bytes, near, Verify::First).reader], None).unwrap();
            let steps = Arc::new(steps);
            let first = content.runs[0].as_ref().unwrap().moves.len() as i64;
            for _ in 0..2 {
                let error = gather(&steps, &[0, first], 1).unwrap_err();
                assert_eq!(error.kind(), "corrupt");
                assert!(error.to_string().contains("entry 2 at offset"), "{error}");
            }
            assert!(gather(&steps, &[first - 1], 1).is_ok());
        }
    }
}

#[test]
fn tables_and_checkpoints_that_lie_are_refused() {
    let content = content(40);
    // Checkpoints of other runs, under checksums that hold.
    let pieces: Vec<TestEntry<'_>> = content
        .payloads
        .iter()
        .map(|(bytes, kind)| (bytes.as_slice(), *kind, Codec::Raw))
        .collect();
    let mut lies = Checkpoints::default();
    for entry in 0..8 {
        let steps = if entry == 1 { 100 } else { 64 };
        let offsets: Vec<u32> = if entry == 1 { vec![1, 50] } else { vec![4_000_000_000] };
        lies.push(steps, &offsets).unwrap();
    }
    for near in [true, false] {
        let bytes = assemble(&pieces, &[(Tag::CKPT, lies.build())]);
        let steps =
            Arc::new(StepRows::new(vec![open(bytes, near, Verify::Never).reader], None).unwrap());
        for row in 0..steps.len() as i64 {
            assert_eq!(gather(&steps, &[row], 1).unwrap_err().kind(), "corrupt", "row {row}");
        }
        let all: Vec<i64> = (0..steps.len() as i64).collect();
        assert_eq!(gather(&steps, &all, 1).unwrap_err().kind(), "corrupt");
    }
    // A table of fewer rows than there are steps cannot be addressed by run.
    let end = assemble(&pieces, &[]).len() - FOOTER_BYTES;
    let rows = [[0; 64]; 3];
    let short = step_section(end.next_multiple_of(8) as u64, &rows);
    let reader = open(assemble(&pieces, &[(Tag::STEP, short)]), true, Verify::First).reader;
    let outcome = StepRows::new(vec![Arc::clone(&reader)], Some(vec![(0, 0)]));
    assert_eq!(outcome.err().unwrap().kind(), "corrupt");
    assert_eq!(StepRows::new(vec![reader], None).unwrap().len(), 3);
}

#[test]
fn step_sections_survive_hostile_bytes() {
    let rows = [[3; 64]; 130];
    let offset = 24;
    let bytes = step_section(offset, &rows);
    let header = crate::pack::layout::SectionHeader::of(Tag::STEP, &bytes).to_bytes();
    let file = [&[0; 24][..], &header, &bytes].concat();
    let place = SectionLocation { tag: Tag::STEP, offset, length: bytes.len() as u64 };
    let read = |file: &[u8], length: u64| {
        let storage = Watched {
            bytes: file.to_vec(),
            near: false,
            requests: Arc::default(),
            fetched: Arc::default(),
        };
        StepTable::open(&storage, &SectionLocation { length, ..place })
    };
    let table = read(&file, place.length).unwrap();
    assert_eq!((table.len(), table.block(2).end), (130, file.len() as u64));
    assert_eq!(table.layout().rows_offset % 64, 0);
    assert!(table.verify(2, rows[..2].as_flattened()).is_ok() && table.is_verified(2));
    assert!(table.verify(1, rows[..2].as_flattened()).is_err() && !table.is_verified(1));
    assert!(table.verify(3, &[]).is_err() && table.verify(u64::MAX, &[]).is_err());
    for at in 24..24 + 32 + 12 {
        for bit in 0..8 {
            let mut file = file.clone();
            file[at] ^= 1 << bit;
            // Its own checksum is looked at when all of it is read.
            let in_crc = (28..32).contains(&at);
            match read(&file, place.length) {
                Err(error) => assert_eq!(error.kind(), "corrupt"),
                Ok(table) if in_crc => assert_eq!(table.len(), 130),
                Ok(table) => {
                    let whole = |block: u64| {
                        let range = table.block(block);
                        table.verify(block, &file[range.start as usize..range.end as usize])
                    };
                    assert!((0..3).any(|block| whole(block).is_err()), "byte {at}");
                }
            }
        }
    }
    for length in 0..place.length {
        let mut cut = file[..40 + length as usize].to_vec();
        cut[32..40].copy_from_slice(&length.to_le_bytes());
        assert_eq!(read(&cut, length).unwrap_err().kind(), "corrupt", "length {length}");
    }
    for rows in [1 << 26, 1 << 58, u64::MAX] {
        assert!(StepLayout::new(u64::MAX - 100, rows).is_none());
    }
    assert_eq!(StepLayout::new(0, 0).unwrap().length, 48);
}

#[test]
fn a_file_that_was_cut_is_seen_before_a_batch() {
    for mapped in [true, false] {
        let scratch = Scratch::new(&content(40).pack(RAW, true, true));
        let reader = PackReader::open(scratch.path(), mapped, Options::default()).unwrap();
        let steps = Arc::new(StepRows::new(vec![Arc::new(reader)], None).unwrap());
        assert!(gather(&steps, &[1], 1).is_ok());
        let (start, bytes) = steps.stored_bytes(0, 1).unwrap_or((std::ptr::null(), 64));
        assert!(start.is_null() != mapped && bytes == 64);
        let length = steps.packs[0].reader.storage().len();
        scratch.resize(length - 8);
        assert_eq!(gather(&steps, &[1], 1).unwrap_err().kind(), "corrupt");
    }
}

#[test]
fn every_row_is_found_where_it_is() {
    let mut numbers = Numbers(3);
    for most in [1, 2, 5, 100, 5000] {
        for stretches in [0, 1, 2, 50] {
            let lengths: Vec<u64> = (0..stretches).map(|_| numbers.below(most)).collect();
            let mut firsts = vec![0];
            let mut expected = Vec::new();
            for (position, &length) in lengths.iter().enumerate() {
                expected.extend((0..length).map(|row| (position, row)));
                firsts.push(expected.len() as u64);
            }
            let search = Search::new(firsts);
            assert_eq!(search.total(), expected.len() as u64);
            for (row, place) in expected.iter().enumerate() {
                assert_eq!(search.find(row as u64), Some(*place), "{lengths:?}");
            }
            for row in [expected.len() as u64, 1 << 40, u64::MAX] {
                assert_eq!(search.find(row), None);
            }
        }
    }
}
