//! Steps as rows of the database of a run, and the checksums of rows.

use std::borrow::Cow;

use numpy::PyArray1;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use relive_core::crc::{Crc32c, crc32c};
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
    text.push_str(&encoded(value)?);
    Ok(())
}

/// Returns a string in UTF-8, or in an encoding of text that is not Unicode.
fn encoded<'a>(value: &'a Bound<'_, PyString>) -> PyResult<Cow<'a, [u8]>> {
    if let Ok(value) = value.to_str() {
        return Ok(Cow::Borrowed(value.as_bytes()));
    }
    let encoded = value.call_method1("encode", ("utf-8", "surrogatepass"))?;
    Ok(Cow::Owned(encoded.extract()?))
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
    pub row: i64,
    /// The row of its episode in the database.
    episode: Py<PyAny>,
    /// Its number in the episode.
    step_index: i64,
    /// Its arrays.
    pub arrays: Py<StepArrays>,
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
    pub end: Option<Py<PyAny>>,
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

/// The rows of `steps` that are committed together, and their checksum.
///
/// Passing a value to SQLite needs the GIL, and an environment waits for that. So most values of a
/// row are passed as one JSON text. Those that users choose are passed as they are: SQLite does not
/// read every float and every character of JSON exactly.
#[pyclass(module = "relive._native")]
pub struct StepRows {
    run_id: Py<PyString>,
    first_row: i64,
    count: usize,
    episodes: Vec<Episode>,
    /// Rows that are not part of the values and of the checksum yet.
    rows: Vec<Row>,
    values: Py<PyList>,
    crc: Crc32c,
}

/// What was added to rows of steps.
#[pyclass(frozen, get_all, module = "relive._native")]
pub struct AddedSteps {
    /// How many steps.
    steps: usize,
    /// The row of the first of them.
    first_row: i64,
    /// Their numbers as arrays, by the name of the column.
    scalars: Py<PyDict>,
    /// The names of the fields that every one of them has; None if they differ.
    present: Option<Py<PyTuple>>,
    /// Where the groups of consecutive items of the same episode end.
    groups: Vec<usize>,
}

#[pymethods]
impl StepRows {
    /// All steps are of the run `run_id`.
    #[new]
    fn new(py: Python<'_>, run_id: Py<PyString>) -> Self {
        let mut crc = Crc32c::default();
        crc.update(b"[\"steps\"");
        let (episodes, rows) = (Vec::new(), Vec::new());
        let values = PyList::empty(py).unbind();
        Self { run_id, first_row: 0, count: 0, episodes, rows, values, crc }
    }

    fn __len__(&self) -> usize {
        self.count
    }

    /// Six values of each row: the id of its episode, its agent, its action, reward and info, and
    /// all others as JSON.
    #[getter]
    fn values(&mut self, py: Python<'_>) -> PyResult<Py<PyList>> {
        self.write(py)?;
        Ok(self.values.clone_ref(py))
    }

    /// The first row, the number of rows and the CRC-32C of the rows.
    #[getter]
    fn checksum(&mut self, py: Python<'_>) -> PyResult<(i64, usize, u32)> {
        self.write(py)?;
        let mut crc = self.crc.clone();
        crc.update(b"]");
        Ok((self.first_row, self.count, crc.value()))
    }

    /// Add the steps among items, which are steps and ends of episodes.
    fn add<'py>(&mut self, py: Python<'py>, items: Vec<Bound<'py, PyAny>>) -> PyResult<AddedSteps> {
        let mut groups = Vec::new();
        let mut scalars = ScalarColumns::default();
        let mut first: Option<&Step> = None;
        let mut last: Option<(&Step, bool, bool)> = None;
        let (mut steps, mut are_same) = (0, true);
        for (place, item) in items.iter().enumerate() {
            let step = item.cast::<Step>().ok().map(Bound::get);
            let row = match step {
                Some(step) => step.episode.bind(py).clone(),
                None => item.getattr(intern!(py, "episode"))?,
            };
            if place == 0 || self.episodes.last().is_none_or(|last| !last.row.is(&row)) {
                self.episodes.push(Episode::of(&row)?);
                groups.extend((place > 0).then_some(place));
            }
            let (Some(step), Some(episode)) = (step, self.episodes.last()) else { continue };
            let (has_frame, has_observation) = match last {
                Some((last, frame, observation)) if last.present.is(&step.present) => {
                    (frame, observation)
                }
                _ => {
                    let present = step.present.bind(py);
                    are_same &= steps == 0;
                    (
                        present.contains(intern!(py, "frames"))?,
                        present.contains(intern!(py, "observations"))?,
                    )
                }
            };
            scalars.push(step, episode.number);
            self.rows.push(Row {
                row: step.row,
                episode: self.episodes.len() - 1,
                step_index: step.step_index,
                action: step.action.clone_ref(py),
                has_action_ref: step.has_action_ref,
                // NaN is NULL, and SQLite has no -0.0.
                reward: step.reward.filter(|reward| !reward.is_nan()).map(|reward| reward + 0.0),
                terminated: step.terminated,
                truncated: step.truncated,
                has_frame,
                has_observation,
                info: step.info.as_ref().map(|info| info.clone_ref(py)),
                ts_ns: step.ts_ns,
            });
            first = first.or(Some(step));
            last = Some((step, has_frame, has_observation));
            steps += 1;
        }
        groups.extend((!items.is_empty()).then_some(items.len()));
        let first_row = first.map_or(0, |first| first.row);
        if self.count == 0 {
            self.first_row = first_row;
        }
        self.count += steps;
        Ok(AddedSteps {
            steps,
            first_row,
            scalars: scalars.into_dict(py)?.unbind(),
            present: first.filter(|_| are_same).map(|first| first.present.clone_ref(py)),
            groups,
        })
    }
}

