"""`on_error="warn"`: a training goes on, with warnings, where something cannot be recorded."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pettingzoo
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from relive.errors import InvalidError, InvalidTypeError, OverloadError, StorageError
from relive.replay import ReplayConfig, ReplayRun
from relive.replay.gym import Record
from relive.replay.pettingzoo import RecordParallel
from relive.replay.writing.writer import RunWriter
from relive.store.queue import BoundedQueue

LENGTH = 20
SPACE = spaces.Box(-1e6, 1e6, (1,), np.float32)
ACTIONS = spaces.Discrete(2)


def seen(time: int, *, is_odd: bool = False) -> Any:
    return np.zeros(2) if is_odd else np.full(1, time, np.float32)


def said(time: int) -> dict[str, Any]:
    info: dict[str, Any] = {"time": time}
    if time % 5 == 2:
        info["odd"] = object()
    if time % 5 == 3:
        info["other"] = {"deep": [1j]}
    return info


class Odd(gymnasium.Env[Any, Any]):  # type: ignore[misc]
    """Has infos that JSON cannot have, and observations of another shape than its space."""

    observation_space, action_space = SPACE, ACTIONS
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 - as in Gymnasium

    def __init__(self, odd_times: tuple[int, ...] = (), *, has_frames: bool = False) -> None:
        self._odd_times = odd_times
        self.render_mode = "rgb_array" if has_frames else None
        self._time = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._time = 0
        return seen(0), {"first": 1, "odd": object()}

    def step(self, action: Any) -> Any:
        self._time += 1
        observation = seen(self._time, is_odd=self._time in self._odd_times)
        return observation, 1.0, self._time == LENGTH, False, said(self._time)

    def render(self) -> Any:
        if self._time == 4:
            raise ValueError("the window is gone")
        return np.zeros((4, 4, 3), np.uint8)


@contextmanager
def warned(*texts: str) -> Iterator[None]:
    """Expect one warning of each kind."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield
    messages = [str(each.message) for each in found if each.category is RuntimeWarning]
    assert len(messages) == len(texts), messages
    for text in texts:
        assert sum(text in message for message in messages) == 1, (text, messages)


INFOS = ("info['odd']", "info['other'].deep[0]")


def check(root: Path, *, steps: int, transitions: int) -> ReplayRun:
    """Check the infos of a run, and that no transition spans a step that is missing."""
    run = ReplayRun(root, "run")
    assert run.status == "finished"
    assert len(run) == steps
    for info, index in zip(
        run.infos(range(steps)), run.steps["step_index"].to_pylist(), strict=True
    ):
        assert info["time"] == index + 1
        assert set(info) <= {"time", "other"}
    batch: Any = (made := run.transitions()).gather(range(len(made)))
    assert len(made) == transitions
    assert (batch["next_observation"] == batch["observation"] + 1).all()
    for episode in run.episodes:
        assert episode["metadata"]["info"].get("first") == 1
    return run


def test_an_environment_goes_on(tmp_path: Path) -> None:
    env = Record(Odd(odd_times=(7, 8, LENGTH)), tmp_path, "run", on_error="warn")
    with warned(
        *INFOS, "`observations` must have", "`next_observation` must", "`options['level']`"
    ):
        for options in (None, {"level": object(), "size": 1}):
            env.reset(options=options)
            for _ in range(LENGTH):
                env.step(0)
    assert env.recorder.stats.dropped == 2 * 3
    with warned("without 6 of 40 steps"):
        env.close()
    env.close()
    # Of an episode, the steps from 7 and from 8 are missing, and so is the last one.
    run = check(tmp_path, steps=2 * 17, transitions=2 * 15)
    assert [episode.status for episode in run.episodes] == ["terminated"] * 2
    assert run.episodes[1]["metadata"]["options"] == {"size": 1}


def test_errors_are_raised_by_default(tmp_path: Path) -> None:
    given: dict[str, dict[str, Any]] = {"a": {}, "b": {"on_error": "raise"}}
    for name, options in given.items():
        with Record(Odd(), tmp_path, name, **options) as env:
            with pytest.raises(InvalidTypeError, match="odd"):
                env.reset()
            env.recorder.step([0.0])
    with pytest.raises(InvalidError, match="`on_error` must be one of 'raise', 'warn'"):
        Record(Odd(), tmp_path, "c", on_error="ignore")  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_vector_goes_on(tmp_path: Path, mode: AutoresetMode) -> None:
    vector = SyncVectorEnv([Odd] * 3, autoreset_mode=mode)
    env = Record(vector, tmp_path, "run", on_error="warn")
    with warned(*INFOS):
        env.reset()
        for _ in range(LENGTH):
            env.step([0, 0, 0])
    env.close()
    check(tmp_path, steps=3 * LENGTH, transitions=3 * LENGTH)


