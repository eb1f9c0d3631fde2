//! Checks the values of a store.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::open::{ReadOptions, Records};
use super::snapshot::Snapshot;
use super::state::Kind;
use crate::pack::Level;
use crate::{Error, Result, pool};

/// The most problems that are listed: one damaged block affects many rows.
const MAX_PROBLEMS: usize = 1000;

/// The most problems that are kept before equal ones are merged.
const LISTED: usize = 1 << 20;

/// Rows that are read for a sample.
const SAMPLE: u64 = 1000;

/// Rows that each thread reads before progress is reported.
const PART: u64 = 256;

/// A problem of a store.
#[derive(Clone, Debug)]
pub struct Problem {
    /// The field, if it concerns one.
    pub field: Option<String>,
    /// The row, if it concerns one.
    pub row: Option<u64>,
    /// The kind of error that reading returns.
    pub kind: &'static str,
    /// The message.
    pub message: String,
}

/// The result of a check.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Records that were read.
    pub records: u64,
    /// The problems, at most a thousand.
    pub problems: Vec<Problem>,
}

/// Checks the store at `path` and reports its problems. `progress` is called with the number of
/// records read and of all; its error stops the check.
pub fn validate(
    path: &Path,
    level: Level,
    options: ReadOptions,
    threads: usize,
    progress: &mut dyn FnMut(u64, u64) -> Result<()>,
) -> Result<Report> {
    let records = match Records::open(path, options, None) {
        Ok(records) => records,
        // There is no store to report about.
        Err(error) if error.kind() == "not-found" && !path.join("meta.json").exists() => {
            return Err(error);
        }
        Err(error) => return Ok(Report { records: 0, problems: vec![problem(None, &error)] }),
    };
    let snapshot = records.snapshot();
    let length = snapshot.len();
    let count = match level {
        Level::Index => 0,
        Level::Sample => length.min(SAMPLE),
        Level::Full => length,
    };
    // The rows of a sample are spread evenly.
    let row_at = |k: u64| (u128::from(k) * u128::from(length) / u128::from(count)) as u64;
    let problems = Mutex::new(Vec::new());
    let mut done = 0;
    progress(0, count)?;
    while done < count {
        let parts = threads.max(1) * 2;
        let next = AtomicU64::new(done);
        let end = count.min(done + parts as u64 * PART);
        pool::run(parts, threads, &|_| {
            loop {
                let first = next.fetch_add(PART / 8, Ordering::Relaxed);
                if first >= end {
                    return;
                }
                for row in first..end.min(first + PART / 8) {
                    check_row(&snapshot, row_at(row), &problems);
                }
            }
        });
        done = end;
        progress(done, count)?;
    }
    let mut problems = problems.into_inner().unwrap_or_else(PoisonError::into_inner);
    problems.sort_by(|a: &Problem, b: &Problem| (a.row, &a.field).cmp(&(b.row, &b.field)));
    let mut problems = merged(problems);
    if matches!(level, Level::Full) {
        for (path, error) in snapshot.check_all(&mut || progress(count, count))? {
            let path = path.display().to_string();
            if !problems.iter().any(|known| known.message.contains(&path)) {
                problems.push(problem(None, &error));
            }
        }
    }
    problems.truncate(MAX_PROBLEMS);
    Ok(Report { records: count, problems })
}

/// Merges problems of a field with the same cause: rows of one damaged block.
fn merged(problems: Vec<Problem>) -> Vec<Problem> {
    let mut known: HashMap<(Option<String>, String), (usize, u64)> = HashMap::new();
    let mut merged: Vec<Problem> = Vec::new();
    for problem in problems {
        // The message starts with the row, then follows the cause.
        let cause = problem.message.split_once(": ").map_or("", |(_, cause)| cause).to_string();
        let next = (merged.len(), 0);
        let (at, more) = known.entry((problem.field.clone(), cause)).or_insert(next);
        if *at == merged.len() {
            merged.push(problem);
        } else {
            *more += 1;
        }
    }
    for (at, more) in known.into_values().filter(|(_, more)| *more > 0) {
        merged[at].message.push_str(&format!(" (and in {more} more of the rows that were read)"));
    }
    merged
}

fn check_row(snapshot: &Snapshot, row: u64, problems: &Mutex<Vec<Problem>>) {
    for (column, field) in snapshot.state().fields.iter().enumerate() {
        let name = &field.spec.name;
        let checked = snapshot.value(column, row).and_then(|value| {
            let bytes = value.unwrap_or_default();
            let wrong = match field.spec.kind {
                Kind::Str => std::str::from_utf8(&bytes).err().map(|error| error.to_string()),
                Kind::Json if !bytes.is_empty() => {
                    let parsed = serde_json::from_slice::<serde::de::IgnoredAny>(&bytes);
                    parsed.err().map(|error| error.to_string())
                }
                _ => None,
            };
            let text = |text| format!("field {name:?}, row {row}: {text}");
            wrong.map_or(Ok(()), |wrong| Err(Error::Corrupt(text(wrong))))
        });
        if let Err(error) = checked {
            let mut problems = problems.lock().unwrap_or_else(PoisonError::into_inner);
            if problems.len() < LISTED {
                problems.push(problem(Some((name, row)), &error));
            }
        }
    }
}

fn problem(place: Option<(&String, u64)>, error: &Error) -> Problem {
    Problem {
        field: place.map(|(field, _)| field.clone()),
        row: place.map(|(_, row)| row),
        kind: error.kind(),
        message: error.to_string(),
    }
}
