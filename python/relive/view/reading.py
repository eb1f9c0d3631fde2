"""Reads the panels of an episode from its signals.

Signals are read piece by piece, so memory does not grow with their length. Nothing here knows
how a panel is drawn.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive.errors import UnknownNameError
from relive.model.episode import Episode
from relive.model.schema import Field
from relive.model.signal import Signal
from relive.view.downsample import (
    COLUMNS,
    Curve,
    Floats,
    Thinner,
    as_steps,
    hide_unfit,
    interrupted,
)
from relive.view.images import is_picture, shrink, visible
from relive.view.panels import SPACE, WIDTH, Axis, Lane, Panel, Span, Thumb
from relive.view.scale import rate_text
from relive.view.timing import Rhythm, rhythm

__all__ = ["make_panels"]

_THUMB: Final = 84
"""Pixels that a thumbnail is high, at least where it is not as wide as the picture."""
_TALLEST: Final = 120
_MOST_SLOTS: Final = 40
_SHARP: Final = 2
"""Thumbnails have so many pixels where the picture has one, for screens that show them."""
_FEW: Final = 12
"""A vector of more items has no names beside it."""
_MANY: Final = 32
"""Of a vector of more items only the least, the mean and the most are drawn."""
_READ_BYTES: Final = 8 << 20


def make_panels(
    episode: Episode, names: Sequence[str] | None = None
) -> tuple[Axis | None, list[Panel]]:
    """Read what is to be drawn of an episode, cameras first; there is no axis without records."""
    chosen = list(episode.signals) if names is None else list(dict.fromkeys(names))
    for name in chosen:
        if name not in episode.signals:
            there = ", ".join(map(repr, episode.signals)) or "none"
            raise UnknownNameError(f"no signal {name!r}; there is {there}")
    signals = {name: _ordered(episode.signals[name]) for name in chosen}
    axis = _axis([signal for signal in signals.values() if len(signal)])
    if names is None:
        chosen.sort(key=lambda name: signals[name].kind != "image")
    return axis, [_panel(name, signals[name], axis) for name in chosen]


def _ordered(signal: Signal[Any]) -> Signal[Any]:
    """Give a signal in the order of time; samples may have been taken in another."""
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
    beat = rhythm(signal.timestamps)
    facts = tuple(_facts(signal, beat))
    if axis is None or not len(signal):
        return Panel(name, facts)
    gaps = _gaps(signal, axis, beat)
    until = gaps[-1][0] if gaps and gaps[-1][1] == 1 else 1.0
    items = math.prod(signal.shape)
    if signal.kind == "image" or is_picture(signal.shape):
        return _strip(signal, axis, Panel(name, facts, gaps))
    if signal.dtype == "str":
        return Panel(name, facts, lanes=(_text(signal, axis),))
    if items == 0:
        return Panel(name, (*facts, "values without items"), gaps)
    if signal.dtype == np.bool_ and items <= _MANY:
        return Panel(name, facts, gaps, lanes=_flags(signal, axis, gaps, until))
    whole = isinstance(signal.dtype, np.dtype) and signal.dtype.kind in "biu"
    stepwise = whole or not beat.steady  # between records that are rare, the value holds
    curves, unfit = _curves(signal, axis, gaps, until if stepwise else None)
    facts += (f"{unfit:,} not finite",) if unfit else ()
    facts += ("least, mean and most item",) if items > _MANY else ()
    return Panel(name, facts, gaps, curves, named=1 < len(curves) <= _FEW)


def _facts(signal: Signal[Any], beat: Rhythm) -> Iterator[str]:
    shape = f"{'×'.join(map(str, signal.shape))} " if signal.shape else ""
    yield f"{shape}{signal.dtype}"
    yield f"{len(signal):,} record{'' if len(signal) == 1 else 's'}"
    unit = signal.attrs.get("unit")
    if isinstance(unit, str):
        yield f"in {unit}"
    if beat.rate_hz is not None:
        yield f"{rate_text(beat.rate_hz)} Hz"
    if beat.gaps:
        yield f"{len(beat.gaps)} gap{'' if len(beat.gaps) == 1 else 's'}"


def _gaps(signal: Signal[Any], axis: Axis, beat: Rhythm) -> tuple[tuple[float, float], ...]:
    """Give from where to where there is nothing, also after the last record."""
    stamps = signal.timestamps
    rows = np.array(beat.gaps, dtype=np.intp)
    before, after = axis.places(stamps[rows]), axis.places(stamps[rows + 1])
    gaps = list(zip(before.tolist(), after.tolist(), strict=True))
    if beat.silent(axis.first_ts + axis.span_ns - signal.last_ts):
        gaps.append((float(axis.places(stamps[-1:])[0]), 1.0))
    return tuple(gaps)


def _pieces(signal: Signal[Any], axis: Axis) -> Iterator[tuple[Floats, npt.NDArray[Any]]]:
    """Give places and values, piece by piece; a value is one axis of items."""
    size = Field(signal.dtype, signal.shape).nbytes or 64
    count = max(1, _READ_BYTES // max(1, size))
    stamps = signal.timestamps
    for start in range(0, len(signal), count):
        rows = range(start, min(start + count, len(signal)))
        values = signal.values_at(rows)
        yield axis.places(stamps[start : rows.stop]), values.reshape(len(rows), -1)


def _labels(signal: Signal[Any]) -> list[str]:
    items = math.prod(signal.shape)
    names = signal.attrs.get("names")
    if isinstance(names, list | tuple) and len(names) == items:
        return [str(name) for name in names]
    return [",".join(map(str, place)) for place in np.ndindex(signal.shape)] if items else []


def _curves(
    signal: Signal[Any], axis: Axis, gaps: Sequence[tuple[float, float]], until: float | None
) -> tuple[tuple[Curve, ...], int]:
    """Give a curve for each item, in steps that hold `until` then, and how many are not finite."""
    items = math.prod(signal.shape)
    labels = _labels(signal) if items <= _MANY else ["least", "mean", "most"]
    breaks = np.array([start for start, _ in gaps])
    thin = Thinner(len(labels)) if len(signal) > 4 * COLUMNS else None
    unfit, curves = 0, list[Curve]()
    for across, values in _pieces(signal, axis):
        heights = values.astype(np.float64) if items <= _MANY else _extent(values)
        if thin is not None:
            thin.add(across, heights)
            continue
        unfit += hide_unfit(heights)
        curves = [
            Curve(
                label,
                np.concatenate([before.across, across]) if before else across,
                np.concatenate([before.heights, heights[:, number]])
                if before
                else heights[:, number],
            )
            for number, label in enumerate(labels)
            for before in [curves[number] if curves else None]
        ]
    if thin is not None:
        return tuple(thin.curves(labels, breaks)), thin.unfit
    drawn = [
        Curve(curve.label, *interrupted(curve.across, curve.heights, breaks)) for curve in curves
    ]
    if until is not None:
        drawn = [as_steps(curve, until) for curve in drawn]
    return tuple(drawn), unfit


def _extent(values: npt.NDArray[Any]) -> Floats:
    """Give the least, the mean and the most finite item of each value."""
    numbers = values.astype(np.float64)
    fit = np.isfinite(numbers)
    low = np.where(fit, numbers, np.inf).min(axis=1)
    high = np.where(fit, numbers, -np.inf).max(axis=1)
    count = np.maximum(fit.sum(axis=1), 1)
    mean = (np.where(fit, numbers, 0) / count[:, None]).sum(axis=1)
    mean[~fit.any(axis=1)] = np.nan
    return np.stack([low, mean, high], axis=1)


def _text(signal: Signal[Any], axis: Axis) -> Lane:
    """Give a span for each stretch of one text, at the width of a column told apart or not."""
    places = axis.places(signal.timestamps)
    columns = np.minimum((places * COLUMNS).astype(np.intp), COLUMNS - 1)
    last = np.append(np.flatnonzero(np.diff(columns)), len(columns) - 1)  # of each column
    rows = np.arange(len(places)) if len(places) <= COLUMNS else last
    texts = [str(text) for text in signal.values_at(rows)]
    colours: dict[str, int] = {}
    starts = [
        number for number, text in enumerate(texts) if not number or text != texts[number - 1]
    ]
    ends = [float(places[rows[number]]) for number in starts[1:]] + [1.0]
    spans = tuple(
        Span(
            float(places[rows[number]]),
            end,
            texts[number],
            colours.setdefault(texts[number], len(colours)),
        )
        for number, end in zip(starts, ends, strict=True)
    )
    few = len(places) <= COLUMNS // 4
    return Lane("", spans, tuple(places.tolist()) if few else ())


def _flags(
    signal: Signal[Any], axis: Axis, gaps: Sequence[tuple[float, float]], until: float
) -> tuple[Lane, ...]:
    """Give a lane for each flag, with spans where it is true, paler where only in part."""
    labels = _labels(signal)
    curves, _ = _curves(signal, axis, gaps, until)
    lanes = []
    for number, (label, curve) in enumerate(zip(labels, curves, strict=True)):
        if len(signal) > 4 * COLUMNS:
            spans = _shaded(curve, number)
        else:
            spans = [
                Span(start, end, "true", number)
                for (start, end), height in zip(
                    pairwise(curve.across.tolist()), curve.heights.tolist(), strict=False
                )
                if height == 1 and end >= start
            ]
        lanes.append(Lane(label, tuple(_joined(spans))))
    return tuple(lanes)


def _shaded(curve: Curve, colour: int) -> list[Span]:
    """Give spans of a thinned flag: whole where its column is always true, paler where mixed."""
    spans = []
    solid = ~np.isnan(curve.heights)
    across, heights = curve.across[solid].reshape(-1, 4), curve.heights[solid].reshape(-1, 4)
    for place, (_, low, high, _) in zip(across, heights.tolist(), strict=True):
        if high == 1:
            shade = 1.0 if low == 1 else 0.5
            label = "true" if low == 1 else "now and then true"
            spans.append(Span(float(place[0]), float(place[3]), label, colour, shade))
    return spans


def _joined(spans: Sequence[Span]) -> Iterator[Span]:
    """Make one span of those that touch and are alike."""
    open_span: Span | None = None
    for span in spans:
        if open_span is not None:
            touching = span.start <= open_span.end + 1e-9
            if touching and (span.label, span.shade) == (open_span.label, open_span.shade):
                open_span = Span(open_span.start, span.end, span.label, span.colour, span.shade)
                continue
            yield open_span
        open_span = span
    if open_span is not None:
        yield open_span


def _strip(signal: Signal[Any], axis: Axis, panel: Panel) -> Panel:
    """Add a thumbnail for each slot in which there is a frame: the one nearest to its middle."""
    height, width = signal.shape[:2]
    slots = max(1, min(_MOST_SLOTS, int(WIDTH / (_THUMB * width / height))))
    tall = round(max(8, min(_TALLEST, (WIDTH / slots - SPACE) * height / width)))
    places = axis.places(signal.timestamps)
    chosen: dict[int, int] = {}
    for slot in range(slots):
        middle = (slot + 0.5) / slots
        after = int(np.searchsorted(places, middle))
        near = [row for row in (after - 1, after) if 0 <= row < len(places)]
        row = min(near, key=lambda row: abs(float(places[row]) - middle))
        if min(int(places[row] * slots), slots - 1) == slot:
            chosen[slot] = row
    small = [
        shrink(np.asarray(frame), tall * _SHARP, round(tall * _SHARP * width / height) or 1)
        for frame in signal.iterate(np.array(list(chosen.values()), dtype=np.int64))
    ]
    images, ends = visible(small)
    stamps = signal.timestamps
    thumbs = tuple(
        Thumb(slot, float(places[row]), int(stamps[row]), image)
        for (slot, row), image in zip(chosen.items(), images, strict=True)
    )
    facts = panel.facts
    if ends is not None:
        facts += (f"black {ends[0]:.6g}, white {ends[1]:.6g}",)
    return replace(panel, facts=facts, thumbs=thumbs, slots=slots, thumb_height=tall)
