"""Recording scalars, vectors and text: accepted values, errors and files."""

import math
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from relive.episodes import SimpleSignalWriter, now_ns
from relive.episodes.read.simple_signal import SimpleSignal
from relive.errors import InvalidError, InvalidTypeError

MAX = 2**63 - 1
NOTHING: list[str] = []


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def written(path: Path, *values: Any) -> SimpleSignal:
    with SimpleSignalWriter(path) as writer:
        for ts, value in enumerate(values):
            writer.append(value, ts)
    return SimpleSignal(path)


@pytest.mark.parametrize(
    "value",
    [
        np.arange(7, dtype=np.float32),
        np.arange(6, dtype=">f8").reshape(2, 3),
        np.zeros((2, 3, 4, 5), dtype=np.int8),
        np.array([True, False]),
        np.array([math.nan, -math.inf, -0.0, 5e-324]),
        np.array([1.5, math.nan], dtype=np.float16),
        np.array([2**64 - 1], dtype=np.uint64),
        np.zeros((3, 0), dtype=np.float32),
        np.zeros((0,), dtype=np.int64),
        np.arange(24, dtype=np.uint16).reshape(4, 6)[::2, ::-3],
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.zeros((48, 64, 3), dtype=np.uint8),
        np.arange(48 * 64, dtype=np.uint16).reshape(48, 64),
        np.float32(1.5),
        np.int16(-3),
        np.bool_(True),  # noqa: FBT003 - the value is the subject
        np.array(2.5),
    ],
)
def test_numbers_round_trip_exactly(value: Any, tmp_path: Path) -> None:
    signal = written(tmp_path / "a.parquet", value, value)
    expected = np.asarray(value)
    assert signal.dtype == expected.dtype.newbyteorder("=")
    assert signal.shape == expected.shape
    for found, _ in signal:
        got = np.asarray(found)
        assert got.shape == expected.shape
        assert got.tobytes() == expected.astype(signal.dtype).tobytes()


