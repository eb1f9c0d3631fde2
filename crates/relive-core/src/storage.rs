//! Ranged reads of immutable files: memory map, `pread`, or a remote storage.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use memmap2::Mmap;

use crate::{Error, Result, durable};

/// The bytes of one immutable file. Implementations are thread-safe.
pub trait Storage: Send + Sync {
    /// Returns the name for messages.
    fn name(&self) -> &str;

    /// Returns the size when it was opened.
    fn len(&self) -> u64;

    /// Whether it was empty when it was opened.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the whole file if it is mapped.
    fn mapped(&self) -> Option<&[u8]>;

    /// Reads all of these ranges, in this order; a remote storage plans its requests for all of
    /// them together. Missing bytes are `Corrupt`.
    fn read(&self, ranges: &[Range<u64>]) -> Result<Vec<Vec<u8>>>;

    /// Like [`read`](Self::read), into buffers that each have the offset of their first byte.
    fn read_into(&self, buffers: &mut [(u64, &mut [u8])]) -> Result<()> {
        let end = |offset: u64, bytes: usize| offset.saturating_add(bytes as u64);
        let ranges: Vec<Range<u64>> =
            buffers.iter().map(|(offset, out)| *offset..end(*offset, out.len())).collect();
        let read = self.read(&ranges)?;
        if read.len() != buffers.len() {
            return Err(cut_short(self.name(), self.len(), self.len()));
        }
        for ((offset, out), bytes) in buffers.iter_mut().zip(read) {
            if bytes.len() != out.len() {
                return Err(cut_short(self.name(), self.len(), end(*offset, out.len())));
            }
            out.copy_from_slice(&bytes);
        }
        Ok(())
    }

    /// Checks that the file still has the size it had when it was opened.
    fn recheck(&self) -> Result<()>;
}

/// A memory-mapped file. Use [`PreadFile`] if the file may be truncated while it is read: reading
/// a map after the end of its file kills the process.
pub struct MappedFile {
    opened: Opened,
    map: Mmap,
}

impl MappedFile {
    /// Maps the file for reading.
    pub fn open(path: &Path) -> Result<Self> {
        let opened = Opened::open(path)?;
        // SAFETY: a finished pack is immutable, and changing it while it is read violates the
        // contract. Even then no unsafe code depends on its bytes: the index is a copy, so no
        // length or address is taken from the map, and payloads may be any bytes. `recheck`
        // detects a truncated file before each batch.
        let map =
            unsafe { Mmap::map(&opened.file) }.map_err(|error| about(&opened.name, &error))?;
        if map.len() as u64 != opened.len {
            return Err(resized(&opened.name, opened.len, map.len() as u64));
        }
        Ok(Self { opened, map })
    }
}

impl Storage for MappedFile {
    fn name(&self) -> &str {
        &self.opened.name
    }

    fn len(&self) -> u64 {
        self.opened.len
    }

    fn mapped(&self) -> Option<&[u8]> {
        Some(&self.map)
    }

    fn read(&self, ranges: &[Range<u64>]) -> Result<Vec<Vec<u8>>> {
        ranges.iter().map(|range| Ok(slice(self, &self.map, range)?.to_vec())).collect()
    }

    fn recheck(&self) -> Result<()> {
        self.opened.recheck()
    }
}

/// A file that is read with `pread`: slower than a map, but safe if the file is truncated.
pub struct PreadFile {
    opened: Opened,
}

impl PreadFile {
    /// Opens the file for reading.
    pub fn open(path: &Path) -> Result<Self> {
        Ok(Self { opened: Opened::open(path)? })
    }

    fn fill(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.opened.file.read_exact_at(out, offset).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                cut_short(self.name(), self.len(), offset.saturating_add(out.len() as u64))
            }
            _ => about(self.name(), &error),
        })
    }
}

impl Storage for PreadFile {
    fn name(&self) -> &str {
        &self.opened.name
    }

    fn len(&self) -> u64 {
        self.opened.len
    }

    fn mapped(&self) -> Option<&[u8]> {
        None
    }

    fn read(&self, ranges: &[Range<u64>]) -> Result<Vec<Vec<u8>>> {
        let read = |range: &Range<u64>| {
            // Checked before the buffer is allocated.
            let mut bytes = vec![0; length_of(self, range)?];
            self.fill(range.start, &mut bytes)?;
            Ok(bytes)
        };
        ranges.iter().map(read).collect()
    }

    fn read_into(&self, buffers: &mut [(u64, &mut [u8])]) -> Result<()> {
        buffers.iter_mut().try_for_each(|(offset, out)| self.fill(*offset, out))
    }

    fn recheck(&self) -> Result<()> {
        self.opened.recheck()
    }
}

