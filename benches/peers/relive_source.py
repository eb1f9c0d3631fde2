"""relive: bare gather from an `ArraySource`, and its DataLoader."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benches.peers import Peer, Setting, Stream, module

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from benches.data import Case

_PREFETCH = 4


def data_field(batch: dict[str, NDArray[Any]]) -> NDArray[Any]:
    """The one field of a bare array."""
    return batch["data"]


class ReliveGather(Peer):
    """`ArraySource(map, workers=…).gather(indices, out={"data": out})`."""

    family: ClassVar[str] = "relive"
    packages: ClassVar[tuple[str, ...]] = ("relive",)

    def __init__(self, threads: int) -> None:
        self.name = f"relive gather, {threads} thread{'s' * (threads > 1)}"
        self.threads = threads

    def settings(self, case: Case) -> Sequence[Setting]:  # noqa: ARG002 - the same for all
        """The one number of threads it was made for."""
        return [{"threads": self.threads}]

    def open(self, case: Case, setting: Setting) -> Stream:
        """One map, one output."""
        source = module("relive").ArraySource(case.memmap(), workers=setting["threads"])
        out = {"data": np.empty((case.batch_size, case.record_bytes), np.uint8)}

        def deliver() -> Iterator[dict[str, NDArray[Any]]]:
            for rows in cycle(case.batches):
                yield source.gather(rows, out=out)

        return Stream(deliver(), data_field)


class ReliveLoader(Peer):
    """`DataLoader(ArraySource(path), batch_size=…, mode=…, workers=…)` with its own sampler."""

    family: ClassVar[str] = "relive"
    packages: ClassVar[tuple[str, ...]] = ("relive",)

    def __init__(self, workers: int, mode: str = "shuffle") -> None:
        self.name = f"relive DataLoader, {mode}"
        self.workers = workers
        self.mode = mode

    def settings(self, case: Case) -> Sequence[Setting]:  # noqa: ARG002 - the same for all
        """The one number of workers it was made for."""
        return [{"workers": self.workers}]

    def open(self, case: Case, setting: Setting) -> Stream:
        """Start the loader."""
        relive = module("relive")
        workers = int(setting["workers"])
        loader = relive.DataLoader(
            relive.ArraySource(case.path),
            batch_size=case.batch_size,
            mode=self.mode,
            seed=case.seed,
            workers=workers,
            prefetch=_PREFETCH,
        )
        ahead = _PREFETCH + workers
        return Stream(iter(loader), data_field, ahead=ahead, close=loader.close)
