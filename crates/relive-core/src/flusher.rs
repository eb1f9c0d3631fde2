//! The two background threads of a process that write and sync the files it is recording.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

use crate::fork::PerProcess;
use crate::{Error, Result};

/// The time between writes.
const TICK: Duration = Duration::from_millis(50);

/// The time between syncs.
const SYNC_TICK: Duration = Duration::from_secs(1);

/// A file with bytes that are still in memory.
pub trait Buffered: Send + Sync {
    /// Writes everything to the file, unless another thread is writing. Errors are kept.
    fn write_if_free(&self);

    /// Syncs the file, unless another thread is syncing. Errors are kept.
    fn sync_if_free(&self);
}

/// The files that this process is recording, and the threads that write and sync them.
///
/// There are two threads, since a sync may take seconds and must not delay writes.
pub struct Flusher {
    files: Mutex<Vec<Arc<dyn Buffered>>>,
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
            files: Mutex::default(),
            writer: OnceLock::new(),
            syncer: OnceLock::new(),
            hurry: AtomicBool::new(false),
        })
    }

    /// Adds a file.
    pub fn add(&'static self, file: Arc<dyn Buffered>) -> Result<()> {
        let mut files = self.lock();
        // With the lock held, so that each thread is started once.
        start(&self.writer, "relive-write", move || self.write())?;
        start(&self.syncer, "relive-sync", move || self.sync())?;
        files.push(file);
        drop(files);
        for thread in [self.writer.get(), self.syncer.get()].into_iter().flatten() {
            thread.unpark();
        }
        Ok(())
    }

    /// Removes a file.
    pub fn remove<T: Buffered>(&self, file: &Arc<T>) {
        self.lock().retain(|known| !std::ptr::addr_eq(Arc::as_ptr(known), Arc::as_ptr(file)));
    }

    /// Wakes the writing thread; never waits.
    pub fn wake(&self) {
        if !self.hurry.swap(true, Ordering::AcqRel)
            && let Some(thread) = self.writer.get()
        {
            thread.unpark();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<dyn Buffered>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) {
        let mut files = Vec::new();
        loop {
            // Cleared first: a wake-up after this may be for rows that this round does not see.
            self.hurry.store(false, Ordering::Release);
            files.extend(self.lock().iter().cloned());
            files.iter().for_each(|file: &Arc<dyn Buffered>| file.write_if_free());
            let idle = files.is_empty();
            files.clear();
            if idle {
                thread::park();
            } else {
                thread::park_timeout(TICK);
            }
        }
    }

    fn sync(&self) {
        let mut files = Vec::new();
        loop {
            files.extend(self.lock().iter().cloned());
            files.iter().for_each(|file: &Arc<dyn Buffered>| file.sync_if_free());
            let idle = files.is_empty();
            files.clear();
            if idle {
                thread::park();
            }
            // Not `park_timeout`, which each new file would interrupt.
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
