"""Tables: selection, sizes, rows by index, DataFrames, pickling."""

import multiprocessing
import pickle
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from relive import DataLoader, errors
from relive.model import Ragged
from relive.model.schema import Field
from relive.publish.read import rows as rows_module
from relive.publish.read import table as table_module
from relive.publish.read.dataset import PublishedDataset
from relive.publish.read.rows import DECODED
from relive.publish.read.table import Table
from tests.publish.read.sample_tables import (
    as_stored,
    count_calls,
    every_type,
    in_files,
    published,
    random_rows,
    values,
)

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = as_stored(every_type())


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> PublishedDataset:
    folder = tmp_path_factory.mktemp("table")
    files = in_files(ROWS, folder / "files", [300, 650], 70)
    return published(folder / "root", {"main": files, "other": pa.table({"k": [1, 2]})})


@pytest.fixture
def table(ds: PublishedDataset) -> Table:
    return ds.table()


def test_schema_and_count_read_nothing(ds: PublishedDataset) -> None:
    before = ds._blobs.stats
    table = ds.table()
    assert table.schema().equals(ROWS.schema)
    assert table.count() == len(table) == 1000
    assert table.select(["s", "i"]).schema().names == ["s", "i"]
    assert "1000 rows, 19 columns" in repr(table)
    assert repr(table.filter(pc.field("i") > 3)).endswith("filtered from 1000 rows, 19 columns)")
    assert ds._blobs.stats == before


def test_select_and_filter_return_new_tables(table: Table) -> None:
    narrow = table.select(["s", "i"]).filter(pc.field("f") > 990)
    assert narrow.schema().names == ["s", "i"]
    assert narrow.arrow().equals(ROWS.filter(pc.field("f") > 990).select(["s", "i"]))
    assert table.schema().names == ROWS.schema.names
    assert table.count() == 1000
    with pytest.raises(errors.UnknownNameError) as caught:
        narrow.select(["f"])
    assert caught.value.message == "there is no column `f`"


def test_similar_names_are_listed(ds: PublishedDataset) -> None:
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: ds.table("mian"), "did you mean `main`?"),
        (lambda: ds.table("zzz"), "the tables are `main`, `other`"),
        (lambda: ds.table().select(["tss"]), "did you mean `ts_s`, `ts`?"),
        (lambda: ds.table().filter(pc.field("emty") > 3), "did you mean `empty`?"),
    ]
    for call, hint in calls:
        with pytest.raises(errors.UnknownNameError) as caught:
            call()
        assert caught.value.hint == hint


@pytest.mark.parametrize(
    "condition", [pc.field("i") >= 333, pc.field("f") < 5, pc.field("s").is_null()], ids=str
)
def test_count_with_a_filter(table: Table, condition: Any) -> None:
    expected = ROWS.filter(condition).num_rows
    assert table.filter(condition).count() == expected
    assert table.select(["d"]).filter(condition).count() == expected


def test_count_does_not_fetch_what_statistics_know(tmp_path: Path) -> None:
    ds = published(tmp_path, {"main": in_files(random_rows(1000), tmp_path / "files", [], 100)})
    assert ds.table().filter(pc.field("id") < 500).count() == 500
    assert ds._blobs.stats.nbytes == 0
    assert ds.table().filter(pc.field("id") < 450).count() == 450
    assert 0 < ds._blobs.stats.nbytes < 200_000


def test_large_tables_are_refused(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "LARGE_BYTES", 20_000)
    for load in (table.arrow, table.pandas, table.polars):
        with pytest.raises(errors.TooLargeError, match="in memory") as caught:
            load()
        assert "allow_large=True" in (caught.value.hint or "")
    assert table.arrow(allow_large=True).num_rows == 1000
    assert table.select(["i8"]).arrow().num_rows == 1000
    assert table.filter(pc.field("i") < 50).arrow().num_rows == 50


@pytest.mark.needs("pandas", "polars")
def test_data_frames(table: Table) -> None:
    frame = table.select(["i", "s"]).pandas()
    assert frame["i"].tolist() == list(range(1000))
    assert table.select(["i", "s"]).polars()["s"].to_list() == ROWS["s"].to_pylist()


def test_fields_of_arrow_types(table: Table) -> None:
    known = table.select(["i", "u32", "f32", "s", "b", "bin", "d", "ts", "date", "n", "l"]).fields
    assert known == {
        "i": Field(np.int64),
        "u32": Field(np.uint32),
        "f32": Field(np.float32),
        "s": Field("str"),
        "b": Field(np.bool_),
        "bin": Field("bytes"),
        "d": Field("str"),
        "ts": Field("M8[us]"),
        "date": Field("M8[D]"),
        "n": Field("json"),
        "l": Field(np.int64, ragged=True),
    }
    with pytest.raises(errors.UnsupportedError, match="dec") as caught:
        table.gather([0])
    assert "select()" in (caught.value.hint or "")


def test_gather_reads_across_row_groups_and_shards(table: Table) -> None:
    indices = np.random.default_rng(0).integers(0, 1000, (40, 5))
    batch = table.select(["i", "s", "d", "f", "l", "n"]).gather(indices)
    assert values(batch, "i") == indices.tolist()
    flat = indices.ravel().tolist()
    assert np.asarray(batch["s"]).ravel().tolist() == [ROWS["s"][n].as_py() for n in flat]
    assert np.asarray(batch["n"]).ravel().tolist() == [ROWS["n"][n].as_py() for n in flat]
    np.testing.assert_array_equal(
        np.asarray(batch["f"]).ravel(), np.array([ROWS["f"][n].as_py() for n in flat])
    )
    assert isinstance(batch["l"], Ragged)
    assert [row.tolist() for row in batch["l"]] == [list(range(n % 3)) for n in flat]


