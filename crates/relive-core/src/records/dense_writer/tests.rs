//! Chunks, checksums and positions against bytes that are simply kept.

use std::fs::{self, File};
use std::sync::Arc;

use super::*;
use crate::crc::crc32c;
use crate::durable::{Folder, Growing};
use crate::records::chunk::chunk_paths;
use crate::records::chunk_writer::MAX_OPEN;
use crate::records::layout::{BLOCK, u32_at};

const UID: Uid = [9; 16];

fn config(folder: &Folder, stride: u64, rows: u64) -> DenseConfig {
    let folder = folder.path("");
    DenseConfig { folder, uid: UID, field: 3, stride, rows }
}

/// ChunkNumbers that look like none in particular.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % bound
    }

    fn bytes(&mut self, count: u64) -> Vec<u8> {
        (0..count).map(|_| self.below(256) as u8).collect()
    }
}

/// What the chunks must be, given all rows there ever were and how far they are committed.
#[derive(Clone)]
struct Model {
    config: DenseConfig,
    numbers: Vec<u32>,
    bytes: Vec<u8>,
    committed: usize,
}

impl Model {
    /// Bytes of the rows of a full chunk.
    fn capacity(&self) -> u64 {
        self.config.chunk_bytes() - PAGE
    }

    fn chunk(&self, position: usize) -> &[u8] {
        let capacity = self.capacity() as usize;
        let end = self.bytes.len().min((position + 1) * capacity);
        &self.bytes[position * capacity..end]
    }

    fn positions(&self) -> Vec<Position> {
        let capacity = self.capacity() as usize;
        let mut wanted = Vec::new();
        for (position, &chunk) in self.numbers.iter().enumerate() {
            let bytes = self.chunk(position);
            if position * capacity + bytes.len() > self.committed {
                let tail = &bytes[bytes.len() / BLOCK as usize * BLOCK as usize..];
                wanted.push(Position {
                    chunk,
                    tail: if tail.is_empty() { 0 } else { crc32c(tail) },
                    position: PAGE + bytes.len() as u64,
                    records: bytes.len() as u64 / self.config.stride,
                });
            }
        }
        wanted
    }

    fn check_files(&self) {
        for (position, &number) in self.numbers.iter().enumerate() {
            let wanted = self.chunk(position);
            let (data, crcs) = chunk_paths(&self.config.folder, number);
            let (data, crcs) = (fs::read(data).unwrap(), fs::read(crcs).unwrap());
            assert_eq!(data[..PAGE as usize], self.config.header(number).to_page());
            assert!(data[PAGE as usize..].starts_with(wanted));
            for (block, bytes) in wanted.chunks_exact(BLOCK as usize).enumerate() {
                assert_eq!(u32_at(&crcs, block * 4), crc32c(bytes), "block {block}");
            }
            assert!(crcs.len() as u64 >= wanted.len() as u64 / BLOCK * 4);
            if wanted.len() as u64 == self.capacity() {
                assert!(data.len() as u64 <= PAGE + self.capacity());
            }
        }
    }

    fn is_trimmed(&self) {
        for (position, &number) in self.numbers.iter().enumerate() {
            let bytes = self.chunk(position).len() as u64;
            let (data, crcs) = chunk_paths(&self.config.folder, number);
            assert_eq!(fs::metadata(data).unwrap().len(), PAGE + bytes);
            assert_eq!(fs::metadata(crcs).unwrap().len(), bytes / BLOCK * 4);
        }
    }
}

fn numbers(from: u32) -> impl FnMut() -> Result<u32> {
    // Other fields take numbers as well.
    let mut next = from;
    move || {
        next += 3;
        Ok(next)
    }
}