impl StepRows {
    /// Adds the rows that were added to the values and to the checksum.
    fn write(&mut self, py: Python<'_>) -> PyResult<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let mut run = JsonText::default();
        run.push_str(self.run_id.bind(py).to_str()?.as_bytes());
        let run = String::from_utf8_lossy(run.as_bytes());
        let run = run.strip_prefix('"').and_then(|run| run.strip_suffix('"')).unwrap_or(&run);
        let mut parts = Vec::with_capacity(self.rows.len());
        for row in &self.rows {
            let episode = &self.episodes[row.episode];
            let mut action = JsonText::default();
            push_json(&mut action, row.action.bind(py))?;
            let info = row.info.as_ref().map(|info| encoded(info.bind(py))).transpose()?;
            let (id, agent) = (encoded(episode.id.bind(py))?, encoded(episode.agent.bind(py))?);
            parts.push(TextParts { id, agent, action, info });
        }
        let (rows, crc) = (&self.rows, &mut self.crc);
        let texts: Vec<String> = py.detach(|| {
            let mut text = JsonText::default();
            let write = |(row, parts): (&Row, &TextParts<'_>)| {
                text.clear();
                let json = row.write(run, parts, &mut text);
                crc.update(text.as_bytes());
                json
            };
            rows.iter().zip(&parts).map(write).collect()
        });
        drop(parts);
        let values = self.values.bind(py);
        for (row, text) in self.rows.drain(..).zip(texts) {
            let episode = &self.episodes[row.episode];
            values.append(&episode.id)?;
            values.append(&episode.agent)?;
            values.append(row.action)?;
            values.append(row.reward)?;
            values.append(row.info)?;
            values.append(text)?;
        }
        Ok(())
    }
}

/// What rows have of their episode.
struct Episode {
    row: Py<PyAny>,
    id: Py<PyString>,
    agent: Py<PyString>,
    number: i64,
}

impl Episode {
    fn of(row: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = row.py();
        let id = row.getattr(intern!(py, "episode_id"))?.cast_into()?.unbind();
        let agent = row.getattr(intern!(py, "agent_id"))?.cast_into()?.unbind();
        let number = row.getattr(intern!(py, "number"))?.extract()?;
        Ok(Self { row: row.clone().unbind(), id, agent, number })
    }
}

/// What the row of a step has.
struct Row {
    row: i64,
    /// The place of its episode.
    episode: usize,
    step_index: i64,
    action: Py<PyAny>,
    has_action_ref: bool,
    reward: Option<f64>,
    terminated: bool,
    truncated: bool,
    has_frame: bool,
    has_observation: bool,
    info: Option<Py<PyString>>,
    ts_ns: i64,
}

/// What a row has as text that is passed to SQLite as it is.
struct TextParts<'a> {
    id: Cow<'a, [u8]>,
    agent: Cow<'a, [u8]>,
    action: JsonText,
    info: Option<Cow<'a, [u8]>>,
}

impl Row {
    /// Writes the row as the checksum has it, and returns the JSON that SQLite gets. `run` is the
    /// id of the run as JSON has it between quotes.
    fn write(&self, run: &str, parts: &TextParts<'_>, text: &mut JsonText) -> String {
        let &Self { row, step_index, ts_ns, .. } = self;
        let reference = |field: &str, is_there: bool| {
            if is_there { format!("\"h5://{run}/{field}/{row}\"") } else { "null".to_owned() }
        };
        let action_ref = reference("actions", self.has_action_ref);
        let frame_ref = reference("frames", self.has_frame);
        let obs_ref = reference("observations", self.has_observation);
        let ends = format!("{},{}", u8::from(self.terminated), u8::from(self.truncated));
        let time = format!("{ts_ns},\"{}\"", replay::timestamp(ts_ns));
        text.push_raw(&format!(",[\"{run}\","));
        text.push_str(&parts.id);
        text.push_raw(&format!(",{step_index},"));
        text.push_str(&parts.agent);
        text.push_raw(&format!(",{row},"));
        text.push_json(&parts.action);
        text.push_raw(&format!(",{action_ref},"));
        match self.reward {
            Some(reward) => text.push_float(reward),
            None => text.push_raw("null"),
        }
        text.push_raw(&format!(",{ends},{frame_ref},{obs_ref},"));
        match &parts.info {
            Some(info) => text.push_str(info),
            None => text.push_raw("null"),
        }
        text.push_raw(&format!(",{time}]"));
        format!("[\"{run}\",{step_index},{row},{action_ref},{ends},{frame_ref},{obs_ref},{time}]")
    }
}

/// The numbers of steps.
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
    fn push(&mut self, step: &Step, episode: i64) {
        self.rewards.push(step.reward.unwrap_or(f64::NAN));
        self.has_reward.push(step.reward.is_some());
        self.terminated.push(step.terminated);
        self.truncated.push(step.truncated);
        self.episode.push(episode);
        self.step_index.push(step.step_index);
        self.ts_ns.push(step.ts_ns);
    }

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
