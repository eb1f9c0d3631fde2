"""The thread of one camera: frames wait for it, and leave it as packets on tape and in a movie."""

import atexit
import contextlib
import threading
import time
from array import array
from collections import deque
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from relive._native import TapeWriter
from relive.errors import ClosedError, EncoderError, OverloadError, ReliveError
from relive.store.queue import Overload
from relive.store.video import Encoder, Movie, Packet

__all__ = ["Lane"]

Frame: TypeAlias = npt.NDArray[np.uint8]
Item: TypeAlias = tuple[Frame, int, tuple[int, ...] | None]

# So many frames are ready at once: asking the system for memory takes longer than a copy.
_READY: Final = 4
# A longer copy lets other threads run; a shorter one is done before they could.
_LONG_BYTES: Final = 4 << 20
# Who throws frames away does not wait longer for one that is being encoded.
_PATIENCE_S: Final = 1.0
# The end of the interpreter does not wait longer for frames that nobody closed.
_LAST_PATIENCE_S: Final = 10.0

_ABANDONED: Final[set["Lane"]] = set()


class Lane:
    """Encodes frames on a thread of its own, in the order in which they are put.

    `room` and `put` are called by one thread at a time. After a failure nothing more is
    encoded, and `check` raises. Any call may be cut short by Ctrl-C: a frame is in the queue, or
    it is not, and nothing else is kept of it.
    """

    def __init__(
        self,
        name: str,
        encoder: Encoder,
        tape: TapeWriter,
        movie: Movie,
        *,
        shape: tuple[int, ...],
        clocks: int,
        capacity: int,
    ) -> None:
        self._name = name
        self._encoder = encoder
        self._tape = tape
        self._movie = movie
        self._shape = shape
        self._clocks = clocks
        self._times = array("q")
        self.capacity = capacity
        self.done_frames = 0
        self.busy_ns = 0
        # What follows is changed by whoever holds the lock, which nobody holds for long.
        # Reentrant, as a writer may be collected, and its lane abandoned, at any moment.
        self._lock = threading.RLock()
        self._waiters: list[threading.Lock] = []
        self._queue: deque[Item] = deque()  # its first is the one that is being encoded
        self._free = [self._buffer() for _ in range(min(capacity, _READY))]
        self._failure: BaseException | None = None
        self._ends = False
        self.discards = False
        self._abandoned = False
        self._thread = threading.Thread(
            target=self._run, name=f"relive encodes {name}", daemon=True
        )
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether its thread still encodes."""
        return self._thread.is_alive()

    @property
    def depth(self) -> int:
        """Frames that wait, or are being encoded."""
        return len(self._queue)

    @property
    def put_frames(self) -> int:
        """Frames that were put."""
        with self._lock:
            return self.done_frames + len(self._queue)

    @property
    def times(self) -> npt.NDArray[np.int64]:
        """The times of all encoded frames on further clocks, a row for each."""
        times = np.frombuffer(self._times, np.int64) if self._times else np.empty(0, np.int64)
        return times.reshape(self.done_frames, self._clocks)

    def room(self, overload: Overload) -> Frame | None:
        """Give a buffer for the next frame; None when it is to be dropped."""
        while True:
            with self._lock:
                self.check()
                if len(self._queue) < self.capacity:
                    return self._free.pop() if self._free else self._buffer()
                if overload == "drop":
                    return None
                if overload == "raise":
                    raise OverloadError(
                        f"signal {self._name!r}: {self.capacity} frames wait for the encoder",
                        hint='overload="block" waits for it, overload="drop" leaves frames out',
                    )
                waiter = self._waiter()
            waiter.acquire()

    def put(self, buffer: Frame, frame: Frame, ts_ns: int, clocks: tuple[int, ...] | None) -> None:
        """Have a copy of `frame`, made in `buffer`, encoded."""
        if frame.nbytes <= _LONG_BYTES and frame.flags.c_contiguous:
            buffer.data.cast("B")[:] = frame.data.cast("B")
        else:
            np.copyto(buffer, frame)
        with self._lock:
            # In this order, so that no Ctrl-C leaves a frame that nobody was told of.
            self._tell()
            self._queue.append((buffer, ts_ns, clocks))

    def check(self) -> None:
        """Raise what the thread failed with, or that frames were thrown away."""
        if self.discards:
            raise ClosedError(f"signal {self._name!r} was aborted")
        failure = self._failure
        if failure is None:
            return
        if isinstance(failure, ReliveError):
            again = type(failure)(failure.message, hint=failure.hint)
            if self._name not in failure.message:
                again = type(failure)(
                    f"signal {self._name!r}: {failure.message}", hint=failure.hint
                )
            raise again from failure
        text = f"{type(failure).__name__}: {failure}"
        raise EncoderError(f"signal {self._name!r} could not be encoded: {text}") from failure

    def drain(self) -> None:
        """Wait until every frame so far is a packet on the tape, or none will be any more."""
        target = self.put_frames
        while True:
            with self._lock:
                if self.done_frames >= target or self._failure is not None or self.discards:
                    return
                waiter = self._waiter()
            waiter.acquire()

    def stop(self) -> None:
        """Encode what waits, and end the thread. May be called again."""
        self._end()
        self._thread.join()
        self._free.clear()

    def discard(self) -> bool:
        """End the thread without what waits; whether it did end, in a while.

        One that did not, as its encoder hangs, writes no more and closes what it writes to.
        """
        with self._lock:
            self.discards = self._abandoned = True
        self._end()
        self._thread.join(_PATIENCE_S)
        return not self._thread.is_alive()

    def abandon(self) -> None:
        """Have the thread end behind what waits, without waiting for it."""
        with self._lock:
            self._abandoned = True
        _ABANDONED.add(self)
        if not self._thread.is_alive():
            _ABANDONED.discard(self)
        self._end()

    def _end(self) -> None:
        with self._lock:
            self._ends = True
            self._tell()

    def _waiter(self) -> threading.Lock:
        """Give what can be acquired when something changed; the lock is held."""
        # `threading.Condition` takes its lock again after waiting, where Ctrl-C can keep it from
        # doing so.
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.append(waiter)
        return waiter

    def _tell(self) -> None:
        """Wake all who wait; the lock is held."""
        for waiter in self._waiters:
            if waiter.locked():
                waiter.release()
        self._waiters.clear()

    def _buffer(self) -> Frame:
        buffer = np.empty(self._shape, np.uint8)
        buffer.fill(0)  # now, not when the first frame is copied
        return buffer

    def _next(self) -> Item | None:
        """Wait for the next frame, which stays in the queue; None at the end."""
        while True:
            with self._lock:
                if self.discards:
                    return None
                if self._queue:
                    return self._queue[0]
                if self._ends:
                    return None
                waiter = self._waiter()
            waiter.acquire()

    def _run(self) -> None:
        try:
            while (item := self._next()) is not None:
                buffer, ts_ns, clocks = item
                began = time.perf_counter_ns()
                if clocks is not None:
                    self._times.extend(clocks)
                self._write(self._encoder.encode(buffer, ts_ns))
                self.busy_ns += time.perf_counter_ns() - began
                with self._lock:
                    self._queue.popleft()
                    self._free.append(buffer)
                    self.done_frames += 1
                    self._tell()
            if not self.discards:
                self._write(self._encoder.finish())
        except BaseException as error:  # noqa: BLE001 - raised where frames come from
            self._failure = error
        finally:
            # One that failed is not asked for what it holds: x264 ends the process then.
            if not isinstance(self._failure, EncoderError):
                with contextlib.suppress(Exception):
                    self._encoder.close()
            if self._abandoned:
                with contextlib.suppress(Exception):
                    self._movie.close()
                    self._tape.close()
            with self._lock:
                self._tell()
            _ABANDONED.discard(self)

    def _write(self, packets: list[Packet]) -> None:
        for packet in packets:
            if self.discards:
                return
            first = packet.row * self._clocks
            clocks: Any = self._times[first : first + self._clocks] if self._clocks else None
            # First to the tape: what is in the movie alone would be lost with it.
            self._tape.append(packet.decode_ns, packet.pack(), clocks)
            self._movie.add(packet)


def _wait_for_abandoned() -> None:
    for lane in list(_ABANDONED):
        lane._thread.join(_LAST_PATIENCE_S)  # noqa: SLF001 - it is this module's own


atexit.register(_wait_for_abandoned)
