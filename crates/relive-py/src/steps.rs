//! Steps as rows of the database of a run, and the checksums of rows.

use numpy::PyArray1;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use relive_core::crc::crc32c;
use relive_core::replay::{self, JsonText, float_text};

/// Return a time in nanoseconds since 1970 as ISO-8601 in UTC, with microseconds.
#[pyfunction]
pub fn timestamp(ts_ns: i64) -> String {
    replay::timestamp(ts_ns)
}

/// Return the CRC-32C of a name and values as JSON; a value of another type is its `repr`.
#[pyfunction]
pub fn json_crc(name: &str, values: &Bound<'_, PyAny>) -> PyResult<u32> {
    let mut text = JsonText::default();
    text.push_raw("[");
    text.push_str(name.as_bytes());
    for value in values.try_iter()? {
        text.push_raw(",");
        push_json(&mut text, &value?)?;
    }
    text.push_raw("]");
    Ok(crc32c(text.as_bytes()))
}

fn push_json(text: &mut JsonText, value: &Bound<'_, PyAny>) -> PyResult<()> {
    if let Ok(value) = value.cast::<PyString>() {
        return push_text(text, value);
    }
    if value.is_none() {
        text.push_raw("null");
    } else if let Ok(value) = value.cast::<PyBool>() {
        text.push_raw(if value.is_true() { "true" } else { "false" });
    } else if let Ok(value) = value.cast::<PyInt>() {
        match value.extract::<i64>() {
            Ok(value) => text.push_raw(&value.to_string()),
            Err(_) => text.push_raw(value.str()?.to_str()?),
        }
    } else if let Ok(value) = value.cast::<PyFloat>() {
        text.push_float(value.value());
    } else if value.is_instance_of::<PyTuple>() || value.is_instance_of::<PyList>() {
        text.push_raw("[");
        for (place, item) in value.try_iter()?.enumerate() {
            if place > 0 {
                text.push_raw(",");
            }
            push_json(text, &item?)?;
        }
        text.push_raw("]");
    } else {
        push_text(text, &value.repr()?)?;
    }
    Ok(())
}

fn push_text(text: &mut JsonText, value: &Bound<'_, PyString>) -> PyResult<()> {
    if let Ok(value) = value.to_str() {
        text.push_str(value.as_bytes());
    } else {
        let encoded = value.call_method1("encode", ("utf-8", "surrogatepass"))?;
        text.push_str(encoded.extract()?);
    }
    Ok(())
}

/// Return a dict as `json.dumps` does, or None unless all of it is plain: strings of ASCII that
/// need no escapes, numbers, booleans and None.
#[pyfunction]
pub fn plain_json(values: &Bound<'_, PyDict>) -> Option<String> {
    let mut text = String::with_capacity(64);
    text.push('{');
    for (key, value) in values.iter() {
        if text.len() > 1 {
            text.push_str(", ");
        }
        push_plain(&mut text, &key.cast_into_exact::<PyString>().ok()?)?;
        text.push_str(": ");
        if let Ok(value) = value.cast_exact::<PyInt>() {
            text.push_str(&value.extract::<i64>().ok()?.to_string());
        } else if let Ok(value) = value.cast_exact::<PyFloat>() {
            text.push_str(&float_text(value.value()));
        } else if let Ok(value) = value.cast_exact::<PyString>() {
            push_plain(&mut text, value)?;
        } else if let Ok(value) = value.cast_exact::<PyBool>() {
            text.push_str(if value.is_true() { "true" } else { "false" });
        } else if value.is_none() {
            text.push_str("null");
        } else {
            return None;
        }
    }
    text.push('}');
    Some(text)
}

