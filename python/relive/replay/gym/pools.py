"""Wrappers that record pools, whose sub-environments are handled with `send` and `recv`."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from relive._extras import require
from relive.errors import InvalidTypeError, UnsupportedError
from relive.replay.gym.recording import Autoreset, as_mode, rows_in, split_info
from relive.replay.gym.wrappers import Record, VectorMethods, masked, numbers_of
from relive.replay.storage.values import as_json

gymnasium = require("gymnasium", extra="replay", to="record environments")

_ENV_ID: Final = "env_id"


class PoolMethods(Record):
    """What pools have: `send` and `recv` handle any of their sub-environments at a time."""

    env: Any
    _last_envs: Sequence[int] = ()
    """The sub-environments that were received last."""
    _can_render = False

    def reset(self, env_id: Any = None, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Reset the sub-environments, or some of them."""
        recording = self._recording
        count = len(recording.streams)
        envs = masked(options.get("options"), count) if env_id is None else numbers_of(env_id)
        recording.before_reset(envs, options.get("options"))
        given = () if env_id is None else (env_id,)
        observations, infos = self.env.reset(*given, **options)
        recording.expect(envs, self._seeds(options.get("seed"), len(envs)))
        received = self._received(observations, infos)
        places = [place for place, env in enumerate(received) if env in set(envs)]
        found = [_without_ids(split_info(infos, place, len(received))) for place in places]
        begun = [received[place] for place in places]
        recording.begin(begun, self._rows(observations, places), found)
        return observations, infos

    def step(self, actions: Any, env_id: Any = None) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Send actions, and receive what the sub-environments return that are ready."""
        self.send(actions, env_id)
        return self.recv()

    def send(self, actions: Any, env_id: Any = None) -> None:
        """Send actions to sub-environments: all of them, those of `env_id`, or the last ones."""
        batch, envs = actions, env_id
        if isinstance(actions, Mapping) and _ENV_ID in actions:
            envs = actions[_ENV_ID]
            batch = {key: value for key, value in actions.items() if key != _ENV_ID}
            if not isinstance(self._spaces[1], gymnasium.spaces.Dict) and len(batch) == 1:
                (batch,) = batch.values()
        count = len(self._recording.streams)
        if envs is not None:
            numbers: Sequence[int] = numbers_of(envs)
        else:
            numbers = range(count) if rows_in(batch) == count else self._last_envs
        self._recording.before_step(numbers, self._action_rows(batch, len(numbers)))
        with self._recording:
            if env_id is None:
                self.env.send(actions)
            else:
                self.env.send(actions, env_id)

    def recv(self, *args: Any, **options: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Receive what sub-environments return, and record it."""
        with self._recording:
            found = self.env.recv(*args, **options)
            envs = self._received(found[0], found[-1])
            count = len(envs)
            infos = [_without_ids(split_info(found[-1], place, count)) for place in range(count)]
            self._recording.step(envs, self._results(envs, found, infos))
        return found  # type: ignore[no-any-return]

    def async_reset(self) -> None:
        """Reset all sub-environments; `recv` returns their first observations."""
        envs = range(len(self._recording.streams))
        self._recording.before_reset(envs, None)
        self.env.async_reset()
        self._recording.expect(envs, [None] * len(envs))

    def xla(self) -> Any:
        """Refuse: compiled steps are not seen by the wrapper."""
        raise UnsupportedError(
            "steps of xla() cannot be recorded", hint="use step(), or send() and recv()"
        )

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the environment."""
        if name.startswith("_") or name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    def _received(self, observations: Any, infos: Mapping[str, Any]) -> Sequence[int]:
        """Return the numbers of the sub-environments that results belong to."""
        numbers = infos.get(_ENV_ID)
        self._last_envs = range(rows_in(observations)) if numbers is None else numbers_of(numbers)
        return self._last_envs

    def _seeds(self, seed: Any, count: int) -> list[Any]:
        if seed is None or is_envpool(self.env):  # EnvPool is seeded when it is made
            return [None] * count
        if isinstance(seed, Sequence | np.ndarray):
            return list(seed)
        return [seed + place for place in range(count)]

    def _mode_of(self, env: Any, autoreset: Autoreset | None) -> Autoreset:
        if is_envpool(env):
            return "next_step" if autoreset is None else as_mode(autoreset)
        return super()._mode_of(env, autoreset)

    def _described(self, env: Any) -> tuple[str | None, Any]:
        return _describe_pool(env) if is_envpool(env) else super()._described(env)


class RecordVectorPool(PoolMethods, VectorMethods):
    """A vector of environments with `send` and `recv` that is recorded."""


class RecordEnvPool(PoolMethods):
    """An EnvPool that is recorded, of a version whose class is not a `VectorEnv`."""

    def __len__(self) -> int:
        """Return the number of sub-environments."""
        return len(self.env)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, {self.env}>"

    def _wrap(self, env: Any) -> None:
        self.env = env

    def _close_env(self, **options: Any) -> None:
        close = getattr(self.env, "close", None)
        if close is not None:
            close(**options)

    def _count_of(self, env: Any) -> int:
        return len(env)


def is_envpool(env: Any) -> bool:
    """Check whether an environment is an EnvPool."""
    return any(cls.__module__.partition(".")[0] == "envpool" for cls in type(env).__mro__)


def _describe_pool(env: Any) -> tuple[str | None, Any]:
    """Return the name of the task of an EnvPool, and its settings as JSON."""
    config = dict(env.config)
    if int(config.get("max_num_players", 1)) > 1:
        raise UnsupportedError("an EnvPool of several players cannot be recorded")
    described: dict[str, Any] = {}
    for key, value in config.items():
        try:
            described[str(key)] = as_json("config", value)
        except InvalidTypeError:
            described[str(key)] = repr(value)
    env_id = next((config[key] for key in ("task_id", "task") if config.get(key)), None)
    return (type(env).__name__ if env_id is None else str(env_id)), described


def _without_ids(info: dict[str, Any]) -> dict[str, Any]:
    """Return an info without the numbers of the sub-environments that pools put into it."""
    players = info.get("players")
    if isinstance(players, Mapping) and set(players) == {_ENV_ID}:
        del info["players"]
    info.pop(_ENV_ID, None)
    return info
