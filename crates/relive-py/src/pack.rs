//! `Pack`: one packfile, read in batches.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use numpy::npyffi::npy_intp;
use numpy::{IntoPyArray, PyArray1, PyArrayMethods, PyReadonlyArray1, PyUntypedArray};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};
use relive_core::Error;
use relive_core::pack::layout::Entry;
use relive_core::pack::{
    self, Granularity, JsonlOptions, Level, Options, PackReader, PackRows, Stats, StepRows,
    Summary, Verify,
};
use relive_core::runs::{Boards, STEP_COLUMNS, StepColumn};
use relive_core::storage::{PreadFile, Storage};

use crate::arrays::{new_array, set_readonly};
use crate::errors::{choice, to_py};
use crate::runs::run_to_py;
use crate::table::{Shape, Table, from_reader};

/// One packfile, open for reading. Thread-safe.
#[pyclass(frozen, module = "relive._native")]
pub struct Pack {
    pub core: Arc<PackReader>,
}

#[pymethods]
impl Pack {
    /// Open a local file: memory-mapped, or read on demand.
    #[staticmethod]
    fn open(
        py: Python<'_>,
        path: PathBuf,
        verify: &str,
        mapped: bool,
        max_payload_bytes: u64,
    ) -> PyResult<Self> {
        let options = options(verify, max_payload_bytes)?;
        let core = py.detach(|| PackReader::open(&path, mapped, options));
        core.map(|core| Self { core: Arc::new(core) }).map_err(to_py)
    }

    /// Open a pack of `size` bytes. `read_ranges(ranges)` returns a list of bytes, one for each
    /// `(start, stop)`.
    #[staticmethod]
    fn open_ranged(
        py: Python<'_>,
        name: String,
        size: u64,
        read_ranges: Py<PyAny>,
        verify: &str,
        max_payload_bytes: u64,
    ) -> PyResult<Self> {
        let options = options(verify, max_payload_bytes)?;
        let storage = Ranged { name, size, read_ranges };
        let core = py.detach(|| PackReader::open_storage(Box::new(storage), options));
        core.map(|core| Self { core: Arc::new(core) }).map_err(to_py)
    }

    fn __len__(&self) -> usize {
        self.core.len() as usize
    }

    /// Bytes of the whole file.
    #[getter]
    fn size(&self) -> u64 {
        self.core.storage().len()
    }

    /// Whether the file is memory-mapped, so that entries can be read without a copy.
    #[getter]
    fn mapped(&self) -> bool {
        self.core.storage().mapped().is_some()
    }

    /// Return offset, stored length, kind, flags, CRC and payload length of an entry.
    fn entry(&self, index: u64) -> PyResult<(u64, u32, u16, u16, u32, u64)> {
        let entry = self.core.entry(index).map_err(to_py)?;
        let Entry { offset, length, kind, flags, crc, .. } = entry;
        Ok((offset, length, kind, flags, crc, entry.payload_bytes()))
    }

    /// Return the kind id of every entry.
    fn kind_ids<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u16>> {
        let kinds: Vec<u16> = self.core.entries().map(|entry| entry.kind).collect();
        kinds.into_pyarray(py)
    }

