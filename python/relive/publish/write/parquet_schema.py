"""How the columns of a table are stored in Parquet files that relive writes.

Dictionaries are stored as the values they stand for, because the order of a dictionary and the
values that no row has would make equal rows different bytes. Only an ordered dictionary of
strings keeps its values: their order has a meaning. The Arrow schema in the file's metadata
restores large and view types, time zones, durations, lists of a fixed size, extension types and
dictionaries of strings.
"""

import base64
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from relive.errors import SchemaError
from relive.publish.write.arrow_parts import is_list_view, list_from_view

if TYPE_CHECKING:
    import pyarrow as pa

_ARROW_SCHEMA: Final = b"ARROW:schema"
SETTINGS: Final[dict[str, Any]] = {
    "version": "2.6",
    "data_page_version": "1.0",
    "compression": "zstd",
    "compression_level": 1,
    "dictionary_pagesize_limit": 1 << 20,
    "data_page_size": 1 << 20,
    "write_batch_size": 1024,
    "write_statistics": True,
    "use_compliant_nested_type": True,
    # Readers of relive skip row groups, of about four pages, and verify leaves of the blob.
    "write_page_index": False,
    "write_page_checksum": False,
    "use_content_defined_chunking": False,
    # The schema has its own, see `StoredSchema`.
    "store_schema": False,
}
"""The arguments of `pyarrow.parquet.ParquetWriter` for every shard."""

# Where most of this many values of a column are distinct, a dictionary of them only adds bytes.
_SAMPLE_VALUES: Final = 4096
_CAST: Final = "cast the column to another type, or leave it out"
# Metadata that depends on more than the types: pandas records the number of rows.
_DROPPED: Final = frozenset({_ARROW_SCHEMA, b"pandas"})


class StoredSchema:
    """The columns of a table as they are written, and as they are read again. Thread-safe.

    A type that Parquet cannot hold is a `SchemaError` that names the column.

    Args:
        schema: The schema of the table.
        table: The name of the table, for messages.
    """

    def __init__(self, schema: "pa.Schema", table: str) -> None:
        import pyarrow as pa

        check_columns(schema, f"table `{table}`")
        self.given = schema
        stored, shown = [], []
        for field in schema:
            kind = _stored_type(field.type, f"column `{field.name}` of table `{table}`", top=True)
            stored.append(field.with_type(kind))
            shown.append(field.with_type(_shown_type(field.type, kind)))
        metadata = {
            key: value
            for key, value in sorted((schema.metadata or {}).items())
            if key not in _DROPPED
        }
        self.stored: pa.Schema = pa.schema(stored)
        self.metadata = metadata
        # Twice, so that rows that were read from a shard are written as the same bytes: Parquet
        # has its own names for the fields of lists, and fewer units of time.
        for _ in range(2):
            arrow = base64.b64encode(pa.schema(shown, metadata).serialize().to_pybytes())
            self.metadata = metadata | {_ARROW_SCHEMA: arrow}
            self.read = self._read_schema(table)
            shown = list(self.read)

    def table_of(self, batches: Sequence["pa.RecordBatch"]) -> "pa.Table":
        """Return the rows of record batches as one table of the stored types, without chunks."""
        import pyarrow as pa

        table = pa.Table.from_batches(batches, self.given)
        columns = [
            _as_stored(column, field.type).combine_chunks()
            for column, field in zip(table.columns, self.stored, strict=True)
        ]
        return pa.Table.from_arrays(columns, schema=self.stored)

    def write(self, file: Any, groups: Sequence[Sequence["pa.RecordBatch"]]) -> None:
        """Write a Parquet file with the given row groups, each in one or more record batches."""
        from pyarrow import parquet as pq

        tables = map(self.table_of, groups)
        # The first row group is short.
        known = list(itertools.islice(tables, 2))
        repeating = self._repeating_columns(known[-1]) if known else []
        with pq.ParquetWriter(file, self.stored, use_dictionary=repeating, **SETTINGS) as writer:
            for table in itertools.chain(known, tables):
                writer.write_table(table, row_group_size=max(1, len(table)))
            writer.add_key_value_metadata(self.metadata)

    def _repeating_columns(self, table: "pa.Table") -> list[str]:
        """Return the paths of the columns that are smaller with a dictionary of their values."""
        sample = table.slice(0, _SAMPLE_VALUES)
        leaves = [leaf for column in sample.columns for leaf in _leaves(column.combine_chunks())]
        return [
            path
            for path, leaf in zip(self._leaf_paths, leaves, strict=True)
            if _is_repeating(leaf.slice(0, _SAMPLE_VALUES))
        ]

    def _read_schema(self, table: str) -> "pa.Schema":
        import pyarrow as pa
        from pyarrow import parquet as pq

        file = pa.BufferOutputStream()
        try:
            self.write(file, [])
            with pq.ParquetFile(pa.BufferReader(file.getvalue())) as written:
                columns = written.schema
                self._leaf_paths = [columns.column(i).path for i in range(len(columns))]
                return written.schema_arrow
        except (pa.ArrowException, OSError) as error:
            raise SchemaError(
                f"Parquet cannot hold the columns of table `{table}`: {error}", hint=_CAST
            ) from error


