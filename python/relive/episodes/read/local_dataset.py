"""The dataset in a root directory: its committed episodes, with edits applied."""

import copy
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

from relive._arguments import check_choice
from relive.episodes.edit.edited_episode import AppliedEdits, EditedEpisode, Segment
from relive.episodes.edit.edits import Edits
from relive.episodes.edit.log import EditLog
from relive.episodes.layout import (
    EpisodeKey,
    compress_keys,
    episode_directory,
    episode_path,
    expand_keys,
    is_episode,
    scan_root,
    unfinished,
)
from relive.episodes.meta import read_meta, read_uid
from relive.episodes.read.damage import find_damage, hinting_at_skip
from relive.episodes.read.episode import DiskEpisode
from relive.errors import InvalidError, MissingExtraError
from relive.model.dataset import ConcatDataset, Dataset, table_row
from relive.model.episode import Episode
from relive.model.report import Damaged, Level, Progress, Report, Unfinished
from relive.store.paths import absolute_path

_UNEDITED: Final[tuple[Segment | None, ...]] = (None,)


class LocalDataset(Dataset):
    """The committed episodes in a root directory, in the order of their numbers.

    It is a snapshot: episodes and edits that are added later appear after `refresh`. Unfinished
    episodes are listed in `unfinished`, and those that were skipped in `damaged`; directories
    that are not episodes are ignored. Pickles small: the path and the numbers of the episodes.

    Args:
        root: The directory. One that does not exist raises a `NotFoundError`, and the directory
            of a single episode raises an `InvalidError`.
        edits: Whether to apply edits; False returns the episodes as they were recorded.
        errors: What happens with an episode whose JSON files or signal footers cannot be read:
            with `"raise"` reading it raises an error, with `"skip"` the dataset does not contain
            it. Then all episodes are opened when the dataset is first used.

    Example:
        >>> import relive
        >>> writer = relive.LocalDatasetWriter("kitchen")
        >>> for number in range(2):
        ...     with writer.new_episode() as episode:
        ...         episode.set_static("number", number)
        ...         episode.append("joint", 0.5, ts_ns=0)
        >>> dataset = relive.LocalDataset("kitchen")
        >>> len(dataset), dataset[-1]["number"]
        (2, 1)
        >>> dataset.validate().ok
        True
    """

    def __init__(
        self, root: str | os.PathLike[str], *, edits: bool = True, errors: str = "raise"
    ) -> None:
        check_choice("errors", errors, ("raise", "skip"))
        self.path = Path(absolute_path(root, "a dataset"))
        """The root directory."""
        self._with_edits = edits
        self._errors = errors
        self._now = _take_snapshot(self.path, edits=edits, skip=errors == "skip")

    def refresh(self) -> None:
        """Scan the root again for episodes, damage and edits."""
        self._now = _take_snapshot(self.path, edits=self._with_edits, skip=self._errors == "skip")
        self._uid_positions = None

    def validate(self, level: Level = "sample", *, progress: Progress | None = None) -> Report:
        """Check all episodes in the root; see `relive.episodes.validate`."""
        from relive.episodes.validate import validate

        return validate(self.path, level, progress=progress)

    def __len__(self) -> int:
        """Return the number of episodes."""
        return len(self._now)

    def episode_at(self, position: int) -> Episode:
        """Open the episode at `position`."""
        return self._now.episode(*self._now.locate(position))

    def uid_at(self, position: int) -> str:
        """Return the uid of the episode at `position`, without opening it."""
        key, segment = self._now.locate(position)
        if segment is not None:
            return segment.uid
        directory = episode_directory(self.path, key)
        with hinting_at_skip(directory):
            return str(read_meta(directory)["uid"])

    def row_at(self, position: int) -> dict[str, Any]:
        """Return the row of the episode at `position` in `table`, without its position."""
        key, segment = self._now.locate(position)
        with hinting_at_skip(episode_path(self.path, key)):
            return table_row(self._now.episode(key, segment))

    @property
    def unfinished(self) -> list[Unfinished]:
        """The episodes that were not committed when the root was scanned."""
        return [unfinished(episode_path(self.path, key)) for key in self._now.unfinished]

    @property
    def damaged(self) -> list[Damaged]:
        """The episodes that were skipped, with the reason; empty with `errors="raise"`."""
        return list(self._now.damaged.values())

    @cached_property
    def edits(self) -> Edits:
        """Edits the episodes; the dataset shows the result after `refresh`."""
        return Edits(self.path, _EpisodeFinder(self.path))

    @property
    def dropped(self) -> tuple[str, ...]:
        """The uids of the episodes that edits drop; none without edits."""
        return self.edits.dropped if self._with_edits else ()

    def snapshot(self) -> "LocalDataset":
        """Return a dataset of the current episodes, which a later `refresh` does not change."""
        return copy.copy(self)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the path and which episodes there are."""
        return {name: self.__dict__[name] for name in ("path", "_with_edits", "_errors", "_now")}

    def __repr__(self) -> str:
        """Return the root and the number of episodes, on one line."""
        count = len(self)
        return f"{type(self).__name__}({str(self.path)!r}, {count} episode{'s' * (count != 1)})"


class _EpisodeFinder:
    """Finds committed episodes by uid, and scans the root again for a uid that it does not find."""

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
    """The episodes in a root at one time, and the segments that edits make of them. Immutable.

    `segments` holds those of edited episodes by their position among the committed ones; by
    default they are computed from `edits` when they are first used. `damaged` holds the episodes
    to skip, by the same positions; with `skip` they are found when they are first used.
    """

    def __init__(
        self,
        root: Path,
        committed: Iterable[EpisodeKey],
        unfinished: list[EpisodeKey],
        edits: AppliedEdits | None = None,
        *,
        segments: Mapping[int, tuple[Segment | None, ...]] | None = None,
        damaged: Mapping[int, Damaged] | None = None,
        skip: bool = False,
    ) -> None:
        self._root = root
        self._committed = list(committed)
        self.unfinished = unfinished
        self._edits = edits
        self._given = segments
        self._given_damaged = damaged
        self._skip = skip

    def __len__(self) -> int:
        rows = self._rows
        return len(self._committed) if rows is None else len(rows)

    def locate(self, position: int) -> tuple[EpisodeKey, Segment | None]:
        """Return the key of an episode and its segment, None if it has no edits."""
        rows = self._rows
        if rows is None:
            return self._committed[position], None
        row, segment = rows[position]
        return self._committed[row], segment

    def episode(self, key: EpisodeKey, segment: Segment | None) -> Episode:
        """Open what `locate` returned."""
        episode = DiskEpisode(episode_path(self._root, key))
        if segment is None and self._segments:
            episode.uid  # noqa: B018 - raises if it cannot be read: its edits are not known
        return episode if segment is None else EditedEpisode(episode, segment)

    @cached_property
    def damaged(self) -> Mapping[int, Damaged]:
        """The episodes that are skipped, by their position among the committed ones."""
        if self._given_damaged is not None or not self._skip:
            return self._given_damaged or {}
        openers = [
            partial(self._parts, key, self._segments.get(row, _UNEDITED))
            for row, key in enumerate(self._committed)
        ]
        found: dict[int, Damaged] = {}
        for row, error in enumerate(find_damage(openers)):
            if isinstance(error, MissingExtraError):
                raise error
            if error is not None:
                path = episode_path(self._root, self._committed[row])
                found[row] = Damaged(path, error.message)
        return found

    def _parts(self, key: EpisodeKey, segments: Iterable[Segment | None]) -> Iterator[Episode]:
        return (self.episode(key, segment) for segment in segments)

    @cached_property
    def _segments(self) -> Mapping[int, tuple[Segment | None, ...]]:
        if self._given is not None or not self._edits:
            return self._given or {}
        found: dict[int, tuple[Segment | None, ...]] = {}
        for row, key in enumerate(self._committed):
            uid = read_uid(episode_path(self._root, key))
            segments = None if uid is None else self._edits.segments(uid)
            if uid is None:
                found[row] = (None,)
            elif segments is not None:
                found[row] = tuple(segment for segment in segments if not segment.dropped)
        return found

    @cached_property
    def _rows(self) -> list[tuple[int, Segment | None]] | None:
        """The committed episode and the segment of every position; None if they are the same."""
        if not self._segments and not self.damaged:
            return None
        return [
            (row, segment)
            for row in range(len(self._committed))
            if row not in self.damaged
            for segment in self._segments.get(row, _UNEDITED)
        ]

    def __reduce__(self) -> tuple[Any, ...]:
        runs = compress_keys(self._committed)
        damaged = dict(self.damaged)
        return _restore, (self._root, runs, self.unfinished, dict(self._segments), damaged)


def _restore(
    root: Path,
    runs: list[tuple[int, int, int]],
    unfinished: list[EpisodeKey],
    segments: Mapping[int, tuple[Segment | None, ...]],
    damaged: Mapping[int, Damaged],
) -> _Snapshot:
    committed = expand_keys(runs)
    return _Snapshot(root, committed, unfinished, segments=segments, damaged=damaged)


def _take_snapshot(root: Path, *, edits: bool, skip: bool) -> _Snapshot:
    found = scan_root(root)
    # A root with episodes may also contain a file named like one of an episode.
    if not any(found) and is_episode(root):
        raise InvalidError(
            f"`{root}` is a single episode, not the root of a dataset",
            hint=f"DiskEpisode({str(root)!r}) opens it",
        )
    applied = AppliedEdits(EditLog(root).read() if edits else ())
    return _Snapshot(root, found.committed, found.unfinished, applied, skip=skip)


def open_roots(
    root: "str | os.PathLike[str] | list[str]", *, edits: bool = True, errors: str = "raise"
) -> LocalDataset | ConcatDataset:
    """Open the dataset in a directory, or those in several directories as one."""
    if isinstance(root, list):
        return ConcatDataset(*(LocalDataset(each, edits=edits, errors=errors) for each in root))
    return LocalDataset(root, edits=edits, errors=errors)
