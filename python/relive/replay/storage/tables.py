"""The tables of one run: what is committed in one transaction, and the checksums over it."""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from relive._native import json_crc
from relive.errors import CorruptError, UnknownNameError
from relive.replay.columns import ColumnSpec
from relive.replay.storage.connection import Database

STEP_COLUMNS: Final = (
    "run_id",
    "episode_id",
    "step_index",
    "agent_id",
    "row",
    "action",
    "action_ref",
    "reward",
    "terminated",
    "truncated",
    "frame_ref",
    "obs_ref",
    "info",
    "ts_ns",
    "timestamp",
)
"""The columns of `steps`, in the order of a row."""
STEPS: Final = ", ".join(STEP_COLUMNS)
ROW: Final = STEP_COLUMNS.index("row")

_EPISODE_COLUMNS: Final = (
    "run_id",
    "episode_id",
    "agent_id",
    "number",
    "env_index",
    "seed",
    "started_ns",
    "ended_ns",
    "steps",
    "dropped",
    "total_reward",
    "terminated",
    "truncated",
    "status",
    "metadata",
)
EPISODES: Final = ", ".join(_EPISODE_COLUMNS)
_RUN_COLUMNS: Final = (
    "run_id",
    "uid",
    "status",
    "env_id",
    "env_spec",
    "spaces",
    "seed",
    "git",
    "config",
    "metadata",
    "created_ns",
    "ended_ns",
    "steps",
    "episodes",
    "ends",
    "dropped",
    "arrays_end",
    "arrays_version",
    "arrays_pending",
    "metadata_offset",
    "metadata_bytes",
    "metadata_crc",
    "digest",
)
_ROWS_PER_STATEMENT: Final = 64
_DIGEST_MASK: Final = (1 << 32) - 1

StepRow = tuple[Any, ...]
ChunkRow = tuple[int, int, int, int, int]
"""First row, rows, offset, bytes and CRC-32C, if it is known."""
TailRow = tuple[int, int, bytes, int]
"""First row, rows, data and CRC-32C."""


@dataclass(slots=True)
class EpisodeRow:
    """An episode, as the database has it."""

    run_id: str
    episode_id: str
    agent_id: str
    number: int
    env_index: int
    seed: int | None
    started_ns: int
    ended_ns: int | None = None
    steps: int = 0
    dropped: int = 0
    total_reward: float = 0.0
    terminated: int = 0
    truncated: int = 0
    status: str = "open"
    metadata: str | None = None

    def values(self) -> tuple[Any, ...]:
        """Return the values of its columns."""
        return tuple(getattr(self, name) for name in _EPISODE_COLUMNS)


@dataclass(slots=True)
class RunRow:
    """A run, as the database has it."""

    run_id: str
    uid: str
    status: str
    created_ns: int
    env_id: str | None = None
    env_spec: str | None = None
    spaces: str | None = None
    seed: int | None = None
    git: str | None = None
    config: str | None = None
    metadata: str | None = None
    ended_ns: int | None = None
    steps: int = 0
    episodes: int = 0
    ends: int = 0
    """How many ends of episodes have a last observation or frame."""
    dropped: int = 0
    arrays_end: int = 0
    """Where the next bytes of the file of arrays go."""
    arrays_version: int = 0
    """How often the file of arrays was replaced."""
    arrays_pending: int = 0
    """Whether the new file may still have its temporary name: see `relive.replay.storage.files`."""
    metadata_offset: int | None = None
    """Where the metadata of HDF5 is in the file, once the run is closed."""
    metadata_bytes: int | None = None
    metadata_crc: int | None = None
    """The CRC-32C of the superblock and the metadata."""
    digest: int = 0
    """The sum of the checksums of all rows about the run in other tables than `steps`."""

    def values(self) -> tuple[Any, ...]:
        """Return the values of its columns."""
        return tuple(getattr(self, name) for name in _RUN_COLUMNS)


@dataclass(slots=True)
class Batch:
    """What is committed in one transaction: rows of steps, and where their arrays are."""

    steps: list[StepRow] = field(default_factory=list)
    episodes: dict[int, EpisodeRow] = field(default_factory=dict)
    """The episodes that changed, by number."""
    columns: list[tuple[int, ColumnSpec]] = field(default_factory=list)
    """The array columns that are new, with their numbers."""
    chunks: list[tuple[str, ChunkRow]] = field(default_factory=list)
    """New chunks, with the paths of their fields."""
    tails: list[tuple[str, TailRow]] = field(default_factory=list)
    """Rows of chunks that are not full, with the paths of their fields."""


