"""Copies episodes into a root, with edits and views applied and video packets unchanged."""

import contextlib
import os
import re
import secrets
import shutil
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from relive._arguments import check_choice
from relive.episodes.copy_video import plan_copy, write_video
from relive.episodes.layout import (
    ABORTED,
    COLUMNS,
    INDEX,
    OUTCOME,
    SCHEMA_VERSION,
    VIDEO,
    check_name,
    create_episode,
    episode_path,
    file_stem,
    is_episode,
    scan_root,
)
from relive.episodes.meta import make_meta, read_uid, write_json, write_statics
from relive.episodes.read.episode import DiskEpisode
from relive.episodes.read.local_dataset import LocalDataset
from relive.episodes.read.simple_signal import SimpleSignal
from relive.episodes.read.video_signal import VideoSignal
from relive.episodes.write.commit import (
    begin_folder,
    changing_block,
    commit,
    place_folder,
    remove_folder,
    sync_folder,
)
from relive.episodes.write.dataset_writer import LocalDatasetWriter
from relive.errors import (
    AlreadyExistsError,
    CorruptError,
    InvalidError,
    InvalidTypeError,
    ReliveError,
)
from relive.model.clock import Times, now_ns
from relive.model.dataset import SEGMENT_MARK, ConcatDataset, Dataset, EpisodeList
from relive.model.episode import Episode, check_json, check_static
from relive.model.report import Damaged, Progress
from relive.model.signal import Signal
from relive.store.atomic import storage_error
from relive.store.paths import absolute_path
from relive.store.signal.meta import SignalMeta
from relive.store.signal.parquet_writer import ColumnsWriter
from relive.store.signal.tape import write_empty_video
from relive.store.video import VideoSpec

CopySource: TypeAlias = Dataset | Episode | Iterable[Episode] | str | os.PathLike[str]
"""A dataset, an episode, several episodes, or the path of a dataset or an episode."""

_FIRST_BLOCK: Final = "000000000000"
# Cuts number the two segments of an episode 0 and 1.
_LAST_CUT: Final = re.compile(f"{SEGMENT_MARK}[01]$")
_BATCH_BYTES: Final = 8 << 20
_BATCH_ROWS: Final = 1 << 16
_TEXT_ROWS: Final = 1024


@dataclass(frozen=True, slots=True)
class Copied:
    """The result of `copy` and `merge`.

    Example:
        >>> from relive.episodes import Copied
        >>> Copied(copied=("e0",)).skipped
        ()
    """

    copied: tuple[str, ...] = ()
    """The uids of the episodes that were copied, in order."""
    skipped: tuple[str, ...] = ()
    """The uids of the episodes that were already in the root."""
    damaged: tuple[Damaged, ...] = ()
    """The episodes that could not be read and were left out."""
    removed: tuple[str, ...] = ()
    """The uids of the episodes that were removed from the root, because copies replace them."""
    encoded_frames: int = 0
    """How many video frames were encoded, because they could not be copied as they are stored."""


