"""WebDataset: tar files read from front to back, shuffled in a buffer."""

from __future__ import annotations

import warnings
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from benches.payloads import PayloadCase, PayloadPeer, Restorer, as_is, closing
from benches.peers import Setting, Stream, module

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from benches.data import Case

_SHARDS = 8
_BUFFER = 1024
"""Samples a shuffling reader holds; it cannot do better than mix those."""


class WebDatasetTar(PayloadPeer):
    """`WebDataset(tars, resampled=True).shuffle(1024).batched(256)`; a scan goes in order."""

    name = "WebDataset tar"
    family: ClassVar[str] = "webdataset"
    packages: ClassVar[tuple[str, ...]] = ("webdataset", "zstandard")
    suffix = "tars"

    def settings(self, case: Case) -> Sequence[Setting]:  # noqa: ARG002 - the same for all
        """In this process, and by two processes of a torch loader."""
        return [{"workers": count} for count in (0, 2)]

    def write(self, case: PayloadCase, path: Path) -> None:
        """Write the shards into the folder `path`."""
        path.mkdir(parents=True)
        writer = module("webdataset").TarWriter
        stored = case.stored()
        per_shard = -(-case.records // _SHARDS)
        for shard in range(_SHARDS):
            with writer(str(path / f"{shard:02d}.tar")) as tar:
                first = shard * per_shard
                for position, payload in enumerate(islice(stored, per_shard), first):
                    tar.write({"__key__": f"{position:08d}", "bin": payload})

    def stream(self, case: PayloadCase, setting: Setting) -> Stream:
        """Start reading."""
        tars = sorted(str(path) for path in self.place(case).glob("*.tar"))
        wds = module("webdataset")
        if case.scan:
            dataset = wds.WebDataset(tars, shardshuffle=False, empty_check=False).repeat()
        else:
            # Shards drawn for ever: repeated ones would be read, and then delivered, in bursts.
            dataset = wds.WebDataset(
                tars, resampled=True, shardshuffle=False, seed=case.seed, empty_check=False
            )
            dataset = dataset.shuffle(_BUFFER, initial=_BUFFER)
        samples = dataset.to_tuple("bin")
        batches = samples.batched(case.batch_size, collation_fn=None, partial=False)
        workers = int(setting["workers"])
        if workers:
            warnings.filterwarnings("ignore", message="lance is not fork-safe")
            batches = wds.WebLoader(batches, batch_size=None, num_workers=workers)
        restore = Restorer(case)
        payloads = _payloads(iter(batches), restore)
        return Stream(payloads, as_is, ahead=4 * workers, close=closing(payloads, restore))


def _payloads(batches: Iterator[Any], restore: Restorer) -> Iterator[Sequence[bytes]]:
    for batch in batches:
        yield restore([payload for (payload,) in batch])
