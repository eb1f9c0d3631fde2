"""Large records are written in the background, and the final file is always the same."""

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from relive.episodes import SimpleSignalWriter, recover
from relive.episodes.read.simple_signal import SimpleSignal
from relive.episodes.write.background_columns_writer import LARGE_BYTES
from relive.errors import StorageError
from relive.store.signal.parquet_writer import ColumnsWriter

SHAPE = (200, 200)
PART = ".depth.parquet.part"


def record(number: int) -> npt.NDArray[np.uint16]:
    return np.full(SHAPE, number, np.uint16)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def check(path: Path, rows: int) -> SimpleSignal:
    signal = SimpleSignal(path)
    assert signal.timestamps.tolist() == list(range(rows))
    assert signal.clock("sensor").tolist() == [-number for number in range(rows)]
    for number, (value, _) in enumerate(signal):
        assert (value == number).all()
    assert names_in(path.parent) == [path.name]
    return signal


def append(writer: SimpleSignalWriter, number: int) -> None:
    writer.append(record(number), number, {"sensor": -number})


def wait_for(path: Path) -> None:
    until = time.monotonic() + 30
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.005)
    assert path.exists()


def test_file_grows_while_recording(tmp_path: Path) -> None:
    assert record(0).nbytes > LARGE_BYTES
    with SimpleSignalWriter(tmp_path / "depth.parquet") as writer:
        for number in range(6):
            append(writer, number)
        wait_for(tmp_path / PART)
    check(tmp_path / "depth.parquet", 6)


def test_slow_writer_is_not_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    write = ColumnsWriter.write

    def waiting(self: ColumnsWriter, *arguments: Any) -> None:
        gate.wait(60)
        write(self, *arguments)

    monkeypatch.setattr(ColumnsWriter, "write", waiting)
    with SimpleSignalWriter(tmp_path / "depth.parquet") as writer:
        for number in range(40):  # more than the queue holds
            append(writer, number)
        gate.set()
        for number in range(40, 45):
            append(writer, number)
    check(tmp_path / "depth.parquet", 45)


def test_failed_file_is_written_again_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = ColumnsWriter.write
    left = 3

    def failing(self: ColumnsWriter, *arguments: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise StorageError("a moment without room")
        write(self, *arguments)

    monkeypatch.setattr(ColumnsWriter, "write", failing)
    with SimpleSignalWriter(tmp_path / "depth.parquet") as writer:
        for number in range(8):
            append(writer, number)
    assert left < 0
    check(tmp_path / "depth.parquet", 8)


def test_later_attributes_are_in_the_file(tmp_path: Path) -> None:
    with SimpleSignalWriter(tmp_path / "depth.parquet") as writer:
        for number in range(4):
            append(writer, number)
        wait_for(tmp_path / PART)
        writer.describe(unit="mm")
        assert PART not in names_in(tmp_path)
        append(writer, 4)
    assert dict(check(tmp_path / "depth.parquet", 5).attrs) == {"unit": "mm"}


def test_leave_keeps_the_tape(tmp_path: Path) -> None:
    writer = SimpleSignalWriter(tmp_path / "depth.parquet")
    for number in range(4):
        append(writer, number)
    writer.leave()
    assert names_in(tmp_path) == [".depth.parquet.tape"]
    recover(tmp_path / "depth.parquet")
    check(tmp_path / "depth.parquet", 4)


def test_abort_leaves_nothing(tmp_path: Path) -> None:
    writer = SimpleSignalWriter(tmp_path / "depth.parquet")
    for number in range(4):
        append(writer, number)
    writer.abort()
    assert names_in(tmp_path) == []


def test_unclosed_writer_ends_its_thread(tmp_path: Path) -> None:
    writer = SimpleSignalWriter(tmp_path / "depth.parquet")
    append(writer, 0)
    (thread,) = (each for each in threading.enumerate() if each.name == "relive-write-depth")
    with pytest.warns(ResourceWarning, match="was not closed"):
        del writer
    assert not thread.is_alive()
    assert names_in(tmp_path) == [".depth.parquet.tape"]


def test_existing_file_is_replaced_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "depth.parquet"
    path.write_bytes(b"old")
    with SimpleSignalWriter(path, overwrite=True) as writer:
        for number in range(4):
            append(writer, number)
        assert path.read_bytes() == b"old"
    check(path, 4)
