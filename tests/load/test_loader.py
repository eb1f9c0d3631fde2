"""The stream of batches: content, position and end."""

import copy
import itertools
import json
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from relive import ArraySource, DataLoader, Sampler, Source, errors
from relive.load import Concat, Mix
from tests.load.reference import MODES, TAILS, Plain, batches_of, rows, same

KINDS: dict[str, Callable[[Source], Source]] = {"native": lambda source: source, "python": Plain}


def negate(batch: dict[str, Any]) -> dict[str, Any]:
    return batch | {"vec": -batch["vec"], "more": batch["id"] + 1}


def assert_same(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert same(one, other), (one, other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [0, 1, 2, 5])
@pytest.mark.parametrize("prefetch", [1, 4, 16])
@pytest.mark.parametrize("transform", [None, negate])
def test_stream_is_the_same_for_any_number_of_workers(
    kind: str, workers: int, prefetch: int, transform: Any
) -> None:
    source = rows(50)
    expected = batches_of(source, Sampler(50, 7, seed=3), 40)
    if transform is not None:
        expected = [transform(batch) for batch in expected]
    with DataLoader(
        KINDS[kind](source),
        batch_size=7,
        seed=3,
        workers=workers,
        prefetch=prefetch,
        transform=transform,
    ) as loader:
        assert_same(list(itertools.islice(loader, 40)), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("tail", TAILS)
def test_every_mode_and_tail_matches_the_sampler(kind: str, mode: str, tail: str) -> None:
    source = rows(23)
    for rank in range(2):
        options: dict[str, Any] = {"seed": 5, "tail": tail, "rank": rank, "world_size": 2}
        expected = batches_of(source, Sampler(23, 3, mode, **options), 15)
        with DataLoader(KINDS[kind](source), batch_size=3, mode=mode, **options) as loader:
            assert_same(list(itertools.islice(loader, 15)), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_windows_add_an_axis(kind: str) -> None:
    source = rows(20)
    sampler = Sampler(20, 4, seed=1, window=3, stride=2, tail="pad")
    with DataLoader(
        KINDS[kind](source), batch_size=4, seed=1, window=3, stride=2, tail="pad"
    ) as loader:
        found = list(itertools.islice(loader, 6))
    assert found[0]["vec"].shape == (4, 3, 3)
    assert_same(found, batches_of(source, sampler, 6))


@pytest.mark.parametrize("workers", [0, 3])
def test_batches_shared_by_threads_are_whole(workers: int) -> None:
    """Large batches are filled by several threads; every part must be complete."""
    data = np.arange(512, dtype=np.int64)[:, None] * np.ones((1, 4096), dtype=np.int64)
    with DataLoader(data, batch_size=128, workers=workers, prefetch=2) as loader:
        for batch, drawn in zip(itertools.islice(loader, 12), Sampler(512, 128), strict=False):
            assert np.array_equal(batch["data"], data[drawn])


def test_composed_sources_stream_natively() -> None:
    source = Concat(rows(9)[::-1], Mix(rows(5), rows(8)[2:], weights=(1, 3), length=11))
    assert source.native_table() is not None
    with DataLoader(source, batch_size=6) as loader:
        assert_same(list(itertools.islice(loader, 9)), batches_of(source, Sampler(20, 6), 9))


def test_batch_larger_than_the_source_wraps() -> None:
    with DataLoader(np.arange(3), batch_size=8, mode="sequential") as loader:
        assert next(loader)["data"].tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
        assert next(loader)["data"].tolist() == [2, 0, 1, 2, 0, 1, 2, 0]


# -- position of the stream -----------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("transform", [None, negate])
def test_state_counts_returned_batches(kind: str, transform: Any) -> None:
    source = KINDS[kind](rows(50))
    reference = Sampler(50, 7, tail="pad")
    with DataLoader(source, batch_size=7, tail="pad", prefetch=8, transform=transform) as loader:
        assert loader.state_dict() == reference.state_dict()
        for _ in range(20):
            next(loader)
            next(reference)
            assert loader.state_dict() == reference.state_dict()
            assert loader.position == reference.position
            assert loader.epoch_number == reference.epoch
        loader.close()
        assert loader.state_dict() == reference.state_dict()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tail", TAILS)
def test_resume_at_any_step_with_any_worker_count(kind: str, tail: str) -> None:
    source = KINDS[kind](rows(23))
    whole = batches_of(rows(23), Sampler(23, 5, seed=2, tail=tail), 30)
    for step in range(0, 24, 3):
        first = DataLoader(source, batch_size=5, seed=2, tail=tail, workers=step % 4)
        with first:
            for _ in range(step):
                next(first)
            state = json.loads(json.dumps(first.state_dict()))
        with DataLoader(
            source, batch_size=5, seed=2, tail=tail, workers=(step + 1) % 4, prefetch=3
        ) as second:
            second.load_state_dict(state)
            assert_same(list(itertools.islice(second, 6)), whole[step : step + 6])
            second.load_state_dict(state)  # while it runs
            assert_same([next(second)], whole[step : step + 1])
            second.seek(step + 2)
            assert_same([next(second)], whole[step + 2 : step + 3])


def test_resume_with_other_batch_and_world_sizes_continues_the_samples() -> None:
    data = np.arange(23)
    with DataLoader(data, batch_size=4, tail="keep", seed=4) as loader:
        for _ in range(3):
            next(loader)
        state = loader.state_dict()
        rest = np.concatenate([batch["data"] for batch in loader.epoch()])
    ranks = [
        DataLoader(data, batch_size=2, tail="keep", seed=4, rank=rank, world_size=3, workers=1)
        for rank in range(3)
    ]
    for loader in ranks:
        loader.load_state_dict(state)
    parts = [[batch["data"] for batch in loader.epoch()] for loader in ranks]
    for loader in ranks:
        loader.close()
    merged = [part for step in zip(*parts, strict=True) for part in step]
    assert np.concatenate(merged).tolist() == rest.tolist()


def test_state_of_another_stream_raises_and_changes_nothing() -> None:
    with DataLoader(np.arange(10), batch_size=3) as loader:
        next(loader)
        with pytest.raises(errors.InvalidError, match="seed=1"):
            loader.load_state_dict(Sampler(10, 3, seed=1).state_dict())
        assert_same([next(loader)], batches_of(ArraySource(np.arange(10)), Sampler(10, 3), 2)[1:])


def test_loader_starts_at_the_position_of_the_sampler() -> None:
    sampler = Sampler(10, 3, seed=7)
    next(sampler)
    ahead = [batch.tolist() for batch in sampler.peek(3)]
    with DataLoader(np.arange(10), sampler=sampler) as loader:
        assert [next(loader)["data"].tolist() for _ in range(3)] == ahead
    assert sampler.position == 3  # the loader copies the state of the sampler
    with pytest.raises(
        errors.InvalidError, match="the sampler has length=10, but the source has 9 rows"
    ):
        DataLoader(np.arange(9), sampler=sampler)


# -- epochs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("transform", [None, lambda batch: batch])
@pytest.mark.parametrize(
    ("tail", "sizes"),
    [
        ("wrap", [[4, 4, 4], [4, 4], [4, 4, 4], [4, 4]]),
        ("drop", [[4, 4]] * 4),
        ("keep", [[4, 4, 2]] * 4),
        ("pad", [[4, 4, 4]] * 4),
    ],
)
def test_epoch_stops_where_the_next_begins(
    kind: str, transform: Any, tail: str, sizes: list[list[int]]
) -> None:
    with DataLoader(
        KINDS[kind](ArraySource(np.arange(10))), batch_size=4, tail=tail, transform=transform
    ) as loader:
        found = []
        for number in range(4):
            assert loader.epoch_number == number
            found.append([len(batch["data"]) for batch in loader.epoch()])
        assert found == sizes
        assert loader.steps_per_epoch == len(sizes[0])


def test_epoch_continues_from_the_middle() -> None:
    with DataLoader(np.arange(10), batch_size=4, tail="keep") as loader:
        first = next(loader)["data"].tolist()
        second = next(loader.epoch())["data"].tolist()
        rest = [row for batch in loader.epoch() for row in batch["data"].tolist()]
        assert sorted(first + second + rest) == list(range(10))
        assert loader.epoch_number == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize(
    ("tail", "sizes"),
    [("wrap", {1: [4, 4, 2], 3: [4] * 7 + [2]}), ("drop", {1: [4, 4], 3: [4] * 6}),
     ("keep", {1: [4, 4, 2], 3: [4, 4, 2] * 3}), ("pad", {1: [4] * 3, 3: [4] * 9})],
)  # fmt: skip
def test_finite_loader_goes_on_with_the_next_epochs(
    kind: str, epochs: int, tail: str, sizes: dict[int, list[int]]
) -> None:
    loader = DataLoader(
        KINDS[kind](ArraySource(np.arange(10))), batch_size=4, tail=tail, epochs=epochs
    )
    passes = [[batch["data"].tolist() for batch in loader] for _ in range(3)]
    assert [[len(batch) for batch in each] for each in passes] == [sizes[epochs]] * 3
    # They go on with the stream of an endless loader.
    with DataLoader(np.arange(10), batch_size=4, tail=tail) as endless:
        if tail == "wrap":
            rows = [row for _ in range(3 * epochs * 3) for row in next(endless)["data"].tolist()]
            found = [row for each in passes for batch in each for row in batch]
            assert found == rows[: len(found)]
        else:
            batches = [next(endless)["data"].tolist() for _ in range(3 * len(loader))]
            assert [batch for each in passes for batch in each] == batches
    assert len(loader) == len(sizes[epochs])
    with pytest.raises(StopIteration):
        next(loader)
    with pytest.raises(StopIteration):
        next(loader)


def test_evaluation_sees_every_record_once() -> None:
    loader = DataLoader(np.arange(100), batch_size=32, epochs=1, tail="keep", mode="sequential")
    assert len(loader) == 4
    for _ in range(3):
        assert np.concatenate([batch["data"] for batch in loader]).tolist() == list(range(100))


def test_evaluation_on_many_ranks_takes_equal_steps() -> None:
    seen = []
    for rank in range(3):
        loader = DataLoader(
            np.arange(10), batch_size=2, epochs=1, tail="keep", rank=rank, world_size=3
        )
        batches = [batch["data"].tolist() for batch in loader]
        assert len(batches) == len(loader) == 2
        seen += [row for batch in batches for row in batch]
    assert sorted(seen) == list(range(10))


def test_partial_iteration_does_not_shorten_the_next() -> None:
    loader = DataLoader(np.arange(10), batch_size=4, epochs=1, tail="keep")
    assert next(iter(loader))["data"].shape == (4,)
    assert sum(len(batch["data"]) for batch in loader) == 10
    for _ in loader:
        break
    assert sum(len(batch["data"]) for batch in loader) == 10


def test_epochs_of_a_finite_loader_go_on_after_the_last() -> None:
    loader = DataLoader(np.arange(10), batch_size=4, epochs=2, tail="keep")
    found = [[batch["data"].tolist() for batch in loader.epoch()] for _ in range(6)]
    assert [len(epoch) for epoch in found] == [3] * 6
    with DataLoader(np.arange(10), batch_size=4, tail="keep") as endless:
        expected = [next(endless)["data"].tolist() for _ in range(18)]
    assert [batch for epoch in found for batch in epoch] == expected


def test_loaded_state_is_not_reset_by_iteration() -> None:
    loader = DataLoader(np.arange(10), batch_size=4, epochs=1, tail="keep")
    first, second = ([batch["data"].tolist() for batch in loader] for _ in range(2))
    assert first != second
    for step in range(3):
        loader.seek(step)
        state = loader.state_dict()
        list(loader)
        loader.load_state_dict(state)
        assert [batch["data"].tolist() for batch in loader] == first[step:]
        assert [batch["data"].tolist() for batch in loader] == second


def test_state_of_an_ended_iteration_goes_on_with_the_next() -> None:
    loader = DataLoader(np.arange(10), batch_size=4, epochs=1, tail="keep")
    first, second = ([batch["data"].tolist() for batch in loader] for _ in range(2))
    other = DataLoader(np.arange(10), batch_size=4, epochs=1, tail="keep")
    assert [batch["data"].tolist() for batch in other] == first
    state = other.state_dict()
    resumed = DataLoader(np.arange(10), batch_size=4, epochs=1, tail="keep")
    resumed.load_state_dict(state)
    assert [batch["data"].tolist() for batch in resumed] == second


def test_endless_loader_has_no_length() -> None:
    with DataLoader(np.arange(10), batch_size=4) as loader:
        with pytest.raises(errors.InvalidTypeError, match="endless") as caught:
            len(loader)
        assert caught.value.hint == "use steps_per_epoch, or pass epochs="
        for _ in loader:
            break
        for _ in loader:
            break
        assert loader.position == 8


def test_repr_is_one_line() -> None:
    loader = DataLoader({"obs": rows(10), "act": np.zeros(10)}, batch_size=4)
    assert repr(loader) == "DataLoader(10 rows: obs, act; batches of 4, 2 workers)"


def test_state_from_smaller_batches_may_end_the_epoch() -> None:
    with DataLoader(np.arange(10), batch_size=3, tail="drop") as loader:
        for _ in range(2):
            next(loader)
        state = loader.state_dict()
    assert state["position"] == 6
    with DataLoader(np.arange(10), batch_size=5, tail="drop") as loader:
        loader.load_state_dict(state)
        assert (loader.position, loader.epoch_number) == (10, 1)
        assert len(list(loader.epoch())) == 2
        assert loader.state_dict()["omitted"] == 4
    sampler = Sampler(10, 5, tail="drop")
    sampler.load_state_dict(state)
    assert (sampler.position, sampler.epoch, sampler.omitted) == (10, 1, 4)
    sampler = Sampler(10, 2, tail="drop", rank=1, world_size=2)
    sampler.load_state_dict(state)
    assert (sampler.position, sampler.omitted) == (6, 0)


class Broken(Plain):
    """Applies a function to each gathered batch."""

    def __init__(self, source: Source, spoil: Callable[[Any], Any]) -> None:
        super().__init__(source)
        self.spoil = spoil

    def gather(self, *args: Any, **options: Any) -> Any:
        return self.spoil(dict(super().gather(*args, **options)))


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda batch: None, "must return a dict, got a NoneType"),
        (lambda batch: {"id": batch["id"]}, "Broken.gather did not return the field 'vec'"),
        (
            lambda batch: batch | {"vec": batch["vec"][:3]},
            r"'vec' with the leading dimensions \(3,\), but the indices have the shape \(4,\)",
        ),
        (
            lambda batch: batch | {"tokens": batch["tokens"][:2]},
            r"'tokens' with the leading dimensions \(2,\), but the indices have the shape \(4,\)",
        ),
        (
            lambda batch: batch | {"id": 7},
            r"'id' with the leading dimensions \(\), but the indices have the shape \(4,\)",
        ),
    ],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_source_returning_invalid_batches_raises(
    spoil: Callable[[Any], Any], text: str, workers: int
) -> None:
    source = Broken(rows(40), spoil)
    with (
        DataLoader(source, batch_size=4, workers=workers) as loader,
        pytest.raises(errors.InvalidError, match=text),
    ):
        next(loader)


def test_loaders_cannot_be_copied() -> None:
    with DataLoader(np.arange(10)) as loader:
        for copied in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(errors.InvalidTypeError, match="cannot be pickled") as caught:
                copied(loader)
            assert caught.value.hint == "pickle its state_dict() and make a loader from it"
