//! Arrays of runs that are written, continued, damaged and read.

use super::*;
use crate::codec::Codec;
use crate::crc::crc32c;
use crate::durable::Folder;
use crate::hdf5::{Datatype, Filters, Group};

fn spec(path: &str, codec: Codec, shuffle: bool) -> FieldSpec {
    FieldSpec {
        path: path.to_owned(),
        datatype: Datatype::Uint(2),
        shape: vec![3, 5],
        chunk_rows: 8,
        filters: Filters { codec, level: None, shuffle },
        rows_of: RowsOf::Steps,
    }
}

fn row(number: u64) -> Vec<u8> {
    (0..30).map(|byte| (number * 7 + byte / 3) as u8).collect()
}

fn every_codec() -> Vec<FieldSpec> {
    let mut specs = Vec::new();
    for codec in Codec::ALL {
        for shuffle in [false, true] {
            specs.push(spec(&format!("of/{codec}{shuffle}"), codec, shuffle));
        }
    }
    specs
}

/// What a database keeps of one field.
#[derive(Default, Clone)]
struct Kept {
    chunks: Vec<StoredChunk>,
    tails: Vec<TailRecord>,
}

fn keep(kept: &mut [Kept], commit: Commit) {
    for chunk in commit.chunks {
        let field = &mut kept[chunk.field];
        field.chunks.retain(|old| old.first_row != chunk.first_row);
        field.tails.retain(|tail| tail.first_row < chunk.first_row);
        let ChunkRecord { first_row, rows, offset, bytes, crc, .. } = chunk;
        field.chunks.push(StoredChunk { first_row, rows, offset, bytes, crc });
    }
    for tail in commit.tails {
        kept[tail.field].tails.push(tail);
    }
}

fn finished(writer: &mut ArrayWriter, steps: u64) -> crate::Result<Commit> {
    writer.finish(Group::default(), RunLength { steps, ends: 0 }, ChunkTable::Stored)
}

fn check(path: &std::path::Path, specs: &[FieldSpec], kept: &[Kept], rows: &[u64], present: u64) {
    let mut reader = ArrayReader::open(path).unwrap();
    for (spec, kept) in specs.iter().zip(kept) {
        reader.add_field(spec.clone(), kept.chunks.clone(), kept.tails.clone()).unwrap();
    }
    for (field, spec) in specs.iter().enumerate() {
        let mut out = vec![1; 30 * rows.len()];
        reader.read(field, rows, &mut out, 2).unwrap();
        for (place, &number) in rows.iter().enumerate() {
            let expected =
                if number < present && number % 11 != 4 { row(number) } else { vec![0; 30] };
            assert_eq!(out[place * 30..][..30], expected, "row {number} of {}", spec.path);
        }
    }
}

#[test]
fn rows_are_read_after_every_commit_and_after_the_end() {
    let folder = Folder::new();
    let path = folder.path("run.h5");
    let specs = every_codec();
    let mut kept = vec![Kept::default(); specs.len()];
    let mut writer = ArrayWriter::create(&path, 2).unwrap();
    for spec in &specs {
        writer.add_field(spec.clone()).unwrap();
    }
    let wanted: Vec<u64> = vec![0, 7, 8, 3, 3, 60, 4, 15, 22, 0, 59, 1_000_000];
    for number in 0..61 {
        for field in 0..specs.len() {
            if number % 11 != 4 {
                writer.append(field, number, &row(number)).unwrap();
            }
        }
        if number % 5 == 2 {
            keep(&mut kept, writer.commit().unwrap());
            check(&path, &specs, &kept, &wanted, number + 1);
        }
    }
    keep(&mut kept, finished(&mut writer, 61).unwrap());
    assert!(kept.iter().all(|kept| kept.tails.is_empty() && kept.chunks.len() == 8));
    check(&path, &specs, &kept, &wanted, 61);
    let size = std::fs::metadata(&path).unwrap().len();
    assert_eq!(size, writer.end());

    // Recording goes on in the middle of a chunk, after the metadata.
    let mut writer = ArrayWriter::open(&path, 100, 2).unwrap();
    assert_eq!(writer.end(), size);
    let mut reader = ArrayReader::open(&path).unwrap();
    for (field, spec) in specs.iter().enumerate() {
        let Kept { chunks, tails } = kept[field].clone();
        writer.add_field(spec.clone()).unwrap();
        reader.add_field(spec.clone(), chunks.clone(), tails).unwrap();
        let (rows, open) = reader.open_rows(field).unwrap();
        assert_eq!((rows, open.len()), (61, 5 * 30));
        writer.restore(field, chunks, 61, open).unwrap();
    }
    for number in 61..70 {
        for field in 0..specs.len() {
            if number % 11 != 4 {
                writer.append(field, number, &row(number)).unwrap();
            }
        }
        keep(&mut kept, writer.commit().unwrap());
        check(&path, &specs, &kept, &[60, 61, number, 5, number + 1], number + 1);
    }
}

