"""The shards of tables as files of DuckDB, through a file system of fsspec.

Every byte that DuckDB reads is verified. Column chunks are fetched ahead: of the columns that the
query has read so far, for more and more of the row groups that follow.
"""

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any, Final

from relive._extras import require
from relive.errors import NotFoundError, ReadOnlyError, ReliveError
from relive.publish.read.footer import ShardFooter
from relive.publish.read.shards import TableShards

PROTOCOL: Final = "relive-shards"
TAIL_BYTES: Final = 16 << 10
"""What DuckDB reads of the end of every file."""
_AHEAD_BYTES: Final = 16 << 20
_KEPT_BYTES: Final = 256 << 20
_MODIFIED: Final = datetime.fromtimestamp(0, UTC)  # the content of a name never changes

_Chunk = tuple[int, int, int]
"""A shard, a row group and a Parquet column."""


class TableFiles:
    """The bytes of a table's shards, as a query reads them. Thread-safe."""

    def __init__(self, shards: TableShards, numbers: list[int]) -> None:
        self.shards = shards
        self._lock = threading.Lock()
        self._chunks: OrderedDict[_Chunk, Future[Any]] = OrderedDict()
        self._kept_bytes = 0
        self._leaves: dict[int, None] = {}
        self._groups_ahead = 1
        self._indexes: dict[int, _ChunkIndex] = {}
        footers = shards.footers(numbers)
        self.footers = dict(zip(numbers, footers, strict=True))
        self._tails = self._read_tails()

    def read(self, shard: int, start: int, stop: int) -> Any:
        """Return verified bytes of a shard."""
        first, tail = self._tails[shard]
        if start >= first:
            return memoryview(tail)[start - first : stop - first]
        index = self._indexes.get(shard)
        if index is None:
            index = self._indexes[shard] = _ChunkIndex(self.footers[shard])
        found = index.find(start, stop)
        if found is None:
            return self._fetch([(shard, start, stop)])[0]
        group, leaf, begin = found
        data = self._chunk(shard, group, leaf)
        return memoryview(data)[start - begin : stop - begin]

    def _read_tails(self) -> dict[int, tuple[int, Any]]:
        """Return the first byte and the bytes of the end of every shard, in one round trip."""
        starts = {
            number: max(0, footer.size - max(TAIL_BYTES, len(footer.data)))
            for number, footer in self.footers.items()
        }
        ends = [(number, start, self.footers[number].size) for number, start in starts.items()]
        return dict(zip(starts, zip(starts.values(), self._fetch(ends), strict=True), strict=True))

    def _fetch(self, reads: list[tuple[int, int, int]]) -> Any:
        return self.shards.read_many(reads)

    def _chunk(self, shard: int, group: int, leaf: int) -> Any:
        """Return a column chunk, and fetch those that will probably be read next with it."""
        key = shard, group, leaf
        with self._lock:
            future = self._chunks.get(key)
            ours = {} if future is not None else self._plan(key)
        if future is not None:
            return future.result()
        try:
            data = self._fetch([(chunk[0], *range_) for chunk, (range_, _) in ours.items()])
        except BaseException as error:
            with self._lock:
                for chunk in ours:
                    del self._chunks[chunk]
            for _, waiting in ours.values():
                waiting.set_exception(error)
            raise
        for (_, waiting), found in zip(ours.values(), data, strict=True):
            waiting.set_result(found)
        with self._lock:
            self._drop()
        return ours[key][1].result()

    def _plan(self, key: _Chunk) -> dict[_Chunk, tuple[tuple[int, int], Future[Any]]]:
        shard, group, leaf = key
        footer = self.footers[shard]
        is_new = leaf not in self._leaves
        self._leaves[leaf] = None
        # While new columns turn up, only those of one row group are fetched.
        stop = min(footer.groups, group + (1 if is_new else self._groups_ahead))
        if not is_new:
            self._groups_ahead *= 2
        leaves = [leaf, *(other for other in self._leaves if other != leaf)]
        planned: dict[_Chunk, tuple[tuple[int, int], Future[Any]]] = {}
        nbytes = 0
        for number in range(group, stop):
            for other, (start, end) in zip(leaves, footer.ranges(number, leaves), strict=True):
                chunk = shard, number, other
                if chunk in self._chunks or (is_new and chunk != key):
                    continue
                if planned and nbytes + end - start > _AHEAD_BYTES:
                    return planned
                nbytes += end - start
                self._chunks[chunk] = Future()
                self._kept_bytes += end - start
                planned[chunk] = (start, end), self._chunks[chunk]
        return planned

    def _drop(self) -> None:
        """Forget the oldest column chunks if there are too many."""
        for chunk, future in list(self._chunks.items()):
            if self._kept_bytes <= _KEPT_BYTES:
                return
            if future.done():
                del self._chunks[chunk]
                self._kept_bytes -= len(future.result())


