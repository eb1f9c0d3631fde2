"""A signal of numbers or text, read from its Parquet file."""

import os
from collections.abc import Mapping
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

__all__ = ["SimpleSignal"]


class SimpleSignal(Signal[Any]):
    """Numbers, arrays or text from a Parquet file with the columns `timestamp` and `value`.

    Nothing is read before it is asked for: the number of records and the first and last time
    come from the file's footer, times are read at once, small values too, and large ones group
    by group. Numbers are NumPy scalars, arrays read-only views. Thread-safe, works in forked
    processes, and pickles as its path.
    """

    def __init__(self, path: str | os.PathLike[str], *, name: str | None = None) -> None:
        self._path = absolute_path(path, "a signal")
        self._given_name = name
        self._columns = ColumnsFile(self._path)
        self._axis: Axis | None = None
        self._length: int | None = None
        self._values: npt.NDArray[Any] | None = None
        self._stamps: Times | None = None

    @property
    def path(self) -> Path:
        """Where the file is."""
        return Path(self._path)

    @property
    def name(self) -> str:
        """The name that was given here, else that in the file, else that of the file."""
        if self._given_name is not None:
            return self._given_name
        return self._columns.meta.name or signal_name(self.path.name.removesuffix(".parquet"))

    @property
    def kind(self) -> str:
        """What a value is: `scalar`, `vector`, `text` or `image`."""
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
        """What was said about the signal when it was recorded."""
        return MappingProxyType(dict(copied(self._columns.meta.attrs)))

    @property
    def clocks(self) -> tuple[str, ...]:
        """The names of further clocks."""
        return self._columns.meta.clocks

    def clock(self, name: str) -> Times:
        """Give the times of all records on a further clock, as a read-only array."""
        if name not in self.clocks:
            raise self._unknown_clock(name)
        return self._columns.clock(name)

    def __len__(self) -> int:
        """Count the records."""
        length = self._length
        if length is None:
            length = self._length = self._columns.rows
        return length

    @property
    def start_ts(self) -> int:
        """The time of the first record; a `ValueError` when there is none."""
        if not len(self):
            raise self._empty()
        return self._columns.start_ts

    @property
    def last_ts(self) -> int:
        """The time of the last record; a `ValueError` when there is none."""
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
        """Give the times, which are in order."""
        axis = self._axis
        if axis is None:
            stamps = self.timestamps
            axis = self._axis = stamps, 0, len(stamps), None
        return axis

    def value_at(self, row: int) -> Any:
        """Give one value: a NumPy scalar, a read-only array or a string."""
        values = self._values
        if values is not None:
            return values[row]
        self._values = self._columns.whole()
        return self._columns.value(row)

    def values_at(self, rows: Rows, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Give values: for a range a view, where values are in one array."""
        values = self._values
        if values is None:
            values = self._values = self._columns.whole()
            if values is None:
                return self._columns.values(rows, out)
        return taken_into(values, rows, out)

    def record(self, row: int) -> tuple[Any, int]:
        """Give the record at a position that is known to be one of this signal's."""
        values, stamps = self._values, self._stamps
        if values is None or stamps is None:
            return self.value_at(row), self.timestamps.item(row)
        return values[row], stamps.item(row)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path."""
        return _restore, (self._path, self._given_name)


def _restore(path: str, name: str | None) -> SimpleSignal:
    return SimpleSignal(path, name=name)
