//! The arrays of a run are read as they were written: after every commit, after the end, and when
//! the run was continued. A file with damage is read to the same rows or to an error, and a table of
//! chunks with damage to rows or an error. No call panics, or allocates more memory than the file
//! and the tables justify.
//!
//! The input is taken from its start: the columns, the rows with their commits, and then what is
//! damaged. After its end everything is zero.

#![no_main]

mod watched;

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use libfuzzer_sys::fuzz_target;
use relive_core::codec::Codec;
use relive_core::crc::crc32c;
use relive_core::hdf5::{Filters, Group, SUPERBLOCK_BYTES, metadata};
use relive_core::replay::{
    ArrayReader, ArrayWriter, ChunkRecord, ChunkTable, ColumnSpec, Columns, Commit, FieldSpec,
    RowsOf, RunLength, StackAxis, StoredChunk, TailRecord, read_stacks,
};
use relive_core::{Error, Result};

use crate::watched::LARGEST;

/// Memory for chunks, rows, messages and contexts; the tables and files are much smaller.
const MOST_MEMORY: usize = 8 << 20;

/// Rows of more bytes are not read.
const MAX_ROW_BYTES: usize = 1 << 14;

fuzz_target!(|input: &[u8]| {
    let mut input = Input(input);
    let path = path();
    drop(fs::remove_file(&path));
    let mut run = Run::new(&mut input);
    LARGEST.store(0, Ordering::Relaxed);
    let (writer, columns) = run.writer(ArrayWriter::create(&path, 1).expect("there is room"));
    run.record(writer, columns, &path, &mut input);
    run.check(&path, Trust::All);
    if input.byte() & 1 == 0 {
        let (writer, columns) = run.resumed(&path).expect("the run is whole");
        run.record(writer, columns, &path, &mut input);
        run.check(&path, Trust::All);
    }
    damage_file(&path, &mut input);
    run.check(&path, Trust::File);
    run.damage_tables(&path, &mut input);
    run.check(&path, Trust::Nothing);
    let resumed = run.resumed(&path);
    if let Ok((writer, columns)) = resumed {
        run.append_anything(writer, columns, &mut input);
    }
    let largest = LARGEST.load(Ordering::Relaxed);
    assert!(largest <= MOST_MEMORY, "a block of {largest} bytes was requested");
});

/// What was not damaged.
#[derive(Clone, Copy, PartialEq)]
enum Trust {
    /// File and tables.
    All,
    /// The tables: their checksums find what changed in the file.
    File,
    Nothing,
}

/// What a database has about a run, and what was recorded.
struct Run {
    columns: Vec<ColumnSpec>,
    fields: Vec<Stored>,
    rows: BTreeMap<(usize, u64), Vec<u8>>,
    steps: u64,
    end: u64,
}

#[derive(Default, Clone)]
struct Stored {
    chunks: Vec<StoredChunk>,
    tails: Vec<TailRecord>,
}

impl Run {
    fn new(input: &mut Input) -> Self {
        let mut columns: Vec<ColumnSpec> = Vec::new();
        for number in 0..=usize::from(input.byte() % 3) {
            let spec = field_spec(number, input);
            let name = format!("column{number}");
            let axis = if input.byte() & 1 == 0 { StackAxis::First } else { StackAxis::Last };
            let stacked = match input.byte() % 4 {
                0 | 1 => None,
                2 => ColumnSpec::stacked(&spec, &name, axis, None).ok(),
                _ => shared(&columns, number),
            };
            columns.push(stacked.unwrap_or(ColumnSpec::Plain(spec)));
        }
        let fields = vec![Stored::default(); columns.iter().map(|c| c.fields().count()).sum()];
        Self { columns, fields, rows: BTreeMap::new(), steps: 0, end: SUPERBLOCK_BYTES as u64 }
    }

    fn writer(&self, mut writer: ArrayWriter) -> (ArrayWriter, Columns) {
        let mut columns = Columns::default();
        for spec in &self.columns {
            columns.add(&mut writer, spec.clone(), 0).expect("the columns are small");
        }
        (writer, columns)
    }

