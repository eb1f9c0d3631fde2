"""Decodes column chunks that were fetched; a shard is never read as a whole."""

import os
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa
from pyarrow import parquet as pq

from relive._threads import SharedThreads
from relive.errors import CorruptError, ReliveError, SchemaError
from relive.publish.read.footer import ShardFooter

STREAM_BYTES: Final = 64 << 10
"""What is read at once of a column chunk that is not read to its end."""
_RELEASE_S: Final = 0.25
# Arrow keeps memory for each thread that has allocated some, and a stream has as many threads as
# requests. More would not decode faster than there are cores.
_threads: Final = SharedThreads("relive-decode", most=16)


class FetchedRanges:
    """A file of which some ranges are in memory, as Arrow reads it. For one reader at a time.

    Args:
        size: The size of the file.
        pieces: The first byte and the data of each range, in ascending order.
        fetch: Returns other bytes: Arrow reads beyond a column chunk in files of some writers.
        ahead: The number of bytes that `fetch` returns at least, for reads that follow.
    """

    def __init__(
        self,
        size: int,
        pieces: Sequence[tuple[int, Any]],
        fetch: Callable[[int, int], Any],
        *,
        ahead: int = 0,
    ) -> None:
        self._size = size
        self._ahead = ahead
        self._starts = [start for start, _ in pieces]
        self._buffers = [pa.py_buffer(data) for _, data in pieces]
        self._fetch = fetch
        self._position = 0
        self.closed = False
        self.error: ReliveError | None = None
        """What a read raised; Arrow turns it into an error of its own."""

    @property
    def is_partial(self) -> bool:
        """Whether column chunks are fetched in part."""
        return self._ahead > 0

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
            more = pa.py_buffer(self._fetch(start, min(self._size, max(stop, start + self._ahead))))
        except ReliveError as error:
            self.error = error
            raise
        if self._ahead:
            self._starts.insert(number + 1, start)
            self._buffers.insert(number + 1, more)
        return more.slice(0, stop - start)

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
    """Return the columns of `schema` of row groups; a column that the file lacks is null.

    They are decoded on a few threads that all streams share.
    """
    return _threads.submit(_decode, file, footer, groups, schema).result()


def _decode(
    file: FetchedRanges, footer: ShardFooter, groups: Sequence[int], schema: pa.Schema
) -> pa.Table:
    rows = sum(int(footer.starts[group + 1] - footer.starts[group]) for group in groups)

    def read(leaves: list[int]) -> Any:
        # With pre_buffer, Arrow reads several chunks at once, with what is between them.
        opened = pq.ParquetFile(file, metadata=footer.metadata, pre_buffer=False)
        # A thread of Arrow that releases a buffer of Python while the interpreter exits would
        # abort the process.
        return opened.reader.read_row_groups(list(groups), leaves, use_threads=False)

    try:
        return _conformed(_read(file, footer, rows, schema, read), footer, rows, schema)
    finally:
        _RELEASING.after_decoding()


def decode_first(
    file: FetchedRanges, footer: ShardFooter, group: int, rows: int, schema: pa.Schema
) -> pa.Table:
    """Return the first rows of a row group, without reading its column chunks to their end."""

    def read(leaves: list[int]) -> Any:
        # Of what is in memory, whole column chunks are read: that copies nothing.
        buffered = STREAM_BYTES if file.is_partial else 0
        opened = pq.ParquetFile(
            file, metadata=footer.metadata, pre_buffer=False, buffer_size=buffered
        )
        batches = opened.reader.iter_batches(rows, [group], leaves, use_threads=False)
        return pa.Table.from_batches([next(batches)]).slice(0, rows)

    return _conformed(_read(file, footer, rows, schema, read), footer, rows, schema)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.released_at = time.monotonic()


class _Releasing:
    """Gives unused memory back to the system, and keeps the process from forking meanwhile.

    A child process could not take the locks that Arrow's allocator holds while it does that.
    """

    def __init__(self) -> None:
        self._thread = _Thread()
        self.lock = threading.RLock()  # a handler of signals may fork, on the thread that holds it

    def after_decoding(self) -> None:
        """Let Arrow return what this thread no longer uses, at most every quarter second.

        Arrow keeps what was released for the thread that had allocated it. Of streams, which decode
        on many threads, that would add up to several times of what they use. More often, getting
        new pages would take longer than decoding.
        """
        before, now = self._thread.released_at, time.monotonic()
        if now - before < _RELEASE_S:
            return
        self._thread.released_at = now
        if self.lock.acquire(blocking=False):  # else the next time
            try:
                pa.default_memory_pool().release_unused()
            finally:
                self.lock.release()

    def before_fork(self) -> None:
        """Wait until no other thread is giving memory back."""
        self.lock.acquire()

    def after_fork(self) -> None:
        """Go on in the parent process."""
        self.lock.release()

    def in_child(self) -> None:
        """Forget the parent's threads."""
        self.lock = threading.RLock()


_RELEASING: Final = _Releasing()
os.register_at_fork(
    before=_RELEASING.before_fork,
    after_in_parent=_RELEASING.after_fork,
    after_in_child=_RELEASING.in_child,
)


def _read(
    file: FetchedRanges,
    footer: ShardFooter,
    rows: int,
    schema: pa.Schema,
    read: Callable[[list[int]], Any],
) -> Any:
    """Return the columns that the file has, None if there are none."""
    leaves = sorted(footer.leaves(schema.names))
    if not leaves or not rows:
        return None
    try:
        table = read(leaves)
    except (pa.ArrowException, OSError, StopIteration) as error:
        if file.error is not None:
            raise file.error from None
        raise CorruptError(f"cannot decode {footer.name}: {error}") from error
    if table.num_rows != rows:
        raise CorruptError(f"{footer.name} has {table.num_rows} rows, expected {rows}")
    return table


def _conformed(table: Any, footer: ShardFooter, rows: int, schema: pa.Schema) -> pa.Table:
    columns = []
    for field in schema:
        if table is None or not footer.has(field.name):
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
