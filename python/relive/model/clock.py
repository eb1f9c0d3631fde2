"""The clock of recordings: it begins at the wall clock, and never goes back."""

import time
from typing import Final

__all__ = ["now_ns"]

_begun: Final[list[int]] = []


def now_ns() -> int:
    """Give the time in nanoseconds since 1970: the wall clock as of the first use, carried on.

    It goes on with the monotonic clock, so setting the wall clock does not break a recording.
    Thread-safe.
    """
    if not _begun:
        _begun.append(time.time_ns() - time.monotonic_ns())
    return time.monotonic_ns() + _begun[0]
