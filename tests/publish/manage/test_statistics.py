"""`column_statistics` of every type of column, in one pass."""

import datetime as dt
import decimal
import math
from pathlib import Path

import pyarrow as pa

from relive.publish import DatasetBuilder, column_statistics, dataset
from relive.publish.manage.statistics import ColumnStatistics


def test_columns_of_every_type(tmp_path: Path) -> None:
    day = dt.date(2025, 1, 1)
    later = dt.date(2025, 1, 3)
    table = pa.table(
        {
            "int": [3, None, -1],
            "float": [0.5, 1.5, None],
            "nan": [math.nan, 2.0, 4.0],
            "bool": [True, False, None],
            "decimal": [decimal.Decimal("1.50"), None, decimal.Decimal("2.50")],
            "day": [later, day, None],
            "text": ["b", "a", None],
            "list": [[1], None, []],
            "none": pa.nulls(3),
        }
    )
    builder = DatasetBuilder("lab/arm", root=tmp_path)
    builder.add_table("main", table)
    builder.publish()
    calls: list[tuple[int, int | None]] = []
    found = column_statistics(
        dataset("lab/arm", root=tmp_path).table(), progress=lambda *each: calls.append(each)
    )
    nan = found.pop("nan")
    assert (nan.values, nan.min, nan.max) == (3, 2.0, 4.0)
    assert nan.mean is not None
    assert math.isnan(nan.mean)
    assert found == {
        "int": ColumnStatistics(2, 1, -1, 3, 1.0),
        "float": ColumnStatistics(2, 1, 0.5, 1.5, 1.0),
        "bool": ColumnStatistics(2, 1, False, True, 0.5),  # noqa: FBT003 - values of a column
        "decimal": ColumnStatistics(2, 1, decimal.Decimal("1.50"), decimal.Decimal("2.50"), 2.0),
        "day": ColumnStatistics(2, 1, day, later, None),
        "text": ColumnStatistics(2, 1),
        "list": ColumnStatistics(2, 1),
        "none": ColumnStatistics(0, 3),
    }
    assert calls == [(3, 3)]


def test_empty_table_and_large_integers(tmp_path: Path) -> None:
    builder = DatasetBuilder("lab/arm", root=tmp_path)
    builder.add_table("main", pa.table({"x": pa.array([2**62, 2**62, 2**62], pa.int64())}))
    builder.add_table("empty", pa.table({"x": pa.array([], pa.float64())}))
    builder.publish()
    opened = dataset("lab/arm", root=tmp_path)
    assert column_statistics(opened.table())["x"].mean == 2.0**62  # without overflow
    assert column_statistics(opened.table("empty")) == {"x": ColumnStatistics()}
