"""Resampling policies: the value of a signal at a time between records."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from relive._arguments import check_choice
from relive.errors import InvalidError, InvalidTypeError, NoValueError
from relive.model.clock import INT64_MAX, INT64_MIN, Times, as_time, as_times, last_positions
from relive.model.schema import DType
from relive.model.signal import Axis, Signal, WrappedSignal, ordered, read_only, taken_into
from relive.model.source import IndexArray, Rows

Order = Literal["xyzw", "wxyz"]
"""The order of a quaternion: the scalar last, or first."""

Floats = npt.NDArray[np.floating[Any]]

_QUATERNION: Final = 4
_FARTHEST: Final = INT64_MAX - INT64_MIN
# Below this angle the sines of slerp are the angles themselves, to the last bit of a float64.
_PARALLEL: Final = 1e-8


def resample(signal: Signal[Any], ts: Any, policy: "Policy | str" = "hold") -> Signal[Any]:
    """Return the signal at the times `ts`, in that order; values are computed when read.

    Of records that share one time, the last one counts. See `Signal.resample`.
    """
    chosen = policy_of(policy)
    too_early = None if isinstance(chosen, _Nearest) else signal.no_value
    times = as_times(ts, too_early).copy()  # the caller may change its array
    times.flags.writeable = False
    return chosen.sample(signal, times)


class Policy(ABC):
    """How a value is computed for a time between records. Immutable and picklable."""

    @abstractmethod
    def sample(self, signal: Signal[Any], times: Times) -> Signal[Any]:
        """Return the signal at `times`; a time without a value raises `NoValueError`."""


def policy_of(policy: Policy | str) -> Policy:
    """Return the policy of a name, such as `"hold"` or `"linear"`, or `policy` itself."""
    if isinstance(policy, Policy):
        return policy
    if not isinstance(policy, str):
        hint = "call it: nearest(), slerp()" if policy in (nearest, slerp) else _NAMES_HINT
        raise InvalidTypeError(
            f"a resampling policy must be a string or a Policy, got {policy!r}", hint=hint
        )
    if policy not in _BY_NAME:
        raise InvalidError(f"unknown resampling policy {policy!r}", hint=_NAMES_HINT)
    return _BY_NAME[policy]


def nearest(tolerance_ns: int | None = None) -> Policy:
    """Return a policy that takes the value of the nearest record, the earlier of two.

    A time farther than `tolerance_ns` from every record raises `NoValueError`.

    Example:
        >>> from relive.episodes import ArraySignal, nearest
        >>> ArraySignal([1, 2], [0, 100]).resample([30, 60], nearest(50)).values().tolist()
        [1, 2]
    """
    if tolerance_ns is not None:
        tolerance_ns = as_time(tolerance_ns)
        if tolerance_ns < 0:
            raise InvalidError(f"`tolerance_ns` must not be negative, got {tolerance_ns}")
    return _Nearest(tolerance_ns)


def slerp(order: Order = "xyzw") -> Policy:
    """Return a policy that interpolates quaternions along the shorter arc, as unit quaternions.

    `order` is the order of the components, of the recorded values and of the results. The last
    value holds; a time before the first record raises `NoValueError`.
    """
    check_choice("order", order, get_args(Order))
    return _Slerp(order)


@dataclass(frozen=True, slots=True, repr=False)
class _Hold(Policy):
    def __repr__(self) -> str:
        return "hold"

    def sample(self, signal: Signal[Any], times: Times) -> Signal[Any]:
        return signal.time.sample(times)


@dataclass(frozen=True, slots=True, repr=False)
class _Nearest(Policy):
    tolerance_ns: int | None

    def __repr__(self) -> str:
        return f"nearest({self.tolerance_ns})"

    def sample(self, signal: Signal[Any], times: Times) -> Signal[Any]:
        if not len(times):
            return signal.select(range(0), times)
        axis, left, right, order = _neighbours(signal, times)
        if not len(axis):
            raise signal.no_value(int(times[0]))
        before = _distance(axis[left], times)
        after = _distance(axis[right], times)
        chosen = np.where(after < before, right, left)
        self._check(signal, times, axis[chosen], np.minimum(before, after))
        return signal.select(chosen if order is None else order[chosen], times)

    def _check(
        self, signal: Signal[Any], times: Times, found: Times, off: npt.NDArray[np.uint64]
    ) -> None:
        tolerance = self.tolerance_ns
        if tolerance is None or tolerance >= _FARTHEST:
            return
        far = off > np.uint64(tolerance)
        if far.any():
            first = int(far.argmax())
            raise NoValueError(
                f"{signal.label} has no record within {tolerance} ns of {times[first]}: "
                f"the nearest is at {found[first]}"
            )


@dataclass(frozen=True, slots=True, repr=False)
class _Linear(Policy):
    def __repr__(self) -> str:
        return "linear"

    def sample(self, signal: Signal[Any], times: Times) -> Signal[Any]:
        _check_numbers(signal, "linear")
        return _interpolate(signal, times, _lerp)


@dataclass(frozen=True, slots=True, repr=False)
class _Slerp(Policy):
    order: str

    def __repr__(self) -> str:
        return f"slerp({self.order!r})"

    def sample(self, signal: Signal[Any], times: Times) -> Signal[Any]:
        _check_numbers(signal, "slerp()")
        if not signal.shape or signal.shape[-1] != _QUATERNION:
            raise InvalidError(
                f"{signal.label} has values of the shape {signal.shape}, "
                "but the last dimension of quaternions must be 4",
                hint="select the rotation of a pose with transforms.pick()",
            )
        return _interpolate(signal, times, _arc)


class InterpolatedSignal(WrappedSignal[Any]):
    """A signal between the records of another; each value is computed from two when read."""

    def __init__(
        self,
        base: Signal[Any],
        sides: tuple[IndexArray, IndexArray],
        weights: npt.NDArray[np.float64],
        times: Times,
        blend: Callable[[Floats, Floats, Floats], Floats],
    ) -> None:
        self._base = base
        self._sides = sides
        self._weights = weights
        self._times = times
        self._blend = blend
        self._axis: Axis | None = None

    start_ts = Signal.start_ts
    last_ts = Signal.last_ts
    clocks = Signal.clocks
    clock = Signal.clock
    iterate = Signal.iterate

    @property
    def base(self) -> Signal[Any]:
        """The signal that is interpolated."""
        return self._base

    @property
    def dtype(self) -> DType:
        """The dtype of one value; integers become float64."""
        dtype = self._base.dtype
        is_integer = isinstance(dtype, np.dtype) and dtype.kind in "iu"
        return np.dtype(np.float64) if is_integer else dtype

    @property
    def timestamps(self) -> Times:
        """The requested times."""
        return self._times

    def __len__(self) -> int:
        """Count the times."""
        return len(self._times)

    def time_axis(self) -> Axis:
        """Return sorted times; see `Signal.time_axis`."""
        if self._axis is None:
            self._axis = ordered(self._times)
        return self._axis

    def value_at(self, row: int) -> Any:
        """Return one value."""
        return read_only(self.values_at(range(row, row + 1)))[0]

    def values_at(self, rows: Rows, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Return values, computed from one read of the records on both sides."""
        left, right = (taken_into(side, rows, None) for side in self._sides)
        count = len(left)
        values = self._base.values_at(np.concatenate((left, right)))
        numbers = values.astype(np.result_type(values.dtype, np.float64), copy=False)
        weights = taken_into(self._weights, rows, None).reshape((count,) + (1,) * len(self.shape))
        try:
            blended = self._blend(numbers[:count], numbers[count:], weights)
        except InvalidError as error:
            raise InvalidError(f"{self._base.label}: {error.message}") from None
        if out is None:
            return blended.astype(self.dtype, copy=False)
        out[...] = blended
        return out


