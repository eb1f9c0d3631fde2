"""Finishes episodes and signals whose writer did not close them."""

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive._native import TapeReader, tape_damage
from relive.episodes.layout import (
    COLUMNS,
    INDEX,
    MARKER,
    META,
    OUTCOME,
    VIDEO,
    aborted_directories,
    episode_keys,
    episode_path,
    is_episode,
    is_numbered,
    is_temporary,
    signal_name,
)
from relive.episodes.meta import make_meta, read_json, read_meta, read_statics, write_json
from relive.episodes.write.commit import commit
from relive.episodes.write.episode_writer import DiskEpisodeWriter
from relive.errors import (
    AlreadyExistsError,
    CorruptError,
    InvalidError,
    LockedError,
    NotFoundError,
    ReliveError,
    UnsupportedError,
)
from relive.model.clock import now_ns
from relive.store.atomic import storage_error
from relive.store.locks import FileLock, is_locked
from relive.store.paths import absolute_path
from relive.store.signal.parquet_reader import ColumnsFile
from relive.store.signal.tape import (
    TapeHead,
    open_tape,
    seal_columns,
    seal_over,
    seal_video,
    tape_path,
)

_TAPE: Final = re.compile(r"\.(.+)(?:\.parquet|\.mp4)\.tape", re.DOTALL)
_ANY_TAPE: Final = re.compile(r"\..+\.tape", re.DOTALL)  # a single signal may have any file name
_BATCH_ROWS: Final = 1 << 16
_BATCH_BYTES: Final = 8 << 20
# A younger empty directory may belong to a writer that is about to begin.
_MIN_AGE_S: Final = 60.0


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

    @property
    def problems(self) -> tuple[str, ...]:
        """The problems of all episodes."""
        return tuple(text for episode in self.episodes for text in episode.problems)


def recover(path: str | os.PathLike[str]) -> Recovered:
    """Finish the episodes whose writers did not close them.

    `path` is a root, an episode, or the file of a signal outside of an episode. Every record that
    was flushed is recovered. Finished episodes are not changed, so it can be run again, also
    after an interruption. An episode that is being recorded raises a `LockedError`; in a root it
    is skipped and listed in `locked`.

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
    if not target.is_dir():
        return _recover_signal(target)
    if is_episode(target) or is_numbered(target):
        found = _recover_episode(target)
        return Recovered(target, () if found is None else (found,))
    episodes: list[RecoveredEpisode] = []
    locked: list[Path] = []
    for folder in _folders(target):
        try:
            found = _recover_episode(folder)
        except LockedError:
            locked.append(folder)
        except (ReliveError, OSError) as error:
            if folder.exists():  # else its writer has just aborted it
                problem = f"cannot recover `{folder}`: {error}"
                episodes.append(RecoveredEpisode(folder, None, {}, (problem,)))
        else:
            episodes += [] if found is None else [found]
    return Recovered(target, tuple(episodes), locked=tuple(locked))


def _folders(root: Path) -> Iterator[Path]:
    """Iterate over the directories of episodes; directories of aborted ones are removed."""
    for folder in aborted_directories(root):
        if _is_abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)
    for key in sorted(episode_keys(root)):
        yield episode_path(root, key)


def _is_abandoned(folder: Path) -> bool:
    """Return whether no writer is using an aborted directory."""
    marker = folder / MARKER
    try:
        age_s = time.time() - folder.stat().st_mtime
    except OSError:
        return False
    return not is_locked(marker) if marker.exists() else age_s > _MIN_AGE_S


def _inside(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise storage_error(error, folder, "read") from error


def _recover_episode(folder: Path) -> RecoveredEpisode | None:
    """Finish an episode; None if there was nothing to do."""
    marker = folder / MARKER
    if not marker.exists():
        return None if (folder / META).exists() else _recover_empty(folder)
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
    """Remove an empty directory, or report one that is not an episode."""
    names = [each.name for each in _inside(folder)]
    age = time.time() - folder.stat().st_mtime
    if all(is_temporary(name) for name in names) and age > _MIN_AGE_S:
        shutil.rmtree(folder)
        return None
    problem = f"`{folder}` is not an episode: it has no {META}"
    return RecoveredEpisode(folder, None, {}, (problem,))


class _Recovery:
    """Finishes one episode, whose lock is held."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._problems: list[str] = []

    def run(self) -> RecoveredEpisode:
        meta = self._meta()
        try:
            read_statics(self._folder)
        except CorruptError as error:
            self._problems.append(str(error))
        for path in sorted(_inside(self._folder)):
            if (named := _TAPE.fullmatch(path.name)) is not None:
                self._seal(path, named[1])
        for path in _inside(self._folder):
            if is_temporary(path.name):
                path.unlink()
        signals = self._rows()
        if not self._has_outcome():
            about = {name: {"rows": rows, "dropped": None} for name, rows in signals.items()}
            outcome = {"ended": "recovered", "finished_ts_ns": now_ns(), "signals": about}
            write_json(self._folder / OUTCOME, outcome, overwrite=True)
        commit(self._folder)
        uid = str(meta["uid"])
        return RecoveredEpisode(self._folder, uid, signals, tuple(self._problems))

    def _meta(self) -> dict[str, Any]:
        try:
            return read_meta(self._folder)
        except CorruptError as error:
            self._problems.append(f"{error}; it was replaced")
        except NotFoundError:
            pass  # the writer stopped between creating the marker and meta.json
        meta = make_meta(DiskEpisodeWriter)
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            began = json.loads((self._folder / MARKER).read_bytes())
            meta |= {"uid": str(began["uid"]), "created_ts_ns": int(began["began"])}
        write_json(self._folder / META, meta, overwrite=True)
        return meta

    def _seal(self, tape: Path, stem: str) -> None:
        """Write the files of a tape unless they exist, and remove the tape."""
        columns, index, video = (self._folder / f"{stem}{end}" for end in (COLUMNS, INDEX, VIDEO))
        if not columns.exists() and not (index.exists() and video.exists()):
            try:
                _seal(tape, columns, video, index)
            except UnsupportedError:
                raise  # a later version of relive can read it
            except (CorruptError, InvalidError) as error:
                name = signal_name(stem)
                self._problems.append(f"signal {name!r} was not recovered from `{tape}`: {error}")
                return
        if (at := tape_damage(tape)) is not None:
            self._problems.append(
                f"`{tape}` is damaged at byte {at}; signal {signal_name(stem)!r} has the records "
                "before it, and the tape was kept"
            )
            return
        tape.unlink()

    def _rows(self) -> dict[str, int]:
        from pyarrow import ArrowException
        from pyarrow import parquet as pq

        rows: dict[str, int] = {}
        for path in sorted(_inside(self._folder)):
            if path.suffix != COLUMNS or path.name.startswith("."):
                continue
            stem = path.name.removesuffix(INDEX if path.name.endswith(INDEX) else COLUMNS)
            try:
                rows[signal_name(stem)] = pq.read_metadata(path).num_rows
            except (ArrowException, OSError) as error:
                self._problems.append(f"cannot read `{path}`: {error}")
        return rows

    def _has_outcome(self) -> bool:
        try:
            return read_json(self._folder / OUTCOME) is not None
        except CorruptError:
            return False


