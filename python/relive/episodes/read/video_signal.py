"""A signal of camera frames in a video file."""

import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive.episodes.layout import signal_name
from relive.errors import CorruptError
from relive.model.clock import Times
from relive.model.schema import DType
from relive.model.signal import Axis, Signal, copied
from relive.model.source import Rows
from relive.store.paths import absolute_path
from relive.store.video import FrameIndex, FrameReader

Image = npt.NDArray[np.uint8]

_UINT8: Final = np.dtype(np.uint8)
_CHUNK_BYTES: Final = 32 << 20
_CHUNK_FRAMES: Final = 64


class VideoSignal(Signal[Image]):
    """Frames from a video file, with their times from an index file.

    Nothing is read until it is used. The number of frames and their times need only the index; a
    frame is decoded when it is used, from the last key frame on. Frames are read-only uint8
    arrays of height × width × 3. Memory does not grow with the length of the video. Thread-safe,
    works in forked processes, and pickles as its paths.

    Args:
        video: The video file.
        index: The index file; by default that of `cam.mp4` is `cam.frames.parquet`.
        name: The name of the signal; by default the one in the index, or else the file's name.
        footer_sha256: The SHA-256 of the footer of the index, if it is known; an index with
            another footer raises a `CorruptError` when it is read.

    Example:
        >>> import numpy as np
        >>> import relive
        >>> with relive.episodes.VideoSignalWriter("cam.mp4") as writer:
        ...     for number in range(3):
        ...         writer.append(np.full((32, 48, 3), 50 * number, np.uint8), ts_ns=number)
        >>> camera = relive.episodes.VideoSignal("cam.mp4")
        >>> frame, ts_ns = camera[2]
        >>> frame.shape, ts_ns
        ((32, 48, 3), 2)
    """

    def __init__(
        self,
        video: str | os.PathLike[str],
        index: str | os.PathLike[str] | None = None,
        *,
        name: str | None = None,
        footer_sha256: str | None = None,
    ) -> None:
        self._video_path = absolute_path(video, "a video")
        usual = Path(self._video_path).with_suffix(".frames.parquet")
        self._index_path = absolute_path(usual if index is None else index, "the index of a video")
        self._given_name = name
        self._footer_sha256 = footer_sha256
        self._reader: FrameReader | None = None
        self._stamps: Times | None = None
        self._axis: Axis | None = None

    @property
    def path(self) -> Path:
        """The video file."""
        return Path(self._video_path)

    @property
    def index_path(self) -> Path:
        """The index file of the video."""
        return Path(self._index_path)

    @property
    def name(self) -> str:
        """The name that was passed, else the one in the index, else that of the index file."""
        if self._given_name is not None:
            return self._given_name
        stored = self._index.meta.get("name")
        return str(stored or signal_name(self.index_path.name.removesuffix(".frames.parquet")))

    @property
    def kind(self) -> str:
        """The kind of values: `image`."""
        return "image"

    @property
    def dtype(self) -> DType:
        """The dtype of a frame: uint8."""
        return _UINT8

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a frame: height, width, 3; zeros if none was ever recorded."""
        index = self._index
        if len(index):
            return index.shape
        match index.meta.get("shape"):
            case [int(height), int(width), 3]:
                return height, width, 3
        return 0, 0, 3

    @property
    def attrs(self) -> Mapping[str, Any]:
        """The attributes that the writer stored, such as the unit of values."""
        return MappingProxyType(dict(copied(self._index.meta.get("attrs") or {})))

    @property
    def clocks(self) -> tuple[str, ...]:
        """The names of further clocks."""
        return self._index.clocks

    def clock(self, name: str) -> Times:
        """Return the times of all frames on a further clock, as a read-only array."""
        if name not in self.clocks:
            raise self._unknown_clock(name)
        return self._index.clock(name)[self._records.start : self._records.stop]

    @property
    def frames(self) -> FrameReader:
        """Reads and decodes the frames of the file, including those that are not records."""
        reader = self._reader
        if reader is None:
            index = FrameIndex(self._index_path, self._video_path, self._footer_sha256)
            reader = self._reader = FrameReader(self._video_path, index)
        return reader

    def __len__(self) -> int:
        """Return the number of frames."""
        return len(self._records)

    @property
    def start_ts(self) -> int:
        """The time of the first frame; raises a `ValueError` if there are no frames."""
        if not len(self):
            raise self._empty()
        first = None if self._records.start else self._index.first_ts
        return int(self.timestamps[0]) if first is None else first

    @property
    def last_ts(self) -> int:
        """The time of the last frame; raises a `ValueError` if there are no frames."""
        if not len(self):
            raise self._empty()
        last = self._index.last_ts if self._records.stop == len(self._index) else None
        return int(self.timestamps[-1]) if last is None else last

    @property
    def timestamps(self) -> Times:
        """The time of every frame, as a read-only array."""
        stamps = self._stamps
        if stamps is None:
            stamps = np.ascontiguousarray(self._index.timestamps)
            if not bool((stamps[1:] > stamps[:-1]).all()):
                row = int(np.argmax(stamps[1:] <= stamps[:-1])) + 1
                raise CorruptError(
                    f"`{self._index_path}` has the timestamp {stamps[row]} in row {row}, "
                    f"which is not after {stamps[row - 1]}"
                )
            stamps = self._stamps = stamps[self._records.start : self._records.stop]
        return stamps

    def time_axis(self) -> Axis:
        """Return the times, which increase."""
        axis = self._axis
        if axis is None:
            stamps = self.timestamps
            axis = self._axis = stamps, 0, len(stamps), None
        return axis

    def value_at(self, row: int) -> Image:
        """Decode one frame."""
        return _read_only(self.frames.frame(row + self._records.start))

    def values_at(self, rows: Rows, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Decode frames directly into `out`; frames after one key frame are decoded once."""
        if out is None:
            out = np.empty((len(rows), *self.shape), np.uint8)
        if len(rows):
            self.frames.read(np.asarray(rows, dtype=np.int64) + self._records.start, out)
        return out

    def iterate(self, rows: Rows) -> Iterator[Image]:
        """Decode frames one after the other; in the order of the video, each is decoded once."""
        if isinstance(rows, range) and rows.step == 1:
            lead = self._records.start
            return map(_read_only, self.frames.iterate(rows.start + lead, rows.stop + lead))
        return super().iterate(rows)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the paths, the name and the digest."""
        make = partial(VideoSignal, name=self._given_name, footer_sha256=self._footer_sha256)
        return make, (self._video_path, self._index_path)

    @property
    def _index(self) -> FrameIndex:
        return self.frames.index

    @property
    def _records(self) -> range:
        """The rows of the records in the index.

        A copy of a time window of a video begins at the key frame before the window, and with
        B-frames it may end with frames after the window that the last ones are decoded from.
        """
        return self._index.records

    def _batch_rows(self) -> int:
        # Long enough for all frames between two key frames.
        size = self.shape[0] * self.shape[1] * self.shape[2]
        return max(1, min(_CHUNK_FRAMES, _CHUNK_BYTES // max(1, size)))


def _read_only(frame: Image) -> Image:
    frame.flags.writeable = False
    return frame
