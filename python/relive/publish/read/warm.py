"""Fills the cache with tables: all of their bytes, by several processes at once if there are."""

import random
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from relive._arguments import as_int
from relive._forks import call_after_fork
from relive.errors import InvalidError, InvalidTypeError, OutOfRangeError, StorageError
from relive.model.report import Progress
from relive.publish.read.filters.conditions import unknown_name
from relive.publish.read.shards import TableShards
from relive.store.blobs import BlobRef, Blobs
from relive.store.cache import BlobCache, CachedRoot
from relive.store.cache.claims import Claims
from relive.store.config import parse_size
from relive.store.remote.priority import ReadAhead

if TYPE_CHECKING:
    from relive.publish.read.dataset import PublishedDataset

CHUNK_BYTES: Final = 8 << 20
"""What is claimed and fetched at once; a multiple of a page."""
_AT_ONCE: Final = 6
_POLL_S: Final = 0.05
# The first batch is decoded before the rest of a table is fetched.
_BACKGROUND_S: Final = 0.5

Which = slice | range | Sequence[int] | None


@dataclass(frozen=True)
class WarmReport:
    """What `warm` did."""

    shards: int
    """How many shards were asked for."""
    bytes: int
    """Their size."""
    fetched_bytes: int
    """How much of it this process fetched."""
    is_complete: bool
    """Whether the cache has all of it; if not, its limit or the disk is too small."""


class _Chunk(NamedTuple):
    ref: BlobRef
    start: int
    stop: int

    @property
    def name(self) -> str:
        return f"{self.ref.digest}.{self.start // CHUNK_BYTES}"


def warm(
    dataset: "PublishedDataset",
    tables: Sequence[str] | None,
    shards: Which,
    max_bytes: int | str | None,
    *,
    pin: bool,
    progress: Progress | None,
) -> WarmReport:
    """Fill the cache; see `PublishedDataset.warm`."""
    opened = _opened(dataset, tables)
    most = None if max_bytes is None else parse_size("`max_bytes`", max_bytes)
    chosen = _within(opened, shards, most)
    refs = [table.entry.shards[number].blob for table, number in chosen]
    total = sum(ref.nbytes for ref in refs)
    root = dataset.version.root
    if not isinstance(root, CachedRoot):
        if dataset.mode == "remote":
            raise InvalidError(
                "a dataset that was opened with mode='remote' uses no cache",
                hint="open it with mode='auto'",
            )
        return WarmReport(len(refs), total, 0, is_complete=True)  # it is on this machine
    if root.is_local:
        raise InvalidError(
            "a dataset that was opened with mode='local' makes no request",
            hint="open it with mode='auto'",
        )
    if pin:
        _pin(root.cache, dataset.pinned, chosen)
    _keep_footers(root.cache, chosen)
    warming = Warming(root, root.cache, refs)
    is_complete = warming.run(progress)
    _keep_footers(root.cache, chosen, claimed=True)
    root.cache.flush()
    return WarmReport(len(refs), total, warming.fetched_bytes, is_complete)


def cached_bytes(dataset: "PublishedDataset") -> dict[str, tuple[int, int]]:
    """Return the bytes of each table and how many of them are on this machine."""
    root, found = dataset.version.root, {}
    for name in dataset.version.manifest.tables:
        refs = dataset._shards(name).blob_refs()  # noqa: SLF001 - of this package
        total = cached = sum(ref.nbytes for ref in refs)
        if isinstance(root, CachedRoot):
            cached = Warming(root, root.cache, refs).cached_bytes()
        elif dataset.mode == "remote" and root.path is None:
            cached = 0
        found[name] = total, cached
    return found


