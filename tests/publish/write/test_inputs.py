"""What a table can be made of, and what is refused with which message."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import dataset as ds
from pyarrow import parquet as pq

from relive.errors import (
    InvalidError,
    InvalidTypeError,
    NotFoundError,
    SchemaError,
    UnfinishedError,
    UnsupportedError,
)
from relive.publish.write.inputs import FileRows, StreamedRows, open_input

TABLE = pa.table({"a": [1, 2, 3], "b": ["x", None, "z"]})


def save(path: Path, table: Any = TABLE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    return path


def names(found: FileRows | StreamedRows) -> list[str]:
    assert isinstance(found, FileRows)
    return [file.path.name for file in found.files]


def read(data: Any, **options: Any) -> pa.Table:
    found = open_input(data, "main", **options)
    assert isinstance(found, StreamedRows)
    return pa.Table.from_batches(list(found.batches), found.schema)


class TestFiles:
    def test_paths_keep_their_order(self, tmp_path: Path) -> None:
        b, a = save(tmp_path / "b.parquet"), save(tmp_path / "a.parquet")
        assert names(open_input([b, str(a)], "main")) == ["b.parquet", "a.parquet"]
        assert names(open_input({b, a}, "main")) == ["a.parquet", "b.parquet"]
        assert names(open_input(b, "main")) == ["b.parquet"]
        assert names(open_input(f"file://{b}", "main")) == ["b.parquet"]

    def test_patterns_and_directories_are_sorted(self, tmp_path: Path) -> None:
        for name in ("c", "a", "d/b", "d/.hidden", "_temporary/x", ".git/y"):
            save(tmp_path / f"{name}.parquet")
        (tmp_path / "notes.txt").write_text("not rows")
        (tmp_path / "_SUCCESS").write_text("")
        assert names(open_input(tmp_path, "main")) == ["a.parquet", "c.parquet", "b.parquet"]
        assert names(open_input(f"{tmp_path}/*.parquet", "main")) == ["a.parquet", "c.parquet"]
        assert names(open_input(f"{tmp_path}/**/[ab].parquet", "main")) == [
            "a.parquet",
            "b.parquet",
        ]

    def test_relative_paths_and_the_home_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        save(tmp_path / "a.parquet")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path))
        for location in ("a.parquet", "./a.parquet", "~/a.parquet", "*.parquet"):
            found = open_input(location, "main")
            assert isinstance(found, FileRows)
            assert found.files[0].path == tmp_path / "a.parquet"

    def test_footers_say_rows_and_schema(self, tmp_path: Path) -> None:
        path = save(tmp_path / "a.parquet")
        found = open_input(path, "main")
        assert isinstance(found, FileRows)
        file = found.files[0]
        data = path.read_bytes()
        assert found.schema.equals(TABLE.schema)
        assert file.rows == 3
        assert file.footer_bytes == int.from_bytes(data[-8:-4], "little") + 8
        assert len(file.footer_digest) == 64

    def test_long_footers(self, tmp_path: Path) -> None:
        wide = pa.table({f"column_{i}": [i] for i in range(3000)})
        found = open_input(save(tmp_path / "a.parquet", wide), "main")
        assert isinstance(found, FileRows)
        assert found.files[0].footer_bytes > 64 << 10

    def test_rewrite_reads_the_rows(self, tmp_path: Path) -> None:
        save(tmp_path / "a.parquet")
        save(tmp_path / "b.parquet", pa.table({"b": ["q"], "c": [1.5]}))
        expected = pa.table(
            {"a": [1, 2, 3, None], "b": ["x", None, "z", "q"], "c": [None, None, None, 1.5]}
        )
        assert read(tmp_path, rewrite=True).equals(expected)

    def test_order_and_missing_nullable_columns_are_accepted(self, tmp_path: Path) -> None:
        save(tmp_path / "a.parquet")
        save(tmp_path / "b.parquet", pa.table({"b": ["x"], "a": [1]}))
        save(tmp_path / "c.parquet", pa.table({"b": ["x"]}))
        save(tmp_path / "d.parquet", pa.table({"e": [1.5], "a": [2]}))
        found = open_input(tmp_path, "main")
        assert found.schema.names == ["a", "b", "e"]

    @pytest.mark.parametrize(
        ("other", "message"),
        [
            (
                pa.table({"a": ["1"], "b": ["x"]}),
                r"column `a` of `.*b.parquet` is string, but int64",
            ),
            (
                pa.table({"a": pa.array([1], pa.int32()), "b": ["x"]}),
                r"column `a` of `.*b.parquet` is int32, but int64 in `.*a.parquet`",
            ),
            (
                pa.table(
                    [[1], ["x"]],
                    schema=pa.schema(
                        [pa.field("a", pa.int64(), nullable=False), ("b", pa.string())]
                    ),
                ),
                r"column `a` of `.*b.parquet` is not nullable, but nullable in `.*a.parquet`",
            ),
            (
                pa.table([[1]], schema=pa.schema([pa.field("c", pa.int64(), nullable=False)])),
                r"`.*a.parquet` has no column `c`, which is not nullable in `.*b.parquet`",
            ),
        ],
    )
    def test_other_differences_are_schema_errors(
        self, tmp_path: Path, other: Any, message: str
    ) -> None:
        save(tmp_path / "a.parquet")
        save(tmp_path / "b.parquet", other)
        with pytest.raises(SchemaError, match=message):
            open_input(tmp_path, "main")

    def test_a_required_column_that_a_later_file_lacks(self, tmp_path: Path) -> None:
        schema = pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.string())])
        save(tmp_path / "a.parquet", TABLE.cast(schema))
        save(tmp_path / "b.parquet", pa.table({"b": ["x"]}))
        with pytest.raises(SchemaError, match=r"`.*b.parquet` has no column `a`"):
            open_input(tmp_path, "main")

    def test_what_is_not_parquet(self, tmp_path: Path) -> None:
        for content in (b"", b"a,b\n1,2\n" * 10, b"PAR1", b"PAR1\xff\xff\xff\x7fPAR1"):
            path = tmp_path / "a.csv"
            path.write_bytes(content)
            with pytest.raises(InvalidError, match=r"`.*a.csv` is not a (valid )?Parquet file"):
                open_input(path, "main")
        damaged = bytearray(save(tmp_path / "b.parquet").read_bytes())
        length = int.from_bytes(damaged[-8:-4], "little")
        damaged[-8 - length : -8] = b"\xff" * length
        (tmp_path / "b.parquet").write_bytes(damaged)
        with pytest.raises(InvalidError, match="not a valid Parquet file"):
            open_input(tmp_path / "b.parquet", "main")
        (tmp_path / "c.parquet").write_bytes(b"x" * 20 + b"PARE")
        with pytest.raises(UnsupportedError, match="encrypted"):
            open_input(tmp_path / "c.parquet", "main")

    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(NotFoundError, match=r"no file matches `.*\*.parquet`"):
            open_input(f"{tmp_path}/*.parquet", "main")
        with pytest.raises(NotFoundError, match="does not exist"):
            open_input(tmp_path / "a.parquet", "main")
        (tmp_path / "a.txt").write_text("x")
        with pytest.raises(NotFoundError, match="no Parquet file is in the directory") as caught:
            open_input(tmp_path, "main")
        assert caught.value.hint
        with pytest.raises(InvalidError, match="cannot be made of nothing"):
            open_input([], "main")
        with pytest.raises(InvalidError, match="empty"):
            open_input("", "main")

    def test_a_file_named_twice(self, tmp_path: Path) -> None:
        path = save(tmp_path / "a.parquet")
        with pytest.raises(InvalidError, match="is named twice"):
            open_input([path, f"{tmp_path}/*.parquet"], "main")

    def test_remote_files_are_refused(self) -> None:
        with pytest.raises(UnsupportedError, match="must be on this machine"):
            open_input("s3://bucket/a.parquet", "main")

    def test_partitioned_directories_are_not_silently_cut(self, tmp_path: Path) -> None:
        save(tmp_path / "year=2024" / "a.parquet")
        for location in (tmp_path, f"{tmp_path}/*/*.parquet"):
            with pytest.raises(SchemaError, match="the column `year` only in its path") as caught:
                open_input(location, "main")
            assert "hive" in str(caught.value.hint)
        assert names(open_input(tmp_path / "year=2024", "main")) == ["a.parquet"]
        rows = ds.dataset(tmp_path, partitioning="hive")
        assert read(rows).column_names == ["a", "b", "year"]
        assert read(rows.scanner(columns=["year"])).column_names == ["year"]

    def test_a_file_that_changes(self, tmp_path: Path) -> None:
        path = save(tmp_path / "a.parquet")
        found = open_input(path, "main")
        assert isinstance(found, FileRows)
        found.files[0].check_unchanged()
        status = path.stat()
        path.write_bytes(path.read_bytes())
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        with pytest.raises(UnfinishedError, match="changed while it was being published"):
            found.files[0].check_unchanged()

    def test_a_file_that_changes_while_it_is_rewritten(self, tmp_path: Path) -> None:
        path = save(tmp_path / "a.parquet")
        found = open_input(path, "main", rewrite=True)
        save(path, pa.table({"a": [5], "b": ["y"]}))
        assert isinstance(found, StreamedRows)
        with pytest.raises(UnfinishedError, match="changed"):
            list(found.batches)

    def test_files_with_two_columns_of_one_name(self, tmp_path: Path) -> None:
        twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
        with pytest.raises(SchemaError, match=r"`.*a.parquet` has two columns named `a`"):
            open_input(save(tmp_path / "a.parquet", twice), "main")


class Stream:
    """Has nothing but the Arrow PyCapsule interface."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return TABLE.__arrow_c_stream__(requested_schema)


