"""Lance: the same rows in its own format, read over its own S3 client."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from benches.peers import module
from benches.peers.publish_peer import BATCH, KEY, REGION, SECRET, Place, PublishPeer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class LanceTable(PublishPeer):
    """`lance.dataset("s3://…").scanner(…).to_batches()`."""

    name = "Lance"
    family: ClassVar[str] = "lance"
    packages: ClassVar[tuple[str, ...]] = ("pylance",)
    python: ClassVar[Path | None] = Path(".venv-publish/bin/python")
    hint: ClassVar[str] = (
        "python -m venv .venv-publish; .venv-publish/bin/pip install -r benches/publish/peers.txt"
    )
    bucket: ClassVar[str] = "lance"
    stored = "lance"

    def load(self) -> None:
        """Import Lance."""
        module("lance")

    def publish(self, place: Place, files: Sequence[Path]) -> None:
        """`lance.write_dataset(…)`."""
        pyarrow, dataset = module("pyarrow"), module("pyarrow.dataset")
        table = dataset.dataset([str(path) for path in files])
        module("lance").write_dataset(
            pyarrow.RecordBatchReader.from_batches(table.schema, table.to_batches()),
            f"{place.url}/table.lance",
            storage_options=options(place),
        )

    def first(self, place: Place, rows: int) -> Iterator[Any]:
        """With `limit=rows`."""
        return self._batches(place, limit=rows)

    def columns(self, place: Place, names: Sequence[str]) -> Iterator[Any]:
        """With `columns=names`."""
        return self._batches(place, columns=list(names))

    def everything(self, place: Place) -> Iterator[Any]:
        """All rows."""
        return self._batches(place)

    def between(self, place: Place, begin: int, end: int) -> Iterator[Any]:
        """With `filter=…`; there is no index."""
        return self._batches(place, filter=f"id >= {begin} AND id < {end}")

    def between_columns(
        self, place: Place, begin: int, end: int, names: Sequence[str]
    ) -> Iterator[Any]:
        """The same, with `columns`."""
        return self._batches(place, filter=f"id >= {begin} AND id < {end}", columns=list(names))

    def _batches(self, place: Place, **given: Any) -> Iterator[Any]:
        opened = module("lance").dataset(f"{place.url}/table.lance", storage_options=options(place))
        found: Iterator[Any] = opened.scanner(batch_size=BATCH, **given).to_batches()
        return found


def options(place: Place) -> dict[str, str]:
    """The keys of the server, as Lance takes them."""
    return {
        "aws_access_key_id": KEY,
        "aws_secret_access_key": SECRET,
        "aws_region": REGION,
        "aws_endpoint": place.endpoint,
        "allow_http": "true",
    }
