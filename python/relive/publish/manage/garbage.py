"""`collect_garbage`: deletes the blobs of a root that no version names.

Publishers may work at the same time. The protocol is in docs/decisions/garbage-collection.md, and
the steps G1 to G7 of it are named here.
"""

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from relive.errors import (
    InvalidError,
    InvalidTypeError,
    LockedError,
    NotFoundError,
    ReadOnlyError,
)
from relive.model.report import Progress
from relive.publish.manage.references import References
from relive.publish.retention import held_object
from relive.publish.retention.announcements import MAX_BLOBS, HeldAnnouncement
from relive.publish.retention.held_object import store_time
from relive.publish.retention.leases import FoundLease, break_lease, find_leases
from relive.publish.version.catalog import Catalog
from relive.store.blobs import blob_key
from relive.store.roots import Root, open_root
from relive.store.roots.root import Entry

GRACE_S: Final = 24 * 3600.0
"""How old a blob must be before it is deleted."""
_DELETED: Final = 1000
"""How many blobs are deleted after each renewal of the announcement."""
_DIGEST: Final = re.compile(r"blobs/[0-9a-f]{2}/[0-9a-f]{2}/([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class GarbageReport:
    """What `collect_garbage` found, and deleted.

    Example:
        >>> GarbageReport(versions=2, blobs=10, nbytes=900, garbage=3, garbage_bytes=200).deleted
        0
    """

    versions: int = 0
    """The number of versions of all datasets."""
    blobs: int = 0
    """The number of blobs that are there, leaf tables included."""
    nbytes: int = 0
    garbage: int = 0
    """How many of them no version names, and are older than the grace period."""
    garbage_bytes: int = 0
    young: int = 0
    """How many of them no version names, but are younger."""
    deleted: int = 0
    """How many were deleted; 0 with `dry_run`."""
    deleted_bytes: int = 0


def collect_garbage(
    root: str | os.PathLike[str] | Root | None = None,
    *,
    grace_s: float = GRACE_S,
    dry_run: bool = True,
    wait_s: float | None = None,
    progress: Progress | None = None,
    notify: Callable[[str], object] | None = None,
    **remote: Any,
) -> GarbageReport:
    """Find the blobs that no version of any dataset names; delete them with `dry_run=False`.

    They remain after a version is withdrawn, and after a publisher is killed. Others may publish
    and read meanwhile. If this process is killed, the next call does the rest.

    Args:
        root: The address of the root; by default `RELIVE_ROOT`.
        grace_s: Keep blobs that were written less than so many seconds ago, by the clock of the
            store.
        dry_run: Write and delete nothing.
        wait_s: How long to wait for publishers that began before, and for another gc. None waits
            until they end, or until they show no sign of life for five minutes.
        progress: Called with the number of blobs that are deleted, and of those to be deleted.
        notify: Called with a line of text when it has to wait.
        remote: Options of the object store.

    Raises:
        NotFoundError: The root is a directory that does not exist; it is not created.
        LockedError: A publisher or another gc still works after `wait_s`.
        ManifestCorruptedError: A manifest cannot be read; nothing was deleted.

    Example:
        >>> import pyarrow as pa, relive
        >>> from relive.publish import collect_garbage
        >>> builder = relive.DatasetBuilder("lab/kitchen", root="root")
        >>> builder.add_table("main", pa.table({"step": [1, 2, 3]}))
        >>> digest = builder.publish()
        >>> collect_garbage("root").garbage
        0
    """
    _check_seconds("grace_s", grace_s)
    if wait_s is not None:
        _check_seconds("wait_s", wait_s)
    opened = open_root(root, **remote)
    if opened.path is not None and not opened.path.exists():
        raise NotFoundError(f"the root `{opened.name}` does not exist", hint="check the address")
    if opened.is_read_only and not dry_run:
        raise ReadOnlyError(f"the root `{opened.name}` is read-only", hint="pass another root")
    if dry_run:
        return _Collection(opened, grace_s).find(time.time())
    Catalog(opened).check_conditional_puts()
    announcement = HeldAnnouncement(opened)
    announcement.acquire(wait_s, notify)  # G1
    try:
        run = _Collection(opened, grace_s)
        return run.delete(announcement, wait_s, progress or _silent, notify or _silent)
    finally:
        announcement.release()  # G7


class _Collection:
    """One run over a root."""

    def __init__(self, root: Root, grace_s: float) -> None:
        self._root = root
        self._grace_s = grace_s
        self._references = References(root)
        self._garbage: list[Entry] = []
        self._counts = dict.fromkeys(("blobs", "nbytes", "young"), 0)

    def find(self, now_s: float) -> GarbageReport:
        """Find what can be deleted; `now_s` is the time by the clock of the store."""
        self._references.update()
        for entry in self._root.list("blobs"):
            found = _DIGEST.fullmatch(entry.key)
            if found is None or entry.key != blob_key(found[1]):
                continue
            self._counts["blobs"] += 1
            self._counts["nbytes"] += entry.size
            if found[1] in self._references:
                continue
            if now_s - entry.modified_s < self._grace_s:
                self._counts["young"] += 1
            else:
                self._garbage.append(entry)
        return self._report([])

    def delete(
        self,
        announcement: HeldAnnouncement,
        wait_s: float | None,
        progress: Progress,
        notify: Callable[[str], object],
    ) -> GarbageReport:
        """Delete it, after it was announced and all older publishers have ended."""
        now_s = store_time(self._root)
        self.find(now_s)  # G2
        self._delete_old_objects(now_s)
        deleted: list[Entry] = []
        total = len(self._garbage)
        for start in range(0, total, MAX_BLOBS):
            group = self._garbage[start : start + MAX_BLOBS]
            announcement.announce([_digest(entry) for entry in group])  # G3
            self._wait_for_publishers(announcement, wait_s, notify)  # G4
            self._references.update()  # G5
            doomed = [entry for entry in group if _digest(entry) not in self._references]
            for part in _parts(doomed):
                announcement.check()  # G6
                self._root.delete([entry.key for entry in part])
                deleted += part
                progress(len(deleted), total)
        return self._report(deleted)

    def _wait_for_publishers(
        self,
        announcement: HeldAnnouncement,
        wait_s: float | None,
        notify: Callable[[str], object],
    ) -> None:
        """Wait until the publishers have ended that may not have seen the announcement."""
        deadline = None if wait_s is None else time.monotonic() + wait_s
        older: set[str] | None = None
        while True:
            leases = find_leases(self._root, store_time(self._root))
            # Those that are written from now on belong to publishers that saw the announcement.
            is_first = older is None
            older = {each.key for each in leases} if older is None else older
            waiting = [each for each in leases if each.key in older and self._is_alive(each)]
            if not waiting:
                return
            count = f"{len(waiting)} publisher{'s' if len(waiting) > 1 else ''}"
            if is_first:
                notify(f"waiting for {count} that began before this gc")
            if deadline is not None and time.monotonic() >= deadline:
                raise LockedError(
                    f"{count} of `{self._root.name}` began before this gc and did not end",
                    hint="wait longer, or run it again later; nothing more was deleted",
                )
            time.sleep(held_object.POLL_S)
            announcement.check()

    def _is_alive(self, lease: FoundLease) -> bool:
        """Return whether to wait for a lease; one that is not renewed is taken away."""
        return lease.is_valid or not break_lease(self._root, lease)

    def _delete_old_objects(self, now_s: float) -> None:
        """Delete what processes left that were killed: probes of the store, and leases."""
        for lease in find_leases(self._root, now_s):
            self._is_alive(lease)
        old = [
            entry.key
            for entry in self._root.list("probes")
            if now_s - entry.modified_s >= max(self._grace_s, GRACE_S)
        ]
        self._root.delete(old)

    def _report(self, deleted: Sequence[Entry]) -> GarbageReport:
        return GarbageReport(
            self._references.versions,
            self._counts["blobs"],
            self._counts["nbytes"],
            len(self._garbage),
            sum(entry.size for entry in self._garbage),
            self._counts["young"],
            len(deleted),
            sum(entry.size for entry in deleted),
        )


def _check_seconds(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidTypeError(f"`{name}` must be a number of seconds, got {value!r}")
    if not value >= 0:
        raise InvalidError(f"`{name}` must be at least 0, got {value!r}")


def _silent(*_: object) -> None:
    """Report nothing."""


def _digest(entry: Entry) -> str:
    return entry.key.rpartition("/")[2]


def _parts(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    for start in range(0, len(entries), _DELETED):
        yield entries[start : start + _DELETED]
