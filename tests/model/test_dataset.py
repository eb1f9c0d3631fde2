"""Datasets: positions, and lazy selection, concatenation and mapping."""

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from relive.errors import (
    InvalidError,
    InvalidTypeError,
    MaskError,
    OutOfRangeError,
    UnknownNameError,
)
from relive.model.dataset import ConcatDataset, Dataset, EpisodeList
from relive.model.episode import Episode, EpisodeView
from relive.model.signal import ArraySignal


def episode(number: int) -> EpisodeView:
    signal = ArraySignal(np.arange(3.0) + number, np.arange(3) + 10 * number, name="x")
    return EpisodeView({"x": signal}, {"number": number}, {"uid": f"u{number}"})


def made(count: int, start: int = 0) -> EpisodeList:
    return EpisodeList([episode(number) for number in range(start, start + count)])


def numbers(episodes: Dataset | list[Episode]) -> list[int]:
    return [each["number"] for each in episodes]


class Watched(Dataset):
    """Notes which of its episodes were opened."""

    def __init__(self, count: int) -> None:
        self.inner = made(count)
        self.opened: list[int] = []

    def __len__(self) -> int:
        return len(self.inner)

    def episode_at(self, position: int) -> Episode:
        self.opened.append(position)
        return self.inner.episode_at(position)

    def uid_at(self, position: int) -> str:
        return f"u{position}"


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (slice(None), [0, 1, 2, 3, 4]),
        (slice(1, 9, 2), [1, 3]),
        (slice(None, None, -1), [4, 3, 2, 1, 0]),
        ([4, 0, 4], [4, 0, 4]),
        ((1, 2), [1, 2]),
        (np.array([-1, 0]), [4, 0]),
        (np.array([2], dtype=np.uint8), [2]),
        (range(3, 0, -1), [3, 2, 1]),
        ([], []),
    ],
)
def test_several_positions_return_a_list_and_select_is_lazy(key: Any, expected: list[int]) -> None:
    dataset = made(5)
    found = dataset[key]
    assert type(found) is list
    assert numbers(found) == expected
    selected = dataset.select(key)
    assert isinstance(selected, Dataset)
    assert len(selected) == len(expected)
    assert numbers(selected) == expected


def test_one_position_returns_an_episode() -> None:
    dataset = made(3)
    assert [dataset[i]["number"] for i in (0, -1, np.int64(1))] == [0, 2, 1]
    for outside in (3, -4, 2**70):
        with pytest.raises(OutOfRangeError):
            dataset[outside]


@pytest.mark.parametrize("key", [[True, False, True], np.array([True, False, True]), True])
def test_masks_raise(key: Any) -> None:
    dataset = made(3)
    for choose in (dataset.__getitem__, dataset.select):
        with pytest.raises(MaskError) as caught:
            choose(key)
        assert isinstance(caught.value, TypeError)
        assert isinstance(caught.value, IndexError)


@pytest.mark.parametrize("key", [1.0, [1.5], "u1", None, {"a": 1}])
def test_positions_must_be_integers(key: Any) -> None:
    with pytest.raises(InvalidTypeError):
        made(3)[key]
    with pytest.raises(InvalidTypeError):
        made(3).select(key)


def test_nested_selections_match_lists() -> None:
    dataset, plain = made(12), list(range(12))
    keys: list[Any] = [
        slice(None, None, -1),
        slice(1, 9, 3),
        [2, 0, 0],
        range(3, 12, 2),
        slice(5, 2),
    ]
    for first in keys:
        for second in (slice(None, None, -1), slice(0, 2), slice(0, 0)):
            chosen = np.array(plain, dtype=np.int64)[
                np.array(dataset_rows(first, 12), dtype=np.int64)
            ]
            expected = chosen[second].tolist()
            assert numbers(dataset.select(first).select(second)) == expected


def dataset_rows(key: Any, length: int) -> list[int]:
    return list(range(*key.indices(length))) if isinstance(key, slice) else list(key)