    /// Continues the run.
    fn resumed(&self, path: &Path) -> Result<(ArrayWriter, Columns)> {
        let reader = self.reader(path)?;
        let mut writer = ArrayWriter::open(path, self.end, 1)?;
        let (mut columns, mut field) = (Columns::default(), 0);
        for spec in &self.columns {
            let count = spec.fields().count();
            let states: Vec<_> = (field..field + count)
                .map(|field| reader.open_rows(field))
                .collect::<Result<_>>()?;
            let planes = if count > 1 { states[0].0 } else { 0 };
            columns.add(&mut writer, spec.clone(), planes)?;
            for (rows, open) in states {
                let mut chunks = self.fields[field].chunks.clone();
                chunks.sort_by_key(|chunk| chunk.first_row);
                writer.restore(field, chunks, rows, open)?;
                field += 1;
            }
        }
        Ok((writer, columns))
    }

    /// Appends rows, of which some are left out, with commits in between.
    fn record(
        &mut self,
        mut writer: ArrayWriter,
        mut columns: Columns,
        path: &Path,
        input: &mut Input,
    ) {
        for _ in 0..input.byte() % 24 {
            let row = self.steps;
            let flags = input.byte();
            for number in 0..self.columns.len() {
                if flags >> number & 1 != 0 {
                    continue;
                }
                let bytes = input.pattern(row_bytes(&self.columns[number]));
                let stream = u64::from(flags >> 3 & 1);
                columns.append(&mut writer, number, stream, row, &bytes).expect("it is in order");
                self.rows.insert((number, row), bytes);
            }
            self.steps += 1;
            if flags & 0x30 == 0x30 {
                let commit = writer.commit().expect("there is room");
                self.keep(commit, &writer);
                self.check(path, Trust::All);
            }
            if flags & 0xc0 == 0xc0 {
                writer.write_snapshot(Group::default()).expect("there is room");
            }
        }
        let commit = if input.byte() & 1 == 0 {
            let length = RunLength { steps: self.steps, ends: 0 };
            writer.finish(Group::default(), length, ChunkTable::Stored)
        } else {
            writer.commit()
        };
        self.keep(commit.expect("there is room"), &writer);
    }

    fn keep(&mut self, commit: Commit, writer: &ArrayWriter) {
        for chunk in commit.chunks {
            let ChunkRecord { field, first_row, rows, offset, bytes, crc } = chunk;
            let stored = &mut self.fields[field];
            stored.chunks.retain(|old| old.first_row != first_row);
            let inside =
                |tail: &TailRecord| (first_row..first_row + rows).contains(&tail.first_row);
            stored.tails.retain(|tail| !inside(tail));
            stored.chunks.push(StoredChunk { first_row, rows, offset, bytes, crc });
        }
        for tail in commit.tails {
            self.fields[tail.field].tails.push(tail);
        }
        self.end = writer.end();
    }

    fn reader(&self, path: &Path) -> Result<ArrayReader> {
        let mut reader = ArrayReader::open(path)?;
        let mut fields = self.fields.iter();
        for spec in self.columns.iter().flat_map(ColumnSpec::fields) {
            let Stored { chunks, tails } = fields.next().cloned().unwrap_or_default();
            reader.add_field(spec.clone(), chunks, tails)?;
        }
        Ok(reader)
    }

    /// Reads every row, and one that does not exist.
    fn check(&self, path: &Path, trust: Trust) {
        let reader = match self.reader(path) {
            Ok(reader) => reader,
            Err(error) => {
                assert!(trust == Trust::Nothing, "{error}");
                is_typed(&error);
                return;
            }
        };
        let mut rows: Vec<u64> = (0..=self.steps).collect();
        rows.extend([0, u64::MAX, self.steps / 2]);
        let mut field = 0;
        for (number, spec) in self.columns.iter().enumerate() {
            let size = row_bytes(spec);
            let fields = field..field + spec.fields().count();
            field = fields.end;
            if size > MAX_ROW_BYTES {
                continue;
            }
            let mut out = vec![1; size * rows.len()];
            let done = match spec {
                ColumnSpec::Plain(_) => reader.read(fields.start, &rows, &mut out, 1),
                ColumnSpec::Stacked { axis, depth, planes_of, .. } => {
                    let planes = planes_of.map_or(fields.start, |of| self.first_field(of));
                    let places = (planes, fields.end - 1);
                    read_stacks(&reader, places, (*axis, *depth), &rows, &mut out, 1)
                }
            };
            if let Err(error) = done {
                assert!(trust != Trust::All, "{error}");
                is_typed(&error);
                continue;
            }
            if trust == Trust::Nothing {
                continue;
            }
            for (place, &row) in rows.iter().enumerate() {
                let found = &out[place * size..(place + 1) * size];
                match self.rows.get(&(number, row)) {
                    Some(bytes) => assert_eq!(found, bytes, "row {row} of column {number}"),
                    None => assert!(found.iter().all(|&byte| byte == 0), "row {row}"),
                }
            }
        }
        for field in 0..self.fields.len() {
            if let Err(error) = reader.open_rows(field) {
                assert!(trust != Trust::All, "{error}");
                is_typed(&error);
            }
        }
    }

