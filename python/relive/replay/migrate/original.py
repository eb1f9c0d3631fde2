"""The database of the original: reading its tables, and removing their columns with arrays.

Its tables are `steps` and `episodes`. A database of relive has tables with these names itself, and
those of the original are `original_steps` and `original_episodes`.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Self

from relive.errors import InvalidError, NotFoundError, StorageError, UnsupportedError
from relive.replay.migrate.rows import REQUIRED
from relive.replay.storage.connection import Database, keep_wal
from relive.replay.storage.layout import database_path
from relive.replay.storage.schema import APPLICATION_ID
from relive.store.atomic import check_file

RENAMED: Final = "original_"
"""What the names of the original's tables begin with in a database of relive."""
LEFT_OUT: Final = "left_out_steps"
"""The table of the rows that no run has, once columns were removed from the others."""

_READ_ROWS: Final = 1000
_BUSY_S: Final = 60.0
_DROP_COLUMN: Final = (3, 35)
"""The first version of SQLite that removes columns."""


class OriginalTables:
    """The tables of the original; only read. Every call is a transaction of its own."""

    def __init__(self, path: Path, database: Database) -> None:
        self.path = path
        self._database = database
        self.is_relive = database.rows("PRAGMA application_id") == [(APPLICATION_ID,)]
        """Whether the database has runs of relive too."""
        prefix = RENAMED if self.is_relive else ""
        self._steps, self._episodes = f"{prefix}steps", f"{prefix}episodes"
        self.columns = self._columns_of(self._steps)
        """The columns of the steps."""
        self._check()
        names = ", ".join(map(_quoted, self.columns))
        self._select = f"SELECT {names} FROM {self._steps} WHERE rowid = ?"  # noqa: S608 - quoted

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a database; raise an `InvalidError` if it has no tables of the original."""
        if path.is_dir():
            own = database_path(path)
            hint = f"pass `{own}`" if own.is_file() else None
            raise InvalidError(f"`{path}` is a directory, expected a SQLite database", hint=hint)
        check_file(path)
        if not path.is_file():
            raise NotFoundError(f"`{path}` does not exist")
        database = _connect(path, "ro")
        try:
            return cls(path, database)
        except BaseException:
            database.close()
            raise

    def ends(self) -> Iterator[dict[str, Any]]:
        """Iterate over the rows of the episodes, each of which appears when its episode is over."""
        columns = self._columns_of(self._episodes)
        if "episode_id" not in columns:
            return
        names = ", ".join(map(_quoted, columns))
        sql = (
            f"SELECT rowid, {names} FROM {self._episodes} "  # noqa: S608 - quoted
            "WHERE rowid > ? ORDER BY rowid LIMIT ?"
        )
        for _, *values in self._ranges(sql):
            row = dict(zip(columns, values, strict=True))
            if row["episode_id"] is not None:
                yield row

    def last_row(self) -> tuple[int, int]:
        """Return the largest rowid of the steps, and their number."""
        sql = f"SELECT coalesce(max(rowid), 0), count(*) FROM {self._steps}"  # noqa: S608
        ((last, count),) = self._database.rows(sql)
        return last, count

    def keys(self, last: int) -> Iterator[tuple[Any, ...]]:
        """Iterate over what identifies each row of steps up to `last`, by rowid.

        Yields rowid, episode, step index, agent, run, and whether the action has a fraction.
        """
        optional = (
            _quoted(name) if name in self.columns else "NULL" for name in ("agent_id", "run_id")
        )
        kind = "typeof(action) = 'real'" if "action" in self.columns else "0"
        sql = (
            f"SELECT rowid, episode_id, step_index, {', '.join(optional)}, {kind} "  # noqa: S608
            f"FROM {self._steps} WHERE rowid > ? AND rowid <= {last} ORDER BY rowid LIMIT ?"
        )
        return self._ranges(sql)

    def read(self, rowid: int) -> dict[str, Any] | None:
        """Return a row of steps; None if it was deleted."""
        found = self._database.rows(self._select, (rowid,))
        return dict(zip(self.columns, found[0], strict=True)) if found else None

    def close(self) -> None:
        """Close the connection."""
        self._database.close()

    def _ranges(self, sql: str) -> Iterator[tuple[Any, ...]]:
        last = -(1 << 63)
        while rows := self._database.rows(sql, (last, _READ_ROWS)):
            yield from rows
            last = rows[-1][0]

    def _columns_of(self, table: str) -> tuple[str, ...]:
        return tuple(row[1] for row in self._database.rows(f"PRAGMA table_info({table})"))

    def _check(self) -> None:
        if self.is_relive and not self.columns:
            raise InvalidError(
                f"`{self.path}` is a database of relive and has nothing to migrate",
                hint="pass the database that has the arrays as JSON",
            )
        if not self.columns:
            raise InvalidError(f"`{self.path}` has no table `{self._steps}`")
        missing = [name for name in REQUIRED if name not in self.columns]
        if missing:
            listed = ", ".join(f"`{name}`" for name in missing)
            raise InvalidError(f"the table `{self._steps}` of `{self.path}` has no column {listed}")


class OriginalEditor:
    """Changes the database of the original, if no other process has changed it meanwhile."""

    def __init__(self, path: Path) -> None:
        if sqlite3.sqlite_version_info < _DROP_COLUMN:
            raise UnsupportedError(
                f"SQLite {sqlite3.sqlite_version} cannot remove columns",
                hint="use a Python with SQLite 3.35 or later",
            )
        self._path = path
        self._database = _connect(path, "rw")
        self._version: list[tuple[Any, ...]] = []

    def watch(self, source: OriginalTables, scanned: tuple[int, int]) -> None:
        """Notice what other connections change after this call; `scanned` is `last_row` before.

        What was copied may be in the same database, so this comes after it.
        """
        self._version = self._database.rows("PRAGMA data_version")
        if source.last_row() != scanned:
            raise self._changed()

    def drop(
        self, columns: Sequence[str], left_out: Iterable[int], staged: Path | None = None
    ) -> int:
        """Remove columns of the steps, in one transaction.

        The rows `left_out` are copied before; returns how many they are. `staged` is a database of
        relive, all of which is moved here in the same transaction. The tables of the original that
        have the same names are renamed.
        """
        if staged is not None:
            self._database.rows("ATTACH DATABASE ? AS staged", (str(staged),))
        with self._database.transaction(sync=True) as connection:
            if connection.execute("PRAGMA data_version").fetchall() != self._version:
                raise self._changed()
            if staged is not None:
                _rename_tables(connection)
                _copy_staged(connection)
            table = _steps_table(connection)
            kept = _copy_rows(connection, table, left_out) if columns else 0
            for name in columns:
                connection.execute(f"ALTER TABLE {table} DROP COLUMN {_quoted(name)}")
        return kept

    def close(self) -> None:
        """Close the connection."""
        self._database.close()

    def _changed(self) -> InvalidError:
        return InvalidError(
            f"another process changed `{self._path}` while it was verified; nothing was removed",
            hint="stop the writer, and migrate again",
        )


def compact(path: Path) -> tuple[int, int]:
    """Rewrite a database without unused space; return its bytes before and after."""
    before = _size(path)
    database = _connect(path, "rw")
    try:
        database.rows("VACUUM")
        database.rows("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        database.close()
    return before, _size(path)


def _rename_tables(connection: sqlite3.Connection) -> None:
    """Rename the tables of the original that have names of relive; remove such indexes."""
    found = connection.execute(
        "SELECT type, name FROM main.sqlite_schema WHERE sql IS NOT NULL AND name IN "
        "(SELECT name FROM staged.sqlite_schema) ORDER BY type"
    ).fetchall()
    for kind, name in found:
        if kind == "index":
            connection.execute(f"DROP INDEX main.{_quoted(name)}")
        elif kind == "table":
            renamed = _quoted(RENAMED + name)
            connection.execute(f"ALTER TABLE main.{_quoted(name)} RENAME TO {renamed}")


def _copy_staged(connection: sqlite3.Connection) -> None:
    """Create all tables and indexes of the staged database, and copy its rows."""
    found = connection.execute(
        "SELECT type, name, sql FROM staged.sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid"
    ).fetchall()
    for kind, name, sql in found:
        connection.execute(sql)
        if kind == "table":
            table = _quoted(name)
            connection.execute(f"INSERT INTO main.{table} SELECT * FROM staged.{table}")  # noqa: S608
    for name in ("application_id", "user_version"):
        (value,) = connection.execute(f"PRAGMA staged.{name}").fetchone()
        connection.execute(f"PRAGMA main.{name} = {value}")


def _copy_rows(connection: sqlite3.Connection, table: str, rowids: Iterable[int]) -> int:
    """Copy rows that no run has to a table of their own."""
    count = 0
    for rowid in rowids:
        if not count:
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {LEFT_OUT} AS SELECT * FROM {table} WHERE 0"  # noqa: S608
            )
        connection.execute(
            f"INSERT INTO {LEFT_OUT} SELECT * FROM {table} WHERE rowid = ?",  # noqa: S608
            (rowid,),
        )
        count += 1
    return count


def _steps_table(connection: sqlite3.Connection) -> str:
    (application,) = connection.execute("PRAGMA main.application_id").fetchone()
    return f"{RENAMED}steps" if application == APPLICATION_ID else "steps"


def _connect(path: Path, mode: str) -> Database:
    """Connect to a database that may be of another program."""
    if mode != "ro":
        keep_wal(path)
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=_BUSY_S,
            isolation_level=None,
            check_same_thread=False,
        )
    except sqlite3.Error as error:
        raise StorageError(f"cannot open `{path}`: {error}") from error
    connection.text_factory = _text
    return Database(path, connection)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _quoted(name: str) -> str:
    quoted = name.replace('"', '""')
    return f'"{quoted}"'


def _size(path: Path) -> int:
    """Return the size of a database with its log. Only its directory is read."""
    log = path.with_name(f"{path.name}-wal")
    return path.stat().st_size + (log.stat().st_size if log.exists() else 0)
