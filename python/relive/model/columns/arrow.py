"""Map Arrow types to fields, and Arrow arrays to columns."""

import json
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from relive.errors import CorruptError, InvalidError, UnsupportedError
from relive.model.columns.cast import Column, cast_column, mismatch_error
from relive.model.ragged import Ragged
from relive.model.schema import Field

JSON_METADATA: Final = {b"relive.dtype": b"json"}
"""The metadata of a text column whose values are JSON."""


def arrow_fields(first: pa.Table, media: frozenset[str] = frozenset()) -> dict[str, Field]:
    """Return the fields for the columns of a table whose first rows are `first`.

    Lists of lists are arrays if those of the first rows are, and JSON otherwise. The columns
    `media` are structs of bytes and a path, whose fields are bytes.
    """
    return {
        column.name: Field("bytes")
        if column.name in media
        else _field(column.name, column.type, first.column(k), column.metadata)
        for k, column in enumerate(first.schema)
    }


def arrow_column(name: str, field: Field, array: Any, first: int) -> Column:
    """Return an Arrow array as a column; the first value is that of row `first`."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
    array = _storage(array)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if not isinstance(field.dtype, np.dtype):
        return _variable(name, field, array, first)
    if array.null_count:
        return _with_nulls(name, field, array, first)
    if not field.ragged:
        return _fixed(name, field, array, first)
    return _ragged(name, field, array, first)


def _field(name: str, kind: Any, values: Any, metadata: Mapping[bytes, bytes] | None) -> Field:
    shape = _tensor_shape(kind)
    kind = _storage_type(kind)
    if shape is not None and (dtype := _number(_innermost(kind))) is not None:
        return Field(dtype, shape)
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    is_json = metadata is not None and JSON_METADATA.items() <= metadata.items()
    field = Field("json") if is_json and _is_text(kind) else _simple_field(kind)
    return field or _list_field(values, kind) or _json_field(name, kind)


def _simple_field(kind: Any) -> Field | None:
    """Return the field of values that are not lists of variable length."""
    if _is_text(kind):
        return Field("str")
    if _is_binary(kind):
        return Field("bytes")
    if pa.types.is_fixed_size_binary(kind):
        return Field(np.uint8, (kind.byte_width,))
    shape = []
    while pa.types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    dtype = _number(kind)
    return None if dtype is None else Field(dtype, shape)


def _list_field(values: Any, kind: Any) -> Field | None:
    """Return the ragged field of nested lists, if every value is an array."""
    depth = 0
    while pa.types.is_list(kind) or pa.types.is_large_list(kind):
        depth += 1
        kind = kind.value_type
    item = _simple_field(kind)
    if not depth or item is None or not item.fixed or pa.types.is_fixed_size_binary(kind):
        return None
    dtype: Any = item.dtype
    if depth == 1 or _even(values, depth):
        return Field(dtype, item.shape, ragged=depth)
    return None


def _json_field(name: str, kind: Any) -> Field:
    unsupported = _not_json(kind)
    if unsupported is not None:
        raise UnsupportedError(
            f"field {name!r} has the Arrow type {kind}, but {unsupported} values inside "
            "lists or structs cannot be stored",
            hint=f"flatten or cast the column first, or drop it: fields={{{name!r}: None}}",
        )
    return Field("json")


def _not_json(kind: Any) -> Any:
    """Return the first type inside `kind` that JSON cannot represent."""
    t = pa.types
    if t.is_null(kind) or t.is_boolean(kind) or t.is_integer(kind) or t.is_floating(kind):
        return None
    if _is_text(kind):
        return None
    if t.is_dictionary(kind):
        return _not_json(kind.value_type)
    if t.is_struct(kind):
        inside = [kind.field(k).type for k in range(kind.num_fields)]
    elif t.is_map(kind):
        inside = [kind.key_type, kind.item_type]
    elif _is_list(kind):
        inside = [kind.value_type]
    else:
        return kind
    return next((found for part in inside if (found := _not_json(part)) is not None), None)


def _number(kind: Any) -> np.dtype[Any] | None:
    t = pa.types
    if t.is_boolean(kind) or t.is_integer(kind) or t.is_floating(kind):
        dtype: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
        return dtype
    if t.is_timestamp(kind):
        return np.dtype(f"datetime64[{kind.unit}]")
    if t.is_date(kind):
        return np.dtype("datetime64[D]" if t.is_date32(kind) else "datetime64[ms]")
    if t.is_duration(kind) or t.is_time(kind):
        return np.dtype(f"timedelta64[{kind.unit}]")
    return None


def _is_text(kind: Any) -> bool:
    t = pa.types
    return bool(t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind))


def _is_binary(kind: Any) -> bool:
    t = pa.types
    return bool(t.is_binary(kind) or t.is_large_binary(kind) or t.is_binary_view(kind))


def _is_list(kind: Any) -> bool:
    t = pa.types
    return bool(t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind))


def _tensor_shape(kind: Any) -> tuple[int, ...] | None:
    """Return the shape of a tensor extension type of Arrow, or of Array2D of `datasets`."""
    shape = getattr(kind, "shape", None)
    if not isinstance(shape, list | tuple) or None in shape:
        return None
    return tuple(map(int, shape))


def _storage_type(kind: Any) -> Any:
    while hasattr(kind, "storage_type"):
        kind = kind.storage_type
    return kind


def _storage(array: Any) -> Any:
    while hasattr(array, "storage"):
        array = array.storage
    return array


def _innermost(kind: Any) -> Any:
    while _is_list(kind):
        kind = kind.value_type
    return kind


def _even(values: Any, depth: int) -> bool:
    for chunk in values.chunks:
        array = _storage(chunk)
        try:
            _shapes(array, depth)
        except _UnevenError:
            return False
    return True


class _UnevenError(Exception):
    """The lists inside a row have different lengths."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


