"""Writes rows as Parquet shards that are cut at row hashes.

A shard ends after a row whose hash is below a limit in proportion to the row's bytes, once the
shard has 8 MiB, and before it exceeds 64 MiB. So where a table is cut depends on the rows near
the cut, and inserting, changing or deleting rows leaves the shards before and after as they were.
With a mean of 8 MiB between such rows a shard has 16 MiB on average, and one in a thousand is
cut at 64 MiB.

Row groups have 8 MiB, often about 4 MiB when they are compressed: a filter or a shuffled reader
fetches little more than it needs, and a reader of few columns makes few requests. The first of a
shard has at most 1,024 rows and 1 MiB, for the first rows of a table. What is left at the end of a
shard is added to its last row group if it is less than half of one. All are bytes of rows as in
`row_size`, before Parquet encodes and compresses them.

The bytes of a shard depend only on its rows, their schema and the version of pyarrow: settings
are fixed here, every row group is written from arrays without chunks, and neither the time nor
the machine is recorded.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from relive._arguments import worker_count
from relive.publish.write.parquet_schema import StoredSchema
from relive.publish.write.row_hash import hash_rows
from relive.publish.write.row_size import Sizes, row_sizes
from relive.store.atomic import storage_error

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

_PIECE_ROWS: Final = 8 << 10
_PIECE_BYTES: Final = 512 << 10
# The first row group of a shard stays short.
_MIN_GROUPS: Final = 2


class ShardSizes(NamedTuple):
    """Where shards and row groups end, in bytes of rows."""

    least: int = 8 << 20
    most: int = 64 << 20
    gap: int = 8 << 20
    """The mean number of bytes between two rows that may end a shard."""
    group: int = 8 << 20
    first_group: int = 1 << 20
    first_group_rows: int = 1024


SIZES: Final = ShardSizes()


class WrittenShard(NamedTuple):
    """A shard in the directory it was written to."""

    path: Path
    rows: int


def write_shards(
    batches: Iterable["pa.RecordBatch"],
    schema: StoredSchema,
    directory: Path,
    *,
    key: Sequence[str] | None = None,
    sizes: ShardSizes = SIZES,
    workers: int | None = None,
) -> Iterator[WrittenShard]:
    """Write record batches to shards in `directory`, and yield these in order.

    Shards are cut at the hash of the `key` columns, otherwise of all. Memory use is bounded by a
    few shards; no rows are no shard. Threads encode shards while the next batches are read.
    """
    count = worker_count(workers)

    def encode(number: int, groups: list[list["pa.RecordBatch"]]) -> WrittenShard:
        path = directory / f"{number:06d}.parquet"
        return WrittenShard(path, write_shard(path, groups, schema))

    shards = enumerate(cut(map(schema.with_finer_units, batches), key, sizes))
    yield from _in_threads(lambda shard: encode(*shard), shards, count)


def write_shard(
    path: Path, groups: Sequence[Sequence["pa.RecordBatch"]], schema: StoredSchema
) -> int:
    """Write a Parquet file with the given row groups, and return the number of rows."""
    try:
        with path.open("wb") as file:
            schema.write(file, groups)
    except OSError as error:
        raise storage_error(error, path, "write") from error
    return sum(batch.num_rows for group in groups for batch in group)


def cut(
    batches: Iterable["pa.RecordBatch"], key: Sequence[str] | None, sizes: ShardSizes
) -> Iterator[list[list["pa.RecordBatch"]]]:
    """Yield the shards of a table: the row groups of each, as slices of its record batches."""
    shard = _Shard(sizes)
    for piece, nbytes in _pieces(batches):
        totals = np.cumsum(nbytes)
        may_end = None
        start = 0
        while start < len(nbytes):
            before = int(totals[start - 1]) if start else 0
            if shard.nbytes + int(totals[-1]) - before < sizes.least:
                stop, ends = len(nbytes), False
            else:
                if may_end is None:
                    may_end = _may_end(piece, nbytes, key, sizes)
                stop, ends = _end(shard.nbytes - before, totals, may_end, start, sizes)
            if start == stop and not shard.nbytes:  # a row larger than a shard
                stop = start + 1
            shard.append(piece, nbytes, start, stop)
            if ends:
                yield shard.finish()
                shard = _Shard(sizes)
            start = stop
    if shard.groups:
        yield shard.finish()


class _Shard:
    """The rows of a shard so far, in row groups."""

    def __init__(self, sizes: ShardSizes) -> None:
        self.nbytes = 0
        self.groups: list[list[pa.RecordBatch]] = []
        self._sizes = sizes
        self._group_bytes = 0
        self._group_rows = 0

    def append(self, piece: "pa.RecordBatch", nbytes: Sizes, start: int, stop: int) -> None:
        """Add rows `start` to `stop` of a batch whose rows have `nbytes`."""
        totals = np.cumsum(nbytes[start:stop])
        done = 0
        while done < stop - start:
            first = not self.groups or (len(self.groups) == 1 and self._group_rows > 0)
            room_bytes = self._sizes.first_group if first else self._sizes.group
            before = int(totals[done - 1]) if done else 0
            # A group ends with the row that fills it.
            full = np.searchsorted(totals, room_bytes - self._group_bytes + before) + 1
            end = min(int(full), stop - start)
            if first:
                end = min(end, done + self._sizes.first_group_rows - self._group_rows)
            if not self._group_rows:
                self.groups.append([])
            self.groups[-1].append(piece.slice(start + done, end - done))
            self._group_bytes += int(totals[end - 1]) - before
            self._group_rows += end - done
            full_rows = first and self._group_rows >= self._sizes.first_group_rows
            if full_rows or self._group_bytes >= room_bytes:
                self._group_bytes = self._group_rows = 0
            done = end
        if done:
            self.nbytes += int(totals[-1])

    def finish(self) -> list[list["pa.RecordBatch"]]:
        """Return the row groups, after all rows were added."""
        if 0 < self._group_bytes < self._sizes.group // 2 and len(self.groups) > _MIN_GROUPS:
            last = self.groups.pop()
            self.groups[-1] += last
        return self.groups


def _pieces(batches: Iterable["pa.RecordBatch"]) -> Iterator[tuple["pa.RecordBatch", Sizes]]:
    """Yield slices that are hashed at once, small enough for the processor's cache."""
    for batch in batches:
        for start in range(0, batch.num_rows, _PIECE_ROWS):
            part = batch.slice(start, _PIECE_ROWS)
            nbytes = row_sizes(part)
            totals = np.cumsum(nbytes)
            first = 0
            while first < part.num_rows:
                before = int(totals[first - 1]) if first else 0
                last = int(np.searchsorted(totals, before + _PIECE_BYTES)) + 1
                yield part.slice(first, last - first), nbytes[first:last]
                first = min(last, part.num_rows)


