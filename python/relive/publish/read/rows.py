"""Rows of a published table by their positions, and as the fields of a `Source`."""

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from relive.errors import InvalidError, UnsupportedError
from relive.model.columns.arrow import arrow_column, arrow_fields
from relive.model.ragged import Ragged
from relive.model.schema import Field
from relive.model.source import IndexArray
from relive.publish.read.scan import Piece, Scan
from relive.publish.read.shards import TableShards

FIRST_ROWS: Final = 1000
"""The number of rows from which the fields of nested lists are inferred."""
CACHE_BYTES: Final = 256 << 20
_WAVE_BYTES: Final = 64 << 20
_Key: TypeAlias = tuple[str, int]
_NESTED: Final = 2


class DecodedGroups:
    """The row groups that were decoded last, within a number of bytes. Thread-safe.

    The latest is kept even if it is larger than that: its rows are read one by one.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.clear()

    def get(self, key: _Key) -> dict[str, pa.ChunkedArray]:
        """Return the columns of a row group that are at hand."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
            return self._entries.get(key, {})

    def put(self, key: _Key, columns: dict[str, pa.ChunkedArray]) -> None:
        """Keep the columns of a row group."""
        with self._lock:
            old = self._entries.pop(key, {})
            self._entries[key] = {**old, **columns}
            added = (column for name, column in columns.items() if name not in old)
            self.held_bytes += sum(map(_nbytes, added))
            while self.held_bytes > self._max_bytes and len(self._entries) > 1:
                _, dropped = self._entries.popitem(last=False)
                self.held_bytes -= sum(map(_nbytes, dropped.values()))

    def clear(self) -> None:
        """Empty the cache; in a forked process also if another thread was using it."""
        self._lock = threading.Lock()
        self._entries: OrderedDict[_Key, dict[str, pa.ChunkedArray]] = OrderedDict()
        self.held_bytes = 0


def _nbytes(column: pa.ChunkedArray) -> int:
    return int(column.get_total_buffer_size())


DECODED: Final = DecodedGroups(CACHE_BYTES)
os.register_at_fork(after_in_child=DECODED.clear)


def take(shards: TableShards, columns: Sequence[str], positions: IndexArray) -> pa.Table:
    """Return the rows at `positions`, in that order; each row group is decoded once."""
    schema = pa.schema([shards.schema.field(name) for name in columns])
    if not len(positions):
        return schema.empty_table()
    order = np.argsort(positions, kind="stable")
    ascending = positions[order]
    parts: list[pa.Table] = []
    for wave in _waves(_wanted(shards, columns, ascending)):
        for (_, rows), group in zip(wave, _decoded(shards, schema, wave), strict=True):
            parts.append(_taken(group, rows))
    table = pa.concat_tables(parts)
    if (np.diff(order) == 1).all():
        return table
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return table.take(pa.array(back))


_Wave: TypeAlias = list[tuple[Piece, IndexArray]]


def _wanted(
    shards: TableShards, columns: Sequence[str], ascending: IndexArray
) -> Iterator[tuple[Piece, IndexArray, int]]:
    """Yield the row groups of positions, the rows in each, and its size in memory."""
    numbers = shards.starts.searchsorted(ascending, side="right") - 1
    chosen, firsts = np.unique(numbers, return_index=True)
    footers = shards.footers(chosen.tolist())
    for number, footer, rows in zip(chosen, footers, np.split(ascending, firsts[1:]), strict=True):
        local = rows - shards.starts[number]
        groups, starts = np.unique(
            footer.starts.searchsorted(local, side="right") - 1, return_index=True
        )
        for group, inside in zip(groups.tolist(), np.split(local, starts[1:]), strict=True):
            first, end = footer.starts[group : group + 2].tolist()
            piece = Piece(int(number), footer, group, ((0, end - first),), is_certain=True)
            size = footer.decoded_bytes(group, footer.leaves(columns))
            yield piece, inside - first, size


def _waves(wanted: Iterator[tuple[Piece, IndexArray, int]]) -> Iterator[_Wave]:
    wave: _Wave = []
    nbytes = 0
    for piece, rows, size in wanted:
        if wave and nbytes + size > _WAVE_BYTES:
            yield wave
            wave, nbytes = [], 0
        wave.append((piece, rows))
        nbytes += size
    if wave:
        yield wave