class Batch:
    def __arrow_c_array__(self, requested_schema: Any = None) -> Any:
        return TABLE.to_batches()[0].__arrow_c_array__(requested_schema)


class TestRows:
    @pytest.mark.parametrize(
        "data",
        [
            TABLE,
            TABLE.to_batches()[0],
            TABLE.to_reader(),
            TABLE.to_batches(2),
            iter(TABLE.to_batches(1)),
            (batch for batch in TABLE.to_batches(2)),
            [TABLE.slice(0, 1), TABLE.slice(1)],
            Stream(),
            Batch(),
        ],
        ids=lambda data: type(data).__name__,
    )
    def test_arrow(self, data: Any) -> None:
        assert read(data).equals(TABLE)

    def test_readers_are_not_read_ahead(self) -> None:
        taken = []

        def batches() -> Iterator[Any]:
            for number in range(100):
                taken.append(number)
                yield TABLE.to_batches()[0]

        found = open_input(batches(), "main")
        assert isinstance(found, StreamedRows)
        next(found.batches)
        assert len(taken) <= 2

    @pytest.mark.needs("pandas")
    def test_pandas(self) -> None:
        import pandas as pd

        frame = pd.DataFrame({"a": [1, 2, 3], "b": ["x", None, "z"]})
        assert read(frame).to_pydict() == TABLE.to_pydict()
        indexed = frame.set_index("a")
        assert sorted(read(indexed).column_names) == ["a", "b"]
        categories = pd.DataFrame({"c": pd.Categorical(["u", "v", "u"])})
        assert read(categories)["c"].to_pylist() == ["u", "v", "u"]

    @pytest.mark.needs("pandas")
    def test_pandas_that_arrow_cannot_represent(self) -> None:
        import pandas as pd

        with pytest.raises(SchemaError, match="mixed"):
            read(pd.DataFrame({"mixed": [1, "x", [2]]}))
        twice = pd.DataFrame([[1, 2]], columns=["a", "a"])
        with pytest.raises(SchemaError, match="two columns named `a`"):
            read(twice)
        with pytest.raises(InvalidTypeError, match=r"pandas.Series"):
            read(pd.Series([1]))

    @pytest.mark.needs("polars")
    def test_polars(self) -> None:
        import polars as pl

        frame = pl.DataFrame({"a": [1, 2, 3], "b": ["x", None, "z"]})
        assert read(frame).to_pydict() == TABLE.to_pydict()
        assert read(frame)["b"].type in {pa.string(), pa.large_string()}
        lazy = frame.lazy().filter(pl.col("a") > 1)
        assert read(lazy).to_pydict() == {"a": [2, 3], "b": [None, "z"]}
        nothing = read(frame.lazy().filter(pl.col("a") > 9))
        assert nothing.column_names == ["a", "b"]
        assert not nothing.num_rows
        with pytest.raises(InvalidTypeError, match=r"polars.Series"):
            read(pl.Series([1]))

    @pytest.mark.needs("duckdb")
    def test_duckdb(self) -> None:
        import duckdb

        with duckdb.connect() as connection:
            relation = connection.sql("select i as a, 'x' || i as b from range(5000) t(i)")
            table = read(relation)
        assert table.num_rows == 5000
        assert table["b"][4999].as_py() == "x4999"

    def test_batches_must_share_a_schema(self) -> None:
        first = TABLE.to_batches()[0]
        with pytest.raises(SchemaError, match="column `a` of batch 1 of table `main` is double"):
            read([first, pa.record_batch({"a": [1.5], "b": ["x"]})])
        with pytest.raises(SchemaError, match="batch 1 of table `main` has a column `c`"):
            read([first, pa.record_batch({"c": [1]})])
        assert read([first, pa.record_batch({"a": [9]})])["b"].to_pylist() == ["x", None, "z", None]

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (5, "cannot be made of a int"),
            (None, "cannot be made of a NoneType"),
            (b"data", "cannot be made of a bytes"),
            ({"a": [1]}, "cannot be made of a dict"),
            (np.zeros(3), "item 0 of table `main` must be a record batch, got a numpy.float64"),
            ([{"a": 1}], "item 0 of table `main` must be a record batch, got a dict"),
            ([TABLE, 5], "item 1 of table `main` must be a record batch, got a int"),
            (["a.parquet", TABLE], "paths and a pyarrow.Table cannot be mixed"),
        ],
        ids=lambda data: type(data).__name__,
    )
    def test_other_things_are_refused(self, data: Any, message: str) -> None:
        with pytest.raises(InvalidTypeError, match=message) as caught:
            read(data)
        assert caught.value.hint
