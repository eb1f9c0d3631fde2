//! What is written is read back: by a reader that knows only the layout, and by the real one.

use std::fs;
use std::sync::Arc;

use super::*;
use crate::codec::{Dictionary, train_dictionary};
use crate::durable::Folder;
use crate::pack::layout::{HAS_DATA_CRC, HAS_SECTIONS, Header};
use crate::pack::stats::Summary;
use crate::pack::testing::{create, kind_of, naive, plain_run, small, step_rows, v2};
use crate::pack::{Options, PackReader, recover, unfinished};
use crate::runs::{StepRow, Version, project};

#[test]
fn every_alignment_is_kept() {
    let folder = Folder::new();
    let payloads: Vec<Vec<u8>> =
        [0, 1, 5000, 0, 17, 70_000, 0].map(|length| vec![length as u8 | 1; length]).into();
    for power in 0..=16 {
        let path = folder.path(&format!("{power}"));
        let align = 1 << power;
        let mut writer = create(&path, WriterOptions { align, ..small() });
        for (at, payload) in payloads.iter().enumerate() {
            assert_eq!(writer.append(payload, 0, None, None).unwrap(), at as u64);
        }
        let finished = writer.finish().unwrap();
        let pack = naive(&path);
        assert_eq!(pack.payloads, payloads);
        assert!(pack.entries.iter().all(|entry| entry.offset % u64::from(align) == 0));
        assert_eq!(pack.header, Header { flags: HAS_DATA_CRC | HAS_SECTIONS, count: 7 });
        assert_eq!(finished.file_bytes, fs::metadata(&path).unwrap().len());
        let data = pack.entries[6].offset - pack.entries[0].offset;
        assert_eq!(finished.padding_bytes, data - 75_018);
        assert_eq!(PackReader::open(&path, true, Options::default()).unwrap().len(), 7);
    }
    for align in [0, 3, 1 << 17] {
        let refused = PackWriter::create(&folder.path("x"), WriterOptions { align, ..small() });
        assert_eq!(kind_of(refused), "invalid");
    }
    assert_eq!(folder.names().len(), 17);
}

#[test]
fn a_pack_without_entries_is_a_pack() {
    let folder = Folder::new();
    let path = folder.path("empty");
    for capacity in [None, Some(0), Some(3)] {
        let options = WriterOptions { capacity, step_table: true, overwrite: true, ..small() };
        assert_eq!(create(&path, options).finish().unwrap().entries, 0);
        let pack = naive(&path);
        assert_eq!((pack.header.count, pack.summary.count), (0, 0));
        assert_eq!(pack.sections.len(), 2);
        assert!(PackReader::open(&path, false, Options::default()).unwrap().is_empty());
    }
    assert_eq!(folder.names(), ["empty"]);
}

#[test]
fn more_entries_than_there_is_room_for_move_the_payloads() {
    let folder = Folder::new();
    let payloads: Vec<Vec<u8>> = (0..40_u8).map(|i| vec![i; 10 * usize::from(i)]).collect();
    let wanted = {
        let mut writer =
            create(&folder.path("roomy"), WriterOptions { capacity: Some(40), ..small() });
        for payload in &payloads {
            writer.append(payload, 0, None, None).unwrap();
        }
        writer.finish().unwrap();
        naive(&folder.path("roomy"))
    };
    for capacity in [0, 1, 2, 39] {
        for align in [1, 64, 4096] {
            let path = folder.path("pack");
            let options =
                WriterOptions { capacity: Some(capacity), align, overwrite: true, ..small() };
            let mut writer = create(&path, options);
            for payload in &payloads {
                writer.append(payload, 0, None, None).unwrap();
            }
            writer.finish().unwrap();
            let pack = naive(&path);
            assert_eq!(pack.payloads, payloads);
            if align == 64 {
                assert_eq!(pack.entries, wanted.entries);
            }
        }
    }
    assert_eq!(folder.names(), ["pack", "roomy"]);
}

