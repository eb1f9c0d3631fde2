"""Custom samplers."""

import itertools
import json
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from relive import ArraySource, DataLoader, errors
from tests.load.reference import Plain

DATA = np.arange(10) * 10


class Countdown:
    """A resumable sampler: pairs of rows, from the end."""

    def __init__(self) -> None:
        self.left = 10
        self.buffer = np.zeros(2, dtype=np.int64)

    def __iter__(self) -> "Countdown":
        return self

    def __next__(self) -> Any:
        if self.left == 0:
            raise StopIteration
        self.left -= 2
        self.buffer[:] = (self.left + 1, self.left)
        return self.buffer  # the same memory each time

    def state_dict(self) -> dict[str, int]:
        return {"left": self.left}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.left = state["left"]


PAIRS = [[90, 80], [70, 60], [50, 40], [30, 20], [10, 0]]


def read(loader: DataLoader, count: int | None = None) -> list[Any]:
    return [batch["data"].tolist() for batch in itertools.islice(loader, count)]


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("source", [ArraySource(DATA), Plain(ArraySource(DATA))])
def test_loader_reads_the_rows_of_the_sampler(workers: int, source: Any) -> None:
    batches: list[Any] = [[3, 1], np.array([[0, 9], [5, 5]]), range(4), (7,), []]
    with DataLoader(source, sampler=batches, workers=workers) as loader:
        expected = [[30, 10], [[0, 90], [50, 50]], [0, 10, 20, 30], [70], []]
        assert read(loader) == expected
        assert read(loader) == expected  # a list can be iterated again
    with DataLoader(source, sampler=Countdown(), workers=workers) as loader:
        assert read(loader) == PAIRS


def test_generator_as_sampler() -> None:
    with DataLoader(DATA, sampler=([k] for k in range(5))) as loader:
        assert read(loader, 2) == [[0], [10]]
        assert read(loader) == [[20], [30], [40]]
        assert read(loader) == []


def test_restartable_sampler() -> None:
    class Epochs:
        number = 0

        def __iter__(self) -> Iterator[list[int]]:
            self.number += 1
            yield from ([self.number, k] for k in range(3))

    with DataLoader(DATA, sampler=Epochs()) as loader:
        assert read(loader) == [[10, 0], [10, 10], [10, 20]]
        assert read(loader, 1) == [[20, 0]]
        assert read(loader) == [[30, 0], [30, 10], [30, 20]]


@pytest.mark.parametrize("workers", [0, 2])
def test_resume_with_state(workers: int) -> None:
    for step in range(6):
        with DataLoader(DATA, sampler=Countdown(), workers=workers, prefetch=4) as loader:
            assert loader.state_dict() == {"sampler": {"left": 10}, "position": 0}
            assert read(loader, step) == PAIRS[:step]
            state = loader.state_dict()
            drawn = state.get("drawn", [])  # batches between the sampler and its consumer
            assert len(drawn) <= (4 if workers else 0)
            assert [[10 * row for row in rows] for rows in drawn] == PAIRS[step:][: len(drawn)]
            assert state["sampler"] == {"left": 10 - 2 * (step + len(drawn))}
            assert state["position"] == 2 * step
            loader.close()
            assert loader.state_dict()["position"] == 2 * step
            assert read(loader) == PAIRS[step:]
        state = json.loads(json.dumps(state))
        with DataLoader(DATA, sampler=Countdown(), workers=1) as loader:
            loader.load_state_dict(state)
            assert loader.state_dict() == state
            assert read(loader) == PAIRS[step:]


def test_sampler_may_reuse_its_buffer() -> None:
    """The first batch is read only after the second was drawn into the same array."""
    second = threading.Event()

    class Watched(Countdown):
        def __next__(self) -> Any:
            batch = super().__next__()
            if self.left == 6:
                second.set()
            return batch

    class Late(Plain):
        def gather(self, indices: Any, *args: Any, **options: Any) -> Any:
            assert second.wait(60)
            return super().gather(indices, *args, **options)

    with DataLoader(Late(ArraySource(DATA)), sampler=Watched(), workers=2) as loader:
        assert read(loader) == PAIRS


@pytest.mark.parametrize(("workers", "prefetch"), [(1, 1), (1, 6), (3, 2)])
def test_loader_draws_at_most_prefetch_batches_ahead(workers: int, prefetch: int) -> None:
    ahead, consumed = [], 0

    def endless() -> Iterator[list[int]]:
        for drawn in itertools.count():
            ahead.append(drawn - consumed)
            yield [drawn % 10]

    with DataLoader(DATA, sampler=endless(), workers=workers, prefetch=prefetch) as loader:
        for _ in range(300):
            next(loader)
            consumed += 1
    # The consumer counts a batch after it was returned.
    assert max(ahead) <= max(workers, prefetch)


