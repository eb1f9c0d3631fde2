//! A snapshot of a store, for reading.

mod heap_records;

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

pub use heap_records::StoredValue;

use super::chunk::Chunk;
use super::files::{Files, Io, ReadOptions};
use super::layout::{ALIGN, BLOCK, ChunkKind, Entry, PAGE, RECORD_BYTES};
use super::mapped_region::MappedRegion;
use super::state::{FieldSpec, FieldState, Kind, Location, RowHasher, State};
use super::table_file::TableFile;
use crate::codec::{Codec, Decoder};
use crate::gather::{Owner, Rows};
use crate::pack::Verify;
use crate::table::ColumnShape;
use crate::{Error, Result};

/// Bytes in memory that neither move nor change while the view or its owner exists.
#[derive(Clone)]
pub struct View {
    start: *const u8,
    bytes: usize,
    owner: Owner,
}

// SAFETY: the memory is only read, and `owner` keeps it valid wherever the value goes.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the owner keeps the memory valid.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Returns the address of the first byte.
    pub fn start(&self) -> *const u8 {
        self.start
    }

    /// Returns the owner of the memory.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }
}

/// How much of a store is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// Values of all rows.
    pub records: u64,
    /// Their bytes in chunks.
    pub bytes: u64,
    /// Values in chunks, including unused ones.
    pub stored_records: u64,
    /// Bytes of all chunk files.
    pub allocated_bytes: u64,
}

/// The checked location of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resolved {
    Missing,
    /// A stored row of the column.
    Dense(u64),
    /// A record in a heap chunk.
    Heap(HeapLocation),
}

/// The location of a record in a heap chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeapLocation {
    /// The position of the chunk in the snapshot's list of views.
    view: u32,
    offset: u64,
    length: u32,
}

/// A chunk up to the position of a state.
pub(super) struct ChunkView {
    number: u32,
    pub(super) chunk: Arc<Chunk>,
    pub(super) position: u64,
    /// Dense: the checksum of the partial block, and whether it was verified.
    tail: u32,
    tail_verified: AtomicBool,
    /// Dense: its first stored row.
    first: u64,
    /// Heap: the mapped memory.
    region: Option<Arc<MappedRegion>>,
}

/// The content of a store at one moment. It never changes, even if the store does. Thread-safe.
pub struct Snapshot {
    state: Arc<State>,
    options: ReadOptions,
    views: Vec<ChunkView>,
    numbers: ChunkIndex,
    pub(super) columns: Vec<ColumnView>,
    pub(super) shapes: Vec<ColumnShape>,
}

impl Snapshot {
    pub(super) fn new(files: &Arc<Files>, state: Arc<State>) -> Result<Self> {
        let options = files.options().clone();
        let mapped = options.io == Io::Mmap;
        let mut views = Vec::with_capacity(state.chunks.len());
        let mut numbers = ChunkIndex::of(&state);
        for (&number, known) in &state.chunks {
            let chunk = files.chunk(&state.uid, number, known.kind)?;
            chunk.check_size_once(known.position)?;
            let heap = known.kind == ChunkKind::Heap;
            let region = if mapped && heap { Some(chunk.map(known.position)?) } else { None };
            let tail_verified = AtomicBool::new(chunk.has_tail(known.position));
            numbers.insert(number, views.len());
            views.push(ChunkView {
                number,
                chunk,
                position: known.position,
                tail: known.tail,
                tail_verified,
                first: 0,
                region,
            });
        }
        let mut columns = Vec::with_capacity(state.fields.len());
        for field in &state.fields {
            let column = ColumnView::new(files, &state, field, &mut views, &numbers)
                .map_err(|error| error.about(format!("field {:?}", field.spec.name)))?;
            columns.push(column);
        }
        files.retain(&state);
        let shapes = state.fields.iter().map(|field| shape_of(&field.spec)).collect();
        Ok(Self { state, options, views, numbers, columns, shapes })
    }

    /// Returns the number of records.
    pub fn len(&self) -> u64 {
        self.state.length
    }

    /// Returns whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the state.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Returns the options.
    pub fn options(&self) -> &ReadOptions {
        &self.options
    }

