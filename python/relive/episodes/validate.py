"""Checking episodes: whether what is on disk is what was recorded."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from relive.episodes.edit.edited_episode import Overlay
from relive.episodes.edit.log import EditLog
from relive.episodes.layout import (
    EDITS,
    META,
    OUTCOME,
    STATICS,
    episode_path,
    is_committed,
    is_episode,
    leftovers,
    scan_root,
    signal_files,
    signal_paths,
    unfinished,
)
from relive.episodes.meta import read_outcome, read_statics
from relive.episodes.read.episode import DiskEpisode
from relive.episodes.validate_signal import check_columns, check_video, stored_name
from relive.errors import NotFoundError, ReliveError
from relive.model.report import Unfinished
from relive.store.paths import absolute_path

__all__ = ["Problem", "Report", "validate"]

Progress: TypeAlias = Callable[[int, int], object]
"""Is told how many episodes are done, out of how many."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong."""

    path: Path
    """The file it is in."""
    signal: str | None
    """The signal it is in, if it is in one."""
    row: int | None
    """The record it is in or begins with, where that is known; for video, the frame."""
    kind: str
    """The kind of error that reading it would give."""
    message: str


@dataclass(frozen=True, slots=True)
class Report:
    """What was checked, and what is wrong."""

    path: Path
    deep: bool
    episodes: int
    """How many committed episodes were read."""
    signals: int
    """How many signals were read."""
    problems: tuple[Problem, ...]
    unfinished: tuple[Unfinished, ...]
    """Episodes that are not committed, which were not read."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def validate(
    path: str | os.PathLike[str], *, deep: bool = False, progress: Progress | None = None
) -> Report:
    """Read every byte of a root's episodes, of one, or of one signal, and tell what is wrong.

    Every JSON file parses and every Parquet file is read whole, against its checksums; times
    increase; every frame is where the index and the video say it is, with the bytes that were
    written. With `deep` every frame is decoded, too. What is wrong is reported, not raised.
    """
    place = Path(absolute_path(path, "a dataset or an episode"))
    checker = _Checker(deep=deep)
    if place.is_file():
        checker.check_signal(signal_paths(place))
        return Report(place, deep, 0, 1, tuple(checker.problems), ())
    if not place.is_dir():
        raise NotFoundError(f"no dataset, no episode and no signal is at `{place}`")
    if is_episode(place):
        committed, left = ([place], []) if is_committed(place) else ([], [place])
    else:
        found = scan_root(place)
        committed = [episode_path(place, each) for each in found.committed]
        left = [episode_path(place, each) for each in found.unfinished]
    for done, folder in enumerate(committed):
        if progress is not None:
            progress(done, len(committed))
        checker.check_episode(folder)
    if progress is not None:
        progress(len(committed), len(committed))
    checker.check_edits(place)
    return Report(
        place,
        deep,
        len(committed),
        checker.signals,
        tuple(checker.problems),
        tuple(map(unfinished, left)),
    )


class _Checker:
    """Looks at episodes one after the other, and keeps what it finds."""

    def __init__(self, *, deep: bool) -> None:
        self._deep = deep
        self._uids: dict[str, Path] = {}
        self.problems: list[Problem] = []
        self.signals = 0

    def check_episode(self, folder: Path) -> None:
        """Read all files of an episode."""
        before = len(self.problems)
        uid = self._read(folder / META, lambda: DiskEpisode(folder).uid)
        other = folder if uid is None else self._uids.setdefault(uid, folder)
        if other != folder:
            message = f"`{folder}` and `{other}` have the same uid, {uid!r}"
            self._add(folder / META, "invalid", message)
        statics = self._read(folder / STATICS, lambda: read_statics(folder)) or {}
        outcome = self._read(folder / OUTCOME, lambda: read_outcome(folder)) or {}
        files = self._read(folder, lambda: signal_files(folder)) or {}
        for name in sorted(statics.keys() & files.keys()):
            message = f"`{folder}` has a signal and a static that are both called {name!r}"
            self._add(folder / STATICS, "invalid", message, name)
        for name, parts in files.items():
            self.check_signal([folder / part for part in parts], name)
        for stray in self._read(folder, lambda: leftovers(folder)) or []:
            message = f"`{stray}` was left in an episode that is committed"
            self._add(stray, "invalid", message)
        broken = {problem.signal for problem in self.problems[before:]}
        self._check_outcome(folder, outcome, files, broken)

    def check_signal(self, paths: Sequence[Path], name: str | None = None) -> None:
        """Read the files of a signal."""
        self.signals += 1
        if len(paths) == 1:
            found = check_columns(paths[0])
        else:
            found = check_video(paths[0], paths[1], deep=self._deep)
        self.problems += [Problem(t.path, name, t.row, t.kind, t.message) for t in found]

    def check_edits(self, root: Path) -> None:
        """Read the edits of a root, and see that each is about an episode."""
        path = root / EDITS
        edits = self._read(path, lambda: EditLog(root).read()) or []
        known = set(self._uids)
        overlay = Overlay()
        for number, edit in enumerate(edits, 1):
            origin = edit.uid
            while (before := overlay.origin(origin)) is not None:
                origin = before
            if origin not in known:
                message = f"edit {number} of `{path}` is about {edit.uid!r}, which is not there"
                self._add(path, "unknown-name", message)
            elif not overlay.add(edit):
                message = f"edit {number} of `{path}` is about {edit.uid!r}, which was cut before"
                self._add(path, "unknown-name", message)

    def _check_outcome(
        self,
        folder: Path,
        outcome: Mapping[str, Any],
        files: Mapping[str, tuple[str, ...]],
        broken: set[str | None],
    ) -> None:
        """Compare what was noted when the episode ended with what is there."""
        noted = outcome.get("signals")
        if not isinstance(noted, dict):
            return
        signals = DiskEpisode(folder).signals
        for name, about in noted.items():
            rows = about.get("rows") if isinstance(about, dict) else None
            if name not in files:
                message = f"`{folder}` had a signal {name!r}, of which there is no file"
                self._add(folder / OUTCOME, "not-found", message, name)
                continue
            paths = [folder / file for file in files[name]]
            if name not in broken and isinstance(rows, int) and len(signals[name]) != rows:
                now = len(signals[name])
                message = f"signal {name!r} of `{folder}` had {rows} records, and has {now}"
                self._add(paths[-1], "corrupt", message, name)
            elif name not in broken and stored_name(paths) != name:
                message = f"`{paths[-1]}` does not say that it is signal {name!r}"
                self._add(paths[-1], "corrupt", message, name)

    def _read(self, path: Path, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except ReliveError as error:
            self._add(path, error.kind, error.message)
            return None

    def _add(self, path: Path, kind: str, message: str, signal: str | None = None) -> None:
        self.problems.append(Problem(path, signal, None, kind, message))
