"""The batches of a user's own sampler, as a loader draws them."""

import copy
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from itertools import count, islice
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from relive._arguments import INT64_MAX, as_int, type_name
from relive.errors import InvalidError, InvalidTypeError, OutOfRangeError
from relive.load.priority import PrioritizedOrder, PrioritizedSampler
from relive.load.sampler import Draw, Sampler, check_loader_state
from relive.model.source import IndexArray, Rows, Source, as_indices

CustomBatch: TypeAlias = npt.ArrayLike | tuple[npt.ArrayLike, Mapping[str, npt.ArrayLike]]
"""Row numbers, or row numbers and arrays that join the batch."""
SamplerLike: TypeAlias = Sampler | PrioritizedSampler | Iterable[CustomBatch]
"""What a loader takes as its sampler."""
CustomCursor: TypeAlias = tuple[int, int]
"""The number of the last draw, and how many samples there were up to it, which seeds transforms."""

_RESUMABLE_HINT = "add state_dict() and load_state_dict() to it, or use relive.Sampler"


class _Kept(NamedTuple):
    """A batch of a sampler, copied: the sampler may write to its arrays afterwards."""

    rows: IndexArray
    extras: dict[str, npt.NDArray[Any]]


class CustomOrder:
    """Draws from a user's own sampler, and keeps batches until the consumer has them.

    A loader draws ahead, so a sampler is ahead of its consumer. Batches between the two are kept
    here: they are part of the state, and of the next stream after this one was closed. So the
    state of the sampler is read only when it is asked for.
    """

    def __init__(self, sampler: Iterable[CustomBatch]) -> None:
        self.sampler = sampler
        self.returned: CustomCursor = self.start
        """The cursor of the consumer; the loader sets it before it takes another batch."""
        self._numbers = count(1)
        self._batches: Iterator[tuple[int, CustomBatch]] | None = None
        # By the number of the draw; the last one may not be copied yet.
        self._pending: deque[tuple[int, Any]] = deque()
        # A signal handler may ask for the state while its own thread draws.
        self._lock = threading.RLock()

    @property
    def start(self) -> CustomCursor:
        """The cursor before the first draw."""
        return 0, 0

    @property
    def restarts(self) -> bool:
        """Whether each iteration over the loader begins the order again."""
        return not isinstance(self.sampler, Iterator)

    @property
    def ends_with_its_rows(self) -> bool:
        """Whether a stream ends when there are other rows, so that another one continues."""
        return False

    def rows_of(self, length: int, sources: Sequence[Source]) -> Rows:  # noqa: ARG002 - as of others
        """Return which rows of the sources are used, in their order."""
        return range(length)

    def draws(self, cursor: CustomCursor, length: int) -> Iterator[Draw]:
        """Draw batches from a source of `length` rows, from a cursor on."""
        with self._lock:  # the sampler's `__iter__` is called on the thread of the caller
            self._begin()
        return self._draws(cursor, length)

    def _draws(self, cursor: CustomCursor, length: int) -> Iterator[Draw]:
        number, position = cursor
        while (found := self._after(number)) is not None:
            number, (rows, extras) = found
            try:
                as_indices(rows, length)
            except OutOfRangeError as error:
                raise OutOfRangeError(
                    f"the sampler returned an invalid batch: {error.message}"
                ) from None
            first, position = position, position + len(rows)
            yield Draw(first, (number, position), rows, extras=extras)

    def _begin(self) -> Iterator[tuple[int, CustomBatch]]:
        if self._batches is None:
            self._batches = zip(self._numbers, iter(self.sampler), strict=False)
        return self._batches

    def _after(self, number: int) -> tuple[int, _Kept] | None:
        """Return the draw after one, which may have been made for an earlier stream."""
        with self._lock:
            pending = self._pending
            while pending and pending[0][0] <= self.returned[0]:
                pending.popleft()
            place = sum(found <= number for found, _ in pending)
            if place == len(pending):
                batches = self._begin()
                try:
                    # In one call, so that no signal handler runs in between and loses the batch.
                    pending.extend(islice(batches, 1))
                except BaseException:
                    self._batches = None  # a generator that raised has ended
                    raise
                if place == len(pending):
                    return None
            found, batch = pending[place]
            if not isinstance(batch, _Kept):
                batch = _kept(batch)
                pending[place] = found, batch
            return found, batch

    def state(self, cursor: CustomCursor) -> dict[str, Any]:
        """Return the state of the sampler, and the batches that it has drawn after a cursor."""
        number, position = cursor
        with self._lock:
            read = getattr(self.sampler, "state_dict", None)
            if read is None or not hasattr(self.sampler, "load_state_dict"):
                raise InvalidError("the sampler has no state to save", hint=_RESUMABLE_HINT)
            state = {"sampler": copy.deepcopy(read()), "position": position}
            if drawn := [_plain(batch) for found, batch in self._pending if found > number]:
                state["drawn"] = drawn
            return state

    def load(self, state: Mapping[str, Any]) -> CustomCursor:
        """Continue from a state, and return its cursor."""
        load = getattr(self.sampler, "load_state_dict", None)
        if load is None:
            raise InvalidError(
                "cannot resume: the sampler has no load_state_dict()", hint=_RESUMABLE_HINT
            )
        check_loader_state(state)
        position = as_int("position", state["position"])
        drawn = state.get("drawn", [])
        if not isinstance(drawn, list | tuple):
            raise InvalidTypeError(
                f"`drawn` of the state must be a list, got {type_name(type(drawn))}"
            )
        with self._lock:
            load(copy.deepcopy(state["sampler"]))
            cursor = self._dropped(position)
            self._pending.extend(zip(self._numbers, copy.deepcopy(drawn), strict=False))
            return cursor

    def restart(self) -> CustomCursor:
        """Iterate over the sampler again, and return the cursor of the start."""
        with self._lock:
            return self._dropped(0)

    def _dropped(self, position: int) -> CustomCursor:
        """Drop what was drawn, and return a cursor after it."""
        self._pending.clear()
        self._batches = None
        return next(self._numbers), position


