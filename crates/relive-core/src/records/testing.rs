//! Stores for tests, written by hand, and a model of what they hold.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use super::chunk::chunk_paths;
use super::files::write_dictionary;
use super::journal_records::{AppendedValues, Commit, Op, Position};
use super::layout::{ALIGN, BLOCK, ChunkHeader, ChunkKind, Entry, PAGE, RecordHeader};
use super::meta::META;
use super::rows::SnapshotRows;
use super::snapshot::Snapshot;
use super::state::{FieldSpec, FieldState, Kind, State};
use super::table_file::write_table;
use crate::codec::{Codec, Dictionary, Encoder};
use crate::crc::{Crc32c, crc32c};
use crate::durable::Folder;
use crate::journal::Journal;
use crate::table::{ColumnShape, Table, Target};
use crate::{Error, Result};

/// What each field of a record holds.
pub(crate) type Row = Vec<Option<Vec<u8>>>;

/// A store that is written by hand.
pub(crate) struct Hand {
    pub(crate) folder: Folder,
    pub(crate) state: State,
    pub(crate) rows: Vec<Row>,
    /// Sequence and rows of each Commit of this generation, and the rows it began with.
    pub(crate) commits: Vec<(u64, Vec<Row>)>,
    journal: Option<Journal>,
    ops: Vec<Op>,
    dictionary: Option<Arc<Dictionary>>,
}

/// A field of a test.
pub(crate) fn field(name: &str, kind: Kind, codec: Codec, bytes: u64) -> FieldSpec {
    FieldSpec {
        id: 0,
        name: name.into(),
        dtype: "|u1".into(),
        shape: vec![],
        kind,
        ragged: u8::from(kind == Kind::Ragged),
        codec,
        level: None,
        bytes,
    }
}

impl Hand {
    pub(crate) fn new(specs: Vec<FieldSpec>, chunk_records: Option<u64>) -> Self {
        let folder = Folder::new();
        fs::create_dir(folder.path("chunk")).unwrap();
        let chunk_bytes = 1 << 20;
        let next_field = specs.len() as u16;
        let fields = (0..).zip(specs).map(|(id, spec)| {
            FieldState::new(Arc::new(FieldSpec { id, ..spec }), chunk_records, chunk_bytes)
        });
        let state = State {
            uid: *b"sixteen letters!",
            generation: 0,
            sequence: 0,
            length: 0,
            next_chunk: 0,
            next_field,
            chunk_records,
            chunk_bytes,
            chunks: BTreeMap::new(),
            fields: fields.collect(),
        };
        let commits = vec![(0, Vec::new())];
        let (rows, ops) = (Vec::new(), Vec::new());
        let hand = Self { folder, state, rows, commits, journal: None, ops, dictionary: None };
        hand.write_meta();
        hand
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.folder.path("")
    }

    pub(crate) fn write_meta(&self) {
        let journal = format!("{}.journal", self.state.generation);
        self.state.to_meta(&journal).replace(&self.root(), META).unwrap();
    }

    /// Puts a chunk in force: of this column, or a heap.
    pub(crate) fn chunk(&mut self, column: Option<usize>) -> u32 {
        let number = self.state.next_chunk;
        let field = column.map(|column| self.state.fields[column].spec.id);
        self.op(Op::Chunk { number, field });
        let kind = self.state.chunks[&number].kind;
        let header = ChunkHeader { number, uid: self.state.uid, kind };
        fs::write(chunk_paths(&self.root().join("chunk"), number).0, header.to_page()).unwrap();
        if column.is_some() {
            fs::write(chunk_paths(&self.root().join("chunk"), number).1, "").unwrap();
        }
        number
    }

    fn put(&mut self, number: u32, at: u64, bytes: &[u8]) {
        let path = chunk_paths(&self.root().join("chunk"), number).0;
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        file.write_all_at(bytes, at).unwrap();
        let chunk = self.state.chunks.get_mut(&number).unwrap();
        chunk.position = at + bytes.len() as u64;
        chunk.records += 1;
    }

