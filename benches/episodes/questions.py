"""What contenders are asked: the same rows and times for all, others in every round."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from benches.episodes.robot import CAMERAS, SECOND_NS, START_NS, STATE_HZ, joints

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from benches.episodes.robot import Robot, Times

VECTOR_ROWS = 200_000
FRAMES, BATCH, WINDOW, WINDOWS, SCANNED = 16, 64, 16, 6, 150
LOOKUPS, SAMPLES, TIME_WINDOWS, TIME_WINDOW_ROWS = 5_000, 20_000, 500, 100


@dataclass(frozen=True)
class Questions:
    """All questions about one robot; `rows` is how long its signal of vectors is."""

    robot: Robot
    rows: int = VECTOR_ROWS

    @cached_property
    def times(self) -> Times:
        """The times of the signal of vectors."""
        jitter = self._draw("jitter", 0).integers(0, SECOND_NS // STATE_HZ // 20, self.rows)
        found: Times = START_NS + np.arange(self.rows, dtype=np.int64) * SECOND_NS // STATE_HZ
        return found + jitter

    @cached_property
    def values(self) -> NDArray[np.float32]:
        """Its values."""
        return joints((self.times - START_NS) / SECOND_NS, self.robot.seed).astype(np.float32)

    def camera(self, number: int) -> int:
        """The camera of a round."""
        return number % len(CAMERAS)

    def frames(self, number: int) -> list[int]:
        """Rows of single pictures, in no order."""
        found: list[int] = self._draw("frames", number).integers(0, self._last, FRAMES).tolist()
        return found

    def batch(self, number: int) -> list[int]:
        """Rows of one batch, all different, in no order."""
        picked = self._draw("batch", number).permutation(self._last)[:BATCH]
        found: list[int] = picked.tolist()
        return found

    def windows(self, number: int) -> list[range]:
        """Some windows of pictures that follow one another."""
        last = self._last - WINDOW + 1
        starts = self._draw("windows", number).integers(0, last, WINDOWS).tolist()
        return [range(start, start + WINDOW) for start in starts]

    @property
    def scanned(self) -> int:
        """How many pictures are read in order."""
        return min(SCANNED, self._last)

    def lookups(self, number: int) -> list[int]:
        """Single times, in no order."""
        first, last = int(self.times[0]), int(self.times[-1])
        found: list[int] = self._draw("lookups", number).integers(first, last, LOOKUPS).tolist()
        return found

    def samples(self, number: int) -> Times:
        """Many times, ascending and all different, as not everyone takes them otherwise."""
        first, last = int(self.times[0]), int(self.times[-1])
        count = min(SAMPLES, self.rows)
        return np.unique(self._draw("samples", number).integers(first, last, count + 64))[:count]

    def time_windows(self, number: int) -> list[tuple[int, int, int]]:
        """First row, first time and end of windows of vectors."""
        last = self.rows - TIME_WINDOW_ROWS
        starts = self._draw("time windows", number).integers(0, last, TIME_WINDOWS).tolist()
        ends = self.times
        return [(row, int(ends[row]), int(ends[row + TIME_WINDOW_ROWS])) for row in starts]

    @property
    def _last(self) -> int:
        return self.robot.frame_count

    def _draw(self, what: str, number: int) -> np.random.Generator:
        return np.random.default_rng([self.robot.seed, number + 100, *what.encode()])
