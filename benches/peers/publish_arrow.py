"""pyarrow.dataset: the same Parquet files in a bucket, read with Arrow's own S3 file system."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from benches.peers import module
from benches.peers.publish_peer import BATCH, KEY, REGION, SECRET, Place, PublishPeer, upload

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


class ArrowDataset(PublishPeer):
    """`pyarrow.dataset.dataset(bucket, filesystem=S3FileSystem(…))`, with its defaults.

    With 64 threads for requests instead of eight it was no faster.
    """

    name = "pyarrow.dataset"
    family: ClassVar[str] = "arrow"
    packages: ClassVar[tuple[str, ...]] = ("pyarrow",)
    bucket: ClassVar[str] = "arrow"
    stored = "files"

    def load(self) -> None:
        """Import pyarrow with its S3 file system."""
        module("pyarrow.dataset")
        module("pyarrow.fs")

    def publish(self, place: Place, files: Sequence[Path]) -> None:
        """The files as they are."""
        upload(place, ((path.name, path) for path in files))

    def first(self, place: Place, rows: int) -> Iterator[Any]:
        """`dataset.head(rows)`."""
        yield self._open(place).head(rows)

    def columns(self, place: Place, names: Sequence[str]) -> Iterator[Any]:
        """`dataset.to_batches(columns=names)`."""
        return self._batches(place, columns=list(names))

    def everything(self, place: Place) -> Iterator[Any]:
        """`dataset.to_batches()`."""
        return self._batches(place)

    def between(self, place: Place, begin: int, end: int) -> Iterator[Any]:
        """`dataset.to_batches(filter=…)`."""
        return self._batches(place, filter=_condition(begin, end))

    def between_columns(
        self, place: Place, begin: int, end: int, names: Sequence[str]
    ) -> Iterator[Any]:
        """The same, with `columns`."""
        return self._batches(place, filter=_condition(begin, end), columns=list(names))

    def _batches(self, place: Place, **given: Any) -> Iterator[Any]:
        found: Iterator[Any] = self._open(place).to_batches(batch_size=BATCH, **given)
        return found

    def _open(self, place: Place) -> Any:
        files = module("pyarrow.fs").S3FileSystem(
            access_key=KEY,
            secret_key=SECRET,
            region=REGION,
            scheme="http",
            endpoint_override=place.endpoint.removeprefix("http://"),
        )
        return module("pyarrow.dataset").dataset(place.bucket, filesystem=files, format="parquet")


def _condition(begin: int, end: int) -> Any:
    field = module("pyarrow.dataset").field("id")
    return (field >= begin) & (field < end)
