"""`mirror`: copies a version to another root, or to one tar file for a machine offline."""

import contextlib
import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from relive._arguments import worker_count
from relive.errors import CorruptError, InvalidError, NotFoundError, ReadOnlyError
from relive.model.report import Progress
from relive.publish.manage.tar_writer import write_tar
from relive.publish.version import names
from relive.publish.version.catalog import Catalog
from relive.publish.version.lookup import Version
from relive.publish.version.names import DatasetId, Reference
from relive.store.blobs import BlobRef, Blobs, blob_key
from relive.store.paths import absolute_path
from relive.store.roots import Root, open_root

_PIECE_BYTES: Final = 16 << 20
"""How much of a blob is read at once; larger ones are copied through a temporary file."""
_AT_ONCE: Final = 8
_LOOKED_UP: Final = 1024


@dataclass(frozen=True, slots=True)
class MirrorReport:
    """What `mirror` copied.

    Example:
        >>> MirrorReport(
        ...     "lab/kitchen", "5e0f", blobs=3, nbytes=900, copied=1, copied_bytes=300
        ... ).copied
        1
    """

    dataset: str
    digest: str
    blobs: int
    """The number of blobs of the version, leaf tables included."""
    nbytes: int
    copied: int
    """How many of them were not there yet."""
    copied_bytes: int


def mirror(
    source: str | os.PathLike[str],
    *,
    to: str | os.PathLike[str] | Root | None = None,
    tar: str | os.PathLike[str] | None = None,
    root: str | os.PathLike[str] | Root | None = None,
    target: str | None = None,
    set_latest: bool = True,
    tag: str | None = None,
    force_tag: bool = False,
    on_conflict: str = "raise",
    progress: Progress | None = None,
    workers: int | None = None,
    to_options: Mapping[str, Any] | None = None,
    **remote: Any,
) -> MirrorReport:
    """Copy a version to another root, or write it to a tar file; it keeps its digest.

    Every byte is compared with its digest before it is stored. What the other root has already is
    not copied, so a copy that was interrupted is continued by calling it again.

    Like publishing, it moves `latest` of the target to the version, unless `set_latest=False`. The
    same dataset of the same root is an `InvalidError`.

    Args:
        source: `ws/name@version`, or the path of a tar file that `mirror` wrote.
        to: The address of the other root.
        tar: The path of the file to write, instead of `to`. It has the layout of a root: it can be
            unpacked into a directory, and read as it is with `root="file.tar"`.
        root: The root of the source; by default `RELIVE_ROOT`.
        target: The name of the dataset there, `ws/name`; by default the same.
        set_latest: Let `latest` of the other root name the version.
        tag: A tag for it there; by default the one of the source, if it was named by a tag.
        force_tag: Move the tag if it names another version there.
        on_conflict: `"move"` moves `latest` even if another publisher moves it meanwhile.
        progress: Called with the bytes that are copied and those that are to be.
        workers: The number of blobs that are copied at a time.
        to_options: Options of the other root, such as `endpoint` and `region`.
        remote: Options of the root of the source.

    Example:
        >>> import pyarrow as pa, relive
        >>> from relive.publish import mirror
        >>> builder = relive.DatasetBuilder("lab/kitchen", root="root")
        >>> builder.add_table("main", pa.table({"step": [1, 2, 3]}))
        >>> digest = builder.publish(tag="v1")
        >>> mirror("lab/kitchen@v1", root="root", to="copy").copied
        1
        >>> relive.dataset("lab/kitchen@v1", root="copy").table().count()
        3
    """
    if (to is None) == (tar is None):
        raise InvalidError("pass either `to`, a root, or `tar`, a file")
    version, found_tag = _resolve(source, root, remote)
    tag = tag or found_tag
    dataset = version.id if target is None else names.parse_id(target)
    if tag is not None:
        names.check_tag(tag)
    if tar is not None:
        return _to_tar(version, dataset, Path(absolute_path(tar, "a tar file")), tag, progress)
    other = open_root(to, **dict(to_options or {}))
    if other.is_read_only:
        raise ReadOnlyError(f"the root `{other.name}` is read-only", hint="copy to another root")
    if dataset == version.id and _is_same(version.root, other):
        raise InvalidError(
            f"`{dataset}` of the root `{other.name}` cannot be copied to itself",
            hint="use `relive rollback` to move `latest` to another version, or target= for "
            "another name",
        )
    copy = _Copy(version, other, progress, worker_count(workers) if workers else _AT_ONCE)
    catalog = Catalog(other)
    expected = catalog.pointer(dataset)
    with catalog.protected(copy.digests, copy.run) as confirm:
        copy.run()
        catalog.adopt(
            version,
            dataset,
            expected=expected,
            set_latest=set_latest,
            tag=tag,
            force_tag=force_tag,
            on_conflict=on_conflict,
            meta=version.meta,
            confirm=confirm,
        )
    return copy.report(dataset)


