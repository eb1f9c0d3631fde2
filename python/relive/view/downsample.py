"""Curves of any number of records, reduced to what a picture of some width can show."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

COLUMNS: Final = 1200
"""The number of columns of a picture that are distinguished."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Curve:
    """One line: `x` from 0 at the left to 1 at the right, and `y`, where NaN is a break."""

    label: str
    x: Floats
    y: Floats


class Downsampler:
    """Keeps the first, lowest, highest and last value of each column of a picture.

    A curve through them covers the same pixels as one through all records. Values that are not
    finite are left out, and counted in `nonfinite`.
    """

    def __init__(self, curves: int) -> None:
        self._first, self._low, self._high, self._last = np.full((4, COLUMNS, curves), np.nan)
        self.nonfinite = 0

    def add(self, x: Floats, y: Floats) -> None:
        """Add records that are later than those before."""
        self.nonfinite += mask_nonfinite(y)
        columns = np.minimum((x * COLUMNS).astype(np.intp), COLUMNS - 1)
        starts = np.flatnonzero(np.diff(columns, prepend=-1))
        ends = np.append(starts[1:], len(columns)) - 1
        at = columns[starts]
        self._low[at] = np.fmin(self._low[at], np.fmin.reduceat(y, starts))
        self._high[at] = np.fmax(self._high[at], np.fmax.reduceat(y, starts))
        is_new = np.isnan(self._first[at])
        self._first[at] = np.where(is_new, y[starts], self._first[at])
        self._last[at] = y[ends]

    def curves(self, labels: list[str], breaks: Floats) -> list[Curve]:
        """Return the reduced curves with a break at each position in `breaks`."""
        used = np.flatnonzero(~np.isnan(self._low).all(axis=1))
        parts = np.stack([p[used] for p in (self._first, self._low, self._high, self._last)])
        # If the first or last value of a column is NaN, the lowest or highest stands for it.
        parts = np.where(np.isnan(parts), parts[[1, 1, 2, 2]], parts)
        x = ((used[:, None] + np.array([0.0, 1 / 3, 2 / 3, 1.0])) / COLUMNS).ravel()
        # A break comes after the whole column in which the line ends.
        at = 4 * np.searchsorted(used, (breaks * COLUMNS).astype(np.intp), side="right")
        return [
            Curve(
                label,
                np.insert(x, at, breaks),
                np.insert(parts[:, :, number].T.ravel(), at, np.nan),
            )
            for number, label in enumerate(labels)
        ]


def mask_nonfinite(y: Floats) -> int:
    """Replace infinite values by NaN in place; return how many values cannot be drawn."""
    nonfinite = ~np.isfinite(y)
    y[nonfinite] = np.nan
    return int(nonfinite.sum())


def break_curve(x: Floats, y: Floats, breaks: Floats) -> tuple[Floats, Floats]:
    """Return a curve with NaN inserted at each position in `breaks`."""
    at = np.searchsorted(x, breaks, side="right")
    return np.insert(x, at, breaks), np.insert(y, at, np.nan)


def isolated_points(curve: Curve) -> npt.NDArray[np.bool_]:
    """Return which points have no neighbour that a line could connect them to."""
    absent = np.isnan(curve.y)
    alone = ~absent
    alone[1:] &= absent[:-1]
    alone[:-1] &= absent[1:]
    return alone


def as_steps(curve: Curve, until: float) -> Curve:
    """Return a curve that holds each value until the next, and the last one until `until`."""
    if not len(curve.x):
        return curve
    return Curve(curve.label, np.repeat(np.append(curve.x, until), 2)[1:-1], np.repeat(curve.y, 2))
