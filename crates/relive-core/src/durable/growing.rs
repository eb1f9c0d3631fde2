//! Files whose disk space is allocated in advance.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{about, check_at, create_new, is_missing_call};
use crate::latch::{EarliestError, Latch, RecordIn};
use crate::{Error, Result, pool};

/// A file grows by its own size, but at least by this.
const MIN_STEP: u64 = 1 << 20;

/// A file grows by its own size, but at most by this.
const MAX_STEP: u64 = 1 << 30;

/// How many files are synced at a time; more would only wait for the same disk.
const SYNC_THREADS: usize = 8;

/// A file that is written at given offsets and grows in large steps.
///
/// After a failed write or sync every further one is refused, since the content of the file is
/// not known. All errors name the file.
#[derive(Debug)]
pub struct Growing {
    path: PathBuf,
    file: File,
    size: AtomicU64,
    dirty: AtomicBool,
    failure: Latch,
}

impl Growing {
    /// Creates an empty file at a path that does not exist.
    pub fn create(path: &Path) -> Result<Self> {
        let file = create_new(path).map_err(|error| about(path, &error))?;
        let made = Self::over(path, file)?;
        // Its name and size must be synced, even if nothing is written.
        made.dirty.store(true, Ordering::Relaxed);
        Ok(made)
    }

    /// Opens an existing file, for reading and writing.
    pub fn open(path: &Path) -> Result<Self> {
        Self::over(path, super::open_rw(path)?)
    }

    /// Wraps the open file at `path`.
    pub fn over(path: &Path, file: File) -> Result<Self> {
        let size = file.metadata().map_err(|error| about(path, &error))?.len();
        Ok(Self {
            path: path.to_path_buf(),
            file,
            size: AtomicU64::new(size),
            dirty: AtomicBool::new(false),
            failure: Latch::default(),
        })
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the size of the file, including allocated space.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// Returns whether something was written since the last [`Growing::sync`].
    pub fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Relaxed)
    }

    /// Allocates space up to `end`, and in advance for more, but not beyond `most`.
    ///
    /// Allocates a smaller step if the disk has no space for the whole one. Must not be called
    /// by two threads at a time.
    pub fn reserve(&self, end: u64, most: u64) -> Result<()> {
        let size = self.size();
        if end <= size {
            return Ok(());
        }
        self.failure.check()?;
        let step = size.clamp(MIN_STEP, MAX_STEP);
        let goal = size.saturating_add(step).min(most).max(end);
        let grown = grow(
            size,
            goal,
            end,
            |target| allocate(&self.file, size, target),
            || {
                // Frees the space that the failed attempt allocated.
                self.file.set_len(size)
            },
        );
        self.dirty.store(true, Ordering::Relaxed);
        let size = self.check_written(grown)?;
        self.size.store(size, Ordering::Relaxed);
        Ok(())
    }

    /// Writes bytes at an offset. Any number of threads may call it at a time.
    pub fn write_at(&self, bytes: &[u8], at: u64) -> Result<()> {
        self.failure.check()?;
        self.check_written(self.file.write_all_at(bytes, at))?;
        self.dirty.store(true, Ordering::Release);
        self.size.fetch_max(at + bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Fills `bytes` from an offset; `Corrupt` if the file is too short.
    pub fn read_at(&self, bytes: &mut [u8], at: u64) -> Result<()> {
        self.file.read_exact_at(bytes, at).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => Error::Corrupt(format!(
                "`{}` is truncated: expected at least {} bytes",
                self.path.display(),
                at.saturating_add(bytes.len() as u64)
            )),
            _ => about(&self.path, &error),
        })
    }

    /// Syncs what was written, so that it survives a power cut; `NotFound` if the file was removed.
    pub fn sync(&self) -> Result<()> {
        self.failure.check()?;
        // Cleared first, so that bytes written meanwhile are synced by the next call.
        if self.dirty.swap(false, Ordering::AcqRel) {
            // A second fsync would report success for pages that the first has dropped.
            self.check_written(self.file.sync_data())?;
            check_at(&self.file, &self.path).record_in(&self.failure)?;
        }
        Ok(())
    }

    /// Truncates the file to `bytes` bytes; a shorter file is not changed.
    pub fn trim(&self, bytes: u64) -> Result<()> {
        if self.size() > bytes {
            self.file.set_len(bytes).map_err(|error| about(&self.path, &error))?;
            self.size.store(bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Adds the path to the error of a write, and keeps it for later calls.
    fn check_written<T>(&self, outcome: io::Result<T>) -> Result<T> {
        outcome.map_err(|error| about(&self.path, &error)).record_in(&self.failure)
    }
}

/// Syncs these files, several at a time.
///
/// All files are synced; the error is that of the first file that fails.
pub fn sync_all<F: AsRef<Growing> + Sync>(files: &[F]) -> Result<()> {
    let failure = EarliestError::default();
    pool::run(files.len(), SYNC_THREADS, &|position| {
        if let Err(error) = files[position].as_ref().sync() {
            failure.note(position, error);
        }
    });
    failure.take().map_or(Ok(()), Err)
}

/// Grows a file of `size` bytes and returns its new size: `goal`, or at least `least` if the disk
/// has no space for more.
fn grow(
    size: u64,
    goal: u64,
    least: u64,
    mut allocate: impl FnMut(u64) -> io::Result<()>,
    mut give_back: impl FnMut() -> io::Result<()>,
) -> io::Result<u64> {
    debug_assert!(size < least && least <= goal);
    let mut target = goal;
    loop {
        match allocate(target) {
            Ok(()) => return Ok(target),
            Err(error) if is_no_room(&error) => {
                give_back()?;
                if target == least {
                    return Err(error);
                }
                let ahead = (target - least) / 2;
                target = if ahead < MIN_STEP { least } else { least + ahead };
            }
            Err(error) => return Err(error),
        }
    }
}

fn is_no_room(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG))
}

