//! Codecs, for single records and batches.

use std::sync::Arc;

use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use relive_core::Error;
use relive_core::codec::{self, Decoder, Dictionary, Encoder, Stored};
use relive_core::pool::default_threads;

use crate::errors::to_py;

/// One codec with its level, dictionary and limit. Thread-safe.
#[pyclass(frozen, module = "relive._native")]
pub struct Codec {
    encoder: Encoder,
    decoder: Decoder,
}

#[pymethods]
impl Codec {
    #[new]
    fn new(
        name: &str,
        level: Option<i32>,
        dictionary: Option<&[u8]>,
        max_bytes: u64,
    ) -> PyResult<Self> {
        let build = || {
            let mut encoder = Encoder::new(name.parse()?, level)?.with_max_bytes(max_bytes);
            let mut decoder = Decoder::new().with_max_bytes(max_bytes);
            if let Some(bytes) = dictionary {
                let dictionary = Arc::new(Dictionary::new(bytes.to_vec())?);
                encoder = encoder.with_dictionary(Arc::clone(&dictionary))?;
                decoder = decoder.with_dictionary(dictionary);
            }
            Ok(Self { encoder, decoder })
        };
        build().map_err(to_py)
    }

    /// The id of this codec in files.
    #[getter]
    fn id(&self) -> u8 {
        self.encoder.codec().id()
    }

    /// The name of this codec.
    #[getter]
    fn name(&self) -> &'static str {
        self.encoder.codec().name()
    }

    /// The compression level; None for codecs without levels.
    #[getter]
    fn level(&self) -> Option<i32> {
        self.encoder.level()
    }

    /// The dictionary, if there is one.
    #[getter]
    fn dictionary<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.encoder.dictionary().map(|dictionary| PyBytes::new(py, dictionary.bytes()))
    }

    /// The limit for the length of a record.
    #[getter]
    fn max_bytes(&self) -> u64 {
        self.encoder.max_bytes()
    }

    /// Encode one record.
    fn encode<'py>(&self, py: Python<'py>, data: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
        let stored = py.detach(|| self.encoder.encode(data)).map_err(to_py)?;
        Ok(PyBytes::new(py, &stored))
    }

    /// Encode all records, in order.
    #[expect(clippy::needless_pass_by_value)]
    fn encode_batch<'py>(
        &self,
        py: Python<'py>,
        records: Vec<PyBackedBytes>,
        workers: Option<usize>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let workers = workers.unwrap_or_else(default_threads);
        let stored = py.detach(|| self.encoder.encode_batch(&records, workers)).map_err(to_py)?;
        Ok(stored.iter().map(|bytes| PyBytes::new(py, bytes)).collect())
    }

    /// Decode one record, which has `length` bytes.
    fn decode<'py>(
        &self,
        py: Python<'py>,
        data: &[u8],
        length: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let codec = self.encoder.codec();
        let record = Stored { codec, bytes: data, length };
        let length = self.decoder.check(&record).map_err(to_py)?;
        PyBytes::new_with(py, length, |out| {
            py.detach(|| self.decoder.decode_into(codec, data, out)).map_err(to_py)
        })
    }

    /// Decode all records into one array, and return it with their offsets.
    #[expect(clippy::needless_pass_by_value, clippy::type_complexity)]
    fn decode_batch<'py>(
        &self,
        py: Python<'py>,
        records: Vec<PyBackedBytes>,
        lengths: PyReadonlyArray1<'py, u64>,
        workers: Option<usize>,
    ) -> PyResult<(Bound<'py, PyArray1<u8>>, Bound<'py, PyArray1<i64>>)> {
        let lengths = lengths.as_array();
        if lengths.len() != records.len() {
            return Err(to_py(Error::Invalid(format!(
                "got {} lengths for {} records: pass one length per record",
                lengths.len(),
                records.len()
            ))));
        }
        let codec = self.encoder.codec();
        let stored: Vec<Stored<'_>> = records
            .iter()
            .zip(lengths)
            .map(|(bytes, &length)| Stored { codec, bytes, length })
            .collect();
        let workers = workers.unwrap_or_else(default_threads);
        let (values, offsets) =
            py.detach(|| self.decoder.decode_batch(&stored, workers)).map_err(to_py)?;
        // A Vec is at most isize::MAX bytes long, so every offset fits.
        let offsets: Vec<i64> = offsets.into_iter().map(|offset| offset as i64).collect();
        Ok((values.into_pyarray(py), offsets.into_pyarray(py)))
    }
}

/// Train a zstd dictionary of at most `size` bytes from sample records.
#[pyfunction]
#[expect(clippy::needless_pass_by_value)]
pub fn train_dictionary<'py>(
    py: Python<'py>,
    samples: Vec<PyBackedBytes>,
    size: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    let trained = py.detach(|| codec::train_dictionary(&samples, size)).map_err(to_py)?;
    Ok(PyBytes::new(py, &trained))
}

/// Return the names of the codecs, each at the position of its id.
#[pyfunction]
pub fn codec_names() -> Vec<&'static str> {
    codec::Codec::ALL.iter().map(|codec| codec.name()).collect()
}