def _is_same(one: Root, other: Root) -> bool:
    """Check whether two roots are the same place; directories may have several paths."""
    if one.path is None or other.path is None:
        return one.identity == other.identity
    with contextlib.suppress(OSError):
        return one.path.samefile(other.path)
    return False  # one of them does not exist yet


def _resolve(
    source: str | os.PathLike[str], root: Any, remote: dict[str, Any]
) -> tuple[Version, str | None]:
    """Return the version that is copied, and the tag that named it."""
    if os.fspath(source).endswith(".tar"):
        if not Path(source).is_file():
            raise NotFoundError(f"the file `{os.fspath(source)}` does not exist")
        opened = open_root(source)
        found = [
            (DatasetId(*entry.key.split("/")[1:3]), digest)
            for entry in opened.list(names.MANIFESTS)
            for digest, is_manifest in [names.version_in(entry.key)]
            if digest is not None and is_manifest
        ]
        if len(found) != 1:
            raise InvalidError(
                f"`{os.fspath(source)}` has {len(found)} versions, expected one",
                hint="pass it as root= and name the version",
            )
        lookup = Catalog(opened)
        tags = [tag for tag, named in lookup.tags(found[0][0]).items() if named == found[0][1]]
        return lookup.resolve(Reference(*found[0])), (tags[0] if tags else None)
    reference = names.parse_reference(os.fspath(source))
    named = reference.version
    is_tag = named is not None and not names.is_digest(named)
    return Catalog(open_root(root, **remote)).resolve(reference), named if is_tag else None


class _Copy:
    """Copies the blobs of a version that another root lacks."""

    def __init__(
        self, version: Version, target: Root, progress: Progress | None, workers: int
    ) -> None:
        self._version = version
        self._refs = list(version.manifest.blobs())
        self._source = Blobs(version.root)
        self._target = target
        self._progress = progress
        self._workers = workers
        self._lock = threading.Lock()
        self._done = self._total = 0
        self._copied: dict[str, int] = {}

    def digests(self) -> set[str]:
        """Return the digests of all blobs of the version."""
        return {ref.digest for ref in self._refs}

    def run(self) -> None:
        """Copy what is missing or has another size; leaf tables first."""
        missing = [ref for ref, size in self._sizes() if size != ref.nbytes]
        self._done, self._total = 0, sum(ref.nbytes for ref in missing)
        self._advance(0)
        tables = {ref.leaves for ref in self._refs}
        first = [ref for ref in missing if ref.digest in tables]
        others = [ref for ref in missing if ref.digest not in tables]
        for group in (first, others):
            with ThreadPoolExecutor(self._workers, "relive-mirror") as pool:
                futures = [pool.submit(self._copy, ref) for ref in group]
                try:
                    for future in futures:
                        future.result()
                except BaseException:
                    pool.shutdown(wait=True, cancel_futures=True)
                    raise
        wrong = [ref for ref, size in self._sizes() if size != ref.nbytes]
        if wrong:
            raise CorruptError(
                f"`{self._target.uri(blob_key(wrong[0].digest))}` was written, but does not have"
                f" {wrong[0].nbytes} bytes",
                hint="try again; if it happens again, check the store",
            )

    def report(self, dataset: DatasetId) -> MirrorReport:
        """Return what was copied."""
        return MirrorReport(
            str(dataset),
            self._version.digest,
            len(self._refs),
            sum(ref.nbytes for ref in self._refs),
            len(self._copied),
            sum(self._copied.values()),
        )

    def _sizes(self) -> Iterator[tuple[BlobRef, int | None]]:
        for start in range(0, len(self._refs), _LOOKED_UP):
            group = self._refs[start : start + _LOOKED_UP]
            sizes = self._target.sizes([blob_key(ref.digest) for ref in group])
            yield from zip(group, sizes, strict=True)

    def _copy(self, ref: BlobRef) -> None:
        key = blob_key(ref.digest)
        if ref.nbytes <= _PIECE_BYTES:
            self._target.put(key, b"".join(read_verified(self._source, ref, self._advance)))
        else:
            with tempfile.NamedTemporaryFile(prefix="relive-mirror-") as file:
                for piece in read_verified(self._source, ref, self._advance):
                    file.write(piece)
                file.flush()
                self._target.put(key, Path(file.name))
        with self._lock:
            self._copied[ref.digest] = ref.nbytes

    def _advance(self, nbytes: int) -> None:
        with self._lock:
            self._done += nbytes
            if self._progress is not None:
                self._progress(self._done, self._total)


