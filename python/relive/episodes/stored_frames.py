"""Frames as they are stored: which packets of which video a signal is made of."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from relive._native import crc32c
from relive.episodes.read.video_signal import VideoSignal
from relive.episodes.transforms.wrapped import NamedSignal, ShiftedSignal
from relive.errors import CorruptError, ReliveError
from relive.model.signal import Signal, SignalView
from relive.store.atomic import storage_error
from relive.store.video import FrameIndex

__all__ = ["Stretch", "stretch_of", "video_of"]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Frames of a video file that are decoded one after the other, the first by itself."""

    index: FrameIndex
    start: int
    """The first frame of the file, a key frame."""
    stop: int
    lead: int
    """How many of them come before those that are meant."""

    def packets(self) -> Iterator[bytes]:
        """Give the bytes of every frame; those that are not what was stored are an error."""
        index = self.index
        offsets, sizes, crcs = index.offsets, index.sizes, index.crcs
        try:
            with index.video_path.open("rb", buffering=0) as file:
                for row in range(self.start, self.stop):
                    size = int(sizes[row])
                    data = os.pread(file.fileno(), size, int(offsets[row]))
                    if len(data) < size:
                        raise CorruptError(f"`{index.video_path}` ends within frame {row}")
                    if crcs is not None and crc32c(data) != crcs[row]:
                        raise CorruptError(
                            f"`{index.video_path}`: the bytes of frame {row} are damaged"
                        )
                    yield data
        except OSError as error:
            if isinstance(error, ReliveError):
                raise
            raise storage_error(error, index.video_path, "read") from error


def stretch_of(signal: Signal[Any]) -> Stretch | None:
    """Give the frames whose copy is a copy of the signal; None where there are none such.

    There are, where the records of a signal are those of a video, without a gap, and the video
    has its frames in the order in which they are decoded.
    """
    found = _stored(signal)
    if found is None:
        return None
    video, rows = found
    index = video.frames.index
    if not rows:
        return None
    first, stop = rows.start + index.lead, rows.stop + index.lead
    start = int(np.flatnonzero(index.keys[: first + 1])[-1])
    places = index.offsets[start:stop]
    if not bool((places[1:] > places[:-1]).all()):
        return None
    return Stretch(index, start, stop, first - start)


def video_of(signal: Signal[Any]) -> VideoSignal | None:
    """Give the video whose frames, some of them, in any order, are the records of a signal."""
    while True:
        if isinstance(signal, VideoSignal):
            return signal
        if isinstance(signal, (NamedSignal, ShiftedSignal, SignalView)):
            signal = signal.base
        else:
            return None


def _stored(signal: Signal[Any]) -> tuple[VideoSignal, range] | None:
    """Give a video, and the run of its records that a signal has."""
    if isinstance(signal, VideoSignal):
        return signal, range(len(signal))
    if isinstance(signal, (NamedSignal, ShiftedSignal)):
        return _stored(signal.base)
    if not isinstance(signal, SignalView):
        return None
    found = _stored(signal.base)
    rows = signal._rows  # noqa: SLF001
    if found is None:
        return None
    if not len(rows):
        return found[0], range(0)
    run = range(int(rows[0]), int(rows[0]) + len(rows))
    same = rows == run if isinstance(rows, range) else bool((rows == np.asarray(run)).all())
    return (found[0], found[1][run.start : run.stop]) if same else None
