"""Which column chunks a read needs, fetched and decoded step by step, in order."""

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
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
from relive.store.leaves import LEAF_BYTES
from relive.store.remote.ranges import GAP_BYTES

STEP_BYTES: Final = 8 << 20
"""What is fetched at once, if a row group is not larger: as much as one request returns."""
DECODED_BYTES: Final = 32 << 20
"""The decompressed size of what is fetched at once, if a row group is not larger."""
# A step of many small column chunks ends after so many requests, so that it is decoded while the
# next ones are fetched.
_STEP_REQUESTS: Final = 16
_MAX_FIRST_BYTES: Final = 32 << 20
# Writers make dictionaries and pages of about 1 MiB; a column chunk begins with one of each.
_PAGE_BYTES: Final = 1 << 20
_FIRST_BYTES: Final = 9 * _PAGE_BYTES // 4
_MAX_FOOTERS: Final = 256
_NUMBER: Final = "\0number"
# The first rows of a row group are decoded alone if it has more than so many times as many.
_FEW_TIMES: Final = 2


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

    @property
    def is_filtered(self) -> bool:
        """Whether there are filters."""
        return bool(self._filters)

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

    def steps(self, first_rows: int) -> Iterator["Step"]:
        """Yield the row groups to fetch at once; the first ones have at least `first_rows` rows."""
        step = Step(LEAF_BYTES if self._filters else GAP_BYTES)
        rows = 0
        is_first = True  # which ends by rows
        for piece in self.pieces():
            leaves = piece.footer.leaves(self._fetched.names)
            ranges = piece.footer.ranges(piece.group, leaves)
            decoded = piece.footer.decoded_bytes(piece.group, leaves)
            if step.pieces and not is_first and step.would_exceed(piece, ranges, decoded):
                yield step
                step = Step(step.gap)
            step.add(piece, ranges, decoded)
            rows += piece.rows
            if is_first and (rows >= first_rows or step.fetched_bytes >= _MAX_FIRST_BYTES):
                yield step
                step, is_first = Step(step.gap), False
        if step.pieces:
            yield step

    def read_first(self, step: "Step", rows: int) -> tuple[pa.Table, "Step | None"]:
        """Read a step as `read` does, or the first `rows` rows of it and return the others.

        Of one large row group that is read as a whole, only the first rows are decoded. The
        others are a step that has been fetched.
        """
        (piece, *more) = step.pieces
        is_whole = piece.slices == ((0, piece.footer.group_rows(piece.group)),)
        if more or self._filters or not is_whole or piece.rows <= _FEW_TIMES * rows:
            return self.read(step), None
        (file,) = self._open(step.pieces, self._fetched)
        table = decode_first(file, piece.footer, piece.group, rows, self._fetched)
        others = replace(piece, slices=((rows, piece.rows),))
        return table.select(self._columns), step.with_rest(others, file)

    def read(self, step: "Step") -> pa.Table:
        """Fetch and decode row groups; return the rows that match, with the selected columns."""
        if step.file is None:
            table = self.fetch(step.pieces, self._fetched)
        else:
            piece = step.pieces[0]
            table = decode(step.file, piece.footer, [piece.group], self._fetched)
            table = _sliced(table, [piece])
        return self._matching_rows(table).select(self._columns)

    def read_numbered(self, step: "Step") -> pa.Table:
        """Fetch a step; return the same, with a last column: the position of each row read."""
        table = self.fetch(step.pieces, self._fetched)
        table = table.append_column(_NUMBER, pa.array(self._numbers(step.pieces)))
        return self._matching_rows(table).select([*self._columns, _NUMBER])

    def _matching_rows(self, table: pa.Table) -> pa.Table:
        for one in self._filters:
            if table.num_rows:
                table = table.filter(one.mask(table))
        return table

    def _numbers(self, step: Sequence[Piece]) -> IndexArray:
        """Return the positions of the rows of a step among all rows that are read."""
        starts = np.array([start for start, _ in self._ranges], np.int64)
        sizes = np.array([stop - start for start, stop in self._ranges], np.int64)
        runs = []
        for piece in step:
            first = int(self._shards.starts[piece.shard] + piece.footer.starts[piece.group])
            for start, stop in piece.slices:
                number = int(starts.searchsorted(first + start, side="right")) - 1
                shift = int(sizes[:number].sum() - starts[number])
                runs.append(np.arange(first + start + shift, first + stop + shift))
        return np.concatenate(runs)

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
            if nbytes >= DECODED_BYTES:
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
            rows = piece.footer.group_rows(piece.group)
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
        piece, footer = step[0], step[0].footer
        chunks = footer.ranges(piece.group, footer.leaves(schema.names))
        total = footer.starts[piece.group + 1] - footer.starts[piece.group]
        starts = [
            (start, min(stop, start + (stop - start) * piece.rows // int(total) + _FIRST_BYTES))
            for start, stop in chunks
        ]
        if 2 * sum(stop - start for start, stop in starts) > sum(b - a for a, b in chunks):
            return None
        starts.sort()
        found = self._shards.read_many([(piece.shard, start, stop) for start, stop in starts])
        fetched = list(zip((start for start, _ in starts), found, strict=True))
        file = self._file(piece.shard, fetched, ahead=_PAGE_BYTES)
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
            footer, number = pieces[0].footer, pieces[0].shard
            leaves = footer.leaves(schema.names)
            groups = [piece.group for piece in pieces]
            ranges = sorted({each for group in groups for each in footer.ranges(group, leaves)})
            reads += [(number, start, stop) for start, stop in ranges]
            parts.append((number, ranges))
        # Of a filtered read only what is needed is fetched, of others also small gaps.
        gap = 0 if self._filters else None
        found = iter(self._shards.read_many(reads, gap=gap) if reads else ())
        return [
            self._file(number, [(start, next(found)) for start, _ in ranges])
            for number, ranges in parts
        ]

    def _file(
        self, number: int, fetched: Sequence[tuple[int, Any]], *, ahead: int = 0
    ) -> FetchedRanges:
        size = self._shards.entry.shards[number].blob.nbytes
        return FetchedRanges(size, fetched, _Fetch(self._shards, number), ahead=ahead)

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
        if self._limit is not None:
            numbers = self._until_limit(numbers)
        at, count = 0, 1
        while at < len(numbers):
            chosen = numbers[at : at + count]
            footers = self._shards.footers(chosen)
            ends = np.cumsum([footer.groups for footer in footers])[:-1]
            masks = (np.split(mask, ends) for mask in matches(self._filters, footers))
            yield from zip(chosen, footers, *masks, strict=True)
            at, count = at + count, _MAX_FOOTERS

    def _until_limit(self, numbers: list[int]) -> list[int]:
        """Return the first shards, which have as many rows as are read."""
        rows, starts = 0, self._shards.starts
        for count, number in enumerate(numbers, 1):
            rows += sum(
                max(0, min(high, starts[number + 1]) - max(low, starts[number]))
                for low, high in self._ranges
            )
            if rows >= (self._limit or 0):
                return numbers[:count]
        return numbers


class Step:
    """Row groups that are fetched at once, and what that takes; `gap` is as of `read_many`."""

    def __init__(self, gap: int) -> None:
        self.gap = gap
        self.pieces: list[Piece] = []
        self.file: FetchedRanges | None = None
        """What was fetched already, of one row group."""
        self.fetched_bytes = self._decoded = self._requests = 0
        self._end = -1, 0  # the last shard, and the end of its last range

    @property
    def nbytes(self) -> int:
        """About how much memory it takes while it is decoded."""
        return self.fetched_bytes + self._decoded

    def with_rest(self, piece: Piece, file: FetchedRanges) -> "Step":
        """Return the step with the rest of its row group, which was fetched."""
        rest = copy(self)
        rest.pieces, rest.file = [piece], file
        return rest

    def would_exceed(self, piece: Piece, ranges: list[tuple[int, int]], decoded: int) -> bool:
        """Return whether a row group is too much for this step."""
        return (
            self.fetched_bytes + sum(stop - start for start, stop in ranges) > STEP_BYTES
            or self._decoded + decoded > DECODED_BYTES
            or self._requests + self._added(piece, ranges) > _STEP_REQUESTS
        )

    def add(self, piece: Piece, ranges: list[tuple[int, int]], decoded: int) -> None:
        """Add a row group."""
        self._requests += self._added(piece, ranges)
        self.pieces.append(piece)
        self.fetched_bytes += sum(stop - start for start, stop in ranges)
        self._decoded += decoded
        self._end = piece.shard, max((stop for _, stop in ranges), default=0)

    def _added(self, piece: Piece, ranges: list[tuple[int, int]]) -> int:
        """Return about how many more requests a row group needs."""
        shard, end = self._end
        edges = [(0, end), *sorted(ranges)] if shard == piece.shard else sorted(ranges)
        apart = sum(start - stop > self.gap for (_, stop), (start, _) in pairwise(edges))
        return apart if shard == piece.shard else apart + 1


@dataclass(frozen=True)
class _Fetch:
    """Fetches bytes of a shard."""

    shards: TableShards
    number: int

    def __call__(self, start: int, stop: int) -> Any:
        return self.shards.read_many([(self.number, start, stop)])[0]


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
        first += piece.footer.group_rows(piece.group)
    if parts == [(0, table.num_rows)]:
        return table
    return pa.concat_tables([table.slice(start, stop - start) for start, stop in parts])