    fn first_field(&self, column: usize) -> usize {
        self.columns[..column].iter().map(|spec| spec.fields().count()).sum()
    }

    fn damage_tables(&mut self, path: &Path, input: &mut Input) {
        for _ in 0..input.byte() % 4 {
            let kind = input.byte();
            let value = input.number();
            let count = self.fields.len();
            let field = &mut self.fields[usize::from(input.byte()) % count];
            let place = usize::from(input.byte());
            if kind % 16 > 12 {
                let count = self.columns.len();
                damage_spec(&mut self.columns[place % count], kind, value);
            } else if kind % 16 < 8 && !field.chunks.is_empty() {
                let place = place % field.chunks.len();
                let chunk = &mut field.chunks[place];
                match kind % 8 {
                    0 => chunk.first_row = value,
                    1 => chunk.rows = value,
                    2 => chunk.offset = value,
                    3 => chunk.bytes = value as u32,
                    4 => chunk.crc = value as u32,
                    5 => drop(field.chunks.remove(place)),
                    6 => {
                        chunk.offset = value % 4096;
                        chunk.crc = crc_at(path, chunk);
                    }
                    _ => field.chunks.push(StoredChunk { first_row: value, ..field.chunks[place] }),
                }
            } else if !field.tails.is_empty() {
                let place = place % field.tails.len();
                let tail = &mut field.tails[place];
                match kind % 4 {
                    0 => tail.first_row = value,
                    1 => tail.rows = value,
                    2 => {
                        tail.data = input.pattern(usize::from(value as u8));
                        tail.crc = crc32c(&tail.data);
                    }
                    _ => drop(field.tails.remove(place)),
                }
            }
        }
    }

    /// Appends rows to a run whose tables are damaged; each call may be refused.
    fn append_anything(&self, mut writer: ArrayWriter, mut columns: Columns, input: &mut Input) {
        for _ in 0..input.byte() % 8 {
            let column = usize::from(input.byte() % 4);
            let size = self.columns.get(column).map_or(1, row_bytes).min(MAX_ROW_BYTES);
            let row = input.number();
            let done = match input.byte() % 3 {
                0 => columns.append(&mut writer, column, row, row, &input.pattern(size)),
                1 => columns.append_rows(&mut writer, column, row, &input.pattern(3 * size)),
                _ => writer.commit().map(|_| ()),
            };
            if let Err(error) = done {
                is_typed(&error);
            }
        }
        let length = RunLength { steps: input.number(), ends: 0 };
        if let Err(error) = writer.finish(Group::default(), length, ChunkTable::Stored) {
            is_typed(&error);
        }
    }
}

/// Memory does not fail, so no error is one of the operating system.
fn is_typed(error: &Error) {
    assert!(!matches!(error, Error::Io(_)), "{error}");
}

fn damage_file(path: &Path, input: &mut Input) {
    let file = OpenOptions::new().read(true).write(true).open(path).expect("it was written");
    let size = file.metadata().expect("it is open").len();
    let kind = input.byte();
    let place = input.number() % size.max(1);
    match kind % 4 {
        0 if size > 0 => {
            let mut byte = [0];
            file.read_exact_at(&mut byte, place).expect("it is inside");
            file.write_all_at(&[byte[0] ^ input.byte()], place).expect("there is room");
        }
        1 => file.set_len(place).expect("there is room"),
        2 => {
            // A superblock that describes a file of any size.
            if let Ok(made) = metadata(&Group::default(), input.word()) {
                file.write_all_at(&made.superblock, 0).expect("there is room");
            }
        }
        _ => {}
    }
}

