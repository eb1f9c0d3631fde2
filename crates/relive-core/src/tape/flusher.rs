//! The two threads of a process that write its tapes out, and sync them.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

use super::writer::Tape;
use crate::{Error, Result};

/// How long rows stay in memory while the disk keeps up.
const TICK: Duration = Duration::from_millis(50);

/// How long written rows may be lost to a power cut while the disk keeps up.
const SYNC_TICK: Duration = Duration::from_secs(1);

/// Counts the forks between the first process that had a tape and this one.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Which process this is, of those that were forked from one another. Costs a load, where to
/// ask for the number of the process is a call of the system.
pub fn process() -> u64 {
    FORKS.load(Ordering::Relaxed)
}

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Sees to it that forks are counted.
fn watch_forks() -> Result<()> {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if WATCHED.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    // SAFETY: the handler only adds to a number, which any thread may do at any time.
    let code = unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
    if code != 0 {
        WATCHED.store(false, Ordering::Relaxed);
        return Err(Error::Io(std::io::Error::from_raw_os_error(code)));
    }
    Ok(())
}

/// The tapes that are being written, and the threads that see to them.
///
/// Writing and syncing are two threads: a sync may take seconds, and what is written before a
/// process is killed must not depend on it.
pub struct Flusher {
    process: u64,
    tapes: Mutex<Vec<Arc<Tape>>>,
    writer: OnceLock<Thread>,
    syncer: OnceLock<Thread>,
    /// The writing thread was woken, and has not looked yet.
    hurry: AtomicBool,
}

impl Flusher {
    /// That of this process. After a fork the parent's threads are gone and its locks may be
    /// held for ever, so the child has one of its own.
    pub fn of_this_process() -> Result<&'static Self> {
        static CURRENT: AtomicPtr<Flusher> = AtomicPtr::new(ptr::null_mut());
        watch_forks()?;
        loop {
            let current = CURRENT.load(Ordering::Acquire);
            // SAFETY: the pointer is null or was leaked below, so it stays valid.
            if let Some(flusher) = unsafe { current.as_ref() }
                && flusher.process == process()
            {
                return Ok(flusher);
            }
            let fresh = Box::into_raw(Box::new(Self {
                process: process(),
                tapes: Mutex::default(),
                writer: OnceLock::new(),
                syncer: OnceLock::new(),
                hurry: AtomicBool::new(false),
            }));
            let swapped =
                CURRENT.compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Acquire);
            if swapped.is_err() {
                // SAFETY: `fresh` was made above and nobody else has seen it.
                drop(unsafe { Box::from_raw(fresh) });
            }
        }
    }

    /// Writes a tape from now on.
    pub fn adopt(&'static self, tape: &Arc<Tape>) -> Result<()> {
        let mut tapes = self.lock();
        // Under the lock, so that each is started once.
        start(&self.writer, "relive-tape", move || self.write())?;
        start(&self.syncer, "relive-sync", move || self.sync())?;
        tapes.push(Arc::clone(tape));
        drop(tapes);
        for thread in [self.writer.get(), self.syncer.get()].into_iter().flatten() {
            thread.unpark();
        }
        Ok(())
    }

    /// Lets go of a tape.
    pub fn forget(&self, tape: &Arc<Tape>) {
        self.lock().retain(|known| !Arc::ptr_eq(known, tape));
    }

    /// Has the tapes written soon; never waits.
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
            // Before looking: who wakes us from here on has rows that we may not see.
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
            // Who parks for a time may be woken sooner, by each tape that begins.
            thread::sleep(SYNC_TICK);
        }
    }
}

fn start(slot: &OnceLock<Thread>, name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    if slot.get().is_none() {
        let spawned = thread::Builder::new().name(name.into()).spawn(work).map_err(Error::Io)?;
        // Nobody else sets it while the lock is held.
        let _ = slot.set(spawned.thread().clone());
    }
    Ok(())
}
