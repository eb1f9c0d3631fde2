//! Exports runs as lines of JSON: formatted on several threads, written in order.
//!
//! Entries are split into groups of bounded size. A thread that has formatted one group continues
//! with the next, unless too many are waiting to be written, so memory does not grow with the
//! pack. The output is the same for any number of threads.

use std::io::Write;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::index::groups;
use super::reader::{PackReader, pack_at};
use super::sections::kind_name;
use crate::runs::{Boards, write_run_line, write_step_lines};
use crate::{Error, Result, pool};

/// Payload bytes of a group, unless one entry has more. Lines have up to ten times as many.
const GROUP_BYTES: u64 = 128 * 1024;

/// The most entries of a group.
const GROUP_ENTRIES: usize = 1024;

/// Groups per thread that are being formatted or wait to be written.
const WAITING_PER_THREAD: usize = 4;

/// Groups per thread between two calls of `progress`: about a tenth of a second.
const STAGE_PER_THREAD: usize = 64;

/// Buffers larger than this are released.
const KEEP_BYTES: usize = 2 << 20;

/// The content of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granularity {
    /// A run.
    Runs,
    /// A step of a run.
    Steps,
}

/// Options of the export.
#[derive(Clone, Copy, Debug)]
pub struct JsonlOptions {
    /// The content of a line.
    pub granularity: Granularity,
    /// Whether the line of a run includes its boards and moves.
    pub with_lists: bool,
    /// The format of boards.
    pub boards: Boards,
    /// The number of threads.
    pub threads: usize,
    /// Whether entries with errors are skipped and counted instead of stopping the export.
    pub skip_errors: bool,
}

/// Writes the entries at `rows` (position of the pack, position of the entry) in this order;
/// `run_idx` is the position in `rows`. Returns the number of skipped entries.
///
/// `progress` is called from time to time with the number of entries done; an error stops the
/// export. The error is that of the first entry that has one; an entry that is not a run is
/// `Unsupported`. Errors of the system and of `out` are never skipped.
pub fn write_jsonl(
    packs: &[Arc<PackReader>],
    rows: &[(u32, u64)],
    options: &JsonlOptions,
    out: &mut (dyn Write + Send),
    progress: &dyn Fn(u64) -> Result<()>,
) -> Result<u64> {
    let export = Export { packs, rows, options };
    let threads = options.threads.clamp(1, pool::MAX_THREADS);
    let out = Mutex::new(out);
    let payload_bytes = |at: usize| {
        let (pack, entry) = rows[at];
        Ok(pack_at(packs, pack)?.entry(entry)?.payload_bytes())
    };
    let all = groups(rows.len(), payload_bytes, GROUP_BYTES, GROUP_ENTRIES)?;
    let (mut free, mut skipped) = (Vec::new(), 0);
    for groups in all.chunks(threads * STAGE_PER_THREAD) {
        let formatted = groups.iter().map(|_| None).collect();
        let stage = Stage {
            export: &export,
            groups,
            out: &out,
            most: threads * WAITING_PER_THREAD,
            state: Mutex::new(State { formatted, free, ..State::default() }),
            progressed: Condvar::new(),
        };
        pool::run(groups.len(), threads, &|group| stage.format(group));
        let state = stage.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        state.failure.map_or(Ok(()), Err)?;
        skipped += state.skipped;
        free = state.free;
        progress(groups.last().map_or(0, |group| group.end) as u64)?;
    }
    Ok(skipped)
}

/// Groups that are being formatted and written.
struct Stage<'a, 'o> {
    export: &'a Export<'a>,
    groups: &'a [Range<usize>],
    out: &'a Mutex<&'o mut (dyn Write + Send)>,
    /// The most groups that may be ahead of the one being written.
    most: usize,
    state: Mutex<State>,
    /// A group was written, or the export has ended.
    progressed: Condvar,
}

