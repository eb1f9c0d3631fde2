"""Transitions of a run that this process records, with steps that are in memory only."""

import pickle
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from relive import PrioritizedSampler
from relive.errors import InvalidError, OutOfRangeError
from relive.replay import ReplayConfig, ReplayRecorder, ReplayRun
from relive.replay.transitions import growing
from relive.replay.transitions.recent import RecentSteps
from relive.replay.transitions.transitions import Transitions
from relive.replay.writing.steps import Streams

HELD = ReplayConfig(flush_s=3600.0, flush_steps=1 << 20, sync_episodes=False)
"""Steps stay in memory until `flush`."""


@pytest.mark.parametrize("pattern", ["1100110000", "0011000000", "1000000001"])
@pytest.mark.parametrize("committed", [1, 5, 10])
def test_a_large_value_that_a_step_does_not_have_is_zeros(
    tmp_path: Path, pattern: str, committed: int
) -> None:
    fields = ["frame", "info.map", "extras.state", "index"]
    expected = [number + 1 if has == "1" else 0 for number, has in enumerate(pattern)]
    with ReplayRecorder(tmp_path, "run", live=None) as recorder:
        # The columns are known from the beginning.
        columns = {"frame": picture(0), "info": {"map": values(0)}, "extras": {"state": values(0)}}
        recorder.step([0.0], 0, 0.0, terminated=True, **columns)
        own = recorder.transitions(fields=fields)
        for number, value in enumerate(expected):
            given: dict[str, Any] = {}
            if value:
                given = {
                    "frame": picture(value),
                    "info": {"map": values(value)},
                    "extras": {"state": values(value)},
                }
            recorder.step([float(number)], 0, 0.0, terminated=number == 9, **given)
            if number + 1 == committed:
                recorder.flush()
        own.refresh()
        recorder.flush()
        for made in (own, ReplayRun(tmp_path, "run").transitions(fields=fields)):
            batch: Any = made.gather(range(len(made)))
            for name in fields:
                found = batch[name].reshape(11, -1)[:, -1].tolist()
                assert found == ([*range(11)] if name == "index" else [0, *expected]), name


def test_the_first_last_observation_of_a_run_is_there_before_further_steps(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "run", live=None) as recorder:
        own = recorder.transitions()
        recorder.step([0.0], 0, 0.0)
        recorder.step([1.0], 0, 0.0)
        recorder.flush()
        own.refresh()
        assert len(own) == 1
        recorder.end_episode(next_observation=[2.0])
        own.refresh()
        batch: Any = own.gather(range(len(own)))
        assert batch["next_observation"].tolist() == [[1.0], [2.0]]
        assert batch["truncated"].tolist() == [False, True]


@pytest.mark.parametrize("arguments", [{}, {"n_step": 3, "last": 4000}, {"sequence": 4}])
def test_a_stream_that_is_idle_does_not_hold_back_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any]
) -> None:
    monkeypatch.setattr(growing, "_SEQUENCE_ROWS", 256)

    def record(env: int, count: int) -> None:
        for number in range(count):
            recorder.step([float(env), number], 0, 1.0, terminated=number % 50 == 49, env=env)

    with ReplayRecorder(tmp_path, "run", live=None) as recorder:
        own = recorder.transitions(**arguments)
        sampler = PrioritizedSampler(own, batch_size=8)
        for idle in (1, 2):
            record(idle, 5)
            for _ in range(10):
                record(0, 500)
                recorder.flush()
                sampler.refresh()
                assert sampler.length == len(own)
        made = own._growing
        assert made is not None
        assert made._table is not None
        assert len(made._table) < 2048
        for idle in (2, 1):
            record(idle, 10)
            record(0, 500)
            recorder.flush()
            sampler.refresh()
            assert sampler.length == len(own)
        expected: Any = ReplayRun(tmp_path, "run").transitions(**arguments)
        wanted = expected.gather(range(len(expected)))
        for name, values in own.gather(range(len(own))).items():
            np.testing.assert_array_equal(values, wanted[name], err_msg=name)
        rows = wanted["index"].reshape(len(own), -1)[:, 0]
        assert (np.diff(rows) > 0).all()
        assert own.positions(rows).tolist() == [*range(len(own))]
        assert np.count_nonzero(sampler.state_dict()["priorities"]) == len(own)


