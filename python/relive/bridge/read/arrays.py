"""Arrays, dicts of arrays and lists of rows in memory."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from relive.bridge.fingerprint import columns_fingerprint
from relive.bridge.options import ReadOptions
from relive.bridge.rows import RowReader
from relive.bridge.stream import BatchSize, ColumnBatch, Stream
from relive.errors import InvalidError, InvalidTypeError, UnsupportedError
from relive.model.columns.cast import Column, cast_column
from relive.model.columns.infer import infer_named_field
from relive.model.ragged import Ragged
from relive.model.schema import Field


class ColumnStream(Stream):
    """Columns in memory: arrays, `Ragged` values, and lists with one value per row."""

    def __init__(self, columns: Mapping[str, Any], options: ReadOptions) -> None:
        if not columns:
            raise InvalidError("the dict to convert is empty")
        for name in columns:
            if not isinstance(name, str) or not name:
                raise InvalidTypeError(f"a field name must be a non-empty string, got {name!r}")
        selection = options.fields
        selection.check(columns)
        self._batch = options.batch
        self._columns = {
            name: _as_column(name, value)
            for name, value in columns.items()
            if selection.keeps(name)
        }
        lengths = {name: len(column) for name, column in self._columns.items()}
        if len(set(lengths.values())) > 1:
            text = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
            raise InvalidError(f"all fields must have the same number of rows: {text}")
        self.total: int = next(iter(lengths.values()), 0)
        self.fields = {
            name: selection.types[name]
            if isinstance(column, list) and name in selection.types
            else _column_field(name, column, options.sample)
            for name, column in self._columns.items()
        }

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """Length, fields, and a digest of all values."""
        fields = {name: repr(field) for name, field in self.fields.items()}
        values = columns_fingerprint([self._columns])
        return {"rows": self.total, "columns": fields, "values": values}

    def batches(self, start: int = 0) -> Iterator[ColumnBatch]:
        """Yield the rows from `start` on; arrays are not copied."""
        size = BatchSize(self._batch)
        while start < self.total:
            stop = min(start + size.rows, self.total)
            columns = {name: self._part(name, start, stop) for name in self._columns}
            batch = ColumnBatch(stop - start, columns)
            size.adapt(batch)
            yield batch
            start = stop

    def _part(self, name: str, start: int, stop: int) -> Column:
        part = self._columns[name][start:stop]
        if isinstance(part, list):
            return cast_column(name, self.fields[name], part, start)
        return part


class ListReader(RowReader[Mapping[str, Any]]):
    """A list of rows, each a dict."""

    parallel = False

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        if not rows:
            raise InvalidError("cannot infer the fields: the list of rows is empty")
        self._rows = rows
        self.total = len(rows)

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """Length, and a digest of all values."""
        return {"rows": self.total, "values": columns_fingerprint([{"rows": list(self._rows)}])}

    def items(self, start: int) -> Iterator[Mapping[str, Any]]:
        """Yield the rows from `start` on."""
        return (self._rows[row] for row in range(start, len(self._rows)))

    def row(self, item: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the row."""
        return item


def _as_column(name: str, value: Any) -> Column:
    if isinstance(value, Ragged | list):
        return value
    if isinstance(value, np.ma.MaskedArray):
        return _unmasked(name, value)
    if isinstance(value, tuple | range):
        return list(value)
    array = np.asarray(value)
    if array.ndim == 0:
        raise InvalidError(f"field {name!r} must have one value per row, got a single value")
    return list(array) if array.dtype.hasobject or array.dtype.kind == "T" else array


def _unmasked(name: str, array: np.ma.MaskedArray[Any, Any]) -> Column:
    masked = np.ma.getmaskarray(array).reshape(len(array), -1)
    partly = masked.any(axis=1) != masked.all(axis=1)
    if partly.any():
        raise UnsupportedError(
            f"row {int(np.argmax(partly))}: field {name!r} is partly masked, but only whole rows "
            "can be missing",
            hint="convert array.filled(), and the mask as another field",
        )
    data, missing = np.asarray(array.data), np.asarray(masked.any(axis=1))
    if not missing.any():
        return data
    return [None if missing[row] else data[row] for row in range(len(data))]


def _column_field(name: str, column: Column, sample: int) -> Field:
    if isinstance(column, np.ndarray):
        return Field(column.dtype, column.shape[1:])
    if isinstance(column, Ragged):
        if column.shapes is not None:
            return Field(column.dtype, ragged=column.ndim)
        return Field(column.dtype, column.inner, ragged=True)
    return infer_named_field(name, column[:sample], range(sample))
