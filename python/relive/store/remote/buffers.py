"""Memory for large responses, used again: what malloc keeps of it would grow with the threads."""

import mmap
import os
from collections import deque
from typing import Any, Final

import numpy as np

LARGE_BYTES: Final = 1 << 20
"""From here on a buffer is worth keeping. Smaller ones are left to malloc."""
BUFFER_BYTES: Final = 12 << 20
"""The size of a buffer that is kept: the largest response to one request."""
# What was released and is kept. The C library would keep as much of each of many arenas, since a
# response is allocated by whichever thread makes the request.
_MOST_KEPT: Final = 4

_kept: deque[mmap.mmap] = deque()


class _Leased(np.ndarray[Any, Any]):
    """Bytes of a buffer, which is kept for others when nothing refers to them."""

    lease: mmap.mmap | None = None

    def __del__(self, kept: deque[mmap.mmap] = _kept, most: int = _MOST_KEPT) -> None:
        # Any thread, inside of any allocation: a lock could be held by this thread already. The
        # arguments are there even while Python exits, when names of the module may be gone.
        if self.lease is not None and len(kept) < most:
            kept.append(self.lease)


def lease(nbytes: int) -> memoryview:
    """Return memory of this size, with any content.

    Memory of up to 12 MiB goes back to be used again when no view of it is left.

    Example:
        >>> from relive.store.remote.buffers import lease
        >>> len(lease(3_000_000))
        3000000
    """
    if nbytes > BUFFER_BYTES or nbytes < LARGE_BYTES:
        return np.empty(nbytes, np.uint8).data
    try:
        buffer = _kept.pop()
    except IndexError:
        # Private, so that a forked process does not write to the memory of its parent.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        buffer = mmap.mmap(-1, BUFFER_BYTES, flags=flags)
    leased = np.frombuffer(buffer, np.uint8, nbytes).view(_Leased)
    leased.lease = buffer
    return leased.data


os.register_at_fork(after_in_child=_kept.clear)
