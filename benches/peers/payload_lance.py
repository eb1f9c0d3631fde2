"""Lance: `take` of row positions from a dataset of one binary column."""

from __future__ import annotations

from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, ClassVar

from benches.payloads import LEVEL, PayloadCase, PayloadPeer
from benches.peers import Setting, Stream, module

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_AHEAD = 16
"""Batches its scanner reads ahead; 16 is its default."""
_WRITTEN = 512
"""Rows per record batch of the writer."""


class PayloadLance(PayloadPeer):
    """`dataset.take(indices, columns=["data"])` and, for a scan, `dataset.to_batches()`."""

    name = "lance"
    family: ClassVar[str] = "lance"
    packages: ClassVar[tuple[str, ...]] = ("pylance", "pyarrow")
    suffix = "lance"

    def write(self, case: PayloadCase, path: Path) -> None:
        """Write the dataset without compression, or as zstd."""
        codec = "none" if case.codec == "raw" else "zstd"
        write_lance(case.payloads(), path, codec)

    def stream(self, case: PayloadCase, setting: Setting) -> Stream:
        """Open the dataset."""
        del setting
        dataset = module("lance").dataset(str(self.place(case)))
        deliver = _scan if case.scan else _take
        return Stream(deliver(dataset, case), _pieces, ahead=_AHEAD if case.scan else 0)


def write_lance(payloads: Iterable[bytes], path: Path, codec: str) -> None:
    """Write one dataset that holds `payloads`."""
    arrow = module("pyarrow")
    metadata = {"lance-encoding:compression": codec}
    if codec == "zstd":
        metadata["lance-encoding:compression-level"] = str(LEVEL)
    schema = arrow.schema([arrow.field("data", arrow.large_binary(), metadata=metadata)])

    def batches() -> Iterator[Any]:
        source = iter(payloads)
        while chunk := list(islice(source, _WRITTEN)):
            yield arrow.RecordBatch.from_arrays(
                [arrow.array(chunk, arrow.large_binary())], schema=schema
            )

    module("lance").write_dataset(batches(), str(path), schema=schema)


def _take(dataset: Any, case: PayloadCase) -> Iterator[Any]:
    for rows in cycle(case.batches):
        yield dataset.take(rows, columns=["data"])


def _scan(dataset: Any, case: PayloadCase) -> Iterator[Any]:
    while True:
        found = dataset.to_batches(
            columns=["data"], batch_size=case.batch_size, batch_readahead=_AHEAD
        )
        yield from (batch for batch in found if batch.num_rows == case.batch_size)


def _pieces(batch: Any) -> Any:
    return batch["data"].to_pylist()
