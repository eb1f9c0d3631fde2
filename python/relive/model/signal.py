"""The time protocol: a `Signal` is what was recorded under one name, in the order of time."""

import functools
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import EllipsisType, MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, SupportsIndex, TypeAlias, TypeVar, overload

import numpy as np
import numpy.typing as npt

from relive._native import find_time
from relive.errors import (
    InvalidError,
    InvalidTypeError,
    MaskError,
    NoValueError,
    OutOfRangeError,
    UnknownNameError,
)
from relive.model.clock import Times, as_time, as_times, grid, last_places
from relive.model.schema import DType, Field
from relive.model.select import compose
from relive.model.source import (
    Batch,
    IndexArray,
    Indices,
    Rows,
    Source,
    as_indices,
    check_out,
    pick_fields,
    positions,
)

if TYPE_CHECKING:
    from relive.model.resample import Policy

__all__ = [
    "ArraySignal",
    "Axis",
    "Part",
    "Signal",
    "SignalTime",
    "SignalView",
    "copied",
    "ordered",
    "taken_into",
]

T = TypeVar("T")
Axis: TypeAlias = tuple[Times, int, int, IndexArray | None]
"""Ordered times, the part of them that counts, and how they map to records; see `time_axis`."""
Part: TypeAlias = slice | EllipsisType | Sequence[int] | npt.NDArray[Any]
"""What selects several records: a slice, `...`, or integers in a list or array."""

_NO_ATTRS: Final[Mapping[str, Any]] = MappingProxyType({})
_ITERATE_BYTES: Final = 4 << 20
_ITERATE_ROWS: Final = 1024
_TIME_NS: Final = Field(np.int64)
_NESTED: Final = frozenset({dict, list})


