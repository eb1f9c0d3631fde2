"""The tables of one run: what is committed in one transaction, and the checksums over it."""

import json
import sqlite3
import uuid
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from relive._native import StepRows, json_crc
from relive.errors import CorruptError, UnknownNameError
from relive.replay.columns import ColumnSpec
from relive.replay.storage.connection import Database
from relive.replay.storage.layout import check_stored_run_id
from relive.replay.storage.schema import has_sessions

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
RUN_TABLES: Final = ("steps", "commits", "episodes", "columns", "chunks", "tail", "sessions")
"""The tables that have rows of runs, besides `runs`; databases of version 1 lack `sessions`."""
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
_SESSION_COLUMNS: Final = (
    "run_id",
    "number",
    "first_row",
    "started_ns",
    "seed",
    "git",
    "metadata",
)
_SESSIONS: Final = ", ".join(_SESSION_COLUMNS)
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
_ROWS_PER_STATEMENT: Final = tuple(1 << power for power in range(11))
_DIGEST_MASK: Final = (1 << 32) - 1
_MAX_UNFINISHED: Final = 512
"""Up to so many episodes are read by their numbers."""

StepRow = tuple[Any, ...]
ChunkRow = tuple[int, int, int, int, int]
"""First row, rows, offset, bytes and CRC-32C."""
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
class SessionRow:
    """A recorder of a run, as the database has it: what it was given, and where its steps begin."""

    run_id: str
    number: int
    first_row: int
    started_ns: int
    seed: int | None = None
    git: str | None = None
    metadata: str | None = None

    def values(self) -> tuple[Any, ...]:
        """Return the values of its columns."""
        return tuple(getattr(self, name) for name in _SESSION_COLUMNS)


@dataclass(slots=True)
class Batch:
    """What is committed in one transaction: rows of steps, and where their arrays are."""

    steps: StepRows
    episodes: dict[int, EpisodeRow] = field(default_factory=dict)
    """The episodes that changed, by number."""
    columns: list[tuple[int, ColumnSpec]] = field(default_factory=list)
    """The array columns that are new, with their numbers."""
    chunks: list[tuple[str, ChunkRow]] = field(default_factory=list)
    """New chunks, with the paths of their fields."""
    tails: list[tuple[str, TailRow]] = field(default_factory=list)
    """Rows of chunks that are not full, with the paths of their fields."""
    sessions: list[SessionRow] = field(default_factory=list)
    """The recorders of the run that are not stored yet."""

    def __bool__(self) -> bool:
        """Whether there is anything to commit; sessions wait for something else."""
        return bool(self.steps or self.episodes or self.columns or self.chunks or self.tails)


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
    unfinished: list[int] | None = None
    """The numbers of episodes that are open, or that are not there yet; None if not looked for."""
    sessions: list[SessionRow] = field(default_factory=list)
    """The recorders of the run, by number; none if only version 1 of the tables recorded it."""

    @property
    def all_sessions(self) -> list[SessionRow]:
        """The recorders of the run, with the first one in any case."""
        run = self.run
        first = SessionRow(run.run_id, 0, 0, run.created_ns, run.seed, run.git, run.metadata)
        return self.sessions or [first]

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
        for stored in chunks.values():
            stored.sort()
        for left in tails.values():
            left.sort()
        commits = sorted(rows("commits", "first_row, rows, crc"))
        digest += sum(_commit_crc(*made) for made in commits)
        sessions = sorted(rows("sessions", _SESSIONS)) if has_sessions(connection) else []
        digest += sum(map(_session_crc, sessions))
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
            sessions=[SessionRow(*session) for session in sessions],
        )


@dataclass(slots=True)
class Growth:
    """Where the arrays are that were committed between two readings of the tables of a run."""

    chunks: dict[str, list[ChunkRow]] = field(default_factory=dict)
    tails: dict[str, list[TailRow]] = field(default_factory=dict)


