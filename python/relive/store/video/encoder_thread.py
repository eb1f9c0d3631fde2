"""The thread that encodes the frames of one camera, and writes packets to its tape and movie."""

import contextlib
import math
import threading
import time
from array import array
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relive._native import TapeWriter
from relive.errors import EncoderError, ReliveError
from relive.store.queue import BoundedQueue, Overload
from relive.store.video import Encoder, Movie, Packet
from relive.store.video.spill import Frame, SpillWriter
from relive.store.video.spill_thread import QueuedFrame, SpillThread

# At 30 Hz this is half a second.
_MAX_FRAMES: Final = 16
_MIN_FRAMES: Final = 4
_QUEUE_BYTES: Final = 256 << 20
# Buffers that are allocated in advance: allocating one takes longer than copying a frame.
_READY_BUFFERS: Final = 4
# Copying more than this releases the GIL; for less, releasing it takes longer than the copy.
_LONG_COPY_BYTES: Final = 4 << 20
# `stop(discard=True)` waits at most this long for the frame that is being encoded.
_DISCARD_TIMEOUT_S: Final = 1.0


class EncoderThread:
    """Encodes frames in the order in which they are put.

    One thread at a time calls `reserve` and `put`. After a failure nothing more is encoded, and
    `queue.check` raises. `queue` is the number of frames that may wait; by default half a
    second of them, in bounded memory. Frames that wait longer than half a second are written to
    `spill` meanwhile; when the encoder fails, all frames that were not encoded.
    """

    def __init__(
        self,
        name: str,
        encoder: Encoder,
        tape: TapeWriter,
        movie: Movie,
        spill: SpillWriter,
        *,
        shape: tuple[int, ...],
        clocks: int,
        queue: int | None,
    ) -> None:
        self._owner = f"signal {name!r}"
        self._encoder = encoder
        self._tape = tape
        self._movie = movie
        self._shape = shape
        self._clocks = clocks
        self._times = array("q")
        if queue is None:
            fitting = _QUEUE_BYTES // max(1, math.prod(shape))
            queue = max(_MIN_FRAMES, min(_MAX_FRAMES, fitting))
        self.queue: BoundedQueue[QueuedFrame] = BoundedQueue(self._owner, queue)
        self.busy_ns = 0
        # Frames whose packets are not on the tape yet, by row: the one that is being encoded,
        # and those that an encoder with B-frames holds back.
        self._held: dict[int, QueuedFrame] = {}
        self._packets = 0
        self._last_row = -1  # the highest row of a packet
        self._free = [self._buffer() for _ in range(min(queue, _READY_BUFFERS))]
        self._is_detached = False
        self._spill = SpillThread(name, spill, self._waiting, tape.flush, self.queue.fail)
        self._thread = threading.Thread(target=self._run, name=f"relive-encode-{name}", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread is running."""
        return self._thread.is_alive()

    @property
    def encoder_restarts(self) -> int:
        """How often the encoder stopped without an error, and a new one continued."""
        return self._encoder.restarts

    @property
    def is_complete(self) -> bool:
        """Whether the packets of all frames are on the tape."""
        return self._packets == self.queue.put_items

    @property
    def times(self) -> npt.NDArray[np.int64]:
        """The times of all encoded frames on further clocks, one row for each frame."""
        times = np.frombuffer(self._times, np.int64) if self._times else np.empty(0, np.int64)
        return times.reshape(self.queue.done_items, self._clocks)

    def reserve(self, overload: Overload) -> Frame | None:
        """Return a buffer for the next frame, or None if it is to be dropped."""
        if not self.queue.reserve(overload):
            return None
        try:
            return self._free.pop()
        except IndexError:
            return self._buffer()

    def put(self, buffer: Frame, frame: Frame, ts_ns: int, clocks: tuple[int, ...] | None) -> None:
        """Copy `frame` to `buffer`, and append it to the queue."""
        if frame.nbytes <= _LONG_COPY_BYTES and frame.flags.c_contiguous:
            buffer.data.cast("B")[:] = frame.data.cast("B")
        else:
            np.copyto(buffer, frame)
        self.queue.put(QueuedFrame(buffer, ts_ns, clocks, time.monotonic()))

    def stop(self, *, discard: bool = False) -> bool:
        """Encode the frames in the queue and end the thread; return whether it has ended.

        With `discard` the frames in the queue are dropped, and a thread whose encoder hangs is
        waited for only for a moment; it closes the tape and the movie itself. May be called again.
        """
        self._is_detached |= discard
        self.queue.close(discard=discard)
        self._thread.join(_DISCARD_TIMEOUT_S if discard else None)
        if discard:
            self._spill.stop(wait=False)
        self._free.clear()
        return not self._thread.is_alive()

    def _buffer(self) -> Frame:
        buffer = np.empty(self._shape, np.uint8)
        buffer.fill(0)  # so that the system allocates it now, not during the first copy
        return buffer

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            while (frame := self.queue.get()) is not None:
                self._held[self.queue.done_items] = frame
                began = time.perf_counter_ns()
                if frame.clocks is not None:
                    self._times.extend(frame.clocks)
                self._write(self._encoder.encode(frame.buffer, frame.ts_ns))
                self.busy_ns += time.perf_counter_ns() - began
                self._release()
                self.queue.done()
            if not self.queue.is_discarded:
                self._write(self._encoder.finish())
        except BaseException as error:  # noqa: BLE001 - raised by the next call of the writer
            failure = error
        # After an encoder failed, flushing it would end the process in x264.
        if not isinstance(failure, EncoderError):
            with contextlib.suppress(Exception):
                self._encoder.close()
        if failure is not None:
            if not isinstance(failure, ReliveError):
                reason = f"{type(failure).__name__}: {failure}"
                known = EncoderError(f"cannot encode {self._owner}: {reason}")
                known.__cause__ = failure
                failure = known
            self.queue.fail(failure)
        # If the disk failed, packets may be missing on the tape before the frames that wait.
        has_tape = isinstance(failure, EncoderError) and not self.queue.is_discarded
        self._spill.stop(write_all=has_tape)
        if self._is_detached:
            with contextlib.suppress(Exception):
                self._movie.leave()
                self._tape.close()

    def _waiting(self, row: int) -> QueuedFrame | None:
        """Return a frame whose packet is not on the tape; None if there is no such frame."""
        # In this order: a frame is held before it is removed from the queue.
        return self.queue.item(row) or self._held.get(row)

    def _release(self) -> None:
        """Release the frames up to which all packets are on the tape."""
        if self._last_row + 1 == self._packets:  # else an earlier frame is held back
            self._spill.release(self._packets)
            for row in [row for row in self._held if row < self._packets]:
                self._free.append(self._held.pop(row).buffer)

    def _write(self, packets: list[Packet]) -> None:
        for packet in packets:
            if self.queue.is_discarded:
                return
            first = packet.row * self._clocks
            clocks: Any = self._times[first : first + self._clocks] if self._clocks else None
            # The tape comes first: `relive recover` makes the movie from the tape.
            self._tape.append(packet.decode_ns, packet.pack(), clocks)
            self._movie.add(packet)
            self._packets += 1
            self._last_row = max(self._last_row, packet.row)
