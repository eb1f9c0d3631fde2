"""What a signal recorded, becoming its file: the head of a tape, and sealing one.

A writer that is closed and a recovery run the same code, so what a killed process left becomes
the same file.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count, pairwise
from mmap import ACCESS_READ, mmap
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from relive._native import TapeReader, crc32c
from relive.errors import CorruptError, ReliveError
from relive.store.atomic import storage_error, whole_file
from relive.store.signal.meta import SignalMeta
from relive.store.signal.parquet_writer import ColumnsWriter

if TYPE_CHECKING:
    from relive.store.video import Movie, Packet

__all__ = [
    "TapeHead",
    "attrs_note",
    "damage_in",
    "finish_video",
    "make_head",
    "new_path",
    "open_tape",
    "part_path",
    "put_in_place",
    "seal_columns",
    "seal_over",
    "seal_video",
    "tape_path",
    "video_note",
    "write_empty_video",
]

_CHUNK_ROWS: Final = 1 << 16
_CHUNK_BYTES: Final = 8 << 20
_FEW_ROWS: Final = 64

# docs/format/journal.md
_JOURNAL_HEAD: Final = 24
_SALT: Final = slice(12, 20)
_FRAME: Final = Struct("<4sIQI")
_FRAME_MAGIC: Final = b"JREC"
_MAX_RECORD_BYTES: Final = 64 << 20
_MOST_LOOKS: Final = 1000

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TapeHead:
    """What a tape says about its signal, with all that was said later."""

    meta: SignalMeta
    video: dict[str, Any] | None = None
    """What a decoder needs; none before the encoder was there, and for all but video."""
    files: tuple[Path, ...] = ()
    """What the tape was to become, where that was said."""
    overwrite: bool = False
    """Whether files that are there are others, which give way."""


def tape_path(file: Path) -> Path:
    """Give where the tape is of a signal whose file is to be `file`."""
    return file.with_name(f".{file.name}.tape")


def part_path(file: Path) -> Path:
    """Give where a file grows until it gets its name."""
    return file.with_name(f".{file.name}.part")


def new_path(file: Path) -> Path:
    """Give where a file waits, whole, until it takes the place of another."""
    return file.with_name(f".{file.name}.new")


def make_head(meta: SignalMeta, *files: Path, overwrite: bool = False) -> bytes:
    """Give the head of the tape, beside the first of them, that is to become these files."""
    # The folder of a tape may be moved.
    names = [os.path.relpath(file, files[0].parent) for file in files]
    return _json({**meta.to_json(), "files": names, "overwrite": overwrite})


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
        files = tuple(path.parent / file for file in about.get("files", ()))
        overwrite = bool(about.get("overwrite", False))
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
    return TapeHead(replace(meta, attrs=attrs), video, files, overwrite)


def damage_in(tape: Path) -> int | None:
    """Give the byte at which a tape is damaged; None where it is whole, or ends early.

    A writer that dies leaves the first bytes of a record, and a power cut zeros. Something else,
    and whole records behind something else, was there once.
    """
    with tape.open("rb") as file:
        if os.fstat(file.fileno()).st_size < _JOURNAL_HEAD:
            return None
        with mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            salt = data[_SALT]
            at, sequence = _JOURNAL_HEAD, 0
            while (end := _frame_end(data, at, salt, range(sequence, sequence + 1))) is not None:
                at, sequence = end, sequence + 1
            later = range(sequence + 1, sequence + 1 + len(data))
            found = data.find(_FRAME_MAGIC, at + 1)
            looks = 0
            while found >= 0:
                looks += 1
                # Nothing but beginnings would be read again for each of them.
                if looks > _MOST_LOOKS or _frame_end(data, found, salt, later) is not None:
                    return at
                found = data.find(_FRAME_MAGIC, found + 1)
            return None if _is_cut(data, at, salt, sequence) else at


def _is_cut(data: mmap, at: int, salt: bytes, sequence: int) -> bool:
    """Whether what follows the last whole record of a journal is the beginning of the next."""
    rest = data[at : at + _FRAME.size]
    if len(rest) < _FRAME.size:
        return _FRAME_MAGIC.startswith(rest[: len(_FRAME_MAGIC)]) or not any(rest)
    magic, length, found, crc = _FRAME.unpack(rest)
    if (magic, found) != (_FRAME_MAGIC, sequence):
        return not data[at:].strip(b"\0")
    record = data[at + _FRAME.size : at + _FRAME.size + _MAX_RECORD_BYTES + 1]
    # One that has all its bytes was not cut, whatever it says now about its length.
    whole = salt + _FRAME.pack(magic, len(record), sequence, 0)[:-4] + record
    return bool(length > len(record) and crc32c(whole) != crc)


def _frame_end(data: mmap, at: int, salt: bytes, sequences: range) -> int | None:
    """Give where a record of a journal ends that begins at a byte; None where none does."""
    if len(data) - at < _FRAME.size:
        return None
    magic, length, sequence, crc = _FRAME.unpack_from(data, at)
    end: int = at + _FRAME.size + length
    fits = length <= _MAX_RECORD_BYTES and end <= len(data)
    if magic != _FRAME_MAGIC or sequence not in sequences or not fits:
        return None
    checked = salt + data[at : at + _FRAME.size - 4] + data[at + _FRAME.size : end]
    return end if crc32c(checked) == crc else None


def seal_columns(
    tape: Path, target: Path, begun: ColumnsWriter | None = None, rows: int | None = None
) -> int:
    """Make the Parquet file of a tape, and count its rows; the tape stays.

    `begun` has the first rows of it already. A tape that gives less than `rows` is a
    `CorruptError`. The memory that it takes does not grow with the tape.
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
        if rows is not None and writer.rows != rows:
            raise CorruptError(f"`{tape}` gives {writer.rows} of the {rows} records on it")
        return writer.rows


def seal_over(tape: Path, target: Path) -> int:
    """Put the Parquet file of a tape in the place of another, and count its rows."""
    fresh = new_path(target)
    _remove(fresh)
    rows = seal_columns(tape, fresh)
    put_in_place(fresh, target)
    return rows


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
    _remove(index)  # that of another video
    put_in_place(Path(movie.path), video)
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

    _remove(index)  # that of another video
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


def put_in_place(source: Path, target: Path) -> None:
    """Give a file its name, which another may have had, on the disk."""
    try:
        source.replace(target)
        handle = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        raise storage_error(error, target, "written") from error


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise storage_error(error, path, "replaced") from error


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False, allow_nan=False).encode()
