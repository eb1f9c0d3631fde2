"""Which field the values of some rows fit into."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive._arguments import type_name
from relive.errors import InvalidError, InvalidTypeError
from relive.model.ragged import Ragged
from relive.model.schema import Field

__all__ = ["Misfit", "as_array", "infer_field", "infer_fields"]

_BYTES: Final = (bytes, bytearray, memoryview)


class Misfit(Exception):  # noqa: N818 - never leaves the bridge
    """Values do not fit together; `position` is that of the first that does not."""

    def __init__(self, position: int, trouble: str) -> None:
        super().__init__(trouble)
        self.position = position
        self.trouble = trouble


def infer_fields(rows: Iterable[Mapping[str, Any]]) -> dict[str, Field]:
    """Give the fields that `rows` fit into, in the order in which their names are met.

    Bytes and text are "bytes" and "str". Numbers and arrays of one shape are fixed; arrays
    that differ in their leading dimensions are ragged. A dict, and a list that is no array, is
    "json", and so are numbers and texts among them. A name that a row does not have, or has
    None for, is a missing value. Values that fit into no field together are an `InvalidError`
    that names the row and the field.
    """
    columns: dict[str, list[tuple[int, Any]]] = {}
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InvalidTypeError(f"row {number} is a {type(row).__name__}, not a dict")
        for name, value in row.items():
            if not isinstance(name, str) or not name:
                raise InvalidTypeError(f"row {number}: a field is named by text, not {name!r}")
            columns.setdefault(name, []).append((number, value))
    return {name: _named(name, values) for name, values in columns.items()}


def _named(name: str, values: list[tuple[int, Any]]) -> Field:
    try:
        return infer_field([value for _, value in values])
    except Misfit as misfit:
        raise InvalidError(
            f"row {values[misfit.position][0]}: field {name!r} {misfit.trouble}",
            hint=f"say what it is, fields={{{name!r}: Field(...)}}, or leave it out, "
            f"fields={{{name!r}: None}}",
        ) from None


def infer_field(values: Sequence[Any]) -> Field:
    """Give the field that values of one name fit into; None stands for a missing value."""
    told = [(position, value) for position, value in enumerate(values) if value is not None]
    if not told:
        return Field("json")
    kinds = {_kind(value) for _, value in told}
    if len(kinds) == 1 and kinds <= {"bytes", "str", "json"}:
        (kind,) = kinds
        return Field(kind)
    if kinds == {"array"}:
        return _array_field([(position, as_array(value)) for position, value in told])
    if (
        "json" in kinds
        and kinds <= {"array", "json", "str"}
        and all(_plain(value) for _, value in told)
    ):
        return Field("json")
    first = _kind(told[0][1])
    for position, value in told:
        if _kind(value) != first:
            raise Misfit(position, f"is {_words(value)}, and it was {_words(told[0][1])} before")
    raise Misfit(told[0][0], f"is {_words(told[0][1])}, which no field can hold")


def _array_field(arrays: list[tuple[int, npt.NDArray[Any]]]) -> Field:
    first = arrays[0][1]
    # NumPy calls an empty list float64 for want of anything better.
    dtype = next((array.dtype for _, array in arrays if array.size), first.dtype)
    for position, array in arrays:
        if array.ndim != first.ndim:
            raise Misfit(position, f"has {array.ndim} dimensions, and it had {first.ndim} before")
        if array.dtype == dtype or (array.size == 0 and array.dtype == np.float64):
            continue
        try:
            dtype = np.result_type(dtype, array.dtype)
        except TypeError:
            raise Misfit(position, f"is {array.dtype}, and it was {dtype} before") from None
    if dtype.kind == "U":
        return Field("str") if not first.ndim else Field("json")
    varying = 0
    for axis in range(first.ndim):
        if any(array.shape[axis] != first.shape[axis] for _, array in arrays):
            varying = axis + 1
    if varying:
        return Field(dtype, first.shape[varying:], ragged=varying)
    return Field(dtype, first.shape)


def as_array(value: Any) -> npt.NDArray[Any]:
    """Give a value that is a number or an array as an array."""
    return np.asarray(value)


def _kind(value: Any) -> str:  # noqa: PLR0911 - one line per kind
    if isinstance(value, _BYTES):
        return "bytes"
    if isinstance(value, str):
        return "str"
    if isinstance(value, Mapping):
        return "json"
    if isinstance(value, Ragged):
        return "unknown"
    if isinstance(value, list | tuple):
        return "array" if _is_array(value) else "json"
    if isinstance(value, bool | int | float | complex | np.generic) or hasattr(value, "__array__"):
        array = np.asarray(value)
        return "unknown" if array.dtype.hasobject else "array"
    return "unknown"


def _is_array(value: Sequence[Any]) -> bool:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError):
        return False
    return (array.dtype.kind in "biufcmM" and array.size > 0) or not _flat(value)


def _flat(value: Any) -> list[Any]:
    found = []
    for item in value:
        found += _flat(item) if isinstance(item, list | tuple) else [item]
    return found


def _plain(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _words(value: Any) -> str:
    kind = _kind(value)
    if kind == "array":
        array = np.asarray(value)
        return f"{array.dtype} of shape {array.shape}" if array.ndim else f"one {array.dtype}"
    return {"bytes": "bytes", "str": "text", "json": "a structure"}.get(
        kind, type_name(type(value))
    )
