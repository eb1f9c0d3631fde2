"""Puts files that were just uploaded into the cache: their publisher often reads them next."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from relive.store.blobs import BlobRef
from relive.store.cache.disk import open_cache
from relive.store.cache.eviction import ReaderUse
from relive.store.cache.layout import PAGE_BYTES
from relive.store.cache.page import Leaf, split_pages
from relive.store.leaves import find_damage
from relive.store.roots.memory import MemoryRoot
from relive.store.roots.root import Root

_NEVER_EVICTS: Final = ReaderUse(opened_ns=0)


def seed_blob(root: Root, ref: BlobRef, path: Path, table: bytes) -> bool:
    """Copy a file that is a blob of a remote root into the cache; return whether it fits.

    Nothing is evicted for it, and no error is raised: a file that changed meanwhile, a full disk
    or one that cannot be written are the same as no cache. Directories are read in place.
    """
    if root.path is not None or isinstance(root, MemoryRoot):
        return False
    disk = open_cache().disk
    if not disk.settings.limit:
        return False
    try:
        if ref.leaves is None:
            return disk.keep_verified(_NEVER_EVICTS, ref.digest, path.read_bytes())
        return disk.keep_verified(_NEVER_EVICTS, ref.leaves, table) and all(
            disk.keep_page(_NEVER_EVICTS, ref.digest, page, leaves)
            for page, leaves in _pages(ref, path, table)
        )
    except (OSError, ValueError):
        return False


def _pages(ref: BlobRef, path: Path, table: bytes) -> Iterator[tuple[int, dict[int, Leaf]]]:
    """Yield the pages of a file; `ValueError` if it is not the blob."""
    start = 0
    with path.open("rb") as file:
        while data := file.read(PAGE_BYTES):
            if start + len(data) > ref.nbytes or find_damage(data, start, table) is not None:
                raise ValueError
            yield from split_pages(start, data, table)
            start += len(data)
    if start != ref.nbytes:
        raise ValueError
