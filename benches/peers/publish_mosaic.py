"""MosaicML streaming: the same rows in its own format, shard by shard through its local cache."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from benches.peers import module
from benches.peers.publish_peer import BATCH, Place, PublishPeer
from benches.publish.table import Sums

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

COLUMNS = {
    "id": "int64",
    "label": "int32",
    "score": "float64",
    "text": "str",
    "payload": "bytes",
    "embedding": "ndarray:float32",
}


class MosaicStreaming(PublishPeer):
    """`StreamingDataset(remote="s3://…", local=…, shuffle=False)`; rows are dicts."""

    name = "MosaicML streaming"
    family: ClassVar[str] = "mosaic"
    packages: ClassVar[tuple[str, ...]] = ("mosaicml-streaming", "torch")
    python: ClassVar[Path | None] = Path(".venv-mosaic/bin/python")
    hint: ClassVar[str] = (
        "python -m venv .venv-mosaic; .venv-mosaic/bin/pip install -r benches/publish/mosaic.txt"
    )
    bucket: ClassVar[str] = "mosaic"
    stored = "mosaic"

    def load(self) -> None:
        """Import streaming, with what it imports at the first use."""
        module("streaming")
        module("boto3")

    def publish(self, place: Place, files: Sequence[Path]) -> None:
        """`MDSWriter`, with its default shards of 64 MiB."""
        parquet = module("pyarrow.parquet")
        with module("streaming").MDSWriter(out=place.url, columns=COLUMNS) as writer:
            for path in files:
                table = parquet.read_table(path)
                embeddings = table["embedding"].combine_chunks().flatten().to_numpy()
                embeddings = embeddings.reshape(table.num_rows, -1)
                for row, embedding in zip(
                    table.drop_columns("embedding").to_pylist(), embeddings, strict=True
                ):
                    writer.write({**row, "embedding": embedding})

    def first(self, place: Place, rows: int) -> Iterator[Any]:
        """Rows in lists of `rows`."""
        return self._batches(place, rows)

    def everything(self, place: Place) -> Iterator[Any]:
        """Rows in lists."""
        return self._batches(place, BATCH)

    def count(self, batch: Any) -> int:
        """Rows of a list."""
        return len(batch)

    def sums(self, batch: Any) -> Sums:
        """The sums of a list of rows."""
        return Sums(
            len(batch),
            sum(int(row["id"]) for row in batch),
            sum(int(row["label"]) for row in batch),
            sum(float(row["score"]) for row in batch),
            sum(len(row["text"].encode()) for row in batch),
            sum(len(row["payload"]) for row in batch),
            sum(float(row["embedding"].sum(dtype="float64")) for row in batch),
        )

    def _batches(self, place: Place, rows: int) -> Iterator[Any]:
        opened = module("streaming").StreamingDataset(
            remote=place.url, local=str(place.scratch / "local"), shuffle=False, batch_size=rows
        )
        samples = iter(opened)
        while batch := list(islice(samples, rows)):
            yield batch
