"""`diff` tells what two versions have in common, without reading data unless asked."""

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from relive.publish import DatasetBuilder, diff
from relive.publish.manage.diff import VersionDiff


def publish(root: Path, tag: str, **tables: Any) -> str:
    """Publish tables as a version with a tag."""
    builder = DatasetBuilder("lab/arm", root=root)
    for name, data in tables.items():
        builder.add_table(name, data)
    return builder.publish(tag=tag)


def compare(root: Path, **how: Any) -> VersionDiff:
    """Compare the versions `a` and `b`."""
    return diff("lab/arm@a", "lab/arm@b", root=root, **how)


def test_the_same_version(tmp_path: Path) -> None:
    publish(tmp_path, "a", main=pa.table({"x": [1, 2]}))
    found = diff("lab/arm", "lab/arm@a", root=tmp_path)
    assert found.is_same
    assert found.tables[0].has_same_rows
    assert found.tables[0].shards == (0, 1, 0)


def test_tables_columns_and_sections(tmp_path: Path) -> None:
    first = pa.schema([pa.field("x", pa.int64()), pa.field("y", pa.string(), nullable=False)])
    second = pa.schema([pa.field("x", pa.int32()), pa.field("y", pa.string())])
    old = pa.table({"x": [1], "y": ["a"]}, schema=first)
    publish(tmp_path, "a", main=old, gone=pa.table({"z": [1]}))
    builder = DatasetBuilder("lab/arm", root=tmp_path)
    builder.add_table("main", pa.table({"x": [1, 2], "y": ["a", None]}, schema=second))
    builder.add_table("new", pa.table({"z": [1.5]}))
    builder.describe(readme="text", license="MIT")
    builder.publish(tag="b")
    found = compare(tmp_path, rows=True)
    assert {each.name: each.change for each in found.tables} == {
        "main": "changed",
        "gone": "removed",
        "new": "added",
    }
    main = next(each for each in found.tables if each.name == "main")
    assert main.rows == (1, 2)
    assert [(each.name, each.before, each.after, each.change) for each in main.columns] == [
        ("x", "int64", "int32", "changed"),
        ("y", "string not null", "string", "changed"),
    ]
    assert main.has_same_rows is False
    assert found.sections == ("about", "readme")
    assert not found.is_same


def test_splits_are_a_difference(tmp_path: Path) -> None:
    table = pa.table({"x": range(10)})
    publish(tmp_path, "a", main=table)
    builder = DatasetBuilder("lab/arm", root=tmp_path)
    builder.add_table("main", table, splits={"train": (0, 8)})
    builder.publish(tag="b")
    (found,) = compare(tmp_path, rows=True).tables
    assert (found.change, found.shards, found.has_same_rows) == ("changed", (0, 1, 0), True)


def test_equal_rows_in_other_bytes(tmp_path: Path) -> None:
    table = pa.table({"x": [1.0, math.nan, None], "y": [[1.0], [math.nan], None]})
    pq.write_table(table, tmp_path / "plain.parquet", compression="none")
    pq.write_table(table, tmp_path / "small.parquet", compression="zstd", row_group_size=1)
    publish(tmp_path, "a", main=tmp_path / "plain.parquet")
    publish(tmp_path, "b", main=tmp_path / "small.parquet")
    assert compare(tmp_path).tables[0].has_same_rows is None
    assert compare(tmp_path, rows=True).tables[0].has_same_rows is True
    pq.write_table(table.slice(0, 2), tmp_path / "small.parquet")
    other = pa.table({"x": [1.0, 2.0, None], "y": table["y"]})
    pq.write_table(other, tmp_path / "other.parquet")
    builder = DatasetBuilder("lab/arm", root=tmp_path)
    builder.add_table("main", tmp_path / "other.parquet")
    builder.publish(tag="b", force_tag=True)
    assert compare(tmp_path, rows=True).tables[0].has_same_rows is False
