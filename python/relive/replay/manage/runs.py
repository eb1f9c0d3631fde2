"""Lists the runs of a root, archives them and deletes them."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from relive._arguments import as_int
from relive.errors import (
    CorruptError,
    LockedError,
    NotFoundError,
    ReadOnlyError,
    ReliveError,
    UnfinishedError,
    UnknownNameError,
)
from relive.model.clock import now_ns
from relive.model.report import Progress
from relive.replay.scalars import status_of
from relive.replay.source import root_of
from relive.replay.storage import tables
from relive.replay.storage.connection import Database
from relive.replay.storage.files import current_path, missing_arrays, settle
from relive.replay.storage.layout import (
    arrays_path,
    check_run_id,
    check_stored_run_id,
    database_path,
    is_run_id,
    lock_path,
    update_index,
)
from relive.replay.storage.tables import RunRow, RunTables, _commit_crc
from relive.store.atomic import check_file, fsync_directory, storage_error
from relive.store.locks import FileLock

LAST_EPISODES: Final = 100
"""How many of the newest episodes count for the mean return of a run."""

_DELETED: Final = "deleted"
_STEPS_AT_ONCE: Final = 20_000
"""About how many steps are deleted in one transaction: recorders of other runs wait meanwhile."""
_DELETE_STEPS: Final = (
    "DELETE FROM steps WHERE rowid IN (SELECT rowid FROM steps WHERE run_id = ? LIMIT ?)"
)


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One line about a run.

    Example:
        >>> import tempfile
        >>> from relive import replay
        >>> root = tempfile.mkdtemp()
        >>> with replay.ReplayRecorder(root, "run-1", env_id="toy") as recorder:
        ...     _ = recorder.step([0.5], 1, 1.0, terminated=True)
        >>> (run,) = replay.list_runs(root)
        >>> run.run_id, run.status, run.env_id, run.episodes, run.steps, run.mean_return
        ('run-1', 'finished', 'toy', 1, 1, 1.0)
    """

    run_id: str
    uid: str | None
    status: str
    """`recording`, `interrupted`, `finished`, `failed`, `archived` or `damaged`; `missing` if its
    file of arrays is."""
    env_id: str | None
    episodes: int
    steps: int
    mean_return: float | None
    """The mean return of the newest episodes that ended; None without any."""
    file_bytes: int
    """The size of the file of arrays. The database has all runs of the root, and is not counted."""
    created_ns: int
    changed_ns: int
    """When the run ended; without an end, the time of its last step."""
    problem: str | None = None
    """Why the run, or its arrays, cannot be read."""


@dataclass(frozen=True, slots=True)
class DeletedRun:
    """What `delete` removed.

    Example:
        >>> import tempfile
        >>> from relive import replay
        >>> root = tempfile.mkdtemp()
        >>> with replay.ReplayRecorder(root, "run-1") as recorder:
        ...     _ = recorder.step([0.5], 1, 1.0, terminated=True)
        >>> deleted = replay.delete(root, "run-1")
        >>> deleted.run_id, deleted.steps
        ('run-1', 1)
    """

    run_id: str
    steps: int
    file_bytes: int


def run_ids(root: str | os.PathLike[str]) -> list[str]:
    """Return the ids of the runs, in the order in which they began; not the deleted ones.

    Ids that no run can have are left out.
    """
    with _reading(root_of(root)) as connection:
        return [run_id for run_id, _ in _listed(connection) if is_run_id(run_id)]


def list_runs(
    root: str | os.PathLike[str], *, last_episodes: int = LAST_EPISODES
) -> list[RunSummary]:
    """Return a line about every run, in the order in which they began; not the deleted ones.

    Args:
        root: The directory of the runs.
        last_episodes: How many of the newest episodes count for `mean_return`.
    """
    count = as_int("last_episodes", last_episodes, at_least=1)
    folder = root_of(root)
    with _reading(folder) as connection:
        return [
            _summary(connection, folder, run_id, created_ns, count)
            for run_id, created_ns in _listed(connection)
        ]


def load_tables(root: str | os.PathLike[str], run_id: str) -> RunTables:
    """Return everything that the database has about a run, its steps excepted."""
    with _reading(root_of(root)) as connection:
        found = RunTables.read(connection, _checked_id(connection, root_of(root), run_id))
    if found.run.status == _DELETED:
        raise _was_deleted(run_id)
    return found


