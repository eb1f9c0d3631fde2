"""Steps on their way to the disk: calls of a recorder become steps of episodes."""

import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive._arguments import as_int, as_text
from relive._native import Step, StepArrays, plain_json
from relive.errors import AlreadyExistsError, InvalidError, InvalidTypeError, ReliveError
from relive.model.clock import now_ns
from relive.model.ref import Ref
from relive.replay.arrays import FINAL, ArrayLane, Present
from relive.replay.columns import ENCODED, flatten
from relive.replay.storage.tables import EpisodeRow
from relive.replay.storage.values import (
    MAX_INFO_BYTES,
    MAX_JSON_BYTES,
    as_id,
    as_json,
    check_json_bytes,
    json_keys,
    json_text,
    stored_action,
)

FRAMES: Final = "frames"
OBSERVATIONS: Final = "observations"
ACTIONS: Final = "actions"
REWARDS: Final = "rewards"
EXTRAS: Final = "extras."
INFO: Final = "info."

STEP_SCALARS: Final = (REWARDS, "terminated", "truncated", "episode", "step_index", "ts_ns")
"""The fields that are numbers of a step, one for each."""

_PLAIN: Final = frozenset({float, str, bool, type(None)})
"""Types that JSON has, whatever their value."""
_WORD_BITS: Final = 64
_MAX_STEP_INDEX: Final = (1 << 63) - 1
_NUMBERS: Final = "biufc"
"""The kinds of dtypes that the array lane has."""
_ENCODER: Final = json.JSONEncoder()
_NO_ARRAYS: Final[tuple[StepArrays, Present]] = (StepArrays(0, []), ())
_STEP_BYTES: Final = 512
"""About what a step needs in memory without its arrays."""


@dataclass(slots=True, eq=False)
class End:
    """The end of an episode."""

    episode: EpisodeRow
    terminated: bool
    truncated: bool
    ts_ns: int
    arrays: StepArrays | None
    """The last observation and frame, if they are known."""
    present: Present
    dropped: int

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return _STEP_BYTES + (0 if self.arrays is None else self.arrays.nbytes)


@dataclass(slots=True, eq=False)
class Stream:
    """A sub-environment and an agent: its steps follow each other."""

    number: int
    env: int
    agent_id: str
    episode: EpisodeRow | None = None
    step_index: int = 0
    dropped: int = 0
    total_reward: float = 0.0