Order: TypeAlias = CustomOrder | PrioritizedOrder
"""An order that is not that of a `Sampler`."""


def order_of(
    sampler: object, names: Iterable[str], length: int, sources: Sequence[Source]
) -> Order:
    """Return the order of a sampler, for batches of sources with the fields `names`."""
    if isinstance(sampler, PrioritizedSampler):
        return PrioritizedOrder(sampler, names, length, sources)
    if isinstance(sampler, Iterable):
        return CustomOrder(sampler)
    raise InvalidTypeError(
        f"`sampler` must be a Sampler or an iterable of index arrays, got {sampler!r}"
    )


def length_of(order: Order) -> int:
    """Return how many batches a sampler has, for `len` of its loader."""
    if isinstance(order.sampler, Sized):
        return len(order.sampler)
    raise InvalidTypeError(
        "the loader has no length because its sampler does not define `__len__`",
        hint="add a __len__ to the sampler that counts its batches",
    )


def _kept(batch: Any) -> _Kept:
    """Check a batch and copy it."""
    extras: Any = {}
    if isinstance(batch, tuple) and len(batch) == 2 and isinstance(batch[1], Mapping):  # noqa: PLR2004
        batch, extras = batch
    rows = as_indices(batch, INT64_MAX, check=False)
    if rows.ndim == 0:
        raise InvalidError(
            f"the sampler must return batches of indices, got the single index {rows}",
            hint="wrap it in torch.utils.data.BatchSampler, or yield arrays",
        )
    return _Kept(rows.copy(), {_name(name): _extra(name, extras[name], rows) for name in extras})


def _name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise InvalidTypeError(
            f"the sampler returned an extra whose name must be a string, got {name!r}"
        )
    return name


def _extra(name: str, values: Any, rows: IndexArray) -> npt.NDArray[Any]:
    array = np.array(values)
    if array.shape[:1] != rows.shape[:1]:
        raise InvalidError(
            f"the sampler returned the extra {name!r} with the shape {array.shape}, "
            f"but the batch has {len(rows)} samples"
        )
    return array


def _plain(batch: Any) -> Any:
    """Return a batch as a sampler might return it, for a state."""
    if not isinstance(batch, _Kept):
        return copy.deepcopy(batch)
    rows = batch.rows.tolist() if batch.rows.size else batch.rows.copy()
    return (rows, copy.deepcopy(batch.extras)) if batch.extras else rows
