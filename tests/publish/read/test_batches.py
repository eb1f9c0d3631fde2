"""Batches have the requested sizes, rows and columns, and leave no thread behind."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from relive import errors
from relive.publish.read import scan
from relive.publish.read.dataset import PublishedDataset, dataset
from relive.publish.read.table import Table
from relive.publish.write.builder import DatasetBuilder
from tests.publish.read.sample_tables import (
    as_stored,
    count_calls,
    every_type,
    in_files,
    published,
    random_rows,
    values,
    write,
)

ROWS = as_stored(every_type())


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """A table of four files, one of them empty, with row groups of 70 rows."""
    folder = tmp_path_factory.mktemp("batches")
    files = in_files(ROWS, folder / "files", [123, 123, 650], 70)
    return published(folder / "root", {"main": files}).table()


def same(found: pa.Table, expected: pa.Table) -> None:
    """Compare tables exactly, NaN included."""
    assert found.schema.equals(expected.schema)
    assert found.num_rows == expected.num_rows
    assert repr(found.to_pydict()) == repr(expected.to_pydict())


def rows_of(batches: Any, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches(list(batches), schema)


@pytest.mark.parametrize("size", [1, 7, 70, 100, 333, 1000, 5000])
@pytest.mark.parametrize("prefetch", [0, 1, "auto"])
def test_batches_have_exactly_the_requested_size(table: Table, size: int, prefetch: Any) -> None:
    batches = list(table.batches(size, prefetch=prefetch))
    sizes = [batch.num_rows for batch in batches]
    assert sizes[:-1] == [size] * (len(sizes) - 1)
    assert 0 < sizes[-1] <= size
    same(rows_of(batches, table.schema()), ROWS)


@pytest.mark.parametrize("columns", [["s"], ["n", "i"], ["l"], ["dec", "d", "time"], ["empty"]])
def test_columns_come_in_the_requested_order(table: Table, columns: Sequence[str]) -> None:
    same(rows_of(table.batches(300, columns=columns), table.select(columns).schema()),
         ROWS.select(columns))  # fmt: skip
    same(table.select(columns).arrow(), ROWS.select(columns))


@pytest.mark.parametrize("limit", [0, 1, 69, 70, 71, 123, 500, 1000, 2000])
def test_limit_stops(table: Table, limit: int) -> None:
    same(rows_of(table.batches(64, limit=limit), table.schema()), ROWS.slice(0, limit))
    same(table.head(limit), ROWS.slice(0, limit))


@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize("limit", [None, 0, 5, 10_000])
def test_filter_on_a_column_that_is_not_selected(
    table: Table, limit: int | None, prefetch: int
) -> None:
    condition = (pc.bit_wise_and(pc.field("i"), 1) == 0) & (pc.field("i") >= 500)
    expected = ROWS.filter(condition)
    found = rows_of(
        table.batches(64, columns=["s"], filter=condition, limit=limit, prefetch=prefetch),
        table.select(["s"]).schema(),
    )
    same(found, expected.select(["s"]).slice(0, limit))


@pytest.mark.needs("duckdb")
def test_filters_of_both_kinds_are_combined(table: Table) -> None:
    found = table.filter("i >= 200").filter(pc.field("i") < 400).filter("s is not null")
    expected = ROWS.filter(
        (pc.field("i") >= 200) & (pc.field("i") < 400) & pc.field("s").is_valid()
    )
    same(found.arrow(), expected)
    assert found.count() == len(found) == expected.num_rows
    same(found.select(["f"]).head(3), expected.select(["f"]).slice(0, 3))


def test_split_rows_are_in_order(tmp_path: Path) -> None:
    builder = DatasetBuilder("test/data", root=tmp_path / "root")
    rows = ROWS.select(["i", "s"])
    builder.add_table(
        "main",
        in_files(rows, tmp_path / "files", [400], 70),
        splits={"odd": [(5, 17), (60, 75), (390, 410), (999, 1000)], "none": []},
    )
    builder.publish()
    ds = dataset("test/data", root=tmp_path / "root")
    expected = [*range(5, 17), *range(60, 75), *range(390, 410), 999]
    odd = ds.table(split="odd")
    assert odd.count() == len(odd) == len(expected)
    for size in (1, 10, 100):
        assert rows_of(odd.batches(size), odd.schema())["i"].to_pylist() == expected
    assert odd.head(20)["i"].to_pylist() == expected[:20]
    assert odd.filter(pc.field("i") > 395).arrow()["i"].to_pylist() == [*range(396, 410), 999]
    assert values(odd.gather([0, 12, 46, 47]), "i") == [5, 60, 409, 999]
    empty = ds.table(split="none")
    assert (len(empty), empty.count(), empty.head(3).num_rows) == (0, 0, 0)
    assert values(empty.gather([]), "i") == []
    with pytest.raises(errors.UnknownNameError, match="no split `od`"):
        ds.table(split="od")


def test_files_may_lack_nullable_columns_and_reorder_them(tmp_path: Path) -> None:
    first = pa.table({"a": [1, 2], "b": ["x", "y"]})
    second = pa.table({"c": [1.5], "a": [3]})
    files = [write(first, tmp_path / "0.parquet"), write(second, tmp_path / "1.parquet")]
    table = published(tmp_path / "root", {"main": files}).table()
    assert table.arrow().to_pydict() == {
        "a": [1, 2, 3], "b": ["x", "y", None], "c": [None, None, 1.5],
    }  # fmt: skip
    assert table.select(["c", "b"]).filter(pc.field("b").is_null()).arrow().to_pydict() == {
        "c": [1.5], "b": [None],
    }  # fmt: skip
    assert table.filter(pc.field("c") > 1).count() == 1
    assert values(table.select(["b"]).gather([2, 0]), "b") == [None, "x"]


def test_dictionaries_of_row_groups_are_unified(tmp_path: Path) -> None:
    texts = [f"t{n // 10}" for n in range(100)]
    rows = pa.table({"d": pa.array(texts).dictionary_encode()})
    table = published(tmp_path, {"main": [write(rows, tmp_path / "a.parquet", 7)]}).table()
    (batch,) = table.batches(1000)
    assert batch.column(0).type == rows["d"].type
    assert batch.column(0).to_pylist() == texts


def test_empty_table(tmp_path: Path) -> None:
    table = published(tmp_path, {"main": ROWS.slice(0, 0).select(["i", "l"])}).table()
    assert list(table.batches()) == []
    assert table.arrow().num_rows == table.head().num_rows == table.count() == len(table) == 0
    assert table.filter(pc.field("i") > 3).arrow().num_rows == 0


def test_large_row_groups_are_not_read_to_the_end(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = pa.table({
        "x": random.random(1_000_000), "y": random.random(1_000_000),
        "s": pa.array([f"{n % 1000}" for n in range(1_000_000)]),
    })  # fmt: skip
    files = [write(rows, tmp_path / "a.parquet", 1_000_000)]
    ds = published(tmp_path / "root", {"main": files})
    for count in (5, 1024, 20_000):
        ds = published(tmp_path / "root", {"main": files})
        assert ds.table().head(count).equals(rows.slice(0, count))
        assert ds._blobs.stats.nbytes < 8 << 20
    assert ds.table().head(600_000).equals(rows.slice(0, 600_000))


def threads() -> list[str]:
    """Return the threads of streams that run."""
    return [one.name for one in threading.enumerate() if one.name.startswith("relive-batches")]


def wait_for_no_threads() -> None:
    deadline = time.monotonic() + 20
    while threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threads() == []


@pytest.fixture
def many_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PublishedDataset:
    """A table that is fetched in many steps."""
    monkeypatch.setattr(scan, "STEP_BYTES", 50_000)
    rows = random_rows(2000)
    return published(tmp_path / "root", {"main": [write(rows, tmp_path / "a.parquet", 50)]})


def test_threads_end_with_the_stream(many_steps: PublishedDataset) -> None:
    table = many_steps.table()
    stream = table.batches(10)
    next(stream)
    assert threads() == []  # the first batch is fetched alone
    for _ in range(10):
        next(stream)
    assert threads()
    stream.close()
    assert threads() == []
    assert list(stream) == []
    with table.batches(10) as stream:
        assert sum(batch.num_rows for batch in stream) == 2000
        assert threads() == []
    for number, _ in enumerate(table.batches(10)):
        if number == 20:
            break
    gc.collect()
    wait_for_no_threads()


def test_steps_ahead_are_bounded(
    many_steps: PublishedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = count_calls(monkeypatch, "read", lambda step: len(step.pieces))
    with many_steps.table().batches(50, prefetch=3) as stream:
        next(stream)
        assert len(fetched) == 1
        next(stream)
        time.sleep(0.3)
        assert len(fetched) <= 5


def test_ctrl_c_loses_no_row(many_steps: PublishedDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    read = scan.Scan.read
    calls: list[int] = []

    def slow(self: scan.Scan, step: Any) -> Any:
        calls.append(1)
        if len(calls) in {1, 8}:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)
        return read(self, step)

    monkeypatch.setattr(scan.Scan, "read", slow)
    stream = many_steps.table().select(["id"]).batches(100)
    found: list[int] = []
    interrupts = 0
    while True:
        try:
            batch = next(stream, None)
        except KeyboardInterrupt:
            interrupts += 1
            continue
        if batch is None:
            break
        found += batch.column(0).to_pylist()
    assert interrupts
    assert found == list(range(2000))
    wait_for_no_threads()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_error_ends_the_stream(
    many_steps: PublishedDataset, monkeypatch: pytest.MonkeyPatch, prefetch: int
) -> None:
    read = scan.Scan.read
    calls: list[int] = []

    def failing(self: scan.Scan, step: Any) -> Any:
        calls.append(1)
        if len(calls) == 5:
            raise errors.StorageError("no")
        return read(self, step)

    monkeypatch.setattr(scan.Scan, "read", failing)
    stream = many_steps.table().batches(10, prefetch=prefetch)
    found = []
    with pytest.raises(errors.StorageError):
        found += list(stream)
    assert list(stream) == []  # no rows are skipped
    wait_for_no_threads()


READ = """
import builtins, sys
from relive.publish.read.dataset import dataset
builtins.stream = dataset("test/data", root=sys.argv[1]).table().batches(100)
for _ in range(int(sys.argv[2])):
    next(builtins.stream)
