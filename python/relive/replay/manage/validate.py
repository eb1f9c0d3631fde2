"""Checks runs: the database, the arrays, and that both say the same."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive._native import crc32c
from relive.errors import CorruptError, ReliveError
from relive.model.report import Level, Problem, Progress, Report, Unfinished, check_level
from relive.replay.arrays import RunArrays
from relive.replay.columns import row_of
from relive.replay.source import FileSource, root_of
from relive.replay.storage.connection import Database
from relive.replay.storage.files import (
    current_path,
    is_current,
    is_replacing,
    unreadable_arrays,
)
from relive.replay.storage.layout import (
    arrays_path,
    database_path,
    lock_path,
    run_of_file,
    runs_path,
)
from relive.replay.storage.tables import (
    RUN_TABLES,
    STEP_COLUMNS,
    EpisodeRow,
    RunTables,
    StepRow,
    checked_steps,
)
from relive.replay.storage.unused_commits import unused_commits
from relive.replay.storage.values import stored_action, stored_reward
from relive.replay.storage.wal import wal_path
from relive.store.atomic import open_reader
from relive.store.locks import is_locked

_SAMPLE: Final = 64
_BATCH: Final = 1024
_SUPERBLOCK_BYTES: Final = 48
_SCALARS: Final = ("episode", "step_index", "rewards", "terminated", "truncated", "ts_ns")


def validate(
    path: str | os.PathLike[str], level: Level = "sample", *, progress: Progress | None = None
) -> Report:
    """Check the runs of a root, or the file of one run.

    `level="index"` checks the tables about runs, episodes and chunks, the sizes of files, and that
    the log of the database has no commits that SQLite cannot use.
    `"sample"` also reads 64 steps of each run from both lanes. `"full"` compares every byte with
    its checksum, reads every step from both lanes, and compares them. Problems are reported, not
    raised. A file without its database is compared with the checksums that it has itself.
    `progress` is called with the number of runs that are done and the number of all.

    Example:
        >>> import tempfile
        >>> from relive import replay
        >>> root = tempfile.mkdtemp()
        >>> with replay.ReplayRecorder(root, "run-1") as recorder:
        ...     _ = recorder.step([0.5], 1, 1.0, terminated=True)
        >>> report = replay.validate(root, level="full")
        >>> report.ok, report.checked
        (True, {'runs': 1, 'steps': 1})
    """
    check_level(level)
    target = runs_path(path)
    check = _Check(level)
    is_file = target.is_file() and target.suffix == ".h5"
    root = target.parent.parent if is_file else root_of(target)
    check.wal(root)  # before a connection, which may overwrite it
    if is_file:
        found = run_of_file(target)
        if found is None or not _knows(*found):
            check.file(target)
            return check.report()
        run_ids = [found[1]]
    else:
        run_ids = check.database(root)
    for number, run_id in enumerate(run_ids):
        check.run(root, run_id)
        if progress is not None:
            progress(number + 1, len(run_ids))
    return check.report()


class _Check:
    """Collects what is wrong."""

    def __init__(self, level: Level) -> None:
        self._level = level
        self._problems: list[Problem] = []
        self._unfinished: list[Unfinished] = []
        self._runs = self._steps = 0

    def report(self) -> Report:
        checked = {"runs": self._runs, "steps": self._steps}
        return Report(self._level, checked, tuple(self._problems), tuple(self._unfinished))

    def wal(self, root: Path) -> None:
        """Report commits that are in the WAL of the database, but that SQLite does not use."""
        path = wal_path(database_path(root))
        try:
            found = unused_commits(database_path(root))
        except ReliveError as error:
            self._add(path, error)
            return
        if found is not None:
            self._add(path, found.error(), offset=found.offset)

    def database(self, root: Path) -> list[str]:
        """Check the database as a whole; return the ids of its runs."""
        path = database_path(root)
        try:
            with Database.open(path) as database:
                if self._level == "full":
                    self._check_structure(database, path)
                rows = database.rows("SELECT run_id FROM runs WHERE status != 'deleted'")
                known = [run_id for (run_id,) in rows]
                if self._level == "full":
                    self._check_owners(database, path)
                return sorted(str(run_id) for run_id in known)
        except ReliveError as error:
            if not isinstance(error, CorruptError) and not path.is_file():
                raise
            self._add(path, error)
            return []

    def run(self, root: Path, run_id: str) -> None:
        """Check one run."""
        self._runs += 1
        try:
            path = arrays_path(root, run_id)
            tables, arrays = self._opened(root, run_id)
        except ReliveError as error:
            self._add(database_path(root), error)
            return
        run = tables.run
        if run.status == "recording" or is_replacing(root, run):
            is_live = is_locked(lock_path(root, run_id))
            self._unfinished.append(Unfinished(path, "locked" if is_live else "left"))
        if arrays is not None:
            self._check_steps(root, tables, arrays)
            self._check_arrays(path, tables, arrays)

    def _opened(self, root: Path, run_id: str) -> tuple[RunTables, RunArrays | None]:
        """Return the tables of a run and its arrays; None after a problem with their file."""
        path = arrays_path(root, run_id)
        count = len(self._problems)
        while True:
            with Database.open(database_path(root)) as database:
                tables = RunTables.load(database, run_id)
            file = current_path(root, tables.run)
            arrays = None
            try:
                self._check_file(file, tables)
                arrays = RunArrays(file, tables)
            except ReliveError as error:
                self._add(path, error)
            if is_current(root, tables.run, file):
                return tables, arrays
            del self._problems[count:]  # the file was replaced meanwhile

    def file(self, path: Path) -> None:
        """Check the file of a run without its database."""
        self._runs += 1
        try:
            source = FileSource(path)
            self._check_arrays(path, source.tables, source.arrays)
            self._steps += len(self._chosen(source.run.steps))
        except ReliveError as error:
            self._add(path, error)

    def _check_structure(self, database: Database, path: Path) -> None:
        for (text,) in database.rows("PRAGMA integrity_check(20)"):
            if text != "ok":
                self._add(path, CorruptError(f"SQLite reports: {text}"))

    def _check_owners(self, database: Database, path: Path) -> None:
        """Report rows of runs that do not exist, which no checksum covers."""
        tables = database.rows("SELECT name FROM sqlite_schema WHERE type = 'table'")
        for table in RUN_TABLES:
            if (table,) not in tables:
                continue
            rows = database.rows(
                f"SELECT DISTINCT run_id FROM {table} "  # noqa: S608 - our names
                "WHERE run_id NOT IN (SELECT run_id FROM runs)"
            )
            for (run_id,) in rows:
                self._add(path, CorruptError(f"{table} has rows of an unknown run {run_id!r}"))

    def _check_file(self, path: Path, tables: RunTables) -> None:
        run = tables.run
        chunks = [chunk for chunks in tables.chunks.values() for chunk in chunks]
        if not chunks and not path.exists():
            return
        try:
            with open_reader(path) as file:
                size = os.fstat(file.fileno()).st_size
                end = max((chunk[2] + chunk[3] for chunk in chunks), default=0)
                if size < end:
                    raise CorruptError(f"`{path}` has {size} bytes, and {end} were committed")
                if run.metadata_offset is None or run.metadata_bytes is None:
                    return
                superblock = file.read(_SUPERBLOCK_BYTES)
                file.seek(run.metadata_offset)
                metadata = file.read(run.metadata_bytes)
        except OSError as error:
            raise unreadable_arrays(error, path, run.run_id) from error
        if crc32c(superblock + metadata) != run.metadata_crc:
            # The arrays are read without it, so everything else is still checked.
            self._add(path, CorruptError("the metadata of HDF5 is damaged"))

    def _check_steps(self, root: Path, tables: RunTables, arrays: RunArrays) -> None:
        """Check the steps of both lanes, and compare them."""
        run, path = tables.run, database_path(root)
        covered = 0
        for first, rows, _ in tables.commits:
            if first != covered:
                break
            covered += rows
        if covered != run.steps:
            self._add(path, CorruptError(f"run {run.run_id!r}: step {covered} is missing"))
        episodes = {row.number: row for row in tables.episodes}
        numbers = {(row.episode_id, row.agent_id): row.number for row in tables.episodes}
        lengths = dict.fromkeys(range(run.episodes), 0)
        for made in self._chosen_commits(tables.commits):
            try:
                with Database.open(path) as database, database.snapshot() as connection:
                    steps = checked_steps(connection, run.run_id, [made])
                self._steps += len(steps)
                for step in steps:
                    lengths[numbers[step[1], step[3]]] += 1
                if arrays.fields:
                    self._compare(steps, arrays, episodes)
            except ReliveError as error:
                self._add(path, error, row=made[0])
            except KeyError as error:
                text = f"run {run.run_id!r}: a step has the unknown episode {error}"
                self._add(path, CorruptError(text), row=made[0])
        if self._level == "full":
            self._check_lengths(path, tables.episodes, lengths)

    def _check_lengths(
        self, path: Path, episodes: Sequence[EpisodeRow], lengths: Mapping[int, int]
    ) -> None:
        for episode in episodes:
            found = lengths.get(episode.number, 0)
            if found != episode.steps:
                text = f"episode {episode.episode_id!r} has {found} steps, not {episode.steps}"
                self._add(path, CorruptError(text))

    def _compare(
        self, rows: Sequence[StepRow], arrays: RunArrays, episodes: Mapping[int, EpisodeRow]
    ) -> None:
        """Raise a `CorruptError` if the arrays say something else about steps."""
        steps = [dict(zip(STEP_COLUMNS, row, strict=True)) for row in rows]
        numbers = np.array([step["row"] for step in steps])
        found = {name: arrays.read(name, numbers).tolist() for name in _SCALARS}
        has = {name: arrays.are_valid(name, numbers) for name in ("frames", "observations")}
        actions = arrays.read_field("actions", numbers) if "actions" in arrays.fields else None
        has_action = arrays.are_valid("actions", numbers)
        for place, step in enumerate(steps):
            episode = episodes[found["episode"][place]]
            action = row_of(actions, place) if has_action[place] else None
            stored, is_whole = stored_action(action)
            if not has_action[place]:  # the recorder kept no arrays of actions
                stored = step["action"]
            in_arrays = (
                episode.episode_id,
                episode.agent_id,
                found["step_index"][place],
                stored_reward(found["rewards"][place]),
                int(found["terminated"][place]),
                int(found["truncated"][place]),
                found["ts_ns"][place],
                bool(has["frames"][place]),
                bool(has["observations"][place]),
                _comparable(stored),
                is_whole,
            )
            in_database = (
                step["episode_id"],
                step["agent_id"],
                step["step_index"],
                step["reward"],
                step["terminated"],
                step["truncated"],
                step["ts_ns"],
                step["frame_ref"] is not None,
                step["obs_ref"] is not None,
                _comparable(step["action"]),
                step["action_ref"] is None,
            )
            if in_arrays != in_database:
                raise CorruptError(
                    f"step {step['row']} is {in_database} in the database and {in_arrays} in the "
                    "arrays"
                )

    def _check_arrays(self, path: Path, tables: RunTables, arrays: RunArrays) -> None:
        """Read every chunk, or some."""
        for spec in tables.columns:
            count = tables.run.steps if spec.rows_of == "steps" else tables.run.ends
            for part in _parts(self._chosen(count)):
                try:
                    arrays.read(spec.name, part)
                except ReliveError as error:
                    self._add(path, error, field=spec.name, row=int(part[0]))

    def _chosen(self, count: int) -> npt.NDArray[np.int64]:
        if self._level == "index":
            return _NONE
        if self._level == "full" or count <= _SAMPLE:
            return np.arange(count)
        return np.linspace(0, count - 1, _SAMPLE).astype(np.int64)

    def _chosen_commits(self, commits: Sequence[tuple[int, int, int]]) -> Sequence[Any]:
        if self._level == "index":
            return ()
        step = 1 if self._level == "full" else max(1, len(commits) // 4)
        return commits[::step]

    def _add(
        self,
        path: Path,
        error: ReliveError,
        field: str | None = None,
        row: int | None = None,
        offset: int | None = None,
    ) -> None:
        self._problems.append(Problem(str(path), error.kind, error.message, field, row, offset))


_NONE: Final = np.zeros(0, np.int64)


def _comparable(action: Any) -> Any:
    """Return an action of the database, and JSON as the value that it stands for.

    The order of the keys, and whether a whole number has a decimal point, make no difference.
    """
    return json.loads(action) if isinstance(action, str) else action


def _parts(rows: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    for start in range(0, len(rows), _BATCH):
        yield rows[start : start + _BATCH]


def _knows(root: Path, run_id: str) -> bool:
    if not database_path(root).is_file():
        return False
    with Database.open(database_path(root)) as database:
        return bool(database.rows("SELECT 1 FROM runs WHERE run_id = ?", (run_id,)))
