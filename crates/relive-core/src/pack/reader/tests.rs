//! Packs as they are, as they are damaged, and as someone means harm.

use std::io::{Seek, SeekFrom, Write};
use std::sync::atomic::AtomicUsize;

use super::*;
use crate::codec::{Codec, train_dictionary};
use crate::pack::layout::{HAS_CRC, HAS_DICTIONARY, KIND_BYTES, KIND_V1, KIND_V2, SectionHeader};
use crate::pack::testing::{
    Memory, Scratch, TestEntry, assemble, assemble_original, assemble_with, finish, run, with_index,
};
use crate::runs::{Run, Version};

fn far(bytes: &[u8], verify: Verify) -> Result<PackReader> {
    let options = Options { verify, ..Options::default() };
    PackReader::open_storage(Box::new(Memory::new(bytes.to_vec()).0), options)
}

fn counted(bytes: Vec<u8>) -> (PackReader, Arc<AtomicUsize>) {
    let (memory, reads) = Memory::new(bytes);
    (PackReader::open_storage(Box::new(memory), Options::default()).unwrap(), reads)
}

fn count(reads: &AtomicUsize) -> usize {
    reads.load(Ordering::Relaxed)
}

/// The same pack mapped, read piece by piece, and far away.
fn three_ways(bytes: &[u8]) -> (Scratch, [PackReader; 3]) {
    let scratch = Scratch::new(bytes);
    let open = |mapped| PackReader::open(scratch.path(), mapped, Options::default()).unwrap();
    let readers = [open(true), open(false), far(bytes, Verify::First).unwrap()];
    (scratch, readers)
}

fn text(i: usize) -> Vec<u8> {
    format!("payload {i} ").repeat(5 + i).into_bytes()
}

fn kind_of(outcome: Result<impl Sized>) -> &'static str {
    outcome.err().map_or("ok", |error| error.kind())
}

/// Three entries, names, a kind: everything small enough to be damaged bit by bit.
fn small() -> (Vec<u8>, Vec<Vec<u8>>) {
    let payloads: Vec<Vec<u8>> = (0..3).map(text).collect();
    let names = Names::build(&[Some("first"), None, Some("last")]).unwrap();
    let mut kinds = Kinds::default();
    kinds.add("note").unwrap();
    let entries: [TestEntry<'_>; 3] = [
        (&payloads[0], KIND_BYTES, Codec::Raw),
        (&payloads[1], 256, Codec::Zstd),
        (&payloads[2], 300, Codec::Lz4),
    ];
    (assemble(&entries, &[(Tag::NAME, names), (Tag::KIND, kinds.build())]), payloads)
}

#[test]
fn packs_of_the_original_open() {
    for checksums in [true, false] {
        let payloads: [(&[u8], u16); 4] = [(b"one", 2), (b"", 2), (b"three", 1), (b"two", 0)];
        let file = assemble_original(&payloads, checksums);
        let (_scratch, readers) = three_ways(&file);
        for pack in readers {
            assert_eq!((pack.len(), pack.header().flags, pack.directory().len()), (4, 0, 0));
            for (i, (payload, _)) in (0..).zip(payloads) {
                assert_eq!(pack.payload(i).unwrap(), payload);
                assert_eq!(pack.stored(i).unwrap(), payload);
            }
            let kinds: Vec<String> = (0..4).map(|i| pack.kind_name(i).unwrap()).collect();
            assert_eq!(kinds, ["v2", "v2", "v1", "bytes"]);
            assert_eq!(kind_of(pack.payload(4)), "out-of-range");
            assert!(pack.names().unwrap().is_none());
            assert_eq!(pack.find("one").unwrap(), None);
        }
        let mut damaged = file.clone();
        let at = file.windows(5).position(|part| part == b"three").unwrap();
        damaged[at] ^= 1;
        let pack = far(&damaged, Verify::First).unwrap();
        // A checksum counts even where no flag speaks of it.
        let outcome = pack.payload(2);
        assert_eq!(outcome.is_err(), checksums);
        if let Err(error) = outcome {
            let wanted = format!(
                "`memory.a2pack`: entry 2 at offset {at}: the stored bytes do not match their checksum"
            );
            assert_eq!((error.kind(), error.to_string()), ("corrupt", wanted));
        }
    }
}

#[test]
fn the_empty_pack_opens() {
    for file in [assemble(&[], &[]), assemble(&[], &[(Tag::KIND, Vec::new())])] {
        let (_scratch, readers) = three_ways(&file);
        for pack in readers {
            assert!(pack.is_empty());
            assert_eq!(kind_of(pack.payload(0)), "out-of-range");
            assert!(pack.payloads(&[], 2).unwrap().is_empty());
            assert!(pack.run_columns().unwrap().is_empty());
            assert_eq!(pack.checkpoints().unwrap().total(), 0);
        }
    }
}

