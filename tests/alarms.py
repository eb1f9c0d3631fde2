"""Signals of the timer of this process, with a handler for as long as one may arrive."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing."""


@contextmanager
def alarms(handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Call `handle` at each signal of the timer.

    A thread may have taken a last signal when the timer is stopped, and report it to Python
    later. So a handler that does nothing stays: without one, Python would report an
    `OSError` that it cannot raise.
    """
    signal.signal(signal.SIGALRM, handle)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, _ignore)
