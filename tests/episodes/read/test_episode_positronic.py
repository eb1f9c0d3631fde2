"""Episodes written by positronic 0.4, with a column of times for each timeline."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from relive.episodes import DiskEpisode, LocalDataset, SimpleSignal, VideoSignal, validate
from relive.errors import CorruptError
from tests.episodes.by_hand import episode_path, write_episode, write_video

TIMES = [1000 + 10 * n for n in range(6)]
SENSOR = [5000 + 10 * n for n in range(6)]


def timelines(**columns: list[int]) -> dict[str, Any]:
    """Return columns with positronic's names."""
    return {f"ts.{name}": pa.array(times, pa.int64()) for name, times in columns.items()}


def write(path: Path, columns: dict[str, Any]) -> None:
    fields = [pa.field(name, each.type, nullable=name == "value") for name, each in columns.items()]
    schema = pa.schema(fields, metadata={"positronic.signal_version": "2"})
    pq.write_table(pa.table(columns, schema), path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a dataset of one episode whose signals have two timelines each."""
    folder = write_episode(episode_path(tmp_path, 0), {}, {"task": "pick"}, uid="p0")
    values = pa.array([[float(n), 0.5] for n in range(6)])
    write(folder / "q.parquet", {**timelines(sensor=SENSOR, recorded=TIMES), "value": values})
    write(folder / "only.parquet", {**timelines(sim=SENSOR, x=TIMES), "value": pa.array(range(6))})
    return tmp_path


def test_signals_open(root: Path) -> None:
    episode = LocalDataset(root)[0]
    q = episode["q"]
    assert (q.timestamps.tolist(), q.clocks) == (TIMES, ("sensor",))
    assert q.clock("sensor").tolist() == SENSOR
    assert (q.start_ts, q.last_ts, q.shape) == (TIMES[0], TIMES[-1], (2,))
    assert q.time[1015][0].tolist() == [1.0, 0.5]
    assert q.on("sensor").time[5015][1] == 5010
    assert episode["only"].timestamps.tolist() == SENSOR  # the first timeline if none is `recorded`
    assert episode["only"].clocks == ("x",)
    assert validate(root).ok


@pytest.mark.needs("av")
def test_video_opens(root: Path) -> None:
    folder = episode_path(root, 0)
    frames = np.stack([np.full((16, 16, 3), 40 * n, np.uint8) for n in range(6)])
    write_video(folder, "cam", frames, TIMES)
    write(folder / "cam.frames.parquet", timelines(recorded=TIMES, sensor=SENSOR))
    camera = DiskEpisode(folder)["cam"]
    assert isinstance(camera, VideoSignal)
    assert (camera.timestamps.tolist(), camera.clocks) == (TIMES, ("sensor",))
    assert camera.clock("sensor").tolist() == SENSOR
    assert (camera.start_ts, camera.last_ts) == (TIMES[0], TIMES[-1])
    assert abs(int(camera.time[1025][0].mean()) - 80) < 3
    assert validate(folder, level="full").ok


def test_our_own_time_column_takes_precedence(tmp_path: Path) -> None:
    own = {"timestamp": pa.array(TIMES), "value": pa.array(range(6))}
    write(tmp_path / "a.parquet", {**timelines(recorded=SENSOR), **own})
    signal = SimpleSignal(tmp_path / "a.parquet")
    assert (signal.timestamps.tolist(), signal.clocks) == (TIMES, ())


def test_timeline_that_does_not_increase_raises(root: Path) -> None:
    path = episode_path(root, 0) / "still.parquet"
    write(path, {**timelines(recorded=[1, 1], sensor=[1, 2]), "value": pa.array([1, 2])})
    with pytest.raises(CorruptError, match=r"timestamp 1 in row 1"):
        SimpleSignal(path).timestamps  # noqa: B018 - reading it is the test
