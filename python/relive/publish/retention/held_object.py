"""`HeldObject`: an object that one process renews, so that others see that it is still working."""

import secrets
import threading
from typing import Any, Final

from relive.errors import AlreadyExistsError, ConflictError, ReliveError, StorageError
from relive.publish.version.canonical import encode
from relive.publish.version.document import FORMAT
from relive.store.roots.root import Root

HELD_S: Final = 300.0
"""How long after its last renewal an object is valid, by the clock of the store."""
SLACK_S: Final = 1.0
"""Stores round the times of objects to seconds."""
POLL_S: Final = 2.0
"""How often an object of another process is looked at by one that waits for it."""
_RENEWALS: Final = 5
"""How often it is renewed in the time for which it is valid."""
_JOIN_S: Final = 1.0


def store_time(root: Root) -> float:
    """Return the time by the clock of the store: that of an object which is written now."""
    key = f"probes/{secrets.token_hex(16)}"
    root.put(key, b"time", immutable=False)
    try:
        times = [entry.modified_s for entry in root.list("probes") if entry.key == key]
    finally:
        root.delete([key])
    if not times:
        raise StorageError(f"`{root.uri(key)}` was written, but is not listed")
    return times[0]


class HeldObject:
    """An object that is renewed by a thread until `release`, always by compare-and-swap.

    Another process may replace it, which ends the hold: then `renew` returns False, from that
    moment on for ever. The content has a number that grows, because the tag of an object may
    depend on its content alone.
    """

    def __init__(self, root: Root, key: str, **content: Any) -> None:
        self.root = root
        self.key = key
        self.owner = secrets.token_hex(16)
        self.held_s = HELD_S
        self._content = content
        self._renewals = 0
        self._tag: str | None = None  # not held
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, tag: str | None = None) -> bool:
        """Create the object, or replace the one that has `tag`; return whether that worked."""
        try:
            if tag is None:
                self._tag = self.root.create(self.key, self._body())
            else:
                self._tag = self.root.replace(self.key, self._body(), tag)
        except (AlreadyExistsError, ConflictError):
            return False
        self._thread = threading.Thread(target=self._keep, name="relive-lease", daemon=True)
        self._thread.start()
        return True

    def renew(self, **content: Any) -> bool:
        """Write the object again, with other content if given; return whether it is still held."""
        with self._lock:
            if self._tag is None:
                return False
            self._content |= content
            self._renewals += 1
            try:
                self._tag = self.root.replace(self.key, self._body(), self._tag)
            except ConflictError:
                self._tag = None
            return self._tag is not None

    def stop(self) -> None:
        """Renew it no longer."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def _keep(self) -> None:
        while not self._stop.wait(self.held_s / _RENEWALS):
            try:
                if not self.renew():
                    return
            except ReliveError:  # the next attempt, or the caller's own, may work
                continue

    def _body(self) -> bytes:
        return encode(
            {
                "format": FORMAT,
                "owner": self.owner,
                "renewals": self._renewals,
                "seconds": int(self.held_s),
                **self._content,
            }
        )
