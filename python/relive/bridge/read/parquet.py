"""Parquet files."""

import os
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyarrow import parquet as pq

from relive.bridge.options import ReadOptions
from relive.bridge.read.tables import FileTables
from relive.bridge.stream import Stream, rows_per_batch

_BUFFER_BYTES: Final = 1 << 20
"""How much of a column is read at a time; by default Arrow reads all of a row group."""


def open_parquet(paths: list[str], options: ReadOptions) -> Stream:
    """Return the rows of Parquet files."""
    return _ParquetFiles(paths, options)


class _ParquetFiles(FileTables):
    """The rows of Parquet files; row groups before the first row are not read."""

    kind = "parquet"

    def _inspect(self, path: str) -> tuple[Any, int | None]:
        with _opened(path) as source, pq.ParquetFile(source) as file:
            return file.schema_arrow, file.metadata.num_rows

    def _read(self, path: str, start: int) -> Iterator[Any]:
        options = {"buffer_size": _BUFFER_BYTES, "pre_buffer": False}
        with _opened(path) as source, pq.ParquetFile(source, **options) as file:
            for group in range(file.num_row_groups):
                meta = file.metadata.row_group(group)
                if start >= meta.num_rows:
                    start -= meta.num_rows
                    yield meta.num_rows
                    continue
                start = 0
                rows = rows_per_batch(meta.total_byte_size / max(1, meta.num_rows))
                yield from file.iter_batches(rows, row_groups=[group])


def _opened(path: str) -> pa.OSFile:
    return pa.OSFile(os.fsencode(path))  # Arrow takes only UTF-8 as text
