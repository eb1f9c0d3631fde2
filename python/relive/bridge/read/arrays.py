"""Arrays, dicts of arrays, lists of rows, `.npz` archives and sources, as streams."""

import contextlib
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from relive.bridge.cast import fit_column
from relive.bridge.fingerprint import columns_identity, file_identity
from relive.bridge.infer import Misfit, infer_field
from relive.bridge.options import Choice
from relive.bridge.rows import RowReader
from relive.bridge.stream import Chunk, Column, Pace, Stream
from relive.errors import CorruptError, InvalidError, InvalidTypeError, UnsupportedError
from relive.model.ragged import Ragged
from relive.model.schema import Field
from relive.model.select import Subset, members
from relive.model.source import Source
from relive.store.atomic import storage_error

__all__ = ["ColumnStream", "ListReader", "NpzStream", "SourceStream"]


class SourceStream(Stream):
    """The rows of a source, in order.

    `files` is what tells it from others; without that, all of its values do.
    """

    def __init__(self, source: Source, batch: int | None, files: list[Any] | None = None) -> None:
        self._source = source
        self._batch = batch
        self._files = files

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields of the source."""
        return self._source.fields

    @property
    def total(self) -> int:
        """The number of rows."""
        return len(self._source)

    @property
    def identity(self) -> Mapping[str, Any]:
        """Length, fields, and the files or a checksum of all values."""
        fields = {name: repr(field) for name, field in self.fields.items()}
        told = self._files or columns_identity(chunk.columns for chunk in self._fixed_chunks())
        return {"rows": self.total, "source": fields, "values": told}

    def _fixed_chunks(self) -> Iterator[Chunk]:
        """Give all rows, divided in the same way whatever `batch` is."""
        return SourceStream(self._source, None).chunks()

    def chunks(self, start: int = 0) -> Iterator[Chunk]:
        """Give the rows from `start` on, each chunk by one gather."""
        pace = Pace(self._batch)
        while start < self.total:
            rows = np.arange(start, min(start + pace.rows, self.total), dtype=np.int64)
            batch = self._source.gather(rows)
            columns = {name: self._column(name, batch[name], rows) for name in batch}
            chunk = Chunk(len(rows), columns)
            pace.learn(chunk)
            yield chunk
            start += len(rows)

    def _column(
        self, name: str, values: npt.NDArray[Any] | Ragged, rows: npt.NDArray[np.int64]
    ) -> Column:
        variable = isinstance(values, np.ndarray) and values.dtype.hasobject
        gone = _missing(self._source, name, rows)
        if gone is None or not gone.any():
            return list(values) if variable else values
        return [None if lost else value for lost, value in zip(gone, values, strict=True)]


def _missing(source: Source, name: str, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any] | None:
    """Say which rows have no value in a field, where the source is one that knows."""
    if isinstance(source, Subset):
        return _missing(source.source, name, members(source.rows, rows))
    ask = getattr(source, "missing", None)
    return None if ask is None else np.asarray(ask(name, rows))


class ColumnStream(Stream):
    """Columns in memory: arrays, `Ragged` values, and lists with one value per row."""

    def __init__(
        self, columns: Mapping[str, Any], choice: Choice, *, batch: int | None, sample: int
    ) -> None:
        if not columns:
            raise InvalidError("there is no array to convert")
        choice.check(map(_name, columns))
        self._batch = batch
        self._columns = {
            name: _in_memory(name, value) for name, value in columns.items() if choice.keeps(name)
        }
        lengths = {name: len(column) for name, column in self._columns.items()}
        if len(set(lengths.values())) > 1:
            text = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
            raise InvalidError(f"all fields need the same number of rows: {text}")
        self._total = next(iter(lengths.values()), 0)
        self._fields = {
            name: choice.given[name]
            if isinstance(column, list) and name in choice.given
            else _column_field(name, column, sample)
            for name, column in self._columns.items()
        }

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields of every row, by name."""
        return self._fields

    @property
    def total(self) -> int:
        """The number of rows."""
        return self._total

    @property
    def identity(self) -> Mapping[str, Any]:
        """Length, fields, and a checksum of all values."""
        fields = {name: repr(field) for name, field in self._fields.items()}
        return {"rows": self._total, "columns": fields, "values": columns_identity([self._columns])}

    def chunks(self, start: int = 0) -> Iterator[Chunk]:
        """Give the rows from `start` on, without a copy where they are arrays."""
        pace = Pace(self._batch)
        while start < self._total:
            stop = min(start + pace.rows, self._total)
            columns = {name: self._part(name, start, stop) for name in self._columns}
            chunk = Chunk(stop - start, columns)
            pace.learn(chunk)
            yield chunk
            start = stop

    def _part(self, name: str, start: int, stop: int) -> Column:
        part = self._columns[name][start:stop]
        if isinstance(part, list):
            return fit_column(name, self._fields[name], part, start)
        return part


class ListReader(RowReader[Mapping[str, Any]]):
    """A list of rows, each a dict."""

    parallel = False

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows = rows

    @property
    def total(self) -> int:
        """The number of rows."""
        return len(self._rows)

    @property
    def identity(self) -> Mapping[str, Any]:
        """Length, and a checksum of all values."""
        return {"rows": self.total, "values": columns_identity([{"rows": list(self._rows)}])}

    def items(self, start: int) -> Iterator[Mapping[str, Any]]:
        """Give the rows from `start` on."""
        return (self._rows[row] for row in range(start, len(self._rows)))

    def row(self, item: Mapping[str, Any]) -> Mapping[str, Any]:
        """Give the row as it is."""
        return item