#[test]
fn every_codec_with_and_without_a_dictionary() {
    let samples: Vec<Vec<u8>> = (0..200).map(text).collect();
    let dictionary = train_dictionary(&samples, 4096).unwrap();
    let dictionary = Arc::new(Dictionary::new(dictionary).unwrap());
    let payloads: Vec<Vec<u8>> = (0..12).map(text).chain([Vec::new(), vec![7; 5000]]).collect();
    for given in [None, Some(&dictionary)] {
        let entries: Vec<TestEntry<'_>> = (0..)
            .zip(&payloads)
            .map(|(i, payload): (usize, _)| (&payload[..], KIND_BYTES, Codec::ALL[i % 4]))
            .collect();
        let section = dictionary.bytes().to_vec();
        let sections = if given.is_some() { vec![(Tag::DICT, section)] } else { vec![] };
        let file = assemble_with(&entries, &sections, given);
        let (_scratch, readers) = three_ways(&file);
        for pack in readers {
            for (i, payload) in (0..).zip(&payloads) {
                assert_eq!(&pack.payload(i).unwrap()[..], &payload[..], "{i}");
                assert_eq!(pack.stored(i).unwrap().len(), pack.entry(i).unwrap().length as usize);
            }
        }
        // Without the section a frame that names a dictionary cannot be read.
        let bare = far(&assemble_with(&entries, &[], given), Verify::First).unwrap();
        assert_eq!(kind_of(bare.payload(2)) == "corrupt", given.is_some());
    }
}

#[test]
fn a_raw_entry_in_memory_is_borrowed() {
    let (_scratch, [mapped, pread, _]) = three_ways(&small().0);
    assert!(matches!(mapped.payload(0).unwrap(), Cow::Borrowed(_)));
    assert!(matches!(mapped.payload(1).unwrap(), Cow::Owned(_)));
    assert!(matches!(pread.payload(0).unwrap(), Cow::Owned(_)));
}

#[test]
fn names_and_kinds() {
    let (_scratch, readers) = three_ways(&small().0);
    for pack in readers {
        let kinds: Vec<String> = (0..3).map(|i| pack.kind_name(i).unwrap()).collect();
        assert_eq!(kinds, ["bytes", "note", "kind-300"]);
        let found = ["first", "last", "", "none"].map(|name| pack.find(name).unwrap());
        assert_eq!(found, [Some(0), Some(2), None, None]);
    }
}

#[test]
fn every_truncation_is_seen() {
    let (file, _) = small();
    for len in 0..file.len() {
        let error = far(&file[..len], Verify::First).err().unwrap_or_else(|| panic!("{len}"));
        assert_eq!(error.kind(), "corrupt", "{len}");
        assert!(error.to_string().starts_with("`memory.a2pack`: "), "{error}");
    }
}

#[test]
fn no_flipped_bit_gives_wrong_bytes() {
    let (file, payloads) = small();
    let (mut refused, mut harmless) = (0, 0);
    for bit in 0..8 * file.len() {
        let mut flipped = file.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let Ok(pack) = far(&flipped, Verify::First) else {
            refused += 1;
            continue;
        };
        let mut seen = false;
        for (i, payload) in (0..).zip(&payloads) {
            match pack.payload(i) {
                Ok(read) => assert_eq!(&read[..], &payload[..], "bit {bit}, entry {i}"),
                Err(_) => seen = true,
            }
        }
        match (pack.find("last"), pack.kind_name(1)) {
            (Ok(found), Ok(kind)) => assert_eq!((found, &kind[..]), (Some(2), "note"), "bit {bit}"),
            _ => seen = true,
        }
        if seen { refused += 1 } else { harmless += 1 }
    }
    // Padding alone may change unseen here.
    assert!(refused > 5 * harmless, "{refused} refused, {harmless} harmless");
}

