"""Memory of long streams: large buffers go back to the system when they are released."""

import ctypes
import os
import sys
from functools import cache
from typing import Final

import pyarrow as pa

# The number of M_MMAP_THRESHOLD in malloc.h.
_MMAP_THRESHOLD: Final = -3
_LARGE_BYTES: Final = 1 << 20
_SETTINGS: Final = ("MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


@cache
def pool() -> pa.MemoryPool:
    """Return the memory pool for windows and batches, after setting up this process once.

    The C library of Linux keeps what was allocated and released for the next allocation of the
    same thread, up to 64 MiB in each of many arenas. Streams allocate buffers of many MiB on many
    threads, so that a process would grow for hours. With a fixed threshold, allocations of 1 MiB
    or more are mapped, and unmapped when they are released. Settings of the environment are kept.
    """
    if sys.platform == "linux" and not any(os.environ.get(name) for name in _SETTINGS):
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries may lack it
        if mallopt is not None:
            mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
    return pa.system_memory_pool()
