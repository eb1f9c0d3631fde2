"""How many bytes a cache has allocated, so that it never exceeds its limit.

One small file has the sum, and writers of all processes change it one at a time: each adds what it
is going to write before it writes. So after a kill the sum is too large, never too small. It is
counted anew from time to time, which also corrects what happens on disks without locks.
"""

import contextlib
import errno
import fcntl
import os
import stat
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from relive.store.cache.layout import TEMPORARY, USAGE

_SUM: Final = struct.Struct("<qd8s")
_MAGIC: Final = b"relive-u"
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
BLOCK: Final = 4096
"""What files and directories are rounded up to; the unit of nearly all file systems."""
_COUNT_EVERY_S: Final = 3600.0
_LOCK_S: Final = 10.0
_PAUSE_S: Final = 0.002
# A temporary file that is older belongs to a process that was killed.
_ABANDONED_S: Final = 600.0
_BUSY: Final = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


class BusyError(OSError):
    """Another process has the lock for a long time."""


class Usage:
    """The allocated bytes of a cache below `base`. Thread-safe; see `locked`."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._path = base / USAGE
        self._lock = threading.Lock()
        self._handle = -1
        self._counted = 0.0
        self.used = 0
        """The bytes, as they were when this process last had the lock."""

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Let this thread be the only writer, and know the sum; may raise `OSError`.

        A disk without locks is written to without one.
        """
        with self._lock:
            handle = self._open()
            held = self._take(handle)
            try:
                found = os.pread(handle, _SUM.size, 0)
                if len(found) == _SUM.size:
                    used, counted, magic = _SUM.unpack(found)
                else:
                    used, counted, magic = 0, 0.0, b""
                age = time.time() - counted
                if magic != _MAGIC or used < 0 or not 0 <= age < _COUNT_EVERY_S:
                    self._count(handle)
                else:
                    self.used, self._counted = used, counted
                yield
            finally:
                if held:
                    with contextlib.suppress(OSError):
                        fcntl.flock(handle, fcntl.LOCK_UN)

    def add(self, nbytes: int) -> None:
        """Add bytes that will be allocated, or with a minus were freed; inside `locked`."""
        self.used = max(0, self.used + nbytes)
        os.pwrite(self._handle, _SUM.pack(self.used, self._counted, _MAGIC), 0)

    def count(self) -> None:
        """Count the allocated bytes; inside `locked`."""
        self._count(self._handle)

    def forget(self) -> None:
        """Start anew in a forked process, which must not share the lock of its parent."""
        self._lock = threading.Lock()
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def _count(self, handle: int) -> None:
        remove_abandoned(self._base / TEMPORARY)
        self.used, self._counted = allocated(self._base), time.time()
        os.pwrite(handle, _SUM.pack(self.used, self._counted, _MAGIC), 0)

    def _open(self) -> int:
        if self._handle >= 0:
            # Somebody may have deleted the cache.
            with contextlib.suppress(OSError):
                if os.stat(self._path).st_ino == os.fstat(self._handle).st_ino:  # noqa: PTH116
                    return self._handle
            os.close(self._handle)
            self._handle = -1
        self._base.mkdir(parents=True, exist_ok=True)
        self._handle = os.open(self._path, _FLAGS, 0o666)
        return self._handle

    @staticmethod
    def _take(handle: int) -> bool:
        deadline = time.monotonic() + _LOCK_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in _BUSY:
                    return False
            else:
                return True
            if time.monotonic() > deadline:
                raise BusyError(errno.EAGAIN, "the cache is locked")
            time.sleep(_PAUSE_S)


def rounded(nbytes: int) -> int:
    """Return what a file of a size allocates at most."""
    return -(-nbytes // BLOCK) * BLOCK


def allocated(folder: Path) -> int:
    """Return the allocated bytes of a folder with everything in it; links are not followed."""
    total, folders = _blocks(folder), [os.fspath(folder)]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):
                        status = entry.stat(follow_symlinks=False)
                        # A file that was just written may not have its blocks yet.
                        size = 0 if stat.S_ISDIR(status.st_mode) else rounded(status.st_size)
                        total += max(status.st_blocks * 512, size)
                        if stat.S_ISDIR(status.st_mode):
                            folders.append(entry.path)
        except OSError:
            continue
    return total


def remove_abandoned(folder: Path) -> int:
    """Delete temporary files of killed processes; return how many."""
    removed = 0
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if time.time() - entry.stat(follow_symlinks=False).st_mtime > _ABANDONED_S:
                    os.unlink(entry.path)  # noqa: PTH108 - faster than a Path
                    removed += 1
    return removed


def _blocks(folder: Path) -> int:
    try:
        return folder.stat().st_blocks * 512
    except OSError:
        return 0
