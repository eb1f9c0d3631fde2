//! Runs of reinforcement learning: the arrays of their steps in an HDF5 file.
//!
//! A run's scalars are in SQLite, which also has the place and the checksum of every chunk of
//! arrays, committed together with the rows whose arrays it contains. `docs/format/replay.md` is
//! the format.

mod arrays;
mod columns;
mod copied;
mod encoder;
mod planes;
mod reader;
mod stacks;
#[cfg(test)]
mod tests;
mod text;
mod transitions;

pub use self::arrays::{
    ArrayWriter, ChunkRecord, ChunkTable, Commit, FieldSpec, MetadataRecord, RowsOf, RunLength,
    TailRecord,
};
pub use self::columns::{ColumnSpec, Columns, read_stacks};
pub use self::copied::Copied;
pub use self::planes::PlaneStore;
pub use self::reader::{Added, ArrayReader, StoredChunk};
pub use self::stacks::{StackAxis, Stacks, separate};
pub use self::text::{JsonText, float_text, timestamp};
pub use self::transitions::{
    ColumnValues, MemoryPlane, Numbers, PlaneIds, TransitionRows, Transitions, Windows,
};
