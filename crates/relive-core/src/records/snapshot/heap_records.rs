//! Reads, verifies and decodes records of heap chunks.

use super::{Dense, HeapLocation, Resolved, Seen, Snapshot, View};
use crate::codec::Codec;
use crate::gather::{Owner, copy_bytes};
use crate::pack::Verify;
use crate::records::layout::{PAGE, RECORD_BYTES, RecordHeader, u64_at};
use crate::records::state::Kind;
use crate::{Error, Result};

/// A value as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredValue {
    /// The codec of the bytes.
    pub codec: Codec,
    /// The length of the value in bytes.
    pub length: u64,
    /// The varying dimensions, if the field has more than one.
    pub dims: Vec<u64>,
    /// The stored bytes.
    pub bytes: Vec<u8>,
}

/// A record of a heap chunk: its header and the bytes after it.
#[derive(Clone, Copy)]
pub(in crate::records) struct Record<'a> {
    pub(in crate::records) header: RecordHeader,
    rest: &'a [u8],
}

impl<'a> Record<'a> {
    /// Returns the stored bytes.
    #[inline]
    pub(in crate::records) fn stored(&self) -> &'a [u8] {
        // The total length was checked before.
        &self.rest[8 * usize::from(self.header.dims)..]
    }

    fn dims(&self) -> impl Iterator<Item = u64> {
        (0..usize::from(self.header.dims)).map(|k| u64_at(self.rest, 8 * k))
    }
}

