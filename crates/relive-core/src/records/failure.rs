//! The first failure of a writer, which every later call is answered with.

use std::io::{self, ErrorKind};

use crate::{Error, Result};

/// Whether, and why, nothing more may be written.
#[derive(Debug, Default)]
pub struct Failure(Option<(ErrorKind, String)>);

impl Failure {
    /// The failure again, once there was one.
    pub fn check(&self) -> Result<()> {
        match &self.0 {
            None => Ok(()),
            Some((kind, text)) => {
                let text = format!("an earlier write failed: {text}");
                Err(Error::Io(io::Error::new(*kind, text)))
            }
        }
    }

    /// Keeps `outcome` if it is the first failure, and passes it on.
    pub fn keep<T>(&mut self, outcome: Result<T>) -> Result<T> {
        if let (Err(error), None) = (&outcome, &self.0) {
            let kind = match error {
                Error::Io(error) => error.kind(),
                _ => ErrorKind::Other,
            };
            self.0 = Some((kind, error.to_string()));
        }
        outcome
    }
}
