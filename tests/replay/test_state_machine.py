"""A recorder compared with a list of steps, through any sequence of calls, ends and kills.

For long runs, `RELIVE_REPLAY_EXAMPLES` sets the number of sequences of calls, and
`RELIVE_REPLAY_STEPS` the length of each.
"""

import copy
import json
import math
import os
import shutil
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from relive.errors import LockedError, UnknownNameError
from relive.replay import (
    FrameResolver,
    ReplayConfig,
    ReplayRecorder,
    ReplayRun,
    StepRefs,
    TelemetryStore,
    validate,
)

Array: TypeAlias = npt.NDArray[Any]
Key: TypeAlias = tuple[int, str]
"""A sub-environment and an agent."""

EXAMPLES = int(os.environ.get("RELIVE_REPLAY_EXAMPLES", "25"))
STEPS = int(os.environ.get("RELIVE_REPLAY_STEPS", "30"))
RUN = "run"
NAN = float("nan")
KEYS = st.tuples(st.integers(0, 1), st.sampled_from(["", "b"]))
ENDS = st.sampled_from(["", "", "", "", "terminated", "truncated"])
SEEDS = st.integers(0, 200)
REWARDS = st.sampled_from([None, 0.0, -1.5, NAN, math.inf, 1e300, np.float32(0.1), 3])
INFOS = st.sampled_from(["none", "empty", "lives", "text", "ram", "nested", "list"])
OBSERVATIONS = ("last stack", "first stack", "nested", "vector", "number")
ACTIONS = ("number", "vector", "large", "nested")


@dataclass
class Taken:
    """A step that the recorder accepted."""

    episode: int
    index: int
    values: dict[str, Any]
    """The arrays, by field; a field without a value is left out."""
    action: Any
    reward: float | None
    terminated: bool
    truncated: bool
    info: dict[str, Any] | None
    ts_ns: int


@dataclass
class Run:
    """An episode of the model."""

    number: int
    key: Key
    episode_id: str
    seed: int | None = None
    metadata: Any = None
    is_stored: bool = False
    """Whether a step or its end was accepted."""
    steps: int = 0
    dropped: int = 0
    total: float = 0.0
    status: str = "open"
    final: dict[str, Any] = field(default_factory=dict)
    may_lack_final: bool = False
    """The queue was full at its end."""


@dataclass
class Model:
    """What a run has."""

    steps: list[Taken] = field(default_factory=list)
    episodes: dict[int, Run] = field(default_factory=dict)

    def interrupted(self) -> "Model":
        """Return the same after its recorder ended: open episodes are truncated."""
        made = copy.deepcopy(self)
        made.episodes = {n: episode for n, episode in made.episodes.items() if episode.is_stored}
        for episode in made.episodes.values():
            if episode.status == "open":
                episode.status = "truncated"
        return made


@dataclass
class Open:
    """A stream of the model."""

    episode: int | None = None
    index: int = 0
    dropped: int = 0
    planes: list[Array] = field(default_factory=list)
    """The newest planes of its stacks."""


def plane(seed: int) -> Array:
    return np.random.default_rng(seed).integers(0, 9, (16, 16), np.uint8)


def as_rows(values: list[Any]) -> Any:
    """Return nested values with a leading axis."""
    if isinstance(values[0], dict):
        return {key: as_rows([value[key] for value in values]) for key in values[0]}
    if isinstance(values[0], tuple):
        return tuple(as_rows(list(column)) for column in zip(*values, strict=True))
    return np.stack([np.asarray(value) for value in values])


def assert_bits(found: Any, expected: Any, about: object) -> None:
    """Compare nested arrays bit for bit."""
    if isinstance(expected, dict):
        assert isinstance(found, dict), about
        assert found.keys() == expected.keys(), about
        for key, value in expected.items():
            assert_bits(found[key], value, (about, key))
    elif isinstance(expected, tuple):
        assert isinstance(found, tuple), about
        assert len(found) == len(expected), about
        for place, value in enumerate(expected):
            assert_bits(found[place], value, (about, place))
    else:
        wanted = np.asarray(expected)
        found = np.asarray(found)
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), about
        assert found.tobytes() == wanted.tobytes(), about


