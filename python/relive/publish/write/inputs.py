"""What a table can be made of: Parquet files, or rows in one of the forms that Python has."""

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from relive.errors import InvalidError, InvalidTypeError, SchemaError
from relive.publish.write.parquet_files import (
    ParquetInput,
    file_batches,
    find_files,
    read_footers,
)
from relive.publish.write.table_schema import SharedSchema, conformed

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH_ROWS: Final = 64 << 10
_FORMS: Final = (
    "pass paths of Parquet files, a pyarrow Table, RecordBatch or RecordBatchReader, an iterable "
    "of record batches, a pandas or Polars DataFrame, or a DuckDB relation"
)


class FileRows(NamedTuple):
    """A table of Parquet files, which are published byte for byte."""

    schema: "pa.Schema"
    files: list[ParquetInput]


class StreamedRows(NamedTuple):
    """A table of rows that relive writes as shards; they can be read once."""

    schema: "pa.Schema"
    batches: Iterator["pa.RecordBatch"]


def open_input(data: Any, table: str, *, rewrite: bool = False) -> FileRows | StreamedRows:
    """Return the rows of a table in any of the accepted forms.

    Args:
        data: A path, glob pattern or directory of Parquet files, or several of them; a
            `pyarrow.Table`, `RecordBatch` or `RecordBatchReader`; an iterable of record batches
            with one schema; a pandas or Polars `DataFrame`, a Polars `LazyFrame`, a DuckDB
            relation, or another object with the Arrow PyCapsule interface.
        table: The name of the table, for messages.
        rewrite: Read the rows of files instead of publishing these as they are.
    """
    locations = _locations(data)
    if locations is None:
        return _stream(data, table)
    schema, files = read_footers(find_files(locations))
    if rewrite:
        return StreamedRows(schema, file_batches(files, schema))
    return FileRows(schema, files)


def _locations(data: Any) -> list[Any] | None:
    """Return the paths and patterns in `data`; None if it is something else."""
    if isinstance(data, str | os.PathLike):
        return [data]
    if not isinstance(data, list | tuple | set | frozenset):
        return None
    are_paths = [isinstance(item, str | os.PathLike) for item in data]
    if not any(are_paths):
        return None
    if not all(are_paths):
        other = next(item for item in data if not isinstance(item, str | os.PathLike))
        raise InvalidTypeError(
            f"paths and a {_type_name(other)} cannot be mixed in one table",
            hint="add the files with add_table, the rest with append_table",
        )
    return sorted(data, key=os.fspath) if isinstance(data, set | frozenset) else list(data)


def _stream(data: Any, table: str) -> StreamedRows:  # noqa: C901, PLR0911 - one for each form
    import pyarrow as pa

    if isinstance(data, pa.Table):
        return StreamedRows(data.schema, iter(data.to_batches(_BATCH_ROWS)))
    if isinstance(data, pa.RecordBatch):
        return StreamedRows(data.schema, iter([data]))
    if isinstance(data, pa.RecordBatchReader):
        return StreamedRows(data.schema, iter(data))
    package = type(data).__module__.partition(".")[0]
    if package == "pandas":
        return _stream(_from_pandas(data, table), table)
    if package == "polars":
        return _from_polars(data, table)
    if hasattr(data, "__arrow_c_stream__"):  # a DuckDB relation among others
        reader = pa.RecordBatchReader.from_stream(data)
        return StreamedRows(reader.schema, iter(reader))
    if hasattr(data, "__arrow_c_array__"):
        return _stream(pa.record_batch(data), table)
    if callable(getattr(data, "to_reader", None)):  # a pyarrow.dataset.Scanner
        return _stream(data.to_reader(), table)
    if callable(getattr(data, "scanner", None)):  # a pyarrow.dataset.Dataset
        return _stream(data.scanner().to_reader(), table)
    if isinstance(data, Mapping):
        raise InvalidTypeError(
            f"table `{table}` cannot be made of a {_type_name(data)}",
            hint="pass pyarrow.table(data)",
        )
    if isinstance(data, Iterable) and not isinstance(data, bytes | bytearray | memoryview):
        return _from_iterable(data, table)
    raise InvalidTypeError(f"table `{table}` cannot be made of a {_type_name(data)}", hint=_FORMS)


def _from_pandas(data: Any, table: str) -> "pa.Table":
    """Return a pandas DataFrame as a table; an index with a name or other than a range, too."""
    import pyarrow as pa

    if not hasattr(data, "columns"):
        raise InvalidTypeError(
            f"table `{table}` cannot be made of a {_type_name(data)}", hint="pass data.to_frame()"
        )
    repeated = data.columns[data.columns.duplicated()]
    if len(repeated):
        raise SchemaError(
            f"table `{table}` has two columns named `{repeated[0]}`", hint="rename one of them"
        )
    is_plain = type(data.index).__name__ == "RangeIndex" and data.index.name is None
    try:
        return pa.Table.from_pandas(data, preserve_index=not is_plain)
    except (pa.ArrowException, TypeError, ValueError) as error:
        # pandas and pyarrow name the column in the message.
        text = "; ".join(str(each) for each in error.args)
        raise SchemaError(
            f"table `{table}` has a column that Arrow cannot represent: {text}",
            hint="give the column one type, as in df.astype({'column': str})",
        ) from error


def _from_polars(data: Any, table: str) -> StreamedRows:
    if hasattr(data, "collect_batches"):  # a LazyFrame
        frames = iter(data.collect_batches(maintain_order=True))
    elif hasattr(data, "collect"):
        frames = iter([data.collect()])
    elif hasattr(data, "columns"):
        frames = iter([data])
    else:
        raise InvalidTypeError(
            f"table `{table}` cannot be made of a {_type_name(data)}", hint="pass data.to_frame()"
        )
    first = next(frames, None)
    if first is None:
        first = data.head(0).collect()
    schema = first.to_arrow().schema
    tables = (frame.to_arrow().cast(schema) for frame in itertools.chain([first], frames))
    return StreamedRows(
        schema, itertools.chain.from_iterable(each.to_batches(_BATCH_ROWS) for each in tables)
    )


def _from_iterable(data: Iterable[Any], table: str) -> StreamedRows:
    items = iter(data)
    first = next(items, None)
    if first is None:
        raise InvalidError(
            f"table `{table}` cannot be made of nothing: it would have no columns",
            hint="pass an empty pyarrow.Table with the schema of the table",
        )
    _check_batch(first, table, 0)
    shared = SharedSchema(first.schema, f"batch 0 of table `{table}`")
    schema = shared.schema

    def batches() -> Iterator["pa.RecordBatch"]:
        for number, item in enumerate(itertools.chain([first], items)):
            _check_batch(item, table, number)
            part = f"batch {number} of table `{table}`"
            shared.add(item.schema, part)
            if shared.schema is not schema:
                added = shared.schema.names[len(schema)]
                raise SchemaError(
                    f"{part} has a column `{added}`, which batch 0 lacks",
                    hint="all batches must have the columns of the first; missing ones are null",
                )
            for batch in item.to_batches() if hasattr(item, "to_batches") else [item]:
                yield conformed(batch, schema)

    return StreamedRows(schema, batches())


def _check_batch(item: Any, table: str, number: int) -> None:
    import pyarrow as pa

    if not isinstance(item, pa.RecordBatch | pa.Table):
        raise InvalidTypeError(
            f"item {number} of table `{table}` must be a record batch, got a {_type_name(item)}",
            hint=_FORMS,
        )


def _type_name(value: Any) -> str:
    kind = type(value)
    module = kind.__module__.partition(".")[0]
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"
