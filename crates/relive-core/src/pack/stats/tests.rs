//! Numbers against naive ones.

use super::super::layout::{KIND_V1, KIND_V2};
use super::*;
use crate::codec::Codec;
use crate::pack::layout::Tag;
use crate::pack::reader::Options;
use crate::pack::sections::{Checkpoints, Kinds, RunColumnsBuilder};
use crate::pack::testing::play;
use crate::pack::testing::{Memory, TestEntry, assemble};
use crate::runs::{Run, Version};

#[test]
fn summaries_are_exact() {
    assert_eq!(Summary::of([]), Summary::default());
    let one = Summary::of([7]);
    assert_eq!((one.count, one.min, one.max, one.p50, one.p99), (1, 7, 7, 7, 7));
    let all = Summary::of((0..=100).rev());
    assert_eq!((all.min, all.max, all.p50, all.p90, all.p99), (0, 100, 50, 90, 99));
    assert_eq!((all.count, all.total_steps, all.mean), (101, 5050, 50.0));
    // The quantile is at round(q · (n − 1)), halves away from zero.
    let two = Summary::of([10, 20]);
    assert_eq!((two.p50, two.p90, two.mean), (20, 20, 15.0));
    let most = Summary::of([u32::MAX, u32::MAX]);
    assert_eq!(most.total_steps, 2 * u64::from(u32::MAX));
}

#[test]
fn stats_blocks_come_back() {
    let all = Summary::of((0..5000).map(|k| k * 7 % 1000));
    let most = u64::MAX;
    let extreme = Summary { count: most, total_steps: most, min: most, p99: most, ..all };
    for summary in [Summary::default(), all, extreme] {
        let bytes = summary.build();
        assert!(bytes.len() <= MAX_STATS_BYTES);
        assert_eq!(Summary::parse(&bytes).unwrap(), (summary, bytes.len()));
        assert_eq!(Summary::parse_body(&bytes[4..]).unwrap(), summary);
        let longer = [&bytes[..], b"behind"].concat();
        assert_eq!(Summary::parse(&longer).unwrap(), (summary, bytes.len()));
        for end in 0..bytes.len() {
            assert_eq!(Summary::parse(&bytes[..end]).unwrap_err().kind(), "corrupt");
            assert_eq!(Summary::parse_body(&bytes[4..end.max(4)]).unwrap_err().kind(), "corrupt");
        }
        for at in 0..bytes.len() {
            for change in 1..=255 {
                let mut damaged = bytes.clone();
                damaged[at] ^= change;
                match Summary::parse(&damaged) {
                    Err(error) => assert_eq!(error.kind(), "corrupt"),
                    Ok((read, _)) => assert_ne!(read.build(), bytes, "byte {at}"),
                }
            }
        }
    }
    // As the original writes it: nothing but postcard.
    let bytes = Summary::of([1, 300]).build();
    let mean = 150.5_f64.to_le_bytes();
    let expected = [&[2, 0xAD, 2, 1, 0xAC, 2][..], &mean, &[0xAC, 2, 0xAC, 2, 0xAC, 2]].concat();
    assert_eq!((bytes[0] as usize, &bytes[4..]), (expected.len(), expected.as_slice()));
    // Eleven bytes, and a tenth that does not fit, are no integer.
    assert_eq!(Input::new(&[0x80; 11], 0).u64("").ok(), None);
    assert_eq!(
        Input::new(&[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 2], 0).u64("").ok(),
        None
    );
}

/// Twenty runs with something else after every third, and the pack of them.
fn pack(sections: bool) -> (Vec<Option<Run>>, Vec<u16>, Arc<PackReader>) {
    let (mut runs, mut kinds, mut payloads) = (Vec::new(), Vec::new(), Vec::new());
    for seed in 0..20 {
        let run = play(seed, 10 * seed as usize);
        let version = if run.branches.is_some() { Version::V2 } else { Version::V1 };
        payloads.push(run.to_bytes(version).unwrap());
        kinds.push(u16::from(version.number()));
        runs.push(Some(run));
        if seed % 3 == 0 {
            payloads.push(vec![1; 1000]);
            kinds.push([0, 256, 300][seed as usize % 9 / 3]);
            runs.push(None);
        }
    }
    let pieces: Vec<TestEntry<'_>> = (payloads.iter().zip(&kinds).enumerate())
        .map(|(k, (bytes, kind))| (bytes.as_slice(), *kind, Codec::ALL[k % 4]))
        .collect();
    let mut names = Kinds::default();
    names.add("frame").unwrap();
    let mut all = vec![(Tag::KIND, names.build())];
    if sections {
        let mut columns = RunColumnsBuilder::default();
        let mut checkpoints = Checkpoints::default();
        for run in &runs {
            match run.as_ref().map(|run| &run.meta) {
                None => columns.push_other(),
                Some(meta) => {
                    let engine = meta.engine.as_deref();
                    columns.push(meta.max_score, meta.steps, meta.highest_tile, engine);
                }
            }
            checkpoints.push(0, &[]).unwrap();
        }
        let (runs, text) = columns.finish().build();
        all.extend([(Tag::RUNS, runs), (Tag::TEXT, text), (Tag::CKPT, checkpoints.build())]);
    }
    let (storage, _) = Memory::new(assemble(&pieces, &all));
    let reader = PackReader::open_storage(Box::new(storage), Options::default()).unwrap();
    (runs, kinds, Arc::new(reader))
}

