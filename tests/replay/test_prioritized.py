"""Transitions are drawn by priority while a run grows: as from a dict of priorities."""

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from relive import ArraySource, DataLoader, PrioritizedSampler
from relive.errors import InvalidError, InvalidTypeError
from relive.load import Concat
from relive.replay import ReplayRecorder, ReplayRun
from tests.replay import steps_by_hand
from tests.replay.steps_by_hand import Hand
from tests.replay.test_transitions import SMALL, play


class Naive:
    """Priorities in a dict, by the row that a transition begins with."""

    def __init__(self) -> None:
        self.priorities: dict[int, float] = {}
        self.largest = 1.0
        self.ignored = 0

    def follow(self, rows: list[int]) -> None:
        self.priorities = {row: self.priorities.get(row, self.largest) for row in rows}

    def update(self, rows: list[int], priorities: list[float]) -> None:
        for row, priority in zip(rows, priorities, strict=True):
            if row in self.priorities:
                self.priorities[row] = priority
            else:
                self.ignored += 1
            self.largest = max(self.largest, priority)

    def weights(self, rows: list[int], beta: float) -> list[float]:
        least = min(self.priorities.values())
        return [(least / self.priorities[row]) ** beta for row in rows]


def rows_of(hand: Hand, last: int, *, sequence: bool) -> list[int]:
    found = steps_by_hand.transitions(
        hand.told, n_step=2, gamma=1.0, stack=None, pad="first", first_row=max(0, hand.rows - last)
    )
    if sequence:
        return [rows[0] for rows, _ in steps_by_hand.sequences(hand.told, found, 3, 2, 1)]
    return list(found)


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_priorities_follow_a_window(tmp_path: Path, seed: int, *, sequence: bool) -> None:
    random, naive = Random(seed), Naive()  # noqa: S311 - it draws steps
    options: dict[str, Any] = {"sequence": 3, "burn_in": 1} if sequence else {}
    with ReplayRecorder(tmp_path, "run", config=SMALL, live=None) as recorder:
        hand = Hand(recorder)
        hand.step()
        made = recorder.transitions(last=40, n_step=2, gamma=1.0, **options)
        sampler = PrioritizedSampler(made, 16, alpha=1.0, beta=0.5, seed=seed)
        assert sampler.length == 0
        drawn: list[int] = []
        for _ in range(60):
            for _ in range(random.choice((1, 3, 9))):
                play(hand, random)
            if random.random() < 0.2:
                recorder.flush()
            rows = rows_of(hand, 40, sequence=sequence)
            if not rows:
                continue
            naive.follow(rows)
            batch: Any = made.sample(sampler=sampler)
            assert sampler.length == len(rows)
            index = batch["index"][:, 0] if sequence else batch["index"]
            assert set(index.tolist()) <= set(rows)
            weights = naive.weights(index.tolist(), 0.5)
            np.testing.assert_allclose(batch["weight"], weights, rtol=1e-6)
            # Some of these have left the window since they were drawn.
            drawn = [*drawn, *index.tolist()][-60:]
            changed = random.sample(drawn, 12)
            priorities = [random.uniform(0.1, 20.0) for _ in changed]
            sampler.update(changed, priorities)
            naive.update(changed, priorities)
            assert sampler.ignored == naive.ignored
        assert sampler.ignored > 0
        state, position = made.state_dict(), sampler.state_dict()
        expected = made.sample(sampler=sampler)
        again = PrioritizedSampler(made, 16, seed=seed)
        again.load_state_dict(position)
        made.load_state_dict(state)
        np.testing.assert_array_equal(made.sample(sampler=again)["index"], expected["index"])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("path", ["native", "python"])
def test_loaders_draw_transitions_by_priority(tmp_path: Path, workers: int, path: str) -> None:
    with ReplayRecorder(tmp_path, "run", config=SMALL, live=None) as recorder:
        hand = Hand(recorder)
        for number in range(30):
            hand.step(0, 1.0, "truncated" if number % 7 == 6 else "")
        recorder.flush()
        made = ReplayRun(tmp_path, "run").transitions(last=25, follow=True)
        sampler = PrioritizedSampler(made, 8, alpha=1.0)
        source: Any = {"step": made, "x": ArraySource(np.zeros(len(made)))}
        source = source if path == "python" else made
        every: Any = made.gather(range(len(made)))
        known = every["index"].tolist()
        # The last steps of truncated episodes are not transitions.
        assert (len(known), known[0], 13 in known, 14 in known) == (20, 5, False, True)
        with DataLoader(source, sampler=sampler, workers=workers, prefetch=2) as loader:
            batches = iter(loader)

            def index() -> list[int]:
                batch: Any = next(batches)
                batch = batch if path == "native" else batch["step"]
                found: list[int] = batch["index"].tolist()
                return found

            seen: set[int] = set()
            for _ in range(30):
                found = index()
                assert set(found) <= set(known)
                seen.update(found)
            assert len(seen) > 15
            sampler.update(known, 1e-9)
            sampler.update([14], 1e9)
            for _ in range(3):
                index()
            assert index() == [14] * 8
            if path == "python":
                return  # the other source does not grow
            for _ in range(15):
                hand.step()
            recorder.flush()
            assert sampler.refresh() > 10
            sampler.update([14], 5.0)
            assert sampler.ignored == 1
            for _ in range(4):
                index()
            assert min(index()) >= 20


def test_a_resumed_loader_draws_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "run", config=SMALL, live=None) as recorder:
        hand = Hand(recorder)
        for number in range(60):
            hand.step(number % 2, 1.0, "terminated" if number % 11 == 10 else "")
    made = ReplayRun(tmp_path, "run").transitions(last=50)
    sampler = PrioritizedSampler(made, 4, seed=3)
    with DataLoader(made, sampler=sampler) as loader:
        for _ in range(5):
            batch: Any = next(loader)
            sampler.update(batch["index"], 1.0 + np.arange(4))
        state = loader.state_dict()
        loader.close()  # what was drawn with the priorities of before is drawn again
        expected = [next(loader)["index"].tolist() for _ in range(6)]
    resumed = PrioritizedSampler(made, 4, seed=3)
    with DataLoader(made, sampler=resumed, workers=0) as loader:
        loader.load_state_dict(state)
        assert [next(loader)["index"].tolist() for _ in range(6)] == expected


def test_draws_of_a_sampler_are_checked(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "run", config=SMALL, live=None) as recorder:
        for _ in range(9):
            recorder.step([0.0], 0, 1.0)
    made = ReplayRun(tmp_path, "run").transitions()
    sampler = PrioritizedSampler(made, 4)
    with pytest.raises(InvalidError, match="batch_size=4, but `n` is 5"):
        made.sample(5, sampler=sampler)
    with pytest.raises(InvalidError, match="pass `sampler`, or"):
        made.sample(sampler=sampler, seed=1)
    with pytest.raises(InvalidTypeError, match="must be a PrioritizedSampler"):
        made.sample(sampler=[1])  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="the loader has none of them"):
        DataLoader(np.zeros(8), sampler=sampler)
    with pytest.raises(InvalidError, match="cannot draw from a Concat of transitions"):
        PrioritizedSampler(Concat(made, made), 4)
    draws: Any = made.batches(sampler=sampler, prefetch=2)
    first = next(draws)["index"].tolist()
    state = draws.state_dict()
    second = next(draws)["index"].tolist()
    draws.load_state_dict(state)
    assert (len(first), next(draws)["index"].tolist()) == (4, second)
    draws.close()
