"""The settings of a stored video, with which further frames of it are encoded.

The index of a video that relive recorded has them all. For other videos they come from the video
itself: the codec, the pixel format, the colors, and the quality where the encoder noted it.
"""

import re
from base64 import b64decode
from collections.abc import Iterator
from typing import Any, Final

from relive.errors import EncoderError, ReliveError
from relive.store.video.decoders import UNSPECIFIED, assumed_matrix
from relive.store.video.encode import FULL, MATRICES, Encoder, Header
from relive.store.video.frames import FrameReader
from relive.store.video.profiles import Encoding, Matrix, VideoSpec

# The encoder of a codec, and a quality at which a loss is hard to see; None if it is lossless.
_ENCODERS: Final[dict[str, tuple[str, float | None]]] = {
    "h264": ("libx264", 16),
    "hevc": ("libx265", 16),
    "av1": ("libsvtav1", 16),
    "vp8": ("libvpx", 8),
    "vp9": ("libvpx-vp9", 12),
    "mpeg4": ("mpeg4", 2),
    "mjpeg": ("mjpeg", 2),
    "ffv1": ("ffv1", None),
    "png": ("png", None),
}
_LOSSLESS: Final = frozenset(("ffv1", "ffvhuff", "huffyuv", "png", "qtrle", "rawvideo", "utvideo"))
_FINE_QUALITY: Final = 16
# x264 and x265 note their options as text, in the first packet or in the extradata.
_NOTED: Final = re.compile(rb"x26[45] [^\0]*?options: ([ -~]*)")
_NOTED_QUALITY: Final = re.compile(rb"(?:^| )(?:crf|qp)=([0-9]+(?:\.[0-9]+)?)")
_MATRIX_NAMES: Final[dict[int, Matrix]] = {0: "rgb", 1: "bt709", 5: "bt601", 6: "bt601"}


def find_encoding(reader: FrameReader, shape: tuple[int, ...]) -> Encoding:
    """Return the settings with which further frames of a stored video are encoded.

    If its codec cannot be encoded here, they are those of another one: a lossless one if the codec
    is, else one at high quality.
    """
    for encoding in _encodings(reader):
        try:
            Encoder(encoding, shape).close()
        except EncoderError:
            continue
        return encoding
    return VideoSpec(quality=_FINE_QUALITY).encoding()


def takes_decoded(encoder: Encoder, frame: Any) -> bool:
    """Return whether an encoder can encode a frame of PyAV without a conversion."""
    encoding = encoder.encoding
    kind = (frame.format.name, frame.width, frame.height, _matrix(frame))
    size = encoder.header["width"], encoder.header["height"]
    if kind != (encoding.pix_fmt, *size, encoding.matrix):
        return False
    return encoding.matrix == "rgb" or encoding.full_range == _is_full(frame)


def _encodings(reader: FrameReader) -> Iterator[Encoding]:
    """Iterate over settings for a stored video, the best first."""
    header = reader.index.header
    if (own := _recorded(header)) is not None:
        yield own
    codec = header["codec"]
    yield from _guessed(reader, codec)
    if codec in _LOSSLESS:
        yield VideoSpec(profile="lossless").encoding()


def _recorded(header: Header) -> Encoding | None:
    """Return the settings that relive stored in the index; None if it did not."""
    try:
        found = Encoding.from_header(header)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
    texts = [found.encoder, found.pix_fmt, found.profile]
    if isinstance(found.options, dict):
        texts += [text for option in found.options.items() for text in option]
    valid = all(isinstance(text, str) for text in texts) and found.matrix in MATRICES
    valid = valid and all(
        type(number) is int and number > 0 for number in (found.gop, found.threads)
    )
    return found if valid and isinstance(found.options, dict) else None


def _guessed(reader: FrameReader, codec: str) -> Iterator[Encoding]:
    if codec not in _ENCODERS:
        return
    encoder, quality = _ENCODERS[codec]
    index = reader.index
    frame = next(reader.decoded(0, 1))
    pix_fmt = frame.format.name
    if codec == "h264" and pix_fmt == "gbrp":
        encoder, pix_fmt = "libx264rgb", "bgr0"
    first = next(reader.packets(range(1))).data
    noted = _noted_quality(b64decode(index.header["extradata"]) + first)
    if quality is not None and noted is not None:
        quality = noted
    matrix = _matrix(frame)
    keys = max(1, int(index.keys.sum()))
    try:
        yield VideoSpec(
            codec=encoder,
            gop=max(1, min(250, -(-len(index) // keys))),
            pix_fmt=pix_fmt,
            quality=quality,
            full_range=_is_full(frame) or matrix == "rgb",
            matrix=matrix,
        ).encoding()
    except ReliveError:  # the noted quality is not on the scale of the encoder
        return


def _noted_quality(data: bytes) -> float | None:
    options = _NOTED.search(data)
    found = None if options is None else _NOTED_QUALITY.search(options[1])
    return None if found is None else float(found[1])


def _matrix(frame: Any) -> Matrix:
    if frame.format.name.startswith(("gbr", "rgb", "bgr", "0rgb", "0bgr", "argb", "abgr")):
        return "rgb"
    if frame.colorspace == UNSPECIFIED:
        return assumed_matrix(frame.width, frame.height)
    found = _MATRIX_NAMES.get(frame.colorspace, "bt709")
    return "bt709" if found == "rgb" else found


def _is_full(frame: Any) -> bool:
    return bool(frame.color_range == FULL) or frame.format.name.startswith("yuvj")