    /// Returns the specs of the fields, in the order of the user.
    pub fn specs(&self) -> Vec<Arc<FieldSpec>> {
        self.state.fields.iter().map(|field| Arc::clone(&field.spec)).collect()
    }

    /// Returns whether the value of a record is missing.
    pub fn missing(&self, column: usize, row: u64) -> Result<bool> {
        self.check(column, row)?;
        Ok(self.resolve(column, row)? == Resolved::Missing)
    }

    /// Returns the entry of a value; its length is 0 if there is no value.
    pub fn entry(&self, column: usize, row: u64) -> Result<Entry> {
        self.check(column, row)?;
        Ok(match self.resolve(column, row)? {
            Resolved::Missing => Entry::MISSING,
            Resolved::Dense(physical) => self.state.fields[column].dense_entry(physical),
            Resolved::Heap(HeapLocation { view, offset, length }) => {
                Entry { chunk: self.views[view as usize].number, offset, length }
            }
        })
    }

    /// Returns the bytes of a value in its chunk; 0 if there is no value.
    pub fn stored_bytes(&self, column: usize, row: u64) -> u64 {
        self.entry(column, row).map_or(0, |entry| u64::from(entry.length))
    }

    /// Returns how much of the store is used. Reads the entries of all rows, except for dense fields
    /// without changes.
    pub fn live(&self) -> Result<Live> {
        let mut live = Live::default();
        for (column, field) in self.state.fields.iter().enumerate() {
            let (records, bytes) =
                if field.spec.is_dense() && field.tabled() == 0 && field.changed() == 0 {
                    let rows = field.extents().all().iter().map(|extent| extent.rows).sum();
                    (rows, field.spec.bytes.saturating_mul(rows))
                } else {
                    let mut sums = (0, 0_u64);
                    for row in 0..self.len() {
                        let length = self.entry(column, row)?.length;
                        sums.0 += u64::from(length > 0);
                        sums.1 += u64::from(length);
                    }
                    sums
                };
            live.records += records;
            live.bytes += bytes;
        }
        for (view, known) in self.views.iter().zip(self.state.chunks.values()) {
            live.stored_records = live.stored_records.saturating_add(known.records);
            live.allocated_bytes = live.allocated_bytes.saturating_add(view.chunk.file_bytes()?);
        }
        Ok(live)
    }

    /// Checks that all files still have the bytes of this snapshot; else `Corrupt`.
    pub fn check_sizes(&self) -> Result<()> {
        self.views.iter().try_for_each(ChunkView::check_size)?;
        for column in &self.columns {
            column.table.as_ref().map_or(Ok(()), |table| table.check_size())?;
        }
        Ok(())
    }

