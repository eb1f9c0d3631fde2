"""The limit: the bare copy of the same bytes from pinned memory, nothing gathered."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any, ClassVar

from benches.gpu.device import host_buffer, waiter
from benches.peers import Peer, Setting, Stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benches.data import Case

_BUFFERS = 4


class CopyLimit(Peer):
    """`device_buffer.copy_(pinned_buffer, non_blocking=True)`, over and over."""

    name = "pinned copy alone"
    family: ClassVar[str] = "torch"
    packages: ClassVar[tuple[str, ...]] = ("torch",)

    def __init__(self, device: Any) -> None:
        self.device = device

    def open(self, case: Case, setting: Setting) -> Stream:
        """Allocate on both sides; there are no records to check."""
        del setting
        return Stream(self._batches(case), None, finish=waiter(self.device))

    def _batches(self, case: Case) -> Iterator[Any]:
        buffers = [host_buffer(case, self.device).fill_(1) for _ in range(_BUFFERS)]
        pairs = [(buffer, buffer.to(self.device)) for buffer in buffers]
        for here, there in cycle(pairs):
            yield there.copy_(here, non_blocking=True)
