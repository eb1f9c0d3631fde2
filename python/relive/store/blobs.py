"""Blobs: objects named by the SHA-256 of their content, verified wherever they are read."""

import hashlib
from typing import Final, NamedTuple

LEAF_BYTES: Final = 64 << 10


class BlobRef(NamedTuple):
    """A blob: its digest, its size, and the digest of its leaf table (None up to 64 KiB)."""

    digest: str
    nbytes: int
    leaves: str | None


def blob_key(digest: str) -> str:
    """Return the key of a blob under its root."""
    return f"blobs/{digest[:2]}/{digest[2:4]}/{digest}"


def describe_bytes(data: bytes) -> tuple[BlobRef, bytes]:
    """Return the description of a blob, and its leaf table, which is empty up to 64 KiB."""
    digest = hashlib.sha256(data).hexdigest()
    if len(data) <= LEAF_BYTES:
        return BlobRef(digest, len(data), None), b""
    starts = range(0, len(data), LEAF_BYTES)
    table = b"".join(hashlib.sha256(data[at : at + LEAF_BYTES]).digest() for at in starts)
    return BlobRef(digest, len(data), hashlib.sha256(table).hexdigest()), table
