"""Writes a fragmented MP4, one whole fragment per packet.

FFmpeg writes the boxes before the first frame, which depend on the codec; this module writes the
fragments. A muxer would hold the last packet back until its duration is known; here each packet
is in the file, at a known offset, when `add` returns.
"""

import contextlib
import hashlib
import os
from array import array
from base64 import b64decode
from itertools import chain
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

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
from relive.store.atomic import open_reader, storage_error
from relive.store.digest import FileDigest
from relive.store.video.encode import Header, Packet

Ints = npt.NDArray[np.int64]

# moof(mfhd, traf(tfhd, tfdt, trun)), then the head of mdat. ISO/IEC 14496-12, 8.8.
_FRAGMENT: Final = Struct(">I4s I4sII I4s I4sII I4sIQ I4sIIiIIIi I4s")
_TFDT_TIME: Final = 15  # the positions of these values in it
_MDAT_BYTES: Final = -2
_MDAT_HEAD: Final = 8
_MOOF: Final = _FRAGMENT.size - _MDAT_HEAD
_BASE_IS_MOOF: Final = 0x020000
_TRUN: Final = 0x01000000 | 0xF01  # version 1; offset, duration, size, flags, composition time
_KEY_FLAGS: Final = 0x02000000  # does not depend on other samples
_DELTA_FLAGS: Final = 0x01010000  # depends on others, is not a sync sample
_DISPOSABLE_FLAG: Final = 0x00800000  # no other sample depends on it
_LONGEST: Final = 0xFFFFFFFF
_TRACK: Final = 1

_TFRA_HEAD: Final = Struct(">I4sIIII")
_TFRA_ENTRY: Final = Struct(">QQBBB")
_MFRO: Final = Struct(">I4sII")


class FrameTable(NamedTuple):
    """Where the frames of a video are, one row per frame, in the order in which they are shown."""

    timestamps: Ints
    pts: Ints
    """When each frame is shown, in ticks."""
    offsets: Ints
    """The offset of each frame in the file."""
    sizes: Ints
    """The bytes of each frame."""
    keys: npt.NDArray[np.bool_]
    """Whether a frame is decoded without others."""
    crcs: Ints | None = None
    """The CRC-32C of each frame's bytes, if known."""
    disposables: npt.NDArray[np.bool_] | None = None
    """Whether no other frame is decoded from it, if known."""


