"""Streams as Parquet files."""

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from relive.bridge.ahead import ahead
from relive.bridge.arrow_types import JSON_MARK
from relive.bridge.stream import Column, Stream
from relive.bridge.write.record_store import Progress
from relive.errors import UnsupportedError
from relive.model.ragged import Ragged
from relive.model.schema import Field
from relive.store.atomic import whole_file

__all__ = ["write_parquet"]


def write_parquet(
    stream: Stream,
    target: Path,
    *,
    compression: str,
    level: int | None,
    overwrite: bool,
    progress: Progress | None,
) -> int:
    """Write a stream as one Parquet file, whole or not at all; give the number of rows.

    Fixed arrays are Arrow's fixed-size lists, with several dimensions its tensors; ragged ones
    are lists, JSON is text. What is missing is null.
    """
    import pyarrow as pa
    from pyarrow import parquet as pq

    schema = pa.schema([_arrow_field(name, field) for name, field in stream.fields.items()])
    done, total = 0, stream.total
    options = {} if compression == "NONE" else {"compression_level": level}
    with (
        whole_file(target, overwrite=overwrite) as file,
        pq.ParquetWriter(file, schema, compression=compression, **options) as writer,
        contextlib.closing(ahead(stream.chunks(0))) as chunks,
    ):
        for chunk in chunks:
            arrays = [
                _array(field, schema.field(name).type, chunk.columns[name])
                for name, field in stream.fields.items()
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
            done += chunk.rows
            if progress is not None:
                progress(done, total)
    return done


def _arrow_field(name: str, field: Field) -> Any:
    import pyarrow as pa

    if field.dtype == "json":
        return pa.field(name, pa.string(), metadata=JSON_MARK)
    return pa.field(name, _arrow_type(name, field))


def _arrow_type(name: str, field: Field) -> Any:
    import pyarrow as pa

    if field.dtype == "str":
        return pa.string()
    if field.dtype == "bytes":
        return pa.binary()
    item = _item_type(name, field)
    if field.ragged:
        for size in reversed(field.shape):
            item = pa.list_(item, size)
        for _ in range(int(field.ragged)):
            item = pa.list_(item)
        return item
    if len(field.shape) > 1 and 0 not in field.shape:
        return pa.fixed_shape_tensor(item, field.shape)
    for size in reversed(field.shape):
        item = pa.list_(item, size)
    return item


def _item_type(name: str, field: Field) -> Any:
    import pyarrow as pa

    dtype = field.array_dtype
    if dtype.kind == "U":
        return pa.string()
    if dtype.kind == "S":
        return pa.binary()
    if dtype.kind == "V" and dtype.names is None and not field.shape and not field.ragged:
        return pa.binary(dtype.itemsize)
    if dtype.kind in "biufmM" and dtype.type.__module__ == "numpy":
        try:
            return pa.from_numpy_dtype(dtype.newbyteorder("="))
        except pa.ArrowNotImplementedError:
            pass
    raise UnsupportedError(
        f"field {name!r} is {dtype}, which Parquet cannot hold",
        hint=f"leave it out: fields={{{name!r}: None}}",
    )


def _array(field: Field, kind: Any, column: Column) -> Any:
    import pyarrow as pa

    if field.dtype == "json":
        texts = [None if value is None else json.dumps(value) for value in column]
        return pa.array(texts, kind)
    if field.dtype in {"str", "bytes"} or field.array_dtype.kind in "USV":
        values = column.tolist() if isinstance(column, np.ndarray) else list(column)
        return pa.array(values, kind)
    if isinstance(column, list):
        return _with_gaps(field, kind, column)
    if isinstance(column, Ragged):
        return _lists(field, kind, column)
    return _fixed(field, kind, column)


def _fixed(field: Field, kind: Any, column: Any) -> Any:
    import pyarrow as pa

    flat = pa.array(_native(column).reshape(-1))
    if not field.shape:
        return flat.cast(kind) if flat.type != kind else flat
    if isinstance(kind, pa.BaseExtensionType):
        storage = pa.FixedSizeListArray.from_arrays(flat, type=kind.storage_type)
        return pa.ExtensionArray.from_storage(kind, storage)
    return _nested(flat, kind, len(column))


def _nested(flat: Any, kind: Any, rows: int) -> Any:
    """Put fixed lists around items, the innermost first."""
    import pyarrow as pa

    sizes, kinds = [], []
    inner = kind
    while pa.types.is_fixed_size_list(inner):
        sizes.append(inner.list_size)
        kinds.append(inner)
        inner = inner.value_type
    if 0 in sizes:
        empty: Any = []
        for size in reversed(sizes):
            empty = [empty] * size if size else []
        return pa.array([empty] * rows, kind)
    for outer in reversed(kinds):
        flat = pa.FixedSizeListArray.from_arrays(flat, type=outer)
    return flat


def _lists(field: Field, kind: Any, column: Ragged) -> Any:
    import pyarrow as pa

    kinds = [kind]
    while len(kinds) < int(field.ragged):
        kinds.append(kinds[-1].value_type)
    flat = pa.array(_native(column.values).reshape(-1))
    shapes = column.lengths[:, None] if column.shapes is None else column.shapes
    items = _nested(flat, kinds[-1].value_type, len(column.values))
    for depth in range(int(field.ragged) - 1, -1, -1):
        # A row has as many lists at this depth as its dimensions before it multiply to.
        outer = np.prod(shapes[:, :depth], axis=1, dtype=np.int64)
        lengths = np.repeat(shapes[:, depth], outer)
        offsets = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        items = pa.ListArray.from_arrays(pa.array(offsets), items, type=kinds[depth])
    return items


def _with_gaps(field: Field, kind: Any, column: list[Any]) -> Any:
    import pyarrow as pa

    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    values = [
        None if value is None else _listed(field, np.asarray(value), storage) for value in column
    ]
    array = pa.array(values, storage)
    return array if storage is kind else pa.ExtensionArray.from_storage(kind, array)


def _listed(field: Field, value: Any, storage: Any) -> Any:
    import pyarrow as pa

    if not field.shape and not field.ragged:
        return value[()]
    nested = value.ndim > 1 and pa.types.is_fixed_size_list(storage) and not field.ragged
    flat_tensor = nested and not pa.types.is_fixed_size_list(storage.value_type)
    return (value.ravel() if flat_tensor else value).tolist()


def _native(array: Any) -> Any:
    array = np.ascontiguousarray(array)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
