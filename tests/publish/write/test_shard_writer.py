"""Shards: cut where the rows say, of bytes that depend on their rows alone."""

import hashlib
import random
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from pyarrow import parquet as pq

from relive.errors import AccessDeniedError, SchemaError, StorageError
from relive.publish.write.parquet_schema import StoredSchema
from relive.publish.write.row_size import row_sizes
from relive.publish.write.shard_writer import SIZES, ShardSizes, cut, write_shards
from tests.publish.write import arrow_tables

# A hundredth of a percent of the real ones, in the same ratio.
SMALL = ShardSizes(8 << 10, 64 << 10, 8 << 10, 4 << 10, 1 << 10, 16)
TINY = ShardSizes(80, 640, 80, 40, 10, 2)


def rows(count: int, seed: int = 0) -> pa.Table:
    """Return rows of about 100 bytes."""
    draw = np.random.default_rng(seed)
    return pa.table(
        {
            "id": pa.array(draw.integers(0, 1 << 60, count)),
            "score": pa.array(draw.random(count)),
            "label": pa.array(draw.choice(["cat", "dog", "horse"], count), pa.string()),
            "text": pa.array(["x" * size for size in draw.integers(0, 100, count)], pa.string()),
            "point": pa.FixedSizeListArray.from_arrays(
                pa.array(draw.random(3 * count, np.float32)), 3
            ),
        }
    )


def write(
    data: Any, directory: Path, sizes: ShardSizes = SMALL, chunk: int = 1000, **options: Any
) -> list[Path]:
    directory.mkdir(exist_ok=True)
    schema = StoredSchema(data.schema, "main")
    batches = data.to_batches(chunk) if isinstance(data, pa.Table) else data
    return [
        shard.path for shard in write_shards(batches, schema, directory, sizes=sizes, **options)
    ]


def digests(paths: list[Path]) -> list[str]:
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]


def nbytes_of(table: pa.Table) -> int:
    return sum(int(row_sizes(batch).sum()) for batch in table.to_batches())


def test_shards_have_all_rows_in_order_and_the_ruled_sizes(tmp_path: Path) -> None:
    data = rows(5000)
    paths = write(data, tmp_path / "out")

    tables = [pq.read_table(path) for path in paths]
    assert pa.concat_tables(tables).equals(data)
    sizes = [nbytes_of(table) for table in tables]
    assert len(paths) > 10
    assert all(SMALL.least <= size <= SMALL.most for size in sizes[:-1])
    assert sizes[-1] <= SMALL.most
    for path in paths:
        footer = pq.read_metadata(path)
        groups = [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]
        assert groups[0] <= SMALL.first_group_rows
        table = pq.ParquetFile(path)
        measured = [nbytes_of(table.read_row_group(i)) for i in range(len(groups))]
        table.close()
        assert all(SMALL.group <= size < SMALL.group + 300 for size in measured[1:-1])


def test_real_sizes_are_the_ruled_ones() -> None:
    assert SIZES == (8 << 20, 64 << 20, 8 << 20, 8 << 20, 1 << 20, 1024)


@pytest.mark.parametrize("chunk", [1, 17, 100_000])
def test_bytes_do_not_depend_on_batches_or_workers(tmp_path: Path, chunk: int) -> None:
    data = rows(1500)
    expected = digests(write(data, tmp_path / "a"))
    assert digests(write(data, tmp_path / "b", chunk=chunk, workers=1)) == expected
    shifted = pa.concat_tables([rows(5, 1), data]).combine_chunks().slice(5)
    assert digests(write(shifted, tmp_path / "c", chunk=chunk, workers=3)) == expected


@hypothesis.settings(max_examples=50)
@hypothesis.given(arrow_tables.tables(100), st.integers(0, 1 << 32).map(random.Random))
def test_bytes_depend_on_values_alone(
    tmp_path_factory: pytest.TempPathFactory, data: pa.Table, draw: random.Random
) -> None:
    directory = tmp_path_factory.mktemp("shards")
    columns = [
        arrow_tables.other_layout(column.combine_chunks(), draw)
        if not getattr(column.type, "ordered", False)
        else column.combine_chunks()
        for column in data.columns
    ]
    other = pa.Table.from_arrays(columns, schema=data.schema)
    expected = digests(write(data, directory / "a", TINY))
    assert digests(write(other, directory / "b", TINY, chunk=7)) == expected


