"""Rank and world size: which share of a stream is read by this process."""

import os
from collections.abc import Mapping

from relive._arguments import as_int
from relive.errors import InvalidError


def shard(
    rank: int | None, world_size: int | None, environ: Mapping[str, str] = os.environ
) -> tuple[int, int]:
    """Return rank and world size, from `RANK` and `WORLD_SIZE` if both arguments are None.

    Without either variable there is one rank. One without the other is an error: a guess
    could make several ranks train on the same samples.
    """
    if rank is not None and world_size is not None:
        return as_int("rank", rank), as_int("world_size", world_size)
    if (rank is None) != (world_size is None):
        raise InvalidError("`rank` and `world_size` must be passed together")
    found = {name: environ[name] for name in ("RANK", "WORLD_SIZE") if environ.get(name)}
    if not found:
        return 0, 1
    if len(found) == 1:
        (name,) = found
        raise InvalidError(
            f"{name} is set, but {'RANK' if name == 'WORLD_SIZE' else 'WORLD_SIZE'} is not",
            hint="set both, as torchrun does, or pass rank= and world_size=",
        )
    try:
        own, world = int(found["RANK"]), int(found["WORLD_SIZE"])
    except ValueError as error:
        raise InvalidError(f"RANK and WORLD_SIZE must be integers: {error}") from None
    if not 0 <= own < world:
        raise InvalidError(
            f"RANK must be from 0 to WORLD_SIZE - 1, got RANK={own}, WORLD_SIZE={world}"
        )
    return own, world


def check_shared(world_size: int, environ: Mapping[str, str] = os.environ) -> None:
    """Raise if a sampler for one process is used in several: all would draw the same samples."""
    world = environ.get("WORLD_SIZE", "")
    if world_size == 1 and world.isdecimal() and int(world) > 1:
        raise InvalidError(
            f"the sampler has world_size=1, but the environment has WORLD_SIZE={world}",
            hint="pass rank= and world_size= to the Sampler",
        )
