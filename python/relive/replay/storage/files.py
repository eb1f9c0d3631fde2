"""The file of a run's arrays, and how another file takes its place.

The tables of a run have offsets into its file, so both have to change together. The new file is
written under a temporary name and synced. One transaction then replaces the tables, counts
`arrays_version` up and sets `arrays_pending`: from then on the new file is the file of the run.
Only then does it get the name of the old one, and `arrays_pending` is cleared when that name is on
the disk. Whoever holds the run locked finishes a replacement that was interrupted.
"""

from dataclasses import replace
from pathlib import Path

from relive.errors import InvalidError, NotFoundError, ReliveError, UnknownNameError
from relive.replay.storage.connection import Database
from relive.replay.storage.layout import arrays_path, database_path, replacement_path
from relive.replay.storage.tables import RunRow, read_run, write_run
from relive.store.atomic import fsync_directory, replace_file, storage_error


def current_path(root: Path, run: RunRow) -> Path:
    """Return the file that the tables of a run are about.

    A replacement may be finished at any moment: `is_current` tells whether the file that was opened
    is the right one.
    """
    if run.arrays_pending:
        path = replacement_path(root, run.run_id, run.arrays_version)
        if path.exists():
            return path
    return arrays_path(root, run.run_id)


def missing_arrays(path: Path, run_id: str) -> NotFoundError:
    """Return the error for the file of a run that has arrays in it, but does not exist."""
    return NotFoundError(
        f"`{path}` is missing: run {run_id!r} has arrays in it",
        hint="restore the file, or remove the run with `relive replay rm`; its steps and episodes "
        "in the database can be read without it",
    )


def unreadable_arrays(error: OSError, path: Path, run_id: str) -> ReliveError:
    """Return the relive error for a file of arrays that cannot be opened or read."""
    if isinstance(error, FileNotFoundError):
        return missing_arrays(path, run_id)
    if isinstance(error, IsADirectoryError):
        return InvalidError(f"`{path}` is a directory, expected a file")
    return storage_error(error, path, "read")


def is_current(root: Path, run: RunRow, path: Path) -> bool:
    """Check, after `path` was opened, that it is the file that the tables of a run are about."""
    with Database.open(database_path(root)) as database, database.snapshot() as connection:
        now = read_run(connection, run.run_id)
    is_same = (now.arrays_version, now.arrays_pending) == (run.arrays_version, run.arrays_pending)
    # A file that lost its temporary name since then was perhaps not found.
    return is_same and (path == arrays_path(root, run.run_id) or path.exists())


def is_replacing(root: Path, run: RunRow) -> bool:
    """Check whether a replacement is going on, or was interrupted."""
    left = replacement_path(root, run.run_id, run.arrays_version + 1)
    return bool(run.arrays_pending) or left.exists()


def settle(database: Database, root: Path, run_id: str) -> bool:
    """Finish a replacement that was interrupted, or remove its file; return whether there was one.

    The caller holds the run locked.
    """
    with database.snapshot() as connection:
        try:
            run = read_run(connection, run_id)
        except UnknownNameError:
            return False
    if not is_replacing(root, run):
        return False
    # What was read may be in the memory of the kernel only: the tables must be on the disk before
    # a file is renamed or removed. This also overwrites a transaction that was not committed, but
    # is in the journal of SQLite.
    with database.transaction(sync=True) as connection:
        write_run(connection, run)
    if run.arrays_pending:
        finish(database, root, run)
    remove(replacement_path(root, run_id, run.arrays_version + 1))
    return True


def finish(database: Database, root: Path, run: RunRow) -> None:
    """Give the new file its name. The tables with `arrays_pending` are on the disk already."""
    new = replacement_path(root, run.run_id, run.arrays_version)
    path = arrays_path(root, run.run_id)
    if new.exists():
        replace_file(new, path)
    else:  # it has its name, but that may be in the memory of the kernel only
        sync_names(path.parent)
    with database.transaction(sync=True) as connection:
        write_run(connection, replace(run, arrays_pending=0))


def remove(path: Path) -> None:
    """Remove a file, if it exists."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise storage_error(error, path, "remove") from error


def sync_names(folder: Path) -> None:
    """Put the names in a directory on the disk."""
    try:
        fsync_directory(folder)
    except OSError as error:
        raise storage_error(error, folder, "sync") from error
