"""Fetches and decodes the windows of a stream ahead of its consumer, within a number of bytes."""

import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from relive.errors import ClosedError
from relive.model.source import IndexArray
from relive.publish.read.scan import STEP_BYTES
from relive.publish.read.stream.blocks import TableBlocks
from relive.publish.read.stream.order import Steps, WindowKey
from relive.publish.read.stream.row_gather import RowGather
from relive.store.remote.priority import ReadAhead
from relive.store.remote.threads import is_forked

AHEAD_BYTES: Final = 64 << 20
"""The decoded size of what is fetched ahead by default, or of the windows in use if larger."""
_AHEAD_BLOCKS: Final = 2  # at least
_THREADS: Final = 8
# A forked process makes one call at a time, so that each must fetch more.
_FORKED_BYTES: Final = 4 * STEP_BYTES


class WindowRows:
    """The rows of the blocks of a window, by their numbers in the table."""

    def __init__(self, blocks: TableBlocks, numbers: IndexArray, tables: list[pa.Table]) -> None:
        self._bounds = blocks.bounds
        self._numbers = numbers
        sizes = blocks.bounds[numbers + 1] - blocks.bounds[numbers]
        self._offsets = np.cumsum(sizes) - sizes - blocks.bounds[numbers]
        self._rows = RowGather(tables or [blocks.schema.empty_table()])

    def take(self, rows: IndexArray) -> pa.RecordBatch:
        """Return rows of the table in the requested order, without those of other blocks."""
        if not len(self._numbers):
            return self._rows.take(rows[:0])
        block = self._bounds.searchsorted(rows, side="right") - 1
        at = np.minimum(self._numbers.searchsorted(block), len(self._numbers) - 1)
        found = self._numbers[at] == block
        if not found.all():  # filters exclude the others
            rows, at = rows[found], at[found]
        return self._rows.take(rows + self._offsets[at])


@dataclass(slots=True, eq=False)
class _Window:
    """A window that was fetched, is being fetched or will be."""

    key: WindowKey
    numbers: list[int]
    missing: int = 0
    """How many of its blocks are not decoded yet."""
    ready: Future[WindowRows] = field(default_factory=Future)
    is_joining: bool = False
    """Whether some thread is joining its blocks."""
    is_reached: bool = False
    """Whether the consumer needs it now. What is fetched for others counts as ahead."""
    nbytes: int = 0
    """The decoded size of its blocks."""
    ahead_bytes: int = 0
    ahead_blocks: int = 0
    reads: list[ReadAhead] = field(default_factory=list)
    """What has begun to be fetched ahead for it."""


@dataclass(slots=True, eq=False)
class _Block:
    """A block, and the windows that it is fetched for."""

    fetched_bytes: int
    nbytes: int
    table: pa.Table | None = None
    users: list[_Window] = field(default_factory=list)


