"""Wrappers that record single environments and vectors of Gymnasium."""

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

import numpy as np

from relive._arguments import as_bool, as_int
from relive._extras import require
from relive.errors import (
    ClosedError,
    InvalidError,
    InvalidTypeError,
    ReliveError,
    UnsupportedError,
)
from relive.replay.columns import row_of
from relive.replay.config import ReplayConfig
from relive.replay.gym.frames import Frames, FrameSource, choose_frames
from relive.replay.gym.recording import (
    MASK,
    Autoreset,
    Recording,
    StepResult,
    as_mode,
    split_final,
    split_info,
)
from relive.replay.gym.refusals import OnError, Refusals, check_on_error
from relive.replay.gym.spaces import Casting, check_storable, describe_space, describe_spec, kept
from relive.replay.recorder import ReplayRecorder
from relive.replay.storage.layout import runs_path
from relive.replay.storage.values import as_json
from relive.replay.writing.steps import as_flag

if TYPE_CHECKING:
    from relive.replay.gym.streams import EpisodeStream

gymnasium = require("gymnasium", extra="replay", to="record environments")

MODE: Final = "autoreset_mode"


class RecordingWrapper:
    """An environment that records what happens in it. `close` also closes its recorder."""

    recorder: ReplayRecorder
    """Where the steps go."""
    _refusals: Refusals | None = None

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.recorder.run_id

    def close(self, **options: Any) -> None:
        """Complete the run, then close the environment. May be called again."""
        # The recorder itself may have been closed, aborted or left before.
        try:
            with contextlib.suppress(ClosedError):
                self._end_episodes()
        finally:
            try:
                with contextlib.suppress(ClosedError):
                    self.recorder.close()
            finally:
                self._close_env(**options)
        if self._refusals is not None:
            self._refusals.warn_of_missing_steps(stacklevel=2)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            # What ended the block matters more than an error of the disk now.
            with contextlib.suppress(ClosedError if error is None else ReliveError):
                self._end_episodes()
        finally:
            try:
                self.recorder.__exit__(kind, error, trace)
            finally:
                self._close_env()
        if self._refusals is not None:
            # It may be an error, by the filters of the program.
            with contextlib.suppress(*(() if error is None else (RuntimeWarning,))):
                self._refusals.warn_of_missing_steps(stacklevel=2)

    def _streams(self) -> "Iterable[EpisodeStream]":
        """Return the streams of the sub-environments or agents."""
        raise NotImplementedError

    def _close_env(self, **options: Any) -> None:
        """Close the environment that is wrapped."""
        raise NotImplementedError

    def _end_episodes(self) -> None:
        for stream in self._streams():
            stream.end()


