"""How the columns of a table are stored in Parquet files that relive writes.

Dictionaries are stored as the values they stand for, because the order of a dictionary and the
values that no row has would make equal rows different bytes. Only an ordered dictionary of
strings keeps its values: their order has a meaning. The Arrow schema in the file's metadata
restores large and view types, time zones, durations, lists of a fixed size, extension types and
dictionaries of strings.
"""

import base64
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from relive.errors import SchemaError
from relive.publish.write.arrow_parts import is_list_view
from relive.publish.write.plain_values import with_plain_values

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
    "use_compliant_nested_type": True,
    # Readers of relive skip row groups, of about four pages, and verify leaves of the blob.
    "write_page_index": False,
    "write_page_checksum": False,
    "use_content_defined_chunking": False,
    # The schema has its own, see `StoredSchema`.
    "store_schema": False,
}
"""The arguments of `pyarrow.parquet.ParquetWriter` for every shard.

Dictionaries of values are used for the columns of a shard in which most values repeat: elsewhere
they add bytes and time. Compression is zstd at level 1: of a table of 309 MB (numbers, text,
random bytes) 237 MB remain, with LZ4 269 MB. One core reads the first in 0.3 s, the other in
0.15 s, so zstd is as fast or faster where a core gets less than about 200 MB/s from the network,
and smaller everywhere. Level 3 saves 1 % more. Statistics are written for all columns but binary
ones and those inside of lists and maps: filters do not use these, and they would make the footers
twice as long.
"""

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
        self.given: pa.Schema = pa.schema(
            [field.with_type(_finer_type(field.type)) for field in schema], schema.metadata
        )
        stored, shown = [], []
        for field in self.given:
            what = f"column `{field.name}` of table `{table}`"
            stored.append(field.with_type(_stored_type(field.type, what, top=True)))
            shown.append(field.with_type(_shown_type(field.type, what)))
        metadata = {
            key: value
            for key, value in sorted((schema.metadata or {}).items())
            if key not in _DROPPED
        }
        self.stored: pa.Schema = pa.schema(stored)
        self._leaf_paths: list[str] = []
        self._with_statistics: list[str] = []
        self.metadata = metadata
        # Twice, so that rows that were read from a shard are written as the same bytes: Parquet
        # has its own names for the fields of lists, and fewer units of time.
        for _ in range(2):
            arrow = base64.b64encode(pa.schema(shown, metadata).serialize().to_pybytes())
            self.metadata = metadata | {_ARROW_SCHEMA: arrow}
            self.read = self._read_schema(table)
            shown = list(self.read)

    def with_finer_units(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        """Return a batch with the units of time that Parquet has, so that hashes are the same
        when the rows are read again.
        """
        import pyarrow as pa

        if batch.schema.types == self.given.types:
            return batch
        columns = [
            column if column.type.equals(field.type) else column.cast(field.type)
            for column, field in zip(batch.columns, self.given, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.given)

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
        with pq.ParquetWriter(
            file,
            self.stored,
            use_dictionary=repeating,
            write_statistics=self._with_statistics,
            **SETTINGS,
        ) as writer:
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
                columns = [written.schema.column(i) for i in range(len(written.schema))]
                self._leaf_paths = [column.path for column in columns]
                self._with_statistics = [
                    column.path for column in columns if _is_filtered_by(column)
                ]
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


def _is_filtered_by(column: Any) -> bool:
    """Return whether filters use the statistics of a Parquet column."""
    is_binary = column.physical_type in {"BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"}
    return not column.max_repetition_level and not (
        is_binary and column.logical_type.type == "NONE"
    )


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
        return column.unify_dictionaries()
    if column.type.equals(kind):
        return column
    return pa.chunked_array([with_plain_values(chunk, kind) for chunk in column.chunks], kind)


def _finer_type(kind: "pa.DataType") -> "pa.DataType":
    """Return a type with the units of time that Parquet has: no seconds, and days for dates."""
    import pyarrow as pa

    types = pa.types
    if types.is_date64(kind):
        return pa.date32()
    if types.is_time32(kind):
        return pa.time32("ms")
    if types.is_timestamp(kind) and kind.unit == "s":
        return pa.timestamp("ms", kind.tz)
    if isinstance(kind, pa.BaseExtensionType):
        return kind
    return _with_inner(kind, lambda field: field.with_type(_finer_type(field.type))) or kind


def _with_inner(
    kind: "pa.DataType", change: Callable[["pa.Field"], "pa.Field"]
) -> "pa.DataType | None":
    """Return a nested type with other fields inside; None for types that have none."""
    import pyarrow as pa

    types = pa.types
    if types.is_struct(kind) and kind.num_fields:
        return pa.struct([change(kind.field(i)) for i in range(kind.num_fields)])
    if types.is_map(kind):
        return pa.map_(change(kind.key_field), change(kind.item_field), kind.keys_sorted)
    if types.is_fixed_size_list(kind):
        return pa.list_(change(kind.value_field), kind.list_size)
    if types.is_large_list(kind):
        return pa.large_list(change(kind.value_field))
    return pa.list_(change(kind.value_field)) if types.is_list(kind) else None


def _stored_type(  # noqa: PLR0911 - one case for each type
    kind: "pa.DataType", what: str, *, top: bool = False, views: bool = False
) -> "pa.DataType":
    """Return the type of what the writer gets; with `views`, strings may be views of strings.

    Arrow cannot write nested ones, and they are the same in the file.
    """
    import pyarrow as pa

    types = pa.types

    def inner(field: Any) -> Any:
        return field.with_type(_stored_type(field.type, what, views=views))

    if types.is_dictionary(kind):
        value = _stored_type(kind.value_type, what)
        return kind if top and kind.ordered and _is_text(kind.value_type) else value
    if types.is_string_view(kind) and not views:
        return pa.large_string()
    if types.is_binary_view(kind) and not views:
        return pa.large_binary()
    if isinstance(kind, pa.BaseExtensionType):
        storage = _stored_type(kind.storage_type, what, views=True)
        if storage != kind.storage_type:
            raise SchemaError(
                f"{what} has the type {kind}, which relive cannot store",
                hint="cast the column to its storage type before adding it",
            )
        return kind
    if nested := _with_inner(kind, inner):
        return nested
    if is_list_view(kind):
        is_large = isinstance(kind, pa.LargeListViewType)
        return (pa.large_list if is_large else pa.list_)(inner(kind.value_field))
    is_empty = types.is_fixed_size_binary(kind) and not kind.byte_width
    if (
        types.is_nested(kind)
        or types.is_interval(kind)
        or types.is_run_end_encoded(kind)
        or is_empty
    ):
        raise SchemaError(f"{what} has the type {kind}, which Parquet cannot hold", hint=_CAST)
    return kind


def _shown_type(kind: "pa.DataType", what: str) -> "pa.DataType":
    """Return the type of a column in the Arrow schema of the file."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        value = _stored_type(kind.value_type, what)
        # The index is int32, because the dictionaries of several shards may be joined.
        return pa.dictionary(pa.int32(), value, kind.ordered) if _is_text(value) else value
    return _stored_type(kind, what, top=True, views=True)


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
