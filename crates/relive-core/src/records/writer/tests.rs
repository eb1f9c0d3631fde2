//! A writer against a list of records, and against itself after it was cut off.

use std::fs;
use std::path::Path;

use super::*;
use crate::codec::Codec;
use crate::durable::Folder;
use crate::records::open::ReadOptions;
use crate::records::{Kind, Records};

type Record = Vec<Option<Vec<u8>>>;

fn spec(name: &str, kind: Kind, ragged: u8, codec: Codec, bytes: u64) -> FieldSpec {
    let (name, dtype) = (name.into(), "|u1".into());
    FieldSpec { id: 0, name, dtype, shape: vec![], kind, ragged, codec, level: None, bytes }
}

fn fields() -> Vec<FieldSpec> {
    vec![
        spec("dense", Kind::Fixed, 0, Codec::Raw, 700),
        spec("packed", Kind::Fixed, 0, Codec::Zstd, 300),
        spec("text", Kind::Str, 0, Codec::Raw, 1),
        spec("rows", Kind::Ragged, 1, Codec::Lz4, 4),
    ]
}

/// Small chunks, so that there are many.
fn small() -> CreateOptions {
    CreateOptions { chunk_records: Some(16), chunk_bytes: 1 << 20 }
}

fn create(path: &Path) -> Writer {
    Writer::create(path, fields(), &small(), WriterOptions::default()).unwrap()
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 33) % limit
    }

    fn record(&mut self) -> Record {
        let mut value = |field: &FieldSpec| {
            let length = match field.kind {
                Kind::Fixed => field.bytes,
                _ => self.below(40) * field.bytes,
            };
            let seed = self.below(26) as u8 + b'a';
            (self.below(6) > 0).then(|| vec![seed; length as usize])
        };
        fields().iter().map(&mut value).collect()
    }
}

fn values(record: &Record) -> Vec<Value<'_>> {
    record.iter().map(|value| value.as_deref().map_or(Value::Missing, Value::plain)).collect()
}

fn all(snapshot: &Snapshot) -> Vec<Record> {
    let columns = snapshot.state().fields.len();
    let value = |row, column| snapshot.value(column, row).unwrap();
    (0..snapshot.len()).map(|row| (0..columns).map(|column| value(row, column)).collect()).collect()
}

fn read(path: &Path) -> Vec<Record> {
    all(&Records::open(path, ReadOptions::default(), None).unwrap().snapshot())
}

fn one_call(writer: &mut Writer, list: &mut Vec<Record>, random: &mut Random) {
    match random.below(12) {
        0..4 => {
            let record = random.record();
            assert_eq!(writer.append(&values(&record)).unwrap(), list.len() as u64);
            list.push(record);
        }
        4..6 => {
            let records: Vec<Record> = (0..random.below(40)).map(|_| random.record()).collect();
            let rows: Vec<Vec<Value<'_>>> = records.iter().map(values).collect();
            let columns: Vec<Vec<Value<'_>>> =
                (0..4).map(|column| rows.iter().map(|row| row[column]).collect()).collect();
            let columns: Vec<Column<'_>> = columns.iter().map(|c| Column::Rows(c)).collect();
            writer.extend(rows.len() as u64, &columns).unwrap();
            list.extend(records);
        }
        6..8 if !list.is_empty() => {
            let row = random.below(list.len() as u64);
            let (record, column) = (random.record(), random.below(4) as usize);
            writer.modify(row, &[(column, values(&record)[column])]).unwrap();
            list[row as usize][column] = record[column].clone();
        }
        8..10 if !list.is_empty() => {
            let mut rows: Vec<u64> =
                (0..random.below(4)).map(|_| random.below(list.len() as u64)).collect();
            writer.delete(&rows).unwrap();
            rows.sort_unstable_by(|a, b| b.cmp(a));
            rows.dedup();
            for row in rows {
                list.swap_remove(row as usize);
            }
        }
        10 => writer.flush().unwrap(),
        _ => writer.checkpoint().unwrap(),
    }
}

