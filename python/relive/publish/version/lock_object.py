"""A lock object, for stores that ignore conditional puts.

It is not a conditional put: of two publishers that write it at the same moment, the one whose
object remains has the lock. A store that delays a write for longer than the pause breaks it.
"""

import contextlib
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Final

from relive.errors import LockedError, ManifestCorruptedError
from relive.publish.version.canonical import decode, encode
from relive.publish.version.document import FORMAT
from relive.store.roots.root import Body, Check, Data, Entry, KeyRange, Root, Stored

PAUSE_S: Final = 2.0
"""How long the holder waits before it looks whether its object is still there."""
_EXPIRES_S: Final = 300


@contextlib.contextmanager
def lock_object(root: Root, key: str, *, pause_s: float | None = None) -> Iterator[None]:
    """Hold the lock for the length of a block; a `LockedError` if another publisher has it.

    One that was left by a killed publisher expires after five minutes.
    """
    (found,) = root.get_many([key])
    if found is not None and _expires(found) > time.time():
        raise LockedError(
            f"`{root.uri(key)}` is held by another publisher",
            hint=f"a lock that a killed publisher left expires after {_EXPIRES_S} seconds",
        )
    body = {"expires": int(time.time()) + _EXPIRES_S, "format": FORMAT}
    mine = encode({**body, "owner": secrets.token_hex(16)})
    root.put(key, mine, immutable=False)
    time.sleep(PAUSE_S if pause_s is None else pause_s)
    (found,) = root.get_many([key])
    if found is None or found.data != mine:
        raise LockedError(f"`{root.uri(key)}` was taken by another publisher", hint="try again")
    try:
        yield
    finally:
        root.delete([key])


class UnconditionalRoot(Root):
    """A root whose `create` and `replace` look first, then write. Safe only under a lock."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self.name = root.name
        self.path = root.path
        self.is_read_only = root.is_read_only

    def get_many(self, keys: Sequence[str]) -> list[Stored | None]:
        """Return the objects, None for missing ones."""
        return self._root.get_many(keys)

    def read_ranges(
        self, ranges: Sequence[KeyRange], check: Check | None = None, *, gap: int | None = None
    ) -> list[Data]:
        """Return the bytes of each range."""
        return self._root.read_ranges(ranges, check, gap=gap)

    def exists(self, keys: Sequence[str]) -> list[bool]:
        """Return for each key whether there is such an object."""
        return self._root.exists(keys)

    def sizes(self, keys: Sequence[str]) -> list[int | None]:
        """Return the size of each object, None for missing ones."""
        return self._root.sizes(keys)

    def put(self, key: str, body: Body, *, immutable: bool = True) -> None:
        """Write an object, or replace it."""
        self._root.put(key, body, immutable=immutable)

    def create(self, key: str, data: bytes, *, immutable: bool = False) -> str:
        """Write an object that does not exist, as far as can be seen."""
        if self._root.exists([key])[0]:
            raise self._already_exists(key)
        self._root.put(key, data, immutable=immutable)
        return self._root.get(key).tag

    def replace(self, key: str, data: bytes, tag: str) -> str:
        """Replace an object that has `tag`, as far as can be seen."""
        (found,) = self._root.get_many([key])
        if found is None or found.tag != tag:
            raise self._conflict(key)
        self._root.put(key, data, immutable=False)
        return self._root.get(key).tag

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects."""
        self._root.delete(keys)

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Yield the objects below `prefix`."""
        return self._root.list(prefix)

    def _get(self, key: str, if_changed: str | None, retry_s: float | None) -> Stored | None:
        if if_changed is None:
            return self._root.get(key, retry_s=retry_s)
        return self._root.get(key, if_changed=if_changed, retry_s=retry_s)


def _expires(found: Stored) -> int:
    with contextlib.suppress(ManifestCorruptedError, AttributeError, TypeError):
        expires = decode(found.data, "lock").get("expires")
        if isinstance(expires, int):
            return expires
    return 0
