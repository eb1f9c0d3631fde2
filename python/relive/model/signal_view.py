"""Signals made of other signals' records, and of arrays in memory."""

import functools
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from relive.errors import InvalidError, InvalidTypeError
from relive.model.copies import copied
from relive.model.indices import Rows
from relive.model.schema import DType
from relive.model.select import compose
from relive.model.signal import Axis, Signal
from relive.model.times import Times, as_times

__all__ = ["ArraySignal", "SignalView"]

T = TypeVar("T")


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
