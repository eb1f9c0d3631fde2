"""Parquet and Arrow files, and tables in memory, are converted to record stores."""

import datetime as dt
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from relive.bridge import convert
from relive.errors import (
    CorruptError,
    InvalidError,
    NotFoundError,
    ReliveError,
    UnsupportedError,
)
from relive.model.schema import Field
from tests.bridge.sample_files import contents

INSTANTS = [dt.datetime(2026, 1, day, tzinfo=dt.UTC) for day in (1, 2, 3)]


def table() -> pa.Table:
    """Return columns of every type, with nulls."""
    return pa.table(
        {
            "integer": pa.array([1, None, 3], pa.int16()),
            "float": pa.array([0.5, 1.5, None]),
            "flag": [True, False, True],
            "text": ["a", None, ""],
            "large": pa.array(["a", "b", "c"], pa.large_string()),
            "bytes": [b"x", b"", None],
            "eight": pa.array([b"12345678", b"abcdefgh", b"ABCDEFGH"], pa.binary(8)),
            "list": [[1.0, 2.0], None, []],
            "pair": pa.array([[1, 2], [3, 4], None], pa.list_(pa.int32(), 2)),
            "pairs": pa.array([[[1, 2]], [], [[3, 4], [5, 6]]], pa.list_(pa.list_(pa.int8(), 2))),
            "matrix": [[[1, 2], [3, 4]], [[5, 6]], []],
            "uneven": [[[1], [2, 3]], [], None],
            "struct": [{"a": 1, "b": "x"}, None, {"a": 2, "b": None}],
            "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
            "texts": [["a"], [], ["b", "c"]],
            "category": pa.array(["p", "q", "p"]).dictionary_encode(),
            "instant": pa.array(INSTANTS, pa.timestamp("us", "UTC")),
            "nothing": pa.nulls(3),
        }
    )


FIELDS = {
    "integer": Field(np.int16),
    "float": Field(np.float64),
    "flag": Field(np.bool_),
    "text": Field("str"),
    "large": Field("str"),
    "bytes": Field("bytes"),
    "eight": Field(np.uint8, (8,)),
    "list": Field(np.float64, ragged=True),
    "pair": Field(np.int32, (2,)),
    "pairs": Field(np.int8, (2,), ragged=True),
    "matrix": Field(np.int64, ragged=2),
    "uneven": Field("json"),
    "struct": Field("json"),
    "map": Field("json"),
    "texts": Field("json"),
    "category": Field("str"),
    "instant": Field("datetime64[us]"),
    "nothing": Field("json"),
}


def expected() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table().to_pylist(maps_as_pydicts="strict")
    for row in rows:
        row["eight"] = list(row["eight"])
        row["instant"] = row["instant"].replace(tzinfo=None)
    return rows


def write_parquet(path: Path) -> None:
    pq.write_table(table(), path, row_group_size=2)


def write_file(path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table().schema) as writer:
        writer.write_table(table(), max_chunksize=2)


def write_stream(path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table().schema) as writer:
        writer.write_table(table(), max_chunksize=2)


WRITERS = {"t.parquet": write_parquet, "file.arrow": write_file, "stream.arrow": write_stream}


def test_arrow_table(tmp_path: Path) -> None:
    made = convert(table(), tmp_path / "store")
    assert made.fields == FIELDS
    assert contents(made.path) == expected()


@pytest.mark.parametrize(("name", "write"), WRITERS.items(), ids=WRITERS)
@pytest.mark.parametrize("batch", [None, 1])
def test_files(tmp_path: Path, name: str, write: Callable[[Path], None], batch: int | None) -> None:
    write(tmp_path / name)
    made = convert(tmp_path / name, tmp_path / "store", batch=batch)
    assert made.fields == FIELDS
    assert contents(made.path) == expected()
    made = convert(
        [tmp_path / name, tmp_path / name], tmp_path / "twice", limit=5, fields=["text", "matrix"]
    )
    wanted = [{"text": row["text"], "matrix": row["matrix"]} for row in expected() * 2]
    assert contents(made.path) == wanted[:5]


@pytest.mark.parametrize(("name", "write"), WRITERS.items(), ids=WRITERS)
def test_truncated_files_raise_and_leave_nothing(
    tmp_path: Path, name: str, write: Callable[[Path], None]
) -> None:
    path = tmp_path / name
    write(path)
    whole = path.read_bytes()
    for cut in range(0, len(whole), 97):
        path.write_bytes(whole[:cut])
        try:
            convert(path, tmp_path / "store", overwrite=True)
        except (CorruptError, UnsupportedError) as error:
            assert str(path) in error.message  # noqa: PT017 - some cuts of a stream are valid
            assert [item.name for item in tmp_path.iterdir()] == [name]
        else:
            # A stream may end after any of its batches.
            assert name == "stream.arrow"
            assert contents(tmp_path / "store") == expected()[: len(contents(tmp_path / "store"))]


