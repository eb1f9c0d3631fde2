//! The two background threads of a process that write and sync its tapes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

use super::writer::Tape;
use crate::fork::PerProcess;
use crate::{Error, Result};

/// The time between writes.
const TICK: Duration = Duration::from_millis(50);

/// The time between syncs.
const SYNC_TICK: Duration = Duration::from_secs(1);

/// The open tapes of this process, and the threads that write and sync them.
///
/// There are two threads, since a sync may take seconds and must not delay writes.
pub struct Flusher {
    tapes: Mutex<Vec<Arc<Tape>>>,
    writer: OnceLock<Thread>,
    syncer: OnceLock<Thread>,
    /// Whether the writing thread was woken and has not started yet.
    hurry: AtomicBool,
}

impl Flusher {
    /// Returns the flusher of this process, since a forked child does not have its parent's
    /// threads.
    pub fn of_this_process() -> &'static Self {
        static CURRENT: PerProcess<Flusher> = PerProcess::new();
        CURRENT.get(|| Self {
            tapes: Mutex::default(),
            writer: OnceLock::new(),
            syncer: OnceLock::new(),
            hurry: AtomicBool::new(false),
        })
    }

    /// Adds a tape.
    pub fn add(&'static self, tape: &Arc<Tape>) -> Result<()> {
        let mut tapes = self.lock();
        // With the lock held, so that each thread is started once.
        start(&self.writer, "relive-tape", move || self.write())?;
        start(&self.syncer, "relive-sync", move || self.sync())?;
        tapes.push(Arc::clone(tape));
        drop(tapes);
        for thread in [self.writer.get(), self.syncer.get()].into_iter().flatten() {
            thread.unpark();
        }
        Ok(())
    }

    /// Removes a tape.
    pub fn remove(&self, tape: &Arc<Tape>) {
        self.lock().retain(|known| !Arc::ptr_eq(known, tape));
    }

    /// Wakes the writing thread; never waits.
    pub fn wake(&self) {
        if !self.hurry.swap(true, Ordering::AcqRel)
            && let Some(thread) = self.writer.get()
        {
            thread.unpark();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Tape>>> {
        self.tapes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) {
        let mut tapes = Vec::new();
        loop {
            // Cleared first: a wake-up after this may be for rows that this round does not see.
            self.hurry.store(false, Ordering::Release);
            tapes.extend(self.lock().iter().cloned());
            tapes.iter().for_each(|tape: &Arc<Tape>| tape.write_if_free());
            let idle = tapes.is_empty();
            tapes.clear();
            if idle {
                thread::park();
            } else {
                thread::park_timeout(TICK);
            }
        }
    }

    fn sync(&self) {
        let mut tapes = Vec::new();
        loop {
            tapes.extend(self.lock().iter().cloned());
            tapes.iter().for_each(|tape: &Arc<Tape>| tape.sync_if_free());
            let idle = tapes.is_empty();
            tapes.clear();
            if idle {
                thread::park();
            }
            // Not `park_timeout`, which each new tape would interrupt.
            thread::sleep(SYNC_TICK);
        }
    }
}

fn start(slot: &OnceLock<Thread>, name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    if slot.get().is_none() {
        let spawned = thread::Builder::new().name(name.into()).spawn(work).map_err(Error::Io)?;
        // The caller holds the lock, so no other thread sets it.
        let _ = slot.set(spawned.thread().clone());
    }
    Ok(())
}
