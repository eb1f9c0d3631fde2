"""Arrange the panels of an episode as rectangles, lines, dots, texts and images.

`svg` and `png` draw these shapes; the layout and colours of a picture are defined here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from relive.model.episode import Episode
from relive.view.downsample import Floats, isolated_points
from relive.view.images import Pixels
from relive.view.panels import LEGEND, MARK, SPACE, TRACK, WIDTH, Axis, Bar, Panel, make_panels
from relive.view.scale import (
    PALETTE,
    clock_text,
    cut,
    duration_text,
    height_range,
    share,
    tick_texts,
    ticks,
    time_unit,
)

COLOURS: Final = {
    "ink": ("#1b2733", "#e6ebf0"),
    "dim": ("#66737f", "#9aa7b3"),
    "rule": ("#dfe4e9", "#36414c"),
    "panel": ("#f6f8fa", "#1c242c"),
    "gap": ("#f7e3e3", "#4a2a2e"),
}
"""Named colours on a light and on a dark background; any other colour is a hex value."""

_LEFT, _RIGHT, _TITLE, _GAP, _FOOT, _HEADING = 84, 126, 22, 16, 40, 58
_TICKS: Final = 9
_LETTER: Final = 7.0
"""The approximate width of a letter in pixels."""


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A filled rectangle; `title` is its tooltip."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    opacity: float = 1.0
    title: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points, interrupted where `y` is NaN."""

    x: Floats
    y: Floats
    stroke: str
    width: float = 1.0
    title: str = ""


@dataclass(frozen=True, slots=True)
class Dots:
    """Small dots."""

    x: Floats
    y: Floats
    fill: str


@dataclass(frozen=True, slots=True)
class Text:
    """A line of text on its baseline, and after it a `note` in normal weight and colour."""

    x: float
    y: float
    text: str
    fill: str = "dim"
    anchor: str = "start"
    size: float = 12
    bold: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Image:
    """Pixels scaled to a size: `smooth`, or with visible pixels."""

    x: float
    y: float
    width: float
    height: float
    pixels: Pixels
    smooth: bool
    title: str = ""


Shape: TypeAlias = Rectangle | Line | Dots | Text | Image


@dataclass(frozen=True, slots=True)
class Drawing:
    """Shapes in the order in which they are drawn; `y` grows downwards from 0 at the top."""

    width: float
    height: float
    shapes: tuple[Shape, ...]


def lay_out(
    episode: Episode, signals: Sequence[str] | None = None, *, with_heading: bool = False
) -> Drawing:
    """Return the drawing of all signals of an episode, or of those named, over time."""
    axis, panels = make_panels(episode, signals)
    shapes: list[Shape] = []
    y = 4.0
    if with_heading:
        title, subtitle = heading(episode)
        shapes.append(Text(8, 22, cut(title, 120), "ink", size=18, bold=True))
        shapes.append(Text(8, 42, cut(subtitle, 160)))
        y = _HEADING
    for panel in panels:
        facts = cut("  ·  ".join(panel.facts), 1000)
        name = cut(panel.name, 60)
        shapes.append(Text(_LEFT, y + 14, name, "ink", size=13, bold=True, note=facts))
        shapes += _panel(panel, axis, y + _TITLE)
        y += _TITLE + panel.height + _GAP
    if axis is not None:
        shapes += _time_axis(axis, y)
        y += _FOOT
    elif not panels:
        shapes.append(Text(_LEFT, y + 20, "no signals"))
        y += _FOOT
    return Drawing(_LEFT + WIDTH + _RIGHT, y, tuple(shapes))


def heading(episode: Episode) -> tuple[str, str]:
    """Return a title for an episode, and a line of facts about it."""
    meta = episode.meta
    facts = []
    created = meta.get("created_ts_ns")
    if isinstance(created, int):
        facts.append(clock_text(created))
    if any(len(signal) for signal in episode.signals.values()):
        facts.append(duration_text(episode.duration_ns))
    count = len(episode.signals)
    facts.append(f"{count} signal{'' if count == 1 else 's'}")
    ended = (meta.get("outcome") or {}).get("ended")
    if isinstance(ended, str) and ended != "committed":
        facts.append(ended)
    return f"Episode {episode.uid}".strip(), "  ·  ".join(facts)


