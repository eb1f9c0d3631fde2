"""Transforms of signals and of episodes; values are computed when they are read."""

from relive.episodes.transforms.combine import combine, join, stack
from relive.episodes.transforms.episodes import (
    Transform,
    change,
    derive,
    drop,
    group,
    rename,
    resample_every,
    select,
)
from relive.episodes.transforms.offsets import index_offsets, rate, time_offsets
from relive.episodes.transforms.values import astype, crop, map_values, pick
from relive.episodes.transforms.wrapped import record_times, shift

__all__ = [
    "Transform",
    "astype",
    "change",
    "combine",
    "crop",
    "derive",
    "drop",
    "group",
    "index_offsets",
    "join",
    "map_values",
    "pick",
    "rate",
    "record_times",
    "rename",
    "resample_every",
    "select",
    "shift",
    "stack",
    "time_offsets",
]
