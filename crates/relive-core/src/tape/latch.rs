//! The first failure, which whoever comes later is answered with.

use std::io;

use crate::{Error, Result};

/// Whether, and why, nothing more can be done.
#[derive(Debug, Default)]
pub struct Latch(Option<Error>);

impl Latch {
    /// The failure again, once there was one.
    pub fn check(&self) -> Result<()> {
        match &self.0 {
            None => Ok(()),
            Some(error) => Err(again(error)),
        }
    }

    /// Whether there was one.
    pub fn is_set(&self) -> bool {
        self.0.is_some()
    }

    /// Keeps a failure, if it is the first.
    pub fn keep(&mut self, error: Error) {
        self.0.get_or_insert(error);
    }
}

fn again(error: &Error) -> Error {
    match error {
        Error::Invalid(text) => Error::Invalid(text.clone()),
        Error::OutOfRange(text) => Error::OutOfRange(text.clone()),
        Error::Corrupt(text) => Error::Corrupt(text.clone()),
        Error::Unsupported(text) => Error::Unsupported(text.clone()),
        Error::TooLarge(text) => Error::TooLarge(text.clone()),
        Error::Closed(text) => Error::Closed(text.clone()),
        Error::Locked(text) => Error::Locked(text.clone()),
        Error::Io(error) => Error::Io(io::Error::new(error.kind(), error.to_string())),
    }
}
