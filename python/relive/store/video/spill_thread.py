"""The thread that writes frames to the spill file when they wait too long for the encoder."""

import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from relive.errors import ReliveError
from relive.store.video.spill import Frame, SpillWriter

# A killed process loses at most the last second: this, and the time to write a queue of frames.
_LONGEST_WAIT_S: Final = 0.5
# `stop(wait=False)` waits at most this long for the frame that is being written.
_STOP_TIMEOUT_S: Final = 1.0


class QueuedFrame(NamedTuple):
    """A copy of an appended frame that is to be encoded."""

    buffer: Frame
    ts_ns: int
    clocks: tuple[int, ...] | None
    put_at: float
    """The monotonic clock when it was appended, in seconds."""


class SpillThread:
    """Writes frames to the spill file when they have waited for half a second.

    A frame waits until `release` is called, which is when its packet is on the tape. The frames
    are written in order.

    Args:
        name: The name of the signal.
        file: The spill file, which is closed when the thread ends.
        waiting: Returns a waiting frame by its row; None if it was not put or was released.
        flush: Makes the packets on the tape survive the end of the process.
        fail: Receives the error when a frame cannot be written; nothing is written after that.
    """

    def __init__(
        self,
        name: str,
        file: SpillWriter,
        waiting: Callable[[int], QueuedFrame | None],
        flush: Callable[[], None],
        fail: Callable[[ReliveError], None],
    ) -> None:
        self._file = file
        self._waiting = waiting
        self._flush = flush
        self._fail = fail
        # Held while a frame is written, so that its buffer is not reused meanwhile.
        self._lock = threading.Lock()
        self._released = 0  # the number of released frames
        self._next = 0  # the first row that is neither written nor released
        self._has_failed = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"relive-spill-{name}", daemon=True)
        self._thread.start()

    def release(self, rows: int) -> None:
        """Forget the frames before `rows`, whose packets are on the tape.

        Their buffers may be reused when this returns.
        """
        with self._lock:
            self._released = rows
            first = self._file.first_row
            if first is not None and first < rows:
                self._flush()  # before the slots are reused
                self._file.release(rows)

    def stop(self, *, write_all: bool = False, wait: bool = True) -> None:
        """End the thread; with `write_all`, every waiting frame is written first.

        Without `wait`, a thread whose disk hangs is waited for only for a moment. May be called
        again.
        """
        self._stopping.set()
        self._thread.join(None if wait else _STOP_TIMEOUT_S)
        if write_all:
            self._write_waiting(before=float("inf"))
        if not self._thread.is_alive():
            self._file.close()

    def _run(self) -> None:
        while not self._stopping.wait(self._pause()):
            self._write_waiting(before=time.monotonic() - _LONGEST_WAIT_S)

    def _pause(self) -> float:
        """Return for how long no frame has to be written, in seconds."""
        while True:
            row = max(self._next, self._released)
            frame = self._waiting(row)
            if frame is not None and not self._has_failed:
                return max(0.0, frame.put_at + _LONGEST_WAIT_S - time.monotonic())
            if row >= self._released:  # else it has just been released
                return _LONGEST_WAIT_S  # frames that are put from now on may wait that long

    def _write_waiting(self, before: float) -> None:
        """Write the frames that were put before this time."""
        while not self._has_failed:
            with self._lock:
                row = self._next = max(self._next, self._released)
                frame = self._waiting(row)
                if frame is None or frame.put_at > before:
                    return
                try:
                    self._file.write(row, frame.buffer, frame.ts_ns, frame.clocks or ())
                except ReliveError as error:
                    self._has_failed = True
                    self._fail(error)
                    return
                self._next = row + 1
