"""Small images: scaled down, shown as RGB, and encoded."""

import base64
import struct
import zlib
from fractions import Fraction
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive._extras import require
from relive.errors import MissingExtraError

Pixels = npt.NDArray[np.uint8]

_LEAST_SIDE: Final = 16
"""Arrays with a shorter side are drawn as numbers."""
_CHANNELS: Final = (1, 3, 4)
_FLAT: Final = 2
_SMALL: Final = 64
"""Images with a shorter side are encoded losslessly, since JPEG would save nothing."""
_QUALITY: Final = 4


def is_image_shape(shape: tuple[int, ...]) -> bool:
    """Check whether values of this shape are drawn as images, such as depth images."""
    deep = len(shape) == _FLAT + 1 and shape[_FLAT] in _CHANNELS
    return (len(shape) == _FLAT or deep) and min(shape[:_FLAT]) >= _LEAST_SIDE


def downscale(image: npt.NDArray[Any], height: int, width: int) -> npt.NDArray[Any]:
    """Return an image of at most this size; each pixel is the mean of those it replaces."""
    rows, columns = min(height, image.shape[0]), min(width, image.shape[1])
    if (rows, columns) == image.shape[:2]:
        return image
    sums = image.astype(np.float64)
    for axis, count in ((0, rows), (1, columns)):
        length = sums.shape[axis]
        starts = np.arange(count) * length // count
        sizes = np.diff(np.append(starts, length))
        sizes = sizes.reshape((-1,) + (1,) * (sums.ndim - 1 - axis))
        sums = np.add.reduceat(sums, starts, axis=axis) / sizes
    return np.rint(sums).astype(np.uint8) if image.dtype == np.uint8 else sums


def to_rgb(images: list[npt.NDArray[Any]]) -> tuple[list[Pixels], tuple[float, float] | None]:
    """Return images as RGB bytes, and the values that are black and white.

    Bytes are not changed, and the second result is None. Other numbers, such as depths, are
    scaled from the lowest to the highest value of all images.
    """
    if not images or images[0].dtype == np.uint8:
        return [_rgb(image) for image in images], None
    numbers = [image.astype(np.float64) for image in images]
    finite = np.concatenate([part[np.isfinite(part)] for part in numbers])
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    span = high / 2 - low / 2 or 1.0
    shades = [np.nan_to_num((part / 2 - low / 2) / span, posinf=1, neginf=0) for part in numbers]
    return [_rgb((255 * part).clip(0, 255).astype(np.uint8)) for part in shades], (low, high)


def data_uri(image: Pixels) -> str:
    """Return a data URI of an image: JPEG if it is large, PNG if it is small."""
    if min(image.shape[:2]) >= _SMALL:
        try:
            data = _jpeg(image)
        except MissingExtraError:
            pass  # PNG is larger, but needs no extra
        else:
            return f"data:image/jpeg;base64,{base64.b64encode(data).decode()}"
    return f"data:image/png;base64,{base64.b64encode(_png(image)).decode()}"


def _rgb(image: npt.NDArray[Any]) -> Pixels:
    if image.ndim == _FLAT:
        image = image[:, :, None]
    if image.shape[2] == 1:
        image = np.repeat(image, 3, axis=2)
    return np.ascontiguousarray(image[:, :, :3])


def _jpeg(image: Pixels) -> bytes:
    av = require("av", extra="video", to="encode JPEG")
    height, width = image.shape[0] // 2 * 2, image.shape[1] // 2 * 2
    encoder: Any = av.CodecContext.create("mjpeg", "w")
    encoder.width, encoder.height, encoder.pix_fmt = width, height, "yuvj420p"
    encoder.time_base = Fraction(1, 25)
    encoder.options = {"qmin": str(_QUALITY), "qmax": str(_QUALITY)}
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image[:height, :width]), "rgb24")
    full = av.video.reformatter.ColorRange.JPEG
    frame = frame.reformat(format="yuvj420p", dst_color_range=full)
    return b"".join(map(bytes, (*encoder.encode(frame), *encoder.encode(None))))


def _png(image: Pixels) -> bytes:
    height, width, _ = image.shape
    rows = np.pad(image.reshape(height, -1), ((0, 0), (1, 0)))  # filter type 0 in front of each row
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows.tobytes())),
        (b"IEND", b""),
    )
    chunks = [
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
