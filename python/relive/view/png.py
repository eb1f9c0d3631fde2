"""An episode as a PNG image, drawn by matplotlib."""

import warnings
from collections.abc import Sequence
from typing import Any, BinaryIO, Final

import numpy as np

from relive._extras import require
from relive.errors import TooLargeError
from relive.model.episode import Episode
from relive.view.downsample import lonely
from relive.view.page import heading
from relive.view.panels import MARK, NAME, SPACE, WIDTH, Axis, Lane, Panel
from relive.view.reading import make_panels
from relive.view.scale import (
    PALETTE,
    clock_text,
    cut,
    height_range,
    share,
    tick_texts,
    ticks,
    time_unit,
)

__all__ = ["draw_png"]

_DPI: Final = 100
_SHARP: Final = 1.5
_LEFT, _RIGHT, _TOP, _FOOT, _TITLE = 84, 126, 62, 58, 30
_LETTER: Final = 7.2
_MOST_PIXELS: Final = 60_000
"""What the drawing library can do."""
_INK, _DIM, _RULE, _BED, _SILENT = "#1b2733", "#66737f", "#dfe4e9", "#f6f8fa", "#f7e3e3"


def draw_png(episode: Episode, file: BinaryIO, signals: Sequence[str] | None = None) -> None:
    """Draw all signals of an episode, or those named, over time, into a file."""
    figures: Any = require("matplotlib.figure", extra="plot", to="draw PNG images")
    axis, panels = make_panels(episode, signals)
    heights = [panel.height for panel in panels]
    full = _TOP + sum(heights) + _TITLE * len(panels) + _FOOT
    if full * _SHARP > _MOST_PIXELS:
        raise TooLargeError(
            f"{len(panels)} signals are too many for one PNG image",
            hint="name some of them, or write HTML",
        )
    width = _LEFT + WIDTH + _RIGHT
    figure = figures.Figure(figsize=(width / _DPI, full / _DPI), dpi=_DPI * _SHARP)
    title, subtitle = heading(episode)
    _write(figure, 8 / width, 1 - 20 / full, cut(title, 120), size=13, weight="bold")
    _write(figure, 8 / width, 1 - 40 / full, cut(subtitle, 160), color=_DIM)
    y = _TOP
    for number, (panel, height) in enumerate(zip(panels, heights, strict=True)):
        y += _TITLE
        box = (_LEFT / width, 1 - (y + height) / full, WIDTH / width, height / full)
        axes = figure.add_axes(box)
        _draw(axes, panel, axis, last=number == len(panels) - 1)
        y += height
    if not panels:
        _write(figure, 0.5, 0.4, "no signals", color=_DIM)
    with warnings.catch_warnings():
        # A letter that no font has is drawn as a box, which says enough.
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        figure.savefig(file, format="png")


def _draw(axes: Any, panel: Panel, axis: Axis | None, *, last: bool) -> None:
    height = panel.height
    left, right = (0.0, 1.0) if axis is None else axis.seconds
    unit, size = time_unit(right - left)
    left, right = left / size, right / size
    axes.set_facecolor(_BED)
    axes.set_xlim(left, right)
    axes.grid(visible=True, axis="x", color=_RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0, labelsize=8, labelcolor=_DIM, labelbottom=last and axis is not None)
    name = cut(panel.name, 60)
    said = _write(axes, 0, 1 + 7 / height, name, weight="bold", size=9.5, coords=axes.transAxes)
    _write_after(said, axes, "  ·  ".join(panel.facts))
    for start, end in panel.gaps:
        at, until = (left + place * (right - left) for place in (start, end))
        axes.axvspan(at, until, color=_SILENT, linewidth=0.8)
    if panel.curves:
        _curves(axes, panel, left, right)
    elif panel.lanes:
        _lanes(axes, panel.lanes, left, right)
    elif panel.slots:
        _strip(axes, panel, left, right)
    else:
        axes.set_yticks([])
        _write(axes, 0.01, 0.3, "nothing to draw", color=_DIM, coords=axes.transAxes)
    if last and axis is not None:
        _write(axes, 1 + 24 / WIDTH, -14 / height, unit, color=_DIM, coords=axes.transAxes)
        zero = f"0 {unit} is {clock_text(axis.zero_ts)}"
        _write(axes, 0, -40 / height, zero, color=_DIM, coords=axes.transAxes)


