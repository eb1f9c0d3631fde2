"""Rows in Arrow tables: in memory, or in files that Arrow reads."""

import contextlib
import zlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from relive.bridge.fingerprint import file_fingerprint
from relive.bridge.options import ReadOptions
from relive.bridge.stream import BATCH_BYTES, ColumnBatch, Stream, rows_per_batch
from relive.errors import CorruptError, InvalidError, ReliveError, UnsupportedError
from relive.model.columns.arrow import arrow_column, arrow_fields
from relive.model.columns.cast import Column
from relive.model.schema import Field
from relive.store.atomic import storage_error

FIRST_ROWS: Final = 1000
"""The number of rows from which the fields of nested lists are inferred."""


class TableStream(Stream):
    """Rows that are read as Arrow tables of one schema.

    `first` has the first rows. The columns `media` are structs of bytes and a path; `known` are
    the fields of columns whose schema does not define them; error messages begin with `where`.
    """

    def __init__(
        self,
        first: pa.Table,
        options: ReadOptions,
        *,
        where: str = "",
        media: frozenset[str] = frozenset(),
        known: Mapping[str, Field] | None = None,
    ) -> None:
        self._batch = options.batch
        self._where = where
        names = first.schema.names
        for name in names:
            if names.count(name) > 1:
                raise UnsupportedError(f"{where}two columns are named {name!r}")
        selection = options.fields
        selection.check(names)
        types = {**(known or {}), **selection.types}
        kept = [name for name in names if selection.keeps(name)]
        with _decoding(f"{where}the first rows"):
            found = arrow_fields(first.select([n for n in kept if n not in types]), media)
        self.fields = {name: types.get(name) or found[name] for name in kept}

    @abstractmethod
    def tables(self, start: int) -> Iterator[Any]:
        """Yield the rows from `start` on, in tables or record batches of any length."""

    def batches(self, start: int = 0) -> Iterator[ColumnBatch]:
        """Yield the rows from `start` on."""
        for table in self.tables(start):
            rows = self._batch or rows_per_batch(table.nbytes / max(1, table.num_rows))
            for at in range(0, table.num_rows, rows):
                part = table.slice(at, rows)
                yield ColumnBatch(part.num_rows, self._columns(part, start))
                start += part.num_rows

    def _columns(self, part: Any, first: int) -> dict[str, Any]:
        with _decoding(f"{self._where}the rows from {first} on"):
            return {
                name: _column(name, field, part.column(name), first)
                for name, field in self.fields.items()
            }


class MemoryTable(TableStream):
    """The rows of a table in memory."""

    def __init__(self, table: pa.Table, options: ReadOptions) -> None:
        super().__init__(table.slice(0, FIRST_ROWS), options)
        self._table = table
        self.total = table.num_rows

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """The schema, the length and a checksum of all values."""
        return {
            "schema": str(self._table.schema),
            "rows": self.total,
            "values": _checksum(self._table),
        }

    def tables(self, start: int) -> Iterator[Any]:
        """Yield the rows from `start` on."""
        yield self._table.slice(start)


class FileTables(TableStream):
    """The rows of files, file after file."""

    kind: str

    def __init__(self, paths: Sequence[str], options: ReadOptions, **details: Any) -> None:
        self._paths = list(paths)
        self._schema: Any = None
        lengths = [self._check(path) for path in self._paths]
        self._lengths = lengths
        more = f" and {len(self._paths) - 1} more" if len(self._paths) > 1 else ""
        super().__init__(
            self._head(FIRST_ROWS), options, where=f"`{self._paths[0]}`{more}: ", **details
        )
        self.total = None if None in lengths else sum(length or 0 for length in lengths)

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """The files."""
        return {self.kind: file_fingerprint(self._paths)}

    def tables(self, start: int) -> Iterator[Any]:
        """Yield the rows from `start` on."""
        for path, length in zip(self._paths, self._lengths, strict=True):
            if length is not None and start >= length:
                start -= length
                continue
            with reading(path):
                for part in self._read(path, start):
                    rows = part if isinstance(part, int) else part.num_rows
                    skipped = min(start, rows)
                    start -= skipped
                    if skipped < rows:
                        columns = part.slice(skipped).columns
                        yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _head(self, rows: int) -> pa.Table:
        parts: list[Any] = []
        found = 0
        for part in self.tables(0):
            parts.append(part.slice(0, rows - found))
            found += parts[-1].num_rows
            if found >= rows:
                break
        return pa.Table.from_batches(parts, schema=self._schema)

    def _check(self, path: str) -> int | None:
        """Check that the file has the schema of the first one, and return its length."""
        with reading(path):
            schema, length = self._inspect(path)
        schema = schema.remove_metadata()
        if self._schema is None:
            self._schema = schema
        elif not schema.equals(self._schema):
            raise InvalidError(f"`{path}` does not have the same columns as `{self._paths[0]}`")
        return length

    @abstractmethod
    def _inspect(self, path: str) -> tuple[Any, int | None]:
        """Return the schema of a file and its number of rows, if that is known."""

    @abstractmethod
    def _read(self, path: str, start: int) -> Iterator[Any]:
        """Yield all record batches of a file; an int stands for rows before `start`, not read."""


def _column(name: str, field: Field, array: Any, first: int) -> Column:
    kind = array.type
    while hasattr(kind, "storage_type"):
        kind = kind.storage_type
    if field.dtype == "bytes" and pa.types.is_struct(kind):
        return [_media(name, first + k, value) for k, value in enumerate(array.to_pylist())]
    return arrow_column(name, field, array, first)


def _media(name: str, row: int, value: Mapping[str, Any] | None) -> bytes | None:
    """Return the bytes of an image or a sound, which may be stored in a separate file."""
    if value is None:
        return None
    data, path = value.get("bytes"), value.get("path")
    if data is not None or path is None:
        return data
    try:
        return Path(path).read_bytes()
    except OSError as error:
        problem = storage_error(error, path, "read")
        problem.message = f"row {row}: field {name!r}: {problem.message}"
        raise problem from error


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
    """Raise errors of Arrow as errors that name the file."""
    try:
        yield
    except ReliveError:
        raise
    except (pa.ArrowException, OSError) as error:
        # Arrow raises an OSError without a number for damaged bytes, too.
        if isinstance(error, OSError) and error.errno is not None:
            raise storage_error(error, path, "read") from error
        raise CorruptError(f"cannot read `{path}`: {error}") from error


@contextlib.contextmanager
def _decoding(what: str) -> Iterator[None]:
    """Raise the errors of values that are damaged although Arrow could read them."""
    try:
        yield
    except ReliveError:
        raise
    except (pa.ArrowException, KeyError, ValueError, OverflowError) as error:
        raise CorruptError(f"cannot read {what}: {error}") from error


def _checksum(table: pa.Table) -> str:
    """Return a checksum of all values, which does not depend on how the table is chunked."""
    checksum = 0

    class Sink:
        closed = False

        def write(self, data: Any) -> int:
            nonlocal checksum
            checksum = zlib.crc32(data, checksum)
            return len(data)

        def flush(self) -> None: ...

        def close(self) -> None: ...

    rows = max(1, BATCH_BYTES * table.num_rows // max(1, table.nbytes))
    with pa.ipc.new_stream(pa.PythonFile(Sink(), mode="w"), table.schema) as writer:
        for start in range(0, table.num_rows, rows):
            writer.write_table(table.slice(start, rows).combine_chunks())
    return f"{checksum:08x}"
