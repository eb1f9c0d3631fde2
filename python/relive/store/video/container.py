"""Scans a video file for its codec and the offsets of its frames, without decoding them.

For videos without an index of relive: of other programs, or whose index was lost.
"""

import io
import os
from base64 import b64encode
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from relive._extras import require
from relive.errors import CorruptError, ReliveError, UnsupportedError
from relive.store.atomic import check_file, storage_error
from relive.store.video.access_points import access_point
from relive.store.video.encode import Header

# In these FFmpeg's position of a packet is that of its bytes.
_EXACT: Final = ("mov",)
# Other containers have a head of at most this many bytes there.
_HEAD_BYTES: Final = 64
# AVI has no times, and FFmpeg guesses wrong ones for these.
_TIMELESS: Final = ("h264", "hevc")


class Scan(NamedTuple):
    """The codec of a file, and its frames in the order in which they are shown."""

    header: Header
    pts: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    keys: npt.NDArray[np.bool_]


def scan(path: str | os.PathLike[str]) -> Scan:
    """Read the offsets of all whole packets from the file itself.

    A container that does not store each frame as one piece, such as MPEG-TS, is an
    `UnsupportedError`.
    """
    av = require("av", extra="video", to="read video")
    name = os.fspath(path)
    check_file(name)
    try:
        with av.open(name, metadata_errors="replace") as file:
            stream = next(iter(file.streams.video), None)
            if stream is None or stream.codec_context is None:
                raise CorruptError(f"`{name}` has no video stream that can be decoded")
            header = _header(av, stream)
            codec, extradata = header["codec"], stream.codec_context.extradata or b""
            found: list[tuple[int, int, int, bool]] = []
            container = file.format.name
            if container == "avi" and codec in _TIMELESS and stream.codec_context.has_b_frames:
                hint = "encode the video again as an MP4 file"
                raise _unsupported(name, container, "state when B-frames are shown", hint)
            for packet in file.demux(stream):
                if packet.pts is None or packet.pos is None or not _is_whole(packet):
                    continue
                at = packet.pos
                if not container.startswith(_EXACT):
                    at = _offset_of(packet, name, container)
                # The first frame is where every decoder starts.
                key = packet.is_keyframe and (
                    not found or access_point(codec, extradata, bytes(packet)) is not None
                )
                found.append((packet.pts, at, packet.size, key))
    except (av.error.FFmpegError, OSError, ValueError) as error:
        if isinstance(error, ReliveError):
            raise
        if isinstance(error, OSError) and not isinstance(error, ValueError):
            raise storage_error(error, name, "read") from error
        raise CorruptError(f"FFmpeg cannot read `{name}` as a video: {error}") from error
    # With B-frames the order of pts is not that of the file.
    table = np.array(sorted(found), np.int64).reshape(-1, 4)
    return Scan(header, table[:, 0], table[:, 1], table[:, 2], table[:, 3].astype(np.bool_))


def _offset_of(packet: Any, path: str, container: str) -> int:
    """Return where the bytes of a packet are in a file, close after the position of the packet."""
    data = bytes(packet)
    with Path(path).open("rb") as file:
        near = os.pread(file.fileno(), len(data) + _HEAD_BYTES, packet.pos)
    at = near.find(data)
    if at < 0:
        hint = f"copy them to an MP4 file: ffmpeg -i {Path(path).name} -c copy OUTPUT.mp4"
        raise _unsupported(path, container, "store each of them as one piece", hint)
    return int(packet.pos) + at


def _unsupported(path: str, container: str, lacks: str, hint: str) -> UnsupportedError:
    text = f"cannot read the frames of `{path}`: its container, {container}, does not {lacks}"
    return UnsupportedError(text, hint=hint)


def _is_whole(packet: Any) -> bool:
    return packet.size > 0 and not packet.is_corrupt and not packet.is_discard


def _header(av: Any, stream: Any) -> Header:
    context = stream.codec_context
    base = stream.time_base
    rate = stream.average_rate or stream.guessed_rate
    return {
        "codec": context.codec.canonical_name,
        "extradata": b64encode(context.extradata or b"").decode(),
        "init": b64encode(_init(av, stream)).decode(),
        "width": context.width,
        "height": context.height,
        "pix_fmt": context.pix_fmt,
        "time_base": [base.numerator, base.denominator],
        "colorspace": None,
        "color_range": None,
        "fps": [rate.numerator, rate.denominator] if rate else [30, 1],
    }


def _init(av: Any, stream: Any) -> bytes:
    """Return the boxes before the first packet of an MP4; b"" if MP4 cannot hold the codec."""
    buffer = io.BytesIO()
    options = {"movflags": "empty_moov+default_base_moof"}
    movie = av.open(buffer, "w", format="mp4", options=options)
    try:
        movie.add_stream_from_template(stream, opaque=True)
        movie.start_encoding()
        data = buffer.getvalue()
        movie.close()
    except (av.error.FFmpegError, ValueError):
        return b""
    return data
