//! The mutable record store: records of named fields in a directory, written by one process
//! and read by any number of others. `docs/format/records.md` is the specification.

pub mod bit_set;
pub mod chunk;
mod chunk_numbers;
mod chunk_writer;
pub mod dense_writer;
pub mod files;
pub mod heap_encoder;
mod journal_records;
mod layout;
pub mod mapped_region;
mod meta;
pub mod open;
mod replay;
pub mod rows;
pub mod snapshot;
mod state;
pub mod table_file;
#[cfg(test)]
pub(crate) mod testing;
mod validate;
mod value;
mod writer;

pub use self::files::{Io, ReadOptions};
pub use self::open::Records;
pub use self::rows::SnapshotRows;
pub use self::snapshot::{Snapshot, StoredValue, View};
pub use self::state::{FieldSpec, Kind, State};
pub use self::validate::{Problem, Report, validate};
pub use self::value::{Column, Value};
pub use self::writer::{CreateOptions, Writer, WriterOptions};