#[derive(Default)]
struct State {
    /// The lines of each formatted group, with the number of skipped entries.
    formatted: Vec<Option<(Vec<u8>, Result<u64>)>>,
    written: usize,
    /// Whether a thread is writing; it continues until no group is ready.
    writing: bool,
    skipped: u64,
    /// The error of the first entry that has one.
    failure: Option<Error>,
    /// Whether the export has ended early.
    ended: bool,
    /// Buffers for reuse.
    free: Vec<Vec<u8>>,
}

impl Stage<'_, '_> {
    /// Formats one group, and writes all groups that are ready. Groups are claimed in order, so
    /// the first unwritten one never waits for another.
    fn format(&self, group: usize) {
        let _guard = PanicGuard(self);
        let mut state = self.lock();
        while !state.ended && group >= state.written + self.most {
            state = self.progressed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.ended {
            return;
        }
        let mut lines = state.free.pop().unwrap_or_default();
        drop(state);
        let outcome = self.export.format(self.groups[group].clone(), &mut lines);
        let mut state = self.lock();
        state.formatted[group] = Some((lines, outcome));
        if !state.writing {
            state.writing = true;
            self.write(state);
        }
    }

    /// Writes all groups that are ready, from the first unwritten one on.
    fn write<'a>(&'a self, mut state: MutexGuard<'a, State>) {
        while !state.ended {
            let next = state.written;
            let Some((mut lines, outcome)) = state.formatted.get_mut(next).and_then(Option::take)
            else {
                break;
            };
            drop(state);
            let outcome = outcome.and_then(|skipped| {
                let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
                out.write_all(&lines)?;
                Ok(skipped)
            });
            lines.clear();
            lines.shrink_to(KEEP_BYTES);
            state = self.lock();
            match outcome {
                Ok(skipped) => state.skipped += skipped,
                Err(error) => {
                    state.failure = Some(error);
                    state.ended = true;
                }
            }
            state.written += 1;
            state.free.push(lines);
            self.progressed.notify_all();
        }
        state.writing = false;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the export if a thread panics, so that no other thread waits for it.
struct PanicGuard<'a, 'b, 'o>(&'a Stage<'b, 'o>);

impl Drop for PanicGuard<'_, '_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().ended = true;
            self.0.progressed.notify_all();
        }
    }
}

/// The entries to export.
struct Export<'a> {
    packs: &'a [Arc<PackReader>],
    rows: &'a [(u32, u64)],
    options: &'a JsonlOptions,
}

impl Export<'_> {
    /// Appends the lines of the entries to `lines`; returns the number of skipped entries.
    fn format(&self, range: Range<usize>, lines: &mut Vec<u8>) -> Result<u64> {
        let (mut run_idx, mut skipped) = (range.start as u64, 0);
        for group in self.rows[range].chunk_by(|a, b| a.0 == b.0) {
            let pack = pack_at(self.packs, group[0].0)?;
            let entries: Vec<u64> = group.iter().map(|&(_, entry)| entry).collect();
            for (&i, run) in entries.iter().zip(pack.runs(&entries, 1)?) {
                let line = run.and_then(|run| {
                    let entry = pack.entry(i)?;
                    let kind = kind_name(entry.kind).unwrap_or_default();
                    let JsonlOptions { with_lists, boards, .. } = *self.options;
                    match self.options.granularity {
                        Granularity::Runs => {
                            write_run_line(&run, run_idx, kind, with_lists, boards, lines)
                        }
                        Granularity::Steps => write_step_lines(&run, run_idx, boards, lines),
                    }
                    .map_err(|error| pack.about_entry(i, &entry, error))
                });
                match line {
                    Err(error) if !(self.options.skip_errors && is_of_entry(&error)) => {
                        return Err(error);
                    }
                    Err(_) => skipped += 1,
                    Ok(()) => {}
                }
                run_idx += 1;
            }
        }
        Ok(skipped)
    }
}

/// Whether an error is about the entry, not about the system.
fn is_of_entry(error: &Error) -> bool {
    use Error::{Closed, Io, Locked, OutOfRange};
    !matches!(error, OutOfRange(_) | Closed(_) | Locked(_) | Io(_))
}

#[cfg(test)]
mod tests;
