"""What a gc is about to delete: `gc/announcement.json`, which names a list of blobs."""

import contextlib
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

from relive.errors import ConflictError, LockedError, ReliveError
from relive.publish.retention import held_object
from relive.publish.retention.held_object import SLACK_S, HeldObject, store_time
from relive.publish.version.canonical import encode
from relive.publish.version.document import (
    FORMAT,
    as_count,
    as_digest,
    as_list,
    as_object,
    as_string,
    parse_document,
)
from relive.store.roots.root import Root

FOLDER: Final = "gc"
KEY: Final = f"{FOLDER}/announcement.json"
MAX_BLOBS: Final = 100_000
"""How many blobs one announcement lists, in 7 MB."""


@dataclass(frozen=True)
class Announcement:
    """An announcement that was read."""

    owner: str | None
    """None if no gc is at work."""
    blobs: str | None
    """The key of the list of blobs; None if none are announced."""
    held_s: float
    tag: str

    @classmethod
    def find(cls, root: Root) -> "Announcement | None":
        """Return the announcement, None if there never was one; one request."""
        (stored,) = root.get_many([KEY])
        if stored is None:
            return None

        def parse(tree: Any) -> Announcement:
            as_object(tree, "", ("seconds",))
            return cls(
                None if tree.get("owner") is None else as_string(tree["owner"], "owner"),
                None if tree.get("blobs") is None else as_string(tree["blobs"], "blobs"),
                as_count(tree["seconds"], "seconds"),
                stored.tag,
            )

        return parse_document(stored.data, root.uri(KEY), parse)

    def announces(self, root: Root, needed: Callable[[], Collection[str]]) -> bool:
        """Return whether it may list one of the blobs that `needed` returns.

        If the list is gone, the gc may have announced another one since this announcement was
        read. Or it was lost, and any blob may be deleted. So the answer is yes: `wait` reads the
        announcement again, and waits as long as it names that list.
        """
        if self.owner is None or self.blobs is None:
            return False
        listed = self.digests(root)
        return listed is None or not listed.isdisjoint(needed())

    def digests(self, root: Root) -> frozenset[str] | None:
        """Return the announced blobs; None if they are not known, because the list is gone."""
        if self.blobs is None:
            return frozenset()
        (stored,) = root.get_many([self.blobs])
        if stored is None:
            return None

        def parse(tree: Any) -> frozenset[str]:
            listed = as_list(as_object(tree, "", ("digests",))["digests"], "digests")
            return frozenset(as_digest(each, "digests") for each in listed)

        return parse_document(stored.data, root.uri(str(self.blobs)), parse)

    def wait(self, root: Root) -> None:
        """Wait until it is withdrawn; withdraw that of a gc that was silent for too long."""
        watch = Watch(root)
        while True:
            now = self.find(root)
            if now is None or now.owner is None or now.blobs != self.blobs:
                return
            if watch.is_silent(now):
                body = encode({"format": FORMAT, "owner": None, "seconds": 0})
                with contextlib.suppress(ConflictError):
                    root.replace(KEY, body, now.tag)
                    return
            time.sleep(held_object.POLL_S)


class Watch:
    """Decides whether a gc is silent for so long that it must have been killed."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._tag = ""
        self._renewed_s = 0.0

    def is_silent(self, found: Announcement) -> bool:
        """Return whether an announcement was not renewed for longer than it is valid."""
        if found.tag != self._tag:
            times = {entry.key: entry.modified_s for entry in self._root.list(FOLDER)}
            age_s = store_time(self._root) - times.get(KEY, 0.0)
            self._tag, self._renewed_s = found.tag, time.monotonic() - age_s
        return time.monotonic() - self._renewed_s > found.held_s + SLACK_S


class HeldAnnouncement(HeldObject):
    """The announcement of this process, which is the only gc of the root."""

    def __init__(self, root: Root) -> None:
        super().__init__(root, KEY, blobs=None)
        self._count = 0

    def acquire(self, wait_s: float | None, notify: Callable[[str], object] | None = None) -> None:
        """Take the announcement when no other gc has it, or when that one is silent.

        A `LockedError` if another one still works after `wait_s`; None waits for it.
        """
        deadline = None if wait_s is None else time.monotonic() + wait_s
        watch = Watch(self.root)
        while True:
            found = Announcement.find(self.root)
            is_free = found is None or found.owner is None or watch.is_silent(found)
            if is_free and self.take(None if found is None else found.tag):
                break
            if deadline is not None and time.monotonic() >= deadline:
                raise LockedError(
                    f"another gc of `{self.root.name}` is running",
                    hint=f"one that was killed is replaced after {int(self.held_s)} seconds",
                )
            if notify is not None and not is_free:
                notify("waiting for another gc, or until it shows no sign of life for minutes")
                notify = None
            time.sleep(held_object.POLL_S)
        # Lists of a gc that was killed. No announcement names them any more, unless another gc
        # took this one over.
        old = [entry.key for entry in self.root.list(FOLDER) if entry.key != KEY]
        if old:
            self.check()
            self.root.delete(old)

    def announce(self, digests: Collection[str]) -> None:
        """Announce that these blobs will be deleted, and not the ones before any more."""
        old = self._content["blobs"]
        self._count += 1
        new = f"{FOLDER}/{self.owner}-{self._count}.json"
        self.root.create(new, encode({"digests": sorted(digests), "format": FORMAT}))
        self.check(blobs=new)
        if old is not None:
            self.root.delete([old])

    def check(self, **content: Any) -> None:
        """Renew it; a `LockedError` if another process has it: then nothing may be deleted."""
        if not self.renew(**content):
            raise LockedError(
                f"another process withdrew what this gc announced in `{self.root.name}`",
                hint=f"it was silent for {int(self.held_s)} seconds; run gc again",
            )

    def release(self) -> None:
        """Withdraw it. An error is ignored: it expires anyway."""
        self.stop()
        old = self._content["blobs"]
        with contextlib.suppress(ReliveError):
            if self.renew(owner=None, blobs=None) and old is not None:
                self.root.delete([old])