class Record(RecordingWrapper, gymnasium.utils.RecordConstructorArgs):  # type: ignore[misc, name-defined]
    """Wraps an environment so that every step is recorded.

    The result is used as the environment itself: it is a `gymnasium.Wrapper`, a
    `gymnasium.vector.VectorWrapper`, or a `VecEnvWrapper` of Stable-Baselines3. Each
    sub-environment of a vector is a stream of its own. Put it around all other wrappers: what it
    returns is what the agent sees, and that is recorded.

    The steps with which a vector resets a sub-environment are not recorded, but what they return
    is: an observation is the first of an episode, and an info goes to the metadata of the
    episode, as the options of `reset` do. A `reset` in the middle of an episode ends it as
    truncated. If a step cannot be recorded, because JSON cannot have its info for example, the
    error is raised by `step`, and the rest of that episode is not recorded. `on_error="warn"` lets
    a training go on instead.

    `gymnasium.make(env.spec)` makes a single environment again with its wrappers, and records it
    into a run of its own in the same root, with an id from the time: two recorders cannot write the
    same run. A spec that was read from JSON makes it again if `config` was left out. Gymnasium has
    no such specs of wrapped vectors.

    `close` closes the recorder too. As with the recorder, Ctrl-C in the `with` block completes
    the run, and any other exception also sets its status to `failed`.

    Args:
        env: A `gymnasium.Env`, a `gymnasium.vector.VectorEnv`, a `VecEnv` of Stable-Baselines3,
            or an EnvPool made with `env_type="gymnasium"`.
        root: The directory of the runs.
        run_id: The id of the run; None makes one from the time. A run that exists is continued.
        frames: Which pictures are recorded: what `render()` returns, the `"observation"` if it is
            an image, or None. `"auto"` renders if the environment has the render mode
            `rgb_array`.
        every: Only every so many calls of `step` after `reset` have a frame.
        config: Codecs, the queue, and how often steps are committed.
        autoreset: How a vector resets the sub-environments whose episode ended: `"next_step"`,
            `"same_step"` or `"disabled"`. Needed only if the environment does not say it.
        on_error: What happens if something cannot be recorded. `"raise"` raises the error;
            `"warn"` warns once of each kind of problem, and leaves out the key of an info, or the
            step, which then counts as dropped. After a step that does not say whether it ended
            the episode, the rest of that is dropped too. `close` warns of how many steps are
            missing. Errors of the disk are raised in any case.
        metadata: Further JSON values about the run.
        cast: Whether observations and actions are recorded with the dtype of their space, whatever
            dtype they have. Floats are rounded to it. Integers and bools must keep their values,
            and floats that become integers too; else it is an `InvalidError`. Without it, numbers
            and lists get the dtype of the space, and arrays do if that is a safe cast of NumPy,
            such as float32 to float64; others keep theirs, which must be the same in every step.
        options: Further arguments of `ReplayRecorder`, such as `seed`.

    Example:
        >>> import gymnasium, tempfile
        >>> from relive.replay import ReplayRun
        >>> from relive.replay.gym import Record
        >>> root = tempfile.mkdtemp()
        >>> with Record(gymnasium.make("CartPole-v1"), root, "run-1") as env:
        ...     _ = env.reset(seed=7)
        ...     is_over = False
        ...     while not is_over:
        ...         _, _, terminated, truncated, _ = env.step(1)
        ...         is_over = terminated or truncated
        >>> ReplayRun(root, "run-1").episodes[0]["return"]
        10.0
    """

    if TYPE_CHECKING:  # it has what the environment has, which only its own class knows

        def __getattr__(self, name: str) -> Any: ...

    def __new__(cls, env: Any = None, *_args: Any, **_options: Any) -> Self:
        """Return a wrapper of the kind that the environment needs."""
        # They are made of this class.
        from relive.replay.gym.kinds import wrapper_class

        return object.__new__(wrapper_class(env) if cls is Record else cls)

    def __init__(
        self,
        env: Any,
        root: str | os.PathLike[str],
        run_id: str | None = None,
        *,
        frames: Frames = "auto",
        every: int = 1,
        config: ReplayConfig | None = None,
        autoreset: Autoreset | None = None,
        on_error: OnError = "raise",
        metadata: Mapping[str, Any] | None = None,
        cast: bool = False,
        **options: Any,
    ) -> None:
        self._casting: Casting = "space" if as_bool("cast", cast) else "safe"
        every = as_int("every", every, at_least=1)
        check_on_error(on_error)
        mode = self._mode_of(env, autoreset)
        observations, actions = self._spaces_of(env)
        check_storable("observation", observations)
        check_storable("action", actions)
        kind = choose_frames(frames, getattr(env, "render_mode", None), [observations])
        if kind == "render" and not self._can_render:
            raise UnsupportedError(
                'frames="render" does not work with this kind of environment',
                hint='pass frames="observation" or frames=None',
            )
        env_id, env_spec = self._described(env)
        self._wrap(env)
        # As the spec of the environment has them: valid in any directory, and as JSON.
        gymnasium.utils.RecordConstructorArgs.__init__(
            self,
            root=str(runs_path(root)),
            frames=frames,
            every=every,
            config=config,
            autoreset=None if autoreset is None else as_mode(autoreset),
            on_error=on_error,
            metadata=as_json("metadata", metadata),
            cast=self._casting == "space",
            **{name: as_json(name, value) for name, value in options.items()},
        )
        self._spaces = observations, actions
        self.recorder = ReplayRecorder(
            root,
            run_id,
            config=config,
            metadata=metadata,
            **{
                "env_id": env_id,
                "env_spec": env_spec,
                "spaces": {
                    "observation": describe_space(observations),
                    "action": describe_space(actions),
                },
                **options,
            },
        )
        refusals = warn_instead(self.recorder) if on_error == "warn" else None
        self._refusals = refusals
        source = FrameSource(kind, every, self._render_all, refusals)
        self._recording = Recording(self.recorder, self._count_of(env), mode, source, refusals)

    _can_render = True

    def _wrap(self, env: Any) -> None:
        """Initialize the wrapper class of the package."""
        raise NotImplementedError

    def _mode_of(self, env: Any, autoreset: Autoreset | None) -> Autoreset:
        """Return how the environment resets itself."""
        raise NotImplementedError

    def _spaces_of(self, env: Any) -> tuple[Any, Any]:
        """Return the observation space and the action space of one sub-environment."""
        return env.observation_space, env.action_space

    def _count_of(self, env: Any) -> int:
        """Return the number of sub-environments."""
        return int(env.num_envs)

    def _described(self, env: Any) -> tuple[str | None, Any]:
        """Return the id of the environment, and how it was made, as JSON."""
        return describe_spec(env)

    def _render_all(self) -> Sequence[Any]:
        """Return a picture of each sub-environment."""
        raise NotImplementedError

    def _streams(self) -> "Iterable[EpisodeStream]":
        return self._recording.streams

    def _rows(self, observations: Any, places: Iterable[int]) -> list[Any]:
        """Return copies of the observations of some sub-environments."""
        batch = self._seen(observations)
        return [row_of(batch, place) for place in places]

    def _action_rows(self, actions: Any, count: int) -> list[Any]:
        """Return copies of the actions of `count` sub-environments."""
        batch = kept_or_refused("action", self._spaces[1], actions, self._refusals, self._casting)
        return [row_of(batch, place) for place in range(count)]

    def _results(
        self, envs: Sequence[int], found: Sequence[Any], infos: Sequence[dict[str, Any]]
    ) -> "list[StepResult]":
        """Return what `step` of a vector returned, for each of `envs`; so has `infos`."""
        observations, rewards, terminated, truncated, _ = found
        seen = self._rows(observations, range(len(infos)))
        results = []
        for place, (env, info) in enumerate(zip(envs, infos, strict=True)):
            is_terminated = self._flag(env, "terminated", terminated[place])
            is_truncated = self._flag(env, "truncated", truncated[place])
            is_over = is_terminated or is_truncated
            final, step_info, reset_info = split_final(info, is_over=is_over)
            results.append(
                StepResult(
                    seen[place],
                    rewards[place],
                    is_terminated,
                    is_truncated,
                    step_info,
                    self._final(final),
                    reset_info,
                )
            )
        return results

    def _flag(self, env: int, name: str, value: Any) -> bool:
        """Return whether the episode of a sub-environment has ended.

        If the environment does not say, it may go on or not, so nothing further of it is recorded.
        """
        try:
            return as_flag(name, value)
        except InvalidTypeError as error:
            # After an error that is raised, nothing of this step of a vector is recorded.
            self._recording.lose(None if self._refusals is None else [env])
            if self._refusals is None or not self._refusals.take(error):
                raise
            return False

    def _final(self, observation: Any) -> Any:
        """Return the last observation of an episode with the dtype that others of it have."""
        if observation is None or self._casting == "space":
            return None if observation is None else self._seen(observation)
        return kept_or_refused(
            "observation", self._spaces[0], observation, self._refusals, "same_kind"
        )

    def _seen(self, observation: Any) -> Any:
        """Return a copy of an observation, or of those of a vector."""
        try:
            return kept_or_refused(
                "observation", self._spaces[0], observation, self._refusals, self._casting
            )
        except Exception:
            self._recording.lose()
            raise


