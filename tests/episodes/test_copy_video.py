"""Copies of video: stored packets where possible, and the settings of the source elsewhere."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from relive.episodes import LocalDatasetWriter, VideoSpec, validate
from relive.episodes.copy import copy
from relive.episodes.copy_video import plan_copy
from relive.episodes.read.local_dataset import LocalDataset
from relive.episodes.read.video_signal import VideoSignal
from relive.episodes.transforms.values import map_values
from relive.errors import CorruptError
from relive.model.clock import INT64_MAX
from relive.model.episode import EpisodeView
from relive.model.signal import Signal
from tests.episodes.by_hand import episode_path, write_episode

av = pytest.importorskip("av")

FRAMES, STEP = 32, 33_000_000
TIMES = [1_000_000 + STEP * n for n in range(FRAMES)]
Frames = npt.NDArray[np.uint8]


def pictures(height: int = 64, width: int = 80) -> Frames:
    rows, columns = np.mgrid[:height, :width]
    noise = np.random.default_rng(0).integers(0, 60, (height, width, 3))
    made = [
        np.stack([90 + 60 * np.sin((rows * k + columns * 2 + 3 * n) / 7) for k in (1, 2, 3)], 2)
        + np.roll(noise, 2 * n, 1)
        for n in range(FRAMES)
    ]
    return np.stack(made).clip(0, 255).astype(np.uint8)


def record(root: Path, spec: VideoSpec) -> Any:
    with LocalDatasetWriter(root, video=spec).new_episode() as episode:
        for n, picture in enumerate(pictures()):
            episode.append("cam", picture, TIMES[n], clocks={"sensor": n})
    return signal(root)


def signal(root: Path) -> Any:
    return LocalDataset(root)[0]["cam"]


def write_foreign(root: Path, codec: str, pix_fmt: str, **options: str) -> Any:
    """Record a video as other tools do: one movie, and an index of times."""
    folder = write_episode(episode_path(root, 0), {})
    with av.open(str(folder / "cam.mp4"), "w") as movie:
        stream = movie.add_stream(
            codec, rate=30, options={k.replace("_", "-"): v for k, v in options.items()}
        )
        stream.height, stream.width = pictures().shape[1:3]
        stream.pix_fmt = pix_fmt
        for number, picture in enumerate(pictures()):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 30)
            movie.mux(stream.encode(frame))
        movie.mux(stream.encode(None))
    pq.write_table(pa.table({"ts_ns": pa.array(TIMES, pa.int64())}), folder / "cam.frames.parquet")
    return signal(root)


def psnr(one: Frames, other: Frames) -> float:
    error = float(((one.astype(float) - other) ** 2).mean())
    return 99.0 if not error else float(10 * np.log10(255**2 / error))


def copied(view: Signal[Any], root: Path, **options: Any) -> tuple[Any, int]:
    """Copy a signal; return the copy, read in several ways, and the number of encoded frames."""
    done = copy(EpisodeView({"cam": view}), root, **options)
    assert validate(root, level="full").ok
    found = signal(root)
    assert found.timestamps.tolist() == view.timestamps.tolist()
    assert found.clocks == view.clocks
    for clock in view.clocks:
        assert found.clock(clock).tolist() == view.clock(clock).tolist()
    assert (found.start_ts, found.last_ts) == (view.start_ts, view.last_ts)
    together = found.values()
    order = np.random.default_rng(0).permutation(len(found))
    assert np.array_equal(np.stack([frame for frame, _ in found]), together)
    assert np.array_equal(np.stack([found[int(row)][0] for row in order]), together[order])
    assert np.array_equal(found.gather(order)["value"], together[order])
    index = found.frames.index
    with av.open(str(found.path)) as movie:
        assert sum(1 for _ in movie.decode(video=0)) == len(found) + index.lead + index.trail
    return found, done.encoded_frames


def at_other_times(view: Signal[Any]) -> Signal[Any]:
    return view.select(range(len(view)), STEP * np.arange(len(view)))


SPECS = {
    "record": VideoSpec(),
    "4:4:4": VideoSpec(pix_fmt="yuv444p", quality=10),
    "b-frames": VideoSpec(bframes=2, gop=12),
    "compact": VideoSpec(profile="compact"),
    "hevc": VideoSpec(codec="libx265", quality=20, gop=10),
    "vp9": VideoSpec(codec="libvpx-vp9", quality=20, gop=10),
    "full range": VideoSpec(matrix="bt709", full_range=True, quality=15),
}
LOSSLESS = {
    "lossless": VideoSpec(profile="lossless"),
    "x264 rgb": VideoSpec(codec="libx264rgb", quality=0, gop=10),
    "x264 4:2:0": VideoSpec(quality=0),
}
GAP = [*range(15), *range(23, FRAMES)]
JUMPS = [*range(5, 16), 3, 4, 20, 20, 21, 22, *range(9, 31)]


@pytest.mark.parametrize("name", SPECS)
def test_only_frames_after_a_gap_are_encoded_again(tmp_path: Path, name: str) -> None:
    source = record(tmp_path / "root", SPECS[name])
    gop = source.frames.index.header["gop"]
    truth = source.values()
    for number, rows in enumerate((GAP, JUMPS, list(range(0, FRAMES, 2)))):
        found, encoded = copied(at_other_times(source[rows]), tmp_path / f"{number}")
        same = [
            np.array_equal(frame, truth[row]) for (frame, _), row in zip(found, rows, strict=True)
        ]
        must = len(rows) - sum(same)
        assert must <= encoded < len(rows)
        if rows is GAP and name != "b-frames":
            assert encoded == -23 % gop
        assert psnr(found.values(), truth[rows]) > 32
        was, header = source.frames.index.header, found.frames.index.header
        assert {key: header[key] for key in was} == was


def test_copies_keep_the_quality_of_the_source(tmp_path: Path) -> None:
    source = record(tmp_path / "root", VideoSpec(pix_fmt="yuv444p", quality=5, gop=16))
    truth = source.values()
    assert psnr(truth, pictures()) > 40
    view = source[1::2]
    found, encoded = copied(view, tmp_path / "copy")
    assert encoded == len(view) - 1  # the first is copied with the key frame before it
    assert psnr(found.values(), truth[1::2]) > 45
    assert found.frames.index.header["options"]["crf"] == "5"
    brighter = map_values(source, lambda frames: frames // 2 + 20, batched=True)
    derived, encoded = copied(brighter, tmp_path / "derived")
    assert encoded == FRAMES
    assert derived.frames.index.header["pix_fmt"] == "yuv444p"
    assert psnr(derived.values(), truth // 2 + 20) > 45


@pytest.mark.parametrize("name", LOSSLESS)
def test_lossless_sources_stay_exact(tmp_path: Path, name: str) -> None:
    source = record(tmp_path / "root", LOSSLESS[name])
    truth = source.values()
    for number, rows in enumerate((GAP, JUMPS, list(range(0, FRAMES, 3)))):
        found, encoded = copied(at_other_times(source[rows]), tmp_path / f"{number}")
        assert np.array_equal(found.values(), truth[rows])
        assert (encoded == 0) == (name == "lossless")


@pytest.mark.parametrize("codec", ["libx264", "libx265"])
@pytest.mark.parametrize(("first", "stop"), [(0, FRAMES), (0, 7), (3, 4), (9, 20), (13, 31)])
def test_windows_of_reordered_frames_are_copied(
    tmp_path: Path, codec: str, first: int, stop: int
) -> None:
    params = {"x265_params": "keyint=10:bframes=3:open-gop=0:log-level=error"}
    if codec == "libx264":
        params = {"x264_params": "keyint=10:bframes=3:b-adapt=0"}
    source = write_foreign(tmp_path / "root", codec, "yuv420p", **params)
    offsets = source.frames.index.offsets
    assert bool((offsets[1:] < offsets[:-1]).any())
    found, encoded = copied(source[first:stop], tmp_path / "copy")
    assert encoded == 0
    assert np.array_equal(found.values(), source.values()[first:stop])
    _, encoded = copied(found[1:-1] if stop - first > 2 else found, tmp_path / "again")
    assert encoded == 0
    assert copy(tmp_path / "copy", tmp_path / "copy").skipped


FOREIGN: dict[str, tuple[str, str, dict[str, str], str]] = {
    "h264": ("libx264", "yuv420p", {"crf": "18"}, "18"),
    "h264 4:4:4": ("libx264", "yuv444p", {"crf": "12", "g": "15"}, "12"),
    "hevc": ("libx265", "yuv420p", {"x265_params": "crf=21:log-level=error"}, "21"),
    "mpeg4": ("mpeg4", "yuv420p", {"g": "10", "q": "3"}, ""),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_videos_of_other_tools_keep_their_format(tmp_path: Path, name: str) -> None:
    codec, pix_fmt, options, quality = FOREIGN[name]
    source = write_foreign(tmp_path / "root", codec, pix_fmt, **options)
    view = at_other_times(source[GAP])
    found, encoded = copied(view, tmp_path / "copy")
    assert encoded == len(GAP)  # one decoder does not read both
    header = found.frames.index.header
    was = source.frames.index.header
    assert (header["codec"], header["pix_fmt"]) == (was["codec"], was["pix_fmt"])
    assert header["options"].get("crf", "") == quality
    assert psnr(found.values(), view.values()) > 30


@pytest.mark.parametrize("codec", ["libx264", "ffv1"])
def test_lossless_videos_of_other_tools_stay_exact(tmp_path: Path, codec: str) -> None:
    options = {"qp": "0"} if codec == "libx264" else {"level": "3", "g": "12"}
    source = write_foreign(tmp_path / "root", codec, "yuv420p", **options)
    found, _ = copied(at_other_times(source[GAP]), tmp_path / "copy")
    assert np.array_equal(found.values(), source.values()[GAP])


def test_settings_that_cannot_be_used_here_are_replaced(tmp_path: Path) -> None:
    source = record(tmp_path / "root", VideoSpec(quality=12))
    changes: list[dict[str, Any]] = [
        {"encoder": "h264_of_another_machine"},
        {"options": {"crf": "12", "no_such_option": "1"}},
        {"options": None},
        {"gop": "ten"},
        {"fps": [1, 0]},
    ]
    table = pq.read_table(source.index_path)
    meta = json.loads(table.schema.metadata[b"relive"])
    for number, change in enumerate(changes):
        about = meta | {"video": meta["video"] | change}
        changed = table.replace_schema_metadata({b"relive": json.dumps(about)})
        pq.write_table(changed, tmp_path / f"{number}.frames.parquet")
        video = VideoSignal(source.path, tmp_path / f"{number}.frames.parquet")
        found, encoded = copied(at_other_times(video[1::2]), tmp_path / f"{number}")
        assert encoded >= len(found) - 1
        assert found.frames.index.header["codec"] == "h264"
        assert psnr(found.values(), source.values()[1::2]) > 32


def test_trail_without_room_for_its_times_is_encoded(tmp_path: Path) -> None:
    source = write_foreign(
        tmp_path / "root", "libx264", "yuv420p", x264_params="keyint=10:bframes=3:b-adapt=0"
    )
    stop = next(n for n in range(5, 20) if getattr(plan_copy(source[3:n]), "trail", 0))
    view = source[3:stop]
    late = view.select(range(len(view)), INT64_MAX - np.arange(len(view))[::-1])
    _, encoded = copied(late, tmp_path / "copy")
    assert encoded == len(view)


def test_invalid_trail_raises(tmp_path: Path) -> None:
    source = record(tmp_path / "root", VideoSpec())
    table = pq.read_table(source.index_path)
    meta = json.loads(table.schema.metadata[b"relive"])
    for trail in (-1, FRAMES - 1, "2", True):
        meta["video"] |= {"lead": 2, "trail": trail}
        changed = table.replace_schema_metadata({b"relive": json.dumps(meta)})
        pq.write_table(changed, tmp_path / "i.frames.parquet")
        with pytest.raises(CorruptError, match="`trail` must be"):
            len(VideoSignal(source.path, tmp_path / "i.frames.parquet"))


@pytest.mark.parametrize("name", ["record", "b-frames", "compact"])
def test_held_frame_of_a_trim_is_copied(tmp_path: Path, name: str) -> None:
    source = record(tmp_path / "root", SPECS[name])
    dataset = LocalDataset(tmp_path / "root")
    uid = dataset.uids[0]
    dataset.edits.trim(uid, TIMES[13] + 5, TIMES[21] + 5)
    first, second = dataset.edits.cut(uid, TIMES[17] - 3)
    dataset.refresh()
    done = copy(dataset, tmp_path / "copy")
    assert (done.copied, done.encoded_frames) == ((first, second), 0)
    assert validate(tmp_path / "copy", level="full").ok
    wanted = {
        first: ([TIMES[13] + 5, *TIMES[14:17]], range(13, 17)),
        second: ([TIMES[17] - 3, *TIMES[17:22]], range(16, 22)),
    }
    for where in (dataset, LocalDataset(tmp_path / "copy")):
        for episode in where:
            cam = episode["cam"]
            times, rows = wanted[episode.uid]
            assert cam.timestamps.tolist() == times
            assert cam.clock("sensor").tolist() == list(rows)  # the clocks of the record itself
            truth = source.values()[rows.start : rows.stop]
            assert np.array_equal(cam.values(), truth)
            assert np.array_equal(np.stack([frame for frame, _ in cam]), truth)
            assert np.array_equal(cam.gather([1, 0, 1])["value"], truth[[1, 0, 1]])
            assert np.array_equal(cam.time[times[0] + 1][0], truth[0])
            assert np.array_equal(cam.time[times[0] : times[1]].values(), truth[:1])
            sampled = cam.resample([times[1] - 1, times[1]])
            assert np.array_equal(sampled.values(), truth[[0, 1]])
