"""Encoders that stop without an error: another one continues."""

import gc
import hashlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive.episodes import VideoSignal, VideoSignalWriter
from relive.errors import EncoderError
from relive.store.video import Encoder, VideoSpec, encode, watched
from tests.store.video.clips import STEP_NS, all_of, encoded, number_of, numbered, written

CLIP = numbered(24)
COMPACT = VideoSpec("compact")
LOOK_EVERY_S = 0.05


class Stops:
    """Lets encoders stop at calls with these numbers, counted over all encoders."""

    def __init__(self) -> None:
        self.at: set[int] = set()
        self.calls = 0
        self.gate = threading.Event()

    def before_call(self) -> None:
        self.calls += 1
        if self.calls - 1 in self.at:
            self.gate.wait()


class StoppingContext:
    """An encoder of FFmpeg, a call of which may never return."""

    def __init__(self, context: Any, stops: Stops) -> None:
        self._context = context
        self._stops = stops

    def encode(self, picture: Any) -> Any:
        self._stops.before_call()
        return self._context.encode(picture)


@pytest.fixture
def stops(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stops]:
    stops = Stops()
    real = watched.WatchedContext

    def make(context: Any, threads: set[int]) -> watched.WatchedContext:
        assert threads or not Path("/proc/self/task").is_dir()
        return real(StoppingContext(context, stops), threads)

    monkeypatch.setattr(encode, "WatchedContext", make)
    monkeypatch.setattr(watched, "_LOOK_EVERY_S", LOOK_EVERY_S)
    monkeypatch.setattr(watched, "_LIMIT_S", 4 * LOOK_EVERY_S)
    yield stops
    stops.gate.set()


@pytest.mark.parametrize("stop", [{0}, {1}, {7}, {10}, {23}, {5, 6}, {5, 7}])
def test_new_encoder_continues_after_a_stop(stops: Stops, stop: set[int], tmp_path: Path) -> None:
    stops.at = stop
    reader = written(tmp_path / "clip.mp4", CLIP, COMPACT)
    assert stops.calls == len(CLIP) + 1 + len(stop)
    assert [number_of(frame) for frame in all_of(reader)] == list(range(len(CLIP)))
    one = np.empty((1, *CLIP.shape[1:]), np.uint8)
    for number in reversed(range(len(CLIP))):
        reader.read([number], one)
        assert number_of(one[0]) == number


def test_encoder_that_stops_after_its_last_packet_is_left_behind(
    stops: Stops, tmp_path: Path
) -> None:
    stops.at = {len(CLIP)}
    reader = written(tmp_path / "clip.mp4", CLIP, COMPACT)
    assert stops.calls == len(CLIP) + 1
    assert [number_of(frame) for frame in all_of(reader)] == list(range(len(CLIP)))


def test_packets_keep_their_order_and_times_after_a_stop(stops: Stops) -> None:
    stops.at = {5, 7}
    _, packets = encoded(CLIP, COMPACT)
    times = [number * STEP_NS for number in range(len(CLIP))]
    assert [(packet.row, packet.ts_ns) for packet in packets] == list(enumerate(times))
    assert [packet.pts for packet in packets] == [ts // 1000 for ts in times]


def test_key_frames_follow_the_gop_after_a_stop(stops: Stops) -> None:
    stops.at = {13}
    _, packets = encoded(CLIP, COMPACT)
    assert [packet.row for packet in packets if packet.key] == [0, 10, 13, 23]


def test_encoder_that_always_stops_is_an_error(stops: Stops) -> None:
    stops.at = set(range(7, 100))
    encoder = Encoder(COMPACT.encoding(), CLIP.shape[1:])
    for number in range(7):
        encoder.encode(CLIP[number], number)
    with pytest.raises(EncoderError, match=r"^the encoder `libsvtav1` stopped at") as caught:
        encoder.encode(CLIP[7], 7)
    assert caught.value.hint == "use another profile or codec"
    encoder.close()


def test_slow_encoder_has_not_stopped(stops: Stops, monkeypatch: pytest.MonkeyPatch) -> None:
    def compute() -> None:
        stops.calls += 1
        if stops.calls in (2, 25):
            # Releases the GIL and runs for many times as long as two looks.
            hashlib.pbkdf2_hmac("sha256", b"", b"", 1_500_000)

    monkeypatch.setattr(stops, "before_call", compute)
    monkeypatch.setattr(watched, "_LIMIT_S", 60.0)
    encoder = Encoder(COMPACT.encoding(), CLIP.shape[1:])
    for number, frame in enumerate(CLIP):
        encoder.encode(frame, number)
    encoder.finish()
    assert encoder.restarts == 0
    assert stops.calls == len(CLIP) + 1


def test_system_that_tells_nothing_about_threads(
    stops: Stops, monkeypatch: pytest.MonkeyPatch
) -> None:
    def runs(threads: set[int]) -> int:
        raise KeyError("voluntary_ctxt_switches")

    monkeypatch.setattr(watched, "_runs", runs)
    stops.at = {3}
    _, packets = encoded(CLIP, COMPACT)
    assert [packet.row for packet in packets if packet.key] == [0, 3, 13, 23]


def test_thread_of_another_library_that_never_rests(
    stops: Stops, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched, "_runs", lambda threads: time.monotonic_ns())
    monkeypatch.setattr(watched, "_LONG_LIMIT_S", 4 * LOOK_EVERY_S)
    monkeypatch.setattr(watched, "_LIMIT_S", 3600.0)
    stops.at = {3}
    _, packets = encoded(CLIP, COMPACT)
    assert [packet.row for packet in packets if packet.key] == [0, 3, 13, 23]


def test_encoder_that_stops_while_it_is_closed_is_left_behind(stops: Stops) -> None:
    stops.at = {1}
    encoder = Encoder(COMPACT.encoding(), CLIP.shape[1:])
    encoder.encode(CLIP[0], 0)
    encoder.close()


def test_error_of_the_encoder_is_raised(stops: Stops, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ValueError("no memory")

    encoder = Encoder(COMPACT.encoding(), CLIP.shape[1:])
    monkeypatch.setattr(stops, "before_call", fail)
    with pytest.raises(EncoderError, match="`libsvtav1` failed at frame 0: no memory"):
        encoder.encode(CLIP[0], 0)


def test_recording_goes_on_after_a_stop(stops: Stops, tmp_path: Path) -> None:
    stops.at = {4, 12}
    with VideoSignalWriter(tmp_path / "cam.mp4", profile="compact", queue=4) as writer:
        for number, frame in enumerate(CLIP):
            writer.append(frame, number * STEP_NS)
        writer.flush()
        stats = writer.stats
    assert stats.encoder_restarts == 2
    assert "2 encoder restarts" in repr(stats)
    signal = VideoSignal(tmp_path / "cam.mp4")
    assert [number_of(frame) for frame in signal.values()] == list(range(len(CLIP)))


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads cannot be listed here")
def test_unclosed_encoder_ends_its_threads() -> None:
    before = watched.system_threads()
    encoder: Encoder | None = Encoder(COMPACT.encoding(), CLIP.shape[1:])
    assert encoder is not None
    encoder.encode(CLIP[0], 0)
    during = watched.system_threads() - before
    assert len(during) > 2
    encoder = None
    gc.collect()
    deadline = time.monotonic() + 30
    while left := watched.system_threads() & during:
        names = (Path(f"/proc/self/task/{thread}/comm").read_text() for thread in left)
        assert time.monotonic() < deadline, f"threads still run: {list(names)}"
        time.sleep(0.01)
