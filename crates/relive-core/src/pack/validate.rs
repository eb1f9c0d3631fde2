//! A look at every byte of a pack, whatever state it is in.
//!
//! Problems are collected, not raised: one damaged entry must not hide the next. Only what
//! keeps us from looking at all, a file that is not there or a disk that fails, is an error.

mod entries;
mod rest;
#[cfg(test)]
mod tests;

use std::str::FromStr;

use super::layout::Header;
use super::reader::{Options, PackReader, Verify};
use crate::storage::Storage;
use crate::{Error, Result};

/// How much is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Header, footer, index, directory.
    Index,
    /// Those, the sections but the step table, and some entries.
    Sample,
    /// Every byte, and that derived data is what it is derived from.
    Full,
}

impl FromStr for Level {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "index" => Ok(Self::Index),
            "sample" => Ok(Self::Sample),
            "full" => Ok(Self::Full),
            _ => Err(Error::Invalid(format!(
                "the level is index, sample or full, not {}",
                name.escape_debug()
            ))),
        }
    }
}

/// One thing that is wrong.
#[derive(Debug)]
pub struct Problem {
    /// The entry it is in, if it is in one.
    pub entry: Option<u64>,
    /// Where in the file, if that can be said.
    pub offset: Option<u64>,
    /// What reading it would give.
    pub error: Error,
}

impl Problem {
    fn at(offset: u64, text: impl Into<String>) -> Self {
        Self { entry: None, offset: Some(offset), error: Error::Corrupt(text.into()) }
    }
}

/// What was looked at, and what is wrong.
#[derive(Debug, Default)]
pub struct Report {
    /// How many entries were read.
    pub entries: u64,
    /// Everything that is wrong.
    pub problems: Vec<Problem>,
}

/// Is told how many entries were looked at, out of how many; ends the work by failing.
pub type Progress<'a> = dyn Fn(u64, u64) -> Result<()> + 'a;

/// Looks at a pack on at most `threads` threads.
pub fn validate(
    storage: Box<dyn Storage>,
    level: Level,
    max_payload_bytes: u64,
    threads: usize,
    progress: &Progress<'_>,
) -> Result<Report> {
    let options = Options { verify: Verify::Always, max_payload_bytes };
    let mut report = Report::default();
    let pack = match PackReader::open_storage(storage, options) {
        Ok(pack) => pack,
        Err(error) => {
            report.problems.push(Problem { entry: None, offset: None, error: damage(error)? });
            return Ok(report);
        }
    };
    rest::fixed_parts(&pack, &mut report)?;
    if level == Level::Index {
        return Ok(report);
    }
    rest::sections(&pack, level, &mut report)?;
    if level == Level::Sample {
        entries::sample(&pack, threads, &mut report)?;
        return Ok(report);
    }
    let derived = entries::all(&pack, threads, progress, &mut report)?;
    rest::stats_block(&pack, derived, &mut report)?;
    Ok(report)
}

/// The error as a problem of the file; what the system refuses stays an error of ours.
fn damage(error: Error) -> Result<Error> {
    match error {
        Error::Io(_) | Error::Closed(_) | Error::Locked(_) => Err(error),
        error => Ok(error),
    }
}

/// Where the index ends.
fn index_end(header: Header) -> u64 {
    (super::layout::HEADER_BYTES as u64)
        .saturating_add(header.count.saturating_mul(super::layout::ENTRY_BYTES as u64))
}
