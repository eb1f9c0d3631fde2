"""Copying episodes into a root: edits and views become records, and video stays as it is coded."""

import os
import secrets
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from relive.episodes.contents import same_content
from relive.episodes.copy_signal import copy_signal
from relive.episodes.layout import (
    ABORTED,
    OUTCOME,
    SCHEMA_VERSION,
    create_episode,
    episode_path,
    is_episode,
    scan_root,
)
from relive.episodes.meta import make_meta, read_uid, write_json, write_statics
from relive.episodes.read.episode import DiskEpisode
from relive.episodes.read.local_dataset import LocalDataset
from relive.episodes.write.commit import begin_folder, commit
from relive.episodes.write.dataset_writer import LocalDatasetWriter
from relive.errors import AlreadyExistsError, InvalidTypeError, ReliveError
from relive.model.clock import now_ns
from relive.model.dataset import ConcatDataset, Dataset, EpisodeList
from relive.model.episode import Episode, check_json, check_static
from relive.store.atomic import storage_error
from relive.store.paths import absolute_path
from relive.store.video import VideoSpec

__all__ = ["Copied", "CopySource", "Progress", "copy", "merge"]

CopySource: TypeAlias = Dataset | Episode | Iterable[Episode] | str | os.PathLike[str]
"""A dataset, an episode, several of them, or where a dataset or an episode is."""

Progress: TypeAlias = Callable[[int, int], object]
"""Is told how many episodes are done, out of how many."""

_FIRST_BLOCK: Final = "000000000000"


@dataclass(frozen=True, slots=True)
class Copied:
    """What became of the episodes that were to be copied."""

    copied: tuple[str, ...]
    """The uids of those that were copied, in order."""
    skipped: tuple[str, ...]
    """The uids of those that were there already."""


def copy(
    source: CopySource,
    root: str | os.PathLike[str],
    *,
    video: VideoSpec | str | None = None,
    progress: Progress | None = None,
) -> Copied:
    """Copy episodes into a root, behind those that are there; it is made where it is missing.

    They keep their uids, and what edits and views made of them is what is stored. Video is
    copied as it is coded, not encoded again, unless the frames that are wanted are not a run of
    those that are stored; then it is by `video`, or else by the profile it was recorded with.
    What was written is read again and compared before an episode is committed.

    An episode that is there already, by its uid, is skipped where it holds the same, so an
    interrupted copy may be run again; else it is an `AlreadyExistsError`. Nothing is ever seen
    of an episode that was not copied to its end.
    """
    dataset = as_dataset(source)
    spec = VideoSpec(profile=video) if isinstance(video, str) else video
    target = LocalDatasetWriter(root)
    places = [episode_path(target.path, place) for place in scan_root(target.path).committed]
    there = {uid: path for path in reversed(places) if (uid := read_uid(path))}
    copied: list[str] = []
    skipped: list[str] = []
    total = len(dataset)
    for done, episode in enumerate(dataset):
        if progress is not None:
            progress(done, total)
        if (path := there.get(episode.uid)) is not None:
            _check_same(episode, DiskEpisode(path))
            skipped.append(episode.uid)
            continue
        uid, path = _copy_episode(episode, target, spec)
        there[uid] = path
        copied.append(uid)
    if progress is not None:
        progress(total, total)
    return Copied(tuple(copied), tuple(skipped))


def merge(
    sources: Iterable[CopySource],
    root: str | os.PathLike[str],
    *,
    video: VideoSpec | str | None = None,
    progress: Progress | None = None,
) -> Copied:
    """Copy the episodes of several datasets into one root; see `copy`."""
    if isinstance(sources, (str, bytes, os.PathLike)):
        raise InvalidTypeError("several datasets are merged, and this is one", hint="copy() copies")
    if not isinstance(sources, Iterable):
        raise InvalidTypeError(f"a list of datasets is merged, not {sources!r}")
    joined = ConcatDataset(*map(as_dataset, sources))
    return copy(joined, root, video=video, progress=progress)


def as_dataset(source: CopySource) -> Dataset:
    """Give what is to be copied as a dataset."""
    if isinstance(source, Dataset):
        return source
    if isinstance(source, Episode):
        return EpisodeList([source])
    if isinstance(source, (str, os.PathLike)):
        place = Path(absolute_path(source, "a dataset or an episode"))
        if is_episode(place):
            return EpisodeList([DiskEpisode(place)])
        return LocalDataset(place)
    if isinstance(source, bytes) or not isinstance(source, Iterable):
        raise InvalidTypeError(
            f"{source!r} is no dataset, no episode, and not where one is",
            hint="give a path, a dataset, an episode or a list of episodes",
        )
    return EpisodeList(source)


def _check_same(episode: Episode, there: DiskEpisode) -> None:
    signals, others = episode.signals, there.signals
    same = dict(episode.statics) == dict(there.statics) and signals.keys() == others.keys()
    if not same or not all(same_content(signals[name], others[name]) for name in signals):
        raise AlreadyExistsError(
            f"another episode {episode.uid!r} is in `{there.path}`",
            hint="uids tell episodes apart: drop one of them, or copy it to another root",
        )


def _copy_episode(
    episode: Episode, target: LocalDatasetWriter, spec: VideoSpec | None
) -> tuple[str, Path]:
    meta = _meta(episode)
    block = target.path / _FIRST_BLOCK
    # Nobody reads a folder of this name, and `relive recover` removes one that nobody locks.
    folder = block / f"{ABORTED}copy.{secrets.token_hex(8)}"
    lock = None
    try:
        block.mkdir(exist_ok=True)
        folder.mkdir()
        lock = begin_folder(folder, meta)
        _fill(folder, episode, spec)
        # It is committed before others look at it: one that still had to be would come a second
        # time, where an interrupted copy is run again and recovered behind that.
        commit(folder)
        # An empty folder that was made for us gives way to a full one.
        place = create_episode(target.path, _make_directory)
        folder.rename(place)
        commit(place)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError) and not isinstance(error, ReliveError):
            raise storage_error(error, folder, "written") from error
        raise
    finally:
        if lock is not None:
            lock.release()
    return str(meta["uid"]), place


def _make_directory(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.mkdir()
    return path


def _fill(folder: Path, episode: Episode, spec: VideoSpec | None) -> None:
    statics = episode.statics
    write_statics(folder, {name: check_static(name, statics[name]) for name in statics})
    usual = {"ended": "committed", "finished_ts_ns": now_ns()}
    outcome = dict(episode.meta.get("outcome") or usual)
    noted = outcome.get("signals") or {}
    outcome["signals"] = {
        name: {
            "rows": copy_signal(folder, name, signal, spec),
            "dropped": (noted.get(name) or {}).get("dropped", 0),
        }
        for name, signal in episode.signals.items()
    }
    write_json(folder / OUTCOME, outcome)


def _meta(episode: Episode) -> dict[str, Any]:
    """Give what was noted of an episode, and where nothing was, what is noted of a new one."""
    noted = {key: value for key, value in episode.meta.items() if key != "outcome"}
    meta = make_meta(LocalDatasetWriter) | {k: check_json(k, v) for k, v in noted.items()}
    return meta | {"schema_version": SCHEMA_VERSION, "uid": episode.uid or meta["uid"]}
