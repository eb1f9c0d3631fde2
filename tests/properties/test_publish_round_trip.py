"""What was published is what is read, for random schemas; and equal content is one version."""

import os
import random
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import hypothesis
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from pyarrow import parquet as pq

from relive.publish import DatasetBuilder, dataset
from relive.publish.write.shard_writer import ShardSizes
from relive.store.roots import open_root
from relive.store.roots.root import Root
from tests.publish.write import arrow_tables
from tests.publish.write.published_rows import read_table

ID = "ws/name"
# Several shards and row groups for a few rows.
TINY = ShardSizes(80, 640, 80, 40, 10, 2)
seeds = st.integers(0, 1 << 32).map(random.Random)


@pytest.fixture(autouse=True, scope="module")
def cache_directory(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Let the tests have a cache of their own instead of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELIVE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def new_root() -> Root:
    return open_root(f"memory://{secrets.token_hex(8)}")


def new_builder(root: Root, base: str | None = None) -> DatasetBuilder:
    builder = DatasetBuilder(ID, root=root, base=base)
    builder._sizes = TINY
    return builder


def stored_type(kind: Any) -> Any:  # noqa: C901, PLR0911 - one case for each type
    """Return the type that a column is read as: some that Arrow has and Parquet has not differ."""
    types = pa.types
    if types.is_dictionary(kind):
        value = stored_type(kind.value_type)
        if types.is_large_string(value) or types.is_string_view(value):
            value = pa.string()
        if not (types.is_string(value) or types.is_binary(value)):
            return value
        return pa.dictionary(pa.int32(), value, ordered=kind.ordered)
    if types.is_date64(kind):
        return pa.date32()
    if kind == pa.time32("s"):
        return pa.time32("ms")
    if types.is_timestamp(kind) and kind.unit == "s":
        return pa.timestamp("ms", kind.tz)
    if isinstance(kind, pa.BaseExtensionType) or not types.is_nested(kind):
        return kind

    def inner(field: Any) -> Any:
        found = stored_type(field.type)
        return field.with_type(found.value_type if types.is_dictionary(found) else found)

    if types.is_struct(kind):
        return pa.struct([inner(kind.field(i)) for i in range(kind.num_fields)])
    if types.is_map(kind):
        return pa.map_(inner(kind.key_field), inner(kind.item_field))
    if types.is_fixed_size_list(kind):
        return pa.list_(inner(kind.value_field), kind.list_size)
    make = pa.large_list if types.is_large_list(kind) else pa.list_
    return make(inner(kind.value_field))


def assert_rows(root: Root, expected: Any, name: str = "main", reference: str = ID) -> None:
    found = read_table(root, reference, name)
    assert found.column_names == expected.column_names
    # The reader of relive returns what pyarrow reads from the blobs.
    by_relive = dataset(reference, root=root).table(name).arrow()
    assert by_relive.schema.equals(found.schema)
    assert repr(by_relive.to_pylist()) == repr(found.to_pylist())
    for name_, column in zip(found.column_names, found.columns, strict=True):
        given = expected[name_]
        assert column.type.equals(stored_type(given.type))
        # As text, so that NaN equals itself and -0.0 is not 0.0.
        assert repr(column.to_pylist()) == repr(given.to_pylist())


@hypothesis.settings(max_examples=60)
@hypothesis.given(arrow_tables.tables(60))
def test_what_was_published_is_what_is_read(table: Any) -> None:
    root = new_root()
    builder = new_builder(root)
    builder.add_table("main", table)
    builder.publish()
    assert_rows(root, table)


@hypothesis.settings(max_examples=25)
@hypothesis.given(arrow_tables.tables(40), seeds)
def test_equal_content_is_one_version(table: Any, draw: random.Random) -> None:
    root = new_root()
    forms = [
        table,
        table.to_reader(draw.randrange(1, 10)),
        iter([table, table.slice(0, 0)]),
        table.to_batches(draw.randrange(1, 10)) or table,
    ]
    digests = set()
    for form in forms:
        builder = new_builder(root)
        builder.add_table("main", form)
        digests.add(builder.publish())
    assert len(digests) == 1


PUBLISH = """
import sys
import pyarrow as pa
from relive.publish import DatasetBuilder

rows = {"step": range(300), "name": [f"step {n}" for n in range(300)]}
builder = DatasetBuilder("ws/name", root=sys.argv[1])
for name in {"train", "test", "main"}:  # a set: its order differs between processes
    builder.add_table(name, pa.table(rows))
print(builder.publish())
"""


def test_version_hash_is_stable_across_runs(tmp_path: Path) -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", PUBLISH, str(tmp_path / f"root-{seed}")],
            env=os.environ | {"PYTHONHASHSEED": str(seed), "TZ": f"UTC{seed:+}"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (1, 2, 3)
    }
    assert len(found) == 1
    assert len(found.pop().strip()) == 64


@hypothesis.settings(max_examples=20)
@hypothesis.given(arrow_tables.tables(30), seeds)
def test_files_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, table: Any, draw: random.Random
) -> None:
    directory = tmp_path_factory.mktemp("files")
    cuts = sorted(draw.randrange(len(table) + 1) for _ in range(3))
    paths = []
    for number, (start, stop) in enumerate(zip([0, *cuts], [*cuts, len(table)], strict=True)):
        paths.append(directory / f"{number}.parquet")
        try:
            pq.write_table(table.slice(start, stop - start), paths[-1])
        except pa.ArrowNotImplementedError:  # views inside of lists, dictionaries of views
            hypothesis.reject()
    root = new_root()
    builder = new_builder(root)
    builder.add_table("files", directory)
    builder.add_table("rewritten", paths, rewrite=True)
    builder.publish()
    expected = pa.concat_tables([pq.ParquetFile(path).read() for path in paths])
    found = read_table(root, ID, "files")
    assert found.schema.equals(expected.schema)
    assert repr(found.to_pylist()) == repr(expected.to_pylist())
    assert_rows(root, expected, "rewritten")


@hypothesis.settings(max_examples=15)
@hypothesis.given(
    st.lists(st.tuples(st.sampled_from(["append", "replace", "drop", "add"]), st.integers(0, 40)))
)
def test_versions_built_on_each_other_are_what_a_dictionary_of_lists_says(
    steps: list[tuple[str, int]],
) -> None:
    root = new_root()
    first = new_builder(root)
    rows = pa.table({"x": range(5), "text": ["abc"] * 5})
    first.add_table("main", rows)
    model: dict[str, list[int]] = {"main": list(range(5))}
    versions = {first.publish(): {name: list(each) for name, each in model.items()}}
    for number, (step, count) in enumerate(steps):
        data = pa.table(
            {
                "x": pa.array(range(count), pa.int64()),
                "text": pa.array(["abc"] * count, pa.string()),
            }
        )
        builder = new_builder(root, base="latest")
        name = f"t{number}" if step == "add" else sorted(model)[count % len(model)]
        if step == "drop" and len(model) > 1:
            builder.drop(name)
            del model[name]
        elif step == "append":
            builder.append_table(name, data)
            model[name] = model[name] + list(range(count))
        else:
            builder.replace_table(name, data)
            model[name] = list(range(count))
        versions[builder.publish()] = {key: list(each) for key, each in model.items()}
    for digest, tables in versions.items():
        for name, expected in tables.items():
            assert read_table(root, f"{ID}@{digest}", name)["x"].to_pylist() == expected
