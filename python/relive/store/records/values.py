"""Values of a field: conversion to the stored dtype, to stored bytes, and back.

A value is refused if the conversion would lose something. The core takes values that fit without
a conversion by itself and calls the function of `preparer` for all others, so that these rules
are the only ones.
"""

import json
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from relive._arguments import type_name
from relive.errors import CorruptError, InvalidError, InvalidTypeError
from relive.model.ragged import Ragged
from relive.model.schema import Field
from relive.model.source import IndexArray, pick_fields

Prepare: TypeAlias = Callable[[Any], npt.NDArray[Any] | bytes | None]
"""Returns what the core stores for a value: an array of the exact dtype and shape, or bytes."""

_SHOWN = 60


def preparer(name: str, field: Field) -> Prepare:
    """Return the function that converts a value of a field to what the core stores."""
    what = f"field {name!r}"
    if not isinstance(field.dtype, np.dtype):
        encode = {"bytes": _bytes, "str": _text, "json": _json}[field.dtype]
        return lambda value: None if value is None else encode(what, value)
    dtype, varying, shape = field.dtype, int(field.ragged), field.shape

    def prepare(value: Any) -> npt.NDArray[Any] | None:
        if value is None:
            return None
        array = as_array(what, value, dtype)
        if array.ndim == varying + len(shape) and array.shape[varying:] == shape:
            return array
        if varying == 1 and array.shape == (0,):  # [] does not have inner dimensions
            return array.reshape(0, *shape)
        raise InvalidError(
            f"{what} must have the shape {_shape_text(varying, shape)}, got {array.shape}"
        )

    return prepare


def as_record(record: object) -> dict[str, Any]:
    """Return a record as a dict."""
    if isinstance(record, Mapping):
        return dict(record)
    raise InvalidTypeError(
        f"a record must be a dict from field names to values, got {type_name(type(record))}"
    )


def refuse_fields(fields: Mapping[str, Field], record: Mapping[Any, Any]) -> NoReturn:
    """Raise an error that names the keys of a record that are not fields."""
    pick_fields(fields, list(record))
    raise InvalidError(
        "cannot write the record: another thread changed the fields of the store meanwhile"
    )


