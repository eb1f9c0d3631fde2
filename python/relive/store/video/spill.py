"""The spill file of a camera: frames that wait for the encoder, as they are, in slots.

A frame in it survives the end of the process before it is encoded. `docs/format/spill.md` is the
specification.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from relive._native import crc32c
from relive.errors import CorruptError, UnsupportedError
from relive.store.atomic import open_reader, storage_error

Frame: TypeAlias = npt.NDArray[np.uint8]

_MAGIC: Final = b"RELIVES\0"
_VERSION: Final = 1
_HEADER: Final = Struct("<8sI8sIQ")
_CRC: Final = Struct("<I")
_SLOT: Final = b"SLOT"
_PAGE: Final = 4096
# Where the salt of a tape is stored; docs/format/journal.md.
_SALT: Final = slice(12, 20)


class SpilledFrame(NamedTuple):
    """A frame of a spill file."""

    row: int
    frame: Frame
    ts_ns: int
    clocks: tuple[int, ...]


class _Layout:
    """Where the slots of a file are, and what the head of a slot holds."""

    def __init__(self, frame_bytes: int, clocks: int) -> None:
        self.frame_bytes = frame_bytes
        self.head = Struct(f"<4sIQq{clocks}q")  # magic, CRC of the frame, row, timestamp, clocks
        self.frame_at = self.head.size + _CRC.size
        self._stride = -(-(self.frame_at + frame_bytes) // _PAGE) * _PAGE

    def offset(self, slot: int) -> int:
        return _PAGE + slot * self._stride

    def slots(self, file_bytes: int) -> int:
        """Return the number of slots that begin in a file of this size."""
        return max(0, -(-(file_bytes - _PAGE) // self._stride))


class SpillWriter:
    """Writes frames to the slots of a file, which is created with the first frame.

    A slot is reused after its frame was released, so the file has as many slots as there were
    frames in it at once. `tape` is the tape of the same signal. Used by one thread at a time.
    """

    def __init__(self, path: Path, tape: Path, frame_bytes: int, clocks: int) -> None:
        self._path = path
        self._tape = tape
        self._clocks = clocks
        self._layout = _Layout(frame_bytes, clocks)
        self._file: int | None = None
        self._salt = b""
        self._used: dict[int, int] = {}  # the slot of each row, in the order of rows
        self._free: list[int] = []

    @property
    def first_row(self) -> int | None:
        """The first row in the file that was not released."""
        return next(iter(self._used), None)

    def write(self, row: int, frame: Frame, ts_ns: int, clocks: tuple[int, ...]) -> None:
        """Write the frame of a row, later than all before; it survives the end of the process."""
        try:
            file = self._create() if self._file is None else self._file
            slot = self._free[-1] if self._free else len(self._used)
            offset = self._layout.offset(slot)
            pixels = frame.data.cast("B")
            head = self._layout.head.pack(_SLOT, crc32c(pixels), row, ts_ns, *clocks)
            # The head comes second: until then the slot has its released frame, or none.
            _write_at(file, offset + self._layout.frame_at, pixels)
            _write_at(file, offset, memoryview(head + _CRC.pack(crc32c(self._salt + head))))
        except OSError as error:
            raise storage_error(error, self._path, "write") from error
        if self._free:
            self._free.pop()
        self._used[row] = slot

    def release(self, rows: int) -> None:
        """Let the slots of the frames before `rows` be reused; their packets are on the tape."""
        for row in list(self._used):
            if row >= rows:
                break
            self._free.append(self._used.pop(row))

    def close(self) -> None:
        """Close the file and keep it. May be called again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _create(self) -> int:
        self._salt = _salt(self._tape)
        header = _HEADER.pack(_MAGIC, _VERSION, self._salt, self._clocks, self._layout.frame_bytes)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.open(self._path, flags, 0o666)
        _write_at(self._file, 0, memoryview(header + _CRC.pack(crc32c(header))))
        return self._file


