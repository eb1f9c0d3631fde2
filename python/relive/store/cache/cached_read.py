"""Reads of blobs out of the cache and, for what it does not have, out of the root."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from relive.store.cache.disk import BlobCache, LeavesOf
from relive.store.leaves import LEAF_BYTES, round_out
from relive.store.remote.buffers import lease
from relive.store.remote.ranges import Data, join

if TYPE_CHECKING:
    from relive.store.blobs import BlobRef, Blobs

Fetch = Callable[[Sequence[tuple["BlobRef", int, int]]], Sequence[Data]]
"""Reads ranges of blobs from the root, in one round trip, verified."""


class CachedRead:
    """One call of `Blobs.read_many` with a cache: what is in it is not requested."""

    def __init__(
        self, blobs: "Blobs", cache: BlobCache, reads: Sequence[tuple["BlobRef", int, int]]
    ) -> None:
        self._blobs, self._cache, self._reads = blobs, cache, reads
        self._runs: dict[BlobRef, list[_Run]] = {}
        self.pages = self.nbytes = 0
        """What was read from the cache."""

    def results(self, fetch: Fetch) -> list[Data]:
        """Return the bytes of each read, in order."""
        wanted: defaultdict[BlobRef, list[tuple[int, int]]] = defaultdict(list)
        for ref, start, stop in self._reads:
            if start < stop:
                whole = ref.leaves is None
                wanted[ref].append((0, ref.nbytes) if whole else round_out(start, stop, ref.nbytes))
        missing: list[tuple[BlobRef, int, int]] = []
        holders: list[_Run] = []
        for ref, ranges in wanted.items():
            self._runs[ref] = [self._find(ref, start, stop) for start, stop in join(ranges, 0)]
            for run in self._runs[ref]:
                missing += [(ref, start, stop) for start, stop in run.missing]
                holders += [run] * len(run.missing)
        if missing:
            found = fetch(missing)
            for run, (_, start, _), data in zip(holders, missing, found, strict=True):
                run.fill(start, data)
        return [self._result(*read) for read in self._reads]

    def _find(self, ref: "BlobRef", start: int, stop: int) -> "_Run":
        run = _Run(start, stop)
        if ref.leaves is None:
            whole = self._cache.find_whole(ref.digest, ref.nbytes)
            if whole is not None:
                run.fill(0, whole)
                self._count(1, len(whole))
            return run
        table = self._blobs.known_table(ref)
        if table is None:
            return run  # it is requested with the data
        out = np.frombuffer(lease(stop - start), np.uint8)
        found = self._cache.read_leaves(LeavesOf(ref.digest, ref.nbytes, table), start, out.data)
        if found:
            run.have(out, found)
            self._count(len(found), sum(high - low for low, high in found))
        return run

    def _count(self, pages: int, nbytes: int) -> None:
        self.pages += pages
        self.nbytes += nbytes

    def _result(self, ref: "BlobRef", start: int, stop: int) -> Data:
        if start == stop:
            return b""
        runs = self._runs[ref]
        run = runs[bisect_right([each.start for each in runs], start) - 1]
        view = memoryview(run.data)[start - run.start : stop - run.start]
        return bytes(view) if len(view) <= LEAF_BYTES else view


class _Run:
    """Adjacent leaves of a blob: a buffer that the cache filled in part, or one response."""

    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop
        self.data: Data = b""
        self.missing = [(start, stop)]
        self._out: np.ndarray[tuple[int], np.dtype[np.uint8]] | None = None

    def have(
        self, out: "np.ndarray[tuple[int], np.dtype[np.uint8]]", found: list[tuple[int, int]]
    ) -> None:
        """Keep what the cache had."""
        self._out, self.data = out, out.data.toreadonly()
        self.missing = []
        at = self.start
        for low, high in [*join(found, 0), (self.stop, self.stop)]:
            if at < low:
                self.missing.append((at, low))
            at = high

    def fill(self, start: int, data: Data) -> None:
        """Keep what the root returned."""
        if self._out is None:
            self.data = data
            self.missing = []
        else:
            at = start - self.start
            np.copyto(self._out[at : at + len(data)], np.frombuffer(data, np.uint8))
