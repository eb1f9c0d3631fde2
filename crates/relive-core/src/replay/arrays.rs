//! Writes the arrays of a run: rows of fields, collected in chunks and appended to a file.

use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::encoder::{Done, Encoder, Job};
use super::reader::StoredChunk;
use crate::crc::{Crc32c, crc32c};
use crate::durable::{self, Growing};
use crate::hdf5::{self, Chunk, Dataset, Datatype, Filters, Group, SUPERBLOCK_BYTES, Values};
use crate::latch::{Latch, RecordIn};
use crate::{Error, Result, pool};

/// The last row of a field: rows are counted in `i64` by the database.
const MAX_ROW: u64 = 1 << 62;

/// The path of the table of chunks in a closed file.
const CHUNK_TABLE: &str = "chunks";

/// Columns of the table of chunks.
const CHUNK_COLUMNS: u64 = 6;

/// How many buffers of chunks are kept to be used again.
const SPARE: usize = 8;

/// What a field is, and how it is stored.
#[derive(Debug, Clone)]
pub struct FieldSpec {
    /// The path of its dataset.
    pub path: String,
    /// The type of an element.
    pub datatype: Datatype,
    /// The shape of a row.
    pub shape: Vec<u64>,
    /// Rows of a chunk.
    pub chunk_rows: u64,
    /// What is done to the bytes of a chunk.
    pub filters: Filters,
    /// What its rows belong to.
    pub rows_of: RowsOf,
}

/// What the rows of a field belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowsOf {
    /// Row k to step k of the run.
    Steps,
    /// Row k to the k-th end of an episode that has a last observation or frame.
    Ends,
    /// To nothing else: planes of stacks.
    Planes,
}

/// How many steps and ends of episodes a run has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunLength {
    /// Steps.
    pub steps: u64,
    /// Ends of episodes that have a last observation or frame.
    pub ends: u64,
}

/// Whether a file has a table of its chunks with their checksums. A reader without the database
/// needs it; the numbers of datasets in it are those of the fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkTable {
    /// The file has one.
    Stored,
    /// Only what the caller passes is in the file: it is made for other programs.
    LeftOut,
}

impl FieldSpec {
    /// Returns the bytes of an element.
    pub(super) fn item_bytes(&self) -> usize {
        self.datatype.size() as usize
    }

    /// Returns the bytes of a row.
    pub fn row_bytes(&self) -> Result<usize> {
        let mut bytes = u64::from(self.datatype.size());
        for &size in &self.shape {
            bytes = bytes.saturating_mul(size);
        }
        // Rows without bytes are counted as well.
        let chunk = bytes.max(1).saturating_mul(self.chunk_rows);
        if chunk > hdf5::MAX_CHUNK_BYTES {
            let error = Error::over_limit(chunk, hdf5::MAX_CHUNK_BYTES, "a chunk", "bytes");
            return Err(error.about(&self.path));
        }
        if self.chunk_rows == 0 {
            return Err(Error::Invalid(format!("{}: a chunk must have rows", self.path)));
        }
        Ok(bytes as usize)
    }
}

/// A chunk that was written to the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkRecord {
    /// The number of the field.
    pub field: usize,
    /// The first row of the chunk.
    pub first_row: u64,
    /// How many rows it has; the others are zeros.
    pub rows: u64,
    /// Where it is.
    pub offset: u64,
    /// How many bytes it has.
    pub bytes: u32,
    /// The CRC-32C of these bytes.
    pub crc: u32,
}

/// Rows of a chunk that is not full yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TailRecord {
    /// The number of the field.
    pub field: usize,
    /// The first of these rows.
    pub first_row: u64,
    /// How many they are.
    pub rows: u64,
    /// Their bytes, after the filters of the field.
    pub data: Vec<u8>,
    /// The CRC-32C of these bytes.
    pub crc: u32,
}

/// What must be committed with the rows that were appended since the last commit.
#[derive(Debug, Default)]
pub struct Commit {
    /// New chunks. Each replaces what was committed of its rows.
    pub chunks: Vec<ChunkRecord>,
    /// Further rows, after those committed before.
    pub tails: Vec<TailRecord>,
}

/// Appends the arrays of a run to its file. One thread calls it.
#[derive(Debug)]
pub struct ArrayWriter {
    file: Growing,
    end: u64,
    fields: Vec<Field>,
    encoder: Encoder,
    /// Rows of a chunk that could not be encoded are missing, so nothing is committed after them.
    failure: Latch,
    written: Vec<ChunkRecord>,
    spare: Vec<Vec<u8>>,
    threads: usize,
    metadata: Option<MetadataRecord>,
}