/// Returns the bytes of `range` of a mapped file.
pub(crate) fn slice<'a>(
    storage: &dyn Storage,
    whole: &'a [u8],
    range: &Range<u64>,
) -> Result<&'a [u8]> {
    let start = usize::try_from(range.start).ok();
    let end = usize::try_from(range.end).ok();
    let bytes = start.zip(end).and_then(|(start, end)| whole.get(start..end));
    bytes.ok_or_else(|| cut_short(storage.name(), whole.len() as u64, range.end))
}

fn length_of(storage: &dyn Storage, range: &Range<u64>) -> Result<usize> {
    let length = range.end.checked_sub(range.start).filter(|_| range.end <= storage.len());
    length
        .and_then(|length| usize::try_from(length).ok())
        .ok_or_else(|| cut_short(storage.name(), storage.len(), range.end))
}

/// A local file, its name, and its size when it was opened.
struct Opened {
    file: File,
    name: String,
    len: u64,
}

impl Opened {
    fn open(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let file = durable::open(path)?;
        let len = file.metadata().map_err(|error| about(&name, &error))?.len();
        Ok(Self { file, name, len })
    }

    fn recheck(&self) -> Result<()> {
        let len = self.file.metadata().map_err(|error| about(&self.name, &error))?.len();
        if len == self.len { Ok(()) } else { Err(resized(&self.name, self.len, len)) }
    }
}

/// Adds the file name to an error.
fn about(name: &str, error: &io::Error) -> Error {
    Error::Io(io::Error::new(error.kind(), format!("`{name}`: {error}")))
}

fn cut_short(name: &str, len: u64, wanted: u64) -> Error {
    Error::Corrupt(format!("`{name}` is truncated: it has {len} bytes, but {wanted} are needed"))
}

fn resized(name: &str, before: u64, now: u64) -> Error {
    Error::Corrupt(format!(
        "`{name}` was changed: it had {before} bytes when it was opened and has {now} now"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::testing::Scratch;

    fn both(path: &Path) -> [Box<dyn Storage>; 2] {
        [
            Box::new(MappedFile::open(path).unwrap()) as Box<dyn Storage>,
            Box::new(PreadFile::open(path).unwrap()),
        ]
    }

    #[test]
    fn ranges_are_returned_in_order() {
        let scratch = Scratch::new(b"abcdefgh");
        for storage in both(scratch.path()) {
            let read = storage.read(&[6..8, 0..1, 3..3, 0..8]).unwrap();
            assert_eq!(read, [b"gh".as_slice(), b"a", b"", b"abcdefgh"]);
            let (mut first, mut second) = ([0; 3], [0; 2]);
            storage.read_into(&mut [(5, &mut first), (0, &mut second)]).unwrap();
            assert_eq!((&first, &second), (b"fgh", b"ab"));
        }
    }

    #[test]
    fn missing_bytes_are_refused_before_memory_is_allocated() {
        let scratch = Scratch::new(b"abcdefgh");
        for storage in both(scratch.path()) {
            #[allow(clippy::reversed_empty_ranges, reason = "a hostile range")]
            for range in [7..9, 0..u64::MAX, 6..5, u64::MAX - 1..u64::MAX] {
                let error = storage.read(std::slice::from_ref(&range)).unwrap_err();
                assert_eq!(error.kind(), "corrupt", "{range:?}");
                assert!(error.to_string().contains(storage.name()), "{error}");
            }
            let error = storage.read_into(&mut [(7, &mut [0; 2])]).unwrap_err();
            assert_eq!(error.kind(), "corrupt");
        }
    }

    #[test]
    fn a_change_of_size_is_detected() {
        let scratch = Scratch::new(b"abcdefgh");
        for storage in both(scratch.path()) {
            storage.recheck().unwrap();
            scratch.resize(4);
            let error = storage.recheck().unwrap_err();
            assert_eq!(error.kind(), "corrupt");
            assert!(error.to_string().contains("had 8 bytes"), "{error}");
            scratch.resize(8);
        }
    }

    #[test]
    fn errors_of_opening_keep_their_kind_and_name_the_file() {
        let scratch = Scratch::new(b"");
        let missing = scratch.path().join("none");
        for error in [MappedFile::open(&missing).err(), PreadFile::open(&missing).err()] {
            let error = error.unwrap();
            // A path through a file is "not a directory" to the kernel.
            assert!(["io", "not-found"].contains(&error.kind()), "{error}");
            assert!(error.to_string().contains("none"), "{error}");
        }
        let missing = scratch.path().with_extension("none");
        assert_eq!(PreadFile::open(&missing).err().unwrap().kind(), "not-found");
        let directory = scratch.path().parent().unwrap();
        assert_eq!(MappedFile::open(directory).err().unwrap().kind(), "invalid");
        assert!(both(scratch.path()).iter().all(|storage| storage.is_empty()));
    }
}
