//! Values are joined from planes in every place that planes can be.

use std::sync::Arc;

use super::*;
use crate::codec::Codec;
use crate::durable::Folder;
use crate::hdf5::{Datatype, Filters};
use crate::replay::{Added, ArrayReader, ArrayWriter, ChunkRecord, FieldSpec, RowsOf, StoredChunk};
use crate::table::{Table, Target};

const PLANE: usize = 37;
const DEPTH: usize = 4;
const PLANES: u64 = 61;

fn plane(row: u64) -> Vec<u8> {
    (0..PLANE as u64).map(|byte| (row * 5 + byte) as u8).collect()
}

fn transitions(
    store: PlaneStore,
    planes: Vec<PlaneIds>,
    columns: Vec<ColumnValues>,
    len: usize,
    windows: Option<Windows>,
) -> Result<Transitions> {
    let rows = TransitionRows::new(&store, planes, columns, len, windows)?;
    Ok(Transitions::new(Arc::new(store), Arc::new(rows)))
}

/// Writes planes, and returns a reader of those that were committed.
fn written(folder: &Folder, codec: Codec) -> ArrayReader {
    let path = folder.path("run.h5");
    let spec = FieldSpec {
        path: "planes/x".to_owned(),
        datatype: Datatype::Uint(1),
        shape: vec![PLANE as u64],
        chunk_rows: 8,
        filters: Filters { codec, level: None, shuffle: true },
        rows_of: RowsOf::Planes,
    };
    let mut writer = ArrayWriter::create(&path, 1).unwrap();
    writer.add_field(spec.clone()).unwrap();
    for row in 0..PLANES {
        writer.append(0, row, &plane(row)).unwrap();
    }
    let commit = writer.commit().unwrap();
    let stored = |chunk: ChunkRecord| {
        let ChunkRecord { first_row, rows, offset, bytes, crc, .. } = chunk;
        StoredChunk { first_row, rows, offset, bytes, crc }
    };
    let mut reader = ArrayReader::open(&path).unwrap();
    let chunks = commit.chunks.into_iter().map(stored).collect();
    reader.add_field(spec, chunks, commit.tails).unwrap();
    reader
}

/// Returns the planes of each entry: some follow each other, some are repeated or zeros.
fn ids() -> Vec<[u32; DEPTH]> {
    let mut made = Vec::new();
    for entry in 0..50_u32 {
        let first = entry * 7 % 55 + 1;
        made.push(match entry % 4 {
            0 => [first, first + 1, first + 2, first + 3],
            1 => [first, first, first + 1, first + 5],
            2 => [NO_PLANE, NO_PLANE, first, first + 1],
            _ => [first + 6, first, 61, 1],
        });
    }
    made
}

fn expected(ids: [u32; DEPTH], axis: StackAxis) -> Vec<u8> {
    let planes: Vec<Vec<u8>> = ids
        .iter()
        .map(|&id| id.checked_sub(1).map_or(vec![0; PLANE], |row| plane(row.into())))
        .collect();
    match axis {
        StackAxis::First => planes.concat(),
        StackAxis::Last => {
            (0..PLANE * DEPTH).map(|byte| planes[byte % DEPTH][byte / DEPTH]).collect()
        }
    }
}

fn gather(table: &Table, rows: &[i64], row_bytes: usize) -> Result<Vec<u8>> {
    let mut locations = Vec::new();
    table.find(rows, &mut locations)?;
    let mut out = vec![7; rows.len() * row_bytes];
    let targets = [Target { column: 0, offsets: &[], out: out.as_mut_ptr() }];
    // SAFETY: the buffer has a row for each location.
    unsafe { table.gather(&locations, &targets, 2) }?;
    Ok(out)
}

#[test]
fn values_are_the_same_wherever_their_planes_are() {
    for axis in [StackAxis::First, StackAxis::Last] {
        for (codec, is_mapped) in [(Codec::Raw, true), (Codec::Raw, false), (Codec::Zstd, false)] {
            for limit in [0, 8 * PLANE, 20 * PLANE, 1 << 20] {
                let folder = Folder::new();
                let mut store = PlaneStore::new(Arc::new(written(&folder, codec)), limit).unwrap();
                if is_mapped {
                    // SAFETY: the file stays as it is.
                    unsafe { store.map() }.unwrap();
                }
                let (numbers, memory) = (Some(ids().concat().into()), Vec::new());
                let planes = PlaneIds {
                    fields: vec![(0, PLANES)],
                    memory,
                    ids: numbers,
                    depth: DEPTH,
                    axis,
                };
                let columns =
                    vec![ColumnValues::Planes(0, (0..50).rev().collect::<Vec<_>>().into())];
                let made = Arc::new(transitions(store, vec![planes], columns, 50, None).unwrap());
                let table = Table::from_reader(Arc::<Transitions>::clone(&made)).unwrap();
                let rows: Vec<i64> = (0..200).map(|k| k * 13 % 50).collect();
                let out = gather(&table, &rows, PLANE * DEPTH).unwrap();
                for (row, found) in rows.iter().zip(out.chunks_exact(PLANE * DEPTH)) {
                    assert_eq!(found, expected(ids()[49 - *row as usize], axis), "{row} {limit}");
                }
                assert!(made.store.kept_bytes() <= limit);
                // The last five planes are in the database, not in the file.
                assert_eq!(made.stored_bytes(0, 49).unwrap().0.is_null(), !is_mapped);
            }
        }
    }
}

