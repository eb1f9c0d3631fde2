"""When pages were last used, also those that are not in the cache any more.

A file of 8 bytes for each of many slots; a page has the slot of its hash. Two pages of one slot
only make each other look more recent. It is read and written without a lock.
"""

import os
import struct
import time
from typing import Final

from relive.store.cache.layout import PAGE_BYTES

_SLOT: Final = struct.Struct("<q")
_MIN_SLOTS: Final = 512
_MAX_SLOTS: Final = 1 << 20
_PER_PAGE: Final = 4
# Reads of one page within this time are one use of it.
_ONE_USE_NS: Final = 10_000_000_000
_FACTOR: Final = 0x9E3779B97F4A7C15


class Recency:
    """The last use of each page, in a file that all processes share. Thread-safe."""

    def __init__(self, path: str, limit: int) -> None:
        slots = min(_MAX_SLOTS, max(_MIN_SLOTS, _PER_PAGE * limit // PAGE_BYTES))
        self._slots = 1 << (slots - 1).bit_length()
        # Another limit has another file: a slot must mean the same to all who use it.
        self._path = f"{path}-{self._slots}"
        self._handle = -1

    @property
    def nbytes(self) -> int:
        """The size of the file."""
        return self._slots * _SLOT.size

    def create(self) -> None:
        """Make the file, of a size that does not grow later; may raise `OSError`."""
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if os.fstat(handle).st_size < self.nbytes:
                os.pwrite(handle, bytes(self.nbytes), 0)
        finally:
            os.close(handle)

    def touch(self, digest: str, page: int) -> int | None:
        """Record a use; return how long ago the one before it was, None if that is unknown."""
        handle, offset, now = self._open(), self._offset(digest, page), time.time_ns()
        if handle < 0:
            return None
        last = self._read(handle, offset)
        if now - last < _ONE_USE_NS and last:
            return None
        try:
            os.pwrite(handle, _SLOT.pack(now), offset)
        except OSError:
            return None
        return now - last if last else None

    def last_ns(self, digest: str, page: int) -> int:
        """Return when a page was last used, 0 if that is unknown."""
        handle = self._open()
        return 0 if handle < 0 else self._read(handle, self._offset(digest, page))

    def forget(self) -> None:
        """Close the file; the next call opens it again."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    @staticmethod
    def _read(handle: int, offset: int) -> int:
        try:
            data = os.pread(handle, _SLOT.size, offset)
        except OSError:
            return 0
        return int(_SLOT.unpack(data)[0]) if len(data) == _SLOT.size else 0

    def _offset(self, digest: str, page: int) -> int:
        hashed = int(digest[:16], 16) ^ (page * _FACTOR & (1 << 64) - 1)
        return hashed % self._slots * _SLOT.size

    def _open(self) -> int:
        if self._handle < 0:
            for flags in (os.O_RDWR, os.O_RDONLY):
                try:
                    self._handle = os.open(self._path, flags | os.O_CLOEXEC)
                except OSError:
                    continue
                break
        return self._handle