    /// Return the names of user-defined kinds, by id.
    fn kind_names<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let kinds = py.detach(|| self.core.kinds()).map_err(to_py)?;
        let names = PyDict::new(py);
        for (id, name) in kinds.iter() {
            names.set_item(id, name)?;
        }
        Ok(names)
    }

    /// Return the kind of an entry: "bytes", "v1", "v2" or a user-defined kind.
    fn kind(&self, py: Python<'_>, index: u64) -> PyResult<String> {
        py.detach(|| self.core.kind_name(index)).map_err(to_py)
    }

    /// Return the name of an entry, if it has one.
    fn name(&self, py: Python<'_>, index: u64) -> PyResult<Option<String>> {
        self.core.entry(index).map_err(to_py)?;
        let names = py.detach(|| self.core.names()).map_err(to_py)?;
        Ok(names.and_then(|names| names.get(index)).map(str::to_owned))
    }

    /// Return the position of the entry with that name, if there is one.
    fn find(&self, py: Python<'_>, name: &str) -> PyResult<Option<u64>> {
        py.detach(|| self.core.find(name)).map_err(to_py)
    }

    /// Return the payload of an entry, read-only; without a copy if it is stored raw in a mapped
    /// file.
    fn payload<'py>(slf: &Bound<'py, Self>, index: u64) -> PyResult<Bound<'py, PyUntypedArray>> {
        let py = slf.py();
        let core = &slf.get().core;
        let payload = py.detach(|| core.payload(index)).map_err(to_py)?;
        let array = match payload {
            std::borrow::Cow::Borrowed(bytes) => {
                let shape = [bytes.len() as npy_intp];
                let dtype = numpy::dtype::<u8>(py);
                let over = (bytes.as_ptr().cast_mut(), slf.clone().into_any());
                // SAFETY: the bytes are in the map, which exists as long as the pack; the array
                // is made read-only.
                unsafe { new_array(&dtype, &shape, Some(over)) }?
            }
            std::borrow::Cow::Owned(bytes) => bytes.into_pyarray(py).as_untyped().clone(),
        };
        set_readonly(&array);
        Ok(array)
    }

    /// Decode the entries at `rows`: for each its kind and its run as a tuple, or its payload as
    /// an array; or the error that reading it raised.
    fn decode<'py>(
        &self,
        py: Python<'py>,
        rows: PyReadonlyArray1<'py, i64>,
        workers: usize,
    ) -> PyResult<Bound<'py, PyList>> {
        let rows: Vec<u64> = rows.as_array().iter().map(|&row| row as u64).collect();
        let decoded = py.detach(|| self.core.decode_batch(&rows, workers)).map_err(to_py)?;
        let list = PyList::empty(py);
        for item in decoded {
            match item {
                Ok((kind, pack::Value::Run(run))) => {
                    list.append((kind, run_to_py(py, run)?))?;
                }
                Ok((kind, pack::Value::Bytes(bytes))) => {
                    list.append((kind, bytes.into_owned().into_pyarray(py)))?;
                }
                Err(error) => list.append(to_py(error).into_value(py))?,
            }
        }
        Ok(list)
    }

    /// Return columns for all entries that are runs: steps, highest_tile, max_score, engine; and
    /// the engine names that `engine` is an index into. The largest index means none.
    fn run_columns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let columns = py.detach(|| self.core.run_columns()).map_err(to_py)?;
        let result = PyDict::new(py);
        result.set_item("steps", PyArray1::from_slice(py, &columns.steps))?;
        result.set_item("highest_tile", PyArray1::from_slice(py, &columns.highest_tile))?;
        result.set_item("max_score", PyArray1::from_slice(py, &columns.max_score))?;
        result.set_item("engine", PyArray1::from_slice(py, &columns.engine))?;
        result.set_item("engines", PyList::new(py, &columns.engines)?)?;
        Ok(result)
    }

    /// Return the run lengths of the stats block; None without one.
    fn summary<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let summary = py.detach(|| self.core.summary()).map_err(to_py)?;
        summary.map(|summary| summary_fields(py, &summary)).transpose()
    }

    /// Return how many entries of which kinds there are, and their sizes in bytes.
    fn layout<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = py.detach(|| pack::layout_stats(&self.core)).map_err(to_py)?;
        layout_fields(py, &stats)
    }

    /// Return header flags, end of the data, and tag, offset and length of every section.
    fn describe<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let result = PyDict::new(py);
        result.set_item("flags", self.core.header().flags)?;
        result.set_item("data_end", self.core.footer().data_end)?;
        result.set_item("stats_offset", self.core.footer().stats_offset)?;
        let sections: Vec<(String, u64, u64)> = self
            .core
            .directory()
            .iter()
            .map(|section| (section.tag.to_string(), section.offset, section.length))
            .collect();
        result.set_item("sections", sections)?;
        Ok(result)
    }

    /// Return the entries as rows: `payload`, ragged bytes, and `kind`.
    fn table(&self, py: Python<'_>) -> PyResult<Table> {
        let shapes = vec![
            Shape::new(PyString::intern(py, "payload"), numpy::dtype::<u8>(py), vec![], true),
            Shape::new(PyString::intern(py, "kind"), numpy::dtype::<u16>(py), vec![], false),
        ];
        from_reader(Arc::new(PackRows(Arc::clone(&self.core))), shapes)
    }
}

/// Return steps of runs as rows: of all entries, or of entry `rows[k]` of pack `parts[k]`.
#[pyfunction]
#[pyo3(signature = (packs, parts=None, rows=None))]
pub fn pack_steps(
    py: Python<'_>,
    packs: Vec<Bound<'_, Pack>>,
    parts: Option<PyReadonlyArray1<'_, i64>>,
    rows: Option<PyReadonlyArray1<'_, i64>>,
) -> PyResult<Table> {
    let runs = parts.zip(rows).map(|(parts, rows)| {
        // An entry's number has 32 bits: the index of a pack is checked for that.
        positions(&parts, &rows).into_iter().map(|(part, row)| (part, row as u32)).collect()
    });
    let packs = cores(&packs);
    let steps = py.detach(|| StepRows::new(packs, runs)).map_err(to_py)?;
    let shape = |column: &StepColumn| {
        let dtype = numpy::PyArrayDescr::new(py, column.dtype)?;
        let row = column.shape.iter().map(|&axis| axis as npy_intp).collect();
        Ok(Shape::new(PyString::intern(py, column.name), dtype, row, false))
    };
    let shapes = STEP_COLUMNS.iter().map(shape).collect::<PyResult<_>>()?;
    from_reader(Arc::new(steps), shapes)
}