def copy(
    source: CopySource,
    root: str | os.PathLike[str],
    *,
    video: VideoSpec | str | None = None,
    replace: bool = False,
    errors: str = "raise",
    progress: Progress | None = None,
) -> Copied:
    """Copy episodes into a root, after those in it; the root is created if it is missing.

    Episodes keep their uids. Edits and views are applied. Video is copied without encoding it
    again, except for frames that need others which the copy leaves out. These are encoded with
    `video`, or else with the settings of their video, and are counted. The copy is read and
    compared before an episode is committed.

    An episode whose uid is already in the root is skipped if it has the same content, so an
    interrupted copy can be run again. If the root holds another state of an episode (with other
    content, as a whole instead of its segments, or one that was dropped in the source since), an
    `AlreadyExistsError` is raised before anything is changed. With `replace` such episodes are
    removed, each after all copies are complete. Readers never see an incomplete copy.

    An episode that cannot be read raises its error; with `errors="skip"` it is left out and
    listed in `damaged`, and no episode is removed.

    Example:
        >>> import relive
        >>> with relive.LocalDatasetWriter("kitchen").new_episode(uid="e0") as episode:
        ...     episode.append("joint", 0.5, ts_ns=0)
        >>> relive.episodes.copy("kitchen", "backup").copied
        ('e0',)
    """
    check_choice("errors", errors, ("raise", "skip"))
    dataset = as_dataset(source, errors=errors)
    damaged = _left_out(dataset)
    spec = VideoSpec(profile=video) if isinstance(video, str) else video
    target = LocalDatasetWriter(root)
    found = _compare(dataset, target.path, skip=errors == "skip")
    damaged += found.damaged
    if found.outdated and not replace:
        raise _outdated_error(found.outdated)
    total = len(dataset)
    copied: list[str] = []
    skipped: list[str] = []
    encoded = 0
    for done, episode in enumerate(dataset):
        if progress is not None:
            progress(done, total)
        uid = episode.uid
        if uid and uid in found.kept:
            skipped.append(uid)
            continue
        if uid in found.unreadable:
            continue
        try:
            uid, frames = _copy_episode(episode, target, spec)
        except ReliveError as error:
            damaged.append(_as_damage(error, episode, target.path, skip=errors == "skip"))
            found.unreadable.add(uid)
            continue
        found.kept.add(uid)
        copied.append(uid)
        encoded += frames
    outdated = [] if found.unreadable else found.outdated
    for each in outdated:
        remove_folder(each.path, secrets.token_hex(8))
    if progress is not None:
        progress(total, total)
    removed = tuple(each.uid for each in outdated)
    return Copied(tuple(copied), tuple(skipped), tuple(damaged), removed, encoded)


def merge(
    sources: Iterable[CopySource],
    root: str | os.PathLike[str],
    *,
    video: VideoSpec | str | None = None,
    replace: bool = False,
    errors: str = "raise",
    progress: Progress | None = None,
) -> Copied:
    """Copy the episodes of several datasets into one root; see `copy`."""
    if isinstance(sources, (str, bytes, os.PathLike)) or not isinstance(sources, Iterable):
        raise InvalidTypeError(
            f"`sources` must be a list of datasets, got {sources!r}",
            hint="use copy() for a single dataset",
        )
    check_choice("errors", errors, ("raise", "skip"))
    joined = ConcatDataset(*(as_dataset(source, errors=errors) for source in sources))
    return copy(joined, root, video=video, replace=replace, errors=errors, progress=progress)


def as_dataset(source: CopySource, *, errors: str = "raise") -> Dataset:
    """Return the episodes of a `CopySource` as a dataset; `errors` is for that of a path."""
    if isinstance(source, Dataset):
        return source
    if isinstance(source, Episode):
        return EpisodeList([source])
    if isinstance(source, (str, os.PathLike)):
        path = Path(absolute_path(source, "a dataset or an episode"))
        if is_episode(path):
            return EpisodeList([DiskEpisode(path)])
        return LocalDataset(path, errors=errors)
    if isinstance(source, bytes) or not isinstance(source, Iterable):
        raise InvalidTypeError(
            f"`source` must be a dataset, an episode, a list of episodes or a path, got {source!r}"
        )
    return EpisodeList(source)


def _left_out(dataset: Dataset) -> list[Damaged]:
    """Return the episodes that datasets in directories have skipped."""
    datasets = dataset.datasets if isinstance(dataset, ConcatDataset) else (dataset,)
    return [each for one in datasets if isinstance(one, LocalDataset) for each in one.damaged]


def _is_damage(error: ReliveError, source: Path, target: Path) -> bool:
    """Return whether an error is about the episode that is copied, not about the copy."""
    if f"`{source}" in error.message:
        return True
    return isinstance(error, CorruptError) and f"`{target}" not in error.message


