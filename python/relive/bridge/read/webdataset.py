"""WebDataset: tar archives in which files with the same name before the first dot are one row."""

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

from relive._arguments import utf8_name
from relive.bridge.fingerprint import file_fingerprint, function_fingerprint
from relive.bridge.images import SUFFIXES, FirstImage, ImageDecoder, load_pillow, parse_decoder
from relive.bridge.options import ReadOptions
from relive.bridge.rows import RowReader, RowStream
from relive.bridge.stream import Stream
from relive.errors import CorruptError, ReliveError, TooLargeError, UnsupportedError
from relive.store.atomic import storage_error

Sample: TypeAlias = tuple[str, dict[str, bytes], str]
"""The key, the bytes by extension, and the path and offset for error messages."""
Decode: TypeAlias = "bool | Callable[[str, bytes], Any] | Mapping[str, Callable[[bytes], Any]]"

_NAME: Final = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
_META: Final = re.compile(r"__[^/]*__($|/)")
_INTEGERS: Final = frozenset({"cls", "cls2", "class", "count", "id", "index", "inx"})
_TEXTS: Final = frozenset({"text", "transcript", "txt"})
_JSONS: Final = frozenset({"json", "jsn"})
_BLOCK: Final = 512
_MAX_BYTES: Final = 1 << 30
_READ_BYTES: Final = 1 << 20
_BROKEN: Final = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, ValueError, OverflowError)
_COMPRESSED: Final[dict[bytes, Any]] = {b"\x1f\x8b": gzip, b"BZh": bz2, b"\xfd7zXZ\0": lzma}


def open_tar(paths: list[str], options: ReadOptions) -> Stream:
    """Return the samples of tar archives."""
    decode = options.decoder(None, bytes=False, image=True)
    decoder = parse_decoder(options.size, options.mode)
    return RowStream(_TarReader(paths, decode, decoder), options)


class _TarReader(RowReader[Sample]):
    """The samples of tar archives in the layout of WebDataset, archive after archive.

    Consecutive files whose paths are equal up to the first dot of their name are one sample:
    `key` is that path, and every extension is a field. `.json` is parsed as JSON, `.cls` as an
    integer, `.txt` as text, `.npy` as an array; all others are bytes. `decode=True` also decodes
    images; a function receives the extension and the bytes; a dict has functions by extension.
    """

    group = 8

    def __init__(self, paths: Sequence[str], decode: Decode, decoder: ImageDecoder) -> None:
        self._paths = list(paths)
        self._decoder = decoder
        self._decode = decode or decoder != ImageDecoder()
        self._first: dict[str, FirstImage] = {}
        """The first image with each extension."""
        self.parallel = bool(self._decode)
        if self._decode is True:
            load_pillow()

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """The files, and how they are decoded."""
        decode: Any = self._decode
        if isinstance(decode, Mapping):
            decode = {ext: function_fingerprint(function) for ext, function in decode.items()}
        else:
            decode = function_fingerprint(decode)
        return {
            "tar": file_fingerprint(self._paths),
            "decode": decode,
            "size": self._decoder.size,
            "mode": self._decoder.mode,
        }

    def items(self, start: int) -> Iterator[Sample]:
        """Yield the samples from `start` on; the files of those before it are not read."""
        for path in self._paths:
            before = start
            for sample in tar_samples(path, start):
                if sample is None:
                    before -= 1
                else:
                    self._note_first(sample)
                    yield sample
            start = before

    def _note_first(self, sample: Sample) -> None:
        """Note the first image with each extension, in the order of the archives."""
        key, files, where = sample
        for extension, data in files.items() if self._decode is True else ():
            if extension not in self._first and _is_image(extension):
                name = _file_name(where, key, extension)
                with contextlib.suppress(CorruptError):  # decoding raises it, or skips the sample
                    mode, _ = self._decoder.inspect(io.BytesIO(data), name)
                    self._first[extension] = FirstImage(mode, name)

    def row(self, item: Sample) -> Mapping[str, Any]:
        """Decode a sample."""
        key, files, where = item
        row: dict[str, Any] = {"key": key}
        for extension, data in files.items():
            if extension == "key":
                raise UnsupportedError(
                    f"{where}: the extension `.key` is not supported, because the field `key` "
                    "holds the name of the sample"
                )
            row[extension] = self._value(extension, data, _file_name(where, key, extension))
        return row

    def _value(self, extension: str, data: bytes, where: str) -> Any:
        decode = self._decode
        if isinstance(decode, Mapping):
            if extension in decode:
                return decode[extension](data)
        elif callable(decode):
            return decode(extension, data)
        if decode is True and _is_image(extension):
            return self._decoder.decode(data, where, self._first.get(extension))
        last = _last_part(extension)
        try:
            return _parsed(last, data)
        except ValueError as error:
            raise CorruptError(f"cannot parse {where} as .{last}: {error}") from error


def _file_name(where: str, key: str, extension: str) -> str:
    return f"{where}, `{key}.{extension}`"


def _last_part(extension: str) -> str:
    return extension.rpartition(".")[2].lower()


def _is_image(extension: str) -> bool:
    return f".{_last_part(extension)}" in SUFFIXES


def _parsed(extension: str, data: bytes) -> Any:
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
    """Yield the samples of one archive in order; the first `skip` of them as None."""
    number = 0
    sample: Sample | None = None
    for name, read, offset in tar_files(path):
        match = _NAME.fullmatch(name)
        if match is None or _META.match(name):
            continue
        key, extension = match[1], match[2].lower()
        if sample is None or sample[0] != key:
            if sample is not None:
                yield sample if number >= skip else None
                number += 1
            sample = (key, {}, f"`{path}` at byte {offset}")
        if extension in sample[1]:
            raise CorruptError(f"`{path}` at byte {offset}: `{name}` occurs twice in a sample")
        sample[1][extension] = read() if number >= skip else b""
    if sample is not None:
        yield sample if number >= skip else None


def tar_files(path: str) -> Iterator[tuple[str, Callable[[], bytes], int]]:
    """Yield the name of every file in an archive, a function that reads it, and its offset.

    Bytes of a name that are not UTF-8 are escaped.

    A truncated archive, or one with invalid headers, is a `CorruptError`; Python's `tarfile`
    takes both for the end of the archive.
    """
    with _opened(path) as (file, size), _reading(path) as at:
        tar = tarfile.open(fileobj=file, mode="r:")  # noqa: SIM115 - `_opened` closes the file
        seen: list[Any] = tar.members  # type: ignore[attr-defined]  # as webdataset does
        info = tar.next()
        while info is not None:
            at[0] = info.offset
            if info.isreg():
                if info.sparse is not None:
                    raise UnsupportedError(
                        f"`{path}` at byte {info.offset}: `{info.name}` is a sparse file, which is "
                        "not supported"
                    )
                if info.size > _MAX_BYTES:
                    raise TooLargeError(
                        f"`{path}` at byte {info.offset}: `{info.name}` has {info.size} bytes, "
                        f"which exceeds the limit of {_MAX_BYTES} bytes"
                    )
                if size is not None and info.offset_data + info.size > size:
                    raise CorruptError(f"`{path}` at byte {info.offset}: the archive is truncated")
                yield utf8_name(info.name), _reader(tar, info), info.offset
            seen.clear()  # tarfile would keep every header in memory
            info = tar.next()
        at[0] = tar.offset
        file.seek(tar.offset)
        rest = file.read(_BLOCK)
        if rest.strip(b"\0") or 0 < len(rest) < _BLOCK:
            raise CorruptError(
                f"`{path}` at byte {tar.offset}: the header of an archive member is invalid"
            )
        while size is None and file.read(_READ_BYTES):
            pass  # the checksum of compressed data is at its end


def _reader(tar: tarfile.TarFile, info: tarfile.TarInfo) -> Callable[[], bytes]:
    def read() -> bytes:
        file = tar.extractfile(info)
        data = b"" if file is None else file.read()
        if len(data) != info.size:
            raise tarfile.ReadError("the archive is truncated")
        return data

    return read


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[IO[bytes], int | None]]:
    """Open a file, decompressed if it is compressed; the size is None then."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - the path is a string
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


@contextlib.contextmanager
def _reading(path: str) -> Iterator[list[int]]:
    """Raise errors of the archive as a `CorruptError` with the offset stored in the list."""
    at = [0]
    try:
        yield at
    except ReliveError:
        raise
    except _BROKEN as error:
        raise CorruptError(f"cannot read `{path}` at byte {at[0]}: {error}") from error
    except OSError as error:
        if error.errno is None:  # gzip raises an OSError without a number for damaged bytes
            raise CorruptError(f"cannot read `{path}` at byte {at[0]}: {error}") from error
        raise storage_error(error, path, "read") from error
