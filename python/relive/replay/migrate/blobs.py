"""The JSON documents of the original: how their arrays are read and written.

An array is `{"__type__": "ndarray", "dtype", "shape", "encoding": "base64", "data"}`; without
`encoding`, `data` is nested lists. Lists of numbers are arrays too. Other values that JSON does not
have are marked in the same way: `tuple`, `set` and `bytes` with `data`, `datetime` and `float` (NaN
and infinity) with `value`.
"""

import base64
import contextlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive._arguments import type_name
from relive.errors import InvalidTypeError

STORED: Final = {"__type__": "stored"}
"""Stands for an array in what is left of a document."""

_PLAIN: Final = frozenset({type(None), bool, int, str})
_PLAIN_MARKERS: Final = ("set", "bytes", "datetime")
"""Markers of values without arrays."""
_NUMBERS: Final = {"b": 1, "i": 8, "u": 8, "f": 8, "c": 16}
"""Bytes of a number, at most, by the kind of its dtype."""
_DTYPE: Final = re.compile(r"[<>=|]?[A-Za-z]+[0-9]*")
_MAX_DEPTH: Final = 100
_EXACT_FLOAT: Final = 1 << 53
_PICTURE_AXES: Final = 2
_SHORT: Final = 80


class DamagedError(Exception):
    """A value cannot be read. The message follows the name of its column."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A document, separated into its arrays and everything else."""

    arrays: Any
    """The arrays, nested as they are in the document; None without any."""
    rest: Any
    """The document, with `STORED` in the place of each array."""
    has_only_arrays: bool
    """Whether the document can be made again from the arrays alone."""


def loads(data: bytes | str) -> Any:
    """Return the document of a column."""
    try:
        text = data.decode() if isinstance(data, bytes) else data
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"is not JSON: {error}") from error
    if text.count("[") + text.count("{") > _MAX_DEPTH and _is_deep(document):
        raise DamagedError(f"is nested more than {_MAX_DEPTH} times")
    return document


def dumps(value: Any) -> bytes:
    """Return the document of a value, as the original writes it."""
    return json.dumps(encoded(value), ensure_ascii=False, separators=(",", ":")).encode()


def decoded(document: Any) -> Any:
    """Return the value that a document stands for: what is marked in it is what it was before.

    What cannot be read as it is marked stays as it is.
    """
    if isinstance(document, list):
        return [decoded(item) for item in document]
    if not isinstance(document, dict):
        return document
    marker = document.get("__type__")
    read = _MARKED.get(marker) if isinstance(marker, str) else None
    if read is not None:
        with contextlib.suppress(DamagedError, KeyError, TypeError, ValueError):
            value = read(document)
            return document if value is None else value
    return {key: decoded(value) for key, value in document.items()}


def split(document: Any) -> Parts:
    """Separate the arrays of a document from everything else."""
    try:
        return _split(document)
    except _LiteralError:
        return Parts(None, document, has_only_arrays=False)


def picture_of(document: Any) -> npt.NDArray[Any] | None:
    """Return an array of at least two dimensions; None if the document is something else."""
    array: npt.NDArray[Any] | None = None
    if isinstance(document, dict) and document.get("__type__") == "ndarray":
        array = array_of(document)
    elif isinstance(document, list):
        array = _number_array(document)
        if array is not None and array.dtype == np.int64:
            small = array.astype(np.uint8)
            array = small if (small == array).all() else array
    return array if array is not None and array.ndim >= _PICTURE_AXES else None


def array_of(document: Mapping[str, Any]) -> npt.NDArray[Any] | None:
    """Return the array that a document describes; None if it is not one of numbers."""
    try:
        dtype = _dtype(document["dtype"])
        if dtype is None:
            return None
        shape, data = _shape(document["shape"]), document["data"]
        encoding = document.get("encoding")
        if encoding == "base64":
            return _decoded(data, dtype, shape)
        if encoding is None:
            return np.array(_with_numbers(data), dtype).reshape(shape)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DamagedError(f"has an array that cannot be read: {error!r}") from error
    raise DamagedError(f"has an array with the encoding {short(encoding)}")


