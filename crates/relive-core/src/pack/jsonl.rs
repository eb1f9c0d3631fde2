//! Runs as lines of JSON: made on several threads, written in order.
//!
//! Entries are taken in shards of a bounded size. A thread that has made the lines of one
//! goes on to the next, unless too many are waiting to be written, so memory does not grow
//! with the pack. The bytes are the same for any number of threads.

use std::io::Write;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::reader::PackReader;
use super::sections::kind_name;
use crate::runs::{Boards, write_run_line, write_step_lines};
use crate::{Error, Result, pool};

/// Bytes of payload in a shard, unless one entry has more. Lines have up to ten times as many.
const SHARD_BYTES: u64 = 128 * 1024;

/// Entries in a shard, however small they are.
const SHARD_ENTRIES: usize = 1024;

/// Shards that are made or wait to be written, for each thread.
const WAITING_PER_THREAD: usize = 4;

/// Shards between two calls of the user's function, for each thread: some tenth of a second.
const STAGE_PER_THREAD: usize = 64;

/// A buffer that one long run has made larger than this is given back.
const KEEP_BYTES: usize = 2 << 20;

/// What a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granularity {
    /// A run.
    Runs,
    /// A step of a run.
    Steps,
}

/// How runs are written.
#[derive(Clone, Copy, Debug)]
pub struct JsonlOptions {
    /// What a line is.
    pub granularity: Granularity,
    /// Whether the line of a run has its boards and moves.
    pub with_lists: bool,
    /// How boards are written.
    pub boards: Boards,
    /// How many threads to use.
    pub threads: usize,
    /// Whether entries that cannot be written are counted instead of ending the work.
    pub skip_errors: bool,
}

/// Writes the entries at `rows`, each the position of a pack and of an entry in it, in this
/// order; `run_idx` is the position in `rows`. Returns how many were skipped.
///
/// `progress` is told from time to time how many entries are done, and ends the work by
/// failing. The error is that of the first entry that has one; an entry that is no run is
/// `Unsupported`. Errors of the system and of `out` are never skipped.
pub fn write_jsonl(
    packs: &[Arc<PackReader>],
    rows: &[(u32, u64)],
    options: &JsonlOptions,
    out: &mut (dyn Write + Send),
    progress: &dyn Fn(u64) -> Result<()>,
) -> Result<u64> {
    let job = Job { packs, rows, options };
    let threads = options.threads.clamp(1, pool::MAX_THREADS);
    let out = Mutex::new(out);
    let mut free = Vec::new();
    let (mut start, mut skipped) = (0, 0);
    while start < rows.len() {
        let mut shards = Vec::new();
        while shards.len() < threads * STAGE_PER_THREAD && start < rows.len() {
            shards.push(job.cut(start)?);
            start = shards.last().map_or(start, |shard: &Range<usize>| shard.end);
        }
        let stage = Stage {
            job: &job,
            shards: &shards,
            out: &out,
            most: threads * WAITING_PER_THREAD,
            state: Mutex::new(State { free, ..State::new(shards.len()) }),
            moved: Condvar::new(),
        };
        pool::run(shards.len(), threads, &|shard| stage.make(shard));
        let state = stage.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        state.failure.map_or(Ok(()), Err)?;
        skipped += state.skipped;
        free = state.free;
        progress(start as u64)?;
    }
    Ok(skipped)
}

/// Some shards on their way through the threads.
struct Stage<'a, 'o> {
    job: &'a Job<'a>,
    shards: &'a [Range<usize>],
    out: &'a Mutex<&'o mut (dyn Write + Send)>,
    /// How far a thread may be ahead of what is written.
    most: usize,
    state: Mutex<State>,
    /// Something was written, or the work has ended.
    moved: Condvar,
}

struct State {
    /// Shards whose lines are there, at their positions, with the number of entries skipped.
    made: Vec<Option<(Vec<u8>, Result<u64>)>>,
    written: usize,
    /// Whether a thread is writing; it goes on for as long as there is something to write.
    writing: bool,
    skipped: u64,
    /// The first error, in the order of the entries.
    failure: Option<Error>,
    /// Whether the rest is of no use.
    ended: bool,
    /// Buffers to be used again.
    free: Vec<Vec<u8>>,
}

impl State {
    fn new(shards: usize) -> Self {
        Self {
            made: (0..shards).map(|_| None).collect(),
            written: 0,
            writing: false,
            skipped: 0,
            failure: None,
            ended: false,
            free: Vec::new(),
        }
    }
}

impl Stage<'_, '_> {
    /// Makes the lines of one shard, and writes what there is to write. Shards are claimed in
    /// order, so the first one that is not written never waits for another.
    fn make(&self, shard: usize) {
        let _ends_a_panic = Watch(self);
        let mut state = self.lock();
        while !state.ended && shard >= state.written + self.most {
            state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.ended {
            return;
        }
        let mut lines = state.free.pop().unwrap_or_default();
        drop(state);
        let outcome = self.job.fill(self.shards[shard].clone(), &mut lines);
        let mut state = self.lock();
        state.made[shard] = Some((lines, outcome));
        if !state.writing {
            state.writing = true;
            self.write(state);
        }
    }

    /// Writes all shards from the first one on that is not written, up to a gap.
    fn write<'a>(&'a self, mut state: MutexGuard<'a, State>) {
        while !state.ended {
            let next = state.written;
            let Some((mut lines, outcome)) = state.made.get_mut(next).and_then(Option::take) else {
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
            self.moved.notify_all();
        }
        state.writing = false;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets nobody wait for a thread that panicked.
struct Watch<'a, 'b, 'o>(&'a Stage<'b, 'o>);

impl Drop for Watch<'_, '_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().ended = true;
            self.0.moved.notify_all();
        }
    }
}

struct Job<'a> {
    packs: &'a [Arc<PackReader>],
    rows: &'a [(u32, u64)],
    options: &'a JsonlOptions,
}

impl Job<'_> {
    fn pack(&self, pack: u32) -> Result<&PackReader> {
        self.packs.get(pack as usize).map(|pack| &**pack).ok_or_else(|| {
            Error::OutOfRange(format!("there is no pack {pack} among {}", self.packs.len()))
        })
    }

    /// The shard that begins at `start`, which is not the end.
    fn cut(&self, start: usize) -> Result<Range<usize>> {
        let (mut end, mut bytes) = (start, 0_u64);
        for &(pack, entry) in self.rows[start..].iter().take(SHARD_ENTRIES) {
            bytes = bytes.saturating_add(self.pack(pack)?.entry(entry)?.payload_bytes());
            if bytes > SHARD_BYTES && end > start {
                break;
            }
            end += 1;
        }
        Ok(start..end)
    }

    /// Puts the lines of the entries behind what is in `lines`; how many were skipped.
    fn fill(&self, range: Range<usize>, lines: &mut Vec<u8>) -> Result<u64> {
        let (mut run_idx, mut skipped) = (range.start as u64, 0);
        for group in self.rows[range].chunk_by(|a, b| a.0 == b.0) {
            let pack = self.pack(group[0].0)?;
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

/// Whether an error lies in the entry, and not in what surrounds it.
fn is_of_entry(error: &Error) -> bool {
    match error {
        Error::Invalid(_) | Error::Corrupt(_) | Error::Unsupported(_) | Error::TooLarge(_) => true,
        Error::OutOfRange(_) | Error::Closed(_) | Error::Locked(_) | Error::Io(_) => false,
    }
}

#[cfg(test)]
mod tests;
