//! Reads the arrays of a run: each chunk that is touched is read, checked and decoded once.

use std::cell::RefCell;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use memmap2::Mmap;

use super::arrays::{FieldSpec, TailRecord};
use crate::codec::Codec;
use crate::crc::crc32c;
use crate::latch::EarliestError;
use crate::{Error, Result, durable, pool};

/// A committed chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredChunk {
    /// Its first row.
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

/// Reads rows of fields. A snapshot: what is committed later is not seen. Thread-safe.
#[derive(Debug)]
pub struct ArrayReader {
    path: PathBuf,
    file: Option<Arc<File>>,
    fields: Vec<Field>,
    decoded: AtomicU64,
}

/// What was committed of a field since a reader of it was made.
#[derive(Debug, Default)]
pub struct Added {
    /// Chunks. Each replaces the rows of a chunk that was not full.
    pub chunks: Vec<StoredChunk>,
    /// Further rows.
    pub tails: Vec<TailRecord>,
}

#[derive(Debug)]
struct Field {
    spec: FieldSpec,
    row_bytes: usize,
    parts: Vec<Arc<Part>>,
}

impl Field {
    /// Returns the number of the part that has a row.
    fn part_of(&self, row: u64) -> Option<usize> {
        let has = |at: usize| {
            self.parts.get(at).is_some_and(|part| (part.first_row..part.end()).contains(&row))
        };
        // Where no row was left out, every part but the last ones is a full chunk.
        let likely = (row / self.spec.chunk_rows) as usize;
        if has(likely) {
            return Some(likely);
        }
        let after = self.parts.partition_point(|part| part.first_row <= row);
        after.checked_sub(1).filter(|&at| row - self.parts[at].first_row < self.parts[at].rows)
    }
}

/// Rows that are encoded together: a chunk in the file, or rows of a chunk that is not full.
#[derive(Debug)]
struct Part {
    first_row: u64,
    rows: u64,
    place: Place,
    is_checked: AtomicBool,
}

impl Part {
    /// Returns the row after its last one.
    fn end(&self) -> u64 {
        self.first_row + self.rows
    }
}

#[derive(Debug)]
enum Place {
    File(StoredChunk),
    Memory(TailRecord),
}

/// The size of the file is looked up before a chunk of more bytes is read.
const LARGE_BYTES: u32 = 1 << 20;

/// Larger buffers are not kept by the threads that read.
const MAX_KEPT_BYTES: usize = 16 << 20;

