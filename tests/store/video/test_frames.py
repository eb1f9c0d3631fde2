"""`FrameReader`: any frames in any order, and none decoded twice."""

import os
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relive.errors import InvalidError, InvalidTypeError, OutOfRangeError
from relive.store.video import PROFILES, FrameIndex, FrameReader, VideoSpec
from relive.store.video.decoders import IDLE, Decoder, _pool, clear
from tests.store.video.clips import all_of, number_of, numbered, psnr, written

CLIP = numbered(45)
REORDERED = VideoSpec(bframes=2, options={"tune": "fastdecode"})
SPECS = {
    **{name: VideoSpec(profile=name) for name in PROFILES},
    "b-frames": REORDERED,
    "long-gop": VideoSpec(gop=100),
    "hevc": VideoSpec(codec="libx265"),
    "hevc-open": VideoSpec(
        codec="libx265", bframes=3, options={"tune": "psnr", "x265-params": "open-gop=1"}
    ),
    "vp9": VideoSpec(codec="libvpx-vp9"),
    "full-range": VideoSpec(full_range=True, matrix="bt709"),
    "rgb": VideoSpec(codec="libx264rgb", quality=20),
    "4:4:4": VideoSpec(pix_fmt="yuv444p"),
}


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FrameReader]:
    folder = tmp_path_factory.mktemp("videos")
    return {
        name: written(folder / f"{number}.mp4", CLIP, spec)
        for number, (name, spec) in enumerate(SPECS.items())
    }


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[int]]:
    """Count how often the packet of each row is decoded."""
    clear()
    rows: Counter[int] = Counter()
    feed = Decoder.feed

    def counted(self: Decoder, data: memoryview | None, row: int) -> list[Any]:
        if data is not None:
            rows[row] += 1
        return feed(self, data, row)

    monkeypatch.setattr(Decoder, "feed", counted)
    yield rows
    clear()


@pytest.mark.parametrize("name", SPECS)
def test_frame_i_is_row_i(readers: dict[str, FrameReader], name: str) -> None:
    reader = readers[name]
    assert len(reader) == 45
    assert [number_of(frame) for frame in all_of(reader)] == list(range(45))
    assert [number_of(reader.frame(row)) for row in (44, 0, 13, 12, 13, 14, 30)] == [
        *(44, 0, 13, 12, 13, 14, 30)
    ]
    assert [number_of(frame) for frame in reader] == list(range(45))
    assert [number_of(frame) for frame in reader.iterate(7, 23)] == list(range(7, 23))


@pytest.mark.parametrize("name", SPECS)
def test_all_access_paths_return_the_same_frame(readers: dict[str, FrameReader], name: str) -> None:
    reader = readers[name]
    frames = all_of(reader)
    for row in (0, 9, 10, 25, 44):
        assert np.array_equal(reader.frame(row), frames[row])
    assert all(np.array_equal(*both) for both in zip(reader, frames, strict=True))


@given(rows=st.lists(st.integers(0, 44), max_size=20), threads=st.integers(1, 3))
def test_any_order_and_repeats(
    readers: dict[str, FrameReader], rows: list[int], threads: int
) -> None:
    for name in ("record", "compact", "b-frames"):
        reader = FrameReader(readers[name].path, readers[name].index, threads)
        out = np.empty((len(rows), 48, 64, 3), np.uint8)
        reader.read(np.array(rows, np.int64), out)
        assert [number_of(frame) for frame in out] == rows


def test_frames_round_trip(readers: dict[str, FrameReader]) -> None:
    # 4:2:0 loses colour at edges, with every encoder.
    least = {"record": 24, "compact": 24, "fast": 24, "lossless": float("inf"), "4:4:4": 35}
    for name, level in least.items():
        assert psnr(all_of(readers[name]), CLIP) >= level, name


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("shape", [(1, 1), (15, 17), (49, 63), (101, 40)])
def test_odd_sizes(tmp_path: Path, profile: str, shape: tuple[int, int]) -> None:
    rows, columns = np.mgrid[: shape[0], : shape[1]]
    frame = np.stack([rows, columns, rows + columns], -1).astype(np.uint8)
    frames = np.stack([frame, frame + 9])
    reader = written(tmp_path / "a.mp4", frames, VideoSpec(profile=profile))
    found = all_of(reader)
    assert found.shape == (2, *shape, 3)
    assert np.abs(found.astype(int) - frames).max() <= (0 if profile == "lossless" else 16)
    assert reader.frame(1).flags.c_contiguous
    assert np.array_equal(reader.frame(1), found[1])