@dataclass(slots=True)
class RunTables:
    """Everything that the database has about a run, its steps excepted. Checked when loaded."""

    run: RunRow
    episodes: list[EpisodeRow]
    columns: list[ColumnSpec]
    chunks: dict[str, list[ChunkRow]]
    tails: dict[str, list[TailRow]]
    commits: list[tuple[int, int, int]]
    """First row, number of rows and CRC-32C of rows of `steps`."""

    @classmethod
    def load(cls, database: Database, run_id: str) -> Self:
        """Read and check the tables of a run, all at one moment."""
        with database.snapshot() as connection:
            return cls.read(connection, run_id)

    @classmethod
    def read(cls, connection: sqlite3.Connection, run_id: str) -> Self:
        """Read and check the tables of a run in a transaction of the caller."""
        run = read_run(connection, run_id)
        digest = 0

        def rows(table: str, columns: str) -> list[tuple[Any, ...]]:
            sql = f"SELECT {columns} FROM {table} WHERE run_id = ?"  # noqa: S608 - our names
            return connection.execute(sql, (run_id,)).fetchall()

        episodes = rows("episodes", EPISODES)
        digest += sum(map(_episode_crc, episodes))
        columns = sorted(rows("columns", "number, name, spec"))
        digest += sum(_column_crc(*column) for column in columns)
        chunks: dict[str, list[ChunkRow]] = {}
        for name, *chunk in rows("chunks", 'field, first_row, rows, "offset", bytes, crc'):
            chunks.setdefault(name, []).append(tuple(chunk))
            digest += _chunk_crc(name, tuple(chunk))
        tails: dict[str, list[TailRow]] = {}
        for name, *tail in rows("tail", "field, first_row, rows, data, crc"):
            tails.setdefault(name, []).append(tuple(tail))
            digest += _tail_crc(name, tuple(tail))
        commits = sorted(rows("commits", "first_row, rows, crc"))
        digest += sum(_commit_crc(*made) for made in commits)
        if digest & _DIGEST_MASK != run.digest:
            raise CorruptError(
                f"run {run_id!r}: the database does not have what was committed",
                hint="`relive validate` shows what is damaged",
            )
        return cls(
            run,
            sorted((EpisodeRow(*row) for row in episodes), key=lambda episode: episode.number),
            [ColumnSpec.from_json(spec, run_id) for _, _, spec in columns],
            chunks,
            tails,
            commits,
        )


class RunCommits:
    """Commits the batches of one run, and keeps the checksums over its tables. One thread."""

    def __init__(self, database: Database, tables: RunTables) -> None:
        self._database = database
        self.run = tables.run
        self._episodes = {
            episode.number: _episode_crc(episode.values())
            for episode in tables.episodes
            if episode.ended_ns is None
        }
        self._last_chunk = {
            name: max((chunk[0], _chunk_crc(name, chunk)) for chunk in chunks)
            for name, chunks in tables.chunks.items()
        }
        self._tails = {
            name: sorted((tail[0], _tail_crc(name, tail)) for tail in tails)
            for name, tails in tables.tails.items()
        }

    def commit(self, batch: Batch, *, sync: bool = False) -> None:
        """Commit a batch in one transaction; `sync` makes it survive a power cut."""
        with self._database.transaction(sync=sync) as connection:
            changes = _Changes(
                connection,
                self.run.run_id,
                self.run.digest,
                dict(self._episodes),
                dict(self._last_chunk),
                dict(self._tails),
            )
            changes.add_steps(batch.steps)
            for episode in batch.episodes.values():
                changes.put_episode(episode)
            for number, spec in batch.columns:
                changes.add_column(number, spec)
            for name, chunk in batch.chunks:
                changes.put_chunk(name, chunk)
            for name, tail in batch.tails:
                changes.add_tail(name, tail)
            before, self.run.digest = self.run.digest, changes.digest & _DIGEST_MASK
            try:
                write_run(connection, self.run)
                connection.execute("COMMIT")
            except BaseException:
                self.run.digest = before
                raise
        self._episodes, self._last_chunk, self._tails = (
            changes.episodes,
            changes.last_chunk,
            changes.tails,
        )


