"""Tombstones: what is left of a version that was withdrawn."""

from dataclasses import dataclass
from typing import Any

from relive.publish.version.canonical import encode
from relive.publish.version.document import FORMAT, as_object, as_string, parse_document
from relive.publish.version.manifest import Manifest
from relive.publish.version.names import DatasetId, manifest_key, tombstone_key
from relive.store.roots.root import Root


@dataclass(frozen=True)
class Tombstone:
    """Why and when a version was withdrawn."""

    reason: str
    time: str

    def to_bytes(self, digest: str) -> bytes:
        """Return the content of the object."""
        tree = {"digest": digest, "format": FORMAT, "reason": self.reason, "time": self.time}
        return encode(tree)

    @classmethod
    def parse(cls, data: bytes, what: str) -> "Tombstone":
        """Parse the content of the object; `what` is named in messages."""

        def parse(tree: Any) -> Tombstone:
            as_object(tree, "", ("reason", "time"))
            return cls(as_string(tree["reason"], "reason"), as_string(tree["time"], "time"))

        return parse_document(data, what, parse)

    @classmethod
    def find(cls, root: Root, dataset: DatasetId, digest: str) -> "Tombstone | None":
        """Return the tombstone of a version, None if it was not withdrawn; one request."""
        key = tombstone_key(dataset, digest)
        (stored,) = root.get_many([key])
        return None if stored is None else cls.parse(stored.data, root.uri(key))


def revive(root: Root, dataset: DatasetId, manifest: Manifest) -> bool:
    """Take back that a version was withdrawn, if it was: a pointer names it now. Return whether.

    One request if it was not. A publisher moves its pointer and then looks for a tombstone, and
    who withdraws writes the tombstone and then looks at the pointers: one always sees the other.
    """
    was_withdrawn = root.exists([tombstone_key(dataset, manifest.digest)])[0]
    if was_withdrawn:
        restore(root, dataset, manifest)
    return was_withdrawn


def restore(root: Root, dataset: DatasetId, manifest: Manifest) -> None:
    """Write the manifest of a version, and delete its tombstone."""
    where = manifest_key(dataset, manifest.digest)
    root.put(where, manifest.to_bytes())
    root.delete([tombstone_key(dataset, manifest.digest)])
    # Who withdraws may have deleted the first one before the tombstone was gone.
    root.put(where, manifest.to_bytes())


def may_restore(root: Root, dataset: DatasetId, digest: str, *, is_first: bool) -> bool:
    """Return whether a process that was refused to withdraw a version may take it back.

    Not if another one has withdrawn it meanwhile, or wrote the tombstone before (`is_first` is
    False): that one completes the withdrawal, or takes it back.
    """
    keys = [tombstone_key(dataset, digest), manifest_key(dataset, digest)]
    has_tombstone, has_manifest = root.exists(keys)
    return not has_tombstone or (is_first and has_manifest)


def bury(root: Root, dataset: DatasetId, manifest: Manifest) -> bool:
    """Delete the manifest of a version that has a tombstone.

    Return False if the tombstone is gone: the version was published again meanwhile, and has its
    manifest.
    """
    key = manifest_key(dataset, manifest.digest)
    root.delete([key])
    if root.exists([tombstone_key(dataset, manifest.digest)])[0]:
        return True
    root.put(key, manifest.to_bytes())
    return False
