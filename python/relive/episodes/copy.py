"""Copies episodes into a root, with edits and views applied and video packets unchanged."""

import contextlib
import os
import secrets
import shutil
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from relive._arguments import check_choice
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
from relive.episodes.transforms.wrapped import NamedSignal, ShiftedSignal
from relive.episodes.write.commit import (
    begin_folder,
    changing_block,
    commit,
    place_folder,
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
from relive.model.clock import INT64_MIN, Times, now_ns
from relive.model.dataset import ConcatDataset, Dataset, EpisodeList
from relive.model.episode import Episode, check_json, check_static
from relive.model.report import Damaged, Progress
from relive.model.signal import Signal, SignalView
from relive.store.atomic import storage_error
from relive.store.paths import absolute_path
from relive.store.signal.meta import SignalMeta
from relive.store.signal.parquet_writer import ColumnsWriter
from relive.store.signal.tape import finish_video, part_path, write_empty_video
from relive.store.video import PROFILES, Encoder, FrameReader, Movie, Packet, VideoSpec

CopySource: TypeAlias = Dataset | Episode | Iterable[Episode] | str | os.PathLike[str]
"""A dataset, an episode, several episodes, or the path of a dataset or an episode."""

_FIRST_BLOCK: Final = "000000000000"
_SECOND_NS: Final = 1_000_000_000
_BATCH_BYTES: Final = 8 << 20
_BATCH_ROWS: Final = 1 << 16
_TEXT_ROWS: Final = 1024


@dataclass(frozen=True, slots=True)
class Copied:
    """The result of `copy` and `merge`.

    Example:
        >>> from relive.episodes import Copied
        >>> Copied(copied=("e0",), skipped=())
        Copied(copied=('e0',), skipped=(), damaged=())
    """

    copied: tuple[str, ...]
    """The uids of the episodes that were copied, in order."""
    skipped: tuple[str, ...]
    """The uids of the episodes that were already in the root."""
    damaged: tuple[Damaged, ...] = ()
    """The episodes that could not be read and were left out."""


def copy(
    source: CopySource,
    root: str | os.PathLike[str],
    *,
    video: VideoSpec | str | None = None,
    errors: str = "raise",
    progress: Progress | None = None,
) -> Copied:
    """Copy episodes into a root, after those in it; the root is created if it is missing.

    Episodes keep their uids. Edits and views are applied. Video is copied without encoding it
    again, unless the wanted frames are not a contiguous run of the stored ones; then it is
    encoded with `video`, or else with the profile it was recorded with. The copy is read and
    compared before an episode is committed.

    An episode whose uid is already in the root is skipped if it has the same content, so an
    interrupted copy can be run again; otherwise an `AlreadyExistsError` is raised. Readers never
    see an incomplete copy.

    An episode that cannot be read raises its error; with `errors="skip"` it is left out and
    listed in `damaged`.

    Example:
        >>> import relive
        >>> with relive.LocalDatasetWriter("kitchen").new_episode(uid="e0") as episode:
        ...     episode.append("joint", 0.5, ts_ns=0)
        >>> relive.episodes.copy("kitchen", "backup")
        Copied(copied=('e0',), skipped=(), damaged=())
    """
    check_choice("errors", errors, ("raise", "skip"))
    dataset = as_dataset(source, errors=errors)
    damaged = _left_out(dataset)
    spec = VideoSpec(profile=video) if isinstance(video, str) else video
    target = LocalDatasetWriter(root)
    stored = [episode_path(target.path, key) for key in scan_root(target.path).committed]
    paths = {uid: path for path in reversed(stored) if (uid := read_uid(path))}
    copied: list[str] = []
    skipped: list[str] = []
    total = len(dataset)
    for done, episode in enumerate(dataset):
        if progress is not None:
            progress(done, total)
        try:
            if (path := paths.get(episode.uid)) is not None:
                _check_same(episode, DiskEpisode(path))
                skipped.append(episode.uid)
                continue
            uid, path = _copy_episode(episode, target, spec)
        except ReliveError as error:
            where = getattr(getattr(episode, "recorded", episode), "path", None)
            if errors == "raise" or where is None or not _is_damage(error, where, target.path):
                raise
            damaged.append(Damaged(where, error.message))
            continue
        paths[uid] = path
        copied.append(uid)
    if progress is not None:
        progress(total, total)
    return Copied(tuple(copied), tuple(skipped), tuple(damaged))


def merge(
    sources: Iterable[CopySource],
    root: str | os.PathLike[str],
    *,
    video: VideoSpec | str | None = None,
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
    return copy(joined, root, video=video, errors=errors, progress=progress)


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


def _check_same(episode: Episode, stored: DiskEpisode) -> None:
    ours, theirs = episode.signals, stored.signals
    same = dict(episode.statics) == dict(stored.statics) and ours.keys() == theirs.keys()
    if not same or not all(_same_content(ours[name], theirs[name]) for name in ours):
        raise AlreadyExistsError(
            f"`{stored.path}` already has the uid {episode.uid!r}, but with different content",
            hint="drop one of the two episodes, or copy to another root",
        )


def _copy_episode(
    episode: Episode, target: LocalDatasetWriter, spec: VideoSpec | None
) -> tuple[str, Path]:
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
        _copy_content(folder, episode, spec)
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
    return str(meta["uid"]), path


def _copy_content(folder: Path, episode: Episode, spec: VideoSpec | None) -> None:
    statics = episode.statics
    write_statics(
        folder, {name: check_static(f"static {name!r}", statics[name]) for name in statics}
    )
    default = {"ended": "committed", "finished_ts_ns": now_ns()}
    outcome = dict(episode.meta.get("outcome") or default)
    recorded = outcome.get("signals") or {}
    outcome["signals"] = {
        name: {
            "rows": _copy_signal(folder, name, signal, spec),
            "dropped": (recorded.get(name) or {}).get("dropped", 0),
        }
        for name, signal in episode.signals.items()
    }
    write_json(folder / OUTCOME, outcome)


def _copy_signal(folder: Path, name: str, signal: Signal[Any], spec: VideoSpec | None) -> int:
    """Write the files of a signal, read them again, and return the number of records."""
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
        return len(signal)
    files = folder / f"{stem}{VIDEO}", folder / f"{stem}{INDEX}"
    run = stored_run(signal)
    stamps = None if run is None else _frame_times(signal, run)
    if not len(signal):
        write_empty_video(meta, *files)
        return 0
    if run is None or stamps is None:
        _encode(files, meta, signal, spec or _same_spec(signal))
    else:
        _copy_packets(files, meta, signal, run, stamps)
    copied = VideoSignal(*files)
    for _ in copied.frames.packets(0, len(copied.frames)):
        pass  # each is compared with its checksum
    if _checksums_of(copied, frames=False) != _checksums_of(signal, frames=False):
        raise _differs(files[1])
    return len(signal)


def _copy_columns(path: Path, meta: SignalMeta, signal: Signal[Any]) -> "_Checksums":
    sums = _Checksums()
    with ColumnsWriter(path, meta) as writer:
        for batch in _batches(signal):
            writer.write(batch.times, batch.values, batch.clocks)
            sums.add_times(batch.times, batch.clocks)
            sums.add_values(batch.values)
    return sums


def _copy_packets(
    files: tuple[Path, Path], meta: SignalMeta, signal: Signal[Any], run: "StoredRun", stamps: Times
) -> None:
    index = run.reader.index
    header = {key: value for key, value in index.header.items() if key != "lead"}
    if run.lead:
        header["lead"] = run.lead
    clocks = np.empty((len(stamps), len(meta.clocks)), np.int64)
    for column, name in enumerate(meta.clocks):
        clocks[run.lead :, column] = signal.clock(name)
        clocks[: run.lead, column] = clocks[run.lead, column]  # of frames that are not records
    ticks = None
    if not np.array_equal(stamps, index.timestamps[run.start : run.stop]):
        ticks = _ticks(stamps, header["time_base"])
    with _movie(files[0], header) as movie:
        for packet in run.packets():
            if ticks is not None:
                ts, tick = int(stamps[packet.row]), int(ticks[packet.row])
                packet = replace(packet, ts_ns=ts, pts=tick, decode_ns=ts, dts=tick)  # noqa: PLW2901
            movie.add(packet)
        finish_video(movie, meta, header, clocks, files)


def _encode(
    files: tuple[Path, Path], meta: SignalMeta, signal: Signal[Any], spec: VideoSpec
) -> None:
    columns = [signal.clock(name) for name in meta.clocks]
    clocks = np.stack(columns, 1) if columns else np.empty((len(signal), 0), np.int64)
    encoder = Encoder(spec.encoding(), meta.shape)
    with _movie(files[0], encoder.header) as movie:
        for frame, ts in signal:
            for packet in encoder.encode(np.ascontiguousarray(frame), ts):
                movie.add(packet)
        for packet in encoder.finish():
            movie.add(packet)
        finish_video(movie, meta, encoder.header, clocks, files)


@contextlib.contextmanager
def _movie(path: Path, header: dict[str, Any]) -> Iterator[Movie]:
    """Open a video file for writing; an error removes it."""
    movie = Movie(part_path(path), header)
    try:
        yield movie
    except BaseException:
        movie.abort()
        raise


@dataclass(frozen=True, slots=True)
class StoredRun:
    """Consecutive frames of a video file, from a key frame on, that contain those of a signal."""

    reader: FrameReader
    start: int
    """The first frame of the file, a key frame."""
    stop: int
    lead: int
    """The number of frames between the key frame and the first frame of the signal."""

    def packets(self) -> Iterator[Packet]:
        """Iterate over the stored frames; damaged bytes raise a `CorruptError`."""
        return self.reader.packets(self.start, self.stop)


def stored_run(signal: Signal[Any]) -> StoredRun | None:
    """Return the stored frames of a signal; None if its video has to be encoded again.

    There is a run if the records of the signal are those of a video file, without gaps, and the
    file stores frames in the order in which they are decoded.
    """
    found = _video_rows(signal)
    if found is None or not found[1]:
        return None
    reader, rows = found[0].frames, found[1]
    index = reader.index
    first, stop = rows.start + index.lead, rows.stop + index.lead
    start = reader.copy_start(first)
    offsets = index.offsets[start:stop]
    if not bool((offsets[1:] > offsets[:-1]).all()):
        return None
    return StoredRun(reader, start, stop, first - start)


def _video_rows(signal: Signal[Any]) -> tuple[VideoSignal, range] | None:
    """Return the video of a signal and its rows there; None if they are not consecutive."""
    if isinstance(signal, VideoSignal):
        return signal, range(len(signal))
    if isinstance(signal, (NamedSignal, ShiftedSignal)):
        return _video_rows(signal.base)
    if not isinstance(signal, SignalView):
        return None
    found = _video_rows(signal.base)
    rows = signal._rows  # noqa: SLF001
    if found is None:
        return None
    if not len(rows):
        return found[0], range(0)
    run = range(int(rows[0]), int(rows[0]) + len(rows))
    same = rows == run if isinstance(rows, range) else bool((rows == np.asarray(run)).all())
    return (found[0], found[1][run.start : run.stop]) if same else None


def _frame_times(signal: Signal[Any], run: StoredRun) -> Times | None:
    """Return the time of each frame of a run; frames before the signal keep their distance.

    None if such a time does not fit into 64 bits.
    """
    recorded = run.reader.index.timestamps[run.start : run.stop]
    times = signal.timestamps
    shift = int(times[0]) - int(recorded[run.lead])
    before = [shift + int(ts) for ts in recorded[: run.lead]]
    if before and before[0] < INT64_MIN:
        return None
    return np.concatenate([np.array(before, np.int64), times])


def _ticks(stamps: Times, time_base: list[int]) -> Times:
    """Return the times at which players show the frames, in units of the video's time base."""
    numerator, denominator = time_base
    ticks: list[int] = []
    for ts in stamps.tolist():
        tick = (ts - int(stamps[0])) * denominator // (numerator * _SECOND_NS)
        ticks.append(max(tick, ticks[-1] + 1) if ticks else tick)
    return np.array(ticks, np.int64)


def _same_spec(signal: Signal[Any]) -> VideoSpec:
    """Return the profile that a video was encoded with, or the default one."""
    while isinstance(signal, (NamedSignal, ShiftedSignal, SignalView)):
        signal = signal.base
    if not isinstance(signal, VideoSignal):
        return VideoSpec()
    profile = signal.frames.index.header.get("profile")
    return VideoSpec(profile=str(profile)) if profile in PROFILES else VideoSpec()


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

    Without `frames`, or if its frames are not stored as a run, video counts with its times only.
    """
    sums = _Checksums()
    if signal.kind != "image":
        for batch in _batches(signal):
            sums.add_times(batch.times, batch.clocks)
            sums.add_values(batch.values)
        return sums
    sums.add_times(signal.timestamps, {name: signal.clock(name) for name in signal.clocks})
    run = stored_run(signal) if frames else None
    for packet in run.packets() if run is not None else ():
        if run is not None and packet.row >= run.lead:
            sums.add_bytes(packet.data)
    return sums


def _same_content(one: Signal[Any], other: Signal[Any]) -> bool:
    """Return whether two signals have the same records; frames are compared if both are stored."""
    if len(one) != len(other) or _meta_of("", one) != _meta_of("", other):
        return False
    frames = stored_run(one) is not None and stored_run(other) is not None
    return _checksums_of(one, frames=frames) == _checksums_of(other, frames=frames)


def _crc(values: npt.NDArray[Any], before: int) -> int:
    return zlib.crc32(np.ascontiguousarray(values).view(np.uint8).reshape(-1).data, before)
