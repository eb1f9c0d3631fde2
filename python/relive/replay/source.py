"""Where the rows and arrays of a run are read from."""

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from relive._extras import require
from relive._native import timestamp
from relive.errors import (
    CorruptError,
    InvalidError,
    NotFoundError,
    UnknownNameError,
)
from relive.replay.arrays import RunArrays
from relive.replay.columns import ColumnSpec, row_of
from relive.replay.storage.connection import Database, Stamp, watch_of
from relive.replay.storage.file_tables import check_metadata, file_tables
from relive.replay.storage.files import current_path, is_current
from relive.replay.storage.layout import (
    REPLAY,
    arrays_path,
    check_run_id,
    database_path,
    lock_path,
    run_of_file,
    runs_path,
)
from relive.replay.storage.tables import (
    ROW,
    EpisodeRow,
    RunRow,
    RunTables,
    SessionRow,
    StepRow,
    checked_steps,
    read_growth,
    read_run,
)
from relive.replay.storage.values import stored_action, stored_reward
from relive.store.atomic import storage_error
from relive.store.locks import is_locked, is_own

Rows = npt.NDArray[np.int64]

_CLOCK_NS: Final = 20_000_000
"""The times of files may be late by a tick of the kernel's clock, which is at most 10 ms."""

SIGNALS: Final = {
    "frames": "frame",
    "observations": "observation",
    "actions": "action",
    "rewards": "reward",
}
"""The names of signals whose fields have other names."""
_LISTED_IDS: Final = 5


class RunSource(Protocol):
    """The rows and arrays of one run at one moment. Thread-safe.

    The database and its file of arrays are one implementation. Another may read them from files
    that are never written again.
    """

    @property
    def run(self) -> RunRow:
        """The run."""

    @property
    def is_live(self) -> bool:
        """Whether the run is being recorded."""

    @property
    def is_own(self) -> bool:
        """Whether this process is the one that records."""

    @property
    def sessions(self) -> Sequence[SessionRow]:
        """The recorders of the run, by number."""

    @property
    def episodes(self) -> Sequence[EpisodeRow]:
        """The episodes, by number."""

    @property
    def arrays(self) -> RunArrays:
        """The arrays."""

    @property
    def path(self) -> Path:
        """The file of the arrays; a run without arrays has none."""

    @property
    def columns(self) -> Mapping[str, ColumnSpec]:
        """The columns of the arrays, by name."""

    @property
    def stored_bytes(self) -> Mapping[str, int]:
        """How many bytes each column of the arrays takes, by name."""

    def rows_of(self, number: int) -> Rows:
        """Return the rows of the steps of an episode, in their order."""

    def end_of(self, number: int) -> int | None:
        """Return the row of an episode among the ends; None if it has no last observation."""

    def step_rows(self, rows: Rows) -> list[StepRow]:
        """Return rows of the table of steps, checked, in the order of `rows`."""

    def is_valid(self) -> bool:
        """Check whether the run still has everything that was read: `abort` removes steps."""

    def continues(self, before: "RunSource") -> bool:
        """Check whether this is `before` as it was later: it has everything that `before` has."""

    def refreshed(self) -> "RunSource":
        """Return the same run as it is now: this one if nothing has changed."""


