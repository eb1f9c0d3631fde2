"""Encodes frames to packets with FFmpeg, one packet per frame.

The encoder gets frames at a steady rate, independent of their timestamps: gaps and bursts do not
affect its rate control, and no timestamp is out of its range. The times that players use are set on
the packets here.
"""

import contextlib
import io
import os
import threading
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from struct import Struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive._extras import require
from relive.errors import ClosedError, EncoderError, InvalidError, InvalidTypeError
from relive.store.video.access_points import access_point
from relive.store.video.profiles import Encoding
from relive.store.video.watched import EncoderStoppedError, WatchedContext, system_threads

Header = dict[str, Any]
"""How packets are decoded and stored in a movie; JSON values."""

# Fine enough to distinguish the frames of any camera. The range of 64-bit nanoseconds fits in
# 64 bits of ticks.
TICKS_PER_SECOND: Final = 1_000_000
TICK_NS: Final = 1_000_000_000 // TICKS_PER_SECOND
# Codes of ISO/IEC 23091-2, which FFmpeg uses too.
MATRICES: Final = {"rgb": 0, "bt709": 1, "bt601": 6}
BT709_PRIMARIES: Final = 1
SRGB_TRANSFER: Final = 13
LIMITED: Final = 1
FULL: Final = 2
SWS_MATRICES: Final = {"rgb": 5, "bt709": 1, "bt601": 5}  # the numbers of swscale
CHANNELS: Final = 3
ANY_PICTURE: Final = 0
KEY_PICTURE: Final = 1
# Encoders refuse smaller frames: libsvtav1 below 64, others below one block.
LEAST_SIZE: Final = 16
LEAST_AV1_SIZE: Final = 64
# B-frames refer to fewer frames back than this.
REACH: Final = 64
# MP4 stores the time from decoding to showing a frame in 32 bits: with B-frames, longer pauses
# between two frames are shortened to this for players.
LONGEST_PAUSE: Final = 1 << 24

# Encoders that may stop without an error, and how many new ones are tried at one frame.
MAY_STOP: Final = ("libsvtav1",)
MAX_STOPS: Final = 3

_HEAD: Final = Struct("<qqqqqB")
# Warnings of libavcodec about an invalid option inside another option.
_COMPLAINTS: Final = ("Error parsing option", "Unknown option", "Invalid value", "Unable to parse")
_LEVEL: Final = threading.Lock()


@dataclass(frozen=True, slots=True)
class Packet:
    """The encoded bytes of one frame, and when it is shown and decoded.

    `row` counts frames in the order in which they are shown. Without B-frames packets have that
    order, `dts` is `pts` and `decode_ns` is `ts_ns`. With B-frames both are taken from the frame
    that is shown at this position, so they increase from packet to packet.
    """

    data: bytes
    row: int
    ts_ns: int
    pts: int
    key: bool
    decode_ns: int
    dts: int
    disposable: bool = False
    """Whether no other frame is decoded from it."""

    def pack(self) -> bytes:
        """Return it as bytes, for the tape."""
        flags = self.key | self.disposable << 1
        head = (self.row, self.ts_ns, self.pts, self.decode_ns, self.dts, flags)
        return _HEAD.pack(*head) + self.data

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> "Packet":
        """Return the packet that `pack` converted."""
        row, ts_ns, pts, decode_ns, dts, flags = _HEAD.unpack_from(data)
        rest = bytes(data[_HEAD.size :])
        return cls(rest, row, ts_ns, pts, bool(flags & 1), decode_ns, dts, bool(flags & 2))


