"""Writes large records to their Parquet file while they are recorded, so that closing is fast."""

import threading
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive.store.digest import Digests
from relive.store.queue import BoundedQueue
from relive.store.signal.meta import SignalMeta
from relive.store.signal.parquet_writer import ColumnsWriter
from relive.store.signal.tape import seal_columns

LARGE_BYTES: Final = 64 << 10
"""Signals with smaller records are written when they are closed, which takes little time."""

Array = npt.NDArray[Any]
Item = tuple[Array, int, tuple[int, ...] | None]

_MAX_RECORDS: Final = 16
_QUEUE_BYTES: Final = 64 << 20


class BackgroundColumnsWriter:
    """Writes the records of one signal to its file, on a thread.

    Appending never waits for it. If it falls behind or fails, the remaining records are read
    from the tape, which has all of them. One thread at a time calls `put`. `digests` gets the
    digest of the file.
    """

    def __init__(self, meta: SignalMeta, target: Path, digests: Digests | None = None) -> None:
        self._meta = meta
        self._target = target
        self._digests = digests
        self._writer: ColumnsWriter | None = None
        size = max(1, meta.nbytes or 0)
        records = max(2, min(_MAX_RECORDS, _QUEUE_BYTES // size))
        self._queue: BoundedQueue[Item] = BoundedQueue(f"signal {meta.name!r}", records)
        self._free: list[Array] = []
        self._next_row = 0
        self._is_behind = False
        self._has_failed = False
        self._thread = threading.Thread(
            target=self._run, name=f"relive-write-{meta.name}", daemon=True
        )
        self._thread.start()

    def put(self, row: int, data: Array, ts_ns: int, clocks: tuple[int, ...] | None) -> None:
        """Write a copy of the record at `row`, unless an earlier record was not written."""
        # After Ctrl-C a row may be missing here; it is on the tape.
        if self._is_behind or row != self._next_row or not self._queue.reserve("drop"):
            self._is_behind = True
            return
        # If Ctrl-C interrupts this, the record and all later ones are read from the tape.
        self._is_behind = True
        try:
            buffer = self._free.pop()
        except IndexError:
            buffer = np.empty(self._meta.shape, self._meta.array_dtype)
        np.copyto(buffer, data)
        self._queue.put((buffer, ts_ns, clocks))
        self._next_row += 1
        self._is_behind = False

    def seal(self, tape: Path, rows: int) -> int:
        """Finish the file with the records that are only on the tape; return the number of rows.

        The tape is closed and has `rows` records.
        """
        self._stop(discard=False)
        writer = self._writer
        if self._has_failed or writer is None:
            self.abort()
            return seal_columns(tape, self._target, rows=rows, digests=self._digests)
        if writer.rows < rows:
            return seal_columns(tape, self._target, writer, rows)
        with writer:
            return writer.rows

    def abort(self) -> None:
        """Stop, and remove the file. May be called again."""
        self._stop(discard=True)
        if self._writer is not None:
            self._writer.abort()

    def _stop(self, *, discard: bool) -> None:
        self._queue.close(discard=discard)
        self._thread.join()
        self._free.clear()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if not self._has_failed:
                self._write(*item)
            self._free.append(item[0])
            self._queue.done()

    def _write(self, buffer: Array, ts_ns: int, clocks: tuple[int, ...] | None) -> None:
        try:
            if self._writer is None:
                self._writer = ColumnsWriter(self._target, self._meta, self._digests)
            times = {
                name: np.array([time], np.int64)
                for name, time in zip(self._meta.clocks, clocks or (), strict=True)
            }
            self._writer.write(np.array([ts_ns], np.int64), buffer[None], times)
        except Exception:  # noqa: BLE001 - sealing from the tape meets and raises the error
            self._has_failed = True
