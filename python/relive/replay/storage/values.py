"""How actions, infos and times of steps are stored in the database."""

import json
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive._arguments import as_text, type_name
from relive.errors import InvalidError, InvalidTypeError, ReliveError, TooLargeError

MAX_ACTION_NUMBERS: Final = 32
"""Actions of more numbers are only in the arrays."""
MAX_INFO_BYTES: Final = 4096
"""Arrays of an info that are larger are stored as arrays."""
MAX_JSON_BYTES: Final = 512 << 20
"""SQLite refuses texts of over 10^9 bytes, and rows that have as much."""
_MAX_ID_BYTES: Final = 4096
_MAX_DEPTH: Final = 200
"""Python reads JSON by recursion, wherever it is called from."""
_MAX_INT_BITS: Final = 14_000
"""Python reads and writes integers of at most 4300 digits."""


def stored_action(action: Any) -> tuple[int | float | str | None, bool]:
    """Return an action as the database has it, and whether it has all of it.

    Numbers stay numbers, up to 32 of them are JSON, and more are left out.
    """
    kind = type(action)
    if kind is np.int64 or (kind is int and -(1 << 63) <= action < 1 << 63):
        return int(action), True
    if action is None:
        return None, True
    try:
        arrays = _as_arrays(action)
    except RecursionError:
        raise _nested_too_deeply("action") from None
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
        return _as_json(name, value, _MAX_DEPTH)
    except RecursionError:
        raise _nested_too_deeply(name) from None


def json_text(name: str, values: Any) -> str:
    """Return values that `as_json` returned as text that the database can have."""
    text = json.dumps(values)
    check_json_bytes(name, len(text))
    return text


def check_json_bytes(name: str, nbytes: int) -> None:
    """Raise a `TooLargeError` if JSON of so many bytes cannot be stored."""
    if nbytes > MAX_JSON_BYTES:
        raise TooLargeError(
            f"`{name}` is {nbytes} bytes as JSON, but at most {MAX_JSON_BYTES} can be stored",
            hint="pass what is large as NumPy arrays",
        )


def as_id(what: str, value: object) -> str:
    """Return the id of an environment, an episode or an agent, of at most 4096 bytes of UTF-8."""
    text = as_text(what, value)
    if len(text) > _MAX_ID_BYTES // 4 and len(text.encode()) > _MAX_ID_BYTES:
        raise TooLargeError(
            f"{what} has {len(text.encode())} bytes, but at most {_MAX_ID_BYTES} can be stored: "
            f"{text[:40]!r}…"
        )
    return text


def _nested_too_deeply(name: str) -> InvalidError:
    return InvalidError(f"`{name}` contains itself, or is nested too deeply")


def _as_json(name: str, value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool | float | str):
        return value
    if isinstance(value, int):
        return _checked_int(name, value)
    if depth == 0:
        raise RecursionError
    if isinstance(value, np.generic) and not isinstance(value, np.longdouble):
        return _as_json(name, value.item(), depth - 1)
    if isinstance(value, np.ndarray):
        return _checked_array(name, value).tolist()
    if isinstance(value, Mapping):
        items = zip(json_keys(name, value), value.values(), strict=True)
        return {key: _as_json(f"{name}.{key}", item, depth - 1) for key, item in items}
    if isinstance(value, list | tuple):
        return [_as_json(f"{name}[{place}]", item, depth - 1) for place, item in enumerate(value)]
    raise InvalidTypeError(
        f"`{name}` cannot be stored as JSON: {type_name(type(value))}",
        hint="convert it to numbers, text, lists, dicts or NumPy arrays, or leave it out",
    )


def _checked_int(name: str, value: int) -> int:
    if value.bit_length() > _MAX_INT_BITS:
        raise TooLargeError(
            f"`{name}` is an integer of {value.bit_length()} bits, but at most {_MAX_INT_BITS} can "
            "be stored"
        )
    return value


def _checked_array(name: str, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if value.dtype.kind not in "biufU" or value.dtype == np.longdouble:
        raise InvalidTypeError(f"`{name}` has the dtype {value.dtype}, which JSON cannot have")
    check_json_bytes(name, 2 * value.size)  # at least
    return value


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
    return as_array("action", action)


def as_array(name: str, value: Any) -> npt.NDArray[Any]:
    """Return a value as NumPy has it, or raise an `InvalidTypeError`."""
    try:
        return np.asarray(value)
    except (MemoryError, RecursionError, ReliveError):
        raise
    except Exception as error:  # whatever a value raises that converts itself
        raise InvalidTypeError(f"`{name}` is not an array of numbers: {error}") from error


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