def _as_damage(error: ReliveError, episode: Episode, target: Path, *, skip: bool) -> Damaged:
    """Return the damage of an episode that is skipped; raise the error if it is not skipped."""
    source = getattr(getattr(episode, "recorded", episode), "path", None)
    if not skip or source is None or not _is_damage(error, source, target):
        raise error
    return Damaged(source, error.message)


class _Outdated(NamedTuple):
    """An episode in the root that is another state of one in the source."""

    uid: str
    path: Path
    reason: str


class _Comparison(NamedTuple):
    """The episodes of a source, compared with those in a root."""

    kept: set[str]
    """The uids that the root already holds as they are."""
    outdated: list[_Outdated]
    unreadable: set[str]
    """The uids that could not be compared or copied."""
    damaged: list[Damaged]

    def compare(self, episode: Episode, path: Path, *, skip: bool) -> str | None:
        """Compare an episode with that in a directory; return how the latter is outdated."""
        try:
            if not _is_same(episode, DiskEpisode(path)):
                return "has other content"
        except ReliveError as error:
            self.damaged.append(_as_damage(error, episode, path, skip=skip))
            self.unreadable.add(episode.uid)
            return None
        self.kept.add(episode.uid)
        return None


def _compare(dataset: Dataset, root: Path, *, skip: bool) -> _Comparison:
    """Compare a source with a root; `skip` reports episodes that cannot be read.

    Two episodes of the source with one uid and different content raise an `AlreadyExistsError`.
    """
    episodes = _by_uid(dataset, skip=skip)
    dropped = set(_dropped_uids(dataset)) - set(episodes)
    wholes = {whole for uid in (*episodes, *dropped) for whole in _cut_from(uid)}
    found = _Comparison(set(), [], set(), [])
    for path in [episode_path(root, key) for key in scan_root(root).committed]:
        uid = read_uid(path) or ""
        reason = "is there twice" if uid in found.kept else None
        if uid and uid in episodes and reason is None:
            reason = found.compare(episodes[uid], path, skip=skip)
        elif uid in wholes:
            reason = "was cut into segments"
        elif uid in dropped:
            reason = "was dropped"
        elif not episodes.keys().isdisjoint(_cut_from(uid)):
            reason = "is a segment of one that is copied"
        if reason is not None:
            found.outdated.append(_Outdated(uid, path, reason))
    if found.outdated and root.resolve() in _roots(dataset):  # the recordings are never removed
        raise InvalidError(
            f"cannot copy edited episodes from `{root}` to itself", hint="copy to another root"
        )
    return found


def _by_uid(dataset: Dataset, *, skip: bool) -> dict[str, Episode]:
    episodes: dict[str, Episode] = {}
    for episode in dataset:
        first = episodes.setdefault(episode.uid, episode)
        if first is episode or not episode.uid:
            continue
        same = skip  # one that cannot be read is reported when it is copied
        with contextlib.suppress(*(ReliveError,) if skip else ()):
            same = _is_same(first, episode)
        if not same:
            raise AlreadyExistsError(
                f"two episodes with different content have the uid {episode.uid!r}",
                hint="drop one of the two episodes, or copy them to different roots",
            )
    return episodes


def _dropped_uids(dataset: Dataset) -> Iterator[str]:
    """Iterate over the episodes that edits removed from a whole dataset, not from a selection."""
    if isinstance(dataset, ConcatDataset):
        for each in dataset.datasets:
            yield from _dropped_uids(each)
    elif isinstance(dataset, LocalDataset):
        yield from dataset.dropped


def _roots(dataset: Dataset) -> set[Path]:
    """Return the roots that episodes are copied from."""
    found = {dataset.path.resolve()} if isinstance(dataset, LocalDataset) else set()
    paths = [getattr(episode, "path", None) for episode in dataset]
    return found.union(path.parent.parent.resolve() for path in paths if path is not None)


def _cut_from(uid: str) -> Iterator[str]:
    """Iterate over the uids of the episodes that a segment was cut from."""
    while (shorter := _LAST_CUT.sub("", uid)) != uid:
        yield shorter
        uid = shorter