    /// Checks every byte of all chunks and tables; returns an error for each damaged file, after
    /// its path. An error of `progress` ends the check.
    pub fn check_all(
        &self,
        progress: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Vec<(&Path, Error)>> {
        let mut damaged = Vec::new();
        for view in &self.views {
            let mut ended = Ok(());
            let checked = view.chunk.check_all(view.position, view.tail, &mut || {
                ended = progress();
                // Any error ends the check; this one is replaced below.
                ended.as_ref().copied().map_err(|error| error.with_message(String::new()))
            });
            ended?;
            damaged.extend(checked.err().map(|error| (view.chunk.path(), error)));
        }
        for table in self.columns.iter().filter_map(|column| column.table.as_ref()) {
            progress()?;
            damaged.extend(table.check_all().err().map(|error| (table.path(), error)));
        }
        Ok(damaged)
    }

    /// Checks that the field and the row exist.
    pub(super) fn check(&self, column: usize, row: u64) -> Result<()> {
        if column >= self.columns.len() {
            return Err(Error::out_of_range(column, self.columns.len(), "field", "fields"));
        }
        if row >= self.len() {
            return Err(Error::out_of_range(row, self.len(), "index", "rows"));
        }
        Ok(())
    }

    /// Returns the location of a value; the column and the row must exist.
    #[inline]
    pub(super) fn resolve(&self, column: usize, row: u64) -> Result<Resolved> {
        match self.state.fields[column].find(row) {
            Location::Missing => Ok(Resolved::Missing),
            Location::Dense(physical) => Ok(Resolved::Dense(physical)),
            Location::Entry(entry) => self.locate(column, row, entry),
            Location::Table(at) => {
                let Some(table) = &self.columns[column].table else { return Ok(Resolved::Missing) };
                let entry = table
                    .entry(at, self.options.verify)
                    .map_err(|error| error.about(self.row_name(column, row)))?;
                self.locate(column, row, entry)
            }
        }
    }

    #[inline]
    fn locate(&self, column: usize, row: u64, entry: Entry) -> Result<Resolved> {
        if entry.is_missing() {
            return Ok(Resolved::Missing);
        }
        self.place(column, entry).ok_or_else(|| self.lost(column, row, entry))
    }

    /// Returns the location of an entry; `None` if it cannot be one of this column.
    #[inline]
    fn place(&self, column: usize, entry: Entry) -> Option<Resolved> {
        let number = self.numbers.get(entry.chunk)?;
        let view = &self.views[number as usize];
        (entry.offset >= PAGE && entry.end() <= view.position).then_some(())?;
        match view.chunk.kind() {
            ChunkKind::Heap => {
                let fits =
                    entry.offset.is_multiple_of(ALIGN) && entry.length as usize >= RECORD_BYTES;
                let (offset, length) = (entry.offset, entry.length);
                fits.then_some(Resolved::Heap(HeapLocation { view: number, offset, length }))
            }
            ChunkKind::Dense { field, stride, .. } => {
                let known = &self.state.fields[column];
                let inside = entry.offset - PAGE;
                let fits = field == known.spec.id
                    && u64::from(entry.length) == stride
                    && inside.is_multiple_of(stride);
                let physical = view.first + inside / stride;
                (fits && physical < known.physical).then_some(Resolved::Dense(physical))
            }
        }
    }

    #[cold]
    fn lost(&self, column: usize, row: u64, entry: Entry) -> Error {
        Error::Corrupt(format!(
            "{}: the stored location is invalid: chunk {}, {} bytes at offset {}",
            self.row_name(column, row),
            entry.chunk,
            entry.length,
            entry.offset
        ))
    }

    /// Returns the name of a value in messages.
    #[cold]
    pub(super) fn row_name(&self, column: usize, row: u64) -> String {
        format!("field {:?}, row {row}", self.state.fields[column].spec.name)
    }

    pub(super) fn chunk_view(&self, number: u32) -> &ChunkView {
        &self.views[number as usize]
    }

    /// Returns whether files are mapped.
    pub(super) fn is_mapped(&self) -> bool {
        self.options.io == Io::Mmap
    }

    /// Returns a fixed column as rows in memory, if all its rows are mapped and verified.
    pub(super) fn direct(&self, column: usize) -> Option<&Rows> {
        self.columns[column].dense.as_ref()?.direct(&self.views, self.options.verify)
    }

    /// Returns a verified value without copying it; `None` if it is not mapped, is compressed or
    /// missing.
    pub fn view(&self, column: usize, row: u64) -> Result<Option<View>> {
        self.check(column, row)?;
        match self.resolve(column, row)? {
            Resolved::Missing => Ok(None),
            Resolved::Dense(physical) => self.dense_span(column, physical, 1, row),
            Resolved::Heap(at) => self.heap_view(column, row, at),
        }
    }

    /// Returns verified rows of a dense field without copying them; `None` if they are not
    /// consecutive in mapped memory.
    pub fn span(&self, column: usize, rows: Range<u64>) -> Result<Option<View>> {
        let Some(last) = rows.end.checked_sub(1).filter(|&last| last >= rows.start) else {
            return Ok(None);
        };
        self.check(column, last)?;
        let field = &self.state.fields[column];
        let Resolved::Dense(first) = self.resolve(column, rows.start)? else { return Ok(None) };
        let follow = if field.tabled() == 0 && field.changed() == 0 {
            let mut extents = field.extents().all().iter();
            extents.any(|one| one.logical <= rows.start && last - one.logical < one.rows)
        } else {
            let mut follow = true;
            for row in rows.clone().skip(1) {
                follow = self.resolve(column, row)? == Resolved::Dense(first + (row - rows.start));
                if !follow {
                    break;
                }
            }
            follow
        };
        let count = rows.end - rows.start;
        if follow { self.dense_span(column, first, count, rows.start) } else { Ok(None) }
    }

    fn dense_span(&self, column: usize, first: u64, count: u64, row: u64) -> Result<Option<View>> {
        let Some(dense) = &self.columns[column].dense else { return Ok(None) };
        let Some(region) = &dense.region else { return Ok(None) };
        for chunk in first / dense.rows_per_chunk..=(first + count - 1) / dense.rows_per_chunk {
            self.views[dense.views[chunk as usize] as usize].check_size()?;
        }
        self.verify_rows(column, dense, first, count, row, &mut Seen::of(self.options.verify))?;
        let (at, bytes) = (first as usize * dense.stride, count as usize * dense.stride);
        // SAFETY: all stored rows are mapped, one after the other.
        let bytes = unsafe { region.bytes(at, bytes) };
        let owner = Arc::clone(region) as Owner;
        Ok(Some(View { start: bytes.as_ptr(), bytes: bytes.len(), owner }))
    }

    /// Verifies the blocks of some stored rows of a column.
    #[inline]
    pub(super) fn verify_rows(
        &self,
        column: usize,
        dense: &Dense,
        first: u64,
        count: u64,
        row: u64,
        seen: &mut Seen,
    ) -> Result<()> {
        if dense.is_verified(&self.views, self.options.verify) {
            return Ok(());
        }
        let about = |error: Error| error.about(self.row_name(column, row));
        let stride = dense.stride as u64;
        let (mut next, end) = (first, first + count);
        while next < end {
            let (chunk, inside) = (next / dense.rows_per_chunk, next % dense.rows_per_chunk);
            let rows = (dense.rows_per_chunk - inside).min(end - next);
            let number = dense.views[chunk as usize];
            let view = &self.views[number as usize];
            let bytes = inside * stride..(inside + rows) * stride;
            for block in bytes.start / BLOCK..bytes.end.div_ceil(BLOCK) {
                if !seen.has(view, number, block) {
                    view.verify_block(dense, chunk, block).map_err(about)?;
                }
            }
            next += rows;
        }
        Ok(())
    }
}

/// A field of a snapshot.
pub(super) struct ColumnView {
    pub(super) table: Option<Arc<TableFile>>,
    pub(super) dense: Option<Dense>,
    /// Decoders by dictionary id; the first has no dictionary.
    decoders: Vec<(u32, Decoder)>,
}

/// The chunks of a dense field.
pub(super) struct Dense {
    pub(super) stride: usize,
    pub(super) rows_per_chunk: u64,
    /// The positions of the views of its chunks, in order.
    pub(super) views: Vec<u32>,
    /// All stored rows in consecutive memory, if files are mapped.
    pub(super) region: Option<Arc<MappedRegion>>,
    /// Whether every row i is stored row i.
    plain: bool,
    rows: usize,
    /// The number of leading chunks that are verified.
    verified: AtomicUsize,
    direct: OnceLock<Option<Rows>>,
}

impl ColumnView {
    fn new(
        files: &Arc<Files>,
        state: &State,
        field: &FieldState,
        views: &mut [ChunkView],
        numbers: &ChunkIndex,
    ) -> Result<Self> {
        let table = files.table(&state.uid, field)?;
        let most = files.options().max_value_bytes;
        let mut decoders = vec![(0, Decoder::new().with_max_bytes(most))];
        for name in &field.dictionaries {
            let dictionary = files.dictionary(&state.uid, name)?;
            let decoder = Decoder::new().with_max_bytes(most);
            decoders.push((dictionary.id(), decoder.with_dictionary(dictionary)));
        }
        let dense = field.spec.is_dense().then(|| Dense::new(files, state, field, views, numbers));
        Ok(Self { table, dense: dense.transpose()?, decoders })
    }