/// The metadata of HDF5 that the superblock refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetadataRecord {
    /// Where it is.
    pub offset: u64,
    /// How many bytes it has.
    pub bytes: u64,
    /// The CRC-32C of the superblock and of these bytes.
    pub crc: u32,
}

#[derive(Debug)]
struct Field {
    spec: FieldSpec,
    row_bytes: usize,
    chunks: Vec<StoredChunk>,
    open: Option<OpenChunk>,
    /// Rows before this one have been committed, or were left out.
    committed: u64,
    /// The row after the last one.
    end: u64,
}

/// A chunk that is not written yet.
#[derive(Debug)]
struct OpenChunk {
    field: usize,
    first_row: u64,
    bytes: Vec<u8>,
}

impl ArrayWriter {
    /// Creates the file of a run.
    pub fn create(path: &Path, threads: usize) -> Result<Self> {
        let file = Growing::create(path)?;
        Self::over(file, SUPERBLOCK_BYTES as u64, threads)
    }

    /// Continues the file of a run after `end`, the end of everything that was committed, and
    /// after the metadata that its superblock refers to.
    pub fn open(path: &Path, end: u64, threads: usize) -> Result<Self> {
        let mut superblock = [0; SUPERBLOCK_BYTES];
        let file = Growing::open(path)?;
        let read = file.file().read_exact_at(&mut superblock, 0);
        let described = match read {
            // Metadata that is not in the file need not be kept.
            Ok(()) => {
                hdf5::described_end(&superblock).filter(|&end| end <= file.size()).unwrap_or(0)
            }
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => 0,
            Err(error) => return Err(durable::about(path, &error)),
        };
        Self::over(file, end.max(described).max(SUPERBLOCK_BYTES as u64), threads)
    }

    fn over(file: Growing, end: u64, threads: usize) -> Result<Self> {
        let encoder = Encoder::new(threads.max(1))?;
        Ok(Self {
            file,
            end,
            fields: Vec::new(),
            encoder,
            failure: Latch::default(),
            written: Vec::new(),
            spare: Vec::new(),
            threads: threads.max(1),
            metadata: None,
        })
    }

    /// Adds a field and returns its number.
    pub fn add_field(&mut self, spec: FieldSpec) -> Result<usize> {
        let row_bytes = spec.row_bytes()?;
        let chunks = Vec::new();
        self.fields.push(Field { spec, row_bytes, chunks, open: None, committed: 0, end: 0 });
        Ok(self.fields.len() - 1)
    }

    /// Continues a field after its committed rows, before anything is appended to it: `chunks` are
    /// those in the file, and `open` are the rows of the last chunk, if it is not full.
    pub fn restore(
        &mut self,
        field: usize,
        chunks: Vec<StoredChunk>,
        rows: u64,
        open: Vec<u8>,
    ) -> Result<()> {
        let state = self.field(field)?;
        let chunk_rows = state.spec.chunk_rows;
        let first_row = rows - rows % chunk_rows;
        if rows > MAX_ROW || chunks.iter().any(|chunk| chunk.first_row > MAX_ROW) {
            return Err(Error::over_limit(rows, MAX_ROW, "a run", "rows").about(&state.spec.path));
        }
        if open.len() as u64 != (rows - first_row) * state.row_bytes as u64 {
            let text = format!("{}: the rows of the last chunk are missing", state.spec.path);
            return Err(Error::Invalid(text));
        }
        (state.chunks, state.committed, state.end) = (chunks, rows, rows);
        state.open = (rows > first_row).then_some(OpenChunk { field, first_row, bytes: open });
        Ok(())
    }

