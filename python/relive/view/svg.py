"""Draw an episode as SVG text that refers to no other file."""

import html
import math
from collections.abc import Sequence
from typing import Final

from relive.model.episode import Episode
from relive.view.images import data_uri
from relive.view.layout import (
    COLOURS,
    Dots,
    Image,
    Line,
    Rectangle,
    Shape,
    Text,
    lay_out,
)

_LIGHT, _DARK = (
    "".join(f"--{name}:{colours[k]};" for name, colours in COLOURS.items()) for k in (0, 1)
)
_STYLE: Final = (
    f".rl{{font:12px system-ui,sans-serif;{_LIGHT}}}"
    f"@media(prefers-color-scheme:dark){{.rl.auto{{{_DARK}}}}}"
    + "".join(f".rl .f-{n}{{fill:var(--{n})}}.rl .s-{n}{{stroke:var(--{n})}}" for n in COLOURS)
)


def draw_svg(episode: Episode, signals: Sequence[str] | None = None, *, dark: bool = False) -> str:
    """Draw all signals of an episode, or those named, over time, as one SVG element.

    With `dark`, it is drawn in dark colours if the reader's system uses a dark theme.

    Example:
        >>> import numpy as np
        >>> import relive
        >>> from relive.view import draw_svg
        >>> with relive.LocalDatasetWriter("arm").new_episode() as episode:
        ...     for step in range(20):
        ...         episode.append("q", np.sin(step / 5), step * 10_000_000)
        >>> draw_svg(relive.LocalDataset("arm")[0])[:30]
        '<svg class="rl" viewBox="0 0 1'
    """
    drawing = lay_out(episode, signals)
    content = "".join(map(_element, drawing.shapes))
    return (
        f'<svg class="rl{" auto" if dark else ""}" '
        f'viewBox="0 0 {drawing.width:g} {drawing.height:g}" role="img" '
        f'aria-label="signals over time"><style>{_STYLE}</style>{content}</svg>'
    )


def _element(shape: Shape) -> str:
    match shape:
        case Rectangle():
            opacity = f' opacity="{shape.opacity:.2f}"' if shape.opacity < 1 else ""
            return f"<rect{_box(shape)}{_fill(shape.fill)}{opacity}{_titled('rect', shape.title)}"
        case Line():
            return (
                f'<path d="{_path(shape)}" fill="none"{_colour("stroke", shape.stroke)} '
                f'stroke-width="{shape.width:g}" stroke-linecap="round" '
                f'stroke-linejoin="round"{_titled("path", shape.title)}'
            )
        case Dots():
            points = zip(shape.x.tolist(), shape.y.tolist(), strict=True)
            return "".join(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="1.8"{_fill(shape.fill)}/>' for x, y in points
            )
        case Text():
            anchor = f' text-anchor="{shape.anchor}"' if shape.anchor != "start" else ""
            size = f' font-size="{shape.size:g}"' if shape.size != 12 else ""  # noqa: PLR2004
            bold = ' font-weight="600"' if shape.bold else ""
            note = (
                f'<tspan dx="12" font-size="12" font-weight="400"{_fill("dim")}>'
                f"{html.escape(shape.note)}</tspan>"
                if shape.note
                else ""
            )
            return (
                f'<text x="{shape.x:.1f}" y="{shape.y:.1f}"{_fill(shape.fill)}{anchor}{size}{bold}>'
                f"{html.escape(shape.text)}{note}</text>"
            )
        case Image():
            crisp = "" if shape.smooth else ' style="image-rendering:pixelated"'
            return (
                f'<image{_box(shape)}{crisp} href="{data_uri(shape.pixels)}"'
                f"{_titled('image', shape.title)}"
            )


def _box(shape: Rectangle | Image) -> str:
    size = f'width="{shape.width:.1f}" height="{shape.height:.1f}"'
    return f' x="{shape.x:.1f}" y="{shape.y:.1f}" {size}'


def _path(line: Line) -> str:
    """Return the path, interrupted where y is NaN."""
    words, drawing = list[str](), False
    for x, y in zip(line.x.tolist(), line.y.tolist(), strict=True):
        if not math.isnan(y):
            words.append(f"{'L' if drawing else 'M'}{x:.1f} {y:.1f}")
        drawing = not math.isnan(y)
    return "".join(words)


def _colour(attribute: str, colour: str) -> str:
    return f' class="{attribute[0]}-{colour}"' if colour in COLOURS else f' {attribute}="{colour}"'


def _fill(colour: str) -> str:
    return _colour("fill", colour)


def _titled(tag: str, title: str) -> str:
    """Return the end of an element, with a tooltip if there is one."""
    return f"><title>{html.escape(title)}</title></{tag}>" if title else "/>"