fn any_course(stride: u64, rows: u64, seed: u64, most: u64, steps: usize) {
    let folder = Folder::new();
    let mut dice = Dice(seed);
    let pattern = dice.bytes(1 << 20);
    let config = config(&folder, stride, rows);
    let mut writer = DenseWriter::new(config.clone());
    let mut model = Model { config, numbers: Vec::new(), bytes: Vec::new(), committed: 0 };
    let mut next = numbers(0);
    for _ in 0..steps {
        match dice.below(12) {
            0 | 1 => {
                writer.drain().unwrap();
                model.numbers.extend(writer.chunks.created());
                assert_eq!(writer.chunks.positions(), model.positions());
                model.check_files();
            }
            2 => {
                writer.drain().unwrap();
                writer.chunks.committed();
                model.numbers.extend(writer.chunks.created());
                model.committed = model.bytes.len();
                assert!(writer.chunks.positions().is_empty());
            }
            3 => writer.sync().unwrap(),
            4 => {
                // Another writer goes on; what this one left behind is of no use to it.
                writer.drain().unwrap();
                model.numbers.extend(writer.chunks.created());
                writer.chunks.committed();
                model.committed = model.bytes.len();
                let (data, _) =
                    chunk_paths(&model.config.folder, *model.numbers.last().unwrap_or(&0));
                let all = Model { committed: 0, ..model.clone() };
                let last = all.positions().pop();
                writer = DenseWriter::new(model.config.clone());
                if let Some(last) = last.filter(|last| last.records < rows) {
                    let file = Growing::open(&data).unwrap();
                    file.write_at(b"left by a crash", last.position).unwrap();
                    writer.resume(&last).unwrap();
                    assert_eq!(writer.room(), rows - last.records);
                }
            }
            large => {
                let bound = if large > 10 { most } else { most / 50 + 1 };
                let bytes = dice.below(bound) / stride * stride;
                let start = dice.below(1000);
                let repeated = pattern.iter().cycle().skip(start as usize);
                let piece: Vec<u8> = repeated.take(bytes as usize).copied().collect();
                writer.push(&piece, &mut next).unwrap();
                model.bytes.extend(piece);
                let used = model.bytes.len() as u64 / stride % rows;
                assert_eq!(writer.room(), if used == 0 { 0 } else { rows - used });
            }
        }
    }
    writer.drain().unwrap();
    writer.sync().unwrap();
    model.numbers.extend(writer.chunks.created());
    assert_eq!(writer.chunks.positions(), model.positions());
    assert!(writer.chunks.unsynced().is_empty());
    model.check_files();
    writer.chunks.committed();
    writer.trim().unwrap();
    model.is_trimmed();
    writer.push(&vec![1; stride as usize], &mut next).unwrap();
}

#[test]
fn rows_blocks_and_positions_are_those_of_the_model() {
    for (seed, (stride, rows, most)) in [
        (1, 4096, 30_000),
        (12, 1024, 100_000),
        (3072, 4, 200_000),
        (3072, 400, 6_000_000),
        (28_672, 100, 9_000_000),
        (65_536, 3, 1_000_000),
        (4096, 1, 30_000),
        (2_000_896, 2, 9_000_000),
    ]
    .into_iter()
    .enumerate()
    {
        for course in 0..2 {
            any_course(stride, rows, seed as u64 * 2 + course, most, 60);
        }
    }
}

#[test]
fn more_full_chunks_than_are_held_open_are_all_committed() {
    let folder = Folder::new();
    let config = config(&folder, 4096, 1);
    let mut writer = DenseWriter::new(config.clone());
    let count = 3 * MAX_OPEN as u64;
    let bytes = Dice(5).bytes(count * 4096);
    writer.push(&bytes, &mut numbers(0)).unwrap();
    writer.drain().unwrap();
    assert_eq!(writer.chunks.full.len(), MAX_OPEN);
    let mut model = Model { config, numbers: writer.chunks.created(), bytes, committed: 0 };
    assert_eq!(model.numbers.len() as u64, count);
    assert_eq!(writer.chunks.positions(), model.positions());
    model.check_files();
    writer.chunks.committed();
    writer.sync().unwrap();
    assert!(writer.chunks.positions().is_empty() && writer.chunks.full.is_empty());
    // What is not committed is cut off, in closed chunks too.
    writer.push(&model.bytes, &mut numbers(1000)).unwrap();
    writer.trim().unwrap();
    model.is_trimmed();
    model.numbers = writer.chunks.created();
    model.bytes.clear();
    model.config.rows = 0;
    model.is_trimmed();
    let refused = writer.push(&[0; 4096], &mut numbers(2000)).unwrap_err();
    assert!(refused.to_string().contains("discarded"), "{refused}");
}

#[test]
fn what_is_no_row_is_refused_and_nothing_taken() {
    let folder = Folder::new();
    let mut writer = DenseWriter::new(config(&folder, 8, 512));
    let refused = writer.push(&[0; 12], &mut numbers(0)).unwrap_err();
    assert_eq!(refused.kind(), "invalid");
    assert!(writer.chunks.created().is_empty() && folder.names().is_empty());
    writer.push(&[0; 16], &mut numbers(0)).unwrap();
    assert_eq!(writer.room(), 510);
}

