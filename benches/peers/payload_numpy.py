"""NumPy: slices of one map of all payloads, and rows of one length for comparison."""

from __future__ import annotations

from itertools import cycle, pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benches.payloads import LONGEST, PayloadCase, PayloadPeer
from benches.peers import Peer, Setting, Stream

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from benches.data import Bytes, Case


class MemmapSlices(PayloadPeer):
    """Each payload's slice of the map, copied one behind the other into one buffer.

    The buffer is a fresh one for every batch, which then belongs to whoever gets it, as
    relive's do; or it is the same one each time, and the next batch overwrites it.
    """

    family: ClassVar[str] = "numpy"
    packages: ClassVar[tuple[str, ...]] = ("numpy",)
    suffix = "bin"

    def __init__(self, *, fresh: bool) -> None:
        self.fresh = fresh
        self.name = f"numpy memmap, {'fresh' if fresh else 'same'} buffer"

    def settings(self, case: Case) -> Sequence[Setting]:  # noqa: ARG002 - the same for all
        """Slice by slice or, where the buffer is fresh, by `np.concatenate` as well."""
        return [{"by": "slices"}, {"by": "concatenate"}] if self.fresh else [{"by": "slices"}]

    def write(self, case: PayloadCase, path: Path) -> None:
        """Nothing: the payloads are in this form to begin with."""

    def stream(self, case: PayloadCase, setting: Setting) -> Stream:
        """One map; the offsets as a list, which Python reads fastest."""
        batches = _filled(case, fresh=self.fresh) if setting["by"] == "slices" else _joined(case)
        return Stream(batches, _pieces)


def _filled(case: PayloadCase, *, fresh: bool) -> Iterator[tuple[Bytes, list[int]]]:
    mapped = np.asarray(case.memmap())  # slices of a plain array cost less
    bounds = case.offsets.tolist()
    room = case.batch_size * LONGEST
    out = np.empty(room, np.uint8)
    for rows in cycle([rows.tolist() for rows in case.batches]):
        if fresh:
            out = np.empty(room, np.uint8)
        at = 0
        ends = [at]
        for row in rows:
            begin, end = bounds[row], bounds[row + 1]
            to = at + end - begin
            out[at:to] = mapped[begin:end]
            at = to
            ends.append(at)
        yield out, ends


def _joined(case: PayloadCase) -> Iterator[tuple[Bytes, list[int]]]:
    mapped = np.asarray(case.memmap())
    bounds = case.offsets.tolist()
    for rows in cycle([rows.tolist() for rows in case.batches]):
        parts = [mapped[bounds[row] : bounds[row + 1]] for row in rows]
        ends = [0]
        for part in parts:
            ends.append(ends[-1] + len(part))
        yield np.concatenate(parts), ends


def _pieces(batch: tuple[Bytes, list[int]]) -> Any:
    out, ends = batch
    return [out[begin:end] for begin, end in pairwise(ends)]


class MemmapRows(Peer):
    """`np.take(map, indices, axis=0, out=out)` of the same bytes, cut into rows of one length."""

    name = "numpy take, rows of one length"
    family: ClassVar[str] = "numpy"
    packages: ClassVar[tuple[str, ...]] = ("numpy",)

    def open(self, case: Case, setting: Setting) -> Stream:
        """One map, one output; there are no payloads here that could be compared."""
        del setting
        return Stream(_rows(case), None)


def _rows(case: Case) -> Iterator[Bytes]:
    size = case.record_bytes
    rows = np.asarray(case.memmap())[: case.records * size].reshape(-1, size)
    out = np.empty((case.batch_size, size), np.uint8)
    for wanted in cycle(case.batches):
        np.take(rows, wanted, axis=0, out=out, mode="clip")
        yield out