/// Return statistics of all entries, or of entry `rows[k]` of pack `parts[k]`.
#[pyfunction]
#[pyo3(signature = (packs, parts=None, rows=None))]
pub fn pack_stats<'py>(
    py: Python<'py>,
    packs: Vec<Bound<'py, Pack>>,
    parts: Option<PyReadonlyArray1<'py, i64>>,
    rows: Option<PyReadonlyArray1<'py, i64>>,
) -> PyResult<Bound<'py, PyDict>> {
    let packs = cores(&packs);
    let positions = parts.zip(rows).map(|(parts, rows)| positions(&parts, &rows));
    let stats = py.detach(|| pack::stats(&packs, positions.as_deref())).map_err(to_py)?;
    let result = layout_fields(py, &stats)?;
    result.update(summary_fields(py, &stats.summary)?.as_mapping())?;
    result.set_item("highest_tile_hist", &stats.highest_tile_hist)?;
    result.set_item("engine_counts", &stats.engine_counts)?;
    Ok(result)
}

/// Write entry `rows[k]` of pack `parts[k]` as lines of JSON by calling `write(bytes)`.
///
/// Calls `progress(done)` with the number of entries done. Returns how many were skipped.
#[pyfunction]
#[pyo3(signature = (packs, parts, rows, write, *, steps, lists, hex_boards, skip, workers, progress))]
#[allow(clippy::too_many_arguments, clippy::fn_params_excessive_bools)]
pub fn write_jsonl(
    py: Python<'_>,
    packs: Vec<Bound<'_, Pack>>,
    parts: PyReadonlyArray1<'_, i64>,
    rows: PyReadonlyArray1<'_, i64>,
    write: Py<PyAny>,
    steps: bool,
    lists: bool,
    hex_boards: bool,
    skip: bool,
    workers: usize,
    progress: Option<Py<PyAny>>,
) -> PyResult<u64> {
    let packs = cores(&packs);
    let positions = positions(&parts, &rows);
    let options = JsonlOptions {
        granularity: if steps { Granularity::Steps } else { Granularity::Runs },
        with_lists: lists,
        boards: if hex_boards { Boards::Hex } else { Boards::Integers },
        threads: workers,
        skip_errors: skip,
    };
    let report = |done: u64| report_progress(progress.as_ref(), (done,));
    let mut out = Callback(write);
    py.detach(|| pack::write_jsonl(&packs, &positions, &options, &mut out, &report)).map_err(to_py)
}

/// Runs pending signal handlers of Python and calls `progress`. An exception is returned inside
/// an I/O error, and `to_py` extracts it.
pub fn report_progress<A>(progress: Option<&Py<PyAny>>, done: A) -> Result<(), Error>
where
    A: for<'a> pyo3::call::PyCallArgs<'a>,
{
    Python::attach(|py| {
        py.check_signals()?;
        progress.map_or(Ok(()), |progress| progress.call1(py, done).map(drop))
    })
    .map_err(|error| Error::Io(std::io::Error::other(error)))
}

/// A Python function that is called with the bytes to write.
struct Callback(Py<PyAny>);

impl std::io::Write for Callback {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Python::attach(|py| self.0.call1(py, (PyBytes::new(py, bytes),)).map(drop))
            .map_err(std::io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Returns pairs of the position of a pack and the position of an entry.
pub fn positions(
    parts: &PyReadonlyArray1<'_, i64>,
    rows: &PyReadonlyArray1<'_, i64>,
) -> Vec<(u32, u64)> {
    let (parts, rows) = (parts.as_array(), rows.as_array());
    parts.iter().zip(rows.iter()).map(|(&part, &row)| (part as u32, row as u64)).collect()
}

fn summary_fields<'py>(py: Python<'py>, summary: &Summary) -> PyResult<Bound<'py, PyDict>> {
    let fields = PyDict::new(py);
    fields.set_item("total_steps", summary.total_steps)?;
    fields.set_item("min_len", summary.min)?;
    fields.set_item("max_len", summary.max)?;
    fields.set_item("mean_len", summary.mean)?;
    fields.set_item("p50_len", summary.p50)?;
    fields.set_item("p90_len", summary.p90)?;
    fields.set_item("p99_len", summary.p99)?;
    Ok(fields)
}

