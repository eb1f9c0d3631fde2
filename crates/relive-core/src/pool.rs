//! Runs the parts of a task on several threads, including the calling thread.
//!
//! The caller publishes the task, works on parts itself and returns when every part is done.
//! Threads that wake up too late find no part left and sleep again. So a slow wake-up never
//! delays a finished task.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crate::fork::PerProcess;
use crate::sync::thread::{self, Thread};
use crate::sync::{AtomicBool, AtomicUsize, Condvar, Mutex, MutexGuard, spin};

/// The most threads of a task.
pub const MAX_THREADS: usize = 256;

/// The time that an idle thread spins before it sleeps: about the cost of a wake-up.
const SPIN: Duration = spin(30);

/// Returns the default number of threads: the number of cores, but at most eight, since more
/// threads are limited by memory bandwidth.
pub fn default_threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from).min(8)
}

/// Runs `work(0)`, …, `work(parts - 1)`, in no particular order, on at most
/// `threads` threads including this one, and returns when all have returned.
///
/// A panic in `work` is passed on to the caller after the other parts finished.
pub fn run(parts: usize, threads: usize, work: &(dyn Fn(usize) + Sync)) {
    let helpers = threads.min(parts).min(MAX_THREADS).saturating_sub(1);
    if helpers == 0 {
        (0..parts).for_each(work);
        return;
    }
    // SAFETY: only the lifetime is erased. `Task::work_on` calls the function only for parts that
    // it claimed, and this frame outlives every claimed part: `Task::wait` returns when
    // `done == parts`.
    let work: &'static (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(work) };
    let task = Arc::new(Task {
        work,
        parts,
        next: AtomicUsize::new(0),
        done: AtomicUsize::new(0),
        panicked: AtomicBool::new(false),
        caller: thread::current(),
    });
    Pool::of_this_process().publish(&task, helpers);
    task.work_on();
    task.wait();
    if task.panicked.load(Ordering::Relaxed) {
        std::panic::resume_unwind(Box::new("a part of a parallel task panicked"));
    }
}

/// Applies `work` to each item on at most `threads` threads, and returns the results in order.
pub fn map<T: Send, R: Send>(
    items: impl IntoIterator<Item = T>,
    threads: usize,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    if threads <= 1 {
        return items.into_iter().map(work).collect();
    }
    let cells: Vec<Mutex<(Option<T>, Option<R>)>> =
        items.into_iter().map(|item| Mutex::new((Some(item), None))).collect();
    run(cells.len(), threads, &|position| {
        // Each position is claimed once, so no thread waits for the lock.
        let mut cell = cells[position].lock().unwrap_or_else(PoisonError::into_inner);
        let item = cell.0.take();
        cell.1 = item.map(&work);
    });
    let result = |cell: Mutex<(_, _)>| cell.into_inner().unwrap_or_else(PoisonError::into_inner).1;
    cells.into_iter().filter_map(result).collect()
}

struct Task {
    work: &'static (dyn Fn(usize) + Sync),
    parts: usize,
    next: AtomicUsize,
    done: AtomicUsize,
    panicked: AtomicBool,
    caller: Thread,
}

impl Task {
    fn work_on(&self) {
        loop {
            let part = self.next.fetch_add(1, Ordering::Relaxed);
            if part >= self.parts {
                return;
            }
            if catch_unwind(AssertUnwindSafe(|| (self.work)(part))).is_err() {
                self.panicked.store(true, Ordering::Relaxed);
            }
            // Release publishes what the part wrote to the caller's Acquire.
            if self.done.fetch_add(1, Ordering::Release) + 1 == self.parts {
                self.caller.unpark();
            }
        }
    }

    fn wait(&self) {
        let start = Instant::now();
        while self.done.load(Ordering::Acquire) < self.parts {
            if start.elapsed() < SPIN {
                std::hint::spin_loop();
            } else {
                thread::park_timeout(Duration::from_millis(10));
            }
        }
    }
}

#[derive(Default)]
struct Pool {
    /// Length of the queue, readable without the lock by threads that spin.
    waiting: AtomicUsize,
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Arc<Task>>,
    threads: usize,
    sleeping: usize,
}

