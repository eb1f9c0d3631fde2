"""Golden record stores stay readable, by relive and by a reader that shares no code with it."""

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

import relive
from relive.errors import CorruptError
from relive.store.codec import Codec
from tests.golden.read_records import Store, Value
from tests.golden.records.assemble import FOLDER, PIECE, STORES, Record, make

Made: TypeAlias = Callable[[str], tuple[Path, list[Record]]]
NAMES = sorted(path.name for path in FOLDER.iterdir() if (path / "meta.json").exists())


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file of a store."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def as_stored(field: relive.Field, value: Any) -> Value | None:
    """Convert a value to the form of the second reader."""
    if value is None:
        return None
    if field.dtype == "json":
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return Value((), text.encode())
    if field.dtype == "str":
        return Value((), value.encode())
    if field.dtype == "bytes":
        return Value((), value)
    array = np.asarray(value)
    assert array.dtype == field.dtype
    dims = array.shape[: field.ragged] if field.ragged > 1 else ()
    return Value(dims, array.tobytes())


def ours(store: relive.RecordStore, name: str) -> list[Value | None]:
    """Return the values of a field as read by relive."""
    field, missing = store.fields[name], store.missing(name)
    values = store.gather(range(len(store)), [name])[name]
    return [
        None if absent else as_stored(field, value)
        for value, absent in zip(values, missing, strict=True)
    ]


def theirs(store: Store, name: str) -> list[Value | None]:
    """Return the values of a field as read by the second reader.

    It does not support dictionaries, only their ids.
    """
    found = []
    for value in store.column(name):
        if value is not None and value.dictionary:
            dictionary = (store.folder / value.dictionary).read_bytes()[:-4]
            codec = Codec("zstd", dictionary=dictionary)
            value = Value(value.dims, codec.decode(value.data, value.length))  # noqa: PLW2901
        found.append(value)
    return found


def expected(fields: Any, records: list[Record], name: str) -> list[Value | None]:
    """Return the expected values of a field."""
    return [as_stored(fields[name], record[name]) for record in records]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Create a store by its name, once; return its path and its expected content."""
    return cache(lambda name: _make(name, tmp_path_factory.mktemp("records") / name))


def _make(name: str, path: Path) -> tuple[Path, list[Record]]:
    return path, make(name, path)


def test_all_stores_exist() -> None:
    assert sorted(STORES) == NAMES
    files = [path for name in NAMES for path in (FOLDER / name).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 300 << 10


@pytest.mark.parametrize("name", NAMES)
def test_both_readers_return_the_written_values(name: str, made: Made, tmp_path: Path) -> None:
    _, records = made(name)
    shutil.copytree(FOLDER / name, tmp_path / "store")
    before = contents(tmp_path / "store")
    other = Store(tmp_path / "store")
    for io, verify in (("mmap", "first"), ("pread", "always")):
        with relive.RecordStore.open(tmp_path / "store", io=io, verify=verify) as store:
            assert len(store) == other.length == len(records)
            assert list(store.fields) == [field["name"] for field in other.meta["fields"]]
            for field in store.fields:
                values = expected(store.fields, records, field)
                assert ours(store, field) == values
                assert theirs(other, field) == values
            assert store.validate("full").ok
    assert contents(tmp_path / "store") == before


@pytest.mark.parametrize("name", NAMES)
def test_current_writer_matches_the_second_reader(name: str, made: Made) -> None:
    path, records = made(name)
    then, now = Store(FOLDER / name), Store(path)
    assert now.length == then.length == len(records)
    for field in then.meta["fields"]:
        assert theirs(now, field["name"]) == theirs(then, field["name"])


@pytest.mark.parametrize("name", NAMES)
def test_old_store_can_be_appended_to(name: str, made: Made, tmp_path: Path) -> None:
    path, records = tmp_path / "store", list(made(name)[1])
    shutil.copytree(FOLDER / name, path)
    with relive.RecordStore.open(path, mode="a") as store:
        store.append(records[0])
        store[1] = records[2]
        assert store.delete([0]) == [(len(records), 0)]
        fields = dict(store.fields)
    records[1] = records[2]
    with relive.RecordStore.open(path, mode="a") as store:
        after = Store(path)
        for field in fields:
            values = expected(fields, records, field)
            assert ours(store, field) == theirs(after, field) == values
        store.rebalance(recompress=True)
    copied = Store(path)
    for field in fields:
        assert theirs(copied, field) == expected(fields, records, field)
    assert relive.RecordStore.open(path).validate("full").ok


def test_stores_contain_their_special_cases() -> None:
    found = {name: Store(FOLDER / name) for name in NAMES}

    def fields(name: str, key: str) -> list[Any]:
        return [field[key] for field in found[name].meta["fields"]]

    assert (FOLDER / "changed" / found["changed"].meta["journal"]).stat().st_size > 100 + PIECE
    assert any(fields("changed", "table"))
    assert all(fields("folded", "table"))
    assert any(len(each) == 2 for each in fields("blocks", "chunks"))
    assert [[20, 0, 16]] in fields("blocks", "extents")
    assert len(fields("dictionary", "dictionaries")[0]) == 2
    needed = [value.dictionary for value in found["dictionary"].column("text") if value]
    assert len(set(needed)) == 3
    assert {"raw", "deflate", "zstd", "lz4"} == set(fields("every-codec", "compress"))
    assert max(fields("ragged", "ragged")) == 3
    assert fields("rebalanced", "physical") != fields("folded", "physical")


@pytest.mark.parametrize("name", ["changed", "folded"])
def test_every_bit_of_the_index_is_covered(name: str, tmp_path: Path) -> None:
    path = tmp_path / "store"
    shutil.copytree(FOLDER / name, path)
    meta = (path / "meta.json").read_bytes()
    for at in range(0, len(meta), 37):
        (path / "meta.json").write_bytes(meta[:at] + bytes([meta[at] ^ 1]) + meta[at + 1 :])
        with pytest.raises(CorruptError):
            relive.RecordStore.open(path)
        with pytest.raises((AssertionError, ValueError, KeyError)):
            Store(path)
