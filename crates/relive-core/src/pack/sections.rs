//! The sections of a pack: one type for each.
//!
//! Every `parse` takes untrusted bytes: lengths are compared with the available bytes before
//! memory is allocated, and malformed bytes are `Corrupt`. Messages name the section; the reader
//! adds the file. `docs/format/pack.md` §5 is the specification.

mod checkpoints;
mod directory;
mod kinds;
mod names;
mod runs;
mod step_table;
#[cfg(test)]
mod tests;

pub use checkpoints::Checkpoints;
pub use directory::{Directory, SectionLocation, section_bytes};
pub use kinds::{Kinds, check_kind_name, kind_id, kind_name};
pub use names::{Names, Strings};
pub use runs::{NO_ENGINE, RunColumns, RunColumnsBuilder};
pub use step_table::{ROWS_PER_BLOCK, StepLayout, StepTable};

use super::layout::{Tag, u32_at, u64_at};
use crate::Error;

fn corrupt(tag: Tag, text: &str) -> Error {
    Error::Corrupt(format!("section {tag}: {text}"))
}

/// Splits `bytes` after its first `count * size` bytes; `None` if there are fewer.
fn split_items(bytes: &[u8], count: u64, size: u64) -> Option<(&[u8], &[u8])> {
    let wanted = usize::try_from(count.checked_mul(size)?).ok()?;
    bytes.split_at_checked(wanted)
}

fn u32_items(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes.chunks_exact(4).map(|item| u32_at(item, 0))
}

fn u64_items(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks_exact(8).map(|item| u64_at(item, 0))
}
