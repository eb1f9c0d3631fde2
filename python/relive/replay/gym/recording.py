"""What sub-environments return becomes recorded episodes, however they are reset."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from relive._arguments import check_choice
from relive.errors import InvalidError, ReliveError
from relive.replay.gym.frames import FrameSource
from relive.replay.gym.refusals import Refusals
from relive.replay.gym.streams import EpisodeStream, json_items
from relive.replay.recorder import ReplayRecorder

Autoreset: TypeAlias = Literal["next_step", "same_step", "disabled"]

MASK: Final = "reset_mask"
_AUTORESETS: Final[tuple[Autoreset, ...]] = ("next_step", "same_step", "disabled")
_FINAL: Final = ("final_obs", "final_observation")
"""The last observation of an episode, by the names of Gymnasium 1.1 and of earlier versions."""
_FINAL_INFO: Final = "final_info"


@dataclass(slots=True)
class StepResult:
    """What a step of one sub-environment returned."""

    observation: Any
    """A copy of what the agent sees next. If the episode has ended and the sub-environment was
    reset in the same step, this is the first observation of the next episode."""
    reward: Any
    terminated: bool
    truncated: bool
    info: Mapping[str, Any]
    final: Any = None
    """The last observation, if the sub-environment was reset in the same step."""
    reset_info: Mapping[str, Any] | None = None
    """What the environment says about the reset, if it was reset in the same step."""

    @property
    def is_over(self) -> bool:
        """Whether the episode has ended."""
        return self.terminated or self.truncated


class Recording:
    """Turns what the sub-environments of a vector return into recorded episodes.

    As a context, it stands around a step of the environment: if Ctrl-C interrupts the step, its
    result is not known, and the open episodes are not recorded further.

    Args:
        recorder: Where the steps go.
        count: The number of sub-environments.
        mode: How they are reset.
        frames: Takes the pictures.
        refusals: Warns of what cannot be recorded; None raises the errors.
    """

    def __init__(
        self,
        recorder: ReplayRecorder,
        count: int,
        mode: Autoreset,
        frames: FrameSource,
        refusals: Refusals | None = None,
    ) -> None:
        self.mode = mode
        self.refusals = refusals
        self.streams = [EpisodeStream(recorder, env, refusals=refusals) for env in range(count)]
        self.frames = frames
        self._options: list[dict[str, Any]] = [{}] * count

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None and not issubclass(kind, Exception):
            self.lose()

    def lose(self, envs: Iterable[int] | None = None) -> None:
        """End the open episodes as truncated, of all or some; the rest is not recorded."""
        for env in range(len(self.streams)) if envs is None else envs:
            stream = self.streams[env]
            stream.lose(stream.observation)

    def before_reset(
        self,
        envs: Sequence[int],
        options: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
    ) -> None:
        """Note the options of a reset, for all or each, and take pictures of what it ends."""
        if options is None or isinstance(options, Mapping):
            given = {key: value for key, value in (options or {}).items() if key != MASK}
            self._options = [json_items("options", given, self.refusals)] * len(self.streams)
        else:
            self._options = [json_items("options", given, self.refusals) for given in options]
        for env in envs:
            stream = self.streams[env]
            if stream.has_steps:
                stream.next_frame = self.frames.of(stream, env)
        self.frames.forget()

    def expect(self, envs: Sequence[int], seeds: Sequence[Any]) -> None:
        """Expect the first observations of episodes: these sub-environments were reset."""
        for env, seed in zip(envs, seeds, strict=True):
            stream = self.streams[env]
            stream.expect(seed=seed, options=self._options[env])
            if len(envs) == len(self.streams):
                stream.calls = 0

    def begin(
        self,
        envs: Sequence[int],
        observations: Sequence[Any],
        infos: Sequence[Mapping[str, Any]],
    ) -> None:
        """Begin the episodes that are expected with what a reset returned."""
        refused = []
        for env, observation, info in zip(envs, observations, infos, strict=True):
            try:
                self.streams[env].begin(observation, info)
            except ReliveError as error:
                refused.append(error)
        if refused:
            raise refused[0]

    def before_step(self, envs: Sequence[int], actions: Sequence[Any]) -> None:
        """Note the actions, and take pictures."""
        for env, action in zip(envs, actions, strict=True):
            stream = self.streams[env]
            if stream.state == "unset":
                raise InvalidError(
                    "the environment was not reset", hint="call reset() before step()"
                )
            frame = self.frames.of(stream, env) if stream.state == "open" else None
            stream.choose(action, frame)
        self.frames.forget()

    def step(self, envs: Sequence[int], results: Sequence[StepResult]) -> None:
        """Record steps of these sub-environments."""
        for place, env in enumerate(envs):
            try:
                self._step(env, results[place])
            except BaseException:
                for later in range(place + 1, len(envs)):
                    self._skip(envs[later], results[later])
                raise

    def _step(self, env: int, result: StepResult) -> None:
        stream = self.streams[env]
        if stream.state == "waiting":  # the step only reset it, and its action was ignored
            stream.begin(result.observation, result.info)
            return
        if stream.state != "open":  # it has ended, and was not reset
            return
        is_same_step = self.mode == "same_step"
        after = result.final if result.is_over and is_same_step else result.observation
        frame = None
        if result.is_over:
            frame = self.frames.after(stream, env, after, is_there=not is_same_step)
        try:
            stream.step(
                result.reward,
                terminated=result.terminated,
                truncated=result.truncated,
                info=result.info,
                observation=after,
                next_frame=frame,
            )
        finally:
            if result.is_over:
                self._after_end(stream, result.observation, result.reset_info)

    def _skip(self, env: int, result: StepResult) -> None:
        """Go on after a step that is not recorded because that of another one failed."""
        stream = self.streams[env]
        if stream.state == "waiting":
            stream.begin(result.observation)
        elif stream.state == "open":
            stream.lose(stream.observation)
            stream.observation = result.observation
            if result.is_over:
                stream.state = "ended"
                self._after_end(stream, result.observation, None)

    def _after_end(
        self, stream: EpisodeStream, observation: Any, info: Mapping[str, Any] | None
    ) -> None:
        if self.mode != "disabled":
            stream.expect()
        if self.mode == "same_step":
            stream.begin(observation, info)


def as_mode(value: Any) -> Autoreset:
    """Return an autoreset mode by its name, or by that of Gymnasium."""
    text = str(getattr(value, "value", value)).replace("_", "").lower()
    for name in _AUTORESETS:
        if text == name.replace("_", ""):
            return name
    check_choice("autoreset", value, _AUTORESETS)
    raise AssertionError  # pragma: no cover - check_choice raises


def split_info(infos: Any, place: int, count: int) -> dict[str, Any]:
    """Return the info of one sub-environment from that of a vector.

    A value is an array or list with one item per sub-environment, a dict of such values, or
    anything else, which is then about all of them. The array `_key` tells which sub-environments
    have the key.

    Args:
        infos: The info of the vector.
        place: The sub-environment.
        count: The number of sub-environments.
    """
    if not isinstance(infos, Mapping):  # a list of dicts
        return dict(infos[place])
    found = {}
    for key, value in infos.items():
        if isinstance(key, str) and key[:1] == "_" and _is_mask(infos, key[1:], count):
            continue
        if _is_mask(infos, key, count) and not infos[f"_{key}"][place]:
            continue
        if isinstance(value, Mapping):
            found[key] = split_info(value, place, count)
        elif isinstance(value, np.ndarray | list | tuple) and rows_in(value) == count:
            found[key] = value[place]
        else:
            found[key] = value
    return found


def split_final(info: dict[str, Any], *, is_over: bool) -> tuple[Any, Any, dict[str, Any]]:
    """Return the last observation, the info of the step, and that of the reset after it."""
    final = None
    for name in _FINAL:
        found = info.pop(name, None)
        final = found if final is None else final
    final_info = info.pop(_FINAL_INFO, None)
    if is_over and final_info is not None:
        return final, final_info, info
    return (final if is_over else None), info, {}


def rows_in(value: Any) -> int:
    """Return the number of rows of a value, or of the first array of a nested one; 0 if none."""
    while isinstance(value, Mapping) and value:
        value = next(iter(value.values()))
    return 0 if getattr(value, "shape", None) == () else len(value)


def _is_mask(infos: Mapping[Any, Any], key: Any, count: int) -> bool:
    """Check whether the info of a vector has a mask for a key."""
    if not isinstance(key, str) or key not in infos:
        return False
    mask = infos.get(f"_{key}")
    return isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == (count,)
