//! Whatever a writer leaves comes back as a prefix of what it was given.

use super::*;
use crate::codec::Codec;
use crate::crc::crc32c;
use crate::durable::Folder;
use crate::pack::layout::Entry;
use crate::pack::testing::{create, kind_of, naive, small, step_rows, v2};
use crate::pack::unfinished::entry_record;
use crate::pack::{Options, PackReader};
use crate::runs::Outline;

#[test]
fn an_unfinished_pack_is_kept_and_recovered() {
    let folder = Folder::new();
    let path = folder.path("pack");
    let mut writer = create(&path, WriterOptions { step_table: true, ..small() });
    let kind = writer.kind_id("frame").unwrap();
    writer.append(&v2(70, Some("engine")), 2, Some("run"), Some(Codec::Zstd)).unwrap();
    writer.append(b"frame", kind, Some("frame"), None).unwrap();
    writer.sync().unwrap();
    let left = unfinished(&path).unwrap();
    assert_eq!(left, [writer.path.clone()]);
    assert_eq!(target_of(&left[0]).as_deref(), Some(path.as_path()));
    let busy = recover(&left[0], &path, false).unwrap_err();
    assert!(busy.to_string().ends_with("is being written by another process"), "{busy}");
    assert_eq!(busy.kind(), "closed");
    drop(writer);
    let other = folder.path("other");
    let recovered = recover(&left[0], &other, false).unwrap();
    assert_eq!((recovered.entries, recovered.lost, recovered.reason), (2, 0, None));
    assert_eq!(folder.names(), ["other"]);
    let pack = naive(&other);
    assert_eq!(pack.payloads, [v2(70, Some("engine")), b"frame".to_vec()]);
    assert_eq!(step_rows(&pack.sections[b"STEP"]).len(), 70);
    let reader = PackReader::open(&other, true, Options::default()).unwrap();
    assert_eq!(
        (reader.find("run").unwrap(), reader.kind_name(1).unwrap()),
        (Some(0), "frame".into())
    );
    assert_eq!(kind_of(recover(&left[0], &other, true)), "not-found");
}

#[test]
fn a_writer_that_was_left_can_still_be_aborted() {
    let folder = Folder::new();
    let path = folder.path("pack");
    let mut writer = create(&path, small());
    writer.append(b"payload", 0, None, None).unwrap();
    writer.leave().unwrap();
    assert_eq!(kind_of(writer.append(b"payload", 0, None, None)), "closed");
    assert_eq!(folder.names().len(), 2);
    writer.abort().unwrap();
    assert!(folder.names().is_empty());
}

/// The bytes of an unfinished pack and of its journal, and its payloads.
fn left_behind(folder: &Folder, checksum: bool) -> (Vec<u8>, Vec<u8>, Vec<Vec<u8>>) {
    let path = folder.path("left");
    let options = WriterOptions { align: 16, capacity: Some(2), checksum, ..small() };
    let mut writer = create(&path, options);
    let payloads =
        [b"first".to_vec(), Vec::new(), v2(3, None), vec![9; 40], b"last".to_vec()].to_vec();
    for (at, payload) in payloads.iter().enumerate() {
        let name = format!("entry {at}");
        writer.append(payload, if at == 2 { 2 } else { 0 }, Some(&name), None).unwrap();
    }
    writer.leave().unwrap();
    let data = fs::read(&writer.path).unwrap();
    let journal = fs::read(journal_of(&writer.path)).unwrap();
    writer.abort().unwrap();
    (data, journal, payloads)
}

