"""TFRecord files, read without TensorFlow."""

import contextlib
import gzip
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, Final, TypeAlias

from relive._native import crc32c
from relive.bridge.fingerprint import file_fingerprint, function_fingerprint
from relive.bridge.options import ReadOptions
from relive.bridge.read.tf_example import ExampleReader
from relive.bridge.rows import RowStream
from relive.bridge.stream import Stream
from relive.errors import CorruptError, TooLargeError
from relive.store.atomic import storage_error

Record: TypeAlias = tuple[bytes, str, int]
"""The bytes, the file, and their offset in it."""

_HEADER: Final = struct.Struct("<QI")
_CRC_BYTES: Final = 4
_MASK: Final = 0xA282EAD8
_MAX_BYTES: Final = 1 << 30


def open_tfrecord(paths: list[str], options: ReadOptions) -> Stream:
    """Return the rows of TFRecord files."""
    decode = options.decoder("example", bytes="bytes", example="example")
    return RowStream(_TFRecordReader(paths, decode), options)


def is_tfrecord(head: bytes) -> bool:
    """Check whether the first bytes of a file are the header of a record, by its checksum."""
    if len(head) < _HEADER.size:
        return False
    _, crc = _HEADER.unpack(head[: _HEADER.size])
    return _masked_crc(head[:8]) == int(crc)


def _masked_crc(data: bytes) -> int:
    """Return a checksum in the form in which TFRecord files store it."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


class _TFRecordReader(ExampleReader[Record]):
    """The records of TFRecord files, file after file; every checksum is verified."""

    def __init__(self, paths: Sequence[str], decode: str | Callable[[bytes], Any]) -> None:
        super().__init__(decode)
        self._paths = list(paths)

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """The files, and how records are decoded."""
        files = file_fingerprint(self._paths)
        return {"tfrecord": files, "decode": function_fingerprint(self._decode)}

    def items(self, start: int) -> Iterator[Record | CorruptError]:
        """Yield the records from `start` on."""
        for path in self._paths:
            before = start
            for data, at in read_tfrecords(path, start):
                if data is None:
                    before -= 1
                else:
                    yield data if isinstance(data, CorruptError) else (data, path, at)
            start = before

    def row(self, item: Record) -> Mapping[str, Any]:
        """Decode a record."""
        data, path, at = item
        return self.decode_record(data, f"the record at byte {at} of `{path}`")


def read_tfrecords(path: str, skip: int = 0) -> Iterator[tuple[bytes | CorruptError | None, int]]:
    """Yield the records of a file with their offsets; the first `skip` of them as None.

    Files may be compressed with gzip. A record with a wrong checksum is yielded as its error. A
    file in which the next record cannot be found is a `CorruptError` with the offset.
    """
    with _opened(path) as (file, size):
        at = 0
        while header := _read(file, path, _HEADER.size):
            if len(header) < _HEADER.size:
                raise CorruptError(f"`{path}` at byte {at}: the file ends inside a record header")
            length, crc = _HEADER.unpack(header)
            if _masked_crc(header[:8]) != crc:
                raise CorruptError(
                    f"`{path}` at byte {at}: the checksum of a record length is wrong"
                )
            if size is not None and length + _CRC_BYTES > size - at - _HEADER.size:
                raise CorruptError(f"`{path}` at byte {at}: the file ends inside a record")
            if length > _MAX_BYTES:
                raise TooLargeError(
                    f"`{path}` at byte {at}: a record of {length} bytes exceeds the limit of "
                    f"{_MAX_BYTES} bytes"
                )
            if skip > 0 and size is not None:
                file.seek(length + _CRC_BYTES, os.SEEK_CUR)
                yield None, at
            else:
                data = _payload(file, path, at, length)
                yield (None if skip > 0 else data), at
            at += _HEADER.size + length + _CRC_BYTES
            skip -= 1


def _payload(file: IO[bytes], path: str, at: int, length: int) -> bytes | CorruptError:
    data, crc = _read(file, path, length), _read(file, path, _CRC_BYTES)
    if len(data) < length or len(crc) < _CRC_BYTES:
        raise CorruptError(f"`{path}` at byte {at}: the file ends inside a record")
    if _masked_crc(data) != int.from_bytes(crc, "little"):
        return CorruptError(f"`{path}` at byte {at}: the checksum of a record is wrong")
    return data


def _read(file: IO[bytes], path: str, size: int) -> bytes:
    try:
        return file.read(size)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CorruptError(f"cannot decompress `{path}`: {error}") from error


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[Any, int | None]]:
    """Open a file, decompressed if it is compressed; the size is None then."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - the path is a string
            head = file.read(_HEADER.size)
            file.seek(0)
            if head[:2] == b"\x1f\x8b" and not is_tfrecord(head):
                with gzip.open(file) as inner:
                    yield inner, None
            else:
                yield file, os.fstat(file.fileno()).st_size
    except OSError as error:
        raise storage_error(error, path, "read") from error
