"""Writes one run: the rows of its steps and episodes, and their arrays."""

import contextlib
import json
import os
import time
import uuid
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive._native import AddedSteps, Step, StepRows, timestamp
from relive.errors import (
    AlreadyExistsError,
    ClosedError,
    InvalidError,
    LockedError,
    ReadOnlyError,
    UnknownNameError,
)
from relive.model.clock import now_ns
from relive.replay.arrays import ArrayLane, RunArrays, SmallDataset
from relive.replay.columns import ColumnSpec
from relive.replay.config import ReplayConfig
from relive.replay.storage import tables
from relive.replay.storage.connection import Database
from relive.replay.storage.files import remove, settle, sync_names, unreadable_arrays
from relive.replay.storage.layout import arrays_path, database_path, lock_path, update_index
from relive.replay.storage.tables import (
    Batch,
    EpisodeRow,
    RunCommits,
    RunRow,
    RunTables,
    SessionRow,
)
from relive.replay.writing.steps import REWARDS, STEP_SCALARS, End, Streams
from relive.store.atomic import make_directory, open_reader, storage_error
from relive.store.git import git_state
from relive.store.locks import FileLock
from relive.store.paths import OpenedPath

VERSION: Final = "2.0"
"""The version of the layout of a run's file."""
_SUPERBLOCK_BYTES: Final = 48
_MIN_SNAPSHOT: Final = 4
_SNAPSHOT_GROWTH: Final = 2
"""Metadata of HDF5 is written with the first commit, and again after this many times as many
chunks."""


