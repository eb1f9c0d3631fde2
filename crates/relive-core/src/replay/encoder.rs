//! Encodes chunks on threads of its own, while its owner goes on.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use crate::fork::OwnerProcess;
use crate::hdf5::Filters;
use crate::{Error, Result};

/// A third of the share of a processor that other threads have.
#[cfg(target_os = "linux")]
const NICENESS: libc::c_int = 5;

/// A chunk to be encoded.
#[derive(Debug)]
pub(super) struct Job {
    /// The number of its field.
    pub field: usize,
    /// Its first row.
    pub first_row: u64,
    /// How many rows it has; the others are zeros.
    pub rows: u64,
    /// Its bytes, all rows.
    pub bytes: Vec<u8>,
    /// What is done to them.
    pub filters: Filters,
    /// Bytes of an element.
    pub item_bytes: usize,
}

/// A chunk that was encoded.
#[derive(Debug)]
pub(super) struct Done {
    /// What was to be encoded.
    pub job: Job,
    /// Its bytes after the filters.
    pub data: Result<Vec<u8>>,
}

/// Threads that encode chunks, which come back in the order in which they were given.
#[derive(Debug)]
pub(super) struct Encoder {
    owner: OwnerProcess,
    jobs: Option<Sender<(u64, Job)>>,
    /// Only its owner takes from it; the lock lets other threads refer to the owner.
    results: Mutex<Receiver<(u64, Done)>>,
    ready: BTreeMap<u64, Done>,
    threads: Vec<JoinHandle<()>>,
    given: u64,
    taken: u64,
    limit: u64,
}

impl Encoder {
    /// Starts threads.
    pub(super) fn new(threads: usize) -> Result<Self> {
        let (jobs, receiver) = mpsc::channel::<(u64, Job)>();
        let (sender, results) = mpsc::channel();
        let receiver = Arc::new(Mutex::new(receiver));
        let mut started = Vec::with_capacity(threads);
        for _ in 0..threads {
            let (receiver, sender) = (Arc::clone(&receiver), sender.clone());
            let run = move || {
                give_way();
                loop {
                    let job = receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok((number, job)) = job else { break };
                    // A job that never came back would be waited for.
                    let encode = || job.filters.encode(&job.bytes, job.item_bytes);
                    let data = catch_unwind(AssertUnwindSafe(encode)).unwrap_or_else(|_| {
                        Err(Error::Io(std::io::Error::other("a thread that encodes panicked")))
                    });
                    if sender.send((number, Done { job, data })).is_err() {
                        break;
                    }
                }
            };
            let thread = thread::Builder::new().name("relive-encode".to_owned()).spawn(run);
            started.push(thread.map_err(Error::Io)?);
        }
        // A few wait, so that no thread has nothing to do; the memory of more is not worth it.
        let limit = 2 * threads as u64;
        let (ready, results) = (BTreeMap::new(), Mutex::new(results));
        Ok(Self {
            owner: OwnerProcess::current(),
            jobs: Some(jobs),
            results,
            ready,
            threads: started,
            given: 0,
            taken: 0,
            limit,
        })
    }

    /// Gives a chunk to a thread.
    pub(super) fn give(&mut self, job: Job) {
        if let Some(jobs) = &self.jobs {
            // The threads end only when the channel is closed.
            drop(jobs.send((self.given, job)));
            self.given += 1;
        }
    }

    /// Returns the next chunk if it is encoded already, or if too many wait; with `all`, waits.
    pub(super) fn take(&mut self, all: bool) -> Result<Option<Done>> {
        self.owner.check("this run")?;
        while self.taken < self.given {
            if let Some(done) = self.ready.remove(&self.taken) {
                self.taken += 1;
                return Ok(Some(done));
            }
            let is_full = self.given - self.taken > self.limit;
            let results = self.results.get_mut().unwrap_or_else(PoisonError::into_inner);
            let next = if all || is_full {
                results.recv().map_err(|_| TryRecvError::Disconnected)
            } else {
                results.try_recv()
            };
            match next {
                Ok((number, done)) => drop(self.ready.insert(number, done)),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    let text = "the threads that encode have ended";
                    return Err(Error::Io(std::io::Error::other(text)));
                }
            }
        }
        Ok(None)
    }
}

impl Drop for Encoder {
    fn drop(&mut self) {
        if !self.owner.is_current() {
            // The threads run in the parent process, and may hold the locks of the channels.
            std::mem::forget(self.jobs.take());
            self.threads.drain(..).for_each(std::mem::forget);
            let (_, unused) = mpsc::channel();
            std::mem::forget(std::mem::replace(&mut self.results, Mutex::new(unused)));
            return;
        }
        self.jobs = None;
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

/// Lets threads that have to do with an environment run before this one, which has a queue.
#[cfg(target_os = "linux")]
fn give_way() {
    // SAFETY: has no conditions. A priority that cannot be lowered stays as it is.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, libc::gettid().cast_unsigned(), NICENESS) };
}

#[cfg(not(target_os = "linux"))]
fn give_way() {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Codec;

    fn job(level: Option<i32>) -> Job {
        let filters = Filters { codec: Codec::Zstd, level, shuffle: false };
        Job { field: 0, first_row: 0, rows: 1, bytes: vec![1; 1000], filters, item_bytes: 1 }
    }

    #[test]
    fn chunks_come_back_in_their_order() {
        let mut encoder = Encoder::new(2).unwrap();
        for _ in 0..20 {
            encoder.give(job(None));
            encoder.give(job(Some(1000)));
        }
        for number in 0..40 {
            let done = encoder.take(true).unwrap().unwrap();
            assert_eq!(done.data.is_ok(), number % 2 == 0);
        }
        assert!(encoder.take(true).unwrap().is_none());
    }

    #[test]
    fn threads_of_another_process_are_not_joined() {
        let mut encoder = Encoder::new(2).unwrap();
        encoder.give(job(None));
        // SAFETY: the child uses only the encoder, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_refused = encoder.take(true).is_err();
            drop(encoder);
            // SAFETY: exits without running anything of the parent's.
            unsafe { libc::_exit(i32::from(!is_refused)) };
        }
        let mut status = 1;
        // SAFETY: waits for the child made above, and writes to the one number passed.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(encoder.take(true).unwrap().is_some());
    }
}