def test_gather_of_filtered_rows(table: Table) -> None:
    chosen = table.filter(pc.field("i") >= 500).filter(pc.field("s").is_valid()).select(["i"])
    expected = [n for n in range(500, 1000) if n % 3]
    assert len(chosen) == len(expected)
    assert values(chosen.gather([0, -1 % len(expected), 7]), "i") == [
        expected[0], expected[-1], expected[7],
    ]  # fmt: skip
    assert [row["i"] for row in chosen[:3]] == expected[:3]


def test_nulls_of_numbers(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "f": pa.array([1.5, None]),
            "t": pa.array([None, 3], pa.timestamp("us")),
            "i": pa.array([1, None]),
            "l": pa.array([[1], None]),
            "s": pa.array([None, "x"]),
            "j": pa.array([[["a"]], None]),
        }
    )
    table = published(tmp_path, {"main": rows}).table()
    batch = table.select(["f", "t", "s", "j"]).gather([1, 0])
    assert np.isnan(batch["f"][0])
    assert np.isnat(batch["t"][1])
    assert values(batch, "s") == ["x", None]
    assert values(batch, "j") == [None, [["a"]]]
    for name in ("i", "l"):
        assert len(table.gather([0], fields=[name])[name]) == 1
        with pytest.raises(errors.InvalidError, match=f"column `{name}` has a null"):
            table.gather([0, 1], fields=[name])


def test_nested_lists_are_arrays_if_the_first_rows_are(tmp_path: Path) -> None:
    even = pa.array([[[1, 2], [3, 4]], [[5, 6]]])
    uneven = pa.array([[[1], [2, 3]], [[4]]])
    table = published(tmp_path, {"main": pa.table({"even": even, "uneven": uneven})}).table()
    assert table.fields == {"even": Field(np.int64, ragged=2), "uneven": Field("json")}
    assert table.gather([1])["even"][0].tolist() == [[5, 6]]
    assert values(table.gather([0]), "uneven") == [[[1], [2, 3]]]


def test_each_row_group_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    DECODED.clear()
    ds = published(tmp_path, {"main": in_files(random_rows(1000), tmp_path / "files", [500], 100)})
    decoded = count_calls(monkeypatch, "fetch_each", lambda step, _: len(step))
    table = ds.table()
    table.gather(np.arange(1000)[::-1], fields=["id"])
    assert decoded == [10]
    table.gather([3, 999, 500], fields=["id"])
    assert decoded == [10]
    table.gather([3, 4, 205], fields=["score", "id"])
    assert decoded == [10, 2]


def test_cache_of_row_groups_is_bounded() -> None:
    cache = rows_module.DecodedGroups(10_000)
    for group in range(20):
        cache.put(("x", group), {"a": pa.chunked_array([np.arange(250)])})
        assert cache.held_bytes <= 10_000
    assert cache.get(("x", 19)).keys() == {"a"}
    assert cache.get(("x", 0)) == {}
    cache.put(("x", 30), {"a": pa.chunked_array([np.arange(5000)])})
    assert cache.get(("x", 30)).keys() == {"a"}


def test_pickles_small(table: Table) -> None:
    chosen = table.select(["i", "s"]).filter(pc.field("i") > 990).filter("s is not null")
    data = pickle.dumps(chosen)
    assert len(data) < 4000
    copy = pickle.loads(data)  # noqa: S301 - our own data
    assert copy.arrow().equals(chosen.arrow())
    assert repr(copy) == repr(chosen)


def ids_of(table: Table) -> list[int]:
    """Read ids in another process."""
    narrow = table.select(["i"])
    found = [number for batch in narrow.batches(100) for number in batch.column(0).to_pylist()]
    return [*found, *np.asarray(narrow.gather([5, 3])["i"]).tolist()]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_works_in_other_processes(table: Table, method: str, spawned_pool: Any) -> None:
    chosen = table.select(["i"]).filter(pc.field("i") < 300)
    assert spawned_pool.submit(ids_in, method, chosen).result() == [*range(300), 5, 3]


def ids_in(method: str, table: Table) -> list[int]:
    """Read ids here, then in a process started from here."""
    assert ids_of(table)
    with multiprocessing.get_context(method).Pool(1) as pool:
        found: list[int] = pool.apply(ids_of, (table,))
        return found


def test_many_threads_read_one_table(table: Table) -> None:
    found: list[Any] = []

    def read(seed: int) -> None:
        indices = np.random.default_rng(seed).integers(0, 1000, 200)
        batch = table.select(["i", "s"]).gather(indices)
        found.append(np.array_equal(np.asarray(batch["i"]), indices))
        found.append(table.select(["i"]).filter(pc.field("i") > 900).count() == 99)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 16


def test_loader_shuffles_it(table: Table) -> None:
    loader = DataLoader({"table": table.select(["i", "f32"])}, batch_size=64, epochs=1, tail="keep")
    seen = np.concatenate([np.asarray(batch["table"]["i"]) for batch in loader])
    assert sorted(seen.tolist()) == list(range(1000))
    assert seen.tolist() != list(range(1000))