@pytest.mark.parametrize(
    ("value", "dtype", "shape"),
    [
        (1, "int64", ()),
        (1.5, "float64", ()),
        (True, "bool", ()),
        ([1, 2], "int64", (2,)),
        ((1.0, 2.0), "float64", (2,)),
        ([[True], [False]], "bool", (2, 1)),
        ([], "float64", (0,)),
        (pa.array([1, 2], pa.int16()), "int16", (2,)),
        (pa.chunked_array([[1.0], [2.0]]), "float64", (2,)),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.int8(), 2)), "int8", (2, 2)),
        (pa.array([True, False]), "bool", (2,)),
        (memoryview(b"abc"), "uint8", (3,)),
        (bytearray(b"abc"), "uint8", (3,)),
    ],
)
def test_values_become_arrays(
    value: Any, dtype: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    signal = written(tmp_path / "a.parquet", value)
    assert (signal.dtype, signal.shape) == (np.dtype(dtype), shape)
    as_list = value.to_pylist() if isinstance(value, pa.Array | pa.ChunkedArray) else value
    assert np.array_equal(signal[0][0], np.asarray(as_list))


def test_text_round_trip(tmp_path: Path) -> None:
    texts = ["", "a", "é☃😀", "x" * 5000, "a\0b", str(np.str_("numpy"))]
    signal = written(tmp_path / "a.parquet", *texts[:-1], np.str_("numpy"))
    assert signal.kind == "text"
    assert [value for value, _ in signal] == texts


@pytest.mark.parametrize(
    "value",
    [
        1j,
        np.zeros(2, np.complex64),
        None,
        object(),
        {"a": 1},
        {1, 2},
        b"abc",
        np.datetime64("2020-01-01"),
        np.array(["2020"], "datetime64[ns]"),
        np.zeros(2, object),
        np.array(["a", "b"]),
        ["a", "b"],
        np.zeros(2, [("x", "f4")]),
        np.zeros(2, np.longdouble),
        [2**70],
    ],
)
def test_unsupported_values_raise(value: Any, tmp_path: Path) -> None:
    with SimpleSignalWriter(tmp_path / "joint.parquet") as writer:
        with pytest.raises(InvalidTypeError, match="joint"):
            writer.append(value, 1)
        assert names_in(tmp_path) == NOTHING  # not even a tape
        writer.append(1.0, 1)
        with pytest.raises(InvalidTypeError, match="joint"):
            writer.append(value, 2)
    assert len(SimpleSignal(tmp_path / "joint.parquet")) == 1


@pytest.mark.parametrize(
    "value", [2**63, -(2**63) - 1, [[1], [2, 3]], "\ud800", pa.array([1, None])]
)
def test_values_that_do_not_fit_raise(value: Any, tmp_path: Path) -> None:
    with SimpleSignalWriter(tmp_path / "joint.parquet") as writer:
        with pytest.raises(InvalidError, match="joint"):
            writer.append(value, 1)
        writer.abort()


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (np.zeros(3), np.zeros(4), r"float64 of shape \(3,\).* float64 of shape \(4,\)"),
        (np.zeros(3), np.zeros(3, np.float32), r"float64 .* float32"),
        (np.zeros(3), 1.0, r"float64 of shape \(3,\).* float64$"),
        (1, 1.0, "int64.* float64"),
        (1, True, "int64.* bool"),
        (1.0, "a", "float64.* str"),
        ("a", np.zeros(1), "str.* float64"),
        (np.int32(1), 1, "int32.* int64"),
    ],
)
def test_later_values_must_have_the_first_type(
    first: Any, second: Any, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "joint.parquet"
    with SimpleSignalWriter(path) as writer:
        writer.append(first, 1)
        with pytest.raises(InvalidError, match=f"joint.*{message}"):
            writer.append(second, 2)
        writer.append(first, 3)
    assert SimpleSignal(path).timestamps.tolist() == [1, 3]


@pytest.mark.parametrize("ts", [5, 4, -(2**63)])
@pytest.mark.parametrize("value", [np.zeros(3), 1.0])
def test_times_must_increase(ts: int, value: Any, tmp_path: Path) -> None:
    with SimpleSignalWriter(tmp_path / "joint.parquet") as writer:
        writer.append(value, 5)
        with pytest.raises(InvalidError, match="joint"):
            writer.append(value, ts)
        writer.append(value, 6)
        assert len(writer) == 2


@pytest.mark.parametrize("ts", [1.0, True, np.bool_(1), np.float64(2), "1", np.arange(3), None])
@pytest.mark.parametrize("value", [np.zeros(3), 1.0])
def test_invalid_times_raise(ts: Any, value: Any, tmp_path: Path) -> None:
    with SimpleSignalWriter(tmp_path / "joint.parquet") as writer:
        for _ in range(2):
            if ts is not None:
                with pytest.raises(InvalidTypeError, match="joint"):
                    writer.append(value, ts)
            writer.append(value)


@pytest.mark.parametrize("ts", [2**63, -(2**63) - 1, 10**30, np.uint64(2**63)])
@pytest.mark.parametrize("value", [np.zeros(3), 1.0])
def test_times_beyond_64_bits_raise(ts: Any, value: Any, tmp_path: Path) -> None:
    path = tmp_path / "joint.parquet"
    with SimpleSignalWriter(path) as writer:
        for first in (-(2**63), MAX):
            with pytest.raises(InvalidError, match="64 bits"):
                writer.append(value, ts)
            writer.append(value, first)
    assert SimpleSignal(path).timestamps.tolist() == [-(2**63), MAX]


def test_numpy_times_are_accepted(tmp_path: Path) -> None:
    with SimpleSignalWriter(tmp_path / "a.parquet") as writer:
        writer.append(np.zeros(3), np.int32(5))
        writer.append(np.zeros(3), np.uint64(6))
    assert SimpleSignal(tmp_path / "a.parquet").timestamps.tolist() == [5, 6]


def test_default_time_is_now(tmp_path: Path) -> None:
    before = now_ns()
    with SimpleSignalWriter(tmp_path / "a.parquet") as writer:
        for _ in range(100):
            writer.append(np.zeros(3))
    stamps = SimpleSignal(tmp_path / "a.parquet").timestamps
    assert before < stamps[0]
    assert stamps[-1] < now_ns()


def test_buffer_may_be_reused(tmp_path: Path) -> None:
    buffer = np.zeros(5000, np.int64)
    with SimpleSignalWriter(tmp_path / "a.parquet") as writer:
        for number in range(20):
            buffer[:] = number
            writer.append(buffer, number)
        buffer[:] = -1
    assert [int(value[-1]) for value, _ in SimpleSignal(tmp_path / "a.parquet")] == [*range(20)]


def test_clocks_are_columns(tmp_path: Path) -> None:
    path = tmp_path / "joint.parquet"
    with SimpleSignalWriter(path) as writer:
        writer.append(np.zeros(2), 1, {"sensor": 100, "bus": np.int64(7)})
        writer.append(np.zeros(2), 2, {"bus": 5, "sensor": -(2**63)})
        for wrong in (None, {}, {"sensor": 1}, {"sensor": 1, "bus": 1, "more": 1}):
            with pytest.raises(InvalidError, match=r"joint.*'sensor', 'bus'"):
                writer.append(np.zeros(2), 3, wrong)
        for time in (1.0, True, "1", None):
            with pytest.raises(InvalidTypeError, match=r"joint.*'bus'"):
                writer.append(np.zeros(2), 3, {"sensor": 1, "bus": time})  # type: ignore[dict-item]
        with pytest.raises(InvalidError, match="64 bits"):
            writer.append(np.zeros(2), 3, {"sensor": 1, "bus": 2**63})
    signal = SimpleSignal(path)
    assert signal.clocks == ("sensor", "bus")
    assert signal.clock("sensor").tolist() == [100, -(2**63)]
    assert signal.clock("bus").tolist() == [7, 5]


def test_new_clocks_after_the_first_record_raise(tmp_path: Path) -> None:
    with SimpleSignalWriter(tmp_path / "joint.parquet") as writer:
        for wrong in ({"": 1}, {"a\0": 1}, {"x" * 201: 1}):
            with pytest.raises(InvalidError, match="joint"):
                writer.append(1.0, 1, wrong)
        for odd in ({3: 1}, [("a", 1)]):
            with pytest.raises(InvalidTypeError, match="joint"):
                writer.append(1.0, 1, odd)  # type: ignore[arg-type]
        writer.append(1.0, 1)
        with pytest.raises(InvalidError, match="none"):
            writer.append(1.0, 2, {"sensor": 1})


def test_attributes(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    with SimpleSignalWriter(path, attrs={"frame": "base"}) as writer:
        writer.describe(names=["x", "y"], unit="m")
        writer.append(np.zeros(2), 1)
        writer.describe(unit="mm", calibration={"k": [1.0, 2.0]})
        for wrong in (np.zeros(3), b"a", {1: 2}, float("nan")):
            with pytest.raises(InvalidError, match="k of signal 'a'"):
                writer.describe(k=wrong)
        for odd in ({"names": "xy"}, {"names": [1]}, {"unit": 3}):
            with pytest.raises(InvalidTypeError, match="signal 'a'"):
                writer.describe(**odd)
    assert dict(SimpleSignal(path).attrs) == {
        "frame": "base",
        "names": ["x", "y"],
        "unit": "mm",
        "calibration": {"k": [1.0, 2.0]},
    }


def test_name_comes_from_the_file_or_the_argument(tmp_path: Path) -> None:
    with SimpleSignalWriter(tmp_path / "%2Farm%2Fq.parquet") as writer:
        assert writer.name == "/arm/q"
    assert SimpleSignal(tmp_path / "%2Farm%2Fq.parquet").name == "/arm/q"
    with SimpleSignalWriter(tmp_path / "b.parquet", name="joint") as writer:
        writer.append(1.0, 1)
    assert SimpleSignal(tmp_path / "b.parquet").name == "joint"


def test_signal_without_records_is_a_file_without_rows(tmp_path: Path) -> None:
    signal = written(tmp_path / "a.parquet")
    assert len(signal) == 0
    assert names_in(tmp_path) == ["a.parquet"]


def test_threads_may_append(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    with SimpleSignalWriter(path) as writer:

        def go(mark: int) -> None:
            for number in range(2000):
                writer.append(np.array([mark, number]))

        threads = [threading.Thread(target=go, args=(mark,)) for mark in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    values = SimpleSignal(path).values()
    assert len(values) == 8000
    for mark in range(4):
        assert values[values[:, 0] == mark, 1].tolist() == [*range(2000)]


def test_statistics(tmp_path: Path) -> None:
    with SimpleSignalWriter(tmp_path / "a.parquet") as writer:
        assert writer.stats.rows == 0
        assert writer.stats.rate_hz is None
        for number in range(11):
            writer.append(np.zeros(3), number * 10**8)
        stats = pickle.loads(pickle.dumps(writer.stats))  # noqa: S301 - our own data
        assert stats.rows == 11
        assert stats.rate_hz == pytest.approx(10.0)
        assert "\n" not in repr(stats)
        assert repr(writer) == f"SimpleSignalWriter({tmp_path / 'a.parquet'}: 11 records)"
    assert os.listdir(tmp_path) == ["a.parquet"]  # noqa: PTH208 - names
