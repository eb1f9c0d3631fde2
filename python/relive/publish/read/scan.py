"""Which column chunks a read needs, fetched and decoded step by step, in order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from relive.publish.read.decode import FetchedRanges, decode
from relive.publish.read.filters import Filter, matches
from relive.publish.read.footer import ShardFooter
from relive.publish.read.predicates import Mask
from relive.publish.read.shards import TableShards

STEP_BYTES: Final = 32 << 20
"""The decompressed size of what is fetched at once, if a row group is not larger."""
_SECOND_STEP_BYTES: Final = 8 << 20
_SHARDS_GROWTH: Final = 8
_MAX_SHARDS: Final = 256


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one row group."""

    shard: int
    footer: ShardFooter
    group: int
    slices: tuple[tuple[int, int], ...]
    """The first row and the end of each run of rows, counted in the row group."""
    is_certain: bool
    """Whether all of the rows match the filters."""

    @property
    def rows(self) -> int:
        """The number of rows, before filters are applied."""
        return sum(stop - start for start, stop in self.slices)


class Scan:
    """A read of some rows and columns of a table, in order. Thread-safe.

    Args:
        shards: The table.
        columns: The columns of the result.
        ranges: The rows, in order; None for all.
        filters: Conditions that rows must match.
        limit: The number of rows after which to stop, if there are no filters.
    """

    def __init__(
        self,
        shards: TableShards,
        columns: Sequence[str],
        ranges: Sequence[tuple[int, int]] | None = None,
        filters: Sequence[Filter] = (),
        limit: int | None = None,
    ) -> None:
        self._shards = shards
        self._columns = list(columns)
        self._filters = filters
        self._ranges = [(0, shards.entry.rows)] if ranges is None else list(ranges)
        self._limit = None if filters else limit
        self.schema = _selected(shards.schema, columns)
        """The schema of the result."""
        needed = dict.fromkeys([*columns, *(name for one in filters for name in one.columns)])
        self._fetched = _selected(shards.schema, list(needed))

    def pieces(self) -> Iterator[Piece]:
        """Yield the row groups that statistics cannot exclude, with the rows that are read."""
        left = self._limit
        for number, footer, possible, certain in self._overlapping():
            start = int(self._shards.starts[number])
            for group in np.flatnonzero(possible).tolist():
                first, end = (start + int(row) for row in footer.starts[group : group + 2])
                slices = [
                    (max(first, low) - first, min(end, high) - first)
                    for low, high in self._ranges
                    if low < end and first < high
                ]
                kept = _first_rows(slices, left)
                piece = Piece(number, footer, group, kept, bool(certain[group]))
                if piece.rows:
                    yield piece
                if left is not None:
                    left -= piece.rows
                    if not left:
                        return

    def steps(self, first_rows: int) -> Iterator[list[Piece]]:
        """Yield the row groups to fetch at once; the first ones have at least `first_rows` rows."""
        step: list[Piece] = []
        rows = nbytes = 0
        target: int | None = None  # the first step ends by rows
        for piece in self.pieces():
            leaves = piece.footer.leaves(self._fetched.names)
            size = piece.footer.decoded_bytes(piece.group, leaves)
            if target is not None and step and nbytes + size > target:
                yield step
                step, nbytes = [], 0
                target = min(STEP_BYTES, 2 * target)
            step.append(piece)
            rows += piece.rows
            nbytes += size
            if target is None and (rows >= first_rows or nbytes >= STEP_BYTES):
                yield step
                step, nbytes, target = [], 0, _SECOND_STEP_BYTES
        if step:
            yield step

    def read(self, step: Sequence[Piece]) -> pa.Table:
        """Fetch and decode row groups; return the rows that match, with the selected columns."""
        table = self.fetch(step, self._fetched)
        for one in self._filters:
            if table.num_rows:
                table = table.filter(one.mask(table))
        return table.select(self._columns)

    def count(self) -> int:
        """Return the number of rows; row groups that match as a whole are not fetched."""
        if not self._filters:
            return sum(high - low for low, high in self._ranges)
        only = Scan(self._shards, self._filters[0].columns[:1], self._ranges, self._filters)
        total = 0
        unsure: list[Piece] = []
        for piece in self.pieces():
            if piece.is_certain:
                total += piece.rows
            else:
                unsure.append(piece)
        nbytes, step = 0, []
        for piece in unsure:
            step.append(piece)
            nbytes += piece.footer.decoded_bytes(piece.group, piece.footer.leaves(only.needed))
            if nbytes >= STEP_BYTES:
                total += only.read(step).num_rows
                nbytes, step = 0, []
        return total + (only.read(step).num_rows if step else 0)

    @property
    def needed(self) -> list[str]:
        """The columns that are fetched: those of the result and of the filters."""
        return list(self._fetched.names)

    def decoded_bytes(self) -> int:
        """Return about how many bytes the rows take in memory, before filters are applied."""
        return sum(
            piece.footer.decoded_bytes(piece.group, piece.footer.leaves(self._columns))
            for piece in self.pieces()
        )

    def fetch(self, step: Sequence[Piece], schema: pa.Schema) -> pa.Table:
        """Fetch column chunks of row groups in one round trip, and decode them in order."""
        reads, parts = [], []
        for shard, pieces in _by_shard(step):
            footer = pieces[0].footer
            leaves = footer.leaves(schema.names)
            groups = [piece.group for piece in pieces]
            ranges = sorted({each for group in groups for each in footer.ranges(group, leaves)})
            blob = self._shards.entry.shards[shard].blob
            reads += [(blob, start, stop) for start, stop in ranges]
            parts.append((blob, pieces, ranges))
        blobs = self._shards.blobs
        # Of a filtered read only what is needed is fetched, of others also small gaps.
        found = iter(blobs.read_many(reads, gap=0 if self._filters else None))
        tables = []
        for blob, pieces, ranges in parts:
            fetched = [(start, next(found)) for start, _ in ranges]
            file = FetchedRanges(blob.nbytes, fetched, _Fetch(blobs, blob))
            groups = [piece.group for piece in pieces]
            table = decode(file, pieces[0].footer, groups, schema)
            tables.append(_sliced(table, pieces))
        return tables[0] if len(tables) == 1 else pa.concat_tables(tables)

    def _overlapping(self) -> Iterator[tuple[int, ShardFooter, Mask, Mask]]:
        """Yield the shards that have rows of the ranges, with what is known of their row groups.

        Footers are read, and bounds compared, for many shards at once.
        """
        starts, ranges = self._shards.starts, self._ranges
        numbers = [
            number
            for number in range(len(starts) - 1)
            if any(low < starts[number + 1] and starts[number] < high for low, high in ranges)
        ]
        at, count = 0, 1
        while at < len(numbers):
            chosen = numbers[at : at + count]
            footers = self._shards.footers(chosen)
            ends = np.cumsum([footer.groups for footer in footers])[:-1]
            masks = (np.split(mask, ends) for mask in matches(self._filters, footers))
            yield from zip(chosen, footers, *masks, strict=True)
            at, count = at + count, min(count * _SHARDS_GROWTH, _MAX_SHARDS)


