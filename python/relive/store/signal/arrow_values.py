"""Values of a signal as Arrow arrays, and Arrow arrays of any type as values."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from relive._arguments import type_name
from relive.errors import InvalidError, InvalidTypeError, UnsupportedError
from relive.store.signal.meta import DTYPES, SignalMeta

if TYPE_CHECKING:
    import pyarrow as pa


class BadRowError(ValueError):
    """A row that a signal cannot hold; the reader of the file adds its path."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(f"row {row} {reason}")
        self.row = row
        self.reason = reason


def value_type(meta: SignalMeta) -> "pa.DataType":
    """Return the Arrow type of the values of a signal: a scalar, text, or a fixed-size list.

    Parquet has no fixed-size list of size 0; it is a list of variable size.
    """
    import pyarrow as pa

    if meta.dtype == "str":
        return pa.string()
    item = pa.from_numpy_dtype(np.dtype(meta.dtype))
    if not meta.shape:
        return item
    items = pa.field("element", item, nullable=False)
    size = math.prod(meta.shape)
    return pa.list_(items, size) if size else pa.list_(items)


def to_arrow(values: Any, meta: SignalMeta) -> "pa.Array":
    """Convert values to Arrow; numbers are an array of the dtype and shape of `meta`."""
    import pyarrow as pa

    kind = value_type(meta)
    if meta.dtype == "str":
        for value in values:
            if not isinstance(value, str):
                raise InvalidTypeError(
                    f"the value of a text signal must be a string, got {type_name(type(value))}"
                )
        try:
            return pa.array(values, kind)
        except UnicodeEncodeError as error:
            raise InvalidError(
                f"a value of a text signal cannot be encoded as UTF-8: {error}"
            ) from error
    flat = pa.array(values.reshape(-1))
    if not meta.shape:
        return flat
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(flat, type=kind)
    offsets = pa.array(np.zeros(len(values) + 1, np.int32))
    return pa.ListArray.from_arrays(offsets, flat, type=kind)


def describe_type(kind: "pa.DataType") -> tuple[str, tuple[int | None, ...]]:
    """Return the dtype and the shape of values of an Arrow type; None for a size that varies."""
    import pyarrow as pa

    item = kind
    shape: tuple[int | None, ...] = ()
    while (size := _size(item)) or pa.types.is_dictionary(item):
        item, shape = item.value_type, shape + size
    if _is_text(item) and not shape:
        return "str", ()
    if pa.types.is_primitive(item) and not pa.types.is_temporal(item):
        dtype = np.dtype(item.to_pandas_dtype()).name
        if dtype in DTYPES:
            return dtype, shape
    raise UnsupportedError(f"a signal cannot hold values of the Arrow type {kind}")


def from_arrow(array: "pa.Array") -> npt.NDArray[Any]:
    """Return values as one read-only array with an axis of rows; nested lists become axes.

    A null, or a value of another shape than the first, is a `BadRowError`.
    """
    import pyarrow as pa

    rows = len(array)
    shape: tuple[int, ...] = ()
    while True:
        kind = array.type
        if isinstance(kind, pa.FixedShapeTensorType):
            shape += tuple(kind.shape)
            _check_nulls(array, rows)
            array = _items(array.storage)
        elif pa.types.is_dictionary(kind) and not _is_text(kind.value_type):
            array = array.dictionary_decode()
        elif pa.types.is_fixed_size_list(kind):
            _check_nulls(array, rows)
            shape += (kind.list_size,)
            array = _items(array)
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            _check_nulls(array, rows)
            shape += (_common_length(array, rows),)
            array = _items(array)
        else:
            break
    _check_nulls(array, rows)
    values: npt.NDArray[Any]
    if pa.types.is_dictionary(array.type):  # of text: equal values are one string object
        values = _texts(array.dictionary)[_numbers(array.indices)]
    else:
        values = _texts(array) if _is_text(array.type) else _numbers(array)
    values = values.reshape((rows, *shape))
    values.flags.writeable = False
    return values


def times_from_arrow(array: "pa.Array") -> npt.NDArray[np.int64]:
    """Return integers, or Arrow timestamps, as read-only int64 nanoseconds."""
    import pyarrow as pa

    kind = array.type
    if pa.types.is_timestamp(kind):
        array = array.cast(pa.timestamp("ns", kind.tz)).cast(pa.int64())
    elif not pa.types.is_integer(kind):
        raise UnsupportedError(f"timestamps must be integers, got the Arrow type {kind}")
    elif kind != pa.int64():  # a cast imports all compute functions of Arrow
        array = array.cast(pa.int64())
    _check_nulls(array, len(array))
    return _numbers(array)


def one_array(column: "pa.ChunkedArray") -> "pa.Array":
    """Return all chunks of a column as one array; one chunk is not copied."""
    import pyarrow as pa

    if column.num_chunks == 1:
        return column.chunk(0)
    joined = column.combine_chunks()
    if isinstance(joined, pa.ChunkedArray):  # some versions return it for an empty column
        return pa.array([], column.type)
    return joined


def _numbers(array: "pa.Array") -> npt.NDArray[Any]:
    """Return an array of numbers without nulls, read-only; `to_numpy` would import pandas."""
    dtype = np.dtype(array.type.to_pandas_dtype())
    data = array.buffers()[1]
    if not len(array) or data is None:
        return np.empty(0, dtype)
    if dtype == np.bool_:
        count = array.offset + len(array)
        bits = np.unpackbits(np.frombuffer(data, np.uint8), count=count, bitorder="little")
        numbers = bits[array.offset :].view(np.bool_)
    else:
        numbers = np.frombuffer(data, dtype, len(array), array.offset * dtype.itemsize)
    numbers.flags.writeable = False
    return numbers


def _items(array: "pa.Array") -> "pa.Array":
    """Return the items of lists; `flatten` would import all compute functions."""
    import pyarrow as pa

    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        return array.values.slice(array.offset * size, len(array) * size)
    ends = _numbers(array.offsets)
    return array.values.slice(int(ends[0]), int(ends[-1] - ends[0])) if len(ends) else array.values


def _texts(array: "pa.Array") -> npt.NDArray[Any]:
    values = np.empty(len(array), dtype=object)
    values[:] = array.to_pylist()
    return values


def _size(kind: "pa.DataType") -> tuple[int | None, ...]:
    """Return the sizes of the axes that a list or tensor type adds; () for other types."""
    import pyarrow as pa

    if isinstance(kind, pa.FixedShapeTensorType):
        plain = kind.permutation is None or kind.permutation == sorted(kind.permutation)
        return tuple(kind.shape) if plain else ()
    if pa.types.is_fixed_size_list(kind):
        return (kind.list_size,)
    return (None,) if pa.types.is_list(kind) or pa.types.is_large_list(kind) else ()


def _is_text(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _check_nulls(array: "pa.Array", rows: int) -> None:
    if array.null_count:
        item = int(np.argmax(_numbers(array.is_null())))
        raise BadRowError(item * rows // len(array), "is null")


def _common_length(array: "pa.Array", rows: int) -> int:
    if not len(array):
        return 0
    lengths = np.diff(_numbers(array.offsets))
    first = int(lengths[0])
    if not bool((lengths == first).all()):
        item = int(np.argmax(lengths != first))
        raise BadRowError(
            item * rows // len(array), f"has {lengths[item]} items, expected {first} as in row 0"
        )
    return first
