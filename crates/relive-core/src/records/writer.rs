//! Changes a record store.
//!
//! Operations wait until their values are stored in chunks. Then they are written to the journal
//! and applied to the state, by the same function that replays the journal when a store is
//! opened. A Commit makes them valid.

mod checkpoint;
mod fields;
mod open;
mod pending;
mod rebalance;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use self::open::{CreateOptions, WriterOptions};

use self::pending::{Pending, PendingValues};
use super::chunk_numbers::ChunkNumbers;
use super::dense_writer::DenseWriter;
use super::heap_encoder::{self, HeapEncoder, Slot};
use super::journal_records::{Commit, Op, Position};
use super::meta::{META, Meta};
use super::open::Files;
use super::snapshot::Snapshot;
use super::state::{FieldSpec, Kind, State};
use super::value::{Column, Value};
use crate::codec::{Codec, Encoder};
use crate::crc::Crc32c;
use crate::fork::OwnerProcess;
use crate::journal::Journal;
use crate::latch::{Latch, RecordIn};
use crate::{Error, Result, durable};

/// Operations are written to the journal when this many wait, which bounds memory.
const MAX_PENDING: usize = 1 << 18;

/// Changes a record store. A store has at most one writer at a time.
///
/// After a failed write every call but [`abort`](Self::abort) fails too, and the store has the
/// state of its last Commit.
pub struct Writer {
    folder: PathBuf,
    lock: Option<File>,
    owner: OwnerProcess,
    files: Arc<Files>,
    options: WriterOptions,
    names: Names,
    /// The state as of the last drain.
    state: Arc<State>,
    /// The snapshot of `state`, if there is one.
    current: Option<Arc<Snapshot>>,
    /// Records, including those that wait.
    length: u64,
    sequence: u64,
    pending: Pending,
    /// One for each column; `None` if it is not dense.
    dense: Vec<Option<DenseWriter>>,
    heap: HeapEncoder,
    encoders: Vec<Arc<Encoder>>,
    numbers: Arc<ChunkNumbers>,
    journal: Option<Journal>,
    journal_bytes: u64,
    group: Group,
    /// Length and sequence number of the last Commit.
    committed: (u64, u64),
    /// Whether there was a Commit since the last sync.
    unsynced: bool,
    /// Whether the journal has a synced Commit.
    has_synced: bool,
    /// Whether `meta.json` records that the journal has a synced Commit.
    begun: bool,
    /// Whether files were created since the last sync.
    unnamed: bool,
    /// Whether anything was committed since the store was created.
    born: bool,
    /// Whether this writer created the directory.
    made: bool,
    failure: Latch,
}

/// Names of the files that a copy of the store has too.
#[derive(Clone, Debug)]
struct Names {
    meta: &'static str,
    journal: String,
}

/// Journal records since the last Commit.
#[derive(Default)]
struct Group {
    ops: u32,
    crc: Crc32c,
}

impl Writer {
    /// Returns the path of the store.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Returns the number of records, including those just appended.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Returns whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns whether this is the copy that a rebalance makes. The writer of the original store
    /// writes its tables and `meta.json` when the copy is complete.
    fn is_copy(&self) -> bool {
        self.names.meta != META
    }

    /// Returns whether the writer is open.
    pub fn is_open(&self) -> bool {
        self.lock.is_some()
    }

    /// Returns the specs of the fields, in order.
    pub fn specs(&self) -> Vec<Arc<FieldSpec>> {
        self.state.fields.iter().map(|field| Arc::clone(&field.spec)).collect()
    }

    /// Returns the number of checkpoints so far.
    pub fn generation(&self) -> u64 {
        self.state.generation
    }