class NpzStream(Stream):
    """The arrays of a `.npz` archive, read side by side from its first row to the last."""

    def __init__(self, path: str, batch: int | None) -> None:
        self._path = path
        self._batch = batch
        self._headers: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        with _reading(path), zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                if member.endswith(".npy"):
                    with archive.open(member) as file:
                        self._headers[member] = _header(path, member, file)
        if not self._headers:
            raise InvalidError(f"`{path}` has no array in it")
        lengths = {shape[0] for shape, _ in self._headers.values()}
        if len(lengths) > 1:
            text = ", ".join(f"{m[:-4]!r} {s[0]}" for m, (s, _) in self._headers.items())
            raise InvalidError(f"`{path}`: all arrays need the same number of rows: {text}")
        self._total = lengths.pop()
        self._fields = {
            member[:-4]: Field(dtype, shape[1:]) for member, (shape, dtype) in self._headers.items()
        }

    @property
    def fields(self) -> Mapping[str, Field]:
        """A field per array."""
        return self._fields

    @property
    def total(self) -> int:
        """The number of rows."""
        return self._total

    @property
    def identity(self) -> Mapping[str, Any]:
        """The file."""
        return {"npz": file_identity([self._path])}

    def chunks(self, start: int = 0) -> Iterator[Chunk]:
        """Give the rows from `start` on; compressed ones before it are read and forgotten."""
        row_bytes = sum(field.nbytes or 0 for field in self._fields.values())
        pace = Pace(self._batch or max(1, min(1 << 16, (16 << 20) // max(1, row_bytes))))
        with contextlib.ExitStack() as stack:
            stack.enter_context(_reading(self._path))
            archive = stack.enter_context(zipfile.ZipFile(self._path))
            files = {m: stack.enter_context(archive.open(m)) for m in self._headers}
            for member, file in files.items():
                _header(self._path, member, file)
                skipped = start * (self._fields[member[:-4]].nbytes or 0)
                file.seek(file.tell() + skipped)
            while start < self._total:
                rows = min(pace.rows, self._total - start)
                yield Chunk(rows, {m[:-4]: self._rows(m, f, rows) for m, f in files.items()})
                start += rows
            for member, file in files.items():
                if file.read(1):  # the checksum is compared at the end of the member
                    raise CorruptError(f"`{self._path}`: `{member}` is longer than it says")

    def _rows(self, member: str, file: IO[bytes], rows: int) -> npt.NDArray[Any]:
        field = self._fields[member[:-4]]
        size = rows * (field.nbytes or 0)
        data = bytearray(file.read(size))
        if len(data) != size:
            raise CorruptError(f"`{self._path}`: `{member}` ends too early")
        return np.frombuffer(data, field.array_dtype).reshape(rows, *field.shape)


def _header(path: str, member: str, file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    try:
        version = np.lib.format.read_magic(file)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if read is None:
            raise UnsupportedError(f"`{path}`: `{member}` is of version {version}")
        shape, fortran, dtype = read(file)
    except (ValueError, SyntaxError, TypeError) as error:
        if isinstance(error, UnsupportedError):
            raise
        raise CorruptError(f"`{path}`: `{member}` is no array: {error}") from error
    if dtype.hasobject:
        raise UnsupportedError(
            f"`{path}`: `{member}` holds pickled Python objects",
            hint="load and convert it yourself",
        )
    if fortran and len(shape) > 1:
        raise UnsupportedError(
            f"`{path}`: `{member}` is stored column by column",
            hint="load it: relive.convert(dict(np.load(path)), target)",
        )
    if not shape:
        raise InvalidError(f"`{path}`: `{member}` is a single value; rows need a first dimension")
    return shape, dtype


@contextlib.contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise CorruptError(f"`{path}` is not a readable .npz archive: {error}") from error
    except OSError as error:
        raise storage_error(error, path, "read") from error


def _name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise InvalidTypeError(f"a field is named by a string, not {name!r}")
    return name


def _in_memory(name: str, value: Any) -> Column:
    if isinstance(value, Ragged | list):
        return value
    if isinstance(value, np.ma.MaskedArray):
        return _unmasked(name, value)
    if isinstance(value, tuple | range):
        return list(value)
    array = np.asarray(value)
    if array.ndim == 0:
        raise InvalidError(f"field {name!r} is a single value; rows need a first dimension")
    return list(array) if array.dtype.hasobject or array.dtype.kind == "T" else array


def _unmasked(name: str, array: np.ma.MaskedArray[Any, Any]) -> Column:
    gone = np.ma.getmaskarray(array).reshape(len(array), -1)
    if (gone.any(axis=1) != gone.all(axis=1)).any():
        row = int(np.argmax(gone.any(axis=1) != gone.all(axis=1)))
        raise UnsupportedError(
            f"row {row}: field {name!r} is masked in part, and a value is there or not",
            hint="give array.filled(), and its mask as a field of its own",
        )
    data, lost = np.asarray(array.data), np.asarray(gone.any(axis=1))
    if not lost.any():
        return data
    return [None if lost[row] else data[row] for row in range(len(data))]


def _column_field(name: str, column: Column, sample: int) -> Field:
    if isinstance(column, np.ndarray):
        return Field(column.dtype, column.shape[1:])
    if isinstance(column, Ragged):
        if column.shapes is not None:
            return Field(column.dtype, ragged=column.ndim)
        return Field(column.dtype, column.inner, ragged=True)
    try:
        return infer_field(column[:sample])
    except Misfit as misfit:
        raise InvalidError(
            f"row {misfit.position}: field {name!r} {misfit.trouble}",
            hint=f"say what it is: fields={{{name!r}: Field(...)}}",
        ) from None
