"""Changing a store: one record, one field, or several at once."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive import Field, Ragged, RecordStore
from relive.errors import InvalidError, InvalidTypeError, OutOfRangeError, UnsupportedError

FIELDS = {
    "x": Field("f4", (2,)),
    "n": Field("i4"),
    "z": Field("i4", codec="zstd"),
    "r": Field("i2", ragged=True),
    "k": Field("f8", ragged=2),
    "t": Field("str"),
    "j": Field("json"),
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RecordStore]:
    """Return a store of ten records that is open for writing."""
    store = RecordStore.create(tmp_path / "s", FIELDS)
    store.extend({
        "x": np.arange(20).reshape(10, 2), "n": np.arange(10), "z": np.arange(10),
        "r": [[k] * k for k in range(10)], "k": [np.full((k, 2), k, "f8") for k in range(10)],
        "t": list("abcdefghij"), "j": [[k] for k in range(10)],
    })  # fmt: skip
    with store:
        yield store


def test_record_is_replaced_as_a_whole(store: RecordStore) -> None:
    store[3] = {"n": 33, "t": "new"}
    store[-1] = {"x": [7, 8]}
    row = store[3]
    assert (row["n"], row["t"], row["z"], row["j"]) == (33, "new", 0, None)
    assert (row["x"].tolist(), row["r"].tolist(), row["k"].shape) == ([0, 0], [], (0, 0))
    assert store.missing("x").tolist() == [k == 3 for k in range(10)]
    assert store[9]["x"].tolist() == [7, 8]
    assert store.missing("t").tolist() == [k == 9 for k in range(10)]
    assert store["n"][[2, 4]].tolist() == [2, 4]


def test_record_is_copied_by_row(store: RecordStore) -> None:
    store[2] = store[7]
    for name in FIELDS:
        np.testing.assert_array_equal(store[name][2], store[name][7])


@pytest.mark.parametrize("key", [[1, 2], slice(0, 3), np.array([1]), range(2), ...])
def test_several_records_cannot_be_replaced_at_once(store: RecordStore, key: Any) -> None:
    with pytest.raises(InvalidTypeError, match="must be an integer") as caught:
        store[key] = {"n": 1}
    assert "store['field'][indices] = values" in str(caught.value.hint)


def test_keys_of_an_assignment_are_checked(store: RecordStore) -> None:
    for key in (10, -11, 2**70):
        with pytest.raises(OutOfRangeError):
            store[key] = {"n": 1}
        with pytest.raises(OutOfRangeError):
            store["n"][key] = 1
        with pytest.raises(OutOfRangeError):
            del store[key]
    for wrong in (1.5, None, True):
        with pytest.raises(InvalidTypeError):
            store[wrong] = {"n": 1}  # type: ignore[index]
        with pytest.raises(InvalidTypeError):
            del store[wrong]  # type: ignore[arg-type]
    with pytest.raises(InvalidTypeError) as caught:
        store["n"] = 3  # type: ignore[index, assignment]
    assert "store['n'][indices] = values" in str(caught.value.hint)
    with pytest.raises(InvalidTypeError) as dropped:
        del store["n"]
    assert dropped.value.hint == "store.drop_field('n') removes a field"


def test_one_field_of_one_record(store: RecordStore) -> None:
    changes: dict[str, Any] = {"x": [5, 6], "n": -1, "z": 7, "r": [9, 9], "k": np.ones((1, 3)),
                               "t": "ü", "j": {"a": 1}}  # fmt: skip
    for name, value in changes.items():
        store[name][4] = value
        np.testing.assert_array_equal(store[name][4], value)
    for name in FIELDS:
        assert not store.missing(name).any()
        store[name][4] = None
        assert store.missing(name).tolist() == [k == 4 for k in range(10)]


@pytest.mark.parametrize(
    ("name", "key", "values", "wanted"),
    [
        ("n", [0, 2], [7, 8], [7, 8]),
        ("n", slice(0, 4), 5, [5] * 4),
        ("n", [1, 1], np.array([1, 2]), [2, 2]),
        ("n", np.arange(10) > 7, np.array([1, 2], "i8"), [1, 2]),
        ("n", [], [], []),
        ("n", [1, 2], [None, 3], [0, 3]),
        ("n", [1, 2], None, [0, 0]),
        ("z", slice(None, None, 3), 9, [9] * 4),
        ("x", [0, 1, 2], 1, [[1, 1]] * 3),
        ("x", [0, 1, 2], [3, 4], [[3, 4]] * 3),
        ("x", [0, 1], [[1, 2], [3, 4]], [[1, 2], [3, 4]]),
        ("x", [0, 1], [np.array([1, 2], "f4"), None], [[1, 2], [0, 0]]),
        ("r", [0, 1], [[1], []], [[1], []]),
        ("r", [0, 1], Ragged.from_list([[1, 2], [3]]), [[1, 2], [3]]),
        ("r", [0, 1], np.ones((2, 3), "i2"), [[1, 1, 1]] * 2),
        ("k", [0, 1], [np.ones((1, 1)), None], [[[1]], []]),
        ("t", [0, 1], ["x", None], ["x", ""]),
        ("t", [0, 1], "both", ["both", "both"]),
        ("j", [0, 1], [[1], "x"], [[1], "x"]),
        ("j", [0, 1], {"a": 1}, [{"a": 1}, {"a": 1}]),
    ],
    ids=str,
)
def test_one_field_of_several_records(
    store: RecordStore, name: str, key: Any, values: Any, wanted: list[Any]
) -> None:
    others = [row for row in range(10) if row not in np.arange(10)[key]]
    before = store.gather(others)[name]
    store[name][key] = values
    found = store[name][key]
    listed = [getattr(value, "tolist", lambda value=value: value)() for value in found]
    assert listed == wanted
    for one, other in zip(before, store.gather(others)[name], strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("name", "key", "values"),
    [
        ("n", [0, 1], [1, 2, 3]),
        ("n", [0, 1], 1.5),
        ("n", [0, 1], "x"),
        ("x", [0, 1], [1, 2, 3]),
        ("r", [0, 1], [[1]]),
        ("r", [0, 1], 3),
        ("t", [0, 1], ["a"]),
        ("t", [0, 1], [1, 2]),
        ("t", [0, 1], b"x"),
        ("j", [0, 1], [1]),
    ],
)
def test_values_that_do_not_fit_change_nothing(
    store: RecordStore, name: str, key: Any, values: Any
) -> None:
    with pytest.raises((InvalidError, InvalidTypeError), match=f"'{name}'"):
        store[name][key] = values
    assert store["n"][:].tolist() == list(range(10))
    assert "".join(store["t"][:]) == "abcdefghij"


def test_last_record_replaces_a_deleted_one(store: RecordStore) -> None:
    assert store.delete(2) == [(9, 2)]
    assert store["n"][:].tolist() == [0, 1, 9, 3, 4, 5, 6, 7, 8]
    del store[-1]
    assert store["n"][:].tolist() == [0, 1, 9, 3, 4, 5, 6, 7]
    assert store.delete([0, 6, 7]) == [(5, 0)]
    assert store["n"][:].tolist() == [5, 1, 9, 3, 4]
    assert store["t"][:].tolist() == ["f", "b", "j", "d", "e"]
    assert store.delete([]) == []
    assert store.delete(np.array([True, False, False, False, True])) == [(3, 0)]
    assert store["n"][:].tolist() == [3, 1, 9]
    assert store.delete([1, 1, -2]) == [(2, 1)]
    del store[:]
    assert len(store) == 0
    assert store.append({"n": 5}) == 0
    assert store["n"][:].tolist() == [5]


def test_delete_returns_the_moves(store: RecordStore) -> None:
    rng = np.random.default_rng(5)
    rows_by_number = {number: number for number in range(10)}
    for count in itertools.cycle([1, 3]):
        if len(store) < count:
            break
        rows = rng.choice(len(store), count, replace=False)
        deleted = set(rows.tolist())
        rows_by_number = {
            number: row for number, row in rows_by_number.items() if row not in deleted
        }
        for start, stop in store.delete(rows):
            for number, row in rows_by_number.items():
                if row == start:
                    rows_by_number[number] = stop
        assert {number: store[row]["n"] for number, row in rows_by_number.items()} == {
            number: number for number in rows_by_number
        }


def test_read_only_store_cannot_be_changed(store: RecordStore) -> None:
    store.close()
    with RecordStore.open(store.path) as reader:
        calls: list[Any] = [
            lambda: reader.append({"n": 1}),
            lambda: reader.extend({"n": [1]}),
            lambda: reader.__setitem__(0, {"n": 1}),
            lambda: reader["n"].__setitem__(0, 1),
            lambda: reader.__delitem__(0),
            lambda: reader.delete([0]),
            reader.flush,
            reader.sync,
            reader.rebalance,
            reader.abort,
            lambda: reader.add_field("y", Field("i4")),
            lambda: reader.drop_field("n"),
            lambda: reader.train_dictionary("z"),
        ]
        for call in calls:
            with pytest.raises(UnsupportedError, match="open for reading") as caught:
                call()
            assert caught.value.hint == 'open it with RecordStore.open(path, mode="a")'


def test_rebalance_reports_progress_and_can_be_stopped(store: RecordStore) -> None:
    reported: list[tuple[int, int]] = []
    store.rebalance(progress=lambda *done: reported.append(done))
    assert reported[-1] == (10, 10)

    def stop(*_: int | None) -> None:
        raise KeyboardInterrupt

    store.delete([3, 4])
    with pytest.raises(KeyboardInterrupt):
        store.rebalance(progress=stop)
    assert store["n"][:].tolist() == [0, 1, 2, 8, 9, 5, 6, 7]
    store.append({"n": 77})
    store.rebalance()
    store.close()
    assert RecordStore.open(store.path)["n"][:].tolist() == [0, 1, 2, 8, 9, 5, 6, 7, 77]
