//! `STEP`: a row of 64 bytes for every step, checked in blocks of 4 KiB.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::layout::{SECTION_HEADER_BYTES, SectionHeader, Tag, align_up, u32_at, u64_at};
use super::{SectionPlace, corrupt, u32_items};
use crate::crc::crc32c;
use crate::runs::STEP_ROW_BYTES;
use crate::storage::Storage;
use crate::{Error, Result};

/// Rows that share a checksum.
pub const ROWS_PER_BLOCK: u64 = 64;

const ROW_BYTES: u64 = STEP_ROW_BYTES as u64;
/// What comes before the checksums: size of a row, rows per block, rows.
const HEAD_BYTES: u64 = 16;

/// Where everything lies in the section of so many rows whose header begins at an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLayout {
    /// How many rows there are.
    pub rows: u64,
    /// How many blocks, each with a checksum.
    pub blocks: u64,
    /// Where the checksums begin in the file.
    pub crcs_offset: u64,
    /// Where the rows begin in the file.
    pub rows_offset: u64,
    /// How many bytes the section has behind its header.
    pub length: u64,
}

impl StepLayout {
    /// The layout of `rows` rows in a section whose header begins at `offset`; `None` on
    /// overflow.
    pub fn new(offset: u64, rows: u64) -> Option<Self> {
        let blocks = rows.div_ceil(ROWS_PER_BLOCK);
        let bytes_offset = offset.checked_add(SECTION_HEADER_BYTES as u64)?;
        let crcs_offset = bytes_offset.checked_add(HEAD_BYTES)?;
        let rows_offset = align_up(crcs_offset.checked_add(blocks.checked_mul(4)?)?, ROW_BYTES)?;
        let end = rows_offset.checked_add(rows.checked_mul(ROW_BYTES)?)?;
        Some(Self { rows, blocks, crcs_offset, rows_offset, length: end - bytes_offset })
    }

    /// The bytes between the section's header and the checksums.
    pub fn head(&self) -> [u8; HEAD_BYTES as usize] {
        let mut head = [0; HEAD_BYTES as usize];
        head[..4].copy_from_slice(&(ROW_BYTES as u32).to_le_bytes());
        head[4..8].copy_from_slice(&(ROWS_PER_BLOCK as u32).to_le_bytes());
        head[8..].copy_from_slice(&self.rows.to_le_bytes());
        head
    }
}

/// The step table of a pack: where its rows are, and which of them were checked.
#[derive(Debug)]
pub struct StepTable {
    layout: StepLayout,
    crcs: Vec<u32>,
    /// A bit for each block that was found whole.
    verified: Vec<AtomicU64>,
}

impl StepTable {
    /// Reads what comes before the rows, in one request.
    pub fn open(storage: &dyn Storage, place: &SectionPlace) -> Result<Self> {
        let bad =
            |text: &str| Error::Corrupt(format!("section STEP at offset {}: {text}", place.offset));
        // No more blocks than this have room in the section, so no more checksums.
        let most = place.length / (ROWS_PER_BLOCK * ROW_BYTES) + 1;
        let wanted = SECTION_HEADER_BYTES as u64 + HEAD_BYTES + 4 * most;
        let end = place.range().end.min(place.offset.saturating_add(wanted));
        let read = storage.read(std::slice::from_ref(&(place.offset..end)))?;
        let stored = read.first().map(Vec::as_slice).unwrap_or_default();
        let named = SectionHeader::parse(stored)
            .is_some_and(|header| header.tag == Tag::STEP && header.length == place.length);
        if !named {
            return Err(bad("it is not the section that the directory names"));
        }
        let bytes = &stored[SECTION_HEADER_BYTES..];
        let Some((head, crcs)) = bytes.split_at_checked(HEAD_BYTES as usize) else {
            return Err(bad("it is cut short"));
        };
        if (u32_at(head, 0), u32_at(head, 4)) != (ROW_BYTES as u32, ROWS_PER_BLOCK as u32) {
            return Err(bad("its rows or blocks do not have the size that they must"));
        }
        let layout = StepLayout::new(place.offset, u64_at(head, 8))
            .filter(|layout| layout.length == place.length)
            .ok_or_else(|| bad("its length does not fit its rows"))?;
        let crcs = usize::try_from(layout.blocks * 4).ok().and_then(|bytes| crcs.get(..bytes));
        let crcs: Vec<u32> = u32_items(crcs.ok_or_else(|| bad("it is cut short"))?).collect();
        let verified = (0..crcs.len().div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Ok(Self { layout, crcs, verified })
    }

    /// How many rows there are.
    pub fn len(&self) -> u64 {
        self.layout.rows
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.layout.rows == 0
    }

    /// Where checksums and rows are.
    pub fn layout(&self) -> &StepLayout {
        &self.layout
    }

    /// Where the rows of a block are in the file; the last block may be a shorter one.
    pub fn block(&self, block: u64) -> Range<u64> {
        let row = |block: u64| block.saturating_mul(ROWS_PER_BLOCK).min(self.layout.rows);
        // Inside of the section, whose end does not overflow.
        let offset = |row: u64| self.layout.rows_offset + row * ROW_BYTES;
        offset(row(block))..offset(row(block.saturating_add(1)))
    }

    /// Whether the block was found whole before.
    #[inline]
    pub fn is_verified(&self, block: u64) -> bool {
        let word = self.verified.get((block / 64) as usize);
        word.is_some_and(|word| word.load(Ordering::Relaxed) >> (block % 64) & 1 == 1)
    }

    /// `Corrupt` unless `bytes` are those of the block; remembers when they are.
    pub fn verify(&self, block: u64, bytes: &[u8]) -> Result<()> {
        let crc = usize::try_from(block).ok().and_then(|block| self.crcs.get(block));
        if crc != Some(&crc32c(bytes)) {
            return Err(corrupt(
                Tag::STEP,
                &format!(
                    "block {block} at offset {}: the checksum does not match",
                    self.block(block).start
                ),
            ));
        }
        if let Some(word) = self.verified.get((block / 64) as usize) {
            word.fetch_or(1 << (block % 64), Ordering::Relaxed);
        }
        Ok(())
    }
}
