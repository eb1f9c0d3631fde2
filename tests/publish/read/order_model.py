"""The order of a shuffled stream as it is defined, in a few lines of Python.

It has the partitions, windows and blocks of the core's order, and random numbers of its own.
"""

import numpy as np

from relive.model.source import IndexArray
from relive.publish.read.stream.order import OrderPlan, PartitionedOrder


class ModelOrder(PartitionedOrder):
    """Blocks in a random order, and rows shuffled inside each window of a partition."""

    def __init__(self, plan: OrderPlan) -> None:
        super().__init__(plan)
        self._sequences: dict[int, tuple[IndexArray, IndexArray]] = {}

    def _rows(self, epoch: int, partition: int, index: int, count: int) -> IndexArray:
        window = index // self._plan.window
        first = int(self._starts[partition]) + window * self._plan.window
        stop = min(first + self._plan.window, int(self._starts[partition + 1]))
        shuffled = np.random.default_rng((self._plan.seed, epoch, partition, window)).permutation(
            np.arange(first, stop)
        )
        begin = index % self._plan.window
        blocks, starts = self._sequence(epoch)
        return np.array(
            [
                self._plan.bounds[blocks[at]] + position - starts[at]
                for position in shuffled[begin : begin + count].tolist()
                for at in [int(starts.searchsorted(position, side="right")) - 1]
            ],
            np.int64,
        )

    def _blocks(self, epoch: int, first: int, stop: int) -> IndexArray:
        blocks, starts = self._sequence(epoch)
        begin = int(starts.searchsorted(first, side="right")) - 1
        return blocks[begin : int(starts.searchsorted(stop))]

    def _sequence(self, epoch: int) -> tuple[IndexArray, IndexArray]:
        """Return the blocks of an epoch in their order, and the first position of each."""
        if epoch not in self._sequences:
            count = len(self._plan.bounds) - 1
            blocks = np.random.default_rng((self._plan.seed, epoch)).permutation(count)
            sizes = np.diff(self._plan.bounds)[blocks]
            self._sequences[epoch] = blocks, np.cumsum(sizes) - sizes
        return self._sequences[epoch]
