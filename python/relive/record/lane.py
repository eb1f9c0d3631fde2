"""The thread of one camera: frames wait for it, and leave it as packets on tape and in a movie."""

import contextlib
import threading
import time
from queue import SimpleQueue
from typing import Final

import numpy as np
import numpy.typing as npt

from relive._native import TapeWriter
from relive.errors import EncoderError, OverloadError, ReliveError
from relive.record.overload import Overload
from relive.store.video import Encoder, Movie, Packet

__all__ = ["Lane"]

Frame = npt.NDArray[np.uint8]

# So many frames are ready at once: asking the system for memory takes longer than a copy.
_READY: Final = 4
# A longer copy lets other threads run; a shorter one is done before they could.
_LONG_BYTES: Final = 4 << 20


class Lane:
    """Encodes frames on a thread of its own, in the order in which they are put.

    `room` and `put` are called by one thread at a time. After a failure nothing more is
    encoded, and `check` raises.
    """

    def __init__(
        self,
        name: str,
        encoder: Encoder,
        tape: TapeWriter,
        movie: Movie,
        *,
        shape: tuple[int, ...],
        capacity: int,
    ) -> None:
        self._name = name
        self._encoder = encoder
        self._tape = tape
        self._movie = movie
        self._shape = shape
        self.capacity = capacity
        self.put_frames = 0
        self.done_frames = 0
        self.busy_ns = 0
        self.clocks: list[tuple[int, ...]] = []
        self._free = [self._buffer() for _ in range(min(capacity, _READY))]
        self._made = len(self._free)
        self._ready: SimpleQueue[tuple[Frame, int, tuple[int, ...] | None] | None] = SimpleQueue()
        self._moved = threading.Event()
        self._failure: BaseException | None = None
        self._discards = False
        self._abandoned = False
        self._thread = threading.Thread(
            target=self._run, name=f"relive encodes {name}", daemon=True
        )
        self._thread.start()

    @property
    def depth(self) -> int:
        """Frames that wait, or are being encoded."""
        return max(0, self.put_frames - self.done_frames)

    def room(self, overload: Overload) -> Frame | None:
        """Give a buffer for the next frame; None when it is to be dropped."""
        while True:
            self._moved.clear()
            self.check()
            with contextlib.suppress(IndexError):
                return self._free.pop()
            if self._made < self.capacity:
                self._made += 1
                return self._buffer()
            if overload == "drop":
                return None
            if overload == "raise":
                raise OverloadError(
                    f"signal {self._name!r}: {self.capacity} frames wait for the encoder",
                    hint='overload="block" waits for it, overload="drop" leaves frames out',
                )
            self._moved.wait()

    def put(self, buffer: Frame, frame: Frame, ts_ns: int, clocks: tuple[int, ...] | None) -> None:
        """Have a copy of `frame`, made in `buffer`, encoded."""
        if frame.nbytes <= _LONG_BYTES and frame.flags.c_contiguous:
            buffer.data.cast("B")[:] = frame.data.cast("B")
        else:
            np.copyto(buffer, frame)
        self._ready.put((buffer, ts_ns, clocks))
        self.put_frames += 1

    def lose(self) -> None:
        """Do without a buffer that was not put."""
        self._made -= 1

    def check(self) -> None:
        """Raise what the thread failed with."""
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
        """Wait until every frame so far is a packet on the tape, or the thread failed."""
        target = self.put_frames
        while self.done_frames < target and self._failure is None:
            self._moved.clear()
            if self.done_frames < target and self._failure is None:
                self._moved.wait(0.05)  # another thread may have cleared it

    def abandon(self) -> None:
        """Have the thread end behind what waits, without waiting for it."""
        self._abandoned = True
        self._ready.put(None)

    def stop(self, *, discard: bool = False) -> None:
        """Encode what waits, unless it is discarded, and end the thread. May be called again."""
        self._discards = self._discards or discard
        self._ready.put(None)
        self._thread.join()
        self._free.clear()

    def _buffer(self) -> Frame:
        buffer = np.empty(self._shape, np.uint8)
        buffer.fill(0)  # now, not when the first frame is copied
        return buffer

    def _run(self) -> None:
        try:
            while (item := self._ready.get()) is not None:
                buffer, ts_ns, clocks = item
                began = time.perf_counter_ns()
                if clocks is not None:
                    self.clocks.append(clocks)
                if not self._discards:
                    self._write(self._encoder.encode(buffer, ts_ns))
                self.busy_ns += time.perf_counter_ns() - began
                self._free.append(buffer)
                self.done_frames += 1
                self._moved.set()
            if not self._discards:
                self._write(self._encoder.finish())
        except BaseException as error:  # noqa: BLE001 - raised where frames come from
            self._failure = error
        finally:
            with contextlib.suppress(Exception):
                self._encoder.close()
            if self._abandoned:
                self._movie.close()
            self._moved.set()

    def _write(self, packets: list[Packet]) -> None:
        for packet in packets:
            clocks = self.clocks[packet.row] if self.clocks else None
            # First to the tape: what is in the movie alone would be lost with it.
            self._tape.append(packet.decode_ns, packet.pack(), clocks)
            self._movie.add(packet)
