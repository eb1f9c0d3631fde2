"""Sends Ctrl-C and waits until Python has handled it."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_HANDLED = threading.Semaphore(0)


@contextmanager
def handling() -> Iterator[None]:
    """Raise `KeyboardInterrupt` at each Ctrl-C, and note that it was raised."""

    def handler(*_: object) -> None:
        _HANDLED.release()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    """Send Ctrl-C, and wait until `KeyboardInterrupt` was raised on the main thread."""
    os.kill(os.getpid(), signal.SIGINT)
    assert _HANDLED.acquire(timeout=60)
