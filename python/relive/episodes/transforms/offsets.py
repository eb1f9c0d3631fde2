"""Signals of neighbours: what came before and comes after each record."""

import operator
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Literal, SupportsIndex, get_args

import numpy as np
import numpy.typing as npt

from relive.episodes.transforms.function import Function
from relive.episodes.transforms.values import MappedSignal, record_bytes
from relive.episodes.transforms.wrapped import WrappedSignal, check_signal, kind_of
from relive.errors import InvalidError, InvalidTypeError
from relive.model.clock import INT64_MAX, INT64_MIN, Times, as_time
from relive.model.resample import Policy, policy_of
from relive.model.schema import DType
from relive.model.signal import Signal, taken_into
from relive.model.source import IndexArray, Rows

__all__ = ["Edges", "Offsets", "index_offsets", "rate", "time_offsets"]

Edges = Literal["repeat", "drop"]
"""What happens where there is no neighbour: the end stands in, or the record is left out."""

Offsets = SupportsIndex | Sequence[int] | npt.NDArray[Any]
"""One integer, or several in a list or array."""

_CHUNK_BYTES: Final = 64 << 20
_CHUNK_ROWS: Final = 1024
_SECOND: Final = 1_000_000_000


def index_offsets(signal: Signal[Any], offsets: Offsets, *, edges: Edges = "repeat") -> Signal[Any]:
    """Give with every record the values of its neighbours: -1 is the one before, 1 the one after.

    Several offsets make a new first axis; a single number does not. Where there is no such
    record, `edges="repeat"` takes the first or the last one, and `"drop"` leaves the record out.
    Neighbours are those in `signal`, also when only a window of the result is read.
    """
    return IndexOffsets(check_signal(signal), *_offsets(offsets), _repeats(edges))


def time_offsets(
    signal: Signal[Any],
    offsets_ns: Offsets,
    *,
    policy: Policy | str = "hold",
    edges: Edges = "repeat",
) -> Signal[Any]:
    """Give with every record, at its time `t`, the values of the signal at `t + offset`.

    Several offsets make a new first axis; a single number does not. The policy is one of
    `Signal.resample`. Where `t + offset` is outside of the records, `edges="repeat"` takes the
    first or the last one, and `"drop"` leaves the record at `t` out.
    """
    chosen = policy_of(policy)
    return TimeOffsets(check_signal(signal), *_offsets(offsets_ns), _repeats(edges), chosen)


