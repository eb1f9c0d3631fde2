"""Datasets in a directory: the episodes that are committed there, as edits left them."""

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from relive.episodes.edit.edited_episode import EditedEpisode, Overlay, Piece
from relive.episodes.edit.edits import Edits
from relive.episodes.edit.log import EditLog
from relive.episodes.layout import (
    EpisodeKey,
    compress_keys,
    episode_path,
    expand_keys,
    is_episode,
    scan_root,
    unfinished,
)
from relive.episodes.meta import read_meta, read_uid
from relive.episodes.read.episode import DiskEpisode
from relive.errors import InvalidError
from relive.model.dataset import ConcatDataset, Dataset
from relive.model.episode import Episode
from relive.model.report import Unfinished
from relive.store.paths import absolute_path

__all__ = ["LocalDataset", "open_roots"]


class LocalDataset(Dataset):
    """The episodes that are committed in `root`, in the order of their numbers.

    A snapshot: what is committed or edited later is seen after `refresh`. `edits=False` gives
    episodes as they were recorded. Episodes that are not committed are in `unfinished`, and
    directories that are no episodes are left alone. A root that is not there is a
    `NotFoundError`, the directory of one episode an `InvalidError`. Pickles small: the path, and
    which episodes there are.
    """

    def __init__(self, path: str | os.PathLike[str], *, edits: bool = True) -> None:
        self.path = Path(absolute_path(path, "a dataset"))
        """Where the episodes are."""
        self._with_edits = edits
        self._now = _look(self.path, edits=edits)

    def refresh(self) -> None:
        """Look again which episodes there are, and how they were edited."""
        self._now = _look(self.path, edits=self._with_edits)
        self._uid_positions = None

    def __len__(self) -> int:
        """Count the episodes."""
        return len(self._now)

    def episode_at(self, position: int) -> Episode:
        """Open an episode."""
        place, piece = self._now.entry(position)
        episode = DiskEpisode(episode_path(self.path, place))
        return episode if piece is None else EditedEpisode(episode, piece)

    def uid_at(self, position: int) -> str:
        """Give the uid of an episode."""
        place, piece = self._now.entry(position)
        return str(read_meta(episode_path(self.path, place))["uid"]) if piece is None else piece.uid

    @property
    def unfinished(self) -> list[Unfinished]:
        """The episodes that were not committed when the dataset was opened or refreshed."""
        paths = [episode_path(self.path, place) for place in self._now.unfinished]
        return [unfinished(path) for path in paths]

    @cached_property
    def edits(self) -> Edits:
        """What edits the episodes; see `relive.episodes.edit.edits`."""
        return Edits(self.path, _EpisodeFinder(self.path))

    def snapshot(self) -> "LocalDataset":
        """Give this dataset as it is now; it stays so when this one is refreshed."""
        copy = type(self).__new__(type(self))
        copy.__dict__.update(self.__getstate__())
        return copy

    def __getstate__(self) -> dict[str, Any]:
        """Pickle where the episodes are, and which."""
        return {name: self.__dict__[name] for name in ("path", "_with_edits", "_now")}

    def __repr__(self) -> str:
        """Give the root and the number of episodes, on one line."""
        count = len(self)
        return f"{type(self).__name__}({str(self.path)!r}, {count} episode{'s' * (count != 1)})"


class _EpisodeFinder:
    """Finds committed episodes by uid, and scans the root again if it does not know one."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._paths: dict[str, Path] = {}

    def __call__(self, uid: str) -> DiskEpisode | None:
        """Return the episode that was recorded with a uid; None if there is none."""
        path = self._paths.get(uid)
        if path is None or read_uid(path) != uid:
            self._paths = {}
            for key in reversed(scan_root(self._root).committed):
                path = episode_path(self._root, key)
                if found := read_uid(path):
                    self._paths[found] = path
            path = self._paths.get(uid)
        return None if path is None else DiskEpisode(path)


class _Snapshot:
    """Which episodes there are, and what edits make of them; it never changes."""

    def __init__(
        self,
        root: Path,
        committed: list[EpisodeKey],
        unfinished: list[EpisodeKey],
        overlay: Overlay,
    ) -> None:
        self._root = root
        self._committed = committed
        self.unfinished = unfinished
        self._overlay = overlay

    def __len__(self) -> int:
        entries = self._entries
        return len(self._committed) if entries is None else len(entries)

    def entry(self, position: int) -> tuple[EpisodeKey, Piece | None]:
        """Give where an episode is, and what edits made of it."""
        entries = self._entries
        if entries is None:
            return self._committed[position], None
        number, piece = entries[position]
        return self._committed[number], piece

    @cached_property
    def _changed(self) -> Mapping[int, tuple[Piece, ...]]:
        """What is to be seen of each episode that was edited, by its place in the list."""
        found: dict[int, tuple[Piece, ...]] = {}
        if not self._overlay:
            return found
        for number, place in enumerate(self._committed):
            uid = read_uid(episode_path(self._root, place))
            pieces = None if uid is None else self._overlay.pieces(uid)
            if pieces is not None:
                found[number] = tuple(piece for piece in pieces if not piece.dropped)
        return found

    @cached_property
    def _entries(self) -> list[tuple[int, Piece | None]] | None:
        """The number in the list and the piece of every episode; None where all are untouched."""
        if not self._changed:
            return None
        untouched: tuple[Piece | None, ...] = (None,)
        return [
            (number, piece)
            for number in range(len(self._committed))
            for piece in self._changed.get(number, untouched)
        ]

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (
            *(self._root, compress_keys(self._committed), self.unfinished, dict(self._changed)),
        )


def _restored(
    root: Path,
    runs: list[tuple[int, int, int]],
    unfinished: list[EpisodeKey],
    changed: Mapping[int, tuple[Piece, ...]],
) -> _Snapshot:
    snapshot = _Snapshot(root, list(expand_keys(runs)), unfinished, Overlay())
    snapshot.__dict__["_changed"] = changed  # known already
    return snapshot


def _look(root: Path, *, edits: bool) -> _Snapshot:
    found = scan_root(root)
    # A root may hold a file of that name, too, which is then nobody's.
    if not any(found) and is_episode(root):
        raise InvalidError(
            f"`{root}` is one episode, and the root of a dataset is meant",
            hint=f"DiskEpisode({str(root)!r}) opens it",
        )
    overlay = Overlay(EditLog(root).read() if edits else ())
    return _Snapshot(root, found.committed, found.unfinished, overlay)


def open_roots(
    root: "str | os.PathLike[str] | list[str]", *, edits: bool = True
) -> LocalDataset | ConcatDataset:
    """Open the dataset in a directory, or those in several of them as one."""
    if isinstance(root, list):
        return ConcatDataset(*(LocalDataset(each, edits=edits) for each in root))
    return LocalDataset(root, edits=edits)