class Warming:
    """Fetches what a cache does not have of blobs, except what other processes fetch."""

    def __init__(self, root: CachedRoot, cache: BlobCache, refs: Sequence[BlobRef]) -> None:
        self._cache = cache.direct()
        self._disk = cache.disk
        self._blobs = Blobs(root, self._cache)
        self._claims = Claims(self._disk.base)
        self._chunks = list(_chunks(refs))
        self._total = sum(ref.nbytes for ref in refs)
        self._is_full = False
        self._stopped = threading.Event()

    @property
    def fetched_bytes(self) -> int:
        """What was fetched so far."""
        return self._blobs.stats.nbytes

    def cached_bytes(self) -> int:
        """Return how much of the blobs the cache has; contents are not verified."""
        return sum(
            chunk.stop - chunk.start - sum(stop - start for start, stop in self._missing(chunk))
            for chunk in self._chunks
        )

    def run(self, progress: Progress | None = None, *, workers: int = _AT_ONCE) -> bool:
        """Fetch everything; return whether the cache has it. `progress` is called here."""
        left = self._chunks
        # Processes that begin at different places seldom want the same chunk.
        begin = random.randrange(len(left)) if left else 0  # noqa: S311 - not for security
        left = left[begin:] + left[:begin]
        done = 0
        pool = ThreadPoolExecutor(workers, "relive-warm")
        try:
            while left and not self._is_full and not self._stopped.is_set():
                others: list[_Chunk] = []
                for chunk, is_done in self._each(pool, left):
                    if is_done:
                        done += chunk.stop - chunk.start
                        if progress is not None:
                            progress(done, self._total)
                    else:
                        others.append(chunk)
                if len(others) == len(left):
                    self._stopped.wait(_POLL_S)  # until other processes have fetched them
                left = others
        finally:
            self._stopped.set()
            pool.shutdown(cancel_futures=True)
        return not left and not self._is_full

    def _each(
        self, pool: ThreadPoolExecutor, chunks: Sequence[_Chunk]
    ) -> Iterator[tuple[_Chunk, bool]]:
        waiting, running = iter(chunks), dict[Future[bool], _Chunk]()
        while True:
            while len(running) < 2 * _AT_ONCE and (chunk := next(waiting, None)) is not None:
                running[pool.submit(self._fetch, chunk)] = chunk
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()

    def _fetch(self, chunk: _Chunk) -> bool:
        """Fetch a chunk unless the cache has it; return whether it does now."""
        if not self._missing(chunk):
            self._disk.touch(chunk.ref.digest, chunk.start, chunk.stop)
            return True
        if self._is_full or self._stopped.is_set() or not self._claims.take(chunk.name):
            return False
        try:
            missing = self._missing(chunk)  # another process may have fetched it just before
            if missing:
                with ReadAhead():
                    self._blobs.read_many([(chunk.ref, start, stop) for start, stop in missing])
                self._is_full = self._is_full or bool(self._missing(chunk))
            return not self._missing(chunk)
        finally:
            self._claims.release(chunk.name)

    def _missing(self, chunk: _Chunk) -> list[tuple[int, int]]:
        ref, start, stop = chunk
        if ref.leaves is None:
            return [] if self._disk.has_whole(ref.digest) else [(0, ref.nbytes)]
        found = self._disk.missing(ref.digest, ref.nbytes, start, stop)
        if not found and not self._disk.has_whole(ref.leaves):
            return [(start, min(stop, start + 1))]  # its leaf table comes with any read
        return found


