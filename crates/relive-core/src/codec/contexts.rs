//! Contexts of the codec libraries, kept per thread and reused for all records.

use std::cell::RefCell;

use flate2::{Compress, Compression, Decompress};
use lz4_flex::block::CompressTable;
use zstd_safe::{CCtx, DCtx};

use crate::{Error, Result};

/// A zstd encoder that uses more memory than this, after a large record at a high level, is
/// freed.
const KEEP_BYTES: usize = 32 << 20;

/// Positions in longer records do not fit in the 16 bits of the small LZ4 table.
const LZ4_SMALL: usize = u16::MAX as usize;

thread_local! {
    static CONTEXTS: RefCell<Contexts> = RefCell::default();
}

/// The contexts of one thread, each created at its first use.
#[derive(Default)]
pub(super) struct Contexts {
    zstd_encoder: Option<CCtx<'static>>,
    zstd_decoder: Option<DCtx<'static>>,
    deflate: Option<(u32, Compress)>,
    inflate: Option<Decompress>,
    lz4_small: Option<CompressTable>,
    lz4_large: Option<CompressTable>,
}

/// Calls `work` with this thread's contexts; `work` must not call this again.
pub(super) fn with<T>(work: impl FnOnce(&mut Contexts) -> T) -> T {
    CONTEXTS.with_borrow_mut(work)
}

impl Contexts {
    pub(super) fn zstd_encoder(&mut self) -> Result<&mut CCtx<'static>> {
        create(&mut self.zstd_encoder, CCtx::try_create)
    }

    pub(super) fn zstd_decoder(&mut self) -> Result<&mut DCtx<'static>> {
        create(&mut self.zstd_decoder, DCtx::try_create)
    }

    /// Returns a deflate encoder at the start of a stream.
    pub(super) fn deflate(&mut self, level: u32) -> &mut Compress {
        if self.deflate.as_ref().is_some_and(|(kept, _)| *kept != level) {
            self.deflate = None;
        }
        let (_, encoder) = self
            .deflate
            .get_or_insert_with(|| (level, Compress::new(Compression::new(level), true)));
        encoder.reset();
        encoder
    }

    /// Returns a deflate decoder at the start of a stream.
    pub(super) fn inflate(&mut self) -> &mut Decompress {
        let decoder = self.inflate.get_or_insert_with(|| Decompress::new(true));
        decoder.reset(true);
        decoder
    }

    /// Returns the LZ4 table for a record of this length. The small table is cleared faster.
    pub(super) fn lz4(&mut self, length: usize) -> &mut CompressTable {
        if length < LZ4_SMALL {
            self.lz4_small.get_or_insert_with(CompressTable::small)
        } else {
            self.lz4_large.get_or_insert_with(CompressTable::large)
        }
    }

    /// Frees memory that only an unusual record needed.
    pub(super) fn trim(&mut self) {
        if self.zstd_encoder.as_ref().is_some_and(|encoder| encoder.sizeof() > KEEP_BYTES) {
            self.zstd_encoder = None;
        }
    }
}

fn create<T>(slot: &mut Option<T>, make: fn() -> Option<T>) -> Result<&mut T> {
    if slot.is_none() {
        *slot = make();
    }
    slot.as_mut()
        .ok_or_else(|| Error::TooLarge("not enough memory to create a zstd context".into()))
}
