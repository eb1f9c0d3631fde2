"""SQL over tables: the right rows, verified, and nothing but the tables."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from relive import errors
from relive.publish.read.dataset import PublishedDataset, dataset
from relive.publish.read.duckdb_files import ShardFile, TableFiles
from relive.publish.write.builder import DatasetBuilder
from tests.publish.read.sample_tables import (
    every_type,
    flipped,
    in_files,
    publish,
    published,
    random_rows,
    stored_blobs,
    write,
)

pytestmark = pytest.mark.needs("duckdb")


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> PublishedDataset:
    folder = tmp_path_factory.mktemp("queries")
    builder = DatasetBuilder("test/data", root=folder / "root")
    files = in_files(every_type(), folder / "files", [123, 650], 70)
    builder.add_table("main", files, splits={"some": [(100, 200), (300, 310), (700, 1000)]})
    builder.add_table("names-of", pa.table({"key": ["c1", "c2"], "value": [10, 20]}))
    builder.publish()
    return dataset("test/data", root=folder / "root")


def test_query_sees_every_table_by_name(ds: PublishedDataset) -> None:
    found = ds.query(
        'select n.value, count(*) as rows from main m join "names-of" n on m.d = n.key'
        " group by all order by all"
    )
    assert found.to_pydict() == {"value": [10, 20], "rows": [100, 100]}


def test_table_query_sees_itself_as_this(ds: PublishedDataset) -> None:
    table = ds.table()
    assert table.query("select sum(i) as n from this").to_pydict() == {"n": [499500]}
    assert table.query("from this select i where i between 3 and 4").to_pydict() == {"i": [3, 4]}
    with pytest.raises(errors.InvalidError, match="main"):
        table.query("select * from main")


def test_query_of_a_selection(ds: PublishedDataset) -> None:
    table = ds.table()
    narrow = table.select(["i"]).filter("s is not null").filter("this.i >= 990")
    assert narrow.query("from this").to_pydict() == {"i": [991, 992, 994, 995, 997, 998]}
    with pytest.raises(errors.InvalidError, match='"s" not found'):
        narrow.query("select s from this")
    by_expression = table.select(["i"]).filter(pc.field("i") > 997)
    assert by_expression.query("select max(i), count(*) from this").num_rows == 1
    assert by_expression.query("from this").to_pydict() == {"i": [998, 999]}


def test_query_of_a_split(ds: PublishedDataset) -> None:
    some = ds.table(split="some")
    found = some.query("select count(*) as n, min(i) as low, sum(i) as total from this")
    expected = [*range(100, 200), *range(300, 310), *range(700, 1000)]
    assert found.to_pydict() == {"n": [410], "low": [100], "total": [sum(expected)]}
    assert some.filter("i < 105").query("from this select i order by i").num_rows == 5


def test_files_with_different_columns(tmp_path: Path) -> None:
    first = pa.table({"a": [1, 2], "b": ["x", "y"]})
    second = pa.table({"c": [1.5], "a": [3]})
    files = [write(first, tmp_path / "0.parquet"), write(second, tmp_path / "1.parquet")]
    table = published(tmp_path / "root", {"main": files}).table()
    found = table.query("from this order by a").to_pydict()
    assert found == {"a": [1, 2, 3], "b": ["x", "y", None], "c": [None, None, 1.5]}


def test_empty_table(tmp_path: Path) -> None:
    table = published(tmp_path, {"main": pa.table({"x": pa.array([], pa.int64())})}).table()
    assert table.query("select count(*) as n from this").to_pydict() == {"n": [0]}


@pytest.mark.parametrize(
    "sql",
    [
        "select * from read_csv('/etc/passwd')",
        "select * from read_text('/etc/hostname')",
        "select * from '/etc/passwd'",
        "select * from glob('/etc/*')",
        "select * from read_parquet('/tmp/*.parquet')",
        "select * from read_parquet('relive-shards://main/99.parquet')",
        "copy (select 1) to '/tmp/relive-test.csv'",
        "copy main to 'relive-shards://main/0.parquet'",
        "attach '/tmp/relive-test.db'",
        "install httpfs",
        "load httpfs",
        "set enable_external_access = true",
        "set threads = 4",
        "select * from rows_of_python",
        "select * from missing",
        "select from where",
        "select nothing from main",
        "select error('no') from main",
    ],
)
def test_sql_reaches_nothing_else(ds: PublishedDataset, sql: str) -> None:
    rows_of_python = pa.table({"secret": [1]})
    assert rows_of_python.num_rows
    with pytest.raises(errors.InvalidError):
        ds.query(sql)


def test_statement_without_a_result(ds: PublishedDataset) -> None:
    with pytest.raises(errors.InvalidError):
        ds.query("")
    with pytest.raises(errors.InvalidTypeError):
        ds.query(3)  # type: ignore[arg-type]


def test_damage_is_an_error_of_ours(tmp_path: Path) -> None:
    publish(tmp_path / "root", {"main": [write(random_rows(500), tmp_path / "a.parquet", 100)]})
    shard = max(stored_blobs(tmp_path / "root"), key=lambda path: path.stat().st_size)
    undo = flipped(shard, 300_000)
    table = dataset("test/data", root=tmp_path / "root").table()
    with pytest.raises(errors.CorruptError, match="damaged"):
        table.query("select sum(octet_length(payload)) from this")
    assert table.query("select count(*) as n from this").to_pydict() == {"n": [500]}
    undo()
    assert table.query("select sum(octet_length(payload)) as n from this").to_pydict() == {
        "n": [500_000]
    }


def test_each_thread_has_its_own_position(ds: PublishedDataset) -> None:
    files = TableFiles(ds.table()._shards, [0, 1, 2])
    file = ShardFile(None, files, 0)
    file.seek(10)
    places: list[Any] = []

    def elsewhere() -> None:
        places.append(file.tell())
        file.seek(-4, 2)
        places.append(file.read())
        places.append(file.tell())

    import threading

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert places == [0, b"PAR1", file.size]
    assert file.tell() == 10
    assert file.read(0) == b""
    file.seek(0)
    assert file.read(4) == b"PAR1"


def test_bytes_of_shards_are_exact(tmp_path: Path) -> None:
    path = write(random_rows(300), tmp_path / "a.parquet", 50)
    table = published(tmp_path / "root", {"main": [path]}).table()
    data = path.read_bytes()
    files = TableFiles(table._shards, [0])
    random = np.random.default_rng(0)
    for start in random.integers(0, len(data), 60).tolist():
        stop = min(len(data), start + int(random.integers(0, 200_000)))
        assert bytes(files.read(0, start, stop)) == data[start:stop]