fn push_plain(text: &mut String, value: &Bound<'_, PyString>) -> Option<()> {
    let value = value.to_str().ok()?;
    let is_plain = |byte| (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\';
    if !value.bytes().all(is_plain) {
        return None;
    }
    text.push('"');
    text.push_str(value);
    text.push('"');
    Some(())
}

/// Return the rows of steps in the database, and their scalars as arrays by the name of the column.
///
/// The names of the fields of frames, observations and actions are those of references.
#[pyfunction]
pub fn step_rows<'py>(
    run_id: &Bound<'py, PyString>,
    steps: &Bound<'py, PyList>,
) -> PyResult<(Bound<'py, PyList>, Bound<'py, PyDict>)> {
    let py = run_id.py();
    let id = run_id.to_str()?;
    let none = || py.None().into_bound(py);
    let number = |flag: bool| i64::from(flag).into_pyobject(py).map(Bound::into_any);
    let reference =
        |field: &str, row: i64| PyString::new(py, &format!("h5://{id}/{field}/{row}")).into_any();
    let mut rows: Vec<Bound<'py, PyTuple>> = Vec::with_capacity(steps.len());
    let mut columns = ScalarColumns::default();
    let mut last_present: Option<(Bound<'py, PyAny>, bool, bool)> = None;
    for step in steps.iter() {
        let episode = step.getattr(intern!(py, "episode"))?;
        let row: i64 = step.getattr(intern!(py, "row"))?.extract()?;
        let ts = step.getattr(intern!(py, "ts_ns"))?;
        let ts_ns: i64 = ts.extract()?;
        let step_index = step.getattr(intern!(py, "step_index"))?;
        let reward: Option<f64> = step.getattr(intern!(py, "reward"))?.extract()?;
        let terminated = step.getattr(intern!(py, "terminated"))?.is_truthy()?;
        let truncated = step.getattr(intern!(py, "truncated"))?.is_truthy()?;
        let present = step.getattr(intern!(py, "present"))?;
        let (has_frame, has_observation) = match &last_present {
            Some((last, frame, observation)) if last.is(&present) => (*frame, *observation),
            _ => {
                let (frame, observation) =
                    (present.contains("frames")?, present.contains("observations")?);
                last_present = Some((present, frame, observation));
                (frame, observation)
            }
        };
        let has_action_ref = step.getattr(intern!(py, "has_action_ref"))?.is_truthy()?;
        columns.rewards.push(reward.unwrap_or(f64::NAN));
        columns.has_reward.push(reward.is_some());
        columns.terminated.push(terminated);
        columns.truncated.push(truncated);
        columns.episode.push(episode.getattr(intern!(py, "number"))?.extract()?);
        columns.step_index.push(step_index.extract()?);
        columns.ts_ns.push(ts_ns);
        // NaN is NULL, and SQLite has no -0.0.
        let stored = reward.filter(|reward| !reward.is_nan()).map(|reward| reward + 0.0);
        rows.push(PyTuple::new(
            py,
            [
                run_id.clone().into_any(),
                episode.getattr(intern!(py, "episode_id"))?,
                step_index,
                episode.getattr(intern!(py, "agent_id"))?,
                row.into_pyobject(py)?.into_any(),
                step.getattr(intern!(py, "action"))?,
                if has_action_ref { reference("actions", row) } else { none() },
                stored.into_pyobject(py)?,
                number(terminated)?,
                number(truncated)?,
                if has_frame { reference("frames", row) } else { none() },
                if has_observation { reference("observations", row) } else { none() },
                step.getattr(intern!(py, "info"))?,
                ts,
                PyString::new(py, &replay::timestamp(ts_ns)).into_any(),
            ],
        )?);
    }
    Ok((PyList::new(py, rows)?, columns.into_dict(py)?))
}

/// The scalars of steps.
#[derive(Default)]
struct ScalarColumns {
    rewards: Vec<f64>,
    has_reward: Vec<bool>,
    terminated: Vec<bool>,
    truncated: Vec<bool>,
    episode: Vec<i64>,
    step_index: Vec<i64>,
    ts_ns: Vec<i64>,
}

impl ScalarColumns {
    fn into_dict(self, py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
        let made = PyDict::new(py);
        made.set_item("rewards", PyArray1::from_vec(py, self.rewards))?;
        made.set_item("terminated", PyArray1::from_vec(py, self.terminated))?;
        made.set_item("truncated", PyArray1::from_vec(py, self.truncated))?;
        made.set_item("episode", PyArray1::from_vec(py, self.episode))?;
        made.set_item("step_index", PyArray1::from_vec(py, self.step_index))?;
        made.set_item("ts_ns", PyArray1::from_vec(py, self.ts_ns))?;
        made.set_item("has_reward", PyArray1::from_vec(py, self.has_reward))?;
        Ok(made)
    }
}