class WindowReader:
    """The windows of the steps of a stream. For one consumer at a time.

    The consumer calls `enter` with the windows of a step, then `rows` for each. Blocks are
    fetched in the order of their first use, several small ones in one round trip. Before
    `start_ahead`, only what the consumer needs is fetched; after it also what comes next, so that
    the next window is there when the consumer enters it. A window is dropped when the consumer
    enters a later one of the same partition.

    Args:
        blocks: Reads blocks.
        steps: The steps that the consumer will take.
        ahead_bytes: How much is fetched ahead; None for two blocks, 64 MiB, or as much as the
            windows in use have, whichever is most.
    """

    def __init__(self, blocks: TableBlocks, steps: Steps, ahead_bytes: int | None = None) -> None:
        self._blocks = blocks
        self._order = steps
        self._steps: Iterator[list[WindowKey]] = ([key for key, _ in one.runs] for one in steps)
        self._is_fixed = ahead_bytes is not None
        self._allowed = ahead_bytes or 0
        self._group_bytes = _FORKED_BYTES if is_forked() else STEP_BYTES
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._windows: dict[WindowKey, _Window] = {}
        self._held: dict[int, _Block] = {}
        self._last: dict[int, int] = {}  # the last block of the latest window of each partition
        self._queue: deque[tuple[int, _Window]] = deque()  # what to fetch, and for which window
        self._ahead_bytes = self._ahead_blocks = self._used_bytes = self._running = 0
        self._is_started = self._is_closed = False
        self._error: BaseException | None = None
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="relive-batches")

    def start_ahead(self) -> None:
        """Begin to fetch ahead."""
        with self._lock:
            self._is_started = True
            self._submit()

    def enter(self, keys: Sequence[WindowKey]) -> None:
        """Fetch the windows of the next step first, and drop those that no later step has."""
        if self._process != os.getpid():
            raise ClosedError(
                "this stream was created before the process was forked, "
                "and cannot be used in the child process",
                hint="create the stream in the process that uses it",
            )
        first: dict[int, int] = {}
        for key in keys:
            if not key.is_repeated:
                first.setdefault(key.partition, key.window)
        with self._lock:
            # Windows are dropped last: looking ahead from an earlier step may come across them.
            for key in keys:
                self._reach(key)
            for key in [*self._windows]:
                if not key.is_repeated and key.window < first.get(key.partition, 0):
                    self._drop(self._windows.pop(key))
            self._submit()

    def rows(self, key: WindowKey) -> WindowRows:
        """Return a window of the step that was entered; wait until it is complete.

        The error of a block that could not be read is raised. Ctrl-C loses nothing.
        """
        with self._lock:
            window = self._windows[key]
            is_complete = not window.missing and not window.is_joining
            window.is_joining |= is_complete
        if is_complete and not window.ready.done():
            self._join(window)
        return window.ready.result()

    def close(self, *, wait: bool = True) -> None:
        """Stop; with `wait`, return when no thread runs."""
        if self._process != os.getpid():
            return
        with self._lock:
            self._is_closed = True
            self._fail(ClosedError("this stream is closed"))
            self._windows.clear()
            self._held.clear()
        self._pool.shutdown(wait=wait, cancel_futures=True)

    def __del__(self) -> None:
        # When the interpreter exits, its threads have ended, and modules may be gone already.
        if hasattr(self, "_pool") and not sys.is_finalizing():
            self.close(wait=False)

    def _join(self, window: _Window) -> None:
        """Join the blocks of a complete window; called without the lock, by one thread."""
        numbers = np.sort(np.array(window.numbers, np.int64))
        with self._lock:
            if self._is_closed:
                return
            tables = [self._held[number].table for number in numbers.tolist()]
        try:
            rows = WindowRows(self._blocks, numbers, [each for each in tables if each is not None])
        except Exception as error:  # noqa: BLE001 - the consumer raises it
            with self._lock:
                self._fail(error)
            return
        except BaseException:
            window.is_joining = False  # after Ctrl-C the consumer may go on
            raise
        with self._lock:
            self._release(window)
            if not window.ready.done():
                window.ready.set_result(rows)

    def received(
        self, numbers: Sequence[int], tables: dict[int, pa.Table], error: BaseException | None
    ) -> None:
        """Keep blocks that a thread has read, or the error; complete the windows that have all."""
        with self._lock:
            self._running -= 1
            if error is not None:
                self._fail(error)
            if self._is_closed or self._error is not None:
                return
            complete = []
            for number in numbers:
                block = self._held.get(number)
                if block is None:  # its windows were dropped
                    continue
                block.table = tables[number]
                for window in block.users:
                    window.missing -= 1
                    if not window.missing and not window.is_joining:
                        window.is_joining = True
                        complete.append(window)
            self._submit()
        for window in complete:
            self._join(window)

    def fail(self, error: BaseException) -> None:
        """Let the consumer raise an error."""
        with self._lock:
            self._fail(error)

    # The methods below are called with the lock.

    def _reach(self, key: WindowKey) -> None:
        while key not in self._windows and self._look_ahead():
            pass
        window = self._windows.get(key) or self._add(key)
        if not window.is_reached:
            window.is_reached = True
            self._used_bytes += window.nbytes
            self._ahead_bytes -= window.ahead_bytes
            self._ahead_blocks -= window.ahead_blocks
            for read in window.reads:
                read.expect()
            window.reads.clear()

    def _look_ahead(self) -> bool:
        """Add the windows of one more step; False at the end."""
        keys = next(self._steps, None)
        for key in keys or ():
            if key not in self._windows:
                self._add(key)
        return keys is not None

    def _add(self, key: WindowKey) -> _Window:
        listed = self._order.blocks(key).tolist()
        window = _Window(key, [one for one in listed if not self._blocks.is_excluded(one)])
        self._windows[key] = window
        for number in window.numbers:
            block = self._held.get(number)
            if block is None:
                block = self._held[number] = _Block(*self._blocks.sizes(number))
                self._queue.append((number, window))
            block.users.append(window)
            window.nbytes += block.nbytes
            window.missing += block.table is None
        if not key.is_repeated:
            before = self._last.pop(key.partition, None)
            if window.numbers:
                self._last[key.partition] = window.numbers[-1]
            if before is not None:
                self._drop_unused(before)
        return window

    def _drop(self, window: _Window) -> None:
        self._release(window)
        if window.is_reached:
            self._used_bytes -= window.nbytes
        else:
            self._ahead_bytes -= window.ahead_bytes
            self._ahead_blocks -= window.ahead_blocks

    def _release(self, window: _Window) -> None:
        """Drop the blocks that only this window needs."""
        for number in window.numbers:
            block = self._held.get(number)
            if block is not None and window in block.users:
                block.users.remove(window)
                self._drop_unused(number)

    def _drop_unused(self, number: int) -> None:
        block = self._held.get(number)
        if block is not None and not block.users and number not in self._last.values():
            del self._held[number]

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
        self._queue.clear()
        for window in self._windows.values():
            if not window.ready.done():
                window.ready.set_exception(self._error)

    def _submit(self) -> None:
        """Let threads fetch what is needed now or may be fetched ahead."""
        while not self._is_closed and self._error is None and self._running < _THREADS:
            ahead = ReadAhead()
            group = self._next_group(ahead)
            if not group:
                return
            self._running += 1
            # The task does not refer to the reader, which is deleted with its consumer.
            self._pool.submit(_read, weakref.ref(self), self._blocks, group, ahead)

    def _next_group(self, ahead: ReadAhead) -> list[int]:
        """Return the blocks to fetch next in one round trip."""
        group: list[int] = []
        nbytes = 0
        while self._queue or (self._may_fetch_ahead(0) and self._look_ahead()):
            if not self._queue:
                continue
            number, window = self._queue[0]
            block = self._held.get(number)
            if block is None:  # its windows were dropped
                self._queue.popleft()
                continue
            if not window.is_reached and not self._may_fetch_ahead(block.nbytes):
                break
            nbytes += max(block.fetched_bytes, block.nbytes)
            if group and nbytes > self._group_bytes:
                break
            group.append(number)
            self._queue.popleft()
            if window.is_reached:
                ahead.expect()
            else:
                window.reads.append(ahead)
                window.ahead_bytes += block.nbytes
                window.ahead_blocks += 1
                self._ahead_bytes += block.nbytes
                self._ahead_blocks += 1
        return group

    def _may_fetch_ahead(self, nbytes: int) -> bool:
        if not self._is_started:
            return False
        if self._is_fixed:
            return self._allowed > 0 and self._ahead_bytes + nbytes <= self._allowed
        allowed = max(AHEAD_BYTES, self._used_bytes)
        return self._ahead_blocks < _AHEAD_BLOCKS or self._ahead_bytes + nbytes <= allowed


def _read(
    reader: "weakref.ref[WindowReader]",
    blocks: TableBlocks,
    numbers: Sequence[int],
    ahead: ReadAhead,
) -> None:
    tables: dict[int, pa.Table] = {}
    error: BaseException | None = None
    try:
        with ahead:
            tables = blocks.read(numbers)
    except BaseException as raised:  # noqa: BLE001 - the consumer raises it
        error = raised
    alive = reader()
    if alive is None:
        return
    try:
        alive.received(numbers, tables, error)
    except BaseException as raised:  # noqa: BLE001 - the consumer raises it
        alive.fail(raised)