def _panel(panel: Panel, axis: Axis | None, top: float) -> Iterator[Shape]:
    height = panel.height
    yield Rectangle(_LEFT, top, WIDTH, height, "panel")
    for x, _ in _time_ticks(axis) if axis is not None else ():
        yield _vertical(x, top, height, "rule")
    for start, end in panel.gaps:
        width = max((end - start) * WIDTH, 1)
        yield Rectangle(_x(start), top, width, height, "gap", title="nothing was recorded here")
    if panel.curves:
        yield from _curves(panel, top, height)
    for number, track in enumerate(panel.tracks):
        y = top + number * TRACK
        if track.label:
            yield Text(_LEFT - 6, y + 15, cut(track.label, 11), anchor="end")
        for bar in track.bars:
            yield from _bar(bar, y)
        for mark in track.marks:
            yield _vertical(mark, y + TRACK - 4, 4, "dim")
    if panel.slots and axis is not None:
        yield from _thumbnails(panel, top, axis)
    if not (panel.curves or panel.tracks or panel.slots):
        yield Text(_LEFT + 8, top + 15, "nothing to draw")


def _curves(panel: Panel, top: float, height: float) -> Iterator[Shape]:
    low, high = height_range(panel.curves)
    marks = ticks(low, high, 4)
    for tick, label in zip(marks, tick_texts(marks), strict=True):
        y = top + (1 - share(tick, low, high)) * height
        yield Line(np.array([_LEFT, _LEFT + WIDTH]), np.array([y, y]), "rule")
        yield Text(_LEFT - 6, y + 4, label, anchor="end")
    for number, curve in enumerate(panel.curves):
        colour = PALETTE[number % len(PALETTE)]
        x = _LEFT + curve.x * WIDTH
        y = top + (1 - share(curve.y, low, high)) * height
        yield Line(x, y, colour, 1.3, cut(curve.label or panel.name, 200))
        alone = isolated_points(curve)
        if alone.any():
            yield Dots(x[alone], y[alone], colour)
        if panel.legend:
            below = top + 11 + LEGEND * number
            yield Text(_LEFT + WIDTH + 8, below, cut(curve.label, 17), colour)


def _bar(bar: Bar, top: float) -> Iterator[Shape]:
    width = max((bar.end - bar.start) * WIDTH, 1.5)
    colour = PALETTE[bar.colour % len(PALETTE)]
    yield Rectangle(
        _x(bar.start), top + 2, width, TRACK - 4, colour, 0.35 * bar.shade, cut(bar.label, 1000)
    )
    letters = int((width - 8) / _LETTER)
    if bar.label not in {"", "true"} and letters >= min(3, len(bar.label)):
        yield Text(_x(bar.start) + 5, top + 15, cut(bar.label, letters), "ink")


def _thumbnails(panel: Panel, top: float, axis: Axis) -> Iterator[Shape]:
    slot, tall = WIDTH / panel.slots, panel.thumbnail_height
    for thumbnail in panel.thumbnails:
        rows, columns = thumbnail.image.shape[:2]
        scale = min((slot - SPACE) / columns, tall / rows)
        width, height = columns * scale, rows * scale
        x = _LEFT + (thumbnail.slot + 0.5) * slot - width / 2
        seconds = (thumbnail.ts_ns - axis.zero_ts) / 1e9
        yield Image(x, top, width, height, thumbnail.image, scale <= 1, f"{seconds:.3f} s")
        yield _vertical(thumbnail.x, top + tall + 1, MARK - 1, "dim")


def _time_axis(axis: Axis, y: float) -> Iterator[Shape]:
    left, right = axis.seconds
    unit, _ = time_unit(right - left)
    for x, label in _time_ticks(axis):
        yield Text(_x(x), y, label, anchor="middle")
    yield Text(_LEFT + WIDTH + 24, y, unit)
    yield Text(_LEFT, y + 22, f"0 {unit} is {clock_text(axis.zero_ts)}")


def _time_ticks(axis: Axis) -> list[tuple[float, str]]:
    """Return the positions and the labels of ticks on the time axis."""
    left, right = axis.seconds
    _, size = time_unit(right - left)
    marks = ticks(left / size, right / size, _TICKS)
    positions = [(mark * size - left) / (right - left) for mark in marks]
    return list(zip(positions, tick_texts(marks), strict=True))


def _vertical(x: float, top: float, height: float, stroke: str) -> Line:
    return Line(np.full(2, _x(x)), np.array([top, top + height]), stroke)


def _x(x: float) -> float:
    return _LEFT + x * WIDTH