/// Makes a file of `size` bytes one of `target` bytes that are on the disk.
fn allocate(file: &File, size: u64, target: u64) -> io::Result<()> {
    loop {
        match fallocate(file, size, target - size) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if is_missing_call(&error) => return file.set_len(target),
            done => return done,
        }
    }
}

#[cfg(target_os = "linux")]
fn fallocate(file: &File, start: u64, bytes: u64) -> io::Result<()> {
    let (Ok(start), Ok(bytes)) = (libc::off64_t::try_from(start), libc::off64_t::try_from(bytes))
    else {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    };
    // SAFETY: the descriptor is open for as long as `file` is borrowed.
    let code = unsafe { libc::fallocate64(file.as_raw_fd(), 0, start, bytes) };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(not(target_os = "linux"))]
fn fallocate(_: &File, _: u64, _: u64) -> io::Result<()> {
    Err(io::Error::from_raw_os_error(libc::ENOSYS))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use std::sync::Arc;

    use super::*;
    use crate::durable::Folder;

    #[test]
    fn files_grow_by_their_own_size() {
        let folder = Folder::new();
        let path = folder.path("a");
        let file = Growing::create(&path).unwrap();
        assert!(Growing::create(&path).is_err_and(|error| error.kind() == "already-exists"));
        let mut sizes = Vec::new();
        for end in [1, 1 << 20, (1 << 20) + 1, 3 << 20, 20 << 20, (20 << 20) + 1] {
            file.reserve(end, u64::MAX).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().len(), file.size());
            sizes.push(file.size() >> 20);
        }
        assert_eq!(sizes, [1, 1, 2, 4, 20, 40]);
        // The room is on the disk.
        assert!(fs::metadata(&path).unwrap().blocks() * 512 >= 40 << 20);
        file.write_at(b"abc", 5).unwrap();
        file.trim(8).unwrap();
        file.trim(100).unwrap();
        assert_eq!((fs::read(&path).unwrap(), file.size()), (b"\0\0\0\0\0abc".to_vec(), 8));
        file.reserve(9, 4096).unwrap();
        assert_eq!(file.size(), 4096);
        file.reserve(5000, 4096).unwrap();
        assert_eq!(file.size(), 5000);
    }

    #[test]
    fn a_smaller_step_is_tried_where_the_disk_is_small() {
        let full = || io::Error::from_raw_os_error(libc::ENOSPC);
        for (disk, wanted) in [(4096, Some(4096)), (100, Some(100)), (99, None)] {
            let (mut tried, mut given_back) = (Vec::new(), 0);
            let mib = 1 << 20;
            let got = grow(
                10 * mib,
                4096 * mib,
                100 * mib,
                |target| {
                    tried.push(target);
                    if target <= disk * mib { Ok(()) } else { Err(full()) }
                },
                || {
                    given_back += 1;
                    Ok(())
                },
            );
            assert_eq!(got.as_ref().ok(), wanted.map(|size| size * mib).as_ref());
            assert!(tried.is_sorted_by(|a, b| a > b) && tried.len() < 15);
            assert_eq!(given_back, tried.len() - usize::from(wanted.is_some()));
            if let Err(error) = got {
                assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
            }
        }
        let other = grow(1, 9, 5, |_| Err(ErrorKind::Other.into()), || Ok(()));
        assert!(other.is_err());
    }

    #[test]
    fn pieces_lie_one_behind_the_other() {
        let folder = Folder::new();
        let file = Growing::create(&folder.path("a")).unwrap();
        let many: Vec<Vec<u8>> = (0..40_u8).map(|i| vec![i; usize::from(i) * 100]).collect();
        let mut at = 3;
        for piece in &many {
            file.write_at(piece, at).unwrap();
            at += piece.len() as u64;
        }
        file.write_at(b"x", 0).unwrap();
        let wanted = [b"x\0\0".to_vec(), many.concat()].concat();
        assert_eq!(fs::read(folder.path("a")).unwrap(), wanted);
        assert_eq!(file.size(), wanted.len() as u64);
        let mut part = [0; 2];
        file.read_at(&mut part, 3 + 99).unwrap();
        assert_eq!(part, [1, 2]);
        let beyond = file.read_at(&mut part, file.size() - 1).unwrap_err();
        assert_eq!(beyond.kind(), "corrupt");
    }

    #[test]
    fn a_failure_sticks_and_names_the_file() {
        let folder = Folder::new();
        let path = folder.path("a");
        fs::write(&path, b"abc").unwrap();
        // A handle that cannot write.
        let file = Arc::new(Growing::over(&path, File::open(&path).unwrap()).unwrap());
        file.sync().unwrap();
        let named = path.display().to_string();
        for _ in 0..2 {
            let refused = file.write_at(b"x", 0).unwrap_err();
            assert!(refused.to_string().contains(&named), "{refused}");
        }
        assert!(file.write_at(b"x", 0).unwrap_err().to_string().contains("earlier"));
        assert!(file.reserve(10, 100).is_err());
        let fine = Arc::new(Growing::open(&path).unwrap());
        fine.write_at(b"y", 1).unwrap();
        let refused = sync_all(&[Arc::clone(&fine), file]).unwrap_err();
        assert!(refused.to_string().contains("earlier"));
        assert!(!fine.is_dirty());
        assert_eq!(fs::read(&path).unwrap(), b"ayc");
        assert!(Growing::open(&path).unwrap().reserve(10, 100).is_ok());
    }
}
