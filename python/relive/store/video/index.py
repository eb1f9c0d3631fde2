"""The index of a video: the timestamp of each frame, and where its bytes are."""

import json
import os
from base64 import b64decode
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from relive.errors import CorruptError, InvalidError, InvalidTypeError
from relive.store.atomic import whole_file
from relive.store.digest import Digests, FileDigest
from relive.store.signal.arrow_values import from_arrow
from relive.store.signal.checksums import ChecksummedFile
from relive.store.signal.meta import CHECKSUMS, KEY, SPAN, VERSION, check_version
from relive.store.signal.parquet_footer import CLOCK, ParquetFooter
from relive.store.video.container import Scan, scan
from relive.store.video.encode import CHANNELS, MATRICES, Header
from relive.store.video.movie import FrameTable

Ints = npt.NDArray[np.int64]

MAX_SIDE: Final = 1 << 16
TIMESTAMP: Final = "ts_ns"
# The columns after the timestamps, in the order of `FrameTable`, with their types.
_TYPES: Final = {
    "pts": pa.int64(),
    "offset": pa.int64(),
    "size": pa.int64(),
    "keyframe": pa.bool_(),
    "crc32c": pa.uint32(),
    "disposable": pa.bool_(),
}
_OPTIONAL: Final = ("crc32c", "disposable")


def write_index(
    path: str | os.PathLike[str],
    meta: Mapping[str, Any],
    frames: FrameTable,
    clocks: Mapping[str, Ints] | None = None,
    digests: Digests | None = None,
) -> None:
    """Write the index of a closed movie, whole or not at all; it is on the disk afterwards.

    `digests` gets the digest of the file.
    """
    columns = {TIMESTAMP: pa.array(np.asarray(frames.timestamps, np.int64))}
    for (name, kind), values in zip(_TYPES.items(), frames[1:], strict=True):
        if values is not None and (name != "disposable" or np.any(values)):
            columns[name] = pa.array(np.asarray(values, kind.to_pandas_dtype()))
    for name, values in (clocks or {}).items():
        columns[CLOCK + name] = pa.array(np.asarray(values, np.int64))
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise InvalidError(f"the columns of a video index must have the same length, got {lengths}")
    text = json.dumps({"version": VERSION, **meta, CHECKSUMS: True}, ensure_ascii=False)
    fields = [pa.field(name, values.type, nullable=False) for name, values in columns.items()]
    table = pa.table(list(columns.values()), pa.schema(fields))
    packed = {name: "DELTA_BINARY_PACKED" for name in columns if columns[name].type == pa.int64()}
    with whole_file(path, overwrite=True) as file:
        sink = ChecksummedFile(file)
        with pq.ParquetWriter(
            sink,
            table.schema,
            use_dictionary=False,
            column_encoding=packed,
            compression="none",
            write_statistics=[TIMESTAMP],
            write_page_checksum=True,
            store_schema=False,  # it would contain the metadata again
        ) as writer:
            writer.write_table(table)
            times = frames.timestamps
            span = [len(times), *(map(int, times[[0, -1]]) if len(times) else (None, None))]
            writer.add_key_value_metadata({KEY: text.encode(), SPAN: json.dumps(span)})
            sink.begin_footer()
        digest = sink.end_footer()
    if digests is not None:
        digests[Path(path).name] = digest


