"""Transforms: signals made of signals, and episodes made of episodes, when they are read."""

from relive.record.transforms.aligned import combine, join, stack
from relive.record.transforms.episodes import (
    change,
    derive,
    drop,
    group,
    rename,
    resample_every,
    select,
)
from relive.record.transforms.mapped import map_values
from relive.record.transforms.offsets import index_offsets, rate, time_offsets
from relive.record.transforms.parts import astype, crop, pick
from relive.record.transforms.transformed import Transform
from relive.record.transforms.wrapped import record_times, shift

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
