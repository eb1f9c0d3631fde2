"""Signals whose values are those of neighbouring records or times."""

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any, Final, Literal, SupportsIndex, get_args

import numpy as np
import numpy.typing as npt

from relive._arguments import as_int, check_choice
from relive.episodes.transforms.values import MappedSignal, ValueFunction, record_bytes
from relive.episodes.transforms.wrapped import TransformedSignal, check_signal, kind_of
from relive.errors import InvalidError, InvalidTypeError
from relive.model.clock import INT64_MAX, INT64_MIN, Times
from relive.model.resample import Policy, policy_of
from relive.model.schema import DType
from relive.model.signal import Signal, read_only, taken_into
from relive.model.source import IndexArray, Rows

Edges = Literal["repeat", "drop"]
"""What happens without a neighbour: the end is repeated, or the record is dropped."""

Offsets = SupportsIndex | Sequence[int] | npt.NDArray[Any]
"""One integer, or several in a list or array."""

_CHUNK_BYTES: Final = 64 << 20
_CHUNK_ROWS: Final = 1024
_SECOND: Final = 1_000_000_000


def index_offsets(signal: Signal[Any], offsets: Offsets, *, edges: Edges = "repeat") -> Signal[Any]:
    """Return for every record the values of its neighbours: -1 is the previous one, 1 the next.

    Several offsets make a new first axis; a single number does not. Without such a neighbour,
    `edges="repeat"` takes the first or the last record, and `"drop"` drops the record.
    Neighbours are those in `signal`, even if only a window of the result is read.

    Example:
        >>> from relive.episodes import ArraySignal
        >>> index_offsets(ArraySignal([1, 2, 3], [0, 10, 20]), [-1, 0]).values().tolist()
        [[1, 1], [1, 2], [2, 3]]
    """
    numbers, is_single = _integers(offsets)
    return IndexOffsets(signal, numbers, is_single=is_single, edges=edges)


def time_offsets(
    signal: Signal[Any],
    offsets_ns: Offsets,
    *,
    policy: Policy | str = "hold",
    edges: Edges = "repeat",
) -> Signal[Any]:
    """Return for every record, at its time `t`, the values of the signal at `t + offset`.

    Several offsets make a new first axis; a single number does not. The policy is one of
    `Signal.resample`. If `t + offset` is before the first or after the last record,
    `edges="repeat"` takes that record, and `"drop"` drops the record at `t`.

    Example:
        >>> from relive.episodes import ArraySignal
        >>> time_offsets(ArraySignal([1, 2, 3], [0, 10, 20]), 15, edges="drop").values().tolist()
        [2]
    """
    numbers, is_single = _integers(offsets_ns)
    return TimeOffsets(signal, numbers, policy_of(policy), is_single=is_single, edges=edges)


