"""The copy of one signal: rows through a writer of columns, packets of video as they are stored."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from relive.episodes.contents import Sums, meta_of, pieces_of, sums_of
from relive.episodes.layout import check_name, file_stem
from relive.episodes.read.simple_signal import SimpleSignal
from relive.episodes.read.video_signal import VideoSignal
from relive.episodes.stored_frames import Stretch, stretch_of, video_of
from relive.errors import CorruptError, InvalidError
from relive.model.clock import INT64_MIN, Times
from relive.model.signal import Signal
from relive.store.signal.meta import SignalMeta
from relive.store.signal.parquet_reader import ColumnsWriter
from relive.store.signal.tape import finish_video, part_path, write_empty_video
from relive.store.video import PROFILES, Encoder, Movie, Packet, VideoSpec

__all__ = ["copy_signal"]

_SECOND_NS: Final = 1_000_000_000


def copy_signal(folder: Path, name: str, signal: Signal[Any], spec: VideoSpec | None) -> int:
    """Write a signal into the folder of an episode, read it again, and count its records.

    Video is copied packet by packet, from the key frame on that its first frame is decoded
    from. Where that cannot be done it is encoded again, by `spec` or else as it was.
    """
    check_name(name)
    meta = meta_of(name, signal)
    times = signal.timestamps
    if not bool((times[1:] > times[:-1]).all()):
        row = int(np.argmax(times[1:] <= times[:-1])) + 1
        raise InvalidError(
            f"signal {name!r} has the time {times[row]} in record {row}, after {times[row - 1]}: "
            "an episode on disk holds records in the order of time"
        )
    stem = file_stem(name)
    if meta.kind != "image":
        columns = folder / f"{stem}.parquet"
        written = _copy_columns(columns, meta, signal)
        if sums_of(SimpleSignal(columns)) != written:
            raise _differs(columns)
        return len(signal)
    places = folder / f"{stem}.mp4", folder / f"{stem}.frames.parquet"
    stretch = stretch_of(signal)
    stamps = None if stretch is None else _frame_times(signal, stretch)
    if not len(signal):
        write_empty_video(meta, *places)
        return 0
    if stretch is None or stamps is None:
        _encode(places, meta, signal, spec or _same_spec(signal))
    else:
        _copy_packets(places, meta, signal, stretch, stamps)
    copied = VideoSignal(*places)
    for _ in Stretch(copied.frames.index, 0, len(copied.frames), 0).packets():
        pass  # each is compared with its checksum
    if sums_of(copied, frames=False) != sums_of(signal, frames=False):
        raise _differs(places[1])
    return len(signal)


def _copy_columns(path: Path, meta: SignalMeta, signal: Signal[Any]) -> Sums:
    sums = Sums()
    with ColumnsWriter(path, meta) as writer:
        for piece in pieces_of(signal):
            writer.write(piece.times, piece.values, piece.clocks)
            sums.add_times(piece.times, piece.clocks)
            sums.add_values(piece.values)
    return sums


def _copy_packets(
    places: tuple[Path, Path],
    meta: SignalMeta,
    signal: Signal[Any],
    stretch: Stretch,
    stamps: Times,
) -> None:
    index, lead = stretch.index, stretch.lead
    part = slice(stretch.start, stretch.stop)
    header = {key: value for key, value in index.header.items() if key != "lead"}
    if lead:
        header["lead"] = lead
    pts, keys = index.pts[part] - index.pts[part.start], index.keys[part]
    if not np.array_equal(stamps, index.timestamps[part]):
        pts = _ticks(stamps, header["time_base"])
    clocks = np.empty((len(stamps), len(meta.clocks)), np.int64)
    for column, name in enumerate(meta.clocks):
        clocks[lead:, column] = signal.clock(name)
        clocks[:lead, column] = clocks[lead, column]  # which nobody is shown
    spare = np.zeros(len(stamps), np.bool_)
    if index.disposables is not None:
        spare = index.disposables[part]
    with _movie(places[0], header) as movie:
        for row, data in enumerate(stretch.packets()):
            ts, tick, key = int(stamps[row]), int(pts[row]), bool(keys[row])
            movie.add(Packet(data, row, ts, tick, key, ts, tick, bool(spare[row])))
        finish_video(movie, meta, header, clocks, places)


def _encode(
    places: tuple[Path, Path], meta: SignalMeta, signal: Signal[Any], spec: VideoSpec
) -> None:
    clocks = [signal.clock(name) for name in meta.clocks]
    table = np.stack(clocks, 1) if clocks else np.empty((len(signal), 0), np.int64)
    encoder = Encoder(spec.encoding(), meta.shape)
    with _movie(places[0], encoder.header) as movie:
        for frame, ts in signal:
            for packet in encoder.encode(np.ascontiguousarray(frame), ts):
                movie.add(packet)
        for packet in encoder.finish():
            movie.add(packet)
        finish_video(movie, meta, encoder.header, table, places)


@contextlib.contextmanager
def _movie(path: Path, header: dict[str, Any]) -> Iterator[Movie]:
    """Give a movie that is finished when the block ends, or gone."""
    movie = Movie(part_path(path), header)
    try:
        yield movie
    except BaseException:
        movie.abort()
        raise


def _frame_times(signal: Signal[Any], stretch: Stretch) -> Times | None:
    """Give a time to each frame: to those before the first, as long before as they were.

    None where there is no such time.
    """
    recorded = stretch.index.timestamps[stretch.start : stretch.stop]
    times = signal.timestamps
    before = [
        int(times[0]) - int(recorded[stretch.lead]) + int(ts) for ts in recorded[: stretch.lead]
    ]
    if before and before[0] < INT64_MIN:
        return None
    return np.concatenate([np.array(before, np.int64), times])


def _ticks(stamps: Times, time_base: list[int]) -> Times:
    """Give when frames are shown, so that players play them in their time."""
    numerator, denominator = time_base
    ticks: list[int] = []
    for ts in stamps.tolist():
        tick = (ts - int(stamps[0])) * denominator // (numerator * _SECOND_NS)
        ticks.append(max(tick, ticks[-1] + 1) if ticks else tick)
    return np.array(ticks, np.int64)


def _same_spec(signal: Signal[Any]) -> VideoSpec:
    """Give the profile that a video was encoded by, where it is known."""
    video = video_of(signal)
    profile = None if video is None else video.frames.index.header.get("profile")
    return VideoSpec(profile=str(profile)) if profile in PROFILES else VideoSpec()


def _differs(path: Path) -> CorruptError:
    return CorruptError(f"`{path}` does not hold what was copied to it")
