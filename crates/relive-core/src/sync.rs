//! Locks, atomics and threads of the code that models check.
//!
//! They are those of the standard library. In models (`--cfg loom`) they are those of loom, which
//! runs a model with every order of the operations of its threads, and with every value that an
//! atomic may have. No wait of loom ends by a timeout, so a wake-up that is lost is a deadlock.

#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};
#[cfg(not(all(test, loom)))]
pub(crate) use std::thread;
use std::time::Duration;

#[cfg(all(test, loom))]
pub(crate) use self::model::*;

/// Whether this is a model: threads do not poll before they sleep, and a few bytes are a large
/// batch.
pub(crate) const IS_MODEL: bool = cfg!(all(test, loom));

/// Returns how long a thread polls before it sleeps.
pub(crate) const fn spin(micros: u64) -> Duration {
    Duration::from_micros(if IS_MODEL { 0 } else { micros })
}

#[cfg(all(test, loom))]
mod model {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};

    /// `std::sync::OnceLock`, as far as it is used. Its value is never freed.
    #[derive(Debug)]
    pub(crate) struct OnceLock<T: 'static>(Mutex<Option<&'static T>>);

    impl<T> Default for OnceLock<T> {
        fn default() -> Self {
            Self(Mutex::new(None))
        }
    }

    impl<T> OnceLock<T> {
        pub(crate) fn get(&self) -> Option<&T> {
            *self.0.lock().unwrap()
        }

        pub(crate) fn set(&self, value: T) -> Result<(), T> {
            let mut slot = self.0.lock().unwrap();
            if slot.is_some() {
                return Err(value);
            }
            *slot = Some(Box::leak(Box::new(value)));
            Ok(())
        }
    }

    pub(crate) mod thread {
        use std::io;
        use std::num::NonZero;
        use std::time::Duration;

        pub(crate) use loom::thread::{Builder, JoinHandle, Thread, current, yield_now};

        pub(crate) fn park_timeout(_: Duration) {
            loom::thread::park();
        }

        pub(crate) fn available_parallelism() -> io::Result<NonZero<usize>> {
            Ok(NonZero::<usize>::MAX)
        }
    }
}