class _TablesSource:
    """A run of which the tables are in memory. A snapshot."""

    def __init__(self, path: Path, tables: RunTables) -> None:
        self._path = path
        self._tables = tables
        self.lineage = object()
        """What all that was read of a run while nothing was removed has in common."""

    @property
    def run(self) -> RunRow:
        """The run."""
        return self._tables.run

    @property
    def sessions(self) -> Sequence[SessionRow]:
        """The recorders of the run, by number."""
        return self._tables.all_sessions

    @property
    def episodes(self) -> Sequence[EpisodeRow]:
        """The episodes, by number."""
        return self._tables.episodes

    @cached_property
    def arrays(self) -> RunArrays:
        """The arrays."""
        return self._open_arrays()

    @property
    def path(self) -> Path:
        """The file of the arrays; a run without arrays has none."""
        return self._path

    @property
    def tables(self) -> RunTables:
        """Everything about the run, its steps excepted."""
        return self._tables

    @property
    def columns(self) -> Mapping[str, ColumnSpec]:
        """The columns of the arrays, by name."""
        return {spec.name: spec for spec in self._tables.columns}

    @property
    def stored_bytes(self) -> Mapping[str, int]:
        """How many bytes each column of the arrays takes, by name."""
        chunks, tails = self._tables.chunks, self._tables.tails
        return {
            spec.name: sum(
                sum(chunk[3] for chunk in chunks.get(path, ()))
                + sum(len(tail[2]) for tail in tails.get(path, ()))
                for path in spec.paths
            )
            for spec in self._tables.columns
        }

    def continues(self, before: RunSource) -> bool:
        """Check whether this is `before` as it was later: it has everything that `before` has."""
        return isinstance(before, _TablesSource) and before.lineage is self.lineage

    def rows_of(self, number: int) -> Rows:
        """Return the rows of the steps of an episode, in their order."""
        order, starts = self._order
        return order[starts[number] : starts[number + 1]]

    def end_of(self, number: int) -> int | None:
        """Return the row of an episode among the ends; None if it has no last observation."""
        return self._ends.get(number)

    @cached_property
    def _order(self) -> tuple[Rows, Rows]:
        """All rows, episode by episode, and where each episode begins."""
        numbers = self._episode_numbers()
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < self.run.episodes:
            raise CorruptError(f"`{self._path}`: a step has an episode that does not exist")
        lengths = np.bincount(numbers, minlength=self.run.episodes)
        starts = np.concatenate(([0], np.cumsum(lengths)))
        return np.argsort(numbers, kind="stable"), starts

    @cached_property
    def _ends(self) -> dict[int, int]:
        count = self.run.ends
        if not count:
            return {}
        numbers = self.arrays.read("final.episode", np.arange(count))
        return {number: place for place, number in enumerate(numbers.tolist())}

    def _open_arrays(self) -> RunArrays:
        return RunArrays(self._path, self._tables)

    def _episode_numbers(self) -> Rows:
        """Return the number of the episode of each step."""
        count = self.run.steps
        return self.arrays.read("episode", np.arange(count)) if count else np.zeros(0, np.int64)


