"""The scalar lane: the steps and episodes of runs in SQLite, which any SQLite client can read."""

import json
import os
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from relive._arguments import as_int, as_text
from relive.errors import (
    CorruptError,
    InvalidError,
    InvalidTypeError,
    StorageError,
    UnknownNameError,
)
from relive.replay.storage.connection import Database
from relive.replay.storage.layout import REPLAY, database_path, lock_path, runs_path
from relive.replay.storage.tables import (
    EPISODES,
    ROW,
    STEP_COLUMNS,
    EpisodeRow,
    RunRow,
    StepRow,
    checked_steps,
    migrated_from,
    read_run,
)
from relive.store.locks import is_locked

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step, as the database has it.

    Example:
        >>> import tempfile
        >>> from relive.replay import ReplayRecorder, ReplayRun
        >>> root = tempfile.mkdtemp()
        >>> with ReplayRecorder(root, "run-1") as recorder:
        ...     _ = recorder.step([0.5], [1, 0], 1.0, info={"lives": 3})
        >>> step = ReplayRun(root, "run-1").step(0)
        >>> step.action, step.reward, step.info, step.obs_ref
        ([1, 0], 1.0, {'lives': 3}, 'h5://run-1/observations/0')
    """

    run_id: str
    episode_id: str
    step_index: int
    agent_id: str
    row: int
    """The number of the step in its run; row `row` of every array of the run belongs to it."""
    action: int | float | list[Any] | None
    action_ref: str | None
    reward: float | None
    terminated: bool
    truncated: bool
    frame_ref: str | None
    obs_ref: str | None
    info: dict[str, Any]
    ts_ns: int
    timestamp: str
    frame: Any = None
    """What `frame_ref` refers to, if it was read."""
    observation: Any = None
    """What `obs_ref` refers to, if it was read."""

    @classmethod
    def from_row(cls, row: StepRow, *, migrated: bool = False) -> Self:
        """Return the step that a row of the database is.

        The markers of values that JSON does not have are read if the run was migrated.
        """
        values = dict(zip(STEP_COLUMNS, row, strict=True))
        if isinstance(values["action"], str):
            values["action"] = json.loads(values["action"])
        values["info"] = parsed_info(values["info"], migrated=migrated)
        values["terminated"] = bool(values["terminated"])
        values["truncated"] = bool(values["truncated"])
        return cls(**values)


def parsed_info(text: str | None, *, migrated: bool) -> dict[str, Any]:
    """Return an info as it was recorded, or as it was before it was migrated."""
    info: dict[str, Any] = json.loads(text) if text else {}
    if not migrated or not info:
        return info
    from relive.replay.migrate.rows import read_info  # only of runs that were migrated

    return read_info(info)


class TelemetryStore:
    """The steps and episodes of all runs of a root, in SQLite. Thread-safe.

    Any SQLite client can read the database while runs are recorded.

    Args:
        root: The directory of the runs, or the path of a database (`.sqlite`).
        read_only: Do not create the database, and write nothing.
        keep_blobs: Let a `TelemetrySink` write the arrays of steps a second time, as JSON, to the
            table `original_steps`. `relive.replay.migrate` compares the two, and removes the JSON.

    Example:
        >>> import tempfile
        >>> from relive.replay import TelemetryStore
        >>> with TelemetryStore(tempfile.mkdtemp()) as store:
        ...     store.query("SELECT count(*) AS steps FROM steps").to_pylist()
        [{'steps': 0}]
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        read_only: bool = False,
        keep_blobs: bool = False,
    ) -> None:
        if read_only and keep_blobs:
            raise InvalidError("pass `read_only` or `keep_blobs`, not both")
        self.keep_blobs = keep_blobs
        """Whether a sink writes the arrays of steps a second time, as JSON."""
        path = runs_path(root)
        is_file = path.suffix in {".sqlite", ".db"} and not path.is_dir()
        self.path = path if is_file else database_path(path)
        """The path of the database."""
        self.root = path.parent.parent if is_file else path
        """The directory of the runs."""
        open_ = Database.open if read_only else Database.create
        try:
            self._database = open_(self.path)
        except StorageError as error:
            if not read_only and not os.access(self.path.parent, os.W_OK):
                error.hint = error.hint or "pass read_only=True to only read it"
            raise

    def runs(self) -> list[dict[str, Any]]:
        """Return the id, status, environment, steps and episodes of every run, the oldest first.

        The status is `recording`, `finished`, `failed`, `archived`, or `interrupted` after a kill.
        It is `damaged` if the row of the run has a wrong checksum; then the uid is None, and the
        numbers are 0.
        """
        with self._database.snapshot() as connection:
            found = connection.execute(
                "SELECT run_id, created_ns FROM runs WHERE status != 'deleted' "
                "ORDER BY created_ns, run_id"
            ).fetchall()
            return [self._about(connection, *run) for run in found]

    def run_status(self, run_id: str) -> str:
        """Return the status of a run; see `runs`."""
        with self._database.snapshot() as connection:
            return status_of(self.root, read_run(connection, run_id))

    def episodes(
        self,
        *,
        run_id: str | None = None,
        agent_id: str | None = None,
        status: str | None = None,
        min_return: float | None = None,
        max_return: float | None = None,
        min_length: int | None = None,
        max_length: int | None = None,
        limit: int | None = None,
    ) -> list[EpisodeRow]:
        """Return the episodes that fulfil all conditions, in the order in which they began.

        Args:
            run_id: Of this run.
            agent_id: Of this agent.
            status: `open`, `terminated` or `truncated`.
            min_return: With at least this return.
            max_return: With at most this return.
            min_length: With at least this many steps.
            max_length: With at most this many steps.
            limit: The newest of them, at most this many.
        """
        where = _where(
            run_id=("=", run_id),
            agent_id=("=", agent_id),
            status=("=", status),
            total_reward=[
                (">=", _number("min_return", min_return)),
                ("<=", _number("max_return", max_return)),
            ],
            steps=[
                (">=", None if min_length is None else as_int("min_length", min_length)),
                ("<=", None if max_length is None else as_int("max_length", max_length)),
            ],
        )
        count = -1 if limit is None else as_int("limit", limit, at_least=0)
        order = "number DESC" if run_id is not None else "started_ns DESC, run_id DESC, number DESC"
        rows = self._database.rows(
            f"SELECT {EPISODES} FROM episodes WHERE {where.text} "  # noqa: S608 - our names
            f"ORDER BY {order} LIMIT ?",
            (*where.values, count),
        )
        return [EpisodeRow(*row) for row in reversed(rows)]

    def steps(
        self,
        *,
        run_id: str | None = None,
        agent_id: str | None = None,
        min_reward: float | None = None,
        max_reward: float | None = None,
        limit: int = 1000,
    ) -> list[StepRecord]:
        """Return the newest steps that fulfil all conditions, the newest last.

        Args:
            run_id: Of this run.
            agent_id: Of this agent.
            min_reward: With at least this reward.
            max_reward: With at most this reward.
            limit: At most this many.
        """
        return self._newest(
            _where(
                run_id=("=", run_id),
                agent_id=("=", agent_id),
                reward=[
                    (">=", _number("min_reward", min_reward)),
                    ("<=", _number("max_reward", max_reward)),
                ],
            ),
            run_id,
            as_int("limit", limit, at_least=0),
        )

    def episode_steps(
        self, episode_id: str, *, run_id: str | None = None, agent_id: str | None = None
    ) -> list[StepRecord]:
        """Return the steps of an episode in their order.

        An id that episodes of two runs have needs `run_id`. Without `agent_id`, the steps of all
        agents are returned, step by step.
        """
        as_text("`episode_id`", episode_id)
        where = _where(episode_id=("=", episode_id), run_id=("=", run_id), agent_id=("=", agent_id))
        with self._database.snapshot() as connection:
            runs = connection.execute(
                f"SELECT DISTINCT run_id FROM episodes WHERE {where.text}",  # noqa: S608
                where.values,
            ).fetchall()
            if not runs:
                raise UnknownNameError(f"no episode has the id {episode_id!r}")
            if len(runs) > 1:
                names = ", ".join(repr(run) for (run,) in runs[:5])
                raise InvalidError(
                    f"the episode id {episode_id!r} exists in {len(runs)} runs: {names}",
                    hint="pass run_id=",
                )
            rows = connection.execute(
                f"SELECT run_id, row FROM steps WHERE {where.text} "  # noqa: S608
                "ORDER BY step_index, agent_id",
                where.values,
            ).fetchall()
            return _checked(connection, rows)

    def recent_steps(
        self,
        limit: int = 100,
        *,
        run_id: str | None = None,
        agent_id: str | None = None,
        resolve: bool = False,
    ) -> list[StepRecord]:
        """Return the newest steps, the newest last.

        `resolve` also reads their frames and observations from the arrays of their runs.
        """
        where = _where(run_id=("=", run_id), agent_id=("=", agent_id))
        steps = self._newest(where, run_id, as_int("limit", limit, at_least=0))
        return self._resolved(steps) if resolve else steps

    def query(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> "pa.Table":
        """Return the result of a statement that only reads, as an Arrow table.

        Args:
            sql: One `SELECT`.
            parameters: The values of `?`, or of `:name` as a dict. NumPy's numbers are numbers.
        """
        text, values = as_text("`sql`", sql), _bound(parameters)
        with Database.open(self.path) as database, database.connection() as connection:
            # A database that is opened for reading could still attach and write others.
            connection.set_authorizer(_may_read)
            cursor = connection.execute(text, values)
            if cursor.description is None:
                raise InvalidError("the statement returns no rows", hint="query() takes one SELECT")
            names = [column[0] for column in cursor.description]
            return arrow_table(names, cursor.fetchall())

    def close(self) -> None:
        """Close the database. May be called again."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<TelemetryStore `{self.path}`>"

    def _about(
        self, connection: sqlite3.Connection, run_id: str, created_ns: Any
    ) -> dict[str, Any]:
        try:
            run = read_run(connection, run_id)
            uid, status = run.uid, status_of(self.root, run)
        except CorruptError:
            created = created_ns if isinstance(created_ns, int) else 0
            run, uid, status = RunRow(run_id, "", "", created), None, "damaged"
        return {
            "run_id": run.run_id,
            "uid": uid,
            "status": status,
            "env_id": run.env_id,
            "steps": run.steps,
            "episodes": run.episodes,
            "dropped": run.dropped,
            "created_ns": run.created_ns,
            "ended_ns": run.ended_ns,
        }

    def _newest(self, where: "_Where", run_id: str | None, limit: int) -> list[StepRecord]:
        order = "row" if run_id is not None else "rowid"
        with self._database.snapshot() as connection:
            rows = connection.execute(
                f"SELECT run_id, row FROM steps WHERE {where.text} "  # noqa: S608
                f"ORDER BY {order} DESC LIMIT ?",
                (*where.values, limit),
            ).fetchall()
            return _checked(connection, rows[::-1])

    def _resolved(self, steps: Sequence[StepRecord]) -> list[StepRecord]:
        from relive.replay.resolve import FrameResolver  # only with `resolve`

        with FrameResolver(self.root / REPLAY) as resolver:
            frames = resolver.resolve_batch([step.frame_ref for step in steps])
            observations = resolver.resolve_batch([step.obs_ref for step in steps])
        return [
            replace(step, frame=frame, observation=observation)
            for step, frame, observation in zip(steps, frames, observations, strict=True)
        ]


_READING: Final = frozenset(
    {
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_FUNCTION,
        sqlite3.SQLITE_RECURSIVE,
    }
)


def _may_read(action: int, *_: str | None) -> int:
    return sqlite3.SQLITE_OK if action in _READING else sqlite3.SQLITE_DENY


def status_of(root: Path, run: RunRow) -> str:
    """Return the status of a run: one that is not being recorded any more is `interrupted`."""
    if run.status == "recording" and not is_locked(lock_path(root, run.run_id)):
        return "interrupted"
    return run.status


@dataclass(frozen=True, slots=True)
class _Where:
    text: str
    values: tuple[Any, ...]


_Condition = tuple[str, Any]


def _where(**conditions: _Condition | list[_Condition]) -> _Where:
    """Return the condition that columns compare with values as given; None is any value."""
    texts, values = [], []
    for name, given in conditions.items():
        for operator, value in given if isinstance(given, list) else [given]:
            if value is not None:
                texts.append(f"{name} {operator} ?")
                values.append(value)
    return _Where(" AND ".join(texts) or "1", tuple(values))


def _number(name: str, value: object) -> int | float | None:
    """Return a number that columns are compared with; None is none."""
    number = _plain(value)
    if number is not None and (isinstance(number, bool) or not isinstance(number, int | float)):
        raise InvalidTypeError(f"`{name}` must be a number, got {value!r}")
    return number


def _bound(parameters: Sequence[Any] | Mapping[str, Any]) -> Sequence[Any] | dict[str, Any]:
    """Return the parameters of a statement. SQLite would store NumPy's values as bytes."""
    if isinstance(parameters, Mapping):
        return {name: _plain(value) for name, value in parameters.items()}
    if isinstance(parameters, str | bytes) or not isinstance(parameters, Sequence):
        raise InvalidTypeError(f"`parameters` must be a list or a dict, got {parameters!r}")
    return [_plain(value) for value in parameters]


def _plain(value: Any) -> Any:
    """Return a NumPy scalar as the Python object it stands for; other values as they are."""
    if isinstance(value, np.ndarray):
        raise InvalidTypeError(f"a value to compare with must not be an array, got {value!r}")
    if isinstance(value, np.floating):
        return float(value)  # `item` of a `longdouble` is not a float
    return value.item() if isinstance(value, np.generic) else value


def _checked(connection: sqlite3.Connection, rows: Sequence[tuple[str, int]]) -> list[StepRecord]:
    """Return steps by run and row; raise a `CorruptError` if one of their commits is damaged."""
    by_run: dict[str, list[int]] = {}
    for run_id, row in rows:
        if not isinstance(row, int):
            raise CorruptError(f"run {run_id!r}: the database has a step with the row {row!r}")
        by_run.setdefault(run_id, []).append(row)
    found: dict[tuple[str, int], StepRow] = {}
    migrated = set()
    for run_id, numbers in by_run.items():
        run = read_run(connection, run_id)
        if migrated_from(run) is not None:
            migrated.add(run_id)
        newest = connection.execute("SELECT max(row) FROM steps WHERE run_id = ?", (run_id,))
        if newest.fetchone()[0] != run.steps - 1:
            raise CorruptError(f"run {run_id!r}: the newest steps are missing in the database")
        commits = connection.execute(
            "SELECT first_row, rows, crc FROM commits WHERE run_id = ? AND first_row <= ? "
            "AND first_row + rows > ? ORDER BY first_row",
            (run_id, max(numbers), min(numbers)),
        ).fetchall()
        for step in checked_steps(connection, run_id, commits):
            found[run_id, step[ROW]] = step
    try:
        return [StepRecord.from_row(found[key], migrated=key[0] in migrated) for key in rows]
    except KeyError as error:
        raise CorruptError(f"the database has no checksum of step {error}") from error


def _as_text(value: Any) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def arrow_table(
    names: Sequence[str],
    rows: Sequence[tuple[Any, ...]],
    types: "Mapping[str, pa.DataType] | None" = None,
) -> "pa.Table":
    """Return rows as an Arrow table. SQLite has types per value: a column of integers and floats
    becomes floats, any other mixture becomes text. `types` are of columns without any value.
    """
    import pyarrow as pa

    columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    arrays = []
    for name, values in zip(names, columns, strict=True):
        kinds = {type(value) for value in values if value is not None}
        if kinds <= {int, float} and len(kinds) > 1:
            arrays.append(pa.array([None if v is None else float(v) for v in values], pa.float64()))
        elif len(kinds) > 1:
            arrays.append(
                pa.array([None if v is None else _as_text(v) for v in values], pa.string())
            )
        else:
            arrays.append(pa.array(values, None if kinds or types is None else types.get(name)))
    return pa.Table.from_arrays(arrays, names=list(names))
