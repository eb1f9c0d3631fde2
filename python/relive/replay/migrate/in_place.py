"""Migration of a database that is at the place of the database of its own root.

The programs that write and read the original's tables still use their names. So the runs are
written to a root of their own, in `telemetry/migrating`, whose arrays are already where they stay.
`drop_blobs` then moves its database into that of the original, in one transaction.
"""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from relive.errors import LockedError
from relive.replay.storage.layout import REPLAY, database_path
from relive.store.atomic import make_directory, storage_error
from relive.store.locks import FileLock

_STAGED: Final = "migrating"
_LOCK: Final = ".migrate.lock"


def is_own_database(path: Path, root: Path) -> bool:
    """Check whether a database is at the place of the database of a root."""
    own = database_path(root)
    return own.exists() and path.exists() and own.samefile(path)


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """Let no other process migrate in place."""
    path = database_path(root).with_name(_LOCK)
    try:
        lock = FileLock.take(path, create=True)
    except LockedError as error:
        raise LockedError(
            f"another process migrates `{database_path(root)}`", hint="wait until it has ended"
        ) from error
    try:
        yield
    finally:
        lock.release()


def staged_root(root: Path) -> Path:
    """Return the root that the runs are written to; create it if it does not exist."""
    staged = database_path(root).with_name(_STAGED)
    arrays, link = (root / REPLAY).absolute(), staged / REPLAY
    make_directory(arrays)
    make_directory(staged)
    try:
        if link.is_symlink() and link.readlink() != arrays:  # the root was moved
            link.unlink()
        if not link.is_symlink():
            link.symlink_to(arrays, target_is_directory=True)
    except OSError as error:
        raise storage_error(error, link, "create") from error
    return staged


def remove_staged(root: Path) -> None:
    """Remove the root that the runs were written to. The arrays stay."""
    staged = database_path(root).with_name(_STAGED)
    try:
        if staged.exists():
            shutil.rmtree(staged)  # a link is removed, not what it refers to
    except OSError as error:
        raise storage_error(error, staged, "remove") from error
