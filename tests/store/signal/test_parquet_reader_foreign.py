"""Parquet files of other programs, read as signals."""

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from relive import errors
from relive.store.signal.parquet_reader import ColumnsFile


def file_of(path: Path, values: Any, times: Any = None, **options: Any) -> ColumnsFile:
    """Write a table as other programs do: two nullable columns and no metadata."""
    column = values if isinstance(values, (pa.Array, pa.ExtensionArray)) else pa.array(values)
    stamps = pa.array(range(len(column)), pa.int64()) if times is None else times
    pq.write_table(pa.table({"timestamp": stamps, "value": column}), path, **options)
    return ColumnsFile(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.parquet"


LISTS = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]


@pytest.mark.parametrize(
    ("column", "dtype", "shape"),
    [
        (pa.array(LISTS), "float64", (2,)),
        (pa.array(LISTS, pa.large_list(pa.float32())), "float32", (2,)),
        (pa.array(LISTS, pa.list_(pa.float64(), 2)), "float64", (2,)),
        (pa.array([LISTS, LISTS]), "float64", (3, 2)),
        (pa.array([LISTS, LISTS], pa.list_(pa.list_(pa.float16(), 2))), "float16", (3, 2)),
        (pa.array([[[]], [[]]], pa.list_(pa.list_(pa.int32()))), "int32", (1, 0)),
        (pa.array([1, 2, 3], pa.uint64()), "uint64", ()),
        (pa.array([True, False]), "bool", ()),
        (pa.array([[True], [False]]), "bool", (1,)),
        (pa.array(["a", "", "b"]), "str", ()),
        (pa.array(["a", "b"], pa.large_string()), "str", ()),
        (pa.array(["a", "b", "a"]).dictionary_encode(), "str", ()),
        (
            pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12, dtype="i2").reshape(2, 3, 2)),
            "int16",
            (3, 2),
        ),
        (pa.array([], pa.float64()), "float64", ()),
        (pa.array([], pa.list_(pa.float64())), "float64", (0,)),
        (pa.array([], pa.string()), "str", ()),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else None,
)
@pytest.mark.parametrize("group", [1, 100])
def test_values_of_many_types(path: Path, column: Any, dtype: str, shape: Any, group: int) -> None:
    file = file_of(path, column, row_group_size=group)
    assert (file.meta.dtype, file.meta.shape) == (dtype, shape)
    assert (file.meta.name, file.meta.attrs, file.meta.clocks) == ("", {}, ())
    values = file.values(range(file.rows))
    assert values.shape == (len(column), *shape)
    if isinstance(column, pa.FixedShapeTensorArray):
        assert np.array_equal(values, column.to_numpy_ndarray())
    else:
        assert values.tolist() == column.to_pylist()


@pytest.mark.parametrize(
    ("times", "wanted"),
    [
        (pa.array([1, 5], pa.timestamp("ns")), [1, 5]),
        (pa.array([1, 5], pa.timestamp("ns", "UTC")), [1, 5]),
        (pa.array([1, 5], pa.timestamp("us")), [1000, 5000]),
        (pa.array([1, 5], pa.timestamp("s")), [1_000_000_000, 5_000_000_000]),
        (pa.array([1, 5], pa.int32()), [1, 5]),
        (pa.array([1, 2**63 - 1], pa.uint64()), [1, 2**63 - 1]),
    ],
    ids=str,
)
@pytest.mark.parametrize("statistics", [True, False])
def test_times_of_many_types(path: Path, times: Any, wanted: list[int], statistics: bool) -> None:  # noqa: FBT001
    file = file_of(path, [1.0, 2.0], times, write_statistics=statistics)
    assert (file.start_ts, file.last_ts) == (wanted[0], wanted[1])
    assert file.timestamps().tolist() == wanted
    assert file.timestamps().dtype == np.int64


def test_other_columns_are_ignored(path: Path) -> None:
    table = pa.table(
        {
            "value.more": [9.0, 9.0],
            "note": ["a", "b"],
            "value": [[1, 2], [3, 4]],
            "clock.sensor": [5, 4],
            "nested": [{"value": 1}, {"value": 2}],
            "timestamp": [1, 2],
            "timestamp.recorded": [7, 8],
        }
    )
    pq.write_table(table, path)
    file = ColumnsFile(path)
    assert file.values(range(2)).tolist() == [[1, 2], [3, 4]]
    assert file.timestamps().tolist() == [1, 2]
    assert (file.start_ts, file.last_ts) == (1, 2)
    assert file.meta.clocks == ("sensor",)
    assert file.clock("sensor").tolist() == [5, 4]


