//! Asking the disk for the rows of a batch before they are copied.
//!
//! Copying from a memory map reads one page at a time, each fault waiting for the disk.
//! Telling the kernel about all rows of a batch at once keeps the disk's queue full. On
//! warm data the telling costs more than the copying, so it is done only while copies
//! are seen to wait for the disk.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::table::{Place, Table};

/// For how many batches one slow copy counts. After them one batch goes without advice
/// and shows whether the data is still cold.
const COLD_BATCHES: u32 = 64;

/// Faults that wait for the disk, within one part, from which on data counts as cold.
const FAULTS: i64 = 2;

/// Watches for waits on the disk and advises while there are some.
pub struct Readahead {
    cold: AtomicU32,
}

impl Readahead {
    /// Starts out taking the data for warm.
    pub fn new() -> Self {
        Self { cold: AtomicU32::new(0) }
    }

    /// Tells the kernel that these rows are about to be read, if reads are slow.
    pub fn advise(&self, table: &Table, places: &[Place]) {
        let cold = self.cold.load(Ordering::Relaxed);
        if cold > 0 {
            self.cold.store(cold - 1, Ordering::Relaxed);
            table.each_piece(places, will_need);
        }
    }

    /// Runs `copy` and notes whether it had to wait for the disk.
    pub fn watch(&self, copy: impl FnOnce()) {
        let before = slow_faults();
        copy();
        if slow_faults() - before >= FAULTS {
            self.cold.store(COLD_BATCHES, Ordering::Relaxed);
        }
    }
}

impl Default for Readahead {
    fn default() -> Self {
        Self::new()
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
        const PAGE: usize = 4096;
        let first = start as usize & !(PAGE - 1);
        let length = start as usize + bytes - first;
        // SAFETY: advice changes no contents; an address that cannot be advised is an
        // error we do not need.
        unsafe { libc::madvise(first as *mut libc::c_void, length, libc::MADV_WILLNEED) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, bytes);
}
