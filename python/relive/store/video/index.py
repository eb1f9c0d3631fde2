"""The index of a video: when each frame was, and where its bytes are."""

import contextlib
import json
import operator
import os
from base64 import b64decode
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from relive.errors import CorruptError, InvalidError, ReliveError, UnsupportedError
from relive.store.atomic import storage_error, whole_file
from relive.store.signal.meta import SPAN
from relive.store.signal.time_columns import find_times
from relive.store.video.container import Scan, scan
from relive.store.video.encode import CHANNELS, MATRICES, Header

__all__ = ["FrameIndex", "read_index", "write_index"]

Ints = npt.NDArray[np.int64]

VERSION: Final = 1
KEY: Final = b"relive"
MAX_SIDE: Final = 1 << 16
CLOCK: Final = "clock."
CRC: Final = "crc32c"
DISPOSABLE: Final = "disposable"
_PLACES: Final = ("pts", "offset", "size", "keyframe")
_FLAGS: Final = ("keyframe", DISPOSABLE)
_OTHER_TYPES: Final = {"keyframe": pa.bool_(), CRC: pa.uint32(), DISPOSABLE: pa.bool_()}


def write_index(  # noqa: PLR0917 - the columns, in their order
    path: str | os.PathLike[str],
    meta: Mapping[str, Any],
    ts: Ints,
    pts: Ints,
    offsets: Ints,
    sizes: Ints,
    keys: npt.NDArray[np.bool_],
    clocks: Mapping[str, Ints] | None = None,
    crcs: Ints | None = None,
    disposables: npt.NDArray[np.bool_] | None = None,
) -> None:
    """Write the index of a finished movie: whole, or not at all; on the disk when this returns."""
    columns: dict[str, npt.NDArray[Any]] = {
        "ts_ns": np.asarray(ts, np.int64),
        "pts": np.asarray(pts, np.int64),
        "offset": np.asarray(offsets, np.int64),
        "size": np.asarray(sizes, np.int64),
        "keyframe": np.asarray(keys, np.bool_),
    }
    if crcs is not None:
        columns[CRC] = np.asarray(crcs, np.uint32)
    if disposables is not None and np.any(disposables):
        columns[DISPOSABLE] = np.asarray(disposables, np.bool_)
    for name, values in (clocks or {}).items():
        columns[CLOCK + name] = np.asarray(values, np.int64)
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise InvalidError(f"the columns of an index have different lengths: {lengths}")
    text = json.dumps({"version": VERSION, **meta}, ensure_ascii=False)
    fields = [
        pa.field(name, _OTHER_TYPES.get(name, pa.int64()), nullable=False) for name in columns
    ]
    table = pa.table(list(map(pa.array, columns.values())), pa.schema(fields))
    # Differences are small where the numbers are large, and any Parquet reader knows them.
    packed = {name: "DELTA_BINARY_PACKED" for name in columns if name not in _OTHER_TYPES}
    with (
        whole_file(path, overwrite=True) as file,
        pq.ParquetWriter(
            file,
            table.schema,
            use_dictionary=False,
            column_encoding=packed,
            compression="none",
            write_statistics=["ts_ns"],
            write_page_checksum=True,
            # It would hold the metadata a second time.
            store_schema=False,
        ) as writer,
    ):
        writer.write_table(table)
        times = columns["ts_ns"]
        span = [len(times), *(map(int, times[[0, -1]]) if len(times) else (None, None))]
        writer.add_key_value_metadata({KEY: text.encode(), SPAN: json.dumps(span)})


