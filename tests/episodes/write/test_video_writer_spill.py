"""Frames that wait for a slow encoder survive the end of the process, and are encoded in order."""

import re
import shutil
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from relive.episodes import (
    DiskEpisode,
    DiskEpisodeWriter,
    VideoSignal,
    VideoSignalWriter,
    VideoSpec,
    recover,
    validate,
)
from relive.errors import CorruptError, EncoderError, OverloadError, StorageError
from relive.store.video import Encoder, Movie
from relive.store.video import spill_thread as spilling
from relive.store.video.spill import SpillWriter

recovering = import_module("relive.episodes.recover")  # the function has the same name

Frame = npt.NDArray[np.uint8]
SPILL = ".cam.mp4.spill"
TAPE = ".cam.mp4.tape"
LOSSLESS = VideoSpec("lossless")
TIMEOUT_S = 60


def frame(number: int, height: int = 32, width: int = 48) -> Frame:
    """Return an image that contains its number."""
    picture = np.zeros((height, width, 3), np.uint8)
    picture[:, : width // 2] = number * 5 % 256
    picture[:, width // 2 :] = 255 - number * 5 % 256
    return picture


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class Bench:
    """Lets encoder threads encode a number of frames, and counts the frames that are spilled.

    Encoders of a recovery run without it. Frames are spilled as soon as they wait.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._changed = threading.Condition()
        self._allowed = self._begun = self._written = 0
        encode, write = Encoder.encode, SpillWriter.write

        def encode_when_allowed(encoder: Encoder, picture: Frame, ts_ns: int) -> Any:
            if threading.current_thread().name.startswith("relive-encode-"):
                with self._changed:
                    self._begun += 1
                    self._changed.notify_all()
                    number = self._begun
                    assert self._changed.wait_for(lambda: self._allowed >= number, TIMEOUT_S)
            return encode(encoder, picture, ts_ns)

        def counting(writer: SpillWriter, *arguments: Any) -> None:
            write(writer, *arguments)
            with self._changed:
                self._written += 1
                self._changed.notify_all()

        monkeypatch.setattr(Encoder, "encode", encode_when_allowed)
        monkeypatch.setattr(SpillWriter, "write", counting)
        monkeypatch.setattr(spilling, "_LONGEST_WAIT_S", 0.01)

    def encode(self, frames: int) -> None:
        """Let the encoder encode so many frames more, and wait until it waits for the next."""
        with self._changed:
            self._allowed += frames
            self._changed.notify_all()
            begun = self._allowed + 1
            assert self._changed.wait_for(lambda: self._begun >= begun, TIMEOUT_S)

    def go(self) -> None:
        """Let the encoder encode all frames."""
        with self._changed:
            self._allowed = 1 << 30
            self._changed.notify_all()

    def stop(self) -> None:
        """Let the encoder encode no more frames."""
        with self._changed:
            self._allowed = self._begun

    def wait_for_spilled(self, frames: int) -> None:
        """Wait until so many frames were written to spill files."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._written >= frames, TIMEOUT_S)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    bench = Bench(monkeypatch)
    yield bench
    bench.go()


def record(writer: Any, numbers: range, *, name: str | None = None) -> None:
    for number in numbers:
        clocks = {"sensor": -number}
        named = () if name is None else (name,)
        writer.append(*named, frame(number), number * 1_000_000, clocks=clocks)


def check(signal: Any, rows: int, *, exact: bool = True) -> None:
    """Check that a signal has exactly the first frames."""
    assert signal.timestamps.tolist() == [number * 1_000_000 for number in range(rows)]
    assert signal.clock("sensor").tolist() == [-number for number in range(rows)]
    found = [picture for picture, _ in signal]
    assert len(found) == rows
    for number, picture in enumerate(found):
        error = np.abs(picture.astype(int) - frame(number)).mean()
        assert error == 0 if exact else error < 6


def killed(writer: Any, target: Path) -> Path:
    """Return a copy of what a recording has on disk, as a kill leaves it."""
    source = writer.path if writer.path.is_dir() else writer.path.parent
    return Path(shutil.copytree(source, target))


def signal_in(folder: Path) -> VideoSignal:
    return VideoSignal(folder / "cam.mp4", folder / "cam.frames.parquet")


SPECS = {
    **{name: VideoSpec(name) for name in ("record", "compact", "fast", "lossless")},
    "B-frames": VideoSpec(bframes=3, options={"tune": "animation"}),
    "threads": VideoSpec(threads=2),
}


@pytest.mark.parametrize("encoded", [0, 1, 9, 14])
@pytest.mark.parametrize("spec", SPECS)
def test_spilled_frames_are_recovered(
    spec: str, encoded: int, tmp_path: Path, bench: Bench
) -> None:
    writer = DiskEpisodeWriter(tmp_path / "ep", video=SPECS[spec])
    record(writer, range(10), name="cam")
    bench.wait_for_spilled(10)
    record(writer, range(10, 16), name="cam")
    bench.wait_for_spilled(16)
    if encoded:
        bench.encode(encoded)
    copy = killed(writer, tmp_path / "copy")
    (found,) = recover(copy).episodes
    assert (found.signals, found.problems) == ({"cam": 16}, ())
    assert not [name for name in names_in(copy) if name.startswith(".")]
    check(DiskEpisode(copy)["cam"], 16, exact=spec == "lossless")
    assert not validate(copy, level="full").problems
    assert recover(copy).episodes == ()
    bench.go()
    writer.close()
    check(DiskEpisode(tmp_path / "ep")["cam"], 16, exact=spec == "lossless")
    assert not [name for name in names_in(tmp_path / "ep") if name.startswith(".")]


def test_frames_appended_before_a_kill_are_recovered_at_every_step(
    tmp_path: Path, bench: Bench
) -> None:
    (tmp_path / "rec").mkdir()
    writer = VideoSignalWriter(tmp_path / "rec" / "cam.mp4", spec=LOSSLESS, queue=3)
    record(writer, range(3))
    bench.wait_for_spilled(3)
    sizes = []
    for number in range(3, 20):
        bench.encode(1)
        record(writer, range(number, number + 1))
        bench.wait_for_spilled(number + 1)
        copy = killed(writer, tmp_path / str(number))
        sizes.append((copy / SPILL).stat().st_size)
        for _ in range(2):
            assert recover(copy / "cam.mp4").problems == ()
            assert names_in(copy) == ["cam.frames.parquet", "cam.mp4"]
            check(signal_in(copy), number + 1)
    # Slots are reused: one for each frame of the queue.
    assert max(sizes) <= 4096 + 3 * 8192
    bench.go()
    writer.close()
    check(signal_in(tmp_path / "rec"), 20)
    assert names_in(tmp_path / "rec") == ["cam.frames.parquet", "cam.mp4"]


def test_recovered_video_plays_in_real_time(tmp_path: Path, bench: Bench) -> None:
    (tmp_path / "rec").mkdir()
    writer = VideoSignalWriter(tmp_path / "rec" / "cam.mp4", spec=VideoSpec(bframes=2))
    times = [0, 40_000_000, 40_000_100, 90_000_000_000, 90_040_000_000, 90_080_000_000]
    for number, ts_ns in enumerate(times):
        writer.append(frame(number), ts_ns)
    bench.wait_for_spilled(6)
    copies = []
    for number in range(1, 6):
        bench.encode(1)
        copies.append(killed(writer, tmp_path / str(number)))
    bench.go()
    writer.close()
    whole = signal_in(tmp_path / "rec")
    for copy in copies:
        recover(copy / "cam.mp4")
        found = signal_in(copy)
        assert found.timestamps.tolist() == times
        np.testing.assert_allclose(found._index.pts, whole._index.pts, atol=2)


def test_frame_that_is_encoded_in_time_is_not_spilled(tmp_path: Path) -> None:
    with VideoSignalWriter(tmp_path / "cam.mp4") as writer:
        for number in range(50):
            writer.append(frame(number), number)
            writer.flush()
        assert SPILL not in names_in(tmp_path)


def test_spilled_frames_count_in_the_queue(tmp_path: Path, bench: Bench) -> None:
    for overload in ("drop", "raise"):
        folder = tmp_path / overload
        folder.mkdir()
        writer = VideoSignalWriter(folder / "cam.mp4", spec=LOSSLESS, overload=overload, queue=2)
        record(writer, range(2))
        bench.wait_for_spilled(2 if overload == "drop" else 4)
        if overload == "raise":
            with pytest.raises(OverloadError, match="the queue is full with 2 items"):
                record(writer, range(2, 3))
        else:
            record(writer, range(2, 3))
        assert (writer.stats.rows, writer.stats.queue_depth) == (2, 2)
        assert writer.stats.dropped == (overload == "drop")
        bench.go()
        writer.close()
        check(signal_in(folder), 2)
        bench.stop()


def test_full_queue_blocks(tmp_path: Path, bench: Bench) -> None:
    writer = VideoSignalWriter(tmp_path / "cam.mp4", spec=LOSSLESS, queue=1)
    record(writer, range(1))
    bench.wait_for_spilled(1)
    done = threading.Event()

    def go() -> None:
        record(writer, range(1, 2))
        done.set()

    thread = threading.Thread(target=go)
    thread.start()
    assert not done.wait(0.1)
    bench.encode(1)
    assert done.wait(TIMEOUT_S)
    thread.join()
    bench.go()
    writer.close()
    check(signal_in(tmp_path), 2)


@pytest.mark.parametrize("make", [DiskEpisodeWriter, VideoSignalWriter])
def test_abort_removes_spilled_frames(make: Any, tmp_path: Path, bench: Bench) -> None:
    target = tmp_path / "folder"
    target.mkdir()
    path = target / ("ep" if make is DiskEpisodeWriter else "cam.mp4")
    writer = make(path)
    record(writer, range(4), name="cam" if make is DiskEpisodeWriter else None)
    bench.wait_for_spilled(4)
    writer.abort()
    assert names_in(target) == []
    bench.go()
    for thread in threading.enumerate():
        if thread.name.startswith(("relive-encode-", "relive-spill-")):
            thread.join(TIMEOUT_S)
    assert names_in(target) == []


def test_left_recording_has_all_frames_on_its_tape(tmp_path: Path, bench: Bench) -> None:
    writer = VideoSignalWriter(tmp_path / "cam.mp4", spec=LOSSLESS)
    record(writer, range(4))
    bench.wait_for_spilled(4)
    assert SPILL in names_in(tmp_path)
    bench.go()
    writer.leave()
    assert SPILL not in names_in(tmp_path)
    assert recover(tmp_path / "cam.mp4").signals == {"cam": 4}
    check(signal_in(tmp_path), 4)


def test_failed_encoder_loses_no_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = Encoder.encode
    gate = threading.Event()

    def failing(self: Encoder, picture: Frame, ts_ns: int) -> Any:
        if ts_ns >= 3_000_000 and threading.current_thread().name.startswith("relive-encode-"):
            gate.wait(TIMEOUT_S)
            raise RuntimeError("no memory on the device")
        return encode(self, picture, ts_ns)

    monkeypatch.setattr(Encoder, "encode", failing)
    writer = DiskEpisodeWriter(tmp_path / "ep", video=LOSSLESS)
    record(writer, range(9), name="cam")
    gate.set()
    with pytest.raises(EncoderError, match=r"'cam'.*no memory on the device"):
        writer.close()
    assert SPILL in names_in(tmp_path / "ep")
    (found,) = recover(tmp_path / "ep").episodes
    assert (found.signals, found.problems) == ({"cam": 9}, ())
    check(DiskEpisode(tmp_path / "ep")["cam"], 9)


def test_frame_that_cannot_be_encoded_ends_the_recovered_video(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = Encoder.encode
    gate = threading.Event()

    def failing(self: Encoder, picture: Frame, ts_ns: int) -> Any:
        gate.wait(TIMEOUT_S)
        if ts_ns == 4_000_000:
            raise EncoderError("it broke")
        return encode(self, picture, ts_ns)

    monkeypatch.setattr(Encoder, "encode", failing)
    writer = DiskEpisodeWriter(tmp_path / "ep", video=LOSSLESS)
    record(writer, range(9), name="cam")
    gate.set()
    with pytest.raises(EncoderError, match="it broke"):
        writer.close()
    (found,) = recover(tmp_path / "ep").episodes
    assert found.signals == {"cam": 4}
    (problem,) = found.problems
    assert re.search(r"frame 4 of `.*spill` cannot be encoded: it broke; signal 'cam'", problem)
    assert {TAPE, SPILL} <= set(names_in(tmp_path / "ep"))
    check(DiskEpisode(tmp_path / "ep")["cam"], 4)


def test_movie_that_cannot_grow_loses_no_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Movie, packet: Any) -> None:
        raise StorageError("no space left on the device")

    monkeypatch.setattr(Movie, "add", full)
    writer = VideoSignalWriter(tmp_path / "cam.mp4", spec=LOSSLESS)
    record(writer, range(1))
    with pytest.raises(StorageError, match="no space"):
        writer.close()
    monkeypatch.undo()
    assert recover(tmp_path / "cam.mp4").signals == {"cam": 1}
    check(signal_in(tmp_path), 1)
    assert names_in(tmp_path) == ["cam.frames.parquet", "cam.mp4"]


def test_full_disk_spills_no_frames_after_lost_packets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()

    def full(self: Movie, packet: Any) -> None:
        gate.wait(TIMEOUT_S)
        raise StorageError("no space left on the device")

    monkeypatch.setattr(spilling, "_LONGEST_WAIT_S", TIMEOUT_S)  # no frame waits too long
    monkeypatch.setattr(Movie, "add", full)
    writer = VideoSignalWriter(tmp_path / "cam.mp4", spec=LOSSLESS)
    record(writer, range(4))
    gate.set()
    with pytest.raises(StorageError, match="no space"):
        writer.close()
    assert SPILL not in names_in(tmp_path)
    monkeypatch.undo()
    assert recover(tmp_path / "cam.mp4").signals == {"cam": 1}
    check(signal_in(tmp_path), 1)


def test_spill_file_that_cannot_grow_raises_and_loses_no_frame(
    tmp_path: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = SpillWriter.write
    failed = threading.Event()

    def full(self: SpillWriter, row: int, *rest: Any) -> None:
        if row == 2:
            failed.set()
            raise StorageError("no space left on the device")
        write(self, row, *rest)

    monkeypatch.setattr(SpillWriter, "write", full)
    writer = VideoSignalWriter(tmp_path / "cam.mp4", spec=LOSSLESS)
    record(writer, range(4))
    assert failed.wait(TIMEOUT_S)
    with pytest.raises(StorageError, match="no space"):
        writer.flush()
    with pytest.raises(StorageError, match="signal 'cam': no space"):
        record(writer, range(4, 5))
    bench.go()
    with pytest.raises(StorageError, match="no space"):
        writer.close()
    assert recover(tmp_path / "cam.mp4").signals == {"cam": 4}
    check(signal_in(tmp_path), 4)


class Stop(BaseException):
    """Stands for the kill of the process."""


def _stopping(call: Callable[..., Any], left: list[int]) -> Callable[..., Any]:
    def run(*arguments: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise Stop
        return call(*arguments, **named)

    return run


@pytest.mark.parametrize("target", ["free", "to be replaced"])
def test_interrupted_recovery_can_be_repeated(
    target: str, tmp_path: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rec").mkdir()
    overwrite = target == "to be replaced"
    if overwrite:
        with VideoSignalWriter(tmp_path / "rec" / "cam.mp4", spec=LOSSLESS) as old:
            bench.go()
            for number in range(9):
                old.append(frame(number + 7), number * 1_000_000, clocks={"sensor": -number})
        bench.stop()
    writer = VideoSignalWriter(tmp_path / "rec" / "cam.mp4", spec=LOSSLESS, overwrite=overwrite)
    record(writer, range(5))
    bench.wait_for_spilled(5)
    bench.encode(2)
    steps = 0
    while True:
        copy = killed(writer, tmp_path / str(steps))
        left = [steps]
        with monkeypatch.context() as patch:
            for name in ("unlink", "replace"):
                patch.setattr(Path, name, _stopping(getattr(Path, name), left))
            patch.setattr(Movie, "add", _stopping(Movie.add, left))
            try:
                recover(copy / "cam.mp4")
                finished = True
            except Stop:
                finished = False
        recover(copy / "cam.mp4")
        check(signal_in(copy), 5)
        assert not {TAPE, SPILL} & set(names_in(copy))
        if finished:
            break
        steps += 1
    assert steps > 8
    bench.go()
    writer.abort()


def test_existing_video_of_other_frames_is_not_taken_for_the_recording(
    tmp_path: Path, bench: Bench
) -> None:
    (tmp_path / "rec").mkdir()
    writer = VideoSignalWriter(tmp_path / "rec" / "cam.mp4", spec=LOSSLESS)
    record(writer, range(5))
    bench.wait_for_spilled(5)
    bench.encode(2)
    copy = killed(writer, tmp_path / "copy")
    bench.go()
    with VideoSignalWriter(tmp_path / "short.mp4", spec=LOSSLESS) as short:
        record(short, range(3))
    for end in (".mp4", ".frames.parquet"):
        shutil.copy(tmp_path / f"short{end}", copy / f"cam{end}")
    with pytest.raises(FileExistsError, match="its records differ"):
        recover(copy / "cam.mp4")
    assert {TAPE, SPILL} <= set(names_in(copy))
    writer.abort()


@pytest.mark.parametrize("change", ["extradata", "missing"])
def test_other_encoder_leaves_the_recording_as_it_is(
    change: str, tmp_path: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = DiskEpisodeWriter(tmp_path / "ep", video=LOSSLESS)
    record(writer, range(5), name="cam")
    bench.wait_for_spilled(5)
    bench.encode(2)
    copy = killed(writer, tmp_path / "copy")
    before = names_in(copy)
    open_encoder: Any = Encoder._open

    def other(self: Encoder) -> Any:
        if change == "missing":
            raise EncoderError("this build of PyAV has no encoder `ffv1` for MP4")
        context, header = open_encoder(self)
        return context, header | {"extradata": "AAAA"}

    monkeypatch.setattr(Encoder, "_open", other)
    with pytest.raises(EncoderError) as raised:
        recover(copy)
    reason = "another extradata" if change == "extradata" else "no encoder `ffv1`"
    assert reason in str(raised.value)
    assert f"or remove `{copy / SPILL}`" in (raised.value.hint or "")
    assert set(before) <= set(names_in(copy))
    monkeypatch.setattr(Encoder, "_open", open_encoder)
    (found,) = recover(copy).episodes
    assert found.signals == {"cam": 5}
    check(DiskEpisode(copy)["cam"], 5)
    bench.go()
    writer.abort()


@pytest.mark.parametrize("make", [DiskEpisodeWriter, VideoSignalWriter])
def test_damaged_spill_file_is_reported_and_kept(make: Any, tmp_path: Path, bench: Bench) -> None:
    alone = make is VideoSignalWriter
    (tmp_path / "rec").mkdir()
    writer = (
        make(tmp_path / "rec" / "cam.mp4", spec=LOSSLESS)
        if alone
        else make(tmp_path / "rec" / "ep", video=LOSSLESS)
    )
    record(writer, range(6), name=None if alone else "cam")
    bench.wait_for_spilled(6)
    bench.encode(2)
    copy = killed(writer, tmp_path / "copy")
    with (copy / SPILL).open("r+b") as file:
        file.seek(4096 + 4 * 8192 + 1000)  # in frame 4
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 4]))
    if alone:
        with pytest.raises(CorruptError, match=r"damaged at byte \d+: frame 4; the 4 records"):
            recover(copy / "cam.mp4")
        assert names_in(copy) == [
            f"{SPILL}.damaged",
            f"{TAPE}.damaged",
            "cam.frames.parquet",
            "cam.mp4",
        ]
        assert recover(copy / "cam.mp4").signals == {}
        check(signal_in(copy), 4)
    else:
        (found,) = recover(copy).episodes
        assert found.signals == {"cam": 4}
        (problem,) = found.problems
        assert "damaged at byte" in problem
        assert f"`{SPILL}` was kept" in problem
        assert {SPILL, TAPE} <= set(names_in(copy))
        check(DiskEpisode(copy)["cam"], 4)
        reported = [str(each) for each in validate(copy, level="full").problems]
        assert any(SPILL in each for each in reported)
    bench.go()
    writer.abort()


def test_spill_file_of_an_earlier_recording_is_not_used(tmp_path: Path, bench: Bench) -> None:
    (tmp_path / "rec").mkdir()
    path = tmp_path / "rec" / "cam.mp4"
    writer = VideoSignalWriter(path, spec=LOSSLESS)
    record(writer, range(5))
    bench.wait_for_spilled(5)
    stale = (tmp_path / "rec" / SPILL).read_bytes()
    writer.abort()
    bench.go()
    with VideoSignalWriter(path, spec=LOSSLESS) as again:
        record(again, range(2))
        again.flush()
        copy = killed(again, tmp_path / "copy")
    (copy / SPILL).write_bytes(stale)
    assert recover(copy / "cam.mp4").signals == {"cam": 2}
    assert names_in(copy) == ["cam.frames.parquet", "cam.mp4"]
    check(signal_in(copy), 2)
