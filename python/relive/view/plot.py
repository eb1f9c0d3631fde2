"""`plot`: draw an episode into a file."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from relive.errors import UnsupportedError
from relive.model.episode import Episode
from relive.store.atomic import whole_file
from relive.view.page import draw_page
from relive.view.png import draw_png

FORMATS: Final = (".png", ".html")
"""The suffixes of the files that can be drawn."""


def plot(
    episode: Episode,
    path: str | os.PathLike[str],
    *,
    signals: Sequence[str] | None = None,
    overwrite: bool = False,
) -> None:
    """Draw all signals of an episode, or those named, over time.

    The file is a PNG image or an HTML page that refers to no other file, by the suffix of
    `path`; it appears when it is complete. Numbers are drawn as curves, text and flags as bars,
    cameras and depth images as strips of thumbnails. Signals of any length are drawn without
    losing extreme values, and gaps in a signal are marked.

    Example:
        >>> import numpy as np
        >>> import relive
        >>> from relive.view import plot
        >>> with relive.LocalDatasetWriter("arm").new_episode() as episode:
        ...     for step in range(20):
        ...         episode.append("q", np.sin(step / 5), step * 10_000_000)
        >>> plot(relive.LocalDataset("arm")[0], "arm.html")
    """
    target = Path(path)
    kind = target.suffix.lower()
    if kind not in FORMATS:
        raise UnsupportedError(
            f"cannot draw `{target}`: the suffix must be .png or .html, got {kind!r}"
        )
    with whole_file(target, overwrite=overwrite) as file:
        if kind == ".png":
            draw_png(episode, file, signals)
        else:
            file.write(draw_page(episode, signals).encode("utf-8"))
