"""torchdata's nodes: a parallel map of whole batches on threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benches.peers import Peer, Setting, Stream, module
from benches.peers.torch_loader import Batches, Endless

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from benches.data import Case


class TorchdataNodes(Peer):
    """`IterableWrapper` → `ParallelMapper(method="thread")` → `Loader`."""

    name = "torchdata nodes by batch"
    family: ClassVar[str] = "torchdata"
    packages: ClassVar[tuple[str, ...]] = ("torchdata", "torch")

    def settings(self, case: Case) -> Sequence[Setting]:  # noqa: ARG002 - the same for all
        """In the caller's thread, and a few numbers of threads."""
        return [{"threads": count} for count in (0, 1, 2, 4)]

    def open(self, case: Case, setting: Setting) -> Stream:
        """Build the graph; it starts with the first batch."""
        workers = int(setting["threads"])
        batches = _batches(case, workers)
        return Stream(batches, np.asarray, ahead=2 * workers, close=batches.close)


def _batches(case: Case, workers: int) -> Generator[Any]:
    """Hold the only reference to the graph: its threads end when it is collected."""
    nodes = module("torchdata.nodes")
    rows = nodes.IterableWrapper(Endless(case.batches))
    fetch = Batches(case.memmap()).__getitem__
    mapped = nodes.ParallelMapper(rows, fetch, num_workers=workers, method="thread")
    yield from nodes.Loader(mapped)
