"""The shards of a published table: their rows, their footers and their bytes."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from relive.errors import CorruptError
from relive.publish.read.footer import ShardFooter

if TYPE_CHECKING:
    from relive.publish.version.manifest import Shard, TableEntry
    from relive.store.blobs import BlobRef


class Reader(Protocol):
    """What is needed of `Blobs`."""

    def read_many(
        self, reads: "Sequence[tuple[BlobRef, int, int]]", *, gap: int | None = None
    ) -> Sequence[Any]:
        """Return verified ranges of blobs, in one round trip."""
        ...


class TableShards:
    """The Parquet files of a table. Thread-safe.

    Args:
        entry: The table in the manifest.
        blobs: Reads the files.
        inlined: Returns the verified footer of a shard if it is at hand, else None.
        name: The name of the table in messages.
    """

    def __init__(
        self,
        entry: "TableEntry",
        blobs: Reader,
        inlined: "Callable[[Shard], bytes | None]",
        name: str,
    ) -> None:
        self.entry = entry
        self.blobs = blobs
        self.name = name
        self.starts = np.cumsum([0, *(shard.rows for shard in entry.shards)], dtype=np.int64)
        """The first row of each shard, and the number of rows."""
        self._inlined = inlined
        self._footers: dict[int, ShardFooter] = {}

    @property
    def schema(self) -> pa.Schema:
        """The schema of the table."""
        return self.entry.schema

    def shard_name(self, number: int) -> str:
        """Return the name of a shard in messages."""
        return f"shard {number} of {self.name} (blob `{self.entry.shards[number].blob.digest}`)"

    def footers(self, numbers: Iterable[int]) -> list[ShardFooter]:
        """Return the footers of shards; those that are not at hand are read in one round trip."""
        wanted = list(numbers)
        missing = [number for number in wanted if number not in self._footers]
        unread = []
        for number in missing:
            data = self._inlined(self.entry.shards[number])
            if data is None:
                unread.append(number)
            else:
                self._footers[number] = self._parse(number, data)
        if unread:
            blobs = [self.entry.shards[number] for number in unread]
            ends = [
                (shard.blob, shard.blob.nbytes - shard.footer.nbytes, shard.blob.nbytes)
                for shard in blobs
            ]
            for number, data in zip(unread, self.blobs.read_many(ends, gap=0), strict=True):
                self._footers[number] = self._parse(number, data)
        return [self._footers[number] for number in wanted]

    def _parse(self, number: int, data: Any) -> ShardFooter:
        shard = self.entry.shards[number]
        name = self.shard_name(number)
        if hashlib.sha256(data).hexdigest() != shard.footer.digest:
            raise CorruptError(f"the footer of {name} does not have its digest")
        footer = ShardFooter(data, shard.blob.nbytes, name)
        if footer.rows != shard.rows:
            raise CorruptError(f"{name} has {footer.rows} rows, but {shard.rows} in the manifest")
        return footer