def test_a_shard_is_the_same_wherever_it_is(tmp_path: Path) -> None:
    data = rows(3000)
    paths = write(data, tmp_path / "all")
    assert digests(write(pq.read_table(paths[1]), tmp_path / "one")) == digests(paths[1:2])


@hypothesis.settings(max_examples=50)
@hypothesis.given(arrow_tables.tables(100))
def test_rows_that_were_read_are_written_as_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, data: pa.Table
) -> None:
    directory = tmp_path_factory.mktemp("shards")
    paths = write(data, directory / "a", TINY)
    schema = StoredSchema(data.schema, "main").read
    assert all(pq.read_schema(path).equals(schema, check_metadata=True) for path in paths)
    read = pa.concat_tables([schema.empty_table(), *(pq.read_table(path) for path in paths)])
    assert digests(write(read, directory / "b", TINY)) == digests(paths)


@pytest.mark.parametrize("change", ["insert", "delete", "update"])
def test_changing_rows_in_one_place_changes_at_most_three_shards(
    tmp_path: Path, change: str
) -> None:
    # 1,000 rows of 100 bytes are 100 KB of shards of 16 MiB; here 10 rows of shards of 16 KiB
    # are ten times as much.
    data = rows(6000)
    before = set(digests(write(data, tmp_path / "before")))
    draw = random.Random(7)  # noqa: S311
    added = []
    for number in range(20):
        place = draw.randrange(len(data) - 10)
        middle = {"insert": rows(10, 100 + number), "delete": rows(0)}
        new = middle.get(change, rows(10, 200 + number))
        rest = place if change == "insert" else place + 10
        changed = pa.concat_tables([data.slice(0, place), new, data.slice(rest)])
        after = digests(write(changed, tmp_path / f"{number}"))
        added.append(len(set(after) - before))
    assert statistics.median(added) <= 2
    assert max(added) <= 8


def test_keys_decide_where_shards_end(tmp_path: Path) -> None:
    data = rows(3000)
    changed = data.set_column(1, "score", pa.array(np.zeros(len(data))))
    cuts = [
        [pq.read_metadata(path).num_rows for path in write(table, tmp_path / name, key=["id"])]
        for name, table in (("a", data), ("b", changed))
    ]
    assert cuts[0] == cuts[1]


def test_equal_rows_are_cut_at_the_largest_or_least_size(tmp_path: Path) -> None:
    for value in range(5):
        data = pa.table({"x": pa.array([value] * 40_000), "y": pa.array(["same"] * 40_000)})
        paths = write(data, tmp_path / str(value))
        sizes = {nbytes_of(pq.read_table(path)) for path in paths[:-1]}
        assert sizes in ({SMALL.least}, {SMALL.most})
        assert len(set(digests(paths))) <= 2


def test_rows_larger_than_a_shard_are_shards_of_their_own(tmp_path: Path) -> None:
    large = "x" * (SMALL.most + 1)
    data = pa.table({"t": ["a", large, "b", large, large, "c"]})
    paths = write(data, tmp_path / "out")
    assert [pq.read_table(path)["t"].to_pylist() for path in paths] == [
        ["a"],
        [large],
        ["b"],
        [large],
        [large],
        ["c"],
    ]


def test_rows_without_bytes_end(tmp_path: Path) -> None:
    data = pa.table({"n": pa.nulls(50_000)})
    paths = write(data, tmp_path / "out")
    assert sum(pq.read_metadata(path).num_rows for path in paths) == 50_000
    assert max(pq.read_metadata(path).num_rows for path in paths) <= SMALL.most


def test_no_rows_are_no_shard(tmp_path: Path) -> None:
    data = rows(0)
    assert write(data, tmp_path / "a") == []
    assert write(pa.Table.from_batches([], data.schema), tmp_path / "b") == []


