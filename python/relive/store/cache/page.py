"""One page of a blob in a file: some of its leaves, and at the end which ones and their digests.

```text
leaf | leaf | …    in ascending order, 64 KiB each; only the last one of a blob may be shorter
digest | digest …  SHA-256 of each leaf, for `relive cache verify`
bitmap             4 bytes, little-endian: which of the 16 leaves the file has
magic              12 bytes
```

A reader trusts none of it: it compares leaves with the leaf table that the manifest names.
"""

import contextlib
import hashlib
import os
import struct
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from relive.errors import InvalidError
from relive.store.atomic import open_file
from relive.store.cache.layout import PAGE_BYTES, PAGE_LEAVES
from relive.store.leaves import DIGEST_BYTES, LEAF_BYTES
from relive.store.remote.ranges import Data

_TAIL: Final = struct.Struct("<I12s")
_MAGIC: Final = b"relive-page1"

Identity = tuple[int, int, int]
"""Inode, time of the last change and size of a file: a file that was written to has another."""


class Leaf(NamedTuple):
    """A leaf and its digest."""

    data: Data
    digest: bytes


class PageFile:
    """An open page. Raises `ValueError` for a file that is not one."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        status = os.fstat(handle)
        self.identity: Identity = (status.st_ino, status.st_ctime_ns, status.st_size)
        tail = os.pread(handle, _TAIL.size, max(0, status.st_size - _TAIL.size))
        if len(tail) < _TAIL.size:
            raise ValueError
        self.bitmap: int
        self.bitmap, magic = _TAIL.unpack(tail)
        count = self.bitmap.bit_count()
        self._payload = status.st_size - _TAIL.size - count * DIGEST_BYTES
        least = (count - 1) * LEAF_BYTES + 1
        if (
            magic != _MAGIC
            or not 0 < self.bitmap < 1 << PAGE_LEAVES
            or not least <= self._payload <= count * LEAF_BYTES
        ):
            raise ValueError

    def runs(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the runs of leaves from `first` to `end` that the page has."""
        leaf = first
        while leaf < end:
            if not self.bitmap >> leaf & 1:
                leaf += 1
                continue
            start = leaf
            while leaf < end and self.bitmap >> leaf & 1:
                leaf += 1
            yield start, leaf

    def read_into(self, leaf: int, out: memoryview) -> bool:
        """Fill `out` with the bytes from `leaf` on; return whether there were as many."""
        offset, at = self._offset(leaf), 0
        if offset + len(out) > self._payload:
            return False
        while at < len(out):
            count = os.preadv(self._handle, [out[at:]], offset + at)
            if not count:
                return False
            at += count
        return True

    def leaves(self) -> dict[int, Leaf]:
        """Return all leaves with the digests that the file has for them."""
        data = os.pread(self._handle, self._payload, 0)
        table = os.pread(self._handle, self.bitmap.bit_count() * DIGEST_BYTES, self._payload)
        numbers = [leaf for leaf in range(PAGE_LEAVES) if self.bitmap >> leaf & 1]
        if len(data) != self._payload or len(table) != len(numbers) * DIGEST_BYTES:
            raise ValueError
        return {
            leaf: Leaf(
                data[place * LEAF_BYTES : (place + 1) * LEAF_BYTES],
                table[place * DIGEST_BYTES : (place + 1) * DIGEST_BYTES],
            )
            for place, leaf in enumerate(numbers)
        }

    def has_digests(self, entries: bytes) -> bool:
        """Compare its digests with those of the leaf table for this page."""
        numbers = [leaf for leaf in range(PAGE_LEAVES) if self.bitmap >> leaf & 1]
        wanted = b"".join(
            entries[leaf * DIGEST_BYTES : (leaf + 1) * DIGEST_BYTES] for leaf in numbers
        )
        return os.pread(self._handle, len(numbers) * DIGEST_BYTES, self._payload) == wanted

    def is_intact(self) -> bool:
        """Compare every leaf with the digest that the file has for it."""
        return all(
            hashlib.sha256(leaf.data).digest() == leaf.digest for leaf in self.leaves().values()
        )

    def _offset(self, leaf: int) -> int:
        return (self.bitmap & (1 << leaf) - 1).bit_count() * LEAF_BYTES


@contextlib.contextmanager
def open_page(path: str) -> Iterator[PageFile | None]:
    """Open a page for the length of a block; None if there is none that can be read."""
    try:
        handle = open_file(path)
    except (OSError, InvalidError):
        yield None
        return
    try:
        try:
            page = PageFile(handle)
        except (OSError, ValueError):
            page = None
        yield page
    finally:
        os.close(handle)


def split_pages(start: int, data: Data, table: bytes) -> Iterator[tuple[int, dict[int, Leaf]]]:
    """Yield the pages of leaves from offset `start` on: their numbers, and the leaves of each."""
    view = memoryview(data)
    stop = start + len(view)
    for begin in range(start - start % PAGE_BYTES, stop, PAGE_BYTES):
        leaves = {}
        for at in range(max(start, begin), min(stop, begin + PAGE_BYTES), LEAF_BYTES):
            leaf = at // LEAF_BYTES
            entry = table[leaf * DIGEST_BYTES : (leaf + 1) * DIGEST_BYTES]
            part = view[at - start : min(at + LEAF_BYTES, stop) - start]
            leaves[leaf % PAGE_LEAVES] = Leaf(part, entry)
        yield begin // PAGE_BYTES, leaves


def encode_page(leaves: Mapping[int, Leaf]) -> list[Data]:
    """Return the pieces of the file of a page."""
    ordered = [leaves[leaf] for leaf in sorted(leaves)]
    bitmap = sum(1 << leaf for leaf in leaves)
    return [
        *(leaf.data for leaf in ordered),
        *(leaf.digest for leaf in ordered),
        _TAIL.pack(bitmap, _MAGIC),
    ]
