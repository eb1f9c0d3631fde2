//! The pack: an immutable file of many payloads, each found by its position.

pub mod copy;
pub mod index;
pub mod jsonl;
pub mod layout;
pub mod reader;
pub mod recover;
pub mod rows;
mod seal;
pub mod sections;
pub mod stats;
pub mod steps;
#[cfg(test)]
pub(crate) mod testing;
mod unfinished;
pub mod validate;
pub mod writer;

pub use copy::{common_dictionary, copy_entries};
pub use jsonl::{Granularity, JsonlOptions, write_jsonl};
pub use reader::{Options, PackReader, Value, Verify};
pub use recover::{Recovered, recover, target_of, unfinished};
pub use rows::PackRows;
pub use seal::Finished;
pub use stats::{Stats, Summary, layout_stats, stats};
pub use steps::StepRows;
pub use validate::{Level, Problem, Report, validate};
pub use writer::{PackWriter, WriterOptions};