def test_batches_are_read_as_they_are_needed() -> None:
    table = rows(2000)
    taken = 0

    def batches() -> Iterator[Any]:
        nonlocal taken
        for batch in table.to_batches(100):
            taken += 1
            yield batch

    shards = cut(batches(), None, SMALL)
    next(shards)
    assert taken <= 1 + SMALL.most // (100 * 60)


def test_errors_of_the_source_and_of_the_disk_end_it(tmp_path: Path) -> None:
    table = rows(2000)

    def failing() -> Iterator[Any]:
        yield from table.to_batches(100)
        raise ZeroDivisionError

    schema = StoredSchema(table.schema, "main")
    with pytest.raises(ZeroDivisionError):
        list(write_shards(failing(), schema, tmp_path, sizes=SMALL))
    with pytest.raises((AccessDeniedError, StorageError, FileNotFoundError)):
        list(write_shards(table.to_batches(), schema, tmp_path / "missing", sizes=SMALL))


def test_metadata_that_varies_is_not_written(tmp_path: Path) -> None:
    data = rows(100)
    pandas = data.replace_schema_metadata({"pandas": '{"stop": 100}', "b": "1", "a": "2"})
    swapped = data.replace_schema_metadata({"a": "2", "b": "1", "pandas": '{"stop": 7}'})
    expected = digests(write(pandas, tmp_path / "a"))
    assert digests(write(swapped, tmp_path / "b")) == expected
    schema = pq.read_schema(tmp_path / "a" / "000000.parquet")
    assert schema.metadata == {b"a": b"2", b"b": b"1"}
    created = pq.read_metadata(tmp_path / "a" / "000000.parquet").created_by
    assert created == f"parquet-cpp-arrow version {pa.__version__}"


def test_statistics_are_those_that_filters_use(tmp_path: Path) -> None:
    data = pa.table(
        {
            "number": [1, 2],
            "text": ["a", "b"],
            "decimal": pa.array([1, 2]).cast(pa.decimal128(20, 1)),
            "struct": [{"x": 1}, {"x": 2}],
            "binary": [b"a", b"b"],
            "fixed": pa.array([b"abc", b"def"], pa.binary(3)),
            "list": [[1], [2]],
            "map": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
        }
    )
    (path,) = write(data, tmp_path / "out")
    group = pq.read_metadata(path).row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    found = {each.path_in_schema for each in columns if each.is_stats_set}
    assert found == {"number", "text", "decimal", "struct.x"}
    assert group.column(0).statistics.max == 2


def test_an_ordered_dictionary_keeps_its_order(tmp_path: Path) -> None:
    values = pa.array(["low", "middle", "high"])
    indices = pa.array([2, 0, None, 2] * 500, pa.int8())
    column = pa.DictionaryArray.from_arrays(indices, values, ordered=True)
    data = pa.table({"x": column, "id": range(2000)})
    paths = write(data, tmp_path / "out")
    read = pa.concat_tables([pq.read_table(path) for path in paths]).unify_dictionaries()
    found = read["x"].combine_chunks()
    assert found.type.ordered
    assert found.dictionary.to_pylist() == ["low", "middle", "high"]
    assert found.to_pylist() == column.to_pylist()


@pytest.mark.parametrize(
    "kind",
    [
        pa.month_day_nano_interval(),
        pa.struct([]),
        pa.list_(pa.struct([])),
        pa.run_end_encoded(pa.int32(), pa.int64()),
        pa.dense_union([pa.field("a", pa.int8())]),
        pa.binary(0),
    ],
    ids=str,
)
def test_types_that_parquet_cannot_hold_are_refused(kind: Any) -> None:
    with pytest.raises(SchemaError, match="column `bad` of table `main` has the type"):
        StoredSchema(pa.schema([("good", pa.int8()), ("bad", kind)]), "main")


def test_columns_must_have_names_of_their_own() -> None:
    with pytest.raises(SchemaError, match="table `main` has two columns named `a`"):
        StoredSchema(pa.schema([("a", pa.int8()), ("a", pa.int8())]), "main")
    with pytest.raises(SchemaError, match="table `main` has no columns"):
        StoredSchema(pa.schema([]), "main")