def test_steps_before_the_first_observation_are_no_transitions_yet(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "run", live=None) as recorder:
        own = recorder.transitions(min_size=2)
        for number in range(3):
            recorder.step(action=0, reward=1.0, terminated=number == 1)
            assert (own.due, len(own)) == (0, 0)
        assert repr(own) == "Transitions('run', no observations yet)"
        with pytest.raises(InvalidError, match="has no observations yet"):
            _ = own.fields
        assert own.episode_rows(2).tolist() == [2]
        recorder.flush()
        followed = ReplayRun(tmp_path, "run").transitions(follow=True)
        assert len(followed) == 0
        for number in range(3):
            recorder.step([float(number)], 0, 1.0)
        recorder.flush()
        for made in (own, followed):
            made.refresh()
            batch: Any = made.gather(range(len(made)))
            assert batch["index"].tolist() == [3, 4]
            assert batch["episode"].tolist() == [1, 1]


def test_a_stream_without_observations_does_not_hold_back_the_others(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "run", live=None) as recorder:
        own = recorder.transitions(n_step=2)
        for number in range(4000):
            recorder.step([float(number)], 0, 1.0, terminated=number % 50 == 49)
            recorder.step(action=0, reward=1.0, env=1)
            if number % 100 == 0:
                own.refresh()
        recorder.step([0.0], 0, 1.0, env=1)
        recorder.step([1.0], 0, 1.0, env=1, terminated=True)
        recorder.flush()
        own.refresh()
        made = own._growing
        assert made is not None
        assert made._table is not None
        assert len(made._table) < 2048
        batch: Any = own.gather([4000, 4001])
        assert batch["index"].tolist() == [8000, 8001]
        assert len(own) == 4002


def test_bounds_of_episodes_are_those_of_the_steps_of_then(tmp_path: Path) -> None:
    random = Random(0)  # noqa: S311 - it draws steps
    episodes: list[int] = []
    is_open: dict[int, int] = {}
    with ReplayRecorder(tmp_path, "run", live=None) as recorder:
        own = recorder.transitions(last=7)
        views: list[tuple[Transitions, list[int]]] = []
        for number in range(400):
            env = random.randrange(3)
            is_last = random.random() < 0.1
            is_open.setdefault(env, len(set(episodes)))
            episodes.append(is_open[env])
            recorder.step([0.0], 0, 0.0, terminated=is_last, env=env)
            if is_last:
                del is_open[env]
            if random.random() < 0.1:
                recorder.flush()
            if random.random() < 0.1 or number == 399:
                own.refresh()
                view = own.snapshot()
                assert isinstance(view, Transitions)
                views.append((view, list(episodes)))
            if views and random.random() < 0.2:
                check_bounds(*random.choice(views))
        for each in views:
            check_bounds(*each)


