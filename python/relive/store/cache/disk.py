"""`DiskCache`: the files of a cache, and `BlobCache`: what a reader has of it."""

import contextlib
import hashlib
import logging
import os
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from relive.errors import InvalidError
from relive.store import config
from relive.store.atomic import open_file
from relive.store.cache import layout
from relive.store.cache.eviction import WHOLE_PAGE, ReaderUse, Victim, find_victims
from relive.store.cache.page import Identity, Leaf, encode_page, open_page, split_pages
from relive.store.cache.pins import Pins
from relive.store.cache.recency import Recency
from relive.store.cache.usage import BLOCK, BusyError, Usage, rounded
from relive.store.cache.writer import WriteBehind
from relive.store.leaves import DIGEST_BYTES, LEAF_BYTES, find_damage, leaf_count
from relive.store.paths import absolute_path
from relive.store.remote.ranges import Data
from relive.store.remote.threads import at_once

if TYPE_CHECKING:
    from relive.store.blobs import BlobRef

_LOG: Final = logging.getLogger("relive.publish")
# Directories that grow, and what file systems round differently.
_MARGIN: Final = 128
_MIN_MARGIN: Final = 64 << 10
_FOR_OBJECTS: Final = 64
_MAX_VERIFIED: Final = 1 << 16
# Below this, reading takes less time than handing the work to threads.
_THREADS_FROM_BYTES: Final = 2 << 20
_MAX_EVICTIONS: Final = 64


class Settings(NamedTuple):
    """Where a cache is, and how large it may be."""

    directory: Path
    limit: int
    min_free: int


class LeavesOf(NamedTuple):
    """A blob that is verified by leaves: its digest, its size and its verified leaf table."""

    digest: str
    nbytes: int
    table: bytes


