"""How regularly a signal was recorded: its rate, and the gaps in it."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive.model.clock import Times

_GAP: Final = 5
"""A gap is longer than this number of median steps."""
_REGULAR: Final = 2
"""In a regular signal, nine of ten steps are at most this number of median steps long."""
_MIN_STEPS: Final = 10
"""A signal with fewer steps is not regular."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The time steps between the records of one signal.

    `rate_hz` is the number of records per second; it and the steps are None if there are fewer
    than two records. `gaps` are the positions of the records that are followed by a gap, which
    is a step of more than five median steps. A signal that is not `regular`, such as one that
    is recorded when something happens, has no gaps.

    Example:
        >>> import numpy as np
        >>> from relive.view import measure_timing
        >>> timing = measure_timing(np.arange(100) * 5_000_000)
        >>> timing.median_step_ns, timing.gaps, timing.regular
        (5000000, (), True)
    """

    rate_hz: float | None
    median_step_ns: int | None
    longest_step_ns: int | None
    gaps: tuple[int, ...]
    regular: bool

    def is_gap(self, step_ns: int) -> bool:
        """Check whether a step of this length is a gap in this signal."""
        median = self.median_step_ns
        return self.regular and median is not None and step_ns > _GAP * median


def measure_timing(timestamps: Times) -> Timing:
    """Return the timing of records with these timestamps, which are in order."""
    if len(timestamps) < 2:  # noqa: PLR2004 - a step needs two
        return Timing(None, None, None, (), regular=False)
    steps = np.diff(elapsed_ns(timestamps))
    median = int(np.median(steps))
    duration = int(timestamps[-1]) - int(timestamps[0])
    rate = len(steps) * 1e9 / duration if duration else None
    regular = len(steps) >= _MIN_STEPS and float(np.quantile(steps, 0.9)) <= _REGULAR * median
    gaps = np.flatnonzero(steps > min(_GAP * median, 2**64 - 1)) if regular else steps[:0]
    return Timing(rate, median, int(steps.max()), tuple(gaps.tolist()), regular=regular)


def elapsed_ns(timestamps: Times, since: int | None = None) -> npt.NDArray[Any]:
    """Return the nanoseconds since a time, by default the first one; none may be earlier.

    They are unsigned, so that the distance of any two timestamps fits.
    """
    if not len(timestamps):
        return np.empty(0, dtype=np.uint64)
    first = int(timestamps[0]) if since is None else since
    return timestamps.astype(np.int64, copy=False).view(np.uint64) - np.uint64(first % (1 << 64))