class DatabaseSource(_TablesSource):
    """A run in a database. A snapshot."""

    def __init__(self, root: Path, run_id: str) -> None:
        self._root = root
        self._run_id = run_id
        self._watch = watch_of(database_path(root))
        # What was committed when this was read, and when it was last found to be valid.
        self._read_at: Stamp | None = None
        self._valid_at: Stamp | None = None
        with Database.open(database_path(root)) as database:
            tables = RunTables.load(database, run_id)
        if tables.run.status == "deleted":
            raise UnknownNameError(f"run {run_id!r} was deleted")
        super().__init__(arrays_path(root, run_id), tables)

    @property
    def is_live(self) -> bool:
        """Whether the run is being recorded."""
        return self.run.status == "recording" and is_locked(lock_path(self._root, self._run_id))

    @property
    def is_own(self) -> bool:
        """Whether this process is the one that records."""
        return is_own(lock_path(self._root, self._run_id))

    def step_rows(self, rows: Rows) -> list[StepRow]:
        """Return rows of the table of steps, checked, in the order of `rows`."""
        if not len(rows):
            return []
        firsts = np.array([made[0] for made in self._tables.commits], np.int64)
        needed = np.unique(np.searchsorted(firsts, rows, side="right") - 1)
        commits = [self._tables.commits[place] for place in needed]
        with Database.open(database_path(self._root)) as database, database.snapshot() as reading:
            found = checked_steps(reading, self._run_id, commits)
        by_row = {row[ROW]: row for row in found}
        return [by_row[row] for row in rows.tolist()]

    def is_valid(self) -> bool:
        """Check whether the run still has everything that was read: `abort` removes steps."""
        read = self.run
        # Commits stay as they are, and no two are equal, since they have the times of their steps.
        last = self._tables.commits[-1:]
        try:
            if self._valid_at is not None and self._watch.stamp() == self._valid_at:
                return True
            with self._watch.snapshot() as (connection, stamp):
                now = read_run(connection, self._run_id)
                found = connection.execute(
                    "SELECT first_row, rows, crc FROM commits WHERE run_id = ? AND first_row = ?",
                    (self._run_id, last[0][0] if last else -1),
                ).fetchall()
        except (NotFoundError, UnknownNameError):
            return False
        is_same = now.uid == read.uid and now.status != "deleted" and now.ends >= read.ends
        if is_same and found == last:
            self._valid_at = stamp  # there may be more than was read
            return True
        return False

    def refreshed(self) -> "DatabaseSource":
        """Return the same run as it is now: this one if nothing has changed."""
        if self._read_at is not None and self._watch.stamp() == self._read_at:
            return self
        with self._watch.snapshot() as (connection, stamp):
            found = read_growth(connection, self._tables)
        if found is None:
            return DatabaseSource(self._root, self._run_id)
        tables, growth = found
        if tables.run == self._tables.run:  # another run was written
            self._read_at = self._valid_at = stamp
            return self
        made = object.__new__(DatabaseSource)
        made.__dict__.update(
            _root=self._root,
            _run_id=self._run_id,
            _watch=self._watch,
            _read_at=stamp,
            _valid_at=stamp,
            _path=self._path,
            _tables=tables,
            lineage=self.lineage,
        )
        if "arrays" in self.__dict__:
            made.__dict__["arrays"] = self.arrays.extended(growth)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path and the id; another process reads the run as it is then."""
        return DatabaseSource, (self._root, self._run_id)

    def _open_arrays(self) -> RunArrays:
        return open_arrays(self._root, self._tables)

    def _episode_numbers(self) -> Rows:
        if "episode" in self.arrays.fields or not self.run.steps:
            return super()._episode_numbers()
        # A run without arrays.
        by_id = {(row.episode_id, row.agent_id): row.number for row in self.episodes}
        rows = self.step_rows(np.arange(self.run.steps))
        return np.array([by_id[row[1], row[3]] for row in rows], np.int64)


class FileSource(_TablesSource):
    """A closed run in an HDF5 file without its database, such as a copy.

    The texts of infos are only in the database.
    """

    is_live = False
    is_own = False

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise NotFoundError(f"`{path}` does not exist")
        h5py = require("h5py", extra="replay", to="read a run without its database")
        self._changed = _last_change(path)
        check_metadata(path)
        try:
            with h5py.File(path, "r") as file:
                tables = file_tables(file, path)
        except OSError as error:
            if error.errno is None:  # as h5py reports a damaged file
                raise CorruptError(f"`{path}` is not a readable HDF5 file: {error}") from error
            raise storage_error(error, path, "open") from error
        super().__init__(path, tables)

    def step_rows(self, rows: Rows) -> list[StepRow]:
        """Return rows as the table of steps has them, without infos."""
        if not len(rows):
            return []
        run_id, arrays = self.run.run_id, self.arrays
        episodes = {row.number: row for row in self.episodes}
        found = []
        scalars = [
            arrays.read(name, rows).tolist()
            for name in ("episode", "step_index", "rewards", "terminated", "truncated", "ts_ns")
        ]
        known = {name: arrays.are_valid(name, rows) for name in ("frames", "observations")}
        actions = arrays.read_field("actions", rows) if "actions" in arrays.fields else None
        has_action = arrays.are_valid("actions", rows)
        for place, (row, *values) in enumerate(zip(rows.tolist(), *scalars, strict=True)):
            number, index, reward, terminated, truncated, ts_ns = values
            try:
                episode, time = episodes[number], timestamp(ts_ns)
            except (LookupError, ValueError, OverflowError, OSError) as error:
                raise CorruptError(f"`{self._path}`: row {row} is damaged: {error}") from error
            action = row_of(actions, place) if has_action[place] else None
            stored, is_whole = stored_action(action)
            refs = {
                name: f"h5://{run_id}/{name}/{row}" if are_valid[place] else None
                for name, are_valid in known.items()
            }
            found.append(
                (
                    run_id,
                    episode.episode_id,
                    index,
                    episode.agent_id,
                    row,
                    stored,
                    None if is_whole else f"h5://{run_id}/actions/{row}",
                    stored_reward(reward),
                    int(terminated),
                    int(truncated),
                    refs["frames"],
                    refs["observations"],
                    None,
                    ts_ns,
                    time,
                )
            )
        return found

    def is_valid(self) -> bool:
        """Check whether the file is the one that was read."""
        changed = _last_change(self._path)
        return changed is not None and changed == self._changed

    def refreshed(self) -> "FileSource":
        """Return the same run as it is now: this one if nothing has changed."""
        if self.is_valid():
            return self
        return FileSource(self._path)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path."""
        return FileSource, (self._path,)


