"""Finishes episodes and signals whose writer did not close them."""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from relive._native import TapeReader, tape_damage
from relive.episodes.file_list import FileList
from relive.episodes.layout import (
    COLUMNS,
    INDEX,
    MARKER,
    META,
    OUTCOME,
    SPILL,
    STATICS,
    TAPE,
    VIDEO,
    aborted_directories,
    episode_keys,
    episode_path,
    is_block,
    is_committed,
    is_episode,
    is_numbered,
    is_temporary,
    scan_root,
    signal_name,
    videos_without_index,
    without_index,
)
from relive.episodes.meta import make_meta, read_json, read_meta, read_statics, write_json
from relive.episodes.read.damage import find_damage
from relive.episodes.read.episode import DiskEpisode
from relive.episodes.set_aside import (
    SetAside,
    keep_damaged,
    set_aside_files,
    set_aside_folder,
)
from relive.episodes.write.commit import commit
from relive.episodes.write.episode_writer import DiskEpisodeWriter
from relive.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    CorruptError,
    InvalidError,
    LockedError,
    MissingExtraError,
    NotFoundError,
    ReliveError,
    TooLargeError,
    UnsupportedError,
)
from relive.model.clock import now_ns
from relive.model.report import Damaged
from relive.store.atomic import open_reader, storage_error
from relive.store.locks import FileLock, is_locked, locked
from relive.store.paths import absolute_path
from relive.store.signal.parquet_reader import ColumnsFile
from relive.store.signal.tape import (
    TapeHead,
    open_tape,
    part_path,
    seal_columns,
    seal_over,
    seal_video,
    spill_path,
    tape_path,
    video_times,
)

Ints: TypeAlias = npt.NDArray[np.int64]

_TAPE: Final = re.compile(r"\.(.+)(?:\.parquet|\.mp4)\.tape", re.DOTALL)
_ANY_TAPE: Final = re.compile(r"\..+\.tape", re.DOTALL)  # a single signal may have any file name
_BATCH_ROWS: Final = 1 << 16
_BATCH_BYTES: Final = 8 << 20
_TEXT_BYTES: Final = 4096
_PARTS: Final = frozenset({".part", ".new", SPILL})
_PARQUET_MAGIC: Final = b"PAR1"
# The name of the marker while its writer creates it.
_MARKER_BEFORE: Final = re.compile(r"\.unfinished\.[0-9]+")


