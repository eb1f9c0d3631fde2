"""Times in nanoseconds: the clock of recordings, and how times are checked and searched."""

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

Times = npt.NDArray[np.int64]

INT64_MIN: Final = int(np.iinfo(np.int64).min)
INT64_MAX: Final = int(np.iinfo(np.int64).max)
_LARGEST_GRID: Final = 1 << 31
_FEW: Final = 256
_offset_ns: Final[list[int]] = []


def now_ns() -> int:
    """Return the time in nanoseconds since 1970, on a clock that never goes back.

    It is the wall clock at the first call, continued by the monotonic clock, so setting the
    wall clock does not disturb a recording. Thread-safe.
    """
    if not _offset_ns:
        _offset_ns.append(time.time_ns() - time.monotonic_ns())
    return time.monotonic_ns() + _offset_ns[0]


def as_time(value: Any) -> int:
    """Return one time as a Python integer; floats and booleans raise a `TypeError`."""
    if type(value) is int:
        return value
    if is_mask(value):
        raise MaskError("a time must be an integer in nanoseconds, got a boolean")
    try:
        return operator.index(value)
    except TypeError:
        hint = "round it with int(value)" if isinstance(value, float) else None
        raise InvalidTypeError(
            f"a time must be an integer in nanoseconds, got {type_name(type(value))}", hint=hint
        ) from None


def as_times(values: Any, too_early: Callable[[int], Exception] | None = None) -> Times:
    """Return times as an int64 array of one dimension, which may be the caller's own array.

    Floats and booleans raise a `TypeError`. A time beyond 64 bits raises `InvalidError`; for
    one below them `too_early`, if given, makes the error.
    """
    if type(values) is list and set(map(type, values)) == {int}:
        with contextlib.suppress(OverflowError):
            return np.array(values, dtype=np.int64)
    if isinstance(values, range):
        values = _from_range(values)
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InvalidTypeError(f"times must be a list of integers: {error}") from error
    if array.ndim != 1:
        shown = f"{type(values).__name__} {values!r}"[:80]
        raise InvalidTypeError(f"times must be a list of integers, got {shown}")
    listed = isinstance(values, (list, tuple))
    kind = array.dtype.kind
    if kind == "b" or (listed and is_mask(values)):
        raise MaskError("times must be integers in nanoseconds, got booleans")
    if kind == "i" or (kind == "u" and (not array.size or int(array.max()) <= INT64_MAX)):
        return np.ascontiguousarray(array, dtype=np.int64)
    if not array.size and not isinstance(values, np.ndarray):  # NumPy converts [] to floats
        return np.empty(0, dtype=np.int64)
    if kind == "f" and listed:  # NumPy converts [2**63, -1] to floats
        array = np.asarray(values, dtype=object)
    elif kind not in "uO":
        raise InvalidTypeError(f"times must be integers in nanoseconds, got {array.dtype}")
    return np.array([_as_int64(item, too_early) for item in array.tolist()], dtype=np.int64)


def grid(start: int, stop: int, step: int) -> Times:
    """Return the times `start`, `start + step` … below `stop`."""
    times = range(start, stop, step)
    count = max(0, -((start - stop) // step))  # len() fails beyond 64 bits
    if count and not INT64_MIN <= start <= times[-1] <= INT64_MAX:
        raise InvalidError(f"the times from {start} to {stop} do not fit in 64 bits")
    if count > _LARGEST_GRID:
        raise InvalidError(
            f"the range from {start} to {stop} with the step {step} has {count} times, "
            f"but at most {_LARGEST_GRID} are allowed",
            hint="times and steps are in nanoseconds",
        )
    # Unsigned numbers wrap around to the right result where int64 would overflow.
    offsets = np.arange(count, dtype=np.uint64) * np.uint64(step if count > 1 else 0)
    return (np.uint64(start % (1 << 64)) + offsets).view(np.int64)


def last_positions(axis: Times, times: Times) -> IndexArray:
    """Return the last position in the sorted `axis` at or before each of `times`; -1 for none."""
    last = len(axis) - 1
    if last < 1 or len(times) < _FEW:
        return np.searchsorted(axis, times, side="right") - 1
    # Clocks tick almost evenly, so a position is on a straight line, or next to it. Checking
    # that touches far less memory than a binary search.
    start = float(axis[0])
    scale = last / max(1.0, float(axis[-1]) - start)
    line = np.clip((times.astype(np.float64) - start) * scale, 0, last - 1)
    positions = line.astype(np.int64)
    positions += axis[positions + 1] <= times
    positions -= axis[positions] > times
    found = positions == last
    found |= axis[np.minimum(positions + 1, last)] > times
    found &= (axis[positions] <= times) & (positions >= 0)
    if not found.all():
        missed = np.flatnonzero(~found)
        positions[missed] = np.searchsorted(axis, times[missed], side="right") - 1
    return positions


def _from_range(values: range) -> Any:
    if not values:
        return []
    first, last = values[0], values[-1]
    for end in (first, last):
        if not INT64_MIN <= end <= INT64_MAX:
            return [end]  # raises the same error as all of them, which may be many
    if abs(values.step) > INT64_MAX:
        return list(values)  # three at most
    return np.append(np.arange(first, last, values.step, dtype=np.int64), np.int64(last))


def _as_int64(item: Any, too_early: Callable[[int], Exception] | None) -> int:
    number = as_time(item)
    if number < INT64_MIN and too_early is not None:
        raise too_early(number)
    if not INT64_MIN <= number <= INT64_MAX:
        raise InvalidError(f"the time {number} does not fit in 64 bits")
    return number
