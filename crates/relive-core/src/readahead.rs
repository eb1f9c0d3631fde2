//! Advises the kernel to read the rows of a batch from disk before they are copied.
//!
//! Copying from a memory map reads one page at a time: each page fault waits for the disk and also
//! reads the surrounding pages, which is wasted for scattered rows. Advising exactly the rows of a
//! batch keeps the queue of the disk full and reads nothing else. For cached data the advice costs
//! more than the copy, so it is given only while some data is found to be missing from memory.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::sample::Plan;
use crate::table::{Location, Table};

/// The number of batch parts for which data counts as cold after a missing page.
const COLD_PARTS: u32 = 64;

/// How often cached data is checked again: the first few parts, then every sixteenth.
const CHECK_FIRST: u32 = 4;
const CHECK_EVERY: u32 = 16;

/// Rows that are checked for residency.
const CHECKS: usize = 8;

/// Page faults within one part that wait for the disk, from which on data counts as cold.
const FAULTS: i64 = 2;

/// Detects waits for the disk, and advises the kernel while there are some.
#[derive(Default)]
pub struct Readahead {
    parts: AtomicU32,
    cold: AtomicU32,
    /// Windows of blocks below this number were advised.
    windows: AtomicU64,
}

impl Readahead {
    /// Whether recent copies waited for the disk.
    pub fn is_cold(&self) -> bool {
        self.cold.load(Ordering::Relaxed) > 0
    }

    /// Advises the kernel that these rows will be read, if some are not in memory; returns whether
    /// it did.
    pub fn advise(&self, table: &Table, locations: &[Location]) -> bool {
        let part = self.parts.fetch_add(1, Ordering::Relaxed);
        let cold = self.cold.load(Ordering::Relaxed);
        if cold == 0 && part >= CHECK_FIRST && !part.is_multiple_of(CHECK_EVERY) {
            return false;
        }
        if some_missing(table, locations) {
            self.cold.store(COLD_PARTS, Ordering::Relaxed);
        } else if cold == 0 {
            return false;
        } else {
            self.cold.store(cold - 1, Ordering::Relaxed);
        }
        table.each_range(locations, will_need);
        true
    }

    /// Advises the kernel that a window of blocks will be read soon. Only the first call for a
    /// window does.
    pub fn advise_window(&self, plan: &Plan, tables: &[Table], number: u64) {
        let advised = self.windows.load(Ordering::Relaxed);
        let claim = |from| {
            let order = Ordering::Relaxed;
            self.windows.compare_exchange(from, number + 1, order, order).is_ok()
        };
        if number < advised || !claim(advised) {
            return;
        }
        let (mut rows, mut locations) = (Vec::new(), Vec::new());
        plan.window_rows(number, &mut rows);
        for table in tables {
            if table.find(&rows, &mut locations).is_ok() {
                table.each_range(&locations, will_need);
            }
        }
    }

    /// Runs `copy` and records whether it waited for the disk.
    pub fn watch<T>(&self, copy: impl FnOnce() -> T) -> T {
        let before = slow_faults();
        let outcome = copy();
        if slow_faults() - before >= FAULTS {
            self.cold.store(COLD_PARTS, Ordering::Relaxed);
        }
        outcome
    }
}

/// Whether the first page of some of these rows is not in memory; checks a few rows only.
fn some_missing(table: &Table, locations: &[Location]) -> bool {
    let step = locations.len().div_ceil(CHECKS).max(1);
    let missing = std::cell::Cell::new(false);
    for location in locations.iter().step_by(step) {
        table.each_range(std::slice::from_ref(location), |start, bytes| {
            missing.set(missing.get() || bytes > 0 && !is_resident(start));
        });
        if missing.get() {
            return true;
        }
    }
    false
}

/// Returns the page size: 4 KiB on most machines, up to 64 KiB on some aarch64 ones.
#[cfg(target_os = "linux")]
fn page_bytes() -> usize {
    static PAGE: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    // SAFETY: the call only reads a constant of the system.
    let query = || usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) });
    *PAGE.get_or_init(|| query().ok().filter(|bytes| bytes.is_power_of_two()).unwrap_or(4096))
}

/// Whether the page of this address is in memory. The kernel also answers yes if it does not want
/// to reveal it; then only page faults show it.
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

/// Returns the number of page faults of this thread that read from disk.
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

/// Starts reading the pages of this memory range, if it maps a file.
fn will_need(start: *const u8, bytes: usize) {
    #[cfg(target_os = "linux")]
    {
        let first = start as usize & !(page_bytes() - 1);
        let length = start as usize + bytes - first;
        // SAFETY: advice changes no contents; an error can be ignored.
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
    fn resident_memory_is_not_advised() {
        let data = Arc::new(vec![1_u8; 64 * PAGE]);
        // SAFETY: the rows own the pages they describe.
        let rows = unsafe {
            let owner = Arc::clone(&data) as Owner;
            Rows::new(data.as_ptr(), 64, PAGE as isize, &[(PAGE, 1)], 1, owner)
        };
        let table = Table::new(vec![Column::Fixed(rows.unwrap())]).unwrap();
        let mut locations = Vec::new();
        table.find(&(0..64).collect::<Vec<i64>>(), &mut locations).unwrap();
        let readahead = Readahead::default();
        for _ in 0..100 {
            readahead.advise(&table, &locations);
        }
        assert_eq!(readahead.cold.load(Ordering::Relaxed), 0);
        readahead.cold.store(3, Ordering::Relaxed);
        for _ in 0..100 {
            readahead.advise(&table, &locations);
        }
        assert_eq!(readahead.cold.load(Ordering::Relaxed), 0, "cached data is detected");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn untouched_pages_are_missing() {
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
