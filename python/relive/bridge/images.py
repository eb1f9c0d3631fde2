"""Image files, decoded with Pillow."""

import contextlib
import io
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive._extras import require
from relive.errors import CorruptError, InvalidError, TooLargeError

SUFFIXES: Final = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)


def load_pillow() -> Any:
    """Import `PIL.Image`."""
    return require("PIL.Image", extra="convert", to="decode images")


def decode_image(data: bytes, name: str, size: tuple[int, int] | None) -> npt.NDArray[np.uint8]:
    """Return an image as an array (height, width, 3), resized to `size` (height, width) if given.

    Errors call the image `name`. An image larger than Pillow's limit is a `TooLargeError`.
    """
    with _opened(io.BytesIO(data), name) as (pillow, image):
        rgb = image.convert("RGB")
        if size is not None and rgb.size != (size[1], size[0]):
            rgb = rgb.resize((size[1], size[0]), pillow.Resampling.BILINEAR)
        return np.asarray(rgb)


def image_size(path: str) -> tuple[int, int]:
    """Return the height and width in the header of an image file."""
    with _opened(path, f"`{path}`") as (_, image):
        width, height = image.size
        return height, width


@contextlib.contextmanager
def _opened(file: Any, name: str) -> Iterator[tuple[Any, Any]]:
    pillow = load_pillow()
    try:
        with pillow.open(file) as image:
            yield pillow, image
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning) as error:
        raise TooLargeError(f"cannot decode {name}: {error}") from error
    except MemoryError:
        raise
    except Exception as error:  # Pillow's plugins raise many types of error for broken files
        raise CorruptError(f"cannot decode {name}: {error}") from error


def parse_size(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    """Parse the argument `size`: one number for squares, or (height, width)."""
    if size is None:
        return None
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or not all(isinstance(n, int) and n > 0 for n in pair):  # noqa: PLR2004
        raise InvalidError(
            f"`size` must be a positive integer or a pair (height, width), got {size!r}"
        )
    return pair[0], pair[1]