class Movie:
    """Writes packets to a new file, in the order in which they are decoded.

    `header` is that of an encoder or an index. After an error, the packets added before are
    readable.
    """

    def __init__(self, path: str | os.PathLike[str], header: Header) -> None:
        self.path = Path(path)
        ticks, per = header["time_base"]
        number, rate = header.get("fps", (30, 1))
        self._duration = max(1, per * rate // (ticks * number))
        self._last_dts: int | None = None
        # The row and the columns of `FrameTable`. Arrays, because there may be millions of frames.
        self._columns = tuple(array("q") for _ in range(1 + len(FrameTable._fields)))
        self._size = 0
        self._sha256 = hashlib.sha256()
        init = b64decode(header["init"])
        if not init:
            raise UnsupportedError(
                f"an MP4 file cannot contain video with the codec `{header['codec']}`"
            )
        try:
            self._file = self.path.open("xb", buffering=0)
        except FileExistsError as error:
            raise AlreadyExistsError(f"`{self.path}` already exists") from error
        except OSError as error:
            raise storage_error(error, self.path, "write") from error
        try:
            self._write(init)
        except BaseException:
            self.abort()
            raise

    def add(self, packet: Packet) -> None:
        """Write a packet as one fragment."""
        if self._last_dts is not None:
            if packet.dts <= self._last_dts:
                raise InvalidError(
                    f"`{self.path.name}`: the decoding time of frame {packet.row}, {packet.dts}, "
                    f"is not after {self._last_dts}"
                )
            # A guess, because the next frame is unknown. A pause is not the length of a frame.
            self._duration = min(packet.dts - self._last_dts, 2 * self._duration, _LONGEST)
        size = len(packet.data)
        if size > _LONGEST - _MDAT_HEAD:
            raise TooLargeError(
                f"the {size} bytes of frame {packet.row} exceed the limit of "
                f"{_LONGEST - _MDAT_HEAD} bytes"
            )
        shift = packet.pts - packet.dts
        flags = _KEY_FLAGS if packet.key else _DELTA_FLAGS
        flags |= _DISPOSABLE_FLAG if packet.disposable else 0
        head = _FRAGMENT.pack(
            *(_MOOF, b"moof"),
            *(16, b"mfhd", 0, len(self) + 1),
            *(_MOOF - 24, b"traf"),
            *(16, b"tfhd", _BASE_IS_MOOF, _TRACK),
            *(20, b"tfdt", 0x01000000, packet.dts),
            *(36, b"trun", _TRUN, 1, _FRAGMENT.size),
            *(self._duration, size, flags),
            max(-(1 << 31), min(shift, (1 << 31) - 1)),
            *(size + _MDAT_HEAD, b"mdat"),
        )
        offset = self._size + len(head)
        self._write(head, packet.data)
        self._last_dts = packet.dts
        crc = crc32c(packet.data)
        frame = (packet.ts_ns, packet.pts, offset, size, packet.key, crc, packet.disposable)
        for column, value in zip(self._columns, (packet.row, *frame), strict=True):
            column.append(value)

    def close(self) -> None:
        """End the file with a table of its key frames, and put it on the disk."""
        self._write(self._random_access())
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise storage_error(error, self.path, "write") from error
        self._file.close()

    def leave(self) -> None:
        """Close the file without the table of key frames; it is playable. May be called again."""
        self._file.close()

    def abort(self) -> None:
        """Remove the file. May be called again."""
        self._file.close()
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    def __len__(self) -> int:
        return len(self._columns[0])

    @property
    def frames(self) -> FrameTable:
        """The columns of the index, in the order in which frames are shown."""
        rows, *columns = (np.array(column, np.int64) for column in self._columns)
        order = np.argsort(rows, kind="stable")
        stamps, pts, offsets, sizes, keys, crcs, disposables = (each[order] for each in columns)
        return FrameTable(
            stamps,
            pts,
            offsets,
            sizes,
            keys.astype(np.bool_),
            crcs,
            disposables.astype(np.bool_),
        )

    @property
    def digest(self) -> FileDigest:
        """The digest of the bytes so far."""
        return FileDigest(self._size, self._sha256.hexdigest())

    def _random_access(self) -> bytes:
        keys = [
            _TFRA_ENTRY.pack(pts, offset - _FRAGMENT.size, 1, 1, 1)
            for _, _, pts, offset, _, key, *_ in zip(*self._columns, strict=True)
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
        self._sha256.update(left)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            self._file.close()  # the next fragment would not begin where the file ends now
            raise storage_error(error, self.path, "write") from error
        self._size += sum(map(len, parts))


def fragment_times(path: Path) -> list[int]:
    """Return the decoding time of every whole packet in a file of `Movie`, in ticks.

    Only the heads of the fragments are read, so the file may be incomplete.
    """
    times: list[int] = []
    try:
        with open_reader(path) as file:
            end = os.fstat(file.fileno()).st_size
            at = 0
            while len(head := os.pread(file.fileno(), _FRAGMENT.size, at)) >= _MDAT_HEAD:
                size, kind = int.from_bytes(head[:4]), head[4:8]
                if kind == b"moof" and len(head) == _FRAGMENT.size:
                    fields = _FRAGMENT.unpack(head)
                    size += fields[_MDAT_BYTES]
                    if at + size <= end:
                        times.append(fields[_TFDT_TIME])
                at += max(size, _MDAT_HEAD)
    except OSError as error:
        raise storage_error(error, path, "read") from error
    return times
