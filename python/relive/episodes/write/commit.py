"""The folder of an episode: begun, committed, removed, each in an order that a kill may cut."""

import contextlib
import json
import os
import re
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from relive.episodes.meta import META, write_json
from relive.errors import ReliveError
from relive.store.atomic import fsync_directory, storage_error
from relive.store.locks import FileLock

__all__ = [
    "ABORTED",
    "COLUMNS",
    "INDEX",
    "MARKER",
    "NUMBER",
    "VIDEO",
    "begin_folder",
    "commit",
    "remove_folder",
]

MARKER: Final = ".unfinished"
"""The file that is in the folder, locked by the writer, until the episode is committed."""
ABORTED: Final = ".aborted."
"""What the name of a folder begins with while it is being removed."""
NUMBER: Final = re.compile(r"[0-9]{12}")
"""What blocks and episodes of a root are called."""
COLUMNS: Final = ".parquet"
"""What the name of a signal's file ends with, unless it is video."""
VIDEO: Final = ".mp4"
INDEX: Final = ".frames.parquet"
"""What the name of a video's index ends with."""


def begin_folder(folder: Path, meta: dict[str, Any]) -> FileLock:
    """Write the first files to a folder that was just made; after an error it is gone."""
    lock = None
    try:
        # A folder with the one file and without the other would look committed.
        lock = FileLock.create(folder / MARKER, _marker(meta))
        write_json(folder / META, meta)
        _sync(folder)
    except OSError as error:
        if lock is not None:
            lock.release()
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
        if isinstance(error, ReliveError):
            raise
        raise storage_error(error, folder, "written") from error
    return lock


def commit(folder: Path) -> None:
    """Commit an episode, all files of which are on the disk."""
    try:
        fsync_directory(folder)
        (folder / MARKER).unlink(missing_ok=True)
        _sync(folder)
    except OSError as error:
        raise storage_error(error, folder, "committed") from error


def remove_folder(folder: Path, uid: str) -> None:
    """Remove an episode that is not committed."""
    gone = folder.with_name(f"{ABORTED}{folder.name}.{uid}")
    try:
        folder.rename(gone)  # no part of it is ever seen
        shutil.rmtree(gone)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise storage_error(error, folder, "removed") from error


def _marker(meta: Mapping[str, Any]) -> bytes:
    about = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "began": meta["created_ts_ns"],
        "uid": meta["uid"],
    }
    return json.dumps(about).encode()


def _sync(folder: Path) -> None:
    """Have the names in a folder on the disk, and its own in its block, and that of the block."""
    fsync_directory(folder)
    for above in (folder.parent, folder.parent.parent):
        with contextlib.suppress(PermissionError):  # somebody else's, so it was not made here
            fsync_directory(above)