def _bytes(what: str, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 1:
        return value.tobytes()
    raise InvalidTypeError(
        f"{what} must be bytes, got {type_name(type(value))}",
        hint="pass value.encode()" if isinstance(value, str) else None,
    )


def _text(what: str, value: Any) -> bytes:
    if not isinstance(value, str):
        raise InvalidTypeError(
            f"{what} must be a str, got {type_name(type(value))}",
            hint="pass value.decode()" if isinstance(value, bytes) else None,
        )
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise InvalidError(f"{what} cannot be encoded as UTF-8: {error}") from error


def _json(what: str, value: Any) -> bytes:
    # NaN is not JSON, and other readers would fail on it.
    try:
        text = json.dumps(
            value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_scalar
        )
        _check_keys(value)
    except TypeError as error:
        raise InvalidTypeError(f"{what} is not JSON-serializable: {error}") from error
    except (ValueError, RecursionError) as error:
        hint = "store None, or use a field of floats" if "range float" in str(error) else None
        raise InvalidError(f"{what} is not JSON-serializable: {error}", hint=hint) from error
    try:
        return text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can escape
        return json.dumps(value, allow_nan=False, separators=(",", ":"), default=_scalar).encode()


def _check_keys(value: Any) -> None:
    """Raise a `TypeError` if two keys of a dict are the same in JSON, such as 1 and "1"."""
    if isinstance(value, dict):
        if not set(map(type, value)) <= {str}:
            names = [key if isinstance(key, str) else json.dumps(key) for key in value]
            if same := [name for name in set(names) if names.count(name) > 1]:
                raise TypeError(f"two keys of a dict are {min(same)!r} in JSON")
        value = value.values()
    elif not isinstance(value, list | tuple):
        return
    for item in value:
        if isinstance(item, dict | list | tuple):
            _check_keys(item)


def _scalar(value: Any) -> Any:
    if isinstance(value, np.bool_ | np.number):
        return value.item()
    raise TypeError(f"a value of type {type_name(type(value))} cannot be converted to JSON")


def _shape_text(varying: int, shape: tuple[int, ...]) -> str:
    leading = ["any"] * varying
    return f"({', '.join([*leading, *map(str, shape)])}{',' * (varying + len(shape) == 1)})"


def assemble(
    name: str,
    field: Field,
    found: Any,
    shape: tuple[int, ...],
    dims: Callable[[], IndexArray],
) -> npt.NDArray[Any] | Ragged:
    """Return what the core gathered as the array or `Ragged` that `gather` returns.

    `found` is an array, or values and offsets. `dims` returns the varying dimensions of each
    row, for a field that has several.
    """
    if not isinstance(found, tuple):
        array: npt.NDArray[Any] = found
        return array
    values, offsets = found
    if not isinstance(field.dtype, np.dtype):
        return _objects(name, field.dtype, values, offsets).reshape(shape)
    if field.ragged == 1:
        return Ragged(values, offsets)
    leading = dims()
    inner = np.broadcast_to(np.array(field.shape, np.int64), (len(leading), len(field.shape)))
    size = int(np.prod(field.shape, dtype=np.int64))
    shapes = np.concatenate([leading, inner], axis=1)
    return Ragged(values.reshape(-1), offsets * size, shapes)


def _objects(
    name: str, kind: str, values: npt.NDArray[np.uint8], offsets: IndexArray
) -> npt.NDArray[np.object_]:
    joined = values.tobytes()
    stored = (joined[start:stop] for start, stop in pairwise(offsets.tolist()))
    objects = np.empty(len(offsets) - 1, dtype=object)
    try:
        for row, data in enumerate(stored):
            objects[row] = _decode(kind, data)
    except ValueError as error:
        raise CorruptError(
            f"field {name!r}: a stored value is not valid {kind}: {error}"
        ) from error
    return objects


def _decode(kind: str, data: bytes) -> Any:
    if kind == "bytes":
        return data
    if kind == "str":
        return data.decode()
    return json.loads(data) if data else None  # a missing value has no bytes


def as_array(what: str, value: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return `value` as a C-contiguous array of `dtype` and any shape.

    Integers and text must fit. Floats may lose digits but not become infinite. No other kind of
    number is converted: floats do not become integers, nor numbers booleans.
    """
    array = _array(what, value, dtype)
    if array.dtype != dtype:
        array = _converted(what, array, dtype, empty=not isinstance(value, np.ndarray))
    # Not ascontiguousarray(), which adds a dimension to a single value.
    return array if array.flags.c_contiguous else array.copy(order="C")


def is_extension(dtype: np.dtype[Any]) -> bool:
    """Return whether another package added this dtype to NumPy, as ml_dtypes does bfloat16."""
    return dtype.type.__module__.partition(".")[0] != "numpy"


def _array(what: str, value: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if isinstance(value, np.ma.MaskedArray):
        raise InvalidTypeError(
            f"{what} is a masked array, but a mask cannot be stored", hint="pass array.filled()"
        )
    if dtype.names and isinstance(value, tuple | list):
        return _members(what, value, dtype)
    try:
        array = np.asarray(value)
        # NumPy converts text and objects of the standard library to dates only on request.
        is_date = dtype.kind in "mM" and array.dtype.kind in "UO"
        return np.asarray(value, dtype) if is_date else array
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise InvalidTypeError(
            f"{what} cannot be converted to {dtype}: {error}",
            hint="pass tensor.detach().cpu()" if hasattr(value, "detach") else None,
        ) from error


def _members(
    what: str, value: tuple[Any, ...] | list[Any], dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    """Return a tuple as one structured value, and a list as an array of them."""
    if isinstance(value, list):
        rows = [as_array(what, row, dtype) for row in value]
        return np.array(rows, dtype) if rows else np.empty(0, dtype)
    if len(value) != len(dtype.names or ()):
        raise InvalidError(
            f"{what} has {len(value)} members, expected {len(dtype.names or ())} for {dtype}"
        )
    found = np.zeros((), dtype)
    for name, member in zip(dtype.names or (), value, strict=True):
        inner, shape = dtype[name].subdtype or (dtype[name], ())
        array = as_array(f"{what}: {name!r}", member, inner)
        if array.shape != shape:
            raise InvalidError(f"{what}: {name!r} has the shape {array.shape}, expected {shape}")
        found[name] = array
    return found


def _converted(
    what: str, array: npt.NDArray[Any], dtype: np.dtype[Any], *, empty: bool
) -> npt.NDArray[Any]:
    if array.size == 0 and empty:  # NumPy makes [] an array of floats
        return np.empty(array.shape, dtype)
    if array.dtype.kind in "iu" and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if array.size and not (limits.min <= array.min() and array.max() <= limits.max):
            raise _out_of_range(what, array, dtype)
        return array.astype(dtype)
    if array.dtype.kind == "O" or not _is_convertible(array.dtype, dtype):
        raise _misfit(what, array, dtype)
    try:
        with np.errstate(over="raise", invalid="ignore", under="ignore"):
            cast = array.astype(dtype)
    except (FloatingPointError, OverflowError, TypeError, ValueError) as error:
        raise _out_of_range(what, array, dtype) from error
    lost = _may_lose(array.dtype, dtype) and not _same(cast.astype(array.dtype), array)
    if lost or (is_extension(dtype) and not _stays_finite(array, cast)):
        raise _out_of_range(what, array, dtype)
    return cast


def _is_convertible(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Return whether values of one dtype may be converted to the other."""
    if wanted.names or given.names:
        return np.can_cast(given, wanted, "safe")
    if wanted.kind in "SU":
        return given.kind == wanted.kind
    if is_extension(wanted):
        return np.can_cast(given, wanted, "same_kind") and not (
            _is_integer(wanted) and given.kind not in "iub"
        )
    if wanted.kind == "V":
        return given.kind in "SV" and given.itemsize == wanted.itemsize
    if wanted.kind == "m" and given.kind != "m":
        return False
    return np.can_cast(given, wanted, "same_kind")


def _may_lose(given: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Return whether a conversion may change a value without an error of NumPy."""
    return (
        wanted.kind in "SUmM"
        or (is_extension(wanted) and _is_integer(wanted))
        or (is_extension(given) and wanted.kind in "iub")
    )


def _stays_finite(array: npt.NDArray[Any], cast: npt.NDArray[Any]) -> bool:
    """Return whether finite values stay finite; some extension dtypes do not report it."""
    return bool(np.all(np.isfinite(cast) | ~np.isfinite(array)))


def _is_integer(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iu" or dtype.name.startswith(("int", "uint"))


def _same(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    equal = one == other
    if one.dtype.kind in "mM":
        equal = equal | (np.isnat(one) & np.isnat(other))
    return bool(np.all(equal))


def _out_of_range(what: str, array: npt.NDArray[Any], dtype: np.dtype[Any]) -> InvalidError:
    return InvalidError(f"{what}: {_shown(array)} cannot be stored as {dtype}")


def _misfit(what: str, array: npt.NDArray[Any], dtype: np.dtype[Any]) -> InvalidTypeError:
    if array.dtype.kind == "O":
        return InvalidTypeError(f"{what}: {_shown(array)} cannot be converted to {dtype}")
    return InvalidTypeError(
        f"{what} must be {dtype}, got {array.dtype}",
        hint=f"convert it with value.astype({str(dtype)!r})",
    )


def _shown(array: npt.NDArray[Any]) -> str:
    text = " ".join(np.array2string(array, threshold=6, edgeitems=2).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
