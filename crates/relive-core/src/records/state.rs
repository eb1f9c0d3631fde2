//! The state of a store: where its values are. Only journal records change it.

mod extents;
mod spec;

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

pub use extents::{Extent, Extents};
pub use spec::{FieldSpec, Kind};

use super::journal_records::{AppendedValues, Commit, Op, Position};
use super::layout::{ChunkKind, Entry, PAGE, Uid, is_dense};
use super::meta::{Chunks, FORMAT, Field, Meta, VERSION};
use crate::{Error, Result};

/// The location of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// There is no value.
    Missing,
    /// This stored row of a dense field.
    Dense(u64),
    /// The entry at this row of the field's table.
    Table(u64),
    /// This entry.
    Entry(Entry),
}

/// A chunk and its write position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkState {
    /// The kind of the chunk.
    pub kind: ChunkKind,
    /// The offset of its next byte.
    pub position: u64,
    /// Records in it.
    pub records: u64,
    /// CRC of its last, partial block; 0 for a heap chunk.
    pub tail: u32,
}

/// A field and the locations of its values.
#[derive(Clone, Debug)]
pub struct FieldState {
    /// The spec of the field.
    pub spec: Arc<FieldSpec>,
    /// Dense: rows per chunk.
    pub rows_per_chunk: u64,
    /// Dense: its chunks, in order.
    pub chunks: Vec<u32>,
    /// Dense: the number of stored rows.
    pub physical: u64,
    /// The name of the table file, and its number of rows.
    pub table: Option<(String, u64)>,
    /// Names of its dictionaries, oldest first.
    pub dictionaries: Vec<String>,
    /// Rows below this are in the table.
    tabled: u64,
    /// Rows after those of the table: stored rows, or positions in `entries`.
    extents: Extents,
    /// Entries that are not in a table yet.
    entries: Vec<Entry>,
    /// Changed rows; these override all of the above.
    changes: HashMap<u64, Location, BuildHasherDefault<RowHasher>>,
}

/// The state of a store.
#[derive(Clone, Debug)]
pub struct State {
    /// The uid of the store.
    pub uid: Uid,
    /// The number of checkpoints.
    pub generation: u64,
    /// The sequence number of the last call.
    pub sequence: u64,
    /// The number of records.
    pub length: u64,
    /// The number of the next chunk.
    pub next_chunk: u32,
    /// The id of the next field.
    pub next_field: u16,
    /// The most records of a chunk, if the user set it.
    pub chunk_records: Option<u64>,
    /// Bytes at which a chunk is full.
    pub chunk_bytes: u64,
    /// All chunks, by number.
    pub chunks: BTreeMap<u32, ChunkState>,
    /// The fields, in the order of the user.
    pub fields: Vec<FieldState>,
}

impl FieldState {
    /// Makes a field without values.
    pub fn new(spec: Arc<FieldSpec>, chunk_records: Option<u64>, chunk_bytes: u64) -> Self {
        let rows_per_chunk =
            if spec.is_dense() { spec.rows_per_chunk(chunk_records, chunk_bytes) } else { 0 };
        Self {
            spec,
            rows_per_chunk,
            chunks: Vec::new(),
            physical: 0,
            table: None,
            dictionaries: Vec::new(),
            tabled: 0,
            extents: Extents::default(),
            entries: Vec::new(),
            changes: HashMap::default(),
        }
    }

    /// Returns the location of the value at a row below the length.
    #[inline]
    pub fn find(&self, row: u64) -> Location {
        if !self.changes.is_empty()
            && let Some(&place) = self.changes.get(&row)
        {
            return place;
        }
        if row < self.tabled {
            return Location::Table(row);
        }
        match self.extents.find(row) {
            None => Location::Missing,
            Some(physical) if self.spec.is_dense() => Location::Dense(physical),
            Some(position) => {
                self.entries.get(position as usize).map_or(Location::Missing, |&entry| found(entry))
            }
        }
    }

    /// Returns whether every row i is stored row i of a dense field.
    pub fn is_plain(&self, length: u64) -> bool {
        let whole = || match self.extents.all() {
            [] => length == 0,
            [only] => *only == Extent { logical: 0, physical: 0, rows: length },
            _ => false,
        };
        self.spec.is_dense() && self.tabled == 0 && self.changes.is_empty() && whole()
    }