fn damage_spec(spec: &mut ColumnSpec, kind: u8, value: u64) {
    let (field, depth) = match spec {
        ColumnSpec::Plain(field) => (field, None),
        ColumnSpec::Stacked { planes, numbers, depth, .. } => {
            (if value & 1 == 0 { planes } else { numbers }, Some(depth))
        }
    };
    match (kind / 16 % 4, depth) {
        (0, _) => field.chunk_rows = value,
        (1, _) if !field.shape.is_empty() => field.shape[0] = value,
        (2, _) => field.filters.codec = Codec::ALL[(value % 4) as usize],
        (_, Some(depth)) => *depth = (value as usize).max(1),
        _ => field.filters.shuffle = !field.filters.shuffle,
    }
}

/// Returns a column that has the planes of one before it.
fn shared(columns: &[ColumnSpec], number: usize) -> Option<ColumnSpec> {
    let made = |column: &ColumnSpec| match column {
        ColumnSpec::Stacked { planes, numbers, axis, depth, planes_of: None } => {
            let path = format!("stacks/column{number}");
            let (planes, numbers) = (planes.clone(), FieldSpec { path, ..numbers.clone() });
            Some((planes, numbers, *axis, *depth))
        }
        _ => None,
    };
    let place = columns.iter().position(|column| made(column).is_some())?;
    let (planes, numbers, axis, depth) = made(&columns[place])?;
    Some(ColumnSpec::Stacked { planes, numbers, axis, depth, planes_of: Some(place) })
}

fn field_spec(number: usize, input: &mut Input) -> FieldSpec {
    const TYPES: [&str; 4] = ["|u1", "<i2", "<f4", "<c16"];
    FieldSpec {
        path: format!("column{number}"),
        datatype: TYPES[usize::from(input.byte() % 4)].parse().expect("it is known"),
        shape: (0..input.byte() % 4).map(|_| u64::from(input.byte() % 6)).collect(),
        chunk_rows: u64::from(input.byte() % 9) + 1,
        filters: Filters {
            codec: Codec::ALL[usize::from(input.byte() % 4)],
            level: None,
            shuffle: input.byte() & 1 == 0,
        },
        rows_of: RowsOf::Steps,
    }
}

/// Returns the bytes of a row of a column, or the most there can be.
fn row_bytes(spec: &ColumnSpec) -> usize {
    let product = |field: &FieldSpec| {
        let items = field.shape.iter().fold(1_u64, |product, &size| product.saturating_mul(size));
        items.saturating_mul(field.datatype.size().into()) as usize
    };
    match spec {
        ColumnSpec::Plain(field) => product(field),
        ColumnSpec::Stacked { planes, depth, .. } => product(planes).saturating_mul(*depth),
    }
}

/// Returns the checksum of the bytes that are where a chunk is, as far as they exist.
fn crc_at(path: &Path, chunk: &StoredChunk) -> u32 {
    let file = fs::read(path).expect("it was written");
    let start = file.len().min(chunk.offset as usize);
    let end = file.len().min(start + chunk.bytes as usize);
    crc32c(&file[start..end])
}

/// A file of this process, in memory where there is such a place.
fn path() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
    parent.join(format!("relive-fuzz-replay-{}", std::process::id()))
}

/// Takes values from the start of an input; after its end they are zero.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// Returns a number that is mostly small, and otherwise any.
    fn number(&mut self) -> u64 {
        match self.byte() {
            255 => self.word(),
            254 => u64::MAX - u64::from(self.byte()),
            253 => u64::from(self.byte()) << (self.byte() % 64),
            small => u64::from(small),
        }
    }

    /// Returns bytes that take little of the input, and are sometimes those of a neighbour.
    fn pattern(&mut self, length: usize) -> Vec<u8> {
        let (seed, step) = (self.byte(), self.byte() % 4);
        (0..length).map(|at| seed.wrapping_add((at as u8).wrapping_mul(step))).collect()
    }
}
