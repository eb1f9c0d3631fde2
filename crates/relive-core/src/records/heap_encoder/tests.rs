//! Records and entries against the values that were put.

use std::collections::BTreeMap;
use std::fs::{self, File};

use super::*;
use crate::codec::{Codec, Decoder, Stored};
use crate::durable::Folder;
use crate::records::dense::chunk_paths;
use crate::records::layout::{ALIGN, ChunkHeader, ChunkKind, PAGE, RECORD_BYTES, RecordHeader};
use crate::records::numbers::Numbers;

const UID: [u8; 16] = [5; 16];

fn shape(folder: &Folder, chunk_bytes: u64, chunk_records: u64) -> HeapShape {
    let numbers = Arc::new(Numbers::new(7, None));
    HeapShape { folder: folder.path(""), uid: UID, chunk_bytes, chunk_records, numbers }
}

fn encoders() -> Vec<Arc<Encoder>> {
    let codecs = [Codec::Raw, Codec::Zstd, Codec::Lz4, Codec::Deflate];
    codecs.into_iter().map(|codec| Arc::new(Encoder::new(codec, None).unwrap())).collect()
}

/// A value as it was put.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Put {
    field: u16,
    sequence: u64,
    bytes: Vec<u8>,
    dims: Vec<u64>,
}

/// A value of this length, of which every second shrinks.
fn value(number: u64, length: usize) -> Put {
    let noise = |i: u64| (number * 7919 + i).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56;
    let odd = number % 2 == 1;
    let bytes = (0..length as u64).map(|i| if odd { noise(i) as u8 } else { (i / 64) as u8 });
    let dims = (0..number % 3).collect();
    Put { field: (number % 4) as u16, sequence: number / 3, bytes: bytes.collect(), dims }
}

fn put(lanes: &mut Lanes, encoders: &[Arc<Encoder>], value: &Put) -> Slot {
    let encoder = &encoders[usize::from(value.field)];
    lanes.put(value.field, encoder, value.sequence, &value.bytes, &value.dims).unwrap()
}

/// What is at an entry, everything about it checked.
fn read(folder: &Folder, entry: Entry) -> (Put, Codec) {
    let file = fs::read(chunk_paths(&folder.path(""), entry.chunk).0).unwrap();
    let bytes = &file[entry.offset as usize..entry.end() as usize];
    let header = RecordHeader::parse(bytes).unwrap();
    assert_eq!(header.total(), u64::from(entry.length));
    assert_eq!(entry.offset % ALIGN, 0);
    assert!(header.holds(&bytes[RECORD_BYTES..]));
    let (dims, stored) = bytes[RECORD_BYTES..].split_at(8 * usize::from(header.dims));
    let dims = dims.chunks(8).map(|dim| u64::from_le_bytes(dim.try_into().unwrap())).collect();
    let record = Stored { codec: header.codec, bytes: stored, length: header.length };
    let bytes = Decoder::new().decode(&record).unwrap();
    (Put { field: header.field, sequence: header.sequence, bytes, dims }, header.codec)
}

/// All the records of all chunks are those of the entries, with zeros between them.
fn check_chunks(folder: &Folder, entries: &[Entry], positions: &BTreeMap<u32, Position>) {
    let mut of_chunk: BTreeMap<u32, Vec<Entry>> = BTreeMap::new();
    for &entry in entries.iter().filter(|entry| !entry.is_missing()) {
        of_chunk.entry(entry.chunk).or_default().push(entry);
    }
    assert!(of_chunk.keys().eq(positions.keys()));
    for (number, mut entries) in of_chunk {
        let file = fs::read(chunk_paths(&folder.path(""), number).0).unwrap();
        let header = ChunkHeader { number, uid: UID, kind: ChunkKind::Heap };
        assert_eq!(file[..PAGE as usize], header.to_page());
        entries.sort_by_key(|entry| entry.offset);
        let mut end = PAGE;
        for entry in &entries {
            assert_eq!(entry.offset, end.next_multiple_of(ALIGN));
            assert!(file[end as usize..entry.offset as usize].iter().all(|&byte| byte == 0));
            end = entry.end();
        }
        let records = entries.len() as u64;
        assert_eq!(positions[&number], Position { chunk: number, tail: 0, position: end, records });
    }
}

fn note(positions: &mut BTreeMap<u32, Position>, lanes: &Lanes) {
    positions.extend(lanes.positions().into_iter().map(|position| (position.chunk, position)));
}

