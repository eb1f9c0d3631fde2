//! Filesystem operations of crash-safe writers: appends at a known offset, locks, renames that
//! replace nothing, and synced directories.

mod growing;

use std::ffi::CString;
use std::fs::{self, File, FileType, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

pub use self::growing::{Growing, sync_all};
use crate::{Error, Result};

/// Adds the path of the file to an error of the operating system; its kind stays the same.
pub fn about(path: &Path, error: &io::Error) -> Error {
    Error::Io(io::Error::new(error.kind(), format!("`{}`: {error}", path.display())))
}

/// Returns the error for a path that already exists.
pub fn exists_already(path: &Path) -> Error {
    Error::Io(io::Error::new(
        ErrorKind::AlreadyExists,
        format!("`{}` already exists", path.display()),
    ))
}

/// Returns whether the path exists, even as a broken link.
pub fn is_taken(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// Returns a random number.
pub fn any_number() -> u64 {
    // The standard library seeds each of these from the operating system.
    RandomState::new().build_hasher().finish()
}

/// Appends bytes to a file through a buffer.
///
/// After a failed write nothing more is written: the content of the file is then known only up to
/// [`Appender::written`].
pub struct Appender {
    file: Arc<File>,
    written: u64,
    buffer: Vec<u8>,
    room: usize,
    failed: bool,
}

impl Appender {
    /// Appends to `file` from offset `start` on, with a buffer of `room` bytes.
    pub fn new(file: File, start: u64, room: usize) -> Self {
        Self { file: Arc::new(file), written: start, buffer: Vec::new(), room, failed: false }
    }

    /// Returns the offset of the next byte.
    pub fn position(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// Returns the offset up to which everything was written to the file.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Returns the bytes that are still in the buffer.
    pub fn pending(&self) -> usize {
        self.buffer.len()
    }

    /// Returns the file.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Appends bytes.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.buffer.len() + bytes.len() > self.room {
            self.flush()?;
        }
        if bytes.len() >= self.room {
            return self.write(bytes);
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    /// Appends `count` zeros.
    pub fn zeros(&mut self, mut count: u64) -> io::Result<()> {
        const ZEROS: [u8; 4096] = [0; 4096];
        while count > 0 {
            let part = count.min(ZEROS.len() as u64) as usize;
            self.append(&ZEROS[..part])?;
            count -= part as u64;
        }
        Ok(())
    }

    /// Writes everything to the file, so that it survives the end of this process.
    pub fn flush(&mut self) -> io::Result<()> {
        let buffer = std::mem::take(&mut self.buffer);
        if !buffer.is_empty() || self.failed {
            self.write(&buffer)?;
        }
        self.buffer = buffer;
        self.buffer.clear();
        Ok(())
    }

    /// Writes everything to the disk, so that it survives a power cut.
    pub fn sync(&mut self) -> io::Result<()> {
        self.flush()?;
        // A second fsync would report success for pages that the first has dropped.
        self.file.sync_data().inspect_err(|_| self.failed = true)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.failed {
            return Err(io::Error::other("cannot write: an earlier write to this file failed"));
        }
        self.file.write_all_at(bytes, self.written).inspect_err(|_| self.failed = true)?;
        self.written += bytes.len() as u64;
        Ok(())
    }
}

/// Locks an open file; false if another process, or another handle of this process, has locked
/// it. The lock is released when the last copy of the handle is closed.
pub fn try_lock(file: &File) -> io::Result<bool> {
    // SAFETY: the descriptor is open for as long as `file` is borrowed.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    if error.kind() == ErrorKind::WouldBlock { Ok(false) } else { Err(error) }
}

/// Unlocks an open file, also for copies of the handle in other processes.
pub fn unlock(file: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open for as long as `file` is borrowed.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_UN) } == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

/// Returns whether `path` is still the path of the open `file`.
pub fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(named)) = (file.metadata(), path.symlink_metadata()) else {
        return false;
    };
    (open.dev(), open.ino()) == (named.dev(), named.ino())
}