impl Snapshot {
    /// Returns a record, verified as the options say. Its bytes are mapped, or read into the
    /// buffer.
    #[inline]
    pub(in crate::records) fn record<'a>(
        &'a self,
        column: usize,
        row: u64,
        at: HeapLocation,
        buffer: &'a mut Vec<u8>,
    ) -> Result<Record<'a>> {
        let (view, length) = (self.chunk_view(at.view), at.length as usize);
        let bytes: &[u8] = if let Some(region) = &view.region {
            // SAFETY: the record ends at or below the position, up to which all is mapped.
            unsafe { region.bytes(at.offset as usize, length) }
        } else {
            buffer.resize(length, 0);
            let read = view.chunk.read(at.offset, buffer);
            read.map_err(|error| error.about(self.row_name(column, row)))?;
            buffer
        };
        let about = |what: &str| self.bad_record(column, row, at, what);
        let header =
            RecordHeader::parse(bytes).map_err(|_| about("the header of the record is damaged"))?;
        let spec = &self.state.fields[column].spec;
        let rest = &bytes[RECORD_BYTES..];
        if header.total() != bytes.len() as u64
            || header.field != spec.id
            || usize::from(header.dims) != spec.dims()
        {
            return Err(about("the record has the wrong field id or size"));
        }
        let known = match self.options.verify {
            Verify::First => view.chunk.has_record(at.offset),
            Verify::Always => false,
            Verify::Never => true,
        };
        if !known {
            if !header.holds(rest) {
                return Err(about("the checksum does not match"));
            }
            view.chunk.note_record(at.offset);
        }
        let raw = header.codec == Codec::Raw;
        if raw && header.length != u64::from(header.stored) {
            return Err(about(
                "the value is not compressed, but its stored length differs from its length",
            ));
        }
        if !raw && header.length > self.options.max_value_bytes {
            let limit = self.options.max_value_bytes;
            return Err(Error::over_limit(header.length, limit, "a value", "bytes")
                .about(self.record_name(column, row, at)));
        }
        if spec.kind == Kind::Fixed && header.length != spec.bytes {
            return Err(about("the value does not have the length of the field's values"));
        }
        Ok(Record { header, rest })
    }

    /// Writes the value of a record to `out`, which has its length.
    #[inline]
    pub(in crate::records) fn decode_record(
        &self,
        column: usize,
        row: u64,
        at: HeapLocation,
        record: &Record<'_>,
        out: &mut [u8],
    ) -> Result<()> {
        if record.header.length != out.len() as u64 {
            let text = "the length of the value changed while it was read";
            return Err(self.bad_record(column, row, at, text));
        }
        let (codec, stored) = (record.header.codec, record.stored());
        if codec == Codec::Raw {
            copy_bytes(stored, out);
            return Ok(());
        }
        let decoder = self.columns[column].decoder(codec, stored);
        decoder
            .decode_into(codec, stored, out)
            .map_err(|error| error.about(self.record_name(column, row, at)))
    }

    #[cold]
    fn record_name(&self, column: usize, row: u64, at: HeapLocation) -> String {
        let path = self.chunk_view(at.view).chunk.path().display();
        format!("`{path}`, {} at offset {}", self.row_name(column, row), at.offset)
    }

    #[cold]
    fn bad_record(&self, column: usize, row: u64, at: HeapLocation, what: &str) -> Error {
        Error::Corrupt(format!("{}: {what}", self.record_name(column, row, at)))
    }

    /// Returns the length of a value from the header of its record; 0 if it is invalid or above the
    /// limit, so that reading the value returns the error.
    #[inline]
    pub(in crate::records) fn record_length(&self, column: usize, at: HeapLocation) -> u64 {
        let spec = &self.state.fields[column].spec;
        let around = (RECORD_BYTES + 8 * spec.dims()) as u64;
        let stored = u64::from(at.length).saturating_sub(around);
        if spec.codec == Codec::Raw {
            return stored;
        }
        let mut head = [0; RECORD_BYTES];
        let view = self.chunk_view(at.view);
        if let Some(region) = &view.region {
            // SAFETY: a record has at least its header, and ends at or below the position.
            head.copy_from_slice(unsafe { region.bytes(at.offset as usize, RECORD_BYTES) });
        } else if view.chunk.read(at.offset, &mut head).is_err() {
            return 0;
        }
        let Ok(header) = RecordHeader::parse(&head) else { return 0 };
        let most = if header.codec == Codec::Raw { stored } else { self.options.max_value_bytes };
        if header.length > most { 0 } else { header.length }
    }

    /// Appends the varying dimensions of a value, if the field has any; zeros if there is no
    /// value.
    pub fn dims(&self, column: usize, row: u64, out: &mut Vec<i64>) -> Result<()> {
        self.check(column, row)?;
        let spec = &self.state.fields[column].spec;
        let ragged = usize::from(spec.ragged);
        let Resolved::Heap(at) = self.resolve(column, row)? else {
            out.extend(std::iter::repeat_n(0, ragged));
            return Ok(());
        };
        if ragged < 2 {
            let items = self.record_length(column, at) / spec.bytes.max(1);
            out.extend(std::iter::repeat_n(items as i64, ragged));
            return Ok(());
        }
        let mut buffer = Vec::new();
        let record = self.record(column, row, at, &mut buffer)?;
        // A value without bytes may have any dimensions that fit in 63 bits.
        let whole = record.dims().try_fold(spec.bytes, |bytes, dim| bytes.checked_mul(dim));
        if whole != Some(record.header.length) || record.dims().any(|dim| dim > i64::MAX as u64) {
            let text = "the dimensions of the value do not match its length";
            return Err(self.bad_record(column, row, at, text));
        }
        out.extend(record.dims().map(|dim| dim as i64));
        Ok(())
    }

    /// Returns a verified value as it is stored; `None` if it is missing.
    pub fn stored(&self, column: usize, row: u64) -> Result<Option<StoredValue>> {
        self.check(column, row)?;
        match self.resolve(column, row)? {
            Resolved::Missing => Ok(None),
            Resolved::Dense(physical) => {
                let Some(dense) = &self.columns[column].dense else { return Ok(None) };
                let mut bytes = vec![0; dense.stride];
                let mut seen = Seen::of(self.options.verify);
                self.read_dense(column, row, dense, physical, &mut seen, &mut bytes)?;
                let length = bytes.len() as u64;
                Ok(Some(StoredValue { codec: Codec::Raw, length, dims: Vec::new(), bytes }))
            }
            Resolved::Heap(at) => {
                let mut buffer = Vec::new();
                let record = self.record(column, row, at, &mut buffer)?;
                Ok(Some(StoredValue {
                    codec: record.header.codec,
                    length: record.header.length,
                    dims: record.dims().collect(),
                    bytes: record.stored().to_vec(),
                }))
            }
        }
    }

    /// Returns a verified and decoded value; `None` if it is missing.
    pub fn value(&self, column: usize, row: u64) -> Result<Option<Vec<u8>>> {
        let Some(stored) = self.stored(column, row)? else { return Ok(None) };
        if stored.codec == Codec::Raw {
            return Ok(Some(stored.bytes));
        }
        let about = |error: Error| error.about(self.row_name(column, row));
        let decoder = self.columns[column].decoder(stored.codec, &stored.bytes);
        let record = crate::codec::Stored {
            codec: stored.codec,
            bytes: &stored.bytes,
            length: stored.length,
        };
        decoder.decode(&record).map(Some).map_err(about)
    }

    /// Verifies and copies one stored row.
    #[inline]
    pub(in crate::records) fn read_dense(
        &self,
        column: usize,
        row: u64,
        dense: &Dense,
        physical: u64,
        seen: &mut Seen,
        out: &mut [u8],
    ) -> Result<()> {
        self.verify_rows(column, dense, physical, 1, row, seen)?;
        if let Some(region) = &dense.region {
            // SAFETY: all stored rows are mapped.
            let bytes = unsafe { region.bytes(physical as usize * dense.stride, dense.stride) };
            copy_bytes(bytes, out);
            return Ok(());
        }
        let (chunk, inside) = (physical / dense.rows_per_chunk, physical % dense.rows_per_chunk);
        let view = self.chunk_view(dense.views[chunk as usize]);
        view.chunk
            .read(PAGE + inside * dense.stride as u64, out)
            .map_err(|error| error.about(self.row_name(column, row)))
    }

    pub(super) fn heap_view(
        &self,
        column: usize,
        row: u64,
        at: HeapLocation,
    ) -> Result<Option<View>> {
        let Some(region) = self.chunk_view(at.view).region.clone() else { return Ok(None) };
        self.chunk_view(at.view).check_size()?;
        let mut buffer = Vec::new();
        let record = self.record(column, row, at, &mut buffer)?;
        if record.header.codec != Codec::Raw {
            return Ok(None);
        }
        let stored = record.stored();
        let owner: Owner = region;
        Ok(Some(View { start: stored.as_ptr(), bytes: stored.len(), owner }))
    }

    /// Returns address and length of a stored value in mapped memory, without verifying it.
    #[inline]
    pub(in crate::records) fn address(
        &self,
        column: usize,
        found: Resolved,
    ) -> Option<(*const u8, usize)> {
        match found {
            Resolved::Missing => None,
            Resolved::Dense(physical) => {
                let dense = self.columns[column].dense.as_ref()?;
                let base = dense.region.as_ref()?.base();
                Some((base.wrapping_add(physical as usize * dense.stride), dense.stride))
            }
            Resolved::Heap(at) => {
                let base = self.chunk_view(at.view).region.as_ref()?.base();
                Some((base.wrapping_add(at.offset as usize), at.length as usize))
            }
        }
    }
}
