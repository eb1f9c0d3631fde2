"""Several signals combined into one, on one time axis."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from relive.episodes.transforms.values import MappedSignal, ValueFunction
from relive.episodes.transforms.wrapped import check_signal
from relive.errors import InvalidError, InvalidTypeError
from relive.model.clock import Times
from relive.model.schema import DType, Field
from relive.model.signal import Signal, read_only


def join(
    *signals: Signal[Any] | Mapping[str, Signal[Any]],
    at: Signal[Any] | None = None,
    dtype: npt.DTypeLike | None = None,
) -> Signal[Any]:
    """Concatenate the vectors and scalars of several signals into one vector.

    Args:
        signals: The signals, or one dict of them by the names to use in `attrs["names"]`,
            which name the components of the result.
        at: The signal at whose times the result has records; by default there is a record at
            every time of any signal. Records start when all signals have a value, and a value
            holds until the next record of its signal.
        dtype: The dtype of the result; by default the common one.

    Example:
        >>> from relive.episodes import ArraySignal
        >>> arm = ArraySignal([[1.0, 2.0], [3.0, 4.0]], [0, 20], name="arm")
        >>> grip = ArraySignal([0.0, 9.0], [0, 10], name="grip")
        >>> state = join(arm, grip)
        >>> state.timestamps.tolist(), state.values()[1].tolist()
        ([0, 10, 20], [1.0, 2.0, 9.0])
        >>> state.attrs["names"]
        ['arm.0', 'arm.1', 'grip']
    """
    if len(signals) == 1 and isinstance(signals[0], Mapping):
        parts, labels = _checked(list(signals[0].values())), list(signals[0])
    else:
        parts = _checked(signals)  # type: ignore[arg-type]
        labels = [part.name for part in parts]
    for part in parts:
        if part.kind not in ("scalar", "vector"):
            raise InvalidTypeError(
                f"cannot join {part!r}: its values must be scalars or vectors, got {part.kind}s",
                hint="use stack(), which takes values of any kind",
            )
    chosen = np.result_type(*(Field(part.dtype).array_dtype for part in parts))
    kind: DType = chosen if dtype is None else Field(dtype).dtype
    total = sum(math.prod(part.shape) for part in parts)
    function = partial(_concatenate, np.dtype(kind))
    made = ValueFunction(function, dtype=kind, shape=(total,), trusted=True)
    return CombinedSignal(parts, at, made, _names_of(parts, labels))


def stack(*signals: Signal[Any], at: Signal[Any] | None = None) -> Signal[Any]:
    """Stack values of one shape, of any kind, along a new first axis, at the times of `join`.

    Example:
        >>> from relive.episodes import ArraySignal
        >>> left, right = ArraySignal([1, 2], [0, 10]), ArraySignal([3, 4], [0, 10])
        >>> stack(left, right).values().tolist()
        [[1, 3], [2, 4]]
    """
    parts = _checked(signals)
    shapes = {part.shape for part in parts}
    texts = {part.dtype == "str" for part in parts}
    if len(shapes) > 1 or len(texts) > 1:
        shown = ", ".join(f"{part!r} has {part.dtype} of shape {part.shape}" for part in parts)
        raise InvalidError(f"cannot stack signals of different shapes or types: {shown}")
    kind: DType = "str"
    if not texts.pop():
        kind = np.result_type(*(Field(part.dtype).array_dtype for part in parts))
    shape = (len(parts), *shapes.pop())
    made = ValueFunction(_stack, dtype=kind, shape=shape, trusted=True)
    return CombinedSignal(parts, at, made, {})


def combine(
    signals: Sequence[Signal[Any]],
    function: Callable[..., Any],
    *,
    at: Signal[Any] | None = None,
    batched: bool = True,
    dtype: npt.DTypeLike | None = None,
    shape: Sequence[int] | None = None,
    attrs: Mapping[str, Any] | None = None,
) -> Signal[Any]:
    """Return what a function computes from the values of several signals, at the times of `join`.

    The function takes one batch of values per signal, or one value each with `batched=False`;
    for the other arguments see `map_values`.

    Example:
        >>> from relive.episodes import ArraySignal
        >>> goal, actual = ArraySignal([5.0], [0]), ArraySignal([1.0, 4.0], [0, 10])
        >>> combine([goal, actual], np.subtract).values().tolist()
        [4.0, 1.0]
    """
    made = ValueFunction.typed(function, batched, dtype, shape)
    return CombinedSignal(_checked(signals), at, made, {} if attrs is None else attrs)


class CombinedSignal(MappedSignal):
    """Values computed from those of several signals, each held until its next record."""

    def __init__(
        self,
        parts: tuple[Signal[Any], ...],
        at: Signal[Any] | None,
        function: ValueFunction,
        attrs: Mapping[str, Any],
    ) -> None:
        super().__init__((), function, attrs)
        self._parts = parts
        self._at = None if at is None else check_signal(at)

    @property
    def sources(self) -> tuple[Signal[Any], ...]:
        """The signals, sampled at the times of the result."""
        if not self._sources:
            times = _times(self._parts, self._at)
            self._sources = tuple(part.time.sample(times) for part in self._parts)
        return self._sources

    @property
    def name(self) -> str:
        """Empty: an episode names it."""
        return ""

    @property
    def clocks(self) -> tuple[str, ...]:
        """None: the signals may have different ones."""
        return ()

    def clock(self, name: str) -> Times:
        """Raise `UnknownNameError`."""
        raise self._unknown_clock(name)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the signals, not their samples."""
        return self.__dict__ | {"_sources": ()}


def _times(parts: tuple[Signal[Any], ...], at: Signal[Any] | None) -> Times:
    if not all(map(len, parts)):
        return np.empty(0, dtype=np.int64)
    axes = []
    for part in parts:
        times, low, high, _ = part.time_axis()
        axes.append(times[low:high])
    start = max(axis[0] for axis in axes)
    if at is not None:
        stamps = at.timestamps
        kept: Times = stamps[stamps >= start]
    else:
        kept = _union([axis[axis.searchsorted(start) :] for axis in axes])
    return read_only(kept)


def _union(axes: list[Times]) -> Times:
    times = np.concatenate(axes)
    times.sort(kind="stable")  # a stable sort merges sorted runs
    fresh = np.ones(len(times), dtype=bool)
    np.not_equal(times[1:], times[:-1], out=fresh[1:])
    return times[fresh]


def _concatenate(dtype: np.dtype[Any], *batches: npt.NDArray[Any]) -> npt.NDArray[Any]:
    flat = [batch.reshape(len(batch), math.prod(batch.shape[1:])) for batch in batches]
    return np.concatenate(flat, axis=1, dtype=dtype, casting="unsafe")


def _stack(*batches: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.stack(batches, axis=1)


def _checked(signals: Sequence[Signal[Any]]) -> tuple[Signal[Any], ...]:
    if not signals:
        raise InvalidError("expected at least one signal, got none")
    return tuple(map(check_signal, signals))


def _names_of(parts: tuple[Signal[Any], ...], labels: list[str]) -> dict[str, Any]:
    if not all(labels) or len(set(labels)) < len(labels):
        return {}
    names: list[str] = []
    for part, label in zip(parts, labels, strict=True):
        if not part.shape:
            names.append(label)
            continue
        size = math.prod(part.shape)
        own = part.attrs.get("names")
        if not isinstance(own, (list, tuple)) or len(own) != size:
            own = range(size)
        names += [f"{label}.{component}" for component in own]
    return {"names": names}
