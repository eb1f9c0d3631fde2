"""Batches of arrays made into batches of what a framework calls arrays."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from relive.errors import InvalidTypeError
from relive.load.streams import Stream
from relive.model.ragged import Ragged

__all__ = ["ConvertedStream", "convert"]


class ConvertedStream:
    """A stream whose batches go through a function when they are handed out."""

    def __init__(self, stream: Stream, function: Callable[[Any], Any]) -> None:
        self._stream = stream
        self._function = function

    @property
    def cursor(self) -> Any:
        """Where the stream stands."""
        return self._stream.cursor

    def next(self) -> Any:
        """Give the next batch; None at the end."""
        batch = self._stream.next()
        return None if batch is None else self._function(batch)

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()


def convert(value: Any, leaf: Callable[[Any, str], Any], name: str = "batch") -> Any:
    """Put every array in nested dicts, lists, tuples and namedtuples through `leaf`.

    It is called as `leaf(array, name)`.

    A `Ragged` becomes a dict of its `values` and `offsets`. What is neither goes to `leaf` as
    well, which may know it.
    """
    if isinstance(value, np.ndarray):
        return leaf(value, name)
    if isinstance(value, Mapping):
        items = list(value.items())
        made = {key: convert(inner, leaf, str(key)) for key, inner in items}
        # A framework's own mapping without arrays, such as a TensorDict, stays what it is.
        known = not isinstance(value, dict) and all(made[key] is inner for key, inner in items)
        return value if known else made
    if isinstance(value, Ragged):
        if value.shapes is not None:
            raise InvalidTypeError(
                f"{name!r} has rows with several variable dimensions, which no array holds",
                hint="pad it in a transform: batch[name].pad()",
            )
        return {"values": leaf(value.values, name), "offsets": leaf(value.offsets, name)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        made_of = zip(value._fields, value, strict=True)
        return type(value)(*(convert(inner, leaf, field) for field, inner in made_of))
    if type(value) in (list, tuple):
        return type(value)(convert(inner, leaf, name) for inner in value)
    return leaf(value, name)
