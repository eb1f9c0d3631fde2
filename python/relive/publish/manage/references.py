"""Which blobs the versions of a root name, so that everything else may be deleted."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Final

from relive.errors import (
    CorruptError,
    ManifestCorruptedError,
    NotFoundError,
    UnsupportedError,
)
from relive.publish.version import names
from relive.publish.version.document import UPGRADE
from relive.publish.version.lookup import VersionLookup
from relive.publish.version.manifest import Manifest
from relive.publish.version.names import DatasetId
from relive.publish.version.pointers import HEAD_BYTES, Pointer, digest_of_head
from relive.store.roots.root import Root

_MIN_PARTS: Final = 3
_AT_ONCE: Final = 256
"""How many manifests are read in one round trip."""
_COUNTED: Final = frozenset({"artifacts", "bindings"})
"""Sections other than tables whose blobs are all in the manifest itself."""
_HINT: Final = "nothing was deleted; publish the same content again, or restore the object"


class References:
    """The digests of all blobs that a version names, or named when `update` was called before.

    Every manifest counts, and every version that a pointer names, also if its manifest is missing.
    A manifest that cannot be read, or that has a section which this version of relive does not
    know, is an error: nothing is known about the blobs that it needs.
    """

    def __init__(self, root: Root) -> None:
        self.versions = 0
        """How many were read."""
        self._lookup = VersionLookup(root)
        self._root = root
        self.digests = set[str]()
        self._read = set[tuple[DatasetId, str]]()

    def __contains__(self, digest: str) -> bool:
        return digest in self.digests

    def update(self) -> None:
        """Read the manifests and pointers that are new since the last call."""
        manifests, pointers = self._listed()
        new = [each for each in manifests if each not in self._read]
        for start in range(0, len(new), _AT_ONCE):
            self._add_manifests(new[start : start + _AT_ONCE])
        self._add_pointers(pointers)

    def _listed(self) -> tuple[list[tuple[DatasetId, str]], list[tuple[DatasetId, str]]]:
        """Return all versions that have a manifest, and the keys of all pointers."""
        manifests, pointers = [], []
        for entry in self._root.list(names.MANIFESTS):
            _, *place = entry.key.split("/")
            if len(place) < _MIN_PARTS or not all(map(names.is_id_part, place[:2])):
                continue
            dataset = DatasetId(place[0], place[1])
            digest, is_manifest = names.version_in(entry.key)
            if is_manifest and entry.key == names.manifest_key(dataset, str(digest)):
                manifests.append((dataset, str(digest)))
            elif _is_pointer(dataset, entry.key):
                pointers.append((dataset, entry.key))
        return manifests, pointers

    def _add_manifests(self, versions: Sequence[tuple[DatasetId, str]]) -> None:
        keys = [names.manifest_key(*each) for each in versions]
        for (dataset, digest), key, stored in zip(
            versions, keys, self._root.get_many(keys), strict=True
        ):
            if stored is None:
                continue  # withdrawn meanwhile
            what = self._root.uri(key)
            if hashlib.sha256(stored.data).hexdigest() != digest:
                raise ManifestCorruptedError(f"{what}: does not have its digest", hint=_HINT)
            self._add(dataset, digest, Manifest.parse(stored.data, what), what)

    def _add_pointers(self, pointers: Sequence[tuple[DatasetId, str]]) -> None:
        """Add the versions that pointers name and that have no manifest."""
        for (dataset, key), digest in zip(pointers, self._named(pointers), strict=True):
            if digest is not None and (dataset, digest) in self._read:
                continue
            (stored,) = self._root.get_many([key])
            if stored is None:
                continue  # removed meanwhile
            what = self._root.uri(key)
            pointer = Pointer.parse(stored, what)
            if pointer.is_withdrawn or (dataset, pointer.digest) in self._read:
                continue
            manifest = pointer.manifest
            try:
                manifest = manifest or self._lookup.manifest(dataset, pointer.digest)
            except NotFoundError:
                raise ManifestCorruptedError(
                    f"{what}: its version `{pointer.digest}` has no manifest", hint=_HINT
                ) from None
            self._add(dataset, pointer.digest, manifest, what)

    def _named(self, pointers: Sequence[tuple[DatasetId, str]]) -> Iterator[str | None]:
        """Return the digests that pointers begin with; None where that is not known."""
        ranges = [(key, 0, HEAD_BYTES) for _, key in pointers]
        try:
            heads = self._root.read_ranges(ranges)
        except (NotFoundError, CorruptError):  # one was removed meanwhile, or is not a pointer
            return iter([None] * len(pointers))
        return (digest_of_head(bytes(head)) for head in heads)

    def _add(self, dataset: DatasetId, digest: str, manifest: Manifest, what: str) -> None:
        for section in manifest.sections:
            if section not in _COUNTED:
                raise UnsupportedError(f"{what}: has the section `{section}`", hint=UPGRADE)
        complete = self._lookup.complete(manifest, what)
        # Lists of shards are blobs too, which the complete manifest may name in another way.
        for each in (manifest, complete):
            self.digests.update(ref.digest for ref in each.blobs())
        self._read.add((dataset, digest))
        self.versions += 1


def _is_pointer(dataset: DatasetId, key: str) -> bool:
    tag = key.removeprefix(names.tags_prefix(dataset)).removesuffix(".json")
    return key == names.pointer_key(dataset, None) or (
        names.is_tag(tag) and key == names.pointer_key(dataset, tag)
    )
