"""Tests that every kind of dataset must pass."""

import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from relive import errors
from relive.episodes import ConcatDataset, Dataset, Episode, LocalDataset
from tests.contracts.dataset_contract import DATASETS, ON_DISK, root
from tests.episodes.processes import in_process

N = 5


@pytest.fixture(params=DATASETS)
def make(request: pytest.FixtureRequest) -> Callable[[int], Dataset]:
    return DATASETS[request.param]


@pytest.fixture
def dataset(make: Callable[[int], Dataset]) -> Dataset:
    return make(N)


def numbers(episodes: Sequence[Episode]) -> list[int]:
    return [each["number"] for each in episodes]


def content(dataset: Dataset) -> list[Any]:
    return [(each.uid, each["number"], each["x"].timestamps.tolist()) for each in dataset]


EXPECTED = [(f"u{i}", i, [10 * i + row for row in range(i + 1)]) for i in range(N)]


def test_length_order_and_iteration(dataset: Dataset) -> None:
    assert isinstance(dataset, Dataset)
    assert isinstance(dataset, Sequence)
    assert len(dataset) == N
    assert content(dataset) == EXPECTED
    assert numbers(list(reversed(dataset))) == list(range(N))[::-1]
    assert dataset.uids == tuple(f"u{i}" for i in range(N))


def test_empty_dataset(make: Callable[[int], Dataset]) -> None:
    dataset = make(0)
    assert (len(dataset), list(dataset), dataset.uids) == (0, [], ())
    assert dataset[:] == []
    assert dataset.table().num_rows == 0
    assert [len(part) for part in dataset.split((1, 1))] == [0, 0]
    with pytest.raises(errors.OutOfRangeError):
        dataset[0]


def test_integer_positions(dataset: Dataset) -> None:
    for position in range(-N, N):
        for index in (position, np.int64(position)):
            assert dataset[index]["number"] == position % N
    for outside in (N, -N - 1, 2**70):
        with pytest.raises(errors.OutOfRangeError):
            dataset[outside]
        with pytest.raises(errors.OutOfRangeError):
            dataset[[0, outside]]
    for wrong in (1.0, "u1", None, [0.5]):
        with pytest.raises(errors.InvalidTypeError):
            dataset[wrong]  # type: ignore[index]
    for mask in (True, [True] * N, np.ones(N, bool)):
        with pytest.raises(errors.MaskError):
            dataset[mask]


@pytest.mark.parametrize(
    "key",
    [
        slice(None),
        slice(1, 9, 2),
        slice(None, None, -1),
        slice(-2, None),
        slice(3, 1),
        [4, 0, 4],
        [],
        range(3, 0, -1),
        np.array([-1, 0]),
    ],
    ids=str,
)
def test_slices_and_lists_of_positions(dataset: Dataset, key: Any) -> None:
    expected = np.arange(N)[key if isinstance(key, slice) else np.array(key, dtype=int)].tolist()
    found = dataset[key]
    assert type(found) is list
    assert numbers(found) == expected
    assert numbers(dataset.select(key)) == expected
    assert dataset.select(key).uids == tuple(f"u{i}" for i in expected)
    assert numbers(dataset.select(key).select(slice(None, None, -1))) == expected[::-1]


def test_lookup_by_uid(dataset: Dataset) -> None:
    for position, uid in enumerate(dataset.uids):
        assert dataset.uid_at(position) == dataset[position].uid == uid
        assert dataset.by_uid(uid)["number"] == position
    with pytest.raises(errors.UnknownNameError, match="'u9'"):
        dataset.by_uid("u9")


def test_views_of_views(dataset: Dataset) -> None:
    odd = dataset.filter(lambda each: each["number"] % 2)
    assert numbers(odd) == [1, 3]
    assert numbers(odd.map(lambda each: each)) == [1, 3]
    both = odd + dataset
    assert isinstance(both, ConcatDataset)
    assert numbers(both) == [1, 3, *range(N)]
    assert len(dataset + dataset) == 2 * N
    with pytest.raises(TypeError):
        dataset + 1  # type: ignore[operator]


def test_split_returns_each_episode_once(dataset: Dataset) -> None:
    for by in ("uid", "number", lambda each: each["number"], range(N)):
        parts = dataset.split((0.6, 0.4), by=by, seed=3)
        assert sorted(uid for part in parts for uid in part.uids) == sorted(dataset.uids)
        assert all(numbers(part) == sorted(numbers(part)) for part in parts)
    with pytest.raises(errors.InvalidError, match="one key for each of 5 episodes, got 2"):
        dataset.split((1, 1), by=[1, 2])


def test_table_has_one_row_per_episode(dataset: Dataset) -> None:
    table = dataset.table()
    assert table["position"].to_pylist() == list(range(N))
    assert table["uid"].to_pylist() == list(dataset.uids)
    assert table["rows"].to_pylist() == [{"x": i + 1} for i in range(N)]
    assert table["statics"].to_pylist() == [{"number": i} for i in range(N)]
    assert table["first_ts"].to_pylist() == [10 * i for i in range(N)]
    assert table["last_ts"].to_pylist() == [11 * i for i in range(N)]


def test_repr_is_one_line(dataset: Dataset) -> None:
    assert "\n" not in repr(dataset)
    assert "episode" in repr(dataset)


def test_pickle_round_trip(dataset: Dataset) -> None:
    for _ in range(2):  # pickled before and after use
        again = pickle.loads(pickle.dumps(dataset))  # noqa: S301 - our own data
        assert content(again) == EXPECTED
        assert again.by_uid("u1").uid == dataset.by_uid("u1").uid


@pytest.mark.parametrize("name", ON_DISK)
def test_pickled_local_dataset_is_small(name: str) -> None:
    dataset = DATASETS[name](N)
    content(dataset)
    assert len(pickle.dumps(dataset)) < 1000


def test_concurrent_reads_from_threads(dataset: Dataset) -> None:
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(content, [dataset] * 8)) == [EXPECTED] * 8


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("name", ["list", "local", "concat", "mapped", "replay"])
def test_reads_in_other_processes(name: str, method: str) -> None:
    assert in_process(method, content, DATASETS[name](N)) == EXPECTED


def test_views_do_not_change_on_refresh() -> None:
    dataset = LocalDataset(root(N))
    views = [dataset.select([0, 1]), dataset.map(lambda each: each), dataset + dataset]
    lengths = [len(view) for view in views]
    dataset.edits.drop("u0")
    try:
        dataset.refresh()
        assert len(dataset) == N - 1
        assert [len(view) for view in views] == lengths
        assert all(view.uids[0] == "u0" for view in views)
    finally:
        dataset.edits.undrop("u0")
