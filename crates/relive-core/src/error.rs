//! One error enum for the whole core; every variant has a stable kind.

use std::fmt;
use std::path::Path;

/// What went wrong, with a message for the user.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// An argument has the wrong value.
    Invalid(String),
    /// Another item already has the name.
    NameTaken(String),
    /// A position is outside of what it points into.
    OutOfRange(String),
    /// Stored bytes contradict their format or checksum.
    Corrupt(String),
    /// The bytes need a feature that this version does not have.
    Unsupported(String),
    /// A size exceeds its limit.
    TooLarge(String),
    /// The object was closed, or belongs to another process.
    Closed(String),
    /// Another process has it locked.
    Locked(String),
    /// The operating system reported an error.
    Io(std::io::Error),
}

/// The result of everything in the core that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// Every kind an [`Error`] can have; a kind never changes its meaning.
pub const KINDS: [&str; 12] = [
    "invalid",
    "name-taken",
    "out-of-range",
    "corrupt",
    "unsupported",
    "too-large",
    "closed",
    "locked",
    "not-found",
    "already-exists",
    "access-denied",
    "io",
];

impl Error {
    /// The stable name of this error's class, one of [`KINDS`].
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "invalid",
            Self::NameTaken(_) => "name-taken",
            Self::OutOfRange(_) => "out-of-range",
            Self::Corrupt(_) => "corrupt",
            Self::Unsupported(_) => "unsupported",
            Self::TooLarge(_) => "too-large",
            Self::Closed(_) => "closed",
            Self::Locked(_) => "locked",
            Self::Io(error) => match error.kind() {
                std::io::ErrorKind::NotFound => "not-found",
                std::io::ErrorKind::AlreadyExists => "already-exists",
                std::io::ErrorKind::PermissionDenied => "access-denied",
                _ => "io",
            },
        }
    }
}

impl Error {
    /// Returns the error for an index that is not below `len`: "index 5 is out of range for 3
    /// rows".
    pub fn out_of_range(
        index: impl fmt::Display,
        len: impl fmt::Display,
        what: &str,
        unit: &str,
    ) -> Self {
        Self::OutOfRange(format!("{what} {index} is out of range for {len} {unit}"))
    }

    /// Returns the error for a size above its limit: "a note of 5 bytes exceeds the limit of 4
    /// bytes".
    pub fn over_limit(
        size: impl fmt::Display,
        limit: impl fmt::Display,
        what: &str,
        unit: &str,
    ) -> Self {
        Self::TooLarge(format!("{what} of {size} {unit} exceeds the limit of {limit} {unit}"))
    }

    /// Puts the subject of an error before its message. Errors of the operating system already
    /// name it, and may carry an exception of Python, so they stay unchanged.
    #[must_use]
    pub fn about(self, what: impl fmt::Display) -> Self {
        match self {
            Self::Io(_) => self,
            _ => self.with_message(format!("{what}: {self}")),
        }
    }

    /// Puts the path of a file before the message, like [`about`](Self::about).
    #[must_use]
    pub fn in_file(self, path: &Path) -> Self {
        self.about(format_args!("`{}`", path.display()))
    }

    /// Returns an error of the same kind with another message.
    #[must_use]
    pub fn with_message(&self, text: String) -> Self {
        match self {
            Self::Invalid(_) => Self::Invalid(text),
            Self::NameTaken(_) => Self::NameTaken(text),
            Self::OutOfRange(_) => Self::OutOfRange(text),
            Self::Corrupt(_) => Self::Corrupt(text),
            Self::Unsupported(_) => Self::Unsupported(text),
            Self::TooLarge(_) => Self::TooLarge(text),
            Self::Closed(_) => Self::Closed(text),
            Self::Locked(_) => Self::Locked(text),
            Self::Io(error) => Self::Io(std::io::Error::new(error.kind(), text)),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(text)
            | Self::NameTaken(text)
            | Self::OutOfRange(text)
            | Self::Corrupt(text)
            | Self::Unsupported(text)
            | Self::TooLarge(text)
            | Self::Closed(text)
            | Self::Locked(text) => f.write_str(text),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;

    #[test]
    fn every_variant_has_a_listed_kind() {
        let text = String::new;
        let mut seen: Vec<&str> = vec![
            Error::Invalid(text()).kind(),
            Error::NameTaken(text()).kind(),
            Error::OutOfRange(text()).kind(),
            Error::Corrupt(text()).kind(),
            Error::Unsupported(text()).kind(),
            Error::TooLarge(text()).kind(),
            Error::Closed(text()).kind(),
            Error::Locked(text()).kind(),
        ];
        for kind in [
            ErrorKind::NotFound,
            ErrorKind::AlreadyExists,
            ErrorKind::PermissionDenied,
            ErrorKind::Other,
        ] {
            seen.push(Error::from(std::io::Error::from(kind)).kind());
        }
        assert_eq!(seen, KINDS);
    }
}
