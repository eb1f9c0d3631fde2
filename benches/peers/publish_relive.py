"""relive: `DatasetBuilder` and `relive.dataset(…)`, every read verified."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from benches.peers import module
from benches.peers.publish_peer import BATCH, Place, PublishPeer
from benches.publish.table import rows_between

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SAME_FILES, OWN_FILES = "relive, same files", "relive, own files"


class RelivePeer(PublishPeer):
    """The Parquet files published unchanged, or (`rewrite`) the same rows as relive writes them."""

    family: ClassVar[str] = "relive"
    packages: ClassVar[tuple[str, ...]] = ("relive", "pyarrow", "obstore")
    bucket: ClassVar[str] = "relive"

    def __init__(self, *, rewrite: bool) -> None:
        self.given = {"rewrite": rewrite}
        self.rewrite = rewrite
        self.name = OWN_FILES if rewrite else SAME_FILES
        self.dataset = "bench/own" if rewrite else "bench/same"
        self.stored = self.dataset

    def load(self) -> None:
        """Import relive with what it imports at the first use."""
        for name in (
            "pyarrow.dataset",
            "obstore.store",
            "relive.publish",
            "relive.store.remote.aws",
            "relive.store.remote.fork_proxy",
            "relive.store.roots.object_store",
        ):
            module(name)

    def publish(self, place: Place, files: Sequence[Path]) -> None:
        """`DatasetBuilder(…).add_table("main", files).publish()`."""
        self.republish(place, [str(path) for path in files])

    def republish(self, place: Place, files: Sequence[str]) -> str:
        """The same; the digest of the version."""
        builder = module("relive").DatasetBuilder(self.dataset, root=place.url)
        builder.add_table("main", list(files), rewrite=self.rewrite)
        digest: str = builder.publish()
        return digest

    def change(
        self, place: Place, files: Sequence[str], kind: str, rows: int, places: int
    ) -> list[str]:
        """Publish `places` versions of the table, each with `rows` rows changed in one place.

        Each is a change of the version that `latest` names, which stays; their digests.
        """
        pa = module("pyarrow")
        table = pa.concat_tables(module("pyarrow.parquet").read_table(path) for path in files)
        digests = []
        for number in range(places):
            at = (2 * number + 1) * table.num_rows // (2 * places)
            parts = [table.slice(0, at)]
            if kind != "delete":
                parts.append(rows_between(table.num_rows + at, table.num_rows + at + rows))
            parts.append(table.slice(at if kind == "insert" else at + rows))
            builder = module("relive").DatasetBuilder(self.dataset, root=place.url, base="latest")
            builder.replace_table("main", pa.concat_tables(parts))
            digests.append(builder.publish(set_latest=False))
        return digests

    def first(self, place: Place, rows: int) -> Iterator[Any]:
        """`table.batches(batch_size=rows)`; up to a hundred rows `table.head(rows)`."""
        table = self._open(place)
        return iter([table.head(rows)]) if rows <= 100 else table.batches(batch_size=rows)

    def columns(self, place: Place, names: Sequence[str]) -> Iterator[Any]:
        """`table.batches(columns=names)`."""
        return self._batches(place, columns=list(names))

    def everything(self, place: Place) -> Iterator[Any]:
        """`table.batches()`."""
        return self._batches(place)

    def between(self, place: Place, begin: int, end: int) -> Iterator[Any]:
        """`table.batches(filter=…)`."""
        return self._batches(place, filter=_condition(begin, end))

    def between_columns(
        self, place: Place, begin: int, end: int, names: Sequence[str]
    ) -> Iterator[Any]:
        """The same, with `columns`."""
        return self._batches(place, filter=_condition(begin, end), columns=list(names))

    def _batches(self, place: Place, **given: Any) -> Iterator[Any]:
        found: Iterator[Any] = iter(self._open(place).batches(batch_size=BATCH, **given))
        return found

    def _open(self, place: Place) -> Any:
        return module("relive").dataset(self.dataset, root=place.url, mode="remote").table()


def _condition(begin: int, end: int) -> Any:
    field = module("pyarrow.compute").field("id")
    return (field >= begin) & (field < end)
