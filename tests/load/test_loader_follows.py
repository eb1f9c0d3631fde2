"""Loaders over a store that changes: every epoch has the rows of its start."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from relive import DataLoader, Field, RecordStore, errors
from relive.load import Concat, Map

KINDS = {
    "dense": Field("i8"),
    "ragged": Field("i8", ragged=1),
    "text": Field("str"),
}


def value(kind: str, number: int) -> Any:
    """Return a value from which `number_of` reads the number."""
    if kind == "ragged":
        return np.full(number % 3 + 1, number)
    return f"n{number}" if kind == "text" else number


def numbers_of(kind: str, batch: dict[str, Any]) -> list[int]:
    values = batch["x"]
    if kind == "ragged":
        return [int(values[row][0]) for row in range(len(values))]
    if kind == "text":
        return [int(text[1:]) for text in values]
    return [int(each) for each in values]


def store_of(path: Path, kind: str, rows: int) -> RecordStore:
    store = RecordStore.create(path, {"x": KINDS[kind]}, workers=1)
    for number in range(rows):
        store.append({"x": value(kind, number)})
    store.flush()
    return store


def epoch_of(loader: DataLoader, kind: str) -> list[int]:
    return [number for batch in loader.epoch() for number in numbers_of(kind, batch)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("handle", ["writer", "reader"])
@pytest.mark.parametrize("tail", ["keep", "wrap"])
def test_epoch_has_the_rows_of_its_start(tmp_path: Path, kind: str, handle: str, tail: str) -> None:
    with store_of(tmp_path / "s", kind, 10) as store:
        source = store if handle == "writer" else RecordStore.open(tmp_path / "s")
        with DataLoader(source, batch_size=5, tail=tail) as loader:
            first = loader.epoch()
            found = numbers_of(kind, next(first))
            for number in range(10, 25):
                store.append({"x": value(kind, number)})
            store.flush()
            if handle == "reader":
                assert source.refresh()
            found += [number for batch in first for number in numbers_of(kind, batch)]
            assert sorted(found) == list(range(10))
            assert sorted(epoch_of(loader, kind)) == list(range(25))
            assert loader.epoch_number == 2
            for _ in range(20):
                store.delete(0)
            store.flush()
            if handle == "reader":
                assert source.refresh()
            assert sorted(epoch_of(loader, kind)) == sorted(_numbers(store, kind))


def _numbers(store: RecordStore, kind: str) -> list[int]:
    return numbers_of(kind, store.gather(range(len(store))))


def test_endless_iteration_keeps_its_first_rows(tmp_path: Path) -> None:
    with store_of(tmp_path / "s", "dense", 10) as store, DataLoader(store, batch_size=5) as loader:
        next(loader)
        store.append({"x": 10})
        store.flush()
        found = [number for _ in range(19) for number in next(loader)["x"].tolist()]
        assert set(found) == set(range(10))


def test_finite_iteration_has_the_rows_of_its_start(tmp_path: Path) -> None:
    with store_of(tmp_path / "s", "dense", 10) as store:
        loader = DataLoader(store, batch_size=4, epochs=1, tail="keep")
        assert len([row for batch in loader for row in batch["x"]]) == 10
        store.append({"x": 10})
        store.flush()
        assert sorted(row for batch in loader for row in batch["x"].tolist()) == list(range(11))


@pytest.mark.parametrize("tail", ["keep", "wrap", "drop", "pad"])
def test_state_finishes_its_epoch_over_its_rows(tmp_path: Path, tail: str) -> None:
    with store_of(tmp_path / "s", "dense", 10) as store:
        with DataLoader(store, batch_size=4, tail=tail) as loader:
            before = next(loader)["x"].tolist()
            state = loader.state_dict()
            rest = [row for batch in loader.epoch() for row in batch["x"].tolist()]
        for number in range(10, 16):
            store.append({"x": number})
        store.flush()
        for is_endless in (False, True):
            with DataLoader(store, batch_size=4, tail=tail) as resumed:
                resumed.load_state_dict(state)
                steps = 4 if tail != "drop" else 3
                if is_endless:
                    rows = [row for _ in range(steps + 2) for row in next(resumed)["x"].tolist()]
                else:
                    rows = [row for batch in resumed.epoch() for row in batch["x"].tolist()]
                    left = set(range(10)) - set(before)
                    assert set(rows) <= set(range(10))
                    assert tail == "drop" or set(rows) >= left
                    assert tail == "wrap" or rows == rest
                    rows = epoch_of(resumed, "dense")
                assert set(rows) >= {10, 11, 12, 13, 14, 15} or tail == "drop"


def test_store_that_shrank_below_a_state_is_an_error(tmp_path: Path) -> None:
    with store_of(tmp_path / "s", "dense", 10) as store:
        with DataLoader(store, batch_size=4) as loader:
            next(loader)
            state = loader.state_dict()
        store.delete(3)
        store.flush()
        with DataLoader(store, batch_size=4) as loader:
            with pytest.raises(
                errors.InvalidError, match="saved with 10 rows, but the source has 9"
            ):
                loader.load_state_dict(state)
            assert len(epoch_of(loader, "dense")) >= 9


def test_composed_sources_follow_their_parts(tmp_path: Path) -> None:
    with store_of(tmp_path / "a", "dense", 3) as one, store_of(tmp_path / "b", "dense", 2) as two:
        both = Map(Concat(one, two), lambda batch: {"x": batch["x"] * 10})
        with DataLoader(both, batch_size=2, tail="keep") as loader:
            assert sorted(epoch_of(loader, "dense")) == [0, 0, 10, 10, 20]
            one.append({"x": 7})
            one.flush()
            assert sorted(epoch_of(loader, "dense")) == [0, 0, 10, 10, 20, 70]


class ChangingStore(RuleBasedStateMachine):
    """A store that grows, shrinks and changes while a loader runs over it."""

    folder: Path
    count = 0

    @initialize(kind=st.sampled_from(sorted(KINDS)), workers=st.integers(0, 2))
    def begin(self, kind: str, workers: int) -> None:
        self.kind = kind
        ChangingStore.count += 1
        self.store = store_of(self.folder / str(ChangingStore.count), kind, 5)
        self.rows = list(range(5))
        self.next_number = 5
        self.loader = DataLoader(self.store, batch_size=3, tail="keep", workers=workers)
        self.epoch: Any = None
        self.expected: list[int] = []
        self.found: list[int] = []

    @rule(count=st.integers(1, 6))
    def append(self, count: int) -> None:
        for _ in range(count):
            self.store.append({"x": value(self.kind, self.next_number)})
            self.rows.append(self.next_number)
            self.next_number += 1

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        if len(self.rows) > 1:
            row = data.draw(st.integers(0, len(self.rows) - 1))
            self.store.delete(row)
            self.rows[row] = self.rows[-1]
            self.rows.pop()

    @rule(data=st.data())
    def change(self, data: st.DataObject) -> None:
        row = data.draw(st.integers(0, len(self.rows) - 1))
        self.store["x"][row] = value(self.kind, self.next_number)
        self.rows[row] = self.next_number
        self.next_number += 1

    @rule()
    def take(self) -> None:
        if self.epoch is None:
            self.epoch = self.loader.epoch()
            self.expected, self.found = sorted(self.rows), []
        batch = next(self.epoch, None)
        if batch is None:
            assert sorted(self.found) == self.expected
            self.epoch = None
        else:
            self.found += numbers_of(self.kind, batch)

    @rule()
    def close_and_continue(self) -> None:
        self.loader.close()

    @invariant()
    def nothing_twice(self) -> None:
        if hasattr(self, "found"):
            assert len(self.found) == len(set(self.found))

    def teardown(self) -> None:
        if hasattr(self, "loader"):
            self.loader.close()
            self.store.close()


def test_every_epoch_is_a_permutation_of_the_rows_at_its_start(tmp_path: Path) -> None:
    ChangingStore.folder = tmp_path
    machine = ChangingStore.TestCase
    machine.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
    machine().runTest()
