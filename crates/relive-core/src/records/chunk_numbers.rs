//! Assigns numbers to chunks, while the store is still at its path.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{Error, Result, durable};

/// The path of a store and the identity of its lock file: the store may be moved or replaced.
pub struct StoreLocation {
    folder: PathBuf,
    lock: PathBuf,
    known: (u64, u64),
}

impl StoreLocation {
    /// Makes the location of a store whose lock is this open file.
    pub fn new(folder: &Path, name: &str, lock: &File) -> Result<Self> {
        let known = lock.metadata().map_err(|error| durable::about(folder, &error))?;
        let known = (known.dev(), known.ino());
        Ok(Self { folder: folder.to_path_buf(), lock: folder.join(name), known })
    }

    /// Checks that the store is still at its path.
    pub fn check(&self) -> Result<()> {
        let named = self.lock.symlink_metadata();
        if named.is_ok_and(|named| (named.dev(), named.ino()) == self.known) {
            return Ok(());
        }
        Err(Error::Closed(format!(
            "`{}` was moved, removed or replaced while it was being written",
            self.folder.display()
        )))
    }
}

/// Assigns a unique number to each chunk.
pub struct ChunkNumbers {
    next: AtomicU32,
    location: Option<StoreLocation>,
}

impl ChunkNumbers {
    /// Assigns numbers from `next` on, while the store is at its location.
    pub fn new(next: u32, location: Option<StoreLocation>) -> Self {
        Self { next: AtomicU32::new(next), location }
    }

    /// Checks that the store is still at its path.
    pub fn check(&self) -> Result<()> {
        self.location.as_ref().map_or(Ok(()), StoreLocation::check)
    }

    /// Assigns the next number.
    pub fn take(&self) -> Result<u32> {
        self.check()?;
        self.next
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |number| number.checked_add(1))
            .map_err(|_| {
                Error::TooLarge(
                    "cannot add a chunk file: the record store has used all 2^32 - 1 chunk numbers"
                        .into(),
                )
            })
    }

    /// Returns the next number without assigning it.
    pub fn next(&self) -> u32 {
        self.next.load(Ordering::Relaxed)
    }

    /// Assigns no more numbers below this.
    pub fn raise(&self, next: u32) {
        self.next.fetch_max(next, Ordering::Relaxed);
    }
}
