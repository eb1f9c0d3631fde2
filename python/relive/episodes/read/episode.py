"""Episodes on disk: a directory with a file or two per signal, and a few small JSON files."""

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from relive.episodes.layout import check_committed, has_values, signal_files, signal_paths
from relive.episodes.meta import read_meta, read_outcome, read_statics
from relive.episodes.read.simple_signal import SimpleSignal
from relive.errors import UnsupportedError
from relive.model.dataset import Dataset, EpisodeList
from relive.model.episode import Episode
from relive.model.signal import Signal, copied
from relive.store.paths import absolute_path

__all__ = ["DiskEpisode", "open_episodes", "open_signal"]


class DiskEpisode(Episode):
    """A committed episode in a directory.

    Opening it lists the directory; statics, metadata and signals are read when they are used.
    One that is not committed is an `UnfinishedError`. Files that belong to no signal are
    ignored. Pickles by its path.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(absolute_path(path, "an episode"))
        check_committed(self.path)
        self._signals = DiskSignals(self.path)

    @property
    def signals(self) -> Mapping[str, Signal[Any]]:
        """The signals, by name, in the order of their names; each is opened when it is used."""
        return self._signals

    @property
    def statics(self) -> Mapping[str, Any]:
        """The statics, by name, a copy; one that has the name of a signal is hidden by it."""
        statics = self._statics.copy()
        for name in self._nested:
            statics[name] = copied(statics[name])
        return statics

    @property
    def meta(self) -> dict[str, Any]:
        """What the system noted, a copy; `outcome` is empty where nothing was at the end."""
        return {**copied(self._meta), "outcome": copied(self._outcome)}

    @property
    def uid(self) -> str:
        """What identifies the episode, wherever it is."""
        return str(self._meta["uid"])

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path."""
        return type(self), (self.path,)

    @cached_property
    def _statics(self) -> dict[str, Any]:
        statics = read_statics(self.path)
        return {name: value for name, value in statics.items() if name not in self._signals}

    @cached_property
    def _nested(self) -> list[str]:
        """The names of statics that could be changed in place; mostly there are none."""
        return [name for name, value in self._statics.items() if isinstance(value, dict | list)]

    @cached_property
    def _meta(self) -> dict[str, Any]:
        return read_meta(self.path)

    @cached_property
    def _outcome(self) -> dict[str, Any]:
        return read_outcome(self.path) or {}


class DiskSignals(Mapping[str, Signal[Any]]):
    """The signals in a directory, by name; each is opened when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = signal_files(folder)
        self._opened: dict[str, Signal[Any]] = {}

    def __getitem__(self, name: str) -> Signal[Any]:
        """Give the signal of that name."""
        found = self._opened.get(name)
        if found is None:
            found = self._opened[name] = _open_files(
                [self._folder / file for file in self._files[name]], name
            )
        return found

    def __iter__(self) -> Iterator[str]:
        """Give the names."""
        return iter(self._files)

    def __len__(self) -> int:
        """Count the signals."""
        return len(self._files)

    def __contains__(self, name: object) -> bool:
        """Whether there is a signal of that name."""
        return name in self._files

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle where they are."""
        return type(self), (self._folder,)

    def __repr__(self) -> str:
        """Give the names, on one line."""
        return f"{type(self).__name__}({', '.join(map(repr, self._files))})"


def open_episodes(path: "str | os.PathLike[str] | list[str]") -> Episode | Dataset:
    """Open the episode in a directory, or those in several of them as a dataset."""
    if isinstance(path, list):
        return EpisodeList(DiskEpisode(each) for each in path)
    return DiskEpisode(path)


def open_signal(path: str | os.PathLike[str]) -> Signal[Any]:
    """Open the signal that a file belongs to: a Parquet file, a video, or the index of a video.

    A table that is not a signal, and a video without an index, raise an `UnsupportedError`.
    """
    paths = signal_paths(path)
    signal = _open_files(paths)
    if len(paths) == 1:
        if has_values(paths[0]) is False:
            raise UnsupportedError(
                f"`{paths[0]}` is not a signal: it has no column `value`",
                hint="`relive convert` reads tables",
            )
        len(signal)  # raises if the file is damaged
    return signal


def _open_files(paths: Sequence[Path], name: str | None = None) -> Signal[Any]:
    if len(paths) == 1:
        return SimpleSignal(paths[0], name=name)
    from relive.episodes.read.video_signal import VideoSignal  # needs PyAV

    return VideoSignal(*paths, name=name)