#[test]
fn windows_have_zeros_after_their_end() {
    let folder = Folder::new();
    let store = PlaneStore::new(Arc::new(written(&folder, Codec::Lz4)), 1 << 20).unwrap();
    let fields = vec![(0, PLANES)];
    let (memory, axis) = (Vec::new(), StackAxis::First);
    let planes = PlaneIds { fields, memory, ids: None, depth: 1, axis };
    let columns = vec![ColumnValues::Planes(0, (0..10).collect::<Vec<_>>().into())];
    let windows = Windows {
        steps: 3,
        starts: vec![8, 0].into(),
        lengths: vec![2, 3].into(),
        skipped: vec![1, 0].into(),
    };
    let made = transitions(store, vec![planes], columns, 10, Some(windows)).unwrap();
    let table = Table::from_reader(Arc::new(made)).unwrap();
    let out = gather(&table, &[0, 1], 3 * PLANE).unwrap();
    let rows = [plane(8), plane(9), vec![0; PLANE], plane(0), plane(1), plane(2)];
    assert_eq!(out, rows.concat());
}

#[test]
fn planes_in_memory_come_after_those_of_fields() {
    for axis in [StackAxis::First, StackAxis::Last] {
        let folder = Folder::new();
        let store = PlaneStore::new(Arc::new(written(&folder, Codec::Lz4)), 1 << 20).unwrap();
        let copied = Arc::new(Copied::of(&[plane(100), plane(101)].concat()));
        let part = |start| MemoryPlane { copied: Arc::clone(&copied), range: start..start + PLANE };
        let last = PLANES as u32;
        let ids = vec![1, last, last + 1, last + 2];
        let memory = vec![part(0), part(PLANE)];
        let fields = vec![(0, PLANES)];
        let planes = PlaneIds { fields, memory, ids: Some(ids.into()), depth: DEPTH, axis };
        let columns = vec![ColumnValues::Planes(0, vec![0].into())];
        let made = transitions(store, vec![planes], columns, 1, None).unwrap();
        let table = Table::from_reader(Arc::new(made)).unwrap();
        let out = gather(&table, &[0], DEPTH * PLANE).unwrap();
        assert_eq!(out, expected([1, last, 101, 102], axis));
    }
}

#[test]
fn what_was_decoded_is_kept_when_rows_are_added() {
    let folder = Folder::new();
    let old = Arc::new(written(&folder, Codec::Zstd));
    let path = folder.path("run.h5");
    let store = PlaneStore::new(Arc::clone(&old), 1 << 20).unwrap();
    let table = |store: &Arc<PlaneStore>, rows: u64| {
        let fields = vec![(0, rows)];
        let (memory, axis) = (Vec::new(), StackAxis::First);
        let planes = PlaneIds { fields, memory, ids: None, depth: 1, axis };
        let columns = vec![ColumnValues::Planes(0, (0..rows as u32).collect::<Vec<_>>().into())];
        let rows = TransitionRows::new(store, vec![planes], columns, rows as usize, None).unwrap();
        Table::from_reader(Arc::new(Transitions::new(Arc::clone(store), Arc::new(rows)))).unwrap()
    };
    let store = Arc::new(store);
    let all: Vec<i64> = (0..PLANES as i64).collect();
    gather(&table(&store, PLANES), &all, PLANE).unwrap();
    let decoded = old.decoded();
    // The five rows after the last chunk are now in a chunk with three further ones.
    let spec = old.spec(0).unwrap().clone();
    let mut bytes = Vec::new();
    for row in 56..64 {
        bytes.extend(plane(row));
    }
    let data = spec.filters.encode(&bytes, 1).unwrap();
    let offset = std::fs::metadata(&path).unwrap().len();
    let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    std::io::Write::write_all(&mut file, &data).unwrap();
    let (first_row, rows, size) = (56, 8, data.len() as u32);
    let crc = crate::crc::crc32c(&data);
    let chunks = vec![StoredChunk { first_row, rows, offset, bytes: size, crc }];
    let tails = Vec::new();
    let added = Added { chunks, tails };
    let reader = Arc::new(old.extended(vec![added]).unwrap());
    let more = Arc::new(store.continued(Arc::clone(&reader)).unwrap());
    assert_eq!(more.kept_bytes(), PLANES as usize * PLANE);
    let out = gather(&table(&more, 64), &(0..64).collect::<Vec<_>>(), PLANE).unwrap();
    assert!(out.chunks_exact(PLANE).zip(0..).all(|(found, row)| found == plane(row)));
    assert_eq!(reader.decoded(), decoded + 1);
    drop(store);
    // What was replaced is not kept.
    assert_eq!(more.kept_bytes(), 64 * PLANE);
}

