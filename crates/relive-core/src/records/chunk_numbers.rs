//! The numbers of chunks, given out where the store still is.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{Error, Result, durable};

/// Where a store is, known by its lock: others may move it, or put something in its location.
pub struct StoreLocation {
    folder: PathBuf,
    lock: PathBuf,
    known: (u64, u64),
}

impl StoreLocation {
    /// The location of a store whose lock is the open file of this name.
    pub fn new(folder: &Path, name: &str, lock: &File) -> Result<Self> {
        let known = lock.metadata().map_err(|error| durable::about(folder, &error))?;
        let known = (known.dev(), known.ino());
        Ok(Self { folder: folder.to_path_buf(), lock: folder.join(name), known })
    }

    /// Refuses to write where the store is no longer.
    pub fn check(&self) -> Result<()> {
        let named = self.lock.symlink_metadata();
        if named.is_ok_and(|named| (named.dev(), named.ino()) == self.known) {
            return Ok(());
        }
        Err(Error::Closed(format!(
            "`{}` was moved, removed or replaced while it was written",
            self.folder.display()
        )))
    }
}

/// Gives each chunk a number of its own.
pub struct ChunkNumbers {
    next: AtomicU32,
    location: Option<StoreLocation>,
}

impl ChunkNumbers {
    /// ChunkNumbers from `next` on, for as long as the store is at its location.
    pub fn new(next: u32, location: Option<StoreLocation>) -> Self {
        Self { next: AtomicU32::new(next), location }
    }

    /// Refuses to write where the store is no longer.
    pub fn check(&self) -> Result<()> {
        self.location.as_ref().map_or(Ok(()), StoreLocation::check)
    }

    /// The next number, which is nobody else's.
    pub fn take(&self) -> Result<u32> {
        self.check()?;
        self.next
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |number| number.checked_add(1))
            .map_err(|_| Error::TooLarge("the record store has used all chunk numbers".into()))
    }

    /// What the next number would be.
    pub fn next(&self) -> u32 {
        self.next.load(Ordering::Relaxed)
    }

    /// Gives out no numbers below this any more.
    pub fn raise(&self, next: u32) {
        self.next.fetch_max(next, Ordering::Relaxed);
    }
}