#[test]
fn it_is_a_list_that_deletes_by_moving_its_last() {
    let folder = Folder::new();
    let path = folder.path("store");
    let (mut writer, mut list, mut random) = (create(&path), Vec::new(), Random(1));
    for round in 0..400 {
        one_call(&mut writer, &mut list, &mut random);
        if round % 7 == 0 {
            assert_eq!(writer.len(), list.len() as u64);
            assert_eq!(all(&writer.snapshot().unwrap()), list, "round {round}");
        }
        if round % 50 == 49 {
            writer.rebalance(round % 100 == 99, &mut |_, _| Ok(())).unwrap();
        }
        if round % 30 == 29 {
            writer.close().unwrap();
            assert_eq!(read(&path), list, "round {round}");
            writer = Writer::open(&path, WriterOptions::default()).unwrap();
        }
    }
}

#[test]
fn whoever_comes_after_a_dead_writer_finds_what_was_flushed() {
    let folder = Folder::new();
    let path = folder.path("store");
    let (mut writer, mut list, mut random) = (create(&path), Vec::new(), Random(5));
    let mut flushed = Vec::new();
    for round in 0..60 {
        for _ in 0..random.below(12) {
            one_call(&mut writer, &mut list, &mut random);
        }
        if random.below(3) > 0 {
            writer.flush().unwrap();
            flushed.clone_from(&list);
        }
        let is_flushed = flushed == list;
        // It is dropped without a word, as if it had been killed.
        drop(writer);
        let found = read(&path);
        if is_flushed {
            assert_eq!(found, list, "round {round}");
        }
        writer = Writer::open(&path, WriterOptions::default()).unwrap();
        assert_eq!(all(&writer.snapshot().unwrap()), found, "round {round}");
        list.clone_from(&found);
        flushed = found;
    }
}