#[test]
fn a_hostile_index_is_refused() {
    let (file, _) = small();
    let refused = |change: fn(&mut [Entry], u64), kind: &str| {
        let hostile = with_index(&file, |entries| change(entries, file.len() as u64));
        let error = far(&hostile, Verify::Never).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    };
    refused(|entries, _| entries[1].offset = entries[0].offset, "corrupt");
    refused(|entries, _| entries.swap(0, 1), "corrupt");
    refused(|entries, _| entries[2].length += 1, "corrupt");
    refused(|entries, end| entries[2].offset = end, "corrupt");
    refused(|entries, _| entries[2].offset = u64::MAX, "corrupt");
    refused(|entries, _| entries[0].offset = 28, "corrupt");
    refused(|entries, _| entries[0].flags |= 1 << 6, "unsupported");
    refused(|entries, _| entries[0].flags |= 15, "unsupported");
    refused(|entries, _| entries[0].flags |= HAS_DICTIONARY, "corrupt");
    refused(|entries, _| entries[1].logical = u32::MAX, "corrupt");
}

#[test]
fn hostile_ends_are_refused() {
    let (file, _) = small();
    let body = &file[..file.len() - FOOTER_BYTES];
    let honest = Footer::parse(&file[body.len()..]).unwrap();
    let header = Header::parse(&file).unwrap();
    let with = |header: Header, footer: Footer| {
        let mut hostile = [body, &footer.to_bytes()].concat();
        hostile[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
        kind_of(far(&hostile, Verify::Never))
    };
    assert_eq!(with(header, honest), "ok");
    for count in [2, 4, 1 << 20, u64::from(u32::MAX), u64::MAX / 32 + 1, u64::MAX] {
        assert_eq!(with(Header { count, ..header }, honest), "corrupt", "{count}");
    }
    for data_end in [0, 27, 30, file.len() as u64, u64::MAX] {
        assert_eq!(with(header, Footer { data_end, ..honest }), "corrupt", "{data_end}");
    }
    for stats_offset in [1, honest.data_end - 1, file.len() as u64 - 35, u64::MAX] {
        assert_eq!(with(header, Footer { stats_offset, ..honest }), "corrupt", "{stats_offset}");
    }
    assert_eq!(with(Header { flags: 4, ..header }, honest), "unsupported");
    let at = body.len() - 8;
    for own in [0, honest.data_end - 1, at as u64, at as u64 - 7, u64::MAX] {
        let mut hostile = file.clone();
        hostile[at..at + 8].copy_from_slice(&own.to_le_bytes());
        assert_eq!(kind_of(far(&hostile, Verify::Never)), "corrupt", "{own}");
    }
}

#[test]
fn declared_sizes_are_refused_before_memory_is_taken() {
    let (file, _) = small();
    let options = Options { max_payload_bytes: 59, ..Options::default() };
    let open = |file: Vec<u8>| PackReader::open_storage(Box::new(Memory::new(file).0), options);
    let pack = open(file.clone()).unwrap();
    // The raw entry is as long as it is; the others are 60 and 70 bytes.
    assert_eq!(kind_of(pack.payload(0)), "ok");
    for i in [1, 2] {
        let error = pack.payload(i).unwrap_err();
        assert_eq!(error.kind(), "too-large");
        assert!(error.to_string().contains(&format!("entry {i} at offset")), "{error}");
    }
    let unlike = with_index(&file, |entries| entries[1].logical -= 1);
    assert_eq!(kind_of(far(&unlike, Verify::Never).unwrap().payload(1)), "corrupt");
}

#[test]
fn checksums_are_compared_as_often_as_asked() {
    let (file, payloads) = small();
    let open = |path: &Path, verify| {
        let options = Options { verify, ..Options::default() };
        PackReader::open(path, true, options).unwrap()
    };
    for verify in [Verify::First, Verify::Always, Verify::Never] {
        let scratch = Scratch::new(&file);
        let pack = open(scratch.path(), verify);
        assert_eq!(&pack.payload(0).unwrap()[..], &payloads[0][..]);
        let offset = pack.entry(0).unwrap().offset;
        let mut changed = std::fs::OpenOptions::new().write(true).open(scratch.path()).unwrap();
        changed.seek(SeekFrom::Start(offset)).unwrap();
        changed.write_all(b"P").unwrap();
        assert_eq!(pack.payload(0).is_err(), verify == Verify::Always, "{verify:?}");
        let anew = open(scratch.path(), verify);
        for _ in 0..2 {
            assert_eq!(anew.payload(0).is_ok(), verify == Verify::Never, "{verify:?}");
        }
    }
    let unchecked = with_index(&file, |entries| {
        entries[0].flags &= !HAS_CRC;
        entries[0].crc = 0;
    });
    assert!(far(&unchecked, Verify::Always).unwrap().payload(0).is_ok());
}

#[test]
fn requests_are_few() {
    let (file, payloads) = small();
    let (pack, reads) = counted(file);
    assert_eq!(count(&reads), 2);
    for threads in [1, 3] {
        let before = count(&reads);
        let found = pack.payloads(&[2, 0, 2, 1], threads).unwrap();
        assert_eq!(count(&reads), before + 1);
        for (read, i) in found.into_iter().zip([2, 0, 2, 1]) {
            assert_eq!(read.unwrap(), payloads[i]);
        }
    }
    pack.find("last").unwrap();
    let before = count(&reads);
    pack.find("first").unwrap();
    assert_eq!(count(&reads), before, "names are kept");
    assert_eq!(kind_of(pack.payloads(&[0, 3], 1)), "out-of-range");
}

#[test]
fn a_batch_keeps_good_entries_beside_bad_ones() {
    let (mut file, payloads) = small();
    let offset = far(&file, Verify::First).unwrap().entry(1).unwrap().offset as usize;
    file[offset] ^= 1;
    let (_scratch, readers) = three_ways(&file);
    for pack in readers {
        let found = pack.payloads(&[0, 1, 2], 2).unwrap();
        assert_eq!(found.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
        assert_eq!(&found[2].as_ref().unwrap()[..], &payloads[2][..]);
    }
}

#[test]
fn a_file_that_shrank_is_seen_at_the_next_batch() {
    let (file, _) = small();
    for mapped in [true, false] {
        let scratch = Scratch::new(&file);
        let pack = PackReader::open(scratch.path(), mapped, Options::default()).unwrap();
        pack.payloads(&[0, 1], 1).unwrap();
        scratch.resize(100);
        for outcome in [pack.payload(0).map(|_| ()), pack.payloads(&[0], 1).map(|_| ())] {
            assert_eq!(kind_of(outcome), "corrupt");
        }
        assert_eq!(kind_of(pack.section(Tag::NAME)), "corrupt");
        assert_eq!(kind_of(pack.stored(0)), "corrupt");
    }
}

#[test]
fn many_threads_read_one_pack() {
    let payloads: Vec<Vec<u8>> = (0..200).map(text).collect();
    let entries: Vec<TestEntry<'_>> = (0..)
        .zip(&payloads)
        .map(|(i, payload): (usize, _)| (&payload[..], KIND_BYTES, Codec::ALL[i % 4]))
        .collect();
    let (_scratch, readers) = three_ways(&assemble(&entries, &[]));
    std::thread::scope(|scope| {
        for pack in &readers {
            for first in 0..3 {
                let payloads = &payloads;
                scope.spawn(move || {
                    for i in (first..200).rev().chain(first..200) {
                        assert_eq!(&pack.payload(i as u64).unwrap()[..], &payloads[i][..]);
                    }
                });
            }
        }
    });
}

/// Runs of both versions among other entries.
fn with_runs(sections: &[(Tag, Vec<u8>)]) -> Vec<u8> {
    let long = run(200, 1).to_bytes(Version::V2).unwrap();
    let none = run(0, 2).to_bytes(Version::V2).unwrap();
    let old = Run { branches: None, ..run(65, 3) }.to_bytes(Version::V1).unwrap();
    let entries: [TestEntry<'_>; 6] = [
        (b"before", KIND_BYTES, Codec::Raw),
        (&long, KIND_V2, Codec::Zstd),
        (&none, KIND_V2, Codec::Raw),
        (b"between", 300, Codec::Raw),
        (&old, KIND_V1, Codec::Deflate),
        (b"behind", KIND_BYTES, Codec::Raw),
    ];
    assemble(&entries, sections)
}

#[test]
fn columns_of_runs_are_found_in_the_entries_or_in_sections() {
    let (_scratch, readers) = three_ways(&with_runs(&[]));
    for pack in &readers {
        let columns = pack.run_columns().unwrap();
        assert_eq!(columns.steps, [0, 200, 0, 0, 65, 0]);
        assert_eq!(columns.max_score, [0, 100, 200, 0, 300, 0]);
        assert_eq!(columns.highest_tile, [0, 2, 4, 0, 8, 0]);
        let engines: Vec<_> = (0..6).map(|i| columns.engine_of(i)).collect();
        assert_eq!(engines, [None, Some("expectimax"), Some("greedy"), None, None, None]);
        let checkpoints = pack.checkpoints().unwrap();
        assert_eq!(checkpoints.steps, columns.steps);
        assert_eq!((checkpoints.of(1).len(), checkpoints.of(4).len()), (4, 2));
    }
    let columns = readers[0].run_columns().unwrap();
    let checkpoints = readers[0].checkpoints().unwrap();
    let (runs, strings) = columns.build();
    let stored = [(Tag::RUNS, runs), (Tag::TEXT, strings), (Tag::CKPT, checkpoints.build())];
    let (pack, reads) = counted(with_runs(&stored));
    assert_eq!(pack.run_columns().unwrap(), columns);
    assert_eq!(pack.checkpoints().unwrap(), checkpoints);
    assert_eq!(count(&reads), 5, "two to open, one for each section");
    // What one section lacks the entries give, and the other section still counts.
    let (pack, _) = counted(with_runs(&stored[2..]));
    assert_eq!(pack.run_columns().unwrap(), columns);
    assert_eq!(pack.checkpoints().unwrap(), checkpoints);
    let (pack, _) = counted(with_runs(&stored[..1]));
    assert_eq!(kind_of(pack.run_columns()), "corrupt", "RUNS without TEXT");
}

#[test]
fn the_columns_of_damaged_runs_name_the_entry() {
    let entries: [TestEntry<'_>; 2] =
        [(b"no run", KIND_BYTES, Codec::Raw), (b"nor this", KIND_V2, Codec::Raw)];
    let (_scratch, readers) = three_ways(&assemble(&entries, &[]));
    for pack in readers {
        for error in [pack.run_columns().err(), pack.checkpoints().err()] {
            let error = error.unwrap();
            assert_eq!(error.kind(), "corrupt");
            assert!(error.to_string().contains("entry 1 at offset"), "{error}");
        }
    }
}

#[test]
fn runs_are_decoded_in_order() {
    let (_scratch, readers) = three_ways(&with_runs(&[]));
    for pack in readers {
        for threads in [1, 2] {
            let runs = pack.runs(&[4, 1, 3, 4], threads).unwrap();
            let steps: Vec<Option<u32>> =
                runs.iter().map(|run| run.as_ref().ok().map(|run| run.meta.steps)).collect();
            assert_eq!(steps, [Some(65), Some(200), None, Some(65)]);
            let error = runs[2].as_ref().unwrap_err();
            assert_eq!(error.kind(), "unsupported");
            assert!(error.to_string().contains("entry 3 at offset"), "{error}");
            assert!(error.to_string().contains("kind-300"), "{error}");
        }
    }
}

#[test]
fn sections_are_verified() {
    let (file, _) = small();
    let place = *far(&file, Verify::Never).unwrap().directory().find(Tag::NAME).unwrap();
    for at in place.range().step_by(7) {
        let mut damaged = file.clone();
        damaged[at as usize] ^= 0x80;
        // Sections are read once, so the options have no say.
        let error = far(&damaged, Verify::Never).unwrap().find("last").unwrap_err();
        assert_eq!(error.kind(), "corrupt");
        assert!(error.to_string().starts_with("`memory.a2pack`: section NAME at"), "{error}");
    }
    assert!(far(&file, Verify::First).unwrap().section(Tag::STEP).unwrap().is_none());
}

#[test]
fn the_stats_block_is_checked() {
    let block = [&5_u32.to_le_bytes()[..], b"stats"].concat();
    let build = |block: &[u8], section: Option<u32>| {
        let mut body = vec![0; 32];
        body.extend_from_slice(block);
        body.resize(body.len().next_multiple_of(8), 0);
        let mut flags = 0;
        if let Some(crc) = section {
            flags = HAS_SECTIONS;
            let bytes = crc.to_le_bytes();
            let place = SectionLocation { tag: Tag::STAT, offset: body.len() as u64, length: 4 };
            body.extend(SectionHeader::of(Tag::STAT, &bytes).to_bytes());
            body.extend(bytes);
            body.resize(body.len().next_multiple_of(8), 0);
            let directory = Directory::build(&[place], body.len() as u64);
            body.extend(SectionHeader::of(Tag::DIRS, &directory).to_bytes());
            body.extend(directory);
        }
        let footer = Footer { data_end: 28, stats_offset: 32, ..Footer::default() };
        far(&finish(body, &[], flags, footer), Verify::First).unwrap()
    };
    let good = crc32c(&block);
    assert_eq!(build(&block, None).stats_block().unwrap().unwrap(), b"stats");
    assert_eq!(build(&block, Some(good)).stats_block().unwrap().unwrap(), b"stats");
    assert_eq!(kind_of(build(&block, Some(good ^ 1)).stats_block()), "corrupt");
    let long = [&u32::MAX.to_le_bytes()[..], b"stats"].concat();
    assert_eq!(kind_of(build(&long, None).stats_block()), "corrupt");
    assert!(far(&assemble(&[], &[]), Verify::First).unwrap().stats_block().unwrap().is_none());
}
