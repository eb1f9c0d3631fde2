"""File locks: held by a writer for its lifetime, or for the length of a `with` block."""

import contextlib
import fcntl
import os
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from relive.errors import LockedError
from relive.store.atomic import open_file, storage_error

_HELD: Final["weakref.WeakSet[FileLock]"] = weakref.WeakSet()
_TRIES: Final = 3
_PAUSE_S: Final = 0.01


class FileLock:
    """Holds an open file locked until it is released, or this process ends.

    A forked child does not hold it: a file that the parent locked is unlocked when the parent ends.
    """

    def __init__(self, handle: int, *, by_writer: bool = False) -> None:
        self._inode = os.fstat(handle).st_ino
        self._by_writer = by_writer
        # A lock that was not released is released when its owner is garbage-collected.
        self._closing = weakref.finalize(self, _close, handle)
        self._closing.atexit = False  # writers that are still open are left first
        _HELD.add(self)

    @classmethod
    def take(cls, path: Path, *, create: bool = False, tries: int = _TRIES) -> "FileLock":
        """Lock a file; raise a `LockedError` when another writer holds it.

        A symbolic link is an `InvalidError`: the file of a lock is its own. `create` creates the
        file if it does not exist. With one of `tries` nothing is waited for, but a reader that
        looks at the lock at this moment is taken for a writer.
        """
        handle = _open(path, os.O_RDWR | (os.O_CREAT if create else 0))
        try:
            for left in reversed(range(tries)):
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return cls(handle, by_writer=True)
                if left:  # `is_locked` in another process locks it for a moment
                    time.sleep(_PAUSE_S)
        except OSError as error:
            os.close(handle)
            raise storage_error(error, path, "lock") from error
        os.close(handle)
        raise LockedError(f"`{path}` is locked by another writer")

    @classmethod
    def create(cls, path: Path, content: bytes | Callable[[Path], None]) -> "FileLock":
        """Create a file that is locked from the moment it has its name.

        `content` is its bytes, or a function that fills the empty file at a path.
        """
        # It is locked under a temporary name, so that no other process can lock it first.
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        handle = _create_locked(temporary)
        try:
            if callable(content):
                content(temporary)
            else:
                os.write(handle, content)
                os.fsync(handle)
            temporary.rename(path)
        except BaseException:
            os.close(handle)
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        return cls(handle, by_writer=True)

    @property
    def is_held(self) -> bool:
        """Whether the file is still locked."""
        return self._closing.alive

    @property
    def is_of_writer(self) -> bool:
        """Whether it is held by a writer for its lifetime."""
        return self._by_writer and self.is_held

    def is_at(self, path: Path) -> bool:
        """Whether the locked file is still the one at `path`."""
        try:
            return path.stat().st_ino == self._inode
        except OSError:
            return False

    def release(self) -> None:
        """Unlock the file; in a forked child, without unlocking it. May be called again."""
        self._closing()


@contextlib.contextmanager
def locked(
    path: Path,
    *,
    shared: bool = False,
    create: bool = False,
    wait: bool = False,
    follow: bool = False,
) -> Iterator[int]:
    """Hold a file or directory locked for the length of a block, which receives its descriptor.

    Without `wait`, a lock that another process holds is a `LockedError`. `create` creates the
    file if it does not exist. A `shared` lock excludes only exclusive ones. A symbolic link is an
    `InvalidError`, unless `follow`. A child that another thread forks meanwhile does not hold it.
    """
    access = os.O_RDONLY if shared or path.is_dir() else os.O_RDWR
    handle = _open(path, access | (os.O_CREAT if create else 0), follow=follow)
    lock = FileLock(handle)
    try:
        how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(handle, how if wait else how | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError(f"`{path}` is locked by another process") from None
        except OSError as error:
            raise storage_error(error, path, "lock") from error
        yield handle
    finally:
        lock.release()


def is_locked(path: Path) -> bool:
    """Check whether a running writer holds the file locked."""
    try:
        with locked(path, shared=True):
            return False
    except LockedError:
        return True
    except OSError:
        return False


def is_own(path: Path) -> bool:
    """Check whether a writer of this process holds the file locked.

    The number of a process that a file names does not tell: other machines, and containers, have
    processes of that number too.
    """
    return any(lock.is_of_writer and lock.is_at(path) for lock in _held())


def _held() -> list[FileLock]:
    while True:
        with contextlib.suppress(RuntimeError):  # another thread has just locked a file
            return list(_HELD)


def _open(path: Path, flags: int, *, follow: bool = False) -> int:
    try:
        if path.is_dir():
            return os.open(path, flags | os.O_CLOEXEC)
        return open_file(path, flags if follow else flags | os.O_NOFOLLOW)
    except OSError as error:
        raise storage_error(error, path, "open") from error


def _create_locked(path: Path) -> int:
    """Create an empty file that is locked; return its descriptor."""
    for _ in range(_TRIES):
        handle = open_file(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(handle).st_nlink:
                return handle
        except BlockingIOError:
            pass
        except BaseException:
            os.close(handle)
            raise
        # Another process took it for one that a killed writer left, and removes it.
        os.close(handle)
        time.sleep(_PAUSE_S)
    raise LockedError(f"`{path}` is locked by another writer")


def _close(handle: int) -> None:
    with contextlib.suppress(OSError):
        os.close(handle)


def _release_all() -> None:
    for lock in list(_HELD):
        lock.release()


os.register_at_fork(after_in_child=_release_all)
