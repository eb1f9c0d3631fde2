"""Which rows are in each batch: seeded, resumable, the same for every number of workers."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from relive import _native
from relive._arguments import as_int, as_text, type_name
from relive.errors import InvalidError, InvalidTypeError, OutOfRangeError
from relive.model.source import IndexArray, as_indices

Cursor: TypeAlias = tuple[int, int, int]
"""Position in the global order, samples dropped so far, samples repeated so far."""

_SAME: Final = ("length", "mode", "seed", "tail", "window", "stride")


class Sampler:
    """An endless iterator over batches of row numbers, as int64 arrays.

    Args:
        length: The number of rows to choose from.
        batch_size: Samples per batch and rank.
        mode: `"shuffle"` visits every row once per epoch, in another order each epoch, with
            the same memory at any length. `"random"` draws with replacement. `"sequential"`
            visits rows in order. `"block"` visits blocks of `stride` consecutive rows in
            shuffled order and shuffles the rows of several blocks, `window` rows in all, for
            data that is slow to read at random.
        seed: Chooses the order; samplers with equal seeds draw the same batches.
        window: Rows per sample: batches then have the shape `(batch_size, window)`, and each
            sample is a run of consecutive rows that wraps around at the end. In mode
            `"block"`: how many rows are shuffled together (512 blocks by default).
        stride: Rows between the starts of windows. In mode `"block"`: rows per block (128
            by default).
        rank: The number of this process among those that share the order, from 0.
        world_size: How many processes share the order; each draws its part of every step.
        tail: What happens if an epoch does not fill its last step. `"wrap"` continues with the
            next epoch; the last step of a stream with an end is short, and repeats samples if
            there are fewer than ranks. `"drop"` drops the rest, `"pad"` repeats samples (`mask`
            is False for repeats), `"keep"` draws short batches of about equal size for all
            ranks, which may be empty so that all ranks take the same number of steps.

    Example:
        >>> import relive
        >>> sampler = relive.Sampler(10, batch_size=4, mode="sequential")
        >>> next(sampler)
        array([0, 1, 2, 3])
        >>> state = sampler.state_dict()
        >>> next(sampler), sampler.steps_per_epoch
        (array([4, 5, 6, 7]), 3)
        >>> sampler.load_state_dict(state)
        >>> next(sampler)
        array([4, 5, 6, 7])
    """

    def __init__(
        self,
        length: int,
        batch_size: int,
        mode: str = "shuffle",
        *,
        seed: int = 0,
        window: int | None = None,
        stride: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        tail: str = "wrap",
    ) -> None:
        self._config: dict[str, Any] = {
            "length": as_int("length", length),
            "batch_size": as_int("batch_size", batch_size),
            "mode": as_text("`mode`", mode),
            "seed": as_int("seed", seed),
            "window": None if window is None else as_int("window", window),
            "stride": None if stride is None else as_int("stride", stride),
            "rank": as_int("rank", rank),
            "world_size": as_int("world_size", world_size),
            "tail": as_text("`tail`", tail),
        }
        self._core = self.native()
        self._mask: npt.NDArray[np.bool_] | None = None

    def native(self, epochs: int | None = None) -> "_native.Sampler":
        """Return a sampler of the core with these arguments, at the start."""
        return _native.Sampler(epochs=epochs, **self._config)

    def resized(self, length: int) -> "Sampler":
        """Return a sampler of another number of rows, at the start."""
        return Sampler(**self._config | {"length": length})

    def __iter__(self) -> Iterator[IndexArray]:
        """Continue from the current position."""
        return self

    def __next__(self) -> IndexArray:
        """Draw the next batch."""
        drawn = self._core.draw()
        if drawn is None:
            raise StopIteration
        rows, padded, _ = drawn
        self._mask = _mask(rows, padded) if self.tail == "pad" else None
        return rows

    def peek(self, count: int) -> list[IndexArray]:
        """Return the next `count` batches without drawing them."""
        ahead = self._core.copy()
        drawn = (ahead.draw() for _ in range(as_int("count", count)))
        return [batch[0] for batch in drawn if batch is not None]

    def seek(self, step: int) -> None:
        """Move to the position after `step` batches from the start."""
        self._core.seek(as_int("step", step))
        self._mask = None

    @property
    def mask(self) -> npt.NDArray[np.bool_] | None:
        """True for the samples of the last batch that are not repeats; None unless `tail="pad"`."""
        return self._mask

    @property
    def length(self) -> int:
        """The number of rows to choose from."""
        return int(self._config["length"])

    @property
    def batch_size(self) -> int:
        """Samples per batch and rank."""
        return int(self._config["batch_size"])

    @property
    def world_size(self) -> int:
        """How many processes share the order."""
        return int(self._config["world_size"])

    @property
    def tail(self) -> str:
        """What happens at the end of an epoch."""
        return str(self._config["tail"])

    @property
    def seed(self) -> int:
        """The seed of the order."""
        return int(self._config["seed"])

    @property
    def cursor(self) -> Cursor:
        """The position as the core counts it."""
        return self._core.cursor

    @property
    def position(self) -> int:
        """How many samples of the global order all ranks together have drawn."""
        return self._core.cursor[0]

    @property
    def epoch(self) -> int:
        """The epoch of the next sample, from 0."""
        return self.position // self._core.samples_per_epoch

    @property
    def samples_per_epoch(self) -> int:
        """How many samples all ranks together draw in an epoch."""
        return self._core.samples_per_epoch

    @property
    def steps_per_epoch(self) -> int:
        """Batches per epoch and rank; with `tail="wrap"`, those that start in the first epoch."""
        return self._core.steps_per_epoch

    @property
    def omitted(self) -> int:
        """How many samples `tail="drop"` has dropped so far, over all ranks."""
        return self._core.cursor[1]

    @property
    def repeated(self) -> int:
        """How many samples `tail="pad"` has repeated so far, over all ranks."""
        return self._core.cursor[2]

    def epoch_of(self, cursor: Cursor) -> int:
        """Return the epoch of the sample after a cursor, from 0."""
        return cursor[0] // self.samples_per_epoch

    def is_at_start(self, cursor: Cursor) -> bool:
        """Return whether no batch that starts in the epoch of a cursor was drawn."""
        drawn = cursor[0] % self.samples_per_epoch
        # With "wrap", the last batch of an epoch may end in the next one.
        return drawn < (self.batch_size * self.world_size if self.tail == "wrap" else 1)

    def state_dict(self) -> dict[str, Any]:
        """Return the position and the arguments that it depends on."""
        return self.state_at(self._core.cursor)

    def state_at(self, cursor: Cursor) -> dict[str, Any]:
        """Return the state at another position."""
        position, omitted, repeated = cursor
        counts = {"position": position, "omitted": omitted, "repeated": repeated}
        return counts | {name: self._config[name] for name in _SAME}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state. Batch size and world size may have changed since."""
        self._core.cursor = self.cursor_of(state)
        self._mask = None

    def cursor_of(self, state: Mapping[str, Any]) -> Cursor:
        """Return the position of `state`, after checking that it is of an equal sampler."""
        if not isinstance(state, Mapping):
            raise InvalidTypeError(f"`state` must be a dict, got {type_name(type(state))}")
        missing = [name for name in ("position", *_SAME) if name not in state]
        if missing:
            raise InvalidError(f"`state` does not have the keys {', '.join(map(repr, missing))}")
        for name in _SAME:
            if state[name] != self._config[name]:
                raise InvalidError(
                    f"the state was saved with {name}={state[name]!r}, "
                    f"but this sampler has {name}={self._config[name]!r}",
                    hint="make the sampler or loader with the same arguments to continue",
                )
        position = as_int("position", state["position"])
        omitted = as_int("omitted", state.get("omitted", 0))
        left = self.samples_per_epoch - position % self.samples_per_epoch
        if self.tail == "drop" and left < self.batch_size * self.world_size:
            # The state was saved with smaller steps; with these the epoch is over.
            position, omitted = position + left, omitted + left
        return position, omitted, as_int("repeated", state.get("repeated", 0))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the arguments and the position."""
        return partial(Sampler, **self._config), (), self._core.cursor

    def __setstate__(self, cursor: Cursor) -> None:
        """Restore the position."""
        self._core.cursor = cursor

    def __repr__(self) -> str:
        """Return the arguments and the position, on one line."""
        given = ", ".join(f"{k}={v!r}" for k, v in self._config.items() if v is not None)
        return f"Sampler({given}, position={self.position})"


@dataclass(slots=True, frozen=True)
class Draw:
    """One batch to make: its rows, or the batch itself if the core has gathered it."""

    first: int
    """The position of its first sample in the global order."""
    after: Any
    """The cursor after this batch."""
    rows: IndexArray | None = None
    mask: npt.NDArray[np.bool_] | None = None
    """True for samples that are not padding."""
    batch: Any = None


class CustomCursor(NamedTuple):
    """The position of a user's own sampler."""

    state: Any
    """What its `state_dict()` returned; None if it has none."""
    position: int
    """How many samples were drawn from it so far, which seeds the transform."""

    @classmethod
    def of(cls, sampler: object, position: int = 0) -> "CustomCursor":
        """Return the current position of a sampler; its state is copied, as it may change it."""
        read: Callable[[], Any] | None = getattr(sampler, "state_dict", None)
        return cls(None if read is None else copy.deepcopy(read()), position)


