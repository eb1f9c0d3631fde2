"""Checks whether a decoder can start at a packet that its container marks as a key frame.

H.264 and HEVC streams may mark frames from which the picture is only refreshed step by step, or
frames whose successors refer to frames before them. A decoder that starts there returns frames
that differ from those of a decoder that started at the beginning.
"""

from collections.abc import Iterator
from typing import Final, Literal, TypeAlias

AccessPoint: TypeAlias = Literal["closed", "open"]

_START_CODE: Final = b"\0\0\1"
_H264_SLICES: Final = range(1, 5)  # and data partitions; 5 is an IDR slice
_H264_IDR: Final = 5
_H264_SEI: Final = 6
_HEVC_SLICES: Final = range(32)
_HEVC_IRAP: Final = range(16, 22)  # decoders leave out the frames before a CRA frame
_RECOVERY_POINT: Final = 6
_HEAD_BYTES: Final = 4096
"""Units before the first slice are read up to this length."""


def access_point(codec: str, extradata: bytes, data: bytes) -> AccessPoint | None:
    """Return how a decoder can start at a packet; None if it cannot.

    Frames that are shown from an access point on are decoded exactly without earlier ones. At an
    `open` one, a decoder may miss frames that the stream refers to without using them, and frames
    that are decoded after it but shown before it cannot be decoded. `data` is the packet, or its
    first bytes. For other codecs than `h264` and `hevc` the mark of the container is right.
    """
    if codec == "h264":
        return _h264(extradata, data)
    if codec == "hevc":
        for unit in nal_units(codec, extradata, data):
            kind = unit[0] >> 1 & 0x3F
            if kind in _HEVC_SLICES:
                return "closed" if kind in _HEVC_IRAP else None
        return None
    return "closed"


def _h264(extradata: bytes, data: bytes) -> AccessPoint | None:
    recovers = False
    for unit in nal_units("h264", extradata, data):
        kind = unit[0] & 0x1F
        if kind == _H264_IDR:
            return "closed"
        if kind in _H264_SLICES:
            return "open" if recovers else None
        if kind == _H264_SEI:
            recovers |= _is_immediate_recovery(unit)
    return None


def nal_units(codec: str, extradata: bytes, data: bytes) -> Iterator[bytes]:
    """Iterate over the NAL units of a packet: with start codes, or with lengths as in MP4."""
    if extradata[:1] == b"\1":
        at = 4 if codec == "h264" else 21
        width = (extradata[at] & 3) + 1 if len(extradata) > at else 4
        start = 0
        while start + width < len(data):
            length = int.from_bytes(data[start : start + width], "big")
            start += width
            if length:
                yield data[start : start + min(length, _HEAD_BYTES)]
            start += length
        return
    start = data.find(_START_CODE)
    while 0 <= start < len(data) - len(_START_CODE):
        start += len(_START_CODE)
        following = data.find(_START_CODE, start)
        yield data[start : start + _HEAD_BYTES if following < 0 else following]
        start = following


def _is_immediate_recovery(unit: bytes) -> bool:
    """Check for a recovery point message whose frame is itself exact (ITU-T H.264, D.1.8)."""
    payload = unit[1:].replace(b"\0\0\3", b"\0\0")  # without emulation prevention
    at = 0
    while at + 2 < len(payload):
        kind = size = 0
        while at < len(payload) and payload[at] == 0xFF:  # noqa: PLR2004 - the size continues
            kind += payload[at]
            at += 1
        kind += payload[at] if at < len(payload) else 0
        at += 1
        while at < len(payload) and payload[at] == 0xFF:  # noqa: PLR2004
            size += payload[at]
            at += 1
        size += payload[at] if at < len(payload) else 0
        at += 1
        if kind == _RECOVERY_POINT:
            # The bits 1 and 1: `recovery_frame_cnt` is 0, and `exact_match_flag` is set.
            return payload[at : at + 1] >= b"\xc0"
        at += size
    return False