/// Recovers from these bytes; how many entries of `payloads` came back.
fn recovered(folder: &Folder, data: &[u8], journal: &[u8], payloads: &[Vec<u8>]) -> Result<usize> {
    let (path, output) = (folder.path("pack.unfinished-0123abcd"), folder.path("pack"));
    fs::write(&path, data).unwrap();
    fs::write(journal_of(&path), journal).unwrap();
    let found = recover(&path, &output, true)?;
    let pack = naive(&output);
    let count = pack.payloads.len();
    assert_eq!(pack.payloads, payloads[..count]);
    assert_eq!(count as u64, found.entries);
    assert_eq!(found.lost > 0 || found.rest.is_some(), found.reason.is_some());
    // Every byte is in the pack, or still there.
    let used: usize =
        payloads[..count].iter().rev().find_map(|last| end_of(data, last)).unwrap_or(96);
    let unused = data.get(used..).unwrap_or_default();
    match found.rest {
        None => {
            assert!(unused.iter().all(|&byte| byte == 0));
            assert_eq!(folder.names(), ["pack"]);
        }
        Some(rest) => {
            assert_eq!(rest, rest_of(&path));
            assert_eq!(fs::read(&rest).unwrap().get(used..).unwrap_or_default(), unused);
            assert_eq!(fs::read(journal_of(&rest)).unwrap(), journal);
            fs::remove_file(journal_of(&rest)).unwrap();
            fs::remove_file(rest).unwrap();
            assert_eq!(folder.names(), ["pack"]);
        }
    }
    Ok(count)
}

/// The offset after a payload that is not empty.
fn end_of(data: &[u8], payload: &[u8]) -> Option<usize> {
    if payload.is_empty() {
        return None;
    }
    data.windows(payload.len()).position(|part| part == payload).map(|at| at + payload.len())
}

#[test]
fn bytes_without_a_journal_record_are_kept() {
    let folder = Folder::new();
    let path = folder.path("pack");
    let mut writer = create(&path, small());
    writer.append(b"first", 0, None, None).unwrap();
    writer.flush().unwrap();
    let journal = fs::read(journal_of(&writer.path)).unwrap();
    writer.append(b"second", 0, None, None).unwrap();
    writer.leave().unwrap();
    fs::write(journal_of(&writer.path), &journal).unwrap();
    let data = fs::read(&writer.path).unwrap();

    let first = recover(&writer.path, &path, false).unwrap();
    assert_eq!((first.entries, first.lost), (1, 0));
    let reason = first.reason.unwrap();
    assert!(reason.ends_with("have no journal record"), "{reason}");
    let rest = first.rest.unwrap();
    let kept = fs::read(&rest).unwrap();
    assert_eq!(kept.len(), data.len());
    assert!(kept.ends_with(b"second") && !kept.starts_with(b"first"));
    assert_eq!(naive(&path).payloads, [b"first"]);
}

#[test]
fn a_recovery_that_was_interrupted_keeps_what_the_first_one_kept() {
    let folder = Folder::new();
    let (data, journal, payloads) = left_behind(&folder, true);
    let path = folder.path("pack.unfinished-0123abcd");
    fs::write(&path, &data).unwrap();
    fs::write(journal_of(&path), &journal[..journal.len() - 90]).unwrap();
    let file = durable::open_rw(&path).unwrap();
    let mut found = find_complete(&file, &path, &journal_of(&path)).unwrap();
    assert!(found.extent.count < payloads.len() as u64);
    let rest = keep_rest(&file, &path, &journal_of(&path), &mut found).unwrap().unwrap();
    let kept = fs::read(&rest).unwrap();
    // The first recovery ended while it wrote sections after the entries.
    file.write_all_at(b"sections", found.extent.end).unwrap();
    drop(file);
    let again = recover(&path, &folder.path("pack"), true).unwrap();
    assert_eq!(again.rest.as_ref(), Some(&rest));
    assert_eq!(fs::read(rest).unwrap(), kept);
}

