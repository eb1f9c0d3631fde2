"""The batches of an epoch, step by step, in any order: reads what `order` tells."""

import time

import pyarrow as pa

from relive.publish.read.batches import joined
from relive.publish.read.stream.blocks import TableBlocks
from relive.publish.read.stream.order import Cursor, OrderPlan, Step, Steps
from relive.publish.read.stream.windows import WindowReader


class StepBatches:
    """One batch for each step of a worker, until the end of an epoch. For one consumer at a time.

    Args:
        blocks: The table.
        plan: The order.
        cursor: The position to begin at.
        worker: The number of this worker of the rank, and how many there are.
        ahead_bytes: How much is fetched ahead; None for what is necessary.
    """

    def __init__(
        self,
        blocks: TableBlocks,
        plan: OrderPlan,
        cursor: Cursor,
        worker: tuple[int, int],
        ahead_bytes: int | None,
    ) -> None:
        self._blocks = blocks
        self._steps = Steps(plan, cursor, worker, rows=True)
        ahead = Steps(plan, cursor, worker, rows=False)
        self._windows = WindowReader(blocks, ahead, ahead_bytes)
        self._pending: Step | None = None
        self._is_first = True
        self.cursor = cursor
        """The position after the last batch."""
        self.stalled_s = 0.0
        """For how long the consumer has waited."""

    def next(self) -> pa.RecordBatch | None:
        """Return the next batch, which may have no rows; None at the end. Ctrl-C loses nothing."""
        if self._pending is None:
            self._pending = next(self._steps, None)
        step = self._pending
        if step is None:
            return None
        keys = list(dict.fromkeys(key for key, _ in step.runs))
        self._windows.enter(keys)
        started = time.perf_counter()
        try:
            found = {key: self._windows.rows(key) for key in keys}
        finally:
            self.stalled_s += time.perf_counter() - started
        parts = []
        at = 0
        for key, count in step.runs:
            assert step.rows is not None  # noqa: S101 - they were asked for
            parts.append(found[key].take(step.rows[at : at + count]))
            at += count
        batch = self._blocks.matching(joined(parts) if parts else self._blocks.no_rows)
        if self._is_first:
            # Only now: the first batch does not share the connection with those after it.
            self._windows.start_ahead()
        self._is_first, self._pending = False, None
        self.cursor = step.after
        return batch

    def close(self, *, wait: bool = True) -> None:
        """Stop; with `wait`, return when no thread runs."""
        self._windows.close(wait=wait)
