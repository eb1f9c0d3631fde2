"""Parallel environments are recorded agent by agent, also if agents leave early and join late."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pettingzoo
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from relive.errors import InvalidError, InvalidTypeError, UnsupportedError
from relive.replay import ReplayConfig, ReplayEpisode, ReplayRun
from relive.replay.gym import Record
from relive.replay.pettingzoo import RecordParallel

CONFIG = ReplayConfig(sync_episodes=False)


@dataclass(frozen=True)
class Stay:
    """From when to when an agent is there, and how it leaves."""

    agent: str
    first: int
    last: int
    end: str
    """`terminated`, `truncated`, or `gone` without any sign."""


@dataclass
class Crowd(pettingzoo.ParallelEnv[str, Any, Any]):  # type: ignore[misc]
    """An environment whose agents come and go, and that returns the same arrays again."""

    stays: list[Stay]
    render_mode: str | None = None
    possible_agents: list[str] = field(default_factory=lambda: ["a", "b", "c"])
    metadata: dict[str, Any] = field(default_factory=lambda: {"name": "crowd_v0"})
    agents: list[str] = field(default_factory=list)
    time: int = 0
    episode: int = -1
    closed: int = 0

    def __post_init__(self) -> None:
        self._arrays = {
            agent: {"place": np.zeros(2, np.float32), "pair": (0, np.zeros(1, np.uint8))}
            for agent in "abc"
        }
        self._picture = np.zeros((8, 8, 3), np.uint8)

    def observation_space(self, agent: str) -> Any:
        return spaces.Dict(
            {
                "place": spaces.Box(-100, 100, (2,), np.float32),
                "pair": spaces.Tuple((spaces.Discrete(99), spaces.Box(0, 9, (1,), np.uint8))),
            }
        )

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(50)

    def reset(self, seed: Any = None, options: Any = None) -> tuple[Any, Any]:
        self.time = 0
        self.episode += 1
        self.agents = self._present(0)
        return self._seen(self.agents), {agent: {"began": agent} for agent in self.agents}

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        before = self.agents
        assert set(actions) == set(before)
        self.time += 1
        self.agents = self._present(self.time)
        left = {stay.agent: stay for stay in self.stays if stay.last == self.time - 1}
        shown = [agent for agent in before if agent not in left or left[agent].end != "gone"]
        seen = self._seen(dict.fromkeys([*shown, *self.agents]))
        rewards = {agent: actions[agent] / 4 for agent in shown}
        terminated, truncated = (
            {agent: agent in left and left[agent].end == end for agent in shown}
            for end in ("terminated", "truncated")
        )
        return seen, rewards, terminated, truncated, {agent: self.info(agent) for agent in seen}

    def render(self) -> Any:
        self._picture[...] = 100 * self.episode + self.time
        return self._picture

    def close(self) -> None:
        self.closed += 1

    def info(self, agent: str) -> dict[str, Any]:
        """Return keys that appear and disappear, and whose values change type."""
        kinds: tuple[dict[str, Any], ...] = ({}, {"x": self.time}, {"x": agent}, {"y": [1.5]})
        return kinds[(self.time + ord(agent)) % 4]

    def _present(self, time: int) -> list[str]:
        return [stay.agent for stay in self.stays if stay.first <= time <= stay.last]

    def _seen(self, agents: Any) -> dict[str, Any]:
        for agent in agents:
            place: Any = self._arrays[agent]["place"]
            place[...] = (self.time, ord(agent))
            pair: Any = self._arrays[agent]["pair"]
            pair[1][...] = self.episode
            self._arrays[agent]["pair"] = (self.time, pair[1])
        return {agent: dict(self._arrays[agent]) for agent in agents}


def seen_at(agent: str, time: int, episode: int) -> Any:
    return {"place": [float(time), float(ord(agent))], "pair": [time, [episode]]}


@st.composite
def crowds(draw: st.DrawFn) -> list[Stay]:
    """Return the stays of agents, of which at least one is there at any time."""
    ends = st.sampled_from(["terminated", "truncated", "gone"])
    last = draw(st.integers(0, 8))
    stays = [Stay("a", 0, last, draw(ends))]
    for agent in "bc":
        times = sorted(draw(st.sets(st.integers(0, last), max_size=6)))
        # Between two stays of an agent there is a time at which it is not there.
        while len(times) >= 2:
            first, until, *times = times
            stays.append(Stay(agent, first, until, draw(ends)))
            times = [time for time in times if time > until + 1]
    return stays


def told(stays: list[Stay], episode: int, steps: int, seed: int | None) -> list[dict[str, Any]]:
    """Return the episodes of agents in the first steps of an environment, without a recorder."""
    crowd = Crowd(stays)
    found = []
    for stay in stays:
        times = range(stay.first, min(stay.last + 1, steps))
        if not times:
            continue
        is_over = stay.last < steps
        is_seen = not (is_over and stay.end == "gone")
        infos = []
        for time in times:
            crowd.time = time + 1
            is_there = is_seen or time != times[-1]
            infos.append(crowd.info(stay.agent) if is_there else {})
        rewards = [time / 4 for time in times]
        if not is_seen:
            rewards[-1] = None  # type: ignore[call-overload]
        is_terminated = is_over and stay.end == "terminated"
        found.append(
            {
                "agent": stay.agent,
                "seed": seed,
                "observations": [seen_at(stay.agent, time, episode) for time in times],
                "actions": list(times),
                "rewards": rewards,
                "infos": infos,
                "status": "terminated" if is_terminated else "truncated",
                "final": seen_at(stay.agent, times[-1] + 1, episode) if is_seen else None,
            }
        )
    return sorted(found, key=lambda item: (item["agent"], item["observations"][0]["pair"][0]))


def plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def episodes_of(run: ReplayRun) -> list[ReplayEpisode]:
    """Return the episodes of a run."""
    return [run.episodes.episode_at(position) for position in range(len(run.episodes))]


def recorded(run: ReplayRun, episodes: list[ReplayEpisode]) -> list[dict[str, Any]]:
    """Return recorded episodes as `told` does."""
    found = []
    for episode in episodes:
        arrays = episode.arrays()
        places, pairs = arrays["observations"]["place"], arrays["observations"]["pair"]
        found.append(
            {
                "agent": episode.agent_id,
                "seed": episode["seed"],
                "observations": [
                    {"place": plain(place), "pair": [plain(number), plain(turn)]}
                    for place, number, turn in zip(places, *pairs, strict=True)
                ],
                "actions": arrays["actions"].tolist(),
                "rewards": [step["reward"] for step in episode.load()["steps"]],
                "infos": [run.step(int(row)).info or {} for row in episode.rows],
                "status": episode.status,
                "final": plain(arrays["final"].get("observations")),
            }
        )
    return sorted(found, key=lambda item: (item["agent"], item["observations"][0]["pair"][0]))


@given(crowds(), st.lists(st.tuples(st.integers(0, 10), st.none() | st.integers(0, 9)), max_size=3))
@settings(max_examples=40)
def test_agents_that_come_and_go_are_recorded_as_by_hand(
    stays: list[Stay], turns: list[tuple[int, int | None]]
) -> None:
    with tempfile.TemporaryDirectory() as root:
        with RecordParallel(Crowd(stays), root, "run", config=CONFIG) as env:
            for most, seed in turns:
                env.reset(seed=seed)
                for time in range(most):
                    if env.agents:
                        env.step(dict.fromkeys(env.agents, time))
        run = ReplayRun(root, "run")
        by_turn: dict[int, list[ReplayEpisode]] = {}
        for episode in episodes_of(run):
            turn = int(episode.arrays("observations")["observations"]["pair"][1][0, 0])
            by_turn.setdefault(turn, []).append(episode)
        for turn, (most, seed) in enumerate(turns):
            found = by_turn.get(turn, [])
            assert recorded(run, found) == told(stays, turn, most, seed)
            ids = {episode.episode_id.rpartition("-ep")[2].partition("-")[0] for episode in found}
            assert len(ids) == min(1, len(found))


def test_agents_of_an_episode_share_its_id(tmp_path: Path) -> None:
    stays = [
        Stay("a", 0, 6, "terminated"),
        Stay("b", 0, 1, "terminated"),
        Stay("b", 4, 6, "truncated"),
        Stay("c", 2, 3, "gone"),
    ]
    with RecordParallel(Crowd(stays), tmp_path, "run", config=CONFIG) as env:
        for _ in range(2):
            env.reset()
            while env.agents:
                env.step(dict.fromkeys(env.agents, 1))
    run = ReplayRun(tmp_path, "run")
    ids = [(episode.episode_id, episode.agent_id) for episode in episodes_of(run)]
    assert ids[:4] == [
        ("run-ep0000", "a"),
        ("run-ep0000", "b"),
        ("run-ep0000", "c"),
        ("run-ep0000-2", "b"),
    ]
    assert [name for name, _ in ids[4:]] == [
        "run-ep0004",
        "run-ep0004",
        "run-ep0004",
        "run-ep0004-2",
    ]
    assert len(run.episode("run-ep0004", "c").rows) == 2
    assert run.info["env_id"] == "crowd_v0"
    assert set(run.info["spaces"]["observation"]) == {"a", "b", "c"}
    assert run.info["spaces"]["action"]["a"]["n"] == 50


def test_what_reset_gets_and_returns_belongs_to_the_episode(tmp_path: Path) -> None:
    stays = [Stay("a", 0, 5, "terminated"), Stay("b", 2, 5, "terminated")]
    with RecordParallel(Crowd(stays), tmp_path, "run", config=CONFIG) as env:
        env.reset(seed=4, options={"level": np.int64(3)})
        for _ in range(4):
            env.step(dict.fromkeys(env.agents, 1))
        with pytest.raises(TypeError, match=r"options\['level'\]"):
            env.reset(options={"level": object()})
        env.reset()
    first, second = episodes_of(ReplayRun(tmp_path, "run"))
    assert first["metadata"] == {"options": {"level": 3}, "info": {"began": "a"}}
    assert first["seed"] == second["seed"] == 4
    assert (first.status, second.status) == ("truncated", "truncated")
    assert first.final()["observations"]["place"].tolist() == [4.0, 97.0]


def test_environment_is_rendered_once_for_all_agents(tmp_path: Path) -> None:
    stays = [Stay("a", 0, 2, "terminated"), Stay("b", 0, 4, "terminated")]
    crowd = Crowd(stays, render_mode="rgb_array")
    with RecordParallel(crowd, tmp_path, "run", every=2, config=CONFIG) as env:
        env.reset()
        while env.agents:
            env.step(dict.fromkeys(env.agents, 1))
        env.reset()
        env.step(dict.fromkeys(env.agents, 1))
        env.step(dict.fromkeys(env.agents, 1))
        env.reset()
    first, second, third, fourth = episodes_of(ReplayRun(tmp_path, "run"))

    def frames(episode: ReplayEpisode) -> list[int | None]:
        found = [step["frame"] for step in episode.load()["steps"]]
        found.append(episode.final().get("frames"))
        return [None if frame is None else int(frame[0, 0, 0]) for frame in found]

    assert frames(first) == [0, None, 2, None]
    # The second agent is the first of the steps in which it is alone.
    assert frames(second) == [None, None, None, None, 4, None]
    assert frames(third) == [100, None, 102]
    assert frames(fourth) == [None, None, None]


@dataclass
class Screens(Crowd):
    """An environment whose observations are images."""

    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0, 255, self.shapes.get(agent, (4, 4, 3)), np.uint8)

    def _seen(self, agents: Any) -> dict[str, Any]:
        return {
            agent: np.full(self.shapes.get(agent, (4, 4, 3)), ord(agent) + self.time, np.uint8)
            for agent in agents
        }


def test_observations_may_be_the_frames(tmp_path: Path) -> None:
    stays = [Stay("a", 0, 2, "terminated"), Stay("b", 0, 2, "terminated")]
    with RecordParallel(
        Screens(stays), tmp_path, "run", frames="observation", config=CONFIG
    ) as env:
        env.reset()
        while env.agents:
            env.step(dict.fromkeys(env.agents, 1))
    for episode in episodes_of(ReplayRun(tmp_path, "run")):
        frames = episode.arrays()["frames"]
        assert frames[:, 0, 0, 0].tolist() == [ord(episode.agent_id) + time for time in range(3)]
        assert int(episode.final()["frames"][0, 0, 0]) == ord(episode.agent_id) + 3
    with pytest.raises(InvalidError, match="are images of uint8"):
        RecordParallel(Crowd(stays), tmp_path, frames="observation")
    with pytest.raises(InvalidError, match='"rgb_array", but it is None'):
        RecordParallel(Crowd(stays), tmp_path, frames="render")


def test_agents_with_other_shapes_are_refused(tmp_path: Path) -> None:
    stays = [Stay("a", 0, 2, "terminated"), Stay("b", 1, 2, "terminated")]
    with pytest.raises(UnsupportedError, match="observation spaces of a and b") as caught:
        RecordParallel(Screens(stays, shapes={"b": (2, 2, 3)}), tmp_path)
    assert "pad" in str(caught.value.hint)
    assert not list(tmp_path.iterdir())
    # An environment that does not know its agents before they are there.
    unknown = Screens(stays, shapes={"b": (2, 2, 3)}, possible_agents=[])
    with RecordParallel(unknown, tmp_path, "run", config=CONFIG) as env:
        env.reset()
        with pytest.raises(UnsupportedError, match="observation spaces of a and b"):
            env.step({"a": 1})
        with pytest.raises(UnsupportedError, match="observation spaces of a and b"):
            env.step({"a": 1, "b": 1})
    (episode,) = episodes_of(ReplayRun(tmp_path, "run"))  # the other agent is recorded
    assert (episode.agent_id, episode["length"]) == ("a", 2)
    assert ReplayRun(tmp_path, "run").info["spaces"] is None


def test_what_is_not_a_parallel_environment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidTypeError, match="parallel environment") as caught:
        RecordParallel(gymnasium.make("CartPole-v1"), tmp_path)
    assert "relive.replay.gym.Record" in str(caught.value.hint)
    turns = pettingzoo.make("aec", "classic/rps-v2")
    with pytest.raises(InvalidTypeError, match="parallel environment") as caught:
        RecordParallel(turns, tmp_path)
    assert "aec_to_parallel" in str(caught.value.hint)
    with pytest.raises(InvalidTypeError, match="environment of Gymnasium") as caught:
        Record(pettingzoo.make("parallel", "classic/rps-v2"), tmp_path)
    assert "RecordParallel" in str(caught.value.hint)


def test_info_that_json_cannot_have_is_an_error_that_names_the_key(tmp_path: Path) -> None:
    class Odd(Crowd):
        def info(self, agent: str) -> dict[str, Any]:
            return {"odd": object()} if (agent, self.time) == ("a", 2) else {}

    stays = [Stay("a", 0, 5, "terminated"), Stay("b", 0, 5, "terminated")]
    with RecordParallel(Odd(stays), tmp_path, "run", config=CONFIG) as env:
        env.reset()
        env.step({"a": 1, "b": 1})
        with pytest.raises(TypeError, match="odd"):
            env.step({"a": 2, "b": 2})
        env.step({"a": 3, "b": 3})
    first, second = episodes_of(ReplayRun(tmp_path, "run"))
    assert first.arrays()["actions"].tolist() == [1]
    assert first.final()["observations"]["place"].tolist() == [1.0, 97.0]
    assert second.arrays()["actions"].tolist() == [1, 2, 3]


def test_ctrl_c_in_a_step_completes_the_run(tmp_path: Path) -> None:
    class Stopped(Crowd):
        def step(self, actions: Mapping[str, Any]) -> Any:
            if actions["a"] == 9:
                raise KeyboardInterrupt
            return super().step(actions)

    crowd = Stopped([Stay("a", 0, 5, "terminated"), Stay("b", 0, 5, "terminated")])

    def stop() -> None:
        with RecordParallel(crowd, tmp_path, "run", config=CONFIG) as env:
            env.reset()
            env.step({"a": 1, "b": 1})
            env.step({"a": 9, "b": 9})

    with pytest.raises(KeyboardInterrupt):
        stop()
    run = ReplayRun(tmp_path, "run")
    assert (run.status, len(run), crowd.closed) == ("finished", 2, 1)
    assert [episode.status for episode in episodes_of(run)] == ["truncated", "truncated"]


def test_closing_twice_is_allowed(tmp_path: Path) -> None:
    env = RecordParallel(Crowd([Stay("a", 0, 5, "terminated")]), tmp_path, "run", config=CONFIG)
    env.reset()
    env.step({"a": 1})
    assert env.run_id == env.recorder.run_id == "run"
    env.close()
    env.close()
    assert len(ReplayRun(tmp_path, "run")) == 1


def test_knights_and_archers_are_recorded(tmp_path: Path) -> None:
    def make() -> Any:
        return pettingzoo.make(
            "parallel",
            "butterfly/knights_archers_zombies-v11",
            max_cycles=160,
            spawn_delay=5,
            render_mode="rgb_array",
        )

    twin = make()
    seen: dict[str, list[Any]] = {}
    rewards: dict[str, list[float]] = {}
    frames: list[Any] = []
    with RecordParallel(make(), tmp_path, "run", config=CONFIG, every=50) as env:
        env.reset(seed=5)
        observations, _ = twin.reset(seed=5)
        for agent, observation in observations.items():
            seen[agent] = [observation.copy()]
        while env.agents:
            if len(frames) % 50 == 0:
                frames.append(twin.render().copy())
            else:
                frames.append(None)
            actions = {agent: (len(frames) // 7 + ord(agent[-1])) % 6 for agent in env.agents}
            mine, theirs = env.step(actions), twin.step(actions)
            assert mine[1:4] == theirs[1:4]
            for agent, observation in theirs[0].items():
                seen[agent].append(observation.copy())
                rewards.setdefault(agent, []).append(float(theirs[1][agent]))
    run = ReplayRun(tmp_path, "run")
    episodes = episodes_of(run)
    assert {episode.agent_id for episode in episodes} == set(seen)
    assert len({len(episode.rows) for episode in episodes}) > 1  # some left early
    for episode in episodes:
        arrays = episode.arrays()
        assert np.array_equal(arrays["observations"], seen[episode.agent_id][:-1])
        assert np.array_equal(arrays["final"]["observations"], seen[episode.agent_id][-1])
        assert arrays["rewards"].tolist() == rewards[episode.agent_id]
        assert episode["seed"] == 5
    first = episodes[0].load()["steps"]
    assert all(
        (frames[time] is None) == (step["frame"] is None)
        and (frames[time] is None or np.array_equal(frames[time], step["frame"]))
        for time, step in enumerate(first)
    )
