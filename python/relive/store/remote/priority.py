"""Reads ahead of time yield to reads that are waited for, where only one can be made at a time."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self


class ReadAhead:
    """A context in which a thread reads what is not needed yet.

    Its reads yield to others until `expect` is called, by any thread: then something waits for
    them. What is not inside of such a context is waited for.

    Example:
        >>> from relive.store.remote.priority import ReadAhead, is_ahead
        >>> ahead = ReadAhead()
        >>> with ahead:
        ...     print(is_ahead())
        ...     ahead.expect()
        ...     print(is_ahead())
        True
        False
    """

    __slots__ = ("_before", "_is_expected")

    def __init__(self) -> None:
        self._is_expected = False
        self._before: ReadAhead | None = None

    def __enter__(self) -> Self:
        self._before = _thread.ahead
        _thread.ahead = self
        return self

    def __exit__(self, *error: object) -> None:
        _thread.ahead = self._before

    @property
    def is_expected(self) -> bool:
        """Whether something waits for the reads."""
        return self._is_expected

    def expect(self) -> None:
        """Give these reads, also those that have begun to wait, the priority of others."""
        with _state.changed:
            self._is_expected = True
            _state.changed.notify_all()


class _Thread(threading.local):
    ahead: ReadAhead | None = None


class _State:
    """Which threads hold and wait for which turns, of one process."""

    def __init__(self) -> None:
        self.changed = threading.Condition()


class _Waiter:
    __slots__ = ("ahead",)

    def __init__(self) -> None:
        self.ahead = _thread.ahead

    @property
    def is_urgent(self) -> bool:
        return self.ahead is None or self.ahead.is_expected


_thread = _Thread()
_state = _State()


def is_ahead() -> bool:
    """Return whether what this thread reads now is not needed yet."""
    return _thread.ahead is not None and not _thread.ahead.is_expected


class Turns:
    """A lock that threads get in the order in which they came, those that read ahead last."""

    def __init__(self) -> None:
        self._holder: _Waiter | None = None
        self._waiting: list[_Waiter] = []

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the lock, after waiting for it."""
        waiter = _Waiter()
        changed = _state.changed
        with changed:
            self._waiting.append(waiter)
            try:
                while self._holder is not None or self._next() is not waiter:
                    changed.wait()
                self._holder = waiter
            finally:
                self._waiting.remove(waiter)
                changed.notify_all()
        try:
            yield
        finally:
            with changed:
                self._holder = None
                changed.notify_all()

    def _next(self) -> _Waiter:
        return next((each for each in self._waiting if each.is_urgent), self._waiting[0])


def _after_fork() -> None:
    global _state  # noqa: PLW0603 - one for each process
    _state = _State()


os.register_at_fork(after_in_child=_after_fork)