    /// Brings the checksums of dense chunks up to date.
    fn seal(&mut self, number: u32) {
        let path = chunk_paths(&self.root().join("chunk"), number).0;
        let file = OpenOptions::new().read(true).open(path).unwrap();
        let chunk = self.state.chunks.get_mut(&number).unwrap();
        let mut all = vec![0; (chunk.position - PAGE) as usize];
        file.read_exact_at(&mut all, PAGE).unwrap();
        let (full, tail) = all.split_at(all.len() - all.len() % BLOCK as usize);
        chunk.tail = if tail.is_empty() { 0 } else { crc32c(tail) };
        let crcs: Vec<u8> =
            full.chunks(BLOCK as usize).flat_map(|block| crc32c(block).to_le_bytes()).collect();
        fs::write(chunk_paths(&self.root().join("chunk"), number).1, crcs).unwrap();
    }

    /// Writes the next physical row of a dense field.
    fn dense(&mut self, column: usize, physical: u64, value: &[u8]) {
        let field = &self.state.fields[column];
        let (per_chunk, stride) = (field.rows_per_chunk, field.spec.bytes);
        if physical == field.chunks.len() as u64 * per_chunk {
            self.chunk(Some(column));
        }
        let number = self.state.fields[column].chunks[(physical / per_chunk) as usize];
        self.put(number, PAGE + physical % per_chunk * stride, value);
    }

    /// Writes a record to the last heap chunk.
    pub(crate) fn record(&mut self, column: usize, value: &[u8]) -> Entry {
        let heap = |(&number, chunk): (&u32, &super::state::ChunkState)| {
            (chunk.kind == ChunkKind::Heap).then_some(number)
        };
        let last = self.state.chunks.iter().filter_map(heap).next_back();
        let chunk = last.unwrap_or_else(|| self.chunk(None));
        let spec = Arc::clone(&self.state.fields[column].spec);
        let mut encoder = Encoder::new(spec.codec, None).unwrap();
        if let Some(dictionary) = self.dictionary.clone().filter(|_| spec.codec == Codec::Zstd) {
            encoder = encoder.with_dictionary(dictionary).unwrap();
        }
        let stored = encoder.encode(value).unwrap();
        let (codec, stored) = if stored.len() < value.len() {
            (spec.codec, stored)
        } else {
            (Codec::Raw, value.to_vec())
        };
        // All varying dimensions but the first are 1.
        let items = value.len() as u64 / spec.bytes.max(1);
        let dims: Vec<u64> = (0..spec.dims()).map(|k| if k == 0 { items } else { 1 }).collect();
        let header = RecordHeader {
            field: spec.id,
            codec,
            dims: dims.len() as u8,
            sequence: self.state.sequence + 1,
            length: value.len() as u64,
            stored: stored.len() as u32,
            crc: 0,
        };
        let mut bytes = header.seal(&dims, &stored).to_vec();
        bytes.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
        bytes.extend(&stored);
        let offset = self.state.chunks[&chunk].position.next_multiple_of(ALIGN);
        self.put(chunk, offset, &bytes);
        Entry { chunk, offset, length: bytes.len() as u32 }
    }

    fn op(&mut self, op: Op) {
        self.state.apply(&op);
        self.ops.push(op);
    }

    /// Appends records in one call; a dense field has values in all of them or in none.
    pub(crate) fn append(&mut self, rows: &[Row]) {
        let mut fields = Vec::new();
        for column in 0..self.state.fields.len() {
            let (id, dense) = {
                let spec = &self.state.fields[column].spec;
                (spec.id, spec.is_dense())
            };
            let values: Vec<Option<&[u8]>> =
                rows.iter().map(|row| row[column].as_deref()).collect();
            let how = if values.iter().all(Option::is_none) {
                AppendedValues::Missing
            } else if dense {
                let first = self.state.fields[column].physical;
                for (k, value) in (0..).zip(&values) {
                    self.dense(column, first + k, value.unwrap());
                }
                let field = &self.state.fields[column];
                let from = (first / field.rows_per_chunk) as usize;
                let written = field.chunks[from..].to_vec();
                for number in written {
                    self.seal(number);
                }
                AppendedValues::Dense
            } else {
                let entry = |value: &Option<&[u8]>| {
                    value.map_or(Entry::MISSING, |value| self.record(column, value))
                };
                AppendedValues::Entries(values.iter().map(entry).collect())
            };
            fields.push((id, how));
        }
        self.op(Op::Append { rows: rows.len() as u64, fields });
        self.state.sequence += 1;
        self.rows.extend_from_slice(rows);
    }

