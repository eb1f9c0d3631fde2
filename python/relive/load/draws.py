"""Which rows come next, with what must be known about them to resume after them."""

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from relive.errors import InvalidError, OutOfRangeError
from relive.model.source import IndexArray, as_indices

if TYPE_CHECKING:
    from relive import _native

__all__ = ["CustomDraws", "Drawn", "NativeDraws", "Place", "SamplerDraws", "Ticket", "resume"]


@dataclass(slots=True, frozen=True)
class Ticket:
    """One batch to be made, and what must be known to resume after it."""

    payload: Any
    first: int
    """Global position of the first sample."""
    after: Any
    """Where the stream stands once this batch was handed out."""


class Drawn(NamedTuple):
    """The rows of one batch, and which of its samples are not padding."""

    rows: IndexArray
    mask: npt.NDArray[np.bool_] | None


class SamplerDraws:
    """Draws from the core's sampler."""

    def __init__(self, sampler: "_native.Sampler", *, masked: bool) -> None:
        self._sampler = sampler
        self._masked = masked

    def __call__(self) -> Ticket | None:
        """Draw the next batch; None at the end."""
        drawn = self._sampler.draw()
        if drawn is None:
            return None
        rows, padded, first = drawn
        mask = np.arange(len(rows)) < len(rows) - padded if self._masked else None
        return Ticket(Drawn(rows, mask), first, self._sampler.cursor)


class Place(NamedTuple):
    """Where a sampler of the user's own stands."""

    state: Any
    """Its state; None if it has none."""
    position: int
    """Samples drawn from it so far, which seed the transform."""

    @classmethod
    def of(cls, sampler: object, position: int = 0) -> "Place":
        """Read where a sampler stands. A copy: it may give one dict that it goes on changing."""
        read: Callable[[], Any] | None = getattr(sampler, "state_dict", None)
        return cls(None if read is None else copy.deepcopy(read()), position)


def resume(sampler: object, place: Place) -> Place:
    """Bring a sampler back to a place, for it has drawn batches nobody was given.

    Gives where it then stands: one that cannot be set starts over, unless it is an iterator.
    """
    load = getattr(sampler, "load_state_dict", None)
    if load is not None and place.state is not None:
        load(copy.deepcopy(place.state))
        return place
    return place if isinstance(sampler, Iterator) else place._replace(position=0)


class CustomDraws:
    """Draws from any iterable of index arrays, such as a sampler of the user's own."""

    def __init__(self, sampler: Iterable[npt.ArrayLike], length: int, position: int) -> None:
        self._sampler = sampler
        self._batches: Iterator[npt.ArrayLike] = iter(sampler)
        self._length = length
        self._position = position

    def __call__(self) -> Ticket | None:
        """Draw the next batch; None at the end."""
        try:
            batch = next(self._batches)
        except StopIteration:
            return None
        try:
            rows = as_indices(batch, self._length)
        except OutOfRangeError as error:
            raise OutOfRangeError(f"the sampler drew a bad batch: {error.message}") from None
        if rows.ndim == 0:
            raise InvalidError(
                f"a sampler gives a batch of indices at a time, and gave the single index {rows}",
                hint="wrap it in torch.utils.data.BatchSampler, or yield arrays",
            )
        first = self._position
        self._position += len(rows)
        after = Place.of(self._sampler, self._position)
        # A copy: the sampler may use its array again while this batch is being read.
        return Ticket(Drawn(rows.copy(), None), first, after)


class NativeDraws:
    """Takes batches that the core has gathered, to be worked on further."""

    def __init__(self, batches: "_native.Prefetch") -> None:
        self._batches = batches

    def __call__(self) -> Ticket | None:
        """Take the next batch; None at the end."""
        batch = self._batches.next()
        if batch is None:
            return None
        return Ticket(batch, self._batches.first, self._batches.cursor)
