//! Asking the disk for the rows of a batch before they are copied.
//!
//! Copying from a memory map reads one page at a time, each fault waiting for the disk and
//! dragging in whatever lies around the page, which for scattered rows is wasted. Telling
//! the kernel about exactly the rows of a batch keeps the disk's queue full and reads
//! nothing else. On warm data the telling costs more than the copying, so it is done only
//! while some of the data is seen to be missing from memory.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::sample::Plan;
use crate::table::{Place, Table};

/// For how many parts one missing page counts.
const COLD_PARTS: u32 = 64;

/// How often warm data is looked at again: the first few parts, then each of so many.
const LOOK_FIRST: u32 = 4;
const LOOK_EVERY: u32 = 16;

/// Rows whose residency is looked up.
const LOOKS: usize = 8;

/// Faults that wait for the disk, within one part, from which on data counts as cold.
const FAULTS: i64 = 2;

/// Watches for waits on the disk and advises while there are some.
#[derive(Default)]
pub struct Readahead {
    parts: AtomicU32,
    cold: AtomicU32,
    /// Windows of blocks below this were told about.
    windows: AtomicU64,
}

impl Readahead {
    /// Whether copies have been waiting for the disk.
    pub fn is_cold(&self) -> bool {
        self.cold.load(Ordering::Relaxed) > 0
    }

    /// Tells the kernel that these rows are about to be read, if some are on disk alone;
    /// then it is true.
    pub fn advise(&self, table: &Table, places: &[Place]) -> bool {
        let part = self.parts.fetch_add(1, Ordering::Relaxed);
        let cold = self.cold.load(Ordering::Relaxed);
        if cold == 0 && part >= LOOK_FIRST && !part.is_multiple_of(LOOK_EVERY) {
            return false;
        }
        if some_missing(table, places) {
            self.cold.store(COLD_PARTS, Ordering::Relaxed);
        } else if cold == 0 {
            return false;
        } else {
            self.cold.store(cold - 1, Ordering::Relaxed);
        }
        table.each_piece(places, will_need);
        true
    }

    /// Tells the kernel that a whole window of blocks will be read soon. Each window is told
    /// about once, by whoever comes first.
    pub fn advise_window(&self, plan: &Plan, tables: &[Table], number: u64) {
        let told = self.windows.load(Ordering::Relaxed);
        let claim = |from| {
            let order = Ordering::Relaxed;
            self.windows.compare_exchange(from, number + 1, order, order).is_ok()
        };
        if number < told || !claim(told) {
            return;
        }
        let (mut rows, mut places) = (Vec::new(), Vec::new());
        plan.window_rows(number, &mut rows);
        for table in tables {
            if table.find(&rows, &mut places).is_ok() {
                table.each_piece(&places, will_need);
            }
        }
    }

    /// Runs `copy` and notes whether it had to wait for the disk.
    pub fn watch<T>(&self, copy: impl FnOnce() -> T) -> T {
        let before = slow_faults();
        let outcome = copy();
        if slow_faults() - before >= FAULTS {
            self.cold.store(COLD_PARTS, Ordering::Relaxed);
        }
        outcome
    }
}

/// Whether a few rows out of these, evenly chosen, have a first page that is not in memory.
fn some_missing(table: &Table, places: &[Place]) -> bool {
    let step = places.len().div_ceil(LOOKS).max(1);
    let missing = std::cell::Cell::new(false);
    for place in places.iter().step_by(step) {
        table.each_piece(std::slice::from_ref(place), |start, bytes| {
            missing.set(missing.get() || bytes > 0 && !is_resident(start));
        });
        if missing.get() {
            return true;
        }
    }
    false
}

/// Bytes of a page: 4 KiB on most machines, up to 64 KiB on some aarch64 ones.
#[cfg(target_os = "linux")]
fn page_bytes() -> usize {
    static PAGE: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    // SAFETY: the call only reads a constant of the system.
    let ask = || usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) });
    *PAGE.get_or_init(|| ask().ok().filter(|bytes| bytes.is_power_of_two()).unwrap_or(4096))
}

/// Whether the page of this address is in memory. The kernel answers yes, too, where it does
/// not want to tell; then faults are the only sign.
fn is_resident(address: *const u8) -> bool {
    #[cfg(target_os = "linux")]
    {
        let mut page = 1_u8;
        let start = address as usize & !(page_bytes() - 1);
        // SAFETY: the call writes one byte for the one page asked about.
        let code = unsafe { libc::mincore(start as *mut libc::c_void, 1, &raw mut page) };
        code != 0 || page & 1 == 1
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = address;
        true
    }
}

/// Faults of this thread so far that had to read from disk.
fn slow_faults() -> i64 {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: an all-zero `rusage` is valid, and the call only writes to it.
        unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
            usage.ru_majflt
        }
    }
    #[cfg(not(target_os = "linux"))]
    0
}

/// Starts reading the pages of this piece of memory, where a file is behind it.
fn will_need(start: *const u8, bytes: usize) {
    #[cfg(target_os = "linux")]
    {
        let first = start as usize & !(page_bytes() - 1);
        let length = start as usize + bytes - first;
        // SAFETY: advice changes no contents; an address that cannot be advised is an
        // error we do not need.
        unsafe { libc::madvise(first as *mut libc::c_void, length, libc::MADV_WILLNEED) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, bytes);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::gather::{Owner, Rows};
    use crate::table::Column;

    const PAGE: usize = 65_536;

    #[test]
    fn memory_that_is_there_is_not_advised_about() {
        let data = Arc::new(vec![1_u8; 64 * PAGE]);
        // SAFETY: the rows own the pages they describe.
        let rows = unsafe {
            let owner = Arc::clone(&data) as Owner;
            Rows::new(data.as_ptr(), 64, PAGE as isize, &[(PAGE, 1)], 1, owner)
        };
        let table = Table::new(vec![Column::Fixed(rows.unwrap())]).unwrap();
        let mut places = Vec::new();
        table.find(&(0..64).collect::<Vec<i64>>(), &mut places).unwrap();
        let readahead = Readahead::default();
        for _ in 0..100 {
            readahead.advise(&table, &places);
        }
        assert_eq!(readahead.cold.load(Ordering::Relaxed), 0);
        readahead.cold.store(3, Ordering::Relaxed);
        for _ in 0..100 {
            readahead.advise(&table, &places);
        }
        assert_eq!(readahead.cold.load(Ordering::Relaxed), 0, "warm data is found to be warm");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn pages_that_were_never_touched_are_missing() {
        // SAFETY: an anonymous mapping of its own, unmapped at the end.
        unsafe {
            let bytes = 16 * PAGE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let start = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ, flags, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            assert!(!is_resident(start.cast::<u8>().add(3 * PAGE + 5)));
            libc::munmap(start, bytes);
        }
    }
}
