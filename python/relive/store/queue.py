"""Bounded queues between threads, and what happens to items that arrive when one is full."""

import threading
from collections import deque
from itertools import islice
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

from relive._arguments import as_int, check_choice
from relive.errors import ClosedError, OverloadError, ReliveError

Overload: TypeAlias = Literal["block", "drop", "raise"]
"""Wait until there is room, do not store the item, or raise an `OverloadError`."""
OVERLOADS: Final = ("block", "drop", "raise")

_MAX_ITEMS: Final = 1 << 16
T = TypeVar("T")


def check_queue(overload: Any, queue: Any) -> None:
    """Check the arguments `overload` and `queue` of a recorder."""
    check_choice("overload", overload, OVERLOADS)
    if queue is not None:
        as_int("queue", queue, at_least=1, at_most=_MAX_ITEMS)


class BoundedQueue(Generic[T]):
    """A queue to one consumer thread, limited in items and, optionally, bytes.

    One producer at a time calls `offer`, or `reserve` and then `put`. The item that the consumer
    works on counts until it calls `done`. Ctrl-C may interrupt any call of a producer: the item is
    then in the queue, or it is not.

    Args:
        owner: What the queue belongs to, for messages.
        max_items: The most items that it holds.
        max_bytes: The most bytes that it holds.
        min_items: It holds this many items, however many bytes they have.
    """

    def __init__(
        self, owner: str, max_items: int, max_bytes: int | None = None, *, min_items: int = 1
    ) -> None:
        self._owner = owner
        self.max_items = max_items
        self._max_bytes = max_bytes
        self._min_items = min_items
        # Held only for short operations. Reentrant, because the garbage collector may end a
        # writer, and so close its queue, at any moment.
        self._lock = threading.RLock()
        self._waiters: list[threading.Lock] = []
        # Each item is followed by its size: one call appends both, so that Ctrl-C does not come
        # between the two, and a tuple of them would be work for the garbage collector.
        self._items: deque[Any] = deque()
        self._bytes = 0
        self._failure: ReliveError | None = None
        self._delay: ReliveError | None = None
        self._delays = 0
        self.is_closed = False
        self.is_discarded = False
        self.done_items = 0

    def __len__(self) -> int:
        """Return the number of items that wait or are being worked on."""
        return len(self._items) // 2

    @property
    def nbytes(self) -> int:
        """The bytes of the items that wait or are being worked on."""
        return self._bytes

    @property
    def put_items(self) -> int:
        """The number of items that were put."""
        with self._lock:
            return self.done_items + len(self)

    def reserve(self, overload: Overload = "block", nbytes: int = 0) -> bool:
        """Wait for room for one item; return False if it is to be dropped."""
        while True:
            with self._lock:
                self.check()
                if not self._is_full(nbytes):
                    return True
                if overload == "drop":
                    return False
                if overload == "raise":
                    raise OverloadError(
                        f"{self._owner}: the queue is full with {len(self)} items",
                        hint='overload="block" waits for room, overload="drop" drops items',
                    )
                waiter = self._waiter()
            waiter.acquire()

    def put(self, item: T, nbytes: int = 0) -> None:
        """Append an item, for which `reserve` found room."""
        with self._lock:
            # Appending comes last: Ctrl-C before it leaves no item that the consumer missed.
            if self._waiters:
                self._wake()
            self._bytes += nbytes
            self._items.extend((item, nbytes))

    def offer(self, item: T, nbytes: int = 0, overload: Overload = "block") -> bool:
        """Append an item when there is room for it; return False if it is to be dropped."""
        with self._lock:
            limit = self._max_bytes
            has_room = len(self._items) < 2 * self.max_items and (
                limit is None or self._bytes + nbytes <= limit
            )
            if has_room and self._failure is None and not self.is_discarded:
                if self._waiters:
                    self._wake()
                self._bytes += nbytes
                self._items.extend((item, nbytes))
                return True
        if not self.reserve(overload, nbytes):
            return False
        self.put(item, nbytes)
        return True

    def get(self) -> T | None:
        """Wait for the first item, which stays in the queue until `done`; None at the end."""
        while True:
            with self._lock:
                if self.is_discarded:
                    return None
                if self._items:
                    item: T = self._items[0]
                    return item
                if self.is_closed:
                    return None
                waiter = self._waiter()
            waiter.acquire()

    def get_many(self, count: int, timeout_s: float | None = None) -> list[T] | None:
        """Wait for items and return the first `count`, or all if they are fewer; None at the end.

        They stay in the queue until `done`. After `timeout_s` seconds without an item, the list is
        empty.
        """
        while True:
            with self._lock:
                if self.is_discarded:
                    return None
                if self._items:
                    return list(islice(self._items, 0, 2 * count, 2))
                if self.is_closed:
                    return None
                waiter = self._waiter()
            if not waiter.acquire(timeout=-1 if timeout_s is None else max(timeout_s, 0.0)):
                return []

    def done(self, items: int = 1) -> None:
        """Remove the items that `get` or `get_many` returned."""
        with self._lock:
            for _ in range(items):
                self._items.popleft()
                self._bytes -= self._items.popleft()
            self.done_items += items
            self._wake()

    def item(self, number: int) -> T | None:
        """Return an item by its number, from 0 on; None if it is not in the queue."""
        with self._lock:
            position = number - self.done_items
            found: T | None = self._items[2 * position] if 0 <= position < len(self) else None
            return found

    def drain(self) -> None:
        """Wait until the consumer is done with every item so far, has failed or has stopped.

        If the consumer cannot go on for now, its error is raised, and the items stay.
        """
        target, delays = self.put_items, self._delays
        while True:
            with self._lock:
                if self.done_items >= target or self._failure is not None or self.is_discarded:
                    return
                if self._delay is not None and self._delays > delays:
                    raise self._raised(self._delay)
                waiter = self._waiter()
            waiter.acquire()

    def close(self, *, discard: bool = False) -> None:
        """Let the consumer stop after the last item; with `discard`, before the next one."""
        with self._lock:
            self.is_discarded |= discard
            self.is_closed = True
            self._wake()

    def delay(self, error: ReliveError) -> None:
        """Let every `drain` that waits raise the error; the consumer tries again."""
        with self._lock:
            self._delay = error
            self._delays += 1
            self._wake()

    def fail(self, error: ReliveError) -> None:
        """Let every later `reserve` and `check` raise the error."""
        with self._lock:
            self._failure = error
            self._wake()

    def check(self) -> None:
        """Raise the error of the consumer, or a `ClosedError` after `close(discard=True)`."""
        if self.is_discarded:
            raise ClosedError(f"{self._owner} was aborted")
        failure = self._failure
        if failure is not None:
            raise self._raised(failure) from failure

    def _raised(self, error: ReliveError) -> ReliveError:
        """Return an error of the consumer as it is raised by a producer."""
        message = error.message
        if self._owner not in message:
            message = f"{self._owner}: {message}"
        return type(error)(message, hint=error.hint)

    def _is_full(self, nbytes: int) -> bool:
        if len(self) >= self.max_items:
            return True
        limit = self._max_bytes
        if limit is None or len(self) < self._min_items:
            return False
        return self._bytes + nbytes > limit

    def _waiter(self) -> threading.Lock:
        """Return a lock that can be acquired after the next change; the queue's lock is held."""
        # `threading.Condition` acquires its lock again after waiting, and Ctrl-C can prevent it.
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.append(waiter)
        return waiter

    def _wake(self) -> None:
        """Wake every waiting thread; the queue's lock is held."""
        for waiter in self._waiters:
            if waiter.locked():
                waiter.release()
        self._waiters.clear()
