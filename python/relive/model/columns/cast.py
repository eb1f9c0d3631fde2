"""Cast values to the columns of fields; errors name the row and the field."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from relive._arguments import type_name
from relive.errors import InvalidError, ReliveError
from relive.model.columns.infer import ValueMismatchError, infer_field
from relive.model.ragged import Ragged
from relive.model.schema import Field

Column: TypeAlias = npt.NDArray[Any] | Ragged | list[Any]
"""The values of one field: an array, a `Ragged`, or a list with None for a missing value."""


def cast_rows(
    rows: Sequence[Mapping[str, Any]],
    fields: Mapping[str, Field],
    first: int,
    keeps: Callable[[str], bool],
) -> dict[str, Column]:
    """Return the columns of rows, the first of which is row `first` in error messages.

    A name that is absent from a row is a missing value. A name that is not a field is an error
    if `keeps` returns true for it.
    """
    for number, row in enumerate(rows, first):
        for name in row:
            if name not in fields and keeps(name):
                raise InvalidError(
                    f"row {number}: field {name!r} does not occur in the first rows, from which "
                    "the fields were inferred",
                    hint=f"set its type with fields={{{name!r}: Field(...)}}, drop it with "
                    f"fields={{{name!r}: None}}, or infer the fields from more rows with sample=N",
                )
    return {
        name: cast_column(name, field, [row.get(name) for row in rows], first)
        for name, field in fields.items()
    }


def cast_column(name: str, field: Field, values: Sequence[Any], first: int) -> Column:
    """Return the values of one field as a column; the first value is that of row `first`."""
    try:
        return _column(field, values)
    except ValueMismatchError as error:
        position, reason = error.position, error.reason
    raise mismatch_error(name, field, first + position, reason, values[position])


def mismatch_error(name: str, field: Field, row: int, reason: str, value: Any) -> ReliveError:
    """Return the error for a value that does not fit its field, with a field that would hold it."""
    return InvalidError(
        f"row {row}: field {name!r} {reason}, but the field has the type {field!r}",
        hint=f"use a type that can hold all rows: fields={{{name!r}: {_wider(field, value)}}}",
    )


def _wider(field: Field, value: Any) -> str:
    """Return the source text of a field that would hold its values and this one."""
    try:
        other = infer_field([value])
        if not isinstance(field.dtype, np.dtype) or not isinstance(other.dtype, np.dtype):
            return 'Field("json")'
        dtype = np.result_type(field.dtype, other.dtype)
    except (ValueMismatchError, TypeError):
        return 'Field("json")'
    ours = (None,) * int(field.ragged) + field.shape
    theirs = (None,) * int(other.ragged) + other.shape
    if len(ours) != len(theirs):
        return 'Field("json")'
    varying = [k + 1 for k in range(len(ours)) if ours[k] is None or ours[k] != theirs[k]]
    ragged = max(varying, default=0)
    parts = [repr(str(dtype))]
    if ours[ragged:]:
        parts.append(repr(ours[ragged:]))
    if ragged:
        parts.append(f"ragged={True if ragged == 1 else ragged}")
    return f"Field({', '.join(parts)})"


def _column(field: Field, values: Sequence[Any]) -> Column:
    if not isinstance(field.dtype, np.dtype):
        cast = {"bytes": _bytes, "str": _text, "json": _json}[field.dtype]
        return [cast(position, value) for position, value in enumerate(values)]
    arrays = [
        None if value is None else _array(field, position, value)
        for position, value in enumerate(values)
    ]
    present = [array for array in arrays if array is not None]
    if len(present) < len(arrays):
        return arrays
    if not field.ragged:
        return np.stack(present) if present else np.empty((0, *field.shape), field.array_dtype)
    return _ragged(field, present)


def _ragged(field: Field, arrays: list[npt.NDArray[Any]]) -> Ragged:
    offsets = np.zeros(len(arrays) + 1, np.int64)
    if int(field.ragged) == 1:
        np.cumsum([len(array) for array in arrays], out=offsets[1:])
        empty = np.empty((0, *field.shape), field.array_dtype)
        return Ragged(np.concatenate([empty, *arrays]), offsets)
    np.cumsum([array.size for array in arrays], out=offsets[1:])
    empty = np.empty(0, field.array_dtype)
    flat = np.concatenate([empty, *(array.ravel() for array in arrays)])
    shapes = np.array([array.shape for array in arrays], np.int64)
    return Ragged(flat, offsets, shapes.reshape(len(arrays), -1))


def _bytes(position: int, value: Any) -> Any:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise ValueMismatchError(position, f"is {_described(value)}")


def _text(position: int, value: Any) -> Any:
    if value is None or type(value) is str:
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise ValueMismatchError(position, "is bytes that are not UTF-8") from None
    raise ValueMismatchError(position, f"is {_described(value)}")


def _json(position: int, value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueMismatchError(position, f"is not JSON-serializable ({error})") from None
    return value


def _array(field: Field, position: int, value: Any) -> npt.NDArray[Any]:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueMismatchError(position, f"is {_described(value)}") from None
    varying, shape = int(field.ragged), field.shape
    if not varying and array.shape == (1,) and shape == ():
        array = array.reshape(())
    if array.ndim != varying + len(shape) or array.shape[varying:] != shape:
        raise ValueMismatchError(position, f"has the shape {array.shape}")
    return _cast(array, field.array_dtype, position)


def _cast(array: npt.NDArray[Any], dtype: np.dtype[Any], position: int) -> npt.NDArray[Any]:
    source = array.dtype
    if source == dtype:
        return array
    if array.size == 0 and source == np.float64:  # the dtype of an empty list
        return array.astype(dtype)
    if np.can_cast(source, dtype, "safe"):
        return array.astype(dtype)
    if np.can_cast(source, dtype, "same_kind"):
        with np.errstate(over="ignore"):
            cast = array.astype(dtype)
        if dtype.kind not in "iu" or np.array_equal(cast, array):
            return cast
    elif source.kind in "iu" and dtype.kind in "iu":
        cast = array.astype(dtype)
        if np.array_equal(cast, array):
            return cast
    raise ValueMismatchError(position, f"is {source}")


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    return type_name(type(value))
