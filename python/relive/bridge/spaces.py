"""The spaces of environments that a run was recorded in, as Gymnasium has them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from relive._extras import require
from relive.errors import UnsupportedError

Keys: TypeAlias = tuple[str | int, ...]
"""Where a leaf is in a nested value: keys of dicts, and positions in tuples."""

_UNREADABLE: Final = (KeyError, TypeError, ValueError, AssertionError, OverflowError)
"""What Gymnasium raises for a wrong description."""


@dataclass(frozen=True, slots=True)
class LeafType:
    """The dtype and shape of one array of an observation or action."""

    keys: Keys
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    low: int = 0
    """The smallest value, if it is known."""
    high: int | None = None
    """The largest value of an action that is an integer; None for other leaves."""


def nested(leaves: Iterable[tuple[Keys, Any]]) -> Any:
    """Return the nested value that has these leaves."""
    known = list(leaves)
    if len(known) == 1 and not known[0][0]:
        return known[0][1]
    below: dict[str | int, list[tuple[Keys, Any]]] = {}
    for keys, value in known:
        below.setdefault(keys[0], []).append((keys[1:], value))
    values = {key: nested(inner) for key, inner in below.items()}
    if all(isinstance(key, int) for key in values):
        return tuple(value for _, value in sorted(values.items()))
    return values


def space_of(described: Any, leaves: Sequence[LeafType]) -> Any:
    """Return the space of values with these leaves.

    It is the one that was recorded, or else the largest space of arrays of these dtypes and
    shapes. In that one, an integer action is a choice between the smallest and the largest that
    was recorded, or 0.

    Args:
        described: The space as it was recorded, as JSON, or None.
        leaves: The arrays of a value.
    """
    try:
        space = _parsed(described)
    except _UNREADABLE:
        space = None
    if space is not None and fits(space, leaves):
        return space
    return _largest(nested((leaf.keys, leaf) for leaf in leaves))


def fits(space: Any, leaves: Sequence[LeafType]) -> bool:
    """Check whether arrays of these dtypes and shapes may be values of a space."""
    return _fits(space, nested((leaf.keys, leaf) for leaf in leaves))


def _fits(space: Any, value: Any) -> bool:
    spaces = _spaces()
    if isinstance(space, spaces.Dict):
        return (
            isinstance(value, dict)
            and value.keys() == space.spaces.keys()
            and all(_fits(space[key], item) for key, item in value.items())
        )
    if isinstance(space, spaces.Tuple):
        return (
            isinstance(value, tuple)
            and len(value) == len(space.spaces)
            and all(map(_fits, space.spaces, value))
        )
    if not isinstance(value, LeafType) or tuple(space.shape or ()) != value.shape:
        return False
    if isinstance(space, spaces.Box):
        return bool(space.dtype == value.dtype)
    return value.dtype.kind in "biu"


def _parsed(described: Any) -> Any:
    """Return the space that a description is of; None if it is not known."""
    if not isinstance(described, Mapping):
        return None
    parse = _PARSERS.get(described["type"])
    return None if parse is None else parse(_spaces(), described)


def _box(spaces: Any, described: Mapping[str, Any]) -> Any:
    dtype, shape = np.dtype(described["dtype"]), tuple(described["shape"])
    low, high = (_bound(described[name], dtype, shape) for name in ("low", "high"))
    return spaces.Box(low, high, shape, dtype.type)


def _discrete(spaces: Any, described: Mapping[str, Any]) -> Any:
    return spaces.Discrete(described["n"], start=described["start"])


def _multi_discrete(spaces: Any, described: Mapping[str, Any]) -> Any:
    dtype = np.dtype(described["dtype"]).type
    return spaces.MultiDiscrete(described["nvec"], dtype, start=described["start"])


def _multi_binary(spaces: Any, described: Mapping[str, Any]) -> Any:
    return spaces.MultiBinary(described["shape"])


def _dict(spaces: Any, described: Mapping[str, Any]) -> Any:
    inner = {key: _parsed(item) for key, item in described["spaces"].items()}
    return None if None in inner.values() else spaces.Dict(inner)


def _tuple(spaces: Any, described: Mapping[str, Any]) -> Any:
    places = [_parsed(item) for item in described["spaces"]]
    return None if None in places else spaces.Tuple(places)


_PARSERS: Final = {
    "Box": _box,
    "Dict": _dict,
    "Discrete": _discrete,
    "MultiBinary": _multi_binary,
    "MultiDiscrete": _multi_discrete,
    "Tuple": _tuple,
}


def _bound(bound: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return the bounds of a box; many different ones are recorded as a digest only."""
    if isinstance(bound, list):
        items = [float(item) if isinstance(item, str) else item for item in bound]
        return np.array(items, dtype).reshape(shape)
    return np.full(shape, float(bound) if isinstance(bound, str) else bound, dtype)


def _largest(value: Any) -> Any:
    spaces = _spaces()
    if isinstance(value, dict):
        return spaces.Dict({key: _largest(item) for key, item in value.items()})
    if isinstance(value, tuple):
        return spaces.Tuple([_largest(item) for item in value])
    dtype, shape = value.dtype, value.shape
    if value.high is not None:
        return spaces.Discrete(value.high - value.low + 1, start=value.low)
    if dtype.kind == "b":
        return spaces.MultiBinary(list(shape)) if shape else spaces.Discrete(2)
    if dtype.kind == "c":
        raise UnsupportedError(
            f"an observation or action has the dtype {dtype}, for which Gymnasium has no space"
        )
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, shape, dtype.type)
    bounds = np.iinfo(dtype)
    low, high = (np.full(shape, bound, dtype) for bound in (bounds.min, bounds.max))
    return spaces.Box(low, high, shape, dtype.type)


def _spaces() -> Any:
    return require("gymnasium", extra="minari", to="describe spaces").spaces
