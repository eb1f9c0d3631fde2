"""Checks a published version: every blob is there and has the bytes that its digest names."""

import hashlib
import io
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from relive.errors import CorruptError, ManifestCorruptedError, NotFoundError
from relive.model.report import Level, Problem, Progress, Report, check_level
from relive.publish.version.catalog import Catalog
from relive.publish.version.manifest import Manifest, Shard, leaf_table_ref
from relive.publish.version.names import (
    Reference,
    manifest_key,
    parse_reference,
)
from relive.store.blobs import LEAF_BYTES, BlobRef, Blobs, blob_key
from relive.store.roots import Root, open_root

if TYPE_CHECKING:
    from relive.publish.version.lookup import Version

_LOOKED_UP: Final = 1024
"""How many blobs are looked up in one round trip."""
_AT_ONCE: Final = 64
"""How many shards are read in one round trip."""
_WAVE_BYTES: Final = 32 << 20
"""How many bytes are read in one round trip; a multiple of the size of a leaf."""

_Read = tuple[BlobRef, int, int]


def validate(
    reference: str,
    level: Level = "sample",
    *,
    root: str | os.PathLike[str] | Root | None = None,
    progress: Progress | None = None,
    **remote: Any,
) -> Report:
    """Check a published version and return what is wrong.

    `index` checks the manifest, and that every blob exists and has its size; `sample` also the
    footer and three leaves of each shard; `full` every byte. `progress` is called with blobs, or
    with bytes for `full`.

    Raises:
        DatasetNotFoundError: the root has no such dataset or version.
        VersionWithdrawnError: the version was withdrawn.

    Example:
        >>> import pyarrow as pa, relive
        >>> from relive.publish import validate
        >>> builder = relive.DatasetBuilder("lab/kitchen", root="root")
        >>> builder.add_table("main", pa.table({"step": [1, 2, 3]}))
        >>> digest = builder.publish()
        >>> validate("lab/kitchen", "full", root="root").ok
        True
    """
    check_level(level)
    opened = open_root(root, **remote)
    parsed = parse_reference(reference)
    try:
        version = Catalog(opened).resolve(parsed)
    except (ManifestCorruptedError, CorruptError) as error:
        problem = Problem(f"relive://{parsed}", error.kind, error.message)
        return Report(level, {"blobs": 0}, (problem,))
    return validate_version(version, opened, level, progress=progress)


def validate_version(
    version: "Version", root: Root, level: Level = "sample", *, progress: Progress | None = None
) -> Report:
    """Check a version that was resolved; see `validate`."""
    check_level(level)
    check = _Check(root, version.manifest, progress or _silent)
    check.manifest(Reference(version.id, version.digest))
    check.presence()
    if level != "index":
        check.footers()
    if level == "sample":
        check.samples()
    elif level == "full":
        check.every_byte()
    checked = {"blobs": check.present} | ({"bytes": check.read_bytes} if level != "index" else {})
    return Report(level, checked, tuple(check.problems))