class RecorderMachine(RuleBasedStateMachine):
    """Applies every call to a recorder and to a model."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="relive-"))
        self.recorder: ReplayRecorder | None = None
        self.model = Model()
        self.committed: Model | None = None
        """What a kill leaves; None if there is no run."""
        self.before: Model | None = None
        """What `abort` restores."""
        self.held: tuple[ReplayRun, int] | None = None
        self.clock = 0
        self.ids = 0
        self.flow = threading.Event()
        self.flow.set()

    @initialize(
        observations=st.sampled_from(OBSERVATIONS),
        actions=st.sampled_from(ACTIONS),
        chunk_rows=st.sampled_from([1, 3, 4, 64]),
        flush_steps=st.sampled_from([1, 3, 1 << 30, 1 << 30]),
        codec=st.sampled_from(["zstd:1", "raw", "lz4", "deflate"]),
        sync_episodes=st.booleans(),
    )
    def begin(self, observations: str, actions: str, **options: Any) -> None:
        self.observations, self.actions = observations, actions
        self.config = ReplayConfig(**options, flush_s=3600, queue_bytes=1, overload="drop")
        self.commits_by_itself = options["flush_steps"] < 1 << 30 or options["sync_episodes"]
        self.open()

    def teardown(self) -> None:
        try:
            if hasattr(self, "config"):
                if self.recorder is None:
                    self.open()
                self.close()
                report = validate(self.root, "full")
                assert report.problems == ()
        finally:
            self.flow.set()
            if self.recorder is not None:
                self.recorder.abort()
            shutil.rmtree(self.root)

    def open(self) -> None:
        self.recorder = ReplayRecorder(self.root, RUN, config=self.config, live=None)
        write = self.recorder._writer.write

        def flowing(items: Any) -> None:
            assert self.flow.wait(60)
            write(items)

        self.recorder._writer.write = flowing  # type: ignore[method-assign]
        self.before = None if self.committed is None else copy.deepcopy(self.committed)
        self.model = Model() if self.committed is None else self.committed.interrupted()
        self.streams: dict[Key, Open] = {}
        self.next_number = max(self.model.episodes, default=-1) + 1

    def stream(self, key: Key) -> Open:
        return self.streams.setdefault(key, Open())

    # Values

    def observation(self, stream: Open, seed: int) -> Any:
        """Return an observation; stacks are shifted, unless the seed says otherwise."""
        if not stream.planes:
            stream.planes = [plane(seed)] * 4
        elif seed % 7:
            stream.planes = [*stream.planes[1:], plane(seed)]
        else:
            stream.planes = [plane(seed + place) for place in range(4)]
        number = np.float64([NAN, -0.0, seed][seed % 3])
        if self.observations == "last stack":
            return np.stack(stream.planes, axis=-1)
        if self.observations == "first stack":
            return np.stack(stream.planes)
        if self.observations == "nested":
            return {
                "a.b": (np.stack(stream.planes), np.int8(seed % 100)),
                "%": np.array([number, 1.0], np.float32),
            }
        return np.array([number, seed]) if self.observations == "vector" else number

    def action(self, seed: int) -> Any:
        if seed % 5 == 0:
            return None
        if self.actions == "number":
            return seed
        if self.actions == "vector":
            return np.array([seed, NAN if seed % 4 == 0 else 0.5], np.float32)
        if self.actions == "large":
            return np.arange(40.0) + seed
        return {"move": (np.int64(seed), np.float32(0.5)), "jump": np.bool_(seed % 2)}

    @staticmethod
    def stored_action(action: Any) -> tuple[Any, bool]:
        """Return what the database has of an action, and whether it refers to the arrays."""
        if action is None or isinstance(action, int):
            return action, False
        if isinstance(action, dict):
            move, jump = action["move"], action["jump"]
            return {"move": [int(move[0]), float(move[1])], "jump": bool(jump)}, False
        if action.size > 32 or not np.isfinite(action).all():
            return None, True
        return action.tolist(), False

    @staticmethod
    def info(which: str, seed: int) -> dict[str, Any] | None:
        infos: dict[str, dict[str, Any] | None] = {
            "none": None,
            "empty": {},
            "lives": {"lives": seed},
            "text": {"lives": f"é{seed}"},
            "ram": {"ram": np.arange(600) + seed},
            "nested": {"lives": {"x": [np.float32(0.5), None, True]}, "n": np.int64(seed)},
            "list": {"ram": np.arange(3)},
        }
        return infos[which]

    @staticmethod
    def stored_info(info: Any, row: int) -> dict[str, Any]:
        def plain(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                if value.nbytes > 4096:
                    return f"h5://{RUN}/info.ram/{row}"
                return value.tolist()
            if isinstance(value, dict):
                return {key: plain(inner) for key, inner in value.items()}
            if isinstance(value, list):
                return [plain(inner) for inner in value]
            return value.item() if isinstance(value, np.generic) else value

        found: dict[str, Any] = plain(info or {})
        return found

    def arguments(
        self, stream: Open, seed: int, reward: Any, info: str, end: str
    ) -> dict[str, Any]:
        """Return the arguments of a step."""
        self.clock += 3
        return {
            "observation": None if seed % 11 == 10 else self.observation(stream, seed),
            "action": self.action(seed),
            "reward": reward,
            "terminated": end == "terminated",
            "truncated": end == "truncated",
            "frame": np.full((4, 5, 3), seed, np.uint8) if seed % 3 else None,
            "info": self.info(info, seed),
            "next_observation": self.observation(stream, seed + 1) if end and seed % 2 else None,
            "next_frame": np.full((4, 5, 3), 255, np.uint8) if end and seed % 4 == 1 else None,
            "extras": {"h": np.float16(seed), "g": (seed,)} if seed % 4 == 3 else None,
            "ts_ns": self.clock,
        }

    # The model of one call

    def model_begin(self, key: Key, **about: Any) -> Run:
        number = self.next_number
        self.next_number += 1
        about.setdefault("episode_id", f"{RUN}-ep{number:04d}")
        episode = Run(number, key, **about)
        self.model.episodes[number] = episode
        stream = self.stream(key)
        stream.episode, stream.index, stream.dropped = number, 0, 0
        return episode

    def model_step(self, key: Key, given: dict[str, Any], refs: StepRefs | None) -> None:
        stream = self.stream(key)
        if stream.episode is None:
            self.model_begin(key)
        assert stream.episode is not None
        episode = self.model.episodes[stream.episode]
        ends = given["terminated"] or given["truncated"]
        if refs is None:
            stream.index += 1
            stream.dropped += 1
        else:
            assert refs.row == len(self.model.steps)
            assert (refs.frame is None) == (given["frame"] is None)
            assert (refs.observation is None) == (given["observation"] is None)
            self.model.steps.append(self.taken(stream, episode, given))
            stream.index += 1
            episode.is_stored, episode.dropped = True, stream.dropped
            episode.steps += 1
            reward = self.model.steps[-1].reward
            episode.total += 0.0 if reward is None or math.isnan(reward) else reward
        if ends:
            status = "terminated" if given["terminated"] else "truncated"
            self.model_end(key, status, given, may_lack_final=refs is None)

    def taken(self, stream: Open, episode: Run, given: dict[str, Any]) -> Taken:
        values = {
            "frames": given["frame"],
            "observations": given["observation"],
            "actions": given["action"],
            **{f"extras.{name}": value for name, value in (given["extras"] or {}).items()},
        }
        ram = (given["info"] or {}).get("ram")
        if ram is not None and ram.nbytes > 4096:
            values["info.ram"] = ram
        return Taken(
            episode.number,
            stream.index,
            {name: value for name, value in values.items() if value is not None},
            given["action"],
            None if given["reward"] is None else float(given["reward"]),
            given["terminated"],
            given["truncated"],
            given["info"],
            given["ts_ns"],
        )

    def model_end(
        self, key: Key, status: str, given: dict[str, Any], *, may_lack_final: bool
    ) -> None:
        stream = self.stream(key)
        assert stream.episode is not None
        episode = self.model.episodes[stream.episode]
        episode.status, episode.is_stored = status, True
        episode.dropped = stream.dropped
        last = {"observations": given["next_observation"], "frames": given["next_frame"]}
        episode.final = {name: value for name, value in last.items() if value is not None}
        episode.may_lack_final = may_lack_final
        stream.episode, stream.planes = None, []

    # Calls

    @precondition(lambda self: self.recorder is not None)
    @rule(key=KEYS, seed=SEEDS, reward=REWARDS, info=INFOS, end=ENDS)
    def step(self, key: Key, seed: int, reward: Any, info: str, end: str) -> None:
        assert self.recorder is not None
        given = self.arguments(self.stream(key), seed, reward, info, end)
        refs = self.recorder.step(**given, env=key[0], agent_id=key[1])
        self.model_step(key, given, refs)

    @precondition(lambda self: self.recorder is not None)
    @rule(
        envs=st.permutations([0, 1]).map(lambda envs: envs[: 1 + envs[0]]),
        agent=st.sampled_from(["", "b"]),
        seed=SEEDS,
        end=ENDS,
        info=INFOS,
    )
    def batch(self, envs: list[int], agent: str, seed: int, end: str, info: str) -> None:
        assert self.recorder is not None
        seed = seed // 60 * 60 + 7  # the same values are there in each row
        all_given = [
            self.arguments(self.stream((env, agent)), seed + 60 * env, env, info, end)
            for env in envs
        ]
        together = {
            name: as_rows([given[name] for given in all_given])
            for name in ("observation", "action", "reward", "frame", "terminated", "truncated")
        }
        last = {
            name: as_rows([given[name] for given in all_given])
            for name in ("next_observation", "next_frame")
            if all_given[0][name] is not None
        }
        extras = as_rows([given["extras"] for given in all_given])
        infos = [given["info"] for given in all_given]
        ts_ns = all_given[0]["ts_ns"]
        found = self.recorder.steps(
            envs, **together, **last, extras=extras, info=infos, agent_id=agent, ts_ns=ts_ns
        )
        for env, given, refs in zip(envs, all_given, found, strict=True):
            one = {**given, "ts_ns": ts_ns}
            if self.actions == "number":
                one["action"] = np.int64(given["action"])
            one["extras"] = {"h": given["extras"]["h"], "g": (np.int64(given["extras"]["g"][0]),)}
            self.model_step((env, agent), one, refs)

    @precondition(lambda self: self.recorder is not None)
    @rule(key=KEYS, seed=st.none() | SEEDS, is_named=st.booleans())
    def begin_episode(self, key: Key, seed: int | None, is_named: bool) -> None:  # noqa: FBT001
        assert self.recorder is not None
        if self.stream(key).episode is not None:
            return
        self.ids += 1
        about: dict[str, Any] = {"seed": seed, "metadata": {"id": self.ids} if is_named else None}
        if is_named:
            about["episode_id"] = f"mine {self.ids}"
        made = self.recorder.begin_episode(**about, env=key[0], agent_id=key[1])
        assert made == self.model_begin(key, **about).episode_id

    @precondition(lambda self: self.recorder is not None)
    @rule(key=KEYS, seed=SEEDS)
    def end_episode(self, key: Key, seed: int) -> None:
        assert self.recorder is not None
        stream = self.stream(key)
        if stream.episode is None:
            self.recorder.end_episode(env=key[0], agent_id=key[1])
            return
        given = {
            "next_observation": self.observation(stream, seed) if seed % 2 else None,
            "next_frame": None,
        }
        self.recorder.end_episode(**given, env=key[0], agent_id=key[1])
        self.model_end(key, "truncated", given, may_lack_final=True)

    @precondition(lambda self: self.recorder is not None)
    @rule(key=KEYS, count=st.integers(1, 9), seed=SEEDS, end=ENDS)
    def overload(self, key: Key, count: int, seed: int, end: str) -> None:
        """Record while nothing is written: the queue takes four items, and drops the others."""
        assert self.recorder is not None
        self.recorder.flush()
        self.flow.clear()
        for number in range(count):
            self.step(key, seed + number, 0.5, "none", end if number == count - 1 else "")
        dropped = self.recorder.stats.dropped
        self.flow.set()
        self.flush(sync=False)
        assert count <= 4 or dropped > 0

    @precondition(lambda self: self.recorder is not None)
    @rule(sync=st.booleans())
    def flush(self, sync: bool) -> None:  # noqa: FBT001 - drawn
        assert self.recorder is not None
        if sync:
            self.recorder.sync()
        else:
            self.recorder.flush()
        self.commit()
        assert self.recorder.stats.committed == len(self.model.steps)
        self.check()

    @precondition(lambda self: self.recorder is not None)
    @rule()
    def close(self) -> None:
        assert self.recorder is not None
        self.recorder.close()
        self.recorder = None
        self.finish()
        self.check()

    @precondition(lambda self: self.recorder is not None)
    @rule()
    def leave(self) -> None:
        assert self.recorder is not None
        self.recorder.leave()
        self.recorder = None
        self.commit()
        self.check()

    @precondition(lambda self: self.recorder is not None and not self.commits_by_itself)
    @rule()
    def kill(self) -> None:
        """Drop what waits to be committed, as a kill of the process does."""
        recorder = self.recorder
        assert recorder is not None
        recorder._sink.stop(discard=True)
        recorder._live.close()
        recorder._writer.release()
        recorder._state = "closed"
        self.recorder = None
        self.check()

    @precondition(lambda self: self.recorder is not None)
    @rule()
    def abort(self) -> None:
        assert self.recorder is not None
        self.held = None
        self.recorder.abort()
        self.recorder = None
        self.committed = self.before
        self.check()

    @precondition(lambda self: self.recorder is None)
    @rule()
    def reopen(self) -> None:
        self.open()

    @precondition(lambda self: self.recorder is not None)
    @rule()
    def open_twice(self) -> None:
        with pytest.raises(LockedError):
            ReplayRecorder(self.root, RUN, config=self.config, live=None)

    @precondition(lambda self: self.held is not None)
    @rule()
    def read_held(self) -> None:
        """A run that was opened earlier has what it had then."""
        assert self.held is not None
        assert self.committed is not None
        run, count = self.held
        assert len(run) == count
        self.check_rows(run, self.committed, count)
        run.refresh()
        assert len(run) >= count
        self.held = run, len(run)

    # Comparison

    def commit(self) -> None:
        self.committed = copy.deepcopy(self.model)
        episodes = self.committed.episodes
        self.committed.episodes = {n: one for n, one in episodes.items() if one.is_stored}

    def finish(self) -> None:
        """Note that `close` ended the open episodes."""
        for stream in self.streams.values():
            if stream.episode is not None and stream.index > 0:
                episode = self.model.episodes[stream.episode]
                episode.status, episode.is_stored = "truncated", True
                episode.dropped = stream.dropped
        self.commit()

    def check(self) -> None:
        """Compare everything that can be read with the model."""
        if self.committed is None:
            with pytest.raises(UnknownNameError):
                ReplayRun(self.root, RUN)
            return
        run = ReplayRun(self.root, RUN)
        assert len(run) == len(self.committed.steps)
        self.check_rows(run, self.committed, len(run))
        self.check_episodes(run, self.committed)
        if self.held is None:
            self.held = run, len(run)

    def check_rows(self, run: ReplayRun, model: Model, count: int) -> None:
        steps = model.steps[:count]
        fields = sorted({name for step in steps for name in step.values})
        with FrameResolver(self.root / "replay") as resolver:
            for name in fields:
                found = resolver.resolve_batch(f"h5://{RUN}/{name}/{row}" for row in range(count))
                for row, step in enumerate(steps):
                    if name in step.values:
                        assert_bits(found[row], step.values[name], (name, row))
                    else:
                        assert found[row] is None, (name, row)
        for row, step in enumerate(steps):
            record = run.step(row)
            episode = model.episodes[step.episode]
            action, has_ref = self.stored_action(step.action)
            reward = None if step.reward is None or math.isnan(step.reward) else step.reward
            assert (record.episode_id, record.agent_id, record.step_index, record.ts_ns) == (
                episode.episode_id,
                episode.key[1],
                step.index,
                step.ts_ns,
            )
            assert (record.action, record.action_ref is not None) == (action, has_ref)
            assert record.reward == reward
            assert (record.terminated, record.truncated) == (step.terminated, step.truncated)
            assert record.info == self.stored_info(step.info, row)
            assert (record.frame_ref is not None) == ("frames" in step.values)
            assert (record.obs_ref is not None) == ("observations" in step.values)
        if steps:
            rewards = run.read("rewards", range(count))
            has_reward = run.arrays.are_valid("rewards", range(count))
            for row, step in enumerate(steps):
                assert has_reward[row] == (step.reward is not None)
                if step.reward is not None:
                    assert_bits(rewards[row], np.float64(step.reward), ("reward", row))

    def check_episodes(self, run: ReplayRun, model: Model) -> None:
        expected = [episode for _, episode in sorted(model.episodes.items())]
        assert len(run.episodes) == len(expected)
        with TelemetryStore(self.root, read_only=True) as store:
            stored = store.episodes(run_id=RUN)
        assert [episode.number for episode in stored] == [episode.number for episode in expected]
        for position, episode in enumerate(expected):
            found = run.episodes.episode_at(position)
            rows = [n for n, step in enumerate(model.steps) if step.episode == episode.number]
            assert found.rows.tolist() == rows
            assert found.episode_id == episode.episode_id
            is_live = self.recorder is not None and episode.status == "open"
            status = {"open": "recording" if is_live else "truncated"}.get(
                episode.status, episode.status
            )
            assert found.status == status
            assert (found["seed"], found["metadata"], found["length"], found["env_index"]) == (
                episode.seed,
                episode.metadata,
                episode.steps,
                episode.key[0],
            )
            assert stored[position].dropped == episode.dropped
            total = found["return"]
            assert total == episode.total or (math.isnan(total) and math.isnan(episode.total))
            final = found.final()
            if not (episode.may_lack_final and final == {}):
                assert_bits(final, episode.final, ("final", episode.number))
            truncated = found.arrays("truncated")["truncated"].tolist() if model.steps else []
            wanted = [model.steps[row].truncated for row in rows]
            if rows and status == "truncated":
                wanted[-1] = True
            assert truncated == wanted
            self.check_signals(found, [model.steps[row] for row in rows])

    @staticmethod
    def check_signals(episode: Any, steps: list[Taken]) -> None:
        signals = episode.signals
        with_frame = [step for step in steps if "frames" in step.values]
        if "frame" in signals:
            signal = signals["frame"]
            assert signal.timestamps.tolist() == [step.index for step in with_frame]
            assert signal.clock("wall").tolist() == [step.ts_ns for step in with_frame]
            for value, step in zip(signal.values(), with_frame, strict=True):
                assert_bits(value, step.values["frames"], "frame")
        else:
            assert with_frame == []
        json.dumps(episode.statics)


RecorderMachine.TestCase.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None
)
TestRecorderMachine = pytest.mark.timeout(3600)(RecorderMachine.TestCase)
