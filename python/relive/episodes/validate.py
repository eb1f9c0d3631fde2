"""Checks episodes on disk against their checksums, indexes and metadata."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from relive.episodes.edit.edited_episode import AppliedEdits
from relive.episodes.edit.log import EditLog
from relive.episodes.file_list import FileList, differs, is_listed
from relive.episodes.layout import (
    EDITS,
    FILES,
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
    videos_without_index,
    visible_files,
    without_index,
)
from relive.episodes.meta import read_meta, read_outcome, read_statics
from relive.errors import CorruptError, MissingExtraError, NotFoundError, ReliveError
from relive.model.report import Level, Problem, Progress, Report, check_level
from relive.store.digest import FileDigest, digest_of
from relive.store.paths import absolute_path
from relive.store.signal.parquet_reader import ColumnsFile

if TYPE_CHECKING:
    from relive.model.clock import Times
    from relive.model.source import IndexArray
    from relive.store.video import FrameIndex

_SAMPLE: Final = 64
_BATCH_BYTES: Final = 8 << 20
_TEXT_BYTES: Final = 4096


def validate(
    path: str | os.PathLike[str], level: Level = "sample", *, progress: Progress | None = None
) -> Report:
    """Check the episodes of a root, one episode, or the signal that a file belongs to.

    `level="index"` checks which files there are and their sizes, the JSON files and the footers
    of Parquet files. `"sample"` also reads all times, and reads or decodes 64 records of each
    signal. `"full"` compares every byte with its checksum and decodes every video frame. Problems
    are reported, not raised. Episodes, signals and edits without checksums are in `unchecked` of
    the report. `progress` is called with the number of episodes that are done and the number of
    all.

    Example:
        >>> import relive
        >>> with relive.LocalDatasetWriter("kitchen").new_episode() as episode:
        ...     episode.append("joint", 0.5, ts_ns=0)
        >>> report = relive.episodes.validate("kitchen", level="full")
        >>> report.ok, report.checked
        (True, {'episodes': 1, 'signals': 1})
    """
    check_level(level)
    target = Path(absolute_path(path, "a dataset or an episode"))
    check = _Check(level)
    committed: list[Path] = []
    left: list[Path] = []
    if target.is_file():
        check.signal_alone(signal_paths(target))
    elif not target.is_dir():
        raise NotFoundError(f"`{target}` does not exist")
    elif is_episode(target):
        (committed if is_committed(target) else left).append(target)
    else:
        scan = scan_root(target)
        committed = [episode_path(target, key) for key in scan.committed]
        left = [episode_path(target, key) for key in scan.unfinished]
    for done, folder in enumerate(committed):
        if progress is not None:
            progress(done, len(committed))
        check.episode(folder)
    if progress is not None:
        progress(len(committed), len(committed))
    if target.is_dir():
        check.edits(target)
    return Report(
        level,
        {"episodes": len(committed), "signals": check.signals},
        tuple(check.problems),
        tuple(map(unfinished, left)),
        tuple(check.unchecked),
    )


class _Check:
    """Reads episodes one after the other and collects problems."""

    def __init__(self, level: Level) -> None:
        self._level = level
        self._uids: dict[str, Path] = {}
        self.problems: list[Problem] = []
        self.unchecked: list[str] = []
        self.signals = 0

    def episode(self, folder: Path) -> None:
        """Check all files of a committed episode."""
        before = len(self.problems)
        listed = self._read(folder / FILES, lambda: FileList.read(folder))
        if listed is not None and listed.names is None:
            self.unchecked.append(str(folder))
        listed = listed or FileList(folder)
        meta = self._read(folder / META, lambda: read_meta(folder, listed))
        if meta is not None and (other := self._uids.setdefault(meta["uid"], folder)) != folder:
            message = f"`{folder}` and `{other}` have the same uid, {meta['uid']!r}"
            self._add(folder / META, "invalid", message)
        statics = self._read(folder / STATICS, lambda: read_statics(folder, listed)) or {}
        outcome = self._read(folder / OUTCOME, lambda: read_outcome(folder, listed)) or {}
        files = self._read(folder, lambda: signal_files(folder, listed.names)) or {}
        for name in sorted(statics.keys() & files.keys()):
            message = f"`{folder}` has a signal and a static with the name {name!r}"
            self._add(folder / STATICS, "invalid", message, name)
        for name, names in files.items():
            self._signal([folder / each for each in names], name, listed)
        for name, path in (
            self._read(folder, lambda: videos_without_index(folder, listed.names)) or {}
        ).items():
            self._add(path, "unsupported", without_index(path), name)
        for path in self._read(folder, lambda: leftovers(folder)) or []:
            self._add(
                path,
                "invalid",
                f"`{path}` is a leftover file of the recording, but the episode is finished",
            )
        broken = {problem.field for problem in self.problems[before:]}
        self._outcome(folder, outcome, files, broken)
        reported = {problem.path for problem in self.problems[before:]}
        self._files(folder, listed, files, reported)

    def signal_alone(self, paths: Sequence[Path]) -> None:
        """Check the files of a signal that belongs to no episode."""
        before = len(self.problems)
        self._signal(paths, None, FileList(paths[0].parent))
        if len(self.problems) == before:
            self._read(paths[-1], lambda: self._own_checksums(paths))

    def edits(self, root: Path) -> None:
        """Check that every edit of a root refers to an episode."""
        path = root / EDITS
        applied = AppliedEdits()
        log = EditLog(root)
        for number, edit in enumerate(self._read(path, log.read) or [], 1):
            if applied.lineage(edit.uid)[-1] not in self._uids:
                message = f"edit {number} of `{path}` refers to the unknown episode {edit.uid!r}"
                self._add(path, "unknown-name", message)
            elif not applied.add(edit):
                message = (
                    f"edit {number} of `{path}` refers to {edit.uid!r}, which an earlier edit cut"
                )
                self._add(path, "unknown-name", message)
        if log.unchecked:
            self.unchecked.append(str(path))

    def _signal(self, paths: Sequence[Path], name: str | None, listed: FileList) -> None:
        self.signals += 1
        sha256 = listed.footer_sha256(paths[-1].name)
        if len(paths) == 1:
            self._columns(ColumnsFile(paths[0], sha256), name)
        else:
            self._video(paths[0], paths[1], name, sha256)

    def _files(
        self,
        folder: Path,
        listed: FileList,
        signals: Mapping[str, tuple[str, ...]],
        reported: set[str],
    ) -> None:
        """Compare files without a known problem with the list of files."""
        fields = {file: name for name, files in signals.items() for file in files}
        for name, digest in listed.digests.items():
            path = folder / name
            if str(path) in reported:
                continue
            if not path.is_file():
                message = f"`{path}` is missing, but `{FILES}` lists it"
                self._add(path, "not-found", message, fields.get(name))
            elif not self._is_same(path, digest):
                self._add(path, "corrupt", differs(path).message, fields.get(name))
        if listed.names is not None:
            found: set[str] = self._read(folder, lambda: visible_files(folder)) or set()
            for name in sorted(filter(is_listed, found - listed.names)):
                path = folder / name
                message = f"`{path}` is not in the list of files, `{FILES}`"
                self._add(path, "invalid", message)

    def _is_same(self, path: Path, digest: FileDigest) -> bool:
        if path.stat().st_size != digest.size:
            return False
        return self._level != "full" or digest_of(path).sha256 == digest.sha256

    def _own_checksums(self, paths: Sequence[Path]) -> None:
        """Compare the files of a signal with the checksums that they contain."""
        movie = None
        if len(paths) == 1:
            footer = ColumnsFile(paths[0]).footer
        else:
            from relive.store.video import FrameIndex

            index = FrameIndex(paths[1], paths[0])
            footer, movie = index.footer, index.movie
        if not footer.check_checksums():
            self.unchecked.append(str(paths[0]))
        if self._level == "full":
            footer.check_bytes()
        if movie is not None and not self._is_same(paths[0], movie):
            raise CorruptError(
                f"`{paths[0]}` is damaged: its SHA-256 differs from the one in `{paths[1]}`"
            )

    def _outcome(
        self,
        folder: Path,
        outcome: Mapping[str, Any],
        files: Mapping[str, tuple[str, ...]],
        broken: set[str | None],
    ) -> None:
        """Compare the signals in `outcome.json` with the files."""
        recorded = outcome.get("signals")
        for name, about in recorded.items() if isinstance(recorded, dict) else ():
            if name not in files:
                message = f"signal {name!r} of `{folder}` has no file, but {OUTCOME} lists it"
                self._add(folder / OUTCOME, "not-found", message, name)
            elif name not in broken:
                paths = [folder / file for file in files[name]]
                wanted = about.get("rows") if isinstance(about, dict) else None
                stored, rows = _name_and_rows(paths)
                if isinstance(wanted, int) and rows != wanted:
                    message = f"`{paths[-1]}` has {rows} records, expected {wanted}"
                    self._add(paths[-1], "corrupt", message, name)
                elif stored != name:
                    message = f"`{paths[-1]}` is the file of signal {stored!r}, expected {name!r}"
                    self._add(paths[-1], "corrupt", message, name)

    def _columns(self, file: ColumnsFile, name: str | None) -> None:
        path = Path(file.path)
        if self._read(path, lambda: (file.meta, file.rows), name) is None or self._level == "index":
            return
        if self._level == "full":
            broken = list(file.footer.unreadable_groups())
            for row, message in broken:
                self._add(path, "corrupt", message, name, row)
            if broken:
                return
        times = self._read(path, file.timestamps, name)
        if times is not None and len(times):
            # A fresh file returns the times of the footer.
            fresh = ColumnsFile(path)
            self._read(path, lambda: _check_bounds(path, (fresh.start_ts, fresh.last_ts), times))
        self._read(path, lambda: [file.clock(clock) for clock in file.meta.clocks], name)
        self._read(path, lambda: self._read_values(file), name)

    def _read_values(self, file: ColumnsFile) -> None:
        if self._level == "sample":
            file.values(_sample(file.rows))
            return
        step = max(1, _BATCH_BYTES // max(1, file.meta.nbytes or _TEXT_BYTES))
        for start in range(0, file.rows, step):
            file.values(range(start, min(start + step, file.rows)))

    def _video(
        self, video: Path, index_path: Path, name: str | None, footer_sha256: str | None
    ) -> None:
        index = self._read(
            index_path, lambda: self._open_index(video, index_path, footer_sha256), name
        )
        if index is not None and not video.is_file():
            self._add(video, "not-found", f"`{video}` is missing", name)
            return
        if index is None or not len(index) or self._level == "index":
            return
        if index.meta.get("clocks", [*index.clocks]) != [*index.clocks]:
            message = f"`{index_path}` has clock columns that differ from those in its metadata"
            self._add(index_path, "corrupt", message, name)
        times = index.timestamps
        late = np.flatnonzero(times[1:] <= times[:-1])
        if len(late):
            row = int(late[0]) + 1
            message = (
                f"`{index_path}` has the timestamp {times[row]} in row {row}, "
                f"which is not after {times[row - 1]}"
            )
            self._add(index_path, "corrupt", message, name, row)
        bounds = index.first_ts, index.last_ts
        self._read(index_path, lambda: _check_bounds(index_path, bounds, times), name)
        if self._level == "full":
            self._container(video, index, name)
        self._frames(video, index, name)

    def _open_index(self, video: Path, index_path: Path, footer_sha256: str | None) -> "FrameIndex":
        from relive.store.video import FrameIndex

        index = FrameIndex(index_path, video, footer_sha256)
        index.records  # noqa: B018 - the numbers are checked when they are read
        if len(index) and self._level != "index" and video.is_file():
            for clock in index.clocks:
                index.clock(clock)
            index.timestamps, index.offsets, index.header, index.crcs  # noqa: B018
        return index

    def _frames(self, video: Path, index: "FrameIndex", name: str | None) -> None:
        """Decode frames, which compares their bytes with the checksums in the index."""
        from relive.store.video import FrameReader

        reader = FrameReader(video, index)
        cut = np.flatnonzero(index.offsets + index.sizes > video.stat().st_size)
        stop = int(cut[0]) + 1 if len(cut) else len(index)  # one problem for a video that is cut
        rows = range(stop) if self._level == "full" else _sample(stop)
        seen: set[str] = set()
        for row in map(int, rows):
            try:
                reader.frame(row)
            except MissingExtraError:
                raise
            except ReliveError as error:
                # All frames up to the next key frame fail because of the same bytes.
                if error.message not in seen:
                    seen.add(error.message)
                    self._add(video, error.kind, error.message, name, row)

    def _container(self, video: Path, index: "FrameIndex", name: str | None) -> None:
        """Compare the index with the MP4 container, which other players read."""
        from relive.store.video.container import scan

        found = self._read(video, lambda: scan(video), name)
        if found is None:
            return
        if len(found.offsets) != len(index):
            message = f"`{video}` has {len(found.offsets)} frames, but its index has {len(index)}"
            self._add(video, "corrupt", message, name)
            return
        columns = {
            "offset": (found.offsets, index.offsets),
            "size": (found.sizes, index.sizes),
            "keyframe": (found.keys, index.keys),
        }
        for column, (stored, indexed) in columns.items():
            wrong = np.flatnonzero(stored != indexed)
            if len(wrong):
                row = int(wrong[0])
                message = (
                    f"`{video}` has the {column} {stored[row]} for frame {row}, "
                    f"but its index has {indexed[row]}"
                )
                self._add(video, "corrupt", message, name, row)

    def _read(self, path: Path, read: Callable[[], Any], field: str | None = None) -> Any:
        try:
            return read()
        except MissingExtraError:
            raise
        except ReliveError as error:
            self._add(path, error.kind, error.message, field)
            return None

    def _add(
        self,
        path: Path,
        kind: str,
        message: str,
        field: str | None = None,
        row: int | None = None,
    ) -> None:
        self.problems.append(Problem(str(path), kind, message, field, row))


def _sample(rows: int) -> "IndexArray":
    return np.unique(np.linspace(0, rows - 1, min(_SAMPLE, rows)).astype(np.int64))


def _name_and_rows(paths: Sequence[Path]) -> tuple[object, int]:
    """Return the name and the number of records that the files of a signal store."""
    if len(paths) == 1:
        file = ColumnsFile(paths[0])
        return file.meta.name, file.rows
    from relive.store.video import FrameIndex

    index = FrameIndex(paths[1], paths[0])
    return index.meta.get("name"), len(index.records)


def _check_bounds(path: Path, stored: tuple[int | None, int | None], times: "Times") -> None:
    if stored != (int(times[0]), int(times[-1])):
        raise CorruptError(
            f"the footer of `{path}` has the time range {stored[0]} to {stored[1]}, "
            f"but the times of the records go from {times[0]} to {times[-1]}"
        )
