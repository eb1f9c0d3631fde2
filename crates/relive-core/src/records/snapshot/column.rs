//! One field of a snapshot: where it is mapped, its table, and how its values are decoded.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use super::{ChunkIndex, ChunkView};
use crate::codec::{Codec, Decoder};
use crate::gather::{Owner, Rows};
use crate::pack::Verify;
use crate::records::chunk::Chunk;
use crate::records::files::{Files, Io};
use crate::records::layout::PAGE;
use crate::records::mapped_region::MappedRegion;
use crate::records::state::{FieldState, State};
use crate::records::table_file::TableFile;
use crate::{Error, Result};

/// One field of a snapshot.
pub(in crate::records) struct ColumnView {
    pub(in crate::records) table: Option<Arc<TableFile>>,
    pub(in crate::records) dense: Option<Dense>,
    /// The first has no dictionary; each other has the one of this id.
    decoders: Vec<(u32, Decoder)>,
}

/// The chunks of a dense field.
pub(in crate::records) struct Dense {
    pub(in crate::records) stride: usize,
    pub(in crate::records) rows_per_chunk: u64,
    /// The views of its chunks, in order.
    pub(in crate::records) views: Vec<u32>,
    /// All physical rows, one behind the other, where files are mapped.
    pub(in crate::records) region: Option<Arc<MappedRegion>>,
    /// Whether row i is physical row i.
    plain: bool,
    rows: usize,
    /// So many of its chunks are verified.
    verified: AtomicUsize,
    direct: OnceLock<Option<Rows>>,
}

impl ColumnView {
    pub(super) fn new(
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

    /// What decodes these stored bytes: zstd frames say which dictionary they need.
    pub(in crate::records) fn decoder(&self, codec: Codec, stored: &[u8]) -> &Decoder {
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
            let damaged = |what: &str| Error::Corrupt(format!("chunk {number} {what}"));
            let at = numbers
                .get(*number)
                .ok_or_else(|| damaged("is not listed in `meta.json` or the journal"))?;
            let view = &mut views[at as usize];
            // Every physical row is below the position of its chunk, so nobody asks later.
            let rows = field.physical.saturating_sub(first).min(per_chunk);
            let least = rows.checked_mul(stride).and_then(|bytes| bytes.checked_add(PAGE));
            let most = per_chunk.checked_mul(stride).and_then(|bytes| bytes.checked_add(PAGE));
            let fits = least.is_some_and(|least| least <= view.position)
                && most.is_some_and(|most| view.position <= most);
            if !fits {
                let text = format!("has {rows} rows, but ends at offset {}", view.position);
                return Err(damaged(&text));
            }
            view.first = first;
            first = first
                .checked_add(per_chunk)
                .ok_or_else(|| damaged("exceeds the limit for physical rows"))?;
            let unverified = files.options().verify == Verify::First && !view.is_verified();
            if unverified || files.options().verify == Verify::Always {
                // Now, because the file may be gone when its first row is asked for.
                view.chunk.load_crcs(view.full_blocks())?;
            }
            own.push(at);
            chunks.push((Arc::clone(&view.chunk), view.position));
        }
        if field.physical > first {
            return Err(Error::Corrupt(format!(
                "it has {} physical rows, more than its chunks can hold",
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

    /// Whether no row needs to be verified.
    #[inline]
    pub(in crate::records) fn is_verified(&self, views: &[ChunkView], verify: Verify) -> bool {
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

    /// The rows as memory, once nothing needs to be done for them.
    #[inline]
    pub(in crate::records) fn direct(&self, views: &[ChunkView], verify: Verify) -> Option<&Rows> {
        if let Some(rows) = self.direct.get() {
            return rows.as_ref();
        }
        if !self.plain || !self.is_verified(views, verify) {
            return None;
        }
        let region = self.region.as_ref()?;
        let axes = [(self.stride, 1)];
        let owner = Arc::clone(region) as Owner;
        // SAFETY: all rows are mapped at their distance from the base on, which the region keeps,
        // and committed bytes do not change.
        let rows =
            unsafe { Rows::new(region.base(), self.rows, self.stride as isize, &axes, 1, owner) };
        self.direct.get_or_init(|| rows.ok()).as_ref()
    }
}
