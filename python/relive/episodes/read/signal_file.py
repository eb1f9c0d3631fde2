"""Signals that are opened by themselves, wherever their files are."""

import os
from pathlib import Path
from typing import Any

from relive.episodes.read.episode import FRAMES, MOVIE, has_values
from relive.episodes.read.simple_signal import SimpleSignal
from relive.errors import UnsupportedError
from relive.model.signal import Signal
from relive.store.paths import absolute_path

__all__ = ["open_signal", "signal_paths"]


def open_signal(path: str | os.PathLike[str]) -> Signal[Any]:
    """Open the signal that a file is of: one of columns, a movie, or the index of a movie.

    A table that is no signal, and a movie without an index, are an `UnsupportedError`.
    """
    place, *index = signal_paths(path)
    if index:
        from relive.episodes.read.video_signal import VideoSignal  # other signals need no video

        return VideoSignal(place, *index)
    signal = SimpleSignal(place)
    if has_values(place) is False:
        raise UnsupportedError(
            f"`{place}` is a table, and no signal: it has no column `value`",
            hint="`relive convert` reads tables",
        )
    len(signal)  # raises where it is damaged
    return signal


def signal_paths(path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Give the files of the signal that a file is of: one of columns, or a movie and its index."""
    place = Path(absolute_path(path, "a signal"))
    if place.suffix == MOVIE:
        index = place.with_suffix(FRAMES)
        if not index.exists():
            raise UnsupportedError(f"`{place}` is a video without times: there is no `{index}`")
        return place, index
    movie = place.with_name(place.name.removesuffix(FRAMES) + MOVIE)
    if place.name.endswith(FRAMES) and (movie.exists() or not has_values(place)):
        return movie, place
    return (place,)
