"""Blobs: objects named by the SHA-256 of their content, verified wherever they are read."""

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, Protocol, TypeVar

from relive._forks import call_after_fork
from relive.errors import CorruptError, OutOfRangeError
from relive.store.atomic import open_file, storage_error
from relive.store.digest import RunningDigest
from relive.store.leaves import (
    DIGEST_BYTES,
    LEAF_BYTES,
    LeafHasher,
    find_damage,
    leaf_count,
    leaf_table,
    round_out,
)
from relive.store.remote.ranges import Data, KeyRange
from relive.store.roots.root import Root

if TYPE_CHECKING:
    from relive.store.cache import BlobCache

__all__ = [
    "LEAF_BYTES",
    "BlobFile",
    "BlobRef",
    "BlobStats",
    "Blobs",
    "blob_key",
    "describe_bytes",
    "describe_file",
    "leaf_table",
]

_READ_BYTES: Final = 1 << 20
# Leaf tables of 128 GiB of blobs.
_MAX_TABLE_BYTES: Final = 64 << 20
# Which leaves of 1 TiB of blobs in a directory have been verified.
_MAX_FLAG_BYTES: Final = 16 << 20
# Shorter results are copied: a view would keep the whole response in memory.
_COPY_BYTES: Final = 64 << 10


class BlobRef(NamedTuple):
    """A blob: its digest, its size, and the digest of its leaf table (None up to 64 KiB)."""

    digest: str
    nbytes: int
    leaves: str | None

    @property
    def table_nbytes(self) -> int:
        """The size of the leaf table; 0 if there is none."""
        return 0 if self.leaves is None else leaf_count(self.nbytes) * DIGEST_BYTES


class BlobStats(NamedTuple):
    """What was read so far: by requests in a store, by reads of files in a directory."""

    requests: int
    nbytes: int
    hits: int = 0
    """How many runs of leaves, each of one page at most, were read from the cache instead."""
    hit_bytes: int = 0


def blob_key(digest: str) -> str:
    """Return the key of a blob under its root."""
    return f"blobs/{digest[:2]}/{digest[2:4]}/{digest}"


def describe_bytes(data: Data) -> tuple[BlobRef, bytes]:
    """Return the description of a blob, and its leaf table, which is empty up to 64 KiB."""
    return _described(hashlib.sha256(data).hexdigest(), len(data), leaf_table([data]))


def describe_file(path: str | os.PathLike[str]) -> tuple[BlobRef, bytes]:
    """Return the same of a file, which is read once and hashed on two threads."""
    whole, leaves = RunningDigest(), LeafHasher()
    try:
        with open(path, "rb", buffering=0, opener=open_file) as file:
            while piece := file.read(_READ_BYTES):
                whole.update(piece)
                leaves.update(piece)
    except OSError as error:
        raise storage_error(error, path, "read") from error
    return _described(whole.finish(), whole.size, leaves.finish())


def _described(digest: str, nbytes: int, table: bytes) -> tuple[BlobRef, bytes]:
    if nbytes <= LEAF_BYTES:
        return BlobRef(digest, nbytes, None), b""
    return BlobRef(digest, nbytes, hashlib.sha256(table).hexdigest()), table


