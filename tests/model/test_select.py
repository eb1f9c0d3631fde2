"""Nested views are combined, stay small, and pass their selection to native code."""

import pickle
from typing import Any

import numpy as np
import pytest

from relive.errors import InvalidError, InvalidTypeError, OutOfRangeError
from relive.model import Source, Subset
from tests.contracts.source_contract import ListSource, pickled


class FakeTable:
    """Records the selection it was asked for."""

    def __init__(self, selected: object = None) -> None:
        self.selected = selected

    def select_range(self, start: int, step: int, length: int) -> "FakeTable":
        return FakeTable((start, step, length))

    def select(self, rows: Any) -> "FakeTable":
        return FakeTable(rows)


class NativeSource(ListSource):
    """A source with a native table that cannot be pickled."""

    def __init__(self, length: int) -> None:
        super().__init__(np.arange(length))
        self.table = FakeTable()

    def native_table(self) -> Any:
        return self.table

    def __reduce__(self) -> tuple[Any, ...]:
        return NativeSource, (len(self),)


def numbers(length: int) -> Source:
    return ListSource(np.arange(length))


def test_rows_are_checked() -> None:
    source = numbers(5)
    for rows in ([5], [-1], range(6), range(4, -2, -1), np.array([9])):
        with pytest.raises(OutOfRangeError):
            Subset(source, rows)
    with pytest.raises(InvalidError):
        Subset(source, [[0, 1]])
    with pytest.raises(InvalidTypeError):
        Subset(source, np.ones(5, dtype=bool))
    assert len(Subset(source, [])) == 0
    assert Subset(source, range(9, 3)).rows == range(0)


def test_rows_are_copied() -> None:
    source = numbers(5)
    mine = np.array([1, 2])
    for given in (mine, mine[:], mine.astype(np.int32)):
        view = Subset(source, given)
        assert isinstance(view.rows, np.ndarray)
        assert not view.rows.flags.writeable
        assert not np.shares_memory(view.rows, mine)
    assert mine.flags.writeable


def test_views_of_views_refer_to_the_root() -> None:
    root = numbers(100)
    view = root[10:][::2][[3, 1]][::-1]
    assert view.source is root
    assert isinstance(view.rows, np.ndarray)
    assert view.rows.tolist() == [12, 16]
    assert Subset(Subset(root, range(50, 60)), [9, 0]).source is root


def test_slices_use_no_memory() -> None:
    class Long(ListSource):
        def __len__(self) -> int:
            return 10**15

    view = Long([0])[5:][::3][::-1][7:]
    assert isinstance(view.rows, range)
    assert len(pickle.dumps(view.rows)) < 100


@pytest.mark.parametrize("inner", [range(4, -1, -1), range(4, -1, -2), range(1, 5, 3), range(2, 2)])
def test_slices_of_arrays_are_contiguous(inner: range) -> None:
    view = Subset(Subset(numbers(9), [8, 1, 5, 0, 3]), inner)
    rows = np.asarray(view.rows)
    assert rows.tolist() == [[8, 1, 5, 0, 3][k] for k in inner]
    assert rows.flags.c_contiguous


def test_fields_are_those_of_the_source() -> None:
    assert numbers(3)[:1].fields == numbers(3).fields


def test_native_selection_of_a_range_is_three_numbers() -> None:
    view = NativeSource(10)[8:1:-2]
    table: Any = view.native_table()
    assert table.selected == (8, -2, 4)
    assert view.native_table() is table


def test_native_selection_of_an_array_is_not_copied() -> None:
    view = NativeSource(10)[[4, 4, 1]]
    table: Any = view.native_table()
    assert table.selected is view.rows


def test_selection_is_rebuilt_for_another_native_table() -> None:
    source = NativeSource(10)
    view = source[:4]
    first = view.native_table()
    source.table = FakeTable()
    assert view.native_table() is not first


def test_pickle_contains_only_the_source_and_the_rows() -> None:
    view = NativeSource(1000)[::2]
    view.native_table()
    assert len(pickle.dumps(view)) < 300
    again = pickled(view)
    assert isinstance(again, Subset)
    assert again.rows == range(0, 1000, 2)
    chosen = pickled(NativeSource(1000)[[5, 1]])
    assert isinstance(chosen, Subset)
    assert isinstance(chosen.rows, np.ndarray)
    assert not chosen.rows.flags.writeable
