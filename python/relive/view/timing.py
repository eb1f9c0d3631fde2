"""How regularly a signal was recorded: its rate, and where it fell silent."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive.model.clock import Times

__all__ = ["Rhythm", "elapsed_ns", "rhythm"]

_GAP: Final = 5
"""So many usual steps without a record are a gap."""
_STEADY: Final = 2
"""A signal has a rhythm when nine of ten steps are at most so many times the usual one."""
_ENOUGH: Final = 10
"""Fewer steps make no rhythm."""


@dataclass(frozen=True, slots=True)
class Rhythm:
    """The steps from record to record of one signal.

    `rate_hz` counts records per second over the whole of it, `usual_ns` is the median step and
    `longest_ns` the longest; all three are None below two records. `gaps` are the positions of
    the records after which nothing came for more than five usual steps; a signal that is not
    `steady`, such as one that is recorded when something happens, has none.
    """

    rate_hz: float | None
    usual_ns: int | None
    longest_ns: int | None
    gaps: tuple[int, ...]
    steady: bool

    def silent(self, nanoseconds: int) -> bool:
        """Whether so long without a record is a gap in this signal."""
        return self.steady and self.usual_ns is not None and nanoseconds > _GAP * self.usual_ns


def rhythm(timestamps: Times) -> Rhythm:
    """Tell the rhythm of records at these times, which are in order."""
    if len(timestamps) < 2:  # noqa: PLR2004 - a step needs two
        return Rhythm(None, None, None, (), steady=False)
    steps = np.diff(elapsed_ns(timestamps))
    usual = int(np.median(steps))
    longest = int(steps.max())
    duration = int(timestamps[-1]) - int(timestamps[0])
    rate = len(steps) * 1e9 / duration if duration else None
    steady = len(steps) >= _ENOUGH and float(np.quantile(steps, 0.9)) <= _STEADY * usual
    gaps = np.flatnonzero(steps > min(_GAP * usual, 2**64 - 1)) if steady else steps[:0]
    return Rhythm(rate, usual, longest, tuple(gaps.tolist()), steady=steady)


def elapsed_ns(timestamps: Times, since: int | None = None) -> npt.NDArray[Any]:
    """Give the nanoseconds since a time, the first one by default, which none of them precedes.

    They are unsigned, so that no two times are too far from each other.
    """
    if not len(timestamps):
        return np.empty(0, dtype=np.uint64)
    first = int(timestamps[0]) if since is None else since
    return timestamps.astype(np.int64, copy=False).view(np.uint64) - np.uint64(first % (1 << 64))
