"""Transitions are drawn by priority while a run grows: as from a dict of priorities."""

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from relive import ArraySource, DataLoader, PrioritizedSampler
from relive.errors import InvalidError, InvalidTypeError, OutOfRangeError
from relive.load import Concat, Mix
from relive.model import Source
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


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_steps_that_were_removed_leave_the_sampler(
    tmp_path: Path, workers: int, *, committed: bool
) -> None:
    with ReplayRecorder(tmp_path, "run", config=SMALL, live=None) as recorder:
        for number in range(30):
            recorder.step([float(number)], 0, 1.0)
    recorder = ReplayRecorder(tmp_path, "run", config=SMALL, live=None)
    buffer = recorder.transitions()
    other = ReplayRun(tmp_path, "run").transitions(follow=True)
    for number in range(1000):
        recorder.step([float(number)], 0, 1.0)
    if committed:
        recorder.flush()
    for made in (buffer, other):
        made.refresh()
    samplers = [PrioritizedSampler(made, 32, alpha=1.0) for made in (buffer, other)]
    new = 999 if committed else 0
    assert [sampler.length for sampler in samplers] == [29 + 999, 29 + new]
    samplers[0].update(range(30, 1029), 50.0)
    loader = DataLoader(buffer, sampler=samplers[0], workers=workers)
    assert max(next(loader)["index"]) >= 30
    if committed:
        loader.close()  # what it reads ahead is removed
    recorder.abort()
    for made, sampler in zip((buffer, other), samplers, strict=True):
        for _ in range(5):
            batch: Any = made.sample(sampler=sampler)
            assert set(batch["index"].tolist()) <= set(range(29))
        assert sampler.length == 29
    with loader:
        assert [max(next(loader)["index"]) < 29 for _ in range(9)][-2:] == [True] * 2
    # What was drawn before is ignored, and steps with these rows are new ones.
    samplers[0].update([3, 40, 1028], 2.0)
    assert samplers[0].ignored == 2
    with pytest.raises(OutOfRangeError, match="index 1029 is out of range"):
        samplers[0].update([1029], 2.0)
    with ReplayRecorder(tmp_path, "run", config=SMALL, live=None) as again:
        for _ in range(20):
            again.step([0.0], 0, 1.0)
    assert samplers[0].refresh() == 19
    priorities = samplers[0].state_dict()["priorities"]
    assert sorted(set(priorities[priorities > 0])) == [1.0, 2.0, 50.0]


def test_a_state_loads_without_steps_that_were_lost(tmp_path: Path) -> None:
    recorder = ReplayRecorder(tmp_path, "run", config=SMALL, live=None)
    for _ in range(600):
        recorder.step([0.0], 0, 1.0)
    recorder.flush()
    made = recorder.transitions()
    for _ in range(600):
        recorder.step([0.0], 0, 1.0)
    sampler = PrioritizedSampler(made, 8, alpha=1.0)
    sampler.update(range(1199), 1.0 + np.arange(1199))
    state = sampler.state_dict()
    # Another process that reads the run now has what it has after this one is killed.
    made = ReplayRun(tmp_path, "run").transitions(follow=True)
    resumed = PrioritizedSampler(made, 8, alpha=1.0)
    for _ in range(2):
        resumed.load_state_dict(state)
        assert resumed.length == 599
    with DataLoader(made, sampler=resumed) as loader:
        loader.load_state_dict({"sampler": state, "position": 0})
        assert max(next(loader)["index"]) < 599
    resumed.update([598, 599, 1198], 7.0)
    assert resumed.ignored == 2
    recorder.flush()  # as if they were recorded anew
    assert resumed.refresh() == 600
    saved = resumed.state_dict()
    priorities = saved["priorities"]
    expected = [*(1.0 + np.arange(598)), 7.0, *[1199.0] * 600]
    assert priorities[priorities > 0].tolist() == expected
    again = PrioritizedSampler(made, 8)
    again.load_state_dict(saved)
    assert [next(again)[0].tolist() for _ in range(9)] == [
        next(resumed)[0].tolist() for _ in range(9)
    ]
    for changes in ({"blocks": saved["blocks"][1:]}, {"first_block": 0}, {"blocks": [0]}):
        with pytest.raises((InvalidError, InvalidTypeError), match="`blocks` of the state"):
            again.load_state_dict({**saved, **changes})
    plain = PrioritizedSampler(1199, 8).state_dict()
    with pytest.raises(InvalidError, match="'blocks'"):
        again.load_state_dict(plain)
    recorder.close()


