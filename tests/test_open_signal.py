"""`relive.open` of single signals."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

import relive
from relive.episodes import (
    SimpleSignal,
    SimpleSignalWriter,
    VideoSignal,
    VideoSignalWriter,
    validate,
)
from relive.errors import CorruptError, NotFoundError, UnsupportedError
from relive.load import Concat
from tests.episodes.by_hand import write_signal


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    path = tmp_path / "q.parquet"
    with SimpleSignalWriter(path) as writer:
        for row in range(3):
            writer.append([row, 1.5], 10 * row)
    return path


@pytest.fixture
def camera(tmp_path: Path) -> Path:
    path = tmp_path / "cam.wrist.mp4"
    with VideoSignalWriter(path, profile="lossless") as writer:
        for row in range(3):
            writer.append(np.full((16, 16, 3), row, np.uint8), 10 * row)
    return path


def test_numbers(numbers: Path) -> None:
    signal = relive.open(numbers)
    assert isinstance(signal, SimpleSignal)
    assert signal[2][0].tolist() == [2.0, 1.5]
    renamed = numbers.rename(numbers.with_suffix(".bin"))
    assert len(relive.open(renamed)) == 3  # recognized by its first bytes


@pytest.mark.needs("av")
def test_movie_or_its_index(camera: Path) -> None:
    index = camera.with_suffix(".frames.parquet")
    for path in (camera, index):
        signal = relive.open(path)
        assert isinstance(signal, VideoSignal)
        assert (signal.name, signal.path, signal.index_path) == ("cam.wrist", camera, index)
        assert signal[2][0].max() == 2
    assert VideoSignal(camera).index_path == index


def test_signals_of_other_programs(tmp_path: Path) -> None:
    write_signal(tmp_path, "x.frames", [(1.0, 5)])  # named like the index of a movie
    assert relive.open(tmp_path / "x.frames.parquet")[0] == (1.0, 5)


def test_pattern_joins_several_signals(numbers: Path) -> None:
    numbers.with_name("q2.parquet").write_bytes(numbers.read_bytes())
    both = relive.open(numbers.parent / "*.parquet")
    assert isinstance(both, Concat)
    assert len(both) == 6


def test_file_that_is_not_a_signal_raises(tmp_path: Path, numbers: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "t.parquet")
    with pytest.raises(UnsupportedError, match="is not a signal file: it has no column") as caught:
        relive.open(tmp_path / "t.parquet")
    assert "relive convert" in str(caught.value.hint)
    pq.write_table(pa.table({"value": [1]}), tmp_path / "t.parquet")
    with pytest.raises(CorruptError, match="columns named `timestamp`, expected one"):
        relive.open(tmp_path / "t.parquet")
    numbers.write_bytes(numbers.read_bytes()[:-9])
    with pytest.raises(CorruptError, match=r"q\.parquet"):
        relive.open(numbers)
    (tmp_path / "film.mp4").write_bytes(b"\0\0\0\x20ftypisom")
    with pytest.raises(UnsupportedError, match=r"its index .*film\.frames\.parquet"):
        relive.open(tmp_path / "film.mp4")


@pytest.mark.needs("av")
def test_validate_a_single_signal(numbers: Path, camera: Path) -> None:
    assert validate(numbers).ok
    report = validate(camera, level="full")
    assert (report.ok, report.checked) == (True, {"episodes": 0, "signals": 1})
    index = camera.with_suffix(".frames.parquet")
    data = bytearray(camera.read_bytes())
    data[-200] ^= 1
    camera.write_bytes(data)
    assert not validate(index, level="full").ok
    numbers.write_bytes(numbers.read_bytes()[:-9])
    assert [problem.kind for problem in validate(numbers).problems] == ["corrupt"]
    with pytest.raises(NotFoundError):
        validate(numbers.with_name("none.parquet"))