#[test]
fn each_touched_chunk_is_decoded_once() {
    let folder = Folder::new();
    let path = folder.path("run.h5");
    let mut writer = ArrayWriter::create(&path, 2).unwrap();
    let spec = spec("a", Codec::Zstd, false);
    let field = writer.add_field(spec.clone()).unwrap();
    for number in 0..80 {
        writer.append(field, number, &row(number)).unwrap();
    }
    let mut kept = [Kept::default()];
    keep(&mut kept, writer.commit().unwrap());
    let mut reader = ArrayReader::open(&path).unwrap();
    reader.add_field(spec, kept[0].chunks.clone(), Vec::new()).unwrap();
    let rows: Vec<u64> = (0..1000).map(|number| (number * 31) % 40).collect();
    let mut out = vec![0; 30 * rows.len()];
    reader.read(field, &rows, &mut out, 2).unwrap();
    assert_eq!(reader.decoded(), 5);
}

#[test]
fn damaged_chunks_are_errors() {
    let folder = Folder::new();
    let path = folder.path("run.h5");
    let mut writer = ArrayWriter::create(&path, 1).unwrap();
    let spec = spec("a", Codec::Zstd, true);
    let field = writer.add_field(spec.clone()).unwrap();
    for number in 0..10 {
        writer.append(field, number, &row(number)).unwrap();
    }
    let mut kept = [Kept::default()];
    keep(&mut kept, writer.commit().unwrap());
    let read = |kept: &Kept| {
        let mut reader = ArrayReader::open(&path)?;
        reader.add_field(spec.clone(), kept.chunks.clone(), kept.tails.clone())?;
        let mut out = vec![0; 300];
        reader.read(0, &(0..10).collect::<Vec<_>>(), &mut out, 1)
    };
    read(&kept[0]).unwrap();
    let mut wrong: Vec<Kept> = Vec::new();
    for change in 0..6 {
        let mut changed = kept[0].clone();
        match change {
            0 => changed.chunks[0].offset += 1,
            1 => changed.chunks[0].offset = 1 << 40,
            2 => changed.chunks[0].rows = 9,
            3 => changed.chunks[0].first_row = 1,
            4 => changed.tails[0].data[0] ^= 1,
            _ => changed.tails[0].first_row = 7,
        }
        wrong.push(changed);
    }
    for (number, wrong) in wrong.iter().enumerate() {
        assert!(matches!(read(wrong), Err(crate::Error::Corrupt(_))), "{number}");
    }
}

#[test]
fn stacks_store_each_plane_once() {
    for (axis, shape) in [(StackAxis::First, [4, 6]), (StackAxis::Last, [6, 4])] {
        let plane = |number: i64| -> Vec<u8> { (0..6).map(|i| (number * 10 + i) as u8).collect() };
        let stack = |newest: i64| -> Vec<u8> {
            let planes: Vec<_> = (newest - 3..=newest).map(|number| plane(number.max(0))).collect();
            match axis {
                StackAxis::First => planes.concat(),
                StackAxis::Last => (0..24).map(|at| planes[at % shape[1]][at / shape[1]]).collect(),
            }
        };
        let mut stacks = Stacks::new(axis, 4, 1, 6);
        let mut stored: Vec<Vec<u8>> = Vec::new();
        for newest in 0..10 {
            for stream in 0..2 {
                let numbers = stacks.split::<()>(stream, &stack(newest), |plane| {
                    stored.push(plane.to_vec());
                    Ok(stored.len() as u64 - 1)
                });
                let found: Vec<_> = numbers
                    .unwrap()
                    .iter()
                    .map(|&number| stored[number as usize].clone())
                    .collect();
                let expected: Vec<_> = (newest - 3..=newest).map(|n| plane(n.max(0))).collect();
                assert_eq!(found, expected);
            }
        }
        assert_eq!(stored.len(), 20);
    }
}

