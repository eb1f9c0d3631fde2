//! The entries of a pack as rows of a table: payload and kind.

use std::sync::Arc;

use super::index::is_plain;
use super::layout::Entry;
use super::reader::PackReader;
use crate::gather::{copy_bytes, prefetch};
use crate::storage::slice;
use crate::table::{ColumnShape, Out, Reader};
use crate::{Error, Result};

/// The column of payloads.
pub const PAYLOAD: usize = 0;
/// The column of kind numbers.
pub const KIND: usize = 1;

const COLUMNS: [ColumnShape; 2] =
    [ColumnShape::Ragged { item_bytes: 1 }, ColumnShape::Fixed { row_bytes: 2 }];

/// How many rows ahead the first cache line of an entry is prefetched, and with it the address of
/// its page: the hardware prefetches the rest of an entry.
const AHEAD: usize = 4;

/// Rows that are located before the first of them is copied.
const CHUNK: usize = 64;

/// The entries of a pack as rows of a table.
pub struct PackRows(pub Arc<PackReader>);

impl Reader for PackRows {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn columns(&self) -> &[ColumnShape] {
        &COLUMNS
    }

    fn items(&self, column: usize, row: u64) -> usize {
        let entry = if column == PAYLOAD { self.0.entry(row).ok() } else { None };
        entry.map_or(0, |entry| self.batch_bytes(&entry))
    }

    fn begin(&self) -> Result<()> {
        self.0.storage().recheck()
    }

    unsafe fn read(&self, rows: &[u64], outs: &[Out<'_>]) -> Result<()> {
        for out in outs {
            // SAFETY: passed on from the caller.
            unsafe {
                match (out.column, self.0.storage().mapped()) {
                    (KIND, _) => self.kinds(rows, out.at)?,
                    (_, Some(whole)) => self.copy(whole, rows, out.at)?,
                    (_, None) => self.fetch(rows, out.at)?,
                }
            }
        }
        Ok(())
    }

    fn stored_bytes(&self, column: usize, row: u64) -> Option<(*const u8, usize)> {
        if column != PAYLOAD {
            return None;
        }
        let whole = self.0.storage().mapped()?;
        let stored = self.stored(whole, &self.0.entry(row).ok()?).ok()?;
        Some((stored.as_ptr(), stored.len()))
    }
}

impl PackRows {
    /// Returns the bytes of a payload in a batch: 0 if it exceeds the limit, since
    /// [`read`](Reader::read) refuses it. The value depends only on the index, which is a copy, so
    /// it cannot change before the payload is written.
    #[inline]
    fn batch_bytes(&self, entry: &Entry) -> usize {
        if self.is_refused(entry) { 0 } else { entry.payload_bytes() as usize }
    }

    #[inline]
    fn is_refused(&self, entry: &Entry) -> bool {
        !is_plain(entry) && entry.payload_bytes() > self.0.options().max_payload_bytes
    }

    #[inline]
    fn entry(&self, row: u64) -> Result<Entry> {
        let entry = self.0.entry(row)?;
        if self.is_refused(&entry) { Err(self.too_large(row, &entry)) } else { Ok(entry) }
    }

    #[cold]
    fn too_large(&self, row: u64, entry: &Entry) -> Error {
        let (bytes, limit) = (entry.payload_bytes(), self.0.options().max_payload_bytes);
        let text = format!("a payload of {bytes} bytes exceeds the limit of {limit} bytes");
        self.0.about_entry(row, entry, Error::TooLarge(text))
    }