class Blobs:
    """The blobs of a root. Every byte is verified before it is returned. Thread-safe, picklable.

    Leaf tables are kept in memory. Where the root is a directory, blobs are read in place, and a
    leaf is verified when this object first reads it. What a `cache` has is not requested, and
    what is requested is offered to it.
    """

    def __init__(self, root: Root, cache: "BlobCache | None" = None) -> None:
        self.root = root
        self.cache = cache if root.path is None else None
        self._lock = threading.Lock()
        self._requests = self._nbytes = self._hits = self._hit_bytes = 0
        self._tables = _Bounded[bytes](_MAX_TABLE_BYTES)
        self._awaited: dict[str, threading.Event] = {}
        self._verified = _Bounded[bytearray](_MAX_FLAG_BYTES)
        call_after_fork(self)

    @property
    def stats(self) -> BlobStats:
        """What was read so far, leaf tables included."""
        return BlobStats(self._requests, self._nbytes, self._hits, self._hit_bytes)

    def file(self, ref: BlobRef, name: str | None = None) -> "BlobFile":
        """Return a blob as a file that is read by ranges; makes no request.

        `name` is its name in messages.
        """
        return BlobFile(self, ref, name)

    def path(self, ref: BlobRef) -> Path | None:
        """Return the path of a blob in a directory root, which may not exist; else None."""
        return None if self.root.path is None else self.root.path / blob_key(ref.digest)

    def knows_table(self, ref: BlobRef) -> bool:
        """Return whether a blob can be read without a request for its leaf table."""
        return ref.leaves is None or self._table(ref.leaves) is not None

    def keep_table(self, digest: str, table: bytes) -> None:
        """Keep a leaf table in memory; it must have this digest."""
        with self._lock:
            self._tables.put(digest, table)
            awaited = self._awaited.pop(digest, None)
        if awaited is not None:
            awaited.set()

    def set_when_known(self, ref: BlobRef, event: threading.Event) -> None:
        """Set an event when the leaf table of a blob is kept."""
        with self._lock:
            if ref.leaves is not None:
                self._awaited[ref.leaves] = event

    def read(self, ref: BlobRef) -> bytes:
        """Return a whole blob, verified by its digest."""
        if self.cache is not None:
            return bytes(self.read_many([(ref, 0, ref.nbytes)])[0])
        ranges = [(blob_key(ref.digest), 0, ref.nbytes)]
        data = bytes(self.root.read_ranges(ranges, lambda _, __, part: self._count(part))[0])
        if hashlib.sha256(data).hexdigest() != ref.digest:
            raise self._damaged(ref.digest, 0, ref.nbytes)
        return data

    def read_many(
        self, reads: Sequence[tuple[BlobRef, int, int]], *, gap: int | None = None
    ) -> list[Data]:
        """Return bytes `start` to `stop` of each blob, in order, in one round trip.

        Ranges are rounded out to leaves; leaf tables that are not known yet are requested at the
        same time as the data. A blob without a leaf table is read as a whole. Ranges of a blob
        that are then at most `gap` bytes apart (None: 256 KiB) share a request. A result over
        64 KiB may be a read-only memoryview. Wrong bytes are a `CorruptError`.
        """
        if self.cache is None:
            return _Read(self, reads).results(gap)
        from relive.store.cache.cached_read import CachedRead

        for read in reads:
            _check_range(*read)
        cached = CachedRead(self, self.cache, reads)
        found = cached.results(lambda missing: _Read(self, missing).results(gap))
        with self._lock:
            self._hits += cached.pages
            self._hit_bytes += cached.nbytes
        return found

    def known_table(self, ref: BlobRef) -> bytes | None:
        """Return the verified leaf table of a blob if memory or the cache has it."""
        if ref.leaves is None:
            return None
        table = self._table(ref.leaves)
        if table is None and self.cache is not None:
            table = self.cache.find_whole(ref.leaves, ref.table_nbytes)
            if table is not None:
                self.keep_table(ref.leaves, table)
        return table if table is not None and len(table) == ref.table_nbytes else None

    def after_fork(self) -> None:
        """Forget the locks and threads of the parent process."""
        self._lock = threading.Lock()
        self._awaited = {}

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the root and the cache."""
        return type(self), (self.root, self.cache)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.root.name!r})"

    def _count(self, data: Data) -> None:
        with self._lock:
            self._requests += 1
            self._nbytes += len(data)

    def _damaged(self, digest: str, start: int, stop: int) -> CorruptError:
        return CorruptError(
            f"`{self.root.uri(blob_key(digest))}` is damaged: bytes {start} to {stop} do not match"
            " their digest",
            hint="restore the blob from a copy of the root, or publish its data again",
        )

    def _table(self, digest: str) -> bytes | None:
        with self._lock:
            return self._tables.get(digest)

    def _flags(self, ref: BlobRef) -> bytearray | None:
        """Return which leaves of a blob were verified; None if every read must be."""
        if self.root.path is None:
            return None
        with self._lock:
            flags = self._verified.get(ref.digest)
            if flags is None or len(flags) != leaf_count(ref.nbytes):
                flags = bytearray(leaf_count(ref.nbytes))
                self._verified.put(ref.digest, flags)
            return flags


class _Read:
    """One call of `read_many`: what is requested, and what is still to be verified."""

    def __init__(self, blobs: Blobs, reads: Sequence[tuple[BlobRef, int, int]]) -> None:
        self._blobs = blobs
        self._reads = reads
        self._lock = threading.Lock()
        self._refs: dict[str, BlobRef] = {}  # by the key of the blob
        self._flags: dict[str, bytearray | None] = {}
        self._tables: dict[str, bytes] = {}  # by digest
        self._expected: dict[str, BlobRef] = {}  # tables that are requested, by key
        self._waiting: dict[str, list[tuple[str, int, Data]]] = {}  # by digest of the table
        self._data_ranges = [self._plan(*read) for read in reads]

    def results(self, gap: int | None) -> list[Data]:
        """Request everything and return the verified bytes."""
        tables = [(key, 0, ref.nbytes) for key, ref in self._expected.items()]
        # Tables are first, so that most of the data can be verified when it arrives.
        wanted = [*tables, *self._data_ranges]
        found = self._blobs.root.read_ranges(wanted, self._check, gap=gap)
        for ref, data in zip(self._expected.values(), found, strict=False):
            if ref.digest not in self._tables:  # it came in several responses
                self._add_table(ref, data)
        for (key, _, _), data in zip(self._data_ranges, found[len(tables) :], strict=True):
            self._check_whole(self._refs[key], data)
        if any(self._waiting.values()):
            raise AssertionError("bytes were read and not verified")
        return [
            _part(data, start - begin, stop - begin)
            for (_, start, stop), (_, begin, _), data in zip(
                self._reads, self._data_ranges, found[len(tables) :], strict=True
            )
        ]

    def _plan(self, ref: BlobRef, start: int, stop: int) -> KeyRange:
        _check_range(ref, start, stop)
        key = blob_key(ref.digest)
        if self._refs.setdefault(key, ref) != ref:
            raise CorruptError(f"blob `{ref.digest}` has two sizes or two leaf tables")
        if key not in self._flags:
            self._flags[key] = self._blobs._flags(ref)  # noqa: SLF001 - of this module
        if start == stop:
            return key, start, stop
        flags = self._flags[key]
        if flags is not None and all(flags[start // LEAF_BYTES : leaf_count(stop)]):
            return key, start, stop
        if ref.leaves is None:
            return key, 0, ref.nbytes
        self._want_table(ref, ref.leaves)
        return key, *round_out(start, stop, ref.nbytes)

    def _want_table(self, ref: BlobRef, leaves: str) -> None:
        if leaves in self._tables:
            return
        table = self._blobs._table(leaves)  # noqa: SLF001 - of this module
        if table is not None and len(table) == ref.table_nbytes:
            self._tables[leaves] = table
        else:
            asked = BlobRef(leaves, ref.table_nbytes, None)
            if self._expected.setdefault(blob_key(leaves), asked) != asked:
                raise CorruptError(f"leaf table `{leaves}` has two sizes")
            self._waiting.setdefault(leaves, [])

    def _check(self, key: str, start: int, data: Data) -> None:
        """Verify a response, on the thread that received it; keep it if its table is missing."""
        self._blobs._count(data)  # noqa: SLF001 - of this module
        table_ref = self._expected.get(key)
        if table_ref is not None and not start and len(data) == table_ref.nbytes:
            self._add_table(table_ref, data)
        ref = self._refs.get(key)
        if ref is None or ref.leaves is None:
            return  # whole blobs are verified when all their parts are there
        with self._lock:
            table = self._tables.get(ref.leaves)
            if table is None and ref.leaves in self._waiting:
                self._waiting[ref.leaves].append((key, start, data))
                return
        if table is not None:
            self._check_leaves(key, start, data, table)

    def _add_table(self, ref: BlobRef, data: Data) -> None:
        if hashlib.sha256(data).hexdigest() != ref.digest:
            raise self._blobs._damaged(ref.digest, 0, ref.nbytes)  # noqa: SLF001 - of this module
        table = bytes(data)
        self._blobs.keep_table(ref.digest, table)
        if self._blobs.cache is not None:
            self._blobs.cache.offer_whole(ref.digest, table)
        with self._lock:
            self._tables[ref.digest] = table
            waiting = self._waiting.pop(ref.digest, [])
        for key, start, part in waiting:
            self._check_leaves(key, start, part, table)

    def _check_leaves(self, key: str, start: int, data: Data, table: bytes) -> None:
        flags = self._flags[key]
        if start % LEAF_BYTES and flags is not None:
            return  # only verified leaves are read by ranges that do not begin with one
        damaged = find_damage(data, start, table, flags)
        if damaged is not None:
            ref = self._refs[key]
            end = min(damaged + LEAF_BYTES, ref.nbytes)
            raise self._blobs._damaged(ref.digest, damaged, end)  # noqa: SLF001 - of this module
        if self._blobs.cache is not None:
            self._blobs.cache.offer_leaves(self._refs[key].digest, start, data, table)

    def _check_whole(self, ref: BlobRef, data: Data) -> None:
        if ref.leaves is not None or not data:
            return
        flags = self._flags[blob_key(ref.digest)]
        if flags is not None and all(flags):
            return
        if hashlib.sha256(data).hexdigest() != ref.digest:
            raise self._blobs._damaged(ref.digest, 0, ref.nbytes)  # noqa: SLF001 - of this module
        if flags is not None:
            flags[:] = bytes([1]) * len(flags)
        if self._blobs.cache is not None:
            self._blobs.cache.offer_whole(ref.digest, data)


class _Sized(Protocol):
    def __len__(self) -> int: ...


_S = TypeVar("_S", bound=_Sized)


class _Bounded(Generic[_S]):
    """The values that were used last, up to a total size."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._total = 0
        self._values: OrderedDict[str, _S] = OrderedDict()

    def get(self, key: str) -> _S | None:
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: str, value: _S) -> None:
        old = self._values.pop(key, None)
        self._total += len(value) - (0 if old is None else len(old))
        self._values[key] = value
        while self._total > self._most and len(self._values) > 1:
            _, dropped = self._values.popitem(last=False)
            self._total -= len(dropped)


