"""Whether packets from several sources can be stored one after the other in one video."""

from base64 import b64decode
from typing import Final

from relive.store.video.access_points import access_point, nal_units
from relive.store.video.encode import Header

_DECODED_BY: Final = ("codec", "extradata", "width", "height", "pix_fmt")
# Their key frames depend on nothing that was decoded before.
_INDEPENDENT: Final = frozenset(("av1", "ffv1", "mjpeg", "png", "vp8", "vp9"))
_HEVC_IDR: Final = (19, 20)


def decoder_differences(one: Header, other: Header) -> list[str]:
    """Return in which keys two videos differ that have to be the same for one decoder."""
    return [key for key in _DECODED_BY if one.get(key) != other.get(key)]


def restarts_decoder(header: Header, packet: bytes) -> bool:
    """Return whether the packet of a key frame can follow packets of any other frame."""
    codec, extradata = header["codec"], b64decode(header["extradata"])
    if codec == "h264":
        return access_point(codec, extradata, packet) == "closed"
    if codec == "hevc":
        return any(unit[0] >> 1 & 0x3F in _HEVC_IDR for unit in nal_units(codec, extradata, packet))
    return codec in _INDEPENDENT
