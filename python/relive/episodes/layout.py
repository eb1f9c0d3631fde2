"""The directory of a dataset: `root/<block>/<number>`, both of twelve digits."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from relive.episodes.meta import META, read_meta
from relive.episodes.read.episode import DiskEpisode
from relive.episodes.write.commit import MARKER
from relive.errors import ReliveError
from relive.store.atomic import storage_error

__all__ = ["Finder", "Place", "Root", "path_of", "places_of", "runs_of", "scan_root", "uid_of"]

_DIGITS: Final = 12


class Place(NamedTuple):
    """Where an episode is: its number, by which episodes are ordered, and that of its block."""

    number: int
    block: int


class Root(NamedTuple):
    """What is in a root, in order."""

    committed: list[Place]
    unfinished: list[Place]


def scan_root(root: str | os.PathLike[str]) -> Root:
    """List the episodes in a root; no file is read."""
    found = Root([], [])
    top = os.fspath(root)
    for block in _numbered(top):
        folder = f"{top}/{block}"
        for name in _numbered(folder, may_vanish=True):
            path = f"{folder}/{name}"
            # Until an episode is committed, it has the second of these if it has the first.
            done = _is_there(f"{path}/{META}") and not _is_there(f"{path}/{MARKER}")
            (found.committed if done else found.unfinished).append(Place(int(name), int(block)))
    found.committed.sort()
    found.unfinished.sort()
    return found


def path_of(root: Path, place: Place) -> Path:
    """Give the directory of an episode."""
    return Path(f"{root}/{place.block:0{_DIGITS}}/{place.number:0{_DIGITS}}")


def uid_of(path: Path) -> str | None:
    """Give the uid of an episode; None where it cannot be read, or is damaged."""
    try:
        return str(read_meta(path)["uid"])
    except ReliveError:
        return None


def runs_of(places: Iterable[Place]) -> list[tuple[int, int, int]]:
    """Give the first number, the block and the length of each run of consecutive episodes."""
    runs: list[tuple[int, int, int]] = []
    for number, block in places:
        if runs:
            first, last_block, count = runs[-1]
            if (first + count, last_block) == (number, block):
                runs[-1] = (first, block, count + 1)
                continue
        runs.append((number, block, 1))
    return runs


def places_of(runs: Iterable[tuple[int, int, int]]) -> Iterator[Place]:
    """Give the places that `runs_of` was given."""
    for first, block, count in runs:
        for number in range(first, first + count):
            yield Place(number, block)


class Finder:
    """Finds committed episodes by their uids, and looks again when it does not know one."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._paths: dict[str, Path] = {}

    def __call__(self, uid: str) -> DiskEpisode | None:
        """Give the episode that was recorded with a uid; None where there is none."""
        path = self._paths.get(uid)
        if path is None or uid_of(path) != uid:
            self._paths = {}
            for place in reversed(scan_root(self._root).committed):
                path = path_of(self._root, place)
                if found := uid_of(path):
                    self._paths[found] = path
            path = self._paths.get(uid)
        return None if path is None else DiskEpisode(path)


def _numbered(folder: str, *, may_vanish: bool = False) -> list[str]:
    """Give the names of the directories in a folder that are numbers."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if _is_number(entry.name) and entry.is_dir()]
    except OSError as error:
        if may_vanish and isinstance(error, FileNotFoundError):
            return []
        raise storage_error(error, folder, "read") from error


def _is_number(name: str) -> bool:
    return len(name) == _DIGITS and name.isascii() and name.isdigit()


def _is_there(path: str) -> bool:
    try:
        os.stat(path)  # noqa: PTH116 - a Path for each of thousands takes longer than this
    except FileNotFoundError:
        return False
    except OSError as error:
        raise storage_error(error, path, "read") from error
    return True