/// Checks that `path` is still the path of the open `file`: what is written to a file without a name
/// is lost when it is closed, and no other call reports that.
pub fn check_at(file: &File, path: &Path) -> Result<()> {
    if is_at(file, path) {
        return Ok(());
    }
    Err(Error::Io(io::Error::new(
        ErrorKind::NotFound,
        format!("`{}` was moved, removed or replaced while it was being written", path.display()),
    )))
}

/// Renames a finished file. An existing target is kept and the error is `AlreadyExists`, unless
/// `replace`.
pub fn publish(from: &Path, to: &Path, replace: bool) -> Result<()> {
    let moved = if replace { fs::rename(from, to) } else { rename_to_free_name(from, to) };
    moved.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => exists_already(to),
        _ => about(to, &error),
    })
}

fn rename_to_free_name(from: &Path, to: &Path) -> io::Result<()> {
    match rename_noreplace(from, to) {
        Err(error) if is_missing_call(&error) => by_link(from, to),
        done => done,
    }
}

/// Renames through a hard link, which fails as well if the target exists. On filesystems without
/// hard links the target is only checked before.
fn by_link(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Ok(()) => fs::remove_file(from),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(error),
        Err(_) if is_taken(to) => Err(ErrorKind::AlreadyExists.into()),
        Err(_) => fs::rename(from, to),
    }
}

#[cfg(target_os = "linux")]
fn rename_noreplace(from: &Path, to: &Path) -> io::Result<()> {
    let (from, to) =
        (CString::new(from.as_os_str().as_bytes())?, CString::new(to.as_os_str().as_bytes())?);
    // SAFETY: both strings end with a zero and outlive the call.
    let code = unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            libc::AT_FDCWD,
            from.as_ptr(),
            libc::AT_FDCWD,
            to.as_ptr(),
            libc::RENAME_NOREPLACE,
        )
    };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(not(target_os = "linux"))]
fn rename_noreplace(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::Error::from_raw_os_error(libc::ENOSYS))
}

fn is_missing_call(error: &io::Error) -> bool {
    // Filesystems without support return EINVAL.
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL | libc::EOPNOTSUPP))
}

/// Returns the folder that contains `path`.
pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Syncs the folder that contains `path`, so that its names survive a power cut.
pub fn sync_folder_of(path: &Path) -> Result<()> {
    let folder = folder_of(path);
    File::open(folder).and_then(|file| file.sync_all()).map_err(|error| about(folder, &error))
}

/// Sets a range of a file to zeros, as a hole if the filesystem supports holes.
pub fn clear(file: &File, range: Range<u64>) -> io::Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    match punch_hole(file, &range) {
        Err(error) if is_missing_call(&error) => write_zeros(file, range),
        done => done,
    }
}

fn write_zeros(file: &File, range: Range<u64>) -> io::Result<()> {
    let mut out = Appender::new(file.try_clone()?, range.start, 1 << 20);
    out.zeros(range.end - range.start)?;
    out.flush()
}

#[cfg(target_os = "linux")]
fn punch_hole(file: &File, range: &Range<u64>) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let (Ok(start), Ok(bytes)) =
        (libc::off64_t::try_from(range.start), libc::off64_t::try_from(range.end - range.start))
    else {
        return Err(ErrorKind::InvalidInput.into());
    };
    // SAFETY: the descriptor is open for as long as `file` is borrowed.
    let code = unsafe { libc::fallocate64(file.as_raw_fd(), mode, start, bytes) };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(not(target_os = "linux"))]
fn punch_hole(_: &File, _: &Range<u64>) -> io::Result<()> {
    Err(io::Error::from_raw_os_error(libc::ENOSYS))
}

/// Creates a file that does not exist, for reading and writing.
pub fn create_new(path: &Path) -> io::Result<File> {
    with_more_files(|| OpenOptions::new().read(true).write(true).create_new(true).open(path))
}

/// Opens an existing file for reading; see [`open_as`].
pub fn open(path: &Path) -> Result<File> {
    open_as(path, OpenOptions::new().read(true))
}

/// Opens an existing file for reading and writing; see [`open_as`].
pub fn open_rw(path: &Path) -> Result<File> {
    open_as(path, OpenOptions::new().read(true).write(true))
}

