"""`Catalog`: the datasets of a root, their versions, and the pointers that name them."""

import builtins
import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any, Final, TypeAlias

import pyarrow as pa

from relive._arguments import as_int, as_text, check_choice
from relive.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidError,
    ManifestCorruptedError,
    NotFoundError,
    ReliveError,
    StorageError,
    UnsupportedError,
    VersionWithdrawnError,
)
from relive.publish.retention.protection import Protection
from relive.publish.version import listing, names, probe
from relive.publish.version.listing import Meta, VersionInfo
from relive.publish.version.lock_object import UnconditionalRoot, lock_object
from relive.publish.version.lookup import Version, VersionLookup, short
from relive.publish.version.manifest import Manifest
from relive.publish.version.names import DatasetId, Reference
from relive.publish.version.pointers import (
    Pointer,
    encode_pointer,
    encode_withdrawn,
    read_parts,
)
from relive.publish.version.withdrawn import Tombstone, bury, may_restore, restore, revive
from relive.store.blobs import blob_key
from relive.store.roots.root import Root

__all__ = ["Catalog", "Version", "VersionInfo"]

Confirm: TypeAlias = Callable[[], object]
"""Called when a manifest was written: makes sure that its blobs were not deleted meanwhile."""

_TRIES: Final = 100
_LOOKED_UP: Final = 1024
"""How many blobs are looked up in one round trip."""


def _nothing() -> None:
    """Confirm nothing."""