#[test]
fn values_that_do_not_fit_are_refused_and_nothing_is_done() {
    let folder = Folder::new();
    let mut writer = create(&folder.path("store"));
    let good = Random(3).record();
    writer.append(&values(&good)).unwrap();
    let short = vec![1_u8; 699];
    let bad: [[Value<'_>; 4]; 4] = [
        [Value::plain(&short), Value::Missing, Value::Missing, Value::Missing],
        [Value::Missing, Value::plain(&short), Value::Missing, Value::Missing],
        [Value::Missing, Value::Missing, Value::plain(&[0xFF]), Value::Missing],
        [Value::Missing, Value::Missing, Value::Missing, Value::plain(b"odd")],
    ];
    for values in &bad {
        assert_eq!(writer.append(values).unwrap_err().kind(), "invalid");
        let columns: Vec<Column<'_>> =
            values.iter().map(|v| Column::Rows(std::slice::from_ref(v))).collect();
        assert_eq!(writer.extend(1, &columns).unwrap_err().kind(), "invalid");
    }
    assert_eq!(writer.append(&bad[0][..3]).unwrap_err().kind(), "invalid");
    assert_eq!(writer.modify(1, &[]).unwrap_err().kind(), "out-of-range");
    assert_eq!(writer.modify(0, &[(9, Value::Missing)]).unwrap_err().kind(), "out-of-range");
    assert_eq!(writer.delete(&[0, 1]).unwrap_err().kind(), "out-of-range");
    assert_eq!(all(&writer.snapshot().unwrap()), [good]);
    writer.close().unwrap();
    assert_eq!(writer.append(&bad[0]).unwrap_err().kind(), "closed");
}

#[test]
fn one_writer_at_a_time() {
    let folder = Folder::new();
    let path = folder.path("store");
    let mut writer = create(&path);
    let second = Writer::open(&path, WriterOptions::default()).err().unwrap();
    assert_eq!(second.kind(), "locked");
    assert!(second.to_string().contains(&std::process::id().to_string()), "{second}");
    let again = Writer::create(&path, fields(), &small(), WriterOptions::default()).err().unwrap();
    assert_eq!(again.kind(), "already-exists");
    // A rebalance has the lock too, and does not give it back.
    writer.append(&values(&Random(1).record())).unwrap();
    writer.rebalance(false, &mut |_, _| Ok(())).unwrap();
    assert!(Writer::open(&path, WriterOptions::default()).is_err());
    writer.close().unwrap();
    Writer::open(&path, WriterOptions::default()).unwrap().close().unwrap();
    let none = Writer::open(&folder.path("none"), WriterOptions::default()).err().unwrap();
    assert_eq!(none.kind(), "not-found");
}

#[test]
fn an_abort_goes_back_to_the_last_flush() {
    let folder = Folder::new();
    let path = folder.path("store");
    let mut random = Random(9);
    let mut writer = create(&path);
    writer.append(&values(&random.record())).unwrap();
    writer.abort().unwrap();
    assert!(!path.exists());
    let (kept, dropped) = (random.record(), random.record());
    let mut writer = create(&path);
    writer.append(&values(&kept)).unwrap();
    writer.flush().unwrap();
    for _ in 0..50 {
        writer.append(&values(&dropped)).unwrap();
    }
    let _ = writer.snapshot().unwrap();
    writer.abort().unwrap();
    assert_eq!(read(&path), std::slice::from_ref(&kept));
    let mut writer = Writer::open(&path, WriterOptions::default()).unwrap();
    writer.append(&values(&dropped)).unwrap();
    writer.close().unwrap();
    assert_eq!(read(&path), [kept, dropped]);
}

#[test]
fn a_rebalance_goes_on_where_it_was_interrupted() {
    let folder = Folder::new();
    let path = folder.path("store");
    let mut writer = Writer::create(
        &path,
        vec![
            spec("dense", Kind::Fixed, 0, Codec::Raw, 4096),
            spec("x", Kind::Bytes, 0, Codec::Zstd, 1),
        ],
        &CreateOptions::default(),
        WriterOptions::default(),
    )
    .unwrap();
    let rows = 9000_u64;
    let dense: Vec<u8> = (0..rows).flat_map(|row| vec![row as u8; 4096]).collect();
    let texts: Vec<String> = (0..rows).map(|row| format!("{row} ").repeat(20)).collect();
    let texts: Vec<Value<'_>> = texts.iter().map(|text| Value::plain(text.as_bytes())).collect();
    writer.extend(rows, &[Column::Fixed(&dense), Column::Rows(&texts)]).unwrap();
    writer.delete(&(0..3000).collect::<Vec<_>>()).unwrap();
    let wanted = all(&writer.snapshot().unwrap());
    let mut calls = 0;
    let stop = writer.rebalance(false, &mut |_, _| {
        calls += 1;
        if calls == 2 { Err(Error::Closed("stop".into())) } else { Ok(()) }
    });
    assert_eq!(stop.unwrap_err().kind(), "closed");
    assert_eq!(all(&writer.snapshot().unwrap()), wanted);
    assert_eq!(read(&path), wanted);
    drop(writer);
    let old = Records::open(&path, ReadOptions::default(), None).unwrap();
    let mut writer = Writer::open(&path, WriterOptions::default()).unwrap();
    let mut first = None;
    writer
        .rebalance(false, &mut |done, of| {
            assert_eq!(of, 6000);
            first = first.or(Some(done));
            Ok(())
        })
        .unwrap();
    assert!(first.unwrap() > 0, "it began again");
    assert_eq!(all(&writer.snapshot().unwrap()), wanted);
    writer.close().unwrap();
    assert_eq!(read(&path), wanted);
    // Whoever had it open still reads what was there.
    assert_eq!(all(&old.snapshot()), wanted);
    assert!(old.refresh().unwrap());
    assert_eq!(all(&old.snapshot()), wanted);
    assert!(!path.join("rebalance.json").exists());
    let live = fs::read_dir(path.join("chunk")).unwrap().count();
    assert!(live <= 4, "{live} files");
}

#[test]
fn fields_come_and_go() {
    let folder = Folder::new();
    let path = folder.path("store");
    let mut writer = create(&path);
    let mut list: Vec<Record> = (0..20).map(|k| Random(k).record()).collect();
    for record in &list {
        writer.append(&values(record)).unwrap();
    }
    let more = vec![7; 20 * 3];
    let dense = || spec("more", Kind::Fixed, 0, Codec::Raw, 3);
    let wrong = writer.add_field(dense(), Some(&Column::Fixed(&more[1..])));
    assert_eq!(wrong.unwrap_err().kind(), "invalid");
    writer.add_field(dense(), Some(&Column::Fixed(&more))).unwrap();
    assert_eq!(writer.add_field(dense(), None).unwrap_err().kind(), "invalid");
    writer.add_field(spec("note", Kind::Bytes, 0, Codec::Zstd, 1), None).unwrap();
    for record in &mut list {
        record.extend([Some(vec![7; 3]), None]);
    }
    assert_eq!(all(&writer.snapshot().unwrap()), list);
    assert_eq!(read(&path), list);
    writer.drop_field("packed").unwrap();
    writer.drop_field("dense").unwrap();
    for record in &mut list {
        record.drain(..2);
    }
    assert_eq!(writer.drop_field("dense").unwrap_err().kind(), "invalid");
    let record = [Value::plain(b"x"), Value::Missing, Value::plain(b"abc"), Value::plain(b"")];
    writer.append(&record).unwrap();
    list.push(vec![Some(b"x".to_vec()), None, Some(b"abc".to_vec()), Some(vec![])]);
    assert_eq!(all(&writer.snapshot().unwrap()), list);
    writer.close().unwrap();
    assert_eq!(read(&path), list);
}

/// Texts for so many records, and a store of them.
fn texts(path: &Path, rows: u64, options: &WriterOptions) -> Writer {
    let field = spec("x", Kind::Str, 0, Codec::Raw, 1);
    let create = CreateOptions::default();
    let mut writer = Writer::create(path, vec![field], &create, options.clone()).unwrap();
    let texts: Vec<String> = (0..rows).map(|row| row.to_string()).collect();
    let values: Vec<Value<'_>> = texts.iter().map(|text| Value::plain(text.as_bytes())).collect();
    writer.extend(rows, &[Column::Rows(&values)]).unwrap();
    writer
}

#[test]
fn a_copy_with_a_long_journal_does_not_take_the_place_of_the_store() {
    let folder = Folder::new();
    let path = folder.path("store");
    // Any group makes a journal that is folded.
    let options = WriterOptions { large_journal: 100, ..WriterOptions::default() };
    let mut writer = texts(&path, 10_000, &options);
    writer.sync().unwrap();
    assert!(writer.generation() > 0);
    let wanted = all(&writer.snapshot().unwrap());
    for stop in [3, 2, u64::MAX] {
        let mut calls = 0;
        let outcome = writer.rebalance(false, &mut |_, _| {
            calls += 1;
            if calls == stop { Err(Error::Closed("stop".into())) } else { Ok(()) }
        });
        assert_eq!(outcome.is_ok(), stop == u64::MAX);
        assert_eq!(read(&path), wanted, "stopped at {stop}");
    }
    writer.close().unwrap();
    assert_eq!(read(&path), wanted);
}

#[test]
fn a_store_that_was_moved_is_not_written_where_it_was() {
    let folder = Folder::new();
    let (path, moved) = (folder.path("store"), folder.path("moved"));
    let mut first = texts(&path, 3, &WriterOptions::default());
    first.sync().unwrap();
    fs::rename(&path, &moved).unwrap();
    let mut second = create(&path);
    second.append(&values(&Random(1).record())).unwrap();
    let wanted = all(&second.snapshot().unwrap());
    first.append(&[Value::plain(b"lost")]).unwrap();
    assert_eq!(first.flush().unwrap_err().kind(), "closed");
    assert!(first.close().is_err());
    second.close().unwrap();
    assert_eq!((read(&path), read(&moved).len()), (wanted, 3));
    // Nor is what is there now removed by one who never flushed.
    let gone = folder.path("gone");
    let mut aborted = texts(&gone, 3, &WriterOptions::default());
    fs::remove_dir_all(&gone).unwrap();
    texts(&gone, 5, &WriterOptions::default()).close().unwrap();
    aborted.abort().unwrap();
    assert_eq!(read(&gone).len(), 5);
}

#[test]
fn an_abort_leaves_what_others_look_at() {
    let folder = Folder::new();
    let path = folder.path("store");
    let mut writer = create(&path);
    let record: Record = fields().iter().map(|f| Some(vec![b'a'; f.bytes as usize])).collect();
    for _ in 0..100 {
        writer.append(&values(&record)).unwrap();
    }
    let snapshot = writer.snapshot().unwrap();
    let view = snapshot.view(0, 99).unwrap().unwrap();
    writer.abort().unwrap();
    assert!(!path.exists());
    assert_eq!(view.bytes(), vec![b'a'; 700]);
    // A directory that was there before stays.
    fs::create_dir(&path).unwrap();
    create(&path).abort().unwrap();
    assert!(path.exists());
}

#[test]
fn a_rebalance_that_recompresses_does_not_go_on_with_one_that_does_not() {
    let folder = Folder::new();
    let path = folder.path("store");
    let mut writer = texts(&path, 10_000, &WriterOptions::default());
    let mut calls = 0;
    let stop = writer.rebalance(false, &mut |_, _| {
        calls += 1;
        if calls == 2 { Err(Error::Closed("stop".into())) } else { Ok(()) }
    });
    assert!(stop.is_err());
    let mut first = None;
    let mut note = |done: u64, _: u64| {
        first = first.or(Some(done));
        Ok(())
    };
    writer.rebalance(true, &mut note).unwrap();
    assert_eq!(first, Some(0));
}

#[test]
fn a_journal_that_was_synced_and_is_lost_is_damage() {
    let folder = Folder::new();
    let path = folder.path("store");
    let mut writer = texts(&path, 100, &WriterOptions::default());
    writer.flush().unwrap();
    let journal = path.join("0.journal");
    let flushed = fs::read(&journal).unwrap();
    writer.sync().unwrap();
    writer.append(&[Value::plain(b"more")]).unwrap();
    writer.flush().unwrap();
    drop(writer);
    let whole = fs::read(&journal).unwrap();
    assert_eq!(read(&path).len(), 101);
    let files = fs::read_dir(path.join("chunk")).unwrap().count();
    for cut in [None, Some(0), Some(10), Some(24), Some(flushed.len())] {
        match cut {
            None => fs::remove_file(&journal).unwrap(),
            Some(cut) => fs::write(&journal, &whole[..cut]).unwrap(),
        }
        let read = Records::open(&path, ReadOptions::default(), None).err().unwrap();
        let written = Writer::open(&path, WriterOptions::default()).err().unwrap();
        assert_eq!((read.kind(), written.kind()), ("corrupt", "corrupt"), "{cut:?}");
        assert_eq!(fs::read_dir(path.join("chunk")).unwrap().count(), files);
    }
    fs::write(&journal, &whole).unwrap();
    let mut writer = Writer::open(&path, WriterOptions::default()).unwrap();
    writer.close().unwrap();
    assert_eq!(read(&path).len(), 101);
}

#[test]
fn a_journal_that_holds_nothing_yet_is_no_damage() {
    let folder = Folder::new();
    let path = folder.path("store");
    create(&path).close().unwrap();
    // What a writer leaves that ended before its first Commit.
    let mut journal = Journal::create(&path.join("0.journal")).unwrap();
    journal.append(&Op::Delete { row: 0 }.to_bytes()).unwrap();
    journal.flush().unwrap();
    for _ in 0..2 {
        let mut writer = Writer::open(&path, WriterOptions::default()).unwrap();
        writer.sync().unwrap();
        drop(writer);
        assert!(read(&path).is_empty());
    }
}