#[test]
fn a_chunk_that_is_not_what_was_committed_is_corrupt() {
    let folder = Folder::new();
    let config = config(&folder, 100, 4096);
    let mut writer = DenseWriter::new(config.clone());
    writer.push(&Dice(1).bytes(200_000), &mut numbers(0)).unwrap();
    writer.drain().unwrap();
    let last = writer.chunks.positions()[0];
    let (data, crcs) = chunk_paths(&config.folder, last.chunk);
    let resume = |config: &DenseConfig, last: Position| {
        let mut writer = DenseWriter::new(config.clone());
        writer.resume(&last).map_err(|error| (error.kind(), error.to_string()))
    };
    resume(&config, last).unwrap();
    let other_field = DenseConfig { field: 4, ..config.clone() };
    let other_store = DenseConfig { uid: [1; 16], ..config.clone() };
    for (config, last) in [
        (&other_field, last),
        (&other_store, last),
        (&config, Position { tail: last.tail ^ 1, ..last }),
        (&config, Position { position: last.position + 100, ..last }),
        (&config, Position { position: 100, records: 0, ..last }),
        (&config, Position { records: u64::MAX, ..last }),
        (&config, Position { records: 5000, position: PAGE + 500_000, ..last }),
    ] {
        assert_eq!(resume(config, last).unwrap_err().0, "corrupt");
    }
    let whole = fs::read(&data).unwrap();
    let mut flipped = whole.clone();
    flipped[last.position as usize - 1] ^= 4;
    for bytes in [&flipped[..], &whole[..last.position as usize - 1], &whole[..50]] {
        fs::write(&data, bytes).unwrap();
        let (kind, text) = resume(&config, last).unwrap_err();
        assert_eq!(kind, "corrupt");
        assert!(text.contains(&data.display().to_string()), "{text}");
    }
    fs::write(&data, &whole).unwrap();
    fs::write(&crcs, [0; 11]).unwrap();
    assert_eq!(resume(&config, last).unwrap_err().0, "corrupt");
    fs::remove_file(&data).unwrap();
    assert_eq!(resume(&config, last).unwrap_err().0, "not-found");
}

#[test]
fn a_failed_write_ends_it() {
    let folder = Folder::new();
    for large in [false, true] {
        let mut next = numbers(if large { 10 } else { 0 });
        let mut writer = DenseWriter::new(config(&folder, 4096, 4096));
        writer.push(&[7; 8192], &mut next).unwrap();
        writer.drain().unwrap();
        writer.chunks.committed();
        let chunk = writer.chunks.open.as_mut().unwrap();
        // A handle that cannot write.
        let path = chunk.data.path().to_path_buf();
        let read_only = File::open(&path).unwrap();
        chunk.data = Arc::new(Growing::over(&path, read_only).unwrap());
        let before = fs::read(&path).unwrap();
        let outcome = if large {
            writer.push(&[8; 4 << 20], &mut next)
        } else {
            writer.push(&[8; 4096], &mut next).unwrap();
            writer.drain()
        };
        let first = outcome.unwrap_err().to_string();
        assert!(first.contains(&path.display().to_string()), "{first}");
        let again = [writer.push(&[8; 4096], &mut next), writer.drain(), writer.sync()];
        for refused in again {
            assert!(refused.unwrap_err().to_string().contains("earlier write failed"));
        }
        assert_eq!(fs::read(&path).unwrap(), before);
    }
}

#[test]
fn a_chunk_that_cannot_be_made_ends_it() {
    let folder = Folder::new();
    let mut writer = DenseWriter::new(config(&folder, 4096, 1));
    fs::write(chunk_paths(&folder.path(""), 2).0, b"somebody's").unwrap();
    let mut next = || Ok(2);
    let refused = writer.push(&[1; 4096], &mut next).unwrap_err();
    assert_eq!(refused.kind(), "already-exists");
    assert_eq!(writer.push(&[1; 4096], &mut next).unwrap_err().kind(), "already-exists");
    let mut closed = DenseWriter::new(config(&folder, 4096, 1));
    let no_number = &mut || Err(Error::TooLarge("no more numbers".into()));
    assert_eq!(closed.push(&[1; 4096], no_number).unwrap_err().kind(), "too-large");
    assert!(closed.drain().is_err());
}