    /// Returns the decoder for stored bytes; a zstd frame has the id of its dictionary.
    pub(super) fn decoder(&self, codec: Codec, stored: &[u8]) -> &Decoder {
        let plain = &self.decoders[0].1;
        if codec != Codec::Zstd || self.decoders.len() == 1 {
            return plain;
        }
        let id = zstd_safe::get_dict_id_from_frame(stored).map_or(0, std::num::NonZeroU32::get);
        self.decoders.iter().find(|(own, _)| *own == id).map_or(plain, |(_, decoder)| decoder)
    }
}

impl Dense {
    fn new(
        files: &Arc<Files>,
        state: &State,
        field: &FieldState,
        views: &mut [ChunkView],
        numbers: &ChunkIndex,
    ) -> Result<Self> {
        let (stride, per_chunk) = (field.spec.bytes, field.rows_per_chunk);
        let mut own = Vec::with_capacity(field.chunks.len());
        let mut chunks: Vec<(Arc<Chunk>, u64)> = Vec::with_capacity(field.chunks.len());
        let mut first = 0_u64;
        for number in &field.chunks {
            let at = numbers.get(*number).ok_or_else(|| {
                let text = format!("chunk {number} is not listed in `meta.json` or the journal");
                Error::Corrupt(text)
            })?;
            let view = &mut views[at as usize];
            // Checked once here: every stored row is below the position of its chunk.
            let rows = field.physical.saturating_sub(first).min(per_chunk);
            let least = rows.checked_mul(stride).and_then(|bytes| bytes.checked_add(PAGE));
            let most = per_chunk.checked_mul(stride).and_then(|bytes| bytes.checked_add(PAGE));
            let fits = least.is_some_and(|least| least <= view.position)
                && most.is_some_and(|most| view.position <= most);
            if !fits {
                return Err(Error::Corrupt(format!(
                    "chunk {number} ends at offset {}, which does not match its {rows} rows",
                    view.position
                )));
            }
            view.first = first;
            first = first.checked_add(per_chunk).ok_or_else(|| {
                Error::Corrupt(format!(
                    "the chunks up to chunk {number} exceed the limit of 2^64 - 1 rows"
                ))
            })?;
            let unverified = files.options().verify == Verify::First && !view.is_verified();
            if unverified || files.options().verify == Verify::Always {
                // Read now, since the file may be removed before the first row is read.
                view.chunk.load_crcs(view.full_blocks())?;
            }
            own.push(at);
            chunks.push((Arc::clone(&view.chunk), view.position));
        }
        if field.physical > first {
            return Err(Error::Corrupt(format!(
                "the field has {} stored rows, but its chunks can hold only {first}",
                field.physical
            )));
        }
        let mapped = files.options().io == Io::Mmap && !chunks.is_empty();
        let region = if mapped { Some(files.map_dense(&state.uid, field, &chunks)?) } else { None };
        Ok(Self {
            stride: stride as usize,
            rows_per_chunk: per_chunk,
            views: own,
            plain: region.is_some() && state.length > 0 && field.is_plain(state.length),
            region,
            rows: state.length as usize,
            verified: AtomicUsize::new(0),
            direct: OnceLock::new(),
        })
    }

