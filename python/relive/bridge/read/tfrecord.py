"""TFRecord files, read without TensorFlow."""

import contextlib
import gzip
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, Final, TypeAlias

import numpy as np

from relive._native import crc32c
from relive.bridge.fingerprint import file_identity, function_identity
from relive.bridge.read.tf_example import parse_example
from relive.bridge.rows import RowReader
from relive.errors import CorruptError, TooLargeError
from relive.model.schema import Field
from relive.store.atomic import storage_error

__all__ = ["TFRecordReader", "looks_like_tfrecord", "settle_examples", "tfrecords"]

Record: TypeAlias = tuple[bytes, str, int]
"""The bytes, the file, and where in it they begin."""

_HEAD: Final = struct.Struct("<QI")
_MASK: Final = 0xA282EAD8
_MAX_BYTES: Final = 1 << 30


def masked(crc: int) -> int:
    """Give a checksum as TFRecord files hold it, so that it is not that of bytes with it inside."""
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


class TFRecordReader(RowReader[Record]):
    """The records of TFRecord files, one file behind the other; every checksum is compared.

    `decode` is "example" for `tf.train.Example` messages, whose features become fields; "bytes"
    for the field `record`; or a function of the bytes that gives a row or the value of `record`.
    """

    def __init__(
        self, paths: Sequence[str], *, decode: str | Callable[[bytes], Any] = "example"
    ) -> None:
        self._paths = list(paths)
        self._decode = decode
        self.parallel = callable(decode)
        self.declared = {"record": Field("bytes")} if decode == "bytes" else None

    @property
    def total(self) -> int | None:
        """Unknown: the format has no index."""
        return None

    @property
    def identity(self) -> Mapping[str, Any]:
        """The files and how they are decoded."""
        return {"tfrecord": file_identity(self._paths), "decode": function_identity(self._decode)}

    def items(self, start: int) -> Iterator[Record]:
        """Give the records from `start` on; those before are passed over."""
        for path in self._paths:
            seen = 0
            for data, at in tfrecords(path, start):
                if data is None:
                    seen += 1
                else:
                    yield data, path, at
            start -= seen

    def row(self, item: Record) -> Mapping[str, Any]:
        """Make a row of a record."""
        data, path, at = item
        if self._decode == "bytes":
            return {"record": data}
        if self._decode == "example":
            return parse_example(data, f"`{path}`, the record at byte {at},")
        found = self._decode(data)  # type: ignore[operator]  # the names are taken
        return found if isinstance(found, Mapping) else {"record": found}

    def settle(self, fields: dict[str, Field]) -> dict[str, Field]:
        """Take features of one value each for that value."""
        return settle_examples(fields) if self._decode == "example" else fields


def settle_examples(fields: dict[str, Field]) -> dict[str, Field]:
    """Make fields of the shape (1,) single values: a feature is always a list."""
    return {
        name: Field(field.dtype, ())
        if field.fixed and field.shape == (1,) and isinstance(field.dtype, np.dtype)
        else field
        for name, field in fields.items()
    }


def tfrecords(path: str, skip: int = 0) -> Iterator[tuple[bytes | None, int]]:
    """Give the records of one file and where they begin; the first `skip` as None, unread.

    Files may be compressed with gzip or zlib. A record that is cut off, or whose checksums are
    not those of its bytes, is a `CorruptError` with the place.
    """
    with _opened(path) as (file, size):
        at = number = 0
        while head := _read(file, _HEAD.size):
            if len(head) < _HEAD.size:
                raise CorruptError(f"`{path}` at byte {at}: the file ends in a record's head")
            length, crc = _HEAD.unpack(head)
            if masked(crc32c(head[:8])) != crc:
                raise CorruptError(f"`{path}` at byte {at}: the checksum of a length is wrong")
            if size is not None and length + 4 > size - at - _HEAD.size:
                raise CorruptError(f"`{path}` at byte {at}: the file ends in a record")
            if length > _MAX_BYTES:
                raise TooLargeError(f"`{path}` at byte {at}: a record claims {length} bytes")
            if number < skip and size is not None:
                file.seek(length + 4, os.SEEK_CUR)
                yield None, at
            else:
                yield (
                    _payload(file, path, at, length)
                    if number >= skip
                    else _passed(file, path, at, length)
                )
            at += _HEAD.size + length + 4
            number += 1


def _payload(file: IO[bytes], path: str, at: int, length: int) -> tuple[bytes, int]:
    data, tail = _read(file, length), _read(file, 4)
    if len(data) < length or len(tail) < 4:  # noqa: PLR2004 - the bytes of a checksum
        raise CorruptError(f"`{path}` at byte {at}: the file ends in a record")
    if masked(crc32c(data)) != int.from_bytes(tail, "little"):
        raise CorruptError(f"`{path}` at byte {at}: the checksum of a record is wrong")
    return data, at


def _passed(file: IO[bytes], path: str, at: int, length: int) -> tuple[None, int]:
    _payload(file, path, at, length)
    return None, at


def looks_like_tfrecord(head: bytes) -> bool:
    """Whether the first bytes of a file are a record's head, by its checksum."""
    if len(head) < _HEAD.size:
        return False
    _, crc = _HEAD.unpack(head[: _HEAD.size])
    return masked(crc32c(head[:8])) == int(crc)


def _read(file: IO[bytes], size: int) -> bytes:
    try:
        return file.read(size)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        name = getattr(file, "name", "the file")
        raise CorruptError(f"`{name}` cannot be decompressed: {error}") from error


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[Any, int | None]]:
    """Open a file, through gzip where it is compressed; its size is known where it is not."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a plain path
            head = file.read(_HEAD.size)
            file.seek(0)
            if head[:2] == b"\x1f\x8b" and not looks_like_tfrecord(head):
                with gzip.open(file) as inner:
                    yield inner, None
            else:
                yield file, os.fstat(file.fileno()).st_size
    except OSError as error:
        if isinstance(error, gzip.BadGzipFile):
            raise CorruptError(f"`{path}` cannot be decompressed: {error}") from error
        raise storage_error(error, path, "read") from error
