"""Image files, decoded with Pillow to arrays that keep their depth and channels."""

import contextlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from relive._arguments import check_choice
from relive._extras import require
from relive.errors import (
    CorruptError,
    InvalidError,
    InvalidTypeError,
    ReliveError,
    TooLargeError,
    UnsupportedError,
)

Array = npt.NDArray[Any]
Mode = str
"""What a pixel is: a mode of Pillow, or `RGB;16` or `RGBA;16` for 16 bits per channel."""

SUFFIXES: Final = frozenset(
    {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)
MODES: Final = ("L", "LA", "RGB", "RGBA", "P", "CMYK")
"""The modes that images can be converted to; `P` and `CMYK` only keep what is stored."""

_PIXELS: Final[dict[Mode, tuple[type[np.generic], tuple[int, ...]]]] = {
    "1": (np.bool_, ()),
    "L": (np.uint8, ()),
    "LA": (np.uint8, (2,)),
    "RGB": (np.uint8, (3,)),
    "RGBA": (np.uint8, (4,)),
    "P": (np.uint8, ()),
    "CMYK": (np.uint8, (4,)),
    "I;16": (np.uint16, ()),
    "RGB;16": (np.uint16, (3,)),
    "RGBA;16": (np.uint16, (4,)),
    "I": (np.int32, ()),
    "F": (np.float32, ()),
}
"""The dtype and the channels of a pixel."""
_WITH_ALPHA: Final = {"1": "LA", "L": "LA", "RGB": "RGBA", "P": "RGBA"}
_EXPANDED: Final = {"P": "RGB", "PA": "RGBA", "La": "LA", "RGBa": "RGBA"}
_EIGHT_BIT: Final = frozenset({"L", "LA", "RGB", "RGBA"})
_GREY_16: Final = frozenset({"I;16", "I;16B", "I;16L", "I;16N"})
_WIDE: Final = re.compile(r"(RGBA?);16([BLN])")
_REDUCED: Final = re.compile(r".*;(16[BLN]|64\w*)|RGB[Aa]?X+")
"""How values are stored that Pillow decodes to fewer bits or channels."""
_OTHER_BYTE: Final = {"B": "L", "L": "B", "N": "B" if np.little_endian else "L"}
_ORIENTATION: Final = 0x0112
_SWAPPED: Final = frozenset({5, 6, 7, 8})
"""The EXIF orientations that exchange height and width."""


class FirstImage(NamedTuple):
    """The mode and the name of the first image, whose mode all others must have."""

    mode: Mode
    name: str


@dataclass(frozen=True, slots=True)
class ImageDecoder:
    """Decodes images to arrays (height, width) or (height, width, channels).

    Depth and channels are those of the file, unless `mode` converts them. `size` (height,
    width) resizes. Errors call an image by its name. An image larger than Pillow's limit is a
    `TooLargeError`.
    """

    size: tuple[int, int] | None = None
    mode: str | None = None

    def inspect(self, file: Any, name: str) -> tuple[Mode, tuple[int, int]]:
        """Return the mode, and the height and width, that the image will have when decoded."""
        with _opened(file, name) as image:
            width, height = image.size
            if _orientation(image) in _SWAPPED and image.format != "TIFF":  # Pillow swaps that
                width, height = height, width
            return self.mode or _natural_mode(image, name), self.size or (height, width)

    def decode(self, data: bytes, name: str, first: FirstImage | None = None) -> Array:
        """Decode an image; one of another mode than the first is an `InvalidError`."""
        with _opened(io.BytesIO(data), name) as image:
            if self.mode is None:
                mode = _natural_mode(image, name)
                if first is not None and mode != first.mode:
                    raise _differs(name, mode, first)
                array = _kept(image, mode, data)
            else:
                mode = self.mode
                array = _converted(image, mode, name)
            array = _upright(array, _orientation(image))
        if self.size is not None and array.shape[:2] != self.size:
            array = _resized(array, mode, self.size)
        return array


def pixel_format(mode: Mode) -> tuple[type[np.generic], tuple[int, ...]]:
    """Return the dtype and the channels of a pixel."""
    return _PIXELS[mode]


def load_pillow() -> Any:
    """Import `PIL.Image`."""
    return require("PIL.Image", extra="convert", to="decode images")


def parse_decoder(size: int | tuple[int, int] | None, mode: str | None) -> ImageDecoder:
    """Parse the arguments `size`, one number for squares or (height, width), and `mode`."""
    if mode is not None:
        if not isinstance(mode, str):
            raise InvalidTypeError(f"`mode` must be a string, got {mode!r}")
        check_choice("mode", mode, MODES)
    if size is None:
        return ImageDecoder(None, mode)
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or not all(isinstance(n, int) and n > 0 for n in pair):  # noqa: PLR2004
        raise InvalidError(
            f"`size` must be a positive integer or a pair (height, width), got {size!r}"
        )
    return ImageDecoder((pair[0], pair[1]), mode)


@contextlib.contextmanager
def _opened(file: Any, name: str) -> Iterator[Any]:
    pillow = load_pillow()
    try:
        with pillow.open(file) as image:
            yield image
    except ReliveError:
        raise
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning) as error:
        raise TooLargeError(f"cannot decode {name}: {error}") from error
    except MemoryError:
        raise
    except pillow.UnidentifiedImageError as error:
        text = f"cannot decode {name}: it is damaged, or not in an image format that Pillow reads"
        raise CorruptError(text) from error
    except Exception as error:  # Pillow's plugins raise many types of error for broken files
        raise CorruptError(f"cannot decode {name}: {error}") from error