def _recover_signal(path: Path) -> Recovered:
    tape = _tape(path)
    lock = None if tape is None else _locked(tape, path)
    if tape is None or lock is None:
        return Recovered(path)
    try:
        opened, damage = open_tape(tape), tape_damage(tape)
        if opened is None:
            if damage is not None:
                raise CorruptError(f"the header of `{tape}` is damaged at byte {damage}")
            tape.unlink()
            return Recovered(path)
        head = opened[1]
        if not head.files:
            raise InvalidError(
                f"cannot recover `{tape}` alone: it belongs to an episode",
                hint=f"run `relive recover {tape.parent}` to finish the episode",
            )
        rows = _seal_alone(tape, opened[0], head)
        if damage is not None:
            kept = tape.replace(tape.with_name(f"{tape.name}.damaged"))
            raise CorruptError(
                f"`{kept}` is damaged at byte {damage}; "
                f"the {rows} records before it were recovered to `{head.files[0]}`"
            )
        tape.unlink()
        return Recovered(path, signals={head.meta.name: rows})
    except OSError as error:
        if isinstance(error, ReliveError):
            raise
        raise storage_error(error, path, "recover") from error
    finally:
        lock.release()


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


def _seal_alone(tape: Path, reader: TapeReader, head: TapeHead) -> int:
    """Write the files of a signal outside of an episode, unless they exist."""
    rows = int(reader.rows)
    is_video = head.meta.kind == "image"
    if not all(file.exists() for file in head.files):
        return _seal(tape, head.files[0], *(head.files if is_video else (tape, tape)))
    if head.overwrite:
        # The existing file may be the old one, or already the one with the records of the tape.
        if rows and is_video:
            return seal_video(tape, *head.files)
        return seal_over(tape, head.files[0]) if rows else 0
    if not _has_times(head.files, reader):
        raise AlreadyExistsError(
            f"`{head.files[-1]}` already exists, but its records differ from those of `{tape}`",
            hint="move it to another directory and recover again",
        )
    return rows


def _has_times(files: tuple[Path, ...], reader: TapeReader) -> bool:
    """Return whether the existing files of a signal have the times of its tape."""
    try:
        times = _times_of(*files)
    except (CorruptError, UnsupportedError):
        return False
    first = 0
    while (batch := reader.next(_BATCH_ROWS, _BATCH_BYTES)) is not None:
        count = len(batch[0])
        if not np.array_equal(batch[0], times[first : first + count]):
            return False
        first += count
    return first == len(times)


def _times_of(file: Path, index: Path | None = None) -> npt.NDArray[np.int64]:
    if index is None:
        return ColumnsFile(file).timestamps()
    from relive.store.video import FrameIndex  # needs PyAV

    return FrameIndex(index, file).timestamps


def _seal(tape: Path, columns: Path, video: Path, index: Path) -> int:
    """Write the files of a tape and return the number of rows; none if it has no rows."""
    opened = open_tape(tape)
    if opened is None or not opened[0].rows:
        return 0
    if opened[1].meta.kind == "image":
        return seal_video(tape, video, index)
    return seal_columns(tape, columns)