#[test]
fn every_value_is_where_its_entry_says() {
    for (writers, chunk_bytes, chunk_records) in
        [(1, 1 << 30, u64::MAX), (3, 300_000, u64::MAX), (2, 1 << 30, 100), (4, 1, u64::MAX)]
    {
        let folder = Folder::new();
        let encoders = encoders();
        let shape = shape(&folder, chunk_bytes, chunk_records);
        let mut lanes = Lanes::new(shape.clone(), writers, Vec::new());
        let (mut all, mut entries, mut positions) = (Vec::new(), Vec::new(), BTreeMap::new());
        let mut created = Vec::new();
        let lengths = [0, 1, 7, 100, 3000, 28_000, 131_072, 131_073, 1_500_000];
        let mut number = 0_u64;
        for round in 0..6_usize {
            for i in 0..[1, 40, 0, 3, 18, 2][round] {
                let put_now = value(number, lengths[(i + round) % lengths.len()]);
                assert_eq!(put(&mut lanes, &encoders, &put_now), i);
                all.push(put_now);
                number += 1;
            }
            entries.extend(lanes.drain().unwrap());
            created.extend(lanes.created());
            note(&mut positions, &lanes);
            assert_eq!(entries.len(), all.len());
            if round % 2 == 1 {
                lanes.committed();
                assert!(lanes.positions().is_empty());
            }
            if round == 3 {
                lanes.sync().unwrap();
                assert!(lanes.unsynced().is_empty());
            }
            if round == 4 {
                // The next lanes go on where there is room.
                lanes.committed();
                lanes.trim().unwrap();
                drop(lanes);
                let unfull = positions.values().copied().collect();
                lanes = Lanes::new(shape.clone(), writers, unfull);
            }
        }
        for (entry, wanted) in entries.iter().zip(&all) {
            let (found, codec) = read(&folder, *entry);
            assert_eq!(found, *wanted);
            let length = wanted.bytes.len();
            assert_eq!(codec == Codec::Lz4, wanted.field == 2 && length >= 100, "{length}");
            assert!(length > 1 || codec == Codec::Raw);
        }
        check_chunks(&folder, &entries, &positions);
        assert!(positions.values().all(|last| last.records <= chunk_records));
        assert!(created.iter().eq(positions.keys()));
        assert_eq!(folder.names().len(), positions.len());
        if chunk_records == 100 {
            assert!(positions.len() <= writers);
        }
    }
}

#[test]
fn borrowed_values_are_placed_without_waiting_for_a_drain() {
    for writers in [1, 2, 5] {
        let folder = Folder::new();
        let encoders = encoders();
        let mut lanes = Lanes::new(shape(&folder, 1 << 20, u64::MAX), writers, Vec::new());
        let before = value(1, 50);
        assert_eq!(put(&mut lanes, &encoders, &before), 0);
        let (mut all, mut positions) = (vec![Some(before)], BTreeMap::new());
        // Few and small ones, many, large ones, and none.
        for (count, length) in [(3, 10), (2000, 700), (9, 400_000), (0, 0)] {
            let owned: Vec<Put> = (0..count)
                .map(|i| Put { field: 1, sequence: 44, ..value(i, length + i as usize) })
                .collect();
            let values: Vec<Value<'_>> = owned
                .iter()
                .enumerate()
                .map(|(i, put)| match i % 7 {
                    5 => Value::Missing,
                    _ => Value::Bytes { bytes: &put.bytes, dims: &put.dims },
                })
                .collect();
            let slots = lanes.put_borrowed(1, &encoders[1], 44, &values).unwrap();
            assert_eq!(slots, all.len()..all.len() + values.len());
            all.extend(owned.into_iter().enumerate().map(|(i, put)| (i % 7 != 5).then_some(put)));
        }
        let last = value(2, 3);
        assert_eq!(put(&mut lanes, &encoders, &last), all.len());
        all.push(Some(last));
        let entries = lanes.drain().unwrap();
        note(&mut positions, &lanes);
        assert_eq!(entries.len(), all.len());
        for (entry, wanted) in entries.iter().zip(&all) {
            assert_eq!((!entry.is_missing()).then(|| read(&folder, *entry).0), *wanted);
        }
        check_chunks(&folder, &entries, &positions);
        assert!(lanes.drain().unwrap().is_empty());
    }
}

