"""loaderx: a container of ragged records, gathered from directly or through its Loader."""

from __future__ import annotations

from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benches.payloads import PayloadCase, PayloadPeer, closing
from benches.peers import Setting, Stream, module

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from benches.data import Case

_PREFETCH = 4
_APPENDED = 512
"""Records per call of the writer."""


class PayloadLoaderx(PayloadPeer):
    """`Ragged.open(path).__getitems__(indices)`, or `Loader` over it at its best workers."""

    name = "loaderx"
    family: ClassVar[str] = "loaderx"
    packages: ClassVar[tuple[str, ...]] = ("loaderx",)
    suffix = "zrecord"

    def settings(self, case: Case) -> Sequence[Setting]:
        """Bare gather; and, where order is free, its Loader with a few numbers of workers."""
        bare: list[Setting] = [{"api": "gather", "workers": 0}]
        if isinstance(case, PayloadCase) and case.scan:
            return bare
        return bare + [{"api": "Loader", "workers": count} for count in (1, 2)]

    def write(self, case: PayloadCase, path: Path) -> None:
        """Write it raw, or as zstd at the level it has."""
        write_loaderx(case.payloads(), path, case.codec)

    def stream(self, case: PayloadCase, setting: Setting) -> Stream:
        """Open the container and, where asked, start the Loader."""
        container = open_loaderx(self.place(case))
        if setting["api"] == "gather":
            batches = map(container.__getitems__, cycle(case.batches))
            return Stream(batches, _pieces, close=container.close)
        sampling = module("loaderx.sampler").Sampler
        workers = int(setting["workers"])
        sampler = sampling(case.records, case.batch_size, sampling.Mode.CYCLIC, seed=case.seed)
        loader = module("loaderx").Loader(
            {"data": [container]}, sampler, workers=workers, prefetch=_PREFETCH
        )
        first = (shards[0]["data"] for shards in loader)
        return Stream(first, _pieces, ahead=_PREFETCH + workers, close=closing(loader, container))


def write_loaderx(payloads: Iterable[bytes], path: Path, codec: str) -> None:
    """Write one container that holds `payloads`."""
    zrecord = module("loaderx.zrecord")
    source: Iterator[bytes] = iter(payloads)
    with zrecord.Ragged.create(path, np.uint8, 1, codec=codec) as container:
        while chunk := [np.frombuffer(each, np.uint8) for each in islice(source, _APPENDED)]:
            container.append(zrecord.RaggedBatch.from_records(chunk))


def open_loaderx(path: Path) -> Any:
    """Open a container of ragged records."""
    return module("loaderx.zrecord").Ragged.open(path)


def _pieces(batch: Any) -> Any:
    return [np.from_dlpack(tensor) for tensor in batch.to_tensors()]
