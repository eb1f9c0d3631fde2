"""What a signal recorded, becoming its file: the head of a tape, and sealing one.

A writer that is closed and a recovery run the same code, so what a killed process left becomes
the same file.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from relive._native import TapeReader
from relive.errors import CorruptError, ReliveError
from relive.store.columns_writer import ColumnsWriter
from relive.store.signal_meta import SignalMeta
from relive.store.staging import storage_error, whole_file

if TYPE_CHECKING:
    from relive.store.video import Movie, Packet

__all__ = [
    "TapeHead",
    "attrs_note",
    "finish_video",
    "make_head",
    "open_tape",
    "part_path",
    "seal_columns",
    "seal_video",
    "tape_path",
    "video_note",
    "write_empty_video",
]

_CHUNK_ROWS: Final = 1 << 16
_CHUNK_BYTES: Final = 8 << 20
_FEW_ROWS: Final = 64

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TapeHead:
    """What a tape says about its signal, with all that was said later."""

    meta: SignalMeta
    video: dict[str, Any] | None = None
    """What a decoder needs; none before the encoder was there, and for all but video."""
    files: tuple[Path, ...] = ()
    """What the tape was to become, where that was said."""


def tape_path(file: Path) -> Path:
    """Give where the tape is of a signal whose file is to be `file`."""
    return file.with_name(f".{file.stem}.tape")


def part_path(file: Path) -> Path:
    """Give where a file grows until it gets its name."""
    return file.with_name(f".{file.name}.part")


def make_head(meta: SignalMeta, *files: Path) -> bytes:
    """Give the head of the tape of a signal that is to become these files."""
    return _json({**meta.to_json(), "files": list(map(os.fspath, files))})


def attrs_note(attrs: Mapping[str, Any]) -> bytes:
    """Give the note that says more about a signal."""
    return _json({"attrs": dict(attrs)})


def video_note(header: Mapping[str, Any]) -> bytes:
    """Give the note that says how packets are decoded."""
    return _json({"video": dict(header)})


def open_tape(path: Path) -> tuple[TapeReader, TapeHead] | None:
    """Open a tape; None where not even its head arrived."""
    reader = TapeReader(os.fspath(path))
    head = _head_of(path, reader)
    return None if head is None else (reader, head)


def _head_of(path: Path, reader: TapeReader) -> TapeHead | None:
    written = reader.head
    if written is None:
        return None
    try:
        about = json.loads(written)
        meta = SignalMeta.from_json(about)
        files = tuple(Path(file) for file in about.get("files", ()))
        notes = [json.loads(note) for note in reader.notes()]
    except (ValueError, TypeError) as error:
        if isinstance(error, ReliveError) and error.kind == "unsupported":
            raise
        raise CorruptError(f"`{path}` does not say what it holds: {error}") from error
    attrs = dict(meta.attrs)
    video = None
    for note in notes:
        if isinstance(note, dict):
            attrs.update(note.get("attrs", {}))
            video = note.get("video", video)
    return TapeHead(replace(meta, attrs=attrs), video, files)


def seal_columns(tape: Path, target: Path, begun: ColumnsWriter | None = None) -> int:
    """Make the Parquet file of a tape, and count its rows; the tape stays.

    `begun` has the first rows of it already. The memory that it takes does not grow with the
    tape.
    """
    opened = open_tape(tape)
    if opened is None:
        raise CorruptError(f"`{tape}` has no head")
    reader, head = opened
    meta = head.meta
    with ColumnsWriter(target, meta) if begun is None else begun as writer:
        skip = writer.rows
        while (chunk := reader.next(_CHUNK_ROWS, _CHUNK_BYTES)) is not None:
            stamps, clocks, payload, offsets = chunk
            if skip < len(stamps):
                values = _values(meta, payload, offsets)[skip:]
                writer.write(stamps[skip:], values, _by_name(meta, clocks[skip:]))
            skip = max(0, skip - len(stamps))
        return writer.rows


def seal_video(tape: Path, video: Path, index: Path) -> int:
    """Make the movie and the index of a tape of packets, and count its frames; the tape stays.

    A tape that ends early gives the frames before the first that is missing.
    """
    from relive.store.video import Movie, Packet  # other signals need no video

    opened = open_tape(tape)
    if opened is None:
        raise CorruptError(f"`{tape}` has no head")
    reader, head = opened
    kept = _whole_frames(reader, Packet.unpack)
    if head.video is None or not kept:
        write_empty_video(head.meta, video, index)
        return 0
    times = np.empty((kept, len(head.meta.clocks)), np.int64)
    part = part_path(video)
    part.unlink(missing_ok=True)
    movie = Movie(part, head.video)
    try:
        for clocks, packet in _packets(reader, Packet.unpack):
            if packet.row < kept:
                movie.add(packet)
                times[packet.row] = clocks
        finish_video(movie, head.meta, head.video, times, (video, index))
    except BaseException:
        movie.abort()
        raise
    return kept


def finish_video(
    movie: "Movie",
    meta: SignalMeta,
    header: Mapping[str, Any],
    clocks: Ints,
    places: tuple[Path, Path],
) -> None:
    """Finish a movie: it gets its name, and then an index; both are on the disk.

    `clocks` has a row for each frame and a column for each further clock; `places` are those of
    the video and of the index.
    """
    from relive.store.video import write_index

    video, index = places
    movie.finish()
    _rename(Path(movie.path), video)
    write_index(
        index,
        {**meta.to_json(), "video": dict(header)},
        movie.timestamps,
        movie.pts,
        movie.offsets,
        movie.sizes,
        movie.keys,
        _by_name(meta, clocks),
        movie.crcs,
        movie.disposables,
    )


def write_empty_video(meta: SignalMeta, video: Path, index: Path) -> None:
    """Write a video without a frame: nobody knows how it would have been encoded."""
    from relive.store.video import write_index

    with whole_file(video, overwrite=True):
        pass
    none = np.empty(0, np.int64)
    clocks = _by_name(meta, none.reshape(0, len(meta.clocks)))
    write_index(index, meta.to_json(), none, none, none, none, none.astype(np.bool_), clocks)


def _values(meta: SignalMeta, payload: npt.NDArray[np.uint8], offsets: Ints) -> Any:
    if meta.dtype == "str":
        text = payload.tobytes()
        ends = offsets.tolist()
        return [text[start:end].decode() for start, end in pairwise(ends)]
    return payload.view(meta.array_dtype).reshape(len(offsets) - 1, *meta.shape)


def _by_name(meta: SignalMeta, clocks: Ints) -> dict[str, Ints]:
    return {name: clocks[:, column] for column, name in enumerate(meta.clocks)}


def _packets(
    reader: TapeReader, unpack: "Callable[[bytes], Packet]"
) -> "Iterator[tuple[Ints, Packet]]":
    reader.rewind()
    while (chunk := reader.next(_FEW_ROWS, _CHUNK_BYTES)) is not None:
        _, clocks, payload, offsets = chunk
        for row, (start, end) in enumerate(pairwise(offsets.tolist())):
            yield clocks[row], unpack(payload[start:end].tobytes())


def _whole_frames(reader: TapeReader, unpack: "Callable[[bytes], Packet]") -> int:
    """Count the frames before the first whose packet is missing."""
    rows = {packet.row for _, packet in _packets(reader, unpack)}
    return next(row for row in count() if row not in rows)


def _rename(source: Path, target: Path) -> None:
    try:
        source.replace(target)
        handle = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise storage_error(error, target, "written") from error


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False, allow_nan=False).encode()