#[test]
fn what_is_out_of_range_is_refused() {
    let folder = Folder::new();
    let reader = Arc::new(written(&folder, Codec::Zstd));
    let planes = |ids: Option<Vec<u32>>, depth| PlaneIds {
        fields: vec![(0, PLANES)],
        memory: Vec::new(),
        ids: ids.map(Into::into),
        depth,
        axis: StackAxis::First,
    };
    let windows = |start, length| Windows {
        steps: 2,
        starts: vec![start].into(),
        lengths: vec![length].into(),
        skipped: vec![0].into(),
    };
    let entries = |entries: &[u32]| vec![ColumnValues::Planes(0, entries.to_vec().into())];
    let new = |planes, columns, len, windows| {
        let store = PlaneStore::new(Arc::clone(&reader), 0).unwrap();
        transitions(store, vec![planes], columns, len, windows).map(|_| ())
    };
    assert!(new(planes(None, 1), entries(&[60]), 1, Some(windows(0, 1))).is_ok());
    assert!(new(planes(None, 1), entries(&[61]), 1, None).is_err());
    assert!(new(planes(None, 2), entries(&[0]), 1, None).is_err());
    assert!(new(planes(Some(vec![62]), 1), entries(&[0]), 1, None).is_err());
    assert!(new(planes(Some(vec![1, 2, 3]), 2), entries(&[0]), 1, None).is_err());
    assert!(new(planes(None, 1), entries(&[0]), 2, None).is_err());
    assert!(new(planes(None, 1), entries(&[0]), 1, Some(windows(0, 2))).is_err());
    assert!(new(planes(None, 1), entries(&[0, 1]), 2, Some(windows(0, 3))).is_err());
    assert!(new(planes(None, 1), vec![ColumnValues::Planes(1, vec![0].into())], 1, None).is_err());
    // A plane that was never written is damage.
    let more = PlaneIds { fields: vec![(0, 99)], ..planes(None, 1) };
    let store = PlaneStore::new(Arc::clone(&reader), 0).unwrap();
    let made = transitions(store, vec![more], entries(&[80]), 1, None).unwrap();
    let table = Table::from_reader(Arc::new(made)).unwrap();
    assert_eq!(gather(&table, &[0], PLANE).unwrap_err().kind(), "corrupt");
}

#[test]
fn what_was_decoded_last_is_not_evicted_first() {
    let folder = Folder::new();
    let reader = Arc::new(written(&folder, Codec::Zstd));
    // Room for all parts but the last.
    let store = Arc::new(PlaneStore::new(Arc::clone(&reader), 56 * PLANE).unwrap());
    let (memory, axis) = (Vec::new(), StackAxis::First);
    let planes = PlaneIds { fields: vec![(0, PLANES)], memory, ids: None, depth: 1, axis };
    let columns = vec![ColumnValues::Planes(0, (0..PLANES as u32).collect::<Vec<_>>().into())];
    let rows = TransitionRows::new(&store, vec![planes], columns, PLANES as usize, None).unwrap();
    let table = Table::from_reader(Arc::new(Transitions::new(store, Arc::new(rows)))).unwrap();
    let mut read = |part: i64| {
        let before = reader.decoded();
        gather(&table, &[8 * part], PLANE).unwrap();
        reader.decoded() - before
    };
    let often = (0..6).chain(0..6).map(&mut read).sum::<u64>();
    assert_eq!((often, read(6), read(7)), (6, 1, 1));
    // The first part made room for the last.
    assert_eq!((read(6), read(0)), (0, 1));
}

#[test]
fn what_was_dropped_is_decoded_again() {
    let folder = Folder::new();
    let reader = Arc::new(written(&folder, Codec::Zstd));
    let store = Arc::new(PlaneStore::new(Arc::clone(&reader), 1 << 20).unwrap());
    let (memory, axis) = (Vec::new(), StackAxis::First);
    let planes = PlaneIds { fields: vec![(0, PLANES)], memory, ids: None, depth: 1, axis };
    let columns = vec![ColumnValues::Planes(0, (0..PLANES as u32).collect::<Vec<_>>().into())];
    let rows = TransitionRows::new(&store, vec![planes], columns, PLANES as usize, None).unwrap();
    let made = Transitions::new(Arc::clone(&store), Arc::new(rows));
    let table = Table::from_reader(Arc::new(made)).unwrap();
    let all: Vec<i64> = (0..PLANES as i64).collect();
    let expected = gather(&table, &all, PLANE).unwrap();
    // Rows 16 to 23 are of one part.
    for (row, left) in [(0, PLANES), (20, PLANES - 16), (24, PLANES - 24), (99, 0)] {
        store.drop_before(0, row).unwrap();
        assert_eq!(store.kept_bytes(), left as usize * PLANE);
    }
    let before = reader.decoded();
    assert_eq!(gather(&table, &all, PLANE).unwrap(), expected);
    assert_eq!((reader.decoded() - before, store.kept_bytes()), (8, PLANES as usize * PLANE));
    assert!(store.drop_before(9, 0).is_err());
}
