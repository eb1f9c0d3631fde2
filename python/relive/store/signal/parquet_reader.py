"""A signal's Parquet file: rows of a timestamp, a value, and the times of further clocks."""

import contextlib
import functools
import json
import math
import operator
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from relive.errors import (
    CorruptError,
    InvalidError,
    ReliveError,
    UnknownNameError,
    UnsupportedError,
)
from relive.model.clock import Times
from relive.model.signal import taken_into
from relive.model.source import IndexArray, Rows
from relive.store.atomic import storage_error
from relive.store.signal.arrow_values import (
    BadRowError,
    describe_type,
    from_arrow,
    one_array,
    times_from_arrow,
)
from relive.store.signal.meta import KEY, SPAN, SignalMeta
from relive.store.signal.parquet_writer import LARGE_BYTES, TIMESTAMP, VALUE, ColumnsWriter
from relive.store.signal.row_group_cache import GROUPS
from relive.store.signal.time_columns import find_times

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import parquet as pq

__all__ = ["ColumnsFile", "ColumnsWriter", "SignalMeta"]

_WHOLE_BYTES: Final = 64 << 20
_TEXT_BYTES: Final = 64  # what a string takes beside its characters


class ColumnsFile:
    """Reads the Parquet file of a signal, of anybody's making, when it is asked to.

    It has the columns `timestamp` (integers, or Arrow's timestamps) and `value` (numbers, text,
    or lists of numbers of one length); columns that begin with `clock.` are further clocks, and
    others are left alone. Columns `ts.NAME`, as positronic has them, are times and clocks. A
    file that is damaged, or not such a one, is a `CorruptError` that names it. No file stays
    open. Thread-safe.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._footer: _Footer | None = None
        self._meta: SignalMeta | None = None
        self._times: Times | None = None
        self._clocks: dict[str, Times] = {}
        self._values: npt.NDArray[Any] | None = None

    @property
    def path(self) -> str:
        """Where the file is."""
        return self._path

    @property
    def meta(self) -> SignalMeta:
        """What the signal is; a file of others gives it no name."""
        if self._meta is None:
            self._meta = self._opened().told or self._found_meta()
        return self._meta

    @property
    def rows(self) -> int:
        """The number of rows, from the footer."""
        return self._opened().rows

    @property
    def start_ts(self) -> int:
        """The first timestamp, from the footer of our files; there must be a row."""
        return self._bound(last=False)

    @property
    def last_ts(self) -> int:
        """The last timestamp, from the footer of our files; there must be a row."""
        return self._bound(last=True)

    def timestamps(self) -> Times:
        """Give all timestamps, read-only; each is greater than the one before."""
        if self._times is None:
            times = self._read_times(self._opened().time_column)
            if not bool((times[1:] > times[:-1]).all()):
                row = int(np.argmax(times[1:] <= times[:-1])) + 1
                raise CorruptError(
                    f"`{self._path}` has the timestamp {times[row]} in row {row}, "
                    f"which is not after {times[row - 1]}"
                )
            self._times = times
        return self._times

    def clock(self, name: str) -> Times:
        """Give all times of a further clock, read-only."""
        if name not in self.meta.clocks:
            raise UnknownNameError(f"no clock {name!r} in `{self._path}`")
        if name not in self._clocks:
            self._clocks[name] = self._read_times(self._opened().clocks[name])
        return self._clocks[name]

    def whole(self) -> npt.NDArray[Any] | None:
        """Give all values in one read-only array, or None where they are read by groups."""
        if self._values is None and self._opened().small:
            self._values = self._read_values(None)
        return self._values

    def value(self, row: int) -> Any:
        """Give the value of a row: a NumPy scalar, a read-only array or a string."""
        values = self.whole()
        if values is not None:
            return values[row]
        starts = self._opened().starts
        group = int(starts.searchsorted(row, side="right")) - 1
        return self._group(group)[row - int(starts[group])]

    def values(self, rows: Rows, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Give the values of rows in the order asked, in `out` if there is one.

        Every row group that is needed is read once. The array may be a read-only view.
        """
        values = self.whole()
        if values is not None:
            return taken_into(values, rows, out)
        places = np.asarray(rows, dtype=np.int64)
        starts = self._opened().starts
        groups = starts.searchsorted(places, side="right") - 1
        if out is None:
            if isinstance(rows, range) and len(rows) and groups[0] == groups[-1]:
                start = int(starts[groups[0]])
                inner = range(rows.start - start, rows.stop - start, rows.step)
                return taken_into(self._group(int(groups[0])), inner)
            out = np.empty((len(places), *self.meta.shape), self.meta.array_dtype)
        order = np.argsort(groups, kind="stable")
        for wanted in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
            if len(wanted):
                group = int(groups[wanted[0]])
                _copy(self._group(group), places[wanted] - starts[group], out, wanted)
        return out

    def _bound(self, *, last: bool) -> int:
        footer = self._opened()
        if not footer.rows:
            raise InvalidError(f"`{self._path}` has no rows, so no first and no last")
        # Statistics would tell, too, but asking for those of a damaged footer ends the process.
        if self._times is None and footer.span is not None:
            return footer.span[-1 if last else 0]
        return int(self.timestamps()[-1 if last else 0])

    def _found_meta(self) -> SignalMeta:
        """Give what a file of others shows."""
        footer = self._opened()
        dtype, sizes = footer.values
        if None in sizes and footer.rows:
            whole = self.whole()
            shape = (self._read_values(0) if whole is None else whole).shape[1:]
        else:
            shape = tuple(size or 0 for size in sizes)
        kind = "text" if dtype == "str" else "vector" if shape else "scalar"
        return SignalMeta("", kind, dtype, shape, {}, tuple(footer.clocks))

    def _group(self, group: int) -> npt.NDArray[Any]:
        footer = self._opened()
        key = self._path, footer.identity, group
        values = GROUPS.get(key)
        if values is None:
            values = self._read_values(group)
            if values.shape[1:] != self.meta.shape:
                first = int(footer.starts[group])
                raise CorruptError(
                    f"`{self._path}` has a value of the shape {values.shape[1:]} in row {first}, "
                    f"and the first has {self.meta.shape}"
                )
            text = footer.value_bytes(group) if values.dtype == object else 0
            GROUPS.put(key, values, values.nbytes + text)
        return values

    def _read_values(self, group: int | None) -> npt.NDArray[Any]:
        footer = self._opened()
        if not footer.rows:
            return np.empty((0, *self.meta.shape), self.meta.array_dtype)
        with self._naming(0 if group is None else int(footer.starts[group])):
            values = from_arrow(self._read_column(VALUE, group))
            if footer.told is None:
                return values
            shape = footer.told.shape
            if math.prod(values.shape[1:]) != math.prod(shape) and len(values):
                raise BadRowError(0, f"holds {values.shape[1:]} items, and {shape} are needed")
            return values.reshape((len(values), *shape))

    def _read_times(self, name: str) -> Times:
        with self._naming():
            return times_from_arrow(self._read_column(name, None))

    def _read_column(self, name: str, group: int | None) -> "pa.Array":
        footer = self._opened()
        with self._file(footer) as file:
            if group is None:
                table = file.read(columns=[name], use_threads=False)
            else:
                table = file.read_row_group(group, columns=[name], use_threads=False)
        rows = footer.rows
        if group is not None:
            rows = int(footer.starts[group + 1] - footer.starts[group])
        if len(table) != rows:  # where a page is damaged in front, it counts as no page
            raise CorruptError(f"column `{name}` has {len(table)} rows, and {rows} are told")
        return one_array(table.column(name))

    def _opened(self) -> "_Footer":
        footer = self._footer
        if footer is None:
            with self._naming(), self._file(None) as file:
                footer = self._footer = _Footer(file, self._identity())
        return footer

    @contextlib.contextmanager
    def _file(self, footer: "_Footer | None") -> "Iterator[pq.ParquetFile]":
        import pyarrow as pa
        from pyarrow import parquet as pq

        if footer is not None and footer.identity != self._identity():
            raise CorruptError("it was changed after it had been opened")
        metadata = None if footer is None else footer.metadata
        text = footer is not None and footer.values[0] == "str"
        with pa.OSFile(self._path) as source:
            # Nothing here starts a thread, which a fork would not take along.
            yield pq.ParquetFile(
                source,
                metadata=metadata,
                read_dictionary=[VALUE] if text else None,  # what is repeated is one string
                pre_buffer=False,
                page_checksum_verification=True,
            )

    def _identity(self) -> tuple[int, ...]:
        status = os.stat(self._path)  # noqa: PTH116 - a Path would be made for every read
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns

    @contextlib.contextmanager
    def _naming(self, first_row: int = 0) -> Iterator[None]:
        """Say of what goes wrong with the file which file it is."""
        import pyarrow as pa

        try:
            yield
        except BadRowError as error:
            trouble = f"row {first_row + error.row} {error.trouble}"
            raise CorruptError(f"`{self._path}`: {trouble}") from error
        except UnsupportedError as error:
            raise UnsupportedError(f"`{self._path}`: {error.message}", hint=error.hint) from error
        except OSError as error:
            if error.errno is not None and not isinstance(error, ReliveError):
                raise storage_error(error, self._path, "read") from error
            raise self._corrupt(error) from error
        except (ValueError, TypeError, LookupError, pa.ArrowException) as error:
            raise self._corrupt(error) from error

    def _corrupt(self, error: Exception) -> CorruptError:
        first = str(error).partition("\n")[0]
        return CorruptError(f"`{self._path}` is not the file of a signal, or damaged: {first}")