@dataclass(frozen=True, slots=True)
class RecoveredEpisode:
    """The result for one unfinished episode.

    Example:
        >>> from pathlib import Path
        >>> from relive.episodes import RecoveredEpisode
        >>> RecoveredEpisode(Path("ep"), "e0", {"joint": 3}).signals
        {'joint': 3}
    """

    path: Path
    """The directory of the episode."""
    uid: str | None
    """The uid; None if the episode could not be committed."""
    signals: dict[str, int]
    """The number of records of each signal: the first ones, without a gap."""
    problems: tuple[str, ...] = ()
    """Damage that was found."""
    kept: tuple[Path, ...] = ()
    """Files in the directory that are damaged or incomplete, and may hold further data."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """The result of `recover`.

    Example:
        >>> import relive
        >>> with relive.LocalDatasetWriter("kitchen").new_episode() as episode:
        ...     episode.append("joint", 0.5, ts_ns=0)
        >>> relive.episodes.recover("kitchen").episodes
        ()
    """

    path: Path
    """The path that was passed to `recover`."""
    episodes: tuple[RecoveredEpisode, ...] = ()
    """The episodes that were unfinished."""
    signals: dict[str, int] = field(default_factory=dict)
    """The number of records of a signal outside of an episode, by its name."""
    locked: tuple[Path, ...] = ()
    """The directories of episodes that are being recorded."""
    damaged: tuple[Damaged, ...] = ()
    """The episodes that were finished before and cannot be read, or have a video without index."""
    set_aside: tuple[SetAside, ...] = ()
    """What was moved out of the dataset."""

    @property
    def problems(self) -> tuple[str, ...]:
        """What was not recovered and is still in the dataset."""
        texts = [text for episode in self.episodes for text in episode.problems]
        return *texts, *(f"`{each.path}` is damaged: {each.reason}" for each in self.damaged)


def recover(path: str | os.PathLike[str], *, set_aside: bool = False) -> Recovered:
    """Finish the episodes whose writers did not close them.

    `path` is a root, an episode, or the file of a signal outside of an episode. Every record that
    was flushed is recovered. Finished episodes are not changed, so it can be run again, also
    after an interruption. An episode that is being recorded raises a `LockedError`; in a root it
    is skipped and listed in `locked`.

    Nothing that holds data is deleted: files that are damaged are renamed to `.NAME.damaged`, and
    listed in `problems`, as are finished episodes that cannot be read. With `set_aside`, these
    files and episodes are moved to `ROOT/.set-aside`, which readers ignore.

    Example:
        >>> import relive
        >>> episode = relive.LocalDatasetWriter("kitchen").new_episode()
        >>> episode.append("joint", 0.5, ts_ns=0)
        >>> episode.leave()
        >>> found = relive.episodes.recover("kitchen")
        >>> [each.signals for each in found.episodes]
        [{'joint': 1}]
        >>> len(relive.LocalDataset("kitchen"))
        1
    """
    target = Path(absolute_path(path, "a dataset, an episode or a signal"))
    is_one = is_episode(target) or is_numbered(target)
    if set_aside and not (target.is_dir() and (is_numbered(target) or not is_one)):
        raise InvalidError(
            f"`set_aside` requires a dataset, but `{target}` is not in one",
            hint="pass the root of a dataset, or an episode of it",
        )
    if not target.is_dir():
        return _recover_signal(target)
    root = target.parent.parent if is_one else target
    return _RootRecovery(root, set_aside=set_aside).run(target)


class _RootRecovery:
    """Recovers all episodes of a root, or one of them."""

    def __init__(self, root: Path, *, set_aside: bool) -> None:
        self._root = root
        self._set_aside = set_aside
        self._episodes: list[RecoveredEpisode] = []
        self._locked: list[Path] = []
        self._damaged: list[Damaged] = []
        self._moved: list[SetAside] = []
        self._lost: set[Path] = set()  # directories in which an episode cannot be read

    def run(self, target: Path) -> Recovered:
        """Recover the episodes of the root, or the one that `target` is."""
        if target == self._root:
            self._remove_aborted()
            for key in sorted(episode_keys(self._root)):
                self._recover(episode_path(self._root, key))
            scan = scan_root(self._root)
            self._check([episode_path(self._root, key) for key in scan.committed])
        else:
            self._add(_recover_episode(target))
            self._check([target] if target.exists() and is_committed(target) else [])
        if self._set_aside:
            self._move()
        return Recovered(
            target,
            tuple(self._episodes),
            locked=tuple(self._locked),
            damaged=tuple(self._damaged),
            set_aside=tuple(self._moved),
        )

    def _recover(self, folder: Path) -> None:
        try:
            found = _recover_episode(folder)
        except LockedError:
            self._locked.append(folder)
        except (ReliveError, OSError) as error:
            if folder.exists():  # else its writer has just aborted it
                problem = f"cannot recover `{folder}`: {error}"
                self._episodes.append(RecoveredEpisode(folder, None, {}, (problem,)))
                # Others are a full disk, or a later version of the format.
                if isinstance(error, (CorruptError, InvalidError)):
                    self._lost.add(folder)
        else:
            self._add(found)

    def _add(self, found: RecoveredEpisode | None) -> None:
        if found is not None:
            self._episodes.append(found)
            if found.uid is None:
                self._lost.add(found.path)

    def _remove_aborted(self) -> None:
        """Remove directories whose writer ended while it removed them or copied to them."""
        for folder in aborted_directories(self._root):
            with contextlib.suppress(LockedError), _no_writer_changes(folder.parent):
                marker = folder / MARKER
                if not (marker.exists() and is_locked(marker)):
                    shutil.rmtree(folder, ignore_errors=True)

    def _check(self, folders: list[Path]) -> None:
        """Find finished episodes that cannot be read, or not whole."""
        reported = {each.path for each in self._episodes if each.problems}
        openers = [partial(_open_all, folder) for folder in folders]
        for folder, damage in zip(folders, find_damage(openers), strict=True):
            error = _without_index(folder) if damage is None else damage
            # An episode with a time that a table cannot hold is not damaged.
            if error is None or isinstance(error, (MissingExtraError, TooLargeError)):
                continue
            if not folder.exists():
                continue
            if folder not in reported:
                self._damaged.append(Damaged(folder, error.message))
            if not isinstance(error, (AccessDeniedError, UnsupportedError)):
                self._lost.add(folder)

    def _move(self) -> None:
        """Move what was not recovered out of the dataset."""
        for each in self._damaged:
            if each.path in self._lost:
                self._move_folder(each.path, each.reason)
        self._damaged = [each for each in self._damaged if each.path not in self._lost]
        for number, episode in enumerate(self._episodes):
            reason = "; ".join(episode.problems)
            if episode.path in self._lost:
                self._move_folder(episode.path, reason)
            elif episode.kept:
                moved = set_aside_files(self._root, episode.path, episode.kept)
                pairs = zip(episode.kept, moved, strict=True)
                self._moved += [SetAside(path, to, reason) for path, to in pairs]
            else:
                continue
            self._episodes[number] = replace(episode, problems=(), kept=())

    def _move_folder(self, folder: Path, reason: str) -> None:
        self._moved.append(SetAside(folder, set_aside_folder(self._root, folder), reason))


def _open_all(folder: Path) -> list[DiskEpisode]:
    return [DiskEpisode(folder)]


def _without_index(folder: Path) -> ReliveError | None:
    with contextlib.suppress(NotFoundError):  # it was removed meanwhile
        for video in videos_without_index(folder).values():
            return UnsupportedError(without_index(video))
    return None


@contextlib.contextmanager
def _no_writer_changes(block: Path) -> Iterator[None]:
    """Exclude writers that create a directory in a block; a `LockedError` if one does so now."""
    with locked(block) if is_block(block) else contextlib.nullcontext():
        yield


def _inside(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise storage_error(error, folder, "read") from error


def _recover_episode(folder: Path) -> RecoveredEpisode | None:
    """Finish an episode; None if there was nothing to do."""
    marker = folder / MARKER
    if not marker.exists():
        return None if is_committed(folder) else _recover_empty(folder)
    lock = _locked(marker, folder)
    if lock is None:
        return None
    try:
        return _Recovery(folder).run()
    except OSError as error:
        if isinstance(error, ReliveError):
            raise
        raise storage_error(error, folder, "recover") from error
    finally:
        lock.release()


def _locked(file: Path, what: Path) -> FileLock | None:
    """Lock a marker or a tape; None if its writer has just finished and removed it."""
    try:
        lock = FileLock.take(file)
    except NotFoundError:
        return None
    except LockedError as error:
        by = ""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            by = f" by process {int(json.loads(file.read_bytes())['pid'])}"
        raise LockedError(f"cannot recover `{what}`: it is still being recorded{by}") from error
    if lock.is_at(file):
        return lock
    lock.release()
    return None


def _recover_empty(folder: Path) -> RecoveredEpisode | None:
    """Remove a directory whose writer ended before it created the marker; report any other one."""
    with _no_writer_changes(folder.parent):
        if (folder / MARKER).exists() or (folder / META).exists():
            raise LockedError(f"cannot recover `{folder}`: its writer has just begun")
        inside = _inside(folder)
        if all(_MARKER_BEFORE.fullmatch(path.name) for path in inside):
            for path in inside:
                path.unlink()
            folder.rmdir()
            return None
    problem = f"`{folder}` is not an episode: it has no {META}"
    return RecoveredEpisode(folder, None, {}, (problem,))


class _Recovery:
    """Finishes one episode, whose lock is held. Nothing that holds data is deleted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._problems: list[str] = []
        self._kept: list[Path] = []
        # The names of files that are damaged or incomplete: their temporary files are kept too.
        self._damaged: set[str] = set()

    def run(self) -> RecoveredEpisode:
        meta = self._meta()
        try:
            read_statics(self._folder)
        except CorruptError as error:
            self._damaged.add(STATICS)
            self._problems.append(error.message)
        for path in sorted(_inside(self._folder)):
            if (named := _TAPE.fullmatch(path.name)) is not None:
                self._seal(path, named[1])
        for video in videos_without_index(self._folder).values():
            if video.name not in self._damaged:
                self._problems.append(without_index(video))
        self._remove_temporary()
        signals = self._rows()
        if not self._has_outcome():
            about = {name: {"rows": rows, "dropped": None} for name, rows in signals.items()}
            outcome = {"ended": "recovered", "finished_ts_ns": now_ns(), "signals": about}
            write_json(self._folder / OUTCOME, outcome)
        commit(self._folder)
        problems, kept = tuple(self._problems), tuple(self._kept)
        return RecoveredEpisode(self._folder, str(meta["uid"]), signals, problems, kept)

    def _meta(self) -> dict[str, Any]:
        try:
            return read_meta(self._folder, FileList(self._folder))
        except CorruptError as error:
            self._keep(self._folder / META, error.message)
        except NotFoundError:
            pass  # the writer stopped between creating the marker and meta.json
        meta = make_meta(DiskEpisodeWriter)
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            began = json.loads((self._folder / MARKER).read_bytes())
            meta |= {"uid": str(began["uid"]), "created_ts_ns": int(began["began"])}
        write_json(self._folder / META, meta)
        return meta

    def _keep(self, file: Path, reason: str) -> None:
        """Rename a file, and report it with the reason."""
        kept = keep_damaged(file)
        self._kept.append(kept)
        self._problems.append(f"{reason}; it was renamed to `{kept.name}`")

    def _seal(self, tape: Path, stem: str) -> None:
        """Write the files of a tape unless they exist, and remove the tape and its spill file."""
        ends = (VIDEO, INDEX) if _is_video(tape) else (COLUMNS,)
        files = tuple(self._folder / f"{stem}{end}" for end in ends)
        part, spill = part_path(files[0]), spill_path(files[0])
        name = signal_name(stem)
        damage, problem = tape_damage(tape), None
        try:
            _check_name(tape, signal_name(stem))
            if part.exists() and (damage is not None or _has_more(part, files[0], tape)):
                self._keep(part, f"`{part}` may have more records than its tape")
            _check_has_times(files, tape)
            if not _are_sealed(files, tape):
                problem, others = _seal(tape, files)[1:]
                for file, kept in others:
                    self._kept.append(kept)
                    self._problems.append(_other_records(file, kept, tape))
        except UnsupportedError:
            raise  # a later version of relive can read it
        except (CorruptError, InvalidError) as error:
            self._damaged.update(file.name for file in files)
            self._problems.append(
                f"signal {name!r} was not recovered from `{tape}`: {error.message}"
            )
        else:
            if problem is not None:
                self._problems.append(
                    f"{problem}; signal {name!r} has the frames before it, and `{spill.name}` "
                    "was kept"
                )
            if damage is not None:
                self._damaged.update(file.name for file in files)
                self._problems.append(
                    f"`{tape}` is damaged at byte {damage}; signal {name!r} has the records "
                    "before it, and the tape was kept"
                )
            else:
                part.unlink(missing_ok=True)
                if problem is None:
                    tape.unlink()
                    spill.unlink(missing_ok=True)
                    return
        self._kept += [tape, *([spill] if spill.exists() else [])]

    def _remove_temporary(self) -> None:
        """Remove files that were being written, unless they may be the only copy of something."""
        for path in _inside(self._folder):
            is_sealed_spill = path.suffix == SPILL and not path.with_suffix(TAPE).exists()
            if not (is_temporary(path.name) or is_sealed_spill):
                continue
            name = path.name.removeprefix(".").rpartition(".")[0]
            is_part = path.suffix in _PARTS
            if name in self._damaged or (is_part and not (self._folder / name).exists()):
                self._kept.append(path)
                self._problems.append(f"`{path}` was kept: it may be the only copy of `{name}`")
            else:
                path.unlink()

    def _rows(self) -> dict[str, int]:
        from pyarrow import ArrowException, OSFile
        from pyarrow import parquet as pq

        rows: dict[str, int] = {}
        for path in sorted(_inside(self._folder)):
            if path.suffix != COLUMNS or path.name.startswith("."):
                continue
            stem = path.name.removesuffix(INDEX if path.name.endswith(INDEX) else COLUMNS)
            try:
                with OSFile(os.fsencode(path)) as source:  # Arrow takes only UTF-8 as text
                    rows[signal_name(stem)] = pq.read_metadata(source).num_rows
            except (ArrowException, OSError) as error:
                self._problems.append(f"cannot read `{path}`: {error}")
        return rows

    def _has_outcome(self) -> bool:
        try:
            return read_json(self._folder / OUTCOME) is not None
        except CorruptError as error:
            self._keep(self._folder / OUTCOME, error.message)
            return False


