"""Images: decoded with Pillow where that is asked for."""

import io
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive._extras import require
from relive.errors import CorruptError, InvalidError, TooLargeError

__all__ = ["SUFFIXES", "decode_image", "image_size", "load_pillow", "parse_size"]

SUFFIXES: Final = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)


def load_pillow() -> Any:
    """Import Pillow's module of images."""
    return require("PIL.Image", extra="convert", to="decode images")


def decode_image(data: bytes, where: str, size: tuple[int, int] | None) -> npt.NDArray[np.uint8]:
    """Give an image as an array (height, width, 3); resized to `size`, (height, width), if given.

    `where` is what an error calls it. An image that claims to be larger than Pillow's limit is
    a `TooLargeError`.
    """
    image = load_pillow()
    try:
        with image.open(io.BytesIO(data)) as opened:
            picture = opened.convert("RGB")
            if size is not None and picture.size != (size[1], size[0]):
                picture = picture.resize((size[1], size[0]), image.Resampling.BILINEAR)
            return np.asarray(picture)
    except (image.DecompressionBombError, image.DecompressionBombWarning) as error:
        raise TooLargeError(f"{where}: {error}") from error
    except MemoryError:
        raise
    except Exception as error:  # Pillow's plugins raise nearly anything for broken files
        raise CorruptError(f"{where} cannot be decoded: {error}") from error


def image_size(path: str) -> tuple[int, int]:
    """Give height and width of an image file, by its header alone."""
    image = load_pillow()
    try:
        with image.open(path) as opened:
            width, height = opened.size
            return height, width
    except (image.DecompressionBombError, image.DecompressionBombWarning) as error:
        raise TooLargeError(f"`{path}`: {error}") from error
    except Exception as error:
        raise CorruptError(f"`{path}` cannot be decoded: {error}") from error


def parse_size(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    """Read the argument `size`: one number for squares, or (height, width)."""
    if size is None:
        return None
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or not all(isinstance(n, int) and n > 0 for n in pair):  # noqa: PLR2004
        raise InvalidError(f"size is a number of pixels, or (height, width), not {size!r}")
    return pair[0], pair[1]