def read_growth(
    connection: sqlite3.Connection, before: RunTables
) -> tuple[RunTables, Growth] | None:
    """Read what was committed since `before` was read; None if all has to be read again.

    It has to be if something was removed, or a column was added.
    """
    old = before.run
    run = read_run(connection, old.run_id)
    is_longer = run.steps >= old.steps and run.ends >= old.ends and run.episodes >= old.episodes
    has_same_file = (run.arrays_version, run.arrays_pending) == (
        old.arrays_version,
        old.arrays_pending,
    )
    is_same = run.uid == old.uid and run.status != "deleted"
    if not (is_same and is_longer and has_same_file):
        return None
    digest = old.digest

    def rows(table: str, columns: str, where: str, *values: Any) -> list[tuple[Any, ...]]:
        sql = f"SELECT {columns} FROM {table} WHERE run_id = ? AND {where}"  # noqa: S608 - our names
        return connection.execute(sql, (old.run_id, *values)).fetchall()

    if rows("columns", "number", "number >= ?", len(before.columns)):
        return None
    found = _changed_episodes(rows, before)
    episodes, unfinished, change = _merged(before, run, found)
    digest += change
    made = rows("commits", "first_row, rows, crc", "first_row >= ?", old.steps)
    digest += sum(_commit_crc(*commit) for commit in made)
    begun: list[tuple[Any, ...]] = []
    if has_sessions(connection):
        begun = sorted(rows("sessions", _SESSIONS, "number >= ?", len(before.sessions)))
        digest += sum(map(_session_crc, begun))
    growth = Growth()
    chunks, tails = dict(before.chunks), dict(before.tails)
    for path in (path for spec in before.columns for path in spec.paths):
        known, parts = chunks.get(path, []), tails.get(path, [])
        last = known[-1][0] if known else 0
        where = "field = ? AND first_row >= ? ORDER BY first_row"
        listed = rows("chunks", 'first_row, rows, "offset", bytes, crc', where, path, last)
        new: list[Any] = [chunk for chunk in listed if not known or chunk != known[-1]]
        if new:
            growth.chunks[path] = new
            digest += sum(_chunk_crc(path, chunk) for chunk in new)
            if known and new[0][0] == last:
                digest -= _chunk_crc(path, known[-1])
                known = known[:-1]
            chunks[path] = known + new
        last = max(
            *(chunk[0] + chunk[1] for chunk in known[-1:]),
            *(tail[0] + tail[1] for tail in parts[-1:]),
            0,
            0,
        )
        added: list[Any] = rows("tail", "first_row, rows, data, crc", where, path, last)
        left = [tail for tail in parts if not _is_in(tail, new)]
        if len(left) < len(parts) or added:
            digest -= sum(_tail_crc(path, tail) for tail in parts if _is_in(tail, new))
            digest += sum(_tail_crc(path, tail) for tail in added)
            growth.tails[path], tails[path] = added, left + added
    if digest & _DIGEST_MASK != run.digest:
        return None
    commits = before.commits + sorted(made)
    sessions = before.sessions + [SessionRow(*session) for session in begun]
    read = RunTables(run, episodes, before.columns, chunks, tails, commits, unfinished, sessions)
    return read, growth


def _unfinished(tables: RunTables) -> list[int]:
    """Return the numbers of the episodes that may change, in increasing order."""
    if tables.unfinished is None:
        ended = {row.number for row in tables.episodes if row.ended_ns is not None}
        numbers = range(tables.run.episodes)
        tables.unfinished = [number for number in numbers if number not in ended]
    return tables.unfinished


def _changed_episodes(
    rows: Callable[..., list[tuple[Any, ...]]], before: RunTables
) -> list[tuple[Any, ...]]:
    """Read the episodes that may differ from those that were read before."""
    unfinished = _unfinished(before)
    if len(unfinished) > _MAX_UNFINISHED:
        return rows("episodes", EPISODES, "number >= ?", unfinished[0])
    marks = ", ".join("?" * len(unfinished))
    found = rows("episodes", EPISODES, f"number IN ({marks})", *unfinished)
    return found + rows("episodes", EPISODES, "number >= ?", before.run.episodes)


def _merged(
    before: RunTables, run: RunRow, found: Sequence[tuple[Any, ...]]
) -> tuple[list[EpisodeRow], list[int], int]:
    """Return all episodes, which of them are unfinished, and how much the digest changes."""
    episodes, digest = list(before.episodes), sum(map(_episode_crc, found))
    changed = sorted((EpisodeRow(*row) for row in found), key=lambda row: row.number)
    for row in changed:
        if not episodes or row.number > episodes[-1].number:
            episodes.append(row)
            continue
        place = bisect_left(episodes, row.number, key=lambda each: each.number)
        if episodes[place].number == row.number:
            digest -= _episode_crc(episodes[place].values())
            episodes[place] = row
        else:
            episodes.insert(place, row)
    ended = {row.number for row in changed if row.ended_ns is not None}
    candidates = [*_unfinished(before), *range(before.run.episodes, run.episodes)]
    return episodes, [number for number in candidates if number not in ended], digest


