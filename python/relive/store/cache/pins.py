"""Blobs that are not evicted: a file of digests for each name that pins them."""

import contextlib
import hashlib
import math
import os
import secrets
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from relive.store.atomic import open_reader
from relive.store.cache.layout import is_digest

_KEPT_S: Final = 1.0


class Pins:
    """The pinned blobs of a cache. Thread-safe; other processes see changes within a second."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._known: frozenset[str] = frozenset()
        self._read_at = -math.inf

    def digests(self) -> frozenset[str]:
        """Return the digests of all pinned blobs."""
        with self._lock:
            if time.monotonic() - self._read_at > _KEPT_S:
                self._known = frozenset(
                    line for _, lines in self._all() for line in lines if is_digest(line)
                )
                self._read_at = time.monotonic()
            return self._known

    def names(self) -> list[str]:
        """Return what is pinned."""
        return sorted(lines[0] for _, lines in self._all() if lines)

    def pin(self, name: str, digests: Iterable[str]) -> None:
        """Pin blobs under a name, in addition to those that it pins; may raise `OSError`."""
        path = self._path(name)
        try:
            known = _lines(path)[1:]
        except (OSError, ValueError):
            known = []
        self._folder.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{secrets.token_hex(8)}")
        try:
            temporary.write_text("\n".join([name, *sorted({*known, *digests})]))
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        self._read_at = -math.inf

    def unpin(self, name: str) -> bool:
        """Remove a name; return whether it pinned anything. May raise `OSError`."""
        path = self._path(name)
        is_there = path.exists()
        path.unlink(missing_ok=True)
        self._read_at = -math.inf
        return is_there

    def forget(self) -> None:
        """Start anew in a forked process."""
        self._lock = threading.Lock()
        self._read_at = -math.inf

    def _path(self, name: str) -> Path:
        return self._folder / hashlib.sha256(name.encode()).hexdigest()

    def _all(self) -> list[tuple[str, list[str]]]:
        found = []
        with contextlib.suppress(OSError):
            for path in os.scandir(self._folder):
                with contextlib.suppress(OSError, ValueError):
                    if not path.name.startswith("."):
                        found.append((path.name, _lines(path)))
        return found


def _lines(path: os.PathLike[str]) -> list[str]:
    with open_reader(path) as file:
        return file.read().decode().splitlines()