    /// Appends a row of a field. Rows come in their order; those that are left out are zeros.
    pub fn append(&mut self, field: usize, row: u64, bytes: &[u8]) -> Result<()> {
        let state = Self::field_of(&mut self.fields, field)?;
        if bytes.len() != state.row_bytes {
            let text = format!(
                "{}: a row has {} bytes, expected {}",
                state.spec.path,
                bytes.len(),
                state.row_bytes
            );
            return Err(Error::Invalid(text));
        }
        if row < state.end {
            let text = format!("{}: row {row} was appended before", state.spec.path);
            return Err(Error::Invalid(text));
        }
        if row > MAX_ROW {
            return Err(Error::over_limit(row, MAX_ROW, "a run", "rows").about(&state.spec.path));
        }
        let first_row = row - row % state.spec.chunk_rows;
        let mut full = state.open.take_if(|open| open.first_row != first_row);
        let chunk_bytes = state.row_bytes * state.spec.chunk_rows as usize;
        let spare = &mut self.spare;
        let open = state.open.get_or_insert_with(|| {
            let mut bytes = spare.pop().unwrap_or_default();
            bytes.clear();
            bytes.reserve_exact(chunk_bytes);
            OpenChunk { field, first_row, bytes }
        });
        open.bytes.resize((row - first_row) as usize * state.row_bytes, 0);
        open.bytes.extend_from_slice(bytes);
        state.end = row + 1;
        if row + 1 == first_row + state.spec.chunk_rows {
            if let Some(before) = full.take() {
                self.give(before);
            }
            full = self.fields[field].open.take();
        }
        let Some(full) = full else { return Ok(()) };
        self.give(full);
        self.write_full(false)
    }

    /// Writes every full chunk, and returns what to commit with the rows so far.
    ///
    /// What was written is not synced.
    pub fn commit(&mut self) -> Result<Commit> {
        self.write_full(true)?;
        let mut tails = Vec::new();
        for (number, field) in self.fields.iter_mut().enumerate() {
            let Some(open) = &field.open else { continue };
            let first_row = field.committed.max(open.first_row);
            if first_row < field.end {
                let start = (first_row - open.first_row) as usize * field.row_bytes;
                tails.push((number, first_row, field.end - first_row, start));
            }
            field.committed = field.end;
        }
        let encoded = pool::map(tails, self.threads, |(number, first_row, rows, start)| {
            let field = &self.fields[number];
            let bytes = field.open.as_ref().map_or(&[][..], |open| &open.bytes[start..]);
            let data = field.spec.filters.encode(bytes, field.spec.item_bytes())?;
            let crc = crc32c(&data);
            Ok(TailRecord { field: number, first_row, rows, data, crc })
        });
        let tails = encoded.into_iter().collect::<Result<_>>().record_in(&self.failure)?;
        Ok(Commit { chunks: std::mem::take(&mut self.written), tails })
    }

    /// Appends consecutive rows of a field.
    pub fn append_rows(&mut self, field: usize, first_row: u64, bytes: &[u8]) -> Result<()> {
        let row_bytes = Self::field_of(&mut self.fields, field)?.row_bytes;
        if row_bytes == 0 || !bytes.len().is_multiple_of(row_bytes) {
            return Err(Error::Invalid("the rows have the wrong size".to_owned()));
        }
        for (row, bytes) in (first_row..).zip(bytes.chunks_exact(row_bytes)) {
            self.append(field, row, bytes)?;
        }
        Ok(())
    }

    /// Writes the chunks that are not full, padded with zeros, and the metadata of HDF5. The file
    /// then has everything, and its size is that of its content.
    ///
    /// `root` has the attributes and the other datasets of the file.
    pub fn finish(
        &mut self,
        mut root: Group,
        length: RunLength,
        table: ChunkTable,
    ) -> Result<Commit> {
        let open: Vec<_> = self.fields.iter_mut().filter_map(|field| field.open.take()).collect();
        for chunk in open {
            self.give(chunk);
        }
        self.write_full(true)?;
        if table == ChunkTable::Stored {
            root.insert(CHUNK_TABLE, self.chunk_table())?;
        }
        self.write_metadata(root, Some(length))?;
        self.file.trim(self.end)?;
        Ok(Commit { chunks: std::mem::take(&mut self.written), tails: Vec::new() })
    }

    /// Writes metadata of HDF5 for the full chunks so far, so that other programs can read them.
    pub fn write_snapshot(&mut self, root: Group) -> Result<()> {
        self.write_full(true)?;
        self.write_metadata(root, None)
    }

    /// Makes everything that was written survive a power cut.
    pub fn sync(&self) -> Result<()> {
        self.file.sync()
    }

    /// Returns the metadata that was written last.
    pub fn metadata(&self) -> Option<MetadataRecord> {
        self.metadata
    }

    /// Returns where the next bytes go.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Returns the chunks of all fields, in the order of fields and rows, as a dataset.
    fn chunk_table(&self) -> Dataset {
        let mut bytes = Vec::new();
        let mut count = 0;
        for (number, field) in self.fields.iter().enumerate() {
            for chunk in &field.chunks {
                let StoredChunk { first_row, rows, offset, bytes: size, crc } = *chunk;
                let values = [number as u64, first_row, rows, offset, size.into(), crc.into()];
                bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
                count += 1;
            }
        }
        Dataset {
            datatype: Datatype::Int(8),
            shape: vec![count, CHUNK_COLUMNS],
            values: Values::Bytes(bytes),
            attributes: hdf5::Attributes::new(),
        }
    }