@dataclass(slots=True)
class Streams:
    """The episodes of a run that are open. One thread at a time.

    A call here changes nothing until `advance` is told that its step was accepted, so that an
    exception between the two leaves everything as it was.
    """

    run_id: str
    lane: ArrayLane | None
    next_row: int
    next_episode: int
    ids: set[tuple[str, str]]
    """The ids and agents of the episodes that the run has."""
    fields: Collection[str] | None = None
    """The array fields that are recorded; None if all are."""
    skip_info: Callable[[ReliveError], bool] | None = None
    """Is called with the error if something of an info cannot be stored, which is left out if this
    returns True; otherwise the step is refused."""
    found: dict[tuple[int, str], Stream] = field(default_factory=dict)
    """The streams so far, by sub-environment and agent."""

    def stream(self, env: int, agent_id: str) -> Stream:
        """Return the stream of a sub-environment and an agent."""
        env = as_int("env", env, at_least=0)
        agent_id = as_id("`agent_id`", agent_id)
        found = self.found.get((env, agent_id))
        if found is None:
            number = len(self.found)
            found = self.found[env, agent_id] = Stream(number, env, agent_id)
        return found

    def begin(
        self,
        stream: Stream,
        episode_id: str | None = None,
        seed: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        started_ns: int | None = None,
    ) -> EpisodeRow:
        """Begin an episode. One that is open must have been ended before."""
        if stream.episode is not None:
            raise InvalidError(
                f"episode {stream.episode.episode_id!r} is still open",
                hint="end it with a step that is terminated or truncated, or with end_episode()",
            )
        number = self.next_episode
        if episode_id is None:
            episode_id = self._default_id(number, stream.agent_id)
        key = (as_id("`episode_id`", episode_id), stream.agent_id)
        if not episode_id:
            raise InvalidError("`episode_id` must not be empty")
        if key in self.ids:
            raise AlreadyExistsError(
                f"run {self.run_id!r} has an episode {episode_id!r} already",
                hint="leave out episode_id= to number episodes",
            )
        text = None
        if metadata is not None:
            text = json_text("metadata", as_json("metadata", metadata))
        seed = None if seed is None else as_int("seed", seed)
        begun = EpisodeRow(
            self.run_id,
            episode_id,
            stream.agent_id,
            number,
            stream.env,
            seed,
            now_ns() if started_ns is None else started_ns,
            metadata=text,
        )
        self.next_episode = number + 1
        stream.step_index, stream.dropped, stream.total_reward = 0, 0, 0.0
        stream.episode = begun
        self.ids.add(key)  # last: Ctrl-C comes after calls
        return begun

    def step(  # noqa: PLR0917 - as `ReplayRecorder.step`; by name it takes longer
        self,
        stream: Stream,
        observation: Any,
        action: Any,
        reward: float | None,
        terminated: bool,  # noqa: FBT001
        truncated: bool,  # noqa: FBT001
        frame: Any,
        info: Mapping[str, Any] | None,
        next_observation: Any,
        next_frame: Any,
        extras: Mapping[str, Any] | None,
        step_index: int | None,
        ts_ns: int | None,
    ) -> Step:
        """Check a step and copy its arrays."""
        if type(reward) is not float:
            reward = _as_reward(reward)
        if type(terminated) is not bool or type(truncated) is not bool:
            terminated = as_flag("terminated", terminated)
            truncated = as_flag("truncated", truncated)
        stored, is_whole = stored_action(action)
        values: dict[str, Any] = {FRAMES: frame, OBSERVATIONS: observation, ACTIONS: action}
        if extras is not None:
            _add_extras(extras, values)
        text = plain_json(info) if type(info) is dict and info else None
        if text is None:
            text = self._info(info, values) if info else None
        elif len(text) > MAX_JSON_BYTES:
            text = self._whole_info(text)
        ts_ns = now_ns() if ts_ns is None else as_int("ts_ns", ts_ns)
        last = None
        if terminated or truncated:
            last = {FINAL + FRAMES: next_frame, FINAL + OBSERVATIONS: next_observation}
        if self.fields is not None:
            values = self._kept(values)
        arrays, present = (
            _NO_ARRAYS if self.lane is None else self.lane.copy(stream.number, values, last)
        )
        has_action_ref = not is_whole and _is_in_arrays(action, present)
        episode = stream.episode or self.begin(stream, started_ns=ts_ns)
        index = stream.step_index if step_index is None else _as_step_index(step_index, stream)
        nbytes = _STEP_BYTES + arrays.nbytes + len(text or "")
        total = stream.total_reward if reward is None else stream.total_reward + reward
        if math.isnan(total):  # NaN is left out, and an infinite return stays
            total = stream.total_reward
        end = None
        if last is not None:
            end = self._end(stream, episode, last, (terminated, truncated), ts_ns)
            nbytes += end.nbytes
        return Step(
            self.next_row,
            episode,
            index,
            arrays,
            present,
            stored,
            has_action_ref,
            reward,
            terminated,
            truncated,
            text,
            ts_ns,
            end,
            stream.dropped,
            total,
            nbytes,
        )

    def end(
        self,
        stream: Stream,
        *,
        terminated: bool = False,
        next_observation: Any = None,
        next_frame: Any = None,
    ) -> End | None:
        """Return the end of the open episode of a stream, if it has one."""
        if stream.episode is None:
            return None
        last = {FINAL + FRAMES: next_frame, FINAL + OBSERVATIONS: next_observation}
        return self._end(stream, stream.episode, last, (terminated, not terminated), now_ns())

    def advance(self, stream: Stream, item: Step | End) -> None:
        """Go on after a step or an end that was accepted. May be called again for the same."""
        if isinstance(item, Step):
            self.next_row = item.row + 1
            stream.step_index = item.step_index + 1
            stream.total_reward = item.total_reward
            item = item.end or item
        if isinstance(item, End):
            stream.episode = None

    def drop(self, stream: Stream, step: Step) -> None:
        """Go on after a step that was dropped: its index is used, its row is not."""
        stream.step_index = step.step_index + 1
        stream.dropped = step.dropped + 1

    def refuse(self, stream: Stream, step_index: Any = None) -> None:
        """Go on after a step of an open episode that was refused, as after one that was dropped.

        The caller may go on with the next step, and nothing may follow from one to the other.
        """
        if stream.episode is None:
            return
        is_given = isinstance(step_index, int) and step_index <= _MAX_STEP_INDEX
        index = step_index if is_given else stream.step_index
        stream.step_index = max(stream.step_index, index + 1)
        stream.dropped += 1

    def open_streams(self) -> list[Stream]:
        """Return the streams that have an open episode."""
        return [stream for stream in self.found.values() if stream.episode is not None]

    def _end(
        self,
        stream: Stream,
        episode: EpisodeRow,
        last: dict[str, Any],
        ended: tuple[bool, bool],
        ts_ns: int,
    ) -> End:
        arrays: StepArrays | None
        last = self._kept(last)
        arrays, present = _NO_ARRAYS if self.lane is None else self.lane.copy(stream.number, last)
        if not present:
            arrays = None
        return End(episode, *ended, ts_ns, arrays, present, stream.dropped)

    def _kept(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values of the fields that are recorded."""
        return {name: value for name, value in values.items() if self._keeps(name)}

    def _keeps(self, name: str) -> bool:
        """Check whether a field is recorded. What was seen last belongs to its field."""
        if self.fields is None:
            return True
        name = name.removeprefix(FINAL)
        return name in self.fields or name.partition(".")[0] in self.fields

    def _default_id(self, number: int, agent_id: str) -> str:
        """Return the id of an episode by its number; `-2` and so on follow if it is taken."""
        name = found = f"{self.run_id}-ep{number:04d}"
        again = 1
        while (found, agent_id) in self.ids:
            again += 1
            found = f"{name}-{again}"
        return found

    def _info(self, info: Mapping[str, Any], values: dict[str, Any]) -> str | None:
        """Return an info as JSON; arrays over 4 KiB are added to the values of the step.

        They are left out if their field is not recorded.
        """
        if not isinstance(info, Mapping):
            self._refuse_info(InvalidTypeError(f"`info` must be a dict, got {info!r}"))
            return None
        try:
            names = json_keys("info", info)
        except ReliveError as error:
            self._refuse_info(error)
            return None
        kept: dict[str, Any] = {}
        for name, value in zip(names, info.values(), strict=True):
            try:
                if type(value) in _PLAIN or (
                    type(value) is int and value.bit_length() < _WORD_BITS
                ):
                    kept[name] = value
                elif (
                    isinstance(value, np.ndarray)
                    and value.nbytes > MAX_INFO_BYTES
                    and value.dtype.kind in _NUMBERS
                ):
                    if self.lane is None or self._keeps(INFO + name.translate(ENCODED)):
                        kept[name] = self._info_array(name, value, values)
                else:
                    kept[name] = as_json(f"info[{name!r}]", value)
            except ReliveError as error:
                self._refuse_info(error)
        return self._whole_info(_ENCODER.encode(kept))

    def _whole_info(self, text: str) -> str | None:
        """Return the text of an info if it can be stored; None if it is left out."""
        try:
            check_json_bytes("info", len(text))
        except ReliveError as error:
            self._refuse_info(error)
            return None
        return text

    def _refuse_info(self, error: ReliveError) -> None:
        """Raise an error of an info, or of one of its keys, unless what is refused is left out."""
        if self.skip_info is None or not self.skip_info(error):
            raise error

    def _info_array(self, key: str, value: npt.NDArray[Any], values: dict[str, Any]) -> Any:
        """Add a large array to the values of a step, and return what its info has instead."""
        name = INFO + key.translate(ENCODED)
        if not key or self.lane is None or not self.lane.accepts(name, value):
            return as_json(f"info[{key!r}]", value)
        values[name] = value
        return str(Ref("h5", self.run_id, name, self.next_row))


def _as_step_index(given: int, stream: Stream) -> int:
    index = as_int("step_index", given, at_most=_MAX_STEP_INDEX)
    if index < stream.step_index:
        raise InvalidError(
            f"`step_index` must increase in an episode: {index} after {stream.step_index - 1}"
        )
    return index


def as_flag(name: str, value: Any) -> bool:
    """Return whether an episode has ended: a bool, 0 or 1, also in an array of one; None is False.

    Anything else is an `InvalidTypeError`: text would be true whatever it says.
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    number = value
    if hasattr(value, "item"):
        try:
            number = value.item()
        except (TypeError, ValueError, RuntimeError):  # as libraries of arrays see fit
            raise InvalidTypeError(
                f"`{name}` must be a bool, got {value!r}",
                hint="steps() records one step of each of several sub-environments",
            ) from None
    if number is None:
        return False
    if not isinstance(number, bool | int | float) or number not in {0, 1}:
        raise InvalidTypeError(f"`{name}` must be a bool, got {value!r}")
    return bool(number)


def _as_reward(reward: Any) -> float | None:
    if reward is None:
        return None
    try:
        return float(reward)
    except (TypeError, ValueError, OverflowError):
        raise InvalidTypeError(f"`reward` must be a number, got {reward!r}") from None


def _is_in_arrays(action: Any, present: Present) -> bool:
    """Check whether the arrays of a step have its action, which must be numbers in any case."""
    if ACTIONS in present:
        return True
    flatten("action", action)  # raises unless it has numbers
    return False


def _add_extras(extras: Any, values: dict[str, Any]) -> None:
    """Add the extras of a step to its values."""
    if type(extras) is not dict and not isinstance(extras, Mapping):
        raise InvalidTypeError(f"`extras` must be a dict, got {extras!r}")
    for name, value in extras.items():
        values[EXTRAS + _encoded_name(name)] = value


def _encoded_name(name: Any) -> str:
    """Return the name of an extra as the name of its field has it."""
    if not as_text("a name in `extras`", name) or "\0" in name:
        raise InvalidError(f"a name in `extras` must not be empty or have a zero byte: {name!r}")
    return str(name.translate(ENCODED))
