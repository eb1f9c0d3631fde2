"""Draw an episode as one HTML page that refers to no other file."""

import html
import json
from collections.abc import Sequence
from typing import Any, Final

from relive.model.episode import Episode
from relive.view.layout import heading
from relive.view.scale import cut
from relive.view.svg import draw_svg

_LONGEST_STATIC: Final = 400
_STYLE: Final = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1280px; margin: 2rem auto; padding: 0 1rem;
       color: #1b2733; background: #fff; }
h1 { font-size: 1.3rem; margin-bottom: .2rem; } p { margin: 0 0 1rem; color: #66737f; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: 0 0 1.5rem; }
dt { color: #66737f; } dd { margin: 0; overflow-wrap: anywhere; }
svg { width: 100%; height: auto; } #cursor { stroke: #c23b43; stroke-width: 1; }
@media (prefers-color-scheme: dark) {
  body { color: #e6ebf0; background: #12181e; } p, dt { color: #9aa7b3; }
}
"""
_SCRIPT: Final = """
const svg = document.querySelector("svg");
const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
line.id = "cursor";
line.style.pointerEvents = "none";
svg.append(line);
svg.addEventListener("mousemove", (event) => {
  const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
  line.setAttribute("d", `M${(event.clientX - box.left) * scale} 0V${svg.viewBox.baseVal.height}`);
});
svg.addEventListener("mouseleave", () => line.removeAttribute("d"));
"""


def draw_page(episode: Episode, signals: Sequence[str] | None = None) -> str:
    """Draw all signals of an episode, or those named, on a page that begins with its statics."""
    title, subtitle = heading(episode)
    statics = "".join(
        f"<dt>{_escaped(name, 80)}</dt><dd>{_escaped(_value_text(value), _LONGEST_STATIC)}</dd>"
        for name, value in episode.statics.items()
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{_escaped(title, 200)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{_escaped(title, 200)}</h1><p>{_escaped(subtitle, 400)}</p>"
        f"{f'<dl>{statics}</dl>' if statics else ''}"
        f"{draw_svg(episode, signals, dark=True)}<script>{_SCRIPT}</script></body></html>\n"
    )


def _value_text(value: Any) -> str:
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _escaped(text: str, most: int) -> str:
    return html.escape(cut(text, most))