    /// Returns whether no row needs to be verified.
    #[inline]
    pub(super) fn is_verified(&self, views: &[ChunkView], verify: Verify) -> bool {
        match verify {
            Verify::Never => true,
            Verify::Always => false,
            Verify::First => self.all_verified(views),
        }
    }

    fn all_verified(&self, views: &[ChunkView]) -> bool {
        let before = self.verified.load(Ordering::Relaxed);
        let mut done = before;
        while done < self.views.len() && views[self.views[done] as usize].is_verified() {
            done += 1;
        }
        if done > before {
            self.verified.fetch_max(done, Ordering::Relaxed);
        }
        done == self.views.len()
    }

    /// Returns the rows in memory, if all are mapped and verified.
    #[inline]
    pub(super) fn direct(&self, views: &[ChunkView], verify: Verify) -> Option<&Rows> {
        if let Some(rows) = self.direct.get() {
            return rows.as_ref();
        }
        if !self.plain || !self.is_verified(views, verify) {
            return None;
        }
        let region = self.region.as_ref()?;
        let axes = [(self.stride, 1)];
        let owner = Arc::clone(region) as Owner;
        // SAFETY: all rows are mapped from the base on, the region keeps them mapped, and committed
        // bytes do not change.
        let rows =
            unsafe { Rows::new(region.base(), self.rows, self.stride as isize, &axes, 1, owner) };
        self.direct.get_or_init(|| rows.ok()).as_ref()
    }
}

/// The position of the view of each chunk, by chunk number.
pub(super) enum ChunkIndex {
    /// At the index of the chunk number the position of its view plus one; 0 for none.
    Near(Vec<u32>),
    /// For few chunks with large numbers.
    Far(HashMap<u32, u32, BuildHasherDefault<RowHasher>>),
}

impl ChunkIndex {
    fn of(state: &State) -> Self {
        let most = state.chunks.keys().next_back().map_or(0, |&number| number as usize + 1);
        if most / 64 > state.chunks.len() + 64 {
            Self::Far(HashMap::default())
        } else {
            Self::Near(vec![0; most])
        }
    }

