//! Copies of the arrays of steps, in memory that is used again.
//!
//! Copying into new memory takes several times as long, because the kernel clears it first. Memory
//! that is not kept goes back to the system: an allocator would keep all that a full queue needed.

use std::sync::{Mutex, MutexGuard};

use memmap2::MmapMut;

/// Smaller copies are allocated as everything else.
const MIN_BYTES: usize = 4 << 10;
/// How much is kept at most.
const MAX_KEPT_BYTES: usize = 48 << 20;

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
                pages[..bytes.len()].copy_from_slice(bytes);
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
        if kept.bytes + pages.len() <= MAX_KEPT_BYTES {
            kept.bytes += pages.len();
            kept.buffers.push(pages);
        }
    }
}

/// Returns the buffers, unless another thread has them at the moment. Never waits: in a forked
/// child, that thread does not exist.
fn kept() -> Option<MutexGuard<'static, Kept>> {
    KEPT.try_lock().ok()
}

/// Returns pages for this many bytes; None if the system has none, or too many of them.
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
