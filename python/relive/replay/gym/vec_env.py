"""A wrapper that records a `VecEnv` of Stable-Baselines3."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final

from relive.errors import InvalidError
from relive.replay.gym.recording import Autoreset, StepResult, as_mode
from relive.replay.gym.wrappers import Record

_SB3_FINAL: Final = "terminal_observation"
_SB3_TRUNCATED: Final = "TimeLimit.truncated"


class VecEnvMethods(Record):
    """A `VecEnv` of Stable-Baselines3 that is recorded, without its base class."""

    venv: Any
    num_envs: int
    _given_seeds: Sequence[Any] | None = None
    _given_options: Any = None

    def reset(self) -> Any:
        """Reset all sub-environments, which begins episodes."""
        count = self.num_envs
        envs = range(count)
        seeds = self._given_seeds or [None] * count
        self._recording.before_reset(envs, self._given_options)
        observations = self.venv.reset()
        self._given_seeds = self._given_options = None
        self._recording.expect(envs, seeds)
        self._recording.begin(envs, self._rows(observations, envs), self._reset_infos())
        return observations

    def step_async(self, actions: Any) -> None:
        """Start a step of all sub-environments."""
        count = self.num_envs
        self._recording.before_step(range(count), self._action_rows(actions, count))
        self.venv.step_async(actions)

    def step_wait(self) -> tuple[Any, Any, Any, Any]:
        """Wait for the step, and record it."""
        with self._recording:
            found = self.venv.step_wait()
            observations, rewards, dones, infos = found
            seen, reset_infos = self._rows(observations, range(len(infos))), self._reset_infos()
            results = []
            for place, info in enumerate(infos):
                is_over = self._flag(place, "dones", dones[place])
                is_cut = self._flag(place, _SB3_TRUNCATED, info.get(_SB3_TRUNCATED))
                kept_info = {
                    key: value
                    for key, value in info.items()
                    if key not in {_SB3_TRUNCATED, _SB3_FINAL}
                }
                results.append(
                    StepResult(
                        seen[place],
                        rewards[place],
                        is_over and not is_cut,
                        is_over and is_cut,
                        kept_info,
                        self._final(info.get(_SB3_FINAL)),
                        reset_infos[place],
                    )
                )
            self._recording.step(range(len(infos)), results)
        return found  # type: ignore[no-any-return]

    def seed(self, seed: int | None = None) -> Sequence[Any]:
        """Set the seeds of the next reset."""
        self._given_seeds = self.venv.seed(seed)
        return self._given_seeds or []

    def set_options(self, options: Any = None) -> None:
        """Set the options of the next reset."""
        self._given_options = options
        self.venv.set_options(options)

    def _reset_infos(self) -> Sequence[Mapping[str, Any]]:
        return list(getattr(self.venv.unwrapped, "reset_infos", [{}] * self.num_envs))

    def _close_env(self, **options: Any) -> None:
        self.venv.close(**options)

    def _mode_of(self, env: Any, autoreset: Autoreset | None) -> Autoreset:  # noqa: ARG002 - all are alike
        if autoreset is not None and as_mode(autoreset) != "same_step":
            raise InvalidError(
                f"a `VecEnv` resets in the same step, but `autoreset` is {autoreset!r}",
                hint="leave it out",
            )
        return "same_step"

    def _render_all(self) -> Sequence[Any]:
        return self.venv.get_images()  # type: ignore[no-any-return]


@functools.cache
def vec_env_class(wrapper: Any) -> type[Record]:
    """Return the class that records environments of Stable-Baselines3."""

    def wrap(self: Any, env: Any) -> None:
        wrapper.__init__(self, env)

    members = {"_wrap": wrap, "__doc__": VecEnvMethods.__doc__, "__module__": __name__}
    return type("RecordVecEnv", (VecEnvMethods, wrapper), members)
