"""`Protection`: what a publisher holds while it writes manifests and pointers."""

import logging
from collections.abc import Callable, Collection
from typing import Self

from relive.errors import ClosedError
from relive.publish.retention.announcements import Announcement
from relive.publish.retention.leases import Lease
from relive.store.roots.root import Root

_log = logging.getLogger("relive.publish")


class Protection:
    """Keeps every gc from deleting blobs that a publisher names, for the length of a block.

    Args:
        root: The root.
        needed: Returns the digests of all blobs that it will name. It is called only while a gc
            is at work, and after the lease was written.
        restore: Called if a gc took the lease away because it was not renewed in time: makes sure
            that all these blobs exist, or raises.
    """

    def __init__(
        self, root: Root, needed: Callable[[], Collection[str]], restore: Callable[[], object]
    ) -> None:
        self._root = root
        self._needed = needed
        self._restore = restore
        self._lease: Lease | None = None

    def __enter__(self) -> Self:
        self._begin()
        return self

    def __exit__(self, *error: object) -> None:
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def confirm(self) -> None:
        """Make sure that no blob was deleted since the block began, after a manifest was written.

        One request, unless the lease was lost.
        """
        if self._lease is None:
            raise ClosedError("a protection is used outside of its block")
        while not self._lease.renew():
            _log.warning(
                "`%s`: the lease of this publisher expired; all blobs are checked again",
                self._root.name,
            )
            self._begin()
            self._restore()

    def _begin(self) -> None:
        """Write a lease, and wait for a gc that announced to delete a blob which is needed."""
        while True:
            self._lease = Lease(self._root)
            if not self._lease.take():
                continue
            try:
                found = Announcement.find(self._root)
                if found is None or not found.announces(self._root, self._needed):
                    return
            except BaseException:
                self._lease.release()
                raise
            # Without a lease: that gc may be waiting for it.
            self._lease.release()
            _log.info("`%s`: waiting for a gc that may delete needed blobs", self._root.name)
            found.wait(self._root)