def open_arrays(root: Path, tables: RunTables) -> RunArrays:
    """Return the arrays of a run that the database had when its tables were read.

    If the file was replaced since then, it has the same rows, and perhaps newer ones.
    """
    while True:
        path = current_path(root, tables.run)
        arrays = RunArrays(path, tables)
        if is_current(root, tables.run, path):
            return arrays
        with Database.open(database_path(root)) as database:
            tables = RunTables.load(database, tables.run.run_id)
        if tables.run.status == "deleted":
            raise UnknownNameError(f"run {tables.run.run_id!r} was deleted")


def _last_change(path: Path) -> tuple[int, int, int, int] | None:
    """Return something that differs after a closed file was written; None if it does not exist.

    Also None if it was written just now: the next change may have the same time.
    """
    try:
        stat = path.stat()
    except OSError:
        return None
    if time.time_ns() - stat.st_mtime_ns < _CLOCK_NS:
        return None
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def root_of(path: str | os.PathLike[str]) -> Path:
    """Return the root of runs; `path` may also be its directory `replay` or its database."""
    root = runs_path(path)
    if root.name == "telemetry.sqlite":
        return root.parent.parent
    if root.name == REPLAY and not database_path(root).is_file():
        return root.parent if database_path(root.parent).is_file() else root
    return root


def source_of(
    path: str | os.PathLike[str], run_id: str | None = None
) -> DatabaseSource | FileSource:
    """Return a run of a root; or the run of a file, with its database if it is in a root."""
    if run_id is not None:
        return DatabaseSource(root_of(path), check_run_id(run_id))
    file = runs_path(path)
    if file.is_dir():
        raise _is_directory(file)
    found = run_of_file(file)
    if found is not None and database_path(found[0]).is_file():
        # A file of an unknown run was copied here.
        with contextlib.suppress(UnknownNameError):
            return DatabaseSource(*found)
    return FileSource(file)


def _is_directory(path: Path) -> InvalidError:
    """Return the error for a directory where the file of a run is expected."""
    root = root_of(path)
    if not database_path(root).is_file():
        return InvalidError(f"`{path}` is a directory, expected the `.h5` file of a run")
    with Database.open(database_path(root)) as database:
        found = database.rows(
            "SELECT run_id FROM runs WHERE status != 'deleted' ORDER BY created_ns, run_id"
        )
    ids = ", ".join(repr(run_id) for (run_id,) in found[:_LISTED_IDS])
    more = ", …" if len(found) > _LISTED_IDS else ""
    runs = f"; the runs are {ids}{more}" if ids else ""
    return InvalidError(f"`{path}` is a directory of runs", hint=f"pass run_id={runs}")