thread_local! {
    /// The bytes of a part before and after its filters are undone.
    static SCRATCH: RefCell<(Vec<u8>, Vec<u8>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

impl ArrayReader {
    /// Reads from the file of a run, which may be missing if no chunk is in it.
    pub fn open(path: &Path) -> Result<Self> {
        let file = match durable::open(path) {
            Ok(file) => Some(Arc::new(file)),
            Err(error) if error.kind() == "not-found" => None,
            Err(error) => return Err(error),
        };
        let decoded = AtomicU64::new(0);
        Ok(Self { path: path.to_path_buf(), file, fields: Vec::new(), decoded })
    }

    /// Adds a field with its chunks and the rows after them, and returns its number.
    pub fn add_field(
        &mut self,
        spec: FieldSpec,
        chunks: Vec<StoredChunk>,
        tails: Vec<TailRecord>,
    ) -> Result<usize> {
        let row_bytes = spec.row_bytes()?;
        let parts = self.parts_of(&spec, Vec::new(), Added { chunks, tails })?;
        self.fields.push(Field { spec, row_bytes, parts });
        Ok(self.fields.len() - 1)
    }

    /// Returns a reader of the same file with what was committed since, for each field. What was
    /// verified stays so.
    pub fn extended(&self, added: Vec<Added>) -> Result<Self> {
        // A run without chunks may have had no file.
        let file = match &self.file {
            Some(file) => Some(Arc::clone(file)),
            None => Self::open(&self.path)?.file,
        };
        let mut fields = Vec::with_capacity(self.fields.len());
        let mut added = added.into_iter();
        for Field { spec, row_bytes, parts } in &self.fields {
            let parts = self.parts_of(spec, parts.clone(), added.next().unwrap_or_default())?;
            fields.push(Field { spec: spec.clone(), row_bytes: *row_bytes, parts });
        }
        let decoded = AtomicU64::new(self.decoded());
        Ok(Self { path: self.path.clone(), file, fields, decoded })
    }

    /// Adds chunks and further rows to the parts of a field.
    fn parts_of(
        &self,
        spec: &FieldSpec,
        mut parts: Vec<Arc<Part>>,
        added: Added,
    ) -> Result<Vec<Arc<Part>>> {
        let Added { chunks, tails } = added;
        let mut made = Vec::with_capacity(chunks.len() + tails.len());
        for chunk in chunks {
            let is_valid = chunk.first_row.is_multiple_of(spec.chunk_rows)
                && chunk.first_row.checked_add(spec.chunk_rows).is_some()
                && (1..=spec.chunk_rows).contains(&chunk.rows);
            if !is_valid {
                return Err(self.damaged(spec, chunk.first_row, "has an impossible position"));
            }
            let (first_row, rows) = (chunk.first_row, chunk.rows);
            made.push(Part {
                first_row,
                rows,
                place: Place::File(chunk),
                is_checked: false.into(),
            });
        }
        // Only parts at the end are replaced.
        let least = made.iter().map(|part| part.first_row).min();
        let from =
            least.map_or(parts.len(), |least| parts.partition_point(|part| part.first_row < least));
        let last = parts.split_off(from);
        let is_replaced = |part: &Part| {
            made.iter().any(|new| (new.first_row..new.end()).contains(&part.first_row))
        };
        let mut end: Vec<Arc<Part>> = last.into_iter().filter(|part| !is_replaced(part)).collect();
        for tail in tails {
            let (first_row, rows) = (tail.first_row, tail.rows);
            if rows == 0 || rows > spec.chunk_rows || first_row.checked_add(rows).is_none() {
                return Err(self.damaged(spec, first_row, "has an impossible position"));
            }
            made.push(Part {
                first_row,
                rows,
                place: Place::Memory(tail),
                is_checked: false.into(),
            });
        }
        end.extend(made.into_iter().map(Arc::new));
        end.sort_by_key(|part| part.first_row);
        let before = parts.last().into_iter().chain(&end);
        if let Some((_, part)) = before
            .zip(&end[usize::from(parts.is_empty()).min(end.len())..])
            .find(|(a, b)| a.end() > b.first_row)
        {
            return Err(self.damaged(spec, part.first_row, "is stored twice"));
        }
        parts.append(&mut end);
        Ok(parts)
    }

    /// Returns how many parts of a field are those that another reader has, from the first on.
    pub(super) fn parts_as_in(&self, other: &Self, field: usize) -> usize {
        let (Some(field), Some(other)) = (self.fields.get(field), other.fields.get(field)) else {
            return 0;
        };
        let pairs = field.parts.iter().zip(&other.parts);
        pairs.take_while(|(part, other)| Arc::ptr_eq(part, other)).count()
    }

    /// Returns what a field is.
    pub fn spec(&self, field: usize) -> Result<&FieldSpec> {
        Ok(&self.field(field)?.spec)
    }

    /// Returns the bytes of a row of a field.
    pub fn row_bytes(&self, field: usize) -> Result<usize> {
        Ok(self.field(field)?.row_bytes)
    }

    /// Returns how many parts were decoded so far.
    pub fn decoded(&self) -> u64 {
        self.decoded.load(Ordering::Relaxed)
    }

    /// Returns how many rows a field has, and the bytes of those in its last chunk, if it is not
    /// full.
    pub fn open_rows(&self, field: usize) -> Result<(u64, Vec<u8>)> {
        let field = self.field(field)?;
        let Field { spec, row_bytes, parts } = field;
        let end = parts.last().map_or(0, |last| last.first_row + last.rows);
        let start = end - end % spec.chunk_rows;
        let (mut bytes, mut encoded, mut decoded) = (Vec::new(), Vec::new(), Vec::new());
        for part in &parts[parts.partition_point(|part| part.first_row + part.rows <= start)..] {
            self.decode(field, part, &mut encoded, &mut decoded)?;
            // Rows that were left out are zeros.
            let first = part.first_row.max(start);
            bytes.resize((first - start) as usize * row_bytes, 0);
            let skipped = (first - part.first_row) as usize * row_bytes;
            bytes.extend_from_slice(&decoded[skipped..part.rows as usize * row_bytes]);
        }
        Ok((end, bytes))
    }

    /// Returns how many fields there are.
    pub(super) fn field_count(&self) -> usize {
        self.fields.len()
    }

    /// Returns how many parts a field has.
    pub(super) fn part_count(&self, field: usize) -> Result<usize> {
        Ok(self.field(field)?.parts.len())
    }

    /// Returns how many parts of a field end before a row.
    pub(super) fn parts_before(&self, field: usize, row: u64) -> Result<usize> {
        Ok(self.field(field)?.parts.partition_point(|part| part.end() <= row))
    }

    /// Returns the part that has a row that must exist, its first row and the row after its last.
    pub(super) fn part_with(&self, field: usize, row: u64) -> Result<(usize, u64, u64)> {
        let field = self.field(field)?;
        let Some(number) = field.part_of(row) else {
            return Err(self.damaged(&field.spec, row, "is missing"));
        };
        let part = &field.parts[number];
        Ok((number, part.first_row, part.end()))
    }

    /// Fills `decoded` with all rows of a part.
    pub(super) fn read_whole(
        &self,
        field: usize,
        part: usize,
        decoded: &mut Vec<u8>,
    ) -> Result<()> {
        let field = self.field(field)?;
        let part = &field.parts[part];
        SCRATCH.with_borrow_mut(|(encoded, _)| {
            self.decode(field, part, encoded, decoded)?;
            if encoded.capacity() > MAX_KEPT_BYTES {
                *encoded = Vec::new();
            }
            Ok::<(), Error>(())
        })?;
        decoded.truncate(part.rows as usize * field.row_bytes);
        Ok(())
    }

    /// Returns where the rows of a part are in the file, if they are stored there as they are.
    pub(super) fn plain_bytes(&self, field: usize, part: usize) -> Option<Range<u64>> {
        let field = self.fields.get(field)?;
        let part = &field.parts[part];
        let Place::File(chunk) = &part.place else { return None };
        let filters = &field.spec.filters;
        let is_shuffled = filters.shuffle && field.spec.item_bytes() > 1;
        let bytes = field.spec.chunk_rows * field.row_bytes as u64;
        let is_plain =
            filters.codec == Codec::Raw && !is_shuffled && u64::from(chunk.bytes) == bytes;
        is_plain.then(|| chunk.offset..chunk.offset.saturating_add(bytes))
    }

    /// Whether the checksum of a part was compared.
    pub(super) fn is_checked(&self, field: usize, part: usize) -> bool {
        self.fields[field].parts[part].is_checked.load(Ordering::Relaxed)
    }

    /// Compares the checksum of the bytes of a part, unless that was done.
    pub(super) fn check_part(&self, field: usize, part: usize, bytes: &[u8]) -> Result<()> {
        let field = self.field(field)?;
        let part = &field.parts[part];
        let crc = match &part.place {
            Place::File(chunk) => chunk.crc,
            Place::Memory(tail) => tail.crc,
        };
        self.compare(field, part, bytes, crc)
    }

    /// Fills `out` with bytes of the file.
    pub(super) fn read_bytes(&self, field: usize, row: u64, at: u64, out: &mut [u8]) -> Result<()> {
        let spec = &self.field(field)?.spec;
        match self.file.as_ref().map(|file| file.read_exact_at(out, at)) {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) if error.kind() != std::io::ErrorKind::UnexpectedEof => {
                Err(durable::about(&self.path, &error))
            }
            _ => Err(self.damaged(spec, row, "is missing")),
        }
    }

    /// Maps the file; None if there is none.
    ///
    /// # Safety
    /// The file is not truncated while the map exists.
    pub(super) unsafe fn map(&self) -> Result<Option<Mmap>> {
        let Some(file) = &self.file else { return Ok(None) };
        // SAFETY: as the caller promises; no length or address is taken from these bytes.
        let map = unsafe { Mmap::map(file) };
        map.map(Some).map_err(|error| durable::about(&self.path, &error))
    }

    /// Refuses to go on with a map of more bytes than the file still has.
    pub(super) fn check_size(&self, bytes: usize) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let size = file.metadata().map_err(|error| durable::about(&self.path, &error))?.len();
        if size < bytes as u64 {
            let path = self.path.display();
            return Err(Error::Corrupt(format!(
                "`{path}` has {size} bytes, but had {bytes} when it was opened"
            )));
        }
        Ok(())
    }

    /// Returns the error for a chunk whose bytes are not in the file.
    pub(super) fn missing(&self, field: usize, row: u64) -> Error {
        match self.field(field) {
            Ok(field) => self.damaged(&field.spec, row, "is missing"),
            Err(error) => error,
        }
    }

    /// Refuses rows that were never written: those that another field refers to must exist.
    pub(super) fn check_written(&self, field: usize, rows: &[u64]) -> Result<()> {
        let field = self.field(field)?;
        match rows.iter().find(|&&row| field.part_of(row).is_none()) {
            Some(&row) => Err(self.damaged(&field.spec, row, "is missing")),
            None => Ok(()),
        }
    }

    /// Fills `out` with rows of a field, in any order and with repeats. A row that was never
    /// written is zeros.
    pub fn read(&self, field: usize, rows: &[u64], out: &mut [u8], threads: usize) -> Result<()> {
        let field = self.field(field)?;
        let size = field.row_bytes;
        if rows.len().checked_mul(size) != Some(out.len()) {
            return Err(Error::Invalid("the buffer has the wrong size".to_owned()));
        }
        if size == 0 {
            return Ok(());
        }
        // Where each wanted row is: its part, the row in the part, the place in `out`.
        let mut wanted = Vec::with_capacity(rows.len());
        for (place, &row) in rows.iter().enumerate() {
            match field.part_of(row) {
                Some(part) => wanted.push((part, row - field.parts[part].first_row, place)),
                None => out[place * size..(place + 1) * size].fill(0),
            }
        }
        if !wanted.is_sorted() {
            wanted.sort_unstable();
        }
        let groups: Vec<_> = wanted.chunk_by(|a, b| a.0 == b.0).collect();
        let out = Rows { start: out.as_mut_ptr(), size };
        let failure = EarliestError::default();
        pool::run(groups.len(), threads, &|number| {
            let group = groups[number];
            if let Err(error) = self.read_part(field, group, &out) {
                failure.note(number, error);
            }
        });
        failure.take().map_or(Ok(()), Err)
    }

    fn read_part(&self, field: &Field, group: &[(usize, u64, usize)], out: &Rows) -> Result<()> {
        let part = &field.parts[group[0].0];
        let row_bytes = field.row_bytes;
        SCRATCH.with_borrow_mut(|(encoded, decoded)| {
            self.decode(field, part, encoded, decoded)?;
            for &(_, row, place) in group {
                let start = row as usize * row_bytes;
                // SAFETY: each place of the caller's buffer is in one group, and only once.
                unsafe { out.row(place) }.copy_from_slice(&decoded[start..start + row_bytes]);
            }
            for buffer in [encoded, decoded] {
                if buffer.capacity() > MAX_KEPT_BYTES {
                    *buffer = Vec::new();
                }
            }
            Ok(())
        })
    }

    /// Fills `decoded` with all rows of a part.
    fn decode(
        &self,
        field: &Field,
        part: &Part,
        encoded: &mut Vec<u8>,
        decoded: &mut Vec<u8>,
    ) -> Result<()> {
        let (bytes, crc, rows) = match &part.place {
            Place::Memory(tail) => (&tail.data[..], tail.crc, part.rows),
            Place::File(chunk) => {
                self.check_inside(&field.spec, chunk)?;
                encoded.resize(chunk.bytes as usize, 0);
                let read = self.file.as_ref().map(|file| file.read_exact_at(encoded, chunk.offset));
                match read {
                    Some(Ok(())) => {}
                    Some(Err(error)) if error.kind() != std::io::ErrorKind::UnexpectedEof => {
                        return Err(durable::about(&self.path, &error));
                    }
                    _ => return Err(self.damaged(&field.spec, part.first_row, "is missing")),
                }
                (&encoded[..], chunk.crc, field.spec.chunk_rows)
            }
        };
        self.compare(field, part, bytes, crc)?;
        let (filters, length) = (&field.spec.filters, rows as usize * field.row_bytes);
        // Memory is allocated for what the bytes can become, and not for what was declared.
        let done = filters.check(bytes, length as u64).and_then(|()| {
            decoded.resize(length, 0);
            filters.decode(bytes, field.spec.item_bytes(), decoded)
        });
        self.decoded.fetch_add(1, Ordering::Relaxed);
        done.map_err(|error| {
            let what = format!("cannot be decoded: {error}");
            self.damaged(&field.spec, part.first_row, &what)
        })
    }

    /// Compares a checksum, unless that was done.
    fn compare(&self, field: &Field, part: &Part, bytes: &[u8], crc: u32) -> Result<()> {
        if !part.is_checked.load(Ordering::Relaxed) {
            if crc != crc32c(bytes) {
                return Err(self.damaged(&field.spec, part.first_row, "has a wrong checksum"));
            }
            part.is_checked.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Refuses a large chunk that the file cannot have, before memory is allocated for it.
    fn check_inside(&self, spec: &FieldSpec, chunk: &StoredChunk) -> Result<()> {
        if let Some(file) = self.file.as_ref().filter(|_| chunk.bytes > LARGE_BYTES) {
            let size = file.metadata().map_err(|error| durable::about(&self.path, &error))?.len();
            if chunk.offset.checked_add(chunk.bytes.into()).is_none_or(|end| end > size) {
                return Err(self.damaged(spec, chunk.first_row, "is missing"));
            }
        }
        Ok(())
    }

    fn field(&self, number: usize) -> Result<&Field> {
        let count = self.fields.len();
        let field = self.fields.get(number);
        field.ok_or_else(|| Error::out_of_range(number, count, "field", "fields"))
    }

    fn damaged(&self, spec: &FieldSpec, row: u64, what: &str) -> Error {
        let path = self.path.display();
        Error::Corrupt(format!("`{path}`: the chunk of {} at row {row} {what}", spec.path))
    }
}

/// The caller's buffer, of which several threads fill different rows.
struct Rows {
    start: *mut u8,
    size: usize,
}

// SAFETY: see `Rows::row`.
unsafe impl Sync for Rows {}

impl Rows {
    /// # Safety
    /// The place is inside of the buffer, and no other reference to it exists.
    #[expect(clippy::mut_from_ref, reason = "the caller sees to it")]
    unsafe fn row(&self, place: usize) -> &mut [u8] {
        // SAFETY: as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(place * self.size), self.size) }
    }
}
