"""array_record with groups of one record, read directly and through grain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from benches.payloads import LEVEL
from benches.peers import Setting, Stream, module
from benches.peers.grain_loader import GrainLoader, decode
from benches.peers.payload_array_record import PayloadArrayRecord, write_array_record
from benches.peers.record_store import FixedCase, RecordPeer, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from benches.data import Case
    from benches.peers.record_store import Job, RecordCase

_AHEAD = 8


class RecordArrayRecord(RecordPeer, PayloadArrayRecord):
    """`reader.read(indices)` and, for a scan, `reader.read(begin, end)`: a list of bytes."""

    # What benches.peers.array_record_file calls a file with groups of one.
    suffix = "group1.array_record"

    def bulk(self, case: RecordCase, path: Path, *, synced: bool) -> Job:
        """One `write` per record: it has no other call."""
        pieces, codec = case.pieces, _codec(case)
        return whole(lambda: write_array_record(pieces, path, codec), path, synced=synced)

    def each(self, case: RecordCase, path: Path) -> Job:
        """`write(record)` for each, and `close()`."""
        return self.bulk(case, path, synced=False)


class RecordGrain(GrainLoader):
    """grain's `MapDataset` or `DataLoader` over array_record, at its fastest setting."""

    name = "grain over array_record"
    family: ClassVar[str] = "grain"
    packages: ClassVar[tuple[str, ...]] = ("grain", "array_record")
    file = RecordArrayRecord()

    def settings(self, case: Case) -> Sequence[Setting]:  # noqa: ARG002 - the same for all
        """Batches or records read ahead by threads; worker processes."""
        kinds = (("batches", 4, 0), ("batches", 1, 2))
        return [
            {"group": 1, "api": "Map", "ahead": ahead, "threads": threads, "processes": processes}
            for ahead, threads, processes in kinds
        ]

    def files(self, case: Case) -> list[Path]:
        """The array_record file."""
        return self.file.files(case)

    def prepare(self, case: Case) -> None:
        """Write the file once."""
        self.file.prepare(case)

    def open(self, case: Case, setting: Setting) -> Stream:
        """Records of one size are stacked; ragged ones stay a list."""
        if isinstance(case, FixedCase):
            return super().open(case, setting)
        return _ragged(self.file.place(case), case, setting)


def _ragged(path: Path, case: Case, setting: Setting) -> Stream:
    """The same pipelines, with batches that are lists."""
    grain = module("grain")
    module("absl.logging").set_verbosity("fatal")
    module("absl.flags").FLAGS.mark_as_parsed()
    records = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(str(path)))
    records = records.seed(case.seed).shuffle().repeat().map(decode)
    by_record = setting["ahead"] == "records"
    options = grain.ReadOptions(
        num_threads=setting["threads"], prefetch_buffer_size=512 if by_record else _AHEAD
    )
    if by_record:
        batches = records.to_iter_dataset(options).batch(case.batch_size, batch_fn=list)
    else:
        batches = records.batch(case.batch_size, batch_fn=list).to_iter_dataset(options)
    processes = int(setting["processes"])
    if processes:
        batches = batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=processes))
    iterator = iter(batches)
    close: dict[str, Callable[[], None]] = {}
    if hasattr(iterator, "close"):
        close["close"] = iterator.close
    return Stream(iterator, _pieces, ahead=_AHEAD * (1 + processes), **close)


def _pieces(batch: Any) -> Any:
    return list(map(np.asarray, batch))


def _codec(case: RecordCase) -> str:
    return "uncompressed" if case.codec == "raw" else f"zstd:{LEVEL}"
