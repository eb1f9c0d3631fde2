"""The parts of an Arrow array as NumPy arrays: validity, values of a fixed width, lists."""

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa

Bounds: TypeAlias = npt.NDArray[np.int64]
"""Item i of an array begins at `bounds[i]` of its content and ends at `bounds[i + 1]`."""


def simplified(array: "pa.Array") -> "pa.Array":
    """Return an array of equal values that is no extension type and no view."""
    import pyarrow as pa

    types = pa.types
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return simplified(array.storage)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return array.cast(pa.large_binary())
    if is_list_view(kind):
        return list_from_view(array)
    return array


def is_list_view(kind: "pa.DataType") -> bool:
    """Return whether a type is a list whose items may be in any order in memory."""
    import pyarrow as pa

    return isinstance(kind, pa.ListViewType | pa.LargeListViewType)


def list_from_view(array: "pa.Array") -> "pa.Array":
    """Return a list view as lists, large ones if it is large; the cast of Arrow is wrong."""
    import pyarrow as pa

    is_large = isinstance(array.type, pa.LargeListViewType)
    valid = validity(array)
    sizes = array.sizes.to_numpy(zero_copy_only=False).astype(np.int64)
    if valid is not None:
        sizes[~valid] = 0
    offsets = np.zeros(len(array) + 1, np.int64 if is_large else np.int32)
    np.cumsum(sizes, out=offsets[1:])
    cls = pa.LargeListArray if is_large else pa.ListArray
    make = pa.large_list if is_large else pa.list_
    return cls.from_arrays(
        pa.array(offsets),
        array.flatten(),
        type=make(array.type.value_field),
        mask=None if valid is None else pa.array(~valid),
    )


def validity(array: "pa.Array") -> npt.NDArray[np.bool_] | None:
    """Return which items are not null; None if all are valid."""
    if array.null_count == 0:
        return None
    mask = array.buffers()[0]
    if mask is None:  # an array of type null
        return np.zeros(len(array), np.bool_)
    return _bits(mask, array.offset, len(array))


def booleans(array: "pa.BooleanArray") -> npt.NDArray[np.bool_]:
    """Return the items of a boolean array; those of null slots are undefined."""
    return _bits(array.buffers()[1], array.offset, len(array))


def fixed_width(array: "pa.Array", nbytes: int) -> npt.NDArray[np.uint8]:
    """Return the bytes of items of `nbytes` each, one row per item; not for empty arrays."""
    data = np.frombuffer(array.buffers()[1], np.uint8)
    start = array.offset * nbytes
    return data[start : start + len(array) * nbytes].reshape(len(array), nbytes)


def text_parts(array: "pa.Array") -> tuple[Bounds, npt.NDArray[np.uint8]]:
    """Return the bounds and the bytes of strings or binary values."""
    import pyarrow as pa

    types = pa.types
    large = types.is_large_string(array.type) or types.is_large_binary(array.type)
    _, offsets, data = array.buffers()
    bounds = _offsets(offsets, array, np.int64 if large else np.int32)
    content = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return bounds - bounds[0], content[bounds[0] : bounds[-1]]


def list_parts(array: "pa.Array") -> tuple[Bounds, list["pa.Array"]]:
    """Return the bounds of lists or maps and their items: one array, or the keys and the values."""
    import pyarrow as pa

    large = pa.types.is_large_list(array.type)
    bounds = _offsets(array.buffers()[1], array, np.int64 if large else np.int32)
    start, count = int(bounds[0]), int(bounds[-1] - bounds[0])
    children = [array.keys, array.items] if pa.types.is_map(array.type) else [array.values]
    return bounds - bounds[0], [child.slice(start, count) for child in children]


def fixed_list_items(array: "pa.FixedSizeListArray") -> "pa.Array":
    """Return the items of lists of a fixed size, those of null lists included."""
    size = array.type.list_size
    return array.values.slice(array.offset * size, len(array) * size)


def dictionary_positions(
    array: "pa.DictionaryArray",
) -> tuple[npt.NDArray[np.int64], "pa.Array"]:
    """Return the position of every item in the dictionary, and the dictionary.

    Positions of null slots are 0. A dictionary longer than the array is cut to what is used.
    """
    import pyarrow as pa

    indices = array.indices
    positions = fixed_width(indices, indices.type.bit_width // 8)
    numbers = positions.view(indices.type.to_pandas_dtype())[:, 0].astype(np.int64)
    valid = validity(array)
    if valid is not None:
        numbers[~valid] = 0
    dictionary = simplified(array.dictionary)
    if len(dictionary) > len(array):
        used, numbers = np.unique(numbers, return_inverse=True)
        dictionary = dictionary.take(pa.array(used))
    return numbers, dictionary


def range_sums(values: npt.NDArray[Any], bounds: Bounds) -> npt.NDArray[Any]:
    """Return the sum of the values of every range; 64-bit sums wrap around."""
    sums = np.zeros(len(values) + 1, values.dtype)
    np.cumsum(values, out=sums[1:])
    return sums[bounds[1:]] - sums[bounds[:-1]]


def _offsets(buffer: Any, array: "pa.Array", dtype: type[np.signedinteger[Any]]) -> Bounds:
    offsets = np.frombuffer(buffer, dtype, len(array) + 1, array.offset * dtype().itemsize)
    return offsets.astype(np.int64)


def _bits(buffer: Any, start: int, count: int) -> npt.NDArray[np.bool_]:
    first, stop = start // 8, (start + count + 7) // 8
    data = np.frombuffer(buffer, np.uint8)[first:stop]
    bits = np.unpackbits(data, bitorder="little")[start - first * 8 :][:count]
    return bits.view(np.bool_)