def _natural_mode(image: Any, name: str) -> Mode:
    """Return the mode that keeps all that the file stores."""
    mode: Mode = image.mode
    raw, maximum = _stored(image)
    if mode.startswith("I;16") or (mode == "I" and (raw in _GREY_16 or maximum)):
        return "I;16"
    wide = _WIDE.fullmatch(raw)
    if wide is not None:
        return f"{wide[1]};16"
    reduced = _REDUCED.fullmatch(raw)
    if reduced is not None or (maximum or 0) > 255:  # noqa: PLR2004 - more than a byte
        raise UnsupportedError(
            f"{name} has the mode {raw.partition(';')[0]} with more bits or channels than Pillow "
            "can decode",
            hint='pass a mode such as mode="RGB" to reduce them, or a function as decode=',
        )
    if image.has_transparency_data:
        mode = _WITH_ALPHA.get(mode, mode)
    mode = _EXPANDED.get(mode, mode)
    if mode not in _PIXELS or mode == "CMYK":  # as an array, it would look like another mode
        keep = ', or mode="CMYK" to keep its four channels' if mode == "CMYK" else ""
        raise UnsupportedError(
            f"{name} has the mode {mode}, which can only be decoded on request",
            hint=f'pass mode="RGB" to convert its colors{keep}',
        )
    return mode


def _stored(image: Any) -> tuple[str, int | None]:
    """Return how pixels are stored, and the maximum that Pillow scales to its own."""
    codec, _, _, args = image.tile[0] if image.tile else ("", None, 0, None)
    if not isinstance(args, tuple):
        return (args if isinstance(args, str) else ""), None
    raw = args[0] if args and isinstance(args[0], str) else ""
    return (raw, int(args[1])) if codec == "ppm" else (raw, None)


def _kept(image: Any, mode: Mode, data: bytes) -> Array:
    """Return the pixels of a file as they are stored; palettes are expanded."""
    maximum = _stored(image)[1]
    wide = _WIDE.fullmatch(_stored(image)[0])
    if wide is not None:
        with load_pillow().open(io.BytesIO(data)) as again:
            return np.asarray(image).astype(np.uint16) << 8 | _low_bytes(again, wide)
    dtype, _ = _PIXELS[mode]
    array = np.asarray(image if mode in (image.mode, "I;16") else image.convert(mode))
    if maximum is not None:
        top = 255 if dtype == np.uint8 else 65535  # Pillow has scaled the values to this
        array = np.rint(array * (maximum / top))
    return array.astype(dtype, copy=False)


