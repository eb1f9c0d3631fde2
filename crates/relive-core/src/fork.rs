//! Detects that a process was forked.
//!
//! A forked child has a copy of every object of its parent, but none of its threads, and a lock
//! that another thread held stays locked for ever. So an object with threads, locks or files
//! remembers the process that made it.

use std::process;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use crate::{Error, Result};

/// Forks between the process that loaded this library and this one.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Whether forks are counted.
static COUNTED: AtomicBool = AtomicBool::new(false);

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The process that made an object.
///
/// A check costs two loads; asking the system for the process id is a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnerProcess {
    forks: u64,
    id: u32,
}

impl OwnerProcess {
    /// Returns this process.
    pub fn current() -> Self {
        // Two threads may both register the handler. Forks then count twice, which does no harm.
        if !COUNTED.load(Ordering::Acquire) {
            // SAFETY: the handler only adds to an atomic, which is allowed at any time.
            let code = unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
            COUNTED.store(code == 0, Ordering::Release);
        }
        Self { forks: FORKS.load(Ordering::Relaxed), id: process::id() }
    }

    /// Returns a process that is not this one.
    #[cfg(test)]
    pub(crate) fn other() -> Self {
        Self { forks: u64::MAX, id: 0 }
    }

    /// Returns whether this process made the object.
    pub fn is_current(&self) -> bool {
        self.forks == FORKS.load(Ordering::Relaxed)
            && (COUNTED.load(Ordering::Relaxed) || self.id == process::id())
    }

    /// Refuses to use `what` in a forked child of the process that made it.
    pub fn check(&self, what: &str) -> Result<()> {
        if self.is_current() {
            return Ok(());
        }
        Err(Error::Closed(format!(
            "{what} was opened before a fork and belongs to the parent process: open it again in \
             this process"
        )))
    }
}

/// A value that each process makes for itself, and never drops.
pub struct PerProcess<T: 'static>(AtomicPtr<(OwnerProcess, T)>);

impl<T: Sync> PerProcess<T> {
    /// Starts without a value.
    pub const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Returns the value of this process, and makes it at the first call.
    pub fn get(&'static self, make: impl Fn() -> T) -> &'static T {
        loop {
            let current = self.0.load(Ordering::Acquire);
            // SAFETY: the pointer is null or was leaked below, so it stays valid.
            if let Some((owner, value)) = unsafe { current.as_ref() }
                && owner.is_current()
            {
                return value;
            }
            let fresh = Box::into_raw(Box::new((OwnerProcess::current(), make())));
            let swapped =
                self.0.compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Acquire);
            if swapped.is_err() {
                // SAFETY: `fresh` was made above and no other thread has seen it.
                drop(unsafe { Box::from_raw(fresh) });
            }
        }
    }
}

impl<T: Sync> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// A value that each process makes for itself, and that is dropped with its owner. The one that
/// another process made is never touched: its locks may be held by threads that do not exist here.
#[derive(Debug)]
pub struct OwnPerProcess<T>(AtomicPtr<(OwnerProcess, T)>);

impl<T: Send + Sync> OwnPerProcess<T> {
    /// Starts without a value.
    pub const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Returns the value of this process, and makes it at the first call.
    pub fn get(&self, make: impl Fn() -> T) -> &T {
        loop {
            let current = self.0.load(Ordering::Acquire);
            // SAFETY: the pointer is null or was made below; only another process replaces a value,
            // and this one drops it with `self`, so it outlives the borrow.
            if let Some((owner, value)) = unsafe { current.as_ref() }
                && owner.is_current()
            {
                return value;
            }
            let fresh = Box::into_raw(Box::new((OwnerProcess::current(), make())));
            let swapped =
                self.0.compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Acquire);
            if swapped.is_err() {
                // SAFETY: `fresh` was made above and no other thread has seen it.
                drop(unsafe { Box::from_raw(fresh) });
            }
        }
    }
}

impl<T: Send + Sync> Default for OwnPerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for OwnPerProcess<T> {
    fn drop(&mut self) {
        let current = *self.0.get_mut();
        // SAFETY: the pointer is null or was made by `get`, and nothing borrows the value any more.
        let is_own = unsafe { current.as_ref() }.is_some_and(|(owner, _)| owner.is_current());
        if is_own {
            // SAFETY: as above; the value of another process is left alone.
            drop(unsafe { Box::from_raw(current) });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_forked_child_is_another_process() {
        static NUMBER: PerProcess<u32> = PerProcess::new();
        let owner = OwnerProcess::current();
        let parent = *NUMBER.get(process::id);
        assert!(owner.check("the store").is_ok());
        // SAFETY: the child only reads atomics and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let forked = !owner.is_current() && owner.check("the store").is_err();
            // SAFETY: exits without running anything of the parent's.
            unsafe { libc::_exit(i32::from(!forked)) };
        }
        let mut status = 1;
        // SAFETY: waits for the child made above, and writes to the one number passed.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(owner.is_current());
        assert_eq!(*NUMBER.get(|| 0), parent);
    }

    #[test]
    fn a_value_of_another_process_is_neither_used_nor_dropped() {
        let of = |owner, value: &Arc<()>| {
            let pair = Box::into_raw(Box::new((owner, Arc::clone(value))));
            OwnPerProcess(AtomicPtr::new(pair))
        };
        let (foreign, own) = (Arc::new(()), Arc::new(()));
        let inherited = of(OwnerProcess::other(), &foreign);
        assert!(Arc::ptr_eq(inherited.get(|| Arc::clone(&own)), &own));
        assert!(Arc::ptr_eq(inherited.get(|| Arc::clone(&foreign)), &own));
        drop(inherited);
        assert_eq!((Arc::strong_count(&foreign), Arc::strong_count(&own)), (2, 1));
        drop(of(OwnerProcess::other(), &foreign));
        assert_eq!(Arc::strong_count(&foreign), 3);
    }
}
