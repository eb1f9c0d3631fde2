//! Values on their way to a lane.

use std::sync::Arc;

use super::heap::Record;
use crate::codec::Encoder;
use crate::records::value::Value;

/// Values for one lane, and the slot of the first of them.
pub(super) struct Job {
    pub(super) first: usize,
    pub(super) work: Work,
}

pub(super) enum Work {
    Copied(Arena),
    Borrowed(Borrowed),
}

/// Values that were copied.
#[derive(Default)]
pub(super) struct Arena {
    bytes: Vec<u8>,
    dims: Vec<u64>,
    encoders: Vec<Arc<Encoder>>,
    pieces: Vec<Piece>,
}

struct Piece {
    field: u16,
    dims: u8,
    encoder: u32,
    sequence: u64,
    bytes: usize,
}

impl Arena {
    pub(super) fn push(&mut self, record: Record<'_>, encoder: &Arc<Encoder>) {
        // The fields of a store take turns, and there are few of them.
        let known = self.encoders.iter().position(|known| Arc::ptr_eq(known, encoder));
        let encoder = known.unwrap_or_else(|| {
            self.encoders.push(Arc::clone(encoder));
            self.encoders.len() - 1
        });
        self.bytes.extend_from_slice(record.bytes);
        self.dims.extend_from_slice(record.dims);
        self.pieces.push(Piece {
            field: record.field,
            dims: record.dims.len() as u8,
            encoder: encoder as u32,
            sequence: record.sequence,
            bytes: record.bytes.len(),
        });
    }

    pub(super) fn len(&self) -> usize {
        self.pieces.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Bytes of the values.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes of memory, used or not.
    pub(super) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.dims.clear();
        self.encoders.clear();
        self.pieces.clear();
    }

    pub(super) fn records(&self) -> impl Iterator<Item = Record<'_>> {
        let (mut bytes, mut dims) = (&self.bytes[..], &self.dims[..]);
        self.pieces.iter().map(move |piece| {
            let (now, later) = bytes.split_at(piece.bytes);
            let (these, rest) = dims.split_at(usize::from(piece.dims));
            (bytes, dims) = (later, rest);
            Record {
                field: piece.field,
                encoder: &self.encoders[piece.encoder as usize],
                sequence: piece.sequence,
                bytes: now,
                dims: these,
                stored: None,
            }
        })
    }
}

/// Values that stay where the caller has them, who waits for as long as this is there.
pub(super) struct Borrowed {
    field: u16,
    sequence: u64,
    encoder: Arc<Encoder>,
    values: *const Value<'static>,
    count: usize,
}

// SAFETY: it stands for a `&[Value]`, which may be sent: values are shared slices of numbers.
unsafe impl Send for Borrowed {}

impl Borrowed {
    /// # Safety
    /// `values`, and all they point to, must stay as they are until this is dropped.
    pub(super) unsafe fn new(
        field: u16,
        encoder: &Arc<Encoder>,
        sequence: u64,
        values: &[Value<'_>],
    ) -> Self {
        let encoder = Arc::clone(encoder);
        Self { field, sequence, encoder, values: values.as_ptr().cast(), count: values.len() }
    }

    /// The values in order; none for those that are missing.
    pub(super) fn records(&self) -> impl Iterator<Item = Option<Record<'_>>> {
        // SAFETY: the values are there for as long as `self` is, says whoever made it.
        let values: &[Value<'_>] = unsafe { std::slice::from_raw_parts(self.values, self.count) };
        values.iter().map(|value| {
            let stored = match *value {
                Value::Missing => return None,
                Value::Bytes { .. } => None,
                Value::Stored { codec, length, .. } => Some((codec, length)),
            };
            Some(Record {
                field: self.field,
                encoder: &self.encoder,
                sequence: self.sequence,
                bytes: value.bytes(),
                dims: value.dims(),
                stored,
            })
        })
    }
}
