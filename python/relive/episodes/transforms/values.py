"""Signals whose values are made by a function from those of other signals."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive.episodes.transforms.function import Function
from relive.episodes.transforms.wrapped import WrappedSignal, check_signal, frozen, kind_of
from relive.errors import InvalidError
from relive.model.schema import DType, Field
from relive.model.signal import Signal, copied
from relive.model.source import Rows

__all__ = ["MappedSignal", "map_values", "record_bytes", "type_of"]

_BATCH_BYTES: Final = 64 << 20
_SMALL_BATCH: Final = 32
_TEXT_BYTES: Final = 64


def map_values(
    signal: Signal[Any],
    function: Callable[[Any], Any],
    *,
    batched: bool = True,
    dtype: npt.DTypeLike | None = None,
    shape: Sequence[int] | None = None,
    attrs: Mapping[str, Any] | None = None,
) -> Signal[Any]:
    """Give a signal with the same times, whose values a function makes when they are read.

    Args:
        signal: Where values come from.
        function: Gets an array with one value per record along the first axis, gives as many
            values, and treats each record alike whatever else is in the batch.
        batched: False calls the function on one value at a time.
        dtype: What the values are; by default that of the first values made.
        shape: The shape of one value; by default that of the first values made.
        attrs: What to say about the result; by default what was said about `signal`.
    """
    made = Function(function, batched=batched, **type_of(dtype, shape))
    return MappedSignal((check_signal(signal),), made, attrs)


class MappedSignal(WrappedSignal):
    """A signal with the times of its sources, which are the same, and values made of theirs."""

    def __init__(
        self,
        sources: tuple[Signal[Any], ...],
        function: Function,
        attrs: Mapping[str, Any] | None = None,
    ) -> None:
        self._sources = sources
        self._function = function
        self._attrs = None if attrs is None else dict(attrs)

    @property
    def sources(self) -> tuple[Signal[Any], ...]:
        """The signals that values are made of, at the same times."""
        return self._sources

    @property
    def frame(self) -> Signal[Any]:
        """The first source."""
        return self.sources[0]

    @property
    def attrs(self) -> Mapping[str, Any]:
        """What was said about the result, or else about the source."""
        return self.frame.attrs if self._attrs is None else dict(copied(self._attrs))

    @property
    def kind(self) -> str:
        """What a value is."""
        return kind_of(*self._type())

    @property
    def dtype(self) -> DType:
        """The dtype of one value; reads a record where nothing was read yet."""
        return self._type()[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one value; reads a record where nothing was read yet."""
        return self._type()[1]

    def values_at(self, rows: Rows, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Give values, made a batch at a time, so that large records take little memory."""
        count = len(rows)
        if not count:
            return self._room(0) if out is None else out
        step = count if count <= _SMALL_BATCH else _BATCH_BYTES // self._source_bytes() or 1
        if out is None and step >= count:
            return self._make(rows)
        for start in range(0, count, step):
            made = self._make(rows[start : start + step])
            if out is None:
                out = self._room(count)
            out[start : start + step] = made
        assert out is not None  # noqa: S101 - there is at least one batch
        return out

    def iterate(self, rows: Rows) -> Iterator[Any]:
        """Give values one after the other; images are decoded once each."""
        if not any(source.kind == "image" for source in self.sources):
            yield from super().iterate(rows) if len(rows) else ()
            return
        step = self._batch_rows()
        records = zip(*(source.iterate(rows) for source in self.sources), strict=True)
        while batch := list(islice(records, step)):
            yield from self._function(tuple(map(_together, zip(*batch, strict=True))))

    def _batch_rows(self) -> int:
        if not len(self):
            return 1
        step = max(1, _BATCH_BYTES // 16 // self._source_bytes())
        return min(step, super()._batch_rows())

    def _source_bytes(self) -> int:
        return sum(map(record_bytes, self.sources))

    def _make(self, rows: Rows) -> npt.NDArray[Any]:
        return self._function(tuple(frozen(source.values_at(rows)) for source in self.sources))

    def _room(self, count: int) -> npt.NDArray[Any]:
        dtype, shape = self._type()
        return np.empty((count, *shape), dtype=dtype if isinstance(dtype, np.dtype) else object)

    def _type(self) -> tuple[DType, tuple[int, ...]]:
        found = self._function.type
        if found is None:
            first = range(min(1, len(self)))
            batches = tuple(source.values_at(first) for source in self.sources)
            found = self._function.find_type(batches)
        return found


def record_bytes(signal: Signal[Any]) -> int:
    """Give about how many bytes a value of the signal takes."""
    size = Field(signal.dtype, signal.shape).nbytes
    return _TEXT_BYTES if size is None else max(1, size)


def _together(values: Sequence[Any]) -> npt.NDArray[Any]:
    if isinstance(values[0], str):
        return np.array(values, dtype=object)
    return np.stack(values)


def type_of(dtype: npt.DTypeLike | None, shape: Sequence[int] | None) -> dict[str, Any]:
    """Give the arguments of `Function` for a dtype and a shape that a caller gave."""
    given = None if dtype is None else Field(dtype)
    if given is not None and (given.shape or given.dtype in ("bytes", "json")):
        raise InvalidError(f"a signal cannot hold values of {dtype!r}")
    return {
        "dtype": None if given is None else given.dtype,
        "shape": None if shape is None else Field(np.uint8, shape).shape,
    }