def test_a_loader_of_other_rows_than_the_sampler_is_an_error(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "run", config=SMALL, live=None) as recorder:
        for _ in range(9):
            recorder.step([0.0], 0, 1.0)
        recorder.flush()
        old = ReplayRun(tmp_path, "run").transitions()
        made = recorder.transitions()
        for _ in range(9):
            recorder.step([0.0], 0, 1.0)
        made.refresh()
        sampler = PrioritizedSampler(made, 64)
        before = made.snapshot()
        for _ in range(9):
            recorder.step([0.0], 0, 1.0)
        made.refresh()
        sampler.refresh()
        with (
            DataLoader(before, sampler=sampler) as loader,
            pytest.raises(InvalidError, match="rows that the source of the loader does not have"),
        ):
            next(loader)
        with DataLoader(old, sampler=sampler) as loader:  # it has the sampler choose from its rows
            assert max(next(loader)["index"]) < 9


def test_many_keys_come_and_leave(tmp_path: Path) -> None:
    """The tree stays small, and what was drawn and what is updated are the same rows."""
    with ReplayRecorder(tmp_path, "run", config=SMALL, live=None) as recorder:
        made = recorder.transitions(last=300)
        sampler = PrioritizedSampler(made, 64, alpha=1.0)
        for number in range(3000):
            recorder.step([float(number)], 0, 1.0, terminated=number % 50 == 49)
            if number % 7 == 6:
                batch: Any = made.sample(sampler=sampler)
                assert batch["index"].min() >= number - 299
                assert (batch["index"] == batch["observation"][:, 0]).all()
                sampler.update(batch["index"], batch["observation"][:, 0] + 1)
        state = sampler.state_dict()
        assert state["capacity"] <= 1024
        assert len(state["blocks"]) <= 4
        row = np.arange(len(state["priorities"])) + state["first"]
        key = state["blocks"][row // 256 - state["first_block"]] + row % 256
        (there,) = np.nonzero(state["priorities"])
        every: Any = made.gather(range(len(made)))
        assert key[there].tolist() == every["index"].tolist()
        drawn = [place for place in there if state["priorities"][place] == key[place] + 1]
        assert len(drawn) > 250


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("last", [None, 1500])
def test_what_idle_streams_add_late_is_drawn(
    tmp_path: Path, last: int | None, *, joined: bool
) -> None:
    """Rows that are added between older ones come into the tree, each of them once."""
    with ReplayRecorder(tmp_path, "run", config=SMALL, live=None) as recorder:
        recorder.step([0.0], 0, 1.0)
        made = recorder.transitions(last=last)
        source: Any = Concat(short_run(tmp_path / "other"), made) if joined else made
        sampler = PrioritizedSampler(source, 8)
        for number in range(1, 6001):
            env = 1 + number // 900 % 2 if number % 450 == 0 else 0
            recorder.step([float(number)], 0, 1.0, env=env)
            if number % 300 == 0:
                recorder.flush()
            if number % 50 == 0:
                new = sampler.refresh()
                assert new > 0
                state = sampler.state_dict()
                row = np.arange(len(state["priorities"])) + state["first"]
                key = state["blocks"][row // 256 - state["first_block"]] + row % 256
                now: Any = source.snapshot()
                every = now.gather(np.arange(len(now)), ["index"])["index"]
                np.testing.assert_array_equal(np.sort(key[state["priorities"] > 0]), every)
                assert sampler.length == len(every)
        growing = made._growing
        assert growing is not None
        assert growing._table is not None
        # Steps wait until enough of them are settled; older ones are there of idle streams only.
        rows = growing._table["row"]
        assert (rows < 4500).sum() <= 2
        assert len(rows) < 1500


def short_run(root: Path) -> Source:
    """The transitions of a run with one short episode."""
    with ReplayRecorder(root, "run", config=SMALL, live=None) as recorder:
        for number in range(5):
            recorder.step([float(number)], 0, 1.0)
    return ReplayRun(root, "run").transitions()


@pytest.mark.parametrize("path", ["native", "named", "python"])
@pytest.mark.parametrize("workers", [0, 2])
def test_several_runs_that_grow_are_drawn_by_priority(
    tmp_path: Path, workers: int, path: str
) -> None:
    recorders = [ReplayRecorder(tmp_path / name, "run", config=SMALL, live=None) for name in "abc"]

    def record(number: int, steps: int) -> None:
        for _ in range(steps):
            rows[number] += 1
            recorders[number].step([1000.0 * number + rows[number] - 1], 0, 1.0)
        recorders[number].flush()

    rows = [0, 0, 0]
    for number in range(3):
        record(number, 20)
    runs = [ReplayRun(tmp_path / name, "run") for name in "abc"]
    lasts = (None, 15, None)
    parts = [run.transitions(last=last, follow=True) for run, last in zip(runs, lasts, strict=True)]
    both = Concat(*parts)
    sampler = PrioritizedSampler(both, 16, alpha=1.0)
    assert sampler.length == 19 + 14 + 19
    options: dict[str, Any] = {"transform": lambda batch: batch} if path == "python" else {}
    source: Any = {"step": both} if path == "named" else both
    made = DataLoader(source, sampler=sampler, workers=workers, prefetch=2, **options)
    priorities: dict[int, float] = {}
    with made as loader:
        for turn in range(40):
            batch: Any = next(loader)
            index = batch["index"]
            step = batch["step"] if path == "named" else batch
            np.testing.assert_array_equal(index, step["index"])
            # An index means the same step, however much earlier runs have grown.
            origin, own = both.origin_of(index)
            np.testing.assert_array_equal(step["observation"][:, 0], 1000 * origin + own)
            values = 1.0 + np.arange(16) + turn
            sampler.update(index, values)
            priorities.update(zip(index.tolist(), values.tolist(), strict=True))
            if turn % 4 == 3:
                record(turn % 3, 300 if turn % 3 == 1 else 40)
                assert sampler.refresh() > 0
        length = rows[0] - 1 + 14 + rows[2] - 1
        assert sampler.length == length
        state = sampler.state_dict()
        assert state["capacity"] <= 2048
        assert len(state["blocks"]) < 32
        row = np.arange(len(state["priorities"])) + state["first"]
        key = state["blocks"][row // 256 - state["first_block"]] + row % 256
        saved = {k: v for k, v in zip(key.tolist(), state["priorities"].tolist(), strict=True) if v}
        assert len(saved) == length
        assert sum(value == priorities.get(k) for k, value in saved.items()) > 50
        assert all(value == priorities.get(k, value) for k, value in saved.items())
        state = loader.state_dict()
        loader.close()
        expected = [next(loader)["index"].tolist() for _ in range(3)]
    resumed = PrioritizedSampler(Concat(*parts), 16, alpha=1.0)
    with DataLoader(Concat(*parts), sampler=resumed) as loader:
        loader.load_state_dict(state)
        assert [next(loader)["index"].tolist() for _ in range(3)] == expected
    for recorder in recorders:
        recorder.close()


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
    with pytest.raises(InvalidError, match="no source of the loader has transitions"):
        DataLoader(np.zeros(8), sampler=sampler)
    with pytest.raises(InvalidError, match="cannot draw from a Mix of transitions"):
        PrioritizedSampler(Mix(made, made), 4)
    every: Any = made.gather(range(len(made)))
    with pytest.raises(InvalidError, match="Concat of transitions and other sources"):
        PrioritizedSampler(Concat(made, ArraySource(every)), 4)
    draws: Any = made.batches(sampler=sampler, prefetch=2)
    first = next(draws)["index"].tolist()
    state = draws.state_dict()
    second = next(draws)["index"].tolist()
    draws.load_state_dict(state)
    assert (len(first), next(draws)["index"].tolist()) == (4, second)
    draws.close()
