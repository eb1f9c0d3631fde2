"""Values made into a column of one field, or an error that names the row."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive._arguments import type_name
from relive.bridge.infer import Misfit, as_array, infer_field
from relive.bridge.stream import Column
from relive.errors import InvalidError, ReliveError
from relive.model.ragged import Ragged
from relive.model.schema import Field

__all__ = ["fit_column", "fit_rows", "misfit_error"]

_NUMBERS: Final = "biufc"


def fit_rows(
    rows: Sequence[Mapping[str, Any]],
    fields: Mapping[str, Field],
    first: int,
    keeps: Callable[[str], bool],
) -> dict[str, Column]:
    """Make columns of rows; `first` is the number of the first one, for what errors say.

    A name that a row lacks is a missing value. A name that is no field, and that `keeps` does
    not turn away, is an error.
    """
    for offset, row in enumerate(rows):
        for name in row:
            if name not in fields and keeps(name):
                raise InvalidError(
                    f"row {first + offset}: field {name!r} was not in the rows before",
                    hint=f"say what it is, fields={{{name!r}: Field(...)}}, leave it out, "
                    f"fields={{{name!r}: None}}, or look at more rows first: sample=N",
                )
    return {
        name: fit_column(name, field, [row.get(name) for row in rows], first)
        for name, field in fields.items()
    }


def fit_column(name: str, field: Field, values: Sequence[Any], first: int) -> Column:
    """Make a column of the values of one field; the first is that of row `first`."""
    try:
        return _column(field, values)
    except Misfit as misfit:
        position, trouble = misfit.position, misfit.trouble
    raise misfit_error(name, field, first + position, trouble, values[position])


def misfit_error(name: str, field: Field, row: int, trouble: str, value: Any) -> ReliveError:
    """Give the error for a value that its field cannot hold, with the field that could."""
    return InvalidError(
        f"row {row}: field {name!r} {trouble}, and it is {field!r}",
        hint=f"fields={{{name!r}: {_wider(field, value)}}} holds both",
    )


def _wider(field: Field, value: Any) -> str:
    """Say which field would hold the values so far and this one, too."""
    try:
        found = infer_field([value])
    except Misfit:
        return 'Field("json")'
    if not isinstance(field.dtype, np.dtype) or not isinstance(found.dtype, np.dtype):
        return 'Field("json")'
    ours = (None,) * int(field.ragged) + field.shape
    theirs = (None,) * int(found.ragged) + found.shape
    try:
        dtype = np.result_type(field.dtype, found.dtype)
    except TypeError:
        return 'Field("json")'
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
    if field.dtype == "bytes":
        return [_bytes(position, value) for position, value in enumerate(values)]
    if field.dtype == "str":
        return [_text(position, value) for position, value in enumerate(values)]
    if field.dtype == "json":
        return [_json(position, value) for position, value in enumerate(values)]
    arrays = [
        None if value is None else _array(field, position, value)
        for position, value in enumerate(values)
    ]
    told = [array for array in arrays if array is not None]
    if len(told) < len(arrays):
        return arrays
    if not field.ragged:
        return np.stack(told) if told else np.empty((0, *field.shape), field.array_dtype)
    return _ragged(field, told)


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
    raise Misfit(position, f"is {_described(value)}")


def _text(position: int, value: Any) -> Any:
    if value is None or type(value) is str:
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise Misfit(position, "is bytes that are no UTF-8") from None
    raise Misfit(position, f"is {_described(value)}")


def _json(position: int, value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise Misfit(position, f"cannot be said in JSON ({error})") from None
    return value


def _array(field: Field, position: int, value: Any) -> npt.NDArray[Any]:
    try:
        array = as_array(value)
    except (TypeError, ValueError, OverflowError):
        raise Misfit(position, f"is {_described(value)}") from None
    varying, shape = int(field.ragged), field.shape
    if not varying and array.shape == (1,) and shape == ():
        array = array.reshape(())
    if array.ndim != varying + len(shape) or array.shape[varying:] != shape:
        raise Misfit(position, f"has the shape {array.shape}")
    return _cast(array, field.array_dtype, position)


def _cast(array: npt.NDArray[Any], dtype: np.dtype[Any], position: int) -> npt.NDArray[Any]:
    source = array.dtype
    if source == dtype:
        return array
    if array.size == 0 and source == np.float64:  # what NumPy calls an empty list
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
    raise Misfit(position, f"is {source}")


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    return type_name(type(value))
