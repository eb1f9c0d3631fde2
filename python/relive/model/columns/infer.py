"""Infer fields from values."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive._arguments import type_name
from relive.errors import InvalidError, InvalidTypeError
from relive.model.ragged import Ragged
from relive.model.schema import Field

_BYTES: Final = (bytes, bytearray, memoryview)


class ValueMismatchError(Exception):
    """A value does not fit; callers add the field and the row. Callers never pass it on."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(reason)
        self.position = position
        self.reason = reason


def infer_fields(rows: Iterable[Mapping[str, Any]]) -> dict[str, Field]:
    """Return the fields that fit all `rows`, in the order in which their names first occur.

    Bytes and text become "bytes" and "str". Numbers and arrays of one shape become fixed
    fields, arrays that differ in their leading dimensions ragged ones. Dicts, and lists that do
    not form an array, become "json", and so do numbers and texts if other rows hold such
    values. A name that is absent from a row, or None in it, is a missing value. Values that no
    single field can hold are an `InvalidError` that names the row and the field.

    Example:
        >>> from relive.bridge import infer_fields
        >>> infer_fields([{"id": 1, "tags": ["a"]}, {"id": 2, "tags": []}])
        {'id': Field('int64'), 'tags': Field('json')}
    """
    columns: dict[str, tuple[list[int], list[Any]]] = {}
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InvalidTypeError(f"row {number} must be a dict, got {type_name(type(row))}")
        for name, value in row.items():
            if not isinstance(name, str) or not name:
                raise InvalidTypeError(
                    f"row {number}: a field name must be a non-empty string, got {name!r}"
                )
            numbers, values = columns.setdefault(name, ([], []))
            numbers.append(number)
            values.append(value)
    return {
        name: infer_named_field(name, values, numbers)
        for name, (numbers, values) in columns.items()
    }


def infer_named_field(name: str, values: Sequence[Any], rows: Sequence[int]) -> Field:
    """Return the field that fits all values; errors name the field and one of `rows`."""
    try:
        return infer_field(values)
    except ValueMismatchError as error:
        raise InvalidError(
            f"row {rows[error.position]}: field {name!r} {error.reason}",
            hint=f"set its type with fields={{{name!r}: Field(...)}}, or drop it with "
            f"fields={{{name!r}: None}}",
        ) from None


def infer_field(values: Sequence[Any]) -> Field:
    """Return the field that fits all values; None is a missing value."""
    present = [(position, value) for position, value in enumerate(values) if value is not None]
    if not present:
        return Field("json")
    kinds = {_kind(value) for _, value in present}
    if len(kinds) == 1 and kinds <= {"bytes", "str", "json"}:
        (kind,) = kinds
        return Field(kind)
    if kinds == {"array"}:
        return _array_field([(position, np.asarray(value)) for position, value in present])
    if (
        "json" in kinds
        and kinds <= {"array", "json", "str"}
        and all(_is_json(value) for _, value in present)
    ):
        return Field("json")
    first = present[0][1]
    for position, value in present:
        if _kind(value) != _kind(first):
            raise ValueMismatchError(
                position, f"is {_described(value)}, but earlier rows have {_described(first)}"
            )
    raise ValueMismatchError(present[0][0], f"is {_described(first)}, which cannot be stored")


def _array_field(arrays: list[tuple[int, npt.NDArray[Any]]]) -> Field:
    first = arrays[0][1]
    # NumPy makes an empty list float64, so an empty row does not tell the dtype of the items.
    dtype = next((array.dtype for _, array in arrays if array.size), first.dtype)
    for position, array in arrays:
        if array.ndim != first.ndim:
            raise ValueMismatchError(
                position, f"has {array.ndim} dimensions, but earlier rows have {first.ndim}"
            )
        if array.dtype == dtype or (array.size == 0 and array.dtype == np.float64):
            continue
        try:
            dtype = np.result_type(dtype, array.dtype)
        except TypeError:
            raise ValueMismatchError(
                position, f"is {array.dtype}, but earlier rows have {dtype}"
            ) from None
    if dtype.kind == "U":
        return Field("str") if not first.ndim else Field("json")
    varying = 0
    for axis in range(first.ndim):
        if any(array.shape[axis] != first.shape[axis] for _, array in arrays):
            varying = axis + 1
    if varying:
        return Field(dtype, first.shape[varying:], ragged=varying)
    return Field(dtype, first.shape)


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
    return (array.dtype.kind in "biufcmM" and array.size > 0) or not _has_items(value)


def _has_items(value: Any) -> bool:
    """Check whether nested lists contain anything but lists."""
    return any(_has_items(item) if isinstance(item, list | tuple) else True for item in value)


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _described(value: Any) -> str:
    kind = _kind(value)
    if kind == "array":
        array = np.asarray(value)
        return f"{array.dtype} of shape {array.shape}" if array.ndim else f"a single {array.dtype}"
    return {"bytes": "bytes", "str": "text", "json": "a dict or a nested list"}.get(
        kind, type_name(type(value))
    )