class RunWriter:
    """Writes the steps of one run. It holds the run locked until it is released.

    One thread calls `write`, `commit` and the ends. `streams` belongs to the threads that record.
    """

    def __init__(
        self,
        root: Path,
        run_id: str,
        config: ReplayConfig,
        *,
        arrays: bool = True,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """Lock and read the run; with `about`, what a recorder was given, it is a session of it."""
        self._root = root
        self.run_id = run_id
        self.path = arrays_path(root, run_id)
        self._config = config
        self._is_released = False
        self._lock = _lock_run(root, run_id)
        try:
            self._database = Database.create(database_path(root))
        except BaseException:
            self._lock.release()
            raise
        try:
            settle(self._database, root, run_id)
            self._superblock = _superblock(self.path, run_id)
            known = self._load(self._database, about or {}, arrays=arrays)
            sessions = [] if about is None else self._sessions(known, about)
            self._before = replace(known, run=replace(known.run))
            self._committed = None if self._is_new else self._before.run
            """The row of the run that was committed last."""
            for name, given in (about or {}).items():
                if getattr(known.run, name) is None:
                    setattr(known.run, name, given)
            known.run.status, known.run.ended_ns = "recording", None
            known.run.metadata_offset = known.run.metadata_bytes = known.run.metadata_crc = None
            self._commits = RunCommits(self._database, known)
            self._lane = ArrayLane(self.path, config, known) if arrays else None
            self._end = 0 if self._lane is None else self._lane.end
            self._opened = [OpenedPath(database_path(root))]
            if self._lane is not None:
                self._opened.append(OpenedPath(self.path))
            sync_names(self.path.parent)
        except BaseException:
            self.release()
            raise
        self._batch = Batch(StepRows(run_id), sessions=sessions)
        self._oldest = 0.0
        self._chunks = 0
        self._next_snapshot = 0
        self._is_complete = False
        self._has_log = False
        for episode in known.episodes:
            if episode.ended_ns is None:  # its recorder was killed
                self._batch.episodes[episode.number] = replace(
                    episode, ended_ns=now_ns(), truncated=1, status="truncated"
                )
        ids = {(episode.episode_id, episode.agent_id) for episode in known.episodes}
        self.streams = Streams(
            run_id, self._lane, known.run.steps, known.run.episodes, ids, config.fields
        )

    def warn_of_other_metadata(self) -> None:
        """Warn if the run exists and has other metadata than this session was given."""
        own = self._before.run.metadata
        given = self._batch.sessions[-1].metadata
        if own is not None and given is not None and json.loads(own) != json.loads(given):
            warnings.warn(
                f"run {self.run_id!r} has the metadata {own}; it keeps them, and {given} is noted "
                "in this session: pass resume=True if that is meant, or use another run_id",
                RuntimeWarning,
                stacklevel=3,
            )

    @property
    def run(self) -> RunRow:
        """The row of the run in the database."""
        return self._commits.run

    @property
    def has_arrays(self) -> bool:
        """Whether arrays are recorded."""
        return self._lane is not None

    def columns(self) -> list[tuple[int, ColumnSpec]]:
        """Return the columns of the arrays so far, with their numbers."""
        return [] if self._lane is None else self._lane.columns

    @property
    def pending_steps(self) -> int:
        """Steps that were written, but not committed."""
        return len(self._batch.steps)

    @property
    def oldest(self) -> float | None:
        """When the first step that is not committed was written, by `time.monotonic()`."""
        return self._oldest if self._batch.steps or self._batch.episodes else None

    def keep_open(self) -> None:
        """Leave the episodes open that a killed recorder left open; nothing was written yet."""
        self._batch.episodes.clear()

    def write(self, items: Sequence[Step | End]) -> None:
        """Write steps and ends of episodes, in their order."""
        if not self._batch.steps:
            self._oldest = time.monotonic()
        added = self._batch.steps.add(items)
        self._write_arrays(items, added)
        for first, end in pairwise((0, *added.groups)):
            self._add(items[first:end])
        if added.steps:
            self.run.steps = added.first_row + added.steps

    def commit(self, *, sync: bool = False) -> None:
        """Commit everything that was written; `sync` makes it survive a power cut."""
        self._check_files()
        is_snapshot_due = self._lane is not None and self._chunks >= self._next_snapshot
        # A file with metadata, and a database without the run, would look like a foreign file.
        is_done = self._commit(sync=sync or is_snapshot_due)
        if self._lane is not None and is_snapshot_due and is_done:
            self._lane.write_snapshot(file_attributes(self.run))
            self._next_snapshot = max(_MIN_SNAPSHOT, _SNAPSHOT_GROWTH * self._chunks)

    def wait_for_database(self) -> None:
        """Wait until the database can be written; a `LockedError` if that takes long."""
        with self._database.transaction():
            pass

    def finish(self, status: str, ended_ns: int | None = None) -> None:
        """Commit everything, and complete the file of the run.

        The run ended at `ended_ns`, or at the time of this call if that is None.
        May be called again if another process had the database locked.
        """
        if not self._is_complete:
            self._complete(status, ended_ns)
        self._commit_tables(sync=True)
        self._database.empty_wal()
        update_index(self._root)

    def _complete(self, status: str, ended_ns: int | None) -> None:
        """Complete the file of the run, and describe its end for the last commit."""
        self._check_files()
        known = None
        if self._lane is not None:
            # Still as `recording`: after a kill, `recover` has to complete the file.
            self._commit(sync=True)
            known = RunTables.load(self._database, self.run_id)
        self.run.status = status
        self.run.ended_ns = now_ns() if ended_ns is None else ended_ns
        if self._lane is not None and known is not None:
            known = replace(known, run=self.run)
            self._lane.finish(
                self._batch,
                {**file_attributes(self.run), **file_description(known)},
                episode_datasets(RunArrays(self.path, known), known),
                steps=self.run.steps,
                ends=self.run.ends,
            )
            self._lane.sync()
            run = self.run
            run.arrays_end = self._lane.end
            if self._lane.metadata is not None:
                run.metadata_offset, run.metadata_bytes, run.metadata_crc = self._lane.metadata
        self._is_complete = True

    def remove(self) -> None:
        """Remove every step that this writer added, and the run if it is new."""
        self._lane = None  # closes the file
        if self._is_released:
            self._take_again()
        if self._is_new:
            # Without its rows, the file must not look like one that another program made.
            _write_start(self.path, bytes(_SUPERBLOCK_BYTES))
        with self._database.transaction(sync=True) as connection:
            if self._is_new:
                tables.delete(connection, self.run_id)
            else:
                tables.restore(connection, self._before)
        if self._is_new:
            remove(self.path)
            update_index(self._root)
        elif self._superblock:
            # Metadata of HDF5 may be after everything that the database knows.
            _write_start(self.path, self._superblock, self._end)

    def release(self) -> None:
        """Close the database, and unlock the run. May be called again."""
        self._is_released = True
        self._database.close()
        self._lock.release()

    def _take_again(self) -> None:
        """Lock the run again after `release`, if it still is as this writer left it."""
        self._lock = _lock_run(self._root, self.run_id)
        try:
            self._database = Database.create(database_path(self._root))
            self._is_released = False
            self._check_unchanged()
        except BaseException:
            self.release()
            raise

    def _check_unchanged(self) -> None:
        with self._database.snapshot() as connection:
            try:
                found = tables.read_run(connection, self.run_id)
            except UnknownNameError:
                found = None
        if found != self._committed:
            raise ClosedError(
                f"run {self.run_id!r} was changed after this recorder ended; nothing was removed",
                hint=f"`relive replay rm {self._root} {self.run_id}` deletes the whole run",
            )

    def _add(self, items: Sequence[Step | End]) -> None:
        """Count consecutive steps of an episode, and its end, which is the last of the items."""
        episode: EpisodeRow = items[0].episode
        self._batch.episodes[episode.number] = episode
        self.run.episodes = max(self.run.episodes, episode.number + 1)
        last = items[-1]
        self.run.dropped += last.dropped - episode.dropped
        episode.dropped = last.dropped
        end = last.end if isinstance(last, Step) else last
        episode.steps += len(items) if isinstance(last, Step) else len(items) - 1
        if end is not None:
            episode.ended_ns = end.ts_ns
            episode.terminated, episode.truncated = int(end.terminated), int(end.truncated)
            episode.status = "terminated" if end.terminated else "truncated"
        step = last if isinstance(last, Step) else items[-2] if len(items) > 1 else None
        if isinstance(step, Step):
            episode.total_reward = step.total_reward

    def _commit(self, *, sync: bool) -> bool:
        """Commit everything that was written; return False if there is nothing."""
        batch = self._batch
        if self._lane is not None:
            self._lane.commit(batch)
            self._chunks += len(batch.chunks)
            if batch.chunks:
                self._lane.sync()  # no row may refer to bytes that are not on the disk
            self.run.arrays_end = self._lane.end
        if not batch and not sync:
            return False
        self._commit_tables(sync=sync)
        return True

    def _commit_tables(self, *, sync: bool) -> None:
        self._commits.commit(self._batch, sync=sync)
        self._batch = Batch(StepRows(self.run_id))
        if not self._has_log:
            self._has_log = True
            # The log is there from the first commit on, until the last connection is closed.
            self._opened.append(OpenedPath(f"{database_path(self._root)}-wal"))
        self._committed = replace(self.run)
        self._check_files()

    def _check_files(self) -> None:
        """Raise a `NotFoundError` if a file was removed: what it gets would be lost."""
        for opened in self._opened:
            opened.check()

    def _load(self, database: Database, about: Mapping[str, Any], *, arrays: bool) -> RunTables:
        """Return what is known about the run, or a new run."""
        try:
            known = RunTables.load(database, self.run_id)
        except UnknownNameError:
            self._is_new = True
            if any(self._superblock):  # a recorder writes them after its first commit
                raise AlreadyExistsError(
                    f"`{self.path}` exists, but the database has no run {self.run_id!r}",
                    hint="move the file away, or use another run_id",
                ) from None
            remove(self.path)  # a recorder was killed before its first commit
            return self._new(about)
        self._is_new = False
        if known.run.status in {"archived", "deleted"}:
            raise ReadOnlyError(
                f"run {self.run_id!r} is {known.run.status}", hint="use another run_id"
            )
        if known.run.steps and bool(known.columns) != arrays:
            raise InvalidError(
                f"run {self.run_id!r} was recorded {'without' if arrays else 'with'} arrays",
                hint=f"pass arrays={not arrays}, or use another run_id",
            )
        for name in ("env_id", "spaces"):
            given, had = about.get(name), getattr(known.run, name)
            if given is not None and had is not None and given != had:
                raise InvalidError(
                    f"run {self.run_id!r} has another `{name}`: {had}, not {given}",
                    hint="use another run_id for another environment",
                )
        return known

    def _sessions(self, known: RunTables, about: Mapping[str, Any]) -> list[SessionRow]:
        """Return the rows of this session, and of the first one, if the run does not have it."""
        if self._is_new:
            return known.all_sessions
        git = git_state(Path.cwd())
        this = SessionRow(
            self.run_id,
            len(known.all_sessions),
            known.run.steps,
            now_ns(),
            seed=about.get("seed"),
            git=None if git is None else json.dumps(git),
            metadata=about.get("metadata"),
        )
        return [this] if known.sessions else [*known.all_sessions, this]

    def _new(self, about: Mapping[str, Any]) -> RunTables:
        git = git_state(Path.cwd())
        run = RunRow(
            self.run_id,
            uuid.uuid4().hex,
            "recording",
            now_ns(),
            git=None if git is None else json.dumps(git),
            config=json.dumps(self._config.described()),
            **about,
        )
        return RunTables(run, [], [], {}, {}, [])

    def _write_arrays(self, items: Sequence[Step | End], added: AddedSteps) -> None:
        lane = self._lane
        if lane is None:
            return
        scalars = added.scalars
        ends: list[End] = []
        if added.steps < len(items) or (scalars["terminated"] | scalars["truncated"]).any():
            found = (item.end if isinstance(item, Step) else item for item in items)
            ends = [end for end in found if end is not None and end.arrays is not None]
        first = added.first_row
        fields = {name: scalars[name] for name in STEP_SCALARS} if added.steps else {}
        lane.append(items, first, self.run.ends, fields)
        if added.present is not None:
            lane.append_validity(first, [added.present] * added.steps)
        elif added.steps:
            lane.append_validity(first, [item.present for item in items if isinstance(item, Step)])
        if added.steps:
            lane.append_flags(REWARDS, first, scalars["has_reward"])
        if ends:
            first = self.run.ends
            numbers = np.array([end.episode.number for end in ends], np.int64)
            lane.append_rows("final.episode", first, numbers, "ends")
            lane.append_validity(first, [end.present for end in ends], "ends")
            self.run.ends += len(ends)


def file_attributes(run: RunRow) -> dict[str, str | int]:
    """Return the attributes of the file of a run, which its HDF5 metadata has at any time."""
    return {
        "run_id": run.run_id,
        "uid": run.uid,
        "version": VERSION,
        "created_at": timestamp(run.created_ns),
        "status": run.status,
        "total_steps": run.steps,
        "total_episodes": run.episodes,
    }


def file_description(known: RunTables) -> dict[str, str]:
    """Return what a reader without the database needs, as JSON: attributes of a closed file."""
    return {
        "run": json.dumps(asdict(known.run)),
        "columns": json.dumps([json.loads(spec.to_json()) for spec in known.columns]),
        "episodes": json.dumps([asdict(episode) for episode in known.episodes]),
        "sessions": json.dumps([asdict(session) for session in known.sessions]),
    }


def episode_datasets(arrays: RunArrays, known: RunTables) -> list[SmallDataset]:
    """Return where each episode is: its rows, if they are together, or else all of its rows."""
    count = known.run.steps
    numbers = arrays.read("episode", np.arange(count)) if count else np.zeros(0, np.int64)
    rows = np.argsort(numbers, kind="stable")
    lengths = np.bincount(numbers, minlength=known.run.episodes)
    starts = np.cumsum(lengths) - lengths
    datasets = [_dataset("episodes/starts", starts), _dataset("episodes/lengths", lengths)]
    if not np.array_equal(rows, np.arange(len(rows))):
        datasets.append(_dataset("episodes/rows", rows))
    return datasets


def _dataset(path: str, values: npt.NDArray[Any]) -> SmallDataset:
    values = values.astype("<i8")
    return path, values.dtype.str, list(values.shape), values.tobytes()


def _superblock(path: Path, run_id: str) -> bytes:
    """Return the first bytes of a file, which refer to the metadata of HDF5."""
    try:
        with open_reader(path) as file:
            return file.read(_SUPERBLOCK_BYTES)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise unreadable_arrays(error, path, run_id) from error


def _write_start(path: Path, superblock: bytes, end: int | None = None) -> None:
    """Replace the first bytes of a file, and let it end at `end`. Does nothing without the file."""
    try:
        with path.open("r+b") as file:
            file.write(superblock)
            if end is not None:
                file.truncate(end)
            file.flush()
            os.fsync(file.fileno())
    except FileNotFoundError:
        pass
    except OSError as error:
        raise storage_error(error, path, "write") from error


def _lock_run(root: Path, run_id: str) -> FileLock:
    path = lock_path(root, run_id)
    make_directory(path.parent)
    try:
        lock = FileLock.take(path, create=True)
    except LockedError as error:
        owner = ""
        with contextlib.suppress(OSError):
            owner = path.read_text().strip()
        who = f"process {owner}" if owner else "another process"
        raise LockedError(
            f"run {run_id!r} is being recorded by {who}", hint="use another run_id"
        ) from error
    try:
        path.write_text(str(os.getpid()))
    except OSError as error:
        lock.release()
        raise storage_error(error, path, "write") from error
    return lock
