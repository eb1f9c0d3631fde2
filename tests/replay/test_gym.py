"""Environments are recorded as a loop that is written by hand would do it."""

import copy
import inspect
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ale_py
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from relive.errors import (
    InvalidError,
    InvalidTypeError,
    OverloadError,
    ReliveError,
    UnsupportedError,
)
from relive.replay import ReplayConfig, ReplayEpisode, ReplayRun, list_runs, validate
from relive.replay.gym import Record, describe_space
from relive.replay.gym.recording import split_info
from relive.replay.gym.spaces import kept

gymnasium.register_envs(ale_py)

CONFIG = ReplayConfig(sync_episodes=False)
MODES = {
    "next_step": AutoresetMode.NEXT_STEP,
    "same_step": AutoresetMode.SAME_STEP,
    "disabled": AutoresetMode.DISABLED,
}


@dataclass
class Plan:
    """What sub-environments do: how their episodes end, and which infos they have."""

    lengths: list[int]
    terminated: list[bool]
    tick: int = 0
    """The number of the step of the vector: infos of all sub-environments change type with it."""


class Walk(gymnasium.Env[Any, Any]):  # type: ignore[misc]
    """An environment that returns the same arrays again and again, with other contents.

    Resets and steps have different arrays: Gymnasium does not copy the last observation before it
    resets in the same step.
    """

    action_space = spaces.Box(-10, 10, (2,), np.float32)
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 - as in Gymnasium

    def __init__(self, number: int, plan: Plan, *, is_flat: bool = False) -> None:
        self._number = number
        self._plan = plan
        self._is_flat = is_flat
        self._episode = -1
        self._time = 0
        self.render_mode = "rgb_array"
        self.observation_space = spaces.Box(-1e6, 1e6, (2,), np.float32)
        if not is_flat:
            self.observation_space = spaces.Dict(
                {
                    "place": self.observation_space,
                    "pair": spaces.Tuple(
                        (spaces.Discrete(1000), spaces.Box(0, 99, (2,), np.int16))
                    ),
                }
            )
        self._arrays = [
            {"place": np.zeros(2, np.float32), "pair": (0, np.zeros(2, np.int16))} for _ in "rs"
        ]
        self._picture = np.zeros((8, 8, 3), np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode += 1
        self._time = 0
        return self._seen(0), {"began": self._number + 10 * self._episode}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._time += 1
        plan, turn = self._plan, self._number + self._episode
        is_over = self._time >= plan.lengths[turn % len(plan.lengths)]
        is_terminated = is_over and plan.terminated[turn % len(plan.terminated)]
        reward = float(action[0]) + self._time / 8
        action[...] = -1  # some environments clip actions in place
        is_truncated = is_over and not is_terminated
        return self._seen(1), reward, is_terminated, is_truncated, self._info()

    def render(self) -> Any:
        self._picture[...] = self._number + 5 * self._episode + 20 * self._time
        return self._picture

    def _seen(self, which: int) -> Any:
        arrays = self._arrays[which]
        place: Any = arrays["place"]
        place[...] = (self._number + self._episode / 4, self._time)
        if self._is_flat:
            return place
        pair: Any = arrays["pair"]
        pair[1][...] = (self._time, self._episode)
        return {"place": place, "pair": (self._number * 100 + self._time, pair[1])}

    def _info(self) -> dict[str, Any]:
        """Return keys that appear and disappear, and whose values change type with the tick."""
        value: Any = (self._time, self._time / 2, "text", np.arange(2) + self._time, None)[
            self._plan.tick % 5
        ]
        info: dict[str, Any] = {"changing": value} if (self._time + self._number) % 3 else {}
        if self._time % 2:
            info["nested"] = {"time": self._time, "name": f"sub-{self._number}"}
        return info


@dataclass
class Told:
    """An episode, as it is known without a recorder."""

    seed: int | None = None
    info: Any = None
    observations: list[Any] = field(default_factory=list)
    actions: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    terminated: list[bool] = field(default_factory=list)
    truncated: list[bool] = field(default_factory=list)
    infos: list[Any] = field(default_factory=list)
    final: Any = None

    @property
    def is_over(self) -> bool:
        return bool(self.terminated and (self.terminated[-1] or self.truncated[-1]))


def plain(value: Any) -> Any:
    """Return a value as JSON has it, so that nested values compare."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def dtypes(value: Any) -> Any:
    """Return the dtypes of the arrays in a value."""
    if isinstance(value, Mapping):
        return {key: dtypes(item) for key, item in sorted(value.items())}
    if isinstance(value, tuple):
        return tuple(map(dtypes, value))
    return np.asarray(value).dtype


def told(episode: Told) -> dict[str, Any]:
    """Return an episode in the form in which `recorded` returns it."""
    *_, is_terminated = episode.terminated
    return {
        "seed": episode.seed,
        "info": plain(episode.info),
        "observations": plain(episode.observations),
        "dtypes": dtypes(episode.observations[0]),
        "actions": plain(episode.actions),
        "rewards": episode.rewards,
        "terminated": episode.terminated,
        "truncated": [*episode.truncated[:-1], not is_terminated],
        "infos": plain(episode.infos),
        "final": plain(episode.final),
        "status": "terminated" if is_terminated else "truncated",
    }


def rows_of(values: Any, count: int) -> list[Any]:
    """Return the rows of nested arrays."""
    if isinstance(values, Mapping):
        split = {key: rows_of(item, count) for key, item in values.items()}
        return [{key: rows[place] for key, rows in split.items()} for place in range(count)]
    if isinstance(values, tuple):
        split_items = [rows_of(item, count) for item in values]
        return [tuple(rows[place] for rows in split_items) for place in range(count)]
    return list(values)


def episodes_of(run: ReplayRun) -> list[ReplayEpisode]:
    """Return the episodes of a run."""
    return [run.episodes.episode_at(position) for position in range(len(run.episodes))]


def recorded(run: ReplayRun, env: int = 0) -> list[dict[str, Any]]:
    """Return the recorded episodes of a sub-environment."""
    found = []
    for episode in episodes_of(run):
        statics = episode.statics
        if statics["env_index"] != env:
            continue
        arrays = episode.arrays()
        rows = episode.rows
        seen = rows_of(arrays["observations"], len(rows))
        found.append(
            {
                "seed": statics["seed"],
                "info": (statics["metadata"] or {}).get("info"),
                "observations": plain(seen),
                "dtypes": dtypes(seen[0]),
                "actions": plain(arrays["actions"]),
                "rewards": arrays["rewards"].tolist(),
                "terminated": arrays["terminated"].tolist(),
                "truncated": arrays["truncated"].tolist(),
                "infos": [run.step(int(row)).info or {} for row in rows],
                "final": plain(arrays["final"].get("observations")),
                "status": episode.status,
            }
        )
    return found


@dataclass
class Schedule:
    """What a test does with a vector: at each tick a step, and sometimes a reset after it."""

    count: int
    plan: Plan
    steps: int
    resets: dict[int, int | None]
    """Ticks after which everything is reset, with the seed."""
    masks: dict[int, list[bool]]
    """Sub-environments that are reset in the middle of their episodes, by tick."""

    def action(self, tick: int, env: int) -> Any:
        return np.array([tick, env / 2], np.float32)

    def walk(self, env: int, *, is_flat: bool = False) -> Walk:
        return Walk(env, self.plan, is_flat=is_flat)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    count = draw(st.integers(1, 3))
    steps = draw(st.integers(1, 14))
    plan = Plan(
        draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)),
        draw(st.lists(st.booleans(), min_size=1, max_size=3)),
    )
    ticks = st.integers(0, steps - 1)
    resets = draw(st.dictionaries(ticks, st.none() | st.integers(0, 100), max_size=2))
    mask = st.lists(st.booleans(), min_size=count, max_size=count)
    return Schedule(count, plan, steps, resets, draw(st.dictionaries(ticks, mask, max_size=3)))


def by_hand(schedule: Schedule, mode: str, env: int, *, is_flat: bool = False) -> list[Told]:
    """Step one sub-environment on its own, with the actions that the vector gives it."""
    walk = schedule.walk(env, is_flat=is_flat)
    episodes: list[Told] = []

    def reset(seed: int | None) -> None:
        observation, info = walk.reset(seed=seed)
        episodes.append(Told(seed, info, final=copy.deepcopy(observation)))

    schedule.plan.tick = 0
    reset(0 + env)
    for tick in range(schedule.steps):
        schedule.plan.tick = tick
        now = episodes[-1]
        if mode == "next_step" and now.is_over:
            reset(None)
        else:
            now.observations.append(now.final)
            action = schedule.action(tick, env)
            now.actions.append(action.copy())
            found = walk.step(action)
            now.final = copy.deepcopy(found[0])
            now.rewards.append(found[1])
            now.terminated.append(found[2])
            now.truncated.append(found[3])
            now.infos.append(found[4])
            if mode == "same_step" and now.is_over:
                reset(None)
        if mode == "disabled" and (
            episodes[-1].is_over or schedule.masks.get(tick, [False] * 3)[env]
        ):
            reset(None)
        if tick in schedule.resets:
            seed = schedule.resets[tick]
            reset(None if seed is None else seed + env)
    return [episode for episode in episodes if episode.actions]


def run_vector(schedule: Schedule, mode: str, envs: Any) -> None:
    """Step a vector as the schedule says."""
    schedule.plan.tick = 0
    envs.reset(seed=0)
    for tick in range(schedule.steps):
        schedule.plan.tick = tick
        rows = [schedule.action(tick, env) for env in range(schedule.count)]
        _, _, terminated, truncated, _ = envs.step(np.stack(rows))
        mask = np.array(schedule.masks.get(tick, [False] * schedule.count))
        mask |= terminated | truncated
        if mode == "disabled" and mask.any():
            envs.reset(options={"reset_mask": mask})
        if tick in schedule.resets:
            envs.reset(seed=schedule.resets[tick])


@contextmanager
def root_directory() -> Iterator[Path]:
    """Return a directory; a fixture would be the same for all examples."""
    with tempfile.TemporaryDirectory() as root:
        yield Path(root)


@pytest.mark.parametrize("mode", MODES)
@given(schedule=schedules())
@settings(max_examples=25)
def test_vector_is_recorded_as_by_hand(mode: str, schedule: Schedule) -> None:
    with root_directory() as root:
        # One that is not copied has the same arrays after every step.
        envs = SyncVectorEnv(
            [lambda env=env: schedule.walk(env) for env in range(schedule.count)],
            copy=False,
            autoreset_mode=MODES[mode],
        )
        with Record(envs, root, "run", config=CONFIG, frames=None) as env:
            run_vector(schedule, mode, env)
        run = ReplayRun(root, "run")
        for number in range(schedule.count):
            expected = [told(episode) for episode in by_hand(schedule, mode, number)]
            assert recorded(run, number) == expected


@given(schedule=schedules(), every=st.integers(1, 3))
@settings(max_examples=25)
def test_single_environment_is_recorded_as_by_hand(schedule: Schedule, every: int) -> None:
    schedule.masks = {}
    with root_directory() as root:
        with Record(schedule.walk(0), root, "run", config=CONFIG, every=every, live=None) as env:
            schedule.plan.tick = 0
            env.reset(seed=0)
            for tick in range(schedule.steps):
                schedule.plan.tick = tick
                _, _, terminated, truncated, _ = env.step(schedule.action(tick, 0))
                if terminated or truncated:
                    env.reset()
                if tick in schedule.resets:
                    env.reset(seed=schedule.resets[tick])
        run = ReplayRun(root, "run")
        expected = by_hand(schedule, "disabled", 0)
        assert recorded(run) == [told(episode) for episode in expected]
        for number, episode in enumerate(episodes_of(run)):
            frames = [step["frame"] for step in episode.load()["steps"]]
            walked = _turn(expected[number])
            for time, frame in enumerate(frames):
                if time % every:
                    assert frame is None
                else:
                    assert (frame == 5 * walked + 20 * time).all()


def _turn(episode: Told) -> int:
    """Return how often the environment was reset before an episode."""
    place: Any = episode.observations[0]["place"]
    return round(float(place[0]) * 4)


@given(schedule=schedules())
@settings(max_examples=10)
def test_environment_that_resets_itself_is_recorded_as_by_hand(schedule: Schedule) -> None:
    schedule.masks = {}
    with root_directory() as root:
        walk = gymnasium.wrappers.Autoreset(schedule.walk(0))
        with Record(walk, root, "run", config=CONFIG) as env:
            schedule.plan.tick = 0
            env.reset(seed=0)
            for tick in range(schedule.steps):
                schedule.plan.tick = tick
                env.step(schedule.action(tick, 0))
                if tick in schedule.resets:
                    env.reset(seed=schedule.resets[tick])
        expected = [told(episode) for episode in by_hand(schedule, "next_step", 0)]
        assert recorded(ReplayRun(root, "run")) == expected


def cart_poles(mode: str, count: int = 3) -> SyncVectorEnv:
    makers = [lambda: gymnasium.make("CartPole-v1", max_episode_steps=12) for _ in range(count)]
    return SyncVectorEnv(makers, autoreset_mode=MODES[mode])


def test_cart_pole_is_recorded(tmp_path: Path) -> None:
    twin = gymnasium.make("CartPole-v1")
    env = Record(gymnasium.make("CartPole-v1"), tmp_path, "run", metadata={"who": "me"})
    assert isinstance(env, gymnasium.Wrapper)
    assert isinstance(env, Record)
    seen = [twin.reset(seed=3)[0]]
    assert np.array_equal(env.reset(seed=3)[0], seen[0])
    is_over = False
    while not is_over:
        action = len(seen) % 2
        mine, theirs = env.step(action), twin.step(action)
        assert mine[1:] == theirs[1:]
        seen.append(theirs[0])
        is_over = theirs[2] or theirs[3]
    env.close()
    run = ReplayRun(tmp_path, "run")
    (episode,) = episodes_of(run)
    arrays = episode.arrays()
    np.testing.assert_array_equal(arrays["observations"], seen[:-1])
    np.testing.assert_array_equal(arrays["final"]["observations"], seen[-1])
    assert arrays["actions"].tolist() == [number % 2 for number in range(1, len(seen))]
    assert episode["seed"] == 3
    assert run.info["env_id"] == "CartPole-v1"
    assert run.info["env_spec"]["entry_point"].endswith("CartPoleEnv")
    assert run.info["spaces"]["action"] == {
        "type": "Discrete",
        "n": 2,
        "start": 0,
        "dtype": "int64",
    }
    assert run.info["metadata"] == {"who": "me"}
    assert run.status == "finished"


@pytest.mark.parametrize("mode", MODES)
def test_vector_of_cart_poles_is_recorded(mode: str, tmp_path: Path) -> None:
    env = Record(cart_poles(mode), tmp_path, "run", config=CONFIG)
    assert isinstance(env, gymnasium.vector.VectorWrapper)
    assert env.num_envs == 3
    env.reset(seed=[5, None, 7])
    env.action_space.seed(1)
    actions: list[Any] = []
    for _ in range(30):
        actions.append(env.action_space.sample())
        _, _, terminated, truncated, _ = env.step(actions[-1])
        mask = terminated | truncated
        if mode == "disabled" and mask.any():
            env.reset(options={"reset_mask": mask})
    env.close()
    run = ReplayRun(tmp_path, "run")
    assert run.info["env_id"] == "CartPole-v1"
    for number, seed in enumerate([5, None, 7]):
        first = next(e for e in episodes_of(run) if e["env_index"] == number)
        assert first["seed"] == seed
        if seed is None:
            continue
        twin = gymnasium.make("CartPole-v1", max_episode_steps=12)
        seen, ends = [twin.reset(seed=seed)[0]], []
        for tick in range(first["length"]):
            observation, _, *end, _ = twin.step(actions[tick][number])
            seen.append(observation)
            ends.append(end)
        arrays = first.arrays()
        np.testing.assert_array_equal(arrays["observations"], seen[:-1])
        np.testing.assert_array_equal(arrays["final"]["observations"], seen[-1])
        assert np.stack([arrays["terminated"], arrays["truncated"]], 1).tolist() == ends


@pytest.mark.parametrize("mode", MODES)
def test_processes_are_recorded_as_one_process_is(mode: str, tmp_path: Path) -> None:
    def make() -> Any:
        return gymnasium.make("CartPole-v1", max_episode_steps=5, render_mode="rgb_array")

    runs = []
    for name, vector in (
        ("sync", SyncVectorEnv([make] * 2, autoreset_mode=MODES[mode])),
        # A forked process would warn about the threads of this one.
        ("async", AsyncVectorEnv([make] * 2, autoreset_mode=MODES[mode], context="spawn")),
    ):
        with Record(vector, tmp_path, name, config=CONFIG, every=4) as env:
            env.reset(seed=1)
            for tick in range(12):
                _, _, terminated, truncated, _ = env.step(np.array([tick % 2, 1]))
                mask = terminated | truncated
                if mode == "disabled" and mask.any():
                    env.reset(options={"reset_mask": mask})
        runs.append(ReplayRun(tmp_path, name))
    for number in range(2):
        assert recorded(runs[0], number) == recorded(runs[1], number)
        assert len(recorded(runs[0], number)) > 1
    np.testing.assert_array_equal(
        runs[0].read("frames", range(len(runs[0]))), runs[1].read("frames", range(len(runs[1])))
    )


def test_vector_with_its_own_class_is_recorded(tmp_path: Path) -> None:
    vector = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="vector_entry_point")
    with Record(vector, tmp_path, "run", config=CONFIG) as env:
        env.reset(seed=4)
        for _ in range(30):
            env.step(np.array([0, 1]))
    run = ReplayRun(tmp_path, "run")
    lengths = [episode["length"] for episode in episodes_of(run)]
    assert len(lengths) > 4
    # The vector does not say how it makes seeds of its sub-environments from one.
    assert [episode["seed"] for episode in episodes_of(run)][:3] == [4, 4, None]
    assert all("observations" in episode.final() for episode in episodes_of(run))


def test_atari_game_is_recorded_with_frames(tmp_path: Path) -> None:
    def make() -> Any:
        return gymnasium.make("ALE/Pong-v5", render_mode="rgb_array", frameskip=4)

    twin = make()
    with Record(make(), tmp_path, "run", config=CONFIG) as env:
        env.reset(seed=2)
        observation, info = twin.reset(seed=2)
        seen, frames, infos = [observation], [twin.render()], []
        for tick in range(12):
            env.step(tick % 6)
            observation, _, _, _, step_info = twin.step(tick % 6)
            seen.append(observation)
            frames.append(twin.render())
            infos.append(step_info)
    (episode,) = episodes_of(ReplayRun(tmp_path, "run"))
    arrays = episode.arrays()
    np.testing.assert_array_equal(arrays["observations"], seen[:-1])
    np.testing.assert_array_equal(arrays["frames"], frames[:-1])
    np.testing.assert_array_equal(arrays["final"]["observations"], seen[-1])
    assert episode["metadata"] == {"info": plain(info)}
    assert [ReplayRun(tmp_path, "run").step(row).info for row in range(12)] == plain(infos)
    assert episode.status == "truncated"


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_atari_vector_is_recorded(mode: str, tmp_path: Path) -> None:
    from ale_py.vector_env import AtariVectorEnv

    vector = AtariVectorEnv(
        "pong",
        2,
        autoreset_mode=MODES[mode].value,
        max_num_frames_per_episode=20,
        noop_max=0,
        use_fire_reset=False,
    )
    with Record(vector, tmp_path, "run", config=CONFIG) as env:
        assert isinstance(env, gymnasium.vector.VectorWrapper)
        seen = [env.reset(seed=3)[0]]
        seen += [env.step(np.array([2, 3]))[0] for _ in range(8)]
    run = ReplayRun(tmp_path, "run")
    lengths = [episode["length"] for episode in episodes_of(run) if episode["env_index"] == 1]
    assert lengths == ([5, 2] if mode == "next_step" else [5, 3])
    assert [episode["seed"] for episode in episodes_of(run)] == [3, 4, None, None]
    first = episodes_of(run)[1]
    np.testing.assert_array_equal(
        first.arrays("observations")["observations"],
        [row[1] for row in seen[:5]],
    )
    assert set(run.step(0).info or {}) == {"lives", "frame_number", "episode_frame_number"}
    assert first.final()["observations"].shape == (4, 84, 84)


def test_vectors_that_share_their_metadata_have_their_own_mode(tmp_path: Path) -> None:
    from ale_py.vector_env import AtariVectorEnv

    first = AtariVectorEnv("pong", 1, autoreset_mode="SameStep", max_num_frames_per_episode=8)
    second = AtariVectorEnv("pong", 1, autoreset_mode="NextStep")
    assert first.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP  # which is wrong
    with Record(first, tmp_path, "run", config=CONFIG) as env:
        env.reset(seed=1)
        for _ in range(4):
            env.step(np.array([0]))
    assert [episode["length"] for episode in episodes_of(ReplayRun(tmp_path, "run"))] == [2, 2]
    second.close()


class Bare(VectorEnv[Any, Any, Any]):  # type: ignore[misc]
    """A vector that does not say how it resets, and whose infos have no masks."""

    metadata: dict[str, Any] = {}  # noqa: RUF012 - as in Gymnasium
    num_envs = 2
    single_observation_space = spaces.Box(-9, 9, (1,), np.float64)
    observation_space = spaces.Box(-9, 9, (2, 1), np.float64)
    single_action_space = spaces.Discrete(3)
    action_space = spaces.MultiDiscrete([3, 3])

    def __init__(self) -> None:
        self._time = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._time = 0
        return np.zeros((2, 1)), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self._time += 1
        ends = np.array([self._time % 3 == 0, False])
        info = {"speed": np.array([1.5, 2.5]), "names": ["a", "b"], "version": "x", "all": 7}
        seen = np.full((2, 1), float(self._time))
        return seen, np.ones(2), np.zeros(2, bool), ends, info


def test_vector_must_say_how_it_resets(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="autoreset_mode") as caught:
        Record(Bare(), tmp_path)
    assert "autoreset=" in str(caught.value.hint)
    with pytest.raises(InvalidError, match="`autoreset` must be one of"):
        Record(Bare(), tmp_path, autoreset="sometimes")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
    with Record(Bare(), tmp_path, "run", autoreset="next_step", config=CONFIG) as env:
        env.reset()
        for _ in range(5):
            env.step([1, 2])
    run = ReplayRun(tmp_path, "run")
    assert [(e["env_index"], e["length"]) for e in episodes_of(run)] == [(0, 3), (1, 5), (0, 1)]
    assert run.step(1).info == {"speed": 2.5, "names": "b", "version": "x", "all": 7}
    assert run.step(1).action == 2


def test_mode_may_be_passed_as_gymnasium_names_it(tmp_path: Path) -> None:
    for number, mode in enumerate((AutoresetMode.NEXT_STEP, "NextStep", "next_step")):
        with Record(Bare(), tmp_path, f"run-{number}", autoreset=mode, config=CONFIG) as env:
            env.reset()
            for _ in range(5):
                env.step([1, 2])
        assert len(ReplayRun(tmp_path, f"run-{number}")) == 9


def test_infos_that_are_a_list_are_recorded(tmp_path: Path) -> None:
    schedule = Schedule(2, Plan([3], [True]), 7, {}, {})
    envs = SyncVectorEnv(
        [lambda env=env: schedule.walk(env) for env in range(2)],
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    listed = gymnasium.wrappers.vector.DictInfoToList(envs)
    with Record(listed, tmp_path, "run", config=CONFIG, frames=None) as env:
        run_vector(schedule, "same_step", env)
    run = ReplayRun(tmp_path, "run")
    for number in range(2):
        expected = [told(episode) for episode in by_hand(schedule, "same_step", number)]
        assert recorded(run, number) == expected


def test_statistics_of_a_vector_are_split(tmp_path: Path) -> None:
    vector = gymnasium.wrappers.vector.RecordEpisodeStatistics(cart_poles("next_step", 2))
    with Record(vector, tmp_path, "run", config=CONFIG) as env:
        env.reset(seed=1)
        for _ in range(26):
            env.step(np.array([0, 1]))
    run = ReplayRun(tmp_path, "run")
    for episode in episodes_of(run):
        *before, last = [run.step(int(row)).info for row in episode.rows]
        assert not any(before)
        if episode.status == "terminated":
            assert last is not None
            assert last["episode"]["r"] == episode["return"]
            assert last["episode"]["l"] == episode["length"]


def test_info_of_a_vector_is_split_by_its_masks() -> None:
    infos = {
        "a": np.array([1, 2]),
        "_a": np.array([True, False]),
        "b": {"c": np.array(["x", None], object), "_c": np.array([True, False]), "d": np.ones(2)},
        "_b": np.array([True, True]),
        "_private": np.array([5, 6]),
        "one": np.float64(3),
        "short": (1,),
    }
    assert plain(split_info(infos, 0, 2)) == {
        "a": 1,
        "b": {"c": "x", "d": 1.0},
        "_private": 5,
        "one": 3.0,
        "short": [1],
    }
    assert plain(split_info(infos, 1, 2)) == {
        "b": {"d": 1.0},
        "_private": 6,
        "one": 3.0,
        "short": [1],
    }


def test_frames_of_a_vector_are_rendered(tmp_path: Path) -> None:
    schedule = Schedule(2, Plan([4], [True]), 9, {}, {})
    envs = SyncVectorEnv([lambda env=env: schedule.walk(env) for env in range(2)])
    rendered = []
    render = envs.render

    def counted() -> Any:
        rendered.append(1)
        return render()

    envs.render = counted
    with Record(envs, tmp_path, "run", config=CONFIG, every=2) as env:
        run_vector(schedule, "next_step", env)
    run = ReplayRun(tmp_path, "run")
    # Steps 0, 2, 4, 6 and 8: the fourth ends the first episode, the fifth resets.
    for number in range(2):
        first, second = (e for e in episodes_of(run) if e["env_index"] == number)
        frames = [step["frame"] for step in first.load()["steps"]]
        assert [None if frame is None else int(frame[0, 0, 0]) for frame in frames] == [
            number,
            None,
            number + 40,
            None,
        ]
        assert int(first.final()["frames"][0, 0, 0]) == number + 80
        frames = [step["frame"] for step in second.load()["steps"]]
        assert [None if frame is None else int(frame[0, 0, 0]) for frame in frames] == [
            None,
            number + 25,
            None,
            number + 65,
        ]
    assert len(rendered) == 5  # what was rendered after the fourth step is the frame of the fifth


def test_last_frame_of_an_interrupted_episode_is_kept(tmp_path: Path) -> None:
    schedule = Schedule(1, Plan([9], [True]), 0, {}, {})
    with Record(schedule.walk(0), tmp_path, "run", config=CONFIG) as env:
        env.reset()
        env.step(schedule.action(0, 0))
        env.step(schedule.action(1, 0))
        env.reset()
    (episode,) = episodes_of(ReplayRun(tmp_path, "run"))
    assert int(episode.final()["frames"][0, 0, 0]) == 40


class Pictures(gymnasium.Env[Any, Any]):  # type: ignore[misc]
    """An environment whose observations are images, and cannot be rendered."""

    action_space = spaces.Discrete(2)

    def __init__(self, shape: tuple[int, ...] = (6, 5, 3), dtype: Any = np.uint8) -> None:
        self.observation_space = spaces.Box(0, 255, shape, dtype)
        self._seen = np.zeros(shape, dtype)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._seen[...] = 0
        return self._seen, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._seen += 1
        return self._seen, 0.0, bool(self._seen.flat[0] == 4), False, {}


def test_observations_may_be_the_frames(tmp_path: Path) -> None:
    with Record(Pictures(), tmp_path, "run", frames="observation", every=2, config=CONFIG) as env:
        env.reset()
        for _ in range(4):
            env.step(1)
    (episode,) = episodes_of(ReplayRun(tmp_path, "run"))
    steps = episode.load()["steps"]
    found = [None if step["frame"] is None else int(step["frame"].max()) for step in steps]
    assert found == [0, None, 2, None]
    assert int(episode.final()["frames"].max()) == 4


def test_frames_that_cannot_be_made_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match='"rgb_array", but it is None') as caught:
        Record(gymnasium.make("CartPole-v1"), tmp_path, frames="render")
    assert 'render_mode="rgb_array"' in str(caught.value.hint)
    for env in (
        gymnasium.make("CartPole-v1"),
        Pictures((3, 6, 5)),
        Pictures((6, 5, 3), np.float32),
    ):
        with pytest.raises(InvalidError, match="are images of uint8"):
            Record(env, tmp_path, frames="observation")
    with pytest.raises(InvalidError, match="`frames` must be one of"):
        Record(Pictures(), tmp_path, frames="video")  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="`every` must be at least 1"):
        Record(Pictures(), tmp_path, every=0)
    assert not list(tmp_path.iterdir())


def test_without_a_render_mode_there_are_no_frames(tmp_path: Path) -> None:
    with Record(Pictures(), tmp_path, "run", config=CONFIG) as env:
        env.reset()
        env.step(0)
    assert "frames" not in ReplayRun(tmp_path, "run").fields


def test_what_is_not_an_environment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidTypeError, match="`env` must be an environment of Gymnasium"):
        Record(object(), tmp_path)
    with pytest.raises(InvalidTypeError, match="got a str"):
        Record("CartPole-v1", tmp_path)


class Speaking(Pictures):
    """An environment whose spaces or infos are as a test says."""

    def __init__(self, space: Any = None, infos: Sequence[Any] = ()) -> None:
        super().__init__()
        self.observation_space = space or self.observation_space
        self._infos = iter(infos)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return super().reset()[0], next(self._infos, {})

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seen, reward, is_over, _, _ = super().step(action)
        return seen, reward, is_over, False, next(self._infos, {})


def test_spaces_without_arrays_of_one_shape_are_refused(tmp_path: Path) -> None:
    for inner in (spaces.Text(4), spaces.Sequence(spaces.Discrete(2))):
        space = spaces.Dict({"image": spaces.Box(0, 1), "mission": inner})
        with pytest.raises(UnsupportedError, match=r"`observation\.mission`") as caught:
            Record(Speaking(space), tmp_path)
        assert "FilterObservation" in str(caught.value.hint)
    assert not list(tmp_path.iterdir())


def test_info_that_json_cannot_have_is_an_error_that_names_the_key(tmp_path: Path) -> None:
    infos = [{}, {"fine": 1}, {"odd": object()}, {"fine": 2}, {}, {"fine": 3}]
    with Record(Speaking(infos=infos), tmp_path, "run", config=CONFIG) as env:
        env.reset()
        env.step(0)
        with pytest.raises(TypeError, match="odd"):
            env.step(1)
        env.step(0)  # the rest of the episode is not recorded: a step of it is missing
        env.reset()
        env.step(1)
    run = ReplayRun(tmp_path, "run")
    first, second = episodes_of(run)
    assert (first["length"], second["length"]) == (1, 1)
    assert first.status == "truncated"
    # The episode ends with what the agent saw after its last recorded step.
    assert int(first.final()["observations"].max()) == 1
    assert run.step(1).info == {"fine": 3}


def test_other_sub_environments_go_on_after_an_info_that_json_cannot_have(tmp_path: Path) -> None:
    def make(infos: Sequence[Any]) -> Callable[[], Any]:
        return lambda: Speaking(infos=infos)

    envs = SyncVectorEnv([make([{}] * 9), make([{}, {}, {"odd": {1, 2j}}]), make([{}] * 9)])
    with Record(envs, tmp_path, "run", config=CONFIG) as env:
        env.reset()
        env.step([0, 0, 0])
        with pytest.raises(TypeError, match="odd"):
            env.step([0, 0, 0])
        for _ in range(4):
            env.step([0, 0, 0])
    run = ReplayRun(tmp_path, "run")
    lengths: list[list[int]] = [[], [], []]
    for episode in episodes_of(run):
        lengths[episode["env_index"]].append(episode["length"])
    # The first was recorded before the error. The others begin again after their reset.
    assert lengths == [[4, 1], [1, 1], [1, 1]]
    for episode in episodes_of(run):
        arrays = episode.arrays()
        seen = [*arrays["observations"][:, 0, 0, 0], arrays["final"]["observations"][0, 0, 0]]
        assert seen == list(range(len(seen)))


def test_reset_info_that_json_cannot_have_is_an_error_that_names_the_key(tmp_path: Path) -> None:
    with Record(Speaking(infos=[{"odd": object()}, {}]), tmp_path, "run", config=CONFIG) as env:
        with pytest.raises(TypeError, match="odd"):
            env.reset()
        with pytest.raises(TypeError, match=r"options\['level'\]"):
            env.reset(options={"level": object()})
        env.reset()
        env.step(0)
    assert len(ReplayRun(tmp_path, "run")) == 1


def test_options_and_seeds_belong_to_the_episode(tmp_path: Path) -> None:
    big = 1 << 100
    with Record(Speaking(infos=[{"map": np.arange(3)}]), tmp_path, "run", config=CONFIG) as env:
        env.reset(seed=5, options={"level": np.int64(2), "names": ("a", "b")})
        env.step(0)
        env.reset(seed=big)
        env.step(0)
        env.reset()
        env.step(0)
    first, second, third = episodes_of(ReplayRun(tmp_path, "run"))
    assert first["seed"] == 5
    assert first["metadata"] == {
        "options": {"level": 2, "names": ["a", "b"]},
        "info": {"map": [0, 1, 2]},
    }
    assert (second["seed"], second["metadata"]) == (None, {"seed": big})
    assert (third["seed"], third["metadata"]) == (None, None)


def test_resets_without_steps_leave_no_episodes(tmp_path: Path) -> None:
    with Record(Pictures(), tmp_path, "run", config=CONFIG) as env:
        for seed in range(3):
            env.reset(seed=seed)
        env.step(0)
        env.reset(seed=9)
    (episode,) = episodes_of(ReplayRun(tmp_path, "run"))
    assert (episode["seed"], episode["length"]) == (2, 1)


def test_step_before_reset_and_after_the_end_is_an_error(tmp_path: Path) -> None:
    with Record(Pictures(), tmp_path, "run", config=CONFIG) as env:
        with pytest.raises(InvalidError, match="was not reset"):
            env.step(0)
        env.reset()
        for _ in range(4):
            env.step(0)
        with pytest.raises(InvalidError, match="has ended") as caught:
            env.step(0)
        assert "reset()" in str(caught.value.hint)
        env.reset()
        env.step(0)
    assert [e["length"] for e in episodes_of(ReplayRun(tmp_path, "run"))] == [4, 1]


@pytest.mark.parametrize("is_vector", [False, True])
def test_end_that_is_not_a_bool_is_an_error(tmp_path: Path, is_vector: bool) -> None:  # noqa: FBT001
    class Odd(gymnasium.Wrapper[Any, Any, Any, Any]):  # type: ignore[misc]
        def step(self, action: Any) -> Any:
            seen, reward, _, truncated, info = self.env.step(action)
            return seen, reward, "no", truncated, info

    class OddVector(gymnasium.vector.VectorWrapper):  # type: ignore[misc]
        def step(self, actions: Any) -> Any:
            seen, reward, _, truncated, info = self.env.step(actions)
            return seen, reward, np.array(["no", "no"]), truncated, info

    inner = OddVector(SyncVectorEnv([Pictures] * 2)) if is_vector else Odd(Pictures())
    with Record(inner, tmp_path, "run", config=CONFIG) as env:
        env.reset()
        with pytest.raises(InvalidTypeError, match="`terminated` must be a bool"):
            env.step([0, 0] if is_vector else 0)
    assert list_runs(tmp_path)[0].steps == 0


def test_sub_environments_that_are_not_reset_are_not_recorded(tmp_path: Path) -> None:
    with Record(Bare(), tmp_path, "run", autoreset="disabled", config=CONFIG) as env:
        env.reset()
        for _ in range(5):
            env.step([1, 2])
    run = ReplayRun(tmp_path, "run")
    assert [(e["env_index"], e["length"]) for e in episodes_of(run)] == [(0, 3), (1, 5)]


def test_environment_that_resets_in_the_same_step_is_recorded(tmp_path: Path) -> None:
    class Old(gymnasium.Wrapper[Any, Any, Any, Any]):  # type: ignore[misc]
        def step(self, action: Any) -> Any:
            seen, reward, terminated, truncated, info = self.env.step(action)
            if terminated:
                info = {**info, "final_observation": seen.copy(), "final_info": {"last": 1}}
                seen, reset_info = self.env.reset()
                info |= reset_info
            return seen, reward, terminated, truncated, info

    infos = [{"began": 1}, {}, {}, {}, {}, {"began": 2}]
    env = Record(Old(Speaking(infos=infos)), tmp_path, "run", autoreset="same_step", config=CONFIG)
    env.reset()
    for _ in range(6):
        env.step(0)
    env.close()
    run = ReplayRun(tmp_path, "run")
    assert [(e["length"], e["metadata"]) for e in episodes_of(run)] == [
        (4, {"info": {"began": 1}}),
        (2, {"info": {"began": 2}}),
    ]
    assert [run.step(row).info or {} for row in (2, 3)] == [{}, {"last": 1}]
    assert int(episodes_of(run)[0].final()["observations"].max()) == 4


def test_actions_of_other_types_have_the_dtype_of_the_space(tmp_path: Path) -> None:
    with Record(Pictures(), tmp_path, "run", config=CONFIG) as env:
        env.reset()
        for action in (1, np.int64(0), np.int32(1), np.array(1)):
            env.step(action)
    run = ReplayRun(tmp_path, "run")
    assert run.fields["actions"] == ("<i8", ())
    assert [run.step(row).action for row in range(4)] == [1, 0, 1, 1]
    pendulum = Record(gymnasium.make("Pendulum-v1"), tmp_path, "box", config=CONFIG)
    pendulum.reset(seed=1)
    pendulum.step([0.5])
    pendulum.step(np.array([0.25], np.float32))
    pendulum.close()
    assert ReplayRun(tmp_path, "box").read("actions", [0, 1]).tolist() == [[0.5], [0.25]]


class Loose(gymnasium.Env[Any, Any]):  # type: ignore[misc]
    """An environment whose observations have the dtype of another space."""

    observation_space = spaces.Dict({"a": spaces.Box(-1e9, 1e9, (2,), np.float32)})
    action_space = spaces.Discrete(9, dtype=np.int32)

    def __init__(self, seen: Sequence[Any]) -> None:
        self._seen = [{"a": value} for value in seen]
        self._time = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        return self._seen[0], {}

    def step(self, _: Any) -> Any:
        self._time += 1
        is_over = self._time == len(self._seen) - 1
        return self._seen[self._time], 1.0, is_over, False, {}


@pytest.mark.parametrize("is_vector", [False, True])
def test_values_are_cast_to_the_space_on_request(tmp_path: Path, is_vector: bool) -> None:  # noqa: FBT001
    seen: list[Any] = [np.array([0.1, 2**24 + 1]), np.array([1, 2]), [3, 4]]
    seen.append(np.array([5, np.inf], np.float16))
    env: Any = Loose(seen)
    if is_vector:

        class Doubles(gymnasium.vector.VectorWrapper):  # type: ignore[misc]
            def step(self, actions: Any) -> Any:
                found, *others = self.env.step(actions)
                return ({"a": found["a"].astype(np.float64)}, *others)

        seen = [np.asarray(value, np.float32) for value in seen]
        env = Doubles(SyncVectorEnv([lambda: Loose(seen)], autoreset_mode=MODES["next_step"]))
    with Record(env, tmp_path, "run", cast=True, config=CONFIG) as env:
        env.reset()
        for action in (1, np.int32(2), np.array(3, np.int64)):
            env.step(np.array([action]) if is_vector else action)
    (episode,) = ReplayRun(tmp_path, "run").episodes
    run = ReplayRun(tmp_path, "run")
    for name, dtype in (
        ("observations.a", "<f4"),
        ("actions", "<i4"),
        ("final.observations.a", "<f4"),
    ):
        assert run.arrays.columns[name].dtype == dtype
    assert run.read("actions", range(3)).tolist() == [1, 2, 3]
    np.testing.assert_array_equal(
        run.read("observations", range(3))["a"][0], np.asarray(seen[0], np.float32)
    )
    assert episode["length"] == 3


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (np.array([1.0, 0.5]), np.int64, "0.5"),
        (np.array([1, 1 << 40]), np.int32, "1099511627776"),
        (np.array([1, (1 << 53) + 1]), np.float64, "9007199254740993"),
        (np.array([0.0, 1e300]), np.float32, "1e"),
        (np.array([1.0, np.nan]), np.uint8, "nan"),
        (np.array([1j, 1]), np.float32, "1j"),
        (-1, np.uint8, "-1"),
    ],
)
def test_values_that_a_cast_would_change_are_refused(value: Any, dtype: Any, text: str) -> None:
    space = spaces.Box(0, 100, (2,), dtype)
    with pytest.raises(InvalidError, match=rf"`value` cannot be cast to the dtype.*{text}"):
        kept(space, value, "space")


def test_value_that_cannot_be_cast_ends_the_episode(tmp_path: Path) -> None:
    env = Record(Loose([[0, 0], [1, 1], np.array([0, 1e300]), [3, 3]]), tmp_path, "run", cast=True)
    env.reset()
    env.step(0)
    with pytest.raises(InvalidError, match=r"`observation\.a` cannot be cast"):
        env.step(0)
    env.step(0)
    env.close()
    (episode,) = episodes_of(ReplayRun(tmp_path, "run"))
    assert episode["length"] == 1
    with pytest.raises(InvalidTypeError, match="`cast` must be True or False"):
        Record(Loose([]), tmp_path, cast="yes")  # type: ignore[arg-type]


def test_environment_is_made_again_from_its_spec(tmp_path: Path) -> None:
    env = Record(gymnasium.make("CartPole-v1"), tmp_path, "run", every=3, config=CONFIG, seed=5)
    assert isinstance(env, gymnasium.utils.RecordConstructorArgs)
    env.reset(seed=1)
    again = gymnasium.make(env.spec)  # while the first one still records
    assert isinstance(again, Record)
    assert again.run_id != "run"
    assert again.spec == env.spec
    again.reset(seed=1)
    again.step(1)
    env.step(1)
    env.close()
    again.close()
    found = [ReplayRun(tmp_path, run_id) for run_id in ("run", again.run_id)]
    rows = [run.source.run for run in found]
    assert [(row.steps, row.seed, row.env_id) for row in rows] == [(1, 5, "CartPole-v1")] * 2


def test_spec_has_every_argument_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    arguments: dict[str, Any] = {
        "frames": None,
        "every": np.int64(2),
        "autoreset": MODES["disabled"],
        "on_error": "warn",
        "metadata": {"x": np.int64(3)},
        "cast": np.True_,
        "seed": np.int64(5),
    }
    with Record(gymnasium.make("CartPole-v1"), "runs", config=CONFIG, **arguments) as env:
        found = env.spec.additional_wrappers[-1].kwargs
    assert {"env", "run_id", "options", "self", "seed", *found} == {
        "seed",
        *inspect.signature(Record.__init__).parameters,
    }
    assert {name: found[name] for name in arguments} == {**arguments, "autoreset": "disabled"}
    assert found["root"] == str(tmp_path / "runs")
    assert found["config"] == CONFIG
    with Record(gymnasium.make("CartPole-v1"), "~/runs", **arguments) as env:
        spec = gymnasium.envs.registration.EnvSpec.from_json(env.spec.to_json())
        monkeypatch.chdir("/")
        with gymnasium.make(env.spec) as again, gymnasium.make(spec) as from_json:
            made = [each.recorder.root for each in (env, again, from_json)]
    assert made == [tmp_path / "home" / "runs"] * 3


class Seeded(gymnasium.Env[Any, Any]):  # type: ignore[misc]
    """An environment that keeps to all rules of Gymnasium."""

    observation_space = spaces.Box(0, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012 - as in Gymnasium

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return self.np_random.random(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seen = self.np_random.random(2, np.float32)
        return seen, float(action), bool(seen[0] > 0.9), False, {}

    def render(self) -> Any:
        return np.zeros((4, 4, 3), np.uint8)


@pytest.mark.filterwarnings("ignore:.*is different from the unwrapped version:UserWarning")
def test_recorded_environment_passes_the_checks_of_gymnasium(tmp_path: Path) -> None:
    gymnasium.register("relive/Seeded-v0", Seeded)
    try:
        for mode in (None, "rgb_array"):
            inner = gymnasium.make("relive/Seeded-v0", render_mode=mode)
            with Record(inner, tmp_path, f"run-{mode}", config=CONFIG) as env:
                check_env(env)
    finally:
        del gymnasium.registry["relive/Seeded-v0"]
    assert len(list_runs(tmp_path)) == 2 * 3  # and those of another mode, and of `close`
    assert validate(tmp_path).ok


def test_last_observation_has_the_dtype_of_the_others(tmp_path: Path) -> None:
    class Loose(Pictures):
        """An environment whose observations have another dtype than its space."""

        def step(self, action: Any) -> Any:
            seen, *others = super().step(action)
            return seen.astype(np.float64), *others

    envs = SyncVectorEnv([lambda: Loose((2,), np.float32)], autoreset_mode=AutoresetMode.SAME_STEP)
    with Record(envs, tmp_path, "run", config=CONFIG) as env:
        env.reset()
        for _ in range(4):
            env.step([0])
    (episode,) = episodes_of(ReplayRun(tmp_path, "run"))
    assert episode.arrays()["observations"].dtype == np.float32
    assert episode.final()["observations"].dtype == np.float32
    assert episode.final()["observations"].tolist() == [4, 4]


def test_episode_ends_if_its_last_observation_cannot_be_stored(tmp_path: Path) -> None:
    class Growing(Pictures):
        """An environment whose third observation has another shape."""

        def step(self, action: Any) -> Any:
            seen, *others = super().step(action)
            return (seen if seen[0] != 2 else np.zeros(5, seen.dtype)), *others

    with Record(Growing((2,)), tmp_path, "run", config=CONFIG) as env:
        for _ in range(2):
            env.reset()
            env.step(0)
            env.step(0)
            with pytest.raises(InvalidError, match="`observations` must have"):
                env.step(0)
        env.reset()
        env.step(0)
        env.step(0)
        with pytest.raises(InvalidError, match="`next_observation` must have"):
            env.reset()
        env.reset()
        env.step(0)
    run = ReplayRun(tmp_path, "run")
    assert [(e.status, len(e.rows)) for e in episodes_of(run)] == [("truncated", 2)] * 3 + [
        ("truncated", 1)
    ]


def test_error_in_the_block_sets_the_status_to_failed(tmp_path: Path) -> None:
    env = Pictures()
    closed = []
    env.close = lambda: closed.append(1)

    def fail() -> None:
        with Record(env, tmp_path, "run", config=CONFIG) as mine:
            mine.reset()
            mine.step(0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    run = ReplayRun(tmp_path, "run")
    assert (run.status, len(run), closed) == ("failed", 1, [1])
    assert int(episodes_of(run)[0].final()["observations"].max()) == 1


def test_ctrl_c_in_a_step_completes_the_run(tmp_path: Path) -> None:
    class Stopped(Pictures):
        def step(self, action: Any) -> Any:
            if action:
                raise KeyboardInterrupt
            return super().step(action)

    def stop() -> None:
        with Record(Stopped(), tmp_path, "run", config=CONFIG) as env:
            env.reset()
            env.step(0)
            env.step(1)

    with pytest.raises(KeyboardInterrupt):
        stop()
    run = ReplayRun(tmp_path, "run")
    assert (run.status, len(run)) == ("finished", 1)
    (episode,) = episodes_of(run)
    assert episode.status == "truncated"
    assert int(episode.final()["observations"].max()) == 1


def test_steps_after_an_interrupted_one_do_not_join_its_episode(tmp_path: Path) -> None:
    class Stopped(Pictures):
        def step(self, action: Any) -> Any:
            found = super().step(action)
            if action:
                raise KeyboardInterrupt
            return found

    env = Record(Stopped(), tmp_path, "run", config=CONFIG)
    env.reset()
    env.step(0)
    with pytest.raises(KeyboardInterrupt):
        env.step(1)
    env.step(0)
    env.close()
    (episode,) = episodes_of(ReplayRun(tmp_path, "run"))
    assert episode["length"] == 1
    assert int(episode.final()["observations"].max()) == 1


def test_step_that_the_environment_refuses_is_not_recorded(tmp_path: Path) -> None:
    with Record(gymnasium.make("CartPole-v1"), tmp_path, "run", config=CONFIG) as env:
        env.reset(seed=1)
        env.step(0)
        with pytest.raises(AssertionError):
            env.step(7)
        env.step(1)
    (episode,) = episodes_of(ReplayRun(tmp_path, "run"))
    assert episode.arrays()["actions"].tolist() == [0, 1]


def test_episode_ends_where_a_full_queue_refused_a_step(tmp_path: Path) -> None:
    env = Record(Pictures(), tmp_path, "run", config=CONFIG)
    env.reset()
    env.step(0)
    step = env.recorder.step

    def refuse(*args: Any, **options: Any) -> Any:
        raise OverloadError("the queue is full")

    env.recorder.step = refuse  # type: ignore[method-assign]
    with pytest.raises(OverloadError):
        env.step(0)
    env.recorder.step = step  # type: ignore[method-assign]
    env.step(0)
    env.reset()
    env.step(0)
    env.close()
    first, second = episodes_of(ReplayRun(tmp_path, "run"))
    assert (first["length"], second["length"]) == (1, 1)
    assert int(first.final()["observations"].max()) == 1


def test_recorder_may_be_closed_before_the_environment(tmp_path: Path) -> None:
    env = Record(Pictures(), tmp_path, "run", config=CONFIG)
    env.reset()
    env.step(0)
    assert env.run_id == env.recorder.run_id == "run"
    env.recorder.close()
    with pytest.raises(ReliveError):
        env.step(0)
    env.close()
    env.close()
    aborted = Record(Pictures(), tmp_path, "aborted", config=CONFIG)
    aborted.reset()
    aborted.step(0)
    aborted.recorder.abort()
    aborted.close()
    assert len(ReplayRun(tmp_path, "run")) == 1
    with pytest.raises(KeyError):
        ReplayRun(tmp_path, "aborted")


def test_run_is_continued_by_the_same_environment_only(tmp_path: Path) -> None:
    for _ in range(2):
        with Record(Pictures(), tmp_path, "run", config=CONFIG) as env:
            env.reset()
            env.step(0)
    assert len(episodes_of(ReplayRun(tmp_path, "run"))) == 2
    with pytest.raises(ValueError, match="spaces"):
        Record(Pictures((6, 5)), tmp_path, "run")


def test_arguments_of_the_recorder_are_passed_on(tmp_path: Path) -> None:
    with Record(Pictures(), tmp_path, "run", seed=11, env_id="mine", config=CONFIG) as env:
        env.reset()
        env.step(0)
    info = ReplayRun(tmp_path, "run").info
    assert (info["seed"], info["env_id"], info["env_spec"]) == (11, "mine", None)
    with pytest.raises(TypeError, match="colour"):
        Record(Pictures(), tmp_path, "other", colour=1)


def test_environment_made_of_functions_is_described(tmp_path: Path) -> None:
    spec = gymnasium.envs.registration.EnvSpec("Made-v0", entry_point=Pictures)
    made = gymnasium.make(spec, disable_env_checker=True)
    with Record(made, tmp_path, "run", config=CONFIG) as env:
        env.reset()
        env.step(0)
    info = ReplayRun(tmp_path, "run").info
    assert info["env_id"] == info["env_spec"]["id"] == "Made-v0"


def test_spaces_are_described_as_json() -> None:
    bounds = np.array([[0, -np.inf], [1, np.inf]], np.float32)
    box = spaces.Box(bounds[0], bounds[1])
    wide = spaces.Box(np.arange(300.0), np.arange(300.0) + 1, dtype=np.float64)
    space = spaces.Dict(
        {
            "b": box,
            "a": spaces.Tuple((spaces.Discrete(3, start=1), spaces.MultiBinary((2, 2)))),
            "m": spaces.MultiDiscrete([2, 3]),
            "t": spaces.Text(3, charset="ba"),
            "g": spaces.Graph(spaces.Box(0, 1), None),
        }
    )
    described = describe_space(space)
    assert json.loads(json.dumps(described, allow_nan=False)) == described
    inner = described["spaces"]
    assert list(inner) == ["a", "b", "g", "m", "t"]
    assert inner["b"] == {
        "type": "Box",
        "low": [0.0, "-inf"],
        "high": [1.0, "inf"],
        "shape": [2],
        "dtype": "float32",
    }
    assert inner["a"]["spaces"] == [
        {"type": "Discrete", "n": 3, "start": 1, "dtype": "int64"},
        {"type": "MultiBinary", "shape": [2, 2]},
    ]
    assert inner["m"] == {
        "type": "MultiDiscrete",
        "nvec": [2, 3],
        "start": [0, 0],
        "dtype": "int64",
    }
    assert inner["t"] == {"type": "Text", "min_length": 1, "max_length": 3, "characters": "ab"}
    assert inner["g"]["repr"].startswith("Graph(")
    assert describe_space(spaces.Box(0, 255, (2, 2), np.uint8))["high"] == 255
    assert describe_space(wide) == describe_space(copy.deepcopy(wide))
    narrow = spaces.Box(wide.low, wide.high + np.eye(1, 300)[0], dtype=np.float64)
    assert describe_space(wide) != describe_space(narrow)


# Stable-Baselines3


@pytest.mark.needs("stable_baselines3")
@given(schedule=schedules())
@settings(max_examples=15)
def test_stable_baselines_vector_is_recorded_as_by_hand(schedule: Schedule) -> None:
    from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

    with root_directory() as root:
        makers = [lambda env=env: schedule.walk(env, is_flat=True) for env in range(schedule.count)]
        env = Record(DummyVecEnv(makers), root, "run", config=CONFIG, frames=None)
        assert isinstance(env, VecEnv)
        assert env.num_envs == schedule.count
        schedule.plan.tick = 0
        env.seed(0)
        env.reset()
        for tick in range(schedule.steps):
            schedule.plan.tick = tick
            env.step(np.stack([schedule.action(tick, number) for number in range(env.num_envs)]))
            if tick in schedule.resets:
                seed = schedule.resets[tick]
                if seed is not None:
                    env.seed(seed)
                env.reset()
        env.close()
        run = ReplayRun(root, "run")
        for number in range(schedule.count):
            expected = by_hand(schedule, "same_step", number, is_flat=True)
            assert recorded(run, number) == [told(episode) for episode in expected]


@pytest.mark.needs("stable_baselines3")
def test_stable_baselines_learns_from_a_recorded_vector(tmp_path: Path) -> None:
    from stable_baselines3 import A2C
    from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

    def make() -> Any:
        return gymnasium.make("CartPole-v1", render_mode="rgb_array", max_episode_steps=4)

    vector = VecMonitor(DummyVecEnv([make, make]))
    with Record(vector, tmp_path, "run", config=CONFIG, every=5) as env:
        model = A2C("MlpPolicy", env, n_steps=5, seed=3, device="cpu")
        model.learn(20)
        assert env.get_attr("render_mode") == ["rgb_array"] * 2
    run = ReplayRun(tmp_path, "run")
    assert run.info["env_id"] == "CartPole-v1"
    assert len(run) == 20
    assert [(e["env_index"], e["seed"], e["length"]) for e in episodes_of(run)][:4] == [
        (0, 3, 4),
        (1, 4, 4),
        (0, None, 4),
        (1, None, 4),
    ]
    info = run.step(6).info
    assert info is not None
    assert set(info) == {"episode"}
    assert info["episode"]["l"] == 4
    assert episodes_of(run)[0].status == "truncated"
    first = episodes_of(run)[0].load()["steps"]
    assert first[0]["frame"].shape == (400, 600, 3)
    assert first[1]["frame"] is None


@pytest.mark.needs("stable_baselines3")
def test_options_of_stable_baselines_belong_to_the_episode(tmp_path: Path) -> None:
    from stable_baselines3.common.vec_env import DummyVecEnv

    with Record(DummyVecEnv([Pictures, Pictures]), tmp_path, "run", config=CONFIG) as env:
        env.set_options([{"level": 1}, {"level": 2}])
        env.reset()
        env.step(np.array([0, 0]))
        env.set_options({"level": 3})
        env.reset()
        env.step(np.array([0, 0]))
        env.reset()
        env.step(np.array([0, 0]))
    found = [episode["metadata"] for episode in episodes_of(ReplayRun(tmp_path, "run"))]
    levels = [None if data is None else data["options"]["level"] for data in found]
    assert levels == [1, 2, 3, 3, None, None]
    with pytest.raises(InvalidError, match="same step"):
        Record(DummyVecEnv([Pictures]), tmp_path, "other", autoreset="next_step")


def test_stable_baselines_and_envpool_are_not_imported() -> None:
    code = (
        "import sys, relive.replay.gym; "
        "print([name for name in ('stable_baselines3', 'envpool', 'torch') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


# EnvPool


class GymnasiumEnvPoolMixin:
    """The class by which an EnvPool of Gymnasium is recognized."""

    __module__ = "envpool.python.gymnasium_envpool"


class Pool(GymnasiumEnvPoolMixin):
    """An EnvPool: a batch has some of its sub-environments, and they reset in the next step."""

    def __init__(self, schedule: Schedule, batch_size: int, order: Sequence[int] = ()) -> None:
        self._walks = [schedule.walk(env, is_flat=True) for env in range(schedule.count)]
        self._plan = schedule.plan
        self._ready: list[tuple[int, Any, float, bool, bool]] = []
        self._over = [False] * schedule.count
        self._batch_size = batch_size
        self._order = iter(order)
        self.observation_space = self.single_observation_space = self._walks[0].observation_space
        self.action_space = self.single_action_space = self._walks[0].action_space
        self.spec = object()
        self.closed_times = 0

    def __len__(self) -> int:
        return len(self._walks)

    @property
    def config(self) -> dict[str, Any]:
        return {"task_id": "Walk-v5", "num_envs": len(self), "odd": object()}

    def send(self, action: Any, env_id: Any = None) -> None:
        if isinstance(action, dict):
            action, env_id = action["action"], action["env_id"]
        envs = range(len(self)) if env_id is None else env_id
        for row, env in zip(action, envs, strict=True):
            if self._over[env]:
                self._begin(int(env))
                continue
            seen, reward, terminated, truncated, _ = self._walks[env].step(row.copy())
            self._over[env] = terminated or truncated
            self._ready.append((int(env), seen.copy(), reward, terminated, truncated))

    def recv(self, reset: bool = False, return_info: bool = True) -> Any:  # noqa: FBT001, FBT002 - as EnvPool
        batch = [
            self._ready.pop(next(self._order, 0) % len(self._ready))
            for _ in range(self._batch_size)
        ]
        envs, seen, rewards, terminated, truncated = map(np.array, zip(*batch, strict=True))
        info = {
            "env_id": envs.astype(np.int32),
            "players": {"env_id": envs.astype(np.int32)},
            "twice": envs * 2,
        }
        return (seen, info) if reset else (seen, rewards, terminated, truncated, info)

    def step(self, action: Any, env_id: Any = None) -> Any:
        self.send(action, env_id)
        return self.recv()

    def reset(self, env_id: Any = None) -> Any:
        for env in range(len(self)) if env_id is None else env_id:
            self._begin(int(env))
        return self.recv(reset=True)

    def async_reset(self) -> None:
        for env in range(len(self)):
            self._begin(env)

    def close(self) -> None:
        self.closed_times += 1

    def _begin(self, env: int) -> None:
        self._over[env] = False
        seen, _ = self._walks[env].reset()
        self._ready.append((env, seen.copy(), 0.0, False, False))


class VectorPool(Pool, VectorEnv[Any, Any, Any]):  # type: ignore[misc]
    """A later EnvPool, whose class is also a vector of Gymnasium."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 - as in Gymnasium

    @property
    def num_envs(self) -> int:
        return len(self)


def pool_by_hand(schedule: Schedule, env: int, steps: int) -> list[dict[str, Any]]:
    """Return the episodes of a sub-environment of a pool that received `steps` actions."""
    again = Schedule(schedule.count, schedule.plan, steps, {}, {})
    found = []
    for episode in by_hand(again, "next_step", env, is_flat=True):
        episode.seed = None
        episode.info = {"twice": env * 2}
        episode.infos = [{"twice": env * 2}] * len(episode.infos)
        found.append(told(episode))
    return found


@pytest.mark.parametrize("kind", [Pool, VectorPool])
@given(
    schedule=schedules(),
    batch=st.integers(1, 3),
    order=st.lists(st.integers(0, 2)),
    style=st.sampled_from(["step", "send"]),
)
@settings(max_examples=20)
def test_envpool_is_recorded_as_by_hand(
    kind: type[Pool], schedule: Schedule, batch: int, order: list[int], style: str
) -> None:
    batch = min(batch, schedule.count)
    counts = [0] * schedule.count
    with root_directory() as root:
        pool = kind(schedule, batch, order)
        with Record(pool, root, "run", config=CONFIG) as env:
            assert len(env._recording.streams) == schedule.count
            if style == "send":
                env.async_reset()
                info = env.recv()[4]
            else:
                info = env.reset()[1]
            for _ in range(schedule.steps):
                envs = info["env_id"]
                actions = np.stack([schedule.action(counts[number], number) for number in envs])
                for number in envs:
                    counts[number] += 1
                if style == "send":
                    env.send(actions, envs)
                    info = env.recv()[4]
                else:
                    info = env.step(actions, envs)[4]
        assert pool.closed_times == 1
        run = ReplayRun(root, "run")
        assert run.info["env_id"] == "Walk-v5"
        assert run.info["env_spec"]["odd"].startswith("<object")
        # Actions whose results were not received are not recorded.
        left = [item[0] for item in pool._ready]
        for number in range(schedule.count):
            steps = counts[number] - left.count(number) if counts[number] else 0
            assert recorded(run, number) == pool_by_hand(schedule, number, steps)


def test_whole_batches_of_an_envpool_need_no_numbers(tmp_path: Path) -> None:
    schedule = Schedule(2, Plan([3], [True]), 0, {}, {})
    with Record(Pool(schedule, 2), tmp_path, "run", config=CONFIG) as env:
        assert len(env) == 2
        assert env.config["num_envs"] == 2
        env.reset()
        for tick in range(5):
            rows = np.stack([schedule.action(tick, number) for number in range(2)])
            env.step(rows if tick % 2 else {"env_id": np.arange(2), "action": rows})
    run = ReplayRun(tmp_path, "run")
    for number in range(2):
        assert recorded(run, number) == pool_by_hand(schedule, number, 5)


def test_pools_refuse_what_cannot_be_recorded(tmp_path: Path) -> None:
    class Old:
        __module__ = "envpool.atari"

    schedule = Schedule(2, Plan([3], [True]), 0, {}, {})
    with pytest.raises(UnsupportedError, match="EnvPool of Gymnasium") as caught:
        Record(Old(), tmp_path)
    assert 'env_type="gymnasium"' in str(caught.value.hint)

    class Players(Pool):
        config = {"max_num_players": 2}  # noqa: RUF012 - as in EnvPool

    with pytest.raises(UnsupportedError, match="several players"):
        Record(Players(schedule, 2), tmp_path)
    pool = Pool(schedule, 2)
    pool.render_mode = "rgb_array"  # type: ignore[attr-defined]
    with pytest.raises(UnsupportedError, match='frames="render"'):
        Record(pool, tmp_path, frames="render")
    assert not list(tmp_path.iterdir())
    with (
        Record(Pool(schedule, 2), tmp_path, "run") as env,
        pytest.raises(UnsupportedError, match="xla"),
    ):
        env.xla()


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_step_whose_result_was_not_copied_ends_the_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """Its next step would begin with what was seen before the step that is missing."""
    env = Record(gymnasium.make("CartPole-v1"), tmp_path, "run", live=None)
    env.reset(seed=1)
    for _ in range(2):
        env.step(0)

    def interrupted(*_: Any) -> Any:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr("relive.replay.gym.wrappers.kept", interrupted)
        with pytest.raises(error):
            env.step(np.int64(1))
    env.step(1)
    env.reset(seed=2)
    env.step(1)
    env.close()
    run = ReplayRun(tmp_path, "run")
    actions = [episode.arrays("actions")["actions"].tolist() for episode in run.episodes]
    assert actions == [[0, 0], [1]]
    assert [episode.status for episode in run.episodes] == ["truncated", "truncated"]