def test_error_keeps_the_position() -> None:
    fail = True

    def transform(batch: Any) -> Any:
        if fail and 50 in batch["data"]:
            raise LookupError("fifty")
        return batch

    with DataLoader(DATA, sampler=Countdown(), transform=transform) as loader:
        assert read(loader, 2) == PAIRS[:2]
        with pytest.raises(LookupError):
            next(loader)
        fail = False
        assert read(loader) == PAIRS[2:]


def test_sampler_without_state_raises() -> None:
    with DataLoader(DATA, sampler=[[1], [2]]) as loader:
        with pytest.raises(errors.InvalidError, match="the sampler has no state") as caught:
            loader.state_dict()
        assert caught.value.hint is not None
        with pytest.raises(errors.InvalidError, match="has no load_state_dict"):
            loader.load_state_dict({"sampler": 1})
    with (
        DataLoader(DATA, sampler=Countdown()) as loader,
        pytest.raises(errors.InvalidError, match="the state has no key 'sampler'"),
    ):
        loader.load_state_dict({"position": 3})


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("bad", "error", "text"),
    [
        (
            [3, 10],
            errors.OutOfRangeError,
            "the sampler returned an invalid batch: index 10 .* 10 rows",
        ),
        ([-1], errors.OutOfRangeError, "the sampler returned an invalid batch: index -1"),
        (4, errors.InvalidError, "must return batches of indices, got the single index 4"),
        ([0.5], errors.InvalidTypeError, "indices must be integers"),
        ([True, False], errors.InvalidTypeError, "indices must be integers"),
        (None, errors.InvalidTypeError, "indices must be integers"),
        ("ab", errors.InvalidTypeError, "indices must be integers"),
    ],
    ids=repr,
)
def test_invalid_batches_raise_at_their_position(
    workers: int, bad: Any, error: type[Exception], text: str
) -> None:
    with DataLoader(DATA, sampler=[[0], [1], bad, [2]], workers=workers) as loader:
        assert read(loader, 2) == [[0], [10]]
        with pytest.raises(error, match=text):
            next(loader)


def test_sampler_that_raises() -> None:
    def batches() -> Iterator[list[int]]:
        yield [1]
        raise LookupError("no more of this")

    with DataLoader(DATA, sampler=batches()) as loader:
        assert next(loader)["data"].tolist() == [10]
        with pytest.raises(LookupError, match="no more of this"):
            next(loader)


def test_methods_of_the_default_sampler_raise() -> None:
    with DataLoader(DATA, sampler=Countdown()) as loader:
        for ask in (
            lambda: next(loader.epoch()),
            lambda: loader.steps_per_epoch,
            lambda: loader.position,
            lambda: loader.epoch_number,
            lambda: loader.seek(1),
        ):
            with pytest.raises(
                errors.InvalidError, match="a loader with a custom sampler has no epochs"
            ):
                ask()
        with pytest.raises(errors.InvalidTypeError, match="no length"):
            len(loader)
    with pytest.raises(errors.InvalidError, match="cannot be used with a custom sampler"):
        DataLoader(DATA, sampler=Countdown(), epochs=2)
    with pytest.raises(errors.InvalidTypeError, match=r"`sampler` must be .*, got 3"):
        DataLoader(DATA, sampler=3)  # type: ignore[arg-type]


def test_seed_still_seeds_transforms() -> None:
    def noise(batch: Any, rng: np.random.Generator) -> float:
        return float(rng.random())

    def noises(seed: int, workers: int) -> list[float]:
        sampler = [[1, 2], [3], [4, 5]]
        with DataLoader(
            DATA, sampler=sampler, seed=seed, transform=noise, workers=workers
        ) as loader:
            return list(loader)

    expected = [float(np.random.default_rng((6, first)).random()) for first in (0, 2, 3)]
    assert noises(6, 0) == noises(6, 3) == expected
    assert noises(7, 1) != expected


class OneState(Countdown):
    """Returns and accepts the same dict each time, and keeps changing it."""

    def __init__(self) -> None:
        super().__init__()
        self.state = {"left": 10}

    def state_dict(self) -> dict[str, int]:
        self.state["left"] = self.left
        return self.state

    def load_state_dict(self, state: dict[str, int]) -> None:
        super().load_state_dict(state)
        self.state = state


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Countdown, OneState])
def test_transform_rng_continues_after_resume(kind: type[Countdown], workers: int) -> None:
    def noise(batch: Any, rng: np.random.Generator) -> tuple[list[int], float]:
        return batch["data"].tolist(), float(rng.random())

    def make() -> DataLoader:
        return DataLoader(DATA, sampler=kind(), seed=6, transform=noise, workers=workers)

    with make() as loader:
        expected = list(loader)
    assert [rows for rows, _ in expected] == PAIRS
    for step in range(5):
        with make() as loader:
            found = list(itertools.islice(loader, step))
            state = loader.state_dict()
            loader.close()
            assert [*found, *loader] == expected
        for _ in range(2):  # loading a state does not change it
            with make() as loader:
                loader.load_state_dict(state)
                assert list(loader) == expected[step:]