#[test]
fn columns_of_stacks_are_read_as_they_were_written() {
    let folder = Folder::new();
    for (axis, name) in [(StackAxis::First, "first"), (StackAxis::Last, "last")] {
        let path = folder.path(name);
        let whole = spec("observations", Codec::Zstd, false);
        let made = ColumnSpec::stacked(&whole, "observations", axis, None).unwrap();
        let ends = FieldSpec { rows_of: RowsOf::Ends, ..whole };
        let shared = ColumnSpec::stacked(&ends, "final.observations", axis, Some(0)).unwrap();
        let mut writer = ArrayWriter::create(&path, 2).unwrap();
        let mut columns = Columns::default();
        assert!(columns.add(&mut writer, shared.clone(), 0).is_err());
        columns.add(&mut writer, made.clone(), 0).unwrap();
        columns.add(&mut writer, shared.clone(), 0).unwrap();
        let ColumnSpec::Stacked { planes, numbers, axis, depth, .. } = made else { unreachable!() };
        assert_eq!(depth, if axis == StackAxis::First { 3 } else { 5 });
        for number in (0..40).filter(|number| number % 11 != 4) {
            columns.append(&mut writer, 0, 0, number, &row(number)).unwrap();
        }
        columns.append(&mut writer, 1, 0, 0, &row(39)).unwrap();
        assert!(columns.append(&mut writer, 0, 0, 40, &[0; 3]).is_err());
        assert!(columns.append(&mut writer, 2, 0, 40, &[0; 3]).is_err());
        let mut kept = vec![Kept::default(); 3];
        keep(&mut kept, writer.commit().unwrap());
        let mut reader = ArrayReader::open(&path).unwrap();
        let ends = shared.fields().next().unwrap().clone();
        for (spec, kept) in [planes, numbers, ends].into_iter().zip(&kept) {
            reader.add_field(spec, kept.chunks.clone(), kept.tails.clone()).unwrap();
        }
        let mut out = vec![1; 30];
        read_stacks(&reader, (0, 2), (axis, depth), &[0], &mut out, 2).unwrap();
        assert_eq!(out, row(39));
        let planes = |of: usize| reader.open_rows(of).unwrap().0;
        assert_eq!(planes(2), 1);
        let wanted = [5, 39, 0, 4, 5, 77];
        let mut out = vec![1; 30 * wanted.len()];
        read_stacks(&reader, (0, 1), (axis, depth), &wanted, &mut out, 2).unwrap();
        for (place, &number) in wanted.iter().enumerate() {
            let expected = if number < 40 && number != 4 { row(number) } else { vec![0; 30] };
            assert_eq!(out[place * 30..][..30], expected, "{number}");
        }
    }
}