def archive(root: str | os.PathLike[str], run_id: str) -> None:
    """Make a run read-only: it is not continued, and only deleted on request.

    A run that is being recorded is a `LockedError`, one whose recorder was killed an
    `UnfinishedError`. An archived run stays as it is.
    """
    with writing(root_of(root), run_id) as (database, run):
        if run.status == _DELETED:
            raise _was_deleted(run_id)
        if run.status == "recording":
            raise UnfinishedError(
                f"run {run_id!r} was interrupted",
                hint="continue and close it, or run `relive recover`",
            )
        with database.transaction(sync=True) as connection:
            tables.write_run(connection, replace(run, status="archived"))


def delete(
    root: str | os.PathLike[str],
    run_id: str,
    *,
    archived: bool = False,
    damaged: bool = False,
    progress: Progress | None = None,
) -> DeletedRun:
    """Delete the steps, the episodes and the file of a run. Its id cannot be used again.

    What the table `original_steps` of the database has of the run is deleted too. A call that is
    interrupted, also by a kill, is finished by the next one; until then the run is not listed. A
    run that is being recorded is a `LockedError`.

    Args:
        root: The directory of the runs.
        run_id: The id of the run.
        archived: Whether an archived run is deleted too; otherwise it is a `ReadOnlyError`.
        damaged: Whether a run is deleted although its row in the database has a wrong checksum;
            otherwise it is a `CorruptError`.
        progress: Called with the number of deleted steps, and of all steps.
    """
    folder = root_of(root)
    with _reading(folder) as connection:
        _checked_id(connection, folder, run_id)
    try:
        with _reading(folder) as connection:
            tables.read_run(connection, run_id)
    except CorruptError as error:
        if not damaged:
            raise CorruptError(error.message, hint="pass damaged=True to delete the run") from error
        _mark_damaged(folder, run_id, archived=archived)
    with writing(folder, run_id) as (database, run):
        path = arrays_path(folder, run_id)
        size = _file_bytes(path)
        if run.status == _DELETED and not _has_more(run):
            raise _was_deleted(run_id)
        if run.status == "archived" and not archived:
            raise _is_archived(run_id)
        # The status comes first: after a kill no reader lists a run without some of its steps.
        # The file comes last: no step refers to a file that does not exist.
        marked = replace(run, status=_DELETED)
        with database.transaction(sync=True) as connection:
            tables.write_run(connection, marked)
        _delete_steps(database, marked, progress)
        tombstone = RunRow(
            run.run_id, run.uid, _DELETED, run.created_ns, env_id=run.env_id, ended_ns=now_ns()
        )
        # As long as `arrays_end` is not 0, the file is still to be deleted. Later, a file of this
        # name is one that the user put there.
        with database.transaction(sync=True) as connection:
            tables.delete(connection, run_id)
            end = max(run.arrays_end, size)
            tables.write_run(connection, replace(tombstone, arrays_end=end))
        _unlink(path)
        with database.transaction(sync=True) as connection:
            tables.write_run(connection, tombstone)
        # A recorder that has opened it finds that the run is deleted.
        with contextlib.suppress(OSError):
            lock_path(folder, run_id).unlink(missing_ok=True)
    update_index(folder)
    return DeletedRun(run_id, run.steps, size)


def prunable(
    root: str | os.PathLike[str], keep: int, *, interrupted: bool = False
) -> list[RunSummary]:
    """Return the runs that `prune` deletes: finished and failed ones, except the newest `keep`.

    The order is by when they ended, the oldest first. Runs that are archived or being recorded, and
    damaged ones, are neither counted nor returned.

    Args:
        root: The directory of the runs.
        keep: How many runs are kept.
        interrupted: Whether runs whose recorder was killed count as well.
    """
    count = as_int("keep", keep, at_least=0)
    wanted = {"finished", "failed", *(["interrupted"] if interrupted else [])}
    runs = [run for run in list_runs(root) if run.status in wanted and run.problem is None]
    runs.sort(key=lambda run: (run.changed_ns, run.run_id))
    return runs[: max(0, len(runs) - count)]