    /// Returns the number of rows in the table; changes override them.
    pub fn tabled(&self) -> u64 {
        self.tabled
    }

    /// Returns the extents of rows after those of the table.
    pub fn extents(&self) -> &Extents {
        &self.extents
    }

    /// Returns the number of changed rows.
    pub fn changed(&self) -> usize {
        self.changes.len()
    }

    /// Returns roughly how many bytes of memory the field takes.
    pub fn weight(&self) -> usize {
        self.entries.len() * size_of::<Entry>() + self.changes.len() * 4 * size_of::<Location>()
    }

    /// Returns the entry of a stored row of a dense field.
    pub fn dense_entry(&self, physical: u64) -> Entry {
        let stride = self.spec.bytes;
        let chunk = physical / self.rows_per_chunk.max(1);
        let inside = physical % self.rows_per_chunk.max(1);
        // The spec was checked, so the length of a row fits.
        let length = stride as u32;
        match self.chunks.get(chunk as usize) {
            Some(&chunk) => Entry { chunk, offset: PAGE + inside * stride, length },
            None => Entry::MISSING,
        }
    }

    /// Returns the kind of a chunk of this dense field.
    pub fn chunk_kind(&self) -> ChunkKind {
        let (field, stride) = (self.spec.id, self.spec.bytes);
        ChunkKind::Dense { field, stride, rows: self.rows_per_chunk }
    }

    /// Appends values for `rows` rows from `row` on.
    pub(super) fn append(&mut self, row: u64, rows: u64, how: &AppendedValues) {
        match how {
            AppendedValues::Missing => {}
            AppendedValues::Dense => {
                self.extents.push(row, self.physical, rows);
                self.physical += rows;
            }
            AppendedValues::Entries(entries) => {
                self.extents.push(row, self.entries.len() as u64, rows);
                self.entries.extend(entries);
            }
        }
    }

    /// Returns the same rows, all of them in this table file.
    pub fn in_table(&self, name: String, rows: u64) -> Self {
        Self {
            table: Some((name, rows)),
            tabled: rows,
            extents: Extents::default(),
            entries: Vec::new(),
            changes: HashMap::default(),
            ..self.clone()
        }
    }

    fn delete(&mut self, row: u64, last: u64) {
        if row != last {
            let place = self.find(last);
            self.changes.insert(row, place);
        }
        self.changes.remove(&last);
        self.tabled = self.tabled.min(last);
        self.extents.truncate(last);
    }
}

fn found(entry: Entry) -> Location {
    if entry.is_missing() { Location::Missing } else { Location::Entry(entry) }
}

impl State {
    /// Returns the field with this id.
    pub fn field(&self, id: u16) -> Option<&FieldState> {
        self.fields.iter().find(|field| field.spec.id == id)
    }

