"""NumPy: `take` from a memory map into one preallocated array."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from benches.peers import Peer, Setting, Stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benches.data import Bytes, Case


class NumpyTake(Peer):
    """`np.take(map, indices, axis=0, out=out, mode="clip")`."""

    name = "numpy take"
    family: ClassVar[str] = "numpy"
    packages: ClassVar[tuple[str, ...]] = ("numpy",)

    def open(self, case: Case, setting: Setting) -> Stream:
        """One map, one output."""
        del setting
        return Stream(_batches(case), np.asarray)


def _batches(case: Case) -> Iterator[Bytes]:
    mapped = case.memmap()
    out = np.empty((case.batch_size, case.record_bytes), np.uint8)
    for rows in cycle(case.batches):
        np.take(mapped, rows, axis=0, out=out, mode="clip")
        yield out
