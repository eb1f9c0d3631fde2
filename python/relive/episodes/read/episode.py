"""Episodes on disk: a directory with a file or two per signal, and a few small JSON files."""

import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from relive.episodes.meta import META, read_meta, read_outcome
from relive.episodes.names import signal_name
from relive.episodes.read.simple_signal import SimpleSignal
from relive.episodes.statics import read_statics
from relive.episodes.write.commit import MARKER
from relive.errors import NotFoundError, UnfinishedError, UnsupportedError
from relive.model.dataset import Dataset, EpisodeList
from relive.model.episode import Episode
from relive.model.signal import Signal, copied
from relive.store.atomic import storage_error
from relive.store.locks import is_locked
from relive.store.paths import absolute_path

__all__ = ["DiskEpisode", "open_episodes"]

SCHEMA_VERSION: Final = 1
"""The version of the format that is read."""

_COLUMNS: Final = ".parquet"
FRAMES: Final = ".frames.parquet"
"""How the name of the index of a movie ends."""
MOVIE: Final = ".mp4"
"""How the name of a movie ends."""


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
        return known_meta(self.path)

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
            found = self._opened[name] = self._open(name)
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

    def _open(self, name: str) -> Signal[Any]:
        files = [self._folder / file for file in self._files[name]]
        if len(files) == 1:
            return SimpleSignal(files[0], name=name)
        from relive.episodes.read.video_signal import VideoSignal  # other signals need no video

        return VideoSignal(*files, name=name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle where they are."""
        return type(self), (self._folder,)

    def __repr__(self) -> str:
        """Give the names, on one line."""
        return f"{type(self).__name__}({', '.join(map(repr, self._files))})"


def known_meta(folder: Path) -> dict[str, Any]:
    """Give what was noted when the episode in `folder` began, unless a later version noted it."""
    meta = read_meta(folder)
    version = meta.get("schema_version", SCHEMA_VERSION)
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise UnsupportedError(
            f"`{folder}` has version {version!r}, and this relive reads {SCHEMA_VERSION}",
            hint="upgrade relive",
        )
    return meta


def check_committed(folder: Path) -> None:
    """Raise unless a committed episode is in `folder`."""
    # Until it is committed, an episode that has the one file has the other, too.
    if not (folder / META).exists():
        if (folder / MARKER).exists():
            raise _unfinished(folder)
        what = "it has no meta.json" if folder.is_dir() else "there is no such directory"
        raise NotFoundError(f"no episode is in `{folder}`: {what}")
    if (folder / MARKER).exists():
        raise _unfinished(folder)


def signal_files(folder: Path) -> dict[str, tuple[str, ...]]:
    """Give the files of each signal in a directory: one of columns, or a movie and its index."""
    try:
        with os.scandir(folder) as entries:
            names = {each.name for each in entries if each.name[0] != "." and each.is_file()}
    except OSError as error:
        raise storage_error(error, folder, "read") from error
    found: dict[str, tuple[str, ...]] = {}
    for name in sorted(names):
        if name.endswith(FRAMES):
            stem = name.removesuffix(FRAMES)
            movie = f"{stem}{MOVIE}"
            if movie in names or not has_values(folder / name):
                found[signal_name(stem)] = (movie, name)
                continue
        if name.endswith(_COLUMNS):
            found.setdefault(signal_name(name.removesuffix(_COLUMNS)), (name,))
    return dict(sorted(found.items()))


def open_episodes(path: "str | os.PathLike[str] | list[str]") -> Episode | Dataset:
    """Open the episode in a directory, or those in several of them as a dataset."""
    if isinstance(path, list):
        return EpisodeList(DiskEpisode(each) for each in path)
    return DiskEpisode(path)


def has_values(path: Path) -> bool | None:
    """Whether a Parquet file has a column of values; None where it cannot be read.

    Others who write episodes do not encode `.frames` at the end of a name: what is named like
    the index of a movie may be the signal of that name.
    """
    from pyarrow import parquet as pq

    try:
        return "value" in pq.read_schema(path).names
    except (OSError, ValueError):
        return None


def _unfinished(folder: Path) -> UnfinishedError:
    if is_locked(folder / MARKER):
        return UnfinishedError(f"the episode in `{folder}` is being recorded")
    return UnfinishedError(
        f"the episode in `{folder}` was not finished", hint=f"`relive recover {folder}` finishes it"
    )
