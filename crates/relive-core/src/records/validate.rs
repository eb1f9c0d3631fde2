//! A look at every value of a store.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::open::{ReadOptions, Records};
use super::snapshot::Snapshot;
use super::state::Kind;
use crate::pack::Level;
use crate::{Error, Result, pool};

/// More problems than this are not listed: a damaged block is one of many rows.
const MAX_PROBLEMS: usize = 1000;

/// More than this are not even kept until it is known which belong together.
const LISTED: usize = 1 << 20;

/// Rows that are looked at for a sample.
const SAMPLE: u64 = 1000;

/// Rows that one thread looks at before progress is told.
const PART: u64 = 256;

/// One thing that is wrong.
#[derive(Clone, Debug)]
pub struct Problem {
    /// The field it is in, if it is in one.
    pub field: Option<String>,
    /// The row it is in, if it is in one.
    pub row: Option<u64>,
    /// The kind of error that reading it gives.
    pub kind: &'static str,
    /// What is wrong.
    pub message: String,
}

/// What was looked at, and what is wrong.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Records that were read.
    pub records: u64,
    /// What is wrong, at most a thousand things.
    pub problems: Vec<Problem>,
}

/// Looks at the store at `path`. What is wrong with it is in the report; an error is one of
/// `progress`, which is told how many records were read of how many.
pub fn validate(
    path: &Path,
    level: Level,
    options: ReadOptions,
    threads: usize,
    progress: &mut dyn FnMut(u64, u64) -> Result<()>,
) -> Result<Report> {
    let records = match Records::open(path, options, None) {
        Ok(records) => records,
        // Nothing is there, so nothing is wrong with it.
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
                    look(&snapshot, row_at(row), &problems);
                }
            }
        });
        done = end;
        progress(done, count)?;
    }
    let mut problems = problems.into_inner().unwrap_or_else(PoisonError::into_inner);
    problems.sort_by(|a: &Problem, b: &Problem| (a.row, &a.field).cmp(&(b.row, &b.field)));
    let mut problems = merged(problems);
    problems.truncate(MAX_PROBLEMS);
    Ok(Report { records: count, problems })
}

/// One problem for all rows of a field of which the same is said: they are in one bad block.
fn merged(problems: Vec<Problem>) -> Vec<Problem> {
    let mut known: HashMap<(Option<String>, String), (usize, u64)> = HashMap::new();
    let mut merged: Vec<Problem> = Vec::new();
    for problem in problems {
        // The row comes first, and then what is wrong.
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

fn look(snapshot: &Snapshot, row: u64, problems: &Mutex<Vec<Problem>>) {
    for (column, field) in snapshot.state().fields.iter().enumerate() {
        let name = &field.spec.name;
        let looked = snapshot.value(column, row).and_then(|value| {
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
        if let Err(error) = looked {
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
