"""Episodes on disk: a directory of signal files and small JSON files."""

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from relive.episodes.file_list import FileList
from relive.episodes.layout import check_committed, has_values, signal_files, signal_paths
from relive.episodes.meta import read_meta, read_outcome, read_statics
from relive.episodes.read.damage import hinting_at_skip
from relive.episodes.read.simple_signal import SimpleSignal
from relive.errors import UnsupportedError
from relive.model.dataset import Dataset, EpisodeList
from relive.model.episode import Episode
from relive.model.report import Level, Progress, Report
from relive.model.signal import Signal, copied
from relive.store.paths import absolute_path


class DiskEpisode(Episode):
    """A committed episode in a directory.

    Opening it reads the list of its files; statics, metadata and signals are read when they are
    used, and are compared with the checksums in that list. An episode that is not committed
    raises an `UnfinishedError`. Other files in the directory are ignored. Pickles as its path.

    Example:
        >>> import relive
        >>> with relive.episodes.DiskEpisodeWriter("grasp") as writer:
        ...     writer.set_static("task", "pick")
        ...     writer.append("joint", 0.5, ts_ns=0)
        >>> episode = relive.episodes.DiskEpisode("grasp")
        >>> episode["task"], episode["joint"][0]
        ('pick', (np.float64(0.5), 0))
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(absolute_path(path, "an episode"))
        with hinting_at_skip(self.path):
            check_committed(self.path)
            self._files = FileList.read(self.path)
            self._signals = DiskSignals(self.path, self._files)

    def validate(self, level: Level = "sample", *, progress: Progress | None = None) -> Report:
        """Check the files of the episode; see `relive.episodes.validate`."""
        from relive.episodes.validate import validate

        return validate(self.path, level, progress=progress)

    @property
    def signals(self) -> Mapping[str, Signal[Any]]:
        """The signals by name, sorted by name; each is opened when it is first used."""
        return self._signals

    @property
    def statics(self) -> Mapping[str, Any]:
        """The statics by name, as a copy; a signal hides a static with the same name."""
        statics = self._statics.copy()
        for name in self._nested:
            statics[name] = copied(statics[name])
        return statics

    @property
    def meta(self) -> dict[str, Any]:
        """What the writer stored, as a copy; `outcome` is empty if it did not store one."""
        return {**copied(self._meta), "outcome": copied(self._outcome)}

    @property
    def uid(self) -> str:
        """The identifier of the episode, which copies keep."""
        return str(self._meta["uid"])

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path."""
        return type(self), (self.path,)

    @cached_property
    def _statics(self) -> dict[str, Any]:
        with hinting_at_skip(self.path):
            statics = read_statics(self.path, self._files)
        return {name: value for name, value in statics.items() if name not in self._signals}

    @cached_property
    def _nested(self) -> list[str]:
        """The names of statics that could be changed in place; usually there are none."""
        return [name for name, value in self._statics.items() if isinstance(value, dict | list)]

    @cached_property
    def _meta(self) -> dict[str, Any]:
        with hinting_at_skip(self.path):
            return read_meta(self.path, self._files)

    @cached_property
    def _outcome(self) -> dict[str, Any]:
        with hinting_at_skip(self.path):
            return read_outcome(self.path, self._files) or {}


class DiskSignals(Mapping[str, Signal[Any]]):
    """The signals in a directory by name; each is opened when it is first used."""

    def __init__(self, folder: Path, listed: FileList | None = None) -> None:
        self._folder = folder
        self._listed = FileList.read(folder) if listed is None else listed
        self._files = signal_files(folder, self._listed.names)
        self._opened: dict[str, Signal[Any]] = {}

    def __getitem__(self, name: str) -> Signal[Any]:
        """Return the signal with that name."""
        found = self._opened.get(name)
        if found is None:
            files = self._files[name]
            found = self._opened[name] = _open_files(
                [self._folder / file for file in files],
                name,
                self._listed.footer_sha256(files[-1]),
            )
        return found

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._files)

    def __len__(self) -> int:
        """Return the number of signals."""
        return len(self._files)

    def __contains__(self, name: object) -> bool:
        """Return whether there is a signal with that name."""
        return name in self._files

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the directory."""
        return type(self), (self._folder,)

    def __repr__(self) -> str:
        """Return the names, on one line."""
        return f"{type(self).__name__}({', '.join(map(repr, self._files))})"


def open_episodes(path: "str | os.PathLike[str] | list[str]") -> Episode | Dataset:
    """Open the episode in a directory, or those in several directories as a dataset."""
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
                f"`{paths[0]}` is not a signal file: it has no column `value`",
                hint="use `relive convert` to read other tables",
            )
        len(signal)  # raises if the file is damaged
    return signal


def _open_files(
    paths: Sequence[Path], name: str | None = None, footer_sha256: str | None = None
) -> Signal[Any]:
    if len(paths) == 1:
        return SimpleSignal(paths[0], name=name, footer_sha256=footer_sha256)
    from relive.episodes.read.video_signal import VideoSignal  # needs PyAV

    return VideoSignal(*paths, name=name, footer_sha256=footer_sha256)
