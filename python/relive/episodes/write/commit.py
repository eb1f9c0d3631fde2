"""The directory of an episode: created, committed, removed, safely at any moment of a kill."""

import contextlib
import json
import os
import shutil
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from relive.episodes.file_list import write_file_list
from relive.episodes.layout import ABORTED, MARKER, META, TAPE, is_block, leftovers
from relive.episodes.meta import write_json
from relive.errors import CorruptError, ReliveError
from relive.store.atomic import fsync_directory, storage_error
from relive.store.digest import FileDigest
from relive.store.locks import FileLock, locked
from relive.store.signal.tape import open_tape


@contextlib.contextmanager
def changing_block(block: Path) -> Iterator[None]:
    """Hold a shared lock of a block while a directory in it has no marker and is not committed.

    Who holds the exclusive lock knows that the writer of such a directory is gone. The parent of
    an episode outside of a root is not a block, and is not locked.
    """
    with locked(block, shared=True, wait=True) if is_block(block) else contextlib.nullcontext():
        yield


def begin_folder(folder: Path, meta: dict[str, Any]) -> FileLock:
    """Create the directory of an episode and its first files; after an error there is none."""
    with changing_block(folder.parent):
        folder.mkdir()
        with _removed_after_error(folder):
            # A directory with metadata but without the marker would look committed.
            lock = FileLock.create(folder / MARKER, _marker(meta))
    with _removed_after_error(folder), contextlib.ExitStack() as undo:
        undo.callback(lock.release)
        write_json(folder / META, meta, sync_name=False)
        sync_folder(folder)
        undo.pop_all()
    return lock


def place_folder(folder: Path, path: Path) -> Path:
    """Rename the directory of a whole episode; a path that exists raises a `FileExistsError`."""
    path.parent.mkdir(exist_ok=True)
    with changing_block(path.parent):
        path.mkdir()
        folder.rename(path)  # replaces the empty directory
    return path


def commit(folder: Path, digests: Mapping[str, FileDigest] | None = None) -> None:
    """Write `files.json` and commit an episode whose other files are all on the disk.

    Files without an entry in `digests` are read.
    """
    write_file_list(folder, digests or {})
    try:
        (folder / MARKER).unlink(missing_ok=True)
        sync_folder(folder)
    except OSError as error:
        raise storage_error(error, folder, "commit") from error


def sync_folder(folder: Path) -> None:
    """Put the names of the files, of the directory and of its block on the disk."""
    fsync_directory(folder)
    for above in (folder.parent, folder.parent.parent):
        with contextlib.suppress(PermissionError):  # then this process did not create it
            fsync_directory(above)


def remove_folder(folder: Path, suffix: str) -> None:
    """Remove an episode; `suffix` is part of the name that it has meanwhile."""
    gone = folder.with_name(f"{ABORTED}{folder.name}.{suffix}")
    try:
        folder.rename(gone)  # readers never see it half removed
        shutil.rmtree(gone)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise storage_error(error, folder, "remove") from error


def remove_leftovers(folder: Path) -> None:
    """Remove `.tape`, `.spill` and `.part` files; a tape with records raises a `CorruptError`.

    To be called when all signals are finished.
    """
    paths = leftovers(folder)
    for path in paths:  # before any of them is removed
        if path.suffix == TAPE:
            opened = open_tape(path)
            if opened is not None and opened[0].rows:
                raise CorruptError(
                    f"`{path}` contains records that are not in any signal file of the episode"
                )
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise storage_error(error, path, "remove") from error


@contextlib.contextmanager
def _removed_after_error(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
        if isinstance(error, ReliveError):
            raise
        raise storage_error(error, folder, "write") from error


def _marker(meta: Mapping[str, Any]) -> bytes:
    about = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "began": meta["created_ts_ns"],
        "uid": meta["uid"],
    }
    return json.dumps(about).encode()
