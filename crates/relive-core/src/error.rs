//! One error enum for the whole core; every variant has a stable kind.

use std::fmt;

/// What went wrong, with a message written for the person who reads it.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// An argument has the wrong value.
    Invalid(String),
    /// A position is outside of what it points into.
    OutOfRange(String),
    /// Stored bytes are not what their format or checksum promises.
    Corrupt(String),
    /// The bytes ask for something this version cannot do.
    Unsupported(String),
    /// A size is beyond the limit that was set for it.
    TooLarge(String),
    /// The thing was closed, or belongs to another process.
    Closed(String),
    /// Another process holds it.
    Locked(String),
    /// The operating system refused.
    Io(std::io::Error),
}

/// Shorthand used throughout the core.
pub type Result<T> = std::result::Result<T, Error>;

/// Every kind an [`Error`] can have; a kind never changes its meaning.
pub const KINDS: [&str; 11] = [
    "invalid",
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
    /// The same error, saying first what it is about. An error of the system says that itself,
    /// and may carry what somebody else raised, so it stays as it is.
    #[must_use]
    pub fn about(self, what: impl fmt::Display) -> Self {
        let name = |text: String| format!("{what}: {text}");
        match self {
            Self::Invalid(text) => Self::Invalid(name(text)),
            Self::OutOfRange(text) => Self::OutOfRange(name(text)),
            Self::Corrupt(text) => Self::Corrupt(name(text)),
            Self::Unsupported(text) => Self::Unsupported(name(text)),
            Self::TooLarge(text) => Self::TooLarge(name(text)),
            Self::Closed(text) => Self::Closed(name(text)),
            Self::Locked(text) => Self::Locked(name(text)),
            Self::Io(error) => Self::Io(error),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(text)
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
