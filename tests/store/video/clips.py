"""Small videos whose frames contain their number, written as a recorder does."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from relive.store.video import (
    Encoder,
    FrameIndex,
    FrameReader,
    Movie,
    Packet,
    VideoSpec,
    write_index,
)

Clip = npt.NDArray[np.uint8]

BITS = 8
STEP_NS = 33_333_333


def numbered(count: int, height: int = 48, width: int = 64) -> Clip:
    """Return frames with a smooth moving texture and their number in black and white at the top."""
    rows, columns = np.mgrid[:height, :width]
    frames = np.empty((count, height, width, 3), np.uint8)
    for number in range(count):
        for channel in range(3):
            wave = np.sin((columns + 2 * number) / 7 + channel) + np.cos((rows - number) / 5)
            frames[number, :, :, channel] = 128 + 50 * wave
        for bit in range(BITS):
            left, right = bit * width // BITS, (bit + 1) * width // BITS
            frames[number, : height // 3, left:right] = 255 if number >> bit & 1 else 0
    return frames


def number_of(frame: Clip) -> int:
    """Return the number in a frame."""
    height, width = frame.shape[:2]
    middles = [(2 * bit + 1) * width // (2 * BITS) for bit in range(BITS)]
    return sum(1 << bit for bit, at in enumerate(middles) if frame[height // 6, at].mean() > 127)


def encoded(
    frames: Clip, spec: VideoSpec, times: Any = None
) -> tuple[dict[str, Any], list[Packet]]:
    """Return the header and the packets of frames, in the order of the encoder."""
    encoder = Encoder(spec.encoding(), frames.shape[1:])
    stamps = range(0, len(frames) * STEP_NS, STEP_NS) if times is None else times
    packets = [
        packet
        for frame, ts in zip(frames, stamps, strict=True)
        for packet in encoder.encode(frame, int(ts))
    ]
    packets += encoder.finish()
    return encoder.header, packets


def written(path: Path, frames: Clip, spec: VideoSpec, times: Any = None) -> FrameReader:
    """Write a video at `path` with its index next to it, and open it."""
    header, packets = encoded(frames, spec, times)
    movie = Movie(path, header)
    for packet in packets:
        movie.add(packet)
    movie.close()
    index = path.with_suffix(".frames.parquet")
    write_index(
        index,
        {"name": "cam", "kind": "image", "shape": list(frames.shape[1:]), "video": header},
        movie.frames,
    )
    return FrameReader(path, FrameIndex(index, path))


def all_of(reader: FrameReader) -> Clip:
    """Return all frames, read in one call."""
    out = np.empty((len(reader), *reader.index.shape), np.uint8)
    reader.read(np.arange(len(reader)), out)
    return out


def psnr(one: Clip, other: Clip) -> float:
    """Return the similarity of two clips in dB."""
    error = float(np.mean((one.astype(np.float64) - other) ** 2))
    return float("inf") if error == 0 else float(10 * np.log10(255**2 / error))
