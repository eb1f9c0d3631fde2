"""NumPy: a memory map that is written and read, row by row or slice by slice."""

from __future__ import annotations

from itertools import cycle, pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benches.peers import Setting, Stream
from benches.peers.record_store import FixedCase, RecordPeer, whole

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benches.data import Bytes
    from benches.payloads import PayloadCase
    from benches.peers.record_store import Job, RecordCase


class RecordMemmap(RecordPeer):
    """`np.take(map, indices, axis=0, out=out)`; `np.concatenate` of slices where ragged."""

    family: ClassVar[str] = "numpy"
    packages: ClassVar[tuple[str, ...]] = ("numpy",)
    suffix = "bin"

    def __init__(self, *, again: bool = False) -> None:
        self.again = again
        """Whether single records go to a file that was written before: nothing is allocated."""
        self.name = f"numpy memmap{', over old records' * again}"

    def refuses(self, case: RecordCase) -> bool:
        """A map holds nothing compressed."""
        return case.codec != "raw"

    def bulk(self, case: RecordCase, path: Path, *, synced: bool) -> Job:
        """`map[:] = records`, and `flush()` where it is to be synced."""
        values = case.values

        def write() -> None:
            mapped = np.memmap(path, np.uint8, "w+", shape=values.shape)
            mapped[:] = values
            if synced:
                mapped.flush()

        return whole(write, path, synced=synced)

    def each(self, case: RecordCase, path: Path) -> Job:
        """`map[i] = record` for each, and nothing behind it."""
        rows = case.rows()
        bounds = list(pairwise(case.offsets.tolist()))
        flat = np.memmap(path, np.uint8, "w+", shape=case.values.shape)
        if self.again:
            flat[:] = 0
        fixed = isinstance(case, FixedCase)
        mapped = flat.reshape(case.records, case.record_bytes) if fixed else flat

        def write() -> None:
            if fixed:
                for place, row in enumerate(rows):
                    mapped[place] = row
            else:
                for (begin, end), row in zip(bounds, rows, strict=True):
                    mapped[begin:end] = row

        return whole(write, path, synced=False)

    def stream(self, case: PayloadCase, setting: Setting) -> Stream:
        """One map; one output where all batches have one shape."""
        del setting
        mapped = np.asarray(np.memmap(self.place(case), np.uint8, "r"))
        if not isinstance(case, FixedCase):
            return Stream(_pieces(mapped, case), _split)
        rows = mapped.reshape(case.records, case.record_bytes)
        return Stream(_slices(rows, case) if case.scan else _taken(rows, case), np.asarray)


def _taken(mapped: Bytes, case: FixedCase) -> Iterator[Bytes]:
    out = np.empty((case.batch_size, case.record_bytes), np.uint8)
    for rows in cycle(case.batches):
        np.take(mapped, rows, axis=0, out=out, mode="clip")
        yield out


def _slices(mapped: Bytes, case: FixedCase) -> Iterator[Bytes]:
    out = np.empty((case.batch_size, case.record_bytes), np.uint8)
    for rows in cycle(case.batches):
        np.copyto(out, mapped[int(rows[0]) : int(rows[-1]) + 1])
        yield out


def _pieces(mapped: Bytes, case: PayloadCase) -> Iterator[tuple[Bytes, list[int]]]:
    bounds = case.offsets.tolist()
    for rows in cycle([rows.tolist() for rows in case.batches]):
        ends = [0]
        for row in rows:
            ends.append(ends[-1] + bounds[row + 1] - bounds[row])
        if case.scan:
            yield mapped[bounds[rows[0]] : bounds[rows[-1] + 1]].copy(), ends
        else:
            yield np.concatenate([mapped[bounds[row] : bounds[row + 1]] for row in rows]), ends


def _split(batch: tuple[Bytes, list[int]]) -> Any:
    values, ends = batch
    return [values[begin:end] for begin, end in pairwise(ends)]
