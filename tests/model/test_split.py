"""Splits are disjoint, exact or stable, and the same on every machine."""

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from relive.errors import InvalidError, InvalidTypeError, UnknownFieldError
from relive.model import Batch, Field, Ragged, Source, Subset
from relive.model.source import Indices, as_indices, pick_fields
from relive.model.split import split
from tests.contracts.source_contract import ListSource


class Table(Source):
    """Columns in memory, of any dtype."""

    def __init__(self, **columns: npt.NDArray[Any]) -> None:
        self._columns = columns

    @property
    def fields(self) -> Mapping[str, Field]:
        return {
            name: Field("json" if column.dtype == np.dtype("O") else column.dtype, column.shape[1:])
            for name, column in self._columns.items()
        }

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def gather(
        self,
        indices: Indices,
        fields: Sequence[str] | None = None,
        out: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> Batch:
        rows = as_indices(indices, len(self))
        return {name: self._columns[name][rows] for name in pick_fields(self.fields, fields)}


def rows(part: Subset) -> list[int]:
    return [int(row) for row in part.rows]


def sides(keys: Any, ratios: Sequence[float] = (0.5, 0.5), seed: int = 0) -> list[int]:
    parts = split(ListSource(np.arange(len(keys))), ratios, by=keys, seed=seed)
    where = {row: side for side, part in enumerate(parts) for row in rows(part)}
    return [where[row] for row in range(len(keys))]


@pytest.mark.parametrize(
    ("length", "ratios", "sizes"),
    [
        (10, (0.8, 0.2), (8, 2)),
        (10, (8, 2), (8, 2)),
        (10, (1, 1, 1), (4, 3, 3)),
        (3, (0.5, 0.5), (2, 1)),
        (2, (0.98, 0.01, 0.01), (2, 0, 0)),
        (7, (0.7, 0.15, 0.15), (5, 1, 1)),
        (0, (0.5, 0.5), (0, 0)),
        (5, (3,), (5,)),
        (1000, (0.1,) * 10, (100,) * 10),
    ],
)
def test_sizes_are_exact(length: int, ratios: Any, sizes: tuple[int, ...]) -> None:
    parts = split(ListSource(np.arange(length)), ratios)
    assert tuple(map(len, parts)) == sizes
    assert sorted(row for part in parts for row in rows(part)) == list(range(length))
    assert all(rows(part) == sorted(rows(part)) for part in parts)


def test_split_depends_on_the_seed() -> None:
    source = ListSource(np.arange(40))
    assert rows(split(source, (1, 1), seed=7)[0]) == rows(split(source, (1, 1), seed=7)[0])
    assert rows(split(source, (1, 1), seed=7)[0]) != rows(split(source, (1, 1), seed=8)[0])
    # Fixed values: the same rows on every machine and with every version.
    assert rows(split(source, (0.2, 0.8), seed=7)[0]) == [6, 21, 23, 24, 32, 33, 37, 39]
    assert sides(list("abcdefghij"), seed=7) == [0, 1, 1, 0, 1, 0, 1, 0, 0, 0]


@pytest.mark.parametrize("ratios", [(), (1, 0), (-1, 2), (float("nan"), 1), (float("inf"), 1), "ab",
                                    0.5, (None,)])  # fmt: skip
def test_ratios_must_be_positive_numbers(ratios: Any) -> None:
    with pytest.raises(InvalidError, match="positive"):
        split(ListSource([0, 1]), ratios)


def test_seed_must_be_an_integer() -> None:
    with pytest.raises(InvalidError):
        split(ListSource([0, 1]), (1, 1), seed=-1)
    with pytest.raises(InvalidTypeError):
        split(ListSource([0, 1]), (1, 1), seed="a")  # type: ignore[arg-type]


def test_rows_of_one_key_stay_together() -> None:
    keys = np.arange(300) // 7
    where = sides(keys, (0.6, 0.4))
    for key in range(keys.max() + 1):
        assert len({side for side, own in zip(where, keys, strict=True) if own == key}) == 1
    assert set(where) == {0, 1}


def test_keys_do_not_move_when_rows_are_appended() -> None:
    keys = [f"episode-{k}" for k in range(200)]
    assert sides(keys, (0.8, 0.1, 0.1))[:50] == sides(keys[:50], (0.8, 0.1, 0.1))


def test_shares_approximate_the_ratios() -> None:
    where = np.array(sides(np.arange(20_000), (0.7, 0.2, 0.1)))
    np.testing.assert_allclose(np.bincount(where) / len(where), (0.7, 0.2, 0.1), atol=0.015)


def test_seeds_are_independent() -> None:
    first, second = (np.array(sides(np.arange(4000), seed=seed)) for seed in (0, 1))
    assert abs(float(np.mean(first == second)) - 0.5) < 0.05


@pytest.mark.parametrize(
    "same",
    [
        [np.arange(20, dtype=np.int8), np.arange(20.0), range(20), np.arange(20).astype(object)],
        [np.array(list("abcdefg")), list("abcdefg"), np.array(list("abcdefg"), dtype=object)],
        [np.array([b"a", b"b", b"cd"]), [b"a", b"b", b"cd"], [bytearray(b"a"), b"b", b"cd"]],
        [np.arange(12).reshape(6, 2), [(k, k + 1) for k in range(0, 12, 2)],
         list(Ragged.from_list([[k, k + 1] for k in range(0, 12, 2)]))],
        [[{"a": 1, "b": k} for k in range(9)], [{"b": k, "a": 1} for k in range(9)]],
        [[None, True, 0.5, np.nan], [None, 1, np.float32(0.5), float("nan")]],
        [np.array([0.0, -0.0]), [0, 0]],
    ],
)  # fmt: skip
def test_equal_keys_of_different_containers_stay_together(same: list[Any]) -> None:
    assert len({str(sides(keys, (1, 1, 1, 1))) for keys in same}) == 1


def test_keys_of_different_types_are_distinct() -> None:
    many = [[k, str(k), str(k).encode(), (k,), [str(k)], {"k": k}] for k in range(50)]
    columns = {str(sides([row[c] for row in many])) for c in range(6)}
    assert len(columns) == 6
    assert len({*sides([("a", "bc"), ("ab", "c"), ("abc", "")], [1] * 50)}) == 3


def test_dates_are_keys() -> None:
    days = np.arange("2024-01-01", "2024-03-01", dtype="datetime64[D]")
    assert sides(days) == sides(list(days))
    assert set(sides(days)) == {0, 1}


@pytest.mark.parametrize("column", [
    np.arange(20) // 3,
    np.array([f"e{k // 3}" for k in range(20)]),
    np.array([{"e": k // 3} for k in range(20)]),
    np.arange(40, dtype=np.float32).reshape(20, 2) // 6,
], ids=["int", "text", "json", "array"])  # fmt: skip
def test_field_function_and_keys_agree(column: npt.NDArray[Any]) -> None:
    source = Table(key=column, other=np.zeros(20))
    function: Callable[[dict[str, Any]], object] = lambda row: row["key"]  # noqa: E731
    by_field, by_function, by_keys = (
        [rows(part) for part in source.split((0.5, 0.5), by=by, seed=3)]
        for by in ("key", function, column)
    )
    assert by_field == by_function == by_keys


def test_ragged_fields_are_keys() -> None:
    source = ListSource([1, 2, 3, 1, 2, 3])
    for part in split(source, (1, 1), by="tokens"):
        assert {row % 3 for row in rows(part)} == {row % 3 for row in rows(part) if row < 3}


def test_chunk_size_does_not_matter() -> None:
    keys = np.arange(40_000) % 977
    source = Table(key=keys)
    assert [rows(part) for part in split(source, (1, 2), by="key")] == [
        rows(part) for part in split(source, (1, 2), by=keys)
    ]


def test_split_of_a_view_refers_to_the_root() -> None:
    source = ListSource(np.arange(30))
    train, test = source[10:].split((0.5, 0.5))
    assert train.source is source
    assert sorted(rows(train) + rows(test)) == list(range(10, 30))


def test_single_part_stays_a_range() -> None:
    assert split(ListSource(np.arange(9)), (1,))[0].rows == range(9)


@pytest.mark.parametrize(
    ("by", "error"),
    [
        ("nothing", UnknownFieldError),
        ([1, 2], InvalidError),
        (np.arange(4), InvalidError),
        (3, InvalidTypeError),
        (np.array(3), InvalidTypeError),
        ([object()] * 3, InvalidTypeError),
        (lambda row: {1, 2}, InvalidTypeError),
    ],
)
def test_by_without_keys_raises(by: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        split(ListSource([0, 1, 2]), (1, 1), by=by)


def test_hash_randomization_does_not_matter() -> None:
    code = (
        "from tests.model.test_split import sides;"
        "print(sides([str(k) for k in range(30)], (1, 1, 1)))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        ).stdout
        for seed in ("1", "2")
    }
    assert printed == {f"{sides([str(k) for k in range(30)], (1, 1, 1))}\n".encode()}
