//! Buffers for batches, which are reused after their last user has released them.

use std::alloc::{Layout, alloc, dealloc};
use std::any::Any;
use std::ptr::NonNull;
use std::sync::{Arc, PoisonError};

use crate::error::{Error, Result};
use crate::fork::OwnerProcess;
use crate::sync::{Mutex, MutexGuard};

/// The alignment of slabs and of columns inside them: a cache line, and the widest alignment that
/// vector code and array libraries need.
pub const ALIGN: usize = 64;

/// Slabs of at least this size are aligned for huge pages.
const HUGE: usize = 2 << 20;

/// Writable memory that one batch is gathered into.
pub struct Slab {
    start: NonNull<u8>,
    bytes: usize,
    memory: Memory,
}

enum Memory {
    Own(Layout),
    /// Dropped with the slab.
    Foreign(#[allow(dead_code)] Box<dyn Any + Send>),
}

// SAFETY: a slab is the only handle to its memory; foreign owners are `Send`.
unsafe impl Send for Slab {}
// SAFETY: shared references only return the address; writing is unsafe.
unsafe impl Sync for Slab {}

impl Slab {
    /// Allocates uninitialized memory.
    pub fn new(bytes: usize) -> Result<Self> {
        let align = if bytes >= HUGE { HUGE } else { ALIGN };
        let no_room = || Error::TooLarge(format!("not enough memory for a batch of {bytes} bytes"));
        let layout = Layout::from_size_align(bytes.max(1), align).map_err(|_| no_room())?;
        // SAFETY: the layout has a size of at least one byte.
        let start = NonNull::new(unsafe { alloc(layout) }).ok_or_else(no_room)?;
        #[cfg(target_os = "linux")]
        if bytes >= HUGE {
            // SAFETY: the range was just allocated; the advice changes no contents, and an error
            // can be ignored.
            unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
        }
        Ok(Self { start, bytes, memory: Memory::Own(layout) })
    }

    /// Uses memory of another owner, which is released when `owner` is dropped.
    ///
    /// # Safety
    /// `bytes` bytes from `start` on are writable and not used otherwise until then.
    pub unsafe fn foreign(start: NonNull<u8>, bytes: usize, owner: Box<dyn Any + Send>) -> Self {
        Self { start, bytes, memory: Memory::Foreign(owner) }
    }