def _interpolate(
    signal: Signal[Any], times: Times, blend: Callable[[Floats, Floats, Floats], Floats]
) -> Signal[Any]:
    axis, left, right, order = _neighbours(signal, times)
    early = np.flatnonzero(times < axis[left]) if len(axis) else np.arange(len(times))
    if len(early):
        raise signal.no_value(int(times[early[0]]))
    if len(axis):
        passed = _apart(axis[left], times)
        # A time that has a record takes its value alone: the next one may be NaN.
        right = np.where(passed == 0, left, right)
        whole = np.maximum(_apart(axis[left], axis[right]), np.uint64(1))
        weights = np.where(left == right, 0.0, passed / whole)
    else:
        weights = np.empty(0)
    sides = (left, right) if order is None else (order[left], order[right])
    return InterpolatedSignal(signal, sides, weights, times, blend)


def _neighbours(
    signal: Signal[Any], times: Times
) -> tuple[Times, IndexArray, IndexArray, IndexArray | None]:
    """Return sorted times, and for each time the positions at or before it and after it.

    If one side has no record, its position is that of the other side.
    """
    stamps, low, high, order = signal.time_axis()
    axis = stamps[low:high]
    if order is not None:
        order = order[low:high]
    left = last_positions(axis, times)
    if not len(axis):
        return axis, left, left, order
    last = len(axis) - 1
    right = np.minimum(left + 1, last)
    further = np.minimum(right + 1, last)
    if bool(((axis[further] == axis[right]) & (further != right)).any()):
        right = last_positions(axis, axis[right])
    return axis, np.where(left < 0, right, left), right, order


