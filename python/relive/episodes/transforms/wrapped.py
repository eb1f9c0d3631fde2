"""Signals with the records of another one under another name or at other times."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive._arguments import type_name
from relive.errors import InvalidError, InvalidTypeError
from relive.model.clock import INT64_MAX, INT64_MIN, Times, as_time
from relive.model.schema import DType
from relive.model.signal import Axis, Signal, WrappedSignal, read_only, taken_into
from relive.model.source import Rows

_IMAGE_DIMENSIONS: Final = 3
_CHANNELS: Final = 3


def record_times(signal: Signal[Any]) -> Signal[Any]:
    """Return a signal whose values are the times of the records, in nanoseconds.

    Apply another transform to it to see which record each value comes from.

    Example:
        >>> from relive.episodes import ArraySignal
        >>> record_times(ArraySignal([1.5, 2.5], [10, 20])).values().tolist()
        [10, 20]
    """
    return TimesSignal(check_signal(signal))


def shift(signal: Signal[Any], offset_ns: int) -> Signal[Any]:
    """Return the same records `offset_ns` later, or earlier if it is negative.

    `shift(signal, d).time[t]` has the value of `signal.time[t - d]`. Additional clocks are not
    shifted.

    Example:
        >>> from relive.episodes import ArraySignal
        >>> shift(ArraySignal([1.5, 2.5], [10, 20]), 5).timestamps.tolist()
        [15, 25]
    """
    return ShiftedSignal(check_signal(signal), as_time(offset_ns))


def named(signal: Signal[Any], name: str) -> Signal[Any]:
    """Return the same signal under a name."""
    return signal if signal.name == name else NamedSignal(signal, name)


class TransformedSignal(WrappedSignal[Any]):
    """A signal made of another one; its repr reads no values."""

    def __init__(self, base: Signal[Any]) -> None:
        self._base = base

    @property
    def base(self) -> Signal[Any]:
        """The signal that this one is made of."""
        return self._base

    def __repr__(self) -> str:
        """Return the name and the number of records, on one line."""
        name = f"{self.name!r}, " if self.name else ""
        return f"{type(self).__name__}({name}{len(self)} records)"


class NamedSignal(TransformedSignal):
    """A signal under another name."""

    def __init__(self, base: Signal[Any], name: str) -> None:
        super().__init__(base)
        self._name = name

    @property
    def name(self) -> str:
        """The new name."""
        return self._name

    def record(self, row: int) -> tuple[Any, int]:
        """Return the record at a valid position."""
        return self._base.record(row)


class ShiftedSignal(TransformedSignal):
    """A signal at other times."""

    def __init__(self, base: Signal[Any], offset: int) -> None:
        super().__init__(base)
        self._offset = offset
        self._stamps: Times | None = None
        self._axis: Axis | None = None

    @property
    def timestamps(self) -> Times:
        """The time of every record, shifted."""
        if self._stamps is None:
            self._stamps = self._shifted(self._base.timestamps)
        return self._stamps

    @property
    def start_ts(self) -> int:
        """The time of the earliest record, shifted."""
        return self._base.start_ts + self._offset

    @property
    def last_ts(self) -> int:
        """The time of the latest record, shifted."""
        return self._base.last_ts + self._offset

    def time_axis(self) -> Axis:
        """Return sorted times; see `Signal.time_axis`."""
        if self._axis is None:
            times, low, high, order = self._base.time_axis()
            if order is None:
                self._axis = self.timestamps, 0, high - low, None
            else:
                self._axis = self._shifted(times[low:high]), 0, high - low, order[low:high]
        return self._axis

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the signal and the offset, not the shifted times."""
        return self.__dict__ | {"_stamps": None, "_axis": None}

    def _shifted(self, times: Times) -> Times:
        if not len(times):
            return times
        first, last = int(times.min()) + self._offset, int(times.max()) + self._offset
        if first < INT64_MIN or last > INT64_MAX:
            raise InvalidError(
                f"the times of {self.label} shifted by {self._offset} ns do not fit in 64 bits"
            )
        return read_only(times + self._offset)


class TimesSignal(TransformedSignal):
    """A signal whose values are its times."""

    iterate = Signal.iterate

    @property
    def attrs(self) -> Mapping[str, Any]:
        """The unit."""
        return {"unit": "ns"}

    @property
    def kind(self) -> str:
        """`scalar`."""
        return "scalar"

    @property
    def dtype(self) -> DType:
        """The dtype of a time: int64."""
        return np.dtype(np.int64)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one time."""
        return ()

    def value_at(self, row: int) -> Any:
        """Return the time of one record."""
        return self._base.timestamps[row]

    def values_at(self, rows: Rows, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Return the times of records."""
        return taken_into(self._base.timestamps, rows, out)


def check_signal(signal: Any) -> Signal[Any]:
    """Return `signal` if it is a signal, or raise."""
    if isinstance(signal, Signal):
        return signal
    raise InvalidTypeError(f"expected a signal, got {type_name(type(signal))}")


def kind_of(dtype: DType, shape: tuple[int, ...]) -> str:
    """Return the kind of a signal with values of a dtype and a shape."""
    if not isinstance(dtype, np.dtype):
        return "text"
    image = len(shape) == _IMAGE_DIMENSIONS and shape[-1] == _CHANNELS and dtype == np.uint8
    return "image" if image else "vector" if shape else "scalar"
