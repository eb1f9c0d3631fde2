"""The size and the SHA-256 of files, computed while they are written or by reading them."""

import hashlib
import os
from typing import NamedTuple, TypeAlias

from relive.store.atomic import storage_error


class FileDigest(NamedTuple):
    """What identifies the content of a file."""

    size: int
    sha256: str
    """In hexadecimal digits."""
    footer_sha256: str | None = None
    """For a Parquet file: the same of its footer and the checksums before it."""


Digests: TypeAlias = dict[str, FileDigest]
"""The digests of files by name; functions that write files add those that they wrote."""


def digest_of(path: str | os.PathLike[str]) -> FileDigest:
    """Read a whole file and return its digest, without that of a footer."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - faster than a Path
            sha256 = hashlib.file_digest(file, "sha256")
            return FileDigest(file.tell(), sha256.hexdigest())
    except OSError as error:
        raise storage_error(error, path, "read") from error
