"""Plans range requests: joins ranges that are near each other and cuts those that are long."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np

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
    block: int
    """The joined range that it is a part of."""


class RangePlan:
    """The requests for ranges of many objects, and the results out of their responses.

    Ranges of one object that are at most `gap` apart are joined. `receive` may be called by
    several threads at once.
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
        self._blocks: list[tuple[int, Data]] = []
        self._starts: dict[str, tuple[int, list[int]]] = {}
        for key, wanted in by_key.items():
            joined = join(wanted, gap)
            self._starts[key] = len(self._blocks), [start for start, _ in joined]
            for start, stop in joined:
                parts = cut([(start, stop)])
                self.pieces += [Piece(key, *part, len(self._blocks)) for part in parts]
                # Several responses are written into one buffer, so that no result is joined.
                whole = len(parts) == 1
                data = b"" if whole else np.empty(stop - start, np.uint8).data
                self._blocks.append((start, data))

    def receive(self, piece: Piece, data: Data) -> None:
        """Keep the response to a request, which has exactly the requested length."""
        start, block = self._blocks[piece.block]
        if block:
            # Unlike an assignment to a slice of the memoryview, numpy releases the GIL.
            target = np.frombuffer(block, np.uint8)[piece.start - start : piece.stop - start]
            np.copyto(target, np.frombuffer(data, np.uint8))
        else:
            self._blocks[piece.block] = start, data

    def results(self) -> list[Data]:
        """Return the bytes of each range, after all responses were received."""
        return [self._result(*each) for each in self._ranges]

    def _result(self, key: str, start: int, stop: int) -> Data:
        if start == stop:
            return b""
        first, starts = self._starts[key]
        begin, data = self._blocks[first + bisect_right(starts, start) - 1]
        view = memoryview(data)[start - begin : stop - begin]
        return bytes(view) if len(view) <= _COPY_BYTES else view.toreadonly()
