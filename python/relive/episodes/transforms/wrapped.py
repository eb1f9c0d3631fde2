"""Signals with the records of another one: under another name, at other times, or as times."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive._arguments import type_name
from relive.errors import InvalidError, InvalidTypeError
from relive.model.clock import INT64_MAX, INT64_MIN, Times, as_time
from relive.model.schema import DType
from relive.model.signal import Axis, Signal, taken_into
from relive.model.source import Rows

__all__ = [
    "NamedSignal",
    "ShiftedSignal",
    "WrappedSignal",
    "check_signal",
    "frozen",
    "kind_of",
    "named",
    "record_times",
    "shift",
]

_TIME: Final = np.dtype(np.int64)
_IMAGE_DIMENSIONS: Final = 3
_CHANNELS: Final = 3


def record_times(signal: Signal[Any]) -> Signal[Any]:
    """Give a signal whose values are the times of its records, in nanoseconds.

    Put through a transform, it tells which record each value came from.
    """
    return TimesSignal(check_signal(signal))


def shift(signal: Signal[Any], offset_ns: int) -> Signal[Any]:
    """Give the same records at times that are `offset_ns` later, or earlier where it is negative.

    `shift(signal, d).time[t]` has the value of `signal.time[t - d]`. Further clocks stay.
    """
    return ShiftedSignal(check_signal(signal), as_time(offset_ns))


def named(signal: Signal[Any], name: str) -> Signal[Any]:
    """Give the same signal under a name."""
    return signal if signal.name == name else NamedSignal(signal, name)


class WrappedSignal(Signal[Any]):
    """A signal with the times of another one, its `frame`, from which all but the values comes."""

    @property
    @abstractmethod
    def frame(self) -> Signal[Any]:
        """The signal whose times these are."""

    @property
    def name(self) -> str:
        """The name of the signal that this is made of."""
        return self.frame.name

    @property
    def attrs(self) -> Mapping[str, Any]:
        """What was said about the signal that this is made of."""
        return self.frame.attrs

    @property
    def clocks(self) -> tuple[str, ...]:
        """The further clocks of the signal that this is made of."""
        return self.frame.clocks

    def clock(self, name: str) -> Times:
        """Give the times of all records on a further clock."""
        return self.frame.clock(name)

    @property
    def timestamps(self) -> Times:
        """The time of every record."""
        return self.frame.timestamps

    @property
    def start_ts(self) -> int:
        """The time of the first record."""
        return self.frame.start_ts

    @property
    def last_ts(self) -> int:
        """The time of the last record."""
        return self.frame.last_ts

    def time_axis(self) -> Axis:
        """Give the times in order, as the signal that this is made of does."""
        return self.frame.time_axis()

    def __len__(self) -> int:
        """Count the records."""
        return len(self.frame)

    def value_at(self, row: int) -> Any:
        """Give the value of one record, read-only."""
        return frozen(self.values_at(range(row, row + 1))[0])

    def __repr__(self) -> str:
        """Give the name and the number of records, on one line; reads no values."""
        name = f"{self.name!r}, " if self.name else ""
        return f"{type(self).__name__}({name}{len(self)} records)"


class _Passed(WrappedSignal):
    """A signal whose values are those of its frame."""

    def __init__(self, source: Signal[Any]) -> None:
        self._source = source

    @property
    def frame(self) -> Signal[Any]:
        """The signal that this is made of."""
        return self._source

    @property
    def kind(self) -> str:
        """The kind of the signal that this is made of."""
        return self._source.kind

    @property
    def dtype(self) -> DType:
        """The dtype of one value."""
        return self._source.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one value."""
        return self._source.shape

    def value_at(self, row: int) -> Any:
        """Give the value of one record."""
        return self._source.value_at(row)

    def values_at(self, rows: Rows, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Give the values of records."""
        return self._source.values_at(rows, out)

    def iterate(self, rows: Rows) -> Iterator[Any]:
        """Give values one after the other, as the signal that this is made of gives them."""
        return self._source.iterate(rows)


class NamedSignal(_Passed):
    """A signal under another name."""

    def __init__(self, source: Signal[Any], name: str) -> None:
        super().__init__(source)
        self._name = name

    @property
    def name(self) -> str:
        """The name it was given."""
        return self._name

    def record(self, row: int) -> tuple[Any, int]:
        """Give the record at a position."""
        return self._source.record(row)


class ShiftedSignal(_Passed):
    """A signal at other times."""

    def __init__(self, source: Signal[Any], offset: int) -> None:
        super().__init__(source)
        self._offset = offset
        self._stamps: Times | None = None
        self._axis: Axis | None = None

    @property
    def timestamps(self) -> Times:
        """The time of every record, moved."""
        if self._stamps is None:
            self._stamps = self._moved(self._source.timestamps)
        return self._stamps

    @property
    def start_ts(self) -> int:
        """The time of the first record, moved."""
        return self._source.start_ts + self._offset

    @property
    def last_ts(self) -> int:
        """The time of the last record, moved."""
        return self._source.last_ts + self._offset

    def time_axis(self) -> Axis:
        """Give the moved times in order."""
        if self._axis is None:
            times, low, high, order = self._source.time_axis()
            if order is None:
                self._axis = self.timestamps, 0, high - low, None
            else:
                self._axis = self._moved(times[low:high]), 0, high - low, order[low:high]
        return self._axis

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the signal and the offset, not the times made of them."""
        return self.__dict__ | {"_stamps": None, "_axis": None}

    def _moved(self, times: Times) -> Times:
        if not len(times):
            return times
        first, last = int(times.min()) + self._offset, int(times.max()) + self._offset
        if first < INT64_MIN or last > INT64_MAX:
            raise InvalidError(f"{self!r} moved by {self._offset} ns goes beyond 64 bits")
        moved: Times = frozen(times + self._offset)
        return moved


class TimesSignal(WrappedSignal):
    """A signal whose values are its times."""

    def __init__(self, source: Signal[Any]) -> None:
        self._source = source

    @property
    def frame(self) -> Signal[Any]:
        """The signal whose times are the values."""
        return self._source

    @property
    def attrs(self) -> Mapping[str, Any]:
        """The unit."""
        return {"unit": "ns"}

    @property
    def kind(self) -> str:
        """A time is a scalar."""
        return "scalar"

    @property
    def dtype(self) -> DType:
        """A time is an int64."""
        return _TIME

    @property
    def shape(self) -> tuple[int, ...]:
        """A time is a scalar."""
        return ()

    def values_at(self, rows: Rows, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Give the times of records."""
        return taken_into(self._source.timestamps, rows, out)


def check_signal(signal: Any) -> Signal[Any]:
    """Give `signal` as it is if it is one."""
    if isinstance(signal, Signal):
        return signal
    raise InvalidTypeError(f"a transform takes a signal, not {type_name(type(signal))}")


def kind_of(dtype: DType, shape: tuple[int, ...]) -> str:
    """Say what values of a dtype and a shape are."""
    if not isinstance(dtype, np.dtype):
        return "text"
    image = len(shape) == _IMAGE_DIMENSIONS and shape[-1] == _CHANNELS and dtype == np.uint8
    return "image" if image else "vector" if shape else "scalar"


def frozen(value: Any) -> Any:
    """Make an array that nobody else writes to read-only; other values stay."""
    if isinstance(value, np.ndarray) and value.flags.writeable:
        value.flags.writeable = False
    return value
