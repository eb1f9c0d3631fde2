"""Transitions to be sampled: stacks of four planes of a scene, on the first or last axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from benches.replay.scenes import DISTINCT, SIDE, STACK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from benches.replay.scenes import Pixels

EPISODE = 1000
"""Steps of an episode, which terminates; what is seen after its last step is one more plane."""
BLOCK = 500
AXES = ("first", "last")
STACK_BYTES = SIDE * SIDE * STACK


@dataclass(frozen=True)
class Block:
    """Consecutive steps of one episode."""

    numbers: NDArray[np.int64]
    observation: Pixels
    next_observation: Pixels
    terminated: NDArray[np.bool_]


@dataclass(frozen=True)
class Stacks:
    """The transitions of one scene."""

    planes: Pixels
    axis: str

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an observation."""
        return (STACK, SIDE, SIDE) if self.axis == "first" else (SIDE, SIDE, STACK)

    def blocks(self, steps: int) -> Iterator[Block]:
        """`steps` steps, from the first on; a block ends with its episode."""
        for first in range(0, steps, BLOCK):
            numbers = np.arange(first, min(first + BLOCK, steps))
            yield Block(numbers, *self._observed(numbers), numbers % EPISODE == EPISODE - 1)

    def check(self, numbers: Any, *observed: Any) -> None:
        """Raise unless these were observed at, and after, the steps of these numbers."""
        for found, wanted in zip(observed, self._observed(np.asarray(numbers)), strict=True):
            if not np.array_equal(np.asarray(found), wanted):
                message = "drew other observations than were recorded"
                raise AssertionError(message)

    def _observed(self, numbers: NDArray[np.int64]) -> tuple[Pixels, Pixels]:
        episode, index = np.divmod(numbers, EPISODE)
        # What is seen after the last step of an episode is seen in no other one.
        first = episode * (EPISODE + 1)
        return self._stacks(first, index), self._stacks(first, index + 1)

    def _stacks(self, first: NDArray[np.int64], index: NDArray[np.int64]) -> Pixels:
        at = [first + np.maximum(index - back, 0) for back in reversed(range(STACK))]
        found: Pixels = self.planes[np.stack(at, axis=-1) % DISTINCT]
        return found if self.axis == "first" else np.ascontiguousarray(np.moveaxis(found, 1, -1))