    /// Appends a record with one value for each field, in order, and returns its row.
    ///
    /// If a value does not fit its field, nothing is appended. The record may be lost until
    /// [`flush`](Self::flush).
    pub fn append(&mut self, values: &[Value<'_>]) -> Result<u64> {
        self.check_open()?;
        self.check_columns(values.len())?;
        for (column, &value) in values.iter().enumerate() {
            self.check_value(column, value)?;
        }
        self.begin_call(1)?;
        self.append_checked(values).record_in(&self.failure)?;
        self.length += 1;
        self.relieve()?;
        Ok(self.length - 1)
    }

    fn append_checked(&mut self, values: &[Value<'_>]) -> Result<()> {
        let mut all_dense = true;
        for (column, value) in values.iter().enumerate() {
            match (&mut self.dense[column], value) {
                (Some(dense), Value::Bytes { bytes, .. }) => {
                    dense.push(bytes, &mut || self.numbers.take())?;
                }
                _ => all_dense = false,
            }
        }
        if all_dense && self.pending.append_dense() {
            return Ok(());
        }
        let mut fields = Vec::with_capacity(values.len());
        for (column, &value) in values.iter().enumerate() {
            let given = match (&self.dense[column], value) {
                (Some(_), Value::Missing) => PendingValues::Missing,
                (Some(_), _) => PendingValues::Dense,
                (None, value) => PendingValues::Slots(vec![self.put(column, value)?]),
            };
            fields.push((self.id(column), given));
        }
        self.pending.append(1, fields);
        Ok(())
    }

    /// Appends `rows` records, with one column for each field, and returns their rows.
    ///
    /// If a value does not fit its field, nothing is appended.
    pub fn extend(&mut self, rows: u64, columns: &[Column<'_>]) -> Result<Range<u64>> {
        self.check_open()?;
        self.check_columns(columns.len())?;
        for (column, values) in columns.iter().enumerate() {
            self.check_column(column, rows, values)?;
        }
        let first = self.length;
        // A call that changes nothing must not change the sequence number.
        if rows == 0 {
            return Ok(first..first);
        }
        self.begin_call(rows)?;
        self.extend_checked(rows, columns).record_in(&self.failure)?;
        self.length += rows;
        self.relieve()?;
        Ok(first..self.length)
    }

    fn extend_checked(&mut self, rows: u64, columns: &[Column<'_>]) -> Result<()> {
        let mut slots = Vec::with_capacity(columns.len());
        for (column, values) in columns.iter().enumerate() {
            slots.push(match &mut self.dense[column] {
                Some(dense) => {
                    push_column(dense, values, &mut || self.numbers.take())?;
                    Vec::new()
                }
                None if matches!(values, Column::Missing) => Vec::new(),
                None => self.put_column(column, rows, values)?,
            });
        }
        // A dense field stores no row for a missing value, so the records of one append must have
        // values in the same dense fields.
        let mut first = 0;
        while first < rows as usize {
            let end = (first + 1..rows as usize)
                .find(|&row| self.differ(columns, first, row))
                .unwrap_or(rows as usize);
            let given = |(column, values): (usize, &Column<'_>)| {
                let given = match (&self.dense[column], values) {
                    (_, Column::Missing) => PendingValues::Missing,
                    (Some(_), Column::Rows(values)) if values[first].is_missing() => {
                        PendingValues::Missing
                    }
                    (Some(_), _) => PendingValues::Dense,
                    (None, _) => PendingValues::Slots(slots[column][first..end].to_vec()),
                };
                (self.id(column), given)
            };
            let fields = columns.iter().enumerate().map(given).collect();
            self.pending.append((end - first) as u64, fields);
            first = end;
        }
        Ok(())
    }

    /// Returns whether the rows differ in which dense fields have values.
    fn differ(&self, columns: &[Column<'_>], row: usize, other: usize) -> bool {
        columns.iter().zip(&self.dense).any(|(values, dense)| match values {
            Column::Rows(values) if dense.is_some() => {
                values[row].is_missing() != values[other].is_missing()
            }
            _ => false,
        })
    }

    /// Changes values of a record: pairs of column and value.
    pub fn modify(&mut self, row: u64, changes: &[(usize, Value<'_>)]) -> Result<()> {
        self.check_open()?;
        self.check_row(row)?;
        for &(column, value) in changes {
            self.check_columns_have(column)?;
            self.check_value(column, value)?;
        }
        if changes.is_empty() {
            return Ok(());
        }
        self.begin_call(0)?;
        let mut fields = Vec::with_capacity(changes.len());
        for &(column, value) in changes {
            let slot = self.put(column, value).record_in(&self.failure)?;
            fields.push((self.id(column), slot));
        }
        self.pending.change(row, fields);
        self.relieve()
    }

    /// Changes the values of one field in several records. If a row is given twice, its last value
    /// is stored.
    pub fn modify_many(&mut self, column: usize, rows: &[u64], values: &Column<'_>) -> Result<()> {
        self.check_open()?;
        self.check_columns_have(column)?;
        rows.iter().try_for_each(|&row| self.check_row(row))?;
        self.check_column(column, rows.len() as u64, values)?;
        if rows.is_empty() {
            return Ok(());
        }
        self.begin_call(0)?;
        let slots = self.put_column(column, rows.len() as u64, values).record_in(&self.failure)?;
        let id = self.id(column);
        for (&row, slot) in rows.iter().zip(slots) {
            self.pending.change(row, vec![(id, slot)]);
        }
        self.relieve()
    }

    /// Deletes records, the highest row first. The last record of the store moves to the row of
    /// each deleted one. Returns these moves, from and to, in order.
    pub fn delete(&mut self, rows: &[u64]) -> Result<Vec<(u64, u64)>> {
        self.check_open()?;
        rows.iter().try_for_each(|&row| self.check_row(row))?;
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        self.begin_call(0)?;
        let mut rows = rows.to_vec();
        rows.sort_unstable_by(|a, b| b.cmp(a));
        rows.dedup();
        let mut moves = Vec::new();
        for row in rows {
            self.length -= 1;
            if row != self.length {
                moves.push((self.length, row));
            }
            self.pending.delete(row);
        }
        self.relieve()?;
        Ok(moves)
    }

    /// Returns a snapshot of the store, including what was not flushed yet.
    pub fn snapshot(&mut self) -> Result<Arc<Snapshot>> {
        self.check_open()?;
        self.drain()?;
        if self.current.is_none() {
            self.current = Some(self.files.snapshot(Arc::clone(&self.state))?);
        }
        self.current.clone().ok_or_else(|| Error::Closed("the record store is closed".into()))
    }

    /// Makes all changes so far survive the end of this process.
    pub fn flush(&mut self) -> Result<()> {
        self.check_open()?;
        self.drain()?;
        if self.group.ops > 0 {
            self.commit(false)?;
        }
        self.born = true;
        let large = self.journal_bytes > self.options.large_journal.max(self.table_bytes());
        if large && !self.is_copy() {
            self.checkpoint()?;
        }
        Ok(())
    }

    /// Makes all changes so far survive a power cut.
    pub fn sync(&mut self) -> Result<()> {
        self.flush()?;
        self.sync_flushed()?;
        self.note_begun()
    }

    /// Records in `meta.json` that the journal has synced records, so that a lost journal is not
    /// taken for one that was never written.
    fn note_begun(&mut self) -> Result<()> {
        if self.begun || !self.has_synced || self.is_copy() {
            return Ok(());
        }
        Meta::read(&self.folder, META)
            .and_then(|meta| Meta { begun: true, ..meta }.replace(&self.folder, META))
            .record_in(&self.failure)?;
        self.begun = true;
        Ok(())
    }

    fn sync_flushed(&mut self) -> Result<()> {
        if !self.unsynced {
            return Ok(());
        }
        self.sync_data().record_in(&self.failure)?;
        self.sync_journal().record_in(&self.failure)?;
        // Everything before this Commit is on the disk.
        self.commit(true)?;
        self.sync_journal().record_in(&self.failure)?;
        (self.unsynced, self.has_synced) = (false, true);
        Ok(())
    }

    /// Syncs the chunks and the folders.
    fn sync_data(&mut self) -> Result<()> {
        for dense in self.dense.iter_mut().flatten() {
            dense.sync()?;
        }
        self.heap.sync()?;
        if self.unnamed {
            durable::sync_folder_of(&self.chunk_folder().join("0"))?;
            durable::sync_folder_of(&self.folder.join(self.names.meta))?;
            self.unnamed = false;
        }
        Ok(())
    }

    fn sync_journal(&mut self) -> Result<()> {
        self.journal.as_mut().map_or(Ok(()), Journal::sync)
    }

    fn chunk_folder(&self) -> PathBuf {
        self.folder.join("chunk")
    }

    /// Writes what waits: values to chunks, then operations to the journal.
    fn drain(&mut self) -> Result<()> {
        self.failure.check()?;
        if self.pending.is_empty() {
            return Ok(());
        }
        self.numbers.check().and_then(|()| self.drain_pending()).record_in(&self.failure)
    }

    fn drain_pending(&mut self) -> Result<()> {
        let (created, entries) = self.drain_chunks()?;
        let ops: Vec<Op> = created.into_iter().chain(self.pending.ops(&entries)).collect();
        self.current = None;
        for op in &ops {
            let bytes = op.to_bytes();
            self.log(&bytes)?;
            self.group.crc.update(&bytes);
            self.group.ops += 1;
        }
        let (positions, sequence) = (self.positions(), self.sequence);
        let state = Arc::make_mut(&mut self.state);
        ops.iter().for_each(|op| state.apply(op));
        state.commit(&positions, sequence);
        self.trust(&positions);
        Ok(())
    }

    /// Writes all values to chunks; returns the new chunks and the entries of the values.
    fn drain_chunks(&mut self) -> Result<(Vec<Op>, Vec<super::layout::Entry>)> {
        let mut created: Vec<(u32, Option<u16>)> = Vec::new();
        for (column, dense) in self.dense.iter_mut().enumerate() {
            if let Some(dense) = dense {
                dense.drain()?;
                let id = self.state.fields[column].spec.id;
                created.extend(dense.chunks.created().into_iter().map(|number| (number, Some(id))));
            }
        }
        let entries = self.heap.drain()?;
        created.extend(self.heap.created().into_iter().map(|number| (number, None)));
        self.unnamed |= !created.is_empty();
        created.sort_unstable();
        let chunk = |(number, field)| Op::Chunk { number, field };
        Ok((created.into_iter().map(chunk).collect(), entries))
    }

    /// Returns the write positions of chunks that changed since the last Commit.
    fn positions(&self) -> Vec<Position> {
        let dense = self.dense.iter().flatten().flat_map(|dense| dense.chunks.positions());
        dense.chain(self.heap.positions()).collect()
    }

    /// Marks bytes that this process wrote as verified.
    fn trust(&self, positions: &[Position]) {
        for position in positions {
            self.files.trust(position.chunk, position.position);
        }
    }

    fn commit(&mut self, synced: bool) -> Result<()> {
        self.numbers.check().record_in(&self.failure)?;
        let group = std::mem::take(&mut self.group);
        let commit = Commit {
            synced,
            ops: group.ops,
            sequence: self.sequence,
            length: self.length,
            crc: group.crc.value(),
            chunks: self.positions(),
        };
        self.log(&commit.to_bytes())
            .and_then(|()| self.journal.as_mut().map_or(Ok(()), Journal::flush))
            .record_in(&self.failure)?;
        for dense in self.dense.iter_mut().flatten() {
            dense.chunks.committed();
        }
        self.heap.committed();
        self.committed = (self.length, self.sequence);
        self.unsynced |= !synced;
        self.born = true;
        Ok(())
    }

    /// Appends to the journal, which is created for its first record.
    fn log(&mut self, record: &[u8]) -> Result<()> {
        /// Bytes that the journal adds to a record.
        const FRAME: u64 = 20;
        if self.journal.is_none() {
            self.journal = Some(Journal::create(&self.folder.join(&self.names.journal))?);
            self.unnamed = true;
        }
        self.journal_bytes += record.len() as u64 + FRAME;
        self.journal.as_mut().map_or(Ok(()), |journal| journal.append(record))
    }

    /// Drains if too much waits.
    fn relieve(&mut self) -> Result<()> {
        if self.pending.weight() > MAX_PENDING { self.drain() } else { Ok(()) }
    }

    /// Counts a call that will append `rows` records.
    fn begin_call(&mut self, rows: u64) -> Result<()> {
        let fits = self.length.checked_add(rows).is_some_and(|end| end <= i64::MAX as u64);
        if !fits {
            return Err(Error::TooLarge(format!(
                "cannot append {rows} records: a record store has at most 2^63 - 1 records"
            )));
        }
        self.sequence += 1;
        Ok(())
    }

    /// Stores a value that was checked.
    fn put(&mut self, column: usize, value: Value<'_>) -> Result<Option<Slot>> {
        let id = self.id(column);
        let Value::Bytes { bytes, dims } = value else {
            return Ok(None);
        };
        let encoder = &self.encoders[column];
        self.heap.put(id, encoder, self.sequence, bytes, dims).map(Some)
    }

    /// Stores values that were checked.
    fn put_column(
        &mut self,
        column: usize,
        rows: u64,
        values: &Column<'_>,
    ) -> Result<Vec<Option<Slot>>> {
        let (id, size) = (self.id(column), self.state.fields[column].spec.bytes as usize);
        let encoder = &self.encoders[column];
        let cut: Vec<Value<'_>>;
        let values = match values {
            Column::Missing => return Ok((0..rows).map(|_| None).collect()),
            Column::Rows(values) => values,
            Column::Fixed(_) if size == 0 => {
                cut = (0..rows).map(|_| Value::plain(&[])).collect();
                &cut[..]
            }
            Column::Fixed(bytes) => {
                cut = bytes.chunks(size).map(Value::plain).collect();
                &cut[..]
            }
        };
        let slots = self.heap.put_borrowed(id, encoder, self.sequence, values)?;
        let slot = |(slot, value): (Slot, &Value<'_>)| (!value.is_missing()).then_some(slot);
        Ok(slots.zip(values).map(slot).collect())
    }

    fn id(&self, column: usize) -> u16 {
        self.state.fields[column].spec.id
    }
}

/// Appends the values of a dense field that are not missing.
fn push_column(
    dense: &mut DenseWriter,
    values: &Column<'_>,
    next: &mut dyn FnMut() -> Result<u32>,
) -> Result<()> {
    match values {
        Column::Missing => Ok(()),
        Column::Fixed(bytes) => dense.push(bytes, next),
        Column::Rows(values) => values.iter().try_for_each(|value| dense.push(value.bytes(), next)),
    }
}

impl Writer {
    fn check_open(&self) -> Result<()> {
        if self.lock.is_none() {
            return Err(Error::Closed(format!("`{}` is closed", self.folder.display())));
        }
        self.failure.check()
    }

    fn check_columns(&self, given: usize) -> Result<()> {
        let fields = self.state.fields.len();
        if given == fields {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "a record must have {fields} values, one per field, got {given}"
        )))
    }

    fn check_columns_have(&self, column: usize) -> Result<()> {
        let fields = self.state.fields.len();
        if column < fields {
            return Ok(());
        }
        Err(Error::out_of_range(column, fields, "field", "fields"))
    }

    fn check_row(&self, row: u64) -> Result<()> {
        if row < self.length {
            return Ok(());
        }
        Err(Error::out_of_range(row, self.length, "record", "records"))
    }

    fn check_value(&self, column: usize, value: Value<'_>) -> Result<()> {
        let spec = &self.state.fields[column].spec;
        let (bytes, dims) = match value {
            Value::Missing => return Ok(()),
            // Only a rebalance passes such values, from the same store.
            Value::Stored { codec, .. } if codec != Codec::Raw => return Ok(()),
            Value::Bytes { bytes, dims } | Value::Stored { bytes, dims, .. } => (bytes, dims),
        };
        fits(spec, bytes, dims)?;
        if spec.is_dense() {
            return Ok(());
        }
        heap_encoder::check(&self.encoders[column], bytes.len(), dims.len())
            .map_err(|error| error.about(format!("field {:?}", spec.name)))
    }

    fn check_column(&self, column: usize, rows: u64, values: &Column<'_>) -> Result<()> {
        let spec = &self.state.fields[column].spec;
        let wrong = |what: String| Err(Error::Invalid(format!("field {:?}: {what}", spec.name)));
        match values {
            Column::Missing => Ok(()),
            Column::Fixed(_) if spec.kind != Kind::Fixed => wrong(
                "got values of equal size as one array, but the values of this field vary in size"
                    .into(),
            ),
            Column::Fixed(bytes) if spec.bytes.checked_mul(rows) != Some(bytes.len() as u64) => {
                wrong(format!(
                    "{rows} values must be {} bytes each, got {} bytes in total",
                    spec.bytes,
                    bytes.len()
                ))
            }
            Column::Fixed(_) => Ok(()),
            Column::Rows(values) if values.len() as u64 != rows => {
                wrong(format!("got {} values for {rows} records", values.len()))
            }
            Column::Rows(values) => {
                values.iter().try_for_each(|&value| self.check_value(column, value))
            }
        }
    }
}

/// Checks that bytes are a value of the field.
fn fits(spec: &FieldSpec, bytes: &[u8], dims: &[u64]) -> Result<()> {
    let wrong = |what: String| Err(Error::Invalid(format!("field {:?}: {what}", spec.name)));
    let length = bytes.len() as u64;
    if dims.len() != spec.dims() {
        return wrong(format!(
            "a value has {} varying dimensions, expected {}",
            dims.len(),
            spec.dims()
        ));
    }
    match spec.kind {
        Kind::Fixed if length != spec.bytes => {
            wrong(format!("a value has {length} bytes, expected {}", spec.bytes))
        }
        Kind::Ragged if !dims.is_empty() => {
            let items = dims.iter().try_fold(spec.bytes, |all, &dim| all.checked_mul(dim));
            if items == Some(length) {
                return Ok(());
            }
            wrong(format!(
                "a value has {length} bytes, but its dimensions are {dims:?} with items of {} bytes",
                spec.bytes
            ))
        }
        Kind::Ragged
            if !length.is_multiple_of(spec.bytes.max(1)) || (spec.bytes == 0 && length > 0) =>
        {
            wrong(format!(
                "a value has {length} bytes, which is not a multiple of the item size, {} bytes",
                spec.bytes
            ))
        }
        Kind::Str if std::str::from_utf8(bytes).is_err() => {
            wrong("a value is not valid UTF-8".into())
        }
        _ => Ok(()),
    }
}
