//! Copies of the arrays of steps, in memory that is used again.
//!
//! Copying into new memory takes several times as long, because the kernel clears it first. Memory
//! that is not kept goes back to the system: an allocator would keep all that a full queue needed.

use std::sync::{Mutex, MutexGuard};

use memmap2::MmapMut;

/// Smaller copies are allocated as everything else.
const MIN_BYTES: usize = 4 << 10;
/// How much is kept at most.
const MAX_KEPT_BYTES: usize = 128 << 20;

static KEPT: Mutex<Kept> = Mutex::new(Kept { buffers: Vec::new(), bytes: 0 });

#[derive(Debug)]
struct Kept {
    buffers: Vec<MmapMut>,
    bytes: usize,
}

/// A copy of bytes. Its memory is used again when it is dropped.
#[derive(Debug)]
pub struct Copied {
    memory: Memory,
    bytes: usize,
}

#[derive(Debug)]
enum Memory {
    Small(Box<[u8]>),
    /// Pages, of which some at the end may be unused. None once it is dropped.
    Pages(Option<MmapMut>),
}

impl Copied {
    /// Copies bytes, into a buffer that was given back if one has about their size.
    pub fn of(bytes: &[u8]) -> Self {
        let pages = if bytes.len() < MIN_BYTES { None } else { pages_for(bytes.len()) };
        let memory = match pages {
            None => Memory::Small(bytes.into()),
            Some(mut pages) => {
                copy_past_caches(&mut pages[..bytes.len()], bytes);
                Memory::Pages(Some(pages))
            }
        };
        Self { memory, bytes: bytes.len() }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        match &self.memory {
            Memory::Small(bytes) => bytes,
            Memory::Pages(pages) => pages.as_ref().map_or(&[], |pages| &pages[..self.bytes]),
        }
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        let Memory::Pages(pages) = &mut self.memory else { return };
        let Some(pages) = pages.take() else { return };
        let Some(mut kept) = kept() else { return };
        if pages.len() > MAX_KEPT_BYTES {
            return;
        }
        // The oldest may be of a size that no run has any more.
        let mut unused = Vec::new();
        while kept.bytes + pages.len() > MAX_KEPT_BYTES && !kept.buffers.is_empty() {
            let oldest = kept.buffers.remove(0);
            kept.bytes -= oldest.len();
            unused.push(oldest);
        }
        kept.bytes += pages.len();
        kept.buffers.push(pages);
        drop(kept); // before the pages that are not kept are given back
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

/// Returns the buffers, unless another thread has them at the moment. Never waits: in a forked
/// child, that thread does not exist.
fn kept() -> Option<MutexGuard<'static, Kept>> {
    KEPT.try_lock().ok()
}

/// Returns pages for this many bytes; None if the system refuses to map them.
fn pages_for(bytes: usize) -> Option<MmapMut> {
    take(bytes).or_else(|| MmapMut::map_anon(bytes).ok())
}

fn take(bytes: usize) -> Option<MmapMut> {
    let mut kept = kept()?;
    // The sizes of a few columns alternate, so one of the last is right.
    let fits = |buffer: &MmapMut| (bytes..=bytes + bytes / 4).contains(&buffer.len());
    let place = kept.buffers.iter().rev().take(16).position(fits)?;
    let place = kept.buffers.len() - 1 - place;
    let buffer = kept.buffers.swap_remove(place);
    kept.bytes -= buffer.len();
    Some(buffer)
}
