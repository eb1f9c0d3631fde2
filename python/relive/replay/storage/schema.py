"""The tables of a replay database, and how older databases are brought up to date."""

import contextlib
import sqlite3
from collections.abc import Callable
from typing import Final

from relive.errors import NotFoundError, UnsupportedError

APPLICATION_ID: Final = 0x52504C59
"""Marks a database of relive in its header: `RPLY`."""

_VERSION_1: Final = """
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY,
    uid TEXT NOT NULL UNIQUE,
    status TEXT NOT NULL,
    env_id TEXT,
    env_spec TEXT,
    spaces TEXT,
    seed INTEGER,
    git TEXT,
    config TEXT,
    metadata TEXT,
    created_ns INTEGER NOT NULL,
    ended_ns INTEGER,
    steps INTEGER NOT NULL,
    episodes INTEGER NOT NULL,
    ends INTEGER NOT NULL,
    dropped INTEGER NOT NULL,
    arrays_end INTEGER NOT NULL,
    arrays_version INTEGER NOT NULL,
    arrays_pending INTEGER NOT NULL,
    metadata_offset INTEGER,
    metadata_bytes INTEGER,
    metadata_crc INTEGER,
    digest INTEGER NOT NULL,
    crc INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE episodes (
    run_id TEXT NOT NULL,
    episode_id TEXT NOT NULL,
    agent_id TEXT NOT NULL DEFAULT '',
    number INTEGER NOT NULL,
    env_index INTEGER NOT NULL,
    seed INTEGER,
    started_ns INTEGER NOT NULL,
    ended_ns INTEGER,
    steps INTEGER NOT NULL,
    dropped INTEGER NOT NULL,
    total_reward REAL NOT NULL,
    terminated INTEGER NOT NULL,
    truncated INTEGER NOT NULL,
    status TEXT NOT NULL,
    metadata TEXT,
    PRIMARY KEY (run_id, episode_id, agent_id)
) WITHOUT ROWID;
CREATE UNIQUE INDEX idx_episodes_number ON episodes (run_id, number);
CREATE TABLE steps (
    run_id TEXT NOT NULL,
    episode_id TEXT NOT NULL,
    step_index INTEGER NOT NULL,
    agent_id TEXT NOT NULL DEFAULT '',
    row INTEGER NOT NULL,
    action,
    action_ref TEXT,
    reward REAL,
    terminated INTEGER NOT NULL,
    truncated INTEGER NOT NULL,
    frame_ref TEXT,
    obs_ref TEXT,
    info TEXT,
    ts_ns INTEGER NOT NULL,
    timestamp TEXT NOT NULL,
    PRIMARY KEY (run_id, episode_id, step_index, agent_id)
);
CREATE UNIQUE INDEX idx_steps_row ON steps (run_id, row);
CREATE INDEX idx_steps_frame_ref ON steps (frame_ref) WHERE frame_ref IS NOT NULL;
CREATE INDEX idx_steps_run_id ON steps (run_id);
CREATE TABLE columns (
    run_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    name TEXT NOT NULL,
    spec TEXT NOT NULL,
    PRIMARY KEY (run_id, number),
    UNIQUE (run_id, name)
) WITHOUT ROWID;
CREATE TABLE chunks (
    run_id TEXT NOT NULL,
    field TEXT NOT NULL,
    first_row INTEGER NOT NULL,
    rows INTEGER NOT NULL,
    "offset" INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    crc INTEGER NOT NULL,
    PRIMARY KEY (run_id, field, first_row)
) WITHOUT ROWID;
CREATE TABLE tail (
    run_id TEXT NOT NULL,
    field TEXT NOT NULL,
    first_row INTEGER NOT NULL,
    rows INTEGER NOT NULL,
    crc INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (run_id, field, first_row)
);
CREATE TABLE commits (
    run_id TEXT NOT NULL,
    first_row INTEGER NOT NULL,
    rows INTEGER NOT NULL,
    crc INTEGER NOT NULL,
    PRIMARY KEY (run_id, first_row)
) WITHOUT ROWID;
"""


_SESSIONS: Final = """
CREATE TABLE sessions (
    run_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    first_row INTEGER NOT NULL,
    started_ns INTEGER NOT NULL,
    seed INTEGER,
    git TEXT,
    metadata TEXT,
    PRIMARY KEY (run_id, number)
) WITHOUT ROWID
"""


def _create(connection: sqlite3.Connection) -> None:
    for statement in _VERSION_1.split(";"):
        if statement.strip():
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def _add_sessions(connection: sqlite3.Connection) -> None:
    connection.execute(_SESSIONS)


_MIGRATIONS: Final[tuple[Callable[[sqlite3.Connection], None], ...]] = (_create, _add_sessions)
"""Step n brings a database of version n to version n + 1."""

VERSION: Final = len(_MIGRATIONS)
_SESSIONS_SINCE: Final = 2


def version_of(connection: sqlite3.Connection, path: object) -> int:
    """Return the version of a database, 0 for an empty one.

    One of another program, or of a later relive, is an `UnsupportedError`.
    """
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    # After the tables: another process may commit all of it between the two.
    if connection.execute("PRAGMA application_id").fetchone() != (APPLICATION_ID,):
        if tables:
            raise UnsupportedError(
                f"`{path}` is not a replay database of relive",
                hint="`relive replay migrate` copies older databases"
                if "steps" in tables
                else None,
            )
        return 0
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > VERSION:
        raise UnsupportedError(
            f"`{path}` has version {version}, but this relive reads up to version {VERSION}",
            hint="upgrade relive",
        )
    return version


def has_sessions(connection: sqlite3.Connection) -> bool:
    """Check whether a database has the table of sessions: a reader does not add it."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version) >= _SESSIONS_SINCE


def check(connection: sqlite3.Connection, path: object) -> None:
    """Raise an error unless this is a replay database that this relive can read."""
    if version_of(connection, path) == 0:  # its first recorder was killed at once
        raise NotFoundError(f"`{path}` has no runs yet")


def check_functions(connection: sqlite3.Connection) -> None:
    """Raise an `UnsupportedError` if SQLite lacks what writing needs; from 3.38 on it has it."""
    try:
        connection.execute("SELECT json_extract('[1]', '$[0]')")
    except sqlite3.Error as error:
        raise UnsupportedError(
            f"SQLite {sqlite3.sqlite_version} has no JSON functions, which recording needs",
            hint="use a Python with SQLite 3.38 or later",
        ) from error


def migrate(connection: sqlite3.Connection, path: object) -> None:
    """Bring a database to the present version, in one transaction."""
    if version_of(connection, path) == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have done it while this one waited.
        for step in range(version_of(connection, path), VERSION):
            _MIGRATIONS[step](connection)
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):  # SQLite may have done it: the disk is full
            connection.execute("ROLLBACK")
        raise
