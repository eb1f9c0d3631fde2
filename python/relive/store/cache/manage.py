"""What a cache has, how it is made smaller, and whether its files are intact."""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from relive.errors import InvalidError, StorageError
from relive.model.report import Progress
from relive.store.atomic import open_reader
from relive.store.cache import layout
from relive.store.cache.disk import DiskCache
from relive.store.cache.eviction import as_victim
from relive.store.cache.page import open_page
from relive.store.cache.usage import allocated

_STALE_CLAIM_S: Final = 60.0


@dataclass(frozen=True)
class CacheStats:
    """How large a cache is."""

    directory: str
    bytes: int
    """What it allocates on the disk, with directories and temporary files."""
    limit: int
    free: int
    """What the disk has left."""
    pages: int
    objects: int
    """Leaf tables, footers and small blobs."""
    documents: int
    """Pointers, manifests and lists as they were last seen."""
    pinned: tuple[str, ...]


@dataclass(frozen=True)
class VerifyReport:
    """How many files of a cache were checked, and which were damaged and deleted."""

    checked: int
    bytes: int
    damaged: tuple[str, ...]


def check_usable(disk: DiskCache, *, writes: bool = False) -> None:
    """Raise a `StorageError` if a cache cannot be used; reads then go on without it.

    A cache that does not exist yet must be possible to create. One that can be read but not
    written is in use; `writes` refuses it too.
    """
    place = os.fspath(disk.base)
    while not os.path.exists(place) and place != "/":  # noqa: PTH110 - a Path may raise here
        place = os.path.dirname(place)  # noqa: PTH120 - as above
    is_there = place == os.fspath(disk.base)
    needed = os.X_OK | (os.R_OK if is_there else 0) | (0 if is_there and not writes else os.W_OK)
    if not os.path.isdir(place):  # noqa: PTH112 - as above
        problem = f"`{place}` is not a directory"
    elif not os.access(place, needed):
        problem = f"`{place}` cannot be {'written' if needed & os.W_OK else 'read'}"
    else:
        return
    raise StorageError(
        f"the cache in `{disk.settings.directory}` cannot be used: {problem}",
        hint="set RELIVE_CACHE_DIR to a directory that you can write",
    )


def cache_stats(disk: DiskCache) -> CacheStats:
    """Count the files of a cache; one that cannot be used is a `StorageError`."""
    check_usable(disk)
    counts = {
        kind: sum(1 for _ in _files(disk.base / kind))
        for kind in (layout.PAGES, layout.WHOLE, layout.SEEN)
    }
    free = 0
    place = disk.base
    while not place.exists() and place != place.parent:
        place = place.parent
    with contextlib.suppress(OSError):
        found = os.statvfs(place)
        free = found.f_bavail * found.f_frsize
    return CacheStats(
        os.fspath(disk.settings.directory),
        allocated(disk.base) if disk.base.exists() else 0,
        disk.settings.limit,
        free,
        counts[layout.PAGES],
        counts[layout.WHOLE],
        counts[layout.SEEN],
        tuple(disk.pins.names()),
    )


def shrink(disk: DiskCache, limit: int) -> int:
    """Delete the least recently used files until the cache allocates at most `limit` bytes.

    Pinned blobs and documents stay. Returns the bytes that it allocates then.
    """
    check_usable(disk, writes=True)
    if not disk.base.exists():
        return 0
    try:
        with disk.usage.locked():
            disk.usage.count()
            _remove_stale_claims(disk.base / layout.CLAIMS)
            pinned = disk.pins.digests()
            for kind in (layout.PAGES, layout.WHOLE):
                if disk.usage.used <= limit:
                    break
                found = [as_victim(path, disk.recency) for path in _files(disk.base / kind)]
                for victim in sorted(
                    (each for each in found if each is not None and each.digest not in pinned),
                    key=lambda each: each.last_ns,
                ):
                    if disk.usage.used <= limit:
                        break
                    disk.remove(victim.path)
            return disk.usage.used
    except OSError as error:
        raise StorageError(f"cannot change the cache `{disk.base}`: {error.strerror}") from error


def verify(disk: DiskCache, *, progress: Progress | None = None) -> VerifyReport:
    """Compare every file of a cache with its digests, and delete those that are damaged."""
    check_usable(disk, writes=True)
    paths = [
        path
        for kind in (layout.PAGES, layout.WHOLE, layout.SEEN)
        for path in _files(disk.base / kind)
    ]
    nbytes, checked, damaged = 0, 0, []
    for number, path in enumerate(paths):
        try:
            size = os.stat(path).st_size  # noqa: PTH116 - faster than a Path
            is_intact = _is_intact(path)
        except OSError:
            continue  # evicted meanwhile, or it cannot be read
        checked, nbytes = checked + 1, nbytes + size
        if not is_intact:
            damaged.append(os.path.relpath(path, disk.settings.directory))
            with contextlib.suppress(OSError), disk.usage.locked():
                disk.remove(path)
        if progress is not None:
            progress(number + 1, len(paths))
    return VerifyReport(checked, nbytes, tuple(damaged))


def _is_intact(path: str) -> bool:
    name = path.rpartition("/")[2]
    if layout.parse_page_name(name) is not None:
        with open_page(path) as page:
            try:
                return page is not None and page.is_intact()
            except ValueError:
                return False
    try:
        with open_reader(path) as file:
            data = file.read()
    except InvalidError:  # a named pipe, for example
        return False
    if layout.is_digest(name):
        return hashlib.sha256(data).hexdigest() == name
    header, _, body = data.partition(b"\n")
    try:
        checksum, _ = json.loads(header)
    except (ValueError, TypeError):
        return False
    return bool(hashlib.sha256(body).hexdigest() == checksum)


def _files(folder: Path) -> Iterator[str]:
    for parent, _, names in os.walk(folder):
        for name in names:
            yield f"{parent}/{name}"


def _remove_stale_claims(folder: Path) -> None:
    for path in _files(folder):
        with contextlib.suppress(OSError):
            if time.time() - os.stat(path).st_mtime > _STALE_CLAIM_S:  # noqa: PTH116 - faster
                os.unlink(path)  # noqa: PTH108 - as above