def check_bounds(made: Transitions, episodes: list[int]) -> None:
    numbers = np.array(episodes)
    rows_of = {number: np.flatnonzero(numbers == number) for number in set(episodes)}
    first, last = made.episode_bounds(np.arange(len(episodes)))
    assert first.tolist() == [rows_of[number][0] for number in episodes]
    assert last.tolist() == [rows_of[number][-1] for number in episodes]
    for row in {0, len(episodes) // 2, len(episodes) - 1}:
        assert made.episode_rows(row).tolist() == rows_of[episodes[row]].tolist()
    nothing = made.episode_bounds(np.zeros((0, 2), np.int64))
    assert [each.shape for each in nothing] == [(0, 2)] * 2


def test_bounds_of_episodes_of_steps_that_were_forgotten(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "run", config=HELD, live=None) as recorder:
        own = recorder.transitions(last=10)
        for number in range(3000):
            recorder.step([0.0], 0, 0.0, terminated=number % 100 == 99)
            if number == 0:
                own.refresh()  # flushes, since there are new columns
        own.refresh()
        other = recorder.transitions()
        recorder.step([0.0], 0, 0.0)
        recorder.flush()
        other.refresh()  # forgets the steps that are committed
        assert [int(row) for row in own.episode_bounds(50)] == [0, 99]
        assert own.episode_rows(2999).tolist() == [*range(2900, 3000)]
        with pytest.raises(OutOfRangeError, match="3000"):
            own.episode_rows(3000)


@pytest.mark.parametrize("what", ["transitions", "snapshot"])
@pytest.mark.parametrize("steps", [0, 2])
def test_a_pickle_has_what_was_in_memory(tmp_path: Path, what: str, steps: int) -> None:
    with ReplayRecorder(tmp_path, "run", config=HELD, live=None) as recorder:
        own = recorder.transitions(n_step=2)
        recorder.step([0.0], 0, 0.0, truncated=True, next_observation=[1.0])
        recorder.step([2.0], 0, 0.0)
        own.refresh()
        recorder.flush()
        own.refresh()
        for number in range(steps):
            recorder.step([3.0 + number], 0, 0.0, env=1)
        recorder.end_episode(next_observation=[9.0])
        own.refresh()
        made = own if what == "transitions" else own.snapshot()
        expected: Any = made.gather(range(len(made)))
        assert expected["index"].tolist() == [0, 1, 2][: 2 + steps // 2]
        recorder.step([4.0], 0, 0.0, terminated=True)
        restored = pickle.loads(pickle.dumps(made))  # noqa: S301 - our own
        found: Any = restored.gather(range(len(restored)))
        for name, values in expected.items():
            np.testing.assert_array_equal(found[name], values, err_msg=name)


def test_a_pickle_of_what_was_aborted_is_refused(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "run", live=None) as recorder:
        recorder.step([0.0], 0, 0.0, terminated=True)
    recorder = ReplayRecorder(tmp_path, "run", config=HELD, live=None)
    own = recorder.transitions()
    recorder.step([0.0], 0, 0.0, terminated=True)
    own.refresh()
    view = own.snapshot()
    recorder.abort()
    with pytest.raises(InvalidError, match="of 2 steps of run 'run', of which 1 are committed"):
        pickle.dumps(view)


def test_what_is_committed_does_not_stay_in_memory(tmp_path: Path) -> None:
    frame = np.zeros((1024, 1024), np.uint8)
    with ReplayRecorder(tmp_path, "run", live=None) as recorder:
        own = recorder.transitions()
        recent = own._recent
        assert recent is not None
        # Nothing reads what was accepted.
        for number in range(100):
            recorder.step([float(number)], 0, 0.0, frame=frame)
            if number % 5 == 4:
                recorder.flush()
                assert sum(item.nbytes for item, _ in recent._waiting) < 80 << 20
        own.refresh()
        assert len(own) == 99


def test_last_frames_without_last_observations_do_not_stay_in_memory(tmp_path: Path) -> None:
    frame = np.zeros((4, 4, 3), np.uint8)
    with ReplayRecorder(tmp_path, "run", config=HELD, live=None) as recorder:
        own = recorder.transitions()
        for _ in range(20):
            recorder.step([0.0], 0, 0.0, terminated=True, frame=frame, next_frame=frame)
            own.refresh()
        recorder.flush()
        own.refresh()
        recent = own._recent
        assert recent is not None
        number = own._state.source.arrays.number_of("final.frames")
        assert not recent.arrays.have(number, np.arange(20)).any()


@pytest.mark.parametrize(
    ("owner", "when"),
    [
        (Streams, "before"),
        (Streams, "after"),
        (RecentSteps, "before"),
        (RecentSteps, "between"),
        (RecentSteps, "after"),
    ],
)
@pytest.mark.parametrize("at", ["step", "last step", "end"])
def test_a_step_that_ctrl_c_interrupted_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, when: str, at: str
) -> None:
    name = "advance" if owner is Streams else "add"
    work = getattr(owner, name)

    def interrupted(self: Any, *given: Any) -> None:
        newest = getattr(self, "_newest", None)
        if when != "before":
            work(self, *given)
        if when == "between":  # after the item was appended
            self._newest = newest
        raise KeyboardInterrupt

    def step(number: int, *, is_last: bool = False) -> None:
        after = [number + 1.0] if is_last else None
        recorder.step([float(number)], 0, 0.0, truncated=is_last, next_observation=after)

    def end() -> None:
        recorder.end_episode(next_observation=[3.0])

    with ReplayRecorder(tmp_path, "run", config=HELD, live=None) as recorder:
        own = recorder.transitions()
        step(0)
        step(1, is_last=True)
        own.refresh()
        step(2)
        own.refresh()
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                end() if at == "end" else step(3, is_last=at == "last step")
        own.refresh()
        step(4, is_last=True)
        for is_committed in (False, True):
            if is_committed:
                recorder.flush()
            own.refresh()
            check_as_read(own, recorder)


@pytest.mark.parametrize("name", ["_take", "_forget"])
@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("count", [1, 4])
def test_a_refresh_that_ctrl_c_interrupted_loses_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, count: int, *, is_done: bool
) -> None:
    work = getattr(RecentSteps, name)

    def interrupted(*given: Any) -> None:
        if is_done:
            work(*given)
        raise KeyboardInterrupt

    with ReplayRecorder(tmp_path, "run", config=HELD, live=None) as recorder:
        own = recorder.transitions()
        for number in range(20):
            is_last = number % 3 == 2
            after = [number + 1.0] if is_last else None
            recorder.step([1.0 * number], 0, 0.0, truncated=is_last, next_observation=after)
            if number % count == 0:
                with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
                    patched.setattr(RecentSteps, name, interrupted)
                    own.refresh()
            if number % 5 == 4:
                own.refresh()
                check_as_read(own, recorder)


