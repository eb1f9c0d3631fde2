"""Checks that an export does not replace what it reads."""

import os
from collections.abc import Sequence
from pathlib import Path

from relive.errors import InvalidError
from relive.replay.source import RunSource
from relive.replay.storage.layout import database_path
from relive.store.paths import absolute_path


def check_target(target: str | os.PathLike[str], sources: Sequence[RunSource]) -> Path:
    """Return the path of a file to write.

    One that belongs to a root that is exported, or a URI, is an `InvalidError`.

    Files are compared by `os.stat`: opening the database would drop the locks of SQLite.
    """
    path = Path(absolute_path(target, "an exported file"))
    if not path.exists():
        return path
    for folder in {source.path.absolute().parent for source in sources}:
        database = database_path(folder.parent)
        logs = [database.with_name(f"{database.name}-{end}") for end in ("wal", "shm")]
        if any(_is_same(path, each) for each in (database, *logs)):
            raise _refused(path, f"the database of the runs in `{folder.parent}`")
        if database.is_file() and path.suffix == ".h5" and _is_same(path.parent, folder):
            raise _refused(path, f"the file of a run in `{folder.parent}`")
    for source in sources:
        if _is_same(path, source.path):
            raise _refused(path, f"the file of run {source.run.run_id!r}")
    return path


def _is_same(one: Path, other: Path) -> bool:
    return other.exists() and one.samefile(other)


def _refused(path: Path, what: str) -> InvalidError:
    return InvalidError(f"`{path}` is {what}", hint="export to another file")
