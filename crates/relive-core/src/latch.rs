//! Keeps the first error, so that every later call fails in the same way.

use std::sync::PoisonError;

use crate::sync::{Mutex, MutexGuard, OnceLock};
use crate::{Error, Result};

/// The first error of a reader or writer, if there was one. Thread-safe.
#[derive(Debug, Default)]
pub struct Latch(OnceLock<Error>);

impl Latch {
    /// Returns the first error again, if there was one.
    pub fn check(&self) -> Result<()> {
        self.0.get().map_or(Ok(()), |error| Err(error.with_message(error.to_string())))
    }

    /// Returns whether there was an error.
    pub fn is_set(&self) -> bool {
        self.0.get().is_some()
    }

    /// Keeps an error that no caller has seen yet, if it is the first.
    pub fn keep(&self, error: Error) {
        let _ = self.0.set(error);
    }
}

/// The outcome of a write.
pub trait RecordIn {
    /// Returns the outcome to the caller; the latch keeps its error if it is the first.
    #[must_use]
    fn record_in(self, latch: &Latch) -> Self;
}

impl<T> RecordIn for Result<T> {
    fn record_in(self, latch: &Latch) -> Self {
        self.inspect_err(|error| {
            latch.keep(error.with_message(format!("an earlier write failed: {error}")));
        })
    }
}

/// The error of the first part of a task that failed, in whatever order the parts were run.
#[derive(Debug, Default)]
pub struct EarliestError(Mutex<Option<(usize, Error)>>);

impl EarliestError {
    /// Keeps the error, unless an earlier part failed.
    pub fn note(&self, part: usize, error: Error) {
        let mut first = self.lock();
        if first.as_ref().is_none_or(|(other, _)| part < *other) {
            *first = Some((part, error));
        }
    }

    /// Returns whether an earlier part failed, so that this one is not needed.
    pub fn is_before(&self, part: usize) -> bool {
        self.lock().as_ref().is_some_and(|(other, _)| *other < part)
    }

    /// Takes the error, if there was one.
    pub fn take(&self) -> Option<Error> {
        self.lock().take().map(|(_, error)| error)
    }

    fn lock(&self) -> MutexGuard<'_, Option<(usize, Error)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn the_first_error_stays() {
        let latch = Latch::default();
        assert!(Ok(7).record_in(&latch).is_ok_and(|seven| seven == 7));
        assert!(latch.check().is_ok() && !latch.is_set());
        let denied = || Error::Io(io::Error::from(io::ErrorKind::PermissionDenied));
        let first = Err::<(), _>(denied()).record_in(&latch).unwrap_err();
        assert_eq!(first.to_string(), denied().to_string());
        latch.keep(Error::Invalid("second".into()));
        let again = latch.check().unwrap_err();
        assert_eq!(again.kind(), "access-denied");
        assert_eq!(again.to_string(), format!("an earlier write failed: {first}"));

        let unseen = Latch::default();
        unseen.keep(Error::Corrupt("row 3".into()));
        assert!(unseen.is_set());
        assert_eq!(unseen.check().unwrap_err().to_string(), "row 3");
    }

    #[test]
    fn the_earliest_part_wins() {
        let earliest = EarliestError::default();
        assert!(earliest.take().is_none() && !earliest.is_before(9));
        for part in [5, 2, 7] {
            earliest.note(part, Error::Invalid(part.to_string()));
        }
        assert!(earliest.is_before(3) && !earliest.is_before(2));
        assert_eq!(earliest.take().unwrap().to_string(), "2");
    }
}

/// See `prefetch/models.rs`.
#[cfg(all(test, loom))]
mod models {
    use std::sync::Arc;

    use loom::thread;

    use super::*;

    #[test]
    fn all_threads_see_the_same_first_error() {
        loom::model(|| {
            let latch = Arc::new(Latch::default());
            let failing: Vec<_> = ["a", "b"]
                .into_iter()
                .map(|name| {
                    let latch = Arc::clone(&latch);
                    thread::spawn(move || {
                        let failed = Err::<(), _>(Error::Invalid(name.into())).record_in(&latch);
                        assert_eq!(failed.unwrap_err().to_string(), name);
                        latch.check().unwrap_err().to_string()
                    })
                })
                .collect();
            let early = latch.check().err().map(|error| error.to_string());
            let seen: Vec<String> =
                failing.into_iter().map(|thread| thread.join().unwrap()).collect();
            assert_eq!(seen[0], seen[1]);
            assert!(early.is_none_or(|early| early == seen[0]));
        });
    }

    #[test]
    fn the_earliest_part_wins_in_any_order() {
        loom::model(|| {
            let earliest = Arc::new(EarliestError::default());
            let failing: Vec<_> = [2, 1]
                .into_iter()
                .map(|part: usize| {
                    let earliest = Arc::clone(&earliest);
                    thread::spawn(move || {
                        earliest.note(part, Error::Invalid(part.to_string()));
                        assert!(earliest.is_before(3));
                    })
                })
                .collect();
            // No part before the first failed one is left out.
            assert!(!earliest.is_before(1));
            failing.into_iter().for_each(|thread| thread.join().unwrap());
            assert!(earliest.is_before(2));
            assert_eq!(earliest.take().unwrap().to_string(), "1");
        });
    }
}