class Signal(Source, Sequence[tuple[T, int]]):
    """A stepwise function of time: records `(value, ts_ns)`, strictly ordered by time.

    `signal[i]` is one record; a slice, or integers in a list or array, give a signal that is a
    view. `signal.time` selects by time. Nothing is read before it is asked for. A signal is
    also a `Source` with the fields `value` and `ts_ns`.

    A subclass gives `name`, `kind`, `dtype`, `shape`, `timestamps`, `value_at` and `values_at`;
    all the rest follows from them.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """What the signal is called where it was recorded; empty where nobody named it."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """What a value is: `scalar`, `vector`, `text` or `image`."""

    @property
    @abstractmethod
    def dtype(self) -> DType:
        """The dtype of one value; `"str"` for text."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of one value."""

    @property
    @abstractmethod
    def timestamps(self) -> Times:
        """The time of every record, in nanoseconds, as a read-only array."""

    @abstractmethod
    def value_at(self, row: int) -> T:
        """Give the value of the record at a position, which is one of this signal's."""

    @abstractmethod
    def values_at(self, rows: Rows, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Give the values of the records at `rows`, which are this signal's, in that order.

        Without `out` the array is a new one, or a read-only view; else it is `out`, filled.
        """

    @property
    def attrs(self) -> Mapping[str, Any]:
        """What was said about the signal: names of joints, a unit, camera intrinsics."""
        return _NO_ATTRS

    @property
    def clocks(self) -> tuple[str, ...]:
        """The names of further clocks that every record has a time of."""
        return ()

    def clock(self, name: str) -> Times:
        """Give the times of all records on a further clock, as a read-only array."""
        raise self._unknown_clock(name)

    def on(self, clock: str) -> "Signal[T]":
        """Give the same records with the times of a further clock."""
        return self.select(range(len(self)), self.clock(clock))

    @property
    def start_ts(self) -> int:
        """The time of the earliest record; a `ValueError` when there is none."""
        times, low, high, _ = self.time_axis()
        if low == high:
            raise self._empty()
        return times.item(low)

    @property
    def last_ts(self) -> int:
        """The time of the latest record; a `ValueError` when there is none."""
        times, low, high, _ = self.time_axis()
        if low == high:
            raise self._empty()
        return times.item(high - 1)

    @property
    def time(self) -> "SignalTime[T]":
        """Select by time; see `SignalTime`."""
        return SignalTime(self)

    def values(self) -> npt.NDArray[Any]:
        """Give all values in one read-only array, which is a view where that is possible."""
        return _read_only(self.values_at(range(len(self))))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:  # noqa: FBT001 - NumPy's
        """Give all values to NumPy, for which a signal is the array of them."""
        return np.array(self.values(), dtype=dtype, copy=copy)

    def resample(self, ts: Any, policy: "Policy | str" = "hold") -> "Signal[Any]":
        """Give the signal at the times `ts`, by a policy.

        `"hold"` takes the last value (as `time` does), `"linear"` interpolates,
        `relive.episodes.nearest(tolerance)` takes the nearest record, and
        `relive.episodes.slerp()` interpolates rotations.
        """
        from relive.model.resample import resample  # made of signals

        return resample(self, ts, policy)

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields `value` and `ts_ns`."""
        return {"value": Field(self.dtype, self.shape), "ts_ns": _TIME_NS}

    def gather(
        self,
        indices: Indices,
        fields: Sequence[str] | None = None,
        out: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> Batch:
        """Read the records at `indices` into one batch; see `Source.gather`."""
        rows = as_indices(indices, len(self))
        picked = pick_fields(self.fields, fields)
        given = check_out(out, picked, rows.shape)
        batch: Batch = {}
        for name, field in picked.items():
            target = given.get(name)
            if target is None:
                target = np.empty(rows.shape + field.shape, dtype=field.array_dtype)
            flat = target.reshape((rows.size, *field.shape))
            if name == "ts_ns":
                np.take(self.timestamps, rows.ravel(), out=flat, mode="clip")
            else:
                self.values_at(rows.ravel(), flat)
            batch[name] = target
        return batch

    @overload  # type: ignore[override]
    def __getitem__(self, key: Part) -> "Signal[T]": ...  # type: ignore[overload-overlap]

    @overload
    def __getitem__(self, key: SupportsIndex) -> tuple[T, int]: ...

    def __getitem__(self, key: Any) -> "tuple[T, int] | Signal[T]":
        """Give the record at a position, or a view for a slice or for positions in an array."""
        if type(key) is int:
            length = len(self)
            row = key + length if key < 0 else key
            if not 0 <= row < length:
                raise OutOfRangeError(f"record {key} is outside of the {length} there are")
            return self.record(row)
        rows = positions(key, len(self))
        return self.record(rows) if isinstance(rows, int) else self.select(rows)

    def record(self, row: int) -> tuple[T, int]:
        """Give the record at a position that is known to be one of this signal's."""
        return self.value_at(row), self.timestamps.item(row)

    def __iter__(self) -> Iterator[tuple[T, int]]:  # type: ignore[override]
        """Give every record in order; values are read in chunks, each of them once."""
        return zip(self.iterate(range(len(self))), _python(self.timestamps), strict=True)

    def __reversed__(self) -> Iterator[tuple[T, int]]:
        """Give every record, the last one first; values are read in chunks, each of them once."""
        rows = range(len(self) - 1, -1, -1)
        return zip(self.iterate(rows), _python(self.timestamps[::-1]), strict=True)

    def iterate(self, rows: Rows) -> Iterator[T]:
        """Give the values of the records at `rows`, one after the other, with little memory."""
        step = self._chunk()
        for start in range(0, len(rows), step):
            yield from _read_only(self.values_at(rows[start : start + step]))

    def __contains__(self, record: object) -> bool:
        """Whether there is a record `(value, ts_ns)`: that time, and all of that value."""
        return next(iter(self._places(record)), None) is not None

    def index(self, record: Any, start: int = 0, stop: int | None = None) -> int:
        """Give the first position of a record `(value, ts_ns)`; a `ValueError` where it is not."""
        inside = range(len(self))[start:stop]
        for row in self._places(record):
            if row in inside:
                return row
        raise InvalidError(f"{self!r} does not have that record")

    def count(self, record: Any) -> int:
        """Count the records that are `(value, ts_ns)`; sampling may have repeated one."""
        return sum(1 for _ in self._places(record))

    def __repr__(self) -> str:
        """Give the name, the kind and the number of records, on one line."""
        shape = f" {self.shape}" if self.shape else ""
        name = f"{self.name!r}, " if self.name else ""
        return f"{type(self).__name__}({name}{len(self)} records of {self.dtype}{shape})"

    def time_axis(self) -> Axis:
        """Give ordered times, the part `[low, high)` of them that is this signal's, and an order.

        The order is None where records are in the order of time, and record `i` of the signal
        then has the time `times[low + i]`; else it maps places in `times` to records.
        """
        stamps = self.timestamps
        return stamps, 0, len(stamps), None

    def no_value(self, ts: int) -> NoValueError:
        """Make the error for a time before the first record."""
        name = f"signal {self.name!r}" if self.name else "the signal"
        times, low, high, _ = self.time_axis()
        if low == high:
            return NoValueError(f"{name} has no value at {ts}: it has no records")
        return NoValueError(f"{name} has no value at {ts}: its first record is at {times[low]}")

    def select(self, rows: Rows, stamps: Times | None = None) -> "Signal[T]":
        """Give a view of the records at `rows`, which are this signal's, at times of their own."""
        return SignalView(self, rows, stamps)

    def _places(self, record: object) -> Iterator[int]:
        """Find the positions of a record; only values at its time are looked at."""
        if not isinstance(record, tuple) or len(record) != 2:  # noqa: PLR2004 - a pair
            return
        value, ts = record
        try:
            ts = as_time(ts)
        except (InvalidTypeError, MaskError):
            return
        times, low, high, order = self.time_axis()
        first, end = (find_time(times, bound, low, high) for bound in (ts - 1, ts))
        rows: Iterable[int] = range(first - low, end - low)
        if order is not None:
            rows = np.sort(order[first:end]).tolist()
        for row in rows:
            if _same(self.value_at(row), value):
                yield row

    def _chunk(self) -> int:
        size = Field(self.dtype, self.shape).nbytes or 64
        return max(1, min(_ITERATE_ROWS, _ITERATE_BYTES // max(1, size)))

    def _empty(self) -> InvalidError:
        name = f"signal {self.name!r}" if self.name else "the signal"
        return InvalidError(f"{name} has no records, so no first and no last")

    def _unknown_clock(self, name: object) -> UnknownNameError:
        there = ", ".join(map(repr, self.clocks)) or "none"
        return UnknownNameError(f"no clock {name!r} in {self!r}; there is {there}")


class SignalTime(Generic[T]):
    """Selects records of a signal by time, in nanoseconds.

    - `time[t]` is `(value, ts_of_record)` of the last record at or before `t`;
    - `time[a:b]` is a view of the records in `[a, b)`; an open end means to the end, and
      `time[...]` has all of them;
    - `time[a:b:step]` has a sample at `a`, `a + step` … below `b`, each `(value, t)`;
    - `time[[t1, t2]]` has a sample at each time given, in that order.

    A time before the first record is a `KeyError` that names the signal, and so is every time
    where there is no record.
    """

    __slots__ = ("_signal",)

    def __init__(self, signal: Signal[T]) -> None:
        self._signal = signal

    @overload
    def __getitem__(self, key: Part) -> Signal[T]: ...  # type: ignore[overload-overlap]

    @overload
    def __getitem__(self, key: SupportsIndex) -> tuple[T, int]: ...

    def __getitem__(self, key: Any) -> tuple[T, int] | Signal[T]:
        """Give the record at a time, or a signal for a window, steps or times in an array."""
        signal = self._signal
        if type(key) is int:
            times, low, high, order = signal.time_axis()
            place = find_time(times, key, low, high) - 1
            if place < low:
                raise signal.no_value(key)
            return signal.record(place - low if order is None else order.item(place))
        if isinstance(key, slice):
            return self._window(key) if key.step is None else self._steps(key)
        if key is Ellipsis:
            return self._window(slice(None))
        if isinstance(key, (list, tuple, range)) or np.ndim(key):
            times = as_times(key, signal.no_value)
            if times is key or not times.flags.owndata:  # which may change
                times = times.copy()
            times.flags.writeable = False
            return self.sample(times)
        return self[as_time(key)]

    def sample(self, times: Times) -> Signal[T]:
        """Give a signal with the last value at each of `times`, which nobody changes."""
        signal = self._signal
        axis, low, high, order = signal.time_axis()
        rows = last_places(axis[low:high], times)
        if len(rows) and int(rows.min()) < 0:
            raise signal.no_value(int(times[np.argmin(rows)]))
        if order is not None:
            rows = order[rows]
        return signal.select(rows, times)

    def _window(self, key: slice) -> Signal[T]:
        signal = self._signal
        times, low, high, order = signal.time_axis()
        first, end = low, high
        start, stop = key.start, key.stop
        if start is not None:
            first = find_time(times, as_time(start) - 1, low, high)
        if stop is not None:
            end = find_time(times, as_time(stop) - 1, first, high)
        if order is None:
            return signal.select(range(first - low, end - low))
        return signal.select(np.sort(order[first:end]))  # as they were in the signal

    def _steps(self, key: slice) -> Signal[T]:
        signal = self._signal
        step = as_time(key.step)
        if step <= 0:
            raise InvalidError(f"the step of a time slice is positive, not {step}")
        if key.start is None:
            raise InvalidError("a time slice with a step needs a start")
        start = as_time(key.start)
        stop = None if key.stop is None else as_time(key.stop)
        times, low, high, _ = signal.time_axis()
        if low == high:
            return signal.select(range(0))
        if stop is None:
            stop = times.item(high - 1) + 1
        if start >= stop:
            return signal.select(range(0))
        if start < times.item(low):
            raise signal.no_value(start)
        samples = grid(start, stop, step)
        samples.flags.writeable = False
        return self.sample(samples)

    def __repr__(self) -> str:
        """Give the signal that is selected from."""
        return f"{self._signal!r}.time"


class SignalView(Signal[T]):
    """Some records of a signal, in some order, with its times or with others.

    `rows` and `stamps` are nobody else's to change. Nothing is copied but these. A view of a
    view refers to the signal itself.
    """

    __slots__ = ("_axis", "_base", "_rows", "_stamps")

    def __init__(self, base: Signal[T], rows: Rows, stamps: Times | None = None) -> None:
        self._base = base
        self._rows = rows
        self._stamps = None if stamps is None else _frozen(stamps)
        self._axis: Axis | None = None

    @property
    def name(self) -> str:
        """The name of the signal that this is a view of."""
        return self._base.name

    @property
    def kind(self) -> str:
        """The kind of the signal that this is a view of."""
        return self._base.kind

    @property
    def dtype(self) -> DType:
        """The dtype of one value."""
        return self._base.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one value."""
        return self._base.shape

    @property
    def attrs(self) -> Mapping[str, Any]:
        """What was said about the signal that this is a view of."""
        return self._base.attrs

    @property
    def clocks(self) -> tuple[str, ...]:
        """The further clocks of the signal that this is a view of."""
        return self._base.clocks

    def clock(self, name: str) -> Times:
        """Give the times of these records on a further clock."""
        return _taken(self._base.clock(name), self._rows)

    @property
    def timestamps(self) -> Times:
        """The time of every record here."""
        if self._stamps is None:
            return _taken(self._base.timestamps, self._rows)
        return self._stamps

    def __len__(self) -> int:
        """Count the records."""
        return len(self._rows)

    def value_at(self, row: int) -> T:
        """Give the value of one record."""
        return self._base.value_at(int(self._rows[row]))

    def values_at(self, rows: Rows, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Give the values of records, read from the signal that this is a view of."""
        return self._base.values_at(compose(self._rows, rows), out)

    def values(self) -> npt.NDArray[Any]:
        """Give all values here in one read-only array."""
        values = self._base.values_at(self._rows)
        if values.flags.writeable:
            values.flags.writeable = False
        return values

    def iterate(self, rows: Rows) -> Iterator[T]:
        """Give values one after the other, as the signal that this is a view of gives them."""
        return self._base.iterate(compose(self._rows, rows))

    def record(self, row: int) -> tuple[T, int]:
        """Give the record at a position."""
        if self._stamps is None:
            return self._base.record(int(self._rows[row]))
        return self.value_at(row), self._stamps.item(row)

    def select(self, rows: Rows, stamps: Times | None = None) -> Signal[T]:
        """Give a view of the same signal, not of this view."""
        if stamps is None and self._stamps is not None:
            stamps = _taken(self._stamps, rows)
        return self._base.select(compose(self._rows, rows), stamps)

    def time_axis(self) -> Axis:
        """Give ordered times: those of the signal itself where this is a part of it as it is."""
        if self._axis is None:
            self._axis = self._make_axis()
        return self._axis

    def _make_axis(self) -> Axis:
        rows = self._rows
        if self._stamps is None and isinstance(rows, range) and rows.step == 1:
            times, low, _, order = self._base.time_axis()
            if order is None:
                return times, low + rows.start, low + rows.start + len(rows), None
        return ordered(self.timestamps)

    def __getstate__(self) -> tuple[Signal[T], Rows, Times | None]:
        """Pickle what the view is of; the signal itself pickles small."""
        return self._base, self._rows, self._stamps

    def __setstate__(self, state: tuple[Signal[T], Rows, Times | None]) -> None:
        """Become the view that was pickled."""
        self.__init__(*state)  # type: ignore[misc]


class ArraySignal(Signal[Any]):
    """A signal over arrays in memory, which it does not copy."""

    def __init__(
        self,
        values: npt.ArrayLike,
        timestamps: npt.ArrayLike,
        *,
        name: str = "",
        kind: str | None = None,
        attrs: Mapping[str, Any] | None = None,
        clocks: Mapping[str, Times] | None = None,
    ) -> None:
        array = np.asarray(values)
        if isinstance(values, np.ndarray) and array.dtype.kind in "OUT":
            array = array.astype(object)
        elif array.dtype.kind in "UT":
            array = np.array(values, dtype=object)  # which keeps what NumPy's own text strips
        text = array.dtype.kind == "O"
        if text and (array.ndim != 1 or not all(isinstance(item, str) for item in array)):
            raise InvalidTypeError("a signal of text holds one string per record")
        if array.dtype.kind not in "biufO":
            raise InvalidTypeError(f"a signal cannot hold values of {array.dtype}")
        stamps = as_times(timestamps)
        if array.ndim == 0 or len(array) != len(stamps):
            raise InvalidError(f"{array.shape[:1]} values do not fit {len(stamps)} timestamps")
        self._values = _frozen(array)
        self._stamps = _frozen(stamps)
        self._axis: Axis | None = None
        self._name = name
        self._kind = kind or ("text" if text else "vector" if array.ndim > 1 else "scalar")
        self._attrs = dict(attrs or {})
        self._clocks = {key: _frozen(as_times(times)) for key, times in (clocks or {}).items()}
        for key, times in self._clocks.items():
            if len(times) != len(stamps):
                raise InvalidError(
                    f"clock {key!r} has {len(times)} times for {len(stamps)} records"
                )

    @property
    def name(self) -> str:
        """What the signal was called."""
        return self._name

    @property
    def kind(self) -> str:
        """What a value is."""
        return self._kind

    @property
    def dtype(self) -> DType:
        """The dtype of one value."""
        return "str" if self._values.dtype.kind == "O" else self._values.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one value."""
        return self._values.shape[1:]

    @property
    def attrs(self) -> Mapping[str, Any]:
        """What was said about the signal."""
        return MappingProxyType(dict(copied(self._attrs)))

    @property
    def clocks(self) -> tuple[str, ...]:
        """The names of further clocks."""
        return tuple(self._clocks)

    def clock(self, name: str) -> Times:
        """Give the times of all records on a further clock."""
        if name not in self._clocks:
            raise self._unknown_clock(name)
        return self._clocks[name]

    @property
    def timestamps(self) -> Times:
        """The time of every record."""
        return self._stamps

    def __len__(self) -> int:
        """Count the records."""
        return len(self._stamps)

    def value_at(self, row: int) -> Any:
        """Give one value: a NumPy scalar, a read-only array or a string."""
        return self._values[row]

    def values_at(self, rows: Rows, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Give values: a view for a range, a copy for positions in an array."""
        return taken_into(self._values, rows, out)

    def time_axis(self) -> Axis:
        """Give the times in order."""
        if self._axis is None:
            self._axis = ordered(self._stamps)
        return self._axis

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what the signal was made of."""
        about: dict[str, Any] = {"name": self._name, "kind": self._kind}
        make = functools.partial(ArraySignal, **about, attrs=self._attrs, clocks=self._clocks)
        return make, (self._values, self._stamps)


def ordered(stamps: Times) -> Axis:
    """Give any times as a `time_axis`; records of one time stay in their order."""
    if bool((stamps[1:] >= stamps[:-1]).all()):
        return np.ascontiguousarray(stamps), 0, len(stamps), None
    order = np.argsort(stamps, kind="stable")
    return stamps[order], 0, len(stamps), order


def taken_into(
    values: npt.NDArray[Any], rows: Rows, out: npt.NDArray[Any] | None = None
) -> npt.NDArray[Any]:
    """Give the members of an array at `rows`: a view for a range, unless `out` is to be filled."""
    if isinstance(rows, range):
        stop = rows.stop if rows.stop >= 0 else None  # range(3, -1, -1) goes down to 0
        part = values[rows.start : stop : rows.step] if rows else values[:0]
        if out is None:
            return part
        out[...] = part
        return out
    if out is None:
        return values.take(rows, axis=0)
    # The rows are inside, and only this mode writes to `out` without a copy in between.
    return values.take(rows, axis=0, out=out, mode="clip")


def _taken(times: Times, rows: Rows) -> Times:
    return _frozen(taken_into(times, rows, None))


def _frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


def copied(value: Any) -> Any:
    """Give a value with dicts and lists of its own, at any depth; all else in it is shared."""
    if type(value) is dict:
        return {key: copied(item) if type(item) in _NESTED else item for key, item in value.items()}
    if type(value) is list:
        return [copied(item) if type(item) in _NESTED else item for item in value]
    return value


def _read_only(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if values.flags.writeable:
        values.flags.writeable = False
    return values


def _same(value: Any, other: Any) -> bool:
    if isinstance(value, str) or isinstance(other, (str, bytes)):
        return isinstance(value, str) and isinstance(other, str) and value == other
    return np.array_equal(value, other)


def _python(stamps: Times) -> Iterator[int]:
    for start in range(0, len(stamps), _ITERATE_ROWS):
        yield from stamps[start : start + _ITERATE_ROWS].tolist()
