"""loaderx: a container of dense or of ragged records, gathered from and through its Loader."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benches.payloads import PayloadCase, closing
from benches.peers import Setting, Stream, module
from benches.peers.record_store import FixedCase, RecordPeer, records_of, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from benches.data import Bytes, Case
    from benches.peers.record_store import Job, RecordCase

_PREFETCH = 4


class RecordLoaderx(RecordPeer):
    """`container.__getitems__(indices)` and, for a scan, `container[begin:end]`.

    Its threads are as many as there are cores, and its zstd has one level, which is 3.
    """

    name = "loaderx"
    family: ClassVar[str] = "loaderx"
    packages: ClassVar[tuple[str, ...]] = ("loaderx",)
    suffix = "zrecord"

    def bulk(self, case: RecordCase, path: Path, *, synced: bool) -> Job:
        """One `append` of the complete input, and `close()`, which never syncs by itself."""
        data = case.rows() if isinstance(case, FixedCase) else _packed(case)

        def write() -> None:
            with _created(case, path) as container:
                container.append(data)

        return whole(write, path, synced=synced)

    def each(self, case: RecordCase, path: Path) -> Job:
        """One `append` per record, and `close()`."""
        batch = module("loaderx.zrecord").RaggedBatch.from_records
        dense = isinstance(case, FixedCase)
        batches = [row[None] if dense else batch([row]) for row in case.rows()]
        container = _created(case, path)

        def write() -> None:
            for each in batches:
                container.append(each)
            container.close()

        return whole(write, path, synced=False)

    def stream(self, case: PayloadCase, setting: Setting) -> Stream:
        """Open the container."""
        del setting
        container = self.opened(case)
        batches: Iterator[Any]
        if case.scan:
            parts = [slice(int(rows[0]), int(rows[-1]) + 1) for rows in case.batches]
            batches = map(container.__getitem__, cycle(parts))
        else:
            batches = map(container.__getitems__, cycle(case.batches))
        return Stream(batches, _reader(case), close=container.close)

    def opened(self, case: Case) -> Any:
        """Its container, for reading."""
        zrecord = module("loaderx.zrecord")
        kind = zrecord.Dense if isinstance(case, FixedCase) else zrecord.Ragged
        return kind.open(self.place(case))


class LoaderxRecords(RecordLoaderx):
    """`Loader({"data": [container]}, Sampler(…, CYCLIC))` at its best number of workers."""

    name = "loaderx Loader"

    def settings(self, case: Case) -> Sequence[Setting]:  # noqa: ARG002 - the same for all
        """Synchronous, and a few numbers of threads."""
        return [{"workers": count} for count in (0, 1, 2)]

    def stream(self, case: PayloadCase, setting: Setting) -> Stream:
        """Open the container and start the workers."""
        sampling = module("loaderx.sampler").Sampler
        container = self.opened(case)
        workers = int(setting["workers"])
        sampler = sampling(case.records, case.batch_size, sampling.Mode.CYCLIC, seed=case.seed)
        loader = module("loaderx").Loader(
            {"data": [container]}, sampler, workers=workers, prefetch=_PREFETCH
        )
        first = (shards[0]["data"] for shards in loader)
        ahead = _PREFETCH + workers if workers else 0
        return Stream(first, _reader(case), ahead=ahead, close=closing(loader, container))


def _created(case: RecordCase, path: Path) -> Any:
    zrecord = module("loaderx.zrecord")
    if isinstance(case, FixedCase):
        return zrecord.Dense.create(path, np.uint8, (case.record_bytes,), codec=case.codec)
    return zrecord.Ragged.create(path, np.uint8, 1, codec=case.codec)


def _packed(case: RecordCase) -> Any:
    """All ragged records as the one batch that it takes without packing them itself."""
    lengths = np.diff(case.offsets).astype(np.uint64)[:, None]
    make = module("loaderx.zrecord").RaggedBatch
    return make(case.values, case.offsets.astype(np.int32), np.ascontiguousarray(lengths))


def _reader(case: PayloadCase) -> Callable[[Any], Any]:
    return _array if isinstance(records_of(case), FixedCase) else _pieces


def _array(batch: Any) -> Bytes:
    return np.asarray(np.from_dlpack(batch))


def _pieces(batch: Any) -> Any:
    return [np.from_dlpack(tensor) for tensor in batch.to_tensors()]
