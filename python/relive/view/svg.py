"""An episode as one SVG drawing, complete in itself."""

import html
import math
from collections.abc import Sequence
from typing import Final

from relive.model.episode import Episode
from relive.view.downsample import Floats, lonely
from relive.view.images import data_uri
from relive.view.panels import LANE, MARK, NAME, SPACE, WIDTH, Axis, Lane, Panel, Span, Thumb
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

__all__ = ["draw_svg"]

_LEFT, _RIGHT, _TITLE, _GAP, _FOOT = 74, 126, 22, 16, 40
_TICKS: Final = 9
_LETTER: Final = 6.6
"""Pixels across one letter, more or less."""
_FULL: Final = WIDTH + _LEFT + _RIGHT
_STYLE: Final = (
    ".rl{font:12px system-ui,sans-serif;--ink:#1b2733;--dim:#66737f;--rule:#dfe4e9;--bed:#f6f8fa;"
    "--gap:#f7e3e3}"
    "@media(prefers-color-scheme:dark){.rl.auto{--ink:#e6ebf0;--dim:#9aa7b3;--rule:#36414c;"
    "--bed:#1c242c;--gap:#4a2a2e}}"
    ".rl text{fill:var(--dim)}.rl .n{fill:var(--ink);font-weight:600;font-size:13px}"
    ".rl .f{fill:var(--dim);font-weight:400;font-size:12px}"
    ".rl .r{stroke:var(--rule)}.rl .b{fill:var(--bed)}.rl .g{fill:var(--gap)}"
    ".rl .k{stroke:var(--dim)}"
)


def draw_svg(episode: Episode, signals: Sequence[str] | None = None, *, dark: bool = False) -> str:
    """Draw all signals of an episode, or those named, over time, as one SVG element.

    It needs nothing from anywhere else. With `dark` it is dark where the reader's screen is.
    """
    axis, panels = make_panels(episode, signals)
    parts, y = [], 4
    for panel in panels:
        height = panel.height
        parts.append(_title(panel, y))
        parts.append(_body(panel, axis, y + _TITLE, height))
        y += _TITLE + height + _GAP
    if axis is not None:
        parts.append(_foot(axis, y))
        y += _FOOT
    elif not panels:
        parts.append(_text(_LEFT, y + 20, "no signals"))
        y += _FOOT
    return (
        f'<svg class="rl{" auto" if dark else ""}" viewBox="0 0 {_FULL} {y}" role="img" '
        f'aria-label="signals over time"><style>{_STYLE}</style>{"".join(parts)}</svg>'
    )


def _title(panel: Panel, y: int) -> str:
    return (
        f'<text class="n" x="{_LEFT}" y="{y + 14}">{_plain(cut(panel.name, 60))}'
        f'<tspan dx="12" class="f">{_plain("  ·  ".join(panel.facts))}</tspan></text>'
    )


def _body(panel: Panel, axis: Axis | None, top: int, height: int) -> str:
    parts = [f'<rect class="b" x="{_LEFT}" y="{top}" width="{WIDTH}" height="{height}"/>']
    if axis is not None:
        parts += [
            f'<path class="r" d="M{_x(place)} {top}v{height}"/>' for place, _ in _time_ticks(axis)
        ]
    for start, end in panel.gaps:
        width = max((end - start) * WIDTH, 1)
        parts.append(
            f'<rect class="g" x="{_x(start)}" y="{top}" width="{width:.1f}" height="{height}">'
            "<title>nothing was recorded here</title></rect>"
        )
    if panel.curves:
        parts += _curves(panel, top, height)
    for number, lane in enumerate(panel.lanes):
        parts += _lane(lane, top + number * LANE)
    parts += [_thumb(thumb, panel, top, axis) for thumb in panel.thumbs]
    if not (panel.curves or panel.lanes or panel.slots):
        parts.append(_text(_LEFT + 8, top + 15, "nothing to draw"))
    return "".join(parts)


