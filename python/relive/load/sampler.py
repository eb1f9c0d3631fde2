"""The order of samples: seeded, resumable, the same for every number of workers."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from relive import _native
from relive._arguments import as_int
from relive.errors import InvalidError, InvalidTypeError
from relive.model.source import IndexArray

__all__ = ["Cursor", "Sampler"]

Cursor: TypeAlias = tuple[int, int, int]
"""Position in the global order, samples left out so far, samples repeated so far."""

_SAME: Final = ("length", "mode", "seed", "tail", "window", "stride")


class Sampler:
    """An endless stream of batches of row numbers, as int64 arrays.

    Args:
        length: Rows to choose from.
        batch_size: Samples per batch and rank.
        mode: `"shuffle"` visits every row once per epoch, in another order each epoch, and
            costs the same memory at any length. `"random"` draws with replacement.
            `"sequential"` goes round in order. `"block"` visits blocks of `stride`
            consecutive rows in shuffled order and shuffles rows inside a `window` of them,
            for data that is slow to read at random.
        seed: Chooses the order; equal seeds give equal streams.
        window: Rows per sample: batches are then `(batch_size, window)`, each line a run of
            consecutive rows that wraps round at the end. In mode `"block"`: the rows
            shuffled together (512 blocks by default).
        stride: Rows between the starts of windows. In mode `"block"`: rows per block (128
            by default).
        rank: This process's place among those that share the stream.
        world_size: How many share it. Together they draw one global order.
        tail: What happens when an epoch does not fill its last step. `"wrap"` goes on into
            the next epoch, `"drop"` leaves the rest out, `"pad"` repeats samples (`mask` says
            which are not repeats), `"keep"` gives short batches, dealt out evenly to the
            ranks; a rank may then get an empty one, so that all take the same steps.
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
            "mode": _text("mode", mode),
            "seed": as_int("seed", seed),
            "window": None if window is None else as_int("window", window),
            "stride": None if stride is None else as_int("stride", stride),
            "rank": as_int("rank", rank),
            "world_size": as_int("world_size", world_size),
            "tail": _text("tail", tail),
        }
        self._core = self.native()
        self._mask: npt.NDArray[np.bool_] | None = None

    def native(self, epochs: int | None = None) -> "_native.Sampler":
        """Make the core's sampler for this plan, at its beginning."""
        plan = dict(self._config)
        length, batch_size, mode = plan.pop("length"), plan.pop("batch_size"), plan.pop("mode")
        return _native.Sampler(length, batch_size, mode, epochs=epochs, **plan)

    def __iter__(self) -> Iterator[IndexArray]:
        """Go on from where the stream stands."""
        return self

    def __next__(self) -> IndexArray:
        """Draw the next batch."""
        drawn = self._core.draw()
        if drawn is None:
            raise StopIteration
        rows, padded, _ = drawn
        if self.tail == "pad":
            self._mask = np.arange(len(rows)) < len(rows) - padded
        return rows

    def peek(self, count: int) -> list[IndexArray]:
        """Give the next `count` batches without drawing them."""
        ahead = self._core.copy()
        drawn = (ahead.draw() for _ in range(as_int("count", count)))
        return [batch[0] for batch in drawn if batch is not None]

    def seek(self, step: int) -> None:
        """Stand where `step` batches from the beginning lead."""
        self._core.seek(as_int("step", step))
        self._mask = None

    @property
    def mask(self) -> npt.NDArray[np.bool_] | None:
        """Which samples of the last batch are not repeats; None unless `tail="pad"`."""
        return self._mask

    @property
    def length(self) -> int:
        """Rows to choose from."""
        return int(self._config["length"])

    @property
    def batch_size(self) -> int:
        """Samples per batch and rank."""
        return int(self._config["batch_size"])

    @property
    def world_size(self) -> int:
        """How many ranks share the stream."""
        return int(self._config["world_size"])

    @property
    def tail(self) -> str:
        """What happens at the end of an epoch."""
        return str(self._config["tail"])

    @property
    def seed(self) -> int:
        """What chose the order."""
        return int(self._config["seed"])

    @property
    def cursor(self) -> Cursor:
        """Where the stream stands, as the core counts."""
        return self._core.cursor

    @property
    def position(self) -> int:
        """Samples of the global order that are behind us, over all ranks."""
        return self._core.cursor[0]

    @property
    def epoch(self) -> int:
        """The epoch that the next sample belongs to, from 0."""
        return self.position // self._core.samples_per_epoch

    @property
    def samples_per_epoch(self) -> int:
        """Samples that all ranks together draw in an epoch."""
        return self._core.samples_per_epoch

    @property
    def steps_per_epoch(self) -> int:
        """Batches per epoch and rank; under `"wrap"` those that begin in the first epoch."""
        return self._core.steps_per_epoch

    @property
    def omitted(self) -> int:
        """Samples left out so far by `tail="drop"`, over all ranks."""
        return self._core.cursor[1]

    @property
    def repeated(self) -> int:
        """Samples repeated so far by `tail="pad"`, over all ranks."""
        return self._core.cursor[2]

    def state_dict(self) -> dict[str, Any]:
        """Give where the stream stands, and what it is a stream of."""
        return self.state_at(self._core.cursor)

    def state_at(self, cursor: Cursor) -> dict[str, Any]:
        """Give the state of this stream at another place of it."""
        position, omitted, repeated = cursor
        counts = {"position": position, "omitted": omitted, "repeated": repeated}
        return counts | {name: self._config[name] for name in _SAME}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state. Batch size and world size may be others than when it was taken."""
        self._core.cursor = self.cursor_of(state)
        self._mask = None

    def cursor_of(self, state: Mapping[str, Any]) -> Cursor:
        """Give the place that `state` names, after checking that it is of this stream."""
        if not isinstance(state, Mapping):
            raise InvalidTypeError(f"a state is a dict, not {type(state).__name__}")
        missing = [name for name in ("position", *_SAME) if name not in state]
        if missing:
            raise InvalidError(f"the state lacks {', '.join(missing)}")
        for name in _SAME:
            if state[name] != self._config[name]:
                raise InvalidError(
                    f"the state is of a stream with {name}={state[name]!r}, "
                    f"and this one has {name}={self._config[name]!r}",
                    hint="make the sampler or loader with the same values to go on from it",
                )
        position = as_int("position", state["position"])
        omitted = as_int("omitted", state.get("omitted", 0))
        left = self.samples_per_epoch - position % self.samples_per_epoch
        if self.tail == "drop" and left < self.batch_size * self.world_size:
            # It was taken with smaller steps: where ours stand, the epoch is over.
            position, omitted = position + left, omitted + left
        return position, omitted, as_int("repeated", state.get("repeated", 0))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the plan and the place."""
        return _restore, (self._config, self._core.cursor)

    def __repr__(self) -> str:
        """Give the plan and the place on one line."""
        given = ", ".join(f"{k}={v!r}" for k, v in self._config.items() if v is not None)
        return f"Sampler({given}, position={self.position})"


def _restore(config: dict[str, Any], cursor: Cursor) -> Sampler:
    sampler = Sampler(**config)
    sampler._core.cursor = cursor  # noqa: SLF001 - a constructor of the same class
    return sampler


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidTypeError(f"{name} must be a string, not {value!r}")
    return value
