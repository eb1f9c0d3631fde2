//! Steps as rows of the database of a run, and the checksums of rows.

use numpy::PyArray1;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use relive_core::crc::crc32c;
use relive_core::replay::{self, JsonText, float_text};

use crate::step_arrays::StepArrays;

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

/// A step that was accepted. It is made for every step, so it is not tracked by the garbage
/// collector of Python; nothing that it refers to refers to it.
#[pyclass(frozen, get_all, module = "relive._native")]
pub struct Step {
    /// Its number in the run.
    row: i64,
    /// The row of its episode in the database.
    episode: Py<PyAny>,
    /// Its number in the episode.
    step_index: i64,
    /// Its arrays.
    arrays: Py<StepArrays>,
    /// The names of the fields that it has.
    present: Py<PyTuple>,
    /// The action as the database has it.
    action: Py<PyAny>,
    /// Whether the database has a reference to the action.
    has_action_ref: bool,
    /// The reward.
    reward: Option<f64>,
    /// Whether the environment reached an end.
    terminated: bool,
    /// Whether the episode was cut off.
    truncated: bool,
    /// The info as JSON.
    info: Option<Py<PyString>>,
    /// The time in nanoseconds since 1970.
    ts_ns: i64,
    /// The end of the episode, if it ends with this step.
    end: Option<Py<PyAny>>,
    /// How many steps of the episode were dropped so far.
    dropped: i64,
    /// The return of the episode so far, with this step.
    total_reward: f64,
    /// Bytes in memory.
    nbytes: usize,
}

#[pymethods]
impl Step {
    #[new]
    #[allow(clippy::too_many_arguments, clippy::fn_params_excessive_bools, reason = "its fields")]
    fn new(
        row: i64,
        episode: Py<PyAny>,
        step_index: i64,
        arrays: Py<StepArrays>,
        present: Py<PyTuple>,
        action: Py<PyAny>,
        has_action_ref: bool,
        reward: Option<f64>,
        terminated: bool,
        truncated: bool,
        info: Option<Py<PyString>>,
        ts_ns: i64,
        end: Option<Py<PyAny>>,
        dropped: i64,
        total_reward: f64,
        nbytes: usize,
    ) -> Self {
        Self {
            row,
            episode,
            step_index,
            arrays,
            present,
            action,
            has_action_ref,
            reward,
            terminated,
            truncated,
            info,
            ts_ns,
            end,
            dropped,
            total_reward,
            nbytes,
        }
    }
}

/// Return the rows of steps in the database, and their scalars as arrays by the name of the column.
#[pyfunction]
pub fn step_rows<'py>(
    run_id: &Bound<'py, PyString>,
    steps: Vec<Bound<'py, Step>>,
) -> PyResult<(Bound<'py, PyList>, Bound<'py, PyDict>)> {
    let py = run_id.py();
    let id = run_id.to_str()?;
    let none = || py.None().into_bound(py);
    let number = |value: i64| value.into_pyobject(py).map(Bound::into_any);
    let reference =
        |field: &str, row: i64| PyString::new(py, &format!("h5://{id}/{field}/{row}")).into_any();
    let mut rows: Vec<Bound<'py, PyTuple>> = Vec::with_capacity(steps.len());
    let mut columns = ScalarColumns::default();
    let mut last_present: Option<(&Py<PyTuple>, bool, bool)> = None;
    for step in &steps {
        let step = step.get();
        let episode = step.episode.bind(py);
        let row = step.row;
        let (has_frame, has_observation) = match last_present {
            Some((last, frame, observation)) if last.is(&step.present) => (frame, observation),
            _ => {
                let present = step.present.bind(py);
                let (frame, observation) =
                    (present.contains("frames")?, present.contains("observations")?);
                last_present = Some((&step.present, frame, observation));
                (frame, observation)
            }
        };
        columns.rewards.push(step.reward.unwrap_or(f64::NAN));
        columns.has_reward.push(step.reward.is_some());
        columns.terminated.push(step.terminated);
        columns.truncated.push(step.truncated);
        columns.episode.push(episode.getattr(intern!(py, "number"))?.extract()?);
        columns.step_index.push(step.step_index);
        columns.ts_ns.push(step.ts_ns);
        // NaN is NULL, and SQLite has no -0.0.
        let reward = step.reward.filter(|reward| !reward.is_nan()).map(|reward| reward + 0.0);
        let info = step.info.as_ref().map(|info| info.bind(py).clone().into_any());
        rows.push(PyTuple::new(
            py,
            [
                run_id.clone().into_any(),
                episode.getattr(intern!(py, "episode_id"))?,
                number(step.step_index)?,
                episode.getattr(intern!(py, "agent_id"))?,
                number(row)?,
                step.action.bind(py).clone(),
                if step.has_action_ref { reference("actions", row) } else { none() },
                reward.into_pyobject(py)?,
                number(i64::from(step.terminated))?,
                number(i64::from(step.truncated))?,
                if has_frame { reference("frames", row) } else { none() },
                if has_observation { reference("observations", row) } else { none() },
                info.unwrap_or_else(none),
                number(step.ts_ns)?,
                PyString::new(py, &replay::timestamp(step.ts_ns)).into_any(),
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
