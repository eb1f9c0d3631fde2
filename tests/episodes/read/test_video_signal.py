"""Signals in videos: times come from the index, and frames are decoded on demand."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from relive import errors
from relive.episodes.read.video_signal import VideoSignal
from relive.episodes.write.video_writer import VideoSignalWriter
from relive.model.signal import SignalView
from tests.episodes.by_hand import write_video

pytest.importorskip("av")

from relive.store.video import decoders

GOP = 5
COUNT = 23


def frame(row: int) -> npt.NDArray[np.uint8]:
    """Return an image with its row number in every pixel, and a pattern."""
    return ((np.arange(24 * 32 * 3) + 9 * row) % 256).astype(np.uint8).reshape(24, 32, 3)


def record(folder: Path, count: int = COUNT, profile: str = "lossless") -> VideoSignal:
    path = folder / "cam.mp4"
    attrs = {"intrinsics": [1.5, 2]}
    with VideoSignalWriter(path, profile=profile, gop=GOP, attrs=attrs, name="/cam") as writer:
        for row in range(count):
            writer.append(frame(row), 100 + row * 10, clocks={"sensor": row})
    return VideoSignal(path, folder / "cam.frames.parquet")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> VideoSignal:
    return record(tmp_path_factory.mktemp("video"))


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Record the rows whose packets are passed to decoders."""
    fed: list[int] = []
    feed = decoders.Decoder.feed

    def counting(self: decoders.Decoder, data: Any, row: int) -> list[Any]:
        if data is not None:
            fed.append(row)
        return feed(self, data, row)

    decoders.clear()
    monkeypatch.setattr(decoders.Decoder, "feed", counting)
    yield fed
    decoders.clear()


def test_recorded_frames_are_read(recorded: VideoSignal) -> None:
    assert (recorded.name, recorded.kind, recorded.dtype) == ("/cam", "image", np.dtype(np.uint8))
    assert recorded.shape == (24, 32, 3)
    assert recorded.attrs == {"intrinsics": [1.5, 2]}
    assert (len(recorded), recorded.start_ts, recorded.last_ts) == (COUNT, 100, 320)
    assert recorded.clock("sensor").tolist() == list(range(COUNT))
    value, ts = recorded.time[255]
    assert ts == 250
    np.testing.assert_array_equal(value, frame(15), strict=True)
    assert recorded.path.name == "cam.mp4"
    assert recorded.index_path.name == "cam.frames.parquet"


def test_nothing_is_read_on_open(tmp_path: Path) -> None:
    signal = VideoSignal(tmp_path / "cam.mp4", tmp_path / "cam.frames.parquet")
    with pytest.raises(errors.NotFoundError, match=r"cam\.frames\.parquet"):
        len(signal)
    record(tmp_path)
    (tmp_path / "cam.mp4").unlink()
    assert (len(signal), signal.start_ts, signal.last_ts) == (COUNT, 100, 320)
    assert signal.timestamps.tolist() == [100 + row * 10 for row in range(COUNT)]
    assert signal.shape == (24, 32, 3)
    assert len(signal.time[150:200]) == 5
    for read in (lambda: signal[0], signal.values, lambda: list(signal), lambda: signal.time[100]):
        with pytest.raises(errors.NotFoundError, match=r"cam\.mp4"):
            read()


def test_selections_decode_nothing(recorded: VideoSignal, decoded: list[int]) -> None:
    view = recorded.time[120:300][::2].time[[150, 140]]
    assert isinstance(view, SignalView)
    assert view.timestamps.tolist() == [150, 140]
    assert decoded == []
    np.testing.assert_array_equal(view[0][0], frame(4))
    assert decoded == [0, 1, 2, 3, 4]


def test_iteration_decodes_each_frame_once(recorded: VideoSignal, decoded: list[int]) -> None:
    for row, (value, ts) in enumerate(recorded):
        np.testing.assert_array_equal(value, frame(row))
        assert ts == 100 + row * 10
    assert sorted(decoded) == list(range(COUNT))
    decoded.clear()
    decoders.clear()
    assert [ts for _, ts in recorded.time[150:250]] == list(range(150, 250, 10))
    assert sorted(decoded) == list(range(5, 15))