def test_transform_rng_continues_after_close() -> None:
    def first(batch: Any, rng: np.random.Generator) -> float:
        return float(rng.random())

    sampler = iter([[k] for k in range(5)])
    with DataLoader(DATA, sampler=sampler, transform=first, workers=0) as loader:
        found = list(itertools.islice(loader, 2))
        loader.close()
        found += loader
    assert found == [float(np.random.default_rng((0, k)).random()) for k in range(5)]


def test_length_and_repr_come_from_the_sampler() -> None:
    with DataLoader(DATA, sampler=[[1], [2, 3]]) as loader:
        assert len(loader) == 2
        assert "batches of a list" in repr(loader)
    with DataLoader(DATA, sampler=Countdown()) as loader:
        with pytest.raises(errors.InvalidTypeError, match="its sampler does not define") as caught:
            len(loader)
        assert caught.value.hint is not None
        assert "epochs" not in caught.value.hint
        assert "batches of a Countdown" in repr(loader)


def test_state_is_read_when_it_is_asked_for() -> None:
    asked = []

    class Counted(Countdown):
        def state_dict(self) -> dict[str, int]:
            asked.append(self.left)
            return super().state_dict()

    with DataLoader(DATA, sampler=Counted(), workers=2) as loader:
        assert read(loader, 4) == PAIRS[:4]
        loader.close()
        assert read(loader, 1) == PAIRS[4:]
        assert asked == []
        loader.state_dict()
        assert asked == [0]


def test_closed_loader_returns_what_was_drawn() -> None:
    """Also from a generator, which cannot be moved back."""
    with DataLoader(DATA, sampler=([k] for k in range(10)), workers=2, prefetch=3) as loader:
        found = []
        for _ in range(5):
            found += read(loader, 2)
            loader.close()
    assert found == [[10 * k] for k in range(10)]


def with_extras(count: int) -> Iterator[Any]:
    """Yield batches with extras, in the same memory each time."""
    weight = np.zeros(2, np.float32)
    for k in range(count):
        weight[:] = (k, k + 0.5)
        yield [k, k + 1], {"weight": weight, "note": [str(k), "b"]}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("source", [{"x": DATA}, {"x": Plain(ArraySource(DATA))}])
def test_extras_join_the_batch(workers: int, source: Any) -> None:
    with DataLoader(source, sampler=with_extras(6), workers=workers) as loader:
        for k in range(6):
            batch = next(loader)
            assert list(batch) == ["x", "weight", "note"]
            assert batch["weight"].dtype == np.float32
            assert batch["weight"].tolist() == [k, k + 0.5]
            assert batch["note"].tolist() == [str(k), "b"]


def test_extras_are_in_the_state() -> None:
    class Weighted(Countdown):
        def __next__(self) -> Any:
            rows = super().__next__()
            return rows, {"weight": rows * 0.5}

    with DataLoader(DATA, sampler=Weighted(), workers=1, prefetch=3) as loader:
        next(loader)
        while not (state := loader.state_dict()).get("drawn"):
            pass
    with DataLoader(DATA, sampler=Weighted()) as loader:
        loader.load_state_dict(state)
        for batch in loader:
            assert (batch["weight"] == batch["data"] / 20).all()
    assert loader.state_dict()["position"] == 10


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("extras", "error", "text"),
    [
        ({"data": [1, 2]}, errors.InvalidError, "the extra 'data', but a source has a field"),
        ({"weight": [1, 2, 3]}, errors.InvalidError, r"'weight' with the shape \(3,\).* 2 samples"),
        ({"weight": 1.0}, errors.InvalidError, r"'weight' with the shape \(\)"),
        ({3: [1, 2]}, errors.InvalidTypeError, "name must be a string, got 3"),
    ],
    ids=repr,
)
def test_invalid_extras_raise_at_their_position(
    workers: int, extras: Any, error: type[Exception], text: str
) -> None:
    with DataLoader(DATA, sampler=[[0, 1], ([2, 3], extras)], workers=workers) as loader:
        assert next(loader)["data"].tolist() == [0, 10]
        for _ in range(2):  # the position is kept
            with pytest.raises(error, match=text):
                next(loader)


def test_invalid_states_are_refused() -> None:
    with DataLoader(DATA, sampler=Countdown()) as loader:
        with pytest.raises(errors.InvalidTypeError, match="`drawn` of the state must be a list"):
            loader.load_state_dict({"sampler": {"left": 4}, "position": 6, "drawn": 3})
        assert read(loader) == PAIRS