#[test]
fn hostile_tables_are_errors() {
    let folder = Folder::new();
    let path = folder.path("run.h5");
    std::fs::write(&path, [0; 100]).unwrap();
    let codecs = [Codec::Raw, Codec::Deflate, Codec::Zstd, Codec::Lz4];
    let opened = |spec: FieldSpec, chunk: Option<StoredChunk>, tail: Option<TailRecord>| {
        let mut reader = ArrayReader::open(&path)?;
        reader.add_field(spec, chunk.into_iter().collect(), tail.into_iter().collect())?;
        Ok::<_, crate::Error>(reader)
    };
    for codec in codecs {
        let wide = FieldSpec { chunk_rows: 1 << 26, ..spec("a", codec, true) };
        let crc = crc32c(&[0; 50]);
        let chunk = StoredChunk { first_row: 0, rows: 9, offset: 8, bytes: 50, crc };
        // Nothing is allocated for 2 GiB of rows that 50 bytes cannot have, nor for 4 GiB of bytes
        // that the file does not have.
        let reader = opened(wide.clone(), Some(chunk), None).unwrap();
        let read = reader.read(0, &[1], &mut [0; 30], 1);
        assert!(matches!(read, Err(crate::Error::Corrupt(_))), "{read:?}");
        assert!(matches!(reader.open_rows(0), Err(crate::Error::Corrupt(_))));
        let chunk = StoredChunk { bytes: u32::MAX, ..chunk };
        let reader = opened(wide.clone(), Some(chunk), None).unwrap();
        let read = reader.read(0, &[1], &mut [0; 30], 1);
        assert!(matches!(read, Err(crate::Error::Corrupt(_))), "{read:?}");
        let chunk = StoredChunk { first_row: u64::MAX, rows: 1, ..chunk };
        let narrow = FieldSpec { chunk_rows: 1, ..spec("a", codec, true) };
        assert!(opened(narrow, Some(chunk), None).is_err());
    }
    let empty = FieldSpec { shape: vec![0], chunk_rows: 1 << 40, ..spec("a", Codec::Raw, false) };
    assert!(matches!(empty.row_bytes(), Err(crate::Error::TooLarge(_))));
    let whole = FieldSpec { shape: vec![4, 0], ..spec("a", Codec::Raw, false) };
    assert!(ColumnSpec::stacked(&whole, "a", StackAxis::First, None).is_err());
}

#[test]
fn a_plane_that_is_missing_is_an_error() {
    let folder = Folder::new();
    let path = folder.path("run.h5");
    let whole = spec("observations", Codec::Zstd, false);
    let made = ColumnSpec::stacked(&whole, "observations", StackAxis::First, None).unwrap();
    let mut writer = ArrayWriter::create(&path, 1).unwrap();
    let mut columns = Columns::default();
    columns.add(&mut writer, made.clone(), 0).unwrap();
    for number in 0..9 {
        columns.append(&mut writer, 0, 0, number, &row(number)).unwrap();
    }
    let mut kept = vec![Kept::default(); 2];
    keep(&mut kept, writer.commit().unwrap());
    assert!(!kept[0].chunks.is_empty());
    for without in [false, true] {
        if without {
            kept[0].chunks.remove(0);
        }
        let mut reader = ArrayReader::open(&path).unwrap();
        for (field, kept) in made.fields().zip(&kept) {
            let (chunks, tails) = (kept.chunks.clone(), kept.tails.clone());
            reader.add_field(field.clone(), chunks, tails).unwrap();
        }
        let mut out = vec![0; 30];
        let read = read_stacks(&reader, (0, 1), (StackAxis::First, 3), &[0], &mut out, 1);
        assert_eq!(matches!(read, Err(crate::Error::Corrupt(_))), without, "{read:?}");
    }
}

#[test]
fn metadata_that_is_not_in_the_file_is_overwritten() {
    let folder = Folder::new();
    let path = folder.path("run.h5");
    let mut writer = ArrayWriter::create(&path, 1).unwrap();
    finished(&mut writer, 0).unwrap();
    let end = writer.end();
    assert_eq!(ArrayWriter::open(&path, 48, 1).unwrap().end(), end);
    let far = crate::hdf5::metadata(&Group::default(), 1 << 50).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[..48].copy_from_slice(&far.superblock);
    std::fs::write(&path, bytes).unwrap();
    assert_eq!(ArrayWriter::open(&path, 60, 1).unwrap().end(), 60);
}

#[test]
fn nothing_is_committed_after_rows_that_could_not_be_encoded() {
    let folder = Folder::new();
    let path = folder.path("run.h5");
    let mut writer = ArrayWriter::create(&path, 1).unwrap();
    let filters = Filters { codec: Codec::Zstd, level: Some(1000), shuffle: false };
    let field = writer.add_field(FieldSpec { filters, ..spec("a", Codec::Zstd, false) }).unwrap();
    writer.append(field, 0, &row(0)).unwrap();
    for _ in 0..2 {
        assert!(writer.commit().is_err());
    }
    assert!(finished(&mut writer, 1).is_err());
    assert!(writer.append(field, 1 << 63, &row(0)).is_err());
}
