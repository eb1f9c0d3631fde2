"""The spaces of environments: which can be recorded, how they are described, and their values."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from relive._extras import require
from relive._native import constant_copy
from relive.errors import InvalidError, UnsupportedError

gymnasium = require("gymnasium", extra="replay", to="record environments")

Casting: TypeAlias = Literal["safe", "same_kind", "space"]

_NUMBER_KINDS: Final = "biufc"
_DISCRETE: Final = gymnasium.spaces.Discrete
_LEAVES: Final = (
    _DISCRETE,
    gymnasium.spaces.Box,
    gymnasium.spaces.MultiBinary,
    gymnasium.spaces.MultiDiscrete,
)
_GRAY_AXES: Final = 2
_COLOR_AXES: Final = 3
_IMAGE_CHANNELS: Final = (1, 3, 4)
_MOST_BOUNDS: Final = 256
"""A space with more different bounds is described by a digest of them."""


def check_storable(name: str, space: Any) -> None:
    """Raise an `UnsupportedError` if values of a space are not arrays of one shape."""
    spaces = gymnasium.spaces
    if isinstance(space, spaces.Dict | spaces.Tuple):
        items = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        for key, inner in items:
            check_storable(f"{name}.{key}", inner)
    elif isinstance(space, spaces.Text | spaces.Sequence | spaces.Graph | spaces.OneOf):
        raise UnsupportedError(
            f"`{name}` cannot be recorded: the space {space} has no arrays of one shape",
            hint="leave it out or convert it with a wrapper, such as "
            "gymnasium.wrappers.FilterObservation",
        )


def describe_space(space: Any) -> dict[str, Any]:
    """Return a description of a space as JSON; equal spaces have equal descriptions.

    Args:
        space: A space of Gymnasium. One of an unknown class is described by its `repr`.

    Example:
        >>> import gymnasium
        >>> describe_space(gymnasium.spaces.Discrete(2))
        {'type': 'Discrete', 'n': 2, 'start': 0, 'dtype': 'int64'}
    """
    spaces = gymnasium.spaces
    described: dict[str, Any] = {"type": type(space).__name__}
    if isinstance(space, spaces.Box):
        bounds = {"low": _described_bound(space.low), "high": _described_bound(space.high)}
        described |= {**bounds, "shape": list(space.shape), "dtype": str(space.dtype)}
    elif isinstance(space, spaces.Discrete):
        described |= {"n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}
    elif isinstance(space, spaces.MultiDiscrete):
        start = getattr(space, "start", np.zeros_like(space.nvec))
        described |= {"nvec": space.nvec.tolist(), "start": np.asarray(start).tolist()}
        described["dtype"] = str(space.dtype)
    elif isinstance(space, spaces.MultiBinary):
        described["shape"] = list(space.shape)
    elif isinstance(space, spaces.Text):
        described |= {"min_length": space.min_length, "max_length": space.max_length}
        described["characters"] = "".join(sorted(space.character_set))
    elif isinstance(space, spaces.Dict | Mapping):
        items = space.spaces if isinstance(space, spaces.Dict) else space
        inner = {str(key): describe_space(item) for key, item in items.items()}
        described |= {"type": "Dict", "spaces": dict(sorted(inner.items()))}
    elif isinstance(space, spaces.Tuple):
        described["spaces"] = [describe_space(item) for item in space.spaces]
    else:
        described["repr"] = repr(space)
    return described


def describe_spec(env: Any) -> tuple[str | None, Any]:
    """Return the id of an environment, and how it was made, as JSON."""
    spec = getattr(env, "spec", None)
    if spec is None:
        inner = getattr(getattr(env, "unwrapped", env), "envs", None)
        spec = getattr(inner[0], "spec", None) if inner else None
    if spec is None:
        return None, None
    try:
        return spec.id, json.loads(spec.to_json())
    except (TypeError, ValueError):  # made of functions or objects
        return spec.id, {"id": spec.id, "repr": repr(spec)}


def kept(space: Any, value: Any, casting: Casting = "safe", name: str = "value") -> Any:
    """Return a copy of an observation or action, which the environment cannot change.

    Numbers and lists get the dtype of the space, and arrays do if that is a safe cast, so that
    all values of a run have the same.

    Args:
        space: The space of the value, or of one row of it; None if it is not known.
        value: An array, a number, or nested dicts and tuples.
        casting: Which casts of arrays are allowed: those that NumPy names so, or with `"space"`
            all that keep integers as they are.
        name: What the value is called in errors.
    """
    if type(value) is np.ndarray and value.dtype == getattr(space, "dtype", None):
        return constant_copy(value)
    if not isinstance(space, _LEAVES):
        if isinstance(value, Mapping):
            inner = getattr(space, "spaces", None)
            inner = inner if isinstance(inner, Mapping) else {}
            return {
                key: kept(inner.get(key), item, casting, f"{name}.{key}")
                for key, item in value.items()
            }
        if isinstance(value, tuple) or (space is not None and isinstance(value, list)):
            places = getattr(space, "spaces", None)
            if not isinstance(places, tuple) or len(places) != len(value):
                places = (None,) * len(value)
            return tuple(
                kept(item_space, item, casting, f"{name}.{place}")
                for place, (item_space, item) in enumerate(zip(places, value, strict=True))
            )
    is_number = type(value) is np.int64 or (type(value) is int and isinstance(space, _DISCRETE))
    if is_number and casting != "space":
        return value
    array = np.asarray(value)
    dtype = getattr(space, "dtype", None)
    if dtype is not None and array.dtype != dtype and array.dtype.kind in _NUMBER_KINDS:
        is_array = hasattr(value, "dtype")
        if casting == "space":
            array = _as_dtype(name, array, dtype)
        elif not is_array or np.can_cast(array.dtype, dtype, casting):
            array = array.astype(dtype)
    return constant_copy(array)


def _as_dtype(name: str, array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return an array with the dtype of its space; floats are rounded, integers stay equal."""
    whole = array.real if array.dtype.kind == "c" and dtype.kind != "c" else array
    with np.errstate(all="ignore"):
        made = whole.astype(dtype)
        again = made.astype(array.dtype)
    if array.dtype.kind == "f" and made.dtype.kind == "f":
        differs = np.isfinite(made) != np.isfinite(array)
    else:
        differs = again != array
    if np.any(differs):
        first = array[differs].flat[0]
        raise InvalidError(
            f"`{name}` cannot be cast to the dtype {dtype} of its space, got {first!r}",
            hint="declare a space whose dtype has all values",
        )
    return made


def is_image(space: Any) -> bool:
    """Check whether the values of a space are pictures."""
    if not isinstance(space, gymnasium.spaces.Box) or space.dtype != np.uint8:
        return False
    axes = len(space.shape)
    return axes == _GRAY_AXES or (axes == _COLOR_AXES and space.shape[-1] in _IMAGE_CHANNELS)


def _described_bound(bound: npt.NDArray[Any]) -> Any:
    """Return the bounds of a box as JSON: one number if they are all the same."""
    if bound.size and (bound == bound.flat[0]).all():
        return _json_number(bound.flat[0].item())
    if bound.size <= _MOST_BOUNDS:
        return [_json_number(number) for number in bound.ravel().tolist()]
    return {"sha256": hashlib.sha256(np.ascontiguousarray(bound).tobytes()).hexdigest()}


def _json_number(number: float) -> float | str:
    is_finite = np.isfinite(number)
    return number if is_finite else str(number)