#[test]
fn index_and_sections_of_a_writer_that_died_while_sealing_are_not_kept() {
    let folder = Folder::new();
    let path = folder.path("pack");
    let mut writer = create(&path, small());
    writer.append(b"first", 0, None, None).unwrap();
    fs::create_dir(&path).unwrap(); // the pack cannot be renamed
    assert!(writer.finish().is_err());
    fs::remove_dir(&path).unwrap();
    let again = recover(&writer.path, &path, false).unwrap();
    assert_eq!((again.entries, again.rest, again.reason), (1, None, None));
    assert_eq!(folder.names(), ["pack"]);
}

#[test]
fn every_cut_of_an_unfinished_pack_gives_a_prefix() {
    for checksum in [true, false] {
        let folder = Folder::new();
        let (data, journal, payloads) = left_behind(&folder, checksum);
        let mut most = 0;
        for cut in 0..=journal.len() {
            let count = recovered(&folder, &data, &journal[..cut], &payloads).unwrap();
            assert!(count >= most);
            most = count;
        }
        assert_eq!(most, payloads.len());
        most = 0;
        for cut in 0..=data.len() {
            let count = recovered(&folder, &data[..cut], &journal, &payloads).unwrap();
            assert!(count >= most);
            most = count;
            // The file may have grown before its bytes came.
            let mut holed = data[..cut].to_vec();
            holed.resize(data.len(), 0);
            recovered(&folder, &holed, &journal, &payloads).unwrap();
        }
        assert_eq!(most, payloads.len());
    }
}

#[test]
fn every_damaged_byte_of_an_unfinished_pack_ends_the_prefix() {
    let folder = Folder::new();
    let (data, journal, payloads) = left_behind(&folder, true);
    for at in 0..data.len() {
        let mut damaged = data.clone();
        damaged[at] ^= 0x10;
        let count = recovered(&folder, &damaged, &journal, &payloads).unwrap();
        // The place of the index is written anew; everything else counts, padding too.
        assert_eq!(count == payloads.len(), at < 96, "{at}");
    }
    for at in 0..journal.len() {
        let mut damaged = journal.clone();
        damaged[at] ^= 0x10;
        match recovered(&folder, &data, &damaged, &payloads) {
            Ok(count) => assert!(count < payloads.len()),
            Err(error) => assert!(at < 24 && error.kind() == "corrupt", "{at}: {error}"),
        }
    }
}

#[test]
fn entries_without_their_journal_are_not_thrown_away() {
    let folder = Folder::new();
    let (path, output) = (folder.path("pack.unfinished-0123abcd"), folder.path("pack"));
    fs::write(&path, "entries").unwrap();
    assert_eq!(kind_of(recover(&path, &output, false)), "corrupt");
    assert_eq!(fs::read(&path).unwrap(), b"entries");
    // A writer that died before its journal was there has written nothing.
    fs::write(&path, "").unwrap();
    assert_eq!(recover(&path, &output, false).unwrap().entries, 0);
    assert_eq!(folder.names(), ["pack"]);
}

#[test]
fn a_file_with_two_names_is_not_written_to() {
    let folder = Folder::new();
    let path = folder.path("pack");
    let mut writer = create(&path, small());
    writer.append(b"payload", 0, None, None).unwrap();
    writer.leave().unwrap();
    // As a writer leaves it that dies between giving the name and taking the old one.
    fs::hard_link(&writer.path, &path).unwrap();
    let before = fs::read(&path).unwrap();
    recover(&writer.path, &folder.path("again"), false).unwrap();
    assert_eq!(fs::read(&path).unwrap(), before);
    assert_eq!(naive(&folder.path("again")).payloads, [b"payload"]);
    assert_eq!(folder.names(), ["again", "pack"]);
}

#[test]
fn only_unfinished_packs_of_a_name_are_listed() {
    let folder = Folder::new();
    for name in [
        "pack.unfinished-0123abcd",
        "pack.unfinished-0123abcd.journal",
        "pack.unfinished-0123abcd.moved",
        "pack.unfinished-0123abc",
        "pack.unfinished-0123ABCD",
        "other.unfinished-0123abcd",
        "pack.unfinished-11111111.unfinished-22222222",
        "pack",
    ] {
        fs::write(folder.path(name), "").unwrap();
    }
    assert_eq!(
        unfinished(&folder.path("pack")).unwrap(),
        [folder.path("pack.unfinished-0123abcd")]
    );
    assert_eq!(kind_of(unfinished(&folder.path("no/pack"))), "not-found");
}

