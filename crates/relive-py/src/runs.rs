//! Converts runs to and from the tuples of fields of `relive.Run`.

use std::borrow::Cow;

use numpy::ndarray::Array2;
use numpy::{
    Element, IntoPyArray, PyArray, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2, ndarray,
};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use relive_core::runs::{Branches, Meta, Run, Version};
use relive_core::{Error, Result};

use crate::arrays::set_readonly;
use crate::errors::to_py;

/// Steps, start, elapsed time, score, highest tile and engine; then boards, moves, branch values
/// and branch mask.
type Fields<'py> = (
    u32,
    u64,
    f64,
    u64,
    u32,
    Option<String>,
    PyReadonlyArray1<'py, u64>,
    PyReadonlyArray1<'py, u8>,
    Option<PyReadonlyArray2<'py, f32>>,
    Option<PyReadonlyArray1<'py, u8>>,
);

/// Parse the run in `data`, of the given version, or of the one in its header.
#[pyfunction]
pub fn parse_run<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    version: Option<u64>,
) -> PyResult<Bound<'py, PyTuple>> {
    let bytes = payload(data)?;
    let parse = || match version {
        None => Run::parse(&bytes),
        Some(number) => Run::parse_as(Version::from_number(number)?, &bytes),
    };
    run_to_py(py, py.detach(parse).map_err(to_py)?)
}

/// Return the bytes of the run with these fields.
#[pyfunction]
pub fn run_to_bytes<'py>(
    py: Python<'py>,
    fields: Fields<'py>,
    version: u64,
) -> PyResult<Bound<'py, PyBytes>> {
    let run = run_from_py(fields);
    let encode = || -> Result<Vec<u8>> { run?.to_bytes(Version::from_number(version)?) };
    let bytes = py.detach(encode).map_err(to_py)?;
    Ok(PyBytes::new(py, &bytes))
}

/// Returns the fields of a run; its arrays are moved, not copied, and read-only.
pub fn run_to_py(py: Python<'_>, run: Run) -> PyResult<Bound<'_, PyTuple>> {
    let Run { meta, boards, moves, branches } = run;
    let (values, given) = match branches {
        None => (None, None),
        Some(Branches { values, given }) => {
            let values = Array2::from_shape_vec((values.len(), 4), values.into_flattened())
                .map_err(|error| to_py(Error::Invalid(error.to_string())))?;
            (Some(frozen(values.into_pyarray(py))), Some(frozen(given.into_pyarray(py))))
        }
    };
    (
        meta.steps,
        meta.start_unix_s,
        widened(meta.elapsed_s),
        meta.max_score,
        meta.highest_tile,
        meta.engine,
        frozen(boards.into_pyarray(py)),
        frozen(moves.into_pyarray(py)),
        values,
        given,
    )
        .into_pyobject(py)
}

/// Creates the run with these fields.
fn run_from_py(fields: Fields<'_>) -> Result<Run> {
    let (steps, start_unix_s, elapsed_s, max_score, highest_tile, engine, ..) = fields;
    let (.., boards, moves, values, given) = fields;
    let branches = match (values, given) {
        (None, None) => None,
        (Some(values), Some(given)) => {
            let values: Vec<f32> = values.as_array().iter().copied().collect();
            let (rows, []) = values.as_chunks() else {
                return Err(Error::Invalid(format!(
                    "the number of branch values must be a multiple of 4 (four per step), got {}",
                    values.len()
                )));
            };
            Some(Branches { values: rows.to_vec(), given: given.as_array().to_vec() })
        }
        _ => {
            return Err(Error::Invalid(
                "branch values and the branch mask must be passed together".to_owned(),
            ));
        }
    };
    let elapsed_s = narrowed(elapsed_s);
    Ok(Run {
        meta: Meta { steps, start_unix_s, elapsed_s, max_score, highest_tile, engine },
        boards: boards.as_array().to_vec(),
        moves: moves.as_array().to_vec(),
        branches,
    })
}

/// Returns the bytes of a buffer. Only `bytes` are not copied: the owner of another buffer may
/// write to it while the GIL is released.
fn payload<'a>(data: &'a Bound<'_, PyAny>) -> PyResult<Cow<'a, [u8]>> {
    match data.cast::<PyBytes>() {
        Ok(bytes) => Ok(Cow::Borrowed(bytes.as_bytes())),
        Err(_) => PyBuffer::<u8>::get(data)?.to_vec(data.py()).map(Cow::Owned),
    }
}

fn frozen<'py, T, D>(array: Bound<'py, PyArray<T, D>>) -> Bound<'py, PyArray<T, D>>
where
    T: Element,
    D: ndarray::Dimension,
{
    set_readonly(array.as_untyped());
    array
}

/// The exponent bits of a NaN. A conversion would turn a signalling NaN into a quiet one, and the
/// run would not be written with the same bytes.
const NAN_32: u32 = 0xFF << 23;
const NAN_64: u64 = 0x7FF << 52;

fn widened(value: f32) -> f64 {
    if !value.is_nan() {
        return f64::from(value);
    }
    let bits = value.to_bits();
    let sign = u64::from(bits >> 31) << 63;
    f64::from_bits(sign | NAN_64 | u64::from(bits & 0x7F_FFFF) << 29)
}

fn narrowed(value: f64) -> f32 {
    let bits = value.to_bits();
    let mantissa = (bits >> 29) as u32 & 0x7F_FFFF;
    if !value.is_nan() || mantissa == 0 {
        return value as f32;
    }
    f32::from_bits(((bits >> 63) as u32) << 31 | NAN_32 | mantissa)
}