def _recover_signal(path: Path) -> Recovered:
    tape = _tape(path)
    if tape is None:
        spill_path(path).unlink(missing_ok=True)  # an earlier recovery ended before that
        return Recovered(path)
    lock = _locked(tape, path)
    if lock is None:
        return Recovered(path)
    try:
        return Recovered(path, signals=_finish_signal(tape))
    except OSError as error:
        if isinstance(error, ReliveError):
            raise
        raise storage_error(error, path, "recover") from error
    finally:
        lock.release()


def _finish_signal(tape: Path) -> dict[str, int]:
    """Finish a signal outside of an episode; return its name and its number of records."""
    opened, damage = open_tape(tape), tape_damage(tape)
    if opened is None:
        if damage is not None:
            raise CorruptError(f"the header of `{tape}` is damaged at byte {damage}")
        tape.unlink()
        return {}
    head = opened[1]
    if not head.files:
        raise InvalidError(
            f"cannot recover `{tape}` alone: it belongs to an episode",
            hint=f"run `relive recover {tape.parent}` to finish the episode",
        )
    part, spill = part_path(head.files[0]), spill_path(head.files[0])
    _check_has_times(head.files, tape)
    if damage is not None and part.exists():
        keep_damaged(part)  # it may have more records than the tape
    rows, problem, others = _seal_alone(tape, opened[0], head)
    recovered = f"the {rows} records before it were recovered to `{head.files[0]}`"
    if problem is not None:
        problem = f"{problem}; {recovered}, and it was renamed to `{keep_damaged(spill)}`"
        keep_damaged(tape)
        raise CorruptError(problem)
    if damage is not None:
        kept = keep_damaged(tape)
        spill.unlink(missing_ok=True)  # its frames were recovered
        raise CorruptError(f"`{kept}` is damaged at byte {damage}; {recovered}")
    tape.unlink()
    spill.unlink(missing_ok=True)
    for file, kept in others:
        raise CorruptError(f"{_other_records(file, kept, tape)}, and {rows} were recovered")
    return {head.meta.name: rows}