fn layout_fields<'py>(py: Python<'py>, stats: &Stats) -> PyResult<Bound<'py, PyDict>> {
    let fields = PyDict::new(py);
    fields.set_item("count", stats.entries)?;
    fields.set_item("kind_counts", &stats.kind_counts)?;
    fields.set_item("payload_bytes", stats.payload_bytes)?;
    fields.set_item("stored_bytes", stats.stored_bytes)?;
    fields.set_item("padding_bytes", stats.padding_bytes)?;
    Ok(fields)
}

/// Validate the pack at `path`, or with `size` and `read_ranges` the pack with that name. Return
/// how many entries were read, and for each problem the entry, the offset, the kind of error and
/// the message.
#[pyfunction]
#[pyo3(signature = (path, level, max_payload_bytes, workers, progress, size=0, read_ranges=None))]
#[expect(clippy::too_many_arguments, reason = "keywords of Python")]
pub fn validate_pack(
    py: Python<'_>,
    path: PathBuf,
    level: &str,
    max_payload_bytes: u64,
    workers: usize,
    progress: Option<Py<PyAny>>,
    size: u64,
    read_ranges: Option<Py<PyAny>>,
) -> PyResult<(u64, bool, Vec<ProblemFields>)> {
    let level = choice("level", level, &Level::NAMES)?;
    let report = |done: u64, total: u64| report_progress(progress.as_ref(), (done, total));
    let validate = || {
        let storage: Box<dyn Storage> = match read_ranges {
            Some(read_ranges) => {
                Box::new(Ranged { name: path.display().to_string(), size, read_ranges })
            }
            None => Box::new(PreadFile::open(&path)?),
        };
        pack::validate(storage, level, max_payload_bytes, workers, &report)
    };
    py.detach(validate).map(report_fields).map_err(to_py)
}

/// Entry, offset, kind of error and message.
type ProblemFields = (Option<u64>, Option<u64>, &'static str, String);

fn report_fields(report: pack::Report) -> (u64, bool, Vec<ProblemFields>) {
    let fields = |problem: pack::Problem| {
        (problem.entry, problem.offset, problem.error.kind(), problem.error.to_string())
    };
    (report.entries, report.unchecked, report.problems.into_iter().map(fields).collect())
}

/// Returns the readers of the packs.
pub fn cores(packs: &[Bound<'_, Pack>]) -> Vec<Arc<PackReader>> {
    packs.iter().map(|pack| Arc::clone(&pack.get().core)).collect()
}

fn options(verify: &str, max_payload_bytes: u64) -> PyResult<Options> {
    Ok(Options { verify: verify_of(verify)?, max_payload_bytes })
}

/// Returns when checksums are compared.
pub fn verify_of(verify: &str) -> PyResult<Verify> {
    let choices = [("first", Verify::First), ("always", Verify::Always), ("never", Verify::Never)];
    choice("verify", verify, &choices)
}

/// A file that a Python function reads.
struct Ranged {
    name: String,
    size: u64,
    read_ranges: Py<PyAny>,
}

impl Storage for Ranged {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> u64 {
        self.size
    }

    fn mapped(&self) -> Option<&[u8]> {
        None
    }

    fn read(&self, ranges: &[Range<u64>]) -> Result<Vec<Vec<u8>>, Error> {
        let call = |py: Python<'_>| -> PyResult<Vec<Vec<u8>>> {
            let pairs: Vec<(u64, u64)> =
                ranges.iter().map(|range| (range.start, range.end)).collect();
            let pieces = self.read_ranges.call1(py, (pairs,))?;
            let pieces: Vec<PyBackedBytes> = pieces.extract(py)?;
            Ok(pieces.iter().map(|piece| piece.to_vec()).collect())
        };
        // `to_py` extracts the exception from the I/O error.
        let pieces =
            Python::attach(call).map_err(|error| Error::Io(std::io::Error::other(error)))?;
        let wanted = ranges.iter().map(|range| range.end - range.start);
        if pieces.len() != ranges.len()
            || !pieces.iter().zip(wanted).all(|(piece, length)| piece.len() as u64 == length)
        {
            return Err(Error::Corrupt(format!(
                "`{}`: the storage returned a different number of bytes than requested",
                self.name
            )));
        }
        Ok(pieces)
    }

    fn recheck(&self) -> Result<(), Error> {
        Ok(())
    }
}
