"""Flushes a record store at intervals, on a background thread."""

import threading

import numpy as np

from relive import _native
from relive.errors import InvalidError, InvalidTypeError, ReliveError


class AutoFlush:
    """A thread that flushes every `seconds`; it ends with `stop()` or its first error."""

    def __init__(self, native: _native.RecordWriter, seconds: float) -> None:
        self._native = native
        self._seconds = seconds
        self._stopped = threading.Event()
        self._error: ReliveError | None = None
        self._thread = threading.Thread(target=self._run, name="relive-flush", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise the error of a flush, once."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def stop(self) -> None:
        """End the thread and wait until it is not flushing."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._seconds):
            try:
                self._native.flush()
            except ReliveError as error:
                self._error = error
                return


def check_seconds(seconds: object) -> float:
    """Return `autoflush_s` as a float, or raise if it is not a positive number."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float | np.number):
        raise InvalidTypeError(f"`autoflush_s` must be a number of seconds, got {seconds!r}")
    if not 0 < seconds <= threading.TIMEOUT_MAX:
        raise InvalidError(f"`autoflush_s` must be a positive number, got {seconds!r}")
    return float(seconds)