    pub(crate) fn change(&mut self, row: usize, column: usize, value: Option<&[u8]>) {
        let entry = value.map_or(Entry::MISSING, |value| self.record(column, value));
        let id = self.state.fields[column].spec.id;
        self.op(Op::Change { row: row as u64, fields: vec![(id, entry)] });
        self.state.sequence += 1;
        self.rows[row][column] = value.map(<[u8]>::to_vec);
    }

    pub(crate) fn delete(&mut self, row: usize) {
        self.op(Op::Delete { row: row as u64 });
        self.state.sequence += 1;
        self.rows.swap_remove(row);
    }

    /// Ends the group.
    pub(crate) fn commit(&mut self, synced: bool) {
        let commit = self.commit_of(synced);
        self.write_group(&commit);
    }

    /// The Commit that the group would end with.
    pub(crate) fn commit_of(&self, synced: bool) -> Commit {
        let mut crc = Crc32c::default();
        self.ops.iter().for_each(|op| crc.update(&op.to_bytes()));
        let position = |(&chunk, known): (&u32, &super::state::ChunkState)| Position {
            chunk,
            tail: known.tail,
            position: known.position,
            records: known.records,
        };
        Commit {
            synced,
            ops: self.ops.len() as u32,
            sequence: self.state.sequence,
            length: self.state.length,
            crc: crc.value(),
            chunks: self.state.chunks.iter().map(position).collect(),
        }
    }

    pub(crate) fn write_group(&mut self, commit: &Commit) {
        let path = self.journal_path();
        let journal = self.journal.get_or_insert_with(|| Journal::create(&path).unwrap());
        for op in self.ops.drain(..) {
            journal.append(&op.to_bytes()).unwrap();
        }
        journal.append(&commit.to_bytes()).unwrap();
        journal.flush().unwrap();
        self.commits.push((commit.sequence, self.rows.clone()));
    }

    pub(crate) fn set_journal(&mut self, journal: Journal) {
        self.journal = Some(journal);
    }

    pub(crate) fn journal_path(&self) -> PathBuf {
        self.folder.path(&format!("{}.journal", self.state.generation))
    }

    /// Begins a generation with a table for each of these columns.
    pub(crate) fn checkpoint(&mut self, tables: &[usize]) {
        assert!(self.ops.is_empty());
        let snapshot = self.open(super::files::ReadOptions::default()).unwrap();
        let old = self.journal_path();
        self.state.generation += 1;
        for &column in tables {
            let (generation, length) = (self.state.generation, self.state.length);
            let field = &mut self.state.fields[column];
            let name = format!("{}.{generation}.offset", field.spec.name);
            let (uid, id) = (self.state.uid, field.spec.id);
            let mut entry = |row| snapshot.entry(column, row);
            write_table(&self.folder.path(""), &name, uid, id, length, &mut entry).unwrap();
            *field = field.in_table(name, length);
        }
        self.write_meta();
        self.journal = None;
        let _ = fs::remove_file(old);
        self.commits = vec![(self.state.sequence, self.rows.clone())];
    }

    /// Lets zstd fields have a dictionary from the next checkpoint on.
    pub(crate) fn dictionary(&mut self, column: usize, samples: &[Vec<u8>]) {
        let bytes = crate::codec::train_dictionary(samples, 512).unwrap();
        let field = &mut self.state.fields[column];
        let name = format!("{}.{}.dict", field.spec.name, field.dictionaries.len());
        write_dictionary(&self.folder.path(&name), &bytes).unwrap();
        field.dictionaries.push(name);
        self.dictionary = Some(Arc::new(Dictionary::new(bytes).unwrap()));
    }

    pub(crate) fn open(&self, options: super::files::ReadOptions) -> Result<Arc<Snapshot>> {
        super::open::Records::open(&self.root(), options, None).map(|records| records.snapshot())
    }
}