class _Footer:
    """What the end of a file says."""

    def __init__(self, file: "pq.ParquetFile", identity: tuple[int, ...]) -> None:
        import pyarrow as pa

        self.identity = identity
        self.metadata = file.metadata
        self.schema = file.schema_arrow
        counts = [self.metadata.row_group(i).num_rows for i in range(self.metadata.num_row_groups)]
        self.starts: IndexArray = np.cumsum([0, *counts], dtype=np.int64)
        """The first row of each group, and the number of all rows."""
        self.rows = int(self.starts[-1])
        told, self.clocks = find_times(self.schema.names, TIMESTAMP)
        self.time_column = told or TIMESTAMP
        """The column of timestamps; `clocks` has those of further clocks, by their names."""
        for name in (self.time_column, VALUE):
            if self.schema.get_field_index(name) < 0:
                raise CorruptError(f"it has no column `{name}`, or several")
        kind = self.schema.field(VALUE).type
        if not self.rows and pa.types.is_null(kind):  # what others make of no values
            kind = pa.float64()
        self.values = describe_type(kind)
        """The dtype of values, and their shape with None for what is not told."""
        kept = self.metadata.metadata or {}
        about = kept.get(KEY)
        self.told = None if about is None else SignalMeta.from_json(json.loads(about))
        """What relive wrote about the signal; None in a file of others."""
        self.span: tuple[int, int] | None = None
        """The first and the last timestamp, where relive wrote them down."""
        if self.told is not None:
            self._check(self.told)
            if SPAN in kept and self.rows:
                rows, first, last = map(operator.index, json.loads(kept[SPAN]))
                if rows != self.rows:
                    raise CorruptError(f"it has {self.rows} rows, and {rows} were written")
                self.span = first, last

    def _check(self, told: SignalMeta) -> None:
        dtype, sizes = self.values
        same = bool(sizes) == bool(told.shape) and (
            None in sizes or math.prod(size or 0 for size in sizes) == math.prod(told.shape)
        )
        if dtype != told.dtype or not same or set(told.clocks) - set(self.clocks):
            raise CorruptError("its columns are not what its metadata says")

    @functools.cached_property
    def small(self) -> bool:
        """Whether all values are read at once; where records are large, one may be enough."""
        size = None if self.told is None else self.told.nbytes
        if size is not None:
            return size <= LARGE_BYTES and size * self.rows <= _WHOLE_BYTES
        total = sum(map(self.value_bytes, range(len(self.starts) - 1)))
        return total <= _WHOLE_BYTES and (
            self.told is not None or total <= LARGE_BYTES * max(1, self.rows)
        )

    def value_bytes(self, group: int) -> int:
        """Give about how many bytes the values of a group take, other columns included."""
        columns = self.metadata.row_group(group)
        beside = _TEXT_BYTES * columns.num_rows if self.values[0] == "str" else 0
        return beside + int(columns.total_byte_size)


def _copy(
    values: npt.NDArray[Any], rows: IndexArray, out: npt.NDArray[Any], places: IndexArray
) -> None:
    if _is_run(rows) and _is_run(places):  # slices need no copy in between
        start, place = int(rows[0]), int(places[0])
        out[place : place + len(rows)] = values[start : start + len(rows)]
    else:
        out[places] = values[rows]


def _is_run(numbers: IndexArray) -> bool:
    return len(numbers) == 1 or bool((np.diff(numbers) == 1).all())
