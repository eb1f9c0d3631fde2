"""Completes runs whose recorders were killed."""

import os
from dataclasses import dataclass
from pathlib import Path

from relive._native import crc32c
from relive.errors import (
    LockedError,
    ReliveError,
    UnknownNameError,
    UnsupportedError,
)
from relive.replay.config import ReplayConfig
from relive.replay.manage.runs import writing
from relive.replay.source import root_of
from relive.replay.storage.connection import Database
from relive.replay.storage.files import is_replacing, unreadable_arrays
from relive.replay.storage.layout import (
    arrays_path,
    database_path,
    lock_path,
    run_of_file,
    runs_path,
    update_index,
)
from relive.replay.storage.tables import RunRow, RunTables, read_run
from relive.replay.storage.unused_commits import KeptWal, keep_unused_commits
from relive.replay.writing.writer import RunWriter
from relive.store.atomic import open_reader
from relive.store.locks import is_locked

_SUPERBLOCK_BYTES = 48


@dataclass(frozen=True, slots=True)
class RecoveredRun:
    """A run that was completed.

    Example:
        >>> import tempfile
        >>> from relive import replay
        >>> root = tempfile.mkdtemp()
        >>> recorder = replay.ReplayRecorder(root, "run-1")
        >>> _ = recorder.step([0.5], 1, 1.0)
        >>> recorder.leave()  # as a kill does, after the last commit
        >>> (run,) = replay.recover(root).runs
        >>> run.run_id, run.episodes, run.steps
        ('run-1', 1, 1)
    """

    run_id: str
    path: Path
    """The file of its arrays."""
    episodes: int
    steps: int


@dataclass(frozen=True, slots=True)
class RecoveredRuns:
    """What `recover` did.

    Example:
        >>> import tempfile
        >>> from relive import replay
        >>> root = tempfile.mkdtemp()
        >>> with replay.ReplayRecorder(root, "run-1") as recorder:
        ...     _ = recorder.step([0.5], 1, 1.0)
        ...     recorder.flush()
        ...     found = replay.recover(root)
        >>> found.runs, found.locked, found.problems
        ((), ('run-1',), ())
    """

    root: Path
    runs: tuple[RecoveredRun, ...]
    locked: tuple[str, ...]
    """The ids of the runs that are being recorded, which were not changed."""
    problems: tuple[str, ...]
    """The runs that could not be completed, why, and perhaps a hint on a second line; nothing of
    them was removed."""
    compacted: tuple[str, ...] = ()
    """The ids of the runs whose compaction was interrupted: it is finished now, or undone."""
    lost: str | None = None
    """Why commits could not be used, if the log of the database has any; None if it has none."""
    kept: Path | None = None
    """The copy of that log."""


def recover(root: str | os.PathLike[str]) -> RecoveredRuns:
    """Complete the runs of a root whose recorders were killed, or the run of one file in it.

    Every step that was committed is kept. Open episodes end as truncated, and the metadata of
    HDF5 is written, so that other programs can read the file. It is also written again where it
    is damaged. A compaction that was interrupted is finished or undone. If the log of the database
    has commits that SQLite cannot use, it is copied before it is emptied.

    Args:
        root: The directory of the runs, or the `.h5` file of a run in it. With a file, a run that
            is being recorded is a `LockedError`.

    Example:
        >>> import tempfile
        >>> from relive import replay
        >>> root = tempfile.mkdtemp()
        >>> recorder = replay.ReplayRecorder(root, "run-1")
        >>> _ = recorder.step([0.5], 1, 1.0)
        >>> recorder.leave()  # as a kill does, after the last commit
        >>> replay.ReplayRun(root, "run-1").status
        'interrupted'
        >>> [run.run_id for run in replay.recover(root).runs]
        ['run-1']
    """
    path, chosen = _root_and_run(root)
    kept = _kept_wal(database_path(path))
    with Database.open(database_path(path)) as database, database.snapshot() as connection:
        ids = connection.execute("SELECT run_id FROM runs WHERE status != 'deleted'").fetchall()
        found = [
            (run_id, _row(connection, run_id))
            for (run_id,) in sorted(ids, key=repr)
            if chosen in {None, run_id}
        ]
    if chosen is not None and not found:
        raise UnknownNameError(f"`{path}` has no run {chosen!r}")
    recovered, locked, problems, compacted = [], [], [], []
    for run_id, read in found:
        if isinstance(read, ReliveError):
            problems.append(f"run {run_id!r}: {read}")
            continue
        run, is_replaced = read, is_replacing(path, read)
        if (run.status == "recording" or is_replaced) and is_locked(lock_path(path, run_id)):
            locked.append(run_id)
            continue
        try:
            if is_replaced:
                run = _settled(path, run_id)
                compacted.append(run_id)
            if run.status == "recording" or _is_torn(arrays_path(path, run_id), run):
                recovered.append(_complete(path, run))
        except LockedError:
            locked.append(run_id)
        except ReliveError as error:
            problems.append(f"run {run_id!r}: {error}")
    if chosen is not None and locked:
        raise LockedError(f"run {chosen!r} is being recorded", hint="end its recorder first")
    update_index(path)
    return RecoveredRuns(
        path,
        tuple(recovered),
        tuple(locked),
        tuple(problems),
        tuple(compacted),
        None if kept is None else kept.found.error().message,
        None if kept is None else kept.copy,
    )


def _root_and_run(path: str | os.PathLike[str]) -> tuple[Path, str | None]:
    """Return a root, and the run whose file in it was given."""
    file = runs_path(path)
    if file.suffix != ".h5":
        return root_of(file), None
    found = run_of_file(file)
    if found is None or not database_path(found[0]).is_file():
        raise UnsupportedError(
            f"cannot recover `{file}`: the database of the run is not there",
            hint="move it back to the directory `replay` of its runs",
        )
    return found


def _kept_wal(path: Path) -> KeptWal | None:
    """Copy the WAL of a database if it has commits that SQLite cannot use, and empty it."""
    kept = keep_unused_commits(path) if path.is_file() else None
    if kept is not None:
        Database.create(path).close()
    return kept


def _settled(root: Path, run_id: str) -> RunRow:
    """Finish or undo a compaction."""
    with writing(root, run_id) as (_, run):
        return run


def _row(connection: object, run_id: str) -> RunRow | ReliveError:
    try:
        return read_run(connection, run_id)  # type: ignore[arg-type]
    except ReliveError as error:
        return error


def _is_torn(path: Path, run: RunRow) -> bool:
    """Check whether the metadata of a closed run is damaged."""
    if run.metadata_offset is None or run.metadata_bytes is None:
        return False
    try:
        with open_reader(path) as file:
            superblock = file.read(_SUPERBLOCK_BYTES)
            file.seek(run.metadata_offset)
            return crc32c(superblock + file.read(run.metadata_bytes)) != run.metadata_crc
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not run.steps:  # nothing was in it
            return False
        raise unreadable_arrays(error, path, run.run_id) from error


def _complete(root: Path, run: RunRow) -> RecoveredRun:
    with Database.open(database_path(root)) as database:
        known = RunTables.load(database, run.run_id)
    writer = RunWriter(root, run.run_id, ReplayConfig(), arrays=bool(known.columns))
    try:
        if run.status == "recording":
            writer.finish("interrupted")
        else:
            writer.finish(run.status, run.ended_ns)
        now = writer.run
        return RecoveredRun(run.run_id, writer.path, now.episodes, now.steps)
    finally:
        writer.release()