def _apart(earlier: Times, later: Times) -> npt.NDArray[np.uint64]:
    """Return the distance of times; unsigned 64-bit integers hold any distance."""
    return later.view(np.uint64) - earlier.view(np.uint64)


def _distance(times: Times, others: Times) -> npt.NDArray[np.uint64]:
    return _apart(np.minimum(times, others), np.maximum(times, others))


def _lerp(left: Floats, right: Floats, weights: Floats) -> Floats:
    with np.errstate(over="ignore", invalid="ignore"):
        span = right - left
        made: Floats = left + span * weights
        if not np.isfinite(span).all():
            # The ends are infinite, or so far apart that their difference overflows.
            ends = left * (1 - weights) + right * weights
            made = np.where(np.isfinite(span), made, ends)
            made = np.where(weights == 0, left, made)
    return made


def _arc(left: Floats, right: Floats, weights: Floats) -> Floats:
    left, right = _unit(left), _unit(right)
    # A quaternion and its negative are the same rotation: take the nearer of the two.
    right = np.where((left * right).sum(axis=-1, keepdims=True) < 0, -right, right)
    # This is exact for small angles; the arc cosine of the dot product is not.
    angle = 2 * np.arctan2(_length(right - left), _length(right + left))
    close = angle < _PARALLEL
    safe = np.where(close, 1.0, angle)
    first = np.where(close, 1 - weights, np.sin((1 - weights) * safe) / np.sin(safe))
    second = np.where(close, weights, np.sin(weights * safe) / np.sin(safe))
    made: Floats = _unit(first * left + second * right)
    return made


def _unit(values: Floats) -> Floats:
    # Scaling first keeps the squares of tiny and of huge components finite.
    scale = np.abs(values).max(axis=-1, keepdims=True, initial=0)
    if bool((scale == 0).any()):
        raise InvalidError("cannot interpolate a quaternion of only zeros")
    with np.errstate(invalid="ignore"):
        scaled = values / scale
    unit: Floats = scaled / _length(scaled)
    return unit


def _length(values: Floats) -> Floats:
    length: Floats = np.sqrt((values * values).sum(axis=-1, keepdims=True))
    return length


def _check_numbers(signal: Signal[Any], policy: str) -> None:
    dtype = signal.dtype
    if signal.kind == "image" or not isinstance(dtype, np.dtype) or dtype.kind not in "iuf":
        held = "images" if signal.kind == "image" else "text" if dtype == "str" else str(dtype)
        raise InvalidTypeError(
            f"{policy} cannot interpolate {signal.label}, which holds {held}",
            hint='use "hold" or nearest()',
        )


_BY_NAME: Final[dict[str, Policy]] = {
    "hold": _Hold(),
    "linear": _Linear(),
    "nearest": _Nearest(None),
    "slerp": _Slerp("xyzw"),
}
_NAMES_HINT: Final = 'use "hold", "linear", nearest(tolerance_ns) or slerp(order)'