def _curves(panel: Panel, top: int, height: int) -> list[str]:
    low, high = height_range(panel.curves)
    parts = []
    marks = ticks(low, high, 4)
    for tick, label in zip(marks, tick_texts(marks), strict=True):
        y = top + (1 - share(tick, low, high)) * height
        parts.append(f'<path class="r" d="M{_LEFT} {y:.1f}h{WIDTH}"/>')
        parts.append(_text(_LEFT - 6, y + 4, label, "end"))
    for number, curve in enumerate(panel.curves):
        colour = PALETTE[number % len(PALETTE)]
        across = _LEFT + curve.across * WIDTH
        down = top + (1 - share(curve.heights, low, high)) * height
        parts.append(
            f'<path d="{_path(across, down)}" fill="none" stroke="{colour}" '
            'stroke-width="1.3" stroke-linecap="round" stroke-linejoin="round">'
            f"<title>{_plain(curve.label or panel.name)}</title></path>"
        )
        alone = lonely(curve)
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="1.8" fill="{colour}"/>'
            for x, y in zip(across[alone].tolist(), down[alone].tolist(), strict=True)
        ]
        if panel.named:
            parts.append(
                f'<text x="{_LEFT + WIDTH + 8}" y="{top + 11 + NAME * number}" '
                f'style="fill:{colour}">{_plain(cut(curve.label, 17))}</text>'
            )
    return parts


def _path(across: Floats, down: Floats) -> str:
    """Give the path, lifted where a height is missing."""
    words, pen = list[str](), False
    for x, y in zip(across.tolist(), down.tolist(), strict=True):
        if not math.isnan(y):
            words.append(f"{'L' if pen else 'M'}{x:.1f} {y:.1f}")
        pen = not math.isnan(y)
    return "".join(words)


def _lane(lane: Lane, top: int) -> list[str]:
    parts = []
    if lane.label:
        parts.append(_text(_LEFT - 6, top + 15, cut(lane.label, 11), "end"))
    parts += [_span(span, top) for span in lane.spans]
    parts += [f'<path class="k" d="M{_x(mark)} {top + LANE - 4}v4"/>' for mark in lane.marks]
    return parts


def _span(span: Span, top: int) -> str:
    width = max((span.end - span.start) * WIDTH, 1.5)
    colour = PALETTE[span.colour % len(PALETTE)]
    text = ""
    fits = int((width - 8) / _LETTER)
    if span.label not in {"", "true"} and fits >= min(3, len(span.label)):
        text = _text(_x(span.start) + 5, top + 15, cut(span.label, fits), ink=True)
    return (
        f'<rect x="{_x(span.start)}" y="{top + 2}" width="{width:.1f}" height="{LANE - 4}" '
        f'fill="{colour}" opacity="{0.35 * span.shade:.2f}">'
        f"<title>{_plain(span.label)}</title></rect>{text}"
    )


def _thumb(thumb: Thumb, panel: Panel, top: int, axis: Axis | None) -> str:
    slot, tall = WIDTH / panel.slots, panel.thumb_height
    height, width = thumb.image.shape[:2]
    scale = min((slot - SPACE) / width, tall / height)
    across, down = width * scale, height * scale
    x = _LEFT + (thumb.slot + 0.5) * slot - across / 2
    crisp = ' style="image-rendering:pixelated"' if scale > 1 else ""
    seconds = (thumb.ts_ns - axis.zero_ts) / 1e9 if axis is not None else 0
    return (
        f'<image x="{x:.1f}" y="{top}" width="{across:.1f}" height="{down:.1f}"{crisp} '
        f'href="{data_uri(thumb.image)}"><title>{seconds:.3f} s</title></image>'
        f'<path class="k" d="M{_x(thumb.place)} {top + tall + 1}v{MARK - 1}"/>'
    )


def _foot(axis: Axis, y: int) -> str:
    left, right = axis.seconds
    unit, _ = time_unit(right - left)
    parts = [_text(_x(place), y, label, "middle") for place, label in _time_ticks(axis)]
    parts.append(_text(_LEFT + WIDTH + 24, y, unit))
    parts.append(_text(_LEFT, y + 22, f"0 {unit} is {clock_text(axis.zero_ts)}"))
    return "".join(parts)


def _time_ticks(axis: Axis) -> list[tuple[float, str]]:
    """Give where on the axis ticks are, and what each is called."""
    left, right = axis.seconds
    _, size = time_unit(right - left)
    marks = ticks(left / size, right / size, _TICKS)
    places = [(mark * size - left) / (right - left) for mark in marks]
    return list(zip(places, tick_texts(marks), strict=True))


def _x(place: float) -> float:
    return round(_LEFT + place * WIDTH, 1)


def _text(x: float, y: float, text: str, anchor: str = "", *, ink: bool = False) -> str:
    end = f' text-anchor="{anchor}"' if anchor else ""
    style = ' style="fill:var(--ink)"' if ink else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{end}{style}>{_plain(text)}</text>'


def _plain(text: str) -> str:
    """Give text that a page may hold, whatever it is made of."""
    letters = "".join(letter if letter.isprintable() else "·" for letter in text)
    return html.escape(letters.encode("utf-8", "replace").decode())