fn naive(runs: &[Option<Run>], kinds: &[u16], reader: &PackReader, rows: &[u64]) -> Stats {
    let mut expected = Stats { entries: rows.len() as u64, ..Stats::default() };
    let mut steps = Vec::new();
    for &row in rows {
        let kind = match kinds[row as usize] {
            0 => "bytes",
            KIND_V1 => "v1",
            KIND_V2 => "v2",
            256 => "frame",
            _ => "kind-300",
        };
        *expected.kind_counts.entry(kind.into()).or_default() += 1;
        let entry = reader.entry(row).unwrap();
        let end = entry.offset + u64::from(entry.length);
        let next = reader.entry(row + 1).map_or(reader.footer().data_end, |next| next.offset);
        expected.padding_bytes += next - end;
        if row == 0 {
            expected.padding_bytes += entry.offset - (28 + 32 * reader.len());
        }
        expected.stored_bytes += u64::from(entry.length);
        expected.payload_bytes += reader.payload(row).unwrap().len() as u64;
        if let Some(run) = &runs[row as usize] {
            steps.push(run.meta.steps);
            *expected.highest_tile_hist.entry(run.meta.highest_tile).or_default() += 1;
            if let Some(engine) = &run.meta.engine {
                *expected.engine_counts.entry(engine.clone()).or_default() += 1;
            }
        }
    }
    expected.summary = Summary::of(steps);
    expected
}

#[test]
fn stats_are_those_of_the_entries() {
    for sections in [true, false] {
        let (runs, kinds, reader) = pack(sections);
        let all: Vec<u64> = (0..reader.len()).collect();
        let expected = naive(&runs, &kinds, &reader, &all);
        let found = stats(std::slice::from_ref(&reader), None).unwrap();
        assert_eq!(found, expected);
        assert_eq!(found.engine_counts.keys().collect::<Vec<_>>(), ["greedy", "ntuple"]);
        assert!(
            ["v1", "v2", "bytes", "frame", "kind-300"]
                .iter()
                .all(|kind| found.kind_counts.contains_key(*kind))
        );
        for rows in [vec![3, 3, 0, 26], vec![1], vec![]] {
            let expected = naive(&runs, &kinds, &reader, &rows);
            let rows: Vec<(u32, u64)> = rows.into_iter().map(|row| (0, row)).collect();
            assert_eq!(stats(std::slice::from_ref(&reader), Some(&rows)).unwrap(), expected);
        }
        for missing in [(0, 99), (1, 0)] {
            let error = stats(std::slice::from_ref(&reader), Some(&[missing])).unwrap_err();
            assert_eq!(error.kind(), "out-of-range");
        }
        // Two packs together are one with the entries of both.
        let (_, _, other) = pack(true);
        let twice: Vec<u64> = all.iter().chain(&all).copied().collect();
        let expected = naive(&runs, &kinds, &reader, &twice);
        let both: Vec<(u32, u64)> =
            [0, 1].iter().flat_map(|&pack| all.iter().map(move |&row| (pack, row))).collect();
        let packs = [reader, other];
        assert_eq!(stats(&packs, None).unwrap(), expected);
        assert_eq!(stats(&packs, Some(&both)).unwrap(), expected);
    }
    assert_eq!(stats(&[], None).unwrap(), Stats::default());
}

#[test]
fn packs_without_runs_are_not_passed_over() {
    let (storage, requests) = Memory::new(assemble(&[(b"x", 0, Codec::Raw)], &[]));
    let reader = Arc::new(PackReader::open_storage(Box::new(storage), Options::default()).unwrap());
    let before = requests.load(std::sync::atomic::Ordering::Relaxed);
    let found = stats(std::slice::from_ref(&reader), None).unwrap();
    assert_eq!((found.summary, found.entries), (Summary::default(), 1));
    assert_eq!(requests.load(std::sync::atomic::Ordering::Relaxed), before);
}