def prune(
    root: str | os.PathLike[str], keep: int, *, interrupted: bool = False
) -> list[DeletedRun]:
    """Delete the runs that `prunable` returns, and finish deletions that were interrupted.

    A run that is continued by a recorder meanwhile is left out.
    """
    chosen = [run.run_id for run in prunable(root, keep, interrupted=interrupted)]
    deleted = []
    for run_id in [*unfinished_deletions(root), *chosen]:
        with contextlib.suppress(LockedError):
            deleted.append(delete(root, run_id))
    return deleted


def unfinished_deletions(root: str | os.PathLike[str]) -> list[str]:
    """Return the ids of runs whose deletion was interrupted; `delete` finishes it."""
    folder = root_of(root)
    found = []
    with _reading(folder) as connection:
        rows = connection.execute(
            "SELECT run_id FROM runs WHERE status = ? ORDER BY run_id", (_DELETED,)
        )
        for (run_id,) in rows.fetchall():
            with contextlib.suppress(CorruptError):
                if _has_more(tables.read_run(connection, run_id)):
                    found.append(run_id)
    return found


def _listed(connection: sqlite3.Connection) -> list[tuple[str, Any]]:
    """Return the ids of the runs, and when they began."""
    return connection.execute(
        "SELECT run_id, created_ns FROM runs WHERE status != ? ORDER BY created_ns, run_id",
        (_DELETED,),
    ).fetchall()


def _summary(
    connection: sqlite3.Connection, folder: Path, run_id: str, created_ns: Any, last_episodes: int
) -> RunSummary:
    size = _file_bytes(arrays_path(folder, run_id)) if is_run_id(run_id) else 0
    try:
        run = tables.read_run(connection, run_id)
    except CorruptError as error:
        created = created_ns if isinstance(created_ns, int) else 0
        return RunSummary(
            run_id, None, "damaged", None, 0, 0, None, size, created, created, error.message
        )
    returns = connection.execute(
        "SELECT avg(total_reward) FROM (SELECT total_reward FROM episodes "
        "WHERE run_id = ? AND ended_ns IS NOT NULL ORDER BY number DESC LIMIT ?)",
        (run_id, last_episodes),
    ).fetchone()[0]
    changed = run.ended_ns
    if changed is None:
        newest = connection.execute(
            "SELECT ts_ns FROM steps WHERE run_id = ? ORDER BY row DESC LIMIT 1", (run_id,)
        ).fetchone()
        changed = run.created_ns if newest is None else newest[0]
    status, problem = status_of(folder, run), _missing_file(connection, folder, run)
    if problem is not None and status != "recording":
        status = "missing"
    return RunSummary(
        run_id,
        run.uid,
        status,
        run.env_id,
        run.episodes,
        run.steps,
        returns,
        size,
        run.created_ns,
        changed,
        problem,
    )


def _missing_file(connection: sqlite3.Connection, folder: Path, run: RunRow) -> str | None:
    """Return that the file of a run is missing, if it has arrays."""
    path = current_path(folder, run)
    if path.exists():
        return None
    sql = "SELECT 1 FROM chunks WHERE run_id = ? LIMIT 1"
    has_arrays = connection.execute(sql, (run.run_id,)).fetchone() is not None
    return missing_arrays(path, run.run_id).message if has_arrays else None


def _mark_damaged(folder: Path, run_id: str, *, archived: bool) -> None:
    """Replace the row of a damaged run by that of a run whose deletion was interrupted."""
    with _locked_run(folder, run_id), Database.create(_existing(folder)) as database:
        with database.snapshot() as connection:
            run = tables.read_damaged_run(connection, run_id)
        if run.status == "archived" and not archived:
            raise _is_archived(run_id)
        with database.transaction(sync=True) as connection:
            # Steps are deleted by their commits, which may be damaged too.
            connection.execute("DELETE FROM commits WHERE run_id = ?", (run_id,))
            tables.write_run(connection, replace(run, status=_DELETED, arrays_end=1))


