"""PyTorch's DataLoader over a memory map, by item and by batch."""

from __future__ import annotations

import os
import warnings
from itertools import cycle
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benches.peers import Peer, Setting, Stream, module

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from benches.data import Bytes, Case

PREFETCH_FACTOR = 2


class Items:
    """A map-style dataset as most people write it: one row per call."""

    def __init__(self, mapped: Bytes) -> None:
        self.mapped = mapped

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.mapped)

    def __getitem__(self, row: int) -> Bytes:
        """One row, for the default collate."""
        found: Bytes = self.mapped[row]
        return found


class Batches(Items):
    """A map-style dataset whose key is an array of rows: one whole batch per call."""

    def __getitem__(self, row: Any) -> Any:
        """One batch as a tensor."""
        return module("torch").from_numpy(np.take(self.mapped, row, axis=0))


class Endless:
    """The index list over and over, as a sampler."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self.batches = list(batches)

    def __iter__(self) -> Iterator[Any]:
        """Start at the first batch."""
        return cycle(self.batches)


def worker_counts() -> list[int]:
    """The numbers of workers worth trying on this machine."""
    cores = os.cpu_count() or 1
    return [count for count in (0, 1, 2, 4, 8, 16) if count <= max(4, cores)]


def loader_arguments(case: Case, workers: int, *, by: str) -> dict[str, Any]:
    """Arguments of `torch.utils.data.DataLoader` for the index list of `case`."""
    mapped = case.memmap()
    arguments: dict[str, Any] = {"num_workers": workers}
    if workers:
        arguments["prefetch_factor"] = PREFETCH_FACTOR
    if by == "item":
        sampler = Endless(rows.tolist() for rows in case.batches)
        return {"dataset": Items(mapped), "batch_sampler": sampler, **arguments}
    sampler = Endless(case.batches)
    return {"dataset": Batches(mapped), "batch_size": None, "sampler": sampler, **arguments}


class TorchLoader(Peer):
    """`torch.utils.data.DataLoader` at its best number of workers."""

    family: ClassVar[str] = "torch"
    packages: ClassVar[tuple[str, ...]] = ("torch",)

    def __init__(self, by: str) -> None:
        self.name = f"torch DataLoader by {by}"
        self.by = by

    def settings(self, case: Case) -> Sequence[Setting]:  # noqa: ARG002 - the same for all
        """Every number of workers worth trying."""
        return [{"workers": count} for count in worker_counts()]

    def open(self, case: Case, setting: Setting) -> Stream:
        """Start the workers."""
        workers = int(setting["workers"])
        arguments = loader_arguments(case, workers, by=self.by)
        with warnings.catch_warnings():
            # Asking for more workers than cores is part of looking for the best number.
            warnings.filterwarnings("ignore", message="This DataLoader will create")
            warnings.filterwarnings("ignore", message="lance is not fork-safe")
            batches = iter(module("torch.utils.data").DataLoader(**arguments))
        close = getattr(batches, "_shutdown_workers", None)
        return Stream(
            batches,
            np.asarray,
            ahead=workers * PREFETCH_FACTOR,
            **({"close": close} if close else {}),
        )
