"""The episodes of one sub-environment or one agent, recorded step by step."""

import contextlib
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from relive._arguments import INT64_MAX
from relive.errors import InvalidError, InvalidTypeError, OverloadError, ReliveError, TooLargeError
from relive.replay.gym.refusals import Refusals
from relive.replay.recorder import ReplayRecorder
from relive.replay.storage.values import as_json


class EpisodeStream:
    """Records the episodes of one sub-environment or one agent.

    `expect` notes what a reset is called with, and `begin` what it returned; `choose` notes an
    action, and `step` records what it led to. An episode without steps leaves no trace.

    Args:
        recorder: Where the steps go.
        env: The sub-environment.
        agent_id: The agent.
        refusals: Warns of what cannot be recorded, which is left out; None raises the errors.
    """

    def __init__(
        self,
        recorder: ReplayRecorder,
        env: int = 0,
        agent_id: str = "",
        refusals: Refusals | None = None,
    ) -> None:
        self._recorder = recorder
        self._refusals = refusals
        self._env = env
        self._agent_id = agent_id
        self.state: Literal["unset", "open", "ended", "waiting"] = "unset"
        """`waiting` if what comes next is the first observation of an episode."""
        self.observation: Any = None
        """A copy of what the agent saw last."""
        self.next_frame: npt.NDArray[Any] | None = None
        """A picture for the case that `end` ends the episode."""
        self.calls = 0
        """How many actions were chosen since everything was reset."""
        self.episode_id: str | None = None
        self._action: Any = None
        self._frame: Any = None
        self._seed: Any = None
        self._options: Mapping[str, Any] | None = None
        self._metadata: dict[str, Any] | None = None
        self._is_begun = False  # the recorder has an open episode
        self._is_lost = False  # a step of the episode could not be recorded

    @property
    def has_steps(self) -> bool:
        """Whether steps of an episode were recorded that has not ended."""
        return self._is_begun

    def expect(
        self,
        *,
        seed: Any = None,
        options: Mapping[str, Any] | None = None,
        episode_id: str | None = None,
    ) -> None:
        """Expect the first observation of an episode; an open one is ended as truncated."""
        self.end()
        self.state, self.episode_id = "waiting", episode_id
        self._seed, self._options = seed, options

    def begin(self, observation: Any, info: Mapping[str, Any] | None = None) -> None:
        """Begin the episode that is expected, with its first observation."""
        self.state, self.observation = "open", observation
        self._is_lost = True  # until its description is accepted
        self._metadata = _described_episode(self._seed, self._options, info, self._refusals)
        self._is_lost = False

    def choose(self, action: Any, frame: Any = None) -> None:
        """Note the next action, and a picture of the environment before it."""
        self._action, self._frame = action, frame
        self.calls += 1

    def step(
        self,
        reward: Any,
        *,
        terminated: bool,
        truncated: bool,
        info: Mapping[str, Any] | None,
        observation: Any,
        next_frame: Any = None,
    ) -> None:
        """Record the step of the action that was chosen; `observation` is what it led to."""
        is_over = terminated or truncated
        if self._refusals is not None:
            self._refusals.steps += 1
        try:
            if not self._is_lost:
                if not self._is_begun:
                    self._begin()
                self._recorder.step(
                    self.observation,
                    self._action,
                    reward,
                    terminated,
                    truncated,
                    frame=self._frame,
                    info=info or None,
                    next_observation=observation if is_over else None,
                    next_frame=next_frame if is_over else None,
                    env=self._env,
                    agent_id=self._agent_id,
                )
                self._is_begun = not is_over
            elif self._refusals is not None:
                self._recorder._refuse_all([self._env], self._agent_id)  # noqa: SLF001 - our own
                self._refusals.missing_steps += 1
        except Exception as error:
            if self._refusals is None or not self._refusals.take(error):
                self.lose(self.observation)
                raise
            self._refusals.missing_steps += 1
            # For the recorder the step is one that was dropped.
            self._is_begun = self._is_begun and not is_over
        except BaseException:
            # Ctrl-C: whether the step was recorded is not known, nor what its end would be.
            self.lose(None)
            raise
        finally:
            self.observation = observation
            self.state = "ended" if is_over else "open"
            self._action = self._frame = None

    def lose(self, observation: Any) -> None:
        """End the episode as truncated; the rest of it is not recorded."""
        self._is_lost = True
        self.observation = observation
        with contextlib.suppress(ReliveError):  # the error that led here is the one to raise
            self.end()

    def end(self) -> None:
        """End an open episode as truncated, with the last observation."""
        if self._is_begun:
            self._is_begun = False
            stream: dict[str, Any] = {"env": self._env, "agent_id": self._agent_id}
            try:
                self._recorder.end_episode(
                    next_observation=self.observation, next_frame=self.next_frame, **stream
                )
            except (InvalidError, InvalidTypeError, TooLargeError, OverloadError) as error:
                # What was seen last cannot be stored.
                self._recorder.end_episode(**stream)
                if not self._takes(error):
                    raise
        self.next_frame = None

    def _takes(self, error: Exception) -> bool:
        return self._refusals is not None and self._refusals.take(error)

    def _begin(self) -> None:
        try:
            self.episode_id = self._begin_with(self.episode_id, self._metadata)
        except Exception as error:
            if not self._takes(error):
                raise
            self.episode_id = self._begin_with(None, None)
        self._is_begun = True

    def _begin_with(self, episode_id: str | None, metadata: dict[str, Any] | None) -> str:
        return self._recorder.begin_episode(
            episode_id,
            seed=self._seed if is_integer(self._seed) else None,
            metadata=metadata,
            env=self._env,
            agent_id=self._agent_id,
        )


def json_items(
    name: str, values: Mapping[str, Any] | None, refusals: Refusals | None = None
) -> dict[str, Any]:
    """Return the items of a dict as JSON has them; an error names the key."""
    made = {}
    for key, value in (values or {}).items():
        try:
            made[str(key)] = as_json(f"{name}[{key!r}]", value)
        except ReliveError as error:
            if refusals is None or not refusals.take(error):
                raise
    return made


def _described_episode(
    seed: Any,
    options: Mapping[str, Any] | None,
    info: Mapping[str, Any] | None,
    refusals: Refusals | None,
) -> dict[str, Any] | None:
    """Return the metadata of an episode: what it was reset with, and what that returned."""
    made: dict[str, Any] = {}
    if options:
        made["options"] = json_items("options", options, refusals)
    if info:
        made["info"] = json_items("info", info, refusals)
    if seed is not None and not is_integer(seed):
        try:
            made["seed"] = as_json("seed", seed)
        except ReliveError as error:
            if refusals is None or not refusals.take(error):
                raise
    return made or None


def is_integer(seed: Any) -> bool:
    """Check whether a seed is an integer that the database can have."""
    return isinstance(seed, int | np.integer) and 0 <= int(seed) <= INT64_MAX
