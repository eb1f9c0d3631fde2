"""Leaf tables: a SHA-256 for every 64 KiB of a blob, by which any range of it is verified."""

import hashlib
from collections.abc import Iterable
from typing import Final

from relive.store.remote.ranges import Data

LEAF_BYTES: Final = 64 << 10
"""The size of a leaf; the last leaf of a blob may be shorter."""

DIGEST_BYTES: Final = 32
"""The size of an entry of a leaf table."""


class LeafHasher:
    """Computes the leaf table of bytes that arrive in pieces of any size."""

    def __init__(self) -> None:
        self._digests: list[bytes] = []
        self._leaf = hashlib.sha256()
        self._filled = 0

    def update(self, data: Data) -> None:
        """Add the next bytes."""
        view, at = memoryview(data), 0
        while at < len(view):
            taken = min(LEAF_BYTES - self._filled, len(view) - at)
            self._leaf.update(view[at : at + taken])
            self._filled += taken
            at += taken
            if self._filled == LEAF_BYTES:
                self._end_leaf()

    def finish(self) -> bytes:
        """Return the table, after the last bytes."""
        if self._filled:
            self._end_leaf()
        return b"".join(self._digests)

    def _end_leaf(self) -> None:
        self._digests.append(self._leaf.digest())
        self._leaf, self._filled = hashlib.sha256(), 0


def leaf_table(pieces: Iterable[Data]) -> bytes:
    """Return the leaf table of the joined pieces: 32 bytes for every 64 KiB."""
    hasher = LeafHasher()
    for piece in pieces:
        hasher.update(piece)
    return hasher.finish()


def leaf_count(nbytes: int) -> int:
    """Return how many leaves a blob of `nbytes` has."""
    return -(-nbytes // LEAF_BYTES)


def round_out(start: int, stop: int, nbytes: int) -> tuple[int, int]:
    """Return the range of whole leaves that contains bytes `start` to `stop`."""
    first, end = start // LEAF_BYTES, leaf_count(stop)
    return first * LEAF_BYTES, min(end * LEAF_BYTES, nbytes)


def find_damage(data: Data, start: int, table: bytes, known: bytearray | None = None) -> int | None:
    """Return the offset of the first leaf that does not match its digest, None if all match.

    `data` are whole leaves from offset `start` on. Leaves that are not zero in `known` are not
    hashed; those that match are set there.
    """
    view, leaf = memoryview(data), start // LEAF_BYTES
    for at in range(0, len(view), LEAF_BYTES):
        if known is None or not known[leaf]:
            entry = table[leaf * DIGEST_BYTES : (leaf + 1) * DIGEST_BYTES]
            if hashlib.sha256(view[at : at + LEAF_BYTES]).digest() != entry:
                return start + at
            if known is not None:
                known[leaf] = 1
        leaf += 1
    return None
