"""The frame of every conversion: choices, codecs, limits, progress, kinds, order."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relive
from relive.bridge.ahead import ahead
from relive.bridge.detect import find_kind
from relive.bridge.rows import ordered_map
from relive.errors import (
    InvalidError,
    InvalidTypeError,
    NotFoundError,
    UnknownFieldError,
    UnsupportedError,
)
from relive.model.schema import Field
from relive.store.records import RecordStore
from tests.bridge.made import contents

COLUMNS: dict[str, Any] = {
    "a": np.arange(10),
    "b": np.arange(10.0),
    "c": [f"text {number}" for number in range(10)],
}


def test_it_is_a_public_name() -> None:
    assert relive.convert is relive.bridge.convert


def test_a_list_picks_and_a_dict_changes(tmp_path: Path) -> None:
    assert [*relive.convert(COLUMNS, tmp_path / "1", fields=["c", "a"]).fields] == ["c", "a"]
    assert [*relive.convert(COLUMNS, tmp_path / "2", fields={"b": None}).fields] == ["a", "c"]
    made = relive.convert(
        COLUMNS,
        tmp_path / "3",
        fields={"a": "x", "b": Field("f4"), "c": ("words", Field("json"))},
    )
    assert made.fields == {"x": Field("i8"), "b": Field("f4"), "words": Field("json")}
    assert contents(made.path)[3] == {"x": 3, "b": 3.0, "words": "text 3"}


@pytest.mark.parametrize(
    ("fields", "error", "said"),
    [
        (["d"], UnknownFieldError, "unknown field 'd'"),
        ({"d": "x"}, UnknownFieldError, "unknown field 'd'"),
        ("a", InvalidTypeError, "a list or a dict"),
        ([], InvalidTypeError, "a list of names"),
        ([1], InvalidTypeError, "a list of names"),
        ({"a": 3}, InvalidTypeError, "a new name, a Field, both or None"),
        ({"a": "b"}, InvalidError, "two fields would be called 'b'"),
        ({"a": None, "b": None, "c": None}, InvalidError, "no field is left"),
        ({"c": Field("i8")}, InvalidError, "row 0: field 'c' is <U6"),
    ],
)
def test_choices_that_make_no_sense(
    tmp_path: Path, fields: Any, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        relive.convert(COLUMNS, tmp_path / "store", fields=fields)
    assert not list(tmp_path.iterdir())


def test_one_codec_is_for_what_has_something_to_compress(tmp_path: Path) -> None:
    columns = {**COLUMNS, "large": np.zeros((10, 300), np.uint8)}
    made = relive.convert(columns, tmp_path / "all", codec="zstd", level=5)
    assert {name: field.codec for name, field in made.fields.items()} == {
        "a": "raw",
        "b": "raw",
        "c": "zstd",
        "large": "zstd",
    }
    assert made.fields["large"].level == 5
    with RecordStore.open(made.path) as store:
        assert dict(store.fields) == made.fields
    made = relive.convert(columns, tmp_path / "some", codec={"a": "lz4", "large": "flate"})
    assert [field.codec for field in made.fields.values()] == ["lz4", "raw", "raw", "deflate"]
    with pytest.raises(InvalidError, match="unknown codec 'rar'"):
        relive.convert(columns, tmp_path / "store", codec="rar")
    with pytest.raises(UnknownFieldError, match="unknown field 'd'"):
        relive.convert(columns, tmp_path / "store", codec={"d": "zstd"})


@pytest.mark.parametrize("limit", [0, 1, 7, 10, 11])
@pytest.mark.parametrize("batch", [None, 4])
def test_a_limit_ends_it(tmp_path: Path, limit: int, batch: int | None) -> None:
    seen: list[tuple[int, int | None]] = []

    def progress(done: int, total: int | None) -> None:
        seen.append((done, total))

    made = relive.convert(COLUMNS, tmp_path / "store", limit=limit, batch=batch, progress=progress)
    rows = min(limit, 10)
    assert made.rows == rows
    assert [row["a"] for row in contents(made.path)] == list(range(rows))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert {total for _, total in seen} <= {rows}
    assert not rows or seen[-1] == (rows, rows)


@pytest.mark.parametrize(
    "options",
    [
        {"sample": 0},
        {"workers": 0},
        {"batch": 0},
        {"limit": -1},
        {"progress": 3},
        {"kind": "tar"},
        {"decode": "image"},
        {"size": 3},
        {"steps": True},
    ],
    ids=str,
)
def test_options_that_make_no_sense(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises((InvalidError, InvalidTypeError)):
        relive.convert(COLUMNS, tmp_path / "store", **options)
    assert not list(tmp_path.iterdir())


def test_options_are_for_some_kinds_only(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    for option in ({"decode": len}, {"size": 3}, {"steps": True}):
        with pytest.raises(InvalidError, match="and this is npy"):
            relive.convert(tmp_path / "a.npy", tmp_path / "store", **option)
    with pytest.raises(InvalidError, match="unknown kind 'csv'"):
        relive.convert(tmp_path / "a.npy", tmp_path / "store", kind="csv")
    with pytest.raises(InvalidTypeError, match="a path to write to"):
        relive.convert(COLUMNS, 3)  # type: ignore[arg-type]


def test_kinds_that_nothing_tells(tmp_path: Path) -> None:
    (tmp_path / "a.xyz").write_bytes(b"something else entirely")
    with pytest.raises(UnsupportedError, match="nothing that can be converted") as caught:
        relive.convert(tmp_path / "a.xyz", tmp_path / "store")
    assert "kind= one of array_record" in str(caught.value.hint)
    with pytest.raises(NotFoundError):
        find_kind(str(tmp_path / "nothing.xyz"))
    with pytest.raises(UnsupportedError, match="only packs are read from afar"):
        find_kind("https://example.org/a.parquet")
    assert find_kind("https://example.org/a.a2pack") == "pack"


def test_a_result_says_what_it_is(tmp_path: Path) -> None:
    made = relive.convert(COLUMNS, tmp_path / "store")
    assert made.bytes == sum(f.stat().st_size for f in made.path.rglob("*") if f.is_file())
    assert repr(made) == f"Conversion({made.path}: 10 rows, {made.bytes} bytes: a, b, c)"


def test_work_is_done_in_order_on_several_threads() -> None:
    threads = set()

    def work(number: int) -> int:
        threads.add(threading.get_ident())
        time.sleep(0.002 if number % 7 == 0 else 0)
        return number * 2

    for group in (1, 5):
        found = list(ordered_map(work, range(100), workers=3, group=group))
        assert found == [number * 2 for number in range(100)]
    assert len(threads) > 1
    assert threading.get_ident() not in threads


def test_little_is_taken_ahead() -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        while taken < 10_000:
            taken += 1
            yield taken

    results = ordered_map(lambda item: item, items(), workers=2, group=2)
    for _ in range(10):
        next(results)
    results.close()
    assert taken < 40


@pytest.mark.parametrize("workers", [1, 3])
def test_what_fails_comes_behind_what_did_not(workers: int) -> None:
    def items() -> Iterator[int]:
        yield from range(7)
        raise ValueError("no more")

    found: list[int] = []
    results = ordered_map(lambda item: item, items(), workers=workers, group=2)
    with pytest.raises(ValueError, match="no more"):
        found.extend(results)
    assert found == list(range(7))


def test_reading_ahead_keeps_order_errors_and_no_thread() -> None:
    before = threading.active_count()
    assert list(ahead(iter(range(50)))) == list(range(50))

    def fails() -> Iterator[int]:
        yield 1
        raise KeyError("gone")

    found = []
    with pytest.raises(KeyError, match="gone"):
        found += list(ahead(fails()))
    closed = threading.Event()

    def endless() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.set()

    numbers = ahead(endless())
    next(numbers)
    numbers.close()
    assert closed.is_set()
    assert threading.active_count() == before