def _outdated_error(outdated: list[_Outdated]) -> AlreadyExistsError:
    uid, path, reason = outdated[0]
    more = f", and {len(outdated) - 1} more" if len(outdated) > 1 else ""
    return AlreadyExistsError(
        f"`{path}` holds another state of the episode {uid!r}, which {reason}{more}",
        hint="replace=True (--replace) removes it after the copy, or copy to another root",
    )


def _is_same(one: Episode, other: Episode) -> bool:
    ours, theirs = one.signals, other.signals
    if dict(one.statics) != dict(other.statics) or ours.keys() != theirs.keys():
        return False
    return all(_same_content(ours[name], theirs[name]) for name in ours)


def _copy_episode(
    episode: Episode, target: LocalDatasetWriter, spec: VideoSpec | None
) -> tuple[str, int]:
    """Copy an episode; return its uid and the number of frames that were encoded."""
    stored = {key: value for key, value in episode.meta.items() if key != "outcome"}
    meta = make_meta(LocalDatasetWriter) | {k: check_json(k, v) for k, v in stored.items()}
    meta |= {"schema_version": SCHEMA_VERSION, "uid": episode.uid or meta["uid"]}
    block = target.path / _FIRST_BLOCK
    # Readers ignore a directory with this name, and `relive recover` removes it if unlocked.
    folder = block / f"{ABORTED}copy.{secrets.token_hex(8)}"
    lock = None
    try:
        block.mkdir(exist_ok=True)
        lock = begin_folder(folder, meta)
        encoded = _copy_content(folder, episode, spec)
        # Committed before the rename: if the copy is interrupted after it and run again,
        # recovering the first one would otherwise add a second episode with the same uid.
        with changing_block(block):
            commit(folder)
            path = create_episode(target.path, partial(place_folder, folder))
        sync_folder(path)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError) and not isinstance(error, ReliveError):
            raise storage_error(error, folder, "write") from error
        raise
    finally:
        if lock is not None:
            lock.release()
    return str(meta["uid"]), encoded


def _copy_content(folder: Path, episode: Episode, spec: VideoSpec | None) -> int:
    statics = episode.statics
    write_statics(
        folder, {name: check_static(f"static {name!r}", statics[name]) for name in statics}
    )
    default = {"ended": "committed", "finished_ts_ns": now_ns()}
    outcome = dict(episode.meta.get("outcome") or default)
    recorded = outcome.get("signals") or {}
    encoded = 0
    outcome["signals"] = {}
    for name, signal in episode.signals.items():
        encoded += _copy_signal(folder, name, signal, spec)
        dropped = (recorded.get(name) or {}).get("dropped", 0)
        outcome["signals"][name] = {"rows": len(signal), "dropped": dropped}
    write_json(folder / OUTCOME, outcome)
    return encoded


def _copy_signal(folder: Path, name: str, signal: Signal[Any], spec: VideoSpec | None) -> int:
    """Write the files of a signal and read them again; return how many frames were encoded."""
    meta = _meta_of(check_name(name), signal)
    times = signal.timestamps
    if not bool((times[1:] > times[:-1]).all()):
        row = int(np.argmax(times[1:] <= times[:-1])) + 1
        raise InvalidError(
            f"cannot copy signal {name!r}: record {row} has the time {times[row]}, which is not "
            f"after {times[row - 1]}"
        )
    stem = file_stem(name)
    if meta.kind != "image":
        columns = folder / f"{stem}{COLUMNS}"
        if _copy_columns(columns, meta, signal) != _checksums_of(SimpleSignal(columns)):
            raise _differs(columns)
        return 0
    files = folder / f"{stem}{VIDEO}", folder / f"{stem}{INDEX}"
    if not len(signal):
        write_empty_video(meta, *files)
        return 0
    encoded = write_video(files, meta, signal, spec)
    copied = VideoSignal(*files)
    for _ in copied.frames.packets(range(len(copied.frames))):
        pass  # each is compared with its checksum
    if _checksums_of(copied, frames=False) != _checksums_of(signal, frames=False):
        raise _differs(files[1])
    return encoded


