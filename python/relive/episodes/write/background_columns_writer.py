"""Large records become a file while they come, so that there is little left to do at the end."""

import contextlib
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive.store.signal.meta import SignalMeta
from relive.store.signal.parquet_writer import ColumnsWriter
from relive.store.signal.tape import seal_columns

__all__ = ["LARGE_BYTES", "Follower"]

LARGE_BYTES: Final = 64 << 10
"""Shorter records are soon written at the end."""

Array = npt.NDArray[Any]
Item = tuple[Array, int, tuple[int, ...] | None]

_MOST_WAITING: Final = 16
_WAITING_BYTES: Final = 64 << 20


class Follower:
    """Writes the records of one signal to its file on a thread, behind those who append them.

    It is never waited for. When it falls behind, or fails, the rest comes from the tape: what is
    on the tape alone is what was recorded. `put` is called by one thread at a time.
    """

    def __init__(self, meta: SignalMeta, target: Path) -> None:
        self._meta = meta
        self._target = target
        self._writer: ColumnsWriter | None = None
        self._waiting: SimpleQueue[Item | None] = SimpleQueue()
        self._free: list[Array] = []
        size = max(1, meta.nbytes or 0)
        self._unmade = max(2, min(_MOST_WAITING, _WAITING_BYTES // size))
        self._next_row = 0
        self._is_behind = False
        self._has_failed = False
        self._discards = False
        self._thread = threading.Thread(
            target=self._run, name=f"relive writes {meta.name}", daemon=True
        )
        self._thread.start()

    def put(self, row: int, data: Array, ts_ns: int, clocks: tuple[int, ...] | None) -> None:
        """Have a copy of a record written, unless an earlier one was not."""
        # One of which Ctrl-C kept us from being told is on the tape.
        if self._is_behind or row != self._next_row:
            self._is_behind = True
            return
        buffer = None
        with contextlib.suppress(IndexError):
            buffer = self._free.pop()
        if buffer is None:
            if not self._unmade:
                self._is_behind = True
                return
            self._unmade -= 1
            buffer = np.empty(self._meta.shape, self._meta.array_dtype)
        # Until it is put it counts as missed: one that is interrupted here comes from the tape.
        self._is_behind = True
        np.copyto(buffer, data)
        self._waiting.put((buffer, ts_ns, clocks))
        self._next_row += 1
        self._is_behind = False

    def finish(self, tape: Path, rows: int) -> int:
        """Write what is missing of the rows of the tape, which is closed; count those written."""
        self._stop()
        writer = self._writer
        if self._has_failed or writer is None:
            self.discard()
            return seal_columns(tape, self._target, rows=rows)
        if writer.rows < rows:
            return seal_columns(tape, self._target, writer, rows)
        with writer:
            return writer.rows

    def discard(self) -> None:
        """End, and remove what was written. May be called again."""
        self._discards = True
        self._stop()
        if self._writer is not None:
            self._writer.abort()

    def abandon(self) -> None:
        """Have the thread end and remove what was written, without waiting for it."""
        self._discards = True
        self._waiting.put(None)

    def _stop(self) -> None:
        self._waiting.put(None)
        self._thread.join()
        self._free.clear()

    def _run(self) -> None:
        try:
            while (item := self._waiting.get()) is not None:
                if not self._discards and not self._has_failed:
                    self._write(*item)
                self._free.append(item[0])
        finally:
            if self._discards and self._writer is not None:
                self._writer.abort()

    def _write(self, buffer: Array, ts_ns: int, clocks: tuple[int, ...] | None) -> None:
        try:
            if self._writer is None:
                self._writer = ColumnsWriter(self._target, self._meta)
            times = {
                name: np.array([time], np.int64)
                for name, time in zip(self._meta.clocks, clocks or (), strict=True)
            }
            self._writer.write(np.array([ts_ns], np.int64), buffer[None], times)
        except Exception:  # noqa: BLE001 - the tape has it all, and the end tells what is wrong
            self._has_failed = True
