"""A signal of numbers, arrays or text in a Parquet file."""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy.typing as npt

from relive.episodes.layout import signal_name
from relive.model.clock import Times
from relive.model.schema import DType
from relive.model.signal import Axis, Signal, copied, taken_into
from relive.model.source import Rows
from relive.store.paths import absolute_path
from relive.store.signal.parquet_reader import ColumnsFile


class SimpleSignal(Signal[Any]):
    """Numbers, arrays or text from a Parquet file with the columns `timestamp` and `value`.

    Nothing is read until it is used. The number of records and the first and last time come from
    the footer of the file. All times are read at once; so are small values, and large ones are
    read by row group. Numbers are NumPy scalars, arrays are read-only views. Thread-safe, works
    in forked processes, and pickles as its path.

    Args:
        path: The file.
        name: The name of the signal; by default the one in the file, or else the file's name.
        footer_sha256: The SHA-256 of the footer of the file, if it is known; a file with another
            footer raises a `CorruptError` when it is read.

    Example:
        >>> import relive
        >>> with relive.episodes.SimpleSignalWriter("joint.parquet") as writer:
        ...     writer.append(0.5, ts_ns=10)
        ...     writer.append(0.7, ts_ns=20)
        >>> joint = relive.episodes.SimpleSignal("joint.parquet")
        >>> len(joint), joint.time[15]
        (2, (np.float64(0.5), 10))
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        footer_sha256: str | None = None,
    ) -> None:
        self._path = absolute_path(path, "a signal")
        self._given_name = name
        self._footer_sha256 = footer_sha256
        self._columns = ColumnsFile(self._path, footer_sha256)
        self._axis: Axis | None = None
        self._length: int | None = None
        self._values: npt.NDArray[Any] | None = None
        self._stamps: Times | None = None

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self._path)

    @property
    def name(self) -> str:
        """The name that was passed, else the one in the file, else that of the file."""
        if self._given_name is not None:
            return self._given_name
        return self._columns.meta.name or signal_name(self.path.name.removesuffix(".parquet"))

    @property
    def kind(self) -> str:
        """The kind of values: `scalar`, `vector`, `text` or `image`."""
        return self._columns.meta.kind

    @property
    def dtype(self) -> DType:
        """The dtype of one value; `"str"` for text."""
        return self._columns.meta.signal_dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one value."""
        return self._columns.meta.shape

    @property
    def attrs(self) -> Mapping[str, Any]:
        """The attributes that the writer stored, such as units and names."""
        return MappingProxyType(dict(copied(self._columns.meta.attrs)))

    @property
    def clocks(self) -> tuple[str, ...]:
        """The names of further clocks."""
        return self._columns.meta.clocks

    def clock(self, name: str) -> Times:
        """Return the times of all records on a further clock, as a read-only array."""
        if name not in self.clocks:
            raise self._unknown_clock(name)
        return self._columns.clock(name)

    def __len__(self) -> int:
        """Return the number of records."""
        length = self._length
        if length is None:
            length = self._length = self._columns.rows
        return length

    @property
    def start_ts(self) -> int:
        """The time of the first record; raises a `ValueError` if there are no records."""
        if not len(self):
            raise self._empty()
        return self._columns.start_ts

    @property
    def last_ts(self) -> int:
        """The time of the last record; raises a `ValueError` if there are no records."""
        if not len(self):
            raise self._empty()
        return self._columns.last_ts

    @property
    def timestamps(self) -> Times:
        """The time of every record, as a read-only array."""
        stamps = self._stamps
        if stamps is None:
            stamps = self._stamps = self._columns.timestamps()
        return stamps

    def time_axis(self) -> Axis:
        """Return the times, which increase."""
        axis = self._axis
        if axis is None:
            stamps = self.timestamps
            axis = self._axis = stamps, 0, len(stamps), None
        return axis

    def value_at(self, row: int) -> Any:
        """Return one value: a NumPy scalar, a read-only array or a string."""
        values = self._values
        if values is not None:
            return values[row]
        self._values = self._columns.whole()
        return self._columns.value(row)

    def values_at(self, rows: Rows, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Return values; for a range of values in memory this is a view."""
        values = self._values
        if values is None:
            values = self._values = self._columns.whole()
            if values is None:
                return self._columns.values(rows, out)
        return taken_into(values, rows, out)

    def record(self, row: int) -> tuple[Any, int]:
        """Return the record at a position, which is at least 0 and below the length."""
        values, stamps = self._values, self._stamps
        if values is None or stamps is None:
            return self.value_at(row), self.timestamps.item(row)
        return values[row], stamps.item(row)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path, the name and the digest."""
        make = partial(SimpleSignal, name=self._given_name, footer_sha256=self._footer_sha256)
        return make, (self._path,)