def _decoded(shards: TableShards, schema: pa.Schema, wave: _Wave) -> list[pa.Table]:
    """Return row groups out of the cache, the others fetched in one round trip."""
    keys = [(shards.entry.shards[piece.shard].blob.digest, piece.group) for piece, _ in wave]
    found = [DECODED.get(key) for key in keys]
    missing = [
        number for number, known in enumerate(found) if not known.keys() >= set(schema.names)
    ]
    if missing:
        names = {name for number in missing for name in schema.names if name not in found[number]}
        part = pa.schema([field for field in schema if field.name in names])
        scan = Scan(shards, part.names)
        tables = scan.fetch_each([wave[number][0] for number in missing], part)
        for number, table in zip(missing, tables, strict=True):
            columns = dict(zip(part.names, table.columns, strict=True))
            DECODED.put(keys[number], columns)
            found[number] = {**found[number], **columns}
    return [
        pa.Table.from_arrays([known[name] for name in schema.names], schema=schema)
        for known in found
    ]


def _taken(table: pa.Table, rows: IndexArray) -> pa.Table:
    if rows[-1] - rows[0] == len(rows) - 1 and (np.diff(rows) == 1).all():
        return table.slice(int(rows[0]), len(rows))
    return table.take(pa.array(rows))


def fields_of(shards: TableShards, columns: Sequence[str]) -> dict[str, Field]:
    """Return the fields of columns; those of nested lists are inferred from the first rows."""
    nested = [name for name in columns if _depth(shards.schema.field(name).type) >= _NESTED]
    first = shards.schema.empty_table().select(list(columns))
    try:
        fields = arrow_fields(first.drop_columns(nested)) if nested else arrow_fields(first)
        if nested:
            rows = np.arange(min(FIRST_ROWS, shards.entry.rows))
            fields |= arrow_fields(take(shards, nested, rows))
    except UnsupportedError as error:
        raise UnsupportedError(
            f"{shards.name} cannot be read by row: {error.message}",
            hint="select() the other columns; batches() and arrow() read all of them",
        ) from error
    return {name: fields[name] for name in columns}


def _depth(kind: pa.DataType) -> int:
    depth = 0
    while pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = kind.value_type
        depth += 1
    return depth


def batch_of(
    table: pa.Table,
    fields: Mapping[str, Field],
    shape: tuple[int, ...],
    out: Mapping[str, npt.NDArray[Any]],
) -> dict[str, npt.NDArray[Any] | Ragged]:
    """Return gathered rows as arrays of the shape `shape + field.shape`, in `out` if given."""
    batch: dict[str, npt.NDArray[Any] | Ragged] = {}
    for name, field in fields.items():
        column = arrow_column(name, field, table.column(name), 0)
        if isinstance(column, list):
            column = _without_nulls(name, field, column)
        if isinstance(column, Ragged):
            shapes = None if column.shapes is None else column.shapes.copy()
            batch[name] = Ragged(column.values.copy(), column.offsets.copy(), shapes)
            continue
        found = column.reshape(shape + field.shape)
        if name in out:
            np.copyto(out[name], found)
            batch[name] = out[name]
        else:
            batch[name] = found if found.flags.writeable and found.flags.owndata else found.copy()
    return batch


def _without_nulls(name: str, field: Field, values: list[Any]) -> npt.NDArray[Any]:
    """Return values of which some are None as an array."""
    found = np.empty((len(values), *field.shape), field.array_dtype)
    if not isinstance(field.dtype, np.dtype):
        for position, value in enumerate(values):
            found[position] = value
        return found
    if field.ragged or field.dtype.kind not in "fcmM":
        raise InvalidError(
            f"column `{name}` has a null, which {field!r} cannot represent",
            hint=f"leave such rows out: filter(pyarrow.compute.field({name!r}).is_valid())",
        )
    missing = np.array("NaT" if field.dtype.kind in "mM" else np.nan, field.dtype)
    for position, value in enumerate(values):
        found[position] = missing if value is None else value
    return found