def _is_in(tail: TailRow, chunks: Sequence[ChunkRow]) -> bool:
    """Check whether one of the chunks has the rows of a tail."""
    return any(chunk[0] <= tail[0] < chunk[0] + chunk[1] for chunk in chunks)


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
            changes.put_episodes(batch.episodes.values())
            changes.add_columns(batch.columns)
            changes.put_chunks(batch.chunks)
            changes.add_tails(batch.tails)
            changes.add_sessions(batch.sessions)
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

    def add_steps(self, rows: StepRows) -> None:
        if not rows:
            return
        insert_steps(self.connection, rows)
        made = rows.checksum
        self.connection.execute("INSERT INTO commits VALUES (?, ?, ?, ?)", (self.run_id, *made))
        self.digest += _commit_crc(*made)

    def put_episodes(self, episodes: Iterable[EpisodeRow]) -> None:
        rows = []
        for episode in episodes:
            rows.append(episode.values())
            crc = _episode_crc(rows[-1])
            self.digest += crc - self.episodes.pop(episode.number, 0)
            if episode.ended_ns is None:
                self.episodes[episode.number] = crc
        execute_rows(self.connection, _PUT_EPISODES, rows)

    def add_columns(self, columns: Iterable[tuple[int, ColumnSpec]]) -> None:
        rows = [(number, spec.name, spec.to_json()) for number, spec in columns]
        execute_rows(self.connection, _ADD_COLUMNS, [(self.run_id, *row) for row in rows])
        self.digest += sum(_column_crc(*row) for row in rows)

    def put_chunks(self, chunks: Iterable[tuple[str, ChunkRow]]) -> None:
        """Insert chunks, each of which replaces what was there of its rows."""
        rows: list[tuple[Any, ...]] = []
        replaced_tails = []
        for name, chunk in chunks:
            first, count = chunk[:2]
            rows.append((self.run_id, name, *chunk))
            crc = _chunk_crc(name, chunk)
            replaced = self.last_chunk.get(name)
            is_again = replaced is not None and replaced[0] == first
            self.digest += crc - (replaced[1] if replaced is not None and is_again else 0)
            self.last_chunk[name] = (first, crc)
            left = []
            for tail in self.tails.get(name, ()):
                if first <= tail[0] < first + count:
                    self.digest -= tail[1]
                    replaced_tails.append((self.run_id, name, tail[0]))
                else:
                    left.append(tail)
            self.tails[name] = left
        execute_rows(self.connection, _PUT_CHUNKS, rows)
        execute_rows(self.connection, _DELETE_TAILS, replaced_tails)

    def add_tails(self, tails: Iterable[tuple[str, TailRow]]) -> None:
        rows = []
        for name, tail in tails:
            first, count, data, crc = tail
            rows.append((self.run_id, name, first, count, crc, data))
            row_crc = _tail_crc(name, tail)
            self.digest += row_crc
            self.tails[name] = [*self.tails.get(name, ()), (first, row_crc)]
        execute_rows(self.connection, _ADD_TAILS, rows)
        # Statements keep copies of what they inserted last; rows of NULL insert nothing.
        execute_rows(self.connection, _ADD_TAILS, [(None,) * len(row) for row in rows])

    def add_sessions(self, sessions: Iterable[SessionRow]) -> None:
        rows = [session.values() for session in sessions]
        execute_rows(self.connection, _ADD_SESSIONS, rows)
        self.digest += sum(map(_session_crc, rows))


def insert_steps(connection: sqlite3.Connection, rows: StepRows) -> None:
    """Insert rows of `steps`."""
    _execute_values(connection, _ADD_STEPS, _STEP_VALUES, rows.values)