def test_what_transitions_keep_cannot_be_written(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "run", live=None) as recorder:
        own = recorder.transitions()
        for number in range(1000):
            recorder.step([float(number)], 0, 0.0)
        own.refresh()
        (keys,) = own.row_keys() or ()
        for array in (keys.since(0), keys.since(998)):
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 7


def check_as_read(own: Transitions, recorder: ReplayRecorder) -> None:
    """Compare transitions of a recorder with those that are read from the run."""
    found: Any = own.gather(range(len(own)))
    recorder.flush()
    made = ReplayRun(recorder.root, recorder.run_id).transitions()
    for name, values in made.gather(range(len(made))).items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def test_an_unknown_argument_is_refused_by_name(tmp_path: Path) -> None:
    arguments: Any = {"last": 3, "follow": True}
    with (
        ReplayRecorder(tmp_path, "run", live=None) as recorder,
        pytest.raises(TypeError, match=r"ReplayRecorder\.transitions\(\) got .* 'follow'"),
    ):
        recorder.transitions(**arguments)


def test_a_recorder_without_arrays_has_no_transitions(tmp_path: Path) -> None:
    with ReplayRecorder(tmp_path, "run", live=None, arrays=False) as recorder:
        recorder.step([0.0], 0, 0.0)
        with pytest.raises(InvalidError, match="no observations"):
            recorder.transitions()


def picture(value: int) -> Any:
    return np.full((8, 8, 3), value, np.uint8)


def values(value: int) -> Any:
    return np.full(1000, value, np.int64)
