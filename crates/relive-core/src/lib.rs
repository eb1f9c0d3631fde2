//! The core of relive in plain Rust: storage formats, batches and samplers.
//!
//! It does not depend on Python; `relive-py` has the bindings. Interfaces take whole batches, so
//! that the cost of a call is paid once per batch.

pub mod codec;
pub mod crc;
pub mod durable;
pub mod error;
pub(crate) mod flusher;
pub mod fork;
pub mod gather;
pub mod hdf5;
pub mod journal;
pub mod latch;
pub mod pack;
pub mod permute;
pub mod pool;
pub mod prefetch;
pub mod priority;
pub mod readahead;
pub mod records;
pub mod replay;
pub mod ring;
pub mod runs;
pub mod sample;
pub mod slab;
pub mod storage;
pub mod sumtree;
mod sync;
pub mod table;
pub mod tape;

pub use error::{Error, Result};
