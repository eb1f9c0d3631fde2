"""Recording a camera: frames, rows, overload and failing encoders."""

import gc
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from relive.episodes import DiskEpisodeWriter, VideoSignalWriter, VideoSpec, recover
from relive.episodes.read.episode import DiskEpisode
from relive.episodes.read.video_signal import VideoSignal
from relive.errors import (
    AlreadyExistsError,
    ClosedError,
    EncoderError,
    InvalidError,
    InvalidTypeError,
    OverloadError,
    StorageError,
)
from relive.store.video import Encoder, Movie

if TYPE_CHECKING:
    from relive.episodes.write.video_writer import CameraWriter

Frame = npt.NDArray[np.uint8]


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def frame(number: int, height: int = 32, width: int = 48) -> Frame:
    """Return an image that contains its number."""
    picture = np.zeros((height, width, 3), np.uint8)
    picture[:, : width // 2] = number * 5 % 256
    picture[:, width // 2 :] = 255 - number * 5 % 256
    return picture


def check(signal: Any, numbers: list[int]) -> None:
    assert len(signal) == len(numbers)
    for (found, _), number in zip(signal, numbers, strict=True):
        expected = frame(number, *signal.shape[:2])
        assert np.abs(found.astype(int) - expected).mean() < 6


def files(folder: Path) -> tuple[Path, Path]:
    return folder / "cam.mp4", folder / "cam.frames.parquet"


def slow_down(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Make every encoder wait before each frame until the event is set."""
    gate = threading.Event()
    encode = Encoder.encode

    def waiting(self: Encoder, picture: Frame, ts_ns: int) -> Any:
        gate.wait(60)
        return encode(self, picture, ts_ns)

    monkeypatch.setattr(Encoder, "encode", waiting)
    return gate


@pytest.mark.parametrize("profile", ["record", "compact", "fast", "lossless"])
def test_frames_round_trip(profile: str, tmp_path: Path) -> None:
    with VideoSignalWriter(*files(tmp_path), profile, fps=20) as writer:
        for number in range(25):
            writer.append(frame(number), number * 50_000_000)
    signal = VideoSignal(*files(tmp_path))
    assert names_in(tmp_path) == ["cam.frames.parquet", "cam.mp4"]
    check(signal, list(range(25)))
    assert signal.timestamps.tolist() == [number * 50_000_000 for number in range(25)]
    if profile == "lossless":
        assert all(np.array_equal(found, frame(n)) for n, (found, _) in enumerate(signal))


def test_buffer_may_be_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = slow_down(monkeypatch)
    buffer = frame(0)
    with VideoSignalWriter(*files(tmp_path), spec=VideoSpec(profile="lossless")) as writer:
        for number in range(10):
            buffer[:] = frame(number)
            writer.append(buffer, number)
        buffer[:] = 77
        gate.set()
    for number, (found, _) in enumerate(VideoSignal(*files(tmp_path))):
        assert np.array_equal(found, frame(number))


def test_frames_of_any_layout_are_copied(tmp_path: Path) -> None:
    wide = np.repeat(np.repeat(frame(3), 2, axis=0), 2, axis=1)
    spec = VideoSpec(profile="lossless")
    given = [
        np.ascontiguousarray(frame(3)),
        np.asfortranarray(frame(3)),
        wide[::2, ::2],
        frame(3)[::-1][::-1],
        frame(3)[:, :, ::-1],
        frame(3).data,
    ]
    read_only = frame(3)
    read_only.flags.writeable = False
    with VideoSignalWriter(*files(tmp_path), spec=spec) as writer:
        for number, picture in enumerate([*given, read_only]):
            writer.append(picture, number)
    for found, _ in VideoSignal(*files(tmp_path)):
        assert np.array_equal(found, frame(3))


def test_odd_sizes_and_several_clocks(tmp_path: Path) -> None:
    with VideoSignalWriter(*files(tmp_path)) as writer:
        for number in range(5):
            writer.append(frame(number, 33, 47), number, {"sensor": number * 3})
        with pytest.raises(InvalidError, match=r"cam.*'sensor'"):
            writer.append(frame(5, 33, 47), 5)
    signal = VideoSignal(*files(tmp_path))
    assert signal.shape == (33, 47, 3)
    check(signal, list(range(5)))
    assert signal.clock("sensor").tolist() == [0, 3, 6, 9, 12]


def test_reordered_frames_are_stored_in_display_order(tmp_path: Path) -> None:
    spec = VideoSpec(bframes=3, options={"tune": "animation"})
    with VideoSignalWriter(*files(tmp_path), spec=spec) as writer:
        for number in range(30):
            writer.append(frame(number), number * 10, {"sensor": number})
        writer.flush()
    signal = VideoSignal(*files(tmp_path))
    check(signal, list(range(30)))
    assert signal.clock("sensor").tolist() == list(range(30))


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((32, 49, 3), np.uint8),
        np.zeros((32, 48, 3), np.uint16),
        np.zeros((32, 48), np.uint8),
        1.0,
        "text",
    ],
)
def test_later_frames_must_have_the_first_type(wrong: Any, tmp_path: Path) -> None:
    with VideoSignalWriter(*files(tmp_path)) as writer:
        writer.append(frame(0), 1)
        with pytest.raises(InvalidError, match=r"'cam'.*\(32, 48, 3\)"):
            writer.append(wrong, 2)
        with pytest.raises(InvalidTypeError, match="'cam'"):
            writer.append(None, 2)
        writer.append(frame(1), 3)
    check(VideoSignal(*files(tmp_path)), [0, 1])


def test_times_must_increase(tmp_path: Path) -> None:
    with VideoSignalWriter(*files(tmp_path)) as writer:
        for wrong in (1.5, True, "1"):
            with pytest.raises(InvalidTypeError, match="'cam'"):
                writer.append(frame(0), wrong)  # type: ignore[arg-type]
        writer.append(frame(0), 5)
        for ts in (5, 4, 2**63):
            with pytest.raises(InvalidError, match="'cam'"):
                writer.append(frame(1), ts)
        writer.append(frame(1))
    check(VideoSignal(*files(tmp_path)), [0, 1])


def test_video_without_frames_has_no_rows(tmp_path: Path) -> None:
    VideoSignalWriter(*files(tmp_path)).close()
    assert len(VideoSignal(*files(tmp_path))) == 0


def test_full_queue_drops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = slow_down(monkeypatch)
    with VideoSignalWriter(*files(tmp_path), overload="drop", queue=3) as writer:
        for number in range(10):
            writer.append(frame(number), number)
        stats = writer.stats
        assert (stats.rows, stats.dropped, stats.queue_depth) == (3, 7, 3)
        gate.set()
        writer.flush()
        writer.append(frame(20), 20)
    signal = VideoSignal(*files(tmp_path))
    assert signal.timestamps.tolist() == [0, 1, 2, 20]  # frame i is row i
    check(signal, [0, 1, 2, 20])


def test_full_queue_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = slow_down(monkeypatch)
    with VideoSignalWriter(*files(tmp_path), overload="raise", queue=2) as writer:
        for number in range(2):
            writer.append(frame(number), number)
        with pytest.raises(OverloadError, match="'cam': the queue is full with 2 items"):
            writer.append(frame(2), 2)
        gate.set()
    check(VideoSignal(*files(tmp_path)), [0, 1])


def test_full_queue_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = slow_down(monkeypatch)
    with VideoSignalWriter(*files(tmp_path), queue=1) as writer:
        writer.append(frame(0), 0)
        done = threading.Event()

        def go() -> None:
            writer.append(frame(1), 1)
            done.set()

        thread = threading.Thread(target=go)
        thread.start()
        assert not done.wait(0.1)
        gate.set()
        assert done.wait(30)
        thread.join()
    check(VideoSignal(*files(tmp_path)), [0, 1])


def test_flushed_frames_are_on_the_tape(tmp_path: Path) -> None:
    with VideoSignalWriter(*files(tmp_path)) as writer:
        for number in range(12):
            writer.append(frame(number), number)
        writer.flush()
        (tmp_path / "copy").mkdir()
        (tmp_path / "copy" / ".cam.mp4.tape").write_bytes((tmp_path / ".cam.mp4.tape").read_bytes())
        writer.sync()
        writer.abort()
    assert names_in(tmp_path) == ["copy"]
    found = recover(tmp_path / "copy" / ".cam.mp4.tape")
    assert found.signals == {"cam": 12}
    check(VideoSignal(*files(tmp_path / "copy")), list(range(12)))  # next to it, as configured


@pytest.mark.parametrize(
    "spec",
    [
        VideoSpec(codec="no_such_encoder"),
        VideoSpec(options={"no_such_option": "1"}),
        VideoSpec(pix_fmt="no_such_format"),
    ],
)
def test_encoder_that_cannot_be_opened_raises(spec: VideoSpec, tmp_path: Path) -> None:
    with DiskEpisodeWriter(tmp_path / "ep", signals={"cam": spec}) as writer:
        for _ in range(2):
            with pytest.raises(EncoderError):
                writer.append("cam", frame(0))
        writer.append("state", 1.0)
    assert list(DiskEpisode(tmp_path / "ep").signals) == ["state"]


def test_failed_encoder_closes_only_its_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = Encoder.encode

    def failing(self: Encoder, picture: Frame, ts_ns: int) -> Any:
        if ts_ns == 6 and picture.shape[0] == 32:
            raise RuntimeError("no memory on the device")
        return encode(self, picture, ts_ns)

    monkeypatch.setattr(Encoder, "encode", failing)
    writer = DiskEpisodeWriter(tmp_path / "ep")
    for number in range(7):
        writer.append("cam", frame(number), number)
        writer.append("other", frame(number, 16, 16), number)
        writer.append("state", float(number), number)
    camera = cast("CameraWriter", writer._writers["cam"])
    assert camera._thread is not None
    camera._thread.queue.drain()
    for _ in range(2):
        with pytest.raises(EncoderError, match=r"'cam'.*no memory on the device"):
            writer.append("cam", frame(8), 8)
    with pytest.raises(EncoderError, match="'cam'"):
        writer.flush()
    writer.append("other", frame(7, 16, 16), 7)
    writer.append("state", 7.0, 7)
    with pytest.raises(EncoderError, match="'cam'") as raised:
        writer.close()
    assert "relive recover" in "\n".join(raised.value.__notes__)
    (found,) = recover(tmp_path / "ep").episodes
    assert found.signals == {"cam": 6, "other": 8, "state": 8}
    check(DiskEpisode(tmp_path / "ep")["cam"], list(range(6)))


def test_waiting_append_raises_when_the_encoder_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()

    def failing(self: Encoder, picture: Frame, ts_ns: int) -> Any:
        gate.wait(60)
        raise EncoderError("it broke")

    monkeypatch.setattr(Encoder, "encode", failing)
    writer = VideoSignalWriter(*files(tmp_path), queue=1)
    writer.append(frame(0), 0)
    threading.Timer(0.1, gate.set).start()
    with pytest.raises(EncoderError, match="signal 'cam': it broke"):
        writer.append(frame(1), 1)
    writer.abort()
    assert names_in(tmp_path) == []


def test_movie_that_cannot_grow_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Movie, packet: Any) -> None:
        raise StorageError("no space left on the device")

    monkeypatch.setattr(Movie, "add", full)
    writer = VideoSignalWriter(*files(tmp_path))
    writer.append(frame(0), 0)
    with pytest.raises(StorageError, match=r"'cam'.*no space"):
        writer.flush()
    with pytest.raises(StorageError, match="no space"):
        writer.close()
    monkeypatch.undo()
    assert recover(tmp_path / "cam.mp4").signals == {"cam": 1}  # it was on the tape
    check(VideoSignal(*files(tmp_path)), [0])


def test_life_cycle(tmp_path: Path) -> None:
    writer = VideoSignalWriter(*files(tmp_path), name="wrist", attrs={"k": 1})
    writer.append(frame(0), 0)
    writer.describe(unit="px")
    assert repr(writer) == f"VideoSignalWriter({tmp_path / 'cam.mp4'}: 1 records)"
    with pytest.raises(AlreadyExistsError, match="another writer is recording it"):
        VideoSignalWriter(*files(tmp_path))
    writer.close()
    writer.close()
    for call in (writer.leave, writer.abort, writer.flush, lambda: writer.append(frame(1), 1)):
        with pytest.raises(ClosedError, match="is closed"):
            call()
    with pytest.raises(AlreadyExistsError):
        VideoSignalWriter(*files(tmp_path))
    signal = VideoSignal(*files(tmp_path))
    assert signal.name == "wrist"
    assert dict(signal.attrs) == {"k": 1, "unit": "px"}
    with VideoSignalWriter(*files(tmp_path), overwrite=True) as again:
        again.append(frame(9), 1)
    check(VideoSignal(*files(tmp_path)), [9])


def test_spec_cannot_be_combined_with_other_options(tmp_path: Path) -> None:
    for wrong in ({"profile": "fast"}, {"gop": 3}, {"fps": 10}, {"codec": "libx264"}):
        with pytest.raises(InvalidError, match="`spec` cannot be combined"):
            VideoSignalWriter(*files(tmp_path), spec=VideoSpec(), **wrong)
    with pytest.raises(InvalidTypeError):
        VideoSignalWriter(*files(tmp_path), spec="record")  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="overload"):
        VideoSignalWriter(*files(tmp_path), overload="wait")  # type: ignore[arg-type]
    with VideoSignalWriter(tmp_path / "a.mp4", gop=2, codec="libx264", fps=10) as writer:
        for number in range(4):
            writer.append(frame(number), number)
    check(VideoSignal(tmp_path / "a.mp4", tmp_path / "a.frames.parquet"), [0, 1, 2, 3])


def test_encoder_buffers_are_reused(tmp_path: Path) -> None:
    with VideoSignalWriter(*files(tmp_path)) as writer:
        for number in range(60):
            writer.append(frame(number), number)
            writer.flush()
        shape = (32, 48, 3)
        gc.collect()
        thread = writer._thread
        assert thread is not None
        assert [buffer.shape for buffer in thread._free] == [shape] * 4
