"""The shards of a published table: their rows, their footers and their bytes."""

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from relive._forks import call_after_fork
from relive.errors import CorruptError
from relive.publish.read.footer import ShardFooter
from relive.store.blobs import BlobRef, Blobs, blob_key

if TYPE_CHECKING:
    from relive.publish.version.manifest import Shard, TableEntry


_MAX_WAIT_S: Final = 2.0


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
        blobs: Blobs,
        inlined: "Callable[[Shard], bytes | None]",
        name: str,
    ) -> None:
        self.entry = entry
        self.blobs = blobs
        self.name = name
        self.starts = np.cumsum([0, *(shard.rows for shard in entry.shards)], dtype=np.int64)
        """The first row of each shard, and the number of rows."""
        self.after_read: Callable[[], object] | None = None
        """Called when rows were read."""
        self._inlined = inlined
        self._footers: dict[int, ShardFooter] = {}
        self.after_fork()
        call_after_fork(self)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the table."""
        return self.entry.schema

    def blob_refs(self) -> list[BlobRef]:
        """Return the blobs of all shards."""
        return [shard.blob for shard in self.entry.shards]

    def shard_name(self, number: int) -> str:
        """Return the name of a shard in messages."""
        return f"shard {number} of {self.name} (blob `{self.entry.shards[number].blob.digest}`)"

    def read_many(
        self, reads: Sequence[tuple[int, int, int]], *, gap: int | None = None
    ) -> Sequence[Any]:
        """Return verified ranges of shards, each a shard, a start and a stop, in one round trip.

        Of several reads of a shard at once, one fetches its leaf table and the others wait until
        it is there. That only saves requests: nobody waits for long.
        """
        ours, others = self._begin(sorted({number for number, _, _ in reads}))
        deadline = time.monotonic() + _MAX_WAIT_S
        for event in others:
            event.wait(max(0, deadline - time.monotonic()))
        shards = self.entry.shards
        try:
            found = self.blobs.read_many(
                [(shards[number].blob, start, stop) for number, start, stop in reads], gap=gap
            )
        except BaseException:
            with self._lock:
                for number in ours:
                    self._first_reads.pop(number, None)
            raise
        finally:
            for event in ours.values():
                event.set()
        if self.after_read is not None:
            self.after_read()
        return found

    def _begin(
        self, numbers: Sequence[int]
    ) -> tuple[dict[int, threading.Event], list[threading.Event]]:
        """Return events of shards that this read is the first one of, and those to wait for."""
        ours: dict[int, threading.Event] = {}
        others: list[threading.Event] = []
        unknown = [
            number
            for number in numbers
            if not self.blobs.knows_table(self.entry.shards[number].blob)
        ]
        if self.blobs.root.path is not None or not unknown:
            return ours, others
        with self._lock:
            for number in unknown:
                known = self._first_reads.get(number)
                if known is None:
                    ours[number] = self._first_reads[number] = threading.Event()
                    self.blobs.set_when_known(self.entry.shards[number].blob, ours[number])
                elif not known.is_set():
                    others.append(known)
        return ours, others

    def after_fork(self) -> None:
        """Forget the reads of the parent process, whose threads were not copied."""
        self._lock = threading.Lock()
        self._first_reads: dict[int, threading.Event] = {}

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
        for number, data in zip(unread, self._read_footers(unread), strict=True):
            self._footers[number] = self._parse(number, data)
        return [self._footers[number] for number in wanted]

    def _read_footers(self, numbers: Sequence[int]) -> Sequence[Any]:
        """Return footers out of the cache or, those that it does not have, in one round trip."""
        cache, found = self.blobs.cache, dict[int, Any]()
        shards = {number: self.entry.shards[number] for number in numbers}
        if cache is not None:
            for number, shard in shards.items():
                kept = cache.find_whole(shard.footer.digest, shard.footer.nbytes)
                if kept is not None:
                    found[number] = kept
        # Their digests are in the manifest, so that no leaf table is needed.
        unread = {number: each for number, each in shards.items() if number not in found}
        ranges = [
            (blob_key(each.blob.digest), each.blob.nbytes - each.footer.nbytes, each.blob.nbytes)
            for each in unread.values()
        ]
        read = self.blobs.root.read_ranges(ranges) if ranges else ()
        for (number, shard), data in zip(unread.items(), read, strict=True):
            self._check_footer(number, data)
            if cache is not None:
                cache.offer_whole(shard.footer.digest, data)
            found[number] = data
        return [found[number] for number in numbers]

    def _check_footer(self, number: int, data: Any) -> None:
        if hashlib.sha256(data).hexdigest() != self.entry.shards[number].footer.digest:
            raise CorruptError(f"the footer of {self.shard_name(number)} does not have its digest")

    def _parse(self, number: int, data: Any) -> ShardFooter:
        shard = self.entry.shards[number]
        name = self.shard_name(number)
        self._check_footer(number, data)
        footer = ShardFooter(data, shard.blob.nbytes, name)
        if footer.rows != shard.rows:
            raise CorruptError(f"{name} has {footer.rows} rows, but {shard.rows} in the manifest")
        return footer