#[test]
fn codecs_kinds_names_and_runs_are_kept() {
    let folder = Folder::new();
    let path = folder.path("pack");
    let samples: Vec<Vec<u8>> = (0..200).map(|k| v2(20 + k, Some("expectimax"))).collect();
    let dictionary = Arc::new(Dictionary::new(train_dictionary(&samples, 4096).unwrap()).unwrap());
    let options = WriterOptions {
        codec: Codec::Zstd,
        dictionary: Some(Arc::clone(&dictionary)),
        step_table: true,
        ..small()
    };
    let mut writer = create(&path, options);
    assert_eq!(writer.kind_id("frame").unwrap(), 256);
    assert_eq!(writer.kind_id("bytes").unwrap(), 0);
    assert_eq!(kind_of(writer.kind_id("auto")), "invalid");
    let one = plain_run(130, None);
    let payloads = [
        (vec![7; 3000], 0, None, Some(Codec::Lz4)),
        (v2(200, Some("expectimax")), 2, Some("b"), None),
        (one.to_bytes(Version::V1).unwrap(), 1, Some("ä/a.bin"), Some(Codec::Deflate)),
        (b"frame".to_vec(), 256, Some("a"), None),
        (v2(0, None), 2, None, Some(Codec::Raw)),
        (v2(64, Some("ntuple")), 2, None, Some(Codec::Zstd)),
    ];
    for (payload, kind, name, codec) in &payloads {
        writer.append(payload, *kind, *name, *codec).unwrap();
    }
    writer.finish().unwrap();
    let pack = naive(&path);
    let wanted: Vec<&Vec<u8>> = payloads.iter().map(|(payload, ..)| payload).collect();
    assert_eq!(pack.payloads.iter().collect::<Vec<_>>(), wanted);
    let kinds: Vec<u16> = pack.entries.iter().map(|entry| entry.kind).collect();
    assert_eq!(kinds, [0, 2, 1, 256, 2, 2]);
    // What does not shrink is raw; the dictionary is zstd's alone.
    let flags: Vec<u16> = pack.entries.iter().map(|entry| entry.flags & !HAS_CRC).collect();
    assert_eq!(flags, [3, 2 | HAS_DICTIONARY, 1, 0, 0, 2 | HAS_DICTIONARY]);
    assert_eq!(pack.sections[b"DICT"], dictionary.bytes());
    assert_eq!(pack.summary, Summary::of([200, 130, 0, 64]));

    let reader = PackReader::open(&path, true, Options::default()).unwrap();
    assert_eq!(reader.find("ä/a.bin").unwrap(), Some(2));
    assert_eq!(reader.kind_name(3).unwrap(), "frame");
    let columns = reader.run_columns().unwrap();
    assert_eq!(columns.steps, [0, 200, 130, 0, 0, 64]);
    assert_eq!(columns.max_score, [0, 300, 230, 0, 100, 164]);
    assert_eq!((columns.engine_of(1), columns.engine_of(2)), (Some("expectimax"), None));
    let checkpoints = reader.checkpoints().unwrap();
    for (at, payload) in pack.payloads.iter().enumerate() {
        let found = outline_of(kinds[at], payload).unwrap();
        let offsets = found.map_or(Vec::new(), |outline| outline.checkpoints);
        assert_eq!(checkpoints.of(at), offsets);
    }
    let mut rows = Vec::new();
    for (at, steps) in [(1, 200), (2, 130), (4, 0), (5, 64)] {
        project(&plain_run(steps, None), at, &mut rows);
    }
    let rows: Vec<_> = rows.iter().map(StepRow::to_bytes).collect();
    assert!(step_rows(&pack.sections[b"STEP"]) == rows);
}

#[test]
fn without_checksums_only_entries_have_none() {
    let folder = Folder::new();
    let path = folder.path("pack");
    let mut writer = create(&path, WriterOptions { checksum: false, ..small() });
    writer.append(b"payload", 0, None, None).unwrap();
    writer.finish().unwrap();
    let pack = naive(&path);
    assert_eq!(pack.header.flags, HAS_SECTIONS);
    assert_eq!((pack.entries[0].flags, pack.entries[0].crc), (0, 0));
    assert_eq!(pack.payloads, [b"payload"]);
}

#[test]
fn a_batch_is_what_its_payloads_are_one_by_one() {
    let folder = Folder::new();
    let payloads: Vec<Vec<u8>> = (0..300).map(|k| v2(k, Some("engine"))).collect();
    let payloads: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
    let names: Vec<String> = (0..300).map(|k| format!("run {k}")).collect();
    let names: Vec<Option<&str>> = names.iter().map(|name| Some(name.as_str())).collect();
    let options = WriterOptions { codec: Codec::Zstd, ..small() };
    let mut one = create(&folder.path("one"), options.clone());
    for (payload, name) in payloads.iter().zip(&names) {
        one.append(payload, 2, *name, None).unwrap();
    }
    one.finish().unwrap();
    let mut all = create(&folder.path("all"), options);
    assert_eq!(all.extend(&payloads[..7], &[2; 7], &names[..7], None).unwrap(), 0..7);
    assert_eq!(all.extend(&[], &[], &[], None).unwrap(), 7..7);
    assert_eq!(all.extend(&payloads[7..], &[2; 293], &names[7..], None).unwrap(), 7..300);
    all.finish().unwrap();
    assert!(fs::read(folder.path("one")).unwrap() == fs::read(folder.path("all")).unwrap());
}

