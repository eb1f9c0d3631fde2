"""Signals put together: several signals on one time axis."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from relive.episodes.transforms.function import Function
from relive.episodes.transforms.values import MappedSignal, type_of
from relive.episodes.transforms.wrapped import check_signal, frozen
from relive.errors import InvalidError, InvalidTypeError
from relive.model.clock import Times
from relive.model.schema import DType, Field
from relive.model.signal import Signal

__all__ = ["combine", "join", "stack"]


def join(
    *signals: Signal[Any] | Mapping[str, Signal[Any]],
    at: Signal[Any] | None = None,
    dtype: npt.DTypeLike | None = None,
) -> Signal[Any]:
    """Lay numbers end to end: the vectors and scalars of several signals as one vector.

    The result has a record at every time that one of them has, from the moment on at which all
    have a value, and values hold in between; so it gives at any time what its parts give. With
    `at`, its records are at the times of that signal, and of these from the same moment on.
    Its `attrs["names"]` say where components come from; a dict gives the parts other names
    than their own.
    """
    parts, labels = _labelled(signals)
    for part in parts:
        if part.kind not in ("scalar", "vector"):
            raise InvalidTypeError(
                f"{part!r} holds {part.kind}, which is not joined", hint="stack() takes anything"
            )
    chosen = np.result_type(*(Field(part.dtype).array_dtype for part in parts))
    kind: DType = chosen if dtype is None else Field(dtype).dtype
    total = sum(math.prod(part.shape) for part in parts)
    made = Function(_Concatenate(np.dtype(kind)), dtype=kind, shape=(total,), trusted=True)
    return CombinedSignal(parts, at, made, _names_of(parts, labels))


def stack(*signals: Signal[Any], at: Signal[Any] | None = None) -> Signal[Any]:
    """Put values of one shape along a new first axis; its times are those of `join`.

    Works for numbers, images and text.
    """
    parts = _parts(signals)
    shapes = {part.shape for part in parts}
    texts = {part.dtype == "str" for part in parts}
    if len(shapes) > 1 or len(texts) > 1:
        shown = ", ".join(f"{part!r} {part.dtype} {part.shape}" for part in parts)
        raise InvalidError(f"values of one shape are stacked, and these differ: {shown}")
    kind: DType = "str"
    if not texts.pop():
        kind = np.result_type(*(Field(part.dtype).array_dtype for part in parts))
    shape = (len(parts), *shapes.pop())
    return CombinedSignal(parts, at, Function(_stacked, dtype=kind, shape=shape, trusted=True), {})


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
    """Give what a function makes of the values of several signals, at the times of `join`.

    The function gets one batch of values per signal, or one value each with `batched=False`;
    for the rest see `map_values`.
    """
    made = Function(function, batched=batched, **type_of(dtype, shape))
    return CombinedSignal(_parts(signals), at, made, {} if attrs is None else attrs)


class CombinedSignal(MappedSignal):
    """Values made of those of several signals, each held until its next record."""

    def __init__(
        self,
        parts: tuple[Signal[Any], ...],
        at: Signal[Any] | None,
        function: Function,
        attrs: Mapping[str, Any],
    ) -> None:
        super().__init__((), function, attrs)
        self._parts = parts
        self._at = None if at is None else check_signal(at)

    @property
    def sources(self) -> tuple[Signal[Any], ...]:
        """The parts, sampled at the times of the whole; found out when first asked for."""
        if not self._sources:
            times = _times(self._parts, self._at)
            self._sources = tuple(part.time.sample(times) for part in self._parts)
        return self._sources

    @property
    def name(self) -> str:
        """It has none until an episode gives it one."""
        return ""

    @property
    def clocks(self) -> tuple[str, ...]:
        """It has no further clocks: its parts have several."""
        return ()

    def clock(self, name: str) -> Times:
        """Raise: there are no further clocks."""
        raise self._unknown_clock(name)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the parts, not the times made of them."""
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
    frozen(kept)
    return kept


def _union(axes: list[Times]) -> Times:
    times = np.concatenate(axes)
    times.sort(kind="stable")  # merges what is in order already
    fresh = np.ones(len(times), dtype=bool)
    np.not_equal(times[1:], times[:-1], out=fresh[1:])
    return times[fresh]


class _Concatenate:
    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype

    def __call__(self, *batches: npt.NDArray[Any]) -> npt.NDArray[Any]:
        flat = [batch.reshape(len(batch), math.prod(batch.shape[1:])) for batch in batches]
        return np.concatenate(flat, axis=1, dtype=self._dtype, casting="unsafe")


def _stacked(*batches: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.stack(batches, axis=1)


def _parts(signals: Sequence[Signal[Any]]) -> tuple[Signal[Any], ...]:
    if not signals:
        raise InvalidError("there is nothing to put together")
    return tuple(map(check_signal, signals))


def _labelled(
    given: tuple[Signal[Any] | Mapping[str, Signal[Any]], ...],
) -> tuple[tuple[Signal[Any], ...], list[str]]:
    if len(given) == 1 and isinstance(given[0], Mapping):
        return _parts(list(given[0].values())), list(given[0])
    parts = _parts(given)  # type: ignore[arg-type]
    return parts, [part.name for part in parts]


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
