"""`PrioritizedSampler` by itself: what it draws, its state, and its errors."""

import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from relive import ArraySource, Field, PrioritizedSampler, RecordStore, errors


def weights_of(priorities: Any, alpha: float, beta: float) -> Any:
    """Return the importance weights of all rows, by the formula."""
    scaled = np.asarray(priorities, np.float64) ** alpha
    weights = (len(scaled) * scaled / scaled.sum()) ** -beta
    return weights / weights.max()


def test_rows_are_drawn_in_proportion() -> None:
    priorities = np.array([1.0, 4.0, 9.0, 16.0, 400.0])
    sampler = PrioritizedSampler(5, 20, alpha=0.5, beta=0.7, seed=3)
    sampler.update(np.arange(5), priorities)
    counts = np.zeros(5)
    for _ in range(1000):
        rows, extras = next(sampler)
        assert rows.dtype == np.int64
        assert extras["weight"].dtype == np.float32
        assert np.allclose(extras["weight"], weights_of(priorities, 0.5, 0.7)[rows], rtol=1e-6)
        counts += np.bincount(rows, minlength=5)
    expected = 20_000 * np.sqrt(priorities) / np.sqrt(priorities).sum()
    assert ((counts - expected) ** 2 / expected).sum() < 18.5  # 0.1 % of chi-square, 4 degrees


def test_exponents_can_be_changed() -> None:
    sampler = PrioritizedSampler(3, 60)
    assert (sampler.alpha, sampler.beta) == (0.6, 0.4)
    sampler.update([0, 1, 2], [1, 2, 3])
    sampler.alpha, sampler.beta = 1.0, 1.0
    rows, extras = next(sampler)
    assert np.bincount(rows).tolist() == [10, 20, 30]
    assert np.allclose(extras["weight"], weights_of([1, 2, 3], 1, 1)[rows])
    sampler.alpha = 0
    rows, extras = next(sampler)
    assert np.bincount(rows).tolist() == [20, 20, 20]
    assert (extras["weight"] == 1).all()


def test_resumed_sampler_draws_as_if_it_had_not_stopped() -> None:
    def train(sampler: PrioritizedSampler, steps: range) -> list[Any]:
        found = []
        for step in steps:
            rows, extras = next(sampler)
            found.append((rows.tolist(), extras["weight"].tolist()))
            sampler.update(rows, 0.1 + (rows * 7 + step) % 11)
            sampler.beta = 0.4 + step / 100
        return found

    sampler = PrioritizedSampler(37, 8, seed=5)
    train(sampler, range(10))
    state = sampler.state_dict()
    assert isinstance(state["priorities"], np.ndarray)
    assert {type(value) for value in state.values()} == {int, float, np.ndarray}
    copied = pickle.loads(pickle.dumps(sampler))  # noqa: S301
    expected = train(sampler, range(10, 30))
    resumed = PrioritizedSampler(37, 8, seed=5, alpha=0.1)
    resumed.load_state_dict(state)
    assert train(resumed, range(10, 30)) == expected
    assert train(copied, range(10, 30)) == expected
    other = PrioritizedSampler(37, 4, seed=5)  # another batch size is allowed
    other.load_state_dict(state)
    assert other.position == 80


def test_new_rows_get_the_largest_priority_so_far(tmp_path: Path) -> None:
    with RecordStore.create(tmp_path / "s", {"x": Field("i8")}) as store:
        store.extend({"x": np.arange(3)})
        sampler = PrioritizedSampler(store, 4)
        sampler.update([0, 1], 5.0)
        sampler.update([0, 1], 2.0)
        assert sampler.refresh() == 0
        store.extend({"x": np.arange(2)})
        assert sampler.length == 3
        assert sampler.refresh() == 2
        assert sampler.state_dict()["priorities"].tolist() == [2, 2, 1, 5, 5]
        before = sampler.state_dict()
        store.extend({"x": np.arange(4)})
        sampler.refresh()
        sampler.load_state_dict(before)
        assert sampler.length == 5
        del store[3:]
        with pytest.raises(errors.InvalidError, match="3 rows, fewer than the 5 of the sampler"):
            sampler.refresh()
    counted = PrioritizedSampler(2, 4)
    assert counted.refresh(6) == 4
    with pytest.raises(errors.InvalidError, match="5 rows, fewer than the 6"):
        counted.refresh(5)
    with pytest.raises(errors.InvalidError, match="the sampler has a source"):
        PrioritizedSampler(ArraySource(np.arange(3)), 4).refresh(4)


