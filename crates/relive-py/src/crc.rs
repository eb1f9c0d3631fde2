//! Checksums, for readers of other people's formats.

use pyo3::prelude::*;

/// Return the CRC-32C (Castagnoli) of bytes.
#[pyfunction]
pub fn crc32c(data: &[u8]) -> u32 {
    relive_core::crc::crc32c(data)
}
