"""The one rule for times: what goes between the brackets of `time`, and how it is found."""

import contextlib
import operator
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive._arguments import type_name
from relive.errors import InvalidError, InvalidTypeError, MaskError
from relive.model.source import IndexArray, is_mask

__all__ = [
    "INT64_MAX",
    "INT64_MIN",
    "Times",
    "as_time",
    "as_times",
    "grid",
    "last_places",
    "now_ns",
]

Times = npt.NDArray[np.int64]

INT64_MIN: Final = int(np.iinfo(np.int64).min)
INT64_MAX: Final = int(np.iinfo(np.int64).max)
_LARGEST_GRID: Final = 1 << 31
_FEW: Final = 256
_begun: Final[list[int]] = []


def now_ns() -> int:
    """Give the time in nanoseconds since 1970: the wall clock as of the first use, carried on.

    It goes on with the monotonic clock, so setting the wall clock does not break a recording.
    Thread-safe.
    """
    if not _begun:
        _begun.append(time.time_ns() - time.monotonic_ns())
    return time.monotonic_ns() + _begun[0]


def as_time(value: Any) -> int:
    """Give one time as a Python integer; floats and booleans are a `TypeError`."""
    if type(value) is int:
        return value
    if is_mask(value):
        raise MaskError("a time is an integer of nanoseconds, not a boolean")
    try:
        return operator.index(value)
    except TypeError:
        hint = "int(value) says that it may be rounded" if isinstance(value, float) else None
        kind = type_name(type(value))
        raise InvalidTypeError(
            f"a time is an integer of nanoseconds, not {kind}", hint=hint
        ) from None


def as_times(values: Any, too_early: Callable[[int], Exception] | None = None) -> Times:
    """Give times along one axis as int64, in the order given; maybe the caller's own array.

    Floats and booleans are a `TypeError`. A time beyond 64 bits is an `InvalidError`; for one
    below them, which no record is early enough for, `too_early` may make another.
    """
    if type(values) is list and set(map(type, values)) == {int}:
        with contextlib.suppress(OverflowError):
            return np.array(values, dtype=np.int64)
    if isinstance(values, range):
        values = _from_range(values)
    array = _as_array(values)
    if array.ndim != 1:
        raise InvalidTypeError(f"times are integers along one axis, not {_shown(values)}")
    listed = isinstance(values, (list, tuple))
    kind = array.dtype.kind
    if kind == "b" or (listed and is_mask(values)):
        raise MaskError("times are integers of nanoseconds, not booleans")
    if kind == "i" or (kind == "u" and (not array.size or int(array.max()) <= INT64_MAX)):
        return np.ascontiguousarray(array, dtype=np.int64)
    if not array.size and not isinstance(values, np.ndarray):  # NumPy reads [] as floats
        return np.empty(0, dtype=np.int64)
    if kind == "f" and listed:  # NumPy reads [2**63, -1] as floats
        array = np.asarray(values, dtype=object)
    elif kind not in "uO":
        raise InvalidTypeError(f"times are integers of nanoseconds, not {array.dtype}")
    return np.array([_inside(item, too_early) for item in array.tolist()], dtype=np.int64)


def grid(start: int, stop: int, step: int) -> Times:
    """Give `start`, `start + step` … below `stop`."""
    times = range(start, stop, step)
    count = max(0, -((start - stop) // step))  # len() gives up beyond 64 bits
    if count and not INT64_MIN <= start <= times[-1] <= INT64_MAX:
        raise InvalidError(f"the times from {start} to {stop} go beyond 64 bits")
    if count > _LARGEST_GRID:
        raise InvalidError(
            f"the step {step} makes {count} samples from {start} to {stop}",
            hint="times and steps are in nanoseconds",
        )
    # Unsigned numbers wrap to the right result where int64 would leave its range on the way.
    offsets = np.arange(count, dtype=np.uint64) * np.uint64(step if count > 1 else 0)
    return (np.uint64(start % (1 << 64)) + offsets).view(np.int64)


def last_places(axis: Times, times: Times) -> IndexArray:
    """Give the last place in the ordered `axis` at or before each of `times`; -1 for none."""
    last = len(axis) - 1
    if last < 1 or len(times) < _FEW:
        return np.searchsorted(axis, times, side="right") - 1
    # Clocks tick evenly, more or less: a place is where a straight line says, or beside it.
    # That spares the memory that a search would wander through.
    start = float(axis[0])
    scale = last / max(1.0, float(axis[-1]) - start)
    line = np.clip((times.astype(np.float64) - start) * scale, 0, last - 1)
    places = line.astype(np.int64)
    places += axis[places + 1] <= times
    places -= axis[places] > times
    found = places == last
    found |= axis[np.minimum(places + 1, last)] > times
    found &= (axis[places] <= times) & (places >= 0)
    if not found.all():
        missed = np.flatnonzero(~found)
        places[missed] = np.searchsorted(axis, times[missed], side="right") - 1
    return places


def _from_range(values: range) -> Any:
    if not values:
        return []
    first, last = values[0], values[-1]
    for end in (first, last):
        if not INT64_MIN <= end <= INT64_MAX:
            return [end]  # says it all, and the others may be many
    if abs(values.step) > INT64_MAX:
        return list(values)  # of three at most
    return np.append(np.arange(first, last, values.step, dtype=np.int64), np.int64(last))


def _inside(item: Any, too_early: Callable[[int], Exception] | None) -> int:
    time = as_time(item)
    if time < INT64_MIN and too_early is not None:
        raise too_early(time)
    if not INT64_MIN <= time <= INT64_MAX:
        raise InvalidError(f"the time {time} is beyond 64 bits")
    return time


def _as_array(values: Any) -> npt.NDArray[Any]:
    try:
        return np.asarray(values)
    except ValueError as error:
        raise InvalidTypeError("times are integers along one axis") from error


def _shown(values: Any) -> str:
    return f"{type(values).__name__} {values!r}"[:80]