def _may_end(
    piece: "pa.RecordBatch", nbytes: Sizes, key: Sequence[str] | None, sizes: ShardSizes
) -> npt.NDArray[np.int64]:
    """Return the positions of rows after which a shard may end."""
    step = np.uint64(((1 << 64) - 1) // sizes.gap)
    limits = np.minimum(nbytes, sizes.gap).astype(np.uint64) * step
    return np.flatnonzero(hash_rows(piece, key) <= limits)


def _end(
    had: int,
    totals: npt.NDArray[np.int64],
    may_end: npt.NDArray[np.int64],
    start: int,
    sizes: ShardSizes,
) -> tuple[int, bool]:
    """Return where a shard's rows of this piece stop, and whether the shard ends there.

    `had + totals[i]` are the bytes of the shard with row i.
    """
    least = max(start, int(np.searchsorted(totals, sizes.least - had)))
    most = max(start, int(np.searchsorted(totals, sizes.most - had, side="right")))
    place = int(np.searchsorted(may_end, least))
    stop = int(may_end[place]) + 1 if place < len(may_end) else len(totals) + 1
    stop = min(stop, most) if most < len(totals) else stop
    return min(stop, len(totals)), stop <= len(totals)


def _in_threads(
    function: Callable[[T], WrittenShard], items: Iterable[T], workers: int
) -> Iterator[WrittenShard]:
    """Yield the results in order, with at most `workers` items in work and one ready."""
    waiting: deque[Future[WrittenShard]] = deque()
    pool = ThreadPoolExecutor(workers, "relive-shards")
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
        with contextlib.suppress(RuntimeError):
            pool.shutdown()
