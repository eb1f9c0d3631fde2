//! The stored bytes of entries, and what they decode to.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use super::{PackReader, Verify, fetch, fetch_one};
use crate::codec::Stored;
use crate::crc::crc32c;
use crate::pack::index::{at, is_plain};
use crate::pack::layout::{Entry, KIND_V1, KIND_V2};
use crate::runs::{Run, Version};
use crate::{Error, Result, pool};

/// What is done with the stored bytes of an entry.
type Work<'w, 'a, T> = &'w (dyn Fn(u64, &Entry, Cow<'a, [u8]>) -> Result<T> + Sync);

impl PackReader {
    /// The payload of one entry, verified and decoded; borrowed where it is raw and in
    /// memory.
    pub fn payload(&self, i: u64) -> Result<Cow<'_, [u8]>> {
        let (entry, stored) = self.stored_unverified(i)?;
        self.decode(i, &entry, stored)
    }

    /// The stored bytes of one entry, verified.
    pub fn stored(&self, i: u64) -> Result<Cow<'_, [u8]>> {
        let (entry, stored) = self.stored_unverified(i)?;
        self.verify_stored(i, &entry, &stored)?;
        Ok(stored)
    }

    /// Payloads of many entries, in the order asked, on up to `threads` threads and with
    /// one request. Each has its own outcome; the outer one is that of the request.
    pub fn payloads(&self, rows: &[u64], threads: usize) -> Result<Vec<Result<Cow<'_, [u8]>>>> {
        let work = |i, entry: &Entry, stored| self.decode(i, entry, stored);
        self.each(rows, threads, &|_| Ok(()), &work)
    }

    /// Runs of many entries, as [`payloads`](Self::payloads) has them. An entry that is no
    /// run is `Unsupported`.
    pub fn runs(&self, rows: &[u64], threads: usize) -> Result<Vec<Result<Run>>> {
        let check = |i| self.run_version(i).map(|_| ());
        self.each(rows, threads, &check, &|i, entry, stored| {
            let version = self.run_version(i)?;
            let payload = self.decode(i, entry, stored)?;
            Run::parse_as(version, &payload).map_err(|error| self.about_entry(i, entry, error))
        })
    }

    /// Compares the stored bytes of an entry with its checksum, as often as the options
    /// say; an entry without one has nothing to compare.
    #[inline]
    pub fn verify_stored(&self, i: u64, entry: &Entry, stored: &[u8]) -> Result<()> {
        let (word, bit) = ((i / 64) as usize, 1 << (i % 64));
        let known = match self.options.verify {
            Verify::Never => true,
            Verify::Always => false,
            Verify::First => {
                let seen = self.verified.get(word);
                seen.is_some_and(|word| word.load(Ordering::Relaxed) & bit != 0)
            }
        };
        if known || !entry.has_crc() {
            return Ok(());
        }
        if crc32c(stored) != entry.crc {
            let error = Error::Corrupt("the checksum does not match".into());
            return Err(self.about_entry(i, entry, error));
        }
        if let Some(word) = self.verified.get(word) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The payload out of the stored bytes, which are verified first.
    pub(crate) fn decode<'a>(
        &self,
        i: u64,
        entry: &Entry,
        stored: Cow<'a, [u8]>,
    ) -> Result<Cow<'a, [u8]>> {
        self.verify_stored(i, entry, &stored)?;
        if is_plain(entry) || stored.is_empty() {
            return Ok(stored);
        }
        let codec = entry.codec().map_err(|error| self.about_entry(i, entry, error))?;
        let record = Stored { codec, bytes: &stored, length: entry.payload_bytes() };
        let payload = self.decoder()?.decode(&record);
        payload.map(Cow::Owned).map_err(|error| self.about_entry(i, entry, error))
    }

    /// As [`decode`](Self::decode), into memory of exactly the payload's length.
    pub(crate) fn decode_into(
        &self,
        i: u64,
        entry: &Entry,
        stored: &[u8],
        out: &mut [u8],
    ) -> Result<()> {
        self.verify_stored(i, entry, stored)?;
        // Nothing stored stands for nothing, whatever the codec.
        if (is_plain(entry) || stored.is_empty()) && stored.len() == out.len() {
            out.copy_from_slice(stored);
            return Ok(());
        }
        let about = |error| self.about_entry(i, entry, error);
        let codec = entry.codec().map_err(about)?;
        self.decoder()?.decode_into(codec, stored, out).map_err(about)
    }

    /// Where the stored bytes of an entry lie in the file.
    pub(crate) fn range(entry: &Entry) -> Range<u64> {
        // The index was checked when it was read: the sum is below the end of the file.
        entry.offset..entry.offset.saturating_add(u64::from(entry.length))
    }

    /// The same error, naming file, entry and offset.
    pub(crate) fn about_entry(&self, i: u64, entry: &Entry, error: Error) -> Error {
        self.about(at(i, entry, error))
    }

    /// The version of the run that an entry is.
    pub(super) fn run_version(&self, i: u64) -> Result<Version> {
        let entry = self.entry(i)?;
        match entry.kind {
            KIND_V1 => Ok(Version::V1),
            KIND_V2 => Ok(Version::V2),
            _ => {
                let text = format!("it is no run but of kind `{}`", self.kind_name(i)?);
                Err(self.about_entry(i, &entry, Error::Unsupported(text)))
            }
        }
    }

    fn stored_unverified(&self, i: u64) -> Result<(Entry, Cow<'_, [u8]>)> {
        let entry = self.entry(i)?;
        self.storage.recheck()?;
        let stored = fetch_one(&*self.storage, Self::range(&entry))?;
        Ok((entry, stored))
    }

    /// `work` on the stored bytes of each row that `check` lets pass, in one request.
    pub(crate) fn each<'a, T: Send>(
        &'a self,
        rows: &[u64],
        threads: usize,
        check: &dyn Fn(u64) -> Result<()>,
        work: Work<'_, 'a, T>,
    ) -> Result<Vec<Result<T>>> {
        self.storage.recheck()?;
        let mut wanted = Vec::with_capacity(rows.len());
        let mut ranges = Vec::with_capacity(rows.len());
        for &i in rows {
            let entry = self.entry(i)?;
            let checked = check(i);
            if checked.is_ok() {
                ranges.push(Self::range(&entry));
            }
            wanted.push((i, entry, checked));
        }
        let fetched = if ranges.is_empty() { Vec::new() } else { fetch(&*self.storage, &ranges)? };
        let mut fetched = fetched.into_iter();
        let items: Vec<_> = wanted
            .into_iter()
            .map(|(i, entry, checked)| {
                let stored = checked.map(|()| fetched.next().unwrap_or_default());
                (i, entry, stored)
            })
            .collect();
        Ok(parallel(items, threads, &|(i, entry, stored)| work(i, &entry, stored?)))
    }
}

/// `work` on each item, on up to `threads` threads; the results are in order.
pub(super) fn parallel<T: Send, R: Send>(
    items: Vec<T>,
    threads: usize,
    work: &(dyn Fn(T) -> R + Sync),
) -> Vec<R> {
    if threads <= 1 || items.len() <= 1 {
        return items.into_iter().map(work).collect();
    }
    let cells: Vec<Mutex<(Option<T>, Option<R>)>> =
        items.into_iter().map(|item| Mutex::new((Some(item), None))).collect();
    pool::run(cells.len(), threads, &|position| {
        // Each part is claimed once, so the lock is never waited for.
        let mut cell = cells[position].lock().unwrap_or_else(PoisonError::into_inner);
        let item = cell.0.take();
        cell.1 = item.map(work);
    });
    let result = |cell: Mutex<(_, _)>| cell.into_inner().unwrap_or_else(PoisonError::into_inner).1;
    cells.into_iter().filter_map(result).collect()
}
