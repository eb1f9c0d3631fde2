"""WebDataset: tar archives whose files, grouped by name, are rows."""

import bz2
import contextlib
import gzip
import io
import json
import lzma
import os
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, Final, TypeAlias

import numpy as np

from relive.bridge.fingerprint import file_identity, function_identity
from relive.bridge.images import SUFFIXES, decode_image, load_pillow, parse_size
from relive.bridge.rows import RowReader
from relive.errors import CorruptError, InvalidError, TooLargeError, UnsupportedError
from relive.store.atomic import storage_error

__all__ = ["TarReader", "tar_files", "tar_samples"]

Sample: TypeAlias = tuple[str, dict[str, bytes], str]
"""Key, bytes by extension, and what an error calls it."""
Decode: TypeAlias = "bool | Callable[[str, bytes], Any] | Mapping[str, Callable[[bytes], Any]]"

_NAME: Final = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
_META: Final = re.compile(r"__[^/]*__($|/)")
_INTEGERS: Final = frozenset({"cls", "cls2", "class", "count", "id", "index", "inx"})
_TEXTS: Final = frozenset({"text", "transcript", "txt"})
_JSONS: Final = frozenset({"json", "jsn"})
_BLOCK: Final = 512
_MAX_BYTES: Final = 1 << 30
_REST: Final = 1 << 20
_BROKEN: Final = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, ValueError, OverflowError)


class TarReader(RowReader[Sample]):
    """The samples of tar archives in the layout of WebDataset, one behind the other.

    Files in a row whose paths agree up to the first dot of their name are one sample: `key` is
    that path, and every extension is a field. `.json` is JSON, `.cls` an integer, `.txt` text,
    `.npy` an array, all others bytes. With `decode=True` images are decoded, too; a function gets
    the extension and the bytes; a dict has functions for some extensions.
    """

    group = 8

    def __init__(
        self,
        paths: Sequence[str],
        *,
        decode: Decode = False,
        size: int | tuple[int, int] | None = None,
    ) -> None:
        self._paths = list(paths)
        self._size = parse_size(size)
        self._decode = decode or self._size is not None
        self.parallel = bool(self._decode)
        if self._decode is True:
            load_pillow()

    @property
    def total(self) -> int | None:
        """Unknown: a tar archive has no index."""
        return None

    @property
    def identity(self) -> Mapping[str, Any]:
        """The files and how they are decoded."""
        decode = self._decode
        told: Any = (
            {ext: function_identity(function) for ext, function in decode.items()}
            if isinstance(decode, Mapping)
            else function_identity(decode)
        )
        return {"tar": file_identity(self._paths), "decode": told, "size": self._size}

    def items(self, start: int) -> Iterator[Sample]:
        """Give the samples from `start` on; the files of those before are not read."""
        for path in self._paths:
            seen = 0
            for sample in tar_samples(path, start):
                if sample is None:
                    seen += 1
                else:
                    yield sample
            start -= seen

    def row(self, item: Sample) -> Mapping[str, Any]:
        """Make a row of a sample."""
        key, files, where = item
        row: dict[str, Any] = {"key": key}
        for extension, data in files.items():
            if extension == "key":
                raise UnsupportedError(f"{where}: `.key` would take the place of the sample's key")
            row[extension] = self._value(extension, data, f"{where}, `{key}.{extension}`")
        return row

    def _value(self, extension: str, data: bytes, where: str) -> Any:
        decode = self._decode
        if isinstance(decode, Mapping):
            if extension in decode:
                return decode[extension](data)
        elif callable(decode):
            return decode(extension, data)
        last = extension.rpartition(".")[2].lower()
        if decode is True and f".{last}" in SUFFIXES:
            return decode_image(data, where, self._size)
        try:
            return _plain_value(last, data)
        except ValueError as error:
            raise CorruptError(f"{where} is not what it is called: {error}") from error