"""


@pytest.mark.parametrize("batches", [1, 5])
def test_a_process_may_exit_at_any_time(tmp_path: Path, batches: int) -> None:
    files = [write(random_rows(2000), tmp_path / "a.parquet", 100)]
    published(tmp_path / "root", {"main": files})
    command = [sys.executable, "-c", READ, str(tmp_path / "root"), str(batches)]
    for _ in range(3):
        done = subprocess.run(command, capture_output=True, check=True)
        assert done.stderr == b""


def test_stats_count_rows_and_batches(table: Table) -> None:
    stream = table.batches(300)
    next(stream)
    assert stream.stats()["rows"] == 300
    assert [batch.num_rows for batch in stream] == [300, 300, 100]
    assert (stream.stats()["rows"], stream.stats()["batches"]) == (1000, 4)
    assert stream.stats()["stall_s"] >= 0


def test_batch_dicts_are_lists_of_python_values(table: Table) -> None:
    found = list(table.batch_dicts(400, columns=["i", "s"], limit=500))
    assert [len(batch["i"]) for batch in found] == [400, 100]
    assert found[0]["s"][:3] == [None, "s0001", "s0002"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"batch_size": 0}, errors.InvalidError),
        ({"batch_size": 1.5}, errors.InvalidTypeError),
        ({"limit": -1}, errors.InvalidError),
        ({"prefetch": -1}, errors.InvalidError),
        ({"prefetch": "no"}, errors.InvalidTypeError),
        ({"columns": []}, errors.InvalidError),
        ({"columns": ["i", "i"]}, errors.InvalidError),
        ({"columns": "i"}, errors.InvalidTypeError),
        ({"columns": ["j"]}, errors.UnknownNameError),
    ],
    ids=str,
)
def test_wrong_arguments(table: Table, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        table.batches(**options)