#[test]
fn many_small_values_keep_their_order() {
    let folder = Folder::new();
    let encoder = Arc::new(Encoder::new(Codec::Raw, None).unwrap());
    let mut lanes = Lanes::new(shape(&folder, 100_000, u64::MAX), 4, Vec::new());
    let mut positions = BTreeMap::new();
    let mut entries = Vec::new();
    for round in 0..3 {
        for i in 0..20_000_usize {
            let number = (round * 20_000 + i) as u32;
            let slot = lanes.put(0, &encoder, 1, &number.to_le_bytes(), &[]).unwrap();
            assert_eq!(slot, i);
        }
        entries.extend(lanes.drain().unwrap());
        note(&mut positions, &lanes);
    }
    // Each chunk once, not for every record.
    let names = folder.names();
    let files: BTreeMap<u32, Vec<u8>> = names
        .iter()
        .map(|name| {
            let number = name.strip_suffix(".zr").unwrap().parse().unwrap();
            (number, fs::read(folder.path(name)).unwrap())
        })
        .collect();
    for (number, entry) in entries.iter().enumerate() {
        let bytes = &files[&entry.chunk][entry.offset as usize..entry.end() as usize];
        assert_eq!(bytes[RECORD_BYTES..], (number as u32).to_le_bytes());
    }
    check_chunks(&folder, &entries, &positions);
    // More chunks than are held open.
    assert!(positions.len() > 20);
}

#[test]
fn what_cannot_be_a_record_is_refused_and_nothing_taken() {
    let folder = Folder::new();
    let encoder = Arc::new(Encoder::new(Codec::Zstd, None).unwrap().with_max_bytes(10));
    let mut lanes = Lanes::new(shape(&folder, 100_000, u64::MAX), 2, Vec::new());
    let long = [0; 11];
    assert_eq!(lanes.put(0, &encoder, 1, &long, &[]).unwrap_err().kind(), "too-large");
    let dims = [1; 256];
    assert_eq!(lanes.put(0, &encoder, 1, &[], &dims).unwrap_err().kind(), "too-large");
    let values = [Value::plain(b"short"), Value::plain(&long)];
    assert_eq!(lanes.put_borrowed(0, &encoder, 1, &values).unwrap_err().kind(), "too-large");
    let free = Encoder::new(Codec::Raw, None).unwrap().with_max_bytes(u64::MAX);
    assert!(Lanes::check(&free, u32::MAX as usize - 3000, 3).is_ok());
    assert_eq!(Lanes::check(&free, u32::MAX as usize, 0).unwrap_err().kind(), "too-large");
    assert_eq!(lanes.put(0, &encoder, 1, b"fits", &[3]).unwrap(), 0);
    let entries = lanes.drain().unwrap();
    assert_eq!(read(&folder, entries[0]).0.bytes, b"fits");
    assert!(entries.len() == 1 && folder.names() == ["7.zr"]);
}

#[test]
fn a_failure_in_a_thread_surfaces_and_sticks() {
    for borrowed in [false, true] {
        let folder = Folder::new();
        let encoder = Arc::new(Encoder::new(Codec::Raw, None).unwrap());
        let mut lanes = Lanes::new(shape(&folder, 1 << 30, u64::MAX), 2, Vec::new());
        // The numbers that the lanes will ask for are taken.
        for number in 7..20 {
            File::create(folder.path(&format!("{number}.zr"))).unwrap();
        }
        let payload = vec![1; 200_000];
        let first = if borrowed {
            let values = vec![Value::plain(&payload); 10];
            lanes.put_borrowed(0, &encoder, 1, &values).unwrap_err()
        } else {
            (0..1000).find_map(|_| lanes.put(0, &encoder, 1, &payload, &[]).err()).unwrap()
        };
        assert_eq!(first.kind(), "already-exists");
        assert!(first.to_string().contains(".zr"), "{first}");
        assert_eq!(lanes.put(0, &encoder, 1, b"x", &[]).unwrap_err().kind(), "already-exists");
        let values = [Value::plain(b"x")];
        assert!(lanes.put_borrowed(0, &encoder, 1, &values).is_err());
        assert!(lanes.drain().is_err() && lanes.sync().is_err());
        lanes.trim().unwrap();
    }
}

#[test]
fn a_chunk_that_cannot_be_written_ends_it() {
    let folder = Folder::new();
    let encoder = Arc::new(Encoder::new(Codec::Raw, None).unwrap());
    let mut lanes = Lanes::new(shape(&folder, 1 << 30, u64::MAX), 1, Vec::new());
    lanes.put(0, &encoder, 1, b"first", &[]).unwrap();
    let entries = lanes.drain().unwrap();
    lanes.committed();
    locked(&lanes.shared.lanes[0]).make_read_only();
    lanes.put(0, &encoder, 2, b"second", &[]).unwrap();
    assert!(lanes.drain().unwrap_err().to_string().contains("7.zr"));
    for refused in [lanes.drain().map(drop), lanes.sync()] {
        assert!(refused.unwrap_err().to_string().contains("earlier write failed"));
    }
    assert_eq!(read(&folder, entries[0]).0.bytes, b"first");
}

