"""`Signal`, the protocol of values over time, its views, and signals over arrays."""

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
from relive.model.clock import Times, as_time, as_times, grid, last_positions
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

T = TypeVar("T")
Axis: TypeAlias = tuple[Times, int, int, IndexArray | None]
"""Sorted times, the range of them in use, and how they map to records; see `time_axis`."""
Part: TypeAlias = slice | EllipsisType | Sequence[int] | npt.NDArray[Any]
"""What selects several records: a slice, `...`, or integers in a list or array."""

_NO_ATTRS: Final[Mapping[str, Any]] = MappingProxyType({})
_ITERATE_BYTES: Final = 4 << 20
_ITERATE_ROWS: Final = 1024
_TIME_NS: Final = Field(np.int64)
_NESTED: Final = frozenset({dict, list})


class Signal(Source, Sequence[tuple[T, int]]):
    """Records `(value, ts_ns)` of one name, sorted by time; a value holds until the next record.

    `signal[i]` is one record; a slice, or integers in a list or array, return a signal that is
    a view. `signal.time` selects by time. Nothing is read before it is asked for. A signal is
    also a `Source` with the fields `value` and `ts_ns`.

    A subclass implements `name`, `kind`, `dtype`, `shape`, `timestamps`, `value_at` and
    `values_at`; everything else follows from them.

    Example:
        >>> from relive.episodes import ArraySignal
        >>> signal = ArraySignal([0.0, 0.5, 1.0], [100, 200, 300], name="gripper")
        >>> signal.time[250]
        (np.float64(0.5), 200)
        >>> signal.time[100:300].values().tolist()
        [0.0, 0.5]
        >>> signal.resample([150, 250], "linear").values().tolist()
        [0.25, 0.75]
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The name under which the signal was recorded; empty if it has none."""

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
        """Return the value of the record at `row`, a valid position."""

    @abstractmethod
    def values_at(self, rows: Rows, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Return the values of the records at `rows`, which are valid positions, in that order.

        The result is `out`, filled, or without it a new array or a read-only view.
        """

    @property
    def attrs(self) -> Mapping[str, Any]:
        """The metadata of the signal: joint names, a unit, camera intrinsics."""
        return _NO_ATTRS

    @property
    def clocks(self) -> tuple[str, ...]:
        """The names of additional clocks on which every record has a time."""
        return ()

    def clock(self, name: str) -> Times:
        """Return the times of all records on an additional clock, as a read-only array."""
        raise self._unknown_clock(name)

    def on(self, clock: str) -> "Signal[T]":
        """Return the same records with the times of an additional clock."""
        return self.select(range(len(self)), self.clock(clock))

    @property
    def start_ts(self) -> int:
        """The time of the earliest record; raises a `ValueError` if there is none."""
        times, low, high, _ = self.time_axis()
        if low == high:
            raise self._empty()
        return times.item(low)

    @property
    def last_ts(self) -> int:
        """The time of the latest record; raises a `ValueError` if there is none."""
        times, low, high, _ = self.time_axis()
        if low == high:
            raise self._empty()
        return times.item(high - 1)

    @property
    def time(self) -> "SignalTime[T]":
        """Select by time; see `SignalTime`."""
        return SignalTime(self)

    def values(self) -> npt.NDArray[Any]:
        """Return all values in one read-only array, a view where possible."""
        return read_only(self.values_at(range(len(self))))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:  # noqa: FBT001 - NumPy's
        """Return all values, so that NumPy functions accept a signal."""
        return np.array(self.values(), dtype=dtype, copy=copy)

    def resample(self, ts: Any, policy: "Policy | str" = "hold") -> "Signal[Any]":
        """Return the signal at the times `ts`, by a policy.

        `"hold"` takes the last value (as `time` does), `"linear"` interpolates,
        `relive.episodes.nearest(tolerance)` takes the nearest record, and
        `relive.episodes.slerp()` interpolates rotations.
        """
        from relive.model.resample import resample  # it imports this module

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
        """Return the record at a position, or a view for a slice or several positions."""
        if type(key) is int:
            length = len(self)
            row = key + length if key < 0 else key
            if not 0 <= row < length:
                raise OutOfRangeError(f"index {key} is out of range for {length} records")
            return self.record(row)
        rows = positions(key, len(self))
        return self.record(rows) if isinstance(rows, int) else self.select(rows)

    def record(self, row: int) -> tuple[T, int]:
        """Return the record at `row`, a valid position."""
        return self.value_at(row), self.timestamps.item(row)

    def __iter__(self) -> Iterator[tuple[T, int]]:  # type: ignore[override]
        """Iterate over all records; values are read in batches, each of them once."""
        return zip(self.iterate(range(len(self))), _python(self.timestamps), strict=True)

    def __reversed__(self) -> Iterator[tuple[T, int]]:
        """Iterate over all records from the last; values are read in batches, each of them once."""
        rows = range(len(self) - 1, -1, -1)
        return zip(self.iterate(rows), _python(self.timestamps[::-1]), strict=True)

    def iterate(self, rows: Rows) -> Iterator[T]:
        """Iterate over the values of the records at `rows`, with little memory."""
        step = self._batch_rows()
        for start in range(0, len(rows), step):
            yield from read_only(self.values_at(rows[start : start + step]))

    def __contains__(self, record: object) -> bool:
        """Check whether there is a record `(value, ts_ns)`."""
        return next(iter(self._find(record)), None) is not None

    def index(self, record: Any, start: int = 0, stop: int | None = None) -> int:
        """Return the first position of a record `(value, ts_ns)`, or raise a `ValueError`."""
        inside = range(len(self))[start:stop]
        for row in self._find(record):
            if row in inside:
                return row
        raise InvalidError(f"the record is not in {self!r}")

    def count(self, record: Any) -> int:
        """Count the records equal to `(value, ts_ns)`; sampling may repeat one."""
        return sum(1 for _ in self._find(record))

    def __repr__(self) -> str:
        """Return the name, the number of records and their type, on one line."""
        shape = f" {self.shape}" if self.shape else ""
        name = f"{self.name!r}, " if self.name else ""
        return f"{type(self).__name__}({name}{len(self)} records of {self.dtype}{shape})"

    def time_axis(self) -> Axis:
        """Return sorted times, the range `[low, high)` of them that is this signal's, and an order.

        The order is None if the records are sorted by time: record `i` then has the time
        `times[low + i]`. Otherwise it maps positions in `times` to records.
        """
        stamps = self.timestamps
        return stamps, 0, len(stamps), None

    @property
    def label(self) -> str:
        """The name of the signal in error messages."""
        return f"signal {self.name!r}" if self.name else "the signal"

    def no_value(self, ts: int) -> NoValueError:
        """Return the error for a time before the first record."""
        times, low, high, _ = self.time_axis()
        if low == high:
            return NoValueError(f"{self.label} has no value at {ts}: it has no records")
        return NoValueError(
            f"{self.label} has no value at {ts}: its first record is at {times[low]}"
        )

    def select(self, rows: Rows, stamps: Times | None = None) -> "Signal[T]":
        """Return a view of the records at `rows`, valid positions, with other times if given."""
        return SignalView(self, rows, stamps)

    def _find(self, record: object) -> Iterator[int]:
        """Iterate over the positions of a record; only values at its time are read."""
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

    def _batch_rows(self) -> int:
        size = Field(self.dtype, self.shape).nbytes or 64
        return max(1, min(_ITERATE_ROWS, _ITERATE_BYTES // max(1, size)))

    def _empty(self) -> InvalidError:
        return InvalidError(f"{self.label} has no records, so it has no first or last time")

    def _unknown_clock(self, name: object) -> UnknownNameError:
        there = ", ".join(map(repr, self.clocks)) or "none"
        return UnknownNameError(f"{self.label} has no clock {name!r}; its clocks are {there}")


class SignalTime(Generic[T]):
    """Selects records of a signal by time, in nanoseconds.

    - `time[t]` is `(value, ts_of_record)` of the last record at or before `t`;
    - `time[a:b]` is a view of the records in `[a, b)`; `time[...]` has all of them;
    - `time[a:b:step]` has a sample at `a`, `a + step` … below `b`, each `(value, t)`;
    - `time[[t1, t2]]` has a sample at each time given, in that order.

    A time before the first record raises a `KeyError` that names the signal.
    """

    __slots__ = ("_signal",)

    def __init__(self, signal: Signal[T]) -> None:
        self._signal = signal

    @overload
    def __getitem__(self, key: Part) -> Signal[T]: ...  # type: ignore[overload-overlap]

    @overload
    def __getitem__(self, key: SupportsIndex) -> tuple[T, int]: ...

    def __getitem__(self, key: Any) -> tuple[T, int] | Signal[T]:
        """Return the record at a time, or a signal for a window, steps or several times."""
        signal = self._signal
        if type(key) is int:
            times, low, high, order = signal.time_axis()
            found = find_time(times, key, low, high) - 1
            if found < low:
                raise signal.no_value(key)
            return signal.record(found - low if order is None else order.item(found))
        if isinstance(key, slice):
            return self._window(key) if key.step is None else self._steps(key)
        if key is Ellipsis:
            return self._window(slice(None))
        if isinstance(key, (list, tuple, range)) or np.ndim(key):
            times = as_times(key, signal.no_value)
            if times is key or not times.flags.owndata:  # the caller may change it
                times = times.copy()
            times.flags.writeable = False
            return self.sample(times)
        return self[as_time(key)]

    def sample(self, times: Times) -> Signal[T]:
        """Return a signal with the last value at each of `times`, an array that does not change."""
        signal = self._signal
        axis, low, high, order = signal.time_axis()
        rows = last_positions(axis[low:high], times)
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
        return signal.select(np.sort(order[first:end]))  # in the order of the signal

    def _steps(self, key: slice) -> Signal[T]:
        signal = self._signal
        step = as_time(key.step)
        if step <= 0:
            raise InvalidError(f"the step of a time slice must be positive, got {step}")
        if key.start is None:
            raise InvalidError(
                "a time slice with a step needs a start", hint="time[start:stop:step]"
            )
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
        """Return the signal and `.time`, on one line."""
        return f"{self._signal!r}.time"


class WrappedSignal(Signal[T]):
    """A signal made of another one, `base`, which provides all that is not overridden."""

    __slots__ = ()

    @property
    @abstractmethod
    def base(self) -> Signal[Any]:
        """The signal that this one is made of."""

    @property
    def name(self) -> str:
        """The name of the signal."""
        return self.base.name

    @property
    def kind(self) -> str:
        """What a value is: `scalar`, `vector`, `text` or `image`."""
        return self.base.kind

    @property
    def dtype(self) -> DType:
        """The dtype of one value."""
        return self.base.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one value."""
        return self.base.shape

    @property
    def attrs(self) -> Mapping[str, Any]:
        """The metadata of the signal."""
        return self.base.attrs

    @property
    def clocks(self) -> tuple[str, ...]:
        """The names of additional clocks."""
        return self.base.clocks

    def clock(self, name: str) -> Times:
        """Return the times of all records on an additional clock."""
        return self.base.clock(name)

    @property
    def start_ts(self) -> int:
        """The time of the earliest record."""
        return self.base.start_ts

    @property
    def last_ts(self) -> int:
        """The time of the latest record."""
        return self.base.last_ts

    @property
    def timestamps(self) -> Times:
        """The time of every record."""
        return self.base.timestamps

    def time_axis(self) -> Axis:
        """Return sorted times; see `Signal.time_axis`."""
        return self.base.time_axis()

    def __len__(self) -> int:
        """Count the records."""
        return len(self.base)

    def value_at(self, row: int) -> T:
        """Return the value of one record."""
        value: T = self.base.value_at(row)
        return value

    def values_at(self, rows: Rows, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Return the values of records."""
        return self.base.values_at(rows, out)

    def iterate(self, rows: Rows) -> Iterator[T]:
        """Iterate over the values of records."""
        return self.base.iterate(rows)


class SignalView(WrappedSignal[T]):
    """Some records of a signal, in any order, with its times or with others.

    The caller must not change `rows` and `stamps` afterwards. A view of a view refers to the
    signal itself.
    """

    __slots__ = ("_axis", "_base", "_rows", "_stamps")

    def __init__(self, base: Signal[T], rows: Rows, stamps: Times | None = None) -> None:
        self._base = base
        self._rows = rows
        self._stamps = None if stamps is None else _frozen(stamps)
        self._axis: Axis | None = None

    start_ts = Signal.start_ts
    last_ts = Signal.last_ts

    @property
    def base(self) -> Signal[T]:
        """The signal that this is a view of."""
        return self._base

    @property
    def rows(self) -> Rows:
        """The position of each record in the signal that this is a view of."""
        return self._rows

    def clock(self, name: str) -> Times:
        """Return the times of these records on an additional clock."""
        return _taken(self._base.clock(name), self._rows)

    @property
    def timestamps(self) -> Times:
        """The time of every record."""
        if self._stamps is None:
            return _taken(self._base.timestamps, self._rows)
        return self._stamps

    def __len__(self) -> int:
        """Count the records."""
        return len(self._rows)

    def value_at(self, row: int) -> T:
        """Return the value of one record."""
        return self._base.value_at(int(self._rows[row]))

    def values_at(self, rows: Rows, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Return the values of records."""
        return self._base.values_at(compose(self._rows, rows), out)

    def values(self) -> npt.NDArray[Any]:
        """Return all values in one read-only array."""
        return read_only(self._base.values_at(self._rows))

    def iterate(self, rows: Rows) -> Iterator[T]:
        """Iterate over the values of records."""
        return self._base.iterate(compose(self._rows, rows))

    def record(self, row: int) -> tuple[T, int]:
        """Return the record at a valid position."""
        if self._stamps is None:
            return self._base.record(int(self._rows[row]))
        return self.value_at(row), self._stamps.item(row)

    def select(self, rows: Rows, stamps: Times | None = None) -> Signal[T]:
        """Return a view of the same signal, not of this view."""
        if stamps is None and self._stamps is not None:
            stamps = _taken(self._stamps, rows)
        return self._base.select(compose(self._rows, rows), stamps)

    def time_axis(self) -> Axis:
        """Return sorted times: those of the signal itself where the view is a contiguous range."""
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
        """Pickle the signal and the selection."""
        return self._base, self._rows, self._stamps

    def __setstate__(self, state: tuple[Signal[T], Rows, Times | None]) -> None:
        """Restore the view."""
        self.__init__(*state)  # type: ignore[misc]


class ArraySignal(Signal[Any]):
    """A signal over arrays in memory, which it does not copy.

    Args:
        values: One value per record along the first axis: numbers, booleans or strings.
        timestamps: The time of every record, in nanoseconds.
        name: The name of the signal.
        kind: `scalar`, `vector`, `text` or `image`; by default one of the first three.
        attrs: Metadata, such as joint names or a unit.
        clocks: The times of every record on additional clocks, by the clock's name.

    Example:
        >>> import numpy as np
        >>> joints = ArraySignal(np.zeros((3, 7)), [0, 10, 20], name="joints")
        >>> joints
        ArraySignal('joints', 3 records of float64 (7,))
        >>> len(joints.time[10:])
        2
    """

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
            array = np.array(values, dtype=object)  # NumPy's own strings lose trailing NULs
        text = array.dtype.kind == "O"
        if text and (array.ndim != 1 or not all(isinstance(item, str) for item in array)):
            raise InvalidTypeError(f"a text signal must have one string per record, got {values!r}")
        if array.dtype.kind not in "biufO":
            raise InvalidTypeError(f"a signal cannot hold values of the dtype {array.dtype}")
        stamps = as_times(timestamps)
        if array.ndim == 0 or len(array) != len(stamps):
            given = f"{len(array)} values" if array.ndim else "a single value"
            raise InvalidError(
                f"`values` must have one value for each of {len(stamps)} timestamps, got {given}"
            )
        self._values = _frozen(array)
        self._stamps = _frozen(stamps)
        self._axis: Axis | None = None
        self._name = name
        self._kind = kind or ("text" if text else "vector" if array.ndim > 1 else "scalar")
        self._attrs = dict(attrs or {})
        self._clocks = {key: _frozen(as_times(times)) for key, times in (clocks or {}).items()}
        for key, times in self._clocks.items():
            if len(times) != len(stamps):
                raise InvalidError(f"clock {key!r} has length {len(times)}, expected {len(stamps)}")

    @property
    def name(self) -> str:
        """The name of the signal."""
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
        """The metadata of the signal."""
        return MappingProxyType(dict(copied(self._attrs)))

    @property
    def clocks(self) -> tuple[str, ...]:
        """The names of additional clocks."""
        return tuple(self._clocks)

    def clock(self, name: str) -> Times:
        """Return the times of all records on an additional clock."""
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
        """Return one value: a NumPy scalar, a read-only array or a string."""
        return self._values[row]

    def values_at(self, rows: Rows, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Return values: a view for a range, a copy for positions in an array."""
        return taken_into(self._values, rows, out)

    def time_axis(self) -> Axis:
        """Return sorted times; see `Signal.time_axis`."""
        if self._axis is None:
            self._axis = ordered(self._stamps)
        return self._axis

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments of the constructor."""
        about: dict[str, Any] = {"name": self._name, "kind": self._kind}
        make = functools.partial(ArraySignal, **about, attrs=self._attrs, clocks=self._clocks)
        return make, (self._values, self._stamps)


def ordered(stamps: Times) -> Axis:
    """Return times in any order as a `time_axis`; records of equal times keep their order."""
    if bool((stamps[1:] >= stamps[:-1]).all()):
        return np.ascontiguousarray(stamps), 0, len(stamps), None
    order = np.argsort(stamps, kind="stable")
    return stamps[order], 0, len(stamps), order


def taken_into(
    values: npt.NDArray[Any], rows: Rows, out: npt.NDArray[Any] | None = None
) -> npt.NDArray[Any]:
    """Return the members of an array at `rows`: `out`, filled; else a view for a range."""
    if isinstance(rows, range):
        stop = rows.stop if rows.stop >= 0 else None  # range(3, -1, -1) goes down to 0
        part = values[rows.start : stop : rows.step] if rows else values[:0]
        if out is None:
            return part
        out[...] = part
        return out
    if out is None:
        return values.take(rows, axis=0)
    # The rows are valid, and only this mode writes to `out` without an intermediate copy.
    return values.take(rows, axis=0, out=out, mode="clip")


def _taken(times: Times, rows: Rows) -> Times:
    return _frozen(taken_into(times, rows, None))


def _frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


def copied(value: Any) -> Any:
    """Copy the dicts and lists of a JSON value, at any depth; everything else is shared."""
    if type(value) is dict:
        return {key: copied(item) if type(item) in _NESTED else item for key, item in value.items()}
    if type(value) is list:
        return [copied(item) if type(item) in _NESTED else item for item in value]
    return value


def read_only(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Make an array that has no other owner read-only."""
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