@dataclass(frozen=True)
class _Fetch:
    """Fetches bytes of a blob."""

    blobs: Any
    blob: Any

    def __call__(self, start: int, stop: int) -> Any:
        return self.blobs.read_many([(self.blob, start, stop)])[0]


def _selected(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    return pa.schema([schema.field(name) for name in columns], schema.metadata)


def _first_rows(slices: list[tuple[int, int]], most: int | None) -> tuple[tuple[int, int], ...]:
    if most is None:
        return tuple(slices)
    kept = []
    for start, stop in slices:
        kept.append((start, min(stop, start + most)))
        most -= kept[-1][1] - start
        if not most:
            break
    return tuple(kept)


def _by_shard(step: Sequence[Piece]) -> list[tuple[int, list[Piece]]]:
    found: list[tuple[int, list[Piece]]] = []
    for piece in step:
        if not found or found[-1][0] != piece.shard:
            found.append((piece.shard, []))
        found[-1][1].append(piece)
    return found


def _sliced(table: pa.Table, pieces: Sequence[Piece]) -> pa.Table:
    """Return the rows of the pieces out of the rows of their row groups."""
    parts: list[tuple[int, int]] = []
    first = 0
    for piece in pieces:
        for start, stop in piece.slices:
            if parts and parts[-1][1] == first + start:
                parts[-1] = parts[-1][0], first + stop
            else:
                parts.append((first + start, first + stop))
        first += int(piece.footer.starts[piece.group + 1] - piece.footer.starts[piece.group])
    if parts == [(0, table.num_rows)]:
        return table
    return pa.concat_tables([table.slice(start, stop - start) for start, stop in parts])