/// Gathers all columns of these rows, as the values of each.
pub(crate) fn gather(snapshot: &Arc<Snapshot>, rows: &[i64]) -> Result<Vec<Vec<Vec<u8>>>> {
    let table = Table::from_reader(Arc::new(SnapshotRows::new(Arc::clone(snapshot))))?;
    gather_table(&table, rows, 1)
}

/// The same of any table.
pub(crate) fn gather_table(
    table: &Table,
    rows: &[i64],
    threads: usize,
) -> Result<Vec<Vec<Vec<u8>>>> {
    let mut places = Vec::new();
    table.find(rows, &mut places)?;
    let mut bytes = Vec::new();
    let mut offsets = Vec::new();
    for (column, shape) in table.columns().iter().enumerate() {
        let mut own = Vec::new();
        let size = match shape {
            ColumnShape::Fixed { row_bytes } => row_bytes * rows.len(),
            ColumnShape::Ragged { item_bytes } => {
                table.offsets(column, &places, &mut own)?;
                own[rows.len()] as usize * item_bytes
            }
        };
        bytes.push(vec![0xEE; size]);
        offsets.push(own);
    }
    let targets: Vec<Target<'_>> = bytes
        .iter_mut()
        .zip(&offsets)
        .enumerate()
        .map(|(column, (bytes, offsets))| Target { column, offsets, out: bytes.as_mut_ptr() })
        .collect();
    // SAFETY: the buffers have the sizes that the table says.
    unsafe { table.gather(&places, &targets, threads) }?;
    drop(targets);
    let cut = |(column, shape): (usize, &ColumnShape)| -> Vec<Vec<u8>> {
        let (bytes, own) = (&bytes[column], &offsets[column]);
        match *shape {
            ColumnShape::Fixed { row_bytes } => (0..rows.len())
                .map(|k| bytes[k * row_bytes..(k + 1) * row_bytes].to_vec())
                .collect(),
            ColumnShape::Ragged { item_bytes } => own
                .windows(2)
                .map(|pair| {
                    bytes[pair[0] as usize * item_bytes..pair[1] as usize * item_bytes].to_vec()
                })
                .collect(),
        }
    };
    Ok(table.columns().iter().enumerate().map(cut).collect())
}

/// Compares everything that can be ops of a snapshot with the rows it must hold; the first
/// error of reading is given back.
pub(crate) fn compare(snapshot: &Arc<Snapshot>, rows: &[Row]) -> Result<()> {
    assert_eq!(snapshot.len(), rows.len() as u64);
    // Backwards, and the first one again.
    let order: Vec<i64> =
        (0..rows.len() as i64).rev().chain((!rows.is_empty()).then_some(0)).collect();
    for _ in 0..2 {
        let found = gather(snapshot, &order)?;
        for (column, found) in found.iter().enumerate() {
            let spec = &snapshot.state().fields[column].spec;
            let none = if spec.kind == Kind::Fixed { spec.bytes as usize } else { 0 };
            for (&row, found) in order.iter().zip(found) {
                let value = rows[row as usize][column].clone().unwrap_or_else(|| vec![0; none]);
                assert_eq!(*found, value, "row {row} of {}", spec.name);
            }
        }
    }
    for (number, row) in (0..).zip(rows) {
        for (column, value) in row.iter().enumerate() {
            let spec = &snapshot.state().fields[column].spec;
            assert_eq!(snapshot.missing(column, number)?, value.is_none());
            assert_eq!(snapshot.value(column, number)?, *value);
            if let Some(view) = snapshot.view(column, number)? {
                assert_eq!(Some(view.bytes()), value.as_deref());
            }
            let mut dims = Vec::new();
            snapshot.dims(column, number, &mut dims)?;
            assert_eq!(dims.len(), usize::from(spec.ragged));
            let items =
                value.as_ref().map_or(0, |value| value.len() as i64 / spec.bytes.max(1) as i64);
            assert!(spec.ragged == 0 || dims[0] == items);
        }
    }
    Ok(())
}

/// Whether an error says that something is damaged.
pub(crate) fn is_damage(error: &Error) -> bool {
    ["corrupt", "unsupported"].contains(&error.kind())
}
