"""Runs SQL over tables with DuckDB."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from relive._arguments import as_text
from relive.errors import InvalidError
from relive.publish.read.connections import (
    connect,
    quoted,
    quoted_name,
    restrict,
    translated,
)
from relive.publish.read.duckdb_files import PROTOCOL, TableFiles, file_system, url
from relive.publish.read.table import Table


def run(sql: str, tables: Mapping[str, Table]) -> pa.Table:
    """Return the result of a query over tables, which it sees by these names."""
    text = as_text("a query", sql).lower()
    # Only tables that the query may refer to are opened.
    chosen = {name: table for name, table in tables.items() if name.lower() in text}
    views = {name: _View(name, table) for name, table in chosen.items()}
    files = {name: view.files for name, view in views.items() if view.files is not None}
    system = file_system(files)
    with contextlib.closing(connect("run SQL")) as connection, _raising(system):
        connection.register_filesystem(system)
        for view in views.values():
            view.create(connection)
        restrict(connection, f"{PROTOCOL}://")
        found = connection.sql(sql)
        if found is None:
            raise InvalidError("the query returns nothing", hint="use a SELECT statement")
        result: pa.Table = found.to_arrow_table()
        del found
        return result


@contextlib.contextmanager
def _raising(system: Any) -> Iterator[None]:
    """Raise what a read raised instead of the error that DuckDB makes of it."""
    try:
        with translated("the query failed"):
            yield
    except InvalidError:
        if system.error is not None:
            raise system.error from None
        raise


class _View:
    """A table as a view of DuckDB."""

    def __init__(self, name: str, table: Table) -> None:
        self._name = name
        self._columns, self._conditions = table._columns, table._filters  # noqa: SLF001
        self._rows: pa.Table | None = None
        self.files: TableFiles | None = None
        self._parts: list[tuple[int, int, int | None]] = []
        if not all(isinstance(one.condition, str) for one in self._conditions):
            self._rows = table.arrow()
            return
        shards = table._shards  # noqa: SLF001 - of this package
        for number in range(len(shards.entry.shards)):
            first, end = (int(row) for row in shards.starts[number : number + 2])
            for low, high in table._ranges:  # noqa: SLF001 - of this package
                start, stop = max(first, low), min(end, high)
                if start < stop:
                    whole = (start, stop) == (first, end)
                    self._parts.append((number, start - first, None if whole else stop - first))
        self.files = TableFiles(shards, sorted({number for number, *_ in self._parts}))
        self._rows = None if self._parts else table.schema().empty_table()

    def create(self, connection: Any) -> None:
        """Create the view, or register the rows."""
        if self._rows is not None:
            connection.register(self._name, self._rows)
            return
        whole = [number for number, _, stop in self._parts if stop is None]
        selects = [self._select(whole)] if whole else []
        for number, start, stop in self._parts:
            if stop is not None:
                condition = f" WHERE file_row_number >= {start} AND file_row_number < {stop}"
                selects.append(self._select([number], ", file_row_number=true") + condition)
        inner = " UNION ALL BY NAME ".join(selects)
        columns = ", ".join(map(quoted_name, self._columns))
        conditions = " AND ".join(f"(\n{one.condition}\n)" for one in self._conditions)
        where = f" WHERE {conditions}" if conditions else ""
        query = f"SELECT {columns} FROM ({inner}) AS this{where}"  # noqa: S608 - quoted
        connection.execute(f"CREATE VIEW {quoted_name(self._name)} AS {query}")

    def _select(self, numbers: list[int], options: str = "") -> str:
        assert self.files is not None  # noqa: S101 - for the type checker
        schema = self.files.shards.schema
        listed = ", ".join(quoted(url(self._name, number)) for number in numbers)
        footers = [self.files.footers[number] for number in numbers]
        if any(footer.schema.names != footers[0].schema.names for footer in footers):
            options += ", union_by_name=true"
        have = {name for footer in footers for name in footer.schema.names}
        names = ", ".join(
            quoted_name(name) if name in have else f"NULL AS {quoted_name(name)}"
            for name in schema.names
        )
        return f"SELECT {names} FROM read_parquet([{listed}]{options})"  # noqa: S608 - quoted
