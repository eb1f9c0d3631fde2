//! `PackWriter`: writes one packfile, and functions for unfinished ones.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use numpy::PyReadonlyArray1;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use relive_core::Result;
use relive_core::codec::{Codec, Dictionary};
use relive_core::fork::OwnerProcess;
use relive_core::pack::layout::{KIND_V1, KIND_V2};
use relive_core::pack::{self, WriterOptions};
use relive_core::runs::{Version, version_of};

use crate::errors::to_py;
use crate::pack::{Pack, cores, positions, report_progress};

/// Writes one packfile; `relive.PackWriter` wraps it. Thread-safe.
#[pyclass(frozen, module = "relive._native")]
pub struct PackWriter {
    core: Mutex<pack::PackWriter>,
    owner: OwnerProcess,
}

#[pymethods]
impl PackWriter {
    #[new]
    #[pyo3(signature = (
        path, *, align, codec, level, dictionary, checksum, capacity, steps, overwrite,
        max_payload_bytes, workers
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        align: u32,
        codec: &str,
        level: Option<i32>,
        dictionary: Option<PyBackedBytes>,
        checksum: bool,
        capacity: Option<u64>,
        steps: bool,
        overwrite: bool,
        max_payload_bytes: u64,
        workers: usize,
    ) -> PyResult<Self> {
        let create = || {
            let dictionary = match dictionary {
                Some(bytes) => Some(Arc::new(Dictionary::new(bytes.to_vec())?)),
                None => None,
            };
            let options = WriterOptions {
                align,
                codec: codec.parse()?,
                level,
                dictionary,
                checksum,
                capacity,
                overwrite,
                max_payload_bytes,
                step_table: steps,
                threads: workers,
            };
            pack::PackWriter::create(&path, options)
        };
        let core = py.detach(create).map_err(to_py)?;
        Ok(Self { core: Mutex::new(core), owner: OwnerProcess::current() })
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |core| Ok(core.len() as usize))
    }

    /// Whether entries can be appended.
    #[getter]
    fn is_open(&self, py: Python<'_>) -> bool {
        self.with(py, |core| Ok(core.is_open())).unwrap_or(false)
    }

    /// Append a payload and return its position. The kind "auto" detects the run version.
    fn append(
        &self,
        py: Python<'_>,
        payload: PyBackedBytes,
        kind: &str,
        name: Option<&str>,
        codec: Option<&str>,
    ) -> PyResult<u64> {
        self.with(py, |core| {
            let kind = kind_of(core, kind, &payload)?;
            core.append(&payload, kind, name, parse(codec)?)
        })
    }

    /// Append all payloads or none. Return the positions of the first and after the last.
    fn extend(
        &self,
        py: Python<'_>,
        payloads: Vec<PyBackedBytes>,
        kind: &str,
        names: Option<Vec<Option<String>>>,
        codec: Option<&str>,
    ) -> PyResult<(u64, u64)> {
        self.with(py, |core| {
            let kinds: Result<Vec<u16>> =
                payloads.iter().map(|payload| kind_of(core, kind, payload)).collect();
            let payloads: Vec<&[u8]> = payloads.iter().map(|payload| &**payload).collect();
            let names: Vec<Option<&str>> = match &names {
                Some(names) => names.iter().map(Option::as_deref).collect(),
                None => vec![None; payloads.len()],
            };
            let range = core.extend(&payloads, &kinds?, &names, parse(codec)?)?;
            Ok((range.start, range.end))
        })
    }

    /// Append entry `rows[k]` of pack `parts[k]` as it is stored; calls `progress(done)`.
    #[pyo3(signature = (packs, parts, rows, keep_names, progress=None))]
    fn copy(
        &self,
        py: Python<'_>,
        packs: Vec<Bound<'_, Pack>>,
        parts: PyReadonlyArray1<'_, i64>,
        rows: PyReadonlyArray1<'_, i64>,
        keep_names: bool,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let (packs, rows) = (cores(&packs), positions(&parts, &rows));
        let report = |done: u64| report_progress(progress.as_ref(), (done,));
        self.with(py, |core| pack::copy_entries(&packs, &rows, core, keep_names, &report))
    }

    /// Make every entry so far survive the end of this process.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, pack::PackWriter::flush)
    }

    /// Make every entry so far survive a power cut.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, pack::PackWriter::sync)
    }

    /// Finish the pack. Return its entries, its bytes, and how many of them are padding.
    fn finish(&self, py: Python<'_>) -> PyResult<(u64, u64, u64)> {
        let finished = self.with(py, pack::PackWriter::finish)?;
        Ok((finished.entries, finished.file_bytes, finished.padding_bytes))
    }

    /// Remove everything that was written.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, pack::PackWriter::abort)
    }

    /// Stop writing and leave the pack unfinished.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, pack::PackWriter::leave)
    }
}

impl PackWriter {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut pack::PackWriter) -> Result<T> + Send,
    ) -> PyResult<T> {
        self.owner.check("the pack writer").map_err(to_py)?;
        // Without the GIL, since the thread that has the lock may wait for the GIL.
        py.detach(|| work(&mut self.core.lock().unwrap_or_else(PoisonError::into_inner)))
            .map_err(to_py)
    }
}

fn parse(codec: Option<&str>) -> Result<Option<Codec>> {
    codec.map(str::parse).transpose()
}

fn kind_of(core: &mut pack::PackWriter, kind: &str, payload: &[u8]) -> Result<u16> {
    match (kind, version_of(payload)) {
        ("auto", Version::V1) => Ok(KIND_V1),
        ("auto", Version::V2) => Ok(KIND_V2),
        _ => core.kind_id(kind),
    }
}

/// Return the dictionary that entries of these packs need, if any does.
#[pyfunction]
pub fn common_dictionary<'py>(
    py: Python<'py>,
    packs: Vec<Bound<'py, Pack>>,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let packs = cores(&packs);
    let found = py.detach(|| pack::common_dictionary(&packs)).map_err(to_py)?;
    Ok(found.map(|bytes| PyBytes::new(py, &bytes)))
}

/// Raise an error if no user-defined kind can have this name.
#[pyfunction]
pub fn check_kind_name(name: &str) -> PyResult<()> {
    pack::sections::check_kind_name(name).map_err(to_py)
}

/// Return the unfinished packs whose target is `path`.
#[pyfunction]
pub fn unfinished_packs(py: Python<'_>, path: PathBuf) -> PyResult<Vec<PathBuf>> {
    py.detach(|| pack::unfinished(&path)).map_err(to_py)
}

/// Return the target of the unfinished pack at `path`; None if it is not named like one.
#[pyfunction]
pub fn unfinished_target(path: PathBuf) -> Option<PathBuf> {
    pack::target_of(&path)
}

/// Entries, lost entries, bytes of the file, the reason of a loss, and the path of unused bytes.
type RecoveredPack = (u64, u64, u64, Option<String>, Option<PathBuf>);

/// Recover the complete entries. Return how many, how many lost, bytes of the file, and why.
#[pyfunction]
pub fn recover_pack(
    py: Python<'_>,
    unfinished: PathBuf,
    output: PathBuf,
    overwrite: bool,
) -> PyResult<RecoveredPack> {
    let found = py.detach(|| pack::recover(&unfinished, &output, overwrite)).map_err(to_py)?;
    Ok((found.entries, found.lost, found.file_bytes, found.reason, found.rest))
}
