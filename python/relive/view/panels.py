"""What a picture of an episode shows: a panel for each signal, all on one time axis.

Signals are read in parts, so memory does not grow with their length. `layout` draws the panels.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive.errors import UnknownNameError
from relive.model.clock import Times
from relive.model.episode import Episode
from relive.model.schema import Field
from relive.model.signal import Signal
from relive.view.downsample import (
    COLUMNS,
    Curve,
    Downsampler,
    Floats,
    as_steps,
    break_curve,
    mask_nonfinite,
)
from relive.view.images import Pixels, downscale, is_image_shape, to_rgb
from relive.view.scale import rate_text
from relive.view.timing import Timing, elapsed_ns, measure_timing

WIDTH: Final = 1000
"""The width of the time axis in pixels."""
TRACK: Final = 22
"""The height of a track in pixels."""
LEGEND: Final = 15
"""The height of a line of the legend in pixels."""
SPACE: Final = 4
"""The space between two thumbnails in pixels."""
MARK: Final = 6
"""The height in pixels of the mark below a thumbnail, at the time of its frame."""

_CURVES: Final = 104
_THUMBNAIL: Final = 84
"""The height of a thumbnail in pixels, unless it is as wide as the picture."""
_TALLEST: Final = 120
_MOST_SLOTS: Final = 40
_SHARPNESS: Final = 2
"""The pixels of a thumbnail per pixel of the picture, for high-resolution screens."""
_LEGEND_ITEMS: Final = 12
"""Vectors with more items have no legend."""
_MOST_CURVES: Final = 32
"""Of vectors with more items only the lowest, mean and highest item are drawn."""
_READ_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class Axis:
    """The time from the left of a picture to its right; `zero_ts` is labelled 0."""

    first_ts: int
    span_ns: int
    zero_ts: int

    def x(self, timestamps: Times) -> Floats:
        """Return the positions of timestamps, from 0 at the left to 1 at the right."""
        elapsed: Any = elapsed_ns(timestamps, self.first_ts)
        return np.asarray(elapsed / np.float64(self.span_ns), dtype=np.float64)

    @property
    def seconds(self) -> tuple[float, float]:
        """The seconds at the left and at the right."""
        left = (self.first_ts - self.zero_ts) / 1e9
        return left, left + self.span_ns / 1e9


@dataclass(frozen=True, slots=True)
class Bar:
    """A part of a track; `shade` is less than 1 if the label applies only some of the time."""

    start: float
    end: float
    label: str
    colour: int
    shade: float = 1.0


@dataclass(frozen=True, slots=True)
class Track:
    """One line of bars: a text, or a flag while it is true; `marks` are its records, if few."""

    label: str
    bars: tuple[Bar, ...]
    marks: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Thumbnail:
    """One frame of a camera, in its slot of the strip."""

    slot: int
    x: float
    ts_ns: int
    image: Pixels


@dataclass(frozen=True, slots=True)
class Panel:
    """One signal: curves, tracks or a strip of frames; none of them if there is nothing to draw."""

    name: str
    facts: tuple[str, ...]
    gaps: tuple[tuple[float, float], ...] = ()
    curves: tuple[Curve, ...] = ()
    legend: bool = False
    tracks: tuple[Track, ...] = ()
    thumbnails: tuple[Thumbnail, ...] = ()
    slots: int = 0
    thumbnail_height: int = 0

    @property
    def height(self) -> int:
        """The height in pixels."""
        if self.slots:
            return self.thumbnail_height + MARK
        if self.tracks:
            return TRACK * len(self.tracks)
        if self.curves:
            return max(_CURVES, LEGEND * len(self.curves) + 6 if self.legend else 0)
        return TRACK


def make_panels(
    episode: Episode, names: Sequence[str] | None = None
) -> tuple[Axis | None, list[Panel]]:
    """Read what is drawn of an episode, cameras first; the axis is None if there are no records."""
    chosen = list(episode.signals) if names is None else list(dict.fromkeys(names))
    for name in chosen:
        if name not in episode.signals:
            known = ", ".join(map(repr, episode.signals)) or "none"
            raise UnknownNameError(f"unknown signal {name!r}", hint=f"the signals are {known}")
    signals = {name: _ordered(episode.signals[name]) for name in chosen}
    axis = _axis([signal for signal in signals.values() if len(signal)])
    if names is None:
        chosen.sort(key=lambda name: signals[name].kind != "image")
    return axis, [_panel(name, signals[name], axis) for name in chosen]


def _ordered(signal: Signal[Any]) -> Signal[Any]:
    """Return a signal in the order of time; a sampled signal may have another order."""
    stamps = signal.timestamps
    if bool((stamps[1:] >= stamps[:-1]).all()):
        return signal
    return signal.select(np.argsort(stamps, kind="stable"))


def _axis(signals: Sequence[Signal[Any]]) -> Axis | None:
    if not signals:
        return None
    first = min(signal.start_ts for signal in signals)
    last = max(signal.last_ts for signal in signals)
    if first == last:
        return Axis(first - 500_000_000, 1_000_000_000, first)
    return Axis(first, last - first, first)


def _panel(name: str, signal: Signal[Any], axis: Axis | None) -> Panel:
    timing = measure_timing(signal.timestamps)
    facts = tuple(_facts(signal, timing))
    if axis is None or not len(signal):
        return Panel(name, facts)
    gaps = _gaps(signal, axis, timing)
    until = gaps[-1][0] if gaps and gaps[-1][1] == 1 else 1.0
    items = math.prod(signal.shape)
    if signal.kind == "image" or is_image_shape(signal.shape):
        return _strip(signal, axis, Panel(name, facts, gaps))
    if signal.dtype == "str":
        return Panel(name, facts, tracks=(_text_track(signal, axis),))
    if items == 0:
        return Panel(name, (*facts, "values without items"), gaps)
    if signal.dtype == np.bool_ and items <= _MOST_CURVES:
        return Panel(name, facts, gaps, tracks=_flag_tracks(signal, axis, gaps, until))
    whole = isinstance(signal.dtype, np.dtype) and signal.dtype.kind in "biu"
    stepwise = whole or not timing.regular  # a value holds until the next irregular record
    curves, nonfinite = _curves(signal, axis, gaps, until if stepwise else None)
    facts += (f"{nonfinite:,} not finite",) if nonfinite else ()
    facts += ("lowest, mean and highest item",) if items > _MOST_CURVES else ()
    return Panel(name, facts, gaps, curves, legend=1 < len(curves) <= _LEGEND_ITEMS)


def _facts(signal: Signal[Any], timing: Timing) -> Iterator[str]:
    shape = f"{'×'.join(map(str, signal.shape))} " if signal.shape else ""
    yield f"{shape}{signal.dtype}"
    yield f"{len(signal):,} record{'' if len(signal) == 1 else 's'}"
    unit = signal.attrs.get("unit")
    if isinstance(unit, str):
        yield f"in {unit}"
    if timing.rate_hz is not None:
        yield f"{rate_text(timing.rate_hz)} Hz"
    if timing.gaps:
        yield f"{len(timing.gaps)} gap{'' if len(timing.gaps) == 1 else 's'}"


def _gaps(signal: Signal[Any], axis: Axis, timing: Timing) -> tuple[tuple[float, float], ...]:
    """Return where gaps start and end, also the one after the last record."""
    stamps = signal.timestamps
    rows = np.array(timing.gaps, dtype=np.intp)
    before, after = axis.x(stamps[rows]), axis.x(stamps[rows + 1])
    gaps = list(zip(before.tolist(), after.tolist(), strict=True))
    if timing.is_gap(axis.first_ts + axis.span_ns - signal.last_ts):
        gaps.append((float(axis.x(stamps[-1:])[0]), 1.0))
    return tuple(gaps)


def _parts(signal: Signal[Any], axis: Axis) -> Iterator[tuple[Floats, npt.NDArray[Any]]]:
    """Yield positions and values in parts; the items of a value are one dimension."""
    size = Field(signal.dtype, signal.shape).nbytes or 64
    count = max(1, _READ_BYTES // max(1, size))
    stamps = signal.timestamps
    for start in range(0, len(signal), count):
        rows = range(start, min(start + count, len(signal)))
        values = signal.values_at(rows)
        yield axis.x(stamps[start : rows.stop]), values.reshape(len(rows), -1)


def _labels(signal: Signal[Any]) -> list[str]:
    items = math.prod(signal.shape)
    names = signal.attrs.get("names")
    if isinstance(names, list | tuple) and len(names) == items:
        return [str(name) for name in names]
    return [",".join(map(str, index)) for index in np.ndindex(signal.shape)]


def _curves(
    signal: Signal[Any], axis: Axis, gaps: Sequence[tuple[float, float]], until: float | None
) -> tuple[tuple[Curve, ...], int]:
    """Return a curve for each item and the number of values that are not finite.

    With `until`, a curve is drawn in steps, the last of which ends there.
    """
    items = math.prod(signal.shape)
    labels = _labels(signal) if items <= _MOST_CURVES else ["lowest", "mean", "highest"]
    breaks = np.array([start for start, _ in gaps])
    values = (
        (x, part.astype(np.float64) if items <= _MOST_CURVES else _extent(part))
        for x, part in _parts(signal, axis)
    )
    if len(signal) > 4 * COLUMNS:
        reduced = Downsampler(len(labels))
        for x, y in values:
            reduced.add(x, y)
        return tuple(reduced.curves(labels, breaks)), reduced.nonfinite
    x, y = (np.concatenate(parts) for parts in zip(*values, strict=True))
    nonfinite = mask_nonfinite(y)
    curves = [
        Curve(label, *break_curve(x, y[:, number], breaks)) for number, label in enumerate(labels)
    ]
    if until is not None:
        curves = [as_steps(curve, until) for curve in curves]
    return tuple(curves), nonfinite


def _extent(values: npt.NDArray[Any]) -> Floats:
    """Return the lowest, mean and highest finite item of each value."""
    numbers = values.astype(np.float64)
    finite = np.isfinite(numbers)
    low = np.where(finite, numbers, np.inf).min(axis=1)
    high = np.where(finite, numbers, -np.inf).max(axis=1)
    count = np.maximum(finite.sum(axis=1), 1)
    mean = (np.where(finite, numbers, 0) / count[:, None]).sum(axis=1)
    mean[~finite.any(axis=1)] = np.nan
    return np.stack([low, mean, high], axis=1)


def _text_track(signal: Signal[Any], axis: Axis) -> Track:
    """Return a bar for each run of equal texts; of many records, the last one per column."""
    x = axis.x(signal.timestamps)
    columns = np.minimum((x * COLUMNS).astype(np.intp), COLUMNS - 1)
    last = np.append(np.flatnonzero(np.diff(columns)), len(columns) - 1)
    rows = np.arange(len(x)) if len(x) <= COLUMNS else last
    texts = [str(text) for text in signal.values_at(rows)]
    starts = [
        number for number, text in enumerate(texts) if not number or text != texts[number - 1]
    ]
    ends = [float(x[rows[number]]) for number in starts[1:]] + [1.0]
    colours: dict[str, int] = {}
    bars = tuple(
        Bar(
            float(x[rows[number]]),
            end,
            texts[number],
            colours.setdefault(texts[number], len(colours)),
        )
        for number, end in zip(starts, ends, strict=True)
    )
    few = len(x) <= COLUMNS // 4
    return Track("", bars, tuple(x.tolist()) if few else ())


def _flag_tracks(
    signal: Signal[Any], axis: Axis, gaps: Sequence[tuple[float, float]], until: float
) -> tuple[Track, ...]:
    """Return a track for each flag, with bars while it is true, paler if only in part."""
    curves, _ = _curves(signal, axis, gaps, until)
    tracks = []
    for number, (label, curve) in enumerate(zip(_labels(signal), curves, strict=True)):
        if len(signal) > 4 * COLUMNS:
            bars = _shaded_bars(curve, number)
        else:
            bars = [
                Bar(start, end, "true", number)
                for (start, end), y in zip(
                    pairwise(curve.x.tolist()), curve.y.tolist(), strict=False
                )
                if y == 1 and end >= start
            ]
        tracks.append(Track(label, tuple(_joined(bars))))
    return tuple(tracks)


def _shaded_bars(curve: Curve, colour: int) -> list[Bar]:
    """Return the bars of a reduced flag: paler for a column in which it is only partly true."""
    bars = []
    solid = ~np.isnan(curve.y)
    x, y = curve.x[solid].reshape(-1, 4), curve.y[solid].reshape(-1, 4)
    for column, (_, low, high, _) in zip(x, y.tolist(), strict=True):
        if high == 1:
            label, shade = ("true", 1.0) if low == 1 else ("sometimes true", 0.5)
            bars.append(Bar(float(column[0]), float(column[3]), label, colour, shade))
    return bars


def _joined(bars: Sequence[Bar]) -> Iterator[Bar]:
    """Join bars that touch and are alike."""
    last: Bar | None = None
    for bar in bars:
        if last is not None:
            touching = bar.start <= last.end + 1e-9
            if touching and (bar.label, bar.shade) == (last.label, last.shade):
                last = replace(last, end=bar.end)
                continue
            yield last
        last = bar
    if last is not None:
        yield last


def _strip(signal: Signal[Any], axis: Axis, panel: Panel) -> Panel:
    """Add a thumbnail for each slot that contains a frame: the one nearest to its centre."""
    height, width = signal.shape[:2]
    slots = max(1, min(_MOST_SLOTS, int(WIDTH / (_THUMBNAIL * width / height))))
    tall = round(max(8, min(_TALLEST, (WIDTH / slots - SPACE) * height / width)))
    x = axis.x(signal.timestamps)
    chosen: dict[int, int] = {}
    for slot in range(slots):
        centre = (slot + 0.5) / slots
        after = int(np.searchsorted(x, centre))
        near = [row for row in (after - 1, after) if 0 <= row < len(x)]
        row = min(near, key=lambda row: abs(float(x[row]) - centre))
        if min(int(x[row] * slots), slots - 1) == slot:
            chosen[slot] = row
    small = [
        downscale(
            np.asarray(frame), tall * _SHARPNESS, round(tall * _SHARPNESS * width / height) or 1
        )
        for frame in signal.iterate(np.array(list(chosen.values()), dtype=np.int64))
    ]
    images, extremes = to_rgb(small)
    stamps = signal.timestamps
    thumbnails = tuple(
        Thumbnail(slot, float(x[row]), int(stamps[row]), image)
        for (slot, row), image in zip(chosen.items(), images, strict=True)
    )
    facts = panel.facts
    if extremes is not None:
        facts += (f"black {extremes[0]:.6g}, white {extremes[1]:.6g}",)
    return replace(panel, facts=facts, thumbnails=thumbnails, slots=slots, thumbnail_height=tall)
