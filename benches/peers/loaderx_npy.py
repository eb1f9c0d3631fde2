"""The loaderx that reads `.npy` files: `DataLoader(NPDataset, NPDataset)` of version 0.2.0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benches.peers import Peer, Setting, Stream, module

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from benches.data import Case

_VERSION = "0.2.0"
_PREFETCH = 4


def _labels(case: Case) -> Path:
    return case.folder / f"{case.stem}.labels.npy"


def _data(batch: dict[str, NDArray[Any]]) -> NDArray[Any]:
    return batch["data"]


class LoaderxNpy(Peer):
    """`DataLoader(NPDataset(records), NPDataset(labels))`: it cannot do without labels."""

    name = f"loaderx {_VERSION} DataLoader"
    family: ClassVar[str] = "loaderx"
    packages: ClassVar[tuple[str, ...]] = ()

    def settings(self, case: Case) -> Sequence[Setting]:  # noqa: ARG002 - the same for all
        """A few numbers of threads."""
        return [{"workers": count} for count in (1, 2, 4)]

    def prepare(self, case: Case) -> None:
        """Write the labels: one byte each, so that they weigh nothing."""
        if not _labels(case).exists():
            np.save(_labels(case), np.zeros(case.records, np.uint8))

    def open(self, case: Case, setting: Setting) -> Stream:
        """Start the loader."""
        loaderx = module("loaderx")
        if loaderx.__version__ != _VERSION:
            message = f"loaderx is {loaderx.__version__} here, not {_VERSION}"
            raise ImportError(message)
        workers = int(setting["workers"])
        loader = loaderx.DataLoader(
            loaderx.NPDataset(case.path),
            loaderx.NPDataset(_labels(case)),
            num_workers=workers,
            batch_size=case.batch_size,
            prefetch_size=_PREFETCH,
        )
        # Its own close() can wait for ever for a worker that waits for it; the
        # threads are daemons and end with the process this peer has to itself.
        return Stream(iter(loader), _data, ahead=_PREFETCH + workers)
