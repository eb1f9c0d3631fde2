"""Arrays without dictionaries and views, also inside lists and structs.

`Array.cast` would do, if it did not fail for what is stored under null slots, and for views of
lists.
"""

from typing import TYPE_CHECKING

import numpy as np

from relive.publish.write.arrow_parts import (
    Bounds,
    fixed_list_items,
    is_list_view,
    list_from_view,
    list_parts,
    simplified,
    validity,
)

if TYPE_CHECKING:
    import pyarrow as pa


def with_plain_values(  # noqa: PLR0911 - one for each type
    array: "pa.Array", kind: "pa.DataType"
) -> "pa.Array":
    """Return the values of an array as `kind`, its type without dictionaries and views."""
    import pyarrow as pa

    types = pa.types
    if array.type.equals(kind):
        return array
    if not len(array):
        return pa.array([], kind)
    if types.is_dictionary(array.type):
        return _decoded(array, kind)
    if types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        children = [with_plain_values(array.field(i), field.type) for i, field in enumerate(fields)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=_mask(array))
    if types.is_fixed_size_list(kind):
        items = with_plain_values(fixed_list_items(array), kind.value_type)
        return pa.FixedSizeListArray.from_arrays(items, type=kind, mask=_mask(array))
    if types.is_map(kind):
        bounds, (keys, items) = list_parts(array)
        keys = with_plain_values(keys, kind.key_type)
        items = with_plain_values(items, kind.item_type)
        return pa.MapArray.from_arrays(
            _offsets(bounds, np.int32), keys, items, type=kind, mask=_mask(array)
        )
    if types.is_list(kind) or types.is_large_list(kind):
        return _list(array, kind)
    return array.cast(kind)


def _list(array: "pa.Array", kind: "pa.DataType") -> "pa.Array":
    import pyarrow as pa

    if is_list_view(array.type):
        array = list_from_view(array)
    bounds, (items,) = list_parts(array)
    is_large = pa.types.is_large_list(kind)
    cls = pa.LargeListArray if is_large else pa.ListArray
    return cls.from_arrays(
        _offsets(bounds, np.int64 if is_large else np.int32),
        with_plain_values(items, kind.value_type),
        type=kind,
        mask=_mask(array),
    )


def _decoded(array: "pa.DictionaryArray", kind: "pa.DataType") -> "pa.Array":
    import pyarrow as pa
    from pyarrow import compute as pc

    dictionary = simplified(array.dictionary).cast(kind)
    # Under a null slot of an enclosing list there may be any index.
    inside = pc.less(array.indices, pa.scalar(len(dictionary), pa.int64()))
    indices = pc.if_else(inside, array.indices, pa.scalar(None, array.indices.type))
    return dictionary.take(indices)


def _offsets(bounds: Bounds, dtype: type[np.int32 | np.int64]) -> "pa.Array":
    import pyarrow as pa

    return pa.array(bounds.astype(dtype))


def _mask(array: "pa.Array") -> "pa.Array | None":
    import pyarrow as pa

    valid = validity(array)
    return None if valid is None else pa.array(~valid)
