"""Which pages may be replaced, so that an epoch larger than the cache still finds half of itself.

A reader replaces only pages of blobs that it does not read itself and that were last used before
it was opened, and pages that have not been used for twice as long as the longest time after which
it used a page again. A page that is needed once in every epoch is never one of these, whatever the
order; the least recently used page of an epoch larger than the cache would be just the one that is
needed next.
"""

import os
import random
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

from relive._forks import call_after_fork
from relive.store.cache.layout import PAGES, WHOLE, is_digest, parse_page_name
from relive.store.cache.recency import Recency

WHOLE_PAGE: Final = -1
"""What objects that are kept as a whole have instead of the number of a page."""
_SAMPLE: Final = 16
_FOLDERS: Final = 4
_FIRST_PAUSE_S: Final = 0.5
_MAX_PAUSE_S: Final = 30.0
_IDLE: Final = 2
_ENOUGH: Final = 8


class ReaderUse:
    """When a reader was opened and how it uses pages again. Thread-safe; picklable."""

    def __init__(self, opened_ns: int | None = None) -> None:
        self.opened_ns = time.time_ns() if opened_ns is None else opened_ns
        self._lock = threading.Lock()
        self._own: frozenset[str] = frozenset()
        self._longest_ns = 0
        self._seen = 0
        self._pause_s = _FIRST_PAUSE_S
        self._paused_until = 0.0
        call_after_fork(self)

    def owns(self, digests: Iterable[str]) -> None:
        """Note which blobs the reader may read."""
        with self._lock:
            self._own |= frozenset(digests)

    def saw(self, after_ns: int | None) -> None:
        """Note that a page was used again after this time."""
        if after_ns is None or after_ns > time.time_ns() - self.opened_ns:
            return  # its first use was by another reader
        with self._lock:
            self._longest_ns = max(self._longest_ns, after_ns)
            self._seen += 1

    def may_replace(self, victim: "Victim") -> bool:
        """Check whether a page may be replaced by one that this reader needs."""
        if victim.last_ns < self.opened_ns and victim.digest not in self._own:
            return True
        idle_ns = time.time_ns() - victim.last_ns
        return self._seen >= _ENOUGH and idle_ns > _IDLE * self._longest_ns

    @property
    def is_paused(self) -> bool:
        """Whether nothing could be replaced a short time ago."""
        return time.monotonic() < self._paused_until

    def pause(self) -> None:
        """Do not look for pages to replace for a while, longer after every time."""
        self._paused_until = time.monotonic() + self._pause_s
        self._pause_s = min(_MAX_PAUSE_S, 2 * self._pause_s)

    def resume(self) -> None:
        """Note that a page was replaced."""
        self._pause_s, self._paused_until = _FIRST_PAUSE_S, 0.0

    def after_fork(self) -> None:
        """Forget the lock of the parent process."""
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle when it was opened: a worker process is the same reader."""
        return type(self), (self.opened_ns,)


class Victim(NamedTuple):
    """A file that may be deleted."""

    path: str
    digest: str
    page: int
    last_ns: int


def find_victims(
    base: Path,
    recency: Recency,
    pinned: frozenset[str],
    may_replace: Callable[[Victim], bool],
) -> list[Victim]:
    """Return files that may be replaced out of a random sample, the least recently used first.

    Objects that are kept as a whole are small and needed by many pages: they come last.
    """
    for kind in (PAGES, WHOLE):
        folders = _names(f"{base}/{kind}")
        for folder in random.sample(folders, min(_FOLDERS, len(folders))):
            names = _names(f"{base}/{kind}/{folder}")
            chosen = random.sample(names, min(_SAMPLE, len(names)))
            found = [
                each
                for name in chosen
                if (each := as_victim(f"{base}/{kind}/{folder}/{name}", recency)) is not None
                and each.digest not in pinned
                and may_replace(each)
            ]
            if found:
                return sorted(found, key=lambda each: each.last_ns)
    return []


def as_victim(path: str, recency: Recency) -> Victim | None:
    """Return a file of the cache with its last use; None if it is not a page or object."""
    name = path.rpartition("/")[2]
    digest, page = parse_page_name(name) or (name, WHOLE_PAGE)
    if not is_digest(digest):
        return None
    last_ns = recency.last_ns(digest, page)
    if not last_ns:
        try:
            last_ns = os.stat(path).st_mtime_ns  # noqa: PTH116 - faster than a Path
        except OSError:
            return None
    return Victim(path, digest, page, last_ns)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - faster than a Path
    except OSError:
        return []
