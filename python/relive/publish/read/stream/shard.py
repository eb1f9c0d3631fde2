"""Which share of a stream this process reads: `shard=`."""

import os
from collections.abc import Mapping
from typing import Literal, TypeAlias

from relive._arguments import as_int
from relive.errors import InvalidError, InvalidTypeError
from relive.model import sharding

ShardLike: TypeAlias = tuple[int, int] | Literal["auto"] | None
"""Rank and world size; `"auto"` for those of the environment; None for all rows."""

_FORMS = 'use shard=(rank, world_size), shard="auto", or None for all rows'
_IN_ENVIRONMENT = "set both, as torchrun does, or pass shard=(rank, world_size)"


def as_shard(shard: ShardLike, environ: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Return rank and world size.

    `"auto"` takes `RANK` and `WORLD_SIZE`, else `LOCAL_RANK` and `LOCAL_WORLD_SIZE`, else
    everything. One variable without the other is an error: a guess could make several ranks
    train on the same rows.
    """
    if shard is None:
        return 0, 1
    if isinstance(shard, str):
        if shard != "auto":
            raise InvalidError(f"unknown `shard` {shard!r}", hint=_FORMS)
        return _from_environment(environ)
    if not isinstance(shard, tuple | list) or len(shard) != 2:  # noqa: PLR2004 - a pair
        raise InvalidTypeError(f"`shard` must be a pair of integers, got {shard!r}", hint=_FORMS)
    rank, world_size = as_int("rank", shard[0]), as_int("world_size", shard[1], at_least=1)
    if rank >= world_size:
        raise InvalidError(
            f"the rank must be from 0 to world_size - 1, got shard={shard!r}", hint=_FORMS
        )
    return rank, world_size


def _from_environment(environ: Mapping[str, str]) -> tuple[int, int]:
    if environ.get("RANK") or environ.get("WORLD_SIZE"):
        try:
            return sharding.shard(None, None, environ)
        except InvalidError as error:
            raise InvalidError(error.message, hint=error.hint and _IN_ENVIRONMENT) from None
    local = environ.get("LOCAL_RANK"), environ.get("LOCAL_WORLD_SIZE")
    if not any(local):
        return 0, 1
    if not all(local):
        names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE")
        found, missing = names if local[0] else reversed(names)
        raise InvalidError(
            f"{found} is set, but {missing} is not",
            hint=_IN_ENVIRONMENT,
        )
    try:
        rank, world_size = (int(value or "") for value in local)
    except ValueError as error:
        raise InvalidError(f"LOCAL_RANK and LOCAL_WORLD_SIZE must be integers: {error}") from None
    if not 0 <= rank < world_size:
        raise InvalidError(
            "LOCAL_RANK must be from 0 to LOCAL_WORLD_SIZE - 1, "
            f"got LOCAL_RANK={rank}, LOCAL_WORLD_SIZE={world_size}"
        )
    return rank, world_size
