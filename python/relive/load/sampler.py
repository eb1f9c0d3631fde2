"""Which rows are in each batch: seeded, resumable, the same for every number of workers."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from relive import _native
from relive._arguments import as_int, as_text, type_name
from relive.errors import InvalidError, InvalidTypeError
from relive.model.source import IndexArray, as_indices

Cursor: TypeAlias = tuple[int, int, int]
"""Position in the global order, samples dropped so far, samples repeated so far."""

_SAME: Final = ("length", "mode", "seed", "tail", "window", "stride")
_DIGEST_CHARACTERS: Final = 16


class Sampler:
    """An endless iterator over batches of row numbers, as int64 arrays.

    Args:
        length: The number of rows to choose from.
        batch_size: Samples per batch and rank.
        mode: `"shuffle"` visits every row once per epoch, in another order each epoch, with
            the same memory at any length. `"random"` draws with replacement. `"sequential"`
            visits rows in order. `"block"` visits blocks of consecutive rows in shuffled order
            and shuffles the rows of several blocks, `window` rows in all, for data that is slow
            to read at random.
        seed: Chooses the order; samplers with equal seeds draw the same batches.
        window: Rows per sample: batches then have the shape `(batch_size, window)`, and each
            sample is a run of consecutive rows that wraps around at the end. In mode
            `"block"`: how many rows are shuffled together, in each partition (by default 512
            blocks of `stride` rows, or 16 of `blocks`).
        stride: Rows between the starts of windows. In mode `"block"`: rows per block (128
            by default).
        rank: The number of this process among those that share the order, from 0.
        world_size: How many processes share the order; each draws its part of every step.
        tail: What happens if an epoch does not fill its last step. `"wrap"` continues with the
            next epoch; the last step of a stream with an end is short, and repeats samples if
            there are fewer than ranks. `"drop"` drops the rest, `"pad"` repeats samples (`mask`
            is False for repeats), `"keep"` draws short batches of about equal size for all
            ranks, which may be empty so that all ranks take the same number of steps. `"error"`
            requires that the last step is full.
        blocks: In mode `"block"`: the first row of each block, then the number of rows, for
            blocks of different sizes. Empty blocks are allowed.
        partitions: In mode `"block"`: the parts into which the blocks of each epoch are divided;
            every step takes equally from all. If `world_size` divides it, each rank reads only
            the blocks of its own partitions, and one at each border. The world size by default
            if `blocks` are passed, else 1. With 1 the order is the same at any world size, but
            every rank reads from every block.
        rows_per_step: The rows of a step of all ranks, on which the partitions depend;
            `batch_size` × `world_size` by default. A state keeps it, so that both may change.

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
        blocks: npt.ArrayLike | None = None,
        partitions: int | None = None,
        rows_per_step: int | None = None,
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
            "blocks": None if blocks is None else _bounds(blocks),
            "partitions": 1,
            "rows_per_step": None,
        }
        self._asked = None if partitions is None else as_int("partitions", partitions)
        if self._asked is not None:
            self._config["partitions"] = self._asked
        elif blocks is not None:
            self._config["partitions"] = self._config["world_size"]
        if rows_per_step is not None:
            self._config["rows_per_step"] = as_int("rows_per_step", rows_per_step)
        self._core = self.native()
        self._mask: npt.NDArray[np.bool_] | None = None

    def native(self, epochs: int | None = None) -> "_native.Sampler":
        """Return a sampler of the core with these arguments, at the start."""
        return _native.Sampler(epochs=epochs, **self._config)

    def resized(self, length: int, blocks: IndexArray | None = None) -> "Sampler":
        """Return a sampler of another number of rows, at the start.

        Without `blocks`, those of this sampler are cut.
        """
        own = self._config["blocks"]
        if own is not None and blocks is None:
            blocks = np.append(own[own < length], length)
        return self._with(length=length, blocks=blocks)

    def resuming(self, state: Mapping[str, Any]) -> "Sampler":
        """Return this sampler with the partitions and the rows per step of a state.

        They are those of the run that began the stream, whose batch size and world size may have
        been others.
        """
        if not isinstance(state, Mapping):
            raise InvalidTypeError(f"`state` must be a dict, got {type_name(type(state))}")
        if self._config["mode"] != "block" or state.get("mode") != "block":
            return self
        partitions = as_int("partitions", state.get("partitions", 1))
        if self._asked not in {None, partitions}:
            raise _differs("partitions", partitions, self._asked)
        rows = as_int("rows_per_step", state.get("rows_per_step", self._core.rows_per_step))
        if (partitions, rows) == (self._config["partitions"], self._core.rows_per_step):
            return self
        return self._with(partitions=partitions, rows_per_step=rows)

    def _with(self, **changes: Any) -> "Sampler":
        """Return a sampler with other arguments, at the start."""
        made = Sampler(**self._config | changes)
        made._asked = self._asked
        return made

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

    def blocks_ahead(self, steps: int) -> tuple[IndexArray, IndexArray, IndexArray]:
        """Return the blocks that this rank needs in the next `steps` steps, for prefetching.

        Blocks are in the order of first use, and two positions are returned for each, in the unit
        of `position`: the start of the first step that may need the block, and the one from which
        on steps do not need it until it is listed again. A window needs all of its blocks as long
        as it lasts. The time depends on the number of steps and blocks, not on that of rows.
        """
        return self._core.blocks_ahead(as_int("steps", steps))

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
    def partitions(self) -> int:
        """The parts into which the blocks of an epoch are divided."""
        return int(self._config["partitions"])

    @property
    def rows_per_step(self) -> int:
        """The rows of a step of all ranks when the stream began."""
        return self._core.rows_per_step

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
        state = counts | {name: self._config[name] for name in _SAME}
        if state["mode"] == "block":
            state |= {"partitions": self.partitions, "rows_per_step": self.rows_per_step}
            state["blocks"] = self._blocks_digest
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state. Batch size and world size may have changed since.

        Partitions and rows per step are those of the state, unless `partitions` was passed.
        """
        sampler = self.resuming(state)
        cursor = sampler.cursor_of(state)
        self._config, self._core = sampler._config, sampler._core  # noqa: SLF001 - of this class
        self._core.cursor = cursor
        self._mask = None

    @property
    def _blocks_digest(self) -> str | None:
        """What identifies the blocks in a state; None without `blocks`."""
        blocks = self._config["blocks"]
        if blocks is None:
            return None
        return hashlib.sha256(blocks.astype("<i8").tobytes()).hexdigest()[:_DIGEST_CHARACTERS]

    def cursor_of(self, state: Mapping[str, Any]) -> Cursor:
        """Return the position of `state`, after checking that it is of an equal sampler."""
        if not isinstance(state, Mapping):
            raise InvalidTypeError(f"`state` must be a dict, got {type_name(type(state))}")
        missing = [name for name in ("position", *_SAME) if name not in state]
        if missing:
            raise InvalidError(f"`state` does not have the keys {', '.join(map(repr, missing))}")
        for name in _SAME:
            if state[name] != self._config[name]:
                raise _differs(name, state[name], self._config[name])
        if state.get("blocks") != self._blocks_digest:
            raise InvalidError(
                "the state was saved with other blocks of rows than this sampler has",
                hint="pass the same source, or the same blocks= or stride=, to continue",
            )
        position = as_int("position", state["position"])
        omitted = as_int("omitted", state.get("omitted", 0))
        left = self.samples_per_epoch - position % self.samples_per_epoch
        if self.tail == "drop" and left < self.batch_size * self.world_size:
            # The state was saved with smaller steps; with these the epoch is over.
            position, omitted = position + left, omitted + left
        cursor = (position, omitted, as_int("repeated", state.get("repeated", 0)))
        if self.tail == "error":
            self._core.copy().cursor = cursor  # raises if the rest of the epoch is not full steps
        return cursor

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the arguments and the position."""
        return partial(Sampler, **self._config), (), (self._core.cursor, self._asked)

    def __setstate__(self, state: tuple[Cursor, int | None]) -> None:
        """Restore the position."""
        self._core.cursor, self._asked = state

    def __repr__(self) -> str:
        """Return the arguments and the position, on one line."""
        shown = {name: value for name, value in self._config.items() if value is not None}
        if "blocks" in shown:
            shown["blocks"] = f"<{len(shown['blocks']) - 1} blocks>"
        if shown["partitions"] == 1:
            del shown["partitions"]
        given = ", ".join(
            f"{name}={value if name == 'blocks' else repr(value)}" for name, value in shown.items()
        )
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
    extras: Mapping[str, npt.NDArray[Any]] | None = None
    """Further arrays of the batch, which the sampler returned."""
    batch: Any = None