def _curves(axes: Any, panel: Panel, left: float, right: float) -> None:
    low, high = height_range(panel.curves)
    # Heights are drawn as shares: the library fails on numbers near the largest there are.
    marks = ticks(low, high, 4)
    axes.set_ylim(0, 1)
    axes.set_yticks([share(mark, low, high) for mark in marks], tick_texts(marks))
    axes.grid(visible=True, axis="y", color=_RULE, linewidth=0.8)
    height = panel.height
    for number, curve in enumerate(panel.curves):
        colour = PALETTE[number % len(PALETTE)]
        across = left + curve.across * (right - left)
        up = share(curve.heights, low, high)
        ends = {"solid_joinstyle": "round", "solid_capstyle": "round"}
        axes.plot(across, up, color=colour, linewidth=1.1, **ends)
        alone = lonely(curve)
        if alone.any():
            axes.plot(across[alone], up[alone], ".", color=colour, markersize=3)
        if panel.named:
            x, y = 1 + 8 / WIDTH, 1 - (10 + NAME * number) / height
            label = cut(curve.label, 17)
            _write(axes, x, y, label, color=colour, coords=axes.transAxes)


def _lanes(axes: Any, lanes: Sequence[Lane], left: float, right: float) -> None:
    axes.set_ylim(len(lanes), 0)
    axes.set_yticks([])
    scale = right - left
    for number, lane in enumerate(lanes):
        beside = axes.get_yaxis_transform()
        label = cut(lane.label, 11)
        _write(axes, -6 / WIDTH, number + 0.68, label, color=_DIM, align="right", coords=beside)
        for span in lane.spans:
            colour = PALETTE[span.colour % len(PALETTE)]
            at = left + span.start * scale
            width = max(span.end - span.start, 1.5 / WIDTH) * scale
            axes.broken_barh(
                [(at, width)],
                (number + 0.1, 0.8),
                facecolors=colour,
                alpha=0.35 * span.shade,
                linewidth=0,
            )
            fits = int((width / scale * WIDTH - 8) / _LETTER)
            if span.label not in {"", "true"} and fits >= min(3, len(span.label)):
                label = cut(span.label, fits)
                _write(axes, at + 5 * scale / WIDTH, number + 0.68, label, coords=axes.transData)
        if lane.marks:
            places = left + np.array(lane.marks) * scale
            axes.vlines(places, number + 0.85, number + 1, color=_DIM, linewidth=0.8)


def _strip(axes: Any, panel: Panel, left: float, right: float) -> None:
    axes.set_yticks([])
    scale, slot, tall = right - left, WIDTH / panel.slots, panel.thumb_height
    for thumb in panel.thumbs:
        height, width = thumb.image.shape[:2]
        factor = min((slot - SPACE) / width, tall / height)
        middle, half = (thumb.slot + 0.5) / panel.slots, width * factor / 2 / WIDTH
        ends = (left + (middle + side * half) * scale for side in (-1, 1))
        smooth = "antialiased" if factor < 1 else "nearest"
        box = (*ends, height * factor, 0)
        axes.imshow(thumb.image, extent=box, aspect="auto", interpolation=smooth, zorder=3)
        place = left + thumb.place * scale
        axes.vlines(place, tall + 1, tall + MARK, color=_DIM, linewidth=0.8, zorder=3)
    axes.set_xlim(left, right)
    axes.set_ylim(tall + MARK, 0)


def _write(
    parent: Any,
    x: float,
    y: float,
    text: str,
    *,
    color: str = _INK,
    size: float = 8.5,
    weight: str = "normal",
    align: str = "left",
    coords: Any = None,
) -> Any:
    """Write text as it is, dollar signs and all."""
    where = {} if coords is None else {"transform": coords}
    words = text.encode("utf-8", "replace").decode()
    style = {"color": color, "size": size, "weight": weight, "ha": align}
    return parent.text(x, y, words, parse_math=False, **style, **where)


def _write_after(said: Any, axes: Any, text: str) -> None:
    """Write text to the right of another."""
    axes.annotate(
        text,
        xy=(1, 0),
        xycoords=said,
        xytext=(10, 0),
        textcoords="offset points",
        color=_DIM,
        size=8.5,
        verticalalignment="bottom",
        parse_math=False,
    )
