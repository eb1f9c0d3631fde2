"""Videos of other programs: frames are found in every container that stores them as one piece."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from relive.episodes import VideoSignal, validate
from relive.errors import UnsupportedError

av = pytest.importorskip("av")

FRAMES = 24
HEIGHT, WIDTH = 64, 96
STEP_NS = 33_000_000


def picture(number: int) -> npt.NDArray[np.uint8]:
    noise = np.random.default_rng(number // 8).integers(0, 255, (HEIGHT, WIDTH, 3), np.uint8)
    return np.roll(noise, number, axis=1)


def write_video(path: Path, container: str, codec: str, options: dict[str, str]) -> Path:
    """Write a video and an index that has only times."""
    with av.open(str(path), "w", format=container) as file:
        stream: Any = file.add_stream(codec, rate=30, options=options)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number in range(FRAMES):
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture(number), format="rgb24")))
        file.mux(stream.encode(None))
    index = pa.table({"ts_ns": np.arange(FRAMES) * STEP_NS})
    pq.write_table(index, path.with_suffix(".frames.parquet"))
    return path


@pytest.mark.parametrize(
    ("name", "container", "codec", "options"),
    [
        ("cam.mkv", "matroska", "libx264", {"bf": "2"}),
        ("cam.mkv", "matroska", "ffv1", {}),
        ("cam.mkv", "matroska", "mpeg4", {"bf": "2"}),
        ("cam.webm", "webm", "libvpx", {"deadline": "realtime"}),
        ("cam.webm", "webm", "libvpx-vp9", {"deadline": "realtime", "lag-in-frames": "8"}),
        ("cam.flv", "flv", "libx264", {}),
        ("cam.avi", "avi", "libx264", {"bf": "0"}),
        ("cam.mov", "mov", "libx264", {}),
        ("cam.mp4", "matroska", "libx264", {}),
    ],
)
def test_video_of_another_program_is_read(
    name: str, container: str, codec: str, options: dict[str, str], tmp_path: Path
) -> None:
    path = write_video(tmp_path / name, container, codec, options)
    with av.open(str(path)) as file:
        wanted = [each.to_ndarray(format="rgb24") for each in file.decode(video=0)]
    signal = VideoSignal(path)
    assert signal.timestamps.tolist() == [number * STEP_NS for number in range(FRAMES)]
    for number, (found, _) in enumerate(signal):
        assert np.abs(found.astype(int) - wanted[number]).max() <= 2
    for number in (17, 3, 9):
        assert np.abs(VideoSignal(path)[number][0].astype(int) - wanted[number]).max() <= 2
    report = validate(path, level="full")
    assert (report.problems, report.unchecked) == ((), (str(path),))


@pytest.mark.parametrize(
    ("name", "container", "codec", "options"),
    [
        ("cam.ts", "mpegts", "libx264", {}),
        ("cam.ts", "mpegts", "mpeg2video", {}),
        ("cam.mp4", "mpegts", "libx264", {"bf": "0"}),
        ("cam.avi", "avi", "libx264", {"bf": "2"}),
    ],
)
def test_video_whose_frames_cannot_be_located_is_unsupported(
    name: str, container: str, codec: str, options: dict[str, str], tmp_path: Path
) -> None:
    path = write_video(tmp_path / name, container, codec, options)
    with pytest.raises(UnsupportedError, match=f"its container, {container}, does not") as error:
        VideoSignal(path)[0]
    assert "MP4 file" in (error.value.hint or "")
    assert {each.kind for each in validate(path, level="full").problems} == {"unsupported"}