@dataclass(slots=True)
class _Changes:
    """The rows of one transaction, and what they make of the digest of a run."""

    connection: sqlite3.Connection
    run_id: str
    digest: int
    episodes: dict[int, int]
    """The checksums of the rows of episodes that may change, by number."""
    last_chunk: dict[str, tuple[int, int]]
    """The first row of the last chunk of each field, and the checksum of its row."""
    tails: dict[str, list[tuple[int, int]]]
    """The first rows of the tails of each field, and the checksums of their rows."""

    def add_steps(self, rows: Sequence[StepRow]) -> None:
        if not rows:
            return
        for start in range(0, len(rows), _ROWS_PER_STATEMENT):
            part = rows[start : start + _ROWS_PER_STATEMENT]
            row = f"({', '.join('?' * len(STEP_COLUMNS))})"
            # Many rows per statement are faster than one statement for each.
            self.connection.execute(
                f"INSERT INTO steps ({STEPS}) VALUES {', '.join([row] * len(part))}",  # noqa: S608
                [value for one in part for value in one],
            )
        made = rows_checksum(rows)
        self.connection.execute("INSERT INTO commits VALUES (?, ?, ?, ?)", (self.run_id, *made))
        self.digest += _commit_crc(*made)

    def put_episode(self, episode: EpisodeRow) -> None:
        values = episode.values()
        self.connection.execute(_REPLACE_EPISODE, values)
        crc = _episode_crc(values)
        self.digest += crc - self.episodes.pop(episode.number, 0)
        if episode.ended_ns is None:
            self.episodes[episode.number] = crc

    def add_column(self, number: int, spec: ColumnSpec) -> None:
        column = (number, spec.name, spec.to_json())
        self.connection.execute("INSERT INTO columns VALUES (?, ?, ?, ?)", (self.run_id, *column))
        self.digest += _column_crc(*column)

    def put_chunk(self, name: str, chunk: ChunkRow) -> None:
        """Insert a chunk, which replaces what was there of its rows."""
        first, rows = chunk[:2]
        self.connection.execute(_REPLACE_CHUNK, (self.run_id, name, *chunk))
        crc = _chunk_crc(name, chunk)
        replaced = self.last_chunk.get(name)
        self.digest += crc - (replaced[1] if replaced is not None and replaced[0] == first else 0)
        self.last_chunk[name] = (first, crc)
        left = []
        for tail in self.tails.get(name, ()):
            if first <= tail[0] < first + rows:
                self.digest -= tail[1]
                self.connection.execute(_DELETE_TAIL, (self.run_id, name, tail[0]))
            else:
                left.append(tail)
        self.tails[name] = left

    def add_tail(self, name: str, tail: TailRow) -> None:
        first, rows, data, crc = tail
        self.connection.execute(_INSERT_TAIL, (self.run_id, name, first, rows, crc, data))
        row_crc = _tail_crc(name, tail)
        self.digest += row_crc
        self.tails[name] = [*self.tails.get(name, ()), (first, row_crc)]


def restore(connection: sqlite3.Connection, before: RunTables) -> None:
    """Remove everything about a run that was committed after `before` was read."""
    run = before.run
    key = (run.run_id,)
    for table, column, kept in (
        ("steps", "row", run.steps),
        ("commits", "first_row", run.steps),
        ("episodes", "number", run.episodes),
        ("columns", "number", len(before.columns)),
        ("chunks", '"offset"', run.arrays_end),
        ("tail", "first_row", 0),
    ):
        connection.execute(
            f"DELETE FROM {table} WHERE run_id = ? AND {column} >= ?",  # noqa: S608 - our names
            (*key, kept),
        )
    for episode in before.episodes:
        connection.execute(_REPLACE_EPISODE, episode.values())
    for name, chunks in before.chunks.items():
        connection.execute(_REPLACE_CHUNK, (*key, name, *max(chunks)))
    for name, tails in before.tails.items():
        for first, rows, data, crc in tails:
            connection.execute(_INSERT_TAIL, (*key, name, first, rows, crc, data))
    write_run(connection, run)


