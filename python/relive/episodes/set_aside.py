"""Moves what recovery cannot use to other names, so that nothing is overwritten or deleted."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from relive.episodes.layout import SET_ASIDE
from relive.store.atomic import fsync_directory, storage_error


@dataclass(frozen=True, slots=True)
class SetAside:
    """A directory or file that `recover(set_aside=True)` moved out of the dataset.

    Example:
        >>> from pathlib import Path
        >>> from relive.episodes import SetAside
        >>> SetAside(Path("kitchen/a"), Path("kitchen/.set-aside/a"), "it is damaged").reason
        'it is damaged'
    """

    path: Path
    """Where it was."""
    target: Path
    """Where it is."""
    reason: str


def keep_damaged(file: Path) -> Path:
    """Rename a file in the directory of an episode to a free name that readers ignore."""
    name = f".{file.name.removeprefix('.')}.damaged"
    names = (name if number == 1 else f"{name}-{number}" for number in count(1))
    try:
        return file.rename(
            next(path for path in map(file.with_name, names) if not os.path.lexists(path))
        )
    except OSError as error:
        raise storage_error(error, file, "rename") from error


def set_aside_folder(root: Path, folder: Path) -> Path:
    """Move the directory of an episode to `ROOT/.set-aside`, and return its path there."""
    try:
        target = _reserve(root, folder)
        folder.rename(target)  # replaces the empty directory
        _sync(target, folder)
    except OSError as error:
        raise storage_error(error, folder, "move") from error
    return target


def set_aside_files(root: Path, folder: Path, files: Sequence[Path]) -> list[Path]:
    """Move files of an episode to `ROOT/.set-aside`, and return their paths there."""
    try:
        target = _reserve(root, folder)
        moved = [file.rename(target / file.name) for file in files]
        _sync(target, folder)
        fsync_directory(folder)
    except OSError as error:
        raise storage_error(error, folder, "move") from error
    return moved


def _reserve(root: Path, folder: Path) -> Path:
    """Create a directory with the relative path of an episode, and a number if that is taken."""
    wanted = root / SET_ASIDE / folder.relative_to(root)
    wanted.parent.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        target = wanted if number == 1 else wanted.with_name(f"{wanted.name}.{number}")
        try:
            target.mkdir()
        except FileExistsError:
            continue
        return target
    raise AssertionError


def _sync(target: Path, folder: Path) -> None:
    """Put the names of moved files on the disk."""
    above = (target.parent, target.parent.parent, target.parent.parent.parent)
    for directory in (target, *above, folder.parent):
        fsync_directory(directory)