@pytest.mark.needs("stable_baselines3")
def test_a_vector_of_stable_baselines_goes_on(tmp_path: Path) -> None:
    from stable_baselines3.common.vec_env import DummyVecEnv

    env = Record(DummyVecEnv([Odd] * 3), tmp_path, "run", on_error="warn")
    with warned(*INFOS):
        env.reset()
        for _ in range(LENGTH):
            env.step(np.zeros(3, np.int64))
    env.close()
    check(tmp_path, steps=3 * LENGTH, transitions=3 * LENGTH)


class GymnasiumEnvPoolMixin:
    """The class by which an EnvPool of Gymnasium is recognized."""

    __module__ = "envpool.python.gymnasium_envpool"


class OddPool(GymnasiumEnvPoolMixin):
    """A pool of two environments that are always received together."""

    observation_space, action_space = SPACE, ACTIONS
    spec, config = object(), {"task_id": "Odd"}

    def __init__(self) -> None:
        self._time = 0

    def __len__(self) -> int:
        return 2

    def reset(self) -> Any:
        return np.zeros((2, 1), np.float32), {"env_id": np.arange(2), "first": 1, "odd": object()}

    def send(self, action: Any) -> None:
        self._time += 1

    def recv(self) -> Any:
        is_over = np.full(2, self._time == LENGTH)
        observations = np.full((2, 1), self._time, np.float32)
        info = {"env_id": np.arange(2), **said(self._time)}
        return observations, np.ones(2), is_over, np.zeros(2, bool), info


def test_a_pool_goes_on(tmp_path: Path) -> None:
    env = Record(OddPool(), tmp_path, "run", on_error="warn")
    with warned(*INFOS):
        env.reset()
        for _ in range(LENGTH):
            env.step(np.zeros(2, np.int64))
    env.close()
    check(tmp_path, steps=2 * LENGTH, transitions=2 * LENGTH)


class OddCrowd(pettingzoo.ParallelEnv[str, Any, Any]):  # type: ignore[misc]
    metadata = {"name": "odd"}  # noqa: RUF012 - as in PettingZoo
    possible_agents = ["a", "b"]  # noqa: RUF012 - as in PettingZoo
    render_mode = None

    def __init__(self) -> None:
        self.agents: list[str] = []
        self._time = 0

    def observation_space(self, agent: str) -> Any:
        return SPACE

    def action_space(self, agent: str) -> Any:
        return ACTIONS

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self._time = list(self.possible_agents), 0
        return {name: seen(0) for name in "ab"}, {
            name: {"first": 1, "odd": object()} for name in "ab"
        }

    def step(self, actions: Any) -> Any:
        self._time += 1
        is_over = self._time == LENGTH
        self.agents = [] if is_over else self.agents
        return (
            {name: seen(self._time, is_odd=name == "b" and self._time == 7) for name in "ab"},
            dict.fromkeys("ab", 1.0),
            dict.fromkeys("ab", is_over),
            dict.fromkeys("ab", False),
            {name: said(self._time) for name in "ab"},
        )


def test_agents_go_on(tmp_path: Path) -> None:
    env = RecordParallel(OddCrowd(), tmp_path, "run", on_error="warn")
    with warned(*INFOS, "`observations` must have", "options['level']"):
        env.reset(options={"level": object()})
        while env.agents:
            env.step(dict.fromkeys(env.agents, 0))
    with warned("without 1 of 40 steps"):
        env.close()
    check(tmp_path, steps=2 * LENGTH - 1, transitions=2 * LENGTH - 2)


def test_a_picture_that_is_missing_is_no_frame(tmp_path: Path) -> None:
    env = Record(Odd(has_frames=True), tmp_path, "run", on_error="warn")
    with warned(*INFOS, "a frame: the window is gone"):
        env.reset()
        for _ in range(LENGTH):
            env.step(0)
    env.close()
    run = check(tmp_path, steps=LENGTH, transitions=LENGTH)
    assert [row for row in range(LENGTH) if run.step(row).frame_ref is None] == [4]


