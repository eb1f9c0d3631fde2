"""The blocks of a table: its row groups, as far as they have rows of the selection."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa

from relive.model.source import IndexArray  # noqa: TC001 - annotates an attribute
from relive.publish.read.filters.conditions import Filter, matches
from relive.publish.read.footer import ShardFooter
from relive.publish.read.scan import Piece, Scan
from relive.publish.read.shards import TableShards

BLOCK_BYTES: Final = 64 << 20
"""A row group whose decompressed size is larger counts as several blocks."""
WINDOW_BYTES: Final = 64 << 20
"""The decompressed size of a window, if it has enough blocks and none is given."""
WINDOW_BLOCKS: Final = 4
"""How many blocks of average size a window has at least, if none is given."""

# A block with at most one of so many rows of its row group is copied out of it.
_FEW_TIMES: Final = 2

Ranges = Sequence[tuple[int, int]]
"""The first row and the end of each run of selected rows, ascending."""


class TableBlocks:
    """The blocks of the selected rows of a table, in order. Thread-safe.

    Creating it reads the footers of all shards that have selected rows, in one round trip. Rows are
    counted in the selection, so that block `n` has the rows `bounds[n]` to `bounds[n + 1]`.

    Args:
        shards: The table.
        columns: The columns to read.
        ranges: The selected rows.
        filters: Conditions on rows; a block that statistics exclude is not read.
    """

    def __init__(
        self,
        shards: TableShards,
        columns: Sequence[str],
        ranges: Ranges,
        filters: Sequence[Filter] = (),
    ) -> None:
        self._shards = shards
        self._filters = filters
        self._scan = Scan(shards, columns, ranges, filters)
        needed = dict.fromkeys([*columns, *(name for one in filters for name in one.columns)])
        self.schema = pa.schema([shards.schema.field(name) for name in needed])
        """The columns that are read: the selected ones, and those that the filters need."""
        self._pieces: list[Piece] = []
        starts, nbytes = [0], 0
        for number, footer in self._selected_shards(ranges):
            for piece, size in _pieces(number, footer, int(shards.starts[number]), ranges):
                self._pieces.append(piece)
                starts.append(starts[-1] + piece.rows)
                nbytes += size
        self.bounds: IndexArray = np.array(starts, np.int64)
        """The first row of each block, and the number of rows."""
        self.nbytes = nbytes
        """The decompressed size of all columns."""

    def __len__(self) -> int:
        """Count the blocks."""
        return len(self._pieces)

    @property
    def default_window(self) -> int:
        """How many rows are shuffled together by default: a function of the version only."""
        rows = int(self.bounds[-1])
        by_bytes = rows * WINDOW_BYTES // max(1, self.nbytes)
        by_blocks = -(-rows * WINDOW_BLOCKS // max(1, len(self)))
        return max(1, min(rows, max(by_bytes, by_blocks)))

    @cached_property
    def no_rows(self) -> pa.RecordBatch:
        """A batch without rows."""
        return as_batch(self.schema.empty_table())

    def sizes(self, number: int) -> tuple[int, int]:
        """Return the bytes to fetch for a block, and about how many its rows take decoded."""
        piece = self._pieces[number]
        leaves = piece.footer.leaves(self.schema.names)
        fetched = sum(stop - start for start, stop in piece.footer.ranges(piece.group, leaves))
        decoded = piece.footer.decoded_bytes(piece.group, leaves)
        rows = int(piece.footer.starts[piece.group + 1] - piece.footer.starts[piece.group])
        return fetched, decoded * piece.rows // rows

    def is_excluded(self, number: int) -> bool:
        """Return whether statistics show that no row of a block matches the filters."""
        return bool(self._filters) and not self._possible[number]

    def read(self, numbers: Iterable[int]) -> dict[int, pa.Table]:
        """Fetch blocks in one round trip and decode them; return their rows."""
        ascending = sorted(numbers)
        groups: dict[tuple[int, int], list[int]] = {}
        for number in ascending:
            piece = self._pieces[number]
            groups.setdefault((piece.shard, piece.group), []).append(number)
        whole = [self._whole(self._pieces[members[0]]) for members in groups.values()]
        found: dict[int, pa.Table] = {}
        for members, table in zip(
            groups.values(), self._scan.fetch_each(whole, self.schema), strict=True
        ):
            for number in members:
                found[number] = _rows_of(table, self._pieces[number].slices)
        return found

    def matching(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that match the filters, with the selected columns."""
        if self._filters and batch.num_rows:
            table: Any = pa.Table.from_batches([batch])
            for one in self._filters:
                table = table.filter(one.mask(table))
            batch = as_batch(table)
        return batch.select(self._scan.schema.names)

    @cached_property
    def _possible(self) -> list[bool]:
        """For each block whether statistics allow that a row matches."""
        numbers = sorted({piece.shard for piece in self._pieces})
        footers = self._shards.footers(numbers)
        ends = np.cumsum([footer.groups for footer in footers])[:-1]
        possible, _ = matches(self._filters, footers)
        by_shard = dict(zip(numbers, np.split(possible, ends), strict=True))
        return [bool(by_shard[piece.shard][piece.group]) for piece in self._pieces]

    def _selected_shards(self, ranges: Ranges) -> list[tuple[int, ShardFooter]]:
        starts = self._shards.starts
        numbers = [
            number
            for number in range(len(starts) - 1)
            if _overlaps(int(starts[number]), int(starts[number + 1]), ranges)
        ]
        return list(zip(numbers, self._shards.footers(numbers), strict=True))

    @staticmethod
    def _whole(piece: Piece) -> Piece:
        first, stop = piece.footer.starts[piece.group : piece.group + 2].tolist()
        return replace(piece, slices=((0, stop - first),))