class SpillReader:
    """Iterates over the frames of a spill file from row `first` on, up to the first missing one.

    `tape` is the tape of the same signal. A file that does not exist, or that belongs to another
    tape, has no frames. After the iteration, `problem` describes damage, and is None without any.
    """

    def __init__(
        self, path: Path, tape: Path, shape: tuple[int, ...], clocks: int, *, first: int
    ) -> None:
        self.path = path
        self._shape = shape
        self._first = first
        self._layout = _Layout(int(np.prod(shape, dtype=np.int64)), clocks)
        self._offsets: dict[int, int] = {}  # of the slot of each row
        self._damage: list[str] = []
        self.problem: str | None = None
        try:
            with open_reader(path) as file:
                self._read_heads(file.fileno(), _salt(tape), clocks)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise storage_error(error, path, "read") from error

    def __bool__(self) -> bool:
        """Whether the file has frames from row `first` on, or is damaged."""
        return bool(self._damage) or any(row >= self._first for row in self._offsets)

    def __iter__(self) -> Iterator[SpilledFrame]:
        self.problem = self._damage[0] if self._damage else None
        row = self._first
        while (offset := self._offsets.get(row)) is not None:
            try:
                found = self._read_frame(row, offset)
            except CorruptError as error:
                self.problem = str(error)
                return
            yield found
            row += 1
        if self.problem is None and any(other > row for other in self._offsets):
            self.problem = f"`{self.path}` has no frame {row}, but later ones"

    def _read_heads(self, file: int, salt: bytes, clocks: int) -> None:
        header = os.pread(file, _HEADER.size + _CRC.size, 0)
        size = os.fstat(file).st_size
        if len(header) < _HEADER.size + _CRC.size or not any(header):
            if size > _PAGE:
                self._damage.append(f"the header of `{self.path}` is damaged")
            return  # the writer ended while it created the file
        magic, version, file_salt, file_clocks, frame_bytes = _HEADER.unpack_from(header)
        (crc,) = _CRC.unpack_from(header, _HEADER.size)
        if magic != _MAGIC or crc != crc32c(header[: _HEADER.size]):
            self._damage.append(f"the header of `{self.path}` is damaged")
            return
        if version != _VERSION:
            raise UnsupportedError(
                f"`{self.path}` has the version {version}, expected {_VERSION}",
                hint="update relive",
            )
        if file_salt != salt:
            return
        if (file_clocks, frame_bytes) != (clocks, self._layout.frame_bytes):
            self._damage.append(f"`{self.path}` has frames of another shape than its tape")
            return
        for slot in range(self._layout.slots(size)):
            self._read_head(file, salt, self._layout.offset(slot))

    def _read_head(self, file: int, salt: bytes, offset: int) -> None:
        layout = self._layout
        head = os.pread(file, layout.frame_at, offset)
        if not any(head):
            return  # the writer ended before the head was written
        if len(head) == layout.frame_at:
            magic, _, row, *_ = layout.head.unpack_from(head)
            (crc,) = _CRC.unpack_from(head, layout.head.size)
            if magic == _SLOT and crc == crc32c(salt + head[: layout.head.size]):
                self._offsets[row] = offset
                return
        self._damage.append(f"`{self.path}` is damaged at byte {offset}")

    def _read_frame(self, row: int, offset: int) -> SpilledFrame:
        layout = self._layout
        try:
            with open_reader(self.path) as file:
                head = os.pread(file.fileno(), layout.frame_at, offset)
                frame = np.fromfile(file, np.uint8, layout.frame_bytes, offset=offset + len(head))
        except OSError as error:
            raise storage_error(error, self.path, "read") from error
        _, crc, _, ts_ns, *clocks = layout.head.unpack_from(head)
        if frame.nbytes != layout.frame_bytes or crc32c(frame.data) != crc:
            raise CorruptError(f"`{self.path}` is damaged at byte {offset}: frame {row}")
        return SpilledFrame(row, frame.reshape(self._shape), ts_ns, tuple(clocks))


def _write_at(file: int, offset: int, data: memoryview) -> None:
    while data:
        count = os.pwrite(file, data, offset)
        data, offset = data[count:], offset + count


def _salt(tape: Path) -> bytes:
    with open_reader(tape) as file:
        return file.read(_SALT.stop)[_SALT]