def test_select_with_a_single_position_raises() -> None:
    with pytest.raises(InvalidTypeError, match="a slice, a list or an array"):
        made(3).select(1)  # type: ignore[arg-type]


def test_episodes_are_opened_lazily() -> None:
    dataset = Watched(6)
    chosen = dataset.select([5, 1, 3]).filter(lambda each: each["number"] > 1).map(lambda e: e)
    joined = chosen + dataset.select(slice(2))
    assert dataset.opened == []
    assert repr(chosen).count("\n") == 0
    assert dataset.opened == []
    assert len(joined) == 4
    assert dataset.opened == [5, 1, 3]
    assert joined[0]["number"] == 5
    assert len(joined) == 4
    assert dataset.opened == [5, 1, 3, 5]


def test_filter_calls_the_function_once_per_episode() -> None:
    asked = []

    def odd(each: Episode) -> int:
        asked.append(each["number"])
        return int(each["number"]) % 2  # any truth value is accepted

    kept = made(5).filter(odd)
    assert asked == []
    assert numbers(kept) == [1, 3]
    assert numbers(kept[::-1]) == [3, 1]
    assert asked == [0, 1, 2, 3, 4]
    with pytest.raises(InvalidTypeError):
        made(1).filter("task")  # type: ignore[arg-type]


def test_map_changes_episodes_and_keeps_uids() -> None:
    changed = made(3).map(lambda each: EpisodeView(each.signals, {"number": -each["number"]}))
    assert numbers(changed) == [0, -1, -2]
    assert changed.uids == ("u0", "u1", "u2")
    assert changed.by_uid("u2")["number"] == -2
    with pytest.raises(InvalidTypeError, match="must contain episodes, got an int"):
        made(1).map(lambda each: 7)[0]  # type: ignore[arg-type, return-value]


def test_concatenated_datasets() -> None:
    joined = made(2) + made(0) + made(3, 10)
    assert isinstance(joined, ConcatDataset)
    assert len(joined.datasets) == 3
    assert numbers(joined) == [0, 1, 10, 11, 12]
    assert numbers(joined[[-1, 2]]) == [12, 10]
    assert joined.uids == ("u0", "u1", "u10", "u11", "u12")
    assert len(ConcatDataset()) == 0
    with pytest.raises(OutOfRangeError):
        ConcatDataset()[0]
    with pytest.raises(TypeError):
        made(1) + 7  # type: ignore[operator]
    with pytest.raises(InvalidTypeError):
        ConcatDataset([episode(1)])  # type: ignore[arg-type]


def test_lookup_by_uid() -> None:
    dataset = made(3) + made(2, 1)
    assert dataset.by_uid("u1") is dataset[1]
    with pytest.raises(UnknownNameError, match="'u9'"):
        dataset.by_uid("u9")
    segments = EpisodeList([EpisodeView({}, {}, {"uid": uid}) for uid in ("a#0", "a#1")])
    with pytest.raises(UnknownNameError, match=r"hint: the episode was cut into 'a#0' and 'a#1'"):
        segments.by_uid("a")


def test_uid_lookup_opens_no_episode() -> None:
    dataset = Watched(4)
    for view in (dataset.select([2, 0]), dataset.map(lambda e: e), dataset + dataset):
        assert set(view.uids) <= {"u0", "u1", "u2", "u3"}
        view.split((0.5, 0.5))
    assert dataset.opened == []
    assert dataset.filter(lambda each: each["number"] > 2).uids == ("u3",)


def sides(parts: tuple[Dataset, ...]) -> dict[str, int]:
    return {uid: side for side, part in enumerate(parts) for uid in part.uids}


def test_split_is_complete_and_stable_when_episodes_are_added() -> None:
    small = sides(made(100).split((0.8, 0.2)))
    large = sides(made(400).split((0.8, 0.2)))
    assert len(small) == 100
    assert len(large) == 400
    assert all(large[uid] == side for uid, side in small.items())
    assert 20 < sum(large.values()) < 140
    assert sides(made(100).split((0.8, 0.2), seed=1)) != small
    part, _ = made(100).split((0.8, 0.2))
    assert numbers(part) == sorted(numbers(part))


