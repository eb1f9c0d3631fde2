"""`CachedRoot`: a root whose small documents are remembered, for use without a network.

Pointers, manifests and lists are kept as they were last seen. A pointer is asked for again
whenever a dataset is opened; if the server cannot be reached, the last one is used with a warning.
"""

import builtins
import hashlib
import json
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final, NoReturn, TypeVar

from relive.errors import NotCachedError, NotFoundError, OfflineError, StorageError
from relive.store.atomic import open_reader
from relive.store.cache import layout
from relive.store.cache.disk import BlobCache
from relive.store.remote.failures import BucketNotFoundError
from relive.store.remote.ranges import Data, KeyRange
from relive.store.roots.root import Body, Check, Entry, Root, Stored

ANSWER_S: Final = 2.0
"""Without an answer for so long, a server counts as unreachable if the document was seen before."""
_PAUSE_S: Final = 0.1
_BLOBS: Final = "blobs/"
_MANIFEST_NAME: Final = 69
_R = TypeVar("_R")


class CachedRoot(Root):
    """A remote root with a cache. Thread-safe and picklable, works in forked processes.

    Args:
        root: Where documents come from.
        cache: Where they are kept.
        is_local: Whether to make no request: what was not seen is a `NotCachedError`.
        is_copy: Whether it was pickled; then manifests that were seen are not asked for again.
    """

    def __init__(
        self, root: Root, cache: BlobCache, *, is_local: bool = False, is_copy: bool = False
    ) -> None:
        self.root, self.cache, self.is_local = root, cache, is_local
        self.name, self.is_read_only = root.name, root.is_read_only
        self._is_copy = is_copy
        self._is_offline = False

    def get_many(self, keys: Sequence[str]) -> builtins.list[Stored | None]:
        """Return objects, None for missing ones; blobs and, offline, documents from the cache."""
        found = {key: self._stored_blob(key) for key in keys if key.startswith(_BLOBS)}
        rest = [key for key in keys if found.get(key) is None]
        if self.is_local or self._is_offline:
            for key in rest:
                if key.startswith(_BLOBS):
                    self._not_cached(key)
            answers = [self._seen(key) for key in rest]
        else:
            answers = self.root.get_many(rest) if rest else []
            for key, answer in zip(rest, answers, strict=True):
                if answer is not None:
                    self.remember(key, answer)
                elif not key.startswith(_BLOBS):
                    self._forget(key)
        found |= dict(zip(rest, answers, strict=True))
        return [found[key] for key in keys]

    def read_ranges(
        self, ranges: Sequence[KeyRange], check: Check | None = None, *, gap: int | None = None
    ) -> builtins.list[Data]:
        """Return the bytes of each range, from the root."""
        if self.is_local:
            for key, start, stop in ranges:
                if start < stop:
                    self._not_cached(key)
            return [b"" for _ in ranges]
        return self.root.read_ranges(ranges, check, gap=gap)

    def sizes(self, keys: Sequence[str]) -> builtins.list[int | None]:
        """Ask the root."""
        return self._remote().sizes(keys)

    def exists(self, keys: Sequence[str]) -> builtins.list[bool]:
        """Ask the root."""
        return self._remote().exists(keys)

    def put(self, key: str, body: Body, *, immutable: bool = True) -> None:
        """Write to the root."""
        self._remote().put(key, body, immutable=immutable)

    def create(self, key: str, data: bytes, *, immutable: bool = False) -> str:
        """Write to the root."""
        return self._remote().create(key, data, immutable=immutable)

    def replace(self, key: str, data: bytes, tag: str) -> str:
        """Write to the root."""
        return self._remote().replace(key, data, tag)

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """List the root."""
        return self._remote().list(prefix)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete in the root."""
        self._remote().delete(keys)

    def remember(self, key: str, stored: Stored) -> None:
        """Keep a document as it was seen; later, and if it fits."""
        if key.startswith(_BLOBS):
            self.cache.offer_whole(key.rpartition("/")[2], stored.data)
            return
        if self._seen(key) == stored and not self._is_queued(key):
            return
        checksum = hashlib.sha256(stored.data).hexdigest()
        content = json.dumps([checksum, stored.tag]).encode() + b"\n" + stored.data
        path, disk, use = self._path(key), self.cache.disk, self.cache.use
        disk.writer.offer(path, lambda: disk.write(path, lambda: [content], use), len(content))

    def remember_inlined(self, key: str, data: bytes, objects: Mapping[str, bytes]) -> None:
        """Keep a document that was part of another one, and objects by their digests.

        A document that was seen before is kept; objects of it may have been evicted since.
        """
        for digest, each in objects.items():
            if not self.cache.disk.has_whole(digest):
                self.cache.offer_whole(digest, each)
        if self._seen(key) is None:
            self.remember(key, Stored(data, ""))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the root and the cache."""
        return _copied, (self.root, self.cache, self.is_local)

    def _get(self, key: str, if_changed: str | None, retry_s: float | None) -> Stored | None:
        seen = self._seen(key)
        if seen is not None and (self.is_local or (self._is_copy and _is_manifest(key))):
            return None if seen.tag == if_changed else seen
        if self.is_local:
            self._not_cached(key)
        try:
            found = self._ask(key, seen, retry_s)
        except BucketNotFoundError:
            raise
        except NotFoundError:
            self._is_offline = False
            self._forget(key)
            raise
        except OfflineError as error:
            if seen is None:
                raise
            self._warn(error)
            found = seen
        else:
            self._is_offline = False  # also if the answer was that nothing has changed
            self.remember(key, found)
        return None if found.tag == if_changed else found

    def _ask(self, key: str, seen: Stored | None, retry_s: float | None) -> Stored:
        """Ask the root, in one short attempt if a document was seen before."""

        def ask(retry_s: float | None) -> Stored:
            if seen is None or not seen.tag:
                return self.root.get(key, retry_s=retry_s)
            return self.root.get(key, if_changed=seen.tag, retry_s=retry_s) or seen

        deadline = time.monotonic() + ANSWER_S
        while True:
            left = deadline - time.monotonic()
            try:
                return ask(0) if seen is None else _within(left, lambda: ask(0), self.name)
            except OfflineError:
                raise  # retries would only delay it
            except StorageError:
                # Connections of before the server was gone are reset, each once.
                if time.monotonic() + _PAUSE_S < deadline:
                    time.sleep(_PAUSE_S)
                elif retry_s == 0:
                    raise
                else:
                    return ask(retry_s)

    def _warn(self, error: OfflineError) -> None:
        if not self._is_offline:
            warnings.warn(
                f"{error.message}; what was last seen of `{self.name}` is used",
                RuntimeWarning,
                stacklevel=2,
            )
        self._is_offline = True

    def _stored_blob(self, key: str) -> Stored | None:
        digest = key.rpartition("/")[2]
        data = self.cache.find_whole(digest)
        return None if data is None else Stored(data, digest)

    def _seen(self, key: str) -> Stored | None:
        try:
            with open_reader(self._path(key)) as file:
                header, _, data = file.read().partition(b"\n")
            checksum, tag = json.loads(header)
        except (OSError, ValueError, TypeError):
            return None
        if hashlib.sha256(data).hexdigest() != checksum or not isinstance(tag, str):
            return None
        return Stored(data, tag)

    def _forget(self, key: str) -> None:
        path, disk = self._path(key), self.cache.disk

        def remove() -> None:
            try:
                with disk.usage.locked():
                    disk.remove(path)
            except OSError:
                pass  # it stays, which matters only without a network

        if Path(path).exists() or self._is_queued(key):
            disk.writer.offer(path, remove, 0)

    def _is_queued(self, key: str) -> bool:
        """Return whether an older state of a document is still to be written, or removed."""
        return self.cache.disk.writer.is_queued(self._path(key))

    def _path(self, key: str) -> str:
        identity = hashlib.sha256(self.root.identity.encode()).hexdigest()
        return f"{self.cache.disk.base}/{layout.SEEN}/{identity[:16]}/{key}"

    def _remote(self) -> Root:
        if self.is_local:
            self._not_cached("")
        return self.root

    def _not_cached(self, key: str) -> NoReturn:
        raise NotCachedError(
            f"`{self.uri(key)}` is not in the cache, and mode='local' makes no request"
            if self.is_local
            else f"`{self.uri(key)}` is not in the cache, and the server cannot be reached",
            hint="run `relive warm` while the root can be reached, or use mode='auto'",
        )


def _copied(root: Root, cache: BlobCache, is_local: bool) -> CachedRoot:  # noqa: FBT001 - a pickle
    return CachedRoot(root, cache, is_local=is_local, is_copy=True)


def _is_manifest(key: str) -> bool:
    name = key.rpartition("/")[2]
    return len(name) == _MANIFEST_NAME and layout.is_digest(name.removesuffix(".json"))


def _within(seconds: float, call: Callable[[], _R], name: str) -> _R:
    """Return the result of a call that may take only so long; else an `OfflineError`."""
    done: Future[_R] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised by the caller
            done.set_exception(error)

    threading.Thread(target=run, name="relive-ask", daemon=True).start()
    try:
        return done.result(seconds)
    except TimeoutError:
        if done.done():
            raise
        raise OfflineError(f"`{name}` did not answer within {ANSWER_S:g} seconds") from None
