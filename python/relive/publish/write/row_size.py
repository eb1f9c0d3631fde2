"""The bytes of every row of a record batch, computed from its values and not from its buffers.

They depend on the row alone, so that tables are cut into shards and row groups in the same places
however they are chunked, sliced or encoded in memory. A value of a fixed-width type counts with
that width, a string or list with four bytes and its content, null in any other type with four
bytes. A column counts with at least one byte.
"""

from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from relive.errors import UnsupportedError
from relive.publish.write.arrow_parts import (
    dictionary_positions,
    fixed_list_items,
    list_parts,
    range_sums,
    simplified,
    text_parts,
    validity,
)

if TYPE_CHECKING:
    import pyarrow as pa

Sizes: TypeAlias = npt.NDArray[np.int64]

_LENGTH: Final = 4


def row_sizes(batch: "pa.RecordBatch") -> Sizes:
    """Return the bytes of every row."""
    sizes = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        sizes += np.maximum(_sizes(column), 1)
    return sizes


def _sizes(array: "pa.Array") -> Sizes | int:  # noqa: C901 - one case for each type
    """Return the bytes of every item; a number if it is the same for all items of the type."""
    import pyarrow as pa

    array = simplified(array)
    types = pa.types
    kind = array.type
    if types.is_null(kind) or types.is_boolean(kind):
        return 1
    if types.is_primitive(kind) or types.is_decimal(kind) or types.is_fixed_size_binary(kind):
        return int(kind.bit_width) // 8
    sizes: Sizes | int
    if types.is_dictionary(kind):
        sizes = _dictionary_sizes(array)
    elif types.is_fixed_size_list(kind):
        items = _sizes(fixed_list_items(array))
        if isinstance(items, int) or not kind.list_size:
            return int(np.sum(items)) * int(kind.list_size)
        sizes = items.reshape(-1, kind.list_size).sum(axis=1)
    elif types.is_struct(kind):
        sizes = 0
        for i in range(kind.num_fields):
            sizes = sizes + _sizes(array.field(i))
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        sizes = _list_sizes(array)
    elif types.is_nested(kind):  # a union
        raise UnsupportedError(f"Parquet cannot hold values of type {kind}")
    else:
        sizes = np.diff(text_parts(array)[0]) + _LENGTH if len(array) else np.zeros(0, np.int64)
    if not isinstance(sizes, int) and (valid := validity(array)) is not None:
        sizes[~valid] = _LENGTH
    return sizes


def _dictionary_sizes(array: "pa.DictionaryArray") -> Sizes | int:
    dictionary = array.dictionary
    if not len(array) or not len(dictionary):
        sizes = _sizes(dictionary)
        return sizes if isinstance(sizes, int) else np.zeros(len(array), np.int64)
    positions, dictionary = dictionary_positions(array)
    sizes = _sizes(dictionary)
    return sizes if isinstance(sizes, int) else sizes[positions]


def _list_sizes(array: "pa.Array") -> Sizes:
    if not len(array):
        return np.zeros(0, np.int64)
    bounds, children = list_parts(array)
    sizes = np.full(len(array), _LENGTH)
    for child in children:
        items = _sizes(child)
        constant = isinstance(items, int)
        sizes += np.diff(bounds) * items if constant else range_sums(np.asarray(items), bounds)
    return sizes
