//! Tapes: the write-ahead file of one signal while it is recorded.
//!
//! `docs/format/tape.md` is the specification: a tape is a journal. [`TapeWriter::append`] copies
//! a row into memory and returns; background threads write the rows, so that neither a slow disk
//! nor a long write delays the recording.

mod layout;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub use self::reader::{Rows, TapeReader};
pub use self::writer::TapeWriter;

/// Returns how many of the ascending `timestamps` are at or before `ts`.
pub fn find_time(timestamps: &[i64], ts: i64) -> usize {
    timestamps.partition_point(|&at| at <= ts)
}
