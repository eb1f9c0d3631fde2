"""Writes a signal's Parquet file, in bounded memory."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from relive.errors import AlreadyExistsError, ClosedError, InvalidError, InvalidTypeError
from relive.model.clock import Times
from relive.store.atomic import fsync_directory, storage_error
from relive.store.digest import Digests
from relive.store.signal.arrow_values import to_arrow, value_type
from relive.store.signal.checksums import ChecksummedFile
from relive.store.signal.meta import CHECKSUMS, KEY, SPAN, SignalMeta
from relive.store.signal.parquet_footer import CLOCK

if TYPE_CHECKING:
    import pyarrow as pa

TIMESTAMP: Final = "timestamp"
VALUE: Final = "value"

LARGE_BYTES: Final = 4 << 10
"""Larger records are compressed, and read by row groups."""

_GROUP_BYTES: Final = 8 << 20
_GROUP_ROWS: Final = 64 << 10
# A large record is read with its whole row group. Short groups make that cheap, but many groups
# make the footer long: groups grow with the file.
_LEAST_GROUP_BYTES: Final = 512 << 10
_SHORT_GROUPS: Final = 2048
_TEXT_ROWS: Final = 64
_WIDE: Final = 4


class _Rows(NamedTuple):
    times: Times
    values: Any
    clocks: list[Times]

    def part(self, start: int, stop: int) -> "_Rows":
        return _Rows(
            self.times[start:stop],
            self.values[start:stop],
            [clock[start:stop] for clock in self.clocks],
        )

    def copy(self) -> "_Rows":
        values = self.values.copy() if isinstance(self.values, np.ndarray) else self.values
        return _Rows(self.times.copy(), values, [clock.copy() for clock in self.clocks])


class ColumnsWriter:
    """Writes rows to a Parquet file that gets its name when it is closed.

    Until then they are in `.<name>.part` beside it, which the next writer of that name
    overwrites. An existing file is an `AlreadyExistsError`. After an error of the disk the writer
    is aborted. Used by one thread at a time. `digests` gets the digest of the file.
    """

    def __init__(
        self, path: str | os.PathLike[str], meta: SignalMeta, digests: Digests | None = None
    ) -> None:
        self._path = Path(path)
        self._meta = meta
        self._digests = digests
        self._part = self._path.with_name(f".{self._path.name}.part")
        self._rows = 0
        self._first: int | None = None
        self._last: int | None = None
        self._waiting: list[_Rows] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._flushed_bytes = 0
        self._closed = False
        self._writer: Any = None
        self._file: BinaryIO | None = None
        with self._failing():
            self._check_free()
            self._file = self._part.open("wb")
            self._sink = ChecksummedFile(self._file)
            self._writer = self._open(self._sink)

    @property
    def rows(self) -> int:
        """The rows that were written."""
        return self._rows

    def write(
        self, timestamps: Times, values: Any, clocks: Mapping[str, Times] | None = None
    ) -> None:
        """Write rows: numbers as one array, text as a list or an array of strings.

        Timestamps increase strictly, also from one call to the next; `clocks` has every further
        clock. The caller may change the arrays afterwards.
        """
        self._check_open()
        rows = self._checked(timestamps, values, clocks or {})
        count = len(rows.times)
        start = 0
        while start < count:
            stop = min(count, start + self._room())
            part = rows.part(start, stop)
            self._waiting_rows += stop - start
            self._waiting_bytes += self._nbytes(part)
            if self._full():
                self._flush([*self._waiting, part])
            else:
                self._waiting.append(part.copy())
            start = stop
        if count:
            if self._first is None:
                self._first = int(rows.times[0])
            self._last = int(rows.times[-1])
            self._rows += count

    def close(self) -> None:
        """Finish the file and rename it to its final name; it is on the disk when this returns."""
        self._check_open()
        if self._waiting:
            self._flush(self._waiting)
        with self._failing():
            span = json.dumps([self._rows, self._first, self._last])
            self._writer.add_key_value_metadata({SPAN: span})
            self._sink.begin_footer()
            self._writer.close()
            digest = self._sink.end_footer()
            if self._file is not None:
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()
            self._check_free()
            self._part.rename(self._path)
            self._closed = True
            fsync_directory(self._path.parent)
        if self._digests is not None:
            self._digests[self._path.name] = digest

    def abort(self) -> None:
        """Remove the file; does nothing after `close`."""
        if self._closed:
            return
        self._closed = True
        self._waiting.clear()
        if self._writer is not None:
            with contextlib.suppress(OSError, ValueError):
                self._writer.close()
            self._writer.is_open = False  # else it closes again when it is garbage-collected
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            with contextlib.suppress(OSError):
                self._part.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close, or abort after an error."""
        if kind is None and not self._closed:
            self.close()
        self.abort()

    def _open(self, file: ChecksummedFile) -> Any:
        from pyarrow import parquet as pq

        dtype = self._meta.array_dtype
        text = self._meta.dtype == "str"
        large = (self._meta.nbytes or 0) > LARGE_BYTES
        # Parquet stores narrow integers in four bytes.
        narrow = dtype.kind in "iu" and dtype.itemsize < _WIDE
        times = [TIMESTAMP, *(CLOCK + name for name in self._meta.clocks)]
        encodings = dict.fromkeys(times, "DELTA_BINARY_PACKED")
        # Not every reader supports it for float16, and booleans have no such encoding.
        if (large or narrow) and self._meta.dtype not in {"bool", "float16"}:
            encodings[f"{VALUE}.list.element" if self._meta.shape else VALUE] = "BYTE_STREAM_SPLIT"
        squeezed = large or narrow or text
        return pq.ParquetWriter(
            file,
            self._schema(),
            compression="ZSTD" if squeezed else "NONE",
            compression_level=1 if squeezed else None,
            use_dictionary=[VALUE] if text else False,
            column_encoding=encodings,
            write_statistics=times,
            write_page_checksum=True,
        )

    def _schema(self) -> "pa.Schema":
        import pyarrow as pa

        kinds = {TIMESTAMP: pa.int64(), VALUE: value_type(self._meta)}
        kinds |= {CLOCK + name: pa.int64() for name in self._meta.clocks}
        stored = self._meta.to_json() | {CHECKSUMS: True}
        about = json.dumps(stored, ensure_ascii=False, separators=(",", ":"))
        return pa.schema(
            [pa.field(name, kind, nullable=False) for name, kind in kinds.items()],
            metadata={KEY: about.encode()},
        )

    def _checked(self, timestamps: Times, values: Any, clocks: Mapping[str, Times]) -> _Rows:
        times = _int64(timestamps, TIMESTAMP)
        if clocks.keys() != set(self._meta.clocks):
            raise InvalidError(f"expected the clocks {self._meta.clocks}, got {tuple(clocks)}")
        others = [_int64(clocks[name], CLOCK + name) for name in self._meta.clocks]
        if self._meta.dtype == "str":
            values = to_arrow(values, self._meta)  # Arrow arrays are immutable
        else:
            values = np.ascontiguousarray(values)
            if values.dtype != self._meta.array_dtype or values.shape[1:] != self._meta.shape:
                raise InvalidError(
                    f"values must be {self._meta.dtype} of shape {self._meta.shape}, "
                    f"got {values.dtype} of shape {values.shape[1:]}"
                )
        lengths = {len(column) for column in (times, values, *others)}
        if len(lengths) > 1:
            raise InvalidError(
                f"timestamps, values and clocks must have the same length, got {sorted(lengths)}"
            )
        before = times[:-1]
        if self._last is not None and len(times) and int(times[0]) <= self._last:
            raise InvalidError(f"timestamp {times[0]} is not after the previous one, {self._last}")
        if not bool((times[1:] > before).all()):
            row = int(np.argmax(times[1:] <= before))
            raise InvalidError(f"timestamp {times[row + 1]} is not after {times[row]}")
        return _Rows(times, values, others)

    def _room(self) -> int:
        if self._meta.nbytes is None:
            return min(_TEXT_ROWS, _GROUP_ROWS - self._waiting_rows)
        return self._group_rows(self._meta.nbytes) - self._waiting_rows

    def _full(self) -> bool:
        size = self._meta.nbytes
        if size is None:
            return self._waiting_rows == _GROUP_ROWS or self._waiting_bytes >= _GROUP_BYTES
        return self._waiting_rows == self._group_rows(size)

    def _group_rows(self, size: int) -> int:
        if size <= LARGE_BYTES:
            return min(_GROUP_ROWS, _GROUP_BYTES // max(1, size))
        budget = max(_LEAST_GROUP_BYTES, self._flushed_bytes // _SHORT_GROUPS)
        return max(1, min(_GROUP_BYTES, budget) // size)

    def _nbytes(self, rows: _Rows) -> int:
        size = self._meta.nbytes
        return int(rows.values.nbytes) if size is None else size * len(rows.times)

    def _flush(self, parts: list[_Rows]) -> None:
        import pyarrow as pa

        values = [part.values for part in parts]
        if self._meta.dtype == "str":
            column = pa.concat_arrays(values)
        else:
            column = to_arrow(_joined(values), self._meta)
        clocks = zip(*(part.clocks for part in parts), strict=True)
        times = [_joined([part.times for part in parts]), *map(_joined, map(list, clocks))]
        arrays = [pa.array(times[0]), column, *map(pa.array, times[1:])]
        with self._failing():
            table = pa.Table.from_arrays(arrays, schema=self._writer.schema)
            self._writer.write_table(table, row_group_size=len(table))
        self._flushed_bytes += self._waiting_bytes
        self._waiting = []
        self._waiting_rows = self._waiting_bytes = 0

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.abort()
            if isinstance(error, AlreadyExistsError):
                raise
            raise storage_error(error, self._path, "write") from error
        except BaseException:
            self.abort()
            raise

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"`{self._path}` is closed")

    def _check_free(self) -> None:
        if os.path.lexists(self._path):
            raise AlreadyExistsError(f"`{self._path}` already exists")


def _int64(values: Any, column: str) -> Times:
    array = np.asarray(values)
    if array.dtype != np.int64 or array.ndim != 1:
        raise InvalidTypeError(
            f"`{column}` must be a 1-D int64 array, got {array.dtype} of shape {array.shape}"
        )
    return array


def _joined(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
