"""Finds the versions of a root: by pointer, by digest, in the lists, and by listing objects."""

import builtins
import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from relive.errors import (
    CorruptError,
    DatasetNotFoundError,
    InvalidError,
    ManifestCorruptedError,
    NotFoundError,
    UnsupportedError,
    VersionWithdrawnError,
)
from relive.publish.version import listing, names
from relive.publish.version.listing import Meta, VersionInfo
from relive.publish.version.manifest import Manifest, Shard
from relive.publish.version.names import DatasetId, Reference
from relive.publish.version.pointers import HEAD_BYTES, Pointer, digest_of_head
from relive.publish.version.withdrawn import Tombstone
from relive.store.blobs import BlobRef, blob_key
from relive.store.remote.failures import BucketNotFoundError
from relive.store.roots.root import Root

_SHOWN: Final = 12
_DIGITS: Final = 64
_PARTS: Final = 4


@dataclass(frozen=True)
class Version:
    """A version that was resolved: its manifest, and what its pointer inlines."""

    id: DatasetId
    digest: str
    manifest: Manifest
    root: Root
    parts: Mapping[str, bytes] = field(default_factory=dict)
    """Footers and leaf tables of shards by digest, verified."""

    @property
    def pinned(self) -> str:
        """The reference that always means this version: `ws/name@digest`."""
        return f"{self.id}@{self.digest}"

    @cached_property
    def meta(self) -> Meta:
        """Time, message and author; one request. Empty if the publisher was killed before it."""
        key = names.meta_key(self.id, self.digest)
        (stored,) = self.root.get_many([key])
        return Meta() if stored is None else Meta.parse(stored.data, self.root.uri(key))

    def leaf_tables(self) -> Iterator[tuple[str, bytes]]:
        """Return the digests of the leaf tables that were inlined, and the tables."""
        for table in self.manifest.tables.values():
            for blob in (shard.blob for shard in table.shards):
                if blob.leaves is not None and len(self.parts.get(blob.leaves, b"")) == (
                    blob.table_nbytes
                ):
                    yield blob.leaves, self.parts[blob.leaves]

    def footer(self, shard: Shard) -> bytes | None:
        """Return the footer of a shard if it was inlined, verified."""
        data = self.parts.get(shard.footer.digest)
        if data is not None and len(data) != shard.footer.nbytes:
            raise ManifestCorruptedError(
                f"`{self.pinned}`: the footer of blob `{shard.blob.digest}` has {len(data)} bytes, "
                f"expected {shard.footer.nbytes}"
            )
        return data


