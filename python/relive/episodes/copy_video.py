"""Copies the video of a signal: packets as they are stored, frames encoded only where needed.

Consecutive frames of a video file are copied as they are stored, from the key frame before them
on. Frames at the beginning and at the end that are not records but needed for decoding are counted
in the index as `lead` and `trail`. Where a signal leaves frames out or changes their order, the
frames up to the next key frame are encoded again, with the settings of their video.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from relive.episodes.read.video_signal import VideoSignal
from relive.episodes.transforms.wrapped import NamedSignal, ShiftedSignal
from relive.model.clock import INT64_MAX, INT64_MIN, Times
from relive.model.signal import Signal, SignalView, WrappedSignal, taken_into
from relive.model.source import IndexArray
from relive.store.signal.meta import SignalMeta
from relive.store.signal.tape import finish_video, part_path
from relive.store.video import Encoder, FrameReader, Movie, Packet, VideoSpec
from relive.store.video.encode import LONGEST_PAUSE, REACH, Header
from relive.store.video.join import decoder_differences, restarts_decoder
from relive.store.video.settings import find_encoding, takes_decoded

_SECOND_NS: Final = 1_000_000_000

Open = Callable[[], Encoder]
"""Opens another encoder with the same settings."""


class Part(NamedTuple):
    """Consecutive frames of a copy, by their rows in the source."""

    rows: IndexArray
    encode: bool = False
    """Whether they are encoded again."""


@dataclass(frozen=True, slots=True)
class VideoPlan:
    """Which stored packets are copied, and which frames are encoded again."""

    reader: FrameReader
    parts: list[Part] = field(default_factory=list)
    lead: int = 0
    """The number of frames before the first record, which it is decoded from."""
    trail: int = 0
    """The number of frames after the last record, which it is decoded from."""

    @property
    def encoded(self) -> int:
        """The number of frames that are encoded again."""
        return sum(len(part.rows) for part in self.parts if part.encode)

    @property
    def rows(self) -> IndexArray:
        """The rows of all frames."""
        return np.concatenate([part.rows for part in self.parts])

    def record_packets(self) -> Iterator[bytes]:
        """Iterate over the stored packets of the records, in the order of decoding.

        Damaged bytes raise a `CorruptError`.
        """
        first = -self.lead
        stop = len(self.rows) - self.lead - self.trail
        for part in self.parts:
            for packet in self.reader.packets(part.rows):
                if 0 <= first + packet.row < stop:
                    yield packet.data
            first += len(part.rows)


def plan_copy(signal: Signal[Any]) -> VideoPlan | None:
    """Return how a signal with records is copied; None if they are not frames of a video file."""
    found = _stored_rows(signal)
    if found is None or not len(found[1]):
        return None
    reader, rows = found
    parts: list[Part] = []
    lead = trail = 0
    runs = _runs(rows)
    for number, run in enumerate(runs):
        first, stop = int(run[0]), int(run[-1]) + 1
        start = reader.copy_start(first) if number == 0 else _next_start(reader, first, stop)
        if number < len(runs) - 1:
            end = _self_contained_end(reader, start, stop)
            stored: IndexArray | None = np.arange(start, end)
        else:
            end = stop
            stored = reader.rows_to_store(start, stop) if start < stop else None
        if stored is None or end <= max(first, start):
            parts.append(Part(run, encode=True))
            continue
        if number:
            parts.append(Part(np.arange(first, start), encode=True))
        else:
            lead = first - start
        parts.append(Part(stored))
        trail = int((stored >= end).sum())
        parts.append(Part(np.arange(end, stop), encode=True))
    return VideoPlan(reader, [part for part in parts if len(part.rows)], lead, trail)


def write_video(
    files: tuple[Path, Path], meta: SignalMeta, signal: Signal[Any], spec: VideoSpec | None
) -> int:
    """Write the video and the index of a signal with records; return how many frames it encoded.

    Frames are encoded with `spec`, or else with the settings of the source. Copied and encoded
    frames are in one video only if one decoder reads both; otherwise all frames are encoded.
    """
    plan = plan_copy(signal)
    stamps = None if plan is None else _stamps(signal, plan)
    if plan is None or stamps is None:
        frames = signal.iterate(range(len(signal)))
        _write_encoded(files, meta, signal, _opener(signal, meta, spec)(), frames)
        return len(signal)
    if not plan.encoded:
        _write_parts(files, meta, signal, plan, stamps)
        return 0
    opener = _opener(signal, meta, spec)
    encoder = opener()
    if not decoder_differences(encoder.header, plan.reader.index.header):
        encoder.close()
        _write_parts(files, meta, signal, plan, stamps, opener=opener)
        return plan.encoded
    rows = plan.rows[plan.lead : len(stamps) - plan.trail]
    _write_encoded(files, meta, signal, encoder, _decoded(plan.reader, rows, encoder))
    return len(signal)


def _stored_rows(signal: Signal[Any]) -> tuple[FrameReader, IndexArray] | None:
    """Return a video file and the row of each record in it; None if they are not stored frames."""
    if isinstance(signal, VideoSignal):
        return signal.frames, np.asarray(signal.frames.index.records, np.int64)
    if isinstance(signal, (NamedSignal, ShiftedSignal)):
        return _stored_rows(signal.base)
    if not isinstance(signal, SignalView):
        return None
    found = _stored_rows(signal.base)
    return None if found is None else (found[0], taken_into(found[1], signal.rows))


def _runs(rows: IndexArray) -> list[IndexArray]:
    """Split rows into consecutive ones."""
    return np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)


def _next_start(reader: FrameReader, first: int, stop: int) -> int:
    """Return the first key frame of a range that can follow any other frame; `stop` if none."""
    header = reader.index.header
    for key in np.flatnonzero(reader.index.keys[first:stop]) + first:
        if restarts_decoder(header, next(reader.packets(range(key, key + 1))).data):
            return int(key)
    return stop


def _self_contained_end(reader: FrameReader, start: int, stop: int) -> int:
    """Return the end of the longest range from a key frame on that needs no later frames."""
    for end in range(stop, max(start, stop - REACH), -1):
        rows = reader.rows_to_store(start, end)
        if rows is not None and len(rows) == end - start:
            return end
    return start


def _stamps(signal: Signal[Any], plan: VideoPlan) -> Times | None:
    """Return the times of all frames; those that are not records keep their distance.

    None if such a time does not fit into 64 bits.
    """
    recorded, times = plan.reader.index.timestamps[plan.rows], signal.timestamps
    stop = len(recorded) - plan.trail
    shift = int(times[0]) - int(recorded[plan.lead])
    before = [shift + int(ts) for ts in recorded[: plan.lead]]
    shift = int(times[-1]) - int(recorded[stop - 1])
    after = [shift + int(ts) for ts in recorded[stop:]]
    if min([*before, 0]) < INT64_MIN or max([*after, 0]) > INT64_MAX:
        return None
    return np.concatenate([np.array(before, np.int64), times, np.array(after, np.int64)])


def _opener(signal: Signal[Any], meta: SignalMeta, spec: VideoSpec | None) -> Open:
    """Return how encoders are opened: with `spec`, or with the settings of the source."""
    if spec is None:
        source: Signal[Any] = signal
        while isinstance(source, WrappedSignal):
            source = source.base
        if isinstance(source, VideoSignal) and len(source):
            return partial(Encoder, find_encoding(source.frames, meta.shape), meta.shape)
    return partial(Encoder, (spec or VideoSpec()).encoding(), meta.shape)


def _decoded(reader: FrameReader, rows: IndexArray, encoder: Encoder) -> Iterator[Any]:
    """Iterate over frames: as they were decoded if the encoder takes them, otherwise as RGB."""
    first = int(rows[0])
    native = takes_decoded(encoder, next(reader.decoded(first, first + 1)))
    read = reader.decoded if native else reader.iterate
    for run in _runs(rows):
        yield from read(int(run[0]), int(run[-1]) + 1)


def _encoded(encoder: Encoder, frames: Iterable[Any], stamps: Times) -> Iterator[Packet]:
    try:
        for frame, ts in zip(frames, stamps.tolist(), strict=True):
            if isinstance(frame, np.ndarray):
                yield from encoder.encode(np.ascontiguousarray(frame), ts)
            else:
                yield from encoder.encode_decoded(frame, ts)
        yield from encoder.finish()
    finally:
        encoder.close()


def _write_encoded(
    files: tuple[Path, Path],
    meta: SignalMeta,
    signal: Signal[Any],
    encoder: Encoder,
    frames: Iterable[Any],
) -> None:
    with _movie(files[0], encoder.header) as movie:
        for packet in _encoded(encoder, frames, signal.timestamps):
            movie.add(packet)
        finish_video(movie, meta, encoder.header, _clocks(signal, 0, 0), files)


def _write_parts(
    files: tuple[Path, Path],
    meta: SignalMeta,
    signal: Signal[Any],
    plan: VideoPlan,
    stamps: Times,
    *,
    opener: Open | None = None,
) -> None:
    index = plan.reader.index
    header = {key: value for key, value in index.header.items() if key not in ("lead", "trail")}
    header |= {"lead": plan.lead} if plan.lead else {}
    header |= {"trail": plan.trail} if plan.trail else {}
    rows = plan.rows
    if len(plan.parts) == 1 and np.array_equal(stamps, index.timestamps[rows]):
        ticks = index.pts[rows] - index.pts[rows[0]]
    else:
        ticks = _ticks(stamps, header, reorders=bool((np.diff(index.offsets) < 0).any()))
    with _movie(files[0], header) as movie:
        for turn, packet in enumerate(_packets(plan, stamps, opener)):
            row = packet.row
            movie.add(
                replace(
                    packet,
                    ts_ns=int(stamps[row]),
                    pts=int(ticks[row]),
                    decode_ns=int(stamps[turn]),
                    dts=int(ticks[turn]),
                )
            )
        finish_video(movie, meta, header, _clocks(signal, plan.lead, plan.trail), files)


def _packets(plan: VideoPlan, stamps: Times, opener: Open | None) -> Iterator[Packet]:
    """Iterate over the packets of all parts, numbered throughout."""
    first = 0
    for part in plan.parts:
        stop = first + len(part.rows)
        packets = plan.reader.packets(part.rows)
        if part.encode and opener is not None:
            encoder = opener()
            frames = _decoded(plan.reader, part.rows, encoder)
            packets = _encoded(encoder, frames, stamps[first:stop])
        for packet in packets:
            yield replace(packet, row=first + packet.row)
        first = stop


def _clocks(signal: Signal[Any], lead: int, trail: int) -> IndexArray:
    """Return a column for each additional clock; frames that are not records repeat the nearest."""
    columns = [np.pad(signal.clock(name), (lead, trail), "edge") for name in signal.clocks]
    count = len(signal) + lead + trail
    return np.stack(columns, 1) if columns else np.empty((count, 0), np.int64)


def _ticks(stamps: Times, header: Header, *, reorders: bool) -> Times:
    """Return the times at which players show the frames, in units of the video's time base."""
    numerator, denominator = header["time_base"]
    ticks = [0]
    left_out = 0  # by which pauses are shortened; see LONGEST_PAUSE
    for ts in stamps[1:].tolist():
        tick = (ts - int(stamps[0])) * denominator // (numerator * _SECOND_NS) - left_out
        pause = tick - ticks[-1] - LONGEST_PAUSE if reorders else 0
        left_out += max(0, pause)
        ticks.append(max(tick - max(0, pause), ticks[-1] + 1))
    return np.array(ticks, np.int64)


@contextlib.contextmanager
def _movie(path: Path, header: Header) -> Iterator[Movie]:
    """Open a video file for writing; an error removes it."""
    movie = Movie(part_path(path), header)
    try:
        yield movie
    except BaseException:
        movie.abort()
        raise