/// Opens a file whose name other users may choose to be a link elsewhere, which is `Invalid`, and
/// creates it if it does not exist; see [`open_as`].
pub fn open_lock(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    open_with(path, options.read(true).write(true).create(true), libc::O_NOFOLLOW)
}

/// Opens a file with these options; its flags are set here. What is not a file is `Invalid`: to
/// open a named pipe would wait for its other end.
fn open_as(path: &Path, options: &mut OpenOptions) -> Result<File> {
    open_with(path, options, 0)
}

fn open_with(path: &Path, options: &mut OpenOptions, flags: i32) -> Result<File> {
    options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | flags);
    match with_more_files(|| options.open(path)) {
        Ok(file) => {
            let kind = file.metadata().map_err(|error| about(path, &error))?.file_type();
            if kind.is_file() { Ok(file) } else { Err(not_a_file(path, kind)) }
        }
        // A socket, a directory that is opened for writing, or a link that is not followed.
        Err(error) => {
            let follows = flags & libc::O_NOFOLLOW == 0;
            let found = if follows { path.metadata() } else { path.symlink_metadata() };
            match found {
                Ok(found) if !found.is_file() => Err(not_a_file(path, found.file_type())),
                _ => Err(about(path, &error)),
            }
        }
    }
}

fn not_a_file(path: &Path, kind: FileType) -> Error {
    let name = match kind {
        _ if kind.is_dir() => "a directory",
        _ if kind.is_fifo() => "a named pipe",
        _ if kind.is_socket() => "a socket",
        _ if kind.is_symlink() => "a symbolic link",
        _ => "a device",
    };
    Error::Invalid(format!("`{}` is {name}, expected a file", path.display()))
}

/// Opens a file; if this process has too many open files, raises its limit and tries again.
pub fn with_more_files(open: impl Fn() -> io::Result<File>) -> io::Result<File> {
    match open() {
        Err(error) if error.raw_os_error() == Some(libc::EMFILE) && raise_file_limit() => open(),
        opened => opened,
    }
}

/// Raises the limit of open files to the hard limit; false if that is not possible.
fn raise_file_limit() -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes to the one structure that it is given.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0
        || limit.rlim_cur >= limit.rlim_max
    {
        return false;
    }
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the call reads the one structure that it is given.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) == 0 }
}

/// Removes a file, if it exists.
pub fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(about(path, &error)),
        _ => Ok(()),
    }
}

/// A temporary folder of a test.
#[cfg(test)]
pub(crate) struct Folder(std::path::PathBuf);

#[cfg(test)]
impl Folder {
    pub(crate) fn new() -> Self {
        // Memory, where there is such a folder: thousands of packs are synced in these tests.
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
        let path = parent.join(format!("relive-{:016x}", any_number()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.join(name)
    }

    /// The names in it, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let name = |item: io::Result<fs::DirEntry>| item.unwrap().file_name().into_string();
        let mut names: Vec<String> =
            fs::read_dir(&self.0).unwrap().map(|item| name(item).unwrap()).collect();
        names.sort();
        names
    }
}

#[cfg(test)]
impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_appended_lies_where_it_was_said_to() {
        let folder = Folder::new();
        let mut out = Appender::new(create_new(&folder.path("a")).unwrap(), 3, 8);
        let mut wanted = vec![0; 3];
        for piece in [&b"one"[..], b"four", b"longer than the room", b"", b"12345678", b"x"] {
            assert_eq!(out.position(), wanted.len() as u64);
            out.append(piece).unwrap();
            wanted.extend_from_slice(piece);
        }
        assert!(out.written() < out.position());
        out.zeros(5000).unwrap();
        wanted.extend([0; 5000]);
        out.sync().unwrap();
        assert_eq!(out.written(), out.position());
        assert_eq!(fs::read(folder.path("a")).unwrap(), wanted);
    }

