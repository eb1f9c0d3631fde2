"""Uploads the blobs of a version: which are missing, then all of them in parallel.

A blob is named by its content, so an interrupted upload is continued by publishing again: what
is stored already is found by one round trip of questions.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Final, NamedTuple

from relive.model.report import Progress
from relive.publish.write.parquet_files import FileIdentity
from relive.store.blobs import BlobRef, blob_key, describe_file
from relive.store.cache.seed import seed_blob
from relive.store.digest import FileDigest, file_changed
from relive.store.roots.root import Root

# Each is a file of up to 64 MiB, in parts above.
_UPLOADS: Final = 8
_SHOWN_S: Final = 0.2
"""How often progress is reported while no upload ends."""


class LocalBlob(NamedTuple):
    """A file on this machine that is to be a blob."""

    ref: BlobRef
    path: Path
    identity: FileIdentity
    leaf_table: bytes | None
    """None if the digest comes from the cache: the file is hashed again before it is uploaded."""

    @property
    def nbytes(self) -> int:
        """The bytes to upload, with the leaf table."""
        return self.ref.nbytes + self.ref.table_nbytes


def find_missing(
    root: Root, blobs: Iterable[LocalBlob], known: Mapping[str, frozenset[str]]
) -> tuple[list[LocalBlob], bool]:
    """Return the blobs that a root does not have, each once, in one round trip.

    `known` are the digests of blobs of published versions by the key of their manifest: as long
    as it exists, they exist. The second result is whether one of these manifests is gone.
    """
    unique = {blob.ref.digest: blob for blob in blobs}
    present = frozenset[str]().union(*known.values())
    asked = [blob for blob in unique.values() if blob.ref.digest not in present]
    there = _exist(root, asked, known)
    gone = [key for key in known if not there[key]]
    if gone:
        present = frozenset[str]().union(*(known[key] for key in known if there[key]))
        also = [blob for blob in unique.values() if blob not in asked]
        also = [blob for blob in also if blob.ref.digest not in present]
        there |= _exist(root, also, ())
        asked += also
    missing = [
        blob for blob in asked if not all(there[blob_key(digest)] for digest in _digests(blob))
    ]
    return missing, bool(gone)


def _exist(root: Root, blobs: Iterable[LocalBlob], keys: Iterable[str]) -> dict[str, bool]:
    """Return which objects exist: of blobs, of their leaf tables, and by key."""
    asked = [*keys, *(blob_key(digest) for blob in blobs for digest in _digests(blob))]
    return dict(zip(asked, root.exists(asked), strict=True)) if asked else {}


def _digests(blob: LocalBlob) -> list[str]:
    return [each for each in (blob.ref.digest, blob.ref.leaves) if each is not None]


def upload(
    root: Root, blobs: Sequence[LocalBlob], *, progress: Progress | None, workers: int | None
) -> dict[str, bytes]:
    """Upload blobs and their leaf tables, several at a time; return these by their digests.

    `progress` is called on this thread. After an error, or Ctrl-C, no further upload begins.
    """
    tables: dict[str, bytes] = {}
    total = sum(blob.nbytes for blob in blobs)
    shown = 0
    sent: dict[str, int] = {}  # bytes of each blob so far, by its digest
    if progress is not None:
        progress(0, total)
    for done in _in_parallel(root, blobs, workers or _UPLOADS, sent):
        if done is not None:
            blob, table = done
            sent[blob.ref.digest] = blob.nbytes
            if blob.ref.leaves is not None:
                tables[blob.ref.leaves] = table
        now = max(shown, min(total, sum(list(sent.values()))))  # a part may be sent again
        if progress is not None and (done is not None or now > shown):
            progress(now, total)
        shown = now
    return tables


def _in_parallel(
    root: Root, blobs: Sequence[LocalBlob], workers: int, sent: dict[str, int]
) -> Iterator[tuple[LocalBlob, bytes] | None]:
    """Yield each blob with its leaf table when it is uploaded, and None every now and then."""
    if not blobs:
        return
    pool = ThreadPoolExecutor(min(workers, len(blobs)), "relive-upload")
    try:
        running: dict[Future[bytes], LocalBlob] = {
            pool.submit(_upload, root, blob, sent): blob for blob in blobs
        }
        while running:
            finished, _ = wait(running, _SHOWN_S, return_when=FIRST_COMPLETED)
            if not finished:
                yield None
            for future in finished:
                blob = running.pop(future)
                yield blob, future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _upload(root: Root, blob: LocalBlob, sent: dict[str, int]) -> bytes:
    """Upload a blob; return its leaf table. `sent` has the bytes that are uploaded of it."""
    table = blob.leaf_table
    if table is None:
        ref, table = describe_file(blob.path)
        if ref != blob.ref:
            raise file_changed(blob.path)
    if FileIdentity.of(blob.path) != blob.identity:
        raise file_changed(blob.path)  # before anything is sent
    # The leaf table is first, so that a blob that is there can be read.
    if blob.ref.leaves is not None:
        root.put(blob_key(blob.ref.leaves), table)
    # Hashed again while they are sent: another publisher may have stored the blob, and readers may
    # be reading it, so that no other bytes may ever be there, and it may not be deleted.
    root.put_file(
        blob_key(blob.ref.digest),
        blob.path,
        FileDigest(blob.ref.nbytes, blob.ref.digest),
        lambda nbytes: sent.update({blob.ref.digest: nbytes}),
    )
    seed_blob(root, blob.ref, blob.path, table)
    return table
