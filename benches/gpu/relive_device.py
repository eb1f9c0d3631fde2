"""relive: `relive.load.torch.DataLoader` with a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from benches.gpu.device import to_host, waiter
from benches.peers import Peer, Setting, Stream, module

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from benches.data import Case

_PREFETCH = 4


def _data(batch: dict[str, Any]) -> NDArray[Any]:
    return to_host(batch["data"])


class ReliveDevice(Peer):
    """`relive.load.torch.DataLoader(ArraySource(records), device=…, workers=…)`."""

    family: ClassVar[str] = "relive"
    packages: ClassVar[tuple[str, ...]] = ("relive", "torch")

    def __init__(self, device: Any, workers: int) -> None:
        self.name = f"relive DataLoader, {workers} worker{'s' * (workers > 1)}"
        self.device = device
        self.workers = workers

    def settings(self, case: Case) -> Sequence[Setting]:  # noqa: ARG002 - the same for all
        """The one number of workers it was made for."""
        return [{"workers": self.workers}]

    def open(self, case: Case, setting: Setting) -> Stream:
        """Start the loader."""
        workers = int(setting["workers"])
        loader = module("relive.load.torch").DataLoader(
            module("relive").ArraySource(case.memmap()),
            batch_size=case.batch_size,
            seed=case.seed,
            workers=workers,
            prefetch=_PREFETCH,
            device=self.device,
        )
        return Stream(
            iter(loader),
            _data,
            ahead=_PREFETCH + workers,
            close=loader.close,
            finish=waiter(self.device),
        )
