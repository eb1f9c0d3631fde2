"""Writes to the cache on a thread, after the reader has its bytes; drops what it cannot keep up."""

import atexit
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from relive.store.cache.eviction import ReaderUse
from relive.store.cache.layout import PAGE_LEAVES
from relive.store.cache.page import Leaf, split_pages
from relive.store.remote.ranges import Data

if TYPE_CHECKING:
    from relive.store.cache.disk import DiskCache

# A window of a shuffled stream, 64 MiB, is fetched at once.
MAX_QUEUED_BYTES: Final = 96 << 20
# The first batch does not share the processor and the disk with the cache.
START_S: Final = 0.3
# Later reads often have the other leaves of a page.
LINGER_S: Final = 0.3
_EXIT_S: Final = 10.0
_IDLE_S: Final = 5.0


@dataclass
class _Task:
    """Something to write."""

    run: Callable[[], object]
    nbytes: int = 0
    since: float = 0.0
    is_complete: bool = True
    leaves: dict[int, Leaf] = field(default_factory=dict)


class WriteBehind:
    """The queue and the thread that write to a cache in one process. Thread-safe.

    The thread starts with the first offer and ends when there was nothing to write for a while.
    What is queued when the interpreter exits is written then.
    """

    def __init__(self, disk: "DiskCache") -> None:
        self._disk = disk
        self._changed = threading.Condition()
        self._tasks: OrderedDict[object, _Task] = OrderedDict()
        self._queued = 0
        self._thread: threading.Thread | None = None
        self._not_before = 0.0
        self._waiting = 0
        self._is_writing = False
        self._current: tuple[object, dict[int, Leaf]] = (None, {})
        self._process = os.getpid()
        self.dropped = 0
        """How many offers were dropped because too much was queued."""

    def offer_leaves(
        self, use: ReaderUse, digest: str, start: int, data: Data, table: bytes
    ) -> None:
        """Queue verified leaves from offset `start` on."""
        if not use.is_paused:
            for page, leaves in split_pages(start, data, table):
                self._add_page(use, digest, page, leaves)

    def queued(self, digest: str, page: int) -> dict[int, Leaf]:
        """Return the leaves of a page that wait to be written; they are verified."""
        if not self._queued:  # without the lock: most reads find nothing
            return {}
        with self._changed:
            key, leaves = self._current
            found = dict(leaves) if key == (digest, page) else {}
            task = self._tasks.get((digest, page))
            if task is not None:
                found.update(task.leaves)
            return found

    def offer_whole(self, use: ReaderUse, digest: str, data: Data) -> None:
        """Queue an object that is kept as a whole."""
        self.offer(digest, lambda: self._disk.keep_whole(use, digest, data), len(data))

    def offer(self, key: object, run: Callable[[], object], nbytes: int) -> None:
        """Queue any write; one with the same key that waits is replaced."""
        with self._changed:
            old = self._tasks.pop(key, None)
            if old is not None:
                self._queued -= old.nbytes
            if self._queued + nbytes > MAX_QUEUED_BYTES:
                self.dropped += 1
                return
            self._add(key, _Task(run, nbytes, time.monotonic()))

    def is_queued(self, key: object) -> bool:
        """Return whether a write with this key waits, or is being made."""
        if not (self._tasks or self._is_writing):  # without the lock: mostly so
            return False
        with self._changed:
            return key in self._tasks or (self._is_writing and self._current[0] == key)

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until everything is written or dropped; return whether that took no longer."""
        if self._process != os.getpid():
            return True  # a handler of the parent process; its thread was not copied
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
            try:
                while self._tasks or self._is_writing:
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        return False
                    self._changed.wait(left)
            finally:
                self._waiting -= 1
        return True

    def _add_page(self, use: ReaderUse, digest: str, page: int, leaves: dict[int, Leaf]) -> None:
        nbytes = sum(len(leaf.data) for leaf in leaves.values())
        with self._changed:
            if self._queued + nbytes > MAX_QUEUED_BYTES:
                self.dropped += 1
                return
            task = self._tasks.get((digest, page))
            if task is None:
                collected: dict[int, Leaf] = {}
                task = _Task(
                    lambda: self._disk.keep_page(use, digest, page, collected),
                    since=time.monotonic(),
                    leaves=collected,
                )
            new = {leaf: each for leaf, each in leaves.items() if leaf not in task.leaves}
            added = sum(len(leaf.data) for leaf in new.values())
            task.leaves.update(new)
            task.nbytes += added
            task.is_complete = len(task.leaves) == PAGE_LEAVES
            self._queued -= task.nbytes - added
            self._add((digest, page), task)

    def _add(self, key: object, task: _Task) -> None:
        self._tasks[key] = task
        self._queued += task.nbytes
        if self._thread is None:
            # A daemon: it must not keep the interpreter, which waits for it by `_at_exit`.
            self._thread = threading.Thread(target=self._run, name="relive-cache", daemon=True)
            if not self._not_before:
                self._not_before = time.monotonic() + START_S
                _at_exit(self)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                key = self._next()
                if key is None:
                    self._thread = None
                    return
                task = self._tasks.pop(key)
                self._current = key, task.leaves
                self._is_writing = True
            try:
                task.run()
            finally:
                with self._changed:
                    self._queued -= task.nbytes
                    self._current = (None, {})
                    self._is_writing = False
                    self._changed.notify_all()

    def _next(self) -> object:
        """Wait for a task and return its key; None after a while without one."""
        idle_until = time.monotonic() + _IDLE_S
        while True:
            now = time.monotonic()
            if self._tasks:
                idle_until = now + _IDLE_S
                key, pause = self._ripe(now)
                if pause <= 0:
                    return key
            else:
                pause = idle_until - now
                if pause <= 0:
                    return None
            self._changed.wait(pause)

    def _ripe(self, now: float) -> tuple[object, float]:
        """Return the task that is next, and how long to wait before it."""
        oldest, task = next(iter(self._tasks.items()))
        if self._waiting:
            return oldest, 0
        if now < self._not_before:
            return oldest, self._not_before - now
        complete = (key for key, each in self._tasks.items() if each.is_complete)
        key = next(complete, None)
        return (oldest, task.since + LINGER_S - now) if key is None else (key, 0)


def _at_exit(writer: WriteBehind) -> None:
    """Flush when the interpreter, or a worker process of multiprocessing, exits."""
    import multiprocessing.util

    atexit.register(writer.flush, _EXIT_S)
    if multiprocessing.parent_process() is not None:
        # Worker processes do not run the handlers of atexit.
        multiprocessing.util.Finalize(None, writer.flush, args=(_EXIT_S,), exitpriority=1)