class RecordEnv(Record, gymnasium.Wrapper):  # type: ignore[misc, name-defined]
    """A single environment that is recorded."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the environment, which begins an episode."""
        self._recording.before_reset([0], options)
        observation, info = self.env.reset(seed=seed, options=options)
        self._recording.expect([0], [seed])
        self._recording.begin([0], [self._seen(observation)], [info])
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment, and record it."""
        recording = self._recording
        stream = recording.streams[0]
        is_open = stream.state == "open"
        if stream.state == "ended":
            raise InvalidError(
                "the episode has ended",
                hint="call reset() before step(), or pass autoreset= if the environment resets "
                "itself",
            )
        chosen = action
        if type(action) is not np.int64 or self._casting != "safe":
            chosen = kept_or_refused(
                "action", self._spaces[1], action, self._refusals, self._casting
            )
        if is_open and recording.frames.kind is None:
            stream.choose(chosen)
        else:
            recording.before_step([0], [chosen])
        try:
            found = self.env.step(action)
            observation, reward, terminated, truncated, info = found
            seen = self._seen(observation)
            if is_open and not (terminated or truncated or recording.mode == "same_step"):
                # Most steps, which need nothing of what follows.
                stream.step(reward, terminated=False, truncated=False, info=info, observation=seen)
                return found  # type: ignore[no-any-return]
            final, step_info, reset_info = None, info, None
            is_terminated = self._flag(0, "terminated", terminated)
            is_truncated = self._flag(0, "truncated", truncated)
            if recording.mode == "same_step":
                is_over = is_terminated or is_truncated
                final, step_info, reset_info = split_final(dict(info), is_over=is_over)
            result = StepResult(
                seen,
                reward,
                is_terminated,
                is_truncated,
                step_info,
                self._final(final),
                reset_info,
            )
            recording.step([0], [result])
        except Exception:
            raise
        except BaseException:  # Ctrl-C: what the step led to is not known, or not recorded
            recording.lose()
            raise
        return found  # type: ignore[no-any-return]

    def _wrap(self, env: Any) -> None:
        gymnasium.Wrapper.__init__(self, env)

    def _close_env(self, **options: Any) -> None:
        gymnasium.Wrapper.close(self, **options)

    def _mode_of(self, env: Any, autoreset: Autoreset | None) -> Autoreset:
        found = autoreset or (getattr(env, "metadata", None) or {}).get(MODE)
        if found is not None:
            return as_mode(found)
        inner = env
        while isinstance(inner, gymnasium.Wrapper):
            if isinstance(inner, gymnasium.wrappers.Autoreset):
                return "next_step"
            inner = inner.env
        return "disabled"

    def _count_of(self, env: Any) -> int:  # noqa: ARG002 - a single environment has no number
        return 1

    def _render_all(self) -> Sequence[Any]:
        return [self.env.render()]


class VectorMethods(Record, gymnasium.vector.VectorWrapper):  # type: ignore[misc, name-defined]
    """What all vectors of Gymnasium have."""

    def _wrap(self, env: Any) -> None:
        gymnasium.vector.VectorWrapper.__init__(self, env)

    def _close_env(self, **options: Any) -> None:
        gymnasium.vector.VectorWrapper.close(self, **options)

    def _mode_of(self, env: Any, autoreset: Autoreset | None) -> Autoreset:
        metadata = env.metadata or {}
        if metadata is gymnasium.vector.VectorEnv.metadata:
            # All classes that do not have their own share this dict, and some write to it.
            metadata = {MODE: getattr(env.unwrapped, MODE, None)}
        found = autoreset or metadata.get(MODE)
        if found is None:
            raise InvalidError(
                f"it is not known how {env} resets its sub-environments: its metadata has no "
                f"`{MODE}`",
                hint='pass autoreset="next_step", "same_step" or "disabled"',
            )
        return as_mode(found)

    def _spaces_of(self, env: Any) -> tuple[Any, Any]:
        return env.single_observation_space, env.single_action_space

    def _render_all(self) -> Sequence[Any]:
        return tuple(self.env.render() or ())


class RecordVectorEnv(VectorMethods):
    """A vector of environments that is recorded."""

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the sub-environments, or those of `options["reset_mask"]`."""
        count = self.num_envs
        envs = masked(options, count)
        self._recording.before_reset(envs, options)
        observations, infos = self.env.reset(seed=seed, options=options)
        self._recording.expect(envs, self._seeds(seed, envs))
        found = [split_info(infos, env, count) for env in envs]
        self._recording.begin(envs, self._rows(observations, envs), found)
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all sub-environments, and record them."""
        count = self.num_envs
        self._recording.before_step(range(count), self._action_rows(actions, count))
        with self._recording:
            found = self.env.step(actions)
            infos = [split_info(found[-1], env, count) for env in range(count)]
            self._recording.step(range(count), self._results(range(count), found, infos))
        return found  # type: ignore[no-any-return]

    def _seeds(self, seed: Any, envs: Sequence[int]) -> list[Any]:
        """Return the seed of each sub-environment."""
        if isinstance(seed, Sequence | np.ndarray):
            return [seed[env] for env in envs]
        vectors = gymnasium.vector.SyncVectorEnv, gymnasium.vector.AsyncVectorEnv
        is_counted = seed is not None and isinstance(self.unwrapped, vectors)
        return [seed + env if is_counted else seed for env in envs]


def warn_instead(recorder: ReplayRecorder) -> Refusals:
    """Let a recorder leave out what it cannot store of infos, and return what warns of that."""
    refusals = Refusals(recorder.run_id)
    recorder._skip_infos(refusals.take)  # noqa: SLF001 - our own
    return refusals


def kept_or_refused(
    name: str,
    space: Any,
    value: Any,
    refusals: Refusals | None,
    casting: Casting = "safe",
) -> Any:
    """Return a copy as `kept` does, or, with `refusals`, what the recorder refuses."""
    try:
        return kept(space, value, casting, name)
    except ReliveError as error:
        if refusals is None:
            raise
        return _Refused(error)
    except Exception:
        if refusals is None:
            raise
        return value


class _Refused:
    """A value, or a row of values, whose error is raised by the recorder that reads it."""

    def __init__(self, error: ReliveError) -> None:
        self._error = error

    def __getitem__(self, place: int) -> "_Refused":
        return self

    def __array__(self, *args: object, **options: object) -> NoReturn:
        raise self._error


def masked(options: Mapping[str, Any] | None, count: int) -> Sequence[int]:
    """Return the sub-environments that are reset."""
    mask = None if options is None else options.get(MASK)
    if isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == (count,):
        return numbers_of(np.flatnonzero(mask))
    return range(count)


def numbers_of(envs: Any) -> list[int]:
    """Return the numbers of sub-environments as a list."""
    return [int(env) for env in np.atleast_1d(np.asarray(envs))]
