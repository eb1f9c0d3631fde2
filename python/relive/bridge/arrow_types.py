"""Arrow types as fields, and Arrow arrays as columns."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from relive.bridge.cast import fit_column, misfit_error
from relive.bridge.stream import Column
from relive.errors import CorruptError, InvalidError, UnsupportedError
from relive.model.ragged import Ragged
from relive.model.schema import Field
from relive.store.atomic import storage_error

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["JSON_MARK", "arrow_column", "arrow_fields"]

JSON_MARK: Final = {b"relive.dtype": b"json"}
"""What the metadata of a column of JSON text says."""


def arrow_fields(first: "pa.Table", images: frozenset[str] = frozenset()) -> dict[str, Field]:
    """Give the fields for the columns of a table, of which the first rows are `first`.

    Lists of lists are arrays where those of the first rows are, and else JSON. The columns
    `images` have bytes and a path, of which the bytes are taken.
    """
    return {
        column.name: Field("bytes")
        if column.name in images
        else _field(column.name, column.type, first.column(k), column.metadata)
        for k, column in enumerate(first.schema)
    }


def arrow_column(name: str, field: Field, array: Any, first: int) -> Column:
    """Make a column of an Arrow array; the first value is that of row `first`."""
    import pyarrow as pa

    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
    array, _ = _storage(array)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if not isinstance(field.dtype, np.dtype):
        return _variable(name, field, array, first)
    if array.null_count:
        return _with_gaps(name, field, array, first)
    if not field.ragged:
        return _fixed(name, field, array, first)
    return _ragged(name, field, array, first)


def _field(name: str, kind: Any, values: Any, metadata: Mapping[bytes, bytes] | None) -> Field:
    import pyarrow as pa

    shape = _tensor_shape(kind)
    kind = _storage_type(kind)
    if shape is not None and (dtype := _number(_innermost(kind))) is not None:
        return Field(dtype, shape)
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    marked = metadata is not None and JSON_MARK.items() <= metadata.items()
    found = Field("json") if marked and _is_text(kind) else _single(kind)
    return found or _listed(values, kind) or _json(name, kind)


def _single(kind: Any) -> Field | None:
    """Give the field of values that are no lists of any length."""
    import pyarrow as pa

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


def _listed(values: Any, kind: Any) -> Field | None:
    """Give the field of lists of numbers, or of arrays, where they make arrays themselves."""
    import pyarrow as pa

    depth = 0
    while pa.types.is_list(kind) or pa.types.is_large_list(kind):
        depth += 1
        kind = kind.value_type
    item = _single(kind)
    if not depth or item is None or not item.fixed or pa.types.is_fixed_size_binary(kind):
        return None
    dtype: Any = item.dtype
    if depth == 1 or _even(values, depth):
        return Field(dtype, item.shape, ragged=depth)
    return None


def _json(name: str, kind: Any) -> Field:
    stranger = _not_json(kind)
    if stranger is not None:
        raise UnsupportedError(
            f"field {name!r} is {kind}, and no field can hold {stranger} inside of others",
            hint=f"flatten or cast it first, or leave it out: fields={{{name!r}: None}}",
        )
    return Field("json")


def _not_json(kind: Any) -> Any:
    """Give the first type inside of `kind` that JSON has no word for."""
    import pyarrow as pa

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
    import pyarrow as pa

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
    import pyarrow as pa

    t = pa.types
    return bool(t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind))


def _is_binary(kind: Any) -> bool:
    import pyarrow as pa

    t = pa.types
    return bool(t.is_binary(kind) or t.is_large_binary(kind) or t.is_binary_view(kind))


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    t = pa.types
    return bool(t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind))


def _tensor_shape(kind: Any) -> tuple[int, ...] | None:
    """Give the shape that an extension type promises: Arrow's tensors, and Array2D of datasets."""
    shape = getattr(kind, "shape", None)
    if not isinstance(shape, list | tuple) or None in shape:
        return None
    return tuple(map(int, shape))


def _storage_type(kind: Any) -> Any:
    while hasattr(kind, "storage_type"):
        kind = kind.storage_type
    return kind


