"""What a picture of an episode is made of: a panel for each signal, all on one time axis."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from relive.model.clock import Times
from relive.view.downsample import Curve, Floats
from relive.view.images import Pixels
from relive.view.timing import elapsed_ns

__all__ = ["LANE", "MARK", "NAME", "SPACE", "WIDTH", "Axis", "Lane", "Panel", "Span", "Thumb"]

WIDTH: Final = 1000
"""Pixels across the part of a picture that time runs along."""
LANE: Final = 22
"""Pixels that a lane is high."""
NAME: Final = 15
"""Pixels from one name beside a panel to the next."""
SPACE: Final = 4
"""Pixels between two thumbnails."""
MARK: Final = 6
"""Pixels below a thumbnail, for the mark of its time."""

_CURVES: Final = 104


@dataclass(frozen=True, slots=True)
class Axis:
    """Time from the left of a picture to its right; `zero_ts` is what is called 0."""

    first_ts: int
    span_ns: int
    zero_ts: int

    def places(self, timestamps: Times) -> Floats:
        """Give where times are, from 0 at the left to 1 at the right."""
        elapsed: Any = elapsed_ns(timestamps, self.first_ts)
        return np.asarray(elapsed / np.float64(self.span_ns), dtype=np.float64)

    @property
    def seconds(self) -> tuple[float, float]:
        """The seconds at the left and at the right."""
        left = (self.first_ts - self.zero_ts) / 1e9
        return left, left + self.span_ns / 1e9


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a lane; `shade` is 1, or less where it is so only some of the time."""

    start: float
    end: float
    label: str
    colour: int
    shade: float = 1.0


@dataclass(frozen=True, slots=True)
class Lane:
    """What holds when: text, or whether something is true; `marks` are its records, if few."""

    label: str
    spans: tuple[Span, ...]
    marks: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Thumb:
    """One frame of a camera, in its slot of the strip."""

    slot: int
    place: float
    ts_ns: int
    image: Pixels


@dataclass(frozen=True, slots=True)
class Panel:
    """One signal: curves, or lanes, or a strip of frames; none of them where there is nothing."""

    name: str
    facts: tuple[str, ...]
    gaps: tuple[tuple[float, float], ...] = ()
    curves: tuple[Curve, ...] = ()
    named: bool = False
    lanes: tuple[Lane, ...] = ()
    thumbs: tuple[Thumb, ...] = ()
    slots: int = 0
    thumb_height: int = 0

    @property
    def height(self) -> int:
        """The pixels that it is high."""
        if self.slots:
            return self.thumb_height + MARK
        if self.lanes:
            return LANE * len(self.lanes)
        if self.curves:
            return max(_CURVES, NAME * len(self.curves) + 6 if self.named else 0)
        return LANE