    /// Writes metadata of all rows of a run of some length, or of the rows of full chunks.
    fn write_metadata(&mut self, mut root: Group, length: Option<RunLength>) -> Result<()> {
        for field in &self.fields {
            let spec = &field.spec;
            let mut chunks = field.chunks.clone();
            if let Some(open) = &field.open {
                // An earlier recording left it partly filled, and it will be replaced.
                chunks.pop_if(|last| last.first_row == open.first_row);
            }
            let full = chunks.last().map_or(0, |last| last.first_row + spec.chunk_rows);
            let filters = spec.filters.clone();
            let in_file = |chunk: StoredChunk| Chunk {
                first_row: chunk.first_row,
                offset: chunk.offset,
                bytes: chunk.bytes,
            };
            let chunks = chunks.into_iter().map(in_file).collect();
            let values = Values::Chunks { rows: spec.chunk_rows, filters, chunks };
            let rows = match (length, spec.rows_of) {
                (None, _) => full,
                (Some(length), RowsOf::Steps) => length.steps,
                (Some(length), RowsOf::Ends) => length.ends,
                (Some(_), RowsOf::Planes) => field.end,
            };
            let shape = [rows].into_iter().chain(spec.shape.iter().copied()).collect();
            let attributes = hdf5::Attributes::new();
            root.insert(
                &spec.path,
                Dataset { datatype: spec.datatype, shape, values, attributes },
            )?;
        }
        self.end = self.end.next_multiple_of(8);
        let metadata = hdf5::metadata(&root, self.end)?;
        let offset = self.write(&metadata.bytes)?;
        self.file.sync()?;
        // Only now: until here the superblock refers to the metadata before.
        self.file.write_at(&metadata.superblock, 0)?;
        let mut crc = Crc32c::default();
        crc.update(&metadata.superblock);
        crc.update(&metadata.bytes);
        let (bytes, crc) = (metadata.bytes.len() as u64, crc.value());
        self.metadata = Some(MetadataRecord { offset, bytes, crc });
        Ok(())
    }

    /// Gives a chunk to the threads that encode.
    fn give(&mut self, mut chunk: OpenChunk) {
        let Field { spec, row_bytes, end, .. } = &self.fields[chunk.field];
        let rows = spec.chunk_rows.min(end - chunk.first_row);
        chunk.bytes.resize(row_bytes * spec.chunk_rows as usize, 0);
        self.encoder.give(Job {
            field: chunk.field,
            first_row: chunk.first_row,
            rows,
            bytes: chunk.bytes,
            filters: spec.filters.clone(),
            item_bytes: spec.item_bytes(),
        });
    }

    /// Writes the chunks that are encoded, or `all`, in the order in which they became full.
    fn write_full(&mut self, all: bool) -> Result<()> {
        self.failure.check()?;
        while let Some(Done { job, data }) = self.encoder.take(all)? {
            let data = data.record_in(&self.failure)?;
            let offset = self.write(&data)?;
            let Job { field, first_row, rows, bytes, .. } = job;
            let (size, crc) = (data.len() as u32, crc32c(&data));
            self.written.push(ChunkRecord { field, first_row, rows, offset, bytes: size, crc });
            let chunks = &mut self.fields[field].chunks;
            // A chunk that an earlier recording left partly filled is replaced.
            chunks.pop_if(|last| last.first_row == first_row);
            chunks.push(StoredChunk { first_row, rows, offset, bytes: size, crc });
            if self.spare.len() < SPARE {
                self.spare.push(bytes);
            }
        }
        Ok(())
    }

    fn field(&mut self, number: usize) -> Result<&mut Field> {
        Self::field_of(&mut self.fields, number)
    }

    fn field_of(fields: &mut [Field], number: usize) -> Result<&mut Field> {
        let count = fields.len();
        fields.get_mut(number).ok_or_else(|| Error::out_of_range(number, count, "field", "fields"))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<u64> {
        let offset = self.end;
        let end = offset + bytes.len() as u64;
        self.file.reserve(end, u64::MAX)?;
        self.file.write_at(bytes, offset)?;
        self.end = end;
        Ok(offset)
    }
}