    /// Returns the position of the field with this name.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|field| field.spec.name == name)
    }

    /// Returns roughly how many bytes of memory the rows since the checkpoint take.
    pub fn weight(&self) -> usize {
        self.fields.iter().map(FieldState::weight).sum()
    }

    /// Checks that a group of operations can follow this state, so that [`apply`](Self::apply) and
    /// [`commit`](Self::commit) accept it.
    pub fn check(&self, ops: &[Op], commit: &Commit) -> Result<()> {
        Check::new(self).group(ops, commit).ok_or_else(|| {
            Error::Corrupt(format!(
                "the journal is inconsistent: commit {} cannot follow commit {}",
                commit.sequence, self.sequence
            ))
        })
    }

    /// Applies an operation that was [checked](Self::check), or is from the writer itself.
    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Chunk { number, field } => {
                let field = field.and_then(|id| self.fields.iter_mut().find(|f| f.spec.id == id));
                let kind = match field {
                    Some(field) => {
                        field.chunks.push(*number);
                        field.chunk_kind()
                    }
                    None => ChunkKind::Heap,
                };
                let chunk = ChunkState { kind, position: PAGE, records: 0, tail: 0 };
                self.chunks.insert(*number, chunk);
                self.next_chunk = self.next_chunk.max(number + 1);
            }
            Op::Append { rows, fields } => {
                for (id, how) in fields {
                    if let Some(field) = self.fields.iter_mut().find(|f| f.spec.id == *id) {
                        field.append(self.length, *rows, how);
                    }
                }
                self.length += rows;
            }
            Op::Change { row, fields } => {
                for (id, entry) in fields {
                    if let Some(field) = self.fields.iter_mut().find(|f| f.spec.id == *id) {
                        field.changes.insert(*row, found(*entry));
                    }
                }
            }
            Op::Delete { row } => {
                self.length -= 1;
                for field in &mut self.fields {
                    field.delete(*row, self.length);
                }
            }
        }
    }

    /// Sets the write positions of chunks and the number of the last call.
    pub fn commit(&mut self, positions: &[Position], sequence: u64) {
        for position in positions {
            if let Some(chunk) = self.chunks.get_mut(&position.chunk) {
                chunk.position = position.position;
                chunk.records = position.records;
                chunk.tail = position.tail;
            }
        }
        self.sequence = sequence;
    }

    /// Makes the state that `meta.json` describes.
    pub(crate) fn from_meta(meta: &Meta) -> Result<Self> {
        let damaged = |text: String| Error::Corrupt(format!("`meta.json` is damaged: {text}"));
        let uid = u128::from_str_radix(&meta.uid, 16)
            .ok()
            .filter(|_| meta.uid.len() == 32 && !meta.uid.starts_with('+'))
            .ok_or_else(|| {
                damaged(format!("`uid` must be 32 hexadecimal digits, got {:?}", meta.uid))
            })?
            .to_be_bytes();
        let mut chunks = BTreeMap::new();
        for &(number, position, records, tail) in meta.chunks.full.iter().chain(&meta.chunks.unfull)
        {
            let chunk = ChunkState { kind: ChunkKind::Heap, position, records, tail };
            let fits = number < meta.chunks.next && position >= PAGE;
            if !fits || chunks.insert(number, chunk).is_some() {
                return Err(damaged(format!(
                    "the entry for chunk {number} is invalid or duplicated"
                )));
            }
        }
        let mut fields: Vec<FieldState> = Vec::with_capacity(meta.fields.len());
        let mut owned = 0;
        for field in &meta.fields {
            let found = field_state(field, meta.length)
                .map_err(|error| error.about(format!("`meta.json`, field {:?}", field.name)))?;
            let known = |other: &FieldState| {
                other.spec.id == found.spec.id || other.spec.name == found.spec.name
            };
            if fields.iter().any(known) || field.id >= meta.next_field {
                return Err(damaged(format!(
                    "the id or name of field {:?} is invalid or duplicated",
                    field.name
                )));
            }
            for number in &found.chunks {
                let chunk = chunks.get_mut(number).filter(|chunk| chunk.kind == ChunkKind::Heap);
                let chunk = chunk.ok_or_else(|| {
                    damaged(format!(
                        "chunk {number} is missing from `chunks` or belongs to two fields"
                    ))
                })?;
                chunk.kind = found.chunk_kind();
                owned += 1;
            }
            fields.push(found);
        }
        let heap = |number: &u32| chunks.get(number).is_some_and(|c| c.kind == ChunkKind::Heap);
        if !meta.heap.iter().all(heap) || meta.heap.len() + owned != chunks.len() {
            return Err(damaged("the list `heap` does not match the list `chunks`".into()));
        }
        if i64::try_from(meta.length).is_err() {
            return Err(damaged(format!(
                "the number of records, {}, exceeds the limit of 2^63 - 1",
                meta.length
            )));
        }
        Ok(Self {
            uid,
            generation: meta.generation,
            sequence: meta.sequence,
            length: meta.length,
            next_chunk: meta.chunks.next,
            next_field: meta.next_field,
            chunk_records: meta.chunks.size,
            chunk_bytes: meta.chunks.bytes,
            chunks,
            fields,
        })
    }

    /// Returns the content of `meta.json`. All rows must be in tables or extents.
    pub(crate) fn to_meta(&self, journal: &str) -> Meta {
        let line = |(&number, chunk): (&u32, &ChunkState)| {
            (number, chunk.position, chunk.records, chunk.tail)
        };
        let (full, unfull): (Vec<_>, Vec<_>) =
            self.chunks.iter().partition(|(_, chunk)| self.is_full(chunk));
        let heap = self.chunks.iter().filter(|(_, chunk)| chunk.kind == ChunkKind::Heap);
        Meta {
            format: FORMAT.into(),
            version: VERSION,
            uid: format!("{:032x}", u128::from_be_bytes(self.uid)),
            generation: self.generation,
            sequence: self.sequence,
            length: self.length,
            journal: journal.into(),
            begun: false,
            heap: heap.map(|(&number, _)| number).collect(),
            next_field: self.next_field,
            chunks: Chunks {
                num: self.chunks.len() as u64,
                size: self.chunk_records,
                bytes: self.chunk_bytes,
                next: self.next_chunk,
                full: full.into_iter().map(line).collect(),
                unfull: unfull.into_iter().map(line).collect(),
            },
            fields: self.fields.iter().map(to_field).collect(),
            of: None,
        }
    }

    /// Returns whether a chunk is full.
    pub fn is_full(&self, chunk: &ChunkState) -> bool {
        match chunk.kind {
            ChunkKind::Dense { rows, .. } => chunk.records >= rows,
            ChunkKind::Heap => {
                chunk.position >= self.chunk_bytes
                    || self.chunk_records.is_some_and(|most| chunk.records >= most)
            }
        }
    }
}

