"""Policies of resampling: what the value is at a time between records."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from relive.errors import InvalidError, InvalidTypeError, NoValueError
from relive.model.clock import INT64_MAX, INT64_MIN, Times, as_time, as_times, last_places
from relive.model.schema import DType
from relive.model.signal import Axis, Signal, ordered, taken_into
from relive.model.source import IndexArray, Rows

__all__ = ["Order", "Policy", "nearest", "policy_of", "resample", "slerp"]

Order = Literal["xyzw", "wxyz"]
"""Where the scalar of a quaternion stands: last, or first."""

Floats = npt.NDArray[np.floating[Any]]

_QUATERNION: Final = 4
_FARTHEST: Final = INT64_MAX - INT64_MIN
# Below this angle the sines of slerp are the angles themselves, to the last bit of a float64.
_PARALLEL: Final = 1e-8


def resample(signal: Signal[Any], ts: Any, policy: "Policy | str" = "hold") -> Signal[Any]:
    """Give the signal at the times `ts`, in that order, by a policy; values are made when read.

    Of records that share one time, the last one counts. No times give an empty signal.
    """
    chosen = policy_of(policy)
    too_early = None if isinstance(chosen, _Nearest) else signal.no_value
    times = as_times(ts, too_early).copy()  # the caller's own array may change
    times.flags.writeable = False
    return chosen.sample(signal, times)


class Policy(ABC):
    """How a value is made for a time between records. Immutable and picklable."""

    @abstractmethod
    def sample(self, signal: Signal[Any], times: Times) -> Signal[Any]:
        """Give the signal at `times`; a time that has no value is a `NoValueError`."""


def policy_of(policy: Policy | str) -> Policy:
    """Give the policy that is meant: `"hold"`, `"linear"`, `"nearest"`, `"slerp"`, or itself."""
    if isinstance(policy, Policy):
        return policy
    if not isinstance(policy, str):
        hint = "call it: nearest(), slerp()" if policy in (nearest, slerp) else _NAMES_HINT
        raise InvalidTypeError(f"{policy!r} is not a policy of resampling", hint=hint)
    if policy not in _BY_NAME:
        raise InvalidError(f"no policy of resampling is called {policy!r}", hint=_NAMES_HINT)
    return _BY_NAME[policy]


def nearest(tolerance_ns: int | None = None) -> Policy:
    """Take the value of the nearest record, of two equally near ones the earlier.

    A time farther than `tolerance_ns` from every record is a `NoValueError`.
    """
    if tolerance_ns is not None:
        tolerance_ns = as_time(tolerance_ns)
        if tolerance_ns < 0:
            raise InvalidError(f"a tolerance is not negative: {tolerance_ns}")
    return _Nearest(tolerance_ns)


def slerp(order: Order = "xyzw") -> Policy:
    """Interpolate quaternions along the shorter arc; the results have the length one.

    `order` says how they were recorded, and is how they come back: both orders interpolate
    alike. The last value holds; a time before the first record is a `NoValueError`.
    """
    if order not in get_args(Order):
        raise InvalidError(f"no order of a quaternion is called {order!r}", hint="xyzw or wxyz")
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
        places = np.where(after < before, right, left)
        self._check(signal, times, axis[places], np.minimum(before, after))
        return signal.select(places if order is None else order[places], times)

    def _check(
        self, signal: Signal[Any], times: Times, found: Times, off: npt.NDArray[np.uint64]
    ) -> None:
        tolerance = self.tolerance_ns
        if tolerance is None or tolerance >= _FARTHEST:
            return
        far = off > np.uint64(tolerance)
        if far.any():
            place = int(far.argmax())
            raise NoValueError(
                f"{_called(signal)} has no record within {tolerance} ns of {times[place]}: "
                f"the nearest is at {found[place]}"
            )


@dataclass(frozen=True, slots=True, repr=False)
class _Linear(Policy):
    def __repr__(self) -> str:
        return "linear"

    def sample(self, signal: Signal[Any], times: Times) -> Signal[Any]:
        _check_numbers(signal, "linear")
        return _interpolated(signal, times, _lerp)


@dataclass(frozen=True, slots=True, repr=False)
class _Slerp(Policy):
    order: str

    def __repr__(self) -> str:
        return f"slerp({self.order!r})"

    def sample(self, signal: Signal[Any], times: Times) -> Signal[Any]:
        _check_numbers(signal, "slerp()")
        if not signal.shape or signal.shape[-1] != _QUATERNION:
            raise InvalidError(
                f"{_called(signal)} has values of the shape {signal.shape}, "
                "and quaternions end in a dimension of 4",
                hint="transforms.pick() takes the rotation out of a pose",
            )
        return _interpolated(signal, times, _arc)


class InterpolatedSignal(Signal[Any]):
    """A signal between the records of another: each value is made of two of them, when read."""

    def __init__(
        self,
        source: Signal[Any],
        sides: tuple[IndexArray, IndexArray],
        weights: npt.NDArray[np.float64],
        times: Times,
        blend: Callable[[Floats, Floats, Floats], Floats],
    ) -> None:
        self._source = source
        self._sides = sides
        self._weights = weights
        self._times = times
        self._blend = blend
        self._axis: Axis | None = None

    @property
    def name(self) -> str:
        """The name of the signal between whose records this is."""
        return self._source.name

    @property
    def kind(self) -> str:
        """The kind of the signal between whose records this is."""
        return self._source.kind

    @property
    def dtype(self) -> DType:
        """The dtype of one value; integers become float64."""
        dtype = self._source.dtype
        whole = isinstance(dtype, np.dtype) and dtype.kind in "iu"
        return np.dtype(np.float64) if whole else dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one value."""
        return self._source.shape

    @property
    def attrs(self) -> Mapping[str, Any]:
        """What was said about the signal between whose records this is."""
        return self._source.attrs

    @property
    def timestamps(self) -> Times:
        """The times that were asked for."""
        return self._times

    def __len__(self) -> int:
        """Count the times."""
        return len(self._times)

    def time_axis(self) -> Axis:
        """Give the times in order."""
        if self._axis is None:
            self._axis = ordered(self._times)
        return self._axis

    def value_at(self, row: int) -> Any:
        """Give one value."""
        value = self.values_at(range(row, row + 1))[0]
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
        return value

    def values_at(self, rows: Rows, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Give values, made of one read of the records on both sides."""
        left, right = (taken_into(side, rows, None) for side in self._sides)
        count = len(left)
        values = self._source.values_at(np.concatenate((left, right)))
        numbers = values.astype(np.result_type(values.dtype, np.float64), copy=False)
        weights = taken_into(self._weights, rows, None).reshape((count,) + (1,) * len(self.shape))
        try:
            made = self._blend(numbers[:count], numbers[count:], weights)
        except InvalidError as error:
            raise InvalidError(f"{_called(self._source)}: {error.message}") from None
        if out is None:
            return made.astype(self.dtype, copy=False)
        out[...] = made
        return out


def _interpolated(
    signal: Signal[Any], times: Times, blend: Callable[[Floats, Floats, Floats], Floats]
) -> Signal[Any]:
    axis, left, right, order = _neighbours(signal, times)
    early = np.flatnonzero(times < axis[left]) if len(axis) else np.arange(len(times))
    if len(early):
        raise signal.no_value(int(times[early[0]]))
    if len(axis):
        passed = _apart(axis[left], times)
        # A time that has a record needs that record alone: the next one may be NaN.
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
    """Give ordered times, and of each time the places at or before it and after it.

    Where one side has no record, it is the place of the other.
    """
    ordered, low, high, order = signal.time_axis()
    axis = ordered[low:high]
    if order is not None:
        order = order[low:high]
    left = last_places(axis, times)
    if not len(axis):
        return axis, left, left, order
    last = len(axis) - 1
    right = np.minimum(left + 1, last)
    further = np.minimum(right + 1, last)
    if bool(((axis[further] == axis[right]) & (further != right)).any()):
        right = last_places(axis, axis[right])
    return axis, np.where(left < 0, right, left), right, order


def _apart(earlier: Times, later: Times) -> npt.NDArray[np.uint64]:
    """Give how far times are apart; 64 bits hold any distance when they have no sign."""
    return later.view(np.uint64) - earlier.view(np.uint64)


def _distance(times: Times, others: Times) -> npt.NDArray[np.uint64]:
    return _apart(np.minimum(times, others), np.maximum(times, others))


def _lerp(left: Floats, right: Floats, weights: Floats) -> Floats:
    with np.errstate(over="ignore", invalid="ignore"):
        span = right - left
        made: Floats = left + span * weights
        if not np.isfinite(span).all():
            # Infinite ends, or ends so far apart that only their difference is infinite.
            ends = left * (1 - weights) + right * weights
            made = np.where(np.isfinite(span), made, ends)
            made = np.where(weights == 0, left, made)
    return made


def _arc(left: Floats, right: Floats, weights: Floats) -> Floats:
    left, right = _unit(left), _unit(right)
    # A quaternion and its negative are one rotation: take the nearer of the two.
    right = np.where((left * right).sum(axis=-1, keepdims=True) < 0, -right, right)
    # Exact for small angles, where the arc cosine of the product is not.
    angle = 2 * np.arctan2(_length(right - left), _length(right + left))
    close = angle < _PARALLEL
    safe = np.where(close, 1.0, angle)
    first = np.where(close, 1 - weights, np.sin((1 - weights) * safe) / np.sin(safe))
    second = np.where(close, weights, np.sin(weights * safe) / np.sin(safe))
    made: Floats = _unit(first * left + second * right)
    return made


def _unit(values: Floats) -> Floats:
    # The largest part first, so that the squares of tiny and of huge ones are numbers.
    scale = np.abs(values).max(axis=-1, keepdims=True, initial=0)
    if bool((scale == 0).any()):
        raise InvalidError("a quaternion of zeros is no rotation")
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
            f"{_called(signal)} holds {held}, which {policy} cannot interpolate",
            hint='"hold" and nearest() take values as they were recorded',
        )


def _called(signal: Signal[Any]) -> str:
    return f"signal {signal.name!r}" if signal.name else "the signal"


_BY_NAME: Final[dict[str, Policy]] = {
    "hold": _Hold(),
    "linear": _Linear(),
    "nearest": _Nearest(None),
    "slerp": _Slerp("xyzw"),
}
_NAMES_HINT: Final = '"hold", "linear", nearest(tolerance_ns) or slerp(order)'