def resume(sampler: object, cursor: CustomCursor) -> CustomCursor:
    """Move a user's sampler back to `cursor`, and return where it then is.

    It has drawn batches ahead that were never returned. A sampler without `load_state_dict`
    starts again, unless it is an iterator.
    """
    load = getattr(sampler, "load_state_dict", None)
    if load is not None and cursor.state is not None:
        load(copy.deepcopy(cursor.state))
        return cursor
    return cursor if isinstance(sampler, Iterator) else cursor._replace(position=0)


def draw_native(sampler: "_native.Sampler", *, masked: bool) -> Iterator[Draw]:
    """Draw batches from a sampler of the core."""
    while (drawn := sampler.draw()) is not None:
        rows, padded, first = drawn
        yield Draw(first, sampler.cursor, rows, _mask(rows, padded) if masked else None)


def draw_custom(
    sampler: Iterable[npt.ArrayLike], batches: Iterator[npt.ArrayLike], length: int, position: int
) -> Iterator[Draw]:
    """Draw `batches`, an iteration over a user's own sampler, from a source of `length` rows."""
    for batch in batches:
        try:
            rows = as_indices(batch, length)
        except OutOfRangeError as error:
            raise OutOfRangeError(
                f"the sampler returned an invalid batch: {error.message}"
            ) from None
        if rows.ndim == 0:
            raise InvalidError(
                f"the sampler must return batches of indices, got the single index {rows}",
                hint="wrap it in torch.utils.data.BatchSampler, or yield arrays",
            )
        first, position = position, position + len(rows)
        # A copy, because the sampler may write to its array while this batch is read.
        yield Draw(first, CustomCursor.of(sampler, position), rows.copy())


def _mask(rows: IndexArray, padded: int) -> npt.NDArray[np.bool_]:
    return np.arange(len(rows)) < len(rows) - padded