def _plain_value(extension: str, data: bytes) -> Any:
    if extension in _JSONS:
        return json.loads(data)
    if extension in _INTEGERS:
        return np.int64(int(data))
    if extension in _TEXTS:
        return data.decode()
    if extension == "npy":
        try:
            return np.load(io.BytesIO(data), allow_pickle=False)
        except (EOFError, SyntaxError, TypeError) as error:
            raise ValueError(str(error)) from error
    return data


def tar_samples(path: str, skip: int = 0) -> Iterator[Sample | None]:
    """Give the samples of one archive, in its order; the first `skip` as None, unread."""
    number = 0
    group: tuple[str, dict[str, bytes], str] | None = None
    for name, read, offset in tar_files(path):
        found = _NAME.fullmatch(name)
        if found is None or _META.match(name):
            continue
        key, extension = found[1], found[2].lower()
        if group is None or group[0] != key:
            if group is not None:
                yield group if number >= skip else None
                number += 1
            group = (key, {}, f"`{path}` at byte {offset}")
        if extension in group[1]:
            raise CorruptError(f"`{path}` at byte {offset}: `{name}` is there twice in a row")
        group[1][extension] = read() if number >= skip else b""
    if group is not None:
        yield group if number >= skip else None


def tar_files(path: str) -> Iterator[tuple[str, Callable[[], bytes], int]]:
    """Give the files of an archive: name, what reads it, and where it begins.

    An archive that ends early or has anything but headers where they must be is a
    `CorruptError`: Python's own reader takes that for the end.
    """
    with _opened(path) as (file, size), _explained(path) as at:
        tar = tarfile.open(fileobj=file, mode="r:")  # noqa: SIM115 - the file is closed above
        seen: list[Any] = tar.members  # type: ignore[attr-defined]  # as webdataset does
        info = tar.next()
        while info is not None:
            at[0] = info.offset
            if info.isreg():
                if info.sparse is not None:
                    raise UnsupportedError(f"`{path}` at byte {info.offset}: a sparse file")
                if info.size > _MAX_BYTES:
                    raise TooLargeError(
                        f"`{path}` at byte {info.offset}: `{info.name}` claims {info.size} bytes"
                    )
                if size is not None and info.offset_data + info.size > size:
                    raise CorruptError(f"`{path}` at byte {info.offset}: the file ends too early")
                yield info.name, _reader(tar, info), info.offset
            seen.clear()  # or it would keep every header that it has met
            info = tar.next()
        at[0] = tar.offset
        file.seek(tar.offset)
        rest = file.read(_BLOCK)
        if rest.strip(b"\0") or 0 < len(rest) < _BLOCK:
            raise CorruptError(f"`{path}` at byte {tar.offset}: no header where one must be")
        while size is None and file.read(_REST):
            pass  # what is compressed has its checksum at the very end


def _reader(tar: tarfile.TarFile, info: tarfile.TarInfo) -> Callable[[], bytes]:
    def read() -> bytes:
        file = tar.extractfile(info)
        data = b"" if file is None else file.read()
        if len(data) != info.size:
            raise tarfile.ReadError("the file ends too early")
        return data

    return read


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[IO[bytes], int | None]]:
    """Open a file, through what it is compressed with; its size is known where it is not."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a plain path
            head = file.read(6)
            file.seek(0)
            for magic, module in _COMPRESSED.items():
                if head.startswith(magic):
                    with module.open(file) as inner:
                        yield inner, None
                        return
            yield file, os.fstat(file.fileno()).st_size
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise storage_error(error, path, "read") from error


_COMPRESSED: Final[dict[bytes, Any]] = {
    b"\x1f\x8b": gzip,
    b"BZh": bz2,
    b"\xfd7zXZ\0": lzma,
}


@contextlib.contextmanager
def _explained(path: str) -> Iterator[list[int]]:
    at = [0]
    try:
        yield at
    except (CorruptError, InvalidError, TooLargeError, UnsupportedError):
        raise
    except _BROKEN as error:
        raise CorruptError(f"`{path}` at byte {at[0]}: {error}") from error
    except OSError as error:
        if error.errno is None:  # what gzip says of bytes that are none
            raise CorruptError(f"`{path}` at byte {at[0]}: {error}") from error
        raise storage_error(error, path, "read") from error
