"""Hugging Face datasets: the same Parquet files in a bucket, streamed over s3fs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from benches.peers import module
from benches.peers.publish_peer import BATCH, KEY, SECRET, Place, PublishPeer, upload

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class HuggingFaceStreaming(PublishPeer):
    """`load_dataset("parquet", data_files="s3://…", streaming=True)`, in batches of Arrow."""

    name = "HF datasets, streaming"
    family: ClassVar[str] = "datasets"
    packages: ClassVar[tuple[str, ...]] = ("datasets", "s3fs", "fsspec", "pyarrow")
    python: ClassVar[Path | None] = Path(".venv-publish/bin/python")
    hint: ClassVar[str] = (
        "python -m venv .venv-publish; .venv-publish/bin/pip install -r benches/publish/peers.txt"
    )
    bucket: ClassVar[str] = "arrow"
    stored = "files"

    def load(self) -> None:
        """Import datasets and s3fs, with what they import at the first use."""
        for name in ("datasets", "s3fs", "aiobotocore.session", "pyarrow.dataset"):
            module(name)

    def publish(self, place: Place, files: Sequence[Path]) -> None:
        """The files as they are."""
        upload(place, ((path.name, path) for path in files))

    def first(self, place: Place, rows: int) -> Iterator[Any]:
        """`iter(batch_size=rows)`."""
        return self._batches(place, rows)

    def columns(self, place: Place, names: Sequence[str]) -> Iterator[Any]:
        """With `columns=names`."""
        return self._batches(place, columns=list(names))

    def everything(self, place: Place) -> Iterator[Any]:
        """`iter(batch_size=…)`."""
        return self._batches(place)

    def between(self, place: Place, begin: int, end: int) -> Iterator[Any]:
        """With `filters=…`."""
        return self._batches(place, filters=[("id", ">=", begin), ("id", "<", end)])

    def between_columns(
        self, place: Place, begin: int, end: int, names: Sequence[str]
    ) -> Iterator[Any]:
        """The same, with `columns`."""
        filters = [("id", ">=", begin), ("id", "<", end)]
        return self._batches(place, filters=filters, columns=list(names))

    def _batches(self, place: Place, rows: int = BATCH, **given: Any) -> Iterator[Any]:
        opened = module("datasets").load_dataset(
            "parquet",
            data_files=f"{place.url}/*.parquet",
            split="train",
            streaming=True,
            storage_options={
                "key": KEY,
                "secret": SECRET,
                "client_kwargs": {"endpoint_url": place.endpoint},
            },
            **given,
        )
        found: Iterator[Any] = opened.with_format("arrow").iter(batch_size=rows)
        return found
