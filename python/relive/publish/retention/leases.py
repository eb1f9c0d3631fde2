"""Leases of publishers: `leases/ID.json`. A gc waits for those that it finds."""

import contextlib
import secrets
from dataclasses import dataclass
from typing import Any, Final

from relive.errors import ConflictError, CorruptError, ReliveError, UnsupportedError
from relive.publish.retention.held_object import HELD_S, SLACK_S, HeldObject
from relive.publish.version.canonical import encode
from relive.publish.version.document import FORMAT, as_count, parse_document
from relive.store.roots.root import Root, Stored

FOLDER: Final = "leases"


class Lease(HeldObject):
    """The lease of this process, under a name of its own."""

    def __init__(self, root: Root) -> None:
        super().__init__(root, f"{FOLDER}/{secrets.token_hex(16)}.json")

    def release(self) -> None:
        """Delete it. An error is ignored: it expires anyway."""
        self.stop()
        with contextlib.suppress(ReliveError):
            self.root.delete([self.key])


@dataclass(frozen=True)
class FoundLease:
    """The lease of another process, as a gc finds it."""

    key: str
    tag: str
    age_s: float
    """How long ago it was renewed, by the clock of the store."""
    held_s: float

    @property
    def is_valid(self) -> bool:
        """Whether its publisher is expected to be alive."""
        return self.age_s <= self.held_s + SLACK_S


def find_leases(root: Root, now_s: float) -> list[FoundLease]:
    """Return all leases; `now_s` is the time by the clock of the store."""
    entries = {entry.key: entry for entry in root.list(FOLDER)}
    found = zip(entries.values(), root.get_many(list(entries)), strict=True)
    return [
        FoundLease(entry.key, stored.tag, now_s - entry.modified_s, _held_s(stored))
        for entry, stored in found
        if stored is not None  # released meanwhile
    ]


def break_lease(root: Root, lease: FoundLease) -> bool:
    """Take a lease from its publisher, which notices it; False if it was renewed meanwhile."""
    try:
        root.replace(lease.key, encode({"broken": True, "format": FORMAT, "seconds": 0}), lease.tag)
    except ConflictError:
        return False
    root.delete([lease.key])  # its name is not used again
    return True


def _held_s(stored: Stored) -> float:
    def parse(tree: Any) -> int:
        return as_count(tree.get("seconds"), "seconds")

    try:
        return float(parse_document(stored.data, "a lease", parse))
    except (CorruptError, UnsupportedError):
        return HELD_S
