"""Checksums inside a Parquet file, in a block of bytes just before its footer.

The block has the SHA-256 of the footer, and the size and the CRC-32C of each piece of the file
before the block, so that pages are checked together with their headers. Readers of Parquet find
the footer from the end of the file and ignore the block; a program that writes the table to
another file does not copy it.
"""

import hashlib
import os
from array import array
from bisect import bisect_left, bisect_right
from struct import Struct
from typing import Any, BinaryIO, Final, NamedTuple, Self

import numpy as np

from relive._native import crc32c
from relive.errors import CorruptError
from relive.store.atomic import open_file
from relive.store.digest import FileDigest, RunningDigest

_PIECE: Final = np.dtype([("size", "<u4"), ("crc", "<u4")])
# After the pieces: the SHA-256 of the footer, the number of pieces, the CRC-32C of all before it.
_BLOCK_MAGIC: Final = b"relive checksums"
_BLOCK_END: Final = Struct(f"<32sII{len(_BLOCK_MAGIC)}s")
_CRC_AT: Final = 36
_MAGIC: Final = b"PAR1"
# The length of the footer and the magic number, which end the file.
_FILE_END: Final = Struct("<I4s")
_TAIL_BYTES: Final = 64 << 10


class ChecksummedFile:
    """The file that a Parquet writer writes to; it adds the checksums before the footer."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = RunningDigest()
        self._pieces = array("I")
        self._footer: bytearray | None = None

    @property
    def closed(self) -> bool:
        """Whether the file is closed."""
        return self._file.closed

    def tell(self) -> int:
        """Return the number of bytes so far."""
        return self._digest.size + len(self._footer or b"")

    def flush(self) -> None:
        """Do nothing: the owner of the file flushes it."""

    def write(self, data: Any) -> int:
        """Write a piece; a part of the footer is kept until the footer is complete."""
        if self._footer is not None:
            self._footer += data
            return len(data)
        data = bytes(data)
        self._pieces.extend((len(data), crc32c(data)))
        self._put(data)
        return len(data)

    def begin_footer(self) -> None:
        """Keep what is written from now on, which is the footer."""
        self._footer = bytearray()

    def end_footer(self) -> FileDigest:
        """Write the checksums and the footer; return the digest of the file."""
        footer = bytes(self._footer or b"")
        self._footer = None
        length = _FILE_END.size + _FILE_END.unpack(footer[-_FILE_END.size :])[0]
        if length < len(footer):
            self.write(footer[:-length])
            footer = footer[-length:]
        sha256 = hashlib.sha256(footer).digest()
        pieces, count = np.array(self._pieces, "<u4").tobytes(), len(self._pieces) // 2
        crc = crc32c(pieces + _BLOCK_END.pack(sha256, count, 0, _BLOCK_MAGIC)[:_CRC_AT])
        end = pieces + _BLOCK_END.pack(sha256, count, crc, _BLOCK_MAGIC) + footer
        self._put(end)
        return FileDigest(self._digest.size, self._digest.finish(), sha256_of(end))

    def _put(self, data: bytes) -> None:
        self._file.write(data)
        self._digest.update(data)


class CheckedSource:
    """The file that a Parquet reader reads from; every piece is compared with its CRC-32C."""

    def __init__(self, path: str, pieces: "Pieces") -> None:
        self._handle = open_file(path)
        self._pieces = pieces
        self._at = 0
        self.closed = False

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position."""
        if whence != os.SEEK_SET:
            offset += self._at if whence == os.SEEK_CUR else self._pieces.end
        self._at = offset
        return offset

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def read(self, count: int = -1) -> bytes:
        """Read the next bytes, together with the rest of the pieces that they belong to."""
        stop = self._pieces.end if count < 0 else self._at + count
        data = self._pieces.read(self._handle, self._at, stop)
        self._at = stop
        return data

    def close(self) -> None:
        """Close the file. May be called again."""
        if not self.closed:
            self.closed = True
            os.close(self._handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Pieces:
    """The checksums of everything before the block."""

    def __init__(self, block: bytes) -> None:
        pieces = np.frombuffer(block, _PIECE, (len(block) - _BLOCK_END.size) // _PIECE.itemsize)
        self._crcs: list[int] = pieces["crc"].tolist()
        self._starts: list[int] = [0, *np.cumsum(pieces["size"], dtype=np.int64).tolist()]
        self.end = self._starts[-1]
        """The size of all pieces."""

    def read(self, handle: int, start: int, stop: int) -> bytes:
        """Read bytes; damage in their pieces is a `CorruptError`."""
        if not 0 <= start <= stop <= self.end:
            raise CorruptError(f"bytes {start} to {stop} have no checksum")
        if start == stop:
            return b""
        starts = self._starts
        first, last = bisect_right(starts, start) - 1, bisect_left(starts, stop)
        low = starts[first]
        data = _read_all(handle, low, starts[last])
        for piece in range(first, last):
            begin, end = starts[piece] - low, starts[piece + 1] - low
            if crc32c(data[begin:end]) != self._crcs[piece]:
                raise CorruptError(f"bytes {low + begin} to {low + end} are damaged")
        return data[start - low : stop - low]  # not a copy if it is all

    def check(self, path: str) -> None:
        """Compare all pieces of a file."""
        with CheckedSource(path, self) as source:
            for start in self._starts[:-1]:
                source.seek(start)
                source.read(1)


class Footer(NamedTuple):
    """The end of a Parquet file."""

    data: bytes
    """The footer with its length and the magic number."""
    block: bytes
    """The checksums before it; empty if the file has none."""
    status: os.stat_result
    """The status of the file."""

    @property
    def sha256(self) -> str:
        """The SHA-256 of the checksums and the footer, in hexadecimal digits."""
        return hashlib.sha256(self.block + self.data).hexdigest()

    def check(self) -> None:
        """Compare the footer with the checksums before it, if there are any."""
        if not self.block:
            return
        sha256, _, crc, _ = _BLOCK_END.unpack_from(self.block, len(self.block) - _BLOCK_END.size)
        if crc32c(self.block[: _CRC_AT - _BLOCK_END.size]) != crc:
            raise CorruptError("the checksums before its footer are damaged")
        if hashlib.sha256(self.data).digest() != sha256:
            raise CorruptError("the SHA-256 of its footer does not match")


def read_footer(path: str) -> Footer:
    """Read the footer of a Parquet file and the checksums before it; nothing is compared."""
    try:
        handle = open_file(path)
    except IsADirectoryError as error:
        raise CorruptError("it is a directory") from error
    try:
        status = os.fstat(handle)
        size = status.st_size
        tail = _read_all(handle, max(0, size - _TAIL_BYTES), size)
        if len(tail) < len(_MAGIC) + _FILE_END.size or tail[-len(_MAGIC) :] != _MAGIC:
            raise CorruptError(f"the file does not end with the magic number {_MAGIC!r}")
        length = _FILE_END.size + _FILE_END.unpack(tail[-_FILE_END.size :])[0]
        if length + len(_MAGIC) > size:
            raise CorruptError("the file is shorter than its footer")
        start = size - length
        if length + _BLOCK_END.size > len(tail):
            tail = _read_all(handle, max(0, start - _BLOCK_END.size), size)
        footer = tail[-length:]
        end = tail[-length - _BLOCK_END.size : -length]
        if end[-len(_BLOCK_MAGIC) :] != _BLOCK_MAGIC:
            if _BLOCK_MAGIC in tail:  # the stored length leads to another place
                raise CorruptError("the length of its footer is damaged")
            return Footer(footer, b"", status)
        length += _BLOCK_END.size + _PIECE.itemsize * _BLOCK_END.unpack(end)[1]
        if length > size:
            raise CorruptError("the checksums before its footer are damaged")
        block = tail[-length : -len(footer)]
        if length > len(tail):
            block = _read_all(handle, size - length, start)
        return Footer(footer, block, status)
    finally:
        os.close(handle)


def sha256_of(data: bytes) -> str:
    """Return the SHA-256 of bytes in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def _read_all(handle: int, start: int, stop: int) -> bytes:
    data = os.pread(handle, stop - start, start)
    while len(data) < stop - start:
        more = os.pread(handle, stop - start - len(data), start + len(data))
        if not more:
            raise CorruptError(f"the file ends at byte {start + len(data)}, expected {stop}")
        data += more
    return data
