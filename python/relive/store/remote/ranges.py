"""Plans range requests: joins ranges that are near each other and cuts those that are long."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

Range: TypeAlias = tuple[int, int]
"""The offsets of the first byte and of the one after the last."""

# Ranges that are closer than this are one request: fewer round trips, at most so much in vain.
GAP_BYTES: Final = 256 << 10
# A longer range is requested in parts at the same time, which is faster over one connection each.
MAX_REQUEST_BYTES: Final = 8 << 20


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
