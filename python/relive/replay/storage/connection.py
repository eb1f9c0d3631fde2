"""Connections to the database of runs. Only SQLite ever opens its file."""

import contextlib
import os
import sqlite3
import threading
import time
import warnings
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Self

from relive.errors import (
    ClosedError,
    CorruptError,
    InvalidError,
    LockedError,
    NotFoundError,
    ReliveError,
    StorageError,
)
from relive.replay.storage import schema
from relive.replay.storage.unused_commits import keep_unused_commits
from relive.replay.storage.wal import wal_path
from relive.store.atomic import check_file, fsync_directory, make_directory, storage_error

_BUSY_S: Final = 60.0
"""How long a statement waits for another process."""
_FORK_S: Final = 1.0
"""How long a fork waits for a thread that reads."""
_PAUSE_S: Final = 0.005
_INVALID: Final = {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISUSE, sqlite3.SQLITE_RANGE, None}
"""The error codes of a statement that is wrong."""

Stamp = tuple[object, int]
_INHERITED: "Final[list[Database]]" = []
"""Connections of the parent process, which stay open until this process ends."""


class Database:
    """A connection to a replay database. Thread-safe."""

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        *,
        is_fixed: bool = False,
        is_alone: bool = False,
    ) -> None:
        self.path = path
        self.is_fixed = is_fixed
        """Whether it was opened as a file that is never written: it sees no commits."""
        self.is_alone = is_alone
        """Whether other connections cannot write while it is open."""
        self._connection = connection
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._is_closed = False
        self._is_synced: bool | None = None  # whether commits are, as far as it was set

    @classmethod
    def create(cls, path: Path) -> Self:
        """Open a database for writing; create it if it does not exist.

        Commits that SQLite cannot use any more are kept in a copy of the WAL, with a warning.
        """
        make_directory(path.parent)
        _check_files(path)
        has_unused = keep_wal(path)
        with _typed(path):
            connection = sqlite3.connect(
                path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
            try:
                schema.check_functions(connection)
                schema.version_of(connection, path)  # a file of another program stays as it is
                _use_wal(connection, path)
                connection.execute("PRAGMA synchronous = NORMAL")
                if has_unused:
                    _reset_wal(connection)
                schema.migrate(connection, path)
                # SQLite syncs the names of its files too, but ignores errors of that.
                fsync_directory(path.parent)
            except BaseException as error:
                connection.close()
                if isinstance(error, OSError) and not isinstance(error, ReliveError):
                    raise storage_error(error, path.parent, "sync") from error
                raise
        return cls(path, connection)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open an existing database for reading."""
        _check_files(path)
        try:
            is_there = path.is_file()
        except OSError as error:
            raise storage_error(error, path, "open") from error
        if not is_there:
            raise NotFoundError(
                f"`{path}` does not exist",
                hint="pass the directory that the recorder got as `root`",
            )
        with _typed(path):
            try:
                return cls(path, _connected(path, "mode=ro"))
            except sqlite3.OperationalError as error:
                code = _code(error)
                if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_IOERR_SHMSIZE:
                    # The disk is full: there is no room for the file that connections share.
                    keep_wal(path)
                    alone = _connected(path, "mode=rw", is_alone=True)
                    return cls(path, alone, is_alone=True)
                if code not in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}:
                    raise
                if _is_fixed(path):
                    fixed = _connected(path, "mode=ro&immutable=1")
                    return cls(path, fixed, is_fixed=True)
                if not os.access(path.parent, os.W_OK):
                    raise _has_log(path) from error
                if code != sqlite3.SQLITE_READONLY:
                    raise
            # A power cut left a transaction halfway, which has to be undone first.
            keep_wal(path)
            connection = _connected(path, "mode=rw")
            connection.execute("PRAGMA query_only = ON")
            return cls(path, connection)

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a statement."""
        with self.connection() as connection:
            return connection.execute(sql, parameters).fetchall()

    @contextlib.contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """Hold the connection; its errors become those of relive."""
        with self._lock, _typed(self.path):
            if self._is_closed:
                raise ClosedError(f"`{self.path}` is closed")
            if self._process != os.getpid():
                raise ClosedError(
                    f"`{self.path}` was opened before a fork and belongs to the parent process",
                    hint="open it again in this process",
                )
            yield self._connection

    def data_version(self) -> int:
        """Return a number that differs after the next commit of another connection.

        The errors are those of SQLite.
        """
        ((version,),) = self._connection.execute("PRAGMA data_version").fetchall()
        return version  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """Hold the connection; every statement in the block reads the same commit."""
        with self.connection() as connection:
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                if connection.in_transaction:  # SQLite may have ended it: the disk is full
                    connection.execute("ROLLBACK")

    @contextlib.contextmanager
    def transaction(self, *, sync: bool = False) -> Iterator[sqlite3.Connection]:
        """Commit what the block does, or nothing of it; `sync` makes it survive a power cut.

        The block may end the transaction itself, to know that it is committed.
        """
        with self.connection() as connection:
            if sync is not self._is_synced:
                connection.execute(f"PRAGMA synchronous = {'FULL' if sync else 'NORMAL'}")
                self._is_synced = sync
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                if connection.in_transaction:
                    connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise

    def empty_wal(self) -> None:
        """Move all commits from the WAL to the database; not while others read or write.

        The last connection to be closed does so too, unless it only reads.
        """
        with self.connection() as connection, contextlib.suppress(sqlite3.Error):
            _reset_wal(connection)  # a full disk, for example: the commits stay in the WAL

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. May be called again."""
        with self._lock:
            if not self._is_closed and self._process == os.getpid():
                self._connection.close()
            self._is_closed = True


class CommitWatch:
    """Finds out whether anything was committed to a database since it was read. Thread-safe.

    SQLite writes and syncs the frames of a commit before readers see it, so the times of its files
    change too early. `data_version` changes with the commit, and is comparable on one connection
    only. So a connection is kept: it is opened when it is first needed, and again in a forked
    process and when another file has the name of the database. `watch_of` returns it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._name = os.fspath(path)
        self.lock = threading.RLock()
        """Held while SQLite runs."""
        # The connection, or none. What closes it must not refer to this: `__del__` would run while
        # another thread can still get this from `watch_of`.
        self._open: list[Database] = []
        weakref.finalize(self, _close_all, self._open).atexit = False
        self._file: tuple[int, ...] = ()
        self._token = object()

    @property
    def _database(self) -> Database | None:
        return self._open[0] if self._open else None

    def stamp(self) -> Stamp:
        """Return a value that differs after the next commit of another connection."""
        with self.lock:
            database = self._database
            if database is not None and self._is_current(database):
                try:
                    return self._token, database.data_version()
                except sqlite3.Error:
                    pass  # `snapshot` raises it as an error of relive
        with self.snapshot() as (_, stamp):
            return stamp

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[tuple[sqlite3.Connection, Stamp]]:
        """Hold a connection; every statement in the block reads the commit of the stamp."""
        with self._kept() as database, database.snapshot() as connection:
            yield connection, (self._token, database.data_version())

    @contextlib.contextmanager
    def _kept(self) -> Iterator[Database]:
        with self.lock:
            database = self._opened()
            try:
                yield database
            except BaseException:
                self._forget()
                raise
            if database.is_alone:
                self._forget()

    def _opened(self) -> Database:
        database = self._database
        if database is not None and self._is_current(database):
            return database
        self._forget()
        # Before it is opened: another file that gets its name meanwhile is noticed the next time.
        writable, fixed = self._file_now(is_fixed=False), self._file_now(is_fixed=True)
        database = Database.open(self._path)
        self._open.append(database)
        self._file = fixed if database.is_fixed else writable
        return database

    def _is_current(self, database: Database) -> bool:
        if database.is_fixed:
            return self._file_now(is_fixed=True) == self._file
        try:
            status = os.stat(self._name)  # noqa: PTH116 - faster than a Path
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._file

    def _file_now(self, *, is_fixed: bool) -> tuple[int, ...]:
        """Return the identity of the file of the database, and of what is in it if it is fixed."""
        try:
            status = os.stat(self._name)  # noqa: PTH116 - faster than a Path
        except OSError:
            return ()
        if not is_fixed:
            return status.st_dev, status.st_ino
        wal = wal_path(self._path)
        wal_bytes = wal.stat().st_size if wal.exists() else -1
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, wal_bytes

    def _forget(self) -> None:
        self._token = object()
        _close_all(self._open)

    def inherit(self) -> None:
        """Open another connection: one must not be used, or closed, in a forked process."""
        self.lock = threading.RLock()
        _INHERITED.extend(self._open)
        self._open.clear()
        self._token = object()


def _close_all(databases: list[Database]) -> None:
    while databases:
        databases.pop().close()


_WATCHES: "Final[weakref.WeakValueDictionary[str, CommitWatch]]" = weakref.WeakValueDictionary()
_HELD: Final[list[CommitWatch]] = []


def watch_of(path: Path) -> CommitWatch:
    """Return what watches a database: one for all that read it, which takes two descriptors."""
    name = os.path.abspath(path)  # noqa: PTH100 - as the others of the process name it
    found = _WATCHES.get(name)
    # Of two threads that make one at the same time, each may have its own.
    return _WATCHES.setdefault(name, CommitWatch(Path(name))) if found is None else found


def _hold_watches() -> None:
    # A mutex of SQLite that another thread holds during a fork stays locked in the child.
    for watch in list(_WATCHES.values()):
        if watch.lock.acquire(timeout=_FORK_S):
            _HELD.append(watch)


def _let_watches_go() -> None:
    while _HELD:
        _HELD.pop().lock.release()


def _inherit_watches() -> None:
    _HELD.clear()
    for watch in list(_WATCHES.values()):
        watch.inherit()


os.register_at_fork(
    before=_hold_watches, after_in_parent=_let_watches_go, after_in_child=_inherit_watches
)


def keep_wal(path: Path) -> bool:
    """Copy the WAL of a database, with a warning, if it has commits that SQLite cannot use.

    Returns whether it has. Call it before a connection that may write: that overwrites them.
    """
    kept = keep_unused_commits(path)
    if kept is not None and kept.is_new:
        warnings.warn(
            f"{kept.found.error().message}; the file was copied to `{kept.copy}`",
            RuntimeWarning,
            stacklevel=3,
        )
    return kept is not None


def _reset_wal(connection: sqlite3.Connection) -> None:
    """Empty the WAL, so that it has no unused commits; not while others read or write."""
    connection.execute("PRAGMA busy_timeout = 0")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.execute(f"PRAGMA busy_timeout = {int(_BUSY_S * 1000)}")


def _use_wal(connection: sqlite3.Connection, path: Path) -> None:
    """Let readers and writers go on at the same time. SQLite raises no error if it cannot."""
    until = time.monotonic() + _BUSY_S
    mode = None
    while mode is None:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            # SQLite does not wait for another process that does the same.
            if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(_PAUSE_S)
    if mode != "wal":
        raise StorageError(
            f"cannot write `{path}`: SQLite keeps the journal mode {mode!r}",
            hint="record to a local disk; some network file systems do not support the WAL mode",
        )


def _is_fixed(path: Path) -> bool:
    """Check whether a database is complete and cannot be written here: a mount, for example.

    SQLite would need to make a file beside it, even to read it.
    """
    wal = wal_path(path)
    # A WAL without commits stays if somebody read the database when its last writer closed it.
    has_commits = wal.exists() and wal.stat().st_size > 0
    has_journal = has_commits or path.with_name(f"{path.name}-journal").exists()
    return not has_journal and not os.access(path.parent, os.W_OK)


def _check_files(path: Path) -> None:
    """Raise an `InvalidError` if SQLite would open what is not a file."""
    for end in ("", "-wal", "-shm", "-journal"):
        check_file(f"{path}{end}")


def _has_log(path: Path) -> StorageError:
    """Return the error for a database that was not closed, in a directory that is read-only."""
    return StorageError(
        f"cannot access `{path}`: it was not closed, and `{path.parent}` cannot be written, where "
        f"SQLite needs to make `{path.name}-shm`",
        hint="copy the directory of the runs to where you may write, with its `-wal` file, or run "
        "`relive recover` on it where it can be written",
    )


def _connected(path: Path, options: str, *, is_alone: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?{options}",
        uri=True,
        timeout=_BUSY_S,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        if is_alone:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("PRAGMA query_only = ON")
        schema.check(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def _typed(path: Path) -> Iterator[None]:
    """Raise the errors of SQLite as those of relive."""
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning) as error:  # a warning if there are two statements
        raise _error(error, path) from error
    except UnicodeDecodeError as error:
        raise CorruptError(f"`{path}` is damaged: {error}") from error
    except (OverflowError, UnicodeEncodeError) as error:  # over 64 bits, or half of a character
        raise InvalidError(f"`{path}`: {error}") from error


def _error(error: sqlite3.Error | sqlite3.Warning, path: Path) -> ReliveError:
    primary = _code(error)
    is_not_text = primary is None and "decode" in str(error)
    if primary in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB} or is_not_text:
        return CorruptError(f"`{path}` is damaged: {error}")
    if primary == sqlite3.SQLITE_BUSY:
        return LockedError(
            f"`{path}` was locked by another process for {_BUSY_S:.0f} seconds",
            hint="end the transaction of the other process",
        )
    # SQLite reports another code if creating a table is not authorized.
    if primary == sqlite3.SQLITE_AUTH or str(error) == "not authorized":
        return InvalidError("the statement does not only read", hint="query() takes one SELECT")
    is_wrong = "syntax error" in str(error)  # SQLite may report SQLITE_SCHEMA with an authorizer
    if is_wrong or primary in _INVALID:
        return InvalidError(f"`{path}`: {error}")
    return StorageError(f"cannot access `{path}`: {error}")


def _code(error: Exception) -> int | None:
    """Return the primary error code of SQLite; None if the error is of the `sqlite3` module."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF
