"""A folder of images, with or without a sub-folder for each class."""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from relive._arguments import utf8_name
from relive.bridge.fingerprint import file_fingerprint, function_fingerprint
from relive.bridge.images import (
    SUFFIXES,
    FirstImage,
    ImageDecoder,
    first_of,
    load_pillow,
    parse_decoder,
    pixel_format,
)
from relive.bridge.options import ReadOptions, single_path
from relive.bridge.rows import RowReader, RowStream
from relive.bridge.stream import Stream
from relive.errors import CorruptError, NotFoundError
from relive.model.schema import Field
from relive.store.atomic import storage_error

_HEADERS: Final = 1000
"""The number of files whose headers are read for the size and the mode of all images."""


def open_images(paths: list[str], options: ReadOptions) -> Stream:
    """Return the images in a folder."""
    decode = options.decoder(None, bytes=False, image=True)
    folder = single_path(paths, "folders of images")
    decoder = parse_decoder(options.size, options.mode)
    return RowStream(_ImageFolder(folder, decode, decoder), options)


class _ImageFolder(RowReader[int]):
    """The images in a folder and its sub-folders, sorted by path.

    A row has `image`, the bytes of the file, `path`, and `label`: the position of the top-level
    sub-folder in the sorted list of those that contain images. If the folder itself contains
    images, there is no label. With `decode`, images are arrays of one mode, or what that
    function returns for the bytes.
    """

    def __init__(
        self,
        root: str,
        decode: Callable[[bytes], Any] | bool | None,  # noqa: FBT001 - a function or a flag
        decoder: ImageDecoder,
    ) -> None:
        self._root = Path(root)
        self._paths = sorted(_images(root))
        if not self._paths:
            raise NotFoundError(
                f"`{root}` contains no images",
                hint=f"the names of image files end in {', '.join(sorted(SUFFIXES))}",
            )
        self._decoder = decoder
        self._decode = decode or decoder != ImageDecoder()
        self._first: FirstImage | None = None
        # An image can be a thousand times as large as its file.
        self.group = 1 if self._decode else 8
        folders = {path.partition("/")[0] if "/" in path else "" for path in self._paths}
        self._labels = {name: label for label, name in enumerate(sorted(folders))}
        self._has_labels = "" not in folders
        self.total: int = len(self._paths)
        self.declared = None if callable(self._decode) else self._fields()

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        """Path, size and modification time of every file."""
        digest = hashlib.sha256()
        for file in file_fingerprint(self._root / name for name in self._paths):
            digest.update(repr(file).encode())
        return {
            "images": str(self._root.absolute()),
            "files": digest.hexdigest()[:32],
            "decode": function_fingerprint(self._decode),
            "size": self._decoder.size,
            "mode": self._decoder.mode,
        }

    def items(self, start: int) -> Iterator[int]:
        """Yield the positions of the images."""
        return iter(range(start, self.total))

    def row(self, item: int) -> Mapping[str, Any]:
        """Read an image and decode it."""
        name = self._paths[item]
        path = self._root / name
        try:
            data = path.read_bytes()
        except OSError as error:
            raise storage_error(error, path, "read") from error
        image: Any = data
        if callable(self._decode):
            image = self._decode(data)
        elif self._decode:
            image = self._decoder.decode(data, f"`{path}`", self._first)
        row = {"image": image, "path": utf8_name(name)}
        if self._has_labels:
            row["label"] = np.int64(self._labels[name.partition("/")[0]])
        return row

    def _fields(self) -> dict[str, Field]:
        image = Field("bytes")
        if self._decode:
            load_pillow()
            image = self._pixels()
        fields = {"image": image, "path": Field("str")}
        return fields | {"label": Field(np.int64)} if self._has_labels else fields

    def _pixels(self) -> Field:
        """Return the field of decoded images, from the headers of a sample spread over them."""
        decoder = self._decoder
        mode, sizes = decoder.mode, set() if decoder.size is None else {decoder.size}
        if mode is None or not sizes:
            sample = np.linspace(0, self.total - 1, min(self.total, _HEADERS)).astype(int)
            found = list(self._headers(sample.tolist()))
            self._first = first_of((mode, name) for mode, _, name in found)
            mode = self._first.mode if self._first is not None else decoder.mode or "RGB"
            sizes = {size for _, size, _ in found}
        dtype, channels = pixel_format(mode)
        if len(sizes) == 1:
            (size,) = sizes
            return Field(dtype, (*size, *channels))
        return Field(dtype, channels, ragged=2)

    def _headers(self, numbers: list[int]) -> Iterator[tuple[str, tuple[int, int], str]]:
        for number in numbers:
            path = str(self._root / self._paths[number])
            with contextlib.suppress(CorruptError):  # decoding raises it, or skips the image
                yield *self._decoder.inspect(path, f"`{path}`"), f"`{path}`"


def _images(root: str) -> Iterator[str]:
    def fail(error: OSError) -> None:
        raise storage_error(error, error.filename or root, "read")

    for folder, inner, names in os.walk(root, onerror=fail):
        inner[:] = [name for name in inner if not name.startswith(".")]
        below = os.path.relpath(folder, root)
        for name in names:
            if name.startswith(".") or os.path.splitext(name)[1].lower() not in SUFFIXES:  # noqa: PTH122 - a Path is slow
                continue
            yield name if below == "." else f"{below}/{name}"
