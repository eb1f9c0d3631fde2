"""`plot`: an episode as a picture in a file."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from relive.errors import UnsupportedError
from relive.model.episode import Episode
from relive.store.atomic import whole_file
from relive.view.page import draw_page
from relive.view.png import draw_png

__all__ = ["FORMATS", "plot"]

FORMATS: Final = (".png", ".html")
"""What the name of a picture may end in."""


def plot(
    episode: Episode,
    path: str | os.PathLike[str],
    *,
    signals: Sequence[str] | None = None,
    overwrite: bool = False,
) -> None:
    """Draw all signals of an episode, or those named, over time.

    The file is a PNG image or an HTML page with everything in it, by the end of its name; it is
    written whole or not at all. Numbers are curves, text and flags are bars, and cameras and
    depth images are strips of thumbnails. However many records there are, each one that is less
    or more than its neighbours is seen; where a signal fell silent the picture says so.
    """
    target = Path(path)
    kind = target.suffix.lower()
    if kind not in FORMATS:
        raise UnsupportedError(
            f"`{target}` is no picture that can be drawn", hint="end its name in .png or .html"
        )
    with whole_file(target, overwrite=overwrite) as file:
        if kind == ".png":
            draw_png(episode, file, signals)
        else:
            file.write(draw_page(episode, signals).encode("utf-8"))
