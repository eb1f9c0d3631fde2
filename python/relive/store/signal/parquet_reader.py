"""Reads a signal's Parquet file: rows of a timestamp, a value, and times of further clocks."""

import functools
import math
import os
import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive.errors import CorruptError, InvalidError, UnknownNameError
from relive.model.clock import Times
from relive.model.signal import taken_into
from relive.model.source import IndexArray, Rows
from relive.store.signal.arrow_values import BadRowError, describe_type, from_arrow
from relive.store.signal.meta import SignalMeta
from relive.store.signal.parquet_footer import ParquetFooter
from relive.store.signal.parquet_writer import LARGE_BYTES, TIMESTAMP, VALUE

_WHOLE_BYTES: Final = 64 << 20
_CACHE_BYTES: Final = 64 << 20
_STRING_BYTES: Final = 64  # of a Python string, without its characters


class ColumnsFile:
    """The Parquet file of a signal, written by relive or another program, read on demand.

    It has the columns `timestamp` (integers or Arrow timestamps) and `value` (numbers, text, or
    lists of numbers of one length). Columns that begin with `clock.` are further clocks; other
    columns are ignored. Columns `ts.NAME`, as positronic writes them, are times and clocks. A file
    that is damaged or has other columns is a `CorruptError` that names it. No file is kept open.
    Thread-safe. `footer_sha256` is the SHA-256 of the footer, if it is known from elsewhere.
    """

    def __init__(self, path: str | os.PathLike[str], footer_sha256: str | None = None) -> None:
        self._path = os.fspath(path)
        self._footer_sha256 = footer_sha256
        self._opened: _ColumnsFooter | None = None
        self._meta: SignalMeta | None = None
        self._times: Times | None = None
        self._clocks: dict[str, Times] = {}
        self._values: npt.NDArray[Any] | None = None

    @property
    def path(self) -> str:
        """The path of the file."""
        return self._path

    @property
    def footer(self) -> ParquetFooter:
        """The footer of the file."""
        return self._footer

    @property
    def meta(self) -> SignalMeta:
        """The metadata of the signal; in a file of another program its name is empty."""
        if self._meta is None:
            self._meta = self._footer.meta or self._inferred_meta()
        return self._meta

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self._footer.rows

    @property
    def start_ts(self) -> int:
        """The first timestamp; there must be a row."""
        return self._bound(0)

    @property
    def last_ts(self) -> int:
        """The last timestamp; there must be a row."""
        return self._bound(-1)

    def timestamps(self) -> Times:
        """Return all timestamps, read-only; each is greater than the one before."""
        if self._times is None:
            times = self._footer.read_times(self._footer.time_column)
            if not bool((times[1:] > times[:-1]).all()):
                row = int(np.argmax(times[1:] <= times[:-1])) + 1
                raise CorruptError(
                    f"`{self._path}`: timestamp {times[row]} in row {row} is not after "
                    f"{times[row - 1]}"
                )
            self._times = times
        return self._times

    def clock(self, name: str) -> Times:
        """Return all times of a further clock, read-only."""
        if name not in self.meta.clocks:
            raise UnknownNameError(f"`{self._path}` has no clock {name!r}")
        if name not in self._clocks:
            self._clocks[name] = self._footer.read_times(self._footer.clocks[name])
        return self._clocks[name]

    def whole(self) -> npt.NDArray[Any] | None:
        """Return all values as one read-only array; None if they are read by row groups."""
        if self._values is None and self._footer.is_small:
            self._values = self._read_values(None)
        return self._values

    def value(self, row: int) -> Any:
        """Return the value of a row: a NumPy scalar, a read-only array or a string."""
        values = self.whole()
        if values is not None:
            return values[row]
        starts = self._footer.starts
        group = int(starts.searchsorted(row, side="right")) - 1
        return self._group(group)[row - int(starts[group])]

    def values(self, rows: Rows, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Return the values of rows in the requested order, in `out` if it is passed.

        Every row group that is needed is read once. The array may be a read-only view.
        """
        values = self.whole()
        if values is not None:
            return taken_into(values, rows, out)
        positions = np.asarray(rows, dtype=np.int64)
        starts = self._footer.starts
        groups = starts.searchsorted(positions, side="right") - 1
        if out is None:
            if isinstance(rows, range) and len(rows) and groups[0] == groups[-1]:
                start = int(starts[groups[0]])
                inner = range(rows.start - start, rows.stop - start, rows.step)
                return taken_into(self._group(int(groups[0])), inner)
            out = np.empty((len(positions), *self.meta.shape), self.meta.array_dtype)
        order = np.argsort(groups, kind="stable")
        for wanted in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
            if len(wanted):
                group = int(groups[wanted[0]])
                _copy(self._group(group), positions[wanted] - starts[group], out, wanted)
        return out

    @property
    def _footer(self) -> "_ColumnsFooter":
        footer = self._opened
        if footer is None:
            footer = self._opened = _ColumnsFooter(self._path, self._footer_sha256)
        return footer

    def _bound(self, row: int) -> int:
        footer = self._footer
        if not footer.rows:
            raise InvalidError(f"`{self._path}` has no rows, so it has no first or last timestamp")
        if self._times is None and footer.span is not None:
            return footer.span[row]
        return int(self.timestamps()[row])

    def _inferred_meta(self) -> SignalMeta:
        footer = self._footer
        dtype, sizes = footer.form
        if None in sizes and footer.rows:
            whole = self.whole()
            shape = (self._read_values(0) if whole is None else whole).shape[1:]
        else:
            shape = tuple(size or 0 for size in sizes)
        kind = "text" if dtype == "str" else "vector" if shape else "scalar"
        return SignalMeta("", kind, dtype, shape, {}, tuple(footer.clocks))

    def _group(self, group: int) -> npt.NDArray[Any]:
        footer = self._footer
        key = self._path, footer.identity, group
        values = GROUPS.get(key)
        if values is None:
            values = self._read_values(group)
            if values.shape[1:] != self.meta.shape:
                raise CorruptError(
                    f"`{self._path}`: row {footer.starts[group]} has the shape "
                    f"{values.shape[1:]}, expected {self.meta.shape}"
                )
            text = footer.value_bytes(group) if values.dtype == object else 0
            GROUPS.put(key, values, values.nbytes + text)
        return values

    def _read_values(self, group: int | None) -> npt.NDArray[Any]:
        footer = self._footer
        if not footer.rows:
            return np.empty((0, *self.meta.shape), self.meta.array_dtype)
        with footer.naming_errors(0 if group is None else int(footer.starts[group])):
            values = from_arrow(footer.read([VALUE], group)[VALUE])
            if footer.meta is None:
                return values
            shape = footer.meta.shape
            if math.prod(values.shape[1:]) != math.prod(shape) and len(values):
                raise BadRowError(0, f"has the shape {values.shape[1:]}, expected {shape}")
            return values.reshape((len(values), *shape))


class _ColumnsFooter(ParquetFooter):
    """The footer of a file with a column of values."""

    def __init__(self, path: str, sha256: str | None) -> None:
        import pyarrow as pa

        super().__init__(path, TIMESTAMP, sha256)
        with self.naming_errors():
            self.check_column(VALUE)
            kind = self.schema.field(VALUE).type
            if not self.rows and pa.types.is_null(kind):  # other programs write it for no rows
                kind = pa.float64()
            self.form = describe_type(kind)
            """The dtype of values, and their shape with None for sizes that vary."""
            if self.form[0] == "str":
                self.dictionary_columns = [VALUE]
            self.meta = None if self.about is None else SignalMeta.from_json(self.about)
            """The metadata that relive wrote; None in files of other programs."""
            if self.meta is not None:
                self._check(self.meta)

    def _check(self, meta: SignalMeta) -> None:
        dtype, sizes = self.form
        same = bool(sizes) == bool(meta.shape) and (
            None in sizes or math.prod(size or 0 for size in sizes) == math.prod(meta.shape)
        )
        if dtype != meta.dtype or not same or set(meta.clocks) - set(self.clocks):
            raise CorruptError("the columns do not match the signal metadata in the footer")

    @functools.cached_property
    def is_small(self) -> bool:
        """Whether all values are read at once; not if records are large."""
        size = None if self.meta is None else self.meta.nbytes
        if size is not None:
            return size <= LARGE_BYTES and size * self.rows <= _WHOLE_BYTES
        total = sum(map(self.value_bytes, range(len(self.starts) - 1)))
        return total <= _WHOLE_BYTES and (
            self.meta is not None or total <= LARGE_BYTES * max(1, self.rows)
        )

    def value_bytes(self, group: int) -> int:
        """Return about how many bytes the values of a row group take, with its other columns."""
        columns = self.metadata.row_group(group)
        strings = _STRING_BYTES * columns.num_rows if self.form[0] == "str" else 0
        return strings + int(columns.total_byte_size)


class RowGroupCache:
    """The values of row groups that were read last, within a number of bytes. Thread-safe.

    The latest is kept even if it is larger than that: its rows are read one by one.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.clear()

    def get(self, key: Hashable) -> npt.NDArray[Any] | None:
        """Return the values of a key, if they are cached."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: Hashable, values: npt.NDArray[Any], nbytes: int) -> None:
        """Cache values that take `nbytes`."""
        with self._lock:
            if key in self._entries:
                return
            self._entries[key] = values, nbytes
            self.held_bytes += nbytes
            while self.held_bytes > self._max_bytes and len(self._entries) > 1:
                _, (_, freed) = self._entries.popitem(last=False)
                self.held_bytes -= freed

    def clear(self) -> None:
        """Empty the cache; in a forked process also if another thread was using it."""
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, tuple[npt.NDArray[Any], int]] = OrderedDict()
        self.held_bytes = 0


GROUPS: Final = RowGroupCache(_CACHE_BYTES)
os.register_at_fork(after_in_child=GROUPS.clear)


def _copy(
    values: npt.NDArray[Any], rows: IndexArray, out: npt.NDArray[Any], positions: IndexArray
) -> None:
    if _is_run(rows) and _is_run(positions):  # slices are copied once
        start, position = int(rows[0]), int(positions[0])
        out[position : position + len(rows)] = values[start : start + len(rows)]
    else:
        out[positions] = values[rows]


def _is_run(numbers: IndexArray) -> bool:
    return len(numbers) == 1 or bool((np.diff(numbers) == 1).all())
