"""A bounded pool of open decoders, shared by all readers of a process.

Opening a decoder takes as long as decoding a frame or two, and an open decoder holds memory. A
decoder that stopped between two key frames can continue with the next frame.
"""

import os
import threading
from base64 import b64decode
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive._extras import require
from relive.errors import CorruptError, UnsupportedError
from relive.store.video.encode import CHANNELS, FULL, LIMITED, SWS_MATRICES, Header
from relive.store.video.profiles import Matrix

Image = npt.NDArray[np.uint8]

IDLE: Final = 16
"""The most decoders that are kept idle; one of 640×480 holds about 3 MB."""

# Players assume BT.709 for untagged video of at least this size, and BT.601 below.
HD_WIDTH: Final = 1280
HD_HEIGHT: Final = 720
UNSPECIFIED: Final = 2
# swscale converts these to RGB on fast paths that truncate instead of rounding.
_TRUNCATED: Final = frozenset(("yuv420p", "yuvj420p", "yuv422p", "yuvj422p"))


class Decoder:
    """One open decoder: decodes packets, in their order, to frames by row.

    `reader` is the number of the reader that used it last, `turn` the position of the packet that
    it needs next; `row` and `frame` are what it decoded last.
    """

    def __init__(self, header: Header) -> None:
        self._av = require("av", extra="video", to="decode video")
        reformatter = require("av.video.reformatter", extra="video", to="decode video")
        name = header["codec"]
        try:
            context = self._av.CodecContext.create("libdav1d" if name == "av1" else name, "r")
        except (self._av.error.FFmpegError, ValueError) as error:
            raise UnsupportedError(f"this build of PyAV has no decoder for `{name}`") from error
        extradata = b64decode(header["extradata"])
        if extradata:
            context.extradata = extradata
        context.width, context.height = header["width"], header["height"]
        context.thread_count = (
            1  # frames after different key frames are decoded in parallel instead
        )
        context.options = {"err_detect": "explode"}  # raise an error instead of concealing it
        self.failures = (self._av.error.FFmpegError, ValueError, RuntimeError, MemoryError)
        self.key = key_of(header)
        self._context = context
        self._matrix = header.get("colorspace")
        self._convert = reformatter.VideoReformatter()
        self._lifted: Any = None
        self._planes: list[Image] = []
        self.reader = -1
        self.turn = 0
        self.row = -1
        self.frame: Any = None

    def restart(self, reader: int, turn: int) -> None:
        """Reset the decoder, to start at a key frame."""
        self._context.flush_buffers()
        self.reader, self.turn, self.row, self.frame = reader, turn, -1, None

    def feed(self, data: memoryview | None, row: int) -> list[Any]:
        """Decode one packet; without one, return the frames that the decoder holds back."""
        packet = None
        if data is not None:
            packet = self._av.Packet(data)
            packet.pts = row
        frames: list[Any] = self._context.decode(packet)
        return frames

    def picture(self, frame: Any, shape: tuple[int, int, int]) -> Image:
        """Return a decoded frame as RGB, cropped to a shape, in new memory."""
        height, width = shape[:2]
        if frame.width < width or frame.height < height:
            size = f"{frame.width}×{frame.height}"
            raise CorruptError(
                f"a video frame has {size} pixels, expected at least {width}×{height}"
            )
        matrix, full = frame.colorspace, frame.color_range == FULL
        if matrix == UNSPECIFIED:
            matrix = SWS_MATRICES[self._matrix or assumed_matrix(frame.width, frame.height)]
        kind = frame.format.name
        picture = self._convert.reformat(
            self._lift(frame, kind) if kind in _TRUNCATED else frame,
            format="rgb24",
            src_colorspace=matrix,
            src_color_range=FULL if full or kind.startswith("yuvj") else LIMITED,
            dst_color_range=FULL,
            threads=1,
        )
        plane = picture.planes[0]
        return np.ndarray(shape, np.uint8, plane, strides=(plane.line_size, CHANNELS, 1))

    def _lift(self, frame: Any, kind: str) -> Any:
        """Return the frame one step lighter: truncation makes it one step darker on average."""
        lifted = self._lifted
        size = (frame.width, frame.height, kind)
        if lifted is None or (lifted.width, lifted.height, lifted.format.name) != size:
            lifted = self._lifted = self._av.VideoFrame(*size)
            self._planes = [_pixels(plane) for plane in lifted.planes]
        light, *colours = self._planes
        source, *rest = frame.planes
        pixels = _pixels(source)
        np.add(pixels, 1, out=light)
        np.maximum(light, pixels, out=light)  # 255 must not wrap around to 0
        for target, plane in zip(colours, rest, strict=True):
            np.copyto(target, _pixels(plane))
        return lifted


class _Pool:
    """Idle decoders, the one used longest ago first. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Decoder] = []

    def take(self, key: tuple[object, ...], reader: int, start: int, turn: int) -> Decoder | None:
        """Return the best decoder: one that can continue, one of this reader, one without reader.

        A decoder that another reader may continue with is taken only if the pool is full.
        """
        with self._lock:
            full = len(self._idle) >= IDLE

            def worth(decoder: Decoder) -> tuple[int, bool, bool, bool]:
                own = decoder.reader == reader
                continues = own and start <= decoder.turn <= turn + 1
                return decoder.turn + 1 if continues else 0, own, decoder.reader < 0, full

            fitting = [decoder for decoder in self._idle if decoder.key == key]
            best = max(fitting, key=worth, default=None)
            if best is None or not any(worth(best)):
                return None
            self._idle.remove(best)
            return best

    def put(self, decoder: Decoder) -> None:
        """Keep a decoder; if the pool is full, the oldest is closed."""
        gone = None
        with self._lock:
            self._idle.append(decoder)
            if len(self._idle) > IDLE:
                gone = self._idle.pop(0)
        del gone  # outside the lock, because closing takes a while

    def clear(self) -> None:
        """Close all idle decoders."""
        with self._lock:
            gone, self._idle = self._idle, []
        gone.clear()


_pool = _Pool()
_inherited: list[_Pool] = []


def borrow(header: Header, reader: int, start: int, turn: int) -> Decoder:
    """Return a decoder that can continue to `turn`, or one that starts at `start`."""
    decoder = _pool.take(key_of(header), reader, start, turn)
    if decoder is None:
        decoder = Decoder(header)
    elif decoder.reader == reader and start <= decoder.turn <= turn + 1:
        return decoder
    decoder.restart(reader, start)
    return decoder


def give_back(decoder: Decoder) -> None:
    """Return a decoder to the pool."""
    _pool.put(decoder)


def clear() -> None:
    """Close all idle decoders."""
    _pool.clear()


def key_of(header: Header) -> tuple[object, ...]:
    """Return a key that is equal for videos that the same decoder can decode."""
    kind = (header["codec"], header["width"], header["height"], header.get("colorspace"))
    return *kind, header["extradata"]


def assumed_matrix(width: int, height: int) -> Matrix:
    """Return the color matrix that players assume for untagged video."""
    return "bt709" if width >= HD_WIDTH or height >= HD_HEIGHT else "bt601"


def _pixels(plane: Any) -> Image:
    shape = (plane.height, plane.width)
    return np.ndarray(shape, np.uint8, plane, strides=(plane.line_size, 1))


def _after_fork() -> None:
    # A thread of the parent may have been using a decoder: they are neither used nor closed here.
    global _pool  # noqa: PLW0603
    _inherited.append(_pool)
    _pool = _Pool()


os.register_at_fork(after_in_child=_after_fork)
