"""What a signal holds, in pieces that fit in memory, and its checksums."""

import zlib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from relive.episodes.stored_frames import stretch_of
from relive.model.clock import Times
from relive.model.signal import Signal
from relive.store.signal.meta import SignalMeta

__all__ = ["Piece", "Sums", "meta_of", "pieces_of", "same_content", "sums_of"]

_PIECE_BYTES: Final = 8 << 20
_PIECE_ROWS: Final = 1 << 16
_TEXT_ROWS: Final = 1024


class Piece(NamedTuple):
    """Records, one after the other."""

    times: Times
    values: npt.NDArray[Any]
    clocks: dict[str, Times]


class Sums:
    """Checksums of times, of further clocks and of values, however these are cut into pieces."""

    def __init__(self) -> None:
        self.rows = 0
        self._times = 0
        self._values = 0
        self._clocks: dict[str, int] = {}

    def add_times(self, times: Times, clocks: dict[str, Times]) -> None:
        """Add when some records were."""
        self.rows += len(times)
        self._times = _crc(times, self._times)
        for name, column in clocks.items():
            self._clocks[name] = _crc(column, self._clocks.get(name, 0))

    def add_values(self, values: npt.NDArray[Any]) -> None:
        """Add the values of some records."""
        if values.dtype != object:
            self._values = _crc(values, self._values)
            return
        for text in values:
            self.add_bytes(text.encode())

    def add_bytes(self, data: bytes) -> None:
        """Add a value that is bytes."""
        self._values = zlib.crc32(data, zlib.crc32(len(data).to_bytes(8, "little"), self._values))

    def __eq__(self, other: object) -> bool:
        """Whether both are of the same records."""
        return isinstance(other, Sums) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        """Give a number that is equal for equal sums."""
        return hash((self.rows, self._times, self._values))


def meta_of(name: str, signal: Signal[Any]) -> SignalMeta:
    """Give what the files of a signal say about it."""
    dtype = signal.dtype if isinstance(signal.dtype, str) else np.dtype(signal.dtype).name
    attrs = dict(signal.attrs)
    return SignalMeta(name, signal.kind, dtype, tuple(signal.shape), attrs, tuple(signal.clocks))


def pieces_of(signal: Signal[Any]) -> Iterator[Piece]:
    """Give all records, a few megabytes at a time."""
    times = signal.timestamps
    clocks = {name: signal.clock(name) for name in signal.clocks}
    size = meta_of("", signal).nbytes
    step = _TEXT_ROWS if size is None else max(1, min(_PIECE_ROWS, _PIECE_BYTES // max(1, size)))
    for start in range(0, len(signal), step):
        rows = range(start, min(start + step, len(signal)))
        part = slice(rows.start, rows.stop)
        inner = {name: column[part] for name, column in clocks.items()}
        yield Piece(times[part], signal.values_at(rows), inner)


def sums_of(signal: Signal[Any], *, frames: bool = True) -> Sums:
    """Give the checksums of a signal: of video, those of the packets that are stored.

    Without `frames` only the times of video count, and so they do where its records are not
    stored as they are.
    """
    sums = Sums()
    if signal.kind != "image":
        for piece in pieces_of(signal):
            sums.add_times(piece.times, piece.clocks)
            sums.add_values(piece.values)
        return sums
    sums.add_times(signal.timestamps, {name: signal.clock(name) for name in signal.clocks})
    stretch = stretch_of(signal) if frames else None
    if stretch is not None:
        for number, data in enumerate(stretch.packets()):
            if number >= stretch.lead:
                sums.add_bytes(data)
    return sums


def same_content(one: Signal[Any], other: Signal[Any]) -> bool:
    """Whether two signals hold the same records; pictures that have to be encoded are not seen."""
    if len(one) != len(other) or meta_of("", one) != meta_of("", other):
        return False
    frames = stretch_of(one) is not None and stretch_of(other) is not None
    return sums_of(one, frames=frames) == sums_of(other, frames=frames)


def _crc(values: npt.NDArray[Any], before: int) -> int:
    return zlib.crc32(np.ascontiguousarray(values).view(np.uint8).reshape(-1).data, before)
