"""Connections to DuckDB that reach nothing but the tables they are given."""

import atexit
import contextlib
import os
from collections.abc import Iterator
from typing import Any

from relive._extras import require
from relive.errors import InvalidError


def duckdb(to: str) -> Any:
    """Return the module, or raise an error that tells how to install it."""
    return require("duckdb", extra="publish", to=to)


def connect(to: str, *, threads: int | None = None, spill: str | None = None) -> Any:
    """Return a connection to an empty database in memory; call `restrict` before running SQL.

    Extensions are neither installed nor loaded, and SQL does not see variables of Python.
    Without `spill`, a directory, it does not write to disk.
    """
    config: dict[str, Any] = {
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "python_enable_replacements": False,
        "temp_directory": spill or "",
    }
    if threads is not None:
        config["threads"] = threads
    return duckdb(to).connect(":memory:", config=config)


def restrict(connection: Any, prefix: str | None = None) -> Any:
    """Deny access to all files but those below `prefix`, for good; return the connection."""
    if prefix is not None:
        connection.execute(f"SET allowed_directories=[{quoted(prefix)}]")
    connection.execute("SET enable_external_access=false")
    connection.execute("SET lock_configuration=true")
    return connection


def quoted(text: str) -> str:
    """Return a SQL string."""
    return "'" + text.replace("'", "''") + "'"


def quoted_name(name: str) -> str:
    """Return a SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Raise errors of DuckDB as `InvalidError` with its message."""
    try:
        yield
    except duckdb("run SQL").Error as error:
        raise InvalidError(f"{what}: {str(error).strip()}") from error


class _Engine:
    """The connection that evaluates conditions: on the calling thread, in order."""

    def __init__(self) -> None:
        self._connection: Any = None

    def cursor(self) -> Any:
        if self._connection is None:
            self._connection = restrict(connect("filter with SQL", threads=1))
        return self._connection.cursor()

    def forget(self) -> None:
        # The object of the parent is kept: a child must not end what it did not start.
        _inherited.append(self._connection)
        self._connection = None

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


_inherited: list[Any] = []
_engine = _Engine()
os.register_at_fork(after_in_child=_engine.forget)
# DuckDB reports objects that are left when the interpreter exits.
atexit.register(_engine.close)


@contextlib.contextmanager
def evaluation(what: str) -> Iterator[Any]:
    """Yield a cursor for conditions on Arrow tables, which are registered with it."""
    cursor = _engine.cursor()
    try:
        with translated(what):
            yield cursor
    finally:
        cursor.close()