class _Check:
    """Checks one version and collects the problems; a blob that has one is not read again."""

    def __init__(self, root: Root, manifest: Manifest, progress: Progress) -> None:
        self.problems: list[Problem] = []
        self.present = 0
        self.read_bytes = 0
        self._root = root
        self._manifest = manifest
        self._progress = progress
        self._blobs = Blobs(root)
        self._bad = set[str]()
        self._tables = {
            shard.blob.digest: name
            for name, table in manifest.tables.items()
            for shard in table.shards
        }

    def manifest(self, reference: Reference) -> None:
        """Compare the stored manifest with the version, which may come from a pointer."""
        key = manifest_key(reference.id, str(reference.version))
        try:
            data = self._root.get(key).data
        except NotFoundError as error:
            self.problems.append(Problem(self._root.uri(key), error.kind, error.message))
            return
        found = hashlib.sha256(data).hexdigest()
        if found != reference.version:
            message = f"the manifest has the digest {found}, expected {reference.version}"
            kind = ManifestCorruptedError.kind
            self.problems.append(Problem(self._root.uri(key), kind, message))

    def presence(self) -> None:
        """Find the blobs that do not exist, and those of another size."""
        every = list(self._manifest.blobs())
        owners = {
            leaves.digest: self._tables.get(ref.digest)
            for ref in every
            if (leaves := leaf_table_ref(ref)) is not None
        }
        self._tables |= {key: name for key, name in owners.items() if name is not None}
        for start in range(0, len(every), _LOOKED_UP):
            group = every[start : start + _LOOKED_UP]
            sizes = self._root.sizes([blob_key(ref.digest) for ref in group])
            for ref, size in zip(group, sizes, strict=True):
                if size is None:
                    self._report(ref, NotFoundError.kind, "the blob does not exist")
                elif size != ref.nbytes:
                    message = f"the blob has {size} bytes, expected {ref.nbytes}"
                    self._report(ref, CorruptError.kind, message)
                else:
                    self.present += 1
            self._progress(start + len(group), len(every))

    def footers(self) -> None:
        """Compare the footer of each shard with the manifest: its digest and number of rows."""
        shards = [shard for table in self._manifest.tables.values() for shard in table.shards]
        wanted = [shard for shard in shards if shard.blob.digest not in self._bad]
        for start in range(0, len(wanted), _AT_ONCE):
            group = wanted[start : start + _AT_ONCE]
            reads = [
                (shard.blob, shard.blob.nbytes - shard.footer.nbytes, shard.blob.nbytes)
                for shard in group
            ]
            for shard, data in zip(group, self._read(reads), strict=True):
                if data is not None:
                    self._footer(shard, data)

    def samples(self) -> None:
        """Read the first, a middle and the last leaf of each shard."""
        refs = self._readable()
        for start in range(0, len(refs), _AT_ONCE):
            group = refs[start : start + _AT_ONCE]
            self._read([read for ref in group for read in _spread(ref)])
            self._progress(start + len(group), len(refs))

    def every_byte(self) -> None:
        """Read every blob, and compare its leaves and its digest."""
        refs = self._readable()
        total = sum(ref.nbytes for ref in refs)
        done = 0
        digests = {ref.digest: hashlib.sha256() for ref in refs}
        for wave in _waves(refs):
            for (ref, _, stop), data in zip(wave, self._read(wave), strict=True):
                if data is None or ref.digest in self._bad:
                    continue
                digests[ref.digest].update(data)
                if stop == ref.nbytes and digests[ref.digest].hexdigest() != ref.digest:
                    message = f"the blob has the digest {digests[ref.digest].hexdigest()}"
                    self._report(ref, CorruptError.kind, message)
            done += sum(stop - start for _, start, stop in wave)
            self._progress(done, total)

    def _readable(self) -> list[BlobRef]:
        # Leaf tables are compared with their digests when they are used.
        tables = {ref.leaves for ref in self._manifest.blobs() if ref.leaves is not None}
        return [
            ref
            for ref in self._manifest.blobs()
            if ref.digest not in tables and ref.digest not in self._bad
        ]

    def _read(self, reads: Sequence[_Read]) -> list[Any]:
        """Return verified bytes, None for what cannot be read; in one round trip if all is well."""
        try:
            found: list[Any] = list(self._blobs.read_many(reads))
        except (CorruptError, NotFoundError):
            found = [self._read_one(read) for read in reads]
        self.read_bytes += sum(len(data) for data in found if data is not None)
        return found

    def _read_one(self, read: _Read) -> Any:
        if read[0].digest in self._bad:
            return None
        try:
            return self._blobs.read_many([read])[0]
        except (CorruptError, NotFoundError) as error:
            self._report(read[0], error.kind, error.message)
            return None

    def _footer(self, shard: Shard, data: Any) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        found = hashlib.sha256(data).hexdigest()
        if found != shard.footer.digest:
            message = f"the footer has the digest {found}, expected {shard.footer.digest}"
            self._report(shard.blob, CorruptError.kind, message)
            return
        try:
            # A Parquet file without data: the metadata are found from its end.
            rows = pq.read_metadata(io.BytesIO(b"PAR1" + bytes(data))).num_rows
        except (pa.ArrowException, OSError) as error:
            reason = str(error).partition("\n")[0]
            message = f"the footer cannot be read: {reason}"
            self._report(shard.blob, CorruptError.kind, message)
            return
        if rows != shard.rows:
            message = f"the file has {rows} rows, expected {shard.rows}"
            self._report(shard.blob, CorruptError.kind, message)

    def _report(self, ref: BlobRef, kind: str, message: str) -> None:
        self._bad.add(ref.digest)
        path = self._root.uri(blob_key(ref.digest))
        self.problems.append(Problem(path, kind, message, field=self._tables.get(ref.digest)))


def _spread(ref: BlobRef) -> Iterator[_Read]:
    last = max(0, (ref.nbytes - 1) // LEAF_BYTES)
    for leaf in sorted({0, last // 2, last}):
        yield ref, leaf * LEAF_BYTES, min(ref.nbytes, (leaf + 1) * LEAF_BYTES)


def _waves(refs: Sequence[BlobRef]) -> Iterator[list[_Read]]:
    """Return all bytes of blobs, in order, cut into reads that are made at once."""
    wave: list[_Read] = []
    left = _WAVE_BYTES
    for ref in refs:
        start = 0
        while start < ref.nbytes:
            stop = min(ref.nbytes, start + left)
            wave.append((ref, start, stop))
            left -= stop - start
            start = stop
            if not left:
                yield wave
                wave, left = [], _WAVE_BYTES
    if wave:
        yield wave


def _silent(done: int, total: int | None) -> None:
    """Report no progress."""