class VersionLookup:
    """Reads what a root has of datasets and versions; writes nothing."""

    def __init__(self, root: Root) -> None:
        self.root = root

    def pointer(
        self, dataset: DatasetId, tag: str | None = None, *, retry_s: float | None = None
    ) -> Pointer | None:
        """Return `latest` or a tag, None if there is none; one request."""
        key = names.pointer_key(dataset, tag if tag is None else names.check_tag(tag))
        try:
            stored = self.root.get(key, retry_s=retry_s)
        except BucketNotFoundError:
            raise
        except NotFoundError:
            return None
        return Pointer.parse(stored, self.root.uri(key))

    def manifest(self, dataset: DatasetId, digest: str) -> Manifest:
        """Return the manifest of a version by its whole digest; one request."""
        key = names.manifest_key(dataset, digest)
        try:
            data = self.root.get(key).data
        except BucketNotFoundError:
            raise
        except NotFoundError:
            raise self._missing_version(dataset, digest) from None
        what = self.root.uri(key)
        if (found := hashlib.sha256(data).hexdigest()) != digest:
            raise ManifestCorruptedError(
                f"{what}: has the digest `{found}`",
                hint="publish the same content again, or restore the object from a copy",
            )
        return self.complete(Manifest.parse(data, what), what)

    def resolve(self, reference: Reference, *, retry_s: float | None = None) -> Version:
        """Return the version that a reference names.

        One request for `latest`, a tag or a digest; another one if the manifest is not inlined.
        """
        dataset, version = reference
        if version is not None and names.is_digest(version):
            digest = self.find_digest(dataset, version)
            return Version(dataset, digest, self.manifest(dataset, digest), self.root)
        pointer = self.pointer(dataset, version, retry_s=retry_s)
        if pointer is None:
            raise self.missing_pointer(dataset, version)
        if pointer.manifest is None:
            manifest = self.manifest(dataset, pointer.digest)
        else:
            manifest = self.complete(pointer.manifest, f"`{reference}`")
        return Version(dataset, pointer.digest, manifest, self.root, pointer.parts)

    def find_digest(self, dataset: DatasetId, start: str) -> str:
        """Return the only digest that begins with these digits; no request for a whole one."""
        if len(start) == _DIGITS:
            return start
        keys = [names.log_key(dataset), names.pointer_key(dataset, None)]
        log, latest = self.root.get_many(keys)
        found = set[str]()
        if log is not None:
            found |= {each.digest for each in listing.parse_log(log.data, self.root.uri(keys[0]))}
        if latest is not None:
            with contextlib.suppress(ManifestCorruptedError):  # `rollback` may be repairing it
                found.add(Pointer.parse(latest, self.root.uri(keys[1])).digest)
        found = {each for each in found if each.startswith(start)}
        if not found:
            found = {each for each in self._stored_digests(dataset) if each.startswith(start)}
        if len(found) > 1:
            shown = ", ".join(f"`{each[: len(start) + 4]}`" for each in sorted(found)[:5])
            raise InvalidError(f"several versions of `{dataset}` begin with `{start}`: {shown}")
        if not found:
            raise self._missing_version(dataset, start)
        return found.pop()

    def versions(self, dataset: DatasetId) -> builtins.list[VersionInfo]:
        """Return all versions, oldest first: those of the log, and what pointers name."""
        keys = [names.log_key(dataset), names.pointer_key(dataset, None)]
        log, latest = self.root.get_many(keys)
        known = [] if log is None else listing.parse_log(log.data, self.root.uri(keys[0]))
        named = None if latest is None else Pointer.parse(latest, self.root.uri(keys[1]))
        tags = self._tags(dataset, known)
        latest_digest = None if named is None else named.digest
        is_withdrawn = named is not None and named.is_withdrawn
        wanted = [None if named is None else named.previous, latest_digest, *tags.values()]
        known = self.with_missing(dataset, known, [each for each in wanted if each is not None])
        if not known:
            raise self.missing_pointer(dataset, None)
        made = []
        for each in known:
            of = tuple(sorted(tag for tag, digest in tags.items() if digest == each.digest))
            is_latest = each.digest == latest_digest and not is_withdrawn
            why = None if of or is_latest else each.withdrawn
            made.append(replace(each, tags=of, is_latest=is_latest, withdrawn=why))
        return made

    def tags(self, dataset: DatasetId) -> dict[str, str]:
        """Return the digest that each tag names."""
        key = names.log_key(dataset)
        (log,) = self.root.get_many([key])
        known = [] if log is None else listing.parse_log(log.data, self.root.uri(key))
        return self._tags(dataset, known)

    def list(self, workspace: str | None = None) -> builtins.list[DatasetId]:
        """Return the datasets of a workspace by its index; without one, by listing the root."""
        if workspace is None:
            try:
                return sorted(self.stored_datasets())
            except UnsupportedError as error:
                hint = "name a workspace, as in `ws/`"
                raise UnsupportedError(error.message, hint=hint) from None
        if not names.is_id_part(workspace):
            raise InvalidError(f"`{workspace}` is not the name of a workspace")
        key = names.index_key(workspace)
        (stored,) = self.root.get_many([key])
        found = [] if stored is None else listing.parse_index(stored.data, self.root.uri(key))
        return [DatasetId(workspace, name) for name in found]

    def with_missing(
        self, dataset: DatasetId, known: builtins.list[VersionInfo], digests: Iterable[str]
    ) -> builtins.list[VersionInfo]:
        """Return the versions and those of `digests` that are missing, which a kill left out."""
        have = {each.digest for each in known}
        missing = [each for each in dict.fromkeys(digests) if each not in have]
        last = max((each.sequence for each in known), default=0)
        found = self._described(dataset, missing)
        return [*known, *(replace(each, sequence=last + n) for n, each in enumerate(found, 1))]

    def stored_versions(self, dataset: DatasetId) -> builtins.list[VersionInfo]:
        """Return all versions of a dataset by listing its objects; none on a web server."""
        digests = self._stored_digests(dataset)
        found = sorted(self._described(dataset, list(digests)), key=lambda each: each.time or "")
        for tag, digest in self._tags(dataset, []).items():
            found = listing.set_tag(found, tag, digest)
        has_manifest = {digest for digest, is_there in digests.items() if is_there}
        return [
            replace(
                each, sequence=n, withdrawn=None if each.digest in has_manifest else each.withdrawn
            )
            for n, each in enumerate(found, 1)
        ]

    def stored_datasets(self) -> set[DatasetId]:
        """Return all datasets by listing the objects of the root."""
        parts = [entry.key.split("/") for entry in self.root.list(names.MANIFESTS)]
        return {
            DatasetId(each[1], each[2])
            for each in parts
            if len(each) >= _PARTS and names.is_id_part(each[1]) and names.is_id_part(each[2])
        }

    def missing_pointer(self, dataset: DatasetId, tag: str | None) -> DatasetNotFoundError:
        """Return the error for a tag or `latest` that does not exist, with what does."""
        key = names.log_key(dataset)
        (log,) = self.root.get_many([key])
        if log is None:
            return DatasetNotFoundError(
                f"the root `{self.root.name}` has no dataset `{dataset}`",
                hint="check the spelling and the root; "
                f"`relive list-remote {dataset.workspace}/` lists what is there",
            )
        known = listing.parse_log(log.data, self.root.uri(key))
        there = sorted({tag for each in known for tag in each.tags})
        there += [short(each.digest) for each in known[-3:] if each.withdrawn is None]
        hint = f"there are {', '.join(f'`@{each}`' for each in there[:10])}" if there else None
        what = "no `latest`" if tag is None else f"no tag `{tag}`"
        return DatasetNotFoundError(f"the dataset `{dataset}` has {what}", hint=hint)

    def complete(self, manifest: Manifest, what: str) -> Manifest:
        """Return a manifest with the lists of shards that are stored in blobs of their own."""
        return manifest.with_segments(self._read_blobs, what)

    def _missing_version(self, dataset: DatasetId, digest: str) -> NotFoundError:
        tombstone = Tombstone.find(self.root, dataset, digest) if len(digest) == _DIGITS else None
        if tombstone is not None:
            return VersionWithdrawnError(
                f"`{dataset}@{short(digest)}` was withdrawn at {tombstone.time}: "
                f"{tombstone.reason}",
                hint=f"`relive info {dataset}` shows the other versions",
            )
        return DatasetNotFoundError(
            f"the root `{self.root.name}` has no version `{short(digest)}` of `{dataset}`"
        )

    def _read_blobs(self, refs: Sequence[BlobRef]) -> builtins.list[bytes]:
        """Return small blobs, verified, in one round trip."""
        keys = [blob_key(ref.digest) for ref in refs]
        read = []
        for ref, key, stored in zip(refs, keys, self.root.get_many(keys), strict=True):
            if stored is None:
                raise NotFoundError(f"`{self.root.uri(key)}` does not exist")
            if hashlib.sha256(stored.data).hexdigest() != ref.digest:
                raise CorruptError(f"`{self.root.uri(key)}` does not have its digest")
            read.append(stored.data)
        return read

    def _tags(self, dataset: DatasetId, known: Sequence[VersionInfo]) -> dict[str, str]:
        """Return the tags by listing them; on a web server, those of the log."""
        prefix = names.tags_prefix(dataset)
        try:
            keys = [entry.key for entry in self.root.list(prefix)]
        except UnsupportedError:
            return self._read_tags(dataset, [tag for each in known for tag in each.tags])
        found = [key.removeprefix(prefix).removesuffix(".json") for key in keys]
        tags = [tag for tag in found if names.is_tag(tag)]
        ranges = [(names.pointer_key(dataset, tag), 0, HEAD_BYTES) for tag in tags]
        try:
            heads = [digest_of_head(bytes(head)) for head in self.root.read_ranges(ranges)]
        except (NotFoundError, CorruptError):  # removed meanwhile, or not a pointer
            return self._read_tags(dataset, tags)
        read = {tag: head for tag, head in zip(tags, heads, strict=True) if head is not None}
        return read if len(read) == len(tags) else self._read_tags(dataset, tags)

    def _read_tags(self, dataset: DatasetId, tags: Sequence[str]) -> dict[str, str]:
        keys = [names.pointer_key(dataset, tag) for tag in tags]
        found = zip(tags, keys, self.root.get_many(keys), strict=True)
        return {
            tag: Pointer.parse(stored, self.root.uri(key)).digest
            for tag, key, stored in found
            if stored is not None
        }

    def _described(self, dataset: DatasetId, digests: Sequence[str]) -> builtins.list[VersionInfo]:
        """Return what is known of versions that are not in the log, in one round trip."""
        keys = [names.meta_key(dataset, each) for each in digests]
        keys += [names.tombstone_key(dataset, each) for each in digests]
        found = self.root.get_many(keys) if keys else []
        made = []
        for place, digest in enumerate(digests):
            meta, tombstone = found[place], found[len(digests) + place]
            known = Meta() if meta is None else Meta.parse(meta.data, self.root.uri(keys[place]))
            why = None if tombstone is None else Tombstone.parse(tombstone.data, digest).reason
            made.append(VersionInfo(1, digest, known.parent, (), known.message, known.time, why))
        return made

    def _stored_digests(self, dataset: DatasetId) -> dict[str, bool]:
        """Return the digests of all versions, and whether the manifest is there."""
        found: dict[str, bool] = {}
        try:
            for entry in self.root.list(dataset.folder):
                digest, is_manifest = names.version_in(entry.key)
                if digest is not None:
                    found[digest] = found.get(digest, False) or is_manifest
        except UnsupportedError:
            return {}
        return found


def short(digest: str) -> str:
    """Return the digits of a digest that messages show."""
    return digest[:_SHOWN]