fn field_state(field: &Field, length: u64) -> Result<FieldState> {
    let damaged = |text: &str| Error::Corrupt(text.into());
    let spec = FieldSpec {
        id: field.id,
        name: field.name.clone(),
        dtype: field.dtype.clone(),
        shape: field.shape.clone(),
        kind: field.kind.parse()?,
        ragged: field.ragged,
        codec: field.compress.parse()?,
        level: field.level,
        bytes: field.bytes,
    };
    spec.check()?;
    let dense = spec.is_dense();
    if dense != is_dense(field.bytes, field.rows) || (!dense && !field.chunks.is_empty()) {
        return Err(damaged("the number of rows per chunk is invalid"));
    }
    let room = field.rows.checked_mul(field.chunks.len() as u64);
    if room.is_none_or(|room| field.physical > room) {
        return Err(damaged("the field has more stored rows than its chunks can hold"));
    }
    let extent = |&(logical, physical, rows): &(u64, u64, u64)| Extent { logical, physical, rows };
    let extents = field.extents.iter().map(extent).collect();
    let extents = Extents::checked(extents, length, field.physical)
        .filter(|extents| dense || extents.all().is_empty())
        .ok_or_else(|| damaged("the list `extents` is invalid"))?;
    let tabled = field.table.as_ref().map_or(0, |(_, rows)| *rows);
    if tabled > length || extents.all().first().is_some_and(|first| first.logical < tabled) {
        return Err(damaged("the number of rows in the table file is invalid"));
    }
    for name in field.table.iter().map(|(name, _)| name).chain(&field.dictionaries) {
        // The name must be that of a file in the store's own folder.
        if name.contains(['/', '\0']) || name.starts_with('.') || name.is_empty() {
            return Err(damaged("the name of a table or dictionary file is invalid"));
        }
    }
    Ok(FieldState {
        rows_per_chunk: field.rows,
        chunks: field.chunks.clone(),
        physical: field.physical,
        table: field.table.clone(),
        dictionaries: field.dictionaries.clone(),
        tabled,
        extents,
        ..FieldState::new(Arc::new(spec), None, 0)
    })
}

fn to_field(state: &FieldState) -> Field {
    let spec = &state.spec;
    let line = |extent: &Extent| (extent.logical, extent.physical, extent.rows);
    let extents = if spec.is_dense() { state.extents.all() } else { &[] };
    Field {
        id: spec.id,
        name: spec.name.clone(),
        dtype: spec.dtype.clone(),
        shape: spec.shape.clone(),
        kind: spec.kind.name().into(),
        ragged: spec.ragged,
        compress: spec.codec.name().into(),
        level: spec.level,
        bytes: spec.bytes,
        rows: state.rows_per_chunk,
        chunks: state.chunks.clone(),
        physical: state.physical,
        extents: extents.iter().map(line).collect(),
        table: state.table.clone(),
        dictionaries: state.dictionaries.clone(),
    }
}

/// Checks a group without changing the state.
struct Check<'a> {
    state: &'a State,
    length: u64,
    /// The number of stored rows and of chunks of each field.
    dense: Vec<(u64, u64)>,
    next_chunk: u32,
    heap: Vec<u32>,
    /// The end of the last entry of the group in each chunk.
    ends: HashMap<u32, u64, BuildHasherDefault<RowHasher>>,
}