def _storage(array: Any) -> tuple[Any, Any]:
    kind = array.type
    while hasattr(array, "storage"):
        array = array.storage
    return array, kind


def _innermost(kind: Any) -> Any:
    while _is_list(kind):
        kind = kind.value_type
    return kind


def _even(values: Any, depth: int) -> bool:
    for chunk in values.chunks:
        array, _ = _storage(chunk)
        try:
            _shapes(array, depth)
        except _UnevenError:
            return False
    return True


class _UnevenError(Exception):
    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


def _shapes(array: Any, depth: int) -> tuple[npt.NDArray[np.int64], Any]:
    """Give the shape of every row of nested lists, and all their items."""
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
    """Give the items inside of lists, none of which may be null."""
    import pyarrow as pa

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
        f"field {name!r} has a null inside of a list, in the rows from {first} on",
        hint=f'fields={{{name!r}: Field("json")}} keeps it',
    )


def _fixed(name: str, field: Field, array: Any, first: int) -> Column:
    import pyarrow as pa

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
        raise CorruptError(f"field {name!r}: the rows from {first} on are not {field!r}")
    return flat.reshape(rows, *field.shape)


def _check_lengths(name: str, field: Field, items: Any, rows: int, first: int) -> None:
    """See to it that lists of any length have the length that the type promises."""
    lengths = items.value_lengths().to_numpy(zero_copy_only=False)
    if len(lengths) and (lengths != lengths[0]).any():
        row = int(np.argmax(lengths != lengths[0])) // max(1, len(lengths) // rows)
        raise InvalidError(
            f"row {first + row}: field {name!r} is not {field!r}, as its type says",
            hint=f'fields={{{name!r}: Field("json")}} keeps it',
        )


def _ragged(name: str, field: Field, array: Any, first: int) -> Column:
    try:
        shapes, items = _shapes(array, int(field.ragged))
    except _UnevenError as uneven:
        value = array[uneven.row].as_py()
        trouble = "has lists of different length inside"
        raise misfit_error(name, field, first + uneven.row, trouble, value) from None
    offsets = np.zeros(len(shapes) + 1, np.int64)
    np.cumsum(np.prod(shapes, axis=1), out=offsets[1:])
    values = _numbers(name, field, items, first)
    if int(field.ragged) == 1:
        return Ragged(values.reshape(-1, *field.shape), offsets)
    inner = np.broadcast_to(np.array(field.shape, np.int64), (len(shapes), len(field.shape)))
    size = int(np.prod(field.shape, dtype=np.int64))
    return Ragged(values, offsets * size, np.concatenate([shapes, inner], axis=1))


def _with_gaps(name: str, field: Field, array: Any, first: int) -> Column:
    there = array.drop_null()
    column = (
        _ragged(name, field, there, first) if field.ragged else _fixed(name, field, there, first)
    )
    values = iter(column)
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    return [next(values) if here else None for here in valid]


def _variable(name: str, field: Field, array: Any, first: int) -> Column:
    import pyarrow as pa

    if field.dtype == "bytes" and pa.types.is_struct(array.type):
        return [_media(name, first + k, value) for k, value in enumerate(array.to_pylist())]
    if field.dtype != "json":
        return fit_column(name, field, array.to_pylist(), first)
    values: list[Any] = array.to_pylist(maps_as_pydicts="strict")
    if _is_text(array.type):
        return [_parsed(name, first + k, value) for k, value in enumerate(values)]
    return fit_column(name, field, values, first)


def _media(name: str, row: int, value: Mapping[str, Any] | None) -> bytes | None:
    """Give the bytes of an image or a sound, which may be in a file of their own."""
    if value is None:
        return None
    data, path = value.get("bytes"), value.get("path")
    if data is not None or path is None:
        return data
    try:
        return Path(path).read_bytes()
    except OSError as error:
        problem = storage_error(error, path, "read")
        problem.message = f"row {row}: field {name!r}: {problem.message}"
        raise problem from error


def _parsed(name: str, row: int, text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except ValueError as error:
        raise CorruptError(
            f"row {row}: field {name!r} is marked as JSON and is none: {error}"
        ) from error
