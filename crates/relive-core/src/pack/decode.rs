//! What entries are: runs, or bytes for somebody else to make sense of.

use std::borrow::Cow;

use super::layout::{KIND_V1, KIND_V2};
use super::reader::PackReader;
use super::stats::Summary;
use crate::Result;
use crate::runs::{Run, Version};

/// An entry that was read.
pub struct Decoded<'a> {
    /// The number of its kind.
    pub kind: u16,
    /// What it is.
    pub value: Value<'a>,
}

/// What an entry is.
pub enum Value<'a> {
    /// A run, of either version.
    Run(Run),
    /// The payload of any other kind.
    Bytes(Cow<'a, [u8]>),
}

impl PackReader {
    /// Many entries, in the order asked, on up to `threads` threads and with one request.
    /// Each has its own outcome; the outer one is that of the request.
    pub fn decode_batch(&self, rows: &[u64], threads: usize) -> Result<Vec<Result<Decoded<'_>>>> {
        self.each(rows, threads, &|_| Ok(()), &|i, entry, stored| {
            let payload = self.decode(i, entry, stored)?;
            let version = match entry.kind {
                KIND_V1 => Version::V1,
                KIND_V2 => Version::V2,
                kind => return Ok(Decoded { kind, value: Value::Bytes(payload) }),
            };
            let run = Run::parse_as(version, &payload)
                .map_err(|error| self.about_entry(i, entry, error))?;
            Ok(Decoded { kind: entry.kind, value: Value::Run(run) })
        })
    }

    /// The lengths of runs as the stats block sums them up; `None` without one.
    pub fn summary(&self) -> Result<Option<Summary>> {
        self.stats_block()?.map(|bytes| Summary::parse_body(&bytes)).transpose()
    }
}