def as_batch(table: pa.Table) -> pa.RecordBatch:
    """Return a table as one record batch; a `ValueError` if it does not fit in one."""
    empty = [pa.nulls(0, field.type) for field in table.schema]
    (batch,) = table.combine_chunks().to_batches() or [
        pa.RecordBatch.from_arrays(empty, schema=table.schema)
    ]
    found: pa.RecordBatch = batch
    return found


def cut_ranges(ranges: Ranges, first: int, stop: int | None = None) -> list[tuple[int, int]]:
    """Return the ranges of the selected rows from the row `first` of the selection to `stop`."""
    kept = []
    at = 0
    for start, end in ranges:
        low = max(start, start + first - at)
        high = end if stop is None else min(end, start + stop - at)
        if low < high:
            kept.append((low, high))
        at += end - start
    return kept


def _overlaps(first: int, stop: int, ranges: Ranges) -> bool:
    at = bisect_right(ranges, (stop, -1)) - 1  # the last that begins before the end
    return at >= 0 and first < stop and ranges[at][1] > first


def _pieces(
    number: int, footer: ShardFooter, first: int, ranges: Ranges
) -> Iterable[tuple[Piece, int]]:
    """Yield the blocks of a shard, with their decompressed sizes in all columns."""
    for group in range(footer.groups):
        low, high = (first + int(row) for row in footer.starts[group : group + 2])
        slices = []
        at = bisect_right(ranges, low, key=itemgetter(1))  # the first that ends after `low`
        while at < len(ranges) and ranges[at][0] < high:
            start, stop = ranges[at]
            slices.append((max(low, start) - low, min(high, stop) - low))
            at += 1
        rows = sum(stop - start for start, stop in slices)
        if not rows:
            continue
        size = max(1, int(footer.metadata.row_group(group).total_byte_size)) * rows // (high - low)
        count = min(rows, -(-size // BLOCK_BYTES)) or 1
        for part in range(count):
            begin, end = part * rows // count, (part + 1) * rows // count
            kept = tuple(cut_ranges(slices, begin, end))
            yield Piece(number, footer, group, kept, is_certain=True), size // count


def _rows_of(table: pa.Table, slices: Sequence[tuple[int, int]]) -> pa.Table:
    parts = [table.slice(start, stop - start) for start, stop in slices]
    found = parts[0] if len(parts) == 1 else pa.concat_tables(parts)
    if _FEW_TIMES * found.num_rows <= table.num_rows:
        # A slice would keep all rows of its row group in memory.
        found = found.take(pa.array(np.arange(found.num_rows)))
    return found
