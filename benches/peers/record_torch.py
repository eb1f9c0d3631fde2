"""PyTorch's DataLoader over stores that have no loader of their own."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benches.peers import Peer, Setting, Stream, module
from benches.peers.payload_lmdb import open_lmdb
from benches.peers.record_h5py import RecordH5py
from benches.peers.record_lmdb import RecordLmdb
from benches.peers.record_numpy import RecordMemmap
from benches.peers.record_store import FixedCase, Selective, records_of
from benches.peers.torch_loader import PREFETCH_FACTOR, Endless

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from benches.data import Bytes, Case
    from benches.peers.record_store import RecordCase, RecordPeer

KINDS: dict[str, RecordPeer] = {
    "memmap": RecordMemmap(),
    "h5py": RecordH5py(),
    "lmdb": RecordLmdb(),
}


class Records:
    """A map-style dataset: one record per call; the store is opened where it is read."""

    def __init__(self, kind: str, case: RecordCase) -> None:
        self.kind = kind
        self.path = KINDS[kind].place(case)
        self.fixed = isinstance(case, FixedCase)
        self.zstd = case.codec == "zstd"
        self.bounds = case.offsets
        self.record_bytes = case.record_bytes
        self.records = case.records
        self._read: Callable[[int], Any] | None = None
        self._decode: Callable[[Any], Any] = _same

    def __len__(self) -> int:
        """Count the records."""
        return self.records

    def __getitem__(self, row: int) -> Bytes:
        """One record, for the collate."""
        if self._read is None:
            if self.zstd:
                self._decode = module("zstandard").ZstdDecompressor().decompress
            self._read = {"memmap": _memmap, "h5py": _h5py, "lmdb": _lmdb}[self.kind](self)
        found = self._decode(self._read(row))
        return found if isinstance(found, np.ndarray) else np.frombuffer(found, np.uint8)


class TorchRecords(Selective, Peer):
    """`DataLoader(dataset, batch_sampler=…)` by record, at its best number of workers."""

    family: ClassVar[str] = "torch"
    packages: ClassVar[tuple[str, ...]] = ("torch",)

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.name = f"torch DataLoader over {kind}"

    def refuses(self, case: RecordCase) -> bool:
        """A map holds nothing compressed."""
        return self.kind == "memmap" and case.codec != "raw"

    def settings(self, case: Case) -> Sequence[Setting]:  # noqa: ARG002 - the same for all
        """In the caller's process, and in two others."""
        return [{"workers": count} for count in (0, 2)]

    def files(self, case: Case) -> list[Path]:
        """Those of the store."""
        return KINDS[self.kind].files(case)

    def prepare(self, case: Case) -> None:
        """As for the store by itself."""
        KINDS[self.kind].prepare(case)

    def open(self, case: Case, setting: Setting) -> Stream:
        """Start the workers."""
        workers = int(setting["workers"])
        arguments: dict[str, Any] = {
            "num_workers": workers,
            "dataset": Records(self.kind, records_of(case)),
            "batch_sampler": Endless(rows.tolist() for rows in case.batches),
        }
        if workers:
            arguments["prefetch_factor"] = PREFETCH_FACTOR
        fixed = isinstance(case, FixedCase)
        arguments["collate_fn"] = np.stack if fixed else _packed
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="lance is not fork-safe")
            batches = iter(module("torch.utils.data").DataLoader(**arguments))
        close = getattr(batches, "_shutdown_workers", None)
        return Stream(
            batches,
            np.asarray if fixed else _pieces,
            ahead=workers * PREFETCH_FACTOR,
            **({"close": close} if close else {}),
        )


def _memmap(records: Records) -> Callable[[int], Any]:
    mapped = np.asarray(np.memmap(records.path, np.uint8, "r"))
    if records.fixed:
        return mapped.reshape(records.records, records.record_bytes).__getitem__
    bounds = records.bounds.tolist()
    return lambda row: mapped[bounds[row] : bounds[row + 1]]


def _h5py(records: Records) -> Callable[[int], Any]:
    file = module("h5py").File(records.path, "r")
    data = file["data"]
    if "bounds" not in file:
        read: Callable[[int], Any] = data.__getitem__
        return read
    bounds = file["bounds"][:].tolist()
    return lambda row: data[bounds[row] : bounds[row + 1]]


def _lmdb(records: Records) -> Callable[[int], Any]:
    transaction = open_lmdb(records.path).begin()
    return lambda row: transaction.get(row.to_bytes(8, "big"))


def _packed(records: list[Bytes]) -> tuple[Bytes, list[int]]:
    """Ragged records one behind the other, and where each ends: a copy, as a batch must be."""
    ends = np.cumsum([len(record) for record in records]).tolist()
    return np.concatenate(records), ends


def _pieces(batch: tuple[Bytes, list[int]]) -> Any:
    values, ends = batch
    return np.split(values, ends[:-1])


def _same(batch: Any) -> Any:
    return batch