@pytest.mark.parametrize(
    ("times", "row"), [([1, 2, 2], 2), ([3, 1, 2], 1), ([1, 2, -5], 2)], ids=str
)
def test_times_that_do_not_increase_are_named(path: Path, times: list[int], row: int) -> None:
    file = file_of(path, [1, 2, 3], pa.array(times), row_group_size=2)
    message = rf"`.*a\.parquet`: timestamp {times[row]} in row {row} is not after {times[row - 1]}"
    with pytest.raises(errors.CorruptError, match=message):
        file.timestamps()


@pytest.mark.parametrize(
    ("values", "row"),
    [
        (pa.array([1.0, None, 3.0]), 1),
        (pa.array([[1.0], [2.0], None]), 2),
        (pa.array([[1.0, 2.0], [1.0, None], [1.0, 2.0]]), 1),
        (pa.array([[1.0], [1.0], [1.0, 2.0]]), 2),
        (pa.array([[[1], [2]], [[1], [2]], [[1], [2, 3]]]), 2),
        (pa.array(["a", "b", None]), 2),
    ],
    ids=str,
)
@pytest.mark.parametrize("group", [1, 2, 100])
def test_values_of_another_shape_are_named(
    path: Path, values: Any, row: int, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for whole in (0, 1 << 20):
        monkeypatch.setattr("relive.store.signal.parquet_reader._WHOLE_BYTES", whole)
        file = file_of(path, values, row_group_size=group)
        with pytest.raises(errors.CorruptError, match=rf"a\.parquet.*row {row}\b"):
            file.values(range(3))


def test_missing_times_are_named(path: Path) -> None:
    with pytest.raises(errors.CorruptError, match=r"a\.parquet.*row 1\b"):
        file_of(path, [1, 2], pa.array([1, None])).timestamps()


@pytest.mark.parametrize(
    "column",
    [
        pa.array([{"x": 1}]),
        pa.array([b"x"]),
        pa.array([1], pa.timestamp("ns")),
        pa.array([dt.date(2020, 1, 1)]),
        pa.array([[["a"]]]),
        pa.nulls(1),
    ],
    ids=lambda column: str(column.type),
)
def test_unsupported_value_types_raise(path: Path, column: Any) -> None:
    with pytest.raises(errors.UnsupportedError, match=r"a\.parquet.*type"):
        _ = file_of(path, column).meta


def test_unsupported_time_types_raise(path: Path) -> None:
    for times in (pa.array([0.5]), pa.array(["1"]), pa.array([dt.date(2020, 1, 1)])):
        with pytest.raises(errors.UnsupportedError, match=r"a\.parquet.*integer"):
            file_of(path, [1], times).timestamps()
    with pytest.raises(errors.CorruptError, match=r"a\.parquet"):
        file_of(path, [1], pa.array([2**64 - 1], pa.uint64())).timestamps()


def test_other_tables_raise(path: Path) -> None:
    for table in (pa.table({"timestamp": [1]}), pa.table({"value": [1]}), pa.table({})):
        pq.write_table(table, path)
        with pytest.raises(errors.CorruptError, match=r"a\.parquet.*columns named"):
            _ = ColumnsFile(path).rows
    twice = pa.Table.from_arrays([pa.array([1])] * 3, ["timestamp", "value", "value"])
    pq.write_table(twice, path)
    with pytest.raises(errors.CorruptError, match=r"a\.parquet.*columns named"):
        _ = ColumnsFile(path).rows


def test_missing_files_and_other_formats_raise(path: Path) -> None:
    with pytest.raises(errors.NotFoundError, match=r"a\.parquet"):
        _ = ColumnsFile(path).rows
    for data in (b"", b"PAR1", b"PAR1PAR1", b"x" * 1000):
        path.write_bytes(data)
        with pytest.raises(errors.CorruptError, match=r"a\.parquet"):
            _ = ColumnsFile(path).rows
    path.unlink()
    path.mkdir()
    with pytest.raises(errors.CorruptError, match=r"a\.parquet"):
        _ = ColumnsFile(path).rows