class FrameIndex:
    """The index of one video; columns are read when they are first asked for.

    Thread-safe; holds no file open; pickles by its paths.
    """

    def __init__(
        self, index_path: str | os.PathLike[str], video_path: str | os.PathLike[str]
    ) -> None:
        self.path = Path(index_path)
        self.video_path = Path(video_path)
        with self._opened() as file:
            self._footer, schema = file.metadata, file.schema_arrow
            self._names: list[str] = schema.names
        told_times, self._clocks = find_times(self._names, "ts_ns")
        if told_times is None or self._footer.num_rows < 0:
            raise CorruptError(f"`{self.path}` has no column `ts_ns`")
        self._time_column = told_times
        kept = schema.metadata or {}
        self.meta = self._read_meta(kept.get(KEY))
        self._span = self._read_span(kept.get(SPAN)) if KEY in kept else None
        self.clocks = tuple(self._clocks)
        video = self.meta.get("video")
        told = isinstance(video, dict) and "init" in video
        self._has_places = told and set(_PLACES) <= set(self._names)

    def __len__(self) -> int:
        return int(self._footer.num_rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.video_path)

    @cached_property
    def lead(self) -> int:
        """How many frames, the first ones, are there only for others to be decoded from."""
        lead = (self.meta.get("video") or {}).get("lead", 0)
        if type(lead) is not int or not 0 <= lead <= len(self):
            raise CorruptError(f"`{self.path}` cannot have {lead!r} frames before its first")
        return lead

    @cached_property
    def first_ts(self) -> int | None:
        """The first timestamp, from the footer of our files."""
        return self._bound(0)

    @cached_property
    def last_ts(self) -> int | None:
        """The last timestamp, from the footer of our files."""
        return self._bound(-1)

    @cached_property
    def timestamps(self) -> Ints:
        """When each frame was."""
        return self._column(self._time_column)

    def clock(self, name: str) -> Ints:
        """Give what another clock showed at each frame."""
        return self._column(self._clocks[name])

    @cached_property
    def header(self) -> Header:
        """What is needed to decode a frame."""
        return self._checked(self.meta["video"]) if self._has_places else self._scan.header

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """The shape of every frame."""
        height, width = (self.header[side] for side in ("height", "width"))
        shape = self.meta.get("shape", [height, width, CHANNELS])
        match shape:
            case [int(tall), int(wide), 3] if 0 < tall <= height and 0 < wide <= width:
                return tall, wide, CHANNELS
        raise CorruptError(f"`{self.path}` cannot have frames of the shape {shape}")

    @property
    def pts(self) -> Ints:
        """When each frame is shown, in ticks of the video."""
        return self._places[0]

    @property
    def offsets(self) -> Ints:
        """Where each frame's bytes begin."""
        return self._places[1]

    @property
    def sizes(self) -> Ints:
        """How many bytes each frame has."""
        return self._places[2]

    @property
    def keys(self) -> npt.NDArray[np.bool_]:
        """Which frames are decoded without others."""
        return self._places[3]

    @property
    def crcs(self) -> Ints | None:
        """The CRC-32C of each frame's bytes, where the index has them."""
        return self._columns.get(CRC)

    @property
    def disposables(self) -> npt.NDArray[np.bool_] | None:
        """Which frames no other is decoded from, where the index says it."""
        return self._columns.get(DISPOSABLE)

    @cached_property
    def _columns(self) -> dict[str, npt.NDArray[Any]]:
        if not self._has_places:
            return {}
        return self._read([name for name in (*_PLACES, CRC, DISPOSABLE) if name in self._names])

    @cached_property
    def _places(self) -> tuple[Ints, Ints, Ints, npt.NDArray[np.bool_]]:
        if self._has_places:
            pts, offsets, sizes, keys = (self._columns[name] for name in _PLACES)
            places = (pts, offsets, sizes, keys.astype(np.bool_))
        else:
            found = self._scan
            places = (found.pts, found.offsets, found.sizes, found.keys)
        self._check(*places)
        return places

    def _check(self, pts: Ints, offsets: Ints, sizes: Ints, keys: npt.NDArray[np.bool_]) -> None:
        if len(offsets) != len(self):
            raise CorruptError(
                f"`{self.path}` has {len(self)} rows, and `{self.video_path}` {len(offsets)} frames"
            )
        if not len(self):
            return
        wrong = (offsets < 0) | (sizes <= 0) | (sizes >= 1 << 32) | (offsets > (1 << 62))
        wrong[1:] |= pts[1:] <= pts[:-1]
        order = np.argsort(offsets, kind="stable")
        ends = offsets[order] + sizes[order]
        wrong[order[1:]] |= offsets[order[1:]] < ends[:-1]
        wrong[0] |= not keys[0]
        if wrong.any():
            frame = int(np.flatnonzero(wrong)[0])
            raise CorruptError(f"`{self.path}` places frame {frame} where it cannot be")

    def _checked(self, header: Header) -> Header:
        sides = (header.get("width"), header.get("height"))
        matrix = header.get("colorspace")
        good = isinstance(header.get("codec"), str) and (matrix is None or matrix in MATRICES)
        good = good and all(type(side) is int and 0 < side <= MAX_SIDE for side in sides)
        try:
            b64decode(header["extradata"], validate=True)
        except (KeyError, TypeError, ValueError):
            good = False
        if not good:
            raise CorruptError(f"`{self.path}` does not say how its video is decoded")
        return dict(header)

    @cached_property
    def _scan(self) -> Scan:
        return scan(self.video_path)

    @contextlib.contextmanager
    def _opened(self, footer: Any = None) -> Iterator[Any]:
        try:
            with pq.ParquetFile(
                self.path, metadata=footer, page_checksum_verification=True
            ) as file:
                yield file
        except (OSError, pa.ArrowException, UnicodeError) as error:
            if isinstance(error, ReliveError):
                raise
            if isinstance(error, OSError) and error.errno is not None:
                raise storage_error(error, self.path, "read") from error
            reason = str(error).partition("\n")[0]
            raise CorruptError(f"`{self.path}` is no whole Parquet file: {reason}") from error

    def _read_meta(self, text: bytes | None) -> dict[str, Any]:
        if text is None:
            return {}
        try:
            meta = json.loads(text)
        except ValueError as error:
            raise CorruptError(f"`{self.path}` has metadata that is no JSON") from error
        version = meta.get("version", VERSION) if isinstance(meta, dict) else None
        if type(version) is not int:
            raise CorruptError(f"`{self.path}` has metadata that is not ours")
        if version > VERSION:
            raise UnsupportedError(
                f"`{self.path}` has version {version}, and this relive reads {VERSION}",
                hint="upgrade relive",
            )
        return dict(meta)

    def _read_span(self, text: bytes | None) -> tuple[int, int] | None:
        """Give the first and the last timestamp, where they were written down."""
        if text is None or not len(self):
            return None
        try:
            rows, first, last = map(operator.index, json.loads(text))
        except (TypeError, ValueError) as error:
            raise CorruptError(f"`{self.path}` has metadata that is not ours") from error
        if rows != len(self):
            raise CorruptError(f"`{self.path}` has {len(self)} rows, and {rows} were written")
        return first, last

    def _bound(self, row: int) -> int | None:
        if not len(self):
            return None
        # Statistics would tell, too, but asking for those of a damaged footer ends the process.
        return int(self.timestamps[row]) if self._span is None else self._span[row]

    def _column(self, name: str) -> Ints:
        return self._read([name])[name]

    def _read(self, names: list[str]) -> dict[str, npt.NDArray[Any]]:
        with self._opened(self._footer) as file:
            table = file.read(names, use_threads=False)
        return {name: self._plain(table.column(name), name) for name in names}

    def _plain(self, column: Any, name: str) -> npt.NDArray[Any]:
        wanted = np.dtype(np.bool_ if name in _FLAGS else np.int64)
        parts = [np.empty(0, wanted), *map(_values, column.chunks)]
        if column.null_count or any(part.dtype.kind not in wanted.kind + "u" for part in parts):
            raise CorruptError(f"`{self.path}` has other values than {wanted} in `{name}`")
        values = np.concatenate(parts).astype(wanted)
        if len(values) != len(self):
            raise CorruptError(
                f"`{self.path}` has {len(values)} values in `{name}`, of {len(self)}"
            )
        values.flags.writeable = False
        return values


def _values(array: Any) -> npt.NDArray[Any]:
    """Give an array's numbers or flags without `to_numpy`, which loads pandas where it is."""
    if array.type == pa.timestamp("ns"):  # as others may write times
        array = array.view(pa.int64())
    if array.null_count or not len(array):
        return np.empty(0, np.bool_ if array.type == pa.bool_() else np.int64)
    if array.type == pa.bool_():
        bits = np.unpackbits(np.frombuffer(array.buffers()[1], np.uint8), bitorder="little")
        return bits[array.offset : array.offset + len(array)].astype(np.bool_)
    if not pa.types.is_integer(array.type):
        return np.empty(1, object)
    numbers: npt.NDArray[Any] = np.from_dlpack(array)
    return numbers


def read_index(
    index_path: str | os.PathLike[str], video_path: str | os.PathLike[str]
) -> FrameIndex:
    """Open the index of a video; what is missing in it is read from the video itself."""
    return FrameIndex(index_path, video_path)