class DiskCache:
    """The files of a cache in this process. Thread-safe. No method raises for a bad disk.

    What is read was compared with its digest; a file with wrong bytes is deleted. Use
    `open_cache`, so that all readers of a process share their writer thread.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.base = settings.directory / layout.BASE
        self.usage = Usage(self.base)
        self.recency = Recency(f"{self.base}/{layout.TIMES}", settings.limit)
        self.pins = Pins(self.base / layout.PINS)
        self.writer = WriteBehind(self)
        margin = max(_MIN_MARGIN, settings.limit // _MARGIN)
        self._most = max(0, settings.limit - margin)
        # Pages leave room for the small objects without which they are useless.
        self._most_pages = max(0, self._most - settings.limit // _FOR_OBJECTS)
        self._verified: OrderedDict[tuple[str, int], tuple[Identity, int]] = OrderedDict()
        self._lock = threading.Lock()
        self._has_warned = False

    def read_leaves(
        self, use: ReaderUse, blob: LeavesOf, start: int, out: memoryview
    ) -> list[tuple[int, int]]:
        """Fill `out` with the leaves of a blob from `start` on that the cache has.

        Returns the ranges of the blob that were read and verified, in ascending order.
        """
        stop = start + len(out)
        pages = range(start // layout.PAGE_BYTES, -(-stop // layout.PAGE_BYTES))

        def read(page: int) -> list[tuple[int, int]]:
            found = self._read_queued(blob, page, start, out)
            found = found or self._read_page(blob, page, start, out)
            if found:
                use.saw(self.recency.touch(blob.digest, page))
            return found

        if len(out) < _THREADS_FROM_BYTES:
            parts = [read(page) for page in pages]
        else:
            parts = at_once(read, pages)
        return [each for part in parts for each in part]

    def find_whole(self, digest: str, nbytes: int | None = None) -> bytes | None:
        """Return an object that is kept as a whole, verified; None if it is not there."""
        path = layout.whole_path(self.base, digest)
        data = _read_file(path)
        if data is None:
            return None
        if hashlib.sha256(data).hexdigest() != digest or nbytes not in {None, len(data)}:
            with contextlib.suppress(OSError):
                os.unlink(path)  # noqa: PTH108 - faster than a Path
            return None
        self.recency.touch(digest, WHOLE_PAGE)
        return data

    def has_whole(self, digest: str) -> bool:
        """Check whether an object is kept as a whole; its content is not verified."""
        return os.path.exists(layout.whole_path(self.base, digest))  # noqa: PTH110 - faster

    def missing(self, digest: str, nbytes: int, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the ranges of leaves between two offsets that the cache does not have.

        Contents are not verified.
        """
        first, end = start // LEAF_BYTES, leaf_count(stop)
        found: list[tuple[int, int]] = []
        for page in range(first // layout.PAGE_LEAVES, -(-end // layout.PAGE_LEAVES)):
            with open_page(layout.page_path(self.base, digest, page)) as file:
                bitmap = 0 if file is None else file.bitmap
            zero = page * layout.PAGE_LEAVES
            for leaf in range(max(first, zero), min(end, zero + layout.PAGE_LEAVES)):
                if not bitmap >> leaf - zero & 1:
                    low, high = leaf * LEAF_BYTES, min((leaf + 1) * LEAF_BYTES, nbytes)
                    if found and found[-1][1] == low:
                        found[-1] = found[-1][0], high
                    else:
                        found.append((low, high))
        return found

    def touch(self, digest: str, start: int, stop: int) -> None:
        """Count a range of a blob as used, although it was not read."""
        for page in range(start // layout.PAGE_BYTES, -(-stop // layout.PAGE_BYTES)):
            self.recency.touch(digest, page)

    def keep_page(self, use: ReaderUse, digest: str, page: int, new: Mapping[int, Leaf]) -> bool:
        """Write leaves of a page, with those that the cache has; return whether it has them."""
        path = layout.page_path(self.base, digest, page)

        def content() -> Sequence[Data] | None:
            leaves = dict(new)
            with open_page(path) as file:
                if file is not None:
                    if not set(new) - {n for n in range(32) if file.bitmap >> n & 1}:
                        return None
                    with contextlib.suppress(ValueError):
                        leaves = {**file.leaves(), **new}
            return encode_page(leaves)

        use.saw(self.recency.touch(digest, page))
        return self.write(path, content, use, most=self._most_pages)

    def keep_whole(self, use: ReaderUse, digest: str, data: Data) -> bool:
        """Write an object that is kept as a whole."""
        path = layout.whole_path(self.base, digest)
        kept = self.write(path, lambda: None if os.path.exists(path) else [data], use)  # noqa: PTH110
        self.recency.touch(digest, WHOLE_PAGE)
        return kept

    def keep_verified(self, use: ReaderUse, digest: str, data: bytes) -> bool:
        """Write an object that is kept as a whole, if it has its digest."""
        is_right = hashlib.sha256(data).hexdigest() == digest
        return is_right and self.keep_whole(use, digest, data)

    def write(
        self,
        path: str,
        content: Callable[[], Sequence[Data] | None],
        use: ReaderUse,
        *,
        most: int | None = None,
    ) -> bool:
        """Write a file, if the cache then has at most `most` bytes; return whether it is there.

        `content` is called when no other process writes; None keeps the file as it is.
        """
        try:
            with self.usage.locked():
                pieces = content()
                most = self._most if most is None else most
                return pieces is None or self._write(path, pieces, use, most)
        except OSError as error:  # full, read-only, gone, or locked for long
            use.pause()
            if not self._has_warned and not isinstance(error, BusyError):
                self._has_warned = True
                _LOG.warning(
                    "cannot write to the cache in `%s`: %s; reads go on without it",
                    self.settings.directory,
                    error.strerror,
                )
            return False

    def remove(self, path: str) -> int:
        """Delete a file; return how much that frees. Inside `usage.locked`."""
        try:
            status = os.lstat(path)
            os.unlink(path)  # noqa: PTH108 - faster than a Path
        except OSError:
            return 0
        freed = rounded(status.st_size)  # what was added for it, and never more
        self.usage.add(-freed)
        return freed

    def evict(self, nbytes: int, may_replace: Callable[[Victim], bool]) -> bool:
        """Delete files until as much is free; return whether it is. Inside `usage.locked`."""
        for _ in range(_MAX_EVICTIONS):
            if nbytes <= 0:
                return True
            victims = find_victims(self.base, self.recency, self.pins.digests(), may_replace)
            if not victims:
                return False
            for victim in victims:
                nbytes -= self.remove(victim.path)
                if nbytes <= 0:
                    return True
        return nbytes <= 0

    def free_bytes(self) -> int:
        """Return what the disk has left for this user."""
        found = os.statvfs(self.base)
        return found.f_bavail * found.f_frsize

    def after_fork(self) -> None:
        """Forget the locks and threads of the parent process."""
        self._lock = threading.Lock()
        self.usage.forget()
        self.pins.forget()
        self.writer = WriteBehind(self)

    def _read_queued(
        self, blob: LeavesOf, page: int, start: int, out: memoryview
    ) -> list[tuple[int, int]]:
        """Return a page that waits to be written, if all wanted leaves of it do."""
        leaves = self.writer.queued(blob.digest, page)
        if not leaves:
            return []
        zero = page * layout.PAGE_LEAVES
        first, end = max(start // LEAF_BYTES, zero), leaf_count(start + len(out))
        wanted = range(first, min(end, zero + layout.PAGE_LEAVES))
        if any(leaf - zero not in leaves for leaf in wanted):
            return []
        for leaf in wanted:
            data, at = leaves[leaf - zero].data, leaf * LEAF_BYTES - start
            out[at : at + len(data)] = data
        finish = min((wanted[-1] + 1) * LEAF_BYTES, blob.nbytes)
        return [(first * LEAF_BYTES, finish)]

    def _read_page(
        self, blob: LeavesOf, page: int, start: int, out: memoryview
    ) -> list[tuple[int, int]]:
        digest, nbytes, table = blob
        path = layout.page_path(self.base, digest, page)
        zero = page * layout.PAGE_LEAVES
        low = max(start // LEAF_BYTES, zero) - zero
        high = min(leaf_count(start + len(out)), zero + layout.PAGE_LEAVES) - zero
        found: list[tuple[int, int]] = []
        with open_page(path) as file:
            if file is None:
                return found
            identity, known = self._verified.get((digest, page), (None, 0))
            if identity != file.identity:
                known = 0
                entries = table[zero * DIGEST_BYTES : (zero + layout.PAGE_LEAVES) * DIGEST_BYTES]
                try:
                    is_right = file.has_digests(entries)
                except OSError:  # the disk cannot be read
                    return found
                if not is_right:
                    self._discard(path, file.identity)
                    return found
            for first, end in file.runs(low, high):
                begin = (zero + first) * LEAF_BYTES
                finish = min((zero + end) * LEAF_BYTES, nbytes)
                view = out[begin - start : finish - start]
                mask = (1 << end) - (1 << first)
                try:
                    is_whole = file.read_into(first, view)
                except OSError:
                    return found
                if not is_whole or (mask & ~known and find_damage(view, begin, table) is not None):
                    self._discard(path, file.identity)
                    return found
                known |= mask
                found.append((begin, finish))
            self._remember(digest, page, file.identity, known)
        return found

    def _remember(self, digest: str, page: int, identity: Identity, known: int) -> None:
        with self._lock:
            self._verified[digest, page] = identity, known
            self._verified.move_to_end((digest, page))
            if len(self._verified) > _MAX_VERIFIED:
                self._verified.popitem(last=False)

    @staticmethod
    def _discard(path: str, identity: Identity) -> None:
        """Delete a damaged file, unless it was replaced meanwhile."""
        with contextlib.suppress(OSError):
            if os.stat(path).st_ino == identity[0]:  # noqa: PTH116 - faster than a Path
                os.unlink(path)  # noqa: PTH108 - as above

    def _write(self, path: str, pieces: Sequence[Data], use: ReaderUse, most: int) -> bool:
        size = rounded(sum(map(len, pieces)))
        if not self._make_room(size, use, most):
            use.pause()
            return False
        temporary = f"{self.base}/{layout.TEMPORARY}/{secrets.token_hex(8)}"
        self.usage.add(size)
        try:
            handle = self._create(temporary)
            try:
                for piece in pieces:
                    _write_all(handle, piece)
            finally:
                os.close(handle)
            self._rename(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)  # noqa: PTH108 - faster than a Path
            with contextlib.suppress(OSError):
                self.usage.add(-size)
            raise
        return True

    def _make_room(self, size: int, use: ReaderUse, most: int) -> bool:
        if not os.path.exists(f"{self.base}/{layout.TEMPORARY}"):  # noqa: PTH110 - faster
            self._prepare()
        lacking = self.settings.min_free + size - self.free_bytes()
        if lacking > 0:
            # Other programs need the disk: even pages that are in use make way.
            self.evict(lacking, lambda _: True)
            if self.free_bytes() < self.settings.min_free + size:
                return False
        short = self.usage.used + size - most
        if short <= 0:
            return True
        if size > most or use.is_paused or not self.evict(short, use.may_replace):
            return False
        use.resume()
        return True

    def _prepare(self) -> None:
        """Create what every cache has, if it may be as large."""
        if self.usage.used + self.recency.nbytes + 3 * BLOCK > self._most:
            return
        self._make_folder(f"{self.base}/{layout.TEMPORARY}")
        self.recency.create()
        self.usage.count()

    def _create(self, path: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            return os.open(path, flags, 0o666)
        except FileNotFoundError:
            self._make_folder(path.rpartition("/")[0])
            return os.open(path, flags, 0o666)

    def _rename(self, source: str, target: str) -> None:
        old = 0
        with contextlib.suppress(OSError):
            old = rounded(os.lstat(target).st_size)
        try:
            os.replace(source, target)  # noqa: PTH105 - faster than a Path
        except FileNotFoundError:
            self._make_folder(target.rpartition("/")[0])
            os.replace(source, target)  # noqa: PTH105 - as above
        if old:
            self.usage.add(-old)

    def _make_folder(self, path: str) -> None:
        missing = [Path(path)]
        while not missing[-1].parent.is_dir():
            missing.append(missing[-1].parent)
        for folder in reversed(missing):
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                self.usage.add(BLOCK)


class BlobCache:
    """A cache as a reader of blobs uses it: remembers when it was opened. Picklable.

    Reads return what was verified; writes are queued for a thread and may be dropped.

    Args:
        settings: Where it is.
        use: When the reader was opened; by default now.
        is_direct: Whether to write at once, instead of later.
    """

    def __init__(
        self, settings: Settings, use: ReaderUse | None = None, *, is_direct: bool = False
    ) -> None:
        self.settings = settings
        self.use = use or ReaderUse()
        self._is_direct = is_direct

    def direct(self) -> "BlobCache":
        """Return the same cache for a reader that fills it, and waits for it."""
        return BlobCache(self.settings, self.use, is_direct=True)

    @property
    def disk(self) -> DiskCache:
        """The files, shared by all readers of this process."""
        return _disk(self.settings)

    def owns(self, refs: "Iterable[BlobRef]") -> None:
        """Note which blobs the reader may read: they are not replaced by each other."""
        names = [name for ref in refs for name in (ref.digest, ref.leaves) if name is not None]
        self.use.owns(names)

    def find_whole(self, digest: str, nbytes: int | None = None) -> bytes | None:
        """Return an object by the digest of its content; None if it is not there."""
        return self.disk.find_whole(digest, nbytes)

    def read_leaves(self, blob: LeavesOf, start: int, out: memoryview) -> list[tuple[int, int]]:
        """Fill `out` with what the cache has; see `DiskCache.read_leaves`."""
        return self.disk.read_leaves(self.use, blob, start, out)

    def offer_leaves(self, digest: str, start: int, data: Data, table: bytes) -> None:
        """Keep verified leaves, from offset `start` on; later, and if they fit."""
        if self._is_direct:
            for page, leaves in split_pages(start, data, table):
                self.disk.keep_page(self.use, digest, page, leaves)
            return
        self.disk.writer.offer_leaves(self.use, digest, start, data, table)

    def offer_whole(self, digest: str, data: Data) -> None:
        """Keep an object that was compared with its digest; later, and if it fits."""
        if self._is_direct:
            self.disk.keep_whole(self.use, digest, data)
            return
        self.disk.writer.offer_whole(self.use, digest, data)

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until everything that was offered is written or dropped."""
        return self.disk.writer.flush(timeout_s)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the settings."""
        return type(self), (self.settings, self.use)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.settings.directory)!r})"


def open_cache(
    directory: str | os.PathLike[str] | None = None,
    *,
    limit: int | None = None,
    min_free: int | None = None,
) -> BlobCache:
    """Return the cache in a directory; makes no file.

    By default `RELIVE_CACHE_DIR`, `RELIVE_CACHE_LIMIT` and `RELIVE_CACHE_FREE`.

    Example:
        >>> from relive.store.cache import open_cache
        >>> cache = open_cache("cache", limit=10 << 20)
        >>> cache.find_whole("0" * 64) is None
        True
    """
    return BlobCache(
        Settings(
            config.cache_directory()
            if directory is None
            else Path(absolute_path(directory, "a cache")),
            config.cache_limit() if limit is None else limit,
            config.cache_free() if min_free is None else min_free,
        )
    )


_disks: dict[Settings, DiskCache] = {}
_disks_lock = threading.Lock()


def _disk(settings: Settings) -> DiskCache:
    found = _disks.get(settings)
    if found is None:
        with _disks_lock:
            found = _disks.setdefault(settings, DiskCache(settings))
    return found


def _after_fork() -> None:
    global _disks_lock  # noqa: PLW0603 - one for each process
    _disks_lock = threading.Lock()
    for disk in _disks.values():
        disk.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def _read_file(path: str) -> bytes | None:
    try:
        handle = open_file(path)
    except (OSError, InvalidError):
        return None
    try:
        size = os.fstat(handle).st_size
        data = os.pread(handle, size, 0)
        while 0 < len(data) < size:
            more = os.pread(handle, size - len(data), len(data))
            if not more:
                break
            data += more
    except OSError:
        return None
    finally:
        os.close(handle)
    return data


def _write_all(handle: int, data: Data) -> None:
    view = memoryview(data).cast("B")
    while view:
        view = view[os.write(handle, view) :]