def _tape(path: Path) -> Path | None:
    """Return the tape of a signal outside of an episode; None if the signal is finished."""
    tape = path if _ANY_TAPE.fullmatch(path.name) else tape_path(path)
    if not tape.exists():
        # The tape of a video is named after the video, not after its index.
        tape = tape_path(Path(f"{os.fspath(path).removesuffix(INDEX)}{VIDEO}"))
    if tape.exists():
        return tape
    if path.exists():
        return None
    raise NotFoundError(f"`{path}` does not exist, and no unfinished recording of it was found")


class _Written(NamedTuple):
    """What was written from a tape."""

    rows: int
    """The number of records."""
    problem: str | None = None
    """Why frames of the spill file are missing."""
    others: tuple[tuple[Path, Path], ...] = ()
    """Files with other records that existed, each with its path before and after."""


def _seal_alone(tape: Path, reader: TapeReader, head: TapeHead) -> _Written:
    """Write the files of a signal outside of an episode, unless they exist; see `_seal`."""
    is_video = head.meta.kind == "image"
    if head.overwrite:
        # An existing file may be the old one, or already the one with the records of the tape.
        if is_video:
            return _Written(*seal_video(tape, *head.files))
        return _Written(seal_over(tape, head.files[0]) if reader.rows else 0)
    if not all(file.exists() for file in head.files):
        return _seal(tape, head.files)
    # A writer may have ended before the last packets of a complete video were on the tape.
    if not _has_times(head.files, _times_on(tape, head.files), more=is_video):
        raise AlreadyExistsError(
            f"`{head.files[-1]}` already exists, but its records differ from those of `{tape}`",
            hint="move it to another directory and recover again",
        )
    return _Written(len(_times_of(*head.files)))


