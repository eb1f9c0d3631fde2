"""Write Parquet files."""

import contextlib
import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import parquet as pq

from relive._arguments import as_text
from relive.bridge.stream import Stream, read_ahead
from relive.errors import InvalidError, UnsupportedError
from relive.model.columns.arrow import JSON_METADATA
from relive.model.columns.cast import Column
from relive.model.ragged import Ragged
from relive.model.report import Progress
from relive.model.schema import Field
from relive.store.atomic import whole_file

_COMPRESSION: Final = {"raw": "NONE", "deflate": "GZIP", "zstd": "ZSTD", "lz4": "LZ4"}


def write_parquet(
    stream: Stream,
    target: Path,
    *,
    codec: str,
    level: int | None,
    overwrite: bool,
    progress: Progress | None,
) -> int:
    """Write a stream as one Parquet file, and return the number of rows.

    Arrays of a fixed shape become fixed-size lists or, with several dimensions, tensors; ragged
    arrays become lists, JSON becomes text, a missing value null. The file appears when it is
    complete.
    """
    schema = pa.schema([_arrow_field(name, field) for name, field in stream.fields.items()])
    done = 0
    options = {} if codec == "raw" else {"compression_level": level}
    with (
        whole_file(target, overwrite=overwrite) as file,
        pq.ParquetWriter(file, schema, compression=_COMPRESSION[codec], **options) as writer,
        contextlib.closing(read_ahead(stream, progress)) as batches,
    ):
        for batch in batches:
            arrays = [
                _encoded(name, field, schema.field(name).type, batch.columns[name])
                for name, field in stream.fields.items()
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
            done += batch.rows
    return done


def _arrow_field(name: str, field: Field) -> Any:
    as_text("the name of a field", name)
    if field.dtype == "json":
        return pa.field(name, pa.string(), metadata=JSON_METADATA)
    return pa.field(name, _arrow_type(name, field))


def _arrow_type(name: str, field: Field) -> Any:
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
        f"field {name!r} has the type {dtype}, which Parquet cannot hold",
        hint=f"drop it: fields={{{name!r}: None}}",
    )


def _encoded(name: str, field: Field, kind: Any, column: Column) -> Any:
    try:
        return _array(field, kind, column)
    except UnicodeEncodeError as error:
        raise InvalidError(
            f"field {name!r} cannot be encoded as UTF-8: {error.object!r}"
        ) from error


def _array(field: Field, kind: Any, column: Column) -> Any:
    if field.dtype == "json":
        texts = [None if value is None else json.dumps(value) for value in column]
        return pa.array(texts, kind)
    if field.dtype in {"str", "bytes"} or field.array_dtype.kind in "USV":
        values = column.tolist() if isinstance(column, np.ndarray) else list(column)
        return pa.array(values, kind)
    if isinstance(column, list):
        return _with_nulls(field, kind, column)
    if isinstance(column, Ragged):
        return _lists(field, kind, column)
    return _fixed(field, kind, column)


def _fixed(field: Field, kind: Any, column: Any) -> Any:
    flat = pa.array(_native(column).reshape(-1))
    if not field.shape:
        return flat.cast(kind) if flat.type != kind else flat
    if isinstance(kind, pa.BaseExtensionType):
        storage = pa.FixedSizeListArray.from_arrays(flat, type=kind.storage_type)
        return pa.ExtensionArray.from_storage(kind, storage)
    return _nested(flat, kind, len(column))


def _nested(flat: Any, kind: Any, rows: int) -> Any:
    """Wrap items in fixed-size lists, the innermost first."""
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
    kinds = [kind]
    while len(kinds) < int(field.ragged):
        kinds.append(kinds[-1].value_type)
    flat = pa.array(_native(column.values).reshape(-1))
    shapes = column.lengths[:, None] if column.shapes is None else column.shapes
    items = _nested(flat, kinds[-1].value_type, len(column.values))
    for depth in range(int(field.ragged) - 1, -1, -1):
        # The number of lists of a row at this depth is the product of its dimensions before it.
        outer = np.prod(shapes[:, :depth], axis=1, dtype=np.int64)
        lengths = np.repeat(shapes[:, depth], outer)
        offsets = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        items = pa.ListArray.from_arrays(pa.array(offsets), items, type=kinds[depth])
    return items


def _with_nulls(field: Field, kind: Any, column: list[Any]) -> Any:
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    values = [
        None if value is None else _as_lists(field, np.asarray(value), storage) for value in column
    ]
    array = pa.array(values, storage)
    return array if storage is kind else pa.ExtensionArray.from_storage(kind, array)


def _as_lists(field: Field, value: Any, storage: Any) -> Any:
    if not field.shape and not field.ragged:
        return value[()]
    nested = value.ndim > 1 and pa.types.is_fixed_size_list(storage) and not field.ragged
    flat_tensor = nested and not pa.types.is_fixed_size_list(storage.value_type)
    return (value.ravel() if flat_tensor else value).tolist()


def _native(array: Any) -> Any:
    array = np.ascontiguousarray(array)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
