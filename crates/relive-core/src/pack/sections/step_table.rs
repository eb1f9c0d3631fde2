//! `STEP`: a row of 64 bytes for every step, with a checksum for each block of 4 KiB.

use std::ops::Range;

use super::super::layout::{SECTION_HEADER_BYTES, SectionHeader, Tag, align_up, u32_at, u64_at};
use super::super::reader::{Verified, fetch_one};
use super::{SectionLocation, corrupt, u32_items};
use crate::Result;
use crate::crc::crc32c;
use crate::runs::STEP_ROW_BYTES;
use crate::storage::Storage;

/// Rows per checksum.
pub const ROWS_PER_BLOCK: u64 = 64;

const ROW_BYTES: u64 = STEP_ROW_BYTES as u64;
/// Bytes before the checksums: row size, rows per block, number of rows.
const HEAD_BYTES: u64 = 16;

/// The layout of a step table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLayout {
    /// The number of rows.
    pub rows: u64,
    /// The number of blocks, each with a checksum.
    pub blocks: u64,
    /// The offset of the checksums in the file.
    pub crcs_offset: u64,
    /// The offset of the rows in the file.
    pub rows_offset: u64,
    /// The length of the section without its header.
    pub length: u64,
}

impl StepLayout {
    /// Returns the layout of `rows` rows in a section whose header begins at `offset`; `None` on
    /// overflow.
    pub fn new(offset: u64, rows: u64) -> Option<Self> {
        let blocks = rows.div_ceil(ROWS_PER_BLOCK);
        let bytes_offset = offset.checked_add(SECTION_HEADER_BYTES as u64)?;
        let crcs_offset = bytes_offset.checked_add(HEAD_BYTES)?;
        let rows_offset = align_up(crcs_offset.checked_add(blocks.checked_mul(4)?)?, ROW_BYTES)?;
        let end = rows_offset.checked_add(rows.checked_mul(ROW_BYTES)?)?;
        Some(Self { rows, blocks, crcs_offset, rows_offset, length: end - bytes_offset })
    }

    /// Returns the bytes between the section's header and the checksums.
    pub fn head(&self) -> [u8; HEAD_BYTES as usize] {
        let mut head = [0; HEAD_BYTES as usize];
        head[..4].copy_from_slice(&(ROW_BYTES as u32).to_le_bytes());
        head[4..8].copy_from_slice(&(ROWS_PER_BLOCK as u32).to_le_bytes());
        head[8..].copy_from_slice(&self.rows.to_le_bytes());
        head
    }
}

/// The step table of a pack: the location of its rows, and which blocks were verified.
#[derive(Debug)]
pub struct StepTable {
    layout: StepLayout,
    crcs: Vec<u32>,
    verified: Verified,
}

impl StepTable {
    /// Reads all before the rows, with one request.
    pub fn open(storage: &dyn Storage, location: &SectionLocation) -> Result<Self> {
        let bad = |text: &str| location.corrupt(text);
        // The section has room for no more blocks than this, so for no more checksums.
        let most = location.length / (ROWS_PER_BLOCK * ROW_BYTES) + 1;
        let wanted = SECTION_HEADER_BYTES as u64 + HEAD_BYTES + 4 * most;
        let end = location.range().end.min(location.offset.saturating_add(wanted));
        let stored = fetch_one(storage, location.offset..end)?;
        let named = SectionHeader::parse(&stored)
            .is_some_and(|header| header.tag == Tag::STEP && header.length == location.length);
        if !named {
            return Err(bad("the section header does not match the section directory"));
        }
        let bytes = &stored[SECTION_HEADER_BYTES..];
        let Some((head, crcs)) = bytes.split_at_checked(HEAD_BYTES as usize) else {
            return Err(bad("the section is truncated"));
        };
        if (u32_at(head, 0), u32_at(head, 4)) != (ROW_BYTES as u32, ROWS_PER_BLOCK as u32) {
            return Err(bad("the row size or the number of rows per block is not supported"));
        }
        let layout = StepLayout::new(location.offset, u64_at(head, 8))
            .filter(|layout| layout.length == location.length)
            .ok_or_else(|| bad("the length of the section does not match its number of rows"))?;
        let crcs = usize::try_from(layout.blocks * 4).ok().and_then(|bytes| crcs.get(..bytes));
        let crcs: Vec<u32> =
            u32_items(crcs.ok_or_else(|| bad("the section is truncated"))?).collect();
        let verified = Verified::new(layout.blocks);
        Ok(Self { layout, crcs, verified })
    }

    /// Returns the number of rows.
    pub fn len(&self) -> u64 {
        self.layout.rows
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.layout.rows == 0
    }

    /// Returns the layout.
    pub fn layout(&self) -> &StepLayout {
        &self.layout
    }

    /// Returns the range of a block in the file; the last block may be shorter.
    pub fn block(&self, block: u64) -> Range<u64> {
        let row = |block: u64| block.saturating_mul(ROWS_PER_BLOCK).min(self.layout.rows);
        // Inside the section, whose end does not overflow.
        let offset = |row: u64| self.layout.rows_offset + row * ROW_BYTES;
        offset(row(block))..offset(row(block.saturating_add(1)))
    }

    /// Whether the block was verified before.
    #[inline]
    pub fn is_verified(&self, block: u64) -> bool {
        self.verified.has(block)
    }

    /// Checks that `bytes` match the checksum of the block, and marks it as verified.
    pub fn verify(&self, block: u64, bytes: &[u8]) -> Result<()> {
        let crc = usize::try_from(block).ok().and_then(|block| self.crcs.get(block));
        if crc != Some(&crc32c(bytes)) {
            let offset = self.block(block).start;
            let text = format!("the block at offset {offset} does not match its checksum");
            return Err(corrupt(Tag::STEP, &text));
        }
        self.verified.add(block);
        Ok(())
    }
}