impl Pool {
    /// Returns the pool of this process. After a fork the child starts its own, since it does not
    /// have the parent's threads and a lock may stay locked.
    fn of_this_process() -> &'static Self {
        static POOL: PerProcess<Pool> = PerProcess::new();
        POOL.get(Self::default)
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&'static self, task: &Arc<Task>, helpers: usize) {
        let mut queue = self.lock();
        while queue.threads < helpers {
            let spawned =
                thread::Builder::new().name("relive-pool".into()).spawn(move || self.serve());
            if spawned.is_err() {
                // With fewer threads the task is slower, but still correct.
                break;
            }
            queue.threads += 1;
        }
        for _ in 0..helpers {
            queue.tasks.push_back(Arc::clone(task));
        }
        self.waiting.store(queue.tasks.len(), Ordering::Release);
        let wake = queue.sleeping.min(helpers);
        drop(queue);
        for _ in 0..wake {
            self.wake.notify_one();
        }
    }

    fn serve(&self) {
        loop {
            self.take().work_on();
        }
    }

    fn take(&self) -> Arc<Task> {
        let start = Instant::now();
        while self.waiting.load(Ordering::Acquire) == 0 && start.elapsed() < SPIN {
            std::hint::spin_loop();
        }
        let mut queue = self.lock();
        loop {
            if let Some(task) = queue.tasks.pop_front() {
                self.waiting.store(queue.tasks.len(), Ordering::Release);
                return task;
            }
            queue.sleeping += 1;
            queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.sleeping -= 1;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_part_runs_once() {
        for threads in [1, 2, 5] {
            for parts in [0, 1, 2, 7, 100] {
                let counts: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
                run(parts, threads, &|part| {
                    counts[part].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn many_callers_share_the_pool() {
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let total = AtomicUsize::new(0);
                        run(16, 3, &|part| {
                            total.fetch_add(part, Ordering::Relaxed);
                        });
                        assert_eq!(total.load(Ordering::Relaxed), 120);
                    }
                });
            }
        });
    }

    #[test]
    fn a_task_may_start_another() {
        let total = AtomicUsize::new(0);
        run(4, 4, &|_| {
            run(4, 4, &|_| {
                total.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert_eq!(total.load(Ordering::Relaxed), 16);
    }

    #[test]
    #[allow(clippy::panic)]
    fn a_panic_reaches_the_caller_after_the_rest_ran() {
        let ran = AtomicUsize::new(0);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            run(8, 3, &|part| {
                ran.fetch_add(1, Ordering::Relaxed);
                assert!(part != 3, "part three fails");
            });
        }));
        assert!(outcome.is_err());
        assert_eq!(ran.load(Ordering::Relaxed), 8);
    }
}

/// See `prefetch/models.rs`.
#[cfg(all(test, loom))]
mod models {
    use loom::cell::UnsafeCell;

    use super::*;

    struct Cells([UnsafeCell<usize>; 2]);

    // SAFETY: loom checks how the cells are used; that is their purpose.
    unsafe impl Sync for Cells {}

    /// A helper wakes up at any moment: before, while or after the caller does all parts.
    #[test]
    fn the_caller_returns_after_the_last_part() {
        loom::model(|| {
            let cells: &'static Cells =
                Box::leak(Box::new(Cells([UnsafeCell::new(0), UnsafeCell::new(0)])));
            let work: &'static (dyn Fn(usize) + Sync) = Box::leak(Box::new(|part: usize| {
                // SAFETY: each part is claimed once; loom checks it.
                cells.0[part].with_mut(|cell| unsafe { *cell += 1 });
            }));
            let task = Arc::new(Task {
                work,
                parts: 2,
                next: AtomicUsize::new(0),
                done: AtomicUsize::new(0),
                panicked: AtomicBool::new(false),
                caller: thread::current(),
            });
            let late = Arc::clone(&task);
            let helper = loom::thread::spawn(move || late.work_on());
            task.work_on();
            task.wait();
            // From here on no thread uses the frame of the caller.
            for cell in &cells.0 {
                // SAFETY: as above.
                cell.with_mut(|count| assert_eq!(unsafe { *count }, 1));
            }
            helper.join().unwrap();
        });
    }
}