class BackgroundWarming:
    """Fetches the rest of a table on a thread, after its first rows were read; once."""

    def __init__(self, root: CachedRoot, shards: TableShards) -> None:
        self._root, self._shards = root, shards
        self._lock = threading.Lock()
        self._is_started = False
        call_after_fork(self)

    def after_fork(self) -> None:
        """Forget the lock of the parent process."""
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the thread, unless it was started."""
        with self._lock:
            if self._is_started:
                return
            self._is_started = True
        threading.Thread(target=self._run, name="relive-hybrid", daemon=True).start()

    def _run(self) -> None:
        time.sleep(_BACKGROUND_S)
        refs = self._shards.blob_refs()
        warming = Warming(self._root, self._root.cache, refs)
        try:
            _keep_footers(self._root.cache, [(self._shards, n) for n in range(len(refs))])
            warming.run(workers=2)
        except (StorageError, RuntimeError):
            return  # those who read get the error, or the interpreter exits


def _opened(dataset: "PublishedDataset", tables: Sequence[str] | None) -> list[TableShards]:
    known = list(dataset.version.manifest.tables)
    if isinstance(tables, str):
        raise InvalidTypeError(f"`tables` must be a list of names, got {tables!r}")
    for name in tables or ():
        if name not in known:
            raise unknown_name("table", name, known)
    chosen = known if tables is None else dict.fromkeys(tables)
    return [dataset._shards(name) for name in chosen]  # noqa: SLF001 - of this package


def _within(
    tables: Sequence[TableShards], which: Which, max_bytes: int | None
) -> list[tuple[TableShards, int]]:
    """Return the shards that are asked for; with `max_bytes`, the first ones that are as large."""
    chosen: list[tuple[TableShards, int]] = []
    left = max_bytes
    for table in tables:
        shards = table.entry.shards
        for number in _numbers(which, len(shards), table.name):
            if left is not None:
                left -= shards[number].blob.nbytes
                if left < 0:
                    return chosen
            chosen.append((table, number))
    return chosen


def _numbers(which: Which, count: int, name: str) -> Sequence[int]:
    if which is None:
        return range(count)
    if isinstance(which, slice):
        return range(count)[which]
    if isinstance(which, str) or not isinstance(which, Iterable):
        raise InvalidTypeError(
            f"`shards` must be a slice or a list of numbers, as in slice(0, 50), got {which!r}"
        )
    numbers = [as_int("shards", number) for number in which]
    if numbers and max(numbers) >= count:
        raise OutOfRangeError(f"{name} has {count} shards, got {max(numbers)}")
    return list(dict.fromkeys(numbers))


def _chunks(refs: Sequence[BlobRef]) -> Iterator[_Chunk]:
    for ref in dict.fromkeys(refs):
        step = CHUNK_BYTES if ref.leaves is not None else max(1, ref.nbytes)
        for start in range(0, ref.nbytes, step):
            yield _Chunk(ref, start, min(start + step, ref.nbytes))


def _keep_footers(
    cache: BlobCache, chosen: Sequence[tuple[TableShards, int]], *, claimed: bool = False
) -> None:
    """Keep the footers of shards; they are needed before anything else is read.

    Those that other processes fetch are left to them, unless they are `claimed` and still missing.
    """
    claims = Claims(cache.disk.base)
    for table in dict.fromkeys(table for table, _ in chosen):
        digests = {
            number: table.entry.shards[number].footer.digest
            for each, number in chosen
            if each is table
        }

        def is_missing(digest: str) -> bool:
            return not cache.disk.has_whole(digest)

        taken: list[str] = []
        try:
            missing = dict.fromkeys(filter(is_missing, digests.values()))
            taken.extend(digest for digest in missing if claimed or claims.take(digest))
            # Another process may have fetched some just before they were claimed.
            wanted = set(filter(is_missing, taken))
            numbers = [number for number, digest in digests.items() if digest in wanted]
            for number, footer in zip(numbers, table.footers(numbers), strict=True):
                cache.direct().offer_whole(digests[number], footer.data)
        finally:
            for digest in taken:
                claims.release(digest)


def _pin(cache: BlobCache, name: str, chosen: Sequence[tuple[TableShards, int]]) -> None:
    shards = [table.entry.shards[number] for table, number in chosen]
    digests = {shard.blob.digest for shard in shards} | {shard.footer.digest for shard in shards}
    tables = {shard.blob.leaves for shard in shards if shard.blob.leaves is not None}
    try:
        cache.disk.pins.pin(name, digests | tables)
    except OSError as error:
        raise StorageError(f"cannot pin `{name}` in the cache: {error.strerror}") from error