def replace_arrays(
    connection: sqlite3.Connection,
    before: RunTables,
    run: RunRow,
    columns: Sequence[ColumnSpec],
    chunks: Mapping[str, Sequence[ChunkRow]],
) -> RunRow:
    """Replace what the database has about the arrays of a run, and return the row of the run.

    Every row of an array is in one of the chunks. `before` is what the database has now. `run` is
    the new row but for its digest.
    """
    run_id = run.run_id
    digest = run.digest
    for number, (old, new) in enumerate(zip(before.columns, columns, strict=True)):
        if old != new:
            connection.execute(_UPDATE_COLUMN, (new.to_json(), run_id, number))
            digest += _column_crc(number, new.name, new.to_json())
            digest -= _column_crc(number, old.name, old.to_json())
    for table in ("chunks", "tail"):
        connection.execute(
            f"DELETE FROM {table} WHERE run_id = ?",  # noqa: S608 - our names
            (run_id,),
        )
    digest -= sum(_chunk_crc(name, row) for name, rows in before.chunks.items() for row in rows)
    digest -= sum(_tail_crc(name, row) for name, rows in before.tails.items() for row in rows)
    for name, rows in chunks.items():
        connection.executemany(_REPLACE_CHUNK, ((run_id, name, *row) for row in rows))
        digest += sum(_chunk_crc(name, row) for row in rows)
    made = replace(run, digest=digest & _DIGEST_MASK)
    write_run(connection, made)
    return made


def delete(connection: sqlite3.Connection, run_id: str) -> None:
    """Delete everything about a run."""
    for table in ("steps", "commits", "episodes", "columns", "chunks", "tail", "runs"):
        connection.execute(
            f"DELETE FROM {table} WHERE run_id = ?",  # noqa: S608 - our names
            (run_id,),
        )


def read_run(connection: sqlite3.Connection, run_id: str) -> RunRow:
    """Return the row of a run; raise an `UnknownNameError` if there is none."""
    rows = connection.execute(
        f"SELECT {', '.join(_RUN_COLUMNS)}, crc FROM runs WHERE run_id = ?",  # noqa: S608
        (run_id,),
    ).fetchall()
    if not rows:
        raise UnknownNameError(f"no run has the id {run_id!r}")
    *values, crc = rows[0]
    if json_crc("run", values) != crc:
        raise CorruptError(f"run {run_id!r} has a wrong checksum in the database")
    return RunRow(**dict(zip(_RUN_COLUMNS, values, strict=True)))


def write_run(connection: sqlite3.Connection, run: RunRow) -> None:
    """Insert or replace the row of a run."""
    values = run.values()
    connection.execute(_REPLACE_RUN, (*values, json_crc("run", values)))


def checked_steps(
    connection: sqlite3.Connection, run_id: str, commits: Iterable[tuple[int, int, int]]
) -> list[StepRow]:
    """Return the rows of `steps` that were committed together; raise if one changed."""
    found: list[StepRow] = []
    for made in commits:
        rows = connection.execute(
            f"SELECT {STEPS} FROM steps WHERE run_id = ? AND row >= ? AND row < ? "  # noqa: S608
            "ORDER BY row",
            (run_id, made[0], made[0] + made[1]),
        ).fetchall()
        if not rows or rows_checksum(rows) != tuple(made):
            raise CorruptError(
                f"run {run_id!r}: steps {made[0]} to {made[0] + made[1] - 1} are damaged in the "
                "database"
            )
        found += rows
    return found


def rows_checksum(rows: Sequence[StepRow]) -> tuple[int, int, int]:
    """Return the first row, the number of rows and the CRC-32C of rows of `steps`."""
    return rows[0][ROW], len(rows), json_crc("steps", rows)


def _episode_crc(values: tuple[Any, ...]) -> int:
    return json_crc("episodes", values)


def _column_crc(number: int, name: str, spec: str) -> int:
    return json_crc("columns", (number, name, spec))


def _chunk_crc(name: str, chunk: ChunkRow) -> int:
    return json_crc("chunks", (name, *chunk))


def _tail_crc(name: str, tail: TailRow) -> int:
    first, rows, _, crc = tail
    return json_crc("tail", (name, first, rows, crc))


def _commit_crc(first: int, rows: int, crc: int) -> int:
    return json_crc("commits", (first, rows, crc))


def _replace(table: str, columns: Sequence[str]) -> str:
    marks = ", ".join("?" * len(columns))
    return f"INSERT OR REPLACE INTO {table} ({', '.join(columns)}) VALUES ({marks})"  # noqa: S608


_REPLACE_EPISODE: Final = _replace("episodes", _EPISODE_COLUMNS)
_REPLACE_RUN: Final = _replace("runs", (*_RUN_COLUMNS, "crc"))
_REPLACE_CHUNK: Final = "INSERT OR REPLACE INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?)"
_UPDATE_COLUMN: Final = "UPDATE columns SET spec = ? WHERE run_id = ? AND number = ?"
_INSERT_TAIL: Final = "INSERT INTO tail VALUES (?, ?, ?, ?, ?, ?)"
_DELETE_TAIL: Final = "DELETE FROM tail WHERE run_id = ? AND field = ? AND first_row = ?"