    #[inline]
    fn stored<'a>(&self, whole: &'a [u8], entry: &Entry) -> Result<&'a [u8]> {
        slice(self.0.storage(), whole, &PackReader::range(entry))
    }

    /// # Safety
    /// Every address has room for two bytes.
    unsafe fn kinds(&self, rows: &[u64], at: &[*mut u8]) -> Result<()> {
        for (&row, &at) in rows.iter().zip(at) {
            let kind = self.0.entry(row)?.kind.to_le_bytes();
            // SAFETY: passed on from the caller.
            unsafe { std::ptr::copy_nonoverlapping(kind.as_ptr(), at, kind.len()) };
        }
        Ok(())
    }

    /// Verifies and copies or decodes payloads of a mapped file.
    ///
    /// # Safety
    /// Every address has room for the payload of its row, which nothing else accesses.
    unsafe fn copy(&self, whole: &[u8], rows: &[u64], at: &[*mut u8]) -> Result<()> {
        let find = |&row: &u64| {
            let entry = self.entry(row)?;
            Ok((row, entry, self.stored(whole, &entry)?))
        };
        let mut found = Vec::with_capacity(CHUNK.min(rows.len()));
        for (rows, at) in rows.chunks(CHUNK).zip(at.chunks(CHUNK)) {
            found.clear();
            let mut failed = None;
            for entry in rows.iter().map(find) {
                match entry {
                    Ok(entry) => found.push(entry),
                    Err(error) => {
                        // A row before this one may have an error, which comes first.
                        failed = Some(error);
                        break;
                    }
                }
            }
            for (position, ((row, entry, stored), &at)) in found.iter().zip(at).enumerate() {
                if let Some((_, _, next)) = found.get(position + AHEAD) {
                    prefetch(next.as_ptr(), 1);
                }
                // SAFETY: the caller made room for this row. Any bytes are valid there.
                let out = unsafe { std::slice::from_raw_parts_mut(at, self.batch_bytes(entry)) };
                if is_plain(entry) {
                    self.0.verify_stored(*row, entry, stored)?;
                    copy_bytes(stored, out);
                } else {
                    self.0.decode_into(*row, entry, stored, out)?;
                }
            }
            if let Some(error) = failed {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Reads payloads with one request, verifies and decodes them.
    ///
    /// # Safety
    /// As for [`copy`](Self::copy).
    unsafe fn fetch(&self, rows: &[u64], at: &[*mut u8]) -> Result<()> {
        // In file order, so that adjacent entries can be read together; a repeated row is read
        // once.
        let mut order: Vec<usize> = (0..rows.len().min(at.len())).collect();
        order.sort_by_key(|&position| rows[position]);
        let mut wanted = Vec::with_capacity(order.len());
        for group in order.chunk_by(|&a, &b| rows[a] == rows[b]) {
            let row = rows[group[0]];
            let entry = self.entry(row)?;
            // SAFETY: the caller made room for each position of this row, and different
            // positions do not overlap. Any bytes are valid there.
            let out =
                unsafe { std::slice::from_raw_parts_mut(at[group[0]], self.batch_bytes(&entry)) };
            let buffer = if is_plain(&entry) { Vec::new() } else { vec![0; entry.length as usize] };
            wanted.push((row, entry, group, out, buffer));
        }
        let mut buffers: Vec<(u64, &mut [u8])> = wanted
            .iter_mut()
            .map(|(_, entry, _, out, buffer)| {
                // A raw entry is read directly into its destination.
                let to: &mut [u8] = if buffer.is_empty() { out } else { buffer };
                (entry.offset, to)
            })
            .filter(|(_, to)| !to.is_empty())
            .collect();
        if !buffers.is_empty() {
            self.0.storage().read_into(&mut buffers)?;
        }
        for (row, entry, group, out, buffer) in wanted {
            if buffer.is_empty() {
                self.0.verify_stored(row, &entry, out)?;
            } else {
                self.0.decode_into(row, &entry, &buffer, out)?;
            }
            for &again in &group[1..] {
                // SAFETY: this position has the same room, elsewhere.
                unsafe { std::ptr::copy_nonoverlapping(out.as_ptr(), at[again], out.len()) };
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::codec::Codec;
    use crate::pack::layout::KIND_BYTES;
    use crate::pack::testing::{Memory, Scratch, TestEntry, assemble};
    use crate::pack::{Options, Verify};
    use crate::table::{Table, Target};

    fn payloads() -> Vec<Vec<u8>> {
        (0..40_usize).map(|i| format!("{i} is a row. ").repeat(i * i % 50).into_bytes()).collect()
    }

    fn file() -> Vec<u8> {
        let payloads = payloads();
        let entries: Vec<TestEntry<'_>> = (0..)
            .zip(&payloads)
            .map(|(i, payload): (u16, _)| (&payload[..], i, Codec::ALL[usize::from(i) % 4]))
            .collect();
        assemble(&entries, &[])
    }

    fn table(pack: PackReader) -> Table {
        Table::from_reader(Arc::new(PackRows(Arc::new(pack)))).unwrap()
    }

    /// Payloads and kinds of these rows.
    fn gather(table: &Table, rows: &[i64], threads: usize) -> Result<(Vec<Vec<u8>>, Vec<u16>)> {
        let (mut locations, mut offsets) = (Vec::new(), Vec::new());
        table.find(rows, &mut locations)?;
        table.offsets(PAYLOAD, &locations, &mut offsets)?;
        let mut values = vec![0_u8; *offsets.last().unwrap() as usize];
        let mut kinds = vec![0_u8; 2 * rows.len()];
        let targets = [
            Target { column: PAYLOAD, offsets: &offsets, out: values.as_mut_ptr() },
            Target { column: KIND, offsets: &[], out: kinds.as_mut_ptr() },
        ];
        // SAFETY: both have room for the rows.
        unsafe { table.gather(&locations, &targets, threads) }?;
        let cut = |pair: &[i64]| values[pair[0] as usize..pair[1] as usize].to_vec();
        let kinds = kinds.as_chunks().0.iter().map(|kind| u16::from_le_bytes(*kind)).collect();
        Ok((offsets.windows(2).map(cut).collect(), kinds))
    }

    #[test]
    fn rows_are_gathered_in_order_from_every_storage() {
        let (file, payloads) = (file(), payloads());
        let scratch = Scratch::new(&file);
        let rows: Vec<i64> = (0..40).rev().chain([3, 3, 7, 0, 3, 39]).collect();
        let (memory, reads) = Memory::new(file);
        let far = PackReader::open_storage(Box::new(memory), Options::default()).unwrap();
        let open = |mapped| PackReader::open(scratch.path(), mapped, Options::default()).unwrap();
        for pack in [open(true), open(false), far] {
            let table = table(pack);
            for threads in [1, 2, 4] {
                let before = reads.load(Ordering::Relaxed);
                let (found, kinds) = gather(&table, &rows, threads).unwrap();
                assert_eq!(
                    found,
                    rows.iter().map(|&i| payloads[i as usize].clone()).collect::<Vec<_>>()
                );
                assert_eq!(kinds, rows.iter().map(|&i| i as u16).collect::<Vec<_>>());
                let requests = reads.load(Ordering::Relaxed) - before;
                assert!(threads > 1 || requests <= 1, "{requests} requests");
            }
        }
        assert!(reads.load(Ordering::Relaxed) > 2);
    }

    #[test]
    fn a_row_over_the_limit_is_refused_without_memory() {
        let payload = vec![7; 100_000];
        let entries: [TestEntry<'_>; 2] =
            [(b"short", KIND_BYTES, Codec::Raw), (&payload, KIND_BYTES, Codec::Zstd)];
        let scratch = Scratch::new(&assemble(&entries, &[]));
        for mapped in [true, false] {
            let options = Options { max_payload_bytes: 99_999, ..Options::default() };
            let table = table(PackReader::open(scratch.path(), mapped, options).unwrap());
            let (mut locations, mut offsets) = (Vec::new(), Vec::new());
            table.find(&[1, 0], &mut locations).unwrap();
            table.offsets(PAYLOAD, &locations, &mut offsets).unwrap();
            assert_eq!(offsets, [0, 0, 5]);
            let error = gather(&table, &[1, 0], 1).unwrap_err();
            assert_eq!(error.kind(), "too-large");
            assert!(error.to_string().contains("entry 1 at offset"), "{error}");
            assert_eq!(gather(&table, &[0], 1).unwrap().0, [b"short"]);
        }
    }

    #[test]
    fn damage_and_truncation_fail_the_batch() {
        let mut file = file();
        let pack =
            PackReader::open_storage(Box::new(Memory::new(file.clone()).0), Options::default());
        let entry = pack.unwrap().entry(8).unwrap();
        file[entry.offset as usize] ^= 1;
        let scratch = Scratch::new(&file);
        for verify in [Verify::First, Verify::Always] {
            for mapped in [true, false] {
                let options = Options { verify, ..Options::default() };
                let table = table(PackReader::open(scratch.path(), mapped, options).unwrap());
                for _ in 0..2 {
                    let error = gather(&table, &[1, 8, 2], 1).unwrap_err().to_string();
                    assert!(
                        error.contains(&format!("entry 8 at offset {}", entry.offset)),
                        "{error}"
                    );
                    gather(&table, &[1, 2], 1).unwrap();
                }
                scratch.resize(file.len() as u64 - 1);
                assert_eq!(gather(&table, &[1], 1).unwrap_err().kind(), "corrupt");
                std::fs::write(scratch.path(), &file).unwrap();
            }
        }
    }

    #[test]
    fn stored_bytes_are_found_in_the_map() {
        let scratch = Scratch::new(&file());
        let open = |mapped| PackReader::open(scratch.path(), mapped, Options::default()).unwrap();
        let rows = PackRows(Arc::new(open(true)));
        let (start, bytes) = rows.stored_bytes(PAYLOAD, 5).unwrap();
        let stored = rows.0.stored(5).unwrap();
        assert_eq!((start, bytes), (stored.as_ptr(), stored.len()));
        assert!(PackRows(Arc::new(open(false))).stored_bytes(PAYLOAD, 5).is_none());
    }
}
