//! Copies of the arrays of steps, in memory that is used again.
//!
//! Copying into new memory takes several times as long, because the kernel clears it page by page.
//! So copies of one size share slabs of huge pages, and memory that was given back is used first.
//! Slabs without a copy go back to the system when much is free: an allocator would keep all that
//! a full queue needed.

use std::slice;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use memmap2::{MmapMut, MmapRaw};

/// Smaller copies are allocated as everything else.
const MIN_BYTES: usize = 4 << 10;
const PAGE_BYTES: usize = 4 << 10;
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// A slab has as many buffers as are within this, but not more than its mask has bits.
const SLAB_BYTES: usize = 8 << 20;
const MAX_BUFFERS: usize = u64::BITS as usize;
/// How much memory without copies is kept at most.
const MAX_FREE_BYTES: usize = 128 << 20;
const LOCK_TRIES: usize = 256;

static SLABS: Mutex<Vec<Arc<Slab>>> = Mutex::new(Vec::new());
static FREE_BYTES: AtomicUsize = AtomicUsize::new(0);
static CLAIMS: AtomicU64 = AtomicU64::new(0);

/// A copy of bytes. Its memory is used again when it is dropped.
#[derive(Debug)]
pub struct Copied {
    memory: Memory,
    bytes: usize,
}

#[derive(Debug)]
enum Memory {
    Own(Box<[u8]>),
    Shared(Buffer),
}

impl Copied {
    /// Copies bytes, into memory that was given back if there is some.
    pub fn of(bytes: &[u8]) -> Self {
        let buffer = if bytes.len() < MIN_BYTES { None } else { Buffer::claim(bytes.len()) };
        let memory = match buffer {
            None => Memory::Own(bytes.into()),
            Some(mut buffer) => {
                copy_past_caches(&mut buffer.as_mut()[..bytes.len()], bytes);
                Memory::Shared(buffer)
            }
        };
        Self { memory, bytes: bytes.len() }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        match &self.memory {
            Memory::Own(bytes) => bytes,
            Memory::Shared(buffer) => &buffer.as_ref()[..self.bytes],
        }
    }
}

/// Copies bytes without leaving the copy in the caches of this core: another one reads it next, and
/// what this core works on stays in them.
#[cfg(target_arch = "x86_64")]
fn copy_past_caches(copy: &mut [u8], bytes: &[u8]) {
    use std::arch::x86_64::{_mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    debug_assert!(copy.len() == bytes.len() && copy.as_ptr().addr().is_multiple_of(16));
    let (parts, rest) = bytes.as_chunks::<64>();
    let (copies, copied_rest) = copy.as_chunks_mut::<64>();
    for (to, from) in copies.iter_mut().zip(parts) {
        // SAFETY: both have 64 bytes, and pages begin at multiples of 16, as do all parts of 64.
        unsafe {
            let (from, to) = (from.as_ptr().cast(), to.as_mut_ptr().cast());
            let values = (
                _mm_loadu_si128(from),
                _mm_loadu_si128(from.add(1)),
                _mm_loadu_si128(from.add(2)),
                _mm_loadu_si128(from.add(3)),
            );
            _mm_stream_si128(to, values.0);
            _mm_stream_si128(to.add(1), values.1);
            _mm_stream_si128(to.add(2), values.2);
            _mm_stream_si128(to.add(3), values.3);
        }
    }
    copied_rest.copy_from_slice(rest);
    // SAFETY: has no conditions; makes the copy visible before anything that is written later.
    unsafe { _mm_sfence() };
}

#[cfg(not(target_arch = "x86_64"))]
fn copy_past_caches(copy: &mut [u8], bytes: &[u8]) {
    copy.copy_from_slice(bytes);
}

/// A part of a slab that nothing else uses.
#[derive(Debug)]
struct Buffer {
    slab: Arc<Slab>,
    place: usize,
}

impl Buffer {
    /// Returns a buffer for this many bytes; None if there is no memory, or if another thread has
    /// the slabs for long: in a forked child, that thread does not exist.
    fn claim(bytes: usize) -> Option<Self> {
        let buffer_bytes = bytes.checked_next_multiple_of(PAGE_BYTES)?;
        let mut slabs = (0..LOCK_TRIES).find_map(|_| try_lock())?;
        for slab in slabs.iter().filter(|slab| slab.buffer_bytes == buffer_bytes) {
            if let Some(place) = slab.claim() {
                return Some(Self { slab: Arc::clone(slab), place });
            }
        }
        let slab = Arc::new(Slab::map(buffer_bytes)?);
        FREE_BYTES.fetch_add(slab.bytes(), Ordering::Relaxed);
        slabs.push(Arc::clone(&slab));
        let place = slab.claim()?;
        drop(slabs);
        Some(Self { slab, place })
    }

    fn data(&self) -> *mut u8 {
        let offset = self.slab.start + self.place * self.slab.buffer_bytes;
        // SAFETY: the memory of a slab has all of its buffers, from `start` on.
        unsafe { self.slab.memory.as_mut_ptr().add(offset) }
    }

    fn as_ref(&self) -> &[u8] {
        // SAFETY: the slab keeps the memory. Only this buffer has this part of it, until it is
        // dropped.
        unsafe { slice::from_raw_parts(self.data(), self.slab.buffer_bytes) }
    }

    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `as_ref`, and this buffer is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.data(), self.slab.buffer_bytes) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // Counted first: whoever claims it next takes it off again.
        let free = FREE_BYTES.fetch_add(self.slab.buffer_bytes, Ordering::Relaxed);
        self.slab.free.fetch_or(1 << self.place, Ordering::Release);
        if free + self.slab.buffer_bytes > MAX_FREE_BYTES {
            trim();
        }
    }
}

