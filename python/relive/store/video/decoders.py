"""A bounded pool of open decoders, shared by all readers of a process.

Opening a decoder takes as long as a frame or two, and an open one holds memory. One that
stopped between two key frames keeps its place, so that the next frame costs one decode.
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

__all__ = ["IDLE", "Decoder", "borrow", "clear", "give_back"]

Image = npt.NDArray[np.uint8]

IDLE: Final = 16
"""So many decoders wait at most; a 640×480 one holds some 3 MB."""

# Players take untagged video of this size for BT.709, and smaller for BT.601.
HD_WIDTH: Final = 1280
HD_HEIGHT: Final = 720
UNSPECIFIED: Final = 2
# swscale has fast paths from these to RGB, which cut off where they should round.
_CUT_OFF: Final = frozenset(("yuv420p", "yuvj420p", "yuv422p", "yuvj422p"))


class Decoder:
    """One open decoder: given packets in their order, it gives frames by row.

    `reader` is whose video it is in, `turn` the place there of the packet that it wants next,
    and `row` and `frame` are what it gave last.
    """

    def __init__(self, header: Header) -> None:
        self._av = require("av", extra="video", to="decode video")
        reformatter = require("av.video.reformatter", extra="video", to="decode video")
        name = header["codec"]
        try:
            context = self._av.CodecContext.create("libdav1d" if name == "av1" else name, "r")
        except (self._av.error.FFmpegError, ValueError) as error:
            raise UnsupportedError(f"this build of PyAV cannot decode `{name}`") from error
        extradata = b64decode(header["extradata"])
        if extradata:
            context.extradata = extradata
        context.width, context.height = header["width"], header["height"]
        context.thread_count = 1  # several groups of pictures are decoded side by side instead
        context.options = {"err_detect": "explode"}  # rather an error than a patched picture
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
        """Forget all, to begin at a key frame."""
        self._context.flush_buffers()
        self.reader, self.turn, self.row, self.frame = reader, turn, -1, None

    def feed(self, data: memoryview | None, row: int) -> list[Any]:
        """Decode one packet; without one, give all frames that were held back."""
        packet = None
        if data is not None:
            packet = self._av.Packet(data)
            packet.pts = row
        frames: list[Any] = self._context.decode(packet)
        return frames

    def picture(self, frame: Any, shape: tuple[int, int, int]) -> Image:
        """Give a decoded frame as RGB, cropped to a shape, in memory of its own."""
        height, width = shape[:2]
        if frame.width < width or frame.height < height:
            size = f"{frame.width}×{frame.height}"
            raise CorruptError(f"a frame of {size} is where {width}×{height} should be")
        matrix, full = frame.colorspace, frame.color_range == FULL
        if matrix == UNSPECIFIED:
            matrix = SWS_MATRICES[self._matrix or _assumed(frame.width, frame.height)]
        kind = frame.format.name
        picture = self._convert.reformat(
            self._lift(frame, kind) if kind in _CUT_OFF else frame,
            format="rgb24",
            src_colorspace=matrix,
            src_color_range=FULL if full or kind.startswith("yuvj") else LIMITED,
            dst_color_range=FULL,
            threads=1,
        )
        plane = picture.planes[0]
        return np.ndarray(shape, np.uint8, plane, strides=(plane.line_size, CHANNELS, 1))

    def _lift(self, frame: Any, kind: str) -> Any:
        """Give the frame one step lighter: what swscale takes away, on the average, is one."""
        lifted = self._lifted
        size = (frame.width, frame.height, kind)
        if lifted is None or (lifted.width, lifted.height, lifted.format.name) != size:
            lifted = self._lifted = self._av.VideoFrame(*size)
            self._planes = [_pixels(plane) for plane in lifted.planes]
        light, *colours = self._planes
        source, *rest = frame.planes
        pixels = _pixels(source)
        np.add(pixels, 1, out=light)
        np.maximum(light, pixels, out=light)  # 255 stays, and does not begin again at 0
        for target, plane in zip(colours, rest, strict=True):
            np.copyto(target, _pixels(plane))
        return lifted


class _Pool:
    """Decoders that wait, the one that waited longest first. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Decoder] = []

    def take(self, key: tuple[object, ...], reader: int, start: int, turn: int) -> Decoder | None:
        """Give the best there is: one that can go on, one of this reader, one of nobody.

        One that another reader may go on with is taken only where no more may wait.
        """
        with self._lock:
            full = len(self._idle) >= IDLE

            def worth(decoder: Decoder) -> tuple[int, bool, bool, bool]:
                own = decoder.reader == reader
                goes_on = own and start <= decoder.turn <= turn + 1
                return decoder.turn + 1 if goes_on else 0, own, decoder.reader < 0, full

            fitting = [decoder for decoder in self._idle if decoder.key == key]
            best = max(fitting, key=worth, default=None)
            if best is None or not any(worth(best)):
                return None
            self._idle.remove(best)
            return best

    def put(self, decoder: Decoder) -> None:
        """Have a decoder wait; beyond the bound the oldest goes."""
        gone = None
        with self._lock:
            self._idle.append(decoder)
            if len(self._idle) > IDLE:
                gone = self._idle.pop(0)
        del gone  # outside of the lock: closing one takes a while

    def clear(self) -> None:
        """Close all that wait."""
        with self._lock:
            gone, self._idle = self._idle, []
        gone.clear()


_pool = _Pool()
_left_behind: list[_Pool] = []


def borrow(header: Header, reader: int, start: int, turn: int) -> Decoder:
    """Take a decoder that can go on to `turn`, or one that begins at `start`."""
    decoder = _pool.take(key_of(header), reader, start, turn)
    if decoder is None:
        decoder = Decoder(header)
    elif decoder.reader == reader and start <= decoder.turn <= turn + 1:
        return decoder
    decoder.restart(reader, start)
    return decoder


def give_back(decoder: Decoder) -> None:
    """Keep a decoder for whoever comes next."""
    _pool.put(decoder)


def clear() -> None:
    """Close the decoders that wait."""
    _pool.clear()


def key_of(header: Header) -> tuple[object, ...]:
    """Give what two videos have in common that one decoder can decode."""
    kind = (header["codec"], header["width"], header["height"], header.get("colorspace"))
    return *kind, header["extradata"]


def _assumed(width: int, height: int) -> str:
    return "bt709" if width >= HD_WIDTH or height >= HD_HEIGHT else "bt601"


def _pixels(plane: Any) -> Image:
    shape = (plane.height, plane.width)
    return np.ndarray(shape, np.uint8, plane, strides=(plane.line_size, 1))


def _after_fork() -> None:
    # A decoder may have been at work in a thread that is not here: they are left as they are,
    # neither used nor closed.
    global _pool  # noqa: PLW0603
    _left_behind.append(_pool)
    _pool = _Pool()


os.register_at_fork(after_in_child=_after_fork)