def execute_rows(connection: sqlite3.Connection, sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Execute a statement in which `{rows}` stands for rows of the same number of values."""
    if rows:
        values = [value for row in rows for value in row]
        _execute_values(connection, sql, len(rows[0]), values)


def _execute_values(
    connection: sqlite3.Connection, sql: str, width: int, values: Sequence[Any]
) -> None:
    """Execute a statement in which `{rows}` stands for rows of `width` values, for as many as
    possible at once.

    Between two statements another thread may have the GIL, and keep it for 5 ms. There are few
    different statements, since `sqlite3` keeps what it compiled: rows of NULL fill them up.
    """
    allowed = connection.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) // width
    sizes = [size for size in _ROWS_PER_STATEMENT if size <= allowed]
    marks = f"({', '.join('?' * width)})"
    place, count = 0, len(values) // width
    while place < count:
        size = next((size for size in sizes if size >= count - place), sizes[-1])
        part = list(values[place * width : (place + size) * width])
        part += [None] * (width * size - len(part))
        connection.execute(sql.format(rows=", ".join([marks] * size)), part)
        place += size


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
        ("sessions", "number", len(before.sessions)),
    ):
        connection.execute(
            f"DELETE FROM {table} WHERE run_id = ? AND {column} >= ?",  # noqa: S608 - our names
            (*key, kept),
        )
    execute_rows(connection, _PUT_EPISODES, [episode.values() for episode in before.episodes])
    last_chunks = [(*key, name, *max(chunks)) for name, chunks in before.chunks.items()]
    execute_rows(connection, _PUT_CHUNKS, last_chunks)
    tails = [
        (*key, name, first, rows, crc, data)
        for name, parts in before.tails.items()
        for first, rows, data, crc in parts
    ]
    execute_rows(connection, _ADD_TAILS, tails)
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
        execute_rows(connection, _PUT_CHUNKS, [(run_id, name, *row) for row in rows])
        digest += sum(_chunk_crc(name, row) for row in rows)
    made = replace(run, digest=digest & _DIGEST_MASK)
    write_run(connection, made)
    return made


def delete(connection: sqlite3.Connection, run_id: str) -> None:
    """Delete everything about a run."""
    for table in (*RUN_TABLES, "runs"):
        connection.execute(
            f"DELETE FROM {table} WHERE run_id = ?",  # noqa: S608 - our names
            (run_id,),
        )


def delete_original(database: Database, run_id: str, at_once: int) -> None:
    """Delete what `original_steps` has of a run, if there is such a table: see `replay.migrate`.

    A transaction deletes `at_once` rows, since recorders wait for it; the search is outside of it.
    """
    columns = {row[1] for row in database.rows("PRAGMA table_info(original_steps)")}
    if "episode_id" not in columns:
        return
    is_of_run = _ORIGINAL_RUN.format(run_id="run_id" if "run_id" in columns else "NULL")
    key = (run_id,) * is_of_run.count("?")
    sql = (
        f"SELECT rowid FROM original_steps WHERE rowid > ? AND {is_of_run} "  # noqa: S608 - ours
        "ORDER BY rowid LIMIT ?"
    )
    last = -(1 << 63)
    while rows := database.rows(sql, (last, *key, at_once)):
        with database.transaction() as connection:
            connection.executemany(
                f"DELETE FROM original_steps WHERE rowid = ? AND {is_of_run}",  # noqa: S608 - ours
                ((rowid, *key) for (rowid,) in rows),
            )
        last = rows[-1][0]


def migrated_from(run: RunRow) -> str | None:
    """Return the id of a run in the database that it was migrated from; None if it was not."""
    try:
        metadata = json.loads(run.metadata or "{}")
    except ValueError:  # of a run that is damaged
        return None
    migrated = metadata.get("migrated") if isinstance(metadata, dict) else None
    name = migrated.get("run_id") if isinstance(migrated, dict) else None
    return name if isinstance(name, str) else None


def read_run(connection: sqlite3.Connection, run_id: str) -> RunRow:
    """Return the row of a run; raise an `UnknownNameError` if there is none.

    A wrong checksum, or an id that no run can have, is a `CorruptError`.
    """
    rows = connection.execute(
        f"SELECT {', '.join(_RUN_COLUMNS)}, crc FROM runs WHERE run_id = ?",  # noqa: S608
        (run_id,),
    ).fetchall()
    if not rows:
        raise UnknownNameError(f"no run has the id {run_id!r}")
    *values, crc = rows[0]
    if json_crc("run", values) != crc:
        raise CorruptError(f"run {run_id!r} has a wrong checksum in the database")
    run = RunRow(**dict(zip(_RUN_COLUMNS, values, strict=True)))
    # Files are named after these two, and the checksum is not a secret.
    check_stored_run_id(run.run_id)
    if not isinstance(run.arrays_version, int):
        raise CorruptError(f"run {run_id!r} has the version {run.arrays_version!r}")
    return run


def read_damaged_run(connection: sqlite3.Connection, run_id: str) -> RunRow:
    """Return the row of a run whose checksum is wrong, to delete it.

    Values that cannot be right are replaced.
    """
    names = ("uid", "status", "created_ns", "env_id", "metadata", "arrays_version")
    (row,) = connection.execute(
        f"SELECT {', '.join(names)}, arrays_pending FROM runs WHERE run_id = ?",  # noqa: S608
        (run_id,),
    ).fetchall()
    uid, status, created_ns, env_id, metadata, version, pending = row
    (steps,) = connection.execute(
        "SELECT count(*) FROM steps WHERE run_id = ?", (run_id,)
    ).fetchone()
    is_version = isinstance(version, int) and version >= 0
    return RunRow(
        run_id,
        uid if isinstance(uid, str) else uuid.uuid4().hex,
        status,
        created_ns if isinstance(created_ns, int) else 0,
        env_id=env_id if isinstance(env_id, str) else None,
        metadata=metadata if isinstance(metadata, str) else None,
        steps=steps,
        arrays_version=version if is_version else 0,
        arrays_pending=int(is_version and pending == 1),
    )


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


def _session_crc(values: tuple[Any, ...]) -> int:
    return json_crc("sessions", values)


def _commit_crc(first: int, rows: int, crc: int) -> int:
    return json_crc("commits", (first, rows, crc))


def _replace(table: str, columns: Sequence[str]) -> str:
    marks = ", ".join("?" * len(columns))
    return f"INSERT OR REPLACE INTO {table} ({', '.join(columns)}) VALUES ({marks})"  # noqa: S608


_REPLACE_RUN: Final = _replace("runs", (*_RUN_COLUMNS, "crc"))
_ROWS: Final = "SELECT * FROM (VALUES {rows}) WHERE column1 IS NOT NULL"
_STEP_VALUES: Final = 6
_ADD_STEPS: Final = f"""
INSERT INTO steps ({STEPS}) SELECT json_extract(column6, '$[0]'), column1,
json_extract(column6, '$[1]'), column2, json_extract(column6, '$[2]'), column3,
json_extract(column6, '$[3]'), column4, json_extract(column6, '$[4]'),
json_extract(column6, '$[5]'), json_extract(column6, '$[6]'), json_extract(column6, '$[7]'),
column5, json_extract(column6, '$[8]'), json_extract(column6, '$[9]')
FROM (VALUES {{rows}}) WHERE column1 IS NOT NULL"""  # noqa: S608 - our names
"""The values of a row are those of `StepRows`."""
_PUT_EPISODES: Final = f"INSERT OR REPLACE INTO episodes ({EPISODES}) {_ROWS}"
_ADD_COLUMNS: Final = f"INSERT INTO columns {_ROWS}"
_PUT_CHUNKS: Final = f"INSERT OR REPLACE INTO chunks {_ROWS}"
_ADD_TAILS: Final = f"INSERT INTO tail {_ROWS}"
_ADD_SESSIONS: Final = f"INSERT INTO sessions {_ROWS}"
_DELETE_TAILS: Final = (
    "DELETE FROM tail WHERE rowid IN (SELECT tail.rowid FROM (VALUES {rows}) AS gone "
    "CROSS JOIN tail ON tail.run_id = gone.column1 AND tail.field = gone.column2 "
    "AND tail.first_row = gone.column3)"
)
_UPDATE_COLUMN: Final = "UPDATE columns SET spec = ? WHERE run_id = ? AND number = ?"
_ORIGINAL_RUN: Final = """(
    {run_id} = ? OR coalesce({run_id}, '') = '' AND (
        episode_id = ? AND instr(substr(episode_id, 2), '-ep') = 0
        OR substr(episode_id, 1, length(?) + 3) = ? || '-ep'
        AND instr(substr(episode_id, length(?) + 4), '-ep') = 0
    )
)"""
"""Whether a row of `original_steps` is of a run. One without an id is of the run that its episode
names before its last `-ep`: see `relive.replay.migrate.rows`."""