def _check_has_times(files: tuple[Path, ...], tape: Path) -> None:
    """Check that a tape has records if it has the only times of the frames of a video."""
    video, *indexes = files
    if not indexes or indexes[0].exists() or not video.exists() or spill_path(video).exists():
        return
    from relive.store.video.movie import fragment_times

    opened = open_tape(tape)
    if (opened is None or not opened[0].rows) and (times := fragment_times(video)):
        raise CorruptError(f"it has no times for the {len(times)} frames of `{video}`")


def _are_sealed(files: tuple[Path, ...], tape: Path) -> bool:
    """Return whether existing files have all records of a tape; true for an empty tape."""
    exist = all(file.exists() for file in files)
    try:
        opened = open_tape(tape)
        if opened is None or not (opened[0].rows or spill_path(files[0]).exists()):
            return True
    except CorruptError:
        if not exist:
            raise
        return True  # the files were made when the tape was whole
    if not (exist and _are_readable(files)):
        return False
    if opened[1].meta.kind == "image" and video_times(tape, files[0])[1] is not None:
        return False  # frames of the spill file may be missing
    return _has_times(files, _times_on(tape, files), more=True)


def _are_readable(files: tuple[Path, ...]) -> bool:
    """Return whether all values of a signal can be read; each is compared with its checksum."""
    try:
        if len(files) == 1:
            columns = ColumnsFile(files[0])
            step = max(1, _BATCH_BYTES // (columns.meta.nbytes or _TEXT_BYTES))
            for first in range(0, columns.rows, step):
                columns.values(range(first, min(first + step, columns.rows)))
        else:
            from relive.episodes.read.video_signal import VideoSignal  # needs PyAV

            frames = VideoSignal(*files).frames
            for _ in frames.packets(range(len(frames))):
                pass
    except (CorruptError, InvalidError, UnsupportedError):
        return False
    return True


def _has_times(files: tuple[Path, ...], recorded: Iterator[Ints], *, more: bool = False) -> bool:
    """Return whether existing files of a signal have the recorded times, and maybe more."""
    try:
        times = _times_of(*files)
    except (CorruptError, UnsupportedError):
        return False
    first = 0
    for batch in recorded:
        if not np.array_equal(batch, times[first : first + len(batch)]):
            return False
        first += len(batch)
    return more or first == len(times)


def _times_on(tape: Path, files: tuple[Path, ...]) -> Iterator[Ints]:
    """Iterate over the timestamps of a tape, and of its spill file."""
    opened = open_tape(tape)
    if opened is None:
        return
    reader, head = opened
    if head.meta.kind == "image":
        yield video_times(tape, files[0])[0]
        return
    while (batch := reader.next(_BATCH_ROWS, _BATCH_BYTES)) is not None:
        yield batch[0]


def _times_of(file: Path, index: Path | None = None) -> Ints:
    if index is None:
        return ColumnsFile(file).timestamps()
    from relive.store.video import FrameIndex  # needs PyAV

    return FrameIndex(index, file).timestamps


def _check_name(tape: Path, name: str) -> None:
    """Check that a tape is that of a signal, and not another one under its name."""
    try:
        opened = open_tape(tape)
    except CorruptError:
        return  # reported when it is sealed
    if opened is not None and opened[1].meta.name != name:
        raise CorruptError(f"it is the tape of signal {opened[1].meta.name!r}")


def _has_more(part: Path, file: Path, tape: Path) -> bool:
    """Return whether an incomplete file has records that its file and its tape should have too.

    The tape of a killed process may lack the last second; more than that was lost from it.
    """
    if file.exists() and _begins_with(file, part):
        return False
    opened = open_tape(tape)
    if not _is_video(tape):
        return opened is None and part.stat().st_size > len(_PARQUET_MAGIC)
    from relive.store.video.encode import TICKS_PER_SECOND
    from relive.store.video.movie import fragment_times

    times = fragment_times(part)
    if opened is None:
        return bool(times)
    rows = int(opened[0].rows)
    return len(times) > rows and times[-1] - times[max(0, rows - 1)] > TICKS_PER_SECOND


def _is_video(tape: Path) -> bool:
    """Return whether a tape has frames; by its name if its head cannot be read."""
    with contextlib.suppress(CorruptError):
        if (opened := open_tape(tape)) is not None:
            return opened[1].meta.kind == "image"
    return tape.name.endswith(f"{VIDEO}{TAPE}")


def _seal(tape: Path, files: tuple[Path, ...]) -> _Written:
    """Write the files of a tape; none if it has no rows and no spill file.

    Files that exist are renamed, and removed if the ones that replace them begin with the same
    bytes.
    """
    opened = open_tape(tape)
    if opened is None or not (opened[0].rows or spill_path(files[0]).exists()):
        return _Written(0)
    renamed = [(file, keep_damaged(file)) for file in files if file.exists()]
    try:
        if opened[1].meta.kind == "image":
            rows, problem = seal_video(tape, *files)
        else:
            rows, problem = seal_columns(tape, files[0]), None
    finally:
        for file, kept in renamed:
            if not file.exists():
                kept.rename(file)
    others = []
    for file, kept in renamed:
        if not kept.exists():
            continue
        if _begins_with(file, kept):
            kept.unlink()
        else:
            others.append((file, kept))
    return _Written(rows, problem, tuple(others))


def _begins_with(file: Path, prefix: Path) -> bool:
    """Return whether a file begins with all bytes of another one."""
    with open_reader(file) as one, open_reader(prefix) as other:
        while expected := other.read(_BATCH_BYTES):
            if one.read(len(expected)) != expected:
                return False
    return True


def _other_records(file: Path, kept: Path, tape: Path) -> str:
    return f"`{file}` did not have the records of `{tape}`: it was renamed to `{kept.name}`"
