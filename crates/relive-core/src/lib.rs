//! The core of relive: what must be fast or must not break, in plain Rust.
//!
//! Nothing here knows of Python; `relive-py` binds it. Whole batches cross every
//! interface, so that the cost of a call is paid once per batch.

pub mod codec;
pub mod crc;
pub mod durable;
pub mod error;
pub mod fork;
pub mod gather;
pub mod journal;
pub mod latch;
pub mod pack;
pub mod permute;
pub mod pool;
pub mod prefetch;
pub mod readahead;
pub mod records;
pub mod runs;
pub mod sample;
pub mod slab;
pub mod storage;
pub mod table;
pub mod tape;

pub use error::{Error, Result};