def check_loader_state(state: Mapping[str, Any]) -> None:
    """Raise unless `state` has the keys of a loader whose sampler is not a `Sampler`."""
    if not isinstance(state, Mapping):
        raise InvalidTypeError(f"`state` must be a dict, got {type_name(type(state))}")
    if missing := sorted({"sampler", "position"} - {*state}):
        raise InvalidError(
            f"cannot resume: the state has no key {missing[0]!r}",
            hint="pass the state_dict() of a loader with a custom sampler",
        )


def draw_native(sampler: "_native.Sampler", *, masked: bool) -> Iterator[Draw]:
    """Draw batches from a sampler of the core."""
    while (drawn := sampler.draw()) is not None:
        rows, padded, first = drawn
        yield Draw(first, sampler.cursor, rows, _mask(rows, padded) if masked else None)


def _bounds(blocks: npt.ArrayLike) -> IndexArray:
    """Return the bounds of blocks as an array that nothing else changes."""
    bounds = as_indices(blocks, 1 << 62, check=False)
    if bounds.ndim != 1:
        raise InvalidError(f"`blocks` must have one dimension, got {bounds.ndim}")
    if bounds.flags.writeable:
        bounds = bounds.copy()
        bounds.flags.writeable = False
    return bounds


def _differs(name: str, saved: object, own: object) -> InvalidError:
    return InvalidError(
        f"the state was saved with {name}={saved!r}, but this sampler has {name}={own!r}",
        hint="make the sampler or loader with the same arguments to continue",
    )


def _mask(rows: IndexArray, padded: int) -> npt.NDArray[np.bool_]:
    return np.arange(len(rows)) < len(rows) - padded