class FrameIndex:
    """The index of one video; its columns are read on first use.

    Columns that it does not have are read from the video itself. Thread-safe; keeps no file open;
    pickles by its paths. `footer_sha256` is the SHA-256 of the footer, if it is known from
    elsewhere.
    """

    def __init__(
        self,
        index_path: str | os.PathLike[str],
        video_path: str | os.PathLike[str],
        footer_sha256: str | None = None,
    ) -> None:
        self.path = Path(index_path)
        self.video_path = Path(video_path)
        self._footer_sha256 = footer_sha256
        self._footer = ParquetFooter(self.path, TIMESTAMP, footer_sha256)
        self.clocks = tuple(self._footer.clocks)
        with self._footer.naming_errors():
            about = self._footer.about
            self.meta: dict[str, Any] = {} if about is None else _checked_meta(about)
        video = self.meta.get("video")
        self._stored = [name for name in _TYPES if name in self._footer.schema.names]
        required = set(_TYPES).difference(_OPTIONAL)
        self._is_complete = (
            isinstance(video, dict) and "init" in video and required <= set(self._stored)
        )

    def __len__(self) -> int:
        return self._footer.rows

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.video_path, self._footer_sha256)

    @property
    def footer(self) -> ParquetFooter:
        """The footer of the index file."""
        return self._footer

    @property
    def movie(self) -> FileDigest | None:
        """The size and the SHA-256 of the video, if the index has them."""
        match self.meta.get("movie"):
            case {"size": int(size), "sha256": str(sha256)}:
                return FileDigest(size, sha256)
        return None

    @cached_property
    def lead(self) -> int:
        """The number of first frames that are stored only because others need them."""
        return self._count("lead", len(self))

    @cached_property
    def trail(self) -> int:
        """The number of last frames that are stored only because others need them."""
        return self._count("trail", len(self) - self.lead)

    @cached_property
    def records(self) -> range:
        """The rows of the frames that are records."""
        return range(self.lead, len(self) - self.trail)

    @property
    def first_ts(self) -> int | None:
        """The first timestamp; None without frames."""
        return self._bound(0)

    @property
    def last_ts(self) -> int | None:
        """The last timestamp; None without frames."""
        return self._bound(-1)

    @cached_property
    def timestamps(self) -> Ints:
        """The timestamp of each frame."""
        return self._footer.read_times(self._footer.time_column)

    def clock(self, name: str) -> Ints:
        """Read the time of each frame on a further clock."""
        return self._footer.read_times(self._footer.clocks[name])

    @cached_property
    def header(self) -> Header:
        """How frames are decoded."""
        return self._checked_header(self.meta["video"]) if self._is_complete else self._scan.header

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """The shape of every frame."""
        height, width = (self.header[side] for side in ("height", "width"))
        shape = self.meta.get("shape", [height, width, CHANNELS])
        match shape:
            case [int(tall), int(wide), 3] if 0 < tall <= height and 0 < wide <= width:
                return tall, wide, CHANNELS
        raise CorruptError(f"`{self.path}` is damaged: the frame shape {shape} is invalid")

    @property
    def pts(self) -> Ints:
        """When each frame is shown, in ticks of the video."""
        return self._frames.pts

    @property
    def offsets(self) -> Ints:
        """The offset of each frame in the video."""
        return self._frames.offsets

    @property
    def sizes(self) -> Ints:
        """The bytes of each frame."""
        return self._frames.sizes

    @property
    def keys(self) -> npt.NDArray[np.bool_]:
        """Whether a frame is decoded without others."""
        return self._frames.keys

    @property
    def crcs(self) -> Ints | None:
        """The CRC-32C of each frame's bytes, if the index has them."""
        return self._frames.crcs

    @property
    def disposables(self) -> npt.NDArray[np.bool_] | None:
        """Whether no other frame is decoded from a frame, if the index has it."""
        return self._frames.disposables

    @cached_property
    def _frames(self) -> FrameTable:
        if self._is_complete:
            with self._footer.naming_errors():
                arrays = self._footer.read(self._stored)
                columns: list[Any] = [
                    _plain(name, arrays[name]) if name in arrays else None for name in _TYPES
                ]
            frames = FrameTable(self.timestamps, *columns)
            # Such an encoder also marks frames from which the picture is refreshed step by step.
            if "intra-refresh" in str(self.header.get("options")):
                frames = frames._replace(keys=self._access_points(frames.keys))
        else:
            frames = FrameTable(self.timestamps, *self._scan[1:])
        self._check(frames)
        return frames

    def _access_points(self, keys: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return which of the marked frames decoding can start at, from the video itself."""
        found = self._scan.keys
        return keys & found if len(found) == len(keys) else keys

    def _check(self, frames: FrameTable) -> None:
        offsets, sizes, pts = frames.offsets, frames.sizes, frames.pts
        if len(offsets) != len(self):
            raise CorruptError(
                f"`{self.path}` has {len(self)} rows, but `{self.video_path}` has "
                f"{len(offsets)} frames"
            )
        if not len(self):
            return
        wrong = (offsets < 0) | (sizes <= 0) | (sizes >= 1 << 32) | (offsets > (1 << 62))
        wrong[1:] |= pts[1:] <= pts[:-1]
        order = np.argsort(offsets, kind="stable")
        ends = offsets[order] + sizes[order]
        wrong[order[1:]] |= offsets[order[1:]] < ends[:-1]
        wrong[0] |= not frames.keys[0]
        if wrong.any():
            frame = int(np.flatnonzero(wrong)[0])
            raise CorruptError(
                f"`{self.path}` is damaged: the offset, size or time of frame {frame} is invalid"
            )

    def _checked_header(self, header: Header) -> Header:
        sides = (header.get("width"), header.get("height"))
        matrix = header.get("colorspace")
        good = isinstance(header.get("codec"), str) and (matrix is None or matrix in MATRICES)
        good = good and all(type(side) is int and 0 < side <= MAX_SIDE for side in sides)
        try:
            b64decode(header["extradata"], validate=True)
        except (KeyError, TypeError, ValueError):
            good = False
        if not good:
            raise CorruptError(
                f"`{self.path}` is damaged: the description of its video codec is invalid"
            )
        return dict(header)

    def _count(self, name: str, most: int) -> int:
        count = (self.meta.get("video") or {}).get(name, 0)
        if type(count) is not int or not 0 <= count <= most:
            raise CorruptError(
                f"`{self.path}` is damaged: `{name}` must be from 0 to {most}, got {count!r}"
            )
        return count

    @cached_property
    def _scan(self) -> Scan:
        return scan(self.video_path)

    def _bound(self, row: int) -> int | None:
        if not len(self):
            return None
        span = self._footer.span
        return int(self.timestamps[row]) if span is None else span[row]


def _checked_meta(about: Any) -> dict[str, Any]:
    if not isinstance(about, dict):
        raise InvalidTypeError(
            f"the metadata of a video index must be a JSON object, got {about!r:.60}"
        )
    check_version(about.get("version", VERSION))
    return about


def _plain(name: str, array: pa.Array) -> npt.NDArray[Any]:
    values = from_arrow(array)
    wanted = np.dtype(np.bool_ if _TYPES[name] == pa.bool_() else np.int64)
    if values.ndim != 1 or values.dtype.kind not in ("b" if wanted == np.bool_ else "iu"):
        raise CorruptError(f"column `{name}` must be {wanted}, got {values.dtype}")
    values = values.astype(wanted)
    values.flags.writeable = False
    return values