def read_verified(blobs: Blobs, ref: BlobRef, advance: Callable[[int], object]) -> Iterator[bytes]:
    """Yield a blob in pieces; its leaves are verified, and its digest before the last piece."""
    digest = hashlib.sha256()
    pieces = [
        (start, min(start + _PIECE_BYTES, ref.nbytes))
        for start in range(0, ref.nbytes, _PIECE_BYTES)
    ]
    for start, stop in pieces or [(0, 0)]:
        data = bytes(blobs.read_many([(ref, start, stop)])[0])
        digest.update(data)
        if stop == ref.nbytes and digest.hexdigest() != ref.digest:
            raise CorruptError(
                f"`{blobs.root.uri(blob_key(ref.digest))}` does not have its digest",
                hint="restore the blob from a copy of the root, or publish its data again",
            )
        yield data
        advance(len(data))


def _to_tar(
    version: Version, dataset: DatasetId, path: Path, tag: str | None, progress: Progress | None
) -> MirrorReport:
    refs = list(version.manifest.blobs())
    total = sum(ref.nbytes for ref in refs)
    blobs, done = Blobs(version.root), 0

    def advance(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if progress is not None:
            progress(done, total)

    advance(0)
    written = write_tar(
        path,
        [(blob_key(ref.digest), ref.nbytes, _pieces(blobs, ref, advance)) for ref in refs],
        _documents(version, dataset, tag),
        advance,
    )
    sizes = {blob_key(ref.digest): ref.nbytes for ref in refs}
    copied = [sizes[key] for key in written]
    return MirrorReport(str(dataset), version.digest, len(refs), total, len(copied), sum(copied))


def _pieces(
    blobs: Blobs, ref: BlobRef, advance: Callable[[int], object]
) -> Callable[[], Iterator[bytes]]:
    return lambda: read_verified(blobs, ref, advance)


def _documents(version: Version, dataset: DatasetId, tag: str | None) -> list[tuple[str, bytes]]:
    """Return the objects of a root that has only this version, in the order of publishing."""
    from relive.store.roots.memory import MemoryRoot

    memory = MemoryRoot(f"relive-mirror-{os.getpid()}-{version.digest}-{id(version)}")
    try:
        Catalog(memory).adopt(version, dataset, expected=None, tag=tag, meta=version.meta)
        keys: Sequence[str] = [entry.key for entry in memory.list()]
        order = sorted(keys, key=lambda key: (not names.version_in(key)[1], key))
        return [(key, memory.get(key).data) for key in order if not key.startswith("blobs/")]
    finally:
        memory.delete([entry.key for entry in memory.list()])