#[test]
fn what_no_writer_writes_is_not_believed() {
    let folder = Folder::new();
    let path = folder.path("pack.unfinished-0123abcd");
    let output = folder.path("pack");
    let run = v2(70, Some("engine"));
    let outline = outline_of(2, &run).unwrap().unwrap();
    let crc = crc32c(&run);
    let good =
        Entry { offset: 64, length: run.len() as u32, kind: 2, flags: HAS_CRC, crc, logical: 0 };
    let opening = Opening { align: 64, start: 64, ..default_opening() };
    let recovered = |opening: &Opening, entry: &Entry, outline: Option<&Outline>| {
        fs::write(&path, [vec![0; 64], run.clone()].concat()).unwrap();
        let mut journal = Journal::create(&journal_of(&path)).unwrap();
        journal.append(&opening.to_record()).unwrap();
        let mut record = Vec::new();
        entry_record(entry, crc, None, outline, &mut record);
        journal.append(&record).unwrap();
        journal.flush().unwrap();
        let found = recover(&path, &output, true);
        let _ = fs::remove_file(journal_of(&path));
        found.map(|found| found.entries)
    };
    assert_eq!(recovered(&opening, &good, Some(&outline)).unwrap(), 1);
    let mut longer = outline.clone();
    longer.meta.max_score += 1;
    let mut elsewhere = outline.clone();
    elsewhere.checkpoints[1] += 1;
    for (entry, outline) in [
        (good, None),
        (good, Some(&longer)),
        (good, Some(&elsewhere)),
        (Entry { kind: 0, ..good }, Some(&outline)),
        (Entry { kind: 256, ..good }, None),
        (Entry { crc: crc ^ 1, ..good }, Some(&outline)),
        (Entry { flags: 0, ..good }, Some(&outline)),
        (Entry { flags: HAS_CRC | 1, logical: 9, ..good }, Some(&outline)),
        (Entry { flags: HAS_CRC | HAS_DICTIONARY | 2, logical: 9, ..good }, Some(&outline)),
        (Entry { flags: HAS_CRC | 1 << 9, ..good }, Some(&outline)),
        (Entry { logical: 1, ..good }, Some(&outline)),
        (Entry { offset: 128, ..good }, Some(&outline)),
        (Entry { length: u32::MAX, ..good }, Some(&outline)),
    ] {
        assert_eq!(recovered(&opening, &entry, outline).unwrap(), 0, "{entry:?}");
        naive(&output);
    }
    for start in [0, 32, 65, 1 << 40, u64::MAX - 63] {
        let opening = Opening { start, ..opening.clone() };
        assert_eq!(kind_of(recovered(&opening, &good, Some(&outline))), "corrupt", "{start}");
    }
}

#[test]
fn room_that_was_kept_for_nothing_is_given_back() {
    let folder = Folder::new();
    let path = folder.path("pack");
    let options = WriterOptions { capacity: Some(1 << 31), ..small() };
    for close in [true, false] {
        let mut writer = create(&path, options.clone());
        for _ in 0..3 {
            writer.append(b"", 0, None, None).unwrap();
        }
        if close {
            writer.finish().unwrap();
        } else {
            writer.leave().unwrap();
            assert_eq!(recover(&writer.path, &path, true).unwrap().entries, 3);
        }
        assert_eq!(naive(&path).payloads, [[0; 0]; 3]);
        assert!(fs::metadata(&path).unwrap().len() < 1000);
        fs::remove_file(&path).unwrap();
    }
}
