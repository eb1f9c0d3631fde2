"""What a loader was given, made into named sources."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from relive._arguments import type_name
from relive.errors import InvalidError, InvalidTypeError
from relive.model.ragged import Ragged
from relive.model.source import Source
from relive.store.arrays import ArrayLike, ArraySource

__all__ = ["Input", "SourceLike", "common_length", "inputs"]

SourceLike: TypeAlias = Source | ArrayLike
"""A source, or what `ArraySource` makes one of."""

_POSITIONAL: Final = ("data", "label")


@dataclass(slots=True, frozen=True)
class Input:
    """A source and where its fields go in a batch."""

    source: Source
    names: dict[str, tuple[str | None, str]]
    """Field → the dict inside the batch it goes to, or None for the batch, and its name."""


def inputs(sources: tuple[SourceLike | Mapping[str, SourceLike], ...]) -> list[Input]:
    """Name the fields of every source as batches will have them.

    One source gives its own fields. Two give `data` and `label`, a dict gives its keys: each
    the single field of its source, or a dict of its fields.
    """
    if not sources:
        raise InvalidError("a loader needs a source", hint="DataLoader(source, batch_size=256)")
    if len(sources) > len(_POSITIONAL):
        raise InvalidError(
            f"{len(sources)} sources were given by position, and only `data` and `label` have a "
            "name there",
            hint="pass one dict: DataLoader({'image': a, 'state': b, 'action': c})",
        )
    if len(sources) == 1:
        (only,) = sources
        if not isinstance(only, Mapping):
            source = _as_source("source", only)
            return [Input(source, {field: (None, field) for field in source.fields})]
        named = dict[str, Any](only)
    else:
        named = dict[str, Any](zip(_POSITIONAL, sources, strict=False))
    if not named:
        raise InvalidError("a loader needs a source, and the dict is empty")
    return [_named(name, value) for name, value in named.items()]


def common_length(given: list[Input]) -> int:
    """Give the number of rows that all sources have."""
    lengths = [len(entry.source) for entry in given]
    if len(set(lengths)) > 1:
        text = ", ".join(
            f"{_label(entry)} has {length}" for entry, length in zip(given, lengths, strict=True)
        )
        raise InvalidError(f"all sources need the same number of rows: {text}")
    if lengths[0] == 0:
        raise InvalidError("the source is empty: there is nothing to load")
    return lengths[0]


def _named(name: object, value: Any) -> Input:
    if not isinstance(name, str) or not name:
        raise InvalidTypeError(f"a source is named by a string, not {name!r}")
    source = _as_source(name, value)
    if len(source.fields) == 1:
        (field,) = source.fields
        return Input(source, {field: (None, name)})
    return Input(source, {field: (name, field) for field in source.fields})


def _as_source(name: str, value: Any) -> Source:
    if isinstance(value, Source):
        return value
    if isinstance(value, np.ndarray | Ragged | str | os.PathLike | Mapping) or any(
        hasattr(value, name) for name in ("__array__", "__array_interface__")
    ):
        return ArraySource(value)
    raise InvalidTypeError(
        f"{name}: {type_name(type(value))} is not a source",
        hint="give an array, a dict of arrays, the path of a .npy file, or a relive Source "
        "(subclass relive.Source with fields, __len__ and gather)",
    )


def _label(entry: Input) -> str:
    group, name = next(iter(entry.names.values()))
    return repr(group or name)
