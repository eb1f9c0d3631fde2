//! Checksums of what Python code writes and reads.

use pyo3::prelude::*;

use crate::tape::{LONG_BYTES, with_bytes};

/// Return the CRC-32C (Castagnoli) of bytes, or of another contiguous buffer.
#[pyfunction]
pub fn crc32c(py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<u32> {
    with_bytes(data, |bytes| {
        let compute = || relive_core::crc::crc32c(bytes);
        if bytes.len() > LONG_BYTES { py.detach(compute) } else { compute() }
    })
}
