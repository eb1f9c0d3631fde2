"""Signatures of what the compiled core has for recording signals; part of `_native.pyi`."""

from collections.abc import Sequence
from os import PathLike
from typing import Any, Self, SupportsIndex, final

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer as _Bytes

@final
class TapeWriter:
    """What a signal records, in the order it comes. Thread-safe.

    Rows are written within about 50 ms and synced within about a second, where the disk keeps
    up. When that failed every further call raises that failure; what was written stays.
    """

    def __new__(
        cls, path: str, name: str, head: bytes, row_bytes: int | None, clocks: int = 0
    ) -> Self:
        """Begins a tape at a path where nothing is; its head is flushed. `row_bytes` is the length
        of every payload, or none where each has its own.
        """
    def append(
        self,
        ts_ns: SupportsIndex,
        payload: _Bytes | npt.NDArray[Any],
        clocks: Sequence[SupportsIndex] | None = None,
    ) -> None:
        """Takes a copy of a row, which must be later than all before. Waits only while 64 MiB are
        pending.
        """
    def note(self, data: bytes) -> None:
        """Takes a note, behind all rows so far."""
    def flush(self) -> None:
        """Makes everything so far survive the end of this process."""
    def sync(self) -> None:
        """Makes everything so far survive a power cut."""
    def close(self) -> None:
        """Syncs, and takes no more; once it succeeded it does nothing."""
    def abort(self) -> None:
        """Removes the tape; once it was closed or aborted it does nothing."""
    @property
    def rows(self) -> int:
        """Rows that were taken."""
    @property
    def last_ts(self) -> int | None:
        """When the last row was."""
    @property
    def pending_bytes(self) -> int:
        """Bytes that are not written yet."""
    @property
    def bytes(self) -> int:
        """Bytes that rows and notes came to so far."""

@final
class TapeReader:
    """The whole rows of a tape, as of when it was opened. Thread-safe."""

    def __new__(cls, path: str) -> Self:
        """Opens a tape. One that was cut before its head ended has no head and no rows."""
    @property
    def head(self) -> bytes | None:
        """What the tape was begun with."""
    @property
    def row_bytes(self) -> int | None:
        """Bytes of every payload; none where each has a length of its own."""
    @property
    def clocks(self) -> int:
        """Clocks beside the timestamp."""
    @property
    def rows(self) -> int:
        """How many whole rows there are; the first time all are looked at."""
    def notes(self) -> list[bytes]:
        """All notes, in their order."""
    def next(
        self, max_rows: int, max_bytes: int
    ) -> (
        tuple[
            npt.NDArray[np.int64],
            npt.NDArray[np.int64],
            npt.NDArray[np.uint8],
            npt.NDArray[np.int64],
        ]
        | None
    ):
        """Further rows, at most so many and of so many bytes together, but one at least: their
        timestamps, clocks, payloads one behind the other, and the offsets between these; none
        at the end.
        """
    def rewind(self) -> None:
        """Goes back to the first row."""

def find_time(timestamps: npt.NDArray[np.int64], ts: SupportsIndex, low: int, high: int) -> int:
    """The number of the first record after `ts`, any integer, among those from `low` to `high` of
    `timestamps`, which increase; `high` if there is none.
    """

def tape_damage(path: str | PathLike[str]) -> int | None:
    """Return the offset at which a tape is damaged; None if it is whole or only ends early.

    A killed process leaves the first bytes of a record, a power cut leaves zeros. Any other bytes
    after the last valid record are damage, and so is a gap between valid records.
    """