PATCHES = [
    *((255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (255, 0, 255), (0, 255, 255)),
    *((255, 255, 255), (0, 0, 0), (128, 128, 128), (1, 1, 1), (254, 254, 254), (200, 30, 90)),
]


@pytest.mark.parametrize(
    "spec",
    [
        VideoSpec(quality=10),
        VideoSpec(profile="compact", quality=10),
        VideoSpec(profile="fast", quality=2),
        VideoSpec(profile="lossless"),
        VideoSpec(matrix="bt709", quality=5),
        VideoSpec(full_range=True, quality=5),
        VideoSpec(pix_fmt="yuv444p", quality=5),
        VideoSpec(pix_fmt="yuv422p", quality=5),
    ],
    ids=lambda spec: f"{spec.profile} {spec.matrix} {spec.full_range} {spec.pix_fmt}",
)
def test_colours_are_not_shifted(tmp_path: Path, spec: VideoSpec) -> None:
    frame = np.repeat(np.repeat(np.array([PATCHES], np.uint8), 32, 0), 32, 1)
    frames = np.stack([frame] * 3)
    found = written(tmp_path / "a.mp4", frames, spec)
    patches = all_of(found)[2].reshape(32, len(PATCHES), 32, 3)[8:24, :, 8:24].mean((0, 2))
    error = patches - np.array(PATCHES)
    assert np.abs(error).max() <= 3, error.round(1)
    assert np.abs(error.mean(0)).max() <= 1, error.mean(0)


@pytest.mark.parametrize(("size", "matrix"), [((96, 64), "bt601"), ((1280, 720), "bt709")])
def test_untagged_colours_default_to_those_of_players(
    tmp_path: Path, size: tuple[int, int], matrix: str
) -> None:
    path, index = tmp_path / "a.mp4", tmp_path / "a.frames.parquet"
    width, height = size
    with av.open(str(path), "w") as file:
        stream = file.add_stream("mpeg4", rate=30)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.qmin = stream.codec_context.qmax = 2
        red = av.VideoFrame.from_ndarray(np.full((height, width, 3), (200, 40, 40), np.uint8))
        coded = red.reformat(format="yuv420p", dst_colorspace=1 if matrix == "bt709" else 5)
        coded.colorspace = 2
        file.mux(stream.encode(coded))
        file.mux(stream.encode())
    pq.write_table(pa.table({"ts_ns": [1]}), index)
    frame = FrameReader(path, FrameIndex(index, path)).frame(0)
    assert np.abs(frame.reshape(-1, 3).mean(0) - (200, 40, 40)).max() < 4


def test_group_is_decoded_once_and_only_as_far_as_needed(
    readers: dict[str, FrameReader], fed: Counter[int]
) -> None:
    out = np.empty((5, 48, 64, 3), np.uint8)
    readers["record"].read([13, 11, 36, 13, 30], out)
    assert fed == dict.fromkeys((*range(10, 14), *range(30, 37)), 1)


def test_disposable_frames_are_skipped(readers: dict[str, FrameReader], fed: Counter[int]) -> None:
    reader = readers["compact"]
    reader.frame(8)
    assert fed == dict.fromkeys((0, 2, 4, 6, 8), 1)
    assert number_of(reader.frame(17)) == 17
    assert [row for row in fed if row >= 10] == [10, 12, 14, 16, 17]


def test_sequential_reads_continue_decoding(
    readers: dict[str, FrameReader], fed: Counter[int]
) -> None:
    for name in ("record", "compact", "long-gop", "hevc"):
        clear()
        fed.clear()
        for row in range(45):
            assert number_of(readers[name].frame(row)) == row
        assert fed == dict.fromkeys(range(45), 1), name
    readers["hevc"].frame(44)
    assert fed[44] == 1


def test_interleaved_videos_keep_their_decoders(tmp_path: Path, fed: Counter[int]) -> None:
    pair = [written(tmp_path / f"{name}.mp4", CLIP[:20], VideoSpec()) for name in "ab"]
    for row in range(20):
        for reader in pair:
            reader.frame(row)
    assert fed == dict.fromkeys(range(20), 2)


def test_iterating_decodes_each_frame_once(
    readers: dict[str, FrameReader], fed: Counter[int]
) -> None:
    for name in ("record", "compact", "long-gop"):
        clear()
        fed.clear()
        assert sum(1 for _ in readers[name]) == 45
        assert fed == dict.fromkeys(range(45), 1), name


def test_long_groups_are_iterated_in_parts(
    readers: dict[str, FrameReader], fed: Counter[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relive.store.video.frames.AHEAD_BYTES", 8 * 48 * 64 * 3)
    reader = FrameReader(readers["long-gop"].path, readers["long-gop"].index, workers=2)
    assert [number_of(frame) for frame in reader] == list(range(45))
    assert fed == dict.fromkeys(range(45), 1)


def test_iteration_may_be_stopped(readers: dict[str, FrameReader]) -> None:
    for _ in range(5):
        for frame in readers["record"]:
            if number_of(frame) == 3:
                break
    assert number_of(readers["record"].frame(4)) == 4


def test_threads_share_a_reader(readers: dict[str, FrameReader]) -> None:
    wrong: list[tuple[int, int]] = []

    def read_frames(seed: int) -> None:
        rows = np.random.default_rng(seed).integers(0, 45, 60)
        for row in rows.tolist():
            found = number_of(readers["record"].frame(row))
            if found != row:
                wrong.append((row, found))
        out = np.empty((60, 48, 64, 3), np.uint8)
        readers["compact"].read(rows, out)
        wrong.extend(
            (row, number_of(frame))
            for row, frame in zip(rows.tolist(), out, strict=True)
            if number_of(frame) != row
        )

    threads = [threading.Thread(target=read_frames, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def read_in_a_fork(path: Path) -> int:
    """Read in the parent and in a forked child; return the exit status."""
    reader = written(path, CLIP, VideoSpec(profile="compact"))
    all_of(reader)  # so that there are threads and idle decoders
    child = os.fork()
    if child == 0:
        status = 1
        try:
            good = [number_of(frame) for frame in all_of(reader)] == list(range(45))
            good = good and number_of(reader.frame(31)) == 31
            status = 0 if good and sum(1 for _ in reader) == 45 else 2
        finally:
            os._exit(status)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return ended if number_of(reader.frame(17)) == 17 else 3


def test_forked_process_reads(tmp_path: Path, spawned_pool: ProcessPoolExecutor) -> None:
    assert spawned_pool.submit(read_in_a_fork, tmp_path / "a.mp4").result(timeout=120) == 0


def test_idle_decoders_are_bounded(tmp_path: Path) -> None:
    readers = [
        written(tmp_path / f"{number}.mp4", CLIP[:3, :, : 32 + 2 * number], VideoSpec())
        for number in range(IDLE + 8)
    ]
    for reader in readers:
        reader.frame(2)
    assert len(_pool._idle) <= IDLE
    assert all(reader.frame(1).shape == reader.index.shape for reader in readers)


def test_out_of_range_rows_and_invalid_arrays_raise(readers: dict[str, FrameReader]) -> None:
    reader = readers["record"]
    out = np.empty((2, 48, 64, 3), np.uint8)
    for row in (-1, 45):
        with pytest.raises(OutOfRangeError, match="45 frames"):
            reader.frame(row)
        with pytest.raises(OutOfRangeError, match="45 frames"):
            reader.read([0, row], out)
    with pytest.raises(OutOfRangeError):
        next(reader.iterate(40, 46))
    with pytest.raises(InvalidTypeError):
        reader.read([0.5, 1.0], out)
    with pytest.raises(InvalidError):
        reader.read([1, 2, 3], out)
    with pytest.raises(InvalidError):
        reader.read([1, 2], out.astype(np.int8))
    reader.read([], out[:0])
    assert list(reader.iterate(5, 5)) == []


def test_foreign_video_with_b_frames_and_no_offsets(tmp_path: Path) -> None:
    path, index = tmp_path / "a.mp4", tmp_path / "a.frames.parquet"
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=100)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.gop_size = 30
        for number, frame in enumerate(CLIP):
            picture = av.VideoFrame.from_ndarray(frame)
            picture.pts = number
            file.mux(stream.encode(picture))
        file.mux(stream.encode())
    pq.write_table(pa.table({"ts_ns": range(45)}), index)
    reader = FrameReader(path, FrameIndex(index, path))
    assert bool((np.diff(reader.index.offsets) < 0).any())
    assert [number_of(frame) for frame in all_of(reader)] == list(range(45))
    assert [number_of(reader.frame(row)) for row in (44, 31, 29, 2)] == [44, 31, 29, 2]
    assert [number_of(frame) for frame in reader] == list(range(45))
