"""Which wrapper an environment needs."""

import sys
from typing import Any

from relive._arguments import type_name
from relive._extras import require
from relive.errors import InvalidTypeError, UnsupportedError
from relive.replay.gym.pools import RecordEnvPool, RecordVectorPool, is_envpool
from relive.replay.gym.vec_env import vec_env_class
from relive.replay.gym.wrappers import Record, RecordEnv, RecordVectorEnv

gymnasium = require("gymnasium", extra="replay", to="record environments")


def wrapper_class(env: Any) -> type[Record]:
    """Return the wrapper that an environment needs."""
    classes = type(env).__mro__
    for cls in classes:
        if cls.__name__ == "VecEnv" and cls.__module__.startswith("stable_baselines3."):
            return vec_env_class(sys.modules[cls.__module__].VecEnvWrapper)
    is_vector = isinstance(env, gymnasium.vector.VectorEnv)
    if is_envpool(env):
        if not any(cls.__name__ == "GymnasiumEnvPoolMixin" for cls in classes):
            raise UnsupportedError(
                f"only an EnvPool of Gymnasium can be recorded, got {type_name(type(env))}",
                hint='make it with env_type="gymnasium"',
            )
        return RecordVectorPool if is_vector else RecordEnvPool
    if is_vector:
        is_pool = callable(getattr(env, "send", None)) and callable(getattr(env, "recv", None))
        return RecordVectorPool if is_pool else RecordVectorEnv
    if isinstance(env, gymnasium.Env):
        return RecordEnv
    hint = "make it with gymnasium.make() or gymnasium.make_vec()"
    if any(cls.__module__.startswith("pettingzoo.") for cls in classes):
        hint = "use relive.replay.pettingzoo.RecordParallel"
    raise InvalidTypeError(
        f"`env` must be an environment of Gymnasium, got {type_name(type(env))}", hint=hint
    )
