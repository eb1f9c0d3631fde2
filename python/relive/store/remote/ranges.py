"""Plans range requests: joins ranges that are near each other and cuts those that are long."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from relive.store.remote.buffers import lease

Range: TypeAlias = tuple[int, int]
"""The offsets of the first byte and of the one after the last."""

KeyRange: TypeAlias = tuple[str, int, int]
"""The key of an object and a range of it."""

Data: TypeAlias = bytes | memoryview
"""Bytes of exactly the requested length; a memoryview where that saves a copy."""

# Ranges that are closer than this are one request: fewer round trips, at most so much in vain.
GAP_BYTES: Final = 256 << 10
# A longer range is requested in parts at the same time, which is faster over one connection each.
MAX_REQUEST_BYTES: Final = 8 << 20
# Shorter results are copied: a view would keep the whole response in memory.
_COPY_BYTES: Final = 64 << 10


def plan(ranges: Iterable[Range]) -> list[Range]:
    """Return the ranges to request, in ascending order, that cover all of `ranges`."""
    return cut(join(ranges))


def join(ranges: Iterable[Range], gap: int = GAP_BYTES) -> list[Range]:
    """Return the ranges in ascending order, with those at most `gap` apart joined into one."""
    joined: list[Range] = []
    for start, stop in sorted(ranges):
        if joined and start <= joined[-1][1] + gap:
            joined[-1] = joined[-1][0], max(joined[-1][1], stop)
        else:
            joined.append((start, stop))
    return joined


def cut(ranges: Iterable[Range], most: int = MAX_REQUEST_BYTES) -> list[Range]:
    """Return the ranges cut into ranges of at most `most` bytes."""
    return [(at, min(at + most, stop)) for start, stop in ranges for at in range(start, stop, most)]


def assemble(blocks: Sequence[tuple[int, bytes]], ranges: Iterable[Range]) -> list[bytes]:
    """Return the bytes of each range out of `blocks`, which are sorted pairs of offset and data."""
    starts = [start for start, _ in blocks]
    return [_slice(blocks, bisect_right(starts, start) - 1, start, stop) for start, stop in ranges]


def _slice(blocks: Sequence[tuple[int, bytes]], block: int, start: int, stop: int) -> bytes:
    found: list[bytes] = []
    at = start
    while at < stop:
        begin, data = blocks[block]
        found.append(data[at - begin : stop - begin])
        at += len(found[-1])
        block += 1
    return found[0] if len(found) == 1 else b"".join(found)


class Piece(NamedTuple):
    """One request: a range of an object."""

    key: str
    start: int
    stop: int
    number: int
    """Its place among the requests."""


class RangePlan:
    """The requests for ranges of many objects, and the results out of their responses.

    Ranges of one object that are at most `gap` apart are joined. Long requests are cut, where
    possible between two of the ranges: a range in one response is returned without a copy.
    `receive` may be called by several threads at once.
    """

    def __init__(self, ranges: Sequence[KeyRange], gap: int | None = None) -> None:
        self.pieces: list[Piece] = []
        """The requests to make, in the order of the objects' first ranges."""
        gap = GAP_BYTES if gap is None else gap
        by_key = defaultdict[str, list[Range]](list)
        for key, start, stop in ranges:
            if start < stop:
                by_key[key].append((start, stop))
        self._ranges = ranges
        self._starts: dict[str, tuple[int, list[int]]] = {}
        for key, wanted in by_key.items():
            borders = sorted({start for start, _ in wanted})
            parts = [part for each in join(wanted, gap) for part in _cut_between(*each, borders)]
            first = len(self.pieces)
            self._starts[key] = first, [start for start, _ in parts]
            self.pieces += [Piece(key, *part, first + n) for n, part in enumerate(parts)]
        self._responses: list[Data] = [b""] * len(self.pieces)
        # Results that several responses are copied to, by place, and those of each request.
        self._joined: dict[int, memoryview] = {}
        self._copies = defaultdict[int, list[tuple[int, memoryview]]](list)
        for place, (key, start, stop) in enumerate(ranges):
            if start < stop:
                first = self._piece_at(key, start)
                last = self._piece_at(key, stop - 1)
                if first < last:
                    joined = self._joined[place] = lease(stop - start)
                    for number in range(first, last + 1):
                        self._copies[number].append((start, joined))

    def receive(self, piece: Piece, data: Data) -> None:
        """Keep the response to a request, which has exactly the requested length."""
        self._responses[piece.number] = data
        for start, joined in self._copies.get(piece.number, ()):
            low, high = max(start, piece.start), min(start + len(joined), piece.stop)
            # Unlike an assignment to a slice of a memoryview, numpy releases the GIL.
            np.copyto(
                np.frombuffer(joined, np.uint8)[low - start : high - start],
                np.frombuffer(data, np.uint8)[low - piece.start : high - piece.start],
            )

    def results(self) -> list[Data]:
        """Return the bytes of each range, after all responses were received."""
        return [self._result(place, *each) for place, each in enumerate(self._ranges)]

    def _result(self, place: int, key: str, start: int, stop: int) -> Data:
        if start == stop:
            return b""
        if place in self._joined:
            return self._joined[place].toreadonly()
        piece = self.pieces[self._piece_at(key, start)]
        view = memoryview(self._responses[piece.number])[start - piece.start : stop - piece.start]
        return bytes(view) if len(view) <= _COPY_BYTES else view.toreadonly()

    def _piece_at(self, key: str, offset: int) -> int:
        first, starts = self._starts[key]
        return first + bisect_right(starts, offset) - 1


def _cut_between(start: int, stop: int, borders: Sequence[int]) -> list[Range]:
    """Return a range cut into requests of at most 8 MiB, the last of at most 12.

    A request ends at one of `borders`, if there is one in its second half.
    """
    parts = []
    while stop - start > MAX_REQUEST_BYTES + MAX_REQUEST_BYTES // 2:
        end = start + MAX_REQUEST_BYTES
        border = borders[bisect_right(borders, end) - 1]
        if border > start + MAX_REQUEST_BYTES // 2:
            end = border
        parts.append((start, end))
        start = end
    return [*parts, (start, stop)]
