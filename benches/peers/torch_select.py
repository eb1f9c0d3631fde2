"""PyTorch: `index_select` from a memory map into one preallocated tensor."""

from __future__ import annotations

from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benches.peers import Peer, Setting, Stream, module

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benches.data import Case


class TorchSelect(Peer):
    """`torch.index_select(map, 0, indices, out=out)` on some threads."""

    family: ClassVar[str] = "torch"
    packages: ClassVar[tuple[str, ...]] = ("torch",)

    def __init__(self, threads: int) -> None:
        self.name = f"torch index_select, {threads} thread{'s' * (threads > 1)}"
        self.threads = threads

    def settings(self, case: Case) -> Sequence[Setting]:  # noqa: ARG002 - the same for all
        """The one number of threads it was made for."""
        return [{"threads": self.threads}]

    def open(self, case: Case, setting: Setting) -> Stream:
        """One map, one output; the number of threads is set as each round begins."""
        torch = module("torch")
        begin = partial(torch.set_num_threads, setting["threads"])
        return Stream(_batches(case), np.asarray, begin=begin)


def _batches(case: Case) -> Iterator[Any]:
    torch = module("torch")
    mapped = torch.from_numpy(case.memmap())
    batches = [torch.from_numpy(rows) for rows in case.batches]
    out = torch.empty((case.batch_size, case.record_bytes), dtype=torch.uint8)
    for rows in cycle(batches):
        torch.index_select(mapped, 0, rows, out=out)
        yield out
