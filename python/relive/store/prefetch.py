"""Results computed ahead of their consumer by background threads, in order."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from threading import Lock
from typing import Any, Final, Generic, Self, TypeVar

from relive.errors import ClosedError
from relive.store.remote.priority import ReadAhead

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_END: Final = object()


class _Pending(Future[Any]):
    """A result that something may wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead = ReadAhead()
        self.size = 0
        """What its item counts."""


class Prefetch(Generic[_Item, _Result]):
    """Iterates over `function(item)` for all `items` in order, computed ahead on threads.

    Items are taken on the threads too, by one at a time, so that a slow iterator is read ahead
    as well. Threads start with the first result and end with the iterator. What they read yields to
    other reads, until the consumer waits for it.

    An error of `function` is raised in the position of its result, and the iteration can go
    on. An error of `items` is raised after the results before it, and ends the iteration.
    Ctrl-C while waiting loses no result. In a forked child, which has no such threads, `next`
    raises a `ClosedError`. For one consumer at a time.

    Args:
        function: Called with one item; on several threads at once if there are several workers.
        items: Any iterable. A generator is closed when it was read to the end or by `close()`.
        workers: The number of threads.
        ahead: How many results may be computed or ready beyond the one that is consumed.
        name: The beginning of the names of the threads.
        size: Returns what an item counts; by default nothing.
        most: What items in work, ready or last consumed may count together. One that counts
            more is computed alone.

    Example:
        >>> squares = Prefetch(lambda number: number**2, range(5), workers=2, ahead=4)
        >>> list(squares)
        [0, 1, 4, 9, 16]
    """

    def __init__(
        self,
        function: Callable[[_Item], _Result],
        items: Iterable[_Item],
        *,
        workers: int = 1,
        ahead: int = 1,
        name: str = "relive-prefetch",
        size: Callable[[_Item], int] = lambda _: 0,
        most: int = 0,
    ) -> None:
        self._function = function
        self._items: Iterator[_Item] = iter(items)
        self._workers = workers
        self._ahead = ahead
        self._name = name
        self._size = size
        self._most = most
        self._process = os.getpid()
        self._pool: ThreadPoolExecutor | None = None
        self._drawing = Lock()
        self._room = Lock()  # of the next four
        self._held = 0
        self._consumed = 0  # what the last result counts
        self._blocked: tuple[_Pending, _Item] | None = None  # an item that waits for room
        self._owed = 0  # how many were to be computed after it
        self._results: SimpleQueue[_Pending] = SimpleQueue()
        self._next: _Pending | None = None
        self._ended = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> _Result:
        """Return the next result, or raise the error in its position."""
        if self._process != os.getpid():
            raise ClosedError(
                "this iterator was created before the process was forked, "
                "and cannot be used in the child process",
                hint="create the iterator in the process that uses it",
            )
        if self._ended:
            raise StopIteration
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix=self._name)
            for _ in range(self._ahead):
                self._pool.submit(self._compute)
        self._release(self._pool)
        if self._next is None:
            self._next = self._results.get()
        self._next.ahead.expect()
        error = self._next.exception()  # Ctrl-C while this waits loses no result
        done, self._next = self._next, None
        self._consumed = done.size
        if error is None and done.result() is _END:
            self.close()
            raise StopIteration
        self._pool.submit(self._compute)
        if error is not None:
            raise error
        result: _Result = done.result()
        return result

    def close(self, *, wait: bool = True) -> None:
        """Stop computing ahead. With `wait`, running calls end and a generator is closed first."""
        self._ended = True
        if self._process != os.getpid():
            return
        if self._pool is not None:
            self._pool.shutdown(wait=wait, cancel_futures=True)
        if wait:
            close = getattr(self._items, "close", None)
            if close is not None:
                close()

    def __del__(self) -> None:
        # When the interpreter exits, its threads have ended, and modules may be gone already.
        if hasattr(self, "_ended") and not sys.is_finalizing():
            self.close(wait=False)

    def _release(self, pool: ThreadPoolExecutor) -> None:
        """Make room: the consumer no longer needs the last result."""
        with self._room:
            self._held -= self._consumed
            self._consumed = 0
            if self._blocked is None or not self._has_room(self._blocked[0].size):
                return
            (done, item), self._blocked = self._blocked, None
            owed, self._owed = self._owed, 0
            self._held += done.size
        pool.submit(self._run, done, item)
        for _ in range(owed):
            pool.submit(self._compute)

    def _has_room(self, size: int) -> bool:
        return not self._held or self._held + size <= self._most

    def _compute(self) -> None:
        """Take the next item and compute its result, or leave both for when there is room.

        No thread waits for room: it would keep this object alive, and Python at its exit.
        """
        with self._drawing:
            with self._room:
                if self._blocked is not None:
                    self._owed += 1
                    return
            done = _Pending()
            self._results.put(done)
            if self._ended:
                done.set_result(_END)
                return
            try:
                item = next(self._items)
                done.size = self._size(item)
            except StopIteration:
                done.set_result(_END)
                return
            except BaseException as error:  # noqa: BLE001 - the consumer raises it
                self._items = iter(())
                done.set_exception(error)
                return
            with self._room:
                if not self._has_room(done.size):
                    self._blocked = done, item
                    return
                self._held += done.size
        self._run(done, item)

    def _run(self, done: "_Pending", item: _Item) -> None:
        try:
            with done.ahead:
                found = self._function(item)
            done.set_result(found)
        except BaseException as error:  # noqa: BLE001 - the consumer raises it
            done.set_exception(error)
