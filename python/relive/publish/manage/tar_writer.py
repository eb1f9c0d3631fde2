"""Writes a root as a tar file; one that was interrupted is continued."""

import contextlib
import hashlib
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias

from relive.errors import AlreadyExistsError
from relive.store.atomic import check_file, fsync_directory, storage_error

Blob: TypeAlias = tuple[str, int, Callable[[], Iterator[bytes]]]
"""Key, size, and a function that returns the bytes, verified."""

_READ_BYTES: Final = 1 << 20


def write_tar(
    path: Path,
    blobs: Sequence[Blob],
    documents: Sequence[tuple[str, bytes]],
    advance: Callable[[int], object],
) -> list[str]:
    """Write blobs, then documents, to a file that has its name when it is complete.

    Until then it is `NAME.part`. Blobs that are complete in it, by their digest, are kept.
    `advance` is called with the size of those. Return the keys of the blobs that were written.
    """
    if path.exists():
        raise AlreadyExistsError(f"`{path}` already exists", hint="choose another name")
    part = path.with_name(f"{path.name}.part")
    check_file(part)
    written = []
    try:
        with part.open("r+b" if part.exists() else "x+b") as file:
            kept, end = _complete_blobs(file, {key for key, _, _ in blobs})
            file.truncate(end)
            file.seek(end)
            for key, size, pieces in blobs:
                if key in kept:
                    advance(size)
                    continue
                _write_member(file, key, size, pieces())
                written.append(key)
            for key, data in documents:
                _write_member(file, key, len(data), iter([data]))
            file.write(b"\0" * (2 * tarfile.BLOCKSIZE))
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        fsync_directory(path.parent)
    except OSError as error:
        if type(error).__module__ == "builtins":
            raise storage_error(error, path, "write") from error
        raise
    return written


def _write_member(file: BinaryIO, key: str, size: int, pieces: Iterator[bytes]) -> None:
    header = tarfile.TarInfo(key)
    header.size = size
    header.mode = 0o644
    file.write(header.tobuf(tarfile.PAX_FORMAT))
    file.writelines(pieces)
    file.write(b"\0" * (-size % tarfile.BLOCKSIZE))


def _complete_blobs(file: BinaryIO, wanted: set[str]) -> tuple[set[str], int]:
    """Return which wanted blobs at the start of a file are complete, and where they end."""
    found, end = set[str](), 0
    file.seek(0)
    with contextlib.suppress(tarfile.TarError), tarfile.open(fileobj=file, mode="r:") as archive:
        for member in archive:
            digest = hashlib.sha256()
            body = archive.extractfile(member)
            if member.name not in wanted or body is None:  # of another version
                break
            while piece := body.read(_READ_BYTES):
                digest.update(piece)
            if digest.hexdigest() != member.name.rpartition("/")[2]:
                break
            found.add(member.name)
            end = member.offset_data + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
    return found, end