    fn insert(&mut self, number: u32, view: usize) {
        // There are fewer chunks than numbers of chunks.
        let view = view as u32;
        match self {
            Self::Near(views) => {
                if let Some(slot) = views.get_mut(number as usize) {
                    *slot = view + 1;
                }
            }
            Self::Far(views) => {
                views.insert(number, view);
            }
        }
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<u32> {
        match self {
            Self::Near(views) => views.get(number as usize)?.checked_sub(1),
            Self::Far(views) => views.get(&number).copied(),
        }
    }
}

/// Which blocks need no verification.
pub(super) enum Seen {
    /// Blocks that were verified before.
    Once,
    /// Blocks that were verified in this call.
    Call(std::collections::HashSet<(u32, u64)>),
    /// All blocks.
    All,
}

impl Seen {
    pub(super) fn of(verify: Verify) -> Self {
        match verify {
            Verify::First => Self::Once,
            Verify::Always => Self::Call(std::collections::HashSet::new()),
            Verify::Never => Self::All,
        }
    }

    #[inline]
    fn has(&mut self, view: &ChunkView, number: u32, block: u64) -> bool {
        match self {
            Self::Once => view.has_block(block),
            Self::Call(seen) => !seen.insert((number, block)),
            Self::All => true,
        }
    }
}

impl ChunkView {
    /// Checks that the file still has all bytes of the view; else `Corrupt`.
    pub(super) fn check_size(&self) -> Result<()> {
        self.chunk.check_size(self.position)
    }

    /// Returns the number of full blocks of a dense chunk.
    fn full_blocks(&self) -> u64 {
        (self.position - PAGE) / BLOCK
    }

    #[inline]
    fn has_block(&self, block: u64) -> bool {
        if block < self.full_blocks() {
            self.chunk.has_block(block)
        } else {
            self.tail_verified.load(Ordering::Relaxed)
        }
    }

    /// Returns whether every block was verified.
    pub(super) fn is_verified(&self) -> bool {
        self.tail_verified.load(Ordering::Relaxed) && self.chunk.has_blocks(self.full_blocks())
    }

    /// Compares a block with its checksum.
    #[cold]
    fn verify_block(&self, dense: &Dense, chunk: u64, block: u64) -> Result<()> {
        let start = block * BLOCK;
        let bytes = (self.position - PAGE - start).min(BLOCK) as usize;
        let place = chunk as usize * dense.stride * dense.rows_per_chunk as usize;
        let mut buffer = Vec::new();
        let bytes = match &dense.region {
            // SAFETY: bytes below the position are mapped.
            Some(region) => unsafe { region.bytes(place + start as usize, bytes) },
            None => {
                buffer.resize(bytes, 0);
                self.chunk.read(PAGE + start, &mut buffer)?;
                &buffer
            }
        };
        if block < self.full_blocks() {
            return self.chunk.verify_block(block, bytes);
        }
        self.chunk.verify_tail(self.position, self.tail, bytes)?;
        self.tail_verified.store(true, Ordering::Relaxed);
        Ok(())
    }
}

/// Returns the shape of the gathered values of a field.
pub fn shape_of(spec: &FieldSpec) -> ColumnShape {
    let bytes = spec.bytes as usize;
    match spec.kind {
        Kind::Fixed => ColumnShape::Fixed { row_bytes: bytes },
        _ => ColumnShape::Ragged { item_bytes: bytes },
    }
}
