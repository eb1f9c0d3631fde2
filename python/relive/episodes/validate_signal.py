"""A look at every byte of one signal: what is wrong, and where."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from relive._native import crc32c
from relive.errors import CorruptError, MissingExtraError, ReliveError
from relive.store.signal.parquet_reader import ColumnsFile

if TYPE_CHECKING:
    from relive.store.video import FrameIndex

__all__ = ["Trouble", "check_columns", "check_video", "stored_name"]


class Trouble(NamedTuple):
    """One thing that is wrong with the files of a signal."""

    path: Path
    row: int | None
    kind: str
    message: str


def check_columns(path: Path) -> Iterator[Trouble]:
    """Read all of a signal's Parquet file."""
    file = ColumnsFile(path)
    try:
        file.meta  # noqa: B018 - reading it is the check
        rows = file.rows
    except ReliveError as error:
        yield _trouble(path, None, error)
        return
    # Every page of every column, one group of rows after the other, to tell where it is.
    broken = list(_unreadable_groups(path))
    if broken:
        yield from broken
        return
    late = list(_failing(path, file.timestamps))
    yield from late
    if rows and not late:
        yield from _failing(path, lambda: _check_footer(path, file))
    yield from _failing(path, lambda: [file.clock(name) for name in file.meta.clocks])
    yield from _failing(path, lambda: _all_values(file, rows))


def check_video(video: Path, index_path: Path, *, deep: bool) -> Iterator[Trouble]:
    """Read all of a video and of its index; with `deep`, decode every frame."""
    from relive.store.video import FrameIndex, FrameReader

    try:
        index = FrameIndex(index_path, video)
        frames = len(index)
        index.lead  # noqa: B018 - reading it is the check
        if not video.is_file():
            raise CorruptError(f"`{video}` is missing")
        if not frames:
            return
        stamps = index.timestamps
        for name in index.clocks:
            index.clock(name)
        index.offsets, index.header, index.crcs  # noqa: B018 - the same
    except ReliveError as error:
        yield _trouble(index_path, None, error)
        return
    if index.meta.get("clocks", [*index.clocks]) != [*index.clocks]:
        message = f"`{index_path}` has other clocks than it says"
        yield Trouble(index_path, None, "corrupt", message)
    late = np.flatnonzero(stamps[1:] <= stamps[:-1])
    if len(late):
        row = int(late[0]) + 1
        message = f"the timestamp {stamps[row]} in row {row} is not after {stamps[row - 1]}"
        yield Trouble(index_path, row, "corrupt", f"`{index_path}`: {message}")
    if (index.first_ts, index.last_ts) != (int(stamps[0]), int(stamps[-1])):
        message = f"`{index_path}` has a footer with other times than its rows"
        yield Trouble(index_path, None, "corrupt", message)
    yield from _check_packets(video, index)
    yield from _check_container(video, index)
    if deep:
        reader = FrameReader(video, index)
        for row in range(frames):
            yield from _failing(video, lambda row=row: reader.frame(row), row)  # type: ignore[misc]


def stored_name(paths: Sequence[Path]) -> object:
    """Give what the files of a signal call it."""
    if len(paths) == 1:
        return ColumnsFile(paths[0]).meta.name
    from relive.store.video import FrameIndex

    return FrameIndex(paths[1], paths[0]).meta.get("name")


def _unreadable_groups(path: Path) -> Iterator[Trouble]:
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
                message = f"`{path}` cannot be read from row {first} on: {reason}"
                yield Trouble(path, first, "corrupt", message)
            first += file.metadata.row_group(group).num_rows


def _all_values(file: ColumnsFile, rows: int) -> None:
    step = max(1, (8 << 20) // max(1, file.meta.nbytes or 4096))
    for start in range(0, rows, step):
        file.values(range(start, min(start + step, rows)))


def _check_footer(path: Path, file: ColumnsFile) -> None:
    times = file.timestamps()
    fresh = ColumnsFile(path)  # which has not read the times
    if (fresh.start_ts, fresh.last_ts) != (int(times[0]), int(times[-1])):
        raise CorruptError(f"`{path}` has a footer with other times than its rows")


def _check_packets(video: Path, index: "FrameIndex") -> Iterator[Trouble]:
    size = video.stat().st_size
    with video.open("rb") as file:
        for row in range(len(index)):
            offset, length = int(index.offsets[row]), int(index.sizes[row])
            if offset + length > size:
                message = f"`{video}` ends at byte {size}, within or before frame {row}"
                yield Trouble(video, row, "corrupt", message)
                return
            if index.crcs is None:
                continue
            file.seek(offset)
            if crc32c(file.read(length)) != index.crcs[row]:
                message = f"`{video}`: the bytes of frame {row} are not those that were written"
                yield Trouble(video, row, "corrupt", message)


def _check_container(video: Path, index: "FrameIndex") -> Iterator[Trouble]:
    """Compare what the container says with the index, so that players see what we see."""
    from relive.store.video.container import scan

    try:
        found = scan(video)
    except MissingExtraError:
        raise
    except ReliveError as error:
        yield _trouble(video, None, error)
        return
    if len(found.offsets) != len(index):
        message = f"`{video}` has {len(found.offsets)} frames, and its index {len(index)} rows"
        yield Trouble(video, None, "corrupt", message)
        return
    columns = {"offset": index.offsets, "size": index.sizes, "keyframe": index.keys}
    for name, told in columns.items():
        there = {"offset": found.offsets, "size": found.sizes, "keyframe": found.keys}[name]
        wrong = np.flatnonzero(told != there)
        if len(wrong):
            row = int(wrong[0])
            message = f"`{video}` has frame {row} with {name} {there[row]}, its index {told[row]}"
            yield Trouble(video, row, "corrupt", message)


def _failing(path: Path, read: Callable[[], object], row: int | None = None) -> Iterator[Trouble]:
    try:
        read()
    except ReliveError as error:
        yield _trouble(path, row, error)


def _trouble(path: Path, row: int | None, error: ReliveError) -> Trouble:
    return Trouble(path, row, error.kind, error.message)