class Catalog(VersionLookup):
    """The datasets of a root. Makes no request until it is asked. Thread-safe and picklable.

    `lock` allows publishing to a store that ignores conditional puts, with a lock object.
    """

    def __init__(self, root: Root, *, lock: bool = False) -> None:
        super().__init__(root)
        self._may_lock = lock
        self._must_lock: bool | None = None  # unknown

    def check_conditional_puts(self) -> None:
        """Make sure that the root obeys conditional puts; one request after the first publish.

        If it does not, an `UnsupportedError`, unless a lock object is allowed.
        """
        if self._must_lock is not None:
            return
        if self.root.is_read_only or not probe.were_verified(self.root):
            try:
                probe.verify(self.root)
            except UnsupportedError:
                if not self._may_lock:
                    raise
                self._must_lock = True
                return
        self._must_lock = False

    @contextlib.contextmanager
    def protected(
        self, needed: Callable[[], Collection[str]], restore: Callable[[], object]
    ) -> Iterator[Confirm]:
        """Keep every gc from deleting what is `needed` for the length of a block.

        Return the `confirm` of a `Protection`. On a store that ignores conditional puts no gc may
        run, so there is nothing to do.
        """
        self.check_conditional_puts()
        if self._must_lock:
            yield _nothing
            return
        with Protection(self.root, needed, restore) as protection:
            yield protection.confirm

    def check_blobs(self, version: str, digests: Sequence[str]) -> None:
        """Raise a `NotFoundError` if a blob of a version does not exist."""
        for start in range(0, len(digests), _LOOKED_UP):
            group = digests[start : start + _LOOKED_UP]
            for digest, exists in zip(
                group, self.root.exists([blob_key(each) for each in group]), strict=True
            ):
                if not exists:
                    raise NotFoundError(
                        f"blob `{digest}` of `{version}` does not exist",
                        hint="the version was withdrawn, and `relive gc` deleted its data",
                    )

    def commit(
        self,
        dataset: DatasetId,
        manifest: Manifest,
        parts: Mapping[str, bytes],
        *,
        expected: Pointer | None,
        set_latest: bool = True,
        tag: str | None = None,
        force_tag: bool = False,
        message: str | None = None,
        author: str | None = None,
        parent: str | None = None,
        on_conflict: str = "raise",
        meta: Meta | None = None,
        confirm: Confirm = _nothing,
    ) -> str:
        """Publish a version whose blobs are stored, and return its digest.

        The caller keeps the blobs from being deleted; `confirm` is that of its `protection`.
        `meta` is stored instead of time, message, author and parent.

        `parts` are footers and leaf tables at hand, by digest; `expected` is `latest` as it was
        before the work began. If it has moved since, the version is published but `latest` stays:
        a `ConflictError`, or with `on_conflict="move"` it is moved anyway. A tag that exists is an
        `AlreadyExistsError` unless it names this version or `force_tag`. A version that `latest`
        and the tag name already costs at most three requests and writes nothing.
        """
        check_choice("on_conflict", on_conflict, ("raise", "move"))
        for what, text in (("`message`", message), ("`author`", author)):
            if text is not None:
                as_text(what, text)
        digest = manifest.digest
        tagged = None if tag is None else self._tagged(dataset, tag, digest, force=force_tag)
        if self._is_current(dataset, digest, expected, tag, tagged):
            return digest
        if meta is None:
            meta = Meta(listing.now(), message, author, parent, _relive_version(), pa.__version__)
        known = {**(expected.parts if expected else {}), **parts}
        with self._writing(dataset) as root:
            self._put_version(root, dataset, manifest, meta)
            confirm()
            if set_latest:
                force = on_conflict == "move"
                try:
                    self._move(root, dataset, None, manifest, known, expected=expected, force=force)
                except ConflictError:
                    self._list(root, dataset, [digest], None)
                    raise
            if tag is not None:
                self._move(root, dataset, tag, manifest, known, expected=tagged, force=force_tag)
            if revive(root, dataset, manifest):
                confirm()
            past = [expected.previous, expected.digest] if expected else []
            self._list(root, dataset, [each for each in (*past, digest) if each], tag)
        return digest

    def is_current(
        self,
        dataset: DatasetId,
        digest: str,
        expected: Pointer | None,
        tag: str | None,
        *,
        with_index: bool = True,
    ) -> bool:
        """Return whether a version is published, and `latest` and the tag name it.

        If so, the lists are repaired if necessary. At most three requests. With a tag, or without
        `with_index`, one is saved: the index is not read. It is written before the log, so that
        only damage by others is not noticed.
        """
        tagged = None if tag is None else self.pointer(dataset, tag)
        return self._is_current(dataset, digest, expected, tag, tagged, with_index=with_index)

    def _is_current(
        self,
        dataset: DatasetId,
        digest: str,
        expected: Pointer | None,
        tag: str | None,
        tagged: Pointer | None,
        *,
        with_index: bool = True,
    ) -> bool:
        if not names_version(expected, digest) or (
            tag is not None and _digest_of(tagged) != digest
        ):
            return False
        if not self.root.exists([names.manifest_key(dataset, digest)])[0]:
            return False  # only the pointer has it
        if not self._is_listed(dataset, digest, tag, with_index=with_index and tag is None):
            with self._writing(dataset) as root:
                self._list(root, dataset, [digest], tag)
        return True

    def tag(self, reference: Reference, tag: str, *, force: bool = False) -> str:
        """Let a tag name a version; one that exists is moved only with `force`."""
        with self._protected(reference) as (version, confirm):
            current = self._tagged(version.id, tag, version.digest, force=force)
            with self._writing(version.id) as root:
                parts = read_parts(self.root, version.manifest, version.parts)
                confirm()
                self._move(
                    root, version.id, tag, version.manifest, parts, expected=current, force=force
                )
                if revive(root, version.id, version.manifest):
                    confirm()
                self._list(root, version.id, [version.digest], tag)
        return version.digest

    def untag(self, dataset: DatasetId, tag: str) -> None:
        """Remove a tag; the version stays."""
        if self.pointer(dataset, tag) is None:
            raise self.missing_pointer(dataset, tag)
        with self._writing(dataset) as root:
            root.delete([names.pointer_key(dataset, tag)])
            self._change_log(root, dataset, lambda known: listing.set_tag(known, tag, None))

    def rollback(self, dataset: DatasetId, to: str | None = None) -> str:
        """Let `latest` name an earlier version, by default the one before; return its digest.

        A `ConflictError` if another publisher moves it meanwhile. With `to`, a damaged pointer is
        written again.
        """
        current = self._replaceable(dataset, None, even_damaged=to is not None)
        if current is None:
            raise self.missing_pointer(dataset, None)
        target = current.previous if to is None else names.as_version(to)
        if target is None:
            raise InvalidError(
                f"`latest` of `{dataset}` has no version before `{short(current.digest)}`",
                hint="name the version to go back to",
            )
        with self._protected(Reference(dataset, target)) as (version, confirm):
            with self._writing(dataset) as root:
                known = {**current.parts, **version.parts}
                parts = read_parts(self.root, version.manifest, known)
                confirm()
                self._move(root, dataset, None, version.manifest, parts, expected=current)
                if revive(root, dataset, version.manifest):
                    confirm()
                named = [current.digest] if current.digest else []
                self._list(root, dataset, [*named, version.digest], None)
            return version.digest

    def clone(
        self,
        reference: Reference,
        target: DatasetId,
        *,
        set_latest: bool = True,
        tag: str | None = None,
        message: str | None = None,
        author: str | None = None,
        on_conflict: str = "raise",
    ) -> str:
        """Publish a version as one of another dataset of this root, without copying a blob."""
        expected = self.pointer(target)
        with self._protected(reference) as (version, confirm):
            return self.adopt(
                version,
                target,
                expected=expected,
                set_latest=set_latest,
                tag=tag,
                message=message,
                author=author,
                on_conflict=on_conflict,
                confirm=confirm,
            )

    def adopt(self, version: Version, target: DatasetId, **options: Any) -> str:
        """Publish a version of this or another root, whose blobs are stored; as `commit`."""
        parts = read_parts(version.root, version.manifest, version.parts)
        return self.commit(target, version.manifest, parts, **options)

    def withdraw(self, reference: Reference, reason: str) -> str:
        """Withdraw a version: readers get a `VersionWithdrawnError`. Return its digest.

        `latest` may name it only if it is the last version that is left, and a tag may not.
        Publishing the same content again takes it back.
        """
        as_text("`reason`", reason)
        dataset, text = reference
        if text is None or not names.is_digest(text):
            raise InvalidError(
                f"`{reference}` is a pointer", hint="only a version is withdrawn: pass its digest"
            )
        digest = self.find_digest(dataset, text)
        with (
            self._protected(Reference(dataset, digest)) as (version, _),
            self._writing(dataset) as root,
        ):
            self._refuse_named(dataset, digest)
            self._withdraw(root, version, Tombstone(reason, listing.now()))
            self._list_withdrawn(root, dataset, digest)
        return digest

    def _withdraw(self, root: Root, version: Version, tombstone: Tombstone) -> None:
        """Write a tombstone and delete the manifest.

        If that is refused, everything is as it was before. After another error, such as one of the
        network, a part may be done: another process may be withdrawing the same version, and relies
        on it. Until the manifest is deleted, the version is not withdrawn.
        """
        dataset, digest = version.id, version.digest
        key, pointer_key = names.tombstone_key(dataset, digest), names.pointer_key(dataset, None)
        moved: tuple[Pointer, str] | None = None
        is_first = True
        try:
            try:
                root.create(key, tombstone.to_bytes(digest))
            except AlreadyExistsError:
                is_first = False
            while (latest := self._refuse_named(dataset, digest)) is not None:
                # From here on `latest` is read from the manifest, which is deleted next.
                with contextlib.suppress(ConflictError):
                    moved = latest, root.replace(pointer_key, encode_withdrawn(latest), latest.tag)
            self._bury(root, version)
        except (InvalidError, ConflictError):
            if may_restore(root, dataset, digest, is_first=is_first):
                if moved is not None:
                    _take_back(root, pointer_key, version.manifest, *moved)
                restore(root, dataset, version.manifest)
            raise

    def _bury(self, root: Root, version: Version) -> None:
        if not bury(root, version.id, version.manifest):
            raise ConflictError(
                f"`{version.id}@{short(version.digest)}` was published again or tagged while it was"
                " being withdrawn",
                hint="look what names it now, and try again",
            )

    def withdraw_old(
        self,
        dataset: DatasetId,
        reason: str,
        *,
        keep_last: int | None = None,
        older_than_s: float | None = None,
        dry_run: bool = False,
    ) -> builtins.list[str]:
        """Withdraw versions by a rule, never `latest` or a tagged one; return their digests.

        `keep_last` keeps that many, the newest; `older_than_s` withdraws those that were published
        longer ago. With both, what both rules select.
        """
        if keep_last is None and older_than_s is None:
            raise InvalidError("pass `keep_last` or `older_than_s`")
        present = [each for each in self.versions(dataset) if each.withdrawn is None]
        if keep_last is not None:
            present = present[: max(0, len(present) - as_int("keep_last", keep_last))]
        chosen = [
            each.digest
            for each in present
            if not (each.is_latest or each.tags)
            and (older_than_s is None or listing.is_older(each, older_than_s))
        ]
        if not dry_run:
            for digest in chosen:
                try:
                    self.withdraw(Reference(dataset, digest), reason)
                except VersionWithdrawnError:
                    # Who withdrew it may have been killed before the list was complete.
                    with self._writing(dataset) as root:
                        self._list_withdrawn(root, dataset, digest)
        return chosen

    def _list_withdrawn(self, root: Root, dataset: DatasetId, digest: str) -> None:
        """Note in the log why a version was withdrawn."""
        tombstone = Tombstone.find(root, dataset, digest)
        if tombstone is None:  # published again meanwhile
            return
        self._change_log(
            root, dataset, lambda known: listing.set_withdrawn(known, digest, tombstone.reason)
        )
        if not root.exists([names.tombstone_key(dataset, digest)])[0]:
            # Who published it again may have changed the log before.
            self._change_log(
                root, dataset, lambda known: listing.set_withdrawn(known, digest, None)
            )

    def reindex(self, target: DatasetId | str | None = None) -> builtins.list[DatasetId]:
        """Rebuild the lists of versions and datasets from what is stored; return the datasets.

        `target` is a dataset, a workspace, or None for everything.
        """
        stored = self.stored_datasets()
        if target is None:
            chosen = sorted(stored)
        elif isinstance(target, DatasetId):
            chosen = [target] if target in stored else []
        else:
            chosen = sorted(each for each in stored if each.workspace == target)
        for dataset in chosen:
            self._reindex(dataset, [d.name for d in stored if d.workspace == dataset.workspace])
        return chosen

    def _reindex(self, dataset: DatasetId, together: Iterable[str]) -> None:
        with self._writing(dataset) as root:
            stored = self.stored_versions(dataset)
            self._change_index(root, dataset.workspace, lambda _: together)
            self._change_log(root, dataset, lambda known: listing.merge(known, stored))

    @contextlib.contextmanager
    def _writing(self, dataset: DatasetId) -> Iterator[Root]:
        """Return a root whose conditional puts may be relied on for the length of a block."""
        self.check_conditional_puts()
        if not self._must_lock:
            yield self.root
            return
        with lock_object(self.root, names.lock_key(dataset)):
            yield UnconditionalRoot(self.root)

    @contextlib.contextmanager
    def _protected(self, reference: Reference) -> Iterator[tuple[Version, Confirm]]:
        """Resolve a version whose blobs no gc deletes for the length of a block.

        Also return what confirms that, after a manifest or a pointer was written.
        """
        found: list[Version] = []

        def digests() -> set[str]:
            return {ref.digest for ref in self.resolve(reference).manifest.blobs()}

        def restore() -> None:
            blobs = [ref.digest for ref in found[0].manifest.blobs()]
            self.check_blobs(found[0].pinned, blobs)

        with self.protected(digests, restore) as confirm:
            found.append(self.resolve(reference))
            yield found[0], confirm

    def _put_version(self, root: Root, dataset: DatasetId, manifest: Manifest, meta: Meta) -> None:
        """Write the manifest and the metadata."""
        put_segments(root, manifest)
        key, data = names.manifest_key(dataset, manifest.digest), manifest.to_bytes()
        try:
            root.create(key, data, immutable=True)
        except AlreadyExistsError:
            (stored,) = root.get_many([key])
            if stored is None or stored.data != data:
                root.put(key, data)  # it was damaged
        with contextlib.suppress(AlreadyExistsError):  # the first publisher wins
            root.create(names.meta_key(dataset, manifest.digest), meta.to_bytes())

    def _move(
        self,
        root: Root,
        dataset: DatasetId,
        tag: str | None,
        manifest: Manifest,
        parts: Mapping[str, bytes],
        *,
        expected: Pointer | None,
        force: bool = False,
    ) -> None:
        """Let a pointer name a version if it is still as expected, or with `force` in any case."""
        key, start = names.pointer_key(dataset, tag), _digest_of(expected)
        for _ in range(_TRIES):
            if names_version(expected, manifest.digest):
                return  # already, by another publisher, or by a request whose response was lost
            body = encode_pointer(
                manifest,
                parts,
                sequence=1 if expected is None else expected.sequence + 1,
                previous=_digest_of(expected) or None,
            )
            try:
                if expected is None:
                    root.create(key, body)
                else:
                    root.replace(key, body, expected.tag)
            except (AlreadyExistsError, ConflictError):
                expected = self.pointer(dataset, tag)
            else:
                return
            current = _digest_of(expected)
            if current not in {start, manifest.digest} and not force:
                raise self._conflict(dataset, tag, manifest.digest, current)
        raise StorageError(f"`{root.uri(key)}` was changed by other writers {_TRIES} times")

    def _is_listed(
        self, dataset: DatasetId, digest: str, tag: str | None, *, with_index: bool
    ) -> bool:
        """Return whether log and index have a version; one request each."""
        keys = [names.log_key(dataset), names.index_key(dataset.workspace)]
        log, *index = self.root.get_many(keys if with_index else keys[:1])
        try:
            known = [] if log is None else listing.parse_log(log.data, keys[0])
            if any(
                each is None or dataset.name not in listing.parse_index(each.data, keys[1])
                for each in index
            ):
                return False
        except ManifestCorruptedError:
            return False
        return any(
            each.digest == digest and (tag is None or tag in each.tags) and each.withdrawn is None
            for each in known
        )

    def _list(
        self, root: Root, dataset: DatasetId, digests: Sequence[str], tag: str | None
    ) -> None:
        """Add versions to the log and the dataset to the index; the last one has the tag."""

        def add(known: builtins.list[VersionInfo]) -> builtins.list[VersionInfo]:
            known = self.with_missing(dataset, known, digests)
            known = listing.set_withdrawn(known, digests[-1], None)
            return known if tag is None else listing.set_tag(known, tag, digests[-1])

        # The log is last: who finds the version there knows that nothing is missing.
        self._change_index(root, dataset.workspace, lambda known: {*known, dataset.name})
        self._change_log(root, dataset, add)

    def _change_log(
        self,
        root: Root,
        dataset: DatasetId,
        new: Callable[[builtins.list[VersionInfo]], builtins.list[VersionInfo]],
    ) -> None:
        key = names.log_key(dataset)

        def change(data: bytes | None) -> bytes:
            try:
                known = [] if data is None else listing.parse_log(data, root.uri(key))
            except ManifestCorruptedError:
                known = self.stored_versions(dataset)
            return listing.log_to_bytes(new(known))

        listing.change(root, key, change)

    def _change_index(
        self, root: Root, workspace: str, new: Callable[[builtins.list[str]], Iterable[str]]
    ) -> None:
        key = names.index_key(workspace)

        def change(data: bytes | None) -> bytes:
            try:
                known = [] if data is None else listing.parse_index(data, root.uri(key))
            except ManifestCorruptedError:
                known = [
                    each.name for each in self.stored_datasets() if each.workspace == workspace
                ]
            return listing.index_to_bytes(new(known))

        listing.change(root, key, change)

    def _tagged(self, dataset: DatasetId, tag: str, digest: str, *, force: bool) -> Pointer | None:
        """Return a tag; an `AlreadyExistsError` if it would have to be moved without `force`."""
        current = self._replaceable(dataset, tag, even_damaged=force)
        if current is not None and current.digest != digest and not force:
            raise self._tag_exists(dataset, tag, current.digest)
        return current

    def _replaceable(
        self, dataset: DatasetId, tag: str | None, *, even_damaged: bool
    ) -> Pointer | None:
        """Return a pointer that is about to be replaced; of a damaged one, only its state."""
        try:
            return self.pointer(dataset, tag)
        except ManifestCorruptedError:
            if not even_damaged:
                raise
            stored = self.root.get(names.pointer_key(dataset, tag))
            return Pointer(0, "", None, tag=stored.tag)

    def _refuse_named(self, dataset: DatasetId, digest: str) -> Pointer | None:
        """Raise an `InvalidError` if a pointer names a version.

        Return `latest` if it names it and there is no other version that it could name.
        """
        latest = self.pointer(dataset)
        is_named = names_version(latest, digest)
        if is_named and any(
            each.withdrawn is None and each.digest != digest for each in self.versions(dataset)
        ):
            raise InvalidError(
                f"`latest` of `{dataset}` names `{short(digest)}`",
                hint="publish another version or use `relive rollback` first",
            )
        tags = [tag for tag, named in self.tags(dataset).items() if named == digest]
        if tags:
            raise InvalidError(
                f"the tag `{tags[0]}` of `{dataset}` names `{short(digest)}`",
                hint=f"remove it with `relive untag {dataset}@{tags[0]}` first",
            )
        return latest if is_named else None

    def _tag_exists(self, dataset: DatasetId, tag: str, current: str | None) -> AlreadyExistsError:
        named = f": it names `{short(current)}`" if current else ""
        return AlreadyExistsError(
            f"the tag `{tag}` of `{dataset}` already exists{named}",
            hint="choose another, or move it: force_tag=True, --force-tag, `relive tag --force`",
        )

    def conflict(self, dataset: DatasetId, digest: str, current: Pointer | None) -> ReliveError:
        """Return the error for `latest` that another publisher moved."""
        return self._conflict(dataset, None, digest, _digest_of(current))

    def _conflict(
        self, dataset: DatasetId, tag: str | None, digest: str, current: str | None
    ) -> ReliveError:
        if tag is not None:
            return self._tag_exists(dataset, tag, current)
        now = "was removed" if current is None else f"names `{short(current)}` now"
        return ConflictError(
            f"`{dataset}@{short(digest)}` is published, but `latest` {now} and was not moved",
            digest=digest,
            current=current,
            hint="publish again on top of it, or pass on_conflict='move'",
        )


def _take_back(
    root: Root, key: str, manifest: Manifest, before: Pointer, withdrawn_tag: str
) -> None:
    """Let a pointer be as it was before its version was to be withdrawn, unless it was moved."""
    body = encode_pointer(
        manifest, before.parts, sequence=before.sequence + 2, previous=before.previous
    )
    with contextlib.suppress(ConflictError):
        root.replace(key, body, withdrawn_tag)


def put_segments(root: Root, manifest: Manifest) -> None:
    """Write the lists of shards of a manifest that has more than it may list itself."""
    for ref, (data, leaves) in manifest.new_segments().items():
        if ref.leaves is not None:
            root.put(blob_key(ref.leaves), leaves)
        root.put(blob_key(ref.digest), data)


def names_version(pointer: Pointer | None, digest: str) -> bool:
    """Return whether a pointer names a version, which was not withdrawn."""
    return pointer is not None and pointer.digest == digest and not pointer.is_withdrawn


def _digest_of(pointer: Pointer | None) -> str | None:
    return None if pointer is None else pointer.digest


def _relive_version() -> str | None:
    try:
        return metadata.version("relive")
    except metadata.PackageNotFoundError:
        return None
