"""The demo's report: one HTML file with its drawings in it, nothing to load."""

import html
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

WIDTH, HEIGHT = 640, 200
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 44rem; margin: 3rem auto; padding: 0 1rem;
       color: #1b2733; background: #fff; }
h1 { font-size: 1.7rem; } h2 { margin-top: 2.5rem; border-bottom: 1px solid #d7dde3; }
figure { margin: 1.5rem 0; } figcaption { color: #55636f; font-size: .9rem; }
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

    def draw(self, caption: str, svg: str) -> None:
        """Add a drawing."""
        self._parts.append(f"<figure>{svg}<figcaption>{html.escape(caption)}</figcaption></figure>")

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


def _svg(content: str, height: int = HEIGHT) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{content}</svg>'