def _low_bytes(image: Any, wide: re.Match[str]) -> Array:
    """Return the low bytes of values of 16 bits: Pillow drops them unless the order is swapped."""
    raw = f"{wide[1]};16{_OTHER_BYTE[wide[2]]}"
    tiles = []
    for tile in image.tile:
        make = getattr(type(tile), "_make", tuple)  # a named tuple in later versions of Pillow
        tiles.append(make((*tile[:3], raw if isinstance(tile[3], str) else (raw, *tile[3][1:]))))
    image.tile = tiles
    image.load()
    return np.asarray(image)


def _converted(image: Any, mode: Mode, name: str) -> Array:
    """Return the pixels of a file in a mode that was asked for."""
    if mode in ("P", "CMYK") and image.mode != mode:
        raise InvalidError(
            f"{name} has the mode {image.mode}, but mode={mode!r} can only keep what is stored",
            hint="pass another mode, such as RGB",
        )
    if image.mode == "F" or (image.mode == "I" and _natural_mode(image, name) == "I"):
        raise InvalidError(
            f"{name} has {_PIXELS[image.mode][0].__name__} values, which mode={mode!r} cannot hold",
            hint="omit `mode` to keep them, or pass a function as decode=",
        )
    if image.mode.startswith("I"):  # Pillow would clip the values at 255
        high = np.asarray(image).astype(np.uint16) >> 8
        image = load_pillow().fromarray(high.astype(np.uint8))
    return np.asarray(image if image.mode == mode else image.convert(mode))


def _orientation(image: Any) -> int:
    # PNG may store EXIF data after the pixels, and Pillow would decode them to look there.
    if "exif" not in image.info and image.format == "PNG":
        return 1
    with contextlib.suppress(Exception):  # damaged EXIF data do not make the pixels unreadable
        return int(image.getexif().get(_ORIENTATION, 1))
    return 1


def _upright(array: Array, orientation: int) -> Array:
    """Return the pixels in the direction in which the image is shown."""
    if orientation in _SWAPPED:
        array = array.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        array = array[::-1]
    if orientation in (2, 3, 6, 7):
        array = array[:, ::-1]
    return np.ascontiguousarray(array)


def _resized(array: Array, mode: Mode, size: tuple[int, int]) -> Array:
    pillow = load_pillow()

    def resize(pixels: Array) -> Array:
        method = pillow.Resampling.NEAREST if mode in ("1", "P") else pillow.Resampling.BILINEAR
        return np.asarray(pillow.fromarray(pixels).resize((size[1], size[0]), method))

    if mode in _EIGHT_BIT or array.dtype in (np.bool_, np.int32, np.float32) or mode == "P":
        return resize(array)
    if array.ndim == 2:  # noqa: PLR2004 - no channels
        return np.rint(resize(array.astype(np.float32))).astype(array.dtype)
    channels = [np.rint(resize(array[:, :, k].astype(np.float32))) for k in range(array.shape[2])]
    return np.stack(channels, axis=2).astype(array.dtype)


def _differs(name: str, mode: Mode, first: FirstImage) -> InvalidError:
    return InvalidError(
        f"{name} has the mode {mode}, but {first.name} has the mode {first.mode}",
        hint='convert all images to one mode, as with mode="RGB", or keep the files as they are '
        'with decode="bytes"',
    )


def first_of(found: Iterator[tuple[Mode, str]]) -> FirstImage | None:
    """Return the first of some images; if one has another mode, that is an `InvalidError`."""
    first: FirstImage | None = None
    for mode, name in found:
        if first is None:
            first = FirstImage(mode, name)
        elif mode != first.mode:
            raise _differs(name, mode, first)
    return first