#[test]
fn what_is_not_committed_is_cut_off() {
    let folder = Folder::new();
    let encoder = Arc::new(Encoder::new(Codec::Raw, None).unwrap());
    let mut lanes = Lanes::new(shape(&folder, 1 << 30, u64::MAX), 1, Vec::new());
    lanes.put(0, &encoder, 1, b"first", &[]).unwrap();
    let entries = lanes.drain().unwrap();
    lanes.committed();
    lanes.trim().unwrap();
    let kept = fs::metadata(folder.path("7.zr")).unwrap().len();
    assert_eq!(kept, entries[0].end());
    // Nothing was lost, so it goes on.
    lanes.put(0, &encoder, 1, &[1; 500_000], &[]).unwrap();
    lanes.drain().unwrap();
    lanes.put(0, &encoder, 1, b"third", &[]).unwrap();
    lanes.trim().unwrap();
    assert_eq!(fs::metadata(folder.path("7.zr")).unwrap().len(), kept);
    let refused = lanes.put(0, &encoder, 1, b"fourth", &[]).unwrap_err();
    assert!(refused.to_string().contains("dropped"), "{refused}");
}

#[test]
fn another_file_is_no_chunk_to_go_on_with() {
    let folder = Folder::new();
    let encoder = Arc::new(Encoder::new(Codec::Raw, None).unwrap());
    let shape = shape(&folder, 1 << 30, u64::MAX);
    let mut lanes = Lanes::new(shape.clone(), 1, Vec::new());
    lanes.put(0, &encoder, 1, b"first", &[]).unwrap();
    lanes.drain().unwrap();
    let last = lanes.positions()[0];
    drop(lanes);
    let resume = |shape: &HeapShape, last: Position| {
        let mut lanes = Lanes::new(shape.clone(), 1, vec![last]);
        lanes.put(0, &encoder, 1, b"second", &[])?;
        lanes.drain()
    };
    let other_store = HeapShape { uid: [6; 16], ..shape.clone() };
    let beyond = Position { position: 1 << 30, ..last };
    for (shape, last) in [(&other_store, last), (&shape, beyond)] {
        let shape = HeapShape { chunk_bytes: 2 << 30, ..shape.clone() };
        assert!(resume(&shape, last).unwrap_err().to_string().contains("7.zr"));
    }
    assert_eq!(resume(&shape, last).unwrap()[0].chunk, 7);
    let full = HeapShape { chunk_records: 1, ..shape };
    assert_eq!(resume(&full, last).unwrap()[0].chunk, 8);
}

#[test]
fn lanes_end_with_work_left() {
    let folder = Folder::new();
    let encoder = Arc::new(Encoder::new(Codec::Deflate, Some(9)).unwrap());
    for writers in [1, 3] {
        let mut lanes = Lanes::new(shape(&folder, 1 << 30, u64::MAX), writers, Vec::new());
        lanes.shared.heap.shape.numbers.raise(100 * writers as u32);
        for number in 0..6 {
            let value = value(number, 1 << 20);
            lanes.put(0, &encoder, 1, &value.bytes, &[]).unwrap();
        }
    }
}

#[test]
fn memory_is_used_again() {
    let folder = Folder::new();
    let encoder = Arc::new(Encoder::new(Codec::Raw, None).unwrap());
    let mut lanes = Lanes::new(shape(&folder, 1 << 30, u64::MAX), 2, Vec::new());
    for round in 0..200 {
        for _ in 0..[1, 3000][round % 2] {
            lanes.put(0, &encoder, 1, b"value", &[]).unwrap();
        }
        lanes.drain().unwrap();
    }
    assert!(lanes.shared.lock().spare.len() <= 2 * (JOBS_PER_LANE + 1) + 1);
    assert!(lanes.shared.lock().placed.is_empty());
}

#[test]
fn lanes_of_another_process_are_let_be() {
    let folder = Folder::new();
    let encoder = Arc::new(Encoder::new(Codec::Raw, None).unwrap());
    let mut lanes = Lanes::new(shape(&folder, 1 << 30, u64::MAX), 2, Vec::new());
    lanes.put_borrowed(0, &encoder, 1, &[Value::plain(&[1; 100_000])]).unwrap();
    assert_eq!(lanes.threads.len(), 2);
    // After a fork no thread is there to be joined, and a lock may be held for ever.
    let shared = Arc::clone(&lanes.shared);
    let held = shared.lock();
    lanes.owner = OwnerProcess::other();
    drop(lanes);
    drop(held);
    shared.lock().stop = true;
    shared.work.notify_all();
}