class _ChunkIndex:
    """Finds the column chunk that has a range of bytes."""

    def __init__(self, footer: ShardFooter) -> None:
        leaves = range(footer.metadata.num_columns)
        found = [
            (start, stop, group, leaf)
            for group in range(footer.groups)
            for leaf, (start, stop) in zip(leaves, footer.ranges(group, leaves), strict=True)
        ]
        self._chunks = sorted(found)
        self._starts = [start for start, *_ in self._chunks]

    def find(self, start: int, stop: int) -> tuple[int, int, int] | None:
        """Return row group, column and first byte of the chunk; None if there is no such one."""
        number = bisect_right(self._starts, start) - 1
        if number < 0 or stop > self._chunks[number][1]:
            return None
        begin, _, group, leaf = self._chunks[number]
        return group, leaf, begin


class ShardFile:
    """A shard as DuckDB reads it: each thread has its own position."""

    def __init__(self, system: Any, table: TableFiles, number: int) -> None:
        self._system = system
        self._table = table
        self._number = number
        self._local = threading.local()
        self.size = table.footers[number].size

    def seek(self, offset: int, whence: int = 0) -> int:
        """Set the position of this thread."""
        position: int = offset + (0, self.tell(), self.size)[whence]
        self._local.position = position
        return position

    def tell(self) -> int:
        """Return the position of this thread."""
        return int(getattr(self._local, "position", 0))

    def read(self, nbytes: int = -1) -> bytes:
        """Return bytes from the position of this thread on."""
        start = self.tell()
        stop = self.size if nbytes < 0 else min(self.size, start + nbytes)
        try:
            data = bytes(self._table.read(self._number, start, stop)) if start < stop else b""
        except ReliveError as error:
            self._system.error = error  # DuckDB raises one of its own
            raise
        self._local.position = start + len(data)
        return data

    def close(self) -> None:
        """Do nothing: there is no connection to close."""

    def flush(self) -> None:
        """Do nothing: there is nothing to write."""


def file_system(tables: Mapping[str, TableFiles]) -> Any:
    """Return a file system of fsspec with the shards of tables."""
    fsspec = require("fsspec", extra="publish", to="run SQL")

    class ShardFileSystem(fsspec.AbstractFileSystem):  # type: ignore[name-defined,misc]
        """Files `relive-shards://TABLE/NUMBER.parquet`, read-only."""

        protocol = PROTOCOL
        cachable = False
        error: ReliveError | None = None

        def open(self, path: str, mode: str = "rb", **_: Any) -> ShardFile:
            """Open a shard."""
            if mode != "rb":
                raise ReadOnlyError(f"`{path}` cannot be written")
            return ShardFile(self, *self._find(path))

        def info(self, path: str, **_: Any) -> dict[str, Any]:
            """Return the size of a shard."""
            table, number = self._find(path)
            return {"name": path, "size": table.footers[number].size, "type": "file"}

        def exists(self, path: str, **_: Any) -> bool:
            """Return whether there is such a shard."""
            try:
                self._find(path)
            except NotFoundError:
                return False
            return True

        def glob(self, path: str, **_: Any) -> list[str]:
            """Return the path: names are never patterns."""
            return [path] if self.exists(path) else []

        def modified(self, path: str) -> datetime:
            """Return the same time for all."""
            self._find(path)
            return _MODIFIED

        def _find(self, path: str) -> tuple[TableFiles, int]:
            name, _, file = path.removeprefix(f"{PROTOCOL}://").partition("/")
            table, text = tables.get(name), file.removesuffix(".parquet")
            if table is None or not text.isdecimal() or int(text) not in table.footers:
                raise NotFoundError(f"`{path}` does not exist")
            return table, int(text)

    return ShardFileSystem()


def url(name: str, number: int) -> str:
    """Return the address of a shard for DuckDB."""
    return f"{PROTOCOL}://{name}/{number}.parquet"