def test_other_table_libraries_are_read_through_arrow(
    tmp_path: Path, needs: Callable[..., None]
) -> None:
    needs("pandas")
    pandas = importlib.import_module("pandas")
    frame = pandas.DataFrame({"a": [1, 2], "t": ["x", "y"]})
    made = convert(frame, tmp_path / "store")
    assert contents(made.path) == [{"a": 1, "t": "x"}, {"a": 2, "t": "y"}]


def test_tensors_keep_their_shape(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(values)
    made = convert(pa.table({"x": tensors}), tmp_path / "store")
    assert made.fields == {"x": Field(np.float32, (3, 4))}
    assert contents(made.path) == [{"x": row.tolist()} for row in values]


def test_slice_of_a_table(tmp_path: Path) -> None:
    made = convert(table().slice(1, 1), tmp_path / "store")
    assert contents(made.path) == expected()[1:2]


def test_field_types_can_be_overridden(tmp_path: Path) -> None:
    made = convert(
        table().select(["integer", "matrix", "text", "flag"]),
        tmp_path / "store",
        fields={
            "integer": ("number", Field(np.float32)),
            "matrix": Field("json"),
            "text": "words",
            "flag": None,
        },
    )
    assert contents(made.path) == [
        {"number": 1.0, "matrix": [[1, 2], [3, 4]], "words": "a"},
        {"number": None, "matrix": [[5, 6]], "words": None},
        {"number": 3.0, "matrix": [], "words": ""},
    ]


def test_rows_with_uneven_inner_lists_are_named(tmp_path: Path) -> None:
    rows = [[[1, 2], [3, 4]]] * 1500
    rows[1200] = [[1], [2, 3]]
    with pytest.raises(InvalidError, match="row 1200: field 'm' has inner lists") as caught:
        convert(pa.table({"m": rows}), tmp_path / "store", batch=100)
    assert caught.value.hint == "use a type that can hold all rows: fields={'m': Field(\"json\")}"


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([[1, None]], pa.list_(pa.int64())), "'x' has a null inside a list"),
        (pa.array([{"a": b"x"}]), "but binary values inside lists or structs cannot be stored"),
        (pa.array([1], pa.decimal128(5, 2)), r"but decimal128\(5, 2\) values inside"),
        (pa.array([[[b"a"]]]), "but binary values inside lists or structs cannot be stored"),
    ],
)
def test_unsupported_column_types_raise(tmp_path: Path, column: pa.Array, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message) as caught:
        convert(pa.table({"x": column}), tmp_path / "store")
    assert caught.value.hint
    assert not list(tmp_path.iterdir())


def test_nulls_in_lists_of_floats_become_nan(tmp_path: Path) -> None:
    made = convert(pa.table({"x": [[1.0, None]]}), tmp_path / "store")
    assert np.array_equal(contents(made.path)[0]["x"], [1.0, np.nan], equal_nan=True)


def test_files_with_different_columns_raise(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"b": [1]}), tmp_path / "2.parquet")
    np.save(tmp_path / "3.npy", np.arange(3))
    with pytest.raises(InvalidError, match=r"2\.parquet` does not have the same columns"):
        convert(tmp_path / "*.parquet", tmp_path / "store")
    with pytest.raises(UnsupportedError, match=r"format parquet, but .*3\.npy` has the format npy"):
        convert(tmp_path / "[13].*", tmp_path / "store")
    with pytest.raises(UnsupportedError, match="two columns are named 'a'"):
        convert(pa.table([[1], [2]], names=["a", "a"]), tmp_path / "store")
    with pytest.raises(NotFoundError):
        convert(tmp_path / "no.parquet", tmp_path / "store")


def test_hostile_bytes_in_an_arrow_file_raise(tmp_path: Path) -> None:
    path = tmp_path / "file.arrow"
    write_file(path)
    whole = bytearray(path.read_bytes())
    generator = np.random.default_rng(5)
    for _ in range(20):
        broken = bytearray(whole)
        at = int(generator.integers(len(whole)))
        broken[at] ^= 1 << int(generator.integers(8))
        path.write_bytes(broken)
        try:
            convert(path, tmp_path / "store", overwrite=True, kind="arrow")
        except ReliveError:
            continue


def test_streams_of_unknown_length_continue_in_the_right_file(tmp_path: Path) -> None:
    for number in range(3):
        part = pa.table({"n": range(10 * number, 10 * number + 10)})
        with (
            pa.OSFile(str(tmp_path / f"{number}.arrow"), "wb") as file,
            pa.ipc.new_stream(file, part.schema) as writer,
        ):
            writer.write_table(part, max_chunksize=4)

    def stop(done: int, total: int | None) -> None:
        assert total is None
        if done >= 14:
            raise KeyboardInterrupt

    source, target = tmp_path / "*.arrow", tmp_path / "store"
    with pytest.raises(KeyboardInterrupt):
        convert(source, target, batch=2, progress=stop)
    made = convert(source, target)
    assert (made.rows, made.resumed_from) == (30, 14)
    assert [row["n"] for row in contents(target)] == list(range(30))