def rate(signal: Signal[Any], over_ns: int) -> Signal[Any]:
    """Return the change of numbers per second, over a window of `over_ns` around each record.

    Values at the ends of the window are interpolated. Records whose window extends beyond the
    signal are dropped. A window of several records suppresses noise.

    Example:
        >>> from relive.episodes import ArraySignal
        >>> position = ArraySignal([0.0, 1.0, 2.0], [0, 500_000_000, 1_000_000_000])
        >>> rate(position, 500_000_000).values().tolist()
        [2.0]
    """
    over = as_int("over_ns", over_ns, at_least=1)
    ends = time_offsets(signal, [-(over // 2), over - over // 2], policy="linear", edges="drop")
    attrs = dict(signal.attrs)
    if isinstance(attrs.get("unit"), str):
        attrs["unit"] += "/s"
    slope = partial(_slope, over)
    made = ValueFunction(slope, dtype=ends.dtype, shape=ends.shape[1:], trusted=True)
    return MappedSignal((ends,), made, attrs)


class _Offsets(TransformedSignal):
    """Every record with the values of neighbours in one signal."""

    iterate = Signal.iterate

    def __init__(
        self,
        source: Signal[Any],
        offsets: tuple[int, ...],
        *,
        is_single: bool,
        edges: Edges,
    ) -> None:
        check_choice("edges", edges, get_args(Edges))
        self._source = check_signal(source)
        self._offsets = offsets
        self._is_single = is_single
        self._repeat = edges == "repeat"

    @cached_property
    def base(self) -> Signal[Any]:
        """All records of the source, or those that have all their neighbours."""
        return self._source if self._repeat else self._source.select(self._whole())

    @abstractmethod
    def _whole(self) -> Rows:
        """Return the records of the source that have all their neighbours."""

    @abstractmethod
    def _flat(self, rows: Rows, out: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
        """Return the values of the neighbours of all `rows`, one after the other."""

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
        """The shape of one value: the number of offsets, and the shape of the source."""
        inner = self._source.shape
        return inner if self._is_single else (len(self._offsets), *inner)

    def value_at(self, row: int) -> Any:
        """Return the value of one record, read-only."""
        return read_only(self.values_at(range(row, row + 1)))[0]

    def values_at(self, rows: Rows, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Return values; those of all neighbours are read at once."""
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
        # Neighbours overlap, so larger batches read each record fewer times.
        return max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // record_bytes(self)))

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the source and the offsets, not the selection."""
        return {key: value for key, value in self.__dict__.items() if key != "base"}


class IndexOffsets(_Offsets):
    """Every record with its neighbours."""

    def _whole(self) -> range:
        first = max(0, -min(self._offsets))
        stop = len(self._source) - max(0, *self._offsets)
        return range(first, stop) if first < stop else range(0)

    def _flat(self, rows: Rows, out: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
        length = len(self._source)
        first = 0 if self._repeat else max(0, -min(self._offsets))
        # An offset of the length of the signal is beyond its ends, and keeps sums in 64 bits.
        offsets = [max(-length, min(length, offset)) for offset in self._offsets]
        if isinstance(rows, range):
            rows = np.arange(rows.start, rows.stop, rows.step, dtype=np.int64)
        neighbours = rows[:, None] + (np.array(offsets, dtype=np.int64) + first)
        np.clip(neighbours, 0, max(0, length - 1), out=neighbours)
        return self._source.values_at(neighbours.ravel(), out)


class TimeOffsets(_Offsets):
    """Every record with the values at offsets in time."""

    def __init__(
        self,
        source: Signal[Any],
        offsets: tuple[int, ...],
        policy: Policy,
        *,
        is_single: bool,
        edges: Edges,
    ) -> None:
        super().__init__(source, offsets, is_single=is_single, edges=edges)
        self._policy = policy

    @property
    def dtype(self) -> DType:
        """The dtype of one value, as the policy computes it."""
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
        at = taken_into(self.base.timestamps, rows)
        times = np.stack([_moved(at, offset) for offset in self._offsets], axis=1).ravel()
        if len(times):
            times = np.clip(times, *self._ends())
        return self._policy.sample(self._source, times).values_at(range(len(times)), out)


def _slope(over_ns: int, ends: npt.NDArray[Any]) -> npt.NDArray[Any]:
    ends = ends.astype(np.float64, copy=False)
    change: npt.NDArray[Any] = (ends[:, 1] - ends[:, 0]) * (_SECOND / over_ns)
    return change


def _moved(times: Times, offset: int) -> Times:
    """Add an offset to times, limited to 64 bits."""
    if offset >= 0:
        return np.minimum(times, INT64_MAX - offset) + offset
    return np.maximum(times, INT64_MIN - offset) + offset


def _integers(offsets: Any) -> tuple[tuple[int, ...], bool]:
    is_single = hasattr(offsets, "__index__") and np.ndim(offsets) == 0
    numbers = [offsets] if is_single else offsets
    if isinstance(numbers, str) or not isinstance(numbers, (Sequence, np.ndarray)):
        raise InvalidTypeError(f"`offsets` must be integers, got {offsets!r}")
    if not len(numbers):
        raise InvalidError("`offsets` must not be empty")
    return tuple(as_int("offsets", number, at_least=INT64_MIN) for number in numbers), is_single
