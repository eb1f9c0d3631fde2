"""Files that a writer holds locked for as long as it lives."""

import contextlib
import fcntl
import os
import time
import weakref
from pathlib import Path
from typing import Final

from relive.errors import LockedError
from relive.store.atomic import storage_error

__all__ = ["FileLock", "is_locked", "sync_folder"]

_HELD: Final["weakref.WeakSet[FileLock]"] = weakref.WeakSet()
_TRIES: Final = 3
_PAUSE_S: Final = 0.01


class FileLock:
    """Holds an open file locked until it is released, or this process ends.

    A forked child does not hold it: what the parent locked is free when the parent dies.
    """

    def __init__(self, handle: int) -> None:
        self._inode = os.fstat(handle).st_ino
        # One that nobody released is released when its writer is gone.
        self._closing = weakref.finalize(self, _close, handle)
        self._closing.atexit = False  # writers that are still open are left first
        _HELD.add(self)

    @classmethod
    def take(cls, path: Path) -> "FileLock":
        """Lock a file that is there; a `LockedError` where another writer holds it."""
        try:
            handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise storage_error(error, path, "locked") from error
        try:
            for _ in range(_TRIES):  # somebody may just be looking whether it is locked
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return cls(handle)
                time.sleep(_PAUSE_S)
        except OSError as error:
            os.close(handle)
            raise storage_error(error, path, "locked") from error
        os.close(handle)
        raise LockedError(f"`{path}` is held by a writer that is alive")

    @classmethod
    def create(cls, path: Path, content: bytes) -> "FileLock":
        """Make a file that is locked from the moment on it has its name."""
        # A name of its own, so that nobody can lock it first.
        born = path.with_name(f"{path.name}.{os.getpid()}")
        handle = os.open(born, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(handle, content)
            os.fsync(handle)
            born.rename(path)
        except BaseException:
            os.close(handle)
            with contextlib.suppress(OSError):
                born.unlink()
            raise
        return cls(handle)

    @property
    def is_held(self) -> bool:
        """Whether it was not released."""
        return self._closing.alive

    def is_at(self, path: Path) -> bool:
        """Whether the file that is held is still the one at `path`."""
        try:
            return path.stat().st_ino == self._inode
        except OSError:
            return False

    def release(self) -> None:
        """Let go of it; in a forked child without unlocking it. May be called again."""
        self._closing()


def is_locked(path: Path) -> bool:
    """Whether a writer that is alive holds the file."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _close(handle: int) -> None:
    with contextlib.suppress(OSError):
        os.close(handle)


def _forget_all() -> None:
    for lock in list(_HELD):
        lock.release()


os.register_at_fork(after_in_child=_forget_all)