impl<'a> Check<'a> {
    fn new(state: &'a State) -> Self {
        let dense = state.fields.iter().map(|f| (f.physical, f.chunks.len() as u64)).collect();
        let (length, next_chunk) = (state.length, state.next_chunk);
        Self { state, length, dense, next_chunk, heap: Vec::new(), ends: HashMap::default() }
    }

    fn group(&mut self, ops: &[Op], commit: &Commit) -> Option<()> {
        for op in ops {
            self.op(op)?;
        }
        let calls_follow = commit.sequence >= self.state.sequence;
        (calls_follow && commit.length == self.length).then_some(())?;
        let mut positions = HashMap::new();
        for position in &commit.chunks {
            let is_new = position.chunk >= self.state.next_chunk;
            let before = self.state.chunks.get(&position.chunk).map_or(PAGE, |c| c.position);
            let known = is_new || self.state.chunks.contains_key(&position.chunk);
            let once = positions.insert(position.chunk, position.position).is_none();
            (known && once && position.position >= before).then_some(())?;
        }
        let reached = |chunk: u32| {
            let before = self.state.chunks.get(&chunk).map(|chunk| chunk.position);
            positions.get(&chunk).copied().or(before)
        };
        for (&chunk, &end) in &self.ends {
            (end <= reached(chunk)?).then_some(())?;
        }
        // The chunks of a dense field must have room for its rows.
        for (field, &(physical, chunks)) in self.state.fields.iter().zip(&self.dense) {
            (physical <= chunks.checked_mul(field.rows_per_chunk)?).then_some(())?;
        }
        Some(())
    }

    fn op(&mut self, op: &Op) -> Option<()> {
        match op {
            Op::Chunk { number, field } => {
                (*number >= self.next_chunk).then_some(())?;
                self.next_chunk = number.checked_add(1)?;
                match field {
                    Some(id) => {
                        let column = self.column(*id)?;
                        self.state.fields[column].spec.is_dense().then_some(())?;
                        self.dense[column].1 += 1;
                    }
                    None => self.heap.push(*number),
                }
            }
            Op::Append { rows, fields } => {
                let length = self.length.checked_add(*rows)?;
                (length <= i64::MAX as u64).then_some(())?;
                let mut seen = Vec::with_capacity(fields.len());
                for (id, how) in fields {
                    let column = self.column(*id)?;
                    (!seen.contains(id)).then_some(())?;
                    seen.push(*id);
                    let is_dense = self.state.fields[column].spec.is_dense();
                    match how {
                        AppendedValues::Missing => {}
                        AppendedValues::Dense => {
                            is_dense.then_some(())?;
                            self.dense[column].0 = self.dense[column].0.checked_add(*rows)?;
                        }
                        AppendedValues::Entries(entries) => {
                            (!is_dense && entries.len() as u64 == *rows).then_some(())?;
                            entries.iter().try_for_each(|&entry| self.entry(entry))?;
                        }
                    }
                }
                self.length = length;
            }
            Op::Change { row, fields } => {
                (*row < self.length).then_some(())?;
                for (id, entry) in fields {
                    self.column(*id)?;
                    self.entry(*entry)?;
                }
            }
            Op::Delete { row } => {
                (*row < self.length).then_some(())?;
                self.length -= 1;
            }
        }
        Some(())
    }

    fn column(&self, id: u16) -> Option<usize> {
        self.state.fields.iter().position(|field| field.spec.id == id)
    }

    /// Checks that an entry is in a heap chunk, as all new values are.
    fn entry(&mut self, entry: Entry) -> Option<()> {
        if entry.is_missing() {
            return Some(());
        }
        let kind = self.state.chunks.get(&entry.chunk).map(|chunk| chunk.kind);
        let in_heap = kind == Some(ChunkKind::Heap) || self.heap.contains(&entry.chunk);
        let end = self.ends.entry(entry.chunk).or_default();
        *end = (*end).max(entry.end());
        in_heap.then_some(())
    }
}

/// Hashes row numbers with one multiplication. They are not chosen by an attacker.
#[derive(Default)]
pub struct RowHasher(u64);

impl Hasher for RowHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

#[cfg(test)]
mod tests;