#[test]
fn what_is_refused_is_not_appended() {
    let folder = Folder::new();
    let path = folder.path("pack");
    let options = WriterOptions { codec: Codec::Lz4, max_payload_bytes: 5000, ..small() };
    let mut writer = create(&path, options);
    let run = v2(5, None);
    writer.append(b"x", 0, Some("taken"), None).unwrap();
    let cut = &run[..run.len() - 1];
    for (outcome, kind) in [
        (writer.append(cut, 2, None, None), "corrupt"),
        (writer.append(&run, 1, None, None), "corrupt"),
        (writer.append(&run, 3, None, None), "invalid"),
        (writer.append(&run, 256, None, None), "invalid"),
        (writer.append(&run, 2, Some("taken"), None), "name-taken"),
        (writer.append(&run, 2, Some(""), None), "invalid"),
        (writer.append(&run, 2, Some(&"n".repeat(70_000)), None), "too-large"),
        (writer.append(&[0; 5001], 0, None, None), "too-large"),
    ] {
        assert_eq!(kind_of(outcome), kind);
    }
    let refused = writer.extend(&[&run, cut], &[2, 2], &[Some("p"), None], None);
    let text = refused.unwrap_err().to_string();
    assert!(text.starts_with("payload 1 of the batch: "), "{text}");
    let twice = writer.extend(&[&run, &run], &[2, 2], &[Some("q"), Some("q")], None);
    assert_eq!(kind_of(twice), "name-taken");
    assert_eq!(kind_of(writer.extend(&[&run], &[2, 2], &[None], None)), "invalid");
    // Raw payloads are read without being decoded, so they may be longer.
    writer.append(&[0; 5001], 0, Some("p"), Some(Codec::Raw)).unwrap();
    assert_eq!(writer.len(), 2);
    writer.finish().unwrap();
    assert_eq!(naive(&path).payloads.len(), 2);
}

#[test]
fn an_existing_pack_is_replaced_only_when_told() {
    let folder = Folder::new();
    let path = folder.path("pack");
    fs::write(&path, "old").unwrap();
    assert_eq!(kind_of(PackWriter::create(&path, small())), "already-exists");
    assert_eq!(kind_of(PackWriter::create(&folder.path(""), small())), "invalid");
    assert_eq!(kind_of(PackWriter::create(&folder.path("no/pack"), small())), "not-found");
    assert_eq!(folder.names(), ["pack"]);
    let mut writer = create(&path, WriterOptions { overwrite: true, ..small() });
    writer.append(b"young", 0, None, None).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"old");
    writer.finish().unwrap();
    assert_eq!(naive(&path).payloads, [b"young"]);

    // One that appears meanwhile stays, and nothing is lost.
    let late = folder.path("late");
    let mut writer = create(&late, small());
    writer.append(b"mine", 0, None, None).unwrap();
    fs::write(&late, "theirs").unwrap();
    assert_eq!(kind_of(writer.finish()), "already-exists");
    assert_eq!(kind_of(writer.append(b"more", 0, None, None)), "closed");
    assert_eq!(fs::read(&late).unwrap(), b"theirs");
    let left = unfinished(&late).unwrap();
    assert_eq!(kind_of(recover(&left[0], &late, false)), "already-exists");
    recover(&left[0], &late, true).unwrap();
    assert_eq!(naive(&late).payloads, [b"mine"]);
    assert_eq!(folder.names(), ["late", "pack"]);
}

#[test]
fn a_closed_writer_says_so() {
    let folder = Folder::new();
    let path = folder.path("pack");
    let mut writer = create(&path, small());
    writer.append(b"payload", 0, None, None).unwrap();
    writer.finish().unwrap();
    for outcome in [writer.append(b"", 0, None, None).map(|_| ()), writer.flush(), writer.abort()] {
        assert_eq!(kind_of(outcome), "closed");
    }
    assert_eq!(kind_of(writer.finish()), "closed");
    drop(writer);
    let mut writer = create(&path, WriterOptions { overwrite: true, ..small() });
    writer.append(&[1; 100], 0, None, None).unwrap();
    writer.flush().unwrap();
    writer.abort().unwrap();
    writer.abort().unwrap();
    assert_eq!(kind_of(writer.sync()), "closed");
    assert_eq!(kind_of(writer.finish()), "closed");
    assert_eq!(folder.names(), ["pack"]);
    assert_eq!(naive(&path).payloads, [b"payload"]);
}
