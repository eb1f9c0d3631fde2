"""Draw an episode as a PNG image with matplotlib."""

import warnings
from collections.abc import Sequence
from typing import Any, BinaryIO, Final

from relive._extras import require
from relive.errors import TooLargeError
from relive.model.episode import Episode
from relive.view.layout import COLOURS, Dots, Image, Line, Rectangle, Shape, Text, lay_out

_DPI: Final = 100
_SHARPNESS: Final = 1.5
_POINTS: Final = 72 / _DPI
"""Points per pixel of the drawing."""
_MOST_PIXELS: Final = 60_000
"""matplotlib cannot draw larger images."""
_ALIGN: Final = {"start": "left", "middle": "center", "end": "right"}


def draw_png(episode: Episode, file: BinaryIO, signals: Sequence[str] | None = None) -> None:
    """Draw all signals of an episode, or those named, over time, into a file."""
    figures: Any = require("matplotlib.figure", extra="plot", to="draw PNG images")
    drawing = lay_out(episode, signals, with_heading=True)
    width, height = drawing.width, drawing.height
    if height * _SHARPNESS > _MOST_PIXELS:
        count = len(episode.signals if signals is None else signals)
        raise TooLargeError(
            f"{count} signals do not fit into one PNG image",
            hint="select fewer signals, or write an HTML file",
        )
    figure = figures.Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI * _SHARPNESS)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    for order, shape in enumerate(drawing.shapes):
        _draw(axes, shape, order)
    with warnings.catch_warnings():
        # A letter that is in no font is drawn as a box.
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        figure.savefig(file, format="png")


def _draw(axes: Any, shape: Shape, order: int) -> None:
    match shape:
        case Rectangle(x, y, width, height):
            axes.fill_between(
                [x, x + width],
                y,
                y + height,
                color=_colour(shape.fill),
                alpha=shape.opacity,
                linewidth=0,
                zorder=order,
            )
        case Line():
            axes.plot(
                shape.x,
                shape.y,
                color=_colour(shape.stroke),
                linewidth=shape.width * _POINTS,
                solid_joinstyle="round",
                solid_capstyle="round",
                zorder=order,
            )
        case Dots():
            dots = {"linestyle": "none", "marker": "o", "markersize": 2.6, "markeredgewidth": 0}
            axes.plot(shape.x, shape.y, color=_colour(shape.fill), zorder=order, **dots)
        case Image(x, y, width, height):
            axes.imshow(
                shape.pixels,
                extent=(x, x + width, y + height, y),
                aspect="auto",
                interpolation="antialiased" if shape.smooth else "nearest",
                zorder=order,
            )
        case Text():
            _write(axes, shape, order)


def _write(axes: Any, text: Text, order: int) -> None:
    plain = {"parse_math": False, "zorder": order}  # text between dollar signs is not a formula
    written = axes.text(
        text.x,
        text.y,
        text.text,
        color=_colour(text.fill),
        size=text.size * _POINTS,
        weight="bold" if text.bold else "normal",
        horizontalalignment=_ALIGN[text.anchor],
        verticalalignment="baseline",
        **plain,
    )
    if text.note:
        axes.annotate(
            text.note,
            xy=(1, 0),
            xycoords=written,
            xytext=(12 * _POINTS, 0),
            textcoords="offset points",
            color=_colour("dim"),
            size=12 * _POINTS,
            verticalalignment="bottom",
            **plain,
        )


def _colour(colour: str) -> str:
    return COLOURS[colour][0] if colour in COLOURS else colour
