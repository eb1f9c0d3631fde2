"""The tape of a signal, its write-ahead file while it is recorded, and sealing it.

Closing a writer and recovering an unfinished recording run the same code, so they write the same
files.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from relive._native import TapeReader
from relive.errors import CorruptError, ReliveError
from relive.store.atomic import replace_file, storage_error, whole_file
from relive.store.digest import Digests, FileDigest, digest_of
from relive.store.signal.meta import SignalMeta
from relive.store.signal.parquet_writer import ColumnsWriter

if TYPE_CHECKING:
    from relive.store.video import Movie, Packet
    from relive.store.video.resume import Extent
    from relive.store.video.spill import SpillReader

_BATCH_ROWS: Final = 1 << 16
_BATCH_BYTES: Final = 8 << 20
_BATCH_PACKETS: Final = 64

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TapeHead:
    """The metadata of a signal on its tape, with all later notes applied."""

    meta: SignalMeta
    video: dict[str, Any] | None = None
    """How packets are decoded; None if it is not video, or no frame was recorded."""
    files: tuple[Path, ...] = ()
    """The files that the tape becomes; empty in an episode."""
    overwrite: bool = False
    """Whether existing files are replaced."""


def tape_path(file: Path) -> Path:
    """Return the path of the tape of a signal whose file is `file`."""
    return file.with_name(f".{file.name}.tape")


def spill_path(file: Path) -> Path:
    """Return the path of the spill file of a signal whose video is `file`."""
    return file.with_name(f".{file.name}.spill")


def part_path(file: Path) -> Path:
    """Return the path of a file while it is being written."""
    return file.with_name(f".{file.name}.part")


def new_path(file: Path) -> Path:
    """Return the path of a complete file that is about to replace `file`."""
    return file.with_name(f".{file.name}.new")


def make_head(meta: SignalMeta, *files: Path, overwrite: bool = False) -> bytes:
    """Return the head of a tape that becomes these files; it is stored beside the first."""
    # Relative paths, because the directory may be moved.
    names = [os.path.relpath(file, files[0].parent) for file in files]
    return _json({**meta.to_json(), "files": names, "overwrite": overwrite})


def attrs_note(attrs: Mapping[str, Any]) -> bytes:
    """Return the note that sets attributes of a signal."""
    return _json({"attrs": dict(attrs)})


def video_note(header: Mapping[str, Any]) -> bytes:
    """Return the note that describes how packets are decoded."""
    return _json({"video": dict(header)})


def open_tape(path: Path) -> tuple[TapeReader, TapeHead] | None:
    """Open a tape and read its head; None if the tape ends before that."""
    reader = TapeReader(os.fspath(path))
    if reader.head is None:
        return None
    try:
        about = json.loads(reader.head)
        meta = SignalMeta.from_json(about)
        files = tuple(path.parent / file for file in about.get("files", ()))
        overwrite = bool(about.get("overwrite", False))
        notes = [json.loads(note) for note in reader.notes()]
    except (ValueError, TypeError) as error:
        if isinstance(error, ReliveError) and error.kind == "unsupported":
            raise
        raise CorruptError(f"the header of `{path}` is damaged: {error}") from error
    attrs = dict(meta.attrs)
    video = None
    for note in notes:
        if isinstance(note, dict):
            attrs.update(note.get("attrs", {}))
            video = note.get("video", video)
    return reader, TapeHead(replace(meta, attrs=attrs), video, files, overwrite)


def seal_columns(
    tape: Path,
    target: Path,
    begun: ColumnsWriter | None = None,
    rows: int | None = None,
    digests: Digests | None = None,
) -> int:
    """Write the Parquet file of a tape and return its number of rows; the tape is kept.

    `begun` has already written the first rows. A tape with fewer than `rows` records is a
    `CorruptError`. `digests` gets the digest of the file, unless it was begun. Memory use does
    not grow with the tape.
    """
    reader, head = _opened(tape)
    meta = head.meta
    with ColumnsWriter(target, meta, digests) if begun is None else begun as writer:
        skip = writer.rows
        while (batch := reader.next(_BATCH_ROWS, _BATCH_BYTES)) is not None:
            stamps, clocks, payload, offsets = batch
            if skip < len(stamps):
                values = _values(meta, payload, offsets)[skip:]
                writer.write(stamps[skip:], values, _by_name(meta, clocks[skip:]))
            skip = max(0, skip - len(stamps))
        if rows is not None and writer.rows != rows:
            raise CorruptError(f"`{tape}` has {writer.rows} readable records, expected {rows}")
        return writer.rows


def seal_over(tape: Path, target: Path) -> int:
    """Replace `target` with the Parquet file of a tape, and return its number of rows."""
    complete = new_path(target)
    _remove(complete)
    rows = seal_columns(tape, complete)
    replace_file(complete, target)
    return rows


class Sealed(NamedTuple):
    """What became of a tape."""

    rows: int
    """The number of records."""
    problem: str | None = None
    """Why frames of the spill file are missing."""


def seal_video(tape: Path, video: Path, index: Path) -> Sealed:
    """Write the video and the index of a tape; the tape and the spill file are kept.

    Frames of the spill file that have no packet on the tape are encoded. The video has the
    frames before the first missing one; without any, nothing is written.
    """
    from relive.store.video import Movie  # imported only for video
    from relive.store.video.resume import encode_spilled

    reader, head = _opened(tape)
    extent, spilled = _recorded(tape, video, reader, head)
    if head.video is None:
        missing = f"`{tape}` does not describe how the frames of `{spilled.path}` are encoded"
        return Sealed(0, missing if spilled else None)
    more = encode_spilled(spilled, head.video, head.meta.shape, extent)
    rows = extent.rows + len(more.packets)
    if not rows:
        return Sealed(0, more.problem)
    times = np.empty((rows, len(head.meta.clocks)), np.int64)
    times[extent.rows :] = np.reshape(more.clocks, times[extent.rows :].shape)
    part = part_path(video)
    part.unlink(missing_ok=True)
    movie = Movie(part, more.header)
    try:
        for clocks, packet in islice(_packets(reader), extent.rows):
            movie.add(packet)
            times[packet.row] = clocks
        for packet in more.packets:
            movie.add(packet)
        finish_video(movie, head.meta, more.header, times, (video, index))
    except BaseException:
        movie.abort()
        raise
    return Sealed(rows, more.problem)


def video_times(tape: Path, video: Path) -> tuple[Ints, str | None]:
    """Return the timestamps of the frames that a tape and its spill file have.

    The second value is the damage of the spill file, because of which frames may be missing.
    """
    reader, head = _opened(tape)
    extent, spilled = _recorded(tape, video, reader, head)
    packets = islice(_packets(reader), extent.rows)
    stamps = sorted(packet.ts_ns for _, packet in packets)
    stamps += [frame.ts_ns for frame in spilled]
    return np.array(stamps, np.int64), spilled.problem


def finish_video(
    movie: "Movie",
    meta: SignalMeta,
    header: Mapping[str, Any],
    clocks: Ints,
    files: tuple[Path, Path],
    *,
    digests: Digests | None = None,
) -> None:
    """Close a movie, rename it to its final name, and write its index; both are then on the disk.

    `clocks` has a row for each frame and a column for each further clock; `files` are the paths
    of the video and of the index. `digests` gets the digests of both.
    """
    from relive.store.video import write_index

    video, index = files
    movie.close()
    _remove(index)  # of another video
    replace_file(movie.path, video)
    digest = movie.digest
    if digests is not None:
        digests[video.name] = digest
    about = meta.to_json() | {"video": dict(header), "movie": _movie_json(digest)}
    write_index(index, about, movie.frames, _by_name(meta, clocks), digests)


def write_empty_video(
    meta: SignalMeta, video: Path, index: Path, digests: Digests | None = None
) -> None:
    """Write a video without frames: an empty file, and an index without a codec."""
    from relive.store.video import FrameTable, write_index

    _remove(index)  # of another video
    with whole_file(video, overwrite=True):
        pass
    none = np.empty(0, np.int64)
    frames = FrameTable(none, none, none, none, none.astype(np.bool_))
    about = meta.to_json() | {"movie": _movie_json(digest_of(video))}
    clocks = _by_name(meta, none.reshape(0, len(meta.clocks)))
    write_index(index, about, frames, clocks, digests)


def _movie_json(digest: FileDigest) -> dict[str, Any]:
    return {"size": digest.size, "sha256": digest.sha256}


def _opened(tape: Path) -> tuple[TapeReader, TapeHead]:
    opened = open_tape(tape)
    if opened is None:
        raise CorruptError(f"`{tape}` ends inside its header")
    return opened


def _recorded(
    tape: Path, video: Path, reader: TapeReader, head: TapeHead
) -> "tuple[Extent, SpillReader]":
    """Return the packets of a tape that make a video, and the frames that come after them."""
    from relive.store.video.resume import Extent
    from relive.store.video.spill import SpillReader

    extent = Extent.of(packet for _, packet in _packets(reader))
    shape, clocks = head.meta.shape, len(head.meta.clocks)
    return extent, SpillReader(spill_path(video), tape, shape, clocks, first=extent.rows)


def _values(meta: SignalMeta, payload: npt.NDArray[np.uint8], offsets: Ints) -> Any:
    if meta.dtype == "str":
        text = payload.tobytes()
        ends = offsets.tolist()
        return [text[start:end].decode() for start, end in pairwise(ends)]
    return payload.view(meta.array_dtype).reshape(len(offsets) - 1, *meta.shape)


def _by_name(meta: SignalMeta, clocks: Ints) -> dict[str, Ints]:
    return {name: clocks[:, column] for column, name in enumerate(meta.clocks)}


def _packets(reader: TapeReader) -> "Iterator[tuple[Ints, Packet]]":
    """Iterate over all packets of a tape, each with its times on further clocks."""
    from relive.store.video import Packet

    reader.rewind()
    while (batch := reader.next(_BATCH_PACKETS, _BATCH_BYTES)) is not None:
        _, clocks, payload, offsets = batch
        for row, (start, end) in enumerate(pairwise(offsets.tolist())):
            yield clocks[row], Packet.unpack(payload[start:end].tobytes())


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise storage_error(error, path, "replace") from error


def _json(content: dict[str, Any]) -> bytes:
    try:
        return json.dumps(content, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:  # the name of a file is not UTF-8
        return json.dumps(content, allow_nan=False).encode()
