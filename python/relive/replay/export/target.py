"""Checks the name of the file that an export writes, and that it is not what is read."""

import os
from collections.abc import Sequence
from pathlib import Path

from relive.errors import InvalidError
from relive.replay.source import RunSource
from relive.replay.storage.layout import database_path
from relive.store.paths import absolute_path


def check_target(
    target: str | os.PathLike[str], suffixes: tuple[str, ...], sources: Sequence[RunSource]
) -> Path:
    """Return the path of a file to write.

    One that belongs to a root that is exported, a URI, and a name without one of the suffixes are
    an `InvalidError`. Files are compared by `os.stat`: opening the
    database would drop the locks of SQLite.
    """
    path = Path(absolute_path(target, "an exported file"))
    if path.exists():
        _check_other(path, sources)
    if path.suffix.lower() not in suffixes:
        raise InvalidError(
            f"cannot write `{path}`: the suffix must be {' or '.join(suffixes)}, got "
            f"{path.suffix!r}",
            hint=f"use `{path.with_suffix(suffixes[0])}`" if path.name else None,
        )
    return path


def _check_other(path: Path, sources: Sequence[RunSource]) -> None:
    """Raise an `InvalidError` if a file belongs to a root that is exported."""
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


def _is_same(one: Path, other: Path) -> bool:
    return other.exists() and one.samefile(other)


def _refused(path: Path, what: str) -> InvalidError:
    return InvalidError(f"`{path}` is {what}", hint="export to another file")
