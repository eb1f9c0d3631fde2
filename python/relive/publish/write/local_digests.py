"""Digests of local files, kept so that unchanged files are not hashed again.

There is a small file per directory in the cache, `digests/<hash of the directory>.json`, which
begins with its own SHA-256. It is replaced as a whole: of two processes that save at once, one
loses its entries and hashes those files again.
"""

import contextlib
import hashlib
import json
import os
import re
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from relive.publish.write.parquet_files import FileIdentity
from relive.store import config
from relive.store.atomic import make_directory, read_file, whole_file
from relive.store.blobs import LEAF_BYTES, BlobRef

# A file that changed just before it was read may change again within the same tick of its clock.
_SETTLED_NS: Final = 2_000_000_000
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_ENTRY: Final = 6


class LocalDigests:
    """The digests of files that were hashed before, by path, size, time, and inode.

    A cache that is damaged or cannot be read or written is as good as an empty one. Safe with
    several processes; used by one thread at a time.

    Args:
        directory: Where they are kept. None is `digests` in `RELIVE_CACHE_DIR`.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory or config.cache_directory() / "digests"
        self._known: dict[Path, dict[str, Any]] = {}
        self._added: defaultdict[Path, dict[str, Any]] = defaultdict(dict)

    def find(self, path: Path, identity: FileIdentity) -> BlobRef | None:
        """Return the blob that a file with this identity was, None if that is not known."""
        folder = path.parent
        if folder not in self._known:
            self._known[folder] = self._load(folder)
        entry: Any = self._known[folder].get(path.name)
        if not _is_entry(entry) or entry[:4] != list(identity):
            return None
        return BlobRef(entry[4], identity.size, entry[5])

    def add(self, path: Path, identity: FileIdentity, ref: BlobRef) -> None:
        """Remember the blob of a file with this identity, if it did not change just now."""
        if time.time_ns() - identity.mtime_ns < _SETTLED_NS:
            return
        self._added[path.parent][path.name] = [*identity, ref.digest, ref.leaves]

    def save(self) -> None:
        """Write what was added to the cache."""
        for folder, added in self._added.items():
            names = self._load(folder)
            kept = {name: entry for name, entry in names.items() if (folder / name).exists()}
            body = json.dumps({"directory": os.fspath(folder), "files": kept | added}).encode()
            # A missing digest costs time, no more.
            with contextlib.suppress(OSError):
                make_directory(self._directory)
                with whole_file(self._file(folder), overwrite=True) as file:
                    file.write(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
            self._known[folder] = kept | added
        self._added.clear()

    def _file(self, folder: Path) -> Path:
        name = hashlib.sha256(os.fsencode(folder)).hexdigest()
        return self._directory / f"{name[:32]}.json"

    def _load(self, folder: Path) -> dict[str, Any]:
        try:
            data = read_file(self._file(folder))
        except OSError:
            return {}
        digest, _, body = (data or b"").partition(b"\n")
        if hashlib.sha256(body).hexdigest().encode() != digest:
            return {}
        try:
            content = json.loads(body)
        except ValueError:
            return {}
        if not isinstance(content, dict) or content.get("directory") != os.fspath(folder):
            return {}
        files = content.get("files")
        return files if isinstance(files, dict) else {}


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, list) or len(entry) != _ENTRY:
        return False
    *numbers, digest, leaves = entry
    return (
        all(isinstance(number, int) for number in numbers)
        and _is_digest(digest)
        and (_is_digest(leaves) if numbers[0] > LEAF_BYTES else leaves is None)
    )


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None
