"""Blobs in memory, and a cache over them, for tests."""

import fcntl
import os
import secrets
import threading
from pathlib import Path
from typing import Any, Self

import numpy as np

from relive.store.blobs import BlobRef, Blobs, blob_key, describe_bytes
from relive.store.cache import BlobCache, open_cache
from relive.store.roots import Root, open_root
from relive.store.roots.memory import MemoryRoot

MIB = 1 << 20
LIMIT = 64 * MIB


class CountingRoot(MemoryRoot):
    """A root in memory that counts what is read of it."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name or secrets.token_hex(8))
        self.requested: list[tuple[str, int, int]] = []

    def read_ranges(self, ranges: Any, *arguments: Any, **options: Any) -> Any:
        """Read, and remember what was asked for."""
        self.requested += [each for each in ranges if each[1] < each[2]]
        return super().read_ranges(ranges, *arguments, **options)

    @property
    def nbytes(self) -> int:
        """The bytes that were requested."""
        return sum(stop - start for _, start, stop in self.requested)


def publish(root: Root, data: bytes) -> BlobRef:
    """Store a blob and its leaf table."""
    ref, table = describe_bytes(data)
    root.put(blob_key(ref.digest), data)
    if ref.leaves is not None:
        root.put(blob_key(ref.leaves), table)
    return ref


def random_bytes(nbytes: int, seed: int = 0) -> bytes:
    """Return bytes that do not repeat."""
    return np.random.default_rng(seed).bytes(nbytes)


def cache_in(directory: Path, limit: int = LIMIT, min_free: int = 0) -> BlobCache:
    """Return a cache."""
    return open_cache(directory, limit=limit, min_free=min_free)


def read_all(blobs: Blobs, ref: BlobRef) -> bytes:
    """Read a blob, and wait until the cache has it."""
    data = bytes(blobs.read_many([(ref, 0, ref.nbytes)])[0])
    assert blobs.cache is not None
    assert blobs.cache.flush(30)
    return data


def allocated(directory: Path) -> int:
    """Return the bytes that a directory allocates, counted in another way than the cache does."""
    total = 0
    for folder, _, files in os.walk(directory):
        for path in [folder, *(f"{folder}/{name}" for name in files)]:
            try:
                total += os.lstat(path).st_blocks * 512
            except OSError:
                continue
    return total


def measured(directory: Path) -> int:
    """Return what a cache allocates at one moment.

    Writers wait meanwhile: a file that is renamed or replaced would be counted twice.
    """
    path = directory / "blobs" / "usage"
    if not path.exists():
        return 0
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        return allocated(directory)


class Sampler:
    """Measures a directory all the time."""

    def __init__(self, directory: Path) -> None:
        self.most = 0
        self._directory = directory
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(0.002):
            self.most = max(self.most, measured(self._directory))


def page_files(directory: Path) -> list[Path]:
    """Return the files of all pages."""
    return sorted((directory / "blobs" / "pages").rglob("*.*"))


def open_memory() -> Root:
    """Return an empty root in memory."""
    return open_root(f"memory://{secrets.token_hex(8)}")
