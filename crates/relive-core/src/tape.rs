//! What a signal recorded, row after row, until it becomes a file.
//!
//! `docs/format/tape.md` is the specification: a tape is a journal. [`TapeWriter::append`] copies
//! a row into memory and returns; threads of this process write the rows out, so that neither a
//! slow disk nor a long write delays whoever records.

mod flusher;
mod latch;
mod layout;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub use self::reader::{Rows, TapeReader};
pub use self::writer::TapeWriter;

/// The place behind the last of `timestamps`, which increase, that is not after `ts`.
pub fn find_time(timestamps: &[i64], ts: i64) -> usize {
    timestamps.partition_point(|&at| at <= ts)
}
