"""A folder of images, with a folder for each class or without, as rows."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from relive.bridge.fingerprint import file_identity, function_identity
from relive.bridge.images import SUFFIXES, decode_image, image_size, load_pillow, parse_size
from relive.bridge.rows import RowReader
from relive.errors import NotFoundError
from relive.model.schema import Field
from relive.store.atomic import storage_error

__all__ = ["ImageFolder"]

_HEADERS: Final = 1000
"""How many files are looked at to see whether all images have one size."""


class ImageFolder(RowReader[int]):
    """The images below a folder, by the order of their paths.

    A row has `image`, the bytes of the file, `path`, and `label`: the number of the folder
    directly below the root among all those that have images, by name. Where images lie in the
    root itself, there is no label. With `decode`, images are arrays (height, width, 3) of uint8,
    or what that function makes of the bytes.
    """

    def __init__(
        self,
        root: str,
        *,
        decode: bool | Callable[[bytes], Any] = False,
        size: int | tuple[int, int] | None = None,
    ) -> None:
        self._root = Path(root)
        self._paths = sorted(_images(root))
        if not self._paths:
            raise NotFoundError(
                f"no image below `{root}`", hint=f"known by {', '.join(sorted(SUFFIXES))}"
            )
        self._size = parse_size(size)
        self._decode = decode or self._size is not None
        self.group = 1 if self._decode else 8  # an image can be a thousand times its file
        folders = {path.partition("/")[0] if "/" in path else "" for path in self._paths}
        self._labels = {name: label for label, name in enumerate(sorted(folders))}
        self._labelled = "" not in folders
        self.declared = None if callable(self._decode) else self._fields()

    @property
    def total(self) -> int:
        """The number of images."""
        return len(self._paths)

    @property
    def identity(self) -> Mapping[str, Any]:
        """Name, size and time of every file."""
        digest = hashlib.sha256()
        for name in self._paths:
            for told in file_identity([self._root / name]):
                digest.update(repr(told).encode())
        return {
            "images": str(self._root.absolute()),
            "files": digest.hexdigest()[:32],
            "decode": function_identity(self._decode),
            "size": self._size,
        }

    def items(self, start: int) -> Iterator[int]:
        """Give the numbers of the images."""
        return iter(range(start, len(self._paths)))

    def row(self, item: int) -> Mapping[str, Any]:
        """Read an image."""
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
            image = decode_image(data, f"`{path}`", self._size)
        text = os.fsencode(name).decode(errors="backslashreplace")  # a name may be no text
        row = {"image": image, "path": text}
        if self._labelled:
            row["label"] = np.int64(self._labels[name.partition("/")[0]])
        return row

    def _fields(self) -> dict[str, Field]:
        image = Field("bytes")
        if self._decode:
            load_pillow()
            image = Field(np.uint8, (3,), ragged=2)
            size = self._size or self._one_size()
            if size is not None:
                image = Field(np.uint8, (*size, 3))
        fields = {"image": image, "path": Field("str")}
        return fields | {"label": Field(np.int64)} if self._labelled else fields

    def _one_size(self) -> tuple[int, int] | None:
        """Give the size that all images have, by a sample spread over them; None if they differ."""
        chosen = np.linspace(0, self.total - 1, min(self.total, _HEADERS)).astype(int)
        found: tuple[int, int] | None = None
        for number in chosen.tolist():
            size = image_size(str(self._root / self._paths[number]))
            if found is not None and size != found:
                return None
            found = size
        return found


def _images(root: str) -> Iterator[str]:
    def fail(error: OSError) -> None:
        raise storage_error(error, error.filename or root, "read")

    for folder, inner, names in os.walk(root, onerror=fail):
        inner[:] = [name for name in inner if not name.startswith(".")]
        below = os.path.relpath(folder, root)
        for name in names:
            if name.startswith(".") or os.path.splitext(name)[1].lower() not in SUFFIXES:  # noqa: PTH122 - text, for speed
                continue
            path = name if below == "." else f"{below}/{name}"
            yield path
