"""The arguments of a stream, checked."""

from dataclasses import dataclass
from typing import Final, Literal

from relive._arguments import as_bool, as_int, check_choice
from relive.errors import InvalidError
from relive.publish.read.stream.shard import ShardLike, as_shard

TAILS: Final = ("keep", "drop", "pad", "error")
_MAX_AHEAD: Final = 64


@dataclass(frozen=True)
class StreamOptions:
    """The arguments of a stream; see `Table.batches`."""

    batch_size: int
    limit: int | None
    prefetch: int | None
    """Steps of about 8 MiB to fetch ahead; None for `"auto"`."""
    rank: int
    world_size: int
    shuffle: bool
    seed: int
    window: int | None
    partitions: int | None
    tail: str

    @property
    def span(self) -> int:
        """The number of rows of all ranks in a step."""
        return self.batch_size * self.world_size


def stream_options(
    batch_size: int,
    *,
    filtered: bool,
    limit: int | None = None,
    prefetch: int | Literal["auto"] = "auto",
    shard: ShardLike = None,
    shuffle: bool = False,
    seed: int = 0,
    window: int | None = None,
    partitions: int | None = None,
    tail: str = "keep",
) -> StreamOptions:
    """Check the arguments of a stream; the environment may decide `shard`."""
    check_choice("tail", tail, TAILS)
    if filtered and tail != "keep":
        raise InvalidError(
            f"tail={tail!r} is not possible with a filter: the number of rows is not known",
            hint='use tail="keep"',
        )
    is_shuffled = as_bool("shuffle", shuffle)
    if window is not None and not is_shuffled:
        raise InvalidError("`window` requires shuffle=True: rows in order are not shuffled")
    rank, world_size = as_shard(shard)
    return StreamOptions(
        batch_size=as_int("batch_size", batch_size, at_least=1),
        limit=None if limit is None else as_int("limit", limit),
        prefetch=None if prefetch == "auto" else as_int("prefetch", prefetch, at_most=_MAX_AHEAD),
        rank=rank,
        world_size=world_size,
        shuffle=is_shuffled,
        seed=as_int("seed", seed),
        window=None if window is None else as_int("window", window, at_least=1),
        partitions=None if partitions is None else as_int("partitions", partitions, at_least=1),
        tail=tail,
    )