def _shapes(array: Any, depth: int) -> tuple[npt.NDArray[np.int64], Any]:
    """Return the shape of every row of nested lists, and all their items."""
    lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    if depth == 1:
        return lengths[:, None], array.flatten()
    inner, items = _shapes(array.flatten(), depth - 1)
    starts = np.cumsum(lengths) - lengths
    shapes = np.zeros((len(lengths), depth), np.int64)
    shapes[:, 0] = lengths
    filled = lengths > 0
    shapes[filled, 1:] = inner[starts[filled]]
    owners = np.repeat(np.arange(len(lengths)), lengths)
    wrong = (inner != shapes[owners, 1:]).any(axis=1)
    if wrong.any():
        raise _UnevenError(int(owners[np.argmax(wrong)]))
    return shapes, items


def _numbers(name: str, field: Field, items: Any, first: int) -> npt.NDArray[Any]:
    """Return the items of lists, none of which may be null."""
    while pa.types.is_fixed_size_list(items.type):
        if items.null_count:
            raise _null(name, first)
        items = items.flatten()
    if items.null_count and field.array_dtype.kind != "f":
        raise _null(name, first)
    if pa.types.is_time(items.type):
        items = items.cast(pa.int32() if items.type.bit_width == 32 else pa.int64())  # noqa: PLR2004
    array: npt.NDArray[Any] = items.to_numpy(zero_copy_only=False)
    if array.dtype != field.array_dtype:
        array = array.astype(field.array_dtype)
    return array


def _null(name: str, first: int) -> UnsupportedError:
    return UnsupportedError(
        f"field {name!r} has a null inside a list, at or after row {first}",
        hint=f'store it as JSON: fields={{{name!r}: Field("json")}}',
    )


def _fixed(name: str, field: Field, array: Any, first: int) -> Column:
    rows = len(array)
    items: Any = array
    if pa.types.is_fixed_size_binary(array.type):
        flat = np.frombuffer(b"".join(array.to_pylist()), np.uint8)
        return flat.reshape(rows, *field.shape)
    while _is_list(items.type):
        if items.null_count:
            raise _null(name, first)
        if not pa.types.is_fixed_size_list(items.type):
            _check_lengths(name, field, items, rows, first)
        items = items.flatten()
    flat = _numbers(name, field, items, first)
    if flat.size != rows * int(np.prod(field.shape)):
        raise CorruptError(
            f"field {name!r} has values that do not match its type {field!r}, "
            f"at or after row {first}"
        )
    return flat.reshape(rows, *field.shape)


def _check_lengths(name: str, field: Field, items: Any, rows: int, first: int) -> None:
    """Check that lists of variable length have the length of the tensor type."""
    lengths = items.value_lengths().to_numpy(zero_copy_only=False)
    if len(lengths) and (lengths != lengths[0]).any():
        row = int(np.argmax(lengths != lengths[0])) // max(1, len(lengths) // rows)
        raise InvalidError(
            f"row {first + row}: a list in field {name!r} has a different length than the others, "
            f"but {field!r} needs lists of equal length",
            hint=f'store it as JSON: fields={{{name!r}: Field("json")}}',
        )


def _ragged(name: str, field: Field, array: Any, first: int) -> Column:
    try:
        shapes, items = _shapes(array, int(field.ragged))
    except _UnevenError as uneven:
        value = array[uneven.row].as_py()
        reason = "has inner lists of different lengths"
        raise mismatch_error(name, field, first + uneven.row, reason, value) from None
    offsets = np.zeros(len(shapes) + 1, np.int64)
    np.cumsum(np.prod(shapes, axis=1), out=offsets[1:])
    values = _numbers(name, field, items, first)
    if int(field.ragged) == 1:
        return Ragged(values.reshape(-1, *field.shape), offsets)
    inner = np.broadcast_to(np.array(field.shape, np.int64), (len(shapes), len(field.shape)))
    size = int(np.prod(field.shape, dtype=np.int64))
    return Ragged(values, offsets * size, np.concatenate([shapes, inner], axis=1))


def _with_nulls(name: str, field: Field, array: Any, first: int) -> Column:
    present = array.drop_null()
    column = (
        _ragged(name, field, present, first)
        if field.ragged
        else _fixed(name, field, present, first)
    )
    values = iter(column)
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    return [next(values) if has_value else None for has_value in valid]


def _variable(name: str, field: Field, array: Any, first: int) -> Column:
    if field.dtype != "json":
        return cast_column(name, field, array.to_pylist(), first)
    values: list[Any] = array.to_pylist(maps_as_pydicts="strict")
    if _is_text(array.type):
        return [_parsed(name, first + k, value) for k, value in enumerate(values)]
    return cast_column(name, field, values, first)


def _parsed(name: str, row: int, text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except ValueError as error:
        raise CorruptError(
            f"row {row}: the value of the JSON field {name!r} is not valid JSON: {error}"
        ) from error
