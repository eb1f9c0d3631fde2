"""Signals in Parquet files: lazy, small when pickled, and readable from other programs' files."""

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from relive import errors
from relive.episodes.read.simple_signal import SimpleSignal
from relive.episodes.write.simple_writer import SimpleSignalWriter
from relive.store.signal.meta import SignalMeta
from relive.store.signal.parquet_writer import ColumnsWriter
from tests.processes import open_files


def record(path: Path, count: int = 100, **more: object) -> SimpleSignal:
    with SimpleSignalWriter(path, **more) as writer:  # type: ignore[arg-type]
        for row in range(count):
            writer.append(np.arange(3) + row, row * 10)
    return SimpleSignal(path)


def test_recorded_values_are_read(tmp_path: Path) -> None:
    signal = record(tmp_path / "arm.parquet", attrs={"unit": "rad"})
    assert (signal.name, signal.kind, signal.shape, signal.attrs) == (
        "arm",
        "vector",
        (3,),
        {"unit": "rad"},
    )
    assert signal.path == tmp_path / "arm.parquet"
    value, ts = signal.time[555]
    assert (value.tolist(), ts) == ([55, 56, 57], 550)
    assert signal.values().tolist() == [[row, row + 1, row + 2] for row in range(100)]


def test_nothing_is_read_on_open(tmp_path: Path) -> None:
    path = tmp_path / "later.parquet"
    signal = SimpleSignal(path)
    with pytest.raises(errors.NotFoundError, match=r"later\.parquet"):
        len(signal)
    record(path)
    assert len(signal) == 100


def test_length_and_times_come_from_the_footer(tmp_path: Path) -> None:
    path = tmp_path / "arm.parquet"
    record(path)
    data = bytearray(path.read_bytes())
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    data[4:footer] = bytes(footer - 4)
    path.write_bytes(data)
    signal = SimpleSignal(path)
    assert (len(signal), signal.start_ts, signal.last_ts) == (100, 0, 990)
    assert (signal.dtype, signal.shape) == (np.dtype(np.int64), (3,))
    assert len(signal[10:20]) == 10
    for read in (
        lambda: signal.timestamps,
        signal.values,
        lambda: signal[0],
        lambda: signal.time[5],
    ):
        with pytest.raises(errors.CorruptError, match=r"arm\.parquet"):
            read()


READ = """
import sys
from relive.episodes import SimpleSignal
signal = SimpleSignal(sys.argv[1])
signal.time[15], signal.values(), signal.last_ts
print([name for name in ("pandas", "pyarrow.compute") if name in sys.modules])
"""


def test_reading_does_not_import_pandas_or_compute(tmp_path: Path) -> None:
    record(tmp_path / "arm.parquet")
    command = [sys.executable, "-c", READ, str(tmp_path / "arm.parquet")]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("[]\n", "")


def test_relative_path_is_resolved_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "arm.parquet")
    monkeypatch.chdir(tmp_path)
    signal = SimpleSignal("arm.parquet")
    monkeypatch.chdir("/")
    assert len(signal) == 100
    for wrong, error in ((3, TypeError), ("", ValueError), ("a\0", ValueError)):
        with pytest.raises(error):
            SimpleSignal(wrong)  # type: ignore[arg-type]


def test_signal_pickles_as_its_path(tmp_path: Path) -> None:
    signal = record(tmp_path / "arm.parquet")
    signal.values()
    for view in (signal, signal[3:90], signal.time[100:500]):
        data = pickle.dumps(view)
        assert len(data) < 600
        again = pickle.loads(data)  # noqa: S301 - our own data
        assert again.values().tolist() == view.values().tolist()
    assert pickle.loads(pickle.dumps(SimpleSignal("/x/y.parquet", name="z"))).name == "z"  # noqa: S301


def test_no_file_stays_open(tmp_path: Path) -> None:
    signals = [record(tmp_path / f"{number}.parquet", 3) for number in range(5)]
    for signal in signals:
        signal.values()
        assert signal.start_ts == 0
    assert open_files(tmp_path) == 0


def test_file_may_be_deleted_after_it_was_read(tmp_path: Path) -> None:
    signal = record(tmp_path / "arm.parquet")
    assert len(signal.values()) == len(signal.timestamps)
    (tmp_path / "arm.parquet").unlink()
    assert signal.time[15][1] == 10
    assert signal[3:5].values().tolist() == [[3, 4, 5], [4, 5, 6]]


def test_name_comes_from_the_argument_metadata_or_file(tmp_path: Path) -> None:
    path = tmp_path / "%2Farm%2Fstate.parquet"
    pq.write_table(pa.table({"timestamp": [1], "value": [0.5]}), path)
    assert SimpleSignal(path).name == "/arm/state"
    assert SimpleSignal(path, name="x").name == "x"
    meta = SignalMeta("stored", "scalar", "int8")
    with ColumnsWriter(tmp_path / "b.parquet", meta) as writer:
        writer.write(np.array([1]), np.array([1], np.int8))
    assert SimpleSignal(tmp_path / "b.parquet").name == "stored"


def test_large_records_are_views_of_the_buffer_read(tmp_path: Path) -> None:
    images = np.random.default_rng(1).integers(0, 5000, (4, 100, 120)).astype(np.uint16)
    meta = SignalMeta("depth", "vector", "uint16", (100, 120))
    with ColumnsWriter(tmp_path / "depth.parquet", meta) as writer:
        writer.write(np.arange(4), images)
    signal = SimpleSignal(tmp_path / "depth.parquet")
    assert np.array_equal(signal[2][0], images[2])
    assert not signal[2][0].flags.writeable
    assert np.array_equal(signal.values(), images)
    assert np.array_equal(signal.time[[3, 0, 3]].values(), images[[3, 0, 3]])
    assert [value.sum() for value, _ in reversed(signal)] == [image.sum() for image in images[::-1]]


def test_file_in_the_seed_format(tmp_path: Path) -> None:
    start = 1_700_000_000_000_000_000
    times = [start + 5_000_000 * row for row in range(25)]
    values = [np.arange(row, row + 3.5, 0.5, dtype=np.float32) for row in range(25)]
    path = tmp_path / "state.parquet"
    schema = pa.schema([("timestamp", pa.int64()), ("value", pa.list_(pa.float32()))])
    with pq.ParquetWriter(path, schema) as writer:
        for rows in (slice(10), slice(10, 20), slice(20, 25)):
            columns = {"timestamp": times[rows], "value": values[rows]}
            writer.write_table(pa.table(columns, schema=schema))
    signal = SimpleSignal(path)
    assert (signal.name, signal.kind, signal.dtype, signal.shape) == (
        "state",
        "vector",
        np.dtype(np.float32),
        (7,),
    )
    assert (signal.attrs, signal.clocks, len(signal)) == ({}, (), 25)
    assert (signal.start_ts, signal.last_ts) == (start, start + 120_000_000)
    value, ts = signal.time[start + 12_000_000]
    assert (value.tolist(), ts) == (values[2].tolist(), start + 10_000_000)
    assert signal.time[start::40_000_000].values()[:, 0].tolist() == [0, 8, 16, 24]
    empty = tmp_path / "empty.parquet"
    pq.write_table(pa.table({"timestamp": pa.array([], pa.int64()), "value": pa.nulls(0)}), empty)
    assert len(SimpleSignal(empty)) == 0
