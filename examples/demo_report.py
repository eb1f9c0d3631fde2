"""The demo's report: one HTML file that refers to no other file."""

import html
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from relive.view.images import data_uri

WIDTH, HEIGHT = 640, 200
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 44rem; margin: 3rem auto; padding: 0 1rem;
       color: #1b2733; background: #fff; }
h1 { font-size: 1.7rem; } h2 { margin-top: 2.5rem; border-bottom: 1px solid #d7dde3; }
figure { margin: 1.5rem 0; } figcaption { color: #55636f; font-size: .9rem; }
figure.wide { width: min(1160px, 94vw); margin-left: 50%; transform: translateX(-50%); }
figure.wide figcaption { text-align: center; }
table { border-collapse: collapse; font-size: .9rem; margin: 1rem 0; }
td, th { text-align: left; padding: .15rem .9rem .15rem 0; border-bottom: 1px solid #d7dde3; }
th { color: #55636f; font-weight: 400; } td { font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; } text { font: 12px system-ui, sans-serif; fill: #55636f; }
"""


class Report:
    """Sections of sentences and drawings."""

    def __init__(self, title: str) -> None:
        self._title = html.escape(title)
        self._parts: list[str] = []

    def section(self, name: str) -> None:
        """Begin a section."""
        self._parts.append(f"<h2>{html.escape(name)}</h2>")

    def say(self, text: str) -> None:
        """Add a paragraph."""
        self._parts.append(f"<p>{html.escape(text)}</p>")

    def draw(self, caption: str, svg: str, *, wide: bool = False) -> None:
        """Add a drawing; a wide one goes beyond the text on both sides."""
        kind = ' class="wide"' if wide else ""
        text = html.escape(caption)
        self._parts.append(f"<figure{kind}>{svg}<figcaption>{text}</figcaption></figure>")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Add a table of text."""
        lines = [_row("th", header), *(_row("td", row) for row in rows)]
        self._parts.append(f"<table>{''.join(lines)}</table>")

    def write(self, path: Path) -> None:
        """Write the page."""
        body = "\n".join(self._parts)
        path.write_text(
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{self._title}'
            f"</title><style>{_STYLE}</style></head><body><h1>{self._title}</h1>\n{body}\n"
            "</body></html>\n",
            encoding="utf-8",
        )


def lines(values: Sequence[float], *, log: bool = False) -> str:
    """Draw one curve over its index."""
    heights = np.log10(values) if log else np.asarray(values)
    low, high = float(heights.min()), float(heights.max())
    across = np.linspace(60, WIDTH - 10, len(values))
    down = 10 + (high - heights) / max(high - low, 1e-12) * (HEIGHT - 40)
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, down, strict=True))
    top, bottom = (f"{10**v:.2g}" if log else f"{v:.3g}" for v in (high, low))
    return _svg(
        f'<polyline points="{points}" fill="none" stroke="#1d6fb8" stroke-width="1.5"/>'
        f'<text x="4" y="18">{top}</text><text x="4" y="{HEIGHT - 28}">{bottom}</text>'
        f'<text x="60" y="{HEIGHT - 6}">batch 1</text>'
        f'<text x="{WIDTH - 10}" y="{HEIGHT - 6}" text-anchor="end">{len(values)}</text>'
    )


def bars(values: Mapping[str, float]) -> str:
    """Draw one bar per name."""
    most = max(values.values())
    parts = []
    for number, (name, value) in enumerate(values.items()):
        y = 20 + number * 60
        length = value / most * (WIDTH - 260)
        parts.append(
            f'<text x="150" y="{y + 22}" text-anchor="end">{html.escape(name)}</text>'
            f'<rect x="160" y="{y}" width="{length:.0f}" height="34" fill="#1d6fb8"/>'
            f'<text x="{168 + length:.0f}" y="{y + 22}">{value:.1f}</text>'
        )
    return _svg("".join(parts), 20 + 60 * len(values))


def dots(groups: Mapping[str, Sequence[np.ndarray]]) -> str:
    """Draw numbers over the batch they are in, one panel per name."""
    parts = []
    panel = (WIDTH - 20) / len(groups)
    most = max(int(batch.max()) for batches in groups.values() for batch in batches)
    for number, (name, batches) in enumerate(groups.items()):
        left = 10 + number * panel
        for column, batch in enumerate(batches):
            x = left + 10 + column * (panel - 30) / len(batches)
            parts += [
                f'<circle cx="{x:.1f}" cy="{20 + row / most * (HEIGHT - 60):.1f}" r="1.1"/>'
                for row in batch[::2]
            ]
        parts.append(
            f'<text x="{left + panel / 2:.0f}" y="{HEIGHT - 12}" text-anchor="middle">{name}</text>'
        )
    return _svg(f'<g fill="#1d6fb8">{"".join(parts)}</g>')


def curves(groups: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Draw numbers over seconds, as steps that hold until the next, one colour per name."""
    starts, ends = ([points[k][0] for points in groups.values()] for k in (0, -1))
    first, span = min(starts), max(max(ends) - min(starts), 1e-9)
    most = max(value for points in groups.values() for _, value in points)
    parts = []
    for number, (name, points) in enumerate(groups.items()):
        colour, height = ("#1d6fb8", "#d1642a", "#3a8f4b")[number % 3], ""
        drawn = list[str]()
        for second, value in points:
            x = f"{60 + (second - first) / span * (WIDTH - 70):.1f}"
            if height:
                drawn.append(f"{x},{height}")
            height = f"{10 + (1 - value / most) * (HEIGHT - 40):.1f}"
            drawn.append(f"{x},{height}")
        dashes = ' stroke-dasharray="4 3"' if number else ""
        parts.append(
            f'<polyline points="{" ".join(drawn)}" fill="none" stroke="{colour}" '
            f'stroke-width="1.5"{dashes}/>'
            f'<text x="80" y="{26 + 18 * number}" style="fill:{colour}">{html.escape(name)}</text>'
        )
    return _svg(
        f'{"".join(parts)}<text x="4" y="18">{most:.0f}</text>'
        f'<text x="60" y="{HEIGHT - 6}">0 s</text>'
        f'<text x="{WIDTH - 10}" y="{HEIGHT - 6}" text-anchor="end">{span:.2f} s</text>'
    )


def pictures(shown: Sequence[tuple[np.ndarray, str]]) -> str:
    """Draw small pictures in a row, each with what it shows as its title."""
    side = (WIDTH - 10 * (len(shown) - 1)) / len(shown)
    height = side * max(image.shape[0] / image.shape[1] for image, _ in shown)
    parts = []
    for number, (image, title) in enumerate(shown):
        parts.append(
            f'<image x="{number * (side + 10):.1f}" y="0" width="{side:.1f}" height="{height:.1f}" '
            f'style="image-rendering:pixelated" href="{data_uri(image)}">'
            f"<title>{html.escape(title)}</title></image>"
        )
    return _svg("".join(parts), round(height))


def _row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _svg(content: str, height: int = HEIGHT) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{content}</svg>'