def _delete_steps(database: Database, run: RunRow, progress: Progress | None) -> None:
    """Delete the steps of a run from its end; its checksums are right after each transaction.

    Then those that no commit has, and what the database has of the run as the original has it.
    """
    total = run.steps
    commits = sorted(
        database.rows("SELECT first_row, rows, crc FROM commits WHERE run_id = ?", (run.run_id,))
    )
    while commits:
        if progress is not None:
            progress(total - run.steps, total)
        digest, first, count = run.digest, 0, 0
        while commits and count < _STEPS_AT_ONCE:
            first, rows, crc = commits.pop()
            digest -= _commit_crc(first, rows, crc)
            count += rows
        run = replace(run, steps=first, digest=digest & 0xFFFFFFFF)
        with database.transaction() as connection:
            for table, column in (("steps", "row"), ("commits", "first_row")):
                connection.execute(
                    f"DELETE FROM {table} WHERE run_id = ? AND {column} >= ?",  # noqa: S608 - ours
                    (run.run_id, first),
                )
            tables.write_run(connection, run)
    deleted = -1
    while deleted:
        with database.transaction() as connection:
            deleted = connection.execute(_DELETE_STEPS, (run.run_id, _STEPS_AT_ONCE)).rowcount
    name = tables.migrated_from(run) or run.run_id
    tables.delete_original(database, name, _STEPS_AT_ONCE)


@contextlib.contextmanager
def _reading(folder: Path) -> Iterator[sqlite3.Connection]:
    database = Database.open(_existing(folder))
    try:
        with database.snapshot() as connection:
            yield connection
    finally:
        database.close()


@contextlib.contextmanager
def writing(folder: Path, run_id: str) -> Iterator[tuple[Database, RunRow]]:
    """Hold a run locked, as its recorder does, with the database open for writing.

    Its file was replaced, or not: never partly.
    """
    with _reading(folder) as connection:
        # No lock of a run that does not exist.
        tables.read_run(connection, _checked_id(connection, folder, run_id))
    with _locked_run(folder, run_id):
        database = Database.create(_existing(folder))
        try:
            settle(database, folder, run_id)
            with database.snapshot() as connection:
                run = tables.read_run(connection, run_id)
            yield database, run
        finally:
            database.close()


@contextlib.contextmanager
def _locked_run(folder: Path, run_id: str) -> Iterator[None]:
    path = lock_path(folder, run_id)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock.take(path, create=True)
    except LockedError as error:
        raise LockedError(
            f"run {run_id!r} is being recorded, deleted or compacted by {_owner(path)}",
            hint="end that process first",
        ) from error
    except OSError as error:
        if isinstance(error, ReliveError):
            raise
        raise storage_error(error, path, "create") from error
    try:
        with contextlib.suppress(OSError):
            path.write_text(str(os.getpid()))  # for the message of a recorder
        yield
    finally:
        lock.release()


def _owner(path: Path) -> str:
    owner = ""
    with contextlib.suppress(OSError):
        owner = path.read_text("ascii", "replace").strip()
    return f"process {owner}" if owner.isdecimal() else "another process"


def _checked_id(connection: sqlite3.Connection, folder: Path, run_id: object) -> str:
    """Return the id of a run; one that cannot be one is a `CorruptError` if it is stored."""
    if isinstance(run_id, str) and not is_run_id(run_id):
        stored = "SELECT run_id FROM runs WHERE run_id = ?"
        for (found,) in connection.execute(stored, (run_id,)).fetchall():
            check_stored_run_id(found, database_path(folder))
    return check_run_id(run_id)


def _existing(folder: Path) -> Path:
    path = database_path(folder)
    check_file(path)
    if not path.is_file():
        raise NotFoundError(
            f"`{folder}` is not a directory of runs: `{path}` does not exist",
            hint="pass the directory that the recorder got as `root`",
        )
    return path


def _has_more(run: RunRow) -> bool:
    """Return whether something of a deleted run is left."""
    return bool(run.steps or run.digest or run.arrays_end)


def _file_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise storage_error(error, path, "read") from error


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
        fsync_directory(path.parent)
    except OSError as error:
        raise storage_error(error, path, "delete") from error


def _is_archived(run_id: str) -> ReadOnlyError:
    return ReadOnlyError(f"run {run_id!r} is archived", hint="pass archived=True to delete it")


def _was_deleted(run_id: str) -> UnknownNameError:
    return UnknownNameError(f"run {run_id!r} was deleted")
