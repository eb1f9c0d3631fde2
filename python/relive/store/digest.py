"""The size and the SHA-256 of files, computed while they are written or read."""

import hashlib
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple, TypeAlias

from relive.errors import UnfinishedError
from relive.store.atomic import open_reader, storage_error

# Files up to this size are hashed at once: a thread would take longer to start.
_THREAD_FROM_BYTES: Final = 1 << 20
# Pieces of a file that may wait for the thread, so that memory use is bounded.
_MAX_WAITING: Final = 8
_PIECE_BYTES: Final = 1 << 20


class FileDigest(NamedTuple):
    """What identifies the content of a file."""

    size: int
    sha256: str
    """In hexadecimal digits."""
    footer_sha256: str | None = None
    """For a Parquet file: the same of its footer and the checksums before it."""


Digests: TypeAlias = dict[str, FileDigest]
"""The digests of files by name; functions that write files add those that they wrote."""


class RunningDigest:
    """The size and the SHA-256 of a file that is being written, one piece after the other.

    Large files are hashed on a thread meanwhile. Used by one thread at a time.
    """

    def __init__(self) -> None:
        self.size = 0
        self._sha256 = hashlib.sha256()
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: deque[Future[None]] = deque()

    def update(self, data: bytes) -> None:
        """Add the next bytes of the file."""
        self.size += len(data)
        if self._pool is None and self.size > _THREAD_FROM_BYTES:
            self._pool = ThreadPoolExecutor(1, "relive-hash")  # ends with this object
        if self._pool is not None:
            try:
                self._waiting.append(self._pool.submit(self._sha256.update, data))
            except RuntimeError:  # the interpreter is exiting: no thread can be started
                self._pool.shutdown()
            else:
                if len(self._waiting) > _MAX_WAITING:
                    self._waiting.popleft().result()
                return
        self._sha256.update(data)

    def finish(self) -> str:
        """Return the SHA-256 in hexadecimal digits, after the last bytes."""
        if self._pool is not None:
            self._pool.shutdown()
        for each in self._waiting:
            each.result()
        return self._sha256.hexdigest()


def read_checked(
    path: str | os.PathLike[str], expected: FileDigest, piece_bytes: int = _PIECE_BYTES
) -> Iterator[bytes]:
    """Yield the bytes of a file in pieces, if they are the expected ones.

    They are hashed as they are read, so that what is yielded is what was compared. Otherwise the
    last piece is an `UnfinishedError` instead: who writes the pieces must keep nothing of them
    after an error.
    """
    digest, left = RunningDigest(), expected.size
    try:
        with open_reader(path) as file:
            while left:
                piece = file.read(min(piece_bytes, left))
                digest.update(piece)
                left -= len(piece)
                if not piece or (not left and digest.finish() != expected.sha256):
                    raise file_changed(path)
                yield piece
    except OSError as error:
        raise storage_error(error, path, "read") from error


def file_changed(path: str | os.PathLike[str]) -> UnfinishedError:
    """Return the error for a file whose bytes are not those that were hashed before."""
    return UnfinishedError(
        f"`{os.fspath(path)}` changed while it was being published",
        hint="publish again when no other process writes to it",
    )


def digest_of(path: str | os.PathLike[str]) -> FileDigest:
    """Read a whole file and return its digest, without that of a footer."""
    try:
        with open_reader(path) as file:
            sha256 = hashlib.file_digest(file, "sha256")
            return FileDigest(file.tell(), sha256.hexdigest())
    except OSError as error:
        raise storage_error(error, path, "read") from error
