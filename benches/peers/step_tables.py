"""Batches of single steps: from a `.npy` table, and from relive's packs."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benches.peers import Peer, Setting, Stream
from benches.peers.payload_relive import open_pack
from benches.runs import StepCase

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from benches.data import Case


def _steps(case: Case) -> StepCase:
    assert isinstance(case, StepCase)
    return case


class NumpySteps(Peer):
    """Rows of a structured array, in one of `WAYS`."""

    WAYS: ClassVar[dict[str, str]] = {
        "index": "memmap[indices]",
        "take": "take, same rows",
        "columns": "take, a column each",
    }
    """Fresh rows; rows over the same memory; and those as one array per field, as relive gives."""
    family: ClassVar[str] = "numpy"
    packages: ClassVar[tuple[str, ...]] = ("numpy",)

    def __init__(self, way: str) -> None:
        self.way = way
        self.name = f"numpy steps.npy, {self.WAYS[way]}"

    def open(self, case: Case, setting: Setting) -> Stream:
        """One map."""
        del setting
        table = np.asarray(case.memmap())
        deliver = {"index": _indexed, "take": _taken, "columns": _columns}[self.way]
        return Stream(deliver(table, case), _same)


def _indexed(table: NDArray[Any], case: Case) -> Iterator[Any]:
    for rows in cycle(case.batches):
        yield table[rows]


def _taken(table: NDArray[Any], case: Case) -> Iterator[Any]:
    out = np.empty(case.batch_size, table.dtype)
    for rows in cycle(case.batches):
        yield np.take(table, rows, out=out, mode="clip")


def _columns(table: NDArray[Any], case: Case) -> Iterator[Any]:
    names = table.dtype.names or ()
    for rows in _taken(table, case):
        yield {name: np.ascontiguousarray(rows[name]) for name in names}


class PackSteps(Peer):
    """`reader.steps().gather(indices, fields)`, with a stored table of steps or without."""

    family: ClassVar[str] = "relive"
    packages: ClassVar[tuple[str, ...]] = ("relive",)

    def __init__(self, threads: int, *, table: bool) -> None:
        self.threads = threads
        self.table = table
        kind = "step table" if table else "checkpoints"
        self.name = f"relive steps, {kind}, {threads} thread{'s' * (threads > 1)}"

    def settings(self, case: Case) -> Sequence[Setting]:  # noqa: ARG002 - the same for all
        """The one number of threads it was made for, into fresh memory and into the same."""
        return [{"threads": self.threads, "into": into} for into in ("fresh", "same")]

    def files(self, case: Case) -> list[Path]:
        """Its pack."""
        steps = _steps(case)
        return [steps.pack_with_steps if self.table else steps.pack]

    def open(self, case: Case, setting: Setting) -> Stream:
        """Open the pack; all steps are read once, so that what is verified once has been."""
        (path,) = self.files(case)
        steps = _steps(case)
        reader = open_pack(path, workers=setting["threads"])
        source = reader.steps()
        fields = list(steps.dtype.names or ()) if steps.projected else None
        for rows in case.batches:
            source.gather(rows, fields)
        names = fields or list(source.fields)
        shapes = {name: (case.batch_size, *source.fields[name].shape) for name in names}
        room = {name: np.empty(shapes[name], source.fields[name].dtype) for name in names}
        out = room if setting["into"] == "same" else None

        def deliver() -> Iterator[Any]:
            for rows in cycle(case.batches):
                yield source.gather(rows, fields, out)

        return Stream(deliver(), _same, close=reader.close)


def _same(batch: Any) -> Any:
    return batch
