"""Finishing what a writer left that died: an episode, all of a root, or a single signal."""

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

__all__ = ["Recovered", "RecoveredEpisode", "recover"]

_TAPE: Final = re.compile(r"\.(.+)(?:\.parquet|\.mp4)\.tape", re.DOTALL)
_ANY_TAPE: Final = re.compile(r"\..+\.tape", re.DOTALL)  # a file alone may be called anything
_CHUNK_ROWS: Final = 1 << 16
_CHUNK_BYTES: Final = 8 << 20
# A folder in which nothing is may be one that a writer has just made.
_JUST_MADE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class RecoveredEpisode:
    """What became of one unfinished episode."""

    path: str
    """Its folder."""
    uid: str | None
    """What identifies it; None where it could not be committed."""
    signals: dict[str, int]
    """How many records of each signal there are: the first ones, without a gap."""
    problems: tuple[str, ...] = ()
    """What is wrong with it."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was found unfinished, and what became of it."""

    path: str
    """Where it was looked for."""
    episodes: tuple[RecoveredEpisode, ...] = ()
    """The episodes that were unfinished."""
    signals: dict[str, int] = field(default_factory=dict)
    """Records of a signal that belongs to no episode, by its name."""
    locked: tuple[str, ...] = ()
    """Folders of episodes that are being recorded."""

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with any of them."""
        return tuple(text for episode in self.episodes for text in episode.problems)


def recover(path: str | os.PathLike[str]) -> Recovered:
    """Finish the episodes that writers left which did not come to their end.

    `path` is a root, an episode, or a signal that was recorded by itself. Every record that was
    flushed is in what comes back. What is finished is left alone, so it may be run again, also
    when it was interrupted. An episode that is being recorded is a `LockedError`; in a root it is
    passed over.
    """
    place = Path(absolute_path(path, "what is to be recovered"))
    if not place.is_dir():
        return _recover_signal(place)
    if is_episode(place) or is_numbered(place):
        found = _recover_episode(place)
        return Recovered(os.fspath(place), () if found is None else (found,))
    episodes: list[RecoveredEpisode] = []
    locked: list[str] = []
    for folder in _folders(place):
        try:
            found = _recover_episode(folder)
        except LockedError:
            locked.append(os.fspath(folder))
        except (ReliveError, OSError) as error:
            trouble = f"`{folder}` could not be recovered: {error}"
            episodes.append(RecoveredEpisode(os.fspath(folder), None, {}, (trouble,)))
        else:
            episodes += [] if found is None else [found]
    return Recovered(os.fspath(place), tuple(episodes), locked=tuple(locked))


def _folders(root: Path) -> Iterator[Path]:
    """Iterate over the directories of episodes, and remove those that were being removed."""
    for folder in aborted_directories(root):
        if _is_garbage(folder):
            shutil.rmtree(folder, ignore_errors=True)
    for key in sorted(episode_keys(root)):
        yield episode_path(root, key)


def _is_garbage(folder: Path) -> bool:
    """Whether nobody will go on with a folder that no reader looks at."""
    marker = folder / MARKER
    try:
        made_s = time.time() - folder.stat().st_mtime
    except OSError:
        return False
    return not is_locked(marker) if marker.exists() else made_s > _JUST_MADE_S


def _inside(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise storage_error(error, folder, "read") from error


def _recover_episode(folder: Path) -> RecoveredEpisode | None:
    """Finish one; None where there was nothing to do."""
    marker = folder / MARKER
    if not marker.exists():
        return None if (folder / META).exists() else _without_anything(folder)
    lock = _locked(marker, folder)
    try:
        if not lock.is_at(marker):
            return None  # its writer has just committed it
        return _Recovery(folder).run()
    except OSError as error:
        if isinstance(error, ReliveError):
            raise
        raise storage_error(error, folder, "recovered") from error
    finally:
        lock.release()


def _locked(file: Path, what: Path) -> FileLock:
    try:
        return FileLock.take(file)
    except LockedError as error:
        by = ""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            by = f" by process {int(json.loads(file.read_bytes())['pid'])}"
        raise LockedError(f"`{what}` is being recorded{by}") from error


def _without_anything(folder: Path) -> RecoveredEpisode | None:
    """Tell of a folder that was made, and in which no episode was begun."""
    names = [each.name for each in _inside(folder)]
    age = time.time() - folder.stat().st_mtime
    if all(is_temporary(name) for name in names) and age > _JUST_MADE_S:
        shutil.rmtree(folder)
        return None
    text = f"`{folder}` has no {META}, so no episode was begun in it"
    return RecoveredEpisode(os.fspath(folder), None, {}, (text,))


class _Recovery:
    """One episode, whose lock is held, being finished."""

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
        return RecoveredEpisode(os.fspath(self._folder), uid, signals, tuple(self._problems))

    def _meta(self) -> dict[str, Any]:
        try:
            return read_meta(self._folder)
        except CorruptError as error:
            self._problems.append(f"{error}; it was written anew")
        except NotFoundError:
            pass  # the writer died in between, and nothing was recorded
        meta = make_meta(DiskEpisodeWriter)
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            began = json.loads((self._folder / MARKER).read_bytes())
            meta |= {"uid": str(began["uid"]), "created_ts_ns": int(began["began"])}
        write_json(self._folder / META, meta, overwrite=True)
        return meta

    def _seal(self, tape: Path, stem: str) -> None:
        """Make the files of a tape, unless they are there; then it is not needed any more."""
        columns, index, video = (self._folder / f"{stem}{end}" for end in (COLUMNS, INDEX, VIDEO))
        if not columns.exists() and not (index.exists() and video.exists()):
            try:
                _seal(tape, columns, video, index)
            except UnsupportedError:
                raise  # a later relive knows what to do with it
            except (CorruptError, InvalidError) as error:
                name = signal_name(stem)
                self._problems.append(f"signal {name!r} is left as it is, in `{tape}`: {error}")
                return
        if (at := tape_damage(tape)) is not None:
            self._problems.append(
                f"signal {signal_name(stem)!r} has the records before the damage at byte {at} of "
                f"`{tape}`, which is left as it is"
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
                self._problems.append(f"`{path}` cannot be read: {error}")
        return rows

    def _has_outcome(self) -> bool:
        try:
            return read_json(self._folder / OUTCOME) is not None
        except CorruptError:
            return False


def _recover_signal(place: Path) -> Recovered:
    tape = place if _ANY_TAPE.fullmatch(place.name) else tape_path(place)
    if not tape.exists():
        # The index of a video is called after the video.
        tape = tape_path(Path(f"{os.fspath(place).removesuffix(INDEX)}{VIDEO}"))
    if not tape.exists():
        if place.exists():
            return Recovered(os.fspath(place))
        raise NotFoundError(f"nothing is at `{place}`, and nothing unfinished was to become that")
    lock = _locked(tape, place)
    try:
        opened, damage = open_tape(tape), tape_damage(tape)
        if opened is None:
            if damage is not None:
                raise CorruptError(f"`{tape}` is damaged at byte {damage}, where its head must be")
            tape.unlink()
            return Recovered(os.fspath(place))
        head = opened[1]
        if not head.files:
            raise InvalidError(
                f"`{tape}` belongs to an episode",
                hint=f"`relive recover {tape.parent}` finishes it",
            )
        rows = _seal_alone(tape, opened[0], head)
        if damage is not None:
            kept = tape.replace(tape.with_name(f"{tape.name}.damaged"))
            raise CorruptError(
                f"`{head.files[0]}` has the {rows} records before the damage at byte {damage} of "
                f"`{kept}`"
            )
        tape.unlink()
        return Recovered(os.fspath(place), signals={head.meta.name: rows})
    except OSError as error:
        if isinstance(error, ReliveError):
            raise
        raise storage_error(error, place, "recovered") from error
    finally:
        lock.release()


def _seal_alone(tape: Path, reader: TapeReader, head: TapeHead) -> int:
    """Make the files of a signal that belongs to no episode, unless they are there."""
    rows = int(reader.rows)
    is_video = head.meta.kind == "image"
    if not all(file.exists() for file in head.files):
        return _seal(tape, head.files[0], *(head.files if is_video else (tape, tape)))
    if head.overwrite:
        # What is there may be the old one, or already what the tape holds.
        if rows and is_video:
            return seal_video(tape, *head.files)
        return seal_over(tape, head.files[0]) if rows else 0
    if not _has_times(head.files, reader):
        raise AlreadyExistsError(
            f"`{head.files[-1]}` is not what `{tape}` was to become",
            hint="move it away, and recover again",
        )
    return rows


def _has_times(files: tuple[Path, ...], reader: TapeReader) -> bool:
    """Whether the files of a signal, which may be somebody else's, have the times on its tape."""
    try:
        times = _times_of(*files)
    except (CorruptError, UnsupportedError):
        return False
    first = 0
    while (chunk := reader.next(_CHUNK_ROWS, _CHUNK_BYTES)) is not None:
        count = len(chunk[0])
        if not np.array_equal(chunk[0], times[first : first + count]):
            return False
        first += count
    return first == len(times)


def _times_of(file: Path, index: Path | None = None) -> npt.NDArray[np.int64]:
    if index is None:
        return ColumnsFile(file).timestamps()
    from relive.store.video import FrameIndex  # other signals need no video

    return FrameIndex(index, file).timestamps


def _seal(tape: Path, columns: Path, video: Path, index: Path) -> int:
    """Make the files of a tape and count its rows; without any there are no files."""
    opened = open_tape(tape)
    if opened is None or not opened[0].rows:
        return 0
    if opened[1].meta.kind == "image":
        return seal_video(tape, video, index)
    return seal_columns(tape, columns)
