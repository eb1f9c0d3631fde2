"""How actions, infos and times of steps are stored in the database."""

import json
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import numpy as np

from relive._arguments import type_name
from relive.errors import InvalidError, InvalidTypeError

MAX_ACTION_NUMBERS: Final = 32
"""Actions of more numbers are only in the arrays."""
MAX_INFO_BYTES: Final = 4096
"""Arrays of an info that are larger are stored as arrays."""


def stored_action(action: Any) -> tuple[int | float | str | None, bool]:
    """Return an action as the database has it, and whether it has all of it.

    Numbers stay numbers, up to 32 of them are JSON, and more are left out.
    """
    kind = type(action)
    if kind is np.int64 or (kind is int and -(1 << 63) <= action < 1 << 63):
        return int(action), True
    if action is None:
        return None, True
    arrays = _as_arrays(action)
    if isinstance(arrays, np.ndarray) and arrays.ndim == 0:
        return _number(arrays.item())
    if not _fits(arrays):
        return None, False
    return json.dumps(as_json("action", arrays)), True


def stored_reward(reward: float | None) -> float | None:
    """Return a reward as the database has it: NaN is NULL, and SQLite has no -0.0."""
    return None if reward is None or math.isnan(reward) else reward + 0.0


def as_json(name: str, value: Any) -> Any:
    """Return a value as JSON has it; NumPy arrays and numbers are converted."""
    try:
        return _as_json(name, value)
    except RecursionError:
        raise InvalidError(f"`{name}` contains itself, or is nested too deeply") from None


def _as_json(name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return _as_json(name, value.item())
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biufU":
            raise InvalidTypeError(f"`{name}` has the dtype {value.dtype}, which JSON cannot have")
        return value.tolist()
    if isinstance(value, Mapping):
        items = zip(json_keys(name, value), value.values(), strict=True)
        return {key: _as_json(f"{name}.{key}", item) for key, item in items}
    if isinstance(value, list | tuple):
        return [_as_json(f"{name}[{place}]", item) for place, item in enumerate(value)]
    raise InvalidTypeError(
        f"`{name}` cannot be stored as JSON: {type_name(type(value))}",
        hint="convert it to numbers, text, lists, dicts or NumPy arrays, or leave it out",
    )


def json_keys(name: str, value: Mapping[Any, Any]) -> Collection[str]:
    """Return the keys of a dict as JSON has them: numbers become text.

    Keys that become equal, such as `1` and `"1"`, are an `InvalidTypeError`.
    """
    if set(map(type, value)) <= {str}:
        return value.keys()
    found: dict[str, Any] = {}
    for key in value:
        if not isinstance(key, str | int | float | bool | np.generic):
            raise InvalidTypeError(f"the keys of `{name}` must be strings, got {key!r}")
        other = found.setdefault(str(key), key)
        if other is not key:
            raise InvalidTypeError(
                f"the keys {other!r} and {key!r} of `{name}` are the same in JSON",
                hint="use strings as keys",
            )
    return found.keys()


def _number(value: Any) -> tuple[int | float | str | None, bool]:
    if not isinstance(value, bool | int | float):
        return None, False
    if isinstance(value, float):
        return (value, True) if math.isfinite(value) else (None, False)
    return (int(value), True) if -(1 << 63) <= value < 1 << 63 else (None, False)


def _as_arrays(action: Any) -> Any:
    """Return an action with arrays as its leaves, as the file of a run has them.

    Its dtype, not the type of each number, decides how the database has an array. Dicts and tuples
    without any leaf are left out.
    """
    if isinstance(action, Mapping):
        items = {key: _as_arrays(item) for key, item in action.items()}
        return {key: item for key, item in items.items() if not _is_empty(item)}
    if isinstance(action, tuple):
        return tuple(item for item in map(_as_arrays, action) if not _is_empty(item))
    try:
        return np.asarray(action)
    except (TypeError, ValueError) as error:
        raise InvalidTypeError(f"`action` is not an array of numbers: {error}") from error


def _is_empty(value: Any) -> bool:
    return isinstance(value, dict | tuple) and not value


def _fits(arrays: Any) -> bool:
    """Check whether an action is at most 32 numbers that JSON can have."""
    leaves = list(_leaves(arrays))
    return sum(leaf.size for leaf in leaves) <= MAX_ACTION_NUMBERS and all(
        leaf.dtype.kind in "biu" or (leaf.dtype.kind == "f" and bool(np.isfinite(leaf).all()))
        for leaf in leaves
    )


def _leaves(arrays: Any) -> Iterator[Any]:
    if isinstance(arrays, dict | tuple):
        for item in arrays.values() if isinstance(arrays, dict) else arrays:
            yield from _leaves(item)
    else:
        yield arrays
