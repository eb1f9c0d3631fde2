"""Curves of any number of records, thinned to what a picture of some width can show."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = [
    "COLUMNS",
    "Curve",
    "Floats",
    "Thinner",
    "as_steps",
    "hide_unfit",
    "interrupted",
    "lonely",
]

COLUMNS: Final = 1200
"""So many places across a picture are told apart."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Curve:
    """One line: places across from 0 to 1, and heights; a height that is NaN interrupts it."""

    label: str
    across: Floats
    heights: Floats


class Thinner:
    """Keeps of each column of a picture the first, least, most and last height.

    A curve drawn through them covers the same pixels as one through all records. Values that
    are not finite are left out, and counted in `unfit`.
    """

    def __init__(self, curves: int) -> None:
        self._first, self._low, self._high, self._last = np.full((4, COLUMNS, curves), np.nan)
        self.unfit = 0

    def add(self, across: Floats, heights: Floats) -> None:
        """Take in more records, later than those before."""
        self.unfit += hide_unfit(heights)
        columns = np.minimum((across * COLUMNS).astype(np.intp), COLUMNS - 1)
        starts = np.flatnonzero(np.diff(columns, prepend=-1))
        ends = np.append(starts[1:], len(columns)) - 1
        at = columns[starts]
        self._low[at] = np.fmin(self._low[at], np.fmin.reduceat(heights, starts))
        self._high[at] = np.fmax(self._high[at], np.fmax.reduceat(heights, starts))
        fresh = np.isnan(self._first[at])
        self._first[at] = np.where(fresh, heights[starts], self._first[at])
        self._last[at] = heights[ends]

    def curves(self, labels: list[str], breaks: Floats) -> list[Curve]:
        """Give the thinned curves, interrupted at each place of `breaks`."""
        used = np.flatnonzero(~np.isnan(self._low).all(axis=1))
        parts = np.stack([p[used] for p in (self._first, self._low, self._high, self._last)])
        # One that begins or ends with NaN begins and ends somewhere between least and most.
        parts = np.where(np.isnan(parts), parts[[1, 1, 2, 2]], parts)
        across = ((used[:, None] + np.array([0.0, 1 / 3, 2 / 3, 1.0])) / COLUMNS).ravel()
        # After the whole column in which the line ends.
        places = 4 * np.searchsorted(used, (breaks * COLUMNS).astype(np.intp), side="right")
        return [
            Curve(
                label,
                np.insert(across, places, breaks),
                np.insert(parts[:, :, number].T.ravel(), places, np.nan),
            )
            for number, label in enumerate(labels)
        ]


def hide_unfit(heights: Floats) -> int:
    """Put NaN where a height is infinite; count all that cannot be drawn."""
    unfit = ~np.isfinite(heights)
    heights[unfit] = np.nan
    return int(unfit.sum())


def interrupted(across: Floats, heights: Floats, breaks: Floats) -> tuple[Floats, Floats]:
    """Put NaN into a curve at each place of `breaks`."""
    if not len(breaks):
        return across, heights
    places = np.searchsorted(across, breaks, side="right")
    return np.insert(across, places, breaks), np.insert(heights, places, np.nan)


def lonely(curve: Curve) -> npt.NDArray[np.bool_]:
    """Say which points have no neighbour that a line would go to."""
    absent = np.isnan(curve.heights)
    alone = ~absent
    alone[1:] &= absent[:-1]
    alone[:-1] &= absent[1:]
    return alone


def as_steps(curve: Curve, until: float) -> Curve:
    """Give a curve that holds each height until the next, and the last one until `until`."""
    if not len(curve.across):
        return curve
    across = np.repeat(np.append(curve.across, until), 2)[1:-1]
    heights: Any = np.repeat(curve.heights, 2)
    return Curve(curve.label, across, heights)
