"""The records of a store at one moment, and reading them."""

import functools
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt

from relive import _native
from relive.errors import InvalidTypeError, TooLargeError
from relive.model.schema import Field
from relive.model.source import (
    Batch,
    IndexArray,
    Indices,
    Source,
    as_indices,
    check_out,
    pick_fields,
)
from relive.store.records.fields import FieldTable
from relive.store.records.values import assemble

_GATHER_BYTES: Final = 64 << 20
_GROWTH: Final = 4


class StoreSnapshot:
    """The records of a store at one moment. Immutable; thread-safe."""

    __slots__ = ("fields", "length", "native", "table")

    def __init__(self, native: _native.RecordSnapshot, fields: FieldTable) -> None:
        self.native = native
        self.fields = fields
        self.table = native.table(fields.read_columns)
        self.length = len(native)

    @property
    def key(self) -> tuple[int, int]:
        """What distinguishes it from other snapshots of the store."""
        return self.native.generation, self.native.sequence

    def gather(
        self,
        rows: IndexArray,
        fields: Sequence[str] | None,
        out: Mapping[str, npt.NDArray[Any]] | None,
        workers: int,
    ) -> Batch:
        """Read records into one batch; see `Source.gather`."""
        picked = pick_fields(self.fields.by_name, fields)
        given = check_out(out, picked, rows.shape)
        fixed = {name: array for name, array in given.items() if picked[name].fixed}
        columns = [self.fields.columns[name] for name in picked]
        found = self.table.gather(rows, columns, fixed, workers)
        batch: Batch = {}
        for column, (name, field) in zip(columns, picked.items(), strict=True):
            dims = functools.partial(self.native.dims, column, rows.reshape(-1))
            batch[name] = assemble(name, field, found[name], rows.shape, dims)
            if name in given and name not in fixed:
                given[name][...] = batch[name]
                batch[name] = given[name]
        return batch

    def gather_objects(self, name: str, max_bytes: int, workers: int) -> npt.NDArray[np.object_]:
        """Read all values of a bytes, str or JSON field, or raise if they exceed `max_bytes`."""
        field, column = self.fields.by_name[name], self.fields.columns[name]
        found = np.empty(self.length, dtype=object)
        start = size = 0
        count = 1  # until the size of values is known
        while start < self.length:
            rows = np.arange(start, min(start + count, self.length), dtype=np.int64)
            stored = self.table.gather(rows, [column], None, workers)[name]
            size += stored[0].nbytes
            if size > max_bytes:
                raise TooLargeError(
                    f"cannot read all of field {name!r}: its values exceed the limit of "
                    f"{max_bytes} bytes",
                    hint="read fewer records at a time with gather()",
                )
            dims = functools.partial(self.native.dims, column, rows)
            found[start : start + len(rows)] = assemble(name, field, stored, rows.shape, dims)
            start += len(rows)
            count = min(count * _GROWTH, max(1, _GATHER_BYTES * start // max(1, size)))
        return found

    def missing(self, field: str, indices: Indices | None) -> npt.NDArray[np.bool_]:
        """Return which of the records at `indices`, by default all, have no value in a field."""
        pick_fields(self.fields.by_name, [field])
        rows = as_indices(range(self.length) if indices is None else indices, self.length)
        found = self.native.missing(self.fields.columns[field], rows.reshape(-1))
        return found.reshape(rows.shape)

    def sample_bytes(self, field: str, count: int, workers: int) -> list[bytes]:
        """Return the bytes of at most `count` values of a field, spread over all records."""
        rows = np.linspace(0, self.length - 1, min(count, self.length)).astype(np.int64)
        values = self.table.gather(rows, [self.fields.columns[field]], None, workers)[field]
        if isinstance(values, tuple):
            data, offsets = values
            return [data[start:stop].tobytes() for start, stop in pairwise(offsets.tolist())]
        return [value.tobytes() for value in values]


class RecordView(Source):
    """The records of a store at one moment, as a source."""

    def __init__(self, snapshot: StoreSnapshot, workers: int) -> None:
        self._snapshot = snapshot
        self._workers = workers

    @property
    def key(self) -> tuple[int, int]:
        """The key of the snapshot."""
        return self._snapshot.key

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields, by name."""
        return self._snapshot.fields.by_name

    def __len__(self) -> int:
        """Return the number of records."""
        return self._snapshot.length

    def gather(
        self,
        indices: Indices,
        fields: Sequence[str] | None = None,
        out: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> Batch:
        """Read the records at `indices`; see `Source.gather`."""
        rows = as_indices(indices, len(self))
        return self._snapshot.gather(rows, fields, out, self._workers)

    def native_table(self) -> "_native.Table | None":
        """Return the records as a table of the core if it can gather all fields."""
        return self._snapshot.table if self._snapshot.fields.is_native else None

    def __reduce__(self) -> NoReturn:
        """Raise: other processes open the store, which may have changed."""
        raise InvalidTypeError(
            "a snapshot of a record store cannot be pickled",
            hint="pass the store, or its path",
        )
