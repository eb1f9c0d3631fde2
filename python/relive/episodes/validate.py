"""Checks episodes on disk against their checksums, indexes and metadata."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from relive.episodes.edit.edited_episode import AppliedEdits
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
from relive.episodes.meta import read_meta, read_outcome, read_statics
from relive.errors import CorruptError, MissingExtraError, NotFoundError, ReliveError
from relive.model.report import Level, Problem, Progress, Report, check_level
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

    `level="index"` checks which files there are, the JSON files and the footers of Parquet files.
    `"sample"` also reads all times, and reads or decodes 64 records of each signal. `"full"`
    reads every byte and decodes every video frame. Problems are reported, not raised.
    `progress` is called with the number of episodes that are done and the number of all.

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
        check.signal(signal_paths(target))
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
    )


class _Check:
    """Reads episodes one after the other and collects problems."""

    def __init__(self, level: Level) -> None:
        self._level = level
        self._uids: dict[str, Path] = {}
        self.problems: list[Problem] = []
        self.signals = 0

    def episode(self, folder: Path) -> None:
        """Check all files of a committed episode."""
        before = len(self.problems)
        meta = self._read(folder / META, lambda: read_meta(folder))
        if meta is not None and (other := self._uids.setdefault(meta["uid"], folder)) != folder:
            message = f"`{folder}` and `{other}` have the same uid, {meta['uid']!r}"
            self._add(folder / META, "invalid", message)
        statics = self._read(folder / STATICS, lambda: read_statics(folder)) or {}
        outcome = self._read(folder / OUTCOME, lambda: read_outcome(folder)) or {}
        files = self._read(folder, lambda: signal_files(folder)) or {}
        for name in sorted(statics.keys() & files.keys()):
            message = f"`{folder}` has a signal and a static with the name {name!r}"
            self._add(folder / STATICS, "invalid", message, name)
        for name, names in files.items():
            self.signal([folder / each for each in names], name)
        for path in self._read(folder, lambda: leftovers(folder)) or []:
            self._add(
                path,
                "invalid",
                f"`{path}` is a leftover file of the recording, but the episode is finished",
            )
        broken = {problem.field for problem in self.problems[before:]}
        self._outcome(folder, outcome, files, broken)

    def signal(self, paths: Sequence[Path], name: str | None = None) -> None:
        """Check the files of a signal."""
        self.signals += 1
        if len(paths) == 1:
            self._columns(paths[0], name)
        else:
            self._video(paths[0], paths[1], name)

    def edits(self, root: Path) -> None:
        """Check that every edit of a root refers to an episode."""
        path = root / EDITS
        applied = AppliedEdits()
        for number, edit in enumerate(self._read(path, lambda: EditLog(root).read()) or [], 1):
            if applied.lineage(edit.uid)[-1] not in self._uids:
                message = f"edit {number} of `{path}` refers to the unknown episode {edit.uid!r}"
                self._add(path, "unknown-name", message)
            elif not applied.add(edit):
                message = (
                    f"edit {number} of `{path}` refers to {edit.uid!r}, which an earlier edit cut"
                )
                self._add(path, "unknown-name", message)

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

    def _columns(self, path: Path, name: str | None) -> None:
        file = ColumnsFile(path)
        if self._read(path, lambda: (file.meta, file.rows), name) is None or self._level == "index":
            return
        if self._level == "full":
            broken = list(_unreadable_groups(path))
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

    def _video(self, video: Path, index_path: Path, name: str | None) -> None:
        index = self._read(index_path, lambda: self._open_index(video, index_path), name)
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

    def _open_index(self, video: Path, index_path: Path) -> "FrameIndex":
        from relive.store.video import FrameIndex

        index = FrameIndex(index_path, video)
        index.lead  # noqa: B018 - it is checked when it is read
        if not video.is_file():
            raise CorruptError(f"`{video}` is missing")
        if len(index) and self._level != "index":
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
    return index.meta.get("name"), len(index) - index.lead


def _check_bounds(path: Path, stored: tuple[int | None, int | None], times: "Times") -> None:
    if stored != (int(times[0]), int(times[-1])):
        raise CorruptError(
            f"the footer of `{path}` has the time range {stored[0]} to {stored[1]}, "
            f"but the times of the records go from {times[0]} to {times[-1]}"
        )


def _unreadable_groups(path: Path) -> Iterator[tuple[int, str]]:
    """Read every page of every column, one row group after the other."""
    import pyarrow as pa
    from pyarrow import parquet as pq

    with pa.OSFile(str(path)) as source:
        file = pq.ParquetFile(source, page_checksum_verification=True)
        first = 0
        for group in range(file.metadata.num_row_groups):
            try:
                file.read_row_group(group, use_threads=False)
            except (OSError, ValueError, pa.ArrowException) as error:
                reason = str(error).partition("\n")[0]
                yield first, f"`{path}` cannot be read from row {first} on: {reason}"
            first += file.metadata.row_group(group).num_rows
