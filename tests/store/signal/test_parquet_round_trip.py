"""Parquet files of signals round-trip, and other programs can read them."""

import os
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pytest
from pyarrow import parquet as pq

from relive import errors
from relive.store.signal.meta import DTYPES, SignalMeta
from relive.store.signal.parquet_reader import ColumnsFile, RowGroupCache
from relive.store.signal.parquet_writer import ColumnsWriter

TIMES = np.array([-5, 0, 7, 2**62], dtype=np.int64)


@pytest.fixture(autouse=True)
def _no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable fsync: many files are written, and none must survive a power cut."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def meta_of(values: npt.NDArray[Any], **more: Any) -> SignalMeta:
    """Return the metadata of a numeric signal."""
    kind = "vector" if values.ndim > 1 else "scalar"
    return SignalMeta("a", kind, values.dtype.name, values.shape[1:], **more)


def write(path: Path, values: Any, meta: SignalMeta, times: npt.NDArray[np.int64]) -> ColumnsFile:
    with ColumnsWriter(path, meta) as writer:
        writer.write(times, values)
    return ColumnsFile(path)


def bits(dtype: str, count: int) -> npt.NDArray[Any]:
    """Return numbers of every bit pattern, starting with special values."""
    if dtype == "bool":
        return np.asarray(np.arange(count) % 3 == 0)
    kind = np.dtype(dtype)
    raw = np.random.default_rng(7).bytes(count * kind.itemsize)
    values = np.frombuffer(raw, dtype=kind).copy()
    if kind.kind == "f":
        unsigned = values.view(f"u{kind.itemsize}")
        top = 1 << (kind.itemsize * 8 - 1)
        infinity = int(np.array(np.inf, kind).view(unsigned.dtype))
        # -0.0, both infinities, quiet and signalling NaNs with payloads, the smallest number.
        special = [top, infinity, infinity | top, infinity | 1, infinity | top | 3, top - 1, 1]
        unsigned[: len(special)] = special
    else:
        values[:2] = np.iinfo(kind).min, np.iinfo(kind).max
    return values


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 1, 3), (2048, 3), (0,), (3, 0), (0, 2)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_round_trip_exactly(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    values = bits(dtype, 4 * max(8, int(np.prod(shape))))
    values = values[: 4 * int(np.prod(shape))].reshape(4, *shape)
    file = write(tmp_path / "a.parquet", values, meta_of(values), TIMES)
    assert (file.meta.dtype, file.meta.shape, file.rows) == (dtype, shape, 4)
    assert file.timestamps().tolist() == TIMES.tolist()
    for rows in (range(4), range(3, -1, -2), np.array([2, 2, 0]), range(0), np.arange(0)):
        read = file.values(rows)
        picked = values[list(rows)]
        assert (read.dtype, read.shape) == (picked.dtype, picked.shape)
        assert read.tobytes() == picked.tobytes()
    assert np.asarray(file.value(3)).tobytes() == values[3].tobytes()
    out = np.empty((2, *shape), dtype)
    assert file.values(np.array([3, 1]), out) is out
    assert out.tobytes() == values[[3, 1]].tobytes()


def test_text_round_trip(tmp_path: Path) -> None:
    texts = ["", "ä☃", "a\0b", "x" * 100_000]
    file = write(tmp_path / "a.parquet", texts, SignalMeta("a", "text", "str"), TIMES)
    assert file.values(range(4)).tolist() == texts
    assert file.value(1) == "ä☃"
    assert type(file.value(1)) is str
    for wrong, error in ((["ok", 3], TypeError), (["\ud800"], ValueError), ([b"x"], TypeError)):
        writer = ColumnsWriter(tmp_path / "b.parquet", SignalMeta("b", "text", "str"))
        with pytest.raises(error):
            writer.write(np.arange(len(wrong)), wrong)
        writer.abort()


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2000,)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_other_programs_read_the_file(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    values = (np.arange(4 * int(np.prod(shape))) % 100).astype(dtype).reshape(4, *shape)
    path = tmp_path / "a.parquet"
    meta = meta_of(values, clocks=("sensor",))
    with ColumnsWriter(path, meta) as writer:
        writer.write(TIMES, values, {"sensor": TIMES + 1})
    flat = values.reshape(4, -1) if shape else values
    query = f"""select timestamp, value, "clock.sensor" from '{path}' where timestamp = 7"""  # noqa: S608
    (row,) = duckdb.execute(query).fetchall()
    assert (row[0], row[2]) == (7, 8)
    assert np.array_equal(row[1], flat[2])
    table = pq.read_table(path)
    assert table.column_names == ["timestamp", "value", "clock.sensor"]
    assert not any(field.nullable for field in table.schema)
    assert table["value"].to_pylist() == flat.tolist()


def test_pandas_reads_it(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    write(tmp_path / "a.parquet", values, meta_of(values), TIMES)
    frame = pandas.read_parquet(tmp_path / "a.parquet")
    assert frame["timestamp"].tolist() == TIMES.tolist()
    assert frame["value"][2].tolist() == [6, 7, 8]


def test_footer_contains_length_and_first_and_last_time(tmp_path: Path) -> None:
    values = np.arange(300_000, dtype=np.float64)
    write(tmp_path / "a.parquet", values, meta_of(values), np.arange(300_000) * 3 - 9)
    data = (tmp_path / "a.parquet").read_bytes()
    # All pages are damaged, but none is read.
    (tmp_path / "b.parquet").write_bytes(data[:4] + bytes(2_000_000) + data[2_000_004:])
    file = ColumnsFile(tmp_path / "b.parquet")
    assert (file.rows, file.start_ts, file.last_ts) == (300_000, -9, 899_988)
    assert file.meta.kind == "scalar"
    with pytest.raises(errors.CorruptError, match=r"b\.parquet"):
        file.timestamps()
    with pytest.raises(errors.CorruptError, match=r"b\.parquet"):
        file.value(0)


def test_attributes_names_and_clocks_round_trip(tmp_path: Path) -> None:
    attrs = {"names": ["a", "ß"], "intrinsics": [[1.5, 0], [0, 2]], "nothing": None}
    meta = SignalMeta("/cam☃/pose", "scalar", "int8", (), attrs, ("sensor", "gps.time"))
    with ColumnsWriter(tmp_path / "a.parquet", meta) as writer:
        clocks = {"sensor": TIMES[::-1], "gps.time": TIMES}
        writer.write(TIMES, np.zeros(4, np.int8), clocks)
    file = ColumnsFile(tmp_path / "a.parquet")
    assert file.meta == meta
    assert file.clock("sensor").tolist() == TIMES[::-1].tolist()
    assert file.clock("gps.time").tolist() == TIMES.tolist()
    with pytest.raises(errors.UnknownNameError, match="other"):
        file.clock("other")


def test_row_groups_are_bounded(tmp_path: Path) -> None:
    small = np.zeros((150_000, 2), np.float32)
    wide = np.zeros((5000, 1024), np.float32)
    images = np.zeros((5, 480, 640), np.uint16)
    huge = np.zeros((2, 9 << 20), np.uint8)
    for name, values, groups in (
        ("small", small, [65536, 65536, 18928]),
        ("wide", wide, [2048, 2048, 904]),
        ("images", images, [1] * 5),
        ("huge", huge, [1] * 2),
    ):
        path = tmp_path / f"{name}.parquet"
        with ColumnsWriter(path, meta_of(values)) as writer:
            for start in range(0, len(values), 1001):
                part = values[start : start + 1001]
                writer.write(np.arange(start, start + len(part)), part)
        metadata = pq.read_metadata(path)
        assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == groups, (
            name
        )
        assert np.array_equal(ColumnsFile(path).values(range(len(values))), values)


def test_row_groups_of_a_long_file_grow(tmp_path: Path) -> None:
    values = np.zeros((1, 300_000), np.uint8)
    writer = ColumnsWriter(tmp_path / "a.parquet", meta_of(values))
    assert writer._group_rows(300_000) == 1
    writer._flushed_bytes = 4 << 30
    assert writer._group_rows(300_000) == 6
    writer._flushed_bytes = 4 << 40
    assert writer._group_rows(300_000) == (8 << 20) // 300_000
    writer.abort()


def test_row_groups_of_text_are_bounded_by_bytes(tmp_path: Path) -> None:
    texts = ["x" * 100_000] * 200
    path = tmp_path / "a.parquet"
    write(path, texts, SignalMeta("a", "text", "str"), np.arange(200))
    metadata = pq.read_metadata(path)
    assert metadata.num_row_groups == 2
    assert ColumnsFile(path).values(range(200)).tolist() == texts


def test_large_records_are_read_by_row_group_with_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = np.random.default_rng(0).integers(0, 9, (9, 480, 640)).astype(np.uint16)
    file = write(tmp_path / "a.parquet", images, meta_of(images), np.arange(9))
    cache = RowGroupCache(3 * images[0].nbytes)
    monkeypatch.setattr("relive.store.signal.parquet_reader.GROUPS", cache)
    assert file.whole() is None
    assert np.array_equal(file.value(3), images[3])
    assert cache.held_bytes == images[0].nbytes
    order = np.array([8, 0, 8, 3, 5, 1])
    assert np.array_equal(file.values(order), images[order])
    assert cache.held_bytes == 3 * images[0].nbytes
    out = np.empty((4, 480, 640), np.uint16)
    assert np.array_equal(file.values(range(8, 0, -2), out), images[8:0:-2])
    view = file.values(range(5, 6))
    assert not view.flags.writeable
    assert not file.value(5).flags.writeable
    again = ColumnsFile(tmp_path / "a.parquet")
    (tmp_path / "a.parquet").rename(tmp_path / "b.parquet")
    with pytest.raises(FileNotFoundError):
        again.value(0)


def test_long_files_of_small_records_are_read_by_row_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relive.store.signal.parquet_reader._WHOLE_BYTES", 1 << 20)
    values = np.arange(300_000, dtype=np.float64)
    file = write(tmp_path / "a.parquet", values, meta_of(values), np.arange(300_000))
    assert file.whole() is None
    for rows in (range(299_990), range(10, 300_000, 7), range(299_999, 5, -50_000)):
        assert np.array_equal(file.values(rows), values[list(rows)])
    order = np.random.default_rng(1).integers(0, 300_000, 1000)
    assert np.array_equal(file.values(order), values[order])
    assert file.value(299_999) == 299_999
    texts = ["x" * 10] * 200_000
    file = write(tmp_path / "b.parquet", texts, SignalMeta("b", "text", "str"), np.arange(200_000))
    assert file.whole() is None
    assert file.values(np.array([199_999, 3])).tolist() == texts[:2]