def rate(signal: Signal[Any], over_ns: int) -> Signal[Any]:
    """Give the change of numbers per second, over a window of `over_ns` around each record.

    Values at the ends of the window are interpolated; records whose window reaches beyond the
    signal are left out. Give windows of several records: a shorter one shows the noise.
    """
    over = as_time(over_ns)
    if over <= 0:
        raise InvalidError(f"a window of {over} ns has no length")
    ends = time_offsets(signal, [-(over // 2), over - over // 2], policy="linear", edges="drop")
    attrs = dict(signal.attrs)
    if isinstance(attrs.get("unit"), str):
        attrs["unit"] += "/s"
    slope = Function(_Slope(over), dtype=ends.dtype, shape=ends.shape[1:], trusted=True)
    return MappedSignal((ends,), slope, attrs)


class _Offsets(WrappedSignal):
    """Values of one signal, stacked."""

    def __init__(
        self,
        source: Signal[Any],
        offsets: tuple[int, ...],
        single: bool,  # noqa: FBT001 - made by the functions above
        repeat: bool,  # noqa: FBT001
    ) -> None:
        self._source = source
        self._offsets = offsets
        self._single = single
        self._repeat = repeat

    @cached_property
    def frame(self) -> Signal[Any]:
        """The records of the source that have all their neighbours, or all of them."""
        return self._source if self._repeat else self._source.select(self._whole())

    @abstractmethod
    def _whole(self) -> Rows:
        """Give the records of the source that have all their neighbours."""

    @abstractmethod
    def _flat(self, rows: Rows, out: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
        """Give the values of the neighbours of all `rows`, one after the other."""

    @property
    def name(self) -> str:
        """The name of the source."""
        return self._source.name

    @property
    def attrs(self) -> Mapping[str, Any]:
        """What was said about the source."""
        return self._source.attrs

    @property
    def kind(self) -> str:
        """What a value is."""
        return kind_of(self.dtype, self.shape)

    @property
    def dtype(self) -> DType:
        """The dtype of one value."""
        return self._source.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one value: the number of offsets, and that of the source."""
        inner = self._source.shape
        return inner if self._single else (len(self._offsets), *inner)

    def values_at(self, rows: Rows, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Give values; those of all neighbours are read at once."""
        count = len(rows) * len(self._offsets)
        inner = self._source.shape
        if out is not None and out.flags.c_contiguous:
            self._flat(rows, out.reshape((count, *inner)))
            return out
        values = self._flat(rows, None).reshape((len(rows), *self.shape))
        if out is None:
            return values
        out[...] = values
        return out

    def _batch_rows(self) -> int:
        # Neighbours overlap, so many records at once read each of them fewer times.
        return max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // record_bytes(self)))

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the source and the offsets, not what was made of them."""
        return {key: value for key, value in self.__dict__.items() if key != "frame"}


class IndexOffsets(_Offsets):
    """Every record with its neighbours."""

    def _whole(self) -> range:
        first = max(0, -min(self._offsets))
        stop = len(self._source) - max(0, *self._offsets)
        return range(first, stop) if first < stop else range(0)

    def _flat(self, rows: Rows, out: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
        length = len(self._source)
        first = 0 if self._repeat else max(0, -min(self._offsets))
        # Further than its length is beyond a signal on either side, and within 64 bits.
        offsets = [max(-length, min(length, offset)) for offset in self._offsets]
        if isinstance(rows, range):
            rows = np.arange(rows.start, rows.stop, rows.step, dtype=np.int64)
        places = rows[:, None] + (np.array(offsets, dtype=np.int64) + first)
        np.clip(places, 0, max(0, length - 1), out=places)
        return self._source.values_at(places.ravel(), out)


class TimeOffsets(_Offsets):
    """Every record with the values at distances in time."""

    def __init__(
        self,
        source: Signal[Any],
        offsets: tuple[int, ...],
        single: bool,  # noqa: FBT001 - made by the functions above
        repeat: bool,  # noqa: FBT001
        policy: Policy,
    ) -> None:
        super().__init__(source, offsets, single, repeat)
        self._policy = policy

    @property
    def dtype(self) -> DType:
        """The dtype of one value, as the policy makes it."""
        return self._policy.sample(self._source, np.empty(0, dtype=np.int64)).dtype

    def _ends(self) -> tuple[int, int]:
        times, low, high, _ = self._source.time_axis()
        return times.item(low), times.item(high - 1)

    def _whole(self) -> Rows:
        if not len(self._source):
            return range(0)
        first, last = self._ends()
        low, high = first - min(0, *self._offsets), last - max(0, *self._offsets)
        stamps = self._source.timestamps
        kept: IndexArray = np.flatnonzero((stamps >= low) & (stamps <= high))
        if len(kept) and kept[-1] - kept[0] + 1 == len(kept):
            return range(int(kept[0]), int(kept[-1]) + 1)
        return kept

    def _flat(self, rows: Rows, out: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
        stamps = self.frame.timestamps
        at = taken_into(stamps, rows, None)
        times = np.stack([_moved(at, offset) for offset in self._offsets], axis=1).ravel()
        if len(times):
            times = np.clip(times, *self._ends())
        return self._policy.sample(self._source, times).values_at(range(len(times)), out)


class _Slope:
    def __init__(self, over_ns: int) -> None:
        self._over = over_ns

    def __call__(self, ends: npt.NDArray[Any]) -> npt.NDArray[Any]:
        ends = ends.astype(np.float64, copy=False)
        change: npt.NDArray[Any] = (ends[:, 1] - ends[:, 0]) * (_SECOND / self._over)
        return change


def _moved(times: Times, offset: int) -> Times:
    """Add to times, and stop at the ends of 64 bits."""
    if offset >= 0:
        return np.minimum(times, INT64_MAX - offset) + offset
    return np.maximum(times, INT64_MIN - offset) + offset


def _offsets(offsets: Any) -> tuple[tuple[int, ...], bool]:
    if hasattr(offsets, "__index__") and np.ndim(offsets) == 0:
        return (_bounded(offsets),), True
    if isinstance(offsets, str) or not isinstance(offsets, (Sequence, np.ndarray)):
        raise InvalidTypeError(f"offsets are integers, not {offsets!r}")
    if not len(offsets):
        raise InvalidError("there are no offsets")
    return tuple(map(_bounded, offsets)), False


def _bounded(offset: Any) -> int:
    try:
        number = operator.index(offset)
    except TypeError:
        number = None
    if number is None or isinstance(offset, (bool, np.bool_)):
        raise InvalidTypeError(f"an offset is an integer, not {offset!r}")
    if not INT64_MIN <= number <= INT64_MAX:
        raise InvalidError(f"the offset {number} is beyond 64 bits")
    return number


def _repeats(edges: Any) -> bool:
    if edges not in get_args(Edges):
        raise InvalidError(f"edges are repeated or dropped, not {edges!r}", hint="repeat or drop")
    return bool(edges == "repeat")
