"""Lance: a dataset of one column, a fixed-size list or binary."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from benches.payloads import LEVEL, PayloadCase
from benches.peers import Setting, Stream, module
from benches.peers.payload_lance import PayloadLance
from benches.peers.record_store import FixedCase, RecordPeer, records_of, whole

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benches.data import Bytes
    from benches.peers.record_store import Job, RecordCase

_AHEAD = 16
"""Batches its scanner reads ahead; 16 is its default."""


class RecordLance(RecordPeer, PayloadLance):
    """`dataset.take(indices, columns=["data"])` and, for a scan, `dataset.to_batches()`.

    Records of one size are a fixed-size list; compressed or ragged ones are binary values,
    for it does not compress lists of bytes.
    """

    def bulk(self, case: RecordCase, path: Path, *, synced: bool) -> Job:
        """`write_dataset(table)`: one table that holds all records without a copy."""
        table = _table(case)
        write = module("lance").write_dataset
        return whole(lambda: write(table, str(path)), path, synced=synced)

    def each(self, case: RecordCase, path: Path) -> Job:
        """Not at all: every write is a version of the whole dataset."""
        del case, path
        message = "every write is a version of the dataset; single records would be one each"
        raise NotImplementedError(message)

    def stream(self, case: PayloadCase, setting: Setting) -> Stream:
        """Open the dataset."""
        if not _listed(records_of(case)):
            return super().stream(case, setting)
        dataset = module("lance").dataset(str(self.place(case)))

        def take() -> Iterator[Any]:
            for rows in cycle(case.batches):
                yield dataset.take(rows, columns=["data"])

        def scan() -> Iterator[Any]:
            while True:
                found = dataset.to_batches(batch_size=case.batch_size, batch_readahead=_AHEAD)
                yield from (batch for batch in found if batch.num_rows == case.batch_size)

        return Stream(scan() if case.scan else take(), _array, ahead=_AHEAD if case.scan else 0)


def _listed(case: RecordCase) -> bool:
    return isinstance(case, FixedCase) and case.codec == "raw"


def _table(case: RecordCase) -> Any:
    arrow = module("pyarrow")
    values = arrow.py_buffer(case.values)
    if _listed(case):
        flat = arrow.UInt8Array.from_buffers(arrow.uint8(), len(case.values), [None, values])
        column = arrow.FixedSizeListArray.from_arrays(flat, case.record_bytes)
        return arrow.table({"data": column})
    offsets = arrow.py_buffer(case.offsets)
    kind = arrow.large_binary()
    column = arrow.LargeBinaryArray.from_buffers(kind, case.records, [None, offsets, values])
    codec = "none" if case.codec == "raw" else "zstd"
    metadata = {"lance-encoding:compression": codec}
    if codec == "zstd":
        metadata["lance-encoding:compression-level"] = str(LEVEL)
    schema = arrow.schema([arrow.field("data", kind, metadata=metadata)])
    return arrow.Table.from_arrays([column], schema=schema)


def _array(batch: Any) -> Bytes:
    column = batch["data"]
    if hasattr(column, "combine_chunks"):
        column = column.combine_chunks()
    flat = column.flatten().to_numpy(zero_copy_only=False)
    return np.asarray(flat).reshape(len(column), -1)