def test_segments_of_one_episode_stay_together() -> None:
    segments = [f"u{n}{end}" for n in range(50) for end in ("#0", "#1#0", "#1#1")]
    dataset = EpisodeList([EpisodeView({}, {}, {"uid": uid}) for uid in segments])
    found = sides(dataset.split((1, 1)))
    whole = sides(made(50).split((1, 1)))
    assert {uid: whole[uid.partition("#")[0]] for uid in segments} == found


def test_split_by_static_function_or_keys() -> None:
    statics = [{"task": f"t{n % 7}"} if n % 2 else {} for n in range(60)]
    dataset = EpisodeList(
        [EpisodeView({}, each, {"uid": f"u{n}"}) for n, each in enumerate(statics)]
    )
    by_name = [part.uids for part in dataset.split((1, 1), by="task")]
    by_function = [p.uids for p in dataset.split((1, 1), by=lambda e: e.statics.get("task"))]
    by_keys = [p.uids for p in dataset.split((1, 1), by=[each.get("task") for each in statics])]
    assert by_name == by_function == by_keys
    for part in dataset.split((1, 1), by="task"):
        for other in dataset.split((1, 1), by="task"):
            if part.uids != other.uids:
                mine, theirs = ({e.statics.get("task") for e in p} for p in (part, other))
                assert not mine & theirs
    with pytest.raises(UnknownNameError, match="'tsak'"):
        dataset.split((1, 1), by="tsak")
    with pytest.raises(InvalidError, match="one key for each of 60 episodes, got 2"):
        dataset.split((1, 1), by=[1, 2])
    with pytest.raises(InvalidTypeError):
        dataset.split((1, 1), by=3)  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="ratios"):
        dataset.split(())
    assert [len(part) for part in made(0).split((1, 1), by="task")] == [0, 0]


def double(each: Episode) -> Episode:
    return EpisodeView(each.signals, {"number": 2 * each["number"]}, each.meta)


def views() -> Iterator[Dataset]:
    dataset = made(6)
    yield dataset
    yield dataset.select(slice(None, None, 2))
    yield dataset.select([5, 0])
    yield dataset.filter(lambda each: each["number"] % 2)
    yield dataset.map(double)
    yield dataset + dataset.filter(lambda each: each["number"] > 3).map(double)


@pytest.mark.parametrize("view", list(views()), ids=lambda view: type(view).__name__)
def test_all_datasets_pickle(view: Dataset) -> None:
    expected = numbers(view)
    assert view.by_uid(view.uids[0]).uid == view.uids[0]
    again = pickle.loads(pickle.dumps(view))  # noqa: S301 - our own data
    assert numbers(again) == expected
    assert again.uids == view.uids


@pytest.mark.parametrize("view", list(views()), ids=lambda view: type(view).__name__)
def test_repr_is_one_line(view: Dataset) -> None:
    assert "\n" not in repr(view)
    assert "EpisodeList(6 episodes)" in repr(view)


def test_dataset_is_a_sequence() -> None:
    dataset = made(3)
    assert numbers(list(reversed(dataset))) == [2, 1, 0]
    assert dataset[1] in dataset
    assert dataset.index(dataset[2]) == 2
    with pytest.raises(InvalidTypeError, match="must contain episodes, got a str"):
        EpisodeList(["u0"])  # type: ignore[list-item]


def test_error_messages_mention_episodes() -> None:
    with pytest.raises(OutOfRangeError, match="index 5 is out of range for 1 episode"):
        EpisodeList([EpisodeView({})])[5]
    with pytest.raises(OutOfRangeError, match="index -3 is out of range for 2 episodes"):
        EpisodeList([EpisodeView({})] * 2)[[0, -3]]
    with pytest.raises(MaskError, match="cannot select episodes with booleans"):
        EpisodeList([])[[True]]
