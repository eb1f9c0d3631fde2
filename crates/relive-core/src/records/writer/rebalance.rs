//! Copies a store to new chunks, in the order of its rows.
//!
//! The copy is a separate store in the same directory. It is journaled, synced and replayed like
//! any other, so an interrupted rebalance continues where it stopped.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::{Names, Writer};
use crate::codec::Codec;
use crate::records::files::Files;
use crate::records::meta::Meta;
use crate::records::replay;
use crate::records::snapshot::{Snapshot, StoredValue, View};
use crate::records::state::{FieldState, State};
use crate::records::value::{Column, Value};
use crate::{Error, Result, durable};

/// The names of the files of the copy.
pub(super) const META: &str = "rebalance.json";
pub(super) const JOURNAL: &str = "rebalance.journal";

/// Bytes that are copied at a time.
const BATCH_BYTES: u64 = 8 << 20;

/// Rows that are copied at a time.
const BATCH_ROWS: u64 = 4096;

/// Bytes after which the copy is synced.
const SYNC_BYTES: u64 = 256 << 20;

impl Writer {
    /// Copies all records to new chunks in the order of their rows, and removes the old chunks.
    /// With `recompress` values are encoded again.
    ///
    /// `progress` is called with the number of copied records and of all records. Its error stops
    /// the copy; the next call continues it unless the store changed. Open readers are not
    /// affected.
    pub fn rebalance(
        &mut self,
        recompress: bool,
        progress: &mut dyn FnMut(u64, u64) -> Result<()>,
    ) -> Result<()> {
        self.sync()?;
        let source = self.snapshot()?;
        let mut copy = self.begin_copy(recompress)?;
        let copied = copy_rows(&source, &mut copy, recompress, progress);
        // Chunks of a copy that is continued later keep their numbers.
        self.numbers.raise(copy.numbers.next());
        if copied.is_err() {
            // What is synced is not copied again; the first error matters more than this one.
            let _ = copy.sync();
        }
        copied?;
        let mut state = State::clone(&copy.state);
        state.generation = self.state.generation;
        self.install(state)?;
        std::mem::swap(&mut self.dense, &mut copy.dense);
        std::mem::swap(&mut self.heap, &mut copy.heap);
        std::mem::swap(&mut self.numbers, &mut copy.numbers);
        Ok(())
    }

    /// Continues the copy of the current state, or starts a new one.
    fn begin_copy(&self, recompress: bool) -> Result<Self> {
        let of = Some((self.state.generation, self.state.sequence, recompress));
        let begun = Meta::read(&self.folder, META).is_ok_and(|meta| meta.of == of);
        if begun && let Ok(replayed) = replay::replay(&self.files, META) {
            let mut copy = self.copy_at(replayed.state.clone())?;
            copy.resume(&replayed)?;
            return Ok(copy);
        }
        durable::remove(&self.folder.join(JOURNAL))?;
        let fields = self.state.fields.iter().map(|field| {
            let spec = Arc::clone(&field.spec);
            let (records, bytes) = (self.state.chunk_records, self.state.chunk_bytes);
            let mut fresh = FieldState::new(spec, records, bytes);
            fresh.dictionaries.clone_from(&field.dictionaries);
            fresh
        });
        let state = State {
            generation: 0,
            sequence: 0,
            length: 0,
            chunks: BTreeMap::new(),
            fields: fields.collect(),
            ..State::clone(&self.state)
        };
        let copy = self.copy_at(state)?;
        Meta { of, ..copy.state.to_meta(JOURNAL) }.replace(&self.folder, META)?;
        Ok(copy)
    }

    fn copy_at(&self, state: State) -> Result<Self> {
        let names = Names { meta: META, journal: JOURNAL.into() };
        let Some(lock) = &self.lock else {
            return Err(Error::Closed("the record store is closed".into()));
        };
        let lock = lock.try_clone()?;
        let (files, options) = (Arc::clone(&self.files), self.options.clone());
        Self::around(&self.folder, lock, files, options, names, state)
    }
}

/// Returns the chunks of an unfinished copy.
pub(super) fn chunks_of(files: &Arc<Files>) -> Vec<u32> {
    replay::replay(files, META)
        .map(|replayed| replayed.state.chunks.keys().copied().collect())
        .unwrap_or_default()
}

