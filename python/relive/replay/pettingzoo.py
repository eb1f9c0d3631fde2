"""Records parallel environments of PettingZoo: every agent is a stream of its own."""

import os
from collections.abc import Iterable, Mapping
from typing import Any, Final

from relive._arguments import as_bool, as_int, type_name
from relive._extras import require
from relive.errors import InvalidError, InvalidTypeError, ReliveError, UnsupportedError
from relive.replay.config import ReplayConfig
from relive.replay.gym.frames import Frames, FrameSource, choose_frames
from relive.replay.gym.refusals import OnError, check_on_error
from relive.replay.gym.spaces import Casting, check_storable, describe_space
from relive.replay.gym.streams import EpisodeStream, json_items
from relive.replay.gym.wrappers import RecordingWrapper, kept_or_refused, warn_instead
from relive.replay.recorder import ReplayRecorder
from relive.replay.writing.steps import as_flag

__all__ = ["RecordParallel"]

_TO: Final = "record environments of several agents"
pettingzoo = require("pettingzoo", extra="pettingzoo", to=_TO)
_wrappers: Any = require("pettingzoo.utils.wrappers", extra="pettingzoo", to=_TO)


class RecordParallel(RecordingWrapper, _wrappers.BaseParallelWrapper):  # type: ignore[misc]
    """Wraps a parallel environment so that every step of every agent is recorded.

    The result is used as the environment itself. Agents may leave early and join late. The
    episodes of all agents between two resets have the same `episode_id`, and their own `agent_id`;
    an agent that joins again has the id followed by `-2`, `-3` and so on. An agent that is gone
    without being terminated is recorded as truncated. A `reset` in the middle of an episode ends
    it as truncated for all agents that are left.

    The observations of all agents must have the same shape and dtype, and so must their actions.
    Errors, `close` and the `with` block are as those of `relive.replay.gym.Record`.

    Args:
        env: A `pettingzoo.ParallelEnv`.
        root: The directory of the runs.
        run_id: The id of the run; None makes one from the time. A run that exists is continued.
        frames: Which pictures are recorded: what `render()` returns, which the first agent of each
            step has; the `"observation"` of each agent if it is an image; or None. `"auto"`
            renders if the environment has the render mode `rgb_array`.
        every: Only every so many calls of `step` after `reset` have a frame.
        config: Codecs, the queue, and how often steps are committed.
        on_error: As for `relive.replay.gym.Record`. An agent that is refused when it joins, because
            of its spaces, is warned of then; its steps are not counted.
        metadata: Further JSON values about the run.
        cast: Whether observations and actions are recorded with the dtype of their space; see
            `relive.replay.gym.Record`.
        options: Further arguments of `ReplayRecorder`, such as `seed`.

    Example:
        >>> import pettingzoo, tempfile
        >>> from relive.replay import ReplayRun
        >>> from relive.replay.pettingzoo import RecordParallel
        >>> root = tempfile.mkdtemp()
        >>> env = pettingzoo.make("parallel", "classic/rps-v2", max_cycles=3)
        >>> with RecordParallel(env, root, "run-1") as env:
        ...     _ = env.reset(seed=7)
        ...     while env.agents:
        ...         _ = env.step({agent: 0 for agent in env.agents})
        >>> [(episode.agent_id, len(episode.rows)) for episode in ReplayRun(root, "run-1").episodes]
        [('player_0', 3), ('player_1', 3)]
    """

    def __init__(
        self,
        env: Any,
        root: str | os.PathLike[str],
        run_id: str | None = None,
        *,
        frames: Frames = "auto",
        every: int = 1,
        config: ReplayConfig | None = None,
        on_error: OnError = "raise",
        metadata: Mapping[str, Any] | None = None,
        cast: bool = False,
        **options: Any,
    ) -> None:
        self._casting: Casting = "space" if as_bool("cast", cast) else "safe"
        if not isinstance(env, pettingzoo.ParallelEnv):
            hint = "use relive.replay.gym.Record for environments of Gymnasium"
            if isinstance(env, pettingzoo.AECEnv):
                hint = "convert it with pettingzoo.utils.aec_to_parallel"
            raise InvalidTypeError(
                f"`env` must be a parallel environment of PettingZoo, got {type_name(type(env))}",
                hint=hint,
            )
        every = as_int("every", every, at_least=1)
        check_on_error(on_error)
        kind = choose_frames(frames, getattr(env, "render_mode", None), ())
        self._frames = FrameSource(kind, every, lambda: [self.env.render()])
        super().__init__(env)
        self._layouts: dict[str, tuple[Any, Any]] = {}
        self._checked: set[Any] = set()
        agents = list(getattr(env, "possible_agents", None) or ())
        for agent in agents:
            self._check(agent)
        spaces = {
            "observation": {
                str(agent): describe_space(env.observation_space(agent)) for agent in agents
            },
            "action": {str(agent): describe_space(env.action_space(agent)) for agent in agents},
        }
        self.recorder = ReplayRecorder(
            root,
            run_id,
            config=config,
            metadata=metadata,
            **{
                "env_id": (getattr(env, "metadata", None) or {}).get("name"),
                "spaces": spaces if agents else None,
                **options,
            },
        )
        self._refusals = warn_instead(self.recorder) if on_error == "warn" else None
        self._frames.refusals = self._refusals
        self._agents: dict[Any, EpisodeStream] = {}
        self._times: dict[Any, int] = {}
        """How often each agent has joined since the last reset."""
        self._episode_id: str | None = None
        self._seed: int | None = None
        self._calls = 0

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[Any, Any], dict[Any, dict[str, Any]]]:
        """Reset the environment, which begins an episode of every agent."""
        given = json_items("options", options, self._refusals)
        open_streams = [stream for stream in self._agents.values() if stream.has_steps]
        for place, stream in enumerate(open_streams):
            if self._has_frame(place):
                stream.next_frame = self._frames.of(stream, 0)
        self._frames.forget()
        observations, infos = self.env.reset(seed=seed, options=options)
        self._seed = seed
        self._episode_id, self._times, self._calls = None, {}, 0
        for stream in self._agents.values():
            stream.end()
            stream.state = "ended"
        self._join(observations, infos, given)
        return observations, infos

    def step(self, actions: dict[Any, Any]) -> tuple[dict[Any, Any], ...]:
        """Step the environment, and record every agent that was there."""
        before = [agent for agent, stream in self._agents.items() if stream.state == "open"]
        self._choose(before, actions)
        try:
            found = self.env.step(actions)
        except Exception:
            raise
        except BaseException:  # Ctrl-C: what the step did is not known
            self._lose(before)
            raise
        refused = []
        for place, agent in enumerate(before):
            try:
                self._record(agent, found, has_frame=self._has_frame(place))
            except Exception as error:  # noqa: BLE001 - raised when the other agents are recorded
                refused.append(error)
            except BaseException:
                self._lose(before[place + 1 :])
                raise
        observations, _, terminated, truncated, infos = found
        joined = {
            agent: observation
            for agent, observation in observations.items()
            if agent in self.env.agents
            and agent not in before
            and not (terminated.get(agent) or truncated.get(agent))
        }
        self._join(joined, infos, {})
        if refused:
            raise refused[0]
        return found  # type: ignore[no-any-return]

    def _choose(self, agents: list[Any], actions: Mapping[Any, Any]) -> None:
        """Note the actions of the agents that are there, and take pictures."""
        for place, agent in enumerate(agents):
            stream = self._agents[agent]
            stream.calls = self._calls
            frame = self._frames.of(stream, 0) if self._has_frame(place) else None
            action = actions.get(agent)
            if action is not None:
                space = self.env.action_space(agent)
                action = kept_or_refused("action", space, action, self._refusals, self._casting)
            stream.choose(action, frame)
        self._frames.forget()
        self._calls += 1

    def _has_frame(self, place: int) -> bool:
        """Check whether an agent has frames: the environment is rendered once for all."""
        return place == 0 or self._frames.kind == "observation"

    def _record(self, agent: Any, found: tuple[dict[Any, Any], ...], *, has_frame: bool) -> None:
        """Record what a step returned to an agent."""
        observations, rewards, terminated, truncated, infos = found
        stream = self._agents[agent]
        is_over = self._flag(agent, "terminated", terminated)
        is_cut = self._flag(agent, "truncated", truncated)
        is_cut = is_cut or (not is_over and agent not in self.env.agents)
        observation = observations.get(agent)
        if observation is not None:
            observation = self._seen(agent, observation)
        frame = None
        if (is_over or is_cut) and has_frame:
            frame = self._frames.after(stream, 0, observation, is_there=True)
        if stream.episode_id is None:
            stream.episode_id = self._shared_id(agent)
        try:
            stream.step(
                rewards.get(agent),
                terminated=is_over,
                truncated=is_cut,
                info=infos.get(agent),
                observation=observation,
                next_frame=frame,
            )
        finally:
            self._episode_id = self._episode_id or stream.episode_id

    def _flag(self, agent: Any, name: str, flags: Mapping[Any, Any]) -> bool:
        """Return whether the episode of an agent has ended.

        If the environment does not say, it may go on or not, so nothing further of it is recorded.
        """
        try:
            return as_flag(name, flags.get(agent))
        except InvalidTypeError as error:
            self._lose([agent])
            if self._refusals is None or not self._refusals.take(error):
                raise
            return False

    def _seen(self, agent: Any, observation: Any) -> Any:
        """Return a copy of an observation."""
        try:
            space = self.env.observation_space(agent)
            return kept_or_refused("observation", space, observation, self._refusals, self._casting)
        except InvalidError:
            self._lose([agent])
            raise

    def _lose(self, agents: list[Any]) -> None:
        """Stop recording the episodes of agents: a step of them is missing."""
        for agent in agents:
            self._agents[agent].lose(self._agents[agent].observation)

    def _join(
        self,
        observations: Mapping[Any, Any],
        infos: Mapping[Any, Mapping[str, Any]],
        options: Mapping[str, Any],
    ) -> None:
        """Expect steps of agents that are there from now on."""
        refused = []
        for agent, observation in observations.items():
            try:
                self._check(agent)
                stream = self._agents.get(agent)
                if stream is None:
                    stream = EpisodeStream(
                        self.recorder, agent_id=str(agent), refusals=self._refusals
                    )
                    self._agents[agent] = stream
                self._times[agent] = self._times.get(agent, 0) + 1
                stream.expect(seed=self._seed, options=options)
                stream.begin(self._seen(agent, observation), infos.get(agent))
            except ReliveError as error:
                if self._refusals is None or not self._refusals.take(error):
                    refused.append(error)
        if refused:
            raise refused[0]

    def _check(self, agent: Any) -> None:
        """Raise an `UnsupportedError` if what an agent sees or does cannot be recorded."""
        if agent in self._checked:
            return
        seen = self.env.observation_space(agent)
        if self._frames.kind == "observation":
            choose_frames("observation", None, [seen])
        for name, space in (("observation", seen), ("action", self.env.action_space(agent))):
            check_storable(f"{name} of {agent}", space)
            layout = _layout(describe_space(space))
            first, known = self._layouts.setdefault(name, (agent, layout))
            if layout != known:
                raise UnsupportedError(
                    f"the {name} spaces of {first} and {agent} have different shapes or dtypes: "
                    f"{known} and {layout}",
                    hint="pad them so that all agents have the same",
                )
        self._checked.add(agent)

    def _shared_id(self, agent: Any) -> str | None:
        """Return the id of the episode of an agent; None if it is the first of its episode."""
        times = self._times[agent]
        if self._episode_id is None or times == 1:
            return self._episode_id
        return f"{self._episode_id}-{times}"

    def _streams(self) -> Iterable[EpisodeStream]:
        return self._agents.values()

    def _close_env(self, **options: Any) -> None:
        self.env.close(**options)


def _layout(described: Mapping[str, Any]) -> Any:
    """Return what matters for arrays of a space: their names, shapes and dtypes."""
    inner = described.get("spaces")
    if isinstance(inner, Mapping):
        return {key: _layout(item) for key, item in inner.items()}
    if inner is not None:
        return [_layout(item) for item in inner]
    if "nvec" in described:
        return _shape(described["nvec"]), described["dtype"]
    if described["type"] in {"Box", "MultiBinary"}:
        return described["shape"], described.get("dtype", "int8")
    return described.get("dtype", described["type"])


def _shape(nested: Any) -> list[int]:
    return [len(nested), *_shape(nested[0])] if isinstance(nested, list) and nested else []
