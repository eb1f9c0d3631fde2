"""Which rows each step of a stream has, and which blocks of the table they are in.

The blocks of an epoch form one sequence of rows, shuffled or in order. It is cut into partitions
of equal size, of which every step takes the same number of rows; a rank takes a consecutive
share of each step. A window is a run of consecutive rows of a partition: with `shuffle`, the rows
that are shuffled together; else only what is fetched together.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

import numpy as np

from relive import _native
from relive.model.source import IndexArray

Cursor: TypeAlias = tuple[int, int, int]
"""Position in the global order, rows dropped so far, rows repeated so far, of all ranks."""
Run: TypeAlias = tuple[int, int, int, int]
"""Epoch, partition, window, and the number of consecutive rows of a step that are in it."""


@dataclass(frozen=True, slots=True)
class OrderPlan:
    """What the order of a stream is a function of, and the part of it that a rank reads."""

    bounds: IndexArray
    """The first row of each block, and the number of rows."""
    shuffle: bool
    seed: int
    window: int
    partitions: int
    rows_per_step: int
    """Batch size × ranks of the run that began the stream."""
    tail: str
    batch_size: int
    rank: int
    world_size: int

    @property
    def length(self) -> int:
        """The number of rows of an epoch."""
        return int(self.bounds[-1])

    def begin(self, cursor: Cursor) -> "Order":
        """Return the order from a position on."""
        order = shuffled_order(self) if self.shuffle else PartitionedOrder(self)
        order.cursor = cursor
        return order

    def sampler(self, mode: str, **options: Any) -> "_native.Sampler":
        """Return a sampler of the core with the steps of this rank."""
        return _native.Sampler(
            self.length,
            self.batch_size,
            mode,
            seed=self.seed,
            stride=None,
            rank=self.rank,
            world_size=self.world_size,
            # With "error" an epoch is checked before it begins.
            tail="keep" if self.tail == "error" else self.tail,
            epochs=None,
            **options,
        )


class Order(Protocol):
    """The steps of a rank, epoch after epoch."""

    cursor: Cursor

    def draw(self) -> tuple[IndexArray, int, int] | None:
        """Advance; return the rows of a step, how many repeat others, and its first position."""

    def skip(self) -> bool:
        """Advance by one step; False at the end."""

    def windows(self) -> list[Run]:
        """Return the windows of the rows of the next step, in the order of its rows."""

    def window_blocks(self, epoch: int, partition: int, window: int) -> IndexArray:
        """Return the numbers of the blocks that a window has rows of, in their order."""


def shuffled_order(plan: OrderPlan) -> Order:
    """Return the block order of the core."""
    return plan.sampler(
        "block",
        window=plan.window,
        blocks=plan.bounds,
        partitions=plan.partitions,
        rows_per_step=plan.rows_per_step,
    )


class PartitionedOrder:
    """Rows in order in each partition, of which every step takes the same number."""

    def __init__(self, plan: OrderPlan) -> None:
        self._plan = plan
        self._core = plan.sampler("sequential", window=None)
        self._starts = partition_starts(plan.length, plan.rows_per_step, plan.partitions)

    @property
    def cursor(self) -> Cursor:
        """The position."""
        return self._core.cursor

    @cursor.setter
    def cursor(self, cursor: Cursor) -> None:
        self._core.cursor = cursor

    def draw(self) -> tuple[IndexArray, int, int] | None:
        """Advance; return the rows of a step, how many repeat others, and its first position."""
        epoch = self._core.cursor[0] // self._plan.length
        drawn = self._core.draw()
        if drawn is None:
            return None
        offsets, padded, first = drawn
        parts = [self._rows(epoch, *run) for run in self._runs(offsets, padded)]
        return np.concatenate(parts) if parts else offsets, padded, first

    def skip(self) -> bool:
        """Advance by one step; False at the end."""
        return self._core.skip()

    def windows(self) -> list[Run]:
        """Return the windows of the rows of the next step, in the order of its rows."""
        drawn = self._core.copy().draw()
        if drawn is None:
            return []
        offsets, padded, _ = drawn
        epoch, rows = self._core.cursor[0] // self._plan.length, self._plan.window
        return [
            (epoch, partition, index // rows, count)
            for partition, index, count in self._runs(offsets, padded)
        ]

    def window_blocks(self, epoch: int, partition: int, window: int) -> IndexArray:
        """Return the numbers of the blocks that a window has rows of."""
        first = int(self._starts[partition]) + window * self._plan.window
        stop = min(first + self._plan.window, int(self._starts[partition + 1]))
        return self._blocks(epoch, first, stop)

    def _runs(self, offsets: IndexArray, padded: int) -> list[tuple[int, int, int]]:
        """Return the partition, the first position in it and the number of rows of each run.

        A run is in one window. `offsets` are the positions of a step in its epoch: consecutive
        ones, and then those that are repeated.
        """
        own = len(offsets) - padded
        runs = self._consecutive(int(offsets[0]), own) if own else []
        for offset in offsets[own:].tolist():
            runs += self._consecutive(offset, 1)
        return runs

    def _consecutive(self, offset: int, left: int) -> list[tuple[int, int, int]]:
        runs: list[tuple[int, int, int]] = []
        rows, count, window = self._plan.rows_per_step, self._plan.partitions, self._plan.window
        while left:
            step, inside = divmod(offset, rows)
            size = min(rows, self._plan.length - step * rows)
            partition = ((inside + 1) * count - 1) // size
            share = (partition + 1) * rows // count - partition * rows // count
            index = step * share + inside - partition * size // count
            taken = min(left, (partition + 1) * size // count - inside, window - index % window)
            if runs and runs[-1][0] == partition and sum(runs[-1][1:]) == index and index % window:
                taken_before = runs.pop()
                runs.append((partition, taken_before[1], taken_before[2] + taken))
            else:
                runs.append((partition, index, taken))
            offset, left = offset + taken, left - taken
        return runs

    def _rows(self, epoch: int, partition: int, index: int, count: int) -> IndexArray:  # noqa: ARG002
        """Return the rows of a run."""
        first = int(self._starts[partition]) + index
        return np.arange(first, first + count, dtype=np.int64)

    def _blocks(self, epoch: int, first: int, stop: int) -> IndexArray:  # noqa: ARG002
        """Return the blocks at positions of the sequence of an epoch."""
        bounds = self._plan.bounds
        begin = int(bounds.searchsorted(first, side="right")) - 1
        return np.arange(begin, int(bounds.searchsorted(stop)), dtype=np.int64)


def partition_starts(length: int, rows_per_step: int, partitions: int) -> IndexArray:
    """Return the first row of each partition in the sequence of blocks, and the end."""
    full, last = divmod(length, rows_per_step)
    number = np.arange(partitions + 1, dtype=np.int64)
    return full * (number * rows_per_step // partitions) + number * last // partitions


class Step(NamedTuple):
    """The rows of one step of this process."""

    runs: "list[tuple[WindowKey, int]]"
    """The windows with the number of rows in each, in the order of the rows."""
    rows: IndexArray | None
    """The rows; None if only the windows were asked for."""
    after: Cursor
    """The position after the step."""


class WindowKey(NamedTuple):
    """A window of an epoch; one whose rows are repeated to fill the last step is another one."""

    epoch: int
    partition: int
    window: int
    is_repeated: bool = False


class Steps(Iterator[Step]):
    """The steps of one epoch from a position on, of one worker of a rank.

    Args:
        plan: The order.
        cursor: The position to begin at.
        worker: The number of this worker, and how many there are: worker w of n has every n-th
            step from the w-th on.
        rows: Whether rows are drawn, or only their windows.
    """

    def __init__(
        self, plan: OrderPlan, cursor: Cursor, worker: tuple[int, int] = (0, 1), *, rows: bool
    ) -> None:
        self._order = plan.begin(cursor)
        self._end = (cursor[0] // plan.length + 1) * plan.length
        # A shorter step, which is dropped, may follow if the batch size has changed.
        self._least = plan.batch_size * plan.world_size if plan.tail == "drop" else 1
        self._with_rows = rows
        self._step = worker[1]
        self._skip = worker[0]
        self._latest: dict[int, int] = {}

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Step:
        """Advance to the next step of this worker."""
        while self._skip and self._has_next():
            self._order.skip()
            self._skip -= 1
        if not self._has_next():
            raise StopIteration
        runs = [(self._key(run), run[3]) for run in self._order.windows()]
        drawn = None
        if self._with_rows:
            drawn = self._order.draw()
        else:
            self._order.skip()
        self._skip = self._step - 1
        return Step(runs, None if drawn is None else drawn[0], self._order.cursor)

    def _has_next(self) -> bool:
        return self._end - self._order.cursor[0] >= self._least

    def blocks(self, key: WindowKey) -> IndexArray:
        """Return the numbers of the blocks that a window has rows of; the last one may be shared.

        It is shared with the next window of the partition if that begins inside of it.
        """
        return self._order.window_blocks(key.epoch, key.partition, key.window)

    def _key(self, run: Run) -> WindowKey:
        """Return the window of a run; one that was left before is read again to repeat rows."""
        epoch, partition, window, _ = run
        latest = self._latest.setdefault(partition, window)
        if window < latest:
            return WindowKey(epoch, partition, window, is_repeated=True)
        self._latest[partition] = window
        return WindowKey(epoch, partition, window)