def test_a_full_queue_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = ReplayConfig(overload="raise")
    env = Record(Odd(), tmp_path, "run", config=config, on_error="warn")
    offer = BoundedQueue.offer
    calls = iter(range(1000))

    def full(queue: Any, item: Any, nbytes: int, overload: Any) -> bool:
        if overload == "raise" and next(calls) % 4 == 3:
            raise OverloadError("the queue is full")
        return offer(queue, item, nbytes, overload)

    monkeypatch.setattr(BoundedQueue, "offer", full)
    with warned(*INFOS, "the queue is full"):
        env.reset()
        for _ in range(LENGTH):
            env.step(0)
    assert env.recorder.stats.dropped == LENGTH // 4
    with warned("without 5 of 20 steps"):
        env.close()
    check(tmp_path, steps=LENGTH * 3 // 4, transitions=LENGTH * 2 // 4)


def test_an_error_of_the_disk_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = Record(gymnasium.make("CartPole-v1"), tmp_path, "run", on_error="warn")
    env.reset()

    def full(self: RunWriter, items: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunWriter, "write", full)
    env.step(0)
    with pytest.raises(StorageError, match="No space"):
        env.recorder.flush()
    with pytest.raises(StorageError, match="No space"):
        env.step(0)
    with pytest.raises(StorageError, match="No space"):
        env.close()


class Unsure(gymnasium.Wrapper[Any, Any, Any, Any]):  # type: ignore[misc]
    """Does not say in the seventh step of an episode whether it has ended."""

    def step(self, action: Any) -> Any:
        seen, reward, terminated, truncated, info = self.env.step(action)
        is_unsure = info["time"] == 7
        return seen, reward, "no" if is_unsure else terminated, truncated, {"time": info["time"]}


class UnsureVector(gymnasium.vector.VectorWrapper):  # type: ignore[misc]
    """Does not say so of its second sub-environment."""

    def step(self, actions: Any) -> Any:
        seen, rewards, terminated, truncated, infos = self.env.step(actions)
        flags: list[Any] = list(terminated)
        if "time" in infos and infos["time"][1] == 7:
            flags[1] = "no"
        return seen, rewards, flags, truncated, {}


class UnsureCrowd(OddCrowd):
    """Does not say so of its second agent."""

    def step(self, actions: Any) -> Any:
        _, rewards, terminated, truncated, infos = super().step(actions)
        if infos["b"]["time"] == 7:
            terminated["b"] = "no"
        return {name: seen(self._time) for name in "ab"}, rewards, terminated, truncated, {}


def test_an_episode_is_not_recorded_further_if_its_end_is_not_known(tmp_path: Path) -> None:
    env = Record(Unsure(Odd()), tmp_path, "one", on_error="warn")
    with warned("info['odd']", "`terminated` must be a bool"):
        for _ in range(2):
            env.reset()
            for _ in range(LENGTH):
                env.step(0)
    assert env.recorder.stats.dropped == 2 * 14
    with warned("run 'one' was recorded without 28 of 40 steps"):
        env.close()

    vector = UnsureVector(SyncVectorEnv([Odd] * 2, autoreset_mode=AutoresetMode.NEXT_STEP))
    env = Record(vector, tmp_path, "several", on_error="warn")
    with warned("info['odd']", "`terminated` must be a bool"):
        env.reset()
        for _ in range(LENGTH + 4):
            env.step([0, 0])
    with warned("without 14 of 46 steps"):
        env.close()

    agents = RecordParallel(UnsureCrowd(), tmp_path, "agents", on_error="warn")
    with warned("info['odd']", "`terminated` must be a bool"):
        agents.reset()
        while agents.agents:
            agents.step(dict.fromkeys(agents.agents, 0))
    assert agents.recorder.stats.dropped == 14
    with warned("without 14 of 40 steps"):
        agents.close()

    whole = [(0, LENGTH, "terminated")]
    for name, wanted in (
        ("one", [(0, 6, "truncated")] * 2),
        ("several", [*whole, (0, 3, "truncated"), (1, 6, "truncated"), (1, 3, "truncated")]),
        ("agents", [*whole, (0, 6, "truncated")]),
    ):
        run = ReplayRun(tmp_path, name)
        found = [(each["env_index"], each["length"], each.status) for each in run.episodes]
        assert sorted(found) == sorted(wanted)
        batch: Any = (made := run.transitions()).gather(range(len(made)))
        assert len(made) == len(run)  # what was seen last is known
        assert (batch["next_observation"] == batch["observation"] + 1).all()


def test_a_block_that_warns_of_missing_steps_keeps_its_error(tmp_path: Path) -> None:
    def record(name: str, error: Exception | None) -> None:
        with Record(Odd(odd_times=tuple(range(1, 9))), tmp_path, name, on_error="warn") as env:
            with warned(*INFOS, "`observations` must have"):
                env.reset()
                for _ in range(LENGTH):
                    env.step(0)
            if error is not None:
                raise error

    with warned("without 8 of 20 steps"):
        record("a", None)
    with pytest.raises(KeyError, match="mine"):
        record("b", KeyError("mine"))


class Wide(Odd):
    """Has observations that its space cannot have, and actions."""

    observation_space = spaces.Box(0, 9, (1,), np.uint8)

    def step(self, action: Any) -> Any:
        _, *others = super().step(action)
        return np.full(1, 0.3 - self._time), *others[:3], {}


def test_what_cannot_be_cast_is_named(tmp_path: Path) -> None:
    env = Record(Wide(), tmp_path, "run", on_error="warn", cast=True)
    texts = (
        f"stored: `{name}` cannot be cast to the dtype {dtype} of its space, got"
        for name, dtype in (("observation", "uint8"), ("action", "int64"))
    )
    with warned("info['odd']", *texts):
        env.reset()
        env.step(np.float32(1.5))
        for _ in range(5):
            env.step(1)
    with warned("without 6 of 6 steps"):
        env.close()