def is_name(key: str) -> bool:
    """Check whether a dataset can be named after a key."""
    return bool(key) and "\0" not in key and is_text(key)


def is_text(value: str) -> bool:
    """Check whether a string has only characters that UTF-8 can encode."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_same(one: Any, other: Any) -> bool:
    """Compare documents: 1 and 1.0 differ, NaN is the same as NaN."""
    if type(one) is type(other) and type(one) in _PLAIN:
        return bool(one == other)
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def is_exact_integer(array: npt.NDArray[Any]) -> bool:
    """Check whether an array is one integer that a float has without rounding."""
    return not array.shape and array.dtype == np.int64 and abs(int(array)) <= _EXACT_FLOAT


def short(value: object) -> str:
    """Return a value for a message."""
    text = repr(value)
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}…"


class _LiteralError(Exception):
    """A document has what stands for arrays in other documents."""


def _split(document: Any) -> Parts:
    array: npt.NDArray[Any] | None = None
    if isinstance(document, dict):
        if "__type__" in document:
            return _split_marked(document)
        return _split_dict(document)
    if isinstance(document, list):
        array = _number_array(document)
        if array is None and any(isinstance(item, dict) for item in document):
            parts = _split_items(document)
            return Parts(parts.arrays, parts.rest, has_only_arrays=False)  # a list, not a tuple
    elif isinstance(document, bool | int | float):
        array = np.asarray(document)
    return _whole(document, array)


def _split_marked(document: dict[str, Any]) -> Parts:
    marker = document["__type__"]
    if marker == "stored":
        raise _LiteralError
    if marker == "ndarray":
        return _whole(document, array_of(document))
    if marker == "float":
        return _whole(document, np.asarray(_float(document)))
    if marker == "tuple":
        parts = _split_items(_items(document))
        rest = {**document, "data": parts.rest}
        return Parts(parts.arrays, rest, parts.has_only_arrays)
    return _whole(document, None) if marker in _PLAIN_MARKERS else _split_dict(document)


def _split_dict(document: dict[str, Any]) -> Parts:
    if not all(map(is_name, document)):
        return _whole(document, None)
    parts = {key: _split(value) for key, value in document.items()}
    arrays = {key: part.arrays for key, part in parts.items() if part.arrays is not None}
    rest = {key: part.rest for key, part in parts.items()}
    has_only_arrays = bool(parts) and all(part.has_only_arrays for part in parts.values())
    return Parts(arrays or None, rest, has_only_arrays)


def _split_items(items: list[Any]) -> Parts:
    """Separate the arrays of a list or tuple; those of some of its items are keyed by position."""
    parts = [_split(item) for item in items]
    rest = [part.rest for part in parts]
    arrays = {str(place): p.arrays for place, p in enumerate(parts) if p.arrays is not None}
    if len(arrays) < len(parts):
        return Parts(arrays or None, rest, has_only_arrays=False)
    has_only_arrays = bool(parts) and all(part.has_only_arrays for part in parts)
    return Parts(tuple(arrays.values()) or None, rest, has_only_arrays)


def _whole(document: Any, array: npt.NDArray[Any] | None) -> Parts:
    """Return a document that is one array, or nothing of which is an array."""
    if array is None or array.dtype.kind not in _NUMBERS:
        return Parts(None, document, has_only_arrays=False)
    return Parts(array, STORED, has_only_arrays=True)


def _dtype(text: Any) -> np.dtype[Any] | None:
    """Return a dtype of numbers that runs can have; None for any other dtype."""
    if not isinstance(text, str):
        raise DamagedError(f"has an array with the dtype {short(text)}")
    if _DTYPE.fullmatch(text) is None:
        return None
    dtype = np.dtype(text)
    return dtype if dtype.itemsize <= _NUMBERS.get(dtype.kind, 0) else None


def _shape(sizes: Any) -> tuple[int, ...]:
    if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
        raise DamagedError(f"has an array with the shape {short(sizes)}")
    return tuple(sizes)


def _decoded(data: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    raw = base64.b64decode(data, validate=True)
    expected = dtype.itemsize * math.prod(shape)
    if len(raw) != expected:
        raise DamagedError(f"has an array of {len(raw)} bytes, expected {expected}")
    return np.ndarray(shape, dtype, raw)


def _number_array(items: list[Any]) -> npt.NDArray[Any] | None:
    """Return nested lists of numbers as an array; None if they are something else, or ragged."""
    kinds = _kinds(items)
    if dict in kinds:
        items = _with_floats(items)
        kinds = _kinds(items)
    if kinds not in ({int}, {float}, {bool}, {int, float}):
        return None
    try:
        array = np.asarray(items)
    except ValueError:
        return None
    if kinds == {int, float} and (np.abs(array) > _EXACT_FLOAT).any():
        return None
    is_kept = array.dtype in {np.dtype(np.int64), np.dtype(np.float64), np.dtype(bool)}
    return array if is_kept else None


def _kinds(items: list[Any]) -> set[type]:
    """Return the types of what nested lists have."""
    kinds = set(map(type, items))
    if list in kinds:
        kinds.discard(list)
        for item in items:
            if isinstance(item, list):
                kinds |= _kinds(item)
    return kinds


def _with_numbers(data: Any) -> Any:
    """Return the data of an array with the numbers that JSON does not have."""
    if isinstance(data, list):
        return _with_floats(data) if dict in _kinds(data) else data
    return _number(data)


def _with_floats(items: list[Any]) -> list[Any]:
    """Return nested lists with the numbers that JSON does not have."""
    return [_with_floats(item) if isinstance(item, list) else _number(item) for item in items]


def _number(item: Any) -> Any:
    is_marked = isinstance(item, dict) and item.get("__type__") == "float"
    return _float(item) if is_marked else item


def _float(document: Mapping[str, Any]) -> float:
    try:
        return float(document.get("value", "nan"))
    except (TypeError, ValueError) as error:
        raise DamagedError(f"has a number that cannot be read: {error}") from error


def _items(document: Mapping[str, Any]) -> list[Any]:
    data = document.get("data")
    if not isinstance(data, list):
        raise DamagedError(f"has a tuple whose items are {short(data)}")
    return data


_MARKED: Final[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = {
    "ndarray": lambda document: None if (a := array_of(document)) is None else a.copy(),
    "float": _float,
    "tuple": lambda document: tuple(map(decoded, _items(document))),
    "set": lambda document: set(map(decoded, _items(document))),
    "bytes": lambda document: base64.b64decode(document["data"], validate=True),
    "datetime": lambda document: datetime.fromisoformat(document["value"]),
}
"""What reads a value that is marked, by its marker."""


def _is_deep(document: Any) -> bool:
    level = [document]
    for _ in range(_MAX_DEPTH):
        level = [
            item
            for outer in level
            for item in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True


def encoded(value: Any) -> Any:
    """Return a value as JSON has it, with the markers of the original."""
    if isinstance(value, Mapping):
        return {str(key): encoded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [encoded(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"__type__": "float", "value": repr(float(value))}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return _marked(value)


def _marked(value: Any) -> dict[str, Any]:
    """Return a value that JSON does not have."""
    if isinstance(value, bytes):
        return {"__type__": "bytes", "data": base64.b64encode(value).decode()}
    if isinstance(value, datetime):
        return {"__type__": "datetime", "value": value.isoformat()}
    if isinstance(value, tuple | set | frozenset):
        marker = "tuple" if isinstance(value, tuple) else "set"
        return {"__type__": marker, "data": [encoded(item) for item in value]}
    if hasattr(value, "__array__"):
        return _encoded_array(np.asarray(value))
    raise InvalidTypeError(f"{type_name(type(value))} cannot be stored as JSON")


def _encoded_array(array: npt.NDArray[Any]) -> dict[str, Any]:
    if array.dtype.hasobject:
        raise InvalidTypeError(f"an array of dtype {array.dtype} cannot be stored as JSON")
    return {
        "__type__": "ndarray",
        "dtype": str(array.dtype),
        "shape": list(array.shape),
        "encoding": "base64",
        "data": base64.b64encode(array.tobytes()).decode(),
    }
