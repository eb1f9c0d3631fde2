"""Decodes column chunks that were fetched; a shard is never read as a whole."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import parquet as pq

from relive.errors import CorruptError, ReliveError, SchemaError
from relive.publish.read.footer import ShardFooter


class FetchedRanges:
    """A file of which some ranges are in memory, as Arrow reads it. For one reader at a time.

    Args:
        size: The size of the file.
        pieces: The first byte and the data of each range, in ascending order.
        fetch: Returns other bytes: Arrow reads beyond a column chunk in files of some writers.
    """

    def __init__(
        self, size: int, pieces: Sequence[tuple[int, Any]], fetch: Callable[[int, int], Any]
    ) -> None:
        self._size = size
        self._starts = [start for start, _ in pieces]
        self._buffers = [pa.py_buffer(data) for _, data in pieces]
        self._fetch = fetch
        self._position = 0
        self.closed = False
        self.error: ReliveError | None = None
        """What a read raised; Arrow turns it into an error of its own."""

    def seek(self, offset: int, whence: int = 0) -> int:
        """Set the position."""
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def read_buffer(self, nbytes: int) -> pa.Buffer:
        """Return bytes from the position on, without a copy if they are in one range."""
        start = self._position
        stop = min(self._size, start + nbytes)
        self._position = stop
        number = bisect_right(self._starts, start) - 1
        if number >= 0:
            offset = start - self._starts[number]
            if offset + stop - start <= self._buffers[number].size:
                return self._buffers[number].slice(offset, stop - start)
        try:
            return pa.py_buffer(self._fetch(start, stop))
        except ReliveError as error:
            self.error = error
            raise

    def read(self, nbytes: int = -1) -> bytes:
        """Return bytes from the position on."""
        count = self._size - self._position if nbytes < 0 else nbytes
        data: bytes = self.read_buffer(count).to_pybytes()
        return data

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def writable(self) -> bool:
        """Return False."""
        return False

    def close(self) -> None:
        """Mark the file as closed."""
        self.closed = True


def decode(
    file: FetchedRanges, footer: ShardFooter, groups: Sequence[int], schema: pa.Schema
) -> pa.Table:
    """Return the columns of `schema` of row groups; a column that the file lacks is null."""
    present = [field.name for field in schema if footer.has(field.name)]
    rows = sum(int(footer.starts[group + 1] - footer.starts[group]) for group in groups)
    table: Any = None
    if present and groups:
        try:
            # Otherwise Arrow reads several chunks at once, with what is between them.
            reader = pq.ParquetFile(file, metadata=footer.metadata, pre_buffer=False).reader
            leaves = sorted(footer.leaves(present))
            table = reader.read_row_groups(list(groups), leaves, use_threads=True)
        except (pa.ArrowException, OSError) as error:
            if file.error is not None:
                raise file.error from None
            raise CorruptError(f"cannot decode {footer.name}: {error}") from error
        if table.num_rows != rows:
            raise CorruptError(f"{footer.name} has {table.num_rows} rows, expected {rows}")
    columns = []
    for field in schema:
        if not footer.has(field.name):
            columns.append(pa.chunked_array([pa.nulls(rows, field.type)]))
            continue
        column = table.column(field.name)
        if column.type != field.type:
            raise SchemaError(
                f"column `{field.name}` of {footer.name} is {column.type}, but {field.type} in "
                "the manifest"
            )
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema)