fn copy_rows(
    source: &Arc<Snapshot>,
    copy: &mut Writer,
    recompress: bool,
    progress: &mut dyn FnMut(u64, u64) -> Result<()>,
) -> Result<()> {
    let length = source.len();
    let mut since_sync = 0;
    progress(copy.len(), length)?;
    while copy.len() < length {
        let first = copy.len();
        let rows = batch_rows(source, first).min(length - first);
        let values = (0..source.state().fields.len())
            .map(|column| Copied::read(source, column, first..first + rows, recompress))
            .collect::<Result<Vec<_>>>()?;
        since_sync += values.iter().map(Copied::bytes).sum::<u64>();
        let rows_of: Vec<Option<Vec<Value<'_>>>> = values.iter().map(Copied::rows).collect();
        let columns: Vec<Column<'_>> =
            values.iter().zip(&rows_of).map(|(copied, rows)| copied.column(rows)).collect();
        copy.extend(rows, &columns)?;
        if since_sync >= SYNC_BYTES {
            copy.sync()?;
            since_sync = 0;
        }
        progress(copy.len(), length)?;
    }
    copy.sync()
}

/// Returns how many rows from `first` on are copied together: at least one.
fn batch_rows(source: &Snapshot, first: u64) -> u64 {
    let fields = &source.state().fields;
    let dense: u64 = fields.iter().filter(|f| f.spec.is_dense()).map(|f| f.spec.bytes).sum();
    let heap: Vec<usize> = (0..fields.len()).filter(|&k| !fields[k].spec.is_dense()).collect();
    let mut bytes = 0;
    let mut rows = 0;
    while rows < BATCH_ROWS && first + rows < source.len() {
        let row = first + rows;
        let stored: u64 = heap.iter().map(|&column| source.stored_bytes(column, row)).sum();
        bytes += dense + stored;
        if rows > 0 && bytes > BATCH_BYTES {
            break;
        }
        rows += 1;
    }
    rows.max(1)
}

/// Values of one field that are copied.
enum Copied {
    /// Consecutive rows of a dense field.
    Span(View),
    /// Values as they are stored.
    Stored(Vec<Option<StoredValue>>),
    /// Values to be encoded.
    Decoded(Vec<Option<StoredValue>>),
}

impl Copied {
    fn read(source: &Snapshot, column: usize, rows: Range<u64>, recompress: bool) -> Result<Self> {
        let spec = &source.state().fields[column].spec;
        if spec.is_dense()
            && let Some(view) = source.span(column, rows.clone())?
        {
            return Ok(Self::Span(view));
        }
        let mut values = Vec::with_capacity((rows.end - rows.start) as usize);
        for row in rows {
            let mut value = source.stored(column, row)?;
            if recompress && let Some(stored) = &mut value {
                stored.bytes = source.value(column, row)?.unwrap_or_default();
                stored.codec = Codec::Raw;
            }
            values.push(value);
        }
        Ok(if recompress { Self::Decoded(values) } else { Self::Stored(values) })
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Span(view) => view.bytes().len() as u64,
            Self::Stored(values) | Self::Decoded(values) => {
                values.iter().flatten().map(|value| value.bytes.len() as u64).sum()
            }
        }
    }

    /// Returns one value for each row; `None` for consecutive rows.
    fn rows(&self) -> Option<Vec<Value<'_>>> {
        match self {
            Self::Span(_) => None,
            Self::Stored(values) => Some(values.iter().map(as_stored).collect()),
            Self::Decoded(values) => Some(values.iter().map(as_decoded).collect()),
        }
    }

    fn column<'a>(&'a self, rows: &'a Option<Vec<Value<'a>>>) -> Column<'a> {
        match (self, rows) {
            (Self::Span(view), _) => Column::Fixed(view.bytes()),
            (_, Some(rows)) => Column::Rows(rows),
            (_, None) => Column::Missing,
        }
    }
}

fn as_stored(value: &Option<StoredValue>) -> Value<'_> {
    match value {
        None => Value::Missing,
        Some(StoredValue { codec, length, dims, bytes }) => {
            Value::Stored { codec: *codec, length: *length, bytes, dims }
        }
    }
}

fn as_decoded(value: &Option<StoredValue>) -> Value<'_> {
    match value {
        None => Value::Missing,
        Some(StoredValue { dims, bytes, .. }) => Value::Bytes { bytes, dims },
    }
}
