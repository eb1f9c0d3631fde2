"""Conversion to Parquet files, which are written atomically."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet as pq

from relive.bridge import convert
from relive.errors import AlreadyExistsError, InvalidError, UnsupportedError
from relive.model.ragged import Ragged
from relive.model.schema import Field
from tests.bridge.sample_files import contents

COLUMNS: dict[str, Any] = {
    "number": np.arange(4, dtype=np.int32),
    "swapped": np.arange(4, dtype=">f8"),
    "flag": np.array([True, False, True, False]),
    "vector": np.arange(8, dtype=np.float32).reshape(4, 2),
    "image": np.arange(48, dtype=np.uint8).reshape(4, 2, 2, 3),
    "tokens": Ragged.from_list([[1], [], [2, 3], [4]]),
    "points": Ragged(np.arange(8).reshape(4, 2), [0, 1, 1, 3, 4]),
    "shaped": Ragged(np.arange(9), [0, 4, 4, 6, 9], [[2, 2], [0, 2], [1, 2], [3, 1]]),
    "text": ["a", None, "", "ü"],
    "bytes": [b"a", b"", None, b"\xff"],
    "json": [{"a": [1]}, None, "x", 3],
    "word": np.array(["a", "bb", "", "ccc"]),
    "instant": np.array(["2026-01-01", "2026-01-02", "NaT", "2026-01-04"], "M8[ms]"),
    "gaps": [1.5, None, 2.5, None],
    "vectors with gaps": [np.array([1, 2], np.int16), None, None, np.array([3, 4], np.int16)],
    "images with gaps": [None, np.ones((2, 3), np.uint8), None, np.zeros((2, 3), np.uint8)],
    "lists with gaps": [[1.0], None, [2.0, 3.0], []],
}


@pytest.mark.parametrize("batch", [None, 1, 3])
def test_parquet_round_trip(tmp_path: Path, batch: int | None) -> None:
    first = convert(COLUMNS, tmp_path / "first")
    made = convert(first.path, tmp_path / "a.parquet", batch=batch)
    assert (made.rows, made.bytes) == (4, (tmp_path / "a.parquet").stat().st_size)
    again = convert(tmp_path / "a.parquet", tmp_path / "again")
    assert contents(again.path) == contents(first.path)
    same = {name: field for name, field in first.fields.items() if name not in {"word", "swapped"}}
    assert same.items() <= again.fields.items()
    assert again.fields["word"] == Field("str")  # Parquet stores text of any length
    assert again.fields["swapped"] == Field("<f8")


def test_parquet_schema_is_standard(tmp_path: Path) -> None:
    convert(COLUMNS, tmp_path / "a.parquet")
    table = pq.read_table(tmp_path / "a.parquet")
    assert table["tokens"].to_pylist() == [[1], [], [2, 3], [4]]
    assert table["vector"].to_pylist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert table["shaped"].to_pylist() == [[[0, 1], [2, 3]], [], [[4, 5]], [[6], [7], [8]]]
    assert [json.loads(text) for text in table["json"].to_pylist() if text] == [{"a": [1]}, "x", 3]
    assert table["image"].combine_chunks().to_numpy_ndarray().tolist() == COLUMNS["image"].tolist()
    assert table["gaps"].null_count == 2
    assert pa.types.is_timestamp(table.schema.field("instant").type)


def test_parquet_compression_options(tmp_path: Path) -> None:
    zeros = np.zeros((1000, 10))
    sizes = {}
    for codec in ("raw", "zstd", "lz4", "deflate"):
        made = convert(zeros, tmp_path / f"{codec}.parquet", codec=codec)
        column = pq.ParquetFile(made.path).metadata.row_group(0).column(0)
        sizes[codec] = column.compression
    assert sizes == {"raw": "UNCOMPRESSED", "zstd": "ZSTD", "lz4": "LZ4", "deflate": "GZIP"}
    with pytest.raises(UnsupportedError, match="one codec for all fields"):
        convert(zeros, tmp_path / "a.parquet", codec={"data": "zstd"})


@given(
    st.lists(st.lists(st.integers(-100, 100), max_size=4) | st.none(), max_size=12),
    st.integers(1, 5),
)
@settings(max_examples=25)
def test_lists_with_nulls_round_trip(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[int] | None], batch: int
) -> None:
    path = tmp_path_factory.mktemp("rows")
    columns = {"n": np.arange(len(rows)), "x": rows}
    fields = {"x": Field(np.int64, ragged=True)}
    convert(columns, path / "a.parquet", fields=fields, batch=batch)
    made = convert(path / "a.parquet", path / "store")
    assert [row["x"] for row in contents(made.path)] == rows


@pytest.mark.parametrize(
    "dtype", [np.dtype([("a", "i4"), ("b", "f8")]), np.dtype("c16")], ids=["structured", "complex"]
)
def test_parquet_unsupported_fields_raise(tmp_path: Path, dtype: np.dtype[Any]) -> None:
    with pytest.raises(UnsupportedError, match="which Parquet cannot hold") as caught:
        convert(np.zeros(3, dtype), tmp_path / "a.parquet")
    assert caught.value.hint == "drop it: fields={'data': None}"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["x.npy", "x.parquet"])
def test_files_are_written_atomically(tmp_path: Path, name: str) -> None:
    target = tmp_path / name
    convert({"a": [1, 2]}, target)
    before = target.read_bytes()
    with pytest.raises(AlreadyExistsError):
        convert({"a": [3]}, target)
    rows = [{"a": 1}] * 10 + [{"a": "text"}]
    with pytest.raises(InvalidError, match="row 10"):
        convert(rows, target, overwrite=True, sample=2, batch=2)
    assert target.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == [name]
    assert convert({"a": [3]}, target, overwrite=True).rows == 1


def test_text_that_utf8_cannot_encode_raises(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match=r"field 'a' cannot be encoded as UTF-8: 'v\\udcff'"):
        convert([{"a": "v\udcff"}], tmp_path / "a.parquet")
    with pytest.raises(InvalidError, match="the name of a field cannot be encoded"):
        convert([{"a\udcff": 1}], tmp_path / "a.parquet")
    assert not (tmp_path / "a.parquet").exists()