class BlobFile:
    """A blob as a `RangedFile`: ranges of it, verified. Thread-safe; pickles small."""

    __slots__ = ("_blobs", "_name", "_ref")

    def __init__(self, blobs: Blobs, ref: BlobRef, name: str | None = None) -> None:
        self._blobs, self._ref, self._name = blobs, ref, name

    @property
    def name(self) -> str:
        """The name in messages."""
        return self._name or self._blobs.root.uri(blob_key(self._ref.digest))

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self._ref.nbytes

    @property
    def ref(self) -> BlobRef:
        """The blob."""
        return self._ref

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of each `(start, stop)`, in the requested order, in one round trip."""
        found = self._blobs.read_many([(self._ref, start, stop) for start, stop in ranges])
        return [each if isinstance(each, bytes) else bytes(each) for each in found]

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the root, the description and the name."""
        return type(self), (self._blobs, self._ref, self._name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.size} bytes)"


def _check_range(ref: BlobRef, start: int, stop: int) -> None:
    if not 0 <= start <= stop <= ref.nbytes:
        raise OutOfRangeError(
            f"bytes {start} to {stop} are out of range: blob `{ref.digest}` has {ref.nbytes} bytes"
        )


def _part(data: Data, start: int, stop: int) -> Data:
    if not start and stop == len(data):
        return data
    view = memoryview(data)[start:stop]
    return bytes(view) if len(view) <= _COPY_BYTES else view