def test_empty_source_draws_after_it_has_grown() -> None:
    sampler = PrioritizedSampler(0, 2)
    with pytest.raises(errors.InvalidError, match="there are no rows"):
        next(sampler)
    sampler.refresh(1)
    assert next(sampler)[0].tolist() == [0, 0]


def test_rows_that_left_are_ignored_and_counted() -> None:
    sampler = PrioritizedSampler(10, 3)
    sampler.native().evict(8)
    sampler.update([0, 7, 8, 9], [1.0, 2.0, 1e9, 1e-9])
    assert sampler.ignored == 2
    assert next(sampler)[0].tolist() == [8, 8, 8]
    assert sampler.length == 2
    state = sampler.state_dict()
    resumed = PrioritizedSampler(10, 3)
    resumed.load_state_dict(state)
    assert (resumed.ignored, next(resumed)[0].tolist()) == (2, [8, 8, 8])


def test_arrays_of_any_shape_and_type() -> None:
    sampler = PrioritizedSampler(6, 2)
    sampler.update(np.array([[0, 1], [2, 3]], np.uint8), np.array([[1, 2], [3, 4]], np.float32))
    sampler.update(4, 5)
    sampler.update(range(5, 6), [6])
    sampler.update([0, 0], [9, 8])
    sampler.update([], [])
    assert sampler.state_dict()["priorities"].tolist() == [8, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("index", "priority", "error", "text"),
    [
        ([0], [0.0], errors.InvalidError, "must be finite and greater than 0, got 0"),
        ([0], [-1.0], errors.InvalidError, "greater than 0, got -1"),
        ([0], [np.nan], errors.InvalidError, "greater than 0, got NaN"),
        ([0], [np.inf], errors.InvalidError, "greater than 0, got inf"),
        ([0], [1e308], errors.InvalidError, "to the power of `alpha` = 2"),
        ([3], [1.0], errors.OutOfRangeError, "index 3 is out of range for 3 rows"),
        ([-1], [1.0], errors.OutOfRangeError, "index -1"),
        ([0], [1.0, 2.0], errors.InvalidError, "has the shape"),
        ([0.5], [1.0], errors.InvalidTypeError, "indices must be integers"),
        ([0], ["x"], errors.InvalidTypeError, "must be an array of numbers"),
        ([0], None, errors.InvalidError, "NaN"),
    ],
    ids=repr,
)
def test_invalid_updates_change_nothing(
    index: Any, priority: Any, error: type[Exception], text: str
) -> None:
    sampler = PrioritizedSampler(3, 2, alpha=2.0)
    for indices, values in ((index, priority), ([1, *index], [5.0, *(priority or [np.nan])])):
        with pytest.raises(error, match=text):
            sampler.update(indices, values)
    assert sampler.state_dict()["priorities"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"source_or_length": -1}, errors.InvalidError, "`source_or_length` must be at least 0"),
        ({"source_or_length": [3]}, errors.InvalidTypeError, "must be an integer"),
        ({"batch_size": 0}, errors.InvalidError, "`batch_size` must be at least 1"),
        ({"alpha": -0.1}, errors.InvalidError, "`alpha` must be finite and at least 0"),
        ({"beta": float("inf")}, errors.InvalidError, "`beta` must be finite and at least 0"),
        ({"beta": "x"}, errors.InvalidTypeError, "`beta` must be a number, got 'x'"),
        ({"seed": 1.5}, errors.InvalidTypeError, "`seed` must be an integer"),
    ],
    ids=repr,
)
def test_invalid_arguments(arguments: Any, error: type[Exception], text: str) -> None:
    given: Any = {"source_or_length": 3, "batch_size": 2} | arguments
    with pytest.raises(error, match=text):
        PrioritizedSampler(**given)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"seed": 4}, "saved with seed=4, but this sampler has seed=0"),
        ({"priorities": np.ones(4)}, "saved with 4 rows, but the source has 3"),
        ({"priorities": np.zeros(3)}, "greater than 0"),
        ({"priorities": [1.0, 2.0, 3.0], "alpha": -1.0}, "`alpha` must be"),
        ({"priorities": np.ones(3, np.float32)}, "must be a float64 array"),
        ({"capacity": 3}, "must be a power of two"),
        ({"capacity": 1 << 62}, "must be a power of two"),
        ({"largest": float("inf")}, "the largest priority must be finite"),
    ],
    ids=repr,
)
def test_invalid_states_change_nothing(change: Any, text: str) -> None:
    sampler = PrioritizedSampler(3, 2)
    sampler.update([0], 2.0)
    state = sampler.state_dict()
    with pytest.raises((errors.InvalidError, errors.InvalidTypeError), match=text):
        sampler.load_state_dict(state | change)
    assert sampler.state_dict()["priorities"].tolist() == [2, 1, 1]
    for name in state:
        with pytest.raises(errors.InvalidError, match=f"does not have the keys '{name}'"):
            sampler.load_state_dict({key: state[key] for key in state if key != name})