class Encoder:
    """Encodes frames of one shape (height, width, 3). Used by one thread at a time.

    If the encoder of FFmpeg stops without an error, a new one continues with a key frame.
    """

    def __init__(self, encoding: Encoding, shape: tuple[int, ...]) -> None:
        self._av = require("av", extra="video", to="encode video")
        self.encoding = encoding
        """The settings that it was opened with."""
        self._shape = tuple(shape)
        if len(shape) != CHANNELS or shape[2] != CHANNELS or min(shape) < 1:
            raise InvalidError(f"a video frame must have the shape (height, width, 3), got {shape}")
        least = LEAST_AV1_SIZE if "av1" in encoding.encoder else LEAST_SIZE
        self._height, self._width = (max(least, size + size % 2) for size in shape[:2])
        self._padded: npt.NDArray[np.uint8] | None = None
        if (self._height, self._width) != self._shape[:2]:
            self._padded = np.empty((self._height, self._width, CHANNELS), np.uint8)
        reformatter = require("av.video.reformatter", extra="video", to="encode video")
        self._convert = reformatter.VideoReformatter()
        self.restarts = 0
        """How often the encoder of FFmpeg stopped, and a new one continued."""
        self._watched: WatchedContext | None = None
        self._without_packet: dict[int, Any] = {}  # pictures by row, if the encoder is watched
        self._context, self.header = self._open()
        self._extradata = b64decode(self.header["extradata"])
        annexb = (self._context.extradata or b"\1")[0] == 0
        self._has_start_codes = self.header["codec"] in ("h264", "hevc") and annexb
        self._times: list[tuple[int, int]] = []  # ts_ns and pts of the latest frames
        self._forgotten = 0  # the number of frames before those
        self._shown = 0
        self._decoded = 0
        self._first_row = 0  # of the current encoder of FFmpeg
        self._rows_before = 0  # the frames of another encoder, which this one continues
        self._first_ns: int | None = None
        self._last_pts = -1
        self._left_out = 0  # ticks by which pauses were shortened
        self._reorders = self._context.has_b_frames or self._context.max_b_frames > 0
        self._closed = False

    def resume(self, rows: int, first_ns: int, last_ns: int, last_pts: int) -> None:
        """Continue a video of `rows` frames, before the first frame is encoded.

        `first_ns` and `last_ns` are the timestamps of its first and last frame; `last_pts` is
        when the last one is shown.
        """
        self._rows_before = rows
        self._first_ns = first_ns
        self._last_pts = last_pts
        self._left_out = max(0, (last_ns - first_ns) // TICK_NS - last_pts)

    def encode(self, frame: npt.NDArray[np.uint8], ts_ns: int) -> list[Packet]:
        """Encode the next frame, and return the finished packets: its own, without B-frames."""
        if self._closed:
            raise ClosedError("the encoder is closed")
        if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8:
            kind = frame.dtype if isinstance(frame, np.ndarray) else type(frame).__name__
            raise InvalidTypeError(f"a video frame must be an array of uint8, got {kind}")
        if frame.shape != self._shape:
            raise InvalidError(f"a frame has the shape {frame.shape}, expected {self._shape}")
        return self._encode(self._picture(frame), ts_ns)

    def encode_decoded(self, picture: Any, ts_ns: int) -> list[Packet]:
        """Encode a frame of PyAV, which must have the pixel format and size of the encoder."""
        if self._closed:
            raise ClosedError("the encoder is closed")
        picture.pict_type = ANY_PICTURE
        return self._encode(picture, ts_ns)

    def finish(self) -> list[Packet]:
        """Return the packets that the encoder holds back, and close it."""
        if self._closed:
            raise ClosedError("the encoder is closed")
        try:
            packets = self._run(None)
        finally:
            self._closed = True
            self.close()
        if self._decoded < self._shown:
            raise self._dropped(self._decoded)
        return packets

    def close(self) -> None:
        """Close the encoder and drop the packets that it holds back. May be called again."""
        if not self._closed:
            self._closed = True
            expected = self._av.error.FFmpegError, ValueError, RuntimeError, EncoderStoppedError
            with contextlib.suppress(*expected):
                self._ffmpeg.encode(None)  # else libsvtav1 prints an error
        self._context = None
        self._without_packet.clear()
        if self._watched is not None:
            self._watched.close()

    def _encode(self, picture: Any, ts_ns: int) -> list[Packet]:
        row = self._shown
        picture.pts = row
        picture.time_base = self._context.time_base
        if self.encoding.gop > 1 and (row - self._first_row) % self.encoding.gop == 0:
            picture.pict_type = KEY_PICTURE
        if self._watched is not None:
            self._without_packet[row] = picture
        self._times.append((ts_ns, self._pts(ts_ns)))
        self._shown += 1
        return self._run(picture)

    def _pts(self, ts_ns: int) -> int:
        if self._first_ns is None:
            self._first_ns = ts_ns
        pts = (ts_ns - self._first_ns) // TICK_NS - self._left_out
        if self._reorders and self._last_pts >= 0:
            pause = pts - self._last_pts - LONGEST_PAUSE
            self._left_out += max(0, pause)
            pts -= max(0, pause)
        self._last_pts = max(pts, self._last_pts + 1)
        return self._last_pts

    def _picture(self, frame: npt.NDArray[np.uint8]) -> Any:
        encoding = self.encoding
        if self._padded is not None:
            height, width = frame.shape[:2]
            self._padded[:height, :width] = frame
            self._padded[:height, width:] = frame[:, -1:]
            self._padded[height:] = self._padded[height - 1]
            frame = self._padded
        elif frame.strides[1:] != (CHANNELS, 1) or frame.strides[0] < 0:
            frame = np.ascontiguousarray(frame)
        if encoding.pix_fmt == "rgb24":  # copied, because the encoder may keep it
            return self._av.VideoFrame.from_ndarray(frame)
        return self._convert.reformat(
            self._av.VideoFrame.from_numpy_buffer(frame),
            format=encoding.pix_fmt,
            src_color_range=FULL,
            dst_color_range=FULL if encoding.full_range else LIMITED,
            dst_colorspace=SWS_MATRICES[encoding.matrix],
            threads=1,
        )

    def _run(self, picture: Any) -> list[Packet]:
        try:
            try:
                return self._send(picture)
            except EncoderStoppedError:
                return self._start_again(is_end=picture is None)
        except EncoderError:
            raise
        except (self._av.error.FFmpegError, ValueError, RuntimeError) as error:
            row = self._rows_before + self._shown - 1
            raise EncoderError(
                f"the encoder `{self.encoding.encoder}` failed at frame {row}: {error}"
            ) from error

    @property
    def _ffmpeg(self) -> Any:
        """The encoder of FFmpeg, watched if it may stop."""
        return self._context if self._watched is None else self._watched

    def _send(self, picture: Any) -> list[Packet]:
        return [self._packet(packet) for packet in self._ffmpeg.encode(picture)]

    def _start_again(self, *, is_end: bool) -> list[Packet]:
        """Encode the pictures without packets with a new encoder, after the current one stopped."""
        packets: list[Packet] = []
        for _ in range(MAX_STOPS):
            rows = range(self._decoded, self._shown)
            if not rows:  # it stopped when it had nothing to return
                return packets
            if list(self._without_packet) != list(rows):
                break  # a packet that the encoder returned needs one that is missing
            context, header = self._open()
            if header != self.header:
                break
            self._context, self._first_row = context, rows.start
            self.restarts += 1
            try:
                for row in rows:
                    picture = self._without_packet[row]
                    is_key = (row - rows.start) % self.encoding.gop == 0
                    picture.pict_type = KEY_PICTURE if is_key else ANY_PICTURE
                    packets += self._send(picture)
                if is_end:
                    packets += self._send(None)
            except EncoderStoppedError:
                continue
            return packets
        raise EncoderError(
            f"the encoder `{self.encoding.encoder}` stopped at frame "
            f"{self._rows_before + self._decoded}, and a new one could not continue",
            hint="use another profile or codec",
        )

    def _packet(self, packet: Any) -> Packet:
        row, turn = packet.pts, self._decoded
        if row != turn and not self._reorders:
            raise self._dropped(turn)
        ts_ns, pts = self._times[row - self._forgotten]
        decode_ns, dts = self._times[turn - self._forgotten]
        self._without_packet.pop(row, None)
        self._decoded += 1
        if turn - self._forgotten >= 2 * REACH:
            del self._times[:REACH]
            self._forgotten += REACH
        disposable = packet.is_disposable
        data = self._stored(bytes(packet))
        # Encoders also mark frames from which the picture is refreshed step by step.
        key = packet.is_keyframe and (
            not turn or access_point(self.header["codec"], self._extradata, data) is not None
        )
        row += self._rows_before
        return Packet(data, row, ts_ns, pts, key, decode_ns, dts, disposable)

    def _dropped(self, frame: int) -> EncoderError:
        return EncoderError(
            f"the encoder `{self.encoding.encoder}` returned no packet for frame {frame}",
            hint="check `options`: a recording needs every frame",
        )

    def _stored(self, data: bytes) -> bytes:
        if self._has_start_codes:
            return _with_lengths(data)
        if self.header["codec"] == "av1" and data[:2] == b"\x12\x00":
            return data[2:]  # a temporal delimiter, which MP4 does not store
        return data

    def _open(self) -> tuple[Any, Header]:
        encoding = self.encoding
        if "svtav1" in encoding.encoder:
            os.environ.setdefault("SVT_LOG", "1")  # else it prints its settings
        buffer = io.BytesIO()
        options = {"movflags": "empty_moov+default_base_moof"}
        movie = self._av.open(buffer, "w", format="mp4", options=options)
        try:
            if self._av.Codec(encoding.encoder, "w").type != "video":
                raise EncoderError(f"`{encoding.encoder}` is not a video encoder")
            stream = movie.add_stream(encoding.encoder, rate=encoding.fps)
        except (self._av.error.FFmpegError, ValueError) as error:
            raise EncoderError(
                f"this build of PyAV has no encoder `{encoding.encoder}` for MP4",
                hint="omit `codec`, or use one of av.codecs_available",
            ) from error
        stream.time_base = Fraction(1, TICKS_PER_SECOND)
        context = stream.codec_context
        self._set_up(context)
        try:
            movie.start_encoding()
            init = buffer.getvalue()
            movie.close()
            with self._av.open(io.BytesIO(init)) as again:
                extradata = again.streams.video[0].codec_context.extradata or b""
        except (self._av.error.FFmpegError, ValueError) as error:
            raise EncoderError(
                f"an MP4 file cannot contain frames of {self._width} x {self._height} pixels from "
                f"the encoder `{encoding.encoder}`: {_reason(error)}",
                hint="check the size of frames and the encoder options, or use another codec",
            ) from error
        return context, {
            "codec": context.codec.canonical_name,
            "encoder": encoding.encoder,
            "extradata": b64encode(extradata).decode(),
            "init": b64encode(init).decode(),
            "width": self._width,
            "height": self._height,
            "pix_fmt": encoding.pix_fmt,
            "time_base": [1, TICKS_PER_SECOND],
            "colorspace": encoding.matrix,
            "color_range": "full" if encoding.full_range else "limited",
            "profile": encoding.profile,
            "gop": encoding.gop,
            "fps": [encoding.fps.numerator, encoding.fps.denominator],
            "threads": encoding.threads,
            "options": dict(encoding.options),
        }

    def _set_up(self, context: Any) -> None:
        encoding = self.encoding
        context.width, context.height = self._width, self._height
        context.time_base = 1 / encoding.fps
        context.gop_size = encoding.gop
        context.thread_count = encoding.threads
        context.colorspace = MATRICES[encoding.matrix]
        context.color_range = FULL if encoding.full_range else LIMITED
        context.color_primaries = BT709_PRIMARIES
        context.color_trc = SRGB_TRANSFER
        try:
            context.pix_fmt = encoding.pix_fmt
        except ValueError as error:
            raise EncoderError(f"FFmpeg has no pixel format {encoding.pix_fmt!r}") from error
        context.options = dict(encoding.options)
        wrong = self._open_context(context)
        wrong += [f"it has no option `{key}`" for key in context.options]
        if wrong:
            raise EncoderError(
                f"invalid options for the encoder `{encoding.encoder}`: {'; '.join(wrong)}"
            )

    def _open_context(self, context: Any) -> list[str]:
        logging = self._av.logging
        with _LEVEL:
            before = logging.get_level()
            logging.set_level(logging.WARNING)  # else invalid options are not reported
            try:
                with logging.Capture() as logged, _same_scheduling() as threads:
                    context.open()
            except (self._av.error.FFmpegError, ValueError) as error:
                text = " ".join(part for _, _, part in logged) or _reason(error)
                raise EncoderError(
                    f"cannot open the encoder `{self.encoding.encoder}` for frames of "
                    f"{self._width} x {self._height} pixels: {' '.join(text.split())}",
                    hint="check the size of frames, the encoder options and the driver, or use "
                    "another codec",
                ) from error
            finally:
                logging.set_level(before)
        if self.encoding.encoder in MAY_STOP:
            self._watched = WatchedContext(context, threads)
        return [text.strip() for _, _, text in logged if text.startswith(_COMPLAINTS)]


@contextlib.contextmanager
def _same_scheduling() -> Iterator[set[int]]:
    """Restore how this thread is scheduled, and schedule threads started meanwhile the same way.

    When root opens libsvtav1, it makes its threads and the calling thread real-time (`SCHED_FIFO`,
    priority 99). They would take the cores from all other programs, such as a robot's control
    loop, and so would every thread and process that the calling thread starts. The threads that
    the library starts are added to the set that is returned.
    """
    can_schedule = hasattr(os, "sched_setscheduler")
    before = _scheduling(0) if can_schedule else None
    known = system_threads()
    started: set[int] = set()
    try:
        yield started
    finally:
        started |= system_threads() - known
        if before is not None and (changed := _scheduling(0)) != before:
            for thread in [0, *started]:
                with contextlib.suppress(ProcessLookupError):  # it has ended
                    if _scheduling(thread) == changed:
                        os.sched_setscheduler(thread, before[0], os.sched_param(before[1]))
        started -= {thread.native_id for thread in threading.enumerate()}


def _scheduling(thread: int) -> tuple[int, int]:
    """Return the policy and the priority of a thread; 0 is the calling one."""
    return os.sched_getscheduler(thread), os.sched_getparam(thread).sched_priority


def _with_lengths(data: bytes) -> bytes:
    """Replace the start code before each unit by its length, as MP4 stores it."""
    starts = []
    at = data.find(b"\0\0\1")
    while at >= 0:
        starts.append(at + 3)
        at = data.find(b"\0\0\1", at + 3)
    parts = []
    for start, following in pairwise([*starts, len(data) + 3]):
        unit = data[start : following - 3].rstrip(b"\0")
        parts.append(len(unit).to_bytes(4, "big"))
        parts.append(unit)
    return b"".join(parts)


def _reason(error: Exception) -> str:
    """Return what FFmpeg said, without the call that failed and its options."""
    return str(getattr(error, "strerror", None) or error)
