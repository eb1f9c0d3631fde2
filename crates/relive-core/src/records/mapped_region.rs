//! Reserved address space into which parts of files are mapped, so that mapped bytes never move.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Files are mapped in units of this size; on machines with larger pages nothing is mapped.
pub const UNIT: usize = 4096;

/// Reserved addresses. Mapped bytes are read-only and stay mapped until this is dropped.
#[derive(Debug)]
pub struct MappedRegion {
    base: *mut u8,
    reserved: usize,
}

// SAFETY: the addresses belong to the process, not to a thread; they are only read.
unsafe impl Send for MappedRegion {}
// SAFETY: as above; mapping more does not touch what is mapped already.
unsafe impl Sync for MappedRegion {}

impl MappedRegion {
    /// Reserves addresses for `bytes` bytes, rounded up to whole pages, without using memory.
    pub fn reserve(bytes: usize) -> io::Result<Self> {
        let reserved = bytes.max(1).checked_next_multiple_of(UNIT);
        let reserved = reserved.filter(|&bytes| isize::try_from(bytes).is_ok());
        let reserved = reserved.ok_or(io::ErrorKind::OutOfMemory)?;
        #[cfg(target_os = "linux")]
        let more = libc::MAP_NORESERVE;
        #[cfg(not(target_os = "linux"))]
        let more = 0;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | more;
        // SAFETY: the kernel picks addresses that nothing else has.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), reserved, libc::PROT_NONE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { base: base.cast(), reserved })
    }

    /// Maps `bytes` bytes of the file from `offset` on to the address `at`. All three are multiples
    /// of [`UNIT`], and nothing is mapped there yet.
    pub fn map(&self, at: usize, file: &File, offset: u64, bytes: usize) -> io::Result<()> {
        let end = at.checked_add(bytes).filter(|&end| end <= self.reserved);
        let fits = end.is_some()
            && (at | bytes).is_multiple_of(UNIT)
            && offset.is_multiple_of(UNIT as u64);
        let offset = libc::off_t::try_from(offset).ok().filter(|_| fits);
        let offset = offset.ok_or(io::ErrorKind::InvalidInput)?;
        if bytes == 0 {
            return Ok(());
        }
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: the addresses are inside the reservation, and no reference to them exists yet.
        let found = unsafe {
            let place = self.base.add(at).cast();
            libc::mmap(place, bytes, libc::PROT_READ, flags, file.as_raw_fd(), offset)
        };
        if found == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Returns the number of reserved addresses.
    pub fn reserved(&self) -> usize {
        self.reserved
    }

    /// Returns the first address.
    pub fn base(&self) -> *const u8 {
        self.base
    }

    /// Returns the bytes from `at` on.
    ///
    /// # Safety
    /// They are mapped, the file has them, and no process changes them.
    pub unsafe fn bytes(&self, at: usize, bytes: usize) -> &[u8] {
        debug_assert!(at + bytes <= self.reserved);
        // SAFETY: passed on from the caller.
        unsafe { std::slice::from_raw_parts(self.base.add(at), bytes) }
    }
}

impl Drop for MappedRegion {
    fn drop(&mut self) {
        // SAFETY: every user of the addresses keeps this object alive.
        unsafe { libc::munmap(self.base.cast(), self.reserved) };
    }
}

/// Returns whether files can be mapped on this machine.
pub fn can_map() -> bool {
    static PAGE: std::sync::OnceLock<i64> = std::sync::OnceLock::new();
    // SAFETY: the call only reads a constant of the system.
    *PAGE.get_or_init(|| unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as i64) == UNIT as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durable::Folder;
    use std::io::Write;
    use std::sync::Arc;

    #[test]
    fn what_is_mapped_stays_where_it_is() {
        let folder = Folder::new();
        let mut file = File::create_new(folder.path("a")).unwrap();
        let pages: Vec<u8> = (0..3 * UNIT).map(|i| (i / 7) as u8).collect();
        file.write_all(&pages[..UNIT + 5]).unwrap();
        let read = File::open(folder.path("a")).unwrap();
        let region = Arc::new(MappedRegion::reserve(10 * UNIT - 3).unwrap());
        assert_eq!(region.reserved(), 10 * UNIT);
        region.map(2 * UNIT, &read, UNIT as u64, UNIT).unwrap();
        // SAFETY: these bytes are in the file, and mapped.
        let first = unsafe { region.bytes(2 * UNIT, 5) };
        assert_eq!(first, &pages[UNIT..UNIT + 5]);
        file.write_all(&pages[UNIT + 5..]).unwrap();
        region.map(3 * UNIT, &read, 2 * UNIT as u64, UNIT).unwrap();
        // SAFETY: as above.
        let both = unsafe { region.bytes(2 * UNIT, 2 * UNIT) };
        assert_eq!(both, &pages[UNIT..]);
        assert_eq!((first.as_ptr(), first), (both.as_ptr(), &pages[UNIT..UNIT + 5]));
        for (at, offset, bytes) in [(1, 0, UNIT), (0, 1, UNIT), (10 * UNIT, 0, UNIT), (0, 0, 7)] {
            assert!(region.map(at, &read, offset, bytes).is_err());
        }
        assert!(MappedRegion::reserve(usize::MAX).is_err());
    }
}
