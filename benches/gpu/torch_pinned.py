"""PyTorch's DataLoader with pinned memory, then `.to(device, non_blocking=True)`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ClassVar

from benches.gpu.device import to_host, waiter
from benches.peers import Peer, Setting, Stream, module
from benches.peers.torch_loader import PREFETCH_FACTOR, loader_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benches.data import Case


class TorchPinned(Peer):
    """`DataLoader(…, pin_memory=True)` at its best number of workers."""

    family: ClassVar[str] = "torch"
    packages: ClassVar[tuple[str, ...]] = ("torch",)

    def __init__(self, device: Any, by: str) -> None:
        self.name = f"torch DataLoader by {by}, pinned"
        self.device = device
        self.by = by

    def settings(self, case: Case) -> Sequence[Setting]:  # noqa: ARG002 - the same for all
        """Numbers of workers up to that of the cores; by batch, also none."""
        cores = os.cpu_count() or 1
        counts = [count for count in (2, 4, 8, 16) if count <= max(cores, 2)]
        return [{"workers": count} for count in ([0] if self.by == "batch" else []) + counts]

    def open(self, case: Case, setting: Setting) -> Stream:
        """Start the workers."""
        workers = int(setting["workers"])
        arguments = loader_arguments(case, workers, by=self.by)
        pinned = self.device.type == "cuda"
        loader = iter(module("torch.utils.data").DataLoader(pin_memory=pinned, **arguments))
        close = getattr(loader, "_shutdown_workers", None)
        return Stream(
            (batch.to(self.device, non_blocking=True) for batch in loader),
            to_host,
            ahead=workers * PREFETCH_FACTOR,
            finish=waiter(self.device),
            **({"close": close} if close else {}),
        )