def test_iteration_backwards(recorded: VideoSignal, decoded: list[int]) -> None:
    for (value, ts), row in zip(reversed(recorded), range(COUNT - 1, -1, -1), strict=True):
        np.testing.assert_array_equal(value, frame(row))
        assert ts == 100 + row * 10
    assert sorted(decoded) == list(range(COUNT))


def test_batch_decodes_each_group_once(recorded: VideoSignal, decoded: list[int]) -> None:
    rows = [[13, 2], [11, 13]]
    out = np.zeros((2, 2, 24, 32, 3), np.uint8)
    batch = recorded.gather(rows, ["value"], out={"value": out})
    assert batch["value"] is out
    np.testing.assert_array_equal(out, [[frame(row) for row in pair] for pair in rows])
    assert sorted(decoded) == [0, 1, 2, 10, 11, 12, 13]


def test_frames_are_read_only_copies(recorded: VideoSignal) -> None:
    first = recorded[3][0]
    again = recorded[3][0]
    assert not np.shares_memory(first, again)
    for value in (first, next(iter(recorded))[0], recorded[[1, 2]].values()[0]):
        assert not value.flags.writeable
    batch = recorded.gather([3])["value"]
    assert isinstance(batch, np.ndarray)
    assert batch.flags.writeable


def test_signal_pickles_as_its_paths(recorded: VideoSignal) -> None:
    recorded.values()
    for view in (recorded, recorded[3:9], recorded.time[120:200]):
        data = pickle.dumps(view)
        assert len(data) < 700
        again = pickle.loads(data)  # noqa: S301 - our own data
        np.testing.assert_array_equal(again.values(), view.values())
    assert pickle.loads(pickle.dumps(VideoSignal("/x/a.mp4", "/x/b", name="z"))).name == "z"  # noqa: S301


def test_empty_video(tmp_path: Path) -> None:
    signal = record(tmp_path, 0)
    assert len(signal) == 0
    assert list(signal) == []
    assert signal.timestamps.tolist() == []
    with pytest.raises(errors.InvalidError, match=r"'/cam' has no records"):
        _ = signal.start_ts


@pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("ns")], ids=str)
def test_files_in_the_seed_format(tmp_path: Path, kind: Any) -> None:
    pictures = np.stack([np.full((16, 16, 3), 9 * row, np.uint8) for row in range(12)])
    times = [50 + row * 3 for row in range(12)]
    write_video(tmp_path, "arm%2Fcam", pictures, times)
    index = tmp_path / "arm%2Fcam.frames.parquet"
    pq.write_table(pa.table({"ts_ns": pa.array(times, kind)}), index)
    signal = VideoSignal(tmp_path / "arm%2Fcam.mp4", index)
    assert (signal.name, signal.attrs, signal.clocks) == ("arm/cam", {}, ())
    assert (len(signal), signal.start_ts, signal.last_ts) == (12, 50, 83)
    assert signal.shape == (16, 16, 3)
    value, ts = signal.time[72]
    assert ts == 71
    assert abs(int(value.mean()) - 63) <= 3
    means = [int(value.mean()) for value, _ in signal]
    assert max(abs(mean - 9 * row) for row, mean in enumerate(means)) <= 3


@pytest.mark.parametrize("damage", ["swapped", "repeated", "cut", "no ts_ns"])
def test_damaged_index_is_named(tmp_path: Path, damage: str) -> None:
    signal = record(tmp_path)
    table = pq.read_table(signal.index_path)
    if damage == "cut":
        signal.index_path.write_bytes(signal.index_path.read_bytes()[:-9])
    else:
        times = table["ts_ns"].to_pylist()
        times[7] = times[6] if damage == "repeated" else times[5] + 1
        column = "ts_ns" if damage != "no ts_ns" else "ts"
        pq.write_table(
            table.drop_columns("ts_ns").append_column(column, [times]), signal.index_path
        )
    message = r"cam\.frames\.parquet.*row 7" if damage in {"swapped", "repeated"} else "parquet"
    with pytest.raises(errors.CorruptError, match=message):
        _ = signal.timestamps
