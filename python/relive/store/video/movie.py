"""A fragmented MP4 that grows by one whole fragment per packet.

FFmpeg writes what goes before the first frame, so any codec it knows has its boxes; the
fragments are written here. A muxer holds the last packet back until it knows how long it
lasts; here each is in the file, at a known place, when `add` returns.
"""

import contextlib
import os
from array import array
from base64 import b64decode
from itertools import chain
from pathlib import Path
from struct import Struct
from typing import Final

import numpy as np
import numpy.typing as npt

from relive._native import crc32c
from relive.errors import (
    AlreadyExistsError,
    ClosedError,
    InvalidError,
    TooLargeError,
    UnsupportedError,
)
from relive.store.atomic import storage_error
from relive.store.video.encode import Header, Packet

__all__ = ["Movie"]

# moof(mfhd, traf(tfhd, tfdt, trun)), then the head of mdat. ISO/IEC 14496-12, 8.8.
_FRAGMENT: Final = Struct(">I4s I4sII I4s I4sII I4sIQ I4sIIiIIIi I4s")
_MDAT_HEAD: Final = 8
_MOOF: Final = _FRAGMENT.size - _MDAT_HEAD
_BASE_IS_MOOF: Final = 0x020000
_TRUN: Final = 0x01000000 | 0xF01  # version 1; offset, duration, size, flags, composition time
_KEY_FLAGS: Final = 0x02000000  # depends on no other sample
_DELTA_FLAGS: Final = 0x01010000  # depends on others, and is no sync sample
_DISPOSABLE_FLAG: Final = 0x00800000  # no other depends on it
_LONGEST: Final = 0xFFFFFFFF
_TRACK: Final = 1

_TFRA_HEAD: Final = Struct(">I4sIIII")
_TFRA_ENTRY: Final = Struct(">QQBBB")
_MFRO: Final = Struct(">I4sII")


class Movie:
    """Writes packets, in the order in which they are decoded, to a file that is not there yet.

    `header` is an encoder's, or comes from an index. After an error of a packet nothing is
    removed: what is in the file up to then is readable.
    """

    def __init__(self, path: str | os.PathLike[str], header: Header) -> None:
        self.path = Path(path)
        ticks, per = header["time_base"]
        number, rate = header.get("fps", (30, 1))
        self._duration = max(1, per * rate // (ticks * number))
        self._last_dts: int | None = None
        # Numbers alone: a recording may have millions of frames.
        self._rows, self._offsets, self._sizes = array("q"), array("q"), array("q")
        self._stamps, self._pts, self._crcs = array("q"), array("q"), array("q")
        self._keys, self._disposables = array("b"), array("b")
        self._size = 0
        init = b64decode(header["init"])
        if not init:
            raise UnsupportedError(f"MP4 has no place for video like `{header['codec']}`")
        try:
            self._file = self.path.open("xb", buffering=0)
        except FileExistsError as error:
            raise AlreadyExistsError(f"`{self.path}` exists") from error
        except OSError as error:
            raise storage_error(error, self.path, "written") from error
        try:
            self._write(init)
        except BaseException:
            self.abort()
            raise

    def add(self, packet: Packet) -> None:
        """Write one fragment."""
        if self._last_dts is not None:
            if packet.dts <= self._last_dts:
                raise InvalidError(
                    f"`{self.path.name}`: frame {packet.row} is to be decoded at {packet.dts},"
                    f" not after {self._last_dts}"
                )
            self._duration = min(packet.dts - self._last_dts, _LONGEST)
        size = len(packet.data)
        if size > _LONGEST - _MDAT_HEAD:
            raise TooLargeError(f"frame {packet.row} has {size} bytes")
        shift = packet.pts - packet.dts
        flags = _KEY_FLAGS if packet.key else _DELTA_FLAGS
        flags |= _DISPOSABLE_FLAG if packet.disposable else 0
        head = _FRAGMENT.pack(
            *(_MOOF, b"moof"),
            *(16, b"mfhd", 0, len(self._rows) + 1),
            *(_MOOF - 24, b"traf"),
            *(16, b"tfhd", _BASE_IS_MOOF, _TRACK),
            *(20, b"tfdt", 0x01000000, packet.dts),
            *(36, b"trun", _TRUN, 1, _FRAGMENT.size),
            *(self._duration, size, flags),
            max(-(1 << 31), min(shift, (1 << 31) - 1)),
            *(size + _MDAT_HEAD, b"mdat"),
        )
        at = self._size + len(head)
        self._write(head, packet.data)
        self._last_dts = packet.dts
        self._rows.append(packet.row)
        self._offsets.append(at)
        self._sizes.append(size)
        self._stamps.append(packet.ts_ns)
        self._pts.append(packet.pts)
        self._crcs.append(crc32c(packet.data))
        self._keys.append(packet.key)
        self._disposables.append(packet.disposable)

    def finish(self) -> None:
        """End the file with a table of its key frames, and have it on the disk."""
        self._write(self._random_access())
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise storage_error(error, self.path, "written") from error
        self._file.close()

    def close(self) -> None:
        """Leave the file as it is. May be called again."""
        self._file.close()

    def abort(self) -> None:
        """Close and remove the file. May be called again."""
        self._file.close()
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """Where each frame's bytes begin in the file, by row."""
        return self._column(self._offsets)

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """How many bytes each frame has, by row."""
        return self._column(self._sizes)

    @property
    def pts(self) -> npt.NDArray[np.int64]:
        """When each frame is shown, in ticks, by row."""
        return self._column(self._pts)

    @property
    def timestamps(self) -> npt.NDArray[np.int64]:
        """The timestamp of each frame, by row."""
        return self._column(self._stamps)

    @property
    def keys(self) -> npt.NDArray[np.bool_]:
        """Which frames stand alone, by row."""
        return self._column(self._keys).astype(np.bool_)

    @property
    def crcs(self) -> npt.NDArray[np.int64]:
        """The CRC-32C of each frame's bytes, by row."""
        return self._column(self._crcs)

    @property
    def disposables(self) -> npt.NDArray[np.bool_]:
        """Which frames no other is decoded from, by row."""
        return self._column(self._disposables).astype(np.bool_)

    def _column(self, values: "array[int]") -> npt.NDArray[np.int64]:
        order = np.argsort(np.array(self._rows, np.int64), kind="stable")
        return np.array(values, np.int64)[order]

    def _random_access(self) -> bytes:
        keys = [
            _TFRA_ENTRY.pack(pts, offset - _FRAGMENT.size, 1, 1, 1)
            for offset, pts, key in zip(self._offsets, self._pts, self._keys, strict=True)
            if key
        ]
        length = _TFRA_HEAD.size + _TFRA_ENTRY.size * len(keys)
        table = _TFRA_HEAD.pack(length, b"tfra", 0x01000000, _TRACK, 0, len(keys))
        total = 8 + length + _MFRO.size
        head = total.to_bytes(4, "big") + b"mfra"
        return b"".join(chain((head, table), keys, (_MFRO.pack(16, b"mfro", 0, total),)))

    def _write(self, *parts: bytes) -> None:
        if self._file.closed:
            raise ClosedError(f"`{self.path}` is closed")
        left = memoryview(b"".join(parts))
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            self._file.close()  # where it ends now is not where the next fragment would begin
            raise storage_error(error, self.path, "written") from error
        self._size += sum(map(len, parts))