def check_columns(schema: "pa.Schema", what: str) -> None:
    """Raise a `SchemaError` unless a schema has columns, each with a name of its own."""
    if not len(schema):
        raise SchemaError(f"{what} has no columns", hint="a table needs at least one column")
    seen: set[str] = set()
    for name in schema.names:
        if name in seen:
            raise SchemaError(f"{what} has two columns named `{name}`", hint="rename one of them")
        seen.add(name)


def _leaves(array: "pa.Array") -> Iterator["pa.Array"]:
    """Yield the values of an array in each of the Parquet columns that it is stored in."""
    import pyarrow as pa

    types = pa.types
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        yield from _leaves(array.storage)
    elif types.is_struct(kind):
        for child in array.flatten():
            yield from _leaves(child)
    elif types.is_map(kind):
        # Unlike `flatten`, both include the content of null slots: that is undefined.
        entries = array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field]))).flatten()
        yield from _leaves(entries)
    elif types.is_nested(kind):
        yield from _leaves(array.flatten())
    else:
        yield array


def _is_repeating(values: "pa.Array") -> bool:
    """Return whether most values occur more than once; False for types without dictionaries."""
    import pyarrow as pa
    from pyarrow import compute as pc

    if pa.types.is_dictionary(values.type):
        return True
    if pa.types.is_boolean(values.type) or pa.types.is_null(values.type):
        return False
    try:
        distinct = pc.count_distinct(values).as_py()
    except pa.ArrowNotImplementedError:
        return False
    return bool(2 * distinct <= len(values) - values.null_count)


def _as_stored(column: "pa.ChunkedArray", kind: "pa.DataType") -> "pa.ChunkedArray":
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        # Arrow cannot cast the values of a dictionary: the type is the given one, or decoded.
        return column.unify_dictionaries()
    if pa.types.is_dictionary(column.type):
        chunks = [chunk.dictionary.cast(kind).take(chunk.indices) for chunk in column.chunks]
        return pa.chunked_array(chunks, kind)
    if is_list_view(column.type):
        return pa.chunked_array([list_from_view(chunk) for chunk in column.chunks], kind)
    return column if column.type.equals(kind) else column.cast(kind)


def _stored_type(  # noqa: C901, PLR0911 - one case for each type
    kind: "pa.DataType", what: str, *, top: bool = False
) -> "pa.DataType":
    import pyarrow as pa

    types = pa.types

    def inner(field: Any) -> Any:
        return field.with_type(_stored_type(field.type, what))

    if types.is_dictionary(kind):
        value = _stored_type(kind.value_type, what)
        if top and kind.ordered and _is_text(kind.value_type):
            return kind
        return _without_view(value)
    if isinstance(kind, pa.BaseExtensionType):
        storage = _stored_type(kind.storage_type, what)
        if storage != kind.storage_type:
            raise SchemaError(
                f"{what} has the type {kind}, which relive cannot store",
                hint="cast the column to its storage type before adding it",
            )
        return kind
    if types.is_struct(kind) and kind.num_fields:
        return pa.struct([inner(kind.field(i)) for i in range(kind.num_fields)])
    if types.is_map(kind):
        return pa.map_(inner(kind.key_field), inner(kind.item_field), kind.keys_sorted)
    if types.is_fixed_size_list(kind):
        return pa.list_(inner(kind.value_field), kind.list_size)
    if top and is_list_view(kind):
        if inner(kind.value_field).type != kind.value_type:
            raise SchemaError(f"{what} has the type {kind}, which relive cannot store", hint=_CAST)
        is_large = isinstance(kind, pa.LargeListViewType)
        return (pa.large_list if is_large else pa.list_)(kind.value_field)
    if types.is_large_list(kind):
        return pa.large_list(inner(kind.value_field))
    if types.is_list(kind):
        return pa.list_(inner(kind.value_field))
    is_empty = types.is_fixed_size_binary(kind) and not kind.byte_width
    if (
        types.is_nested(kind)
        or types.is_interval(kind)
        or types.is_run_end_encoded(kind)
        or is_empty
    ):
        raise SchemaError(f"{what} has the type {kind}, which Parquet cannot hold", hint=_CAST)
    return kind


def _shown_type(given: "pa.DataType", stored: "pa.DataType") -> "pa.DataType":
    """Return the type in the Arrow schema of the file, for a column stored as `stored`."""
    import pyarrow as pa

    if pa.types.is_dictionary(given) and _is_text(stored):
        # Without `ordered`, because the order of the values is not stored.
        return pa.dictionary(pa.int32(), stored)
    return stored


def _without_view(kind: "pa.DataType") -> "pa.DataType":
    import pyarrow as pa

    if pa.types.is_string_view(kind):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary_view(kind) else kind


def _is_text(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    types = pa.types
    return any(
        is_kind(kind)
        for is_kind in (
            types.is_string,
            types.is_binary,
            types.is_large_string,
            types.is_large_binary,
        )
    )
