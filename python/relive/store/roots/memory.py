"""`MemoryRoot`: objects in the memory of one process, for tests and examples."""

import builtins
import hashlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from relive.errors import CorruptError
from relive.store.remote.ranges import Data, KeyRange
from relive.store.roots.root import (
    Body,
    Check,
    Entry,
    Root,
    Stored,
    check_key,
    check_prefix,
    check_range,
    read_body,
)


class _Object(NamedTuple):
    data: bytes
    tag: str
    modified_s: float


class _Space:
    """The objects of one name."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.objects: dict[str, _Object] = {}


_spaces: Final[dict[str, _Space]] = {}


class MemoryRoot(Root):
    """Objects in memory; roots of the same name in one process share them.

    A forked process has a copy of them, a spawned one has none.
    """

    def __init__(self, name: str) -> None:
        self.name = f"memory://{name}"
        # Spaces are kept until the process ends, like directories.
        self._space = _spaces.setdefault(name, _Space())

    def get_many(self, keys: Sequence[str]) -> builtins.list[Stored | None]:
        """Return the objects, None for missing ones."""
        found = [self._space.objects.get(check_key(key)) for key in keys]
        return [None if each is None else Stored(each.data, each.tag) for each in found]

    def read_ranges(
        self,
        ranges: Sequence[KeyRange],
        check: Check | None = None,
        *,
        gap: int | None = None,  # noqa: ARG002 - nothing to join
    ) -> builtins.list[Data]:
        """Return the bytes of each range."""
        found: list[Data] = []
        for key, start, stop in ranges:
            check_range(key, start, stop)
            if start == stop:
                found.append(b"")
                continue
            data = memoryview(self._find(key).data)[start:stop]
            if len(data) != stop - start:
                raise CorruptError(
                    f"`{self.uri(key)}` is too short: bytes {start} to {stop} were requested"
                )
            if check is not None:
                check(key, start, data)
            found.append(data)
        return found

    def exists(self, keys: Sequence[str]) -> builtins.list[bool]:
        """Return for each key whether there is such an object."""
        return [check_key(key) in self._space.objects for key in keys]

    def put(self, key: str, body: Body, *, immutable: bool = True) -> None:  # noqa: ARG002
        """Write an object, or replace it."""
        self._write(check_key(key), read_body(body))

    def create(self, key: str, data: bytes, *, immutable: bool = False) -> str:  # noqa: ARG002
        """Write an object that does not exist."""
        with self._space.lock:
            if check_key(key) in self._space.objects:
                raise self._already_exists(key)
            return self._write(key, bytes(data))

    def replace(self, key: str, data: bytes, tag: str) -> str:
        """Replace an object that still has `tag`."""
        with self._space.lock:
            found = self._space.objects.get(check_key(key))
            if found is None or found.tag != tag:
                raise self._conflict(key)
            return self._write(key, bytes(data))

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Yield the objects below `prefix`."""
        prefix = check_prefix(prefix)
        with self._space.lock:
            found = sorted(self._space.objects.items())
        for key, each in found:
            if key.startswith(prefix):
                yield Entry(key, len(each.data), each.modified_s)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects."""
        for key in keys:
            self._space.objects.pop(check_key(key), None)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the name."""
        return type(self), (self.name.removeprefix("memory://"),)

    def _get(
        self,
        key: str,
        if_changed: str | None,
        retry_s: float | None,  # noqa: ARG002 - nothing to retry
    ) -> Stored | None:
        found = self._find(key)
        return None if found.tag == if_changed else Stored(found.data, found.tag)

    def _find(self, key: str) -> _Object:
        found = self._space.objects.get(check_key(key))
        if found is None:
            raise self._missing(key)
        return found

    def _write(self, key: str, data: bytes) -> str:
        tag = hashlib.sha256(data).hexdigest()
        with self._space.lock:
            self._space.objects[key] = _Object(data, tag, time.time())
        return tag


def _after_fork() -> None:
    # Another thread of the parent may hold a lock.
    for space in _spaces.values():
        space.lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
