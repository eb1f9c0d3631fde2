//! Records and entries against the values that were put.

use std::collections::BTreeMap;
use std::fs::{self, File};

use super::*;
use crate::codec::{Codec, Decoder, Stored};
use crate::durable::Folder;
use crate::records::chunk::chunk_paths;
use crate::records::chunk_numbers::ChunkNumbers;
use crate::records::layout::{ALIGN, ChunkHeader, ChunkKind, PAGE, RECORD_BYTES, RecordHeader};

const UID: [u8; 16] = [5; 16];

fn config(folder: &Folder, chunk_bytes: u64, chunk_records: u64) -> HeapConfig {
    let numbers = Arc::new(ChunkNumbers::new(7, None));
    HeapConfig { folder: folder.path(""), uid: UID, chunk_bytes, chunk_records, numbers }
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

fn put(heap: &mut HeapEncoder, encoders: &[Arc<Encoder>], value: &Put) -> Slot {
    let encoder = &encoders[usize::from(value.field)];
    heap.put(value.field, encoder, value.sequence, &value.bytes, &value.dims).unwrap()
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

fn note(positions: &mut BTreeMap<u32, Position>, heap: &HeapEncoder) {
    positions.extend(heap.positions().into_iter().map(|position| (position.chunk, position)));
}

#[test]
fn every_value_is_where_its_entry_says() {
    for (writers, chunk_bytes, chunk_records) in
        [(1, 1 << 30, u64::MAX), (3, 300_000, u64::MAX), (2, 1 << 30, 100), (4, 1, u64::MAX)]
    {
        let folder = Folder::new();
        let encoders = encoders();
        let config = config(&folder, chunk_bytes, chunk_records);
        let mut heap = HeapEncoder::new(config.clone(), writers, Vec::new());
        let (mut all, mut entries, mut positions) = (Vec::new(), Vec::new(), BTreeMap::new());
        let mut created = Vec::new();
        let lengths = [0, 1, 7, 100, 3000, 28_000, 131_072, 131_073, 1_500_000];
        let mut number = 0_u64;
        for round in 0..6_usize {
            for i in 0..[1, 40, 0, 3, 18, 2][round] {
                let put_now = value(number, lengths[(i + round) % lengths.len()]);
                assert_eq!(put(&mut heap, &encoders, &put_now), i);
                all.push(put_now);
                number += 1;
            }
            entries.extend(heap.drain().unwrap());
            created.extend(heap.created());
            note(&mut positions, &heap);
            assert_eq!(entries.len(), all.len());
            if round % 2 == 1 {
                heap.committed();
                assert!(heap.positions().is_empty());
            }
            if round == 3 {
                heap.sync().unwrap();
                assert!(heap.unsynced().is_empty());
            }
            if round == 4 {
                // The next heap go on where there is room.
                heap.committed();
                heap.trim().unwrap();
                drop(heap);
                let unfull = positions.values().copied().collect();
                heap = HeapEncoder::new(config.clone(), writers, unfull);
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
        let mut heap = HeapEncoder::new(config(&folder, 1 << 20, u64::MAX), writers, Vec::new());
        let before = value(1, 50);
        assert_eq!(put(&mut heap, &encoders, &before), 0);
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
            let slots = heap.put_borrowed(1, &encoders[1], 44, &values).unwrap();
            assert_eq!(slots, all.len()..all.len() + values.len());
            all.extend(owned.into_iter().enumerate().map(|(i, put)| (i % 7 != 5).then_some(put)));
        }
        let last = value(2, 3);
        assert_eq!(put(&mut heap, &encoders, &last), all.len());
        all.push(Some(last));
        let entries = heap.drain().unwrap();
        note(&mut positions, &heap);
        assert_eq!(entries.len(), all.len());
        for (entry, wanted) in entries.iter().zip(&all) {
            assert_eq!((!entry.is_missing()).then(|| read(&folder, *entry).0), *wanted);
        }
        check_chunks(&folder, &entries, &positions);
        assert!(heap.drain().unwrap().is_empty());
    }
}

#[test]
fn many_small_values_keep_their_order() {
    let folder = Folder::new();
    let encoder = Arc::new(Encoder::new(Codec::Raw, None).unwrap());
    let mut heap = HeapEncoder::new(config(&folder, 100_000, u64::MAX), 4, Vec::new());
    let mut positions = BTreeMap::new();
    let mut entries = Vec::new();
    for round in 0..3 {
        for i in 0..20_000_usize {
            let number = (round * 20_000 + i) as u32;
            let slot = heap.put(0, &encoder, 1, &number.to_le_bytes(), &[]).unwrap();
            assert_eq!(slot, i);
        }
        entries.extend(heap.drain().unwrap());
        note(&mut positions, &heap);
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
    let mut heap = HeapEncoder::new(config(&folder, 100_000, u64::MAX), 2, Vec::new());
    let long = [0; 11];
    assert_eq!(heap.put(0, &encoder, 1, &long, &[]).unwrap_err().kind(), "too-large");
    let dims = [1; 256];
    assert_eq!(heap.put(0, &encoder, 1, &[], &dims).unwrap_err().kind(), "too-large");
    let values = [Value::plain(b"short"), Value::plain(&long)];
    assert_eq!(heap.put_borrowed(0, &encoder, 1, &values).unwrap_err().kind(), "too-large");
    let free = Encoder::new(Codec::Raw, None).unwrap().with_max_bytes(u64::MAX);
    assert!(check(&free, u32::MAX as usize - 3000, 3).is_ok());
    assert_eq!(check(&free, u32::MAX as usize, 0).unwrap_err().kind(), "too-large");
    assert_eq!(heap.put(0, &encoder, 1, b"fits", &[3]).unwrap(), 0);
    let entries = heap.drain().unwrap();
    assert_eq!(read(&folder, entries[0]).0.bytes, b"fits");
    assert!(entries.len() == 1 && folder.names() == ["7.zr"]);
}

#[test]
fn a_failure_in_a_thread_surfaces_and_sticks() {
    for borrowed in [false, true] {
        let folder = Folder::new();
        let encoder = Arc::new(Encoder::new(Codec::Raw, None).unwrap());
        let mut heap = HeapEncoder::new(config(&folder, 1 << 30, u64::MAX), 2, Vec::new());
        // The numbers that the heap will ask for are taken.
        for number in 7..20 {
            File::create(folder.path(&format!("{number}.zr"))).unwrap();
        }
        let payload = vec![1; 200_000];
        let first = if borrowed {
            let values = vec![Value::plain(&payload); 10];
            heap.put_borrowed(0, &encoder, 1, &values).unwrap_err()
        } else {
            (0..1000).find_map(|_| heap.put(0, &encoder, 1, &payload, &[]).err()).unwrap()
        };
        assert_eq!(first.kind(), "already-exists");
        assert!(first.to_string().contains(".zr"), "{first}");
        assert_eq!(heap.put(0, &encoder, 1, b"x", &[]).unwrap_err().kind(), "already-exists");
        let values = [Value::plain(b"x")];
        assert!(heap.put_borrowed(0, &encoder, 1, &values).is_err());
        assert!(heap.drain().is_err() && heap.sync().is_err());
        heap.trim().unwrap();
    }
}

#[test]
fn a_chunk_that_cannot_be_written_ends_it() {
    let folder = Folder::new();
    let encoder = Arc::new(Encoder::new(Codec::Raw, None).unwrap());
    let mut heap = HeapEncoder::new(config(&folder, 1 << 30, u64::MAX), 1, Vec::new());
    heap.put(0, &encoder, 1, b"first", &[]).unwrap();
    let entries = heap.drain().unwrap();
    heap.committed();
    locked(&heap.shared.writers[0]).make_read_only();
    heap.put(0, &encoder, 2, b"second", &[]).unwrap();
    assert!(heap.drain().unwrap_err().to_string().contains("7.zr"));
    for refused in [heap.drain().map(drop), heap.sync()] {
        assert!(refused.unwrap_err().to_string().contains("earlier write failed"));
    }
    assert_eq!(read(&folder, entries[0]).0.bytes, b"first");
}

#[test]
fn what_is_not_committed_is_cut_off() {
    let folder = Folder::new();
    let encoder = Arc::new(Encoder::new(Codec::Raw, None).unwrap());
    let mut heap = HeapEncoder::new(config(&folder, 1 << 30, u64::MAX), 1, Vec::new());
    heap.put(0, &encoder, 1, b"first", &[]).unwrap();
    let entries = heap.drain().unwrap();
    heap.committed();
    heap.trim().unwrap();
    let kept = fs::metadata(folder.path("7.zr")).unwrap().len();
    assert_eq!(kept, entries[0].end());
    // Nothing was lost, so it goes on.
    heap.put(0, &encoder, 1, &[1; 500_000], &[]).unwrap();
    heap.drain().unwrap();
    heap.put(0, &encoder, 1, b"third", &[]).unwrap();
    heap.trim().unwrap();
    assert_eq!(fs::metadata(folder.path("7.zr")).unwrap().len(), kept);
    let refused = heap.put(0, &encoder, 1, b"fourth", &[]).unwrap_err();
    assert!(refused.to_string().contains("discarded"), "{refused}");
}

#[test]
fn another_file_is_no_chunk_to_go_on_with() {
    let folder = Folder::new();
    let encoder = Arc::new(Encoder::new(Codec::Raw, None).unwrap());
    let config = config(&folder, 1 << 30, u64::MAX);
    let mut heap = HeapEncoder::new(config.clone(), 1, Vec::new());
    heap.put(0, &encoder, 1, b"first", &[]).unwrap();
    heap.drain().unwrap();
    let last = heap.positions()[0];
    drop(heap);
    let resume = |config: &HeapConfig, last: Position| {
        let mut heap = HeapEncoder::new(config.clone(), 1, vec![last]);
        heap.put(0, &encoder, 1, b"second", &[])?;
        heap.drain()
    };
    let other_store = HeapConfig { uid: [6; 16], ..config.clone() };
    let beyond = Position { position: 1 << 30, ..last };
    for (config, last) in [(&other_store, last), (&config, beyond)] {
        let config = HeapConfig { chunk_bytes: 2 << 30, ..config.clone() };
        assert!(resume(&config, last).unwrap_err().to_string().contains("7.zr"));
    }
    assert_eq!(resume(&config, last).unwrap()[0].chunk, 7);
    let full = HeapConfig { chunk_records: 1, ..config };
    assert_eq!(resume(&full, last).unwrap()[0].chunk, 8);
}

#[test]
fn lanes_end_with_work_left() {
    let folder = Folder::new();
    let encoder = Arc::new(Encoder::new(Codec::Deflate, Some(9)).unwrap());
    for writers in [1, 3] {
        let mut heap = HeapEncoder::new(config(&folder, 1 << 30, u64::MAX), writers, Vec::new());
        heap.shared.heap.config.numbers.raise(100 * writers as u32);
        for number in 0..6 {
            let value = value(number, 1 << 20);
            heap.put(0, &encoder, 1, &value.bytes, &[]).unwrap();
        }
    }
}

#[test]
fn memory_is_used_again() {
    let folder = Folder::new();
    let encoder = Arc::new(Encoder::new(Codec::Raw, None).unwrap());
    let mut heap = HeapEncoder::new(config(&folder, 1 << 30, u64::MAX), 2, Vec::new());
    for round in 0..200 {
        for _ in 0..[1, 3000][round % 2] {
            heap.put(0, &encoder, 1, b"value", &[]).unwrap();
        }
        heap.drain().unwrap();
    }
    assert!(heap.shared.lock().spare.len() <= 2 * (TASKS_PER_WORKER + 1) + 1);
    assert!(heap.shared.lock().stored.is_empty());
}

#[test]
fn lanes_of_another_process_are_let_be() {
    let folder = Folder::new();
    let encoder = Arc::new(Encoder::new(Codec::Raw, None).unwrap());
    let mut heap = HeapEncoder::new(config(&folder, 1 << 30, u64::MAX), 2, Vec::new());
    heap.put_borrowed(0, &encoder, 1, &[Value::plain(&[1; 100_000])]).unwrap();
    assert_eq!(heap.threads.len(), 2);
    // After a fork no thread is there to be joined, and a lock may be held for ever.
    let shared = Arc::clone(&heap.shared);
    let held = shared.lock();
    heap.owner = OwnerProcess::other();
    drop(heap);
    drop(held);
    shared.lock().stop = true;
    shared.work.notify_all();
}
