"""Values of fields as they come in, and as they go out again."""

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
from relive.store.records.cast import as_array

__all__ = ["Prepare", "as_record", "assemble", "preparer", "refuse_fields"]

Prepare: TypeAlias = Callable[[Any], npt.NDArray[Any] | bytes | None]
"""Makes of a value what the core stores: an array that fits exactly, bytes, or nothing."""


def preparer(name: str, field: Field) -> Prepare:
    """Give the function that makes values of a field fit; the core calls it where they do not."""
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
        if varying == 1 and array.shape == (0,):  # [] has no inner dimensions
            return array.reshape(0, *shape)
        raise InvalidError(f"{what} has the shape {_words(varying, shape)}, not {array.shape}")

    return prepare


def as_record(record: object) -> dict[str, Any]:
    """Give a record as a dict."""
    if isinstance(record, Mapping):
        return dict(record)
    raise InvalidTypeError(
        f"a record is a dict of field name to value, not {type(record).__name__}"
    )


def refuse_fields(fields: Mapping[str, Field], record: Mapping[Any, Any]) -> NoReturn:
    """Say which name in a record is of no field."""
    pick_fields(fields, list(record))
    raise InvalidError("the fields of the store changed meanwhile")


def _bytes(what: str, value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 1:
        return value.tobytes()
    raise InvalidTypeError(
        f"{what} holds bytes, not {type(value).__name__}",
        hint="value.encode()" if isinstance(value, str) else None,
    )


def _text(what: str, value: Any) -> bytes:
    if not isinstance(value, str):
        raise InvalidTypeError(
            f"{what} holds str, not {type(value).__name__}",
            hint="value.decode()" if isinstance(value, bytes) else None,
        )
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise InvalidError(f"{what}: the text cannot be stored as UTF-8: {error}") from error


def _json(what: str, value: Any) -> bytes:
    # What others read must be JSON, which has no NaN: silence here would be an error there.
    try:
        text = json.dumps(
            value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_scalar
        )
    except TypeError as error:
        raise InvalidTypeError(f"{what} holds what JSON can say: {error}") from error
    except (ValueError, RecursionError) as error:
        hint = "None in its place, or a field of floats" if "range float" in str(error) else None
        raise InvalidError(f"{what} holds what JSON can say: {error}", hint=hint) from error
    try:
        return text.encode()
    except UnicodeEncodeError:  # half of a pair, which JSON can say in ASCII
        return json.dumps(value, allow_nan=False, separators=(",", ":"), default=_scalar).encode()


def _scalar(value: Any) -> Any:
    if isinstance(value, np.bool_ | np.number):
        return value.item()
    raise TypeError(f"{type_name(type(value))} is none of its types")


def _words(varying: int, shape: tuple[int, ...]) -> str:
    leading = ["any"] * varying
    return f"({', '.join([*leading, *map(str, shape)])}{',' * (varying + len(shape) == 1)})"


def assemble(
    name: str,
    field: Field,
    found: Any,
    shape: tuple[int, ...],
    dims: Callable[[], IndexArray],
) -> npt.NDArray[Any] | Ragged:
    """Give what the core gathered as users see it.

    `found` is an array, or values and offsets; `dims` gives the dimensions that vary of a field
    that has several.
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
    data = values.tobytes()
    pieces = (data[start:stop] for start, stop in pairwise(offsets.tolist()))
    objects = np.empty(len(offsets) - 1, dtype=object)
    try:
        for place, piece in enumerate(pieces):
            objects[place] = decode(kind, piece)
    except ValueError as error:
        raise CorruptError(f"field {name!r}: a value is no {kind}: {error}") from error
    return objects


def decode(kind: str, data: bytes) -> Any:
    """Give stored bytes as users see them; of JSON without bytes, None."""
    if kind == "bytes":
        return data
    if kind == "str":
        return data.decode()
    return json.loads(data) if data else None