def _copy_columns(path: Path, meta: SignalMeta, signal: Signal[Any]) -> "_Checksums":
    sums = _Checksums()
    with ColumnsWriter(path, meta) as writer:
        for batch in _batches(signal):
            writer.write(batch.times, batch.values, batch.clocks)
            sums.add_times(batch.times, batch.clocks)
            sums.add_values(batch.values)
    return sums


def _differs(path: Path) -> CorruptError:
    return CorruptError(
        f"`{path}` was not copied correctly: its records differ from those of the source"
    )


class _Batch(NamedTuple):
    times: Times
    values: npt.NDArray[Any]
    clocks: dict[str, Times]


@dataclass(slots=True)
class _Checksums:
    """Checksums of times, clocks and values, which do not depend on the batch size."""

    rows: int = 0
    times: int = 0
    values: int = 0
    clocks: dict[str, int] = field(default_factory=dict)

    def add_times(self, times: Times, clocks: dict[str, Times]) -> None:
        self.rows += len(times)
        self.times = _crc(times, self.times)
        for name, column in clocks.items():
            self.clocks[name] = _crc(column, self.clocks.get(name, 0))

    def add_values(self, values: npt.NDArray[Any]) -> None:
        if values.dtype != object:
            self.values = _crc(values, self.values)
            return
        for text in values:
            self.add_bytes(text.encode())

    def add_bytes(self, data: bytes) -> None:
        self.values = zlib.crc32(data, zlib.crc32(len(data).to_bytes(8, "little"), self.values))


def _meta_of(name: str, signal: Signal[Any]) -> SignalMeta:
    dtype = signal.dtype if isinstance(signal.dtype, str) else np.dtype(signal.dtype).name
    attrs = dict(signal.attrs)
    return SignalMeta(name, signal.kind, dtype, tuple(signal.shape), attrs, tuple(signal.clocks))


def _batches(signal: Signal[Any]) -> Iterator[_Batch]:
    """Iterate over all records, a few megabytes at a time."""
    times = signal.timestamps
    clocks = {name: signal.clock(name) for name in signal.clocks}
    size = _meta_of("", signal).nbytes
    step = _TEXT_ROWS if size is None else max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, size)))
    for start in range(0, len(signal), step):
        rows = range(start, min(start + step, len(signal)))
        part = slice(rows.start, rows.stop)
        inner = {name: column[part] for name, column in clocks.items()}
        yield _Batch(times[part], signal.values_at(rows), inner)


def _checksums_of(signal: Signal[Any], *, frames: bool = True) -> _Checksums:
    """Return the checksums of a signal; for video, those of its stored packets.

    Without `frames`, video counts with its times only.
    """
    sums = _Checksums()
    if signal.kind != "image":
        for batch in _batches(signal):
            sums.add_times(batch.times, batch.clocks)
            sums.add_values(batch.values)
        return sums
    sums.add_times(signal.timestamps, {name: signal.clock(name) for name in signal.clocks})
    plan = plan_copy(signal) if frames else None
    for packet in () if plan is None else plan.record_packets():
        sums.add_bytes(packet)
    return sums


def _same_content(one: Signal[Any], other: Signal[Any]) -> bool:
    """Return whether two signals have the same records.

    Frames are compared by their packets, if both signals could be copied without encoding.
    """
    if len(one) != len(other) or _meta_of("", one) != _meta_of("", other):
        return False
    plans = [plan_copy(signal) for signal in (one, other) if signal.kind == "image"]
    frames = all(plan is not None and not plan.encoded for plan in plans)
    return _checksums_of(one, frames=frames) == _checksums_of(other, frames=frames)


def _crc(values: npt.NDArray[Any], before: int) -> int:
    return zlib.crc32(np.ascontiguousarray(values).view(np.uint8).reshape(-1).data, before)