    #[test]
    fn only_files_are_opened() {
        let folder = Folder::new();
        let (pipe, socket, link) = (folder.path("p"), folder.path("s"), folder.path("l"));
        let name = CString::new(pipe.as_os_str().as_bytes()).unwrap();
        // SAFETY: the name ends with a zero.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        std::os::unix::fs::symlink(folder.path("a"), &link).unwrap();
        let refused = |path: &Path, what: &str| {
            for error in [open(path), open_rw(path), open_lock(path)].map(|found| found.err()) {
                let error = error.unwrap();
                assert_eq!(error.kind(), "invalid");
                assert!(error.to_string().contains(what), "{error}");
            }
        };
        refused(&pipe, "is a named pipe, expected a file");
        refused(&socket, "is a socket, expected a file");
        refused(folder.path("p").parent().unwrap(), "is a directory, expected a file");
        refused(Path::new("/dev/zero"), "is a device, expected a file");
        assert_eq!(open(&link).err().unwrap().kind(), "not-found");
        create_new(&folder.path("a")).unwrap();
        assert!(open(&link).is_ok() && open_rw(&link).is_ok());
        let error = open_lock(&link).err().unwrap().to_string();
        assert!(error.contains("is a symbolic link, expected a file"), "{error}");
        assert!(open_lock(&folder.path("b")).is_ok());
    }

    #[test]
    fn nothing_is_written_after_a_failure() {
        let folder = Folder::new();
        create_new(&folder.path("a")).unwrap();
        // A handle that cannot write.
        let mut out = Appender::new(File::open(folder.path("a")).unwrap(), 0, 4);
        out.append(b"abc").unwrap();
        assert!(out.flush().is_err());
        let again = out.flush().unwrap_err().to_string();
        assert_eq!(again, "cannot write: an earlier write to this file failed");
        assert!(out.append(b"defgh").is_err());
        assert!(out.sync().is_err());
        assert_eq!(out.written(), 0);
    }

    #[test]
    fn cleared_ranges_are_zeros() {
        let folder = Folder::new();
        for clear in [clear as fn(&File, Range<u64>) -> io::Result<()>, write_zeros] {
            fs::write(folder.path("a"), [7; 20_000]).unwrap();
            let file = OpenOptions::new().write(true).open(folder.path("a")).unwrap();
            clear(&file, 100..9000).unwrap();
            clear(&file, 10_000..10_000).unwrap();
            let found = fs::read(folder.path("a")).unwrap();
            assert_eq!(found.len(), 20_000);
            for (at, byte) in found.into_iter().enumerate() {
                assert_eq!(byte, if (100..9000).contains(&at) { 0 } else { 7 }, "{at}");
            }
        }
    }

    #[test]
    fn a_lock_has_one_holder() {
        let folder = Folder::new();
        let first = create_new(&folder.path("a")).unwrap();
        let second = File::open(folder.path("a")).unwrap();
        assert!(try_lock(&first).unwrap());
        assert!(!try_lock(&second).unwrap());
        drop(first);
        assert!(try_lock(&second).unwrap());
        assert!(is_at(&second, &folder.path("a")));
        fs::rename(folder.path("a"), folder.path("b")).unwrap();
        assert!(!is_at(&second, &folder.path("a")) && is_at(&second, &folder.path("b")));
    }

    #[test]
    fn publishing_replaces_only_when_told() {
        let folder = Folder::new();
        let (from, to) = (folder.path("from"), folder.path("to"));
        for rename in [rename_to_free_name as fn(&Path, &Path) -> io::Result<()>, by_link] {
            fs::write(&from, "young").unwrap();
            rename(&from, &to).unwrap();
            assert_eq!(folder.names(), ["to"]);
            fs::write(&from, "younger").unwrap();
            assert_eq!(rename(&from, &to).unwrap_err().kind(), ErrorKind::AlreadyExists);
            assert_eq!(fs::read(&to).unwrap(), b"young");
            fs::remove_file(&to).unwrap();
        }
        fs::write(&to, "old").unwrap();
        let refused = publish(&from, &to, false).unwrap_err();
        assert_eq!(refused.to_string(), format!("`{}` already exists", to.display()));
        publish(&from, &to, true).unwrap();
        assert_eq!(fs::read(&to).unwrap(), b"younger");
        sync_folder_of(&to).unwrap();
    }
}
