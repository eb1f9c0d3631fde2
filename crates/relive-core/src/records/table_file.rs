//! Table files: the entry of each row of a field.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::bit_set::AtomicBitSet;
use super::chunk::{mapped_bytes, open_file, read_exact};
use super::layout::{BLOCK, ENTRY_BYTES, Entry, PAGE, TableHeader, Uid, check_zeros};
use super::mapped_region::MappedRegion;
use crate::crc::crc32c;
use crate::durable::{self, Appender};
use crate::pack::Verify;
use crate::{Error, Result};

const ENTRIES_PER_BLOCK: u64 = BLOCK / ENTRY_BYTES as u64;

/// A table that is open for reading. It never changes. Thread-safe.
pub struct TableFile {
    path: PathBuf,
    file: File,
    rows: u64,
    crcs: Vec<u32>,
    verified: AtomicBitSet,
    region: Option<Arc<MappedRegion>>,
}

impl TableFile {
    /// Opens a table and checks its store, field and number of rows.
    pub fn open(
        folder: &Path,
        name: &str,
        uid: &Uid,
        field: u16,
        rows: u64,
        mapped: bool,
    ) -> Result<Self> {
        let path = folder.join(name);
        let about = |text: &str| Error::Corrupt(text.into()).in_file(&path);
        let file = open_file(&path)?;
        let mut page = vec![0; PAGE as usize];
        read_exact(&file, &path, 0, &mut page)?;
        let header = TableHeader::parse(&page).map_err(|error| error.in_file(&path))?;
        if (header.field, header.uid, header.rows) != (field, *uid, rows) {
            return Err(about("the table belongs to another field or store"));
        }
        let failed = |error| durable::about(&path, &error);
        let len = file.metadata().map_err(failed)?.len();
        let blocks = rows.div_ceil(ENTRIES_PER_BLOCK);
        let end = rows.checked_mul(ENTRY_BYTES as u64).and_then(|bytes| bytes.checked_add(PAGE));
        let whole = end.and_then(|end| end.checked_add(blocks * 4));
        let (Some(end), true) = (end, whole == Some(len)) else {
            return Err(about(&format!(
                "the file has {len} bytes, which is not the size of a table of {rows} rows"
            )));
        };
        // The size was checked, so this allocates no more than the file has.
        let mut crcs = vec![0; (blocks * 4) as usize];
        read_exact(&file, &path, end, &mut crcs)?;
        if crc32c(&crcs) != header.crc {
            return Err(about("the checksum of its list of checksums does not match"));
        }
        let crcs = crcs.as_chunks().0.iter().map(|crc| u32::from_le_bytes(*crc)).collect();
        let region = if mapped && rows > 0 {
            let bytes =
                mapped_bytes(end).ok_or_else(|| about("the table does not fit in memory"))?;
            let region = MappedRegion::reserve(bytes).map_err(failed)?;
            region.map(0, &file, 0, bytes).map_err(failed)?;
            Some(Arc::new(region))
        } else {
            None
        };
        Ok(Self { path, file, rows, crcs, verified: AtomicBitSet::default(), region })
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that the file was not truncated; else `Corrupt`.
    pub fn check_size(&self) -> Result<()> {
        let failed = |error| durable::about(&self.path, &error);
        let len = self.file.metadata().map_err(failed)?.len();
        if len < PAGE + self.rows * ENTRY_BYTES as u64 {
            return Err(Error::Corrupt(format!(
                "`{}` was truncated to {len} bytes while it was open",
                self.path.display()
            )));
        }
        Ok(())
    }

    /// Checks every byte, also entries that no row has any more.
    pub fn check_all(&self) -> Result<()> {
        let mut page = vec![0; PAGE as usize];
        read_exact(&self.file, &self.path, 0, &mut page)?;
        check_zeros(&page).map_err(|error| error.in_file(&self.path))?;
        (0..self.crcs.len() as u64).try_for_each(|block| self.verify(block))
    }

    /// Returns the address of an entry, if the table is mapped.
    #[inline]
    pub fn address(&self, row: u64) -> Option<*const u8> {
        let at = (PAGE + row * ENTRY_BYTES as u64) as usize;
        self.region
            .as_ref()
            .filter(|_| row < self.rows)
            .map(|region| region.base().wrapping_add(at))
    }

    /// Returns the entry of a row, and verifies its block as `verify` says.
    #[inline]
    pub fn entry(&self, row: u64, verify: Verify) -> Result<Entry> {
        if row >= self.rows {
            return Err(Error::Corrupt(format!(
                "`{}`: row {row} is out of range for {} rows",
                self.path.display(),
                self.rows
            )));
        }
        let block = row / ENTRIES_PER_BLOCK;
        let known = match verify {
            Verify::First => self.verified.has(block),
            Verify::Always => false,
            Verify::Never => true,
        };
        if !known {
            self.verify(block)?;
        }
        let at = PAGE + row * ENTRY_BYTES as u64;
        let mut buffer = [0; ENTRY_BYTES];
        let bytes = self.bytes(at, &mut buffer)?;
        Ok(Entry::parse(bytes.first_chunk().unwrap_or(&[0; ENTRY_BYTES])))
    }

    /// Returns bytes of the file: mapped, or read into the buffer.
    #[inline]
    fn bytes<'a>(&'a self, offset: u64, buffer: &'a mut [u8]) -> Result<&'a [u8]> {
        if let Some(region) = &self.region {
            // SAFETY: the file had all of its rows when it was mapped.
            return Ok(unsafe { region.bytes(offset as usize, buffer.len()) });
        }
        read_exact(&self.file, &self.path, offset, buffer)?;
        Ok(buffer)
    }

    #[cold]
    fn verify(&self, block: u64) -> Result<()> {
        let first = block * ENTRIES_PER_BLOCK;
        let rows = (self.rows - first).min(ENTRIES_PER_BLOCK);
        let (at, bytes) = (PAGE + first * ENTRY_BYTES as u64, rows as usize * ENTRY_BYTES);
        let crc = crc32c(self.bytes(at, &mut vec![0; bytes])?);
        if self.crcs.get(block as usize) != Some(&crc) {
            return Err(Error::Corrupt(format!(
                "`{}`: the checksum of the entries at offset {at} does not match",
                self.path.display()
            )));
        }
        self.verified.set(block);
        Ok(())
    }
}

/// Writes and syncs a table to a path that does not exist. `entry` is called for each row in
/// order.
pub fn write_table(
    folder: &Path,
    name: &str,
    uid: Uid,
    field: u16,
    rows: u64,
    entry: &mut dyn FnMut(u64) -> Result<Entry>,
) -> Result<()> {
    let path = folder.join(name);
    let failed = |error| durable::about(&path, &error);
    let file = durable::create_new(&path).map_err(failed)?;
    let mut out = Appender::new(file, PAGE, 1 << 20);
    let mut block = Vec::with_capacity(BLOCK as usize);
    let mut crcs = Vec::new();
    for row in 0..rows {
        block.extend(entry(row)?.to_bytes());
        if block.len() as u64 == BLOCK || row + 1 == rows {
            crcs.extend(crc32c(&block).to_le_bytes());
            out.append(&block).map_err(failed)?;
            block.clear();
        }
    }
    out.append(&crcs).and_then(|()| out.flush()).map_err(failed)?;
    // The header is written last, so an unfinished table has none.
    let page = TableHeader { field, uid, rows, crc: crc32c(&crcs) }.to_page();
    let mut head = Appender::new(out.file().try_clone().map_err(failed)?, 0, 0);
    head.append(&page).map_err(failed)?;
    out.file().sync_all().map_err(failed)
}