def test_repr() -> None:
    sampler = PrioritizedSampler(10, 4, seed=2)
    next(sampler)
    expected = "PrioritizedSampler(10, 4, alpha=0.6, beta=0.4, seed=2, position=4)"
    assert repr(sampler) == expected


def test_threads_draw_while_others_update() -> None:
    sampler = PrioritizedSampler(1000, 64)
    done = threading.Event()

    def learn(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for step in range(200):
            sampler.update(rng.integers(0, 1000, 64), rng.random(64) + 1e-3)
            if seed == 0:
                sampler.refresh(1000 + step)
        done.set()

    learners = [threading.Thread(target=learn, args=(seed,)) for seed in range(2)]
    for learner in learners:
        learner.start()
    while True:
        ended = done.is_set()
        rows, extras = next(sampler)
        assert (rows >= 0).all()
        assert (rows < 1200).all()
        assert ((extras["weight"] > 0) & (extras["weight"] <= 1)).all()
        if ended:
            break
    for learner in learners:
        learner.join()


class Model(RuleBasedStateMachine):
    """The sampler against a list of priorities."""

    @initialize(length=st.integers(0, 9), seed=st.integers(0, 5), alpha=st.sampled_from([0.0, 0.6]))
    def start(self, length: int, seed: int, alpha: float) -> None:
        self.sampler = PrioritizedSampler(length, 4, alpha=alpha, beta=0.5, seed=seed)
        self.priorities = [1.0] * length
        self.first = 0
        self.largest = 1.0

    @rule(data=st.data())
    def update(self, data: st.DataObject) -> None:
        length = len(self.priorities)
        rows = data.draw(st.lists(st.integers(0, length - 1), max_size=6)) if length else []
        values = [data.draw(st.floats(1e-6, 1e6)) for _ in rows]
        ignored = self.sampler.ignored
        self.sampler.update(rows, values)
        for row, value in zip(rows, values, strict=True):
            self.priorities[row] = value
        self.largest = max([self.largest, *values])
        assert self.sampler.ignored - ignored == sum(row < self.first for row in rows)

    @rule(added=st.integers(0, 12))
    def grow(self, added: int) -> None:
        self.priorities += [self.largest] * added
        assert self.sampler.refresh(len(self.priorities)) == added

    @rule(count=st.integers(0, 5))
    def evict(self, count: int) -> None:
        self.first = min(self.first + count, len(self.priorities))
        self.sampler.native().evict(self.first)

    @precondition(lambda self: self.first < len(self.priorities))
    @rule()
    def draw(self) -> None:
        rows, extras = next(self.sampler)
        live = np.array(self.priorities[self.first :]) ** self.sampler.alpha
        ends = np.cumsum(live)
        assert ((rows >= self.first) & (rows < len(self.priorities))).all()
        weights = (live.min() / live[rows - self.first]) ** 0.5
        assert np.allclose(extras["weight"], weights, rtol=1e-6)
        if self.first == 0:  # leaves are in the order of rows: each part has one draw
            parts = np.arange(4) * ends[-1] / 4
            assert (ends[rows] >= parts * (1 - 1e-9)).all()
            starts = ends[rows] - live[rows]
            assert (starts <= (parts + ends[-1] / 4) * (1 + 1e-9)).all()

    @rule()
    def resume(self) -> None:
        state = self.sampler.state_dict()
        resumed = PrioritizedSampler(len(self.priorities), 4, seed=self.sampler.seed)
        resumed.load_state_dict(state)
        self.sampler = resumed

    @invariant()
    def same_priorities(self) -> None:
        assert self.sampler.state_dict()["priorities"].tolist() == self.priorities[self.first :]


Model.TestCase.settings = settings(max_examples=40, stateful_step_count=25)
TestModel = Model.TestCase
