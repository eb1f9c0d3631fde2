"""Which column chunks a read needs, fetched and decoded step by step, in order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa

from relive.model.source import IndexArray
from relive.publish.read.decode import FetchedRanges, decode, decode_first
from relive.publish.read.filters.conditions import Filter, matches
from relive.publish.read.filters.predicates import Mask
from relive.publish.read.footer import ShardFooter
from relive.publish.read.shards import TableShards

STEP_BYTES: Final = 32 << 20
"""The decompressed size of what is fetched at once, if a row group is not larger."""
_SECOND_STEP_BYTES: Final = 16 << 20
# Writers make dictionaries and pages of about 1 MiB; a column chunk begins with one of each.
_PAGE_BYTES: Final = 1 << 20
_FIRST_BYTES: Final = 9 * _PAGE_BYTES // 4
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
        tested = dict.fromkeys(name for one in filters for name in one.columns)
        # A condition without columns needs one to have the right number of rows.
        self._tested = _selected(shards.schema, list(tested) or shards.schema.names[:1])

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
        return sum(len(rows) for rows in self.positions())

    def positions(self) -> Iterator[IndexArray]:
        """Yield the numbers of the rows in the table, in order; only the filters are fetched."""
        step: list[Piece] = []
        nbytes = 0
        for piece in self.pieces():
            step.append(piece)
            if not piece.is_certain:
                leaves = piece.footer.leaves(self._tested.names)
                nbytes += piece.footer.decoded_bytes(piece.group, leaves)
            if nbytes >= STEP_BYTES:
                yield from self._matching(step)
                step, nbytes = [], 0
        yield from self._matching(step)

    def _matching(self, step: Sequence[Piece]) -> Iterator[IndexArray]:
        unsure = [piece for piece in step if not piece.is_certain]
        tables = iter(self.fetch_each(unsure, self._tested))
        for piece in step:
            first = self._shards.starts[piece.shard] + piece.footer.starts[piece.group]
            runs = [np.arange(start, stop) for start, stop in piece.slices]
            rows = np.concatenate(runs).astype(np.int64)
            if not piece.is_certain:
                table = next(tables)
                for one in self._filters:
                    keep = one.mask(table).fill_null(False).to_numpy()  # noqa: FBT003
                    rows, table = rows[keep], table.filter(pa.array(keep))
            yield rows + first

    def decoded_bytes(self, most: int) -> int:
        """Return about how many bytes the rows take before filters, or some number over `most`."""
        total = 0
        for piece in self.pieces():
            rows = int(piece.footer.starts[piece.group + 1] - piece.footer.starts[piece.group])
            leaves = piece.footer.leaves(self._columns)
            total += piece.footer.decoded_bytes(piece.group, leaves) * piece.rows // rows
            if total > most:
                break
        return total

    def fetch(self, step: Sequence[Piece], schema: pa.Schema) -> pa.Table:
        """Fetch column chunks of row groups in one round trip, and decode them in order."""
        first = self._fetch_first(step, schema)
        if first is not None:
            return first
        files = self._open(step, schema)
        tables = []
        for pieces, file in zip(_by_shard(step), files, strict=True):
            groups = [piece.group for piece in pieces]
            tables.append(_sliced(decode(file, pieces[0].footer, groups, schema), pieces))
        return tables[0] if len(tables) == 1 else pa.concat_tables(tables)

    def _fetch_first(self, step: Sequence[Piece], schema: pa.Schema) -> pa.Table | None:
        """Return the first rows of one large row group; None if more than those are needed."""
        if len(step) > 1 or step[0].slices[0][0] or len(step[0].slices) > 1:
            return None
        piece, footer, blobs = step[0], step[0].footer, self._shards.blobs
        chunks = footer.ranges(piece.group, footer.leaves(schema.names))
        total = footer.starts[piece.group + 1] - footer.starts[piece.group]
        starts = [
            (start, min(stop, start + (stop - start) * piece.rows // int(total) + _FIRST_BYTES))
            for start, stop in chunks
        ]
        if 2 * sum(stop - start for start, stop in starts) > sum(b - a for a, b in chunks):
            return None
        blob = self._shards.entry.shards[piece.shard].blob
        found = blobs.read_many([(blob, start, stop) for start, stop in starts])
        fetched = sorted(zip((start for start, _ in starts), found, strict=True))
        file = FetchedRanges(blob.nbytes, fetched, _Fetch(blobs, blob), ahead=_PAGE_BYTES)
        return decode_first(file, footer, piece.group, piece.rows, schema)

    def fetch_each(self, step: Sequence[Piece], schema: pa.Schema) -> list[pa.Table]:
        """Fetch column chunks in one round trip, and decode each row group for itself."""
        return [
            _sliced(decode(file, piece.footer, [piece.group], schema), [piece])
            for pieces, file in zip(_by_shard(step), self._open(step, schema), strict=True)
            for piece in pieces
        ]

    def _open(self, step: Sequence[Piece], schema: pa.Schema) -> list[FetchedRanges]:
        """Fetch what row groups need of each shard."""
        reads, parts = [], []
        for pieces in _by_shard(step):
            footer = pieces[0].footer
            leaves = footer.leaves(schema.names)
            groups = [piece.group for piece in pieces]
            ranges = sorted({each for group in groups for each in footer.ranges(group, leaves)})
            blob = self._shards.entry.shards[pieces[0].shard].blob
            reads += [(blob, start, stop) for start, stop in ranges]
            parts.append((blob, ranges))
        blobs = self._shards.blobs
        # Of a filtered read only what is needed is fetched, of others also small gaps.
        found = iter(blobs.read_many(reads, gap=0 if self._filters else None) if reads else ())
        return [
            FetchedRanges(
                blob.nbytes, [(start, next(found)) for start, _ in ranges], _Fetch(blobs, blob)
            )
            for blob, ranges in parts
        ]

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


def _by_shard(step: Sequence[Piece]) -> list[list[Piece]]:
    return [list(pieces) for _, pieces in groupby(step, attrgetter("shard"))]


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
