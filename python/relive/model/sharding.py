"""Which share of the stream is this process's: rank and world size."""

import os
from collections.abc import Mapping

from relive._arguments import as_int
from relive.errors import InvalidError

__all__ = ["check_shared", "shard"]


def shard(
    rank: int | None, world_size: int | None, environ: Mapping[str, str] = os.environ
) -> tuple[int, int]:
    """Give rank and world size; what is None comes from `RANK` and `WORLD_SIZE`.

    Without either variable there is one rank. One without the other is an error: guessing
    would make ranks train on the same samples.
    """
    if rank is not None and world_size is not None:
        return as_int("rank", rank), as_int("world_size", world_size)
    if (rank is None) != (world_size is None):
        raise InvalidError("rank and world_size go together", hint="give both, or neither")
    found = {name: environ[name] for name in ("RANK", "WORLD_SIZE") if environ.get(name)}
    if not found:
        return 0, 1
    if len(found) == 1:
        (name,) = found
        raise InvalidError(
            f"{name} is set and {'RANK' if name == 'WORLD_SIZE' else 'WORLD_SIZE'} is not",
            hint="set both, as torchrun does, or pass rank= and world_size=",
        )
    try:
        own, world = int(found["RANK"]), int(found["WORLD_SIZE"])
    except ValueError as error:
        raise InvalidError(f"RANK and WORLD_SIZE must be integers: {error}") from None
    if not 0 <= own < world:
        raise InvalidError(f"RANK={own} is outside of WORLD_SIZE={world}")
    return own, world


def check_shared(world_size: int, environ: Mapping[str, str] = os.environ) -> None:
    """Refuse a sampler for one process where there are several: all would draw the same."""
    said = environ.get("WORLD_SIZE", "")
    if world_size == 1 and said.isdecimal() and int(said) > 1:
        raise InvalidError(
            f"the sampler has world_size=1, and the environment has WORLD_SIZE={said}",
            hint="make the Sampler with rank= and world_size=",
        )