    /// Returns the address of the first byte.
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        if let Memory::Own(layout) = self.memory {
            // SAFETY: allocated in `new` with this layout.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}

/// Unused slabs. The last one returned is taken first, since it is most likely still in cache.
pub struct SlabPool {
    /// `None` once the pool is closed.
    free: Mutex<Option<Vec<Slab>>>,
    keep: usize,
    owner: OwnerProcess,
}

impl SlabPool {
    /// Creates a pool of at most `keep` unused slabs.
    pub fn new(keep: usize) -> Arc<Self> {
        let free = Mutex::new(Some(Vec::new()));
        Arc::new(Self { free, keep, owner: OwnerProcess::current() })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<Slab>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an unused slab of at least `bytes`; none in a forked child.
    pub fn take(&self, bytes: usize) -> Option<Slab> {
        if !self.owner.is_current() {
            return None;
        }
        let mut free = self.lock();
        let free = free.as_mut()?;
        let fitting = free.iter().rposition(|slab| slab.bytes() >= bytes)?;
        Some(free.remove(fitting))
    }

    /// Takes an unused slab, or allocates one.
    pub fn take_or_make(&self, bytes: usize) -> Result<Slab> {
        self.take(bytes).map_or_else(|| Slab::new(bytes), Ok)
    }

    /// Whether there is an unused slab.
    pub fn has_free(&self) -> bool {
        self.lock().as_ref().is_some_and(|free| !free.is_empty())
    }

    /// Returns a slab to the pool.
    pub fn put(&self, slab: Slab) {
        // In a forked child the lock may be held for ever by a thread of the parent.
        if !self.owner.is_current() {
            return;
        }
        let mut free = self.lock();
        let Some(slabs) = free.as_mut() else { return };
        slabs.push(slab);
        if slabs.len() > self.keep {
            // The oldest is freed: it may be too small for the batches of now.
            let oldest = slabs.remove(0);
            drop(free);
            drop(oldest);
        }
    }

    /// Frees all unused slabs, and from now on every returned slab.
    pub fn close(&self) {
        if self.owner.is_current() {
            let waiting = self.lock().take();
            drop(waiting);
        }
    }
}

/// A slab that returns to its pool when dropped.
pub struct Loan {
    slab: Option<Slab>,
    pool: Arc<SlabPool>,
}

impl Loan {
    /// Lends `slab` until the loan is dropped.
    pub fn new(slab: Slab, pool: Arc<SlabPool>) -> Self {
        Self { slab: Some(slab), pool }
    }

    /// Returns the address of the first byte.
    pub fn start(&self) -> *mut u8 {
        self.slab.as_ref().map_or(std::ptr::null_mut(), Slab::start)
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.slab.as_ref().map_or(0, Slab::bytes)
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if let Some(slab) = self.slab.take() {
            self.pool.put(slab);
        }
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_returned_slab_is_used_again() {
        let pool = SlabPool::new(2);
        let first = pool.take_or_make(100).unwrap();
        let address = first.start() as usize;
        drop(Loan::new(first, Arc::clone(&pool)));
        assert_eq!(pool.take(100).unwrap().start() as usize, address);
        assert!(pool.take(100).is_none());
    }

    #[test]
    fn a_slab_that_is_too_small_is_not_taken() {
        let pool = SlabPool::new(2);
        pool.put(Slab::new(10).unwrap());
        assert!(pool.take(11).is_none() && pool.take(10).is_some());
    }

    #[test]
    fn no_more_than_asked_are_kept() {
        let pool = SlabPool::new(1);
        pool.put(Slab::new(10).unwrap());
        pool.put(Slab::new(20).unwrap());
        assert_eq!(pool.take(1).unwrap().bytes(), 20);
        assert!(!pool.has_free());
    }

    #[test]
    fn a_closed_pool_keeps_nothing() {
        let pool = SlabPool::new(4);
        pool.put(Slab::new(10).unwrap());
        let held = Loan::new(Slab::new(10).unwrap(), Arc::clone(&pool));
        pool.close();
        assert!(!pool.has_free());
        drop(held);
        assert!(!pool.has_free() && pool.take(1).is_none());
    }

    #[test]
    fn slabs_are_aligned_and_huge_requests_fail_cleanly() {
        assert_eq!(Slab::new(1).unwrap().start() as usize % ALIGN, 0);
        assert_eq!(Slab::new(HUGE).unwrap().start() as usize % HUGE, 0);
        assert_eq!(Slab::new(isize::MAX as usize).err().unwrap().kind(), "too-large");
    }
}

/// See `prefetch/models.rs`.
#[cfg(all(test, loom))]
#[allow(clippy::unwrap_used)]
mod models {
    use loom::cell::UnsafeCell;
    use loom::thread;

    use super::*;

    /// A slab whose first bytes are the number of its cell.
    fn numbered(number: usize) -> Slab {
        let slab = Slab::new(8).unwrap();
        // SAFETY: the slab has eight bytes.
        unsafe { slab.start().cast::<usize>().write(number) };
        slab
    }

    fn use_alone(slab: &Slab, cells: &[UnsafeCell<()>]) {
        // SAFETY: as above; nothing else writes them.
        let number = unsafe { slab.start().cast::<usize>().read() };
        cells[number].with_mut(|_| ());
    }

    struct Cells([UnsafeCell<()>; 2]);

    // SAFETY: loom checks how the cells are used; that is their purpose.
    unsafe impl Send for Cells {}
    // SAFETY: as above.
    unsafe impl Sync for Cells {}

    #[test]
    fn a_slab_is_lent_to_one_user_at_a_time() {
        loom::model(|| {
            let pool = SlabPool::new(1);
            pool.put(numbered(0));
            let cells = Arc::new(Cells([UnsafeCell::new(()), UnsafeCell::new(())]));
            let (other, seen) = (Arc::clone(&pool), Arc::clone(&cells));
            let user = thread::spawn(move || {
                for _ in 0..2 {
                    if let Some(slab) = other.take(8) {
                        let loan = Loan::new(slab, Arc::clone(&other));
                        use_alone(loan.slab.as_ref().unwrap(), &seen.0);
                    }
                }
                // One too many: the oldest is freed.
                other.put(numbered(1));
            });
            if let Some(slab) = pool.take(8) {
                use_alone(&slab, &cells.0);
                drop(Loan::new(slab, Arc::clone(&pool)));
            }
            user.join().unwrap();
            assert!(pool.take(8).is_some() && pool.take(8).is_none());
        });
    }

    #[test]
    fn a_loan_may_end_while_the_pool_is_closed() {
        loom::model(|| {
            let pool = SlabPool::new(4);
            let loan = Loan::new(numbered(0), Arc::clone(&pool));
            let user = thread::spawn(move || drop(loan));
            pool.close();
            user.join().unwrap();
            assert!(!pool.has_free() && pool.take(8).is_none());
        });
    }
}