/// Memory for several buffers of one size.
#[derive(Debug)]
struct Slab {
    memory: MmapRaw,
    /// Where the first buffer is.
    start: usize,
    buffer_bytes: usize,
    buffers: usize,
    /// A bit for each buffer that nothing uses.
    free: AtomicU64,
    /// When a buffer was claimed last, in claims.
    claimed: AtomicU64,
}

impl Slab {
    /// Maps memory; None if the system refuses it.
    fn map(buffer_bytes: usize) -> Option<Self> {
        let buffers = (SLAB_BYTES / buffer_bytes).clamp(1, MAX_BUFFERS);
        let bytes = buffers * buffer_bytes;
        let memory = MmapMut::map_anon(bytes.checked_add(HUGE_PAGE_BYTES)?).ok()?;
        let start = memory.as_ptr().align_offset(HUGE_PAGE_BYTES);
        #[cfg(target_os = "linux")]
        {
            // Without huge pages it is only slower. What follows the last whole one has small pages.
            let huge = bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
            let _ = memory.advise_range(memmap2::Advice::HugePage, start, huge);
        }
        let free = AtomicU64::new(all_of(buffers));
        let memory = MmapRaw::from(memory);
        Some(Self { memory, start, buffer_bytes, buffers, free, claimed: AtomicU64::new(0) })
    }

    /// Returns a buffer that nothing uses. The caller holds the lock of the slabs.
    fn claim(&self) -> Option<usize> {
        let free = self.free.load(Ordering::Acquire);
        let place = free.trailing_zeros() as usize;
        if place >= self.buffers {
            return None;
        }
        self.free.fetch_and(!(1 << place), Ordering::Acquire);
        self.claimed.store(CLAIMS.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        FREE_BYTES.fetch_sub(self.buffer_bytes, Ordering::Relaxed);
        Some(place)
    }

    fn is_unused(&self) -> bool {
        self.free.load(Ordering::Acquire) == all_of(self.buffers)
    }

    fn bytes(&self) -> usize {
        self.buffers * self.buffer_bytes
    }
}

fn all_of(buffers: usize) -> u64 {
    u64::MAX >> (MAX_BUFFERS - buffers)
}

fn try_lock() -> Option<MutexGuard<'static, Vec<Arc<Slab>>>> {
    let locked = SLABS.try_lock().ok();
    if locked.is_none() {
        std::hint::spin_loop();
    }
    locked
}

/// Gives the slabs without a copy back, first those that were not used for the longest time, until
/// no more is free than is kept.
fn trim() {
    let mut unused = Vec::new();
    let Some(mut slabs) = try_lock() else { return };
    while FREE_BYTES.load(Ordering::Relaxed) > MAX_FREE_BYTES {
        let last_claim = |slab: &Arc<Slab>| slab.claimed.load(Ordering::Relaxed);
        let free = slabs.iter().enumerate().filter(|(_, slab)| slab.is_unused());
        let Some((place, _)) = free.min_by_key(|(_, slab)| last_claim(slab)) else { break };
        FREE_BYTES.fetch_sub(slabs[place].bytes(), Ordering::Relaxed);
        unused.push(slabs.remove(place));
    }
    drop(slabs); // before the memory is given back
}

#[cfg(test)]
mod tests {
    use super::*;

    // No other test has copies of these sizes.
    fn bytes_of(size: usize, value: u8) -> Vec<u8> {
        (0..size).map(|place| (place % 251) as u8 ^ value).collect()
    }

    #[test]
    fn copies_are_what_was_copied() {
        for size in [0, 1, 63, 4095, 4096, 4097, 100_800, (1 << 20) + 7, 9 << 20] {
            let made: Vec<_> = (0..5).map(|value| Copied::of(&bytes_of(size, value))).collect();
            for (value, copied) in (0..).zip(&made) {
                assert_eq!(copied.bytes(), bytes_of(size, value));
            }
        }
    }

    #[test]
    fn memory_is_used_again() {
        let size = 77_777;
        let first = Copied::of(&bytes_of(size, 1));
        let second = Copied::of(&bytes_of(size, 2));
        let place = first.bytes().as_ptr();
        drop(first);
        let third = Copied::of(&bytes_of(size, 3));
        assert_eq!(third.bytes().as_ptr(), place);
        assert_eq!(second.bytes(), bytes_of(size, 2));
    }

    #[test]
    fn free_memory_goes_back() {
        let size = 3 << 20;
        let count = 2 * MAX_FREE_BYTES / size;
        let made: Vec<_> = (0..count).map(|_| Copied::of(&bytes_of(size, 9))).collect();
        let slabs =
            || try_lock().map(|slabs| slabs.iter().filter(|s| s.buffer_bytes == size).count());
        let before = (0..).find_map(|_| slabs()).unwrap_or(0);
        drop(made);
        let after = (0..).find_map(|_| slabs()).unwrap_or(0);
        assert!(after < before, "{after} of {before} slabs are still there");
        assert!(after * (SLAB_BYTES / size) * size <= MAX_FREE_BYTES);
    }

    #[test]
    fn threads_share_slabs() {
        let size = 55_555;
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                scope.spawn(move || {
                    let mut held = std::collections::VecDeque::new();
                    for number in 0..500u32 {
                        let value = thread.wrapping_mul(61) ^ number as u8;
                        held.push_back((value, Copied::of(&bytes_of(size, value))));
                        if held.len() > 20
                            && let Some((value, copied)) = held.pop_front()
                        {
                            assert_eq!(copied.bytes(), bytes_of(size, value));
                        }
                    }
                });
            }
        });
    }
}
