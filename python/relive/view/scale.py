"""Ticks of an axis, and numbers and times as short texts."""

import math
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from relive.view.downsample import Curve

PALETTE: Final = (
    "#1d6fb8", "#d1642a", "#3a8f4b", "#b8489c", "#8a6d1f",
    "#12959b", "#c23b43", "#6a5acd", "#6b7a86", "#7fa31f",
)  # fmt: skip
"""The colours of curves and bars, in this order."""

_UNITS: Final = ((7200.0, "h", 3600.0), (1.0, "s", 1.0), (1e-3, "ms", 1e-3), (1e-6, "µs", 1e-6))
_FIRST_DATE_NS: Final = 946_684_800_000_000_000
"""Earlier timestamps, before the year 2000, do not count from 1970."""
_LAST_DATE_NS: Final = 4_102_444_800_000_000_000


def time_unit(seconds: float) -> tuple[str, float]:
    """Return the unit in which a duration is a short number, and the seconds of that unit."""
    for least, name, size in _UNITS:
        if seconds >= least:
            return name, size
    return "ns", 1e-9


def ticks(low: float, high: float, most: int) -> list[float]:
    """Return at most `most` round, evenly spaced numbers from `low` to `high`."""
    span = high - low
    if not math.isfinite(span):
        return [low, 0.0, high]
    if span / most < sys.float_info.min:
        return [low]
    power = 10.0 ** math.floor(math.log10(span / most))
    for factor in (1, 2, 5, 10, 20):
        step = factor * power
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < most:
            return [number * step for number in range(first, last + 1)]
    return [low]


def height_range(curves: Iterable[Curve]) -> tuple[float, float]:
    """Return the lowest and the highest value of curves, with a margin."""
    values = np.concatenate([curve.y[~np.isnan(curve.y)] for curve in curves])
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    margin = 0.12 * (high / 2 - low / 2) or 0.5 * abs(low) or 0.5
    most = sys.float_info.max
    return max(low - margin, -most), min(high + margin, most)


def share(value: Any, low: float, high: float) -> Any:
    """Return the position of a number, or of an array, between `low` (0) and `high` (1)."""
    return (value / 2 - low / 2) / (high / 2 - low / 2)  # high - low may overflow


def duration_text(nanoseconds: int) -> str:
    """Return a duration with its unit."""
    name, size = time_unit(nanoseconds / 1e9)
    return f"{nanoseconds / 1e9 / size:.4g} {name}"


def rate_text(rate: float) -> str:
    """Return a rate with three significant digits."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"  # noqa: PLR2004 - three digits


def tick_texts(numbers: Sequence[float]) -> list[str]:
    """Return numbers with as few digits as distinguish them."""
    texts = [f"{number:.6g}" for number in numbers]
    short = [f"{number:.3g}" for number in numbers]
    if max(map(len, texts)) > len("-123.456") + 1 and len(set(short)) == len(numbers):
        return short
    for digits in range(7, 18):
        if len(set(texts)) == len(numbers):
            break
        texts = [f"{number:.{digits}g}" for number in numbers]
    return texts


def clock_text(ts_ns: int, digits: int = 3) -> str:
    """Return a timestamp as date and time in UTC; one that is not a date in nanoseconds."""
    if not _FIRST_DATE_NS <= ts_ns < _LAST_DATE_NS:
        return f"{ts_ns} ns"
    seconds, rest = divmod(ts_ns, 1_000_000_000)
    when = datetime.fromtimestamp(seconds, UTC)
    parts = f".{rest:09}"[: digits + 1] if digits else ""
    return f"{when:%Y-%m-%d %H:%M:%S}{parts} UTC"


def cut(text: str, most: int) -> str:
    """Return printable text on one line of at most `most` letters."""
    plain = "".join(letter if letter.isprintable() else "·" for letter in text)
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"
