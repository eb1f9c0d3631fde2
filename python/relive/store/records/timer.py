"""Flushing now and then, while nobody asks."""

import threading
import weakref
from typing import TYPE_CHECKING

import numpy as np

from relive.errors import InvalidError, InvalidTypeError, ReliveError

if TYPE_CHECKING:
    from relive.store.records.writer import WriteHandle

__all__ = ["FlushTimer", "check_seconds"]


class FlushTimer:
    """A thread that flushes every so many seconds, and ends with what it flushes."""

    def __init__(self, handle: "WriteHandle", seconds: float) -> None:
        self._over = over = threading.Event()
        # Whoever forgets the handle ends the thread.
        found = weakref.ref(handle, lambda _: over.set())
        self._thread = threading.Thread(
            target=_flush_often, args=(found, over, seconds), name="relive-flush", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait for a flush that it is in."""
        self._over.set()
        if self._thread is not threading.current_thread():
            self._thread.join()


def _flush_often(found: "weakref.ref[WriteHandle]", over: threading.Event, seconds: float) -> None:
    while not over.wait(seconds):
        handle = found()
        if handle is None:
            return
        try:
            handle.native.flush()
        except ReliveError as error:
            handle.note(error)
            return
        del handle  # or it would live as long as the wait


def check_seconds(seconds: object) -> float:
    """Give a number of seconds that can be waited for."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float | np.number):
        raise InvalidTypeError(f"autoflush_s is a number of seconds, not {seconds!r}")
    if not 0 < seconds <= threading.TIMEOUT_MAX:
        raise InvalidError(f"autoflush_s is a positive number of seconds, not {seconds!r}")
    return float(seconds)
